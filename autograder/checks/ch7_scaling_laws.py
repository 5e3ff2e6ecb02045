"""Lesson 7: what right answers on scaling laws must satisfy."""

import functools

import numpy as np
import torch

from autograder.exercise import (
    Exercise,
    Failure,
    Property,
    law,
    of_calls,
    refuses,
    trouble,
    values,
)
from autograder.modules import GPTConfig
from autograder.observations import (
    Array,
    Raised,
    describe,
    form_difference,
    number,
)
from autograder.probing import call_numpy, case

WHOLE = "whole numbers, or floats that are exact to 1e-9"
MINIMUM = "a numeric minimum is as good as the closed form"
ROUNDED = dict(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
UNROUNDED = ROUNDED | dict(alpha=0.33917, beta=0.28491)
REPLICATED = dict(A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658)


def backwards(p):
    """The same dict in another order, which must not matter."""
    return dict(reversed(p.items()))


def call_numbers(answer, inputs):
    """`call_numpy`; numpy's and torch's numbers are as good as Python's."""

    def with_numbers(*args, **kwargs):
        return _plain_numbers(answer(*args, **kwargs))

    return call_numpy(with_numbers, inputs)


def _plain_numbers(value):
    """A result with Python numbers for 0-d arrays, wherever they stand."""
    if isinstance(value, dict):
        return {key: _plain_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(part) for part in value]
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return value.item() if value.ndim == 0 else value
    return value


def parts_form(keys):
    """The property that a dict with exactly these keys comes back."""

    def judge(seen, want, inputs):
        for name in inputs:
            out = seen[name]["out"]
            # What raises fails where its numbers are judged.
            if isinstance(out, Raised):
                continue
            if not isinstance(out, dict):
                return Failure(
                    f"{describe(out)} came back where a dict is due", name
                )
            if set(out) != set(keys):
                return Failure(
                    f"the keys are {', '.join(out) or 'none'} where "
                    f"{', '.join(keys)} are due",
                    name,
                )
        return None

    return law(
        f"a dict with {len(keys)} keys",
        judge,
        gate=True,
        because="without the keys no number can be found",
        says=f"Return a dict with the keys {', '.join(keys)}.",
    )


# 7.1


class Config(dict):
    """Arguments of a GPTConfig, shown as the call that makes it."""

    def __repr__(self):
        return f"GPTConfig({', '.join(f'{k}={v!r}' for k, v in self.items())})"


def flops_inputs(rng):
    def model(T, V, D, H, L, C=1024, **other):
        return case(sizes(V, D, H, L, C, **other), T)

    def sizes(V, D, H, L, C=1024, **other):
        return Config(
            vocab_size=V,
            context_length=C,
            d_model=D,
            n_heads=H,
            n_layers=L,
            **other,
        )

    T, V, L = (int(rng.randint(*ends)) for ends in ((8, 30), (31, 60), (4, 9)))
    return {
        "one token, one layer": model(1, 3, 2, 1, 1),
        "the example": case(sizes(7, 4, 2, 1), T=3),
        "primes": model(5, 13, 14, 7, 3, C=11),
        "longer than its context": model(17, 11, 10, 5, 2, C=7),
        "drawn": model(T, V, 12, 3, L, C=64),
        "one head": model(T, V, 12, 1, L, C=64),
        "equal sizes": model(6, 6, 6, 6, 6, C=6),
        "without biases, with dropout": model(
            7, 11, 10, 5, 2, C=8, bias=False, dropout=0.25
        ),
        "longer than wide": model(97, 5, 6, 2, 2, C=128),
        "GPT-2 small": model(1024, 50257, 768, 12, 12),
        # Numbers of so many digits as float32 does not hold.
        "GPT-2 small, short": model(333, 50257, 768, 12, 12),
    }


def probe_flops(answer, inputs):
    """Calls with the configurations that the inputs describe."""
    made = {
        name: one | {"args": [GPTConfig(**one["args"][0]), *one["args"][1:]]}
        for name, one in inputs.items()
    }
    return call_numbers(answer, made)


def _flops(key, seen, want, inputs):
    for name in inputs:
        if isinstance(seen[name]["out"], Raised):
            return Failure(trouble(seen[name]["out"]), name)
        one, due = (number(part[name]["out"][key]) for part in (seen, want))
        if not abs(one - due) <= 1e-9 * due:
            return Failure(
                f"{key} is {one:,.0f} where {due:,.0f} is due", name
            )
    return None


def flops_part(key, points, says):
    return law(
        key,
        functools.partial(_flops, key),
        points=points,
        because=WHOLE,
        says=says,
    )


FLOPS = ("projections", "attention", "mlp", "lm_head", "forward", "train")

transformer_flops = Exercise(
    "transformer_flops",
    flops_inputs,
    of_calls(
        parts_form(FLOPS),
        flops_part(
            "projections",
            0.75,
            "In each layer T rows pass through D → 3D and D → D; a "
            "multiply-add is 2 FLOPs, and heads do not enter.",
        ),
        flops_part(
            "attention",
            0.75,
            "Two products a head, QKᵀ and the weights with V, with all T² "
            "pairs; T is the argument.",
        ),
        flops_part(
            "mlp",
            0.5,
            "In each layer T rows pass through D → 4D and 4D → D.",
        ),
        flops_part(
            "lm_head",
            0.5,
            "One product D → V for each of the T positions, once in the "
            "whole model.",
        ),
        flops_part(
            "forward",
            0.75,
            "The sum of the four parts, and nothing else.",
        ),
        flops_part(
            "train",
            0.75,
            "Backward, each product becomes two of the same size: with the "
            "forward pass that is three times forward.",
        ),
    ),
    probe=probe_flops,
)


# 7.2


def mfu_inputs(rng):
    speed = float(rng.randint(20_000, 90_000))
    flops, peak = rng.randint(300, 900) * 1e6, rng.randint(200, 900) * 1e12
    return {
        "a quarter": case(100_000, 1e9, 4e14),
        "whole numbers": case(3, 5, 32),
        "drawn": case(speed, flops, peak),
        "eight chips": case(speed * 8, flops * 3, peak * 8),
        "by name": case(peak=6.4e13, flops_per_token=8e8, tokens_per_s=3e4),
        "hardly anything": case(0.7, 1.234567e9, 1e18),
        "nothing": case(0.0, 1e9, 1e14),
        "all of it": case(2e5, 1e9, 2e14),
        "more than all": case(7e5, 1e9, 2e14),
    }


mfu = Exercise(
    "mfu",
    mfu_inputs,
    of_calls(
        values(
            "the share",
            "a quarter",
            "drawn",
            "eight chips",
            "by name",
            points=1,
            gate=True,
            says=(
                "FLOPs a second that the model needs, divided by FLOPs a "
                "second that the machine can do: a fraction, with nothing "
                "added to the three numbers."
            ),
        ),
        values(
            "whole numbers",
            "whole numbers",
            points=0.25,
            says="With integers, too, the division gives a fraction.",
        ),
        values(
            "neither rounded nor limited",
            "hardly anything",
            "nothing",
            "all of it",
            "more than all",
            points=0.75,
            floor=1e-9,
            says=(
                "Return what the numbers say: a small share is not 0, and a "
                "share above 1 tells of an error that has to be seen."
            ),
        ),
    ),
    probe=call_numbers,
)


# 7.3


def drawn(rng, low, high, digits=3):
    """A number that is short to print."""
    return round(float(rng.uniform(low, high)), digits)


def drawn_constants(rng):
    """Constants of no paper, with exponents well apart."""
    return dict(
        A=drawn(rng, 100, 200, 1),
        B=drawn(rng, 2000, 4000, 1),
        E=drawn(rng, 1.2, 2.4),
        alpha=drawn(rng, 0.26, 0.32),
        beta=drawn(rng, 0.38, 0.46),
    )


def loss_inputs(rng):
    p = drawn_constants(rng)

    def sizes(low, high, *shape):
        return np.exp(rng.uniform(np.log(low), np.log(high), shape))

    return {
        "an example": case(
            16.0, 27.0, dict(A=8.0, B=27.0, E=1.5, alpha=0.5, beta=1 / 3)
        ),
        "Chinchilla": case(70e9, 1.4e12, ROUNDED),
        "whole numbers": case(2_000_000, 30_000_000, REPLICATED),
        "N equals D": case(1e9, 1e9, ROUNDED),
        "drawn": case(float(sizes(1e7, 1e9)), float(sizes(1e9, 1e11)), p),
        "by name": case(p=backwards(p), D=3e10, N=2e8),
        "other constants": case(1e4, 1e3, REPLICATED | {"E": 0.25}),
        "two arrays": case(sizes(1e7, 1e9, 3), sizes(1e9, 1e11, 3), p),
        "a row and a column": case(
            sizes(1e7, 1e9, 2, 1), sizes(1e9, 1e11, 3), ROUNDED
        ),
        "an array of one and a number": case(sizes(1e7, 1e9, 1), 1e10, p),
        "a number and an array": case(1e8, sizes(1e9, 1e11, 2, 3), p),
        "whole numbers in an array": case(
            np.array([10**7, 10**8]), np.array([10**9, 3 * 10**9]), p
        ),
        "views": case(
            sizes(1e7, 1e9, 5), sizes(1e9, 1e11, 5), p, strided=True
        ),
    }


parametric_loss = Exercise(
    "parametric_loss",
    loss_inputs,
    of_calls(
        values(
            "the law",
            "an example",
            "Chinchilla",
            "whole numbers",
            "N equals D",
            points=1,
            gate=True,
            says=(
                "Three summands: E, A divided by N to the power alpha, and B "
                "divided by D to the power beta."
            ),
        ),
        values(
            "any constants",
            "drawn",
            "by name",
            "other constants",
            points=0.5,
            because="constants of no paper: none can stand in the code",
            says="All five constants come from p, by their names.",
        ),
        values(
            "arrays",
            "two arrays",
            "a row and a column",
            "an array of one and a number",
            "a number and an array",
            "whole numbers in an array",
            "views",
            points=0.5,
            says=(
                "N and D may be arrays, and one of them a number: the result "
                "has the shape to which both broadcast."
            ),
        ),
    ),
    probe=call_numbers,
)


def budget_inputs(rng):
    p = drawn_constants(rng)

    def budget(low, high):
        return 10 ** drawn(rng, np.log10(low), np.log10(high), 1)

    even = dict(A=400.0, B=400.0, E=1.7, alpha=0.3, beta=0.3)
    return {
        "even constants": case(6e20, even),
        "Chinchilla's budget": case(5.76e23, ROUNDED),
        "a small budget": case(1e19, ROUNDED),
        "unrounded": case(2.21e19, UNROUNDED),
        "replicated": case(5.76e23, REPLICATED),
        "drawn": case(budget(1e19, 1e22), p),
        "by name": case(p=backwards(p), C=3e21),
        "a tiny budget": case(1e15, REPLICATED),
        # The best size lies far above all that exist.
        "a huge budget": case(1e28, p | dict(alpha=0.26, beta=0.5)),
        "several budgets": case(
            np.array([1e19, budget(1e20, 1e22), 1e24]), ROUNDED
        ),
        "views of a table": case(
            np.array([[1e20, 1e19, 3e21], [6e20, 4e19, 1e22]]), p, strided=True
        ),
        "an array of one integer": case(np.array([3 * 10**18]), p),
    }


def _pair(out, due):
    """Why an observation is no pair (N, D) of the form that is due."""
    if isinstance(out, Raised):
        return trouble(out)
    return form_difference(out, due)


def _sizes(out):
    """N and D of an observation as arrays."""
    return (
        np.asarray(part.data if isinstance(part, Array) else part, float)
        for part in out
    )


def _best_size(names, seen, want, inputs):
    for name in names:
        wrong = _pair(seen[name]["out"], want[name]["out"])
        if wrong:
            return Failure(wrong, name)
        (one, _), (due, _) = (
            _sizes(part[name]["out"]) for part in (seen, want)
        )
        with np.errstate(all="ignore"):
            error = np.abs(one / due - 1)
        if not (error <= 1e-3).all():
            at = np.unravel_index(
                np.argmax(np.nan_to_num(error, nan=np.inf)), one.shape
            )
            return Failure(
                f"N is {one[at]:.5g} where {due[at]:.5g} is best", name
            )
    return None


def best_size(name, *cases, says, points, because=MINIMUM, gate=False):
    judge = functools.partial(_best_size, cases)
    return Property(name, judge, says, points, because, gate, cases=cases)


def _budget_spent(seen, want, inputs):
    for name in inputs:
        wrong = _pair(seen[name]["out"], want[name]["out"])
        if wrong:
            return Failure(wrong, name)
        N, D = _sizes(seen[name]["out"])
        args, kwargs = inputs[name]["args"], inputs[name]["kwargs"]
        C = args[0] if args else kwargs["C"]
        with np.errstate(all="ignore"):
            spent = 6 * N * D / C
        off = ~(np.abs(spent - 1) <= 1e-6)
        if off.any():
            return Failure(
                f"6ND is {spent[off].ravel()[0]:.6g} times the budget", name
            )
    return None


compute_optimal = Exercise(
    "compute_optimal",
    budget_inputs,
    of_calls(
        best_size(
            "the best size",
            "even constants",
            "Chinchilla's budget",
            "a small budget",
            points=1,
            gate=True,
            says=(
                "At the best point α·A/N^α equals β·B/D^β: that, with "
                "D = C / 6N, gives N. The pair is (N, D)."
            ),
        ),
        law(
            "the budget is spent",
            _budget_spent,
            points=0.5,
            because="a few roundings, far below 1e-6",
            says="D is what the budget leaves for N: C / (6 N).",
        ),
        best_size(
            "any constants",
            "unrounded",
            "replicated",
            "drawn",
            "by name",
            points=0.75,
            says=(
                "All constants come from p, by their names, and α and β "
                "both enter the exponent of C."
            ),
        ),
        best_size(
            "tiny and huge budgets",
            "a tiny budget",
            "a huge budget",
            points=0.25,
            says=(
                "Budgets from 1e15 to 1e28 are asked for: a search has to "
                "reach that far, and to be as fine everywhere."
            ),
        ),
        best_size(
            "arrays of budgets",
            "several budgets",
            "views of a table",
            "an array of one integer",
            points=0.5,
            says="C may be an array; N and D have its shape.",
        ),
    ),
    probe=call_numbers,
)


# 7.4


def kaplan_inputs(rng):
    N, D = rng.randint(20, 90) * 1e6, rng.randint(20, 90) * 1e7
    return {
        "a billion parameters": case(N=1e9),
        "N alone": case(N),
        "ten billion tokens": case(D=1e10),
        "D alone": case(None, D),
        "both": case(N=1e9, D=1e10),
        "both, drawn": case(N, D),
        "both, drawn again": case(D=50 * D, N=N),
        "equal numbers": case(2e9, 2e9),
        "whole numbers": case(10**6, 10**11),
        "data without end": case(1e9, 1e40),
        "a model without end": case(1e40, 1e10),
        "neither": case(),
        "None for both": case(None, None),
    }


kaplan_loss = Exercise(
    "kaplan_loss",
    kaplan_inputs,
    of_calls(
        values(
            "N alone",
            "a billion parameters",
            "N alone",
            points=0.5,
            gate=True,
            says="N_c / N to the power α_N, with the constants of the task.",
        ),
        values(
            "D alone",
            "ten billion tokens",
            "D alone",
            points=0.5,
            says="D_c / D to the power α_D; N may come as None.",
        ),
        values(
            "both",
            "both",
            "both, drawn",
            "both, drawn again",
            "equal numbers",
            "whole numbers",
            points=0.75,
            says=(
                "One bracket holds both limits, the first one with the "
                "exponent α_N/α_D, and all of it is raised to α_D."
            ),
        ),
        values(
            "one limit far away",
            "data without end",
            "a model without end",
            because="an invariant to see, implied by the values",
            says=(
                "With endless data the third law is the first one, with an "
                "endless model the second one."
            ),
        ),
        refuses(
            "neither",
            "neither",
            "None for both",
            points=0.25,
            says="Without N and D there is nothing to predict: a ValueError.",
        ),
    ),
    probe=call_numbers,
)


# 7.5


class Runs(list):
    """Runs, told in few words where they are many."""

    def __repr__(self):
        if len(self) <= 6:
            return super().__repr__()
        budgets = len({run["C"] for run in self})
        return f"<{len(self)} runs of {budgets} budgets>"


def isoflop_inputs(rng):
    def shuffled(groups):
        runs = [run for group in groups for run in group]
        return case(Runs(runs[i] for i in rng.permutation(len(runs))))

    def valley(C, best, factors, depth, steep=0.1):
        """Runs whose losses are a parabola in ln N."""
        return [
            {
                "C": C,
                "N": float(best * factor),
                "L": float(depth + steep * np.log(factor) ** 2),
            }
            for factor in factors
        ]

    def trained(C, sizes, noise=0.0):
        """Runs with losses of the rounded constants, times 1 ± noise."""
        p, runs = ROUNDED, []
        for i, N in enumerate(sizes):
            D = C / (6 * N)
            loss = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"]
            # Never near 0, so that noise always shows.
            wobble = 1 + noise * (-1) ** i * rng.uniform(0.5, 1)
            runs.append({"C": C, "N": float(N), "L": float(loss * wobble)})
        return runs

    def best(C):
        return 0.6 * C**0.45

    slope, near = float(rng.uniform(0.4, 0.6)), np.geomspace(1 / 4, 4, 7)
    exact = [
        valley(C, 1e9 * (C / 1e21) ** slope, factors, depth)
        for C, factors, depth in (
            (1e19, (0.25, 0.7, 1.8), 2.9),
            (1.2e19, (0.2, 0.5, 1.1, 2.5), 2.4),
            (2e22, (0.4, 0.9, 1.5, 3.0, 5.0), 2.1),
        )
    ]
    return {
        "two budgets": case(
            Runs(
                valley(1e18, 2e7, (0.5, 1.0, 1.5), 2.0, 1.0)
                + valley(1e20, 2e8, (0.5, 1.5, 4.5), 2.0, 1.0)
            )
        ),
        "exact valleys": shuffled(exact),
        "one budget after the other": case(Runs(sum(reversed(exact), []))),
        "noisy valleys": shuffled(
            trained(C, best(C) * factors, noise)
            for C, factors, noise in (
                (1e18, near, 4e-3),
                (6e18, np.append(near, near[2]) * 1.3, 3e-3),
                (3e19, np.geomspace(0.1, 5, 9), 2e-3),
                (1e20, near[1:] / 1.2, 3e-3),
            )
        ),
        "many runs of one budget": shuffled(
            trained(C, best(C) * factors)
            for C, factors in (
                (1e17, np.geomspace(1 / 3, 30, 17)),
                (1e19, np.append(near, near[5])),  # one run twice
                (1e21, near[1:5]),
            )
        ),
        "the same sizes everywhere": shuffled(
            trained(C, np.geomspace(3e7, 1e10, 9))
            for C in (1e18, 1e19, 1e20, 1e21, 1e22)
        ),
        "all too small": shuffled(
            trained(C, best(C) * np.geomspace(1 / 40, 1 / 3, 5))
            for C in (1e19, 1e20, 1e21)
        ),
        "all too large": shuffled(
            trained(C, best(C) * np.geomspace(3, 40, 5))
            for C in (1e19, 1e20, 1e21)
        ),
    }


CENTRED = (
    "two budgets",
    "exact valleys",
    "one budget after the other",
    "noisy valleys",
    "many runs of one budget",
    "the same sizes everywhere",
)
ISOFLOP = ("C", "N_opt", "exponent", "coefficient")


def probe_isoflop(answer, inputs):
    """Calls with plain lists; lists and arrays of numbers are equally good."""

    def with_arrays(runs):
        out = answer(runs)
        if not isinstance(out, dict):
            return out
        return {key: _numbers(value) for key, value in out.items()}

    made = {
        name: one | {"args": [list(one["args"][0])]}
        for name, one in inputs.items()
    }
    return call_numbers(with_arrays, made)


def _numbers(value):
    """A sequence of numbers as an array; anything else as it is."""
    if isinstance(value, str | dict | None):
        return value
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return value
    return array if array.ndim else value


def _array_of(key, names, tol, seen, want, inputs):
    for name in names:
        if isinstance(seen[name]["out"], Raised):
            return Failure(trouble(seen[name]["out"]), name)
        out, due = (part[name]["out"][key].data for part in (seen, want))
        if out.shape != due.shape:
            return Failure(
                f"{key} holds {out.size} numbers where {due.size} are due",
                name,
            )
        with np.errstate(all="ignore"):
            off = ~(np.abs(out / due - 1) <= tol)
        if off.any():
            i = int(np.argmax(off))
            return Failure(
                f"{key}[{i}] is {out[i]:.6g} where {due[i]:.6g} is due", name
            )
    return None


def of_budgets(name, key, cases, tol=1e-5, **kwargs):
    """A law over one array of the result."""
    return law(name, functools.partial(_array_of, key, cases, tol), **kwargs)


def _power_law(key, seen, want, inputs):
    for name in CENTRED:
        if isinstance(seen[name]["out"], Raised):
            return Failure(trouble(seen[name]["out"]), name)
        one, due = (number(part[name]["out"][key]) for part in (seen, want))
        if not abs(one / due - 1) <= 1e-5:
            return Failure(f"{key} is {one:.6g} where {due:.6g} is due", name)
    return None


LEAST_SQUARES = "a least-squares fit is unique; float64 leaves 1e-9 of it"

isoflop_fit = Exercise(
    "isoflop_fit",
    isoflop_inputs,
    of_calls(
        parts_form(ISOFLOP),
        of_budgets(
            "budgets",
            "C",
            CENTRED,
            tol=1e-12,
            points=0.5,
            because="the budgets are copied, not computed",
            says="Each budget once, from the smallest to the largest.",
        ),
        of_budgets(
            "vertices",
            "N_opt",
            CENTRED,
            points=2,
            gate=True,
            because=LEAST_SQUARES,
            says=(
                "In each budget fit L = a·x² + b·x + c with x = ln N to all "
                "runs; ln N_opt is −b / 2a."
            ),
        ),
        of_budgets(
            "vertices outside of the runs",
            "N_opt",
            ("all too small", "all too large"),
            points=0.5,
            because=LEAST_SQUARES,
            says=(
                "The vertex counts wherever it lies, also where every run "
                "is on one side of it."
            ),
        ),
        law(
            "exponent",
            functools.partial(_power_law, "exponent"),
            points=1.25,
            because=LEAST_SQUARES,
            says=(
                "The slope of a straight line through (ln C, ln N_opt), by "
                "least squares, with one point a budget."
            ),
        ),
        law(
            "coefficient",
            functools.partial(_power_law, "coefficient"),
            points=0.75,
            because=LEAST_SQUARES,
            says=(
                "N_opt is coefficient · C^exponent: take the line's value "
                "at ln C = 0 out of its logarithm."
            ),
        ),
    ),
    probe=probe_isoflop,
)


# 7.6

FITTED = ("A", "B", "E", "alpha", "beta")


def fit_inputs(rng):
    def truth(swapped):
        """Constants whose exponents, and E, are far from published ones."""
        low, high = rng.uniform(0.28, 0.34), rng.uniform(0.42, 0.5)
        alpha, beta = (high, low) if swapped else (low, high)
        return dict(
            A=float(rng.uniform(0.9, 1.8) * 1e7**alpha),
            B=float(rng.uniform(0.9, 1.8) * 1e8**beta),
            E=float(rng.uniform(*((1.42, 1.6) if swapped else (1.8, 2.1)))),
            alpha=float(alpha),
            beta=float(beta),
        )

    def sizes(low, high):
        """Six sizes, about evenly apart in their logarithms."""
        steps = np.linspace(np.log(low), np.log(high), 6)
        return np.exp(steps + [0, *rng.uniform(-0.3, 0.3, 4), 0])

    def runs(p, noise=0.0, broken=(), factor=(1.1, 1.3)):
        """broken: (number of N, number of D) of the runs that went wrong."""
        N, D = np.meshgrid(sizes(1e7, 1e10), sizes(1e8, 1e11), indexing="ij")
        L = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"]
        L = L * (1 + noise * rng.uniform(-1, 1, L.shape))
        for place in broken:
            L[place] *= rng.uniform(*factor)
        order = rng.permutation(N.size)
        return [each.ravel()[order] for each in (N, D, L)]

    def fit(p, data, **how):
        return case(*data, **how) | {"truth": p}

    # Three of the largest models, which no symmetric average can mend.
    largest = [(5, int(i)) for i in rng.permutation(6)[:3]]
    # With these, squares of L and squares of ln L lead far apart, while
    # relative errors of 15 to 20% are still as good as those of ln L.
    shortest = [(0, 0), (0, 1), (0, 2)]
    first, second, third = truth(False), truth(True), truth(False)
    return {
        "exact losses": fit(first, runs(first)),
        "broken runs": fit(second, runs(second, 1e-3, largest)),
        "other constants": fit(
            third, runs(third, 1e-3, largest), strided=True
        ),
        "a large delta": fit(
            None, runs(second, 1e-3, shortest, (1.15, 1.2)), delta=10.0
        ),
    }


ROBUST = ("exact losses", "broken runs", "other constants")


def _due(name, want, inputs):
    """The true constants, or the oracle's fit where those are not due."""
    fitted = {key: number(want[name]["out"][key]) for key in FITTED}
    return inputs[name]["truth"] or fitted


def _shape_near(name, seen, want, inputs, part="out"):
    """Why alpha, beta or E of a case are too far off, or None."""
    out, due = seen[name][part], _due(name, want, inputs)
    if isinstance(out, Raised):
        return trouble(out)
    for key in ("alpha", "beta", "E"):
        one = number(out[key])
        if not abs(one - due[key]) <= 0.04:
            return f"{key} is {one:.4g} where {due[key]:.4g} is due"
    return None


def _loss(p, N, D):
    A, B, E, alpha, beta = (number(p[key]) for key in FITTED)
    return E + A / N**alpha + B / D**beta


def _prediction_near(name, seen, want, inputs):
    """Why predicted losses of a case are too far off, or None."""
    out, due = seen[name]["out"], _due(name, want, inputs)
    if isinstance(out, Raised):
        return trouble(out)
    for N, D in ((10**8.5, 10**9.5), (1e11, 1e12)):
        one, best = _loss(out, N, D), _loss(due, N, D)
        if not abs(one / best - 1) <= 0.01:
            return (
                f"for N = {N:.3g} and D = {D:.3g} its constants predict a "
                f"loss of {one:.4g} where {best:.4g} is due"
            )
    return None


def near(name, judges, *cases, says, points, because, gate=False):
    """None of the judges objects to any of the named cases."""

    def judge(seen, want, inputs):
        for each in cases:
            for one in judges:
                wrong = one(each, seen, want, inputs)
                if wrong:
                    return Failure(wrong, each)
        return None

    return Property(name, judge, says, points, because, gate, cases=cases)


def _fit_again(seen, want, inputs):
    name = next(iter(inputs))
    wrong = _shape_near(name, seen, want, inputs, "again")
    return wrong and Failure(wrong, name)


RUNS, FORM, UNCHANGED, SAME_AGAIN = of_calls()
NEARBY = (
    "the minimum of the sum lies within 0.01 of the truth in every draw, so "
    "0.04 leaves room for other ways to it"
)

fit_chinchilla = Exercise(
    "fit_chinchilla",
    fit_inputs,
    (
        RUNS,
        parts_form(FITTED),
        FORM,
        near(
            "exact losses",
            [_shape_near],
            "exact losses",
            points=1.5,
            gate=True,
            because=NEARBY,
            says=(
                "Losses without any error have a sum of 0 at the true "
                "constants. If E, α and β are far from them, the search ended "
                "in a wrong valley (try many starts), or too soon: the sum is "
                "of the size of δ, which an optimiser may take for 0, so "
                "minimise 10,000 times the sum, or lower the tolerances."
            ),
        ),
        near(
            "broken runs",
            [_shape_near],
            "broken runs",
            "other constants",
            points=3,
            because=NEARBY,
            says=(
                "Three of 36 losses are far too high. With the Huber loss of "
                "the residuals of ln L they hardly matter; with squares, or "
                "with a search that ends too soon, they do."
            ),
        ),
        near(
            "predictions",
            [_prediction_near],
            *ROBUST,
            points=2.5,
            because="the minimum predicts to 0.4% in every draw",
            says=(
                "With your constants E + A/N^α + B/D^β has to give the true "
                "losses: A, B and E are due, not their logarithms, and each "
                "belongs to its own exponent."
            ),
        ),
        near(
            "a large delta",
            [_shape_near, _prediction_near],
            "a large delta",
            points=1,
            because="a minimum without flat parts, found to 1e-6",
            says=(
                "A delta above all residuals makes the Huber loss r²/2 "
                "everywhere, so the broken runs pull with all their weight: "
                "use the argument."
            ),
        ),
        UNCHANGED,
        law(
            SAME_AGAIN.name,
            _fit_again,
            because="starts may be drawn, so it need not be the same exactly",
            says=SAME_AGAIN.says,
        ),
    ),
    probe=call_numbers,
)


# 7.7


def use_inputs(rng):
    p = drawn_constants(rng)
    loss, use = (
        round(p["E"] + drawn(rng, 0.3, 0.9), 3),
        drawn(rng, 2e10, 9e10, -8),
    )
    even = dict(A=400.0, B=400.0, E=1.7, alpha=0.3, beta=0.3)
    return {
        "no use": case(2.5, 0, even),
        "no use, Chinchilla": case(2.1, 0.0, ROUNDED),
        "no use, drawn": case(loss, 0.0, p),
        "even constants": case(2.5, 1e12, even),
        "Chinchilla": case(2.1, 1e12, ROUNDED),
        "replicated": case(2.1, 1e13, REPLICATED),
        "drawn": case(loss, use, p),
        "by name": case(p=backwards(p), D_inf=30 * use, loss=loss),
        "whole numbers": case(3, 10**12, REPLICATED),
        "little use": case(2.1, 1e9, ROUNDED),
        "use without end": case(2.1, 1e16, REPLICATED),
        "a low loss": case(1.75, 1e13, even | dict(alpha=0.21, beta=0.2)),
        "a high loss": case(REPLICATED["E"] + 5, 1e11, REPLICATED),
        "below E": case(1.5, 1e12, ROUNDED),
        "E itself": case(1.69, 1e12, ROUNDED),
        "E itself, no use": case(1.7, 0, even),
        "below E, no use": case(1.0, 0, even),
    }


NO_USE = ("no use", "no use, Chinchilla", "no use, drawn")
IN_USE = ("even constants", "Chinchilla", "replicated", "drawn", "by name")
FAR_USE = (
    "whole numbers",
    "little use",
    "use without end",
    "a low loss",
    "a high loss",
)


def _loss_reached(seen, want, inputs):
    for name in (*NO_USE, *IN_USE, *FAR_USE):
        wrong = _pair(seen[name]["out"], want[name]["out"])
        if wrong:
            return Failure(wrong, name)
        args, kwargs = inputs[name]["args"], inputs[name]["kwargs"]
        due, _, p = args or (kwargs["loss"], None, kwargs["p"])
        got = _loss(p, *(float(each) for each in _sizes(seen[name]["out"])))
        if not abs(got - due) <= 1e-6:
            return Failure(
                f"the loss at its N and D is {got:.7g} where {due:.7g} is due",
                name,
            )
    return None


inference_optimal = Exercise(
    "inference_optimal",
    use_inputs,
    of_calls(
        best_size(
            "no use",
            *NO_USE,
            points=1,
            gate=True,
            says=(
                "With D_inf = 0 only training costs, and at the best point "
                "α·A/N^α equals β·B/D^β, as in 7.3. The pair is (N, D)."
            ),
        ),
        best_size(
            "in use",
            *IN_USE,
            points=2,
            says=(
                "What is to be smallest is 6ND + 2N·D_inf: the more tokens "
                "are read in use, the smaller the model, and the longer its "
                "training."
            ),
        ),
        best_size(
            "far ends",
            *FAR_USE,
            points=0.5,
            says=(
                "The best sizes span many powers of ten: search in ln N or "
                "ln D, on an interval that grows as far as needed, and until "
                "N is exact to 1e-3."
            ),
        ),
        law(
            "the loss is reached",
            _loss_reached,
            points=0.75,
            because="float64 leaves 1e-14, a bisection of ln D 1e-12",
            says=(
                "Whatever N is, D has to be the one with which the loss is "
                "exactly the one that is asked for."
            ),
        ),
        refuses(
            "out of reach",
            "below E",
            "E itself",
            "E itself, no use",
            "below E, no use",
            points=0.75,
            says=(
                "No model reaches E, and none gets below it: a ValueError, "
                "also for a loss that is exactly E."
            ),
        ),
    ),
    probe=call_numbers,
)
