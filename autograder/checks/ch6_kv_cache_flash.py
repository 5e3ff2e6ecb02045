"""Lesson 6: what right answers on caches and FlashAttention must satisfy."""

import dataclasses
import functools
import math
import weakref

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.exercise import (
    FUSED,
    Exercise,
    Failure,
    law,
    of_calls,
    trouble,
    values,
)
from autograder.modules import (
    GPTConfig,
    call_modules,
    draw,
    follows_device,
    gpt_shapes,
    module_case,
    of_modules,
)
from autograder.observations import (
    Array,
    Raised,
    describe,
    form_difference,
    number,
    plain,
    raised,
    value_difference,
)
from autograder.probing import (
    call,
    call_numpy,
    call_torch,
    case,
    stays_there,
    stopped,
    to_tensor,
)

RUNS, FORM, UNCHANGED, AGAIN = of_calls()
SINGLE = "6e-8 an operation, over sums of some tens of terms"
HALF = "float16 has 11 bits: one unit in the last place below 4 is 2e-3"


def counts(key):
    """A law: one entry of the dict of counts is right in every case."""

    def judge(seen, want, inputs):
        for name in inputs:
            out = seen[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            if isinstance(out[key], str):
                return Failure(f"{key} is {describe(out[key])}", name)
            got, due = (
                number(part[name]["out"][key]) for part in (seen, want)
            )
            if not abs(got - due) <= 1e-9 * due:
                return Failure(f"{key} is {got:,g}; expected {due:,g}", name)
        return None

    return judge


def has_keys(seen, want, inputs):
    for name in inputs:
        out, due = seen[name]["out"], want[name]["out"]
        if isinstance(out, Raised):  # fails where its numbers are judged
            continue
        if not isinstance(out, dict):
            return Failure(f"{describe(out)} came back; a dict is due", name)
        if set(out) != set(due):
            return Failure(
                f"the keys are {', '.join(out)}; expected {', '.join(due)}",
                name,
            )
    return None


KEYS = law(
    "a dict with the keys",
    has_keys,
    gate=True,
    because="without the keys no number can be found",
    says="Return a dict with exactly the keys of the contract.",
)
COUNTED = "whole numbers or exact quotients, which floats hold to 1e-9"


# 6.1


def bytes_inputs(rng):
    L, G, T = (int(rng.randint(low, low + 5)) for low in (2, 8, 17))
    return {
        "all ones": case(1, 1, 1, 1),
        "small": case(2, 3, 5, 7),
        "drawn": case(L, G, 16, T),
        "a batch": case(2, 3, 5, 7, 11),
        "four bytes": case(2, 3, 5, 7, dtype_size=4),
        "a batch of one byte each": case(2, 3, 5, 7, 13, 1),
        "GPT-2 small, 1,024 tokens": case(12, 12, 64, 1024),
        "Llama 3 8B, 8,192 tokens": case(32, 8, 128, 8192),
        "Llama 2 70B, 131,072 tokens": case(80, 8, 128, 131072),
        # Ten digits, which float32 does not hold.
        "odd sizes": case(61, 7, 72, 130_001),
    }


kv_cache_bytes = Exercise(
    "kv_cache_bytes",
    bytes_inputs,
    of_calls(
        values(
            "one sequence",
            "all ones",
            "small",
            "drawn",
            points=1,
            gate=True,
            says=(
                "Each layer keeps, for each of its key-value heads and each "
                "token, one key and one value of d_head numbers; a number "
                "takes dtype_size bytes, 2 by default."
            ),
        ),
        values(
            "batch and dtype_size",
            "a batch",
            "four bytes",
            "a batch of one byte each",
            points=0.5,
            says=(
                "Each sequence of the batch has a cache of its own, and "
                "dtype_size is the size of one number in bytes."
            ),
        ),
        values(
            "real models",
            "GPT-2 small, 1,024 tokens",
            "Llama 3 8B, 8,192 tokens",
            "Llama 2 70B, 131,072 tokens",
            "odd sizes",
            points=0.5,
            says=(
                "Compare with the numbers in the text: 36 MiB for GPT-2 "
                "small at 1,024 tokens, 1 GiB for Llama 3 8B at 8,192. "
                "Nothing may be rounded: 32-bit numbers are too short."
            ),
        ),
    ),
)


# 6.2


def decode_inputs(rng):
    return {
        "two tokens": case(2),
        "three tokens": case(3),
        "drawn": case(int(rng.randint(5, 60))),
        "one token": case(1),
        "nothing": case(0),
        "100 tokens": case(100),
        "8,192 tokens": case(8192),
        # Sums that float32 does not hold, in any order of adding up.
        "10,007 tokens": case(10_007),
    }


decode_cost = Exercise(
    "decode_cost",
    decode_inputs,
    (
        RUNS,
        KEYS,
        law(
            "forwards_cache",
            counts("forwards_cache"),
            points=0.5,
            gate=True,
            because=COUNTED,
            says="With a cache each step pushes the new token alone.",
        ),
        law(
            "forwards_no_cache",
            counts("forwards_no_cache"),
            points=0.5,
            because=COUNTED,
            says=(
                "Without a cache step n pushes all n tokens through the "
                "model: add them up."
            ),
        ),
        law(
            "pairs_cache",
            counts("pairs_cache"),
            points=0.5,
            because=COUNTED,
            says=(
                "With a cache step n has one query, which sees n keys: the "
                "old ones and its own."
            ),
        ),
        law(
            "pairs_no_cache",
            counts("pairs_no_cache"),
            points=0.5,
            because=COUNTED,
            says=(
                "Without a cache step n has n queries; the first sees 1 key, "
                "the last n. Add up those sums."
            ),
        ),
        UNCHANGED,
        AGAIN,
    ),
)


def hbm_inputs(rng):
    N = int(rng.randint(50, 500))
    return {
        "small": case(8, 2, 16),
        "a quotient that is not whole": case(10, 3, 7),
        "drawn": case(N, 64, 4000),
        "GPT-2's heads on an A100": case(1024, 64, 98304),
        "longer than that": case(131072, 128, 98304),
        "one token": case(1, 64, 1000),
        # Less memory than a head's d² numbers: flash costs more here.
        "a small memory": case(100, 64, 1000),
    }


hbm_accesses = Exercise(
    "hbm_accesses",
    hbm_inputs,
    (
        RUNS,
        KEYS,
        law(
            "standard",
            counts("standard"),
            points=0.5,
            gate=True,
            because=COUNTED,
            says=(
                "Standard attention reads and writes matrices (N, d), and "
                "the scores (N, N): N·d + N²."
            ),
        ),
        law(
            "flash",
            counts("flash"),
            points=0.5,
            because=COUNTED,
            says=(
                "FlashAttention never writes the scores, but reads keys and "
                "values once a tile of queries: N²·d²/M, which need not be "
                "a whole number."
            ),
        ),
        UNCHANGED,
        AGAIN,
    ),
)


# Caches: a list of operations is played on objects of the answer's class.
# An operation is [object, method, arguments...], [object, ".attribute"], or
# one of the words in `_act`.


def played(build, ops, names=("cache",), strided=False):
    """build: arguments of the class, by position or by name"""
    return {
        "build": build,
        "names": list(names),
        "ops": [list(op) for op in ops],
        "strided": strided,
    }


def shuffled(rng):
    """A function that fills arrays with numbers that never repeat."""
    # Sevenths, which no narrower dtype than float64 holds.
    pool = iter(rng.permutation(5000) / 7 - 300)

    def fill(*shape):
        size = int(np.prod(shape))
        return np.array([next(pool) for _ in range(size)]).reshape(shape)

    return fill


def probe_cache(answer, inputs):
    return {name: _play(answer, one) for name, one in inputs.items()}


def _play(answer, one):
    """What each operation returns, at once, and whether it stays so.

    returns: {"out": results of the operations, "results kept", "given kept":
        whether tensors that were returned, or given, still have their values
        at the end, where the caller itself has not changed them}
    """
    try:
        objects = {name: _built(answer, one) for name in one["names"]}
    except BaseException as error:
        return {"out": stopped(error)}
    given, results, seen = [], [], []
    marks = {}
    for name, method, *args in one["ops"]:
        args = [_tensor(value, one["strided"]) for value in args]
        given.append([(each, plain(each)) for each in args])
        try:
            got = _act(objects[name], method, args, given, results, marks)
        except BaseException as error:
            got = stopped(error)
        note = plain(_where(got))
        results.append((got, note))
        seen.append(note)
    return {
        "out": seen,
        "results kept": all(
            _unchanged(_where(got), note)
            for got, note in results
            if note != OVERWRITTEN
        ),
        "given kept": all(
            _unchanged(value, note)
            for call in given
            for value, note in call
            if not isinstance(note, list | Raised) and note != OVERWRITTEN
        ),
    }


def _unchanged(value, note):
    now = plain(value)
    return not (form_difference(now, note) or value_difference(now, note, 0.0))


def _built(answer, one):
    build = one["build"]
    return answer(**build) if isinstance(build, dict) else answer(*build)


OVERWRITTEN = "overwritten"


def _tensor(value, strided):
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(np.array(value))
    if strided and tensor.ndim:
        tensor = tensor.repeat_interleave(2, dim=-1)[..., ::2]
    return tensor


def _act(target, method, args, given, results, marks):
    if method == "overwrite given":  # index of the operation
        for value, _ in given[args[0]]:
            if isinstance(value, torch.Tensor):
                value.fill_(1e6)
        given[args[0]] = [(value, OVERWRITTEN) for value, _ in given[args[0]]]
        return None
    if method == "overwrite result":
        for value in results[args[0]][0]:
            value.fill_(1e6)
        results[args[0]] = (None, OVERWRITTEN)
        return None
    if method == "update elsewhere":
        return target.update(args[0], *(x.to("meta") for x in args[1:]))
    if method == "stored between":
        return bool(args[0] <= target.stored <= args[1])
    if method == "mark memory":
        marks[id(target)] = _held(target, {})
        return None
    if method == "memory grew":
        return _held(target, {}) > marks[id(target)] + args[0]
    if method.startswith("."):
        return getattr(target, method[1:])
    return getattr(target, method)(*args)


def _where(got):
    """A result; of tensors that lie elsewhere, device and shape."""
    if isinstance(got, list | tuple):
        return [_where(part) for part in got]
    if isinstance(got, torch.Tensor) and got.device.type != "cpu":
        return [got.device.type, list(got.shape)]
    return got


def _held(value, known, depth=6):
    """How many numbers an object keeps in tensors, arrays and lists."""
    if id(value) in known or depth < 0:
        return 0
    known[id(value)] = value
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage._cdata in known:
            return 0
        known[storage._cdata] = storage
        return storage.nbytes() // value.element_size()
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, float):  # out of tolist, for instance
        return 1
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set) or hasattr(value, "popleft"):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return sum(_held(part, known, depth - 1) for part in parts)


def replays(exercise, *names):
    """A judge: in these cases every operation returns what is expected."""

    def judge(seen, want, inputs):
        for name in names:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(
                    f"{_story(exercise, inputs[name], 0)}: {trouble(got)}"
                )
            for index, (one, other) in enumerate(zip(got, due, strict=True)):
                difference = _result_difference(one, other)
                if difference:
                    story = _story(exercise, inputs[name], index + 1)
                    return Failure(f"{story}: {difference}")
        return None

    return judge


