"""Broken notebooks get their learner's source back, whatever happened."""

import contextlib
import copy
import json

import pytest

from autograder.grading import repair
from autograder.grading.reading import read
from autograder.grading.released import read_released
from autograder.grading.repair import rebuild, share, written

NAMES = ("one", "two", "three")


def marked(name, source, kind="code", **about):
    return {
        "cell_type": kind,
        "source": source,
        "metadata": {
            "nbgrader": {"grade_id": name, "schema_version": 3, **about}
        },
    }


def stub(name):
    return (
        f'def {name}(x):\n    """The answer to {name}, at length."""\n'
        "    # Your answer goes here.\n    raise NotImplementedError"
    )


def answer(name):
    return (
        f'def {name}(x):\n    """The answer to {name}, at length."""\n'
        f"    y = x + {len(name)}\n    return y"
    )


def made(answers):
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Title"},
        marked("setup", "import sys", locked=True),
        marked("imports", "import math", locked=True),
    ]
    for name in NAMES:
        cells += [
            {
                "cell_type": "markdown",
                "metadata": {},
                "source": f"## Task {name}",
            },
            marked(name, answers.get(name, stub(name)), solution=True),
            marked(
                f"check-{name}",
                f'check("{name}", {name})',
                grade=True,
                locked=True,
                points=2,
            ),
        ]
    return {
        "cells": cells,
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"course": {"lesson": "toy", "version": "1"}},
    }


LESSON = read_released("toy", json.dumps(made({})))
SOLVED = made({name: answer(name) for name in NAMES})


def rebuilt(notebook):
    return rebuild(LESSON, read(json.dumps(notebook).encode()))


def answers_of(result):
    return {
        cell.name: cell.source
        for cell in result.cells
        if cell.role == "answer"
    }


def expect_solved(notebook, *, says=None):
    """The clean notebook's answers are there, in the released order."""
    result = rebuilt(notebook)
    got = answers_of(result)
    for name in NAMES:
        assert answer(name) in got[name], (name, got[name], result.repairs)
        assert "NotImplementedError" not in got[name]
    roles = [cell.name for cell in result.cells if cell.name]
    assert roles == [cell.name for cell in LESSON.cells if cell.name]
    if says:
        assert any(says in text for text in result.repairs), result.repairs
    return result


def changed(change):
    notebook = copy.deepcopy(SOLVED)
    change(notebook["cells"])
    return notebook


def at(cells, name):
    return next(
        i
        for i, cell in enumerate(cells)
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == name
    )


def test_a_clean_notebook_needs_no_repair():
    result = expect_solved(SOLVED)
    assert result.repairs == ()
    assert [cell.source for cell in result.cells] == [
        cell["source"] for cell in SOLVED["cells"]
    ]


def test_an_untouched_notebook_stays_as_released():
    result = rebuilt(made({}))
    assert result.repairs == ()
    assert answers_of(result) == {name: stub(name) for name in NAMES}


def test_all_marks_lost():
    def change(cells):
        for cell in cells:
            cell["metadata"] = {"id": "abc"}

    expect_solved(changed(change))


def test_marks_forged():
    def change(cells):
        for cell in cells:
            if "nbgrader" in cell["metadata"]:
                cell["metadata"]["nbgrader"] |= {
                    "points": 99,
                    "schema_version": 17,
                    "locked": False,
                }

    expect_solved(changed(change))


def test_marks_renamed():
    def change(cells):
        cells[at(cells, "two")]["metadata"]["nbgrader"]["grade_id"] = "2"

    expect_solved(changed(change))


def test_marks_exchanged():
    def change(cells):
        one, two = at(cells, "one"), at(cells, "two")
        cells[one]["metadata"], cells[two]["metadata"] = (
            cells[two]["metadata"],
            cells[one]["metadata"],
        )

    expect_solved(changed(change), says="another cell")


def test_everything_in_reverse():
    def change(cells):
        cells.reverse()

    expect_solved(changed(change), says="released order")


def test_checks_and_given_cells_deleted():
    def change(cells):
        for name in ("setup", "imports", "check-one", "check-three"):
            del cells[at(cells, name)]

    expect_solved(changed(change), says="put back")


def test_checks_edited():
    def change(cells):
        cells[at(cells, "check-one")]["source"] = "2.0"

    result = expect_solved(changed(change), says="changed")
    assert 'check("one", one)' in [cell.source for cell in result.cells]


