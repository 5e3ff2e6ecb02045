# %% [markdown]
# # Positional encoding
#
# **Goal:** show that attention cannot see order by itself, and build the four
# ways in which models give it order: a fixed table, a learned table,
# rotations (RoPE) and a penalty on distance (ALiBi).
#
# Read [the chapter](../book/ch3_positional_encoding.md) first, or keep it
# open beside this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# Run the check as often as you like; it explains what it finds.
# The tasks do not need each other, so you can skip one and come back.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, T the sequence length, D the model
#   width, V the vocabulary, H the number of heads, Dh the width of a head,
#   Tq the number of queries, Tk the number of keys.
#   `...` means any number of leading axes, none included.
# - **Positions** count from 0.
# - **Pairs.** A width is split into pairs of channels, numbered i = 0, 1, …;
#   each pair has one frequency, and pair 0 is the fastest.
# - **Precision.** Half-precision inputs (`float16`, `bfloat16`) are computed
#   in `float32` or wider and returned in the input's dtype.
#   `float64` stays `float64` all the way, angles included.
#   Floating tensors given to one call share one dtype.
# - **Default dtype.** Where no tensor is given, the result has torch's default
#   dtype, `torch.get_default_dtype()`, as it is at the time of the call.
#   Everything that you create on the way has to be as precise.
# - **Numbers.** Where a Python `float` is to be returned, a NumPy number or a
#   tensor without axes will do as well.
# - **Device.** A result is on the device of the arguments, or on torch's
#   default device where no tensor is given.
# - **Autograd.** Where a task asks for gradients, they flow from the result to
#   every floating tensor argument.
# - **Arguments** are never modified, and may be non-contiguous views.

# %% provided="imports"
import math
from collections.abc import Callable

import torch
from torch import Tensor

from autograder import check

# %% [markdown]
# ## 3.1 A table of sines and cosines
#
# **Goal:** give each position a fingerprint that needs no training.
#
# $$\begin{gathered}
# P_{t,\,2i} = \sin\!\left(\frac{t}{b^{\,2i/D}}\right) \\
# P_{t,\,2i+1} = \cos\!\left(\frac{t}{b^{\,2i/D}}\right)
# \end{gathered}$$
#
# Row t is a set of D/2 clock hands: pair i holds the sine and the cosine of
# one angle, which grows by $b^{-2i/D}$ radians a position.
# The first hand turns by a full radian each step; with D = 512 the last one
# takes some 60,600 positions to come round once.
#
# **Contract**
#
# - Return the table (T, D) in torch's default dtype; `base` is the b of the
#   formula.
#   T is at least 1, D at least 2.
# - Sines and cosines **alternate**: column 2i is the sine, column 2i + 1 the
#   cosine of the same angle.
# - An odd `D` is a `ValueError`.
# - The default dtype may be `float64`; then the table is exact to `float64`.
#   It may be `bfloat16`, which cannot even hold the number 257: then compute
#   in `float32` or wider and round the finished table.
#
# **Example**
#
# ```python
# sinusoidal_table(3, 4)
# # [[0.0000,  1.0000, 0.0000, 1.0000],
# #  [0.8415,  0.5403, 0.0100, 1.0000],
# #  [0.9093, -0.4161, 0.0200, 0.9998]]
# ```
#
# Two things to see in it.
# Each row's squares sum to D/2 = 2, so no position is louder than another.
# To move on by k positions is to turn each pair by a fixed angle, whatever
# the position: a linear map, which a layer can learn.
#
# **Why it matters:** the original transformer added this table to its
# embeddings, and RoPE (3.4) turns queries and keys by the same angles.
# With a wrong exponent everything still trains, since even a bad table tells
# positions apart, and nobody notices.
#
# <details>
# <summary>Hint 1: how many different angles does one row hold?</summary>
#
# Column 2 and column 3 share an angle.
# So how many frequencies are there, and which exponents do they have for
# D = 6?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Make the D/2 exponents 0/D, 2/D, 4/D, … and from them the frequencies.
# Multiply a column of positions with the row of frequencies: that is an array
# (T, D/2) of angles.
# Write its sine into the even columns of the table and its cosine into the
# odd ones.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `angle = t[:, None] * base ** (-torch.arange(0, D, 2) / D)`: the step of the
# `arange` is already the 2 of the exponent.
# For the precision, make `t` and the `arange` in `float64`.
#
# </details>


