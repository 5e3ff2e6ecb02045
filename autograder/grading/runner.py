"""One notebook: its cells run in a session, the judgement falls outside.

There are two runs. In the graded run the session is given fresh inputs, and
nothing of it is shown to anybody. Where it leaves something to explain, a
second session that never saw those inputs shows what the cells print and what
the answers do on the inputs that everybody can see.
"""

import collections
import contextlib
import dataclasses
import functools
import signal
import time

from autograder.exercise import find, unusable_observation
from autograder.grading.records import attempted
from autograder.grading.wire import (
    MAX_ERROR,
    MAX_NAME,
    MAX_OUTPUT,
    MAX_PICTURE,
    MAX_SHOWN,
    LateError,
    WireError,
    pack_inputs,
    unpack_observation,
)
from autograder.judging import fresh_standard, judge, visible_standard
from autograder.observations import Array, Raised, Thing
from autograder.probing import MAX_PRINTED
from autograder.report import Finding, Report

GRACE = 3  # seconds that a session may be late before it is ended
TRIES = 4  # times that the warm process may end under a notebook
FIRST_TRY = 2  # seconds that an answer may take without its own process
PATIENCE = 3  # sessions that may stop answering while they try an answer
BUSY = 2  # times a cell's limit, on the clock, where the machine is busy
# How a notebook's time (`Limits.notebook`) is shared, so that no cell and no
# exercise costs another one. Of 180 seconds, cells that a learner has added
# may take 60 in all; after that each has a moment, which is enough to define
# something, until they have had 90. Of the rest, 3 are kept for each exercise
# that is still to come: a right answer takes a hundredth of them.
OWN, OWN_AT_MOST, KEPT = 1 / 3, 1 / 2, 1 / 60  # shares of the notebook's time
MOMENT = 2  # seconds
COSTLY = 1  # seconds after which a session is worth more than a fork
MAX_NAMED = 5  # cells that one repair names
MARGIN = 4  # times the size of what is expected that is still judged
LOOP = (
    "it did not come back within {} seconds: is there a loop that never ends?"
)


@dataclasses.dataclass
class Trace:
    """What one run of a notebook left.

    outputs: {index of a cell: what it put out and how it ended}
    answers: {exercise: what the session answered, see `_Run.probe`}
    repairs: what was mended on the way, as sentences
    """

    outputs: dict = dataclasses.field(default_factory=dict)
    answers: dict = dataclasses.field(default_factory=dict)
    repairs: list = dataclasses.field(default_factory=list)


def grade(warm, cells, seed):
    """Run and judge a rebuilt notebook.

    returns: (reports by exercise in order, outputs by index of cell, repairs)
    raises RuntimeError: if the warm process ends under it again and again
    """
    names = [cell.exercise for cell in cells if cell.role == "check"]
    deadline = time.monotonic() + warm.limits.notebook
    graded = _Run(warm, cells, names, seed, deadline).trace()
    reports = {
        name: _report(name, graded.answers[name], seed) for name in names
    }
    # There is nothing to explain about an untouched stub, or about what we
    # ourselves say of an answer that did not come back.
    lost = [
        name
        for name in names
        if not reports[name].passed
        and attempted(reports[name])
        and "trouble" not in graded.answers[name]
    ]
    failed = any(output["error"] for output in graded.outputs.values())
    if not lost and not failed:
        return reports, {}, graded.repairs
    deadline = max(deadline, time.monotonic() + warm.limits.notebook / 4)
    shown = _Run(warm, cells, lost, None, deadline).trace()
    for name in lost:
        example = _report(name, shown.answers[name], None)
        reports[name] = _report(name, graded.answers[name], seed, example)
    return reports, shown.outputs, graded.repairs


class _OrphanedError(Exception):
    """The warm process ended; another notebook may have caused it."""


class _SpentError(Exception):
    """Nothing more can be run; the text says why."""


