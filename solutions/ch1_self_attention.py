# %% [markdown]
# # Self-attention
#
# **Goal:** build scaled dot-product attention from its parts, and be able to
# say what each part is for: the softmax, the divisor $\sqrt{d}$, the masks,
# and the gradient that flows back through all of them.
#
# Read [the chapter](../book/ch1_self_attention.md) first, or keep it open
# beside this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# Run the check as often as you like; it explains what it finds.
# The tasks do not need each other, so you can skip one and come back.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, Tq the number of queries, Tk the number
#   of keys, T a number of positions when there is only one, d the width of a
#   query or key, dv the width of a value.
#   `...` means any number of leading axes, none included.
# - **Boolean masks** are `True` where a query **may look**, as in
#   `F.scaled_dot_product_attention`.
#   `nn.MultiheadAttention` means the opposite by its masks.
# - **Dead rows.** A query that may look at no key has the weights 0 and the
#   output 0: not NaN, not a uniform average.
#   The gradients there are finite too.
# - **Precision.** Half-precision inputs (`float16`, `bfloat16`) are computed
#   in `float32` or wider and returned in the input's dtype.
#   `float64` stays `float64` all the way: a detour through `float32` costs
#   nine digits.
#   Floating tensors given to one call share one dtype.
# - **Device.** A result is on the device of the arguments; a tensor that you
#   create on the way has to be there too.
# - **Autograd.** Where a task asks for gradients, they flow from the result to
#   every floating tensor argument, and are finite.
# - **Arguments** are never modified, and may be non-contiguous views.

# %% provided="imports"
import math

import numpy as np
import torch
from torch import Tensor

from autograder import check

# %% [markdown]
# ## 1.1 A softmax that cannot overflow
#
# **Goal:** turn scores into weights that are positive and sum to 1, for
# scores of any size.
#
# $$\mathrm{softmax}(x)_i = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# `float32` cannot hold $e^{89}$.
# Typed as it stands, the formula computes `inf / inf` for large scores, and
# the answer is NaN.
# The softmax does not change when the same constant is added to every score
# of a slice, and that freedom is enough to keep every exponential in range.
#
# **Contract**
#
# - `x` is a floating tensor of any shape, with at least one axis and finite
#   entries; `dim` is any of its axes, negative numbers count from the end.
# - The result has `x`'s shape, dtype and device.
#   Every slice along `dim` sums to 1, each by itself.
# - Scores of any finite size are fine, ±10,000 or ±1e30, and so are a row near
#   0 and a row near 1,000 in the same tensor.
#
# **Example**
#
# ```python
# softmax(torch.tensor([[0.0, 1.0, 2.0],
#                       [1000.0, 1001.0, 1002.0]]))
# # [[0.0900, 0.2447, 0.6652],
# #  [0.0900, 0.2447, 0.6652]]
# ```
#
# **Why it matters:** every attention layer runs this on every row of scores,
# and one NaN in one row ruins the whole training step.
#
# <details>
# <summary>Hint 1: what is the largest exponent that is still safe?</summary>
#
# You may subtract any constant from a slice.
# Which one makes the largest exponent 0, whatever the scores are?
# Which sum can then never be 0 and never be infinite?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Subtract from each slice its own maximum, exponentiate, divide by the sum
# along the same axis.
# The maximum of the whole tensor is not good enough: a row that lies far
# below it would underflow to 0 / 0.
# Keep the reduced axis, so that what you subtract lines up with its slice.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `x - x.amax(dim, keepdim=True)`, and for half precision first
# `x.to(torch.promote_types(x.dtype, torch.float32))`, which widens
# `float16` and leaves `float64` alone.
#
# </details>


