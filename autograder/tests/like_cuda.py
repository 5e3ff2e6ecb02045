"""Runs code as on a CUDA GPU, as far as a machine without one can imitate it.

python like_cuda.py < jobs.json

`torch.cuda` says that there is a T4, and a tensor that is put on it is a
`CudaTensor`: its numbers stay in the CPU's memory, but torch's C++ takes it
for one of another device, so that moves, gradients and optimizers behave by
themselves. Every operation on such tensors is judged by CUDA's rules for
tensors that lie apart before the CPU computes it.

What only a GPU can show is not imitated: its kernels and which of them it
chooses, its rounding, its random numbers, memory and time. `torch.autocast`
leaves everything as it is.

A job is {"sources": cells to run in one namespace, "report": where to write};
each runs in a process of its own, forked from one that has torch loaded.
"""

import functools
import json
import os
import pathlib
import sys
import traceback

import torch
from torch.utils import _device, backend_registration

CUDA = torch.device("cuda", 0)
# C++ has one device that a Python program may own. It cannot be named
# "cuda", so Python's own words for the device are translated.
OWN_NAME = "like_cuda"

aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._foreach_copy_.default)
# The argument, by its position, that CUDA takes from the CPU as well: indices
# of any shape, or a value without axes.
INDICES = {
    aten.index.Tensor: 1,
    aten.index_put.default: 1,
    aten.index_put_.default: 1,
    aten._index_put_impl_.default: 1,
}
NUMBER = {
    aten.fill_.Tensor: 1,
    aten.index_put.default: 2,
    aten.index_put_.default: 2,
    aten._index_put_impl_.default: 2,
    aten.masked_fill.Tensor: 2,
    aten.masked_fill_.Tensor: 2,
}
# C++ makes these from an empty tensor, which a CudaTensor cannot outgrow.
RESIZING = [
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.eye.default,
    aten.eye.m,
]


class CudaTensor(torch.Tensor):
    """A tensor that says it is on cuda:0; `held` has its numbers."""

    operations = 0  # on such tensors, in this process
    device, is_cuda, is_cpu = CUDA, True, False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            held.stride(),
            held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(OWN_NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return carry_out(operation, *args, **(kwargs or {}))

    # What torch answers in C++, for its own classes of tensors only.

    def get_device(self):
        return CUDA.index

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_options):
        raise TypeError(
            f"can't convert {CUDA} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )

    def __repr__(self, **_options):
        return f"{repr(self.detach().cpu())[:-1]}, device='{CUDA}')"

    def __format__(self, spec):
        return format(self.detach().cpu(), spec) if spec else repr(self)

    def __deepcopy__(self, memo):
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)


def carry_out(operation, *args, **kwargs):
    """What an operation gives where CUDA would give it, or CUDA's error."""
    arguments = [*args, *kwargs.values()]
    tensors = [
        each
        for _, each in numbered(arguments)
        if isinstance(each, torch.Tensor)
    ]
    there = any(isinstance(each, CudaTensor) for each in tensors)
    CudaTensor.operations += there
    if kwargs.get("device") is not None:
        there = is_gpu(kwargs["device"])
    forbid_mixing(operation, arguments)
    if there and "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    given = {id(held(each)): each for each in tensors}
    args = [held(each) for each in args]
    kwargs = {name: held(each) for name, each in kwargs.items()}

    def put(result):
        if isinstance(result, (list, tuple)):
            return type(result)(put(each) for each in result)
        if not isinstance(result, torch.Tensor):
            return result
        known = given.get(id(result))
        if known is None:
            return CudaTensor(result) if there else result
        if known.shape != result.shape:
            raise NotImplementedError(f"{operation}: a new shape in place")
        return known  # changed in place

    return put(operation(*args, **kwargs))


def numbered(arguments):
    """(position, value) of an operation's arguments, without their lists."""
    for position, argument in enumerate(arguments):
        if isinstance(argument, (list, tuple)):
            for each in argument:
                yield position, each
        else:
            yield position, argument


def held(argument):
    """An argument with the CPU's tensors for the GPU's."""
    if isinstance(argument, (list, tuple)):
        return [held(each) for each in argument]
    return argument.held if isinstance(argument, CudaTensor) else argument


