"""Big batches: killed and taken up again, on a cluster, without a sandbox."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import faults
import psutil
import pytest
from attacks import ATTACKS
from nbgrader.api import Gradebook

from autograder.course import ROOT
from autograder.exercise import exercises
from autograder.grading.batch import Batch
from autograder.grading.records import Records
from autograder.grading.sandbox import Limits, find_sandbox

LESSON = "ch1_self_attention"
POINTS = {
    name: exercise.points for name, exercise in exercises(LESSON).items()
}
COUNT = int(os.environ.get("AUTOGRADER_TEST_CLASS", "200"))
QUICK = [each for each in ATTACKS if not each.slow]
# Those that do nothing to a machine on which nothing keeps them in.
HARMLESS = [
    each
    for each in QUICK
    if each.kind in ("patching", "forging", "judge", "page")
]

# Kills itself with its whole group in the middle of a transaction.
DYING = """
import os, signal
from autograder.grading import gradebook
save, count = gradebook.Writer._save, [0]
def die(self, made, when):
    count[0] += 1
    if count[0] == {at}:
        self.gradebook.update_or_create_student(made["student"])
        self.gradebook.update_or_create_submission(
            made["lesson"], made["student"])
        os.killpg(0, signal.SIGKILL)
    save(self, made, when)
gradebook.Writer._save = die
from autograder.cli import main
main({arguments})
"""


def write_mixed(folder, count, notebook_of, right, attacks=None):
    """A class of good, faulty and hostile notebooks.

    returns: {student: points of softmax and causal_mask that are due}
    """
    if attacks is None:
        attacks = HARMLESS if find_sandbox().name == "plain" else QUICK
    rng = random.Random(1)
    names = list(faults.FAULTS)
    due = {}
    for number in range(count):
        student = f"s{number:03}"
        path = folder / student / LESSON / f"{LESSON}.ipynb"
        path.parent.mkdir(parents=True)
        answers = {name: right[name] for name in ("softmax", "causal_mask")}
        made = notebook_of(answers)
        due[student] = (POINTS["softmax"], POINTS["causal_mask"])
        if number % 3 == 1:
            path.write_bytes(
                faults.FAULTS[names[number % len(names)]](made, rng)
            )
        elif number % 3 == 2:
            attack = attacks[number % len(attacks)]
            made = notebook_of(answers, softmax=attack.answer)
            made["cells"].insert(
                3, {"cell_type": "code", "metadata": {}, "source": attack.code}
            )
            path.write_text(json.dumps(made))
            due[student] = (0.0, None)
        else:
            path.write_text(json.dumps(made))
    (folder / "broken").mkdir()
    (folder / "broken" / "x.ipynb").write_bytes(b"%PDF")
    return due


def check_results(out, due):
    """Exactly one result for each, in records and in the gradebook."""
    records = Records(out).all()
    graded = [made for made in records if not made["problem"]]
    assert sorted(made["student"] for made in graded) == sorted(due)
    assert [made["student"] for made in records if made["problem"]] == [
        "broken"
    ]
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as book:
        submissions = book.assignment_submissions(LESSON)
        assert sorted(each.student.id for each in submissions) == sorted(due)
        scores = {each.student.id: each.score for each in submissions}
    for made in graded:
        softmax, mask = due[made["student"]]
        points = {
            each["exercise"]: each["points"] for each in made["exercises"]
        }
        assert points["softmax"] == softmax, made["student"]
        assert mask in (None, points["causal_mask"]), made["student"]
        assert scores[made["student"]] == pytest.approx(made["points"])


def start(code):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def warm_processes():
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if "autograder.grading.warm" in (process.info["cmdline"] or ()):
            found.add(process.pid)
    return found


@pytest.mark.slow  # hundreds of notebooks, and two deaths
def test_a_killed_batch_is_taken_up_again(tmp_path, notebook_of, right):
    before = warm_processes()
    due = write_mixed(tmp_path / "class", COUNT, notebook_of, right)
    out = tmp_path / "out"
    arguments = ["grade", str(tmp_path / "class"), "--out", str(out)]
    # Once while the gradebook is written,
    process = start(DYING.format(at=COUNT // 4, arguments=arguments))
    assert process.wait() == -signal.SIGKILL
    first = len(Records(out).all())
    assert 0 < first < COUNT
    # and once anywhere.
    process = start(f"from autograder.cli import main; main({arguments})")
    while len(Records(out).all()) < COUNT // 2 and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    told = []
    batch = Batch(
        tmp_path / "class", out, lambda made, kept: told.append(kept)
    )
    batch.run()
    assert sum(told) >= COUNT // 2 - 2
    check_results(out, due)
    deadline = time.monotonic() + 5
    while warm_processes() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not warm_processes() - before


@pytest.mark.slow  # starts a cluster of processes
def test_a_cluster_that_loses_a_worker(tmp_path, notebook_of, right):
    from distributed import LocalCluster

    due = write_mixed(tmp_path / "class", 18, notebook_of, right)
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
    ) as cluster:
        told = []

        def tell(made, kept):
            told.append(made)
            if len(told) == 6:
                os.kill(
                    next(iter(cluster.workers.values())).pid, signal.SIGKILL
                )

        Batch(
            tmp_path / "class",
            tmp_path / "out",
            tell,
            scheduler=cluster.scheduler_address,
        ).run()
    assert len(told) == 19
    check_results(tmp_path / "out", due)


@pytest.mark.slow  # one batch for each way
@pytest.mark.parametrize(
    "names",
    [["AUTOGRADER_PLAIN"], ["AUTOGRADER_PLAIN", "AUTOGRADER_NO_NAMESPACES"]],
    ids=["namespaces", "plain"],
)
def test_without_bubblewrap(tmp_path, notebook_of, right, names):
    due = write_mixed(tmp_path / "class", 12, notebook_of, right, HARMLESS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "autograder",
            "grade",
            str(tmp_path / "class"),
            "--out",
            str(tmp_path / "out"),
        ],
        cwd=ROOT,
        env={**os.environ, **dict.fromkeys(names, "1")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "without" in done.stderr and "Careful" in done.stderr
    check_results(tmp_path / "out", due)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "autograder",
            "grade",
            str(tmp_path / "class"),
            "--require-sandbox",
        ],
        cwd=ROOT,
        env={**os.environ, **dict.fromkeys(names, "1")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Nothing was graded" in done.stderr


def test_limits_are_sane():
    limits = Limits()
    assert limits.cpu < limits.probe < limits.notebook
