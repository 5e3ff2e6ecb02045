"""Tables about the course itself, read from the released notebooks."""

from IPython.display import Markdown

from autograder.course import released_path, stamp
from autograder.exercise import lessons


def exercises(lesson):
    """A lesson's exercises: name, level, minutes, points."""
    rows = stamp(lesson)["exercises"]
    table = [
        "| Exercise | Name | Level | Minutes | Points |",
        "|---|---|:---:|---:|---:|",
        *(
            f"| {each['title']} | `{each['name']}` | {each['level']} "
            f"| {each['minutes']} | {each['points']:g} |"
            for each in rows
        ),
        f"| together | | | {_total(rows, 'minutes')} "
        f"| {_total(rows, 'points')} |",
    ]
    return Markdown("\n".join(table))


def course():
    """All lessons: exercises, minutes, points."""
    table = [
        "| Lesson | Exercises | Minutes | Points |",
        "|---|---:|---:|---:|",
    ]
    every = []
    for lesson in lessons():
        if released_path(lesson).exists():
            about = stamp(lesson)
            every += about["exercises"]
            table.append(_row(about["title"], about["exercises"]))
    return Markdown("\n".join([*table, _row("together", every)]))


def _row(title, rows):
    return (
        f"| {title} | {len(rows)} | {_total(rows, 'minutes')} "
        f"| {_total(rows, 'points')} |"
    )


def _total(rows, key):
    return f"{sum(each[key] for each in rows):g}"
