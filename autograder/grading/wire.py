"""Messages between the grader and a learner's process.

A message is JSON followed by the raw bytes of its arrays. Whatever comes from
a learner's process is measured before it is read and checked before it is
used, and nothing is ever unpickled: a hostile process can only send wrong
values.

A frame: 4 bytes with the header's length, the header (JSON: the body, and
dtype and shape of each array), the arrays' bytes one after the other.
"""

import json
import math
import struct
import time

import numpy as np

from autograder.observations import Array, Raised, Thing, bare, pack, unpack

MAX_HEADER = 4 * 2**20
MAX_ARRAYS = 48 * 2**20  # bytes, all arrays of one message together
MAX_LEAVES = 40_000
MAX_DEPTH = 24
MAX_TEXT = 20_000
DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 "
    "float64 complex64 complex128".split()
)
# What is kept of a cell's or an answer's output.
MAX_OUTPUT = 20_000  # characters of one text
MAX_PICTURE = 400_000  # characters of a picture, base64
MAX_SHOWN = 50  # rich outputs
MAX_SHOWN_BYTES = 3 * 2**20  # all of them together, as JSON
MAX_ERROR = 2000  # characters of an exception's text
MAX_NAME = 100  # characters of the name of a class, module or operation
ORDER = 16  # bytes of an order to the warm process
TUPLE = "a tuple"  # the key that marks one: JSON knows lists only


class WireError(Exception):
    """The other side is gone, silent for too long, or talks nonsense."""


class LateError(WireError):
    """The other side did not answer in time."""


def send(socket, body, arrays=()):
    """Send a message.

    raises WireError: if the other side is gone
    """
    arrays = [
        np.ascontiguousarray(array) if array.ndim else array
        for array in arrays
    ]
    header = json.dumps(
        {
            "body": body,
            "arrays": [
                [array.dtype.name, list(array.shape)] for array in arrays
            ],
        }
    ).encode()
    try:
        socket.sendall(struct.pack(">I", len(header)) + header)
        for array in arrays:
            socket.sendall(array.tobytes())
    except OSError as error:
        raise WireError(f"cannot send: {error}") from error


def receive(socket, seconds):
    """The next message as (body, arrays).

    raises LateError: if it is not there after so many seconds
    raises WireError: if it is no message, or too large
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (size,) = struct.unpack(">I", _read(socket, 4, deadline))
    if size > MAX_HEADER:
        raise WireError("a message is too large")
    try:
        header = json.loads(_read(socket, size, deadline))
        body, plans = (
            header["body"],
            [_plan(*each) for each in header["arrays"]],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"no message: {error}") from error
    if sum(plan[2] for plan in plans) > MAX_ARRAYS:
        raise WireError("the arrays of a message are too large")
    arrays = []
    for dtype, shape, size in plans:
        data = _read(socket, size, deadline)
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
    return body, arrays


def _plan(dtype, shape):
    """(dtype, shape, bytes) of an announced array, or ValueError."""
    if (
        dtype not in DTYPES
        or not isinstance(shape, list)
        or len(shape) > 32
        or not all(type(side) is int and side >= 0 for side in shape)
        # NumPy refuses the other sides of an empty array, too.
        or math.prod(side or 1 for side in shape) > 2**40
    ):
        raise ValueError("an array of an unknown kind")
    return dtype, shape, math.prod(shape) * np.dtype(dtype).itemsize


def _read(socket, size, deadline):
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LateError("no answer in time")
            socket.settimeout(left)
        try:
            part = socket.recv(min(size - len(data), 2**20))
        except TimeoutError:
            raise LateError("no answer in time") from None
        except OSError as error:
            raise WireError(f"cannot receive: {error}") from error
        if not part:
            raise WireError("the other side is gone")
        data += part
    return bytes(data)


def pack_inputs(inputs):
    """An exercise's inputs as (text, arrays); tuples stay tuples."""
    return pack(_marked(inputs))


def unpack_inputs(text, arrays):
    """The inputs that `pack_inputs` packed."""
    return _unmarked(bare(unpack(text, arrays)))


def _marked(node):
    if isinstance(node, tuple):
        return {TUPLE: [_marked(part) for part in node]}
    if isinstance(node, list):
        return [_marked(part) for part in node]
    if isinstance(node, dict):
        return {key: _marked(part) for key, part in node.items()}
    return node


def _unmarked(node):
    if isinstance(node, dict):
        if set(node) == {TUPLE}:
            return tuple(_unmarked(part) for part in node[TUPLE])
        return {key: _unmarked(part) for key, part in node.items()}
    if isinstance(node, list):
        return [_unmarked(part) for part in node]
    if isinstance(node, np.ndarray):
        return np.array(node)  # what came over the wire is read-only
    return node


def unpack_observation(text, arrays):
    """What a learner's process says that it saw.

    raises WireError: if it is not the plain data that an observation is
    """
    try:
        tree = unpack(text, arrays)
        left = [MAX_LEAVES]
        return _checked(tree, 0, left)
    except WireError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
    ) as error:
        raise WireError(f"no observation: {error}") from error


def _checked(node, depth, left):
    left[0] -= 1
    if depth > MAX_DEPTH or left[0] < 0:
        raise WireError("an observation has too many parts")
    if node is None or type(node) in (bool, float):
        return node
    if type(node) is int:
        if abs(node) < 2**63:
            return node
        return math.inf if node > 0 else -math.inf
    if type(node) is str:
        return node[:MAX_TEXT]
    if isinstance(node, list):
        return [_checked(part, depth + 1, left) for part in node]
    if isinstance(node, dict):
        return {
            key: _checked(part, depth + 1, left) for key, part in node.items()
        }
    if isinstance(node, Array):
        library, dtype = _texts(node.library, node.dtype)
        if type(node.data) is not np.ndarray:
            raise WireError("an array without data")
        return Array(library, dtype, node.data)
    if isinstance(node, Raised):
        kind, text, *bases = _texts(node.kind, node.text, *node.bases[:50])
        return Raised(kind, tuple(bases), text)
    if isinstance(node, Thing):
        return Thing(*_texts(node.kind, node.text))
    raise WireError("an observation has a part of an unknown kind")


def _texts(*values):
    if not all(type(value) is str for value in values):
        raise WireError("an observation has a name that is no text")
    return [value[:MAX_TEXT] for value in values]
