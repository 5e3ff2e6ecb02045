"""Other people's answers to lesson 1: self-attention.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
comment above a mistake says which input shows it, where ordinary ones do not.
"""

import collections
import itertools
import math
import statistics

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from autograder.answers import oracle, right, wrong

# Helpers: the parts of an answer that a mistake leaves intact.

Attended = collections.namedtuple("Attended", ["output", "weights"])


def _wide(x):
    """x in float32 or wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _softmax(x, dim):
    """Softmax by hand, since 1.1 forbids the library's."""
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _masked(scores, keep, dim=-1):
    """Softmax over the visible scores; rows without one give zeros."""
    hidden = scores.masked_fill(~keep, -math.inf)
    return torch.where(
        keep.any(dim, keepdim=True),
        hidden.softmax(dim).masked_fill(~keep, 0),
        0,
    )


def _lower_right(scores, ahead=0):
    """Causal keep mask for scores (..., Tq, Tk), `ahead` keys too many."""
    Tq, Tk = scores.shape[-2:]
    keep = torch.ones(Tq, Tk, dtype=torch.bool, device=scores.device)
    return keep.tril(Tk - Tq + ahead)


def _scores(q, k, scale=None):
    """Scaled dot products (..., Tq, Tk) in float32 or wider."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return _wide(q) @ _wide(k).transpose(-1, -2) * scale


def _apply_mask(scores, attn_mask):
    """Scores with a float mask added, and a bool mask True where visible."""
    if attn_mask is None:
        return scores, torch.ones_like(scores, dtype=torch.bool)
    if attn_mask.dtype == torch.bool:
        return scores, attn_mask.expand_as(scores)
    keep = (attn_mask > -math.inf).expand_as(scores)
    return scores + attn_mask.to(scores.dtype), keep


def _apply_masks(scores, attn_mask, is_causal):
    scores, keep = _apply_mask(scores, attn_mask)
    return scores, keep & _lower_right(scores) if is_causal else keep


def _attend(weights, v, dtype):
    """Output and weights in the learner's dtype."""
    return (weights @ _wide(v)).to(dtype), weights.to(dtype)


def _sdpa(q, k, v, attn_mask, is_causal, scale):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    return _attend(_masked(scores, keep), v, q.dtype)


def _additive_scores(s, h, W, U, v):
    """Bahdanau's scores (B, Tdec, Tenc) in float32 or wider."""
    s, h, W, U, v = map(_wide, (s, h, W, U, v))
    return torch.tanh((s @ W.T)[:, :, None] + (h @ U.T)[:, None]) @ v


def _additive(scores, h, keep, dtype):
    if keep is None:
        weights = scores.softmax(-1)
    else:
        weights = _masked(scores, keep[:, None, :].expand_as(scores))
    return _attend(weights, h, dtype)


def _swap(x):
    return np.swapaxes(x, -1, -2)


def _probabilities(q, k, keep):
    """Attention weights in numpy; rows without a visible key give zeros."""
    scores = q @ _swap(k) / math.sqrt(q.shape[-1])
    scores = np.where(keep, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1)


def _score_gradients(p, dp):
    return p * (dp - (p * dp).sum(-1, keepdims=True))


def _gradients(q, k, p, ds, dout):
    scale = 1 / math.sqrt(q.shape[-1])
    return tuple(
        g.astype(q.dtype)
        for g in (ds @ k * scale, _swap(ds) @ q * scale, _swap(p) @ dout)
    )


# 1.1 softmax


@oracle("softmax", evidence="library call in float64")
def softmax_library(x, dim=-1):
    return torch.softmax(x.double(), dim).to(x.dtype)


@right("softmax", evidence="K30 log-sum-exp form")
def softmax_log_sum_exp(x, dim=-1):
    wide = _wide(x)
    return (wide - wide.logsumexp(dim, keepdim=True)).exp().to(x.dtype)


@right("softmax", evidence="K30 exp2 with log2(e)")
def softmax_exp2(x, dim=-1):
    wide = _wide(x)
    e = torch.exp2((wide - wide.amax(dim, True)) * math.log2(math.e))
    return (e / e.sum(dim, True)).to(x.dtype)


@right("softmax", evidence="K30 scipy.special, numpy inside torch")
def softmax_scipy(x, dim=-1):
    from scipy import special

    y = special.softmax(x.detach().double().numpy(), axis=dim)
    return torch.from_numpy(y).to(x.dtype)


@right("softmax", evidence="K05 detached maximum; K15 view as the result")
def softmax_moved_axis(x, dim=-1):
    x = x.movedim(dim, 0)
    e = torch.exp(_wide(x) - _wide(x).max(0).values.detach())
    return e.div(e.sum(0)).to(x.dtype).movedim(0, dim)


@right("softmax", evidence="K34 Python loops over rows")
def softmax_loops(x, dim=-1):
    rows = x.detach().double().movedim(dim, -1)
    out = []
    for row in rows.reshape(-1, rows.shape[-1]).tolist():
        e = [math.exp(value - max(row)) for value in row]
        out.append([value / math.fsum(e) for value in e])
    out = torch.tensor(out, dtype=torch.float64).reshape(rows.shape)
    return out.movedim(-1, dim).to(x)


@right("softmax", evidence="K30 pairwise differences; 1/inf is 0")
def softmax_pairwise(x, dim=-1):
    x = x.movedim(dim, -1)
    ratio = (x.double()[..., None, :] - x.double()[..., :, None]).exp()
    return (1 / ratio.sum(-1)).movedim(-1, dim).to(x.dtype)


@right("softmax", evidence="K79 one pass with a running maximum")
def softmax_online(x, dim=-1):
    slices = _wide(x).unbind(dim)
    top, total = slices[0], torch.ones_like(slices[0])
    for part in slices[1:]:
        new = torch.maximum(top, part)
        total = total * (top - new).exp() + (part - new).exp()
        top = new
    y = torch.stack([(part - top).exp() / total for part in slices], dim)
    return y.to(x.dtype)


@right("softmax", evidence="K10 in-place work on its own copy")
def softmax_own_copy(x, dim=-1):
    y = x.detach().clone().double()
    y -= y.amax(dim, keepdim=True)
    y.exp_()
    y /= y.sum(dim, keepdim=True)
    return y.to(x.dtype)


# Shown by: a score above 709 in float64 (above 88 in float32), or a row
# that lies wholly below -745.
@wrong(
    "softmax",
    hint=(
        "You exponentiate the scores as they are, so a score of 1000 "
        "overflows to infinity, and infinity divided by infinity is NaN. "
        "Shifting a row by a constant does not change its softmax: choose "
        "the constant that makes the largest exponent 0."
    ),
    evidence="M001 mlrose#25, singa#540, nupic-legacy#3819",
)
def softmax_no_maximum(x, dim=-1):
    e = _wide(x).exp()
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: as softmax_no_maximum, which gives NaN where this gives 0.
@wrong(
    "softmax",
    hint=(
        "You replace NaN by a number after the fact, but the weight was lost "
        "when the exponential overflowed: a row with large scores becomes "
        "zeros and no longer sums to 1. Prevent the overflow before you "
        "exponentiate rather than repairing its result."
    ),
    evidence="M001 patched afterwards; TheAlgorithms/Python#13409",
)
def softmax_hides_nan(x, dim=-1):
    e = _wide(x).exp()
    return (e / e.sum(dim, keepdim=True)).nan_to_num(0).to(x.dtype)


# Shown by: rows more than 745 apart in float64 (104 in float32).
@wrong(
    "softmax",
    hint=(
        "You subtract the maximum of the whole array, so a row far below it "
        "underflows to zeros and 0/0 gives NaN. Each slice along dim needs "
        "its own maximum: try one row around 0 beside one around 1000."
    ),
    evidence="M003 singa#540",
)
def softmax_global_maximum(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).max())
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: a row whose scores are all far below zero, such as -1e4.
@wrong(
    "softmax",
    hint=(
        "Your shift is never below 0, so it does not lift rows of very "
        "negative scores: they underflow to zeros and divide 0 by 0. The "
        "largest exponent should be exactly 0 in every row, whatever its "
        "sign."
    ),
    evidence="M004 FluxML/NNlib.jl#43",
)
def softmax_maximum_with_zero(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amax(dim, keepdim=True).clamp(min=0))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: a row whose largest score is more than 709 above its mean
# (88 in float32).
@wrong(
    "softmax",
    hint=(
        "You subtract the mean of each row. That survives a shift of the "
        "whole row, but one score far above the mean still overflows. Which "
        "statistic of the row makes sure that no exponent is positive?"
    ),
    evidence="curriculum 1.1; passes CS336's released tests (A10)",
)
def softmax_subtracts_mean(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).mean(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


@wrong(
    "softmax",
    hint=(
        "You always normalise along the last axis, whatever dim says. With "
        "dim=0 the columns should sum to 1. Pass dim on to each reduction."
    ),
    evidence="M006 passes CS336's released tests",
)
def softmax_dim_ignored(x, dim=-1):
    return _softmax(_wide(x), -1).to(x.dtype)


# Shown by: any shape but 1-D; square ones give wrong numbers, not an error.
@wrong(
    "softmax",
    hint=(
        "Your reductions drop the axis that they reduce, so their result "
        "lines up with the wrong axis: a square array silently mixes rows "
        "and columns, other shapes fail. Keep the reduced axis with size 1."
    ),
    evidence="M007 DeNA/HandyRL#209",
)
def softmax_reduced_axis_dropped(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amax(dim))
    return (e / e.sum(dim)).to(x.dtype)


# Shown by: comparing the argument before and after the call.
@wrong(
    "softmax",
    hint=(
        "You change the caller's array on the way: whoever uses the scores "
        "again finds other numbers there. Let each step make a new tensor "
        "instead of writing into the argument."
    ),
    evidence="M011 common",
)
def softmax_in_place(x, dim=-1):
    y = _softmax(_wide(x), dim).to(x.dtype)
    x.detach().sub_(x.detach().amax(dim, keepdim=True)).exp_()
    return y


@wrong(
    "softmax",
    hint=(
        "You divide by the sum over the whole array, so all entries together "
        "sum to 1 instead of each slice along dim. Sum along dim only, and "
        "look at the row sums of a 2 by 3 example."
    ),
    evidence="M012 same idea as facebookresearch/detr#247",
)
def softmax_flattened(x, dim=-1):
    return _softmax(_wide(x).flatten(), 0).reshape(x.shape).to(x.dtype)


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "softmax",
    hint=(
        "You add a small constant to the denominator. After the maximum is "
        "subtracted the sum is at least 1, so nothing needs protecting, and "
        "the constant makes the rows sum to less than 1. In this course "
        "float64 results count to 1e-10: leave it out."
    ),
    evidence="K29 refused: the contract asks for 1e-10 in float64",
)
def softmax_epsilon(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amax(dim, keepdim=True))
    return (e / (e.sum(dim, keepdim=True) + 1e-8)).to(x.dtype)


# Shown by: float64 input with a tolerance below 1e-7.
@wrong(
    "softmax",
    hint=(
        "You convert every input to float32, so float64 scores lose half of "
        "their digits (an error near 1e-7) even if you convert back. Widen "
        "only what is narrower than float32."
    ),
    evidence="M051, curriculum's precision convention",
)
def softmax_float32(x, dim=-1):
    return _softmax(x.float(), dim).to(x.dtype)


# Shown by: half scores spread over 8 or more, judged relative to each
# weight: the small ones are off by several units in the last place, where
# correct answers are off by one at most.
@wrong(
    "softmax",
    hint=(
        "You compute in the input's half precision: the difference to the "
        "maximum, the exponential and the sum are each rounded to 3 digits "
        "or fewer, and the errors add up. Convert half inputs to float32, "
        "compute there, and convert the result back."
    ),
    evidence="curriculum's precision convention; M117 in reverse",
)
def softmax_half_arithmetic(x, dim=-1):
    return _softmax(x, dim)


# Shown by: two different scores above 50 (or below -50) in one row.
@wrong(
    "softmax",
    hint=(
        "You clip the scores so that the exponential cannot overflow, but "
        "two scores beyond the limit then look equal: 100 and 200 get the "
        "same weight. Shift the row instead of clipping it."
    ),
    evidence="M001 avoided by clipping; common",
)
def softmax_clips_scores(x, dim=-1):
    return _softmax(_wide(x).clamp(-50, 50), dim).to(x.dtype)


@wrong(
    "softmax",
    hint=(
        "You divide the scores by their maximum. That keeps the numbers "
        "small, but it changes the differences between them, and the "
        "differences are all that a softmax depends on. Which operation on "
        "a whole row leaves its differences alone?"
    ),
    evidence="M001 avoided by division; plausible, cheap to write",
)
def softmax_divides_by_maximum(x, dim=-1):
    wide = _wide(x)
    return _softmax(wide / wide.amax(dim, True), dim).to(x.dtype)


# Shown by: as softmax_reduced_axis_dropped.
@wrong(
    "softmax",
    hint=(
        "The sum that you divide by has lost the axis that it sums over, so "
        "it lines up with the wrong axis: a square array silently mixes rows "
        "and columns, other shapes fail. Keep that axis with size 1, as the "
        "maximum does."
    ),
    evidence="fresh reader: keepdim for the maximum, not for the sum",
)
def softmax_sum_axis_dropped(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amax(dim, keepdim=True))
    return (e / e.sum(dim)).to(x.dtype)


