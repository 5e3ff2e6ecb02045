"""Figures of chapter 7."""

import matplotlib.pyplot as plt
import numpy as np

from figures import style

KEYS = ("A", "B", "E", "alpha", "beta")
MARKS = ["o", "s", "^", "D", "v"]
SHADES = [style.BLUE, style.YELLOW, style.GREEN, style.ORANGE, style.GREY]


def _loss(p, N, D):
    A, B, E, alpha, beta = (p[key] for key in KEYS)
    return E + A / N**alpha + B / D**beta


def _best(p, C):
    """The best size for each compute, to the grid's 0.1%. C: (n,)"""
    N = np.logspace(1, 16, 40_000)[:, None]
    return N[_loss(p, N, np.asarray(C) / 6 / N).argmin(0), 0]


def isoflop(runs, own, published):
    """Move the compute and see the best size move; four sets of constants.

    runs: rows of family.csv; own: the law fitted to them; published:
    {name: constants}
    """
    budgets = sorted({run["budget"] for run in runs})
    low, high = np.log10([budgets[0], budgets[-1]])
    sets = {
        "family": {
            "words": "our family",
            "p": _plain(own),
            "from": low,
            "to": high,
            "start": np.log10(budgets[len(budgets) // 2]),
        }
    }
    for number, (name, p) in enumerate(published.items()):
        sets[f"published{number}"] = {
            "words": name,
            "p": _plain(p),
            "from": 18,
            "to": 26,
            "start": np.log10(5.76e23),
        }
    shown = [
        {"C": run["budget"], "N": run["N"], "loss": run["loss"]}
        for run in runs
    ]
    return style.interactive(
        "isoflop",
        {"sets": sets, "runs": shown, "measured": "family"},
        alt="Left, loss against the number of parameters at a fixed compute: "
        "a valley, whose lowest point moves right and down as the compute "
        "grows. Right, tokens per parameter at the lowest point: "
        "slowly falling or rising with compute, depending on the constants.",
        height=440,
        still=_isoflop_still(own, budgets, shown),
    )


def _plain(p):
    return {key: float(p[key]) for key in KEYS}


@style.picture
def _isoflop_still(own, budgets, shown):
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2))
    N = np.logspace(2.5, 5.8, 200)
    for C in budgets:
        left.plot(N, _loss(own, N, C / 6 / N), "-", color=style.GREY, lw=1)
    C = budgets[len(budgets) // 2]
    left.plot(N, _loss(own, N, C / 6 / N), "-", color=style.BLUE, lw=2.5)
    near = [run for run in shown if run["C"] == C]
    left.plot(
        [run["N"] for run in near],
        [run["loss"] for run in near],
        "o",
        color=style.BLUE,
    )
    best = _best(own, [C])[0]
    left.plot(best, _loss(own, best, C / 6 / best), "s", color=style.GREEN)
    left.set(
        xscale="log",
        ylim=(1.7, 3.0),
        title="Loss at this compute",
        xlabel="parameters N",
        ylabel="loss (nats a character)",
    )
    grid = np.logspace(np.log10(budgets[0]), np.log10(budgets[-1]), 40)
    sizes = _best(own, grid)
    right.plot(grid, grid / 6 / sizes**2, color=style.GREEN)
    right.set(
        xscale="log",
        yscale="log",
        ylim=(1, 1000),
        title="At the best size",
        xlabel="compute C (FLOPs)",
        ylabel="characters per parameter",
    )
    return fig


def exclusions(groups, far):
    """Leave groups out of a power law and see its band.

    groups: [{"C": FLOPs, "N": best size, "draws": that of resamplings}]
    far: the compute that the line is asked about
    """
    ends = [groups[0]["C"] / 2, far * 1.5]
    every = np.concatenate([group["draws"] for group in groups])
    span = [
        *np.log10(ends),
        np.log10(np.quantile(every, 0.01)) - 0.3,
        np.log10(groups[-1]["N"]) + 1.8,
    ]
    data = {
        "groups": [
            {
                "C": float(group["C"]),
                "N": round(float(group["N"])),
                "draws": [round(float(draw)) for draw in group["draws"]],
            }
            for group in groups
        ],
        "far": float(far),
        "span": [float(end) for end in span],
    }
    return style.interactive(
        "exclusions",
        data,
        alt="The best size of each group against compute, both logarithmic, "
        "with a fitted line and its bootstrap band, which widens beyond the "
        "measured groups. Leaving the smallest group out widens it, leaving "
        "the largest out narrows it.",
        height=400,
        still=_exclusions_still(data),
    )


@style.picture
def _exclusions_still(data):
    fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
    x0, x1, y0, y1 = data["span"]
    x = np.linspace(x0, x1, 60)
    for ax, used, title in (
        (axes[0], data["groups"], "All groups"),
        (axes[1], data["groups"][1:], "Without the smallest"),
    ):
        C = np.log10([group["C"] for group in used])
        draws = np.log10([group["draws"] for group in used])
        lines = np.stack(
            [np.polyval(np.polyfit(C, each, 1), x) for each in draws.T]
        )
        low, high = np.quantile(lines, [0.025, 0.975], axis=0)
        ax.fill_between(10**x, 10**low, 10**high, color=style.BLUE, alpha=0.2)
        best = np.log10([group["N"] for group in used])
        slope = np.polyfit(C, best, 1)
        ax.plot(10**x, 10 ** np.polyval(slope, x), "-", color=style.BLUE)
        for group in data["groups"]:
            full = group in used
            ax.plot(
                group["C"],
                group["N"],
                "o",
                color=style.BLUE,
                mfc=style.BLUE if full else "white",
            )
        ax.set(
            xscale="log",
            yscale="log",
            ylim=(10**y0, 10**y1),
            title=f"{title}: exponent {slope[0]:.2f}",
            xlabel="compute C (FLOPs)",
        )
    axes[0].set_ylabel("best size N (parameters)")
    return fig


@style.picture
def groups(runs, valleys):
    """The measured groups of equal compute, with their parabolas.

    valleys: {budget: (three coefficients in log10 N, best size)}
    """
    fig, ax = plt.subplots(figsize=(7, 3.8))
    for number, (C, (curve, best)) in enumerate(valleys.items()):
        own = [run for run in runs if run["budget"] == C]
        N = np.array([run["N"] for run in own])
        colour, mark = SHADES[number], MARKS[number]
        ax.plot(
            N,
            [run["loss"] for run in own],
            mark,
            color=colour,
            ms=5,
            label=_times(C) + " FLOPs",
        )
        x = np.linspace(np.log10(N.min()), np.log10(N.max()), 60)
        ax.plot(10**x, curve(x), "-", color=colour, lw=1)
        ax.plot(
            best,
            curve(np.log10(best)),
            "*",
            color="black",
            mfc="none",  # a measured point may lie behind
            ms=12,
            zorder=5,
        )
    ax.set(
        xscale="log",
        xlabel="parameters N",
        ylabel="held-out loss (nats a character)",
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return fig


def _times(C):
    """A number as a person writes it: 2 times a power of ten."""
    exponent = int(np.floor(np.log10(C) + 1e-9))
    return rf"${C / 10**exponent:g} \cdot 10^{{{exponent}}}$"


@style.picture
def off_centre(p, C, grids):
    """One valley and the parabolas through three choices of sizes.

    grids: {name: sizes}
    """
    fig, axes = plt.subplots(1, len(grids), figsize=(7, 2.9), sharey=True)
    best = _best(p, [C])[0]
    N = np.logspace(np.log10(best) - 1.4, np.log10(best) + 1.9, 200)
    for ax, (name, sizes) in zip(axes, grids.items(), strict=True):
        ax.plot(
            N / best,
            _loss(p, N, C / 6 / N),
            "-",
            color=style.BLUE,
            label="law",
        )
        x = np.log10(sizes / best)
        tried = _loss(p, sizes, C / 6 / sizes)
        curve = np.polynomial.Polynomial.fit(x, tried, 2)
        ax.plot(
            sizes / best, tried, "o", color=style.ORANGE, ms=4, label="tried"
        )
        wide = np.linspace(x.min(), x.max(), 50)
        ax.plot(
            10**wide, curve(wide), "--", color=style.ORANGE, label="parabola"
        )
        foot = curve.deriv().roots()[0]
        ax.plot(
            10**foot, curve(foot), "*", color="black", ms=11, label="its foot"
        )
        ax.axvline(1, color=style.GREY, lw=0.8)
        ax.set(
            xscale="log",
            title=f"{name}:\n{10**foot:.2f} of the truth",
            xlabel="N / best N",
        )
    axes[0].set_ylabel("loss (nats)")
    axes[0].set_ylim(None, _loss(p, best, C / 6 / best) + 0.45)
    fig.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
    )
    return fig


@style.picture
def spread(draws, own):
    """What a bootstrap leaves open, and what it does not.

    draws: {name: (n,)} of A and alpha, and of two predicted losses
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.1))
    left.plot(draws["A"], draws["alpha"], ".", color=style.BLUE, alpha=0.5)
    left.plot(own["A"], own["alpha"], "*", color="black", ms=12)
    left.set(
        xscale="log",
        title="The constants",
        xlabel="A",
        ylabel="exponent α",
    )
    left.xaxis.set_minor_formatter("")
    left.set_xticks([20, 50, 100, 200], ["20", "50", "100", "200"])
    right.hist(draws["inside"], bins=20, color=style.GREEN, alpha=0.8)
    right.hist(draws["outside"], bins=20, color=style.ORANGE, alpha=0.8)
    top = right.get_ylim()[1]
    for name, words in (
        ("inside", "within"),
        ("outside", "1,000 times\nbeyond"),
    ):
        right.text(
            np.median(draws[name]),
            1.02 * top,
            words,
            ha="center",
            fontsize=9,
        )
    right.set(
        title="The losses they predict",
        xlabel="best loss (nats a character)",
        ylabel="resamplings",
        ylim=(0, 1.25 * top),
    )
    return fig


@style.picture
def published(sets):
    """Tokens per parameter that each set of constants calls optimal."""
    fig, ax = plt.subplots(figsize=(7, 3.6))
    C = np.logspace(18, 26, 60)
    for (name, p), colour, line in zip(
        sets.items(),
        (style.ORANGE, style.YELLOW, style.BLUE),
        (":", "--", "-"),
        strict=True,
    ):
        ax.plot(C, C / 6 / _best(p, C) ** 2, line, color=colour, lw=2)
        end = C[-1] / 6 / _best(p, C[-1:])[0] ** 2
        ax.text(1.3 * C[-1], end, name, va="center", fontsize=9)
    ax.axhline(20, color=style.GREY, lw=0.8)
    ax.text(2e25, 20.8, "20", color=style.GREY)
    for name, N, D in (("GPT-3", 175e9, 300e9), ("Chinchilla", 70e9, 1.4e12)):
        ax.plot(6 * N * D, D / N, "o", color="black", ms=5)
        ax.annotate(
            name,
            (6 * N * D, D / N),
            (-6, 5),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(1e18, 1e26),
        ylim=(1, 220),
        xlabel="compute C (FLOPs)",
        ylabel="tokens per parameter",
    )
    ax.set_yticks([1, 2, 5, 10, 20, 50, 100, 200])
    ax.set_yticklabels([1, 2, 5, 10, 20, 50, 100, 200])
    return fig


@style.picture
def straight_lines(C, excess, E):
    """A power law above a floor: straight only when the floor is removed.

    excess: best loss minus E, for each compute
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.1))
    for ax, values, title, name in (
        (left, excess + E, "The loss bends", "best loss L"),
        (right, excess, "Above the floor it is straight", "L − E"),
    ):
        inside = C <= C[len(C) // 2]
        slope, height = np.polyfit(
            np.log(C[inside]), np.log(values[inside]), 1
        )
        ax.plot(C, values, "-", color=style.BLUE, label="truth")
        ax.plot(
            C,
            np.exp(height) * C**slope,
            "--",
            color=style.ORANGE,
            label=f"line, slope {slope:.3f}".replace("-", "−"),
        )
        ax.axvspan(C[0], C[inside][-1], color=style.GREY, alpha=0.12, lw=0)
        ax.set(
            xscale="log",
            yscale="log",
            title=title,
            xlabel="compute C (FLOPs)",
            ylabel=f"{name} (nats)",
        )
        ax.legend()
    for ax, ticks in ((left, [1.5, 2, 2.5, 3]), (right, [0.1, 0.3, 1])):
        ax.yaxis.set_minor_formatter("")
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    return fig


@style.picture
def inference(demand, sizes, costs):
    """The best size when the model is used, and what it saves.

    demand: tokens read and written in use; sizes: {words: (n,) best N};
    costs: share of the total that the training optimum would cost more
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.1))
    for (name, best), cost, colour, line in zip(
        sizes.items(),
        costs.values(),
        (style.BLUE, style.ORANGE),
        ("-", "--"),
        strict=True,
    ):
        left.plot(demand, best, line, color=colour, label=name)
        right.plot(demand, 100 * cost, line, color=colour, label=name)
    left.set(
        xscale="log",
        yscale="log",
        title="The size with the least total",
        xlabel="tokens in use",
        ylabel="parameters N (billions)",
    )
    left.yaxis.set_minor_formatter("")
    left.set_yticks([2e9, 5e9, 1e10], ["2", "5", "10"])
    right.set(
        xscale="log",
        title="What it saves",
        xlabel="tokens in use",
        ylabel="share of the total (%)",
        ylim=(0, None),
    )
    left.legend()
    return fig
