"""The contributor's path, as CONTRIBUTING.md shows it."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
LESSON = "ch1_self_attention"


@pytest.fixture
def copied_course(tmp_path):
    """A copy of what a contributor works in, with the page's example added."""
    for name in ("autograder", "solutions", "book", "exercises"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "mathjax"),
        )
    for name in ("_config.yml", "_toc.yml", "nbgrader_config.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, block in zip(
        ("solutions", "autograder/checks", "solutions/answers"),
        blocks,
        strict=True,
    ):
        path = tmp_path / name / f"{LESSON}.py"
        path.write_text(
            path.read_text(encoding="utf-8") + "\n\n" + block,
            encoding="utf-8",
        )
    return tmp_path


@pytest.mark.slow  # builds a lesson and tries its answers on many draws
def test_an_exercise_is_added_by_touching_three_files(copied_course):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "autograder", *arguments],
            cwd=copied_course,
            env={"PYTHONPATH": str(copied_course), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=600,
        )

    built = run("build", LESSON)
    assert built.returncode == 0, built.stderr
    notebook = copied_course / "exercises" / LESSON / f"{LESSON}.ipynb"
    assert 'check(\\"attention_entropy\\"' in notebook.read_text("utf-8")
    verified = run("verify", "attention_entropy")
    assert verified.returncode == 0, verified.stdout + verified.stderr
