"""Figures of chapter 3."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from figures import style

# A query and a key whose score is far from 0 in both layouts.
QUERY = [1.2, 0.3, 0.5, -1.0, -0.9, 0.6, 0.8, 0.9]
KEY = [-0.8, 1.0, 0.9, 0.8, -1.1, -1.0, 0.8, -0.1]


def angles(positions, width, base=1e4):
    """Angle of each pair at each position: (positions, width / 2)."""
    return np.outer(positions, base ** (-np.arange(0, width, 2) / width))


def rope_clocks():
    """Turn query and key by their positions; shift both at once."""
    return style.interactive(
        "rope_clocks",
        {"query": QUERY, "key": KEY, "m": 5, "n": 2},
        alt="Four clocks, one for each pair of channels, with a hand for the "
        "turned query and a hand for the turned key, and a plot of the score "
        "against a shift of both positions. With both turned in the same "
        "layout the plot is a flat line; with only the query turned, or with "
        "mixed layouts, it is a wave.",
        height=575,
        still=_rope_clocks_still(),
    )


@style.picture
def _rope_clocks_still():
    query, key = (np.array(x).reshape(4, 2) @ [1, 1j] for x in (QUERY, KEY))
    fig, axes = plt.subplots(
        1, 5, figsize=(7, 1.9), width_ratios=[1] * 4 + [2]
    )
    frequency = angles([1], 8, 100)[0]
    for i, ax in enumerate(axes[:4]):
        ax.add_patch(plt.Circle((0, 0), 1, fill=False, color=style.GREY))
        for z, at, colour, dash in (
            (query[i], 5, style.BLUE, "-"),
            (key[i], 2, style.ORANGE, "--"),
        ):
            z = z * np.exp(1j * at * frequency[i]) / 1.6
            ax.plot([0, z.real], [0, z.imag], dash, color=colour, lw=2)
        ax.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
        ax.set_title(f"pair {i}", fontsize=9)
        ax.axis("off")
    shift = np.arange(41)[:, None]
    both, alone = (
        (
            query
            * np.exp(1j * (5 + shift) * frequency)
            * np.conj(key * np.exp(1j * turn * (2 + shift) * frequency))
        ).real.sum(-1)
        for turn in (1, 0)
    )
    axes[4].plot(both, color=style.BLUE, label="both turned")
    axes[4].plot(alone, "--", color=style.ORANGE, label="query only")
    axes[4].set(xlabel="both positions shifted by", ylim=(-7, 9))
    axes[4].set_title("score", fontsize=9)
    axes[4].legend(fontsize=7, loc="upper right", ncols=2)
    return fig


@style.picture
def sinusoids():
    """The table, and how alike position 0 and the others are."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2))
    angle = angles(np.arange(64), 64)
    table = np.stack((np.sin(angle), np.cos(angle)), -1).reshape(64, 64)
    image = left.imshow(table, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    left.set(title="The table, D = 64", xlabel="column", ylabel="position")
    fig.colorbar(image, ax=left, ticks=[-1, 0, 1])
    distance = np.arange(101)
    for width in (64, 512):
        alike = np.cos(angles(distance, width)).mean(-1)
        right.plot(distance, alike, label=f"D = {width}")
    right.plot(
        distance,
        0.45 + 0.55 * np.exp(-distance / 12),
        ":",
        color=style.ORANGE,
        label="often claimed",
    )
    right.set(title="Similarity with position 0", xlabel="distance")
    right.set(ylabel="cosine", ylim=(0.3, 1.02))
    right.legend()
    return fig


@style.picture
def wavelengths(spectra, trained):
    """Wavelength of each pair, and the factor by which it is slowed.

    spectra: frequencies (pairs,) by method; the first is the unchanged one
    trained: the context length in training
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4))
    old = next(iter(spectra.values()))
    pair = np.arange(len(old))
    slow = pair[trained * old < 2 * np.pi]
    looks = ["-", "--", "-.", "-", ":"]
    colours = [style.GREY, style.YELLOW, style.GREEN, style.BLUE, style.ORANGE]
    for (name, new), look, colour in zip(
        spectra.items(), looks, colours, strict=True
    ):
        how = {"linestyle": look, "color": colour, "label": name}
        left.semilogy(pair, 2 * np.pi / new, **how)
        right.plot(pair, old / new, **how)
    left.axhline(trained, color="black", lw=0.8)
    left.text(1, trained * 1.25, "trained length", fontsize=8)
    for ax in (left, right):
        ax.axvspan(slow[0], slow[-1], color=style.GREY, alpha=0.12, lw=0)
        ax.set_xlabel("pair")
    left.set(title="Wavelength", ylabel="positions a turn")
    right.set(title="Slowed by a factor of", ylim=(0, 8.6))
    right.legend(fontsize=8, loc=(0.02, 0.42))
    return fig


@style.picture
def half_precision():
    """The first clock with angles in float32 and in bfloat16."""
    positions = torch.arange(1000, 1033)
    fig, ax = plt.subplots(figsize=(7, 2.4))
    for dtype, name, marker in (
        (torch.float32, "right: float32", "o"),
        (torch.bfloat16, "wrong: bfloat16", "s"),
    ):
        wave = positions.to(dtype).double().cos()
        ax.plot(positions, wave, marker=marker, ms=4, label=name)
    ax.set(xlabel="position", ylabel="cosine of pair 0", ylim=(-1.15, 1.7))
    ax.legend(ncols=2, loc="upper right")
    return fig


@style.picture
def alibi(n_positions=8):
    """Weights of equal contents under two slopes and a wrong sign."""
    fig, axes = plt.subplots(1, 3, figsize=(7.4, 2.9))
    at = np.arange(n_positions)
    distance = np.subtract.outer(at, at)
    for ax, slope, name in (
        (axes[0], 1 / 2, "slope 1/2"),
        (axes[1], 1 / 256, "slope 1/256"),
        (axes[2], -1 / 2, "wrong sign"),
    ):
        powers = np.exp(-slope * distance) * (distance >= 0)
        weights = powers / powers.sum(-1, keepdims=True)
        ax.imshow(weights, vmin=0, vmax=1.15)
        for i in range(n_positions):
            for j in range(i + 1):
                ax.text(
                    j,
                    i,
                    f"{weights[i, j]:.2f}".lstrip("0"),
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white"
                    if weights[i, j] > style.WHITE_FROM
                    else "black",
                )
        ax.set_xticks(at)
        ax.set_yticks(at)
        ax.set(title=name, xlabel="key position")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("query position")
    return fig