class _Run:
    """One run of all cells, in as many sessions as that takes.

    seed: of the fresh inputs; None for the visible ones
    """

    def __init__(self, warm, cells, names, seed, deadline):
        self.warm, self.cells, self.names = warm, cells, set(names)
        self.seed, self.deadline = seed, deadline
        self._begin()

    def _begin(self):
        self.made = Trace()
        self.fatal = set()  # cells that end their session
        self.troubles = {}  # index of a cell: why it did not run to its end
        self.ran = set()  # cells that have been run once
        self.own = 0.0  # seconds that a learner's own cells took for that
        self.silent = 0  # sessions that stopped answering
        self.session = None
        self.cost = 0.0  # seconds that the session's cells took

    def trace(self):
        for _ in range(TRIES):
            try:
                self._run_all()
                break
            except _OrphanedError:
                self._begin()
            finally:
                self._end()
        else:
            # Nobody is to blame, so there is nothing to record.
            raise RuntimeError(
                "the process that runs notebooks ended again and again: "
                "grade this notebook alone"
            )
        self.made.repairs += _told(self.cells, self.troubles)
        return self.made

    def _lost(self, error):
        """A session is gone; find out whether this notebook is to blame."""
        session, self.session = self.session, None
        orphaned = session.orphaned
        session.close()
        if orphaned:
            raise _OrphanedError from error

    def _run_all(self):
        for index, cell in enumerate(self.cells):
            if cell.role == "check":
                if cell.exercise in self.names:
                    self.made.answers[cell.exercise] = self.probe(
                        index, cell.exercise
                    )
            elif self._runs(index):
                self.made.outputs[index] = self._cell(index)
        for name, answer in self.made.answers.items():
            if _needs_more(answer):
                again = self.probe(len(self.cells), name)
                if not _needs_more(again):
                    self.made.answers[name] = again
                    self.made.repairs.append(
                        f"{name} needs something that is defined below its "
                        "check cell; it was judged after the last cell."
                    )

    def _cell(self, index):
        """What one cell puts out, run in a session that is ready for it."""
        try:
            self._ready(index)
            return self._ask_cell(index)
        except _SpentError as error:
            self.troubles.setdefault(index, f"not run, because {error}")
            return _output("late", f"not run: {error}")

    def _ready(self, index):
        """Make a session in which all cells before this one have run.

        raises _SpentError: if there is no time or no patience left for it
        """
        while self.session is None:
            self._left()  # else no session is worth starting
            self.session, self.cost = self.warm.session(), 0.0
            for before in range(min(index, len(self.cells))):
                if not self._runs(before):
                    continue
                try:
                    output = self._ask_cell(before)
                except _SpentError as error:
                    self.troubles.setdefault(
                        before, f"not run once more, because {error}"
                    )
                    continue
                if self.session is None:  # it ended Python only this time
                    self.made.outputs[before] = output
                    break

    def _runs(self, index):
        """Whether a cell is run, and again in each new session."""
        cell = self.cells[index]
        return (
            cell.role != "check"
            and cell.kind == "code"
            and bool(cell.source.strip())
            and index not in self.fatal
        )

    def _ask_cell(self, index):
        """What a cell puts out; one that ends its session is to blame.

        raises _SpentError: if there is no time for it
        """
        time_for_it = self._time_for(index)
        seconds = min(self.warm.limits.cell, time_for_it)
        most = min(BUSY * seconds, time_for_it)
        began = time.monotonic()
        try:
            body, _ = self.session.ask(
                {
                    "do": "run",
                    "source": self.cells[index].source,
                    "seconds": seconds,
                    "most": most,
                },
                seconds=most + GRACE,
            )
            output = _checked_output(body)
            if output["error"] and output["error"]["kind"] == "late":
                self._stopped(index, seconds)
            return output
        except WireError as error:
            self._lost(error)
            self.fatal.add(index)
            if isinstance(error, LateError):
                self._stopped(index, seconds)
                return _output("late", f"stopped after {seconds:.3g} seconds")
            self.troubles[index] = "left out, because it ended Python"
            return _output("dead", "this cell ended Python")
        finally:
            self._count(index, time.monotonic() - began)

    def _count(self, index, seconds):
        self.cost += seconds
        if self.cells[index].role == "own" and index not in self.ran:
            self.own += seconds
        self.ran.add(index)

    def _stopped(self, index, seconds):
        if seconds == self.warm.limits.cell:
            why = "the most that a cell may take"
        elif self.cells[index].role == "own":
            whole = self.warm.limits.notebook
            why = (
                f"because added cells may take {OWN * whole:g} of a "
                f"notebook's {whole:g} seconds"
            )
        else:
            why = "because the notebook's time was nearly used up"
        self.troubles.setdefault(
            index, f"stopped after {seconds:.3g} seconds, {why}"
        )

    def _time_for(self, index):
        """Seconds that a cell may take.

        raises _SpentError: if there are none
        """
        left = self._left()
        free = left - self._kept(self._to_come())
        if index in self.troubles:
            # It was stopped, and what it defines stands mostly at its top.
            free = min(free, MOMENT)
        if self.cells[index].role != "own":
            return min(left, max(free, MOMENT))
        if index not in self.ran:
            free = min(free, self._own_left())
        if free <= 0:
            raise _SpentError("the rest of the time is kept for exercises")
        return free

    def _own_left(self):
        """Seconds that one more of a learner's own cells may take."""
        whole = self.warm.limits.notebook
        least = MOMENT if self.own < OWN_AT_MOST * whole else 0
        return max(OWN * whole - self.own, least)

    def _to_come(self):
        """Exercises that are still to be tried."""
        return self.names - self.made.answers.keys()

    def _kept(self, names):
        """Seconds that are kept for exercises."""
        return KEPT * self.warm.limits.notebook * len(names)

    def _left(self):
        """Seconds that are left to the notebook.

        raises _SpentError: if there are none, or there is no patience left
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _SpentError("the notebook had used up its time")
        if self.silent >= PATIENCE:
            raise _SpentError(
                "the cells before it leave a Python that does not answer"
            )
        return left

    def probe(self, index, name):
        """What an answer does: {"seen", …}, {"trouble": text}.

        A trouble is ours to tell; what a session says is only observed.
        """
        for alone in (False, True):
            try:
                self._ready(index)
                # What it does in a process of its own leaves the session as
                # it was, which need not be made anew then.
                alone = alone or self.cost > COSTLY
                seconds = self._time_to_try(name, alone)
                answer, arrays = self._ask_probe(name, alone, seconds)
            except _SpentError as error:
                return {"trouble": f"it was not tried: {error}"}
            except WireError as error:
                # A session ends a probe in a process of its own if it is
                # late, so it is broken itself, and another one would be after
                # the same cells.
                self.silent += alone
                self._lost(error)
                trouble = f"nothing usable came back from it ({error})"
                if alone:
                    break
                continue
            if answer.get("late") or answer.get("changed"):
                self._end()  # the next answer finds a fresh session
            if not answer.get("late") or alone:
                return self._read(name, answer, arrays, seconds)
        return {"trouble": trouble}

    def _time_to_try(self, name, alone):
        """Seconds that an answer may take.

        raises _SpentError: if there are none
        """
        left = self._left()
        if not alone:
            return min(FIRST_TRY, self.warm.limits.probe, left)
        others = self._kept(self._to_come() - {name})
        free = max(left - others, min(left, self._kept({name})))
        return min(self.warm.limits.probe, free)

    def _ask_probe(self, name, alone, seconds):
        body = {
            "do": "probe",
            "name": name,
            "alone": alone,
            "seconds": seconds,
            "cpu": self.warm.limits.cpu,
            "visible": self.seed is None,
        }
        arrays = ()
        if self.seed is not None:
            body["inputs"], arrays = packed_inputs(name, self.seed)
        answer, arrays = self.session.ask(
            body, arrays, seconds=seconds + GRACE
        )
        if not isinstance(answer, dict):
            raise WireError("no answer")
        return answer, arrays

    def _read(self, name, answer, arrays, seconds):
        if answer.get("missing"):
            return {
                "trouble": f"{name} is not defined when its check cell "
                "is reached",
                "missing": True,
            }
        if "died" in answer:
            cpu = min(self.warm.limits.cpu, seconds)
            return {"trouble": _cause(answer["died"], cpu)}
        try:
            return _observation(answer, arrays)
        except WireError as error:
            return {"trouble": f"nothing usable came back from it ({error})"}

    def _end(self):
        if self.session is not None:
            self.session.close()
            self.session = None


def _told(cells, troubles):
    """Sentences on the cells that did not run to their end, one by reason.

    troubles: {index of a cell: why}
    """
    alike = collections.defaultdict(collections.Counter)
    for index, why in sorted(troubles.items()):
        alike[why][_beginning(cells[index].source)] += 1
    for why, lines in alike.items():
        named = [
            line if count == 1 else f"{line} ({count} times)"
            for line, count in lines.items()
        ]
        if len(named) > MAX_NAMED:
            named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more"]
        which = (
            "cell that begins" if lines.total() == 1 else "cells that begin"
        )
        yield (
            f"Not all was run of the {which} with {', '.join(named)} "
            f"({why}): define what answers need in a cell that is quick."
        )


def _beginning(source):
    line = source.strip().partition("\n")[0]
    return repr(line if len(line) < 50 else line[:47] + "...")


def _cause(number, cpu):
    if number in (signal.SIGKILL, signal.SIGXCPU, signal.SIGALRM):
        return LOOP.format(f"{cpu:.3g}")
    with contextlib.suppress(ValueError, TypeError):
        if number:
            return f"it crashed Python ({signal.Signals(number).name})"
    return "it ended Python instead of returning"


def _observation(answer, arrays):
    printed, device = answer.get("printed"), answer.get("device")
    forbidden = answer.get("forbidden")
    if not isinstance(forbidden, list) or not all(
        isinstance(name, str) for name in forbidden
    ):
        raise WireError("no observation")
    return {
        "seen": unpack_observation(answer.get("seen"), arrays),
        "forbidden": [name[:MAX_NAME] for name in forbidden[:20]],
        "printed": _start(printed, MAX_PRINTED),
        "device": _start(device, MAX_NAME) or None,
    }


def _output(kind, text):
    return {
        "text": "",
        "shown": [],
        "error": {"kind": kind, "text": text, "module": ""},
    }


def _checked_output(body):
    """A cell's output as plain data of bounded size, whoever sent it."""
    if not isinstance(body, dict):
        raise WireError("no output")
    shown, error = body.get("shown"), body.get("error")
    return {
        "text": _start(body.get("text"), MAX_OUTPUT),
        "shown": [
            _checked_data(each)
            for each in (shown if isinstance(shown, list) else [])[:MAX_SHOWN]
        ],
        "error": _checked_error(error) if isinstance(error, dict) else None,
    }


