"""Lesson 1: what right answers on self-attention must satisfy."""

import numpy as np
import torch

from autograder.exercise import (
    AUTOGRAD,
    FUSED,
    Exercise,
    Failure,
    keeps_device,
    law,
    of_calls,
    refuses,
    values,
)
from autograder.observations import form_difference, number
from autograder.probing import (
    call_numpy,
    call_torch,
    case,
    follows,
    stays_there,
)

SOFTMAX = (
    "softmax",
    "_softmax",
    "_safe_softmax",
    "log_softmax",
    "_log_softmax",
    "softmin",
)


def float16(
    *cases,
    says=(
        "Half-precision inputs are computed in float32 and returned in their "
        "own dtype."
    ),
    floor=1.0,
):
    """The `values` of cases with float16 inputs."""
    return values(
        "half precision",
        *cases,
        tol=2e-3,
        floor=floor,
        because=(
            "float16 has 11 bits: one unit in the last place is at most 1e-3"
        ),
        says=says,
    )


def bfloat16(*cases, floor=1.0):
    """The `values` of cases with bfloat16 inputs."""
    return values(
        "bfloat16",
        *cases,
        tol=8e-3,
        floor=floor,
        because=(
            "bfloat16 has 8 bits: one unit in the last place is at most 7.8e-3"
        ),
        says=(
            "bfloat16 is half precision too: widen it to float32 as you "
            "widen float16."
        ),
    )


def transposed(x):
    """The same numbers in another order in memory: views that swap axes."""
    return np.array(x.T, order="C").T


# 1.1


def softmax_inputs(rng):
    wide = np.array(
        [[0.0, 1.0, -2.0], [1e4, 1e4 - 1, -1e4], [-1e4, -1e4, -9.999e3]]
    )
    x = rng.randn(2, 3, 5)
    return {
        "one row": case(rng.randn(3).round(2)),
        "two rows": case(rng.randn(2, 3).round(2)),
        "a square": case(rng.randn(3, 3)),
        "first axis": case(rng.randn(3, 2).round(2), 0),
        "middle axis": case(x, 1),
        "axis counted from the end": case(x, dim=-3),
        "a large score": case(np.array([0, 1000]) + rng.rand(1).round(2)),
        "shifted up": case(rng.randn(2, 5) + 1e4),
        "shifted down": case(rng.randn(2, 5) - 1e4),
        "huge": case(np.array([1e30, -1e30, 0.0]) * (1 + rng.rand())),
        "hugely negative": case(
            np.array([-1e30, -2e30, -3e30]) * (1 + rng.rand())
        ),
        "rows of different scale": case(wide + rng.randn(3, 1)),
        "a view": case(rng.randn(3, 7), strided=True),
        "a transposed view": case(transposed(rng.randn(2, 3, 5))),
        "float32": case(rng.randn(2, 7).astype("float32")),
        "float32, large": case(
            _with_first(1000, rng.randn(1, 7) * 100).astype("float32")
        ),
        # exp(12) = 162,755; the largest number of float16 is 65,504.
        "float16": case(
            _with_first(12, rng.randn(40, 7) * 4), dtype="float16"
        ),
        # Exponentials of the first row that are rounded before their sum is
        # taken show an error of more than one unit in the last place.
        "bfloat16": case(
            np.vstack(
                [
                    [-1.5, -1.5, -1.625, -0.25, -2, -1.25, -0.625],
                    rng.randn(39, 7) * 4,
                ]
            ),
            dtype="bfloat16",
        ),
    }


def _with_first(score, scores):
    """Scores of which the first is a given one, whatever was drawn."""
    scores[0, 0] = score
    return scores


softmax = Exercise(
    "softmax",
    softmax_inputs,
    of_calls(
        values(
            "moderate scores",
            "one row",
            "two rows",
            "a square",
            "a view",
            "a transposed view",
            points=0.5,
            gate=True,
            says=(
                "Each entry is its exponential divided by the sum of the "
                "exponentials along dim."
            ),
        ),
        values(
            "any dim",
            "first axis",
            "middle axis",
            "axis counted from the end",
            points=0.5,
            says=(
                "dim says along which axis the numbers sum to 1; it may be "
                "any axis, counted from either end."
            ),
        ),
        values(
            "large scores",
            "a large score",
            "shifted up",
            "shifted down",
            "huge",
            "hugely negative",
            points=0.5,
            because="tells overflow from rows that spoil each other",
            says=(
                "softmax(x) and softmax(x + c) are the same numbers, so "
                "choose the c with which no exponential can overflow."
            ),
        ),
        values(
            "rows of different scale",
            "rows of different scale",
            points=0.5,
            says=(
                "Each row has to survive by itself, whatever the size of the "
                "scores in another row."
            ),
        ),
        values(
            "float32",
            "float32",
            "float32, large",
            tol=5e-5,
            because=("6e-8 of scores up to 300 before the exponential"),
            says=(
                "float32 inputs give float32 outputs, as accurate as float32 "
                "allows."
            ),
        ),
        float16("float16", floor=1e-4),
        bfloat16("bfloat16", floor=1e-4),
        keeps_device(),
    ),
    probe=follows("two rows", "middle axis"),
    forbids=SOFTMAX,
)


# 1.2

SCALES = {"none": 0.5, "sqrt": 0.0, "d": -0.5}  # the power of d_k that is due
SEEDS = 30
FEW, WIDE = 50, 32  # n and d_k
SPREADS = 100  # seeds over which the results' spread is measured
NARROW, BROAD = 0.067, 0.143  # what the spread lies between


