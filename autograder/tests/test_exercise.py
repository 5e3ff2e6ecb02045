"""Properties, and what an exercise says of itself."""

import itertools
import types

import numpy as np
import pytest

from autograder import exercise as engine
from autograder.exercise import (
    Exercise,
    Failure,
    Property,
    case_difference,
    law,
    not_attempted,
    of_calls,
    refuses,
    unusable,
    unusable_observation,
    values,
)
from autograder.observations import Array, Raised
from autograder.probing import case, observe

INPUTS = {"first": case(1), "second": case(2)}


def made(first, second=None, again=None, **more):
    """Observations of two calls; by default both return the first."""
    second = first if second is None else second
    return {
        "first": {
            "out": first,
            "changed": [],
            "again": first if again is None else again,
            **more,
        },
        "second": {"out": second, "changed": []},
    }


def numbers(*entries, dtype="float64"):
    return Array("torch", dtype, np.array(entries, dtype))


def common(name):
    """One of the properties that all calls have."""
    return next(part for part in of_calls() if part.name == name)


ERROR = Raised("KeyError", ("KeyError", "LookupError"), "'k'")


def test_an_answer_that_raises_in_its_first_call_does_not_run():
    runs = common("runs")
    failure = runs.judge(made(ERROR), made(1.0), INPUTS)
    assert failure.case == "first" and "KeyError" in failure.text
    assert runs.judge(ERROR, made(1.0), INPUTS)
    assert runs.judge(made(1.0), made(1.0), INPUTS) is None
    assert runs.gate


def test_where_an_exception_is_due_raising_is_running():
    assert common("runs").judge(made(ERROR), made(ERROR), INPUTS) is None


def test_another_form_fails_in_the_case_that_shows_it():
    form = common("shape and dtype")
    failure = form.judge(
        made(numbers(1.0), numbers(1.0, 2.0)), made(numbers(1.0)), INPUTS
    )
    assert failure.case == "second"
    assert form.judge(made(ERROR), made(1.0), INPUTS) is None


def test_a_changed_argument_fails():
    seen = made(1.0)
    assert common("arguments unchanged").judge(seen, seen, INPUTS) is None
    seen["second"]["changed"] = [0]
    failure = common("arguments unchanged").judge(seen, made(1.0), INPUTS)
    assert failure.case == "second"


@pytest.mark.parametrize(
    "again, fails",
    [(1.0, False), (1.0 + 1e-12, False), (1.001, True), ("1", True)],
)
def test_a_second_call_has_to_agree_with_the_first(again, fails):
    seen = made(1.0, again=again)
    failure = common("same again").judge(seen, made(1.0), INPUTS)
    assert bool(failure) is fails


def judge_values(seen, want, **options):
    part = values("v", "first", "second", says="", **options)
    return part.judge(seen, want, INPUTS)


@pytest.mark.parametrize("error, fails", [(0.9e-6, False), (1.1e-6, True)])
def test_values_agree_within_their_tolerance(error, fails):
    seen, want = made(numbers(2.0 + 2 * error)), made(numbers(2.0))
    assert bool(judge_values(seen, want, tol=1e-6)) is fails


def test_the_first_case_that_differs_is_named():
    seen = made(numbers(1.0), numbers(2.0))
    assert judge_values(seen, made(numbers(1.0))).case == "second"


def test_gradients_are_compared_in_their_own_place():
    seen = made(1.0, grads=[numbers(1.0)])
    want = made(1.0, grads=[numbers(2.0)])
    options = {"says": "", "part": "grads"}
    part = values("v", "first", **options)
    assert part.judge(seen, want, INPUTS)
    assert part.judge(want, want, INPUTS) is None
    seen["first"]["grads"] = ERROR
    assert "gradient raises" in part.judge(seen, want, INPUTS).text
    assert part.judge(made(1.0), want, INPUTS)


def test_raising_where_a_value_is_due_differs():
    assert "KeyError" in case_difference({"out": ERROR}, {"out": 1.0})
    assert case_difference({"out": 1.0}, {"out": ERROR})


