"""What crosses the pipe, and what a hostile other end may send."""

import json
import socket
import struct

import numpy as np
import pytest

from autograder.grading.wire import (
    MAX_ARRAYS,
    LateError,
    WireError,
    pack_inputs,
    receive,
    send,
    unpack_inputs,
    unpack_observation,
)
from autograder.observations import Array, Raised, Thing, pack


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def frame(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text


def test_a_message_arrives_as_it_was_sent(pair):
    arrays = [
        np.array(3.5),
        np.zeros((0, 4), "float32"),
        np.arange(6).reshape(2, 3)[:, ::-1],
        np.array([1j, 2]),
    ]
    send(pair[0], {"do": "this"}, arrays)
    body, got = receive(pair[1], 5)
    assert body == {"do": "this"}
    for one, other in zip(arrays, got, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_inputs_keep_tuples_arrays_and_numbers():
    inputs = {
        "a case": {
            "args": [np.eye(2), (1, (2, 3)), None, True],
            "kwargs": {"dtype": "float16", "x": float("nan")},
        }
    }
    got = unpack_inputs(*pack_inputs(inputs))
    assert got["a case"]["args"][1] == (1, (2, 3))
    assert np.array_equal(got["a case"]["args"][0], np.eye(2))
    assert got["a case"]["args"][0].flags.writeable
    assert np.isnan(got["a case"]["kwargs"]["x"])


def test_every_lesson_s_inputs_survive_the_pipe():
    from autograder.exercise import exercises, lessons

    def same(one, other):
        # A string with a repr of its own may arrive as a plain one.
        assert isinstance(one, type(other)), (one, other)
        if isinstance(one, dict):
            assert list(one) == list(other)
            return all(same(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(same, one, other))
        if isinstance(one, np.ndarray):
            return one.dtype == other.dtype and np.array_equal(
                one, other, equal_nan=one.dtype.kind in "fc"
            )
        return one == other or one != one

    for stem in lessons():
        for exercise in exercises(stem).values():
            inputs = exercise.fresh_inputs("seed")
            assert same(inputs, unpack_inputs(*pack_inputs(inputs)))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 2**31),
        frame(b"not json"),
        frame(b"[" * 100_000),
        frame([]),
        frame({"body": 1}),
        frame({"body": 1, "arrays": [["object", [2]]]}),
        frame({"body": 1, "arrays": [["float64", [-1]]]}),
        frame({"body": 1, "arrays": [["float64", [2**20, 2**20]]]}),
        frame({"body": 1, "arrays": [["float64", [1.5]]]}),
        frame({"body": 1, "arrays": [["float64", "ab"]]}),
        frame({"body": 1, "arrays": [["uint8", [MAX_ARRAYS // 2 + 1]]] * 2}),
        frame({"body": 1, "arrays": [7]}),
        frame({"body": 1, "arrays": [["float64", [1] * 40]]}),
        frame({"body": 1, "arrays": [["float64", [2**39, 2**39, 0]]]}),
        frame({"body": 1, "arrays": [["float64", {}]]}) + bytes(8),
        frame({"body": 1, "arrays": [["float64", ""]]}) + bytes(8),
    ],
    ids=range(16),
)
def test_nonsense_is_refused_before_it_is_read(pair, data):
    pair[0].sendall(data)
    with pytest.raises(WireError):
        receive(pair[1], 2)


def test_silence_is_not_waited_for(pair):
    with pytest.raises(LateError):
        receive(pair[1], 0.05)


def test_an_end_in_the_middle_is_an_error(pair):
    pair[0].sendall(frame({"body": 1, "arrays": [["float64", [8]]]}))
    pair[0].close()
    with pytest.raises(WireError):
        receive(pair[1], 2)


def test_an_observation_survives():
    tree = {
        "out": Array("torch", "bfloat16", np.ones(3, "float32")),
        "error": Raised("ValueError", ("ValueError", "Exception"), "no"),
        "thing": Thing("Tensor", "meta"),
        "list": [1, 2.5, None, "a"],
    }
    got = unpack_observation(*pack(tree))
    assert got["error"] == tree["error"] and got["thing"] == tree["thing"]
    assert got["list"] == tree["list"]
    assert np.array_equal(got["out"].data, np.ones(3))


@pytest.mark.parametrize(
    "text",
    [
        "7" * 5000,
        '{"array": ["torch", "float32", 5]}',
        '{"array": ["torch", {"a": 1}, 0]}',
        '{"raised": ["ValueError", [1], "text"]}',
        '{"raised": [["ValueError"], [], "text"]}',
        '{"thing": ["a", "b", "c"]}',
        '{"dict": 3}',
        '{"two": 1, "keys": 2}',
        '{"dict": ' * 60 + "1" + "}" * 60,
        "[" + "1," * 50_000 + "1]",
        None,
    ],
    ids=range(11),
)
def test_what_is_no_observation_is_refused(text):
    with pytest.raises(WireError):
        unpack_observation(text, [])


def test_absurd_numbers_become_infinite():
    assert unpack_observation(str(10**400), []) == float("inf")
    assert unpack_observation(str(-(10**400)), []) == -float("inf")
