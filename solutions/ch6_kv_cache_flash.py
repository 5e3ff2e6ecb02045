# %% [markdown]
# # KV cache and FlashAttention
#
# **Goal:** make attention cheap where it is used most: keep the keys and
# values of what was read, in three kinds of cache, and compute attention
# without ever holding the scores.
#
# Read [the chapter](../book/ch6_kv_cache_flash.md) first, or keep it open
# beside this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# The tasks do not need each other: where one needs the result of another, a
# short helper is given instead.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, H the number of query heads, T the
#   number of tokens, Tq and Tk the numbers of queries and keys, Tnew the
#   number of tokens that a call adds, d the width of a query or key, dv the
#   width of a value.
#   `...` means any number of leading axes, none included.
# - **Causal masks** are aligned to the **lower right**: with Tq queries and Tk
#   keys, query i stands at position i + Tk − Tq, and sees the keys up to
#   there.
#   A boolean mask is `True` where a query may look.
# - **Dead rows.** A query that may look at no key has the output 0.
# - **Scale.** Scores are q·k/√d.
# - **Caches copy.** What a cache stores shares memory neither with what it is
#   given nor with what it returns: the caller may overwrite both.
#   (Caches in production return views, to save the copy, and trust their
#   caller.)
#   Two caches know nothing of each other.
#   Gradients through a cache are not asked for.
# - **Precision.** `float64` stays `float64` all the way; half-precision inputs
#   are computed in `float32`.
# - **Device.** Whatever is made (buffers, masks, positions) lies where the
#   arguments lie.
# - **Arguments** are never modified, and may be non-contiguous views.

# %% provided="imports"
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder import check

# %% [markdown]
# ## 6.1 How large is a cache?
#
# **Goal:** the memory of a KV cache, from the sizes of a model.
#
# To write the next token, a query has to meet the keys and values of all
# tokens before it.
# They never change, so they are kept: in every layer, for every key-value
# head, one key and one value of `d_head` numbers a token.
#
# **Contract**
#
# - Return the number of bytes that keys and values take, for `batch`
#   sequences of `seq_len` tokens each.
# - `n_kv_heads` counts the heads of keys and values, which in many models are
#   fewer than the query heads (task 2.6); queries are not kept.
# - `dtype_size` is the size of one number in bytes: 2 for `float16` and
#   `bfloat16`.
# - An integer; no rounding, and no units but bytes.
#
# **Example:** Llama 3 8B has 32 layers and 8 key-value heads of width 128.
#
# ```python
# kv_cache_bytes(32, 8, 128, 1)        # 131_072: 128 KiB a token
# kv_cache_bytes(32, 8, 128, 8192)     # 1_073_741_824: 1 GiB
# kv_cache_bytes(12, 12, 64, 1024)     # 37_748_736: 36 MiB, GPT-2 small
# ```
#
# **Why it matters:** at 8,192 tokens Llama 3 8B needs 1 GiB a sequence.
# With a key-value head for each of its 32 query heads it would be 4 GiB, and
# 32 sequences would need 128 GiB, where its weights take 15.
#
# <details>
# <summary>Hint 1: what is stored for one token in one layer?</summary>
#
# Two vectors for each key-value head.
# How many numbers are that, and what do the layers do to it?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Multiply everything: keys and values, layers, heads, the width of a head,
# tokens, sequences, bytes a number.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `2 * n_kv_heads * d_head * dtype_size` bytes for one token in one layer.
#
# </details>


# %% exercise="kv_cache_bytes" level=1 minutes=5
def kv_cache_bytes(
    n_layers: int,
    n_kv_heads: int,
    d_head: int,
    seq_len: int,
    batch: int = 1,
    dtype_size: int = 2,
) -> int:
    """Bytes that the keys and values of a batch take.

    n_kv_heads: heads of keys and values; d_head: numbers in one key
    seq_len: tokens in each of the batch's sequences
    dtype_size: bytes a number
    """
    ### BEGIN SOLUTION
    per_token = 2 * n_layers * n_kv_heads * d_head * dtype_size
    return per_token * seq_len * batch
    ### END SOLUTION


# %% [markdown]
# ## 6.2a What a cache saves
#
# **Goal:** count what it costs to write N tokens, with and without a cache.
#
# After step n the text has n tokens.
# Without a cache, step n runs the model over all n tokens; with one, over the
# new token alone, which then looks at the n keys that are kept, its own
# included.
#
# **Contract**
#
# - The text starts empty and grows to `N` ≥ 0 tokens, one a step: steps 1 to
#   N, where step n has n tokens.
# - Return a dict with exactly these keys (integers, or floats of the same
#   value):
#     - `forwards_no_cache`, `forwards_cache`: tokens that are pushed through
#       the model, over all steps;
#     - `pairs_no_cache`, `pairs_cache`: pairs of a query and a key that it may
#       see (its own and those before it), over all steps, in one head of one
#       layer.
#
# **Example**
#
# ```python
# decode_cost(2)
# # {"forwards_no_cache": 3, "forwards_cache": 2,
# #  "pairs_no_cache": 4, "pairs_cache": 3}
# decode_cost(100)     # 5_050 against 100, and 171_700 against 5_050
# ```
#
# **Why it matters:** a cache turns the cost of writing, in tokens, from
# quadratic to linear, and in attention from cubic to quadratic.
#
# <details>
# <summary>Hint 1: what happens at step 3?</summary>
#
# Without a cache three queries are computed.
# The first sees one key, the second two, the third three.
# With a cache only the third is computed.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Write down what step n costs in each of the four counts (n, 1, n(n + 1)/2
# and n), and add up the steps from 1 to N.
# A loop will do; closed forms exist.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `sum(n * (n + 1) // 2 for n in range(1, N + 1))` for one of the four.
#
# </details>


# %% exercise="decode_cost" level=2 minutes=10
def decode_cost(N: int) -> dict:
    """What writing N tokens costs, with and without a cache.

    returns: {"forwards_no_cache", "forwards_cache": tokens through the model,
        "pairs_no_cache", "pairs_cache": visible query-key pairs of one head}
    """
    ### BEGIN SOLUTION
    triangle = N * (N + 1) // 2
    return {
        "forwards_no_cache": triangle,
        "forwards_cache": N,
        "pairs_no_cache": triangle * (N + 2) // 3,
        "pairs_cache": triangle,
    }
    ### END SOLUTION


