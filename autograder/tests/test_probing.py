"""An answer is run without leaving a trace, and nothing of it is missed."""

import functools
import os
import random
import subprocess
import sys
import textwrap
import warnings

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.special import log_softmax as imported_before

from autograder.checks import ch1_self_attention as lesson
from autograder.exercise import Exercise
from autograder.observations import Raised
from autograder.probing import (
    MAX_PRINTED,
    call_numpy,
    call_torch,
    captured,
    case,
    observe,
    stays_there,
)


def inputs_of(*args, **kwargs):
    return {"only": case(*args, **kwargs)}


def look(answer, *args, probe=call_torch, forbids=(), **kwargs):
    """The observation of one call."""
    toy = Exercise("toy", None, (), probe=probe, forbids=forbids)
    return observe(toy, answer, inputs_of(*args, **kwargs))


def seen_by(answer, *args, **kwargs):
    return look(answer, *args, **kwargs)["seen"]["only"]


# What is called, and with what


def test_arrays_arrive_as_tensors_or_as_arrays():
    kinds = []

    def answer(x, flag, *, y):
        kinds.append((type(x), type(flag), type(y)))
        return 0

    arguments = np.ones(2), 3
    look(answer, *arguments, y=np.ones(1))
    look(answer, *arguments, y=np.ones(1), probe=call_numpy)
    assert set(kinds) == {
        (torch.Tensor, int, torch.Tensor),
        (np.ndarray, int, np.ndarray),
    }


def test_views_have_the_same_values_and_are_not_contiguous():
    shown = []

    def answer(x):
        shown.append((x.tolist(), x.is_contiguous()))
        return 0

    look(answer, np.arange(6.0).reshape(2, 3), strided=True)
    assert shown[0] == ([[0, 1, 2], [3, 4, 5]], False)


def test_a_view_s_axes_cannot_be_joined_without_a_copy():
    seen = seen_by(
        lambda x: x.view(-1), np.arange(6.0).reshape(2, 3), strided=True
    )
    assert "view size is not compatible" in seen["out"].text


def test_a_case_can_ask_for_a_dtype_that_numpy_lacks():
    seen = seen_by(lambda x: x, np.ones(2), dtype="bfloat16")
    assert seen["out"].dtype == "bfloat16"


def test_the_first_case_is_called_again():
    calls = []

    def answer(x):
        calls.append(1)
        return len(calls)

    seen = seen_by(answer, np.ones(1))
    assert (seen["out"], seen["again"]) == (1, 2)


@pytest.mark.parametrize("probe", [call_torch, call_numpy])
def test_arguments_that_change_are_listed(probe):
    def answer(a, b):
        b += 1
        return 0

    seen = seen_by(answer, np.zeros(2), np.zeros(2), probe=probe)
    assert seen["changed"] == [1]


def test_nan_in_an_argument_is_no_change():
    seen = seen_by(lambda a: 0, np.array([np.nan, np.inf]))
    assert seen["changed"] == []


def test_a_changed_argument_reaches_neither_the_inputs_nor_a_later_call():
    inputs = inputs_of(np.zeros(2))
    totals = []

    def answer(x):
        totals.append(float(x.sum()))
        x += 1
        return 0

    toy = Exercise("toy", None, ())
    observe(toy, answer, inputs)
    observe(toy, answer, inputs)
    assert totals == [0.0] * 4 and not inputs["only"]["args"][0].any()


def test_a_changed_list_reaches_neither_the_inputs_nor_a_later_call():
    inputs = inputs_of([1, 2])

    def answer(x):
        x.append(3)
        return len(x)

    seen = observe(Exercise("toy", None, ()), answer, inputs)["seen"]["only"]
    assert inputs["only"]["args"] == [[1, 2]]
    assert seen["out"] == seen["again"] == 3


def test_a_probe_that_shares_memory_leaves_the_inputs_as_they_were():
    def probe(answer, inputs):
        return answer(torch.from_numpy(inputs["only"]["args"][0]))

    inputs = inputs_of(np.ones(2))
    toy = Exercise("toy", None, (), probe=probe)
    seen = observe(toy, lambda x: x.zero_(), inputs)["seen"]
    assert seen.data.tolist() == [0, 0]
    assert inputs["only"]["args"][0].tolist() == [1, 1]


def test_gradients_are_those_of_the_documented_loss():
    x, up = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    seen = seen_by(lambda x: x**2, x, upstream=[up])
    # d/dx sum(up * x²) = 2 x up
    assert seen["grads"][0].data.tolist() == [6.0, -4.0]


