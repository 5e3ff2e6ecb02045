"""An exercise as a learner does it: JupyterLab, a wrong answer, a right one.

JupyterLab is started as `make lab` starts it, on a copy of the exercises.
"""

import json
import re
import shutil

import pytest
from browsing import DESKTOP, PALE_TEXTS, PATIENCE, chromium, visiting
from playwright.sync_api import expect

from autograder import serve
from autograder.course import ROOT, stamp

pytestmark = pytest.mark.slow

LESSON = "ch1_self_attention"
NOTEBOOK = f"exercises/{LESSON}/{LESSON}.ipynb"
ANSWER = "def softmax("  # the first words of the cell to write in
CHECK = 'check("softmax", softmax)'
# It forgets that exp of a large score is inf: no maximum is subtracted.
WRONG = """\
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)"""
RIGHT = """\
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    wide = x.double()
    powers = (wide - wide.amax(dim, keepdim=True)).exp()
    return (powers / powers.sum(dim, keepdim=True)).to(x.dtype)"""


@pytest.fixture
def lab(browser, tmp_path, monkeypatch):
    """A JupyterLab that knows no settings of this machine's person."""
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    settings = tmp_path / "settings"
    themes = settings / "@jupyterlab" / "apputils-extension"
    themes.mkdir(parents=True)
    # Light or dark as the browser asks, so that one start shows both.
    (themes / "themes.jupyterlab-settings").write_text(
        json.dumps({"adaptive-theme": True})
    )
    monkeypatch.setenv("JUPYTERLAB_SETTINGS_DIR", str(settings))
    monkeypatch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(tmp_path / "spaces"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    lab = serve.Lab(tmp_path, 8900)
    try:
        problem = lab.wait([])
        assert problem is None, problem
        yield lab
    finally:
        lab.close()


class Notebook:
    """A notebook that is open in JupyterLab, with its kernel ready."""

    def __init__(self, page):
        self.page = page
        expect.set_options(timeout=PATIENCE)
        # What is run before the kernel is there would be dropped unseen.
        status = page.get_by_text("Python 3 (ipykernel) | Idle")
        expect(status).to_be_visible()

    def cell(self, words):
        """The code cell with these words."""
        return self.page.locator(".jp-CodeCell", has_text=words)

    def editor(self, words):
        return self.cell(words).locator(".cm-content")

    def type(self, words, source):
        """Replace a cell's source as a person does: select all, type."""
        self.editor(words).click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def add_below(self, words, source):
        """A new cell under another, by JupyterLab's own keys."""
        self.editor(words).click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("b")
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(source)

    def run(self, words):
        """Run a cell; its output, once it has ended."""
        prompt = self.cell(words).locator(".jp-InputArea-prompt")
        before = prompt.inner_text().strip()
        self.editor(words).click()
        self.page.keyboard.press("Control+Enter")
        # [ ]: becomes [*]: and then a number, another one in each run.
        expect(prompt).not_to_have_text(before)
        expect(prompt).to_have_text(re.compile(r"\d"))
        return self.cell(words).locator(".jp-OutputArea-output")


def readable(page):
    """Assert that reports can be read in JupyterLab's light and dark."""
    for look in ("light", "dark"):
        page.emulate_media(color_scheme=look)
        light = "true" if look == "light" else "false"
        expect(page.locator("body")).to_have_attribute(
            "data-jp-theme-light", light
        )
        # The rest of the page is JupyterLab's own.
        assert not page.evaluate(PALE_TEXTS, ".jp-RenderedHTML"), look


def test_a_learner_sees_the_mistake_then_full_marks_then_what_is_left(
    lab, browser, tmp_path
):
    site = f"http://{serve.HOST}:{lab.port}/"
    with (
        chromium(browser) as running,
        visiting(running, site, **DESKTOP) as (page, faults),
    ):
        page.goto(lab.url.replace("/exercises?", f"/{NOTEBOOK}?"))
        notebook = Notebook(page)
        notebook.run("importlib.util.find_spec")
        notebook.run("from autograder import check")
        notebook.type(CHECK, "print('full marks')")
        expect(notebook.editor(CHECK)).to_have_text(CHECK)

        notebook.type(ANSWER, WRONG)
        notebook.run(ANSWER)
        report = notebook.run(CHECK)
        expect(report).to_contain_text("1 of 2 points")
        expect(report).to_contain_text("Likely cause")
        expect(report).to_contain_text("overflows to infinity")
        expect(report).not_to_contain_text("Traceback")
        readable(page)

        notebook.type(ANSWER, RIGHT)
        notebook.run(ANSWER)
        report = notebook.run(CHECK)
        expect(report).to_contain_text("2 of 2 points")
        expect(report).to_contain_text("Full marks")
        expect(report).not_to_contain_text("Likely cause")
        notebook.add_below(CHECK, "check.summary()")
        summary = notebook.run("check.summary()")
        total = sum(each["points"] for each in stamp(LESSON)["exercises"])
        expect(summary).to_contain_text(f"{LESSON}2{total:g}")
        expect(summary).to_contain_text("Next: answer score_std")
        readable(page)

        # What lies on the disk is what will be handed in.
        page.keyboard.press("Control+s")
        expect(page.locator(".jp-mod-dirty")).to_have_count(0)
        # nbgrader's own check runs what was saved and lists what is left.
        page.get_by_text("Validate", exact=True).click()
        left = page.locator(".jp-Dialog")
        expect(left).to_contain_text('check("score_std", score_std)')
        expect(left).not_to_contain_text(CHECK)
        assert not faults, "\n".join(faults)
    cells = json.loads((tmp_path / NOTEBOOK).read_text())["cells"]
    sources = {
        cell["metadata"].get("nbgrader", {}).get("grade_id"): cell["source"]
        for cell in cells
    }
    assert "".join(sources["softmax"]) == RIGHT
    assert "".join(sources["check-softmax"]) == CHECK