# Shown by: as softmax_subtracts_mean, with half the distance.
@wrong(
    "softmax",
    hint=(
        "What you subtract from a row is not its largest score (the smallest, "
        "or the one in the middle), so positive exponents are left and a "
        "large one overflows. Which score of the row has to end up at 0, so "
        "that no exponent is positive?"
    ),
    evidence="fresh reader: minimum for maximum",
)
def softmax_subtracts_minimum(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amin(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


@wrong(
    "softmax",
    hint=(
        "You add a small constant to the denominator. After the maximum is "
        "subtracted the sum is at least 1, so nothing needs protecting, and "
        "the constant makes the rows sum to less than 1: leave it out. "
        "Half-precision scores still have to be widened to float32."
    ),
    evidence="fresh reader: softmax_epsilon before half precision is done",
)
def softmax_epsilon_in_own_dtype(x, dim=-1):
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / (e.sum(dim, keepdim=True) + 1e-8)


@wrong(
    "softmax",
    hint=(
        "You return the exponentials. They are in proportion already, but "
        "they do not sum to 1 yet: divide them by their sum along dim."
    ),
    evidence="fresh reader: half-way through",
)
def softmax_not_divided(x, dim=-1):
    return (_wide(x) - _wide(x).amax(dim, keepdim=True)).exp().to(x.dtype)


@wrong(
    "softmax",
    hint=(
        "You take the maximum along the last axis and the sum along dim. What "
        "you subtract has to be the same number throughout a slice along dim, "
        "or it does not cancel: pass dim on to both."
    ),
    evidence="hunt: one of two reductions with dim",
)
def softmax_maximum_of_last_axis(x, dim=-1):
    e = torch.exp(_wide(x) - _wide(x).amax(-1, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: a negative dim other than -1.
@wrong(
    "softmax",
    hint=(
        "You take every negative dim for the last axis. −3 is the third axis "
        "from the end: torch counts so by itself if you pass dim on as it is."
    ),
    evidence="hunt: dim=-1 treated as a case of its own",
)
def softmax_negative_dim_is_last(x, dim=-1):
    return _softmax(_wide(x), max(dim, -1)).to(x.dtype)


# Shown by: bfloat16 scores.
@wrong(
    "softmax",
    hint=(
        "You widen float16 alone. bfloat16 is half precision too, with 8 bits "
        "where float16 has 11: ask torch.promote_types, or test for both."
    ),
    evidence="common: x.dtype == torch.float16",
)
def softmax_widens_float16_only(x, dim=-1):
    wide = x.float() if x.dtype == torch.float16 else x
    return _softmax(wide, dim).to(x.dtype)


# Shown by: bfloat16 scores whose exponentials are all rounded one way.
@wrong(
    "softmax",
    hint=(
        "You round the exponentials to half precision before you take their "
        "sum, so sum and quotient are rounded once more. Convert at the end, "
        "after the division."
    ),
    evidence="common: .to(x.dtype) on the line of exp",
)
def softmax_rounds_exponentials(x, dim=-1):
    wide = _wide(x)
    e = torch.exp(wide - wide.amax(dim, keepdim=True)).to(x.dtype)
    return e / e.sum(dim, keepdim=True)


@wrong(
    "softmax",
    hint=(
        "You cut exponents off from below, so scores that lie far under the "
        "largest one keep a weight that they should not have. An exponential "
        "that underflows to 0 is right and does no harm."
    ),
    evidence="common: clamp(min=-20) against underflow",
)
def softmax_clamps_exponents(x, dim=-1):
    wide = _wide(x)
    shifted = wide - wide.amax(dim, keepdim=True)
    e = torch.exp(shifted.clamp(min=-20))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: scores beyond 1e4, such as 1e30.
@wrong(
    "softmax",
    hint=(
        "The maximum that you subtract is limited to a range, so a score "
        "beyond it still overflows. Subtract the maximum as it is."
    ),
    evidence="common: a clipped maximum",
)
def softmax_clips_maximum(x, dim=-1):
    wide = _wide(x)
    top = wide.amax(dim, keepdim=True).clamp(-1e4, 1e4)
    e = torch.exp(wide - top)
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: an argument on another device.
@wrong(
    "softmax",
    hint=(
        "A tensor that you create lies on the CPU, so with x on a GPU the "
        "function fails, or its result stays on the CPU. Create it with "
        "device=x.device, or with torch.full_like and its kin."
    ),
    evidence="M063",
)
def softmax_on_cpu(x, dim=-1):
    wide = _wide(x)
    e = torch.full(x.shape, math.e, dtype=wide.dtype)
    e = e ** (wide - wide.amax(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


# Shown by: a view whose axes are swapped.
@wrong(
    "softmax",
    hint=(
        "You flatten with view, which refuses a tensor whose axes were "
        "swapped: arguments may be such views. reshape copies where it must."
    ),
    evidence="common: view(-1, n)",
)
def softmax_by_view(x, dim=-1):
    wide = _wide(x)
    if dim in (-1, x.ndim - 1):
        rows = wide.view(-1, x.shape[-1])
        return _softmax(rows, -1).view(x.shape).to(x.dtype)
    return _softmax(wide, dim).to(x.dtype)


# 1.2 score_std


@oracle("score_std", evidence="a batch of rows times columns, in float64")
def score_std_matmul(d_k, n, scale, seed=0):
    q, k = np.random.default_rng(seed).standard_normal((2, n, d_k))
    divisor = {"none": 1, "sqrt": math.sqrt(d_k), "d": d_k}[scale]
    return float(np.std(q[:, None, :] @ k[:, :, None] / divisor))


@right("score_std", evidence="K34 einsum, torch's own generator")
def score_std_einsum(d_k, n, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, n, d_k, generator=generator).double()
    power = {"none": 0, "sqrt": -0.5, "d": -1}[scale]
    return torch.einsum("nd,nd->n", q, k).std().item() * d_k**power


@right("score_std", evidence="global seed, as most tutorials write it")
def score_std_global_seed(d_k, n, scale, seed=0):
    torch.manual_seed(seed)
    scores = (torch.randn(n, d_k) * torch.randn(n, d_k)).sum(-1)
    if scale == "sqrt":
        scores = scores / d_k**0.5
    elif scale == "d":
        scores = scores / d_k
    return float(scores.std())


@right("score_std", evidence="unit variance without a normal: random signs")
def score_std_signs(d_k, n, scale, seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.choice([-1.0, 1.0], size=(2, n, d_k))
    scores = (q[:, None, :] @ k[:, :, None]).ravel()
    return scores.std() / {"none": 1, "sqrt": d_k**0.5, "d": d_k}[scale]


@right("score_std", evidence="uniform on ±sqrt(3); root mean square")
def score_std_uniform_unit_variance(d_k, n, scale, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.uniform(-(3**0.5), 3**0.5, (n, d_k))
    k = rng.uniform(-(3**0.5), 3**0.5, (n, d_k))
    q = q / {"none": 1, "sqrt": d_k**0.5, "d": d_k}[scale]
    return float(np.sqrt(np.mean(np.sum(q * k, 1) ** 2)))


@right("score_std", evidence="component by component, statistics module")
def score_std_columns(d_k, n, scale, seed=0):
    rng = np.random.RandomState(seed)
    scores = np.zeros(n)
    for _ in range(d_k):
        scores += rng.standard_normal(n) * rng.standard_normal(n)
    divisor = {"none": 1, "sqrt": math.sqrt(d_k), "d": d_k}[scale]
    return statistics.pstdev(scores.tolist()) / divisor


def _draw(d_k, n, seed):
    return np.random.RandomState(seed).randn(2, n, d_k)


def _divisor(d_k, scale):
    return {"none": 1, "sqrt": math.sqrt(d_k), "d": d_k}[scale]


@wrong(
    "score_std",
    hint=(
        "For scale='sqrt' you divide by d_k itself, so the deviation shrinks "
        "to 1/√d_k (0.125 at 64) instead of 1: a softmax over such scores is "
        "nearly uniform. The variance of the sum grows like d_k; what does "
        "its square root, the deviation, grow like?"
    ),
    evidence="curriculum 1.2",
)
def score_std_sqrt_divides_by_d(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    scores = (q * k).sum(-1)
    return float(scores.std() / (1 if scale == "none" else d_k))


# Shown by: two seeds that give the same number to the last digit, and by
# a number that is exactly the formula's.
@wrong(
    "score_std",
    hint=(
        "You return what the theory predicts, the same number for every seed "
        "and every n. The task is to test the prediction: draw n pairs, take "
        "their dot products and measure how much those vary."
    ),
    evidence="curriculum 1.2: measured, not computed from the formula",
)
def score_std_from_formula(d_k, n, scale, seed=0):
    return math.sqrt(d_k) / _divisor(d_k, scale)


# Shown by: two calls with the same seed.
@wrong(
    "score_std",
    hint=(
        "You draw (q or k, or both) without using seed, so two calls with "
        "the same arguments give different numbers and nobody can repeat "
        "your measurement. Start a generator from seed inside the function."
    ),
    evidence="curriculum 1.2: the same seed gives the same number",
)
def score_std_unseeded(d_k, n, scale, seed=0):
    rng = np.random.default_rng()
    q, k = rng.standard_normal((2, n, d_k))
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


# Shown by: two different seeds.
@wrong(
    "score_std",
    hint=(
        "You start the generator from a fixed number, so every seed gives "
        "the same measurement and its spread cannot be seen. Use the "
        "argument seed there."
    ),
    evidence="curriculum 1.2: another seed gives another number",
)
def score_std_seed_fixed(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, 0)
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "You seed again before the second draw, so q and k are the same "
        "vectors and you measure |q|², whose deviation is √(2 d_k), 11.3 at "
        "64. Seed once, then draw both."
    ),
    evidence="re-seeding before each draw; common",
)
def score_std_keys_equal_queries(d_k, n, scale, seed=0):
    q = np.random.RandomState(seed).randn(n, d_k)
    k = np.random.RandomState(seed).randn(n, d_k)
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


# Shown by: two n that give the same number to the last digit.
@wrong(
    "score_std",
    hint=(
        "You draw a fixed number of pairs and ignore n, so a larger n does "
        "not make the measurement more exact: it stays about 10% off. The "
        "number of rows that you draw should be n."
    ),
    evidence="argument ignored; plausible",
)
def score_std_ignores_n(d_k, n, scale, seed=0):
    q, k = _draw(d_k, 50, seed)
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


# Shown by: how little the results of several seeds differ, best at large
# d_k; at small n the mean is right.
@wrong(
    "score_std",
    hint=(
        "You score every query with every key, n·n pairs instead of n. Those "
        "that share a vector are not independent, and at n = 100,000 the "
        "scores would fill 80 GB. Row i of q meets row i of k only."
    ),
    evidence="a matrix product for a dot product of rows; plausible",
)
def score_std_all_pairs(d_k, n, scale, seed=0):
    q, k = np.random.default_rng(seed).standard_normal((2, n, d_k))
    return float((q @ k.T).std() / _divisor(d_k, scale))


# Shown by: several seeds, best at small d_k (the error is 1/√(2 d_k)).
@wrong(
    "score_std",
    hint=(
        "You draw one query and compare every key with it, so you measure "
        "the length of that query, which no n can average away. The pairs "
        "must be independent: draw as many queries as keys."
    ),
    evidence="curriculum 1.2: independent pairs",
)
def score_std_one_query(d_k, n, scale, seed=0):
    rng = np.random.RandomState(seed)
    scores = rng.randn(n, d_k) @ rng.randn(d_k)
    return float(scores.std() / _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "You return the variance (64 at d_k = 64). Its square root, the "
        "standard deviation, has the units of the scores and is asked for."
    ),
    evidence="variance for deviation; common",
)
def score_std_variance(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    return float(((q * k).sum(-1) / _divisor(d_k, scale)).var())


@wrong(
    "score_std",
    hint=(
        "Your components are uniform between 0 and 1: their mean is not 0 "
        "and their variance is 1/12. The prediction holds for mean 0 and "
        "variance 1, so draw from a distribution that has both."
    ),
    evidence="rand for randn; common",
)
def score_std_uniform(d_k, n, scale, seed=0):
    q, k = np.random.RandomState(seed).rand(2, n, d_k)
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "You multiply by the scale instead of dividing, so the scores grow "
        "(64 for 'sqrt' at d_k = 64) where they should come down to 1. Which "
        "operation undoes the growth?"
    ),
    evidence="M020 in this exercise",
)
def score_std_multiplies(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    return float((q * k).sum(-1).std() * _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "You divide by the square root of n, the number of pairs. The score "
        "grows with the number of terms in one dot product, which is d_k."
    ),
    evidence="M018 in this exercise: wrong axis of the shape",
)
def score_std_sqrt_n(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    divisor = {"none": 1, "sqrt": math.sqrt(n), "d": n}[scale]
    return float((q * k).sum(-1).std() / divisor)


# Shown by: scale='none' or 'd'; under 'sqrt' it gives 1/√d_k.
@wrong(
    "score_std",
    hint=(
        "You measure the products of single components before they are "
        "summed, so the deviation does not grow with d_k. A score is one "
        "number a pair: sum over the components first."
    ),
    evidence="sum forgotten; plausible",
)
def score_std_components(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    return float((q * k).std() / _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "You never use scale, so 'none', 'sqrt' and 'd' give the same "
        "number. Apply the scale that was asked for before you measure."
    ),
    evidence="argument ignored; M046 in this exercise",
)
def score_std_ignores_scale(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    return float((q * k).sum(-1).std())


@wrong(
    "score_std",
    hint=(
        "You sum over the pairs instead of the components, so you get d_k "
        "numbers that grow with √n. A score is the dot product of one pair: "
        "sum over the last axis."
    ),
    evidence="fresh reader: wrong axis",
)
def score_std_sums_over_pairs(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    return float((q * k).sum(0).std() / _divisor(d_k, scale))


@wrong(
    "score_std",
    hint=(
        "'sqrt' and 'd' are exchanged: 'sqrt' divides by √d_k and brings the "
        "deviation to 1, 'd' divides by d_k."
    ),
    evidence="fresh reader",
)
def score_std_scales_exchanged(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    divisor = {"none": 1, "sqrt": d_k, "d": math.sqrt(d_k)}[scale]
    return float((q * k).sum(-1).std() / divisor)


# Shown by: scale='d' only.
@wrong(
    "score_std",
    hint=(
        "'none' and 'sqrt' are right, but for 'd' you do not divide at all. "
        "There the divisor is d_k itself."
    ),
    evidence="fresh reader: half-way through",
)
def score_std_d_undivided(d_k, n, scale, seed=0):
    q, k = _draw(d_k, n, seed)
    divisor = math.sqrt(d_k) if scale == "sqrt" else 1
    return float((q * k).sum(-1).std() / divisor)


# Shown by: two calls with seed 0.
@wrong(
    "score_std",
    hint=(
        "Without a seed you do not use seed 0, or you take a seed of 0 for "
        'none (as "if seed" and "seed or …" do). The default is 0, and 0 '
        "is a seed like any other."
    ),
    evidence="hunt: seed or None, and other defaults",
)
def score_std_zero_seed_lost(d_k, n, scale, seed=0):
    q, k = np.random.default_rng(seed or None).standard_normal((2, n, d_k))
    return float((q * k).sum(-1).std() / _divisor(d_k, scale))


# 1.3 softmax_jacobian


@oracle("softmax_jacobian", evidence="autograd through softmax at log y")
def jacobian_autograd(y):
    logits = torch.from_numpy(np.array(y, dtype=np.float64)).log()
    jacobian = torch.autograd.functional.jacobian(
        lambda z: torch.softmax(z, 0), logits
    )
    return jacobian.numpy().astype(y.dtype)


@right("softmax_jacobian", evidence="K34 double loop")
def jacobian_loops(y):
    n = len(y)
    out = np.zeros((n, n), y.dtype)
    for i in range(n):
        for j in range(n):
            out[i, j] = y[i] * ((i == j) - y[j])
    return out


@right("softmax_jacobian", evidence="K34 einsum and identity")
def jacobian_einsum(y):
    return np.einsum("i,ij->ij", y, np.eye(len(y), dtype=y.dtype) - y)


@right("softmax_jacobian", evidence="symmetric form with square roots")
def jacobian_square_roots(y):
    root = np.sqrt(y.astype(np.float64))
    middle = np.identity(len(y)) - np.multiply.outer(root, root)
    return (np.diagflat(root) @ middle @ np.diagflat(root)).astype(y.dtype)


@right("softmax_jacobian", evidence="covariance of a one-hot variable")
def jacobian_covariance(y):
    p = y.astype(np.float64)
    centred = np.eye(len(p)) - p
    return sum(
        w * np.outer(c, c) for w, c in zip(p, centred, strict=True)
    ).astype(y.dtype)


@right("softmax_jacobian", evidence="complex step, exact to the last bits")
def jacobian_complex_step(y):
    with np.errstate(divide="ignore"):
        z = np.log(y.astype(np.float64))
    columns = []
    for j in range(len(y)):
        e = y.astype(complex)
        e[j] = np.exp(complex(z[j], 1e-30))
        columns.append((e / e.sum()).imag / 1e-30)
    return np.stack(columns, axis=1).astype(y.dtype)


@right("softmax_jacobian", evidence="torch inside, diagonal filled last")
def jacobian_diagonal_last(y):
    p = torch.tensor(y)
    out = -p.outer(p)
    out.diagonal().add_(p)
    return out.numpy()


@wrong(
    "softmax_jacobian",
    hint=(
        "Your signs are reversed. Raising a score raises its own weight, so "
        "the diagonal must be positive, and it takes weight from the others, "
        "so the rest must be negative."
    ),
    evidence="sign; common",
)
def jacobian_negative(y):
    return np.outer(y, y) - np.diag(y)


@wrong(
    "softmax_jacobian",
    hint=(
        "You keep only the diagonal matrix of y. A softmax couples its "
        "outputs through the shared denominator, so there is a second term "
        "for every pair; without it the rows do not sum to 0."
    ),
    evidence="missing outer product; common",
)
def jacobian_no_outer_product(y):
    return np.diag(y)


@wrong(
    "softmax_jacobian",
    hint=(
        "You use y(1 − y) on the diagonal and zeros elsewhere, as for a "
        "sigmoid applied to each entry. In a softmax every score moves every "
        "output: fill the off-diagonal entries too, and check that each row "
        "sums to 0."
    ),
    evidence="sigmoid's derivative; common",
)
def jacobian_only_diagonal(y):
    return np.diag(y * (1 - y))


@wrong(
    "softmax_jacobian",
    hint=(
        "You return the vector y(1 − y), one number for each output. The "
        "Jacobian has one row for each output and one column for each score, "
        "so its shape is (n, n)."
    ),
    evidence="sigmoid's derivative as a vector; common",
)
def jacobian_vector(y):
    return y * (1 - y)


@wrong(
    "softmax_jacobian",
    hint=(
        "For 1-D arrays @ is the inner product, a single number, and you "
        "subtract that number from every entry. You need the matrix of all "
        "products of two entries."
    ),
    evidence="numpy's @ on 1-D arrays; common",
)
def jacobian_inner_product(y):
    return np.diag(y) - y @ y.T


@wrong(
    "softmax_jacobian",
    hint=(
        "You multiply y by itself entry by entry, so y² is subtracted from "
        "each row (transposing a 1-D array does nothing). You need the "
        "product of every pair: give one of the two factors a column shape."
    ),
    evidence="numpy's .T on 1-D arrays; common",
)
def jacobian_transposed_vector(y):
    return np.diag(y) - y * y.T


@wrong(
    "softmax_jacobian",
    hint=(
        "You add the outer product instead of subtracting it, so raising one "
        "score would raise every weight. The weights always sum to 1, so "
        "each column of changes must sum to 0."
    ),
    evidence="sign of the second term; plausible",
)
def jacobian_outer_product_added(y):
    return np.diag(y) + np.outer(y, y)


@wrong(
    "softmax_jacobian",
    hint=(
        "Your off-diagonal entries are right, but the diagonal is y, without "
        "its own second term. The quotient rule gives the diagonal that term "
        "as well; check that the rows sum to 0."
    ),
    evidence="case i = j incomplete; plausible",
)
def jacobian_diagonal_without_square(y):
    return np.where(np.eye(len(y), dtype=bool), y, -np.outer(y, y))


@wrong(
    "softmax_jacobian",
    hint=(
        "You apply a softmax to y, but y is already the softmax's output. "
        "The second one flattens it, so your Jacobian does not vanish when y "
        "is one-hot. Use y itself."
    ),
    evidence="argument taken for logits; common",
)
def jacobian_of_logits(y):
    p = np.exp(y) / np.exp(y).sum()
    return np.diag(p) - np.outer(p, p)


@wrong(
    "softmax_jacobian",
    hint=(
        "You subtract y from the identity but never multiply by the weight "
        "of the row, so a row with weight 0 still changes. The derivative of "
        "an exponential is the exponential itself, and that factor belongs "
        "in front of each row."
    ),
    evidence="missing factor; plausible",
)
def jacobian_missing_factor(y):
    return np.eye(len(y), dtype=y.dtype) - y[:, None]


# Shown by: float64 input, by its dtype and an error near 1e-9.
@wrong(
    "softmax_jacobian",
    hint=(
        "You work in float32 although y is float64, so half of the digits "
        "are lost. Keep the dtype of the argument."
    ),
    evidence="M051",
)
def jacobian_float32(y):
    p = y.astype(np.float32)
    return np.diag(p) - np.outer(p, p)


@wrong(
    "softmax_jacobian",
    hint=(
        "You have the denominator's part, −y_i y_j, and nothing else. A "
        "score is in the numerator of its own weight too, which adds y_i on "
        "the diagonal."
    ),
    evidence="fresh reader: half-way through",
)
def jacobian_only_outer_product(y):
    return -np.outer(y, y)


@wrong(
    "softmax_jacobian",
    hint=(
        "You start from the identity, with ones on the diagonal. The "
        "numerator's derivative is y_i, not 1: the diagonal matrix is that "
        "of y."
    ),
    evidence="fresh reader: eye for diag",
)
def jacobian_identity_for_diagonal(y):
    return np.eye(len(y), dtype=y.dtype) - np.outer(y, y)


@wrong(
    "softmax_jacobian",
    hint=(
        "Your diagonal is right, but the other entries have the wrong sign. "
        "Raising a score takes weight from all other places, so they are "
        "negative; check that each row sums to 0."
    ),
    evidence="fresh reader: sign in the case i ≠ j",
)
def jacobian_off_diagonal_positive(y):
    return np.where(np.eye(len(y), dtype=bool), y * (1 - y), np.outer(y, y))


@wrong(
    "softmax_jacobian",
    hint=(
        "You have δ_ij − y_j, which is the derivative of the softmax's "
        "logarithm. The derivative of y_i itself has the factor y_i in "
        "front: multiply row i by it."
    ),
    evidence="fresh reader: factor forgotten, or log-softmax",
)
def jacobian_of_log_softmax(y):
    return np.eye(len(y), dtype=y.dtype) - y


@wrong(
    "softmax_jacobian",
    hint=(
        "You subtract the outer product from the vector y, which broadcasts "
        "y to every row. Only the diagonal gets y_i: make it a diagonal "
        "matrix first."
    ),
    evidence="fresh reader: broadcasting",
)
def jacobian_vector_broadcast(y):
    return y - np.outer(y, y)


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "softmax_jacobian",
    hint=(
        "You take differences of softmax values at nearby scores. That gives "
        "seven digits, and a weight of 0 has no score to start from. Derive "
        "the formula on paper: it needs y only."
    ),
    evidence="curriculum 1.3: no finite differences",
)
def jacobian_finite_differences(y):
    with np.errstate(divide="ignore"):
        x = np.log(y)
    columns = []
    for j in range(len(y)):
        e = np.exp(x + 1e-6 * (np.arange(len(y)) == j))
        columns.append((e / e.sum() - y) / 1e-6)
    return np.stack(columns, axis=1)


# 1.4 causal_mask


@oracle("causal_mask", evidence="counts from the end, cell by cell")
def causal_mask_cells(Tq, Tk, *, align="lower_right"):
    mask = torch.zeros(Tq, Tk, dtype=torch.bool)
    for i, j in itertools.product(range(Tq), range(Tk)):
        if align == "lower_right":
            mask[i, j] = Tk - 1 - j >= Tq - 1 - i
        elif align == "upper_left":
            mask[i, j] = j <= i
    if align not in ("lower_right", "upper_left"):
        raise ValueError(f"align must be a known name, not {align!r}")
    return mask


@right("causal_mask", evidence="K34 tril with a diagonal")
def causal_mask_tril(Tq, Tk, *, align="lower_right"):
    if align not in {"lower_right", "upper_left"}:
        raise ValueError(align)
    diagonal = Tk - Tq if align == "lower_right" else 0
    return torch.tril(torch.ones(Tq, Tk), diagonal).bool()


@right("causal_mask", evidence="positions compared")
def causal_mask_positions(Tq, Tk, *, align="lower_right"):
    match align:
        case "lower_right":
            queries = torch.arange(Tk - Tq, Tk)
        case "upper_left":
            queries = torch.arange(Tq)
        case _:
            raise ValueError("unknown align")
    return queries.unsqueeze(1).ge(torch.arange(Tk))


@right("causal_mask", evidence="K34 numpy.tri")
def causal_mask_numpy_tri(Tq, Tk, *, align="lower_right"):
    try:
        k = {"lower_right": Tk - Tq, "upper_left": 0}[align]
    except KeyError:
        raise ValueError(f"no alignment called {align}") from None
    return torch.tensor(np.tri(Tq, Tk, k, dtype=bool))


@right("causal_mask", evidence="K15 window of one big square, a view")
def causal_mask_window(Tq, Tk, *, align="lower_right"):
    if align not in ("lower_right", "upper_left"):
        raise ValueError(align)
    big = torch.ones(Tq + Tk, Tq + Tk, dtype=torch.bool).tril()
    return big[Tk:, Tq:] if align == "lower_right" else big[:Tq, :Tk]


@right("causal_mask", evidence="upside down: the hidden cells, reversed")
def causal_mask_reversed(Tq, Tk, *, align="lower_right"):
    if align == "upper_left":
        return ~torch.ones(Tq, Tk, dtype=torch.bool).triu(1)
    if align != "lower_right":
        raise ValueError(align)
    return torch.ones(Tq, Tk, dtype=torch.bool).triu(0).flip(0, 1)


@right("causal_mask", evidence="K03 list of lists")
def causal_mask_lists(Tq, Tk, *, align="lower_right"):
    if align not in ("lower_right", "upper_left"):
        raise ValueError(align)
    first = Tk - Tq + 1 if align == "lower_right" else 1
    rows = [[j < first + i for j in range(Tk)] for i in range(Tq)]
    return torch.tensor(rows, dtype=torch.bool).reshape(Tq, Tk)


def _known(align):
    if align not in ("lower_right", "upper_left"):
        raise ValueError(f"align is lower_right or upper_left, not {align!r}")


def _causal(Tq, Tk, offset):
    return torch.ones(Tq, Tk, dtype=torch.bool).tril(offset)


# Shown by: Tq ≠ Tk under lower_right.
@wrong(
    "causal_mask",
    hint=(
        "Your mask starts in the upper left corner whatever align says. When "
        "a cache holds Tk keys and one new query arrives, that query sees "
        "only key 0. Under lower_right the last query sees every key: line "
        "up the last row with the last column."
    ),
    evidence="M057 pytorch#103082, #108108; M058 rasbt/LLMs-from-scratch#697",
)
def causal_mask_always_upper_left(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, 0)


# Shown by: Tq ≠ Tk under upper_left.
@wrong(
    "causal_mask",
    hint=(
        "You ignore align and always use the lower right corner. Under "
        "upper_left the first query sees key 0 and no other, also when there "
        "are more keys than queries."
    ),
    evidence="M057 the other way round; argument ignored",
)
def causal_mask_always_lower_right(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, Tk - Tq)


# Shown by: Tq ≠ Tk.
@wrong(
    "causal_mask",
    hint=(
        "Your two alignments are exchanged. lower_right means that the last "
        "query sees the last key, upper_left that the first query sees only "
        "the first key. Draw both for 2 queries and 4 keys."
    ),
    evidence="M057; plausible",
)
def causal_mask_alignments_swapped(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, Tk - Tq if align == "upper_left" else 0)


# Shown by: Tq ≠ Tk under lower_right.
@wrong(
    "causal_mask",
    hint=(
        "Your offset has the wrong sign: with more keys than queries it "
        "should open more keys, and yours closes them. Ask how many keys are "
        "older than the first query."
    ),
    evidence="sign of the diagonal; plausible",
)
def causal_mask_offset_negated(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, Tq - Tk if align == "lower_right" else 0)


@wrong(
    "causal_mask",
    hint=(
        "You keep the other triangle, so each query sees itself and the "
        "future but not the past. Row 0 should see the fewest keys, the last "
        "row the most."
    ),
    evidence="M053 karpathy/nanoGPT#170",
)
def causal_mask_only_future(Tq, Tk, *, align="lower_right"):
    _known(align)
    offset = Tk - Tq if align == "lower_right" else 0
    return torch.ones(Tq, Tk, dtype=torch.bool).triu(offset)


@wrong(
    "causal_mask",
    hint=(
        "You hide the diagonal as well, so no query sees its own key, and in "
        "a square mask the first query sees nothing at all. A token may look "
        "at itself: move the boundary by one."
    ),
    evidence="M054 pbloem/former#10",
)
def causal_mask_hides_diagonal(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, (Tk - Tq if align == "lower_right" else 0) - 1)


@wrong(
    "causal_mask",
    hint=(
        "Each query sees one key too many: the next token. A model trained "
        "so can copy its answer and its loss falls towards 0. Move the "
        "boundary back by one."
    ),
    evidence="M056 TransformerLens#284",
)
def causal_mask_one_ahead(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, (Tk - Tq if align == "lower_right" else 0) + 1)


@wrong(
    "causal_mask",
    hint=(
        "Your mask is True where a key is hidden. In this course, as in "
        "F.scaled_dot_product_attention, True means that the query may look "
        "(nn.MultiheadAttention has it the other way round)."
    ),
    evidence="M041 transformers#38094, InseeFrLab/torchTextClassifiers#92",
)
def causal_mask_inverted(Tq, Tk, *, align="lower_right"):
    _known(align)
    return ~_causal(Tq, Tk, Tk - Tq if align == "lower_right" else 0)


@wrong(
    "causal_mask",
    hint=(
        "You return the numbers 0 and −∞ to be added to scores. That is a "
        "float mask; asked for is a boolean one, True where a query may look."
    ),
    evidence="A08 CS336#19; M068 the two kinds of mask exchanged",
)
def causal_mask_additive(Tq, Tk, *, align="lower_right"):
    keep = causal_mask_tril(Tq, Tk, align=align)
    return torch.zeros(Tq, Tk).masked_fill(~keep, -math.inf)


# Shown by: the dtype only.
@wrong(
    "causal_mask",
    hint=(
        "Your mask holds the numbers 0 and 1. It looks right when printed, "
        "but attention functions add a float mask to the scores, so nothing "
        "would be hidden. Return a tensor of dtype torch.bool."
    ),
    evidence="M042 transformers#205; tril(ones) without .bool()",
)
def causal_mask_ones(Tq, Tk, *, align="lower_right"):
    return causal_mask_tril(Tq, Tk, align=align).float()


# Shown by: the kind of the result only.
@wrong(
    "causal_mask",
    hint=(
        "You return a numpy array. The functions that use the mask work on "
        "torch tensors, so return a tensor of dtype torch.bool."
    ),
    evidence="numpy for torch; plausible",
)
def causal_mask_numpy_array(Tq, Tk, *, align="lower_right"):
    return causal_mask_tril(Tq, Tk, align=align).numpy()


# Shown by: Tq ≠ Tk.
@wrong(
    "causal_mask",
    hint=(
        "You always build a square mask of Tq rows and columns. With a cache "
        "there are more keys than queries: the shape is (Tq, Tk), one row "
        "for each query and one column for each key."
    ),
    evidence="K14; square masks in tutorials",
)
def causal_mask_square(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tq, 0)


# Shown by: an unknown align.
@wrong(
    "causal_mask",
    hint=(
        "An unknown align is accepted as if it were a known one, so a typing "
        "error such as 'lower-right' gives a wrong mask without a word. Raise "
        "a ValueError for anything but the two names."
    ),
    evidence="curriculum 1.4: anything else is a ValueError",
)
def causal_mask_accepts_anything(Tq, Tk, *, align="lower_right"):
    return _causal(Tq, Tk, 0 if align == "upper_left" else Tk - Tq)


# Shown by: the type of the exception for an unknown align.
@wrong(
    "causal_mask",
    hint=(
        "An unknown align raises an error, but not a ValueError: an assert "
        "vanishes under python -O, and callers cannot catch it by its "
        "meaning. Raise the ValueError yourself, with the names allowed."
    ),
    evidence="curriculum 1.4: anything else is a ValueError",
)
def causal_mask_asserts(Tq, Tk, *, align="lower_right"):
    assert align in ("lower_right", "upper_left")
    return _causal(Tq, Tk, 0 if align == "upper_left" else Tk - Tq)


# Shown by: Tq > Tk under lower_right.
@wrong(
    "causal_mask",
    hint=(
        "With more queries than keys you move the mask so that no row is "
        "empty, and the last query no longer lines up with the last key. "
        "Under lower_right the oldest queries come before all keys: their "
        "rows stay False."
    ),
    evidence="curriculum 1.4: Tq > Tk leaves dead rows",
)
def causal_mask_offset_clamped(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, max(Tk - Tq, 0) if align == "lower_right" else 0)


# Shown by: Tq > Tk under lower_right.
@wrong(
    "causal_mask",
    hint=(
        "You open a key for queries that should see none, probably to avoid "
        "NaN. These queries are older than every key, so that key is their "
        "future. Leave their rows False; the attention function gives zeros "
        "there."
    ),
    evidence="M069 avoided in the wrong place",
)
def causal_mask_dead_rows_opened(Tq, Tk, *, align="lower_right"):
    mask = causal_mask_tril(Tq, Tk, align=align)
    mask[~mask.any(-1), 0] = True
    return mask


# Shown by: 1 < Tq < Tk under lower_right (3 new queries after 4 cached).
@wrong(
    "causal_mask",
    hint=(
        "When there are more keys than queries you open every key. That is "
        "right for one new query, but with three the first two see their own "
        "future. Only the keys older than the first query are open to all."
    ),
    evidence="M059 torchtune#1791",
)
def causal_mask_no_mask_with_cache(Tq, Tk, *, align="lower_right"):
    _known(align)
    if align == "lower_right" and Tq < Tk:
        return torch.ones(Tq, Tk, dtype=torch.bool)
    return _causal(Tq, Tk, Tk - Tq if align == "lower_right" else 0)


# Shown by: Tq = 1 < Tk under upper_left.
@wrong(
    "causal_mask",
    hint=(
        "For a single query you always open every key. That holds under "
        "lower_right; under upper_left the one query is the first position "
        "and sees key 0 only. Let align decide here too."
    ),
    evidence="M059 shortcut for one query; K78",
)
def causal_mask_one_query_sees_all(Tq, Tk, *, align="lower_right"):
    _known(align)
    return _causal(Tq, Tk, Tk - Tq if align == "lower_right" or Tq == 1 else 0)


_remembered = {}


# Shown by: two calls with one Tq and different Tk in one process.
@wrong(
    "causal_mask",
    hint=(
        "You remember a mask from an earlier call and use it again although "
        "the number of keys has changed. The mask depends on Tq, Tk and "
        "align together: build it anew, or remember it under all three."
    ),
    evidence="M062 darts#3052, mlx#3071; M118 state between calls",
)
def causal_mask_remembers_first(Tq, Tk, *, align="lower_right"):
    return _remembered.setdefault(
        (Tq, align), causal_mask_tril(Tq, Tk, align=align)
    )


# Shown by: Tq ≠ Tk, and an unknown align.
@wrong(
    "causal_mask",
    hint=(
        "You do not read align yet, and your mask starts in the upper left "
        "corner. Under lower_right, the default, the last query sees every "
        "key: line up the last row with the last column."
    ),
    evidence="fresh reader: tril(ones) and nothing else",
)
def causal_mask_plain_tril(Tq, Tk, *, align="lower_right"):
    return _causal(Tq, Tk, 0)


# Shown by: Tq < Tk under lower_right.
@wrong(
    "causal_mask",
    hint=(
        "With more keys than queries each query lacks a key, its own: your "
        "count of the older keys is one too small. Ask how many keys the last "
        "of Tq queries sees."
    ),
    evidence="hunt: off by one in the offset, square masks right",
)
def causal_mask_one_short_with_cache(Tq, Tk, *, align="lower_right"):
    _known(align)
    offset = Tk - Tq if align == "lower_right" else 0
    return _causal(Tq, Tk, offset - (offset > 0))


# Shown by: more keys than the table has columns.
@wrong(
    "causal_mask",
    hint=(
        "You cut the mask out of a table of a fixed size, so a longer "
        "sequence gets too few columns. Make the mask from Tq and Tk."
    ),
    evidence="nanoGPT's block_size table, cut to (Tq, Tk)",
)
def causal_mask_from_a_table(Tq, Tk, *, align="lower_right"):
    _known(align)
    offset = 0 if align == "upper_left" else Tk - Tq
    return _causal(1024, 1024, offset)[:Tq, :Tk]


# Shown by: another corner, as "upper_right".
@wrong(
    "causal_mask",
    hint=(
        "You look at a part of align only, so another corner, or other "
        "letters, pass for one of the two that exist. Compare the whole word."
    ),
    evidence='common: if "lower" in align',
)
def causal_mask_reads_half_the_name(Tq, Tk, *, align="lower_right"):
    align = align.lower()
    if "lower" not in align and "upper" not in align:
        raise ValueError(f"unknown align: {align}")
    return _causal(Tq, Tk, Tk - Tq if "lower" in align else 0)


# Shown by: the empty string as a name.
@wrong(
    "causal_mask",
    hint=(
        "You look for align within a text, and a part of a name, or no name "
        "at all, is found there too. Two strings without a comma between them "
        "are one: compare with a tuple of two."
    ),
    evidence='common: ("lower_right" "upper_left"), the comma forgotten',
)
def causal_mask_searches_in_a_text(Tq, Tk, *, align="lower_right"):
    if align not in "lower_right, upper_left":
        raise ValueError(f"unknown align: {align}")
    return _causal(Tq, Tk, 0 if align == "upper_left" else Tk - Tq)


# Shown by: an unknown align for a square mask.
@wrong(
    "causal_mask",
    hint=(
        "With as many queries as keys both alignments are the same, so you "
        "return before you look at align. An unknown name is a mistake there "
        "too: check it first."
    ),
    evidence="plausible: if Tq == Tk: return torch.ones(...).tril()",
)
def causal_mask_accepts_anything_when_square(Tq, Tk, *, align="lower_right"):
    if Tq != Tk:
        _known(align)
    return _causal(Tq, Tk, 0 if align == "upper_left" else Tk - Tq)


# Shown by: an unknown align for one query.
@wrong(
    "causal_mask",
    hint=(
        "A single query has a line of its own, which returns before you look "
        "at align. An unknown name is a mistake there too: check it first."
    ),
    evidence="plausible: a shortcut for one query, before the check",
)
def causal_mask_accepts_anything_for_one_query(Tq, Tk, *, align="lower_right"):
    if Tq > 1:
        _known(align)
    return _causal(Tq, Tk, 0 if align == "upper_left" else Tk - Tq)


# Shown by: another default device.
@wrong(
    "causal_mask",
    hint=(
        "You fix the mask's device. Leave it to torch, which knows the "
        "default device of whoever calls you."
    ),
    evidence='common: device="cuda" if torch.cuda.is_available() else "cpu"',
)
def causal_mask_fixes_device(Tq, Tk, *, align="lower_right"):
    _known(align)
    offset = 0 if align == "upper_left" else Tk - Tq
    return torch.ones(Tq, Tk, dtype=torch.bool, device="cpu").tril(offset)


# 1.5 scaled_dot_product_attention


@oracle(
    "scaled_dot_product_attention",
    evidence="F.sdpa in float64; identity values read the weights",
)
def sdpa_library(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    Tq, Tk = q.shape[-2], k.shape[-2]
    mask = torch.zeros(Tq, Tk, dtype=torch.float64, device=q.device)
    if is_causal:
        causal = causal_mask_cells(Tq, Tk).to(q.device)
        mask = mask.masked_fill(~causal, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = mask.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        mask = mask + attn_mask.double()
    eye = torch.eye(Tk, dtype=torch.float64, device=q.device)
    eye = eye.expand(*v.shape[:-1], Tk)
    values = torch.cat([v.double(), eye], -1)
    with sdpa_kernel(SDPBackend.MATH):
        both = F.scaled_dot_product_attention(
            q.double(), k.double(), values, attn_mask=mask, scale=scale
        )
    output, weights = both.split([v.shape[-1], Tk], -1)
    return output.to(q.dtype), weights.to(q.dtype)


@right(
    "scaled_dot_product_attention",
    evidence="K03 loops over batch and query; only visible keys exist",
)
def sdpa_loops(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    batch, (Tq, d), Tk = q.shape[:-2], q.shape[-2:], k.shape[-2]
    scale = d**-0.5 if scale is None else scale
    bias = q.new_zeros(*batch, Tq, Tk).double()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = bias.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        bias = bias + attn_mask
    rows = []
    for at in itertools.product(*map(range, batch), range(Tq)):
        keys, last = k[at[:-1]].double(), at[-1] + Tk - Tq
        row = keys.sum(-1).masked_fill(torch.tensor(True), 0)
        see = [
            j
            for j in range(Tk)
            if bias[at][j] > -math.inf and (not is_causal or j <= last)
        ]
        if see:
            scores = torch.stack([keys[j] @ q[at].double() for j in see])
            w = (scores * scale + bias[at][see]).softmax(0)
            row = row.index_put((torch.tensor(see),), w)
        rows.append(row)
    weights = torch.stack(rows).reshape(*batch, Tq, Tk)
    return (weights @ v.double()).to(q.dtype), weights.to(q.dtype)


@right("scaled_dot_product_attention", evidence="K02 einsum, K15 views")
def sdpa_einsum(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    dtype, scale = q.dtype, q.size(-1) ** -0.5 if scale is None else scale
    q, k, v = _wide(q), _wide(k), _wide(v)
    scores = torch.einsum("...id,...jd->...ji", q, k).mT * scale
    bias = scores.new_zeros(scores.shape[-2:])
    if attn_mask is not None and not attn_mask.is_floating_point():
        bias = torch.where(attn_mask, bias, -torch.inf)
    elif attn_mask is not None:
        bias = bias + attn_mask
    if is_causal:
        ahead = torch.ones_like(bias, dtype=torch.bool)
        ahead = ahead.triu(k.size(-2) - q.size(-2) + 1)
        bias = bias.masked_fill(ahead, -torch.inf)
    dead = (bias == -torch.inf).all(-1, keepdim=True)
    # A dead row gets an even bias before the softmax and zeros after it.
    bias = bias.masked_fill(dead, 0)
    weights = torch.softmax(scores + bias, -1).masked_fill(dead, 0)
    out = torch.einsum("...ij,...jd->...di", weights, v).mT
    return out.to(dtype), weights.to(dtype)


@right(
    "scaled_dot_product_attention",
    evidence="K06 scale on q; K10 fills its own scores; K11 nan_to_num",
)
def sdpa_nan_to_num(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (_wide(q) * scale) @ _wide(k).transpose(-1, -2)
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    scores = scores.clone().masked_fill_(~keep, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    return _attend(weights, v, q.dtype)


@right(
    "scaled_dot_product_attention",
    evidence="K08 additive mask of 1 and −inf; K16 a named tuple",
)
def sdpa_one_or_minus_infinity(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q.double(), k.double(), scale)
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    scores = scores + torch.where(keep, 1.0, -math.inf)
    alive = keep.any(-1, keepdim=True)
    weights = torch.where(alive, scores, 0).softmax(-1) * alive
    return Attended(*_attend(weights, v.double(), q.dtype))


@right(
    "scaled_dot_product_attention",
    evidence="K05 exponentials by hand, detached maximum, late division",
)
def sdpa_late_division(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q, k, scale)
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    scores = scores.masked_fill(~keep, -math.inf)
    top = scores.amax(-1, keepdim=True).detach()
    e = (scores - top.masked_fill(top == -math.inf, 0)).exp()
    total = e.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1)
    return [(e @ _wide(v) / total).to(q.dtype), (e / total).to(q.dtype)]


@right(
    "scaled_dot_product_attention",
    evidence="K17 an extra argument; K22 batch axes folded into one",
)
def sdpa_folded_batch(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None, dropout_p=0.0
):
    shape = (*q.shape[:-1], k.shape[-2])
    bias = torch.zeros(shape, dtype=torch.float64, device=q.device)
    if attn_mask is not None:
        hide = attn_mask.dtype == torch.bool
        bias = (
            bias.masked_fill(attn_mask.logical_not(), -math.inf)
            if hide
            else bias + attn_mask
        )
    bias = bias.reshape(-1, *shape[-2:])
    if is_causal:
        seen = causal_mask_positions(*shape[-2:]).to(q.device)
        bias = bias.where(seen, -math.inf)
    q3, k3, v3 = (x.double().reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.baddbmm(bias, q3, k3.mT, alpha=scale)
    # A virtual key, visible only in rows without another, takes all weight.
    dead = (bias == -math.inf).all(-1, keepdim=True)
    spare = torch.zeros_like(dead, dtype=bias.dtype).where(dead, -math.inf)
    scores = scores.masked_fill(bias == -math.inf, -math.inf)
    weights = torch.cat([spare, scores], -1).softmax(-1)[..., 1:]
    out = torch.bmm(weights, v3).reshape(*q.shape[:-1], v.shape[-1])
    return out.to(q.dtype), weights.reshape(shape).to(q.dtype)


@right("scaled_dot_product_attention", evidence="K30 log-sum-exp")
def sdpa_log_sum_exp(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scores = _scores(q, k, scale)
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    scores = scores.masked_fill(~keep, -math.inf)
    dead = ~keep.any(-1, keepdim=True)
    total = scores.masked_fill(dead, 0).logsumexp(-1, keepdim=True)
    return _attend((scores - total).exp(), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your scores are not scaled when scale is None. Their deviation then "
        "grows like √d_k and the weights come out nearly one-hot: the worked "
        "example gives 0.881 instead of 0.804. Scale the scores before the "
        "softmax."
    ),
    evidence="curriculum 1.5; A18",
)
def sdpa_no_scale(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    return _sdpa(q, k, v, attn_mask, is_causal, 1 if scale is None else scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You divide the scores by d_k instead of its square root, so they "
        "become too small and the weights too even. Exercise 1.2 measures "
        "which of the two brings the deviation to 1."
    ),
    evidence="curriculum 1.5; D2 d scale",
)
def sdpa_scale_by_d(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scale = 1 / q.shape[-1] if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: H ≠ d_k with a head axis (B, H, T, d).
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You take the scale from axis 1, the heads, instead of the last "
        "axis. The number of terms in a dot product is d_k, the size of the "
        "last axis of q; negative axis numbers work for any batch axes."
    ),
    evidence="M016 tenstorrent/tt-metal#56789",
)
def sdpa_scale_by_heads(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[1] ** -0.5 if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: d_k ≠ 64.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your default scale is a fixed number, right for one head size only. "
        "Compute it from the size of q's last axis."
    ),
    evidence="M017 BobMcDear/attorch#14",
)
def sdpa_scale_constant(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = 1 / 8 if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your default scale comes from a float32 tensor, such as "
        "torch.sqrt(torch.tensor(d)), so float64 scores keep eight digits of "
        "sixteen. math.sqrt gives a Python number, which is exact enough for "
        "all."
    ),
    evidence="common: q @ k.mT / torch.sqrt(torch.tensor(d_k))",
)
def sdpa_scale_in_float32(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if scale is None:
        scale = (1 / torch.sqrt(torch.tensor(float(q.shape[-1])))).item()
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You ask the softmax for float32, with dtype=torch.float32 or a "
        ".float() before it. That widens half precision, but it narrows "
        "float64, which loses half of its digits: widen the inputs with "
        "torch.promote_types."
    ),
    evidence="transformers: F.softmax(scores, -1, dtype=torch.float32)",
)
def sdpa_softmax_in_float32(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    weights = _masked(scores.float(), keep).to(scores.dtype)
    return _attend(weights, v, q.dtype)


# Shown by: float64 with a tolerance below 1e-9.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "A small constant in the denominator keeps dead rows from dividing 0 "
        "by 0, but it makes every other row sum to less than 1. Here float64 "
        "counts to 1e-10: treat the dead rows alone."
    ),
    evidence="K29: weights / (weights.sum(-1, keepdim=True) + 1e-9)",
)
def sdpa_epsilon(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    hidden = scores.masked_fill(~keep, -math.inf)
    top = hidden.detach().amax(-1, keepdim=True).nan_to_num(neginf=0)
    e = (hidden - top).exp()
    weights = e / (e.sum(-1, keepdim=True) + 1e-9)
    return _attend(weights, v, q.dtype)


# Shown by: Tk ≠ d_k.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You divide by the square root of the number of keys, so the weights "
        "change with the length of the text. The scale belongs to the size "
        "of a key: the last axis, not the one before."
    ),
    evidence="M018 common",
)
def sdpa_scale_by_length(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = k.shape[-2] ** -0.5 if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: dv ≠ d_k.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You take the scale from the values' width. Values take no part in "
        "the scores, and their width may differ: use the width of q and k."
    ),
    evidence="A10, D1 sqrt(d_v) passes CS336's released tests",
)
def sdpa_scale_by_value_width(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = v.shape[-1] ** -0.5 if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You multiply the scores by √d_k, so they spread like d_k and the "
        "softmax saturates. The scale is there to bring them back to a "
        "deviation of 1: divide."
    ),
    evidence="M020 common",
)
def sdpa_scale_multiplied(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** 0.5 if scale is None else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: an explicit scale; with scale=None it is right.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "When scale is given you apply it on top of the default, so the "
        "scores are scaled twice and the weights are too even. A given scale "
        "replaces the default."
    ),
    evidence="M021 users of F.sdpa who scale q first",
)
def sdpa_scaled_twice(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scale = (1 if scale is None else scale) * q.shape[-1] ** -0.5
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: an explicit scale.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You never read the argument scale. When it is given it replaces "
        "1/√d_k; only None means the default."
    ),
    evidence="argument ignored; M046's kind",
)
def sdpa_scale_argument_ignored(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(q, k, v, attn_mask, is_causal, None)


# Shown by: scale=0.0 only.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You test whether scale is truthy, and 0.0 is not, so a scale of 0 "
        "(the uniform limit) turns into the default. Compare with None."
    ),
    evidence="curriculum 1.5 uniform limit; `scale or default`",
)
def sdpa_scale_zero_lost(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(q, k, v, attn_mask, is_causal, scale or None)


# Shown by: an explicit scale that is not 1.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You divide by the given scale. As in F.scaled_dot_product_attention "
        "the scores are multiplied by it: the default is 1/√d_k, not √d_k."
    ),
    evidence="M020 for the argument; plausible",
)
def sdpa_divides_by_scale(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = scale if scale is None else 1 / scale if scale else math.inf
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You scale the values instead of the scores: the weights stay too "
        "sharp and the output shrinks. With values of 1 the output must be "
        "1. Put the scale before the softmax."
    ),
    evidence="M023 common",
)
def sdpa_scale_on_values(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    output, weights = _sdpa(q, k, v, attn_mask, is_causal, 1)
    return output * scale, weights


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You normalise over the queries, so the columns sum to 1 instead of "
        "the rows: a query's weights depend on the other queries, and a "
        "causal mask leaks. Each query spreads one unit of weight over the "
        "keys, the last axis of the scores."
    ),
    evidence="M024 PyTorch-NLP#2, labmlai#146, FudanNLP/fastNLP#254",
)
def sdpa_softmax_over_queries(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    return _attend(_masked(scores, keep, -2), v, q.dtype)


# Shown by: a batch axis (without one, axis 0 is the queries').
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You normalise over axis 0, the batch, so the examples share their "
        "weight and a batch of one gives weights of 1 everywhere. Each row "
        "of keys, the last axis, must sum to 1."
    ),
    evidence="M025 jadore801120#52, #19; catalyst#285",
)
def sdpa_softmax_over_batch(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    return _attend(_masked(scores, keep, 0), v, q.dtype)


# Shown by: a head axis with H ≥ 2.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "The heads share one unit of weight, because you normalise over "
        "heads and keys together. Each head has its own weights: normalise "
        "over the last axis alone."
    ),
    evidence="M026 facebookresearch/detr#247",
)
def sdpa_heads_share_softmax(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    if scores.ndim < 4:
        return _attend(_masked(scores, keep), v, q.dtype)
    joint, see = (x.movedim(-3, -2).flatten(-2) for x in (scores, keep))
    weights = _masked(joint, see).unflatten(-1, (-1, k.shape[-2]))
    return _attend(weights.movedim(-2, -3), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You reshape the keys to (…, d, Tk). The shape fits, but reshaping "
        "deals the numbers out anew, so a column is no longer one key. You "
        "need to exchange the two last axes instead."
    ),
    evidence="M027 common",
)
def sdpa_key_reshaped(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    k = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])
    return _sdpa(q, k.transpose(-1, -2), v, attn_mask, is_causal, scale)


