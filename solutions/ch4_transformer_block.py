# %% [markdown]
# # The transformer block
#
# **Goal:** build the block of which every transformer is a stack, know what
# each of its parts is for, and follow a gradient through all of them.
#
# Read [the chapter](../book/ch4_transformer_block.md) first, or keep it open
# beside this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# Run the check as often as you like; it explains what it finds.
# The tasks do not need each other, so you can skip one and come back.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Names of axes.** B is the batch, T the number of tokens, D the width
#   `d_model`, H the number of heads, Dh = D / H the width of a head.
#   `n_heads` always divides `d_model` here.
# - **Names of layers.** A check loads weights into your modules by name, so
#   submodules and parameters are called what the docstrings say.
#   A linear layer has `weight` (out, in) and `bias` (out,), as `nn.Linear`;
#   so `attn.qkv_proj.weight` is the weight of a layer `qkv_proj` in a
#   submodule `attn`.
#   Extra parameters are refused, extra buffers are not looked at.
#   Each layer is made anew: no two start with the same random values.
# - **Masks** are boolean and `True` where a query **may look**.
#   A query that may look at nothing gets zeros from the attention, before
#   `out_proj`, and all gradients stay finite.
# - **GELU** is exact (with the error function) unless a task says "tanh".
# - **bias=False** drops the biases of linear layers and of norms alike.
# - **Precision.** Modules and inputs share one floating dtype, which is also
#   the dtype of the result.
#   `float64` stays `float64` all the way.
#   Half precision means `float16` and `bfloat16`.
# - **Device.** After `module.to(device)`, everything that the module uses is
#   on that device: a mask is made where `x` lies, or registered as a buffer.
# - **Autograd.** Gradients flow to every floating input and every parameter.
# - **Modes.** In eval mode (`module.eval()`) a module is a function: the same
#   input gives the same output.
#   Without dropout, train mode gives it too.
#   Nothing is kept from one call to the next.
# - **Arguments** are never modified, and may be non-contiguous views.

# %% provided="imports"
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder import check


# %% provided="attend"
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention in FlashAttention's layout: time stands before the heads.

    q: (B, Tq, H, Dh); k, v: (B, Tk, H, Dh)
    keep: boolean, broadcasts to (B, H, Tq, Tk), True where a query may look;
        a query that may look at nothing gets zeros
    is_causal: hide the future; for Tq = Tk and without keep
    dropout_p: share of the weights that is dropped, in either mode
    returns: (B, Tq, H, Dh)
    """
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=keep, dropout_p=dropout_p, is_causal=is_causal
    )
    return out.transpose(1, 2)


# %% [markdown]
# ## 4.1a Layer normalisation
#
# **Goal:** give every token's vector mean 0 and variance 1, then let the
# model choose its own scale and offset.
#
# $$y = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}}
# \circ w + b$$
#
# **Contract**
#
# - A class `LayerNorm(d, eps=1e-5, bias=True)`, an `nn.Module`, with the
#   parameters `weight` (d,), which starts at 1, and `bias` (d,), which starts
#   at 0.
#   With `bias=False` there is no parameter `bias` (`None` is fine).
# - Its input is (..., d), with any number of leading axes, none included.
#   Each vector along the last axis is normalised by itself.
# - The variance divides by d, not by d − 1.
#   `eps` is added to it, inside the root.
# - Rows may be tiny (a spread of 1e-6), equal throughout (the result is then
#   the bias), or far from 0 compared with their spread: compute the variance
#   from the deviations, not as a difference of two large numbers.
# - Half-precision inputs are computed in `float32` and returned in their
#   dtype; values of ±40,000 are fine.
#
# **Example** for a new layer
#
# ```python
# LayerNorm(3)(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 60.0]]))
# # [[-1.2247,  0.0000, 1.2247],
# #  [-0.9258, -0.4629, 1.3887]]
# ```
#
# **Why it matters:** without it, what a block receives depends on how many
# blocks came before.
# The mistakes are quiet: dividing by d − 1 is off by 0.07% at d = 768, and
# a model trained with one definition and run with the other loses a little
# everywhere.
#
# <details>
# <summary>Hint 1: which axis, and which divisor?</summary>
#
# Two tokens of a batch must not influence each other.
# Which axis do the mean and the variance run over, then?
# And what does `torch.var` divide by if you do not tell it?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Widen half precision.
# Subtract the mean over the last axis, keeping the axis; take the mean of the
# squares of what is left; add eps; divide by the root.
# Then the gain, then the bias, then the dtype of the input.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()`
#
# </details>


# %% exercise="LayerNorm" level=1 minutes=15
class LayerNorm(nn.Module):
    """Normalisation of each vector along the last axis.

    d: length of the vectors
    eps: added to the variance
    bias: whether there is a bias
    parameters: weight (d,), ones; bias (d,), zeros
    source: Ba et al. 2016
    """

    def __init__(self, d: int, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        ### BEGIN SOLUTION
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., d); returns the same shape and dtype."""
        ### BEGIN SOLUTION
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        y = centred * torch.rsqrt(variance + self.eps) * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)
        ### END SOLUTION


# %% [markdown]
# ## 4.1b RMS normalisation
#
# **Goal:** the cheaper norm of Llama and most models after it: no mean, no
# bias.
#
# $$y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \circ w$$
#
# **Contract**
#
# - A class `RMSNorm(d, eps=1e-6)`, an `nn.Module`, with the one parameter
#   `weight` (d,), which starts at 1.
# - Its input is (..., d), with any number of leading axes.
#   Each vector along the last axis is divided by the root of the mean of its
#   squares; `eps` is added inside the root.
# - Half-precision inputs are computed in `float32` and returned in their
#   dtype; values of ±40,000 are fine.
#
# **Example** for a new layer
#
# ```python
# RMSNorm(2)(torch.tensor([[3.0, 4.0]]))      # [[0.8485, 1.1314]]
# # a layer norm would give                     [[-1, 1]]
# ```
#
# **Why it matters:** the mean turned out not to be needed.
# What is left is a projection onto a sphere of radius √d, and a gain.
#
# <details>
# <summary>Hint 1: what does it do to a row of ones?</summary>
#
# The mean of the squares is 1.
# A sum in its place would give something that depends on d.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Widen half precision before you square.
# Mean of the squares over the last axis, plus eps, root, divide, gain, and
# back to the input's dtype.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)`
#
# </details>


