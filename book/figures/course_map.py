"""The way through the course: what comes before what, and what it takes."""

import collections
import math
import re
import textwrap

import matplotlib.pyplot as plt
from IPython.display import Markdown

from autograder.course import stamp
from figures import style
from figures.tables import released, total

CORE = 3  # levels up to this one are the core path, the others challenges
WEEK = 240  # minutes of homework
# What a lesson takes for granted; a lesson that is not here needs none.
NEEDS = {
    "ch2_multi_head": ["ch1_self_attention"],
    "ch3_positional_encoding": ["ch1_self_attention"],
    "ch4_transformer_block": ["ch2_multi_head"],
    "ch5_gpt": ["ch3_positional_encoding", "ch4_transformer_block"],
    "ch6_kv_cache_flash": ["ch5_gpt"],
    "ch7_scaling_laws": ["ch5_gpt"],
}


def table():
    """The map of the course: what a lesson needs, asks for and is worth."""
    here = released()
    lines = [
        "| Lesson | Comes after | Exercises | Minutes "
        "| Minutes of challenges | Points |",
        "|---|---|---:|---:|---:|---:|",
    ]
    every = []
    for lesson in here:
        about = stamp(lesson)
        every += about["exercises"]
        needs = ", ".join(
            _number(need) for need in NEEDS.get(lesson, []) if need in here
        )
        lines.append(
            _row(
                f"[{_number(lesson)} {about['title']}]({lesson}.md)",
                needs or "–",
                about["exercises"],
            )
        )
    return Markdown("\n".join([*lines, _row("together", "", every)]))


@style.picture
def picture():
    """The lessons as boxes, each to the right of what it comes after."""
    fig, ax = plt.subplots(figsize=(7, 2.3))
    places = _places()
    boxes = {}
    for lesson, (x, y) in places.items():
        about = stamp(lesson)
        title = f"{_number(lesson)} {about['title']}".strip()
        words = textwrap.fill(title, 17)
        minutes = total(about["exercises"], "minutes")
        points = total(about["exercises"], "points")
        boxes[lesson] = ax.text(
            x,
            y,
            f"{words}\n{minutes} min\n{points} points",
            ha="center",
            va="center",
            fontsize=8.5,
            bbox={
                "boxstyle": "round,pad=0.5",
                "fc": "white",
                "ec": style.BLUE,
            },
            zorder=2,
        )
    last, _ = max(places.values())
    ax.set(xlim=(-0.5, last + 0.5), ylim=(-1, 1))
    ax.axis("off")
    fig.draw_without_rendering()  # boxes have sizes now
    for lesson in places:
        for need in filter(places.get, NEEDS.get(lesson, [])):
            ax.annotate(
                "",
                places[lesson],
                places[need],
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": style.GREY,
                    "patchA": boxes[need].get_bbox_patch(),
                    "patchB": boxes[lesson].get_bbox_patch(),
                },
                zorder=1,
            )
    return fig


def term():
    """The weeks that each lesson's core path takes, one after the other."""
    week = 1
    rows = [
        f"| Week of {WEEK / 60:g} hours | Lesson | Hours |",
        "|---|---|---:|",
    ]
    for lesson in released():
        about = stamp(lesson)
        minutes = sum(
            each["minutes"]
            for each in about["exercises"]
            if each["level"] <= CORE
        )
        count = max(1, math.ceil(minutes / WEEK))
        weeks = f"{week}" if count == 1 else f"{week}–{week + count - 1}"
        rows.append(f"| {weeks} | {about['title']} | {minutes / 60:.1f} |")
        week += count
    return Markdown("\n".join(rows))


def _places():
    """{lesson: (x, y)} on the map, y from -1 to 1."""
    columns = collections.defaultdict(list)
    for lesson in released():
        columns[_depth(lesson)].append(lesson)
    places = {}
    for column, together in sorted(columns.items()):
        for row, lesson in enumerate(together):
            above = (len(together) - 1) / 2 - row
            needs = [need for need in NEEDS.get(lesson, []) if need in places]
            if len(together) == 1 and needs:  # level with what it needs
                above = sum(places[need][1] for need in needs) / len(needs)
            places[lesson] = (column, above)
    return places


def _depth(lesson):
    """How many lessons stand before it, along the longest way."""
    return max((_depth(need) + 1 for need in NEEDS.get(lesson, [])), default=0)


def _number(lesson):
    return re.match(r"[a-z]+(\d*)", lesson)[1]


def _row(title, needs, rows):
    challenges = [each for each in rows if each["level"] > CORE]
    return (
        f"| {title} | {needs} | {len(rows)} | {total(rows, 'minutes')} "
        f"| {total(challenges, 'minutes')} | {total(rows, 'points')} |"
    )
