"""A mistake is recognised by what it returns, and a stranger is not."""

import dataclasses
import types

import numpy as np
import pytest
import torch

from autograder import judging
from autograder.diagnosis import SIZE, alike, diagnose, sketch
from autograder.exercise import Exercise, find, of_calls, values
from autograder.judging import failing, failures, judge, live_standard
from autograder.observations import Array, Raised, Thing
from autograder.probing import case, observe


def inputs(rng):
    return {
        "small": case(rng.randn(5)),
        "large": case(rng.randn(3, 4) * 10),
        "positive": case(rng.rand(4) + 1),
    }


TOY = Exercise(
    "toy",
    inputs,
    of_calls(
        values("values", "small", "large", says="", points=1, gate=True),
        values("positive", "positive", says="", points=1),
    ),
)


def squares(x):
    return x**2


def cubes(x):
    return x**3


def plus(epsilon):
    """The right answer with a constant too many."""

    def answer(x):
        return x**2 + epsilon

    return answer


def negative(x):
    return -(x**2)


def absolute(x):
    return x * x.abs()


def signed(x):
    return x**2 * x.sign()


def standard(monkeypatch, oracle=squares, **wrong):
    """Of the toy, with the wrong answers by id."""
    made = [types.SimpleNamespace(kind="oracle", id="o", object=oracle)]
    made += [
        types.SimpleNamespace(
            kind="wrong", id=id, object=object, hint=f"hint of {id}"
        )
        for id, object in wrong.items()
    ]
    monkeypatch.setattr(
        judging.answers,
        "of",
        lambda lesson, exercise, *kinds: [
            each for each in made if each.kind in kinds
        ],
    )
    return live_standard("toy", TOY, TOY.visible_inputs())


def named(answer, against):
    seen = observe(TOY, answer, against.inputs)
    return list(judge(TOY, seen, against).hints)


@pytest.fixture
def known(monkeypatch):
    return standard(
        monkeypatch, cubes=cubes, plus=plus(1e-3), negative=negative
    )


def test_a_known_mistake_is_named(known):
    assert named(cubes, known) == ["cubes"]
    assert named(negative, known) == ["negative"]


def test_a_mistake_written_in_another_way_is_named(known):
    def by_loop(x):
        return (
            torch.tensor([each * each * each for each in x.flatten().tolist()])
            .reshape(x.shape)
            .to(x.dtype)
        )

    # Python's floats pass through float32 in torch.tensor: a tiny change.
    assert named(by_loop, known) == ["cubes"]


@pytest.mark.parametrize("constant", [1e-5, 1e-4, 2e-3])
def test_a_mistake_with_another_constant_is_named(known, constant):
    assert named(plus(constant), known) == ["plus"]


@pytest.mark.parametrize(
    "answer",
    [
        torch.sin,
        lambda x: x**2 + x,
        lambda x: x.exp(),
        lambda x: x * float("nan"),
        lambda x: 3 * x**2,
    ],
)
def test_a_stranger_is_not_given_a_name(known, answer):
    assert named(answer, known) == []


def test_a_right_answer_has_no_mistake(known):
    assert named(lambda x: x * x, known) == []


def test_mistakes_that_cannot_be_told_apart_are_named_together(monkeypatch):
    known = standard(
        monkeypatch, cubes=cubes, absolute=absolute, signed=signed
    )
    assert sorted(named(signed, known)) == ["absolute", "signed"]
    assert named(cubes, known) == ["cubes"]
    pairs = alike(known.centres, known.mistakes())
    assert list(pairs) == [("absolute", "signed")]


def test_a_pattern_of_failures_that_one_mistake_shows_is_the_fallback(
    monkeypatch,
):
    def keeps_sign(x):
        return torch.where((x > 1).all(), x * 1.0, x**2)

    def another(x):
        return torch.where((x > 1).all(), x.sin() * 9, x**2)

    known = standard(monkeypatch, cubes=cubes, keeps_sign=keeps_sign)
    assert named(another, known) == ["keeps_sign"]
    # With two such mistakes it says nothing.
    known = standard(
        monkeypatch,
        one=keeps_sign,
        two=lambda x: torch.where((x > 1).all(), -x, x**2),
    )
    assert named(another, known) == []


def test_that_an_answer_does_not_run_names_nothing(monkeypatch):
    def broken(x):
        raise KeyError

    def otherwise(x):
        raise ValueError

    known = standard(monkeypatch, broken=broken)
    assert named(otherwise, known) == []


