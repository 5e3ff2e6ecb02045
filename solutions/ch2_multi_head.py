# %% [markdown]
# # Multi-head attention
#
# **Goal:** run several attentions side by side in one layer, load anybody's
# weights into it, know what it costs, and build its three common relatives:
# cross-attention, grouped queries, and a cache of latents.
#
# Read [the chapter](../book/ch2_multi_head.md) first, or keep it open beside
# this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# Run the check as often as you like; it explains what it finds.
# The tasks do not need each other, so you can skip one and come back.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, T the sequence length (Tq queries, Tk
#   keys where the two differ), D the model width `d_model`, H the number of
#   heads `n_heads`, Dh = D / H the width of a head.
# - **Heads are column blocks.** Head h owns the columns h·Dh to (h + 1)·Dh of
#   the queries, keys and values; its output goes to the same columns of what
#   enters `out_proj`.
# - **Scale.** Scores are divided by √Dh, unless the task says otherwise.
# - **Names of layers.** The check loads weights into your modules, so the
#   parameters have to have the names and shapes in the docstring, and no
#   others may exist.
#   `state_dict` holds the parameters and nothing else: a buffer, if you want
#   one, is made with `persistent=False`.
#   `nn.Linear(n, m)` called `q_proj` makes `q_proj.weight` (m, n) and
#   `q_proj.bias` (m,).
#   How you initialise is yours, but no two matrices may start equal.
# - **Boolean masks** are `True` where a query **may look**.
#   `nn.MultiheadAttention` means the opposite by its masks.
#   What is hidden has no influence at all, whatever finite numbers stand
#   there.
# - **Causal masks** are aligned to the lower right: the last query sees every
#   key.
# - **Queries that see nothing** get zeros **before** `out_proj`, so that
#   their output is `out_proj`'s bias; all gradients are finite.
# - **Errors.** Where a task asks for a `ValueError`, its text has the two
#   numbers that do not fit.
#   When they are sizes of a module, its constructor raises it.
# - **Precision.** `float64` stays `float64` all the way, `float32` stays
#   `float32`.
#   The dtype of a module's parameters is that of its inputs: `float32` as it
#   is built, `float64` after `module.double()`.
# - **Device.** After `module.to(device)`, everything that the module uses is
#   on that device, also if it has been called before.
# - **Autograd.** Gradients flow from the results to the arguments and to all
#   parameters.
# - **Arguments** are never modified, and may be non-contiguous views.
# - **Calls.** A call depends on its arguments and the parameters alone, not on
#   the calls before it; parameters may change between two calls.
#   Only the layer of task 2.2 has dropout; the others compute in train mode
#   what they compute in eval mode.
#
# `F.scaled_dot_product_attention` is allowed in this notebook as a part of an
# answer; `nn.MultiheadAttention` is not allowed in tasks 2.2 and 2.5, where it
# would be the answer.

# %% provided="imports"
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder import check

# %% [markdown]
# ## 2.1a Split into heads
#
# **Goal:** turn the columns of one tensor into heads that can work in
# parallel, without copying a number to the wrong place.
#
# **Contract**
#
# - `x` is a tensor (B, T, D) of any dtype.
#   Return a tensor (B, H, T, Dh) of its dtype: head h holds the columns h·Dh
#   to (h + 1)·Dh of every position, in their order.
# - When `n_heads` does not divide D, raise a `ValueError` that names both
#   numbers.
# - Whether the result is a view or a copy, contiguous or not, is yours.
#
# **Example**
#
# ```python
# x = torch.tensor([[[0, 1, 2, 3],
#                    [4, 5, 6, 7]]])  # 2 positions of 4 columns
# split_heads(x, 2)
# # [[[[0, 1], [4, 5]],      head 0
# #   [[2, 3], [6, 7]]]]     head 1
# ```
#
# `x.view(1, 2, 2, 2)` has the right shape too, and puts all of position 0
# into head 0: `[[0, 1], [2, 3]]`.
#
# **Why it matters:** that wrong view runs, trains, and mixes positions: head
# 0 attends within the first 1/H of the sequence.
# No shape check can tell.
#
# <details>
# <summary>Hint 1: in which order do the numbers lie in memory?</summary>
#
# `view` never moves a number: it only reads the same row of numbers with
# other bracket positions.
# Within a position, which two axes can the D columns be read as?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# First cut the last axis alone, D into (H, Dh): this is a mere change of
# brackets.
# Now the axes are position, head, column.
# Then swap the two in the middle, which `view` cannot do.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `x.unflatten(-1, (n_heads, -1))`, and then `transpose(1, 2)`.
#
# </details>


