"""Figures of chapter 6."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from figures import style


@style.picture
def decode(lengths, spent):
    """What each decoding step computes and reads, and how long it takes.

    lengths: tokens so far; spent: {"without": ms, "with": ms} for each
    """
    fig, (left, middle, right) = plt.subplots(
        1, 3, figsize=(7, 2.7), width_ratios=[1, 1, 1.25]
    )
    steps = 8
    past = np.tri(steps)
    for ax, computed, name in (
        (left, past, "no cache"),
        (middle, np.eye(steps), "with a cache"),
    ):
        ax.imshow(0.2 * past + 0.6 * computed, vmin=0, vmax=1)
        ax.set_xticks(np.arange(-0.5, steps), minor=True)
        ax.set_yticks(np.arange(-0.5, steps), minor=True)
        ax.grid(which="minor", color="white", lw=1.5)
        ax.set_xticks([0, 3, 7], [1, 4, 8])
        ax.set_yticks([0, 3, 7], [1, 4, 8])
        ax.tick_params(length=0, which="both")
        ax.spines[:].set_visible(False)
        ax.set(xlabel="token", title=name)
        ax.text(7.4, -0.1, f"{int(computed.sum())}\ncomputed", **_corner())
    left.set_ylabel("decoding step")
    looks = {"without": (style.ORANGE, "s--"), "with": (style.BLUE, "o-")}
    for name, (colour, mark) in looks.items():
        right.plot(lengths, spent[name], mark, ms=4, color=colour, label=name)
    right.set(xlabel="T, tokens so far", ylabel="ms for the next token")
    right.set(title="measured", ylim=(0, None), xlim=(0, None))
    right.legend(title="cache", loc="upper left")
    return fig


def _corner():
    return {"ha": "right", "va": "top", "fontsize": 9}


# Parameters in billions, KiB a token of a 16-bit cache; the longest context
# that each was made for. Counted from the shapes in the papers.
MODELS = {
    "GPT-2 small": (0.124, 36.0, 2**10),
    "Llama-2-7B (MHA)": (6.738, 512.0, 2**12),
    "Llama-3.1-8B (GQA)": (8.030, 128.0, 2**17),
    "Llama-3.1-70B (GQA)": (70.554, 320.0, 2**17),
    "Llama-3.1-405B (GQA)": (405.853, 504.0, 2**17),
}
CARDS = [16, 24, 80, 141, 640]  # GiB: T4, L4, H100, H200, eight H100s


def cache_sizer():
    """Choose model, context, sequences and card; see what fits."""
    models = [
        {
            "name": name,
            "weights": billions * 1e9 * 2 / 2**30,  # GiB in 16 bits
            "token": kib / 2**20,  # GiB
            "longest": longest,
        }
        for name, (billions, kib, longest) in MODELS.items()
    ]
    return style.interactive(
        "cache_sizer",
        {"models": models, "model": 2, "cards": CARDS, "card": 24},
        alt="Choices of model, card and cache precision, sliders for context "
        "and number of sequences, and a bar with the memory of weights and "
        "cache against that of the card. Llama-3.1-8B with 8,192 tokens: "
        "15 GiB of weights, 1 GiB of cache for each sequence, so nine "
        "sequences fit on a card of 24 GiB.",
        height=310,
        still=_cache_sizer_still(models[2]),
    )


@style.picture
def _cache_sizer_still(model):
    fig, ax = plt.subplots(figsize=(7, 2.2))
    counts = [1, 4, 9, 16]
    y = np.arange(len(counts))
    cache = np.array(counts) * 8_192 * model["token"]
    ax.barh(y, model["weights"], color=style.BLUE, label="weights")
    ax.barh(
        y,
        cache,
        left=model["weights"],
        color=style.YELLOW,
        hatch="//",
        edgecolor="white",
        label="cache",
    )
    ax.axvline(24, color="black", ls="--", lw=1.5)
    ax.text(24.2, -0.55, "24 GiB", fontsize=9)
    ax.set_yticks(y, counts)
    ax.set(ylabel="sequences", xlabel="GiB", ylim=(3.5, -0.9), xlim=(0, 36))
    ax.set_title("Llama-3.1-8B, 8,192 tokens each, 16 bits")
    ax.legend(loc="upper right")
    return fig


@style.picture
def window():
    """A window over a chunk, right, and after forgetting too early."""
    new, old, size = 3, 6, 4
    right = np.tri(new, old + new, old) - np.tri(new, old + new, old - size)
    wrong = right * (np.arange(old + new) >= old + new - size)
    fig, axes = plt.subplots(1, 2, figsize=(7, 1.9), sharey=True)
    for ax, seen, name in (
        (axes[0], right, "right: join, attend, forget"),
        (axes[1], wrong, "wrong: forget first"),
    ):
        ax.imshow(0.75 * seen, vmin=0, vmax=1.15)
        for row, col in np.argwhere(right > seen):
            ax.text(
                col,
                row,
                "×",
                ha="center",
                va="center",
                color=style.ORANGE,
                fontweight="bold",
                fontsize=14,
            )
        ax.set_xticks(np.arange(-0.5, old + new), minor=True)
        ax.set_yticks(np.arange(-0.5, new), minor=True)
        ax.grid(which="minor", color="#bbbbbb", lw=0.7)
        ax.set_xticks(range(old + new))
        ax.set_yticks(range(new), range(old, old + new))
        ax.tick_params(length=0, which="both")
        ax.spines[:].set_visible(False)
        ax.set(xlabel="key position", title=name)
    axes[0].set_ylabel("query position")
    return fig


def cache_pages():
    """Write, fork, write again: pages, tables and copies."""
    return style.interactive(
        "cache_pages",
        {
            "pages": 6,
            "size": 4,
            "prompt": "the cat sat on the mat".split(),
            "A": "and purred until it slept again all day long".split(),
            "B": "but ran when rain fell and so did we".split(),
        },
        alt="A pool of six pages with four slots each, and the page tables "
        "of sequences A and B. A's prompt of six words fills page 0 and "
        "half of page 1. A fork lets B list both pages. When B writes, "
        "page 1 is copied to page 2 first, while page 0 stays shared. "
        "Written without a copy, A would read B's word.",
        height=390,
        still=_cache_pages_still(),
    )


@style.picture
def _cache_pages_still():
    stages = [
        ("after the prompt", ["the cat sat on", "the mat"], [0, 1], None),
        ("after the fork", ["the cat sat on", "the mat"], [0, 1], [0, 1]),
        (
            "after both wrote",
            ["the cat sat on", "the mat and", "the mat but"],
            [0, 1],
            [0, 2],
        ),
    ]
    fig, axes = plt.subplots(1, 3, figsize=(7, 2.1))
    for ax, (name, pages, a, b) in zip(axes, stages, strict=True):
        for number in range(3):
            words = (pages + [""] * 3)[number].split()
            for slot in range(4):
                full = slot < len(words)
                ax.add_patch(
                    Rectangle(
                        (slot, -number),
                        1,
                        -0.8,
                        fc="#cfe5f3" if full else "white",
                        ec=style.GREY,
                    )
                )
                ax.text(
                    slot + 0.5,
                    -number - 0.4,
                    words[slot] if full else "",
                    ha="center",
                    va="center",
                    fontsize=8,
                )
            ax.text(-0.2, -number - 0.4, number, ha="right", va="center")
        tables = f"A: {a}" + (f"   B: {b}" if b else "")
        ax.text(2, -3.3, tables, ha="center", va="center")
        ax.set(xlim=(-0.8, 4.1), ylim=(-3.7, 0.2), title=name)
        ax.set_axis_off()
    return fig


T, TALL, WIDE = 8, 4, 2  # queries and keys; a tile's height and width


def _tile_scores():
    """Scores whose maxima rise late in some rows, and values."""
    rng = np.random.RandomState(85)
    scores = np.round(1.4 * rng.standard_normal((T, T)), 1)
    return scores + 0.0, np.arange(1.0, T + 1)


def flash_tiles():
    """Step through tiles; see (m, l, a) of the rows of a tile."""
    scores, values = _tile_scores()
    return style.interactive(
        "flash_tiles",
        {
            "scores": scores.tolist(),
            "values": values.tolist(),
            "tall": TALL,
            "wide": WIDE,
        },
        alt="A grid of scores of eight queries and eight keys, cut into tiles "
        "of four by two, and a table with the running maximum m, sum l and "
        "blend a of the four rows of the current tile, and the factor by "
        "which the old sums were multiplied. Stepping on, a tile is used "
        "and forgotten; when a maximum rises, l and a are scaled down; at "
        "the end of a row of tiles a over l is the exact output.",
        height=505,
        still=_flash_tiles_still(scores),
    )


@style.picture
def _flash_tiles_still(scores):
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4))
    for ax, rule in (
        (left, "right: skipped if the first key\nis after the last query"),
        (right, "wrong: skipped if the first key\nis after the first query"),
    ):
        shade = np.full((T, T), 0.0)
        for top in range(0, T, TALL):
            for start in range(0, T, WIDE):
                limit = top + TALL - 1 if ax is left else top
                used = start <= limit
                shade[top : top + TALL, start : start + WIDE] = 0.55 * used
        needed = np.tri(T, dtype=bool)
        ax.imshow(np.where(needed, shade, 0.25 * shade), vmin=0, vmax=1.15)
        for i, j in np.argwhere(needed):
            lost = shade[i, j] == 0
            ax.text(
                j,
                i,
                "×" if lost else f"{scores[i, j]:.1f}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=13 if lost else 8,
                color=style.ORANGE if lost else "black",
                fontweight="bold" if lost else "normal",
            )
        for top in range(0, T, TALL):
            for start in range(0, T, WIDE):
                ax.add_patch(
                    Rectangle(
                        (start - 0.5, top - 0.5),
                        WIDE,
                        TALL,
                        fill=False,
                        ec="black",
                        lw=1.2,
                    )
                )
        ax.set_xticks(range(T))
        ax.set_yticks(range(T))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("key position")
        ax.set_title(rule, fontsize=10)
    left.set_ylabel("query position")
    return fig


@style.picture
def flash_cost(sizes, memory, took):
    """Peak memory and time against T, both axes logarithmic.

    memory: {name: MiB for each size}; took: {name: ms for each size}
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.1))
    sizes = np.array(sizes)
    for ax, curves in ((left, memory), (right, took)):
        marks = zip(
            curves.items(),
            [(style.ORANGE, "s--"), (style.BLUE, "o-")],
            strict=True,
        )
        for (name, curve), (colour, mark) in marks:
            ax.plot(sizes, curve, mark, ms=4, color=colour, label=name)
        last = next(iter(curves.values()))[-1]
        ax.plot(
            sizes,
            1.6 * last * (sizes / sizes[-1]) ** 2,
            ":",
            color=style.GREY,
            label="slope 2",
        )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.minorticks_off()
        ax.set_xlabel("T, tokens")
        ax.legend(loc="upper left")
    left.set(title="Peak memory, one head", ylabel="MiB")
    right.set(title="Time, two heads", ylabel="ms")
    return fig
