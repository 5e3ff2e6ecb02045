"""A verdict reads as a number, as text and as HTML."""

import html.parser
import math
import re

import numpy as np
import pytest

from autograder import report as engine
from autograder.probing import case
from autograder.report import Finding, Report, Summary, call_text

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=y> & \"'"


def report(points=1.5, maximum=2.0, **more):
    findings = (
        Finding("runs", True),
        Finding(
            "values",
            False,
            "Divide by the sum.",
            mistake="no_sum",
            detail="at [0] 1 came back; expected 2",
            call="softmax([0.0, 1.0])",
        ),
        Finding("edge", None),
    )
    return Report(
        "softmax",
        points,
        maximum,
        **{
            "findings": findings,
            "hints": {"no_sum": "You forgot the sum."},
            "printed": "hello",
            "notes": ("the default device is meta",),
            **more,
        },
    )


FULL = Report("softmax", 2.0, 2.0, findings=(Finding("runs", True),))


@pytest.mark.parametrize(
    "points", [0, 0.0, 1, 1.5, 0.33, 2, np.float64(0.1), np.float32(0.5)]
)
def test_the_repr_is_the_points_as_a_plain_float(points):
    text = repr(report(points))
    assert float(text) == float(points)
    assert text.replace(".", "").isdigit() and "." in text
    assert math.isfinite(float(report(points)))


def test_ipython_finds_no_other_text_than_the_repr():
    assert not hasattr(report(), "_repr_pretty_")
    assert not hasattr(report(), "_repr_mimebundle_")
    assert not hasattr(report(), "_ipython_display_")


PARTS = (
    "softmax",
    "1.5 of 2 points",
    "You forgot the sum.",
    "values",
    "softmax([0.0, 1.0])",
    "at [0] 1 came back; expected 2",
    "Divide by the sum.",
    "not looked at yet: edge",
    "hello",
    "the default device is meta",
)


def test_text_and_page_hold_cause_call_and_next_step():
    made = report()
    for part in PARTS:
        assert part in str(made)
        assert part in made._repr_html_()


def test_the_cause_stands_before_the_findings():
    for shown in (str(report()), report()._repr_html_()):
        assert shown.index("You forgot") < shown.index("Divide by the sum")


def test_a_full_verdict_says_so():
    assert FULL.passed and "Full marks" in FULL._repr_html_()
    assert "2 of 2 points" in str(FULL)
    assert not report().passed


def test_several_causes_are_told_as_alternatives():
    made = report(hints={"a": "Cause one.", "b": "Cause two."})
    for shown in (str(made), made._repr_html_()):
        assert "Cause one." in shown and "Cause two." in shown
    assert "One of these" in made._repr_html_()


def test_text_fits_a_terminal():
    made = report(hints={"a": "word " * 60})
    assert max(map(len, str(made).split("\n"))) <= 79


class Tags(html.parser.HTMLParser):
    """The tags of a page, in order, and its text."""

    def __init__(self, page):
        super().__init__()
        self.opened, self.all, self.words = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.all.append(tag)
        self.opened.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.words += data


def hostile():
    finding = Finding(HOSTILE, False, HOSTILE, None, HOSTILE, HOSTILE)
    return Report(
        HOSTILE,
        0.0,
        1.0,
        findings=(finding, Finding(HOSTILE, None)),
        hints={HOSTILE: HOSTILE},
        printed=HOSTILE,
        notes=(HOSTILE,),
    )


def test_hostile_texts_stay_text():
    page = Tags(hostile()._repr_html_())
    assert page.opened == []
    assert not {"script", "img"} & set(page.all)
    assert page.words.count(HOSTILE) == 9
    summary = Summary(HOSTILE, ((HOSTILE, 1.0, None),))
    assert not {"script", "img"} & set(Tags(summary._repr_html_()).all)


def test_a_page_needs_no_script_and_no_other_host():
    for made in (report(), FULL):
        shown = made._repr_html_()
        page = Tags(shown)
        assert page.opened == []
        assert "http" not in shown and "script" not in shown


