"""Other people's answers to lesson 2: multi-head attention.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. Modules
that make a mistake derive from a right one and change one step of it.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autograder.answers import oracle, right, wrong

# Helpers: the parts of an answer that a mistake leaves intact.


def _check(whole, part):
    if whole % part:
        raise ValueError(f"{part} does not divide {whole}")


def _split(x, n_heads):
    """(B, T, D) → (B, H, T, Dh)."""
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


def _merge(x):
    """(B, H, T, Dh) → (B, T, D)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _causal(scores, ahead=0):
    """Lower-right keep mask for scores (..., Tq, Tk), `ahead` too many."""
    Tq, Tk = scores.shape[-2:]
    keep = torch.ones(Tq, Tk, dtype=torch.bool, device=scores.device)
    return keep.tril(Tk - Tq + ahead)


def _hide(scores, keep):
    return scores.masked_fill(~keep, -math.inf)


def _softmax(scores, keep=None):
    """Softmax over the visible keys; rows without one give zeros."""
    if keep is None:
        return scores.softmax(-1)
    keep = keep.expand_as(scores)
    dead = ~keep.any(-1, keepdim=True)
    weights = scores.masked_fill(~keep & ~dead, -math.inf).softmax(-1)
    return weights.masked_fill(~keep, 0)


# 2.1 split_heads


@oracle("split_heads", evidence="column slices, one after the other")
def split_heads_slices(x, n_heads):
    D = x.shape[-1]
    if D % n_heads != 0:
        raise ValueError(f"D = {D} is not a multiple of n_heads = {n_heads}")
    d = D // n_heads
    return torch.stack(
        [x[:, :, h * d : (h + 1) * d] for h in range(n_heads)], dim=1
    )


@right("split_heads", evidence="K24 einops")
def split_heads_einops(x, n_heads):
    from einops import EinopsError, rearrange

    try:
        return rearrange(x, "b t (h d) -> b h t d", h=n_heads)
    except EinopsError as error:
        raise ValueError(f"{x.shape[-1]} columns, {n_heads} heads") from error


@right("split_heads", evidence="K24 movedim; K15 a view as the result")
def split_heads_movedim(x, n_heads):
    _check(x.shape[-1], n_heads)
    return x.unflatten(-1, (n_heads, -1)).movedim(-2, 1)


@right("split_heads", evidence="chunk and stack, contiguous result")
def split_heads_chunks(x, n_heads):
    if x.size(2) // n_heads * n_heads != x.size(2):
        raise ValueError(f"n_heads={n_heads} does not divide D={x.size(2)}")
    return torch.stack(x.chunk(n_heads, dim=2), 1).contiguous()


@right("split_heads", evidence="K03 explicit loops over heads and columns")
def split_heads_loops(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"{D} % {n_heads} != 0")
    d = D // n_heads
    out = x.new_zeros(B, n_heads, T, d)
    for h in range(n_heads):
        for i in range(d):
            out[:, h, :, i] = x[:, :, h * d + i]
    return out


@wrong(
    "split_heads",
    evidence="M079 FuxiCTR#30; ✂",
    hint=(
        "You give the tensor the final shape with a view (or reshape) alone. "
        "That never moves a number, so head 0 gets the first positions with "
        "all their columns instead of all positions with the first columns. "
        "Cut the last axis into two first, then swap axes."
    ),
)
def split_heads_view(x, n_heads):
    B, T, D = x.shape
    _check(D, n_heads)
    return x.reshape(B, n_heads, T, D // n_heads)


@wrong(
    "split_heads",
    evidence="M080",
    hint=(
        "You cut the columns into (Dh, H) instead of (H, Dh): each head gets "
        "every H-th column rather than a block of neighbours. In a head-first "
        "order, the head is the slower of the two axes."
    ),
)
def split_heads_strided(x, n_heads):
    B, T, D = x.shape
    _check(D, n_heads)
    return x.reshape(B, T, D // n_heads, n_heads).permute(0, 3, 1, 2)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "The head axis still stands behind the time axis: what you return is "
        "(B, T, H, Dh). The product of queries and keys works on the last two "
        "axes, so these have to be T and Dh: swap axes 1 and 2."
    ),
)
def split_heads_no_transpose(x, n_heads):
    B, T, D = x.shape
    _check(D, n_heads)
    return x.reshape(B, T, n_heads, D // n_heads)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "n_heads is the number of heads, and you take it for their width. The "
        "width is D / n_heads."
    ),
)
def split_heads_count_as_width(x, n_heads):
    B, T, D = x.shape
    _check(D, n_heads)
    return x.reshape(B, T, D // n_heads, n_heads).transpose(1, 2)


@wrong(
    "split_heads",
    evidence="M084",
    hint=(
        "Examples and heads are mixed up: the heads are joined with the batch "
        "as (H, B) and taken apart as (B, H). With a batch of one, or as many "
        "heads as examples, the shape hides it. Keep the batch axis first all "
        "the way."
    ),
)
def split_heads_batch_and_heads(x, n_heads):
    B, T, D = x.shape
    _check(D, n_heads)
    folded = torch.cat(x.split(D // n_heads, -1), 0)  # (H·B, T, Dh)
    return folded.reshape(B, n_heads, T, D // n_heads)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "Each head comes out with its last two axes swapped, columns before "
        "positions. What is due is (B, H, T, Dh)."
    ),
)
def split_heads_columns_before_time(x, n_heads):
    _check(x.shape[-1], n_heads)
    return _split(x, n_heads).transpose(-2, -1)


@wrong(
    "split_heads",
    evidence="M097",
    hint=(
        "When H does not divide D you drop the last columns in silence. "
        "Whoever configures 3 heads for 10 columns has made a mistake and "
        "wants to know: raise a ValueError that names both numbers."
    ),
)
def split_heads_truncates(x, n_heads):
    d = x.shape[-1] // n_heads
    return _split(x[..., : d * n_heads], n_heads)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "A width that does not divide ends in whatever error the reshape "
        "raises, which speaks of shapes rather than of the cause. Test it "
        "first, and raise a ValueError that names D and n_heads."
    ),
)
def split_heads_library_error(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "You check divisibility with assert. That raises an AssertionError, "
        "and vanishes when Python runs with -O. Raise a ValueError, whose "
        "text has both numbers."
    ),
)
def split_heads_asserts(x, n_heads):
    assert x.shape[-1] % n_heads == 0, (x.shape[-1], n_heads)
    return _split(x, n_heads)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "Your ValueError does not say which numbers do not fit. Put D and "
        "n_heads into its text, so that it can be mended without a debugger."
    ),
)
def split_heads_mute_error(x, n_heads):
    if x.shape[-1] % n_heads:
        raise ValueError("n_heads must divide the width")
    return _split(x, n_heads)


@wrong(
    "split_heads",
    evidence="common",
    hint=(
        "You go through numpy or .data or .detach(): the numbers are right "
        "and the gradient ends here, so nothing before this step would ever "
        "learn."
    ),
)
def split_heads_detached(x, n_heads):
    _check(x.shape[-1], n_heads)
    return _split(x.detach(), n_heads)


@wrong(
    "split_heads",
    evidence="hunt: the widening of lesson 1, without its way back",
    hint=(
        "Half-precision numbers come back as float32. Nothing is computed "
        "here, so nothing has to be widened: keep the dtype of x."
    ),
)
def split_heads_half_returns_float(x, n_heads):
    if x.is_floating_point():
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    return split_heads_slices(x, n_heads)


# 2.1 merge_heads


@oracle("merge_heads", evidence="head by head, side by side")
def merge_heads_cat(x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


@right("merge_heads", evidence="K24 einops")
def merge_heads_einops(x):
    from einops import rearrange

    return rearrange(x, "b h t d -> b t (h d)")


@right("merge_heads", evidence="contiguous and view, as in nanoGPT")
def merge_heads_contiguous_view(x):
    B, H, T, d = x.shape
    return x.transpose(1, 2).contiguous().view(B, T, H * d)


@right("merge_heads", evidence="K03 loops; K15 result not contiguous")
def merge_heads_columns_first(x):
    B, H, T, d = x.shape
    out = x.new_zeros(H * d, B, T)
    for h in range(H):
        for i in range(d):
            out[h * d + i] = x[:, h, :, i]
    return out.permute(1, 2, 0)


@wrong(
    "merge_heads",
    evidence="M083 family; jsbaan#6; ✂",
    hint=(
        "You join the axes with a reshape alone, without bringing the head "
        "axis beside Dh first. A row of the result then holds several "
        "positions of one head instead of one position of all heads."
    ),
)
def merge_heads_reshape(x):
    B, H, T, d = x.shape
    return x.reshape(B, T, H * d)


@wrong(
    "merge_heads",
    evidence="M083",
    hint=(
        "You join the columns as (Dh, H): column 0 of every head, then column "
        "1 of every head. The head is the slower axis: all of head 0 first."
    ),
)
def merge_heads_columns_interleaved(x):
    return x.permute(0, 2, 3, 1).flatten(2)


@wrong(
    "merge_heads",
    evidence="common",
    hint=(
        "After the transpose the numbers do not lie in the order of the axes, "
        "so view cannot join them and raises. Use reshape or flatten, which "
        "copy where they must, or .contiguous() before the view."
    ),
)
def merge_heads_view_after_transpose(x):
    B, H, T, d = x.shape
    return x.transpose(1, 2).view(B, T, H * d)


@wrong(
    "merge_heads",
    evidence="M098",
    hint=(
        "You average the heads instead of putting them side by side. What "
        "they found separately is lost, and the width is Dh instead of D."
    ),
)
def merge_heads_mean(x):
    return x.mean(1) if x.is_floating_point() else x.float().mean(1)


@wrong(
    "merge_heads",
    evidence="M098 family",
    hint=(
        "You add the heads up instead of putting them side by side: the width "
        "is Dh instead of H·Dh."
    ),
)
def merge_heads_sum(x):
    return x.sum(1)


@wrong(
    "merge_heads",
    evidence="M084",
    hint=(
        "The result mixes examples: you fold heads and batch together and "
        "unfold them in the other order. Each row of the result may hold "
        "numbers of one example only."
    ),
)
def merge_heads_batch_and_heads(x):
    B, H, T, d = x.shape
    folded = x.reshape(H, B, T, d)
    return folded.permute(1, 2, 0, 3).reshape(B, T, H * d)


@wrong(
    "merge_heads",
    evidence="common",
    hint=(
        "The heads are joined along the time axis, one after the other: (B, "
        "H·T, Dh). They belong side by side, along the columns."
    ),
)
def merge_heads_along_time(x):
    return x.flatten(1, 2)


@wrong(
    "merge_heads",
    evidence="common",
    hint=(
        "The heads come out in reverse order. Head 0 owns the first block of "
        "columns."
    ),
)
def merge_heads_reversed(x):
    return _merge(x.flip(1))


@wrong(
    "merge_heads",
    evidence="common",
    hint=(
        "You go through numpy or .data or .detach(): the numbers are right "
        "and the gradient ends here, so nothing before this step would ever "
        "learn."
    ),
)
def merge_heads_detached(x):
    return _merge(x.detach())


@wrong(
    "merge_heads",
    evidence="hunt: the widening of lesson 1, without its way back",
    hint=(
        "Half-precision numbers come back as float32. Nothing is computed "
        "here, so nothing has to be widened: keep the dtype of x."
    ),
)
def merge_heads_half_returns_float(x):
    if x.is_floating_point():
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    return merge_heads_cat(x)


# 2.2 MultiHeadSelfAttention


@oracle(
    "MultiHeadSelfAttention",
    evidence=("nn.MultiheadAttention's own function, given the weights"),
)
class SelfAttentionLibrary(nn.Module):
    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        attn_dropout=0.0,
        out_dropout=0.0,
        bias=True,
    ):
        super().__init__()
        _check(d_model, n_heads)
        self.H, self.limit = n_heads, max_context_length
        self.p, self.p_out = attn_dropout, out_dropout
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias)
        self.out_proj = nn.Linear(d_model, d_model, bias)

    def attend(self, x, **kwargs):
        x = x.transpose(0, 1)
        T = len(x)
        hide = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        out, weights = F.multi_head_attention_forward(
            x,
            x,
            x,
            x.shape[-1],
            self.H,
            self.qkv_proj.weight,
            self.qkv_proj.bias,
            None,
            None,
            False,
            out_proj_weight=self.out_proj.weight,
            out_proj_bias=self.out_proj.bias,
            attn_mask=hide,
            average_attn_weights=False,
            **kwargs,
        )
        return out.transpose(0, 1), weights

    def forward(self, x, return_weights=False):
        if x.shape[1] > self.limit:
            raise ValueError(f"T = {x.shape[1]}, context {self.limit}")
        out, _ = self.attend(x, training=self.training, dropout_p=self.p)
        out = F.dropout(out, self.p_out, self.training)
        if not return_weights:
            return out
        return out, self.attend(x, training=False, dropout_p=0.0)[1]


class _SelfAttention(nn.Module):
    """A right answer in steps, so that a mistake can change one of them."""

    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        attn_dropout=0.0,
        out_dropout=0.0,
        bias=True,
    ):
        super().__init__()
        self.fits(d_model, n_heads)
        self.H, self.limit = n_heads, max_context_length
        self.p, self.p_out = attn_dropout, out_dropout
        self.layers(d_model, bias)

    def fits(self, d_model, n_heads):
        _check(d_model, n_heads)

    def layers(self, d_model, bias):
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def short(self, T):
        if T > self.limit:
            raise ValueError(f"{T} tokens, but the context has {self.limit}")

    def parts(self, x):
        return self.qkv_proj(x).chunk(3, -1)

    def split(self, x):
        return _split(x, self.H)

    def merge(self, x):
        return _merge(x)

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])

    def keep(self, scores):
        return _causal(scores)

    def weigh(self, scores):
        return _hide(scores, self.keep(scores)).softmax(-1)

    def drop(self, weights):
        return F.dropout(weights, self.p, self.training)

    def join(self, weights, v):
        return weights @ v

    def finish(self, merged):
        return F.dropout(self.out_proj(merged), self.p_out, self.training)

    def told(self, weights):
        return weights

    def forward(self, x, return_weights=False):
        self.short(x.shape[1])
        q, k, v = (self.split(part) for part in self.parts(x))
        weights = self.weigh(self.scores(q, k))
        out = self.finish(self.merge(self.join(self.drop(weights), v)))
        return (out, self.told(weights)) if return_weights else out


@right(
    "MultiHeadSelfAttention",
    evidence="K27 functional dropout, no mask stored, one step a method",
)
class SelfAttentionSteps(_SelfAttention):
    pass


@right("MultiHeadSelfAttention", evidence="F.sdpa as a part; weights by hand")
class SelfAttentionFused(_SelfAttention):
    def forward(self, x, return_weights=False):
        self.short(x.shape[1])
        q, k, v = (self.split(part) for part in self.parts(x))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p * self.training
        )
        out = self.finish(self.merge(out))
        if not return_weights:
            return out
        return out, self.weigh(self.scores(q, k))


@right(
    "MultiHeadSelfAttention",
    evidence="K02 einsum; K06 scale on both; K08 "
    "additive buffer; K16 a named tuple would do as well",
)
class SelfAttentionEinsum(nn.Module):
    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        attn_dropout=0.0,
        out_dropout=0.0,
        bias=True,
    ):
        super().__init__()
        if d_model != d_model // n_heads * n_heads:
            raise ValueError(f"{d_model=}, {n_heads=}")
        self.h = n_heads
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.drops = nn.ModuleList(
            [nn.Dropout(attn_dropout), nn.Dropout(out_dropout)]
        )
        mask = torch.full((max_context_length,) * 2, -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x, return_weights=False):
        B, T, D = x.shape
        if T > len(self.mask):
            raise ValueError(f"{T} > {len(self.mask)}")
        qkv = self.qkv_proj(x).view(B, T, 3, self.h, D // self.h)
        q, k, v = qkv.unbind(2)
        root = (D // self.h) ** 0.25
        scores = torch.einsum("bqhd,bkhd->bhqk", q / root, k / root)
        weights = (scores + self.mask[:T, :T]).softmax(3)
        heads = torch.einsum("bhqk,bkhd->bqhd", self.drops[0](weights), v)
        out = self.drops[1](self.out_proj(heads.reshape(B, T, D)))
        return [out, weights] if return_weights else out


@right(
    "MultiHeadSelfAttention",
    evidence="K03 loops over heads; K22 heads "
    "first; K23 sum of per-head output projections",
)
class SelfAttentionHeadByHead(_SelfAttention):
    def forward(self, x, return_weights=False):
        self.short(x.shape[1])
        D, d = x.shape[-1], x.shape[-1] // self.H
        W, b = self.qkv_proj.weight, self.qkv_proj.bias
        total, seen = 0, []
        for h in range(self.H):
            rows = [slice(p * D + h * d, p * D + h * d + d) for p in range(3)]
            q, k, v = (x @ W[r].T + (0 if b is None else b[r]) for r in rows)
            seen.append(self.weigh(self.scores(q, k)))
            head = self.drop(seen[-1]) @ v
            total = total + head @ self.out_proj.weight[:, rows[0]].T
        if self.out_proj.bias is not None:
            total = total + self.out_proj.bias
        out = F.dropout(total, self.p_out, self.training)
        return (out, torch.stack(seen, 1)) if return_weights else out


@right(
    "MultiHeadSelfAttention",
    evidence="K05 detached maximum; K22 heads folded into the batch; K34 bmm",
)
class SelfAttentionFolded(_SelfAttention):
    def weigh(self, scores):
        B, H, T, _ = scores.shape
        flat = scores.flatten(0, 1) + torch.where(
            _causal(scores), 0.0, -math.inf
        )
        e = (flat - flat.amax(-1, keepdim=True).detach()).exp()
        return (e / e.sum(-1, keepdim=True)).view(B, H, T, T)

    def join(self, weights, v):
        out = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1))
        return out.unflatten(0, v.shape[:2])


def _self(name, evidence, hint):
    return wrong(
        "MultiHeadSelfAttention", evidence=f"{name} {evidence}", hint=hint
    )


@_self(
    "M079",
    "FuxiCTR#30, annotated-transformer#17; ✂",
    (
        "The heads are made by a view into (B, H, T, Dh) of a tensor that "
        "lies as (B, T, H, Dh): positions and columns are scrambled and the "
        "causal mask hides the wrong things. View as (B, T, H, Dh), then swap "
        "axes 1 and 2."
    ),
)
class SelfAttentionSplitByView(_SelfAttention):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, self.H, T, D // self.H)


@_self(
    "M083",
    "jsbaan#6; ✂",
    (
        "The heads are merged by a reshape without swapping the head and time "
        "axes back first, so a row of what enters out_proj holds several "
        "positions of one head."
    ),
)
class SelfAttentionMergeByReshape(_SelfAttention):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@_self(
    "M079",
    "both at once (D2: causality and round trip hold); ✂",
    (
        "Both the split into heads and the merge are plain reshapes. They "
        "undo each other, so the round trip looks right, but in between a "
        "head holds whole positions instead of columns. Swap the time and "
        "head axes in both."
    ),
)
class SelfAttentionSplitAndMergeByView(SelfAttentionSplitByView):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@_self(
    "M080",
    "",
    (
        "The columns are cut as (Dh, H) instead of (H, Dh), so each head gets "
        "every H-th column. Trained weights keep a head's columns together: "
        "the head is the slower axis."
    ),
)
class SelfAttentionStridedHeads(_SelfAttention):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, D // self.H, self.H).permute(0, 3, 1, 2)


@_self(
    "M083",
    "",
    (
        "The merged columns are in (Dh, H) order: column 0 of every head "
        "first. All of head 0 comes first, then all of head 1."
    ),
)
class SelfAttentionInterleavedMerge(_SelfAttention):
    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


@_self(
    "M080",
    "with M083: every invariant holds (D2)",
    (
        "Both the split and the merge take the columns in (Dh, H) order. They "
        "agree with each other, so only the grouping of columns into heads is "
        "wrong, and only loaded weights show it. Split as (H, Dh)."
    ),
)
class SelfAttentionStridedBothWays(SelfAttentionStridedHeads):
    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


@_self(
    "M084",
    "gazelle93#1",
    (
        "Examples and heads are mixed: they are folded into one axis in the "
        "order (H, B) and taken apart in the order (B, H). One example then "
        "sees another. Keep the batch first."
    ),
)
class SelfAttentionMixesExamples(_SelfAttention):
    def join(self, weights, v):
        B, H, T, d = v.shape
        out = (weights @ v).transpose(0, 1).reshape(B, H, T, d)
        return out


