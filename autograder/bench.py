"""Speeds as ratios and medians, side by side: `python -m autograder bench`.

Machines are noisy, so nothing here is asserted; run it on an idle machine.
"""

import statistics
import time

from autograder import answers
from autograder.checker import check_visible
from autograder.exercise import exercises, lessons

ROUNDS = 3
TRIED = 8  # answers an exercise, spread over all that are known


def main():
    """Print how long checks take, then how long grading takes."""
    bench_checks()
    from autograder.grading.bench import bench_grading

    bench_grading()


def bench_checks():
    """Milliseconds of each visible check, of right and of wrong answers."""
    print("Milliseconds a check (median and slowest of some answers)")
    medians = []
    for lesson in lessons():
        for name, exercise in exercises(lesson).items():
            known = answers.of(lesson, name, "right", "wrong")
            times = [
                _seconds(lesson, exercise, answer.object)
                for answer in known[:: -(-len(known) // TRIED)]
            ]
            medians.append(statistics.median(times))
            print(
                f"  {name:32} {medians[-1] * 1e3:7.0f} {max(times) * 1e3:7.0f}"
            )
    print(f"  mean of the medians: {statistics.mean(medians) * 1e3:.0f} ms")


def _seconds(lesson, exercise, answer):
    check_visible(lesson, exercise, answer)  # loads and warms what is lazy
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        check_visible(lesson, exercise, answer)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
