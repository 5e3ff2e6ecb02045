"""How long grading takes: stock nbgrader and `grade` on the same notebooks.

Both start from nothing (no gradebook, nothing cached) and end with scores in
a gradebook and a feedback page for everybody.
"""

import contextlib
import copy
import inspect
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import psutil

from autograder import answers
from autograder.build import notebook_bytes, released_notebook, source_notebook
from autograder.course import ROOT

LESSON = "ch1_self_attention"
IMPORTS = """\
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


"""


def bench_grading(count=20, many=200, say=print):
    """Print seconds a notebook of both ways, their ratio, and memory.

    many: size of a second class, graded by `grade` alone; 0 for none
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_class(folder / "class", count)
        ours, _ = timed_grade(folder / "class", folder / "ours")
        say(
            f"grade: {ours / count:.2f} s a notebook ({count} notebooks, "
            f"{ours:.1f} s)"
        )
        stock = timed_stock(folder / "class", folder / "stock")
        say(
            f"nbgrader autograde and generate_feedback: "
            f"{stock / count:.2f} s a notebook ({stock:.1f} s)"
        )
        say(f"grade is {stock / ours:.1f} times as fast")
        if many:
            write_class(folder / "many", many)
            ours, memory = timed_grade(
                folder / "many", folder / "all", watched=True
            )
            say(
                f"grade: {ours / many:.2f} s a notebook ({many} notebooks, "
                f"{ours:.1f} s, at most {memory / 2**20:.0f} MiB)"
            )


def write_class(folder, count, lesson=LESSON):
    """Write notebooks of a class: solved, half-solved and wrong ones.

    No two are alike: each has its own mixture of right and wrong answers.
    """
    released = released_notebook(lesson)
    right = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in source_notebook(lesson).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    wrong = wrong_sources(lesson)
    rng = random.Random(count)
    for number in range(count):
        kind = ("solved", "half", "wrong")[number % 3]
        made = copy.deepcopy(released)
        for cell in made.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            if name not in right:
                continue
            draw = rng.random()
            if kind == "solved" or kind == "half" and draw < 0.5:
                cell.source = f"{right[name]}\n# student {number}"
            elif (kind == "wrong" or draw < 0.8) and wrong.get(name):
                cell.source = rng.choice(wrong[name])
        path = folder / f"student{number:03}" / lesson / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(notebook_bytes(made))


def wrong_sources(lesson):
    """{exercise: sources of wrong answers that need nothing else}."""
    found = {}
    for answer in answers.load(lesson):
        if answer.kind != "wrong" or not inspect.isfunction(answer.object):
            continue
        code = answer.object.__code__
        module = inspect.getmodule(answer.object)
        if any(
            inspect.getmodule(vars(module).get(name)) is module
            for name in code.co_names
        ):
            continue  # it calls a helper
        source = inspect.getsource(answer.object)
        source = source[re.search(r"^def ", source, re.MULTILINE).start() :]
        found.setdefault(answer.exercise, []).append(
            f"{IMPORTS}{source}\n\n{answer.exercise} = {answer.id}"
        )
    return found


def timed_grade(submissions, out, watched=False):
    """(seconds, peak memory in bytes) of `grade` on a folder.

    watched: look at its memory, which takes a tenth of its time more; without
        that the peak is 0
    """
    return _timed(
        [
            sys.executable,
            "-m",
            "autograder",
            "grade",
            str(submissions),
            "--out",
            str(out),
        ],
        watched,
    )


def timed_stock(submissions, folder, seed="bench"):
    """Seconds that nbgrader takes to grade and give feedback."""
    options = stock_options(submissions, folder)
    environment = stock_environment(seed)
    _call("generate_assignment", options, environment)
    start = time.monotonic()
    for command in ("autograde", "generate_feedback"):
        _call(command, options, environment)
    return time.monotonic() - start


def stock_options(submissions, folder, lesson=LESSON):
    """Options with which nbgrader works in a folder of its own."""
    source = folder / "source" / lesson / f"{lesson}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes(notebook_bytes(source_notebook(lesson)))
    names = {
        "source": folder / "source",
        "release": folder / "release",
        "submitted": submissions,
        "autograded": folder / "autograded",
        "feedback": folder / "feedback",
    }
    return [
        lesson,
        f"--db=sqlite:///{folder / 'gradebook.db'}",
        *(
            f"--CourseDirectory.{name}_directory={path}"
            for name, path in names.items()
        ),
    ]


def stock_environment(seed):
    """nbgrader calls other commands of this environment by name."""
    path = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    )
    return {**os.environ, "PATH": path, "AUTOGRADER_SEED": seed}


def _call(command, options, environment):
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", command, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"nbgrader {command} failed: {done.stderr[-2000:]}")


def _timed(command, watched):
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = [0]
    if watched:
        threading.Thread(
            target=_watch, args=(process.pid, peak), daemon=True
        ).start()
    _, told = process.communicate()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"grading failed: {told.decode()[-2000:]}")
    return time.monotonic() - start, peak[0]


def _watch(number, peak):
    """Keep the most memory that a process and its children have at a time.

    Pages that forks share count once: it is the unshared memory that is
    summed up.
    """
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(number)
        while True:
            total = 0
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().uss
            peak[0] = max(peak[0], total)
            time.sleep(1)  # a look takes time, too


if __name__ == "__main__":
    bench_grading()
