"""The course's figures: one look, and outputs that a reader can move.

Static figures are matplotlib figures turned into SVG by `picture`.
Interactive ones are hand-written SVG and JavaScript from
`book/assets/interactive`, put whole into one HTML output by `interactive`:
they ask no other host for anything and work in the book, JupyterLab and
Colab. Both are shown by being the last expression of a cell.

Colours: Okabe and Ito's palette, told apart with colour-blindness and, by
their lightness, in grey.
"""

import base64
import functools
import html
import io
import json
import pathlib
import secrets

import matplotlib as mpl
import matplotlib.pyplot as plt
from IPython.display import HTML, SVG
from matplotlib.ticker import ScalarFormatter

ASSETS = pathlib.Path(__file__).parent.parent / "assets" / "interactive"

BLUE = "#0072b2"
ORANGE = "#d55e00"
GREEN = "#009e73"
YELLOW = "#e69f00"
GREY = "#6b6b6b"
# From this weight on, a number on a map is read better in white than in black,
# in the book's dark mode, which darkens pictures, and in its light one alike.
WHITE_FROM = 0.75
COLOURS = [BLUE, YELLOW, GREEN, ORANGE, GREY]

RC = {
    "axes.grid": False,
    "axes.prop_cycle": mpl.cycler(
        color=COLOURS, linestyle=["-", "--", "-.", ":", "-"]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "figure.figsize": (7.0, 3.2),  # inches: the width of the book's column
    "font.size": 10,
    "image.cmap": "Blues",  # one hue: dark is much, in grey too
    "legend.frameon": False,
    "svg.fonttype": "path",  # looks the same without our fonts
    "svg.hashsalt": "course",  # the same figure gives the same bytes
}


def picture(draw):
    """Show the matplotlib figure that `draw` returns as an SVG picture."""

    @functools.wraps(draw)
    def show(*args, **kwargs):
        with mpl.rc_context(RC):
            figure = draw(*args, **kwargs)
            _group_thousands(figure)
            file = io.StringIO()
            # A date would make every build differ from the last.
            figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)  # or the notebook would show it a second time
        return SVG(file.getvalue())

    return show


def _group_thousands(figure):
    """Write 1,000 on axes as the text does."""
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            plain = type(axis.get_major_formatter()) is ScalarFormatter
            if plain and 1000 <= max(map(abs, axis.get_view_interval())) < 1e6:
                axis.set_major_formatter("{x:,g}")


def weight_map(ax, weights, *, title="", digits=2):
    """Draw attention weights with their numbers, queries down, keys across.

    weights: (Tq, Tk) array of numbers from 0 to 1
    """
    ax.imshow(weights, vmin=0, vmax=1.15, aspect="equal")
    for (i, j), weight in _cells(weights):
        ax.text(
            j,
            i,
            f"{weight:.{digits}f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if weight > WHITE_FROM else "black",
        )
    rows, columns = weights.shape
    ax.set_xticks(range(columns), range(1, columns + 1))
    ax.set_yticks(range(rows), range(1, rows + 1))
    ax.set(xlabel="key position", ylabel="query position", title=title)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _cells(array):
    return (
        ((i, j), array[i][j])
        for i in range(len(array))
        for j in range(len(array[0]))
    )


def interactive(name, data, *, alt, height, still):
    """Show `book/assets/interactive/<name>.js` as one HTML output.

    name: the file holds one JavaScript function (root, data, ui)
    data: what it draws; becomes JSON
    alt: what a person who does not see the figure should know
    height: pixels kept free, so that the page does not jump
    still: the figure's first state as a picture; it stands there until the
        script runs, and for good where scripts do not
    """
    figure_id = f"{name}-{secrets.token_hex(4)}"  # once more for every run
    source = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    helpers = (ASSETS / "ui.js").read_text(encoding="utf-8")
    sheet = (ASSETS / "ui.css").read_text(encoding="utf-8")
    image = base64.b64encode(still.data.encode()).decode()
    values = json.dumps(data).replace("</", r"<\/")
    label = html.escape(alt, quote=True)
    # The braces make a block: no name of ours becomes global.
    return HTML(
        f"""<style>{sheet}</style>
<div class="ta-figure" id="{figure_id}" role="group" aria-label="{label}"
 style="min-height: {height}px">
<img alt="{label}" src="data:image/svg+xml;base64,{image}">
</div>
<script>
{{
const ui = {helpers.strip().removesuffix(";")};
const draw = {source.strip().removesuffix(";")};
draw(document.getElementById("{figure_id}"), {values}, ui);
}}
</script>"""
    )
