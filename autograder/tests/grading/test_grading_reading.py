"""Files in every state, from bytes to cells."""

import json

import pytest

from autograder.grading.reading import UnreadableError, read

CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# Ein Übel\n", "a"]},
    {
        "cell_type": "code",
        "metadata": {"nbgrader": {"grade_id": "f"}},
        "outputs": [],
        "execution_count": 1,
        "source": "def f():\n    return 1",
    },
    {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": "g = 'é'",
    },
]
NOTEBOOK = {
    "cells": CELLS,
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {
        "course": {"lesson": "ch1", "version": "1.0"},
        "language_info": {"name": "python", "version": "3.13.1"},
    },
}
TEXT = json.dumps(NOTEBOOK, ensure_ascii=False, indent=1)
SOURCES = ["# Ein Übel\na", "def f():\n    return 1", "g = 'é'"]


def sources(data, suffix=".ipynb"):
    return [cell.source for cell in read(data, suffix).cells]


def test_a_clean_file_needs_no_repair():
    made = read(TEXT.encode())
    assert [cell.source for cell in made.cells] == SOURCES
    assert made.repairs == ()
    assert (made.lesson, made.version, made.python) == ("ch1", "1.0", "3.13.1")
    assert [cell.mark for cell in made.cells] == ["", "f", ""]


@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"],
)
def test_every_encoding_gives_the_same_cells(encoding):
    made = read(TEXT.encode(encoding))
    assert [cell.source for cell in made.cells] == SOURCES
    assert made.repairs


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
def test_line_ends_do_not_matter(ends):
    inside = json.dumps(NOTEBOOK).replace(
        "\\n", "\\r\\n" if len(ends) > 1 else "\\r"
    )
    assert sources(inside.encode()) == SOURCES
    assert sources(TEXT.replace("\n", ends).encode()) == SOURCES


@pytest.mark.parametrize("nbformat, minor", [(4, 0), (4, 2), (4, 99), (5, 0)])
def test_versions_of_the_format(nbformat, minor):
    made = {**NOTEBOOK, "nbformat": nbformat, "nbformat_minor": minor}
    assert sources(json.dumps(made).encode()) == SOURCES


def test_the_format_of_ipython_3():
    old = {
        "nbformat": 3,
        "metadata": {},
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "level": 2, "source": "Title"},
                    {
                        "cell_type": "code",
                        "input": ["a = 1\n", "b"],
                        "outputs": [],
                        "prompt_number": 1,
                        "language": "python",
                    },
                ]
            }
        ],
    }
    assert sources(json.dumps(old).encode()) == ["## Title", "a = 1\nb"]


@pytest.mark.parametrize(
    "level", ["x", "2", [], {}, None, 10**9, -1, 1.0, 2.5, float("nan"), True]
)
def test_an_odd_level_of_a_heading_is_the_first(level):
    cell = {"cell_type": "heading", "level": level, "source": "a"}
    assert sources(json.dumps({"cells": [cell]}).encode()) == ["# a"]


def test_odd_cells_do_not_stop_the_others():
    odd = [
        7,
        None,
        {"cell_type": "code"},
        {"source": {"a": 1}},
        {"cell_type": 3, "source": "x = 1"},
        {"cell_type": "code", "source": ["y", 3, " = 2"], "metadata": [1]},
    ]
    made = read(json.dumps({**NOTEBOOK, "cells": odd + CELLS}).encode())
    found = [cell.source for cell in made.cells]
    assert found[-3:] == SOURCES and "x = 1" in found and "y = 2" in found
    assert any("no readable source" in text for text in made.repairs)


@pytest.mark.parametrize(
    "metadata", [None, [], 3, {"course": []}, {"course": {"lesson": 5}}]
)
def test_odd_metadata_is_ignored(metadata):
    made = read(json.dumps({**NOTEBOOK, "metadata": metadata}).encode())
    assert len(made.cells) == 3 and made.lesson == ""


def test_a_cut_off_file_gives_its_whole_cells():
    made = read(TEXT[: TEXT.index("g = 'é'")].encode())
    assert [cell.source for cell in made.cells] == SOURCES[:2]
    assert "2 whole cells" in made.repairs[0]


@pytest.mark.parametrize("cells", [[], CELLS[:1]])
def test_a_number_of_too_many_digits_is_damage(cells):
    text = json.dumps(cells)[:-1] + ", " * bool(cells) + "7" * 5000
    data = f'{{"cells": {text}]}}'.encode()
    if cells:
        made = read(data)
        assert [cell.source for cell in made.cells] == SOURCES[:1]
        assert "damaged" in made.repairs[0]
    else:
        with pytest.raises(UnreadableError):
            read(data)


def test_halves_of_one_character_are_put_together_and_lone_ones_replaced():
    parts = ["x = '\ud83d", "\ude00'\ny = '\ud800'"]
    made = read(
        json.dumps(
            {
                "cells": [{"cell_type": "code", "source": parts}],
                "metadata": {"course": {"version": "1\udcff"}},
            }
        ).encode()
    )
    assert made.cells[0].source == "x = '😀'\ny = '\ufffd'"
    assert made.version == "1\ufffd"


def test_a_script_of_blank_lines_is_read_at_once():
    # In steps that grow with the square of its length, it would take hours.
    with pytest.raises(UnreadableError):
        read(b"x\n" + b"\n" * 2**20 + b"y", ".py")


def test_missing_comma_and_trailing_text():
    assert (
        sources(TEXT.replace("},\n  {", "}\n  {", 1).encode())[:1]
        == (SOURCES[:1])
    )
    assert sources(f"{TEXT}\n{TEXT}".encode()) == SOURCES


def test_wrapped_and_bare_notebooks():
    assert sources(json.dumps({"content": NOTEBOOK}).encode()) == SOURCES
    assert sources(json.dumps(CELLS).encode()) == SOURCES


def test_invisible_characters_go():
    cell = {
        "cell_type": "code",
        "source": "\ufeffdef\xa0f():\u2028    return\u200b 1",
    }
    assert sources(json.dumps({"cells": [cell]}).encode()) == [
        "def f():\n    return 1"
    ]


def test_scripts_of_colab_and_jupytext():
    script = (
        "# %% [markdown]\n# text\n# %%\ndef f():\n    return 1\n# In[3]:\nx"
    )
    made = read(script.encode(), ".py")
    assert [cell.kind for cell in made.cells] == ["markdown", "code", "code"]
    assert "def f():\n    return 1" in [cell.source for cell in made.cells]


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\0" * 100, "empty"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"PK\x03\x04...", "zip"),
        (b"\x89PNG....", "picture"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"hello", "no notebook"),
        (b"[1, 2]", "no notebook"),
        (b'{"a": 1}', "no cells"),
        (b"3", "no notebook"),
        (b"[" * 200_000, "no"),
        (
            TEXT.replace(' "nbformat"', '<<<<<<< HEAD\n "nbformat"').encode(),
            "line 30 has a merge conflict",
        ),
        (b"x" * (51 * 2**20), "MB"),
        (
            TEXT.replace("def f", "#" * 17 * 2**20 + "\\ndef f").encode(),
            "17 MB of code",
        ),
    ],
    ids=range(15),
)
def test_what_is_no_notebook_is_told_in_a_sentence(data, says):
    with pytest.raises(UnreadableError) as told:
        read(data)
    assert says in str(told.value)
    assert "Traceback" not in str(told.value)
