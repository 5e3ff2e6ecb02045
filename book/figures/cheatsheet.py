"""The cheat sheet's tables: every number is computed when they are drawn.

The lines of code in `steps` are run on tensors without data (torch's meta
device), and what the table shows as their shapes is what they gave. A row
leads to its exercise; rows of a lesson that an edition leaves out are not
shown.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from IPython.display import Markdown
from torch import nn

from figures.tables import exercise_link, is_exercise

# GPT-2 small, and a batch.
B, T, D, H, L, V = 8, 1024, 768, 12, 12, 50257
Dh = D // H
LETTERS = {
    B: "B",
    T: "T",
    D: "D",
    3 * D: "3 * D",
    4 * D: "4 * D",
    H: "H",
    Dh: "Dh",
    V: "V",
}

# (what happens, the line that does it, the exercise)
STEPS = [
    ("Token ids, int64", "ids", "embed"),
    ("Token embedding matrix", "tok_embed.weight", "tie_weights"),
    (
        "Look up tokens; rows of the position table",
        "tok, pos = tok_embed(ids), pos_embed.weight[:T]",
        "embed",
    ),
    ("Add positions: the input", "x = tok + pos.unsqueeze(0)", "embed"),
    ("LayerNorm 1", "h = ln1(x)", "LayerNorm"),
    (
        "Q, K, V of all heads in one matmul",
        "qkv = qkv_proj(h)",
        "MultiHeadSelfAttention",
    ),
    (
        "Cut into three views",
        "q, k, v = qkv.chunk(3, dim=-1)",
        "MultiHeadSelfAttention",
    ),
    (
        "Split into heads (k and v alike)",
        "q = q.unflatten(-1, (H, Dh)).transpose(1, 2)",
        "split_heads",
    ),
    (
        "Scores of each query with each key",
        "scores = q @ k.transpose(-2, -1)",
        "scaled_dot_product_attention",
    ),
    ("Scale", "scores = scores / math.sqrt(Dh)", "score_std"),
    (
        "Causal mask: its top left (T, T)",
        "mask_slice = causal_mask[:T, :T]",
        "causal_mask",
    ),
    (
        "Hide the future",
        'scores = scores.masked_fill(mask_slice == 0, float("-inf"))',
        "scaled_dot_product_attention",
    ),
    (
        "Softmax over keys: rows sum to 1",
        "weights = F.softmax(scores, dim=-1)",
        "softmax",
    ),
    (
        "Weighted sum of values",
        "context = weights @ v",
        "scaled_dot_product_attention",
    ),
    (
        "Merge heads",
        "context = context.transpose(1, 2).contiguous().view(B, T, H * Dh)",
        "merge_heads",
    ),
    (
        "Mix heads; add the residual",
        "x = x + out_proj(context)",
        "TransformerBlock",
    ),
    (
        "LayerNorm 2; widen, bend",
        'h = F.gelu(fc1(ln2(x)), approximate="tanh")',
        "gelu",
    ),
    (
        "Narrow; add the residual: end of the block",
        "x = x + fc2(h)",
        "TransformerBlock",
    ),
    (
        "After all blocks: final norm, head",
        "logits = lm_head(ln_f(x))",
        "GPT",
    ),
]

# (task, code, exercise)
TASKS = [
    (
        "Fill the sinusoidal table (even columns)",
        "pe[:, 0::2] = torch.sin(angle)",
        "sinusoidal_table",
    ),
    (
        "Rotate Q and K, neighbouring pairs",
        "apply_rope(x, pos, base=10000)",
        "apply_rope",
    ),
    (
        "Fused kernel with GQA",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, "
        "enable_gqa=True)",
        "GroupedQueryAttention",
    ),
    (
        "Tie the head: the same parameter, no copy",
        "self.lm_head.weight = self.tok_embed.weight",
        "tie_weights",
    ),
    (
        "Keep the mask: no gradient, not saved",
        'self.register_buffer("causal_mask", causal_mask, persistent=False)',
        "MultiHeadSelfAttention",
    ),
]


def steps():
    """From ids to logits: each line of code, run, with the shape it gave."""
    rows = [
        (says, f"`{code}`", _letters(shape), _numbers(shape), exercise)
        for (says, code, exercise), shape in zip(STEPS, shapes(), strict=True)
    ]
    return _table(["Step", "Code", "Shape", f"GPT-2 small, B = {B}"], rows)


def shapes():
    """The shapes that the lines of STEPS give, run in their order."""
    with torch.device("meta"):
        names = {
            **{"B": B, "T": T, "D": D, "H": H, "Dh": Dh},
            **{"torch": torch, "F": F, "math": math},
            "ids": torch.zeros(B, T, dtype=torch.long),
            "tok_embed": nn.Embedding(V, D),
            "pos_embed": nn.Embedding(T, D),
            "causal_mask": torch.ones(T, T).tril(),
            "qkv_proj": nn.Linear(D, 3 * D),
            "out_proj": nn.Linear(D, D),
            "fc1": nn.Linear(D, 4 * D),
            "fc2": nn.Linear(4 * D, D),
            "lm_head": nn.Linear(D, V, bias=False),
            **{name: nn.LayerNorm(D) for name in ("ln1", "ln2", "ln_f")},
        }
        made = []
        for _, code, _ in STEPS:
            target, equals, _ = code.partition(" = ")
            if equals:
                exec(code, names)
            last = target.split(", ")[0]
            made.append(tuple(eval(last, names).shape))
            if "unflatten" in code:  # keys and values alike
                for name in "kv":
                    exec(code.replace("q", name), names)
    return made


def tasks():
    """Lines that stand elsewhere: tables, rotation, fused kernel, tie."""
    rows = [(task, f"`{code}`", name) for task, code, name in TASKS]
    return _table(["Task", "Code"], rows)


def formulas():
    """The formulas, each with a number by which to check it."""
    q, keys = np.array([1.0, 1.0]), np.array([[1.0, 1.0], [1.0, -1.0]])
    e = np.exp(keys @ q / math.sqrt(2))
    weights = e / e.sum()
    slow = 1e4 ** ((D - 2) / D)
    slow_pair = 1e4 ** ((Dh - 2) / Dh)
    largest = math.log(torch.finfo(torch.float32).max)
    slopes = [2.0 ** (-8 * (h + 1) / 8) for h in range(8)]
    rows = [
        (
            "Attention",
            r"$\operatorname{softmax}\!\left(QK^\top / \sqrt{d_k}\right) V$",
            f"$q = (1, 1)$, keys $(1, 1)$ and $(1, -1)$: weights "
            f"{weights[0]:.3f} and {weights[1]:.3f}",
            "scaled_dot_product_attention",
        ),
        (
            "Head width",
            r"$d_{\text{head}} = d_{\text{model}} / n_{\text{heads}}$",
            f"{D} / {H} = {D // H}",
            "split_heads",
        ),
        (
            "Causal mask",
            r"$M_{ij} = 0$ if $j \le i$, else $-\infty$",
            f"{T * (T + 1) // 2:,} of {T * T:,} pairs visible at T = {T:,}",
            "causal_mask",
        ),
        (
            "Sinusoid, even",
            r"$PE_{(pos,\,2i)} = \sin(pos / 10000^{2i/D})$",
            f"wavelengths {2 * math.pi:.2f} to {2 * math.pi * slow:,.0f} "
            f"positions at D = {D}",
            "sinusoidal_table",
        ),
        (
            "Sinusoid, odd",
            r"$PE_{(pos,\,2i+1)} = \cos(pos / 10000^{2i/D})$",
            f"a row's squared norm: D / 2 = {D // 2}",
            "sinusoidal_table",
        ),
        (
            "RoPE angle",
            r"$\theta_i = \text{base}^{-2i/D_h}$; scores depend on $m - n$",
            f"slowest pair: {2 * math.pi * slow_pair:,.0f} positions a turn "
            f"at Dh = {Dh}",
            "apply_rope",
        ),
        (
            "ALiBi",
            r"$q_i \cdot k_j / \sqrt{d} - m_h \, \lvert i - j \rvert$",
            f"slopes 1/{1 / slopes[0]:g} to 1/{1 / slopes[-1]:g} for 8 heads",
            "alibi_bias",
        ),
        (
            "Stable softmax",
            r"$\operatorname{softmax}(x - c) = \operatorname{softmax}(x)$",
            f"exp overflows float32 above {largest:.1f}, float16 above "
            f"{math.log(torch.finfo(torch.float16).max):.1f}: take $c = "
            r"\max x$",
            "softmax",
        ),
        (
            "Cross-attention",
            r"queries of the decoder, keys and values of the encoder",
            f"weights (B, Tdec, Tenc): {_cross_shape()} for 5 and 7 steps",
            "additive_attention",
        ),
    ]
    return _table(["What", "Formula", "Check it"], rows)


def numbers():
    """Defaults, and the numbers that follow from them."""
    block = block_parameters(D)
    std = 0.02
    ntk = 1e4 * 8 ** (128 / (128 - 2))
    kv = 2 * H * Dh * 2
    llama = 2 * 8 * 128 * 2 * 32
    share = (8 * D * D + 5 * D) / block
    rows = [
        (
            "Sinusoid and RoPE base",
            f"{10_000:,}",
            f"raise RoPE's base for longer contexts: to {ntk:,.0f} for 8 "
            "times the length at Dh = 128 (NTK)",
            "rope_inv_freq",
        ),
        (
            "`mlp_expansion`",
            f"{4 * D // D}",
            f"MLP is D to 4D to D: {D}, {4 * D:,}, {D}; {share:.1%} of a "
            "block's parameters",
            "TransformerBlock",
        ),
        (
            "`d_head`",
            f"{D // H}",
            f"mostly 64 or 128 in production: {D} / {H} = {D // H} in GPT-2 "
            "small, "
            f"{4096} / {32} = {4096 // 32} in Llama 3 8B",
            "split_heads",
        ),
        (
            "Init std",
            f"{std}",
            "Linear and Embedding weights; first loss $\\ln V + "
            f"\\frac12 D \\sigma^2$ = {first_loss(std):.3f} "
            f"($\\ln V$ = {math.log(V):.3f})",
            "init_weights",
        ),
        (
            "Residual projections",
            r"$1/\sqrt{2L}$",
            f"`out_proj` and `fc2`: {std} × {1 / math.sqrt(2 * L):.3f} = "
            f"{std / math.sqrt(2 * L):.5f}",
            "init_weights",
        ),
        (
            "GPT-2 small",
            f"{gpt_parameters():,}",
            f"D = {D}, {H} heads, {L} blocks of {block:,}; an untied head "
            f"adds {V * D:,}",
            "GPT",
        ),
        (
            "Scores, stored",
            f"{B * H * T * T * 4 / 2**20:g} MiB",
            f"{B} × {H} × {T} × {T} float32 numbers, "
            f"{B * H * T * T * 4:,} bytes; a fused kernel stores none",
            "attention_cost",
        ),
        (
            "KV bytes a token, a layer",
            f"{kv:,}",
            "`2 * n_kv_heads * d_head * dtype_size`; in half precision GPT-2 "
            f"small {kv * L / 2**10:g} KiB for all layers, Llama 3 8B "
            f"{llama / 2**10:g} KiB",
            "kv_cache_bytes",
        ),
        (
            "Forward FLOPs",
            f"{forward_flops() / 1e9:.1f} G",
            f"GPT-2 small, {T:,} tokens; training three times that, "
            f"{3 * forward_flops() / 1e9:.0f} G ($6ND$ says "
            f"{6 * gpt_parameters() * T / 1e9:.0f} G)",
            "transformer_flops",
        ),
        (
            "Tokens per parameter",
            f"about {1.4e12 / 70e9:g}",
            "compute-optimal; Chinchilla: 70e9 parameters, 1.4e12 tokens. "
            f"Fits at 5.76e23 FLOPs: {tokens_per_parameter(EPOCH):.1f} "
            f"(replicated), {tokens_per_parameter(ROUNDED):.1f} (published, "
            "rounded)",
            "compute_optimal",
        ),
    ]
    return _table(["Setting", "Value", "Note"], rows)


def questions():
    """Five questions, in a sentence each."""
    rows = [
        (
            "Why divide by $\\sqrt{d_k}$?",
            "Dot products spread as $\\sqrt{d_k}$; a saturated softmax "
            "passes hardly any gradient.",
            "softmax_jacobian",
        ),
        (
            "Why $-\\infty$ in the mask?",
            "exp(−∞) = 0: no weight for the future, and none in the "
            "denominator.",
            "causal_mask",
        ),
        (
            "Why add positions?",
            "Attention alone is permutation equivariant (not invariant); a "
            "causal mask alone breaks that already.",
            "equivariance_gap",
        ),
        (
            "Why GQA?",
            "G instead of N key and value heads (N is our H): the KV cache "
            "shrinks by N/G, with nearly full quality.",
            "GroupedQueryAttention",
        ),
        (
            "Is FlashAttention approximate?",
            "No: a running (max, sum) for each row keeps it exact, but for "
            "the order of summation.",
            "online_softmax_state",
        ),
    ]
    return _table(["Question", "Answer"], rows)


def failures():
    """Eight symptoms; the troubleshooting page has all of them."""
    rows = [
        (
            "`ValueError` on `d_model` and `n_heads`",
            "D is not divisible by H",
            "pick H that divides D",
            "split_heads",
        ),
        (
            "`seq_len` exceeds `max_context_length`",
            "T is larger than the mask",
            "crop to the last `context_length` tokens",
            "MultiHeadSelfAttention",
        ),
        (
            "Model cheats on the next token",
            "no causal mask",
            "−∞ above the diagonal, before the softmax",
            "scaled_dot_product_attention",
        ),
        (
            "Softmax gives NaN (exp gives inf)",
            "exp of a large number",
            "subtract the row's maximum first",
            "softmax",
        ),
        (
            "Learning stalls",
            "scores not scaled",
            "divide by $\\sqrt{d_{\\text{head}}}$",
            "score_std",
        ),
        (
            "Deep stack diverges",
            "post-LN on the residual path, no warm-up",
            "pre-LN, or warm up",
            "depth_profile",
        ),
        (
            "Weight tying saves nothing",
            "weights copied, not shared",
            "assign the same parameter",
            "tie_weights",
        ),
        (
            "Bad output past the trained length",
            "positions do not extrapolate",
            "RoPE with base scaling, a short training; or ALiBi",
            "rope_inv_freq",
        ),
    ]
    return _table(["Symptom", "Cause", "Fix"], rows)


def habits():
    """Six things to test, expect or refrain from."""
    rows = [
        ("Test that weight rows sum to 1 (before dropout).", "softmax"),
        (
            "Test that future tokens change no past output: keys and values "
            "apart.",
            "scaled_dot_product_attention",
        ),
        (
            "Expect a first loss near ln V (a little above: see init std).",
            "init_weights",
        ),
        ("Count parameters against the reference model.", "GPT"),
        (
            "Dropout after the softmax and after the second MLP linear; "
            "GPT-2 has it after `out_proj` and the embedding, too.",
            "dropout_sites",
        ),
        (
            "Do not use attention weights as proof of reasoning.",
            "alternative_weights",
        ),
    ]
    return _table(["Habit"], rows)


def abbreviations():
    """Eight abbreviations; the glossary has the rest."""
    rows = [
        (
            "MHA",
            "multi-head attention: N query heads, N key and value heads "
            "(N is our H)",
            "MultiHeadSelfAttention",
        ),
        (
            "MQA",
            "multi-query attention: one key and value head for all",
            "GroupedQueryAttention",
        ),
        (
            "GQA",
            "grouped-query attention: fewer key and value heads, repeated "
            "to match queries",
            "GroupedQueryAttention",
        ),
        (
            "MLA",
            "multi-head latent attention: keys and values from one low-rank "
            "latent",
            "LatentAttention",
        ),
        (
            "RoPE",
            "rotary position embedding: turns Q and K by position",
            "apply_rope",
        ),
        (
            "ALiBi",
            "attention with linear biases: a penalty on distance",
            "alibi_bias",
        ),
        ("RMSNorm", "LayerNorm without the mean (and the bias)", "RMSNorm"),
        ("KV cache", "stored K and V of every token so far", "KVCache"),
    ]
    return _table(["", "Meaning"], rows)


# A, B, E, alpha, beta of the parametric loss E + A/N^alpha + B/D^beta:
# Hoffmann et al. 2022 as printed, and Besiroglu et al. 2024.
ROUNDED = (406.4, 410.7, 1.69, 0.34, 0.28)
EPOCH = (482.01, 2085.43, 1.8172, 0.3478, 0.3658)


def tokens_per_parameter(constants, flops=5.76e23):
    """D/N where the parametric loss is least, at 6ND = flops.

    Searched on a grid of N, as a check on the closed form of exercise 7.3.
    """
    a, b, e, alpha, beta = constants
    n = np.geomspace(1e8, 1e13, 200_001)
    d = flops / (6 * n)
    best = n[(e + a / n**alpha + b / d**beta).argmin()]
    return flops / (6 * best**2)


def block_parameters(d):
    """Parameters of a pre-LN block with biases: torch's own layers."""
    with torch.device("meta"):
        parts = [
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
            nn.LayerNorm(d),
            nn.LayerNorm(d),
        ]
    return sum(p.numel() for part in parts for p in part.parameters())


