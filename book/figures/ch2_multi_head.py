"""Figures of chapter 2."""

import matplotlib.pyplot as plt
import numpy as np

from figures import style


@style.picture
def two_lookups(values, wanted):
    """What one head reaches, and what two heads of one column reach.

    values: (n, 2); wanted: (2,)
    """
    fig, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharey=True)
    low, high = values.min(0), values.max(0)
    box = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    for ax, corners, name, mark in (
        (axes[0], values, "One head: the hull", "X"),
        (axes[1], box, "Two heads: the rectangle", "*"),
    ):
        ax.fill(*corners.T, color=style.BLUE, alpha=0.16, lw=0)
        ax.plot(*np.vstack([corners, corners[:1]]).T, "-", color=style.BLUE)
        ax.plot(*values.T, "s", color=style.ORANGE)
        for i, (value, spot) in enumerate(
            zip(values, [(8, -4), (-6, -15), (-6, 8)], strict=True), 1
        ):
            ax.annotate(f"$v_{i}$", value, spot, textcoords="offset points")
        ax.plot(*wanted, mark, color="black", ms=11)
        ax.annotate("wanted", wanted, (-16, 9), textcoords="offset points")
        ax.set(title=name, xlim=(-0.5, 9.5), ylim=(-0.5, 11))
        ax.set(xlabel="column 1: verb", aspect="equal")
    axes[0].set_ylabel("column 2: bracket")
    # The nearest point of the hull's edge from v1 to v3.
    edge = values[2] - values[0]
    share = (wanted - values[0]) @ edge / (edge @ edge)
    near = values[0] + share * edge
    axes[0].plot(*near, "o", color=style.GREEN)
    axes[0].plot(*np.array([near, wanted]).T, ":", color=style.GREY)
    axes[0].annotate("best", near, (6, -14), textcoords="offset points")
    return fig


def reshape():
    """Follow one number from its position into a head, by three rules."""
    return style.interactive(
        "reshape",
        {"T": 4, "D": 6},
        alt="A grid of four positions by six columns, numbered 0 to 23, and "
        "the heads made of it. Cut and swapped, head 0 holds the first "
        "columns of all four positions. By a view alone it holds all of "
        "positions 0 and 1 and nothing of 2 and 3.",
        height=400,
        still=_reshape_still(),
    )


@style.picture
def _reshape_still():
    numbers = np.arange(24).reshape(4, 6)
    right = numbers.reshape(4, 2, 3).swapaxes(0, 1)
    wrong = numbers.reshape(2, 4, 3)
    fig, axes = plt.subplots(
        1, 5, figsize=(7, 2.3), width_ratios=[6, 3, 3, 3, 3]
    )
    for ax, cells, name in (
        (axes[0], numbers, "positions × columns"),
        (axes[1], right[0], "right: head 0"),
        (axes[2], right[1], "right: head 1"),
        (axes[3], wrong[0], "wrong: head 0"),
        (axes[4], wrong[1], "wrong: head 1"),
    ):
        home = cells % 6 // 3  # the head to which the column belongs
        ax.imshow(np.where(home == 0, 0.25, 0.6), vmin=0, vmax=1.15)
        for (i, j), number in np.ndenumerate(cells):
            ax.text(j, i, number, ha="center", va="center", fontsize=9)
        ax.set_title(name, fontsize=9)
        ax.set_xticks([])
        ax.set_yticks(range(4))
        ax.tick_params(length=0, labelsize=8)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("position", fontsize=9)
    axes[1].set_ylabel("row", fontsize=9)
    return fig


HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
SIZE = {"B": 8, "T": 1024, "D": 768}  # GPT-2 small, a batch of eight


def head_cost():
    """Slide the number of heads; see what changes."""
    return style.interactive(
        "head_cost",
        {"heads": HEADS, "start": 12, **SIZE},
        alt="A slider for the number of heads, and bars for parameters, "
        "FLOPs of the projections, FLOPs of scores and blends, bytes of the "
        "scores, exponentials, and the width of a head. With 12 heads the "
        "scores take 402,653,184 bytes; with 24 twice as many, while "
        "parameters and FLOPs stay the same.",
        height=210,
        still=_head_cost_still(),
    )