def _checked_data(each):
    data = each.get("data") if isinstance(each, dict) else None
    if not isinstance(data, dict):
        return {}
    kept = {
        "text/plain": _start(data.get("text/plain"), MAX_OUTPUT),
        "image/png": _start(data.get("image/png"), MAX_PICTURE),
    }
    return {kind: text for kind, text in kept.items() if text}


def _checked_error(error):
    late = error.get("late") is True
    return {
        "kind": "late" if late else _start(error.get("kind"), MAX_NAME),
        "text": _start(error.get("text"), MAX_ERROR),
        "module": _start(error.get("module"), MAX_NAME),
    }


def _start(text, most):
    return text[:most] if isinstance(text, str) else ""


def _needs_more(answer):
    """Whether an answer stops at a name that may be defined further down."""
    if answer.get("missing"):
        return True
    seen = answer.get("seen")
    if isinstance(seen, Raised):
        return seen.kind == "NameError"
    return isinstance(seen, dict) and any(
        isinstance(part, dict)
        and isinstance(part.get("out"), Raised)
        and part["out"].kind == "NameError"
        for part in seen.values()
    )


@functools.lru_cache(maxsize=256)
def packed_inputs(name, seed):
    """An exercise's fresh inputs, ready to be sent."""
    return pack_inputs(_standard(name, seed).inputs)


