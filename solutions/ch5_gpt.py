# %% [markdown]
# # GPT
#
# **Goal:** put the parts together to a language model, give it the right
# initial weights, train it, let it write, and fill it with the weights of
# the real GPT-2.
#
# Read [the chapter](../book/ch5_gpt.md) first, or keep it open beside this
# notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# The tasks do not need each other: where one needs the result of another, a
# short helper is given instead.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, T the number of tokens, V the size of
#   the vocabulary, D the width `d_model`, L the number of layers.
#   Token ids are `int64` tensors (B, T).
# - **A model** is an `nn.Module` with the configuration `.cfg` and a
#   `forward(ids, targets=None)` that returns `(logits, loss)`: logits
#   (B, T, V), and the loss, or `None` without targets.
#   Targets are aligned with the ids, and the model itself shifts them by one,
#   as in transformers: `model(ids, ids)` is the language model's loss.
# - **Names of parameters**: `tok_embed`, `pos_embed`, `blocks` (each with
#   `ln1`, `attn.qkv_proj`, `attn.out_proj`, `ln2`, `mlp.fc1`, `mlp.fc2`),
#   `ln_f`, `lm_head`.
#   Where a task takes a model, the check hands over a small model with these
#   names that is no GPT.
# - **Precision.** `float64` stays `float64` all the way; half-precision
#   inputs give half-precision results.
# - **Device.** After `model.to(device)`, everything that the model uses is on
#   that device: positions and masks are made where the ids lie.
# - **Arguments** are never modified, but for the model where that is the
#   task, and may be non-contiguous views.
#   A model is left in the mode, train or eval, in which it was found, and
#   gradients (`torch.set_grad_enabled`) are on or off as before.

# %% provided="imports"
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder import check


# %% provided="gpt_config"
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


# %% [markdown]
# ## 5.1 The whole model
#
# **Goal:** GPT-2, from token ids to logits and loss.
#
# The parts are known: two embeddings, L pre-LN blocks, a norm, a head.
# What is new is what holds them together: the head is the embedding, used a
# second time, and the loss compares each position with the token after it.
#
# **Contract**
#
# - `GPT(cfg)` takes a `GPTConfig` and keeps it as `self.cfg`.
#   (The report writes `GPT(vocab_size=7, …)` for
#   `GPT(GPTConfig(vocab_size=7, …))`.)
# - Parameters: `tok_embed.weight` (V, D); `pos_embed.weight`
#   (context_length, D); for each layer i `blocks.i.ln1`,
#   `blocks.i.attn.qkv_proj` (D → 3D, rows q, then k, then v, each with the
#   heads one after the other), `blocks.i.attn.out_proj` (D → D),
#   `blocks.i.ln2`, `blocks.i.mlp.fc1` (D → 4D), `blocks.i.mlp.fc2` (4D → D);
#   `ln_f`; `lm_head.weight` (V, D).
#   All linear layers but the head have biases, and so have the norms; with
#   `cfg.bias=False` neither have.
#   There are no other parameters; buffers, a mask for instance, are yours to
#   choose.
# - `lm_head.weight` and `tok_embed.weight` are **one** `nn.Parameter`; both
#   names are in `state_dict()`.
# - The stream starts as the sum of both embeddings.
#   Blocks are pre-LN with causal attention and **tanh GELU**, as in GPT-2;
#   all norms have eps 1e-5; `ln_f` stands before the head.
# - `forward(ids, targets=None)` returns `(logits, loss)`: logits (B, T, V) of
#   all positions, not normalised; `loss` is `None` without targets, else the
#   mean cross-entropy between the logits at t and the target at t + 1, in
#   nats; a target of −100 does not count.
#   Both have the weights' dtype.
#   T may be another one at each call.
# - More than `cfg.context_length` tokens are a `ValueError`.
# - Dropout with probability `cfg.dropout`, in train mode only, as
#   `nn.Dropout` does it (each number of each text by itself; what is kept is
#   divided by 1 − `cfg.dropout`): on the sum of the embeddings, the attention
#   weights, the attention's output and the MLP's output, and nowhere else.
#   (The check tries `dropout=1`, which makes all of these zeros, and counts
#   zeros with `dropout=0.25`.)
# - Initial weights as in task 5.3, drawn by the constructor: all matrices and
#   embeddings N(0, 0.02²), but `out_proj` and `fc2` with the standard
#   deviation 0.02/√(2L); biases 0, gains 1.
#   torch's global random state drives the draws, and is not seeded: a model
#   that is built after another one starts with other weights.
# - `nn.Linear`, `nn.Embedding`, `nn.LayerNorm`, `F.gelu`, `F.cross_entropy`
#   and `F.scaled_dot_product_attention` are allowed, and so is your block
#   from chapter 4, pasted into the cell.
#
# **Example**
#
# ```python
# cfg = GPTConfig(vocab_size=50, context_length=16, d_model=32, n_heads=4,
#                 n_layers=2)
# model = GPT(cfg)
# sum(p.numel() for p in model.parameters())     # 27,584
# logits, loss = model(torch.randint(50, (8, 16)))
# logits.shape, loss                             # (8, 16, 50), None
# ```
#
# With random targets the first loss is about 3.92: ln 50 = 3.912 for knowing
# nothing, and a little for the noise in the logits.
# At GPT-2 small's sizes the model has 124,439,808 parameters.
#
# **Why it matters:** this is the program behind the large language models.
# What later ones changed (rotary positions, RMSNorm, SwiGLU, grouped queries)
# fits into these hundred lines, part by part.
#
# <details>
# <summary>Hint 1: how many matrices of V rows does the model have?</summary>
#
# One.
# It looks ids up on the way in, and compares the stream with every token on
# the way out.
# What has to be assigned to what, so that there is one `nn.Parameter`?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Build the embeddings, a `ModuleList` of blocks, the norm and the head; tie;
# then draw the initial weights, since each layer has drawn others.
# Forward: check the length, add the embeddings, run through the blocks, norm,
# head.
# For the loss, do not cut the logits, which are the largest tensor of all:
# move the targets one to the left and fill up with −100.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `F.cross_entropy(logits.flatten(0, 1), after.flatten())`, where
# `after = F.pad(targets[:, 1:], (0, 1), value=-100)`.
#
# </details>