# Shown by: Tq = Tk; other lengths raise.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You transpose the weights before you apply them to the values, so "
        "each output mixes by who looks at it rather than by what it looks "
        "at. Row i of the weights belongs to output i."
    ),
    evidence="M031 brain-research/self-attention-gan#17",
)
def sdpa_weights_transposed(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    weights = _sdpa(q, k, v, attn_mask, is_causal, scale)[1]
    return weights.mT @ v, weights


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You average the keys instead of the values, so v plays no part. "
        "Keys decide how much each position counts; what is mixed are the "
        "values."
    ),
    evidence="M032 Khaliladib11#1 family",
)
def sdpa_context_from_keys(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(q, k, k, attn_mask, is_causal, scale)


# Shown by: row sums under a mask, or another K at a hidden key; another V
# there shows nothing.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You set hidden weights to zero after the softmax. The denominator "
        "has already counted the hidden keys, so the rows sum to less than 1 "
        "and hidden keys still change the result. Hide the scores before the "
        "softmax."
    ),
    evidence="M034 huggingface/pytorch-image-models#2236",
)
def sdpa_mask_after_softmax(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    scores = torch.where(keep, scores, _scores(q, k, scale))
    return _attend(scores.softmax(-1) * keep, v, q.dtype)


# Shown by: a hidden key whose score exceeds the visible ones by more than
# 745 (104 in float32).
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You mask after the softmax and then divide by what is left. If a "
        "hidden key has by far the largest score, the visible weights have "
        "already underflowed to 0 and cannot be brought back. Hide the "
        "scores before the softmax."
    ),
    evidence="M035 pointer-generator#88, RMT#21; the contract includes "
    "large logits",
)
def sdpa_mask_after_renormalised(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    scores = torch.where(keep, scores, _scores(q, k, scale))
    weights = scores.softmax(-1) * keep
    total = weights.sum(-1, keepdim=True)
    return _attend(weights / total.masked_fill(total == 0, 1), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your hidden scores become 0 or nearly so: by a product with the "
        "mask, or by a fill such as 1e-9. But 0 is an ordinary score with an "
        "exponential of 1, so hidden keys keep their weight. Which score has "
        "an exponential of 0?"
    ),
    evidence="curriculum 1.5; M037 awslabs/gluonts#1401, hyunwoongko#10 "
    "(the same to 1e-9)",
)
def sdpa_mask_multiplied_in(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    weights = scores.masked_fill(~keep, 0).softmax(-1)
    return _attend(weights, v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Neither attn_mask nor is_causal has an effect yet. If you do call "
        "masked_fill: it returns a new tensor and leaves the old one as it "
        "is, so go on with what it returns."
    ),
    evidence="M039 CS336 assignment 2",
)
def sdpa_mask_result_discarded(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), None, False)
    scores.masked_fill(~keep, -math.inf)
    return _attend(scores.softmax(-1), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You build the additive mask by multiplying with infinity. Where the "
        "factor is 0, 0 × ∞ is NaN, so every visible score is lost. Choose "
        "between 0 and −∞ entry by entry instead."
    ),
    evidence="M040 named in ARENA's tests",
)
def sdpa_zero_times_infinity(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    if attn_mask is not None or is_causal:
        scores = scores + (~keep).to(scores.dtype) * -math.inf
    return _attend(scores.softmax(-1), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You hide the keys where a boolean mask is True. In this course, as "
        "in F.scaled_dot_product_attention, True means that the query may "
        "look there."
    ),
    evidence="M041 transformers#38094, BertWithPretrained#17",
)
def sdpa_mask_inverted(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You add a boolean mask to the scores as 0 and 1, so visible keys "
        "gain a little and hidden ones lose nothing. A boolean mask says "
        "which scores to hide; only a float mask is added."
    ),
    evidence="M042 transformers#205",
)
def sdpa_bool_mask_added(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None:
        attn_mask = attn_mask.to(torch.float64)
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: attn_mask and is_causal together.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "With is_causal=True you forget attn_mask, so padding becomes "
        "visible again. When both are given, both apply."
    ),
    evidence="M046 keras#23038; M066 SymbolicMathematics#19",
)
def sdpa_causal_replaces_mask(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    attn_mask = None if is_causal else attn_mask
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: attn_mask and is_causal together.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "When attn_mask is given you forget is_causal, so queries see their "
        "future. When both are given, both apply."
    ),
    evidence="M066 fairseq2#59",
)
def sdpa_mask_replaces_causal(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    is_causal = is_causal and attn_mask is None
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: visible scores all below -25 or so (with values of 1e6 at hidden
# keys even around -15), or a row without a visible key.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You fill hidden scores with −50. That is an ordinary score: when "
        "the visible ones are low too, or a hidden value is huge, it shows "
        "in the output. Only negative infinity gives a weight of exactly 0."
    ),
    evidence="M048 passes CS336's released tests",
)
def sdpa_fill_minus_50(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    weights = scores.masked_fill(~keep, -50.0).softmax(-1)
    return _attend(weights, v, q.dtype)


# Shown by: float16 inputs with a mask (raises), or a row without a visible
# key.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You fill hidden scores with −1e9. Float16 cannot hold that number, "
        "and a row without a visible key becomes an even average of values "
        "that it must not see. Fill with negative infinity and give such "
        "rows zeros."
    ),
    evidence="M049 apex#1052, fairseq#3575, bentrevett#191",
)
def sdpa_fill_minus_1e9(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    scores = scores.to(q.dtype).masked_fill(~keep, -1e9)
    return _attend(scores.softmax(-1), v.to(q.dtype), q.dtype)


# Shown by: a row without a visible key.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "A query without a visible key gives an even average of all values, "
        "because your fill is the lowest finite number and every score of "
        "that row is equal. In this course such a row gives zeros."
    ),
    evidence="K11 refused: the convention is zeros; curriculum 1.5 finite "
    "fills",
)
def sdpa_dead_rows_average(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~keep, lowest).softmax(-1)
    return _attend(weights, v, q.dtype)


