"""Probing a class of modules: as built, then with weights that we choose.

Two modules can be compared only with equal weights, so a module is built,
looked at, given the weights of its case by the documented names, and called.
"""

import dataclasses

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from autograder.exercise import Failure, Property, law, of_calls
from autograder.observations import Raised, plain
from autograder.probing import (
    call,
    case,
    on_device,
    stays_there,
    stopped,
    to_tensor,
)

# What torch emulates, slowly, on the meta device, where nothing has a value.
DRAWS = {
    "normal_",
    "uniform_",
    "kaiming_uniform_",
    "xavier_uniform_",
    "trunc_normal_",
}
TWINS = 8  # parameters shorter than this may be equal by chance


@dataclasses.dataclass
class GPTConfig:
    """The configuration of a GPT that lessons provide in their first cells."""

    vocab_size: int = 50257
    context_length: int = 1024
    d_model: int = 768
    n_heads: int = 12
    n_layers: int = 12
    dropout: float = 0.0
    bias: bool = True


def module_case(
    build,
    weights,
    *args,
    mode="eval",
    method=None,
    meta=False,
    upstream=None,
    dtype="float64",
    **kwargs,
):
    """A module to build and one call of it.

    build: (args, kwargs) of the class
    weights: {parameter's documented name: array}; None keeps what the module
        initialised itself with
    mode: "eval" or "train"
    method: name of the method to call instead of the module itself
    meta: build on the meta device and only look at it (full sizes cost
        nothing there)
    """
    made = case(*args, upstream=upstream, dtype=dtype, **kwargs)
    return {
        **made,
        "build": [list(build[0]), dict(build[1])],
        "weights": weights,
        "mode": mode,
        "method": method,
        "meta": meta,
    }


def draw(rng, shapes, scale=0.5):
    """Weights for `module_case`: {name: array} of the given shapes.

    Biases and gains are random too, or a missing one could not be seen.
    """
    return {name: rng.randn(*shape) * scale for name, shape in shapes.items()}


def layer_shapes(layers, bias=True):
    """{documented name: shape} of layers of which the weights' are given."""
    shapes = {}
    for name, shape in layers.items():
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def block_shapes(D, *, wide=4, bias=True):
    """{documented name: shape} of a block of width D.

    wide: by how much its MLP is wider
    """
    return layer_shapes(
        {
            "ln1": (D,),
            "attn.qkv_proj": (3 * D, D),
            "attn.out_proj": (D, D),
            "ln2": (D,),
            "mlp.fc1": (wide * D, D),
            "mlp.fc2": (D, wide * D),
        },
        bias,
    )


def gpt_shapes(V, C, D, L, bias=True):
    """{documented name: shape} of a GPT; the head is the embedding."""
    shapes = {"tok_embed.weight": (V, D), "pos_embed.weight": (C, D)}
    for index in range(L):
        for name, shape in block_shapes(D, bias=bias).items():
            shapes[f"blocks.{index}.{name}"] = shape
    return shapes | layer_shapes({"ln_f": (D,)}, bias)


def call_modules(answer, inputs, scripts=None):
    """Build, look, load, call: once a case.

    The first case of each way of building is looked at, and the first case
    of all is called again.

    scripts: {case: script(module, case)}; such a case's result is what its
        script returns, which may use the loaded module in any way
    returns: {case: {"out": result or what stopped it, "built": see `look_at`,
        "missing": documented names that the module lacks, "changed",
        "grads": of the arguments, then of the weights in the case's order,
        "again": result of the second call}}
    """
    seen, known = {}, []
    for number, (name, one) in enumerate(inputs.items()):
        # Versions of torch draw a dropout from different numbers: what a
        # module draws must not depend on what was drawn in cases before.
        torch.default_generator.manual_seed(number)
        how = one["build"], one["weights"] is None, one["meta"]
        script = (scripts or {}).get(name)
        seen[name] = _one(answer, one, script, how not in known, not known)
        known.append(how)
    return seen


def _one(answer, one, script, look, twice):
    args, kwargs = one["build"]
    try:
        if one["meta"]:
            with on_device("meta"), _Undrawn():
                module = answer(*args, **kwargs)
        else:
            with on_device("cpu"):
                module = answer(*args, **kwargs)
    except BaseException as error:
        return {"out": stopped(error)}
    if not isinstance(module, nn.Module):
        return {
            "out": Raised(
                "TypeError", (), "the class does not make a torch.nn.Module"
            )
        }
    seen = {}
    if look:
        seen["built"] = look_at(module, stats=one["weights"] is None)
    if one["meta"]:
        count = sum(value.numel() for value in module.parameters())
        return {**seen, "out": count}
    if one["dtype"]:
        module = module.to(getattr(torch, one["dtype"]))
    weights = one["weights"]
    if weights is not None:
        seen["missing"] = _load(module, weights, one)
    module.train(one["mode"] == "train")
    if script:
        return {**seen, "out": _played(script, module, one)}
    own = dict(module.named_parameters(remove_duplicate=False))
    tracked = [own[name] for name in weights or () if name in own]
    target = module
    if one["method"]:
        target = getattr(module, one["method"], None)
    if target is None:
        text = f"the class has no method {one['method']}"
        return {**seen, "out": Raised("AttributeError", (), text)}
    seen |= call(target, one, to_tensor, tracked)
    if twice and not isinstance(seen["out"], Raised):
        seen["again"] = call(target, {**one, "upstream": None}, to_tensor)[
            "out"
        ]
    return seen