def test_without_known_mistakes_nothing_is_named(monkeypatch):
    assert named(cubes, standard(monkeypatch)) == []


def test_the_first_failing_property_carries_the_mistake(known):
    seen = observe(TOY, negative, known.inputs)
    marked = {
        each.property: each.mistake
        for each in judge(TOY, seen, known).findings
        if each.mistake
    }
    assert marked == {"values": "negative"}


def test_random_observations_are_recognised_by_their_features(monkeypatch):
    """Another generator than the known mistake's draws other numbers."""
    _, exercise = find("score_std")

    def unscaled(d_k, n, scale, seed=0):
        q, k = np.random.RandomState(seed).randn(2, n, d_k)
        return float((q * k).sum(-1).std())

    def unscaled_elsewhere(d_k, n, scale, seed=0):
        rng = np.random.default_rng(seed)
        q, k = rng.choice([-1.0, 1.0], size=(2, n, d_k))
        return float((q * k).sum(-1).std())

    standard_of = judging.visible_standard("ch1_self_attention", exercise)
    seen = observe(exercise, unscaled, standard_of.inputs)["seen"]
    known = {
        "unscaled": judging.mistake(
            exercise,
            "h",
            seen,
            failures(exercise, seen, standard_of.want, standard_of.inputs),
        )
    }
    other = observe(exercise, unscaled_elsewhere, standard_of.inputs)["seen"]
    failing_names = failing(
        failures(exercise, other, standard_of.want, standard_of.inputs)
    )
    assert diagnose(
        exercise, other, standard_of.centres, failing_names, known
    ) == ["unscaled"]


# Sketches


def trees():
    x = np.arange(6.0).reshape(2, 3)
    yield {"a": Array("torch", "float64", x)}
    yield {"a": Array("torch", "float64", x + 1e-3)}
    yield {"a": Array("torch", "float64", x.T)}
    yield {"a": Array("numpy", "float64", x)}
    yield {"a": Array("torch", "float32", x)}
    yield {"b": Array("torch", "float64", x)}
    yield {"a": [1, 2]}
    yield {"a": [2, 1]}
    yield {"a": 1.5}
    yield {"a": True}
    yield {"a": "text"}
    yield {"a": None}
    yield {"a": Raised("KeyError", (), "")}
    yield {"a": Raised("ValueError", (), "")}
    yield {"a": Thing("dict", "{}")}
    yield {"a": Array("torch", "complex128", x * 1j)}
    yield {"a": Array("torch", "float64", np.full((2, 3), np.nan))}
    yield {"a": Array("torch", "float64", np.full((2, 3), np.inf))}
    yield {"a": Array("torch", "float64", np.full((2, 3), -np.inf))}
    yield {"a": Array("torch", "float64", np.zeros((0, 3)))}
    yield Raised("KeyError", (), "")
    yield {}


def test_different_observations_have_different_finite_sketches():
    made = [sketch(TOY, tree) for tree in trees()]
    assert all(each.shape == (SIZE,) for each in made)
    assert all(np.isfinite(each).all() for each in made)
    for index, one in enumerate(made):
        for other in made[index + 1 :]:
            assert np.linalg.norm(one - other) > 1e-4


def test_equal_observations_have_the_same_sketch():
    for one, other in zip(trees(), trees(), strict=True):
        assert np.array_equal(sketch(TOY, one), sketch(TOY, other))


def test_rounding_hardly_moves_a_sketch():
    x = np.random.RandomState(0).randn(50)
    one, other = (
        sketch(TOY, {"a": Array("torch", "float64", each)})
        for each in (x, x * (1 + 1e-13))
    )
    assert np.linalg.norm(one - other) < 1e-9


def test_features_of_another_form_do_not_stop_a_diagnosis():
    _, exercise = find("score_std")
    for seen in ({}, {"small": 1}, {"few": []}, None, [], "x"):
        assert np.isfinite(sketch(exercise, seen)).all()


def test_a_diagnosis_of_what_equals_the_expected_is_empty(known):
    results = failures(TOY, known.want, known.want, known.inputs)
    assert failing(results) == ()
    assert (
        diagnose(TOY, known.want, known.centres, ("values",), known.mistakes())
        == []
    )


def test_an_exercise_can_be_replaced_without_losing_its_identity():
    assert dataclasses.replace(TOY, forbids=("x",)).name == TOY.name