@pytest.mark.parametrize(
    "out, told",
    [
        (ERROR, None),
        (Raised("Own", ("Own", "KeyError"), "has 'k' in it"), None),
        (Raised("ValueError", ("ValueError",), "'k'"), "ValueError"),
        (Raised("KeyError", ("KeyError",), "no"), "does not name k"),
        (1.0, "it returns"),
    ],
)
def test_a_refusal_is_the_due_exception_with_its_words(out, told):
    part = refuses("r", "first", says="", mentions=("k",))
    failure = part.judge(made(out), made(ERROR), INPUTS)
    assert failure is None if told is None else told in failure.text


def test_a_law_is_judged_by_its_own_function():
    part = law("l", lambda *given: Failure(repr(given)), says="s", points=2)
    assert part.judge(1, 2, 3).text == "(1, 2, 3)"
    assert (part.points, part.gate) == (2, False)


STUB = Raised("NotImplementedError", ("NotImplementedError",), "")


@pytest.mark.parametrize(
    "seen, stub",
    [
        (STUB, True),
        (made(STUB), True),
        (made(STUB, 1.0), False),
        (made(1.0), False),
        (made(ERROR), False),
        ({"small": {"none": 0.5}}, False),
        ({}, False),
        (None, False),
        ([STUB], False),
    ],
)
def test_only_an_untouched_stub_is_taken_for_one(seen, stub):
    assert not_attempted(seen) is stub


@pytest.mark.parametrize(
    "answer, kind, told",
    [
        (None, "function", "None"),
        ("text", "function", "str"),
        (3.5, "class", "float"),
        (dict, "function", "class dict"),
        (dict, "class", None),
        (len, "function", None),
        (lambda: 0, "class", None),
    ],
)
def test_what_is_no_answer_at_all_is_told_in_words(answer, kind, told):
    text = unusable(answer, kind)
    assert text is None if told is None else told in text


def test_what_is_no_answer_at_all_is_observed_as_any_other():
    seen = unusable_observation("it is None")
    looked = observe(toy(1), lambda x: x, {"only": case(1)})
    assert seen.keys() == looked.keys()
    failure = common("runs").judge(seen["seen"], made(1.0), INPUTS)
    assert failure.text == "it is None"


# One exercise


def toy(*points):
    parts = [
        Property(f"p{index}", None, "", points=each)
        for index, each in enumerate(points)
    ]
    return Exercise("toy", lambda rng: {"x": rng.rand()}, tuple(parts))


@pytest.mark.parametrize(
    "points", [(0.1, 0.2), (0.7, 0.1, 0.2), (1.1, 2.2), (0.5, 1.5), ()]
)
def test_the_maximum_is_the_sum_that_a_human_gets(points):
    cents = sum(round(100 * each) for each in points)
    assert toy(*points).points == cents / 100


def test_inputs_follow_from_the_name_and_the_seed_alone():
    exercise = toy()
    assert exercise.visible_inputs() == exercise.visible_inputs()
    assert exercise.fresh_inputs(1) == exercise.fresh_inputs("1")
    drawn = [exercise.visible_inputs()["x"]]
    drawn += [exercise.fresh_inputs(seed)["x"] for seed in range(20)]
    assert len(set(drawn)) == 21


# The course


def test_every_exercise_is_found_by_its_name():
    for name, exercise in engine.exercises("ch1_self_attention").items():
        assert engine.find(name) == ("ch1_self_attention", exercise)
        assert exercise.name == name
    assert engine.find("no such exercise") is None


@pytest.mark.parametrize("lesson", engine.lessons())
def test_a_property_needs_those_before_it_only(lesson):
    for exercise in engine.exercises(lesson).values():
        names = [part.name for part in exercise.properties]
        for part in exercise.properties:
            assert set(part.needs) <= set(names[: names.index(part.name)])


def test_inputs_are_plain_data():
    """They cross into the sandbox, where no object may follow them."""
    plain = (type(None), bool, int, float, str, np.ndarray)

    def parts(node):
        if isinstance(node, dict):
            return itertools.chain.from_iterable(map(parts, node.values()))
        if isinstance(node, list | tuple):
            return itertools.chain.from_iterable(map(parts, node))
        return [node]

    for exercise in engine.exercises("ch1_self_attention").values():
        for leaf in parts(exercise.visible_inputs()):
            assert isinstance(leaf, plain)
            assert not isinstance(leaf, types.FunctionType)
