"""Observations hold plain data only, survive the wire, and are compared."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from autograder.observations import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TEXT,
    Array,
    Raised,
    Thing,
    bare,
    describe,
    form_difference,
    number,
    pack,
    plain,
    raised,
    unpack,
    value_difference,
)

# `type(x) in` rather than isinstance: a subclass can be a live object.
PLAIN = (type(None), bool, int, float, str)


def assert_plain(tree, depth=0):
    """Nothing but the documented types, whoever's object it was."""
    assert depth <= MAX_DEPTH + 1
    if type(tree) is dict:
        for key, part in tree.items():
            assert type(key) is str
            assert_plain(part, depth + 1)
    elif type(tree) is list:
        for part in tree:
            assert_plain(part, depth + 1)
    elif type(tree) is Array:
        assert type(tree.data) is np.ndarray
        assert tree.data.dtype.kind in "biufc"
        assert type(tree.dtype) is str
    elif type(tree) is Raised:
        assert all(type(name) is str for name in tree.bases)
        assert type(tree.kind) is type(tree.text) is str
    elif type(tree) is Thing:
        assert type(tree.kind) is type(tree.text) is str
    else:
        assert type(tree) in PLAIN


def same(one, other):
    """Equality of trees, with NaN equal to itself and dtypes compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Array):
        return (
            (one.library, one.dtype) == (other.library, other.dtype)
            and one.data.dtype == other.data.dtype
            and one.data.shape == other.data.shape
            and one.data.tobytes() == other.data.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            same(one[key], other[key]) for key in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return one == other


class Liar:
    """Equal to everything, of every length, printing what it likes."""

    def __eq__(self, other):
        return True

    __hash__ = None

    def __len__(self):
        return 3

    def __float__(self):
        return 0.5

    def __repr__(self):
        return "0.5"


class Grumpy:
    def __repr__(self):
        raise RuntimeError("not telling")


def endless():
    part = []
    part += [part, part, part]
    return part


def peculiar():
    """What nobody expects an answer to return, by name."""
    return {
        "None": None,
        "a liar": Liar(),
        "an object that does not print": Grumpy(),
        "a list that holds itself": endless(),
        "a generator": (x for x in "ab"),
        "a class": Liar,
        "a huge integer": 2**80,
        "an integer beyond float": 10**400,
        "complex": 1 + 2j,
        "bytes": b"ab",
        "a set": {1, 2},
        "long text": "x" * 10**6,
        "keys that are no text": {1: "a", None: "b", (1, 2): "c"},
        "NaN": float("nan"),
        "a meta tensor": torch.empty(3, device="meta"),
        "a sparse tensor": torch.eye(3).to_sparse(),
        "a CSR tensor": torch.eye(3).to_sparse_csr(),
        "a complex tensor": torch.ones(2, dtype=torch.complex64).conj(),
        "a negated view": torch.ones(2, dtype=torch.complex64).conj().imag,
        "a bfloat16 tensor": torch.ones(2, dtype=torch.bfloat16),
        "a float8 tensor": torch.ones(2).to(torch.float8_e4m3fn),
        "a tensor with a gradient": torch.ones(2, requires_grad=True) * 2,
        "a quantised tensor": torch.quantize_per_tensor(
            torch.ones(2), 0.1, 0, torch.qint8
        ),
        "a nested tensor": torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)]
        ),
        "an expanded tensor": torch.zeros(1).expand(10**12),
        "a module": torch.nn.Linear(2, 3),
        "an object array": np.array([Liar(), None], dtype=object),
        "an array of text": np.array(["a", "b"]),
        "a date": np.datetime64("2020-01-01"),
        "a masked array": np.ma.masked_array([1.0, 2.0], [True, False]),
        "a matrix": np.asmatrix([[1.0, 2.0]]),
        "a structured array": np.zeros(2, dtype=[("a", int), ("b", float)]),
        "a numpy number": np.float32(0.5),
        "a numpy bool": np.bool_(True),
        "an exception": ValueError("x"),
    }


with warnings.catch_warnings():
    # Some of these are experimental, torch says.
    warnings.simplefilter("ignore")
    PECULIAR = peculiar()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PECULIAR)
def test_any_object_becomes_plain_data_that_can_be_sent(name):
    tree = plain({"it": PECULIAR[name]})
    assert_plain(tree)
    assert same(unpack(*pack(tree)), tree)
    assert describe(tree["it"])


@pytest.mark.parametrize(
    "value, seen",
    [
        (2**63 - 1, 2**63 - 1),
        (-(2**80), -(2.0**80)),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_an_integer_is_as_near_as_a_float_comes(value, seen):
    assert (type(plain(value)), plain(value)) == (type(seen), seen)


def test_a_text_that_keeps_its_methods_is_no_plain_data():
    class Text(str):
        def __str__(self):
            return self

        def __getitem__(self, index):
            return self

    assert_plain(plain(Text("x")))


def test_a_tensor_that_hands_out_objects_is_no_plain_data():
    class Own(torch.Tensor):
        def detach(self):
            return self

        resolve_conj = resolve_neg = cpu = detach

        def to(self, *args, **kwargs):
            return self

        def numpy(self):
            return np.array([Liar()], dtype=object)

    assert_plain(plain(torch.ones(1).as_subclass(Own)))


def test_a_long_list_is_cut_short():
    # What is kept is sketched, packed and printed: all must stay quick.
    text, _ = pack(plain([0] * 10**5))
    assert len(text) < 2**20


def test_a_dict_of_many_keys_is_cut_short():
    text, _ = pack(plain(dict.fromkeys(range(10**5), 0)))
    assert len(text) < 2**20


def test_what_is_too_large_keeps_its_kind_and_shape():
    seen = plain(np.broadcast_to(np.zeros(1), (MAX_BYTES,)))
    assert seen == Thing("ndarray", f"float64 of shape ({MAX_BYTES},)")
    assert len(plain("x" * 10**6)) == MAX_TEXT


def test_an_observation_does_not_change_with_what_it_was_made_from():
    tensor, array = torch.zeros(2), np.zeros(2)
    seen = plain([tensor, array])
    tensor += 1
    array += 1
    assert not seen[0].data.any() and not seen[1].data.any()


def test_dtype_and_library_are_kept():
    seen = plain([torch.ones(1, dtype=torch.bfloat16), np.float16(1)])
    assert [(each.library, each.dtype) for each in seen] == [
        ("torch", "bfloat16"),
        ("numpy", "float16"),
    ]


def test_an_exception_is_seen_with_all_that_it_derives_from():
    seen = raised(KeyError("k"))
    assert seen.kind == "KeyError" and "'k'" in seen.text
    assert {"KeyError", "LookupError", "Exception"} <= set(seen.bases)


class Mute(Exception):
    def __str__(self):
        raise ValueError


def test_an_exception_that_does_not_print_is_seen():
    assert raised(Mute()).kind == "Mute"


DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
)
ARRAYS = npst.arrays(
    DTYPES, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    ARRAYS.map(lambda data: Array("numpy", data.dtype.name, data)),
    st.builds(
        Raised,
        st.text(max_size=9),
        st.lists(st.text(max_size=9), max_size=3).map(tuple),
        st.text(max_size=9),
    ),
    st.builds(Thing, st.text(max_size=9), st.text(max_size=9)),
)
TREES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(
            # The skeleton's own words are ordinary keys of a learner's dict.
            st.sampled_from(["array", "dict", "raised", "thing", "", "é"]),
            parts,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(TREES)
def test_what_is_packed_comes_back_unchanged(tree):
    text, arrays = pack(tree)
    json.loads(text)
    assert same(unpack(text, arrays), tree)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TREES)
def test_a_tree_does_not_differ_from_itself(tree):
    again = unpack(*pack(tree))
    assert form_difference(again, tree) is None
    if "nan" not in repr(tree):
        assert value_difference(again, tree, 0.0) is None


def test_bare_numbers_are_arrays_and_numbers():
    tree = {"a": [plain(torch.ones(2)), 3]}
    assert bare(tree)["a"][0].tolist() == [1, 1]
    assert number(plain(torch.tensor(0.5))) == number(0.5) == 0.5


FORMS = [
    (torch.ones(2, 3), torch.ones(3, 2), "(2, 3)"),
    (torch.ones(1), torch.ones(()), "(1,)"),
    (torch.ones(2), torch.ones(2).double(), "float32"),
    (torch.ones(2), np.ones(2, "float32"), "array"),
    (torch.ones(2), [1.0, 1.0], "2 values"),
    ([1.0], [1.0, 1.0], "1 values"),
    ([1.0, torch.ones(1)], [1.0, 2.0], "tensor of shape 1"),
    ({"a": 1}, {"b": 1}, "a dict with a"),
    ({"a": "x"}, {"a": 1.0}, "str"),
    (None, 1.0, "None"),
    ("1.0", 1.0, "str"),
    (True, 1.0, "bool"),
    (1.0, True, "float"),
    (torch.empty(2, device="meta"), torch.ones(2), "meta"),
    (torch.ones(2, dtype=torch.complex64), torch.ones(2), "complex64"),
]


@pytest.mark.parametrize("seen, want, told", FORMS)
def test_another_form_is_told_with_what_came(seen, want, told):
    assert told in form_difference(plain(seen), plain(want))


@pytest.mark.parametrize(
    "seen, want",
    [
        (1, 1.0),
        (torch.tensor(0.5), 1.0),
        (np.float32(2), 1),
        ((1, 2), [3, 4]),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_the_same_form_with_other_values_is_no_difference(seen, want):
    assert form_difference(plain(seen), plain(want)) is None


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "seen, want, tol, floor, differs",
    [
        (1 + 0.9e-6, 1.0, 1e-6, 1.0, False),
        (1 + 1.1e-6, 1.0, 1e-6, 1.0, True),
        (1000 + 0.9e-3, 1000.0, 1e-6, 1.0, False),
        (1000 + 1.1e-3, 1000.0, 1e-6, 1.0, True),
        # Below the floor errors count as if the floor were expected.
        (0.9e-6, 0.0, 1e-6, 1.0, False),
        (1.1e-6, 0.0, 1e-6, 1.0, True),
        (1e-3 + 0.9e-9, 1e-3, 1e-6, 1e-4, False),
        (1e-3 + 1.1e-9, 1e-3, 1e-6, 1e-4, True),
        (NAN, NAN, 1e-6, 1.0, False),
        (INF, INF, 1e-6, 1.0, False),
        (-INF, INF, 1e-6, 1.0, True),
        (NAN, 1.0, 1e6, 1.0, True),
        (1.0, NAN, 1e6, 1.0, True),
        (INF, 1.0, 1e6, 1.0, True),
        (1e308, -1e308, 1e-6, 1.0, True),
        (1 + 1e-3j, 1 + 0j, 1e-6, 1.0, True),
        (1 + 1e-9j, 1 + 0j, 1e-6, 1.0, False),
    ],
)
def test_just_inside_the_tolerance_agrees_and_just_outside_differs(
    seen, want, tol, floor, differs
):
    seen, want = plain(np.array([seen])), plain(np.array([want]))
    assert bool(value_difference(seen, want, tol, floor)) is differs


def test_the_worst_place_is_named_with_both_values():
    seen = plain(torch.tensor([[1.0, 2.5], [3.1, 4.0]]))
    want = plain(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    told = value_difference(seen, want, 1e-6)
    assert "[0, 1]" in told and "2.5" in told and "2" in told


def test_as_many_digits_are_told_as_show_the_difference():
    told = value_difference(1 + 1e-9, 1.0, 1e-10)
    got, due = told.split(" came back; expected ")
    assert got != due


def test_empty_arrays_agree():
    assert value_difference(plain(torch.ones(0)), plain(torch.ones(0)), 0) is (
        None
    )


def test_texts_bools_and_none_agree_exactly():
    assert value_difference("a", "a", 1.0) is None
    assert value_difference("a", "b", 1.0)
    assert value_difference(True, False, 9.0)
    assert value_difference([1, {"k": "a"}], [1, {"k": "b"}], 1.0)
