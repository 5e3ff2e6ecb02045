"""Observations: what a probe saw, as plain data.

A tree of None, bool, int, float, str, list, dict, `Array`, `Raised` and
`Thing`. It can cross a pipe or lie in a file, so it holds no live object.
"""

import dataclasses
import json
import math

import numpy as np
import torch

MAX_BYTES = 64 * 2**20  # of one array: far above any expected answer
MAX_TEXT = 2000
MAX_DEPTH = 10
MAX_LEAVES = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class Array:
    """A tensor's or an array's values.

    library: "torch" or "numpy"
    dtype: name without its library; a bfloat16's data is kept as float32
    """

    library: str
    dtype: str
    data: np.ndarray


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception: its type, the types it derives from, its text."""

    kind: str
    bases: tuple
    text: str


@dataclasses.dataclass(frozen=True)
class Thing:
    """What is not data: its type and how it prints."""

    kind: str
    text: str


def raised(error):
    """The observation of an exception."""
    bases = tuple(kind.__name__ for kind in type(error).__mro__)
    return Raised(type(error).__name__, bases, _text(str, error))


def plain(value):
    """A value as an observation; too large or too deep parts as `Thing`s."""
    return _plain(value, 0, [MAX_LEAVES])


def _plain(value, depth, leaves):
    leaves[0] -= 1
    if depth > MAX_DEPTH or leaves[0] < 0:
        return Thing(type(value).__name__, "too deep or too many parts")
    if value is None or isinstance(value, Array | Raised | Thing):
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(np.asarray(value))
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return _plain_integer(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):  # sliced, a subclass of str is a str
        return str.__getitem__(value, slice(0, MAX_TEXT))
    if isinstance(value, list | tuple | dict) and len(value) > leaves[0]:
        return Thing(type(value).__name__, f"{len(value)} parts")
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1, leaves) for part in value]
    if isinstance(value, dict):
        return {
            str(key): _plain(part, depth + 1, leaves)
            for key, part in value.items()
        }
    return Thing(type(value).__name__, _text(repr, value))


def _plain_tensor(tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() * tensor.element_size() > MAX_BYTES:
        return Thing("Tensor", f"{dtype} of shape {tuple(tensor.shape)}")
    try:
        tensor = tensor.detach().resolve_conj().resolve_neg().to("cpu")
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if dtype == "bfloat16":
            tensor = tensor.float()
        # A copy, so that nothing done later changes what was seen.
        data = np.array(tensor.numpy())
        if data.dtype.kind in "biufc":
            return Array("torch", dtype, data)
        return Thing("Tensor", f"{dtype} with {data.dtype} for its data")
    except Exception as error:  # meta, quantised, nested tensors
        return Thing("Tensor", f"{dtype} on {tensor.device}: {error}")


def _plain_array(array):
    if array.dtype.kind not in "biufc" or array.nbytes > MAX_BYTES:
        return Thing("ndarray", f"{array.dtype} of shape {array.shape}")
    return Array("numpy", array.dtype.name, np.array(array))


def _plain_integer(value):
    if abs(value) < 2**63:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _text(how, value):
    try:
        return how(value)[:MAX_TEXT]
    except Exception as error:
        return f"(its text raises {type(error).__name__})"


def pack(tree):
    """A tree as (skeleton, arrays): JSON text and a list of numpy arrays."""
    arrays = []

    def skeleton(node):
        if isinstance(node, np.ndarray):
            node = Array("numpy", node.dtype.name, node)
        if isinstance(node, Array):
            arrays.append(node.data)
            return {"array": [node.library, node.dtype, len(arrays) - 1]}
        if isinstance(node, Raised):
            return {"raised": [node.kind, list(node.bases), node.text]}
        if isinstance(node, Thing):
            return {"thing": [node.kind, node.text]}
        if isinstance(node, dict):
            return {"dict": {key: skeleton(node[key]) for key in node}}
        if isinstance(node, list | tuple):
            return [skeleton(part) for part in node]
        return node

    return json.dumps(skeleton(tree)), arrays


def unpack(text, arrays):
    """The tree that `pack` packed."""

    def tree(node):
        if isinstance(node, list):
            return [tree(part) for part in node]
        if not isinstance(node, dict):
            return node
        ((kind, body),) = node.items()
        if kind == "array":
            library, dtype, index = body
            return Array(library, dtype, arrays[index])
        if kind == "raised":
            return Raised(body[0], tuple(body[1]), body[2])
        if kind == "thing":
            return Thing(*body)
        return {key: tree(part) for key, part in body.items()}

    return tree(json.loads(text))


def bare(tree):
    """The same tree with numpy arrays in the place of `Array`s."""
    if isinstance(tree, Array):
        return tree.data
    if isinstance(tree, dict):
        return {key: bare(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [bare(part) for part in tree]
    return tree


def number(value):
    """An observed number as a float, whether Python's, numpy's or torch's."""
    return float(value.data if isinstance(value, Array) else value)