def _result_difference(got, due):
    if isinstance(due, Raised):
        if not isinstance(got, Raised):
            return f"{describe(got)} came back where a {due.kind} is due"
        if due.kind not in got.bases:
            return f"{trouble(got)}, where a {due.kind} is due"
        return None
    if isinstance(got, Raised):
        return trouble(got)
    return form_difference(got, due) or value_difference(got, due, 0.0)


SHOWN = 7  # operations quoted before the one that fails


def _story(exercise, one, upto):
    """The operations up to one, as a caller would write them."""
    build = one["build"]
    if isinstance(build, dict):
        size = ", ".join(f"{name}={build[name]!r}" for name in build)
    else:
        size = ", ".join(map(repr, build))
    told = [f"{name} = {exercise}({size})" for name in one["names"]]
    ops = [_said(op) for op in one["ops"][:upto]]
    if len(ops) > SHOWN:
        told.append(f"({len(ops) - SHOWN} more operations)")
    return "; ".join(told + ops[-SHOWN:])


def _said(op):
    name, method, *args = op
    if method.startswith("."):
        return f"{name}{method}"
    if method == "stored between":
        return f"is {name}.stored between {args[0]} and {args[1]}"
    if method == "memory grew":
        return f"has the memory that {name} holds grown since"
    if method in ("overwrite given", "overwrite result"):
        what = "given to" if method == "overwrite given" else "returned by"
        return f"the caller overwrites what was {what} call {args[0] + 1}"
    if method == "mark memory":
        return "(from here on)"
    elsewhere = " on the meta device" if method == "update elsewhere" else ""
    method = method.partition(" ")[0]
    arrays = [value for value in args if isinstance(value, np.ndarray)]
    shape = f" with k {arrays[0].shape}{elsewhere}" if arrays else ""
    shown = [
        "kv"[min(index - 1, 1)]
        if isinstance(value, np.ndarray)
        else repr(value)
        for index, value in enumerate(args)
    ]
    return f"{name}.{method}({', '.join(shown)}){shape}"


def stays(exercise, key, text):
    """A judge: nothing that the caller keeps changes behind its back."""

    def judge(seen, want, inputs):
        for name in inputs:
            if seen[name].get(key) is False:
                story = _story(
                    exercise, inputs[name], len(inputs[name]["ops"])
                )
                return Failure(f"{story}: {text}")
        return None

    return judge


def of_caches(exercise, *properties):
    """An exercise's own properties between those that all caches have."""
    return (
        RUNS,
        *properties,
        law(
            "results stay",
            stays(
                exercise,
                "results kept",
                "a tensor that was returned earlier has other values now",
            ),
            because="shown by what a caller overwrites, too",
            says=(
                "What was returned belongs to the caller: a later operation "
                "must not change it."
            ),
        ),
        law(
            "arguments unchanged",
            stays(
                exercise,
                "given kept",
                "a tensor that was given has other values now",
            ),
            because="a promise of the course to every caller",
            says="The caller still needs its tensors: do not change them.",
        ),
    )


def updates(fill):
    """A function that writes down updates with new numbers."""

    def update(layer, B, G, T, Dh, of="cache", dtype="float64"):
        pair = [fill(B, G, T, Dh).astype(dtype) for _ in "kv"]
        return [of, "update", layer, *pair]

    return update


def roomy_cases(update):
    """Cases of KVCache that are cases of RollingCache, too.

    The fourth size, a limit or a window, is large enough for all tokens.
    """
    small = (1, 1, 1, 2)
    return {
        "one token": played((1, 1, 1, 4, 2), [update(0, *small)]),
        "a prompt, then tokens": played(
            (1, 2, 3, 7, 5),
            [update(0, 2, 3, T, 5) for T in (3, 1, 2)],
        ),
        "views": played(
            (1, 2, 3, 7, 2),
            [update(0, 2, 3, T, 2) for T in (2, 1)],
            strided=True,
        ),
        "two layers": played(
            (2, 2, 3, 5, 2),
            [update(layer, 2, 3, T, 2) for T in (2, 1, 1) for layer in (0, 1)],
        ),
        "float32": played(
            (1, 1, 2, 4, 2),
            [update(0, 1, 2, T, 2, dtype="float32") for T in (2, 1)],
        ),
        "float16": played(
            (2, 1, 2, 4, 2),
            [update(0, 1, 2, T, 2, dtype="float16") for T in (2, 1)],
        ),
        "on another device": played(
            (1, 1, 2, 4, 2),
            [["cache", "update elsewhere", *update(0, 1, 2, 2, 2)[2:]]],
        ),
        "the caller overwrites what it gave": played(
            (1, 1, 2, 4, 2),
            [
                update(0, 1, 2, 2, 2),
                ["cache", "overwrite given", 0],
                update(0, 1, 2, 1, 2),
            ],
        ),
        "the caller overwrites what it got": played(
            (1, 1, 2, 6, 2),
            [
                update(0, 1, 2, 2, 2),
                update(0, 1, 2, 1, 2),
                ["cache", "overwrite result", 0],
                update(0, 1, 2, 1, 2),
                ["cache", "overwrite result", 3],
                update(0, 1, 2, 1, 2),
            ],
        ),
        # With one head the used part of a buffer is contiguous.
        "the caller overwrites what it got, one head": played(
            (1, 1, 1, 4, 2),
            [
                update(0, *small),
                ["cache", "overwrite result", 0],
                update(0, *small),
            ],
        ),
        "two caches": played(
            (1, 1, 2, 4, 2),
            [
                update(0, 1, 2, 2, 2),
                update(0, 1, 2, 1, 2, of="other"),
                ["cache", ".length"],
                ["other", ".length"],
                update(0, 1, 2, 1, 2),
                ["other", "reset"],
                ["cache", ".length"],
            ],
            names=("cache", "other"),
        ),
    }


# 6.3


def kv_inputs(rng):
    update = updates(shuffled(rng))
    length, reset = ["cache", ".length"], ["cache", "reset"]
    small, pair = (1, 1, 1, 2), (2, 3, 1, 2)
    one_layer = dict(n_layers=1, B=1, n_kv_heads=1, max_len=5, d_head=2)
    return roomy_cases(update) | {
        "token by token": played(
            one_layer, [update(0, *small) for _ in range(3)]
        ),
        "equal sizes": played(
            (1, 2, 2, 4, 2), [update(0, 2, 2, 2, 2) for _ in range(2)]
        ),
        "the last layer first": played(
            (3, 1, 2, 4, 2),
            [update(layer, 1, 2, 1, 2) for layer in (2, 0, 2, 1)],
        ),
        "length": played(
            (2, 1, 2, 6, 1),
            [
                length,
                update(0, 1, 2, 2, 1),
                length,
                update(1, 1, 2, 2, 1),
                length,
                update(1, 1, 2, 1, 1),
                length,
                update(0, 1, 2, 1, 1),
                length,
            ],
        ),
        "full to the last place": played(
            (1, 2, 1, 4, 2), [update(0, 2, 1, T, 2) for T in (3, 1)]
        ),
        "one token too many": played(
            (2, 1, 1, 2, 2), [update(0, *small) for _ in range(3)]
        ),
        "a prompt that is too long": played(
            (1, 2, 3, 4, 2), [update(0, 2, 3, 5, 2), length]
        ),
        "too long, then another dtype": played(
            (1, 1, 1, 2, 2),
            [update(0, 1, 1, 3, 2), update(0, *small, dtype="float32")],
        ),
        "after an overflow": played(
            (2, 2, 3, 4, 2),
            [
                update(0, 2, 3, 2, 2),
                update(1, 2, 3, 2, 2),
                update(0, 2, 3, 3, 2),
                length,
                update(0, 2, 3, 1, 2),
                update(1, 2, 3, 2, 2),
                length,
            ],
        ),
        "reset": played(
            (2, 2, 3, 4, 2),
            [
                update(0, 2, 3, 2, 2),
                update(1, 2, 3, 3, 2),
                reset,
                length,
                update(1, *pair),
                update(0, 2, 3, 4, 2),
                length,
            ],
        ),
        "reset, then another dtype": played(
            (1, 1, 2, 4, 2),
            [
                update(0, 1, 2, 2, 2),
                reset,
                update(0, 1, 2, 1, 2, dtype="float32"),
            ],
        ),
    }


_kv = functools.partial(replays, "KVCache")
KVCache = Exercise(
    "KVCache",
    kv_inputs,
    of_caches(
        "KVCache",
        law(
            "all tokens, oldest first",
            _kv(
                "one token",
                "token by token",
                "a prompt, then tokens",
                "equal sizes",
                "views",
            ),
            points=1.25,
            gate=True,
            says=(
                "update returns two tensors (B, n_kv_heads, T, d_head): "
                "all keys so far, then all values, along the time axis and "
                "with the new ones at the end."
            ),
        ),
        law(
            "layers",
            _kv("two layers", "the last layer first"),
            points=0.5,
            because="other cases have two layers, too; this one says so",
            says="Each layer has its own keys and values.",
        ),
        law(
            "length",
            _kv("length"),
            points=0.5,
            because="other cases ask for it, too; this one explains it",
            says=(
                "length counts the tokens that every layer holds: the least "
                "over the layers. It is an attribute, not a method."
            ),
        ),
        law(
            "overflow",
            _kv(
                "full to the last place",
                "one token too many",
                "a prompt that is too long",
                "too long, then another dtype",
                "after an overflow",
            ),
            points=0.75,
            says=(
                "max_len tokens fit. One more is a ValueError, raised before "
                "anything is stored or decided."
            ),
        ),
        law(
            "reset",
            _kv("reset", "reset, then another dtype"),
            points=0.5,
            says="After reset the cache is as empty as a new one.",
        ),
        law(
            "dtype and device",
            _kv("float32", "float16", "on another device"),
            says=(
                "The cache learns dtype and device from the first k that it "
                "is given, and returns the same."
            ),
        ),
        law(
            "shares nothing",
            _kv(
                "the caller overwrites what it gave",
                "the caller overwrites what it got",
                "the caller overwrites what it got, one head",
                "two caches",
            ),
            points=0.5,
            says=(
                "Copy what comes in and what goes out: the caller may "
                "overwrite its tensors, and two caches know nothing of each "
                "other."
            ),
        ),
    ),
    probe=probe_cache,
    kind="class",
)


# 6.4


class Joined:
    """A cache with the interface of exercise 6.3 that takes notes."""

    def __init__(self, n_layers):
        self.n_layers = n_layers
        self.notes = []
        self.reset()

    def reset(self):
        self.stored = [None] * self.n_layers

    @property
    def length(self):
        return min(
            0 if pair is None else pair[0].shape[2] for pair in self.stored
        )

    def update(self, layer, k, v):
        self.notes.append(f"{k.shape[2]} to layer {layer}")
        old = self.stored[layer]
        if old is not None:
            k, v = (
                torch.cat(pair, dim=2)
                for pair in zip(old, (k, v), strict=True)
            )
        self.stored[layer] = (k, v)
        return k, v