# %% exercise="sinusoidal_table" level=1 minutes=10
def sinusoidal_table(T: int, D: int, base: float = 1e4) -> Tensor:
    """Sinusoidal position encodings, sines and cosines alternating.

    T: number of positions, counted from 0
    D: width of an encoding, even
    base: ratio of the slowest to the fastest period, for large D
    returns: (T, D), default dtype
    raises ValueError: if D is odd
    source: Vaswani et al. 2017, section 3.5
    """
    ### BEGIN SOLUTION
    if D % 2:
        raise ValueError(f"D is {D}: pairs of sine and cosine need an even D")
    t = torch.arange(T, dtype=torch.float64)
    frequency = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = t[:, None] * frequency
    table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
    return table.to(torch.get_default_dtype())
    ### END SOLUTION


# %% [markdown]
# ## 3.2 Token plus position
#
# **Goal:** look up tokens, add learned positions, and refuse what does not
# fit the tables.
#
# **Contract**
#
# - `ids` (B, T) is an `int64` tensor, `tok` (V, D) the table of tokens, `pos`
#   (C, D) the table of positions.
#   T may be smaller than C: the first T positions are used.
# - Return (B, T, D) in the tables' dtype: token row plus position row, nothing
#   scaled.
#   Position t belongs to place t of **every** sequence in the batch.
# - If T exceeds C, raise an `IndexError` or a `ValueError` whose message
#   names T or C (the number).
# - If an id is not in 0 … V − 1, raise an `IndexError` or a `ValueError`.
#   Negative ids are mistakes too.
# - Gradients flow to both tables.
#
# **Example**
#
# ```python
# tok = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
# pos = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
# embed(torch.tensor([[2, 0]]), tok, pos)  # [[[5.1, 6.2], [1.3, 2.4]]]
# embed(torch.tensor([[0, 0, 0, 0]]), tok, pos)
# # ValueError: 4 tokens do not fit into 3 positions
# ```
#
# **Why it matters:** this is the first line of every GPT.
# Its two silent failures are a table that broadcasts along the wrong axis and
# an index that Python is glad to count from the end.
#
# <details>
# <summary>Hint 1: which shapes are added?</summary>
#
# The looked-up tokens are (B, T, D).
# Which shape must the positions have, so that broadcasting repeats them over
# the batch?
# What does `pos[:T]` do when T is larger than the table, and what happens next
# if the table has exactly one row?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Compare T with the length of the table first.
# Then check the smallest and the largest id: indexing with −1 would give the
# last token without a word.
# Then index `tok` with the whole tensor of ids and add the first T rows of
# `pos`.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `tok[ids] + pos[:T]`: shapes (B, T, D) and (T, D).
#
# </details>


# %% exercise="embed" level=1 minutes=10
def embed(ids: Tensor, tok: Tensor, pos: Tensor) -> Tensor:
    """Token embeddings plus learned position embeddings.

    ids: (B, T), int64
    tok: (V, D), one row a token
    pos: (C, D), one row a position
    returns: (B, T, D), the tables' dtype
    raises ValueError or IndexError: if T exceeds C (the message names one of
        them), or an id is negative or not below V
    """
    ### BEGIN SOLUTION
    T = ids.shape[1]
    if T > len(pos):
        raise ValueError(f"{T} tokens do not fit into {len(pos)} positions")
    if ids.min() < 0 or ids.max() >= len(tok):
        raise IndexError(f"ids run from 0 to {len(tok) - 1}")
    return tok[ids] + pos[:T]
    ### END SOLUTION


