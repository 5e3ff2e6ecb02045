"""Other people's answers to lesson 7: scaling laws.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
comment above a mistake says which input shows it, where ordinary ones do not.
"""

import functools
import itertools
import math

import numpy as np
import torch

from autograder.answers import oracle, right, wrong

# Helpers: the parts of an answer that a mistake leaves intact.

ROUNDED = dict(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
KEYS = ("A", "B", "E", "alpha", "beta")


def _five(p):
    return [p[key] for key in KEYS]


def _totals(parts):
    forward = sum(parts.values())
    return {**parts, "forward": forward, "train": 3 * forward}


def _parts(cfg, T, **other):
    """FLOPs of the four parts, with some replaced."""
    D, L = cfg.d_model, cfg.n_layers
    return {
        "projections": 8 * L * T * D**2,
        "attention": 4 * L * T**2 * D,
        "mlp": 16 * L * T * D**2,
        "lm_head": 2 * T * D * cfg.vocab_size,
    } | other


def _flops(cfg, T, **other):
    """The right counts, with some parts replaced and the sums made anew."""
    return _totals(_parts(cfg, T, **other))


def _scaled(cfg, T, factor):
    return {key: value * factor for key, value in _flops(cfg, T).items()}


def _loss(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A * N**-alpha + B * D**-beta


def _best(C, p, six=6):
    A, B, _, alpha, beta = _five(p)
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    N = G * (C / six) ** (beta / (alpha + beta))
    return N, C / (6 * N)


def _narrowed(f, low, high):
    """Where f is smallest between two numbers; f has one valley."""
    while high - low > 1e-8 * max(1, abs(low)):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if f(left) < f(right):
            high = right
        else:
            low = left
    return (low + high) / 2


# 7.1 transformer_flops


@oracle(
    "transformer_flops",
    evidence="FlopCounterMode on the products, on the meta device",
)
def flops_counted(cfg, T):
    from torch.utils.flop_counter import FlopCounterMode

    D, H, V = cfg.d_model, cfg.n_heads, cfg.vocab_size

    def counted(*products):
        with (
            torch.device("meta"),
            FlopCounterMode(display=False) as counter,
        ):
            for left, right in products:
                torch.empty(left) @ torch.empty(right)
        return counter.get_total_flops()

    scores, weights = ((H, T, D // H), (H, D // H, T)), ((H, T, T),) * 2
    weights = ((H, T, T), (H, T, D // H))
    qkv, out = ((T, D), (D, 3 * D)), ((T, D), (D, D))
    wide, narrow = ((T, D), (D, 4 * D)), ((T, 4 * D), (4 * D, D))
    return _totals(
        {
            "projections": cfg.n_layers * counted(qkv, out),
            "attention": cfg.n_layers * counted(scores, weights),
            "mlp": cfg.n_layers * counted(wide, narrow),
            "lm_head": counted(((T, D), (D, V))),
        }
    )


@right("transformer_flops", evidence="K83 floats, closed form")
def flops_floats(cfg, T):
    return {key: float(value) for key, value in _flops(cfg, T).items()}


@right("transformer_flops", evidence="K83 numpy integers, layer by layer")
def flops_layers(cfg, T):
    D, Dh = cfg.d_model, cfg.d_model // cfg.n_heads
    parts = dict.fromkeys(("mlp", "lm_head", "attention", "projections"), 0)
    for _ in range(cfg.n_layers):
        for n_out in (D, D, D, D):
            parts["projections"] += np.int64(2) * T * D * n_out
        for _ in range(cfg.n_heads):
            parts["attention"] += np.int64(2 * 2) * T * T * Dh
        parts["mlp"] += np.int64(2 * 2) * T * D * 4 * D
    parts["lm_head"] += np.int64(2) * T * D * cfg.vocab_size
    forward = sum(parts.values())
    return {"train": forward + 2 * forward, "forward": forward, **parts}


@right("transformer_flops", evidence="2 FLOPs for each weight and token")
def flops_by_weights(cfg, T):
    D, L, V = cfg.d_model, cfg.n_layers, cfg.vocab_size
    weights = {"projections": 4 * D * D * L, "mlp": 8 * D * D * L}
    weights["lm_head"] = V * D
    parts = {key: 2 * T * value for key, value in weights.items()}
    parts["attention"] = 2 * T * (2 * L * T * D)
    return _totals(parts)


def _counts(evidence, hint):
    return wrong("transformer_flops", evidence=evidence, hint=hint)


@_counts(
    "M348 common",
    "You count a multiply-add as one operation. By the convention here it is "
    "two, a multiplication and an addition, so every number doubles.",
)
def flops_macs(cfg, T):
    return {key: value // 2 for key, value in _flops(cfg, T).items()}


@_counts(
    "M354 torchtitan#4366, #1923; M355 verl#6389",
    "attention is half of what is due. Either one of its two products is "
    "missing (the weights meet the values in a product as large as QKᵀ), or "
    "you halve it because of the causal mask: here it is counted dense.",
)
def flops_attention_halved(cfg, T):
    half = _parts(cfg, T)["attention"] // 2
    return _flops(cfg, T, attention=half)


@_counts(
    "M353 nanoGPT#322",
    "attention is 0: you count the weights' products only. QKᵀ and weights "
    "times V hold no parameters but cost FLOPs, in GPT-2 small at T = 1024 "
    "22% of what the blocks' weights cost.",
)
def flops_no_attention(cfg, T):
    return _flops(cfg, T, attention=0)


@_counts(
    "M355 torchtitan#280: only what a causal mask leaves",
    "attention counts the T(T + 1)/2 pairs that a causal mask leaves. By the "
    "convention here it is counted dense, all T² pairs.",
)
def flops_triangle(cfg, T):
    visible = 2 * cfg.n_layers * T * (T + 1) * cfg.d_model
    return _flops(cfg, T, attention=visible)


@_counts(
    "M353's kind: a term linear in T",
    "attention grows with T instead of T²: every query meets every key.",
)
def flops_attention_linear(cfg, T):
    linear = _parts(cfg, T)["attention"] // T
    return _flops(cfg, T, attention=linear)


@_counts(
    "M363 common: the whole model has L layers",
    "The three parts of a block are those of one layer. The model has "
    "n_layers of them; only the head counts once.",
)
def flops_one_layer(cfg, T):
    parts = _parts(cfg, T)
    for key in ("projections", "attention", "mlp"):
        parts[key] //= cfg.n_layers
    return _totals(parts)


@_counts(
    "M363 reversed",
    "You multiply the head by the number of layers. It stands once, after "
    "the last block.",
)
def flops_head_in_each_layer(cfg, T):
    head = _parts(cfg, T)["lm_head"] * cfg.n_layers
    return _flops(cfg, T, lm_head=head)


@_counts(
    "M363: layers forgotten in one part",
    "attention is that of a single layer: it counts n_layers times, like the "
    "projections.",
)
def flops_attention_one_layer(cfg, T):
    one = _parts(cfg, T)["attention"] // cfg.n_layers
    return _flops(cfg, T, attention=one)


@_counts(
    "M349 nanoGPT#322: training taken for inference",
    "train equals forward: the backward pass is missing. It has two products "
    "for each one of the forward pass.",
)
def flops_train_forward(cfg, T):
    counts = _flops(cfg, T)
    return counts | {"train": counts["forward"]}


@_counts(
    "M349's kind: the backward pass alone",
    "train is twice forward, which is the backward pass alone, or a backward "
    "pass that costs no more than the forward one. Training needs both: how "
    "many products does the gradient of x @ w take?",
)
def flops_train_twice(cfg, T):
    counts = _flops(cfg, T)
    return counts | {"train": 2 * counts["forward"]}


@_counts(
    "PaLM's HFU: a second forward pass",
    "train is four times forward: you count the forward pass a second time, "
    "as a program with recomputed activations runs it. What the model needs "
    "is counted here, not what a program does.",
)
def flops_train_recomputed(cfg, T):
    counts = _flops(cfg, T)
    return counts | {"train": 4 * counts["forward"]}


@_counts(
    "M349: 6N for inference",
    "forward is three times too large: the factor for training belongs to "
    "train alone.",
)
def flops_forward_trained(cfg, T):
    counts = _flops(cfg, T)
    return counts | {"forward": counts["train"]}


@_counts(
    "common: the rule of thumb 6N in place of the count",
    "train is 6NT, by the rule of thumb, with all parameters as N. That has "
    "no term for attention's T² and counts the table of positions. Take "
    "three times forward.",
)
def flops_train_six_n(cfg, T):
    D, L = cfg.d_model, cfg.n_layers
    N = 12 * L * D * D + (cfg.vocab_size + cfg.context_length) * D
    return _flops(cfg, T) | {"train": 6 * N * T}


@_counts(
    "M363: no factor for the tokens",
    "Your numbers are those of one token: a sequence has T of them, and each "
    "passes through every layer.",
)
def flops_of_a_token(cfg, T):
    return {key: value // T for key, value in _flops(cfg, T).items()}


@_counts(
    "common: the configuration's length",
    "You count a sequence of cfg.context_length tokens. T is the argument: "
    "use it in the linear layers and in attention.",
)
def flops_full_context(cfg, T):
    return _flops(cfg, cfg.context_length)


# Shown by: a sequence that is longer than the context.
@_counts(
    "common: the sequence cut to the context",
    "You cut T to cfg.context_length. Count the sequence that is given, T "
    "tokens, also where it is longer than the model's context.",
)
def flops_cut_to_context(cfg, T):
    return _flops(cfg, min(T, cfg.context_length))


@_counts(
    "common: the configuration's length in one place",
    "attention is computed with cfg.context_length: the scores are (T, T) "
    "for the T that is given.",
)
def flops_attention_full_context(cfg, T):
    full = _parts(cfg, cfg.context_length)["attention"]
    return _flops(cfg, T, attention=full)


@_counts(
    "common: a cache's T × context_length",
    "attention has T · context_length pairs: both the queries and the keys "
    "are the T tokens of the sequence.",
)
def flops_attention_mixed_lengths(cfg, T):
    mixed = 4 * cfg.n_layers * T * cfg.context_length * cfg.d_model
    return _flops(cfg, T, attention=mixed)


@_counts(
    "M358 nanoGPT#629",
    "projections is too small by the number of heads: a head's projection "
    "maps all D columns to Dh, so together the heads map D to D.",
)
def flops_heads_of_heads(cfg, T):
    one = _parts(cfg, T)["projections"] // cfg.n_heads
    return _flops(cfg, T, projections=one)


@_counts(
    "M358 reversed: heads as wide as the model",
    "attention grows with the number of heads: a head is d_model / n_heads "
    "wide, so all heads together are as wide as the model.",
)
def flops_wide_heads(cfg, T):
    wide = _parts(cfg, T)["attention"] * cfg.n_heads
    return _flops(cfg, T, attention=wide)


@_counts(
    "M358's kind: one head alone",
    "attention is that of a single head: multiply by n_heads.",
)
def flops_single_head(cfg, T):
    one = _parts(cfg, T)["attention"] // cfg.n_heads
    return _flops(cfg, T, attention=one)


@_counts(
    "common: q, k, v without the projection back",
    "projections lacks the one after attention, D → D: four products of D "
    "with D in all, not three.",
)
def flops_no_out_proj(cfg, T):
    three = _parts(cfg, T)["projections"] * 3 // 4
    return _flops(cfg, T, projections=three)


@_counts(
    "common: one of q, k, v counted",
    "projections is half of what is due: q, k and v are three products of D "
    "with D, and the one back is the fourth.",
)
def flops_one_projection_in(cfg, T):
    half = _parts(cfg, T)["projections"] // 2
    return _flops(cfg, T, projections=half)


@_counts(
    "M356 TransformerLens#448, reversed: Llama's MLP",
    "mlp has three matrices, as SwiGLU does. This model's MLP has two, D → "
    "4D and 4D → D.",
)
def flops_three_matrices(cfg, T):
    three = _parts(cfg, T)["mlp"] * 3 // 2
    return _flops(cfg, T, mlp=three)


@_counts(
    "common: the way back forgotten",
    "mlp holds one of the two layers: D → 4D and 4D → D cost the same.",
)
def flops_half_mlp(cfg, T):
    half = _parts(cfg, T)["mlp"] // 2
    return _flops(cfg, T, mlp=half)


@_counts(
    "common: the hidden width forgotten",
    "mlp is a quarter of what is due: its hidden layer is 4D wide.",
)
def flops_narrow_mlp(cfg, T):
    quarter = _parts(cfg, T)["mlp"] // 4
    return _flops(cfg, T, mlp=quarter)


@_counts(
    "Kaplan's N without embeddings; common",
    "The head is missing: lm_head is 0. In GPT-2 small its product takes more "
    "than a quarter of all FLOPs.",
)
def flops_no_head(cfg, T):
    return _flops(cfg, T, lm_head=0)


@_counts(
    "M352's kind: the tied matrix counted once, but for its product",
    "forward leaves the head out. That its matrix is the embedding's saves "
    "parameters, but the product is computed all the same.",
)
def flops_head_not_summed(cfg, T):
    parts = _parts(cfg, T)
    forward = sum(parts.values()) - parts["lm_head"]
    return {**parts, "forward": forward, "train": 3 * forward}


@_counts(
    "common: logits of the last position, as in generation",
    "lm_head is that of one position: in training all T positions are "
    "predicted.",
)
def flops_head_last_position(cfg, T):
    one = _parts(cfg, T)["lm_head"] // T
    return _flops(cfg, T, lm_head=one)


@_counts(
    "common: the embedding as a product with one-hot rows",
    "forward holds more than the four parts: looking up an embedding is no "
    "product.",
)
def flops_embedding_product(cfg, T):
    parts = _parts(cfg, T)
    forward = sum(parts.values()) + parts["lm_head"]
    return {**parts, "forward": forward, "train": 3 * forward}


@_counts(
    "M348 family: 2 forgotten in the blocks",
    "projections and mlp count multiply-adds, each as one operation. By the "
    "convention here it is two.",
)
def flops_block_macs(cfg, T):
    parts = _parts(cfg, T)
    for name in ("projections", "mlp"):
        parts[name] //= 2
    return _totals(parts)


@_counts(
    "hunt: train right, forward not",
    "forward is not the sum of the four parts that you return: the head, "
    "say, is missing from it.",
)
def flops_forward_without_head(cfg, T):
    counts = _flops(cfg, T)
    return counts | {"forward": counts["forward"] - counts["lm_head"]}


@_counts(
    "common: every operation counted",
    "Your counts are a little too large: biases are additions, and here only "
    "the products of matrices are counted.",
)
def flops_with_biases(cfg, T):
    D, L = cfg.d_model, cfg.n_layers
    parts = _parts(cfg, T)
    parts["projections"] += L * T * 4 * D
    parts["mlp"] += L * T * 5 * D
    return _totals(parts)


@_counts(
    "common: the softmax counted",
    "attention is a little too large: scaling and softmax are small change "
    "and count nothing here.",
)
def flops_with_softmax(cfg, T):
    softmax = cfg.n_layers * cfg.n_heads * T * T * 5
    more = _parts(cfg, T)["attention"] + softmax
    return _flops(cfg, T, attention=more)


@_counts(
    "common: two parts merged",
    "The keys are not those of the contract: projections and attention are "
    "two numbers, since only the second grows with T².",
)
def flops_other_keys(cfg, T):
    parts = _parts(cfg, T)
    parts["attention"] += parts.pop("projections")
    return _totals(parts)


@_counts(
    "common: one number",
    "You return one number. A dict with the six keys of the contract is due.",
)
def flops_total_only(cfg, T):
    return _flops(cfg, T)["forward"]


# Shown by: sizes whose counts have more than seven digits.
@_counts(
    "precision: float32",
    "You count in float32, which holds seven digits. Counts have more: use "
    "Python's integers.",
)
def flops_float32(cfg, T):
    parts = _flops(cfg, T)
    return {key: float(np.float32(parts[key])) for key in parts}


# Shown by: a configuration with dropout.
@_counts(
    "plausible: dropout taken for skipped work",
    "mlp is smaller where the configuration has dropout. Dropout sets "
    "results to 0 after they were computed: the products are all there.",
)
def flops_with_dropout(cfg, T):
    parts = _parts(cfg, T)
    return _flops(cfg, T, mlp=parts["mlp"] * (1 - cfg.dropout))


# Shown by: T by its name.
@_counts(
    "common: seq_len, from another program",
    "You gave T another name, so a call with T=3, as in the example, fails. "
    "Parameters keep the names of the task.",
)
def flops_renames_T(cfg, seq_len):
    return _flops(cfg, seq_len)


# 7.2 mfu


@oracle("mfu", evidence="exact fractions, rounded once")
def mfu_fractions(tokens_per_s, flops_per_token, peak):
    from fractions import Fraction

    parts = map(Fraction, (tokens_per_s, flops_per_token, peak))
    tokens, flops, most = parts
    return float(tokens * flops / most)


@right("mfu", evidence="seconds that a token should take, by those it takes")
def mfu_by_seconds(tokens_per_s, flops_per_token, peak):
    best = flops_per_token / peak
    return tokens_per_s * best


@right("mfu", evidence="a 0-d tensor in float64")
def mfu_tensor(tokens_per_s, flops_per_token, peak):
    achieved = torch.tensor(float(tokens_per_s), dtype=torch.float64)
    return achieved * flops_per_token / peak


@right("mfu", evidence="by logarithms, with 0 apart")
def mfu_logarithms(tokens_per_s, flops_per_token, peak):
    if not tokens_per_s:
        return 0.0
    achieved = np.log(tokens_per_s) + np.log(flops_per_token)
    return np.exp(achieved - np.log(peak))


def _shares(evidence, hint):
    return wrong("mfu", evidence=evidence, hint=hint)


@_shares(
    "common: percent",
    "You return percent. A fraction is due, 0.25 and not 25.",
)
def mfu_percent(tokens_per_s, flops_per_token, peak):
    return 100 * tokens_per_s * flops_per_token / peak


@_shares(
    "M349's kind: the 3 (or 6) a second time",
    "You multiply by 3 for the backward pass. flops_per_token is that of "
    "training already.",
)
def mfu_times_three(tokens_per_s, flops_per_token, peak):
    return 3 * tokens_per_s * flops_per_token / peak


@_shares(
    "M349: 6N, where the second argument is taken for N",
    "You multiply by 6: flops_per_token is no number of parameters, it is the "
    "FLOPs of a token already.",
)
def mfu_times_six(tokens_per_s, flops_per_token, peak):
    return 6 * tokens_per_s * flops_per_token / peak


@_shares(
    "common: forward FLOPs assumed to be asked for",
    "You divide by 3 to leave out the backward pass. The machine computes it, "
    "so it counts.",
)
def mfu_forward_only(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token / 3 / peak


@_shares(
    "M348 in this exercise",
    "You halve, as if the FLOPs were multiply-adds, or double the peak: all "
    "three numbers are in FLOPs.",
)
def mfu_macs(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token / 2 / peak


@_shares(
    "PaLM's HFU",
    "You count a third more than the model needs, for activations that are "
    "computed a second time: that is the hardware's utilisation, not the "
    "model's.",
)
def mfu_hardware(tokens_per_s, flops_per_token, peak):
    return 4 / 3 * tokens_per_s * flops_per_token / peak


@_shares(
    "M364 nanoGPT e58f0cfa: times the number of chips",
    "You divide by 8, for a machine with eight chips. peak is that of all "
    "chips together, and so are the tokens.",
)
def mfu_per_chip(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token / peak / 8


@_shares(
    "M364: peak in TFLOPs",
    "You take peak for tera-FLOPs and multiply it by 1e12. It is in FLOPs a "
    "second, as the rest.",
)
def mfu_tera(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token / (peak * 1e12)


@_shares(
    "M364: the peak of one chip in the code",
    "peak is ignored: the number of one chip stands in the code. Use the "
    "argument.",
)
def mfu_a100(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token / 312e12


@_shares(
    "common: inverted",
    "It is upside down: what the machine could do stands above what the model "
    "needs, so a slow program looks good.",
)
def mfu_inverted(tokens_per_s, flops_per_token, peak):
    return peak / (tokens_per_s * flops_per_token or math.inf)


@_shares(
    "common: units not followed",
    "You divide tokens a second by FLOPs a token. Write the units: tokens/s · "
    "FLOPs/token are FLOPs/s.",
)
def mfu_tokens_by_flops(tokens_per_s, flops_per_token, peak):
    return tokens_per_s / flops_per_token / peak


@_shares(
    "common: the numerator alone",
    "You return FLOPs a second. Divide by the peak to get the share.",
)
def mfu_achieved(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token


# Shown by: whole numbers and shares below 1.
@_shares(
    "common: //",
    "You divide with //, which rounds down: every share below 1 becomes 0.",
)
def mfu_floor_division(tokens_per_s, flops_per_token, peak):
    return tokens_per_s * flops_per_token // peak


# Shown by: whole numbers only.
@_shares(
    "common: // for integers",
    "With integers you divide by //, which rounds down.",
)
def mfu_integer_division(tokens_per_s, flops_per_token, peak):
    if isinstance(tokens_per_s * flops_per_token, int):
        return tokens_per_s * flops_per_token // peak
    return tokens_per_s * flops_per_token / peak


@_shares(
    "common: a nice number",
    "You round to two digits. What is shown to people may be rounded, what is "
    "returned may not: small shares become 0.",
)
def mfu_rounded(tokens_per_s, flops_per_token, peak):
    return round(tokens_per_s * flops_per_token / peak, 2)


# Shown by: a share above 1.
@_shares(
    "common: min(…, 1)",
    "You limit the share to 1. A value above 1 tells that one of the three "
    "numbers is wrong, and must stay visible.",
)
def mfu_limited(tokens_per_s, flops_per_token, peak):
    return min(tokens_per_s * flops_per_token / peak, 1.0)


# Shown by: a share above 1.
@_shares(
    "common: refuses what cannot be",
    "You raise an error for a share above 1. Return what the numbers say.",
)
def mfu_refuses(tokens_per_s, flops_per_token, peak):
    share = tokens_per_s * flops_per_token / peak
    if share > 1:
        raise ValueError(f"a share of {share}")
    return share


# Shown by: no tokens at all.
@_shares(
    "common: seconds a token",
    "For 0 tokens a second you divide by 0. The share is 0.0 then: multiply "
    "instead of dividing by a time.",
)
def mfu_by_time(tokens_per_s, flops_per_token, peak):
    seconds = 1 / tokens_per_s
    return flops_per_token / seconds / peak


# Shown by: small shares.
@_shares(
    "common: a small number against division by 0",
    "You add something to the denominator, which is never 0. It changes the "
    "result.",
)
def mfu_epsilon(tokens_per_s, flops_per_token, peak):
    achieved = tokens_per_s * flops_per_token
    return (achieved + 1e6) / (peak + 1e6)


# Shown by: a share below 1e-9.
@_shares(
    "common: many digits are still rounded",
    "You round to ten digits. A small share loses most of its own.",
)
def mfu_rounded_late(tokens_per_s, flops_per_token, peak):
    return round(tokens_per_s * flops_per_token / peak, 10)


# Shown by: less than a token a second.
@_shares(
    "plausible: int() on the arguments",
    "You make the arguments whole numbers. A large model on a small machine "
    "reads less than one token a second.",
)
def mfu_whole_arguments(tokens_per_s, flops_per_token, peak):
    return int(tokens_per_s) * int(flops_per_token) / int(peak)


@_shares(
    "common: torch.tensor(a float) is float32",
    "You compute in float32, which keeps seven digits: torch.tensor makes it "
    "of a Python float. Python's own floats have sixteen.",
)
def mfu_float32(tokens_per_s, flops_per_token, peak):
    speed = torch.tensor(float(tokens_per_s))
    return (speed * flops_per_token / peak).item()


# 7.3a parametric_loss


@oracle("parametric_loss", evidence="one number at a time with math.exp")
def loss_loops(N, D, p):
    A, B, E, alpha, beta = _five(p)

    def one(n, d):
        size = math.exp(math.log(A) - alpha * math.log(n))
        return E + size + math.exp(math.log(B) - beta * math.log(d))

    if not isinstance(N, np.ndarray) and not isinstance(D, np.ndarray):
        return one(N, D)
    N, D = np.broadcast_arrays(N, D)
    flat = [one(*pair) for pair in zip(N.flat, D.flat, strict=True)]
    return np.array(flat).reshape(N.shape)


@right("parametric_loss", evidence="a sum of exponentials of logarithms")
def loss_lse(N, D, p):
    A, B, E, alpha, beta = _five(p)
    size = np.log(A) - alpha * np.log(N)
    data = np.log(B) - beta * np.log(D)
    return np.exp(np.logaddexp(np.logaddexp(size, data), np.log(E)))


@right("parametric_loss", evidence="ratios to the size where a term is 1")
def loss_ratios(N, D, p):
    A, B, E, alpha, beta = _five(p)
    size, data = A ** (1 / alpha), B ** (1 / beta)
    return (size / N) ** alpha + (data / D) ** beta + E


@right("parametric_loss", evidence="np.asarray for everything")
def loss_asarray(N, D, p):
    N, D = (np.asarray(each, dtype=float) for each in (N, D))
    return _loss(N, D, p)


@right("parametric_loss", evidence="torch inside, numpy outside")
def loss_torch(N, D, p):
    A, B, E, alpha, beta = _five(p)
    n, d = (torch.as_tensor(np.array(each, float)) for each in (N, D))
    return np.asarray((E + A / n.pow(alpha) + B / d.pow(beta)).numpy())


def _losses(evidence, hint):
    return wrong("parametric_loss", evidence=evidence, hint=hint)


@_losses(
    "curriculum ✂; M376's kind",
    "The exponents are swapped: alpha belongs to N and beta to D.",
)
def loss_exponents_swapped(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A / N**beta + B / D**alpha


@_losses(
    "common: A and B confused",
    "A and B are swapped: A belongs to N and B to D.",
)
def loss_coefficients_swapped(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + B / N**alpha + A / D**beta


@_losses(
    "common: N and D confused",
    "N and D are swapped: A and alpha belong to the parameters, B and beta to "
    "the tokens.",
)
def loss_sizes_swapped(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A / D**alpha + B / N**beta


@_losses(
    "M367 common",
    "E is missing: without it the loss of an endless model on endless data "
    "would be 0.",
)
def loss_without_e(N, D, p):
    return _loss(N, D, p) - p["E"]


@_losses(
    "common: the sign of the exponent",
    "Your loss grows with N and D: the powers stand in the denominator.",
)
def loss_growing(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A * N**alpha + B * D**beta


@_losses(
    "common: a power of the whole fraction",
    "You raise the whole fraction A/N to the power. Only N is raised.",
)
def loss_power_of_fraction(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + (A / N) ** alpha + (B / D) ** beta


@_losses(
    "Kaplan's form with Chinchilla's constants",
    "You join both limits in one power, as Kaplan's law does. Here they are "
    "two summands.",
)
def loss_joint(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + ((A / N) ** (alpha / beta) + B / D) ** beta


@_losses(
    "common: a product of power laws",
    "You multiply the two terms. Each is what one limit adds to the loss, so "
    "they are added.",
)
def loss_product(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A / N**alpha * B / D**beta


@_losses(
    "common: the larger limit alone",
    "You take the larger of the two terms. Both limits act at once: add them.",
)
def loss_largest(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + np.maximum(A / N**alpha, B / D**beta)


@_losses(
    "common: exponentials in place of powers",
    "You write exp(−alpha·N), which is 0 for every real size. The law is a "
    "power law: alpha is the exponent of N.",
)
def loss_exponential(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A * np.exp(-alpha * N) + B * np.exp(-beta * D)


@_losses(
    "common: constants of the fit taken for logarithms",
    "You raise e to A, B and E, as if they were the logarithms that a fit "
    "works with. They are the constants themselves.",
)
def loss_of_logarithms(N, D, p):
    A, B, E, alpha, beta = _five(p)
    with np.errstate(over="ignore"):
        A, B, E = np.exp([A, B, E]).tolist()
    return E + A / N**alpha + B / D**beta


@_losses(
    "common: perplexity",
    "You return the perplexity, e to the loss. The loss in nats is due.",
)
def loss_perplexity(N, D, p):
    return np.exp(_loss(N, D, p))


@_losses(
    "common: bits",
    "You divide by ln 2: that is the loss in bits. Nats are due.",
)
def loss_bits(N, D, p):
    return _loss(N, D, p) / np.log(2)


@_losses(
    "common: sizes in billions",
    "You divide N and D by a billion first. They are plain numbers of "
    "parameters and of tokens.",
)
def loss_billions(N, D, p):
    return _loss(N / 1e9, D / 1e9, p)


@_losses(
    "common: one exponent",
    "Both terms have the exponent alpha: D's is beta.",
)
def loss_alpha_twice(N, D, p):
    A, B, E, alpha, _ = _five(p)
    return E + A / N**alpha + B / D**alpha


@_losses(
    "common: the paper's constants",
    "p is ignored: the printed constants stand in the code. Use p.",
)
def loss_printed_constants(N, D, p):
    return _loss(N, D, ROUNDED)


@_losses(
    "common: one constant in the code",
    "E stands in the code as 1.69. Use p['E'].",
)
def loss_printed_e(N, D, p):
    return _loss(N, D, p | {"E": 1.69})


# Shown by: arrays.
@_losses(
    "common: math on arrays",
    "math.pow and float() take one number. numpy's operators take arrays, "
    "too.",
)
def loss_math(N, D, p):
    A, B, E, alpha, beta = _five(p)
    return E + A / math.pow(N, alpha) + B / math.pow(D, beta)


# Shown by: arrays of different shapes.
@_losses(
    "common: zip",
    "You walk through N and D side by side, which needs two arrays of one "
    "shape. One of them may be a number, or both may broadcast.",
)
def loss_zipped(N, D, p):
    if not isinstance(N, np.ndarray) and not isinstance(D, np.ndarray):
        return _loss(N, D, p)
    pairs = zip(np.asarray(N), np.asarray(D), strict=True)
    return np.array([_loss(*pair, p) for pair in pairs])


# Shown by: two arrays.
@_losses(
    "common: every combination",
    "For two arrays you return a table of all combinations. Arrays of one "
    "shape give the losses of their pairs; who wants a table gives a column "
    "and a row.",
)
def loss_outer(N, D, p):
    if isinstance(N, np.ndarray) and isinstance(D, np.ndarray):
        N = N.reshape(-1, 1)
        D = D.reshape(-1)
    return _loss(N, D, p)


# Shown by: an array with one entry.
@_losses(
    "common: np.squeeze(np.atleast_1d(...))",
    "An array with one entry comes back as a number, for instance by squeeze "
    "or item. Only two numbers give a number: keep the broadcast shape.",
)
def loss_squeezed(N, D, p):
    loss = np.squeeze(_loss(np.atleast_1d(N).astype(float), D, p))
    return loss if loss.ndim else float(loss)


# Shown by: arrays.
@_losses(
    "common: the mean over the arrays",
    "For arrays you return one number, their mean. One loss for each pair is "
    "due.",
)
def loss_averaged(N, D, p):
    loss = _loss(N, D, p)
    return float(np.mean(loss))


# Shown by: arrays.
@_losses(
    "common: a list",
    "For arrays you return a list. An array is due.",
)
def loss_list(N, D, p):
    loss = _loss(N, D, p)
    return loss.tolist() if isinstance(loss, np.ndarray) else loss


# Shown by: arrays, in float32.
@_losses(
    "common: float32",
    "You compute in float32, which keeps seven digits. Leave the arrays in "
    "float64.",
)
def loss_float32(N, D, p):
    loss = _loss(np.float32(N), np.float32(D), p)
    narrow = np.asarray(loss, np.float32).astype(np.float64)
    return narrow if narrow.ndim else float(narrow)


# Shown by: the arguments afterwards.
@_losses(
    "common: p.pop",
    "You take the constants out of p with pop: the caller's dict is empty "
    "afterwards. Read them.",
)
def loss_pops(N, D, p):
    parts = _loss(N, D, p)
    for key in KEYS:
        p.pop(key)
    return parts


# Shown by: the arguments afterwards.
@_losses(
    "common: **= on an argument",
    "You write the powers into the array that you were given (N **= …), so "
    "the caller's sizes are gone. Make new arrays.",
)
def loss_in_place(N, D, p):
    A, B, E, alpha, beta = _five(p)
    if isinstance(N, np.ndarray) and N.dtype.kind == "f":
        N **= -alpha
        return E + A * N + B / D**beta
    return _loss(N, D, p)


# Shown by: a dict in another order.
@_losses(
    "plausible: p.values()",
    "You take the constants in the order of the dict. It may be any: take "
    "each by its name.",
)
def loss_by_order(N, D, p):
    return _loss(N, D, dict(zip(KEYS, p.values(), strict=True)))


# 7.3b compute_optimal


def _for_each(one):
    """An answer for one budget as an answer for arrays, too."""

    @functools.wraps(one)
    def answer(C, p):
        if not isinstance(C, np.ndarray):
            return one(C, p)
        pairs = [one(float(c), p) for c in C.flat]
        return tuple(
            np.array(part).reshape(C.shape)
            for part in zip(*pairs, strict=True)
        )

    return answer


@oracle("compute_optimal", evidence="scipy's minimum over ln N")
@_for_each
def optimal_scipy(C, p):
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda x: _loss(math.exp(x), C / (6 * math.exp(x)), p),
        bounds=(0, math.log(C)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    N = math.exp(found.x)
    return N, C / (6 * N)


@right("compute_optimal", evidence="K86 a search that narrows, by thirds")
@_for_each
def optimal_narrowed(C, p):
    def loss(x):
        return _loss(math.exp(x), C / (6 * math.exp(x)), p)

    N = math.exp(_narrowed(loss, 0, math.log(C)))
    return N, C / N / 6


@right("compute_optimal", evidence="K86 the derivative's zero by bisection")
@_for_each
def optimal_bisected(C, p):
    A, B, _, alpha, beta = _five(p)
    low, high = 0.0, math.log(C)
    for _ in range(60):
        x = (low + high) / 2
        D = C / 6 * math.exp(-x)
        falls = alpha * A * math.exp(-alpha * x) > beta * B * D**-beta
        low, high = (x, high) if falls else (low, x)
    return math.exp(low), C / 6 * math.exp(-low)


@right("compute_optimal", evidence="the closed form, D by itself")
def optimal_both_closed(C, p):
    A, B, _, alpha, beta = _five(p)
    a, b = beta / (alpha + beta), alpha / (alpha + beta)
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    return G * (C / 6) ** a, (C / 6) ** b / G


@right("compute_optimal", evidence="the closed form in logarithms, rounded N")
def optimal_logarithms(C, p):
    A, B, _, alpha, beta = _five(p)
    log_ratio = np.log(alpha / beta) + np.log(A) - np.log(B)
    log_N = (log_ratio + beta * np.log(np.asarray(C) / 6)) / (alpha + beta)
    N = np.round(np.exp(log_N))
    return N, C / (6 * N)


def _optima(evidence, hint):
    return wrong("compute_optimal", evidence=evidence, hint=hint)


def _split(C, a, G=1.0):
    """A pair that spends the budget, N growing with C to the power a."""
    N = G * (C / 6) ** a
    return N, C / (6 * N)


def _g(p):
    A, B, _, alpha, beta = _five(p)
    return (alpha * A / (beta * B)) ** (1 / (alpha + beta))


@_optima(
    "M376 common [V]",
    "The exponents are swapped: N grows with C to the power β/(α+β). The "
    "limit that falls more slowly is the one that more compute goes to.",
)
def optimal_exponents_swapped(C, p):
    return _split(C, p["alpha"] / (p["alpha"] + p["beta"]), _g(p))


@_optima(
    "M378 common",
    "G is upside down: it holds A above and B below, since a large A asks "
    "for a large model.",
)
def optimal_g_inverted(C, p):
    return _split(C, p["beta"] / (p["alpha"] + p["beta"]), 1 / _g(p))


@_optima(
    "M376 and M378 together: N and D exchanged",
    "You return (D, N). The pair is (N, D): parameters, then tokens.",
)
def optimal_order(C, p):
    return _best(C, p)[::-1]


@_optima(
    "curriculum ✂; M376's table: N = 4.1e9 at 1e21",
    "The factor 6 is missing: a parameter costs 6 FLOPs for each token, so "
    "6ND = C.",
)
def optimal_without_six(C, p):
    N, _ = _best(C, p, six=1)
    return N, C / N


# Shown by: 6ND, which is not C.
@_optima(
    "M380 common; the factor 6 in one place",
    "D is C/N: the factor 6, with which you found N, is missing there, so "
    "the budget is spent six times.",
)
def optimal_d_without_six(C, p):
    N, _ = _best(C, p)
    return N, C / N


@_optima(
    "curriculum ✂: the factor in one place only",
    "N is found without the factor 6, as if ND = C; only D is divided by it.",
)
def optimal_n_without_six(C, p):
    N, _ = _best(C, p, six=1)
    return N, C / (6 * N)


@_optima(
    "M349's kind: inference counted",
    "You take C for 2ND, the cost of a forward pass. Training takes 6ND.",
)
def optimal_two(C, p):
    N, _ = _best(C, p, six=2)
    return N, C / (2 * N)


@_optima(
    "M379 ai-engineering-from-scratch#57",
    "You take 20 tokens a parameter. That is a rule of thumb for some "
    "constants near one budget: solve for the constants that are given.",
)
def optimal_twenty(C, p):
    N = (C / 120) ** 0.5
    return N, C / (6 * N)


@_optima(
    "M379 happy-llm#142: a ratio of one",
    "You take N = D, the square root of C/6. That is best only when both "
    "limits have equal constants.",
)
def optimal_equal(C, p):
    return _split(C, 0.5)


@_optima(
    "common: G left out",
    "G is missing: you have the exponent of C, but not what stands before "
    "it, which is 1 only where αA = βB.",
)
def optimal_without_g(C, p):
    return _split(C, p["beta"] / (p["alpha"] + p["beta"]))


@_optima(
    "common: the derivative's factors forgotten",
    "G holds A/B without α and β: the derivative of A/N^α brings its exponent "
    "down.",
)
def optimal_terms_equal(C, p):
    A, B, _, alpha, beta = _five(p)
    G = (A / B) ** (1 / (alpha + beta))
    return _split(C, beta / (alpha + beta), G)


@_optima(
    "common: the root of G forgotten",
    "G lacks its exponent 1/(α+β): solve α·A/N^α = β·B/D^β for N to the end.",
)
def optimal_without_root(C, p):
    A, B, _, alpha, beta = _five(p)
    G = alpha * A / (beta * B)
    return _split(C, beta / (alpha + beta), G)


@_optima(
    "common: α and β crossed within G",
    "Within G, α and β are crossed: A keeps α, the exponent of its own term.",
)
def optimal_crossed(C, p):
    A, B, _, alpha, beta = _five(p)
    G = (beta * A / (alpha * B)) ** (1 / (alpha + beta))
    return _split(C, beta / (alpha + beta), G)


@_optima(
    "common: the paper's constants",
    "p is ignored: the printed constants stand in the code. Use p.",
)
def optimal_printed(C, p):
    return _best(C, ROUNDED)


@_optima(
    "Kaplan's exponent",
    "N grows with C to the power 0.73, the exponent of 2020. Take the one "
    "that follows from α and β.",
)
def optimal_kaplan(C, p):
    return _split(C, 0.73, (1e21 / 6) ** -0.28)


# Shown by: budgets at which no point of the grid is near enough.
@_optima(
    "ai-engineering-from-scratch: a grid of 200 sizes",
    "You return the best of a grid of sizes, which is up to several percent "
    "off. Narrow the search around the best point, or solve for it.",
)
@_for_each
def optimal_grid(C, p):
    N = np.geomspace(1e4, 1e16, 200) * 1.013
    N = float(N[np.argmin(_loss(N, C / (6 * N), p))])
    return N, C / (6 * N)


# Shown by: tiny and huge budgets.
@_optima(
    "common: a search between sizes that exist today",
    "Your search is limited to sizes from 10 million to a trillion, or to "
    "another such range, and for very small or large budgets it stops at the "
    "end.",
)
@_for_each
def optimal_limited(C, p):
    N = min(max(_best(C, p)[0], 1e7), 1e12)
    return N, C / (6 * N)


# Shown by: a huge budget, with exponents of no paper.
@_optima(
    "common: a search over ln N between 1e5 and 1e15",
    "Your search ends at 1e15 parameters, or at another such number. "
    "With other exponents the best model for a huge budget is larger: let "
    "the interval grow with C.",
)
@_for_each
def optimal_limited_above(C, p):
    N = min(_best(C, p)[0], 1e15)
    return N, C / (6 * N)


# Shown by: arrays.
@_optima(
    "common: a minimiser for one budget",
    "For an array of budgets it fails: your search, or a function such as "
    "float, int or math.exp, takes one number. Use the closed form with "
    "numpy, or loop over the array.",
)
def optimal_one_number(C, p):
    return _best(float(C), p)


# Shown by: an array with one budget.
@_optima(
    "common: np.squeeze(np.atleast_1d(...))",
    "An array with one budget comes back as numbers, for instance by squeeze "
    "or item. Only a number gives numbers: keep C's shape.",
)
def optimal_squeezed(C, p):
    N, D = map(np.squeeze, _best(np.atleast_1d(C), p))
    return (N, D) if N.ndim else (float(N), float(D))


# Shown by: an array of integers.
@_optima(
    "common: N = np.zeros_like(C), filled in a loop",
    "For an array of integers your results are integers, too, as zeros_like "
    "and empty_like make them. Give them dtype=float.",
)
def optimal_in_integers(C, p):
    N, D = _best(C, p)
    if isinstance(C, np.ndarray):
        return N.astype(C.dtype), D.astype(C.dtype)
    return N, D


# Shown by: arrays.
@_optima(
    "common: a list of pairs",
    "For an array of budgets you return a list of pairs. Two arrays are due, "
    "N and D.",
)
def optimal_pairs(C, p):
    N, D = _best(C, p)
    if isinstance(C, np.ndarray):
        return list(zip(N.flat, D.flat, strict=True))
    return N, D


# Shown by: arrays.
@_optima(
    "common: one array for both",
    "For an array of budgets you return one array. A pair of two arrays is "
    "due.",
)
def optimal_stacked(C, p):
    N, D = _best(C, p)
    return np.stack([N, D]) if isinstance(C, np.ndarray) else (N, D)


@_optima(
    "common: the third value",
    "You return the loss as a third value. The pair (N, D) is due.",
)
def optimal_with_loss(C, p):
    N, D = _best(C, p)
    return N, D, _loss(N, D, p)


@_optima(
    "common: N alone",
    "You return N alone. The pair (N, D) is due.",
)
def optimal_n_alone(C, p):
    return _best(C, p)[0]


# Shown by: the arguments afterwards.
@_optima(
    "common: C /= 6",
    "You divide the caller's array by 6 in place (C /= 6). Make a new one.",
)
def optimal_in_place(C, p):
    C /= 6
    return _best(6 * C, p)


# Shown by: 6ND, which is not C.
@_optima(
    "M380: numbers as they are printed",
    "D is rounded to two digits, so 6ND is no longer C.",
)
def optimal_rounded_tokens(C, p):
    N, D = _best(C, p)
    unit = 10 ** (np.floor(np.log10(D)) - 1)
    return N, np.round(D / unit) * unit


# Shown by: a dict in another order.
@_optima(
    "plausible: p.values()",
    "You take the constants in the order of the dict. It may be any: take "
    "each by its name.",
)
def optimal_by_order(C, p):
    return _best(C, dict(zip(KEYS, p.values(), strict=True)))


# Shown by: budgets that do not rise.
@_optima(
    "plausible: a search along sorted budgets",
    "You sort the budgets, so that N and D belong to others. Keep the order "
    "in which they came.",
)
def optimal_sorted(C, p):
    return _best(np.sort(C) if np.ndim(C) else C, p)


# 7.4 kaplan_loss


@oracle("kaplan_loss", evidence="logarithms; each law spelt out")
def kaplan_logarithms(N=None, D=None):
    size = 0.0 if N is None else math.exp(0.8 * math.log(8.8e13 / N))
    data = 0.0 if D is None else 5.4e13 / D
    if not size + data:
        raise ValueError("neither N nor D")
    return math.exp(0.095 * math.log(size + data))


@right("kaplan_loss", evidence="one formula, with infinity for None")
def kaplan_infinite(N=None, D=None):
    if N is None and D is None:
        raise ValueError("one of N and D is needed")
    N, D = (math.inf if each is None else each for each in (N, D))
    return ((8.8e13 / N) ** (0.076 / 0.095) + 5.4e13 / D) ** 0.095


@right("kaplan_loss", evidence="numpy numbers; a dictionary of cases")
def kaplan_cases(N=None, D=None):
    laws = {
        (True, False): lambda: np.float64(8.8e13 / N) ** 0.076,
        (False, True): lambda: np.power(5.4e13 / D, 0.095),
        (True, True): lambda: np.power(
            np.power(8.8e13 / N, 0.8) + 5.4e13 / D, 0.095
        ),
    }
    key = N is not None, D is not None
    if key not in laws:
        raise ValueError(key)
    return laws[key]()


@right("kaplan_loss", evidence="the single laws as limits of the joint one")
def kaplan_recursive(N=None, D=None):
    if N is None and D is None:
        raise ValueError("no size given")
    if D is None:
        return kaplan_recursive(N, 1e60)
    if N is None:
        return kaplan_recursive(1e60, D)
    return (
        torch.tensor(
            [(8.8e13 / N) ** 0.8, 5.4e13 / D], dtype=torch.float64
        ).sum()
        ** 0.095
    )


def _kaplan(joint, N_c=8.8e13, a_N=0.076, D_c=5.4e13, a_D=0.095):
    """An answer with the single laws, and the given joint one.

    joint: takes the loss by N and the loss by D, and N and D
    """

    def answer(N=None, D=None):
        if N is None and D is None:
            raise ValueError("neither")
        by_size = None if N is None else (N_c / N) ** a_N
        by_data = None if D is None else (D_c / D) ** a_D
        if by_size is None:
            return by_data
        if by_data is None:
            return by_size
        return joint(by_size, by_data, N, D)

    return answer


def _firsts(evidence, hint):
    return wrong("kaplan_loss", evidence=evidence, hint=hint)


@_firsts(
    "common: the single laws added",
    "With both you add the two single laws. The law that joins them has one "
    "bracket, and the outer exponent holds for all of it.",
)
def kaplan_sum(N=None, D=None):
    return _kaplan(lambda size, data, *_: size + data)(N, D)


@_firsts(
    "common: the single laws multiplied",
    "With both you multiply the two single laws. Use the law that joins them.",
)
def kaplan_product(N=None, D=None):
    return _kaplan(lambda size, data, *_: size * data)(N, D)


@_firsts(
    "common: the worse of the two",
    "With both you take the larger of the two single laws. The joint law is "
    "near to it where one limit rules, and above it where both matter.",
)
def kaplan_largest(N=None, D=None):
    return _kaplan(lambda size, data, *_: max(size, data))(N, D)


@_firsts(
    "hunt: N and D exchanged in the joint law",
    "In the joint law N and D have exchanged their places: the exponent in "
    "the bracket belongs to N, and the outer one is that of D.",
)
def kaplan_roles_exchanged(N=None, D=None):
    return _kaplan(
        lambda *a: (
            (8.8e13 / a[2] + (5.4e13 / a[3]) ** (0.095 / 0.076)) ** 0.076
        )
    )(N, D)


@_firsts(
    "hunt: each single law in the bracket",
    "In the joint law D_c/D has an exponent inside the bracket, too. The "
    "outer one is all it gets.",
)
def kaplan_exponent_on_d(N=None, D=None):
    return _kaplan(
        lambda *a: ((8.8e13 / a[2]) ** 0.8 + (5.4e13 / a[3]) ** 0.095) ** 0.095
    )(N, D)


@_firsts(
    "common: one argument ignored",
    "With both you return the law for N alone: D changes nothing.",
)
def kaplan_ignores_d(N=None, D=None):
    return _kaplan(lambda size, data, *_: size)(N, D)


@_firsts(
    "common: one argument ignored",
    "With both you return the law for D alone: N changes nothing.",
)
def kaplan_ignores_n(N=None, D=None):
    return _kaplan(lambda size, data, *_: data)(N, D)


@_firsts(
    "common: the inner exponent forgotten",
    "In the joint law the first summand lacks its exponent α_N/α_D: without "
    "it, endless data does not lead back to the law for N.",
)
def kaplan_no_inner_exponent(N=None, D=None):
    return _kaplan(lambda *a: (8.8e13 / a[2] + 5.4e13 / a[3]) ** 0.095)(N, D)


@_firsts(
    "common: the inner exponent upside down",
    "The inner exponent is upside down: α_N/α_D, times the outer α_D, makes "
    "α_N.",
)
def kaplan_inner_inverted(N=None, D=None):
    return _kaplan(
        lambda *a: ((8.8e13 / a[2]) ** 1.25 + 5.4e13 / a[3]) ** 0.095
    )(N, D)


@_firsts(
    "common: α_N inside",
    "The inner exponent is α_N, not α_N/α_D: then the outer power makes "
    "α_N·α_D of it.",
)
def kaplan_inner_alpha(N=None, D=None):
    return _kaplan(
        lambda *a: ((8.8e13 / a[2]) ** 0.076 + 5.4e13 / a[3]) ** 0.095
    )(N, D)


@_firsts(
    "common: the outer exponent forgotten",
    "The outer exponent of the joint law is missing.",
)
def kaplan_no_outer_exponent(N=None, D=None):
    return _kaplan(lambda *a: (8.8e13 / a[2]) ** 0.8 + 5.4e13 / a[3])(N, D)


@_firsts(
    "common: the outer exponent of the other law",
    "The outer exponent of the joint law is α_D, not α_N.",
)
def kaplan_outer_alpha_n(N=None, D=None):
    return _kaplan(
        lambda *a: ((8.8e13 / a[2]) ** 0.8 + 5.4e13 / a[3]) ** 0.076
    )(N, D)


@_firsts(
    "common: the inner exponent on the wrong summand",
    "The inner exponent stands at D's summand; it belongs to N's.",
)
def kaplan_inner_at_d(N=None, D=None):
    return _kaplan(
        lambda *a: (8.8e13 / a[2] + (5.4e13 / a[3]) ** 0.8) ** 0.095
    )(N, D)


@_firsts(
    "common: fractions upside down",
    "The fractions are upside down: your loss grows with N and D.",
)
def kaplan_inverted(N=None, D=None):
    return 1 / kaplan_logarithms(N, D)


@_firsts(
    "common: the exponents confused",
    "The exponents are swapped: α_N = 0.076 belongs to N, α_D = 0.095 to D.",
)
def kaplan_exponents_swapped(N=None, D=None):
    return _kaplan(
        lambda *a: ((8.8e13 / a[2]) ** 1.25 + 5.4e13 / a[3]) ** 0.076,
        a_N=0.095,
        a_D=0.076,
    )(N, D)


@_firsts(
    "common: the scales confused",
    "N_c and D_c are swapped: 8.8e13 belongs to N, 5.4e13 to D.",
)
def kaplan_scales_swapped(N=None, D=None):
    return _kaplan(
        lambda *a: ((5.4e13 / a[2]) ** 0.8 + 8.8e13 / a[3]) ** 0.095,
        N_c=5.4e13,
        D_c=8.8e13,
    )(N, D)


@_firsts(
    "common: Chinchilla's E",
    "You add E = 1.69. These laws have no irreducible loss.",
)
def kaplan_with_e(N=None, D=None):
    return 1.69 + kaplan_logarithms(N, D)


@_firsts(
    "common: the law of 2022",
    "These are Chinchilla's constants. The laws of 2020 have a form and "
    "constants of their own.",
)
def kaplan_chinchilla(N=None, D=None):
    if N is None and D is None:
        raise ValueError("neither")
    size = 0 if N is None else 406.4 / N**0.34
    return 1.69 + size + (0 if D is None else 410.7 / D**0.28)


# Shown by: both.
@_firsts(
    "the paper's own fit of the joint law; refused by the contract",
    "For both you use the constants that the paper fits to the joint law "
    "(α_D = 0.103). Here all three laws share the four constants of the "
    "task.",
)
def kaplan_table_two(N=None, D=None):
    return _kaplan(
        lambda *a: (
            ((6.4e13 / a[2]) ** (0.076 / 0.103) + 1.8e13 / a[3]) ** 0.103
        )
    )(N, D)


@_firsts(
    "common: bits",
    "The loss is divided by ln 2: that is bits. Nats are due.",
)
def kaplan_bits(N=None, D=None):
    return kaplan_logarithms(N, D) / math.log(2)


@_firsts(
    "common: sizes in billions",
    "You take N and D in billions. They are plain numbers.",
)
def kaplan_billions(N=None, D=None):
    N, D = (each and each / 1e9 for each in (N, D))
    return kaplan_logarithms(N, D)


@_firsts(
    "M368 reversed: embeddings taken off again",
    "You take embeddings off N (38,597,376 of them, as in GPT-2 small). N is "
    "without embeddings already.",
)
def kaplan_takes_embeddings_off(N=None, D=None):
    return kaplan_logarithms(N and max(N - 38_597_376, 1), D)


# Shown by: D alone.
@_firsts(
    "common: N expected always",
    "With D alone it fails or ignores D: N is None then. Tell the cases apart "
    "with `is None`.",
)
def kaplan_needs_n(N=None, D=None):
    if N is None and D is None:
        raise ValueError("neither")
    by_size = (8.8e13 / N) ** 0.8
    return (by_size + (0 if D is None else 5.4e13 / D)) ** 0.095


# Shown by: D alone.
@_firsts(
    "common: one name for both laws",
    "With D alone you use the law and the constants of N.",
)
def kaplan_one_law(N=None, D=None):
    if N is None:
        return kaplan_logarithms(D)
    return kaplan_logarithms(N, D)


# Shown by: neither.
@_firsts(
    "common: None returned",
    "Without N and D you return None. Raise a ValueError: a caller goes on "
    "calculating with what comes back.",
)
def kaplan_none(N=None, D=None):
    if N is None and D is None:
        return None
    return kaplan_logarithms(N, D)


# Shown by: neither.
@_firsts(
    "common: a number for nothing",
    "Without N and D you return a number. Raise a ValueError.",
)
def kaplan_zero(N=None, D=None):
    if N is None and D is None:
        return 0.0
    return kaplan_logarithms(N, D)


# Shown by: neither.
@_firsts(
    "common: another exception",
    "Without N and D another exception comes up, out of a calculation with "
    "None. Look first, and raise a ValueError.",
)
def kaplan_type_error(N=None, D=None):
    if N is None and D is None:
        return (5.4e13 / D) ** 0.095
    return kaplan_logarithms(N, D)


# Shown by: neither.
@_firsts(
    "common: assert",
    "You use assert, which raises an AssertionError and vanishes under "
    "python -O. Raise a ValueError.",
)
def kaplan_assert(N=None, D=None):
    assert N is not None or D is not None
    return kaplan_logarithms(N, D)


# 7.5 isoflop_fit


def _budgets(runs):
    """{C: (sizes, losses)}, rising in C and in N."""
    found = {}
    for run in sorted(runs, key=lambda run: (run["C"], run["N"])):
        found.setdefault(run["C"], []).append((run["N"], run["L"]))
    return {C: np.array(own).T for C, own in found.items()}


def _vertex(x, y):
    """Where the least-squares parabola is lowest."""
    middle = x.mean()
    a, b, _ = np.polyfit(x - middle, y, 2)
    return middle - b / (2 * a)


def _line(x, y):
    """Slope and value at 0 of the least-squares line."""
    x, y = np.asarray(x), np.asarray(y)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (
        (x - x.mean()) ** 2
    ).sum()
    return slope, y.mean() - slope * x.mean()


def _valleys(budgets, best):
    """The result for given best sizes."""
    C = np.array(list(budgets))
    slope, start = _line(np.log(C), np.log(best))
    return {
        "C": C,
        "N_opt": np.asarray(best),
        "exponent": slope,
        "coefficient": np.exp(start),
    }


def _by_vertices(runs, size=np.log, loss=lambda y: y, back=np.exp):
    """The right answer, with other scales of its axes."""
    budgets = _budgets(runs)
    best = [back(_vertex(size(N), loss(L))) for N, L in budgets.values()]
    return _valleys(budgets, best)


@oracle(
    "isoflop_fit", evidence="normal equations about the mean, in fractions"
)
def isoflop_normal(runs):
    from fractions import Fraction

    def fitted(x, y, degree):
        """Coefficients about x's mean, lowest first, and that mean."""
        middle = sum(map(Fraction, x)) / len(x)
        x = [Fraction(each) - middle for each in x]
        rows = [
            [sum(each ** (i + j) for each in x) for j in range(degree + 1)]
            + [sum(Fraction(b) * a**i for a, b in zip(x, y, strict=True))]
            for i in range(degree + 1)
        ]
        for i, row in enumerate(rows):
            rows[i] = [part / row[i] for part in row]
            for j, other in enumerate(rows):
                if j != i:
                    rows[j] = [
                        b - other[i] * a
                        for a, b in zip(rows[i], other, strict=True)
                    ]
        return [row[-1] for row in rows], middle

    budgets, tops = _budgets(runs), []
    for N, L in budgets.values():
        (_, b, a), middle = fitted(np.log(N), L, 2)
        tops.append(float(middle - b / (2 * a)))
    C = list(budgets)
    (height, slope), middle = fitted(np.log(C), tops, 1)
    return {
        "C": C,
        "N_opt": [math.exp(top) for top in tops],
        "exponent": float(slope),
        "coefficient": math.exp(height - slope * middle),
    }


@right("isoflop_fit", evidence="logarithms to base 10, numpy.polynomial")
def isoflop_base_ten(runs):
    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        valley = np.polynomial.Polynomial.fit(np.log10(N), L, 2)
        best.append(10 ** valley.deriv().roots()[0])
    C = np.array(list(budgets))
    line = np.polynomial.Polynomial.fit(np.log10(C), np.log10(best), 1)
    start, slope = line.convert().coef
    return {
        "C": C.tolist(),
        "N_opt": best,
        "exponent": slope,
        "coefficient": 10**start,
    }


@right("isoflop_fit", evidence="torch's least squares; tensors come back")
def isoflop_torch(runs):
    budgets = _budgets(runs)
    tops = []
    for N, L in budgets.values():
        x = torch.from_numpy(np.log(N))
        X = torch.stack([x**2, x, torch.ones_like(x)], 1)
        y = torch.from_numpy(L.copy())[:, None]
        a, b, _ = torch.linalg.lstsq(X, y).solution[:, 0]
        tops.append(-b / (2 * a))
    C = torch.tensor(list(budgets), dtype=torch.float64)
    X = torch.stack([C.log(), torch.ones_like(C)], 1)
    line = torch.linalg.lstsq(X, torch.stack(tops)[:, None]).solution
    return {
        "C": C,
        "N_opt": torch.stack(tops).exp(),
        "exponent": line[0, 0],
        "coefficient": line[1, 0].exp(),
    }


@right("isoflop_fit", evidence="scipy's curve_fit of vertex and curvature")
def isoflop_curve_fit(runs):
    from scipy.optimize import curve_fit

    def valley(x, top, steep, depth):
        return depth + steep * (x - top) ** 2

    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        x = np.log(N)
        a, b, c = np.polyfit(x, L, 2)
        start = [-b / (2 * a) + 0.1, 1.1 * a, c - b * b / (4 * a)]
        best.append(curve_fit(valley, x, L, start, xtol=1e-12)[0][0])
    return _valleys(budgets, np.exp(best))


@right("isoflop_fit", evidence="numpy.unique and masks over arrays")
def isoflop_unique(runs):
    C, N, L = np.array([[run[key] for key in "CNL"] for run in runs]).T
    budgets, which = np.unique(C, return_inverse=True)
    tops = np.array(
        [
            _vertex(np.log(N[which == i]), L[which == i])
            for i in range(len(budgets))
        ]
    )
    exponent, start = np.polyfit(np.log(budgets), tops, 1)
    return dict(
        coefficient=float(np.exp(start)),
        exponent=float(exponent),
        N_opt=np.exp(tops),
        C=budgets,
    )


def _fits(evidence, hint):
    return wrong("isoflop_fit", evidence=evidence, hint=hint)


@_fits(
    "M375 common",
    "The parabola is fitted in N, where a valley is far from symmetric. Fit "
    "it in ln N.",
)
def isoflop_in_n(runs):
    return _by_vertices(runs, size=lambda N: N, back=abs)


@_fits(
    "M375 common",
    "N_opt is the best size that was tried. The valley's lowest point lies "
    "between the runs: fit a parabola and take its vertex.",
)
def isoflop_argmin(runs):
    budgets = _budgets(runs)
    return _valleys(budgets, [N[L.argmin()] for N, L in budgets.values()])


@_fits(
    "common: the logarithm of both axes",
    "You fit the parabola to ln L. The contract asks for L itself; the vertex "
    "moves a little.",
)
def isoflop_log_loss(runs):
    return _by_vertices(runs, loss=np.log)


@_fits(
    "common: the three lowest points",
    "You lay the parabola through the three lowest runs. Fit it to all runs "
    "of the budget by least squares, so that one run's noise matters less.",
)
def isoflop_lowest_three(runs):
    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        low = np.sort(np.argsort(L)[:3])
        best.append(np.exp(_vertex(np.log(N[low]), L[low])))
    return _valleys(budgets, best)


@_fits(
    "common: the lowest run and its neighbours",
    "You lay the parabola through the lowest run and its two neighbours. Fit "
    "it to all runs of the budget by least squares, so that one run's noise "
    "matters less.",
)
def isoflop_neighbours(runs):
    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        sizes = np.unique(N)
        losses = np.array([L[N == size].min() for size in sizes])
        at = int(losses.argmin().clip(1, len(sizes) - 2))
        near = slice(at - 1, at + 2)
        best.append(np.exp(_vertex(np.log(sizes[near]), losses[near])))
    return _valleys(budgets, best)


@_fits(
    "common: a higher degree",
    "You fit a polynomial of degree 3. The contract asks for a parabola, "
    "which has one vertex.",
)
def isoflop_cubic(runs):
    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        x = np.log(N)
        middle = x.mean()
        degree = min(3, len(x) - 1)
        slope = np.polynomial.Polynomial.fit(x - middle, L, degree).deriv()
        roots = slope.roots()
        real = roots.real[np.argmin(abs(roots))]
        best.append(np.exp(middle + real))
    return _valleys(budgets, best)


@_fits(
    "common: weights",
    "You weight the runs (the lowest ones more). All runs of a budget have "
    "the same weight.",
)
def isoflop_weighted(runs):
    budgets, best = _budgets(runs), []
    for N, L in budgets.values():
        x = np.log(N)
        middle = x.mean()
        w = 1 / (L - L.min() + 0.1)
        a, b, _ = np.polyfit(x - middle, L, 2, w=w)
        best.append(np.exp(middle - b / (2 * a)))
    return _valleys(budgets, best)


@_fits(
    "common: sign of the vertex",
    "The sign of the vertex is lost: the derivative 2ax + b is 0 at −b/2a.",
)
def isoflop_sign(runs):
    return _by_vertices(runs, back=lambda x: np.exp(-x))


@_fits(
    "common: the 2 of the derivative",
    "Your vertex is −b/a: the derivative of a·x² is 2a·x.",
)
def isoflop_no_half(runs):
    return _by_vertices(runs, back=lambda x: np.exp(2 * x))


@_fits(
    "common: natural and decimal logarithms mixed",
    "You fit in ln N and return by 10 to the power: use the exponential "
    "that belongs to your logarithm.",
)
def isoflop_mixed_bases(runs):
    return _by_vertices(runs, back=lambda x: 10.0**x)


@_fits(
    "common: the way back forgotten",
    "N_opt holds logarithms. Return the sizes themselves.",
)
def isoflop_log_n_opt(runs):
    out = _by_vertices(runs)
    return out | {"N_opt": np.log(out["N_opt"])}


# Shown by: one-sided budgets.
@_fits(
    "common: clipped to the runs",
    "Where the vertex lies outside of the runs you return the nearest run. "
    "Take the vertex wherever it lies; that it is outside tells you to train "
    "other sizes.",
)
def isoflop_clipped(runs):
    budgets = _budgets(runs)
    best = [
        np.exp(np.clip(_vertex(np.log(N), L), *np.log([N[0], N[-1]])))
        for N, L in budgets.values()
    ]
    return _valleys(budgets, best)


# Shown by: one-sided budgets.
@_fits(
    "common: budgets left out",
    "You leave out budgets whose vertex lies outside of their runs. All "
    "budgets count.",
)
def isoflop_drops_one_sided(runs):
    budgets = {
        C: (N, L)
        for C, (N, L) in _budgets(runs).items()
        if N[0] <= np.exp(_vertex(np.log(N), L)) <= N[-1]
    }
    if len(budgets) < 2:
        raise ValueError("too few budgets")
    best = [np.exp(_vertex(np.log(N), L)) for N, L in budgets.values()]
    return _valleys(budgets, best)


@_fits(
    "common: one parabola for all",
    "You fit one parabola to the runs of all budgets. Each budget has a "
    "valley of its own.",
)
def isoflop_one_valley(runs):
    budgets = _budgets(runs)
    N, L = np.concatenate(list(budgets.values()), axis=1)
    best = np.exp(_vertex(np.log(N), L))
    factors = np.linspace(0.99, 1.01, len(budgets))
    return _valleys(budgets, best * factors)


# Shown by: runs in any order.
@_fits(
    "common: itertools.groupby",
    "Runs of one budget that do not follow each other become several budgets. "
    "groupby joins neighbours only: sort first, or collect in a dict.",
)
def isoflop_groupby(runs):
    pieces = [
        (C, list(own))
        for C, own in itertools.groupby(runs, key=lambda run: run["C"])
    ]
    best = []
    for _, own in pieces:
        x = np.log([run["N"] for run in own])
        y = np.array([run["L"] for run in own])
        best.append(np.exp(_vertex(x, y) if len(x) > 2 else x[y.argmin()]))
    return _valleys([C for C, _ in pieces], best)


# Shown by: runs in any order.
@_fits(
    "common: the order of the runs",
    "The budgets come in the order of the runs. Sort them, N_opt with them.",
)
def isoflop_order_of_runs(runs):
    seen = list(dict.fromkeys(run["C"] for run in runs))
    budgets = _budgets(runs)
    budgets = {C: budgets[C] for C in seen}
    best = [np.exp(_vertex(np.log(N), L)) for N, L in budgets.values()]
    return _valleys(budgets, best)


# Shown by: runs in any order.
@_fits(
    "common: one array sorted",
    "You sort the budgets, but the sizes keep the order of the runs: the two "
    "no longer belong together.",
)
def isoflop_sorts_budgets_only(runs):
    out = isoflop_order_of_runs(runs)
    return _valleys(np.sort(out["C"]), out["N_opt"])


# Shown by: budgets with different numbers of runs.
@_fits(
    "common: reshape",
    "You cut the runs into rows of equal length. Budgets may have different "
    "numbers of runs: collect by C.",
)
def isoflop_reshape(runs):
    runs = sorted(runs, key=lambda run: (run["C"], run["N"]))
    budgets = sorted({run["C"] for run in runs})
    N, L = (
        np.array([run[key] for run in runs]).reshape(len(budgets), -1)
        for key in "NL"
    )
    best = [np.exp(_vertex(np.log(n), y)) for n, y in zip(N, L, strict=True)]
    return _valleys(budgets, best)


# Shown by: budgets that are near to each other.
@_fits(
    "common: budgets rounded to join runs",
    "You round C to one digit before you collect the runs, and two budgets "
    "become one. Runs of one budget have exactly the same C.",
)
def isoflop_rounds_budgets(runs):
    return _by_vertices(
        [run | {"C": float(f"{run['C']:.0e}")} for run in runs]
    )


# Shown by: two runs of the same size and budget.
@_fits(
    "common: a dict by size",
    "Of two runs with the same C and N you keep one. Both count in the fit.",
)
def isoflop_one_run_a_size(runs):
    kept = {(run["C"], run["N"]): run for run in runs}
    return _by_vertices(list(kept.values()))


# Shown by: two runs of the same size and budget.
@_fits(
    "common: runs of one size averaged first",
    "Runs with the same C and N become one point (their mean, or one of "
    "them), which then counts as much as a single run. Every run counts by "
    "itself.",
)
def isoflop_averages_sizes(runs):
    places = {}
    for run in runs:
        places.setdefault((run["C"], run["N"]), []).append(run["L"])
    return _by_vertices(
        [
            {"C": C, "N": N, "L": float(np.mean(losses))}
            for (C, N), losses in places.items()
        ]
    )


@_fits(
    "common: one entry a run",
    "C and N_opt have an entry for each run. One for each budget is due.",
)
def isoflop_entry_a_run(runs):
    out = _by_vertices(runs)
    count = [len(N) for N, _ in _budgets(runs).values()]
    return out | {
        "C": np.repeat(out["C"], count),
        "N_opt": np.repeat(out["N_opt"], count),
    }


def _power(runs, exponent=None, coefficient=None):
    """The right sizes, with another power law through them."""
    out = _by_vertices(runs)
    if exponent is not None:
        out["exponent"] = exponent(out)
    if coefficient is not None:
        out["coefficient"] = coefficient(out)
    return out


@_fits(
    "M367's kind: an assumed exponent",
    "The exponent is 0.5, whatever the runs say. Fit it.",
)
def isoflop_half(runs):
    return _power(
        runs,
        lambda out: 0.5,
        lambda out: np.exp(np.mean(np.log(out["N_opt"] / out["C"] ** 0.5))),
    )


# Shown by: sizes that follow no exact power law.
@_fits(
    "M366's kind: the power law fitted in linear space",
    "You fit the power law to N_opt itself, so that only the largest budget "
    "counts. Fit a line to the logarithms.",
)
def isoflop_linear_space(runs):
    out = _by_vertices(runs)
    x, n = np.log(out["C"]), out["N_opt"]
    slope, start = _line(x, np.log(n))
    for _ in range(20):  # Gauss-Newton on the sizes
        guess = np.exp(start + slope * x)
        X = np.stack([guess, guess * x], 1) / n.max()
        step = np.linalg.lstsq(X, (n - guess) / n.max(), rcond=None)[0]
        start, slope = start + step[0], slope + step[1]
    return out | {"exponent": slope, "coefficient": np.exp(start)}


# Shown by: sizes that follow no exact power law.
@_fits(
    "common: the two ends",
    "The exponent comes from the smallest and the largest budget alone. Fit "
    "the line to all budgets.",
)
def isoflop_end_points(runs):
    out = _by_vertices(runs)
    x, y = np.log(out["C"]), np.log(out["N_opt"])
    slope = (y[-1] - y[0]) / (x[-1] - x[0])
    return out | {
        "exponent": slope,
        "coefficient": np.exp(y[0] - slope * x[0]),
    }


# Shown by: budgets with different numbers of runs.
@_fits(
    "common: a point for each run",
    "A budget with many runs counts more often in your line. Each budget is "
    "one point.",
)
def isoflop_line_by_runs(runs):
    out = _by_vertices(runs)
    count = [len(N) for N, _ in _budgets(runs).values()]
    x, y = (np.repeat(np.log(out[key]), count) for key in ("C", "N_opt"))
    slope, start = _line(x, y)
    return out | {"exponent": slope, "coefficient": np.exp(start)}


@_fits(
    "common: the line the other way round",
    "The line gives ln C as a function of ln N_opt, so the exponent is upside "
    "down.",
)
def isoflop_line_reversed(runs):
    out = _by_vertices(runs)
    slope, start = _line(np.log(out["N_opt"]), np.log(out["C"]))
    return out | {"exponent": slope, "coefficient": np.exp(start)}


# Shown by: sizes that follow no exact power law.
@_fits(
    "common: the reversed line's slope, inverted",
    "You fit ln C as a function of ln N_opt and invert the line. With points "
    "that are not exactly on a line that is another fit: N_opt is what is to "
    "be predicted.",
)
def isoflop_line_inverted(runs):
    out = _by_vertices(runs)
    slope, start = _line(np.log(out["N_opt"]), np.log(out["C"]))
    return out | {
        "exponent": 1 / slope,
        "coefficient": np.exp(-start / slope),
    }


@_fits(
    "common: a line through the origin",
    "Your line goes through the origin: it has no intercept, so there is no "
    "coefficient.",
)
def isoflop_through_origin(runs):
    out = _by_vertices(runs)
    x, y = np.log(out["C"]), np.log(out["N_opt"])
    return out | {"exponent": (x @ y) / (x @ x), "coefficient": 1.0}


@_fits(
    "common: the coefficient's logarithm",
    "coefficient is the line's intercept, a logarithm. Take it out of there.",
)
def isoflop_log_coefficient(runs):
    return _power(runs, None, lambda out: np.log(out["coefficient"]))


@_fits(
    "common: bases mixed in the intercept",
    "coefficient is 10 to the power of an intercept in natural logarithms.",
)
def isoflop_coefficient_base(runs):
    return _power(runs, None, lambda out: 10.0 ** np.log(out["coefficient"]))


@_fits(
    "common: exponent and intercept exchanged",
    "Exponent and coefficient are exchanged: polyfit gives the slope first.",
)
def isoflop_exchanged(runs):
    out = _by_vertices(runs)
    return out | {
        "exponent": np.log(out["coefficient"]),
        "coefficient": np.exp(out["exponent"]),
    }


@_fits(
    "common: tokens in place of parameters",
    "The exponent is that of the tokens, 1 minus the one of N.",
)
def isoflop_of_tokens(runs):
    out = _by_vertices(runs)
    return _valleys(out["C"], out["C"] / (6 * out["N_opt"])) | {
        "N_opt": out["N_opt"]
    }


@_fits(
    "common: per FLOP of 6",
    "coefficient belongs to (C/6)^exponent. Here the power is that of C "
    "itself.",
)
def isoflop_sixth(runs):
    return _power(
        runs, None, lambda out: out["coefficient"] * 6 ** out["exponent"]
    )


# Shown by: sizes that follow no exact power law.
@_fits(
    "common: the coefficient from one point",
    "The coefficient comes from the first budget alone. Take the line's "
    "intercept.",
)
def isoflop_coefficient_first(runs):
    return _power(
        runs,
        None,
        lambda out: out["N_opt"][0] / out["C"][0] ** out["exponent"],
    )


@_fits(
    "common: a pair",
    "You return exponent and coefficient alone. A dict with four keys is due.",
)
def isoflop_pair(runs):
    out = _by_vertices(runs)
    return out["exponent"], out["coefficient"]


@_fits(
    "common: other names",
    "The keys are not those of the contract: C, N_opt, exponent, coefficient.",
)
def isoflop_other_keys(runs):
    out = _by_vertices(runs)
    return {"a": out["exponent"], "k": out["coefficient"], **out}


# Shown by: the arguments afterwards.
@_fits(
    "common: list.sort on an argument",
    "You sort the caller's list in place. Use sorted.",
)
def isoflop_sorts_argument(runs):
    runs.sort(key=lambda run: (run["C"], run["N"]))
    return _by_vertices(runs)


# Shown by: the arguments afterwards.
@_fits(
    "common: logarithms written into the runs",
    "You write into the caller's runs. Make new lists.",
)
def isoflop_writes_into_runs(runs):
    out = _by_vertices(runs)
    for run in runs:
        run["log_N"] = math.log(run["N"])
    return out


# Shown by: a run that is there twice.
@_fits(
    "plausible: a set of runs",
    "Equal runs count once, as in a set. All runs count.",
)
def isoflop_set_of_runs(runs):
    kept = {tuple(run.items()): run for run in runs}
    return _by_vertices(list(kept.values()))


@_fits(
    "common: bases mixed in the intercept, the other way",
    "coefficient is e to the power of an intercept in decimal logarithms.",
)
def isoflop_coefficient_e(runs):
    return _power(runs, None, lambda out: np.exp(np.log10(out["coefficient"])))


# 7.6 fit_chinchilla


def _start(N, D, L, alpha, beta):
    """(a, b, e, alpha, beta): for given exponents the loss is linear."""
    terms = np.stack([N**-alpha, D**-beta, np.ones_like(L)], 1)
    best = np.linalg.lstsq(terms / L[:, None], np.ones_like(L), rcond=None)[0]
    return np.array([*np.log(best.clip(1e-3)), alpha, beta])


def _law(N, D, L):
    """Residuals of ln L and their derivatives, as a function of a point."""
    x, y, z = np.log(N), np.log(D), np.log(L)

    def look(point):
        a, b, e, alpha, beta = point
        parts = np.stack([a - alpha * x, b - beta * y, e + 0 * x])
        total = np.logaddexp.reduce(parts)
        share = np.exp(parts - total)
        slopes = [*share, -x * share[0], -y * share[1]]
        return total - z, np.stack(slopes, 1)

    return look


def _descended(look, point, delta, steps=40):
    """Damped Gauss-Newton steps on a sum of Huber losses."""

    def total(r):
        size = np.minimum(abs(r), delta)
        return (size * (abs(r) - size / 2)).sum()

    damping, (r, J) = 1e-3, look(point)
    for _ in range(steps):
        weights = np.minimum(1, delta / (abs(r) + 1e-300))
        H, g = (J.T * weights) @ J, (J.T * weights) @ r
        H[np.diag_indices(len(g))] *= 1 + damping
        H[np.diag_indices(len(g))] += 1e-15
        step = np.linalg.solve(H, g)
        with np.errstate(all="ignore"):
            tried, slopes = look(point - step)
        if total(tried) < total(r):
            point, r, J, damping = point - step, tried, slopes, damping / 3
            if abs(step).max() < 1e-7:
                break
        else:
            damping *= 4
        if damping > 1e8:
            break
    return point, total(r)


def _constants(point):
    point = np.asarray(point)
    five = np.concatenate([np.exp(point[:3]), point[3:]]).tolist()
    return dict(zip(KEYS, five, strict=True))


@functools.lru_cache(maxsize=64)
def _remembered(delta, *data):
    N, D, L = (np.frombuffer(each) for each in data)
    look = _law(N, D, L)
    ends = [
        _descended(look, _start(N, D, L, *exponents), delta)
        for exponents in ((0.3, 0.45), (0.45, 0.3))
    ]
    return min(ends, key=lambda end: end[1])[0]


def _point(N, D, L, delta=1e-3):
    """The minimum (a, b, e, alpha, beta); many mistakes come after it."""
    return _remembered(delta, *(each.tobytes() for each in (N, D, L))).copy()


@oracle("fit_chinchilla", evidence="scipy's least_squares with a Huber loss")
def fit_scipy(N, D, L, delta=1e-3):
    from scipy.optimize import least_squares

    look = _law(N, D, L)
    ends = [
        least_squares(
            lambda point: look(point)[0],
            _start(N, D, L, *exponents),
            lambda point: look(point)[1],
            loss="huber",
            f_scale=delta,
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
        )
        for exponents in itertools.product((0.3, 0.45), repeat=2)
    ]
    return _constants(min(ends, key=lambda end: end.cost).x)


@right("fit_chinchilla", evidence="the paper's way: BFGS from a grid")
def fit_bfgs(N, D, L, delta=1e-3):
    from scipy.optimize import minimize

    look = _law(N, D, L)

    def total(point):
        r, J = look(point)
        size = np.minimum(abs(r), delta)
        # In units of delta: or the search takes small slopes for none.
        return (size * (abs(r) - size / 2)).sum() / delta, (
            np.clip(r, -delta, delta) @ J / delta
        )

    grid = itertools.product((6,), (6,), (0.5,), (0.3, 0.5), (0.3, 0.5))
    ends = [
        minimize(total, start, jac=True, method="BFGS", options={"gtol": 1e-9})
        for start in grid
    ]
    return _constants(min(ends, key=lambda end: end.fun).x)


@right("fit_chinchilla", evidence="torch's LBFGS, all starts as one batch")
def fit_lbfgs(N, D, L, delta=1e-3):
    x, y, z = (torch.from_numpy(np.log(each)) for each in (N, D, L))
    starts = [_start(N, D, L, *exponents) for exponents in ((0.4, 0.4),)]
    point = torch.tensor(np.array(starts)).T.contiguous().requires_grad_()

    def totals():
        a, b, e, alpha, beta = point[:, :, None]
        parts = a - alpha * x, b - beta * y, (e + 0 * x)
        r = torch.logsumexp(torch.stack(parts), 0) - z
        zero = torch.zeros_like(r)
        loss = torch.nn.functional.huber_loss
        return loss(r, zero, reduction="none", delta=delta).sum(1) / delta

    search = torch.optim.LBFGS(
        [point],
        max_iter=100,
        history_size=30,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure():
        search.zero_grad()
        total = totals().sum()
        total.backward()
        return total

    search.step(closure)
    best = point.detach()[:, totals().argmin()]
    return _constants(best.numpy())


@right("fit_chinchilla", evidence="one start, default tolerances, as told")
def fit_default_tolerances(N, D, L, delta=1e-3):
    from scipy.optimize import minimize

    look = _law(N, D, L)

    def total(point):
        r, J = look(point)
        size = np.minimum(abs(r), delta)
        slopes = np.clip(r, -delta, delta) @ J
        return 1e4 * (size * (abs(r) - size / 2)).sum(), 1e4 * slopes

    start = [5.0, 5.0, 0.5, 0.4, 0.4]
    return _constants(minimize(total, start, jac=True, method="L-BFGS-B").x)


@right("fit_chinchilla", evidence="relative errors: nearly those of ln L")
def fit_relative(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law(point)
        return np.expm1(r), np.exp(r)[:, None] * J

    return _constants(_descended(look, _point(N, D, L, delta), delta)[0])


@right("fit_chinchilla", evidence="starts drawn anew in each call")
def fit_random_starts(N, D, L, delta=1e-3):
    look = _law(N, D, L)
    ends = [
        _descended(look, _start(N, D, L, *exponents), delta, 80)
        for exponents in np.random.default_rng().uniform(0.2, 0.6, (6, 2))
    ]
    return _constants(min(ends, key=lambda end: end[1])[0])


@right("fit_chinchilla", evidence="numpy numbers in another order")
def fit_other_order(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return {key: np.float64(found[key]) for key in reversed(KEYS)}


def _searches(evidence, hint):
    return wrong("fit_chinchilla", evidence=evidence, hint=hint)


# Shown by: data with broken runs.
@_searches(
    "M369 common [V]; curriculum: Huber",
    "You minimise squares, so that three broken runs out of 36 decide. Use "
    "the Huber loss of the residuals of ln L.",
)
def fit_squares(N, D, L, delta=1e-3):
    return _constants(_point(N, D, L, math.inf))


# Shown by: data with broken runs.
@_searches(
    "M366 common [V]",
    "Broken runs decide, as they do where the squares of L itself are "
    "minimised. The sum of the contract holds Huber losses of the residuals "
    "of ln L, and all five constants move until it is smallest.",
)
def fit_squares_of_loss(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law(point)
        predicted = L * np.exp(r)
        return predicted - L, predicted[:, None] * J

    return _constants(_descended(look, _point(N, D, L, math.inf), math.inf)[0])


# Shown by: a large delta.
@_searches(
    "M366's kind: Huber's loss of L itself",
    "Your residuals are those of L, so that a large loss counts more than a "
    "small one that is off by as many percent. Take residuals of ln L.",
)
def fit_huber_of_loss(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law(point)
        predicted = L * np.exp(r)
        return predicted - L, predicted[:, None] * J

    return _constants(_descended(look, _point(N, D, L, delta), delta)[0])


# Shown by: data with broken runs.
@_searches(
    "common: a grid of exponents with least squares inside",
    "You choose the exponents by the sum of Huber losses, but A, B and E for "
    "each pair of them by least squares, where broken runs decide. All five "
    "have to make the one sum smallest: go on from there.",
)
def fit_inner_squares(N, D, L, delta=1e-3):
    look = _law(N, D, L)

    def total(point):
        r, _ = look(point)
        size = np.minimum(abs(r), delta)
        return (size * (abs(r) - size / 2)).sum()

    alpha, beta, steps = 0.4, 0.4, np.linspace(-0.2, 0.2, 9)
    for _ in range(6):
        grid = itertools.product(alpha + steps, beta + steps)
        best = min((_start(N, D, L, *pair) for pair in grid), key=total)
        alpha, beta, steps = best[3], best[4], steps / 3
    return _constants(best)


# Shown by: a large delta.
@_searches(
    "common: an argument ignored",
    "delta is ignored: 0.001 stands in the code. Use the argument.",
)
def fit_delta_ignored(N, D, L, delta=1e-3):
    return _constants(_point(N, D, L))


# Shown by: a large delta.
@_searches(
    "common: runs removed by hand",
    "You remove the runs that look wrong and fit the rest. The sum of the "
    "contract has all runs in it: how much a broken one counts is for delta "
    "to say.",
)
def fit_drops_runs(N, D, L, delta=1e-3):
    r, _ = _law(N, D, L)(_point(N, D, L))
    kept = abs(r) < 0.05
    return _constants(_point(N[kept], D[kept], L[kept], math.inf))


@_searches(
    "M367 common [V]",
    "E is missing: without the part that no model can learn, the exponents "
    "come out far too small, since the terms have to make up for it.",
)
def fit_without_e(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law(np.insert(point, 2, -50.0))
        return r, np.delete(J, 2, 1)

    point = np.array([1.5, 1.5, 0.1, 0.1])
    point = np.insert(_descended(look, point, delta)[0], 2, 0.0)
    return _constants(point) | {"E": 0.0}


@_searches(
    "M367: a straight line in log-log",
    "You fit a plane to ln L over ln N and ln D, which is one product of "
    "powers. The law is a sum of three terms.",
)
def fit_plane(N, D, L, delta=1e-3):
    X = np.stack([np.ones_like(L), -np.log(N), -np.log(D)], 1)
    a, alpha, beta = np.linalg.lstsq(X, np.log(L), rcond=None)[0]
    return dict(A=math.exp(a), B=1.0, E=0.0, alpha=alpha, beta=beta)


@_searches(
    "curriculum: a paper's constants fail",
    "You return the printed constants, whatever the data. These data have "
    "others: fit them.",
)
def fit_printed(N, D, L, delta=1e-3):
    return dict(ROUNDED)


@_searches(
    "common: the constants of the replication",
    "You return the constants of the replication, whatever the data. These "
    "data have others: fit them.",
)
def fit_replicated(N, D, L, delta=1e-3):
    return dict(A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658)


@_searches(
    "M371 OLMo-core#554, bigcode-analysis#35 [V]",
    "You start from one point, from which no way leads to the minimum: with "
    "exponents of 1 both terms vanish beside E, and so do their derivatives. "
    "Try many starts and keep the best end.",
)
def fit_one_start(N, D, L, delta=1e-3):
    start = np.array([0.0, 0.0, 0.5, 1.0, 1.0])
    return _constants(_descended(_law(N, D, L), start, delta, 12)[0])


@_searches(
    "M371 [V]: the mean over starts",
    "You average over the ends of all starts. Most of them are no minimum: "
    "keep the one with the smallest sum.",
)
def fit_average(N, D, L, delta=1e-3):
    start = np.array([0.0, 0.0, 0.5, 1.0, 1.0])
    stuck = _descended(_law(N, D, L), start, delta, 12)[0]
    return _constants((_point(N, D, L, delta) + stuck) / 2)


@_searches(
    "M371's kind: a grid and no search",
    "The sum of your constants can still be made smaller: they are the best "
    "point of a grid, or the end of a search that took wrong slopes or "
    "stopped too soon. Go on until the sum no longer falls.",
)
def fit_grid(N, D, L, delta=1e-3):
    look, best = _law(N, D, L), None
    for exponents in itertools.product((0.2, 0.4, 0.6), repeat=2):
        point = _start(N, D, L, *exponents)
        total = abs(look(point)[0]).sum()
        if best is None or total < best[0]:
            best = total, point
    return _constants(best[1])


@_searches(
    "M371's kind: too few steps",
    "Your search ends before it arrives: after a few steps the sum is still "
    "far from its smallest value. Give it more steps, or a finer tolerance.",
)
def fit_few_steps(N, D, L, delta=1e-3):
    start = np.array([2.0, 2.0, 0.0, 0.15, 0.15])
    return _constants(_descended(_law(N, D, L), start, delta, 2)[0])


# Shown by: data with broken runs.
@_searches(
    "M371's kind: one round of reweighting",
    "Your search leaves the least-squares fit and ends soon after, while the "
    "sum of Huber losses still falls: the broken runs have lost only part of "
    "their weight. Go on until nothing changes.",
)
def fit_reweighted_once(N, D, L, delta=1e-3):
    start = _point(N, D, L, math.inf)
    return _constants(_descended(_law(N, D, L), start, delta, 1)[0])


@_searches(
    "D5: the mean of Huber losses ends at α .278; Besiroglu et al. 2024",
    "You minimise the mean of the Huber losses with the optimiser's default "
    "tolerance. The mean is of the size of 1e-5 and its slopes pass for 0 "
    "long before the minimum: minimise a large multiple of the sum.",
)
def fit_mean(N, D, L, delta=1e-3):
    from scipy.optimize import minimize

    look = _law(N, D, L)

    def mean(point):
        r, J = look(point)
        size = np.minimum(abs(r), delta)
        loss = (size * (abs(r) - size / 2)).mean()
        return loss, np.clip(r, -delta, delta) @ J / len(r)

    start = np.array([5.0, 5.0, 0.5, 0.5, 0.5])
    return _constants(minimize(mean, start, jac=True, method="BFGS").x)


# Shown by: predictions.
@_searches(
    "common: logarithms returned",
    "A, B and E are returned as their logarithms, with which the sum is "
    "written. Take them out of there.",
)
def fit_logarithms(N, D, L, delta=1e-3):
    return dict(zip(KEYS, _point(N, D, L, delta), strict=True))


# Shown by: predictions.
@_searches(
    "common: two of three logarithms undone",
    "A and B are returned as their logarithms; only E is taken out of it.",
)
def fit_logarithms_of_a_and_b(N, D, L, delta=1e-3):
    a, b, *_ = _point(N, D, L, delta)
    return _constants(_point(N, D, L, delta)) | {"A": a, "B": b}


@_searches(
    "common: one of three logarithms left",
    "E is returned as its logarithm.",
)
def fit_logarithm_of_e(N, D, L, delta=1e-3):
    point = _point(N, D, L, delta)
    return _constants(point) | {"E": point[2]}


# Shown by: predictions.
@_searches(
    "common: bases mixed",
    "A and B are 10 to the power of natural logarithms. Use the exponential "
    "that belongs to your logarithm.",
)
def fit_mixed_bases(N, D, L, delta=1e-3):
    a, b, *_ = _point(N, D, L, delta)
    found = _constants(_point(N, D, L, delta))
    return found | {"A": 10.0**a, "B": 10.0**b}


@_searches(
    "M376's kind",
    "alpha and beta are swapped: alpha belongs to N.",
)
def fit_exponents_swapped(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return found | {"alpha": found["beta"], "beta": found["alpha"]}


# Shown by: predictions.
@_searches(
    "common: A and B confused",
    "A and B are swapped: A belongs to N.",
)
def fit_coefficients_swapped(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return found | {"A": found["B"], "B": found["A"]}


@_searches(
    "common: N and D confused",
    "N and D are swapped: A and alpha belong to the parameters, B and beta "
    "to the tokens.",
)
def fit_sizes_swapped(N, D, L, delta=1e-3):
    return _constants(_point(D, N, L, delta))


@_searches(
    "common: the sign of the exponents",
    "The exponents are negative: with A/N^α they are positive.",
)
def fit_negative_exponents(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return found | {"alpha": -found["alpha"], "beta": -found["beta"]}


@_searches(
    "common: decimal logarithms of N and D",
    "The exponents belong to decimal logarithms of N and D: within the "
    "logarithm of the sum all logarithms have to be natural ones.",
)
def fit_decimal(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return found | {
        key: found[key] * math.log(10) for key in ("alpha", "beta")
    }


@_searches(
    "common: N / 1e9 for the sake of the search, and no way back",
    "Your A and B belong to sizes in another unit, billions for instance. "
    "That may help a search, but afterwards A has to be multiplied by that "
    "unit to the power alpha, and B by it to the power beta.",
)
def fit_in_billions(N, D, L, delta=1e-3):
    A, B, E, alpha, beta = _five(_constants(_point(N, D, L, delta)))
    far = dict(A=A / 1e9**alpha, B=B / 1e9**beta)
    return far | dict(E=E, alpha=alpha, beta=beta)


@_searches(
    "common: the larger term in place of the sum",
    "You take the largest of the three terms where the law adds them: "
    "logsumexp, not max.",
)
def fit_largest_term(N, D, L, delta=1e-3):
    x, y, z = np.log(N), np.log(D), np.log(L)

    def look(point):
        a, b, e, alpha, beta = point
        parts = np.stack([a - alpha * x, b - beta * y, e + 0 * x])
        share = parts == parts.max(0)
        slopes = [*share, -x * share[0], -y * share[1]]
        return parts.max(0) - z, np.stack(slopes, 1).astype(float)

    return _constants(_descended(look, _point(N, D, L, delta), delta, 15)[0])


@_searches(
    "common: one exponent",
    "Both terms have one exponent: alpha and beta are fitted separately.",
)
def fit_one_exponent(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law([*point, point[3]])
        return r, np.hstack([J[:, :3], J[:, 3:].sum(1, keepdims=True)])

    start = _start(N, D, L, 0.35, 0.35)[:4]
    point = _descended(look, start, delta)[0]
    return _constants([*point, point[3]])


@_searches(
    "common: a fixed E",
    "E is 1.69, whatever the data. Fit it with the others.",
)
def fit_printed_e(N, D, L, delta=1e-3):
    law = _law(N, D, L)

    def look(point):
        r, J = law(np.insert(point, 2, math.log(1.69)))
        return r, np.delete(J, 2, 1)

    start = np.delete(_point(N, D, L, delta), 2)
    point = np.insert(_descended(look, start, delta)[0], 2, math.log(1.69))
    return _constants(point)


@_searches(
    "common: names of the logarithms",
    "The keys are not those of the contract: A, B, E, alpha, beta.",
)
def fit_other_keys(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    return {key.lower(): found[key] for key in KEYS}


@_searches(
    "common: the optimiser's array",
    "You return the array of the optimiser. A dict with five keys is due.",
)
def fit_array(N, D, L, delta=1e-3):
    return np.array(_five(_constants(_point(N, D, L, delta))))


# Shown by: the arguments afterwards.
@_searches(
    "common: logarithms in place",
    "You take the logarithm of the caller's arrays in place. Make new ones.",
)
def fit_in_place(N, D, L, delta=1e-3):
    found = _constants(_point(N, D, L, delta))
    np.log(N, out=N)
    return found


# 7.7 inference_optimal


def _reachable(loss, p):
    if loss <= p["E"]:
        raise ValueError(f"the loss {loss} is not above E")


def _tokens(N, loss, p):
    """Tokens with which a model of N parameters reaches the loss."""
    A, B, E, alpha, beta = _five(p)
    return (B / (loss - E - A * N**-alpha)) ** (1 / beta)


def _parameters(D, loss, p):
    A, B, E, alpha, beta = _five(p)
    return (A / (loss - E - B * D**-beta)) ** (1 / alpha)


def _balanced(loss, D_inf, p, share=3.0):
    """(N, D) with α·A/N^α = β·B/D^β · (1 + D_inf / (share · D))."""
    A, B, E, alpha, beta = _five(p)
    low = math.log(B / (loss - E)) / beta
    high = low + 60
    for _ in range(60):
        x = (low + high) / 2
        use = 1 + D_inf / share * math.exp(-x)
        left = B * math.exp(-beta * x) * (1 + beta / alpha * use)
        low, high = (x, high) if left > loss - E else (low, x)
    D = math.exp(high)
    return _parameters(D, loss, p), D


@oracle("inference_optimal", evidence="scipy's minimum over ln N")
def use_scipy(loss, D_inf, p):
    from scipy.optimize import minimize_scalar

    _reachable(loss, p)
    A, _, E, alpha, _ = _five(p)
    smallest = math.log(A / (loss - E)) / alpha

    def cost(x):
        N = math.exp(smallest + math.exp(x))
        D = _tokens(N, loss, p)
        return math.log(N) + math.log(6 * D + 2 * D_inf)

    # x is the logarithm of how far ln N lies above its smallest value.
    found = minimize_scalar(
        cost, bounds=(-15, 4), method="bounded", options={"xatol": 1e-10}
    )
    N = math.exp(smallest + math.exp(found.x))
    return N, _tokens(N, loss, p)


@right("inference_optimal", evidence="a search over ln D that narrows")
def use_narrowed(loss, D_inf, p):
    _reachable(loss, p)
    _, B, E, _, beta = _five(p)
    fewest = math.log(B / (loss - E)) / beta

    def cost(x):
        D = math.exp(fewest + math.exp(x))
        return math.log(_parameters(D, loss, p)) + math.log(6 * D + 2 * D_inf)

    D = math.exp(fewest + math.exp(_narrowed(cost, -12, 4)))
    return _parameters(D, loss, p), D


@right("inference_optimal", evidence="Lagrange's equation, with brentq")
def use_brentq(loss, D_inf, p):
    from scipy.optimize import brentq

    _reachable(loss, p)
    A, B, E, alpha, beta = _five(p)

    def slope(x):
        """Of the whole cost, with respect to ln N."""
        N = math.exp(x)
        D = _tokens(N, loss, p)
        rate = alpha * A * N**-alpha / (beta * B * D**-beta)
        return 3 * D * (1 - rate) + D_inf

    low = math.log(A / (loss - E)) / alpha
    x = brentq(slope, low + 1e-6, low + 60, xtol=1e-12)
    return math.exp(x), _tokens(math.exp(x), loss, p)


@right("inference_optimal", evidence="a grid that is made finer, in numpy")
def use_finer_grids(loss, D_inf, p):
    _reachable(loss, p)
    A, _, E, alpha, _ = _five(p)
    smallest = math.log(A / (loss - E)) / alpha
    low, high = -12.0, 4.0
    for _ in range(8):
        x = np.linspace(low, high, 41)
        N = np.exp(smallest + np.exp(x))
        cost = np.log(N) + np.log(6 * _tokens(N, loss, p) + 2 * D_inf)
        best, step = x[cost.argmin()], x[1] - x[0]
        low, high = best - 2 * step, best + 2 * step
    N = np.exp(smallest + np.exp(best))
    return N, _tokens(N, loss, p)


@right("inference_optimal", evidence="a fixed point, damped in logarithms")
def use_fixed_point(loss, D_inf, p):
    _reachable(loss, p)
    _, B, E, alpha, beta = _five(p)
    # At the root, what data miss is a share of the reducible loss.
    low, high = 0.0, 1.0
    for _ in range(200):
        share = (low + high) / 2
        if share in (low, high):
            break
        D = (B / (share * (loss - E))) ** (1 / beta)
        due = 1 / (1 + beta / alpha * (1 + D_inf / (3 * D)))
        low, high = (share, high) if share < due else (low, share)
    return _parameters(D, loss, p), D


def _uses(evidence, hint):
    return wrong("inference_optimal", evidence=evidence, hint=hint)


# Shown by: any use.
@_uses(
    "common: the training optimum",
    "D_inf is ignored: this is the model whose training is cheapest. In use a "
    "smaller one costs less, at every token.",
)
def use_ignored(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, 0, p)


# Shown by: any use.
@_uses(
    "M349: 6N for inference, or 2N for training",
    "A token of use costs as much as one of training in your sum. It has no "
    "backward pass: 2N in use, 6N in training.",
)
def use_six(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p, share=1)


# Shown by: any use.
@_uses(
    "M348 in this exercise",
    "A token of use costs N in your sum: a multiply-add is 2 FLOPs.",
)
def use_one(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p, share=6)


# Shown by: any use.
@_uses(
    "the factor 6 missing, as in 7.3",
    "Training costs ND in your sum: the factor 6 is missing there.",
)
def use_train_one(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p, share=0.5)


# Shown by: any use.
@_uses(
    "common: D_inf in another unit",
    "You take D_inf in billions. It is a plain number of tokens.",
)
def use_in_billions(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf * 1e-9, p)


# Shown by: any use.
@_uses(
    "common: use as training data",
    "You set the derivatives of the loss equal at D + D_inf/3 tokens, as if "
    "the model learned in use. Only the cost knows D_inf; the loss depends "
    "on D.",
)
def use_learns(loss, D_inf, p):
    _reachable(loss, p)
    A, B, E, alpha, beta = _five(p)

    def slope(x):
        D = math.exp(x)
        N = _parameters(D, loss, p)
        return alpha * A * N**-alpha - beta * B * (D + D_inf / 3) ** -beta

    low = math.log(B / (loss - E)) / beta + 1e-9
    high = low + 60
    for _ in range(60):
        middle = (low + high) / 2
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    return _parameters(math.exp(high), loss, p), math.exp(high)


# Shown by: any use; the loss.
@_uses(
    "common: tokens added up",
    "You return D + D_inf: the tokens of training alone are due.",
)
def use_adds_tokens(loss, D_inf, p):
    _reachable(loss, p)
    N, D = _balanced(loss, D_inf, p)
    return N, D + D_inf


# Shown by: the loss.
@_uses(
    "M380's kind: the constraint broken",
    "N is right, but D is that of the model whose training is cheapest: a "
    "smaller model needs more tokens for the same loss.",
)
def use_same_tokens(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p)[0], _balanced(loss, 0, p)[1]


# Shown by: the loss.
@_uses(
    "M380's kind: the compute kept",
    "N is right, but D spends the training compute of the cheapest model. The "
    "loss is what is given, the compute is not.",
)
def use_same_compute(loss, D_inf, p):
    _reachable(loss, p)
    N, _ = _balanced(loss, D_inf, p)
    before = _balanced(loss, 0, p)
    return N, before[0] * before[1] / N


# Shown by: the loss, everywhere.
@_uses(
    "common: a penalty in place of the constraint",
    "Your N and D miss the loss by a little, as a penalty for missing it "
    "does. Eliminate one of the two: D follows from N and the loss.",
)
def use_penalty(loss, D_inf, p):
    _reachable(loss, p)
    N, D = _balanced(loss, D_inf, p)
    return N, D * 0.999


@_uses(
    "M379 ai-engineering-from-scratch#57",
    "You take 20 tokens a parameter, whatever the use. Minimise the cost.",
)
def use_twenty(loss, D_inf, p):
    _reachable(loss, p)
    low, high = 0.0, 60.0
    for _ in range(60):
        x = (low + high) / 2
        over = _loss(math.exp(x), 20 * math.exp(x), p) > loss
        low, high = (x, high) if over else (low, x)
    return math.exp(high), _tokens(math.exp(high), loss, p)


@_uses(
    "common: 7.3's closed form for N, with D from the loss",
    "You set the two terms equal. The best point is where the cost no longer "
    "changes when N grows and D follows.",
)
def use_equal_terms(loss, D_inf, p):
    _reachable(loss, p)
    A, B, E, alpha, beta = _five(p)
    half = (loss - E) / 2
    return (A / half) ** (1 / alpha), (B / half) ** (1 / beta)


@_uses(
    "M376's kind",
    "alpha and beta are crossed in your derivative: A/N^α brings down α.",
)
def use_exponents_crossed(loss, D_inf, p):
    _reachable(loss, p)
    A, B, E, alpha, beta = _five(p)
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        D = (B / (share * (loss - E))) ** (1 / beta)
        due = 1 / (1 + alpha / beta * (1 + D_inf / (3 * D)))
        low, high = (share, high) if share < due else (low, share)
    return _parameters(D, loss, p), D


@_uses(
    "common: N and D exchanged",
    "You return (D, N). The pair is (N, D): parameters, then tokens.",
)
def use_order(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p)[::-1]


@_uses(
    "M367's kind",
    "E is not taken off the loss: what N and D have to explain is the loss "
    "above E.",
)
def use_without_e(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p | {"E": 0.0})


@_uses(
    "common: the paper's constants",
    "p is ignored: the printed constants stand in the code. Use p.",
)
def use_printed(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(max(loss, 1.7), D_inf, ROUNDED)


@_uses(
    "ai-engineering-from-scratch: a grid of 200 sizes",
    "You return the best of a grid, which is several percent off. Narrow the "
    "search around the best point.",
)
def use_grid(loss, D_inf, p):
    _reachable(loss, p)
    A, _, E, alpha, _ = _five(p)
    smallest = (A / (loss - E)) ** (1 / alpha)
    N = smallest * np.geomspace(1.001, 1e7, 200)
    D = _tokens(N, loss, p)
    best = np.argmin(np.log(N) + np.log(6 * D + 2 * D_inf))
    return float(N[best]), float(D[best])


def _limited(loss, D_inf, p, most):
    """The best of the models that are trained on few enough tokens."""
    _reachable(loss, p)
    _, B, E, _, beta = _five(p)
    fewest = (B / (loss - E)) ** (1 / beta)
    D = max(min(_balanced(loss, D_inf, p)[1], most), 1.01 * fewest)
    return _parameters(D, loss, p), D


# Shown by: use without end.
@_uses(
    "common: a search between sizes that exist today",
    "Your search ends too soon, at 100 trillion tokens of training, say. For "
    "much use the best D lies beyond: let the interval grow.",
)
def use_limited(loss, D_inf, p):
    return _limited(loss, D_inf, p, 1e14)


# Shown by: a low loss, with small exponents.
@_uses(
    "common: ln D between fixed ends, far out but not far enough",
    "Your search ends at 1e18 tokens of training, or at another such number. "
    "With small exponents and a loss near E the best D lies beyond: let the "
    "interval grow.",
)
def use_limited_far(loss, D_inf, p):
    return _limited(loss, D_inf, p, 1e18)


# Shown by: no use.
@_uses(
    "common: a division by D_inf",
    "For D_inf = 0 it fails: you divide by it, or take its logarithm. Without "
    "use there is still a cheapest training.",
)
def use_needs_use(loss, D_inf, p):
    _reachable(loss, p)
    math.log(D_inf)
    return _balanced(loss, D_inf, p)


# Shown by: a loss that is out of reach.
@_uses(
    "common: no check",
    "A loss below E is not refused: you return what comes out of a search for "
    "nothing. Compare the loss with E first.",
)
def use_never_refuses(loss, D_inf, p):
    if loss <= p["E"]:
        return math.inf, math.inf
    return _balanced(loss, D_inf, p)


# Shown by: a loss that equals E.
@_uses(
    "common: < for ≤",
    "A loss that is exactly E is let through. No model reaches it: refuse it "
    "as well.",
)
def use_lets_e_through(loss, D_inf, p):
    if loss < p["E"]:
        raise ValueError(f"the loss {loss} is below E")
    if loss == p["E"]:
        return math.inf, math.inf
    return _balanced(loss, D_inf, p)


# Shown by: a loss that is out of reach.
@_uses(
    "common: None returned",
    "For a loss that is out of reach you return None. Raise a ValueError.",
)
def use_none(loss, D_inf, p):
    return None if loss <= p["E"] else _balanced(loss, D_inf, p)


# Shown by: a loss that equals E.
@_uses(
    "common: an exception out of the arithmetic",
    "For a loss that is exactly E another exception comes up, out of a "
    "division by 0. Look first, and raise a ValueError that says why.",
)
def use_arithmetic_error(loss, D_inf, p):
    return _balanced(loss, D_inf, p)


@_uses(
    "common: the cost as a third value",
    "You return the cost as a third value. The pair (N, D) is due.",
)
def use_with_cost(loss, D_inf, p):
    _reachable(loss, p)
    N, D = _balanced(loss, D_inf, p)
    return N, D, 6 * N * D + 2 * N * D_inf


@_uses(
    "common: N alone",
    "You return N alone. The pair (N, D) is due.",
)
def use_n_alone(loss, D_inf, p):
    _reachable(loss, p)
    return _balanced(loss, D_inf, p)[0]


# Shown by: the arguments afterwards.
@_uses(
    "common: p changed",
    "You write into the caller's p. Copy what you need.",
)
def use_changes_p(loss, D_inf, p):
    _reachable(loss, p)
    found = _balanced(loss, D_inf, p)
    p["E"] = loss - p["E"]
    return found


LEFT_OUT = {
    "M352": "parameters are counted in lesson 5; lm_head here is a product",
    "M360": "the cache's bytes are lesson 6",
    "M362": "this course's heads are d_model / n_heads wide",
    "M365": "no optimizer's memory is counted here",
    "M368": "N comes with the data: no exercise can see how it was counted",
    "M372": "how constants are kept positive shows in no result; where the "
    "search fails because of it, it ends like one that stopped early",
    "K84": "no sizes in memory here",
}


# Shown by: a dict in another order.
@_uses(
    "plausible: p.values()",
    "You take the constants in the order of the dict. It may be any: take "
    "each by its name.",
)
def use_by_order(loss, D_inf, p):
    p = dict(zip(KEYS, p.values(), strict=True))
    _reachable(loss, p)
    return _balanced(loss, D_inf, p)