def cached_inputs(rng):
    def built(V, C, D, H, L):
        cfg = {
            "vocab_size": V,
            "context_length": C,
            "d_model": D,
            "n_heads": H,
            "n_layers": L,
        }
        weights = draw(rng, gpt_shapes(V, C, D, L))
        for name in ("tok_embed.weight", "pos_embed.weight"):
            weights[name] = weights[name] * 2
        return lambda *args, **call: module_case(
            ((), cfg), weights, *args, **call
        )

    def ids(V, *shape):
        return rng.randint(0, V, shape)

    one, small, large = (
        built(3, 2, 2, 1, 1),
        built(5, 8, 4, 2, 1),
        built(7, 9, 6, 3, 2),
    )
    equal = built(4, 4, 4, 4, 1)
    x, y = ids(7, 2, 6), ids(5, 1, 5)
    return {
        "one token": one(ids(3, 1, 1)),
        "without a cache": large(x),
        "equal sizes": equal(ids(4, 4, 4)),
        "the whole context": small(ids(5, 1, 8)),
        "all at once": small(y, chunks=[5]),
        "token by token": small(y, chunks=[1] * 5),
        "two layers, token by token": large(x[:, :4], chunks=[1] * 4),
        "a prompt, then tokens": large(x, chunks=[4, 1, 1]),
        "two chunks": small(y, chunks=[2, 3]),
        "two layers, chunks": large(x, chunks=[1, 3, 2]),
        "as many queries as old keys": large(x, chunks=[3, 3]),
        "to the end of the context": small(ids(5, 1, 8), chunks=[5, 3]),
        "beyond the context": small(ids(5, 1, 9)),
        "beyond the context with a cache": small(
            ids(5, 1, 10), chunks=[6, 3, 1]
        ),
        "two texts": small(ids(5, 2, 4), chunks=[2, 1, 1]),
        "the cache was reset": small(y, chunks=[3, 1, 1]),
        "a second text": small(y[:, :4], chunks=[2, 2]),
        "no cache after a cache": small(y, chunks=[3, 1, 1]),
        "moved to another device": small(y, chunks=[2, 1, 2]),
        "in training": small(y, mode="train"),
        "float32": small(y, dtype="float32"),
    }


def _stepped(module, cache, ids):
    """The logits of one step, or what it raises, on plain data."""
    try:
        with torch.no_grad():
            return plain(module(ids, cache))
    except Exception as error:
        return raised(error)


def _ids(one):
    """The ids of a case, as a tensor that an answer may spoil."""
    return torch.tensor(one["args"][0])


def _chunked(module, one, cache=None):
    """All chunks of a text through one cache."""
    cache = cache or Joined(len(module.blocks))
    chunks = _ids(one).split(one["kwargs"]["chunks"], dim=1)
    return {
        "logits": [_stepped(module, cache, part) for part in chunks],
        "notes": ", ".join(cache.notes),
        "length": cache.length,
    }


def _kept(module, one):
    """All chunks, and what the cache holds of the first row after them."""
    cache = Joined(len(module.blocks))
    return _chunked(module, one, cache) | {
        "kept": [
            None if pair is None else [part[:1] for part in pair]
            for pair in cache.stored
        ]
    }


def _two_texts(module, one):
    """The rows of a batch as two texts with a cache each, in turns."""
    caches = [Joined(len(module.blocks)) for _ in range(2)]
    logits = []
    for start, part in enumerate(
        _ids(one).split(one["kwargs"]["chunks"], dim=1)
    ):
        order = (0, 1) if start % 2 == 0 else (1, 0)
        logits += [
            _stepped(module, caches[row], part[row : row + 1]) for row in order
        ]
    return {"logits": logits, "notes": "", "length": caches[1].length}


def _reset(module, one):
    """A text, a reset of the cache, and the text again in chunks."""
    ids = _ids(one)
    cache = Joined(len(module.blocks))
    first = _stepped(module, cache, ids)
    cache.reset()
    parts = ids.split(one["kwargs"]["chunks"], dim=1)
    return {
        "logits": [first, *(_stepped(module, cache, part) for part in parts)],
        "notes": "",
        "length": cache.length,
    }


def _begun_anew(module, one):
    """A text in chunks, and its first chunk once more, on a new cache."""
    ids = _ids(one)
    parts = ids.split(one["kwargs"]["chunks"], dim=1)
    cache, other = (Joined(len(module.blocks)) for _ in range(2))
    logits = [_stepped(module, cache, part) for part in parts]
    return {
        "logits": [*logits, _stepped(module, other, parts[0])],
        "notes": "",
        "length": other.length,
    }


def _without_after(module, one):
    """Some chunks with a cache, and then the text without one."""
    ids = _ids(one)
    cache = Joined(len(module.blocks))
    first, second, _ = ids.split(one["kwargs"]["chunks"], dim=1)
    return {
        "logits": [
            _stepped(module, cache, first),
            _stepped(module, None, ids),
            _stepped(module, cache, second),
        ],
        "notes": "",
        "length": cache.length,
    }


def _moved(module, one):
    """Whether chunks with a cache work on a device to which it is moved."""
    module.to("meta")
    cache = Joined(len(module.blocks))
    chunks = one["kwargs"]["chunks"]

    def steps(ids):
        return [module(part, cache) for part in ids.split(chunks, dim=1)]

    return stays_there(steps, {**one, "kwargs": {}})


KEPT = "a prompt, then tokens"
SCRIPTS = {
    name: _chunked
    for name in (
        "all at once",
        "token by token",
        "two layers, token by token",
        "two chunks",
        "two layers, chunks",
        "as many queries as old keys",
        "to the end of the context",
        "beyond the context with a cache",
    )
} | {
    KEPT: _kept,
    "two texts": _two_texts,
    "the cache was reset": _reset,
    "a second text": _begun_anew,
    "no cache after a cache": _without_after,
    "moved to another device": _moved,
}


TOO_LONG = "beyond the context with a cache"


def probe_cached(answer, inputs):
    def built(**how):
        return answer(GPTConfig(**how))

    return call_modules(built, inputs, SCRIPTS)


def _cached_logits(*names):
    def judge(seen, want, inputs):
        for name in names:
            got, due = seen[name]["out"], want[name]["out"]
            if isinstance(got, Raised):
                return Failure(trouble(got), name)
            for step, (one, other) in enumerate(
                zip(got["logits"], due["logits"], strict=True), start=1
            ):
                difference = _step_difference(one, other)
                if difference:
                    return Failure(f"at step {step}, {difference}", name)
        return None

    return judge


def _step_difference(got, due):
    if isinstance(due, Raised):
        return _result_difference(got, due)
    if isinstance(got, Raised):
        return trouble(got)
    return form_difference(got, due) or value_difference(got, due, 1e-10)


def _only_new(seen, want, inputs):
    for name in SCRIPTS:
        if SCRIPTS[name] in (_chunked, _kept) and name != TOO_LONG:
            failure = _notes(seen, want, name)
            if failure:
                return failure
    got, due = (part[KEPT]["out"]["kept"] for part in (seen, want))
    for layer, (one, other) in enumerate(zip(got, due, strict=True)):
        difference = form_difference(one, other) or value_difference(
            one, other, 1e-10
        )
        if difference:
            return Failure(
                f"keys and values of layer {layer} in the cache: {difference}",
                KEPT,
            )
    return None


def _notes(seen, want, name):
    got, due = seen[name]["out"], want[name]["out"]
    if isinstance(got, Raised):
        return Failure(trouble(got), name)
    if got["notes"] != due["notes"]:
        return Failure(
            f"the cache was given {got['notes'] or 'nothing'} (tokens); "
            f"expected {due['notes']}",
            name,
        )
    if got["length"] != due["length"]:
        return Failure(
            f"in the end the cache holds {got['length']} tokens; "
            f"expected {due['length']}",
            name,
        )
    return None


def _cached_form(seen, want, inputs):
    for name in inputs:
        if name not in SCRIPTS:
            failure = FORM.judge(seen, want, {name: inputs[name]})
            if failure:
                return failure
    return None


HEAD = {"lm_head.weight", "tok_embed.weight"}


def _tied(seen, want, inputs):
    for name in inputs:
        ties = seen[name].get("built", {}).get("ties")
        if ties is None or ties == want[name]["built"]["ties"]:
            continue
        odd = [group for group in ties if set(group) != HEAD]
        return Failure(
            f"these are one parameter: {', '.join(odd[0])}"
            if odd
            else f"{' and '.join(sorted(HEAD))} are two parameters",
            name,
        )
    return None


def _too_long(seen, want, inputs):
    out = seen["beyond the context"]["out"]
    difference = _result_difference(out, want["beyond the context"]["out"])
    if difference:
        return Failure(difference, "beyond the context")
    return _cached_logits(TOO_LONG)(seen, want, inputs) or _notes(
        seen, want, TOO_LONG
    )


def of_cached(*properties):
    runs, names, _, unchanged, again = of_modules(twins=False)
    form = dataclasses.replace(FORM, judge=_cached_form)
    return (runs, names, form, *properties, unchanged, again)


CachedGPT = Exercise(
    "CachedGPT",
    cached_inputs,
    of_cached(
        law(
            "one matrix for embedding and head",
            _tied,
            because="names of parameters do not show it",
            says=(
                "The head and the token embedding are one Parameter under "
                "two names; every other Parameter has one name."
            ),
        ),
        values(
            "without a cache",
            "one token",
            "without a cache",
            "equal sizes",
            "the whole context",
            points=1.5,
            gate=True,
            says=(
                "Without a cache it is the GPT of chapter 5: embeddings of "
                "tokens and positions, pre-LN blocks with causal attention "
                "and tanh GELU, the final norm, the head."
            ),
        ),
        law(
            "token by token",
            _cached_logits(
                "all at once",
                "token by token",
                "two layers, token by token",
                "a prompt, then tokens",
            ),
            points=1.75,
            because="tells a wrong position from a wrong mask",
            says=(
                "Fed one token a time, the model must give the logits that "
                "it gives for the whole text: new positions go on where the "
                "cache ends, and new queries see all keys that the cache "
                "returns."
            ),
        ),
        law(
            "chunks",
            _cached_logits(
                "two chunks",
                "two layers, chunks",
                "as many queries as old keys",
                "to the end of the context",
            ),
            points=1.25,
            because="tells a wrong mask from one that is out of date",
            says=(
                "Within a chunk causality still holds, aligned to the lower "
                "right: the last query sees every key, the one before it all "
                "but the newest."
            ),
        ),
        law(
            "only what is new",
            _only_new,
            points=1.5,
            says=(
                "Each call gives each layer of the cache the keys and values "
                "of the new tokens, once, as they come from the projection."
            ),
        ),
        law(
            "past the context",
            _too_long,
            points=0.5,
            says=(
                "What the cache holds counts, too: more than context_length "
                "tokens in all are a ValueError, before anything is stored."
            ),
        ),
        law(
            "the cache is the only memory",
            _cached_logits(
                "two texts", "the cache was reset", "no cache after a cache"
            ),
            points=0.5,
            because="tells what the model keeps from its masks",
            says=(
                "The model itself remembers nothing: two caches are two "
                "texts, a cache that was reset is empty, and without a cache "
                "each call begins anew."
            ),
        ),
        law(
            "chunks of a second text",
            _cached_logits("a second text"),
            says=(
                "As many new queries may meet many keys, or few when another "
                "text begins: the mask depends on both numbers."
            ),
        ),
        values(
            "in training",
            "in training",
            says="dropout is 0: in training, too, nothing is dropped.",
        ),
        values(
            "float32",
            "float32",
            tol=2e-5,
            because=SINGLE,
            says="float32 weights give float32 logits.",
        ),
        follows_device("moved to another device"),
    ),
    probe=probe_cached,
    kind="class",
)