# Shown by: a row that attn_mask and is_causal hide together, each key by
# both (NaN), or by either (an average).
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You add the lowest finite number once for each mask. Where both "
        "hide a key the sum overflows to −∞, and a row made of such keys is "
        "NaN. Combine the masks with a logical and first, then hide once."
    ),
    evidence="M050 Hugging Face's mask expansion",
)
def sdpa_two_lowest_numbers(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_mask(_scores(q, k, scale), attn_mask)
    lowest = torch.finfo(scores.dtype).min
    bias = torch.zeros_like(scores).masked_fill(~keep, lowest)
    if is_causal:
        bias = bias + torch.zeros_like(scores).masked_fill(
            ~_lower_right(scores), lowest
        )
    return _attend((scores + bias).softmax(-1), v, q.dtype)


# Shown by: float64 inputs with a tolerance below 1e-7.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You convert every input to float32, so float64 loses half of its "
        "digits (an error near 1e-7) even if you convert back. Widen only "
        "what is narrower than float32."
    ),
    evidence="M051 common",
)
def sdpa_float32(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    results = _sdpa(
        q.float(), k.float(), v.float(), attn_mask, is_causal, scale
    )
    return tuple(x.to(q.dtype) for x in results)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "is_causal has no effect: every query sees the whole sequence, and "
        "only the last row is right. A model trained so learns to copy. Hide "
        "the keys that come after each query."
    ),
    evidence="M052 jadore801120#19, transformers#48760; A07 CS336#51",
)
def sdpa_causal_forgotten(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(q, k, v, attn_mask, False, scale)


def _sdpa_causal(q, k, v, attn_mask, causal, scale):
    """Attention with a causal mask (Tq, Tk) of the caller's making."""
    scores, keep = _apply_mask(_scores(q, k, scale), attn_mask)
    return _attend(_masked(scores, keep & causal), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your causal mask keeps the wrong triangle: each query sees the "
        "future and not the past. The first query should see one key, the "
        "last one all."
    ),
    evidence="M053 karpathy/nanoGPT#170",
)
def sdpa_causal_only_future(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    Tq, Tk = q.shape[-2], k.shape[-2]
    causal = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device)
    causal = causal.triu(Tk - Tq) if is_causal else causal
    return _sdpa_causal(q, k, v, attn_mask, causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your causal mask hides the diagonal too, so no query sees its own "
        "key and the first one sees nothing. With is_causal=True the first "
        "output of a square case equals the first value."
    ),
    evidence="M054 pbloem/former#10",
)
def sdpa_causal_hides_diagonal(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    ahead = -1 if is_causal else max(q.shape[-2], k.shape[-2])
    causal = _lower_right(_scores(q, k), ahead)
    return _sdpa_causal(q, k, v, attn_mask, causal, scale)


# Shown by: changing the key or value right after a query.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your causal mask lets each query see one key ahead, the very token "
        "that a language model has to predict. Move the boundary back by one."
    ),
    evidence="M056 TransformerLens#284",
)
def sdpa_causal_one_ahead(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    ahead = 1 if is_causal else max(q.shape[-2], k.shape[-2])
    causal = _lower_right(_scores(q, k), ahead)
    return _sdpa_causal(q, k, v, attn_mask, causal, scale)


# Shown by: is_causal with Tq ≠ Tk.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your causal mask starts in the upper left corner, so with one query "
        "and seven keys only key 0 is visible. The newest query sees "
        "everything: align the mask to the lower right, as in exercise 1.4."
    ),
    evidence="M057 pytorch#103082, onnx#8068; M058 "
    "rasbt/LLMs-from-scratch#697",
)
def sdpa_causal_upper_left(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    Tq, Tk = q.shape[-2], k.shape[-2]
    causal = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device)
    causal = causal.tril() if is_causal else causal
    return _sdpa_causal(q, k, v, attn_mask, causal, scale)


# Shown by: is_causal with 1 < Tq < Tk.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You drop the causal mask whenever there are more keys than queries. "
        "That is right for one new token, but three new tokens would see "
        "each other's future. Use the lower right mask for every length."
    ),
    evidence="M059 torchtune#1791",
)
def sdpa_no_mask_with_cache(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    is_causal = is_causal and q.shape[-2] >= k.shape[-2]
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You read a float mask as if it were boolean: its 0 (visible) counts "
        "as hidden and its −∞ as visible. Ask for the mask's dtype: boolean "
        "selects, float is added."
    ),
    evidence="M068 harvard-edge/cs249r_book#1785",
)
def sdpa_float_mask_read_as_bool(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    attn_mask = None if attn_mask is None else attn_mask.bool()
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: a float mask with finite entries other than 0.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "From a float mask you use only the −∞ entries and forget the finite "
        "ones, which push the scores up or down (ALiBi works so). Add the "
        "whole mask to the scores."
    ),
    evidence="M068's kind; plausible",
)
def sdpa_float_bias_dropped(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask > -math.inf
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: a row without a visible key.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "A query without a visible key has only scores of −∞, and the "
        "softmax of that is NaN, which spreads to everything after it. Find "
        "such rows and give them zeros."
    ),
    evidence="M069 pytorch#103749, #103963; OLMo#322; jadore801120#5",
)
def sdpa_dead_rows_nan(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    weights = scores.masked_fill(~keep, -math.inf).softmax(-1)
    return _attend(weights, v, q.dtype)


# Shown by: the gradients of q or k with a row without a visible key.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your output is right, but with a query that sees no key the "
        "gradients are NaN: you repair the NaN after the softmax, and the "
        "backward pass goes through it again. Make the scores of such rows "
        "finite before the softmax, or cut them off with a masked fill."
    ),
    evidence="M069 backward; D5 (nan_to_num is safe after masked_fill only)",
)
def sdpa_nan_gradients(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    scores = scores + torch.where(keep, 0.0, -math.inf)
    return _attend(scores.softmax(-1).nan_to_num(0), v, q.dtype)


# Shown by: the gradient past a row that a floating mask hides.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You replace the NaN of dead rows after the softmax. Behind a "
        "masked_fill their gradients are 0 all the same, but a floating mask "
        "is added, and there the NaN goes back into q and k. Make dead rows "
        "harmless before the softmax."
    ),
    evidence="common: torch.softmax(scores + attn_mask, -1).nan_to_num(0)",
)
def sdpa_nan_gradients_of_added_mask(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    if attn_mask is not None and attn_mask.is_floating_point():
        keep = _lower_right(scores) if is_causal else keep | True
    scores = scores.masked_fill(~keep, -math.inf)
    return _attend(scores.softmax(-1).nan_to_num(0), v, q.dtype)


# Shown by: float16 or bfloat16 inputs, by dtype.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Half-precision inputs come back as float32, so the next layer gets "
        "a dtype that it does not expect. Compute in float32, then convert "
        "both results to the dtype of q."
    ),
    evidence="M117's kind: promotion of activations",
)
def sdpa_half_returns_float(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(_wide(q), _wide(k), _wide(v), attn_mask, is_causal, scale)


# Shown by: comparing q before and after the call.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your result is right, but you scaled the caller's q in place: its "
        "next use finds other numbers. Write the scaled queries into a new "
        "tensor."
    ),
    evidence="M011 in this exercise",
)
def sdpa_in_place(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    results = _sdpa(q, k, v, attn_mask, is_causal, scale)
    q.detach().mul_(q.shape[-1] ** -0.5 if scale is None else scale)
    return results


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You return the weights first. The contract is the output first, of "
        "shape (…, Tq, dv), then the weights, of shape (…, Tq, Tk)."
    ),
    evidence="order of results; common",
)
def sdpa_results_swapped(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    return _sdpa(q, k, v, attn_mask, is_causal, scale)[::-1]


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You return the output only. This exercise asks for a pair, output "
        "and weights, so that the weights can be looked at."
    ),
    evidence="K16 refused: the contract is a pair",
)
def sdpa_output_only(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    return _sdpa(q, k, v, attn_mask, is_causal, scale)[0]


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You return a dictionary. Callers unpack two values, output and "
        "weights, so return them as a pair (a named tuple is one too)."
    ),
    evidence="K16 refused: the contract is a pair",
)
def sdpa_dictionary(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    output, weights = _sdpa(q, k, v, attn_mask, is_causal, scale)
    return {"output": output, "weights": weights}


# Shown by: a batch axis; without one it is right.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "k.T reverses all axes, the batch and the heads included, so it is "
        "right for one matrix only. Exchange the last two axes and leave the "
        "others where they are."
    ),
    evidence="M029, M027; the chapter's warning",
)
def sdpa_all_axes_reversed(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    k = _wide(k).permute(*reversed(range(k.ndim)))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, keep = _apply_masks(_wide(q) @ k * scale, attn_mask, is_causal)
    return _attend(_masked(scores, keep), v, q.dtype)


# Shown by: a float mask with finite entries other than 0.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You add the floating mask before the scale, so its entries shrink "
        "with the scores. It is added to the scores after scaling, as in the "
        "formula."
    ),
    evidence="fresh reader: order of the steps",
)
def sdpa_mask_scaled_too(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, keep = _apply_masks(_scores(q, k, 1), attn_mask, is_causal)
    return _attend(_masked(scores * scale, keep), v, q.dtype)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You add the floating mask before the scale, so its entries shrink "
        "with the scores. It is added to the scores after scaling, as in the "
        "formula. (Half-precision inputs have to be widened first.)"
    ),
    evidence="fresh reader: the same before half precision is done",
)
def sdpa_mask_scaled_too_in_own_dtype(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, keep = _apply_masks(q @ k.mT, attn_mask, is_causal)
    weights = _masked(scores * scale, keep)
    return weights @ v, weights


# Shown by: half-precision inputs whose scores exceed 65,504.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You compute in the input's half precision, where a score beyond "
        "65,504 is infinite and the softmax of it NaN. Convert q, k and v to "
        "float32 first, and both results back at the end."
    ),
    evidence="curriculum's precision convention; M117 in reverse",
)
def sdpa_half_arithmetic(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, keep = _apply_masks(q @ k.mT * scale, attn_mask, is_causal)
    weights = _masked(scores, keep)
    return weights @ v, weights


# Shown by: gradients; the values are right.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "Your output is right, but no gradient reaches q and k: something on "
        "the way cuts the graph, such as detach(), .data, item(), numpy() or "
        "a block under no_grad()."
    ),
    evidence="fresh reader; K05's detach in the wrong place",
)
def sdpa_detached(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    return _sdpa(q.detach(), k.detach(), v, attn_mask, is_causal, scale)


@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You multiply the weights by the mask after the softmax. The "
        "denominator has already counted the hidden keys, so the rows sum to "
        "less than 1, and a floating mask is no factor at all. Hide the "
        "scores before the softmax."
    ),
    evidence="M034, with the mask as it comes",
)
def sdpa_weights_times_mask(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q, k, scale)
    weights = scores.softmax(-1)
    weights = weights if attn_mask is None else weights * attn_mask
    weights = weights * _lower_right(scores) if is_causal else weights
    return _attend(weights, v, q.dtype)


# Shown by: a floating mask, which raises.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You treat every mask as boolean, and a floating one cannot be "
        "negated. Ask for the mask's dtype: boolean selects, floating is "
        "added."
    ),
    evidence="fresh reader: half-way through",
)
def sdpa_boolean_masks_only(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q, k, scale)
    keep = torch.ones_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        keep = keep & ~~attn_mask
    keep = keep & _lower_right(scores) if is_causal else keep
    return _attend(_masked(scores, keep), v, q.dtype)


