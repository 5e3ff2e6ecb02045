"""What an exercise is: inputs, a probe, and the properties of a right answer.

A lesson's exercises live in `autograder/checks/<lesson>.py`.
"""

import dataclasses
import functools
import importlib
import pathlib
import zlib
from collections.abc import Callable

import numpy as np

from autograder.observations import (
    Raised,
    describe,
    form_difference,
    value_difference,
)
from autograder.probing import call_torch

CHECKS = pathlib.Path(__file__).parent / "checks"
# Last parts of names of torch calls that exercises may forbid: gradients, and
# attention in one call.
AUTOGRAD = ("grad", "backward", "torch.func", "forward_ad")
FUSED = (
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "flex_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "_native_multi_head_attention",
)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a property does not hold.

    text: what was seen, as a sentence that may quote inputs and values
    case: name of the first case that shows it, if one does
    """

    text: str
    case: str | None = None


@dataclasses.dataclass(frozen=True)
class Property:
    """Something that every right answer satisfies.

    judge(seen, want, inputs): a `Failure`, or None where the property holds;
        `seen` and `want` are what the probe returned for the learner's answer
        and for the oracle's
    says: what a learner reads when it fails: the cause and the next step
    because: the reason of its tolerance or, if no mistake needs it, of itself
    gate: whether nothing at all is earned where it fails
    needs: properties without which this one is meaningless
    cases: names of the inputs that it reads; () where it reads more
    """

    name: str
    judge: Callable
    says: str
    points: float = 0
    because: str = ""
    gate: bool = False
    needs: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Exercise:
    """One exercise, for learners, graders and the tests of both.

    name: the Python name that a learner defines
    inputs(rng): what it is tried on, plain data drawn from a RandomState
    probe(answer, inputs): what the answer does there, as observations
    properties: what has to hold, in the order in which a learner reads it
    forbids: last parts of the names of torch calls that would be the answer
    kind: "function" or "class"
    features(seen): numbers that recognise a mistake, for an exercise whose
        observations are random; by default all observations do
    """

    name: str
    inputs: Callable
    properties: tuple[Property, ...]
    probe: Callable = call_torch
    forbids: tuple[str, ...] = ()
    kind: str = "function"
    features: Callable | None = None

    @property
    def points(self):
        """The most that an answer can earn."""
        return round(sum(part.points for part in self.properties), 2)

    def visible_inputs(self):
        """The inputs that every learner's check uses."""
        return self.inputs(_generator(self.name))

    def fresh_inputs(self, seed):
        """Inputs of a graded run; the same seed gives the same inputs."""
        return self.inputs(_generator(f"{self.name} {seed}"))


def _generator(text):
    return np.random.RandomState(zlib.crc32(text.encode()))


def of_calls(*properties):
    """An exercise's own properties between those that all calls have."""
    return (
        Property(
            "runs",
            _runs,
            gate=True,
            because=("what does not run cannot be judged"),
            says=("It has to run before anything else can be said."),
        ),
        Property(
            "shape and dtype",
            _form,
            because=("read before values, since it explains them"),
            says=(
                "Compare what you return with the shapes and dtypes in the "
                "docstring."
            ),
        ),
        *properties,
        Property(
            "arguments unchanged",
            _unchanged,
            because=("a promise of the course to every caller"),
            says=(
                "The caller still needs its arguments: work on new arrays "
                "instead of changing them in place."
            ),
        ),
        Property(
            "same again",
            _same_again,
            because=("a function that remembers passes every single call"),
            says=(
                "A second call with the same arguments gives something "
                "else: the function keeps something from one call to the "
                "next."
            ),
        ),
    )


def _runs(seen, want, inputs):
    if isinstance(seen, Raised):
        return Failure(trouble(seen))
    first = next(iter(inputs))
    out = seen[first]["out"]
    if isinstance(out, Raised) and not isinstance(want[first]["out"], Raised):
        return Failure(trouble(out), first)
    return None


UNUSABLE = "unusable"  # the kind of trouble of what is no answer at all


def trouble(error):
    """What stopped an answer, as a sentence."""
    if error.kind == UNUSABLE:
        return error.text
    return f"it raises {describe(error)}"


def _form(seen, want, inputs):
    for name in inputs:
        one, other = seen[name]["out"], want[name]["out"]
        if isinstance(one, Raised) or isinstance(other, Raised):
            continue
        difference = form_difference(one, other)
        if difference:
            return Failure(difference, name)
    return None


def _unchanged(seen, want, inputs):
    for name in inputs:
        if seen[name].get("changed"):
            return Failure("an argument has other values after the call", name)
    return None