def gpt_parameters():
    """Parameters of GPT-2 small, with the head tied to the embedding."""
    return V * D + T * D + L * block_parameters(D) + 2 * D


def first_loss(std):
    """Expected loss of random logits: h·w with h of unit RMS, w ~ N(0, std²).

    Logits are then normal with variance D·std², and ln of a mean of
    exponentials of such numbers is half of it. In nats.
    """
    return math.log(V) + D * std**2 / 2


def forward_flops():
    """FLOPs of one forward pass over T tokens; a multiply-add is 2."""
    projections = 2 * T * 4 * D * D
    attention = 2 * 2 * T * T * D
    mlp = 2 * T * 8 * D * D
    return L * (projections + attention + mlp) + 2 * T * D * V


def _cross_shape():
    queries = torch.empty(B, 5, D, device="meta")
    keys = torch.empty(B, 7, D, device="meta")
    return _numbers((queries @ keys.transpose(-2, -1)).shape)


def _letters(shape):
    return f"({', '.join(LETTERS[size] for size in shape)})"


def _numbers(shape):
    return f"({', '.join(f'{size:,}' for size in shape)})"


def _table(heads, rows):
    """A Markdown table of rows that end with the name of their exercise."""
    lines = [
        f"| {' | '.join([*heads, 'Ex.'])} |",
        f"|{'---|' * (len(heads) + 1)}",
    ]
    for *cells, exercise in rows:
        if is_exercise(exercise):
            lines.append(
                f"| {' | '.join([*cells, exercise_link(exercise)])} |"
            )
    return Markdown("\n".join(lines))
