"""Lesson 4: what right answers on the transformer block must satisfy."""

import math

import numpy as np
import torch
from torch import nn

from autograder.exercise import (
    AUTOGRAD,
    Exercise,
    Failure,
    law,
    of_calls,
    refuses,
    trouble,
    values,
)
from autograder.modules import (
    block_shapes,
    call_modules,
    draw,
    follows_device,
    layer_shapes,
    module_case,
    moved,
    of_modules,
)
from autograder.observations import (
    Array,
    Raised,
    describe,
    form_difference,
    number,
    plain,
    raised,
    value_difference,
)
from autograder.probing import case

NORMS = (
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "_fused_rms_norm",
    "group_norm",
    "native_group_norm",
    "batch_norm",
    "native_batch_norm",
    "instance_norm",
)
BRAIN = "bfloat16 has 8 bits, so units eight times as wide as float16's"
HALF = "float16 has 11 bits: one unit in the last place below 4 is 2e-3"
SINGLE = "6e-8 an operation, over sums of some tens of terms"


# 4.1


def norm_cases(rng, *biases):
    """Cases that both norms share: plain ones, and rows of unusual size."""

    def built(d, *args, **kwargs):
        shapes = {name: (d,) for name in ("weight", *biases)}
        weights = draw(rng, shapes)
        return lambda x, **how: module_case(
            ((d, *args), kwargs), weights, x, **how
        )

    three, five, seven = built(3), built(5), built(7)
    middle = rng.randn(2, 3, 5)
    tiny = rng.randn(3, 7) * 1e-3
    spiky = rng.randn(2, 5)
    spiky[:, 1] = 1e3
    return {
        "one row": three(rng.randn(1, 3).round(2)),
        "one vector": five(rng.randn(5)),
        "three axes": five(middle),
        "a square": three(rng.randn(3, 3)),
        "four axes of equal size": three(rng.randn(3, 3, 3, 3)),
        "a view": five(middle, strided=True),
        "axes exchanged": five(rng.randn(3, 2, 5).transpose(1, 0, 2)),
        "rows of different size": seven(
            rng.randn(3, 7) * np.array([[1.0], [100.0], [0.01]]) + 1
        ),
        "all positive": seven(rng.rand(2, 7) + 5),
        "a spike": five(spiky),
        "tiny rows": seven(tiny),
        "very tiny rows": seven(tiny * 1e-3),
        "a row of zeros": five(np.zeros((1, 5))),
        "eps": built(5, 0.1)(middle),
        "eps by name": built(3, eps=0.5)(rng.randn(2, 3)),
        "initial": module_case(((4,), {}), None, rng.randn(2, 4).round(2)),
        "in train mode": five(middle, mode="train"),
        "gradient": five(middle, upstream=[rng.randn(2, 3, 5)]),
        "gradient, tiny rows": seven(tiny, upstream=[rng.randn(3, 7)]),
        "float32": five(middle.astype("float32"), dtype="float32"),
        "float16": five(middle, dtype="float16"),
        "float16, large": five(
            np.array([[1e4, -2e4, 3e4, 1.5e4, -4e4]]), dtype="float16"
        ),
    }


def layer_norm_inputs(rng):
    shared = norm_cases(rng, "bias")
    offset = 100 + 1e-3 * rng.randn(3, 7)
    weights = draw(rng, {"weight": (7,)})
    # float16 holds these numbers, but hardly any of their means; the same of
    # bfloat16, whose neighbours of 1000 are 4 apart.
    halves = 1000 + rng.randint(-3, 4, (8, 7)) / 2
    fours = 1000 + 4 * rng.randint(-3, 4, (8, 7)).astype(float)
    return {
        **shared,
        "an equal row": module_case(
            ((5,), {}),
            draw(rng, {"weight": (5,), "bias": (5,)}),
            np.full((2, 5), 3.25),
        ),
        "far from 0": module_case(
            ((7,), {}), draw(rng, {"weight": (7,), "bias": (7,)}), offset
        ),
        "float16, far from 0": module_case(
            ((7,), {}),
            draw(rng, {"weight": (7,), "bias": (7,)}),
            halves,
            dtype="float16",
        ),
        "bfloat16, far from 0": module_case(
            ((7,), {}),
            draw(rng, {"weight": (7,), "bias": (7,)}),
            fours,
            dtype="bfloat16",
        ),
        "without a bias": module_case(
            ((7,), {"bias": False}), weights, rng.randn(2, 7)
        ),
    }


PLAIN = (
    "one row",
    "one vector",
    "three axes",
    "a square",
    "four axes of equal size",
    "a view",
    "axes exchanged",
    "rows of different size",
    "all positive",
    "a spike",
)

