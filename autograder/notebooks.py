"""Notebooks of the course: how they are stamped and how cells are marked."""

import collections
import hashlib
import re
import textwrap

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import autograder
from autograder.course import repository

# What a notebook's metadata ask Colab for.
COLAB = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
}


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


def filled_in(text):
    """Names of the answers in a released notebook that are no longer stubs.

    text: of the notebook's file
    """
    try:
        made = nbformat.reads(text, as_version=4)
    except nbformat.reader.NotJSONError:
        return []
    if not _was_opened(made):
        return []
    from nbgrader.utils import compute_checksum  # which takes a second

    return [
        cell.metadata.nbgrader.grade_id
        for cell in made.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
        and cell.metadata.nbgrader.get("checksum") != compute_checksum(cell)
    ]


def _was_opened(made):
    """Whether Jupyter, or a person, may have written this notebook."""
    return made.metadata.get("language_info") != {"name": "python"} or any(
        cell.get("execution_count") or cell.get("outputs")
        for cell in made.cells
    )


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
