"""What `build` writes is an nbgrader assignment without an answer."""

import copy
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import textwrap

import nbformat
import pytest

import autograder
from autograder import build, cli, course
from autograder.course import SourceError
from autograder.exercise import exercises
from autograder.notebooks import filled_in

LESSON = "ch1_self_attention"


@pytest.fixture(scope="module")
def source():
    return build.source_notebook(LESSON)


@pytest.fixture(scope="module")
def released():
    # nbgrader's preprocessors say what they do.
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    return build.released_notebook(LESSON)


def by_name(made):
    """Cells by their names for nbgrader."""
    return {
        cell.metadata.nbgrader.grade_id: cell
        for cell in made.cells
        if "nbgrader" in cell.metadata
    }


def sources(made):
    return "\n".join(cell.source for cell in made.cells)


def test_building_twice_gives_the_same_bytes(source, released):
    again = build.source_notebook(LESSON)
    assert build.notebook_bytes(again) == build.notebook_bytes(source)
    again = build.released_notebook(LESSON)
    assert build.notebook_bytes(again) == build.notebook_bytes(released)


def test_notebooks_are_valid_and_their_ids_differ(source, released):
    for made in (source, released):
        nbformat.validate(made)
        ids = [cell.id for cell in made.cells]
        assert len(set(ids)) == len(ids)


def test_a_check_follows_each_exercise_with_its_points(source):
    cells = by_name(source)
    for name, exercise in exercises(LESSON).items():
        assert cells[name].metadata.nbgrader.solution
        check = cells[f"check-{name}"].metadata.nbgrader
        assert (check.grade, check.locked) == (True, True)
        assert check.points == exercise.points
        order = list(cells)
        assert order.index(f"check-{name}") == order.index(name) + 1


def test_a_learner_sees_neither_solutions_nor_hidden_checks(source, released):
    shown = sources(released)
    for text in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN", "fresh=True"):
        assert text in sources(source) or text == "HIDDEN"
        assert text not in shown
    assert "solutions" not in shown


def test_no_line_of_a_reference_of_weight_is_in_the_released_code(released):
    code = "\n".join(
        cell.source for cell in released.cells if cell.cell_type == "code"
    )
    for cell in build.read_lesson(LESSON):
        if "exercise" in cell.metadata:
            inner = cell.source.split("### BEGIN SOLUTION")[1]
            inner = inner.split("### END SOLUTION")[0]
            for line in inner.split("\n"):
                if len(line.strip()) > 20:
                    assert line.strip() not in code


def test_a_stub_keeps_signature_and_docstring_and_raises(released):
    cells = by_name(released)
    given = "\n".join(
        cell.source
        for name, cell in cells.items()
        if not name.startswith("check-")
    )
    namespace = {}
    exec(given, namespace)
    for name in exercises(LESSON):
        stub = namespace[name]
        assert stub.__doc__ and "returns:" in stub.__doc__
        count = stub.__code__.co_argcount
        with pytest.raises(NotImplementedError):
            stub(*[None] * count)


def test_learners_may_not_change_what_is_given(released):
    for name, cell in by_name(released).items():
        about = cell.metadata.nbgrader
        assert about.locked is not about.solution, name


def test_nbgrader_accepts_the_metadata(source, released):
    from nbgrader.nbgraderformat import MetadataValidator

    for made in (source, released):
        MetadataValidator().validate_nb(made)


def test_a_task_tells_level_minutes_points_and_bans(released):
    (task,) = (
        cell.source
        for cell in released.cells
        if cell.source.startswith("## 1.1 ")
    )
    assert "Level 1 of 5" in task and "about 10 minutes" in task
    assert "2 points" in task and "`log_softmax`" in task


def test_the_stamp_lists_what_the_notebook_has(released):
    about = released.metadata.course
    assert about["lesson"] == LESSON
    assert about["version"] == autograder.__version__
    assert [each["name"] for each in about["exercises"]] == list(
        exercises(LESSON)
    )
    for each in about["exercises"]:
        assert each["points"] == exercises(LESSON)[each["name"]].points
        assert f"## {each['title']}" in sources(released)


# Other sources


@pytest.fixture
def rewrite(monkeypatch, tmp_path):
    """Build from another text of the lesson."""
    text = build.lesson_path(LESSON).read_text(encoding="utf-8")

    def change(old, new):
        assert old in text
        path = tmp_path / f"{LESSON}.py"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        monkeypatch.setattr(build, "lesson_path", lambda lesson: path)

    return change


IMPORTS = '# %% provided="imports"'


def test_an_inserted_cell_changes_no_other_id(source, rewrite):
    before = [cell.id for cell in source.cells]
    rewrite(
        IMPORTS,
        '# %% [markdown]\n# New text.\n\n# %% provided="new"\nx = 1\n\n'
        + IMPORTS,
    )
    after = [cell.id for cell in build.source_notebook(LESSON).cells]
    assert [id for id in after if id in before] == before
    assert len(after) == len(before) + 2