# %% [markdown]
# ## 3.3 Measure whether a function sees order
#
# **Goal:** build an instrument that tells you whether a function from
# sequences to sequences knows where its inputs stand.
#
# Shuffle the input: if the output is the old output, shuffled in the same
# way, the function treats positions alike.
# It is called **equivariant**.
# (*Invariant* would mean that the output does not change at all, which is
# true for a sum over positions, but not for attention.)
#
# **Contract**
#
# - `f` is a function that takes a tensor like `x` and returns one of the same
#   shape; `x` (..., T, D); `perm` (T,) is an `int64` tensor that holds a
#   permutation of 0 … T − 1.
# - To permute a sequence is to take position `perm[t]` of it as position t,
#   along the **time axis**, which is axis −2.
# - Return, as a Python `float`, a norm of the difference between the permuted
#   `f(x)` and `f` of the permuted `x`.
#   Any norm will do: the largest absolute entry, the sum of the absolute
#   entries, the root of the sum of squares; averages instead of sums too.
#   It is a norm of the difference alone, not divided by the size of f(x).
#   (A mean of squares without its root is not a norm: it shrinks the small
#   gaps that you want to see.)
# - Keep the dtype: an equivariant `f` has a gap below 1e-9 in `float64`.
#
# **Example**
#
# ```python
# x = torch.tensor([[1.0], [2.0], [4.0]])
# perm = torch.tensor([1, 2, 0])
# equivariance_gap(lambda x: 10 * x, x, perm)         # 0.0
# equivariance_gap(lambda x: x.cumsum(0), x, perm)
# # f(x) is [1, 3, 7], permuted [3, 7, 1]; x permuted is [2, 4, 1], and f of
# # it [2, 6, 7]: the difference is [1, 1, -6].
# # Its largest absolute entry is 6.0, its Euclidean norm 6.164.
# ```
#
# **Why it matters:** self-attention without a mask has the gap 0: to it,
# "dog bites man" and "man bites dog" hold the same three outputs.
# A causal mask alone already breaks the symmetry, and so do positions.
#
# <details>
# <summary>Hint 1: which two tensors have to be equal?</summary>
#
# There are two orders of doing things: shuffle and then apply `f`, or apply
# `f` and then shuffle.
# For which functions does the order not matter?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Index axis −2 with `perm`, once on `x` and once on `f(x)`, both times with
# the same `perm` (not with its inverse).
# Subtract, and reduce the absolute differences to one number.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `f(x)[..., perm, :] - f(x[..., perm, :])`
#
# </details>


# %% exercise="equivariance_gap" level=2 minutes=10
def equivariance_gap(
    f: Callable[[Tensor], Tensor], x: Tensor, perm: Tensor
) -> float:
    """How far f is from commuting with a permutation of the positions.

    f: takes (..., T, D) and returns the same shape
    x: (..., T, D)
    perm: (T,), int64, a permutation
    returns: a norm of f(x) permuted minus f(x permuted); 0 if equivariant
    """
    ### BEGIN SOLUTION
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.abs().max().item()
    ### END SOLUTION