# 6.5


def window_inputs(rng):
    T, window = int(rng.randint(9, 13)), int(rng.randint(3, 6))
    return {
        "square": case(4, 4, 2),
        "a window of three": case(5, 5, 3),
        "drawn": case(T, T, window),
        "a window of one": case(3, 3, 1),
        "all sizes equal": case(3, 3, 3),
        "a window wider than the text": case(3, 3, 7),
        "one new query": case(1, 6, 3),
        "two new queries": case(2, 6, 3),
        "three new queries": case(3, T, window),
        "more queries than keys": case(5, 2, 2),
        "far more queries than keys": case(T, 3, 4),
        "by name": case(Tq=2, Tk=5, window=2),
    }


sliding_window_mask = Exercise(
    "sliding_window_mask",
    window_inputs,
    of_calls(
        values(
            "as many queries as keys",
            "square",
            "a window of three",
            "drawn",
            points=0.5,
            gate=True,
            says=(
                "True for the query's own key and the window − 1 before it: "
                "window keys in all."
            ),
        ),
        values(
            "narrow and wide windows",
            "a window of one",
            "all sizes equal",
            "a window wider than the text",
            points=0.25,
            because="the two ends: the diagonal, and the causal mask",
            says=(
                "With a window of 1 a query sees itself alone; with a wide "
                "one it sees all that came before."
            ),
        ),
        values(
            "fewer queries than keys",
            "one new query",
            "two new queries",
            "three new queries",
            "by name",
            points=0.5,
            because="tells a wrong alignment from a wrong width",
            says=(
                "The queries are the newest positions: the last one sees the "
                "last window keys. Both edges move along with it."
            ),
        ),
        values(
            "more queries than keys",
            "more queries than keys",
            "far more queries than keys",
            points=0.25,
            because="tells a wrong offset from a wrong width",
            says=(
                "With more queries than keys, the first Tq − Tk queries "
                "stand before every key and see none."
            ),
        ),
    ),
)


def rolling_inputs(rng):
    update = updates(shuffled(rng))

    def stored(low, high):
        return ["cache", "stored between", low, high]

    length, reset = ["cache", ".length"], ["cache", "reset"]
    return roomy_cases(update) | {
        "up to the window": played(
            (1, 1, 1, 3, 2), [update(0, 1, 1, 1, 2) for _ in range(3)]
        ),
        "past the window": played(
            (1, 1, 1, 2, 1), [update(0, 1, 1, 1, 1) for _ in range(5)]
        ),
        "a wider window": played(
            (1, 2, 1, 3, 2), [update(0, 2, 1, 1, 2) for _ in range(7)]
        ),
        "a window of one": played(
            (1, 1, 1, 1, 2), [update(0, 1, 1, 1, 2) for _ in range(3)]
        ),
        "equal sizes": played(
            (1, 2, 2, 2, 2), [update(0, 2, 2, 1, 2) for _ in range(4)]
        ),
        "a chunk as long as the window": played(
            (1, 1, 2, 3, 1), [update(0, 1, 2, 3, 1) for _ in range(3)]
        ),
        "a prompt longer than the window": played(
            (1, 1, 2, 3, 1), [update(0, 1, 2, T, 1) for T in (5, 1, 2)]
        ),
        "a long chunk in the middle": played(
            (1, 1, 2, 3, 1), [update(0, 1, 2, T, 1) for T in (2, 4, 1, 7, 1)]
        ),
        "length": played(
            (2, 1, 1, 3, 1),
            [
                length,
                update(0, 1, 1, 2, 1),
                length,
                update(1, 1, 1, 2, 1),
                length,
                update(0, 1, 1, 1, 1),
                update(1, 1, 1, 1, 1),
                update(0, 1, 1, 1, 1),
                update(1, 1, 1, 1, 1),
                length,
                update(1, 1, 1, 1, 1),
                length,
            ],
        ),
        "stored": played(
            (1, 1, 1, 3, 1),
            [
                stored(0, 0),
                update(0, 1, 1, 1, 1),
                stored(1, 1),
                update(0, 1, 1, 1, 1),
                stored(2, 2),
                update(0, 1, 1, 5, 1),
                stored(2, 3),
                update(0, 1, 1, 1, 1),
                stored(2, 3),
                update(0, 1, 1, 2, 1),
                stored(2, 3),
            ],
        ),
        "stored in two layers": played(
            (2, 1, 1, 3, 1),
            [
                update(0, 1, 1, 2, 1),
                stored(0, 0),
                update(1, 1, 1, 1, 1),
                stored(1, 1),
                update(1, 1, 1, 2, 1),
                stored(2, 2),
            ],
        ),
        "a long text": played(
            (1, 1, 1, 2, 1),
            [
                *(update(0, 1, 1, 1, 1) for _ in range(6)),
                ["cache", "mark memory"],
                *(update(0, 1, 1, 1, 1) for _ in range(9)),
                ["cache", "memory grew", 8],
                length,
            ],
        ),
        "a long prompt first": played(
            (1, 1, 1, 2, 1),
            [
                ["cache", "mark memory"],
                update(0, 1, 1, 30, 1),
                ["cache", "memory grew", 16],
            ],
        ),
        "a long prompt": played(
            (1, 1, 1, 2, 1),
            [
                update(0, 1, 1, 2, 1),
                ["cache", "mark memory"],
                update(0, 1, 1, 30, 1),
                ["cache", "memory grew", 8],
            ],
        ),
        "two layers, rolling": played(
            (2, 2, 1, 3, 2),
            [update(layer, 2, 1, 1, 2) for _ in range(5) for layer in (0, 1)],
        ),
        "one layer ahead": played(
            (2, 1, 1, 3, 1),
            [update(layer, 1, 1, 1, 1) for layer in (0, 0, 1, 0, 0, 1, 1, 0)],
        ),
        "reset": played(
            (2, 1, 2, 3, 1),
            [
                update(0, 1, 2, 2, 1),
                update(1, 1, 2, 3, 1),
                reset,
                length,
                stored(0, 0),
                update(1, 1, 2, 1, 1, dtype="float32"),
                update(0, 1, 2, 2, 1, dtype="float32"),
                length,
            ],
        ),
    }


_rolls = functools.partial(replays, "RollingCache")
RollingCache = Exercise(
    "RollingCache",
    rolling_inputs,
    of_caches(
        "RollingCache",
        law(
            "inside the window",
            _rolls(
                "one token",
                "up to the window",
                "a prompt, then tokens",
                "views",
            ),
            points=0.5,
            gate=True,
            because="nothing rolls yet: a cache like that of 6.3",
            says=(
                "As long as no more than window tokens were seen, update "
                "returns them all: keys, then values, oldest first."
            ),
        ),
        law(
            "past the window",
            _rolls(
                "past the window",
                "a wider window",
                "a window of one",
                "equal sizes",
            ),
            points=0.75,
            says=(
                "Tokens that no new query sees are gone: with one new token "
                "exactly window are returned, in the order in which they "
                "came."
            ),
        ),
        law(
            "chunks",
            _rolls(
                "a chunk as long as the window",
                "a prompt longer than the window",
                "a long chunk in the middle",
            ),
            points=0.5,
            because="tells what a chunk needs from what one token needs",
            says=(
                "The first of Tnew queries sees window − 1 older keys, the "
                "last its own: window − 1 + Tnew are needed, however long "
                "the chunk is."
            ),
        ),
        law(
            "length and stored",
            _rolls(
                "length",
                "stored",
                "stored in two layers",
                "a long text",
                "a long prompt first",
                "a long prompt",
            ),
            points=0.5,
            says=(
                "length counts all tokens that every layer has seen, stored "
                "those that are kept, window at most; and memory does not "
                "grow with the text."
            ),
        ),
        law(
            "layers and reset",
            _rolls(
                "two layers",
                "two layers, rolling",
                "one layer ahead",
                "reset",
            ),
            points=0.25,
            says=(
                "Each layer rolls by itself; after reset the cache is as a "
                "new one."
            ),
        ),
        law(
            "dtype and device",
            _rolls("float32", "float16", "on another device"),
            says="What comes back has k's dtype and device.",
        ),
        law(
            "shares nothing",
            _rolls(
                "the caller overwrites what it gave",
                "the caller overwrites what it got",
                "the caller overwrites what it got, one head",
                "two caches",
            ),
            because="a promise of the lesson to every caller",
            says="Copy what comes in and what goes out.",
        ),
    ),
    probe=probe_cache,
    kind="class",
)


# 6.6