def describe(value):
    """A short name for an observation, as a learner would say it."""
    if isinstance(value, Array):
        shape = "×".join(map(str, value.data.shape)) or "0-d"
        noun = "tensor" if value.library == "torch" else "array"
        return f"a {value.dtype} {noun} of shape {shape}"
    if isinstance(value, Raised):
        text = f": {value.text}" if value.text else ""
        return f"{value.kind}{text}"
    if isinstance(value, Thing):
        return f"a {value.kind} ({value.text})"
    if isinstance(value, list):
        return f"{len(value)} values"
    if isinstance(value, dict):
        return f"a dict with {', '.join(value) or 'no keys'}"
    if value is None:
        return "None"
    return f"{type(value).__name__} {value!r}"


def form_difference(seen, want):
    """How kind, length, shape or dtype differ, as a sentence, or None."""
    if isinstance(want, int | float) and not isinstance(want, bool):
        if isinstance(seen, int | float) and not isinstance(seen, bool):
            return None
        # A 0-d tensor or a numpy number is a number.
        if isinstance(seen, Array) and seen.data.shape == ():
            return None
    elif isinstance(want, Array) and isinstance(seen, Array):
        if seen.data.shape != want.data.shape:
            return (
                f"the shape is {tuple(seen.data.shape)} where "
                f"{tuple(want.data.shape)} is due"
            )
        if (seen.library, seen.dtype) == (want.library, want.dtype):
            return None
    elif isinstance(want, list) and isinstance(seen, list):
        if len(seen) == len(want):
            parts = zip(seen, want, strict=True)
            return next(
                filter(None, (form_difference(*p) for p in parts)), None
            )
        return f"{len(seen)} values came back; expected {len(want)}"
    elif isinstance(want, dict) and isinstance(seen, dict):
        if set(seen) == set(want):
            return next(
                filter(
                    None,
                    (form_difference(seen[key], want[key]) for key in want),
                ),
                None,
            )
    elif type(seen) is type(want):
        return None
    if seen is None:
        return "None came back: is the return missing?"
    due = describe(want)
    if isinstance(want, int | float | str):
        due = f"a {type(want).__name__}"
    return f"{describe(seen)} came back; expected {due}"


def value_difference(seen, want, tol, floor=1.0):
    """Where values of the same form differ most, as a sentence, or None.

    Numbers agree within tol × max(floor, |expected|), NaN and infinities
    exactly.
    """
    if isinstance(want, dict):
        pairs = [(seen[key], want[key]) for key in want]
    elif isinstance(want, list):
        pairs = list(zip(seen, want, strict=True))
    elif isinstance(want, str | bool | None | Thing | Raised):
        if seen == want:
            return None
        return f"{describe(seen)} came back; expected {describe(want)}"
    else:
        boolean = isinstance(want, Array) and want.dtype == "bool"
        return _number_difference(
            _numbers(seen), _numbers(want), tol, floor, boolean
        )
    found = (value_difference(*pair, tol, floor) for pair in pairs)
    return next(filter(None, found), None)


def _numbers(value):
    data = np.asarray(value.data if isinstance(value, Array) else value)
    return data.astype(np.complex128 if data.dtype.kind == "c" else float)


def _number_difference(seen, want, tol, floor, boolean):
    if not want.size:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(seen - want) / np.maximum(floor, np.abs(want))
    exact = (seen == want) | (np.isnan(seen) & np.isnan(want))
    error = np.where(exact, 0, np.where(np.isnan(error), np.inf, error))
    if error.max() <= tol:
        return None
    where = np.unravel_index(np.argmax(error), error.shape)
    place = f"at [{', '.join(map(str, where))}] " if where else ""
    got, due = _told_apart(seen[where], want[where], boolean)
    return f"{place}{got} came back; expected {due}"


def _told_apart(one, other, boolean):
    """Two numbers as text, with as many digits as it takes to see them."""
    if boolean:
        return bool(one), bool(other)
    for digits in (6, 10, 17):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts
