"""A class is built, looked at, given weights, and called."""

import numpy as np
import pytest
import torch
from torch import nn

from autograder.exercise import Exercise
from autograder.judging import SKIPPED, failures
from autograder.modules import (
    call_modules,
    draw,
    look_at,
    module_case,
    of_modules,
)
from autograder.observations import Raised, pack
from autograder.probing import observe

WEIGHTS = {
    "linear.weight": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "linear.bias": np.array([10.0, 20.0]),
}


class Right(nn.Module):
    """x W^T + b, the weights called linear."""

    def __init__(self, width=2):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x)

    def twice(self, x):
        return 2 * self(x)


def inputs():
    x = np.array([[1.0, 1.0]])
    return {
        "as built": module_case(((8,), {}), None, np.ones((1, 8))),
        "loaded": module_case(((), {}), WEIGHTS, x),
        "a method": module_case(((), {}), WEIGHTS, x, method="twice"),
        "gradient": module_case(
            ((), {}), WEIGHTS, x, upstream=[np.array([[1.0, 0.0]])]
        ),
        "full size": module_case(((10_000,), {}), None, meta=True),
    }


TOY = Exercise(
    "toy",
    lambda rng: inputs(),
    of_modules(),
    probe=call_modules,
    kind="class",
)


def seen_of(answer):
    return observe(TOY, answer, inputs())["seen"]


def failing(answer):
    results = failures(TOY, seen_of(answer), seen_of(Right), inputs())
    return [name for name, it in results.items() if it and it is not SKIPPED]


def test_what_a_case_draws_does_not_depend_on_the_cases_before():
    class Draws(Right):
        count = 1

        def forward(self, x):
            return super().forward(x) + torch.rand(self.count)[0]

    class DrawsMore(Draws):
        count = 7

    one, other = seen_of(Draws), seen_of(DrawsMore)
    for name in ("loaded", "gradient"):
        assert one[name]["out"].data == pytest.approx(other[name]["out"].data)


def test_a_right_module_fails_nothing():
    assert failing(Right) == []


def test_a_module_is_called_with_the_weights_of_its_case():
    seen = seen_of(Right)
    # [1, 1] W^T + b, by hand
    assert seen["loaded"]["out"].data.tolist() == [[13.0, 27.0]]
    assert seen["a method"]["out"].data.tolist() == [[26.0, 54.0]]
    assert "again" in seen["as built"]


def test_gradients_are_of_arguments_then_weights_in_the_cases_order():
    grads = seen_of(Right)["gradient"]["grads"]
    assert [each.data.tolist() for each in grads] == [
        [[1.0, 2.0]],
        [[1.0, 1.0], [0.0, 0.0]],
        [1.0, 0.0],
    ]


def test_full_sizes_cost_nothing_on_the_meta_device():
    assert seen_of(Right)["full size"]["out"] == 10_000 * 10_001


def test_what_a_module_shows_can_be_sent():
    pack(seen_of(Right))


class OtherNames(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


class Wider(Right):
    def __init__(self, width=2):
        super().__init__(width + 1)

    def forward(self, x):
        return self.linear(torch.cat([x, x[..., :1]], -1))[..., :-1]


class Counting(Right):
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return super().forward(x) + Counting.calls


class Unbuildable(nn.Module):
    def __init__(self, width=2):
        raise ValueError("no")


class NoModule:
    def __init__(self, width=2):
        pass


class Copies(Right):
    def __init__(self, width=2):
        super().__init__(width)
        self.other = nn.Linear(width, width)
        self.other.load_state_dict(self.linear.state_dict())


@pytest.mark.parametrize(
    "answer, first",
    [
        (OtherNames, "parameter names"),
        (Wider, "parameter names"),
        (Counting, "same again"),
        (Unbuildable, "runs"),
        (NoModule, "runs"),
        (lambda width=2: 3, "runs"),
    ],
)
def test_each_fault_fails_its_property_first(answer, first):
    assert failing(answer)[0] == first


def test_the_names_that_are_missing_are_told():
    results = failures(TOY, seen_of(OtherNames), seen_of(Right), inputs())
    text = results["parameter names"].text
    assert "linear.weight" in text and "layer.weight" in text


def test_a_missing_method_is_told():
    class NoMethod(Right):
        twice = None

    out = seen_of(NoMethod)["a method"]["out"]
    assert isinstance(out, Raised) and "twice" in out.text


def test_layers_that_start_equal_are_noticed():
    module = Copies(4)
    twins = look_at(module)["twins"]
    assert ["linear.weight", "other.weight"] in twins
    assert look_at(nn.Linear(4, 4))["twins"] == []
    # Constants are meant to be equal.
    norms = nn.Sequential(nn.LayerNorm(16), nn.LayerNorm(16))
    assert look_at(norms)["twins"] == []


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64]
)
def test_parameters_may_have_any_floating_dtype(dtype):
    made = Copies(4).to(dtype)
    assert ["linear.weight", "other.weight"] in look_at(made)["twins"]
    made.other.reset_parameters()
    assert look_at(made)["twins"] == []

    class Half(Right):
        def __init__(self, width=2):
            super().__init__(width)
            self.to(dtype)

    assert "runs" not in failing(Half)


def test_a_tied_parameter_counts_once_and_is_listed():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    seen = look_at(module)
    assert seen["count"] == 9 + 3 + 3
    assert seen["ties"] == [["0.weight", "1.weight"]]


def test_frozen_parameters_and_buffers_are_listed():
    module = nn.BatchNorm1d(3)
    module.weight.requires_grad_(False)
    seen = look_at(module)
    assert seen["frozen"] == ["weight"]
    assert "running_mean" in seen["saved"]


def test_statistics_are_those_of_the_initial_values():
    module = nn.Linear(2, 1)
    module.weight.data.copy_(torch.tensor([[1.0, 3.0]]))
    assert look_at(module)["stats"]["weight"] == [2.0, 1.0]
    assert look_at(module, stats=False)["stats"] == {}


def test_a_script_may_use_the_module_in_any_way():
    one = {"loaded": inputs()["loaded"]}
    seen = call_modules(
        Right, one, {"loaded": lambda module, case: module.training}
    )
    assert seen["loaded"]["out"] is False


class Own(BaseException):
    """Not an Exception, as pytest's and asyncio's own are not."""


@pytest.mark.parametrize("kind", [ValueError, SystemExit, Own])
def test_a_script_that_raises_is_its_cases_observation(kind):
    def broken(module, case):
        raise kind

    one = {"loaded": inputs()["loaded"]}
    seen = call_modules(Right, one, {"loaded": broken})
    assert seen["loaded"]["out"].kind == kind.__name__


def test_weights_are_drawn_for_every_name():
    drawn = draw(np.random.RandomState(0), {"a": (2, 3), "b": (3,)})
    assert {name: each.shape for name, each in drawn.items()} == {
        "a": (2, 3),
        "b": (3,),
    }
    assert all(each.all() for each in drawn.values())


def test_a_class_that_turns_off_the_lights_leaves_no_trace():
    class Vandal(Right):
        def __init__(self, width=2):
            super().__init__(width)
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)

    seen_of(Vandal)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
