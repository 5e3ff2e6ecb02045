"""What happens to notebooks on their way: Colab, editors, people, LMSs.

Each fault takes a solved notebook (as JSON) and returns the file that
arrives, as bytes. None of them takes an answer away, so none may change the
score. The numbers are rows of the survey from which the faults come.
"""

import copy
import json
import random

from autograder.grading.released import released_lessons

STUBS = {
    name: cell.source
    for lesson in released_lessons()
    for name, cell in lesson.answers.items()
}
FAULTS = {}
MUTATIONS = []  # those that take and return a notebook, to be combined


def fault(function):
    """A fault that returns bytes, or a changed notebook."""

    def run(made, rng=None):
        made = copy.deepcopy(made)
        changed = function(made, rng or random.Random(0))
        changed = made if changed is None else changed
        return (
            changed
            if isinstance(changed, bytes)
            else json.dumps(changed).encode()
        )

    FAULTS[function.__name__] = run
    return function


def mutation(function):
    """A fault that changes a notebook in place, and that may be combined."""
    MUTATIONS.append(function)
    return fault(function)


def about(cell):
    found = cell["metadata"].get("nbgrader")
    return found if isinstance(found, dict) else {}


def mark(cell):
    return about(cell).get("grade_id", "")


def kind(cell):
    found = about(cell)
    return (
        "answer"
        if found.get("solution")
        else "check"
        if found.get("grade")
        else "given"
        if found
        else "text"
    )


def pick(made, rng, which="answer"):
    """Index of a random cell of a kind, or None."""
    found = [i for i, cell in enumerate(made["cells"]) if kind(cell) == which]
    return rng.choice(found) if found else None


# What Colab does.


@mutation
def colab_rewrite(made, rng):  # 1
    made["nbformat_minor"] = 0
    made["metadata"].update(
        colab={"provenance": [], "toc_visible": True},
        accelerator="GPU",
        kernelspec={"name": "python3", "display_name": "Python 3"},
    )
    for index, cell in enumerate(made["cells"]):
        cell.pop("id", None)
        cell["metadata"]["id"] = f"aB{index:010}"
        if cell["cell_type"] == "code":
            cell["metadata"]["executionInfo"] = {
                "status": "ok",
                "user": {"displayName": "A Person"},
            }
            cell["metadata"]["outputId"] = "0-0"


@mutation
def colab_badge_and_form(made, rng):
    made["cells"].insert(
        0,
        {
            "cell_type": "markdown",
            "source": "[Open in Colab](https://x)",
            "metadata": {"id": "view-in-github", "colab_type": "text"},
        },
    )
    index = pick(made, rng)
    if index is not None:
        made["cells"][index]["metadata"]["cellView"] = "form"


@mutation
def widgets_without_state(made, rng):  # 2
    made["metadata"]["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"abc": {}}
    }


@mutation
def cells_of_colab(made, rng):  # 36
    made["cells"].insert(
        1,
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": "from google.colab import drive\n"
            "drive.mount('/content/drive')\n"
            "%cd /content",
        },
    )


@mutation
def outputs_of_colab(made, rng):
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [
                {
                    "output_type": "display_data",
                    "data": {
                        "application/vnd.jupyter.widget-view+json": {},
                        "application/vnd.google.colaboratory.intrinsic+json": {
                            "type": "string"
                        },
                        "text/html": ["<script>alert(1)</script>"],
                    },
                    "metadata": {},
                }
            ]
            cell["metadata"]["colab"] = {
                "base_uri": "https://localhost:8080/",
                "referenced_widgets": ["abc"],
            }


@mutation
def metadata_of_editors(made, rng):
    made["metadata"].update(
        dlai_version="1.2.0",
        jupytext={"formats": "ipynb,py:percent"},
        vscode={"interpreter": {"hash": "0"}},
    )
    for cell in made["cells"]:
        cell["metadata"].update(
            tags=["graded"], deletable=True, editable=True, collapsed=True
        )
        cell["attachments"] = {}


# Marks.


@mutation
def all_marks_lost(made, rng):  # 3
    for cell in made["cells"]:
        cell["metadata"].pop("nbgrader", None)


@mutation
def one_mark_lost(made, rng):
    index = pick(made, rng)
    if index is not None:
        made["cells"][index]["metadata"].pop("nbgrader")