def forbid_mixing(operation, arguments):
    """Raise what CUDA raises if tensors of an operation there lie apart."""
    if operation in COPIES:
        return
    indices = INDICES.get(operation)
    if indices is not None and not isinstance(arguments[0], CudaTensor):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the "
            "indexed tensor (cpu)"
        )
    for position, each in numbered(arguments):
        if isinstance(each, torch.Generator) and each.device.type == "cpu":
            raise RuntimeError(
                "Expected a 'cuda' device type for generator but found 'cpu'"
            )
        if not isinstance(each, torch.Tensor) or isinstance(each, CudaTensor):
            continue
        if position == indices:
            continue
        if each.ndim or not takes_numbers(operation, position):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at "
                f"least two devices, {CUDA} and {each.device}!"
            )


def takes_numbers(operation, position):
    """Whether an argument of CUDA's may be one number of the CPU's."""
    return (
        torch.Tag.pointwise in operation.tags
        or operation.name().startswith("aten::_foreach_")
        or NUMBER.get(operation) == position
    )


def is_gpu(device):
    """Whether a device is the GPU, by either name."""
    return torch.device(device).type in (CUDA.type, OWN_NAME)


def own(value):
    """C++'s name of the GPU for Python's; another value as it is."""
    if isinstance(value, (str, torch.device)) and is_gpu(value):
        return torch.device(OWN_NAME, 0)
    return value


def translated(function):
    """A function of torch that knows the GPU by Python's names."""

    def call(*args, **kwargs):
        return function(
            *map(own, args),
            **{name: own(value) for name, value in kwargs.items()},
        )

    return call


def filled(function):
    """torch.tensor or as_tensor, which C++ can fill in the CPU's only."""

    def call(data, *args, device=None, requires_grad=False, **kwargs):
        if device is None:
            known = isinstance(data, torch.Tensor)
            device = (data if known else torch.empty(0)).device
        made = function(data, *args, device="cpu", **kwargs).to(device)
        return made.requires_grad_() if requires_grad else made

    return call


def pretend():
    """Give this process a GPU."""
    backend_registration._setup_privateuseone_for_python_backend(OWN_NAME)
    _device._device_constructors()  # kept there, as they are by now
    # No tensor among its arguments calls __torch_dispatch__ for what makes a
    # tensor from nothing. The library's end would undo this.
    pretend.library = torch.library.Library("_", "IMPL")
    known = pretend.known = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "CUDA"):
        pretend.library.fallback(carry_out, key)
        for each in RESIZING:
            known.impl(each, functools.partial(carry_out, each), key)
    torch.tensor = filled(torch.tensor)
    torch.as_tensor = filled(torch.as_tensor)
    torch.Tensor.to = translated(torch.Tensor.to)
    torch.Tensor.cuda = lambda self, *_, **__: self.to(CUDA)
    context = _device.DeviceContext  # of a default, of `with torch.device(…)`
    context.__init__ = translated(context.__init__)
    # As on a GPU, a parameter stays the same object when its module moves.
    torch.__future__.set_swap_module_params_on_conversion(True)
    for name, answer in {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": "Tesla T4",
        "get_device_capability": (7, 5),
        "memory_allocated": 2**20,
        "max_memory_allocated": 2**22,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "synchronize": None,
        "_lazy_init": None,
    }.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.is_bf16_supported = lambda including_emulation=True: (
        including_emulation
    )


def run(shell, sources):
    """Run cells in one namespace; what came of it."""
    told = {"error": "", "trace": "", "ran": 0}
    before = CudaTensor.operations
    for source in sources:
        result = shell.run_cell(source)
        try:
            result.raise_error()
        except BaseException as error:
            told["error"] = f"{type(error).__name__}: {error}"
            told["trace"] = f"{source}\n{traceback.format_exc()}"
            break
        told["ran"] += 1
    return told | {"operations": CudaTensor.operations - before}


def main():
    """Run one job after the other, each in a child."""
    import matplotlib.pyplot  # noqa: F401  loaded once, for all children
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    pretend()
    torch.ones(1, device=CUDA)  # the first such loads much of torch
    # More would leave a forked child waiting for threads that it lacks, and
    # so would a history, which a thread writes.
    torch.set_num_threads(1)
    shell = InteractiveShell.instance(
        config=Config({"HistoryManager": {"enabled": False}})
    )
    for job in json.load(sys.stdin):
        child = os.fork()
        if not child:
            try:
                told = json.dumps(run(shell, job["sources"]))
                pathlib.Path(job["report"]).write_text(told)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
