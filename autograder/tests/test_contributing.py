"""The contributor's path, as CONTRIBUTING.md shows it."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
LESSON = "ch1_self_attention"
ROOMS = ("solutions", "autograder/checks", "solutions/answers")
LAST_CELL = "# %% [markdown]\n# ## What to do next\n"

# What the page leaves out of its second example, an exercise that is a class.
CLASS_IMPORTS = """\
import functools

from autograder.modules import (
    call_modules,
    draw,
    follows_device,
    module_case,
    moved,
    of_modules,
)

"""
CLASS_TASK = '''\
# %% [markdown]
# ## 1.10 A number for each channel
#
# **Goal:** a layer that multiplies each channel by a number of its own.

# %% exercise="LayerScale" level=1 minutes=10
class LayerScale(torch.nn.Module):
    """Multiplication of each channel by a number of its own.

    parameters: weight (d,), all of them `start` at first
    """

    def __init__(self, d: int, start: float = 1e-4):
        super().__init__()
        ### BEGIN SOLUTION
        self.weight = torch.nn.Parameter(torch.full((d,), start))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return x * self.weight
        ### END SOLUTION
'''
CLASS_ANSWERS = """\
class _Scale(torch.nn.Module):
    def __init__(self, d, start=1e-4):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(d) * start)

    def forward(self, x):
        return torch.einsum("...d,d->...d", x, self.weight)


@oracle("LayerScale", evidence="einsum")
class ScaleEinsum(_Scale):
    pass


@wrong("LayerScale", hint="It starts at 1.", evidence="start not used")
class ScaleStartsAtOne(_Scale):
    def __init__(self, d, start=1e-4):
        super().__init__(d, 1.0)


@wrong("LayerScale", hint="You divide.", evidence="the inverse")
class ScaleDivides(_Scale):
    def forward(self, x):
        return x / self.weight


@wrong("LayerScale", hint="The gain is cut off.", evidence="detach")
class ScaleDetached(_Scale):
    def forward(self, x):
        return x * self.weight.detach()


@wrong("LayerScale", hint="A tensor stays behind.", evidence="no buffer")
class ScaleStays(_Scale):
    def __init__(self, d, start=1e-4):
        super().__init__(d, start)
        self.ones = torch.ones(d)

    def forward(self, x):
        return x * self.weight * self.ones
"""


def blocks():
    """The page's code: three files of one exercise, one of another."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def copied_course(tmp_path):
    """A copy of what a contributor works in, with the page's examples."""
    for name in ("autograder", "solutions", "book", "exercises"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "mathjax"),
        )
    for name in ("_config.yml", "_toc.yml", "nbgrader_config.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    *example, judgement = blocks()
    of_class = CLASS_TASK, CLASS_IMPORTS + judgement, CLASS_ANSWERS
    for room, one, other in zip(ROOMS, example, of_class, strict=True):
        path = tmp_path / room / f"{LESSON}.py"
        source, added = path.read_text(encoding="utf-8"), f"{one}\n\n{other}"
        if room == "solutions":
            assert source.count(LAST_CELL) == 1
            source = source.replace(LAST_CELL, f"{added}\n\n{LAST_CELL}")
        else:
            source = f"{source}\n\n{added}"
        path.write_text(source, encoding="utf-8")
    return tmp_path


def test_code_on_the_page_is_formatted_as_in_its_files():
    for block in blocks():
        formatted = subprocess.run(
            [
                *(sys.executable, "-m", "ruff", "format"),
                *("--isolated", "--line-length", "79", "-"),
            ],
            input=block,
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout
        assert block == formatted
        assert max(map(len, block.split("\n"))) <= 79


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
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]
    ]
    text = "\n".join(cells)
    assert 'check("attention_entropy"' in text
    assert 'check("LayerScale"' in text
    assert cells[-1].startswith("## What to do next")
    verified = run("verify", "attention_entropy", "LayerScale")
    assert verified.returncode == 0, verified.stdout + verified.stderr
