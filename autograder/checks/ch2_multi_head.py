"""Lesson 2: what right answers on multi-head attention must satisfy."""

import dataclasses
import functools

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.exercise import (
    Exercise,
    Failure,
    law,
    of_calls,
    refuses,
    trouble,
    values,
)
from autograder.modules import (
    call_modules,
    draw,
    follows_device,
    module_case,
    moved,
    of_modules,
)
from autograder.observations import Raised, bare, number
from autograder.probing import call_numpy, case, to_tensor

LIBRARY = ("multi_head_attention_forward", "_native_multi_head_attention")
SINGLE = "6e-8 an operation; sums of up to 14 terms of size 1"


def tells(name, case, *numbers, needs):
    """The text of a case's ValueError has the numbers that do not fit."""
    part = refuses(
        name,
        case,
        mentions=numbers,
        says=(
            "Put both numbers into the text of the ValueError: whoever reads "
            "it wants to know what does not fit."
        ),
    )
    return dataclasses.replace(
        part, needs=(needs,), because="the contract promises both numbers"
    )


def transposed(x):
    """The same numbers in another order in memory: a view that swaps axes."""
    return np.array(x.swapaxes(0, 1), order="C").swapaxes(0, 1)


BUILT, LATE = "built", "built, refused at its first call"


def built(module, one):
    """What a case shows that should not have been built."""
    try:
        module(*(to_tensor(value, one) for value in one["args"]))
    except ValueError:
        return LATE
    except Exception:
        return BUILT
    return BUILT


def refuses_to_build(name, case, *, says, points, mentions=()):
    """The case's constructor raises a ValueError, not its first call."""
    part = refuses(name, case, says=says, points=points, mentions=mentions)

    def judge(seen, want, inputs):
        out = seen[case]["out"]
        if out in (BUILT, LATE):
            return Failure(f"no ValueError on construction: it is {out}", case)
        return part.judge(seen, want, inputs)

    return dataclasses.replace(part, judge=judge)


def _not_saved(seen, want, inputs):
    for name in inputs:
        extra = seen[name].get("built", {}).get("saved")
        if extra:
            return Failure(f"state_dict holds {', '.join(extra)}, too", name)
    return None


def saves_parameters_only():
    return law(
        "nothing else is saved",
        _not_saved,
        because="no output shows it",
        says=(
            "state_dict holds the parameters only: make a buffer with "
            "persistent=False, or make the tensor when it is needed."
        ),
    )


def forgets(*cases):
    return values(
        "different calls in turn",
        *cases,
        because="each other case has a module of its own",
        says=(
            "A call depends on its arguments and the parameters alone: "
            "nothing may stay from the calls before it."
        ),
    )


def called_and_moved(module, one):
    """A script: whether the module can be moved after it has been called."""
    args = [to_tensor(value, one) for value in one["args"]]
    module(
        *args,
        **{
            name: to_tensor(one["kwargs"][name], one) for name in one["kwargs"]
        },
    )
    return moved(module, one)


def does_the_same_in_train_mode():
    return values(
        "train mode",
        "in train mode",
        because="each other case is in eval mode",
        says=(
            "No dropout is asked for: in train mode the module does what it "
            "does in eval mode."
        ),
    )


# 2.1


def split_inputs(rng):
    return {
        "two heads of width 1": case(rng.randn(1, 2, 2).round(2), 2),
        "two heads of width 2": case(rng.randn(1, 2, 4).round(2), 2),
        "different sizes": case(rng.randn(2, 5, 12), 3),
        "as many heads as positions": case(rng.randn(2, 3, 6), 3),
        "all sizes equal": case(rng.randn(3, 3, 9), 3),
        "one head": case(rng.randn(2, 3, 5), 1),
        "heads of width 1": case(rng.randn(2, 3, 5), 5),
        "one position": case(rng.randn(2, 1, 6), 3),
        "a view": case(rng.randn(2, 5, 6), 2, strided=True),
        "float16": case(rng.randn(2, 3, 4), 2, dtype="float16"),
        "whole numbers": case(rng.randint(0, 50, size=(2, 3, 4)), 2),
        "gradient": case(
            rng.randn(2, 3, 4), 2, upstream=[rng.randn(2, 2, 3, 2)]
        ),
        "10 columns, 3 heads": case(rng.randn(1, 2, 10), 3),
        "3 columns, 5 heads": case(rng.randn(1, 2, 3), 5),
        "10 columns, 3 heads, 3 positions": case(rng.randn(1, 3, 10), 3),
    }


split_heads = Exercise(
    "split_heads",
    split_inputs,
    of_calls(
        values(
            "heads are column slices",
            "two heads of width 1",
            "two heads of width 2",
            "different sizes",
            "as many heads as positions",
            "all sizes equal",
            "one head",
            "heads of width 1",
            "one position",
            "a view",
            points=0.75,
            gate=True,
            says=(
                "Head h holds the columns h·Dh to (h + 1)·Dh of every "
                "position, and the positions stay in order: cut the last "
                "axis first, then move the head axis to the front."
            ),
        ),
        values(
            "any dtype",
            "float16",
            "whole numbers",
            because="heads of integer and half tensors are split as well",
            says=("Only places change here: the dtype and the numbers stay."),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            says=("Gradients flow through unchanged: stay inside autograd."),
        ),
        refuses(
            "a width that does not divide",
            "10 columns, 3 heads",
            "3 columns, 5 heads",
            "10 columns, 3 heads, 3 positions",
            points=0.25,
            says=(
                "When n_heads does not divide D, raise a ValueError, also "
                "when there are more heads than columns."
            ),
        ),
        tells(
            "the error names both numbers",
            "10 columns, 3 heads",
            "10",
            "3",
            needs="a width that does not divide",
        ),
    ),
)


def merge_inputs(rng):
    return {
        "two heads of width 1": case(rng.randn(1, 2, 2, 1).round(2)),
        "two heads of width 2": case(rng.randn(1, 2, 2, 2).round(2)),
        "different sizes": case(rng.randn(2, 3, 5, 4)),
        "as many heads as positions": case(rng.randn(2, 3, 3, 2)),
        "all sizes equal": case(rng.randn(3, 3, 3, 3)),
        "one head": case(rng.randn(2, 1, 3, 5)),
        "heads of width 1": case(rng.randn(2, 5, 3, 1)),
        "one position": case(rng.randn(2, 3, 1, 2)),
        "a view": case(rng.randn(2, 3, 5, 2), strided=True),
        "float16": case(rng.randn(2, 3, 5, 2), dtype="float16"),
        "whole numbers": case(rng.randint(0, 50, size=(2, 3, 5, 2))),
        "gradient": case(rng.randn(2, 2, 3, 2), upstream=[rng.randn(2, 3, 4)]),
    }


