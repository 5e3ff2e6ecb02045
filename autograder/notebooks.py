"""Notebooks of the course: how they are stamped and how cells are marked."""

import collections
import hashlib
import re
import textwrap

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import autograder
from autograder.course import repository

# What a notebook's metadata ask Colab for.
COLAB = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
}


class SourceError(ValueError):
    """An authored file breaks a rule; the text says where and what to do."""


def notebook(cells, lesson, about=None, **metadata):
    """A notebook with the course's stamp.

    about: what else the stamp says, such as title and exercises
    """
    ids = collections.Counter()
    for cell in cells:
        ids[cell.id] += 1
        if ids[cell.id] > 1:  # cells with the same text
            cell.id += f"-{ids[cell.id]}"
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {
                "name": "python3",
                "display_name": "Python 3",
                "language": "python",
            },
            "language_info": {"name": "python"},
            "course": {
                "lesson": lesson,
                "version": autograder.__version__,
                **(about or {}),
            },
            **metadata,
        },
    )


def markdown_cell(source):
    """A text cell whose id follows from its text."""
    cell = new_markdown_cell(source)
    cell.id = id_from("text", source)
    return cell


def id_from(kind, source):
    """A cell's id that follows from its text, so that others do not move."""
    return f"{kind}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def marked(
    cell, name, *, grade=False, solution=False, locked=False, points=None
):
    """A cell with nbgrader's metadata and an id that follow from its name."""
    cell.id = re.sub(r"[^\w-]", "-", name)[:64]
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade_id": name,
        "grade": grade,
        "solution": solution,
        "locked": locked,
        "task": False,
    }
    if points is not None:
        cell.metadata["nbgrader"]["points"] = points
    return cell


def setup_cell(folder):
    """The first cell of a notebook that must also run on Colab.

    folder: what of the course it imports from: "exercises" needs the checks,
        "book" the figures too
    """
    package, paths, without = {
        "exercises": (
            "autograder",
            '"course"',
            "nothing fails: checks use the CPU",
        ),
        "book": (
            "figures",
            '"course", "course/book"',
            "all cells run on the CPU, slower",
        ),
    }[folder]
    source = textwrap.dedent(f"""\
        # Fetches the course where it is missing, on Colab for instance.
        # Colab is asked for a GPU; without one {without}.
        import importlib.util
        import subprocess
        import sys

        REPOSITORY = "{repository()}"
        VERSION = "{autograder.__version__}"
        if importlib.util.find_spec("{package}") is None:
            if not REPOSITORY:
                raise ModuleNotFoundError(
                    "The course's own modules are not here: open this "
                    "notebook in the JupyterLab that `make start` opens.")
            subprocess.run(
                ["git", "clone", "--quiet", "--depth", "1", "--branch",
                 f"v{{VERSION}}", REPOSITORY, "course"], check=True)
            sys.path[:0] = [{paths}]""")
    return marked(new_code_cell(source), "setup", locked=True)
