"""A summary tells what to mend in the notebook, where it can be read."""

import copy
import json
import subprocess
import sys
import types
import warnings

import pytest

from autograder import before_submit
from autograder.before_submit import advice, cells_of, defines, troubles
from autograder.course import released_path
from autograder.exercise import exercises, lessons

LESSON = "ch1_self_attention"
NAMES = list(exercises(LESSON))


@pytest.fixture
def made():
    """The first lesson's released notebook, to be damaged."""
    return json.loads(released_path(LESSON).read_text(encoding="utf-8"))


def find(made, mark):
    """Where the cell with a mark stands."""
    marks = [
        cell["metadata"].get("nbgrader", {}).get("grade_id")
        for cell in made["cells"]
    ]
    return marks.index(mark)


def told(made, names=NAMES):
    return list(troubles(cells_of(made), names))


@pytest.mark.parametrize("lesson", lessons())
def test_a_released_notebook_has_nothing_to_mend(lesson):
    path = released_path(lesson)
    if not path.exists():
        pytest.skip(f"{path.name} is not built")
    made = json.loads(path.read_text(encoding="utf-8"))
    assert told(made, list(exercises(lesson))) == []


def test_a_deleted_cell_is_named(made):
    del made["cells"][find(made, "softmax")]
    (sentence,) = told(made)
    assert sentence.startswith("The cell for softmax is gone: Put")
    del made["cells"][find(made, "check-softmax")]
    assert told(made)[1].startswith("The check cell of softmax is gone")


def test_an_answer_in_a_cell_of_its_own_is_no_answer_cell(made):
    cell = made["cells"][find(made, "softmax")]
    cell["metadata"] = {}  # cut and pasted as text, for instance
    (sentence,) = told(made)
    place = made["cells"].index(cell) + 1
    assert f"gone: cell {place} defines softmax" in sentence


def test_a_copied_cell_is_counted(made):
    place = find(made, "causal_mask")
    twin = copy.deepcopy(made["cells"][place])
    made["cells"].insert(place + 1, twin)
    (sentence,) = told(made)
    assert f"2 times (cells {place + 1} and {place + 2})" in sentence
    place = find(made, "check-softmax")
    made["cells"].append(made["cells"][place])
    assert "The check cell of softmax is there 2 times" in "".join(told(made))


@pytest.mark.parametrize(
    "source, again",
    [
        ("def softmax(x):\n    return x", True),
        ("async def softmax(x):\n    return x", True),
        ("x = 1\nclass softmax:\n    pass", True),
        ("softmax = torch.softmax", True),
        ("softmax: object = torch.softmax", True),
        ("softmax = other = torch.softmax", True),
        ("other = softmax = torch.softmax", True),
        ("%matplotlib inline\ndef softmax(x):\n    return x", True),
        ("def softmax(x):\n    return x +", True),
        ("softmax: object", False),
        ("text = '''\ndef softmax(x):\n    return x\n'''", False),
        ("softmax(x) == y", False),
        ("softmax == y", False),
        ("def softmax_of(x):\n    return softmax", False),
        ("for x in y:\n    softmax = 3", False),
        ("# def softmax(x):", False),
    ],
)
def test_a_second_definition_is_named(made, source, again):
    made["cells"].append(
        {"cell_type": "code", "source": source, "metadata": {}}
    )
    place = f"cell {len(made['cells'])}"
    sentences = told(made)
    assert bool(sentences) == again
    assert (
        not again
        or f"softmax is defined once more in {place}" in (sentences[0])
    )


def test_an_answer_that_became_text_is_named(made):
    made["cells"][find(made, "softmax")]["cell_type"] = "markdown"
    (sentence,) = told(made)
    assert "is a text cell now" in sentence


def test_the_source_of_a_cell_may_be_lines_or_text(made):
    cell = made["cells"][find(made, "softmax")]
    whole = "".join(cell["source"])
    for source in (whole, whole.splitlines(keepends=True)):
        cell["source"] = source
        assert told(made) == []


@pytest.mark.parametrize("mark", [["softmax"], {"softmax": 1}, 3, None])
def test_a_mark_that_is_no_text_is_no_mark(made, mark):
    made["cells"][find(made, "softmax")]["metadata"]["nbgrader"] = {
        "grade_id": mark
    }
    (sentence,) = told(made)
    assert "defines softmax, but is not the cell" in sentence


@pytest.mark.parametrize(
    "made",
    [None, [], {}, {"cells": None}, {"cells": [{}]}, {"cells": [None]}],
)
def test_what_is_no_notebook_has_nothing_to_mend(made):
    assert told(made) == []


def test_a_notebook_without_a_cell_of_the_lesson_is_left_alone(made):
    for cell in made["cells"]:
        cell["metadata"] = {}
    assert told(made) == []