@_self(
    "M016",
    "tt-metal#56789",
    (
        "The scores are divided by the root of the number of heads. What "
        "makes them spread is the number of terms in a dot product, the width "
        "Dh of one head."
    ),
)
class SelfAttentionScaleByHeads(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.H)


@_self(
    "M017",
    "attorch#14",
    (
        "The scale is a constant that fits one head width only. Take it from "
        "the width of your heads: 1/√Dh."
    ),
)
class SelfAttentionConstantScale(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT / 8


@_self(
    "M018",
    "",
    (
        "The scores are divided by the root of the sequence length. The right "
        "divisor is √Dh: the last axis of the queries, not the time axis."
    ),
)
class SelfAttentionScaleByLength(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-2])


@_self(
    "M020",
    "",
    (
        "The scores are multiplied by √Dh instead of divided by it, which "
        "makes the softmax nearly one-hot."
    ),
)
class SelfAttentionMultiplied(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT * math.sqrt(q.shape[-1])


@_self(
    "common",
    "D2: only given weights show it",
    (
        "The scores are divided by √D, the width of the model. A head's dot "
        "product has only Dh = D / H terms: divide by √Dh."
    ),
)
class SelfAttentionScaleByModel(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-1] * self.H)


@_self(
    "common",
    "",
    ("The scores are not scaled. Divide them by √Dh before the softmax."),
)
class SelfAttentionNoScale(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT


@_self(
    "M021",
    "",
    (
        "The scores are divided by Dh instead of √Dh: the root is missing, or "
        "the scale is applied twice. F.scaled_dot_product_attention divides "
        "by √Dh by itself, so do not scale the queries before it."
    ),
)
class SelfAttentionScaledTwice(_SelfAttention):
    def scores(self, q, k):
        return q @ k.mT / q.shape[-1]


@_self(
    "M024",
    "PyTorch-NLP#2, labmlai#146",
    (
        "The softmax runs over the queries (dim=-2). Each query needs a "
        "distribution over the keys, which are the last axis."
    ),
)
class SelfAttentionSoftmaxOverQueries(_SelfAttention):
    def weigh(self, scores):
        return _hide(scores, self.keep(scores)).softmax(-2).nan_to_num()


@_self(
    "M025",
    "jadore801120#52",
    (
        "The softmax runs over the head axis (dim=1). It belongs over the "
        "keys, dim=-1, for each head by itself."
    ),
)
class SelfAttentionSoftmaxOverHeads(_SelfAttention):
    def weigh(self, scores):
        return scores.softmax(1) * self.keep(scores)


@_self(
    "M026",
    "detr#247",
    (
        "One softmax runs over the heads and keys together, so the heads "
        "share one unit of weight. Every head has a softmax of its own, over "
        "the keys."
    ),
)
class SelfAttentionJointSoftmax(_SelfAttention):
    def weigh(self, scores):
        B, H, T, _ = scores.shape
        hidden = _hide(scores, self.keep(scores))
        flat = hidden.transpose(1, 2).reshape(B, T, H * T).softmax(-1)
        return flat.reshape(B, T, H, T).transpose(1, 2)


@_self(
    "M031",
    "self-attention-gan#17",
    (
        "The attention matrix is transposed before it meets the values, so "
        "each position collects what others give to it rather than what it "
        "looks for, and sees the future. Weights (T, T) @ values (T, Dh), as "
        "they are."
    ),
)
class SelfAttentionTransposedWeights(_SelfAttention):
    def join(self, weights, v):
        return weights.mT @ v


@_self(
    "M032",
    "",
    (
        "The average is taken over the keys, and the values are never used. "
        "Multiply the weights with v."
    ),
)
class SelfAttentionKeysAsValues(_SelfAttention):
    def parts(self, x):
        q, k, _ = super().parts(x)
        return q, k, k


@_self(
    "M034",
    "pytorch-image-models#2236",
    (
        "The mask is multiplied into the weights after the softmax. The "
        "future then still stands in every denominator, and the rows sum to "
        "less than 1. Put −inf into the scores before the softmax."
    ),
)
class SelfAttentionMaskAfterSoftmax(_SelfAttention):
    def weigh(self, scores):
        return scores.softmax(-1) * self.keep(scores)


@_self(
    "M035",
    "pointer-generator#88",
    (
        "The mask is multiplied in after the softmax and the rows are "
        "normalised again. When a hidden score is far above the visible ones, "
        "these have underflowed to 0 by then. Hide with −inf before the "
        "softmax."
    ),
)
class SelfAttentionMaskedThenRenormalised(_SelfAttention):
    def weigh(self, scores):
        weights = scores.softmax(-1) * self.keep(scores)
        return weights / (weights.sum(-1, keepdim=True) + 1e-30)


@_self(
    "M048",
    "M037: any finite fill",
    (
        "Hidden scores are filled with a finite number such as −20 or 1e-9. "
        "Where the visible scores lie lower, the future wins. Fill with −inf."
    ),
)
class SelfAttentionFiniteFill(_SelfAttention):
    def weigh(self, scores):
        return scores.masked_fill(~self.keep(scores), -20.0).softmax(-1)


@_self(
    "M048",
    "M049: −1e9",
    (
        "Hidden scores are filled with a large finite number such as −1e4 or "
        "−1e9. Visible scores may lie below it, and then the future wins. "
        "Fill with −inf."
    ),
)
class SelfAttentionLargeFill(_SelfAttention):
    def weigh(self, scores):
        return scores.masked_fill(~self.keep(scores), -1e9).softmax(-1)


@_self(
    "M040",
    "ARENA's test names it",
    (
        "Everything is NaN. Either a 0/1 mask is multiplied by −inf, and "
        "0·(−inf) = NaN at the visible places: use masked_fill, or "
        "torch.where. Or every key is hidden: keep the past and the diagonal."
    ),
)
class SelfAttentionMaskTimesInfinity(_SelfAttention):
    def weigh(self, scores):
        mask = (~self.keep(scores)).to(scores.dtype)
        return (scores + mask * -math.inf).softmax(-1)


@_self(
    "M042",
    "transformers#205",
    (
        "The mask of zeros and ones is added to the scores. That raises "
        "visible scores by 1 and hides nothing: hidden scores need −inf."
    ),
)
class SelfAttentionMaskAdded(_SelfAttention):
    def weigh(self, scores):
        return (scores + self.keep(scores)).softmax(-1)


@_self(
    "M052",
    "jadore801120#19, transformers#48760; M039",
    (
        "Nothing hides the future: every position sees the whole sequence. If "
        "you do call masked_fill, mind that it returns a new tensor. The "
        "layer is causal: position t sees 0 to t."
    ),
)
class SelfAttentionNoMask(_SelfAttention):
    def weigh(self, scores):
        return scores.softmax(-1)


@_self(
    "M053",
    "nanoGPT#170; M041",
    (
        "The mask is turned round: each position sees itself and the future, "
        "and not the past. Keep the lower triangle."
    ),
)
class SelfAttentionSeesFutureOnly(_SelfAttention):
    def keep(self, scores):
        return _causal(scores).mT


@_self(
    "M054",
    "pbloem/former#10",
    (
        "The diagonal is hidden as well, so no position sees itself, and the "
        "first one sees nothing, which gives NaN. Hide only what lies above "
        "the diagonal: triu with diagonal=1."
    ),
)
class SelfAttentionHidesItself(_SelfAttention):
    def keep(self, scores):
        return _causal(scores, -1)


@_self(
    "M056",
    "TransformerLens#284",
    (
        "Each position sees one token of the future: the triangle's diagonal "
        "is off by one. For next-token prediction that is the answer itself."
    ),
)
class SelfAttentionOneAhead(_SelfAttention):
    def keep(self, scores):
        return _causal(scores, 1)


@_self(
    "M085",
    "episodic-transformer-memory#22",
    (
        "The input is cut into heads first and one small matrix serves all "
        "heads. Each head has its own rows of the projections, and these see "
        "all D columns: qkv_proj is (3D, D)."
    ),
)
class SelfAttentionSmallSharedProjection(_SelfAttention):
    def layers(self, d_model, bias):
        d = d_model // self.H
        self.qkv_proj = nn.Linear(d, 3 * d, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x, return_weights=False):
        q, k, v = self.qkv_proj(_split(x, self.H)).chunk(3, -1)
        weights = self.weigh(self.scores(q, k))
        out = self.finish(self.merge(self.drop(weights) @ v))
        return (out, weights) if return_weights else out


@_self(
    "M088",
    "Kyubyong/transformer#117, d2l-en#439",
    (
        "There is no out_proj: the heads' outputs are returned side by side. "
        "The output projection is what lets heads speak to each other and "
        "belongs to the layer."
    ),
)
class SelfAttentionNoOutput(_SelfAttention):
    def layers(self, d_model, bias):
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)

    def finish(self, merged):
        return merged


@_self(
    "M088",
    "defined but never called",
    (
        "out_proj exists but is not used: setting it to 0 would change "
        "nothing. Pass the merged heads through it."
    ),
)
class SelfAttentionUnusedOutput(_SelfAttention):
    def finish(self, merged):
        return F.dropout(merged, self.p_out, self.training)


@_self(
    "M091",
    "",
    (
        "The output's bias is added once for each head. Add the heads' "
        "contributions first and the bias once."
    ),
)
class SelfAttentionBiasPerHead(_SelfAttention):
    def finish(self, merged):
        out = self.out_proj(merged)
        if self.out_proj.bias is not None:
            out = out + (self.H - 1) * self.out_proj.bias
        return F.dropout(out, self.p_out, self.training)


@_self(
    "M094",
    "Khaliladib11#1",
    (
        "Queries, keys and values are the same third of qkv_proj: the other "
        "rows are never used and get no gradient. Cut the projection into "
        "three."
    ),
)
class SelfAttentionOnePartForAll(_SelfAttention):
    def parts(self, x):
        q = super().parts(x)[0]
        return q, q, q


@_self(
    "K21",
    "overruled: the order of rows is documented",
    (
        "The rows of qkv_proj are read as k, q, v. The documented order is q, "
        "then k, then v. Your own training would not mind, loaded weights do."
    ),
)
class SelfAttentionKeysFirst(_SelfAttention):
    def parts(self, x):
        k, q, v = super().parts(x)
        return q, k, v


@_self(
    "K21",
    "overruled: the order of rows is documented",
    (
        "The rows of qkv_proj are read as v, k, q. The documented order is q, "
        "then k, then v. Your own training would not mind, loaded weights do."
    ),
)
class SelfAttentionValuesFirst(_SelfAttention):
    def parts(self, x):
        return tuple(reversed(super().parts(x)))


@_self(
    "common",
    "UvA's layout, task 2.4; D2",
    (
        "The rows of qkv_proj are read head by head (q, k and v of head 0, "
        "then of head 1). Here all q rows come first, then all k rows, then "
        "all v rows: cut into three before you cut into heads."
    ),
)
class SelfAttentionPerHeadLayout(_SelfAttention):
    def parts(self, x):
        rows = self.qkv_proj(x).unflatten(-1, (self.H, 3, -1))
        return tuple(part.flatten(-2) for part in rows.unbind(-2))


@_self(
    "M095",
    "LLMs-from-scratch#857",
    (
        "The weights are used untransposed: a linear layer computes x Wᵀ, "
        "with rows of W for outputs. The square out_proj hides the mix-up."
    ),
)
class SelfAttentionOutputTransposed(_SelfAttention):
    def finish(self, merged):
        out = F.linear(merged, self.out_proj.weight.T, self.out_proj.bias)
        return F.dropout(out, self.p_out, self.training)


@_self(
    "M096",
    "",
    (
        "Each head is as wide as the model, so the projections have H times "
        "too many rows. Heads share the width: Dh = D / H, and qkv_proj is "
        "(3D, D)."
    ),
)
class SelfAttentionFullWidthHeads(_SelfAttention):
    def layers(self, d_model, bias):
        wide = d_model * self.H
        self.qkv_proj = nn.Linear(d_model, 3 * wide, bias=bias)
        self.out_proj = nn.Linear(wide, d_model, bias=bias)


@_self(
    "M097",
    "nlp_course#131",
    (
        "Nobody checks that n_heads divides d_model. Raise a ValueError that "
        "names both numbers when the module is built."
    ),
)
class SelfAttentionUncheckedWidth(_SelfAttention):
    def fits(self, d_model, n_heads):
        pass


@_self(
    "common",
    "assert vanishes under -O",
    (
        "Divisibility is checked with assert, which raises an AssertionError "
        "and disappears under python -O. Raise a ValueError."
    ),
)
class SelfAttentionAsserts(_SelfAttention):
    def fits(self, d_model, n_heads):
        assert d_model % n_heads == 0, f"{d_model} % {n_heads}"


@_self(
    "common",
    "",
    (
        "The ValueError does not name the numbers that do not fit: say which "
        "d_model and which n_heads."
    ),
)
class SelfAttentionMuteError(_SelfAttention):
    def fits(self, d_model, n_heads):
        if d_model % n_heads:
            raise ValueError("d_model must be a multiple of n_heads")


@_self(
    "M098",
    "",
    (
        "The heads are averaged instead of put side by side: every block of "
        "columns gets the same mean, and what a head found is lost."
    ),
)
class SelfAttentionMeanOfHeads(_SelfAttention):
    def merge(self, x):
        return x.mean(1, keepdim=True).expand_as(x).transpose(1, 2).flatten(2)


@_self(
    "M101",
    "attorch#14, mlir-air#1428",
    (
        "The weights of one head meet the values of the next. An index is off "
        "by one head; with a single head nothing shows."
    ),
)
class SelfAttentionNextHeadsValues(_SelfAttention):
    def join(self, weights, v):
        return weights @ v.roll(1, 1)


@_self(
    "M103",
    "nanoGPT#240, pytorch#124464",
    (
        "Dropout acts in eval mode, too. A functional dropout, and the "
        "dropout_p of F.scaled_dot_product_attention, do not know the "
        "module's mode: pass self.training on, or 0 in eval mode."
    ),
)
class SelfAttentionDropoutInEval(_SelfAttention):
    def drop(self, weights):
        return F.dropout(weights, self.p)


@_self(
    "M104",
    "Megatron-LM#411",
    (
        "Once the module has been in eval mode, its dropout stays off for "
        "ever. Do not change p: ask self.training at every call."
    ),
)
class SelfAttentionDropoutOffForEver(_SelfAttention):
    def drop(self, weights):
        if not self.training:
            self.p = self.p_out = 0.0
        return super().drop(weights)


@_self(
    "M107",
    "min-decision-transformer#2",
    (
        "attn_dropout is applied to the heads' outputs. It belongs on the "
        "attention weights, so that a query loses a key at a time."
    ),
)
class SelfAttentionDropsHeadOutputs(_SelfAttention):
    def drop(self, weights):
        return weights

    def join(self, weights, v):
        return F.dropout(weights @ v, self.p, self.training)


@_self(
    "M109",
    "apex#816",
    (
        "What dropout leaves is not divided by 1 − p, so the output shrinks "
        "in train mode. Scale up what is left, as nn.Dropout does."
    ),
)
class SelfAttentionDropoutUnscaled(_SelfAttention):
    def drop(self, weights):
        if not self.training:
            return weights
        return weights * (torch.rand_like(weights) >= self.p)


@_self(
    "M109",
    "keep and drop probability",
    (
        "The dropout probability is taken for the probability to keep: with "
        "0.25 three weights in four are lost."
    ),
)
class SelfAttentionKeepsP(_SelfAttention):
    def drop(self, weights):
        p = 1 - self.p if self.p else 0.0
        return F.dropout(weights, p, self.training)


@_self(
    "hunt",
    "one mask for all heads",
    (
        "All heads lose the same attention weights. Each weight is dropped by "
        "itself, in each head anew."
    ),
)
class SelfAttentionDropsHeadsTogether(_SelfAttention):
    def drop(self, weights):
        return weights * super().drop(torch.ones_like(weights[:, :1]))


@_self(
    "hunt",
    "whole keys dropped",
    (
        "All queries of a sequence lose the same keys. Each attention weight "
        "is dropped by itself: one query may lose a key that another one "
        "keeps."
    ),
)
class SelfAttentionDropsKeys(_SelfAttention):
    def drop(self, weights):
        return weights * super().drop(torch.ones_like(weights[:, :, :1]))


@_self(
    "hunt",
    "whole positions dropped, F.dropout1d",
    (
        "out_dropout takes all entries of a position together. It acts on "
        "each entry by itself, as nn.Dropout does."
    ),
)
class SelfAttentionDropsPositions(_SelfAttention):
    def finish(self, merged):
        return F.dropout1d(self.out_proj(merged), self.p_out, self.training)


@_self(
    "hunt",
    "out_dropout one step too early",
    (
        "out_dropout acts on what goes into out_proj. It belongs on the "
        "result of out_proj."
    ),
)
class SelfAttentionDropsBeforeOutput(_SelfAttention):
    def finish(self, merged):
        return self.out_proj(F.dropout(merged, self.p_out, self.training))


@_self(
    "M110",
    "",
    (
        "attn_dropout does nothing: no attention weight is ever dropped in "
        "train mode. Drop after the softmax, before the product with the "
        "values."
    ),
)
class SelfAttentionNoWeightDropout(_SelfAttention):
    def drop(self, weights):
        return weights


@_self(
    "M110",
    "",
    (
        "out_dropout does nothing. Apply it to what out_proj returns, in "
        "train mode."
    ),
)
class SelfAttentionNoOutputDropout(_SelfAttention):
    def finish(self, merged):
        return self.out_proj(merged)


@_self(
    "common",
    "cs231n.github.io#278 family",
    (
        "Dropout comes before the softmax: a score of 0 is an ordinary score, "
        "so the key stays visible. Drop weights, after the softmax."
    ),
)
class SelfAttentionDropsScores(_SelfAttention):
    def scores(self, q, k):
        return F.dropout(super().scores(q, k), self.p, self.training)

    def drop(self, weights):
        return weights


@_self(
    "common",
    "facts.md, 19/33",
    (
        "The weights that you return have been through dropout, so their rows "
        "do not sum to 1 in train mode. Return those before dropout."
    ),
)
class SelfAttentionReturnsDropped(_SelfAttention):
    def forward(self, x, return_weights=False):
        self.short(x.shape[1])
        q, k, v = (self.split(part) for part in self.parts(x))
        weights = self.drop(self.weigh(self.scores(q, k)))
        out = self.finish(self.merge(weights @ v))
        return (out, weights) if return_weights else out


@_self(
    "M046",
    "keras#23038",
    (
        "With return_weights=True the output is computed in another way than "
        "without: the causal mask is missing there. Compute it once, and let "
        "the flag decide only about what is returned."
    ),
)
class SelfAttentionUnmaskedBranch(_SelfAttention):
    def forward(self, x, return_weights=False):
        if not return_weights:
            return super().forward(x)
        q, k, v = (self.split(part) for part in self.parts(x))
        weights = self.scores(q, k).softmax(-1)
        return self.finish(self.merge(self.drop(weights) @ v)), weights


@_self(
    "common",
    "nn.MultiheadAttention's default",
    (
        "The weights are averaged over the heads. Return one map a head: (B, "
        "H, T, T)."
    ),
)
class SelfAttentionAveragedWeights(_SelfAttention):
    def told(self, weights):
        return weights.mean(1)


@_self(
    "common",
    "",
    (
        "What you return as weights are the scores before the softmax. Their "
        "rows do not sum to 1."
    ),
)
class SelfAttentionReturnsScores(_SelfAttention):
    def forward(self, x, return_weights=False):
        out = super().forward(x)
        if not return_weights:
            return out
        q, k, _ = (self.split(part) for part in self.parts(x))
        scores = self.scores(q, k)
        return out, scores.masked_fill(~self.keep(scores), 0.0)


@_self(
    "common",
    "",
    (
        "The weights that you return are detached from the graph: a loss on "
        "them would teach nothing."
    ),
)
class SelfAttentionDetachedWeights(_SelfAttention):
    def told(self, weights):
        return weights.detach()


@_self(
    "common",
    "",
    (
        "Gradients do not reach all parameters: somewhere between x and the "
        "output a tensor is detached (detach, .data, numpy or no_grad)."
    ),
)
class SelfAttentionDetachedValues(_SelfAttention):
    def parts(self, x):
        q, k, v = super().parts(x)
        return q, k, v.detach()