@pytest.mark.parametrize("name", ["check-one", "imports"])
@pytest.mark.parametrize("kind", ["code", "markdown"])
def test_an_emptied_cell_is_put_back_and_told(name, kind):
    def change(cells):
        cells[at(cells, name)] |= {"source": " \n", "cell_type": kind}

    expect_solved(changed(change), says=f"{name} had been emptied")


def test_imports_added_to_a_given_cell_still_run():
    def change(cells):
        cells[at(cells, "imports")]["source"] += "\nimport torch as t"

    result = expect_solved(changed(change), says="changed")
    own = [cell.source for cell in result.cells if cell.role == "own"]
    assert own == ["import math\nimport torch as t"]


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_cells_of_another_kind(kind):
    def change(cells):
        for name in ("one", "check-one"):
            cells[at(cells, name)]["cell_type"] = kind

    expect_solved(changed(change), says="turned into")


def test_retyped_in_a_new_cell_and_the_old_one_deleted():
    def change(cells):
        del cells[at(cells, "two")]
        cells.append(
            {"cell_type": "code", "metadata": {}, "source": answer("two")}
        )

    expect_solved(changed(change), says="another cell")


def test_retyped_in_a_new_cell_and_the_stub_left():
    def change(cells):
        cells[at(cells, "two")]["source"] = stub("two")
        cells.append(
            {"cell_type": "code", "metadata": {}, "source": answer("two")}
        )

    expect_solved(changed(change), says="another cell")


def test_retyped_and_the_old_one_emptied():
    def change(cells):
        cells[at(cells, "two")]["source"] = " \n"
        cells.append(
            {"cell_type": "code", "metadata": {}, "source": answer("two")}
        )

    expect_solved(changed(change))


@pytest.mark.parametrize(
    "copies", [[answer("two")], [stub("two")], ["def two(x:\n   oops"]]
)
def test_a_copied_cell(copies):
    def change(cells):
        place = at(cells, "two")
        for source in copies:
            cells.insert(place + 1, {**cells[place], "source": source})

    expect_solved(changed(change))


def test_a_stub_copied_without_its_mark_does_not_undo_the_answer():
    def change(cells):
        cells.insert(
            at(cells, "two") + 1,
            {"cell_type": "code", "metadata": {}, "source": stub("two")},
        )

    result = expect_solved(changed(change))
    assert not [cell for cell in result.cells if cell.role == "own"]


def test_split_between_statements():
    def change(cells):
        place = at(cells, "two")
        helper = {**cells[place], "source": "K = 3"}
        cells.insert(place, helper)

    result = rebuilt(changed(change))
    assert answers_of(result)["two"] == "K = 3\n\n" + answer("two")


@pytest.mark.parametrize("keep", [True, False])
def test_split_inside_a_function(keep):
    def change(cells):
        place = at(cells, "two")
        head, tail = answer("two").split("    y =")
        cells[place]["source"] = head
        rest = {**cells[place], "source": "    y =" + tail}
        if not keep:
            rest["metadata"] = {}
        cells.insert(place + 1, rest)

    result = rebuilt(changed(change))
    assert "return y" in answers_of(result)["two"], result
    assert any("split" in text for text in result.repairs)


def test_several_answers_in_one_cell():
    def change(cells):
        cells[at(cells, "one")]["source"] = "\n\n".join(map(answer, NAMES))
        for name in ("two", "three"):
            cells[at(cells, name)]["source"] = stub(name)

    got = answers_of(rebuilt(changed(change)))
    assert got["one"].count("def ") == 3
    assert got["two"] == got["three"] == ""


def code(source, mark=None):
    cell = {"cell_type": "code", "metadata": {}, "source": source}
    return marked(mark, source) if mark else cell


HELPER = "def helper(x):\n    return x + 3"
CALLS = "def two(x):\n    return helper(x)"
OLDER = f"{HELPER}\n\ndef two(x):\n    return -helper(x)"