def paged_inputs(rng):
    fill = shuffled(rng)

    def append(seq, shape=(2,), v_shape=None, dtype="float64"):
        pair = fill(*shape), fill(*(shape if v_shape is None else v_shape))
        return ["cache", "append", seq, *(x.astype(dtype) for x in pair)]

    def do(method, *args):
        return ["cache", method, *args]

    free = do(".free_blocks")

    def gather(seq):
        return do("gather", seq)

    def several(seq, count):
        return [append(seq) for _ in range(count)]

    return {
        "one token": played((3, 2), [append("a"), gather("a")]),
        "several blocks": played(
            dict(n_blocks=4, block_size=2), [*several("a", 5), gather("a")]
        ),
        "two sequences": played(
            (5, 2),
            [
                append("a"),
                append("b"),
                append("a"),
                append("a"),
                append("b"),
                gather("a"),
                gather("b"),
            ],
        ),
        "tokens of any shape": played(
            (3, 2),
            [
                *(append(7, (2, 3, 1), (2, 3, 2)) for _ in range(3)),
                gather(7),
            ],
        ),
        "tokens that are numbers": played(
            (2, 3), [append(0, (), ()), append(0, (), ()), gather(0)]
        ),
        "free blocks": played(
            (4, 2),
            [
                free,
                append("a"),
                free,
                append("a"),
                free,
                append("a"),
                free,
                append("b"),
                free,
            ],
        ),
        "blocks of sixteen": played(
            (3,),
            [
                *(append("a", (1,)) for _ in range(16)),
                free,
                append("a", (1,)),
                free,
            ],
        ),
        "blocks of one": played(
            (3, 1), [append("a"), free, append("a"), free, gather("a")]
        ),
        "a fork": played(
            (4, 2), [*several("a", 3), do("fork", "a", "b"), gather("b")]
        ),
        # A copy of two tokens: with blocks of two it is always one.
        "the fork goes on": played(
            (5, 3),
            [
                *several("a", 5),
                do("fork", "a", "b"),
                append("b"),
                gather("a"),
                gather("b"),
            ],
        ),
        "the original goes on": played(
            (5, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                append("a"),
                append("b"),
                append("b"),
                gather("a"),
                gather("b"),
            ],
        ),
        "a fork at a full block": played(
            (5, 2),
            [
                *several("a", 2),
                do("fork", "a", "b"),
                append("b"),
                append("a"),
                gather("a"),
                gather("b"),
            ],
        ),
        "a fork of a fork": played(
            (7, 2),
            [
                append("a"),
                do("fork", "a", "b"),
                do("fork", "b", "c"),
                append("c"),
                append("a"),
                append("b"),
                gather("a"),
                gather("b"),
                gather("c"),
            ],
        ),
        "blocks of a fork": played(
            (6, 2),
            [
                *several("a", 3),
                free,
                do("fork", "a", "b"),
                free,
                append("b"),
                free,
                append("a"),
                free,
                append("b"),
                free,
            ],
        ),
        "blocks of a fork at a full block": played(
            (6, 2),
            [
                *several("a", 2),
                do("fork", "a", "b"),
                free,
                append("b"),
                free,
                append("a"),
                free,
            ],
        ),
        "blocks of a fork, the original first": played(
            (6, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                append("a"),
                free,
                append("b"),
                free,
            ],
        ),
        "freed": played(
            (3, 2),
            [
                *several("a", 3),
                append("b"),
                do("free", "a"),
                free,
                gather("b"),
                *several("c", 4),
                gather("b"),
                gather("c"),
                free,
            ],
        ),
        "a name is used again": played(
            (3, 2),
            [
                append("a"),
                gather("a"),
                *several("a", 2),
                do("free", "a"),
                append("a"),
                gather("a"),
                free,
            ],
        ),
        "a name is forked to again": played(
            (3, 2),
            [
                append("a"),
                do("fork", "a", "b"),
                do("free", "b"),
                do("fork", "a", "b"),
                gather("b"),
                free,
            ],
        ),
        "the original is freed": played(
            (4, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                do("free", "a"),
                free,
                gather("b"),
                append("b"),
                free,
                *several("c", 4),
                gather("b"),
                free,
                do("free", "b"),
                free,
            ],
        ),
        "the fork is freed": played(
            (4, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                append("b"),
                do("free", "b"),
                free,
                append("a"),
                gather("a"),
                free,
            ],
        ),
        "full": played(
            (2, 2),
            [
                *several("a", 3),
                append("b"),
                append("a"),
                gather("a"),
                free,
                append("a"),
                gather("a"),
                gather("b"),
            ],
        ),
        "a name that was refused": played(
            (2, 2),
            [
                *several("a", 3),
                append("b"),
                gather("b"),
                do("fork", "a", "b"),
                gather("b"),
            ],
        ),
        "full when a copy is due": played(
            (2, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                append("b"),
                gather("a"),
                gather("b"),
                do("free", "a"),
                append("b"),
                gather("b"),
                free,
            ],
        ),
        "full, and alone with a block": played(
            (3, 2),
            [
                *several("a", 3),
                do("fork", "a", "b"),
                append("b"),
                free,
                append("a"),
                gather("a"),
                gather("b"),
            ],
        ),
        "unknown names": played(
            (3, 2),
            [
                gather("a"),
                do("free", "a"),
                do("fork", "a", "b"),
                append("a"),
                do("free", "a"),
                gather("a"),
                do("fork", "a", "b"),
                do("free", "a"),
                free,
            ],
        ),
        "names that were unknown": played(
            (3, 2),
            [
                gather("b"),
                do("free", "c"),
                do("fork", "a", "d"),
                do("fork", "a", "a"),
                append("a"),
                *(do("fork", "a", name) for name in "bcd"),
                gather("d"),
                append(1),
                gather("1"),
            ],
        ),
        "a name that is taken": played(
            (3, 2),
            [
                append("a"),
                append("b"),
                do("fork", "a", "b"),
                gather("b"),
                do("fork", "a", "a"),
                gather("a"),
                append("a"),
                do("free", "a"),
                do("free", "b"),
                free,
            ],
        ),
        "float16": played((2, 2), [append("a", dtype="float16"), gather("a")]),
        "the caller overwrites its tensors": played(
            (3, 2),
            [
                append("a"),
                ["cache", "overwrite given", 0],
                gather("a"),
                append("a"),
                ["cache", "overwrite result", 2],
                gather("a"),
            ],
        ),
        "two caches": played(
            (2, 2),
            [
                append("a"),
                ["other", *append("a")[1:]],
                gather("a"),
                ["other", "gather", "a"],
                free,
                ["other", "free", "a"],
                gather("a"),
            ],
            names=("cache", "other"),
        ),
        "random operations": played((6, 2), _random_ops(append)),
    }


def _random_ops(append, count=60):
    """Operations on sequences that exist, whatever the cache can hold.

    They are the same in every draw, and so is what they find.
    """
    rng = np.random.RandomState(6)
    names, made = ["s0", "s1"], 2
    ops = [append(name, (1,)) for name in names]
    for _ in range(count):
        seq = names[rng.randint(len(names))]
        draw_ = rng.rand()
        if draw_ < 0.6:
            ops.append(append(seq, (1,)))
        elif draw_ < 0.75 and len(names) < 5:
            names.append(f"s{made}")
            made += 1
            ops.append(["cache", "fork", seq, names[-1]])
        elif draw_ < 0.85 and len(names) > 1:
            names.remove(seq)
            ops.append(["cache", "free", seq])
        else:
            ops.append(["cache", "gather", seq])
        ops.append(["cache", ".free_blocks"])
    return ops + [["cache", "gather", name] for name in names]


_pages = functools.partial(replays, "PagedKVCache")
PagedKVCache = Exercise(
    "PagedKVCache",
    paged_inputs,
    of_caches(
        "PagedKVCache",
        law(
            "append and gather",
            _pages(
                "one token",
                "several blocks",
                "two sequences",
                "tokens of any shape",
                "tokens that are numbers",
            ),
            points=1.25,
            gate=True,
            says=(
                "gather returns a sequence's keys and its values, stacked "
                "along a new first axis, in the order in which they were "
                "appended, whatever other sequences do in between."
            ),
        ),
        law(
            "free blocks",
            _pages("free blocks", "blocks of sixteen", "blocks of one"),
            points=1,
            says=(
                "A sequence of T tokens holds as few blocks as hold T "
                "tokens; a new block is taken when the last one is full and "
                "not before. A block belongs to one sequence."
            ),
        ),
        law(
            "forks",
            _pages(
                "a fork",
                "the fork goes on",
                "the original goes on",
                "a fork at a full block",
                "a fork of a fork",
            ),
            points=1,
            because="random operations fail, too, and do not say why",
            says=(
                "After a fork both sequences have the same past and each "
                "its own future: a token appended to one must not appear in "
                "the other."
            ),
        ),
        law(
            "copy on write",
            _pages(
                "blocks of a fork",
                "blocks of a fork, the original first",
                "blocks of a fork at a full block",
            ),
            points=1,
            because="random operations fail, too, and do not say why",
            says=(
                "A fork takes no block. The first to write into a shared "
                "block that is not full takes a free one and copies; the "
                "other, now alone, writes in place. Full blocks stay shared."
            ),
        ),
        law(
            "free",
            _pages(
                "freed",
                "a name is used again",
                "a name is forked to again",
                "the original is freed",
                "the fork is freed",
            ),
            points=0.75,
            because="random operations fail, too, and do not say why",
            says=(
                "A block is free again when no sequence uses it any more, "
                "and not before."
            ),
        ),
        law(
            "full",
            _pages(
                "full",
                "a name that was refused",
                "full when a copy is due",
                "full, and alone with a block",
            ),
            points=0.5,
            says=(
                "Where a block is needed and none is free, append is a "
                "RuntimeError that leaves everything as it was, and starts "
                "no sequence."
            ),
        ),
        law(
            "names",
            _pages(
                "unknown names",
                "names that were unknown",
                "a name that is taken",
            ),
            points=0.5,
            says=(
                "A sequence that does not exist is a KeyError in gather, "
                "free and fork; a fork's new name that exists is a "
                "ValueError. Look first, and change nothing."
            ),
        ),
        law(
            "dtype",
            _pages("float16"),
            because="what is stored is moved, not computed",
            says="What comes back has the dtype of what was appended.",
        ),
        law(
            "shares nothing",
            _pages("the caller overwrites its tensors", "two caches"),
            says=(
                "Copy what comes in and what goes out; two caches know "
                "nothing of each other."
            ),
        ),
        law(
            "random operations",
            _pages("random operations"),
            because="combinations that nobody thought of",
            says=(
                "After many operations something differs: replay the last "
                "ones by hand, block by block."
            ),
        ),
    ),
    probe=probe_cache,
    kind="class",
)


# 6.7


def state_inputs(rng):
    hidden = rng.randn(3, 4)
    hidden[0, 1] = hidden[1, :3] = hidden[2] = -np.inf
    return {
        "three scores": case(rng.randn(3).round(1)),
        "rows": case(rng.randn(2, 5)),
        "a square": case(rng.randn(3, 3)),
        "three axes": case(rng.randn(2, 3, 5) * 3),
        "a view": case(rng.randn(3, 4), strided=True),
        "all far below 0": case(rng.randn(2, 3) - 1000),
        "large scores": case(rng.randn(2, 3) + np.array([[1e4], [-1e4]])),
        "one score": case(rng.randn(2, 1)),
        "some hidden": case(hidden[:2]),
        "all hidden": case(hidden),
        "nothing": case(np.zeros((2, 0))),
        "nothing at all": case(np.zeros(0)),
        "float32": case(rng.randn(2, 5).astype("float32")),
    }


def _arrays(out):
    """m and l of a state."""
    return (
        np.asarray(part.data if isinstance(part, Array) else part, float)
        for part in out
    )


def _log_sum(out):
    """m + ln l of a state."""
    top, total = _arrays(out)
    with np.errstate(all="ignore"):
        return top + np.log(total)


def _filled(out, due):
    """How a state without any score is not (-inf, 0), or None.

    due: m + ln l, where such states are -inf
    """
    empty = np.isneginf(due)
    for part, letter, value in zip(
        _arrays(out), "ml", (-np.inf, 0), strict=True
    ):
        odd = part[empty & (part != value)]
        if odd.size:
            return (
                f"where nothing is visible, {letter} is {odd.flat[0]:g}; "
                f"expected {value:g}"
            )
    return None


def state_form(seen, want, inputs):
    for name in inputs:
        out, due = seen[name]["out"], want[name]["out"]
        if isinstance(out, Raised):
            continue
        if not isinstance(out, list) or len(out) != 2:
            return Failure(
                f"{describe(out)} came back; two are due, m and l", name
            )
        for part, other, letter in zip(out, due, "ml", strict=True):
            if not isinstance(part, Array | int | float):
                return Failure(f"{letter} is {describe(part)}", name)
            shape = part.data.shape if isinstance(part, Array) else ()
            if shape != other.data.shape:
                return Failure(
                    f"{letter} has the shape {shape} where "
                    f"{other.data.shape} is due",
                    name,
                )
            if shape and form_difference(part, other):
                return Failure(
                    f"{letter} is {describe(part)} where {describe(other)} "
                    "is due",
                    name,
                )
    return None


STATE_FORM = law(
    "shape and dtype",
    state_form,
    because="read before values, since it explains them",
    says=(
        "Return m and l, in this order: two arrays of the shape and dtype in "
        "the docstring."
    ),
)


