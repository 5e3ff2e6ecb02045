"""From observations to points: gates, skips, caps, and what is shown."""

import dataclasses
import math
import re
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from autograder import judging
from autograder.diagnosis import Centres
from autograder.exercise import Exercise, Failure, Property, find
from autograder.judging import (
    SKIPPED,
    UNTIDY,
    Standard,
    failures,
    judge,
    live_standard,
)
from autograder.observations import Raised
from autograder.probing import call_torch

NAMES = ("form", "gate", "values", "edge", "tidy")


def toy(failing=(), needs=(), points=(0, 1, 0.5, 0.25, 0), judge=None):
    """An exercise of which the named properties fail, whatever comes."""

    def one(name):
        return judge or (
            lambda seen, want, inputs: (
                Failure(f"{name} is off") if name in failing else None
            )
        )

    return Exercise(
        "toy",
        lambda rng: {},
        tuple(
            Property(
                name,
                one(name),
                f"mend {name}",
                points=each,
                gate=name == "gate",
                needs=needs if name == "edge" else (),
            )
            for name, each in zip(NAMES, points, strict=True)
        ),
    )


def observation(seen=0, forbidden=(), printed="", device=None):
    return {
        "seen": seen,
        "forbidden": list(forbidden),
        "printed": printed,
        "device": device,
    }


STANDARD = Standard({}, 0, lambda: {}, Centres(toy(), 0))


def verdict(failing=(), seen=0, forbidden=(), **options):
    return judge(
        toy(failing, **options), observation(seen, forbidden), STANDARD
    )


def test_an_answer_that_fails_nothing_gets_full_marks():
    report = verdict()
    assert report.passed and report.points == report.max_points == 1.75


@pytest.mark.parametrize(
    "failing, points",
    [
        (["gate"], 0),
        (["values"], 1.25),
        (["edge"], 1.5),
        (["values", "edge"], 1),
        (["tidy"], UNTIDY * 1.75),
        (["form"], UNTIDY * 1.75),
        (["form", "tidy"], UNTIDY * 1.75),
        (["tidy", "values", "edge"], 1),
    ],
)
def test_points_are_those_of_what_holds_below_the_untidy_cap(failing, points):
    report = verdict(failing)
    assert report.points == pytest.approx(points, abs=0.005)
    assert not report.passed


def test_a_failed_gate_leaves_the_rest_unjudged():
    results = failures(toy(["gate", "edge"]), 0, 0, {})
    assert results["form"] is None
    assert isinstance(results["gate"], Failure)
    assert results["values"] == results["edge"] == SKIPPED


def test_a_property_is_skipped_without_what_it_needs():
    results = failures(toy(["values", "edge"], needs=("values",)), 0, 0, {})
    assert results["edge"] == SKIPPED and results["tidy"] is None
    report = verdict(["values"], needs=("values",))
    assert [each.passed for each in report.findings] == [
        True,
        True,
        False,
        None,
        True,
    ]


def test_a_forbidden_call_earns_nothing_and_is_named():
    report = verdict(forbidden=["softmax"])
    assert (report.points, report.passed) == (0, False)
    assert "softmax" in report.findings[0].message


CENTS = st.integers(0, 300).map(lambda cents: cents / 100)


@profile(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sets(st.sampled_from(NAMES)),
    st.tuples(*[CENTS] * len(NAMES)),
    st.booleans(),
)
def test_points_are_finite_rounded_and_between_0_and_the_maximum(
    failing, points, forbidden
):
    exercise = toy(failing, points=points)
    report = judge(
        exercise, observation(0, ["f"] if forbidden else []), STANDARD
    )
    assert math.isfinite(report.points)
    assert 0 <= report.points <= report.max_points
    assert report.points == round(report.points, 2)
    if not failing and not forbidden:
        assert report.points == report.max_points


FORMS = [
    None,
    0,
    "text",
    [],
    {},
    {"other": 1},
    Raised("KeyError", (), ""),
    {"only": None},
    {"only": {"out": None}},
    [[[]]],
]


@pytest.mark.parametrize("name", ["softmax", "score_std", "padding_mask"])
@pytest.mark.parametrize("seen", FORMS, ids=repr)
def test_observations_of_any_form_are_judged(name, seen):
    """The sandbox's other side may send anything."""
    lesson, exercise = find(name)
    standard = judging.visible_standard(lesson, exercise)
    report = judge(exercise, observation(seen), standard)
    assert (report.points, report.passed) == (0, False)


@pytest.mark.parametrize(
    "error", [KeyError, TypeError, ValueError, FloatingPointError, Warning]
)
def test_a_judgement_that_stumbles_over_observations_is_a_failure(error):
    def stumble(seen, want, inputs):
        raise error

    report = judge(toy(judge=stumble), observation(), STANDARD)
    assert report.points == 0


def test_a_judgement_that_stumbles_over_an_exception_tells_it():
    """Not every case is called by the first property, "runs"."""
    made = toy(judge=lambda seen, want, inputs: seen["late"]["out"].data)
    stopped = Raised("ValueError", (), "no")
    seen = {"early": {"out": 1}, "late": {"out": stopped}}
    found = failures(made, seen, seen, {})["form"]
    assert found.case == "late" and "ValueError" in found.text


def test_a_stub_is_told_that_it_is_one():
    report = verdict(seen=Raised("NotImplementedError", (), ""))
    assert report.points == 0
    assert [each.property for each in report.findings] == ["attempted"]