@_self(
    "M112",
    "",
    (
        "The mask is an nn.Parameter: it would be counted, decayed and "
        "trained. Register it as a buffer with persistent=False."
    ),
)
class SelfAttentionMaskParameter(_SelfAttention):
    def layers(self, d_model, bias):
        super().layers(d_model, bias)
        keep = torch.ones(self.limit, self.limit).tril()
        self.mask = nn.Parameter(keep, requires_grad=False)


@_self(
    "M113",
    "LLMs-from-scratch#604, minGPT#120",
    (
        "The mask (or something else that is not learnt) is saved with the "
        "weights, so a checkpoint made with another context length cannot be "
        "loaded. Give register_buffer persistent=False."
    ),
)
class SelfAttentionSavedMask(_SelfAttention):
    def layers(self, d_model, bias):
        super().layers(d_model, bias)
        keep = torch.ones(self.limit, self.limit, dtype=torch.bool)
        self.register_buffer("mask", keep.tril())


@_self(
    "M063",
    "dolly#180, transformers#23534",
    (
        "The mask is an ordinary attribute (or made without a device), so it "
        "stays on the CPU when the module moves. Register it as a buffer, or "
        "make it on x.device."
    ),
)
class SelfAttentionMaskLeftBehind(_SelfAttention):
    def layers(self, d_model, bias):
        super().layers(d_model, bias)
        self.mask = torch.ones(self.limit, self.limit, dtype=torch.bool).tril()

    def keep(self, scores):
        T = scores.shape[-1]
        return self.mask[:T, :T]


@_self(
    "M062",
    "darts#3052, mlx#3071",
    (
        "The mask made for the first sequence is kept and used for later ones "
        "of another length. Cut it to the T of each call, from the largest "
        "mask."
    ),
)
class SelfAttentionFirstMaskForEver(_SelfAttention):
    mask = None

    def keep(self, scores):
        if self.mask is None:
            self.mask = _causal(scores)
        return self.mask


@_self(
    "A01",
    "fixed-size masks: sequences shorter than the context fail",
    (
        "The whole mask is used whatever T is, so only sequences of exactly "
        "max_context_length tokens work. Cut it to the T of the call."
    ),
)
class SelfAttentionUncutMask(_SelfAttention):
    def keep(self, scores):
        mask = torch.ones(self.limit, self.limit, dtype=torch.bool)
        return mask.tril()


@_self(
    "M118",
    "LLMs-from-scratch#925",
    (
        "The module keeps something from one call to the next: keys and "
        "values of an earlier sequence turn up in a later one. A cache is a "
        "thing of its own, in chapter 6."
    ),
)
class SelfAttentionKeepsKeys(_SelfAttention):
    old = None

    def forward(self, x, return_weights=False):
        out = super().forward(x, return_weights)
        if self.old is not None and isinstance(out, torch.Tensor):
            out = out + 0.1 * self.old
        self.old = x.detach().mean()
        return out


@_self(
    "common",
    "",
    (
        "A sequence longer than max_context_length is accepted in silence. "
        "Raise a ValueError that names T and the context."
    ),
)
class SelfAttentionUncheckedLength(_SelfAttention):
    def short(self, T):
        pass


@_self(
    "common",
    "",
    (
        "A sequence longer than the context is cut in silence, and the result "
        "is shorter than the input. Raise a ValueError: whoever sent it has "
        "to decide what to drop."
    ),
)
class SelfAttentionCutsLength(_SelfAttention):
    def forward(self, x, return_weights=False):
        return super().forward(x[:, : self.limit], return_weights)


@_self(
    "common",
    "",
    (
        "Off by one: a sequence of exactly max_context_length tokens is "
        "refused. The context is the largest length that is allowed."
    ),
)
class SelfAttentionContextTooShort(_SelfAttention):
    def short(self, T):
        if T >= self.limit:
            raise ValueError(f"{T} tokens, context {self.limit}")


@_self(
    "M051",
    "",
    (
        "Somewhere the numbers pass through float32 (.float(), or a tensor "
        "made with the default dtype): float64 inputs lose nine digits. Keep "
        "the inputs' dtype."
    ),
)
class SelfAttentionInFloat32(_SelfAttention):
    def weigh(self, scores):
        return super().weigh(scores.float()).to(scores.dtype)


@_self(
    "K20",
    "overruled: bias=False drops both biases",
    (
        "bias=False drops the bias of one projection only. It means both: "
        "qkv_proj and out_proj."
    ),
)
class SelfAttentionOutputBiasStays(_SelfAttention):
    def layers(self, d_model, bias):
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model)


@_self(
    "A09",
    "overruled: names are documented",
    (
        "The three projections are separate layers here. This task asks for "
        "one fused qkv_proj, whose rows are q, then k, then v; separate ones "
        "come in task 2.5."
    ),
)
class SelfAttentionSeparateProjections(_SelfAttention):
    def layers(self, d_model, bias):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=bias))

    def parts(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


@_self(
    "M097 too late",
    "common",
    (
        "The division is checked at the first call. Whoever builds the module "
        "with wrong numbers should learn it there: raise the ValueError in "
        "__init__."
    ),
)
class SelfAttentionChecksAtCall(_SelfAttention):
    def fits(self, d_model, n_heads):
        self.sizes = d_model, n_heads

    def forward(self, x, return_weights=False):
        _check(*self.sizes)
        return super().forward(x, return_weights)


@_self(
    "common",
    "the two rates in the other order",
    (
        "attn_dropout and out_dropout stand in the other order in __init__: "
        "whoever gives them by position gets them exchanged."
    ),
)
class SelfAttentionRatesExchanged(_SelfAttention):
    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        out_dropout=0.0,
        attn_dropout=0.0,
        bias=True,
    ):
        super().__init__(
            d_model,
            n_heads,
            max_context_length,
            attn_dropout,
            out_dropout,
            bias,
        )


@_self(
    "common",
    "GPT-2's 0.1",
    (
        "Dropout is on unless it is switched off: the default rates are not "
        "0. Both are 0.0 in the contract."
    ),
)
class SelfAttentionDropsByDefault(_SelfAttention):
    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        attn_dropout=0.1,
        out_dropout=0.1,
        bias=True,
    ):
        super().__init__(
            d_model,
            n_heads,
            max_context_length,
            attn_dropout,
            out_dropout,
            bias,
        )


@_self(
    "common",
    "one nn.Dropout for both places",
    (
        "The rate attn_dropout serves for the output, too. The two places "
        "have a rate each."
    ),
)
class SelfAttentionOneRate(_SelfAttention):
    def finish(self, merged):
        return F.dropout(self.out_proj(merged), self.p, self.training)


@_self(
    "common",
    "a seed within",
    (
        "Dropout is seeded in each call, so every call drops the same "
        "entries. Draw from the global generator, as nn.Dropout does."
    ),
)
class SelfAttentionSeedsDropout(_SelfAttention):
    def drop(self, weights):
        torch.manual_seed(0)
        return super().drop(weights)


@_self(
    "common",
    "a mask without the batch axis",
    (
        "One pattern is drawn and used for all examples of the batch. Every "
        "weight is dropped or kept by itself: draw a mask of the shape of the "
        "weights."
    ),
)
class SelfAttentionDropsAlikeInBatch(_SelfAttention):
    def drop(self, weights):
        return weights * super().drop(torch.ones_like(weights[:1]))


@_self(
    "common",
    "view(B * T, D)",
    (
        "x is flattened with view, which refuses a tensor whose axes were "
        "swapped, such as a time-first batch. reshape copies where it must, "
        "and nn.Linear takes any leading axes."
    ),
)
class SelfAttentionFlattensByView(_SelfAttention):
    def parts(self, x):
        B, T, D = x.shape
        flat = self.qkv_proj(x.view(B * T, D))
        return flat.view(B, T, 3 * D).chunk(3, -1)


@_self(
    "common",
    "squeeze",
    (
        "The head axis of the weights is lost where there is one head only. "
        "They are (B, H, T, T) for every H."
    ),
)
class SelfAttentionSqueezesHead(_SelfAttention):
    def told(self, weights):
        return weights.squeeze(1)


@_self(
    "hunt",
    "the order of nn.Linear's own arguments",
    (
        "bias stands before out_dropout in __init__: whoever gives them by "
        "position gets a rate as a flag. Keep the order of the signature."
    ),
)
class SelfAttentionBiasBeforeRate(_SelfAttention):
    def __init__(
        self,
        d_model,
        n_heads,
        max_context_length,
        attn_dropout=0.0,
        bias=True,
        out_dropout=0.0,
    ):
        super().__init__(
            d_model,
            n_heads,
            max_context_length,
            attn_dropout,
            out_dropout,
            bias,
        )


@_self(
    "hunt",
    "np.triu in the constructor",
    (
        "The stored mask is float64, as numpy makes it, and turns float32 "
        "scores into float64 ones, which do not fit the values. Store a "
        "boolean mask, or make it in torch."
    ),
)
class SelfAttentionMaskFromNumpy(_SelfAttention):
    def layers(self, d_model, bias):
        super().layers(d_model, bias)
        future = np.triu(np.full((self.limit, self.limit), -np.inf), 1)
        self.register_buffer(
            "future", torch.from_numpy(future), persistent=False
        )

    def weigh(self, scores):
        T = scores.shape[-1]
        return (scores + self.future[:T, :T]).softmax(-1)


@_self(
    "hunt",
    "torch.sqrt(torch.tensor(d_k, dtype=torch.float32))",
    (
        "The root of Dh is taken in float32, so float64 scores are off in the "
        "eighth digit. Use a Python number: math.sqrt, or ** 0.5."
    ),
)
class SelfAttentionScaleInFloat32(_SelfAttention):
    def scores(self, q, k):
        width = torch.tensor(q.shape[-1], dtype=torch.float32)
        return q @ k.mT / torch.sqrt(width)


@_self(
    "hunt",
    "F.dropout forgets the mode at the end only",
    (
        "out_dropout acts in eval mode, too: F.dropout does not know the "
        "module's mode. Pass self.training on, or use nn.Dropout."
    ),
)
class SelfAttentionDropsOutputInEval(_SelfAttention):
    def finish(self, merged):
        return F.dropout(self.out_proj(merged), self.p_out)


# 2.3 attention_cost