# %% [markdown]
# ## 3.4 Rotary position embedding
#
# **Goal:** turn queries and keys by their position, so that a score depends
# on the **distance** between the two and on nothing else.
#
# Take the Dh channels of a head as Dh/2 pairs.
# At position m, pair i is turned by the angle $m\,\theta_i$ with
# $\theta_i = b^{-2i/D_h}$:
#
# $$\begin{pmatrix} a' \\ c' \end{pmatrix} =
# \begin{pmatrix} \cos m\theta_i & -\sin m\theta_i \\
# \sin m\theta_i & \cos m\theta_i \end{pmatrix}
# \begin{pmatrix} a \\ c \end{pmatrix}$$
#
# A query turned by m and a key turned by n meet in a dot product that only
# knows m − n.
#
# **Contract**
#
# - `x` (..., T, Dh) is a floating tensor; `positions` is an `int64` tensor
#   that broadcasts to (..., T), x's shape without its last axis.
#   So (T,) serves all heads and examples, (B, 1, T) gives each example its
#   own positions, and a single number is one position for all.
#   Positions are 0 or more; they may start anywhere, repeat, and stand in any
#   order.
# - Return x's shape and dtype.
#   For half-precision `x`, cosines, sines and products are `float32` or wider,
#   too: only the finished result is rounded.
#   `base` is b.
# - `interleaved=True`: neighbours are pairs, channel 2i with 2i + 1.
#   `interleaved=False`: channel i with channel i + Dh/2, as in Hugging Face's
#   Llama.
#   Either way the result stands in the channels where the pair stood, and
#   the pair's first channel plays a, its second c.
# - An odd `Dh` is a `ValueError`.
# - Gradients flow to `x`.
#
# **Example**
#
# ```python
# x = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
# apply_rope(x, torch.tensor([1]))
# # [[0.5403, 0.8415, 1.0000, 0.0100]]
# apply_rope(x, torch.tensor([1]), interleaved=False)
# # [[-0.3012, 0.0000, 1.3818, 0.0000]]
# ```
#
# The first pair has turned by 1 radian, the last by 0.01.
# In the second call the pairs are channels (0, 2) and (1, 3), so that
# (1, 1) is turned by 1 radian and (0, 0) by 0.01.
#
# **Why it matters:** almost every open language model since Llama uses RoPE.
# A wrong pairing or a wrong spectrum keeps all lengths and all symmetries, so
# a model trained with it works; a model *loaded* into it talks nonsense.
#
# <details>
# <summary>Hint 1: what does one pair need?</summary>
#
# Forget the shapes for a moment: one pair (a, c), one angle.
# Which two numbers come out?
# Which shape do the angles have for T positions and Dh/2 pairs?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Make angles (..., T, Dh/2) from positions and frequencies, in x's dtype or in
# `float32` if x is half.
# Take out the first channels of all pairs and the second ones: two tensors
# (..., T, Dh/2).
# Combine them with cosine and sine, and put the two results back where they
# came from: interleaved again, or one half after the other.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `first * cos - second * sin` and `first * sin + second * cos`; neighbours
# are `x[..., 0::2]` and `x[..., 1::2]`, and
# `torch.stack((…, …), -1).flatten(-2)` interleaves two results.
#
# </details>