def score_std_inputs(rng):
    seed = int(rng.randint(1000))
    small, large = 8, int(rng.randint(14, 18))
    sizes = [(small, scale) for scale in SCALES]
    sizes += [(large, scale) for scale in ("none", "sqrt")]
    return {
        "exact": [
            (d_k, 4_000, scale, seed + index)
            for index, (d_k, scale) in enumerate(sizes)
        ],
        # Whoever draws one query for all keys is right by luck now and then.
        "rough": [
            (small, 200, "sqrt", seed + index) for index in range(SEEDS)
        ],
        "seed": seed,
    }


def probe_score_std(answer, inputs):
    """Measured numbers, by what they are for."""
    seed = inputs["seed"]
    return {
        "exact": [answer(*call) for call in inputs["exact"]],
        "rough": [answer(*call) for call in inputs["rough"]],
        "few": [
            answer(WIDE, FEW, "sqrt", seed + index) for index in range(SPREADS)
        ],
        "again": answer(WIDE, FEW, "sqrt", seed),
        "more": answer(WIDE, 2 * FEW, "sqrt", seed),
        "default seed": answer(WIDE, FEW, "sqrt"),
        "seed 0": answer(WIDE, FEW, "sqrt", 0),
    }


def _std_number(seen, want, inputs):
    difference = form_difference(seen, want)
    return difference and Failure(difference)


def _std_values(seen, want, inputs):
    for name, tolerance in (("exact", 0.07), ("rough", 0.32)):
        for call, out in zip(inputs[name], seen[name], strict=True):
            d_k, _, scale, _ = call
            true = d_k ** SCALES[scale]
            if not abs(number(out) / true - 1) < tolerance:
                return Failure(
                    f"score_std({', '.join(map(repr, call))}) is "
                    f"{number(out):.4g}; the true value is {true:.4g}"
                )
    return None


def _std_measured(seen, want, inputs):
    few = [number(value) for value in seen["few"]]
    if few[0] == few[1]:
        return Failure("two seeds give the very same number")
    if few[0] == number(seen["more"]):
        return Failure("n and twice n give the very same number")
    if not NARROW < np.std(few) < BROAD:
        return Failure(
            f"over {SPREADS} seeds with d_k = {WIDE} and n = {FEW}, results "
            f"spread by {np.std(few):.2g}, where about 0.1 is due"
        )
    return None


def _std_repeats(seen, want, inputs):
    if number(seen["few"][0]) != number(seen["again"]):
        return Failure("the same seed gives two different numbers")
    if number(seen["default seed"]) != number(seen["seed 0"]):
        return Failure("without a seed it is not the number of seed 0")
    return None


def _std_features(seen):
    logs = [np.log(abs(number(value)) + 1e-9) for value in seen["exact"]]
    rough, few = (
        [number(value) for value in seen[name]] for name in ("rough", "few")
    )
    # Whether they scatter, not by how much: that would be noise.
    return [
        *logs,
        float(np.std(rough) > 0.13 * abs(np.mean(rough))),
        float(np.std(few) < NARROW * abs(np.mean(few))),
        float(np.std(few) > BROAD * abs(np.mean(few))),
        float(few[0] == few[1]),
        float(few[0] == number(seen["again"])),
        # One number for every n tells a formula from a fixed seed.
        float(few[0] == number(seen["more"])),
        float(number(seen["default seed"]) == number(seen["seed 0"])),
    ]


score_std = Exercise(
    "score_std",
    score_std_inputs,
    (
        law(
            "a number",
            _std_number,
            because="what is no number cannot be measured",
            says=("Return one number, for instance a Python float."),
            gate=True,
        ),
        law(
            "within 7% of the truth",
            _std_values,
            points=1.5,
            gate=True,
            because=(
                "7% is 5.3 standard errors at d_k = 8, n = 4,000, and 32% "
                "is 5.5 at n = 200"
            ),
            says=(
                "Draw n queries and n keys with unit-variance entries, score "
                "each pair, divide as `scale` says, and take the standard "
                "deviation over the pairs."
            ),
        ),
        law(
            "measured",
            _std_measured,
            points=0.5,
            because=(
                "results spread by 0.104 at d_k = 32, n = 50; 100 that spread "
                "by less than 0.067 or more than 0.143 have a probability of "
                "2e-7. Those of all n·n pairs spread by 0.030, those of one "
                "number for all entries of a query by 0.19"
            ),
            says=(
                "The number has to come from n random pairs, each entry drawn "
                "by itself: other seeds give slightly different numbers, and "
                "fewer pairs scatter more."
            ),
        ),
        law(
            "the seed decides",
            _std_repeats,
            says=("All randomness comes from a generator made from seed."),
        ),
    ),
    probe=probe_score_std,
    features=_std_features,
)


# 1.3


def jacobian_inputs(rng):
    def weights(n, sharpness):
        y = np.exp(sharpness * rng.randn(n))
        return y / y.sum()

    first, second = rng.randint(10, 40, size=2)
    percent = np.array([first, second, 100 - first - second])
    almost = np.array([1 - 2e-9, 1e-9, 1e-9])
    return {
        "two weights": case(np.array([0.75, 0.25])),
        "three weights": case(percent / 100),
        "seven weights": case(weights(7, 1)),
        "uneven": case(weights(5, 3)),
        "uniform": case(np.full(4, 0.25)),
        "nearly one-hot": case(almost),
        "one-hot": case(np.eye(3)[1]),
        "one weight": case(np.ones(1)),
    }


