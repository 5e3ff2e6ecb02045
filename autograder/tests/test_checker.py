"""`check` as a learner calls it: it always answers, and touches nothing."""

import json
import os
import subprocess
import sys
import textwrap
import time
import types
import warnings

import numpy as np
import pytest
import torch
import torch.backends.opt_einsum

from autograder import answers, check, checker, goldens, judging
from autograder.checker import Check, UnknownExerciseError
from autograder.goldens import MissingGoldenError
from autograder.report import Report


def script(source, **env):
    """A script's result in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONUNBUFFERED": "", **env},
    )


# Right and wrong


def test_a_right_answer_gets_full_marks(right_padding):
    for fresh in (False, True):
        report = check("padding_mask", right_padding, fresh=fresh)
        assert report.passed and float(repr(report)) == 2.0


def test_a_wrong_answer_is_told_its_cause(long_padding):
    report = check("padding_mask", long_padding)
    assert report.points < report.max_points
    assert list(report.hints) == ["padding_mask_one_too_many"]
    assert "one position too many" in str(report)


def test_a_wrong_answer_is_told_its_cause_on_fresh_inputs_too(long_padding):
    report = check("padding_mask", long_padding, fresh=True)
    assert report.points == 0
    assert list(report.hints) == ["padding_mask_one_too_many"]


def test_an_answer_that_knows_the_visible_inputs_fails_fresh_ones(
    right_padding,
):
    known = {}

    def learn(lengths, T):
        known[(*lengths.tolist(), T)] = right_padding(lengths, T)
        return known[(*lengths.tolist(), T)]

    def recite(lengths, T):
        return known.get(
            (*lengths.tolist(), T),
            torch.zeros(len(lengths), 1, 1, T, dtype=torch.bool),
        )

    assert check("padding_mask", learn).passed
    assert check("padding_mask", recite).passed
    report = check("padding_mask", recite, fresh=True)
    assert report.points == 0 and not report.passed


def test_right_answers_pass_where_einsum_seeks_the_cheapest_order(
    monkeypatch,
):
    """As where opt_einsum is installed: with JAX, and on Colab."""

    def path(equation, *operands, optimize):
        shapes = [np.empty(each.shape) for each in operands]
        found, _ = np.einsum_path(equation, *shapes, optimize="optimal")
        planned.append(equation)
        return [found[1:]]

    planned = []
    library = types.SimpleNamespace(contract_path=path)
    monkeypatch.setattr(
        torch.backends,
        "opt_einsum",
        types.SimpleNamespace(
            enabled=True,
            strategy="auto",
            is_available=lambda: True,
            get_opt_einsum=lambda: library,
        ),
    )
    for answer in answers.of("ch2_multi_head", "LatentAttention"):
        if answer.kind == "right":
            report = check("LatentAttention", answer.object)
            assert report.passed, f"{answer.id}: {report}"
    assert planned


# Anything a cell can hold


class Lying:
    def __call__(self, *args, **kwargs):
        return self

    def __eq__(self, other):
        return True

    __hash__ = None

    def __bool__(self):
        raise RuntimeError

    def __getattr__(self, name):
        return self


class NoClass:
    @property
    def __class__(self):
        raise ValueError("not telling")


class Nameless(type):
    @property
    def __name__(self):
        raise ValueError("not telling")


class Unnamed(metaclass=Nameless):
    pass


class Exits(SystemExit):
    def __str__(self):
        raise SystemExit("again")


class Silent(BaseException):
    pass


def raising(error):
    def answer(*args, **kwargs):
        raise error

    return answer


def returning(value):
    return lambda *args, **kwargs: value


def forever(*args, **kwargs):
    return forever(*args, **kwargs)


def circle():
    part = []
    part += [part] * 3
    return part


ANSWERS = {
    "None": None,
    "text": "padding_mask",
    "a number": 3.0,
    "a tensor": torch.ones(2),
    "a class": dict,
    "a module": np,
    "a liar": Lying(),
    "an object without class": NoClass(),
    "a class without name": Unnamed,
    "an object whose class has no name": Unnamed(),
    "too few arguments": lambda: 0,
    "raises": raising(ValueError("x")),
    "raises what does not print": raising(Exits()),
    "exits": raising(SystemExit(1)),
    "asserts": raising(AssertionError()),
    "runs out of memory": raising(MemoryError()),
    "a BaseException": raising(Silent()),
    "recursion": forever,
    "returns None": returning(None),
    "returns text": returning("x" * 10**6),
    "returns itself in a list": returning(circle()),
    "returns a liar": returning(Lying()),
    "returns a nameless object": returning(Unnamed()),
    "returns a huge number": returning(10**400),
    "returns NaN": returning(float("nan")),
    "returns NaNs": returning(torch.full((3, 1, 1, 3), float("nan"))),
    "returns a meta tensor": returning(torch.empty(3, device="meta")),
    "returns a huge tensor": returning(torch.zeros(1).expand(10**12)),
    "returns a sparse tensor": returning(torch.eye(3).to_sparse()),
    "returns a complex tensor": returning(torch.ones(3) * 1j),
    "returns a function": returning(len),
    "returns objects": returning(np.full(2, None, dtype=object)),
}

MANY = "returns itself in a list"  # has a test of its own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ANSWERS if name != MANY])
def test_a_check_never_raises_and_gives_nothing_for_what_is_no_answer(name):
    for exercise in ("padding_mask", "softmax_jacobian"):
        report = check(exercise, ANSWERS[name])
        assert isinstance(report, Report)
        assert float(repr(report)) == 0.0 and not report.passed
        assert "Traceback" not in str(report) + report._repr_html_()


def test_an_answer_of_many_parts_is_checked_as_quickly_as_others():
    start = time.process_time()
    assert check("padding_mask", ANSWERS[MANY]).points == 0
    # Half a second is promised; the rest is for a slow machine.
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", ["recursion", "a liar", "returns NaNs"])
def test_a_fresh_check_never_raises_either(name):
    assert check("padding_mask", ANSWERS[name], fresh=True).points == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 0.0, "x", None])
def test_odd_numbers_get_nothing_and_no_warning_of_ours(value):
    with warnings.catch_warnings():
        # What is not raised here would be printed on stderr.
        warnings.simplefilter("error")
        assert check("score_std", returning(value)).points == 0


def test_a_check_works_where_numpy_raises_on_rounding(right_padding):
    def tiny(y):
        return np.outer(y, y) * 0 + 1e-308 / 7

    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert check("softmax_jacobian", tiny).points == 0
        assert check("padding_mask", right_padding, fresh=True).passed


def test_the_default_device_is_named_as_the_cause():
    def padding_mask(lengths, T):
        return torch.arange(T) < lengths[:, None, None, None]

    torch.set_default_device("meta")
    try:
        report = check("padding_mask", padding_mask)
    finally:
        torch.set_default_device(None)
    assert report.points == 0
    assert "default device is meta" in str(report)


def test_a_check_works_where_torch_cannot_tell_the_default_device(
    right_padding, monkeypatch
):
    """As torch 2.6 cannot after torch.set_default_device(None)."""

    def cannot():
        raise AttributeError("'NoneType' object has no attribute 'device'")

    monkeypatch.setattr(torch, "get_default_device", cannot)
    assert check("padding_mask", right_padding).passed


def test_a_check_with_another_default_device_spoils_no_later_one(
    right_padding, monkeypatch
):
    monkeypatch.setattr(checker, "batch_seed", lambda: "device")
    torch.set_default_device("meta")
    try:
        check("padding_mask", right_padding, fresh=True)
    finally:
        torch.set_default_device(None)
    assert check("padding_mask", right_padding, fresh=True).passed


# Names


@pytest.mark.parametrize(
    "name, near",
    [
        ("sotfmax", "softmax"),
        ("paddingmask", "padding_mask"),
        ("Causal_Mask", "causal_mask"),
        ("scaled_dot_product", "scaled_dot_product_attention"),
    ],
)
def test_a_misspelt_name_gives_the_nearest_ones(name, near):
    with pytest.raises(UnknownExerciseError, match=repr(near)):
        check(name, None)


@pytest.mark.parametrize("name", ["zzzzzz", "", None, 3, len])
def test_what_is_near_to_no_name_gives_all_of_them(name):
    with pytest.raises(UnknownExerciseError, match="softmax, score_std"):
        check(name, None)


def test_a_missing_golden_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    monkeypatch.setattr(judging, "read_golden", goldens.read_golden)
    goldens._stored.cache_clear()
    judging.visible_standard.cache_clear()
    try:
        with pytest.raises(MissingGoldenError, match="make exercises"):
            check("padding_mask", None)
    finally:
        goldens._stored.cache_clear()


def test_fresh_inputs_without_answers_raise_instead_of_giving_nothing(
    monkeypatch, tmp_path, right_padding
):
    from autograder import answers

    monkeypatch.setattr(answers, "FOLDER", tmp_path)
    monkeypatch.setattr(checker, "batch_seed", lambda: "missing")
    answers.load.cache_clear()
    try:
        assert check("padding_mask", right_padding).passed
        with pytest.raises(FileNotFoundError, match="fresh=True"):
            check("padding_mask", right_padding, fresh=True)
    finally:
        answers.load.cache_clear()


# The summary


def test_a_summary_needs_a_check_first_or_a_lesson():
    with pytest.raises(ValueError, match="run a check cell first"):
        Check().summary()
    with pytest.raises(ValueError, match="is no lesson"):
        Check().summary("ch1")


def test_a_summary_has_the_last_report_of_each_exercise(
    right_padding, long_padding
):
    own = Check()
    own("padding_mask", long_padding)
    own("padding_mask", right_padding)
    made = own.summary()
    assert (made.lesson, made.points) == ("ch1_self_attention", 2.0)
    assert "padding_mask: 2 of 2 points" in repr(made)
    assert "softmax" in made.next_step


def test_a_summary_is_of_the_lesson_that_was_checked_last():
    own = Check()
    for name in ("padding_mask", "split_heads", "padding_mask"):
        own(name, None)
    assert own.summary().lesson == "ch1_self_attention"


# The seed


def test_the_seed_of_a_batch_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("AUTOGRADER_SEED", "abc")
    checker.batch_seed.cache_clear()
    assert checker.batch_seed() == "abc"
    monkeypatch.delenv("AUTOGRADER_SEED")
    checker.batch_seed.cache_clear()
    assert len(checker.batch_seed()) >= 16
    checker.batch_seed.cache_clear()


# Where a check runs

ANSWER = """
import torch
from autograder import check