# Shown by: visible scores below the fill.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You fill hidden scores with a large finite number (−1e9, say) and "
        "zero their weights afterwards. That clears dead rows, but visible "
        "scores may lie below the fill: then the hidden ones take all the "
        "weight before you clear them. Fill with negative infinity."
    ),
    evidence="M049, with a second mask after the softmax",
)
def sdpa_fill_minus_1e9_then_zero(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    weights = scores.masked_fill(~keep, -1e9).softmax(-1) * keep
    return _attend(weights, v, q.dtype)


# Shown by: is_causal together with a floating mask.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "With a floating mask is_causal does nothing. Where both are given, "
        "both apply: hide the future, and add the mask."
    ),
    evidence="M066, for floating masks only",
)
def sdpa_float_mask_replaces_causal(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    floating = attn_mask is not None and attn_mask.dtype != torch.bool
    is_causal = is_causal and not floating
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: half-precision values that nearly cancel.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You round the weights to half precision before they average the "
        "values, and where large values nearly cancel, 3 digits are not "
        "enough. Convert both results at the end, after the product."
    ),
    evidence="transformers: softmax(dtype=float32).to(q.dtype) @ v",
)
def sdpa_weights_in_half(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    _, weights = _sdpa(q, k, v, attn_mask, is_causal, scale)
    return weights @ v, weights


# Shown by: bfloat16 scores near 100.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You widen float16 alone. bfloat16 is half precision too, with 8 bits "
        "where float16 has 11: ask torch.promote_types, or test for both."
    ),
    evidence="common: q.dtype == torch.float16",
)
def sdpa_widens_float16_only(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if q.dtype == torch.float16:
        return _sdpa(q, k, v, attn_mask, is_causal, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-1, -2) * scale
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    weights = _masked(scores, keep)
    return weights @ v, weights


# Shown by: half-precision queries that a scale rounds.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You scale the queries in half precision and widen them afterwards, "
        "so they are rounded once more on the way. Widen first, then compute."
    ),
    evidence="common: (q * scale).float()",
)
def sdpa_scaled_in_half(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, keep = _apply_masks(
        _scores(q * scale, k, 1.0), attn_mask, is_causal
    )
    return _attend(_masked(scores, keep), v, q.dtype)


# Shown by: a floating half-precision mask of large numbers.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You add the mask in half precision, where a large entry swallows the "
        "score's last digits. Widen scores and mask before you add."
    ),
    evidence="common: scores.to(attn_mask.dtype) + attn_mask",
)
def sdpa_mask_added_in_half(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q, k, scale)
    if attn_mask is not None and attn_mask.is_floating_point():
        scores = _wide(scores.to(attn_mask.dtype) + attn_mask)
        attn_mask = attn_mask > -math.inf
    scores, keep = _apply_masks(scores, attn_mask, is_causal)
    return _attend(_masked(scores, keep), v, q.dtype)


# Shown by: float16 scores below -65,504.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You hide with the lowest number of the inputs' dtype. In float16 "
        "that is −65,504, and float32 scores may well lie below it. Hide with "
        "−inf."
    ),
    evidence="Hugging Face: torch.finfo(dtype).min",
)
def sdpa_lowest_of_input_dtype(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    lowest = torch.finfo(q.dtype).min
    weights = scores.masked_fill(~keep, lowest).softmax(-1)
    weights = weights * keep.any(-1, keepdim=True)
    return _attend(weights, v, q.dtype)


# Shown by: a negative scale.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You take a negative scale for none, or drop its sign. Only None "
        "means 1/√d; every number that is given multiplies the scores."
    ),
    evidence="common: if scale is None or scale < 0",
)
def sdpa_negative_scale_lost(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scale = None if scale is not None and scale < 0 else scale
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: one example of several that sees nothing.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You look for dead rows in the first example and take them for those "
        "of all examples. Each example, and each head, has its own: reduce "
        "over the keys alone."
    ),
    evidence="common: a reduction over too many axes",
)
def sdpa_dead_rows_of_first_example(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores, keep = _apply_masks(_scores(q, k, scale), attn_mask, is_causal)
    dead = ~keep.reshape(-1, *keep.shape[-2:])[0].any(-1, keepdim=True)
    weights = scores.masked_fill(~keep & ~dead, -math.inf).softmax(-1)
    return _attend(weights.masked_fill(dead, 0), v, q.dtype)


# Shown by: a row whose keys are hidden by −inf and by the future together.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "A row that sees nothing only by two masks together, a floating one "
        "and is_causal, is not found: you look at each mask by itself, or one "
        "of them hides with a finite number. Hide with −inf in both, and look "
        "for dead rows when both have been applied."
    ),
    evidence="common: dead rows found before the masks meet",
)
def sdpa_dead_rows_mask_by_mask(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    scores = _scores(q, k, scale)
    dead = torch.zeros_like(scores[..., :1], dtype=torch.bool)
    if attn_mask is not None and attn_mask.is_floating_point():
        dead = dead | (attn_mask == -math.inf).all(-1, keepdim=True)
        scores, attn_mask = scores + attn_mask.to(scores.dtype), None
    _, keep = _apply_masks(scores, attn_mask, is_causal)
    dead = dead | ~keep.any(-1, keepdim=True)
    scores = scores.masked_fill(~keep, -math.inf).masked_fill(dead, 0)
    return _attend(scores.softmax(-1).masked_fill(dead, 0), v, q.dtype)


# Shown by: a floating mask with an entry of its own for each example.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You read a floating mask as one matrix for all and drop its leading "
        "axes. It may differ between examples or heads, as ALiBi's does: add "
        "it as it is, and it broadcasts."
    ),
    evidence="plausible: bias[0] where a mask has more than two axes",
)
def sdpa_float_mask_of_first_example(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask[(0,) * (attn_mask.ndim - 2)]
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: a mask of three axes for scores of four.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You insert an axis into a mask of three axes, as if it had one mask "
        "for each example. Broadcasting lines axes up at their ends: here the "
        "first of the three is that of the heads."
    ),
    evidence="annotated transformer: mask.unsqueeze(1)",
)
def sdpa_mask_gets_head_axis(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None and attn_mask.ndim == 3 and q.ndim == 4:
        attn_mask = attn_mask.unsqueeze(1)
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: a floating mask whose entries are finite and very low.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You take a low entry of a floating mask for a hidden key. Only −inf "
        "hides; every other entry is added as it is, also −20,000."
    ),
    evidence="common: mask < -1e4 read as hidden",
)
def sdpa_low_bias_hides(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.masked_fill(attn_mask < -1e4, -math.inf)
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: the gradient of a floating mask.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "The floating mask gets no gradient: it is detached, or only read. A "
        "learnt bias (ALiBi, T5) comes in by this argument, so add the tensor "
        "itself."
    ),
    evidence="common: attn_mask.detach()",
)
def sdpa_mask_detached(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    if attn_mask is not None:
        attn_mask = attn_mask.detach()
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# Shown by: an argument on another device.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "A tensor that you create, the mask for instance, lies on the CPU, so "
        "with q on a GPU the function fails, or a result stays on the CPU. "
        "Create it with device=q.device."
    ),
    evidence="M063; the PyTorch documentation's own sketch of this function",
)
def sdpa_mask_on_cpu(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    scores = _scores(q, k, scale)
    bias = torch.zeros(scores.shape[-2:], dtype=scores.dtype)
    if is_causal:
        bias = bias.masked_fill(~_lower_right(bias), -math.inf)
    scores, keep = _apply_mask(scores + bias, attn_mask)
    return _attend(_masked(scores, keep & (bias == 0)), v, q.dtype)


# Shown by: queries whose head and time axes were swapped.
@wrong(
    "scaled_dot_product_attention",
    hint=(
        "You fold the leading axes with view, which refuses a tensor whose "
        "axes were swapped, as split heads are. reshape copies where it must."
    ),
    evidence="fairseq, old nn.MultiheadAttention: view(B * H, T, d)",
)
def sdpa_folds_by_view(
    q, k, v, *, attn_mask=None, is_causal=False, scale=None
):
    q, k, v = (
        x.view(-1, *x.shape[-2:]).view(x.shape) if x.ndim == 4 else x
        for x in (q, k, v)
    )
    return _sdpa(q, k, v, attn_mask, is_causal, scale)


# 1.6 masked_softmax


@oracle("masked_softmax", evidence="softmax of the visible scores alone")
def masked_softmax_rows(scores, keep):
    keep = keep.expand(scores.shape)
    # Zeros that stay on the graph, so that dead rows have a gradient of 0.
    out = scores.double().masked_fill(torch.tensor(True), 0)
    for at in itertools.product(*map(range, scores.shape[:-1])):
        see = keep[at].nonzero().squeeze(-1)
        if len(see):
            row = scores[at][see].double().softmax(0)
            where = tuple(torch.tensor(i) for i in at) + (see,)
            out = out.index_put(where, row)
    return out.to(scores.dtype)


@right("masked_softmax", evidence="K11 masked_fill, softmax, nan_to_num")
def masked_softmax_nan_to_num(scores, keep):
    wide = _wide(scores).masked_fill(~keep, float("-inf"))
    return wide.softmax(-1).nan_to_num(0.0).to(scores.dtype)


@right("masked_softmax", evidence="K11 where() around dead rows")
def masked_softmax_where(scores, keep):
    alive = keep.any(-1, keepdim=True)
    safe = torch.where(keep | ~alive, scores.double(), -math.inf)
    return (torch.softmax(safe, -1) * (keep & alive)).to(scores.dtype)


@right("masked_softmax", evidence="K05 by hand, maximum of the visible")
def masked_softmax_by_hand(scores, keep):
    wide = _wide(scores)
    lowest = torch.finfo(wide.dtype).min
    top = wide.masked_fill(~keep, lowest).amax(-1, keepdim=True).detach()
    e = torch.where(keep, wide - top, -math.inf).exp()
    return (e / e.sum(-1, keepdim=True).clamp(min=0.5)).to(scores.dtype)


@right("masked_softmax", evidence="K30 log-sum-exp; K81 guard")
def masked_softmax_log_sum_exp(scores, keep):
    wide = _wide(scores).masked_fill(keep.logical_not(), -torch.inf)
    total = wide.detach().logsumexp(-1, keepdim=True)
    total = total.masked_fill(total.isneginf(), 0)
    p = (wide - total).exp()
    # The detached form has the right values; restore the gradient.
    norm = p.sum(-1, keepdim=True)
    return (p / norm.masked_fill(norm == 0, 1)).to(scores.dtype)


@right("masked_softmax", evidence="K30 log-sum-exp as it stands")
def masked_softmax_log_sum_exp_alone(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -math.inf)
    dead = ~keep.any(-1, keepdim=True)
    total = wide.masked_fill(dead, 0).logsumexp(-1, keepdim=True)
    return (wide - total).exp().to(scores.dtype)


@right("masked_softmax", evidence="a spare column takes the dead rows")
def masked_softmax_spare_column(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -math.inf)
    dead = ~keep.expand_as(scores).any(-1, keepdim=True)
    spare = torch.where(dead, 0.0, -math.inf).to(wide.dtype)
    return torch.cat([wide, spare], -1).softmax(-1)[..., :-1].to(scores.dtype)


@right("masked_softmax", evidence="K08 lowest number, then masked again")
def masked_softmax_finite_then_zero(scores, keep):
    wide = scores.double()
    wide = wide.masked_fill(~keep, torch.finfo(wide.dtype).min)
    return wide.softmax(-1).mul(keep).to(scores.dtype)


# Shown by: float16 (raises), or a row without a visible key.
@wrong(
    "masked_softmax",
    hint=(
        "You fill hidden scores with −1e9. Float16 cannot hold that number, "
        "so the call fails there, and in a row without a visible key all "
        "scores are equal and the hidden keys share the weight. Fill with "
        "negative infinity, and treat such rows separately."
    ),
    evidence="M049 apex#1052, #1105; fairseq#3575",
)
def masked_softmax_minus_1e9(scores, keep):
    return scores.masked_fill(~keep, -1e9).softmax(-1)


# Shown by: visible scores below -1e4, or a row without a visible key.
@wrong(
    "masked_softmax",
    hint=(
        "You fill hidden scores with −1e4. Visible scores can lie below "
        "that, and then the hidden keys win; in a row without a visible key "
        "they share the weight. Only negative infinity loses against every "
        "number."
    ),
    evidence="curriculum 1.6; passes CS336's released tests (A10)",
)
def masked_softmax_minus_1e4(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -1e4)
    return wide.softmax(-1).to(scores.dtype)


# Shown by: visible scores below -50, or a row without a visible key; in a
# row of ordinary scores the weight of exp(-50) stays below 1e-10.
@wrong(
    "masked_softmax",
    hint=(
        "You fill hidden scores with −50. Their weight is small but not 0, "
        "and it grows when the visible scores are low: a hidden value of a "
        "million then shows. Only negative infinity gives exactly 0."
    ),
    evidence="M048 passes CS336's released tests",
)
def masked_softmax_minus_50(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -50.0)
    return wide.softmax(-1).to(scores.dtype)


# Shown by: a row without a visible key only.
@wrong(
    "masked_softmax",
    hint=(
        "With the lowest finite number as a fill, a row without a visible "
        "key has equal scores and spreads its weight evenly over hidden "
        "keys. In this course such a row gives zeros: find it, or use "
        "negative infinity and repair that row."
    ),
    evidence="K11 refused: the convention is zeros; D5",
)
def masked_softmax_dead_rows_even(scores, keep):
    wide = _wide(scores)
    wide = wide.masked_fill(~keep, torch.finfo(wide.dtype).min)
    return wide.softmax(-1).to(scores.dtype)


# Shown by: a row without a visible key only.
@wrong(
    "masked_softmax",
    hint=(
        "A row without a visible key has only scores of −∞, and its softmax "
        "is 0/0 = NaN, which spreads through the whole model. Give such rows "
        "zeros."
    ),
    evidence="M069 pytorch#103749, #110213; OLMo#322; mlx#2608",
)
def masked_softmax_nan_rows(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -math.inf)
    return wide.softmax(-1).to(scores.dtype)


# Shown by: the gradient of a row without a visible key.
@wrong(
    "masked_softmax",
    hint=(
        "Your values are right, but a row without a visible key has a NaN "
        "gradient: you repair the NaN after the softmax, and the backward "
        "pass goes through it again. Make that row's scores finite before "
        "the softmax, or cut them off with a masked fill."
    ),
    evidence="M069 backward; D5 (nan_to_num is safe after masked_fill only)",
)
def masked_softmax_nan_gradients(scores, keep):
    wide = _wide(scores) + torch.where(keep, 0.0, -math.inf)
    return wide.softmax(-1).nan_to_num(0).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You zero the hidden weights after the softmax and leave it at that, "
        "so the rows sum to less than 1 and hidden scores still count in the "
        "denominator. Hide the scores before the softmax."
    ),
    evidence="M034 huggingface/pytorch-image-models#2236",
)
def masked_softmax_after(scores, keep):
    return (_wide(scores).softmax(-1) * keep).to(scores.dtype)


# Shown by: a hidden score more than 745 above the visible ones (104 in
# float32).
@wrong(
    "masked_softmax",
    hint=(
        "You mask after the softmax and divide by what is left. If a hidden "
        "score is by far the largest, the visible weights have underflowed "
        "to 0 before you come to them. The hidden scores must be gone before "
        "anything is exponentiated, the maximum included."
    ),
    evidence="M035 pointer-generator#88, RMT#21; the contract includes "
    "large logits",
)
def masked_softmax_after_renormalised(scores, keep):
    weights = _wide(scores).softmax(-1) * keep
    total = weights.sum(-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1)).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You multiply the scores by keep, which turns hidden scores into 0. "
        "The exponential of 0 is 1, so hidden keys keep their weight. Which "
        "score has an exponential of 0?"
    ),
    evidence="curriculum 1.5: mask multiplied in",
)
def masked_softmax_multiplied_in(scores, keep):
    return (_wide(scores) * keep).softmax(-1).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You add keep to the scores as 0 and 1, which shifts visible scores "
        "a little and hides nothing. Replace the hidden scores instead."
    ),
    evidence="M042 transformers#205",
)
def masked_softmax_keep_added(scores, keep):
    return (_wide(scores) + keep.float()).softmax(-1).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You hide the scores where keep is True. The name says it: True "
        "means that the key stays visible."
    ),
    evidence="M041 transformers#38094, InseeFrLab/torchTextClassifiers#92",
)
def masked_softmax_inverted(scores, keep):
    return _masked(_wide(scores), ~keep.expand_as(scores)).to(scores.dtype)


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "masked_softmax",
    hint=(
        "A small constant in the denominator keeps empty rows from dividing "
        "0 by 0, but it makes every other row sum to less than 1. Here "
        "float64 counts to 1e-10: protect the empty rows alone."
    ),
    evidence="K29 refused: the contract asks for 1e-10 in float64",
)
def masked_softmax_epsilon(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -math.inf)
    top = wide.amax(-1, keepdim=True).clamp(min=-1e30)
    e = (wide - top).exp()
    return (e / (e.sum(-1, keepdim=True) + 1e-8)).to(scores.dtype)


# Shown by: scores above 709 in float64 (88 in float32), or rows below -745.
@wrong(
    "masked_softmax",
    hint=(
        "You exponentiate the scores as they are, so large ones overflow and "
        "their row becomes NaN. Subtract the row's largest visible score "
        "first; the result does not change."
    ),
    evidence="M001 singa#540",
)
def masked_softmax_no_maximum(scores, keep):
    e = _wide(scores).exp() * keep
    total = e.sum(-1, keepdim=True)
    alive = keep.any(-1, keepdim=True)
    return (e / torch.where(alive, total, 1)).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You normalise over the second to last axis, the queries. Each query "
        "spreads one unit of weight over its keys: the last axis."
    ),
    evidence="M024 PyTorch-NLP#2, labmlai#146",
)
def masked_softmax_over_queries(scores, keep):
    keep = keep.expand_as(scores)
    return _masked(_wide(scores), keep, -2).to(scores.dtype)


@wrong(
    "masked_softmax",
    hint=(
        "You normalise over all visible scores of the array together, so "
        "only their grand total is 1. Each row needs its own sum, along the "
        "last axis."
    ),
    evidence="M012; M026 facebookresearch/detr#247",
)
def masked_softmax_flattened(scores, keep):
    wide, see = _wide(scores).flatten(), keep.expand_as(scores).flatten()
    return _masked(wide, see).reshape(scores.shape).to(scores.dtype)


# Shown by: float64 with a tolerance below 1e-7.
@wrong(
    "masked_softmax",
    hint=(
        "You convert every input to float32, so float64 loses half of its "
        "digits even if you convert back. Widen only what is narrower than "
        "float32."
    ),
    evidence="M051 common",
)
def masked_softmax_float32(scores, keep):
    keep = keep.expand_as(scores)
    return _masked(scores.float(), keep).to(scores.dtype)


# Shown by: as softmax_half_arithmetic.
@wrong(
    "masked_softmax",
    hint=(
        "You take differences, exponentials and sums in half precision, and "
        "each is rounded to 3 digits or fewer. Convert half inputs to "
        "float32, compute there, and convert the result back."
    ),
    evidence="curriculum's precision convention",
)
def masked_softmax_half_arithmetic(scores, keep):
    hidden = scores.masked_fill(~keep, -math.inf)
    top = hidden.amax(-1, keepdim=True)
    e = (hidden - top.masked_fill(top == -math.inf, 0)).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


# Shown by: float16 or bfloat16 inputs, by dtype.
@wrong(
    "masked_softmax",
    hint=(
        "Half-precision scores come back as float32. Computing in float32 is "
        "right; convert the result to the dtype of the scores at the end."
    ),
    evidence="M117's kind: promotion of activations",
)
def masked_softmax_half_returns_float(scores, keep):
    return _masked(_wide(scores), keep.expand_as(scores))


# Shown by: comparing scores before and after the call.
@wrong(
    "masked_softmax",
    hint=(
        "Your result is right, but you wrote into an argument: −∞ into the "
        "caller's scores, or a negated mask into keep. Use the form that "
        "makes a new tensor: in torch a name that ends in an underscore works "
        "in place."
    ),
    evidence="M011; K10 allows own tensors only",
)
def masked_softmax_in_place(scores, keep):
    out = _masked(_wide(scores), keep.expand_as(scores)).to(scores.dtype)
    scores.detach().masked_fill_(~keep, -math.inf)
    return out


# Shown by: a row without a visible key, and as after_renormalised.
@wrong(
    "masked_softmax",
    hint=(
        "You mask after the softmax and divide by what is left. That is 0 "
        "where nothing is visible, and also where a hidden score is by far "
        "the largest, since the visible weights have underflowed then. Hide "
        "the scores before the softmax."
    ),
    evidence="M035 without a guard",
)
def masked_softmax_renormalised_unguarded(scores, keep):
    weights = _wide(scores).softmax(-1) * keep
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)


# Shown by: visible scores below the fill.
@wrong(
    "masked_softmax",
    hint=(
        "You fill hidden scores with a large finite number (−1e9, say) and "
        "zero their weights afterwards. That clears dead rows, but visible "
        "scores may lie below the fill: then the hidden ones take all the "
        "weight before you clear them. Fill with negative infinity."
    ),
    evidence="M049, with a second mask after the softmax",
)
def masked_softmax_minus_1e9_then_zero(scores, keep):
    wide = _wide(scores).masked_fill(~keep, -1e9)
    return (wide.softmax(-1) * keep).to(scores.dtype)