# %% exercise="apply_rope" level=3 minutes=25
def apply_rope(
    x: Tensor,
    positions: Tensor,
    base: float = 1e4,
    *,
    interleaved: bool = True,
) -> Tensor:
    """Queries or keys, each pair of channels turned by its position.

    x: (..., T, Dh)
    positions: int64, broadcasts to (..., T)
    base: pair i turns by base ** (-2 i / Dh) radians a position
    interleaved: pairs are neighbours, or else channels i and i + Dh/2
    returns: x's shape and dtype
    raises ValueError: if Dh is odd
    source: Su et al. 2021, section 3.2
    """
    ### BEGIN SOLUTION
    Dh = x.shape[-1]
    if Dh % 2:
        raise ValueError(f"Dh is {Dh}: pairs of channels need an even width")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    i = torch.arange(0, Dh, 2, dtype=wide.dtype, device=x.device)
    angle = positions[..., None] * base ** (-i / Dh)
    cos, sin = angle.cos(), angle.sin()
    # (..., Dh/2 pairs, 2) or (..., 2, Dh/2 pairs)
    sizes, axis = ((-1, 2), -1) if interleaved else ((2, -1), -2)
    a, c = wide.unflatten(-1, sizes).unbind(axis)
    turned = torch.stack((a * cos - c * sin, a * sin + c * cos), axis)
    return turned.flatten(-2).to(x.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 3.5 Move weights between the two layouts
#
# **Goal:** reorder the rows of a query or key projection, so that a model
# trained with one pairing gives the same scores with the other.
#
# RoPE does not care where a pair stands, as long as its two channels are found
# and get the right frequency.
# Channels of queries and keys are rows of their projections, and a score sums
# over channels, so the rows of both projections may be reordered together.
#
# **Contract**
#
# - `w` is a projection's weight (H·Dh, D) or its bias (H·Dh,), rows head by
#   head; `n_heads` is H and Dh is even.
# - `to="half"`: the rows are made for interleaved pairs (2i, 2i + 1) and are
#   to serve half-split pairs (i, i + Dh/2).
#   `to="interleaved"`: the way back.
#   Pair i stays pair i, its first channel stays first, and every head keeps
#   its rows.
# - Any other `to`, such as `"Half"`, is a `ValueError`.
# - Return a tensor of the same shape and dtype.
#
# **Example:** one head, Dh = 6, the rows' numbers as a bias.
#
# ```python
# rope_layout(torch.tensor([0., 1., 2., 3., 4., 5.]), 1, "half")
# # [0., 2., 4., 1., 3., 5.]
# rope_layout(torch.tensor([0., 1., 2., 3., 4., 5.]), 1, "interleaved")
# # [0., 3., 1., 4., 2., 5.]
# ```
#
# **Why it matters:** Meta's Llama weights are interleaved and Hugging Face's
# are half-split, so every conversion script does this.
# If it is left out, nothing fails: the model loads and writes nonsense.
#
# <details>
# <summary>Hint 1: where does row r go?</summary>
#
# Within a head, write down pair and part (first or second) of each row in the
# interleaved layout.
# At which row does the half-split layout expect the same pair and part?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# See the rows of a head as a small table: interleaved rows fill a table
# (Dh/2 pairs, 2 parts) line by line, half-split rows a table
# (2 parts, Dh/2 pairs).
# So one layout is the other's table, transposed.
# Heads are a leading axis, and the columns of the weight a trailing one.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `w.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)` is one of
# the two directions.
#
# </details>


# %% exercise="rope_layout" level=3 minutes=20
def rope_layout(w: Tensor, n_heads: int, to: str) -> Tensor:
    """Rows of a q or k projection, reordered for the other RoPE layout.

    w: (H * Dh, D) or (H * Dh,), rows head by head, made for the layout that
        `to` does not name
    n_heads: H
    to: "half" (pairs i and i + Dh/2) or "interleaved" (2i and 2i + 1)
    returns: w's shape and dtype
    raises ValueError: for another layout
    """
    ### BEGIN SOLUTION
    if to not in ("half", "interleaved"):
        raise ValueError(f"to is {to!r}: use 'half' or 'interleaved'")
    # Interleaved rows are a table (pairs, parts), half-split (parts, pairs).
    table = (-1, 2) if to == "half" else (2, -1)
    return w.unflatten(0, (n_heads, *table)).transpose(1, 2).flatten(0, 2)
    ### END SOLUTION


# %% [markdown]
# ## 3.6 ALiBi: a penalty on distance
#
# **Goal:** make the bias that ALiBi adds to the scores, for any number of
# heads.
#
# No position enters the vectors at all.
# Instead, head h lowers the score of a key by its slope $m_h$ times the
# distance to the query.
# For H heads, H a power of two, the slopes are a geometric sequence that
# starts with its own ratio, $2^{-8/H}$:
#
# $$m_h = 2^{-8h/H}, \qquad h = 1, \dots, H$$
#
# For other H the sequences of two powers of two are joined, as the authors'
# code and BLOOM do it.
# Let n be the largest power of two below H: take the n slopes for n heads,
# then every other slope of the sequence for 2n heads (its first, third,
# fifth, …) until there are H.
#
# **Contract**
#
# - Return a tensor (H, Tq, Tk) in torch's default dtype, to be added to
#   scores: bias (h, i, j) is $-m_h$ times the distance of query i and key j.
# - The **newest query stands at the newest key**: with Tq = Tk query i stands
#   at position i, with Tq < Tk it stands at i + Tk − Tq.
#   `Tq > Tk` is possible too; queries that stand before the first key are not
#   looked at.
# - The causal mask is somebody else's work: every entry is **finite**, and
#   what you write for keys in the future is not looked at.
# - Judged is the softmax over the keys under a causal mask (with all content
#   scores equal).
#   So a bias that differs by a constant per row, $m_h\,j$ for example, is
#   right as well.
#
# **Example**
#
# ```python
# alibi_bias(8, 3, 3)[0]      # slope 1/2
# # [[ 0.0, -0.5, -1.0],
# #  [-0.5,  0.0, -0.5],
# #  [-1.0, -0.5,  0.0]]
# alibi_bias(8, 1, 3)[0]      # [[-1.0, -0.5, 0.0]]
# # slopes of 6 heads: 1/4, 1/16, 1/64, 1/256, then 1/2, 1/8
# ```
#
# **Why it matters:** a model trained with ALiBi on short texts keeps working
# on longer ones, since a distance that it never saw only means a smaller
# weight.
# With the sign wrong it prefers the oldest token; with slopes of another rule
# a loaded BLOOM is out of tune.
#
# <details>
# <summary>Hint 1: how far is a single query from the last key?</summary>
#
# When a model generates, Tq is 1 and the query is the newest token.
# At which position does it stand?
# And for 6 heads: which two powers of two are next to 6?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Positions of the keys are 0 … Tk − 1, positions of the queries the last Tq
# numbers of that list.
# Their differences are a matrix (Tq, Tk); each head multiplies it with its
# slope.
# Write the slopes for a power of two as a small function of its own, and call
# it once for n and once for 2n.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.arange(Tk - Tq, Tk)[:, None] - torch.arange(Tk)` are the distances;
# `powers(2 * n)[::2][: n_heads - n]` are the slopes that are missing.
#
# </details>


# %% exercise="alibi_bias" level=3 minutes=20
def alibi_bias(n_heads: int, Tq: int, Tk: int) -> Tensor:
    """Bias that grows with the distance of query and key, a slope a head.

    n_heads: H, any number from 1
    Tq, Tk: numbers of queries and keys; the last query is at the last key
    returns: (H, Tq, Tk), default dtype, finite; added to the scaled scores
    source: Press et al. 2022, section 3, and the authors' code
    """

    ### BEGIN SOLUTION
    def powers(n):
        return 2.0 ** (-8 / n * torch.arange(1, n + 1))

    n = 2 ** (n_heads.bit_length() - 1)
    slopes = torch.cat((powers(n), powers(2 * n)[::2][: n_heads - n]))
    distance = torch.arange(Tk - Tq, Tk)[:, None] - torch.arange(Tk)
    return -slopes[:, None, None] * distance.abs()
    ### END SOLUTION


# %% [markdown]
# ## 3.7 Stretch RoPE to longer texts
#
# **Goal:** compute the frequencies with which a model that was trained on
# `orig_max` positions reads `factor` times as many.
#
# At positions that were never trained, the slow pairs reach angles that the
# model has never seen.
# The remedies change the frequencies $\theta_i = b^{-2i/d}$, with
# d = `d_head` and b = `base`, and differ in which pairs they slow down.
#
# **Contract:** return `(inv_freq, attention_factor)`: a tensor (d/2,) in
# `float32` or `float64`, and a Python `float`.
# Frequencies are judged to a relative 5e-6, the attention factor to 1e-6.
# `d_head` is even and at least 4, `factor` is at least 1.
# With s = `factor` and L = `orig_max`:
#
# - `"linear"` slows all pairs alike: $\theta_i / s$.
# - `"ntk"` keeps the fastest pair and slows the slowest by exactly s, by a
#   larger base: $b' = b\,s^{\,d/(d-2)}$ and $\theta_i' = b'^{-2i/d}$.
# - `"llama3"` asks how many turns a pair makes in the original context:
#   $r_i = L\,\theta_i / 2\pi$.
#   Above `high_freq_factor` (keyword, default 4) turns the pair is kept, below
#   `low_freq_factor` (default 1) it becomes $\theta_i / s$.
#   In between the two are blended:
#   $\theta_i' = (1 - g)\,\theta_i / s + g\,\theta_i$ with
#   $g = (r_i - \mathrm{low}) / (\mathrm{high} - \mathrm{low})$.
# - `"yarn"` blends too, here as in its authors' code by the pair's number
#   (in their paper by the turns).
#   The pair that makes n turns has the (fractional) number
#   $i(n) = d \,\ln(L / 2\pi n) \,/\, (2 \ln b)$.
#   Let low be $i(n)$ for n = `beta_fast`, rounded down, but at least 0, and
#   high be $i(n)$ for n = `beta_slow`, rounded up, but at most d − 1.
#   (The limit is d − 1, as in Hugging Face's transformers, although there are
#   only d/2 pairs.)
#   The defaults of these keywords are 32 and 1.
#   Up to pair low nothing changes, from pair high on it is $\theta_i / s$, and
#   in between the share of $\theta_i / s$ grows linearly with i.
#   If high equals low, take high + 0.001.
#   The **attention factor** is $0.1 \ln s + 1$; for all other methods it is 1.
# - Any other method, such as `"dynamic"` or `"YaRN"`, is a `ValueError`.
#   A method is only given its own keywords.
#
# **Example**
#
# ```python
# rope_inv_freq(8, 1e4, "linear", 4.0, 2048)
# # [0.25, 0.025, 0.0025, 0.00025], 1.0
# rope_inv_freq(8, 1e4, "ntk", 4.0, 2048)
# # [1.0, 0.06300, 0.003969, 0.00025], 1.0
# rope_inv_freq(8, 1e4, "llama3", 4.0, 2048)
# # [1.0, 0.1, 0.008149, 0.00025], 1.0
# rope_inv_freq(8, 1e4, "yarn", 4.0, 2048)
# # low 1, high 3: [1.0, 0.1, 0.00625, 0.00025], 1.1386
# ```
#
# **Why it matters:** long-context models are mostly made by a short training
# with one of these.
# The attention factor multiplies cosine and sine, so that scores grow with
# its square: over longer texts the softmax has to be sharper.
#
# <details>
# <summary>Hint 1: which pairs know short distances, which long ones?</summary>
#
# A fast pair turns many times within the original context: it has seen all
# its angles, and tells neighbours apart.
# A slow pair has not finished one turn.
# Which of the two should be left alone?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Compute θ once; each method needs one or two lines more.
# Both blends have the form θ · (keep + (1 − keep) / s) with a `keep` between
# 0 and 1: clamp a straight line, in the number of turns for llama3, in the
# pair's number for yarn.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# yarn: `slow = ((torch.arange(d_head // 2) - low) / (high - low)).clamp(0, 1)`
# is the share of θ/s.
# llama3: `keep = ((turns - low) / (high - low)).clamp(0, 1)` is the share of
# θ itself.
#
# </details>


# %% exercise="rope_inv_freq" level=4 minutes=40
def rope_inv_freq(
    d_head: int,
    base: float,
    method: str,
    factor: float,
    orig_max: int,
    **kw: float,
) -> tuple[Tensor, float]:
    """RoPE frequencies for a context that is `factor` times as long.

    d_head: width of a head, even
    method: "linear", "ntk", "yarn" or "llama3"
    orig_max: positions in the context that the model was trained on
    kw: beta_fast=32, beta_slow=1 (yarn), in turns;
        low_freq_factor=1, high_freq_factor=4 (llama3), in turns
    returns: (d_head / 2,) in radians a position, float32 or float64; and the
        factor of cosine and sine, 1.0 except for yarn
    raises ValueError: for another method
    source: Peng et al. 2023, section 3; transformers, modeling_rope_utils
    """
    ### BEGIN SOLUTION
    exponent = -torch.arange(0, d_head, 2, dtype=torch.float64) / d_head
    theta = base**exponent
    if method == "linear":
        return theta / factor, 1.0
    if method == "ntk":
        return (base * factor ** (d_head / (d_head - 2))) ** exponent, 1.0
    if method == "llama3":
        low = kw.get("low_freq_factor", 1)
        high = kw.get("high_freq_factor", 4)
        turns = orig_max * theta / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return theta * (keep + (1 - keep) / factor), 1.0
    if method == "yarn":

        def pair(turns):
            per_turn = orig_max / (2 * math.pi * turns)
            return d_head * math.log(per_turn) / (2 * math.log(base))

        low = max(math.floor(pair(kw.get("beta_fast", 32))), 0)
        high = min(math.ceil(pair(kw.get("beta_slow", 1))), d_head - 1)
        span = (high - low) or 0.001
        slow = ((torch.arange(d_head // 2) - low) / span).clamp(0, 1)
        scaled = theta * (1 - slow + slow / factor)
        return scaled, 0.1 * math.log(factor) + 1
    raise ValueError(
        f"method is {method!r}: use 'linear', 'ntk', 'yarn' or 'llama3'"
    )
    ### END SOLUTION


# %% [markdown]
# ## 3.8 How wrong is an angle in half precision?
#
# **Goal:** compute by how many radians RoPE's angles are off when they are
# computed in a short dtype.
#
# `bfloat16` has 8 significant bits: near 1,000 its numbers are 4 apart.
# An angle near 1,000 radians, rounded to the nearest of them, may be off by 2
# before anything else goes wrong.
#
# **Contract**
#
# - The exact angles are $\mathrm{pos} \cdot \theta_i$ with
#   $\theta_i = b^{-2i/d}$, i = 0 … d/2 − 1, computed in `float64`
#   (d = `d_head`, b = `base`).
# - The short ones: round `pos` to `dtype`, round each exact $\theta_i$ to
#   `dtype`, multiply, round the product to `dtype`.
#   (Two tensors of that dtype, multiplied, do the last step by themselves.)
# - Return the largest absolute difference over the pairs, in radians, as a
#   Python `float`.
#   Compare in `float64`, and compare the angles as they are, **not** folded
#   into a turn: an error of 7 is 7.
# - `pos` is an `int` ≥ 0 that `dtype` can hold without overflow; `dtype` is a
#   floating torch dtype; for `float64` the error is 0.
#
# **Example**
#
# ```python
# rope_angle_error(257, torch.bfloat16, d_head=2)  # 1.0: 257 becomes 256
# rope_angle_error(1000, torch.bfloat16)           # 2.106
# rope_angle_error(1000, torch.float16)            # 0.1587
# rope_angle_error(1000, torch.float32)            # 1.67e-05
# ```
#
# **Why it matters:** a model cast to `bfloat16` as a whole casts its table of
# angles as well, and gets vague about positions as soon as texts are long.
# Libraries keep the angles in `float32` and convert only cosine and sine.
#
# <details>
# <summary>Hint 1: how many roundings are there?</summary>
#
# Three: the position, the frequency, the product.
# Which of them hurts pair 0, whose θ is exactly 1?
# Which hurts the others?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Compute the frequencies in `float64` and keep them.
# Convert copies of the position and of the frequencies to `dtype` and multiply
# these.
# Widen the product to `float64` before you subtract: a difference taken in
# `dtype` would be rounded once more.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.tensor(pos, dtype=dtype) * theta.to(dtype)`, with `theta` in
# `float64`.
#
# </details>


# %% exercise="rope_angle_error" level=4 minutes=15
def rope_angle_error(
    pos: int, dtype: torch.dtype, d_head: int = 64, base: float = 1e4
) -> float:
    """Largest error of RoPE's angles at one position in a dtype's arithmetic.

    pos: the position
    dtype: to which position, frequencies and product are each rounded
    returns: radians, not folded into a turn; the largest over the pairs
    """
    ### BEGIN SOLUTION
    i = torch.arange(0, d_head, 2, dtype=torch.float64)
    theta = base ** (-i / d_head)
    short = torch.tensor(pos, dtype=dtype) * theta.to(dtype)
    return (short.double() - pos * theta).abs().max().item()
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
# Attention now knows who stands where.
# What it cannot do yet is compute: it averages values, and an average of
# values is linear in them.
# Chapter 4 puts attention into a block, beside a part that thinks about each
# position by itself.
