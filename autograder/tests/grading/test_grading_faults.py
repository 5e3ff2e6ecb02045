"""No fault on a notebook's way changes what is graded."""

import json
import random

import faults
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autograder.build import source_notebook
from autograder.cells import NO_PYTHON, defines, parses
from autograder.course import released_path
from autograder.grading.intake import which
from autograder.grading.reading import UnreadableError, read
from autograder.grading.released import (
    released,
    released_lessons,
)
from autograder.grading.repair import rebuild

LESSONS = [lesson.name for lesson in released_lessons()]


def solved(lesson):
    """A lesson's notebook with all references in it."""
    right = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in source_notebook(lesson).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    made = json.loads(released_path(lesson).read_text(encoding="utf-8"))
    for cell in made["cells"]:
        name = faults.mark(cell)
        if name in right:
            cell["source"] = right[name]
    return made


SOLVED = {lesson: solved(lesson) for lesson in LESSONS}


def bare(source):
    return [line.strip() for line in source.split("\n") if line.strip()]


def expect_the_same(lesson, data):
    """What would run is the solved notebook, in the released order."""
    submitted = read(data)
    due = released(lesson)
    assert which(submitted, (), released_lessons()) == lesson
    result = rebuild(due, submitted)
    assert [cell.name for cell in result.cells if cell.name] == [
        cell.name for cell in due.cells if cell.name
    ]
    whole = {
        faults.mark(cell): faults.text(cell)
        for cell in SOLVED[lesson]["cells"]
    }
    for cell in result.cells:
        if cell.role == "answer":
            assert bare(cell.source) == bare(whole[cell.name]), (
                cell.name,
                result.repairs,
            )
        elif cell.role != "own":
            assert cell.source in {given.source for given in due.cells}
    stubs = [
        cell
        for cell in result.cells
        if "raise NotImplementedError" in cell.source
    ]
    assert not stubs
    return result


def test_the_corpus_is_large():
    assert len(faults.FAULTS) >= 50
    assert len(faults.FAULTS) * len(LESSONS) >= 100 or len(LESSONS) < 3


@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_changes_nothing(name, lesson):
    for seed in range(3):
        data = faults.FAULTS[name](SOLVED[lesson], random.Random(seed))
        expect_the_same(lesson, data)


# Two of these together can lose an answer for good, or its place.
ALONE = {
    "all_marks_lost",
    "answer_split",
    "mark_renamed",
    "one_mark_lost",
    "answer_retyped",
    "answer_beside_the_stub",
    "reordered",
    "reversed_order",
    "everything_copied",
    "check_before_answer",
    "metadata_odd",
}
FREE = [each for each in faults.MUTATIONS if each.__name__ not in ALONE]


def test_an_answer_turned_into_text_and_split():
    lesson = LESSONS[0]
    for seed in range(8):
        made = json.loads(json.dumps(SOLVED[lesson]))
        rng = random.Random(seed)
        index = faults.pick(made, rng)
        made["cells"][index]["cell_type"] = ("raw", "markdown")[seed % 2]
        faults.split(made, index, rng)
        expect_the_same(lesson, json.dumps(made).encode())


@pytest.mark.parametrize("lesson", LESSONS)
@settings(max_examples=25, deadline=None)
@example([faults.data_pasted] * 6, "everything_copied", 0, "utf-8")
@given(
    st.lists(st.sampled_from(FREE), max_size=6),
    st.sampled_from([None, *sorted(ALONE)]),
    st.integers(0, 2**16),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_faults_together_change_nothing(
    lesson, several, alone, seed, encoding
):
    made = json.loads(json.dumps(SOLVED[lesson]))
    rng = random.Random(seed)
    for mutate in several:
        mutate(made, rng)
    data = json.dumps(made).encode()
    if alone:
        data = faults.FAULTS[alone](made, rng)
    expect_the_same(lesson, data.decode().encode(encoding))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_damage_gives_cells_or_a_sentence(seed, count):
    rng = random.Random(seed)
    data = bytearray(json.dumps(SOLVED[LESSONS[0]]).encode())
    for _ in range(count):
        data[rng.randrange(len(data))] = rng.randrange(256)
    del data[rng.randrange(len(data)) :]
    try:
        submitted = read(bytes(data))
    except UnreadableError as error:
        assert str(error)
        return
    result = rebuild(released(LESSONS[0]), submitted)
    assert [cell for cell in result.cells if cell.role == "check"]


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "cells",
                        "metadata",
                        "source",
                        "cell_type",
                        "nbgrader",
                        "grade_id",
                        "worksheets",
                        "course",
                        "input",
                        "level",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
@example({"cells": None, "metadata": None, "worksheets": True})
def test_any_json_gives_cells_or_a_sentence(value):
    try:
        submitted = read(json.dumps(value).encode())
    except UnreadableError:
        return
    rebuild(released(LESSONS[0]), submitted)


def test_magics_are_python_too():
    assert parses("%matplotlib inline\n!pip install x\nx = 1\nx?")
    assert parses("if 1:\n\ta, b_2 = !ls\n\tc= %pwd\nd=!ls\n?f\nf.g??")
    assert not parses("def f(:")


def test_a_cell_too_long_to_parse_defines_what_its_lines_say():
    source = f"def f():\n    return 1\n{'x = 1;' * 50_000}\nclass G: pass"
    assert not parses(source)
    assert defines(source) == {"f", "G"}


@pytest.mark.parametrize("line", [" ", "\t", "x ", "x, ", "x", "x.", "?", "%"])
def test_a_long_line_is_looked_at_once(line):
    # In steps that grow with the square of its length, it would take hours.
    NO_PYTHON.sub("", line * 300_000 + "\n" + line * 300_000 + "=")