def test_an_argument_without_influence_has_a_gradient_of_zeros():
    seen = seen_by(
        lambda x, y: x * 1, np.ones(2), np.ones(3), upstream=[np.ones(2)]
    )
    assert not seen["grads"][1].data.any()


def test_a_result_cut_off_from_its_arguments_is_told_apart():
    seen = seen_by(lambda x: x.detach(), np.ones(2), upstream=[np.ones(2)])
    assert isinstance(seen["grads"], Raised)


# What raises


def stack_overflow(*args):
    return stack_overflow(*args)


class Own(BaseException):
    """Not an Exception, as pytest's and asyncio's own are not."""


def raiser(error):
    def answer(*args, **kwargs):
        raise error

    return answer


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), MemoryError(), Own(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_what_an_answer_raises_is_an_observation(error):
    seen = seen_by(raiser(error), np.ones(1))
    assert seen["out"].kind == type(error).__name__


def test_endless_recursion_is_an_observation():
    assert seen_by(stack_overflow, np.ones(1))["out"].kind == "RecursionError"


def test_only_the_user_interrupts():
    with pytest.raises(KeyboardInterrupt):
        look(raiser(KeyboardInterrupt()), np.ones(1))


def test_a_probe_that_raises_is_an_observation():
    assert look(lambda: 0, np.ones(1), probe=raiser(KeyError("k")))[
        "seen"
    ].kind == ("KeyError")


# Global state


def state():
    return {
        "torch": torch.get_rng_state().tolist(),
        "torch, for a GPU": list(torch.cuda._lazy_seed_tracker.get_calls()),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "warnings": list(warnings.filters),
        "numpy errors": np.geterr(),
        "stdout": sys.stdout,
        "stderr": sys.stderr,
    }


def vandal(x):
    torch.rand(3)
    np.random.rand(3)
    random.random()
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_num_threads(2)
    warnings.simplefilter("error")
    np.seterr(all="raise")
    sys.stdout = sys.stderr = None
    return x


@pytest.mark.parametrize("forbids", [(), ("softmax",)])
def test_an_answer_that_changes_every_global_setting_leaves_no_trace(forbids):
    before = state()
    look(vandal, np.ones(2), forbids=forbids)
    assert state() == before


def test_settings_of_the_learner_survive_a_check():
    torch.manual_seed(42)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), np.errstate(over="raise"):
            before = state()
            look(vandal, np.ones(2))
            assert state() == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_answer_starts_from_the_same_settings_whatever_was_set():
    def answer(x):
        return [
            torch.rand(1).item(),
            np.random.rand(),
            random.random(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            str(torch.get_default_dtype()),
        ]

    first = seen_by(answer, np.ones(1))["out"]
    torch.set_default_dtype(torch.float64)
    torch.rand(1), np.random.rand(), random.random()
    try:
        with torch.inference_mode(), torch.autocast("cpu"):
            assert seen_by(answer, np.ones(1))["out"] == first
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_gpu_in_use_is_seeded_and_its_generator_restored(monkeypatch):
    """Its generator is the CPU's kind here; torch.cuda's code is its own."""
    gpu = torch.Generator().manual_seed(42)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))
    monkeypatch.setattr(torch.cuda.random, "_lazy_init", lambda: None)
    for module in (torch.cuda, torch.cuda.random):
        monkeypatch.setattr(module, "device_count", lambda: 1)
        monkeypatch.setattr(module, "is_initialized", lambda: True)
    before, seeds = gpu.get_state(), []

    def answer(x):
        seeds.append(gpu.initial_seed())
        torch.rand(3, generator=gpu)
        return x

    look(answer, np.ones(1))
    assert set(seeds) == {0}
    assert torch.equal(gpu.get_state(), before)


def test_another_default_device_is_noted_and_kept():
    torch.set_default_device("meta")
    try:
        assert look(lambda x: x, np.ones(1))["device"] == "meta"
        assert torch.get_default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)


# What an answer writes


def noisy(x):
    print("python out")
    print("python err", file=sys.stderr)
    os.write(1, b"descriptor 1\n")
    os.write(2, b"descriptor 2\n")
    subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    return x


SAID = (
    "python out",
    "python err",
    "descriptor 1",
    "descriptor 2",
    "a child",
)


def test_all_that_an_answer_writes_is_kept(capfd):
    printed = look(noisy, np.ones(1))["printed"]
    assert [text for text in SAID if text not in printed] == []
    assert capfd.readouterr() == ("", "")


def test_only_the_beginning_of_endless_printing_is_kept():
    def answer(x):
        for _ in range(10_000):
            print("word")
        os.write(1, b"y" * 10**6)

    assert len(look(answer, np.ones(1))["printed"]) <= MAX_PRINTED