@pytest.mark.parametrize(
    "source, names",
    [
        (
            "def one(): pass\nclass Two: pass\nasync def three(): pass",
            "one Two three",
        ),
        ("a = b = 1\nc: int = 2\nd: int\ne.f = g[0] = 3\nh += 1", "a b c"),
        ("if x:\n    def one(): pass", ""),
        ("%cd x\n!ls\na = !ls\nb?\none = 1", "one"),
        ("def one(:\nclass Two(\n  def three(", "one Two"),
        ("", ""),
    ],
)
def test_a_cell_defines_what_its_top_level_binds(source, names):
    assert defines(source) == set(names.split())


def test_a_cell_of_one_long_line_is_read_at_once():
    # Had a pattern to try each way of cutting it up, this would take hours.
    assert defines(f"{' ' * 10**6}x") == frozenset()
    assert defines(f"{' x' * 10**6}") == frozenset()


# Where the notebook is


def test_without_a_notebook_there_is_nothing_to_say(monkeypatch):
    monkeypatch.setattr(before_submit, "notebook_path", lambda: None)
    assert advice(NAMES) == ()


def test_jupyter_s_file_is_read(monkeypatch, made, tmp_path):
    path = tmp_path / "own name.ipynb"
    path.write_text(json.dumps(made), encoding="utf-8")
    monkeypatch.setattr(before_submit, "notebook_path", lambda: str(path))
    assert advice(NAMES) == ()
    del made["cells"][find(made, "softmax")]
    path.write_text(json.dumps(made), encoding="utf-8")
    first, note = advice(NAMES)
    assert "softmax" in first and "as last saved" in note


def test_a_cell_that_python_warns_of_is_read_in_silence(
    monkeypatch, made, tmp_path
):
    cell = made["cells"][find(made, "softmax")]
    cell["source"] = 'pattern = "\\d"\ndef softmax(x):\n    return x'
    cell["metadata"] = {}
    path = tmp_path / "own name.ipynb"
    path.write_text(json.dumps(made), encoding="utf-8")
    monkeypatch.setattr(before_submit, "notebook_path", lambda: str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "defines softmax" in advice(NAMES)[0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        advice(NAMES)
    assert told == []


@pytest.mark.parametrize("text", [None, "", "{", "\udcff"])
def test_a_file_that_cannot_be_read_is_told(monkeypatch, tmp_path, text):
    path = tmp_path / "gone.ipynb"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    monkeypatch.setattr(before_submit, "notebook_path", lambda: str(path))
    (sentence,) = advice(NAMES)
    assert sentence.startswith("gone.ipynb cannot be read from here")


def fake_colab(monkeypatch, answer):
    """A google.colab whose page answers by calling `answer`."""
    message = types.SimpleNamespace(blocking_request=answer)
    module = types.ModuleType("google.colab")
    module._message = message
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", module)


def test_colab_s_page_is_asked(monkeypatch, made):
    def answer(request_type, request, timeout_sec):
        assert request_type == "get_ipynb" and timeout_sec
        return {"ipynb": made}

    fake_colab(monkeypatch, answer)
    assert advice(NAMES) == ()
    del made["cells"][find(made, "softmax")]
    (sentence,) = advice(NAMES)
    assert "softmax" in sentence


@pytest.mark.parametrize("reply", [None, {}, {"error": "no page"}, 3])
def test_a_page_that_does_not_answer_is_told(monkeypatch, reply):
    fake_colab(monkeypatch, lambda *args, **kwargs: reply)
    (sentence,) = advice(NAMES)
    assert "Colab does not hand over this notebook" in sentence


# In IPython, as kernels start it. A console has a name that is no file's.
KERNEL = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
from autograder.before_submit import notebook_path
os.environ.pop("JPY_SESSION_NAME", None)
assert notebook_path() is None
shell = InteractiveShell.instance()
assert notebook_path() is None
os.environ["JPY_SESSION_NAME"] = "/there/a.ipynb"
assert notebook_path() == "/there/a.ipynb"
shell.user_ns["__session__"] = "/there/b.ipynb"
assert notebook_path() == "/there/b.ipynb"
shell.user_ns["__vsc_ipynb_file__"] = "/there/c.ipynb"
assert notebook_path() == "/there/c.ipynb"
del shell.user_ns["__vsc_ipynb_file__"]
shell.user_ns["__session__"] = "/there/console-1"
assert notebook_path() is None
"""


def test_the_kernel_says_where_its_notebook_lies():
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_summary_says_what_to_mend(monkeypatch):
    from autograder import checker

    sentences = ("The cell for softmax is gone.",)
    monkeypatch.setattr(checker, "advice", lambda names: sentences)
    made = checker.Check().summary(LESSON)
    assert "Before you hand in:\n  The cell for softmax is gone." in repr(made)
    assert "The cell for softmax is gone." in made._repr_html_()
    monkeypatch.setattr(checker, "advice", lambda names: ())
    made = checker.Check().summary(LESSON)
    assert "Before you hand in" not in repr(made) + made._repr_html_()
