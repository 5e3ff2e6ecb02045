"""Speeds as ratios and medians, side by side: `python -m autograder bench`.

Machines are noisy, so nothing here is asserted; run it on an idle machine.
"""

import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from autograder import answers
from autograder.checker import check_visible
from autograder.course import ROOT
from autograder.edition import tracked
from autograder.exercise import exercises, lessons

ROUNDS = 3
TRIED = 8  # answers an exercise, spread over all that are known


def main():
    """Print how long checks, the GPT, the book and grading take."""
    from autograder.bench_gpt import bench_gpt
    from autograder.grading.bench import bench_grading

    bench_checks()
    bench_gpt()
    bench_grading()
    bench_book()


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


def bench_book(page="ch3_positional_encoding"):
    """Seconds of a build from nothing, and after one line has changed.

    page: the chapter whose line it is
    """
    with tempfile.TemporaryDirectory() as folder:
        course = pathlib.Path(folder) / "course"
        for name in tracked():
            (course / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, course / name)
        scripts = "book/assets/mathjax"  # fetched, not tracked
        shutil.copytree(ROOT / scripts, course / scripts, dirs_exist_ok=True)
        print(f"the whole book, from nothing: {_build(course):.0f} s")
        chapter = course / "book" / f"{page}.md"
        text = chapter.read_text(encoding="utf-8")
        chapter.write_text(f"{text}\nOne more line.\n", encoding="utf-8")
        print(f"after one line of {page} changed: {_build(course):.1f} s")


def _build(course):
    command = [
        str(pathlib.Path(sys.executable).with_name("jupyter-book")),
        "build",
        str(course),
        "-W",
        "-n",
        "--keep-going",
    ]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=course)
    return time.perf_counter() - start