def stands_for(*names, tol=1e-10):
    """A judge: m + ln l is what is expected, and (-inf, 0) means nothing."""

    def judge(seen, want, inputs):
        for name in names:
            out = seen[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            got, due = (_log_sum(part[name]["out"]) for part in (seen, want))
            if got.shape != due.shape:
                return Failure("m or l has another shape", name)
            difference = value_difference(
                Array("numpy", "float64", got),
                Array("numpy", "float64", due),
                tol,
            )
            if difference:
                return Failure(f"m + ln l: {difference}", name)
            filled = _filled(seen[name]["out"], due)
            if filled:
                return Failure(filled, name)
        return None

    return judge


online_softmax_state = Exercise(
    "online_softmax_state",
    state_inputs,
    (
        RUNS,
        STATE_FORM,
        law(
            "moderate scores",
            stands_for(
                "three scores",
                "rows",
                "a square",
                "three axes",
                "a view",
                "one score",
            ),
            points=0.75,
            gate=True,
            says=(
                "m is the largest score of each row and l the sum of "
                "exp(s − m) over the row, so that exp(m)·l is the "
                "denominator of its softmax."
            ),
        ),
        law(
            "extreme scores",
            stands_for("all far below 0", "large scores"),
            points=0.25,
            says=(
                "m has to be a score of the row, however low: with another "
                "starting value all exponentials vanish, or overflow."
            ),
        ),
        law(
            "hidden scores, empty rows",
            stands_for(
                "some hidden", "all hidden", "nothing", "nothing at all"
            ),
            points=0.5,
            says=(
                "A score of −inf adds nothing. Where nothing is visible the "
                "state is (−inf, 0), without NaN and without an error."
            ),
        ),
        law(
            "float32",
            stands_for("float32", tol=2e-6),
            because=SINGLE,
            says="float32 scores give a float32 state.",
        ),
        UNCHANGED,
        AGAIN,
    ),
    probe=call_numpy,
)


def _states(s):
    """States of scores (..., n): maximum, and the sum relative to it."""
    m = s.max(-1)
    safe = np.where(np.isfinite(m), m, 0)
    return m, np.exp(s - safe[..., None]).sum(-1)


def merge_inputs(rng):
    def pair(*parts):
        return case(*(_states(part) for part in parts))

    def fold(*parts, order):
        return {
            "states": [list(_states(part)) for part in parts],
            "order": order,
        }

    low, high = rng.randn(2, 3, 4), rng.randn(2, 3, 4) + 9
    empty, mixed = np.full((3, 2), -np.inf), rng.randn(3, 2)
    mixed[1] = -np.inf
    some = rng.randn(3, 5)
    blocks = [rng.randn(2, 3) + step for step in (0, 2, 4, 6, 8)]
    return {
        "second larger": pair(low[0], high[0]),
        "first larger": pair(high[1], low[1]),
        "now one, now the other": pair(
            some + np.array([[3.0], [-3.0], [0.0]]), rng.randn(3, 4)
        ),
        "equal maxima": pair(some, some[:, ::-1]),
        "more axes": pair(rng.randn(2, 3, 4), rng.randn(2, 3, 5) * 2),
        "far apart": pair(rng.randn(2, 3) + 1e4, rng.randn(2, 4) - 1e4),
        "far apart, the other way": pair(
            rng.randn(2, 3) - 1e4, rng.randn(2, 4) + 1e4
        ),
        "rows far apart": pair(
            rng.randn(3, 3) + 1e4 * np.array([[1], [-1], [-1]]),
            rng.randn(3, 4) + 1e4 * np.array([[-1], [1], [-1]]),
        ),
        "both far below 0": pair(rng.randn(2, 3) - 2e3, rng.randn(2, 4) - 2e3),
        "second empty": pair(some, empty),
        "first empty": pair(empty, some),
        "rows that are empty": pair(mixed, some),
        "rows that are empty in both": pair(mixed, 2 * mixed),
        "both empty": pair(empty, empty),
        "float32": pair(
            rng.randn(2, 3).astype("float32"),
            rng.randn(2, 3).astype("float32") + np.float32(2),
        ),
        "five blocks, rising": fold(*blocks, order="in order"),
        "five blocks, backwards": fold(*blocks[::-1], order="in order"),
        "five blocks, as a tree": fold(*blocks, order="tree"),
        "an empty start": fold(
            np.full((2, 1), -np.inf), *blocks, order="in order"
        ),
    }


def probe_merge(answer, inputs):
    calls = {name: one for name, one in inputs.items() if "args" in one}
    seen = call_numpy(answer, calls)
    for name, one in inputs.items():
        if "states" in one:
            seen[name] = {"out": _folded(answer, one)}
    return seen


def _folded(answer, one):
    states = [tuple(map(np.array, pair)) for pair in one["states"]]
    try:
        if one["order"] == "in order":
            return plain(functools.reduce(answer, states))
        while len(states) > 1:
            pairs = zip(states[::2], states[1::2], strict=False)
            odd = states[-1:] if len(states) % 2 else []
            states = [answer(*pair) for pair in pairs] + odd
        return plain(states[0])
    except BaseException as error:
        return stopped(error)


def _folds(*names):
    plain_judge = stands_for(*names)

    def judge(seen, want, inputs):
        failure = plain_judge(seen, want, inputs)
        if failure is None:
            return None
        one = inputs[failure.case]
        count, order = len(one["states"]), one["order"]
        how = "one after the other" if order == "in order" else "pair by pair"
        return Failure(
            f"{count} states, merged {how} ({failure.case}): {failure.text}"
        )

    return judge


merge_states = Exercise(
    "merge_states",
    merge_inputs,
    (
        RUNS,
        STATE_FORM,
        law(
            "two states",
            stands_for(
                "second larger",
                "first larger",
                "now one, now the other",
                "equal maxima",
                "more axes",
            ),
            points=1.25,
            gate=True,
            says=(
                "Bring both sums to one maximum before you add them: each "
                "is multiplied by exp(its own maximum − the common one)."
            ),
        ),
        law(
            "far apart",
            stands_for(
                "far apart",
                "far apart, the other way",
                "rows far apart",
                "both far below 0",
            ),
            points=0.5,
            says=(
                "The common maximum is the larger one, in each row by "
                "itself, so that both corrections are at most 1 and neither "
                "overflows."
            ),
        ),
        law(
            "empty states",
            stands_for(
                "second empty",
                "first empty",
                "rows that are empty",
                "rows that are empty in both",
                "both empty",
            ),
            points=0.5,
            says=(
                "(−inf, 0) changes nothing, and two of them make another: "
                "beware of −inf minus −inf, which is NaN."
            ),
        ),
        law(
            "any split, any order",
            _folds(
                "five blocks, rising",
                "five blocks, backwards",
                "five blocks, as a tree",
                "an empty start",
            ),
            points=0.25,
            because="what the state is for: merging merged states",
            says=(
                "However a row is cut up and in whatever order its parts are "
                "merged, the same m + ln l has to come out."
            ),
        ),
        law(
            "float32",
            stands_for("float32", tol=2e-6),
            because=SINGLE,
            says="float32 states give a float32 state.",
        ),
        UNCHANGED,
        AGAIN,
    ),
    probe=probe_merge,
)


# Memory, for 6.8 and 6.9

EXPONENTIALS = {
    "exp",
    "exp2",
    "expm1",
    "logcumsumexp",
    "logsumexp",
    "sigmoid",
    "softmax",
    "softmin",
    "safe_softmax",
    "log_softmax",
}
# Powers with a tensor for exponent, such as e ** s, which calls __rpow__.
POWERS = {"pow": 1, "float_power": 1, "rpow": 0}  # {name: exponent's place}


def exponents(name, args):
    """Of how many numbers a torch call takes an exponential."""
    name = name.removeprefix("special_").strip("_")
    if name in POWERS:
        args = args[POWERS[name] :][:1]
    elif name not in EXPONENTIALS:
        return 0
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    return tensors[0].numel() if tensors else 0


class Memory(TorchDispatchMode):
    """Watches what torch makes: the biggest tensor, and all that is alive.

    known: tensors that were there before
    powers: the most numbers of which an exponential was taken at once
    taken: floating numbers that left one by one, for Python's own
    """

    supports_higher_order_operators = True

    def __init__(self, known):
        super().__init__()
        self.alive = {each.untyped_storage()._cdata: None for each in known}
        self.now = 0
        self.restart()

    def restart(self):
        """Forget the past, but for what is still alive."""
        self.peak = self.now
        self.biggest = self.powers = self.taken = 0

    @classmethod
    def _should_skip_dynamo(cls):
        # Skipping would import the compiler, for more than a second.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.powers = max(self.powers, exponents(name, args))
        if name == "_local_scalar_dense":  # item(), float() and the like
            self.taken += args[0].is_floating_point()
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, list | tuple) else [out]:
            if isinstance(part, torch.Tensor):
                self._note(part)
        return out

    def _note(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:  # a view
            return

        def gone(_):
            if self.alive.pop(key, None) is not None:
                self.now -= size

        # The storage's Python object lives as long as its memory does.
        self.alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
        if tensor.is_floating_point():
            self.biggest = max(self.biggest, size // tensor.element_size())


class Leaks(TorchFunctionMode):
    """Watches whether numbers leave torch, where nobody measures them.

    Positions and sizes, which are integers, may.
    """

    WAYS = ("numpy", "__array__", "__dlpack__", "tolist")

    def __init__(self):
        super().__init__()
        self.found = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.WAYS:
            self.found |= args[0].is_floating_point()
        return func(*args, **(kwargs or {}))


class AtOnce(TorchFunctionMode):
    """Watches what Memory does, too, without its price for every operation.

    powers, taken: as in Memory
    """

    def __init__(self):
        super().__init__()
        self.powers = self.taken = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        given = [*args, *(kwargs or {}).values()]
        name = getattr(func, "__name__", "")
        self.powers = max(self.powers, exponents(name, given))
        if name in ("item", "__float__"):
            self.taken += given[0].is_floating_point()
        return func(*args, **(kwargs or {}))


DOUBLE = 8  # bytes of a float64


def rising(rng, *batch, Tq, Tk, d=3, dv=2, step=0.5):
    """q, k and v whose scores grow from key to key, for every query.

    So every tile of keys raises the maximum, whatever the draw.
    """
    return [
        rng.rand(*batch, Tq, d) + 0.5,
        step * (rng.rand(*batch, Tk, d) / 2 + np.arange(Tk)[:, None]),
        rng.randn(*batch, Tk, dv),
    ]


# 6.8


def flash_inputs(rng):
    def one(q, k, v, bq, bk, causal=False, **how):
        return case(q, k, v, block_q=bq, block_k=bk, is_causal=causal, **how)

    def some(*batch, Tq, Tk, **how):
        return rising(rng, *batch, Tq=Tq, Tk=Tk, **how)

    def falling():
        q, k, v = some(2, Tq=4, Tk=6)
        return q, k[:, ::-1], v

    def mixed():
        q, k, v = some(2, Tq=4, Tk=6)
        return -q * np.array([[1], [-1], [1], [-1]]), k, v

    tiny = [part.round(1) for part in some(Tq=2, Tk=3, d=2, dv=1)]
    square, eight = some(2, Tq=6, Tk=6), some(Tq=8, Tk=8)
    new, many = some(2, Tq=3, Tk=8), some(Tq=5, Tk=2)
    low = (
        20 + 10 * rng.rand(3, 4),
        -30 + 10 * (np.arange(5)[:, None] + rng.rand(5, 4)) / 5,
        rng.randn(5, 2),
    )
    # Whole numbers keep such scores exact in float64.
    very_low = (
        np.array([[3e3, 0, 0, 1], [3e3, 0, 0, 2], [3e3, 0, 0, 1]]),
        np.array([[-3e3, 0, 0, part] for part in range(5)]),
        rng.randn(5, 2),
    )
    large = some(2, Tq=3, Tk=5)
    # One maximum for both texts would leave nothing of the second.
    large[0] = large[0] * np.array([[[1e3]], [[-1e3]]])
    half = some(Tq=4, Tk=6, d=4)
    cancelling = _cancelling(rng)
    big = [(np.abs(part) + 1) * 300 for part in some(Tq=2, Tk=3, d=4)[:2]]
    long = some(1, 2, Tq=61, Tk=67, step=0.05)
    return {
        "one tile": one(*tiny, 2, 3),
        "a tile larger than everything": one(*some(Tq=3, Tk=5), 16, 16),
        "batch and heads, one tile": one(*some(2, 3, Tq=2, Tk=4), 2, 4),
        "two tiles of keys": one(*some(Tq=2, Tk=4), 2, 2),
        "two tiles of queries": one(*some(Tq=4, Tk=3), 2, 3),
        "rising and falling scores": one(*mixed(), 2, 2),
        "falling scores": one(*falling(), 2, 2),
        "equal sizes": one(*some(4, Tq=4, Tk=4, d=4, dv=4), 2, 2),
        "tiles of one": one(*some(Tq=2, Tk=3), 1, 1),
        "batch and heads": one(*some(2, 1, 3, Tq=4, Tk=6), 2, 3),
        "views": one(*square, 2, 3, strided=True),
        "ragged keys": one(*some(Tq=2, Tk=7), 2, 3),
        "ragged queries": one(*some(Tq=5, Tk=4), 2, 2),
        "ragged both ways": one(*some(2, Tq=7, Tk=5), 3, 4),
        "causal, one tile": one(*some(Tq=3, Tk=3), 4, 4, True),
        "causal, square tiles": one(*square, 2, 2, True),
        "causal, tall tiles": one(*eight, 4, 2, True),
        "causal, wide tiles": one(*eight, 2, 4, True),
        "causal, ragged": one(*some(Tq=7, Tk=7), 3, 2, True),
        "causal, three new queries": one(*new, 2, 3, True),
        "causal, one new query": one(*some(Tq=1, Tk=5), 2, 2, True),
        "causal, more queries than keys": one(*many, 2, 2, True),
        "dead and alive in one tile": one(*many, 4, 1, True),
        "all scores far below 0": one(*low, 2, 2),
        "all scores very far below 0": one(*very_low, 2, 2, True),
        "large scores": one(*large, 2, 2),
        "float32": one(*(part.astype("float32") for part in square), 4, 4),
        "float16": one(*half, 2, 4, dtype="float16"),
        "float16, large": one(*big, half[2][:3], 2, 2, dtype="float16"),
        "float16, large values": one(*cancelling, 1, 2, dtype="float16"),
        "bfloat16": one(*half, 2, 4, dtype="bfloat16"),
        "long, one tile of queries": one(*long, 64, 6),
        "long, one tile of keys": one(*long, 8, 72),
        "short, small tiles": one(*some(1, 2, Tq=12, Tk=13), 4, 5, True),
        "few queries, many keys": one(
            *some(1, 2, Tq=2, Tk=30, step=0.05), 2, 5
        ),
    }


def _cancelling(rng):
    """A query whose sums overflow in float16, or cancel to almost nothing.

    In the first column all values have one sign, and their sum is too large.
    In the others the last value balances the rest, so that errors of weights
    in float16 show, some 0.05, and those of float32 do not, some 1e-5.
    """
    q, k = (rng.rand(n, 4).astype("float16") / 2 for n in (1, 6))
    weights = np.exp((q.astype(float) @ k.astype(float).T)[0] / 2)
    v = rng.uniform(500, 750, (6, 5)) * rng.choice([-1, 1], (6, 5))
    v[:, 0] = rng.uniform(3e4, 5e4, 6)
    v[5, 1:] = -weights[:5] @ v[:5, 1:].astype("float16") / weights[5]
    return q.astype(float), k.astype(float), v


LONG = (
    "long, one tile of queries",
    "long, one tile of keys",
    "short, small tiles",
    "few queries, many keys",
)


def probe_flash(answer, inputs):
    calls = {name: inputs[name] for name in inputs if name not in LONG}
    seen = call_torch(answer, calls)
    for name in LONG:
        seen[name] = {"out": _weighed(answer, inputs[name])}
    return seen


def _weighed(answer, one):
    """Which limits on memory a call keeps."""
    q, k, v = (torch.from_numpy(part.copy()) for part in one["args"])
    heads = q.shape[0] * q.shape[1]
    scores = heads * q.shape[2] * k.shape[2]
    blocks = one["kwargs"]["block_q"], one["kwargs"]["block_k"]
    try:
        with torch.no_grad(), Leaks() as leaks, Memory([q, k, v]) as memory:
            answer(q, k, v, **one["kwargs"])
    except BaseException as error:
        return stopped(error)
    limits = {
        "all numbers in PyTorch's tensors": not leaks.found,
        "no exponential of more scores than a tile has": memory.powers
        <= heads * math.prod(blocks),
        "fewer single numbers taken out than there are scores": memory.taken
        < scores,
    }
    # A row of scores is no larger than a copy of k, which is allowed.
    if q.shape[2] * k.shape[2] < k[0, 0].numel():
        return limits
    limits |= {
        "no tensor as large as one head's scores": memory.biggest
        < q.shape[2] * k.shape[2],
        "no tensor as large as all heads' scores": memory.biggest < scores,
    }
    # A short text's own copies are as large as its scores.
    if q.shape[2] * k.shape[2] > 1000:
        limits["less than all scores in use"] = memory.peak < scores * DOUBLE
    return limits


def keeps_limits(*names):
    """A judge: in these cases every limit on memory is kept."""

    def judge(seen, want, inputs):
        for name in names:
            out = seen[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            for limit, kept in out.items():
                if kept is not True:
                    return Failure(f"this does not hold: {limit}", name)
        return None

    return judge


def _without(names, judge):
    """A judge that is shown all cases but the named ones."""

    def narrowed(seen, want, inputs):
        rest = {name: inputs[name] for name in inputs if name not in names}
        return judge(seen, want, rest)

    return narrowed


def _log_sums(*names, tol):
    def judge(seen, want, inputs):
        for name in names:
            out = seen[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            difference = value_difference(out[1], want[name]["out"][1], tol)
            if difference:
                return Failure(f"the log-sum-exp: {difference}", name)
        return None

    return judge


flash_forward = Exercise(
    "flash_forward",
    flash_inputs,
    (
        RUNS,
        dataclasses.replace(FORM, judge=_without(LONG, FORM.judge)),
        values(
            "one tile",
            "one tile",
            "batch and heads, one tile",
            points=0.75,
            gate=True,
            says=(
                "With a single tile it is plain attention: scores q·k/√d, "
                "their softmax, the average of the values; and for each "
                "query the natural logarithm of the sum of exp(score)."
            ),
        ),
        values(
            "several tiles",
            "two tiles of keys",
            "two tiles of queries",
            "rising and falling scores",
            "falling scores",
            "equal sizes",
            "tiles of one",
            "batch and heads",
            "views",
            points=1,
            because="tells a missing rescaling from tails and masks",
            says=(
                "When a tile brings a larger maximum, what was accumulated "
                "before, sum and output alike, has to be multiplied by "
                "exp(old maximum − new maximum)."
            ),
        ),
        values(
            "ragged tiles",
            "ragged keys",
            "ragged queries",
            "ragged both ways",
            "a tile larger than everything",
            points=0.5,
            because="tells tails from a missing rescaling",
            says=(
                "The last tile may be smaller: no key that is not there may "
                "count, and no query may be left out."
            ),
        ),
        values(
            "causal",
            "causal, one tile",
            "causal, square tiles",
            "causal, tall tiles",
            "causal, wide tiles",
            "causal, ragged",
            points=0.5,
            because="tells the mask from its alignment",
            says=(
                "Hide by absolute positions, not by those within a tile; "
                "skip a tile only if its first key lies behind its last "
                "query."
            ),
        ),
        values(
            "causal, fewer queries than keys",
            "causal, three new queries",
            "causal, one new query",
            points=0.5,
            because="tells a mask's alignment from the mask itself",
            says=(
                "The mask is aligned to the lower right: query i stands at "
                "position i + Tk − Tq and sees every key up to there."
            ),
        ),
        values(
            "dead rows",
            "causal, more queries than keys",
            "dead and alive in one tile",
            points=0.5,
            says=(
                "A query that sees no key gets the output 0 and the "
                "log-sum-exp −inf: neither 0/0 nor −inf − (−inf)."
            ),
        ),
        values(
            "scores of any size",
            "all scores far below 0",
            "large scores",
            points=0.25,
            because="tells a finite start from a finite fill",
            says=(
                "The running maximum starts at −inf: all scores of a row may "
                "lie far below 0."
            ),
        ),
        values(
            "hidden for good",
            "all scores very far below 0",
            points=0.25,
            tol=1e-7,
            because="scores of 4.5e6 are exact to 1e-9 only, once moved",
            says=(
                "Hidden scores are −inf: no finite number lies below every "
                "score."
            ),
        ),
        law(
            "memory",
            keeps_limits(*LONG),
            points=3.5,
            says=(
                "The scores must never be there as a whole, not even those "
                "of one head: only block_q × block_k of them at a time."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=2e-6,
            because=SINGLE,
            says="float32 inputs give float32 results.",
        ),
        values(
            "half precision",
            "float16",
            "float16, large",
            "float16, large values",
            tol=2e-3,
            because=HALF,
            says=(
                "Half-precision inputs are computed in float32, scores, "
                "weights, sums and the division (they may not fit into "
                "float16); only the output returns to their dtype."
            ),
        ),
        law(
            "half precision, accumulated in float32",
            _log_sums("float16", "float16, large", "bfloat16", tol=5e-6),
            points=0.25,
            because="float32 sums of numbers that half precision holds",
            says=(
                "The log-sum-exp is float32, and so must be everything on "
                "the way to it: widen q, k and v first."
            ),
        ),
        dataclasses.replace(UNCHANGED, judge=_without(LONG, UNCHANGED.judge)),
        AGAIN,
    ),
    probe=probe_flash,
    forbids=FUSED,
)


# 6.9


# Gradients of a sum over a batch are one tensor, expanded: no view can
# flatten it, and nothing may be written into it.
SUMMED = "the sum over a batch"
# The gradient of a transposed output is a view that may be written into.
TRANSPOSED = "the output with its axes exchanged"
MANY_KEYS = "few queries, many keys"
WEIGHED = "long", MANY_KEYS


def function_inputs(rng):
    def one(q, k, v, *causal, **how):
        upstream = [rng.randn(*q.shape[:-1], v.shape[-1])]
        return case(q, k, v, *causal, upstream=upstream, **how)

    def some(*batch, Tq, Tk, **how):
        how = {"step": 0.1} | how
        return rising(rng, *batch, Tq=Tq, Tk=Tk, **how)

    tiny = [part.round(1) for part in some(Tq=1, Tk=2, d=2, dv=1)]
    large = some(Tq=3, Tk=5)
    large[0] = large[0] * 1e3
    single = [part.astype("float32") for part in some(2, Tq=3, Tk=4)]
    return {
        "one query": one(*tiny),
        "a few tokens": one(*some(Tq=3, Tk=5), False),
        "equal sizes": one(*some(3, Tq=3, Tk=3, d=3, dv=3)),
        "batch and heads": one(*some(2, 1, 3, Tq=3, Tk=4)),
        SUMMED: case(*some(2, Tq=2, Tk=3), upstream=[rng.randn(2, 2)]),
        TRANSPOSED: case(*some(2, Tq=3, Tk=3), upstream=[rng.randn(2, 2, 3)]),
        "views": one(*some(2, Tq=3, Tk=4), strided=True),
        "more than a tile": one(*some(Tq=5, Tk=37)),
        "several tiles of queries": one(*some(Tq=35, Tk=3)),
        "causal": one(*some(2, Tq=5, Tk=5), True),
        # Where the keys' tiles begin and end within those of the queries.
        "causal, more than a tile": one(*some(Tq=17, Tk=18), True),
        "causal, three new queries": one(*some(Tq=3, Tk=20), True),
        "causal, more queries than keys": one(*some(Tq=5, Tk=2), True),
        "dead rows, more than a tile": one(*some(Tq=21, Tk=3), True),
        "large scores": one(*large),
        "far below 0": one(
            20 + 10 * rng.rand(3, 4),
            -30 + 10 * (np.arange(18)[:, None] + rng.rand(18, 4)) / 18,
            rng.randn(18, 2),
        ),
        "float32": one(*single, True),
        "two calls": case(
            *some(Tq=2, Tk=3),
            *some(Tq=2, Tk=3),
            upstream=[rng.randn(2, 2), rng.randn(2, 2)],
        ),
        "long": case(*some(1, 2, Tq=64, Tk=80, step=0.05), True),
        # One query with all its keys is more than a tile of 16 × 16.
        MANY_KEYS: case(*some(1, 1, Tq=2, Tk=260, step=0.02), False),
    }


TILE = 16  # the most queries, and keys, in a tile of 6.9


def probe_function(answer, inputs):
    def applied(*args):
        if len(args) == 6:  # a second call before the first one's backward
            return answer.apply(*args[:3]), answer.apply(*args[3:])
        return answer.apply(*args)

    after = {SUMMED: lambda out: out.sum(0), TRANSPOSED: lambda out: out.mT}
    apart = (*after, *WEIGHED)
    calls = {name: inputs[name] for name in inputs if name not in apart}
    seen = call_torch(applied, calls)
    for name, follow in after.items():
        seen[name] = call(
            lambda *args, follow=follow: follow(answer.apply(*args)),
            inputs[name],
            to_tensor,
        )
    seen["long"] = {
        "out": _two_passes(answer, inputs["long"]),
        "function": isinstance(answer, type)
        and issubclass(answer, torch.autograd.Function),
    }
    seen[MANY_KEYS] = {"out": _rows_at_once(answer, inputs[MANY_KEYS])}
    return seen


def _two_passes(answer, one):
    """Which limits on memory a forward and a backward pass keep."""
    q, k, v = (
        torch.from_numpy(part.copy()).requires_grad_()
        for part in one["args"][:3]
    )
    upstream = torch.ones(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    given = [q, k, v, upstream]
    ends = sum(each.numel() for each in given) * DOUBLE
    try:
        with Leaks() as leaks, Memory(given) as memory:
            out = answer.apply(q, k, v, one["args"][3])
            limits = _one_pass("forward", memory, leaks, q, k) | {
                "at most twice q, k, v and the output kept in between": (
                    memory.now <= 2 * ends
                )
            }
            memory.restart()
            leaks.found = False
            _backward(out, upstream)
            return limits | _one_pass("backward", memory, leaks, q, k)
    except BaseException as error:
        return stopped(error)


@torch.no_grad()
def _backward(out, upstream):
    """A Function's own backward; autograd's engine hides it from modes."""
    node = out.grad_fn
    own = isinstance(node, torch.autograd.function.BackwardCFunction)
    if own and len(node._input_metadata) == 1:
        node.apply(upstream)
    else:  # something follows the Function, or it has more than one result
        torch.autograd.backward(out, upstream)


def _one_pass(which, memory, leaks, q, k):
    """Which limits on memory the forward or the backward pass has kept."""
    heads, one_head = q.shape[0] * q.shape[1], q.shape[2] * k.shape[2]
    limits = {
        "all numbers in PyTorch's tensors": not leaks.found,
        "no tensor as large as one head's scores": memory.biggest < one_head,
        "less than all scores in use": memory.peak < heads * one_head * DOUBLE,
    }
    return {
        f"{name} in the {which} pass": limits[name] for name in limits
    } | _at_once(which, memory, heads, heads * one_head)


def _at_once(which, watch, heads, scores):
    return {
        f"no exponential of more scores than a tile has in the {which} pass": (
            watch.powers <= heads * TILE**2
        ),
        f"fewer single numbers taken out than scores in the {which} pass": (
            watch.taken < scores
        ),
    }


def _rows_at_once(answer, one):
    """Whether both passes take less than a row of scores at a time.

    A row is no larger than a copy of k, so that memory does not show it.
    """
    q, k, v = (
        torch.from_numpy(part.copy()).requires_grad_()
        for part in one["args"][:3]
    )
    scores = q.shape[2] * k.shape[2]
    try:
        with AtOnce() as watch:
            out = answer.apply(q, k, v, one["args"][3])
        limits = _at_once("forward", watch, 1, scores)
        with AtOnce() as watch:
            _backward(out, torch.ones_like(out))
        return limits | _at_once("backward", watch, 1, scores)
    except BaseException as error:
        return stopped(error)


def _is_function(seen, want, inputs):
    if seen["long"]["function"] is not True:
        return Failure("it does not derive from torch.autograd.Function")
    return None


def _limit(*words):
    """A judge: the limits with these words in their names are kept."""

    def judge(seen, want, inputs):
        for name in WEIGHED:
            out = seen[name]["out"]
            if isinstance(out, Raised):
                return Failure(trouble(out), name)
            for limit, kept in out.items():
                if any(word in limit for word in words) and kept is not True:
                    return Failure(f"this does not hold: {limit}", name)
        return None

    return judge


FlashAttention = Exercise(
    "FlashAttention",
    function_inputs,
    (
        RUNS,
        law(
            "a torch.autograd.Function",
            _is_function,
            gate=True,
            because="what the exercise is about; an ordinary function has "
            "gradients, too",
            says=(
                "Derive the class from torch.autograd.Function, with static "
                "methods forward(ctx, …) and backward(ctx, …); apply then "
                "exists by itself."
            ),
        ),
        dataclasses.replace(FORM, judge=_without(WEIGHED, FORM.judge)),
        values(
            "the output",
            "one query",
            "a few tokens",
            "equal sizes",
            "batch and heads",
            "views",
            "more than a tile",
            "several tiles of queries",
            points=1,
            gate=True,
            says=(
                "Without a mask the output is softmax(q·kᵀ/√d) v, tile by "
                "tile as in task 6.8."
            ),
        ),
        values(
            "the output, causal",
            "causal",
            "causal, more than a tile",
            "causal, three new queries",
            "causal, more queries than keys",
            "dead rows, more than a tile",
            points=0.5,
            because="gradients differ, too; the output says why",
            says=(
                "The mask is aligned to the lower right by absolute "
                "positions; a query that sees nothing has the output 0."
            ),
        ),
        values(
            "gradients",
            "one query",
            "a few tokens",
            "equal sizes",
            "batch and heads",
            SUMMED,
            TRANSPOSED,
            "views",
            part="grads",
            points=1,
            because="tells a wrong formula from a wrong sum over tiles",
            says=(
                "With P recomputed from the saved log-sum-exp: dV = Pᵀ dO, "
                "dS = P∘(dO Vᵀ − rowsum(dO∘O)), dQ = dS K/√d, dK = dSᵀ Q/√d."
            ),
        ),
        values(
            "gradients over several tiles",
            "more than a tile",
            "several tiles of queries",
            part="grads",
            points=0.75,
            because="tells a wrong sum over tiles from a wrong formula",
            says=(
                "Each query's gradient is a sum over all tiles of keys, each "
                "key's over all tiles of queries: add up, do not overwrite."
            ),
        ),
        values(
            "gradients, causal",
            "causal",
            "causal, more than a tile",
            "causal, three new queries",
            part="grads",
            points=0.75,
            because="tells the mask of the backward pass from its formula",
            says=(
                "The backward pass recomputes P, so it has to hide the same "
                "scores as the forward pass did."
            ),
        ),
        values(
            "gradients past dead rows",
            "causal, more queries than keys",
            "dead rows, more than a tile",
            part="grads",
            points=0.25,
            says=(
                "A query that sees nothing has the log-sum-exp −inf: its P "
                "is 0, not exp(−inf + inf), and its gradients are 0."
            ),
        ),
        values(
            "gradients for scores of any size",
            "large scores",
            "far below 0",
            part="grads",
            tol=1e-8,
            because=(
                "scores of 3,000 are exact to 5e-13, and keys and queries "
                "of up to 2,000 multiply that"
            ),
            says=(
                "P is exp(s − lse), never exp(s) / l: the difference is at "
                "most 0, the score may be anything."
            ),
        ),
        values(
            "two calls, then both backward",
            "two calls",
            part="grads",
            points=0.25,
            says=(
                "Each call keeps what its own backward pass needs, on ctx: "
                "the next call may come before it."
            ),
        ),
        law(
            "memory of the forward pass",
            _limit("forward"),
            points=1,
            says=(
                "The forward pass of a torch.autograd.Function runs without "
                "a graph and holds one tile of scores at a time, of at most "
                "16 × 16 for each head."
            ),
        ),
        law(
            "what is saved",
            _limit("kept"),
            points=1.25,
            because="a large tensor that is kept was made before",
            says=(
                "Save q, k, v, the output and one number a query, the "
                "log-sum-exp. Everything else is recomputed."
            ),
        ),
        law(
            "memory of the backward pass",
            _limit("backward"),
            points=1.25,
            says=(
                "The backward pass recomputes P one tile at a time and drops "
                "it before the next."
            ),
        ),
        values(
            "float32",
            "float32",
            tol=2e-6,
            because=SINGLE,
            says="float32 inputs give float32 results.",
        ),
        values(
            "float32 gradients",
            "float32",
            part="grads",
            tol=1e-5,
            because="6e-8 an operation, and products of three such sums",
            says="float32 inputs give float32 gradients.",
        ),
        dataclasses.replace(
            UNCHANGED, judge=_without(WEIGHED, UNCHANGED.judge)
        ),
        AGAIN,
    ),
    probe=probe_function,
    forbids=FUSED,
    kind="class",
)
