"""Stored results: the same bytes, small changes forgiven, real ones seen."""

import dataclasses
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from autograder import goldens
from autograder.diagnosis import Mistake
from autograder.exercise import exercises
from autograder.goldens import (
    MissingGoldenError,
    golden_bytes,
    golden_entries,
    golden_is_current,
    read_golden,
)
from autograder.judging import live_standard
from autograder.observations import (
    Array,
    Raised,
    form_difference,
    value_difference,
)

LESSON = "ch1_self_attention"
NAMES = ("padding_mask", "softmax_jacobian")


@pytest.fixture(scope="module")
def entries():
    """Two exercises' entries, made anew."""
    made = {}
    for name in NAMES:
        exercise = exercises(LESSON)[name]
        standard = live_standard(LESSON, exercise, exercise.visible_inputs())
        made |= golden_entries(exercise, standard.want, standard.mistakes())
    return made


@pytest.fixture
def folder(monkeypatch, tmp_path, entries):
    """A folder of goldens with the two exercises."""
    (tmp_path / f"{LESSON}.npz").write_bytes(golden_bytes(entries))
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    two = {name: exercises(LESSON)[name] for name in NAMES}
    monkeypatch.setattr(goldens, "exercises", lambda lesson: two)
    goldens._stored.cache_clear()
    yield tmp_path
    goldens._stored.cache_clear()


def test_the_same_entries_give_the_same_bytes(entries):
    again = {name: np.array(array) for name, array in entries.items()}
    assert golden_bytes(again) == golden_bytes(entries)


def test_a_file_needs_no_pickle(folder):
    with np.load(folder / f"{LESSON}.npz", allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "biufc" for name in file.files)


def test_what_is_stored_is_read_back(folder):
    exercise = exercises(LESSON)["softmax_jacobian"]
    standard = live_standard(LESSON, exercise, exercise.visible_inputs())
    want, mistakes = read_golden(LESSON, "softmax_jacobian")
    assert form_difference(want, standard.want) is None
    assert value_difference(want, standard.want, 1e-12) is None
    known = standard.mistakes()
    assert list(mistakes) == list(known)
    for id, mistake in mistakes.items():
        assert mistake.hint == known[id].hint
        assert mistake.pattern == known[id].pattern


def test_a_fresh_build_is_current(folder, entries):
    assert golden_is_current(LESSON, entries)


def changed(entries, name, change):
    """Entries of which one floating array is another."""
    made = dict(entries)
    made[name] = change(np.array(made[name]))
    return made


DATA = "softmax_jacobian.data"


def scaled(entries, factor):
    """Entries of which all of one exercise's floats are multiplied."""
    array = np.frombuffer(entries[DATA].tobytes(), float) * factor
    return {**entries, DATA: np.frombuffer(array.tobytes(), np.uint8)}


@pytest.mark.parametrize(
    "factor, current",
    [(1 + 1e-13, True), (1 - 1e-12, True), (1 + 1e-6, False), (0.5, False)],
)
def test_rounding_is_forgiven_and_a_real_change_is_not(
    folder, entries, factor, current
):
    assert golden_is_current(LESSON, scaled(entries, factor)) is current


@pytest.mark.parametrize("old, new", [("bool", "uint8"), ("torch", "numpy")])
def test_another_dtype_or_library_is_noticed(folder, entries, old, new):
    text = entries["padding_mask"].tobytes().decode()
    assert old in text
    other = np.frombuffer(text.replace(old, new).encode(), np.uint8)
    made = {**entries, "padding_mask": other}
    assert not golden_is_current(LESSON, made)


def test_another_hint_is_noticed(folder, entries):
    name = "padding_mask.mistakes"
    known = json.loads(entries[name].tobytes())
    next(iter(known.values()))[0] += "!"
    made = dict(entries)
    made[name] = np.frombuffer(json.dumps(known).encode(), np.uint8)
    assert not golden_is_current(LESSON, made)


