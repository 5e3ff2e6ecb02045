"""From observations to a report. Nothing of the learner's runs here."""

import dataclasses
import functools
from collections.abc import Callable

from autograder import answers
from autograder.diagnosis import Centres, Mistake, diagnose, first_read, sketch
from autograder.exercise import Failure, not_attempted, trouble
from autograder.goldens import read_golden
from autograder.observations import Raised
from autograder.probing import observe, on_device, quiet_numbers
from autograder.report import Finding, Report, call_text

# What is left of the maximum where a property without points of its own
# fails, such as unchanged arguments.
UNTIDY = 0.75
SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True)
class Standard:
    """What an answer is compared with, on one set of inputs.

    inputs: what answers are tried on
    want: what the oracle's answer shows there
    mistakes(): what the known mistakes show, by id
    centres: sketches of `want`
    """

    inputs: dict
    want: object
    mistakes: Callable
    centres: Centres


@functools.cache
def visible_standard(lesson, exercise):
    """The standard of the inputs that every learner's check uses."""
    want, mistakes = read_golden(lesson, exercise.name)
    return Standard(
        exercise.visible_inputs(),
        want,
        lambda: mistakes,
        Centres(exercise, want),
    )


@functools.cache
def fresh_standard(lesson, exercise, seed):
    """The standard of a graded run: live answers on inputs of the seed."""
    return live_standard(lesson, exercise, exercise.fresh_inputs(seed))


def live_standard(lesson, exercise, inputs):
    """A standard made by running the lesson's answers on the inputs."""
    want = oracle_observations(lesson, exercise, inputs)

    @functools.cache
    def mistakes():
        made = {}
        for answer in answers.of(lesson, exercise.name, "wrong"):
            seen = _observed(exercise, answer, inputs)
            results = failures(exercise, seen, want, inputs)
            made[answer.id] = mistake(exercise, answer.hint, seen, results)
        return made

    return Standard(inputs, want, mistakes, Centres(exercise, want))


def oracle_observations(lesson, exercise, inputs):
    """What is expected on the inputs."""
    oracle = answers.the_oracle(lesson, exercise.name)
    # An oracle may call what learners may not.
    free = dataclasses.replace(exercise, forbids=())
    return _observed(free, oracle, inputs)


def _observed(exercise, answer, inputs):
    # Whatever default device the learner's notebook has set.
    with on_device("cpu"):
        return observe(exercise, answer.object, inputs)["seen"]


def mistake(exercise, hint, seen, results):
    """What is known of a wrong answer, from what it shows on some inputs.

    results: as of `failures`
    """
    pattern = failing(results)
    return Mistake(
        hint,
        sketch(exercise, seen),
        sketch(exercise, first_read(exercise, seen, pattern)),
        pattern,
    )


def failures(exercise, seen, want, inputs):
    """{property: None, its `Failure`, or SKIPPED}, in reading order."""
    found, closed = {}, False
    for part in exercise.properties:
        if closed or any(found[name] for name in part.needs):
            found[part.name] = SKIPPED
        elif isinstance(seen, Raised):
            found[part.name] = Failure(trouble(seen))
        else:
            found[part.name] = _judged(part, seen, want, inputs)
        closed = closed or (part.gate and found[part.name] is not None)
    return found


def _judged(part, seen, want, inputs):
    try:
        return part.judge(seen, want, inputs)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        Warning,
    ):
        # From a hostile process, observations of any form may come. That a
        # judgement itself is sound is shown by the right answers.
        stopped = _stopped(part, seen)
        return stopped or Failure(
            "what came back has not the form that is due"
        )


def _stopped(part, seen):
    """What stopped the answer in a case that the property reads, if it did."""
    if not isinstance(seen, dict):
        return None
    for name in part.cases or seen:
        about = seen.get(name)
        out = about.get("out") if isinstance(about, dict) else about
        if isinstance(out, Raised):
            return Failure(trouble(out), name)
    return None


def failing(results):
    """Names of the properties that do not hold."""
    return tuple(
        name for name, result in results.items() if isinstance(result, Failure)
    )


def judge(
    exercise, observation, standard, *, example=None, results=None, known=None
):
    """A report on what an answer was observed to do.

    example: None to show what was seen on these inputs; otherwise the report
        on the visible inputs, from which what may be shown is taken
    results: as of `failures`, if these have been made already
    known: as of `diagnose`
    """
    with quiet_numbers():
        results = results or failures(
            exercise, observation["seen"], standard.want, standard.inputs
        )
        return _judge(exercise, observation, standard, example, results, known)


def _judge(exercise, observation, standard, example, results, known):
    seen = observation["seen"]
    if not_attempted(seen):
        return Report(
            exercise.name,
            0.0,
            exercise.points,
            findings=(
                Finding(
                    "attempted",
                    False,
                    "The stub is still there: replace "
                    "its last line by your answer.",
                ),
            ),
        )
    wrong = failing(results)
    hints = {}
    if wrong and example is not None and not example.passed:
        # Known already, and much cheaper than running all mistakes here.
        hints = example.hints
    elif wrong:
        mistakes = standard.mistakes()
        named = diagnose(
            exercise, seen, standard.centres, wrong, mistakes, known
        )
        hints = {id: mistakes[id].hint for id in named}
    findings = [
        _finding(exercise, part, results[part.name], standard.inputs, example)
        for part in exercise.properties
    ]
    if wrong:
        first = [part.property for part in findings].index(wrong[0])
        findings[first] = dataclasses.replace(
            findings[first], mistake=next(iter(hints), None)
        )
    if observation["forbidden"]:
        findings.insert(0, _own_work(observation["forbidden"]))
    return Report(
        exercise.name,
        _points(exercise, results, observation["forbidden"]),
        exercise.points,
        findings=tuple(findings),
        hints=hints,
        printed=observation["printed"] if example is None else "",
        notes=_notes(observation, wrong),
    )


def _finding(exercise, part, result, inputs, example):
    if not isinstance(result, Failure):
        passed = None if result == SKIPPED else True
        return Finding(part.name, passed)
    if example is None:
        return Finding(
            part.name,
            False,
            part.says,
            detail=result.text,
            call=call_text(exercise.name, inputs.get(result.case)),
        )
    unseen = Finding(
        part.name,
        False,
        detail=(
            "it holds on the visible inputs, but not on others of the same "
            "kind"
        ),
    )
    shown = next(
        (
            finding
            for finding in example.findings
            if finding.property == part.name and not finding.passed
        ),
        unseen,
    )
    return Finding(
        part.name, False, part.says, detail=shown.detail, call=shown.call
    )


def _own_work(names):
    # aten's own names, with an underscore, mean nothing to a learner.
    shown = [name for name in names if name[0] != "_"] or names
    return Finding(
        "own work",
        False,
        f"It calls {', '.join(shown)}, which would be the whole answer here. "
        "Write that part yourself.",
    )


def _points(exercise, results, forbidden):
    gates = [part.name for part in exercise.properties if part.gate]
    if forbidden or any(results[name] for name in gates):
        return 0.0
    earned = sum(
        part.points
        for part in exercise.properties
        if results[part.name] is None
    )
    if any(
        isinstance(results[part.name], Failure) and not part.points
        for part in exercise.properties
    ):
        earned = min(earned, UNTIDY * exercise.points)
    return round(earned, 2)


def _notes(observation, wrong):
    if not (wrong and observation["device"]):
        return ()
    return (
        f"torch's default device is {observation['device']}, so tensors that "
        "you create land there while the arguments are on the CPU. Create "
        "them on the device of an argument, or go back to "
        "torch.set_default_device('cpu').",
    )
