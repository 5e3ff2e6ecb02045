"""Tables about the course say what the notebooks say, and can be led to."""

import re
import sys

import pytest

from autograder.course import ROOT, stamp
from autograder.exercise import lessons

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import tables  # noqa: E402 - needs that path


@pytest.mark.parametrize("lesson", lessons())
def test_a_link_to_an_exercise_leads_to_its_row(lesson):
    shown = tables.exercises(lesson).data
    for each in stamp(lesson)["exercises"]:
        link = tables.exercise_link(each["name"])
        page, anchor, number = re.fullmatch(
            r'<a href="(\w+)\.html#([\w-]+)">([\w.]+)</a>', link
        ).groups()
        assert page == lesson
        assert f'<span id="{anchor}"></span>{number} ' in shown


def test_an_exercise_of_no_lesson_has_no_link():
    assert not tables.is_exercise("left_out")
    with pytest.raises(LookupError):
        tables.exercise_link("left_out")


def test_the_map_adds_up():
    *_, together = tables.course().data.splitlines()
    every = [
        each for lesson in lessons() for each in stamp(lesson)["exercises"]
    ]
    _, _, _, count, minutes, challenges, points, _ = (
        cell.strip() for cell in together.split("|")
    )
    assert int(count) == len(every)
    assert int(minutes) == sum(each["minutes"] for each in every)
    assert float(points) == sum(each["points"] for each in every)
    assert int(challenges) == sum(
        each["minutes"] for each in every if each["level"] > 3
    )


def test_what_a_lesson_needs_comes_before_it():
    stems = sorted(path.stem for path in (ROOT / "book").glob("ch*.md"))
    for lesson, needs in tables.NEEDS.items():
        assert {lesson, *needs} <= set(stems)
        assert all(need < lesson for need in needs)


def test_the_map_shows_every_lesson():
    shown = tables.course_map().data
    boxes = re.findall(r'<g id="text_\d+">', shown)
    assert len(boxes) == len(lessons())


def test_a_lesson_that_is_left_out_says_so():
    assert "leaves the lesson out" in tables.troubles("ch9_left_out").data