@mutation
def mark_renamed(made, rng):  # 17
    index = pick(made, rng)
    if index is not None:
        made["cells"][index]["metadata"]["nbgrader"]["grade_id"] = "cell-17"


@mutation
def marks_of_another_version(made, rng):  # 16
    for cell in made["cells"]:
        if about(cell):
            cell["metadata"]["nbgrader"]["schema_version"] = rng.choice(
                [0, 1, 2, 99, "3"]
            )


@mutation
def points_forged(made, rng):  # 59
    for cell in made["cells"]:
        if about(cell):
            cell["metadata"]["nbgrader"].update(
                points=1e9, locked=False, grade=False, solution=True
            )


@mutation
def marks_that_are_no_marks(made, rng):
    for cell in made["cells"]:
        if kind(cell) == "text":
            cell["metadata"]["nbgrader"] = rng.choice([None, 3, [], "x"])


@mutation
def identifiers_doubled(made, rng):  # 19
    for cell in made["cells"]:
        cell["id"] = "same"


# Cells deleted, copied, moved, split, retyped.


@mutation
def check_deleted(made, rng):  # 6
    index = pick(made, rng, "check")
    if index is not None:
        del made["cells"][index]


@mutation
def all_checks_deleted(made, rng):
    made["cells"][:] = [
        cell for cell in made["cells"] if kind(cell) != "check"
    ]


@mutation
def given_deleted(made, rng):  # 7
    index = pick(made, rng, "given")
    if index is not None:
        del made["cells"][index]


@mutation
def all_text_deleted(made, rng):
    made["cells"][:] = [cell for cell in made["cells"] if kind(cell) != "text"]


@mutation
def check_to_text(made, rng):  # 8
    index = pick(made, rng, "check")
    if index is not None:
        made["cells"][index]["cell_type"] = rng.choice(["raw", "markdown"])


@mutation
def answer_to_text(made, rng):
    index = pick(made, rng)
    if index is not None:
        made["cells"][index]["cell_type"] = rng.choice(["raw", "markdown"])


@mutation
def text_to_code(made, rng):  # 10
    index = pick(made, rng, "text")
    if index is not None:
        made["cells"][index]["cell_type"] = "code"


@mutation
def answer_copied(made, rng):  # 11
    index = pick(made, rng)
    if index is not None:
        made["cells"].insert(index, copy.deepcopy(made["cells"][index]))


@mutation
def check_copied(made, rng):  # 12
    index = pick(made, rng, "check")
    if index is not None:
        made["cells"].append(copy.deepcopy(made["cells"][index]))


@mutation
def everything_copied(made, rng):
    made["cells"] += copy.deepcopy(made["cells"])


@mutation
def answer_split(made, rng):  # 13
    index = pick(made, rng)
    if index is not None:
        split(made, index, rng)


