"""The built book as its readers meet it: in a browser, light, dark, small."""

import contextlib
import math
import pathlib
import re
import sys
import urllib.parse

import bs4
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from browsing import (
    CUT_OFF,
    LOOKS,
    OVERFLOW,
    PALE_TEXTS,
    chromium,
    visiting,
)
from built import CHAPTERS, PAGES, SITE, built

from autograder import serve
from autograder.course import ROOT, stamp

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import ch5_gpt, ch7_scaling_laws, style  # noqa: E402 - needs that path

pytestmark = pytest.mark.slow

EVERY = [*PAGES, "search", "genindex"]
# Only what a person reads: neither code nor typeset formulas.
READABLE = r"""
() => {
  const found = [document.title];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode;
    const hidden = "script, style, noscript, pre, code, mjx-container";
    if (!text.parentElement.closest(hidden)) found.push(text.textContent);
  }
  return found.join("\n");
}
"""
RAW = {
    "a formula that is not typeset": r"\$\$|\\[a-z]{2,}|\\\(|\\\[",
    "a dollar formula": r"\$[^$\n ][^$\n]*\$",
    "a directive": r":::|```|^\s*:[a-z-]+: ",
    "a role": r"\{[a-z:]+\}(?=`|\w|$)",
    "a Markdown mark": r"\*\*\S|\]\(|^#+ |^\|.*\|$",
}
IMAGES = r"""
() => [...document.images].flatMap((image) => {
  const name = image.src.startsWith("data:") ? "data:" : image.src;
  const faults = [];
  if (!image.alt.trim()) faults.push(`no alt text: ${name}`);
  if (image.closest("article") && image.alt.trim().length < 40) {
    faults.push(`says little: ${image.alt}`);
  }
  if (!image.complete || !image.naturalWidth) faults.push(`empty: ${name}`);
  if (image.closest("article") && !image.closest("figure")) {
    faults.push(`no figure, so no caption: ${name}`);
  }
  return faults;
})
"""
FIGURES = r"""
() => [...document.querySelectorAll("article figure")].filter((figure) =>
  !figure.querySelector("figcaption")?.textContent.replace("#", "").trim()
).map((figure) => `no caption: figure ${figure.id}`)
"""
# A cell that prints slowly has several outputs, which look like one.
SEAMS = r"""
() => [...document.querySelectorAll(".output.stream")].filter((output) => {
  const next = output.nextElementSibling;
  if (!next?.matches(".output.stream")) return false;
  const [upper, lower] = [output, next]
    .map((each) => each.querySelector("pre").getBoundingClientRect());
  return lower.top - upper.bottom > 0.5;
}).map((output) => `a gap below: ${output.textContent.slice(0, 60)}`)
"""
# Code and outputs that have to be moved sideways.
WIDE_CODE = r"""
() => [...document.querySelectorAll("article pre")]
  .filter((code) => code.scrollWidth > code.clientWidth + 1)
  .map((code) => `code is too wide: ${code.textContent.slice(0, 60)}`)
"""
# Formulas that have to be moved sideways.
WIDE_FORMULAS = r"""
() => [...document.querySelectorAll("article div.math mjx-container")]
  .filter((formula) => formula.scrollWidth > formula.clientWidth + 1)
  .map((formula) => `formula is too wide: ${formula.textContent}`)
"""
# MathJax says what it could not read, in red.
FORMULAS = r"""
() => {
  const wanted = document.querySelectorAll(".math").length;
  const made = document.querySelectorAll("mjx-container").length;
  const wrong = [...document.querySelectorAll("mjx-merror")]
    .map((error) => `formula: ${error.getAttribute("data-mjx-error")}`);
  if (made < wanted) wrong.push(`${made} of ${wanted} formulas are typeset`);
  return wrong;
}
"""


# Sphinx adds what it finds to what it found before.
SEARCH = """
(words) => {
  document.getElementById("search-results").replaceChildren();
  Search.performSearch(words);
}
"""


@pytest.fixture(scope="module")
def book():
    """The built book, served; its address."""
    built(SITE / "index.html")
    served = serve.Book(SITE, 8100)
    yield served.url
    served.close()


@pytest.fixture(scope="module")
def running(browser, book):
    """A Chromium for all tests here."""
    with chromium(browser) as running:
        yield running


