"""A lesson as learners were given it, and what each of its cells is for."""

import dataclasses
import functools
import json

from autograder.cells import defines
from autograder.course import checked_by, released_path
from autograder.exercise import lessons
from autograder.notebooks import filled_in


@dataclasses.dataclass(frozen=True)
class Given:
    """A cell of the released notebook.

    role: "text"; "given": code that learners do not change; "answer": what
        they write; "check": what judges the answer to an exercise
    name: nbgrader's grade id, "" for text
    defines: names that the cell defines
    """

    kind: str
    role: str
    source: str
    name: str = ""
    defines: frozenset = frozenset()

    @property
    def exercise(self):
        """The exercise that a check cell judges."""
        return checked_by(self.name)


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A released lesson."""

    name: str
    version: str
    title: str
    cells: tuple[Given, ...]

    @property
    def answers(self):
        """{grade id: cell} of the cells that learners write."""
        return {
            cell.name: cell for cell in self.cells if cell.role == "answer"
        }

    @property
    def checks(self):
        """Names of the exercises that are judged, in order."""
        return [cell.exercise for cell in self.cells if cell.role == "check"]


@functools.cache
def released(name):
    """A lesson of this course by its stem.

    raises FileNotFoundError: if `build` has not written its notebook
    """
    return read_released(name, released_text(name))


def released_text(name):
    """A lesson's notebook as it was released.

    Also where somebody has filled in the file in `exercises/`, as those do
    who learn in the folder from which they teach.

    raises FileNotFoundError: if `build` has not written it
    """
    path = released_path(name)
    if not path.exists():
        raise FileNotFoundError(
            f"exercises/{name}/{name}.ipynb is missing: run `make exercises` "
            "to write it."
        )
    text = path.read_text(encoding="utf-8")
    if not filled_in(text):
        return text
    from autograder import build  # nbgrader makes the stubs, in a second

    made = build.released_notebook(name)
    return build.notebook_bytes(made).decode()


def read_released(name, text):
    """A lesson from the text of its notebook."""
    made = json.loads(text)
    about = made["metadata"].get("course", {})
    cells = tuple(_given(cell) for cell in made["cells"])
    return Lesson(
        name, str(about.get("version", "")), about.get("title", name), cells
    )


def _given(cell):
    source = cell["source"]
    source = source if isinstance(source, str) else "".join(source)
    about = cell["metadata"].get("nbgrader", {})
    if about.get("solution"):
        role = "answer"
    elif about.get("grade"):
        role = "check"
    else:
        role = "given" if cell["cell_type"] == "code" else "text"
    return Given(
        cell["cell_type"],
        role,
        source,
        about.get("grade_id", ""),
        defines(source) if role != "text" else frozenset(),
    )


def released_lessons():
    """The lessons that have a released notebook."""
    return [
        released(name) for name in lessons() if released_path(name).exists()
    ]