# %% exercise="RMSNorm" level=1 minutes=10
class RMSNorm(nn.Module):
    """Division of each vector along the last axis by its root mean square.

    d: length of the vectors
    eps: added to the mean square
    parameters: weight (d,), ones
    source: Zhang and Sennrich 2019
    """

    def __init__(self, d: int, eps: float = 1e-6):
        super().__init__()
        ### BEGIN SOLUTION
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., d); returns the same shape and dtype."""
        ### BEGIN SOLUTION
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)
        y = wide * torch.rsqrt(mean_square + self.eps) * self.weight
        return y.to(x.dtype)
        ### END SOLUTION


# %% [markdown]
# ## 4.2a GELU, exact and approximate
#
# **Goal:** the activation of GPT and BERT in both of its forms.
#
# $$\mathrm{GELU}(x) = x\,\Phi(x)$$
#
# $$\begin{aligned}
# \Phi(x) &= \tfrac12\left(1 + \mathrm{erf}\tfrac{x}{\sqrt 2}\right) \\
# &\approx \tfrac12\left(1 + \tanh\left[\sqrt{2/\pi}\,
# (x + 0.044715\,x^3)\right]\right)
# \end{aligned}$$
#
# $\Phi(x)$ is the share of a standard normal distribution below $x$: a smooth
# gate between 0 and 1.
#
# **Contract**
#
# - `x` is a floating tensor of any shape, finite; the result has its shape
#   and dtype.
# - `approximate="none"` is the exact form, `"tanh"` the approximate one; any
#   other value is a `ValueError`.
# - Values of ±10,000 neither overflow nor give a NaN, and neither do their
#   gradients.
# - Half-precision inputs are computed in `float32` and returned in their
#   dtype.
#
# **Example**
#
# ```python
# x = torch.tensor([-2.7, -1.0, 0.0, 1.0, 2.7])
# gelu(x)                       # -0.0094 -0.1587 0 0.8413 2.6906
# gelu(x, approximate="tanh")   # -0.0089 -0.1588 0 0.8412 2.6911
# ```
#
# **Why it matters:** GPT-2 was trained with the tanh form.
# The two differ by at most 5e-4, around ±2.7: too little to be seen in a
# loss, enough to make a copied model disagree with its source.
#
# <details>
# <summary>Hint 1: what has the error function to do with it?</summary>
#
# erf belongs to a normal distribution with variance ½ and runs from −1 to 1.
# What has to be done to its argument and to its result to get Φ?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Check `approximate`, widen half precision, compute Φ in the form asked for,
# multiply with x, go back to the input's dtype.
# Use `torch.tanh`: a tanh written with exponentials overflows.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `share = 0.5 * (1 + torch.erf(x / math.sqrt(2)))`
#
# </details>


# %% exercise="gelu" level=2 minutes=10
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x, weighted by the share of a standard normal that lies below it.

    x: (...), floating, finite
    approximate: "none" (exact) or "tanh"
    returns: x's shape and dtype
    raises ValueError: for another approximate
    source: Hendrycks and Gimpel 2016
    """
    ### BEGIN SOLUTION
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if approximate == "none":
        share = torch.erf(wide / math.sqrt(2))
    elif approximate == "tanh":
        cubic = wide + 0.044715 * wide**3
        share = torch.tanh(math.sqrt(2 / math.pi) * cubic)
    else:
        raise ValueError(
            f"approximate is {approximate!r}: use 'none' or 'tanh'"
        )
    return (0.5 * wide * (1 + share)).to(x.dtype)
    ### END SOLUTION


# %% [markdown]
# ## 4.2b SwiGLU, the MLP of Llama
#
# **Goal:** an MLP in which one projection of the input gates another.
#
# $$\begin{gathered}
# \mathrm{out} = W_{\mathrm{down}}\bigl(\mathrm{SiLU}(W_{\mathrm{gate}}\,x)
# \circ W_{\mathrm{up}}\,x\bigr), \\
# \mathrm{SiLU}(u) = u\,\sigma(u)
# \end{gathered}$$
#
# **Contract**
#
# - A class `SwiGLU(d_model, d_ff=None, multiple_of=64)`, an `nn.Module`, with
#   linear layers `gate_proj` and `up_proj` (d_model → d_ff) and `down_proj`
#   (d_ff → d_model), without biases.
# - Input and output are (..., d_model).
# - If `d_ff` is `None`, it is ⌊8 · d_model / 3⌋, rounded **up** to a multiple
#   of `multiple_of`; a multiple stays as it is.
#   A `d_ff` that is given is taken as it is.
# - Gates of several thousands give no NaN.
# - `F.silu` and `nn.Linear` are allowed.
#
# **Example:** 4096 wide, ⌊8 · 4096 / 3⌋ = 10922, so with `multiple_of=256` the
# hidden width is 11008, that of Llama 7B.
#
# ```python
# SwiGLU(768).up_proj.weight.shape    # (2048, 768)
# SwiGLU(512).up_proj.weight.shape    # (1408, 512)
# ```
#
# If the gate is 1 and the up projection 2, a hidden unit is
# SiLU(1) · 2 = 1.4621; with a gate of −1 it is −0.5379.
#
# **Why it matters:** with three matrices of 8/3 · d instead of two of 4 · d
# the parameters stay the same, and models come out slightly better.
#
# <details>
# <summary>Hint 1: which of the two is activated?</summary>
#
# A hidden unit is a product of a gate and a value.
# If SiLU acted on the product, could a closed gate still let something
# through?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Project x twice, activate the gate, multiply entry by entry, project down.
# To round up with integers, add multiple_of − 1 before you divide.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))`
#
# </details>