def test_every_failure_comes_with_cause_and_next_step():
    (finding,) = [
        each for each in verdict(["values"]).findings if not each.passed
    ]
    assert finding.detail == "values is off"
    assert finding.message == "mend values"


def test_another_default_device_is_named_where_the_answer_is_wrong():
    wrong = judge(toy(["values"]), observation(device="meta"), STANDARD)
    assert "meta" in wrong.notes[0]
    assert judge(toy(), observation(device="meta"), STANDARD).notes == ()


# What fresh=True may show


def test_a_fresh_verdict_shows_the_failing_visible_case_only():
    hidden = dataclasses.replace(STANDARD, inputs={"hidden": 0.123456})
    visible = judge(
        toy(["values"]), observation(printed="seen before"), STANDARD
    )
    fresh = judge(
        toy(["values", "edge"]),
        observation(printed="secret 0.123456"),
        hidden,
        example=visible,
    )
    told = {each.property: each for each in fresh.findings}
    assert told["values"].detail == "values is off"
    assert "not on others" in told["edge"].detail
    assert fresh.printed == ""


def test_a_fresh_verdict_holds_no_hidden_number_and_no_output():
    """Whatever the answer does with what it is given."""
    lesson, exercise = find("softmax")
    visible_inputs = exercise.visible_inputs()
    fresh_inputs = exercise.fresh_inputs("secret")

    def digits(inputs):
        return {
            f"{value:.3f}"[-5:]
            for one in inputs.values()
            for value in one["args"][0].ravel().tolist()
        }

    hidden = digits(fresh_inputs) - digits(visible_inputs)
    assert len(hidden) > 50

    def loud(x, dim=-1):
        print(x.tolist())
        if x.ndim == 3:
            raise ValueError(f"LEAK {x.tolist()}")
        return x * 1.0

    def raising(x, dim=-1):
        raise ValueError(f"LEAK {x.tolist()}")

    def text(x, dim=-1):
        return f"LEAK {x.tolist()}"

    class Kept(Exception):
        pass

    def last(x, dim=-1):
        if x.dtype == torch.bfloat16:
            Kept.__name__ = "LEAK" + str(x.tolist())
            raise Kept(x.tolist())
        return torch.special.exp2(x)

    for answer in (loud, raising, text, last):
        from autograder.checker import check_visible, look

        visible = check_visible(lesson, exercise, answer)
        standard = judging.fresh_standard(lesson, exercise, "secret")
        seen = look(exercise, answer, standard.inputs)
        fresh = judge(exercise, seen, standard, example=visible)
        shown = f"{fresh} {fresh._repr_html_()} {fresh!r}"
        assert not [part for part in hidden if f"{part} " in shown]
        assert not [part for part in hidden if f"{part}," in shown]
        # The visible report is the only source of numbers.
        known = f"{visible} {visible._repr_html_()}"
        digits_shown = set(re.findall(r"\d+\.\d{4,}", shown))
        assert digits_shown <= set(re.findall(r"\d+\.\d{4,}", known))


# Live standards


def answers_of(oracle, wrong):
    made = [
        types.SimpleNamespace(kind="oracle", object=oracle, id="oracle"),
        types.SimpleNamespace(
            kind="wrong", object=wrong, id="bad", hint="a hint"
        ),
    ]
    return lambda lesson, exercise, *kinds: [
        each for each in made if each.kind in kinds
    ]


def test_what_is_expected_is_what_the_oracle_gives(monkeypatch):
    monkeypatch.setattr(
        judging.answers, "of", answers_of(lambda x: x / 2, lambda x: x)
    )
    _, exercise = find("padding_mask")
    exercise = dataclasses.replace(exercise, properties=(), probe=call_torch)
    inputs = {"only": {**exercise.visible_inputs()["one example"]}}
    inputs["only"]["args"] = [np.array([3.0])]
    standard = live_standard("any", exercise, inputs)
    assert standard.want["only"]["out"].data.tolist() == [1.5]
    assert standard.mistakes()["bad"].hint == "a hint"


def test_the_learners_default_device_does_not_change_what_is_expected(
    right_padding,
):
    lesson, exercise = find("padding_mask")
    inputs = exercise.fresh_inputs("device")
    want = judging.oracle_observations(lesson, exercise, inputs)
    torch.set_default_device("meta")
    try:
        again = judging.oracle_observations(lesson, exercise, inputs)
    finally:
        torch.set_default_device(None)
    for name in inputs:
        assert type(again[name]["out"]) is type(want[name]["out"])


def test_no_answer_passes_because_everything_is_on_the_meta_device():
    """There all tensors look alike."""
    from autograder.checker import look

    lesson, exercise = find("padding_mask")

    def wrong(lengths, T):
        return torch.ones(len(lengths), 1, 1, T, dtype=torch.bool)

    torch.set_default_device("meta")
    try:
        standard = live_standard(
            lesson, exercise, exercise.fresh_inputs("meta")
        )
        seen = look(exercise, wrong, standard.inputs)
        report = judge(exercise, seen, standard)
    finally:
        torch.set_default_device(None)
    assert report.points == 0


def test_the_learners_numpy_settings_do_not_change_what_is_expected():
    lesson, exercise = find("softmax_jacobian")
    inputs = exercise.fresh_inputs("errors")
    with np.errstate(all="raise"):
        want = judging.oracle_observations(lesson, exercise, inputs)
    assert not [name for name in want if isinstance(want[name], Raised)]
    assert not isinstance(want["one-hot"]["out"], Raised)