def _rows_cancel(seen, want, inputs):
    for name in inputs:
        total = np.abs(seen[name]["out"].data.sum(-1)).max()
        # Sums of up to 7 numbers below 1, each exact to 1e-16.
        if not total < 1e-12:
            return Failure(f"a row sums to {total:.3g}", name)
    return None


softmax_jacobian = Exercise(
    "softmax_jacobian",
    jacobian_inputs,
    of_calls(
        values(
            "the derivative",
            "two weights",
            "three weights",
            "seven weights",
            "uneven",
            "uniform",
            points=2.5,
            gate=True,
            says=(
                "Entry (i, j) says how y_i moves when score j grows: work "
                "out the quotient rule once for i = j and once for i ≠ j."
            ),
        ),
        law(
            "rows sum to 0",
            _rows_cancel,
            needs=("shape and dtype",),
            because="an invariant to see, implied by the values",
            says=(
                "Adding a constant to all scores changes no weight, so each "
                "row sums to 0."
            ),
        ),
        values(
            "saturated weights",
            "nearly one-hot",
            "one-hot",
            "one weight",
            points=0.5,
            because="division by a weight shows only here",
            says=(
                "The formula holds for one-hot weights too, where every "
                "entry is 0: divide by no weight."
            ),
        ),
    ),
    probe=call_numpy,
    forbids=AUTOGRAD,
)


# 1.4


def mask_inputs(rng):
    tall, wide = int(rng.randint(6, 9)), int(rng.randint(9, 12))
    return {
        "square": case(3, 3),
        "a larger square": case(tall, tall),
        "one key": case(1, 1),
        "one new query": case(1, 4),
        "two new queries": case(2, 5),
        "three new queries": case(3, wide),
        "more queries than keys": case(4, 2),
        "many more queries": case(wide, 3),
        "a long past": case(2, int(rng.randint(1040, 1060))),
        "lower right by name": case(2, 3, align="lower_right"),
        "upper left": case(2, 4, align="upper_left"),
        "upper left, one query": case(1, 4, align="upper_left"),
        "upper left, more queries": case(5, 3, align="upper_left"),
        "unknown alignment": case(2, 3, align="centre"),
        # Whoever treats squares or a single query first may not look at align.
        "another corner": case(3, 3, align="upper_right"),
        "the fourth corner": case(1, 3, align="lower_left"),
        "an empty name": case(2, 3, align=""),
        "capital letters": case(2, 3, align="Lower_Right"),
    }


def probe_mask(answer, inputs):
    """The calls, and whether the mask lies on the default device."""
    seen = call_torch(answer, inputs)
    with torch.device("meta"):
        seen["there"] = all(
            stays_there(answer, inputs[name])
            for name in ("square", "two new queries", "upper left")
        )
    return seen


causal_mask = Exercise(
    "causal_mask",
    mask_inputs,
    of_calls(
        values(
            "as many queries as keys",
            "square",
            "a larger square",
            "one key",
            points=0.5,
            gate=True,
            says=(
                "True where the query may look: at its own position and at "
                "those before it."
            ),
        ),
        values(
            "fewer queries than keys",
            "one new query",
            "two new queries",
            "three new queries",
            "lower right by name",
            "a long past",
            points=1,
            says=(
                "The queries are the newest positions: the last one sees "
                "every key, so the diagonal ends in the lower right corner."
            ),
        ),
        values(
            "more queries than keys",
            "more queries than keys",
            "many more queries",
            points=0.5,
            says=(
                "With more queries than keys, the first Tq − Tk queries see "
                "no key at all."
            ),
        ),
        values(
            "upper left on demand",
            "upper left",
            "upper left, one query",
            "upper left, more queries",
            points=0.5,
            says=(
                'With align="upper_left", query i sees keys 0 to i, '
                "whatever the sizes."
            ),
        ),
        refuses(
            "unknown alignment",
            "unknown alignment",
            "another corner",
            "the fourth corner",
            "an empty name",
            "capital letters",
            points=0.5,
            says=(
                "Any other align is a mistake of the caller: raise a "
                "ValueError."
            ),
        ),
        law(
            "default device",
            keeps_device().judge,
            because="no run on the CPU shows it",
            says=(
                "Leave the device to torch: whoever calls this function says "
                "with torch.device or torch.set_default_device where new "
                "tensors go."
            ),
        ),
    ),
    probe=probe_mask,
)


# 1.5


