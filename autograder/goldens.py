"""What visible inputs lead to, stored so that learners need no answers.

One npz file a lesson, without pickle, written by `build`. For an exercise
NAME: `NAME` is the skeleton of the oracle's observations with the dtypes and
shapes of their arrays, `NAME.data` the arrays' bytes, one after the other;
`NAME.mistakes` holds the hints and patterns of the known mistakes and
`NAME.sketches` how far their two sketches are from the oracle's.
"""

import functools
import io
import json
import math
import pathlib
import zipfile

import numpy as np

from autograder.diagnosis import NEARER, SIZE, Centres, Mistake
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
    try:
        stored = io.BytesIO(path.read_bytes())
        with np.load(stored, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return {}  # cut off, or edited by hand: to be written anew


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
    want = _tree(name, stored)
    known = json.loads(_text(stored[f"{name}.mistakes"]))
    centres = Centres(exercises(lesson)[name], want)
    mistakes = {}
    for (id, (hint, pattern)), rows in zip(
        known.items(), stored[f"{name}.sketches"], strict=True
    ):
        whole, first = rows + _both(centres, pattern)
        mistakes[id] = Mistake(hint, whole, first, tuple(pattern))
    return want, mistakes


def _both(centres, pattern):
    return np.stack([centres.whole, centres.first(pattern)])


def golden_entries(exercise, want, mistakes):
    """The entries of one exercise in its lesson's file."""
    skeleton, arrays = pack(want)
    forms = [[array.dtype.str, array.shape] for array in arrays]
    known = {
        id: [mistake.hint, mistake.pattern] for id, mistake in mistakes.items()
    }
    # Differences need no more digits than float32 has, sketches would.
    centres = Centres(exercise, want)
    rows = [
        np.stack([each.sketch, each.first]) - _both(centres, each.pattern)
        for each in mistakes.values()
    ]
    name = exercise.name
    return {
        name: _bytes(json.dumps([skeleton, forms])),
        f"{name}.data": np.frombuffer(
            b"".join(array.tobytes() for array in arrays), np.uint8
        ),
        f"{name}.mistakes": _bytes(json.dumps(known)),
        f"{name}.sketches": np.array(rows, np.float32).reshape(-1, 2, SIZE),
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
    old, now = (each[f"{name}.sketches"] for each in (stored, entries))
    if old.shape != now.shape:
        return False
    moved = np.linalg.norm(now[:, 0] - old[:, 0], axis=1)
    return bool((moved <= NEARER * np.linalg.norm(now[:, 0], axis=1)).all())


def _tree(name, source):
    skeleton, forms = json.loads(_text(source[name]))
    data, arrays = source[f"{name}.data"].tobytes(), []
    for dtype, shape in forms:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays.append(np.frombuffer(data[:size], dtype).reshape(shape))
        data = data[size:]
    return unpack(skeleton, arrays)


def _bytes(text):
    return np.frombuffer(text.encode(), np.uint8)


def _text(array):
    return array.tobytes().decode()
