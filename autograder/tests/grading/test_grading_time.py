"""How a notebook's time is shared, told by a clock that only tests turn."""

import types

import pytest

from autograder.grading import runner
from autograder.grading.repair import Placed
from autograder.grading.runner import LOOP, _Run
from autograder.grading.sandbox import Limits
from autograder.grading.wire import LateError, WireError
from autograder.observations import pack

LIMITS = Limits()
FOREVER = 10**6  # seconds


class Machine:
    """A warm process in which everything takes the seconds that a test says.

    A cell is what it takes, as text; "16 dies" ends Python after that, and
    "16 deaf" does not end when it is told to.

    answers: {exercise: seconds, "changes" or "needs SOURCE": a cell}
    """

    limits = LIMITS

    def __init__(self, monkeypatch, answers):
        self.now = 0.0
        self.answers = answers
        self.sessions = []  # what has been run in each, to its end
        self.ran = []  # (source, seconds that it had)
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(runner, "time", clock)

    def session(self):
        complete = []
        self.sessions.append(complete)

        def ask(body, arrays=(), *, seconds):
            if body["do"] == "run":
                return self._run(body, complete, seconds)
            return self._probe(body, complete)

        return types.SimpleNamespace(
            ask=ask, orphaned=False, close=lambda: None
        )

    def _run(self, body, complete, patience):
        source, had = body["source"], body["seconds"]
        needs = float(source.split()[0])
        self.ran.append((source, had))
        if needs > had and "deaf" in source:
            self.now += patience
            raise LateError
        self.now += min(needs, had)
        if needs > had:
            error = {"kind": "CellTimeout", "text": "", "late": True}
            return {"error": error}, ()
        if "dies" in source:
            raise WireError
        complete.append(source)
        return {"error": None}, ()

    def _probe(self, body, complete):
        does, had = self.answers[body["name"]], body["seconds"]
        if isinstance(does, str) and does.startswith("needs"):
            if does.removeprefix("needs ") not in complete:
                return {"missing": True}, ()
        needs = does if isinstance(does, (int, float)) else 0.01
        if body["alone"]:
            had = min(had, body["cpu"])
        self.now += min(needs, had)
        if needs > had:
            return {"died": 9} if body["alone"] else {"late": True}, ()
        text, arrays = pack(None)
        changed = does == "changes" and not body["alone"]
        return {"seen": text, "forbidden": [], "changed": changed}, arrays

    def grade(self, *cells):
        """Run cells: (role, source), or the name of an exercise to check."""
        placed = [
            Placed("code", "check", "", f"check-{cell}")
            if isinstance(cell, str)
            else Placed("code", *cell)
            for cell in cells
        ]
        names = [cell for cell in cells if isinstance(cell, str)]
        deadline = self.now + self.limits.notebook
        return _Run(self, placed, names, None, deadline).trace()


def own(*sources):
    return [("own", source) for source in sources]


def right_ones(made):
    return {name for name, answer in made.answers.items() if "seen" in answer}


def few(count):
    return [f"e{number}" for number in range(count)]


@pytest.mark.parametrize("endless", ["16", f"{FOREVER}", f"{FOREVER} deaf"])
def test_long_cells_of_a_learner_cost_no_exercise(monkeypatch, endless):
    names = few(12)
    machine = Machine(monkeypatch, dict.fromkeys(names, 0.1))
    made = machine.grade(
        *own(*[f"{endless} #{number}" for number in range(13)]), *names
    )
    assert right_ones(made) == set(names)


def test_long_cells_between_exercises_cost_none_of_them(monkeypatch):
    names = few(12)
    machine = Machine(monkeypatch, dict.fromkeys(names, 0.1))
    cells = [
        part
        for number, name in enumerate(names)
        for part in (*own(f"16 #{number}"), name)
    ]
    assert right_ones(machine.grade(*cells)) == set(names)


def test_what_is_defined_quickly_is_there_after_long_cells(monkeypatch):
    machine = Machine(monkeypatch, {"e": "needs 0.1 helper"})
    made = machine.grade(
        *own(*[f"16 #{number}" for number in range(13)], "0.1 helper"), "e"
    )
    assert right_ones(made) == {"e"}