# %% exercise="GPT" level=3 minutes=60
class GPT(nn.Module):
    """A GPT-2 of any size.

    cfg: a GPTConfig, kept as .cfg
    submodules: tok_embed; pos_embed; blocks, each with ln1, attn (qkv_proj,
        rows q, k, v, and out_proj), ln2, mlp (fc1, fc2); ln_f; lm_head,
        whose weight is tok_embed.weight
    source: Radford et al. 2019; transformers' GPT2LMHeadModel
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        ### BEGIN SOLUTION
        self.cfg = cfg
        D, bias = cfg.d_model, cfg.bias

        def linears(**sizes):
            return nn.ModuleDict(
                {name: nn.Linear(*size, bias) for name, size in sizes.items()}
            )

        self.tok_embed = nn.Embedding(cfg.vocab_size, D)
        self.pos_embed = nn.Embedding(cfg.context_length, D)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(D, bias=bias),
                    "attn": linears(qkv_proj=(D, 3 * D), out_proj=(D, D)),
                    "ln2": nn.LayerNorm(D, bias=bias),
                    "mlp": linears(fc1=(D, 4 * D), fc2=(4 * D, D)),
                }
            )
            for _ in range(cfg.n_layers)
        )
        self.ln_f = nn.LayerNorm(D, bias=bias)
        self.lm_head = nn.Linear(D, cfg.vocab_size, bias=False)
        self.lm_head.weight = self.tok_embed.weight
        self.dropout = nn.Dropout(cfg.dropout)
        for name, value in self.named_parameters():
            if value.ndim > 1:
                residual = name.endswith(("out_proj.weight", "fc2.weight"))
                writers = 2 * cfg.n_layers if residual else 1
                nn.init.normal_(value, std=0.02 / math.sqrt(writers))
            elif name.endswith("bias"):
                nn.init.zeros_(value)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of what follows each token, and the loss.

        ids, targets: (B, T), aligned; a target of -100 does not count
        returns: (B, T, V), and the mean loss in nats or None
        raises ValueError: if T exceeds the context
        """
        ### BEGIN SOLUTION
        T = ids.shape[1]
        if T > self.cfg.context_length:
            raise ValueError(
                f"{T} tokens exceed the context of {self.cfg.context_length}"
            )
        x = self.tok_embed(ids) + self.pos_embed.weight[:T]
        x = self.dropout(x)
        for block in self.blocks:
            x = x + self.attention(block["attn"], block["ln1"](x))
            x = x + self.feed_forward(block["mlp"], block["ln2"](x))
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        # Shift the targets, not the logits: those would have to be copied.
        after = F.pad(targets[:, 1:], (0, 1), value=-100)
        return logits, F.cross_entropy(logits.flatten(0, 1), after.flatten())

    def attention(self, layers, x):
        qkv = layers["qkv_proj"](x).unflatten(-1, (3, self.cfg.n_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, Dh)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            dropout_p=self.cfg.dropout if self.training else 0.0,
        )
        return self.dropout(
            layers["out_proj"](mixed.transpose(1, 2).flatten(2))
        )

    def feed_forward(self, layers, x):
        hidden = F.gelu(layers["fc1"](x), approximate="tanh")
        return self.dropout(layers["fc2"](hidden))
        ### END SOLUTION


# %% [markdown]
# ## 5.2 The language model's loss
#
# **Goal:** compare what was predicted with what came next.
#
# The logits at position t have seen the tokens 0 to t, and predict the token
# t + 1.
# So the first token is never predicted, and the last logits are never judged.
#
# **Contract**
#
# - `logits` (B, T, V), floating; `ids` (B, T), the tokens themselves, **not**
#   shifted: the shift is your task.
# - Return the mean of −ln softmax(logits at t)[token t + 1], over all
#   examples and all t from 0 to T − 2, as a 0-d tensor in the logits' dtype.
#   Natural logarithm.
# - A **target** that equals `ignore_index` counts neither in the sum nor in
#   the number that divides it; as a token that predicts, its position counts
#   like any other.
#   `ignore_index` may be any number, also that of a real token.
# - If no target is left the result is nan, as in torch.
# - Logits of ±10,000 are fine; gradients flow to the logits.
# - `F.cross_entropy` is allowed.
#
# **Example**
#
# ```python
# logits = torch.tensor([[[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]])
# lm_loss(logits, torch.tensor([[2, 1]]))
# # 0.2395: only [0, 2, 0] counts, and token 1 came; ln(1 + 2/e²)
# ```
#
# **Why it matters:** a model that is trained without the shift learns to
# copy, and its loss falls to 0.
# With two shifts, one in the data and one in the loss, it predicts the next
# token but one.
# The first loss does not show the second; where the head is tied it shows the
# first, by a nat too little.
#
# <details>
# <summary>Hint 1: which logits have no target?</summary>
#
# Write down T = 3: positions 0, 1, 2, and under each the token that follows.
# Which position has none, and which token is under none?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# All logits but the last, all ids but the first; join the axes B and T of
# both, so that one row of V logits meets one id; cross-entropy, which takes
# raw logits.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `logits[:, :-1].flatten(0, 1)` and `ids[:, 1:].flatten()`
#
# </details>


