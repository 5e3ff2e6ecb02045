"""What to mend in a notebook before it is handed in.

A cell that was deleted, copied or pasted anew is graded wrongly or not at
all, and its learner sees nothing of it. `check.summary()` asks here while it
can still be mended. Where no notebook is open there is nothing to say.
"""

import json
import os
import sys
import warnings

from autograder.cells import defines
from autograder.course import check_id

PATIENCE = 10  # seconds for Colab's page to hand over the notebook


def advice(names):
    """What to mend in the open notebook.

    names: the lesson's exercises
    returns: sentences; none if all is well, or if no notebook is open
    """
    made, note = open_notebook()
    with warnings.catch_warnings():
        # Python said it already when the cell was run.
        warnings.simplefilter("ignore")
        told = tuple(troubles(cells_of(made), names))
    return (*told, note) if note and (told or made is None) else told


def open_notebook():
    """The notebook from which we are called, and what to know about it.

    returns: (notebook as in its file, or None; a sentence or "")
    """
    if "google.colab" in sys.modules:
        made = _from_colab()
        return made, "" if made else (
            "Colab does not hand over this notebook, so nobody looked for "
            "missing or doubled cells: run the summary once more."
        )
    path = notebook_path()
    if path is None:
        return None, ""
    try:
        with open(path, encoding="utf-8") as file:
            made = json.load(file)
    except (OSError, ValueError):
        return None, (
            f"{os.path.basename(path)} cannot be read from here, so nobody "
            "looked for missing or doubled cells: save it under its own "
            "name and restart the kernel."
        )
    return made, (
        "This was seen in the notebook as last saved: mend it, save, and run "
        "the summary once more."
    )


def _from_colab():
    try:
        from google.colab import _message

        # What stands on the page, saved or not.
        reply = _message.blocking_request(
            "get_ipynb", request="", timeout_sec=PATIENCE
        )
        return reply.get("ipynb") or None
    except Exception:  # its errors are its own, and not a learner's
        return None


def notebook_path():
    """Where Jupyter or VS Code says that the open notebook lies, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return None
    path = (
        shell.user_ns.get("__vsc_ipynb_file__")
        or shell.user_ns.get("__session__")
        or os.environ.get("JPY_SESSION_NAME")
    )
    # A console has a session, too, but no file.
    return path if path and str(path).endswith(".ipynb") else None


def cells_of(made):
    """(type, source, mark) of a notebook's cells; () if it has none."""
    try:
        return tuple(
            (
                cell["cell_type"],
                "".join(cell["source"]),
                _mark(cell["metadata"]),
            )
            for cell in made["cells"]
        )
    except (AttributeError, KeyError, TypeError):
        return ()


def _mark(metadata):
    mark = metadata.get("nbgrader", {}).get("grade_id")
    return mark if isinstance(mark, str) else None


def troubles(cells, names):
    """Sentences about cells that are graded and not there exactly once.

    cells: (type, source, mark), see `cells_of`
    names: the lesson's exercises
    """
    wanted = {*names, *map(check_id, names)}
    places = {}
    for number, (_, _, mark) in enumerate(cells, start=1):
        if mark in wanted:
            places.setdefault(mark, []).append(number)
    if not places:
        return  # a chapter or a scratch notebook, which nobody hands in
    for name in names:
        yield from _of_answer(name, cells, places.get(name, []))
        checks = places.get(check_id(name), [])
        if not checks:
            yield (
                f"The check cell of {name} is gone: copy it from a fresh "
                "notebook of this lesson."
            )
        elif len(checks) > 1:
            yield (
                f"The check cell of {name} is there {len(checks)} times "
                f"({_listed(checks)}): delete all but one."
            )


def _of_answer(name, cells, own):
    others = [
        number
        for number, (kind, source, _) in enumerate(cells, start=1)
        if kind == "code" and number not in own and name in defines(source)
    ]
    if len(own) > 1:
        yield (
            f"The cell for {name} is there {len(own)} times "
            f"({_listed(own)}): only one of them is graded, so delete the "
            "others."
        )
    for number in own:
        if cells[number - 1][0] != "code":
            yield (
                f"The cell for {name} ({_listed([number])}) is a text cell "
                "now: make it a code cell again."
            )
    if not own:
        yield (
            f"The cell for {name} is gone: "
            + (
                f"{_listed(others)} defines {name}, but is not the cell that "
                "some graders look for. "
                if others
                else ""
            )
            + "Put your answer into that cell in a fresh notebook."
        )
    elif others:
        yield (
            f"{name} is defined once more in {_listed(others)}: keep one "
            "definition, in its own cell, or what you checked may not be "
            "what is graded."
        )


def _listed(numbers):
    """Places as people count them: "cell 4", "cells 4 and 9"."""
    *first, last = map(str, numbers)
    if not first:
        return f"cell {last}"
    return f"cells {', '.join(first)} and {last}"