def split(made, index, rng):
    """Split a cell inside a function."""
    cell = made["cells"][index]
    lines = text(cell).split("\n")
    inside = [i for i, line in enumerate(lines) if i and line.startswith(" ")]
    if not inside:
        return
    at = inside[len(inside) // 2]
    rest = {**copy.deepcopy(cell), "source": "\n".join(lines[at:])}
    if rng.random() < 0.5:
        rest["metadata"] = {}
    cell["source"] = "\n".join(lines[:at])
    made["cells"].insert(index + 1, rest)


@mutation
def check_before_answer(made, rng):  # 15
    index = pick(made, rng, "check")
    if index:
        cells = made["cells"]
        cells[index - 1], cells[index] = cells[index], cells[index - 1]


@mutation
def reordered(made, rng):
    rng.shuffle(made["cells"])


@mutation
def reversed_order(made, rng):
    made["cells"].reverse()


@mutation
def answer_retyped(made, rng):  # 4
    index = pick(made, rng)
    if index is not None:
        cell = made["cells"].pop(index)
        made["cells"].insert(
            rng.randrange(len(made["cells"]) + 1),
            {
                "cell_type": "code",
                "metadata": {},
                "outputs": [],
                "source": text(cell),
            },
        )


@mutation
def answer_beside_the_stub(made, rng):  # 5
    index = pick(made, rng)
    if index is None or mark(made["cells"][index]) not in STUBS:
        return
    cell = made["cells"][index]
    new = {"cell_type": "code", "metadata": {}, "outputs": []}
    made["cells"].insert(index + 1, {**new, "source": text(cell)})
    cell["source"] = STUBS[mark(cell)]


@mutation
def check_edited(made, rng):
    index = pick(made, rng, "check")
    if index is not None:
        made["cells"][index]["source"] = rng.choice(
            ["2.0", "", "assert True", "check = lambda *a: 2.0"]
        )


@mutation
def given_edited(made, rng):
    index = pick(made, rng, "given")
    if index is not None:
        made["cells"][index]["source"] = ""


@mutation
def noise_added(made, rng):
    for source in (
        "",
        "   ",
        "print('hello')",
        "# a note",
        "1 / 0",
        "input('name')",
        "%matplotlib qt",
    ):
        made["cells"].insert(
            rng.randrange(len(made["cells"]) + 1),
            {
                "cell_type": "code",
                "metadata": {},
                "outputs": [],
                "source": source,
            },
        )


@mutation
def data_pasted(made, rng):
    made["cells"].insert(
        rng.randrange(len(made["cells"]) + 1),
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": f'data = """{"0.5, " * 200_000}"""',
        },
    )


# The format.


@mutation
def other_kernel(made, rng):  # 39
    made["metadata"]["kernelspec"] = {
        "name": "conda-env-x-py",
        "display_name": "R",
        "language": "R",
    }
    made["metadata"]["language_info"] = {"name": "julia", "version": "9.9"}


@mutation
def other_minor(made, rng):  # 20
    made["nbformat_minor"] = rng.choice([0, 1, 2, 4, 5, 77])


@mutation
def format_five(made, rng):  # 22
    made["nbformat"] = 5


@mutation
def outputs_missing_or_odd(made, rng):  # 24
    for cell in made["cells"]:
        cell.pop("outputs", None)
        if rng.random() < 0.3:
            cell["outputs"] = rng.choice([None, 3, [{"output_type": "x"}]])
        cell.pop("execution_count", None)


@mutation
def metadata_odd(made, rng):
    made["metadata"] = rng.choice([{}, None, [], {"course": None}])


@mutation
def crlf(made, rng):  # 32
    for cell in made["cells"]:
        cell["source"] = text(cell).replace("\n", "\r\n")


@mutation
def line_ends_of_old_macs(made, rng):
    for cell in made["cells"]:
        cell["source"] = text(cell).replace("\n", "\r")


@mutation
def source_as_lines(made, rng):
    for cell in made["cells"]:
        cell["source"] = text(cell).splitlines(keepends=True)


@mutation
def invisible_characters(made, rng):
    for cell in made["cells"]:
        if kind(cell) == "answer":
            cell["source"] = "\ufeff" + text(cell) + "\u200b\n"


@mutation
def trailing_spaces(made, rng):
    for cell in made["cells"]:
        cell["source"] = text(cell).replace("\n", "  \n") + "\n\n"


@fault
def format_three(made, rng):
    cells = []
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            cells.append(
                {
                    "cell_type": "code",
                    "input": text(cell),
                    "language": "python",
                    "outputs": [],
                    "metadata": cell["metadata"],
                }
            )
        else:
            cells.append(cell)
    return {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {},
        "worksheets": [{"cells": cells, "metadata": {}}],
    }


@fault
def wrapped(made, rng):
    return {"name": "x.ipynb", "type": "notebook", "content": made}


def text(cell):
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _encoded(encoding):
    def encode(made, rng):
        return json.dumps(made, ensure_ascii=False).encode(encoding, "replace")

    encode.__name__ = f"encoded_{encoding}".replace("-", "_")
    return encode


for _encoding in (  # 26
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
):
    fault(_encoded(_encoding))


@fault
def zeros_at_the_end(made, rng):
    return json.dumps(made).encode() + b"\0" * 4096


@fault
def file_with_crlf(made, rng):
    return json.dumps(made, indent=1).replace("\n", "\r\n").encode()


@fault
def two_notebooks_in_one_file(made, rng):
    return json.dumps(made).encode() * 2


@fault
def cut_off_behind_the_last_cell(made, rng):  # 28
    made["cells"].append(
        {"cell_type": "markdown", "metadata": {}, "source": "ZZZ"}
    )
    whole = json.dumps(made).encode()
    return whole[: whole.index(b"ZZZ")]