# %% exercise="softmax" level=1 minutes=10
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Weights proportional to exp(x) along one axis.

    x: (...), floating, finite
    dim: the axis along which the weights sum to 1
    returns: x's shape, dtype and device
    """
    ### BEGIN SOLUTION
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    # The largest exponent is 0, so the sum lies between 1 and x.shape[dim].
    e = torch.exp(wide - wide.amax(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 1.2 Measure why the scores are scaled
#
# **Goal:** measure how far scores spread, with and without a divisor.
#
# Take a query and a key whose $d_k$ entries are independent, with mean 0 and
# variance 1.
# Their dot product is a sum of $d_k$ terms, each with mean 0 and variance 1.
# How large is its standard deviation, and which divisor brings it back to 1?
# Find out by experiment.
#
# **Contract**
#
# - Draw `n` independent pairs (q, k) of vectors with `d_k` independent
#   standard normal entries, and score every pair with q·k divided by
#   1 (`scale="none"`), by $\sqrt{d_k}$ (`"sqrt"`) or by $d_k$ (`"d"`).
# - Return the standard deviation of the `n` scores as one number: a Python
#   `float`; a number of numpy's or a tensor without axes passes, too.
#   (Dividing by n or by n − 1 makes no difference that is graded.)
# - **Measure it**: a formula that knows the answer is not an answer.
#   Two seeds give two slightly different numbers, the same seed always gives
#   the same number.
# - All randomness follows from `seed`, an integer ≥ 0.
#   A generator of your own (`torch.Generator` or `numpy.random.default_rng`)
#   leaves the global random state alone, which is good manners.
# - `n * d_k` is at most 10 million here, so all pairs fit in memory at once.
#   Your number has to be within sampling error of the true value: with
#   `d_k` ≥ 8, within 7% at `n` = 4,000 and within 32% at `n` = 200.
#
# **Example**
#
# ```python
# score_std(64, 20_000, "none")  # about 8
# score_std(64, 20_000, "sqrt")  # about 1
# score_std(64, 20_000, "d")     # about 0.125
# ```
#
# **Why it matters:** with a spread of 8 the softmax is nearly one-hot and
# hardly any gradient passes (task 1.3 shows why); with a spread of 1/8 it is
# nearly uniform and every lookup is a blur.
#
# <details>
# <summary>Hint 1: what has to be random, and what may not be shared?</summary>
#
# You need `n` queries and `n` keys, a fresh key for each query.
# What would happen to the measurement if all the queries met one key?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Draw two arrays of shape (n, d_k) from your generator.
# Multiply them entry by entry and sum over the last axis: that is one dot
# product a row, `n` in all.
# (A matrix product would give n · n of them.)
# Divide, then take the standard deviation.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `scores = (q * k).sum(-1)`, where `q` and `k` come from
# `rng = np.random.default_rng(seed)`.
#
# </details>


# %% exercise="score_std" level=1 minutes=10
def score_std(d_k: int, n: int, scale: str, seed: int = 0) -> float:
    """Measured standard deviation of the score of a random query and key.

    d_k: entries of a query or key, independent standard normal
    n: number of independent pairs
    scale: "none", "sqrt" or "d": divide by 1, by the root of d_k, by d_k
    seed: seeds a generator of the function's own
    returns: one number, within sampling error of the true value
    """
    ### BEGIN SOLUTION
    divisor = {"none": 1.0, "sqrt": math.sqrt(d_k), "d": d_k}[scale]
    q, k = np.random.default_rng(seed).standard_normal((2, n, d_k))
    scores = (q * k).sum(axis=-1) / divisor
    return float(scores.std())
    ### END SOLUTION


# %% [markdown]
# ## 1.3 The softmax's Jacobian
#
# **Goal:** write down how each weight reacts to each score, and see that a
# saturated softmax does not react at all.
#
# Let $y = \mathrm{softmax}(x)$.
# Collect the derivatives in a matrix: $J_{ij} = \partial y_i / \partial x_j$.
# Everything that $J$ needs is in $y$: the scores are not needed any more,
# which is why a backward pass need only keep the weights.
#
# **Contract**
#
# - `y` is a numpy array (n,) in `float64`, the **result** of a softmax:
#   entries ≥ 0 that sum to 1.
# - Return the matrix (n, n) as a numpy array in `float64`; leave `y` as it is.
# - A one-hot `y` is a legitimate argument, and the answer is all zeros.
# - Derive it on paper: no automatic differentiation, no finite differences.
#
# **Example**
#
# ```python
# softmax_jacobian(np.array([0.7, 0.2, 0.1]))
# # [[ 0.21, -0.14, -0.07],
# #  [-0.14,  0.16, -0.02],
# #  [-0.07, -0.02,  0.09]]
# ```
#
# Two things to see in it.
# Each row sums to 0, since adding a constant to all scores changes nothing.
# The entries shrink as one weight takes all: with y = [0.99, 0.01] the
# largest is 0.0099.
#
# **Why it matters:** the gradient that reaches the queries and keys has
# passed through this matrix.
# Scores with a standard deviation of 8 drive it towards zero, and learning
# stalls.
#
# <details>
# <summary>Hint 1: in which two ways does a score enter a weight?</summary>
#
# $x_j$ is in the denominator of every $y_i$.
# For which $i$ is it in the numerator too?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Use the quotient rule.
# The denominator's part is $-y_i y_j$ for every pair; the numerator adds
# $y_i$, on the diagonal only.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# $J = \mathrm{diag}(y) - y\,y^\top$: look at `np.diag` and `np.outer`.
#
# </details>


# %% exercise="softmax_jacobian" level=2 minutes=10
def softmax_jacobian(y: np.ndarray) -> np.ndarray:
    """Derivatives of the softmax, from its result.

    y: (n,), weights that sum to 1
    returns: (n, n); entry (i, j) is the derivative of y[i] by the score x[j]
    """
    ### BEGIN SOLUTION
    return np.diag(y) - np.outer(y, y)
    ### END SOLUTION


# %% [markdown]
# ## 1.4 The causal mask, also when there are fewer queries than keys
#
# **Goal:** say which keys each query may look at, when a query may not look
# into its future.
#
# In training there are as many queries as keys, and query i sees keys 0 to i.
# In generation the earlier keys are stored and only the newest queries are
# computed: 1 query and 7 keys, say.
# That query is the newest position, and it must see all 7.
# So the two sequences are aligned at their **ends**, which puts the mask's
# diagonal into the lower right corner.
#
# **Contract**
#
# - Return a boolean tensor of shape (Tq, Tk), `True` where the query may
#   look, on torch's default device; Tq and Tk are at least 1.
# - `align="lower_right"`: the last query sees every key, the query before it
#   all keys but the last, and so on.
#   With Tq > Tk the first Tq − Tk queries see nothing: their rows are `False`.
# - `align="upper_left"`: query i sees keys 0 to i, whatever the sizes.
#   `F.scaled_dot_product_attention(..., is_causal=True)` does this.
# - Any other `align` is a `ValueError`.
#
# **Example**
#
# ```python
# causal_mask(2, 4)
# # [[True, True, True, False],
# #  [True, True, True, True]]
# causal_mask(2, 4, align="upper_left")
# # [[True, False, False, False],
# #  [True, True, False, False]]
# causal_mask(3, 1)
# # [[False], [False], [True]]
# ```
#
# **Why it matters:** a model whose mask is off by one reads the answer it
# has to predict, and its training loss looks wonderful.
# A mask aligned to the upper left goes unnoticed until the model generates:
# each new token then sees only the oldest one.
#
# <details>
# <summary>Hint 1: at which position does query i stand?</summary>
#
# Number the positions by the keys, 0 to Tk − 1.
# The last query, number Tq − 1, stands at position Tk − 1.
# Where does query i stand?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Query i stands at position i + (Tk − Tq) and sees every key at or before it.
# For the other alignment it stands at position i.
# So both masks are a lower triangle, with its diagonal shifted.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `Tensor.tril(diagonal)` keeps the entries with
# `column <= row + diagonal`, and works on boolean tensors.
#
# </details>


# %% exercise="causal_mask" level=2 minutes=15
def causal_mask(Tq: int, Tk: int, *, align: str = "lower_right") -> Tensor:
    """Keys at or before each query.

    align: "lower_right" (the last query stands at the last key) or
        "upper_left" (the first query stands at the first key)
    returns: (Tq, Tk), boolean, True where the query may look
    raises ValueError: for another alignment
    """
    ### BEGIN SOLUTION
    if align not in ("lower_right", "upper_left"):
        raise ValueError(
            f"align is {align!r}: use 'lower_right' or 'upper_left'"
        )
    offset = Tk - Tq if align == "lower_right" else 0
    return torch.ones(Tq, Tk, dtype=torch.bool).tril(offset)
    ### END SOLUTION


# %% [markdown]
# ## 1.5 Scaled dot-product attention
#
# **Goal:** the formula of the chapter, with its masks, as a function that you
# could use in a model.
#
# $$\mathrm{out} = \mathrm{softmax}\!\left(\frac{Q K^\top}{\sqrt{d}} +
# \mathrm{mask}\right) V$$
#
# **Contract**
#
# - `q` (..., Tq, d), `k` (..., Tk, d) and `v` (..., Tk, dv) have the same
#   leading axes and one dtype; dv may differ from d, and Tq from Tk.
# - Return `(out, weights)`: `out` (..., Tq, dv) and `weights`
#   (..., Tq, Tk), both in the inputs' dtype.
#   Each row of weights sums to 1, or is a dead row.
# - The scores q·k are multiplied by `scale`; `None` means $1/\sqrt{d}$.
#   A `scale` of 0.0 is legitimate: all scores tie, the weights are uniform.
# - `attn_mask` is broadcast to the shape of the scores.
#   A boolean mask is `True` where the query may look.
#   A floating mask, in the inputs' dtype, is added to the scores **after**
#   scaling; its −inf hides a key.
# - `is_causal=True` hides the future, aligned to the **lower right** (the
#   last query sees every key), unlike PyTorch's function of this name.
# - Both may be given, and then both apply.
# - A dead row, from either mask or from the two together, gives zeros in
#   `weights` and in `out`.
# - Gradients flow to `q`, `k`, `v` and a floating mask, and are finite past
#   dead rows too.
# - What is hidden has no influence at all: a hidden key or value may be
#   changed to any finite numbers without the output changing.
# - `torch.softmax` is allowed here.
#
# **Example:** one query, two keys, d = 2.
# The raw scores are 2 and 0; divided by √2 they are 1.414 and 0.
#
# ```python
# q = torch.tensor([[1.0, 1.0]])
# k = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
# v = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
# out, weights = scaled_dot_product_attention(q, k, v)
# # weights [[0.804, 0.196]], out [[0.804, 0.196]]
#
# q = torch.ones(3, 2)   # 3 queries, 2 keys: the first sees nothing
# out, weights = scaled_dot_product_attention(q, k, v, is_causal=True)
# # weights [[0, 0], [1, 0], [0.804, 0.196]]
# ```
#
# **Why it matters:** this is the soft dictionary lookup on which every
# transformer is built.
# The order of its steps decides whether it is right: a mask that comes after
# the softmax zeroes the weights but leaves the future in the denominator.
#
# <details>
# <summary>Hint 1: which score hides a key from the softmax?</summary>
#
# The softmax exponentiates.
# For which score is the exponential exactly 0, however negative the other
# scores of the row are?
# And what does the softmax return for a row that has only such scores?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Widen half precision; multiply q with the transposed last two axes of k;
# scale; put −inf wherever a mask hides; take the softmax over the keys, the
# last axis; multiply with v.
# For the dead rows, find out which rows are −inf throughout, replace their
# scores by 0 *before* the softmax, so that no NaN ever arises, and their
# weights by 0 after it.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `dead = (scores == -math.inf).all(-1, keepdim=True)`, then
# `masked_fill(dead, 0.0)` on both sides of the softmax.
#
# </details>


# %% exercise="scaled_dot_product_attention" level=2 minutes=25
def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Average of the values, weighted by how well query and key match.

    q: (..., Tq, d); k: (..., Tk, d); v: (..., Tk, dv); one floating dtype
    attn_mask: broadcasts to (..., Tq, Tk); boolean, True where the query may
        look, or floating, added to the scaled scores
    is_causal: hide the future, the last query standing at the last key
    scale: factor of the scores q·k; None means 1 / sqrt(d)
    returns: the output (..., Tq, dv) and the weights (..., Tq, Tk); both are
        0 in the rows of queries that see no key
    source: Vaswani et al. 2017, eq. 1
    """
    ### BEGIN SOLUTION
    wide = torch.promote_types(q.dtype, torch.float32)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scores = scale * (q.to(wide) @ k.to(wide).transpose(-2, -1))
    if is_causal:
        Tq, Tk = scores.shape[-2:]
        square = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(square.triu(Tk - Tq + 1), -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.to(wide)
    # A softmax over nothing is NaN, and so is its gradient: dead rows are
    # made harmless before it and zero after it.
    dead = (scores == -math.inf).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1)
    weights = weights.masked_fill(dead, 0.0)
    return (weights @ v.to(wide)).to(v.dtype), weights.to(q.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 1.6a A softmax that knows what is hidden
#
# **Goal:** weights over the visible keys only, exact in every precision, with
# an answer also where nothing is visible.
#
# Hidden scores are often filled with −1e9 or −1e4 "since that is as good as
# minus infinity".
# It is not.
# −1e9 does not fit into `float16`, whose largest number is 65,504.
# Visible scores that happen to be lower still lose to a finite fill.
# And in a row in which everything is hidden, a finite fill gives a uniform
# average over padding, while −inf gives NaN.
#
# **Contract**
#
# - `scores` is a floating tensor (..., Tq, Tk) with finite entries.
#   `keep` is a boolean tensor that broadcasts to its shape, `True` where the
#   query may look.
# - The result has the shape, dtype and device of `scores`.
#   It is the softmax over the last axis, restricted to what is kept; hidden
#   places are exactly 0.
# - A dead row gives zeros.
#   The gradients are finite everywhere, and 0 for hidden scores.
# - Half-precision scores are computed in `float32` and returned in their
#   dtype.
# - `torch.softmax` is allowed here.
#
# **Example**
#
# ```python
# scores = torch.tensor([[2.0, 9.0, 1.0], [5.0, 5.0, 5.0]])
# keep = torch.tensor([[True, False, True], [False, False, False]])
# masked_softmax(scores, keep)
# # [[0.731, 0.000, 0.269],
# #  [0.000, 0.000, 0.000]]
# ```
#
# **Why it matters:** one padded-out example in a batch is enough to turn a
# loss into NaN, and the NaN appears far from its cause.
#
# <details>
# <summary>Hint 1: why is it late to mend the NaN after the softmax?</summary>
#
# Replacing NaN by 0 after the softmax gives the right weights.
# What does the derivative of the softmax, which is computed from its
# result, see on the way back?
# (Behind a `masked_fill` you are lucky, behind an added mask you are not.)
# And what if a NaN has quite another cause, which you would like to notice?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# In a live row, put −inf at every hidden place.
# In a dead row, put nothing: the softmax then gives harmless numbers.
# Afterwards, set every hidden place to 0, which changes nothing in live rows
# and clears the dead ones.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `dead = ~keep.any(-1, keepdim=True)`, and before the softmax
# `scores.masked_fill(~keep & ~dead, -math.inf)`.
#
# </details>


# %% exercise="masked_softmax" level=3 minutes=15
def masked_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Softmax over the visible part of the last axis.

    scores: (..., Tq, Tk), floating, finite
    keep: boolean, broadcasts to the scores; True where the query may look
    returns: the scores' shape, dtype and device; 0 where hidden, so a row
        with nothing visible is all 0
    """
    ### BEGIN SOLUTION
    hide = ~keep
    dead = hide.all(dim=-1, keepdim=True)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # A dead row stays unmasked here, so that no NaN ever arises.
    weights = torch.softmax(wide.masked_fill(hide & ~dead, -math.inf), dim=-1)
    return weights.masked_fill(hide, 0.0).to(scores.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 1.6b From lengths to a padding mask
#
# **Goal:** the mask for a batch of sequences of different lengths that were
# padded at the end to a common length.
#
# **Contract**
#
# - `lengths` is a tensor (B,) of any integer dtype, with 0 ≤ length ≤ T; `T`
#   is the padded length, and may be larger than that dtype's largest number.
# - Return a boolean tensor (B, 1, 1, T) on the device of `lengths`: `True` at
#   real positions, `False` at padding.
#   A length of 0 gives a row of `False`.
#
# The two axes of size 1 let the mask broadcast to scores (B, H, Tq, T): one
# mask an example, the same for all heads and queries.
# Without them, (B, T) would be lined up with the last two axes, (Tq, T).
#
# **Example**
#
# ```python
# padding_mask(torch.tensor([2, 0, 3]), T=3)[:, 0, 0]
# # [[True, True, False],
# #  [False, False, False],
# #  [True, True, True]]
# ```
#
# **Why it matters:** the content of padding must not change any answer, and a
# mask that is one position too long lets exactly one pad token in.
#
# <details>
# <summary>Hint 1: which positions are real if the length is 2?</summary>
#
# Positions count from 0.
# Is position 2 real?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Compare the positions 0 to T − 1 with each length.
# Give `lengths` trailing axes of size 1, and broadcasting does the rest.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.arange(T, device=lengths.device)`, compared with
# `lengths[:, None, None, None]`.
#
# </details>


# %% exercise="padding_mask" level=3 minutes=10
def padding_mask(lengths: Tensor, T: int) -> Tensor:
    """Real positions in a batch of sequences padded at the end.

    lengths: (B,), integers from 0 to T
    T: padded length, in positions
    returns: (B, 1, 1, T), boolean, True at real positions
    """
    ### BEGIN SOLUTION
    positions = torch.arange(T, device=lengths.device)
    return positions < lengths[:, None, None, None]
    ### END SOLUTION


# %% [markdown]
# ## 1.7a Additive attention
#
# **Goal:** the attention that came before the dot product: a small network
# scores each pair of a decoder state and an encoder state.
#
# $$\begin{gathered}
# e_{bij} = v^\top \tanh(W s_{bi} + U h_{bj}), \\
# \alpha_{bij} = \mathrm{softmax}_j(e_{bij}), \\
# c_{bi} = \sum_j \alpha_{bij}\, h_{bj}
# \end{gathered}$$
#
# **Contract**
#
# - `s` (B, Tdec, ds) are decoder states, `h` (B, Tenc, dh) encoder states.
#   `W` (da, ds), `U` (da, dh) and `v` (da,) are the network's weights, one
#   row for each of its da units; it has no biases, and the scores are not
#   scaled.
# - Return `(context, weights)`: `context` (B, Tdec, dh), averages of `h`
#   itself, and `weights` (B, Tdec, Tenc); both in the inputs' dtype.
# - `keep` (B, Tenc) is boolean, `True` at the encoder positions that may be
#   looked at; `None` means all of them.
# - In an example of which nothing is kept, the weights and the context are 0.
# - Gradients flow to `s`, `h`, `W`, `U` and `v`, and are finite everywhere.
# - `torch.softmax` is allowed here.
#
# **Example:** one decoder state, two encoder states, all widths 1.
# The scores are 2·tanh(0) = 0 and 2·tanh(1) = 1.523.
#
# ```python
# s = torch.tensor([[[0.0]]])
# h = torch.tensor([[[0.0], [1.0]]])
# one = torch.ones(1, 1)
# additive_attention(s, h, one, one, torch.tensor([2.0]))
# # context [[[0.821]]], weights [[[0.179, 0.821]]]
# ```
#
# **Why it matters:** ds and dh may differ, since the two states meet in a
# third space.
# The price is a tensor (B, Tdec, Tenc, da): da times the memory of the
# scores, and no matrix product that would form them at once.
# That price is what the dot product saves.
#
# <details>
# <summary>Hint 1: which part depends on one index only?</summary>
#
# $W s_{bi}$ does not know j, and $U h_{bj}$ does not know i.
# How often does each have to be computed?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Project s and h to da entries each.
# Insert an axis into each, so that their sum has every pair (i, j); tanh;
# contract the last axis with v.
# The rest is a masked softmax over j and a weighted average of h.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.tanh((s @ W.T).unsqueeze(2) + (h @ U.T).unsqueeze(1))` has the shape
# (B, Tdec, Tenc, da).
#
# </details>


# %% exercise="additive_attention" level=3 minutes=25
def additive_attention(
    s: Tensor,
    h: Tensor,
    W: Tensor,
    U: Tensor,
    v: Tensor,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of decoder states to encoder states, scored by a network.

    s: (B, Tdec, ds); h: (B, Tenc, dh); one floating dtype for all
    W: (da, ds); U: (da, dh); v: (da,)
    keep: (B, Tenc), boolean, True where the decoder may look; None: all
    returns: the context (B, Tdec, dh) and the weights (B, Tdec, Tenc); both
        are 0 for an example of which nothing is kept
    source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2
    """
    ### BEGIN SOLUTION
    dtype, wide = s.dtype, torch.promote_types(s.dtype, torch.float32)
    s, h, W, U, v = (t.to(wide) for t in (s, h, W, U, v))
    # (B, Tdec, 1, da) + (B, 1, Tenc, da)
    units = torch.tanh((s @ W.T).unsqueeze(2) + (h @ U.T).unsqueeze(1))
    scores = units @ v  # (B, Tdec, Tenc)
    if keep is None:
        keep = torch.ones_like(h[..., 0], dtype=torch.bool)
    hide = ~keep.unsqueeze(1)  # (B, 1, Tenc)
    dead = hide.all(dim=-1, keepdim=True)
    # Dead rows stay unmasked until after the softmax: no NaN arises.
    scores = scores.masked_fill(hide & ~dead, -math.inf)
    weights = torch.softmax(scores, dim=-1).masked_fill(hide, 0.0)
    return (weights @ h).to(dtype), weights.to(dtype)
    ### END SOLUTION


# %% [markdown]
# ## 1.7b Luong's multiplicative score
#
# **Goal:** the step from additive attention to the dot product: a score that
# is one matrix product.
#
# $$\begin{gathered}
# e_{bij} = s_{bi}^\top W h_{bj} \quad\text{(general)}, \\
# e_{bij} = s_{bi}^\top h_{bj} \quad\text{(dot)}
# \end{gathered}$$
#
# **Contract**
#
# - `s` (B, Tdec, ds) and `h` (B, Tenc, dh) are states, `W` is (ds, dh).
#   With `W=None` the score is the dot product, and ds = dh.
# - Return the scores (B, Tdec, Tenc) in the inputs' dtype.
#   They are scores: no softmax, no mask and **no scaling**.
#
# **Example**
#
# ```python
# s = torch.tensor([[[1.0, 2.0]]])
# h = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
# luong_score(s, h)                                   # [[[11, 2]]]
# luong_score(s, h, torch.tensor([[0.0, 1.0],
#                                 [0.0, 0.0]]))       # [[[4, 1]]]
# ```
#
# **Why it matters:** put $W = W_Q W_K^\top$ and you have the transformer's
# score, but for the $\sqrt{d}$: queries and keys are a low-rank form of
# Luong's W.
#
# <details>
# <summary>Hint 1: on which side does W meet which state?</summary>
#
# `W` is (ds, dh).
# Its first axis is contracted with one of the two states: with which?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Carry s over into the space of h with W, then take all dot products of an
# example at once: a batched product with the transposed h.
# Only the last two axes of h are swapped; the batch stays in front.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `(s @ W) @ h.transpose(-2, -1)`
#
# </details>


# %% exercise="luong_score" level=3 minutes=10
def luong_score(s: Tensor, h: Tensor, W: Tensor | None = None) -> Tensor:
    """Unscaled multiplicative scores of decoder against encoder states.

    s: (B, Tdec, ds); h: (B, Tenc, dh); one floating dtype for all
    W: (ds, dh); None: the plain dot product, ds = dh
    returns: (B, Tdec, Tenc)
    source: Luong et al. 2015, section 3.1
    """
    ### BEGIN SOLUTION
    wide = torch.promote_types(s.dtype, torch.float32)
    query = s.to(wide) if W is None else s.to(wide) @ W.to(wide)
    return (query @ h.to(wide).transpose(-2, -1)).to(s.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 1.8 Attention, backwards
#
# **Goal:** the gradients of masked attention with respect to q, k and v, by
# hand.
#
# The forward pass is that of task 1.5: with $P$ the masked softmax of
# $S = QK^\top/\sqrt{d}$ over the keys, $O = PV$.
# You are given the gradient of some loss with respect to $O$, and want those
# with respect to $Q$, $K$ and $V$.
#
# **Contract**
#
# - All arguments are numpy arrays, all but `keep` in `float64`.
#   `q` (..., Tq, d), `k` (..., Tk, d), `v` (..., Tk, dv) and `dout`
#   (..., Tq, dv) have the same leading axes, any number of them.
# - `keep` is boolean and broadcasts to (..., Tq, Tk), `True` where the query
#   may look.
#   It may have fewer axes than the scores, or axes of size 1.
# - The scale is $1/\sqrt{d}$.
# - Return `(dq, dk, dv)` in `float64`, with the shapes of `q`, `k` and `v`.
# - A query that sees no key adds nothing to any gradient, and its row of `dq`
#   is 0.
#   No NaN or infinity anywhere, also for scores of ±10,000.
# - numpy only: no automatic differentiation, no finite differences.
#
# **Example:** the numbers of task 1.5, and a loss that is the first entry of
# the output.
#
# ```python
# q = np.array([[1.0, 1.0]])
# k = np.array([[1.0, 1.0], [1.0, -1.0]])
# v = np.array([[1.0, 0.0], [0.0, 1.0]])
# keep = np.ones((1, 2), dtype=bool)
# dq, dk, dv = attention_backward(q, k, v, keep, np.array([[1.0, 0.0]]))
# # dq [[0.000, 0.222]]
# # dk [[0.111, 0.111], [-0.111, -0.111]]
# # dv [[0.804, 0.000], [0.196, 0.000]]
# ```
#
# Read it: to raise the output's first entry, q should turn towards the first
# key and away from the second, along their difference (0, 2).
#
# **Why it matters:** every training step does this.
# FlashAttention (chapter 6) does it without ever storing $P$: it makes $P$
# anew in tiles, and uses the identity in hint 2.
#
# <details>
# <summary>Hint 1: what are the three steps to undo?</summary>
#
# $O = PV$, $P = \mathrm{softmax}(S)$, $S = QK^\top/\sqrt{d}$.
# A product $C = AB$ sends the gradient $\bar C$ to $\bar A = \bar C B^\top$
# and $\bar B = A^\top \bar C$.
# What does the softmax send, given the Jacobian
# $\mathrm{diag}(p) - p\,p^\top$ of each row?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# First recompute P: subtract each row's maximum over the visible keys, and
# see to it that a dead row gives zeros.
# Then go back: dV from P and dO; dP from dO and V; dS from P and dP, row by
# row; dQ and dK from dS, each with the scale.
# The Jacobian of a row, applied to dP, needs no (Tk, Tk) matrix, only one
# number a row, the sum of P∘dP.
# (That number is also the row sum of dO∘O.)
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `ds = p * (dp - (p * dp).sum(-1, keepdims=True))`
#
# </details>


# %% exercise="attention_backward" level=5 minutes=60
def attention_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keep: np.ndarray,
    dout: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of masked scaled dot-product attention.

    q: (..., Tq, d); k: (..., Tk, d); v: (..., Tk, dv); float64
    keep: boolean, broadcasts to (..., Tq, Tk); True where the query may look
    dout: (..., Tq, dv), the loss's gradient with respect to the output
    returns: the loss's gradients with respect to q, k and v, in their shapes
    """
    ### BEGIN SOLUTION
    scale = 1 / math.sqrt(q.shape[-1])
    scores = np.where(keep, scale * (q @ np.swapaxes(k, -1, -2)), -np.inf)
    # In a dead row the maximum is a finite number: -inf - finite is -inf,
    # the exponentials are 0, and the sum, elsewhere at least 1, is 0.
    lowest = np.finfo(scores.dtype).min
    p = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=lowest))
    p = p / np.maximum(p.sum(axis=-1, keepdims=True), 1.0)

    dp = dout @ np.swapaxes(v, -1, -2)
    # The softmax's Jacobian, diag(p) - p p^T, applied to every row.
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    dq = scale * (ds @ k)
    dk = scale * (np.swapaxes(ds, -1, -2) @ q)
    return dq, dk, np.swapaxes(p, -1, -2) @ dout
    ### END SOLUTION


# %% [markdown]
# ## What to do next
#
# Run `check.summary()` in a new cell: it lists your points and the tasks that
# still miss some.
# Before you hand in, restart the kernel and run all cells from the top, so
# that nothing depends on a cell you have since changed; then save and hand in
# this notebook under its own name.
# Write only in the cells that are yours: all others are restored when the
# notebook is graded, and your helper functions may stand in cells of their
# own.
#
# One thing is still missing.
# A single softmax gives a query a single distribution, so a query that wants
# two different things has to blur them.
# Chapter 2 runs several attentions side by side.