# %% [markdown]
# ## 6.2b What FlashAttention saves
#
# **Goal:** compare the traffic with slow memory, which is what attention
# waits for.
#
# A GPU computes in small, fast on-chip memory (SRAM), which holds M numbers,
# and reads and writes large, slow memory (HBM).
# Standard attention writes the scores (N, N) to HBM and reads them back.
# FlashAttention keeps them on chip, in tiles, and in exchange reads the keys
# and values once for each tile of queries.
# Dao et al. (2022) give both counts up to a constant factor:
#
# $$\text{standard: } N d + N^2 \qquad \text{flash: } \frac{N^2 d^2}{M}$$
#
# **Contract**
#
# - `N` tokens, heads of width `d`, an on-chip memory of `M` numbers.
# - Return a dict with exactly the keys `standard` and `flash`: the two
#   formulas as they stand, in numbers moved, without their constants.
#   The second need not be a whole number; do not round it.
#
# **Example**
#
# ```python
# hbm_accesses(1024, 64, 98_304)
# # {"standard": 1_114_112, "flash": 43_690.67}
# ```
#
# 98,304 numbers of two bytes are 192 KiB, the on-chip memory of one processor
# of an A100.
#
# **Why it matters:** FlashAttention does **more** arithmetic than standard
# attention, since it computes the scores again in the backward pass, and is
# faster all the same.
# In the paper's measurement (GPT-2 medium on an A100) operations grow by 13%,
# traffic falls by a factor of 9, and time by a factor of 5.7.
#
# <details>
# <summary>Hint 1: which of the two depends on M?</summary>
#
# Standard attention writes its scores whatever the on-chip memory holds.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# M numbers hold about M/d queries, so there are about N·d/M tiles of queries,
# and for each of them all keys and values pass by, about N·d numbers.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# Type the formulas; in Python `/` divides and `//` rounds down.
#
# </details>


# %% exercise="hbm_accesses" level=2 minutes=5
def hbm_accesses(N: int, d: int, M: int) -> dict:
    """Numbers moved to and from slow memory by one head of attention.

    N: tokens; d: width of a head; M: numbers that fast memory holds
    returns: {"standard", "flash"}, up to a constant factor
    source: Dao et al. 2022, theorem 2
    """
    ### BEGIN SOLUTION
    return {"standard": N * d + N**2, "flash": (N * d) ** 2 / M}
    ### END SOLUTION


# %% [markdown]
# ## 6.3 A cache
#
# **Goal:** the object that keeps keys and values from one step to the next.
#
# **Contract**
#
# - `KVCache(n_layers, B, n_kv_heads, max_len, d_head)` starts empty.
# - `update(layer, k, v)` takes the keys and values of Tnew ≥ 1 new tokens,
#   each (B, n_kv_heads, Tnew, d_head) and of one dtype, for the layer with
#   that number, from 0.
#   It stores them and returns `(keys, values)`, **everything** that this layer
#   holds now, (B, n_kv_heads, T, d_head) each, oldest first.
# - What is kept, and what comes back, has the dtype and the device of the `k`
#   that was given; they are the same for all layers.
#   (The constructor knows neither: decide at the first update.
#   It is also tried with tensors on the device `meta`, which have a shape
#   and no numbers; so what is stored stays in torch, on that device.)
# - `max_len` tokens fit into each layer.
#   One more is a `ValueError`, and then nothing has changed, and nothing is
#   decided.
# - `length` is an attribute or a property, not a method: the number of tokens
#   that **every** layer holds.
#   Between the first layer's update and the last layer's it is still the old
#   number.
# - `reset()` empties the cache; after it the cache is as a new one, and may
#   get another dtype.
# - The cache copies, as said above: overwriting `k` after the call, or what
#   was returned, changes nothing in it; and no later call changes what was
#   returned before.
#
# **Example**
#
# ```python
# cache = KVCache(n_layers=1, B=1, n_kv_heads=1, max_len=3, d_head=1)
# one = torch.ones(1, 1, 1, 1)
# cache.update(0, one, -one)
# keys, values = cache.update(0, 2 * one, -2 * one)
# keys.flatten(), values.flatten()     # [1, 2] and [-1, -2]
# cache.length                         # 2
# ```
#
# **Why it matters:** a server of language models fills whatever memory the
# weights leave with such objects, and bugs are at home here: layers that
# share a buffer, a length that counts one layer, a cache that was not reset.
#
# <details>
# <summary>Hint 1: what has to be known before the first update?</summary>
#
# Sizes, but no dtype and no device.
# What can you create in the constructor, and what only later?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Either one buffer a layer for max_len tokens and a count of what is used; or
# the keys and values so far, to which new ones are joined along the time
# axis.
# In both cases check the size first, then store.
# The first has to return a copy of the used part; the second has to copy
# where nothing is joined yet.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.cat([old, k], dim=2)`, or `buffer[:, :, start : start + Tnew] = k`.
#
# </details>


