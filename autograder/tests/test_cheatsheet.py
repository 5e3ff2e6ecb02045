"""The cheat sheet computes what it says and prints on one sheet of paper."""

import re
import sys

import bs4
import pytest
from browsing import LOOKS, chromium, visiting
from built import PAGES, SITE, built

from autograder import serve
from autograder.course import ROOT

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import cheatsheet  # noqa: E402 - needs that path

PAGE = "book/cheatsheet"
TABLES = [
    cheatsheet.steps,
    cheatsheet.tasks,
    cheatsheet.formulas,
    cheatsheet.numbers,
    cheatsheet.failures,
    cheatsheet.questions,
    cheatsheet.habits,
    cheatsheet.abbreviations,
]


@pytest.fixture
def named(monkeypatch):
    """The exercises that a table's rows name, in this edition or not."""
    monkeypatch.setattr(cheatsheet, "is_exercise", lambda name: True)
    monkeypatch.setattr(cheatsheet, "exercise_link", lambda name: name)

    def named(table):
        lines = table().data.splitlines()[2:]
        return [line.split("|")[-2].strip() for line in lines]

    return named


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_row_names_an_exercise_of_the_course(named, table):
    sources = (ROOT / "solutions").glob("*.py")
    known = {
        name
        for path in sources
        for name in re.findall(r'exercise="(\w+)"', path.read_text("utf-8"))
    }
    assert named(table)
    assert set(named(table)) <= known


def test_lines_give_the_shapes_of_gpt2_small():
    made = dict(
        zip(
            (code for _, code, _ in cheatsheet.STEPS),
            cheatsheet.shapes(),
            strict=True,
        )
    )
    assert made["scores = q @ k.transpose(-2, -1)"] == (8, 12, 1024, 1024)
    assert made["logits = lm_head(ln_f(x))"] == (8, 1024, 50257)


def test_numbers_are_those_of_the_sources():
    # transformers' GPT2LMHeadModel; PyTorch's FlopCounterMode at T = 1024.
    assert cheatsheet.gpt_parameters() == 124_439_808
    assert cheatsheet.block_parameters(768) == 7_087_872
    assert cheatsheet.forward_flops() == 291_648_307_200
    assert cheatsheet.first_loss(0.02) == pytest.approx(10.979, abs=5e-4)
    # Besiroglu et al.: 18.4 at Chinchilla's compute.
    ratio = cheatsheet.tokens_per_parameter(cheatsheet.EPOCH)
    assert ratio == pytest.approx(18.4, abs=0.05)


def test_a_row_of_a_lesson_that_is_left_out_is_not_shown(monkeypatch):
    monkeypatch.setattr(
        cheatsheet, "is_exercise", lambda name: name == "softmax"
    )
    shown = cheatsheet.habits().data.splitlines()[2:]
    assert len(shown) == 1 and "sum to 1" in shown[0]


@pytest.mark.slow
def test_every_row_of_the_page_leads_to_its_exercise():
    soup = bs4.BeautifulSoup(
        built(SITE / f"{PAGE}.html").read_bytes(), "html.parser"
    )
    rows = soup.select("article table tbody tr")
    assert len(rows) > 50
    for row in rows:
        link = row.find_all("td")[-1].find("a")
        assert link and "#exercise-" in link["href"], row.get_text(" ")


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["A4", "Letter"])
@pytest.mark.parametrize("look", ["light", "dark"])
def test_the_sheet_prints_on_one_page(browser, paper, look):
    assert PAGE in PAGES
    built(SITE / f"{PAGE}.html")
    served = serve.Book(SITE, 8100)
    try:
        with (
            chromium(browser) as running,
            visiting(running, served.url, **LOOKS[look]) as (page, faults),
        ):
            page.goto(f"{served.url}{PAGE}.html")
            page.evaluate("window.MathJax?.startup.promise")
            printed = page.pdf(format=paper)
            page.emulate_media(media="print")
            ink = page.locator("article td").first.evaluate(
                "(cell) => getComputedStyle(cell).color"
            )
    finally:
        served.close()
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1
    assert max(map(int, re.findall(r"\d+", ink)[:3])) < 100, "pale on paper"
    assert not faults, "\n".join(faults)