class _Undrawn(TorchFunctionMode):
    """Leaves tensors without values undrawn."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        filled = args[0] if args else kwargs.get("tensor")
        if getattr(func, "__name__", "") in DRAWS and filled.is_meta:
            return filled
        return func(*args, **kwargs)


def _played(script, module, one):
    try:
        return plain(script(module, one))
    except BaseException as error:
        return stopped(error)


def moved(module, one):
    """A script: whether the module works on a device to which it is moved."""
    return stays_there(module.to("meta"), one)


def follows_device(*cases):
    """In the named cases, of which `moved` is the script."""

    def judge(seen, want, inputs):
        for name in cases:
            if seen[name]["out"] is not True:
                return Failure(
                    "moved to another device with .to(device), the module "
                    "still uses a tensor on the old one",
                    name,
                )
        return None

    return law(
        "follows its device",
        judge,
        because="no run on the CPU shows it",
        says=(
            "Register a stored mask as a buffer, and make new tensors on the "
            "device of an argument: device=x.device."
        ),
    )


def _load(module, weights, one):
    own = dict(module.named_parameters(remove_duplicate=False))
    missing = []
    for name, value in weights.items():
        tensor = to_tensor(value, {**one, "strided": False})
        if name in own and own[name].shape == tensor.shape:
            own[name].data.copy_(tensor)
        else:
            missing.append(name)
    return missing


def look_at(module, *, stats=True):
    """What a module is made of.

    stats: whether the initial values matter; where weights are loaded they
        would only blur the picture by which mistakes are recognised
    returns: {"shapes": {parameter's name: text}, "count": numbers in all
        parameters, tied ones once, "ties": lists of names that are one
        parameter, "twins": lists of names with equal random values, "frozen":
        names that are not trained, "saved": other names in state_dict,
        "stats": {name: [mean, standard deviation]}, empty without `stats`}
    """
    own = dict(module.named_parameters(remove_duplicate=False))
    real = {
        name: value
        for name, value in own.items()
        if value.device.type != "meta"
    }
    return {
        "shapes": {name: str(tuple(own[name].shape)) for name in own},
        "count": sum(value.numel() for value in module.parameters()),
        "ties": _groups(own, id),
        "twins": _groups(
            {
                name: value
                for name, value in real.items()
                if value.numel() >= TWINS
                and bool((value != value.flatten()[0]).any())
            },
            _bytes,
        ),
        "frozen": [
            name for name, value in own.items() if not value.requires_grad
        ],
        "saved": sorted(set(module.state_dict()) - set(own)),
        "stats": {
            name: [
                value.detach().double().mean().item(),
                value.detach().double().std(correction=0).item(),
            ]
            for name, value in real.items()
            if stats and value.numel()
        },
    }


def _bytes(tensor):
    # As bytes, since numpy has no bfloat16.
    return tensor.detach().flatten().view(torch.uint8).numpy().tobytes()


def _groups(tensors, key):
    found = {}
    for name, value in tensors.items():
        found.setdefault(key(value), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def of_modules(*properties, twins=True):
    """An exercise's own properties between those that all modules have."""
    runs, form, unchanged, _ = of_calls()
    return (
        runs,
        Property(
            "parameter names",
            _names,
            gate=True,
            because="weights are loaded by name",
            says=(
                "The check loads weights by the documented names: use the "
                "names and shapes that the docstring lists."
            ),
        ),
        form,
        *properties,
        unchanged,
        Property(
            "same again",
            _again,
            because="a module that remembers passes every single call",
            says=(
                "In eval mode a second call with the same input gives "
                "something else: the module keeps something from one call to "
                "the next."
            ),
        ),
        *(
            [
                Property(
                    "layers start different",
                    _twins,
                    because="no output shows it before training",
                    says=(
                        "Two parameters start with the very same random "
                        "values, so they can never learn different things: "
                        "make each layer anew."
                    ),
                )
            ]
            if twins
            else []
        ),
    )


def _names(seen, want, inputs):
    for name in inputs:
        if "built" not in want[name] or "built" not in seen[name]:
            continue
        due, own = (part[name]["built"]["shapes"] for part in (want, seen))
        if due.keys() != own.keys():
            return Failure(
                f"expected names: {', '.join(due)}. Found: "
                f"{', '.join(own) or 'no parameters at all'}. "
                + _odd("Missing", due.keys() - own.keys())
                + _odd("Not expected", own.keys() - due.keys()),
                name,
            )
        for key in due:
            if due[key] != own[key]:
                return Failure(
                    f"{key} has shape {own[key]} where {due[key]} is due",
                    name,
                )
    return None


def _odd(title, names):
    return f"{title}: {', '.join(sorted(names))}. " if names else ""


def _again(seen, want, inputs):
    again = of_calls()[-1]
    for name in inputs:
        if inputs[name]["mode"] == "eval" and "again" in seen[name]:
            failure = again.judge(seen, want, {name: inputs[name]})
            if failure:
                return failure
    return None


def _twins(seen, want, inputs):
    for name in inputs:
        pairs = seen[name].get("built", {}).get("twins", [])
        if pairs:
            return Failure(
                f"equal from the start: {', '.join(pairs[0])}", name
            )
    return None
