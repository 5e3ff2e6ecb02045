"""What the book's pages show is what a fresh run gives.

The build leaves each executed page as a notebook, with the outputs that
readers see. nbval runs it again in a kernel of its own: no cell may fail, and
the cells tagged `nbval-check-output` must print the same once more.
"""

import json
import os
import subprocess
import sys

import pytest
from built import CHAPTERS, EXECUTED, PAGES, built

from autograder.course import ROOT

pytestmark = pytest.mark.slow


def has_code(page):
    """Whether the build runs a page: a percent script or MyST notebook."""
    source = ROOT / f"{page}.md"
    if not source.exists():
        return True
    text = source.read_text(encoding="utf-8")
    head = text.split("---\n")[1] if text.startswith("---\n") else ""
    return "file_format: mystnb" in head and "execution_mode" not in head


WITH_CODE = [page for page in PAGES if has_code(page)]


def executed(page):
    """The path of a page's notebook with outputs."""
    return built(EXECUTED / f"{page}.ipynb")


def cells(page):
    """A page's code cells."""
    made = json.loads(executed(page).read_text(encoding="utf-8"))
    return [cell for cell in made["cells"] if cell["cell_type"] == "code"]


def run(path, folder):
    """Run a notebook by nbval; its exit code and what it printed."""
    command = [sys.executable, "-m", "pytest", str(path), "--nbval-lax"]
    command += ["--nbval-current-env", "--nbval-cell-timeout=300"]
    command += ["-q", "--tb=short", "-o", f"cache_dir={folder}"]
    # Chapters import their figures as from the folder where they lie.
    places = [ROOT / "book", ROOT, os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, places))),
            "IPYTHONDIR": str(folder),
        },
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("page", WITH_CODE)
def test_a_fresh_run_agrees(page, tmp_path):
    code, output = run(executed(page), tmp_path)
    assert code == 0, output


def tagged(page):
    """The cells whose output is compared."""
    return [
        cell
        for cell in cells(page)
        if "nbval-check-output" in cell["metadata"].get("tags", [])
    ]


@pytest.mark.parametrize("page", CHAPTERS)
def test_chapters_have_outputs_to_compare(page):
    assert len(tagged(page)) >= 5
    silent = [cell["source"] for cell in tagged(page) if not cell["outputs"]]
    assert not silent


@pytest.mark.parametrize("page", WITH_CODE)
def test_cells_ran_once_and_in_order(page):
    counts = [
        cell["execution_count"] for cell in cells(page) if cell["source"]
    ]
    assert counts == list(range(1, len(counts) + 1))


def test_a_changed_output_is_noticed(tmp_path):
    path = executed("book/ch1_self_attention")
    made = json.loads(path.read_text(encoding="utf-8"))
    cell = tagged("book/ch1_self_attention")[0]
    (output,) = cell["outputs"]
    output["text"] = ["Rome None\n"]  # it prints Paris None
    made["cells"] = [cell]
    changed = tmp_path / "changed.ipynb"
    changed.write_text(json.dumps(made), encoding="utf-8")
    code, output = run(changed, tmp_path)
    assert code == 1, output
    assert "Rome" in output
