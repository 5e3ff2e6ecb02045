"""The appendix on JAX prints what its page says, wherever JAX is installed.

The book is built without JAX, so the page is not run there: what a cell
prints is written below it, in a block of text.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import jupytext
import nbformat
import pytest

from autograder import build, verify
from autograder.course import ROOT
from autograder.pages import colab_edition

PAGE = ROOT / "book" / "appx_jax.md"
PINS = ROOT / "book" / "requirements-jax.txt"
PRINTED = re.compile(r"```text\n(.*?)\n```", re.DOTALL)

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None,
    reason="no JAX here: pip install -r book/requirements-jax.txt",
)

# Words of the page, and what bounds the number that they state: an
# expression in the page's own names, the least and the most.
FACTS = [
    (
        "a few times $10^{-15}$",
        "abs(block(weights, x, H) - twin(torch.tensor(data),"
        " src_mask=hidden).detach().numpy()).max()",
        1e-16,
        1e-14,
    ),
    (
        "about $10^{-3}$ apart",
        "abs(block(weights, x, H, False) - block(weights, x, H)).max()",
        3e-4,
        3e-3,
    ),
    (
        "the gap is near $10^{-7}$",
        "abs(right - attention(q, k, v, jnp.tri(T, dtype=bool))).max()",
        1e-8,
        1e-6,
    ),
    (
        "start twice as large as intended",
        "(random.normal(key, (D, 4 * D)) / D**0.5).std()"
        " / (random.normal(key, (D, 4 * D)) / (4 * D) ** 0.5).std()",
        1.999,
        2.001,
    ),
    ("have a standard deviation of 0.03", "rows.std()", 0.027, 0.033),
]

# Runs in a process of its own: a list of cells in, what each printed and the
# facts out. What a cell prints must not mix with that.
RUN = """
import contextlib, io, json, sys
import torch
torch.set_num_threads(1)
asked, page, printed = json.load(sys.stdin), {}, []
for source in asked["cells"]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(source, page)
    printed.append(out.getvalue().strip())
facts = [float(eval(each, page)) for each in asked["facts"]]
json.dump({"printed": printed, "facts": facts}, sys.stdout)
"""


def cells():
    """(source, what the page says it prints) of the page's code cells."""
    made = jupytext.reads(PAGE.read_text(encoding="utf-8"), fmt="md:myst")
    found = []
    for cell, below in zip(made.cells, [*made.cells[1:], None], strict=True):
        if cell.cell_type == "code":
            text = below.source if below else ""
            said = PRINTED.match(text.lstrip())
            found.append((cell.source, said[1] if said else ""))
    return found


@pytest.fixture(scope="module")
def run():
    """What the page's cells print, and the facts, from one run."""
    asked = {
        "cells": [source for source, _ in cells()],
        "facts": [expression for _, expression, _, _ in FACTS],
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(asked),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_book_does_not_run_the_page():
    front = PAGE.read_text(encoding="utf-8").split("---")[1]
    assert 'mystnb:\n  execution_mode: "off"' in front


def test_every_cell_that_prints_is_followed_by_what_it_prints():
    silent = [
        source
        for source, said in cells()
        if ("print(" in source) != bool(said)
    ]
    assert not silent


def test_the_pins_name_one_version_of_jax():
    pins = re.findall(r"^(jax|jaxlib)==([\d.]+)$", PINS.read_text(), re.M)
    assert {name for name, _ in pins} == {"jax", "jaxlib"}
    assert len({version for _, version in pins}) == 1


def test_the_colab_edition_is_current_and_plain():
    made = colab_edition(PAGE)
    nbformat.validate(made)
    path = PAGE.with_suffix(".ipynb")
    assert path.read_bytes() == build.notebook_bytes(made)
    text = "\n".join(
        cell.source for cell in made.cells if cell.cell_type == "markdown"
    )
    assert not re.search(r":::|\{[a-z:]+\}`", text)


def test_a_stale_or_missing_edition_breaks_a_promise(tmp_path, monkeypatch):
    assert not list(verify.appendices_are_current())
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / PAGE.name).write_bytes(PAGE.read_bytes())
    monkeypatch.setattr(verify, "ROOT", tmp_path)
    (told,) = verify.appendices_are_current()
    assert told.startswith("book/appx_jax.ipynb is missing")
    made = colab_edition(PAGE)
    made.cells[2].source = "from solutions import ch1_self_attention"
    path = tmp_path / "book" / "appx_jax.ipynb"
    path.write_bytes(build.notebook_bytes(made))
    stale, imported = verify.appendices_are_current()
    assert stale.startswith("book/appx_jax.ipynb is stale")
    assert "imports solutions" in imported


@needs_jax
@pytest.mark.slow
def test_cells_print_what_the_page_says(run):
    assert run["printed"] == [said for _, said in cells()]


@needs_jax
@pytest.mark.slow
def test_numbers_in_the_text_are_what_a_run_gives(run):
    text = PAGE.read_text(encoding="utf-8")
    for fact, number in zip(FACTS, run["facts"], strict=True):
        words, _, least, most = fact
        assert words in text
        assert least < number < most, (words, number)
