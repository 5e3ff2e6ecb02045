"""Running a learner's object and writing down what it does.

Nothing here judges. Whatever the object does (raise, print, draw random
numbers, change global settings) stays inside `observe`.
"""

import contextlib
import copy
import functools
import io
import os
import random
import sys
import tempfile
import warnings

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.observations import (
    form_difference,
    plain,
    raised,
    value_difference,
)

MAX_PRINTED = 4000  # characters shown of what an answer prints


def case(*args, upstream=None, dtype=None, strided=False, **kwargs):
    """One call of an answer, written as the call is written.

    upstream: gradients with respect to the results, one a result (None where
        no gradient flows); then the arguments' gradients are observed too
    dtype: dtype that floating arrays take on the way to the answer (needed
        for bfloat16, which numpy lacks)
    strided: whether arrays arrive as non-contiguous views
    """
    return {
        "args": list(args),
        "kwargs": kwargs,
        "upstream": upstream,
        "dtype": dtype,
        "strided": strided,
    }


def call_torch(answer, inputs):
    """Call the answer with tensors, once a case, and the first case again."""
    return _call_all(answer, inputs, to_tensor)


def call_numpy(answer, inputs):
    """Call the answer with numpy arrays, once a case, the first again."""
    return _call_all(answer, inputs, _to_array)


def _call_all(answer, inputs, convert):
    seen = {name: call(answer, inputs[name], convert) for name in inputs}
    first = next(iter(inputs))
    # A caller's second call must not depend on the first.
    seen[first]["again"] = call(answer, inputs[first], convert)["out"]
    return seen


