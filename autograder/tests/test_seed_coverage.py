"""Every fact of the two seed documents stands in the built book.

Each row of seed_coverage.csv is one fact: where it comes from (ARC to TP are
the cheat sheet's sections with the row's number, E1 to E24 the essay's
points), what it says in brief, and the page, the section's anchor and the
words or the number by which a reader finds it there. Where a seed is wrong
or dubious, the row names what the book says instead. A formula is looked for
as it is written. Rows of a lesson come with its chapter.
"""

import csv
import functools
import pathlib
import re

import bs4
import pytest
from built import APPENDICES, CHAPTERS, SITE, built

pytestmark = pytest.mark.slow

TABLE = pathlib.Path(__file__).with_name("seed_coverage.csv")
REFERENCE = ["book/cheatsheet", "book/troubleshooting", "book/glossary"]
QUOTES = str.maketrans("‘’“”", "''\"\"")


def rows():
    with TABLE.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


@functools.cache
def sections(page):
    """{anchor: plain text} of a built page."""
    path = built(SITE / f"{page}.html")
    soup = bs4.BeautifulSoup(path.read_bytes(), "html.parser")
    for tag in soup.find_all(["script", "style"]):
        tag.decompose()
    return {
        section["id"]: plain(section.get_text())
        for section in soup.find_all("section", id=True)
    }


def plain(text):
    """Without what differs between a source and its typeset page."""
    text = text.translate(QUOTES)
    return re.sub(r"\s+", " ", text).casefold()


@pytest.mark.parametrize("page", [*CHAPTERS, *APPENDICES, *REFERENCE])
def test_the_facts_of_a_page_are_found(page):
    own = [row for row in rows() if row["page"] == page]
    assert own, f"seed_coverage.csv has no row of {page}"
    missing = []
    for row in own:
        there = sections(page).get(row["anchor"])
        if there is None:
            missing.append("{code}: {page} has no #{anchor}".format(**row))
        elif plain(row["phrase"]) not in there:
            missing.append(
                "{code} ({seed}): {page}#{anchor} lacks {phrase!r}".format(
                    **row
                )
            )
    assert not missing, "\n".join(missing)


def test_the_table_is_sound():
    # A code is a section's letters and a number, or a node of the diagram.
    code = re.compile(r"(E|FL|SH|KF|TK|DF|TR|GL|QA|TP)\d+|MH|ARC\w+")
    for row in rows():
        assert all(row.values()), row
        assert code.fullmatch(row["code"]), row
    places = [(row["code"], row["page"], row["phrase"]) for row in rows()]
    assert len(places) == len(set(places)), "a row stands there twice"
