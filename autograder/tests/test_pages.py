"""Pages read the same in the book, on Colab and beside the exercises."""

import re

import nbformat
import pytest

from autograder import build
from autograder.course import ROOT, SourceError
from autograder.pages import colab_edition, plain_markdown, solution_page

LESSON = "ch1_self_attention"

BIB = """
@article{one2017, author={Vaswani, Ashish}, title={A}, journal={J},
 year={2017}, url={https://example.org/one}}
@article{two2015, author={Luong, T. and Pham, H.}, title={A}, journal={J},
 year={2015}}
@article{more2014, author={Bahdanau, D. and Cho, K. and Bengio, Y.},
 title={A}, journal={J}, year={2014}, url={https://example.org/more}}
"""


@pytest.fixture
def chapter(tmp_path):
    """A chapter's path beside a list of references."""
    (tmp_path / "references.bib").write_text(BIB)
    return tmp_path / "ch1_toy.md"


# (MyST, plain Markdown)
PLAIN = {
    "text": ("One *two* `three`.", "One *two* `three`."),
    "note": (
        ":::{note}\nMind the gap.\n:::",
        "> **Note.**\n>\n> Mind the gap.",
    ),
    "tip": ("```{tip}\nTry.\n```", "> **Tip.**\n>\n> Try."),
    "warning": (":::{warning}\nHot.\n:::", "> **Warning.**\n>\n> Hot."),
    "important": (":::{important}\nA.\n:::", "> **Important.**\n>\n> A."),
    "a note with options": (
        ":::{note}\n:class: margin\nA.\n:::",
        "> **Note.**\n>\n> A.",
    ),
    "admonition": (
        ":::{admonition} Try it\nA.\n\nB.\n:::",
        "> **Try it.**\n>\n> A.\n>\n> B.",
    ),
    "dropdown": (
        ":::{dropdown} Why?\nBecause.\n:::",
        "<details><summary>Why?</summary>\n\nBecause.\n\n</details>",
    ),
    "math": (":::{math}\nx^2\n:::", "$$\nx^2\n$$"),
    "labelled math": (":::{math}\n:label: eq\nx^2\n:::", "$$\nx^2\n$$"),
    "figure": (
        ":::{figure} assets/a.svg\n:alt: Two curves\nThey meet.\n:::",
        "![Two curves](assets/a.svg)\n\n*Figure.* They meet.",
    ),
    "one in another": (
        "::::{note}\n:::{dropdown} Why?\nA.\n:::\n::::",
        "> **Note.**\n>\n> <details><summary>Why?</summary>\n>\n> A.\n>\n"
        "> </details>",
    ),
    "a label": ("(here)=\n# Title", "# Title"),
    "cite, one author": (
        "See {cite}`one2017`.",
        "See [Vaswani, 2017](https://example.org/one).",
    ),
    "cite:t, two authors": (
        "{cite:t}`two2015` say",
        "(Luong & Pham, 2015) say",
    ),
    "cite, several": (
        "{cite}`more2014,one2017`",
        "[Bahdanau et al., 2014](https://example.org/more), "
        "[Vaswani, 2017](https://example.org/one)",
    ),
    "inline math": ("{math}`a^2`", "$a^2$"),
    "doc": ("{doc}`the exercises <../solutions/x>`", "*the exercises*"),
    "doc without title": ("{doc}`../solutions/x`", "*x*"),
    "ref": ("{ref}`the proof <proof>`", "*the proof*"),
    "term": ("{term}`query`", "*query*"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_each_allowed_form_becomes_plain_markdown(name, chapter):
    text, plain = PLAIN[name]
    assert plain_markdown(text, chapter) == plain


@pytest.mark.parametrize(
    "text, told",
    [
        (":::{list-table}\n:::", "'list-table'"),
        ("```{mermaid}\nA\n```", "'mermaid'"),
        (":::{grid} 2\n:::", "'grid'"),
        ("::::{note}\n:::{tabs}\n:::\n::::", "'tabs'"),
        ("{eq}`one`", "{eq}"),
        ("{py:func}`f`", "{py:func}"),
        ("{numref}`f`", "{numref}"),
        ("{sub-ref}`today`", "{sub-ref}"),
        (":::{note}\nnever closed", "never closed"),
        ("{cite}`nobody1999`", "'nobody1999'"),
        # In a list, directives are indented.
        ("- one\n\n  :::{list-table}\n  :::", "list-table"),
    ],
)
def test_any_other_form_is_refused_by_name(text, told, chapter):
    with pytest.raises(SourceError, match=re.escape(told)) as caught:
        plain_markdown(text, chapter)
    assert "ch1_toy.md" in str(caught.value)


CHAPTER = """\
---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# Title

{cite}`one2017`

```{code-cell} ipython3
---
tags: [hide-input]
mystnb:
  figure:
    caption: Weights {math}`w`.
---
1 + 1
```
"""


def test_a_chapter_becomes_a_notebook_for_colab(chapter):
    chapter.write_text(CHAPTER)
    made = colab_edition(chapter)
    nbformat.validate(made)
    title, setup, code, caption = made.cells
    assert "find_spec" in setup.source
    assert title.source.endswith("[Vaswani, 2017](https://example.org/one)")
    assert code.metadata.cellView == "form" and "mystnb" not in code.metadata
    assert caption.source == "*Figure.* Weights $w$."
    assert made.metadata.accelerator == "GPU"


def test_the_first_chapter_reads_as_plain_markdown_on_colab():
    made = colab_edition(ROOT / "book" / f"{LESSON}.md")
    nbformat.validate(made)
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            assert not re.search(r":::|^\(.*\)=$", cell.source, re.M)
            assert not re.search(r"\{[A-Za-z:+_-]+\}`", cell.source)
            assert not re.search(r"^\s*`{3,}\{", cell.source, re.M)
        else:
            assert "solutions" not in cell.source
    again = colab_edition(ROOT / "book" / f"{LESSON}.md")
    assert build.notebook_bytes(again) == build.notebook_bytes(made)


SOLUTION = '''\
# %% [markdown]
# ## 1.1 Toy

# %% exercise="toy" level=1 minutes=5
def toy(x):
    """Twice."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
'''


def test_a_solution_is_folded_without_marks_and_followed_by_its_check():
    text, answer, check = solution_page(SOLUTION).cells
    assert answer.source == 'def toy(x):\n    """Twice."""\n    return 2 * x'
    assert check.source == 'check("toy", toy)'
    assert answer.metadata["tags"] == ["hide-input"]
    assert answer.metadata["mystnb"] == {
        "code_prompt_show": "Show an answer",
        "code_prompt_hide": "Hide the answer",
    }
    assert text.cell_type == "markdown"


def test_every_solution_of_a_lesson_is_checked_on_its_page():
    text = build.lesson_path(LESSON).read_text(encoding="utf-8")
    made = "\n".join(cell.source for cell in solution_page(text).cells)
    assert "### BEGIN" not in made and "### END" not in made
    assert made.count('check("') == text.count('exercise="')