@pytest.fixture
def visit(running, book):
    """Open a page of the book; gives it and the list of its faults."""
    opened = contextlib.ExitStack()

    def visit(name, **options):
        built(SITE / f"{name}.html")
        page, faults = opened.enter_context(visiting(running, book, **options))
        page.goto(f"{book}{name}.html")
        if options.get("java_script_enabled", True):
            # Folded text counts as well: formulas, colours and widths in it.
            page.evaluate(
                "document.querySelectorAll('details')"
                ".forEach((fold) => { fold.open = true; })"
            )
            page.evaluate("window.MathJax?.startup.promise")
        return page, faults

    with opened:
        yield visit


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", EVERY)
def test_page(visit, name, look):
    page, faults = visit(name, **LOOKS[look])
    theme = page.evaluate("document.documentElement.dataset.theme")
    assert theme == ("dark" if look == "dark" else "light")
    for script in (OVERFLOW, CUT_OFF, IMAGES, FIGURES, FORMULAS, SEAMS):
        faults += page.evaluate(script)
    faults += page.evaluate(WIDE_FORMULAS if look == "phone" else WIDE_CODE)
    faults += page.evaluate(PALE_TEXTS, "article")
    text = page.evaluate(READABLE)
    for what, pattern in RAW.items():
        for found in re.finditer(pattern, text, re.MULTILINE):
            around = text[max(0, found.start() - 30) : found.end() + 30]
            faults.append(f"{what}: {around!r}")
    assert not faults, "\n".join(faults)


def test_no_page_is_wider_than_a_small_phone(running, book):
    small = {**LOOKS["phone"], "viewport": {"width": 320, "height": 568}}
    with visiting(running, book, **small) as (page, _):
        for name in EVERY:
            built(SITE / f"{name}.html")
            page.goto(f"{book}{name}.html")
            page.evaluate("window.MathJax?.startup.promise")
            assert page.evaluate(OVERFLOW) == [], name


@pytest.mark.parametrize("width", [390, 820, 1000, 1280, 1600])
def test_no_name_breaks_on_the_troubleshooting_page(running, book, width):
    built(SITE / "book" / "troubleshooting.html")
    size = {"viewport": {"width": width, "height": 900}}
    with visiting(running, book, **size) as (page, _):
        page.goto(f"{book}book/troubleshooting.html")
        broken = page.locator("#troubleshooting td code").evaluate_all(
            "(all) => all.filter((code) => !/\\s/.test(code.textContent) && "
            "code.getClientRects().length > 1).map((code) => code.textContent)"
        )
    assert broken == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_phone_scrolls_drawings_rather_than_shrink_them(visit, name):
    page, _ = visit(name, **LOOKS["phone"])
    widths = page.locator("article figure img").evaluate_all(
        "(all) => all.map((image) => image.getBoundingClientRect().width)"
    )
    # Ten points on a drawing of seven inches are then more than 11 pixels.
    assert widths and min(widths) >= 600


# A finger's width; WCAG 2.2 asks for 24 pixels.
TOUCHED = r"""
() => [...document.querySelectorAll(".ta-figure :is(label, button)")]
  .map((control) => control.getBoundingClientRect().height)
"""


@pytest.mark.parametrize("name", CHAPTERS)
def test_controls_of_figures_are_large_enough_for_a_finger(visit, name):
    page, _ = visit(name, **LOOKS["phone"])
    assert min(page.evaluate(TOUCHED)) >= 36


# Most of what a page loads is the theme's, MathJax's and the search's, the
# same for all pages and kept by the browser. What a page adds is its own.
SHARED = "/_static/", "/searchindex.js"
OWN_BYTES = 1_000_000


@pytest.mark.parametrize("name", EVERY)
def test_a_page_is_light(visit, name):
    page, _ = visit(name, **LOOKS["light"])
    loaded = []
    page.on("response", lambda answer: loaded.append(answer))
    page.reload(wait_until="networkidle")
    own = {
        answer.url: len(answer.body())
        for answer in loaded
        if not any(each in answer.url for each in SHARED)
    }
    assert own and sum(own.values()) < OWN_BYTES, own


def test_a_page_is_read_before_its_large_scripts_arrive(running, book):
    large = re.compile(r"(mathjax|fontawesome|bootstrap|pydata)[^?]*\.js")
    for name in PAGES:
        built(SITE / f"{name}.html")
        with visiting(running, book, **LOOKS["light"]) as (page, _):
            page.route(large, lambda route: None)  # they never arrive
            page.goto(f"{book}{name}.html", wait_until="commit")
            page.locator("article h1").wait_for()
            page.wait_for_function(
                "performance.getEntriesByName('first-contentful-paint').length"
            )