def _same_again(seen, want, inputs):
    name = next(iter(inputs))
    out, again = seen[name]["out"], seen[name]["again"]
    if form_difference(again, out):
        return Failure(form_difference(again, out), name)
    # The very same call on the very same machine: only a reduction's order
    # may differ between runs.
    difference = value_difference(again, out, 1e-9)
    return difference and Failure(difference, name)


def values(
    name,
    *cases,
    says,
    points=0,
    tol=1e-10,
    floor=1.0,
    because="",
    gate=False,
    part="out",
    needs=(),
):
    """What the named cases return (or their gradients) is what is expected.

    tol: allowed error as a multiple of max(floor, |expected|); the default
        holds in float64 for any order of operations
    part: "out", or "grads"
    """
    judge = functools.partial(_values, cases, part, tol, floor)
    return Property(name, judge, says, points, because, gate, needs, cases)


def _values(cases, part, tol, floor, seen, want, inputs):
    for name in cases:
        difference = case_difference(seen[name], want[name], part, tol, floor)
        if difference:
            return Failure(difference, name)
    return None


def case_difference(seen, want, part="out", tol=1e-10, floor=1.0):
    """How one case's observation differs from the expected one, or None."""
    if isinstance(seen["out"], Raised) and not isinstance(want["out"], Raised):
        return trouble(seen["out"])
    if isinstance(seen.get(part), Raised):
        return f"the gradient raises {describe(seen[part])}"
    return form_difference(seen.get(part), want[part]) or value_difference(
        seen[part], want[part], tol, floor
    )


def refuses(name, *cases, says, points=0, mentions=()):
    """The named cases raise the oracle's exception.

    mentions: pieces of text that the message must hold
    """
    judge = functools.partial(_refuses, cases, mentions)
    return Property(name, judge, says, points, cases=cases)


def _refuses(cases, mentions, seen, want, inputs):
    for name in cases:
        out, due = seen[name]["out"], want[name]["out"].kind
        if not isinstance(out, Raised):
            return Failure(
                f"it returns {describe(out)} where a {due} is due", name
            )
        if due not in out.bases:
            return Failure(f"{trouble(out)}, where a {due} is due", name)
        for text in mentions:
            if text not in out.text:
                return Failure(
                    f"the message of its {due} does not name {text}", name
                )
    return None


def law(name, judge, *, says, points=0, because="", gate=False, needs=()):
    """A property with a judgement of its own: judge(seen, want, inputs)."""
    return Property(name, judge, says, points, because, gate, needs)


def keeps_device():
    """The device of the arguments is kept, where the probe `follows` them."""

    def judge(seen, want, inputs):
        if seen["there"] is not True:
            return Failure(
                "with arguments on another device than the CPU, a tensor "
                "lies on the CPU"
            )
        return None

    return law(
        "device",
        judge,
        because="no run on the CPU shows it",
        says=(
            "Create tensors on the device of an argument, for instance with "
            "device=x.device or torch.zeros_like."
        ),
    )


def not_attempted(seen):
    """Whether observations show the untouched stub."""
    if isinstance(seen, Raised):
        return seen.kind == "NotImplementedError"
    outs = (
        [part.get("out") for part in seen.values() if isinstance(part, dict)]
        if isinstance(seen, dict)
        else []
    )
    return bool(outs) and all(
        isinstance(out, Raised) and out.kind == "NotImplementedError"
        for out in outs
    )


def unusable(answer, kind):
    """Why an answer is no function (or class) at all, or None."""
    if answer is None:
        return (
            "it is None: the name was set, but to nothing. Define it "
            "with def (or class) and run that cell again"
        )
    if isinstance(answer, type):
        if kind == "function":
            return f"it is the class {answer.__name__}; a function is due"
        return None
    if not callable(answer):
        return (
            f"it is a {type(answer).__name__}; a {kind} is due. Was the "
            "name used for something else in between?"
        )
    return None


def unusable_observation(text):
    """What stands in for the observation of what is no answer at all.

    text: why it is none, see `unusable`
    """
    return {
        "seen": Raised(UNUSABLE, (), text),
        "forbidden": [],
        "printed": "",
        "device": None,
    }


@functools.cache
def lessons():
    """The lessons' stems, in reading order.

    A module whose name begins with an underscore is a lesson that is still
    being written.
    """
    return tuple(
        sorted(
            path.stem
            for path in CHECKS.glob("*.py")
            if not path.stem.startswith("_")
        )
    )


@functools.cache
def exercises(lesson):
    """A lesson's exercises by name, in reading order."""
    module = importlib.import_module(f"autograder.checks.{lesson}")
    return {
        value.name: value
        for value in vars(module).values()
        if isinstance(value, Exercise)
    }


@functools.cache
def find(name):
    """(lesson, exercise) of a name, or None."""
    for lesson in lessons():
        if name in exercises(lesson):
            return lesson, exercises(lesson)[name]
    return None
