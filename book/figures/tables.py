"""Tables about the course itself, read from its notebooks and chapters."""

import collections
import functools
import pathlib
import re
import textwrap
import tomllib

import matplotlib.pyplot as plt
from IPython.display import Markdown

from autograder.course import released_path, stamp
from autograder.exercise import lessons
from figures import style

BOOK = pathlib.Path(__file__).parent.parent
CORE = 3  # levels up to this one are the core path, the others challenges
# What a lesson takes for granted; a lesson that is not here needs none.
NEEDS = {
    "ch2_multi_head": ["ch1_self_attention"],
    "ch3_positional_encoding": ["ch1_self_attention"],
    "ch4_transformer_block": ["ch2_multi_head"],
    "ch5_gpt": ["ch3_positional_encoding", "ch4_transformer_block"],
    "ch6_kv_cache_flash": ["ch5_gpt"],
    "ch7_scaling_laws": ["ch5_gpt"],
}


def exercises(lesson):
    """A lesson's exercises: name, level, minutes, points.

    Each row has an anchor, to which `exercise_link` leads.
    """
    rows = stamp(lesson)["exercises"]
    table = [
        "| Exercise | Name | Level | Minutes | Points |",
        "|---|---|:---:|---:|---:|",
        *(
            f'| <span id="exercise-{each["name"]}"></span>{each["title"]} '
            f"| `{each['name']}` | {each['level']} "
            f"| {each['minutes']} | {each['points']:g} |"
            for each in rows
        ),
        f"| together | | | {_total(rows, 'minutes')} "
        f"| {_total(rows, 'points')} |",
    ]
    return Markdown("\n".join(table))


def course():
    """The map of the course: what a lesson needs, asks for and is worth."""
    table = [
        "| Lesson | Comes after | Exercises | Minutes | of them challenges "
        "| Points |",
        "|---|---|---:|---:|---:|---:|",
    ]
    every = []
    for lesson in _released():
        about = stamp(lesson)
        every += about["exercises"]
        needs = ", ".join(
            _number(need) for need in NEEDS.get(lesson, []) if _is_here(need)
        )
        table.append(
            _row(
                f"[{_number(lesson)} {about['title']}]({lesson}.md)",
                needs or "–",
                about["exercises"],
            )
        )
    return Markdown("\n".join([*table, _row("together", "", every)]))


@style.picture
def course_map():
    """The lessons as boxes, each to the right of what it comes after."""
    fig, ax = plt.subplots(figsize=(7, 2.1))
    places = _places()
    for lesson, (x, y) in places.items():
        about = stamp(lesson)
        title = f"{_number(lesson)} {about['title']}".strip()
        words = textwrap.fill(title, 16)
        minutes = _total(about["exercises"], "minutes")
        points = _total(about["exercises"], "points")
        ax.text(
            x,
            y,
            f"{words}\n{minutes} min, {points} points",
            ha="center",
            va="center",
            fontsize=7.5,
            bbox={
                "boxstyle": "round,pad=0.5",
                "fc": "white",
                "ec": style.BLUE,
            },
            zorder=2,
        )
        for need in filter(places.get, NEEDS.get(lesson, [])):
            ax.annotate(
                "",
                (x, y),
                places[need],
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": style.GREY,
                    "shrinkA": 42,  # points: half a box and a little
                    "shrinkB": 42,
                },
                zorder=1,
            )
    last, _ = max(places.values())
    ax.set(xlim=(-0.5, last + 0.5), ylim=(-1, 1))
    ax.axis("off")
    return fig


def exercise_link(name):
    """An exercise's number as a link to its row in its chapter.

    raises LookupError: if no lesson of this edition has the exercise
    """
    lesson, title = _homes()[name]
    number = title.partition(" ")[0]
    return f'<a href="{lesson}.html#exercise-{name}">{number}</a>'


def is_exercise(name):
    """Whether a lesson of this edition has the exercise."""
    return name in _homes()


def troubles(lesson):
    """A chapter's "When it goes wrong", with exercises and mistakes.

    The rows stand in the chapter; `book/assets/troubleshooting.toml` says
    which exercise teaches each, and under which names the checks know it.
    """
    if not _is_here(lesson):
        return Markdown("This edition of the course leaves the lesson out.")
    known = trouble_homes().get(lesson, {})
    table = [
        "| Symptom | Likely cause | Remedy | Exercise and mistake |",
        "|---|---|---|---|",
    ]
    for symptom, cause, remedy in trouble_rows(lesson):
        about = known.get(symptom, {})
        tasks = filter(is_exercise, about.get("exercises", []))
        links = ", ".join(map(exercise_link, tasks))
        names = ", ".join(f"`{name}`" for name in about.get("mistakes", []))
        where = "<br>".join(filter(None, [links, names]))
        table.append(f"| {symptom} | {cause} | {remedy} | {where} |")
    return Markdown("\n".join(table))


def trouble_rows(lesson):
    """Symptom, cause and remedy of each row in a chapter's table."""
    text = (BOOK / f"{lesson}.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## When it goes wrong\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.M)[0]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return rows[2:]  # below the heading and its rule


def trouble_homes():
    """{lesson: {symptom: {"exercises": names, "mistakes": names}}}."""
    path = BOOK / "assets" / "troubleshooting.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _released():
    return [each for each in lessons() if released_path(each).exists()]


def _is_here(lesson):
    return lesson in _released() and (BOOK / f"{lesson}.md").exists()


@functools.cache
def _homes():
    return {
        each["name"]: (lesson, each["title"])
        for lesson in _released()
        for each in stamp(lesson)["exercises"]
    }


def _places():
    """{lesson: (x, y)} on the map, y from -1 to 1."""
    columns = collections.defaultdict(list)
    for lesson in _released():
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
        f"| {title} | {needs} | {len(rows)} | {_total(rows, 'minutes')} "
        f"| {_total(challenges, 'minutes')} | {_total(rows, 'points')} |"
    )


def _total(rows, key):
    return f"{sum(each[key] for each in rows):g}"
