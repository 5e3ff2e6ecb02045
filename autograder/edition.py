"""The student edition: the course without answers, as a zip.

An edition without `solutions/` is complete by design: chapters, notebooks and
checks import nothing from there, and visible inputs are judged by goldens.
"""

import pathlib
import re
import subprocess
import zipfile

from autograder.course import ROOT, released_path
from autograder.exercise import lessons
from autograder.grading.released import released_text

NAME = "transformers-and-attention"
TARGET = ROOT / "_build" / f"{NAME}-student-edition.zip"
# What only those who teach or maintain the course need.
LEFT_OUT = (
    ".ci/",
    ".github/",
    "autograder/bench",
    "autograder/edition.py",
    "autograder/grading/",
    "autograder/tests/",
    "autograder/verify.py",
    "book/teach.md",
    "nbgrader_config.py",
    "solutions/",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
DATE = (2020, 1, 1, 0, 0, 0)  # of every file: equal sources, equal bytes


def write_edition(target=TARGET):
    """Write the zip; returns its path.

    raises RuntimeError: outside a git checkout, where nothing says which
        files belong to the course
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in tracked():
            if name.startswith(LEFT_OUT):
                continue
            entry = zipfile.ZipInfo(f"{NAME}/{name}", DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, without_answers(name))
    return target


def tracked():
    """Names of the course's files, relative to its root."""
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            # Only these: beside them lie a class's hand-ins and grades.
            "--cached",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        raise RuntimeError(
            "The student edition is made from a git checkout of the course: "
            f"{listed.stderr.strip()}"
        )
    return sorted(
        name for name in listed.stdout.split("\0") if (ROOT / name).is_file()
    )


def without_answers(name):
    """A file's bytes, where nothing sends readers to answers or holds one."""
    data = (ROOT / name).read_bytes()
    for lesson in lessons():
        if ROOT / name == released_path(lesson):
            return released_text(lesson).encode()
    if name == "_toc.yml":
        return _contents(data.decode()).encode()
    if pathlib.PurePath(name).suffix == ".md" or name == "Makefile":
        return _prose(data.decode()).encode()
    return data


def _contents(text):
    """The contents list without parts whose pages are all left out."""
    head, *parts = re.split(r"^(?=  - caption: )", text, flags=re.MULTILINE)
    kept = []
    for part in parts:
        lines = [
            line
            for line in part.splitlines(keepends=True)
            if not any(f"- file: {each}" in line for each in _pages())
        ]
        if any("- file:" in line for line in lines):
            kept.append("".join(lines))
    return head + "".join(kept)


def _pages():
    return [each.removesuffix(".md") for each in LEFT_OUT]


def _prose(text):
    """A file without parts marked as the full edition's, and without rows of
    tables and lists that send readers to answers."""
    text = re.sub(
        r"(# )?<!-- full edition -->\n.*?<!-- end -->\n",
        "",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"^(\||\d+\.) .*`solutions/`.*\n", "", text, flags=re.M)