def padding_mask(lengths, T):
    print("from the answer")
    at = torch.arange(T, device=lengths.device)
    return at < lengths[:, None, None, None]
"""


@pytest.mark.parametrize(
    "before",
    [
        "sys.stdout.close()",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = io.StringIO(); os.close(1)",
        "os.close(0); os.close(1); os.close(2)",
    ],
)
def test_a_check_works_whatever_became_of_stdout(before, tmp_path):
    out = tmp_path / "report"
    result = script(
        f"import io, os, sys\n{before}\n"
        + ANSWER
        + f"report = check('padding_mask', padding_mask)\n"
        f"open({str(out)!r}, 'w').write(repr(report) + report.printed)\n"
        "os._exit(0)\n"
    )
    assert result.returncode == 0, result.stderr
    assert out.read_text().startswith("2.0from the answer")


@pytest.mark.slow  # starts pytest with all its plugins; capture is on above
def test_a_check_works_in_a_pytest_of_its_own(tmp_path):
    (tmp_path / "test_own.py").write_text(
        ANSWER
        + "def test_own():\n"
        + "    assert check('padding_mask', padding_mask).passed\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout


def test_in_ipython_the_text_of_a_report_is_its_number():
    pytest.importorskip("IPython")
    right = ANSWER + "check('padding_mask', padding_mask, fresh=True)"
    wrong = right.replace("< lengths", "<= lengths")
    result = script(
        f"""
        import json
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        for cell in {[right, wrong]!r}:
            result = shell.run_cell(cell)
            result.raise_error()
            data, _ = shell.display_formatter.format(result.result)
            print("\\n" + json.dumps(data))
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "from the answer" not in result.stdout
    shown = [
        json.loads(line)
        for line in result.stdout.splitlines()
        if line.startswith("{")
    ]
    assert [data["text/plain"] for data in shown] == ["2.0", "0.0"]
    assert all(data["text/html"].startswith("<div") for data in shown)


@pytest.mark.parametrize("points, score", [(0.0, 0), (0.75, 0.75), (2.0, 2)])
def test_stock_nbgrader_reads_partial_credit_from_the_output(points, score):
    utils = pytest.importorskip("nbgrader.utils")
    from nbformat.v4 import new_code_cell, new_output

    report = Report("padding_mask", points, 2.0)
    cell = new_code_cell(
        "check()",
        outputs=[
            new_output(
                "execute_result",
                {
                    "text/plain": repr(report),
                    "text/html": report._repr_html_(),
                },
                execution_count=1,
            )
        ],
    )
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade": True,
        "solution": False,
        "locked": True,
        "task": False,
        "grade_id": "check-padding_mask",
        "points": 2,
        "cell_type": "code",
        "checksum": "",
    }
    assert utils.determine_grade(cell) == (score, 2)