def attention_inputs(rng):
    def qkv(*batch, Tq, Tk, d, dv, scale=1.0):
        return (
            rng.randn(*batch, Tq, d) * scale,
            rng.randn(*batch, Tk, d),
            rng.randn(*batch, Tk, dv),
        )

    example = (
        np.array([[1.0, 1.0]]),
        np.array([[1.0, 1.0], [1.0, -1.0]]),
        np.array([[1.0, 0.0], [0.0, 1.0]]),
    )
    tiny = tuple(part.round(2) for part in qkv(Tq=2, Tk=2, d=2, dv=1))
    plain = qkv(2, 3, Tq=5, Tk=7, d=11, dv=2)
    square = qkv(2, Tq=5, Tk=5, d=3, dv=3)
    equal = qkv(3, 3, Tq=3, Tk=3, d=3, dv=3)
    new = qkv(Tq=3, Tk=7, d=2, dv=3)
    one = qkv(Tq=1, Tk=5, d=2, dv=3)
    many = qkv(Tq=5, Tk=3, d=2, dv=3)

    keep = rng.rand(2, 1, 1, 7) < 0.5
    keep[..., 0] = True
    keep[1, ..., -1] = ~keep[0, ..., -1]
    added = np.where(rng.rand(5, 5) < 0.3, -np.inf, rng.randn(5, 5))
    added[:, 0] = rng.randn(5)
    each = rng.randn(2, 1, 5)
    each[1, 0, 3] = -np.inf
    some = rng.rand(5, 5) < 0.6
    some[:, 0] = True
    dead = some.copy()
    dead[2] = False
    first_blocked = np.ones((5, 5), bool)
    first_blocked[:, 0] = False
    # One example of two sees nothing, or one head of three sees less.
    second_empty = np.array([[[True, False, True, True, True]], [[False] * 5]])
    head_keep = np.ones((3, 3, 3), bool)
    head_keep[0, :, 2] = head_keep[1, 1, 0] = head_keep[2, 2, :2] = False

    # Hidden values are huge, and every visible score lies far below any
    # finite fill. One visible key has the weight 1, however its score is
    # rounded on the way.
    low = (
        np.array([[1.0]]),
        -np.array([[1e3], [1e3 + 1], [1e3 + 2], [0.0]]),
        np.array([[1.0], [2.0], [3.0], [1e6]]),
    )
    lowest = (
        np.array([[1e5]]),
        np.array([[-1e6], [0.0]]),
        np.array([[1.0], [1e6]]),
    )
    poisoned = (square[0], square[1].copy(), square[2].copy())
    poisoned[1][:, -1] *= 50
    poisoned[2][:, -1] = 1e6
    hide_last = np.array([True] * 4 + [False])

    half = qkv(Tq=3, Tk=5, d=4, dv=2)
    # Every score exceeds float16's 65,504, whatever the draw.
    big = tuple(
        (np.abs(part) + 1) * 300 for part in qkv(Tq=2, Tk=3, d=4, dv=1)[:2]
    )
    # Large values that nearly cancel show weights rounded to 3 digits.
    nearly_even = (
        rng.uniform(-0.02, 0.02, (12, 1)),
        np.array([[1.0], [-1.0]]),
        np.array([[2e3], [-2e3]]),
    )
    # The products are large and cancel: whoever rounds on the way is off.
    first = 40 + rng.randint(-64, 65, (8, 1)) / 32
    cancelling = (
        np.hstack([first, rng.randint(-3, 4, (8, 1)) / 32 - first]),
        np.array([[30.0, 30.0], [-30.0, -30.0]]),
        half[2][:2],
    )
    # Scores near 100 that differ by 1: bfloat16 holds only halves there.
    near = (
        rng.randint(180, 250, (8, 1)) / 2,
        np.array([[1.0], [1.0078125]]),
        half[2][:2],
    )
    up = rng.randn(2, 5, 3)
    return {
        "the worked example": case(*example),
        "two queries": case(*tiny),
        "batch and heads": case(*plain),
        "equal sizes": case(*equal),
        "views": case(*square, strided=True),
        "transposed views": case(
            *(transposed(part) for part in qkv(2, 2, Tq=2, Tk=3, d=2, dv=2))
        ),
        "large scores": case(square[0] * 300, *square[1:]),
        "scale 0.5": case(*tiny, scale=0.5),
        "scale 0": case(*tiny, scale=0.0),
        "scale -0.5": case(*tiny, scale=-0.5),
        "boolean mask": case(
            *tiny, attn_mask=np.array([[True, False], [True, True]])
        ),
        "a mask for each example": case(*plain, attn_mask=keep),
        "a mask for each head": case(*equal, attn_mask=head_keep),
        "floating mask": case(*square, attn_mask=added),
        "a large floating mask": case(
            *square, attn_mask=rng.randn(5, 5) - 2e4
        ),
        "floating mask, scaled": case(*square, attn_mask=each, scale=2.0),
        "hidden poison": case(*poisoned, attn_mask=hide_last),
        "low scores": case(
            *low, attn_mask=np.array([[True, True, True, False]]), scale=1.0
        ),
        "very low scores": case(
            *lowest, attn_mask=np.array([[True, False]]), scale=1.0
        ),
        "causal": case(*square, is_causal=True),
        "causal, hidden poison": case(*poisoned, is_causal=True),
        "causal, one new query": case(*one, is_causal=True),
        "causal, three new queries": case(*new, is_causal=True),
        "causal and a mask": case(*square, attn_mask=some, is_causal=True),
        "causal and a floating mask": case(
            *square, attn_mask=added, is_causal=True
        ),
        "a row that sees nothing": case(*square, attn_mask=dead),
        "an example that sees nothing": case(*square, attn_mask=second_empty),
        "nothing visible by −inf": case(
            *square, attn_mask=np.where(dead, 0.0, -np.inf)
        ),
        "hidden by both masks together": case(
            *square, attn_mask=first_blocked, is_causal=True
        ),
        "hidden by −inf and the future": case(
            *square,
            attn_mask=np.where(first_blocked, 0.0, -np.inf),
            is_causal=True,
        ),
        "causal, more queries than keys": case(*many, is_causal=True),
        "gradient": case(*square, is_causal=True, upstream=[up, None]),
        "gradient of the weights": case(
            *square, upstream=[up, rng.randn(2, 5, 5)]
        ),
        "gradient past a dead row": case(
            *square, attn_mask=dead, upstream=[up, None]
        ),
        "gradient past an empty example": case(
            *square, attn_mask=second_empty, upstream=[up, None]
        ),
        "gradient of a floating mask": case(
            *square, attn_mask=rng.randn(5, 5), upstream=[up, None]
        ),
        "gradient past a row of −inf": case(
            *square,
            attn_mask=np.where(dead, 0.0, -np.inf),
            upstream=[up, None],
        ),
        "float32": case(*(part.astype("float32") for part in square)),
        "float16": case(*half, dtype="float16"),
        "float16, large": case(*big, half[2][:3], dtype="float16"),
        "float16, large values": case(*nearly_even, dtype="float16"),
        "float16, cancelling": case(*cancelling, scale=0.7, dtype="float16"),
        "float16, floating mask": case(
            *half,
            attn_mask=-2000.0 - rng.randint(0, 3, (3, 5)),
            dtype="float16",
        ),
        "float16, hidden": case(
            big[0],
            -big[1] * np.array([[2.0], [1.0], [1.0]]),
            half[2][:3],
            attn_mask=np.array([True, False, False]),
            dtype="float16",
        ),
        "bfloat16": case(*half, dtype="bfloat16"),
        "bfloat16, near scores": case(*near, scale=1.0, dtype="bfloat16"),
    }


