"""`check`: what a learner, a notebook and stock nbgrader call."""

import difflib
import functools
import os
import secrets

from autograder.before_submit import advice
from autograder.exercise import (
    exercises,
    find,
    lessons,
    unusable,
    unusable_observation,
)
from autograder.judging import fresh_standard, judge, visible_standard
from autograder.probing import observe
from autograder.report import Summary

SEED_VARIABLE = "AUTOGRADER_SEED"


class UnknownExerciseError(LookupError):
    """No exercise has that name; the text has the nearest ones."""


class Check:
    """Call it with an exercise's name and your answer."""

    def __init__(self):
        self._reports = {}

    def __call__(self, name, answer, *, fresh=False):
        """Check an answer.

        fresh: judge on fresh inputs and live answers, as when grading
        returns: `Report`; a wrong answer never raises
        raises UnknownExerciseError: no exercise has that name
        raises MissingGoldenError, FileNotFoundError: this copy of the course
            lacks what the answer is compared with
        """
        lesson, exercise = _find(name)
        report = check_visible(lesson, exercise, answer)
        if fresh:
            report = _check_fresh(lesson, exercise, answer, report)
        self._reports.pop(name, None)  # so that the last check stands last
        self._reports[name] = lesson, report
        return report

    def summary(self, lesson=None):
        """All exercises of a lesson with their last reports.

        Where the open notebook can be read, it also says which cells are
        missing or doubled.

        lesson: a lesson's stem; by default that of the last check
        """
        if lesson is None and not self._reports:
            raise ValueError(
                "nothing is checked yet: run a check cell first, or name the "
                f"lesson, for instance check.summary({lessons()[0]!r})"
            )
        lesson = lesson or next(reversed(self._reports.values()))[0]
        if lesson not in lessons():
            raise ValueError(
                f"{lesson!r} is no lesson; there are {', '.join(lessons())}"
            )
        rows = tuple(
            (name, exercise.points, self._reports.get(name, (0, None))[1])
            for name, exercise in exercises(lesson).items()
        )
        return Summary(lesson, rows, advice(exercises(lesson)))

    def __repr__(self):
        return 'check(name, answer), for instance check("softmax", softmax)'


def _find(name):
    found = find(name) if isinstance(name, str) else None
    if found:
        return found
    known = [each for lesson in lessons() for each in exercises(lesson)]
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    told = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"the exercises are {', '.join(known)}."
    )
    raise UnknownExerciseError(f"no exercise is called {name!r}: {told}")


def look(exercise, answer, inputs):
    """Observations of an answer that may not even be callable."""
    try:
        trouble = unusable(answer, exercise.kind)
    except Exception:  # an object may lie about its class
        trouble = "it cannot be looked at; a function or a class is due"
    if trouble is None:
        return observe(exercise, answer, inputs)
    return unusable_observation(trouble)


def check_visible(lesson, exercise, answer):
    """The report on the inputs that everybody sees."""
    standard = visible_standard(lesson, exercise)
    return judge(exercise, look(exercise, answer, standard.inputs), standard)


def _check_fresh(lesson, exercise, answer, visible):
    standard = fresh_standard(lesson, exercise, batch_seed())
    observation = look(exercise, answer, standard.inputs)
    return judge(exercise, observation, standard, example=visible)


@functools.cache
def batch_seed():
    """The seed of fresh inputs: from the environment, or drawn once."""
    return os.environ.get(SEED_VARIABLE) or secrets.token_hex(16)


check = Check()