# %% exercise="SwiGLU" level=2 minutes=15
class SwiGLU(nn.Module):
    """A gated MLP.

    d_model: width of input and output
    d_ff: hidden width; None: 8/3 of d_model, rounded up to a multiple
    multiple_of: what the default width is a multiple of
    layers: gate_proj, up_proj (d_model to d_ff), down_proj (d_ff to d_model),
        without biases
    source: Shazeer 2020; Touvron et al. 2023
    """

    def __init__(
        self, d_model: int, d_ff: int | None = None, multiple_of: int = 64
    ):
        super().__init__()
        ### BEGIN SOLUTION
        if d_ff is None:
            multiples = math.ceil((8 * d_model // 3) / multiple_of)
            d_ff = multiples * multiple_of
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., d_model); returns the same shape and dtype."""
        ### BEGIN SOLUTION
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        ### END SOLUTION


# %% [markdown]
# ## 4.3 The transformer block
#
# **Goal:** two branches on a residual stream: attention, then an MLP, each
# with a norm.
#
# Pre-LN (`norm_first=True`), the layout of GPT-2 and nearly everything since:
#
# $$\begin{gathered}
# x \leftarrow x + \mathrm{Attn}(\mathrm{LN}_1(x)), \\
# x \leftarrow x + \mathrm{MLP}(\mathrm{LN}_2(x))
# \end{gathered}$$
#
# Post-LN (`norm_first=False`), the layout of 2017:
#
# $$\begin{gathered}
# x \leftarrow \mathrm{LN}_1(x + \mathrm{Attn}(x)), \\
# x \leftarrow \mathrm{LN}_2(x + \mathrm{MLP}(x))
# \end{gathered}$$
#
# **Contract**
#
# - Submodules: `ln1`, `ln2` (layer norms with eps 1e-5), `attn` with
#   `qkv_proj` (D → 3D; its rows are the queries', then the keys', then the
#   values') and `out_proj` (D → D), `mlp` with `fc1` (D → mlp_expansion · D)
#   and `fc2` (back to D).
#   With `bias=False` all biases are left out, those of the norms too.
# - The attention is causal, has `n_heads` heads, each a contiguous slice of
#   Dh channels, and the scale 1/√Dh.
# - `gelu` is `"none"` (exact) or `"tanh"`, the form of the MLP's activation.
# - `dropout` acts, in training only, in three places: on the attention
#   weights, on the attention's output (after `out_proj`) and on the MLP's
#   output (after `fc2`); nowhere else.
#   Each entry is dropped by itself, anew in each call.
# - More than `max_context_length` tokens are a `ValueError`.
# - `nn.Linear`, `nn.LayerNorm`, `nn.Dropout`, `F.gelu` and `attend` from
#   above are allowed.
#
# **Example**
#
# ```python
# block = TransformerBlock(768, 12)
# sum(p.numel() for p in block.parameters())   # 7,087,872
# block(torch.randn(2, 5, 768)).shape          # (2, 5, 768)
# ```
#
# Of these parameters 4,722,432 are the MLP's: two thirds (0.666).
# If you set `out_proj` and `fc2` to zero, weights and biases, a pre-LN block
# hands its input through unchanged.
#
# **Why it matters:** the stream is never overwritten, only added to.
# That is why doing nothing is easy for a block (two zero matrices), and why
# gradients reach the first layer of a deep stack.
#
# <details>
# <summary>Hint 1: what is added to what?</summary>
#
# In the pre-LN block, does the norm's result ever enter a sum?
# What does the second branch read: the block's input, or the first sum?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Write two methods, one for each branch, with its dropout at the end.
# The attention projects once, splits the last axis into (3, H, Dh), calls
# `attend`, merges the last two axes and projects.
# `forward` then has two lines for each layout.
# Build new tensors with `x = x + …`: `x += …` writes into the caller's.
# For names like `attn.qkv_proj`, an `nn.ModuleDict` will do.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `q, k, v = qkv.unflatten(-1, (3, n_heads, -1)).unbind(2)`, and
# `dropout_p=self.dropout.p if self.training else 0.0`.
#
# </details>


# %% exercise="TransformerBlock" level=3 minutes=40
class TransformerBlock(nn.Module):
    """Causal attention and an MLP on a residual stream.

    d_model, n_heads: width, number of heads
    max_context_length: the most tokens that forward accepts
    mlp_expansion: the MLP's hidden width in units of d_model
    dropout: probability of dropping, in training
    norm_first: pre-LN (True) or post-LN (False)
    bias: whether linear layers and norms have biases
    gelu: "none" or "tanh"
    submodules: ln1; attn with qkv_proj (rows q, k, v) and out_proj; ln2; mlp
        with fc1 and fc2
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        max_context_length: int = 1024,
        mlp_expansion: int = 4,
        dropout: float = 0.0,
        norm_first: bool = True,
        bias: bool = True,
        gelu: str = "none",
    ):
        super().__init__()
        ### BEGIN SOLUTION
        self.n_heads, self.max_context_length = n_heads, max_context_length
        self.norm_first, self.gelu = norm_first, gelu
        width = mlp_expansion * d_model
        self.ln1 = nn.LayerNorm(d_model, bias=bias)
        self.attn = nn.ModuleDict(
            {
                "qkv_proj": nn.Linear(d_model, 3 * d_model, bias=bias),
                "out_proj": nn.Linear(d_model, d_model, bias=bias),
            }
        )
        self.ln2 = nn.LayerNorm(d_model, bias=bias)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(d_model, width, bias=bias),
                "fc2": nn.Linear(width, d_model, bias=bias),
            }
        )
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, d_model); returns the same shape and dtype.

        raises ValueError: if T exceeds max_context_length
        """
        ### BEGIN SOLUTION
        if x.shape[1] > self.max_context_length:
            raise ValueError(
                f"{x.shape[1]} tokens exceed the context of "
                f"{self.max_context_length}"
            )
        if self.norm_first:
            x = x + self.attention(self.ln1(x))
            return x + self.feed_forward(self.ln2(x))
        x = self.ln1(x + self.attention(x))
        return self.ln2(x + self.feed_forward(x))

    def attention(self, x: Tensor) -> Tensor:
        qkv = self.attn["qkv_proj"](x)
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        dropout_p = self.dropout.p if self.training else 0.0
        mixed = attend(q, k, v, is_causal=True, dropout_p=dropout_p)
        return self.dropout(self.attn["out_proj"](mixed.flatten(2)))

    def feed_forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.mlp["fc1"](x), approximate=self.gelu)
        return self.dropout(self.mlp["fc2"](hidden))
        ### END SOLUTION


# %% [markdown]
# ## 4.4 Find out where dropout acts
#
# **Goal:** decide by experiment, not by reading code, which dropout modules
# of a block have an effect.
#
# A configuration tells you where dropout was meant to be.
# Whether it acts there is another question: a module may be built and never
# called, or sit in a branch whose gain is 0.
#
# **Contract**
#
# - `block` is an `nn.Module` that maps (B, T, `block.d_model`) to the same
#   shape, for any B and T, with `float32` parameters on the CPU.
#   Its dropouts are instances of `nn.Dropout` or of a class derived from it,
#   at any depth, each with a p of its own; some of its parts may be in eval
#   mode while others are in train mode.
# - Return the qualified names (as `block.named_modules()` gives them, for
#   instance `"branches.0.net.2"`) of those dropouts that **change the
#   output** when every part is in train mode, their p is 1 and all others' p
#   is 0, in any order.
#   What p is at present does not matter: one with p = 0 is a site as well.
#   With no site the list is empty.
# - Leave everything as you found it: each module's own mode, each p, torch's
#   global random state, parameters, their gradients and whether they are
#   trained.
#
# **Example**
#
# ```python
# block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
# block.d_model = 4
# dropout_sites(block)          # ["1"]
# ```
#
# **Why it matters:** dropout that never acts, or acts in eval mode, is
# easily written, and no loss curve shows it.
#
# <details>
# <summary>Hint 1: what else could change the output?</summary>
#
# You compare two runs.
# Other dropouts are random in both: what must their p be?
# And is your input such that dropping something would be seen?
# (A norm turns a row of equal numbers into zeros.)
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Remember every module's mode, every p and the random state.
# Train mode, all p = 0: run once on a random input.
# Then, for one dropout after the other, p = 1, run, compare, p = 0.
# Finally put everything back, module by module; `try … finally` does so even
# if a run fails.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `with torch.random.fork_rng(devices=[]), torch.no_grad():` guards the
# random state; `module.training = mode` sets one module's mode without
# touching its children.
#
# </details>


# %% exercise="dropout_sites" level=2 minutes=20
def dropout_sites(block: nn.Module) -> list[str]:
    """Names of the dropout modules that change a block's output.

    block: maps (B, T, block.d_model) to the same shape; left as it was found
    returns: qualified names of nn.Dropout modules, in any order
    """
    ### BEGIN SOLUTION
    dropouts = {
        name: module
        for name, module in block.named_modules()
        if isinstance(module, nn.Dropout)
    }
    modes = [(module, module.training) for module in block.modules()]
    found_p = [(module, module.p) for module in dropouts.values()]
    sites = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            block.train()
            for module in dropouts.values():
                module.p = 0.0
            x = torch.randn(2, 5, block.d_model)
            idle = block(x)
            for name, module in dropouts.items():
                module.p = 1.0
                if not torch.equal(block(x), idle):
                    sites.append(name)
                module.p = 0.0
        finally:
            for module, mode in modes:
                module.training = mode
            for module, p in found_p:
                module.p = p
    return sites
    ### END SOLUTION


# %% [markdown]
# ## 4.5a An encoder layer
#
# **Goal:** the block without a causal mask, for batches with padding.
#
# **Contract**
#
# - `EncoderLayer(d_model, n_heads)`: the pre-LN block of task 4.3 with full
#   attention in place of causal, exact GELU, an MLP of width 4 · D, all
#   biases, eps 1e-5, no dropout, and no limit on T.
#   Submodules: `ln1`, `attn` with `qkv_proj` (rows q, k, v) and `out_proj`,
#   `ln2`, `mlp` with `fc1` and `fc2`.
# - `forward(x, keep=None)`: `x` is (B, T, D); `keep` (B, T) is boolean, `True`
#   at real tokens, `False` at padding; `None` means that all are real.
# - A padded token is hidden **as a key**, from every query of its example.
#   As a query it is computed like any other.
# - In an example in which nothing is kept, the attention gives zeros before
#   `out_proj`, so that it adds the bias of `out_proj`; gradients are finite.
# - `nn.Linear`, `nn.LayerNorm`, `F.gelu` and `attend` are allowed.
#
# **Example**
#
# ```python
# layer = EncoderLayer(8, 2)
# x = torch.randn(1, 3, 8)
# keep = torch.tensor([[True, True, False]])
# y = x.clone()
# y[0, 2] = 100.0                      # other padding
# torch.equal(layer(x, keep)[:, :2], layer(y, keep)[:, :2])   # True
# ```
#
# **Why it matters:** this is BERT's layer, but for the place of the norms.
# Whatever stands in the padding must not reach a real token, or an example's
# result depends on the length of its neighbours in the batch.
#
# <details>
# <summary>Hint 1: which axis of the scores is the padding's?</summary>
#
# The scores are (B, H, Tq, Tk).
# `keep` is (B, T): where do its two axes belong?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Give `keep` two axes of size 1, for heads and queries, and pass it to
# `attend`, which also takes care of the examples in which nothing is kept.
# The rest is a pre-LN block.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `keep[:, None, None, :]`
#
# </details>


# %% exercise="EncoderLayer" level=4 minutes=25
class EncoderLayer(nn.Module):
    """Full attention and an MLP on a residual stream, pre-LN.

    d_model, n_heads: width, number of heads
    submodules: ln1; attn with qkv_proj (rows q, k, v) and out_proj; ln2; mlp
        with fc1 (to 4 · d_model) and fc2
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.n_heads = n_heads
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = nn.ModuleDict(
            {
                "qkv_proj": nn.Linear(d_model, 3 * d_model),
                "out_proj": nn.Linear(d_model, d_model),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(d_model, 4 * d_model),
                "fc2": nn.Linear(4 * d_model, d_model),
            }
        )
        ### END SOLUTION

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """x: (B, T, d_model); keep: (B, T), boolean, True at real tokens."""
        ### BEGIN SOLUTION
        if keep is not None:
            keep = keep[:, None, None, :]  # (B, heads, queries, keys)
        qkv = self.attn["qkv_proj"](self.ln1(x))
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        mixed = attend(q, k, v, keep=keep).flatten(2)
        x = x + self.attn["out_proj"](mixed)
        hidden = F.gelu(self.mlp["fc1"](self.ln2(x)))
        return x + self.mlp["fc2"](hidden)
        ### END SOLUTION


