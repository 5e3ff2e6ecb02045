"""What visible inputs lead to, stored so that learners need no answers.

One npz file a lesson, without pickle, written by `build`. For an exercise
NAME: `NAME` is the skeleton of the oracle's observations and `NAME.0`,
`NAME.1`, … their arrays; `NAME.mistakes` holds the hints and patterns of the
known mistakes and `NAME.sketches` their sketches, row by row.
"""

import functools
import io
import json
import pathlib
import zipfile

import numpy as np

from autograder.diagnosis import NEARER, SIZE, Mistake, sketch
from autograder.exercise import exercises
from autograder.observations import (
    form_difference,
    pack,
    unpack,
    value_difference,
)

FOLDER = pathlib.Path(__file__).parent / "goldens"


class MissingGoldenError(RuntimeError):
    """A stored result is not there; its text says what makes it."""


def golden_path(lesson):
    return FOLDER / f"{lesson}.npz"


@functools.cache
def _stored(lesson):
    path = golden_path(lesson)
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_golden(lesson, name):
    """(the oracle's observations, mistakes by id) on the visible inputs.

    raises MissingGoldenError: if `build` has not written them
    """
    stored = _stored(lesson)
    if name not in stored:
        raise MissingGoldenError(
            f"{name} has no stored result in autograder/goldens/"
            f"{lesson}.npz: run `make exercises` to write it."
        )
    known = json.loads(_text(stored[f"{name}.mistakes"]))
    sketches = stored[f"{name}.sketches"]
    mistakes = {
        id: Mistake(hint, row, tuple(pattern))
        for (id, (hint, pattern)), row in zip(
            known.items(), sketches, strict=True
        )
    }
    return _tree(name, stored), mistakes


def golden_entries(name, want, mistakes):
    """The entries of one exercise in its lesson's file."""
    skeleton, arrays = pack(want)
    known = {
        id: [mistake.hint, mistake.pattern] for id, mistake in mistakes.items()
    }
    rows = [mistake.sketch for mistake in mistakes.values()]
    return {
        name: _bytes(skeleton),
        **{f"{name}.{index}": array for index, array in enumerate(arrays)},
        f"{name}.mistakes": _bytes(json.dumps(known)),
        f"{name}.sketches": np.array(rows).reshape(-1, SIZE),
    }


def golden_bytes(entries):
    """A lesson's file; the same entries give the same bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in entries.items():
            data = io.BytesIO()
            np.save(data, array, allow_pickle=False)
            # ZipInfo's default date is constant, unlike today's.
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"),
                data.getvalue(),
                zipfile.ZIP_DEFLATED,
            )
    return file.getvalue()


def golden_is_current(lesson, entries):
    """Whether a lesson's file holds these entries, up to rounding.

    The last bits of a matrix product differ between processors, so they do
    not make a file stale.
    """
    stored = _stored(lesson)
    if set(stored) != set(entries):
        return False
    return all(
        _same_entries(exercise, stored, entries)
        for exercise in exercises(lesson).values()
    )


def _same_entries(exercise, stored, entries):
    name = exercise.name
    hints = f"{name}.mistakes"
    if not np.array_equal(stored[hints], entries[hints]):
        return False
    want, new = _tree(name, stored), _tree(name, entries)
    # Rounding of a float64 computation, magnified by what it goes through.
    if form_difference(want, new) or value_difference(want, new, 1e-9):
        return False
    # A mistake may draw random numbers. It stays the same as long as the
    # stored sketch recognises it.
    far = np.linalg.norm(
        entries[f"{name}.sketches"] - sketch(exercise, want), axis=1
    )
    moved = np.linalg.norm(
        entries[f"{name}.sketches"] - stored[f"{name}.sketches"], axis=1
    )
    return bool((moved < NEARER * far).all())


def _tree(name, source):
    count = sum(key.startswith(f"{name}.") for key in source) - 2
    arrays = [source[f"{name}.{index}"] for index in range(count)]
    return unpack(_text(source[name]), arrays)


def _bytes(text):
    return np.frombuffer(text.encode(), np.uint8)


def _text(array):
    return array.tobytes().decode()