LayerNorm = Exercise(
    "LayerNorm",
    layer_norm_inputs,
    of_modules(
        values(
            "normalised rows",
            *PLAIN,
            points=1,
            gate=True,
            says=(
                "Each vector along the last axis loses its mean and is "
                "divided by its own standard deviation (the mean of the "
                "squares, divided by d); then come the gain and the bias."
            ),
        ),
        values(
            "eps",
            "tiny rows",
            "very tiny rows",
            "a row of zeros",
            "an equal row",
            "far from 0",
            "eps",
            "eps by name",
            points=0.25,
            says=(
                "eps is added to the variance, inside the root. Take the "
                "variance from the deviations: mean(x²) − mean(x)² loses its "
                "digits where the rows lie far from 0."
            ),
        ),
        values(
            "bias=False",
            "without a bias",
            says=("With bias=False there is a gain but no bias."),
        ),
        values(
            "initial values",
            "initial",
            says=(
                "A new layer normalises and does nothing else: the gain "
                "starts at 1 and the bias at 0."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, tiny rows",
            part="grads",
            points=0.5,
            says=(
                "The mean and the variance depend on x too, so gradients "
                "flow through them: nothing is detached."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-6,
            because=SINGLE,
            says=("float32 inputs give float32 outputs."),
        ),
        values(
            "half precision",
            "float16",
            "float16, large",
            "float16, far from 0",
            points=0.25,
            tol=4e-3,
            because=HALF,
            says=(
                "Half-precision inputs are computed in float32: the square "
                "of 1e4 does not fit into float16. The result is returned in "
                "the input's dtype."
            ),
        ),
        values(
            "bfloat16",
            "bfloat16, far from 0",
            tol=3.2e-2,
            because=BRAIN,
            says=(
                "bfloat16 is half precision, too: near 1,000 its numbers are "
                "4 apart, so a mean that is taken in it is lost. Compute in "
                "float32."
            ),
        ),
        values(
            "train mode",
            "in train mode",
            says=(
                "A layer norm does the same in train mode as in eval mode: "
                "it keeps no statistics of a batch, and nothing is random."
            ),
        ),
        twins=False,
    ),
    kind="class",
    probe=call_modules,
    forbids=NORMS,
)


RMSNorm = Exercise(
    "RMSNorm",
    norm_cases,
    of_modules(
        values(
            "normalised rows",
            *PLAIN,
            points=0.5,
            gate=True,
            says=(
                "Each vector along the last axis is divided by the root of "
                "the mean of its squares; no mean is subtracted, and there "
                "is no bias."
            ),
        ),
        values(
            "eps",
            "tiny rows",
            "very tiny rows",
            "a row of zeros",
            "eps",
            "eps by name",
            points=0.25,
            says=(
                "eps is added to the mean square, inside the root, and is "
                "1e-6 unless given."
            ),
        ),
        values(
            "initial values",
            "initial",
            says=(
                "A new layer normalises and does nothing else: the gain "
                "starts at 1."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, tiny rows",
            part="grads",
            points=0.25,
            says=(
                "The mean square depends on x too, so gradients flow through "
                "it: nothing is detached."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-6,
            because=SINGLE,
            says=("float32 inputs give float32 outputs."),
        ),
        values(
            "half precision",
            "float16",
            "float16, large",
            tol=4e-3,
            because=HALF,
            says=(
                "Half-precision inputs are computed in float32: the square "
                "of 1e4 does not fit into float16. The result is returned in "
                "the input's dtype."
            ),
        ),
        values(
            "train mode",
            "in train mode",
            says=("An RMS norm does the same in train mode as in eval mode."),
        ),
        twins=False,
    ),
    kind="class",
    probe=call_modules,
    forbids=NORMS,
)


# 4.2


def gelu_inputs(rng):
    x = rng.randn(3, 5) * 2
    ends = np.array([-1e4, -50.0, -8.0, -6.2, 8.0, 50.0, 1e4])
    tail = np.array([-3.0, -2.75, -2.5, -2.25, -2.0])
    return {
        "three numbers": case(
            np.array([-2.7, 0.5, 2.7]) + rng.uniform(-0.05, 0.05, 3).round(2)
        ),
        "exact": case(x),
        "exact by name": case(x, approximate="none"),
        "a number": case(np.array(1.5)),
        "a view": case(x, strided=True),
        "a transposed view": case(np.asfortranarray(x)),
        "tanh, three numbers": case(
            np.array([-2.7, 0.5, 2.7]), approximate="tanh"
        ),
        "tanh": case(x, "tanh"),
        "far out": case(ends),
        "far out, tanh": case(ends, approximate="tanh"),
        "gradient": case(x, upstream=[rng.randn(3, 5)]),
        "gradient, tanh": case(
            x, approximate="tanh", upstream=[rng.randn(3, 5)]
        ),
        "gradient, far out": case(ends, upstream=[rng.randn(7)]),
        "gradient, far out, tanh": case(
            ends, approximate="tanh", upstream=[rng.randn(7)]
        ),
        "unknown": case(x, approximate="sigmoid"),
        "another spelling": case(x, approximate="Tanh"),
        "None for a name": case(x, approximate=None),
        "float32": case(x.astype("float32")),
        "float16": case(x, dtype="float16"),
        "float16, tanh": case(
            np.append(x, [100.0, -100.0]), approximate="tanh", dtype="float16"
        ),
        "bfloat16": case(x, dtype="bfloat16"),
        "float16, tail": case(tail, dtype="float16"),
        "float16, tail, tanh": case(tail, approximate="tanh", dtype="float16"),
        "bfloat16, tail": case(tail, dtype="bfloat16"),
        "bfloat16, tail, tanh": case(
            tail, approximate="tanh", dtype="bfloat16"
        ),
    }


gelu = Exercise(
    "gelu",
    gelu_inputs,
    of_calls(
        values(
            "the exact form",
            "three numbers",
            "exact",
            "exact by name",
            "a number",
            "a view",
            "a transposed view",
            points=0.5,
            gate=True,
            says=(
                "Each number is multiplied by the share of a standard normal "
                "distribution that lies below it, and the error function "
                "gives that share."
            ),
        ),
        values(
            "the tanh form",
            "tanh, three numbers",
            "tanh",
            points=0.25,
            because="its gradients show it, too; these are the numbers",
            says=(
                'With approximate="tanh" the share is ½(1 + tanh(√(2/π)(x + '
                "0.044715 x³))), which differs from the exact one by up to "
                "5e-4."
            ),
        ),
        values(
            "far out",
            "far out",
            "far out, tanh",
            because="what overflows has NaN gradients, too",
            says=(
                "Far below 0 the result is 0, far above it is x, without "
                "overflow on the way."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, tanh",
            "gradient, far out",
            "gradient, far out, tanh",
            part="grads",
            says=("Gradients flow to x and are finite everywhere."),
        ),
        refuses(
            "another approximate",
            "unknown",
            "another spelling",
            "None for a name",
            points=0.25,
            says=(
                'Any approximate but the strings "none" and "tanh" is a '
                "mistake of the caller: raise a ValueError."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-6,
            because="6e-8 an operation",
            says="float32 inputs give float32 outputs.",
        ),
        values(
            "half precision",
            "float16",
            "float16, tanh",
            tol=4e-3,
            because=HALF,
            says=(
                "Half-precision inputs are computed in float32 (the cube of "
                "100 does not fit into float16) and returned in their own "
                "dtype."
            ),
        ),
        values(
            "half precision, small results",
            "float16, tail",
            "float16, tail, tanh",
            tol=1.1e-3,
            floor=1e-3,
            because="one unit in float16's last place is 1e-3 of a number",
            says=(
                "Where x is below 0, 1 plus the error function is a small "
                "difference: in float16 it has lost its digits before x "
                "multiplies it. Compute in float32 and round once."
            ),
        ),
        values(
            "bfloat16, small results",
            "bfloat16, tail",
            "bfloat16, tail, tanh",
            tol=8.5e-3,
            floor=1e-3,
            because="one unit in bfloat16's last place is 8e-3 of a number",
            says=(
                "bfloat16 is half precision, too: widen it to float32 as you "
                "do with float16."
            ),
        ),
    ),
    forbids=("gelu", "gelu_"),
)


def glu_shapes(d_model, d_ff):
    return {
        "gate_proj.weight": (d_ff, d_model),
        "up_proj.weight": (d_ff, d_model),
        "down_proj.weight": (d_model, d_ff),
    }


def swiglu_inputs(rng):
    def built(d_model, d_ff, /, *args, **kwargs):
        weights = draw(rng, glu_shapes(d_model, d_ff))
        return lambda x, **how: module_case(
            ((d_model, *args), kwargs), weights, x, **how
        )

    small, plain, square = built(2, 3, 3), built(5, 7, d_ff=7), built(3, 3, 3)
    x = rng.randn(2, 3, 5)
    width = int(rng.randint(20, 40))
    return {
        "one vector": small(rng.randn(1, 2).round(2)),
        "given width": plain(x),
        "equal widths": square(rng.randn(3, 3)),
        "a view": plain(x, strided=True),
        "axes exchanged": plain(rng.randn(3, 2, 5).transpose(1, 0, 2)),
        "large": plain(x * 30),
        # exp(709) is the largest that float64 holds.
        "very large": plain(x * 3e3),
        "in train mode": plain(x, mode="train"),
        "default width": built(5, 64)(x[0]),
        "default width, multiple of 4": built(6, 16, multiple_of=4)(
            rng.randn(2, 6)
        ),
        "already a multiple": built(3, 8, multiple_of=8)(rng.randn(2, 3)),
        "a multiple but for a fraction": built(7, 18, multiple_of=6)(
            rng.randn(2, 7)
        ),
        "gradient": plain(x, upstream=[rng.randn(2, 3, 5)]),
        "float32": plain(x.astype("float32"), dtype="float32"),
        "4096, multiple of 256": module_case(
            ((4096,), {"multiple_of": 256}), None, meta=True
        ),
        "768": module_case(((768,), {}), None, meta=True),
        "another width": module_case(
            ((width * 16 + 1, None, 32), {}), None, meta=True
        ),
    }


SwiGLU = Exercise(
    "SwiGLU",
    swiglu_inputs,
    of_modules(
        values(
            "a given width",
            "one vector",
            "given width",
            "equal widths",
            "a view",
            "axes exchanged",
            "large",
            points=1,
            gate=True,
            says=(
                "SiLU acts on the gate alone; the gate then multiplies the "
                "up projection entry by entry, and the down projection "
                "comes last, without an activation after it."
            ),
        ),
        values(
            "the default width",
            "default width",
            "default width, multiple of 4",
            "already a multiple",
            "a multiple but for a fraction",
            points=0.5,
            because="another width has other shapes, so the names close it",
            says=(
                "Without d_ff the hidden width is ⌊8·d_model/3⌋, rounded up "
                "to a multiple of multiple_of."
            ),
        ),
        values(
            "large gates",
            "very large",
            says=(
                "SiLU of a large number is that number, of a large negative "
                "one 0: write the sigmoid so that no exponential overflows, "
                "or use F.silu."
            ),
        ),
        values(
            "train mode",
            "in train mode",
            says="There is no dropout: train mode changes nothing.",
        ),
        values(
            "full size",
            "4096, multiple of 256",
            "768",
            "another width",
            because="other counts have other shapes, so the names close it",
            says="The number of parameters is 3 · d_model · d_ff.",
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            points=0.5,
            says=("Gradients flow to x and to all three matrices."),
        ),
        values(
            "float32",
            "float32",
            tol=5e-6,
            because=SINGLE,
            says=("float32 inputs give float32 outputs."),
        ),
    ),
    kind="class",
    probe=call_modules,
)


# 4.3

MOVED = "moved to another device"
DROPOUT = 0.25
DRAWS = 256  # examples in which dropped entries are counted
# Of rows of three numbers 0.75³ = 0.42 lose nothing in one dropout, and 0.18
# in two. In 1,024 rows a share is off by 0.015.
WHOLE = (0.08, 0.3, 0.55)


def set_weights(D, **given):
    """Zero weights and unit gains, but for those that are given."""
    weights = {
        name: np.zeros(shape) for name, shape in block_shapes(D).items()
    }
    for name in ("ln1.weight", "ln2.weight"):
        weights[name] += 1
    return weights | given


def dropped_cases(x):
    """Blocks of which one branch is 1 everywhere, in train mode.

    What dropout does is then seen in the support of output − x. The branch
    gets its 1 from the norm's bias, so dropout on the way shows as well.
    """
    D = x.shape[-1]

    def one(**weights):
        return module_case(
            ((D, 2), {"dropout": DROPOUT, "max_context_length": 8}),
            set_weights(D, **weights),
            x,
            mode="train",
        )

    mean = np.full((D, D), 1 / D)
    hidden = 0.5 * (1 + math.erf(math.sqrt(0.5)))  # GELU of 1
    return {
        "dropout after attention": one(**{"attn.out_proj.bias": np.ones(D)}),
        "dropout of the weights": one(
            **{
                "ln1.bias": np.ones(D),
                "attn.qkv_proj.weight": np.vstack([0 * mean, 0 * mean, mean]),
                "attn.out_proj.weight": np.eye(D),
            }
        ),
        "dropout after the MLP": one(
            **{
                "ln2.bias": np.ones(D),
                "mlp.fc1.weight": np.vstack([mean] * 4),
                "mlp.fc2.weight": np.full((D, 4 * D), 0.25 / D / hidden),
            }
        ),
    }


def support(module, one):
    """Which values output − x takes at the last position, and how often.

    returns: {"eval": the mean without dropout, "values": the distinct values
        with dropout, as a text, before and after a call in eval mode,
        "kept": share of them that is not 0, in eighths, "apart": see below,
        "repeats": whether both calls drop the very same numbers}
    """
    x = torch.from_numpy(one["args"][0])

    def moved():
        return module(x.clone()) - x

    tokens = moved()
    first = tokens[:, -1]
    module.eval()
    still = moved()[:, -1]
    module.train()
    second = moved()[:, -1]
    kept = torch.cat([first, second]).abs() > 1e-9
    return {
        "eval": round(still.mean().item(), 3),
        "values": [_distinct(first), _distinct(second)],
        "kept": round(8 * kept.double().mean().item()) / 8,
        "apart": _apart(tokens.abs()),
        "repeats": torch.equal(first, second),
    }


def _apart(sizes):
    """Whether parts of an example ever lose different entries.

    sizes: (examples, tokens, channels); two heads share the channels
    """
    dropped = sizes < 1e-9
    last, lost = sizes[:, -1], dropped[:, -1]
    left = last.masked_fill(lost, math.inf)
    heads, least = (each.unflatten(1, (2, -1)) for each in (last, left))
    return {
        "entries": bool((lost.any(1) & ~lost.all(1)).any()),
        "heads": bool((last.amax(1) > left.amin(1) + 1e-9).any()),
        "channels": bool((heads.amax(2) > least.amin(2) + 1e-9).any()),
        "tokens": bool((dropped[:, 0] != lost).any()),
    }


def _distinct(numbers):
    found = numbers.mul(1000).round().div(1000).add(0.0).unique().tolist()
    if len(found) > 6:
        return "more than six values"
    return ", ".join(f"{value:.3f}" for value in found)


def uneven_case():
    """A block whose last token weighs four tokens unlike, in train mode.

    Scores are 1, ½, 0 and −1, values 1, 2, 4 and 7, in all four channels.
    """
    first = np.array([1.0, 1.0, -1.0, -1.0])
    second, third = first[[0, 2, 1, 3]], first[[0, 2, 3, 1]]
    tokens = np.stack([first, second, third, -first])  # a norm leaves them
    keys = (first + second / 2) / 4 / math.sqrt(2)
    values = (-3 * first - 2 * second) / 4
    return module_case(
        ((4, 2), {"dropout": DROPOUT, "max_context_length": 8}),
        set_weights(
            4,
            **{
                "attn.qkv_proj.weight": np.vstack(
                    [np.zeros((4, 4)), [keys] * 4, [values] * 4]
                ),
                "attn.qkv_proj.bias": np.repeat([1.0, 0.0, 4.0], 4),
                "attn.out_proj.weight": np.eye(4),
            },
        ),
        np.tile(tokens, (2 * DRAWS, 1, 1)),
        mode="train",
    )


def scatter(module, one):
    """Standard deviation of what the last token's branch has left."""
    x = torch.from_numpy(one["args"][0])
    added = (module(x.clone()) - x)[:, -1]
    return added[added.abs() > 1e-9].std().item()


def post_dropped_cases():
    """Post-LN blocks in which one branch is 100, 200, 400, in train mode.

    The stream is a constant, which a norm takes away, so each output is the
    branch, less what was dropped, normalised: one of eight rows, for eight
    ways of dropping three numbers. A sequence is one token, whose only weight
    is dropped or not, with a head for each of the three numbers.
    """
    branch = 100 * np.array([1.0, 2.0, 4.0])

    def one(**weights):
        return module_case(
            ((3, 3), {"dropout": DROPOUT, "norm_first": False}),
            set_weights(3, **weights),
            np.full((4 * DRAWS, 1, 3), 50.0),
            mode="train",
        )

    return {
        "post-LN, dropout of the weights and after attention": one(
            **{
                "attn.qkv_proj.bias": np.repeat([0.0, 1.0], [6, 3]),
                "attn.out_proj.weight": np.diag(branch),
            }
        ),
        "post-LN, dropout after the MLP": one(
            **{
                # GELU leaves 100; each number has four hidden units.
                "mlp.fc1.bias": np.full(12, 100.0),
                "mlp.fc2.weight": np.repeat(np.diag(branch) / 400, 4, axis=1),
            }
        ),
    }


def survivors(module, one):
    """What is left of the rows of a post-LN block.

    returns: {"rows": number of distinct rows, "whole": how many of WHOLE lie
        below the share of rows that lost nothing}
    """
    x = torch.from_numpy(one["args"][0])
    rows = module(x.clone()).flatten(0, 1)
    module.eval()
    whole = (rows - module(x[:1].clone())[0, 0]).abs().amax(1) < 1e-9
    return {
        "rows": len(rows.mul(1000).round().unique(dim=0)),
        "whole": sum(whole.double().mean().item() > bound for bound in WHOLE),
    }


def after_others(module, one):
    """What comes back for x after calls with other tokens, and fewer."""
    x = torch.from_numpy(one["args"][0])
    module(-x[:, :-2])
    module(-x)
    return module(x.clone())


def block_inputs(rng):
    def built(D, H, *args, wide=4, bias=True, **kwargs):
        if wide != 4:
            kwargs["mlp_expansion"] = wide
        if not bias:
            kwargs["bias"] = False
        weights = draw(rng, block_shapes(D, wide=wide, bias=bias))
        return lambda x, **how: module_case(
            ((D, H, *args), kwargs), weights, x, **how
        )

    tiny, plain = built(2, 1), built(15, 3, max_context_length=9)
    equal = built(9, 3)
    x, y = rng.randn(2, 7, 15), rng.randn(1, 4, 6)
    later = x.copy()
    later[:, 4:] = rng.randn(2, 3, 15)
    post = built(6, 2, norm_first=False)
    silent = {
        name: np.zeros_like(value)
        if "out_proj" in name or "fc2" in name
        else value
        for name, value in draw(rng, block_shapes(6)).items()
    }
    z, up = rng.randn(1, 3, 4), rng.randn(1, 3, 4)
    dropped = np.full((DRAWS, 3, 4), 10.0)
    return {
        "one token": tiny(rng.randn(1, 1, 2).round(2)),
        "several heads": plain(x),
        "a later token changed": plain(later),
        "as many tokens as heads": equal(rng.randn(3, 3, 9)),
        "a view": plain(x, strided=True),
        "axes exchanged": plain(rng.randn(7, 2, 15).transpose(1, 0, 2)),
        "a large stream": plain(x * 1e3),
        "after other sequences": plain(x),
        "in train mode": plain(x, mode="train"),
        "silent branches": module_case(((6, 3), {}), silent, y),
        "post-LN": post(y),
        # Scores in the millions: a mask of −10,000 hides nothing there.
        "post-LN, large": post(np.concatenate([y, -y], 1) * 1e4),
        "another width of the MLP": built(6, 2, wide=3)(y),
        "without biases": built(6, 2, bias=False)(y),
        "post-LN without biases": built(6, 2, bias=False, norm_first=False)(y),
        "post-LN, all options": built(
            6, 2, wide=3, bias=False, norm_first=False, gelu="tanh"
        )(y * 3),
        "tanh": built(6, 2, gelu="tanh")(y * 3),
        "eval with dropout": built(6, 2, dropout=0.5)(y),
        "a full context": built(6, 2, max_context_length=4)(y),
        "beyond the context": built(6, 2, max_context_length=3)(y),
        "beyond the context, post-LN": built(
            6, 2, max_context_length=3, norm_first=False
        )(y),
        "gradient": built(4, 2)(z, upstream=[up]),
        "gradient, post-LN": built(4, 2, norm_first=False)(z, upstream=[up]),
        "float32": plain(x.astype("float32"), dtype="float32"),
        MOVED: equal(rng.randn(1, 4, 9)),
        **dropped_cases(dropped),
        UNEVEN: uneven_case(),
        **post_dropped_cases(),
        "768 wide, 12 heads": module_case(((768, 12), {}), None, meta=True),
        "768 wide, without biases": module_case(
            ((768, 12), {"bias": False}), None, meta=True
        ),
    }


DROPPED = (
    "dropout after attention",
    "dropout of the weights",
    "dropout after the MLP",
)
UNEVEN = "dropout of uneven weights"


def probe_block(answer, inputs):
    scripts = {
        **dict.fromkeys(DROPPED, support),
        UNEVEN: scatter,
        **dict.fromkeys(post_dropped_cases(), survivors),
        "after other sequences": after_others,
        MOVED: moved,
    }
    return call_modules(answer, inputs, scripts)


def _no_look_ahead(seen, want, inputs):
    one = seen["several heads"]["out"].data
    other = seen["a later token changed"]["out"].data
    if not np.array_equal(one[:, :4], other[:, :4]):
        return Failure(
            "the first four positions change when the tokens after them do"
        )
    if np.array_equal(one[:, 4:], other[:, 4:]):
        return Failure("the output does not depend on the tokens")
    return None


def _dropout_places(seen, want, inputs):
    for name in DROPPED:
        got, due = seen[name]["out"], want[name]["out"]
        if isinstance(got, Raised):
            return Failure(f"{trouble(got)} ({name})")
        if got["eval"] != due["eval"]:
            return Failure(
                f"{name}: in eval mode the branch is "
                f"{got['eval']} instead of {due['eval']}"
            )
        if got["repeats"]:
            return Failure(f"{name}: two calls drop the very same entries")
        if got["apart"] != due["apart"]:
            return Failure(
                f"{name}: what is dropped together (entries of a token, "
                "channels of a head, heads or tokens) is not what belongs "
                "together there"
            )
        if got != due:
            first, second = got["values"]
            return Failure(
                f"{name}: with dropout={DROPOUT}, a branch that is 1 in eval "
                f"mode takes the values {first}; {got['kept']:.0%} are not "
                f"0. Due are {due['values'][0]}; {due['kept']:.0%}"
                + (
                    ""
                    if first == second
                    else f". After a call in eval mode it takes {second}"
                )
            )
    got, due = seen[UNEVEN]["out"], want[UNEVEN]["out"]
    if isinstance(got, Raised):
        return Failure(f"{trouble(got)} ({UNEVEN})")
    # Of 1,024 draws the deviation is off by 0.02; without dropout it is 0.
    if not abs(got - due) < 0.2:
        return Failure(
            f"{UNEVEN}: what is left of the last token's attention scatters "
            f"by {got:.2f} instead of {due:.2f}"
        )
    for name in post_dropped_cases():
        got, due = seen[name]["out"], want[name]["out"]
        if isinstance(got, Raised):
            return Failure(f"{trouble(got)} ({name})")
        if got != due and got["rows"] != due["rows"]:
            return Failure(
                f"{name}: with three entries, each dropped or not, there are "
                f"{got['rows']} different outputs; due are {due['rows']}"
            )
        if got != due:
            return Failure(
                f"{name}: in some of the rows nothing is lost, and then the "
                "output is that of eval mode; here it is not, or too often, "
                "or too seldom"
            )
    return None


TransformerBlock = Exercise(
    "TransformerBlock",
    block_inputs,
    of_modules(
        law(
            "no look ahead",
            _no_look_ahead,
            needs=("shape and dtype",),
            because="implied by the values; it names the worst mistake",
            says=(
                "No position may change when a later token does: the "
                "attention is causal, and the norms act on one position at a "
                "time."
            ),
        ),
        values(
            "pre-LN",
            "one token",
            "several heads",
            "a later token changed",
            "as many tokens as heads",
            "a view",
            "axes exchanged",
            "a large stream",
            points=2,
            gate=True,
            says=(
                "x plus the attention of its first norm; then that sum plus "
                "the MLP of its second norm. The stream itself is never "
                "normalised."
            ),
        ),
        values(
            "silent branches",
            "silent branches",
            because="implied by the values; the picture to keep in mind",
            says=(
                "With both output projections at zero a pre-LN block "
                "hands its input through, unchanged."
            ),
        ),
        values(
            "post-LN",
            "post-LN",
            "post-LN, large",
            points=1,
            because="its gradients show it, too; these are the numbers",
            says=(
                "With norm_first=False each norm acts on the sum of the "
                "stream and its branch: the first after attention, the "
                "second after the MLP."
            ),
        ),
        values(
            "options",
            "another width of the MLP",
            "without biases",
            "post-LN without biases",
            "post-LN, all options",
            "tanh",
            points=0.5,
            says=(
                "mlp_expansion sets the MLP's width, bias=False leaves out "
                "the biases of linears and norms alike, gelu goes to the "
                "activation."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, post-LN",
            part="grads",
            points=0.5,
            says=(
                "Gradients flow to x and to every parameter, along the "
                "stream as well as through the branches."
            ),
        ),
        values(
            "the context's length",
            "a full context",
            because="a check that is off by one refuses a full context",
            says="A sequence of max_context_length tokens is fine.",
        ),
        refuses(
            "beyond the context",
            "beyond the context",
            "beyond the context, post-LN",
            points=0.5,
            says=("More than max_context_length tokens are a ValueError."),
        ),
        values(
            "eval has no dropout",
            "eval with dropout",
            points=0.5,
            because="the places of dropout show it, too; this names it",
            says=(
                "In eval mode nothing is dropped. A function like attend "
                "drops whenever it is told to: tell it only in training."
            ),
        ),
        values(
            "train mode without dropout",
            "in train mode",
            says=(
                "dropout is 0 unless given, and then train mode computes "
                "what eval mode does: the mask, too, is the same."
            ),
        ),
        values(
            "nothing kept between calls",
            "after other sequences",
            says=(
                "The block keeps something of one call (a mask of that "
                "length, keys, values) and uses it in the next."
            ),
        ),
        follows_device(MOVED),
        law(
            "where dropout acts",
            _dropout_places,
            points=0.5,
            because=(
                "2,048 entries in eighths: at p = 0.25 a share is off by "
                "1/16 with a probability below 1e-9"
            ),
            says=(
                "In training, dropout acts on the attention weights, on the "
                "attention's output and on the MLP's output, on a branch "
                "before it is added to the stream, and nowhere else."
            ),
        ),
        values(
            "full size",
            "768 wide, 12 heads",
            "768 wide, without biases",
            points=0.5,
            because="other counts have other names or shapes",
            says=(
                "At width 768 a block has 7,087,872 parameters, 7,077,888 of "
                "them in its four matrices."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=2e-5,
            because=SINGLE,
            says=("float32 inputs give float32 outputs."),
        ),
    ),
    kind="class",
    probe=probe_block,
)


# 4.4: toy blocks with dropout at various places


class StreamDropout(nn.Dropout):
    """A class of one's own; its instances are instances of nn.Dropout."""


class Branch(nn.Module):
    """A residual branch with dropout inside, and perhaps after it.

    guarded: leave the dropout after it out unless the branch is in train mode
    """

    def __init__(
        self,
        d_model,
        inside=0.1,
        after=None,
        gain=1.0,
        bias=True,
        guarded=False,
    ):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d_model, 2 * d_model, bias),
            nn.Tanh(),
            nn.Dropout(inside),
            nn.Linear(2 * d_model, d_model, bias),
        )
        self.after = nn.Identity() if after is None else nn.Dropout(after)
        self.gain = nn.Parameter(torch.full((), gain))
        self.guarded = guarded

    def forward(self, x):
        out = self.net(x)
        if self.training or not self.guarded:
            out = self.after(out)
        return self.gain * out


class ToyBlock(nn.Module):
    """Branches on a residual stream, with a norm before each or not.

    spare: an nn.Dropout that forward does not use
    stream: an nn.Dropout on the stream itself, which is rare
    """

    def __init__(
        self, d_model, branches, *, norm=True, spare=None, stream=None
    ):
        super().__init__()
        self.d_model = d_model
        self.norm = nn.LayerNorm(d_model) if norm else nn.Identity()
        if spare is not None:
            self.spare = nn.Dropout(spare)
        self.branches = nn.ModuleList(
            Branch(d_model, **how) for how in branches
        )
        self.stream = (
            nn.Identity() if stream is None else StreamDropout(stream)
        )

    def forward(self, x):
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"the block takes (B, T, {self.d_model}), not {tuple(x.shape)}"
            )
        for branch in self.branches:
            x = self.stream(x) + branch(self.norm(x))
        return x


def sites_inputs(rng):
    def toy(d_model, *branches, mode="train", frozen=(), **how):
        return {
            "d_model": d_model,
            "branches": list(branches),
            "how": how,
            "mode": mode,
            "frozen": list(frozen),
            "seed": int(rng.randint(1000)),
        }

    width = int(rng.randint(3, 8))
    return {
        "one site": toy(4, {}),
        "two sites": toy(3, {"after": 0.1}),
        "three sites": toy(width, {"after": 0.2}, {"inside": 0.3}),
        "no site": {**toy(4), "how": {"norm": False}},
        "no biases": toy(4, {"bias": False}),
        "one that forward never uses": toy(5, {}, spare=0.1),
        "a silent branch": toy(3, {"gain": 0.0, "after": 0.1}, {}),
        "one of two is silent": toy(
            width, {"after": 0.5}, {"gain": 0.0}, spare=0.0
        ),
        "a silent branch alone": toy(4, {"gain": 0.0}),
        "p = 0 at present": toy(4, {"inside": 0.0, "after": 0.0}, spare=0.5),
        "p = 1 at present": toy(4, {"inside": 1.0, "after": 1.0}),
        "on the stream": toy(4, {"after": 0.1}, {}, stream=0.1),
        "a faint branch": toy(4, {"gain": 1e-4, "after": 0.1}),
        "in eval mode, used in train mode only": toy(
            4, {"after": 0.1, "guarded": True}, mode="eval"
        ),
        "in eval mode": toy(4, {"after": 0.1}, mode="eval"),
        "a part in eval mode": toy(
            4, {"after": 0.1}, {}, frozen=["branches.0"]
        ),
    }


def probe_sites(answer, inputs):
    """What is found in each toy block, and what is changed in it."""
    return {name: _found_sites(answer, one) for name, one in inputs.items()}


def _found_sites(answer, one):
    # torch.manual_seed would reach the generators of GPUs as well.
    torch.default_generator.manual_seed(one["seed"])
    block = ToyBlock(one["d_model"], one["branches"], **one["how"])
    block.train(one["mode"] == "train")
    for index, value in enumerate(block.parameters()):
        value.requires_grad_(index > 0)
        value.grad = torch.full_like(value, 0.5) if index > 1 else None
    for name in one["frozen"]:
        block.get_submodule(name).eval()
    before = _state(block)
    try:
        out = answer(block)
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    after = _state(block)
    return {
        "out": plain(out),
        "left": [what for what in before if before[what] != after[what]],
    }


def _state(block):
    modules = dict(block.named_modules())
    return {
        "the mode": [one.training for one in modules.values()],
        "p": [getattr(one, "p", None) for one in modules.values()],
        "the modules": list(modules),
        "the random state": torch.get_rng_state().numpy().tobytes(),
        "the weights": [
            value.detach().numpy().tobytes() for value in block.parameters()
        ],
        "the gradients": [
            None if value.grad is None else value.grad.numpy().tobytes()
            for value in block.parameters()
        ],
        "what is trained": [
            value.requires_grad for value in block.parameters()
        ],
        "hooks": [
            len(one._forward_hooks) + len(one._forward_pre_hooks)
            for one in modules.values()
        ],
    }


def _sites_runs(seen, want, inputs):
    for name in inputs:
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(f"{trouble(out)} (block: {name})")
        if not isinstance(out, list) or not all(
            isinstance(part, str) for part in out
        ):
            return Failure(
                f"{describe(out)} came back where a list of "
                f"names is due (block: {name})"
            )
    return None


def _sites(*names):
    def judge(seen, want, inputs):
        for name in names:
            out, due = seen[name]["out"], want[name]["out"]
            if sorted(out) != sorted(due):
                return Failure(
                    f"{out} came back for the block with {name}; due is {due}"
                )
        return None

    return judge


def _left_as_found(seen, want, inputs):
    for name in inputs:
        if seen[name]["left"]:
            return Failure(
                f"after the call other than before: "
                f"{', '.join(seen[name]['left'])} (block: {name})"
            )
    return None


dropout_sites = Exercise(
    "dropout_sites",
    sites_inputs,
    (
        law(
            "a list of names",
            _sites_runs,
            gate=True,
            says=(
                "Return a list of strings, the names that named_modules() "
                "gives."
            ),
        ),
        law(
            "live sites",
            _sites(
                "one site",
                "two sites",
                "three sites",
                "no site",
                "no biases",
                "on the stream",
                "a faint branch",
            ),
            points=1,
            gate=True,
            says=(
                "Make one dropout certain (p = 1) and all others idle (p = "
                "0), in train mode, and see whether the output differs from "
                "that with all of them idle."
            ),
        ),
        law(
            "dead sites",
            _sites(
                "one that forward never uses",
                "a silent branch",
                "a silent branch alone",
                "one of two is silent",
            ),
            points=0.75,
            says=(
                "A dropout that never runs, or runs in a branch that adds "
                "nothing, changes nothing and does not belong into the list. "
                "Only the experiment can tell."
            ),
        ),
        law(
            "whatever p and mode are at present",
            _sites(
                "p = 0 at present",
                "p = 1 at present",
                "in eval mode",
                "in eval mode, used in train mode only",
                "a part in eval mode",
            ),
            points=0.5,
            says=(
                "Set mode and p yourself before the experiment, for every "
                "part of the block: how it was configured must not decide "
                "what you find."
            ),
        ),
        law(
            "left as found",
            _left_as_found,
            points=0.75,
            says=(
                "The block and the random state are the caller's: put back "
                "each module's own mode, each p, and torch's random state."
            ),
        ),
    ),
    probe=probe_sites,
)


# 4.5


def encoder_inputs(rng):
    def built(D, H):
        weights = draw(rng, block_shapes(D))
        return lambda *args, **how: module_case(
            ((D, H), {}), weights, *args, **how
        )

    tiny, plain, equal, small = (
        built(2, 1),
        built(15, 3),
        built(6, 2),
        built(4, 2),
    )
    x, y = rng.randn(2, 5, 15), rng.randn(2, 4, 4)
    keep = np.array(
        [[True, True, False, True, False], [True, False, True, True, True]]
    )
    other = np.where(keep[..., None], x, 1e3 * rng.randn(2, 5, 15))
    kept = np.array([[True, False, True, True], [True, True, False, True]])
    dead = np.array([[True, True, False, True], [False] * 4])
    up = rng.randn(2, 4, 4)
    return {
        "one token": tiny(rng.randn(1, 1, 2).round(2)),
        "two tokens": tiny(rng.randn(1, 2, 2).round(2)),
        "several heads": plain(x),
        "as many examples as heads": equal(rng.randn(2, 2, 6)),
        "a view": plain(x, strided=True),
        "keep": plain(x, keep),
        "keep by name": small(y, keep=kept),
        "keep, other padding": plain(other, keep),
        # No example keeps its last two tokens, which still ask.
        "keep, padding at the end": plain(
            x,
            np.array([[True, True, True, False, False], [True] + 4 * [False]]),
        ),
        "keep, large scores": module_case(
            ((15, 3), {}),
            {
                name: value * 2e3 if name == "attn.qkv_proj.weight" else value
                for name, value in draw(rng, block_shapes(15)).items()
            },
            x,
            np.tile(np.arange(5) % 2 == 0, (2, 1)),
        ),
        "keep, as many examples as heads": equal(
            rng.randn(2, 2, 6), np.array([[True, False], [True, True]])
        ),
        "all kept": small(y, np.ones((2, 4), bool)),
        "an example with nothing kept": small(y, dead),
        "a batch with nothing kept": small(y, np.zeros((2, 4), bool)),
        "gradient": small(y, kept, upstream=[up]),
        "gradient past an empty example": small(y, dead, upstream=[up]),
        "float32": plain(x.astype("float32"), keep, dtype="float32"),
        "axes exchanged": plain(rng.randn(5, 2, 15).transpose(1, 0, 2)),
        "after a call with keep": small(y, kept),
        MOVED: small(y, kept),
        "in train mode": plain(x, keep, mode="train"),
    }


def after_padding(module, one):
    """What comes back without padding after a call with it."""
    x, keep = (torch.from_numpy(value) for value in one["args"])
    module(x.clone(), keep)
    return module(-x)


def probe_encoder(answer, inputs):
    scripts = {"after a call with keep": after_padding, MOVED: moved}
    return call_modules(answer, inputs, scripts)


NO_DROPOUT = (
    "There is no dropout, in train mode either. A layer of torch's own has "
    "one of 0.1 unless it is told otherwise."
)
KEEPS_NOTHING = (
    "The layer keeps something of one call (a mask, a memory) and uses it in "
    "the next."
)


def _padding_inert(first, second, kept, what):
    def judge(seen, want, inputs):
        keep = inputs[first]["args"][kept]
        one, other = (seen[name]["out"].data for name in (first, second))
        if what == "memory":
            keep = np.ones(one.shape[:2], bool)
        if not np.array_equal(one[keep], other[keep]):
            return Failure(
                f"other numbers in padded places of {what} "
                "change the output at real positions"
            )
        return None

    return judge


EncoderLayer = Exercise(
    "EncoderLayer",
    encoder_inputs,
    of_modules(
        values(
            "without padding",
            "one token",
            "two tokens",
            "several heads",
            "as many examples as heads",
            "a view",
            "axes exchanged",
            points=1,
            gate=True,
            says=(
                "Every position sees every other, in both directions; then "
                "the MLP; each on the norm of the stream, each added to "
                "it."
            ),
        ),
        values(
            "keep",
            "keep",
            "keep by name",
            "all kept",
            "keep, as many examples as heads",
            "keep, other padding",
            "keep, padding at the end",
            "keep, large scores",
            points=0.5,
            because="its gradients show it, too; these are the numbers",
            says=(
                "keep is True at real positions; padded ones are hidden as "
                "keys from every query of their example. As queries they are "
                "computed like all others."
            ),
        ),
        law(
            "padding is inert",
            _padding_inert("keep", "keep, other padding", 1, "x"),
            needs=("without padding",),
            because="implied by the values; it says what padding must not do",
            says=("What stands in padding must not reach a real position."),
        ),
        values(
            "nothing kept",
            "an example with nothing kept",
            "a batch with nothing kept",
            points=0.5,
            because="its gradients show it, too; these are the numbers",
            says=(
                "Where nothing is kept the attention gives zeros before "
                "out_proj, so that it adds the bias of out_proj and no NaN."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient past an empty example",
            part="grads",
            points=0.5,
            says=(
                "Gradients flow to x and every parameter, and stay finite "
                "where nothing is kept."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=2e-5,
            because=SINGLE,
            says=("float32 inputs give float32 outputs."),
        ),
        values("train mode", "in train mode", says=NO_DROPOUT),
        values(
            "nothing kept between calls",
            "after a call with keep",
            says=KEEPS_NOTHING,
        ),
        follows_device(MOVED),
    ),
    kind="class",
    probe=probe_encoder,
)


def decoder_shapes(D):
    return layer_shapes(
        {
            "ln1": (D,),
            "attn.qkv_proj": (3 * D, D),
            "attn.out_proj": (D, D),
            "ln2": (D,),
            "cross_attn.q_proj": (D, D),
            "cross_attn.k_proj": (D, D),
            "cross_attn.v_proj": (D, D),
            "cross_attn.out_proj": (D, D),
            "ln3": (D,),
            "mlp.fc1": (4 * D, D),
            "mlp.fc2": (D, 4 * D),
        },
    )


def decoder_inputs(rng):
    def built(D, H):
        weights = draw(rng, decoder_shapes(D))
        return lambda *args, **how: module_case(
            ((D, H), {}), weights, *args, **how
        )

    tiny, plain, equal, small = (
        built(2, 1),
        built(15, 3),
        built(6, 2),
        built(4, 2),
    )
    x, memory = rng.randn(2, 5, 15), rng.randn(2, 7, 15) * 3
    later = x.copy()
    later[:, 3:] = rng.randn(2, 2, 15)
    keep = rng.rand(2, 7) < 0.5
    keep[:, 0], keep[0, 3], keep[1, 3] = True, True, False
    other = np.where(keep[..., None], memory, 1e6 * rng.randn(2, 7, 15))
    y, m = rng.randn(2, 3, 4), rng.randn(2, 4, 4)
    kept = np.array([[True, False, True, True], [True, True, False, True]])
    dead = np.array([[True, True, False, True], [False] * 4])
    up = rng.randn(2, 3, 4)
    # So many hidden places that some have the largest score.
    halves = np.tile(np.arange(7) % 2 == 0, (2, 1))
    return {
        "one token": tiny(
            rng.randn(1, 1, 2).round(2), rng.randn(1, 1, 2).round(2)
        ),
        "two tokens": tiny(
            rng.randn(1, 2, 2).round(2), rng.randn(1, 3, 2).round(2)
        ),
        "several heads": plain(x, memory),
        "a later token changed": plain(later, memory),
        "a shorter memory": plain(x, memory[:, :2]),
        "equal sizes": equal(rng.randn(2, 2, 6), rng.randn(2, 2, 6)),
        "a view": plain(x, memory, strided=True),
        "a large memory": small(y, m * 30),
        "memory_keep": plain(x, memory, keep),
        "memory_keep by name": small(y, m, memory_keep=kept),
        "memory_keep, other padding": plain(x, other, keep),
        "memory_keep, equal sizes": equal(
            rng.randn(2, 2, 6),
            rng.randn(2, 2, 6),
            np.array([[True, False], [True, True]]),
        ),
        "all kept": small(y, m, np.ones((2, 4), bool)),
        "a memory with nothing kept": small(y, m, dead),
        "memories with nothing kept": small(y, m, np.zeros((2, 4), bool)),
        "memory_keep, large scores": plain(x, memory * 1e5, halves),
        "gradient": small(y, m, kept, upstream=[up]),
        "gradient past an empty memory": small(y, m, dead, upstream=[up]),
        "float32": plain(
            x.astype("float32"), memory.astype("float32"), dtype="float32"
        ),
        "axes exchanged": plain(
            *(rng.randn(T, 2, 15).transpose(1, 0, 2) for T in (5, 7))
        ),
        "after another memory": small(y, m, kept),
        MOVED: small(y, m, kept),
        "in train mode": plain(x, memory, keep, mode="train"),
    }


def after_memory(module, one):
    """What comes back for other arguments after a call, without padding."""
    x, memory, keep = (torch.from_numpy(value) for value in one["args"])
    module(x.clone(), memory.clone(), keep)
    return module(-x, -memory)


def probe_decoder(answer, inputs):
    scripts = {"after another memory": after_memory, MOVED: moved}
    return call_modules(answer, inputs, scripts)


def _decoder_ahead(seen, want, inputs):
    one = seen["several heads"]["out"].data
    other = seen["a later token changed"]["out"].data
    if not np.array_equal(one[:, :3], other[:, :3]):
        return Failure(
            "the first three positions change when the tokens after them do"
        )
    return None


DecoderLayer = Exercise(
    "DecoderLayer",
    decoder_inputs,
    of_modules(
        law(
            "no look ahead",
            _decoder_ahead,
            needs=("shape and dtype",),
            because="implied by the values; it names the worst mistake",
            says=(
                "The decoder's own tokens are causal: none may change when a "
                "later one does."
            ),
        ),
        values(
            "without padding",
            "one token",
            "two tokens",
            "several heads",
            "a later token changed",
            "a shorter memory",
            "equal sizes",
            "a view",
            "axes exchanged",
            "a large memory",
            points=1.5,
            gate=True,
            says=(
                "Three sublayers, each on the norm of the stream and each "
                "added to it: causal self-attention, attention from the "
                "stream to the whole memory, the MLP. The memory is taken as "
                "it comes."
            ),
        ),
        values(
            "memory_keep",
            "memory_keep",
            "memory_keep by name",
            "memory_keep, other padding",
            "memory_keep, equal sizes",
            "memory_keep, large scores",
            "all kept",
            points=0.75,
            because="its gradients show it, too; these are the numbers",
            says=(
                "memory_keep is True at the real positions of the memory; "
                "the others are hidden from every token of their example."
            ),
        ),
        law(
            "padding is inert",
            _padding_inert(
                "memory_keep", "memory_keep, other padding", 2, "memory"
            ),
            needs=("without padding",),
            because="implied by the values; it says what padding must not do",
            says=(
                "What stands in the memory's padding must not reach the "
                "output."
            ),
        ),
        values(
            "nothing kept",
            "a memory with nothing kept",
            "memories with nothing kept",
            points=0.5,
            because="its gradients show it, too; these are the numbers",
            says=(
                "Where nothing of the memory is kept, the cross-attention "
                "gives zeros before out_proj, so that it adds the bias of "
                "out_proj and no NaN."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient past an empty memory",
            part="grads",
            points=0.75,
            says=(
                "Gradients flow to x, to the memory and to every parameter, "
                "and stay finite where nothing is kept."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-4,
            because="6e-8 an operation, through two attentions and three "
            "norms: right answers in other orders were up to 2e-5 off in 40 "
            "draws",
            says=("float32 inputs give float32 outputs."),
        ),
        values("train mode", "in train mode", says=NO_DROPOUT),
        values(
            "nothing kept between calls",
            "after another memory",
            says=KEEPS_NOTHING,
        ),
        follows_device(MOVED),
    ),
    kind="class",
    probe=probe_decoder,
)


# 4.6

# Over 600 seeds at four blocks and 200 at eight, the mean and the standard
# deviation of the logarithms, entry by entry. They come from a script of the
# same set-up that draws its numbers in another order than the reference, so
# single seeds differ from it (torch 2.13, one thread).
RMS_PRE = (
    [0.0, 0.245, 0.430, 0.576, 0.698, 0.801, 0.888, 0.966, 1.036],
    [0.008, 0.013, 0.019, 0.023, 0.027, 0.031, 0.034, 0.035, 0.037],
)
GRAD_PRE = (
    [-2.251, -2.635, -2.853, -2.996, -3.099],
    [0.051, 0.046, 0.041, 0.036, 0.031],
)
GRAD_POST = (
    [-2.234, -2.406, -2.501, -2.515, -2.438],
    [0.091, 0.081, 0.068, 0.051, 0.014],
)
# The same for the RMS after the only block of a pre-LN stack, over 3000 seeds.
RMS_ONE = (0.2447, 0.0126)
# And for the ratio of the two gradients around the only block of a post-LN
# stack. Its spread is small enough to show in four seeds whether the block
# does anything: two norms alone give 0.024.
FALL_ONE = (0.1129, 0.0180)
SHALLOW = 42  # seeds of which its mean is judged
DEPTH = 4  # blocks at which gradients are compared
SIGMAS = 7  # the farthest of the 600 lay 5.0 from the mean
# With ReLU the mean over SHALLOW seeds lies 11 off: six leave a right answer
# a false alarm below 1e-8, and ReLU five to be seen.
SIGMAS_ONE = 6


def depth_inputs(rng):
    first = int(rng.randint(10_000))
    return {
        "seeds": list(range(first, first + SHALLOW)),
        "few": int(rng.randint(1, 4)),
        "deep": 8,
        "shallow post": 4,
    }


def probe_depth(answer, inputs):
    """Profiles, by what they are for.

    The first block of a deeper stack is one block, too, so only the seeds
    that none of these had are left for stacks of one.
    """
    first, *_ = three = inputs["seeds"][:3]
    fourth, *others = inputs["seeds"][3:]
    return {
        "pre": [answer(DEPTH, True, seed) for seed in three],
        "post": [answer(DEPTH, False, seed) for seed in three],
        "few": answer(inputs["few"], False, first),
        "deep": answer(inputs["deep"], True, fourth),
        "shallow": [_last_rms(answer(1, True, seed)) for seed in others],
        "shallow post": [
            answer(1, False, first + index)
            for index in range(inputs["shallow post"])
        ],
        "again": answer(inputs["few"], False, first),
    }


def _last_rms(profile):
    try:
        return float(profile["rms"][-1])
    except (TypeError, KeyError, IndexError, ValueError):
        return None  # what is wrong shows in the other profiles


def _series(values_):
    """A list, tensor or array of numbers as floats."""
    if isinstance(values_, Array):
        return values_.data.astype(float).ravel()
    return np.array([number(value) for value in values_], float)


def _depth_form(seen, want, inputs):
    if isinstance(seen, Raised):
        return Failure(trouble(seen))
    for name, count in [
        ("pre", DEPTH),
        ("post", DEPTH),
        ("few", inputs["few"]),
        ("deep", inputs["deep"]),
        ("shallow post", 1),
    ]:
        profiles = (
            seen[name] if isinstance(seen[name], list) else ([seen[name]])
        )
        for one in profiles:
            if not isinstance(one, dict) or set(one) != {"rms", "grad"}:
                return Failure(
                    f"{describe(one)} came back where a dict with "
                    "rms and grad is due"
                )
            for key in one:
                length = len(_series(one[key]))
                if length != count + 1:
                    return Failure(
                        f"{length} entries in {key} at L = {count}, where "
                        f"{count + 1} are due: after the embedding and "
                        "after each block"
                    )
                if not np.isfinite(_series(one[key])).all():
                    return Failure(f"{key} has a NaN or an infinity")
    return None


def _logs(seen, kind, key):
    """Mean over the seeds of the logarithms of a profile's entries."""
    return np.mean(
        [np.log(np.abs(_series(one[key])) + 1e-12) for one in seen[kind]],
        axis=0,
    )


def _off(found, table, key, kind, count):
    """The entry that lies farthest from a table, if too far, as a text."""
    mean, spread = (np.array(row[: len(found)]) for row in table)
    allowed = SIGMAS * spread / math.sqrt(count) + 0.01
    excess = np.abs(found - mean) / allowed
    worst = int(np.argmax(excess))
    if excess[worst] <= 1:
        return None
    return (
        f"{kind}, {key}[{worst}] is {math.exp(found[worst]):.3g}; over "
        f"many seeds it is {math.exp(mean[worst]):.3g}, give or take "
        f"{allowed[worst]:.0%}"
    )


def _depth_start(seen, want, inputs):
    for kind in ("pre", "post"):
        text = _off(
            _logs(seen, kind, "rms")[:1], RMS_PRE, "rms", f"{kind}-LN", 3
        )
        if text:
            return Failure(text)
    return None


def _depth_grows(seen, want, inputs):
    text = _off(_logs(seen, "pre", "rms"), RMS_PRE, "rms", "pre-LN", 3)
    text = text or _off(
        np.log(_series(seen["deep"]["rms"]) + 1e-12),
        RMS_PRE,
        "rms",
        "pre-LN",
        1,
    )
    return text and Failure(text)


def _after_one(seen):
    """Mean over all seeds of the logarithm of the RMS after one block."""
    deeper = [_series(one["rms"])[1] for one in [*seen["pre"], seen["deep"]]]
    return np.log(
        [one or np.nan for one in [*deeper, *seen["shallow"]]]
    ).mean()


def _depth_one_block(seen, want, inputs):
    found = _after_one(seen)
    mean, spread = RMS_ONE
    allowed = SIGMAS_ONE * spread / math.sqrt(SHALLOW)
    if abs(found - mean) <= allowed:
        return None
    return Failure(
        f"pre-LN, the RMS after one block is {math.exp(found):.4f} on "
        f"average over {SHALLOW} seeds, where it is "
        f"{math.exp(mean):.4f}, give or take {allowed:.1%}"
    )


def _depth_stays(seen, want, inputs):
    for one in [*seen["post"], seen["few"]]:
        rms = _series(one["rms"])[1:]
        if np.abs(rms - 1).max() > 1e-3:
            worst = rms[np.abs(rms - 1).argmax()]
            return Failure(
                f"post-LN, the RMS after a block is {worst:.4g}; it is 1"
            )
    return None


def _depth_grads(kind, table):
    def judge(seen, want, inputs):
        text = _off(_logs(seen, kind, "grad"), table, "grad", f"{kind}-LN", 3)
        return text and Failure(text)

    return judge


def _depth_falls(seen, want, inputs):
    before, after = _logs(seen, "shallow post", "grad")
    mean, spread = FALL_ONE
    allowed = SIGMAS * spread / math.sqrt(inputs["shallow post"])
    if abs(before - after - mean) <= allowed:
        return None
    return Failure(
        f"post-LN, L = 1, grad[0] / grad[1] is {math.exp(before - after):.3f} "
        f"on average over {inputs['shallow post']} seeds, where it is "
        f"{math.exp(mean):.3f}, give or take {allowed:.1%}"
    )


def _depth_seeds(seen, want, inputs):
    few, again = (
        np.concatenate([_series(seen[name][key]) for key in ("rms", "grad")])
        for name in ("few", "again")
    )
    if np.abs(few - again).max() > 1e-6 * np.abs(few).max():
        return Failure("the same seed gives two different profiles")
    one, other = (_series(seen["pre"][index]["rms"]) for index in (0, 1))
    if np.array_equal(one, other):
        return Failure("two seeds give the very same profile")
    return None


def _depth_features(seen):
    logs = [
        _logs(seen, kind, key)
        for kind in ("pre", "post")
        for key in ("rms", "grad")
    ]
    deep = np.log(_series(seen["deep"]["rms"]) + 1e-12)
    one = _after_one(seen)
    changes = _depth_seeds(seen, None, None) is not None
    fall = -np.diff(_logs(seen, "shallow post", "grad"))
    return [*np.concatenate(logs), *deep, one, *fall, 4.0 * changes]


MEASURED = (
    f"{SIGMAS} standard deviations of what 600 seeds gave, for a "
    "mean over three seeds: a false alarm below 1e-9"
)

depth_profile = Exercise(
    "depth_profile",
    depth_inputs,
    (
        law(
            "a profile",
            _depth_form,
            gate=True,
            says=(
                'Return {"rms": …, "grad": …} with L + 1 finite numbers each.'
            ),
        ),
        law(
            "the embedding",
            _depth_start,
            points=0.5,
            gate=True,
            because=MEASURED,
            says=(
                "The first entry of rms is that of the input, drawn from N(0, "
                "1), before any block."
            ),
        ),
        law(
            "pre-LN grows",
            _depth_grows,
            points=1,
            because=MEASURED,
            says=(
                "Each branch of a pre-LN block adds to the stream, so its "
                "RMS grows with depth; how fast depends on every weight's "
                "variance being 1 / fan_in, and on measuring the stream "
                "rather than its norm."
            ),
        ),
        law(
            "one block",
            _depth_one_block,
            points=0.5,
            because=(
                f"{SIGMAS_ONE} standard deviations of a mean over {SHALLOW} "
                "seeds: a false alarm below 1e-8; ReLU shifts it by nearly "
                "twice as much"
            ),
            needs=("pre-LN grows",),
            says=(
                "What one block adds to the stream depends on what it "
                "averages over, so on the causal mask, and on the MLP's "
                "activation, the exact GELU."
            ),
        ),
        law(
            "post-LN stays at 1",
            _depth_stays,
            points=0.5,
            because="a norm without gain, with eps 1e-5, leaves 1 to 1e-5",
            says=(
                "A post-LN block ends with a norm, so its output has RMS 1 "
                "at every depth."
            ),
        ),
        law(
            "gradients, pre-LN",
            _depth_grads("pre", GRAD_PRE),
            points=1.25,
            because=MEASURED,
            says=(
                "grad[l] is the norm of the gradient of the mean "
                "cross-entropy with respect to the whole stream (4, 32, 64) "
                "after l blocks, through the final norm and the head."
            ),
        ),
        law(
            "gradients, post-LN",
            _depth_grads("post", GRAD_POST),
            points=1.25,
            because=MEASURED,
            says=(
                "grad[l] is the norm of the gradient of the mean "
                "cross-entropy with respect to the whole stream after l "
                "blocks; with post-LN, too, there is a final norm before the "
                "head."
            ),
        ),
        law(
            "post-LN, one block",
            _depth_falls,
            because=MEASURED,
            needs=("gradients, post-LN",),
            says=(
                "With post-LN, too, each branch is computed and added to the "
                "stream before its norm, so the gradient differs before and "
                "after a block."
            ),
        ),
        law(
            "the seed decides",
            _depth_seeds,
            says=("All randomness comes from a generator made from seed."),
        ),
    ),
    probe=probe_depth,
    features=_depth_features,
)


# 4.7


def patchify_inputs(rng):
    def pixels(*shape):
        return rng.randint(0, 256, shape).astype(float)

    # Not whole numbers, which float32 holds exactly.
    image = pixels(2, 3, 6, 10) + 1 / 3
    return {
        "two patches": case(np.arange(8.0).reshape(1, 1, 2, 4), 2),
        "three channels": case(image, 2),
        "a square image": case(pixels(1, 2, 6, 6), 3),
        "tall": case(pixels(1, 3, 6, 3), patch=3),
        "as many patches as pixels": case(pixels(2, 3, 2, 3), 1),
        "one patch": case(pixels(2, 2, 3, 3), 3),
        "equal sizes": case(pixels(4, 4, 4, 4), 2),
        "a view": case(image, 2, strided=True),
        "channels last in memory": case(
            pixels(2, 6, 10, 3).transpose(0, 3, 1, 2), 2
        ),
        "default patch": case(pixels(1, 1, 16, 32)),
        "gradient": case(image[:1], 2, upstream=[pixels(1, 15, 12)]),
        "height not divisible": case(pixels(1, 2, 5, 6), 3),
        "width not divisible": case(pixels(1, 2, 6, 5), 3),
        "smaller than a patch": case(pixels(1, 2, 3, 3), 4),
        "the area would do": case(pixels(1, 1, 2, 8), 4),
        "float32": case(image.astype("float32"), 2),
    }


patchify = Exercise(
    "patchify",
    patchify_inputs,
    of_calls(
        values(
            "patches",
            "two patches",
            "three channels",
            "a square image",
            "tall",
            "as many patches as pixels",
            "one patch",
            "equal sizes",
            "a view",
            "channels last in memory",
            "default patch",
            "float32",
            points=1,
            gate=True,
            says=(
                "Patches run row by row, left to right; inside a patch the "
                "numbers run over the channels first, then over its rows, "
                "then over its columns."
            ),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            says=("Gradients flow back to the pixels."),
        ),
        refuses(
            "p must divide",
            "height not divisible",
            "width not divisible",
            "smaller than a patch",
            "the area would do",
            points=0.5,
            says=(
                "If the patch does not divide the height or the width, "
                "raise a ValueError rather than crop."
            ),
        ),
    ),
)


def vit_shapes(D, image_size=4, patch=2, n_layers=1, n_classes=5):
    count = (image_size // patch) ** 2
    shapes = {
        "patch_embed.weight": (D, 3 * patch**2),
        "patch_embed.bias": (D,),
        "cls_token": (1, 1, D),
        "pos_embed": (1, count + 1, D),
    }
    for index in range(n_layers):
        shapes |= {
            f"blocks.{index}.{name}": shape
            for name, shape in block_shapes(D).items()
        }
    return shapes | {
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
        "head.weight": (n_classes, D),
        "head.bias": (n_classes,),
    }


def vit_inputs(rng):
    def built(D, H, image_size=4, patch=2, n_layers=1, n_classes=5):
        weights = draw(
            rng, vit_shapes(D, image_size, patch, n_layers, n_classes)
        )
        made = {
            "image_size": image_size,
            "patch": patch,
            "d_model": D,
            "n_heads": H,
            "n_layers": n_layers,
            "n_classes": n_classes,
        }
        return lambda x, **how: module_case(((), made), weights, x, **how)

    plain, deep = built(6, 3), built(6, 2, 6, 2, 3, 7)
    equal = built(4, 4, 4, 2, 2, 4)
    images, larger = rng.randn(2, 3, 4, 4), rng.randn(2, 3, 6, 6)
    last = larger.copy()
    last[:, :, 4:, 4:] = rng.randn(2, 3, 2, 2)
    return {
        "one patch": built(2, 1, 2, 2, 1, 2)(rng.randn(1, 3, 2, 2)),
        "one block": plain(images),
        "three blocks": deep(larger),
        "the last patch changed": deep(last),
        "equal sizes": equal(rng.randn(4, 3, 4, 4)),
        "patches of one pixel": built(4, 2, 2, 1)(rng.randn(1, 3, 2, 2)),
        "a view": plain(images, strided=True),
        "channels last in memory": plain(
            rng.randn(2, 4, 4, 3).transpose(0, 3, 1, 2)
        ),
        "in train mode": deep(larger, mode="train"),
        "a dim image": plain(images * 1e-3),
        "gradient": built(4, 2)(images, upstream=[rng.randn(2, 5)]),
        "float32": plain(images.astype("float32"), dtype="float32"),
        MOVED: plain(images),
        "base size": module_case(((), {}), None, meta=True),
    }


def probe_vit(answer, inputs):
    return call_modules(answer, inputs, {MOVED: moved})


def _sees_all(seen, want, inputs):
    one = seen["three blocks"]["out"].data
    other = seen["the last patch changed"]["out"].data
    if np.array_equal(one, other):
        return Failure(
            "other pixels in the last patch leave the logits as they are"
        )
    return None


ViT = Exercise(
    "ViT",
    vit_inputs,
    of_modules(
        law(
            "the class token sees the whole image",
            _sees_all,
            needs=("shape and dtype",),
            because="implied by the values; it names the worst mistake",
            says=(
                "The class token stands first, so under a causal mask it "
                "would see only itself: no mask here."
            ),
        ),
        values(
            "logits",
            "one patch",
            "one block",
            "three blocks",
            "the last patch changed",
            "equal sizes",
            "patches of one pixel",
            "a view",
            "channels last in memory",
            "a dim image",
            points=2.5,
            gate=True,
            says=(
                "Patches, a linear map, the class token before them, "
                "positions added to all of them, pre-LN blocks, the final "
                "norm, and the head on the class token; every norm has eps "
                "1e-6."
            ),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            points=0.5,
            says=("Gradients flow to the pixels and to every parameter."),
        ),
        values(
            "full size",
            "base size",
            points=0.5,
            because="other counts have other names or shapes",
            says=(
                "With the defaults there are 196 patches, 197 tokens and "
                "86,567,656 parameters."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-5,
            because=SINGLE,
            says=("float32 images give float32 logits."),
        ),
        values("train mode", "in train mode", says=NO_DROPOUT),
        follows_device(MOVED),
    ),
    kind="class",
    probe=probe_vit,
)


# 4.8


def block_backward_inputs(rng):
    def one(B, T, D, H, wide=4, size=1.0):
        return {
            "params": draw(rng, block_shapes(D, wide=wide)),
            "x": rng.randn(B, T, D) * size,
            "dout": rng.randn(B, T, D),
            "n_heads": H,
        }

    # One weight, so 1 whatever the score; exp(14,000) is infinite.
    large = one(1, 1, 4, 2, wide=2)
    large["params"]["attn.qkv_proj.bias"][:8] = 100.0  # of q and k
    # A token's score with itself is −7,200, all others lie above it, so the
    # first row's only visible score lies far below the hidden ones.
    peaked = one(1, 6, 4, 1, wide=2)
    queries = 60 * np.eye(4)
    peaked["params"] |= {"ln1.weight": np.ones(4), "ln1.bias": np.zeros(4)}
    peaked["params"]["attn.qkv_proj.weight"][:8] = np.vstack(
        [queries, -queries]
    )
    peaked["params"]["attn.qkv_proj.bias"][:8] = 0.0

    return {
        "one token": one(1, 1, 2, 1),
        "two tokens": one(1, 2, 2, 1),
        "several heads": one(2, 5, 6, 3, wide=2),
        "equal sizes": one(2, 2, 4, 2, wide=2),
        "another width of the MLP": one(2, 3, 4, 1, wide=3),
        "a large stream": one(1, 3, 4, 2, wide=2, size=100.0),
        "rows close to equal": one(1, 3, 4, 2, wide=2, size=1e-3),
        "peaked attention": peaked,
        "a large score": large,
    }


def probe_backward(answer, inputs):
    """Gradients of each case, and of the first once more."""
    seen = {name: _backward(answer, one) for name, one in inputs.items()}
    first = next(iter(inputs))
    seen[first]["again"] = _backward(answer, inputs[first])["out"]
    return seen


def _backward(answer, one):
    given = {
        key: {name: value.copy() for name, value in part.items()}
        if key == "params"
        else np.array(part)
        for key, part in one.items()
        if key != "n_heads"
    }
    params, x, dout = given["params"], given["x"], given["dout"]
    try:
        out = answer(params, x, dout, one["n_heads"])
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    seen = plain(out)
    changed = list(params) != list(one["params"]) or not all(
        np.array_equal(one["params"][name], params[name]) for name in params
    )
    changed = changed or not (
        np.array_equal(x, one["x"]) and np.array_equal(dout, one["dout"])
    )
    return {"out": seen, "changed": ["an argument"] if changed else []}


def _grads_form(seen, want, inputs):
    for name in inputs:
        out, due = seen[name]["out"], want[name]["out"]
        if not isinstance(out, dict):
            return Failure(
                f"{describe(out)} came back where a dict of gradients is due"
            )
        if set(out) != set(due):
            missing, extra = set(due) - set(out), set(out) - set(due)
            return Failure(
                "the dict "
                + " and ".join(
                    filter(
                        None,
                        [
                            missing and f"lacks {', '.join(sorted(missing))}",
                            extra and f"also has {', '.join(sorted(extra))}",
                        ],
                    )
                )
            )
        for key in due:
            difference = form_difference(out[key], due[key])
            if difference:
                return Failure(f"{key}: {difference} ({name})")
    return None


def _grads(*keys):
    def judge(seen, want, inputs):
        for name in inputs:
            for key in keys:
                difference = value_difference(
                    seen[name]["out"][key], want[name]["out"][key], 1e-10
                )
                if difference:
                    return Failure(
                        f"the gradient of {key}: {difference} ({name})"
                    )
        return None

    return judge


def _backward_runs(seen, want, inputs):
    for name in inputs:
        if isinstance(seen[name]["out"], Raised):
            return Failure(f"{trouble(seen[name]['out'])} ({name})")
    return None


_, _, _unchanged, _same_again = of_calls()

PART = "each part earns its own points; what is wrong in one shows further on"

block_backward = Exercise(
    "block_backward",
    block_backward_inputs,
    (
        law(
            "runs",
            _backward_runs,
            gate=True,
            because="of what raises nothing else can be said",
            says=("It has to run before anything else can be said."),
        ),
        law(
            "a gradient for every name",
            _grads_form,
            gate=True,
            says=(
                "Return one dict: a float64 array for each name in params, "
                "in that parameter's shape, and one for the input under "
                '"x". Zeros may stand for what you do not have yet.'
            ),
        ),
        law(
            "the MLP's second layer",
            _grads("mlp.fc2.weight", "mlp.fc2.bias"),
            points=1,
            because=PART,
            says=(
                "dout arrives at the MLP's branch as it is. A weight's "
                "gradient sums over batch and time what arrives times what "
                "went in."
            ),
        ),
        law(
            "the MLP's first layer",
            _grads("mlp.fc1.weight", "mlp.fc1.bias"),
            points=1,
            because=PART,
            says=(
                "Go through fc2 to the hidden units and through GELU, whose "
                "derivative is Φ(u) + u φ(u)."
            ),
        ),
        law(
            "the second norm",
            _grads("ln2.weight", "ln2.bias"),
            points=1,
            because=PART,
            says=(
                "The gain meets the normalised row, the bias nothing: both "
                "sum over batch and time."
            ),
        ),
        law(
            "the output projection",
            _grads("attn.out_proj.weight", "attn.out_proj.bias"),
            points=1,
            because=PART,
            says=(
                "What arrives at the sum after attention is dout plus what "
                "came through the MLP's branch and the second norm, mean and "
                "variance included."
            ),
        ),
        law(
            "queries, keys and values",
            _grads("attn.qkv_proj.weight", "attn.qkv_proj.bias"),
            points=2.5,
            because=PART,
            says=(
                "Split by heads, go through the masked softmax as in lesson "
                "1, scale, and merge in the order q, k, v."
            ),
        ),
        law(
            "the first norm",
            _grads("ln1.weight", "ln1.bias"),
            points=1,
            because=PART,
            says=(
                "What comes back from the fused projection meets the first "
                "norm's gain and bias, as in the second norm."
            ),
        ),
        law(
            "the input",
            _grads("x"),
            points=2.5,
            says=(
                "x reaches the output along three ways: the stream itself, "
                "the attention's branch, and (through their sum) the MLP's "
                "branch."
            ),
        ),
        _unchanged,
        _same_again,
    ),
    probe=probe_backward,
    forbids=AUTOGRAD,
)
