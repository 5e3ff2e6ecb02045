"""Tables of a lesson's exercises, and links that lead to their rows."""

import functools

from IPython.display import Markdown

from autograder.course import ROOT, colab_address, released_path, stamp
from autograder.exercise import lessons


def exercises(lesson):
    """A lesson's exercises: name, level, minutes, points.

    Each row has an anchor, to which `exercise_link` leads; below stands where
    Colab opens the notebook, once the repository has an address.
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
        f"| together | | | {total(rows, 'minutes')} "
        f"| {total(rows, 'points')} |",
    ]
    path = released_path(lesson).relative_to(ROOT).as_posix()
    if address := colab_address(path):
        table += ["", f"[Open the exercises in Colab]({address})"]
    return Markdown("\n".join(table))


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


@functools.cache
def _homes():
    return {
        each["name"]: (lesson, each["title"])
        for lesson in released()
        for each in stamp(lesson)["exercises"]
    }


def released():
    """The lessons of this edition of the course."""
    return [each for each in lessons() if released_path(each).exists()]


def total(rows, key):
    """What exercises take or are worth together, as text."""
    return f"{sum(each[key] for each in rows):,g}"