@pytest.mark.parametrize(
    "cells",
    [
        [code(CALLS), code(HELPER, "two")],
        [code(HELPER, "two"), code(CALLS)],
        [code(HELPER, "two"), code("two = None", "two"), code(CALLS, "two")],
        [code("two = None", "two"), code(CALLS, "two"), code(HELPER, "two")],
        [code(stub("two"), "two"), code(OLDER, "two"), code(CALLS, "two")],
        [code(OLDER, "two"), code(CALLS, "two"), code("def two(x:", "two")],
        [code(CALLS), code("My idea: add 3", "two"), code(HELPER)],
        [code(CALLS), code(HELPER, "two"), code(HELPER, "two")],
    ],
    ids=range(8),
)
def test_nothing_that_an_answer_calls_is_lost(cells):
    def change(all_cells):
        place = at(all_cells, "two")
        all_cells[place : place + 1] = cells

    names = {}
    for cell in rebuilt(changed(change)).cells:
        if cell.name == "check-two":
            break
        if cell.role in ("answer", "own"):
            # As in a notebook, one that fails does not stop the next.
            with contextlib.suppress(SyntaxError):
                exec(cell.source, names)
    assert names["two"](1) == 4


def test_another_name_is_told():
    def change(cells):
        cells[at(cells, "two")]["source"] = answer("two").replace(
            "def two", "def zwei"
        )

    result = rebuilt(changed(change))
    assert any("defines zwei instead" in text for text in result.repairs)


def test_recognised_by_looks_when_mark_and_name_are_lost():
    def change(cells):
        cell = cells[at(cells, "two")]
        cell["source"] = answer("two").replace("def two", "def my_two")
        cell["metadata"] = {}

    result = rebuilt(changed(change))
    assert "def my_two" in answers_of(result)["two"]
    assert any("what it looks like" in text for text in result.repairs)


@pytest.fixture
def looks(monkeypatch):
    """Sizes of the texts that are compared letter by letter."""
    sizes = []

    class Matcher(repair.difflib.SequenceMatcher):
        def ratio(self):
            sizes.append(len(self.a) * len(self.b))
            return super().ratio()

    monkeypatch.setattr(repair.difflib, "SequenceMatcher", Matcher)
    return sizes


def test_cells_with_few_words_in_common_are_not_compared(looks):
    def change(cells):
        cell = cells[at(cells, "two")]
        cell["source"] = answer("two").replace("def two", "def my_two")
        cell["metadata"] = {}
        cells += [code(f"total_{i} = 1 + {i}\n" * 6) for i in range(40)]

    result = rebuilt(changed(change))
    assert "def my_two" in answers_of(result)["two"]
    assert len(looks) == 1


def test_what_is_compared_is_bounded_and_told(looks, monkeypatch):
    monkeypatch.setattr(repair, "MAX_LOOKS", 10 * len(stub("two")) ** 2)

    def change(cells):
        del cells[at(cells, "two")]
        cells += [
            code(stub("two").replace("def two", f"def t{i}"))
            for i in range(40)
        ]

    result = rebuilt(changed(change))
    assert 5 <= len(looks) <= 11
    assert sum(looks) <= repair.MAX_LOOKS
    assert any("too many cells" in text for text in result.repairs)


def test_own_cells_stay_where_they_were():
    def change(cells):
        cells.insert(
            at(cells, "two"),
            {"cell_type": "code", "metadata": {}, "source": "helper = 1"},
        )
        cells.insert(
            0, {"cell_type": "code", "metadata": {}, "source": "first = 1"}
        )
        cells.append(
            {"cell_type": "markdown", "metadata": {}, "source": "my notes"}
        )

    result = expect_solved(changed(change))
    sources = [cell.source for cell in result.cells]
    assert sources.index("first = 1") == sources.index("import math") + 1
    assert sources.index("helper = 1") < sources.index(answer("two"))
    assert sources[-1] == "my notes"


def test_another_version_is_told():
    notebook = copy.deepcopy(SOLVED)
    notebook["metadata"]["course"]["version"] = "0.9"
    expect_solved(notebook, says="version 0.9")


def test_an_empty_notebook_becomes_the_released_one():
    result = rebuilt({"cells": [], "metadata": {}})
    assert answers_of(result) == {name: stub(name) for name in NAMES}


def test_how_much_is_there():
    def cells_of(notebook):
        return read(json.dumps(notebook).encode())

    assert written(LESSON, cells_of(SOLVED)) == 3
    assert written(LESSON, cells_of(made({}))) == 0
    assert share(LESSON, cells_of(SOLVED)) > 5
    assert share(LESSON, cells_of({"cells": []})) == 0
