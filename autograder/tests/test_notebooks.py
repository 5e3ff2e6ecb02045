"""Notebooks carry the course's stamp, and ids that follow from names."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell

import autograder
from autograder import notebooks
from autograder.notebooks import markdown_cell, marked, notebook, setup_cell

VALID = re.compile(r"[\w-]{1,64}")  # nbformat's own rule for cell ids


def test_a_notebook_is_stamped_and_valid():
    made = notebook([markdown_cell("# Hi")], "ch1_toy", {"title": "Toy"})
    nbformat.validate(made)
    assert made.metadata.course == {
        "lesson": "ch1_toy",
        "version": autograder.__version__,
        "title": "Toy",
    }


def test_a_text_cells_id_follows_from_its_text():
    one, again, other = map(markdown_cell, ("a", "a", "b"))
    assert one.id == again.id != other.id
    assert VALID.fullmatch(one.id)


@pytest.mark.parametrize("name", ["softmax", "a.b c", "é" * 100, "x" * 100])
def test_a_code_cells_id_follows_from_its_name(name):
    one, again = (marked(new_code_cell(""), name) for _ in "ab")
    assert one.id == again.id
    assert len(one.id) <= 64


def test_points_belong_to_graded_cells_only():
    graded = marked(new_code_cell(""), "c", grade=True, points=2)
    assert graded.metadata.nbgrader["points"] == 2
    assert "points" not in marked(new_code_cell(""), "c").metadata.nbgrader


def run_setup(folder, monkeypatch, found, repository):
    """Run a set-up cell; the commands that it would run, and sys.path."""
    import importlib.util
    import subprocess
    import sys

    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: commands.append(command)
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(sys, "path", ["first"])
    monkeypatch.setattr(notebooks, "repository", lambda: repository)
    exec(setup_cell(folder).source, {})
    return commands, sys.path


def test_set_up_does_nothing_where_the_course_is_there(monkeypatch):
    assert run_setup("book", monkeypatch, "here", "") == ([], ["first"])


def test_set_up_fetches_the_version_of_the_notebook(monkeypatch):
    commands, path = run_setup("exercises", monkeypatch, None, "https://x/y")
    assert f"v{autograder.__version__}" in commands[0]
    assert "https://x/y" in commands[0]
    assert path == ["course", "first"]


def test_set_up_says_what_to_do_where_there_is_nothing_to_fetch(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match="make start"):
        run_setup("exercises", monkeypatch, None, "")