# %% exercise="split_heads" level=1 minutes=10
def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Columns as heads.

    x: (B, T, D), any dtype
    n_heads: H, a divisor of D
    returns: (B, H, T, D / H); head h has the h-th block of columns
    raises ValueError: when H does not divide D; the text has both numbers
    """
    ### BEGIN SOLUTION
    width = x.shape[-1]
    if width % n_heads:
        raise ValueError(f"{n_heads} heads do not divide {width} columns")
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    ### END SOLUTION


# %% [markdown]
# ## 2.1b Merge the heads
#
# **Goal:** the way back: the heads' outputs side by side, one row a position.
#
# **Contract**
#
# - `x` is a tensor (B, H, T, Dh) of any dtype.
#   Return a tensor (B, T, H·Dh) of its dtype: at each position head 0's
#   numbers, then head 1's, and so on.
# - Merging undoes splitting.
#
# **Example**
#
# ```python
# x = torch.tensor([[[[0, 1], [4, 5]],
#                    [[2, 3], [6, 7]]]])
# merge_heads(x)
# # [[[0, 1, 2, 3],
# #   [4, 5, 6, 7]]]
# ```
#
# `x.reshape(1, 2, 4)` has the right shape too, and gives
# `[[0, 1, 4, 5], [2, 3, 6, 7]]`: two positions of head 0 in one row.
#
# **Why it matters:** someone who splits and merges with views alone gets the
# input back, so the round trip looks right; the attention in between still
# worked on scrambled heads.
#
# <details>
# <summary>Hint 1: which two axes have to be neighbours?</summary>
#
# H and Dh are to become one axis.
# Which axis stands between them now?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Swap the head axis and the time axis, so that a position's heads lie side by
# side; then join the last two axes.
# After a swap the numbers do not lie in the order of the brackets any more,
# so `view` refuses, while `reshape` and `flatten` copy where they must.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `x.transpose(1, 2)`, and then `flatten(2)`.
#
# </details>


# %% exercise="merge_heads" level=1 minutes=5
def merge_heads(x: Tensor) -> Tensor:
    """Heads as columns: undoes `split_heads`.

    x: (B, H, T, Dh), any dtype
    returns: (B, T, H * Dh); head h has the h-th block of columns
    """
    ### BEGIN SOLUTION
    return x.transpose(1, 2).flatten(2)
    ### END SOLUTION


# %% [markdown]
# ## 2.2 Causal multi-head self-attention
#
# **Goal:** the layer that every GPT block contains, in a form into which
# trained weights can be loaded.
#
# $$\begin{gathered}
# \mathrm{out} = \mathrm{concat}(o_1, \dots, o_H)\, W_O + b_O, \\
# o_h = \mathrm{softmax}\!\left(\frac{Q_h K_h^\top}{\sqrt{D_h}} +
# \mathrm{mask}\right) V_h
# \end{gathered}$$
#
# **Contract**
#
# - `MultiHeadSelfAttention(d_model, n_heads, max_context_length,
#   attn_dropout=0.0, out_dropout=0.0, bias=True)`.
#   A `ValueError` that names both numbers when `n_heads` does not divide
#   `d_model`.
# - Parameters: `qkv_proj.weight` (3D, D), of which the rows are first all of
#   q, then all of k, then all of v; `out_proj.weight` (D, D); with
#   `bias=True` also `qkv_proj.bias` (3D,) and `out_proj.bias` (D,), with
#   `bias=False` neither.
# - `forward(x)` takes (B, T, D) and returns (B, T, D).
#   Position t sees positions 0 to t.
#   A T beyond `max_context_length` is a `ValueError` that names both numbers;
#   any T up to it is fine, and may change from call to call.
# - `forward(x, return_weights=True)` returns `(out, weights)` with the
#   weights (B, H, T, T), query axis before key axis, **before** dropout, so
#   that their rows sum to 1 in train mode too.
# - Dropout acts in train mode only: `attn_dropout` on the attention weights,
#   `out_dropout` on the result of `out_proj`.
#   Each entry is dropped or kept by itself, and anew in each call; what is
#   left is divided by 1 − p.
# - A stored mask, if you want one, moves with the module and, as all buffers,
#   stays out of `state_dict`: it is made of the configuration, not learnt.
#
# **Example:** all projections are identities, without biases.
# Head 0 sees the first column only, head 1 the second.
#
# ```python
# m = MultiHeadSelfAttention(2, 2, max_context_length=8, bias=False)
# m.qkv_proj.weight.data = torch.eye(2).repeat(3, 1)
# m.out_proj.weight.data = torch.eye(2)
# out, weights = m(torch.eye(2)[None], return_weights=True)
# # out         [[[1.000, 0.000], [0.500, 0.731]]]
# # weights[0]  head 0 [[1, 0], [0.500, 0.500]]
# #             head 1 [[1, 0], [0.269, 0.731]]
# ```
#
# With one head and the same weights, the second row of `out` is
# [0.330, 0.670]: one distribution has to serve both columns.
#
# **Why it matters:** there are as many numbers in this layer for 12 heads as
# for one, and they compute 12 different lookups instead of one.
# The second layout of `qkv_proj` in circulation (task 2.4) has the same
# shapes, so only numbers can tell whether loaded weights are in place.
#
# <details>
# <summary>Hint 1: what changes shape, and where?</summary>
#
# Write the shape of every intermediate result beside its line: (B, T, 3D),
# three times (B, T, D), three times (B, H, T, Dh), (B, H, T, T), and back.
# Which two steps are those of tasks 2.1a and 2.1b?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Project once and cut the result into q, k and v.
# Split each into heads; score, scale, hide the future with −inf, softmax over
# the keys.
# Keep these weights for the caller, and use a dropped-out version of them for
# the average of the values.
# Merge, project, drop out again.
# `nn.Dropout` knows the module's mode by itself; a functional dropout has to
# be told.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `q, k, v = self.qkv_proj(x).chunk(3, dim=-1)`, and in the constructor
# `self.register_buffer("mask", mask, persistent=False)`.
#
# </details>


# %% exercise="MultiHeadSelfAttention" level=2 minutes=30
class MultiHeadSelfAttention(nn.Module):
    """Causal self-attention with several heads.

    d_model: width D of inputs and outputs
    n_heads: H, a divisor of D
    max_context_length: the largest T, in tokens
    attn_dropout: probability of zeroing an attention weight, in train mode
    out_dropout: the same for an entry of the output
    bias: whether both projections have a bias
    parameters: qkv_proj.weight (3D, D), qkv_proj.bias (3D,): rows q, k, v;
        out_proj.weight (D, D), out_proj.bias (D,)
    raises ValueError: when H does not divide D; the text has both numbers
    source: Vaswani et al. 2017, section 3.2.2
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        max_context_length: int,
        attn_dropout: float = 0.0,
        out_dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % n_heads:
            raise ValueError(f"{n_heads} heads do not divide {d_model}")
        self.n_heads = n_heads
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.attn_dropout = nn.Dropout(attn_dropout)
        self.out_dropout = nn.Dropout(out_dropout)
        size = (max_context_length, max_context_length)
        future = torch.ones(size, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)
        ### END SOLUTION

    def forward(
        self, x: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend to this and earlier positions.

        x: (B, T, D)
        returns: (B, T, D); with return_weights also the weights before
            dropout (B, H, T, T)
        raises ValueError: when T exceeds the context; the text has both
            numbers
        """
        ### BEGIN SOLUTION
        T, limit = x.shape[1], len(self.future)
        if T > limit:
            raise ValueError(f"{T} positions exceed the context of {limit}")
        # (B, T, 3D) → (3, B, H, T, Dh)
        parts = self.qkv_proj(x).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.future[:T, :T], -math.inf)
        weights = torch.softmax(scores, dim=-1)
        heads = self.attn_dropout(weights) @ v
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        out = self.out_dropout(out)
        return (out, weights) if return_weights else out
        ### END SOLUTION


# %% [markdown]
# ## 2.3 What attention costs
#
# **Goal:** count parameters, operations and memory of the layer of task 2.2,
# and see which of them the number of heads changes.
#
# **Contract**
#
# - Return a dict with exactly these keys (Python integers, or floats of the
#   same value):
#   - `params`: all numbers in the four projections q, k, v, out, **with their
#     biases**;
#   - `projection_flops`: the four projections of a batch of B sequences of T
#     tokens, without the additions of biases;
#   - `score_flops`: the products $QK^\top$ and weights · V of all heads, for
#     the whole batch, without scaling and softmax;
#   - `score_bytes`: the memory of **one** tensor of scores (B, H, T, T).
# - A multiply-add counts as 2 FLOPs.
#   Attention is counted dense: a causal mask saves nothing here.
# - `n_heads` divides `d_model`; nothing has to be checked.
#
# **Example**
#
# ```python
# attention_cost(B=1, T=2, d_model=4, n_heads=2)
# # {"params": 80, "projection_flops": 256, "score_flops": 64,
# #  "score_bytes": 32}
# attention_cost(8, 1024, 768, 12)["score_bytes"]  # 402_653_184
# ```
#
# **Why it matters:** that second number is 384 MiB for a single layer, in one
# direction, for scores that nobody looks at.
# "Heads are free" is right for parameters and matrix products and wrong for
# this tensor.
# FlashAttention (chapter 6) is the art of never storing it.
#
# <details>
# <summary>Hint 1: what does a product of matrices cost?</summary>
#
# A product (m, n) @ (n, p) has m·p results.
# How many multiply-adds does each of them take?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# A projection is a product of (B·T, D) with (D, D).
# In a head, $QK^\top$ is (T, Dh) @ (Dh, T), and the product with the values
# (T, T) @ (T, Dh): as expensive.
# Multiply by the number of heads and by the batch, and look at what becomes
# of H·Dh.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `2 * m * n * p` FLOPs for a product (m, n) @ (n, p): four of the first kind,
# and B·H times two of the second.
#
# </details>


# %% exercise="attention_cost" level=2 minutes=15
def attention_cost(
    B: int, T: int, d_model: int, n_heads: int, bytes_per_element: int = 4
) -> dict:
    """Parameters, operations and memory of one multi-head attention.

    B: sequences in a batch; T: tokens in a sequence
    d_model: width, a multiple of n_heads
    bytes_per_element: size of one score, in bytes
    returns: {"params": numbers in the four projections and their biases,
        "projection_flops", "score_flops": FLOPs of a forward pass, a
        multiply-add being 2, "score_bytes": bytes of one (B, H, T, T)}
    """
    ### BEGIN SOLUTION
    d_head = d_model // n_heads
    return {
        "params": 4 * (d_model * d_model + d_model),
        "projection_flops": 4 * 2 * (B * T) * d_model * d_model,
        "score_flops": B * n_heads * 2 * (2 * T * d_head * T),
        "score_bytes": B * n_heads * T * T * bytes_per_element,
    }
    ### END SOLUTION


# %% [markdown]
# ## 2.4 Two layouts of the same projection
#
# **Goal:** bring a fused projection from one layout in circulation into the
# other, so that the heads compute what they computed before.
#
# Both layouts stack the rows of all queries, keys and values into one matrix
# (3D, D).
# Some code bases (GPT-NeoX, BLOOM, several courses) keep a head together:
# its q rows, its k rows, its v rows, then the next head.
# Others, task 2.2 among them, have the q rows of all heads first, then all k
# rows, then all v rows.
#
# **Contract**
#
# - The rows of `w` are laid out as (H, 3, Dh): for each head q, k, v, Dh rows
#   each.
#   Return the same rows laid out as (3, H, Dh).
# - `w` is a weight (3D, D) or a bias (3D,), of any dtype; `n_heads` divides D.
# - The result has `w`'s shape and dtype; no number changes, only rows move.
#
# **Example:** a bias for 2 heads of width 2, numbered.
#
# ```python
# qkv_per_head_to_cat(torch.arange(12), 2)
# # [0, 1, 6, 7,    q of head 0, q of head 1
# #  2, 3, 8, 9,    k of head 0, k of head 1
# #  4, 5, 10, 11]  v of head 0, v of head 1
# ```
#
# **Why it matters:** load a checkpoint in the wrong layout and nothing
# complains: shapes agree, the model runs, and it writes nonsense.
#
# <details>
# <summary>Hint 1: which axes does the row number hide?</summary>
#
# Row r belongs to a head, to one of three parts, and to a row in it.
# If r is read as three digits, which digit stands first in each layout?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Cut the first axis into (H, 3, Dh), swap the first two of these, and join
# all three again.
# Do it with the first axis only: a bias has no other, a weight keeps its
# columns.
# With three heads both orders move the same rows, so test with another number.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `w.unflatten(0, (n_heads, 3, -1))`, and then `transpose(0, 1)`.
#
# </details>


# %% exercise="qkv_per_head_to_cat" level=3 minutes=15
def qkv_per_head_to_cat(w: Tensor, n_heads: int) -> Tensor:
    """Rows of a fused projection from head-first to part-first order.

    w: (3D, D) or (3D,), rows laid out as (H, 3, Dh), any dtype
    n_heads: H, a divisor of D
    returns: w's shape and dtype, rows laid out as (3, H, Dh)
    """
    ### BEGIN SOLUTION
    rows = w.unflatten(0, (n_heads, 3, -1))
    return rows.transpose(0, 1).flatten(0, 2)
    ### END SOLUTION


# %% [markdown]
# ## 2.5 Attention to another sequence
#
# **Goal:** one module for self-attention and cross-attention, with padding
# and a causal mask, as an encoder-decoder needs it.
#
# **Contract**
#
# - `MultiHeadAttention(d_model, n_heads, kv_dim=None)`; `kv_dim` is the width
#   of what is attended to, `None` means `d_model`.
#   A `ValueError` that names both numbers when `n_heads` does not divide
#   `d_model`.
# - Parameters, all with biases: `q_proj` (D → D), `k_proj` and `v_proj`
#   (kv_dim → D), `out_proj` (D → D), as `nn.Linear` stores them.
# - `forward(q, kv=None, *, key_padding_mask=None, is_causal=False)`: `q` is
#   (B, Tq, D), `kv` is (B, Tk, kv_dim); the result is (B, Tq, D).
#   Queries come from `q`, keys and values from `kv`.
#   Without `kv`, they come from `q`, too.
# - `key_padding_mask` is boolean (B, Tk), `True` at keys that may be looked
#   at.
#   A mask belongs to its example and counts for all its heads and queries.
# - `is_causal=True` hides the future, aligned to the lower right: with 3
#   queries and 7 keys, the first query sees 5 keys.
#   With more queries than keys the first ones see nothing.
# - Both may be given, and then both apply.
# - A query that sees nothing gets zeros before `out_proj`.
#
# **Example:** all projections are identities, all biases 0.
# The third key is padding.
#
# ```python
# m = MultiHeadAttention(2, 1)
# for layer in (m.q_proj, m.k_proj, m.v_proj, m.out_proj):
#     layer.weight.data, layer.bias.data = torch.eye(2), torch.zeros(2)
# q = torch.tensor([[[1.0, 0.0]]])
# kv = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
# m(q, kv, key_padding_mask=torch.tensor([[True, True, False]]))
# # [[[0.670, 0.330]]]
# m(q, kv, key_padding_mask=torch.tensor([[False, False, False]]))
# # [[[0.000, 0.000]]]
# ```
#
# **Why it matters:** the decoder of a translator, the image side of Stable
# Diffusion and Whisper's decoder all read another sequence through it.
# If its padding leaks, an answer depends on what else was in the batch.
#
# <details>
# <summary>Hint 1: which axes does each mask have?</summary>
#
# The scores are (B, H, Tq, Tk).
# The padding mask knows B and Tk, the causal mask knows Tq and Tk.
# Where do the missing axes have to be inserted, so that both broadcast?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Make one boolean tensor that is True where a query may look, from both
# masks.
# Give `F.scaled_dot_product_attention` this mask: it returns zeros for a
# query that sees nothing.
# Its own `is_causal` will not do here: it is aligned to the upper left, and
# does not go together with a mask.
# If you write the softmax yourself, treat the rows without any True before
# it, so that no NaN arises.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `key_padding_mask[:, None, None, :]`, and for the causal part
# `torch.ones(Tq, Tk, dtype=torch.bool, device=q.device).tril(Tk - Tq)`.
#
# </details>


# %% exercise="MultiHeadAttention" level=3 minutes=30
class MultiHeadAttention(nn.Module):
    """Attention of one sequence to another, or to itself.

    d_model: width D of queries and outputs
    n_heads: H, a divisor of D
    kv_dim: width of what is attended to; None: d_model
    parameters: q_proj.weight (D, D), k_proj.weight and v_proj.weight
        (D, kv_dim), out_proj.weight (D, D), each with a bias (D,)
    raises ValueError: when H does not divide D; the text has both numbers
    """

    def __init__(self, d_model: int, n_heads: int, kv_dim: int | None = None):
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % n_heads:
            raise ValueError(f"{n_heads} heads do not divide {d_model}")
        self.n_heads = n_heads
        kv_dim = d_model if kv_dim is None else kv_dim
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(kv_dim, d_model)
        self.v_proj = nn.Linear(kv_dim, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(
        self,
        q: Tensor,
        kv: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from q to kv.

        q: (B, Tq, D)
        kv: (B, Tk, kv_dim); None: q itself
        key_padding_mask: (B, Tk), boolean, True where a key may be seen
        is_causal: hide the future, the last query standing at the last key
        returns: (B, Tq, D); out_proj's bias where a query sees nothing
        """
        ### BEGIN SOLUTION
        kv = q if kv is None else kv
        Tq, Tk = q.shape[1], kv.shape[1]
        keep = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device)
        if is_causal:
            keep = keep.tril(Tk - Tq)
        if key_padding_mask is not None:
            keep = keep & key_padding_mask[:, None, None, :]
        # (B, T, D) → (B, H, T, Dh)
        heads = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for part in (self.q_proj(q), self.k_proj(kv), self.v_proj(kv))
        )
        out = F.scaled_dot_product_attention(*heads, attn_mask=keep)
        return self.out_proj(out.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# ## 2.6a Grouped queries
#
# **Goal:** attention in which several query heads share one head of keys and
# values, so that fewer of these have to be stored.
#
# **Contract**
#
# - `GroupedQueryAttention(d_model, n_heads, n_kv_heads)`.
#   A head is Dh = `d_model` / `n_heads` wide, key and value heads as well.
#   A `ValueError` that names both numbers when `n_heads` does not divide
#   `d_model`, and when `n_kv_heads` does not divide `n_heads`.
# - Parameters, all with biases: `q_proj` and `out_proj` (D → D), `k_proj` and
#   `v_proj` (D → n_kv_heads · Dh).
# - **Consecutive** query heads share: query head h uses key and value head
#   h // (n_heads / n_kv_heads).
# - `forward(x, *, is_causal=False)` takes and returns (B, T, D).
#   With `is_causal` position t sees positions 0 to t, without it every
#   position sees all.
# - With `n_kv_heads == n_heads` this is multi-head attention, with
#   `n_kv_heads == 1` multi-query attention.
#
# **Example:** who looks where, for 6 query heads.
#
# | query head | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | uses, of 3 | 0 | 0 | 1 | 1 | 2 | 2 |
# | uses, of 2 | 0 | 0 | 0 | 1 | 1 | 1 |
# | uses, of 1 | 0 | 0 | 0 | 0 | 0 | 0 |
#
# ```python
# m = GroupedQueryAttention(768, 12, 4)
# m.k_proj.weight.shape  # (256, 768): a third of 768 rows
# ```
#
# **Why it matters:** Llama-3-70B has 64 query heads and 8 for keys and
# values, so its cache is 8 times smaller than that of multi-head attention.
# The groups are a convention of the stored weights: with another one, query
# heads meet strangers' keys.
#
# <details>
# <summary>Hint 1: which of 0 1 2 0 1 2 and 0 0 1 1 2 2 do you make?</summary>
#
# torch has `repeat` and `repeat_interleave`.
# Try both on `torch.arange(3)`.
# Which one gives the row "uses, of 3" of the table?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Split q into n_heads heads, k and v into n_kv_heads heads of the same width.
# Repeat each key head for its whole group, and each value head likewise.
# From there on it is multi-head attention.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `k.repeat_interleave(n_heads // n_kv_heads, dim=1)` for k of the shape
# (B, n_kv_heads, T, Dh).
#
# </details>


# %% exercise="GroupedQueryAttention" level=3 minutes=25
class GroupedQueryAttention(nn.Module):
    """Self-attention whose query heads share keys and values in groups.

    d_model: width D
    n_heads: H query heads, a divisor of D; Dh = D / H
    n_kv_heads: key and value heads, a divisor of H
    parameters: q_proj.weight and out_proj.weight (D, D), k_proj.weight and
        v_proj.weight (n_kv_heads * Dh, D), each with a bias
    raises ValueError: when a number does not divide; the text has both
    source: Ainslie et al. 2023, section 2.2
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int):
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % n_heads:
            raise ValueError(f"{n_heads} heads do not divide {d_model}")
        if n_heads % n_kv_heads:
            raise ValueError(
                f"{n_kv_heads} key heads do not divide {n_heads} heads"
            )
        self.d_head = d_model // n_heads
        self.group = n_heads // n_kv_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.d_head)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.d_head)
        self.out_proj = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(self, x: Tensor, *, is_causal: bool = False) -> Tensor:
        """Attend within x.

        x: (B, T, D)
        is_causal: whether a position sees only itself and earlier ones
        returns: (B, T, D)
        """
        ### BEGIN SOLUTION
        # (B, T, heads · Dh) → (B, heads, T, Dh)
        q, k, v = (
            project(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (part.repeat_interleave(self.group, dim=1) for part in (k, v))
        # T is both Tq and Tk, so this is_causal is the usual one.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.out_proj(out.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# ## 2.6b From many key heads to few
#
# **Goal:** start grouped queries from a trained multi-head layer, by pooling
# the projections of its key and value heads.
#
# **Contract**
#
# - `w` is the weight (H·Dh, n) or the bias (H·Dh,) of a `k_proj` or a
#   `v_proj`, in any floating dtype; head h owns the rows h·Dh to (h + 1)·Dh.
# - Return (n_kv_heads·Dh, n) or (n_kv_heads·Dh,) in `w`'s dtype: each new
#   head is the mean of the heads that will share it, H / n_kv_heads
#   **consecutive** ones.
# - `n_kv_heads` divides `n_heads`; nothing has to be checked.
#
# **Example:** 4 heads of width 1, pooled to 2.
#
# ```python
# pool_kv_heads(torch.tensor([[0.0], [2.0], [4.0], [8.0]]), 4, 2)
# # [[1.0], [6.0]]
# ```
#
# **Why it matters:** this is how a multi-head model is turned into a grouped
# one without training it anew: pool, then train on a few per cent of the
# tokens.
# The mean does better than picking one head of each group (Ainslie et al.
# 2023).
#
# <details>
# <summary>Hint 1: which rows are averaged with which?</summary>
#
# With Dh = 64, row 0 of head 0 is row 0 of `w`.
# Which row is row 0 of head 1?
# Is the neighbour of row 0 ever averaged with it?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Read the first axis as (n_kv_heads, group, Dh) and average over the middle
# one; then join the two that are left.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `w.unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1))`, and then a mean
# over axis 1.
#
# </details>


# %% exercise="pool_kv_heads" level=3 minutes=10
def pool_kv_heads(w: Tensor, n_heads: int, n_kv_heads: int) -> Tensor:
    """Key or value projection of a multi-head layer, pooled for groups.

    w: (H * Dh, n) or (H * Dh,), floating
    n_heads: H; n_kv_heads: a divisor of H
    returns: (n_kv_heads * Dh, n) or (n_kv_heads * Dh,), w's dtype; means over
        consecutive heads
    source: Ainslie et al. 2023, section 2.1
    """
    ### BEGIN SOLUTION
    group = n_heads // n_kv_heads
    heads = w.unflatten(0, (n_kv_heads, group, -1))
    return heads.mean(dim=1).flatten(0, 1)
    ### END SOLUTION


# %% [markdown]
# ## Given for task 2.7: the rotation by position
#
# Task 2.7 needs rotary positions, which chapter 3 explains.
# Here is all that you need of them: `rotate` turns each pair of neighbouring
# numbers by an angle that grows with the position, so that the dot product of
# a rotated query and a rotated key knows how far apart they stand.
# `rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))` is
# [[1, 0], [0.540, 0.841]]: no turn at position 0, one radian at position 1.


# %% provided="rotate"
def rotate(x: Tensor) -> Tensor:
    """Turn the pairs (2i, 2i + 1) at position t by t / 10000^(2i / n).

    x: (..., T, n), n even; positions 0 to T - 1
    returns: x's shape and dtype
    """
    T, n = x.shape[-2:]
    t, i = torch.arange(T).to(x), torch.arange(0, n, 2).to(x)
    angle = t[:, None] / 10_000 ** (i / n)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turned.flatten(-2)


# %% [markdown]
# ## 2.7 A cache of latents
#
# **Goal:** multi-head latent attention (MLA), which stores one short vector a
# token instead of the keys and values of all heads, and computes with it
# directly.
#
# For a token $x_t$ there is a latent $c_t = W_{\mathrm{down}}\, x_t$ of
# `d_latent` numbers.
# Every head's key and value are linear in it: $k_{t,h} = U^K_h c_t$,
# $v_{t,h} = U^V_h c_t$, with $U^K_h$ and $U^V_h$ the head's Dh rows of `k_up`
# and `v_up`.
# Positions come in by a second, small part of the score: each head has a
# rotary query, and **one** rotary key is shared by all heads.
#
# $$s_{tj,h} = \frac{q_{t,h} \cdot k_{j,h} + \mathrm{rot}(q^r_{t,h}) \cdot
# \mathrm{rot}(k^r_j)}{\sqrt{D_h + d_{\mathrm{rope}}}}$$
#
# **Contract**
#
# - `LatentAttention(d_model, n_heads, d_latent, d_rope)`; `d_rope` is even.
#   A `ValueError` that names both numbers when `n_heads` does not divide
#   `d_model`.
# - Parameters, none with a bias, as `nn.Linear` stores them: `q_proj`
#   (D → H·Dh), `q_rope_proj` (D → H·d_rope), `kv_down` (D → d_latent),
#   `k_rope_proj` (D → d_rope), `k_up` and `v_up` (d_latent → H·Dh),
#   `out_proj` (H·Dh → D).
#   `k_up` is applied as a module or through its weight, as you like.
# - Heads are row blocks of all projections to a size with H, of `q_rope_proj`
#   too.
#   The latent is used as it comes, without a norm.
# - `forward(x)` takes and returns (B, T, D) and is causal: position t sees
#   positions 0 to t, counted from 0 for `rotate`.
#   Rotary queries and the rotary key are rotated, nothing else is.
# - `cache(x)` returns what has to be stored: (B, T, d_latent + d_rope), the
#   latent, then the rotary key, **already rotated**.
#   Gradients flow from it, too.
# - `forward(x, absorb=True)` gives the same numbers and the same gradients
#   without forming a key or a value of any head from the latents, in train
#   mode as well: no product of `k_up` or `v_up` with the latents, neither of
#   all tokens at once nor of one after another, and none of a matrix into
#   which `q_proj` or `out_proj` has been multiplied.
#   (`v_up` meets their averages. The first token's average is its latent.)
#
# **Example:** what is stored for two equal tokens.
#
# ```python
# m = LatentAttention(2, 1, d_latent=1, d_rope=2)
# m.kv_down.weight.data = torch.tensor([[2.0, 3.0]])
# m.k_rope_proj.weight.data = torch.eye(2)
# m.cache(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
# # [[[2.000, 1.000, 0.000],
# #   [2.000, 0.540, 0.841]]]
# ```
#
# **Why it matters:** DeepSeek-V3 has 128 heads of width 128, so multi-head
# attention would store 32,768 numbers for each token in each layer; its
# latent has 512 and its rotary key 64, together 576.
# Absorbing is what makes this fast: while generating, the keys of the past
# are never rebuilt.
#
# <details>
# <summary>Hint 1: who may carry the matrix?</summary>
#
# $q \cdot (K c) = (K^\top q) \cdot c$.
# On the left, K meets every token of the past; on the right, whom does it
# meet?
# And why could a rotation between q and K not be moved in the same way?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Explicit: project the latents up to keys and values, split into heads, put
# the rotary parts behind the plain ones (the rotary key is the same for all
# heads), and attend with one scale for the joined width.
# Absorbed: cut `k_up.weight` into its heads' blocks (Dh, d_latent) and carry
# each head's query over to d_latent numbers; its key is then the latent
# itself, for all heads.
# The weighted average of latents is carried back by each head's block of
# `v_up.weight`, as an average of $U^V_h c_j$ is $U^V_h$ times that of $c_j$.
# The scale stays what it was.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.einsum("bhtd,hdc->bhtc", q, k_up)` with
# `k_up = self.k_up.weight.unflatten(0, (n_heads, -1))`.
#
# </details>


# %% exercise="LatentAttention" level=5 minutes=60
class LatentAttention(nn.Module):
    """Causal multi-head attention over a shared latent for keys and values.

    d_model: width D
    n_heads: H, a divisor of D; Dh = D / H
    d_latent: width of the latent; d_rope: width of the rotary part, even
    parameters: q_proj.weight (D, D), q_rope_proj.weight (H * d_rope, D),
        kv_down.weight (d_latent, D), k_rope_proj.weight (d_rope, D),
        k_up.weight and v_up.weight (D, d_latent), out_proj.weight (D, D)
    raises ValueError: when H does not divide D; the text has both numbers
    source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1
    """

    def __init__(self, d_model: int, n_heads: int, d_latent: int, d_rope: int):
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % n_heads:
            raise ValueError(f"{n_heads} heads do not divide {d_model}")
        self.n_heads = n_heads
        self.d_latent = d_latent
        self.scale = 1 / math.sqrt(d_model // n_heads + d_rope)
        widths = {
            "q_proj": (d_model, d_model),
            "q_rope_proj": (d_model, n_heads * d_rope),
            "kv_down": (d_model, d_latent),
            "k_rope_proj": (d_model, d_rope),
            "k_up": (d_latent, d_model),
            "v_up": (d_latent, d_model),
            "out_proj": (d_model, d_model),
        }
        for name, (n, m) in widths.items():
            self.add_module(name, nn.Linear(n, m, bias=False))
        ### END SOLUTION

    def cache(self, x: Tensor) -> Tensor:
        """What has to be stored of each token.

        x: (B, T, D)
        returns: (B, T, d_latent + d_rope), the latent, then the rotated
            rotary key
        """
        ### BEGIN SOLUTION
        return torch.cat([self.kv_down(x), rotate(self.k_rope_proj(x))], -1)
        ### END SOLUTION

    def forward(self, x: Tensor, absorb: bool = False) -> Tensor:
        """Attend to this and earlier positions.

        x: (B, T, D)
        absorb: whether to work on the latents, without keys and values
        returns: (B, T, D)
        """
        ### BEGIN SOLUTION
        split = (self.n_heads, -1)
        q = self.q_proj(x).unflatten(-1, split).transpose(1, 2)
        q_rope = self.q_rope_proj(x).unflatten(-1, split).transpose(1, 2)
        stored = self.cache(x)[:, None]  # (B, 1, T, d_latent + d_rope)
        latent, k_rope = stored.tensor_split([self.d_latent], dim=-1)
        # (H, Dh, d_latent)
        k_up = self.k_up.weight.unflatten(0, split)
        v_up = self.v_up.weight.unflatten(0, split)
        if absorb:
            q, k, v = q @ k_up, latent, latent
        else:
            k, v = latent @ k_up.mT, latent @ v_up.mT
        scores = q @ k.mT + rotate(q_rope) @ k_rope.mT
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = (scores * self.scale).masked_fill(future, -math.inf)
        heads = torch.softmax(scores, dim=-1) @ v
        if absorb:
            heads = heads @ v_up.mT
        return self.out_proj(heads.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# ## 2.8 The same output from other weights
#
# **Goal:** for given attention weights, find quite different ones that give
# the very same output.
#
# A query averages n values of d numbers each with its weights w.
# If n is larger than d + 1, there are more weights than equations, and the
# weights cannot be recovered from the output.
#
# **Contract**
#
# - `w` (n,) are positive weights that sum to 1, `v` (n, d) the values; both
#   numpy arrays in `float64`.
#   n ≥ 3d and n ≥ 12, and the d + 1 largest weights sum to at most 0.6.
#   Columns of `v` may depend on each other.
# - Return weights `w2` (n,) in `float64` with
#   - no entry below 0 and a sum of 1 (up to rounding: −1e-12 and 1e-9),
#   - the same output: no entry of `w2 @ v` differs from that of `w @ v` by
#     more than 1e-9 times the largest absolute value in `v` (or 1, if that
#     is larger),
#   - a total variation distance $\tfrac12 \sum_i |w_i - w'_i|$ above 0.3.
# - There are infinitely many such weights; any will do.
#   numpy is enough; `scipy.optimize` is allowed, where it is installed.
#
# **Example** (smaller than the contract, so that you can see it): three
# values 0, 1, 2 with equal weights average to 1.
# So do the weights [0.5, 0, 0.5], at a distance of 1/3, and [0, 1, 0], at a
# distance of 2/3.
#
# **Why it matters:** a picture of attention weights shows one of many
# explanations of an output.
# "The model looked at this word" needs more evidence than a bright square.
# (The other side: Wiegreffe and Pinter 2019 ask which alternatives a trained
# model could really produce.)
#
# <details>
# <summary>Hint 1: in which directions may the weights move?</summary>
#
# Let w move to w + s·u.
# Which d + 1 linear equations must u satisfy, so that neither the output nor
# the sum changes?
# How large is the space of such u?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Stack the values' d columns and a column of ones, and take a vector of the
# null space.
# Move along it until the first weight reaches 0, and drop that weight for
# good.
# One step is seldom far enough: repeat with the weights that are left, as
# long as there are more than d + 1 of them.
# What remains are at most d + 1 positive weights, and they stand far from w,
# since w has at most 0.6 there.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `np.linalg.svd(A)[2][-1]` is a unit vector u with A @ u = 0, where the
# matrix A has more columns than rows.
#
# </details>


# %% exercise="alternative_weights" level=4 minutes=40
def alternative_weights(w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Other attention weights with the same output.

    w: (n,), positive, sum to 1; v: (n, d); float64; n >= 3d, n >= 12
    returns: (n,), float64, at least 0, sum 1; the same output to 1e-9; more
        than 0.3 away from w in total variation, half the sum of |differences|
    source: Jain and Wallace 2019, section 4.2.2, for the question
    """
    ### BEGIN SOLUTION
    # By Carathéodory's theorem d + 1 of the values are enough.
    rows = np.vstack([v.T, np.ones(len(w))])
    left, weights = np.arange(len(w)), w.copy()
    while len(left) > len(rows):
        u = np.linalg.svd(rows[:, left])[2][-1]
        # The entries of u sum to 0, so some are negative.
        falling = u < 0
        step = (weights[left] / -u)[falling].min()
        weights[left] += step * u
        weights[left[falling & (weights[left] < 1e-14)]] = 0.0
        left = left[weights[left] > 0]
    return weights
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
# Leave the causal mask out of task 2.2, and the layer takes a sentence for a
# bag of words: shuffle the tokens, and the outputs are shuffled, not changed.
# Task 2.7 borrowed a rotation to tell the tokens where they stand; chapter 3
# builds it.
