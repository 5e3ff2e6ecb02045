"""Figures of chapter 1."""

import matplotlib.pyplot as plt
import numpy as np

from figures import style

PRESETS = [
    {
        "label": "The worked example",
        "query": [1, 1],
        "keys": [[1, 1], [1, -1]],
        "values": [[1, 0], [0, 1]],
    },
    {
        "label": "Four keys",
        "query": [1, 1],
        "keys": [[1.5, 0.5], [0.5, -1.5], [-1.5, -1], [-1, 1.5]],
        "values": [[1.2, 0.2], [0.3, -1.2], [-1.2, -0.6], [-0.4, 1.1]],
    },
]


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def soft_lookup():
    """Drag query and keys; see scores, weights, and output in the hull."""
    return style.interactive(
        "soft_lookup",
        {"presets": PRESETS},
        alt="A plane with one query and its keys that can be moved, a plane "
        "with the values and the output between them, and a bar for each "
        "weight. In the worked example the weights are 0.804 and 0.196.",
        height=510,
        still=_soft_lookup_still(PRESETS[0]),
    )


@style.picture
def _soft_lookup_still(preset):
    query, keys, values = (
        np.array(preset[part]) for part in ("query", "keys", "values")
    )
    weights = softmax(keys @ query / np.sqrt(2))
    output = weights @ values
    fig, (left, right, bars) = plt.subplots(1, 3, figsize=(7, 2.6))
    left.plot(*query, "o", color=style.BLUE, ms=12, mfc="none", mew=2)
    left.annotate("q", query, (6, 6), textcoords="offset points")
    left.plot(*keys.T, "s", color=style.ORANGE)
    for i, key in enumerate(keys, 1):
        left.annotate(f"k{i}", key, (-14, -12), textcoords="offset points")
    left.set(title="Query and keys", xlim=(-2.5, 2.5), ylim=(-2.5, 2.5))
    left.set(xlabel="component 1", ylabel="component 2")
    right.plot(*values.T, "s-", color=style.ORANGE)
    for i, value in enumerate(values, 1):
        right.annotate(f"v{i}", value, (6, 6), textcoords="offset points")
    right.plot(*output, "o", color=style.GREEN)
    right.annotate("output", output, (-42, -9), textcoords="offset points")
    right.set(title="Values and output", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
    right.set(xlabel="component 1")
    names = [f"key {i}" for i in range(1, len(keys) + 1)]
    bars.barh(names, weights, color=style.BLUE)
    for i, weight in enumerate(weights):
        bars.text(weight, i, f" {weight:.3f}", va="center")
    bars.set(title="Weights", xlim=(0, 1.25), xlabel="weight (sums to 1)")
    bars.invert_yaxis()
    return fig


def saturation():
    """Slide the width, with and without the square root."""
    dims = [2**n for n in range(1, 10)]
    rng = np.random.RandomState(94)  # at 64 its slopes are typical
    query, keys = rng.standard_normal(512), rng.standard_normal((8, 512))
    scores = [(keys[:, :d] @ query[:d]).round(3).tolist() for d in dims]
    return style.interactive(
        "saturation",
        {"dims": dims, "scores": scores},
        alt="A slider for the width of query and keys, a choice of divisor, "
        "a bar for each of eight weights, and the softmax's Jacobian as an "
        "eight by eight map. At width 64 without a divisor one weight takes "
        "nearly everything and nearly all slopes are zero; divided by the "
        "square root, the weights are spread and the slopes come back.",
        height=450,
        still=_saturation_still(np.array(scores[dims.index(64)])),
    )


@style.picture
def _saturation_still(scores):
    fig, axes = plt.subplots(1, 2, figsize=(7, 3.4))
    for ax, divisor, name in zip(
        axes, (1, 8), ("not divided", "divided by √64"), strict=True
    ):
        y = softmax(scores / divisor)
        slopes = np.diag(y) - np.outer(y, y)
        ax.imshow(slopes, cmap="PuOr", vmin=-0.25, vmax=0.25)
        for i in range(8):
            for j in range(8):
                ax.text(
                    j,
                    i,
                    f"{slopes[i, j]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=6,
                )
        ax.set_xticks(range(8), range(1, 9))
        ax.set_yticks(range(8), range(1, 9))
        ax.set(title=f"Jacobian, {name}", xlabel="score j", ylabel="weight i")
    return fig


@style.picture
def mask_pair(right, wrong, right_leak, wrong_leak):
    """Weights with the mask before and after the softmax, side by side.

    right, wrong: (T, T) weights
    right_leak, wrong_leak: how far outputs before the last move when the
        last token's key changes
    """
    fig, axes = plt.subplots(1, 2, figsize=(7, 3.7))
    for ax, weights, name, leak in (
        (axes[0], right, "Right: mask before", right_leak),
        (axes[1], wrong, "Wrong: mask after", wrong_leak),
    ):
        style.weight_map(ax, weights, title=name)
        edge = len(weights) - 0.3
        ax.text(edge, -0.75, "row sum", fontsize=8)
        for i, total in enumerate(weights.sum(-1)):
            ax.text(
                edge,
                i,
                f"{total:.2f}",
                va="center",
                fontsize=9,
                fontweight="bold" if total < 0.995 else "normal",
            )
        ax.set_xlabel(f"key position\nleak through the last key: {leak:.2f}")
    return fig


@style.picture
def alignment(n_queries=2, n_keys=6):
    """Which keys the newest queries may see, under both alignments."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 1.8))
    for ax, offset, name in (
        (axes[0], n_keys - n_queries, "Lower right: the newest sees all"),
        (axes[1], 0, "Upper left: the past is lost"),
    ):
        keep = np.tri(n_queries, n_keys, offset)
        ax.imshow(keep * 0.35, vmin=0, vmax=1)
        for i in range(n_queries):
            for j in range(n_keys):
                word = "see" if keep[i, j] else "–"
                ax.text(j, i, word, ha="center", va="center", fontsize=9)
        ax.set_xticks(range(n_keys), range(1, n_keys + 1))
        first = n_keys - n_queries + 1
        ax.set_yticks(range(n_queries), range(first, n_keys + 1))
        ax.set(title=name, xlabel="key position", ylabel="query position")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return fig