def test_bytes_that_are_no_text_are_shown_as_well_as_may_be():
    assert look(lambda x: os.write(1, b"\xff\xfe!"), np.ones(1))[
        "printed"
    ].endswith("!")


def test_descriptors_are_given_back_after_an_answer_that_closes_them(capfd):
    def answer(x):
        os.close(1)
        os.close(2)

    count = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    look(answer, np.ones(1))
    os.write(1, b"still here")
    assert capfd.readouterr().out == "still here"
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == count


def test_printing_is_captured_even_if_the_body_fails():
    with pytest.raises(ValueError), captured() as printed:
        print("before")
        raise ValueError
    assert printed.text == "before\n"


def script(source):
    """A script's result in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
        # A set PYTHONUNBUFFERED would hide what stays in a buffer.
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


def test_nothing_that_an_answer_writes_reaches_the_real_streams():
    result = script(
        """
        import os, subprocess, sys, warnings, logging
        import torch
        from autograder import check

        def padding_mask(lengths, T):
            print("LOUD"), print("LOUD", file=sys.stderr)
            os.write(1, b"LOUD"), os.write(2, b"LOUD")
            subprocess.run("echo LOUD; echo LOUD >&2", shell=True)
            warnings.warn("LOUD"), logging.warning("LOUD")
            at = torch.arange(T, device=lengths.device)
            return at < lengths[:, None, None, None]

        report = check("padding_mask", padding_mask)
        assert report.printed.count("LOUD") >= 8, report.printed
        print(repr(report))
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "2.0\n"