@oracle(
    "attention_cost",
    evidence="counted: parameters of real layers, "
    "FlopCounterMode on the meta device, a tensor's own size",
)
def attention_cost_counted(B, T, d_model, n_heads, bytes_per_element=4):
    from torch.utils.flop_counter import FlopCounterMode

    dtype = {1: torch.int8, 2: torch.half, 4: torch.float, 8: torch.double}[
        bytes_per_element
    ]
    with torch.device("meta"):
        layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        x = torch.empty(B, T, d_model)
        heads = torch.empty(B, n_heads, T, d_model // n_heads)
        scores = torch.empty(B, n_heads, T, T, dtype=dtype)
        with FlopCounterMode(display=False) as projections:
            for layer in layers:
                layer(x)
        with FlopCounterMode(display=False) as attention:
            heads @ heads.mT @ heads
    return {
        "params": sum(p.numel() for p in layers.parameters()),
        "projection_flops": projections.get_total_flops(),
        "score_flops": attention.get_total_flops(),
        "score_bytes": scores.numel() * scores.element_size(),
    }


def _cost(B, T, D, H, size=4, **other):
    """The right counts, with some replaced."""
    return {
        "params": 4 * D * D + 4 * D,
        "projection_flops": 8 * B * T * D**2,
        "score_flops": 4 * B * T**2 * D,
        "score_bytes": B * H * T**2 * size,
    } | other


@right("attention_cost", evidence="K83 floats")
def attention_cost_floats(B, T, d_model, n_heads, bytes_per_element=4):
    counts = _cost(B, T, d_model, n_heads, bytes_per_element)
    return {key: float(value) for key, value in counts.items()}


@right("attention_cost", evidence="K83 numpy integers, keys in other order")
def attention_cost_numpy(B, T, d_model, n_heads, bytes_per_element=4):
    counts = _cost(B, T, d_model, n_heads, bytes_per_element)
    return {key: np.int64(counts[key]) for key in sorted(counts)}


@right("attention_cost", evidence="K03 head by head, dict(...)")
def attention_cost_loops(B, T, d_model, n_heads, bytes_per_element=4):
    flops = 0
    for _ in range(B * n_heads):
        flops += 2 * T * T * (d_model // n_heads) * 2
    return dict(
        score_bytes=T * T * n_heads * B * bytes_per_element,
        score_flops=flops,
        projection_flops=sum(2 * B * T * d_model * d_model for _ in "qkvo"),
        params=3 * d_model * (d_model + 1) + d_model * (d_model + 1),
    )


def _costs(evidence, hint):
    return wrong("attention_cost", evidence=evidence, hint=hint)


@_costs(
    "M348 torchtitan family",
    (
        "You count a multiply-add as one operation. By the convention here it "
        "is two, a multiplication and an addition, so both FLOP counts double."
    ),
)
def attention_cost_macs(B, T, d_model, n_heads, bytes_per_element=4):
    counts = _cost(B, T, d_model, n_heads, bytes_per_element)
    return counts | {
        key: counts[key] // 2 for key in ("projection_flops", "score_flops")
    }


@_costs(
    "M354 torchtitan#4366; M355 verl#6389",
    (
        "score_flops is half of what is due. Either one of its two products "
        "is missing (the weights meet the values in a product as expensive as "
        "QKᵀ), or a multiply-add counts 1 there, or you halve it because of "
        "the causal mask: here attention is counted dense, all T² pairs."
    ),
)
def attention_cost_half_scores(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_flops=2 * B * T**2 * d_model,
    )


@_costs(
    "common",
    (
        "The biases are missing from params: each of the four projections has "
        "D of them."
    ),
)
def attention_cost_no_biases(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B, T, d_model, n_heads, bytes_per_element, params=4 * d_model**2
    )


@_costs(
    "hunt: bias of out_proj left out",
    (
        "params has biases, but not one of D numbers for each of the four "
        "projections, which makes 4 D."
    ),
)
def attention_cost_three_biases(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        params=4 * d_model**2 + 3 * d_model,
    )


@_costs(
    "M088 family",
    (
        "You count three projections. The output projection is the fourth, in "
        "parameters and in FLOPs."
    ),
)
def attention_cost_three(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        params=3 * d_model * (d_model + 1),
        projection_flops=6 * B * T * d_model**2,
    )


@_costs(
    "M358 nanoGPT#629",
    (
        "You take a head's projection to be (Dh, Dh). It is (Dh, D): every "
        "head reads all columns. So the number of heads cancels out."
    ),
)
def attention_cost_small_heads(B, T, d_model, n_heads, bytes_per_element=4):
    d = d_model // n_heads
    qkv = 3 * n_heads * d * d
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        params=qkv + d_model**2 + 4 * d_model,
        projection_flops=2 * B * T * (qkv + d_model**2),
    )


@_costs(
    "M096 family; the belief that heads cost compute",
    (
        "You give every head the full width of the model, so parameters and "
        "FLOPs grow with the number of heads. The heads share the width: H·Dh "
        "= D."
    ),
)
def attention_cost_full_heads(B, T, d_model, n_heads, bytes_per_element=4):
    D, H = d_model, n_heads
    return _cost(
        B,
        T,
        D,
        H,
        bytes_per_element,
        params=3 * H * (D * D + D) + H * D * D + D,
        projection_flops=8 * B * T * H * D * D,
        score_flops=4 * B * H * T**2 * D,
    )


@_costs(
    "facts.md: heads are free",
    (
        "score_bytes does not grow with the number of heads. Every head has "
        "its own (T, T) scores: (B, H, T, T) numbers."
    ),
)
def attention_cost_one_map(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_bytes=B * T**2 * bytes_per_element,
    )


@_costs(
    "M363",
    ("score_bytes is a number of elements. Multiply by bytes_per_element."),
)
def attention_cost_elements(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(B, T, d_model, n_heads, 1)


@_costs("M363", ("bytes_per_element is ignored: you always count 4 bytes."))
def attention_cost_four_bytes(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(B, T, d_model, n_heads)


@_costs(
    "M363", ("The batch is forgotten: all but params grow in proportion to B.")
)
def attention_cost_no_batch(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(1, T, d_model, n_heads, bytes_per_element)


@_costs(
    "M363, in one of the counts",
    (
        "projection_flops is that of one sequence: a batch of B projects B·T"
        " rows."
    ),
)
def attention_cost_one_sequence(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        projection_flops=8 * T * d_model**2,
    )


@_costs(
    "common",
    (
        "score_bytes counts two tensors, scores and weights. The contract "
        "asks for one."
    ),
)
def attention_cost_two_maps(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(B, T, d_model, n_heads, 2 * bytes_per_element)


@_costs(
    "M363 GB and GiB",
    ("score_bytes is in MiB or another unit. The contract asks for bytes."),
)
def attention_cost_mebibytes(B, T, d_model, n_heads, bytes_per_element=4):
    counts = _cost(B, T, d_model, n_heads, bytes_per_element)
    return counts | {"score_bytes": counts["score_bytes"] / 2**20}


@_costs(
    "M353",
    ("score_flops grows with T instead of T²: every query meets every key."),
)
def attention_cost_linear(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_flops=4 * B * T * d_model,
    )


@_costs(
    "full width in every head; plausible",
    (
        "score_flops grows with the number of heads: you count D terms for "
        "each of them. A head has D / H, so all heads together have D."
    ),
)
def attention_cost_wide_scores(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_flops=4 * B * n_heads * T**2 * d_model,
    )


@_costs(
    "causal counting; common",
    (
        "score_flops counts only what a causal mask leaves. By the "
        "convention here attention is dense: T² products, hidden or not."
    ),
)
def attention_cost_causal(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_flops=2 * B * T * (T + 1) * d_model,
    )


@_costs(
    "common",
    (
        "projection_flops counts the additions of the biases, too. They are "
        "left out here, as FLOP counters do."
    ),
)
def attention_cost_bias_flops(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        projection_flops=8 * B * T * d_model**2 + 4 * B * T * d_model,
    )


@_costs(
    "common",
    (
        "score_flops is that of one head: it has D/H where all heads together "
        "have D."
    ),
)
def attention_cost_one_head(B, T, d_model, n_heads, bytes_per_element=4):
    return _cost(
        B,
        T,
        d_model,
        n_heads,
        bytes_per_element,
        score_flops=4 * B * T**2 * (d_model // n_heads),
    )


@_costs(
    "M349",
    (
        "The FLOPs are those of a training step (three times the forward "
        "pass). Count the forward pass alone."
    ),
)
def attention_cost_training(B, T, d_model, n_heads, bytes_per_element=4):
    counts = _cost(B, T, d_model, n_heads, bytes_per_element)
    return counts | {
        key: 3 * counts[key] for key in ("projection_flops", "score_flops")
    }


# 2.4 qkv_per_head_to_cat


@oracle("qkv_per_head_to_cat", evidence="row by row, each put in its place")
def qkv_per_head_to_cat_rows(w, n_heads):
    d = len(w) // (3 * n_heads)
    rows = [
        w[(h * 3 + part) * d + i]
        for part in range(3)
        for h in range(n_heads)
        for i in range(d)
    ]
    return torch.stack(rows)


@right("qkv_per_head_to_cat", evidence="K24 einops with an ellipsis")
def qkv_per_head_to_cat_einops(w, n_heads):
    from einops import rearrange

    return rearrange(w, "(h p d) ... -> (p h d) ...", h=n_heads, p=3)


@right("qkv_per_head_to_cat", evidence="by an index of rows")
def qkv_per_head_to_cat_index(w, n_heads):
    order = torch.arange(w.shape[0]).reshape(n_heads, 3, -1)
    return w[order.permute(1, 0, 2).flatten()]


@right("qkv_per_head_to_cat", evidence="chunks of chunks")
def qkv_per_head_to_cat_chunks(w, n_heads):
    parts = [block.chunk(3) for block in w.chunk(n_heads)]
    return torch.cat(
        [part for kind in zip(*parts, strict=True) for part in kind]
    )


@right("qkv_per_head_to_cat", evidence="a permutation matrix")
def qkv_per_head_to_cat_matrix(w, n_heads):
    order = torch.arange(len(w)).view(n_heads, 3, -1).transpose(0, 1)
    P = torch.eye(len(w), dtype=w.dtype, device=w.device)
    return P[order.reshape(-1)] @ w


def _layout(evidence, hint):
    return wrong("qkv_per_head_to_cat", evidence=evidence, hint=hint)


@_layout(
    "common: the inverse",
    (
        "You go the other way: you read the rows as (3, H, Dh) and return "
        "them as (H, 3, Dh). What comes in has the heads first."
    ),
)
def qkv_per_head_to_cat_inverse(w, n_heads):
    rows = w.unflatten(0, (3, n_heads, -1))
    return rows.transpose(0, 1).flatten(0, 2)


@_layout(
    "common",
    (
        "Nothing moves: a reshape into other axes and back leaves every row "
        "in its place. The two layouts differ in the order, so axes have to "
        "be swapped in between."
    ),
)
def qkv_per_head_to_cat_unchanged(w, n_heads):
    return w.reshape(3, n_heads, -1).reshape(w.shape)


@_layout(
    "common",
    (
        "The rows inside the parts are shuffled: you cut the rows as (H, Dh, "
        "3), as if q, k and v alternated row by row. In the old layout Dh "
        "rows of q come together, then Dh rows of k."
    ),
)
def qkv_per_head_to_cat_alternating(w, n_heads):
    return w.unflatten(0, (n_heads, -1, 3)).movedim(2, 0).flatten(0, 2)


@_layout(
    "common",
    (
        "The result has the order (3, Dh, H): within a part, the rows of the "
        "heads alternate. A head's Dh rows stay together."
    ),
)
def qkv_per_head_to_cat_heads_alternate(w, n_heads):
    rows = w.unflatten(0, (n_heads, 3, -1))
    return rows.movedim(0, 2).flatten(0, 2)


@_layout(
    "common",
    (
        "You move columns. The layout is a matter of rows, the outputs of the "
        "projection; its columns belong to the input and stay."
    ),
)
def qkv_per_head_to_cat_columns(w, n_heads):
    if w.ndim == 1:
        return w.unflatten(0, (n_heads, 3, -1)).transpose(0, 1).flatten()
    D = w.shape[1]
    order = torch.arange(D).reshape(n_heads, -1).T.flatten()
    return w[:, order]


@_layout(
    "common",
    (
        "It works for matrices only: a bias has one axis, and its rows have "
        "to be moved as well. Reshape the first axis and leave the others "
        "alone."
    ),
)
def qkv_per_head_to_cat_matrices_only(w, n_heads):
    rows, D = w.shape
    return (
        w.reshape(n_heads, 3, rows // 3 // n_heads, D)
        .transpose(0, 1)
        .reshape(rows, D)
    )


@_layout(
    "common",
    (
        "A bias is returned as it came. It is added to the rows' results, so "
        "its entries move with the rows."
    ),
)
def qkv_per_head_to_cat_bias_unchanged(w, n_heads):
    return w if w.ndim == 1 else qkv_per_head_to_cat_chunks(w, n_heads)


@_layout(
    "hunt: a case of its own for the bias",
    (
        "Matrices are right, but a bias is reordered in another way (the way "
        "back, say). Its entries have the rows' order: one and the same rule "
        "serves both."
    ),
)
def qkv_per_head_to_cat_bias_inverse(w, n_heads):
    if w.ndim == 1:
        return w.unflatten(0, (3, n_heads, -1)).transpose(0, 1).flatten()
    return qkv_per_head_to_cat_chunks(w, n_heads)


@_layout(
    "common",
    (
        "The parts come out in the order k, q, v (or another). What is due is "
        "q, then k, then v, as they stand in each head."
    ),
)
def qkv_per_head_to_cat_other_order(w, n_heads):
    rows = w.unflatten(0, (n_heads, 3, -1)).transpose(0, 1)
    return rows[[1, 0, 2]].flatten(0, 2)


@_layout(
    "common",
    (
        "The number of heads is fixed in your code, or the head width is "
        "taken for it. Cut the first axis into (n_heads, 3, rest)."
    ),
)
def qkv_per_head_to_cat_width_for_count(w, n_heads):
    rows = w.unflatten(0, (-1, 3, n_heads))
    return rows.transpose(0, 1).flatten(0, 2)


@_layout(
    "common",
    (
        "The three parts are returned separately, or stacked on an axis of "
        "their own. The result has w's shape: join the axes again."
    ),
)
def qkv_per_head_to_cat_not_joined(w, n_heads):
    rows = w.unflatten(0, (n_heads, 3, -1)).transpose(0, 1)
    return rows.flatten(1, 2)


@_layout(
    "dtype changed; plausible",
    (
        "The rows are in place, but their dtype has changed. Only places "
        "change here."
    ),
)
def qkv_per_head_to_cat_float32(w, n_heads):
    rows = w.float().unflatten(0, (n_heads, 3, -1))
    return rows.transpose(0, 1).flatten(0, 2)


@_layout(
    "common",
    (
        "You go through numpy or .detach(), which ends the gradient. Stay "
        "with torch's own operations."
    ),
)
def qkv_per_head_to_cat_detached(w, n_heads):
    return qkv_per_head_to_cat_chunks(w.detach(), n_heads)


@_layout(
    "common: float() on the way",
    (
        "Whole numbers come back as floating ones. Only rows move: keep the "
        "dtype of w."
    ),
)
def qkv_per_head_to_cat_returns_float(w, n_heads):
    w = w if w.is_floating_point() else w.float()
    return qkv_per_head_to_cat_chunks(w, n_heads)


@_layout(
    "common: squeeze() for the bias",
    (
        "A weight with a single column loses it: squeeze drops every axis of "
        "size 1. Reshape to the shape of w."
    ),
)
def qkv_per_head_to_cat_squeezes(w, n_heads):
    rows = w.reshape(len(w), -1)
    return qkv_per_head_to_cat_chunks(rows, n_heads).squeeze(-1)


@_layout(
    "hunt: the widening of lesson 1, without its way back",
    (
        "Half-precision weights come back as float32. Nothing is computed "
        "here, so nothing has to be widened: keep the dtype of w."
    ),
)
def qkv_per_head_to_cat_half_returns_float(w, n_heads):
    if w.is_floating_point():
        w = w.to(torch.promote_types(w.dtype, torch.float32))
    return qkv_per_head_to_cat_chunks(w, n_heads)


# 2.5 MultiHeadAttention


@oracle(
    "MultiHeadAttention",
    evidence=("nn.MultiheadAttention's own function, given the weights"),
)
class CrossAttentionLibrary(nn.Module):
    def __init__(self, d_model, n_heads, kv_dim=None):
        super().__init__()
        _check(d_model, n_heads)
        self.H, width = n_heads, kv_dim or d_model
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(width, d_model)
        self.v_proj = nn.Linear(width, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        kv = q if kv is None else kv
        (B, Tq, D), Tk = q.shape, kv.shape[1]
        hide = q.new_zeros(B, Tq, Tk, dtype=torch.bool)
        if is_causal:
            hide |= torch.ones_like(hide).triu(Tk - Tq + 1)
        if key_padding_mask is not None:
            hide = hide | ~key_padding_mask[:, None]
        biases = [self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]
        out, _ = F.multi_head_attention_forward(
            q.transpose(0, 1),
            kv.transpose(0, 1),
            kv.transpose(0, 1),
            D,
            self.H,
            None,
            torch.cat(biases),
            None,
            None,
            False,
            0.0,
            self.out_proj.weight,
            self.out_proj.bias,
            need_weights=False,
            attn_mask=hide.repeat_interleave(self.H, 0),
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
        )
        return out.transpose(0, 1)


class _CrossAttention(nn.Module):
    """A right answer in steps, so that a mistake can change one of them."""

    def __init__(self, d_model, n_heads, kv_dim=None):
        super().__init__()
        self.fits(d_model, n_heads)
        self.H = n_heads
        self.layers(d_model, d_model if kv_dim is None else kv_dim)

    def fits(self, d_model, n_heads):
        _check(d_model, n_heads)

    def layers(self, d_model, kv_dim):
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(kv_dim, d_model)
        self.v_proj = nn.Linear(kv_dim, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def sources(self, q, kv):
        kv = q if kv is None else kv
        return q, kv, kv

    def split(self, x):
        return _split(x, self.H)

    def merge(self, x):
        return _merge(x)

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-1])

    def padding(self, mask, scores):
        return mask[:, None, None, :]

    def future(self, scores):
        return _causal(scores)

    def keep(self, scores, mask, is_causal):
        keep = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            keep = keep & self.padding(mask, scores)
        if is_causal:
            keep = keep & self.future(scores)
        return keep

    def weigh(self, scores, keep):
        return _softmax(scores, keep)

    def finish(self, heads):
        return self.out_proj(self.merge(heads))

    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        q, k, v = self.sources(q, kv)
        q, k, v = (
            self.split(part)
            for part in (self.q_proj(q), self.k_proj(k), self.v_proj(v))
        )
        scores = self.scores(q, k)
        keep = self.keep(scores, key_padding_mask, is_causal)
        return self.finish(self.weigh(scores, keep) @ v)


@right("MultiHeadAttention", evidence="softmax by hand, one step a method")
class CrossAttentionSteps(_CrossAttention):
    pass


@right(
    "MultiHeadAttention",
    evidence="K11 nan_to_num on the scores' softmax "
    "with where; K08 additive mask; K22 (B·H, T, d)",
)
class CrossAttentionFolded(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        kv = q if kv is None else kv
        B, Tq, D = q.shape
        Tk, H = kv.shape[1], self.H
        q, k, v = (
            x.reshape(B, -1, H, D // H)
            .transpose(1, 2)
            .reshape(B * H, -1, D // H)
            for x in (self.q_proj(q), self.k_proj(kv), self.v_proj(kv))
        )
        added = q.new_zeros(B, H, Tq, Tk)
        if key_padding_mask is not None:
            added = added.masked_fill(
                ~key_padding_mask.view(B, 1, 1, Tk), -math.inf
            )
        if is_causal:
            future = torch.full_like(added, -math.inf)
            added = added + future.triu(Tk - Tq + 1)
        added = added.flatten(0, 1)
        dead = (added == -math.inf).all(-1, keepdim=True)
        scores = torch.baddbmm(
            torch.where(dead, 0, added), q, k.mT, alpha=(D // H) ** -0.5
        )
        out = torch.where(dead, 0, scores.softmax(-1) @ v)
        out = out.view(B, H, Tq, -1).transpose(1, 2)
        return self.out_proj(out.reshape(B, Tq, D))


@right(
    "MultiHeadAttention",
    evidence="K02 einsum; K34 exp and sum with a guarded denominator",
)
class CrossAttentionEinsum(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        if kv is None:
            kv = q
        h = self.H
        q = self.q_proj(q).unflatten(-1, (h, -1))
        k = self.k_proj(kv).unflatten(-1, (h, -1))
        v = self.v_proj(kv).unflatten(-1, (h, -1))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        keep = self.keep(s, key_padding_mask, is_causal)
        low = torch.finfo(s.dtype).min
        top = s.masked_fill(~keep, low).amax(-1, keepdim=True).detach()
        top = torch.where(keep.any(-1, keepdim=True), top, 0)
        e = torch.exp((s - top).masked_fill(~keep, low))
        p = e / e.sum(-1, keepdim=True).clamp(min=0.5)
        return self.out_proj(torch.einsum("bhqk,bkhd->bqhd", p, v).flatten(2))


@right("MultiHeadAttention", evidence="K03 loops over examples and heads")
class CrossAttentionLoops(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        kv = q if kv is None else kv
        d, rows = q.shape[-1] // self.H, []
        for b in range(len(q)):
            heads = []
            for h in range(self.H):
                cut = slice(h * d, (h + 1) * d)
                s = self.q_proj(q[b])[:, cut] @ self.k_proj(kv[b])[:, cut].T
                keep = torch.ones_like(s, dtype=torch.bool)
                if key_padding_mask is not None:
                    keep = keep & key_padding_mask[b]
                if is_causal:
                    keep = keep & _causal(s)
                heads.append(
                    _softmax(s / d**0.5, keep) @ self.v_proj(kv[b])[:, cut]
                )
            rows.append(torch.cat(heads, -1))
        return self.out_proj(torch.stack(rows))


@right(
    "MultiHeadAttention",
    evidence="K27 a where around SDPA, mask only where there is one",
)
class CrossAttentionFused(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        memory = kv if kv is not None else q
        heads = [
            self.split(part)
            for part in (
                self.q_proj(q),
                self.k_proj(memory),
                self.v_proj(memory),
            )
        ]
        mask = None
        if key_padding_mask is not None or is_causal:
            blank = q.new_empty(len(q), 1, q.shape[1], memory.shape[1])
            mask = self.keep(blank, key_padding_mask, is_causal)
        return self.finish(
            F.scaled_dot_product_attention(*heads, attn_mask=mask)
        )


def _cross(evidence, hint):
    return wrong("MultiHeadAttention", evidence=evidence, hint=hint)


@_cross(
    "M099",
    (
        "Keys and values come from the queries' sequence even when kv is "
        "given, so the other sequence is never read. Queries come from q, "
        "keys and values from kv."
    ),
)
class CrossAttentionIgnoresMemory(_CrossAttention):
    def sources(self, q, kv):
        return q, q, q

    def layers(self, d_model, kv_dim):
        super().layers(d_model, d_model)


@_cross(
    "M100 family",
    (
        "Only the keys come from kv; the values come from q. An average over "
        "the other sequence's positions needs that sequence's values."
    ),
)
class CrossAttentionValuesFromQueries(_CrossAttention):
    def sources(self, q, kv):
        return q, q if kv is None else kv, q


@_cross(
    "common: roles swapped",
    (
        "The roles are swapped: the queries come from kv, and keys and values "
        "from q, so the result has the length of kv. Every query position of "
        "q needs an answer."
    ),
)
class CrossAttentionSwapped(_CrossAttention):
    def sources(self, q, kv):
        return (q, q, q) if kv is None else (kv, q, q)


@_cross(
    "common",
    ("kv=None does not work: without kv the keys and values come from q."),
)
class CrossAttentionNeedsMemory(_CrossAttention):
    def sources(self, q, kv):
        return q, kv, kv


@_cross(
    "M095",
    (
        "kv_dim is ignored: k_proj and v_proj expect d_model columns. They "
        "read the other sequence, whose width is kv_dim."
    ),
)
class CrossAttentionIgnoresWidth(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, d_model)


@_cross(
    "common",
    (
        "out_proj returns kv_dim columns, or the heads have the width of kv. "
        "The model width D is that of q and of the result; kv_dim is only "
        "what k_proj and v_proj read."
    ),
)
class CrossAttentionOutputWidth(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        self.out_proj = nn.Linear(d_model, kv_dim)


@_cross(
    "M041, transformers#38094",
    (
        "The mask is read the wrong way round: True means that a key may be "
        "looked at. nn.MultiheadAttention's masks mean the opposite."
    ),
)
class CrossAttentionInvertedPadding(_CrossAttention):
    def padding(self, mask, scores):
        return ~mask[:, None, None, :]


@_cross(
    "M076",
    (
        "key_padding_mask has no effect: padded keys are averaged in. Hide "
        "them in the scores, before the softmax."
    ),
)
class CrossAttentionIgnoresPadding(_CrossAttention):
    def padding(self, mask, scores):
        return torch.ones_like(scores, dtype=torch.bool)


@_cross(
    "M076: ignored in cross-attention only",
    (
        "The padding mask acts in self-attention and is dropped when kv is "
        "given. It describes the keys, wherever they come from."
    ),
)
class CrossAttentionPaddingOnlyItself(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        mask = key_padding_mask if kv is None else None
        return super().forward(
            q, kv, key_padding_mask=mask, is_causal=is_causal
        )


@_cross(
    "mask on the query axis; M076's kind",
    (
        "The padding mask stands on the axis of the queries. It describes "
        "the keys, the last axis of the scores: (B, 1, 1, Tk)."
    ),
)
class CrossAttentionMasksQueries(_CrossAttention):
    def padding(self, mask, scores):
        return mask[:, None, :, None]


@_cross(
    "mask without new axes; plausible",
    (
        "The padding mask meets the scores without axes for heads and "
        "queries, so its two axes line up with queries and keys. Insert "
        "them: (B, 1, 1, Tk)."
    ),
)
class CrossAttentionBareMask(_CrossAttention):
    def padding(self, mask, scores):
        return mask


@_cross(
    "M044, annotated-transformer#17",
    (
        "The padding mask is lined up with the heads: head h gets the mask of "
        "example h. Insert axes for heads and queries: (B, 1, 1, Tk)."
    ),
)
class CrossAttentionMaskMeetsHeads(_CrossAttention):
    def padding(self, mask, scores):
        return mask[:, None, :]


@_cross(
    "M045, lsdefine#36",
    (
        "The mask is tiled over heads in the wrong order, so an example gets "
        "its neighbour's mask. Let (B, 1, 1, Tk) broadcast instead, or repeat "
        "each example's mask for its heads before the next example's."
    ),
)
class CrossAttentionMaskTiled(_CrossAttention):
    def padding(self, mask, scores):
        B, H, Tq, Tk = scores.shape
        tiled = mask.repeat(H, 1)  # row h·B + b is example b
        return tiled.view(B, H, 1, Tk)


@_cross(
    "M074 family",
    (
        "Padding is taken to be at the end: you use only the number of kept "
        "keys. Hidden keys may stand anywhere; use the mask itself."
    ),
)
class CrossAttentionPaddingAsLength(_CrossAttention):
    def padding(self, mask, scores):
        length = mask.sum(-1)[:, None, None, None]
        return torch.arange(scores.shape[-1], device=scores.device) < length


@_cross(
    "M074",
    (
        "One padded key too many is let in: the comparison with the length is "
        "<= where < is due. Use the mask as it is."
    ),
)
class CrossAttentionPaddingOffByOne(_CrossAttention):
    def padding(self, mask, scores):
        ahead = torch.cat([mask[:, :1], mask[:, :-1]], 1)
        return (mask | ahead)[:, None, None]


@_cross(
    "M034, M035 family",
    (
        "The mask is multiplied into the weights after the softmax, so hidden "
        "keys stay in the denominators and the rows sum to less than 1. Hide "
        "with −inf before the softmax."
    ),
)
class CrossAttentionMaskAfterSoftmax(_CrossAttention):
    def weigh(self, scores, keep):
        return scores.softmax(-1) * keep


@_cross(
    "M035, pointer-generator#88",
    (
        "The mask is multiplied in after the softmax and the rows are "
        "normalised again. Where a hidden score is far above the visible "
        "ones, nothing is left to normalise. Hide before the softmax."
    ),
)
class CrossAttentionRenormalised(_CrossAttention):
    def weigh(self, scores, keep):
        weights = scores.softmax(-1) * keep
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@_cross(
    "M078: the queries are masked, not the keys",
    (
        "The padding mask hides whole query rows instead of keys: it zeroes "
        "the outputs at padded positions, while padded keys are still looked "
        "at. Hide along the key axis, the last one."
    ),
)
class CrossAttentionMasksValuesOnly(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        memory = q if kv is None else kv
        if key_padding_mask is not None:
            memory = memory * key_padding_mask[..., None]
        return super().forward(q, memory, is_causal=is_causal)


@_cross(
    "M048, M037",
    (
        "Hidden scores get a finite number. Visible scores that lie lower "
        "lose against it, and a query that sees nothing averages over what is "
        "hidden. Fill with −inf and treat rows that see nothing by themselves."
    ),
)
class CrossAttentionFiniteFill(_CrossAttention):
    def weigh(self, scores, keep):
        return scores.masked_fill(~keep, -20.0).softmax(-1)


@_cross(
    "M050 family, common: −1e9",
    (
        "A query that sees nothing gets a uniform average instead of zeros: "
        "with a finite fill, all hidden keys tie. Set the weights of such "
        "rows to 0."
    ),
)
class CrossAttentionUniformWhenDead(_CrossAttention):
    def weigh(self, scores, keep):
        return scores.masked_fill(~keep, -1e9).softmax(-1)


@_cross(
    "hunt: if key_padding_mask.any()",
    (
        "A mask that hides everything is treated as if there were none. Then "
        "no query sees a key, and each gets zeros before out_proj."
    ),
)
class CrossAttentionIgnoresEmptyMask(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        if key_padding_mask is not None and not key_padding_mask.any():
            key_padding_mask = None
        return super().forward(
            q, kv, key_padding_mask=key_padding_mask, is_causal=is_causal
        )


@_cross(
    "M069, pytorch#103749",
    (
        "A query that sees nothing gives NaN: the softmax of a row of −inf is "
        "0/0. Make such rows harmless before the softmax, and zero after it."
    ),
)
class CrossAttentionNaNWhenDead(_CrossAttention):
    def weigh(self, scores, keep):
        return _hide(scores, keep).softmax(-1)


@_cross(
    "M069 backward",
    (
        "The output is mended after the NaN has arisen, by overwriting it, "
        "and the gradient of the softmax is NaN all the same. Keep the NaN "
        "from arising: give rows that see nothing harmless scores first."
    ),
)
class CrossAttentionNaNGradient(_CrossAttention):
    def weigh(self, scores, keep):
        added = torch.zeros_like(scores).masked_fill(~keep, -math.inf)
        return (scores + added).softmax(-1).nan_to_num()


@_cross(
    "common: zeros after out_proj",
    (
        "The output of a query that sees nothing is 0. The zeros stand before "
        "out_proj, so what comes out is its bias: any other layer of zeros "
        "would do the same."
    ),
)
class CrossAttentionZerosAfterProjection(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        Tk = (q if kv is None else kv).shape[1]
        blank = q.new_empty(len(q), 1, q.shape[1], Tk)
        keep = self.keep(blank, key_padding_mask, is_causal)
        out = super().forward(
            q, kv, key_padding_mask=key_padding_mask, is_causal=is_causal
        )
        return out.masked_fill(~keep.any(-1)[:, 0, :, None], 0)


@_cross(
    "M052",
    (
        "is_causal has no effect: every query sees the future. Hide the keys "
        "above the lower-right diagonal."
    ),
)
class CrossAttentionIgnoresCausal(_CrossAttention):
    def future(self, scores):
        return torch.ones_like(scores, dtype=torch.bool)


@_cross(
    "common",
    (
        "The causal mask is applied always. Only is_causal=True asks for it; "
        "an encoder and cross-attention look both ways."
    ),
)
class CrossAttentionAlwaysCausal(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        return super().keep(scores, mask, True)


@_cross(
    "M057, pytorch#103082",
    (
        "The causal mask is aligned to the upper left when there are fewer "
        "queries than keys: a single new query then sees the first key only. "
        "The last query stands at the last key. (The is_causal of "
        "F.scaled_dot_product_attention is upper-left.)"
    ),
)
class CrossAttentionUpperLeft(_CrossAttention):
    def future(self, scores):
        return torch.ones_like(scores, dtype=torch.bool).tril()


@_cross(
    "M059, torchtune#1791",
    (
        "There is no mask when queries and keys differ in number: that is "
        "right for one new query, but three new ones must not see each "
        "other's future."
    ),
)
class CrossAttentionNoMaskWhenDecoding(_CrossAttention):
    def future(self, scores):
        Tq, Tk = scores.shape[-2:]
        if Tq != Tk:
            return torch.ones_like(scores, dtype=torch.bool)
        return _causal(scores)


@_cross(
    "M056, with a cache only",
    (
        "With more keys than queries each query sees one key of the future: "
        "your count of the older keys is one too large."
    ),
)
class CrossAttentionOneAheadWithCache(_CrossAttention):
    def future(self, scores):
        Tq, Tk = scores.shape[-2:]
        return _causal(scores, int(Tk > Tq))


@_cross(
    "M056",
    ("Each query sees one key of the future: the diagonal is off by one."),
)
class CrossAttentionOneAhead(_CrossAttention):
    def future(self, scores):
        return _causal(scores, 1)


@_cross(
    "M054",
    (
        "The diagonal is hidden, too: a query does not see its own position. "
        "Hide only what comes after it."
    ),
)
class CrossAttentionHidesItself(_CrossAttention):
    def future(self, scores):
        return _causal(scores, -1)


@_cross(
    "M053",
    (
        "The causal mask is turned round: queries see the future and not the "
        "past. Keep the lower triangle."
    ),
)
class CrossAttentionSeesFutureOnly(_CrossAttention):
    def future(self, scores):
        return ~_causal(scores, -1)


@_cross(
    "M066, fairseq2#59",
    (
        "With both masks given, only the padding mask acts: the causal one is "
        "lost. A key has to pass both: combine them with &."
    ),
)
class CrossAttentionPaddingReplacesCausal(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        return super().keep(scores, mask, is_causal and mask is None)


@_cross(
    "M066, SymbolicMathematics#19",
    (
        "With both masks given, only the causal one acts: padding is lost. A "
        "key has to pass both: combine them with &."
    ),
)
class CrossAttentionCausalReplacesPadding(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        return super().keep(scores, None if is_causal else mask, is_causal)


@_cross(
    "common: | where & is due",
    (
        "The two masks are combined with |, so a key is visible that passes "
        "one of them. It has to pass both."
    ),
)
class CrossAttentionEitherMask(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        if mask is None or not is_causal:
            return super().keep(scores, mask, is_causal)
        return self.padding(mask, scores) | self.future(scores)


@_cross(
    "M079; ✂ of 2.1",
    (
        "The heads are made by a view alone, which scrambles positions and "
        "columns. View as (B, T, H, Dh), then swap axes 1 and 2."
    ),
)
class CrossAttentionSplitByView(_CrossAttention):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, self.H, T, D // self.H)


@_cross(
    "M083; ✂ of 2.1",
    (
        "The heads are merged by a reshape without swapping the head and time "
        "axes back first."
    ),
)
class CrossAttentionMergeByReshape(_CrossAttention):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@_cross(
    "M080",
    (
        "The columns are cut as (Dh, H): each head gets every H-th column. A "
        "head's columns stay together."
    ),
)
class CrossAttentionStridedHeads(_CrossAttention):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, D // self.H, self.H).permute(0, 3, 1, 2)


@_cross(
    "common, D2",
    (
        "The scores are divided by √D. A head's dot product has Dh terms: "
        "divide by √Dh."
    ),
)
class CrossAttentionScaleByModel(_CrossAttention):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-1] * self.H)


@_cross("common", "The scores are not scaled. Divide them by √Dh.")
class CrossAttentionNoScale(_CrossAttention):
    def scores(self, q, k):
        return q @ k.mT


@_cross(
    "M016",
    (
        "The scores are divided by the root of the number of heads. The "
        "divisor is the root of a head's width."
    ),
)
class CrossAttentionScaleByHeads(_CrossAttention):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.H)


@_cross(
    "M024",
    (
        "The softmax runs over the queries. Each query needs a distribution "
        "over the keys, the last axis."
    ),
)
class CrossAttentionSoftmaxOverQueries(_CrossAttention):
    def weigh(self, scores, keep):
        return _hide(scores, keep).softmax(-2).nan_to_num()


@_cross("M088", ("out_proj is not used. Pass the merged heads through it."))
class CrossAttentionUnusedOutput(_CrossAttention):
    def finish(self, heads):
        return self.merge(heads)


@_cross(
    "M091", ("The output's bias is added once for each head. Add it once.")
)
class CrossAttentionBiasPerHead(_CrossAttention):
    def finish(self, heads):
        return super().finish(heads) + (self.H - 1) * self.out_proj.bias


@_cross(
    "M094, Khaliladib11#2",
    (
        "The keys' projection is applied to the values as well, by copy and "
        "paste. v_proj is never used."
    ),
)
class CrossAttentionKeysForValues(_CrossAttention):
    def forward(self, q, kv=None, **kwargs):
        unused, self.v_proj = self.v_proj, self.k_proj
        try:
            return super().forward(q, kv, **kwargs)
        finally:
            self.v_proj = unused


@_cross(
    "M086, Liger-Kernel#269, DAB-DETR#17",
    (
        "Projections start as copies of each other (one layer copied, or "
        "every layer made after the same seed). They get different gradients "
        "only by luck: make each layer anew, without reseeding."
    ),
)
class CrossAttentionCopiedLayers(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        self.v_proj.load_state_dict(self.k_proj.state_dict())
        if d_model == kv_dim:
            self.k_proj.load_state_dict(self.q_proj.state_dict())


@_cross(
    "M086 tied",
    (
        "k_proj and v_proj are the same module under two names, so keys and "
        "values can never differ. Make a layer for each."
    ),
)
class CrossAttentionTiedLayers(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        self.v_proj = self.k_proj


@_cross(
    "M097",
    (
        "Nobody checks that n_heads divides d_model. Raise a ValueError that "
        "names both numbers when the module is built."
    ),
)
class CrossAttentionUncheckedWidth(_CrossAttention):
    def fits(self, d_model, n_heads):
        pass


@_cross(
    "common",
    (
        "Divisibility is checked with assert, which raises an AssertionError "
        "and disappears under python -O. Raise a ValueError."
    ),
)
class CrossAttentionAsserts(_CrossAttention):
    def fits(self, d_model, n_heads):
        assert d_model % n_heads == 0, f"{d_model} % {n_heads}"


@_cross(
    "K20",
    (
        "The projections have no biases. In this task all four have one, "
        "since trained weights come with them."
    ),
)
class CrossAttentionNoBiases(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            old = getattr(self, name)
            setattr(
                self,
                name,
                nn.Linear(old.in_features, old.out_features, bias=False),
            )


@_cross(
    "M051",
    (
        "Somewhere the numbers pass through float32 (.float(), or a tensor "
        "made with the default dtype). Keep the inputs' dtype."
    ),
)
class CrossAttentionInFloat32(_CrossAttention):
    def weigh(self, scores, keep):
        return super().weigh(scores.float(), keep).to(scores.dtype)


@_cross(
    "common",
    (
        "Gradients do not reach all parameters: somewhere a tensor is "
        "detached (detach, .data, numpy or no_grad)."
    ),
)
class CrossAttentionDetachedMemory(_CrossAttention):
    def sources(self, q, kv):
        kv = q if kv is None else kv
        return q, kv.detach(), kv.detach()


@_cross(
    "M011 family: the caller's tensor is changed",
    (
        "kv is changed in place where it is padding. The caller needs it "
        "later: hide scores instead of overwriting inputs."
    ),
)
class CrossAttentionZeroesMemory(_CrossAttention):
    def forward(self, q, kv=None, *, key_padding_mask=None, is_causal=False):
        if kv is not None and key_padding_mask is not None:
            kv.data[~key_padding_mask] = 0
        return super().forward(
            q, kv, key_padding_mask=key_padding_mask, is_causal=is_causal
        )


@_cross(
    "M097 too late",
    (
        "The division is checked at the first call. Whoever builds the module "
        "with wrong numbers should learn it there: raise the ValueError in "
        "__init__."
    ),
)
class CrossAttentionChecksAtCall(_CrossAttention):
    def fits(self, d_model, n_heads):
        self.sizes = d_model, n_heads

    def forward(self, q, kv=None, **masks):
        _check(*self.sizes)
        return super().forward(q, kv, **masks)


@_cross(
    "M048",
    (
        "Hidden scores are filled with a large finite number. Visible scores "
        "may lie below it, and then the hidden keys take all the weight. Fill "
        "with −inf."
    ),
)
class CrossAttentionLargeFill(_CrossAttention):
    def weigh(self, scores, keep):
        weights = scores.masked_fill(~keep, -1e9).softmax(-1)
        return weights * keep.any(-1, keepdim=True)


@_cross(
    "M063",
    (
        "The causal mask is made on the CPU, or kept from the first call, so "
        "the module fails once it is moved to a GPU. Make the mask at every "
        "call, on the device of the input."
    ),
)
class CrossAttentionMaskOnCPU(_CrossAttention):
    def future(self, scores):
        Tq, Tk = scores.shape[-2:]
        return torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)


@_cross(
    "M112 family",
    (
        "A buffer lands in state_dict, which should hold the parameters and "
        "nothing else. Register it with persistent=False, or make the tensor "
        "when it is needed."
    ),
)
class CrossAttentionSavesBuffer(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        self.register_buffer("scale", torch.tensor(d_model**-0.5))


@_cross(
    "nanoGPT's block_size, without a block_size",
    (
        "The causal mask is cut out of a table of a fixed size, so a longer "
        "sequence fails. This module has no limit: make the mask from Tq and "
        "Tk."
    ),
)
class CrossAttentionMaskFromTable(_CrossAttention):
    def layers(self, d_model, kv_dim):
        super().layers(d_model, kv_dim)
        table = torch.ones(1024, 1024, dtype=torch.bool).tril()
        self.register_buffer("table", table, persistent=False)

    def future(self, scores):
        Tq, Tk = scores.shape[-2:]
        if Tq > Tk:
            return super().future(scores)
        return self.table[Tk - Tq : Tk, :Tk]


@_cross(
    "M069 backward, from the causal mask",
    (
        "The values are right but a gradient is NaN where the two masks "
        "together, or the causal one alone, leave a query nothing: the dead "
        "rows were looked for before all masks had been applied."
    ),
)
class CrossAttentionNaNGradientBothMasks(_CrossAttention):
    def weigh(self, scores, keep):
        padded = keep.any(-2, keepdim=True)
        hidden = scores + torch.zeros_like(scores).masked_fill(
            ~keep & padded, -math.inf
        )
        weights = _softmax(hidden, padded.expand_as(keep))
        return weights.nan_to_num(0)


@_cross(
    "M116 family",
    (
        "The memory of one call is used in the next: without kv, keys and "
        "values come from q, whatever was given before."
    ),
)
class CrossAttentionRemembersMemory(_CrossAttention):
    def sources(self, q, kv):
        self.memory = getattr(self, "memory", None) if kv is None else kv
        return super().sources(q, self.memory)


@_cross(
    "M116 family",
    (
        "The padding mask of one call is used in the next. Without "
        "key_padding_mask all keys may be seen."
    ),
)
class CrossAttentionRemembersMask(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        kept = getattr(self, "mask", None)
        if mask is None and kept is not None:
            mask = kept if kept.shape[1] == scores.shape[-1] else None
        else:
            self.mask = mask
        return super().keep(scores, mask, is_causal)


@_cross(
    "common: view(B * T, D)",
    (
        "x is flattened with view, which refuses a tensor whose axes were "
        "swapped, such as a time-first batch. reshape copies where it must, "
        "and nn.Linear takes any leading axes."
    ),
)
class CrossAttentionFlattensByView(_CrossAttention):
    def sources(self, q, kv):
        return [
            x.view(-1, x.shape[-1]).view(x.shape)
            for x in super().sources(q, kv)
        ]


@_cross(
    "nn.MultiheadAttention(dropout=0.1)",
    (
        "Weights are dropped in train mode. This task asks for no dropout: in "
        "train mode the module does what it does in eval mode."
    ),
)
class CrossAttentionDropsInTraining(_CrossAttention):
    def weigh(self, scores, keep):
        return F.dropout(super().weigh(scores, keep), 0.1, self.training)


@_cross(
    "M057 in one branch",
    (
        "With a padding mask the causal mask is aligned to the upper left, "
        "without one to the lower right. Build both masks in the same way and "
        "combine them."
    ),
)
class CrossAttentionUpperLeftWithPadding(_CrossAttention):
    def keep(self, scores, mask, is_causal):
        keep = super().keep(scores, mask, is_causal)
        if mask is None or not is_causal or keep.shape[-1] < keep.shape[-2]:
            return keep
        return super().keep(scores, mask, False).tril()


@_cross(
    "hunt: np.tril in forward",
    (
        "The causal mask is float64, as numpy makes it, and turns float32 "
        "scores into float64 ones, which do not fit the values. Use a boolean "
        "mask, or give it the dtype of the scores."
    ),
)
class CrossAttentionMaskFromNumpy(_CrossAttention):
    def weigh(self, scores, keep):
        dead = ~keep.any(-1, keepdim=True)
        added = np.where((keep | dead).cpu().numpy(), 0, -np.inf)
        weights = (scores + torch.from_numpy(added).to(scores.device)).softmax(
            -1
        )
        return weights.masked_fill(dead, 0)


@_cross(
    "hunt: torch.sqrt(torch.tensor(d_k, dtype=torch.float32))",
    (
        "The root of Dh is taken in float32, so float64 scores are off in the "
        "eighth digit. Use a Python number: math.sqrt, or ** 0.5."
    ),
)
class CrossAttentionScaleInFloat32(_CrossAttention):
    def scores(self, q, k):
        width = torch.tensor(q.shape[-1], dtype=torch.float32)
        return q @ k.mT / torch.sqrt(width)


# 2.6 GroupedQueryAttention


class _Grouped(nn.Module):
    """A right answer in steps, so that a mistake can change one of them."""

    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.fits(d_model, n_heads, n_kv_heads)
        self.H, self.Hk, self.d = n_heads, n_kv_heads, d_model // n_heads
        self.layers(d_model)

    def fits(self, d_model, n_heads, n_kv_heads):
        _check(d_model, n_heads)
        _check(n_heads, n_kv_heads)

    def layers(self, d_model):
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, self.Hk * self.d)
        self.v_proj = nn.Linear(d_model, self.Hk * self.d)
        self.out_proj = nn.Linear(d_model, d_model)

    def parts(self, x):
        return (
            _split(self.q_proj(x), self.H),
            self.shared(_split(self.k_proj(x), self.Hk)),
            self.shared_values(_split(self.v_proj(x), self.Hk)),
        )

    def shared(self, k):
        return k.repeat_interleave(self.H // self.Hk, 1)

    def shared_values(self, v):
        return self.shared(v)

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.d)

    def weigh(self, scores, is_causal):
        if is_causal:
            scores = _hide(scores, self.keep(scores))
        return scores.softmax(-1)

    def keep(self, scores):
        return _causal(scores)

    def merge(self, heads):
        return _merge(heads)

    def forward(self, x, *, is_causal=False):
        q, k, v = self.parts(x)
        weights = self.weigh(self.scores(q, k), is_causal)
        return self.out_proj(self.merge(weights @ v))


@oracle("GroupedQueryAttention", evidence="SDPA with enable_gqa")
class GroupedLibrary(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        _check(d_model, n_heads)
        _check(n_heads, n_kv_heads)
        self.counts = n_heads, n_kv_heads, n_kv_heads
        width = d_model // n_heads * n_kv_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, width)
        self.v_proj = nn.Linear(d_model, width)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, *, is_causal=False):
        layers = self.q_proj, self.k_proj, self.v_proj
        heads = [
            _split(layer(x), count)
            for layer, count in zip(layers, self.counts, strict=True)
        ]
        return self.out_proj(
            _merge(
                F.scaled_dot_product_attention(
                    *heads, is_causal=is_causal, enable_gqa=True
                )
            )
        )


@right("GroupedQueryAttention", evidence="repeat_interleave, softmax by hand")
class GroupedSteps(_Grouped):
    pass


@right("GroupedQueryAttention", evidence="K25 5-D broadcasting, no copy")
class GroupedBroadcast(_Grouped):
    def forward(self, x, *, is_causal=False):
        B, T, D = x.shape
        q = self.q_proj(x).view(B, T, self.Hk, -1, self.d)
        k = self.k_proj(x).view(B, T, self.Hk, self.d)
        v = self.v_proj(x).view(B, T, self.Hk, self.d)
        s = torch.einsum("btkgd,bskd->bkgts", q, k) / math.sqrt(self.d)
        weights = self.weigh(s, is_causal)
        out = torch.einsum("bkgts,bskd->btkgd", weights, v)
        return self.out_proj(out.reshape(B, T, D))


@right("GroupedQueryAttention", evidence="K25 expand without copying")
class GroupedExpand(_Grouped):
    def shared(self, k):
        B, Hk, T, d = k.shape
        wide = k[:, :, None].expand(B, Hk, self.H // Hk, T, d)
        return wide.reshape(B, self.H, T, d)


@right(
    "GroupedQueryAttention",
    evidence="K03 loop over query heads; K10 its own scores changed in place",
)
class GroupedLoops(_Grouped):
    def weigh(self, scores, is_causal):
        if is_causal:
            scores.masked_fill_(~_causal(scores), -math.inf)
        return scores.softmax(-1)

    def forward(self, x, *, is_causal=False):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        heads = []
        for h in range(self.H):
            g, d = h * self.Hk // self.H, self.d
            own, key = slice(h * d, h * d + d), slice(g * d, g * d + d)
            s = self.scores(q[..., own], k[..., key])
            heads.append(self.weigh(s, is_causal) @ v[..., key])
        return self.out_proj(torch.cat(heads, -1))


@right(
    "GroupedQueryAttention",
    evidence="fused projection weights at run time; index_select",
)
class GroupedIndex(_Grouped):
    def shared(self, k):
        return k[:, torch.arange(self.H) // (self.H // self.Hk)]


def _group(evidence, hint):
    return wrong("GroupedQueryAttention", evidence=evidence, hint=hint)


@_group(
    "M320 onnx#7274, mllm#483; ✂",
    (
        "Key heads are tiled (0 1 2 0 1 2), where each should be repeated for "
        "its whole group (0 0 1 1 2 2): torch's repeat is the first, "
        "repeat_interleave the second. Query heads meet strangers' keys, and "
        "with one group, or as many as heads, nothing shows."
    ),
)
class GroupedTiled(_Grouped):
    def shared(self, k):
        return k.repeat(1, self.H // self.Hk, 1, 1)


@_group(
    "M322",
    (
        "k_proj and v_proj are as wide as the model, so nothing is saved. "
        "They have n_kv_heads · Dh rows."
    ),
)
class GroupedFullWidth(_Grouped):
    def layers(self, d_model):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model))

    def parts(self, x):
        q, k, v = (
            _split(layer(x), self.H)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.H // self.Hk
        return q, self.shared(k[:, ::group]), self.shared(v[:, ::group])


@_group(
    "M323",
    (
        "The head width is d_model / n_kv_heads. It is d_model / n_heads, for "
        "keys and values as well: only their number is smaller."
    ),
)
class GroupedWideHeads(_Grouped):
    def layers(self, d_model):
        self.d = d_model // self.Hk
        self.q_proj = nn.Linear(d_model, self.H * self.d)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(self.H * self.d, d_model)


@_group(
    "M326",
    (
        "Keys are repeated group by group and values are tiled, so a query "
        "head weighs by one head's keys and averages another head's values. "
        "Repeat both in the same way."
    ),
)
class GroupedValuesTiled(_Grouped):
    def shared_values(self, v):
        return v.repeat(1, self.H // self.Hk, 1, 1)


@_group(
    "M326 the other way",
    (
        "Values are repeated group by group and keys are tiled. Repeat both "
        "in the same way, each head for its whole group."
    ),
)
class GroupedKeysTiled(_Grouped):
    def shared(self, k):
        return k.repeat(1, self.H // self.Hk, 1, 1)

    def shared_values(self, v):
        return v.repeat_interleave(self.H // self.Hk, 1)


@_group(
    "M320 family",
    (
        "The group's size and the number of groups are mixed up: each key "
        "head is repeated n_kv_heads times, or query head h uses h // "
        "n_kv_heads. A group has n_heads / n_kv_heads query heads."
    ),
)
class GroupedCountForSize(_Grouped):
    def shared(self, k):
        index = torch.arange(self.H) // self.Hk
        return k[:, index.clamp(max=self.Hk - 1)]


@_group(
    "common",
    (
        "All query heads use the first key and value head. That is "
        "multi-query attention, whatever n_kv_heads is."
    ),
)
class GroupedFirstOnly(_Grouped):
    def shared(self, k):
        return k[:, :1].expand(-1, self.H, -1, -1)


@_group(
    "common",
    (
        "Query heads are averaged within their group. Every query head keeps "
        "its own scores and its own output; only keys and values are shared."
    ),
)
class GroupedMeanQueries(_Grouped):
    def parts(self, x):
        q, k, v = super().parts(x)
        group = self.H // self.Hk
        mean = q.unflatten(1, (self.Hk, group)).mean(2)
        return mean.repeat_interleave(group, 1), k, v


@_group(
    "common",
    (
        "The key and value heads are averaged and all query heads share the "
        "mean. Each group has a head of its own."
    ),
)
class GroupedMeanKeys(_Grouped):
    def shared(self, k):
        return k.mean(1, keepdim=True).expand(-1, self.H, -1, -1)


@_group(
    "M327",
    (
        "Nobody checks that n_kv_heads divides n_heads. Raise a ValueError "
        "that names both numbers when the module is built."
    ),
)
class GroupedUncheckedGroups(_Grouped):
    def fits(self, d_model, n_heads, n_kv_heads):
        _check(d_model, n_heads)


@_group(
    "M097",
    (
        "Nobody checks that n_heads divides d_model. Raise a ValueError that "
        "names both numbers when the module is built."
    ),
)
class GroupedUncheckedWidth(_Grouped):
    def fits(self, d_model, n_heads, n_kv_heads):
        _check(n_heads, n_kv_heads)


@_group(
    "M097, M327",
    (
        "Neither division is checked. Raise a ValueError that names the two "
        "numbers when n_heads does not divide d_model, and when n_kv_heads "
        "does not divide n_heads."
    ),
)
class GroupedUnchecked(_Grouped):
    def fits(self, d_model, n_heads, n_kv_heads):
        pass


@_group(
    "common",
    (
        "Divisibility is checked with assert, which raises an AssertionError "
        "and disappears under python -O. Raise a ValueError."
    ),
)
class GroupedAsserts(_Grouped):
    def fits(self, d_model, n_heads, n_kv_heads):
        assert d_model % n_heads == 0, f"{d_model} % {n_heads}"
        assert n_heads % n_kv_heads == 0, f"{n_heads} % {n_kv_heads}"


@_group("M052", ("is_causal has no effect: positions see the future."))
class GroupedIgnoresCausal(_Grouped):
    def weigh(self, scores, is_causal):
        return scores.softmax(-1)


@_group(
    "common",
    (
        "The causal mask is applied always. Without is_causal=True every "
        "position sees the whole sequence."
    ),
)
class GroupedAlwaysCausal(_Grouped):
    def weigh(self, scores, is_causal):
        return super().weigh(scores, True)


@_group(
    "M056",
    (
        "Each position sees one token of the future: the diagonal is off by "
        "one."
    ),
)
class GroupedOneAhead(_Grouped):
    def keep(self, scores):
        return _causal(scores, 1)


@_group(
    "M053",
    (
        "The causal mask is turned round: positions see the future and not "
        "the past."
    ),
)
class GroupedSeesFutureOnly(_Grouped):
    def keep(self, scores):
        return _causal(scores).mT


@_group(
    "M034",
    (
        "The mask is multiplied in after the softmax, so the future stays in "
        "the denominators. Hide with −inf before the softmax."
    ),
)
class GroupedMaskAfterSoftmax(_Grouped):
    def weigh(self, scores, is_causal):
        keep = _causal(scores) if is_causal else 1
        return scores.softmax(-1) * keep


@_group(
    "M048",
    (
        "Hidden scores are filled with a finite number; visible scores that "
        "lie lower lose against it. Fill with −inf."
    ),
)
class GroupedFiniteFill(_Grouped):
    def weigh(self, scores, is_causal):
        if is_causal:
            scores = scores.masked_fill(~_causal(scores), -20.0)
        return scores.softmax(-1)


@_group(
    "common",
    (
        "The scores are divided by √D, or by the root of the keys' joint "
        "width. A dot product has Dh = D / n_heads terms: divide by √Dh."
    ),
)
class GroupedScaleByModel(_Grouped):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.d * self.H)


@_group(
    "common",
    (
        "The scores are divided by the root of the joint width of the key "
        "heads. A dot product has Dh = D / n_heads terms: divide by √Dh."
    ),
)
class GroupedScaleByKeys(_Grouped):
    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.d * self.Hk)


@_group("common", "The scores are not scaled. Divide them by √Dh.")
class GroupedNoScale(_Grouped):
    def scores(self, q, k):
        return q @ k.mT


@_group(
    "M079",
    (
        "The heads are made by a view alone, which scrambles positions and "
        "columns. View as (B, T, heads, Dh), then swap axes 1 and 2."
    ),
)
class GroupedSplitByView(_Grouped):
    def parts(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, self.H, T, self.d)
        k, v = (
            layer(x).view(B, self.Hk, T, self.d)
            for layer in (self.k_proj, self.v_proj)
        )
        return q, self.shared(k), self.shared_values(v)


@_group(
    "M083",
    (
        "The heads are merged by a reshape without swapping the head and time "
        "axes back first."
    ),
)
class GroupedMergeByReshape(_Grouped):
    def merge(self, heads):
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@_group(
    "M320 family: query heads strided",
    (
        "The outputs stand in the order of the groups' members, all first "
        "members first. Merge the query heads in their own order, 0 to "
        "n_heads − 1."
    ),
)
class GroupedMergeByMember(_Grouped):
    def merge(self, heads):
        members = heads.unflatten(1, (self.Hk, self.H // self.Hk))
        return _merge(members.transpose(1, 2).flatten(1, 2))


@_group("M094", ("The values come from k_proj; v_proj is never used."))
class GroupedKeysForValues(_Grouped):
    def parts(self, x):
        q, k, _ = super().parts(x)
        return q, k, k


@_group(
    "K20", ("The projections have no biases. In this task all four have one.")
)
class GroupedNoBiases(_Grouped):
    def layers(self, d_model):
        width = self.Hk * self.d
        for name, rows in (
            ("q_proj", d_model),
            ("k_proj", width),
            ("v_proj", width),
            ("out_proj", d_model),
        ):
            self.add_module(name, nn.Linear(d_model, rows, bias=False))


@_group(
    "M086 family",
    (
        "The shared heads get no gradient of their group, or only of one "
        "member: something is detached or copied by .data. Repeat with "
        "torch's own operations."
    ),
)
class GroupedDetached(_Grouped):
    def shared(self, k):
        return super().shared(k.detach())


@_group(
    "M051",
    ("Somewhere the numbers pass through float32. Keep the inputs' dtype."),
)
class GroupedInFloat32(_Grouped):
    def weigh(self, scores, is_causal):
        return super().weigh(scores.float(), is_causal).to(scores.dtype)


@_group(
    "M097, M327 too late",
    (
        "The division is checked at the first call. Whoever builds the module "
        "with wrong numbers should learn it there: raise the ValueError in "
        "__init__."
    ),
)
class GroupedChecksAtCall(_Grouped):
    def fits(self, d_model, n_heads, n_kv_heads):
        self.sizes = d_model, n_heads, n_kv_heads

    def forward(self, x, *, is_causal=False):
        d_model, n_heads, n_kv_heads = self.sizes
        _check(d_model, n_heads)
        _check(n_heads, n_kv_heads)
        return super().forward(x, is_causal=is_causal)


@_group(
    "M048",
    (
        "Hidden scores are filled with a large finite number. Visible scores "
        "may lie below it, and then the hidden keys take all the weight. Fill "
        "with −inf."
    ),
)
class GroupedLargeFill(_Grouped):
    def weigh(self, scores, is_causal):
        if is_causal:
            scores = scores.masked_fill(~_causal(scores), -1e9)
        return scores.softmax(-1)


@_group(
    "M063",
    (
        "The causal mask is made on the CPU, so the module fails as soon as "
        "it is moved to a GPU. Make the mask on the device of its input."
    ),
)
class GroupedMaskOnCPU(_Grouped):
    def keep(self, scores):
        T = scores.shape[-1]
        return torch.ones(T, T, dtype=torch.bool).tril()


@_group(
    "M112 family",
    (
        "A buffer lands in state_dict, which should hold the parameters and "
        "nothing else. Register it with persistent=False, or make the tensor "
        "when it is needed."
    ),
)
class GroupedSavesBuffer(_Grouped):
    def layers(self, d_model):
        super().layers(d_model)
        self.register_buffer("scale", torch.tensor(self.d**-0.5))


@_group(
    "Llama's attention_dropout",
    (
        "Weights are dropped in train mode. This task asks for no dropout: in "
        "train mode the module does what it does in eval mode."
    ),
)
class GroupedDropsInTraining(_Grouped):
    def weigh(self, scores, is_causal):
        weights = super().weigh(scores, is_causal)
        return F.dropout(weights, 0.1, self.training)


@_group(
    "M116 family",
    (
        "Once a call was causal, all later ones are: the flag is stored in "
        "the module. It belongs to the call."
    ),
)
class GroupedStaysCausal(_Grouped):
    def weigh(self, scores, is_causal):
        self.causal = is_causal or getattr(self, "causal", False)
        return super().weigh(scores, self.causal)


@_group(
    "common: view(B * T, D)",
    (
        "x is flattened with view, which refuses a tensor whose axes were "
        "swapped, such as a time-first batch. reshape copies where it must, "
        "and nn.Linear takes any leading axes."
    ),
)
class GroupedFlattensByView(_Grouped):
    def parts(self, x):
        return super().parts(x.view(-1, x.shape[-1]).view(x.shape))


@_group(
    "common: if T > 2",
    (
        "Short sequences get no causal mask. With two positions the first one "
        "sees the second already: only a single position needs no mask."
    ),
)
class GroupedShortNotCausal(_Grouped):
    def weigh(self, scores, is_causal):
        return super().weigh(scores, is_causal and scores.shape[-1] > 2)


@_group(
    "hunt: a mask that grows on demand, as an ordinary attribute",
    (
        "The causal mask of the first call is kept as an ordinary attribute. "
        "It stays on its device when the module moves, and the next call "
        "fails. Make the mask at every call."
    ),
)
class GroupedMaskStays(_Grouped):
    mask = torch.ones(0, 0, dtype=torch.bool)

    def keep(self, scores):
        T = scores.shape[-1]
        if len(self.mask) < T:
            self.mask = _causal(scores)
        return self.mask[:T, :T]


@_group(
    "hunt: torch.sqrt(torch.tensor(d_k, dtype=torch.float32))",
    (
        "The root of Dh is taken in float32, so float64 scores are off in the "
        "eighth digit. Use a Python number: math.sqrt, or ** 0.5."
    ),
)
class GroupedScaleInFloat32(_Grouped):
    def scores(self, q, k):
        width = torch.tensor(self.d, dtype=torch.float32)
        return q @ k.mT / torch.sqrt(width)


# 2.6 pool_kv_heads


@oracle("pool_kv_heads", evidence="row by row, with Python's sums")
def pool_kv_heads_rows(w, n_heads, n_kv_heads):
    d, group = len(w) // n_heads, n_heads // n_kv_heads
    return torch.stack(
        [
            sum(w[(g * group + member) * d + row] for member in range(group))
            / group
            for g in range(n_kv_heads)
            for row in range(d)
        ]
    )


@right("pool_kv_heads", evidence="K24 einops reduce")
def pool_kv_heads_einops(w, n_heads, n_kv_heads):
    from einops import reduce

    return reduce(
        w,
        "(g m d) ... -> (g d) ...",
        "mean",
        g=n_kv_heads,
        m=n_heads // n_kv_heads,
    )


@right("pool_kv_heads", evidence="chunks of chunks")
def pool_kv_heads_chunks(w, n_heads, n_kv_heads):
    groups = w.chunk(n_kv_heads)
    members = n_heads // n_kv_heads
    return torch.cat(
        [torch.stack(group.chunk(members)).mean(0) for group in groups]
    )


@right("pool_kv_heads", evidence="a pooling matrix")
def pool_kv_heads_matrix(w, n_heads, n_kv_heads):
    d, m = w.shape[0] // n_heads, n_heads // n_kv_heads
    pool = torch.eye(n_kv_heads).to(w).repeat_interleave(m, 1) / m
    return torch.kron(pool, torch.eye(d).to(w)) @ w


def _pool(evidence, hint):
    return wrong("pool_kv_heads", evidence=evidence, hint=hint)


@_pool(
    "M320 mirrored",
    (
        "You average every n_kv_heads-th head (0, 2, 4 …). A group is a run "
        "of consecutive heads: read the first axis as (n_kv_heads, group, Dh)."
    ),
)
def pool_kv_heads_strided(w, n_heads, n_kv_heads):
    heads = w.unflatten(0, (n_heads // n_kv_heads, n_kv_heads, -1))
    return heads.mean(0).flatten(0, 1)


@_pool(
    "common",
    (
        "Neighbouring rows are averaged: the group was taken inside a head. "
        "Row r of a head is averaged with row r of the other heads of its "
        "group, so the order of the axes is (n_kv_heads, group, Dh)."
    ),
)
def pool_kv_heads_neighbouring_rows(w, n_heads, n_kv_heads):
    heads = w.unflatten(0, (n_kv_heads, -1, n_heads // n_kv_heads))
    return heads.mean(2).flatten(0, 1)


@_pool(
    "GQA paper's ablation",
    (
        "You keep the first head of each group and drop the others. The mean "
        "keeps something of all of them, and works better."
    ),
)
def pool_kv_heads_first(w, n_heads, n_kv_heads):
    heads = w.unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1))
    return heads[:, 0].flatten(0, 1)


@_pool(
    "common",
    (
        "You add the heads of a group up. The mean divides by their number, "
        "or keys and values would grow with the group."
    ),
)
def pool_kv_heads_sum(w, n_heads, n_kv_heads):
    heads = w.unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1))
    return heads.sum(1).flatten(0, 1)


@_pool(
    "common",
    (
        "You divide by another number than that of the heads in a group: "
        "n_heads / n_kv_heads."
    ),
)
def pool_kv_heads_divides_by_groups(w, n_heads, n_kv_heads):
    return pool_kv_heads_sum(w, n_heads, n_kv_heads) / n_kv_heads


@_pool(
    "common",
    (
        "All heads are averaged and the mean is repeated for each group. Each "
        "group is averaged by itself."
    ),
)
def pool_kv_heads_mean_of_all(w, n_heads, n_kv_heads):
    mean = w.unflatten(0, (n_heads, -1)).mean(0)
    return torch.cat([mean] * n_kv_heads)


@_pool(
    "common",
    (
        "The result has as many rows as w: each pooled head is repeated for "
        "its group again. Return n_kv_heads · Dh rows; the module repeats "
        "later."
    ),
)
def pool_kv_heads_repeated(w, n_heads, n_kv_heads):
    group = n_heads // n_kv_heads
    heads = w.unflatten(0, (n_kv_heads, group, -1)).mean(1)
    return heads.repeat_interleave(group, 0).flatten(0, 1)


@_pool(
    "common",
    (
        "You pool columns. Heads are blocks of rows, the outputs of a "
        "projection."
    ),
)
def pool_kv_heads_columns(w, n_heads, n_kv_heads):
    if w.ndim == 1 or w.shape[1] % (n_heads // n_kv_heads):
        return w[: len(w) // n_heads * n_kv_heads]
    return w.unflatten(1, (-1, n_heads // n_kv_heads)).mean(-1)


@_pool(
    "common",
    (
        "It works for matrices only. A bias has one axis and is pooled along "
        "it, too."
    ),
)
def pool_kv_heads_matrices_only(w, n_heads, n_kv_heads):
    rows, n = w.shape
    heads = w.reshape(n_kv_heads, n_heads // n_kv_heads, -1, n)
    return heads.mean(1).reshape(-1, n)


@_pool(
    "common",
    (
        "The result keeps an axis for the heads. Join it with the rows: "
        "(n_kv_heads · Dh, n)."
    ),
)
def pool_kv_heads_not_joined(w, n_heads, n_kv_heads):
    return w.unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1)).mean(1)


@_pool(
    "common", ("You go through numpy or .detach(), which ends the gradient.")
)
def pool_kv_heads_detached(w, n_heads, n_kv_heads):
    return pool_kv_heads_chunks(w.detach(), n_heads, n_kv_heads)


@_pool(
    "common: float() without a way back",
    (
        "Half-precision weights come back as float32. Compute as you like, "
        "but return w's dtype."
    ),
)
def pool_kv_heads_half_returns_float(w, n_heads, n_kv_heads):
    w = w.float() if w.dtype in (torch.float16, torch.bfloat16) else w
    return pool_kv_heads_chunks(w, n_heads, n_kv_heads)


# 2.7 LatentAttention


def _angles(x):
    """Rotation of each pair by position, as unit complex numbers."""
    T, n = x.shape[-2:]
    rate = 10_000.0 ** (-torch.arange(0, n, 2).to(x) / n)
    angle = torch.arange(T).to(x)[:, None] * rate
    return torch.polar(torch.ones_like(angle), angle)


def _rotate(x):
    """Rotate the pairs (2i, 2i + 1) of x (..., T, n) by position."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * _angles(x)).flatten(-2)


def _latent_layers(module, d_model, n_heads, d_latent, d_rope):
    for name, n, m in (
        ("q_proj", d_model, d_model),
        ("q_rope_proj", d_model, n_heads * d_rope),
        ("kv_down", d_model, d_latent),
        ("k_rope_proj", d_model, d_rope),
        ("k_up", d_latent, d_model),
        ("v_up", d_latent, d_model),
        ("out_proj", d_model, d_model),
    ):
        setattr(module, name, nn.Linear(n, m, bias=False))


@oracle(
    "LatentAttention",
    evidence="loops over heads, queries and keys; the "
    "rotation by complex numbers",
)
class LatentLoops(nn.Module):
    def __init__(self, d_model, n_heads, d_latent, d_rope):
        super().__init__()
        _check(d_model, n_heads)
        self.H = n_heads
        _latent_layers(self, d_model, n_heads, d_latent, d_rope)

    def cache(self, x):
        return torch.cat([self.kv_down(x), _rotate(self.k_rope_proj(x))], -1)

    def forward(self, x, absorb=False):
        B, T, D = x.shape
        c = self.kv_down(x)
        k_rope = _rotate(self.k_rope_proj(x))
        width = D // self.H + k_rope.shape[-1]
        heads = []
        for h in range(self.H):
            row = slice(h * D // self.H, (h + 1) * D // self.H)
            q, up = x @ self.q_proj.weight[row].T, self.k_up.weight[row]
            value = self.v_up.weight[row]
            q, k = (q @ up, c) if absorb else (q, c @ up.T)
            v = c if absorb else c @ value.T
            turn = self.q_rope_proj.weight.chunk(self.H)[h]
            q_rope = _rotate(x @ turn.T)
            steps = []
            for t in range(T):
                s = torch.stack(
                    [
                        (q[:, t] * k[:, j]).sum(-1)
                        + (q_rope[:, t] * k_rope[:, j]).sum(-1)
                        for j in range(t + 1)
                    ],
                    -1,
                ) / math.sqrt(width)
                e = torch.exp(s - s.amax(-1, keepdim=True).detach())
                w = e / e.sum(-1, keepdim=True)
                steps.append(
                    sum(w[:, j, None] * v[:, j] for j in range(t + 1))
                )
            means = torch.stack(steps, 1)
            heads.append(means @ value.T if absorb else means)
        return self.out_proj(torch.cat(heads, -1))


class _Latent(nn.Module):
    """A right answer in steps, so that a mistake can change one of them."""

    def __init__(self, d_model, n_heads, d_latent, d_rope):
        super().__init__()
        self.fits(d_model, n_heads)
        self.H, self.d, self.c = n_heads, d_model // n_heads, d_latent
        self.r = d_rope
        self.layers(d_model, n_heads, d_latent, d_rope)

    def fits(self, d_model, n_heads):
        _check(d_model, n_heads)

    def layers(self, *sizes):
        _latent_layers(self, *sizes)

    def rotated(self, x):
        return _rotate(x)

    def rotated_queries(self, x):
        return self.rotated(x)

    def queries(self, x):
        q_rope = _split(self.q_rope_proj(x), self.H)
        return _split(self.q_proj(x), self.H), self.rotated_queries(q_rope)

    def latent(self, x):
        return self.kv_down(x)

    def rotary_key(self, x):
        return self.rotated(self.k_rope_proj(x))

    def cache(self, x):
        return torch.cat([self.latent(x), self.rotary_key(x)], -1)

    def width(self, absorb):
        return self.d + self.r

    def blocks(self, layer):
        return layer.weight.view(self.H, self.d, self.c)

    def weigh(self, scores):
        return _hide(scores, _causal(scores)).softmax(-1)

    def explicit(self, q, c):
        """Scores and a way from weights to the heads' outputs."""
        k = _split(self.k_up(c), self.H)
        v = _split(self.v_up(c), self.H)
        return q @ k.mT, lambda weights: weights @ v

    def absorbed(self, q, c):
        carried = torch.einsum("bhtd,hdc->bhtc", q, self.blocks(self.k_up))
        scores = torch.einsum("bhtc,bsc->bhts", carried, c)
        return scores, lambda weights: torch.einsum(
            "bhts,bsc,hdc->bhtd", weights, c, self.blocks(self.v_up)
        )

    def positional(self, q_rope, x):
        return q_rope @ self.rotary_key(x)[:, None].mT

    def merge(self, heads):
        return _merge(heads)

    def forward(self, x, absorb=False):
        q, q_rope = self.queries(x)
        how = self.absorbed if absorb else self.explicit
        scores, combine = how(q, self.latent(x))
        scores = scores + self.positional(q_rope, x)
        weights = self.weigh(scores / math.sqrt(self.width(absorb)))
        return self.out_proj(self.merge(combine(weights)))


@right("LatentAttention", evidence="one step a method, einsum")
class LatentSteps(_Latent):
    pass


@right(
    "LatentAttention",
    evidence="joined rotary parts and SDPA, for both "
    "ways, with an explicit scale",
)
class LatentFused(_Latent):
    def forward(self, x, absorb=False):
        q, q_rope = self.queries(x)
        c, k_rope = self.cache(x).split([self.c, self.r], -1)
        k_rope = k_rope[:, None].expand(-1, self.H, -1, -1)
        if absorb:
            q = q @ self.blocks(self.k_up)
            k = v = c[:, None].expand(-1, self.H, -1, -1)
        else:
            k, v = (_split(up(c), self.H) for up in (self.k_up, self.v_up))
        out = F.scaled_dot_product_attention(
            torch.cat([q, q_rope], -1),
            torch.cat([k, k_rope], -1),
            v,
            is_causal=True,
            scale=(self.d + self.r) ** -0.5,
        )
        if absorb:
            out = out @ self.blocks(self.v_up).transpose(1, 2)
        return self.out_proj(_merge(out))


@right(
    "LatentAttention",
    evidence="head by head; output projection absorbed "
    "into v_up as DeepSeek-V2 proposes",
)
class LatentHeadByHead(_Latent):
    def absorbed(self, q, c):
        raise NotImplementedError

    def forward(self, x, absorb=False):
        if not absorb:
            return super().forward(x)
        q, q_rope = self.queries(x)
        c, total = self.latent(x), 0
        positional = self.positional(q_rope, x)
        for h in range(self.H):
            rows = slice(h * self.d, (h + 1) * self.d)
            s = q[:, h] @ self.k_up.weight[rows] @ c.mT + positional[:, h]
            mean = self.weigh(s / math.sqrt(self.d + self.r)) @ c
            total = (
                total
                + mean
                @ (self.out_proj.weight[:, rows] @ self.v_up.weight[rows]).T
            )
        return total


@right(
    "LatentAttention",
    evidence="k_up read by applying it to an identity "
    "matrix; rotation by cos and sin",
)
class LatentIdentity(_Latent):
    def blocks(self, layer):
        eye = torch.eye(self.c).to(layer.weight)
        return layer(eye).T.reshape(self.H, self.d, self.c)

    def rotated(self, x):
        turn = _angles(x)
        a, b = x[..., 0::2], x[..., 1::2]
        out = torch.empty_like(x)
        out[..., 0::2] = a * turn.real - b * turn.imag
        out[..., 1::2] = a * turn.imag + b * turn.real
        return out


def _mla(evidence, hint):
    return wrong("LatentAttention", evidence=evidence, hint=hint)


@_mla(
    "common",
    (
        "The scores are divided by √Dh alone. A score is a dot product of Dh "
        "+ d_rope terms: divide by the root of that."
    ),
)
class LatentScaleByHead(_Latent):
    def width(self, absorb):
        return self.d


@_mla(
    "M-kind of 2.2",
    (
        "The scores are divided by √D, the width of the model. A score is a "
        "dot product of Dh + d_rope terms: divide by the root of that."
    ),
)
class LatentScaleByModel(_Latent):
    def width(self, absorb):
        return self.H * self.d


@_mla(
    "common",
    (
        "The absorbed scores are divided by the root of the latent's width. "
        "Absorbing changes how the same score is computed, so the scale is "
        "that of the explicit form: 1/√(Dh + d_rope)."
    ),
)
class LatentScaleByLatent(_Latent):
    def width(self, absorb):
        return self.c + self.r if absorb else self.d + self.r


@_mla(
    "M021 family",
    (
        "Only the content part of the score is scaled (or each part by its "
        "own width). Add the parts first, then divide the sum by √(Dh + "
        "d_rope)."
    ),
)
class LatentScaledApart(_Latent):
    def forward(self, x, absorb=False):
        q, q_rope = self.queries(x)
        how = self.absorbed if absorb else self.explicit
        scores, combine = how(q, self.latent(x))
        scores = scores / math.sqrt(self.d) + self.positional(
            q_rope, x
        ) / math.sqrt(self.r)
        return self.out_proj(_merge(combine(self.weigh(scores))))


@_mla("common", "The scores are not scaled: divide by √(Dh + d_rope).")
class LatentNoScale(_Latent):
    def width(self, absorb):
        return 1


@_mla(
    "M052",
    (
        "Nothing hides the future. The layer is causal, in both ways of "
        "computing."
    ),
)
class LatentNoMask(_Latent):
    def weigh(self, scores):
        return scores.softmax(-1)


@_mla(
    "M056",
    (
        "Each position sees one token of the future: the diagonal is off by "
        "one."
    ),
)
class LatentOneAhead(_Latent):
    def weigh(self, scores):
        return _hide(scores, _causal(scores, 1)).softmax(-1)


@_mla(
    "M046",
    (
        "The absorbed way has no causal mask. Both ways compute the same "
        "function: share the code after the scores."
    ),
)
class LatentAbsorbedUnmasked(_Latent):
    def forward(self, x, absorb=False):
        if not absorb:
            return super().forward(x)
        q, q_rope = self.queries(x)
        scores, combine = self.absorbed(q, self.latent(x))
        scores = scores + self.positional(q_rope, x)
        weights = (scores / math.sqrt(self.width(True))).softmax(-1)
        return self.out_proj(_merge(combine(weights)))


@_mla(
    "common",
    (
        "The rotary key is not rotated, neither in the score nor in the "
        "cache. Without it a score does not know the positions' difference: "
        "rotate it as you rotate the queries."
    ),
)
class LatentKeyNotRotated(_Latent):
    def rotary_key(self, x):
        return self.k_rope_proj(x)


@_mla(
    "D3: only Q rotated, mirrored",
    (
        "The rotary queries are not rotated. Both sides have to be, or the "
        "score depends on the key's position instead of the distance."
    ),
)
class LatentQueriesNotRotated(_Latent):
    def rotated_queries(self, x):
        return x


@_mla(
    "common",
    (
        "Nothing is rotated: neither rotary queries nor the rotary key. Use "
        "the rotation that is given on both."
    ),
)
class LatentNothingRotated(_Latent):
    def rotated(self, x):
        return x


@_mla(
    "common",
    (
        "The rotary part of the score is missing. Add the product of rotary "
        "queries and rotary key to the product of queries and keys."
    ),
)
class LatentNoRotaryPart(_Latent):
    def positional(self, q_rope, x):
        return 0.0


@_mla(
    "common: the absorbed way forgets it",
    (
        "The absorbed way has no rotary part. Only the content part of the "
        "score can be absorbed; the rotary part is computed as before and "
        "added."
    ),
)
class LatentAbsorbedWithoutRotary(_Latent):
    def forward(self, x, absorb=False):
        if not absorb:
            return super().forward(x)
        q, _ = self.queries(x)
        scores, combine = self.absorbed(q, self.latent(x))
        weights = self.weigh(scores / math.sqrt(self.width(True)))
        return self.out_proj(_merge(combine(weights)))


@_mla(
    "common, ids of the wrong axis",
    (
        "The rotary queries are rotated before they are split into heads and "
        "swapped, or along the head axis: the position is the number of the "
        "token, not of the head. The time axis has to be the last but one."
    ),
)
class LatentRotatesHeadAxis(_Latent):
    def queries(self, x):
        q_rope = self.q_rope_proj(x).unflatten(-1, (self.H, self.r))
        return _split(self.q_proj(x), self.H), self.rotated(q_rope).transpose(
            1, 2
        )


@_mla(
    "D3: spectrum before split",
    (
        "The rotary queries of all heads are rotated as one wide vector, so "
        "each head gets other frequencies than the rotary key. Split into "
        "heads first, then rotate the d_rope numbers of each."
    ),
)
class LatentRotatesBeforeSplit(_Latent):
    def queries(self, x):
        q_rope = self.rotated(self.q_rope_proj(x))
        return _split(self.q_proj(x), self.H), _split(q_rope, self.H)


@_mla(
    "D3: half-split layout; K",
    (
        "The halves of the rotary part are paired (as in Hugging Face's "
        "Llama), where neighbours are due. Scores agree with loaded weights "
        "only in the layout for which they were made: use the rotation that "
        "is given."
    ),
)
class LatentHalfLayout(_Latent):
    def rotated(self, x):
        a, b = x.chunk(2, -1)
        paired = torch.stack([a, b], -1).flatten(-2)
        turned = _rotate(paired)
        return torch.cat([turned[..., 0::2], turned[..., 1::2]], -1)


@_mla(
    "D3: reversed direction",
    (
        "The cache's rotary key is turned the wrong way round (the sign of "
        "the sine). Scores would still agree, since queries turn with it; "
        "stored keys do not. Use the rotation that is given."
    ),
)
class LatentTurnsBackward(_Latent):
    def rotated(self, x):
        swapped = x * x.new_tensor([1.0, -1.0]).repeat(x.shape[-1] // 2)
        turned = _rotate(swapped)
        return turned * x.new_tensor([1.0, -1.0]).repeat(x.shape[-1] // 2)


@_mla(
    "M084 family",
    (
        "The positions count from 1. Scores depend on differences only and "
        "agree, but the stored rotary keys do not: the first token has "
        "position 0 and is not turned."
    ),
)
class LatentPositionsFromOne(_Latent):
    def rotated(self, x):
        padded = torch.cat([torch.zeros_like(x[..., :1, :]), x], -2)
        return _rotate(padded)[..., 1:, :]


@_mla(
    "common",
    (
        "The whole head is rotated, content part included. Then k_up could "
        "not be moved to the queries: a rotation stands between them. Only "
        "the rotary part turns."
    ),
)
class LatentRotatesContent(_Latent):
    def explicit(self, q, c):
        k = _rotate_even(_split(self.k_up(c), self.H))
        v = _split(self.v_up(c), self.H)
        return _rotate_even(q) @ k.mT, lambda weights: weights @ v


def _rotate_even(x):
    """Rotate what comes in pairs."""
    n = x.shape[-1] // 2 * 2
    return torch.cat([_rotate(x[..., :n]), x[..., n:]], -1) if n else x


@_mla(
    "common",
    (
        "The latent is rotated. It carries content for keys and values alike "
        "and stays as it is; only the rotary key turns."
    ),
)
class LatentRotatesLatent(_Latent):
    def latent(self, x):
        return _rotate_even(self.kv_down(x))


@_mla(
    "common",
    (
        "The cache holds the rotary key before its rotation. Store it "
        "rotated: its position never changes, and rotating all stored keys at "
        "every step would be wasted work."
    ),
)
class LatentCacheNotRotated(_Latent):
    def cache(self, x):
        return torch.cat([self.kv_down(x), self.k_rope_proj(x)], -1)


@_mla(
    "common",
    (
        "The cache has the rotary key first. The contract puts the latent "
        "first, then the rotary key."
    ),
)
class LatentCacheSwapped(_Latent):
    def cache(self, x):
        return torch.cat([self.rotary_key(x), self.kv_down(x)], -1)


@_mla(
    "facts.md: 576, not 512",
    (
        "The cache holds the latent only. Without the rotary key the "
        "positional part of the scores cannot be computed later."
    ),
)
class LatentCacheLatentOnly(_Latent):
    def cache(self, x):
        return self.kv_down(x)


@_mla(
    "facts.md: MLA modelled as 2 × latent",
    (
        "The cache holds keys and values of all heads: the very thing that "
        "the latent is there to replace. Store the latent and the rotary key."
    ),
)
class LatentCacheKeysAndValues(_Latent):
    def cache(self, x):
        c = self.kv_down(x)
        return torch.cat([self.k_up(c), self.v_up(c)], -1)


@_mla(
    "common",
    (
        "The cache has a rotary key for each head. One is shared by all "
        "heads, and stored once."
    ),
)
class LatentCacheRotaryPerHead(_Latent):
    def cache(self, x):
        return torch.cat([self.latent(x)] + [self.rotary_key(x)] * self.H, -1)


@_mla(
    "common: absorb ignored",
    (
        "With absorb=True keys and values of all heads are still formed from "
        "the latents: absorb changes nothing. Carry the queries into the "
        "latent space with k_up's weight, and average latents instead of "
        "values."
    ),
)
class LatentIgnoresAbsorb(_Latent):
    def forward(self, x, absorb=False):
        return super().forward(x)


@_mla(
    "common",
    (
        "In the absorbed way the blocks of k_up are cut as (Dh, H) instead of "
        "(H, Dh): rows of different heads are mixed. Head h owns the rows "
        "h·Dh to (h + 1)·Dh."
    ),
)
class LatentAbsorbsStrided(_Latent):
    def blocks(self, layer):
        return layer.weight.view(self.d, self.H, self.c).transpose(0, 1)


@_mla(
    "common",
    (
        "In the absorbed way all heads use the block of the first head. Each "
        "head's query is carried over by its own rows of k_up, and its "
        "average by its own rows of v_up."
    ),
)
class LatentAbsorbsFirstBlock(_Latent):
    def blocks(self, layer):
        return layer.weight[: self.d].expand(self.H, -1, -1)


@_mla(
    "common",
    (
        "In the absorbed way k_up's block serves for the values, too. The "
        "average of latents is carried back by v_up."
    ),
)
class LatentAbsorbsKeysTwice(_Latent):
    def absorbed(self, q, c):
        scores, _ = super().absorbed(q, c)
        return scores, lambda weights: torch.einsum(
            "bhts,bsc,hdc->bhtd", weights, c, self.blocks(self.k_up)
        )


@_mla(
    "common: precomputed products",
    (
        "The absorbed way uses copies of the weights (.data, .detach(), "
        "no_grad, or a product stored earlier), so k_up and v_up get no "
        "gradient there. Take the parameters themselves."
    ),
)
class LatentAbsorbsDetached(_Latent):
    def blocks(self, layer):
        return super().blocks(layer).detach()


@_mla(
    "hunt: keys by the weight, without the module",
    (
        "With absorb=True you still form keys: the latents of all tokens meet "
        "k_up's weight. It belongs to the other side of the dot product, to "
        "the queries."
    ),
)
class LatentKeysByWeight(_Latent):
    def absorbed(self, q, c):
        keys = c[:, None] @ self.blocks(self.k_up).mT
        return q @ keys.mT, super().absorbed(q, c)[1]


@_mla(
    "hunt: half absorbed",
    (
        "With absorb=True you form no keys, but values: the latents of all "
        "tokens meet v_up before they are averaged. Average the latents, then "
        "apply each head's block of v_up once a query."
    ),
)
class LatentValuesFormed(_Latent):
    def absorbed(self, q, c):
        values = _split(self.v_up(c), self.H)
        return super().absorbed(q, c)[0], lambda weights: weights @ values


@_mla(
    "hunt: values formed one after another",
    (
        "With absorb=True the value of each token is formed by itself, in a "
        "loop. They are the same values: average the latents, then apply each "
        "head's block of v_up."
    ),
)
class LatentValuesOneByOne(_Latent):
    def absorbed(self, q, c):
        values = [_split(self.v_up(token), self.H) for token in c.split(1, 1)]

        def combine(weights):
            shares = weights.split(1, -1)
            return sum(
                share * value
                for share, value in zip(shares, values, strict=True)
            )

        return super().absorbed(q, c)[0], combine


@_mla(
    "hunt: cache() under no_grad",
    (
        "The numbers are right, but what cache returns is detached "
        "(.detach(), no_grad), so kv_down and k_rope_proj get no gradient. In "
        "training the latents are a step like any other."
    ),
)
class LatentCacheDetached(_Latent):
    def latent(self, x):
        return super().latent(x).detach()

    def rotary_key(self, x):
        return super().rotary_key(x).detach()


@_mla(
    "M118, M116",
    (
        "The weights' product for the absorbed way is computed once and kept, "
        "so it is stale as soon as the weights change. Form it from the "
        "parameters at every call."
    ),
)
class LatentAbsorbsStale(_Latent):
    def layers(self, *sizes):
        super().layers(*sizes)
        self.kept = {
            id(layer): layer.weight.detach().double().clone()
            for layer in (self.k_up, self.v_up)
        }

    def blocks(self, layer):
        return (
            self.kept[id(layer)].to(layer.weight).view(self.H, self.d, self.c)
        )


@_mla(
    "M079",
    (
        "The heads are made by a view alone, which scrambles positions and "
        "columns. View as (B, T, H, width), then swap axes 1 and 2."
    ),
)
class LatentSplitByView(_Latent):
    def queries(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, self.H, T, self.d)
        q_rope = self.q_rope_proj(x).view(B, self.H, T, self.r)
        return q, self.rotated(q_rope)


@_mla(
    "M083",
    (
        "The heads are merged by a reshape without swapping the head and time "
        "axes back first."
    ),
)
class LatentMergeByReshape(_Latent):
    def merge(self, heads):
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@_mla(
    "M026 family: q_rope cut as (d_rope, H)",
    (
        "The rotary queries are cut into heads as (d_rope, H). Head h owns "
        "the rows h·d_rope to (h + 1)·d_rope of q_rope_proj."
    ),
)
class LatentStridedRotary(_Latent):
    def queries(self, x):
        rows = self.q_rope_proj(x).unflatten(-1, (self.r, self.H))
        return _split(self.q_proj(x), self.H), self.rotated(
            rows.permute(0, 3, 1, 2)
        )


@_mla("K20", ("The projections have biases. Here none of the seven has one."))
class LatentWithBiases(_Latent):
    def layers(self, d_model, n_heads, d_latent, d_rope):
        super().layers(d_model, n_heads, d_latent, d_rope)
        for name, layer in list(self.named_children()):
            setattr(
                self, name, nn.Linear(layer.in_features, layer.out_features)
            )


@_mla(
    "common: a rotary key per head",
    (
        "k_rope_proj makes a rotary key for each head. One is shared by all "
        "heads: it has d_rope rows."
    ),
)
class LatentRotaryKeyPerHead(_Latent):
    def layers(self, d_model, n_heads, d_latent, d_rope):
        super().layers(d_model, n_heads, d_latent, d_rope)
        self.k_rope_proj = nn.Linear(d_model, n_heads * d_rope, bias=False)

    def positional(self, q_rope, x):
        k = self.rotated(_split(self.k_rope_proj(x), self.H))
        return q_rope @ k.mT


@_mla(
    "DeepSeek normalises its latent",
    (
        "The latent is normalised before it is used. DeepSeek does that; this "
        "task leaves the norm out."
    ),
)
class LatentNormalised(_Latent):
    def latent(self, x):
        c = self.kv_down(x)
        return c * (c.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@_mla(
    "M097",
    (
        "Nobody checks that n_heads divides d_model. Raise a ValueError that "
        "names both numbers when the module is built."
    ),
)
class LatentUncheckedWidth(_Latent):
    def fits(self, d_model, n_heads):
        pass


@_mla(
    "common",
    (
        "Divisibility is checked with assert, which raises an AssertionError "
        "and disappears under python -O. Raise a ValueError."
    ),
)
class LatentAsserts(_Latent):
    def fits(self, d_model, n_heads):
        assert d_model % n_heads == 0, f"{d_model} % {n_heads}"


@_mla("M088", "out_proj is not used. Pass the merged heads through it.")
class LatentUnusedOutput(_Latent):
    def forward(self, x, absorb=False):
        kept, self.out_proj = self.out_proj, nn.Identity()
        try:
            return super().forward(x, absorb)
        finally:
            self.out_proj = kept


@_mla(
    "M094",
    (
        "The values are made by k_up as well; v_up is not used. Keys and "
        "values come from the same latent by different matrices."
    ),
)
class LatentKeysForValues(_Latent):
    def explicit(self, q, c):
        k = _split(self.k_up(c), self.H)
        return q @ k.mT, lambda weights: weights @ k

    def absorbed(self, q, c):
        scores, _ = super().absorbed(q, c)
        return scores, lambda weights: torch.einsum(
            "bhts,bsc,hdc->bhtd", weights, c, self.blocks(self.k_up)
        )


@_mla(
    "M097 too late",
    (
        "The division is checked at the first call. Whoever builds the module "
        "with wrong numbers should learn it there: raise the ValueError in "
        "__init__."
    ),
)
class LatentChecksAtCall(_Latent):
    def fits(self, d_model, n_heads):
        self.sizes = d_model, n_heads

    def forward(self, x, absorb=False):
        _check(*self.sizes)
        return super().forward(x, absorb)


@_mla(
    "M048",
    (
        "Hidden scores are filled with a large finite number. Visible scores "
        "may lie below it, and then the hidden keys take all the weight. Fill "
        "with −inf."
    ),
)
class LatentLargeFill(_Latent):
    def weigh(self, scores):
        return scores.masked_fill(~_causal(scores), -1e9).softmax(-1)


@_mla(
    "M063",
    (
        "The causal mask is made on the CPU, or kept from the first call, so "
        "the module fails once it is moved to a GPU. Make the mask at every "
        "call, on the device of the input."
    ),
)
class LatentMaskOnCPU(_Latent):
    def weigh(self, scores):
        T = scores.shape[-1]
        keep = torch.ones(T, T, dtype=torch.bool).tril()
        return _hide(scores, keep).softmax(-1)


@_mla(
    "M112 family",
    (
        "A buffer lands in state_dict, which should hold the parameters and "
        "nothing else. Register it with persistent=False, or make the tensor "
        "when it is needed."
    ),
)
class LatentSavesBuffer(_Latent):
    def layers(self, *sizes):
        super().layers(*sizes)
        self.register_buffer("scale", torch.tensor(self.width(False) ** -0.5))


@_mla(
    "DeepSeek's attention_dropout",
    (
        "Weights are dropped in train mode. This task asks for no dropout: in "
        "train mode the module does what it does in eval mode."
    ),
)
class LatentDropsInTraining(_Latent):
    def weigh(self, scores):
        return F.dropout(super().weigh(scores), 0.1, self.training)


@_mla(
    "M116",
    (
        "The latents of one call are kept and used again for the next input "
        "of the same shape. Form them from x in each call."
    ),
)
class LatentRemembers(_Latent):
    def latent(self, x):
        kept = getattr(self, "kept", None)
        if kept is None or kept.shape[:2] != x.shape[:2]:
            self.kept = kept = super().latent(x)
        return kept


@_mla(
    "common: view(B * T, D)",
    (
        "x is flattened with view, which refuses a tensor whose axes were "
        "swapped, such as a time-first batch. reshape copies where it must, "
        "and nn.Linear takes any leading axes."
    ),
)
class LatentFlattensByView(_Latent):
    def queries(self, x):
        return super().queries(x.view(-1, x.shape[-1]).view(x.shape))


@_mla(
    "common: if absorb and not self.training",
    (
        "In train mode absorb=True is ignored: keys are formed as without it. "
        "Absorbing gives the same gradients, so it serves in both modes."
    ),
)
class LatentAbsorbsInEvalOnly(_Latent):
    def absorbed(self, q, c):
        if self.training:
            return self.explicit(q, c)
        return super().absorbed(q, c)


@_mla(
    "hunt: keys one token at a time",
    (
        "With absorb=True you form the keys one token after another. That is "
        "the same product of k_up with the latents, in slices: let k_up meet "
        "the queries instead."
    ),
)
class LatentKeysTokenByToken(_Latent):
    def absorbed(self, q, c):
        up = self.blocks(self.k_up)
        scores = [
            torch.einsum(
                "bhtd,bhd->bht", q, (up @ token[:, None, :, None])[..., 0]
            )
            for token in c.unbind(1)
        ]
        return torch.stack(scores, -1), super().absorbed(q, c)[1]


@_mla(
    "hunt: the scale folded into the keys",
    (
        "With absorb=True you form keys that carry a factor already. They are "
        "keys all the same: let k_up meet the queries instead."
    ),
)
class LatentKeysScaled(_Latent):
    def absorbed(self, q, c):
        root = math.sqrt(self.width(True))
        keys = c[:, None] @ (self.blocks(self.k_up) / root).mT
        return q @ keys.mT * root, super().absorbed(q, c)[1]


@_mla(
    "hunt: the product is made at the first call",
    (
        "With absorb=True the weights of the first call are kept, and a step "
        "of training changes nothing any more. Form the product from the "
        "parameters at every call."
    ),
)
class LatentKeepsProduct(_Latent):
    def blocks(self, layer):
        kept = self.__dict__.setdefault("kept", {})
        if id(layer) not in kept:
            kept[id(layer)] = super().blocks(layer).clone()
        return kept[id(layer)]


@_mla(
    "hunt: torch.sqrt(torch.tensor(d, dtype=torch.float32))",
    (
        "The root of Dh + d_rope is taken in float32, so float64 scores are "
        "off in the eighth digit. Use a Python number: math.sqrt, or ** 0.5."
    ),
)
class LatentScaleInFloat32(_Latent):
    def weigh(self, scores):
        width = torch.tensor(self.d + self.r, dtype=torch.float32)
        return super().weigh(scores * width.item() ** 0.5 / width.sqrt())


@_mla(
    "hunt: @torch.no_grad() on cache() alone",
    (
        "forward has all gradients, but what cache returns has none "
        "(.detach(), no_grad). Its numbers are a result like any other: let "
        "gradients flow to x, kv_down and k_rope_proj."
    ),
)
class LatentCacheWithoutGraph(_Latent):
    def cache(self, x):
        return super().cache(x).detach()


@_mla(
    "hunt: v_up joined with out_proj, then applied to the latents",
    (
        "With absorb=True you join v_up with out_proj and apply the product "
        "to the latents of all tokens. That forms values, even wider ones: "
        "average the latents first."
    ),
)
class LatentValuesThroughOutput(_Latent):
    def absorbed(self, q, c):
        out = self.out_proj.weight.unflatten(1, (self.H, self.d))
        joined = torch.einsum("mhd,hdc->hmc", out, self.blocks(self.v_up))
        values = torch.einsum("hmc,bsc->bhsm", joined, c)
        return super().absorbed(q, c)[0], lambda weights: weights @ values

    def forward(self, x, absorb=False):
        if not absorb:
            return super().forward(x)
        q, q_rope = self.queries(x)
        scores, combine = self.absorbed(q, self.latent(x))
        scores = scores + self.positional(q_rope, x)
        weights = self.weigh(scores / math.sqrt(self.width(absorb)))
        return combine(weights).sum(1)


@_mla(
    "hunt: k_up joined with q_proj, then applied to the latents",
    (
        "With absorb=True you join k_up with q_proj and apply the product to "
        "the latents of all tokens. That forms keys, even wider ones: apply "
        "it to the tokens that ask."
    ),
)
class LatentKeysThroughQueries(_Latent):
    def queries(self, x):
        self.tokens = x
        return super().queries(x)

    def absorbed(self, q, c):
        joined = self.blocks(self.k_up).mT @ self.q_proj.weight.unflatten(
            0, (self.H, self.d)
        )
        keys = torch.einsum("hcm,bsc->bhsm", joined, c)
        scores = torch.einsum("btm,bhsm->bhts", self.tokens, keys)
        return scores, super().absorbed(q, c)[1]


@_mla(
    "hunt: dropout in the absorbed way alone",
    (
        "With absorb=True you drop attention weights in train mode. No "
        "dropout is asked for: both ways compute the same in both modes."
    ),
)
class LatentDropsWhenAbsorbed(_Latent):
    def absorbed(self, q, c):
        scores, combine = super().absorbed(q, c)
        return scores, lambda weights: combine(
            F.dropout(weights, 0.1, self.training)
        )


# 2.8 alternative_weights


@oracle(
    "alternative_weights",
    evidence="scipy's non-negative least squares, "
    "whose solutions have at most d + 1 positive entries",
)
def alternative_weights_nnls(w, v):
    from scipy.optimize import nnls

    ones = np.ones((1, len(w)))
    found, _ = nnls(np.vstack([v.T, ones]), np.append(w @ v, 1.0))
    return found


def _corner(w, v, rng=None):
    """Carathéodory: step along null vectors until d + 1 weights are left."""
    rows = np.vstack([v.T, np.ones(len(w))])
    w, left = w.copy(), np.arange(len(w))
    while len(left) > len(rows):
        _, _, vt = np.linalg.svd(rows[:, left])
        null = vt[len(rows) :]
        u = null[0] if rng is None else rng.standard_normal(len(null)) @ null
        step = np.min(w[left][u < 0] / -u[u < 0])
        w[left] = w[left] + step * u
        w[left[np.argmin(w[left])]] = 0
        left = np.flatnonzero(w > 1e-13)
    return w


@right("alternative_weights", evidence="Carathéodory's reduction")
def alternative_weights_corner(w, v):
    return _corner(w, v)


@right(
    "alternative_weights",
    evidence="random directions: another answer at every call",
)
def alternative_weights_random(w, v):
    return _corner(w, v, np.random.default_rng())


@right(
    "alternative_weights",
    evidence="a linear program that leaves w where "
    "it is large, its corner made exact",
)
def alternative_weights_program(w, v):
    from scipy.optimize import linprog

    rows = np.vstack([v.T, np.ones(len(w))])
    due = rows @ w
    found = linprog(w, A_eq=rows, b_eq=due, bounds=(0, None)).x
    kept = found > 1e-9
    exact = np.zeros_like(w)
    exact[kept] = np.linalg.lstsq(rows[:, kept], due, rcond=None)[0]
    return exact


@right(
    "alternative_weights",
    evidence="a corner and its way back: the "
    "farther end of the line through w",
)
def alternative_weights_best_of_two(w, v):
    ends = [_corner(w, v, np.random.RandomState(seed)) for seed in (0, 1)]
    return max(ends, key=lambda end: np.abs(end - w).sum())


def _alternative(evidence, hint):
    return wrong("alternative_weights", evidence=evidence, hint=hint)


@_alternative(
    "the lazy answer",
    (
        "You return w itself. The task asks for other weights, more than 0.3 "
        "away."
    ),
)
def alternative_weights_same(w, v):
    return w.copy()


@_alternative(
    "Jain and Wallace: permuted weights change the output",
    (
        "You shuffle the weights. That is another distribution, but over "
        "other values: the output changes. The step has to keep all d sums."
    ),
)
def alternative_weights_shuffled(w, v):
    return np.roll(np.sort(w), 1)


@_alternative(
    "common",
    (
        "Uniform weights average all values equally, which is another output. "
        "Start from w and move in directions that keep the output."
    ),
)
def alternative_weights_uniform(w, v):
    return np.full_like(w, 1 / len(w))


@_alternative(
    "common: the total variation without its ½",
    (
        "You stop too early: your distance is above 0.3 only without the "
        "factor ½ of the total variation. Go on until the sum of absolute "
        "differences is above 0.6."
    ),
)
def alternative_weights_without_half(w, v):
    end = _corner(w, v)
    return w + (end - w) * 0.4 / np.abs(end - w).sum()


@_alternative(
    "common: one step along one direction",
    (
        "You take one step in one direction, until the first weight reaches "
        "0. That is seldom far enough: drop that weight and go on with the "
        "others, until no direction is left."
    ),
)
def alternative_weights_one_step(w, v):
    rows = np.vstack([v.T, np.ones(len(w))])
    u = np.linalg.svd(rows)[2][-1]
    return np.maximum(w + np.min(w[u < 0] / -u[u < 0]) * u, 0)


@_alternative(
    "common: a tiny step",
    (
        "Your weights differ from w by rounding or by a tiny step. Go as far "
        "as the weights stay positive."
    ),
)
def alternative_weights_tiny_step(w, v):
    end = _corner(w, v)
    return w + 1e-4 * (end - w)


@_alternative(
    "common: sum forgotten",
    (
        "The output is right but the weights do not sum to 1: your directions "
        "come from the null space of vᵀ alone. Add a row of ones, so that the "
        "sum is kept as well."
    ),
)
def alternative_weights_sum_forgotten(w, v):
    u = np.linalg.svd(v.T)[2][-1]
    u = u * np.sign(u.sum())
    step = np.min(w[u < 0] / -u[u < 0]) if (u < 0).any() else 1.0
    return w + min(step, 5.0) * u


@_alternative(
    "common: negative weights",
    (
        "The output and the sum are right, but some weights are negative. "
        "Stop a step where the first weight reaches 0."
    ),
)
def alternative_weights_negative(w, v):
    rows = np.vstack([v.T, np.ones(len(w))])
    return w + 3.0 * np.linalg.svd(rows)[2][-1]


@_alternative(
    "common: least squares",
    (
        "The solution of smallest norm does not mind signs, so it may have "
        "negative weights, and it stays as near to 0 as it can. You look for "
        "non-negative weights far from w."
    ),
)
def alternative_weights_two_sided(w, v):
    rows = np.vstack([v.T, np.ones(len(w))])
    kept = np.arange(len(w)) < len(rows)
    found = np.zeros_like(w)
    found[kept] = np.linalg.lstsq(rows[:, kept], rows @ w, rcond=None)[0]
    return found


@_alternative(
    "common: clipped and normalised",
    (
        "You clip negative weights to 0 and divide by the sum afterwards. "
        "Both change the output. Limit the step instead, so that nothing "
        "becomes negative."
    ),
)
def alternative_weights_clipped(w, v):
    found = np.maximum(alternative_weights_negative(w, v), 0)
    return found / found.sum()


@_alternative(
    "common: approximate",
    (
        "The output is off by more than 1e-9: an optimiser that stops at 1e-4 "
        "or a penalty in place of an equation is not enough. Solve the "
        "equations exactly: a null vector does."
    ),
)
def alternative_weights_approximate(w, v):
    end = _corner(w, v)
    shaken = end + 1e-6 * np.arange(len(w))
    return shaken / shaken.sum()


@_alternative(
    "common: one-hot",
    (
        "All weight lies on one value (or on the nearest one). One value is "
        "seldom equal to the average; up to d + 1 of them are needed."
    ),
)
def alternative_weights_one_hot(w, v):
    out = w @ v
    return np.eye(len(w))[np.argmin(((v - out) ** 2).sum(1))]


@_alternative(
    "M011",
    (
        "The result is right but you write it into w. The caller still needs "
        "w: work on a copy."
    ),
)
def alternative_weights_in_place(w, v):
    w[:] = _corner(w, v)
    return w


@_alternative(
    "hunt: the middle between w and a corner",
    (
        "You stop half way to weights that keep the output. That is often "
        "less than 0.3 away: go all the way."
    ),
)
def alternative_weights_half_way(w, v):
    return (w + _corner(w, v)) / 2


@_alternative(
    "hunt: a fixed number of steps",
    (
        "You take a fixed number of steps. How far they lead depends on the "
        "weights: a step ends early where a small weight reaches 0. Go on "
        "until no direction is left, or until you are far enough."
    ),
)
def alternative_weights_three_steps(w, v):
    rows = np.vstack([v.T, np.ones(len(w))])
    w, left = w.copy(), np.arange(len(w))
    for _ in range(3):
        u = np.linalg.svd(rows[:, left])[2][-1]
        step = np.min(w[left][u < 0] / -u[u < 0])
        w[left] = np.maximum(w[left] + step * u, 0)
        left = np.flatnonzero(w > 1e-13)
    return w


@_alternative(
    "hunt: small weights taken for rounding",
    (
        "You set small weights to 0 that the output needs. Only rounding may "
        "be dropped, which is far below 1e-9."
    ),
)
def alternative_weights_small_dropped(w, v):
    found = _corner(w, v)
    found[found < 1e-3] = 0
    return found / found.sum()


LEFT_OUT = {
    "M023": "the scale belongs to 1.5; its kind is the scale by another width",
    "M027": "keys with swapped axes do not fit at the sizes of the inputs",
    "M029": "numpy's dot belongs to 1.8",
    "M041": "for 2.2 it is the mask of M053",
    "M049": "no half precision in the modules here",
    "M050": "as CrossAttentionUniformWhenDead",
    "M058": "as M057",
    "M064": "layers and targets come with the block and the GPT",
    "M068": "no mask is handed on here",
    "M071": "NaN in padded values is not promised (F.sdpa fails it too)",
    "M072": "no embeddings here",
    "M077": "no second path with padding here",
    "M078": "no norm here; CrossAttentionMasksValuesOnly is its kind",
    "M100": "no cache here; CrossAttentionValuesFromQueries is its kind",
    "M108": "no residual here: lesson 4",
    "M114": "nothing crops a block here",
    "M116": "no cache here: lesson 6",
    "M117": "no table of angles is stored here: lesson 3",
    "M325": "the projections are separate by contract",
    "M352": "no tied weights here: lesson 5",
    "M356": "no SwiGLU here",
    "M360": "the cache is counted in 6.1",
    "M362": "the head width is d_model / n_heads by contract",
    "M364": "no rates here: 7.2",
    "M365": "no optimiser here",
    "K13": "the documented mask type only",
    "K14": "the documented mask shape only",
    "K16": "a pair by contract; a list or a named tuple passes",
    "K17": "extra arguments with defaults pass, further results do not",
    "K26": "nn.MultiheadAttention would be the whole answer and is forbidden",
    "K79": "no tiles here: lesson 6",
    "K84": "bytes by contract",
}
