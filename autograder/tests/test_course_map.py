"""The map of the course says what its notebooks say."""

import re
import sys

from autograder.course import ROOT, stamp
from autograder.exercise import lessons

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import course_map  # noqa: E402 - needs that path


def test_the_map_adds_up():
    *_, together = course_map.table().data.splitlines()
    every = [
        each for lesson in lessons() for each in stamp(lesson)["exercises"]
    ]
    _, _, _, count, minutes, challenges, points, _ = (
        cell.strip() for cell in together.split("|")
    )
    assert int(count) == len(every)
    assert minutes == f"{sum(each['minutes'] for each in every):,}"
    assert float(points) == sum(each["points"] for each in every)
    assert int(challenges) == sum(
        each["minutes"] for each in every if each["level"] > 3
    )


def test_what_a_lesson_needs_comes_before_it():
    stems = sorted(path.stem for path in (ROOT / "book").glob("ch*.md"))
    for lesson, needs in course_map.NEEDS.items():
        assert {lesson, *needs} <= set(stems)
        assert all(need < lesson for need in needs)


def test_the_map_shows_every_lesson():
    shown = course_map.picture().data
    boxes = re.findall(r'<g id="text_\d+">', shown)
    assert len(boxes) == len(lessons())


def test_a_term_has_time_for_the_core_path_of_each_lesson():
    rows = course_map.term().data.splitlines()[2:]
    assert len(rows) == len(lessons())
    expected = 1  # the first week of a lesson
    for lesson, row in zip(lessons(), rows, strict=True):
        _, weeks, title, hours, _ = (cell.strip() for cell in row.split("|"))
        first, last = (int(weeks.split("–")[each]) for each in (0, -1))
        minutes = sum(
            each["minutes"]
            for each in stamp(lesson)["exercises"]
            if each["level"] <= 3
        )
        assert title == stamp(lesson)["title"]
        assert hours == f"{minutes / 60:.1f}"
        assert first == expected
        # Four hours a week are enough, and a week less would not be.
        assert minutes <= 240 * (last - first + 1) < minutes + 240
        expected = last + 1