merge_heads = Exercise(
    "merge_heads",
    merge_inputs,
    of_calls(
        values(
            "heads side by side",
            "two heads of width 1",
            "two heads of width 2",
            "different sizes",
            "as many heads as positions",
            "all sizes equal",
            "one head",
            "heads of width 1",
            "one position",
            "a view",
            points=1,
            gate=True,
            says=(
                "Position t of the result is head 0's vector at t, then head "
                "1's, and so on: bring the head axis back beside Dh before "
                "the two become one."
            ),
        ),
        values(
            "any dtype",
            "float16",
            "whole numbers",
            because="heads of integer and half tensors are split as well",
            says=("Only places change here: the dtype and the numbers stay."),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            says=("Gradients flow through unchanged: stay inside autograd."),
        ),
    ),
)


# 2.2

COPIES = 800  # examples that dropout is observed on
SEEN = 8  # different values that are kept of what dropout leaves


def _fused(rng, d_model, bias=True, scale=0.7):
    shapes = {
        "qkv_proj.weight": (3 * d_model, d_model),
        "qkv_proj.bias": (3 * d_model,),
        "out_proj.weight": (d_model, d_model),
        "out_proj.bias": (d_model,),
    }
    return draw(
        rng,
        {
            name: shape
            for name, shape in shapes.items()
            if bias or name.endswith("weight")
        },
        scale,
    )


