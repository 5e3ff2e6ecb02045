"""A lesson, answers to it, and a warm process for the tests of grading."""

import json

import pytest

from autograder.build import source_notebook
from autograder.grading.reading import read
from autograder.grading.released import released
from autograder.grading.repair import rebuild
from autograder.grading.runner import grade, prepare
from autograder.grading.sandbox import Limits
from autograder.grading.worker import Warm

LESSON = "ch1_self_attention"
SEED = "tests"


@pytest.fixture(scope="session")
def lesson():
    return released(LESSON)


@pytest.fixture(scope="session")
def right():
    """{exercise: source of the reference}."""
    return {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in source_notebook(LESSON).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


@pytest.fixture(scope="session")
def notebook_of():
    """Make a released notebook, as JSON, with answers put in."""
    from autograder.course import released_path

    text = released_path(LESSON).read_text(encoding="utf-8")

    def make(answers=None, **more):
        made = json.loads(text)
        for cell in made["cells"]:
            name = cell["metadata"].get("nbgrader", {}).get("grade_id")
            for given in (answers or {}, more):
                if name in given:
                    cell["source"] = given[name]
        return made

    return make


@pytest.fixture(scope="session")
def warm():
    """A warm process in the best sandbox that works here."""
    process = Warm(
        Limits(cell=2, probe=4, cpu=1, notebook=60, memory=600 * 2**20)
    )
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="session")
def graded(warm, lesson):
    """Grade a notebook; (points by exercise, reports, outputs, repairs)."""
    prepare(lesson, SEED)

    def run(made):
        data = made if isinstance(made, bytes) else json.dumps(made).encode()
        rebuilt = rebuild(lesson, read(data))
        reports, outputs, repairs = grade(warm, rebuilt.cells, SEED)
        points = {name: report.points for name, report in reports.items()}
        return points, reports, outputs, [*rebuilt.repairs, *repairs]

    return run