# %% [markdown]
# ## 4.5b A decoder layer
#
# **Goal:** a layer that reads two things: its own past, and another
# sequence.
#
# $$\begin{gathered}
# x \leftarrow x + \mathrm{Attn}(\mathrm{LN}_1(x)), \\
# x \leftarrow x + \mathrm{Cross}(\mathrm{LN}_2(x), m), \\
# x \leftarrow x + \mathrm{MLP}(\mathrm{LN}_3(x))
# \end{gathered}$$
#
# **Contract**
#
# - `DecoderLayer(d_model, n_heads)`: pre-LN, exact GELU, an MLP of width
#   4 · D, all biases, eps 1e-5, no dropout, no limit on T.
#   Submodules: `ln1`, `attn` with `qkv_proj` (rows q, k, v) and `out_proj`,
#   `ln2`, `cross_attn` with `q_proj`, `k_proj`, `v_proj` and `out_proj` (all
#   D → D), `ln3`, `mlp` with `fc1` and `fc2`.
# - `forward(x, memory, memory_keep=None)`: `x` (B, T, D) and `memory`
#   (B, Tm, D), where Tm may differ from T; `memory_keep` (B, Tm) is boolean,
#   `True` at real positions; `None` means that all are real.
# - The self-attention is causal and knows no padding.
#   In the cross-attention queries come from the stream, keys and values from
#   the memory, which is **taken as it comes** (no norm) and seen whole by
#   every token, but for its padding.
# - Where nothing of a memory is kept, the cross-attention gives zeros before
#   its `out_proj`; gradients are finite.
# - `nn.Linear`, `nn.LayerNorm`, `F.gelu` and `attend` are allowed.
#
# **Example**
#
# ```python
# layer = DecoderLayer(512, 8)
# sum(p.numel() for p in layer.parameters())            # 4,204,032
# layer(torch.randn(1, 3, 512), torch.randn(1, 7, 512)).shape  # (1, 3, 512)
# ```
#
# **Why it matters:** translation, speech recognition and image captioning
# work like this: the decoder writes, token by token, while looking at what an
# encoder has read.
#
# <details>
# <summary>Hint 1: who asks, and who answers?</summary>
#
# Each token of the stream looks something up in the memory.
# From which of the two come the queries, and from which the keys and values?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Three sublayers, each added to the stream.
# For the second, project the normed stream with q_proj and the memory with
# k_proj and v_proj, split each last axis into (H, Dh), and call `attend` with
# the memory's mask and no causal one.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `cross["k_proj"](memory).unflatten(-1, (n_heads, -1))`
#
# </details>