def test_no_text_has_a_colour_of_its_own():
    """It takes its page's, which is chosen for the page's ground."""
    summary = Summary("ch1_toy", rows(), ("Mend it.",))
    for made in (report(), FULL, hostile(), summary):
        assert not re.search(r"[;'\s]color\s*:", made._repr_html_())


def luminance(colour):
    """Of "#rrggbb", as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# The book's two grounds, then the dark ones of JupyterLab, VS Code and Colab.
@pytest.mark.parametrize(
    "ground", ["#ffffff", "#121212", "#111111", "#1e1e1e", "#383838"]
)
@pytest.mark.parametrize("name", ["GREEN", "RED", "GREY", "BLUE"])
def test_lines_and_bars_stand_out_from_light_and_dark_grounds(name, ground):
    colours = luminance(getattr(engine, name)), luminance(ground)
    darker, lighter = sorted(colours)
    # What WCAG 2.2 asks of graphics; no colour has 4.5, which it asks of
    # text, on white and on a dark ground.
    assert (lighter + 0.05) / (darker + 0.05) >= 3


def test_ticks_are_read_aloud():
    assert "aria-label='fails'" in report()._repr_html_()
    assert "aria-label='holds'" in report()._repr_html_()


def test_an_exercise_of_no_points_can_be_shown():
    made = Report("toy", 0.0, 0.0, findings=(Finding("runs", True),))
    assert "0 of 0 points" in str(made) and made._repr_html_()


# Calls


@pytest.mark.parametrize(
    "given, text",
    [
        (case(3, 4), "f(3, 4)"),
        (case(2, align="upper"), "f(2, align='upper')"),
        (case(np.array([2, 1])), "f([2, 1])"),
        (case(np.array([0.5, 1])), "f([0.5, 1.0] (float64))"),
        (case(np.ones(1), dtype="bfloat16"), "f([1.] (bfloat16))"),
        (case(np.ones((3, 4))), "f(<float64, shape 3×4>)"),
        (case(np.ones(20), dtype="float16"), "f(<float16, shape 20>)"),
        (case(np.array([True])), "f([ True])"),
        (
            case(np.zeros(9), strided=True),
            "f(<float64, shape 9>), on non-contiguous views",
        ),
        (None, ""),
        (7, ""),
        ({"n": 3}, ""),
    ],
)
def test_a_call_is_written_as_a_learner_would(given, text):
    assert call_text("f", given) == text


def test_a_small_call_can_be_typed_in_again():
    shown = call_text("f", case(3, np.array([[1, 2], [3, 4]]), y="a"))
    caught = eval(shown, {"f": lambda *args, **kwargs: (args, kwargs)})
    assert caught == ((3, [[1, 2], [3, 4]]), {"y": "a"})


def test_a_modules_call_shows_how_it_was_built():
    from autograder.modules import module_case

    given = module_case(((4,), {"bias": False}), None, 1, method="step")
    assert call_text("Net", given) == "Net(4, bias=False).step(1)"


# The whole notebook


def rows():
    return (("one", 2.0, FULL), ("two", 1.0, report(0.5, 1.0)))


def test_a_summary_adds_up_and_says_what_to_do_next():
    made = Summary("ch1_toy", rows())
    assert (made.points, made.max_points) == (2.5, 3.0)
    assert "two" in made.next_step
    for shown in (repr(made), made._repr_html_()):
        assert "one" in shown and "2.5" in shown
    assert made.next_step in repr(made)


def test_a_summary_names_what_is_not_checked_yet():
    made = Summary("ch1_toy", (*rows()[:1], ("two", 1.0, None)))
    assert made.points == 2.0
    assert "check cell" in made.next_step and "two" in made.next_step


def test_a_finished_summary_says_to_hand_in():
    made = Summary("ch1_toy", rows()[:1])
    assert "hand in" in made.next_step