@pytest.mark.parametrize("slow", [0, 0.5, 12, FOREVER])
@pytest.mark.parametrize("cells", [1, 2])
def test_answers_that_loop_cost_no_other_exercise(monkeypatch, slow, cells):
    names = few(12)
    answers = {name: FOREVER if i < 9 else 0.1 for i, name in enumerate(names)}
    machine = Machine(monkeypatch, answers)
    made = machine.grade(
        *own(*[f"{slow} #{number}" for number in range(cells)]), *names
    )
    assert right_ones(made) == set(names[9:])
    for name in names[:9]:
        assert "loop" in made.answers[name]["trouble"]


def test_answers_that_sleep_cost_no_other_exercise(monkeypatch):
    # Sleeping takes no processor time, so only the clock ends it.
    monkeypatch.setattr(Machine, "limits", Limits(cpu=FOREVER))
    names = few(12)
    answers = {name: FOREVER if i < 9 else 0.1 for i, name in enumerate(names)}
    machine = Machine(monkeypatch, answers)
    made = machine.grade(*names)
    assert right_ones(made) == set(names[9:])
    assert machine.now <= LIMITS.notebook


def test_a_loop_is_told_with_the_seconds_that_it_had(monkeypatch):
    machine = Machine(monkeypatch, {"e": FOREVER})
    made = machine.grade("e")
    assert made.answers["e"]["trouble"] == LOOP.format(LIMITS.cpu)


def test_a_loop_does_not_run_a_slow_cell_again(monkeypatch):
    machine = Machine(monkeypatch, {"a": FOREVER, "b": "changes", "c": 0.1})
    machine.grade(*own("12"), "a", "b", "c")
    assert [source for source, _ in machine.ran] == ["12"]


def test_a_slow_cell_runs_again_where_a_new_session_needs_it(monkeypatch):
    machine = Machine(monkeypatch, {"e": "needs 12 helper"})
    made = machine.grade(*own("12 helper", "1 dies", "2 dies"), "e")
    assert right_ones(made) == {"e"}
    assert machine.sessions[-1] == ["12 helper"]


def test_a_cell_that_was_stopped_has_only_a_moment_again(monkeypatch):
    machine = Machine(monkeypatch, {"e": 0.1})
    machine.grade(*own("99", "1 dies"), "e")
    first, again = [had for source, had in machine.ran if source == "99"]
    assert first == LIMITS.cell and again < LIMITS.cell / 4


def test_cells_of_answers_leave_time_for_every_exercise(monkeypatch):
    names = few(12)
    machine = Machine(monkeypatch, dict.fromkeys(names, 0.1))
    cells = [
        part
        for number, name in enumerate(names)
        for part in (("answer", f"99 #{number}"), name)
    ]
    assert right_ones(machine.grade(*own("99", "98"), *cells)) == set(names)


@pytest.mark.parametrize("cell", [f"{FOREVER}", f"{FOREVER} deaf", "1 dies"])
def test_a_notebook_ends_when_its_time_is_up(monkeypatch, cell):
    names = few(30)
    machine = Machine(monkeypatch, dict.fromkeys(names, FOREVER))
    cells = [part for name in names for part in (("answer", cell), name)]
    made = machine.grade(*own(*[cell] * 30), *cells)
    assert machine.now <= LIMITS.notebook + runner.GRACE
    assert "used up its time" in made.answers[names[-1]]["trouble"]


def test_it_is_told_which_cells_did_not_run_to_their_end(monkeypatch):
    machine = Machine(monkeypatch, {"e": 0.1})
    long = [f"99 #{number}" for number in range(40)]
    made = machine.grade(
        *own("1 quick", *["99 long"] * 2, *long, "3 dies", "0.1 last"), "e"
    )
    told = " ".join(made.repairs)
    for text in (
        "begin with '99 long' (2 times), '99 #0'",
        "stopped after 15 seconds, the most that a cell may take",
        "added cells may take 60 of a notebook's 180 seconds",
        "not run, because the rest of the time is kept for exercises",
        " more (",
    ):
        assert text in told, told
    assert "1 quick" not in told


def test_a_cell_that_ends_python_is_named(monkeypatch):
    machine = Machine(monkeypatch, {"e": 0.1})
    made = machine.grade(*own("1 quick", "1 dies"), "e")
    (told,) = made.repairs
    assert "'1 dies'" in told and "ended Python" in told


def test_nothing_is_told_of_a_notebook_that_ran(monkeypatch):
    machine = Machine(monkeypatch, {"e": 0.1, "f": FOREVER})
    assert machine.grade(*own("12"), "e", "f").repairs == []