def _blank(d_model):
    """Equal tokens have equal scores and are averaged.

    out_proj averages pairs of columns, so what is dropped before it leaves
    other values than what is dropped after it.
    """
    one = np.eye(d_model)
    return {
        "qkv_proj.weight": np.concatenate([one, one, one]),
        "qkv_proj.bias": np.zeros(3 * d_model),
        "out_proj.weight": np.kron(np.eye(d_model // 2), np.full((2, 2), 0.5)),
        "out_proj.bias": np.zeros(d_model),
    }


def self_attention_inputs(rng):
    def one(d_model, n_heads, limit, x, weights=None, **kwargs):
        build = ((d_model, n_heads, limit), kwargs.pop("options", {}))
        return module_case(build, weights or _fused(rng, d_model), x, **kwargs)

    x = rng.randn(2, 5, 12)
    later = x.copy()
    later[:, -1] += 1.0
    weights = _fused(rng, 12)
    small = _fused(rng, 4)
    first = rng.randn(2, 3, 4)
    up, up_weights = rng.randn(2, 3, 4), rng.randn(2, 2, 3, 3)
    # A token's score with itself is lower than -1e20 and than all others.
    queries = 1e15 * np.eye(12)
    peaked = weights | {
        "qkv_proj.weight": np.concatenate(
            [queries, -queries, weights["qkv_proj.weight"][24:]]
        ),
        "qkv_proj.bias": np.zeros(36),
    }
    ones = np.ones((COPIES, 2, 4))
    return {
        "two positions": one(2, 2, 3, rng.randn(1, 2, 2).round(1)),
        "different sizes": one(12, 3, 7, x, weights),
        "last token changed": one(12, 3, 7, later, weights),
        "all sizes equal": one(9, 3, 3, rng.randn(3, 3, 9)),
        "as wide as long": one(4, 2, 4, rng.randn(2, 4, 4)),
        "one position": one(4, 2, 5, rng.randn(2, 1, 4)),
        "full context": one(4, 2, 3, first, small),
        "a view": one(6, 3, 5, transposed(rng.randn(2, 5, 6))),
        "large scores": one(12, 3, 7, x, peaked),
        "without biases": one(
            6,
            2,
            5,
            rng.randn(2, 5, 6),
            _fused(rng, 6, bias=False),
            options={"bias": False},
        ),
        "with weights": one(12, 3, 7, x, weights, return_weights=True),
        "with weights, one head": one(
            4, 1, 5, first, small, return_weights=True
        ),
        "with weights, large scores": one(
            12, 3, 7, x, peaked, return_weights=True
        ),
        "gradient": one(4, 2, 5, first, small, upstream=[up]),
        "gradient of the weights": one(
            4,
            2,
            5,
            first,
            small,
            return_weights=True,
            upstream=[up, up_weights],
        ),
        "lengths 5, 2, 5": one(4, 2, 5, rng.randn(2, 5, 4), small),
        "attention dropout": module_case(
            ((4, 2, 2, 0.25), {}), _blank(4), ones
        ),
        "output dropout": module_case(
            ((4, 2, 2, 0.0, 0.25, True), {}), _blank(4), ones
        ),
        "evaluated with dropout": one(
            4,
            2,
            5,
            first,
            small,
            options={"attn_dropout": 0.5, "out_dropout": 0.5},
        ),
        "moved to another device": one(4, 2, 5, first, small),
        "10 columns, 3 heads": one(10, 3, 5, rng.randn(1, 2, 10)),
        "6 positions, context 5": one(12, 3, 5, rng.randn(1, 6, 12), weights),
        "float32": one(
            6, 3, 5, rng.randn(2, 5, 6).astype("float32"), dtype=None
        ),
    }


def _lengths(module, one):
    x = to_tensor(one["args"][0], one)
    return [module(x), module(x[:, :2]), module(x)]


def _different(x):
    """The different numbers in a tensor, padded to a fixed length."""
    found = np.unique(x.detach().numpy().round(9))[:SEEN]
    return np.pad(found, (0, SEEN - found.size), constant_values=np.nan)


def _apart(out):
    """What is dropped without its neighbour, in the two heads' four columns.

    At the first position only key 0 counts, at the second both do; below 0
    is what only one of the two queries has lost of key 0.
    """
    first, second = out[:, 0], out[:, 1]
    return {
        "columns": bool((first[:, 0] != first[:, 1]).any()),
        "heads": bool((first[:, 0] != first[:, 2]).any()),
        "queries": bool((2 * second - first < -1e-9).any()),
    }


def _dropout(module, one):
    """What dropout leaves, in train mode, eval mode and train mode again."""
    x = to_tensor(one["args"][0], one)
    seen = {}
    for mode in ("train", "eval", "train again"):
        module.train(mode != "eval")
        out = module(x)
        seen[mode] = {
            "first position": _different(out[:, 0]),
            "second position": _different(out[:, 1]),
            # In halves: 1600 draws of spread 0.6 stay within 0.25 of it.
            "mean": round(2 * out.mean().item()) / 2,
            "drawn by itself": _apart(out),
        }
    seen["drawn anew"] = bool((module(x) != out).any())
    out, weights = module(x, return_weights=True)
    seen["with weights"] = {
        "first position": _different(out[:, 0]),
        "second position": _different(out[:, 1]),
        "weights": _different(weights),
    }
    return seen


def _past_kept(seen, want, inputs):
    before = seen["different sizes"]["out"].data[:, :-1]
    after = seen["last token changed"]["out"].data[:, :-1]
    error = np.abs(before - after).max()
    if not error < 1e-10:
        return Failure(
            "changing the last token moves the output at earlier "
            f"positions by up to {error:.3g}",
            "last token changed",
        )
    return None


MultiHeadSelfAttention = Exercise(
    "MultiHeadSelfAttention",
    self_attention_inputs,
    of_modules(
        law(
            "no look into the future",
            _past_kept,
            points=0.5,
            because=("the very same sums, only rounded in another order"),
            says=(
                "A position may only look at itself and at what comes "
                "before it: hide the rest before the softmax."
            ),
        ),
        values(
            "values",
            "two positions",
            "different sizes",
            "all sizes equal",
            "as wide as long",
            "one position",
            "full context",
            "a view",
            "without biases",
            points=1.75,
            gate=True,
            says=(
                "qkv_proj gives q, then k, then v; each is cut into "
                "heads; each head attends causally with the scale "
                "1/√Dh; the heads stand side by side again and pass "
                "through out_proj."
            ),
        ),
        values(
            "large scores",
            "large scores",
            points=0.25,
            because="tells a finite fill from a forgotten mask",
            says=(
                "Hidden keys need −inf before the softmax: scores that lie "
                "below a finite number lose to it."
            ),
        ),
        values(
            "weights on demand",
            "with weights",
            "with weights, one head",
            "with weights, large scores",
            points=0.5,
            because="the second thing that the module can return",
            says=(
                "return_weights=True gives (out, weights); the weights "
                "are (B, H, T, T), one softmax a head, query axis before "
                "key axis."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient of the weights",
            part="grads",
            points=0.5,
            says=("Gradients flow to x and to every parameter."),
        ),
        values(
            "any length up to the context",
            "lengths 5, 2, 5",
            because="a mask that stays may fail on another device, too",
            says=(
                "One module gets sequences of many lengths: nothing may stay "
                "from the last call, and a stored mask is cut to T."
            ),
        ),
        values(
            "dropout",
            "attention dropout",
            "output dropout",
            "evaluated with dropout",
            points=0.75,
            because=(
                "sets of values: one of 1600 independent draws misses a "
                "value of probability 3/64 with a chance of 4e-34"
            ),
            says=(
                "In train mode attn_dropout zeroes attention weights and "
                "out_dropout entries of the output, each by itself and other "
                "ones in each call, and what is left grows by 1/(1 − p); in "
                "eval mode nothing happens; the weights that are returned "
                "are those before dropout."
            ),
        ),
        law(
            "the mask is no state",
            _not_saved,
            points=0.25,
            says=(
                "Keep the mask out of state_dict (a buffer with "
                "persistent=False, or made when needed): a checkpoint of "
                "another context length could not be loaded otherwise."
            ),
        ),
        follows_device("moved to another device"),
        refuses_to_build(
            "a width that does not divide",
            "10 columns, 3 heads",
            points=0.25,
            says=(
                "When n_heads does not divide d_model, raise a "
                "ValueError on construction."
            ),
        ),
        refuses(
            "a sequence too long",
            "6 positions, context 5",
            points=0.25,
            says=("When T exceeds max_context_length, raise a ValueError."),
        ),
        tells(
            "the width's error names both numbers",
            "10 columns, 3 heads",
            "10",
            "3",
            needs="a width that does not divide",
        ),
        tells(
            "the length's error names both numbers",
            "6 positions, context 5",
            "6",
            "5",
            needs="a sequence too long",
        ),
        values(
            "float32",
            "float32",
            tol=1e-5,
            because=SINGLE,
            says=(
                "A module is float32 as it is built, and so are its results: "
                "what you store or create beside the parameters takes their "
                "dtype."
            ),
        ),
    ),
    probe=functools.partial(
        call_modules,
        scripts={
            "lengths 5, 2, 5": _lengths,
            "attention dropout": _dropout,
            "output dropout": _dropout,
            "moved to another device": called_and_moved,
            "10 columns, 3 heads": built,
        },
    ),
    forbids=LIBRARY,
    kind="class",
)


# 2.3


def cost_inputs(rng):
    B, T = int(rng.randint(2, 6)), int(rng.randint(7, 12))
    return {
        "all ones": case(1, 1, 1, 1),
        "small": case(1, 2, 4, 2),
        "primes": case(3, 5, 14, 7),
        "drawn": case(B, T, 12, 3),
        "one head": case(B, T, 12, 1),
        "a head a column": case(B, T, 12, 12),
        "longer than wide": case(2, 64, 8, 2),
        "the essay's layer": case(8, 1024, 768, 12),
        "two bytes": case(3, 5, 14, 7, 2),
        "eight bytes by name": case(3, 5, 14, 7, bytes_per_element=8),
    }


PLAIN_COSTS = (
    "all ones",
    "small",
    "primes",
    "drawn",
    "one head",
    "a head a column",
    "longer than wide",
    "the essay's layer",
)


def _cost(key, seen, want, inputs):
    for name in (*PLAIN_COSTS, "two bytes", "eight bytes by name"):
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(f"it raises {out.kind}: {out.text}", name)
        one, due = (number(part[name]["out"][key]) for part in (seen, want))
        if not abs(one - due) <= 1e-9 * due:
            return Failure(
                f"{key} is {one:,.0f} where {due:,.0f} is due", name
            )
    return None


def _cost_form(seen, want, inputs):
    due = set(want["small"]["out"])
    for name in inputs:
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(trouble(out), name)
        if not isinstance(out, dict):
            return Failure("no dict came back", name)
        if set(out) != due:
            return Failure(
                f"the keys are {', '.join(out)} where "
                f"{', '.join(sorted(due))} are due",
                name,
            )
    return None


attention_cost = Exercise(
    "attention_cost",
    cost_inputs,
    of_calls(
        law(
            "a dict of four numbers",
            _cost_form,
            gate=True,
            because="without the keys no number can be found",
            says=("Return a dict with the four keys of the contract."),
        ),
        law(
            "params",
            functools.partial(_cost, "params"),
            points=0.75,
            because=("whole numbers, or floats that are exact to 1e-9"),
            says=(
                "Four D×D matrices, and four biases of D numbers: the head "
                "count does not enter."
            ),
        ),
        law(
            "projection_flops",
            functools.partial(_cost, "projection_flops"),
            points=0.75,
            because="as for params",
            says=(
                "Each of the four projections is a matrix product of B·T rows "
                "with a D×D matrix, and each multiply-add counts 2."
            ),
        ),
        law(
            "score_flops",
            functools.partial(_cost, "score_flops"),
            points=0.75,
            because="as for params",
            says=(
                "Two products a head: QKᵀ, and the weights with V. Count "
                "both, and count all T² pairs, also under a causal mask."
            ),
        ),
        law(
            "score_bytes",
            functools.partial(_cost, "score_bytes"),
            points=0.75,
            because="as for params",
            says=(
                "One tensor (B, H, T, T): this is what grows with the number "
                "of heads."
            ),
        ),
    ),
)


# 2.4


def layout_inputs(rng):
    W, b = rng.randn(18, 6), rng.randn(18)
    return {
        "a bias, two heads": case(np.arange(12.0), 2),
        "a small matrix": case(rng.randn(6, 2).round(1), 2),
        "a matrix": case(W, 3),
        "its bias": case(b, 3),
        "two heads": case(W, 2),
        "many heads": case(rng.randn(21, 7), 7),
        "one head": case(W, 1),
        "a head a column": case(W, 6),
        "a view": case(W, 3, strided=True),
        "width 1": case(rng.randn(3, 1), 1),
        "float16": case(W, 3, dtype="float16"),
        "whole numbers": case(rng.randint(0, 50, size=(12, 4)), 2),
        "gradient": case(rng.randn(6, 2), 2, upstream=[rng.randn(6, 2)]),
    }


def _same_outputs(seen, want, inputs):
    """q, k and v by both layouts, from the matrix and the answer's."""
    w, n_heads = inputs["a matrix"]["args"]
    x = np.linspace(-1, 1, w.shape[1])
    old = (w @ x).reshape(n_heads, 3, -1)
    new = (seen["a matrix"]["out"].data @ x).reshape(3, n_heads, -1)
    for index, name in enumerate(("queries", "keys", "values")):
        error = np.abs(old[:, index] - new[index]).max()
        if not error < 1e-10:
            return Failure(
                f"the heads' {name} differ by up to {error:.3g} "
                "between the two layouts",
                "a matrix",
            )
    return None


qkv_per_head_to_cat = Exercise(
    "qkv_per_head_to_cat",
    layout_inputs,
    of_calls(
        law(
            "the same queries, keys and values",
            _same_outputs,
            because=(
                "6 products a sum in float64; what a layout is for, implied "
                "by the values"
            ),
            needs=("shape and dtype",),
            says=(
                "Read in the new layout, the new rows must give each head "
                "what the old rows gave it in the old layout."
            ),
        ),
        values(
            "matrices",
            "a small matrix",
            "a matrix",
            "two heads",
            "many heads",
            "one head",
            "a head a column",
            "a view",
            "width 1",
            points=2.5,
            gate=True,
            says=(
                "Only rows move, whole: first all heads' q rows in order of "
                "heads, then all k rows, then all v rows."
            ),
        ),
        values(
            "bias vectors",
            "a bias, two heads",
            "its bias",
            points=1.5,
            says=(
                "A bias (3D,) has the rows' order and no second axis: "
                "reorder its first axis in the same way."
            ),
        ),
        values(
            "any dtype",
            "float16",
            "whole numbers",
            because="weights are float32 in practice, or quantised",
            says=("Only places change here: the dtype and the numbers stay."),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            says=("Gradients flow through unchanged: stay inside autograd."),
        ),
    ),
)


# 2.5


def _separate(rng, d_model, kv_dim=None, kv_width=None, scale=0.7):
    kv_dim, kv_width = kv_dim or d_model, kv_width or d_model
    return draw(
        rng,
        {
            "q_proj.weight": (d_model, d_model),
            "q_proj.bias": (d_model,),
            "k_proj.weight": (kv_width, kv_dim),
            "k_proj.bias": (kv_width,),
            "v_proj.weight": (kv_width, kv_dim),
            "v_proj.bias": (kv_width,),
            "out_proj.weight": (d_model, d_model),
            "out_proj.bias": (d_model,),
        },
        scale,
    )


def attention_inputs(rng):
    def one(d_model, n_heads, *args, weights=None, kv_dim=None, **kwargs):
        build = ((d_model, n_heads), {"kv_dim": kv_dim} if kv_dim else {})
        return module_case(
            build, weights or _separate(rng, d_model, kv_dim), *args, **kwargs
        )

    q, kv = rng.randn(2, 5, 12), rng.randn(2, 7, 11)
    weights = _separate(rng, 12, 11)
    x, own = rng.randn(2, 5, 6), _separate(rng, 6)
    wide, width = rng.randn(3, 3, 9), _separate(rng, 9)
    small, ways = rng.randn(2, 3, 4), _separate(rng, 4)
    memory, many = rng.randn(2, 7, 4), rng.randn(2, 5, 4)
    keep = np.array([[True] * 7, [True] * 4 + [False] * 3])
    inner = np.array(
        [
            [True, False, True, True, True, False, True],
            [False, True, True, False, True, True, True],
        ]
    )
    short = np.array([[True] * 5, [True, True, True, False, False]])
    left = np.array([[True] * 5, [False, False, True, True, True]])
    empty = np.array([[True] * 7, [False] * 7])
    three = np.array([[True, True, False], [True] * 3, [True, False, False]])
    poison = np.where(keep[..., None], kv, 1e6)
    peaked = {
        name: value * 15 if name == "q_proj.weight" else value
        for name, value in weights.items()
    }
    # Every visible score lies below -1e20.
    steep = own | {
        "q_proj.weight": 1e15 * np.eye(6),
        "k_proj.weight": -1e15 * np.eye(6),
        "q_proj.bias": np.zeros(6),
        "k_proj.bias": np.zeros(6),
    }
    above = np.abs(rng.randn(2, 5, 6)) + 0.1
    up, up_many = rng.randn(2, 3, 4), rng.randn(2, 5, 4)
    return {
        "itself": one(2, 2, rng.randn(1, 2, 2).round(1)),
        "another sequence": one(
            2, 2, rng.randn(1, 1, 2).round(1), rng.randn(1, 2, 2).round(1)
        ),
        "another width": one(12, 3, q, kv, weights=weights, kv_dim=11),
        "the same sizes": one(
            4, 2, rng.randn(2, 2, 4), rng.randn(2, 2, 4), kv_dim=4
        ),
        "all sizes equal": one(9, 3, wide, weights=width),
        "different sizes, itself": one(6, 3, x, weights=own),
        "views": one(
            12, 3, transposed(q), transposed(kv), weights=weights, kv_dim=11
        ),
        "large scores": one(12, 3, q, kv, weights=peaked, kv_dim=11),
        "padding": one(
            12, 3, q, kv, weights=weights, kv_dim=11, key_padding_mask=keep
        ),
        "hidden keys in between": one(
            12, 3, q, kv, weights=weights, kv_dim=11, key_padding_mask=inner
        ),
        "padding with huge content": one(
            12, 3, q, poison, weights=weights, kv_dim=11, key_padding_mask=keep
        ),
        "padding, very low scores": one(
            6, 3, above, weights=steep, key_padding_mask=short
        ),
        "padding, itself": one(6, 3, x, weights=own, key_padding_mask=short),
        "padding, as many examples as heads": one(
            9, 3, wide, weights=width, key_padding_mask=three
        ),
        "all kept": one(
            6, 3, x, weights=own, key_padding_mask=np.ones((2, 5), bool)
        ),
        "causal": one(6, 3, x, weights=own, is_causal=True),
        "causal, very low scores": one(
            6, 3, above, weights=steep, is_causal=True
        ),
        "causal, a long past": one(
            2, 1, rng.randn(1, 2, 2), rng.randn(1, 1050, 2), is_causal=True
        ),
        "causal, one new query": one(
            4, 2, small[:, :1], memory, weights=ways, is_causal=True
        ),
        "causal, three new queries": one(
            4, 2, small, memory, weights=ways, is_causal=True
        ),
        "causal and padding": one(
            4,
            2,
            small,
            memory,
            weights=ways,
            is_causal=True,
            key_padding_mask=keep,
        ),
        "nothing kept": one(
            4, 2, small, memory, weights=ways, key_padding_mask=empty
        ),
        "nothing kept of the only example": one(
            4,
            2,
            small[1:],
            memory[1:],
            weights=ways,
            key_padding_mask=empty[1:],
        ),
        "causal, more queries than keys": one(
            4, 2, many, small, weights=ways, is_causal=True
        ),
        "causal, padded on the left": one(
            6, 3, x, weights=own, is_causal=True, key_padding_mask=left
        ),
        "gradient, itself": one(
            4, 2, small, weights=ways, upstream=[up], is_causal=True
        ),
        "gradient past nothing kept": one(
            4,
            2,
            small,
            memory,
            weights=ways,
            upstream=[up],
            key_padding_mask=empty & inner,
        ),
        "gradient, hidden by both": one(
            4,
            2,
            many,
            small,
            weights=ways,
            upstream=[up_many],
            is_causal=True,
            key_padding_mask=left[:, 1:4],
        ),
        "in turn": one(
            4, 2, small, memory, weights=ways, key_padding_mask=keep
        ),
        "in train mode": one(
            4,
            2,
            small,
            memory,
            weights=ways,
            mode="train",
            key_padding_mask=keep,
            is_causal=True,
        ),
        "moved": one(
            4,
            2,
            small,
            memory,
            weights=ways,
            key_padding_mask=keep,
            is_causal=True,
        ),
        "float32": one(
            6,
            3,
            x.astype("float32"),
            weights=own,
            dtype=None,
            key_padding_mask=short,
            is_causal=True,
        ),
        "10 columns, 3 heads": one(10, 3, rng.randn(1, 2, 10)),
    }


def _with_and_without(module, one):
    """What a module gives that is called in several ways in turn."""
    q, memory = (to_tensor(value, one) for value in one["args"])
    mask = to_tensor(one["kwargs"]["key_padding_mask"], one)
    return [
        module(q, memory, key_padding_mask=mask, is_causal=True),
        module(q),
        module(q, memory),
    ]


MultiHeadAttention = Exercise(
    "MultiHeadAttention",
    attention_inputs,
    of_modules(
        values(
            "values",
            "itself",
            "another sequence",
            "another width",
            "the same sizes",
            "all sizes equal",
            "different sizes, itself",
            "views",
            "large scores",
            points=2,
            gate=True,
            says=(
                "Queries come from q, keys and values from kv (from q "
                "where kv is None); heads, scale 1/√Dh and out_proj are "
                "as in task 2.2."
            ),
        ),
        values(
            "padding",
            "padding",
            "hidden keys in between",
            "padding with huge content",
            "padding, very low scores",
            "padding, itself",
            "padding, as many examples as heads",
            "all kept",
            points=1,
            because="a part of the contract by itself",
            says=(
                "key_padding_mask (B, Tk) is True at keys that may be "
                "looked at, for every head and query of that example: "
                "give it axes (B, 1, 1, Tk) and hide the rest with −inf "
                "before the softmax."
            ),
        ),
        values(
            "is_causal",
            "causal",
            "causal, very low scores",
            "causal, one new query",
            "causal, three new queries",
            "causal, a long past",
            "causal and padding",
            points=0.75,
            because="a part of the contract by itself",
            says=(
                "With is_causal the last query stands at the last key "
                "and sees all keys, the query before it one fewer; a "
                "padding mask that is given applies as well."
            ),
        ),
        values(
            "queries that see nothing",
            "nothing kept",
            "nothing kept of the only example",
            "causal, more queries than keys",
            "causal, padded on the left",
            points=0.5,
            because="a convention of the course, shown by itself",
            says=(
                "A query that sees no key gets zeros before out_proj, so "
                "its output is out_proj's bias."
            ),
        ),
        values(
            "gradients",
            "gradient, itself",
            "gradient past nothing kept",
            "gradient, hidden by both",
            part="grads",
            points=0.5,
            needs=("padding", "is_causal"),
            says=(
                "Gradients flow to the arguments and to every parameter "
                "and stay finite where nothing is kept: keep NaN from "
                "arising, rather than replacing it later."
            ),
        ),
        forgets("in turn"),
        does_the_same_in_train_mode(),
        saves_parameters_only(),
        follows_device("moved"),
        refuses_to_build(
            "a width that does not divide",
            "10 columns, 3 heads",
            points=0.25,
            mentions=("10", "3"),
            says=(
                "When n_heads does not divide d_model, raise a "
                "ValueError that names both numbers, on construction."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-5,
            because=SINGLE,
            says=(
                "A module is float32 as it is built, and so are its results: "
                "what you store or create beside the parameters takes their "
                "dtype."
            ),
        ),
    ),
    probe=functools.partial(
        call_modules,
        scripts={
            "in turn": _with_and_without,
            "moved": called_and_moved,
            "10 columns, 3 heads": built,
        },
    ),
    forbids=LIBRARY,
    kind="class",
)


# 2.6


def grouped_inputs(rng):
    def one(d_model, n_heads, n_kv_heads, x, weights=None, **kwargs):
        width = d_model // n_heads * n_kv_heads
        weights = weights or _separate(rng, d_model, kv_width=width)
        return module_case(
            ((d_model, n_heads, n_kv_heads), {}), weights, x, **kwargs
        )

    x, weights = rng.randn(2, 5, 12), _separate(rng, 12, kv_width=6)
    first, small = rng.randn(2, 3, 4), _separate(rng, 4, kv_width=2)
    peaked = {
        name: value * 15 if name == "q_proj.weight" else value
        for name, value in weights.items()
    }
    # Every score lies below -1e20.
    steep = weights | {
        "q_proj.weight": 1e15 * np.eye(12),
        "k_proj.weight": -1e15 * np.abs(rng.randn(6, 12)),
        "q_proj.bias": np.zeros(12),
        "k_proj.bias": np.zeros(6),
    }
    above = np.abs(rng.randn(2, 5, 12)) + 0.1
    up = rng.randn(2, 3, 4)
    later = x.copy()
    later[:, -1] += 1.0
    return {
        "two heads, one for keys": one(2, 2, 1, rng.randn(1, 2, 2).round(1)),
        "four heads in two groups": one(4, 4, 2, rng.randn(1, 2, 4)),
        "six heads in three groups": one(12, 6, 3, x, weights),
        "six heads in two groups": one(18, 6, 2, rng.randn(2, 5, 18)),
        "all sizes equal": one(8, 4, 2, rng.randn(2, 2, 8)),
        "multi-head": one(6, 3, 3, rng.randn(2, 5, 6)),
        "multi-query": one(6, 3, 1, rng.randn(2, 5, 6)),
        "a view": one(12, 6, 3, transposed(x), weights),
        "large scores": one(12, 6, 3, x, peaked),
        "causal": one(12, 6, 3, x, weights, is_causal=True),
        "causal, last token changed": one(
            12, 6, 3, later, weights, is_causal=True
        ),
        "causal, large scores": one(12, 6, 3, x, peaked, is_causal=True),
        "causal, very low scores": one(12, 6, 3, above, steep, is_causal=True),
        "two positions": one(4, 4, 2, rng.randn(2, 2, 4), is_causal=True),
        "one position": one(4, 4, 2, rng.randn(2, 1, 4), is_causal=True),
        "gradient": one(4, 4, 2, first, small, is_causal=True, upstream=[up]),
        "in turn": one(4, 4, 2, first, small),
        "in train mode": one(
            4, 4, 2, first, small, mode="train", is_causal=True
        ),
        "moved": one(4, 4, 2, first, small, is_causal=True),
        "float32": one(
            4,
            4,
            2,
            first.astype("float32"),
            small,
            dtype=None,
            is_causal=True,
        ),
        "10 columns, 4 heads": one(10, 4, 2, rng.randn(1, 2, 10)),
        "6 heads, 4 for keys": one(12, 6, 4, rng.randn(1, 2, 12)),
    }


def _both_masks(module, one):
    """What a module gives that is called in several ways in turn."""
    x = to_tensor(one["args"][0], one)
    return [
        module(x, is_causal=True),
        module(x),
        module(x[:, :2], is_causal=True),
    ]


GroupedQueryAttention = Exercise(
    "GroupedQueryAttention",
    grouped_inputs,
    of_modules(
        values(
            "multi-head and multi-query",
            "two heads, one for keys",
            "multi-head",
            "multi-query",
            points=1,
            gate=True,
            says=(
                "With as many key heads as query heads this is "
                "multi-head attention; with one, all query heads share "
                "it."
            ),
        ),
        values(
            "groups",
            "four heads in two groups",
            "six heads in three groups",
            "six heads in two groups",
            "all sizes equal",
            "a view",
            "large scores",
            points=1.5,
            because="the point of the exercise, read by itself",
            says=(
                "Consecutive query heads share a key and value head: "
                "query head h uses number h // (n_heads / n_kv_heads)."
            ),
        ),
        values(
            "is_causal",
            "causal",
            "causal, last token changed",
            "causal, large scores",
            "causal, very low scores",
            "two positions",
            "one position",
            points=0.5,
            says=(
                "With is_causal a position sees itself and what comes "
                "before it; without, everything."
            ),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            points=0.5,
            needs=("groups", "is_causal"),
            says=(
                "Gradients flow to x and to every parameter; a shared head "
                "collects those of its whole group."
            ),
        ),
        forgets("in turn"),
        does_the_same_in_train_mode(),
        saves_parameters_only(),
        follows_device("moved"),
        refuses_to_build(
            "a width that does not divide",
            "10 columns, 4 heads",
            points=0.25,
            mentions=("10", "4"),
            says=(
                "When n_heads does not divide d_model, raise a "
                "ValueError that names both numbers, on construction."
            ),
        ),
        refuses_to_build(
            "heads that do not divide",
            "6 heads, 4 for keys",
            points=0.25,
            mentions=("6", "4"),
            says=(
                "When n_kv_heads does not divide n_heads, raise a "
                "ValueError that names both numbers, on construction."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-5,
            because=SINGLE,
            needs=("groups",),
            says=(
                "A module is float32 as it is built, and so are its results: "
                "what you store or create beside the parameters takes their "
                "dtype."
            ),
        ),
    ),
    probe=functools.partial(
        call_modules,
        scripts={
            "in turn": _both_masks,
            "moved": called_and_moved,
            "10 columns, 4 heads": built,
            "6 heads, 4 for keys": built,
        },
    ),
    kind="class",
)


def pool_inputs(rng):
    W = rng.randn(12, 5)
    return {
        "two heads of width 1": case(rng.randn(2, 2).round(2), 2, 1),
        "four heads of width 1": case(rng.randn(4, 2).round(2), 4, 2),
        "a matrix": case(W, 6, 3),
        "larger groups": case(W, 6, 2),
        "as many heads as groups": case(rng.randn(8, 8), 4, 2),
        "one group": case(W, 4, 1),
        "groups of one": case(W, 3, 3),
        "a bias": case(rng.randn(12), 6, 3),
        "a view": case(W, 6, 3, strided=True),
        "float32": case(W.astype("float32"), 6, 3),
        "bfloat16": case(W, 6, 3, dtype="bfloat16"),
        "gradient": case(W, 6, 3, upstream=[rng.randn(6, 5)]),
    }


pool_kv_heads = Exercise(
    "pool_kv_heads",
    pool_inputs,
    of_calls(
        values(
            "matrices",
            "two heads of width 1",
            "four heads of width 1",
            "a matrix",
            "larger groups",
            "as many heads as groups",
            "one group",
            "groups of one",
            "a view",
            points=0.75,
            gate=True,
            says=(
                "Row r of a new head is the mean of row r of the heads in "
                "its group, and a group is a run of consecutive heads."
            ),
        ),
        values(
            "bias vectors",
            "a bias",
            points=0.25,
            says=(
                "A bias (D,) is pooled along the same axis and has no other."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-6,
            because="6e-8 an operation",
            says="float32 weights give float32 weights.",
        ),
        values(
            "half precision",
            "bfloat16",
            tol=1.6e-2,
            because="8 bits, rounded twice: a sum and a quotient",
            says="Half-precision weights stay in their own dtype.",
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            says=("Gradients flow to w, a share to each head of a group."),
        ),
    ),
)


# 2.7


def _latent_shapes(d_model, n_heads, d_latent, d_rope):
    return {
        "q_proj.weight": (d_model, d_model),
        "q_rope_proj.weight": (n_heads * d_rope, d_model),
        "kv_down.weight": (d_latent, d_model),
        "k_rope_proj.weight": (d_rope, d_model),
        "k_up.weight": (d_model, d_latent),
        "v_up.weight": (d_model, d_latent),
        "out_proj.weight": (d_model, d_model),
    }


def latent_inputs(rng):
    def one(sizes, x, weights=None, scale=0.7, **kwargs):
        weights = weights or draw(rng, _latent_shapes(*sizes), scale)
        return module_case((sizes, {}), weights, x, **kwargs)

    sizes, small = (6, 3, 5, 4), (4, 2, 3, 2)
    weights = draw(rng, _latent_shapes(*sizes), 0.7)
    x, few = rng.randn(2, 7, 6), rng.randn(2, 3, 4)
    little = draw(rng, _latent_shapes(*small), 0.7)
    later = x.copy()
    later[:, -1] += 1.0
    equal = (4, 2, 2, 2)
    even = draw(rng, _latent_shapes(*equal), 0.7)
    two = rng.randn(2, 2, 4)
    up = rng.randn(2, 3, 4)
    long = rng.randn(1, 13, 4)
    # Every score lies below -1e20.
    steep = weights | {
        "q_proj.weight": 1e15 * np.abs(weights["q_proj.weight"]),
        "kv_down.weight": np.abs(weights["kv_down.weight"]),
        "k_up.weight": -1e15 * np.abs(weights["k_up.weight"]),
    }
    above = np.abs(rng.randn(2, 7, 6)) + 0.1
    return {
        "one position": one((2, 1, 1, 2), rng.randn(1, 1, 2).round(1)),
        "two positions": one((2, 1, 1, 2), rng.randn(1, 2, 2).round(1)),
        "different sizes": one(sizes, x, weights),
        "last token changed": one(sizes, later, weights),
        "all sizes equal": one(equal, two, even),
        "thirteen positions": one(small, long, little),
        "wide latent": one((4, 2, 7, 6), rng.randn(2, 5, 4)),
        "a view": one(sizes, transposed(x), weights),
        "very low scores": one(sizes, above, steep),
        "absorbed, two positions": one(
            (2, 1, 1, 2), rng.randn(1, 2, 2).round(1), absorb=True
        ),
        "absorbed": one(sizes, x, weights, absorb=True),
        "absorbed, all sizes equal": one(equal, two, even, absorb=True),
        "absorbed, very low scores": one(sizes, above, steep, absorb=True),
        # Latents narrower than heads: where einsum looks for the cheapest
        # order (it does if opt_einsum is installed), it forms none. A loop
        # over examples or runs of tokens forms all at once here.
        "keys and values formed": one((8, 2, 3, 2), rng.randn(1, 2, 8)),
        "cache, two positions": one(
            (2, 1, 1, 2), rng.randn(1, 2, 2).round(1), method="cache"
        ),
        "cache": one(sizes, x, weights, method="cache"),
        "cache, all sizes equal": one(
            equal,
            two,
            even,
            method="cache",
            upstream=[rng.randn(2, 2, 4)],
        ),
        "gradient": one(small, few, little, upstream=[up]),
        "gradient, absorbed": one(
            small, few, little, upstream=[up], absorb=True
        ),
        "in turn": one(small, few, little),
        "in train mode": one(small, few, little, mode="train"),
        "moved": one(small, few, little),
        "float32": one(sizes, x.astype("float32"), weights, dtype=None),
        "float32, absorbed": one(
            sizes, x.astype("float32"), weights, dtype=None, absorb=True
        ),
        "10 columns, 3 heads": one((10, 3, 2, 2), rng.randn(1, 2, 10)),
    }


class _Finds(TorchDispatchMode):
    """Notes of which kinds of lists a kernel makes one, or a multiple.

    lists: {kind: tensors}
    """

    def __init__(self, lists):
        super().__init__()
        self.found, found = set(), {}
        for kind, tensors in lists.items():
            for each in tensors:
                found.setdefault(each.numel(), []).append((kind, each))
        self.places = {
            size: (
                [kind for kind, _ in named],
                torch.stack([_ordered(each) for _, each in named]),
                torch.stack([each.detach().norm() for _, each in named]),
            )
            for size, named in found.items()
        }

    @classmethod
    def _should_skip_dynamo(cls):
        # Skipping would import the compiler, for more than a second.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() in self.places:
            self._compare(out)
        return out

    def _compare(self, out):
        kinds, units, norms = self.places[out.numel()]
        if out.dtype != units.dtype:
            return
        near = torch.isclose(units, _ordered(out)).all(-1)
        if near.any():
            same = near & torch.isclose(norms, out.norm())
            exact = {kinds[row] for row in same.nonzero().flatten().tolist()}
            rows = near.nonzero().flatten().tolist()
            self.found |= exact | {
                f"{kind}, times a factor"
                for kind in {kinds[row] for row in rows} - exact
            }


def _ordered(numbers):
    """Sorted and of length 1, so that places and a factor do not matter."""
    numbers = numbers.detach().flatten()
    return numbers.sort()[0] / numbers.norm()


def _formed(module, one):
    """Which keys and values absorb=True makes, in each mode."""
    x = to_tensor(one["args"][0], one)
    latent = x @ module.kv_down.weight.T
    heads = one["build"][0][1]
    lists = {}
    # Joined with the matrix beside it, an up-projection forms as much.
    for kind, up, name, beside in (
        ("key", module.k_up, "q_proj", module.q_proj.weight),
        ("value", module.v_up, "out_proj", module.out_proj.weight.T),
    ):
        whole = latent @ up.weight.T
        parts = whole.chunk(heads, dim=-1)
        # The average of the first token's values is its own value.
        first = 0 if kind == "key" else 1
        lists[f"{kind}s of all tokens"] = [whole, *parts]
        lists[f"the {kind} of a token"] = [
            token
            for part in (whole, *parts)
            for token in part.unbind(1)[first:]
        ]
        wide = [
            part @ block
            for part, block in zip(parts, beside.chunk(heads), strict=True)
        ]
        lists[f"{kind}s of all tokens through {name}"] = [
            torch.stack(wide),
            *wide,
        ]
    formed = {}
    for mode in ("train", "eval"):
        module.train(mode == "train")
        with _Finds(lists) as finds:
            module(x, absorb=True)
        formed[mode] = ", ".join(sorted(finds.found))
    return formed


def _in_turn(module, one):
    """What a module gives that is called in several ways in turn."""
    x = to_tensor(one["args"][0], one)
    first = module(x, absorb=True)
    # As after a step of training.
    module.k_up.weight.data.mul_(2)
    module.v_up.weight.data.neg_()
    return [first, module(2 * x, absorb=True), module.cache(x), module(x)]


def _both_ways(module, one):
    x = to_tensor(one["args"][0], one)
    return [module(x), module(x, absorb=True)]


def _absorbs(seen, want, inputs):
    for mode, formed in seen["keys and values formed"]["out"].items():
        if formed:
            return Failure(
                f"with absorb=True, in {mode} mode, this is formed from the "
                f"latents: {formed}",
                "absorbed",
            )
    return None


LatentAttention = Exercise(
    "LatentAttention",
    latent_inputs,
    of_modules(
        values(
            "explicit",
            "one position",
            "two positions",
            "different sizes",
            "last token changed",
            "all sizes equal",
            "thirteen positions",
            "wide latent",
            "a view",
            "very low scores",
            points=3,
            gate=True,
            says=(
                "A score is q·k plus the rotated q_rope·k_rope, times 1/√(Dh "
                "+ d_rope), causal; keys and values of all heads come from "
                "the latent, the rotary key is shared by all heads and "
                "rotated by its position."
            ),
        ),
        values(
            "cache",
            "cache, two positions",
            "cache",
            "cache, all sizes equal",
            points=1.5,
            because="what is stored, read by itself",
            says=(
                "What has to be stored for a token is its latent, followed "
                "by its rotary key, already rotated: (B, T, d_latent + "
                "d_rope)."
            ),
        ),
        values(
            "absorbed",
            "absorbed, two positions",
            "absorbed",
            "absorbed, all sizes equal",
            "absorbed, very low scores",
            points=1.5,
            because="the second way of computing, read by itself",
            says=(
                "q·(K c) is (Kᵀ q)·c: carry each head's query into the latent "
                "space with its own block of rows of k_up, and form its "
                "output from an average of latents with its block of v_up. "
                "The numbers are those of absorb=False."
            ),
        ),
        law(
            "no keys and values when absorbed",
            _absorbs,
            points=0.5,
            says=(
                "With absorb=True the latents stay as they are: k_up acts on "
                "the queries and v_up on averages of latents, which is what "
                "saves the memory."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, absorbed",
            "cache, all sizes equal",
            part="grads",
            points=1,
            needs=("absorbed",),
            says=(
                "Gradients flow to x and all seven matrices, by both ways of "
                "computing, and from what cache returns to what made it."
            ),
        ),
        forgets("in turn"),
        does_the_same_in_train_mode(),
        saves_parameters_only(),
        follows_device("moved"),
        refuses_to_build(
            "a width that does not divide",
            "10 columns, 3 heads",
            points=0.5,
            mentions=("10", "3"),
            says=(
                "When n_heads does not divide d_model, raise a ValueError "
                "that names both numbers, on construction."
            ),
        ),
        values(
            "float32",
            "float32",
            "float32, absorbed",
            tol=2e-5,
            because=SINGLE,
            needs=("absorbed",),
            says=(
                "A module is float32 as it is built, and so are its results: "
                "what you store or create beside the parameters takes their "
                "dtype."
            ),
        ),
    ),
    probe=functools.partial(
        call_modules,
        scripts={
            "keys and values formed": _formed,
            "in turn": _in_turn,
            "in train mode": _both_ways,
            "moved": called_and_moved,
            "10 columns, 3 heads": built,
        },
    ),
    kind="class",
)


# 2.8


def _pinned(rng):
    """Weights of which three cannot move: only they have their number.

    What is left to move is 0.72, of which a corner keeps two shares, so half
    the way to a corner is too short. One of the three is small, but counts.
    """
    w = np.append([0.14, 0.14, 1e-4], rng.uniform(1, 1.2, size=9))
    w[3:] *= (1 - w[:3].sum()) / w[3:].sum()
    v = np.zeros((12, 4))
    v[:3, :3] = np.diag(rng.uniform(1, 2, size=3))
    v[3:, 3] = rng.randn(9)
    return case(w, v)


def weights_inputs(rng):
    def one(n, d, scale=1.0, offset=0.0, faint=0):
        # At most 2/n, or 4/n beside faint ones, so the d + 1 largest sum to
        # less than 0.6.
        w = rng.uniform(1, 2, size=n)
        w[:faint] *= 1e-3
        return case(w / w.sum(), rng.randn(n, d) * scale + offset)

    flat = one(15, 3)
    flat["args"][1][:, 2] = flat["args"][1][:, 0]
    return {
        "one number a value": one(12, 1),
        "equal weights": case(np.full(12, 1 / 12), rng.randn(12, 1).round(1)),
        "two numbers a value": one(12, 2),
        "four numbers a value": _pinned(rng),
        "more values": one(int(rng.randint(17, 24)), 5),
        # A step that ends where a faint weight reaches 0 leads nowhere.
        "many values": one(60, 2, faint=30),
        "large values": one(13, 3, 100.0),
        "values far from 0": one(14, 2, 1.0, 50.0),
        "a number twice in every value": flat,
    }


def _distribution(seen, want, inputs):
    for name in inputs:
        w = seen[name]["out"].data
        if not np.isfinite(w).all():
            return Failure("there are numbers that are not finite", name)
        if w.min() < -1e-12:
            return Failure(f"the smallest weight is {w.min():.3g}", name)
        if abs(w.sum() - 1) > 1e-9:
            return Failure(f"the weights sum to {w.sum():.10g}", name)
    return None


def _error(one, out):
    w, v = one["args"]
    return np.abs((out.data - w) @ v).max() / max(1, np.abs(v).max())


def _distance(one, out):
    return np.abs(out.data - one["args"][0]).sum() / 2


def _same_output(seen, want, inputs):
    for name, one in inputs.items():
        error = _error(one, seen[name]["out"])
        if not error < 1e-9:
            return Failure(
                f"the output is off by {error:.3g} (relative to "
                "the largest value)",
                name,
            )
    return None


def _distant(bound, seen, want, inputs):
    for name, one in inputs.items():
        distance = _distance(one, seen[name]["out"])
        if not distance > bound:
            return Failure(
                "the total variation distance from w is "
                f"{distance:.3g}, which is not above {bound}",
                name,
            )
    return None


def probe_weights(answer, inputs):
    """The calls, with w and v beside each result for the features."""
    seen = call_numpy(answer, inputs)
    for name, part in seen.items():
        part["given"] = inputs[name]["args"]
        if "again" in part:  # any answer will do, another one at each call
            part["again"] = part["out"]
    return seen


def _weights_features(seen):
    """Which conditions hold: the numbers of right answers differ freely."""
    found = []
    for part in seen.values():
        one, out = {"args": bare(part["given"])}, part["out"]
        w, v = one["args"]
        zeros = np.count_nonzero(out.data < 1e-12)
        found += [
            float(out.data.min() < -1e-12),
            float(abs(out.data.sum() - 1) > 1e-9),
            float(_error(one, out) > 1e-9),
            float(_error(one, out) > 1e-4),
            float(zeros == 0),
            float(zeros == 1),
            float(zeros == len(w) - 1),
            float(zeros >= len(w) - v.shape[1] - 1),
            float(_distance(one, out) > 0.3),
            float(_distance(one, out) > 0.01),
            float(np.ptp(out.data) < 1e-12),
            float(np.allclose(np.sort(w), np.sort(out.data))),
            float(bool(part.get("changed"))),
        ]
    return found


alternative_weights = Exercise(
    "alternative_weights",
    weights_inputs,
    of_calls(
        law(
            "a distribution",
            _distribution,
            gate=True,
            needs=("shape and dtype",),
            because=("1e-12 below 0 and 1e-9 in the sum are rounding"),
            says=(
                "Weights are at least 0 and sum to 1: stop a step where the "
                "first weight reaches 0, and step in directions whose "
                "entries sum to 0."
            ),
        ),
        law(
            "the same output",
            _same_output,
            gate=True,
            because=(
                "1e-9 of the largest value leaves room for a linear solver"
            ),
            says=(
                "The step from w to your weights must be orthogonal to every "
                "column of v: a vector of the null space of vᵀ."
            ),
        ),
        law(
            "another distribution",
            functools.partial(_distant, 0.01),
            points=1.5,
            gate=True,
            because="far above rounding",
            says=(
                "There are n weights and only d + 1 equations: find a "
                "direction in which the weights can move and move along it."
            ),
        ),
        law(
            "far from the first",
            functools.partial(_distant, 0.3),
            points=2.5,
            because="the contract's 0.3; a corner is beyond 0.4 here",
            says=(
                "One step ends where a weight reaches 0. Go on from there "
                "with the weights that are left, until no direction is left: "
                "at most d + 1 weights remain, and they are far from w."
            ),
        ),
    ),
    probe=probe_weights,
    features=_weights_features,
)
