"""Lesson 5: what right answers on the GPT must satisfy."""

import collections
import copy
import dataclasses
import math

import numpy as np
import torch
from torch import nn

from autograder.exercise import (
    Exercise,
    Failure,
    law,
    of_calls,
    refuses,
    trouble,
    values,
)
from autograder.modules import (
    GPTConfig,
    call_modules,
    draw,
    follows_device,
    gpt_shapes,
    module_case,
    moved,
    of_modules,
)
from autograder.observations import (
    Array,
    Raised,
    describe,
    form_difference,
    plain,
    raised,
    value_difference,
)
from autograder.probing import call_torch, case, on_device

SINGLE = "6e-8 an operation, over sums of some tens of terms"
HALF = "float16 has 11 bits: one unit in the last place below 4 is 2e-3"
SPREAD = (
    "standard deviations in steps of half an octave: 1,024 draws miss the "
    "nearer border (16%) with a probability below 1e-12"
)
RUNS, FORM, UNCHANGED, _ = of_calls()


def half_octaves(std):
    """A standard deviation in units of 0.02, coarse: 0, or −2 for 0.01."""
    return round(2 * math.log2(std / 0.02)) if std > 0 else -100


def rounded_stats(stats):
    """[mean, standard deviation], coarse enough to be equal in every draw.

    The mean of values that differ is measured in standard deviations, that
    of equal ones is exact.
    """
    mean, std = stats
    if not std > 1e-12:
        return [round(mean, 6) + 0.0, half_octaves(0)]
    return [round(mean / std) + 0.0, half_octaves(std)]


def is_bell(values):
    """Whether values have the tails of a normal distribution."""
    c = values - values.mean()
    return 2.4 < (c**4).mean().item() / (c**2).mean().item() ** 2 < 4


def writes_to_stream(name):
    """Whether a parameter has the smaller spread of residual projections."""
    return name.endswith(("out_proj.weight", "fc2.weight"))


def shape_of_draws(tensors):
    """{"no bell": names, "outliers", "drawn apart": whether} of matrices.

    tensors: {parameter's name: values in float64}, tied ones once

    Of 11,000 normal draws and more, one at least is beyond 3.15 standard
    deviations, but for a probability of 1e-8; none is if all beyond 3 are cut
    off. Of 6,144 draws hardly two have the same size by chance; many have if
    some rows, or layers, are copies of others.
    """
    flat = {
        name: value.flatten()
        for name, value in tensors.items()
        if value.ndim > 1
    }
    alike = torch.cat(
        [flat[name] for name in flat if not writes_to_stream(name)]
    )
    sizes = torch.cat(
        [flat[name] for name in flat if name.endswith("qkv_proj.weight")]
    ).abs()
    return {
        "no bell": [
            name
            for name, values in flat.items()
            if len(values) > 3000 and not is_bell(values)
        ],
        "outliers": (alike - alike.mean()).abs().max().item()
        > 3.15 * alike.std().item(),
        "drawn apart": len(sizes.unique()) > 0.9 * len(sizes),
    }


def unlike_normal(seen):
    """What shows that draws are not normal, or None."""
    if seen["no bell"]:
        return f"{seen['no bell'][0]} is not normally distributed"
    if not seen["outliers"]:
        return (
            "no value is beyond 3.15 standard deviations: the distribution "
            "is cut off"
        )
    if not seen["drawn apart"]:
        return (
            "many numbers of qkv_proj.weight are copies of others, or their "
            "negatives: they are not drawn independently"
        )
    return None


# 5.1


def gpt_inputs(rng):
    def built(V, C, D, H, L, *, scale=0.5, bias=True, **how):
        cfg = {
            "vocab_size": V,
            "context_length": C,
            "d_model": D,
            "n_heads": H,
            "n_layers": L,
            **how,
        }
        if not bias:
            cfg["bias"] = False
        weights = draw(rng, gpt_shapes(V, C, D, L, bias))
        for name in ("tok_embed.weight", "pos_embed.weight"):
            weights[name] = weights[name] * (2 * scale)
        return lambda *args, **call: module_case(
            ((), cfg), weights, *args, **call
        )

    def ids(V, *shape):
        return rng.randint(0, V, shape)

    small = built(5, 4, 4, 2, 1)
    x = ids(11, 2, 5)
    later = x.copy()
    later[:, 3:] = (later[:, 3:] + 1 + rng.randint(0, 9, (2, 2))) % 11
    targets = ids(11, 2, 5)
    targets[0, 1], targets[0, 3:] = 0, -100
    targets[1, 1] = -100
    y = rng.randint(1, 5, (2, 3))
    y[0, 0] = 0  # the id that some take for padding, here in no target
    silenced = built(5, 4, 4, 2, 1, dropout=1.0)
    return {
        "one token": built(3, 2, 2, 1, 1)(ids(3, 1, 1)),
        "several heads": built(11, 7, 6, 3, 2)(np.concatenate([x, later])),
        # As many tokens as the context holds, and not contiguous.
        "equal sizes": built(4, 4, 4, 2, 1)(
            ids(4, 4, 4), strided=True, upstream=[rng.randn(4, 4, 4), None]
        ),
        "three layers": built(7, 5, 4, 1, 3)(ids(7, 1, 5)),
        "small embeddings": built(7, 5, 4, 2, 1, scale=2e-3)(ids(7, 1, 5)),
        "without biases": built(7, 5, 4, 2, 1, bias=False)(ids(7, 1, 5)),
        "a loss": small(y, y, upstream=[None, 2.0], mode="train"),
        "targets of their own": built(11, 5, 4, 2, 1)(
            x, targets=targets, strided=True
        ),
        "eval with dropout": built(5, 4, 4, 2, 1, dropout=0.5)(y),
        "all dropped": silenced(y, mode="train"),
        "beyond the context": small(ids(5, 1, 5)),
        "float32": small(y, dtype="float32"),
        "float16": small(y, y, dtype="float16"),
        "two tokens, then seven": built(5, 7, 4, 2, 1)(ids(5, 1, 7)),
        "moved to another device": small(y, y),
        "as built": module_case(
            (
                (),
                {
                    "vocab_size": 101,
                    "context_length": 40,
                    "d_model": 32,
                    "n_heads": 2,
                    "n_layers": 2,
                },
            ),
            None,
            ids(101, 1, 3),
        ),
        "GPT-2 small": module_case(((), {}), None, meta=True),
        "a thousand texts of one token": module_case(
            ((), {**tiny(26, 2, 25, 1), "dropout": 0.25}),
            three_thirds(),
            np.zeros((1000, 1), dtype=int),
            mode="train",
        ),
    }


PARTS_OF_STREAM = {
    "the embeddings": slice(0, 8),
    "the attention": slice(8, 16),
    "the MLP": slice(16, 24),
}


def three_thirds():
    """Weights by which each part writes to dimensions of its own.

    Without dropout the stream is 1, 2 and 3 in eight dimensions each and 0 in
    the last one. The logits of all tokens but 0 show it, normalised.
    """
    D = 25
    weights = {
        name: np.zeros(shape)
        for name, shape in gpt_shapes(D + 1, 2, D, 1).items()
    }
    weights["tok_embed.weight"][0, :4] = 1
    weights["tok_embed.weight"][1:] = 1e-9 * np.eye(D)
    weights["pos_embed.weight"][0, 4:8] = 1
    for name in ("blocks.0.ln1.bias", "blocks.0.ln2.bias", "ln_f.weight"):
        weights[name] = np.ones(D)  # both branches see nothing but ones
    weights["blocks.0.attn.qkv_proj.weight"][2 * D :] = np.eye(D)
    weights["blocks.0.attn.out_proj.weight"][8:16, 8:16] = 2 * np.eye(8)
    weights["blocks.0.mlp.fc1.weight"][:D] = 10 * np.eye(D)
    weights["blocks.0.mlp.fc2.weight"][16:24, 16:24] = 0.3 * np.eye(8)
    return weights


def left_by_dropout(module, one):
    """What each part has left, see `three_thirds`, coarsely.

    returns: {part: [texts of 8 in which it is silent; numbers of 8 that are
        0 in the others; texts of 8 in which these are the very numbers as in
        the text before; size of the rest, in sizes of the first part's]}
    """
    with torch.no_grad():
        logits = module(torch.from_numpy(one["args"][0]))[0][:, 0, 1:]
    stream = 1e9 * (logits - logits[:, -1:])
    unit = stream[:, PARTS_OF_STREAM["the embeddings"]].amax(-1)
    left = {}
    for part, place in PARTS_OF_STREAM.items():
        mine = stream[:, place]
        zeros = mine.abs() < 1e-6
        silent = zeros.all(-1)
        heard = ~silent & (unit > 1e-6)
        sizes = mine.amax(-1)[heard] / unit[heard]
        kept = zeros[~silent]
        left[part] = [
            _eighths(silent),
            _eighths(kept),
            _eighths((kept[1:] == kept[:-1]).all(-1)),
            round(sizes.median().item(), 3) if len(sizes) else -1.0,
        ]
    return left


def _eighths(flags):
    return round(8 * flags.double().mean().item()) if len(flags) else 8


def two_lengths(module, one):
    """Logits of a short text, then those of a longer one."""
    ids = torch.from_numpy(one["args"][0])
    with torch.no_grad():
        return [module(ids[:, :2])[0], module(ids)[0]]


def starts_of(built):
    """A script that looks at a new module, and at another one like it."""

    def script(module, one):
        seed = torch.initial_seed()
        with on_device("cpu"):
            other = built(**one["build"][1])
        other = dict(other.to(torch.float64).named_parameters())
        cfg = getattr(module, "cfg", None)
        return {
            "cfg": [
                getattr(cfg, field.name, None)
                for field in dataclasses.fields(GPTConfig)
            ],
            **shape_of_draws(
                {
                    name: value.detach()
                    for name, value in module.named_parameters()
                }
            ),
            "repeated": [
                name
                for name, value in module.named_parameters()
                if value.ndim > 1 and torch.equal(value, other[name])
            ],
            "seeded": torch.initial_seed() != seed,
        }

    return script


def probe_gpt(answer, inputs):
    def built(**how):
        return answer(GPTConfig(**how))

    scripts = {
        "two tokens, then seven": two_lengths,
        "moved to another device": moved,
        "as built": starts_of(built),
        "a thousand texts of one token": left_by_dropout,
    }
    seen = call_modules(built, inputs, scripts)
    for one in seen.values():
        stats = one.get("built", {}).get("stats", {})
        for name in stats:
            stats[name] = rounded_stats(stats[name])
    return seen


def _no_look_ahead(seen, want, inputs):
    one, other = np.split(seen["several heads"]["out"][0].data[:, :3], 2)
    if np.abs(one - other).max() > 1e-9:
        return Failure(
            "the first three positions change when the tokens after them do"
        )
    return None


def _sets(lists):
    """Lists of names without their order, which is that of the assignments."""
    return {frozenset(names) for names in lists}


def _tied(seen, want, inputs):
    for name in inputs:
        ties = seen[name].get("built", {}).get("ties")
        if ties is not None and _sets(ties) != _sets(
            want[name]["built"]["ties"]
        ):
            return Failure(
                "lm_head.weight and tok_embed.weight are two parameters"
                if not ties
                else f"these are one parameter: {', '.join(ties[0])}",
                name,
            )
    return None


LEFT = (
    "nothing is left of {} in {:g} texts of 8",
    "of the numbers of {}, {:g} of 8 are 0",
    "the same numbers of {} as in the text before are 0 in {:g} texts of 8",
    "what is left of {} is {:g} times as large as that of the embeddings",
)


def _counted_dropout(seen, want, inputs):
    name = "a thousand texts of one token"
    got, due = seen[name]["out"], want[name]["out"]
    if isinstance(got, Raised):
        return Failure(trouble(got), name)
    for part in due:
        pairs = zip(got[part], due[part], strict=True)
        for (mine, expected), text in zip(pairs, LEFT, strict=True):
            if mine != expected:
                return Failure(
                    f"with dropout=0.25 {text.format(part, mine)}; expected "
                    f"is {expected:g}",
                    name,
                )
    return None


def _keeps_cfg(seen, want, inputs):
    got, due = seen["as built"]["out"], want["as built"]["out"]
    if isinstance(got, Raised):
        return Failure(trouble(got), "as built")
    if got["cfg"] != due["cfg"]:
        return Failure(f".cfg says {got['cfg']}; expected {due['cfg']}")
    return None


def _half_logits(seen, want, inputs):
    got, due = (part["float16"]["out"] for part in (seen, want))
    if isinstance(got, Raised):
        return Failure(trouble(got), "float16")
    # Another loss shows or hides in so few digits, depending on the draw.
    difference = form_difference(got, due) or value_difference(
        got[0], due[0], 2e-2
    )
    return difference and Failure(difference, "float16")


def _starts(seen, want, inputs):
    got, due = (part["as built"]["built"] for part in (seen, want))
    alike = [names for names in got["twins"] if names not in got["ties"]]
    if alike:
        return Failure(
            f"{' and '.join(alike[0][:2])} start with the very same values"
        )
    for name, expected in due["stats"].items():
        failure = stats_failure(name, got["stats"][name], expected)
        if failure:
            return failure
    drawn = seen["as built"]["out"]
    if isinstance(drawn, Raised):
        return Failure(trouble(drawn), "as built")
    if drawn["repeated"] or drawn["seeded"]:
        return Failure(
            "two models that are built one after the other start with the "
            "very same weights"
            if drawn["repeated"]
            else "torch's generator was seeded by the constructor"
        )
    text = unlike_normal(drawn)
    return text and Failure(text)