# Shown by: float16 scores near −60,000 beside a hidden positive one.
@wrong(
    "masked_softmax",
    hint=(
        "You add the lowest number of the scores' dtype to hidden scores. In "
        "float16 that is −65,504: added to a large hidden score it lies above "
        "visible scores that are low. Replace hidden scores by −inf, and do "
        "not add."
    ),
    evidence="transformers: (1 − mask) · torch.finfo(dtype).min, added",
)
def masked_softmax_lowest_added(scores, keep):
    lowest = torch.finfo(scores.dtype).min
    mask = (~keep).to(scores.dtype) * lowest
    return (_wide(scores + mask).softmax(-1) * keep).to(scores.dtype)


# Shown by: gradients, which raise.
@wrong(
    "masked_softmax",
    hint=(
        "You write zeros into the softmax's own result, which the backward "
        "pass still needs, so no gradient can be computed. Make a new tensor "
        "(torch.where, masked_fill), or let no NaN arise."
    ),
    evidence="fresh reader: w[isnan] = 0",
)
def masked_softmax_nan_overwritten(scores, keep):
    weights = _wide(scores).masked_fill(~keep, -math.inf).softmax(-1)
    weights[weights.isnan()] = 0
    return weights.to(scores.dtype)


# Shown by: a hidden or visible score above 709 (88 in float32).
@wrong(
    "masked_softmax",
    hint=(
        "You multiply the exponentials by keep. Where one has overflowed, "
        "even at a hidden place, infinity times 0 or by infinity is NaN. "
        "Subtract the largest visible score of the row before you "
        "exponentiate."
    ),
    evidence="M001 with the mask as a factor",
)
def masked_softmax_exponentials_times_keep(scores, keep):
    e = _wide(scores).exp() * keep
    total = e.sum(-1, keepdim=True)
    return (e / total.masked_fill(total == 0, 1)).to(scores.dtype)


# Shown by: visible scores below -100.
@wrong(
    "masked_softmax",
    hint=(
        "You add the logarithm of keep plus a tiny number, about −100 at "
        "hidden places. That is an ordinary score: low visible scores lose to "
        "it, and a row with nothing visible is averaged. Fill with negative "
        "infinity."
    ),
    evidence="AllenNLP masked_log_softmax: (mask + 1e-45).log()",
)
def masked_softmax_log_of_keep(scores, keep):
    wide = _wide(scores)
    return (
        (wide + (keep.to(wide.dtype) + 1e-45).log())
        .softmax(-1)
        .to(scores.dtype)
    )


# Shown by: gradients, which raise.
@wrong(
    "masked_softmax",
    hint=(
        "Your weights are right, but no gradient can be computed: something "
        "on the way leaves the graph, such as detach(), .data, numpy() or a "
        "block under no_grad()."
    ),
    evidence="hunt; K05 in the wrong place",
)
def masked_softmax_detached(scores, keep):
    keep = keep.expand_as(scores)
    return _masked(_wide(scores.detach()), keep).to(scores.dtype)


# Shown by: an argument on another device.
@wrong(
    "masked_softmax",
    hint=(
        "A tensor that you create lies on the CPU, so with scores on a GPU "
        "the function fails, or its result stays on the CPU. Create it with "
        "torch.zeros_like, or with device=scores.device."
    ),
    evidence="M063",
)
def masked_softmax_on_cpu(scores, keep):
    bias = torch.zeros(scores.shape, dtype=torch.float64)
    hidden = _wide(scores) + bias.masked_fill(~keep, -math.inf)
    return _masked(hidden, keep).to(scores.dtype)


# Shown by: scores whose axes were swapped.
@wrong(
    "masked_softmax",
    hint=(
        "You flatten the rows with view, which refuses a tensor whose axes "
        "were swapped: arguments may be such views. reshape copies where it "
        "must, or leave the axes as they are."
    ),
    evidence="common: view(-1, Tk)",
)
def masked_softmax_by_view(scores, keep):
    rows = _wide(scores).view(-1, scores.shape[-1])
    keep = keep.expand(scores.shape).reshape(rows.shape)
    return _masked(rows, keep).view(scores.shape).to(scores.dtype)


# 1.6 padding_mask


@oracle("padding_mask", evidence="built cell by cell from Python lists")
def padding_mask_lists(lengths, T):
    rows = [[True] * n + [False] * (T - n) for n in lengths.tolist()]
    mask = torch.tensor(rows, dtype=torch.bool, device=lengths.device)
    return mask.reshape(len(rows), 1, 1, T)


@right("padding_mask", evidence="K14 positions compared, axes by None")
def padding_mask_positions(lengths, T):
    positions = torch.arange(T, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


@right("padding_mask", evidence="K34 table of all lengths, then a look-up")
def padding_mask_table(lengths, T):
    table = torch.ones(T + 1, T, dtype=torch.bool, device=lengths.device)
    table = table.tril(-1)
    return table[lengths.long()].unflatten(0, (-1, 1, 1))


@right("padding_mask", evidence="counts what remains, upside down")
def padding_mask_remaining(lengths, T):
    positions = torch.ones(T, device=lengths.device).cumsum(0)
    remaining = lengths.view(-1, 1, 1, 1) - positions
    return ~remaining.lt(0)


@right("padding_mask", evidence="numpy inside, K15 expanded view")
def padding_mask_numpy(lengths, T):
    mask = np.less.outer(np.arange(T), lengths.numpy())
    return torch.from_numpy(mask).T[:, None, None]


@right("padding_mask", evidence="K03 one slice at a time")
def padding_mask_slices(lengths, T):
    mask = torch.zeros(lengths.numel(), 1, 1, T).bool()
    for row, length in zip(mask, lengths, strict=True):
        row[..., : int(length)] = True
    return mask


def _padding(lengths, T):
    positions = torch.arange(T, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


@wrong(
    "padding_mask",
    hint=(
        "Your mask is True at the padding. In this course True means that a "
        "query may look there, so the tokens are True and the padding False."
    ),
    evidence="M041 transformers#38094, amanchadha coursera#45",
)
def padding_mask_inverted(lengths, T):
    return ~_padding(lengths, T)


# Shown by: a length below T (T itself looks right).
@wrong(
    "padding_mask",
    hint=(
        "You keep one position too many. Positions count from 0, so a "
        "sequence of length 3 has positions 0, 1 and 2, and position 3 is "
        "padding already."
    ),
    evidence="M074 d2l's valid_lens style",
)
def padding_mask_one_too_many(lengths, T):
    return _padding(lengths + 1, T)


@wrong(
    "padding_mask",
    hint=(
        "You lose the last token of each sequence. Positions count from 0, "
        "so the last one of a sequence of length 3 is position 2, and it is "
        "visible."
    ),
    evidence="M074 one token lost",
)
def padding_mask_one_too_few(lengths, T):
    return _padding(lengths - 1, T)


@wrong(
    "padding_mask",
    hint=(
        "Your mask has shape (B, T). Against scores of shape (B, H, Tq, Tk) "
        "its batch axis lines up with the queries. Give it axes of size 1 "
        "for heads and queries: (B, 1, 1, T)."
    ),
    evidence="M044's kind; K14",
)
def padding_mask_two_axes(lengths, T):
    return _padding(lengths, T)[:, 0, 0]


@wrong(
    "padding_mask",
    hint=(
        "Your mask has shape (B, 1, T), without an axis for the heads. "
        "Against scores (B, H, Tq, Tk) its batch lines up with the heads, so "
        "head h gets the mask of example h, and with B = H nothing fails. "
        "The shape is (B, 1, 1, T)."
    ),
    evidence="M044 harvardnlp/annotated-transformer#17",
)
def padding_mask_without_head_axis(lengths, T):
    return _padding(lengths, T)[:, 0]


@wrong(
    "padding_mask",
    hint=(
        "Your mask has shape (B, 1, T, 1), so it hides queries instead of "
        "keys, and the padding can still be looked at. Keys are the last "
        "axis of the scores: (B, 1, 1, T)."
    ),
    evidence="axes of queries and keys exchanged; plausible",
)
def padding_mask_hides_queries(lengths, T):
    return _padding(lengths, T).mT


# Shown by: a T above the longest length.
@wrong(
    "padding_mask",
    hint=(
        "You take the width from the longest sequence and ignore T. When the "
        "batch is padded further than that the mask is too narrow. T says "
        "how wide it is."
    ),
    evidence="argument ignored; common in collate functions",
)
def padding_mask_ignores_T(lengths, T):
    return _padding(lengths, int(lengths.max()))


@wrong(
    "padding_mask",
    hint=(
        "You put the padding in front of the tokens. That is usual for "
        "generation with Hugging Face models, but here the sequences start "
        "at position 0 and the padding follows."
    ),
    evidence="left padding; convention",
)
def padding_mask_left(lengths, T):
    return _padding(lengths, T).flip(-1)


# Shown by: a length of 0.
@wrong(
    "padding_mask",
    hint=(
        "An empty sequence (length 0) still shows its first position. Its "
        "row should be all False; exercise 1.6's softmax gives zeros there, "
        "so nothing needs protecting."
    ),
    evidence="M069 avoided in the wrong place",
)
def padding_mask_empty_opened(lengths, T):
    return _padding(lengths.clamp(min=1), T)


@wrong(
    "padding_mask",
    hint=(
        "You return 0 and −∞ to be added to scores. Asked for is a boolean "
        "mask, True where a query may look."
    ),
    evidence="A08 CS336#19; M068 the two kinds of mask exchanged",
)
def padding_mask_additive(lengths, T):
    return torch.where(_padding(lengths, T), 0.0, -math.inf)


# Shown by: the dtype only.
@wrong(
    "padding_mask",
    hint=(
        "Your mask holds integers. ~ turns 1 into −2 and 0 into −1, and an "
        "integer mask selects positions instead of hiding them. Return dtype "
        "torch.bool, the direct result of a comparison."
    ),
    evidence="M042 transformers#205",
)
def padding_mask_integers(lengths, T):
    return _padding(lengths, T).long()


# Shown by: different lengths in one batch.
@wrong(
    "padding_mask",
    hint=(
        "Every example gets the mask of the longest one, so shorter ones see "
        "their padding. Compare the positions with each example's own length."
    ),
    evidence="M045's kind: example gets another's mask, lsdefine#36",
)
def padding_mask_longest_for_all(lengths, T):
    return _padding(lengths.max().expand(len(lengths)), T)


# Shown by: the dtype only.
@wrong(
    "padding_mask",
    hint=(
        "Your mask holds the numbers 0 and 1 as floats. Attention functions "
        "add a floating mask to the scores, so nothing would be hidden. "
        "Return the comparison itself, which is boolean."
    ),
    evidence="M042 transformers#205",
)
def padding_mask_ones(lengths, T):
    return _padding(lengths, T).float()


# Shown by: a length beyond the table.
@wrong(
    "padding_mask",
    hint=(
        "Your positions come from a table of a fixed size, so a longer T gets "
        "too few of them. Count to T."
    ),
    evidence="common: torch.arange(512)",
)
def padding_mask_from_a_table(lengths, T):
    positions = torch.arange(512, device=lengths.device)[:T]
    return positions < lengths[:, None, None, None]


# Shown by: unsigned lengths with a 0 among them.
@wrong(
    "padding_mask",
    hint=(
        "You subtract from the lengths in their own dtype: 0 − 1 is 255 in "
        "uint8, so an empty example becomes a full one. Compare without "
        "subtracting, or widen the lengths first."
    ),
    evidence="common: positions <= lengths - 1",
)
def padding_mask_wraps_around(lengths, T):
    positions = torch.arange(T, device=lengths.device)
    return positions <= (lengths - 1)[:, None, None, None]


# Shown by: uint8 lengths and more than 256 positions.
@wrong(
    "padding_mask",
    hint=(
        "The positions have the dtype of the lengths, and uint8 ends at 255: "
        "position 256 becomes 0 again, a real one. Number the positions with "
        "torch.arange's own int64."
    ),
    evidence="common: torch.arange(T, dtype=lengths.dtype)",
)
def padding_mask_positions_wrap_around(lengths, T):
    positions = torch.arange(T, device=lengths.device).to(lengths.dtype)
    return positions < lengths[:, None, None, None]


# Shown by: T by its name.
@wrong(
    "padding_mask",
    hint=(
        "You gave T another name, so a call with T=5, as in the example, "
        "fails. Parameters keep the names of the task."
    ),
    evidence="common: max_len, from a function of another course",
)
def padding_mask_renames_T(lengths, max_len):
    return _padding(lengths, max_len)


# Shown by: an argument on another device.
@wrong(
    "padding_mask",
    hint=(
        "The positions, or the mask itself, lie on the CPU, so with lengths "
        "on a GPU the comparison fails, or the mask stays behind. Create them "
        "with device=lengths.device."
    ),
    evidence="M063",
)
def padding_mask_on_cpu(lengths, T):
    return torch.arange(T) < lengths[:, None, None, None]


# 1.7 additive_attention


@oracle("additive_attention", evidence="one pair at a time, in float64")
def additive_attention_pairs(s, h, W, U, v, keep=None):
    sd, hd, W, U, v = (x.double() for x in (s, h, W, U, v))
    (B, Tdec, _), Tenc = s.shape, h.shape[1]
    rows = []
    for b, i in itertools.product(range(B), range(Tdec)):
        e = torch.stack(
            [v.dot(torch.tanh(W.mv(sd[b, i]) + U.mv(x))) for x in hd[b]]
        )
        see = torch.ones(Tenc).bool() if keep is None else keep[b]
        row = e.masked_fill(torch.tensor(True), 0)
        if see.any():
            row = row.masked_scatter(see, e[see].softmax(0))
        rows.append(row)
    weights = torch.stack(rows).reshape(B, Tdec, Tenc)
    context = torch.stack([w @ x for w, x in zip(weights, hd, strict=True)])
    return context.to(s.dtype), weights.to(s.dtype)


@right("additive_attention", evidence="K02 einsum everywhere; a list")
def additive_attention_einsum(s, h, W, U, v, keep=None):
    wide = [_wide(x) for x in (s, h, W, U, v)]
    query = torch.einsum("bie,ae->bia", wide[0], wide[2])
    key = torch.einsum("bjf,af->bja", wide[1], wide[3])
    hidden = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1))
    scores = torch.einsum("bija,a->bij", hidden, wide[4])
    if keep is not None:
        scores = scores.masked_fill(~keep.unsqueeze(1), -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    context = torch.einsum("bij,bjf->bif", weights, wide[1])
    return [context.to(s.dtype), weights.to(s.dtype)]


@right("additive_attention", evidence="Bahdanau's concatenated form [s; h]")
def additive_attention_concatenated(s, h, W, U, v, keep=None):
    Tdec, Tenc = s.shape[1], h.shape[1]
    left = s.unsqueeze(2).expand(-1, -1, Tenc, -1)
    right_ = h.unsqueeze(1).expand(-1, Tdec, -1, -1)
    both = torch.cat([left, right_], -1).double()
    hidden = F.linear(both, torch.cat([W, U], 1).double()).tanh()
    e = F.linear(hidden, v.double()[None]).squeeze(-1)
    if keep is not None:
        e = e.masked_fill(~keep[:, None], -math.inf)
    e = (e - e.amax(-1, keepdim=True).detach().clamp(min=-1e300)).exp()
    total = e.sum(-1, keepdim=True)
    weights = e / total.masked_fill(total == 0, 1)
    return (weights @ h.double()).to(s.dtype), weights.to(s.dtype)


@right("additive_attention", evidence="K24 einops; tanh through a sigmoid")
def additive_attention_einops(s, h, W, U, v, keep=None):
    from einops import einsum, rearrange

    sw, hw, W, U, v = map(_wide, (s, h, W, U, v))
    total = rearrange(sw @ W.mT, "b i a -> b i 1 a") + rearrange(
        hw @ U.mT, "b j a -> b 1 j a"
    )
    scores = (2 * torch.sigmoid(2 * total) - 1) @ v
    if keep is None:
        keep = h.new_ones(h.shape[:2], dtype=torch.bool)
    keep = rearrange(keep, "b j -> b 1 j")
    lowest = torch.finfo(scores.dtype).min
    weights = torch.where(keep, scores, lowest).softmax(-1) * keep
    context = einsum(weights, hw, "b i j, b j f -> b i f")
    return context.to(s.dtype), weights.to(s.dtype)


@right("additive_attention", evidence="K03 one decoder step after another")
def additive_attention_steps(s, h, W, U, v, keep=None):
    hw = _wide(h)
    keys = hw @ _wide(U).T
    contexts, rows = [], []
    for step in _wide(s).unbind(1):
        scores = (keys + (step @ _wide(W).T)[:, None]).tanh().matmul(_wide(v))
        if keep is not None:
            dead = ~keep.any(1, keepdim=True)
            scores = scores.masked_fill(~(keep | dead), -math.inf)
        row = scores.softmax(1)
        row = row if keep is None else row * keep
        rows.append(row)
        contexts.append((row[..., None] * hw).sum(1))
    context, weights = torch.stack(contexts, 1), torch.stack(rows, 1)
    return Attended(context.to(s.dtype), weights.to(s.dtype))


@wrong(
    "additive_attention",
    hint=(
        "The tanh is missing. Without it the score is a sum of a term of the "
        "decoder and a term of the encoder, the first cancels in the "
        "softmax, and every decoder step gets the same weights. Apply tanh "
        "to the sum before v."
    ),
    evidence="common",
)
def additive_attention_no_tanh(s, h, W, U, v, keep=None):
    sw, hw, W, U, v2 = map(_wide, (s, h, W, U, v))
    scores = ((sw @ W.T)[:, :, None] + (hw @ U.T)[:, None]) @ v2
    return _additive(scores, h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You take the tanh of the decoder's part and of the encoder's part "
        "separately, so the two never interact and every decoder step gets "
        "the same weights. Add first, then take one tanh."
    ),
    evidence="plausible",
)
def additive_attention_two_tanhs(s, h, W, U, v, keep=None):
    sw, hw, W, U, v2 = map(_wide, (s, h, W, U, v))
    query, key = (sw @ W.T).tanh(), (hw @ U.T).tanh()
    scores = (query[:, :, None] + key[:, None]) @ v2
    return _additive(scores, h, keep, s.dtype)


# Shown by: ds = dh; other sizes raise.
@wrong(
    "additive_attention",
    hint=(
        "W and U are exchanged: W (da, ds) belongs to the decoder's states "
        "s, U (da, dh) to the encoder's h. With equal sizes nothing fails, "
        "but the scores are wrong."
    ),
    evidence="W and U exchanged; A34's kind",
)
def additive_attention_matrices_swapped(s, h, W, U, v, keep=None):
    return _additive(_additive_scores(s, h, U, W, v), h, keep, s.dtype)


# Shown by: da = ds = dh; other sizes raise.
@wrong(
    "additive_attention",
    hint=(
        "You multiply by W and U without transposing them. Their rows are "
        "the outputs, (da, ds) and (da, dh), so states in rows need the "
        "transposed matrices; with equal sizes the error is silent."
    ),
    evidence="A34 rasbt#857, #893",
)
def additive_attention_matrices_transposed(s, h, W, U, v, keep=None):
    return _additive(_additive_scores(s, h, W.T, U.T, v), h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You normalise over the decoder's steps, so the columns sum to 1. "
        "Each decoder step spreads one unit of weight over the encoder's "
        "states: the last axis of the scores."
    ),
    evidence="M024 PyTorch-NLP#2",
)
def additive_attention_softmax_over_decoder(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    see = torch.ones_like(scores, dtype=torch.bool)
    see = see if keep is None else see & keep[:, None]
    return _attend(_masked(scores, see, 1), h, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "keep has no effect, so padding gets weight. Hide the scores of the "
        "positions where keep is False before the softmax."
    ),
    evidence="M076 padding not passed on; M046",
)
def additive_attention_keep_ignored(s, h, W, U, v, keep=None):
    return _additive(_additive_scores(s, h, W, U, v), h, None, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You hide the positions where keep is True, so the model looks at "
        "the padding and at nothing else. True means visible."
    ),
    evidence="M041 transformers#38094",
)
def additive_attention_keep_inverted(s, h, W, U, v, keep=None):
    keep = None if keep is None else ~keep
    return _additive(_additive_scores(s, h, W, U, v), h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You zero the weights of hidden positions after the softmax, so the "
        "rows sum to less than 1 and the hidden states still count in the "
        "denominator. Hide the scores before the softmax."
    ),
    evidence="M034 ruotianluo/self-critical.pytorch#89",
)
def additive_attention_keep_after_softmax(s, h, W, U, v, keep=None):
    weights = _additive_scores(s, h, W, U, v).softmax(-1)
    weights = weights if keep is None else weights * keep[:, None]
    return _attend(weights, h, s.dtype)


# Shown by: an example in which keep is False throughout.
@wrong(
    "additive_attention",
    hint=(
        "An example without a visible position gives NaN, since its softmax "
        "divides 0 by 0. In this course its weights and its context are "
        "zeros; masked_softmax from 1.6a does that."
    ),
    evidence="M069 jadore801120#5",
)
def additive_attention_dead_rows_nan(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None], -math.inf)
    return _attend(scores.softmax(-1), h, s.dtype)


