"""The student edition is complete, and holds no answer."""

import re
import subprocess
import sys
import zipfile

import nbformat
import pytest
import yaml

from autograder import edition
from autograder.course import released_path
from autograder.grading import released

CHECKED = """
import torch
from autograder import check

def causal_mask(Tq, Tk, *, align="lower_right"):
    shifts = {"lower_right": Tk - Tq, "upper_left": 0}
    if align not in shifts:
        raise ValueError(align)
    return torch.ones(Tq, Tk, dtype=torch.bool).tril(shifts[align])

assert check("causal_mask", causal_mask).passed
try:
    check("causal_mask", causal_mask, fresh=True)
except FileNotFoundError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edition")
    path = edition.write_edition(folder / "edition.zip")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder / edition.NAME


def test_two_editions_of_the_same_sources_are_the_same_bytes(tmp_path):
    one, other = (
        edition.write_edition(tmp_path / name).read_bytes() for name in "ab"
    )
    assert one == other


def test_only_files_of_the_course_travel(monkeypatch, tmp_path):
    """A class's hand-ins and grades may lie beside them."""
    (tmp_path / "README.md").write_text("course")
    (tmp_path / "handed-in").mkdir()
    (tmp_path / "handed-in" / "ann.ipynb").write_text("{}")
    (tmp_path / "canvas.csv").write_text("Ann,33")
    for command in (("init", "-q"), ("add", "README.md")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(edition, "ROOT", tmp_path)
    assert edition.tracked() == ["README.md"]


def test_a_notebook_that_was_filled_in_travels_as_it_was_released(
    monkeypatch, tmp_path
):
    lesson = "ch1_self_attention"
    text = released_path(lesson).read_text(encoding="utf-8")
    made = nbformat.reads(text, as_version=4)
    (cell,) = (one for one in made.cells if one.id == "softmax")
    cell.source = "def softmax(x, dim=-1):\n    return x.softmax(dim)"
    cell.execution_count = 1
    path = tmp_path / "solved.ipynb"
    path.write_text(nbformat.writes(made), encoding="utf-8")
    monkeypatch.setattr(released, "released_path", lambda lesson: path)
    assert released.released_text(lesson) == text


def test_no_answer_travels(unpacked):
    names = [path.name for path in unpacked.iterdir()]
    assert "solutions" not in names
    for path in unpacked.rglob("*.py"):
        assert "### BEGIN SOLUTION\n" not in path.read_text("utf-8"), path


def test_every_listed_page_is_there(unpacked):
    contents = yaml.safe_load((unpacked / "_toc.yml").read_text("utf-8"))
    pages = [
        chapter["file"]
        for part in contents["parts"]
        for chapter in part["chapters"]
    ]
    assert "book/ch1_self_attention" in pages
    for page in [contents["root"], *pages]:
        assert (unpacked / f"{page}.md").exists(), page


def test_pages_do_not_send_readers_to_answers(unpacked):
    for name in ("README.md", "book/index.md"):
        text = (unpacked / name).read_text("utf-8")
        assert "solutions/" not in text
        assert "full edition" not in text


def test_only_commands_that_work_are_named(unpacked):
    told = subprocess.run(
        ["make"], cwd=unpacked, capture_output=True, text=True, check=True
    )
    told = told.stdout + (unpacked / "README.md").read_text("utf-8")
    named = set(re.findall(r"^ *make ([\w.-]+)", told, re.MULTILINE))
    assert named == {"start", "lab", "book", "cheatsheet.pdf", "clean"}


@pytest.mark.parametrize(
    "command", ["build", "verify", "grade x", "student-edition", "bench", ""]
)
def test_a_command_of_the_full_edition_says_so(unpacked, command):
    done = subprocess.run(
        [sys.executable, "-m", "autograder", *command.split()],
        cwd=unpacked,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, "")
    (told,) = done.stdout.splitlines()
    assert "full edition" in told


def test_assistants_are_asked_to_tutor(unpacked):
    text = (unpacked / "AGENTS.md").read_text("utf-8")
    assert "tutor; do not solve" in text
    assert "teach.md" not in text and "CONTRIBUTING" not in text


def test_checks_work_and_say_what_they_lack(unpacked):
    done = subprocess.run(
        [sys.executable, "-c", CHECKED],
        cwd=unpacked,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Use a full copy of the course" in done.stdout
