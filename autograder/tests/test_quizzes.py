"""Each chapter ends with questions whose every answer says why."""

import collections
import contextlib
import itertools
import math
import re
import sys

import pytest
import torch
from browsing import LOOKS, chromium, visiting
from built import CHAPTERS, SITE, built

from autograder import serve
from autograder.course import ROOT

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import quiz  # noqa: E402 - needs that path

LESSONS = [page.partition("/")[2] for page in CHAPTERS]
# The cheat sheet's questions: their lesson, and words of text and reason.
SHEET = {
    "QA1": ("ch1_self_attention", r"divided by $\sqrt{d_k}$", "saturates"),
    "QA2": ("ch1_self_attention", r"$-\infty$ into the scores", "no weight"),
    "QA3": ("ch3_positional_encoding", "need positions", "equivariant"),
    "QA4": ("ch2_multi_head", "(GQA)", "N/G, with nearly full quality"),
    "QA5": ("ch6_kv_cache_flash", "approximate", "running (max, sum)"),
}


def choices(lesson):
    return [
        (question, choice)
        for question in quiz.questions(lesson)
        for choice in question["choice"]
    ]


@pytest.mark.parametrize("lesson", LESSONS)
def test_one_choice_is_right_and_each_says_why(lesson):
    for question in quiz.questions(lesson):
        each = question["choice"]
        assert len(each) >= 3, question["text"]
        right = [one["text"] for one in each if one.get("right", False)]
        assert len(right) == 1, question["text"]
        reasons = [one["why"].strip() for one in each]
        assert all(len(reason) > 25 for reason in reasons), question["text"]
        assert len(set(reasons)) == len(reasons)
        assert len({one["text"] for one in each}) == len(each)


@pytest.mark.parametrize("lesson", LESSONS)
def test_neither_place_nor_length_gives_the_answer_away(lesson):
    places, longest = collections.Counter(), 0
    every = quiz.questions(lesson)
    for question in every:
        lengths = [len(each["text"]) for each in question["choice"]]
        right = [each.get("right", False) for each in question["choice"]]
        assert True in right, question["text"]
        places[right.index(True)] += 1
        others = (
            lengths[: right.index(True)] + lengths[right.index(True) :][1:]
        )
        longest += lengths[right.index(True)] > max(others)
    assert set(places) >= {0, 1, 2}
    assert max(places.values()) <= len(every) / 2
    assert longest <= 2 * len(every) / 3


@pytest.mark.parametrize("lesson", LESSONS)
def test_questions_are_plain_markdown(lesson):
    """JupyterLab and Colab know neither directives nor roles."""
    text = quiz.ask(lesson).data
    assert not re.search(r":::|^\s*`{3}|\{[a-z:]+\}`", text, re.MULTILINE)
    # What stands in a summary is no Markdown, but for code and emphasis.
    for _, choice in choices(lesson):
        assert not re.search(r"[$<>&_\n]", re.sub("`.*?`", "", choice["text"]))
    # An HTML block ends with a blank line, after which Markdown is read.
    for line, after in itertools.pairwise(text.split("\n")):
        if line.startswith("<"):
            assert not after, f"{line!r} is followed by {after!r}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_chapter_asks_its_questions(lesson):
    text = (ROOT / "book" / f"{lesson}.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Test yourself\n")
    assert f'quiz.ask("{lesson}")' in section


@pytest.mark.parametrize("code", SHEET)
def test_the_cheat_sheets_questions_are_asked(code):
    lesson, asks, because = SHEET[code]
    if lesson not in LESSONS:
        pytest.skip(f"{lesson} is not in _toc.yml")
    assert because in right_choice(lesson, asks)


def right_choice(lesson, asks):
    """Text and reason of the right choice of the question with the words."""
    [question] = [
        each for each in quiz.questions(lesson) if asks in each["text"]
    ]
    [right] = [each for each in question["choice"] if each.get("right")]
    return f"{right['text']} {right['why']}"


def test_numbers_in_right_choices_are_right():
    first = math.log(32_000) + 512 * 0.02**2 / 2
    assert f"{first:.3f}." in right_choice("ch5_gpt", "V = 32,000")

    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    before = p.cumsum(0) - p  # a token stays if less than top-p came first
    kept = 2, int((before < 0.5).sum()), int((p >= 0.5 * p[0]).sum())
    said = "{}, {} and {}.".format(*kept)
    assert right_choice("ch5_gpt", "top-k = 2").startswith(said)

    block = 12 * 1024**2 + 13 * 1024
    assert f"{block:,}" in right_choice("ch4_transformer_block", "width 1,024")

    cache = 2 * 24 * 4 * 64 * 2 * 8 * 2048
    said = f"{cache / 2**20:g} MiB"
    assert said in right_choice("ch6_kv_cache_flash", "24 layers")

    merged = 2 * math.exp(0 - math.log(4)) + 1
    said = f"(ln 4, {merged:g})"
    assert said in right_choice("ch6_kv_cache_flash", "Merge")

    theta = 1e4 ** (-torch.arange(32) / 32)
    short = theta.bfloat16()
    # Positions as float32, which hold all integers, and as bfloat16.
    near, far = (
        (angles.double() - 1000 * theta.double()).abs().max()
        for angles in (
            1000 * short.float(),
            torch.tensor(1000.0).bfloat16() * short,
        )
    )
    said = f"at 1,000 it is {near:.1f} radians for a head of 64, and {far:.1f}"
    assert said in right_choice("ch3_positional_encoding", "bfloat16")


@pytest.fixture(scope="module")
def chapter(browser):
    """Open a chapter; gives its page and the list of its faults."""
    built(SITE / "index.html")
    served = serve.Book(SITE, 8100)
    with chromium(browser) as running, contextlib.ExitStack() as opened:

        def visit(name, **options):
            page, faults = opened.enter_context(
                visiting(running, served.url, **options)
            )
            page.goto(f"{served.url}{name}.html")
            return page, faults

        yield visit
    served.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAPTERS)
def test_a_question_is_answered_from_the_keyboard(chapter, name):
    page, faults = chapter(name, **LOOKS["light"])
    lesson = name.partition("/")[2]
    folds = page.locator("details.ta-choice")
    assert folds.count() == len(choices(lesson))
    assert not folds.and_(page.locator("[open]")).count()
    first, second = folds.nth(0), folds.nth(1)
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    reason = first.locator("> p")
    reason.wait_for()
    said = "Right." if choices(lesson)[0][1].get("right") else "No."
    assert reason.inner_text().startswith(said)
    # The next choice is one step on, and closes the first. MathJax makes each
    # formula a step of its own.
    for _ in range(1 + reason.locator("mjx-container").count()):
        page.keyboard.press("Tab")
    assert second.locator("summary").evaluate(
        "(summary) => summary === document.activeElement"
    )
    outline = "(summary) => getComputedStyle(summary).outlineStyle"
    assert second.locator("summary").evaluate(outline) != "none"
    page.keyboard.press("Space")
    second.locator("> p").wait_for()
    assert first.get_attribute("open") is None
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_questions_need_no_script(chapter):
    page, _ = chapter(CHAPTERS[0], **LOOKS["phone"], java_script_enabled=False)
    fold = page.locator("details.ta-choice").first
    fold.locator("summary").tap()
    fold.locator("> p").wait_for()