# Shown by: an example in which keep is False throughout.
@wrong(
    "additive_attention",
    hint=(
        "An example without a visible position averages its padding evenly, "
        "because your fill is finite and all scores become equal. In this "
        "course its weights and its context are zeros."
    ),
    evidence="K11 refused: the convention is zeros; M049's fill",
)
def additive_attention_dead_rows_average(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None], -1e9)
    return _attend(scores.softmax(-1), h, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You divide the scores by √da. Additive scores are bounded by the "
        "tanh and are not scaled; the root belongs to dot products."
    ),
    evidence="M021's kind: a scale where none is asked for",
)
def additive_attention_scaled(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v) / math.sqrt(len(v))
    return _additive(scores, h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You use a sigmoid where Bahdanau's score has a tanh, so every "
        "feature is positive and the scores are pressed together. Use tanh."
    ),
    evidence="plausible",
)
def additive_attention_sigmoid(s, h, W, U, v, keep=None):
    sw, hw, W, U, v2 = map(_wide, (s, h, W, U, v))
    total = (sw @ W.T)[:, :, None] + (hw @ U.T)[:, None]
    return _additive(total.sigmoid() @ v2, h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You sum the features and never use v, so all of them count alike. "
        "v is learned, one number for each feature, and turns the features "
        "into one score."
    ),
    evidence="argument ignored; plausible",
)
def additive_attention_no_v(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, torch.ones_like(v))
    return _additive(scores, h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "Your context averages the projected encoder states U h. The "
        "projection serves the scores only; the context is the average of h "
        "itself, of width dh."
    ),
    evidence="M032's kind: context from the keys",
)
def additive_attention_projected_context(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    return _additive(scores, _wide(h) @ _wide(U).T, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You return the weights first. The contract is the context, of shape "
        "(B, Tdec, dh), then the weights, of shape (B, Tdec, Tenc)."
    ),
    evidence="order of results; common",
)
def additive_attention_results_swapped(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    return _additive(scores, h, keep, s.dtype)[::-1]


# Shown by: float64 with a tolerance below 1e-7.
@wrong(
    "additive_attention",
    hint=(
        "You convert everything to float32, so float64 inputs lose half of "
        "their digits even if you convert back. Widen only what is narrower."
    ),
    evidence="M051 common",
)
def additive_attention_float32(s, h, W, U, v, keep=None):
    scores = _additive_scores(*(x.float() for x in (s, h, W, U, v)))
    return _additive(scores, h.float(), keep, s.dtype)


# Shown by: keep; B = Tdec mixes examples, other sizes raise.
@wrong(
    "additive_attention",
    hint=(
        "keep is (B, Tenc) and the scores are (B, Tdec, Tenc), so keep's "
        "batch lines up with the decoder steps. Give it an axis of size 1 in "
        "the middle."
    ),
    evidence="fresh reader: broadcasting",
)
def additive_attention_keep_misaligned(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return _attend(scores.softmax(-1), h, s.dtype)


# Shown by: Tdec = Tenc by value; other lengths raise.
@wrong(
    "additive_attention",
    hint=(
        "Your new axes are exchanged, so the scores have one row for each "
        "encoder state, (B, Tenc, Tdec). Rows are decoder steps: s gets its "
        "new axis after Tdec, h before Tenc."
    ),
    evidence="fresh reader: unsqueeze(1) and unsqueeze(2) exchanged",
)
def additive_attention_axes_exchanged(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v).mT
    return _additive(scores, h, keep, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "You average with the scores as they are. Their rows do not sum to "
        "1: take the softmax over the encoder states first."
    ),
    evidence="fresh reader: half-way through",
)
def additive_attention_no_softmax(s, h, W, U, v, keep=None):
    return _attend(_additive_scores(s, h, W, U, v), h, s.dtype)


# Shown by: scores above 709 (float64).
@wrong(
    "additive_attention",
    hint=(
        "You exponentiate the scores as they are, and large ones overflow: "
        "infinity divided by infinity is NaN. tanh lies between −1 and 1, but "
        "v may be large. Subtract each row's maximum, or use torch.softmax."
    ),
    evidence="M001 in this exercise",
)
def additive_attention_no_maximum(s, h, W, U, v, keep=None):
    e = _additive_scores(s, h, W, U, v).exp()
    e = e if keep is None else e.masked_fill(~keep[:, None], 0)
    total = e.sum(-1, keepdim=True)
    return _attend(e / total.masked_fill(total == 0, 1), h, s.dtype)


# Shown by: visible scores that all lie below -1e9.
@wrong(
    "additive_attention",
    hint=(
        "Hidden scores are filled with a finite number, and the visible ones "
        "may lie below it: then the hidden positions take all the weight. "
        "Fill with −inf."
    ),
    evidence="M048 in Bahdanau's attention",
)
def additive_attention_finite_fill(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is None:
        return _attend(scores.softmax(-1), h, s.dtype)
    weights = scores.masked_fill(~keep[:, None], -1e9).softmax(-1)
    return _attend(weights * keep.any(-1)[:, None, None], h, s.dtype)


# Shown by: half-precision products that are large and cancel.
@wrong(
    "additive_attention",
    hint=(
        "Everything is computed in half precision, where two large products "
        "lose the digits that their sum needs. Widen the inputs to float32 "
        "first and go back at the end."
    ),
    evidence="M049 family",
)
def additive_attention_half_arithmetic(s, h, W, U, v, keep=None):
    units = torch.tanh((s @ W.T)[:, :, None] + (h @ U.T)[:, None])
    return _additive(units @ v, h, keep, s.dtype)


# Shown by: bfloat16 inputs.
@wrong(
    "additive_attention",
    hint=(
        "You widen float16 alone. bfloat16 is half precision too, with 8 bits "
        "where float16 has 11: ask torch.promote_types, or test for both."
    ),
    evidence="common: s.dtype == torch.float16",
)
def additive_attention_widens_float16_only(s, h, W, U, v, keep=None):
    if s.dtype == torch.float16:
        scores = _additive_scores(s, h, W, U, v)
        return _additive(scores, h, keep, s.dtype)
    return additive_attention_half_arithmetic(s, h, W, U, v, keep)


# Shown by: half-precision states that nearly cancel.
@wrong(
    "additive_attention",
    hint=(
        "You round the weights to half precision before they average the "
        "encoder states, and where large entries nearly cancel, 3 digits are "
        "not enough. Convert both results at the end, after the product."
    ),
    evidence="softmax(dtype=float32).to(h.dtype) @ h",
)
def additive_attention_weights_in_half(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    _, weights = _additive(scores, h, keep, s.dtype)
    return weights @ h, weights


# Shown by: float64 with a tolerance below 1e-8.
@wrong(
    "additive_attention",
    hint=(
        "You ask the softmax for float32, with dtype=torch.float32 or a "
        ".float() before it. That widens half precision, but it narrows "
        "float64, which loses half of its digits: widen the inputs with "
        "torch.promote_types."
    ),
    evidence="transformers: F.softmax(scores, -1, dtype=torch.float32)",
)
def additive_attention_softmax_in_float32(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is None:
        keep = torch.ones_like(h[..., 0], dtype=torch.bool)
    weights = _masked(scores.float(), keep[:, None]).to(scores.dtype)
    return _attend(weights, h, s.dtype)


# Shown by: half-precision states that nearly cancel.
@wrong(
    "additive_attention",
    hint=(
        "The scores are rounded to half precision before the softmax, which "
        "shows where large states nearly cancel. Stay in float32 until both "
        "results are there."
    ),
    evidence="plausible: tanh in float32, v in the inputs' dtype",
)
def additive_attention_scores_in_half(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v).to(s.dtype)
    return _additive(_wide(scores), h, keep, s.dtype)


# Shown by: float64 with a tolerance below 1e-9.
@wrong(
    "additive_attention",
    hint=(
        "A small constant in the denominator keeps empty examples from "
        "dividing 0 by 0, but it makes every other row sum to less than 1. "
        "Here float64 counts to 1e-10: treat the empty examples alone."
    ),
    evidence="K29: weights / (weights.sum(-1, keepdim=True) + 1e-9)",
)
def additive_attention_epsilon(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None], -math.inf)
    top = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0)
    e = (scores - top).exp()
    weights = e / (e.sum(-1, keepdim=True) + 1e-9)
    return _attend(weights, h, s.dtype)


@wrong(
    "additive_attention",
    hint=(
        "Half-precision inputs come back as float32. Compute in float32, but "
        "return the inputs' dtype."
    ),
    evidence="common: .float() without a way back",
)
def additive_attention_half_returns_float(s, h, W, U, v, keep=None):
    scores = _additive_scores(s, h, W, U, v)
    return _additive(scores, h, keep, _wide(s).dtype)


# Shown by: an argument on another device.
@wrong(
    "additive_attention",
    hint=(
        "A tensor that you create, such as a mask where keep is None, lies on "
        "the CPU, so with h on a GPU the function fails, or a result stays on "
        "the CPU. Create it with device=h.device."
    ),
    evidence="M063",
)
def additive_attention_on_cpu(s, h, W, U, v, keep=None):
    if keep is None:
        keep = torch.ones(h.shape[:2], dtype=torch.bool)
    return _additive(_additive_scores(s, h, W, U, v), h, keep, s.dtype)


# Shown by: states whose batch and time axes were swapped.
@wrong(
    "additive_attention",
    hint=(
        "You flatten the states with view, which refuses a tensor whose axes "
        "were swapped, such as time-first states. reshape copies where it "
        "must, and a matrix product needs no flattening."
    ),
    evidence="OpenNMT-py: h.view(-1, dim)",
)
def additive_attention_by_view(s, h, W, U, v, keep=None):
    s = s.view(-1, s.shape[-1]).view(s.shape)
    h = h.view(-1, h.shape[-1]).view(h.shape)
    return _additive(_additive_scores(s, h, W, U, v), h, keep, s.dtype)


# 1.7 luong_score


@oracle("luong_score", evidence="F.bilinear in float64")
def luong_score_bilinear(s, h, W=None):
    W = torch.eye(s.shape[-1]) if W is None else W
    Tdec, Tenc = s.shape[1], h.shape[1]
    left = s.double()[:, :, None].expand(-1, -1, Tenc, -1)
    right_ = h.double()[:, None].expand(-1, Tdec, -1, -1)
    scores = F.bilinear(
        left.contiguous(), right_.contiguous(), W.double()[None]
    )
    return scores.squeeze(-1).to(s.dtype)


@right("luong_score", evidence="K02 einsum, three factors at once")
def luong_score_einsum(s, h, W=None):
    if W is None:
        return torch.einsum("bie,bje->bij", _wide(s), _wide(h)).to(s.dtype)
    out = torch.einsum("bie,ef,bjf->bij", _wide(s), _wide(W), _wide(h))
    return out.to(s.dtype)


@right("luong_score", evidence="W applied to h first; K15 transposed view")
def luong_score_from_encoder(s, h, W=None):
    key = _wide(h) if W is None else F.linear(_wide(h), _wide(W))
    return torch.bmm(key, _wide(s).mT).mT.to(s.dtype)


@right("luong_score", evidence="K34 products summed, no matrix product")
def luong_score_products(s, h, W=None):
    query = s.double()
    if W is not None:
        query = (query[..., None] * W.double()).sum(-2)
    return (query[:, :, None] * h.double()[:, None]).sum(-1).to(s.dtype)


@right("luong_score", evidence="K03 loops, @ with broadcasting")
def luong_score_loops(s, h, W=None):
    rows = []
    for one, many in zip(s.double(), h.double(), strict=True):
        many = many if W is None else many @ W.double().T
        rows.append(torch.stack([many @ step for step in one]))
    return torch.stack(rows).to(s.dtype)


@wrong(
    "luong_score",
    hint=(
        "You divide the score by a square root. Luong's scores of 2015 are "
        "unscaled; the root came with the transformer two years later. "
        "Leave it out here."
    ),
    evidence="curriculum 1.7: unscaled",
)
def luong_score_scaled(s, h, W=None):
    out = luong_score_einsum(s, h, W)
    return out / math.sqrt(h.shape[-1])


# Shown by: ds = dh; other sizes raise. A symmetric W shows nothing.
@wrong(
    "luong_score",
    hint=(
        "Your W is transposed. W has shape (ds, dh): its rows belong to the "
        "decoder's states, its columns to the encoder's. With ds = dh "
        "nothing fails, so try different sizes."
    ),
    evidence="A34 rasbt#857, #893",
)
def luong_score_matrix_transposed(s, h, W=None):
    return luong_score_einsum(s, h, None if W is None else W.T)


# Shown by: W given with ds = dh; other sizes raise.
@wrong(
    "luong_score",
    hint=(
        "You always take the dot product and never use W. When W is given, "
        "it maps the one space into the other before they are compared."
    ),
    evidence="argument ignored; M046's kind",
)
def luong_score_matrix_ignored(s, h, W=None):
    return luong_score_einsum(s, h)


@wrong(
    "luong_score",
    hint=(
        "Your result has shape (B, Tenc, Tdec). Rows are decoder steps and "
        "columns encoder states, as for every attention map in this course: "
        "(B, Tdec, Tenc)."
    ),
    evidence="M031's kind",
)
def luong_score_axes_swapped(s, h, W=None):
    return luong_score_einsum(s, h, W).mT


@wrong(
    "luong_score",
    hint=(
        "You return weights. This function gives the raw scores, before any "
        "softmax, so that a mask can still be applied."
    ),
    evidence="curriculum 1.7: a score",
)
def luong_score_softmax(s, h, W=None):
    return luong_score_einsum(s, h, W).softmax(-1)


@wrong(
    "luong_score",
    hint=(
        "You normalise the vectors to length 1, which gives a cosine between "
        "−1 and 1. Luong's score is the plain product: the lengths count."
    ),
    evidence="plausible",
)
def luong_score_cosine(s, h, W=None):
    s, h = F.normalize(s, dim=-1), F.normalize(h, dim=-1)
    return luong_score_einsum(s, h, W)


@wrong(
    "luong_score",
    hint=(
        "You put a tanh around the score. That belongs to additive "
        "attention (or to Luong's third form, concat); the two forms asked "
        "for here are plain products."
    ),
    evidence="forms mixed up; plausible",
)
def luong_score_tanh(s, h, W=None):
    return luong_score_einsum(s, h, W).tanh()


# Shown by: B ≥ 2.
@wrong(
    "luong_score",
    hint=(
        "Every example is compared with the encoder states of the first. "
        "Keep the batch axis on both sides, so that example b meets its own "
        "states."
    ),
    evidence="M025's kind: batch elements mixed; M029",
)
def luong_score_first_example(s, h, W=None):
    return luong_score_einsum(s, h[:1].expand_as(h), W)


# Shown by: float64 with a tolerance below 1e-7.
@wrong(
    "luong_score",
    hint=(
        "You convert everything to float32, so float64 inputs lose half of "
        "their digits even if you convert back. Widen only what is narrower."
    ),
    evidence="M051 common",
)
def luong_score_float32(s, h, W=None):
    W = None if W is None else W.float()
    return luong_score_einsum(s.float(), h.float(), W).to(s.dtype)


# Shown by: the kind of the result only.
@wrong(
    "luong_score",
    hint=(
        "You return a numpy array. Stay with torch: the scores are a tensor, "
        "and gradients flow through it."
    ),
    evidence="fresh reader: numpy for torch",
)
def luong_score_numpy_array(s, h, W=None):
    return luong_score_einsum(s, h, W).numpy()


# Shown by: Tdec ≠ Tenc raises; otherwise by shape.
@wrong(
    "luong_score",
    hint=(
        "You multiply s and h entry by entry and sum, which pairs step 1 "
        "with step 1 only. Every decoder state meets every encoder state: "
        "that is a matrix product for each example."
    ),
    evidence="fresh reader: one score a step",
)
def luong_score_same_steps(s, h, W=None):
    s = s if W is None else s @ W
    return (s * h).sum(-1)


# Shown by: B > 1 by shape or an error.
@wrong(
    "luong_score",
    hint=(
        "h.T reverses all axes, the batch included. Exchange the last two "
        "and leave the batch in front."
    ),
    evidence="M029, M027; the chapter's warning",
)
def luong_score_all_axes_reversed(s, h, W=None):
    s = s if W is None else s @ W
    return s @ h.permute(2, 1, 0)


# Shown by: half-precision products that are large and cancel.
@wrong(
    "luong_score",
    hint=(
        "The products are computed in half precision, and s W is rounded "
        "before it meets h. Widen the inputs to float32 first and go back at "
        "the end."
    ),
    evidence="M049 family",
)
def luong_score_half_arithmetic(s, h, W=None):
    return (s if W is None else s @ W) @ h.mT


# Shown by: bfloat16 inputs.
@wrong(
    "luong_score",
    hint=(
        "You widen float16 alone. bfloat16 is half precision too, with 8 bits "
        "where float16 has 11: ask torch.promote_types, or test for both."
    ),
    evidence="common: s.dtype == torch.float16",
)
def luong_score_widens_float16_only(s, h, W=None):
    if s.dtype == torch.float16:
        s, h, W = (x if x is None else x.float() for x in (s, h, W))
        return luong_score_half_arithmetic(s, h, W).half()
    return luong_score_half_arithmetic(s, h, W)


@wrong(
    "luong_score",
    hint=(
        "Half-precision inputs come back as float32. Compute in float32, but "
        "return the inputs' dtype."
    ),
    evidence="common: .float() without a way back",
)
def luong_score_half_returns_float(s, h, W=None):
    s, h, W = (x if x is None else _wide(x) for x in (s, h, W))
    return luong_score_half_arithmetic(s, h, W)


# Shown by: an argument on another device.
@wrong(
    "luong_score",
    hint=(
        "A tensor that you create lies on the CPU, so with s on a GPU the "
        "function fails, or its result stays on the CPU. Create it with "
        "device=s.device."
    ),
    evidence="M063",
)
def luong_score_on_cpu(s, h, W=None):
    query = _wide(s) if W is None else _wide(s) @ _wide(W)
    zero = torch.zeros(s.shape[0], s.shape[1], h.shape[1], dtype=query.dtype)
    return (zero + query @ _wide(h).mT).to(s.dtype)


# Shown by: states whose batch and time axes were swapped.
@wrong(
    "luong_score",
    hint=(
        "You flatten the states with view, which refuses a tensor whose axes "
        "were swapped, such as time-first states. reshape copies where it "
        "must, and a matrix product needs no flattening."
    ),
    evidence="OpenNMT-py: h_t.view(-1, dim)",
)
def luong_score_by_view(s, h, W=None):
    query = _wide(s.view(-1, s.shape[-1]))
    query = query if W is None else query @ _wide(W)
    query = query.view(*s.shape[:2], -1)
    return (query @ _wide(h).mT).to(s.dtype)


# 1.8 attention_backward


@oracle("attention_backward", evidence="autograd through F.sdpa in float64")
def attention_backward_autograd(q, k, v, keep, dout):
    qkv = [torch.tensor(x, dtype=torch.float64) for x in (q, k, v)]
    for x in qkv:
        x.requires_grad_()
    mask = torch.tensor(keep)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(*qkv, attn_mask=mask)
        loss = (out * torch.tensor(dout, dtype=torch.float64)).sum()
        grads = torch.autograd.grad(loss, qkv)
    return tuple(g.numpy().astype(q.dtype) for g in grads)


@right("attention_backward", evidence="K03 one query at a time")
def attention_backward_loops(q, k, v, keep, dout):
    d, scale = q.dtype, q.shape[-1] ** -0.5
    shape = (*q.shape[:-1], k.shape[-2])
    keep = np.broadcast_to(keep, shape)
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    for at in np.ndindex(shape[:-1]):
        b, see = at[:-1], np.flatnonzero(keep[at])
        if not see.size:
            continue
        query, keys = q[at].astype(float), k[b][see].astype(float)
        values, up = v[b][see].astype(float), dout[at].astype(float)
        s = keys @ query * scale
        p = np.exp(s - s.max())
        p /= p.sum()
        ds = (np.diag(p) - np.outer(p, p)) @ (values @ up)
        dq[at] = scale * ds @ keys
        dk[b][see] += scale * np.outer(ds, query)
        dv[b][see] += np.outer(p, up)
    return dq.astype(d), dk.astype(d), dv.astype(d)


@right("attention_backward", evidence="K02 einsum, delta from dO∘O")
def attention_backward_einsum(q, k, v, keep, dout):
    dtype = q.dtype
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    q = q / np.sqrt(q.shape[-1])
    s = np.einsum("...id,...jd->...ij", q, k)
    s = np.where(keep, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=np.finfo(float).min)
    p = np.exp(s - top)
    p /= np.maximum(p.sum(-1, keepdims=True), 0.5)
    out = np.einsum("...ij,...je->...ie", p, v)
    delta = np.einsum("...ie,...ie->...i", dout, out)
    ds = p * (np.einsum("...ie,...je->...ij", dout, v) - delta[..., None])
    dq = np.einsum("...ij,...jd->...id", ds, k) / np.sqrt(q.shape[-1])
    dk = np.einsum("...ij,...id->...jd", ds, q)
    dv = np.einsum("...ij,...ie->...je", p, dout)
    return [dq.astype(dtype), dk.astype(dtype), dv.astype(dtype)]


@right("attention_backward", evidence="K30 scipy.special; K11 nan_to_num")
def attention_backward_scipy(q, k, v, keep, dout):
    from scipy import special

    wide = [x.astype(np.float64) for x in (q, k, v, dout)]
    s = wide[0] @ _swap(wide[1]) * q.shape[-1] ** -0.5
    with np.errstate(invalid="ignore"):
        p = special.softmax(np.where(keep, s, -np.inf), axis=-1)
    p = np.nan_to_num(p)
    dp = wide[3] @ _swap(wide[2])
    ds = p * dp - p * np.sum(p * dp, -1, keepdims=True)
    grads = _gradients(wide[0], wide[1], p, ds, wide[3])
    return tuple(g.astype(q.dtype) for g in grads)


@right("attention_backward", evidence="full softmax Jacobian, batch folded")
def attention_backward_jacobian(q, k, v, keep, dout):
    Tq, Tk, scale = q.shape[-2], k.shape[-2], 1 / math.sqrt(q.shape[-1])
    keep = np.broadcast_to(keep, (*q.shape[:-1], Tk)).reshape(-1, Tq, Tk)
    q3, k3, v3, up = (
        x.reshape(-1, *x.shape[-2:]).astype(float) for x in (q, k, v, dout)
    )
    s = np.matmul(q3 * scale, k3.transpose(0, 2, 1))
    s = np.where(keep, s, np.finfo(float).min)
    p = np.exp(s - s.max(2, keepdims=True)) * keep
    p = np.divide(
        p,
        p.sum(2, keepdims=True),
        where=p.any(2, keepdims=True),
        out=np.zeros_like(p),
    )
    jacobian = np.eye(Tk) * p[:, :, None] - p[..., None] * p[:, :, None]
    ds = (jacobian @ (up @ v3.transpose(0, 2, 1))[..., None])[..., 0] * scale
    grads = ds @ k3, ds.transpose(0, 2, 1) @ q3, p.transpose(0, 2, 1) @ up
    return tuple(
        g.reshape(x.shape).astype(q.dtype)
        for g, x in zip(grads, (q, k, v), strict=True)
    )


@wrong(
    "attention_backward",
    hint=(
        "The gradient of the scores lacks the term that is subtracted from "
        "dP, rowsum(P∘dP). It comes from the softmax's denominator; without "
        "it the rows of dS do not sum to 0. dV is right already."
    ),
    evidence="curriculum 1.8; part E, 9: invisible in the forward pass",
)
def attention_backward_no_delta(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    return _gradients(q, k, p, p * (dout @ _swap(v)), dout)


@wrong(
    "attention_backward",
    hint=(
        "You differentiate the softmax as if each entry stood alone, "
        "P(1 − P), as for a sigmoid. Every score moves every weight of its "
        "row: use the whole Jacobian of exercise 1.3."
    ),
    evidence="sigmoid's derivative; common",
)
def attention_backward_diagonal_jacobian(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    return _gradients(q, k, p, p * (1 - p) * (dout @ _swap(v)), dout)


@wrong(
    "attention_backward",
    hint=(
        "You subtract the row's mean term from dP but never multiply by P, "
        "so hidden keys get gradients too. The softmax's derivative has the "
        "weight as a factor in front."
    ),
    evidence="missing factor; plausible",
)
def attention_backward_no_weight_factor(q, k, v, keep, dout):
    p, dp = _probabilities(q, k, keep), dout @ _swap(v)
    ds = dp - (p * dp).sum(-1, keepdims=True)
    return _gradients(q, k, p, ds, dout)


@wrong(
    "attention_backward",
    hint=(
        "dQ and dK lack the factor 1/√d. The forward pass multiplies the "
        "scores by it, so by the chain rule it multiplies their gradients "
        "on the way back."
    ),
    evidence="missing scale; common",
)
def attention_backward_no_scale(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    root = q.dtype.type(math.sqrt(q.shape[-1]))
    return dq * root, dk * root, dv


@wrong(
    "attention_backward",
    hint=(
        "dQ has the factor 1/√d and dK has not. The scale stands between the "
        "scores and both of their factors, so both gradients get it once."
    ),
    evidence="missing scale on one side (scaled q kept for dK only)",
)
def attention_backward_dk_unscaled(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    return dq, dk * q.dtype.type(math.sqrt(q.shape[-1])), dv


@wrong(
    "attention_backward",
    hint=(
        "dQ and dK have the factor 1/√d twice. Scale the scores' gradient "
        "or the two products, not both."
    ),
    evidence="M021 in the backward pass",
)
def attention_backward_scaled_twice(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    root = q.dtype.type(math.sqrt(q.shape[-1]))
    return dq / root, dk / root, dv


@wrong(
    "attention_backward",
    hint=(
        "You recompute the weights without the scale, so all three gradients "
        "belong to another forward pass. The scores are q·k/√d here as well."
    ),
    evidence="missing scale in the recomputation; plausible",
)
def attention_backward_recomputed_unscaled(q, k, v, keep, dout):
    root = q.dtype.type(math.sqrt(q.shape[-1]))
    p = _probabilities(q * root, k, keep)
    return _gradients(q, k, p, _score_gradients(p, dout @ _swap(v)), dout)


# Shown by: any hidden key.
@wrong(
    "attention_backward",
    hint=(
        "You recompute the weights without the mask, so hidden keys and "
        "values get gradients. Hide the same scores as the forward pass did; "
        "their gradients are then 0 by themselves."
    ),
    evidence="M046 mask on one path only",
)
def attention_backward_mask_ignored(q, k, v, keep, dout):
    return attention_backward_einsum(q, k, v, np.True_, dout)


@wrong(
    "attention_backward",
    hint=(
        "You hide the keys where keep is True. True means visible; with the "
        "mask inverted the gradients flow into the keys that nobody saw."
    ),
    evidence="M041 transformers#38094",
)
def attention_backward_mask_inverted(q, k, v, keep, dout):
    return attention_backward_einsum(q, k, v, ~keep, dout)


# Shown by: any hidden key.
@wrong(
    "attention_backward",
    hint=(
        "You set hidden weights to 0 after a softmax over all keys, so the "
        "denominator counts keys that nobody saw and the rows sum to less "
        "than 1. Hide the scores before the softmax."
    ),
    evidence="M034 in the recomputation",
)
def attention_backward_mask_after_softmax(q, k, v, keep, dout):
    p = _probabilities(q, k, np.True_) * keep
    return _gradients(q, k, p, _score_gradients(p, dout @ _swap(v)), dout)


# Shown by: a row without a visible key.
@wrong(
    "attention_backward",
    hint=(
        "A query without a visible key makes NaN: its scores are all −∞, and "
        "0/0 spreads from its row into all of dK and dV. Give such rows "
        "weights of 0, and their gradients are 0."
    ),
    evidence="M069 pytorch#103749, transformers#38690",
)
def attention_backward_dead_rows_nan(q, k, v, keep, dout):
    s = q @ _swap(k) / math.sqrt(q.shape[-1])
    s = np.where(keep, s, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
    return _gradients(q, k, p, _score_gradients(p, dout @ _swap(v)), dout)


# Shown by: a row without a visible key.
@wrong(
    "attention_backward",
    hint=(
        "A query without a visible key spreads its gradient evenly over "
        "hidden keys, because your fill is finite. The forward pass gives "
        "zeros there, so nothing of its upstream gradient may arrive."
    ),
    evidence="K11 refused: the convention is zeros; M049's fill",
)
def attention_backward_dead_rows_average(q, k, v, keep, dout):
    s = q @ _swap(k) / math.sqrt(q.shape[-1])
    s = np.where(keep, s, -1e9)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return _gradients(q, k, p, _score_gradients(p, dout @ _swap(v)), dout)


# Shown by: Tq = Tk; other lengths raise.
@wrong(
    "attention_backward",
    hint=(
        "dK uses dS where its transpose is due, so key j collects the "
        "gradients of row j instead of column j. A key is used by many "
        "queries: sum over the queries. Try Tq ≠ Tk, where this fails."
    ),
    evidence="missing transpose; A29's kind",
)
def attention_backward_dk_not_transposed(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    ds = _score_gradients(p, dout @ _swap(v))
    dq, _, dv = _gradients(q, k, p, ds, dout)
    return dq, ds @ q / math.sqrt(q.shape[-1]), dv


# Shown by: Tq = Tk; other lengths raise.
@wrong(
    "attention_backward",
    hint=(
        "dV uses P where its transpose is due. Value j is read by every "
        "query that looks at it, so its gradient sums column j of the "
        "weights. Try Tq ≠ Tk, where this fails."
    ),
    evidence="M031's kind in the backward pass",
)
def attention_backward_dv_not_transposed(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    ds = _score_gradients(p, dout @ _swap(v))
    return *_gradients(q, k, p, ds, dout)[:2], p @ dout


@wrong(
    "attention_backward",
    hint=(
        "dV passes dS on to the values. Values do not go through the "
        "softmax: the output is P V, so dV depends on P and dO alone."
    ),
    evidence="wrong factor; plausible",
)
def attention_backward_dv_from_ds(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    ds = _score_gradients(p, dout @ _swap(v))
    return *_gradients(q, k, p, ds, dout)[:2], _swap(ds) @ dout


@wrong(
    "attention_backward",
    hint=(
        "You sum P∘dP over the queries. The softmax normalises each row over "
        "its keys, so the sum to subtract is one number for each row."
    ),
    evidence="M024 in the backward pass",
)
def attention_backward_delta_over_queries(q, k, v, keep, dout):
    p, dp = _probabilities(q, k, keep), dout @ _swap(v)
    ds = p * (dp - (p * dp).sum(-2, keepdims=True))
    return _gradients(q, k, p, ds, dout)


# Shown by: unbatched Tq = Tk, or batched with coinciding sizes, for wrong
# numbers; other shapes raise.
@wrong(
    "attention_backward",
    hint=(
        "Your row sums have lost their axis and are subtracted along the "
        "wrong one: with Tq = Tk silently, otherwise with an error. Keep "
        "the reduced axis with size 1."
    ),
    evidence="M007 DeNA/HandyRL#209",
)
def attention_backward_delta_axis_dropped(q, k, v, keep, dout):
    p, dp = _probabilities(q, k, keep), dout @ _swap(v)
    return _gradients(q, k, p, p * (dp - (p * dp).sum(-1)), dout)


@wrong(
    "attention_backward",
    hint=(
        "You subtract the plain mean of dP. The softmax weighs: subtract the "
        "average of dP under the weights P of that row."
    ),
    evidence="layer norm's backward remembered; plausible",
)
def attention_backward_plain_mean(q, k, v, keep, dout):
    p, dp = _probabilities(q, k, keep), dout @ _swap(v)
    ds = p * (dp - dp.mean(-1, keepdims=True))
    return _gradients(q, k, p, ds, dout)


# Shown by: any batch axis (raises or mixes examples); without one it is
# right.
@wrong(
    "attention_backward",
    hint=(
        "Something works without batch axes only: an axis counted from the "
        "front, .T, which reverses all axes, or np.dot, which combines every "
        "example with every other. Touch the last two axes only."
    ),
    evidence="M029, M027 common",
)
def attention_backward_unbatched_only(q, k, v, keep, dout):
    root = math.sqrt(q.shape[-1])
    s = np.where(keep, np.dot(q, k.T) / root, -np.inf)
    e = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e300)) * keep
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total > 0, total, 1)
    ds = _score_gradients(p, np.dot(dout, v.T)) / root
    return np.dot(ds, k), np.dot(ds.T, q), np.dot(p.T, dout)


# Shown by: one leading axis, neither none nor two.
@wrong(
    "attention_backward",
    hint=(
        "Two leading axes are fixed where you transpose: (0, 1, 3, 2) names "
        "four axes. Any number of them is allowed: np.swapaxes(x, -1, -2) "
        "leaves them alone."
    ),
    evidence="common: .T for a matrix, transpose(0, 1, 3, 2) for the rest",
)
def attention_backward_two_or_four_axes(q, k, v, keep, dout):
    def swap(x):
        return x.T if x.ndim == 2 else x.transpose(0, 1, 3, 2)

    p = _probabilities(q, k, keep)
    ds = _score_gradients(p, dout @ swap(v))
    scale = 1 / math.sqrt(q.shape[-1])
    return scale * (ds @ k), scale * (swap(ds) @ q), swap(p) @ dout


# Shown by: scores above 709 (float64).
@wrong(
    "attention_backward",
    hint=(
        "You exponentiate the scores as they are, so large ones overflow and "
        "the gradients become NaN. Recompute the weights as in exercise 1.1, "
        "with the row's maximum subtracted."
    ),
    evidence="M001 in the recomputation",
)
def attention_backward_no_maximum(q, k, v, keep, dout):
    with np.errstate(all="ignore"):
        e = np.exp(q @ _swap(k) / math.sqrt(q.shape[-1])) * keep
        total = e.sum(-1, keepdims=True)
        p = e / np.where(np.any(keep, -1, keepdims=True), total, 1)
        ds = _score_gradients(p, dout @ _swap(v))
        return _gradients(q, k, p, ds, dout)


@wrong(
    "attention_backward",
    hint=(
        "Your gradients are the negative of what they should be for q and k. "
        "In dS the average under P is subtracted from dP, not the reverse."
    ),
    evidence="sign; common",
)
def attention_backward_sign(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    return -dq, -dk, dv


# Shown by: Tq ≠ Tk by shape; otherwise by value.
@wrong(
    "attention_backward",
    hint=(
        "You return dK before dQ. The order is that of the arguments: the "
        "gradients of q, k and v."
    ),
    evidence="order of results; plausible",
)
def attention_backward_results_swapped(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    return dk, dq, dv


# Shown by: float64 with a tolerance below 1e-7.
@wrong(
    "attention_backward",
    hint=(
        "You compute in float32 although the arguments are float64, so half "
        "of the digits are lost even if you convert back. Keep the dtype."
    ),
    evidence="M051 common",
)
def attention_backward_float32(q, k, v, keep, dout):
    narrow = (x.astype(np.float32) for x in (q, k, v))
    grads = attention_backward_einsum(*narrow, keep, dout.astype(np.float32))
    return tuple(g.astype(q.dtype) for g in grads)


# Shown by: comparing the arguments before and after the call.
@wrong(
    "attention_backward",
    hint=(
        "Your gradients are right, but you wrote into an argument. With "
        "numpy, q *= … and q /= … change the caller's array, and so does "
        "out=keep; write a new one."
    ),
    evidence="M011 in this exercise",
)
def attention_backward_in_place(q, k, v, keep, dout):
    grads = attention_backward_einsum(q, k, v, keep, dout)
    q /= math.sqrt(q.shape[-1])
    return tuple(grads)


@wrong(
    "attention_backward",
    hint=(
        "dV is right, and dQ and dK are still zeros. Go on from dP = dO Vᵀ "
        "through the softmax to dS; dQ and dK are products with it."
    ),
    evidence="fresh reader: half-way through",
)
def attention_backward_dv_only(q, k, v, keep, dout):
    dv = attention_backward_einsum(q, k, v, keep, dout)[2]
    return np.zeros_like(q), np.zeros_like(k), dv


@wrong(
    "attention_backward",
    hint=(
        "You send dP straight on to the scores, as if there were no softmax. "
        "Between dP and dS stands the Jacobian of each row of P."
    ),
    evidence="fresh reader: half-way through",
)
def attention_backward_softmax_skipped(q, k, v, keep, dout):
    p = _probabilities(q, k, keep)
    return _gradients(q, k, p, dout @ _swap(v), dout)


# Shown by: Tk ≠ d by shape; otherwise by value.
@wrong(
    "attention_backward",
    hint=(
        "Your dK is transposed: you multiply Qᵀ with dS, which gives "
        "(…, d, Tk). The rows of dK are keys: transpose dS instead."
    ),
    evidence="fresh reader: order of the product",
)
def attention_backward_dk_transposed(q, k, v, keep, dout):
    dq, dk, dv = attention_backward_einsum(q, k, v, keep, dout)
    return dq, _swap(dk), dv


# Shown by: a mask that has fewer axes than the scores, or axes of size 1.
@wrong(
    "attention_backward",
    hint=(
        "You use keep as an index, which does not broadcast: it fails when "
        "keep has fewer axes than the scores, or axes of size 1. np.where "
        "broadcasts, and so does np.broadcast_to."
    ),
    evidence="fresh reader: scores[~keep] = -inf",
)
def attention_backward_keep_as_index(q, k, v, keep, dout):
    scores = q @ _swap(k)
    scores[~keep] = 0  # raises if the shapes differ
    return attention_backward_einsum(q, k, v, keep, dout)


# Shown by: a query that sees nothing.
@wrong(
    "attention_backward",
    hint=(
        "You replace NaN at the end. By then a query that sees nothing has "
        "spread it to all of dK and dV, and the replacement wipes out what "
        "the other queries gave. See to it that its weights are 0."
    ),
    evidence="fresh reader: nan_to_num on the results",
)
def attention_backward_nan_replaced(q, k, v, keep, dout):
    with np.errstate(all="ignore"):
        s = q @ _swap(k) / math.sqrt(q.shape[-1])
        s = np.where(keep, s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        ds = _score_gradients(p, dout @ _swap(v))
        grads = _gradients(q, k, p, ds, dout)
    return tuple(np.nan_to_num(grad) for grad in grads)


# Shown by: rows of large scores, far from each other.
@wrong(
    "attention_backward",
    hint=(
        "You subtract the maximum of all scores, so a row far below it "
        "underflows to zeros, and 0/0 is NaN or the row gets no weight at "
        "all. Each row needs its own maximum."
    ),
    evidence="M003 in the recomputation",
)
def attention_backward_global_maximum(q, k, v, keep, dout):
    s = np.where(keep, q @ _swap(k) / math.sqrt(q.shape[-1]), -np.inf)
    e = np.exp(s - s.max())
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total > 0, total, 1)
    ds = _score_gradients(p, dout @ _swap(v))
    return _gradients(q, k, p, ds, dout)


# Shown by: float64 with a tolerance below 1e-9.
@wrong(
    "attention_backward",
    hint=(
        "A small constant in the denominator keeps dead rows from dividing 0 "
        "by 0, but it makes the weights of every other row too small. Here "
        "float64 counts to 1e-10: protect the dead rows alone, with "
        "np.maximum or np.where."
    ),
    evidence="K29: p / (p.sum(-1, keepdims=True) + 1e-9)",
)
def attention_backward_epsilon(q, k, v, keep, dout):
    scores = q @ _swap(k) / math.sqrt(q.shape[-1])
    scores = np.where(keep, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0))
    p = p / (p.sum(-1, keepdims=True) + 1e-9)
    ds = _score_gradients(p, dout @ _swap(v))
    return _gradients(q, k, p, ds, dout)


# Shown by: a hidden score far above the visible ones.
@wrong(
    "attention_backward",
    hint=(
        "The maximum that you subtract may be that of a hidden score. If it "
        "is by far the largest, all visible exponentials underflow to 0 and "
        "the row has no weights. Hide first, then take the maximum."
    ),
    evidence="hunt: exp of all scores, times keep",
)
def attention_backward_maximum_of_hidden(q, k, v, keep, dout):
    s = q @ _swap(k) / math.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True)) * keep
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total > 0, total, 1)
    ds = _score_gradients(p, dout @ _swap(v))
    return _gradients(q, k, p, ds, dout)


# Shown by: values far from 0.
@wrong(
    "attention_backward",
    hint=(
        "You take differences of the loss instead of its derivative. They "
        "lose digits, all of them where the loss is large, and cost a forward "
        "pass for every entry. Go backward step by step on paper."
    ),
    evidence="common: the gradient check handed in as the answer",
)
def attention_backward_finite_differences(q, k, v, keep, dout):
    def loss(parts):
        q, k, v = parts
        return (_probabilities(q, k, keep) @ v * dout).sum()

    parts, grads = [x.copy() for x in (q, k, v)], []
    for x in parts:
        grad = np.empty_like(x)
        for at in np.ndindex(x.shape):
            kept, ends = x[at], []
            for step in (1e-5, -1e-5):
                x[at] = kept + step
                ends.append(loss(parts))
            x[at] = kept
            grad[at] = (ends[0] - ends[1]) / 2e-5
        grads.append(grad)
    return tuple(grads)


LEFT_OUT = {
    "M009": "log-softmax is no exercise of this lesson",
    "M045": "masks are broadcast here, never tiled; belongs to lesson 2 "
    "(its kind is padding_mask_longest_for_all)",
    "M058": "gives what M057 gives: one answer stands for both",
    "M064": "layers, targets and modes come with the block and the GPT",
    "M071": "NaN in padded values is not promised (F.sdpa fails it too)",
    "M072": "no positions or embeddings here",
    "M077": "no fused path here",
    "M078": "no dropout and no norm here",
    "M112": "no module here",
    "M113": "no module here",
    "M114": "no module here",
    "M116": "no cache here",
    "K13": "not an answer but a mask type: inputs have the documented ones",
    "K14": "not an answer but mask shapes: inputs have all four",
    "K17": "only its extra argument fits (sdpa_folded_batch): a third result "
    "breaks unpacking into a pair",
    "K20": "no projections here",
    "K21": "no projections here",
    "K23": "no heads are joined here",
    "K25": "grouped queries come later",
    "K26": "fused attention is forbidden here",
    "K27": "no dropout here",
    "K32": "lists as arguments are not in the contract",
}