def test_a_changed_exercise_keeps_its_id(source, rewrite):
    rewrite("wide = x.to(", "wider = x.to(")
    again = build.source_notebook(LESSON)
    assert [cell.id for cell in again.cells] == [
        cell.id for cell in source.cells
    ]


SOFTMAX = 'exercise="softmax" level=1'


@pytest.mark.parametrize(
    "old, new, told",
    [
        ('exercise="softmax"', 'exercise="sofmax"', "'sofmax'"),
        (IMPORTS, "# %%", "neither an exercise nor provided"),
        ("# ## 1.1 A softmax", "# 1.1 A softmax", "must be its task"),
        (SOFTMAX, f"{SOFTMAX[:-1]}0", "exercise 'softmax' has level=0"),
        (SOFTMAX, f"{SOFTMAX[:-1]}6", "exercise 'softmax' has level=6"),
        (SOFTMAX, f'{SOFTMAX[:-1]}"1"', "exercise 'softmax' has level='1'"),
        (SOFTMAX, SOFTMAX[:-8], "exercise 'softmax' has level=None"),
        (" minutes=10\ndef softmax(", "\ndef softmax(", "minutes=None"),
        ("minutes=10\ndef soft", "minutes=-1\ndef soft", "minutes=-1"),
        ("def softmax(", "def sofmax(", "defines no softmax"),
        ("    ### BEGIN SOLUTION\n", "", "has the marks ['END']"),
        ("    ### END SOLUTION\n", "", "has the marks ['BEGIN']"),
        ("def softmax(", "def softmax((", "line 1 of its code"),
        ("# ## 1.2 ", "# ## 1.1 ", "two tasks 1.1"),
        ("# ## 1.2 ", "# ## What to do next\n# ## 1.2 ", "move it above"),
    ],
)
def test_a_source_that_breaks_a_rule_is_told_where(rewrite, old, new, told):
    rewrite(old, new)
    with pytest.raises(SourceError, match=re.escape(told)):
        build.source_notebook(LESSON)


# The README's table


def test_the_table_of_lessons_is_written_between_its_marks(monkeypatch):
    about = {
        "title": "Toy",
        "exercises": [
            {"minutes": 10, "points": 1.5},
            {"minutes": 20, "points": 2},
        ],
    }
    monkeypatch.setattr(build, "stamp", lambda lesson: about)
    monkeypatch.setattr(build, "lessons", lambda: (LESSON,))
    text = (
        "before\n<!-- lessons: written by make exercises -->\nold\n"
        "<!-- end -->\nafter\n"
    )
    made = build.readme(text)
    assert f"| [Toy](book/{LESSON}.md) | 2 | 30 | 3.5 |" in made
    assert "| Together | 2 | 30 | 3.5 |" in made
    assert made.startswith("before\n") and made.endswith("-->\nafter\n")
    assert "old" not in made and build.readme(made) == made


@pytest.mark.parametrize(
    "old, new, mark",
    [
        ("<!-- lessons: written by make exercises -->", "", "<!-- lessons"),
        ("table\n<!-- end -->\n", "table\n", "<!-- end -->"),
        ("<!-- end -->", "", "<!-- end -->"),
    ],
)
def test_a_readme_without_a_mark_of_its_table_loses_nothing(old, new, mark):
    text = (
        "before\n<!-- lessons: written by make exercises -->\ntable\n"
        "<!-- end -->\nbetween\n<!-- full edition -->\nmore\n"
        "<!-- end -->\nafter\n"
    )
    with pytest.raises(SourceError, match=f"README.md.*{mark}"):
        build.readme(text.replace(old, new))


# Writing


@pytest.mark.parametrize("names", [["ch9_nothing"], [LESSON, "ch9_nothing"]])
def test_a_lesson_that_is_not_there_is_one_sentence(names, capsys):
    assert cli.main(["build", *names]) == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert "ch9_nothing" in told and LESSON in told


def test_build_writes_what_is_not_current_and_nothing_else(
    monkeypatch, tmp_path
):
    path = tmp_path / "one.ipynb"
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "lessons", lambda: (LESSON,))
    monkeypatch.setattr(build, "source_notebook", lambda lesson: None)
    monkeypatch.setattr(build, "lesson_goldens", lambda lesson: {"a": 1})
    monkeypatch.setattr(build, "golden_bytes", lambda entries: b"golden")
    monkeypatch.setattr(
        build, "golden_path", lambda lesson: tmp_path / "goldens" / "a.npz"
    )
    monkeypatch.setattr(
        build,
        "golden_is_current",
        lambda *given: (tmp_path / "goldens" / "a.npz").exists(),
    )
    monkeypatch.setattr(build, "generated", lambda only: {path: b"one"})
    monkeypatch.setattr(build, "readme", lambda text: "new")
    (tmp_path / "README.md").write_text("old")
    said = []
    build.build(say=said.append)
    assert len(said) == 3 and path.read_bytes() == b"one"
    assert (tmp_path / "goldens" / "a.npz").read_bytes() == b"golden"
    build.build(say=said.append)
    assert len(said) == 3
    path.write_bytes(b"edited by hand")
    build.build(say=said.append)
    assert said[3:] == ["wrote one.ipynb"]