def test_a_stream_that_an_answer_kept_is_captured():
    """The real stream is buffered: it must be flushed before it is freed."""
    result = script(
        """
        import sys
        import torch
        from autograder import check
        out = sys.stdout

        def padding_mask(lengths, T):
            print("LOUD", file=out)
            print("LOUD", file=sys.__stdout__)
            at = torch.arange(T, device=lengths.device)
            return at < lengths[:, None, None, None]

        print("before")
        report = check("padding_mask", padding_mask)
        print(repr(report), "LOUD" in report.printed)
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "before\n2.0 True\n"


# Forbidden calls


def aten(x, dim):
    return torch.ops.aten._softmax(x, dim, False)


class Layer(nn.Module):
    def forward(self, x, dim):
        return nn.Softmax(dim)(x)


SCRIPTED = None


def scripted(x, dim):
    global SCRIPTED
    SCRIPTED = SCRIPTED or torch.jit.script(nn.Softmax(-1))
    return SCRIPTED(x)


def without_functions(x, dim):
    with torch._C.DisableTorchFunction():
        return torch.softmax(x, dim)


SOFTMAX = {
    "torch.": lambda x, dim: torch.softmax(x, dim),
    "Tensor.": lambda x, dim: x.softmax(dim),
    "F.": lambda x, dim: F.softmax(x, dim),
    "nn.": Layer(),
    "special": lambda x, dim: torch.special.softmax(x, dim),
    "imported before": lambda x, dim: imported_before(x, dim).exp(),
    "torch._": lambda x, dim: torch._softmax(x, dim, False),
    "aten": aten,
    "aten, overloaded": lambda x, dim: torch.ops.aten.softmax.int(x, dim),
    "functools.partial": lambda x, dim: functools.partial(F.softmax, dim=dim)(
        x
    ),
    "a method taken before": lambda x, dim: torch.Tensor.log_softmax(
        x, dim
    ).exp(),
    "softmin": lambda x, dim: F.softmin(-x, dim),
    "masked": lambda x, dim: torch.masked.softmax(x, dim),
    "vmap": lambda x, dim: torch.func.vmap(lambda y: torch.softmax(y, dim))(
        x[None]
    )[0],
    "jit": scripted,
    "without functions": without_functions,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spelling", SOFTMAX)
def test_a_forbidden_call_is_noticed_in_every_spelling(spelling):
    answer = SOFTMAX[spelling]
    seen = look(
        lambda x: answer(x, -1),
        np.arange(6.0).reshape(2, 3),
        forbids=lesson.SOFTMAX,
    )
    assert seen["forbidden"]
    # It runs all the same, so that its values can be talked about.
    out = seen["seen"]["only"]["out"]
    assert np.allclose(out.data.sum(-1), 1)


def by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def with_einops(x):
    e = torch.exp(x - einops.reduce(x, "a b -> a 1", "max"))
    return e / einops.reduce(e, "a b -> a 1", "sum")


def with_scipy(x):
    from scipy import special

    return torch.from_numpy(special.softmax(x.numpy(), axis=-1))


@pytest.mark.parametrize("answer", [by_hand, with_einops, with_scipy])
def test_other_libraries_and_own_work_are_not_forbidden(answer):
    seen = look(answer, np.arange(6.0).reshape(2, 3), forbids=lesson.SOFTMAX)
    assert seen["forbidden"] == []


def test_a_name_that_the_learner_gives_is_not_forbidden():
    def softmax(x):
        return x * 2

    assert look(softmax, np.ones(2), forbids=lesson.SOFTMAX)["forbidden"] == []


def by_rows(step):
    """A Jacobian from one gradient a row."""

    def answer(y):
        x = torch.tensor(y).log().requires_grad_()
        out = by_hand(x)
        return np.stack([step(part, x).numpy() for part in out])

    return answer


def by_backward(part, x):
    x.grad = None
    part.backward(retain_graph=True)
    return x.grad.clone()


def by_autograd_backward(part, x):
    x.grad = None
    torch.autograd.backward(part, retain_graph=True)
    return x.grad.clone()


def by_grad(part, x):
    return torch.autograd.grad(part, x, retain_graph=True)[0]


def forward_mode(y):
    import torch.autograd.forward_ad as forward

    x = torch.tensor(y).log()
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        return forward.unpack_dual(by_hand(dual)).tangent.numpy()


def transformed(transform):
    return lambda y: transform(by_hand)(torch.tensor(y).log()).numpy()


JACOBIANS = {
    "backward": by_rows(by_backward),
    "autograd.backward": by_rows(by_autograd_backward),
    "grad": by_rows(by_grad),
    "autograd.functional": lambda y: torch.autograd.functional.jacobian(
        by_hand, torch.tensor(y).log()
    ).numpy(),
    "jacrev": transformed(torch.func.jacrev),
    "jacfwd": transformed(torch.func.jacfwd),
    "forward AD": forward_mode,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", JACOBIANS)
def test_automatic_differentiation_is_noticed_in_every_form(way):
    exercise = lesson.softmax_jacobian
    inputs = {"two weights": exercise.visible_inputs()["two weights"]}
    seen = observe(exercise, JACOBIANS[way], inputs)
    assert seen["forbidden"]
    assert not isinstance(seen["seen"]["two weights"]["out"], Raised)


# Another device


def filled(out, x):
    """What a loop over parts of x leaves in an array of its own."""
    for index, part in enumerate(x):
        out[index] = part
    return out


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x[0] @ torch.ones(4, 4),
        lambda x: torch.bmm(x, torch.ones(2, 4, 4)),
        lambda x: torch.addmm(torch.ones(4), x[0], torch.ones(4, 4)),
        lambda x: torch.baddbmm(x, x, torch.ones(2, 4, 4)),
        lambda x: torch.nn.functional.embedding(torch.arange(3), x[0]),
        lambda x: x.gather(0, torch.zeros(1, 4, 4, dtype=torch.long)),
        lambda x: x + torch.ones(4),
        lambda x: torch.ones(4),
        lambda x: filled(torch.zeros(2, 4, 4), x),
        lambda x: x.cpu(),
        lambda x: F.linear(x, torch.ones(4, 4)),
        lambda x: F.layer_norm(x, (4,), weight=torch.ones(4)),
        lambda x: F.scaled_dot_product_attention(x, x, torch.ones(2, 4, 4)),
    ],
    ids=(
        "mm bmm addmm baddbmm embedding gather add result filled moved "
        "linear layer_norm sdpa"
    ).split(),
)
def test_a_tensor_left_on_the_cpu_is_noticed(answer):
    assert not stays_there(answer, case(np.ones((2, 4, 4)), dtype="float32"))


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x @ x.mT,
        lambda x: x[torch.arange(2)],  # a GPU takes such indices, too
        lambda x: x * torch.tensor(2.0),
        lambda x: x if x.sum() > 0 else -x,  # cannot be tried there
        lambda x: x.cpu().exp().to(x.device),
        lambda x: filled(torch.zeros(2, 4, 4), x).to(x.device),
        lambda x: F.linear(F.gelu(x), x[0, :2]) @ x[:, :2],
        lambda x: F.layer_norm(x, (4,)) + x,
        lambda x: F.scaled_dot_product_attention(x, x, x[..., :3]) @ x[:, :3],
    ],
    ids=(
        "its own|indices|a number|values|and back|filled and back|linear|"
        "layer_norm|sdpa"
    ).split("|"),
)
def test_what_a_gpu_allows_is_no_mistake(answer):
    assert stays_there(answer, case(np.ones((2, 4, 4)), dtype="float32"))
