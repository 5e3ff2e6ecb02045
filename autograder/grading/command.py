"""`python -m autograder grade`: what it says while it grades."""

import json
import pathlib
import sys
import tempfile
import time

from autograder.course import ROOT
from autograder.grading import importing
from autograder.grading.launch import WarmError, launch
from autograder.grading.sandbox import NoSandboxError

BAR = 24  # characters of the progress bar
OUT = ROOT / "_build" / "nbgrader"


def main(options):
    """Grade what `options.submissions` names; the exit status.

    0: every file was graded; 1: some could not be; 2: there was nothing to
    grade, or grading could not start or go on; 130: it was stopped
    """
    show = _Json() if options.json else _Lines()
    try:
        return _started(options, show)
    except KeyboardInterrupt:
        show.line(
            "Stopped. What is graded is kept; the same command goes "
            "on from here."
        )
        return 130


def _started(options, show):
    out = pathlib.Path(options.out).resolve() if options.out else OUT
    refusal = _refusal(options, out)
    if refusal:
        show.line(refusal)
        return 2
    launched = None
    try:
        if not options.scheduler:
            launched = launch(options.require_sandbox)
        return _grade(options, out, show, launched)
    except (NoSandboxError, WarmError) as error:
        show.line(str(error))
        return 2
    finally:
        if launched:
            launched.close()


def _refusal(options, out):
    """Why nothing can be graded as the options say, or ""."""
    if options.workers is not None and options.workers < 1:
        return (
            f"--workers {options.workers} grades nothing: give a number from "
            "1 on, or leave it out."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as file:
            file.write(bytes(4096))  # a full disk takes an empty file
    except OSError as error:
        return (
            f"Results cannot be written to {out} ({error.strerror}): name "
            "another folder with --out."
        )
    return _unreachable(options.scheduler) if options.scheduler else ""


def _unreachable(scheduler):
    """Why there is no Dask cluster at an address, or ""."""
    from distributed import Client

    try:
        Client(scheduler).close()
    except (OSError, ValueError, TypeError) as error:
        return (
            f"There is no Dask scheduler at {scheduler} ({error}): start "
            "one with `dask scheduler`, and give the address that it prints, "
            "like tcp://host:8786."
        )
    return ""


def _grade(options, out, show, launched):
    # They import torch, as the process does that has just been launched.
    with importing():
        from autograder.goldens import MissingGoldenError
        from autograder.grading.batch import (
            Batch,
            BusyError,
            GradebookError,
            NoRoomError,
        )

    batch = Batch(
        options.submissions,
        out,
        show.record,
        workers=options.workers,
        scheduler=options.scheduler,
        force=options.force,
        require_sandbox=options.require_sandbox,
        launched=launched,
        say=show.line,
    )
    show.batch = batch
    try:
        batch.run()
    except BrokenPipeError:  # whoever read the lines has had enough
        sys.stderr.close()
        return 130
    except (
        FileNotFoundError,
        BusyError,
        GradebookError,
        MissingGoldenError,
        NoRoomError,
    ) as error:
        show.line(str(error))
        return 2
    if not batch.found:
        show.line(
            f"No files in {batch.source}: give the folder, archive or file "
            "that holds the notebooks."
        )
        return 2
    show.end(out)
    return 1 if batch.problems else 0


class _Lines:
    """One line a notebook, and a summary."""

    def __init__(self):
        self.start = time.monotonic()
        self.batch = None

    def line(self, text):
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def record(self, made, kept):
        self._clear()
        print(self.text(made, kept), flush=True)
        if sys.stderr.isatty():
            print(self._bar(), end="", file=sys.stderr, flush=True)

    def text(self, made, kept):
        return line_of(made, kept)

    def _clear(self):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _bar(self):
        """How far the batch is, and how long the rest will take."""
        batch = self.batch
        done, all_of_them = batch.graded, batch.todo
        if not done:
            return ""
        left = (time.monotonic() - self.start) / done * (all_of_them - done)
        full = round(BAR * done / all_of_them)
        told = (
            f", {len(batch.problems)} could not be graded"
            if batch.problems
            else ""
        )
        return (
            f"[{'#' * full}{'·' * (BAR - full)}] {done} of {all_of_them}"
            f"{told}, {left // 60:.0f}:{left % 60:02.0f} left"
        )

    def end(self, out):
        batch = self.batch
        graded = batch.graded - len(batch.problems)
        seconds = time.monotonic() - self.start
        self.line(
            f"{_count(graded, 'submission')} graded in {seconds:.1f} s"
            + (f", {batch.kept} unchanged" if batch.kept else "")
            + (
                f", {len(batch.problems)} could not be graded"
                if batch.problems
                else ""
            )
            + f". Results are in {_short(out)}: grades.csv, feedback/, "
            "gradebook.db."
        )
        for note in batch.notes:
            self.line(f"Careful: {note}")


class _Json(_Lines):
    """One JSON object a notebook; everything else goes to stderr."""

    def text(self, made, kept):
        from autograder.grading.records import spoken

        return json.dumps(spoken(made))


def line_of(made, kept=False):
    """A record as one line, whatever is in a file's name."""
    return "".join(
        letter if letter.isprintable() else "?" for letter in _told(made, kept)
    )


def _told(made, kept):
    if made["problem"]:
        return f"{made['student']}  {made['file']}: {made['problem']}"
    solved = sum(each["passed"] for each in made["exercises"])
    told = [
        f"{made['points']:g}/{made['max_points']:g}",
        f"{solved} of {len(made['exercises'])} solved",
    ]
    if made["repairs"]:
        told.append(_count(len(made["repairs"]), "remark"))
    if made.get("late"):
        told.append(f"late, {made['penalty']:g} taken off")
    if kept:
        told.append("unchanged")
    elif made.get("before", made["points"]) != made["points"]:
        told.append(f"was {made['before']:g}")
    return f"{made['student']}  {made['lesson']}  {', '.join(told)}"


def _count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(path):
    try:
        return path.relative_to(pathlib.Path.cwd())
    except ValueError:
        return path