# %% exercise="lm_loss" level=2 minutes=10
def lm_loss(logits: Tensor, ids: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean cross-entropy of each token but the first, in nats.

    logits: (B, T, V); those at t predict the token at t + 1
    ids: (B, T), not shifted
    ignore_index: targets of this value do not count
    returns: 0-d, the logits' dtype; nan if no target counts
    """
    ### BEGIN SOLUTION
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1),
        ids[:, 1:].flatten(),
        ignore_index=ignore_index,
    )
    ### END SOLUTION


# %% [markdown]
# ## 5.3 Initial weights
#
# **Goal:** start GPT-2 as GPT-2 was started.
#
# Each block adds twice to the residual stream.
# If all 2L additions had the same size, the stream's variance would grow with
# the depth; dividing the weights that write to the stream by √(2L) keeps it.
#
# **Contract**
#
# - Fill the parameters of `model` in place, whatever they held before:
#     - every tensor with **two or more dimensions**, embeddings too, whatever
#       kind of module it belongs to: independent draws from N(0, std²), a
#       full normal distribution;
#     - of these, the ones whose names end in `out_proj.weight` or
#       `fc2.weight`: std/√(2 · n_layers) in the place of std, by the argument
#       `n_layers` (the model may have another number of blocks);
#     - one-dimensional tensors: 0 if the name ends in `bias`; 1 for all
#       others: they are gains of norms, whatever their names.
# - The parameters stay the same objects: a head that is tied to the embedding
#   stays tied, an untied one untied.
#   Buffers stay as they are.
# - torch's global random state drives the draws.
#   Do not seed it, nor put it back: a second call draws other values.
# - Nothing is returned.
#
# **Example** for a GPT with L = 8:
#
# ```python
# init_weights(model, 8)
# model.blocks[0]["mlp"]["fc1"].weight.std()    # about 0.02
# model.blocks[0]["mlp"]["fc2"].weight.std()    # about 0.005
# model.blocks[0]["ln1"].weight                 # all 1
# ```
#
# **Why it matters:** after the final norm a token's vector has length √D, so
# the logits have variance D · std², and the first loss is
# ln V + ½ · D · std²: 10.979 for GPT-2 small, where knowing nothing costs
# 10.825.
# PyTorch's default for embeddings, N(0, 1), used as a head, gives several
# hundred instead.
#
# <details>
# <summary>Hint 1: how do you recognise what a tensor is?</summary>
#
# By the kind of its module, by its number of dimensions, or by its name.
# Which of these works for a convolution and for a bare `nn.Parameter`, too?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Go through `model.named_parameters()`, which has each parameter once.
# Decide by dimensions, then by the end of the name; fill with the functions
# of `nn.init`, which work in place and without gradients.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `name.endswith(("out_proj.weight", "fc2.weight"))`
#
# </details>


# %% exercise="init_weights" level=3 minutes=20
def init_weights(model: nn.Module, n_layers: int, std: float = 0.02) -> None:
    """Draw GPT-2's initial weights, in place.

    model: its parameters have the course's names
    n_layers: depth by which the residual projections are scaled
    std: standard deviation of all other matrices and embeddings
    source: Radford et al. 2019, section 2.3
    """
    ### BEGIN SOLUTION
    for name, value in model.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            nn.init.normal_(value, std=std / math.sqrt(2 * n_layers))
        elif value.ndim > 1:
            nn.init.normal_(value, std=std)
        else:
            nn.init.constant_(value, 0.0 if name.endswith("bias") else 1.0)
    ### END SOLUTION


# %% [markdown]
# ## 5.4 One matrix for both ends
#
# **Goal:** let the head use the embedding's matrix, for good.
#
# **Contract**
#
# - `model` has `tok_embed` (an `nn.Embedding`) and `lm_head` (an `nn.Linear`
#   without bias), both with a weight (V, D).
# - After the call `lm_head.weight` **is** `tok_embed.weight`: the very
#   `nn.Parameter` that the embedding had before, with its values.
#   The head's old matrix is gone.
# - Both modules and both names in `state_dict()` stay, and the parameter is
#   trained.
# - Nothing is returned.
#
# **Example**
#
# ```python
# model = nn.Module()
# model.tok_embed, model.lm_head = nn.Embedding(5, 3), nn.Linear(3, 5, False)
# tie_weights(model)
# sum(p.numel() for p in model.parameters())           # 15, not 30
# ```
#
# **Why it matters:** at GPT-2 small's size this saves 38,597,376 of
# 163,037,184 parameters.
# Ties that only look like one fail later: two matrices with equal values part
# at the first step; two Parameters on one storage are counted and decayed
# twice, and part when the model is copied or converted.
#
# <details>
# <summary>Hint 1: what is an nn.Parameter, as a Python object?</summary>
#
# Modules hold references to parameters.
# Can two modules refer to the same object?
# What does `.data` refer to?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Assign the embedding's Parameter to the head's attribute.
# `nn.Module` registers it there in the place of the old one.
# Copy nothing.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# An assignment between `model.lm_head.weight` and `model.tok_embed.weight`;
# think about which of them stands on the left.
#
# </details>


# %% exercise="tie_weights" level=2 minutes=5
def tie_weights(model: nn.Module) -> None:
    """Make the head's weight the embedding's Parameter.

    model: with tok_embed (nn.Embedding) and lm_head (nn.Linear)
    source: Press and Wolf 2017
    """
    ### BEGIN SOLUTION
    model.lm_head.weight = model.tok_embed.weight
    ### END SOLUTION


# %% [markdown]
# ## 5.5 Which tokens may come next
#
# **Goal:** the four usual filters between logits and a draw.
#
# **Contract**
#
# - `logits` (..., V), floating, any number of leading axes; some may be −inf
#   already, but not a whole row.
#   Return logits of the same shape and dtype, with −inf for every token that
#   is filtered out.
#   They are judged by which tokens are left and by `softmax(result, -1)`, so
#   a constant added to a row makes no difference.
# - Each **row** (one vector of V logits) is filtered by itself, in this
#   order; each filter sees what the ones before have left, and probabilities
#   are renormalised over that.
#     1. `temperature` ≥ 0: divide the logits by it.
#        0 leaves the largest logit, or all that are equal to it.
#     2. `top_k` ≥ 1: keep the k largest; tokens that tie with the k-th are
#        kept, too; a k above V keeps all.
#     3. `top_p` ≥ 0: sort by probability; keep the most likely tokens until
#        their sum reaches p, **with** the token that crosses p.
#        At least one token stays, so 0 keeps one; 1 or more filters nothing.
#        (Neither ties nor a sum that equals p occur in the check.)
#     4. `min_p` from 0 to 1: keep what has at least min_p times the
#        probability of the most likely token.
# - `None` means that a filter is not used.
# - Logits of ±10,000 are fine; half-precision logits are computed in
#   `float32`.
#
# **Example** with the probabilities 0.5, 0.3, 0.15 and 0.05:
#
# ```python
# logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
# filter_logits(logits, top_p=0.6).softmax(-1)
# # [0.625, 0.375, 0, 0]: 0.5 is not yet 0.6, so 0.3 stays
# filter_logits(logits, min_p=0.2).softmax(-1)
# # [0.526, 0.316, 0.158, 0]: 0.05 is below 0.2 · 0.5
# filter_logits(logits, temperature=0.0).softmax(-1)
# # [1, 0, 0, 0]
# ```
#
# **Why it matters:** the tail of a language model's distribution holds tens
# of thousands of unlikely tokens, which together are drawn often enough to
# derail a text.
# All four filters cut it, by different rules.
#
# <details>
# <summary>Hint 1: which sum decides about a token?</summary>
#
# Take 0.5, 0.3, 0.15, 0.05 and p = 0.6.
# The sums including each token are 0.5, 0.8, 0.95, 1, those of what stands
# before each are 0, 0.5, 0.8, 0.95.
# Which of these must be below p for a token to stay?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Top-k: the k-th largest of each row is a threshold; keep the reduced axis,
# so that each row meets its own.
# Top-p: sort the probabilities in descending order, decide there by the sum
# of what stands before, spare the first, and carry the decision back to the
# vocabulary's order.
# Min-p: compare probabilities with the row's largest.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `probs, order = logits.softmax(-1).sort(-1, descending=True)`, and
# `drop.scatter(-1, order, drop)` carries a decision back.
#
# </details>


# %% exercise="filter_logits" level=3 minutes=35
def filter_logits(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """Logits with -inf for the tokens that may not be drawn.

    logits: (..., V), floating; -inf is hidden already
    temperature: 0 leaves the maxima
    top_k: how many stay (ties too); top_p: mass that stays, with the token
        that crosses it; min_p: share of the largest probability
    returns: the logits' shape and dtype
    source: Holtzman et al. 2020 (top-p); Nguyen et al. 2024 (min-p)
    """
    ### BEGIN SOLUTION
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature == 0:
        x = x.masked_fill(x < x.amax(-1, keepdim=True), -math.inf)
    else:
        x = x / temperature
    if top_k is not None:
        kth = x.topk(min(top_k, x.shape[-1]), dim=-1).values[..., -1:]
        x = x.masked_fill(x < kth, -math.inf)
    if top_p is not None and top_p < 1:
        probs, order = x.softmax(-1).sort(-1, descending=True)
        drop = probs.cumsum(-1) - probs >= top_p  # what stands before
        drop[..., 0] = False
        x = x.masked_fill(drop.scatter(-1, order, drop), -math.inf)
    if min_p is not None:
        probs = x.softmax(-1)
        low = probs < min_p * probs.amax(-1, keepdim=True)
        x = x.masked_fill(low, -math.inf)
    return x.to(logits.dtype)
    ### END SOLUTION


# %% [markdown]
# ## Given for task 5.6: a filter
#
# `simple_filter` knows two of the keywords of task 5.5, in their own order.

# %% provided="simple_filter"


def simple_filter(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None
) -> Tensor:
    """What `generate` needs of a filter, if you have no filter_logits.

    logits: (B, V)
    """
    if temperature == 0:
        temperature, top_k = 1.0, 1
    if top_k is not None:
        best, places = logits.topk(top_k)
        hidden = torch.full_like(logits, -math.inf)
        logits = hidden.scatter(-1, places, best)
    return logits / temperature


# %% [markdown]
# ## 5.6 Write
#
# **Goal:** let a model continue a prompt, token by token.
#
# **Contract**
#
# - `ids` is a prompt (B, T), T ≥ 1.
#   Return (B, T + max_new_tokens), `int64`: the prompt, unchanged, and what
#   was drawn.
#   With `max_new_tokens=0` that is the prompt alone.
# - Each step runs the model on what there is so far, cropped to the **last**
#   `model.cfg.context_length` tokens (the model refuses more), takes the
#   logits at the last position, filters them, and draws one token for every
#   row from their softmax.
# - `**kw` goes to `filter_logits` (task 5.5), or, if you skipped it, to the
#   helper `simple_filter` above; the check uses `temperature` and `top_k`
#   only.
# - `generator` is a `torch.Generator`, or `None` for torch's global one.
#   It decides everything: the same generator state gives the same text,
#   whatever the global state, which stays as it is.
#   Nothing is seeded inside, and drawing moves the generator on: a second
#   call with it writes another text.
# - No token ends the text: `max_new_tokens` come, whichever they are.
# - The model runs in eval mode and without a graph for gradients.
#   Afterwards its mode, and whether gradients are on, are as before; its
#   parameters are trained as before.
#
# **Example** with a model that always adds 1 to the last token:
#
# ```python
# class Counter(nn.Module):
#     cfg = GPTConfig(vocab_size=10, context_length=4)
#
#     def forward(self, ids, targets=None):
#         return 9.0 * F.one_hot((ids + 1) % 10, 10), None
#
# generate(Counter(), torch.tensor([[7]]), 5, temperature=0)
# # [[7, 8, 9, 0, 1, 2]]
# ```
#
# **Why it matters:** this loop is how every language model writes.
# What it does again and again, run over the whole text for one new token, is
# what chapter 6 saves.
#
# <details>
# <summary>Hint 1: what changes from step to step?</summary>
#
# Two lengths: that of the text, which grows, and that of the window, which
# stops growing at some point.
# Which of them does the model see, and which do you return?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Remember `model.training`, switch to eval mode, and restore it in a
# `finally`.
# Under `torch.no_grad()` loop: crop, run, last position, filter, softmax,
# draw, append along the time axis.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.multinomial(probs, 1, generator=generator)` draws one token a row.
#
# </details>


# %% exercise="generate" level=2 minutes=20
def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int,
    *,
    generator: torch.Generator | None = None,
    **kw,
) -> Tensor:
    """A prompt and its continuation.

    model: returns (logits, loss) and knows its cfg.context_length
    ids: (B, T), int64, T at least 1
    kw: arguments of the filter, temperature and top_k for instance
    returns: (B, T + max_new_tokens), int64
    """
    ### BEGIN SOLUTION
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for _ in range(max_new_tokens):
                logits, _ = model(ids[:, -model.cfg.context_length :])
                probs = simple_filter(logits[:, -1], **kw).softmax(-1)
                new = torch.multinomial(probs, 1, generator=generator)
                ids = torch.cat([ids, new], dim=1)
    finally:
        model.train(was_training)
    return ids
    ### END SOLUTION


# %% [markdown]
# ## 5.7a The learning rate's schedule
#
# **Goal:** warm up, then follow a cosine down.
#
# **Contract**
#
# - While `step < warmup`: `max_lr * (step + 1) / warmup`.
#   Step 0 learns already, perhaps with less than `min_lr`, and step
#   `warmup - 1` has `max_lr`.
# - From step `warmup` (`max_lr`) to step `total` (`min_lr`): half a period of
#   a cosine, in the share `(step - warmup) / (total - warmup)` of the way.
# - From step `total` on: `min_lr`.
# - `warmup` may be 0, or equal to `total`; it is never above it, and `total`
#   is at least 1.
# - Return a Python float.
#
# **Example**
#
# ```python
# [round(lr_at(s, 1.0, 0.1, 2, 6), 3) for s in range(8)]
# # [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
# ```
#
# **Why it matters:** Adam's first steps are as long as the learning rate,
# whatever the gradients, at a point where nothing is known about their size.
# A warm-up that starts at 0 wastes a step; a cosine that is not stopped goes
# up again.
#
# <details>
# <summary>Hint 1: what is the cosine at the two ends?</summary>
#
# cos 0 = 1 and cos π = −1.
# Which straight line takes 1 to max_lr and −1 to min_lr?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Three cases, in this order: in the warm-up; at or past the end; between
# them, where the share of the way runs from 0 to 1 and the denominator is
# positive.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * share))`
#
# </details>


# %% exercise="lr_at" level=2 minutes=10
def lr_at(
    step: int, max_lr: float, min_lr: float, warmup: int, total: int
) -> float:
    """The learning rate of one update.

    step: counts from 0
    warmup: updates with a rising rate, at most total
    total: the step from which the rate is min_lr
    """
    ### BEGIN SOLUTION
    if step < warmup:
        return max_lr * (step + 1) / warmup
    if step >= total:
        return min_lr
    share = (step - warmup) / (total - warmup)
    return min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * share))
    ### END SOLUTION


# %% [markdown]
# ## 5.7b What decays
#
# **Goal:** two groups of parameters, with weight decay and without.
#
# **Contract**
#
# - Return a list of dicts, each with `"params"` (a list of the model's
#   tensors) and `"weight_decay"`, as the optimisers of `torch.optim` take
#   them.
# - Every parameter with `requires_grad` is in exactly one group, also if two
#   names share it; others are in none.
# - Tensors with two or more dimensions, embeddings too, have
#   `weight_decay=wd`.
#   All others have 0.0, written down: a group without the key gets the
#   optimiser's default, which is 0.01 for AdamW.
# - Dimensions decide, not names: there are models whose names say nothing.
#
# **Example**
#
# ```python
# for group in param_groups(nn.Linear(2, 3), 0.1):
#     print(group["weight_decay"], [tuple(p.shape) for p in group["params"]])
# # 0.1 [(3, 2)]
# # 0.0 [(3,)]
# ```
#
# **Why it matters:** decay pulls towards 0, which is no natural place for the
# gain of a norm.
# And whoever is in no group is never trained, without a word.
#
# <details>
# <summary>Hint 1: does model.parameters() show a tied matrix twice?</summary>
#
# Try it with task 5.4's little model.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Collect the parameters that are trained, once; split the list by `.ndim`;
# one dict for each half.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `[p for p in model.parameters() if p.requires_grad]`
#
# </details>


# %% exercise="param_groups" level=2 minutes=10
def param_groups(model: nn.Module, wd: float) -> list:
    """Groups for an optimiser: matrices decay, vectors do not.

    wd: weight decay of tensors with two or more dimensions
    returns: dicts with params and weight_decay; every trained parameter once
    """
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": wd},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    ### END SOLUTION


# %% [markdown]
# ## Given for task 5.8: settings, learning rates, groups
#
# `learning_rates` and `gpt_groups` are to a training loop what task 5.7 is.

# %% provided="training_parts"


@dataclass
class TrainConfig:
    """How to train.

    make_optimizer: groups → optimiser; None: torch.optim.AdamW
    compile: a backend of torch.compile, or None
    """

    steps: int
    batch_size: int
    accum_steps: int = 1
    max_lr: float = 3e-4
    min_lr: float = 3e-5
    warmup: int = 0
    weight_decay: float = 0.1
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-8
    max_norm: float = 1.0
    amp: bool = False
    compile: str | None = None
    scaler: object = None
    make_optimizer: object = None


def learning_rates(cfg: TrainConfig) -> list[float]:
    """The rate of each of cfg's steps, read off from torch's scheduler."""
    rising = np.linspace(0, cfg.max_lr, cfg.warmup + 1)[1:].tolist()
    dummy = torch.optim.SGD([torch.zeros(1)], lr=cfg.max_lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(
        dummy, max(1, cfg.steps - cfg.warmup), eta_min=cfg.min_lr
    )
    while len(rising) < cfg.steps:
        rising.append(falling.get_last_lr()[0])
        dummy.step()
        falling.step()
    return rising


def gpt_groups(model: nn.Module, wd: float) -> list:
    """Two groups of parameters, for models with exactly a GPT's names."""
    groups = {True: [], False: []}
    for name, value in model.named_parameters():
        groups[name.endswith("weight") and "ln" not in name].append(value)
    return [
        {"params": groups[True], "weight_decay": wd},
        {"params": groups[False], "weight_decay": 0.0},
    ]


# %% [markdown]
# ## 5.8 Train
#
# **Goal:** the whole training step: accumulation, mixed precision, clipping,
# schedule, decay.
#
# **Contract**
#
# - `data` (N, T) holds token ids, `cfg` is a `TrainConfig` (above).
#   Return a list of `cfg.steps` Python floats: the mean loss over each
#   update's batch, as it was before that update.
# - Update s (from 0) uses the `batch_size` rows from s · batch_size on; after
#   the last row comes row 0 again, in the middle of a batch if need be.
#   (A batch may be larger than the data.)
# - A batch is split, in order, into `accum_steps` parts of at most
#   ⌈batch_size / accum_steps⌉ rows, which need not be equal.
#   (`accum_steps` is never above `batch_size`, so no part is empty.)
#   The gradient is that of the mean over the **whole batch**: a part's mean
#   loss weighs as much as its share of the rows.
#   (Gradients that an earlier run has left in the model do not count.)
# - The model is called as `model(part, part)` and returns (logits, loss); the
#   shift is inside.
# - Train mode, also if the model comes in eval mode; afterwards the mode in
#   which it came.
#   The parameters keep their dtype, and are trained afterwards as before.
# - The groups are those of task 5.7b, with `cfg.weight_decay`; the optimiser
#   is `cfg.make_optimizer(groups)`, or `torch.optim.AdamW` with the groups,
#   `cfg.betas` and `cfg.eps`.
# - Update s sets every group's `"lr"` to the rate of step s: task 5.7a with
#   `max_lr`, `min_lr`, `warmup` and total = `steps`.
# - Before each step the norm of all gradients together is cut down to
#   `max_norm` where it is larger, as `nn.utils.clip_grad_norm_` does.
# - `amp=True`: the forward pass runs under `torch.autocast` to `bfloat16`, on
#   the device of the data.
# - `scaler`, if not `None`, has the methods of `torch.amp.GradScaler`.
#   In each update: `scale` each part's loss, `unscale_(optimizer)` before
#   clipping, then `step(optimizer)` and `update()`.
# - `compile`, if not `None`, is a backend's name: run the model through
#   `torch.compile(model, backend=…)`, made once.
# - The helpers `learning_rates` and `gpt_groups` above stand for 5.7 if you
#   skipped it.
#
# The first check takes a few seconds longer, while torch loads its
# optimisers.
#
# **Example** with a model of one number, which should become 3:
#
# ```python
# class One(nn.Module):
#     def __init__(self):
#         super().__init__()
#         self.weight = nn.Parameter(torch.zeros(1, 1))
#
#     def forward(self, ids, targets):
#         return None, (self.weight - 3).square().mean()
#
# cfg = TrainConfig(steps=3, batch_size=1, max_lr=0.1, min_lr=0.1,
#                   make_optimizer=torch.optim.SGD)
# train(One(), torch.zeros(1, 2, dtype=torch.long), cfg)
# # [9.0, 8.41, 7.85]: gradients of −6, −5.8 …, clipped to −1, move by 0.1
# # (nearly: weight decay has a hand in it from the second step on)
# ```
#
# **Why it matters:** most faults in this loop do not stop the loss from
# falling.
# Adam hides a gradient that is n times too large, a warm-up hides a wrong
# schedule, and dropout that is off looks like progress.
# That is why the check looks at gradients, rates and modes, and not at the
# loss alone.
#
# <details>
# <summary>Hint 1: what belongs to a part, what to an update?</summary>
#
# Forward and backward happen for every part.
# And emptying the gradients, clipping, the rate, the step?
# Backward passes add their gradients up: which factor makes the sum the
# gradient of the batch's mean?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Before the loop: groups, optimiser, perhaps compile, remember the mode.
# For each update: take the rows modulo N; set the rates; empty the gradients;
# for each part run forward (under autocast if asked), weigh the loss by
# `len(part) / len(batch)`, scale it, backward; unscale; clip; step; update.
# Keep the weighted losses' sum, detached.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `data[torch.arange(first, first + cfg.batch_size) % len(data)]` are the
# rows, and `.tensor_split(cfg.accum_steps)` makes the parts.
#
# </details>


# %% exercise="train" level=4 minutes=50
def train(model: nn.Module, data: Tensor, cfg: TrainConfig) -> list[float]:
    """Train a model on rows of tokens.

    model: model(rows, rows) returns (logits, mean loss)
    data: (N, T), int64; taken in order, again and again
    returns: the mean loss of each update's batch, before the update
    """
    ### BEGIN SOLUTION
    groups = gpt_groups(model, cfg.weight_decay)
    if cfg.make_optimizer is not None:
        optimizer = cfg.make_optimizer(groups)
    else:
        optimizer = torch.optim.AdamW(
            groups, betas=cfg.betas, eps=cfg.eps, fused=True
        )
    run = torch.compile(model, backend=cfg.compile) if cfg.compile else model
    was_training, losses = model.training, []
    model.train()
    try:
        for step, rate in enumerate(learning_rates(cfg)):
            for group in optimizer.param_groups:
                group["lr"] = rate
            rows = step * cfg.batch_size + torch.arange(cfg.batch_size)
            batch = data[rows.to(data.device) % len(data)]
            optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for part in batch.tensor_split(cfg.accum_steps):
                with torch.autocast(
                    data.device.type, torch.bfloat16, enabled=cfg.amp
                ):
                    _, loss = run(part, part)
                loss = loss * (len(part) / len(batch))
                total = total + loss.detach()
                (cfg.scaler.scale(loss) if cfg.scaler else loss).backward()
            if cfg.scaler:
                cfg.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
            if cfg.scaler:
                cfg.scaler.step(optimizer)
                cfg.scaler.update()
            else:
                optimizer.step()
            losses.append(total)
    finally:
        model.train(was_training)
    return [loss.item() for loss in losses]  # waits for the device once
    ### END SOLUTION


# %% [markdown]
# ## 5.9 Beam search
#
# **Goal:** look for a likely sequence by keeping the best k beginnings.
#
# The most likely first token need not begin the most likely sequence.
# Beam search keeps k hypotheses, lets all their continuations compete, and
# keeps the best k again.
#
# **Contract**
#
# - `logp_fn(ids)` takes a list of Python ints that starts with `bos` and
#   returns a tensor (V,) with the log-probabilities of the next id; −inf is
#   possible.
#   It is never asked about a finished sequence.
# - A hypothesis is **finished** when an `eos` stands after `bos`.
#   `bos` may be the same id as `eos`, as in GPT-2: the first id finishes
#   nothing.
# - Start with `[bos]`, at log-probability 0.
#   In each of at most `max_len` rounds all continuations by one id of all
#   unfinished hypotheses, together with the finished ones, compete by their
#   **total** log-probability, and the best k stay: a finished hypothesis
#   keeps its place as long as it is among them.
# - Return, of those that stay at the end, the one with the highest total,
#   finished or not, as a list of Python ints: `bos` first, `eos` last if it
#   was reached, at most `max_len` ids after `bos`.
#   No length penalty.
# - `max_len=0` gives `[bos]`; k may exceed V.
#   There are no ties.
#
# **Example**
#
# ```python
# def logp_fn(ids):  # token 1 looks better at first; 2 leads to 0.36
#     table = {0: [0, 0.6, 0.4, 0], 1: [0.35, 0.3, 0.2, 0.15],
#              2: [0.02, 0.03, 0.05, 0.9]}
#     return torch.tensor(table[ids[-1]]).log()
#
# beam_search(logp_fn, bos=0, eos=3, k=1, max_len=2)   # [0, 1, 0], 0.21
# beam_search(logp_fn, bos=0, eos=3, k=2, max_len=2)   # [0, 2, 3], 0.36
# ```
#
# **Why it matters:** for translation and speech recognition, where there is
# one right answer, the most likely sequence is what you want.
# For free text it is not: it is short and repeats itself, which is why
# language models draw.
#
# <details>
# <summary>Hint 1: what has to be kept of a hypothesis?</summary>
#
# Its ids and one number.
# When does that number change, and can it ever rise?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Keep a list of (total, ids).
# In each round make a new list: finished hypotheses as they are, and for each
# of the others one entry for every token.
# Sort by the total, cut after k.
# Stop early when all are finished.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `len(ids) > 1 and ids[-1] == eos` says that a hypothesis is finished.
#
# </details>


# %% exercise="beam_search" level=5 minutes=45
def beam_search(
    logp_fn, bos: int, eos: int, k: int, max_len: int
) -> list[int]:
    """A likely sequence, by total log-probability.

    logp_fn: list of ids, bos first → (V,) log-probabilities of the next id
    k: hypotheses that stay after each round, finished ones included
    max_len: the most ids after bos
    returns: ids, bos first, eos last if it was reached
    """

    ### BEGIN SOLUTION
    def finished(ids):
        return len(ids) > 1 and ids[-1] == eos

    beam = [(0.0, [bos])]
    for _ in range(max_len):
        grown = [(total, ids) for total, ids in beam if finished(ids)]
        for total, ids in beam:
            if not finished(ids):
                grown += [
                    (total + logp, [*ids, token])
                    for token, logp in enumerate(logp_fn(ids).tolist())
                ]
        beam = sorted(grown, reverse=True)[:k]
        if all(finished(ids) for _, ids in beam):
            break
    return max(beam)[1]
    ### END SOLUTION


# %% [markdown]
# ## 5.10 The real weights
#
# **Goal:** carry GPT-2's published weights over into our model.
#
# **Contract**
#
# - `model` has our names, tied, with biases; `hf_state_dict` is a state dict
#   of transformers' GPT-2.
#   Fill the model's parameters, in place, with its values:
#
# | transformers | ours |
# |---|---|
# | `wte.weight`, `wpe.weight` | `tok_embed.weight`, `pos_embed.weight` |
# | `h.0.ln_1`, `h.0.ln_2` | `blocks.0.ln1`, `blocks.0.ln2` |
# | `h.0.attn.c_attn`, `h.0.attn.c_proj` | `attn.qkv_proj`, `attn.out_proj` |
# | `h.0.mlp.c_fc`, `h.0.mlp.c_proj` | `mlp.fc1`, `mlp.fc2` |
# | `ln_f` | `ln_f` |
# | `lm_head.weight` | nothing to do: it is the embedding |
#
# - `c_attn`, `c_proj` and `c_fc` are layers of the kind `Conv1D`, which
#   stores its weight as (in, out); `nn.Linear` stores (out, in).
# - All names but `lm_head.weight` begin with `transformer.`, or none does.
#   They come in any order.
#   `lm_head.weight` may be there or not.
# - Old files also hold the mask, `h.0.attn.bias` and `h.0.attn.masked_bias`:
#   ignore both.
#   (`h.0.attn.c_attn.bias` is a real bias.)
# - A name that the model needs and the dict lacks is a `KeyError` whose
#   message has that name in the **dict's** language, `h.0.mlp.c_fc.bias` for
#   instance, with or without the prefix.
#   A name that has no place in the model is a `KeyError` with that name.
# - The dict and its tensors are not changed, and the model shares no memory
#   with them.
#   The model's parameters stay the same objects, tied and trained.
#   Their dtype stays, too.
#
# **Example**
#
# ```python
# from transformers import GPT2LMHeadModel  # on Colab, for instance
#
# model = GPT(GPTConfig())
# load_gpt2(model, GPT2LMHeadModel.from_pretrained("gpt2").state_dict())
# ```
#
# **Why it matters:** equal logits from equal weights are the strongest test
# there is of a forward pass (of initial weights, dropout and gradients they
# say nothing), and here is a model that can write.
# One of the transposed matrices is square, so nothing but the numbers shows
# if it was forgotten.
#
# <details>
# <summary>Hint 1: from which side do you start?</summary>
#
# If you go through the model's parameters, you notice what is missing.
# If you go through the dict, you notice what is unknown.
# You need both; which comparison gives you both at once?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Translate each of the model's names to transformers' with a few
# replacements, with the prefix if the dict has it.
# Compare the two sets of names, with the head and the masks left out.
# Then copy each tensor, transposed where the name says Conv1D, without
# gradients.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `parameter.copy_(value.T if conv1d else value)`, under `torch.no_grad()`
#
# </details>


# %% exercise="load_gpt2" level=3 minutes=30
def load_gpt2(model: nn.Module, hf_state_dict: dict) -> None:
    """Fill a GPT with the weights of transformers' GPT-2.

    model: with the course's names, tied
    hf_state_dict: of GPT2LMHeadModel or GPT2Model; left as it is
    raises KeyError: naming what is missing or has no place in the model
    """
    ### BEGIN SOLUTION
    theirs = {
        "tok_embed": "wte",
        "pos_embed": "wpe",
        "blocks": "h",
        "ln1": "ln_1",
        "ln2": "ln_2",
        "qkv_proj": "c_attn",
        "out_proj": "c_proj",
        "fc1": "c_fc",
        "fc2": "c_proj",
    }
    has_prefix = any(key.startswith("transformer.") for key in hf_state_dict)
    needed = {}
    for name, parameter in model.named_parameters():
        parts = [theirs.get(part, part) for part in name.split(".")]
        key = ".".join(["transformer"] * has_prefix + parts)
        if key != "lm_head.weight":
            needed[key] = parameter
    masks = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
    found = {key for key in hf_state_dict if not key.endswith(masks)}
    if needed.keys() - found:
        raise KeyError(f"missing: {sorted(needed.keys() - found)}")
    if found - needed.keys():
        raise KeyError(f"unknown: {sorted(found - needed.keys())}")
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    with torch.no_grad():
        for key, parameter in needed.items():
            value = hf_state_dict[key]
            # Conv1D stores (in, out), nn.Linear (out, in).
            parameter.copy_(value.T if key.endswith(conv1d) else value)
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
# Now let it write.
# Load the real GPT-2 with your `load_gpt2`, and let `generate` continue a
# sentence.
# It gets slower with every token, since each step runs over the whole text
# again: chapter 6 keeps what was computed.