def stats_failure(name, seen, want):
    """How coarse statistics of a parameter differ, or None."""
    if seen == want:
        return None
    return Failure(
        f"{name} has {_spread(*seen)}; expected is {_spread(*want)}"
    )


def _spread(mean, level):
    if level == half_octaves(0):
        return f"the mean {mean:g} and the standard deviation 0"
    size = 0.02 * 2 ** (level / 2)
    return (
        f"the mean {mean * size:.2g} and a standard deviation of about "
        f"{size:.2g}"
    )


GPT = Exercise(
    "GPT",
    gpt_inputs,
    of_modules(
        law(
            "one matrix for embedding and head",
            _tied,
            points=0.5,
            because="the full size's count sees two matrices, too",
            says=(
                "The head and the token embedding are one Parameter under "
                "two names: assign the Parameter itself, not its values and "
                "not its .data."
            ),
        ),
        law(
            "no look ahead",
            _no_look_ahead,
            needs=("shape and dtype",),
            because="implied by the values; it names the worst mistake",
            says="No logits may change when a later token does.",
        ),
        values(
            "logits",
            "one token",
            "several heads",
            "equal sizes",
            "three layers",
            points=2,
            gate=True,
            says=(
                "Embeddings of tokens and positions, then each block on the "
                "result of the one before, the final norm, the head: raw "
                "logits for every position."
            ),
        ),
        values(
            "small embeddings",
            "small embeddings",
            points=0.25,
            because="another eps shows a little in every logit",
            says=(
                "Every norm has eps = 1e-5, and nothing but the positions "
                "is added to the embedding, which is not scaled."
            ),
        ),
        values(
            "without biases",
            "without biases",
            points=0.25,
            because="names show it, too",
            says=(
                "bias=False drops the biases of linear layers and norms alike."
            ),
        ),
        values(
            "loss",
            "a loss",
            "targets of their own",
            points=0.75,
            says=(
                "The logits at position t predict the target at t + 1. "
                "The shift is inside; targets of −100 do not count."
            ),
        ),
        values(
            "gradients",
            "equal sizes",
            "a loss",
            part="grads",
            points=0.5,
            says=(
                "Gradients flow from the logits and from the loss to every "
                "parameter, and the embedding collects those of its two "
                "uses."
            ),
        ),
        refuses(
            "beyond the context",
            "beyond the context",
            points=0.25,
            says="More than context_length tokens are a ValueError.",
        ),
        values(
            "eval has no dropout",
            "eval with dropout",
            because="a function drops whenever it is told to",
            says=(
                "In eval mode nothing is dropped. A function drops whenever "
                "it is told to: tell it only in training."
            ),
        ),
        values(
            "dropout",
            "all dropped",
            points=0.25,
            because="no tolerance is needed: with p = 1 nothing is random",
            says=(
                "With dropout=1 and in train mode, the embeddings and every "
                "branch are dropped, so ln_f sees zeros: dropout acts on the "
                "sum of the embeddings, the attention's output and the "
                "MLP's output (and on the attention weights)."
            ),
        ),
        law(
            "dropout, counted",
            _counted_dropout,
            points=0.25,
            because=(
                "1,000 texts, in eighths: a share is off by 1/16 with a "
                "probability below 1e-5"
            ),
            says=(
                "In train mode dropout acts, number by number, on four "
                "things and on nothing else: the embeddings' sum, the "
                "attention weights, and what either branch adds. What is "
                "kept is divided by 1 − dropout."
            ),
        ),
        law(
            ".cfg",
            _keeps_cfg,
            because="what generates and trains asks the model for its sizes",
            says="Keep the configuration as self.cfg.",
        ),
        law(
            "initial weights",
            _starts,
            points=0.5,
            because=SPREAD,
            says=(
                "A new model starts as task 5.3 says: matrices and "
                "embeddings N(0, 0.02²), out_proj and fc2 divided by √(2L), "
                "biases 0, gains 1. Nothing is seeded, so that no model is "
                "like the one before it."
            ),
        ),
        values(
            "full size",
            "GPT-2 small",
            points=0.5,
            because="other counts have other names or shapes, or no tie",
            says=(
                "GPT-2 small has 124,439,808 parameters; the tied matrix "
                "counts once."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-5,
            because=SINGLE,
            says="float32 weights give float32 logits.",
        ),
        law(
            "half precision",
            _half_logits,
            because=f"{HALF}, ten of them one after the other",
            says=(
                "float16 weights give float16 logits and losses: a mask or a "
                "table of another dtype stops them."
            ),
        ),
        values(
            "any length",
            "two tokens, then seven",
            because="a mask of the first call's size fits no longer text",
            says=(
                "A longer text after a shorter one: what is kept from the "
                "first call (a mask, positions) is too short for the next."
            ),
        ),
        follows_device("moved to another device"),
        twins=False,
    ),
    kind="class",
    probe=probe_gpt,
)


# 5.2


def loss_inputs(rng):
    logits, ids = rng.randn(2, 5, 7) * 2, rng.randint(0, 7, (2, 5))
    some = rng.randint(1, 7, (3, 5))
    some[0, 2:] = -100
    some[1, 1] = -100
    short = rng.randn(3, 5, 7) * 2
    other = rng.randint(0, 7, (2, 6))
    other[:, 1], other[:, 3], other[0, 4] = 3, 0, 3
    none = rng.randint(0, 7, (2, 4))
    none[:, 1:] = -100
    big = np.zeros((1, 4, 3))
    big[0, np.arange(4), [0, 2, 1, 1]] = 1e4
    extreme = rng.randint(0, 2, (1, 4)) * 2
    up = np.array(1.5)
    return {
        "two tokens": case((rng.randn(1, 2, 3)).round(2), np.array([[2, 0]])),
        "the next token is certain": case(
            10.0 * np.eye(5)[[[1, 2, 3, 0]]], np.array([[4, 1, 2, 3]])
        ),
        "a batch": case(logits, ids),
        "equal sizes": case(rng.randn(4, 4, 4) * 2, rng.randint(0, 4, (4, 4))),
        "views": case(logits, ids, strided=True),
        "large logits": case(big, extreme),
        "some ignored": case(short, some),
        "another ignore_index": case(rng.randn(2, 6, 7), other, 3),
        "a real token ignored": case(
            rng.randn(2, 6, 7), other, ignore_index=0
        ),
        "none left": case(rng.randn(2, 4, 7), none),
        "nothing to predict": case(
            rng.randn(2, 1, 7), rng.randint(0, 7, (2, 1))
        ),
        "gradient": case(logits, ids, upstream=[up]),
        "gradient, some ignored": case(short, some, upstream=[up]),
        "float32": case(logits.astype("float32"), ids),
        "float16": case(logits.astype("float16"), ids),
    }


lm_loss = Exercise(
    "lm_loss",
    loss_inputs,
    of_calls(
        values(
            "the next token",
            "two tokens",
            "the next token is certain",
            "a batch",
            "equal sizes",
            "views",
            points=1.5,
            gate=True,
            says=(
                "The logits at position t are judged by the token at "
                "t + 1: all logits but the last meet all ids but the "
                "first. The loss is the mean in nats."
            ),
        ),
        values(
            "large logits",
            "large logits",
            because="the usual way out of range",
            says=(
                "Logits of ±10,000 are fine: take the logarithm of the "
                "softmax in one step."
            ),
        ),
        values(
            "ignored targets",
            "some ignored",
            "another ignore_index",
            "a real token ignored",
            points=0.75,
            says=(
                "A target equal to ignore_index counts neither in the sum "
                "nor in the number by which it is divided. It is the "
                "target that decides, not the token that predicts it."
            ),
        ),
        values(
            "nothing left",
            "none left",
            "nothing to predict",
            points=0.25,
            says=(
                "The mean over no target is nan, as in torch: a 0 would "
                "look like a perfect model."
            ),
        ),
        values(
            "gradients",
            "gradient",
            "gradient, some ignored",
            part="grads",
            points=0.5,
            says=(
                "Gradients flow to the logits: return a tensor that is "
                "still connected with them."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=5e-6,
            because=SINGLE,
            says="The loss has the logits' dtype.",
        ),
        values(
            "half precision",
            "float16",
            tol=4e-3,
            because=HALF,
            says="float16 logits give a float16 loss.",
        ),
    ),
)


# Models that the next exercises work on


class Toy(nn.Module):
    """A model with a GPT's names that is none: no token looks at another.

    extra: whether it has parameters, and a buffer, that a GPT has not
    """

    def __init__(self, cfg, *, tied=True, extra=False):
        super().__init__()
        self.cfg = cfg
        D, V = cfg.d_model, cfg.vocab_size
        self.tok_embed = nn.Embedding(V, D)
        self.pos_embed = nn.Embedding(cfg.context_length, D)
        self.blocks = nn.ModuleList(
            _toy_block(D, cfg.bias) for _ in range(cfg.n_layers)
        )
        self.ln_f = nn.LayerNorm(D, bias=cfg.bias)
        self.lm_head = nn.Linear(D, V, bias=False)
        if extra:
            self.conv = nn.Conv1d(D, D, 3)
            self.memory = nn.Parameter(torch.randn(2, 2, D, D))
            self.bias = nn.Parameter(torch.randn(D, D))
            self.rms = nn.RMSNorm(D)
            self.gain = nn.Parameter(torch.randn(D))
            self.bias_scale = nn.Parameter(torch.randn(D))
            self.register_buffer("mask", torch.ones(D, D).tril())
        if tied:
            self.tok_embed.weight = self.lm_head.weight
        self.reports = []

    def forward(self, ids, targets=None):
        if ids.shape[1] > self.cfg.context_length:
            raise ValueError("the sequence exceeds the context")
        self.report(ids, targets)
        x = self.tok_embed(ids)
        x = x + self.pos_embed.weight[: ids.shape[1]]
        for block in self.blocks:
            mixed = block["attn"]["qkv_proj"](block["ln1"](x)).tanh()
            mixed = mixed.unflatten(-1, (3, -1)).sum(-2)
            x = x + block["attn"]["out_proj"](mixed)
            wide = block["mlp"]["fc1"](block["ln2"](x)).tanh()
            x = x + block["mlp"]["fc2"](wide)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        # No likelihood: a toy's loss, the mean over rows and positions.
        chosen = logits.gather(-1, targets.unsqueeze(-1))
        return logits, (chosen - 1).square().mean()

    def report(self, ids, targets):
        """For a model that notes how it is called."""


def _toy_block(D, bias):
    def layers(**sizes):
        return nn.ModuleDict(
            {name: nn.Linear(*size, bias=bias) for name, size in sizes.items()}
        )

    return nn.ModuleDict(
        {
            "ln1": nn.LayerNorm(D, bias=bias),
            "attn": layers(qkv_proj=(D, 3 * D), out_proj=(D, D)),
            "ln2": nn.LayerNorm(D, bias=bias),
            "mlp": layers(fc1=(D, 4 * D), fc2=(4 * D, D)),
        }
    )


def tiny(V, C, D, L, **how):
    """The configuration of a toy, as plain data."""
    return {
        "vocab_size": V,
        "context_length": C,
        "d_model": D,
        "n_heads": 1,
        "n_layers": L,
        **how,
    }


def tried(action, *args):
    """What an action returns as plain data, or what stopped it."""
    try:
        return plain(action(*args))
    except (Exception, SystemExit) as error:
        return raised(error)


# 5.3


def init_inputs(rng):
    def one(L, n_layers, *args, toy=(), **how):
        return {
            "cfg": tiny(101, 40, 32, L, **how),
            "toy": dict(toy),
            "args": [n_layers, *args],
            # Above the numbers with which people seed.
            "seed": int(rng.randint(10**6, 2 * 10**6)),
            "train": L == 2,
        }

    return {
        "2 layers": one(2, 2),
        "1 layer of 8": one(1, 8),
        "std=0.08": one(1, 2, 0.08),
        "no biases": one(1, 2, bias=False),
        "other parameters": one(1, 2, toy={"extra": True}),
        "an untied head": one(1, 2, 0.16, toy={"tied": False}),
    }


PLAIN_MODELS = (
    "2 layers",
    "1 layer of 8",
    "std=0.08",
    "no biases",
    "an untied head",
)


def probe_init(answer, inputs):
    return {name: _started(answer, one) for name, one in inputs.items()}


def _started(answer, one):
    # torch.manual_seed would reach other devices' generators, too.
    torch.default_generator.manual_seed(one["seed"])
    model = Toy(GPTConfig(**one["cfg"]), **one["toy"])
    model.train(one["train"])
    with torch.no_grad():
        for value in model.parameters():
            value.uniform_(1.03, 2.6)  # neither normal nor around 0
    before = {id(value) for value in model.parameters()}
    buffers = [value.clone() for value in model.buffers()]
    old, grad = (
        model.pos_embed.weight.detach().clone(),
        torch.is_grad_enabled(),
    )
    try:
        answer(model, *one["args"])
        first = [value.detach().clone() for value in model.parameters()]
        kept = _correlation(old, model.pos_embed.weight.detach())
        answer(model, *one["args"])
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    own = dict(model.named_parameters(remove_duplicate=False))
    exact = {name: value.detach().double() for name, value in own.items()}
    seen = {
        "stats": {
            name: rounded_stats(
                [value.mean().item(), value.std(correction=0).item()]
            )
            for name, value in exact.items()
        },
        **shape_of_draws(
            {name: exact[name] for name, _ in model.named_parameters()}
        ),
        "tied": model.lm_head.weight is model.tok_embed.weight,
        "same parameters": {id(value) for value in model.parameters()}
        == before,
        "alike": _alike(model),
        "trained": all(value.requires_grad for value in model.parameters()),
        "buffers": all(map(torch.equal, model.buffers(), buffers)),
        "mode": _modes(model) == [one["train"]],
        "gradients": torch.is_grad_enabled() == grad,
        "kept": abs(kept) > 0.5,
        "seeded": torch.initial_seed() != one["seed"],
        "repeated": any(
            value.ndim > 1 and torch.equal(value, old)
            for value, old in zip(model.parameters(), first, strict=False)
        ),
    }
    if not one["toy"].get("tied", True):
        # The expected loss over targets drawn at random.
        ids = torch.arange(1040).reshape(26, 40) * 7 % 101
        with torch.no_grad():
            logits = model(ids)[0].double()
            surprise = logits.logsumexp(-1) - logits.mean(-1)
        seen["loss"] = surprise.mean().item()
    return {"out": seen}


def _correlation(one, other):
    pair = torch.stack([one.flatten(), other.flatten()])
    return torch.corrcoef(pair)[0, 1].item()


def _modes(model):
    """[True] if all of a model is in train mode, [False] if all is in eval."""
    return _distinct(module.training for module in model.modules())


def _alike(model):
    seen, alike = {}, []
    for name, value in model.named_parameters():
        if value.ndim > 1:
            key = value.detach().numpy().tobytes()
            if key in seen:
                alike.append([seen[key], name])
            seen[key] = name
    return alike


def _stats(chosen, *names):
    def judge(seen, want, inputs):
        for case_name in names or inputs:
            got, due = (part[case_name]["out"] for part in (seen, want))
            for name, expected in due["stats"].items():
                if chosen(name, expected):
                    failure = stats_failure(name, got["stats"][name], expected)
                    if failure:
                        return Failure(
                            f"{failure.text} (model with {case_name}, called "
                            "with init_weights(model, "
                            f"{', '.join(map(str, inputs[case_name]['args']))}"
                            "))"
                        )
        return None

    return judge


def _vector(name, expected):
    return expected[1] == -100


def _residual(name, expected):
    return writes_to_stream(name)


def _matrix(name, expected):
    return not _vector(name, expected) and not _residual(name, expected)


def _init_runs(seen, want, inputs):
    for name in inputs:
        if isinstance(seen[name]["out"], Raised):
            return Failure(f"{trouble(seen[name]['out'])} (model with {name})")
    return None


LEFT_ALONE = {
    "same parameters": "the model has other parameters after the call",
    "trained": "some parameters are not trained any more",
    "buffers": "a buffer, which is no parameter, has other values",
    "mode": "the model is in another mode, train or eval, than before",
    "gradients": "gradients are switched off, or on, after the call",
}


def _init_tie(seen, want, inputs):
    for name in inputs:
        got, due = (part[name]["out"] for part in (seen, want))
        if got["tied"] != due["tied"]:
            return Failure(
                "the head and the embedding are "
                f"{'one' if got['tied'] else 'two'} after the call"
            )
        for key, text in LEFT_ALONE.items():
            if not got[key]:
                return Failure(f"{text} (model with {name})")
    return None


def _init_normal(seen, want, inputs):
    for name in inputs:
        got = seen[name]["out"]
        text = unlike_normal(got)
        if text:
            return Failure(text)
        if got["alike"]:
            return Failure(
                f"{' and '.join(got['alike'][0])} have the very same values"
            )
        if got["kept"]:
            return Failure(
                "pos_embed.weight still follows the values that it had before"
            )
        if got["seeded"]:
            return Failure("torch's generator was seeded by the call")
        if got["repeated"]:
            return Failure("a second call draws the very same values again")
    return None


def _init_loss(seen, want, inputs):
    one = inputs["an untied head"]
    V, D = one["cfg"]["vocab_size"], one["cfg"]["d_model"]
    due = math.log(V) + D * one["args"][1] ** 2 / 2
    got = seen["an untied head"]["out"]["loss"]
    if abs(got - due) > 0.13:
        return Failure(
            f"the first loss is {got:.3f} where ln V + d·std²/2 = {due:.3f}"
        )
    return None


def init_features(seen):
    """All that does not depend on the draw."""
    numbers = []
    for one in seen.values():
        out = one["out"]
        if isinstance(out, Raised):
            return [float(len(seen)), -1.0]
        numbers += [part for pair in out["stats"].values() for part in pair]
        numbers += [float(len(out[key])) for key in ("no bell", "alike")]
        numbers += [
            float(out[key])
            for key in (
                "outliers",
                "drawn apart",
                "tied",
                "kept",
                "seeded",
                "repeated",
                *LEFT_ALONE,
            )
        ]
    return numbers


init_weights = Exercise(
    "init_weights",
    init_inputs,
    (
        law(
            "runs",
            _init_runs,
            gate=True,
            because="what does not run cannot be judged",
            says="It has to run before anything else can be said.",
        ),
        law(
            "matrices and embeddings",
            _stats(_matrix, *PLAIN_MODELS),
            points=0.75,
            gate=True,
            because=SPREAD,
            says=(
                "The weights of linear layers and of both embeddings are "
                "drawn from N(0, std²)."
            ),
        ),
        law(
            "whatever has two dimensions",
            _stats(_matrix, "other parameters"),
            points=0.5,
            because=SPREAD,
            says=(
                "Every tensor of two or more dimensions is drawn, whatever "
                "kind of module it belongs to, a convolution or none."
            ),
        ),
        law(
            "residual projections",
            _stats(_residual),
            points=1,
            because=SPREAD,
            says=(
                "The weights of attn.out_proj and mlp.fc2 write to the "
                "residual stream, 2 · n_layers of them: their std is "
                "std/√(2 · n_layers), by the argument n_layers."
            ),
        ),
        law(
            "biases and gains",
            _stats(_vector),
            points=0.75,
            because="exact: nothing is random",
            says="Biases are 0, and the gains of all norms are 1.",
        ),
        law(
            "the same parameters",
            _init_tie,
            points=0.5,
            says=(
                "Fill the model's own parameters, in place: a head that was "
                "tied to the embedding stays tied, another one untied, and "
                "all are still trained. Buffers, the mode and whether "
                "gradients are on are not yours."
            ),
        ),
        law(
            "normal and independent",
            _init_normal,
            points=0.5,
            because=(
                "the fourth moment of 3,072 normal draws is 3 ± 0.09, of "
                "uniform ones 1.8"
            ),
            says=(
                "Draw each number anew, from a normal distribution: nothing "
                "is seeded, copied, rescaled, cut off or uniform."
            ),
        ),
        law(
            "first loss",
            _init_loss,
            because=(
                "implied by the others; it is the number to look at. Over "
                "14,000 draws it lay 0.006 below with a standard deviation "
                "of 0.018, and 0.083 away at most: seven deviations"
            ),
            says=(
                "With such weights the first loss is a little above ln V: "
                "the logits have variance d·std², which costs half of it."
            ),
        ),
    ),
    probe=probe_init,
    features=init_features,
)


# 5.4


def tie_inputs(rng):
    small = {
        "cfg": tiny(5, 4, 3, 1),
        "tok": rng.randn(5, 3).round(2),
        "head": rng.randn(5, 3).round(2),
        "ids": rng.randint(0, 5, (2, 4)),
        "train": True,
    }
    square = {
        "cfg": tiny(4, 3, 4, 0),
        "tok": rng.randn(4, 4).round(2),
        "head": rng.randn(4, 4).round(2),
        "ids": rng.randint(0, 4, (1, 3)),
        "train": False,
    }
    return {
        "five tokens, width 3": small,
        "as many tokens as the width": square,
        "GPT-2 small": {"cfg": tiny(50257, 1024, 768, 0)},
    }


def probe_tie(answer, inputs):
    return {name: _joined(answer, one) for name, one in inputs.items()}


def _joined(answer, one):
    if "tok" not in one:
        with torch.device("meta"):
            model = Toy(GPTConfig(**one["cfg"]), tied=False)
        before = _count(model)
        error = tried(answer, model)
        if isinstance(error, Raised):
            return {"out": error}
        return {"out": {"saved": before - _count(model)}}
    model = Toy(GPTConfig(**one["cfg"]), tied=False).double()
    model.train(one["train"])
    with torch.no_grad():
        model.tok_embed.weight.copy_(torch.from_numpy(one["tok"]))
        model.lm_head.weight.copy_(torch.from_numpy(one["head"]))
    matrix, names = model.tok_embed.weight, sorted(model.state_dict())
    modules = model.tok_embed, model.lm_head
    error = tried(answer, model)
    if isinstance(error, Raised):
        return {"out": error}
    ids = torch.from_numpy(one["ids"])
    return {
        "out": {
            "one": _is_tied(model),
            "the embedding's own": tried(
                lambda: model.tok_embed.weight is matrix
            ),
            "trained": tried(lambda: model.tok_embed.weight.requires_grad),
            "embedding": tried(lambda: model.tok_embed.weight),
            "head": tried(lambda: model.lm_head.weight),
            "product": tried(
                lambda: model.lm_head(
                    torch.eye(one["cfg"]["d_model"]).double()
                )
            ),
            "names": tried(lambda: sorted(model.state_dict()) == names),
            "modules": tried(
                lambda: (
                    model.tok_embed is modules[0]
                    and model.lm_head is modules[1]
                )
            ),
            "mode": _modes(model) == [one["train"]],
            "copied": tried(lambda: _is_tied(copy.deepcopy(model))),
            "converted": tried(
                lambda: _is_tied(copy.deepcopy(model).to(torch.float32))
            ),
            "loaded": tried(_loaded, copy.deepcopy(model), one["tok"] + 1),
            "stepped": tried(_stepped, model, ids),
        }
    }


def _count(model):
    return sum(value.numel() for value in model.parameters())


def _is_tied(model):
    return model.lm_head.weight is model.tok_embed.weight


def _loaded(model, matrix):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("tok_embed.weight", "lm_head.weight"):
        state[name] = torch.from_numpy(matrix)
    model.load_state_dict(state)
    return _is_tied(model) and torch.equal(
        model.lm_head.weight, torch.from_numpy(matrix)
    )


def _stepped(model, ids):
    """Whether one step of training leaves the two equal, and moves them."""
    before = model.tok_embed.weight.detach().clone()
    model(ids, ids)[1].backward()
    with torch.no_grad():
        for value in model.parameters():
            value -= 0.1 * value.grad
    return torch.equal(
        model.lm_head.weight, model.tok_embed.weight
    ) and not torch.equal(model.tok_embed.weight, before)


def _ties(*keys, text):
    def judge(seen, want, inputs):
        for name in inputs:
            got, due = (part[name]["out"] for part in (seen, want))
            for key in keys:
                if key in due and got[key] != due[key]:
                    return Failure(f"{text} (model with {name})")
        return None

    return judge


def _tie_values(seen, want, inputs):
    for name in inputs:
        got, due = (part[name]["out"] for part in (seen, want))
        for key in ("embedding", "head", "product"):
            if key in due:
                if not isinstance(got[key], Array):
                    return Failure(
                        f"{key}: {describe(got[key])} came back, where "
                        "a tensor is due"
                    )
                if got[key].data.shape != due[key].data.shape:
                    return Failure(f"{key}: the shape has changed")
                difference = value_difference(got[key], due[key], 1e-12)
                if difference:
                    return Failure(
                        f"weight of the {key}: {difference} (model with "
                        f"{name})"
                    )
    return None


def _saved(seen, want, inputs):
    got, due = (part["GPT-2 small"]["out"] for part in (seen, want))
    if isinstance(got, Raised):
        return Failure(f"{trouble(got)} (on the meta device)")
    if got["saved"] != due["saved"]:
        return Failure(
            f"{got['saved']:,} parameters fewer; expected {due['saved']:,}"
        )
    return None


tie_weights = Exercise(
    "tie_weights",
    tie_inputs,
    (
        law(
            "runs",
            _init_runs,
            gate=True,
            because="what does not run cannot be judged",
            says="It has to run before anything else can be said.",
        ),
        law(
            "the embedding's values",
            _tie_values,
            points=0.75,
            gate=True,
            says=(
                "After the call head and embedding hold what the embedding "
                "held before, and both modules still work."
            ),
        ),
        law(
            "one parameter",
            _ties("one", text="head and embedding are two parameters"),
            points=1.25,
            gate=True,
            because="equality of values lasts until the next step",
            says=(
                "Equal values, or shared storage, are not enough: "
                "lm_head.weight has to be the very Parameter that "
                "tok_embed.weight is."
            ),
        ),
        law(
            "the embedding's own parameter",
            _ties(
                "the embedding's own",
                "trained",
                "names",
                "modules",
                "mode",
                text=(
                    "tok_embed.weight is another Parameter than before, is "
                    "not trained any more, or a module, its mode or a name "
                    "in state_dict has changed"
                ),
            ),
            points=0.5,
            says=(
                "Whoever holds the embedding's Parameter, an optimiser for "
                "instance, should still hold the one in use; it stays "
                "trainable, and both modules and both names in state_dict "
                "stay, in the mode in which they were."
            ),
        ),
        law(
            "still tied later",
            _ties(
                "copied",
                "converted",
                "loaded",
                "stepped",
                text="no longer tied after a copy, .to, load or step",
            ),
            because="implied by one parameter; why it has to be one",
            says=(
                "A tie has to last: after a deepcopy, a conversion, "
                "load_state_dict and a step of training."
            ),
        ),
        law(
            "at full size",
            _saved,
            points=0.5,
            because="the reason to tie; a count sees two Parameters",
            says="At GPT-2 small's size 38,597,376 parameters are saved.",
        ),
    ),
    probe=probe_tie,
)


# 5.5


GAPS = (2.1, 1.2, 0.7, 0.1, -0.4, -1.3, -2.2, -2.5, -2.9)


def filter_inputs(rng):
    def rows(*shape):
        """Rows of fixed gaps and shifts, in a random order of tokens."""
        V, count = shape[-1], math.prod(shape[:-1])
        gaps = np.array(GAPS)[:: 1 if V > 5 else 2][:V]
        made = [rng.permutation(gaps) + 1.7 * (i % 3) for i in range(count)]
        return np.array(made).reshape(shape)

    def log(*probs):
        return np.log(np.array([probs]))

    x, square = rows(3, 7), rows(5, 5)
    four = log(0.15, 0.5, 0.05, 0.3)
    mixed = log(0.2, 0.1, 0.4, 0.3)
    shut = np.array([[1.0, -np.inf, 0.5, 2.0, -np.inf]])
    apart = np.array([[5.0, 1.0, 0.0, 2.0, 3.0], [0.1, 0.5, 0.3, 0.0, 0.2]])
    wide = np.array([[1e4, -1e4, 9999.0, 9998.5, 0.0]])
    # Fixed, since a first token that is the largest hides some mistakes.
    late = np.array([[1.0, 0.2, 3.0, 0.5, -1.0], [0.1, 1.2, 0.7, 0.0, 2.5]])
    return {
        "nothing to do": case(rows(1, 3).round(2)),
        "temperature 2": case(x, 2.0),
        "temperature 0.5": case(x, temperature=0.5),
        "top_k=1": case(x, top_k=1),
        "top_k=2 of three": case(np.array([[0.5, 2.0, -1.0]]), top_k=2),
        "top_k=3": case(x, 1.0, 3),
        "as many rows as tokens": case(square, top_k=2),
        "all logits negative": case(-np.abs(x) - 1, top_k=3),
        "all logits positive": case(np.abs(x) + 1, top_k=3),
        "rows far apart": case(apart, top_k=2),
        "top_k of all": case(x, top_k=7),
        "top_k above V": case(x, top_k=17),
        "ties at k": case(np.array([[1.0, 2.0, 1.0, 0.0]]), top_k=2),
        "top_p=0.6": case(four, top_p=0.6),
        "top_p=0.1": case(four, top_p=0.1),
        "top_p=0.9": case(x, top_p=0.9),
        "top_p, square": case(square, top_p=0.7),
        "top_p, rows far apart": case(apart, top_p=0.75),
        "top_p=0": case(x, top_p=0.0),
        "top_p=1": case(x * 20, top_p=1.0),
        "top_p=1.5": case(x, top_p=1.5),
        "min_p=0.25": case(four, min_p=0.25),
        "min_p=0.05": case(x, min_p=0.05),
        "min_p=1": case(x, min_p=1.0),
        "min_p=0": case(x, min_p=0.0),
        "min_p, rows far apart": case(apart, min_p=0.5),
        "top_k, then top_p": case(mixed, top_k=3, top_p=0.75),
        "temperature, then top_p": case(four, 2.0, top_p=0.6),
        "temperature, then min_p": case(four, 0.5, min_p=0.25),
        "all four": case(x, 1.5, 5, 0.8, 0.2),
        "temperature 0": case(x, 0.0),
        "temperature 0, two maxima": case(
            np.array([[1.0, 3.0, 3.0, 0.0]]), temperature=0
        ),
        "temperature 0 and the rest": case(
            late, 0.0, top_k=2, top_p=0.5, min_p=0.5
        ),
        "hidden before, top_k": case(shut, top_k=2),
        "hidden before, top_p": case(shut, top_p=0.8),
        "hidden before, temperature": case(shut, 2.0, min_p=0.3),
        "large logits": case(wide, 0.5, top_p=0.9),
        "large logits, min_p": case(wide, min_p=0.3),
        "one row": case(rows(7), top_k=5, top_p=0.7),
        "one row, min_p": case(rows(7), 0.8, min_p=0.3),
        "three axes": case(rows(2, 3, 5), top_k=3, top_p=0.8),
        "a view": case(x, top_k=3, top_p=0.9, strided=True),
        "float32": case(x.astype("float32"), 0.7, 5, 0.9),
        "float16": case(x.astype("float16"), 0.7, 5, 0.9),
        "top_p, then min_p": case(four, top_p=0.82, min_p=0.2),
        "top_p, then a larger min_p": case(four, top_p=0.82, min_p=0.4),
        "top_k, then min_p": case(mixed, top_k=3, min_p=0.6),
        # A hair below min_p, where half precision would round up.
        "float16 near min_p": case(
            np.array([[0.0, -1.2998046875, -8, -7]], "float16"),
            0.7,
            min_p=0.156224,
        ),
        "bfloat16 near min_p": case(
            np.array([[0.0, -1.796875, -8, -7]]),
            0.7,
            min_p=0.077075,
            dtype="bfloat16",
        ),
    }


def probe_filter(answer, inputs):
    """Calls, with each row's largest logit moved to 0, as constants may."""
    seen = call_torch(answer, inputs)
    for one in seen.values():
        for part in ("out", "again"):
            if isinstance(one.get(part), Array):
                one[part] = _from_the_top(one[part])
    return seen


def _from_the_top(out):
    if not out.data.shape or not out.data.size:
        return out
    top = out.data.max(axis=-1, keepdims=True)
    data = out.data - np.where(np.isfinite(top), top, 0).astype(top.dtype)
    return dataclasses.replace(out, data=data)


def chances(out):
    """softmax of what came back, which constants do not change."""
    data = np.asarray(out.data, float)
    with np.errstate(invalid="ignore"):
        e = np.exp(data - data.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


def _kept(tol, *names):
    def judge(seen, want, inputs):
        for name in names:
            out, due = seen[name]["out"], want[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            if not isinstance(out, Array) or (
                out.data.shape != due.data.shape
            ):
                return Failure(
                    f"{describe(out)} came back; expected {describe(due)}",
                    name,
                )
            if np.isnan(out.data).any() or (out.data == np.inf).any():
                return Failure("there are nan or inf among the logits", name)
            kept, expected = (part.data != -np.inf for part in (out, due))
            if not np.array_equal(kept, expected):
                row = np.argwhere((kept != expected).any(axis=-1))[0]
                kept, expected = kept[tuple(row)], expected[tuple(row)]
                which = f" of row {', '.join(map(str, row))}" * (row.size > 0)
                return Failure(
                    f"tokens {_list(kept)}{which} are left; expected are "
                    f"{_list(expected)}",
                    name,
                )
            difference = value_difference(
                Array("numpy", "float64", chances(out)),
                Array("numpy", "float64", chances(due)),
                tol,
            )
            if difference:
                return Failure(f"softmax of the result: {difference}", name)
        return None

    return judge


def _list(kept):
    return np.flatnonzero(kept).tolist() or "none"


TOP_K = (
    "top_k=1",
    "top_k=2 of three",
    "top_k=3",
    "as many rows as tokens",
    "all logits negative",
    "all logits positive",
    "rows far apart",
    "top_k of all",
)
TOP_P = (
    "top_p=0.6",
    "top_p=0.1",
    "top_p=0.9",
    "top_p, square",
    "top_p, rows far apart",
)

filter_logits = Exercise(
    "filter_logits",
    filter_inputs,
    of_calls(
        law(
            "temperature",
            _kept(1e-10, "nothing to do", "temperature 2", "temperature 0.5"),
            points=0.5,
            gate=True,
            says=(
                "The logits are divided by the temperature, before any "
                "softmax: above 1 the choice becomes more even."
            ),
        ),
        law(
            "top-k",
            _kept(1e-10, *TOP_K),
            points=1,
            because="several filters together show it, too",
            says=(
                "In each row by itself, the k largest logits stay as they "
                "are and all others become −inf."
            ),
        ),
        law(
            "top-k at its edges",
            _kept(1e-10, "top_k above V", "ties at k"),
            points=0.5,
            says=(
                "A k above V means all tokens. What equals the k-th largest "
                "logit is kept, even if more than k stay."
            ),
        ),
        law(
            "top-p",
            _kept(1e-10, *TOP_P),
            points=1,
            because="several filters together show it, too",
            says=(
                "In each row by itself, sorted by probability, tokens stay "
                "until their sum reaches p; the one that crosses p stays, "
                "too. The order of the vocabulary is kept."
            ),
        ),
        law(
            "top-p at its edges",
            _kept(1e-10, "top_p=0", "top_p=1", "top_p=1.5"),
            points=0.25,
            says=(
                "top_p of 1 and more filters nothing, not even by a "
                "rounding error; 0 leaves the most likely token."
            ),
        ),
        law(
            "min-p",
            _kept(
                1e-10,
                "min_p=0.25",
                "min_p=0.05",
                "min_p=1",
                "min_p=0",
                "min_p, rows far apart",
            ),
            points=0.5,
            says=(
                "A token stays if its probability is at least min_p times "
                "the largest one of its row."
            ),
        ),
        law(
            "one after the other",
            _kept(
                1e-10,
                "top_k, then top_p",
                "temperature, then top_p",
                "temperature, then min_p",
                "top_p, then min_p",
                "top_p, then a larger min_p",
                "top_k, then min_p",
                "all four",
            ),
            points=0.5,
            says=(
                "Temperature, top-k, top-p, min-p, in this order; each sees "
                "the probabilities that the ones before have left, "
                "renormalised."
            ),
        ),
        law(
            "temperature 0",
            _kept(
                1e-10,
                "temperature 0",
                "temperature 0, two maxima",
                "temperature 0 and the rest",
            ),
            points=0.5,
            says=(
                "A temperature of 0 leaves the maxima, all of them if "
                "several are equal, and divides by nothing."
            ),
        ),
        law(
            "hidden before",
            _kept(
                1e-10,
                "hidden before, top_k",
                "hidden before, top_p",
                "hidden before, temperature",
            ),
            points=0.25,
            because="what filters again meets its own result",
            says="A logit of −inf stays −inf and disturbs nothing.",
        ),
        law(
            "large logits",
            _kept(1e-10, "large logits", "large logits, min_p"),
            because="the usual way out of range",
            says="Logits of ±10,000 are fine.",
        ),
        law(
            "any axes",
            _kept(1e-10, "one row", "one row, min_p", "three axes", "a view"),
            because="rows are rows wherever they stand",
            says="The last axis is the vocabulary, with any axes before it.",
        ),
        law(
            "float32 and half",
            lambda *args: (
                _kept(2e-6, "float32")(*args)
                or _kept(4e-3, "float16", "float16 near min_p")(*args)
                or _kept(3e-2, "bfloat16 near min_p")(*args)
            ),
            because=f"{HALF}; bfloat16 has 8 bits",
            says=(
                "The result has the logits' dtype, but half-precision logits "
                "are computed in float32."
            ),
        ),
    ),
    probe=probe_filter,
)


# 5.6


class Speaker(nn.Module):
    """A model whose next token depends on the whole window, by a table.

    It refuses too long a sequence, as a GPT does, and notes its calls.
    """

    def __init__(self, cfg, table):
        super().__init__()
        self.cfg = cfg
        self.table = nn.Parameter(table)
        self.drop = nn.Dropout(0.5)
        self.notes = []

    def forward(self, ids, targets=None):
        T = ids.shape[1]
        if T > self.cfg.context_length:
            raise ValueError(
                f"{T} tokens exceed the context of {self.cfg.context_length}"
            )
        graph = (
            torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        )
        self.notes.append([self.training, self.drop.training, graph])
        state = (ids * torch.arange(1, T + 1)).cumsum(1) % len(self.table)
        return self.drop(self.table[state]), None


SPREAD_OUT = (0.52, 0.13, 0.12, 0.12, 0.11)
DRAWN = 4096  # rows in which a token is drawn


def generate_inputs(rng):
    table = rng.permutation(13 * 7).reshape(13, 7) / 10.0
    square = rng.permutation(13 * 4).reshape(13, 4) / 10.0

    def one(ids, new, *, context=16, rows=table, seed=None, **kwargs):
        return {
            "table": rows,
            "context": context,
            "args": [np.asarray(ids), new],
            "kwargs": kwargs,
            "seed": seed,
            "train": True,
            "grad": True,
        }

    def ids(*shape, V=7):
        return rng.randint(0, V, shape)

    x = ids(2, 3)
    seed = int(rng.randint(1, 1000))
    greedy = {"temperature": 0}
    return {
        "one new token": one(ids(1, 3), 1, **greedy),
        "five new tokens": one(x, 5, **greedy),
        "a prompt of one": one(ids(3, 1), 4, **greedy),
        "top_k=1": one(x, 4, top_k=1),
        "as many rows as tokens": one(
            ids(4, 2, V=4), 5, rows=square, **greedy
        ),
        "nothing new": one(x, 0, **greedy),
        "past the context": one(x, 6, context=4, **greedy),
        "exactly the context": one(x, 2, context=4, **greedy),
        "a long prompt": one(ids(2, 6), 3, context=4, **greedy),
        "in eval mode": {**one(x, 2, **greedy), "train": False},
        "without gradients": {**one(x, 2, **greedy), "grad": False},
        "drawn": one(
            np.zeros((DRAWN, 1), dtype=int),
            1,
            rows=np.log([SPREAD_OUT] * 3),
            seed=seed,
        ),
        # A temperature of 1/2 squares these chances.
        "drawn, filtered": one(
            np.zeros((DRAWN, 1), dtype=int),
            1,
            rows=np.log([(0.1, 0.6, 0.1, 0.2)] * 3) / 2,
            seed=seed,
            temperature=0.5,
            top_k=2,
        ),
        "many draws": one(
            np.zeros((8, 1), dtype=int),
            40,
            rows=np.zeros((3, 8)),
            context=64,
            seed=seed,
        ),
        # Long enough for every token to come up.
        "a long text": one(
            np.zeros((1, 1), dtype=int),
            40,
            rows=np.zeros((3, 3)),
            context=64,
            seed=seed,
        ),
        "the generator": one(
            np.zeros((8, 1), dtype=int), 6, rows=np.zeros((3, 8)), seed=seed
        ),
    }


def probe_generate(answer, inputs):
    return {name: _spoken(answer, one, name) for name, one in inputs.items()}


def _spoken(answer, one, name):
    model = Speaker(
        GPTConfig(
            vocab_size=one["table"].shape[1], context_length=one["context"]
        ),
        torch.from_numpy(one["table"]),
    )
    model.train(one["train"])

    def run(generator):
        ids = torch.from_numpy(one["args"][0].copy())
        how = dict(one["kwargs"])
        if generator is not None:
            how["generator"] = generator
        out = answer(model, ids, one["args"][1], **how)
        return out, torch.equal(ids, torch.from_numpy(one["args"][0]))

    try:
        with torch.set_grad_enabled(one["grad"]):
            before = torch.get_rng_state()
            seed = one["seed"]
            out, unchanged = run(None if seed is None else _seeded(seed))
            untouched = torch.equal(before, torch.get_rng_state())
            seen = {
                "mode": [model.training, model.drop.training],
                "grad": torch.is_grad_enabled(),
                "trained": model.table.requires_grad,
                "modes inside": _distinct(note[:2] for note in model.notes),
                "graph": any(note[2] for note in model.notes)
                or bool(getattr(out, "requires_grad", False)),
                "unchanged": unchanged,
            }
            if name == "the generator":
                used = {
                    "torch's global random state stays as it was": untouched,
                    **_generators_used(lambda given: run(given)[0], seed, out),
                }
                return {"out": list(out.shape), "generator": used, **seen}
            if one["seed"] is None:
                return {"out": plain(out), **seen}
            drawn = out[:, one["args"][0].shape[1] :]
            V = one["table"].shape[1]
            if name == "a long text":
                return {"out": list(out.shape), **seen}
            if name == "many draws":
                rows = [row.unique().numel() for row in drawn]
                columns = [column.unique().numel() for column in drawn.T]
                seen["varied"] = [min(rows) > 3, max(columns) > 2]
                return {"out": list(out.shape), **seen}
            counts = torch.bincount(drawn.flatten(), minlength=V)
            eighths = (8 * counts / DRAWN).round().long().tolist()
            return {"out": list(out.shape), **seen, "eighths": eighths}
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def _generators_used(run, seed, out):
    """{what has to hold: whether it does}.

    run(generator): a text
    out: the text of a new generator of that seed
    """
    torch.rand(1)  # the global state is another one now
    same, later = _seeded(seed), _seeded(seed)
    torch.rand(1, generator=later)
    again, next_one = run(same), run(same)
    start = torch.get_rng_state()
    plain_one, plain_two = run(None), run(None)
    torch.set_rng_state(start)
    return {
        "the same state gives the same text": torch.equal(out, again),
        "another seed gives another text": not torch.equal(
            out, run(_seeded(seed + 1))
        ),
        "a second call with a generator gives another text": not torch.equal(
            out, next_one
        ),
        "a generator's state decides, and not its first seed": not torch.equal(
            out, run(later)
        ),
        "without one each text is another": not torch.equal(
            plain_one, plain_two
        ),
        "without one torch's global state decides": torch.equal(
            plain_one, run(None)
        ),
    }


def _distinct(notes):
    found = []
    for note in notes:
        if note not in found:
            found.append(note)
    return found


def _speaks(*names):
    def judge(seen, want, inputs):
        for name in names:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(f"{trouble(got)} ({_told(name, inputs)})")
            if not isinstance(got, Array):
                return Failure(
                    f"{describe(got)} came back ({_told(name, inputs)})"
                )
            if got.data.shape != due.data.shape:
                return Failure(
                    f"the shape is {got.data.shape} where {due.data.shape} "
                    f"is due ({_told(name, inputs)})"
                )
            if got.dtype != due.dtype:
                return Failure(f"the dtype is {got.dtype}, not {due.dtype}")
            if not np.array_equal(got.data, due.data):
                row = int((got.data != due.data).any(axis=1).argmax())
                return Failure(
                    f"row {row} is {got.data[row].tolist()}; expected "
                    f"{due.data[row].tolist()} ({_told(name, inputs)})"
                )
        return None

    return judge


def _told(name, inputs):
    ids, new = inputs[name]["args"]
    how = "".join(
        f", {key}={value}" for key, value in inputs[name]["kwargs"].items()
    )
    return (
        f"{name}: generate(model, a prompt of shape {ids.shape}, {new}{how}) "
        f"with a context of {inputs[name]['context']}"
    )


def _draws(seen, want, inputs):
    for name in ("drawn", "drawn, filtered"):
        got, due = seen[name], want[name]
        if isinstance(got["out"], Raised):
            return Failure(f"{trouble(got['out'])} ({_told(name, inputs)})")
        if got["out"] != due["out"]:
            return Failure(
                f"the shape is {tuple(got['out'])} where "
                f"{tuple(due['out'])} is due ({_told(name, inputs)})"
            )
        if got["eighths"] != due["eighths"]:
            return Failure(
                f"in {DRAWN} draws the tokens came up in "
                f"{_of_eight(got['eighths'])} of the cases; their chances "
                f"are {_of_eight(due['eighths'])} ({_told(name, inputs)})"
            )
    got = seen["many draws"]
    if isinstance(got["out"], Raised):
        return Failure(
            f"{trouble(got['out'])} ({_told('many draws', inputs)})"
        )
    if got["varied"] != want["many draws"]["varied"]:
        return Failure(
            "of 40 draws among 8 equally likely tokens, in 8 rows, "
            + (
                "those of one row are nearly all the same"
                if not got["varied"][0]
                else "all rows have the same"
            )
        )
    return None


def _how_many(seen, want, inputs):
    got, due = (part["a long text"]["out"] for part in (seen, want))
    if isinstance(got, Raised):
        return Failure(f"{trouble(got)} ({_told('a long text', inputs)})")
    if got != due:
        return Failure(
            f"the shape is {tuple(got)} where {tuple(due)} is due "
            f"({_told('a long text', inputs)})"
        )
    return _speaks("nothing new")(seen, want, inputs)


def _of_eight(eighths):
    return ", ".join(f"{part}/8" for part in eighths)


def _generator(seen, want, inputs):
    got, due = (part["the generator"] for part in (seen, want))
    if isinstance(got["out"], Raised):
        return Failure(f"{trouble(got['out'])} (with a generator)")
    for key in due["generator"]:
        if got["generator"][key] != due["generator"][key]:
            return Failure(f"this does not hold: {key}")
    return None


def _same_notes(*keys, text):
    def judge(seen, want, inputs):
        for name in inputs:
            got, due = seen[name], want[name]
            if isinstance(got["out"], Raised):
                continue
            for key in keys:
                if got[key] != due[key]:
                    return Failure(f"{text} ({name})")
        return None

    return judge


def _prompt_kept(seen, want, inputs):
    for name in inputs:
        if seen[name].get("unchanged") is False:
            return Failure(f"the prompt has other values afterwards ({name})")
    return None


generate = Exercise(
    "generate",
    generate_inputs,
    (
        RUNS,
        law(
            "the most likely token",
            _speaks(
                "one new token",
                "five new tokens",
                "a prompt of one",
                "top_k=1",
                "as many rows as tokens",
            ),
            points=1.25,
            gate=True,
            says=(
                "Each new token is chosen by the logits at the last "
                "position, appended behind the rest, and seen by the next "
                "step. The keyword arguments go to the filter."
            ),
        ),
        law(
            "how many",
            _how_many,
            because="40 draws among 3 tokens miss none, but for 3e-7",
            says=(
                "max_new_tokens come, whichever they are: no token ends the "
                "text. With 0 the prompt comes back."
            ),
        ),
        law(
            "the context",
            _speaks(
                "past the context", "exactly the context", "a long prompt"
            ),
            points=0.75,
            says=(
                "The model sees the last context_length tokens at most; "
                "what is returned is everything."
            ),
        ),
        law(
            "chances",
            _draws,
            points=0.5,
            because=(
                "4,096 draws, in eighths: a share of 0.52 reaches the next "
                "one with a probability below 1e-7"
            ),
            says=(
                "Tokens are drawn with the probabilities that softmax gives "
                "for the filtered logits, each row and each step by itself."
            ),
        ),
        law(
            "the generator",
            _generator,
            points=0.5,
            because="48 uniform draws among 8 never repeat by chance",
            says=(
                "The generator decides everything, if there is one: pass it "
                "to the function that draws, and seed, copy and restore "
                "nothing. Without one torch's global state does."
            ),
        ),
        law(
            "eval mode, no graph",
            _same_notes(
                "modes inside",
                "graph",
                text=(
                    "the model is called in train mode, or a graph for "
                    "gradients is built"
                ),
            ),
            points=0.5,
            because="dropout in train mode makes tokens random, too",
            says=(
                "Generate in eval mode, so that nothing is dropped, and "
                "without a graph, which would grow with every token."
            ),
        ),
        law(
            "left as found",
            _same_notes(
                "mode",
                "grad",
                "trained",
                text="mode or gradients are not as they were before",
            ),
            points=0.5,
            says=(
                "Afterwards the model is in the mode in which it was, train "
                "or eval, its parameters are still trained, and gradients "
                "are on or off as before."
            ),
        ),
        law(
            "arguments unchanged",
            _prompt_kept,
            because="a promise of the course to every caller",
            says="The prompt belongs to the caller.",
        ),
    ),
    probe=probe_generate,
)


# 5.7


def rate_inputs(rng):
    W, total = int(rng.randint(4, 8)), int(rng.randint(20, 30))
    high, low = round(rng.rand() + 1, 2), round(rng.rand() / 4 + 0.1, 2)

    def one(step, *, warmup=W):
        return case(step, high, low, warmup, total)

    middle = W + (total - W) // 2
    return {
        "half way": case(5, 1.0, 0.2, 2, 8),
        "the first step": one(0),
        "while warming up": one(2),
        "the last of the warm-up": one(W - 1),
        "the first after it": one(W),
        "the second after it": one(W + 1),
        "a quarter": one(W + (total - W) // 4),
        "the middle": one(middle),
        "late": one(total - 2),
        "the last step": one(total - 1),
        "the end": one(total),
        "after the end": one(total + 3),
        "long after the end": one(3 * total),
        "no warm-up": one(0, warmup=0),
        "no warm-up, later": one(7, warmup=0),
        "no warm-up, at the end": one(total, warmup=0),
        "nothing but warm-up": one(total - 1, warmup=total),
        "nothing but warm-up, then": one(total, warmup=total),
        "down to 0": case(9, 3e-4, 0.0, 4, 12),
        "down to 0, at the end": case(12, 3e-4, 0.0, 4, 12),
        "a warm-up from below min_lr": case(1, 1.0, 0.5, 10, 20),
        "a warm-up of one step": case(0, 1.0, 0.2, 1, 4),
        "one step in all": case(0, 1.0, 0.2, 0, 1),
    }


lr_at = Exercise(
    "lr_at",
    rate_inputs,
    of_calls(
        values(
            "the cosine",
            "half way",
            "the first after it",
            "the second after it",
            "a quarter",
            "the middle",
            "late",
            "the last step",
            "down to 0",
            floor=1e-4,
            points=0.75,
            gate=True,
            says=(
                "From max_lr at step = warmup to min_lr at step = total, "
                "half a period of a cosine: flat at both ends, half way "
                "between them in the middle."
            ),
        ),
        values(
            "the warm-up",
            "the first step",
            "while warming up",
            "the last of the warm-up",
            "a warm-up from below min_lr",
            "a warm-up of one step",
            points=0.5,
            because="a schedule that is all warm-up shows it, too",
            says=(
                "Step 0 already learns, with max_lr / warmup, and step "
                "warmup − 1 with max_lr."
            ),
        ),
        values(
            "no warm-up",
            "no warm-up",
            "no warm-up, later",
            "no warm-up, at the end",
            "one step in all",
            because="a division by zero waits here",
            says="With warmup=0 the cosine starts at step 0, with max_lr.",
        ),
        values(
            "the end",
            "the end",
            "after the end",
            "long after the end",
            "nothing but warm-up",
            "nothing but warm-up, then",
            "down to 0, at the end",
            floor=1e-4,
            points=0.25,
            says="From step = total on it is min_lr, for good.",
        ),
    ),
)


class Oddments(nn.Module):
    """Parameters of every kind: frozen, shared, of no dimension, in a list."""

    def __init__(self, D):
        super().__init__()
        self.inner = nn.Linear(D, D + 1)
        self.frozen = nn.Linear(D, D)
        self.frozen.requires_grad_(False)
        self.again = self.inner
        self.norm = nn.RMSNorm(D)
        self.scale = nn.Parameter(torch.ones(()))
        self.conv = nn.Conv1d(D, D, 3)
        self.patches = nn.Conv2d(1, D, 2)
        self.bias = nn.Parameter(torch.ones(2, D))
        self.list = nn.ParameterList([torch.ones(D), torch.ones(1, D)])


def groups_inputs(rng):
    wd = round(rng.rand() / 2 + 0.1, 2)

    def one(kind, wd, **how):
        return {"kind": kind, "how": how, "args": [wd]}

    return {
        "a GPT": one("toy", 0.1, **tiny(5, 4, 3, 1)),
        "a GPT of two layers": one("toy", wd, **tiny(5, 4, 3, 2)),
        "a GPT without biases": one("toy", wd, **tiny(5, 4, 3, 1, bias=False)),
        "oddments": one("oddments", wd, D=int(rng.randint(3, 6))),
        "a linear layer": one("linear", wd),
        "no matrices": one("norm", wd),
        "wd=0": one("toy", 0.0, **tiny(5, 4, 3, 1)),
    }


def probe_groups(answer, inputs):
    return {name: _grouped(answer, one) for name, one in inputs.items()}


def _grouped(answer, one):
    model = {
        "toy": lambda: Toy(GPTConfig(**one["how"])),
        "oddments": lambda: Oddments(**one["how"]),
        "linear": lambda: nn.Linear(2, 3),
        "norm": lambda: nn.LayerNorm(3),
    }[one["kind"]]()
    names = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), name)
    frozen = [value.requires_grad for value in model.parameters()]
    try:
        groups = list(answer(model, *one["args"]))
        unordered = any(isinstance(group["params"], set) for group in groups)
        found = [
            (
                names.get(id(value), "a tensor of its own"),
                float(group.get("weight_decay", -1.0)),
            )
            for group in groups
            for value in _members(group)
        ]
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    count = collections.Counter(name for name, _ in found)
    return {
        "out": {
            "decay": dict(sorted(dict(found).items())),
            "twice": sorted({name for name in count if count[name] > 1}),
            "unordered": unordered,
            "as before": frozen
            == [value.requires_grad for value in model.parameters()],
        }
    }


def _members(group):
    """A group's parameters: a tensor, lists, iterators and named pairs are
    all the same to torch.optim."""
    values = group["params"]
    return [
        value[1] if isinstance(value, tuple) else value
        for value in ([values] if torch.is_tensor(values) else values)
    ]


def _all_groups(test):
    def judge(seen, want, inputs):
        for name in inputs:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(f"{trouble(got)} (model: {name})")
            text = test(got, due)
            if text:
                return Failure(f"{text} (model: {name})")
        return None

    return judge


def _decays(got, due):
    for key in due["decay"]:
        if key in got["decay"] and got["decay"][key] != due["decay"][key]:
            number = got["decay"][key]
            return (
                f"{key} has weight_decay "
                f"{'that is not given' if number < 0 else number} where "
                f"{due['decay'][key]} is due"
            )
    return None


def _once(got, due):
    missing = due["decay"].keys() - got["decay"].keys()
    extra = got["decay"].keys() - due["decay"].keys()
    if missing:
        return f"in no group: {', '.join(sorted(missing))}"
    if extra:
        return f"does not belong into a group: {', '.join(sorted(extra))}"
    if got["twice"]:
        return f"more than once: {', '.join(got['twice'])}"
    if got["unordered"]:
        return "params is a set, which has no order: torch.optim refuses it"
    return None if got["as before"] else "requires_grad was changed"


def _gate_groups(seen, want, inputs):
    got, due = (part["a GPT"]["out"] for part in (seen, want))
    if isinstance(got, Raised):
        return Failure(trouble(got))
    if not due["decay"].keys() & got["decay"].keys():
        return Failure("no parameter of the model is in any group")
    return None


param_groups = Exercise(
    "param_groups",
    groups_inputs,
    (
        RUNS,
        law(
            "groups of parameters",
            _gate_groups,
            gate=True,
            because="what an optimiser cannot read cannot be judged",
            says=(
                "Return a list of dicts, each with params (tensors of the "
                "model) and weight_decay."
            ),
        ),
        law(
            "every trainable tensor once",
            _all_groups(_once),
            points=0.75,
            says=(
                "Each parameter that is trained is in exactly one group, "
                "tied ones once, frozen ones in none. A group's params are "
                "a list."
            ),
        ),
        law(
            "who decays",
            _all_groups(_decays),
            points=0.75,
            says=(
                "Two or more dimensions decay, embeddings too; the rest has "
                "weight_decay 0.0, said explicitly, or the optimiser's "
                "default would apply. Count dimensions, not names."
            ),
        ),
    ),
    probe=probe_groups,
)


# 5.8


@dataclasses.dataclass
class TrainConfig:
    """The configuration that the lesson provides."""

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


class Pupil(Toy):
    """A toy that notes how it is called."""

    def report(self, ids, targets):
        if targets is None:
            self.reports.append("called without targets")
            return
        self.reports.append(
            {
                "ids": plain(ids),
                "same": torch.equal(ids, targets),
                "train": _modes(self),
                "amp": str(torch.get_autocast_dtype("cpu"))
                if torch.is_autocast_enabled("cpu")
                else "off",
                "compiled": bool(Compiler.running),
            }
        )


class Recorder(torch.optim.Optimizer):
    """Plain gradient descent that notes what it gets."""

    def __init__(self, groups, named):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.7})
        self.named, self.updates = named, []

    @torch.no_grad()
    def step(self, closure=None):
        group_of = {
            id(value): group
            for group in self.param_groups
            for value in group["params"]
        }
        grads = [
            torch.full_like(value, math.nan)
            if value.grad is None
            else value.grad.to(value.dtype)
            for value in self.named.values()
        ]
        self.updates.append(
            {
                "grads": plain(torch.cat([grad.flatten() for grad in grads])),
                **{
                    key: plain(
                        torch.tensor(
                            [
                                group_of.get(id(value), {key: -1.0})[key]
                                for value in self.named.values()
                            ],
                            dtype=torch.float64,
                        )
                    )
                    for key in ("lr", "weight_decay")
                },
            }
        )
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    value -= group["lr"] * value.grad


class Scaler:
    """A gradient scaler with torch's methods, which notes their order."""

    def __init__(self, factor):
        self.factor, self.events, self.unscaled = factor, [], False

    def scale(self, loss):
        self.events.append("scale")
        return loss * self.factor

    def unscale_(self, optimizer):
        if self.unscaled:
            raise RuntimeError("unscale_() has already been called")
        self.events.append("unscale_")
        self.unscaled = True
        for group in optimizer.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    value.grad /= self.factor

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        self.events.append("step")
        optimizer.step()

    def update(self):
        self.events.append("update")
        self.unscaled = False

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.factor


class Compiler:
    """Stands for torch.compile, which would take seconds."""

    running = 0

    def __init__(self):
        self.backends = []

    def __call__(self, model=None, *, backend="inductor", **options):
        if model is None:
            return lambda model: self(model, backend=backend)
        self.backends.append(str(backend))
        if isinstance(model, nn.Module):
            return CompiledModule(model)
        return lambda *args, **how: Compiler.run(model, args, how)

    @staticmethod
    def run(model, args, how):
        Compiler.running += 1
        try:
            return model(*args, **how)
        finally:
            Compiler.running -= 1


class CompiledModule(nn.Module):
    def __init__(self, model):
        super().__init__()
        self._orig_mod = model

    def forward(self, *args, **how):
        return Compiler.run(self._orig_mod, args, how)


NO_CLIPPING = 1e9


def train_inputs(rng):
    weights = {
        name: value * 0.6
        for name, value in draw(rng, gpt_shapes(5, 4, 2, 1), 1.0).items()
    }

    def one(steps, batch_size, *, rows=7, train=True, **how):
        how.setdefault("max_norm", NO_CLIPPING)
        how.setdefault("max_lr", 0.01)
        how.setdefault("min_lr", 0.01)
        return {
            "weights": weights,
            "data": rng.randint(0, 5, (rows, 4)),
            "train": train,
            "stale gradients": False,
            "how": {"steps": steps, "batch_size": batch_size, **how},
            "scaler": None,
            "default optimizer": False,
        }

    # Two of them, so that one name for all is always wrong.
    names = ["eager", "aot_eager", "cudagraphs"]
    backend, other, _ = rng.permutation(names).tolist()
    return {
        "two updates": one(2, 2),
        "round the data": one(4, 3, rows=5, train=False),
        "a batch above the data": one(2, 7, rows=3),
        "in two parts": one(2, 4, accum_steps=2),
        "in unequal parts": one(2, 5, accum_steps=3),
        "in parts of one row": one(2, 3, accum_steps=3),
        "learning rates": one(
            6,
            2,
            accum_steps=2,
            max_lr=0.03,
            min_lr=0.02,  # above the first rate
            warmup=2,
            weight_decay=0.3,
        ),
        "clipped": one(2, 3, max_norm=0.05),
        "clipped in parts": one(2, 5, accum_steps=2, max_norm=0.05),
        "autocast": one(1, 2, amp=True),
        "autocast in parts": one(1, 4, amp=True, accum_steps=2),
        "compiled": one(2, 3, compile=backend),
        "a second run": {
            **one(1, 2, compile=other),
            "stale gradients": True,
        },
        "scaled": {**one(2, 2), "scaler": 64.0},
        "scaled and clipped": {
            **one(2, 5, accum_steps=2, max_norm=0.05),
            "scaler": 64.0,
        },
        "AdamW": {
            **one(
                4,
                2,
                betas=(0.5, 0.75),
                eps=0.1,
                weight_decay=0.5,
                max_lr=4e-6,
                min_lr=1e-6,
            ),
            "default optimizer": True,
        },
    }


def probe_train(answer, inputs):
    return {name: _trained(answer, one) for name, one in inputs.items()}


def _pupil(one):
    """The model of a case, as it is before it is trained."""
    model = Pupil(GPTConfig(**tiny(5, 4, 2, 1))).double()
    own = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, value in one["weights"].items():
            own[name].copy_(torch.from_numpy(value))
    if one["stale gradients"]:
        for value in model.parameters():
            value.grad = torch.ones_like(value)
    return model.train(one["train"])


def _trained(answer, one):
    model = _pupil(one)
    own = dict(model.named_parameters(remove_duplicate=False))
    start = {name: value.detach().clone() for name, value in own.items()}
    recorders, compiler = [], Compiler()
    named = dict(model.named_parameters())

    def make_optimizer(groups):
        recorders.append(Recorder(groups, named))
        return recorders[-1]

    how = dict(one["how"])
    if one["scaler"]:
        how["scaler"] = Scaler(one["scaler"])
    if not one["default optimizer"]:
        how["make_optimizer"] = make_optimizer
    cfg = TrainConfig(**how)
    settings = dict(vars(cfg))
    data = torch.from_numpy(one["data"].copy())
    real, torch.compile = torch.compile, compiler
    Compiler.running = 0
    try:
        losses = answer(model, data, cfg)
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    finally:
        torch.compile = real
    reports = [part for part in model.reports if isinstance(part, dict)]
    seen = {
        "out": plain(losses),
        "kinds": _distinct(type(part).__name__ for part in losses)
        if isinstance(losses, list)
        else [],
        "rows": [part["ids"] for part in reports],
        "targets are the ids": all(part["same"] for part in reports)
        and len(reports) == len(model.reports),
        "modes": _distinct(part["train"] for part in reports),
        "amp": _distinct(part["amp"] for part in reports),
        "compiled": _distinct(part["compiled"] for part in reports),
        "backends": compiler.backends,
        "events": cfg.scaler.events if cfg.scaler else [],
        "mode after": _modes(model),
        "parameters after": _distinct(
            [str(value.dtype), value.requires_grad]
            for value in model.parameters()
        ),
        "unchanged": torch.equal(data, torch.from_numpy(one["data"]))
        and vars(cfg) == settings,
        "optimizers": len(recorders),
    }
    if recorders:
        seen["updates"] = recorders[0].updates
    else:
        rate = one["how"]["max_lr"]
        seen["moved"] = {
            name: plain((own[name].detach() - start[name]) / rate)
            for name in one["weights"]
        }
    return seen


def _train_runs(seen, want, inputs):
    for name in inputs:
        got = seen[name]["out"]
        if isinstance(got, Raised):
            return Failure(f"{trouble(got)} ({name}: {_config(inputs[name])})")
    return None


def _config(one):
    how = ", ".join(
        f"{key}={value!r}"
        for key, value in one["how"].items()
        if not (key == "max_norm" and value == NO_CLIPPING)
    )
    scaler = ", scaler=a gradient scaler" if one["scaler"] else ""
    stale = ", the model has old gradients" if one["stale gradients"] else ""
    return (
        f"TrainConfig({how}{scaler}), {len(one['data'])} rows of data{stale}"
    )


def _each(test, *names):
    """A property of the named cases: test(seen, want, one) → text or None."""

    def judge(seen, want, inputs):
        for name in names or inputs:
            text = test(seen[name], want[name], inputs[name])
            if text:
                return Failure(f"{text} ({name}: {_config(inputs[name])})")
        return None

    return judge


def _losses(tol, count=None):
    def test(got, due, one):
        if not isinstance(got["out"], list):
            return f"{describe(got['out'])} came back; a list is due"
        if len(got["out"]) != len(due["out"]):
            return (
                f"{len(got['out'])} losses came back; one for each of the "
                f"{len(due['out'])} updates is due"
            )
        for part in got["out"]:
            if not isinstance(part, int | float) and not (
                isinstance(part, Array) and part.data.shape == ()
            ):
                return f"{describe(part)} is among the losses"
        pairs = list(zip(got["out"], due["out"], strict=True))[:count]
        for index, pair in enumerate(pairs):
            difference = value_difference(*pair, tol)
            if difference:
                return f"loss {index}: {difference}"
        return None

    return test


def _floats(got, due, one):
    if any(
        isinstance(part, Array) and part.library == "torch"
        for part in got["out"]
    ):
        return "tensors came back, which keep the graph of every step"
    return None


def _rows(got, due, one):
    mine, theirs = (
        np.concatenate([part.data for part in each["rows"]])
        if each["rows"]
        else np.zeros((0, 4))
        for each in (got, due)
    )
    if mine.shape != theirs.shape or not np.array_equal(mine, theirs):
        return (
            f"the model saw {len(mine)} rows in all, not the "
            f"{len(theirs)} due, or others"
        )
    if not got["targets are the ids"]:
        return "targets are not the ids themselves (the model shifts them)"
    largest = math.ceil(
        one["how"]["batch_size"] / one["how"].get("accum_steps", 1)
    )
    if any(len(part.data) > largest for part in got["rows"]):
        return f"the model saw more than {largest} rows at once"
    return None


def _grads(tol):
    def test(got, due, one):
        if got["optimizers"] != 1:
            return (
                f"{got['optimizers']} optimisers were made by cfg's function"
            )
        if len(got["updates"]) != len(due["updates"]):
            return (
                f"{len(got['updates'])} updates were made; expected "
                f"{len(due['updates'])}"
            )
        pairs = zip(got["updates"], due["updates"], strict=True)
        for index, (mine, theirs) in enumerate(pairs):
            place = 0
            for name, value in one["weights"].items():
                part = slice(place, place + value.size)
                place += value.size
                got, due = (
                    each["grads"].data[part] for each in (mine, theirs)
                )
                # Relative: clipped gradients are small.
                floor = max(1e-2, np.abs(due).max())
                difference = value_difference(
                    Array("torch", "float64", got),
                    Array("torch", "float64", due),
                    tol,
                    floor,
                )
                if difference:
                    return (
                        f"gradient of {name} in update {index}: {difference}"
                    )
        return None

    return test


def _settings(key, what, tol):
    def test(got, due, one):
        for index, (mine, theirs) in enumerate(
            zip(got["updates"], due["updates"], strict=True)
        ):
            wrong = np.abs(mine[key].data - theirs[key].data) > tol
            if wrong.any():
                place = int(wrong.argmax())
                return (
                    f"update {index} has for {list(one['weights'])[place]} "
                    f"the {what} {mine[key].data[place]:.6g}; expected "
                    f"{theirs[key].data[place]:.6g}"
                )
        return None

    return test


def _moved(got, due, one):
    for name, value in due["moved"].items():
        difference = value_difference(got["moved"][name], value, 1e-3, 0.1)
        if difference:
            return f"what {name} has moved, in units of max_lr: {difference}"
    return None


def _equal_notes(*keys):
    def test(got, due, one):
        for key in keys:
            if got[key] != due[key]:
                return f"{key}: {got[key]}; expected {due[key]}"
        return None

    return test


PARTS = ("in two parts", "in unequal parts", "in parts of one row")

train = Exercise(
    "train",
    train_inputs,
    (
        law(
            "runs",
            _train_runs,
            gate=True,
            because="what does not run cannot be judged",
            says="It has to run before anything else can be said.",
        ),
        law(
            "rows in order",
            _each(
                _rows,
                *("two updates", "round the data"),
                "a batch above the data",
                *PARTS,
            ),
            points=0.75,
            because="other rows have other losses and gradients, too",
            says=(
                "Update s takes the next batch_size rows, and after the last "
                "row comes the first again. Rows are ids and targets at "
                "once: the model does the shift."
            ),
        ),
        law(
            "losses",
            _each(_losses(1e-10, 1), "two updates", "round the data", *PARTS),
            points=0.5,
            gate=True,
            says=(
                "One number an update: the mean loss over the whole batch, "
                "as it was before the update."
            ),
        ),
        law(
            "gradients",
            _each(_grads(1e-9), "two updates", "round the data"),
            points=0.75,
            gate=True,
            says=(
                "Every update starts with empty gradients and sees those of "
                "its own batch. Those of a later one also depend on the "
                "rates before it."
            ),
        ),
        law(
            "later losses",
            _each(_losses(1e-8), "two updates", "round the data"),
            points=0.25,
            because="implied by gradients and rates; it is what one looks at",
            says=(
                "The loss of a later update is that of the weights that the "
                "updates before have left."
            ),
        ),
        law(
            "losses with a scaler",
            _each(_losses(1e-10, 1), "scaled", "scaled and clipped"),
            because="a scale of 65,536 is easily seen, if one looks",
            says="The losses that come back are those before scaling.",
        ),
        law(
            "accumulation",
            _each(_grads(1e-9), *PARTS),
            points=1,
            because="clipping sees the sum of the parts, too",
            says=(
                "The parts add up to the gradient of the whole batch's mean: "
                "each part's mean loss counts by its share of the rows."
            ),
        ),
        law(
            "clipping",
            _each(_grads(1e-4), "clipped", "clipped in parts"),
            points=0.5,
            because="some divide by the norm plus 1e-6: at 0.05, 2e-5",
            says=(
                "The norm of all gradients together is cut down to max_norm "
                "if it is above, once an update, after the backward passes "
                "and before the step. Smaller gradients stay as they are."
            ),
        ),
        law(
            "gradient scaler",
            _each(_grads(1e-4), "scaled", "scaled and clipped"),
            points=0.5,
            because="as for clipping; factors of 64 are exact",
            says=(
                "With a scaler: scale each loss, unscale once before "
                "clipping, then scaler.step and scaler.update."
            ),
        ),
        law(
            "the scaler's calls",
            _each(
                _equal_notes("events"),
                "scaled",
                "scaled and clipped",
            ),
            because="a scaler that is not updated never adapts",
            says=(
                "In each update: scale once a part, unscale_, step, update, "
                "in this order, and the step is the scaler's."
            ),
        ),
        law(
            "old gradients",
            _each(_grads(1e-9), "a second run"),
            says=(
                "A model may come with gradients of an earlier run: the "
                "first update, too, starts with empty ones."
            ),
        ),
        law(
            "learning rates",
            _each(
                _settings("lr", "rate", 1e-9), "two updates", "learning rates"
            ),
            points=0.5,
            says=(
                "Before update s every group gets the rate of step s, "
                "all groups alike."
            ),
        ),
        law(
            "weight decay",
            _each(
                _settings("weight_decay", "decay", 1e-12),
                "two updates",
                "learning rates",
            ),
            points=0.25,
            because="what AdamW moves shows it, too",
            says=(
                "make_optimizer gets two groups: matrices and embeddings "
                "with cfg.weight_decay, the rest with 0.0."
            ),
        ),
        law(
            "AdamW",
            _each(_moved, "AdamW"),
            points=0.5,
            because="to first order in a rate of 4e-6",
            says=(
                "Without make_optimizer the optimiser is torch.optim.AdamW "
                "with the groups and with cfg's betas and eps."
            ),
        ),
        law(
            "autocast",
            _each(
                _equal_notes("amp"),
                "two updates",
                "autocast",
                "autocast in parts",
            ),
            points=0.25,
            says=(
                "With amp=True the forward pass runs under autocast to "
                "bfloat16, and without it not."
            ),
        ),
        law(
            "compile",
            _each(
                _equal_notes("backends", "compiled"),
                "two updates",
                "compiled",
                "a second run",
            ),
            points=0.25,
            says=(
                "With cfg.compile the model is compiled with that backend, "
                "once, and it is the compiled model that runs."
            ),
        ),
        law(
            "modes",
            _each(_equal_notes("modes", "mode after", "parameters after")),
            because="dropout is the reason",
            says=(
                "Train in train mode, also a model that comes in eval mode, "
                "and leave it in the mode in which it came, its parameters "
                "in their dtype and trained."
            ),
        ),
        law(
            "plain numbers",
            _each(_floats),
            because="no number shows it",
            says="Return floats: loss.item() lets go of the graph.",
        ),
        law(
            "arguments unchanged",
            _each(_equal_notes("unchanged")),
            because="a promise of the course to every caller",
            says="The data and the configuration belong to the caller.",
        ),
    ),
    probe=probe_train,
)


# 5.9


def beam_inputs(rng):
    """Tables [depth, last token, next token] of log-probabilities."""

    # Fixed chances, so that a mistake always shows; the ids are drawn.
    fixed = np.random.RandomState(5)

    def one(probs, bos, eos, k, max_len):
        raw = np.asarray(probs, float)
        raw = raw * (1 + 0.01 * fixed.rand(*raw.shape))  # no ties
        new = rng.permutation(raw.shape[-1])
        back = np.argsort(new)
        raw = raw[:, back][:, :, back]
        with np.errstate(divide="ignore"):
            table = np.log(raw / raw.sum(axis=-1, keepdims=True))
        return {
            "table": table,
            "args": [int(new[bos]), int(new[eos]), k, max_len],
            "kwargs": {},
        }

    def chance(depth, V):
        return fixed.dirichlet(np.ones(V), (depth, V))

    # The first step's favourite leads astray.
    trap = [
        [[0.0, 0.6, 0.4, 0.0]] * 4,
        [
            [0.25, 0.25, 0.25, 0.25],
            [0.35, 0.3, 0.2, 0.15],
            [0.02, 0.03, 0.9, 0.05],
            [0.25, 0.25, 0.25, 0.25],
        ],
        [
            [0.25, 0.25, 0.25, 0.25],
            [0.35, 0.15, 0.3, 0.2],
            [0.02, 0.05, 0.03, 0.9],
            [0.25, 0.25, 0.25, 0.25],
        ],
    ]
    # An early end with 0.3 loses against a longer one with 0.46.
    early = [
        [[0.0, 0.7, 0.0, 0.3]] * 4,
        [[0.1, 0.7, 0.15, 0.05]] * 4,
        [[0.02, 0.01, 0.02, 0.95]] * 4,
    ]
    # A short one with 0.4 wins, though its mean a token is lower.
    short = [
        [[0.0, 0.6, 0.0, 0.4]] * 4,
        [[0.0, 0.8, 0.2, 0.0]] * 4,
        [[0.0, 0.75, 0.25, 0.0]] * 4,
        [[0.0, 0.2, 0.0, 0.8]] * 4,
    ]
    # Both of one parent's children beat the other parent's.
    family = [
        [[0.0, 0.6, 0.4, 0.0]] * 4,
        [
            [0.25, 0.25, 0.25, 0.25],
            [0.53, 0.0, 0.47, 0.0],
            [0.5, 0.0, 0.4, 0.1],
            [0.25, 0.25, 0.25, 0.25],
        ],
        [
            [0.4, 0.3, 0.2, 0.1],
            [0.25, 0.25, 0.25, 0.25],
            [0.02, 0.95, 0.02, 0.01],
            [0.25, 0.25, 0.25, 0.25],
        ],
    ]
    # What wins is the seventh best after two rounds.
    crowd = [
        [[0.4, 0.33, 0.27, 0.0]] * 4,
        [[0.42, 0.42, 0.12, 0.04]] * 4,
        [[0.25] * 4, [0.25] * 4, [0.01, 0.01, 0.01, 0.97], [0.25] * 4],
    ]
    unfinished = [
        [[0.0, 0.55, 0.0, 0.45]] * 4,
        [[0.02, 0.95, 0.02, 0.01]] * 4,
    ]
    return {
        "a trap for the greedy": one(trap, 0, 3, 2, 3),
        "greedy": one(trap, 0, 3, 1, 3),
        "an early end": one(early, 0, 3, 2, 3),
        "a short winner": one(short, 0, 3, 2, 4),
        "children of one parent": one(family, 0, 3, 2, 3),
        "no end in time": one(unfinished, 0, 3, 3, 2),
        "one token": one(chance(1, 4), 2, 0, 2, 1),
        "no tokens": one(chance(1, 4), 1, 0, 2, 0),
        "bos is eos": one(early, 3, 3, 2, 3),
        "bos is eos, wide": one(chance(3, 4), 2, 2, 5, 3),
        "all sequences": one(chance(3, 4), 0, 3, 64, 3),
        "all sequences, three tokens": one(chance(4, 3), 1, 2, 81, 4),
        **{
            f"random, k={k}, {i}": one(chance(4, 5), 0, 4, k, 4)
            for k in (2, 3)
            for i in range(3)
        },
        "k above V": one(crowd, 0, 3, 8, 3),
    }


def probe_beam(answer, inputs):
    return {name: _searched(answer, one) for name, one in inputs.items()}


def _searched(answer, one):
    table = torch.from_numpy(one["table"])
    bos, eos, k, max_len = one["args"]
    asked, listed = [], []

    def logp_fn(ids):
        listed.append(_is_list_of_ids(ids))
        ids = [int(part) for part in ids]
        asked.append(ids)
        if len(ids) > len(table):
            raise IndexError(
                f"logp_fn was asked for what follows {len(ids) - 1} tokens "
                f"after bos, and max_len is {max_len}"
            )
        return table[len(ids) - 1, ids[-1]].clone()

    try:
        out = answer(logp_fn, bos, eos, k, max_len)
        listed.append(_is_list_of_ids(out))
        out = [int(part) for part in out]
    except (Exception, SystemExit) as error:
        return {"out": raised(error)}
    return {
        "out": out,
        "lists": all(listed),
        "from bos": all(ids[:1] == [bos] for ids in asked),
        "past the end": any(eos in ids[1:] for ids in asked),
        "calls": min(len(asked), 1000),
    }


def _is_list_of_ids(ids):
    return isinstance(ids, list | tuple) and all(
        isinstance(part, int | np.integer) for part in ids
    )


def _beam_form(seen, want, inputs):
    for name, one in inputs.items():
        bos, eos, _, max_len = one["args"]
        out = seen[name]["out"]
        if isinstance(out, Raised):
            return Failure(f"{trouble(out)} ({_beam(name, one)})")
        if out[:1] != [bos] or len(out) > max_len + 1:
            return Failure(
                f"{out} came back, which does not start with bos = {bos} or "
                f"has more than {max_len} ids after it ({_beam(name, one)})"
            )
        if eos in out[1:-1]:
            return Failure(
                f"{out} goes on after eos = {eos} ({_beam(name, one)})"
            )
        if len(out) < max_len + 1 and out[1:][-1:] != [eos]:
            return Failure(
                f"{out} stops before max_len and without eos = {eos} "
                f"({_beam(name, one)})"
            )
    return None


def _beam(name, one):
    bos, eos, k, max_len = one["args"]
    return f"{name}: bos={bos}, eos={eos}, k={k}, max_len={max_len}"


def _score(one, ids):
    depth = range(len(ids) - 1)
    return sum(one["table"][i, ids[i], ids[i + 1]] for i in depth)


def _beams(*names):
    def judge(seen, want, inputs):
        for name in names or inputs:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(f"{trouble(got)} ({_beam(name, inputs[name])})")
            if got != due:
                return Failure(
                    f"{got} came back, with the total log-probability "
                    f"{_score(inputs[name], got):.4f}; expected is {due} "
                    f"with {_score(inputs[name], due):.4f} "
                    f"({_beam(name, inputs[name])})"
                )
        return None

    return judge


def _best_of_all(seen, want, inputs):
    """With room for every sequence nothing may be missed."""
    for name in ("all sequences", "all sequences, three tokens", "k above V"):
        one = inputs[name]
        best = max(_sequences(one, [one["args"][0]]), key=lambda ids: ids[1])
        if isinstance(seen[name]["out"], Raised):
            return Failure(
                f"{trouble(seen[name]['out'])} ({_beam(name, one)})"
            )
        if seen[name]["out"] != best[0]:
            return Failure(
                f"{seen[name]['out']} came back where, of all sequences, "
                f"{best[0]} is the most likely ({_beam(name, one)})"
            )
    return None


def _sequences(one, ids):
    _, eos, _, max_len = one["args"]
    if len(ids) > 1 and ids[-1] == eos or len(ids) == max_len + 1:
        yield ids, _score(one, ids)
        return
    for token in range(one["table"].shape[-1]):
        yield from _sequences(one, [*ids, token])


def _asked(seen, want, inputs):
    for name, one in inputs.items():
        if not seen[name]["lists"]:
            return Failure(
                "what logp_fn was given, or what came back, is no list of "
                f"Python numbers ({_beam(name, one)})"
            )
        if not seen[name]["from bos"]:
            return Failure(
                f"logp_fn was given ids that do not start with bos "
                f"({_beam(name, one)})"
            )
        if seen[name]["past the end"]:
            return Failure(
                f"logp_fn was asked for what follows an eos "
                f"({_beam(name, one)})"
            )
    return None


beam_search = Exercise(
    "beam_search",
    beam_inputs,
    (
        RUNS,
        law(
            "a sequence",
            _beam_form,
            gate=True,
            says=(
                "The result starts with bos and holds at most max_len ids "
                "after it; it ends with eos if that was reached, and nothing "
                "follows an eos."
            ),
        ),
        law(
            "two beams",
            _beams(
                "a trap for the greedy",
                "greedy",
                "children of one parent",
                "one token",
                "no tokens",
                *(f"random, k=2, {i}" for i in range(3)),
                *(f"random, k=3, {i}" for i in range(3)),
            ),
            points=2,
            gate=True,
            says=(
                "In each round all continuations of all k hypotheses compete "
                "by their total log-probability, and the best k stay."
            ),
        ),
        law(
            "the most likely of all",
            _best_of_all,
            points=1,
            because="brute force: no search can be better",
            says=(
                "With k large enough nothing of use is pruned, so the result "
                "is the most likely sequence there is. k may exceed V."
            ),
        ),
        law(
            "finished hypotheses",
            _beams("an early end", "a short winner", "no end in time"),
            points=2,
            says=(
                "A finished hypothesis competes on, with its total as it is: "
                "it neither ends the search nor is it preferred, forgotten "
                "or measured by its length."
            ),
        ),
        law(
            "bos as eos",
            _beams("bos is eos", "bos is eos, wide"),
            points=1,
            because="the first id of GPT-2's texts is also their last",
            says=(
                "bos may be the same id as eos, as in GPT-2: the first id "
                "ends nothing."
            ),
        ),
        law(
            "lists of ids",
            _asked,
            because="a real model costs a forward pass each time",
            says=(
                "logp_fn gets a list of the ids from bos on, and never a "
                "sequence that is finished. The result is such a list, too: "
                "of Python numbers, not of tensors."
            ),
        ),
    ),
    probe=probe_beam,
)


# 5.10


GPT2_LAYER = (
    "ln_1",
    "attn.c_attn",
    "attn.c_proj",
    "ln_2",
    "mlp.c_fc",
    "mlp.c_proj",
)


def gpt2_names(L, *, prefix="transformer."):
    """transformers' names of a GPT-2's parameters, all but the head."""
    names = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
    for i in range(L):
        for name in GPT2_LAYER:
            names += [f"h.{i}.{name}.weight", f"h.{i}.{name}.bias"]
    return [prefix + name for name in names]


def gpt2_shape(name, V, C, D):
    """The shape that transformers gives a parameter (Conv1D: in, out)."""
    part, kind = name.split(".")[-2:]
    wide = {
        "wte": (V, D),
        "wpe": (C, D),
        "c_attn": (D, 3 * D),
        "c_fc": (D, 4 * D),
    }
    if "mlp.c_proj" in name:
        shape = (4 * D, D)
    else:
        shape = wide.get(part, (D, D) if part == "c_proj" else (D,))
    return shape if kind == "weight" else shape[-1:]


def load_inputs(rng):
    V, C, D = 5, 4, 3

    def one(
        L,
        *,
        prefix="transformer.",
        head=True,
        masks=False,
        drop=None,
        extra=None,
        order=False,
        dtype="float64",
    ):
        state = {
            name: rng.randn(*gpt2_shape(name, V, C, D)).round(3)
            for name in gpt2_names(L, prefix=prefix)
        }
        for i in range(L if masks else 0):
            stem = f"{prefix}h.{i}.attn."
            state[f"{stem}bias"] = np.tril(np.ones((1, 1, C, C)))
            state[f"{stem}masked_bias"] = np.array(-1e4)
        if drop:
            del state[prefix + drop]
        if extra:
            state[prefix + extra] = rng.randn(D)
        state = {name: value.astype(dtype) for name, value in state.items()}
        names = list(state)
        if order:
            names = [names[i] for i in rng.permutation(len(names))]
        return {
            "cfg": tiny(V, C, D, L),
            "names": names,
            "arrays": [state[name] for name in names],
            "head": f"{prefix}wte.weight" if head else "",
            "head first": order,
            "train": not order,
            "odd": drop or extra or "",
        }

    return {
        "GPT2LMHeadModel": one(1),
        "two layers": one(2),
        "GPT2Model, no prefix": one(1, prefix="", head=False),
        "mask buffers": one(2, masks=True),
        "another order": one(2, order=True),
        "no head": one(1, head=False),
        "no prefix, with a head": one(1, prefix=""),
        "h.0.mlp.c_fc.bias is missing": one(1, drop="h.0.mlp.c_fc.bias"),
        "wpe.weight is missing": one(
            1, prefix="", head=False, drop="wpe.weight"
        ),
        "h.1.ln_2.weight is unknown": one(1, extra="h.1.ln_2.weight"),
        "h.0.attn.q_norm.bias is unknown": one(
            1, extra="h.0.attn.q_norm.bias"
        ),
        "lm_head.bias is unknown": one(1, prefix="", extra="lm_head.bias"),
        "eleven layers": one(11, masks=True),
        "float32 values": one(1, dtype="float32"),
    }


def probe_load(answer, inputs):
    return {name: _transplanted(answer, one) for name, one in inputs.items()}


def _transplanted(answer, one):
    model = Toy(GPTConfig(**one["cfg"])).double()
    model.train(one["train"])
    state = {
        name: torch.from_numpy(np.array(value))
        for name, value in zip(one["names"], one["arrays"], strict=True)
    }
    if one["head"]:
        head = {"lm_head.weight": state[one["head"]]}
        state = head | state if one["head first"] else state | head
    before = {name: value.clone() for name, value in state.items()}
    own, grad = (
        {id(value) for value in model.parameters()},
        torch.is_grad_enabled(),
    )
    try:
        answer(model, state)
    except (Exception, SystemExit) as error:
        return {"out": raised(error), "named": one["odd"] in str(error)}
    loaded = dict(model.named_parameters(remove_duplicate=False))
    seen = {
        "out": {name: plain(value) for name, value in sorted(loaded.items())},
        "names kept": list(state) == list(before),
        "source": all(
            torch.equal(state[name], before[name])
            for name in before
            if name in state
        ),
        "tied": model.lm_head.weight is model.tok_embed.weight,
        "own": {id(value) for value in model.parameters()} == own,
        "trained": all(value.requires_grad for value in model.parameters()),
        "mode": _modes(model) == [one["train"]],
        "gradients": torch.is_grad_enabled() == grad,
        "dtypes": _distinct(str(value.dtype) for value in loaded.values()),
    }
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    seen["alias"] = not all(
        name in state and torch.equal(state[name], before[name])
        for name in before
    )
    return seen


def _weights(*names, chosen=lambda key: True):
    def judge(seen, want, inputs):
        for name in names:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(f"{trouble(got)} (state dict: {name})")
            for key in filter(chosen, due):
                if key not in got:
                    return Failure(f"{key} is gone (state dict: {name})")
                if got[key].data.shape != due[key].data.shape:
                    return Failure(
                        f"{key} has the shape {got[key].data.shape}; "
                        f"expected {due[key].data.shape}"
                    )
                difference = value_difference(got[key], due[key], 1e-12)
                if difference:
                    return Failure(f"{key}: {difference} (state dict: {name})")
        return None

    return judge


def _linear(key):
    return key.endswith(("_proj.weight", "fc1.weight", "fc2.weight"))


def _refused(*names):
    def judge(seen, want, inputs):
        for name in names:
            out = seen[name]["out"]
            wanted = name.split()[0]
            if not isinstance(out, Raised):
                return Failure(f"nothing was raised, though {name}")
            if "KeyError" not in out.bases:
                return Failure(
                    f"{trouble(out)}, where a KeyError is due: {name}"
                )
            if wanted not in out.text:
                return Failure(f"the KeyError says {out.text}, though {name}")
        return None

    return judge


def _load_left(seen, want, inputs):
    for name in inputs:
        got = seen[name]
        if isinstance(got["out"], Raised):
            continue
        if not (got["source"] and got["names kept"]):
            return Failure(f"the state dict was changed ({name})")
        if got["alias"]:
            return Failure(
                "a later step of the model would change the state dict "
                f"({name})"
            )
    return None


def _load_tied(seen, want, inputs):
    for name in inputs:
        got = seen[name]
        if isinstance(got["out"], Raised):
            continue
        if not (got["tied"] and got["own"]):
            return Failure(
                "the model has other parameters than before, or its head is "
                f"no longer the embedding ({name})"
            )
        if not got["trained"]:
            return Failure(
                f"some parameters are not trained any more ({name})"
            )
        if not got["mode"]:
            return Failure(
                f"the model is in another mode than before ({name})"
            )
        if not got["gradients"]:
            return Failure(
                f"gradients are switched off, or on, after the call ({name})"
            )
        if got["dtypes"] != ["torch.float64"]:
            return Failure(
                f"the parameters are {', '.join(got['dtypes'])} after the "
                f"call and were torch.float64 before ({name})"
            )
    return None


load_gpt2 = Exercise(
    "load_gpt2",
    load_inputs,
    (
        RUNS,
        law(
            "embeddings, norms and biases",
            _weights(
                "GPT2LMHeadModel",
                "two layers",
                chosen=lambda key: not _linear(key),
            ),
            points=0.75,
            gate=True,
            says=(
                "Each parameter of the model gets the values of its "
                "namesake: wte, wpe, h.i.ln_1 … ln_f, all as they are but "
                "for the four kinds of Conv1D weights."
            ),
        ),
        law(
            "Conv1D weights",
            _weights("GPT2LMHeadModel", "two layers", chosen=_linear),
            points=1,
            because="the square one would fit either way",
            says=(
                "transformers' Conv1D stores (in, out), nn.Linear (out, "
                "in): exactly c_attn, c_proj and c_fc are transposed, the "
                "square one too."
            ),
        ),
        law(
            "prefix, order, buffers",
            _weights(
                "GPT2Model, no prefix",
                "mask buffers",
                "eleven layers",
                "another order",
                "no head",
                "no prefix, with a head",
            ),
            points=0.75,
            says=(
                "Names may come with transformer. or without, in any order, "
                "with the masks attn.bias and attn.masked_bias, which are "
                "skipped, and with or without lm_head.weight."
            ),
        ),
        law(
            "a missing name",
            _refused("h.0.mlp.c_fc.bias is missing", "wpe.weight is missing"),
            points=0.5,
            says=(
                "What the model needs and the dict lacks is a KeyError that "
                "names it in the dict's language."
            ),
        ),
        law(
            "an unknown name",
            _refused(
                "h.1.ln_2.weight is unknown",
                "h.0.attn.q_norm.bias is unknown",
                "lm_head.bias is unknown",
            ),
            points=0.5,
            says=(
                "A name without a place in the model is a KeyError that "
                "names it: another model was meant."
            ),
        ),
        law(
            "the source",
            _load_left,
            points=0.25,
            says=(
                "The state dict stays as it is, also when the model is "
                "trained later: copy values, and pop nothing."
            ),
        ),
        law(
            "the model's own parameters",
            _load_tied,
            points=0.25,
            says=(
                "Fill the parameters that are there: the head stays tied, "
                "an optimiser keeps hold of them, and they keep their dtype. "
                "The model stays in its mode, train or eval, and gradients "
                "stay on or off."
            ),
        ),
    ),
    probe=probe_load,
)
