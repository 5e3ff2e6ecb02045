"""Troubleshooting joins the chapters' tables, exercises and mistakes."""

import sys

import bs4
import pytest
from built import CHAPTERS, SITE, built

from autograder import answers
from autograder.course import ROOT, stamp

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import troubleshooting  # noqa: E402 - needs that path

LESSONS = [page.partition("/")[2] for page in CHAPTERS]
EXERCISES = {
    each["name"] for lesson in LESSONS for each in stamp(lesson)["exercises"]
}


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_row_of_a_chapter_has_its_exercise(lesson):
    rows = troubleshooting.rows_of(lesson)
    assert len(rows) >= 5 and {len(row) for row in rows} == {3}
    known = troubleshooting.homes()[lesson]
    symptoms = [symptom for symptom, _, _ in rows]
    assert set(symptoms) == set(known), (
        "a row is new, gone or renamed: tell book/assets/troubleshooting.toml"
    )
    for symptom, about in known.items():
        assert about["exercises"], symptom
        assert set(about["exercises"]) <= EXERCISES, symptom


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_mistake_is_a_wrong_answer_to_its_exercise(lesson):
    home = {
        answer.id: answer.exercise
        for each in LESSONS
        for answer in answers.load(each)
        if answer.kind == "wrong"
    }
    for symptom, about in troubleshooting.homes()[lesson].items():
        for name in about["mistakes"]:
            assert name in home, f"{symptom}: no wrong answer {name}"
            assert home[name] in about["exercises"], (symptom, home[name])


def test_most_rows_name_a_mistake():
    every = [
        about
        for lesson in LESSONS
        for about in troubleshooting.homes()[lesson].values()
    ]
    named = [about for about in every if about["mistakes"]]
    assert len(named) >= 0.9 * len(every)


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_mistake_stands_on_a_line_of_its_own(lesson):
    shown = troubleshooting.table(lesson).data
    for about in troubleshooting.homes()[lesson].values():
        for name in about["mistakes"]:
            assert f"<br>`{name}`" in shown


def test_a_lesson_that_is_left_out_says_so():
    shown = troubleshooting.table("ch9_left_out").data
    assert "leaves the lesson out" in shown


@pytest.mark.slow
@pytest.mark.parametrize("page", CHAPTERS)
def test_the_page_shows_what_the_chapter_says(page):
    own = rows(page, "#when-it-goes-wrong")
    every = rows("book/troubleshooting", "")
    shown = {row[:3]: " ".join(row[3:]) for row in every}
    for row in own:
        assert row in shown, "stale: rm -r _build/.jupyter_cache; make book"
    known = troubleshooting.homes()[page.partition("/")[2]]
    for row, about in zip(own, known.values(), strict=True):
        for name in about["mistakes"]:
            assert name in shown[row]


def rows(page, section):
    """Texts of the cells of each row in a page's tables."""
    path = built(SITE / f"{page}.html")
    soup = bs4.BeautifulSoup(path.read_bytes(), "html.parser")
    return [
        tuple(cell.get_text(" ", strip=True) for cell in row.find_all("td"))
        for row in soup.select(f"article {section} tbody tr")
    ]
