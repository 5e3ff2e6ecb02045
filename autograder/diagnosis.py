"""Recognising a mistake by what it makes an answer return.

Each known mistake leaves a sketch: 32 numbers that stand for all that it
returns on the same inputs. An answer far nearer to a mistake's sketch than to
the expected one makes that mistake.
"""

import dataclasses
import functools
import zlib

import numpy as np

from autograder.observations import Array, Raised, Thing

SIZE = 32
MAX_LEAF = 1000  # numbers of one array that enter a sketch
# A mistake is named when the answer is this much nearer to it than to what is
# expected. The same mistake differs by rounding only (1e-9) or, where random
# numbers are observed, by some 1e-2; other answers stay above 0.1.
NEARER = 0.05
# Small errors in the same places and proportions come from one mistake with
# another constant, such as an epsilon. Large ones need not: zeros and twice
# the value are off in the same places, too.
PARALLEL, SMALL = 0.05, 0.05
UNSPECIFIC = ("runs", "shape and dtype")
# More causes than this, read off a part of the observations, help nobody.
MOST_NAMED = 3
# Sketches this near, relative to their distance from what is expected, are
# the same behaviour.
SAME = 1e-6


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What is known of a wrong answer on one set of inputs.

    sketch: of all that it shows there
    first: sketch of what the first property that it fails reads
    pattern: names of the properties that it fails
    """

    hint: str
    sketch: np.ndarray
    first: np.ndarray
    pattern: tuple[str, ...]


def sketch(exercise, seen):
    """Observations as 32 numbers: near for near observations."""
    kinds, places, parts = [], [], []
    for path, kind, numbers in _leaves(_featured(exercise, seen), ""):
        kinds.append(f"{path} {kind}")
        if numbers is not None and numbers.size:
            places.append(path)
            parts.append(numbers[:: -(-numbers.size // MAX_LEAF)])
    total = sum(map(_direction, kinds), np.zeros(SIZE))
    if not parts:
        return total
    ends = np.cumsum([len(part) for part in parts])[:-1]
    tamed = np.split(_tamed(np.concatenate(parts)), ends)  # in one go
    for path, numbers in zip(places, tamed, strict=True):
        size = len(numbers)
        total += (
            numbers[0] * _direction(path)
            if size == 1
            else numbers @ _directions(path, size) / np.sqrt(size)
        )
    return total


def _featured(exercise, seen):
    if exercise.features is None:
        return seen
    try:
        numbers = np.asarray(exercise.features(seen), float)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return seen  # observations of another form have no such features
    return {"features": Array("numpy", "float64", numbers)}


@functools.lru_cache(maxsize=2**16)  # some 30 MB
def _direction(text):
    """The one random direction (SIZE,) of a place that holds one number."""
    return _drawn(text, 1)[0]


@functools.lru_cache(maxsize=1024)
def _directions(text, count):
    """Random directions (count, SIZE) that belong to a place in a tree."""
    return _drawn(text, count)


def _drawn(text, count):
    generator = np.random.RandomState(zlib.crc32(text.encode()))
    return generator.standard_normal((count, SIZE))


def _tamed(numbers):
    """Numbers squashed to a moderate range, with NaN and infinities in it."""
    with np.errstate(invalid="ignore"):
        tamed = np.arcsinh(numbers)
    return np.nan_to_num(tamed, nan=31.0, posinf=37.0, neginf=-37.0)


def _leaves(node, path):
    if isinstance(node, dict):
        for key in sorted(node):
            yield from _leaves(node[key], f"{path}/{key}")
    elif isinstance(node, list):
        yield path, f"{len(node)} parts", None
        for index, part in enumerate(node):
            yield from _leaves(part, f"{path}/{index}")
    elif isinstance(node, Array):
        kind = f"{node.library} {node.dtype} {node.data.shape}"
        data = node.data
        if data.dtype.kind == "c":
            data = np.stack([data.real, data.imag])
        yield path, kind, data.astype(float).ravel()
    elif isinstance(node, Raised | Thing):
        yield path, node.kind, None
    elif isinstance(node, bool | str | None):
        yield path, repr(node), None
    else:
        yield path, "number", np.array([float(node)])


def first_read(exercise, seen, failing):
    """The part of observations that the first failing property reads.

    An answer with two mistakes shows one of them by itself there.
    """
    cases = next(
        (
            part.cases
            for part in exercise.properties
            if part.name in failing and part.cases
        ),
        (),
    )
    if exercise.features is not None or not isinstance(seen, dict):
        return {}
    return {name: seen.get(name) for name in cases}


class Centres:
    """Sketches of what is expected, with which mistakes are compared."""

    def __init__(self, exercise, want):
        self.exercise, self.want = exercise, want
        self.parts = {}

    @functools.cached_property
    def whole(self):
        return sketch(self.exercise, self.want)

    def first(self, failing):
        """Of what the first of these properties reads; see `first_read`."""
        part = first_read(self.exercise, self.want, failing)
        key = tuple(part)
        if key not in self.parts:
            self.parts[key] = sketch(self.exercise, part)
        return self.parts[key]


def diagnose(exercise, seen, centres, failing, mistakes, known=None):
    """Ids of the mistakes that a wrong answer makes; several if alike.

    centres: the `Centres` of what is expected
    failing: names of the properties that the answer fails
    known: the `Mistake` of these observations, if it has been made already
    """
    rivals = _rivals(failing, mistakes)
    here = known.sketch if known else sketch(exercise, seen)
    there = centres.whole
    whole = {id: mistake.sketch for id, mistake in rivals.items()}
    named = _nearest(here, there, whole)
    if named:
        return named
    part = first_read(exercise, seen, failing)
    named = part and _nearest(
        known.first if known else sketch(exercise, part),
        centres.first(failing),
        {id: mistake.first for id, mistake in rivals.items()},
    )
    if named and len(named) <= MOST_NAMED:
        return named
    parallel = [
        id for id in whole if _parallel(here - there, whole[id] - there, there)
    ]
    # That an answer does not run, or has another form, says nothing of why.
    alike = [
        id
        for id, mistake in rivals.items()
        if mistake.pattern == failing and failing[0] not in UNSPECIFIC
    ]
    return next((names for names in (parallel, alike) if len(names) == 1), [])


def alike(centres, mistakes):
    """Pairs of ids of the mistakes that are named together."""
    for id, mistake in mistakes.items():
        rivals = _rivals(mistake.pattern, mistakes)
        sketches = {name: each.sketch for name, each in rivals.items()}
        for name in _nearest(mistake.sketch, centres.whole, sketches):
            if name > id:
                yield id, name


def _rivals(failing, mistakes):
    return {
        id: mistake
        for id, mistake in mistakes.items()
        if mistake.pattern[:1] == failing[:1]
    }


def _nearest(here, there, sketches):
    """Ids of the sketches far nearer to `here` than `there` is, if any."""
    far = np.linalg.norm(here - there)
    distances = {
        id: np.linalg.norm(here - each) for id, each in sketches.items()
    }
    nearest = min(distances.values(), default=np.inf)
    if nearest >= NEARER * far:
        return []
    return [
        id
        for id, distance in distances.items()
        if distance <= nearest + SAME * far
    ]


def _parallel(one, other, want):
    """Whether two small errors have the same places and proportions."""
    lengths = np.linalg.norm(one), np.linalg.norm(other)
    if not 0 < min(lengths) <= max(lengths) < SMALL * np.linalg.norm(want):
        return False
    cosine = one @ other / (lengths[0] * lengths[1])
    return np.arccos(np.clip(cosine, -1, 1)) < PARALLEL
