"""Figures of chapter 5."""

import math
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from figures import style

# How texts show the characters that leave no trace on a page.
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}


class Progress:
    """One line that is written anew while a loop runs.

    steps: how many there are
    """

    def __init__(self, steps):
        self.steps = steps
        self.line = display(self._bundle(0, ""), raw=True, display_id=True)

    def show(self, done, text):
        """done: steps so far; text: what else there is to say."""
        self.line.update(self._bundle(done, text), raw=True)

    def _bundle(self, done, text):
        full = round(30 * done / self.steps)
        bar = "█" * full + "░" * (30 - full)
        return {"text/plain": f"{bar} {done}/{self.steps}  {text}"}


def wrapped(text, width=72):
    """A text whose lines fit the page; its own line ends stay."""
    return "\n".join(textwrap.fill(line, width) for line in text.split("\n"))


@style.picture
def treemap(shapes):
    """GPT-2 small's parameters as areas.

    shapes: {name: shape}, names of blocks starting with their number
    """
    size = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(size.values())
    tok, pos = size["tok"] / total, size["pos"] / total
    attention = _share(size, "qkv", "out")
    mlp = _share(size, "up", "down")
    fig, ax = plt.subplots(figsize=(7, 4.3))
    ax.set(xlim=(0, 1), ylim=(0, 1.09))
    ax.set_axis_off()
    words = f"token embedding\n= head\n{tok:.0%}"
    _tile(ax, (0, 0, tok, 1), style.BLUE, words)
    _tile(ax, (tok, 0, pos, 1), style.ORANGE)
    left, columns, rows = tok + pos, 3, 4
    wide = (1 - left) / columns
    for i in range(columns * rows):
        x = left + wide * (i % columns)
        y = 1 - (i // columns + 1) / rows
        part = wide * attention / (attention + mlp)
        _tile(ax, (x, y, part, 1 / rows), style.GREEN)
        words = f"block {i + 1}"
        _tile(ax, (x + part, y, wide - part, 1 / rows), style.YELLOW, words)
    for x, colour, words in (
        (0, style.ORANGE, f"positions {pos:.1%}"),
        (left, style.GREEN, f"attention {attention:.0%}"),
        (left + wide, style.YELLOW, f"MLP {mlp:.0%}"),
    ):
        _tile(ax, (x, 1.03, 0.03, 0.05), colour)
        ax.text(x + 0.04, 1.055, words, va="center")
    return fig


def _share(size, *parts):
    """What these parts of all blocks have of the total."""
    own = sum(n for name, n in size.items() if set(name.split(".")) & {*parts})
    return own / sum(size.values())


def _tile(ax, place, colour, words=""):
    x, y, width, height = place
    ax.add_patch(
        plt.Rectangle(
            (x, y), width, height, fc=colour, ec="white", lw=1.5, alpha=0.5
        )
    )
    middle = {"ha": "center", "va": "center"}
    ax.text(x + width / 2, y + height / 2, words, **middle)


@style.picture
def first_loss(stds, losses, D, V):
    """A fresh model's loss against the spread of its embedding.

    stds, losses: measured; D, V: width and vocabulary
    """
    fig, ax = plt.subplots(figsize=(7, 3.2))
    fine = np.geomspace(stds[0], stds[-1], 100)
    ax.loglog(fine, np.log(V) + D * fine**2 / 2, label="ln V + ½ D std²")
    ax.loglog(stds, losses, "o", color=style.ORANGE, label="measured")
    ax.axhline(np.log(V), color="black", lw=0.8, ls=":")
    ax.text(stds[0], np.log(V) * 0.85, f"ln V = {np.log(V):.1f}", va="top")
    for std, at, words in ((0.02, 30, "GPT-2"), (1, 13, "nn.Embedding")):
        ax.axvline(std, color=style.GREY, lw=0.8)
        ax.text(std * 0.95, at, words, ha="right")
    ax.set(
        xlabel="standard deviation of the embedding's numbers",
        ylabel="loss (nats)",
        ylim=(7, 600),
    )
    ax.set_yticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    ax.set_yticks([], minor=True)
    ax.set_xticks([0.005, 0.02, 0.1, 1], ["0.005", "0.02", "0.1", "1"])
    ax.legend(loc="upper left")
    return fig


@style.picture
def schedules(rates, wrong):
    """The learning rate step by step, right and wrong.

    rates: the right one; wrong: {what is wrong: rates}
    """
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), sharey=True)
    axes[0].plot(rates, "o-", ms=3)
    axes[0].set(title="Right", ylabel="share of the highest rate")
    for name, curve in wrong.items():
        axes[1].plot(curve, "o", ms=3, label=name)
    axes[1].set_title("Wrong")
    axes[1].legend(fontsize=8, loc=(0.3, 0.82))
    for ax in axes:
        ax.set(xlabel="update", ylim=(-0.05, 1.3))
    return fig


@style.picture
def learning(losses, held_out, lines):
    """Loss against steps, with what simple models reach.

    losses: of each step; held_out: {step: loss}; lines: {name: loss}
    """
    fig, ax = plt.subplots(figsize=(7, 3.6))
    ax.plot(losses, color=style.BLUE, lw=0.6, alpha=0.45, label="one batch")
    width = max(1, len(losses) // 40)
    smooth = np.convolve(losses, np.ones(width) / width, "valid")
    middle = np.arange(len(smooth)) + (width - 1) / 2
    ax.plot(middle, smooth, "-", color=style.BLUE, label="mean of batches")
    ax.plot(
        *zip(*held_out.items(), strict=True),
        "o",
        color=style.ORANGE,
        label="text never trained on",
    )
    for name, loss in lines.items():
        ax.axhline(loss, color="black", lw=0.8, ls=":")
        ax.text(len(losses), loss + 0.07, name, ha="right", fontsize=8)
    ax.set(xlabel="update", ylabel="loss (nats a character)")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=9)
    return fig


def sampling(letters, contexts):
    """Filter a trained model's predictions and draw from what is left.

    letters: the vocabulary, as strings; contexts: {text: probabilities}
    """
    shown = [SIGNS.get(letter, letter) for letter in letters]
    data = {
        "letters": shown,
        "contexts": [
            {
                "text": "".join(SIGNS.get(letter, letter) for letter in text),
                "logits": np.log(np.maximum(p, 1e-12)).round(4).tolist(),
            }
            for text, p in contexts.items()
        ],
    }
    return style.interactive(
        "sampling",
        data,
        alt="Bars for the most likely next characters after a chosen text: "
        "what the model says, and what is left after temperature, top-k, "
        "top-p and min-p. Each filter says how many characters it leaves; a "
        "button draws twenty characters from them.",
        height=560,
        still=_sampling_still(data),
    )


@style.picture
def _sampling_still(data):
    fig, axes = plt.subplots(1, len(data["contexts"]), figsize=(7, 3.4))
    for ax, context in zip(np.atleast_1d(axes), data["contexts"], strict=True):
        p = np.exp(context["logits"])
        order = np.argsort(-p)
        best = order[:10]
        before = np.cumsum(p[order])[:10] - p[best]
        kept = before < 0.9
        ax.barh(
            range(10),
            p[best],
            color=[style.BLUE if keep else "#cccccc" for keep in kept],
        )
        ax.set_yticks(range(10), [data["letters"][i] for i in best])
        ax.invert_yaxis()
        ax.set(xlabel="probability", xlim=(0, 1))
        ax.set_title(f"after “{context['text']}”", fontsize=9)
    return fig