scaled_dot_product_attention = Exercise(
    "scaled_dot_product_attention",
    attention_inputs,
    of_calls(
        values(
            "without a mask",
            "the worked example",
            "two queries",
            "batch and heads",
            "equal sizes",
            "views",
            "transposed views",
            "large scores",
            points=1.5,
            gate=True,
            says=(
                "Score each query with each key, divide by √d, softmax "
                "over the keys, average the values; return the output, "
                "then the weights."
            ),
        ),
        values(
            "scale",
            "scale 0.5",
            "scale 0",
            "scale -0.5",
            points=0.5,
            says=("A scale that is given replaces 1/√d, and 0.0 is one too."),
        ),
        values(
            "attn_mask",
            "boolean mask",
            "a mask for each example",
            "a mask for each head",
            "floating mask",
            "floating mask, scaled",
            "a large floating mask",
            points=0.75,
            because="tells the kind of mask from what it hides",
            says=(
                "A boolean mask is True where a query may look; a "
                "floating mask is added to the scaled scores."
            ),
        ),
        values(
            "what is hidden has no influence",
            "hidden poison",
            "low scores",
            "very low scores",
            points=0.5,
            says=(
                "A hidden key gets the weight 0 whatever its score and "
                "its value: hide it before the softmax, with −inf rather "
                "than with a large finite number."
            ),
        ),
        values(
            "is_causal",
            "causal",
            "causal, hidden poison",
            "causal, one new query",
            "causal, three new queries",
            "causal and a mask",
            "causal and a floating mask",
            points=0.75,
            says=(
                "No query looks at a later key; the last query sees "
                "every key; and a mask that is given applies as well."
            ),
        ),
        values(
            "rows that see nothing",
            "a row that sees nothing",
            "an example that sees nothing",
            "nothing visible by −inf",
            "hidden by both masks together",
            "hidden by −inf and the future",
            "causal, more queries than keys",
            points=0.5,
            because="a convention of the course, shown by itself",
            says=(
                "A query that may look at no key gets the weights 0 and "
                "the output 0."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient of the weights",
            "gradient past a dead row",
            "gradient past an empty example",
            "gradient of a floating mask",
            "gradient past a row of −inf",
            part="grads",
            points=0.5,
            says=(
                "Gradients flow to q, k, v and a floating mask, and stay "
                "finite where a query sees nothing: a NaN on the way back "
                "comes from an operation on that row, even if its result is "
                "replaced later."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=2e-6,
            because=("6e-8 an operation; sums of up to 5 terms"),
            says=("float32 inputs give float32 outputs."),
        ),
        float16(
            "float16",
            "float16, large",
            "float16, large values",
            "float16, cancelling",
            "float16, floating mask",
            "float16, hidden",
            says=(
                "Half-precision inputs are computed in float32 (their "
                "scores may not fit into float16) and returned in their "
                "own dtype."
            ),
        ),
        bfloat16("bfloat16", "bfloat16, near scores"),
        keeps_device(),
    ),
    probe=follows(
        "batch and heads",
        "a mask for each example",
        "floating mask",
        "causal and a mask",
    ),
    forbids=FUSED,
)


# 1.6


def masked_softmax_inputs(rng):
    scores = rng.randn(2, 3, 5, 7)
    keep = rng.rand(2, 1, 1, 7) < 0.6
    keep[..., 0] = True
    square, kept = rng.randn(3, 3, 3, 3), rng.rand(3, 1, 1, 3) < 0.6
    kept[..., 0] = True
    kept[1, ..., 1] = ~kept[0, ..., 1]
    hidden = np.array([[0.5, 1e4, -0.5], [1e4, 1.0, 2.0]])
    hide = np.array([[True, False, True], [False, True, True]])
    dead = rng.rand(4, 5) < 0.6
    dead[:, 0] = True
    dead[1] = False
    # One visible score has the weight 1, however it is rounded on the way.
    low = np.array([[-1e11, 1.0, 0.0], [0.0, -3e38, 2.0]])
    second_empty = np.array([[[True, False, True]], [[False] * 3]])
    return {
        "one row": case(
            rng.randn(1, 3).round(2), np.array([[True, False, True]])
        ),
        "all kept": case(rng.randn(2, 3), np.ones((2, 3), bool)),
        "a mask for each example": case(scores, keep),
        "equal sizes": case(square, kept),
        "one mask for all": case(rng.randn(2, 3, 5), rng.rand(3, 5) < 2),
        "transposed views": case(transposed(scores), keep),
        "a hidden large score": case(hidden, hide),
        "low scores": case(
            rng.randn(2, 3) - 1e3,
            np.array([[True, False, True], [True, True, False]]),
        ),
        "very low scores": case(
            low, np.array([[True, False, False], [False, True, False]])
        ),
        "large scores": case(rng.randn(3, 5) * 1e4, rng.rand(3, 5) < 2),
        "a row that sees nothing": case(
            rng.randn(2, 3).round(2),
            np.array([[False, False, False], [True, True, False]]),
        ),
        "dead rows among others": case(rng.randn(2, 4, 5), dead),
        "an example that sees nothing": case(rng.randn(2, 2, 3), second_empty),
        "gradient": case(
            rng.randn(3, 5),
            np.eye(3, 5, dtype=bool) | (np.arange(5) < 2),
            upstream=[rng.randn(3, 5)],
        ),
        "gradient past a dead row": case(
            rng.randn(4, 5), dead, upstream=[rng.randn(4, 5)]
        ),
        "gradient past an empty example": case(
            rng.randn(2, 2, 3), second_empty, upstream=[rng.randn(2, 2, 3)]
        ),
        "float32": case(rng.randn(4, 5).astype("float32"), dead),
        "float16": case(
            rng.randn(40, 7) * 4, np.arange(7) < 6, dtype="float16"
        ),
        "float16, low": case(
            6e4 * np.array([[-1.0, -1.0, 0.5]]),
            np.array([[True, True, False]]),
            dtype="float16",
        ),
        "bfloat16": case(
            rng.randn(40, 7) * 4, np.arange(7) < 6, dtype="bfloat16"
        ),
    }


masked_softmax = Exercise(
    "masked_softmax",
    masked_softmax_inputs,
    of_calls(
        values(
            "kept places",
            "one row",
            "all kept",
            "a mask for each example",
            "equal sizes",
            "one mask for all",
            "transposed views",
            points=1,
            gate=True,
            says=(
                "Only kept scores enter the softmax over the last axis; "
                "hidden places get 0."
            ),
        ),
        values(
            "hidden scores have no influence",
            "a hidden large score",
            "low scores",
            "very low scores",
            "large scores",
            points=0.75,
            because="tells a fill that loses from a dead row",
            says=(
                "Hide with −inf before the softmax: any finite fill meets "
                "scores that lie below it, and a mask after the softmax "
                "leaves the hidden scores in the denominator."
            ),
        ),
        values(
            "rows that see nothing",
            "a row that sees nothing",
            "dead rows among others",
            "an example that sees nothing",
            points=0.75,
            because="a convention of the course, shown by itself",
            says=("A row of which nothing is kept is all zeros."),
        ),
        values(
            "gradients",
            "gradient",
            "gradient past a dead row",
            "gradient past an empty example",
            part="grads",
            points=0.5,
            says=(
                "Gradients are finite everywhere and 0 for hidden scores: "
                "see to it that no NaN arises on the way, not only that it "
                "is replaced at the end."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-6,
            because="6e-8 an operation",
            says="float32 scores give float32 weights.",
        ),
        float16(
            "float16",
            "float16, low",
            floor=1e-4,
            says=(
                "Half-precision scores are computed in float32 and returned "
                "in their own dtype; −1e9 does not even fit into float16."
            ),
        ),
        bfloat16("bfloat16", floor=1e-4),
        keeps_device(),
    ),
    probe=follows("one row", "a mask for each example"),
    forbids=FUSED,
)


def padding_inputs(rng):
    lengths = rng.randint(1, 7, size=11)  # 6^11: nobody guesses them
    return {
        "three lengths": case(np.array([2, 1, 3]), 3),
        "an empty example": case(np.array([2, 0, 4]), 4),
        "every length": case(np.arange(6), T=5),
        "drawn lengths": case(lengths, 7),
        "one example": case(np.array([3]), 5),
        "as many examples as positions": case(np.array([4, 1, 3, 2]), 4),
        "one position": case(np.array([1, 0]), 1),
        "a long sequence": case(np.array([2, 1035]), 1050),
        "int32": case(lengths.astype("int32"), 7),
        # More positions than the dtype of the lengths can number.
        "uint8": case(np.append(lengths, 0).astype("uint8"), 300),
    }


padding_mask = Exercise(
    "padding_mask",
    padding_inputs,
    of_calls(
        values(
            "real positions",
            "three lengths",
            "drawn lengths",
            "one example",
            "as many examples as positions",
            "a long sequence",
            points=1.5,
            gate=True,
            says=(
                "Position t of an example is real if t is smaller than the "
                "example's length; True means that it may be looked at."
            ),
        ),
        values(
            "length 0 and length T",
            "an empty example",
            "every length",
            "one position",
            points=0.5,
            because="tells an empty example from a wrong dtype",
            says=(
                "An empty example has a row of False, a full one a row of "
                "True."
            ),
        ),
        values(
            "integer types",
            "int32",
            "uint8",
            because="tensors of lengths come in any integer type",
            says=(
                "lengths may be a tensor of any integer type, unsigned ones "
                "included."
            ),
        ),
        keeps_device(),
    ),
    probe=follows("three lengths"),
)


# 1.7


def additive_inputs(rng):
    def weights(B, Tdec, Tenc, ds, dh, da):
        return (
            rng.randn(B, Tdec, ds),
            rng.randn(B, Tenc, dh),
            rng.randn(da, ds),
            rng.randn(da, dh),
            rng.randn(da),
        )

    small = tuple(part.round(1) for part in weights(1, 1, 2, 1, 1, 1))
    plain = weights(2, 3, 5, 7, 4, 6)
    equal = weights(3, 3, 3, 3, 3, 3)
    keep = np.array(
        [[True, True, False, True, False], [True, False, True, True, True]]
    )
    empty = np.array([[False] * 5, [True, True, False, True, True]])
    poison = (plain[0], plain[1].copy(), *plain[2:])
    poison[1][0, 2] = 1e6
    up = rng.randn(2, 3, 4)
    # Every score lies far below any finite fill; with one visible state, its
    # weight is 1, however the score is rounded on the way.
    low = (*(np.abs(part) for part in plain[:4]), -1e12 * (1 + rng.rand(6)))
    single = np.eye(5, dtype=bool)[[1, 4]]

    def rounded(step, factor):
        # In the first example W s and U h are large and cancel; in the second
        # one nearly equal weights meet large values that cancel.
        near = (48 + step * np.arange(-2, 3.0))[:, None]
        even = (1 + np.arange(5.0) / 128)[:, None] / 256
        large = np.array([[1, 0], [-1, 1], [1, -1], [-1, 1], [0, -1]]) * 2e3
        return (
            np.stack([near[1:3], [[0.0], [1 / 64]]]),
            np.stack(
                [
                    np.hstack([near, np.zeros((5, 2))]),
                    np.hstack([even, large]),
                ]
            ),
            np.array([[factor]]),
            np.array([[-factor, 0.0, 0.0]]),
            np.array([3.0]),
        )

    return {
        "all widths 1": case(*small),
        "different widths": case(*plain),
        "equal widths": case(*equal),
        "large states": case(plain[0] * 30, *plain[1:]),
        "large weights": case(*plain[:4], plain[4] * 3000),
        "views": case(*plain, strided=True),
        "transposed views": case(*(transposed(part) for part in plain)),
        "keep": case(*plain, keep),
        "keep, equal sizes": case(
            *equal,
            np.array(
                [[True, False, True], [True, True, False], [True, True, True]]
            ),
        ),
        "all kept": case(*plain, np.ones((2, 5), bool)),
        "hidden poison": case(*poison, keep),
        "keep, very low scores": case(*low, single),
        "an example with nothing kept": case(*plain, empty),
        "gradient": case(*plain, keep, upstream=[up, rng.randn(2, 3, 5)]),
        "gradient past an empty example": case(
            *plain, empty, upstream=[up, None]
        ),
        "float32": case(*(part.astype("float32") for part in plain)),
        "float16": case(
            *rounded(1 / 32, 39 + 0.9 * rng.rand()), dtype="float16"
        ),
        "bfloat16": case(
            *rounded(1 / 4, 3.1 + 0.7 * rng.rand()), dtype="bfloat16"
        ),
    }


additive_attention = Exercise(
    "additive_attention",
    additive_inputs,
    of_calls(
        values(
            "without a mask",
            "all widths 1",
            "different widths",
            "equal widths",
            "large states",
            "large weights",
            "views",
            "transposed views",
            points=1.5,
            gate=True,
            says=(
                "The score of a decoder and an encoder state is v · tanh(W s "
                "+ U h); softmax over the encoder states, then average h "
                "itself."
            ),
        ),
        values(
            "keep",
            "keep",
            "keep, equal sizes",
            "all kept",
            "hidden poison",
            "keep, very low scores",
            points=0.75,
            because="the mask is a part of its own",
            says=(
                "Encoder positions where keep is False get the weight 0 for "
                "every decoder state of that example."
            ),
        ),
        values(
            "nothing kept",
            "an example with nothing kept",
            points=0.25,
            because="a convention of the course, shown by itself",
            says="An example with nothing kept has weights and context 0.",
        ),
        values(
            "gradients",
            "gradient",
            "gradient past an empty example",
            part="grads",
            points=0.5,
            because="a NaN may hide behind a right output",
            says=(
                "Gradients flow to s, h, W, U and v and stay finite where "
                "nothing is kept."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-6,
            because=("6e-8 an operation; sums of up to 7 terms of size 3"),
            says=("float32 inputs give float32 outputs."),
        ),
        float16("float16"),
        bfloat16("bfloat16"),
        keeps_device(),
    ),
    probe=follows("different widths", "keep"),
)


def luong_inputs(rng):
    s, h = rng.randn(2, 3, 7), rng.randn(2, 5, 7)
    wide, W = rng.randn(2, 5, 4), rng.randn(7, 4)
    square, other = rng.randn(3, 3, 3), rng.randn(3, 3, 3)

    def cancelling(step):
        # s W has two large entries that h subtracts: rounding them shows.
        return (
            48 + step * rng.randint(-9, 10, (1, 12, 2)),
            np.array([[[1.0, -1.0]]]),
            20 + rng.rand(2, 2),
        )

    return {
        "two states": case(
            rng.randn(1, 1, 2).round(1), rng.randn(1, 2, 2).round(1)
        ),
        "dot": case(s, h),
        "dot, equal sizes": case(square, other),
        "views": case(s, h, strided=True),
        "transposed views": case(transposed(s), transposed(h)),
        "general, small": case(
            rng.randn(1, 1, 2).round(1),
            rng.randn(1, 2, 2).round(1),
            np.array([[0.0, 1.0], [0.0, 0.0]]),
        ),
        "general": case(s, wide, W),
        "general, equal sizes": case(square, other, rng.randn(3, 3)),
        "float32": case(*(part.astype("float32") for part in (s, wide, W))),
        "float16": case(*cancelling(1 / 32), dtype="float16"),
        "bfloat16": case(*cancelling(1 / 4), dtype="bfloat16"),
    }


luong_score = Exercise(
    "luong_score",
    luong_inputs,
    of_calls(
        values(
            "the dot product",
            "two states",
            "dot",
            "dot, equal sizes",
            "views",
            "transposed views",
            points=1,
            gate=True,
            says=(
                "Without W the score is the plain dot product of each "
                "decoder state with each encoder state, neither scaled nor "
                "normalised."
            ),
        ),
        values(
            "with W",
            "general, small",
            "general",
            "general, equal sizes",
            points=1,
            because="the second form of the score",
            says=(
                "With W (ds, dh) the score is s W h: W stands between the "
                "decoder state on its left and the encoder state on its "
                "right."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=1e-5,
            because=("6e-8 an operation; sums of 28 terms of size up to 10"),
            says=("float32 inputs give float32 outputs."),
        ),
        float16("float16"),
        bfloat16("bfloat16"),
        keeps_device(),
    ),
    probe=follows("dot", "general"),
)


# 1.8


def backward_inputs(rng):
    def qkvd(*batch, Tq, Tk, d, dv):
        return (
            rng.randn(*batch, Tq, d),
            rng.randn(*batch, Tk, d),
            rng.randn(*batch, Tk, dv),
        ), rng.randn(*batch, Tq, dv)

    tiny, tiny_up = qkvd(Tq=1, Tk=2, d=2, dv=1)
    plain, up = qkvd(Tq=3, Tk=5, d=2, dv=4)
    equal, equal_up = qkvd(Tq=3, Tk=3, d=3, dv=3)
    heads, heads_up = qkvd(2, 3, Tq=2, Tk=4, d=5, dv=3)
    mask = np.tril(np.ones((3, 5), bool), 2)
    dead = np.array(
        [[True, False, True, True, False], [False] * 5, [True] * 5]
    )
    keep = np.array([[True, True, False, True], [True, False, True, True]])[
        :, None, None
    ]
    causal = np.tril(np.ones((3, 3), bool))
    everything = np.ones((1, 1), bool)
    # Scores below -10,000 where visible, above 10,000 where hidden.
    some = np.array([True, False, True, True, False])
    poles = np.where(some, -1.0, 1.0)[:, None] * (1 + np.abs(plain[1]))
    far = (1e4 * (1 + np.abs(plain[0])), poles, plain[2], some, up)
    return {
        "one query": case(
            *(part.round(1) for part in tiny),
            np.ones((1, 2), bool),
            tiny_up.round(1),
        ),
        "all visible": case(*plain, np.ones((3, 5), bool), up),
        "equal sizes": case(*equal, np.ones((3, 3), bool), equal_up),
        "a mask": case(*plain, mask, up),
        "causal": case(*equal, causal, equal_up),
        "a query that sees nothing": case(*plain, dead, up),
        "batch and heads": case(*heads, np.ones((2, 4), bool), heads_up),
        "a mask for each example": case(*heads, keep, heads_up),
        "one axis, one mask entry for all": case(
            *(part[0] for part in heads), everything, heads_up[0]
        ),
        "large scores": case(
            plain[0] * 1e4, *plain[1:], np.ones((3, 5), bool), up
        ),
        "large scores, the largest hidden": case(*far),
        "views": case(*plain, mask, up, strided=True),
        # Differences of the loss would lose all digits here.
        "values far from 0": case(
            *plain[:2], plain[2] + 1e3, np.ones((3, 5), bool), up
        ),
    }


attention_backward = Exercise(
    "attention_backward",
    backward_inputs,
    of_calls(
        values(
            "all visible",
            "one query",
            "all visible",
            "equal sizes",
            "values far from 0",
            points=4,
            gate=True,
            says=(
                "Go backward through out = P v, through the softmax with its "
                "Jacobian, and through the scores with their scale."
            ),
        ),
        values(
            "a mask",
            "a mask",
            "causal",
            "views",
            points=1.5,
            because="tells the mask from rows that see nothing",
            says=(
                "A hidden place has weight 0, so it neither gives nor "
                "receives any gradient."
            ),
        ),
        values(
            "a query that sees nothing",
            "a query that sees nothing",
            points=1,
            says=(
                "A query that sees nothing adds nothing to any gradient; its "
                "own gradient is 0, not NaN."
            ),
        ),
        values(
            "batch and heads",
            "batch and heads",
            "a mask for each example",
            "one axis, one mask entry for all",
            points=1,
            says=(
                "Any leading axes are allowed, and keep broadcasts to the "
                "scores."
            ),
        ),
        values(
            "large scores",
            "large scores",
            "large scores, the largest hidden",
            points=0.5,
            says=(
                "Scores of ±10,000 must not overflow: subtract each row's "
                "maximum first, that of the visible scores."
            ),
        ),
    ),
    probe=call_numpy,
    forbids=AUTOGRAD,
)