# What the keyboard reaches must say what it is and show where it is.
UNNAMED = r"""
() => {
  const reached = "a[href], button, input, select, summary, [tabindex='0']";
  const named = (element) => [
    element.getAttribute("aria-label"), element.title, element.placeholder,
    element.textContent, element.querySelector("img")?.alt,
    ...[...element.labels ?? []].map((label) => label.textContent),
    ...(element.getAttribute("aria-labelledby") ?? "").split(" ")
      .map((id) => document.getElementById(id)?.textContent),
  ].some((words) => words?.trim());
  return [...document.querySelectorAll(reached)]
    .filter((element) => element.checkVisibility() && !named(element))
    .map((element) => `no name: ${element.outerHTML.slice(0, 120)}`);
}
"""
ORDER = r"""
() => [...document.querySelectorAll("[tabindex]")]
  .filter((element) => element.tabIndex > 0)
  .map((element) => `out of order: ${element.outerHTML.slice(0, 120)}`)
"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_used_from_the_keyboard(visit, name):
    page, faults = visit(name, **LOOKS["light"])
    faults += page.evaluate(UNNAMED) + page.evaluate(ORDER)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skip to the text
    page.wait_for_function("location.hash === '#main-content'")
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(() => { const at = document.activeElement;"
            "const style = getComputedStyle(at);"
            "return [at.outerHTML.slice(0, 120), at.closest('.bd-main') !="
            " null, style.outlineStyle != 'none' ||"
            " style.boxShadow != 'none']; })()"
        )
        html, inside, marked = focused
        seen.add(html)
        if inside and not marked:
            faults.append(f"focus is not seen: {html}")
    assert len(seen) > 3, "the keyboard is caught"
    assert not faults, "\n".join(faults)


def soup(path):
    return bs4.BeautifulSoup(path.read_bytes(), "html.parser")


def test_links_and_anchors_lead_somewhere():
    paths = [built(SITE / f"{name}.html") for name in EVERY]
    pages = {path: soup(path) for path in paths}
    anchors = {
        path: {tag["id"] for tag in page.find_all(id=True)} | {"", "top"}
        for path, page in pages.items()
    }
    faults = []
    for path, page in pages.items():
        for tag in page.find_all(["a", "link", "script", "img", "iframe"]):
            link = urllib.parse.urlsplit(tag.get("href", tag.get("src", "#")))
            if link.scheme or link.netloc:
                # A person may leave by a link; a page loads nothing there.
                if tag.name != "a" and link.scheme != "data":
                    faults.append(f"{path}: {tag}")
                continue
            words = urllib.parse.unquote(link.path)
            target = (path.parent / words).resolve() if words else path
            fragment = urllib.parse.unquote(link.fragment)
            if not target.is_file():
                faults.append(f"{path}: no file {link.geturl()}")
            elif fragment not in anchors.get(target, {fragment}):
                faults.append(f"{path}: no anchor {link.geturl()}")
    assert not faults, "\n".join(faults)


def test_the_address_alone_opens_the_first_page(running, book):
    with visiting(running, book, **LOOKS["light"]) as (page, faults):
        page.goto(book)
        page.wait_for_url(f"**/{PAGES[0]}.html")
        page.get_by_role("heading", level=1).wait_for()
    assert not faults, "\n".join(faults)


def test_search_finds_every_exercise(visit):
    page, faults = visit(PAGES[0], **LOOKS["light"])
    names = {
        each["name"]: lesson
        for lesson in (pathlib.Path(page).name for page in CHAPTERS)
        for each in stamp(lesson)["exercises"]
    }
    # The first as a person does it, from the keyboard; then all the others.
    first = next(iter(names))
    page.keyboard.press("Control+k")
    page.keyboard.type(first)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?*")
    missing = []
    for name, lesson in names.items():
        if name != first:
            page.evaluate(SEARCH, name)
        # Sphinx says how many it found once all of them stand there.
        page.locator("#search-results .search-summary:not(:empty)").wait_for()
        links = page.locator("#search-results li a").evaluate_all(
            "(links) => links.map((link) => link.href)"
        )
        if not any(lesson in link for link in links):
            missing.append(f"{name}: {links}")
    assert not missing
    page.locator("#search-results li a").first.click()
    page.locator("article").get_by_text(name).first.wait_for()
    assert not faults, "\n".join(faults)


# What a figure shows, but for what a control shows of itself: a slider's own
# number, a handle's own place.
SHOWN = r"""
(figure) => {
  const copy = figure.cloneNode(true);
  copy.querySelectorAll(".ta-handle, label output, input")
    .forEach((control) => control.remove());
  return copy.innerHTML;
}
"""
KINDS = {
    "handle": "[tabindex='0']",
    "slider": "input[type=range]",
    "choice": "input[type=radio], input[type=checkbox]",
    "button": "button",
    "list": "select",
}
KEYS = {
    "handle": ["ArrowRight", "ArrowUp", "ArrowLeft", "Enter"],
    "slider": ["ArrowRight", "ArrowLeft"],
    "choice": ["ArrowRight", "ArrowLeft", " "],
    "button": ["Enter", " "],
    "list": ["ArrowDown", "ArrowUp"],
}


class Figure:
    """An interactive figure of a page, and whether it answers."""

    def __init__(self, page, figure):
        self.page, self.figure = page, figure

    def controls(self, kind):
        """Those of a kind; a figure may draw them anew when used."""
        return self.figure.locator(KINDS[kind])

    def answers(self, act):
        """Whether an action changes what the figure shows."""
        before = self.figure.evaluate(SHOWN)
        act()
        # Figures draw at once; a frame is time enough for those that wait.
        self.page.evaluate("new Promise(requestAnimationFrame)")
        return self.figure.evaluate(SHOWN) != before

    def to_keys(self, control, kind):
        control.focus()
        return any(
            self.answers(lambda key=key: self.page.keyboard.press(key))
            for key in KEYS[kind]
        )

    def to_mouse(self, control, kind):
        control.scroll_into_view_if_needed()
        box = control.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        mouse = self.page.mouse

        def drag(dx, dy):
            mouse.move(x, y)
            mouse.down()
            mouse.move(x + dx, y + dy, steps=3)
            mouse.up()

        if kind == "handle":
            moves = [(25, 0), (0, -25), (-25, 0), (0, 25)]
            return any(self.answers(lambda m=m: drag(*m)) for m in moves)
        if kind == "slider":
            at = [box["x"] + box["width"] * share for share in (0.3, 0.7)]
            return any(self.answers(lambda x=x: mouse.click(x, y)) for x in at)
        if kind == "list":
            last = control.locator("option").count() - 1
            return any(
                self.answers(lambda n=n: control.select_option(index=n))
                for n in (last, 0)
            )
        return self.answers(control.click)


@pytest.mark.parametrize("name", CHAPTERS)
def test_interactive_figures_answer_to_keys_and_mouse(visit, name):
    page, faults = visit(name, **LOOKS["light"])
    figures = page.locator(".ta-figure")
    assert figures.count(), "a chapter has at least one interactive figure"
    for number in range(figures.count()):
        figure = Figure(page, figures.nth(number))
        used = 0
        for kind in KINDS:
            count = figure.controls(kind).count()
            used += count
            for how in (figure.to_keys, figure.to_mouse):
                answered = [
                    how(figure.controls(kind).nth(at), kind)
                    for at in range(count)
                ]
                # Pressing what is already chosen rightly changes nothing.
                enough = any if kind in ("choice", "button") else all
                if count and not enough(answered):
                    faults.append(
                        f"figure {number + 1}, {kind} does not "
                        f"answer {how.__name__}: {answered}"
                    )
        if not used:
            faults.append(f"figure {number + 1} has nothing to use")
    # A finger that drags a handle must not scroll the page.
    handles = page.locator(".ta-figure .ta-handle").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).touchAction)"
    )
    assert set(handles) <= {"none"}
    assert not faults, "\n".join(faults)


def test_the_soft_lookup_computes_what_the_text_says(visit):
    page, _ = visit("book/ch1_self_attention", **LOOKS["light"])
    figure = page.locator(".ta-figure").first
    line = figure.locator("[aria-live]")
    assert "output = 0.804 v₁ + 0.196 v₂ = (0.804, 0.196)" in line.inner_text()

    # Query (1, 1) becomes (1.1, 1) and meets the keys (1, 1) and (1, -1).
    figure.get_by_label(re.compile("^query at")).press("ArrowRight")
    scores = [2.1 / math.sqrt(2), 0.1 / math.sqrt(2)]
    first = 1 / (1 + math.exp(scores[1] - scores[0]))
    assert f"{first:.3f} v₁ + {1 - first:.3f} v₂" in line.inner_text()

    figure.locator("input[type=range]").press("Home")
    assert "0.500 v₁ + 0.500 v₂" in line.inner_text()


MARKED = r"""
(figure) => {
  const cells = [...figure.querySelectorAll("[role=application] rect")];
  return cells.flatMap((cell, at) =>
    getComputedStyle(cell).strokeWidth === "3px" ? [at] : []);
}
"""


def test_the_stepper_marks_the_chosen_cell(visit):
    page, _ = visit("book/ch4_transformer_block", **LOOKS["light"])
    figure = page.locator(".ta-figure", has=page.get_by_text("Step 3 of 8"))
    assert figure.evaluate(MARKED) == [2 * 4]  # position 3 of 4, channel 1
    figure.get_by_role("application").press("ArrowRight")
    assert figure.evaluate(MARKED) == [2 * 4 + 1]


INSIDE = r"""
(figure) => {
  const [plot] = figure.querySelectorAll("svg");
  const axis = plot.querySelector(".ta-axis").getBoundingClientRect();
  const spots = [...plot.querySelectorAll("circle")]
    .map((circle) => circle.getBoundingClientRect())
    .map((box) => (box.left + box.right) / 2);
  return spots.filter((x) => x < axis.left || x > axis.right + 0.5);
}
"""


def test_the_measured_runs_stand_inside_the_frame(visit):
    page, _ = visit("book/ch7_scaling_laws", **LOOKS["light"])
    figure = page.locator(".ta-figure", has=page.get_by_text("loss (nats)"))
    assert figure.locator("circle").count() > 10
    assert figure.evaluate(INSIDE) == []


def test_the_best_size_of_our_family_is_what_the_text_prints(visit):
    page, _ = visit("book/ch7_scaling_laws", **LOOKS["light"])
    figure = page.locator(".ta-figure", has=page.get_by_text("loss (nats)"))
    told = figure.locator("[aria-live]").inner_text()
    shown = re.search(r"square\): ([\d.]+) thousand", told)[1]
    printed = "\n".join(page.locator(".cell_output pre").all_inner_texts())
    floor = re.search(r"2\.0e\+10 FLOPs.*law's floor +([\d,]+)", printed)[1]
    assert shown == f"{int(floor.replace(',', '')) / 1_000:.2f}"


@pytest.mark.parametrize("name", CHAPTERS)
def test_figures_read_without_scripts(visit, name):
    page, _ = visit(name, **LOOKS["light"], java_script_enabled=False)
    figures = page.locator(".ta-figure")
    stills = page.locator(".ta-figure > img")
    assert figures.count() == stills.count() > 0
    for number in range(stills.count()):
        still = stills.nth(number)
        assert len(still.get_attribute("alt")) > 40
        assert still.bounding_box()["width"] > 300
        assert still.evaluate("(image) => image.naturalWidth") > 300


def contrast(*colours):
    """WCAG's ratio of two colours' light, 1 to 21. colours: (r, g, b, ...)"""
    low, high = sorted(
        sum(
            weight
            * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
            for weight, c in zip(
                (0.2126, 0.7152, 0.0722), colour, strict=False
            )
        )
        for colour in colours
    )
    return (high + 0.05) / (low + 0.05)


def in_the_dark(colour):
    """What the dark theme makes of a picture: dimmer, more contrast."""
    shown = (np.array(colour[:3]) * 0.8 - 0.5) * 1.2 + 0.5
    return shown.clip(0, 1)


def test_numbers_on_a_map_of_weights_can_be_read():
    weights = np.linspace(0, 1, 101)[None]
    fig, ax = plt.subplots()
    with mpl.rc_context(style.RC):
        style.weight_map(ax, weights)
    (image,) = ax.images
    for text, weight in zip(ax.texts, weights[0], strict=True):
        ink = mpl.colors.to_rgb(text.get_color())
        paper = image.cmap(image.norm(weight))
        # No threshold between black and white does better in both modes.
        assert contrast(ink, paper) > 3.6, weight
        assert contrast(in_the_dark(ink), in_the_dark(paper)) > 3.6, weight
    plt.close(fig)


def test_printed_samples_keep_words_and_lines_whole():
    text = "Twelve words or so, of which none is as long as a line.\n\n" * 2
    shown = ch5_gpt.wrapped(text, width=20)
    assert max(map(len, shown.split("\n"))) <= 20
    assert shown.split() == text.split()
    assert shown.count("\n\n") == 2


def test_dots_off_centre_are_the_losses_that_were_tried():
    p = {"A": 40.0, "B": 40.0, "E": 1.1, "alpha": 0.54, "beta": 0.34}
    sizes = np.geomspace(300, 300_000, 9)
    grids = {"wide": sizes, "left": sizes[:5]}
    fig = ch7_scaling_laws.off_centre.__wrapped__(p, 2e10, grids)
    (dots,) = [line for line in fig.axes[0].lines if line.get_marker() == "o"]
    tried = 1.1 + 40 / sizes**0.54 + 40 / (2e10 / 6 / sizes) ** 0.34
    assert np.allclose(dots.get_ydata(), tried)
    plt.close(fig)
