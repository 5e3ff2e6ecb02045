"""Other people's answers: the oracle, unusual right ones, and wrong ones.

A lesson's answers live in `solutions/answers/<lesson>.py`, each marked with
one of the decorators below. They test the checks, name mistakes, and (the
oracle) say what is expected.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import sys

from autograder.course import SourceError

FOLDER = pathlib.Path(__file__).parent.parent / "solutions" / "answers"


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer to one exercise.

    kind: "oracle", "right" or "wrong"
    evidence: where the answer was seen (a line of a survey, a report), or why
        it is worth a place
    hint: what a learner who made this mistake should read ("" if right)
    """

    exercise: str
    kind: str
    id: str
    object: object
    evidence: str
    hint: str = ""


def oracle(exercise, *, evidence):
    """Mark the right answer that everybody is compared with."""
    return functools.partial(_mark, exercise, "oracle", evidence, "")


def right(exercise, *, evidence):
    """Mark a right answer in an unusual style."""
    return functools.partial(_mark, exercise, "right", evidence, "")


def wrong(exercise, *, hint, evidence):
    """Mark a wrong answer that people really write; its name is its id."""
    return functools.partial(_mark, exercise, "wrong", evidence, hint)


def _mark(exercise, kind, evidence, hint, object):
    about = f"the answer {object.__name__} to {exercise}"
    if not evidence.strip():
        raise SourceError(f"{about} has no evidence: say where it was seen.")
    if kind == "wrong" and not hint.strip():
        raise SourceError(
            f"{about} has no hint: say what a learner who makes this mistake "
            "should read."
        )
    there = vars(sys.modules[object.__module__]).get(object.__name__)
    if isinstance(getattr(there, "__dict__", {}).get("answer"), Answer):
        raise SourceError(f"{about} has the name of another one: rename it.")
    answer = Answer(exercise, kind, object.__name__, object, evidence, hint)
    object.answer = answer
    return object


def of(lesson, exercise, *kinds):
    """A lesson's answers to one exercise, of the given kinds or of all."""
    return [
        answer
        for answer in load(lesson)
        if answer.exercise == exercise and (not kinds or answer.kind in kinds)
    ]


def the_oracle(lesson, exercise):
    """The answer that everybody's is compared with.

    raises SourceError: if there is not exactly one
    """
    found = of(lesson, exercise, "oracle")
    if len(found) != 1:
        raise SourceError(
            f"{exercise} has {len(found)} oracles in solutions/answers/"
            f"{lesson}.py: exactly one is due"
        )
    return found[0]


@functools.cache
def load(lesson):
    """Answers to a lesson's exercises, in the order of their definition.

    raises FileNotFoundError: if this copy of the course has no answers
    """
    path = FOLDER / f"{lesson}.py"
    if not path.exists():
        raise FileNotFoundError(
            f"solutions/answers/{lesson}.py is missing: fresh inputs are "
            "judged against the answers there. Use a full copy of the "
            "course, or call check without fresh=True."
        )
    name = f"_answers_{lesson}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # A subclass inherits its parent's mark, so ask for the object's own.
    marks = [
        getattr(object, "__dict__", {}).get("answer")
        for object in vars(module).values()
    ]
    return [mark for mark in marks if isinstance(mark, Answer)]