# %% exercise="DecoderLayer" level=4 minutes=30
class DecoderLayer(nn.Module):
    """Causal self-attention, attention to a memory, an MLP; pre-LN.

    d_model, n_heads: width, number of heads
    submodules: ln1; attn with qkv_proj (rows q, k, v) and out_proj; ln2;
        cross_attn with q_proj, k_proj, v_proj and out_proj; ln3; mlp with fc1
        (to 4 · d_model) and fc2
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.n_heads = n_heads
        self.ln1 = nn.LayerNorm(d_model)
        self.ln2 = nn.LayerNorm(d_model)
        self.ln3 = nn.LayerNorm(d_model)
        self.attn = nn.ModuleDict(
            {
                "qkv_proj": nn.Linear(d_model, 3 * d_model),
                "out_proj": nn.Linear(d_model, d_model),
            }
        )
        self.cross_attn = nn.ModuleDict(
            {
                name: nn.Linear(d_model, d_model)
                for name in ("q_proj", "k_proj", "v_proj", "out_proj")
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(d_model, 4 * d_model),
                "fc2": nn.Linear(4 * d_model, d_model),
            }
        )
        ### END SOLUTION

    def forward(
        self, x: Tensor, memory: Tensor, memory_keep: Tensor | None = None
    ) -> Tensor:
        """The stream after the layer.

        x: (B, T, d_model); memory: (B, Tm, d_model)
        memory_keep: (B, Tm), boolean, True at real positions
        returns: (B, T, d_model)
        """
        ### BEGIN SOLUTION
        qkv = self.attn["qkv_proj"](self.ln1(x))
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        mixed = attend(q, k, v, is_causal=True).flatten(2)
        x = x + self.attn["out_proj"](mixed)

        cross, keep = self.cross_attn, None
        if memory_keep is not None:
            keep = memory_keep[:, None, None, :]
        q, k, v = (
            projected.unflatten(-1, (self.n_heads, -1))
            for projected in (
                cross["q_proj"](self.ln2(x)),
                cross["k_proj"](memory),
                cross["v_proj"](memory),
            )
        )
        mixed = attend(q, k, v, keep=keep).flatten(2)
        x = x + cross["out_proj"](mixed)

        hidden = F.gelu(self.mlp["fc1"](self.ln3(x)))
        return x + self.mlp["fc2"](hidden)
        ### END SOLUTION


# %% [markdown]
# ## 4.6 What depth does to the stream
#
# **Goal:** measure how the residual stream and the gradients on it change
# from block to block, in a pre-LN and in a post-LN stack at initialisation.
#
# **The set-up**, all of it fixed but L, the layout and the seed:
#
# - L blocks as in task 4.3 (causal, exact GELU, no dropout, norms with eps
#   1e-5 whose gain is 1 and bias 0), width 64, 4 heads, MLP 4 × 64, pre-LN if
#   `norm_first` and post-LN if not.
# - A batch of B = 4 sequences of T = 32 tokens.
#   The input (4, 32, 64), which stands for the embedding's output, is drawn
#   from N(0, 1).
# - After the last block, **in both layouts**: a final norm (no gain, no
#   bias), then a head, a linear layer from 64 to V = 64 logits.
# - Every weight matrix, the head's too, is drawn from N(0, 1/fan_in), where
#   fan_in is the number of inputs of its layer (64, but 256 for the MLP's
#   second) and 1/fan_in is the variance; all biases are 0.
# - Targets are drawn uniformly from the V classes, one for each of the
#   4 · 32 tokens; the loss is the **mean** cross-entropy over them.
#
# **Contract**
#
# - Return `{"rms": [...], "grad": [...]}` with L + 1 numbers each; a tensor of
#   them will do as well as a list.
#   Entry 0 belongs to the input, entry l to the stream after l blocks.
# - `rms` is the root mean square over all 4 · 32 · 64 numbers of the stream.
#   `grad` is the norm (root of the sum of squares) of the loss's gradient
#   with respect to that same tensor.
# - All randomness follows from `seed` ≥ 0: the same seed gives the same
#   numbers, another seed others.
# - Your numbers are compared with those of many seeds, averaged over three
#   seeds, and over 42 for one block, where GELU and ReLU can be told apart.
#   Any dtype from `float32` up will do.
#   L is at least 1; with L = 8 your function should take well under a second.
#
# **Example**, rounded, L = 4; yours will differ by some percent.
#
# | | after 0 | 1 | 2 | 3 | 4 blocks |
# |---|---|---|---|---|---|
# | pre-LN, rms | 1.00 | 1.28 | 1.54 | 1.78 | 2.01 |
# | pre-LN, grad | 0.105 | 0.072 | 0.058 | 0.050 | 0.045 |
# | post-LN, rms | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |
# | post-LN, grad | 0.107 | 0.090 | 0.082 | 0.081 | 0.087 |
#
# **Why it matters:** it is often said that post-LN activations explode and
# pre-LN ones are bounded.
# The reverse is true: a post-LN block ends with a norm, while a pre-LN stream
# grows about like the root of the depth, which is why pre-LN models need a
# final norm.
#
# **A demonstration that fails.**
# A widely copied demo takes $\lVert \mathrm{LN}(x)\rVert^2$ as its loss and
# finds hundreds of times larger gradients in one layout.
# But a normed vector of length d has the squared norm d, whatever x is: this
# loss is a constant, its gradient is 0 but for eps and rounding, and a ratio
# of two rounding errors says nothing.
# Cross-entropy on random targets has a gradient worth measuring.
#
# <details>
# <summary>Hint 1: how do you get a gradient amid a network?</summary>
#
# `torch.autograd.grad(loss, tensors)` takes any tensors that the loss was
# computed from, not only leaves.
# What has to be kept while the blocks run?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Make a `torch.Generator` from the seed.
# Draw the input, with `requires_grad`; keep it and each block's output in a
# list; draw each block's four matrices as you go.
# Norm, head, cross-entropy; then one call of `torch.autograd.grad` for the
# whole list.
# Functions are enough, no modules are needed: `F.layer_norm(x, (64,))`.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.randn(rows, columns, generator=rng) / math.sqrt(columns)` for a
# weight (out, in).
#
# </details>


# %% exercise="depth_profile" level=4 minutes=40
def depth_profile(L: int, norm_first: bool, seed: int) -> dict:
    """Size of the residual stream, and of its gradient, block by block.

    L: number of blocks
    norm_first: pre-LN (True) or post-LN (False)
    seed: decides all that is random
    returns: {"rms": root mean squares of the stream, "grad": norms of the
        loss's gradient there}, L + 1 floats each; entry 0 is the input's
    """
    ### BEGIN SOLUTION
    B, T, D, H, V = 4, 32, 64, 4, 64
    rng = torch.Generator().manual_seed(seed)

    def linear(x, width):
        fan_in = x.shape[-1]
        weight = torch.randn(width, fan_in, generator=rng)
        return F.linear(x, weight / math.sqrt(fan_in))

    def norm(x):
        return F.layer_norm(x, (D,))

    def attention(x):
        q, k, v = linear(x, 3 * D).unflatten(-1, (3, H, -1)).unbind(2)
        return linear(attend(q, k, v, is_causal=True).flatten(2), D)

    def mlp(x):
        return linear(F.gelu(linear(x, 4 * D)), D)

    stream = [torch.randn(B, T, D, generator=rng).requires_grad_()]
    for _ in range(L):
        x = stream[-1]
        for branch in (attention, mlp):
            if norm_first:
                x = x + branch(norm(x))
            else:
                x = norm(x + branch(x))
        stream.append(x)
    logits = linear(norm(stream[-1]), V)
    targets = torch.randint(V, (B * T,), generator=rng)
    loss = F.cross_entropy(logits.flatten(0, 1), targets)
    grads = torch.autograd.grad(loss, stream)
    return {
        "rms": [x.square().mean().sqrt().item() for x in stream],
        "grad": [grad.norm().item() for grad in grads],
    }
    ### END SOLUTION


# %% [markdown]
# ## 4.7a From an image to a sequence of patches
#
# **Goal:** cut an image into squares, so that a transformer can read it.
#
# **Contract**
#
# - `img` is a floating tensor (B, C, H, W), where H and W here are height and
#   width and may differ; `patch` is the side p of a patch.
# - Return (B, N, C·p·p) in the dtype of `img`, N = (H/p) · (W/p).
#   Patches run row by row, left to right; inside a patch the numbers run over
#   channels, then rows, then columns: the order (C, p, p).
# - If p does not divide H or W, raise a `ValueError`.
#
# **Example:** one channel, 2 × 4 pixels, two patches.
#
# ```python
# patchify(torch.arange(8.0).reshape(1, 1, 2, 4), patch=2)
# # [[[0, 1, 4, 5],
# #   [2, 3, 6, 7]]]
# ```
#
# **Why it matters:** "an image is worth 16 × 16 words": 224 × 224 pixels
# become 196 tokens of 768 numbers.
# A mere reshape has the right shape and the wrong pixels.
#
# <details>
# <summary>Hint 1: where are a patch's pixels in memory?</summary>
#
# The pixels 0, 1, 4, 5 of the example are not neighbours in memory.
# So which operation must come between two reshapes?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Split the height into (rows of patches, rows in a patch) and the width
# likewise.
# Reorder the axes so that the two patch axes come first, then the channels,
# then the two inner axes; merge the first two and the last three.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `img.unflatten(3, (-1, p)).unflatten(2, (-1, p))` is (B, C, H/p, p, W/p, p).
#
# </details>


# %% exercise="patchify" level=4 minutes=15
def patchify(img: Tensor, patch: int = 16) -> Tensor:
    """An image as a sequence of flattened square patches.

    img: (B, C, height, width), floating
    patch: the side p of a patch, in pixels
    returns: (B, N, C·p·p); patches row by row, each in the order (C, p, p)
    raises ValueError: if p does not divide height and width
    """
    ### BEGIN SOLUTION
    height, width = img.shape[2:]
    if height % patch or width % patch:
        raise ValueError(
            f"patches of {patch} do not fill an image of {height} × {width}"
        )
    # (B, C, rows, p, columns, p) → (B, rows, columns, C, p, p)
    cut = img.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    ### END SOLUTION


# %% [markdown]
# ## 4.7b A vision transformer
#
# **Goal:** an image classifier that is a stack of blocks and little else.
#
# **Contract**
#
# - `ViT(image_size=224, patch=16, d_model=768, n_heads=12, n_layers=12,
#   n_classes=1000)`; `forward(images)` maps (B, 3, S, S), S = `image_size`, to
#   logits (B, n_classes).
#   `patch` divides `image_size`.
# - Patches as in task 4.7a (row by row, inside in the order (C, p, p)), then
#   `patch_embed`, a linear layer from 3·p·p to D.
# - `cls_token` (1, 1, D) is put **before** the patches; then `pos_embed`
#   (1, N + 1, D) is added.
#   Both are trained parameters of the module itself, with any initial values.
# - `blocks`: n_layers pre-LN blocks as in task 4.3 with all biases, exact
#   GELU, an MLP of width 4 · D, no dropout, and **no causal mask**; so the
#   names are `blocks.0.ln1.weight`, `blocks.0.attn.qkv_proj.weight`, …
# - `ln_f`, the final norm, then `head`, a linear layer from D to n_classes,
#   read at the class token.
# - All norms have eps **1e-6**.
# - `nn.Linear`, `nn.LayerNorm`, `F.gelu`, `F.unfold` and `attend` are allowed.
#
# **Example**
#
# ```python
# with torch.device("meta"):          # shapes only, no memory
#     model = ViT()
# sum(p.numel() for p in model.parameters())     # 86,567,656
# model.pos_embed.shape                          # (1, 197, 768)
# ```
#
# **Why it matters:** nothing in the blocks knows of images.
# Whoever gives the class token a causal mask gets a classifier that does not
# look at the image: it stands first and would see only itself.
#
# <details>
# <summary>Hint 1: who sees whom?</summary>
#
# The class token has to collect from all patches.
# Which mask does it need, then?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Write a small module for one block and make n_layers of them, each anew, in
# an `nn.ModuleList`.
# In forward: patches, linear, put the class token (expanded to the batch)
# before them, add positions, run the blocks one after the other, norm, pick
# token 0, head.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)`
#
# </details>


# %% exercise="ViT" level=4 minutes=40
class ViT(nn.Module):
    """A classifier of images: patches, a class token, pre-LN blocks.

    image_size, patch: sides of the square image and of a patch, in pixels
    d_model, n_heads, n_layers, n_classes: sizes
    submodules: patch_embed; blocks, each with ln1, attn (qkv_proj, out_proj),
        ln2, mlp (fc1, fc2); ln_f; head
    parameters: cls_token (1, 1, d_model); pos_embed (1, N + 1, d_model)
    source: Dosovitskiy et al. 2021
    """

    def __init__(
        self,
        image_size: int = 224,
        patch: int = 16,
        d_model: int = 768,
        n_heads: int = 12,
        n_layers: int = 12,
        n_classes: int = 1000,
    ):
        super().__init__()
        ### BEGIN SOLUTION
        self.patch, self.n_heads = patch, n_heads
        n_patches = (image_size // patch) ** 2
        self.patch_embed = nn.Linear(3 * patch**2, d_model)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.pos_embed = nn.Parameter(
            0.02 * torch.randn(1, n_patches + 1, d_model)
        )
        self.blocks = nn.ModuleList(
            self.block(d_model) for _ in range(n_layers)
        )
        self.ln_f = nn.LayerNorm(d_model, eps=1e-6)
        self.head = nn.Linear(d_model, n_classes)

    @staticmethod
    def block(d_model: int) -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "ln1": nn.LayerNorm(d_model, eps=1e-6),
                "attn": nn.ModuleDict(
                    {
                        "qkv_proj": nn.Linear(d_model, 3 * d_model),
                        "out_proj": nn.Linear(d_model, d_model),
                    }
                ),
                "ln2": nn.LayerNorm(d_model, eps=1e-6),
                "mlp": nn.ModuleDict(
                    {
                        "fc1": nn.Linear(d_model, 4 * d_model),
                        "fc2": nn.Linear(4 * d_model, d_model),
                    }
                ),
            }
        )
        ### END SOLUTION

    def forward(self, images: Tensor) -> Tensor:
        """images: (B, 3, image_size, image_size); returns (B, n_classes)."""
        ### BEGIN SOLUTION
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        x = self.patch_embed(patches)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            attn, mlp = block["attn"], block["mlp"]
            qkv = attn["qkv_proj"](block["ln1"](x))
            q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).unbind(2)
            x = x + attn["out_proj"](attend(q, k, v).flatten(2))
            x = x + mlp["fc2"](F.gelu(mlp["fc1"](block["ln2"](x))))
        return self.head(self.ln_f(x[:, 0]))
        ### END SOLUTION


# %% [markdown]
# ## 4.8 The block, backwards
#
# **Goal:** all gradients of a pre-LN block, by hand: three ways through it,
# two norms, one attention, one MLP.
#
# The forward pass is that of task 4.3 (pre-LN, causal, exact GELU, eps 1e-5,
# all biases, no dropout).
# You are given the gradient of some loss with respect to the block's output.
#
# **Contract**
#
# - All arrays are numpy arrays in `float64`.
#   `params` has the block's parameters by name: `ln1.weight`, `ln1.bias`,
#   `attn.qkv_proj.weight` (3D, D; rows q, k, v), `attn.qkv_proj.bias`,
#   `attn.out_proj.weight`, `attn.out_proj.bias`, `ln2.weight`, `ln2.bias`,
#   `mlp.fc1.weight` (W, D), `mlp.fc1.bias`, `mlp.fc2.weight` (D, W),
#   `mlp.fc2.bias`; the MLP's width W is any.
#   `x` and `dout` are (B, T, D); T may be 1.
# - Return a dict of arrays in `float64`: for each name in `params` the loss's
#   gradient in that parameter's shape, summed over batch and time, and under
#   `"x"` the gradient with respect to the input.
# - numpy only, but for the error function, which numpy lacks:
#   `torch.erf(torch.from_numpy(u)).numpy()` is allowed, and so is
#   `scipy.special.erf` where scipy is installed.
#   No automatic differentiation and no finite differences.
# - Scores may be in the thousands: subtract each row's maximum.
# - Each group of gradients earns its own points, so a part is worth handing
#   in: for what you do not have yet, put zeros of the right shape into the
#   dict, `np.zeros_like(params[name])`.
#
# **Example:** if the weights of `attn.out_proj` and `mlp.fc2` are zero, both
# branches are constants, and what is left is the stream.
#
# ```python
# grads = block_backward(params, x, dout, n_heads)
# grads["x"]              # equals dout
# grads["mlp.fc2.bias"]   # equals dout.sum((0, 1))
# ```
#
# To test yourself with real weights, outside of your function, let autograd
# differentiate the same forward pass written in torch.
#
# **Why it matters:** one pass like this through every block is what training
# is.
# Where the three ways meet, gradients add: along the stream `dout` arrives at
# the input untouched, whatever the branches do.
#
# <details>
# <summary>Hint 1: which tensors does the forward pass have to keep?</summary>
#
# Go through the formula once and mark what each backward step needs: the
# normalised rows and their standard deviations, what went into each linear
# layer, q, k, v and the weights P, the hidden units before GELU.
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# A linear layer y = x Wᵀ + b: dW sums dyᵀ x over all tokens, db sums dy, and
# dx = dy W.
# A norm, with normalised row n and standard deviation s: multiply what
# arrives with the gain, subtract its mean and its part along n, divide by s.
# GELU: multiply with Φ(u) + u φ(u), where φ is the normal density.
# Attention: as in task 1.8, with the scale on queries and keys.
# At each sum the gradient goes both ways, unchanged; where two ways come
# back together, add.
# Write one helper each for a norm's and a linear layer's backward step.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `dx = (dn - dn.mean(-1, keepdims=True) - n * (dn * n).mean(-1,
# keepdims=True)) / s`, where `dn` is what arrives times the gain.
#
# </details>


# %% exercise="block_backward" level=5 minutes=90
def block_backward(
    params: dict, x: np.ndarray, dout: np.ndarray, n_heads: int
) -> dict:
    """Gradients of a pre-LN transformer block.

    params: {state_dict name: array}, see the task
    x: (B, T, D), the block's input
    dout: (B, T, D), the loss's gradient with respect to the output
    returns: {name: the loss's gradient}, in the shapes of params, and "x"
    """
    ### BEGIN SOLUTION
    B, T, D = x.shape
    heads = (B, T, n_heads, D // n_heads)
    grads = {}

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        s = np.sqrt(variance + 1e-5)
        n = centred / s
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return n * weight + bias, (name, n, s)

    def norm_back(kept, dy):
        name, n, s = kept
        grads[f"{name}.weight"] = (dy * n).sum((0, 1))
        grads[f"{name}.bias"] = dy.sum((0, 1))
        dn = dy * params[f"{name}.weight"]
        along = (dn * n).mean(-1, keepdims=True)
        return (dn - dn.mean(-1, keepdims=True) - n * along) / s

    def linear(name, x):
        return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def linear_back(name, x, dy):
        grads[f"{name}.weight"] = np.einsum("bto,bti->oi", dy, x)
        grads[f"{name}.bias"] = dy.sum((0, 1))
        return dy @ params[f"{name}.weight"]

    # Forward. Heads stand before time: (B, H, T, Dh).
    a, norm1 = norm("ln1", x)
    q, k, v = (
        part.reshape(heads).swapaxes(1, 2)
        for part in np.split(linear("attn.qkv_proj", a), 3, axis=-1)
    )
    scale = 1 / math.sqrt(D // n_heads)
    future = np.triu(np.ones((T, T), dtype=bool), 1)
    scores = np.where(future, -np.inf, scale * q @ k.swapaxes(2, 3))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mixed = (p @ v).swapaxes(1, 2).reshape(B, T, D)
    h = x + linear("attn.out_proj", mixed)
    b, norm2 = norm("ln2", h)
    u = linear("mlp.fc1", b)
    share = (1 + torch.erf(torch.from_numpy(u / math.sqrt(2))).numpy()) / 2

    # Backward, in the opposite order.
    density = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    du = linear_back("mlp.fc2", u * share, dout) * (share + u * density)
    dh = dout + norm_back(norm2, linear_back("mlp.fc1", b, du))
    dmixed = linear_back("attn.out_proj", mixed, dh)
    dmixed = dmixed.reshape(heads).swapaxes(1, 2)
    dp = dmixed @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    dqkv = np.concatenate(
        [
            part.swapaxes(1, 2).reshape(B, T, D)
            for part in (
                scale * ds @ k,
                scale * ds.swapaxes(2, 3) @ q,
                p.swapaxes(2, 3) @ dmixed,
            )
        ],
        axis=-1,
    )
    da = linear_back("attn.qkv_proj", a, dqkv)
    grads["x"] = dh + norm_back(norm1, da)
    return grads
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
# You have a block, and you know what a stack of them does to the stream.
# Chapter 5 puts an embedding before the stack and a head behind it, and
# trains the result: a GPT.