def prepare(lesson, seed):
    """Run the oracles of a lesson, so that judging runs no code at all.

    raises FileNotFoundError: if the lesson's answers are not there
    raises MissingGoldenError: if `build` has not been run
    """
    for name in lesson.checks:
        _standard(name, seed)
        _standard(name, None).mistakes()
        packed_inputs(name, seed)


def _standard(name, seed):
    stem, exercise = find(name)
    if seed is None:
        return visible_standard(stem, exercise)
    # Mistakes are recognised on the visible inputs, where what they lead to
    # is stored: running them all anew takes longer than grading a class.
    return dataclasses.replace(
        fresh_standard(stem, exercise, seed), mistakes=dict
    )


def _report(name, answer, seed, example=None):
    """The verdict on what a session answered."""
    _, exercise = find(name)
    standard = _standard(name, seed)
    if "trouble" in answer:
        # It is our own sentence, so it may be shown as it is.
        return judge(
            exercise,
            unusable_observation(answer["trouble"]),
            dataclasses.replace(standard, mistakes=dict),
        )
    if seed is not None and example is None:
        example = Report(name, 0.0, exercise.points)
    observation = {**answer, "seen": _bounded(answer["seen"], standard.want)}
    try:
        return judge(exercise, observation, standard, example=example)
    except Exception as error:
        # What a hostile process sends may be worse than a judgement expects.
        return Report(
            name,
            0.0,
            exercise.points,
            findings=(
                Finding(
                    "judged",
                    False,
                    "What came back has not the form that "
                    f"is due ({type(error).__name__}).",
                ),
            ),
        )


def _bounded(seen, want):
    """Observations without arrays far larger than any that is due.

    A judgement may broadcast or multiply what it is given.
    """
    most = MARGIN * max([1024, *_sizes(want)])

    def bounded(node):
        if isinstance(node, Array) and node.data.size > most:
            return Thing(
                "Tensor" if node.library == "torch" else "ndarray",
                f"{node.dtype} of shape {node.data.shape}",
            )
        if isinstance(node, dict):
            return {key: bounded(part) for key, part in node.items()}
        if isinstance(node, list):
            return [bounded(part) for part in node]
        return node

    return bounded(seen)


def _sizes(node):
    if isinstance(node, Array):
        yield node.data.size
    elif isinstance(node, dict):
        for part in node.values():
            yield from _sizes(part)
    elif isinstance(node, list):
        for part in node:
            yield from _sizes(part)