@pytest.fixture
def solved(released):
    """The released notebook as Jupyter saves it, with one answer in it."""
    made = copy.deepcopy(released)
    made.metadata.language_info["version"] = "3.11.2"
    (cell,) = (one for one in made.cells if one.id == "softmax")
    cell.source = "def softmax(x, dim=-1):\n    return x.softmax(dim)"
    return made


def test_answers_in_a_released_notebook_are_seen(released, solved):
    text = build.notebook_bytes(released).decode()
    assert filled_in(text) == []
    assert filled_in(build.notebook_bytes(solved).decode()) == ["softmax"]
    solved.cells = released.cells
    assert filled_in(build.notebook_bytes(solved).decode()) == []
    assert filled_in("no notebook") == []


def test_build_keeps_answers_before_it_writes_over_them(
    solved, monkeypatch, tmp_path
):
    path = tmp_path / "exercises" / f"{LESSON}.ipynb"
    path.parent.mkdir()
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "KEPT", tmp_path / "kept")
    said = []
    for _ in range(2):
        path.write_bytes(build.notebook_bytes(solved))
        build._keep_answers(path, said.append)
    kept = sorted((tmp_path / "kept").iterdir())
    assert [each.read_bytes() for each in kept] == [path.read_bytes()] * 2
    assert all(f"kept{os.sep}{LESSON}-" in line for line in said)
    kept[0].unlink()
    path.write_bytes(build.notebook_bytes(solved))
    build._keep_answers(path, said.append)
    assert len(list((tmp_path / "kept").iterdir())) == len(said) - 1 == 2
    path.write_text("edited by hand")
    build._keep_answers(path, said.append)
    assert len(said) == 3


# Stock nbgrader


def nbgrader(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        # nbgrader finds alembic by PATH, which an unactivated .venv is not on.
        env={
            **os.environ,
            "PATH": os.pathsep.join(
                [sysconfig.get_path("scripts"), os.environ["PATH"]]
            ),
        },
    )


@pytest.fixture(scope="module")
def stock(tmp_path_factory, source):
    """A course of its own, with the source as its only assignment."""
    folder = tmp_path_factory.mktemp("stock")
    path = folder / "source" / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(build.notebook_bytes(source))
    config = (course.ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    stub = re.search(r"c\.ClearSolutions\.code_stub = \{.*?\n\}", config, re.S)
    (folder / "nbgrader_config.py").write_text(
        textwrap.dedent(f"""\
            c = get_config()
            c.CourseDirectory.course_id = "stock"
            c.CourseDirectory.root = {str(folder)!r}
            """)
        + stub[0]
        + "\n"
    )
    return folder


@pytest.mark.slow  # starts nbgrader twice over
def test_the_released_notebook_is_the_one_that_nbgrader_makes(stock, released):
    result = nbgrader(stock, "generate_assignment", LESSON)
    assert result.returncode == 0, result.stderr
    path = stock / "release" / LESSON / f"{LESSON}.ipynb"
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(
        build.notebook_bytes(released)
    )


@pytest.mark.slow  # runs both notebooks in kernels
def test_nbgraders_validator_accepts_the_solved_notebook_only(
    stock, source, released, tmp_path
):
    solved, stub = tmp_path / "solved.ipynb", tmp_path / "stub.ipynb"
    solved.write_bytes(build.notebook_bytes(source))
    stub.write_bytes(build.notebook_bytes(released))
    result = nbgrader(stock, "validate", str(solved))
    assert "Success" in result.stdout, result.stdout + result.stderr
    result = nbgrader(stock, "validate", str(stub))
    count = len(exercises(LESSON))
    assert f"FAILED ON {count} CELL(S)" in result.stdout, result.stdout


def test_what_lies_in_exercises_is_what_build_makes(released):
    """The same promise that `verify` keeps, here for a quick look."""
    assert course.released_path(LESSON).read_bytes() == build.notebook_bytes(
        released
    )


def test_the_cell_that_checks_an_exercise_is_found_by_its_id_and_back():
    for name in [*exercises(LESSON), "check", "check_", "Größe"]:
        assert course.checked_by(course.check_id(name)) == name
    for other in ["softmax", "", "check", "Check-softmax", "a check-b"]:
        assert course.checked_by(other) is None


def test_chapters_and_appendices_are_told_from_other_pages():
    names = ["ch1_a.md", "appx_jax.md", "cheatsheet.md", "index.md"]
    assert [
        name for name in names if build.is_chapter(pathlib.Path(name))
    ] == ["ch1_a.md", "appx_jax.md"]
