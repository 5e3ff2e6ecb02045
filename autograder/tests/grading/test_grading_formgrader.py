"""nbgrader's formgrader, in a browser, on what `grade` has written."""

import json
import re
import shutil

import pytest
from browsing import DESKTOP, PATIENCE, chromium, visiting
from playwright.sync_api import expect

from autograder import serve
from autograder.cli import main
from autograder.course import ROOT, stamp

# It starts a Jupyter server and a browser.
pytestmark = pytest.mark.slow

LESSON = "ch1_self_attention"
TOTAL = sum(each["points"] for each in stamp(LESSON)["exercises"])
COMMENT = "You were <b>near</b>: shift by the maximum."


@pytest.fixture
def course(tmp_path, notebook_of, right):
    """A course folder with two graded notebooks: (folder, submissions)."""
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    submissions = tmp_path / "handed-in"
    for student, answers in (("ann", right), ("bob", {})):
        path = submissions / student / f"{LESSON}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook_of(answers)))
    grade(tmp_path, submissions)
    return tmp_path, submissions


def grade(folder, submissions, *options):
    out = folder / "_build" / "nbgrader"
    assert main(["grade", str(submissions), "--out", str(out), *options]) == 0


@pytest.fixture
def formgrader(course, browser, monkeypatch):
    """Open pages of the formgrader: open_page(its address below it)."""
    folder, _ = course
    for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"):
        monkeypatch.setenv(name, str(folder / name))
    lab = serve.Lab(folder, 8950)
    try:
        problem = lab.wait([])
        assert problem is None, problem
        site = f"http://{serve.HOST}:{lab.port}/"
        token = lab.url.partition("token=")[2]
        with (
            chromium(browser) as running,
            # Its pages ask another host for MathJax, which is not let out.
            visiting(running, site, **DESKTOP) as (page, _),
        ):

            def open_page(path):
                page.goto(f"{site}formgrader/{path}?token={token}")
                return page

            yield open_page
    finally:
        lab.close()


def test_what_a_person_gives_by_hand_outlives_a_regrade(course, formgrader):
    folder, submissions = course
    expect.set_options(timeout=PATIENCE)
    page = formgrader("gradebook")
    expect(page.get_by_role("row", name=LESSON)).to_contain_text(
        f"{TOTAL / 2:g}"  # the mean of all and nothing
    )
    page = formgrader(f"gradebook/{LESSON}/{LESSON}")
    scores = page.locator("table tbody tr")
    expect(scores).to_have_count(2)
    expect(scores.filter(has_text=f"{TOTAL:g} / {TOTAL:g}")).to_have_count(1)
    zero = scores.filter(has_text=f"0 / {TOTAL:g}").filter(
        has_not_text=f"{TOTAL:g} / {TOTAL:g}"
    )
    zero.get_by_role("link").first.click()
    page.wait_for_url("**/submissions/**")
    address = page.url.split("/formgrader/")[1].partition("?")[0]

    score = page.locator("input#check-softmax")
    text = page.locator("#softmax-comment")
    # Before the scores are there, nothing that is typed is kept.
    for field in (score, text):
        expect(field).to_have_attribute("placeholder", re.compile("."))
    with page.expect_response("**/api/grade/*") as saved:
        score.fill("1.5")
        score.press("Tab")
    assert saved.value.ok
    with page.expect_response("**/api/comment/*") as saved:
        text.fill(COMMENT)
        text.blur()
    assert saved.value.ok

    grade(folder, submissions, "--force")
    page = formgrader(address)
    expect(score).to_have_value("1.5")
    # Somebody who graded by hand is asked to look again.
    expect(score).to_have_class(re.compile("needs_manual_grade"))
    expect(text).to_have_value(COMMENT)
    told = folder / "_build" / "nbgrader" / "feedback" / "bob" / LESSON
    html = (told / f"{LESSON}.html").read_text(encoding="utf-8")
    assert "1.5 points given by hand" in html
    assert "&lt;b&gt;near&lt;/b&gt;" in html