def call(answer, case, convert, parameters=()):
    """One case's observation: {"out", and where it ran "changed", "grads"}.

    parameters: tensors whose gradients are observed after the arguments'
    """
    args = [convert(value, case) for value in case["args"]]
    kwargs = {
        name: convert(value, case) for name, value in case["kwargs"].items()
    }
    upstream = case["upstream"]
    given = [*args, *kwargs.values()]
    before = [_copy(value) for value in given]
    leaves = []
    if upstream is not None:
        leaves = [
            value.requires_grad_()
            for value in given
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
    try:
        # A result that changes the argument itself raises on a leaf, so hand
        # over what merely depends on it.
        if leaves:
            args = [_child(value) for value in args]
            kwargs = {name: _child(kwargs[name]) for name in kwargs}
            given = [*args, *kwargs.values()]
        out = answer(*args, **kwargs)
    except BaseException as error:
        return {"out": stopped(error)}
    seen = {"out": plain(out), "changed": _changed(given, before)}
    if upstream is not None:
        seen["grads"] = _gradients(out, [*leaves, *parameters], upstream)
    return seen


def stopped(error):
    """The observation of what ended an answer, unless it was the user."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return raised(error)


def _child(value):
    tracked = isinstance(value, torch.Tensor) and value.requires_grad
    return value.clone() if tracked else value


def _gradients(out, leaves, upstream):
    outs = list(out) if isinstance(out, list | tuple) else [out]
    try:
        total = sum(
            (part * torch.as_tensor(weight)).sum()
            for part, weight in zip(outs, upstream, strict=False)
            if weight is not None
        )
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    except Exception as error:
        return raised(error)
    return [
        plain(torch.zeros_like(leaf) if grad is None else grad)
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


def to_tensor(value, case):
    if not isinstance(value, np.ndarray):
        return copy.deepcopy(value)  # an answer may change a list
    tensor = torch.from_numpy(np.array(value))
    if case["dtype"] and tensor.is_floating_point():
        tensor = tensor.to(getattr(torch, case["dtype"]))
    if case["strided"] and tensor.ndim:
        # A number more at the end of each row, or view(-1) would still work.
        tensor = tensor.repeat_interleave(2, dim=-1)
        tensor = torch.cat([tensor, tensor[..., :1]], dim=-1)[..., :-1:2]
    return tensor


def _to_array(value, case):
    if not isinstance(value, np.ndarray):
        return copy.deepcopy(value)
    array = np.array(value)
    if case["dtype"] and array.dtype.kind == "f":
        array = array.astype(case["dtype"])
    if case["strided"] and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    return array


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


def _changed(given, before):
    """Positions of the arguments whose values are no longer the same."""
    return [
        index
        for index, (now, then) in enumerate(zip(given, before, strict=True))
        if not _same(now, then)
    ]


def _same(now, then):
    if isinstance(now, torch.Tensor) and _alike(now, then):
        return True  # the usual case, quickly; NaN takes the longer way
    one, other = plain(now), plain(then)
    return not (
        form_difference(one, other) or value_difference(one, other, 0.0)
    )


def _alike(now, then):
    return (
        now.dtype == then.dtype
        and now.device == then.device
        and torch.equal(now, then)
    )


def observe(exercise, answer, inputs):
    """What an answer does on the inputs, as plain data.

    returns: {"seen": what the exercise's probe returns, "forbidden": names
        of forbidden calls, "printed": text, "device": the default device if
        it is not the CPU, else None}
    """
    calls = set()
    device = _default_device()
    forbids, tried = exercise.forbids, answer
    if exercise.kind == "function":
        # What the probe does around each call need not be watched, too.
        forbids, tried = (), _watched_calls(answer, exercise.forbids, calls)
    with (
        _state_restored(),
        captured() as printed,
        watched(forbids, calls),
    ):
        try:
            # An answer that writes into what it is given, even where a probe
            # shares memory with the inputs, spoils no later check.
            seen = plain(exercise.probe(tried, copy.deepcopy(inputs)))
        except BaseException as error:
            seen = stopped(error)
    return {
        "seen": seen,
        "forbidden": sorted(calls),
        "printed": printed.text,
        "device": None if device.type == "cpu" else str(device),
    }


def _default_device():
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.6, after torch.set_default_device(None)
        return torch.device("cpu")


@contextlib.contextmanager
def _state_restored():
    """Seed every generator, then leave all global settings as found.

    One thread: on arrays this small a second one only costs.
    """
    state = random.getstate(), np.random.get_state()
    # Seeds wait here for a GPU that is not in use yet. It is an inner part of
    # torch, which another version may lack.
    tracker = getattr(torch.cuda, "_lazy_seed_tracker", None)
    waiting = vars(tracker) if tracker else {}
    seeds = dict(waiting)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    device = _default_device()
    gpus = (
        range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    )
    with (
        torch.random.fork_rng(devices=gpus),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        np.errstate(all="warn", under="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        random.seed(0)
        np.random.seed(0)
        # torch.manual_seed would reach what is not restored here: GPUs that
        # wait, and those of other makers.
        torch.default_generator.manual_seed(0)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(0)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if _default_device() != device:
                torch.set_default_device(device)
            torch.set_num_threads(threads)
            random.setstate(state[0])
            np.random.set_state(state[1])
            waiting.update(seeds)


def on_device(device):
    """A context in which new tensors land on the device.

    Where they do so anyway it is empty: torch's own slows every call down.
    """
    if _default_device() == torch.device(device):
        return contextlib.nullcontext()
    return torch.device(device)


def mixes_devices(error):
    """Whether an error says that tensors of two devices met."""
    text = str(error)
    return "expected device" in text or "same device" in text


def stays_there(answer, one):
    """Whether a call keeps to the device of its arguments.

    The meta device computes nothing, but knows where a tensor lies.

    answer: a function, or a module that has been moved there
    one: as made by `case`
    """

    def moved(value):
        value = to_tensor(value, one)
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    args = [moved(value) for value in one["args"]]
    kwargs = {name: moved(value) for name, value in one["kwargs"].items()}
    try:
        with _Unworked(), _Apart():
            out = answer(*args, **kwargs)
    except Exception as error:
        # Answers that look at values cannot run there and may be right.
        return not mixes_devices(error)
    outs = out if isinstance(out, list | tuple) else [out]
    return all(part.is_meta for part in outs if torch.is_tensor(part))


def follows(*cases):
    """A probe as `call_torch` that also tries some cases elsewhere."""
    return functools.partial(_call_here_and_there, cases)


def _call_here_and_there(cases, answer, inputs):
    seen = call_torch(answer, inputs)
    seen["there"] = all(stays_there(answer, inputs[name]) for name in cases)
    return seen


class _Apart(TorchDispatchMode):
    """Lets tensors meet, or not, as on a GPU, where meta differs from it."""

    STRICT = {"mm", "bmm", "addmm", "baddbmm", "embedding", "gather"}

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as in _Kernels

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in self.STRICT:
            places = {each.device for each in args if torch.is_tensor(each)}
            if len(places) > 1:
                raise RuntimeError("tensors are not on the same device")
        # A GPU's numbers can be copied to the CPU; these have none to copy.
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            return args[0]
        if name == "_to_copy" and args[0].is_meta:
            kwargs.pop("non_blocking", None)
            return torch.zeros_like(args[0], **kwargs)
        return func(*args, **kwargs)


class _Unworked(TorchFunctionMode):
    """Skips what torch takes to pieces, slowly, on the meta device.

    Nothing is computed there: where all tensors lie there, only the shape of
    the result matters.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        shape = _shape(getattr(func, "__name__", ""), args)
        if shape is not None and all(
            each.is_meta
            for each in [*args, *kwargs.values()]
            if torch.is_tensor(each)
        ):
            return args[0].new_empty(shape)
        return func(*args, **kwargs)


def _shape(name, args):
    """The shape that a slow call results in; None for any other call."""
    match name, args:
        case "layer_norm" | "gelu", (x, *_):
            return x.shape
        case "linear", (x, weight, *_):
            return (*x.shape[:-1], weight.shape[0])
        case "scaled_dot_product_attention", (q, _, v, *_):
            return (*q.shape[:-1], v.shape[-1])
    return None


@contextlib.contextmanager
def quiet_numbers():
    """No warning about infinities and NaN, whatever the learner has set."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Printed(io.TextIOBase):
    """A text stream that keeps the first characters and drops the rest."""

    def __init__(self):
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        if len(self.text) < MAX_PRINTED:
            self.text = (self.text + text)[:MAX_PRINTED]
        return len(text)


@contextlib.contextmanager
def captured():
    """Collect all that is written to stdout and stderr.

    Libraries write to descriptors 1 and 2 behind Python's back, and stock
    nbgrader gives no points to a test cell with anything on stderr.
    """
    printed = _Printed()
    _flush()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        tempfile.TemporaryFile() as file,
    ):
        saved = {}
        for descriptor in (1, 2):
            # A descriptor may be closed, under pythonw for instance.
            with contextlib.suppress(OSError):
                saved[descriptor] = os.dup(descriptor)
                os.dup2(file.fileno(), descriptor)
        try:
            yield printed
        finally:
            _flush()
            for descriptor, kept in saved.items():
                os.dup2(kept, descriptor)
                os.close(kept)
            file.seek(0)
            printed.write(file.read(MAX_PRINTED).decode(errors="replace"))


def _flush():
    """Send what Python holds back to where its descriptors lead now."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # None, or closed
            stream.flush()


@contextlib.contextmanager
def watched(forbids, calls):
    """Note in `calls` each forbidden torch call, however it is spelt.

    Patching a name would miss imported names, methods and aten, so the
    function mode sees Python calls and the dispatch mode what they run.
    """
    if not forbids:
        yield
        return

    def note(name):
        if name in forbids:
            calls.add(name)

    with _Functions(note), _Kernels(note):
        yield


def _watched_calls(answer, forbids, calls):
    """The answer, watched as long as it runs."""

    def tried(*args, **kwargs):
        with watched(forbids, calls):
            return answer(*args, **kwargs)

    return tried


class _Functions(TorchFunctionMode):
    """Tells the names of the torch functions that Python calls."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.note(getattr(func, "__name__", ""))
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.note("torch.func")
        if torch.autograd.forward_ad._current_level >= 0:
            self.note("forward_ad")
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    """Tells the names of the kernels that torch functions run."""

    supports_higher_order_operators = True

    def __init__(self, note):
        super().__init__()
        self.note = note

    @classmethod
    def _should_skip_dynamo(cls):
        # Skipping would import the compiler, for more than a second.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # flex_attention and its kind are one operator without overloads.
        self.note(getattr(func, "overloadpacket", func).__name__)
        return func(*args, **(kwargs or {}))
