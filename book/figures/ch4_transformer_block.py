"""Figures of chapter 4."""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

from figures import style

T, D, HEADS = 4, 4, 2


def stepper():
    """Step through a small block; each cell shows what fed it."""
    with torch.device("cpu"):  # the page's default may be another
        orders = {order: _walk(order) for order in ("pre", "post")}
    return style.interactive(
        "stepper",
        {"orders": orders, "start": "attn"},
        alt="The block as a column of boxes beside its stream, and grids of "
        "numbers with a row for each of four positions. Stepping from the "
        "input through norm, attention, sum, norm, MLP and sum shows for a "
        "chosen cell which cells of the step before fed it: attention reads "
        "its own and earlier rows, norms and MLP their own row, a sum its own "
        "cell.",
        height=465,
        still=_stepper_still(orders["pre"]),
    )


def _walk(order):
    """Every step of one block: its values, sources and derivatives."""
    rng = np.random.RandomState(7)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape) / math.sqrt(shape[0]))

    W_qkv, W_out = draw(D, 3 * D), draw(D, D)
    W_up, W_down = draw(D, 4 * D), draw(4 * D, D)
    x = torch.tensor(rng.standard_normal((T, D)), requires_grad=True)

    def norm(x):
        return F.layer_norm(x, (D,))

    def attention(x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for part in (x @ W_qkv).chunk(3, -1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(0, 1).flatten(1) @ W_out

    parts = {
        "ln1": norm,
        "attn": attention,
        "r1": torch.add,
        "ln2": norm,
        "up": lambda x: F.gelu(x @ W_up),
        "mlp": lambda x: x @ W_down,
        "r2": torch.add,
    }
    wiring = {
        "pre": [
            ("ln1", ["in"]),
            ("attn", ["ln1"]),
            ("r1", ["in", "attn"]),
            ("ln2", ["r1"]),
            ("up", ["ln2"]),
            ("mlp", ["up"]),
            ("r2", ["r1", "mlp"]),
        ],
        "post": [
            ("attn", ["in"]),
            ("r1", ["in", "attn"]),
            ("ln1", ["r1"]),
            ("up", ["ln1"]),
            ("mlp", ["up"]),
            ("r2", ["ln1", "mlp"]),
            ("ln2", ["r2"]),
        ],
    }[order]
    values = {"in": x}
    steps = [{"name": "in", "values": _round(x, 2), "from": []}]
    for name, sources in wiring:
        values[name] = parts[name](*(values[each] for each in sources))
        # One step's derivatives: cut every other path to the sources.
        leaves = [values[each].detach().requires_grad_() for each in sources]
        result = parts[name](*leaves)
        back = [
            {"name": each, "slopes": _slopes(result, leaf)}
            for each, leaf in zip(sources, leaves, strict=True)
        ]
        steps.append(
            {
                "name": name,
                "values": _round(values[name], 2),
                "from": back,
                "input": _slopes(values[name], x),
            }
        )
    return steps


def _slopes(result, source):
    """Derivatives of a result along all paths from the source to it.

    returns: one list of derivatives for each cell of the result
    """
    rows = []
    for cell in result.flatten():
        (slope,) = torch.autograd.grad(cell, source, retain_graph=True)
        rows.append(_round(slope.flatten(), 5))
    return rows


def _round(array, digits):
    return np.round(array.detach().numpy(), digits).tolist()


@style.picture
def _stepper_still(steps):
    by_name = {step["name"]: step for step in steps}
    fig, axes = plt.subplots(1, 3, figsize=(7, 2.6))
    step, cell = by_name["attn"], 2 * D  # position 3, channel 1
    slopes = np.array(step["from"][0]["slopes"][cell]).reshape(T, D)
    shown = [
        (by_name["ln1"], slopes, "LayerNorm 1"),
        (step, _one(cell), "attention"),
        (by_name["r1"], _one(cell), "sum"),
    ]
    for ax, (which, shade, title) in zip(axes, shown, strict=True):
        ax.imshow(shade, cmap="PuOr", vmin=-1.3, vmax=1.3)
        for i in range(T):
            for j in range(D):
                ax.text(
                    j,
                    i,
                    f"{which['values'][i][j]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                )
        ax.set_xticks(range(D), range(1, D + 1))
        ax.set_yticks(range(T), range(1, T + 1))
        ax.set(title=title, xlabel="channel")
    axes[0].set_ylabel("position")
    return fig


def _one(cell):
    shade = np.zeros(T * D)
    shade[cell] = 1
    return shade.reshape(T, D)


@style.picture
def activations():
    """ReLU, GELU and SiLU; the gap between GELU's two forms."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.9))
    x = torch.linspace(-4, 4, 801, dtype=torch.float64, device="cpu")
    for name, y in (
        ("ReLU", F.relu(x)),
        ("GELU", F.gelu(x)),
        ("SiLU", F.silu(x)),
    ):
        left.plot(x, y, label=name)
    left.axhline(0, color=style.GREY, lw=0.5)
    left.set(title="Three bends", xlabel="x", ylabel="output", ylim=(-0.6, 4))
    left.legend()
    gap = F.gelu(x) - F.gelu(x, approximate="tanh")
    right.plot(x, 1e4 * gap)
    right.axhline(0, color=style.GREY, lw=0.5)
    right.set(
        title="Exact minus tanh form",
        xlabel="x",
        ylabel="gap (units of 0.0001)",
        ylim=(-6, 6),
    )
    return fig


@style.picture
def wiring():
    """Pre-LN beside post-LN, with the places for dropout."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 4.6))
    _wire(
        axes[0],
        "Pre-LN",
        branch=["LayerNorm", "sublayer"],
        stream=[],
        top="final norm, then the head",
    )
    _wire(
        axes[1],
        "Post-LN",
        branch=["sublayer"],
        stream=["LayerNorm"],
        top="the head",
    )
    return fig


def _wire(ax, title, *, branch, stream, top):
    """One diagram, from the input at the bottom to the head at the top."""
    ax.set(title=title, xlim=(-1.1, 3.3), ylim=(-0.6, 9.9))
    ax.set_axis_off()
    ax.annotate(
        "",
        (0, 9.5),
        (0, -0.2),
        arrowprops={"arrowstyle": "-|>", "lw": 2.2, "color": style.BLUE},
    )
    ax.text(0.15, -0.45, "x, from embedding or block below", fontsize=8)
    ax.text(0.15, 9.4, f"to {top}", fontsize=8)
    for base, name in ((0.3, "attention"), (4.5, "MLP")):
        join = base + 3.0
        line = {"color": "black", "lw": 1.2, "ls": "-"}
        ax.plot([0, 1.8, 1.8], [base, base, join], **line)
        ax.annotate(
            "",
            (0, join),
            (1.8, join),
            # Points: up to the edge of the circle of the sum.
            arrowprops={
                "arrowstyle": "-|>",
                "color": "black",
                "shrinkA": 0,
                "shrinkB": 8,
            },
        )
        heights = [base + 0.9, base + 1.9]
        for height, part in zip(heights[-len(branch) :], branch, strict=True):
            word = name if part == "sublayer" else part
            _box(ax, 1.8, height, word, style.GREY)
        dots = [(1.0, join)]
        if name == "attention":
            dots.append((2.32, heights[-1]))  # on the weights
        for x, y in dots:
            ax.plot(x, y, "o", color=style.ORANGE, ms=8, zorder=5)
        ax.plot(0, join, "o", ms=15, mfc="white", mec=style.BLUE, mew=2)
        ax.text(0, join, "+", ha="center", va="center", fontsize=12)
        for part in stream:
            _box(ax, 0, join + 0.75, part, style.BLUE)
    ax.plot(2.15, 8.62, "o", color=style.ORANGE, ms=8)
    ax.text(2.3, 8.5, "dropout", fontsize=8)


def _box(ax, x, y, word, colour):
    ax.text(
        x,
        y,
        word,
        ha="center",
        va="center",
        fontsize=9,
        zorder=4,
        bbox={"boxstyle": "round", "fc": "white", "ec": colour, "lw": 1.5},
    )


@style.picture
def depth(profiles):
    """RMS and gradient of the stream against depth, both orders.

    profiles: {"post": (rms, gradient), "pre": (rms, gradient)}
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.1))
    blocks = np.arange(len(profiles["pre"][0]))
    left.fill_between(
        blocks,
        np.sqrt(1 + 0.43 * blocks),
        np.sqrt(1 + 1.43 * blocks),
        color=style.BLUE,
        alpha=0.15,
        lw=0,
        label="predicted for pre-LN",
    )
    for name, colour, line in (
        ("pre", style.BLUE, "-"),
        ("post", style.ORANGE, "--"),
    ):
        rms, slope = profiles[name]
        for ax, curve in ((left, rms), (right, slope)):
            ax.plot(blocks, curve, line, color=colour, label=f"{name}-LN")
    left.set(title="RMS of the stream", ylabel="RMS", ylim=(0, 6.5))
    right.set(title="Gradient at the stream", ylabel="norm", ylim=(0, None))
    left.legend(loc="upper left")
    right.legend()
    for ax in (left, right):
        ax.set_xlabel("blocks passed")
    return fig


@style.picture
def patches():
    """A disc cut into patches, and torn by a reshape."""
    size, p = 32, 8
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    image = np.where(np.hypot(x, y) < 13, 0.9 - 0.02 * (x + y), 0.1)
    n = size // p
    cut = image.reshape(n, p, n, p).swapaxes(1, 2)
    torn = image.reshape(n, n, p, p)
    fig, axes = plt.subplots(1, 3, figsize=(7, 2.6))
    axes[0].imshow(image, vmin=0, vmax=1.3)
    axes[0].set_title("The image")
    for ax, tiles, title in (
        (axes[1], cut, "Right: patches"),
        (axes[2], torn, "Wrong: reshape"),
    ):
        sheet = np.full((n * (p + 1) - 1, n * (p + 1) - 1), np.nan)
        for i in range(n):
            for j in range(n):
                rows, columns = i * (p + 1), j * (p + 1)
                sheet[rows : rows + p, columns : columns + p] = tiles[i, j]
        ax.imshow(sheet, vmin=0, vmax=1.3)
        ax.set_title(title)
    for ax in axes:
        ax.set_axis_off()
    return fig
