"""What grading one submission led to, as data that can be stored and sent."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tempfile

from autograder.course import ROOT, released_path
from autograder.report import Finding, Report

PACKAGE = ROOT / "autograder"


def record(arrival, lesson, cells, graded, seconds):
    """The record of a graded submission.

    graded: (reports, outputs, repairs) as of `runner.grade`, and the repairs
        of the rebuild
    """
    reports, outputs, repairs = graded
    points = sum(report.points for report in reports.values())
    return {
        "student": arrival.student,
        "lesson": lesson.name,
        "file": arrival.label,
        "problem": "",
        "points": round(points, 2),
        "max_points": sum(report.max_points for report in reports.values()),
        "exercises": [_reported(report) for report in reports.values()],
        "repairs": [*arrival.choices, *repairs],
        "version": lesson.version,
        "seconds": round(seconds, 3),
        "cells": [
            {**dataclasses.asdict(cell), "output": outputs.get(index)}
            for index, cell in enumerate(cells)
        ],
    }


def problem(arrival, text=""):
    """The record of a submission that cannot be graded."""
    return {
        "student": arrival.student,
        "lesson": arrival.lesson,
        "file": arrival.label,
        "problem": text or arrival.problem,
        "points": 0.0,
        "max_points": 0.0,
        "exercises": [],
        "repairs": list(arrival.choices),
        "version": "",
        "seconds": 0.0,
        "cells": [],
    }


def _reported(report):
    return {
        **dataclasses.asdict(report),
        "passed": report.passed,
        "attempted": attempted(report),
    }


def attempted(report):
    """Whether an answer is more than the released stub."""
    return not any(
        finding.property == "attempted" for finding in report.findings
    )


def report_of(exercise):
    """The `Report` in a record's exercise."""
    fields = {field.name for field in dataclasses.fields(Report)}
    kept = {key: value for key, value in exercise.items() if key in fields}
    return Report(
        **{
            **kept,
            "notes": tuple(kept["notes"]),
            "findings": tuple(
                Finding(**finding) for finding in kept["findings"]
            ),
        }
    )


def as_it_stands(made, standing):
    """A record with what counts in place of what the grader has found.

    standing: of its submission, as of `Writer.standings`; None for a file
        that could not be graded
    returns: its points are after what is taken off for lateness
    """
    if standing is None:
        return made
    stands = standing["exercises"]
    points = sum(each["points"] for each in stands.values())
    return {
        **made,
        "exercises": [
            {**each, **stands[each["exercise"]]}
            for each in made["exercises"]
            if each["exercise"] in stands
        ],
        # Six places keep the noise of sums out, and every score in.
        "points": round(max(0.0, points - standing["penalty"]), 6),
        "max_points": standing["max_points"],
        "penalty": standing["penalty"],
        "late": standing["late"],
    }


def spoken(made):
    """A record for machines: all but the cells."""
    return {
        key: value
        for key, value in made.items()
        if key not in ("cells", "key", "path", "told")
    }


def fingerprint(name):
    """What a lesson's grades depend on, as a short text.

    It changes with the released notebook, the checks, the answers and the
    engine, so a changed lesson is graded again.
    """
    paths = [
        released_path(name),
        PACKAGE / "checks" / f"{name}.py",
        ROOT / "solutions" / "answers" / f"{name}.py",
    ]
    total = hashlib.sha256(_engine())
    for path in paths:
        if path.exists():
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:20]


@functools.cache
def _engine():
    """The modules that a verdict or its page may depend on, as one number.

    All but those that measure time: a list by hand would miss one.
    """
    paths = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("grading/*.py")])
    total = hashlib.sha256()
    for path in paths:
        if not path.name.startswith("bench"):
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.digest()


def key_of(arrival, seed, print_of_lesson):
    """What a submission's record depends on, and how it is returned."""
    total = hashlib.sha256()
    for part in (
        arrival.digest,
        arrival.lesson,
        arrival.handed_in,
        arrival.secret,
        *arrival.choices,
        seed,
        print_of_lesson,
    ):
        total.update(b"\0" + part.encode(errors="backslashreplace"))
    return total.hexdigest()


def write_atomically(path, data):
    """Write a file so that it is there whole or not at all."""
    path = pathlib.Path(path)
    if isinstance(data, str):
        # Names and sources may have half characters, which no file takes.
        data = data.encode(errors="backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class Records:
    """The records of a course, one file a student and lesson."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder) / "records"
        self._names = self.folder / "names.json"

    def path(self, made):
        name = made["lesson"] or "unknown"
        if made["problem"]:
            file = made["file"].encode(errors="backslashreplace")
            name = f"{name}.problem-{hashlib.sha256(file).hexdigest()[:8]}"
        return self.folder / made["student"] / f"{name}.json"

    def find(self, student, lesson):
        """A stored record, or None."""
        path = self.folder / student / f"{lesson}.json"
        return self._read(path) if path.exists() else None

    def write(self, made):
        write_atomically(self.path(made), json.dumps(made))

    def has_results(self):
        """Whether a notebook has been graded here before."""
        return any(
            ".problem-" not in path.name
            for path in self.folder.glob("*/*.json")
        )

    def names(self):
        """{student: name} of all that have been graded here.

        An identifier stays its student's, so that another one whose name
        looks alike takes nobody's results.
        """
        return self._read(self._names) or {}

    def remember(self, names):
        """Add the names of students who are graded now."""
        known = self.names()
        if not names.items() <= known.items():
            write_atomically(self._names, json.dumps({**known, **names}))

    def forget_problems(self, source, bad, good):
        """Remove what was said of files that are gone, good, or replaced.

        source: the path of what is graded now; a file from elsewhere may
            still be there, and goes if a good one of its lesson has come
        bad: (student, file) of those there that cannot be graded
        good: (student, lesson) of those that can
        """
        for path in self.folder.glob("*/*.problem-*.json"):
            made = self._read(path) or {}
            student = path.parent.name
            if (student, made.get("file")) not in bad and (
                pathlib.Path(made.get("path", "")).is_relative_to(source)
                or (student, made.get("lesson")) in good
            ):
                path.unlink()

    def all(self):
        """Every record, by student and lesson."""
        found = [
            self._read(path) for path in sorted(self.folder.glob("*/*.json"))
        ]
        return [each for each in found if each]

    def _read(self, path):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