# %% exercise="KVCache" level=2 minutes=25
class KVCache:
    """Keys and values of up to max_len tokens, layer by layer.

    n_layers: layers; B: sequences; n_kv_heads: heads of keys and values
    max_len: tokens that fit; d_head: numbers in one key or value
    """

    def __init__(
        self, n_layers: int, B: int, n_kv_heads: int, max_len: int, d_head: int
    ):
        ### BEGIN SOLUTION
        self.n_layers, self.max_len = n_layers, max_len
        self.sizes = (2, B, n_kv_heads, max_len, d_head)
        self.reset()
        ### END SOLUTION

    def reset(self) -> None:
        """Forget everything."""
        ### BEGIN SOLUTION
        self.buffers = [None] * self.n_layers
        self.used = [0] * self.n_layers
        ### END SOLUTION

    @property
    def length(self) -> int:
        """Tokens that every layer holds."""
        ### BEGIN SOLUTION
        return min(self.used)
        ### END SOLUTION

    def update(
        self, layer: int, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens of a layer; return all that it holds.

        k, v: (B, n_kv_heads, Tnew, d_head)
        returns: (B, n_kv_heads, T, d_head) each, oldest first
        raises ValueError: if more than max_len tokens would be stored
        """
        ### BEGIN SOLUTION
        start = self.used[layer]
        end = start + k.shape[2]
        if end > self.max_len:
            raise ValueError(f"{end} tokens exceed max_len = {self.max_len}")
        if self.buffers[layer] is None:
            self.buffers[layer] = k.new_empty(self.sizes)
        buffer = self.buffers[layer]
        buffer[0, :, :, start:end] = k
        buffer[1, :, :, start:end] = v
        self.used[layer] = end
        # Copies, or a later text would show in what is returned here.
        return buffer[0, :, :, :end].clone(), buffer[1, :, :, :end].clone()
        ### END SOLUTION


# %% [markdown]
# ## Given for task 6.4: sizes, and a cache
#
# `ConcatCache` has the interface of task 6.3 as far as task 6.4 needs it.


# %% provided="concat_cache"
@dataclass
class GPTConfig:
    """Sizes of a GPT; by default those of GPT-2 small."""

    vocab_size: int = 50257
    context_length: int = 1024
    d_model: int = 768
    n_heads: int = 12
    n_layers: int = 12
    dropout: float = 0.0
    bias: bool = True


class ConcatCache:
    """Keys and values of each layer, joined along the time axis."""

    def __init__(self, n_layers):
        self.pairs = [None] * n_layers

    def update(self, layer, k, v):
        if self.pairs[layer] is not None:
            old_k, old_v = self.pairs[layer]
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        self.pairs[layer] = k, v
        return k, v

    @property
    def length(self):
        return min(0 if p is None else p[0].shape[2] for p in self.pairs)

    def reset(self):
        self.pairs = [None] * len(self.pairs)


# %% [markdown]
# ## 6.4 A GPT that reads each token once
#
# **Goal:** a GPT that takes a text in pieces, and gives for each piece the
# logits that it would give within the whole text.
#
# **Contract**
#
# - `CachedGPT(cfg)` takes a `GPTConfig`.
#   Of `cfg`, the first five sizes matter; `bias` is `True` and `dropout` 0,
#   in training, too.
#   (The report writes `CachedGPT(vocab_size=7, …)` for
#   `CachedGPT(GPTConfig(vocab_size=7, …))`.)
# - Parameters as in chapter 5: `tok_embed.weight` (V, D); `pos_embed.weight`
#   (context_length, D); for each layer i `blocks.i.ln1`,
#   `blocks.i.attn.qkv_proj` (D → 3D, rows q, then k, then v, each with the
#   heads one after the other), `blocks.i.attn.out_proj`, `blocks.i.ln2`,
#   `blocks.i.mlp.fc1` (D → 4D), `blocks.i.mlp.fc2` (4D → D); `ln_f`;
#   `lm_head.weight`, which **is** `tok_embed.weight`.
#   All linear layers but the head have biases; the initial values are yours.
# - It computes what GPT-2 computes: the sum of both embeddings, pre-LN blocks
#   with causal attention and **tanh GELU**, norms with eps 1e-5, `ln_f`, the
#   head.
# - `forward(ids, cache=None)` returns the logits (B, T, V) of the T tokens in
#   `ids`.
#     - Without a cache, `ids` is the whole text.
#     - With one, `ids` continues the text whose keys and values the cache
#       holds: `cache.length` tokens, 0 at first.
#       `cache` has the interface of task 6.3; use no more than
#       `update(layer, k, v)`, with keys and values (B, H, T, Dh), and
#       `length`.
#       Layers are numbered from 0, and each is updated once a call, with the
#       new tokens only.
# - However a text is cut into pieces, the logits are those of the whole text.
#   All state is in the cache: the same model may serve several texts in turns.
# - More than `context_length` tokens, those in the cache included, are a
#   `ValueError`, and then the cache is as it was.
# - `nn.Linear`, `nn.Embedding`, `nn.LayerNorm`, `F.gelu` and
#   `F.scaled_dot_product_attention` are allowed, and so is your model from
#   chapter 5, pasted into the cell.
#
# **Example**
#
# ```python
# model = CachedGPT(GPTConfig(50, 16, 32, 4, 2)).eval()
# ids = torch.randint(50, (1, 6))
# cache = ConcatCache(n_layers=2)
# pieces = [model(part, cache) for part in ids.split([3, 1, 2], dim=1)]
# (torch.cat(pieces, dim=1) - model(ids)).abs().max()     # a few 1e-6
# cache.length                                            # 6
# ```
#
# **Why it matters:** this is how every model answers you: one pass over what
# you wrote, in one piece or in chunks, and then one token a step.
# A wrong position or a wrong mask does not crash; the text only gets worse,
# from the second token on.
#
# <details>
# <summary>Hint 1: what depends on where in the text a token stands?</summary>
#
# Two things: its position embedding, and which keys it may see.
# Where does a chunk of three tokens start if the cache holds four?
# Which of the seven keys may its first token see?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Ask `cache.length` once, before any layer is updated: there the new
# positions start.
# In each layer, project the new tokens only, hand their keys and values to
# the cache, and attend to all that it returns, with a causal mask of T rows
# and as many columns as keys came back, aligned to the lower right.
# `is_causal=True` of `F.scaled_dot_product_attention` aligns to the upper
# left, so give it a mask.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)`, where Tk counts what
# the cache returns.
#
# </details>


# %% exercise="CachedGPT" level=4 minutes=50
class CachedGPT(nn.Module):
    """A GPT-2 that continues from a cache.

    cfg: a GPTConfig
    submodules: tok_embed; pos_embed; blocks, each with ln1, attn (qkv_proj,
        rows q, k, v, and out_proj), ln2, mlp (fc1, fc2); ln_f; lm_head,
        whose weight is tok_embed.weight
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        ### BEGIN SOLUTION
        self.cfg = cfg
        D = cfg.d_model
        self.tok_embed = nn.Embedding(cfg.vocab_size, D)
        self.pos_embed = nn.Embedding(cfg.context_length, D)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(D),
                    "attn": nn.ModuleDict(
                        {
                            "qkv_proj": nn.Linear(D, 3 * D),
                            "out_proj": nn.Linear(D, D),
                        }
                    ),
                    "ln2": nn.LayerNorm(D),
                    "mlp": nn.ModuleDict(
                        {
                            "fc1": nn.Linear(D, 4 * D),
                            "fc2": nn.Linear(4 * D, D),
                        }
                    ),
                }
            )
            for _ in range(cfg.n_layers)
        )
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, cfg.vocab_size, bias=False)
        self.lm_head.weight = self.tok_embed.weight
        ### END SOLUTION

    def forward(self, ids: Tensor, cache=None) -> Tensor:
        """Logits of what follows each of the new tokens.

        ids: (B, T), the whole text, or what follows the cache's tokens
        cache: None, or keys and values of what came before; gets the new ones
        returns: (B, T, V)
        raises ValueError: if text and cache together exceed the context
        """
        ### BEGIN SOLUTION
        start = 0 if cache is None else cache.length
        end = start + ids.shape[1]
        if end > self.cfg.context_length:
            raise ValueError(
                f"{end} tokens exceed the context of {self.cfg.context_length}"
            )
        x = self.tok_embed(ids) + self.pos_embed.weight[start:end]
        for layer, block in enumerate(self.blocks):
            x = x + self.attention(
                block["attn"], block["ln1"](x), layer, cache
            )
            hidden = block["mlp"]["fc1"](block["ln2"](x))
            x = x + block["mlp"]["fc2"](F.gelu(hidden, approximate="tanh"))
        return self.lm_head(self.ln_f(x))

    def attention(self, parts, x, layer, cache):
        qkv = parts["qkv_proj"](x).unflatten(-1, (3, self.cfg.n_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, Dh)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        Tq, Tk = q.shape[2], k.shape[2]
        keep = None  # the newest token sees everything
        if Tq > 1:
            keep = torch.ones(Tq, Tk, dtype=torch.bool, device=x.device)
            keep = keep.tril(Tk - Tq)
        mixed = F.scaled_dot_product_attention(q, k, v, keep)
        return parts["out_proj"](mixed.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# ## 6.5a A window that slides
#
# **Goal:** let each query see only the last few keys.
#
# A model that never looks back further than w tokens needs a cache of w
# tokens, however long the text.
# After L layers information may still have come from L·(w − 1) tokens before:
# Mistral 7B (Jiang et al. 2023), with 32 layers and a window of 4,096, reaches
# about 131,000.
#
# **Contract**
#
# - Return a boolean mask (Tq, Tk), `True` where the query may look.
# - The queries are the newest of the Tk positions: query i stands at position
#   p = i + Tk − Tq, which is negative for the first ones if Tq > Tk.
# - It sees the `window` ≥ 1 keys up to its own: the keys j with
#   p − window < j ≤ p.
#   The window counts the query's **own** key.
# - A window wider than the text gives the causal mask.
#
# **Example**
#
# ```python
# sliding_window_mask(4, 4, 2)      # sliding_window_mask(2, 4, 2)
# # 1 0 0 0                         # 0 1 1 0
# # 1 1 0 0                         # 0 0 1 1
# # 0 1 1 0
# # 0 0 1 1
# ```
#
# **Why it matters:** off by one here is invisible in every shape, and moves
# the edge of what a model can remember.
#
# <details>
# <summary>Hint 1: how far is key j behind query i?</summary>
#
# That distance is 0 for the query's own key.
# Which distances may be seen with a window of 1, and which with 2?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# A column of query positions minus a row of key positions is a matrix of
# distances.
# The mask is where the distance is at least 0 and less than the window.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.arange(Tq)[:, None] + (Tk - Tq) - torch.arange(Tk)`
#
# </details>


# %% exercise="sliding_window_mask" level=3 minutes=10
def sliding_window_mask(Tq: int, Tk: int, window: int) -> Tensor:
    """Mask of causal attention to the last `window` keys.

    window: keys that a query sees, its own included, at least 1
    returns: (Tq, Tk), bool, True = may look; aligned to the lower right
    """
    ### BEGIN SOLUTION
    behind = torch.arange(Tq)[:, None] + (Tk - Tq) - torch.arange(Tk)
    return (behind >= 0) & (behind < window)
    ### END SOLUTION


# %% [markdown]
# ## 6.5b A cache that forgets
#
# **Goal:** a cache for sliding windows, whose memory does not grow.
#
# **Contract**
#
# - `RollingCache(n_layers, B, n_kv_heads, window, d_head)` starts empty; there
#   is no largest length.
# - `update(layer, k, v)` takes Tnew ≥ 1 new tokens as in task 6.3 and returns
#   the keys and values that their queries need, in the order of time: the new
#   tokens, and before them the last window − 1 that came earlier, or all of
#   them if there were fewer.
#   So with Tnew = 1 it returns at most `window` tokens, with a chunk of
#   Tnew at most window − 1 + Tnew, **also where Tnew exceeds the window**.
# - Dtype, device and copies as in task 6.3.
# - `length` (attribute or property): the number of tokens that every layer has
#   **seen**, forgotten ones included.
# - `stored` (attribute or property): the number of tokens that every layer
#   keeps for later calls: as many as were seen, until they are `window`, and
#   then no more.
#   (The oldest of `window` tokens is never needed again, so window − 1 are
#   enough; a cache that keeps only these reports what it keeps.)
#   Memory must not grow with the text: after a long one the cache holds as
#   many numbers as after a short one.
# - `reset()` makes it as new.
#
# **Example** with a window of 3, one token a call, numbered:
#
# ```text
# update(0)        returns 0
# update(1)        returns 0 1
# update(2)        returns 0 1 2
# update(3)        returns 1 2 3
# update(4 5)      returns 2 3 4 5      4 sees 2 3 4, and 5 sees 3 4 5
# ```
#
# **Why it matters:** the text may have a million tokens, and the cache has
# the size of the window.
#
# <details>
# <summary>Hint 1: which old tokens does the first new query see?</summary>
#
# It sees `window` keys, its own included.
# Later queries of the chunk see fewer old ones.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Per layer: join what is kept and the new tokens; that is what is returned.
# Then keep only the end of it.
# Mind the window of 1: a slice from −0 on is everything.
# Real caches write into a ring of `window` places and unroll it on the way
# out.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `kept = joined[:, :, max(0, T - (window - 1)):]` keeps the last window − 1
# of T tokens, whatever the window; copy it, since a slice holds on to all of
# `joined`.
#
# </details>


# %% exercise="RollingCache" level=3 minutes=25
class RollingCache:
    """The last keys and values of each layer.

    window: keys that a query sees, its own included
    the other sizes: as for KVCache
    """

    def __init__(
        self, n_layers: int, B: int, n_kv_heads: int, window: int, d_head: int
    ):
        ### BEGIN SOLUTION
        self.n_layers, self.window = n_layers, window
        self.sizes = (2, B, n_kv_heads, 0, d_head)
        self.reset()
        ### END SOLUTION

    def reset(self) -> None:
        """Forget everything."""
        ### BEGIN SOLUTION
        self.kept = [torch.empty(self.sizes) for _ in range(self.n_layers)]
        self.seen = [0] * self.n_layers
        ### END SOLUTION

    @property
    def length(self) -> int:
        """Tokens that every layer has seen."""
        ### BEGIN SOLUTION
        return min(self.seen)
        ### END SOLUTION

    @property
    def stored(self) -> int:
        """Tokens that every layer keeps."""
        ### BEGIN SOLUTION
        return min(pair.shape[3] for pair in self.kept)
        ### END SOLUTION

    def update(
        self, layer: int, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens of a layer; return what their queries may see.

        k, v: (B, n_kv_heads, Tnew, d_head)
        returns: the new tokens after up to window - 1 older ones, by time
        """
        ### BEGIN SOLUTION
        new = torch.stack([k, v])
        old = self.kept[layer].to(new)
        start = max(0, old.shape[3] - (self.window - 1))
        both = torch.cat([old[:, :, :, start:], new], dim=3)
        self.seen[layer] += k.shape[2]
        # A copy, since a view would keep all of a long prompt alive.
        end = both.shape[3]
        self.kept[layer] = both[:, :, :, max(0, end - self.window) :].clone()
        return both[0], both[1]
        ### END SOLUTION


# %% [markdown]
# ## 6.6 A cache in pages
#
# **Goal:** share one pool of memory among many sequences of unknown length.
#
# A server does not know how long an answer will be.
# Reserving `max_len` tokens for each wastes most of the memory.
# PagedAttention (Kwon et al. 2023) does what operating systems do: it divides
# the memory into blocks of a few tokens, gives a sequence a new block when
# its last one is full, and lets sequences with the same beginning share
# blocks until they differ.
#
# **Contract**
#
# - `PagedKVCache(n_blocks, block_size=16)`: a pool of `n_blocks` blocks, each
#   for `block_size` tokens.
# - `append(seq, k, v)` adds **one** token to the sequence named `seq` (a
#   string or an integer, and `1` is not `"1"`); a new name starts a new
#   sequence.
#   `k` and `v` are tensors of any shape, k's and v's may differ, and even no
#   axis at all; all tokens of one cache have the same shapes and dtype.
#   (In a model `k` would be (n_layers, n_kv_heads, d_head).)
# - `gather(seq)` returns `(keys, values)` of the sequence, with the tokens
#   along a new first axis: (T, …) each.
# - `fork(src, dst)` starts the sequence `dst` with all tokens of `src`.
#   From then on each goes its own way.
# - `free(seq)` ends a sequence.
# - `free_blocks` (attribute or property) is the number of blocks that no
#   sequence uses.
#     - T tokens need ⌈T / block_size⌉ blocks: a sequence takes a block when a
#       token does not fit into its last one, and not before.
#     - A fork takes no block: both sequences use the same blocks.
#     - **Copy on write.** Appending to a last block that is not full and that
#       another sequence uses, too, takes a free block, copies the tokens
#       there, and leaves the old one to the others.
#       A sequence that is alone with its block writes into it.
#     - A block is free again when the last sequence that uses it is freed, or
#       has left it by a copy.
# - If `append` needs a block and none is free, it is a `RuntimeError` that
#   changes nothing: a new sequence does not exist afterwards.
# - `gather`, `free` and `fork` of a sequence that does not exist are a
#   `KeyError`, and so is its `fork` to itself; a `fork` to a name that exists
#   (also of a sequence to itself) is a `ValueError`; both change nothing.
# - The cache copies, as said above.
#
# **Example** with blocks of two:
#
# ```python
# cache = PagedKVCache(n_blocks=4, block_size=2)
# for number in (1.0, 2.0, 3.0):
#     cache.append("a", torch.tensor(number), torch.tensor(-number))
# cache.free_blocks          # 2: "a" has the blocks [1, 2] and [3, _]
# cache.fork("a", "b")
# cache.free_blocks          # 2: "b" has the same two
# cache.append("b", torch.tensor(9.0), torch.tensor(-9.0))
# cache.free_blocks          # 1: "b" has [1, 2] and a new [3, 9]
# cache.append("a", torch.tensor(4.0), torch.tensor(-4.0))
# cache.free_blocks          # 1: "a" was alone with [3, _]
# cache.gather("a")[0]       # [1, 2, 3, 4]
# cache.gather("b")[0]       # [1, 2, 3, 9]
# ```
#
# **Why it matters:** a sequence wastes less than one block.
# That is why servers can batch many more sequences, and why a long system
# prompt is stored once for all of its users.
#
# <details>
# <summary>Hint 1: who owns a block?</summary>
#
# After a fork, two do.
# What has to be known about a block, to decide whether an append may write
# into it, and whether `free` gives it back?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# A table for each sequence: the numbers of its blocks, and its length.
# For each block: how many sequences use it.
# A list of blocks that nobody uses.
# Append has three cases: there is room in a block of one's own; a new block
# is needed; a shared block has to be copied.
# In the last two, look for a free block before you change anything.
# Fork copies the table, not the blocks, and counts one more user for each.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `offset = length % block_size` says where in the last block the next token
# goes; 0 means that a new block is needed.
#
# </details>


# %% exercise="PagedKVCache" level=4 minutes=50
class PagedKVCache:
    """Keys and values of many sequences in blocks from one pool.

    n_blocks: blocks in the pool; block_size: tokens in a block
    source: Kwon et al. 2023
    """

    def __init__(self, n_blocks: int, block_size: int = 16):
        ### BEGIN SOLUTION
        self.block_size = block_size
        self.unused = list(range(n_blocks))
        self.users = [0] * n_blocks
        self.tables = {}  # name: [numbers of its blocks]
        self.lengths = {}  # name: tokens
        self.pools = None  # k's and v's, (n_blocks, block_size, ...)
        ### END SOLUTION

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence uses."""
        ### BEGIN SOLUTION
        return len(self.unused)
        ### END SOLUTION

    def append(self, seq, k: Tensor, v: Tensor) -> None:
        """Add one token to a sequence; a new name starts one.

        k, v: tensors of any shape
        raises RuntimeError: if a block is needed and none is free
        """
        ### BEGIN SOLUTION
        length = self.lengths.get(seq, 0)
        table = self.tables.get(seq, [])
        offset = length % self.block_size
        shared = offset > 0 and self.users[table[-1]] > 1
        if offset == 0 or shared:
            if not self.unused:
                raise RuntimeError("no block is free: free a sequence first")
            block = self.unused.pop()
            self.users[block] = 1
            if shared:
                for pool in self.pools:
                    pool[block, :offset] = pool[table[-1], :offset]
                self.users[table[-1]] -= 1
                table = table[:-1]
            table = [*table, block]
        if self.pools is None:
            shape = len(self.users), self.block_size
            self.pools = [x.new_zeros(*shape, *x.shape) for x in (k, v)]
        for pool, x in zip(self.pools, (k, v), strict=True):
            pool[table[-1], offset] = x
        self.tables[seq], self.lengths[seq] = table, length + 1
        ### END SOLUTION

    def gather(self, seq) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence.

        returns: (T, ...) each
        raises KeyError: if there is no such sequence
        """
        ### BEGIN SOLUTION
        table, length = self.tables[seq], self.lengths[seq]
        keys, values = (
            pool[table].flatten(0, 1)[:length].clone() for pool in self.pools
        )
        return keys, values
        ### END SOLUTION

    def fork(self, src, dst) -> None:
        """Start a sequence with all tokens of another, sharing its blocks.

        raises KeyError: if there is no src; ValueError: if there is a dst
        """
        ### BEGIN SOLUTION
        table = self.tables[src]
        if dst in self.tables:
            raise ValueError(f"{dst!r} exists: free it first")
        for block in table:
            self.users[block] += 1
        self.tables[dst], self.lengths[dst] = list(table), self.lengths[src]
        ### END SOLUTION

    def free(self, seq) -> None:
        """End a sequence.

        raises KeyError: if there is no such sequence
        """
        ### BEGIN SOLUTION
        for block in self.tables.pop(seq):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)
        del self.lengths[seq]
        ### END SOLUTION


# %% [markdown]
# ## 6.7a A softmax in one pass: the state
#
# **Goal:** sum up a row of scores in two numbers.
#
# The denominator of a softmax is a sum of exponentials, which overflow, so
# one subtracts the row's maximum first: two passes over the row.
# FlashAttention sees a row in pieces and cannot wait for its maximum.
# It keeps for what it has seen the maximum m so far, and the sum of
# exponentials **relative to it**,
#
# $$\ell = \sum_j e^{s_j - m},$$
#
# so that the true denominator is $e^m \ell$.
#
# **Contract**
#
# - `s` (..., n) is a numpy array of `float64` or `float32` scores, finite or
#   −inf; n may be 0.
# - Return the tuple `(m, l)`: two arrays of shape (...) and of `s`'s dtype
#   (numbers, if `s` has one axis), over the last axis.
# - Where nothing is visible, because n is 0 or all scores are −inf, the state
#   is (−inf, 0), these two numbers: without NaN, and without an error.
# - Everywhere else **m + ln l** is judged, so another reference than the
#   maximum is right, too, as long as nothing overflows: scores of ±10,000 are
#   fine.
#
# **Example**
#
# ```python
# online_softmax_state(np.array([1.0, 3.0]))      # (3.0, 1.1353)
# # 1.1353 = exp(-2) + 1, and 3 + ln 1.1353 = ln(e + e³) = 3.1269
# online_softmax_state(np.array([]))              # (-inf, 0.0)
# ```
#
# **Why it matters:** the pair is to the softmax what a running total is to a
# sum.
#
# <details>
# <summary>Hint 1: what is the maximum of nothing?</summary>
#
# The number below all numbers.
# And what is −inf − (−inf)?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Take the maximum along the last axis, with −inf to start from.
# Subtract it where it is finite, and 0 where it is not: exp(−inf) is 0, and
# so is the sum of nothing.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `s.max(axis=-1, initial=-np.inf)`
#
# </details>


# %% exercise="online_softmax_state" level=3 minutes=10
def online_softmax_state(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and relative sum of exponentials of each row.

    s: (..., n), finite or -inf
    returns: m (...), l (...), with sum(exp(s)) = exp(m) * l; (-inf, 0) where
        nothing is visible
    source: Milakov and Gimelshein 2018
    """
    ### BEGIN SOLUTION
    m = s.max(axis=-1, initial=-np.inf)
    reference = np.where(np.isneginf(m), s.dtype.type(0), m)
    return m, np.exp(s - reference[..., None]).sum(axis=-1)
    ### END SOLUTION


# %% [markdown]
# ## 6.7b A softmax in one pass: the merge
#
# **Goal:** from the states of two pieces, the state of both together.
#
# **Contract**
#
# - `a` and `b` are states `(m, l)` of task 6.7a: numpy arrays of one shape and
#   one dtype, (−inf, 0) where nothing was seen.
#   In those that the check hands over, m is the maximum of what was seen.
# - Return the state of both pieces together, `(m, l)`, of the same shape and
#   dtype; what is judged is again m + ln l.
# - A state (−inf, 0) changes nothing; two of them give (−inf, 0), without NaN.
# - Maxima of 10,000 and −10,000 may meet.
# - Your results are merged again, in any order: one after the other, or pair
#   by pair.
#
# **Example**
#
# ```python
# a = (np.array([1.0]), np.array([1.0]))      # of the score 1
# b = (np.array([3.0]), np.array([1.0]))      # of the score 3
# merge_states(a, b)                          # (array([3.]), array([1.1353]))
# ```
#
# **Why it matters:** merging is associative and commutative, so a row of
# scores may be cut into tiles, computed on many processors and put together
# in any order.
# Task 6.8 merges outputs in the same way.
#
# <details>
# <summary>Hint 1: when may two sums of exponentials be added?</summary>
#
# Only when both are relative to the same number.
# How does l change when you change the m that it is relative to?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# The new maximum is the larger of the two.
# Each l is multiplied by exp(its old m − the new m), which is at most 1; then
# they are added.
# Where both are −inf, subtract something finite instead.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `l_a * np.exp(m_a - m) + l_b * np.exp(m_b - m)`
#
# </details>


# %% exercise="merge_states" level=3 minutes=15
def merge_states(a: tuple, b: tuple) -> tuple[np.ndarray, np.ndarray]:
    """State of two pieces of a row together.

    a, b: (m, l), arrays of one shape; (-inf, 0) is empty
    returns: (m, l) of the same shape
    """
    ### BEGIN SOLUTION
    (m_a, l_a), (m_b, l_b) = a, b
    m = np.maximum(m_a, m_b)
    reference = np.where(np.isneginf(m), m.dtype.type(0), m)
    scale_a, scale_b = np.exp(m_a - reference), np.exp(m_b - reference)
    return m, l_a * scale_a + l_b * scale_b
    ### END SOLUTION


# %% [markdown]
# ## 6.8 FlashAttention, forward
#
# **Goal:** exact attention, without ever holding the scores.
#
# Cut the queries into tiles of `block_q` rows and the keys into tiles of
# `block_k`.
# For one tile of queries, go over the tiles of keys, and carry along three
# things: the running maximum m of each row, the sum $\ell$ relative to it,
# and the sum of exp(s − m)·v, not yet divided by $\ell$.
# When a tile raises the maximum, what was summed up so far is multiplied by
# exp(old m − new m).
#
# **Contract**
#
# - `q` (..., Tq, d), `k` (..., Tk, d), `v` (..., Tk, dv) with the same leading
#   axes, any number of them; dv may differ from d.
# - Return `(out, lse)`: the output (..., Tq, dv) of attention with the scale
#   1/√d, in the inputs' dtype; and the natural logarithm of the sum of
#   exp(score) over the visible keys of each query, (..., Tq).
#   `lse` is in the inputs' dtype, but `float32` for half-precision inputs
#   (`float16`, `bfloat16`), which are computed in `float32` throughout:
#   scores, weights, sums and the division.
# - Neither block needs to divide Tq or Tk, and may be larger than they are.
# - `is_causal`: aligned to the lower right.
#   A query that sees no key (Tq > Tk) gets the output 0 and an lse of −inf.
# - Scores of any size are fine, also if all lie far below 0.
# - **Memory.** No floating tensor that you make on the way may have as many
#   numbers as the scores of **one** head, Tq·Tk; and at no moment may all that
#   you hold, beyond the arguments, take as much memory as the scores of all
#   heads would.
#   (It is tried with two heads of 61 queries and 67 keys, with tiles of
#   64 × 6 and 8 × 72, and the first limit also with 12 queries, 13 keys,
#   tiles of 4 × 5 and a causal mask.
#   A boolean mask (Tq, Tk) is allowed; a matrix of positions counts.)
#   Nor may an exponential be taken of more scores at once than a tile of
#   each head has (`e ** s` is one, too).
#   (That is tried with all of these, and with 2 queries, 30 keys and tiles
#   of 2 × 5.)
#   So a loop over heads, over queries, or over tiles of queries alone, is no
#   answer.
#   Floating numbers stay in PyTorch's tensors, which can be measured: neither
#   `numpy()` nor `tolist()` of them.
#   Single ones may be taken out, as with `item()`, but fewer than there are
#   scores.
# - Gradients are not asked for.
#
# **Example**
#
# ```python
# q = torch.tensor([[1.0]])
# k = torch.tensor([[0.0], [1.0], [2.0]])
# v = torch.tensor([[1.0], [2.0], [3.0]])
# flash_forward(q, k, v, block_q=1, block_k=2, is_causal=False)
# # out [[2.5752]], lse [2.4076]: ln(1 + e + e²)
# ```
#
# **Why it matters:** memory grows with T instead of T², and the result is
# the same, not an approximation.
# On a GPU the tiles live in fast on-chip memory; in Python this is slow, but
# it is the algorithm.
#
# <details>
# <summary>Hint 1: which tiles can be skipped under a causal mask?</summary>
#
# Those of which no query sees any key.
# It is enough to look at the tile's **last** query and its **first** key.
# Mind that the two blocks may have different sizes, and that query i stands
# at position i + Tk − Tq.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# For each tile of queries: m = −inf, l = 0, acc = 0.
# For each tile of keys: scores; hide by absolute positions with −inf; new
# maximum; p = exp(s − new maximum); correction = exp(m − new maximum);
# l and acc are multiplied by the correction, and get p's row sums and p @ v
# added.
# At the end out = acc / l and lse = m + ln l.
# Where the new maximum is still −inf, subtract 0 instead; where l is 0,
# divide by 1.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `acc = acc * correction[..., None] + p @ v_tile`
#
# </details>


# %% exercise="flash_forward" level=5 minutes=60
def flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_q: int,
    block_k: int,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attention in tiles, with the log-sum-exp of each query's scores.

    q: (..., Tq, d); k: (..., Tk, d); v: (..., Tk, dv)
    block_q, block_k: queries and keys in a tile
    is_causal: lower right
    returns: out (..., Tq, dv) in the inputs' dtype; lse (..., Tq), float32
        for half inputs; 0 and -inf where no key is visible
    source: Dao et al. 2022; Dao 2023, algorithm 1
    """
    ### BEGIN SOLUTION
    dtype = torch.promote_types(q.dtype, torch.float32)
    Tq, Tk = q.shape[-2], k.shape[-2]
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    lse = q.new_empty(q.shape[:-1], dtype=dtype)
    for i in range(0, Tq, block_q):
        rows = slice(i, min(i + block_q, Tq))
        position = torch.arange(Tq, device=q.device)[rows] + (Tk - Tq)
        q_tile = q[..., rows, :].to(dtype) / math.sqrt(q.shape[-1])
        m = q_tile.new_full(q_tile.shape[:-1], -math.inf)
        total = torch.zeros_like(m)
        acc = q_tile.new_zeros(*m.shape, v.shape[-1])
        for j in range(0, Tk, block_k):
            if is_causal and j > rows.stop - 1 + Tk - Tq:
                break  # this tile's last query stands before its first key
            k_tile = k[..., j : j + block_k, :].to(dtype)
            s = q_tile @ k_tile.mT
            if is_causal:
                key = torch.arange(j, j + s.shape[-1], device=q.device)
                s = s.masked_fill(key > position[:, None], -math.inf)
            higher = torch.maximum(m, s.amax(-1))
            # exp(-inf - 0) is 0, while -inf - (-inf) would be NaN.
            reference = higher.masked_fill(higher == -math.inf, 0)
            p = torch.exp(s - reference[..., None])
            correction = torch.exp(m - reference)
            total = total * correction + p.sum(-1)
            v_tile = v[..., j : j + block_k, :].to(dtype)
            acc = acc * correction[..., None] + p @ v_tile
            m = higher
        seen = total.masked_fill(total == 0, 1)
        out[..., rows, :] = (acc / seen[..., None]).to(q.dtype)
        lse[..., rows] = m + torch.log(seen)
    return out, lse
    ### END SOLUTION


# %% [markdown]
# ## 6.9 FlashAttention, forward and backward
#
# **Goal:** gradients of attention, from q, k, v, the output and one number a
# query.
#
# Autograd would keep the weights P, as large as the scores.
# But P can be computed again, one tile at a time, from what the forward pass
# returned: P = exp(S − lse), without any running maximum.
# With P at hand, the gradients are those of task 1.8:
#
# $$dV = P^\top dO, \qquad dP = dO\, V^\top,$$
#
# $$dS = P \circ (dP - \Delta), \qquad \Delta = \mathrm{rowsum}(dO \circ O),$$
#
# $$dQ = dS\, K / \sqrt d, \qquad dK = dS^\top Q / \sqrt d.$$
#
# $\Delta$ is the same as rowsum(P∘dP), but needs no P.
#
# **Contract**
#
# - `FlashAttention` is a subclass of `torch.autograd.Function`, and
#   `FlashAttention.apply(q, k, v, is_causal)` returns the output alone.
#   `is_causal` may be left out and is then `False`.
# - Shapes, scale, mask and dead rows as in task 6.8: any leading axes, dv may
#   differ from d, lower right; a dead row has the output 0 and adds 0 to every
#   gradient.
#   Inputs are `float64` or `float32`, and so are output and gradients.
# - Gradients flow to q, k and v, for any upstream gradient.
#   It may be a view, and is not modified.
# - **Memory.** Work in tiles of your choice, of at most **16** queries and 16
#   keys (a GPU takes 64 to 128; with 16 the check can be small).
#   In neither pass may a floating tensor that you make have as many numbers as
#   the scores of one head, Tq·Tk, nor may all that you hold take as much
#   memory as the scores of all heads.
#   What is kept between the passes takes at most twice the memory of q, k, v
#   and the output together.
#   Nor may an exponential be taken of more scores at once than a tile of 16 ×
#   16 of each head has, so that a query with all its keys is too much.
#   (It is tried with two heads of 64 queries and 80 keys and a causal mask,
#   and the exponentials also with one head of 2 queries and 260 keys.
#   A boolean mask (Tq, Tk) is allowed, as in task 6.8.)
#   Floating numbers stay in PyTorch's tensors, which can be measured: single
#   ones may be taken out in either pass, but fewer than there are scores.
# - A second derivative is not asked for.
#
# **Example**
#
# ```python
# q = torch.tensor([[1.0]], requires_grad=True)
# k = torch.tensor([[0.0], [1.0]])
# v = torch.tensor([[0.0], [1.0]])
# out = FlashAttention.apply(q, k, v)     # [[0.7311]]: 1 / (1 + 1/e)
# out.sum().backward()
# q.grad                                  # [[0.1966]]: 0.7311 · 0.2689
# ```
#
# **Why it matters:** this is what made long contexts trainable.
# Recomputing costs a second product of Q and K, and saves writing and reading
# T² numbers, which takes longer.
#
# <details>
# <summary>Hint 1: what does the backward pass need that it cannot
# compute?</summary>
#
# S follows from Q and K.
# P follows from S and one number a query.
# $\Delta$ follows from the upstream gradient and the output.
# So what do you hand to `ctx.save_for_backward`?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Forward: as in task 6.8, then save q, k, v, out and lse.
# Backward: Δ once; then for each pair of tiles recompute s, hide, p =
# exp(s − lse), and add the tile's part to dq's rows, dk's rows and dv's rows,
# which start at 0.
# A dead row has lse = −inf: replace it by +inf there, so that p is 0.
# `backward` returns one gradient an argument of `forward`, and `None` for
# `is_causal`.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `ds = p * (do_tile @ v_tile.mT - delta_tile[..., None])`
#
# </details>


# %% exercise="FlashAttention" level=5 minutes=75
class FlashAttention(torch.autograd.Function):
    """Attention in tiles, with gradients that recompute the weights.

    apply(q, k, v, is_causal=False): q (..., Tq, d), k (..., Tk, d),
        v (..., Tk, dv) -> (..., Tq, dv)
    source: Dao et al. 2022; Dao 2023, algorithms 1 and 2
    """

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False
    ) -> Tensor:
        """The output, (..., Tq, dv); keeps what backward needs on ctx."""
        ### BEGIN SOLUTION
        ctx.is_causal = is_causal
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        # Dead rows keep +inf: exp(s - inf) = 0 is their P.
        lse = q.new_full(q.shape[:-1], math.inf)
        for rows, tiles in FlashAttention.tiles(q, k, is_causal):
            m = q.new_full(lse[..., rows].shape, -math.inf)
            total = torch.zeros_like(m)
            acc = torch.zeros_like(out[..., rows, :])
            for columns in tiles:
                s = FlashAttention.scores(q, k, rows, columns, is_causal)
                higher = torch.maximum(m, s.amax(-1))
                reference = higher.masked_fill(higher == -math.inf, 0)
                p = torch.exp(s - reference[..., None])
                correction = torch.exp(m - reference)
                total = total * correction + p.sum(-1)
                acc = acc * correction[..., None] + p @ v[..., columns, :]
                m = higher
            alive = total > 0
            seen = total.masked_fill(~alive, 1)
            out[..., rows, :] = acc / seen[..., None]
            lse[..., rows] = (m + seen.log()).masked_fill(~alive, math.inf)
        ctx.save_for_backward(q, k, v, out, lse)
        return out
        ### END SOLUTION

    @staticmethod
    def backward(ctx, d_out: Tensor):
        """Gradients of q, k and v, and None for is_causal.

        d_out: (..., Tq, dv), the gradient of the output
        """
        ### BEGIN SOLUTION
        q, k, v, out, lse = ctx.saved_tensors
        root = math.sqrt(q.shape[-1])
        delta = (d_out * out).sum(-1)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for rows, tiles in FlashAttention.tiles(q, k, ctx.is_causal):
            do_tile = d_out[..., rows, :]
            for columns in tiles:
                s = FlashAttention.scores(q, k, rows, columns, ctx.is_causal)
                p = torch.exp(s - lse[..., rows, None])
                dp = do_tile @ v[..., columns, :].mT
                ds = p * (dp - delta[..., rows, None]) / root
                dv[..., columns, :] += p.mT @ do_tile
                dq[..., rows, :] += ds @ k[..., columns, :]
                dk[..., columns, :] += ds.mT @ q[..., rows, :]
        return dq, dk, dv, None

    @staticmethod
    def tiles(q, k, is_causal, size=16):
        """Slices of queries, each with the slices of keys that it may see."""
        Tq, Tk = q.shape[-2], k.shape[-2]
        for i in range(0, Tq, size):
            stop = min(i + size, Tq)
            last = stop + Tk - Tq if is_causal else Tk
            starts = range(0, last, size)
            yield slice(i, stop), [slice(j, min(j + size, Tk)) for j in starts]

    @staticmethod
    def scores(q, k, rows, columns, is_causal):
        s = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
        if not is_causal:
            return s
        ahead = k.shape[-2] - q.shape[-2]
        query = torch.arange(rows.start, rows.stop, device=q.device) + ahead
        key = torch.arange(columns.start, columns.stop, device=q.device)
        return s.masked_fill(key > query[:, None], -math.inf)
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
# You can now say what a model costs to run, token by token.
# What it costs to train, and how large it should be for a given budget, is
# the subject of chapter 7.
