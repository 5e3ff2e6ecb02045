"""Lesson 3: what right answers on positional encoding must satisfy."""

import numpy as np
import torch
import torch.nn.functional as F

from autograder.exercise import (
    Exercise,
    Failure,
    keeps_device,
    law,
    of_calls,
    refuses,
    trouble,
    values,
)
from autograder.observations import Raised, describe, number
from autograder.probing import call, call_torch, case, follows, to_tensor

HALF = "float16 has 11 bits: one unit in the last place below 4 is 2e-3"
SHORT = "bfloat16 has 8 bits: half a unit in the last place at 1 is 4e-3"


class Verbatim(str):
    """Text that a shown call quotes as it is, such as a function's name."""

    def __repr__(self):
        return str(self)


def probe_default_dtypes(answer, inputs):
    """Calls without tensors; a case's `dtype` is the default dtype there."""

    def in_default(*args, **kwargs):
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            return answer(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    seen, dtype = {}, "float32"
    for name in inputs:
        dtype = inputs[name]["dtype"] or "float32"
        seen[name] = call(in_default, inputs[name], to_tensor)
    first, dtype = next(iter(inputs)), "float32"
    seen[first]["again"] = call(in_default, inputs[first], to_tensor)["out"]
    return seen


# 3.1


def sinusoid_inputs(rng):
    return {
        "one pair": case(3, 2),
        "two pairs": case(2, 4),
        "three pairs": case(int(rng.randint(5, 9)), 6),
        "many pairs": case(7, 2 * int(rng.randint(7, 12))),
        "as many positions as channels": case(4, 4),
        "one position": case(1, 6),
        "another base": case(5, 6, round(rng.uniform(20, 200), 2)),
        "another base by name": case(3, 8, base=500.0),
        "float64": case(int(rng.randint(30, 40)), 10, dtype="float64"),
        "float64, another base": case(3, 6, 7e3, dtype="float64"),
        # The first case again: what a cache holds of it is float32.
        "float64, one pair": case(3, 2, dtype="float64"),
        "bfloat16": case(270, 6, dtype="bfloat16"),
        "odd": case(3, 5),
        "one column": case(2, 1),
    }


def _lengths_equal(seen, want, inputs):
    for name in ("three pairs", "many pairs", "another base"):
        table = seen[name]["out"].data.astype(float)
        error = np.abs((table**2).sum(-1) - table.shape[-1] / 2).max()
        if not error < 1e-5:
            return Failure(f"a squared length is off by {error:.3g}", name)
    return None


sinusoidal_table = Exercise(
    "sinusoidal_table",
    sinusoid_inputs,
    of_calls(
        values(
            "the formula",
            "one pair",
            "two pairs",
            "three pairs",
            "many pairs",
            "as many positions as channels",
            "one position",
            points=1,
            gate=True,
            tol=3e-5,
            because=(
                "float32 angles up to 9 radians, each wrong by a few units "
                "in the last place"
            ),
            says=(
                "Column 2i is the sine and column 2i + 1 the cosine of "
                "one angle, t divided by base to the power 2i/D."
            ),
        ),
        values(
            "base",
            "another base",
            "another base by name",
            points=0.25,
            tol=3e-5,
            because="as above",
            says=("The frequencies come from the base that is given."),
        ),
        law(
            "all rows are equally long",
            _lengths_equal,
            needs=("shape and dtype",),
            because="an invariant to see, implied by the values",
            says=(
                "The squares of a sine and a cosine of one angle sum to 1, so "
                "the squares of a row sum to D/2."
            ),
        ),
        values(
            "float64",
            "float64",
            "float64, another base",
            "float64, one pair",
            points=0.25,
            says=(
                "With float64 as the default dtype, positions, frequencies "
                "and angles have to be float64 too: a float32 step on the way "
                "costs nine digits."
            ),
        ),
        values(
            "bfloat16",
            "bfloat16",
            points=0.25,
            tol=1e-2,
            because=SHORT,
            says=(
                "With bfloat16 as the default dtype, an angle computed in it "
                "is off by whole radians: compute in float32 or wider and "
                "round only the finished table."
            ),
        ),
        refuses(
            "an odd width",
            "odd",
            "one column",
            points=0.25,
            says=(
                "An odd D leaves a sine without its cosine: raise a "
                "ValueError."
            ),
        ),
    ),
    probe=probe_default_dtypes,
)


# 3.2


def embed_inputs(rng):
    ids = rng.randint(0, 7, size=(2, 3))
    tok, pos = rng.randn(7, 5), rng.randn(11, 5)
    square = rng.randn(4, 4), rng.randn(4, 4)
    again = np.array([[3, 0, 3, 3], [1, 3, 6, 0]])
    return {
        "one sequence": case(
            np.array([[1, 0]]),
            rng.randn(2, 2).round(2),
            rng.randn(2, 2).round(2),
        ),
        "two sequences": case(ids, tok, pos),
        "full length": case(rng.randint(0, 7, size=(2, 11)), tok, pos),
        "one position": case(rng.randint(0, 7, size=(3, 1)), tok, pos),
        "as many sequences as positions": case(
            rng.randint(0, 7, size=(5, 5)), tok, pos
        ),
        "equal sizes": case(rng.randint(0, 4, size=(4, 4)), *square),
        "more tokens than positions": case(
            np.array([[6, 3, 0], [4, 5, 1]]), tok, pos[:3]
        ),
        "views": case(ids, tok, pos, strided=True),
        "transposed views": case(*map(np.asfortranarray, (ids, tok, pos))),
        "silent tokens": case(ids, np.zeros((7, 5)), pos),
        "gradient": case(again, tok, pos, upstream=[rng.randn(2, 4, 5)]),
        "float16": case(ids, tok, pos, dtype="float16"),
        "too long": case(rng.randint(0, 7, size=(2, 13)), tok, pos),
        "one too long": case(rng.randint(0, 7, size=(1, 12)), tok, pos),
        "a table of one position": case(
            np.array([[1, 0, 1]]),
            rng.randn(2, 2).round(2),
            rng.randn(1, 2).round(2),
        ),
        "id V": case(
            np.array([[1, 2]]),
            rng.randn(2, 2).round(2),
            rng.randn(2, 2).round(2),
        ),
        "id −1": case(
            np.array([[1, -1]]),
            rng.randn(2, 2).round(2),
            rng.randn(2, 2).round(2),
        ),
        "id −2 in the middle": case(
            np.array([[1, 0, 2], [3, -2, 2]]), tok, pos
        ),
    }


DUE = "an IndexError or a ValueError"


def _refused(names, numbers, seen, want, inputs):
    """The cases raise; with `numbers`, naming T or the table's length."""
    for name in names:
        out = seen[name]["out"]
        if not isinstance(out, Raised):
            return Failure(
                f"it returns {describe(out)} where {DUE} is due", name
            )
        if not {"IndexError", "ValueError"} & set(out.bases):
            return Failure(f"{trouble(out)}, where {DUE} is due", name)
        ids, _, pos = inputs[name]["args"]
        digits = (c if c.isdigit() else " " for c in out.text)
        named = set("".join(digits).split())
        if numbers and not named & {str(ids.shape[1]), str(len(pos))}:
            return Failure(
                f"the message of its {out.kind} names neither "
                f"{ids.shape[1]} nor {len(pos)}",
                name,
            )
    return None


def _too_long(*args):
    return _refused(
        ("a table of one position", "too long", "one too long"), True, *args
    )


def _outside(*args):
    return _refused(("id V", "id −1", "id −2 in the middle"), False, *args)


embed = Exercise(
    "embed",
    embed_inputs,
    of_calls(
        values(
            "token plus position",
            "one sequence",
            "two sequences",
            "full length",
            "one position",
            "as many sequences as positions",
            "equal sizes",
            "more tokens than positions",
            "views",
            "transposed views",
            "silent tokens",
            points=1,
            gate=True,
            says=(
                "Row ids[b, t] of the tokens plus row t of the positions, for "
                "every sequence b, and nothing scaled."
            ),
        ),
        values(
            "gradients",
            "gradient",
            part="grads",
            points=0.25,
            says=(
                "Gradients flow to both tables; a row that is used several "
                "times collects all of them."
            ),
        ),
        values(
            "float16",
            "float16",
            tol=1e-3,
            because="one addition, rounded to 11 bits",
            says=("float16 tables give float16 embeddings."),
        ),
        law(
            "more tokens than positions",
            _too_long,
            points=0.5,
            says=(
                "Compare T with the number of rows of pos, and say in the "
                "message what does not fit. A table of one row would "
                "broadcast silently."
            ),
        ),
        law(
            "ids outside the table",
            _outside,
            points=0.25,
            says=(
                "An id that is negative or not below V is a mistake of the "
                "caller: indexing alone counts −1 from the end."
            ),
        ),
        keeps_device(),
    ),
    probe=follows("two sequences"),
)


# 3.3


def _attended(x, **kwargs):
    """Self-attention over axis −2 with fixed projections."""
    weights = torch.from_numpy(
        np.random.RandomState(5).randn(3, x.shape[-1], x.shape[-1])
    )
    q, k, v = (x @ part.to(x.dtype) for part in weights)
    return F.scaled_dot_product_attention(q, k, v, **kwargs)


def _ramp(x):
    """Positions to add: channel c of position t holds sin(t (c + 1))."""
    t, c = (torch.arange(size, dtype=x.dtype) for size in x.shape[-2:])
    return (t[:, None] * (c + 1)).sin()


def _last_number(x):
    """1 more in the last channel of the last position."""
    y = x.clone()
    y[..., -1, -1] += 1
    return y


def _middle_number(x):
    """1 more in the middle of all three axes."""
    y = x.clone()
    y[tuple(size // 2 for size in x.shape)] += 1
    return y


FUNCTIONS = {
    "three_times": lambda x: 3 * x,
    "attention": _attended,
    "causal_attention": lambda x: _attended(x, is_causal=True),
    "attention_with_positions": lambda x: _attended(x + _ramp(x)),
    "add_positions": lambda x: x + _ramp(x),
    "running_sum": lambda x: x.cumsum(-2),
    "first_position": lambda x: x[..., :1, :].expand(x.shape).clone(),
    # The gap is 0 in the first example, in the sum over channels, and at most
    # places.
    "later_examples": lambda x: torch.cat([x[:1], x[1:] + _ramp(x)]),
    "opposite_channels": lambda x: x + _ramp(x)[:, :1] * torch.tensor([1, -1]),
    "opposite_examples": lambda x: (
        x + _ramp(x) * torch.tensor([1, -1])[:, None, None]
    ),
    "last_number": _last_number,
    "middle_number": _middle_number,
    "sorted_in_time": lambda x: x.sort(-2).values,
    # So faint that torch.allclose with its defaults takes it for nothing.
    "faint_positions": lambda x: x + 5e-9 * _ramp(x),
    "huge_positions": lambda x: x + 1e6 * _ramp(x),
}


def gap_inputs(rng):
    def cycle(T):
        """A permutation without fixed points that is not its own inverse."""
        order, perm = rng.permutation(T), np.zeros(T, int)
        perm[order] = np.roll(order, 1)
        return perm

    def on(name, x, perm):
        return case(Verbatim(name), x, perm)

    def x(*shape):
        return rng.randn(*shape)

    # In one channel, so that all entries of the gap are the same.
    rising = np.sort(x(3, 1).round(2), axis=0) + np.arange(3)[:, None]
    return {
        "three times": on("three_times", x(3, 1).round(1), cycle(3)),
        "attention": on("attention", x(2, 5, 3), cycle(5)),
        "attention, one sequence": on("attention", x(5, 3), cycle(5)),
        "attention, equal sizes": on("attention", x(4, 4, 4), cycle(4)),
        "attention, more axes": on("attention", x(2, 3, 5, 4), cycle(5)),
        "a swap": on("attention", x(2, 4, 3), np.array([1, 0, 3, 2])),
        "nothing permuted": on("causal_attention", x(2, 5, 3), np.arange(5)),
        "running sum": on("running_sum", x(3, 1).round(1), cycle(3)),
        "causal attention": on("causal_attention", x(2, 5, 3), cycle(5)),
        "attention with positions": on(
            "attention_with_positions", x(2, 5, 3), cycle(5)
        ),
        "positions alone": on("add_positions", x(5, 3), cycle(5)),
        "positions, more axes": on("add_positions", x(2, 3, 5, 4), cycle(5)),
        "an invariant function": on("sorted_in_time", x(5, 3), cycle(5)),
        "a rising input": on("first_position", rising, np.array([1, 2, 0])),
        "a swap of positions": on(
            "add_positions", x(4, 3), np.array([1, 0, 3, 2])
        ),
        "later examples": on("later_examples", x(3, 5, 2), cycle(5)),
        "opposite channels": on("opposite_channels", x(5, 2), cycle(5)),
        "opposite examples": on("opposite_examples", x(2, 5, 3), cycle(5)),
        "one place": on("last_number", x(9, 3), cycle(9)),
        # The gap is 0 at both ends of each axis.
        "a place in the middle": on(
            "middle_number", x(3, 5, 3), np.array([0, 3, 1, 2, 4])
        ),
        # Its gap is 1; the inverse permutation has the gap 1000.
        "a permutation, not its inverse": on(
            "first_position",
            np.array([[0.0], [1.0], [1000.0]]),
            np.array([1, 2, 0]),
        ),
        "large inputs": on("add_positions", 1e3 * x(5, 3), cycle(5)),
        "a faint trace": on("faint_positions", x(2, 5, 3), cycle(5)),
        "large outputs": on(
            "huge_positions", x(3, 1).round(1), np.array([1, 2, 0])
        ),
    }


BLIND = (
    "three times",
    "attention",
    "attention, one sequence",
    "attention, equal sizes",
    "attention, more axes",
    "a swap",
    "nothing permuted",
)
SEEING = (
    "running sum",
    "causal attention",
    "attention with positions",
    "positions alone",
    "positions, more axes",
    "an invariant function",
    "a rising input",
    "a swap of positions",
    "later examples",
    "opposite channels",
    "opposite examples",
    "one place",
    "a place in the middle",
    "a permutation, not its inverse",
    "large inputs",
)


def probe_gap(answer, inputs):
    """Calls with the functions that the inputs name."""

    def with_function(name, x, perm):
        return answer(FUNCTIONS[name], x, perm)

    return call_torch(with_function, inputs)


def _gap_zero(seen, want, inputs):
    for name in BLIND:
        if isinstance(seen[name]["out"], Raised):
            return Failure(trouble(seen[name]["out"]), name)
        gap = number(seen[name]["out"])
        if not abs(gap) < 1e-9:
            return Failure(f"{gap:.4g} came back where 0 is due", name)
    return None


def _gap_positive(seen, want, inputs):
    for name in SEEING:
        if isinstance(seen[name]["out"], Raised):
            return Failure(trouble(seen[name]["out"]), name)
        gap = number(seen[name]["out"])
        if not gap > 1e-9:
            return Failure(
                f"{gap:.4g} came back where the gap is positive", name
            )
    return None


def _gap_norm(seen, want, inputs):
    for name in (*SEEING, "a faint trace", "large outputs"):
        # Every usual norm lies between the mean and the sum of the absolute
        # entries, and these between largest / count and largest * count.
        gap, largest = number(seen[name]["out"]), number(want[name]["out"])
        count = inputs[name]["args"][1].size
        low, high = largest / count, largest * count
        if not low * 0.999 < gap < high * 1.001:
            return Failure(
                f"{gap:.4g} came back; the largest absolute entry of the "
                f"difference is {largest:.4g}, so a norm of it lies between "
                f"{low:.2g} and {high:.2g}",
                name,
            )
    return None


def _gap_features(seen):
    """Signs and rough sizes of the gaps, which no choice of a norm moves."""
    codes = []
    for name in (*BLIND, *SEEING, "large outputs", "a faint trace"):
        out = seen[name]["out"]
        gap = np.nan if isinstance(out, Raised) else number(out)
        # A gap relative to what is large is then a small one.
        gap /= {"large outputs": 1e5, "large inputs": 50}.get(name, 1)
        size = (abs(gap) > 1e-9) / 2 + (abs(gap) > 1e-4) / 2
        codes.append(3.0 if np.isnan(gap) else np.sign(gap) * size)
    # A faint gap's square is far below its norms, but not 0.
    return [
        *codes,
        float(gap > 0),
        float(number(seen["a permutation, not its inverse"]["out"]) > 30),
        float(any(seen[name].get("changed") for name in seen)),
    ]


equivariance_gap = Exercise(
    "equivariance_gap",
    gap_inputs,
    of_calls(
        law(
            "0 for equivariant functions",
            _gap_zero,
            points=1,
            gate=True,
            needs=("shape and dtype",),
            because=("sums of up to 120 float64 roundings of size 1e-15"),
            says=(
                "Permute f(x) and x along the time axis, both with perm "
                "itself, and compare: what treats positions alike has the "
                "gap 0."
            ),
        ),
        law(
            "positive for functions that see order",
            _gap_positive,
            points=1,
            gate=True,
            says=(
                "A mask and positions break the symmetry, and the gap has to "
                "show it: compare with f of the permuted x, and take absolute "
                "values before you reduce."
            ),
        ),
        law(
            "a norm",
            _gap_norm,
            points=1,
            says=(
                "Half the difference is half the norm. A mean of squares "
                "without its root, or a verdict of equal or unequal, hides "
                "small gaps; a division by the size of f(x) hides large ones."
            ),
        ),
    ),
    probe=probe_gap,
    features=_gap_features,
)


# 3.4


def rope_inputs(rng):
    T5, T4 = np.arange(5), np.arange(4)
    heads, square = rng.randn(2, 3, 5, 6), rng.randn(4, 4, 4)
    shuffled = rng.permutation(20)[:5]
    each = np.stack([np.arange(5), np.arange(5) + 3])[:, None]
    one, up = rng.randn(5, 6), rng.randn(5, 6)
    tokens = rng.randn(2, 5, 6)
    return {
        "one pair": case(np.array([[1.0, 0.5]]), np.array([1])),
        "two pairs": case(rng.randn(1, 4).round(2), np.array([1])),
        "position 0": case(rng.randn(1, 4).round(2), np.array([0])),
        # Before float64 of the same width, which must not reuse its angles.
        "float32": case(one.astype("float32"), T5),
        "heads": case(heads, T5),
        "three pairs": case(one, T5),
        "moved by seven": case(one, T5 + 7),
        "equal sizes": case(square, T4),
        "a view": case(heads[0], T5, strided=True),
        "heads and time exchanged": case(
            rng.randn(2, 5, 3, 6).transpose(0, 2, 1, 3), T5
        ),
        "half split, two pairs": case(
            rng.randn(1, 4).round(2), np.array([1]), interleaved=False
        ),
        "half split": case(heads, T5, interleaved=False),
        "half split, equal sizes": case(square, T4, interleaved=False),
        "half split, moved by seven": case(one, T5 + 7, interleaved=False),
        "later positions": case(heads[0], T5 + int(rng.randint(50, 100))),
        "any order": case(one, shuffled),
        "repeated positions": case(one, np.array([4, 0, 0, 9, 4])),
        "positions of each example": case(heads, each),
        "half split, positions of each example": case(
            heads, each, interleaved=False
        ),
        "positions of each example, no heads": case(tokens, each[:, 0]),
        "positions of each head": case(heads, np.stack([T5, T5 + 3, 2 * T5])),
        "positions of each head and example": case(
            heads, rng.randint(0, 50, (2, 3, 5))
        ),
        "one position for all": case(one, np.array(3)),
        "one position, with an axis": case(one, np.array([3])),
        "one position of each example": case(
            heads, np.array([2, 7])[:, None, None]
        ),
        "far away": case(one, T5 + 10_000),
        "another base": case(one, T5, round(rng.uniform(50, 500), 2)),
        "another base by name": case(one, T5, base=5e5),
        "half split, another base": case(one, T5, 100.0, interleaved=False),
        "gradient": case(one, T5, upstream=[up]),
        "half split, gradient": case(
            one, T5, interleaved=False, upstream=[up]
        ),
        # float16 cannot hold odd numbers above 2048.
        "float16": case(one, T5 + 3001, dtype="float16"),
        "float16, small results": case(
            _turned_to_small(rng), np.arange(1, 5), 10.0, dtype="float16"
        ),
        "float16, half split, small results": case(
            _turned_to_small(rng)[:, [0, 2, 1, 3]],
            np.arange(1, 5),
            10.0,
            interleaved=False,
            dtype="float16",
        ),
        "bfloat16": case(one, T5 + 900, dtype="bfloat16"),
        "odd width": case(rng.randn(2, 3).round(2), np.arange(2)),
        "odd width, half split": case(
            rng.randn(2, 5), np.arange(2), interleaved=False
        ),
    }


def _turned_to_small(rng):
    """Vectors (4, 4) that base 10 turns, at positions 1 to 4, almost away.

    The first channel of each pair ends near 0.01: where a cosine or a product
    has been rounded to half precision, nothing of that is left.
    """
    i = np.arange(2)
    angle = np.arange(1, 5)[:, None] * 10.0 ** (-i / 2)
    small, long = 0.01 * rng.uniform(0.5, 1.5, (4, 2)), np.ones((4, 2))
    back = [
        small * np.cos(angle) + long * np.sin(angle),
        long * np.cos(angle) - small * np.sin(angle),
    ]
    return np.stack(back, -1).reshape(4, 4)


NEAR = (
    "one pair",
    "two pairs",
    "position 0",
    "heads",
    "three pairs",
    "equal sizes",
)
SPLIT = (
    "half split, two pairs",
    "half split",
    "half split, equal sizes",
    "half split, moved by seven",
)
PLACES = (
    "moved by seven",
    "later positions",
    "any order",
    "repeated positions",
    "positions of each example",
    "positions of each example, no heads",
    "positions of each head",
    "positions of each head and example",
    "one position for all",
    "one position, with an axis",
    "one position of each example",
)
ANGLES = (
    "angles up to 120 radians in float32; a property of its own looks "
    "at float64"
)


def _lengths_kept(seen, want, inputs):
    for name in NEAR:
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(trouble(out), name)
        before = np.linalg.norm(inputs[name]["args"][0], axis=-1)
        after = np.linalg.norm(out.data, axis=-1)
        if not np.abs(after - before).max() < 1e-5:
            return Failure("a vector has another length than before", name)
    return None


def _distance_only(seen, want, inputs):
    here, there = (
        seen[name]["out"].data.astype(float)
        for name in ("three pairs", "moved by seven")
    )
    change = np.abs(here @ here.T - there @ there.T).max()
    if not change < 1e-4:
        return Failure(
            f"with all positions moved by 7 the scores change by {change:.3g}",
            "moved by seven",
        )
    return None


apply_rope = Exercise(
    "apply_rope",
    rope_inputs,
    of_calls(
        law(
            "lengths are kept",
            _lengths_kept,
            because=(
                "shows that a rotation is not yet the right one: only mixed "
                "pairs and wrong signs fail it"
            ),
            says=(
                "A rotation changes no length: each pair needs one angle, and "
                "one minus sign."
            ),
        ),
        law(
            "scores depend on distance only",
            _distance_only,
            needs=("lengths are kept",),
            because="as above",
            says=(
                "A query and a key that move together keep their score: the "
                "angle has to be proportional to the position."
            ),
        ),
        values(
            "neighbours are pairs",
            *NEAR,
            points=1.75,
            gate=True,
            tol=1e-5,
            because=ANGLES,
            says=(
                "Channels 2i and 2i + 1 are pair i; at position m it turns "
                "by m times base to the power −2i/Dh, from the first channel "
                "towards the second."
            ),
        ),
        values(
            "half-split pairs",
            *SPLIT,
            points=1,
            tol=1e-5,
            because=ANGLES,
            says=(
                "With interleaved=False, pair i is channels i and i + Dh/2, "
                "with the same angles."
            ),
        ),
        values(
            "positions",
            *PLACES,
            points=0.75,
            tol=1e-4,
            because=ANGLES,
            says=(
                "The angles come from positions, which broadcasts to x's "
                "shape without its last axis, and may hold any numbers."
            ),
        ),
        values(
            "a view",
            "a view",
            "heads and time exchanged",
            points=0.25,
            tol=1e-5,
            because=ANGLES,
            says=(
                "x may be a non-contiguous view: .view and view_as_complex do "
                "not take every tensor, .reshape and .contiguous() do."
            ),
        ),
        values(
            "base",
            "another base",
            "another base by name",
            "half split, another base",
            points=0.25,
            tol=1e-5,
            because=ANGLES,
            says=("The frequencies come from the base that is given."),
        ),
        values(
            "gradients",
            "gradient",
            "half split, gradient",
            part="grads",
            points=0.25,
            tol=1e-5,
            because=ANGLES,
            says="Gradients flow to x.",
        ),
        values(
            "float64",
            *NEAR,
            *SPLIT,
            *PLACES,
            "half split, positions of each example",
            "far away",
            "another base",
            points=0.25,
            needs=("half-split pairs", "positions"),
            says=(
                "float64 inputs need float64 angles: a torch.arange(…) / Dh "
                "or .float() on the way is float32, and costs nine digits."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-5,
            because=("angles up to 4 radians in float32, entries up to 4"),
            says=("float32 inputs give float32 outputs."),
        ),
        values(
            "float16",
            "float16",
            points=0.25,
            tol=2e-3,
            because=HALF,
            says=(
                "Half-precision inputs are turned in float32 and returned in "
                "their own dtype: float16 cannot hold position 3001, and a "
                "frequency in it, times 3000, is off by tenths of a radian."
            ),
        ),
        values(
            "half precision, small results",
            "float16, small results",
            "float16, half split, small results",
            tol=1.1e-3,
            floor=1e-2,
            because="one unit in float16's last place is 1e-3 of a number",
            says=(
                "Where the two products of a channel almost cancel, a "
                "cosine, a sine or a product that was rounded to float16 "
                "shows. Turn in float32, and round the finished result only."
            ),
        ),
        values(
            "bfloat16",
            "bfloat16",
            tol=1e-2,
            because=SHORT,
            says=(
                "bfloat16 inputs are turned in float32 and returned in "
                "bfloat16: it cannot even hold the position 901."
            ),
        ),
        refuses(
            "an odd width",
            "odd width",
            "odd width, half split",
            points=0.25,
            says=(
                "An odd Dh leaves a channel without a partner: raise a "
                "ValueError."
            ),
        ),
        keeps_device(),
    ),
    probe=follows("three pairs", "half split"),
)


# 3.5


def layout_inputs(rng):
    def names(*shape):
        return rng.permutation(int(np.prod(shape))).reshape(shape) / 4

    weight, square = rng.randn(18, 5), rng.randn(12, 12)
    return {
        "one head": case(names(6, 1), 1, "half"),
        "one head, a bias": case(names(6), 1, "half"),
        "heads": case(weight, 3, "half"),
        "wider heads": case(rng.randn(20, 3), 2, "half"),
        "a square weight": case(square, 2, "half"),
        "heads of two channels": case(rng.randn(6, 5), 3, "half"),
        "as many heads as channels": case(rng.randn(36, 1), 6, "half"),
        "a view": case(weight, 3, "half", strided=True),
        "back, one head": case(names(6, 1), 1, "interleaved"),
        "back, heads": case(weight, 3, "interleaved"),
        "back, wider heads": case(rng.randn(20, 3), 2, "interleaved"),
        "back, a square weight": case(square, 2, "interleaved"),
        "a bias of heads": case(rng.randn(18), 3, "half"),
        "back, a bias of heads": case(rng.randn(18), 3, "interleaved"),
        "a transposed view": case(rng.randn(5, 18).T, 3, "half"),
        "float16": case(names(6, 2), 1, "half", dtype="float16"),
        "unknown layout": case(names(6, 1), 1, "interleave"),
        "half-split, a layout by another name": case(
            names(6, 1), 1, "half-split"
        ),
        "Half, another spelling": case(names(6, 1), 1, "Half"),
    }


rope_layout = Exercise(
    "rope_layout",
    layout_inputs,
    of_calls(
        values(
            "to half-split",
            "one head",
            "heads",
            "wider heads",
            "a square weight",
            "heads of two channels",
            "as many heads as channels",
            "a view",
            "a transposed view",
            points=1.75,
            gate=True,
            says=(
                "Within each head, the rows of all first channels come "
                "first, pair by pair, then those of all second channels."
            ),
        ),
        values(
            "to interleaved",
            "back, one head",
            "back, heads",
            "back, wider heads",
            "back, a square weight",
            points=1.25,
            because="its biases show it, too; these are the weights",
            says=(
                "The way back undoes the other one: rows i and i + Dh/2 of a "
                "head become neighbours."
            ),
        ),
        values(
            "a bias",
            "one head, a bias",
            "a bias of heads",
            "back, a bias of heads",
            points=0.5,
            says="A bias has rows as well, but no columns.",
        ),
        values(
            "float16",
            "float16",
            because=(
                "a permutation matrix in float32 cannot multiply half weights"
            ),
            says=(
                "Only the order changes: values and dtype stay as they are."
            ),
        ),
        refuses(
            "unknown layout",
            "unknown layout",
            "half-split, a layout by another name",
            "Half, another spelling",
            points=0.5,
            says=(
                "Any `to` but these two words, spelt like this, is a mistake "
                "of the caller: raise a ValueError."
            ),
        ),
        keeps_device(),
    ),
    probe=follows("heads"),
)


# 3.6


def alibi_inputs(rng):
    small, middle, large = (int(rng.randint(T, T + 3)) for T in (4, 6, 9))
    return {
        "eight heads": case(8, 2, 2),
        "eight heads, longer": case(8, middle, middle),
        "two heads": case(2, 5, 5),
        "one head": case(1, large, large),
        "sixteen heads": case(16, 3, 3),
        "equal sizes": case(4, 4, 4),
        "six heads": case(6, 5, 5),
        "three heads": case(3, middle, middle),
        "eleven heads": case(11, 4, 4),
        "twelve heads": case(12, small, small),
        "one new query": case(8, 1, 5),
        "three new queries": case(4, 3, large),
        "more queries than keys": case(2, 5, 3),
        "float64": case(16, 3, 3, dtype="float64"),
        "float64, heads not seen before": case(5, 3, 4, dtype="float64"),
    }


def _weights(out):
    """Softmax over the keys at or before each query that has one."""
    bias = out.data.astype(float)
    Tq, Tk = bias.shape[-2:]
    bias = bias[:, max(Tq - Tk, 0) :]
    future = np.arange(Tk) > np.arange(max(Tk - Tq, 0), Tk)[:, None]
    scores = np.where(future, -np.inf, bias)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _alibi(names, tol, seen, want, inputs):
    for name in names:
        out, due = seen[name]["out"], want[name]["out"]
        if isinstance(out, Raised):
            return Failure(trouble(out), name)
        if out.dtype != due.dtype or out.data.shape != due.data.shape:
            return Failure(
                f"{describe(out)} came back where {describe(due)} is due", name
            )
        with np.errstate(invalid="ignore", over="ignore"):
            got, due = _weights(out), _weights(due)
        error = np.nan_to_num(np.abs(got - due), nan=np.inf)
        if error.max() > tol:
            h, i, j = np.unravel_index(np.argmax(error), error.shape)
            _, Tq, Tk = inputs[name]["args"]
            return Failure(
                f"after the softmax, head {h} gives key {j} the weight "
                f"{got[h, i, j]:.4g} for query {i + max(Tq - Tk, 0)}, where "
                f"{due[h, i, j]:.4g} is due",
                name,
            )
    return None


def alibi_values(name, *cases, tol, **kwargs):
    def judge(*args):
        return _alibi(cases, tol, *args)

    return law(name, judge, **kwargs)


def _finite(seen, want, inputs):
    for name in inputs:
        out = seen[name]["out"]
        # What raises fails elsewhere.
        if isinstance(out, Raised):
            continue
        if not np.isfinite(out.data).all():
            return Failure("an entry is infinite or NaN", name)
    return None


def _alibi_features(seen):
    parts = []
    for name in sorted(seen):
        out = seen[name]["out"]
        if isinstance(out, Raised) or out.data.ndim != 3:
            parts.append([9.0])
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            # A corner of each, so that a sketch takes every number.
            parts.append(
                np.nan_to_num(_weights(out)[:, -2:, -4:].ravel(), nan=7)
            )
        parts.append(
            [
                float(np.isfinite(out.data).all()),
                float(out.dtype == "float64"),
                float(out.library == "numpy"),
                *out.data.shape[:2],
            ]
        )
    return np.concatenate(parts)


FLOAT32 = "6e-8 of biases up to 6"

alibi_bias = Exercise(
    "alibi_bias",
    alibi_inputs,
    of_calls(
        alibi_values(
            "slopes and distances",
            "eight heads",
            "eight heads, longer",
            "two heads",
            "one head",
            "sixteen heads",
            "equal sizes",
            points=1.5,
            gate=True,
            tol=1e-5,
            because=FLOAT32,
            says=(
                "Head h (from 1) of H has the slope 2 to the power "
                "−8h/H; the bias is minus slope times distance, so "
                "near keys weigh more."
            ),
        ),
        alibi_values(
            "any number of heads",
            "six heads",
            "three heads",
            "eleven heads",
            "twelve heads",
            points=1,
            tol=1e-5,
            because=FLOAT32,
            says=(
                "Between two powers of two, take all slopes of the "
                "smaller one, then every other slope of the larger "
                "one: 6 heads have 1/4, 1/16, 1/64, 1/256, 1/2, 1/8."
            ),
        ),
        alibi_values(
            "fewer or more queries than keys",
            "one new query",
            "three new queries",
            "more queries than keys",
            points=0.75,
            tol=1e-5,
            because=FLOAT32,
            says=(
                "The newest query stands at the newest key, so query i "
                "stands at position i + Tk − Tq."
            ),
        ),
        law(
            "finite",
            _finite,
            points=0.5,
            needs=("shape and dtype",),
            says=(
                "The causal mask is applied by somebody else: leave it out, "
                "so that the bias stays finite."
            ),
        ),
        alibi_values(
            "float64",
            "float64",
            "float64, heads not seen before",
            points=0.25,
            tol=1e-10,
            says=(
                "The result has torch's default dtype, with slopes as precise."
            ),
        ),
    ),
    probe=probe_default_dtypes,
    features=_alibi_features,
)


# 3.7


def inv_freq_inputs(rng):
    factor = round(rng.uniform(2, 7), 2)
    return {
        "linear": case(4, 1e4, "linear", 2.0, 1024),
        "linear, more pairs": case(16, 5e5, "linear", factor, 8192),
        "linear, factor 1": case(6, 1e4, "linear", 1.0, 512),
        "ntk": case(4, 1e4, "ntk", 2.0, 1024),
        "ntk, more pairs": case(22, 1e4, "ntk", factor, 4096),
        "ntk, the published example": case(128, 1e4, "ntk", 8.0, 4096),
        "yarn": case(8, 1e4, "yarn", 4.0, 2048),
        "yarn, Llama's width": case(128, 1e4, "yarn", factor, 4096),
        "yarn, another base": case(64, 5e5, "yarn", 16.0, 8192),
        "yarn, odd number of pairs": case(26, 1e4, "yarn", factor, 2048),
        "yarn, short context": case(32, 1e4, "yarn", factor, 64),
        "yarn, narrow ramp": case(
            64, 1e4, "yarn", factor, 4096, beta_fast=8, beta_slow=4
        ),
        "yarn, no ramp": case(
            16, 1e4, "yarn", factor, 20, beta_fast=32, beta_slow=4
        ),
        "yarn, base 100": case(16, 100.0, "yarn", factor, 2048),
        "yarn, base 20": case(16, 20.0, "yarn", factor, 2048),
        "yarn, factor 1": case(8, 1e4, "yarn", 1.0, 2048),
        "llama3": case(8, 1e4, "llama3", 4.0, 2048),
        "llama3, as published": case(128, 5e5, "llama3", 8.0, 8192),
        "llama3, factor 32": case(64, 5e5, "llama3", 32.0, 8192),
        "llama3, odd number of pairs": case(26, 1e4, "llama3", factor, 2048),
        "llama3, other limits": case(
            64,
            1e4,
            "llama3",
            factor,
            4096,
            low_freq_factor=2.0,
            high_freq_factor=16.0,
        ),
        # Only a keyword or only the context differs from an earlier case.
        "yarn, other limits": case(
            128, 1e4, "yarn", factor, 4096, beta_fast=16, beta_slow=2
        ),
        "yarn, another context": case(8, 1e4, "yarn", 4.0, 256),
        "unknown method": case(8, 1e4, "cubic", 1.0, 1024),
        "dynamic, a method of transformers": case(
            8, 1e4, "dynamic", 2.0, 1024
        ),
        "default, a method of transformers": case(
            8, 1e4, "default", 2.0, 1024
        ),
        "YaRN, another spelling": case(8, 1e4, "YaRN", 2.0, 1024),
    }


def probe_inv_freq(answer, inputs):
    """Calls; frequencies in float32 and in float64 are equally good."""

    def widened(*args, **kwargs):
        out = answer(*args, **kwargs)
        if isinstance(out, list | tuple) and len(out) == 2:
            freq, factor = out
            if isinstance(freq, torch.Tensor) and freq.dtype == torch.float32:
                freq = freq.double()
            # A factor of 1 is as good as 1.0.
            if type(factor) is int:
                factor = float(factor)
            return freq, factor
        return out

    return call_torch(widened, inputs)


def _frequencies(prefix, seen, want, inputs):
    for name in inputs:
        if name.split(",")[0] != prefix:
            continue
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(trouble(out), name)
        got, due = out[0].data, want[name]["out"][0].data
        if got.shape != due.shape:
            return Failure(
                f"{describe(out[0])} came back where "
                f"{describe(want[name]['out'][0])} is due",
                name,
            )
        error = np.nan_to_num(np.abs(got / due - 1), nan=np.inf)
        if error.max() > 5e-6:
            i = int(np.argmax(error > 5e-6))
            return Failure(
                f"frequency {i} is {got[i]:.6g} where {due[i]:.6g} is due",
                name,
            )
    return None


def inv_freq_values(name, prefix, **kwargs):
    def judge(*args):
        return _frequencies(prefix, *args)

    return law(
        name,
        judge,
        needs=("shape and dtype",),
        because=(
            "float32 rounds the exponent to 6e-8, which base 5e5 and the "
            "blend of llama3 make up to 4e-6 of the result"
        ),
        **kwargs,
    )


def _attention_factors(seen, want, inputs):
    for name in inputs:
        if isinstance(want[name]["out"], Raised):
            continue
        out = seen[name]["out"]
        if isinstance(out, Raised):
            if name.startswith("yarn"):
                return Failure(trouble(out), name)
            continue  # it fails where its frequencies are judged
        got, due = number(out[1]), number(want[name]["out"][1])
        if not abs(got - due) < 1e-6:
            return Failure(
                f"the attention factor is {got:.6g} where {due:.6g} is due",
                name,
            )
    return None


def _inv_freq_features(seen):
    parts = []
    for name in sorted(seen):
        out = seen[name]["out"]
        if isinstance(out, Raised):
            parts.append([20.0 if "ValueError" in out.bases else 30.0])
            continue
        freq = np.asarray(out[0].data, float).ravel()[:16]
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(
                np.nan_to_num(np.log(freq), nan=50, posinf=40, neginf=-40)
            )
        parts.append([10 * number(out[1])])
    return np.concatenate(parts)


rope_inv_freq = Exercise(
    "rope_inv_freq",
    inv_freq_inputs,
    of_calls(
        inv_freq_values(
            "linear",
            "linear",
            points=0.75,
            gate=True,
            says=(
                "Pair i has the frequency base to the power −2i/d; linear "
                "scaling divides all of them by the factor."
            ),
        ),
        inv_freq_values(
            "ntk",
            "ntk",
            points=1.25,
            says=(
                "The base is multiplied with factor to the power d/(d − 2): "
                "the fastest pair is unchanged, the slowest becomes exactly "
                "its linear value."
            ),
        ),
        inv_freq_values(
            "yarn",
            "yarn",
            points=2.25,
            says=(
                "Find the two ends of the ramp in pair numbers, round them "
                "down and up, limit them to 0 and d − 1, and blend θ with θ/s "
                "between them: fast pairs are kept."
            ),
        ),
        inv_freq_values(
            "llama3",
            "llama3",
            points=1.75,
            says=(
                "Count the turns that a pair makes in orig_max positions: "
                "many turns keep θ, few get θ/s, and in between a straight "
                "line in the number of turns blends the two."
            ),
        ),
        law(
            "attention factor",
            _attention_factors,
            points=0.5,
            needs=("shape and dtype",),
            because="one logarithm, in float32 at the worst",
            says=(
                "The second value is 0.1 ln(factor) + 1 for yarn (1.1386 at "
                "factor 4), and 1.0 for every other method."
            ),
        ),
        refuses(
            "unknown method",
            "unknown method",
            "dynamic, a method of transformers",
            "default, a method of transformers",
            "YaRN, another spelling",
            points=0.5,
            says=(
                "Any method but these four, spelt like this, is a mistake of "
                "the caller: raise a ValueError."
            ),
        ),
    ),
    probe=probe_inv_freq,
    features=_inv_freq_features,
)


# 3.8

# Positions at which each rounding decides which pair is worst, and by how
# much: at others, an answer that leaves one out often comes to the same.
PLACE = {
    "bfloat16": (
        879,
        983,
        1031,
        1318,
        1806,
        1868,
        1966,
        2505,
        2515,
        3100,
        4503,
        4985,
        5020,
        5276,
        6008,
        6524,
        7036,
        7223,
    ),
    "float16": (
        4957,
        7009,
        7089,
        10555,
        12691,
        17251,
        20182,
        30405,
        33192,
        39109,
        40676,
        42729,
        43624,
        53004,
        54025,
        56297,
    ),
}
PRODUCT = {
    "bfloat16": (
        1061,
        1286,
        1629,
        2122,
        2221,
        2445,
        2651,
        2685,
        2780,
        2890,
        2928,
        3056,
        3149,
        3249,
        3277,
        3315,
        3473,
    ),
    "float16": (
        8955,
        9567,
        11112,
        11258,
        12513,
        13091,
        15657,
        17911,
        18353,
        18723,
        19059,
        19667,
        20466,
        21296,
        22068,
    ),
}


def angle_inputs(rng):
    def at(pos, dtype, *args, **kwargs):
        return case(int(pos), Verbatim(f"torch.{dtype}"), *args, **kwargs)

    return {
        "one pair": at(257, "bfloat16", 2),
        "two pairs": at(3, "bfloat16", 4),
        "bfloat16": at(1000, "bfloat16"),
        "bfloat16, further": at(rng.choice(PLACE["bfloat16"]), "bfloat16"),
        "bfloat16, products": at(rng.choice(PRODUCT["bfloat16"]), "bfloat16"),
        "bfloat16, far": at(131_071, "bfloat16"),
        "float16": at(1000, "float16"),
        "float16, further": at(rng.choice(PLACE["float16"]), "float16"),
        "float16, products": at(rng.choice(PRODUCT["float16"]), "float16"),
        "an exact angle": at(256, "bfloat16", 2),
        "position 1": at(1, "float16"),
        "other widths": at(1000, "bfloat16", 6),
        "wide heads": at(rng.randint(500, 900), "float16", d_head=256),
        "another base": at(1000, "bfloat16", 64, 5e5),
        "another base by name": at(777, "float16", base=100.0),
        "float32": at(rng.randint(100_000, 200_000), "float32"),
        "float32, near": at(1000, "float32"),
        "float64": at(1000, "float64"),
    }


def probe_angles(answer, inputs):
    """Calls with the dtypes that the inputs name."""

    def with_dtype(pos, dtype, *args, **kwargs):
        dtype = getattr(torch, dtype.removeprefix("torch."))
        return answer(pos, dtype, *args, **kwargs)

    return call_torch(with_dtype, inputs)


SHORT_ANGLES = (
    "one pair",
    "two pairs",
    "bfloat16",
    "bfloat16, further",
    "bfloat16, products",
    "bfloat16, far",
    "float16",
    "float16, further",
    "float16, products",
    "an exact angle",
    "position 1",
)

rope_angle_error = Exercise(
    "rope_angle_error",
    angle_inputs,
    of_calls(
        values(
            "short dtypes",
            *SHORT_ANGLES,
            points=2,
            gate=True,
            tol=1e-3,
            because=(
                "tells the roundings apart, and leaves exact angles in "
                "float32 to the last property"
            ),
            says=(
                "Round the position, round each exact frequency, multiply, "
                "round the product; the largest distance to the exact angle "
                "is the answer, as it is."
            ),
        ),
        values(
            "other widths and bases",
            "other widths",
            "wide heads",
            "another base",
            "another base by name",
            points=0.5,
            tol=1e-3,
            because="as above",
            says=(
                "d_head says how many pairs there are, base what their "
                "frequencies are."
            ),
        ),
        values(
            "float32 and float64",
            "float32",
            "float32, near",
            "float64",
            *SHORT_ANGLES,
            points=0.5,
            says=(
                "The exact angles, and the frequencies before they are "
                "rounded, need float64: only then are the errors of float32 "
                "visible."
            ),
        ),
    ),
    probe=probe_angles,
)