def test_another_behaviour_of_a_mistake_is_noticed(folder, entries):
    name = "padding_mask.sketches"
    moved = changed(entries, name, lambda rows: rows + 1.0)
    assert not golden_is_current(LESSON, moved)
    noisy = changed(entries, name, lambda rows: rows * (1 + 1e-9))
    assert golden_is_current(LESSON, noisy)


def test_one_exercise_more_or_less_is_noticed(folder, entries):
    fewer = {
        name: array
        for name, array in entries.items()
        if not name.startswith("padding_mask")
    }
    assert not golden_is_current(LESSON, fewer)


def test_a_missing_golden_names_the_command(folder):
    with pytest.raises(MissingGoldenError, match="make exercises"):
        read_golden(LESSON, "softmax")
    with pytest.raises(MissingGoldenError, match="ch9_none.npz"):
        read_golden("ch9_none", "softmax")


def toy(name, number):
    """Stored entries of a made-up exercise with one mistake."""
    exercise = dataclasses.replace(
        exercises(LESSON)["padding_mask"], name=name
    )
    want = {
        "three lengths": {"out": Array("torch", "float64", np.full(2, number))}
    }
    row = np.arange(32.0) * number
    mistake = Mistake("h", row, row, ("real positions",))
    return exercise, golden_entries(exercise, want, {"m": mistake})


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut off", b"text"])
def test_an_unreadable_file_is_written_anew(monkeypatch, tmp_path, data):
    """What makes it must not stop at it."""
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    goldens.golden_path("cut").write_bytes(data)
    assert goldens._stored.__wrapped__("cut") == {}


def test_names_that_begin_alike_do_not_share_arrays(monkeypatch):
    made, known = {}, {}
    for number, name in enumerate(("toy", "toy_two")):
        known[name], entries = toy(name, float(number))
        made |= entries
    monkeypatch.setattr(goldens, "_stored", lambda lesson: made)
    monkeypatch.setattr(goldens, "exercises", lambda lesson: known)
    for number, name in enumerate(("toy", "toy_two")):
        want, mistakes = read_golden("any", name)
        out = want["three lengths"]["out"]
        assert out.data.tolist() == [number, number]
        # Stored as a difference in float32.
        error = mistakes["m"].sketch - np.arange(32.0) * number
        assert np.abs(error).max() < 1e-4


ODD = {
    "a case": {
        "out": [
            Array("numpy", "float64", np.zeros((0, 3))),
            Array("torch", "bool", np.array(True)),
            Array("numpy", "complex128", np.array([1j])),
            Raised("KeyError", ("KeyError",), "é"),
            None,
            float("nan"),
        ]
    }
}


@pytest.mark.parametrize("want", [ODD, {"a case": {"out": 1.5}}])
def test_any_observation_can_be_stored(monkeypatch, tmp_path, want):
    exercise = exercises(LESSON)["padding_mask"]
    made = golden_entries(exercise, want, {})
    (tmp_path / "any.npz").write_bytes(golden_bytes(made))
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    monkeypatch.setattr(
        goldens, "exercises", lambda lesson: {"padding_mask": exercise}
    )
    goldens._stored.cache_clear()
    again, mistakes = read_golden("any", "padding_mask")
    goldens._stored.cache_clear()
    assert mistakes == {}
    assert form_difference(again, want) is None
    assert value_difference(again, want, 0.0) is None


def test_another_process_writes_the_same_bytes(entries):
    """No hash seed, clock or address enters a file."""
    script = (
        "import hashlib\n"
        "from autograder.exercise import exercises\n"
        "from autograder.goldens import golden_bytes, golden_entries\n"
        "from autograder.judging import live_standard\n"
        "made = {}\n"
        f"for name in {NAMES!r}:\n"
        f"    exercise = exercises({LESSON!r})[name]\n"
        "    one = live_standard("
        f"{LESSON!r}, exercise, exercise.visible_inputs())\n"
        "    made |= golden_entries(exercise, one.want, one.mistakes())\n"
        "print(hashlib.sha256(golden_bytes(made)).hexdigest())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    here = hashlib.sha256(golden_bytes(entries)).hexdigest()
    assert result.stdout.strip() == here