@style.picture
def _head_cost_still():
    heads = np.array([1, 2, 4, 8, 12, 16, 24, 32, 48])
    B, T, D = (SIZE[name] for name in "BTD")
    one = B * T**2 * 4 / 2**20
    flat = {
        "projections": 8 * B * T * D**2,
        "scores, blends": 4 * B * T**2 * D,
    }
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
    for (name, flops), look in zip(flat.items(), ["o-", "s--"], strict=True):
        left.plot(heads, np.full(len(heads), flops / 1e9), look, label=name)
    left.set(title="Flat: FLOPs (and parameters)", ylim=(0, 50))
    left.set(xlabel="heads", ylabel="GFLOP")
    left.legend(loc="lower right")
    right.plot(heads, heads * one, "o-", color=style.ORANGE)
    right.annotate(
        "12 heads: 384 MiB",
        (12, 12 * one),
        (10, -12),
        textcoords="offset points",
    )
    right.set(title="Rising: score memory", xlabel="heads", ylabel="MiB")
    return fig


@style.picture
def head_maps(layers, words):
    """Attention maps, one column for each head and one row for each layer.

    layers: list of (H, T, T) weights
    """
    count = len(layers[0])
    fig, axes = plt.subplots(
        len(layers), count, figsize=(7, 4.8), sharex=True, sharey=True
    )
    ticks = range(len(words))
    for i, heads in enumerate(layers):
        for h, weights in enumerate(heads):
            ax = axes[i][h]
            ax.imshow(weights, vmin=0, vmax=1)
            ax.set_title(f"layer {i + 1}, head {h}", fontsize=9)
            ax.set_xticks(ticks, words, rotation=90, fontsize=7)
            ax.set_yticks(ticks, words, fontsize=7)
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
    fig.supxlabel("key: looked at", fontsize=9)
    fig.supylabel("query: looks", fontsize=9)
    return fig


@style.picture
def groups(n_heads=6):
    """Which query head uses which key and value head."""
    panels = [
        ("MHA", list(range(n_heads)), style.BLUE),
        ("GQA, 3 groups", [0, 0, 1, 1, 2, 2], style.BLUE),
        ("wrong: tiled", [0, 1, 2, 0, 1, 2], style.ORANGE),
        ("MQA", [0] * n_heads, style.BLUE),
    ]
    fig, axes = plt.subplots(1, 4, figsize=(7, 2.1))
    for ax, (name, uses, colour) in zip(axes, panels, strict=True):
        kept = max(uses) + 1
        spots = (np.arange(kept) + 0.5) * n_heads / kept - 0.5
        for h, g in enumerate(uses):
            ax.plot([h, spots[g]], [1, 0], "-", color=colour, lw=1.5)
        _heads(ax, range(n_heads), 1, "white")
        _heads(ax, spots, 0, "#dce9f3")
        ax.set_title(name, fontsize=10)
        ax.set(xlim=(-0.7, n_heads - 0.3), ylim=(-0.35, 1.35))
        ax.axis("off")
    for height, words in ((1, "query\nheads"), (0, "key and\nvalue\nheads")):
        axes[0].text(-1, height, words, fontsize=9, ha="right", va="center")
    return fig


def _heads(ax, spots, height, colour):
    for h, x in enumerate(spots):
        ax.text(
            x,
            height,
            h,
            ha="center",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "circle,pad=0.25", "fc": colour, "lw": 0.8},
        )


@style.picture
def same_output(values, maps):
    """Different weights on the same values, with one output.

    values: (n, 2); maps: name to (n,) weights
    """
    fig, axes = plt.subplots(1, len(maps), figsize=(7, 2.6))
    for ax, (name, weights) in zip(axes, maps.items(), strict=True):
        ax.plot(*values.T, "s", color=style.GREY, ms=3)
        ax.scatter(*values.T, s=800 * weights, color=style.BLUE, alpha=0.6)
        for value, weight in zip(values, weights, strict=True):
            ax.annotate(
                f"{weight:.3g}",
                (1.7, 1.55) * value,  # numbers are wider than high
                ha="center",
                va="center",
                fontsize=8,
            )
        ax.plot(*(weights @ values), "o", color=style.GREEN, ms=9)
        ax.set(title=name, xlim=(-2.3, 2.3), ylim=(-2.3, 2.3))
        ax.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        ax.set_xlabel("component 1", fontsize=8)
    axes[0].set_ylabel("component 2", fontsize=8)
    return fig
