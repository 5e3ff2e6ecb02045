"""Other people's answers to lesson 3: positional encoding.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
comment above a mistake says which input shows it, where ordinary ones do not.
"""

import itertools
import math
import types

import numpy as np
import torch
import torch.nn.functional as F

from autograder.answers import oracle, right, wrong

# Helpers: the parts of an answer that a mistake leaves intact.


def _wide(x):
    """x in float32 or wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _even(width):
    if width % 2:
        raise ValueError(f"the width is {width}: use an even one")


def _exponents(D):
    """0/D, 2/D, 4/D, … in float64."""
    return torch.arange(0, D, 2, dtype=torch.float64) / D


def _default(x):
    return x.to(torch.get_default_dtype())


def _clock(T, frequencies):
    """Angles (T, D/2) of positions from 0 in float64."""
    return torch.arange(T, dtype=torch.float64)[:, None] * frequencies


def _alternating(sines, cosines):
    table = torch.stack((sines, cosines), -1)
    return _default(table.flatten(1))


def _sinusoids(angle):
    return _alternating(angle.sin(), angle.cos())


def _fits(ids, pos):
    if ids.shape[1] > len(pos):
        raise ValueError(f"{ids.shape[1]} tokens, {len(pos)} positions")


def _known(ids, tok):
    if ((ids < 0) | (ids >= len(tok))).any():
        raise IndexError("an id is not in the table of tokens")


def _checked(ids, tok, pos):
    _fits(ids, pos)
    _known(ids, tok)


def _angles(x, positions, base, exponents=None):
    """Angles (..., T, Dh/2) in x's dtype, float32 for half inputs."""
    if exponents is None:
        exponents = _exponents(x.shape[-1])
    frequencies = base ** -exponents.double().to(x.device)
    return (positions.double()[..., None] * frequencies).to(_wide(x).dtype)


def _pairs(x, interleaved):
    """First and second channels of all pairs."""
    if interleaved:
        return _wide(x)[..., ::2], _wide(x)[..., 1::2]
    return _wide(x).chunk(2, -1)


def _joined(a, c, interleaved, dtype):
    if interleaved:
        return torch.stack((a, c), -1).flatten(-2).to(dtype)
    return torch.cat((a, c), -1).to(dtype)


def _turned(x, angles, interleaved):
    _even(x.shape[-1])
    a, c = _pairs(x, interleaved)
    cos, sin = angles.cos(), angles.sin()
    return _joined(a * cos - c * sin, a * sin + c * cos, interleaved, x.dtype)


def _half_order(Dh):
    """The interleaved rows in the order of the half-split layout."""
    return [*range(0, Dh, 2), *range(1, Dh, 2)]


def _by_heads(w, n_heads, order):
    """Rows reordered within each head."""
    heads = w.reshape(n_heads, -1, *w.shape[1:])
    return heads[:, order].reshape(w.shape)


def _order(Dh, to):
    """The order of a head's rows in the layout `to`."""
    if to == "half":
        return _half_order(Dh)
    if to == "interleaved":
        return np.argsort(_half_order(Dh)).tolist()
    raise ValueError(f"to is {to!r}")


def _slopes_of_power(n):
    return [2 ** (-8 * h / n) for h in range(1, n + 1)]


def _slopes(n_heads):
    n = 2 ** math.floor(math.log2(n_heads))
    extra = _slopes_of_power(2 * n)[::2]
    return _slopes_of_power(n) + extra[: n_heads - n]


def _distances(Tq, Tk):
    """Distance (Tq, Tk) of query and key, negative for the future."""
    return torch.arange(Tq)[:, None] + Tk - Tq - torch.arange(Tk)


def _penalty(slopes, distances):
    slopes = _default(torch.as_tensor(slopes, dtype=torch.float64))
    return -slopes[:, None, None] * distances


def _thetas(d_head, base):
    return base ** -_exponents(d_head)


def _ramp_ends(d_head, base, orig_max, beta_fast=32, beta_slow=1):
    """Fractional pair numbers at which YaRN's ramp begins and ends."""
    return [
        d_head
        * math.log(orig_max / (2 * math.pi * turns))
        / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    ]


def _limited(low, high, top):
    return max(math.floor(low), 0), min(math.ceil(high), top)


def _ramp(d_head, low, high):
    """Share of the slowed frequency for each pair, in float64."""
    i = torch.arange(d_head // 2, dtype=torch.float64)
    high = high + 0.001 if high == low else high
    return ((i - low) / (high - low)).clamp(0, 1)


def _blend(theta, share, factor):
    """theta / factor with the given share, theta with the rest."""
    return theta * (1 - share) + theta / factor * share


def _attention(factor):
    return 0.1 * math.log(factor) + 1


def _yarn(d_head, base, factor, orig_max, **kw):
    ends = _ramp_ends(d_head, base, orig_max, **kw)
    share = _ramp(d_head, *_limited(*ends, d_head - 1))
    theta = _thetas(d_head, base)
    return _blend(theta, share, factor), _attention(factor)


def _turns(d_head, base, orig_max):
    return orig_max * _thetas(d_head, base) / (2 * math.pi)


def _llama3(
    d_head, base, factor, orig_max, low_freq_factor=1, high_freq_factor=4
):
    turns = _turns(d_head, base, orig_max)
    keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    theta = _thetas(d_head, base)
    return _blend(theta, 1 - keep.clamp(0, 1), factor), 1.0


def _ntk(d_head, base, factor, orig_max):
    return _thetas(d_head, base * factor ** (d_head / (d_head - 2))), 1.0


def _linear(d_head, base, factor, orig_max):
    return _thetas(d_head, base) / factor, 1.0


METHODS = {"linear": _linear, "ntk": _ntk, "yarn": _yarn, "llama3": _llama3}


def _stretched(method, d_head, base, factor, orig_max, **kw):
    """The right answer, by another way through the methods."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}")
    return METHODS[method](d_head, base, factor, orig_max, **kw)


def _short(pos, theta, dtype):
    """Angles in a dtype's arithmetic, widened to float64."""
    return (torch.tensor(float(pos)).to(dtype) * theta.to(dtype)).double()


# 3.1 sinusoidal_table


@oracle("sinusoidal_table", evidence="one entry at a time with math, float64")
def sinusoid_loops(T, D, base=1e4):
    if D % 2:
        raise ValueError("D is odd")
    rows = []
    for t in range(T):
        angles = [t / base ** (2 * i / D) for i in range(D // 2)]
        rows.append([f(a) for a in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.get_default_dtype())


@right("sinusoidal_table", evidence="annotated-transformer: exp of a log")
def sinusoid_exp_log(T, D, base=1e4):
    _even(D)
    table = torch.zeros(T, D, dtype=torch.float64)
    t = torch.arange(T, dtype=torch.float64).unsqueeze(1)
    i = torch.arange(0, D, 2, dtype=torch.float64)
    rate = torch.exp(-math.log(base) / D * i)
    table[:, 0::2] = torch.sin(t * rate)
    table[:, 1::2] = torch.cos(t * rate)
    return table.to(torch.get_default_dtype())


@right("sinusoidal_table", evidence="rotations by complex numbers")
def sinusoid_complex(T, D, base=1e4):
    _even(D)
    z = torch.polar(
        torch.ones(T, D // 2, dtype=torch.float64),
        _clock(T, base ** -_exponents(D)),
    )
    return _default(torch.stack((z.imag, z.real), 2).reshape(T, D))


@right("sinusoidal_table", evidence="cosine as a sine, a quarter turn ahead")
def sinusoid_phase(T, D, base=1e4):
    _even(D)
    channel = np.arange(D)
    angle = np.arange(T)[:, None] / base ** (channel // 2 * 2 / D)
    table = np.sin(angle + channel % 2 * np.pi / 2)
    return torch.tensor(table, dtype=torch.get_default_dtype())


@right("sinusoidal_table", evidence="each row is the one before it, turned")
def sinusoid_recurrence(T, D, base=1e4):
    _even(D)
    step = torch.polar(
        torch.ones(D // 2, dtype=torch.float64), base ** -_exponents(D)
    )
    rows = [torch.ones_like(step)]
    for _ in range(T - 1):
        rows.append(rows[-1] * step)
    z = torch.stack(rows)
    return _alternating(z.imag, z.real)


@right("sinusoidal_table", evidence="float32 unless the default is wider")
def sinusoid_promoted(T, D, base=1e4):
    _even(D)
    wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
    t = torch.arange(T, dtype=wide)
    i = torch.arange(0, D, 2, dtype=wide)
    return _sinusoids(torch.outer(t, 1 / base ** (i / D)))


@wrong(
    "sinusoidal_table",
    hint=(
        "Your exponent counts the 2 twice: the index already goes 0, 2, 4, "
        "… and is doubled once more, so the frequencies fall twice as fast. "
        "The last pair should have an exponent just below 1, (D − 2)/D."
    ),
    evidence="M119 SamLynnEvans#25, DeepCTR#379, jadore801120#32, Kyubyong#38",
)
def sinusoid_exponent_doubled(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** (-2 * _exponents(D))))


@wrong(
    "sinusoidal_table",
    hint=(
        "You put the column's number in the place of i: the 2i and 2i + 1 "
        "of the formula are the columns, and i counts the pairs. Columns 2 "
        "and 3 are pair 1, so both have the exponent 2/D."
    ),
    evidence="M119 and M120 together: SamLynnEvans#25",
)
def sinusoid_column_for_pair(T, D, base=1e4):
    _even(D)
    exponents = 2 * _exponents(D)
    return _alternating(
        _clock(T, base**-exponents).sin(),
        _clock(T, base ** -(exponents + 2 / D)).cos(),
    )


@wrong(
    "sinusoidal_table",
    hint=(
        "Your exponents go 0/D, 1/D, 2/D, …: pair i has the exponent 2i/D, "
        "so the 2 is missing and the slowest hand is far too fast. Which "
        "exponent should the last of D/2 pairs have?"
    ),
    evidence="M144 in this exercise",
)
def sinusoid_exponent_halved(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** (-_exponents(D) / 2)))


@wrong(
    "sinusoidal_table",
    hint=(
        "Your cosines have frequencies of their own: column 2i + 1 uses its "
        "own index in the exponent. The two columns of a pair share one "
        "angle, otherwise their squares do not sum to 1 and a shift is no "
        "rotation."
    ),
    evidence="M120 SamLynnEvans#25, Kyubyong#38",
)
def sinusoid_cosine_own_index(T, D, base=1e4):
    _even(D)
    exponents = _exponents(D)
    return _alternating(
        _clock(T, base**-exponents).sin(),
        _clock(T, base ** -(exponents + 1 / D)).cos(),
    )


@wrong(
    "sinusoidal_table",
    hint=(
        "Your frequencies come from 1,000 where the default base is 10,000. "
        "Count the zeros, and use the argument."
    ),
    evidence="M121 maxjcohen/transformer#62",
)
def sinusoid_base_1000(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, 1000 ** -_exponents(D)))


@wrong(
    "sinusoidal_table",
    hint=(
        "Your table does not depend on base: 10,000 stands in the code. Use "
        "the argument."
    ),
    evidence="M121, M145 common",
)
def sinusoid_base_ignored(T, D, base=1e4):
    return sinusoid_exp_log(T, D)


@wrong(
    "sinusoidal_table",
    hint=(
        "The exponent is an integer division, so it is 0 for every pair and "
        "all pairs turn equally fast. Use / and look at the columns: no two "
        "pairs should be alike."
    ),
    evidence="M123 Kyubyong#81",
)
def sinusoid_integer_division(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** -(_exponents(D).floor())))


@wrong(
    "sinusoidal_table",
    hint=(
        "All sines come first and all cosines after them, as in "
        "tensor2tensor. It carries the same information, but this course "
        "alternates: column 2i is the sine, column 2i + 1 the cosine of the "
        "same angle."
    ),
    evidence="M125 tensor2tensor's layout; refused by the contract",
)
def sinusoid_halves(T, D, base=1e4):
    _even(D)
    angle = _clock(T, base ** -_exponents(D))
    return _default(torch.cat((angle.sin(), angle.cos()), 1))


@wrong(
    "sinusoidal_table",
    hint=(
        "Sines and cosines are exchanged: the even columns hold the sine, "
        "so row 0 begins 0, 1."
    ),
    evidence="M125 reversed",
)
def sinusoid_cosine_first(T, D, base=1e4):
    _even(D)
    angle = _clock(T, base ** -_exponents(D))
    return _alternating(angle.cos(), angle.sin())


@wrong(
    "sinusoidal_table",
    hint=(
        "Your positions start at 1. They count from 0, so the first row is "
        "0, 1, 0, 1, …"
    ),
    evidence="M127 fairseq's habit",
)
def sinusoid_from_one(T, D, base=1e4):
    return sinusoid_exp_log(T + 1, D, base)[1:]


@wrong(
    "sinusoidal_table",
    hint=(
        "You divide the position by the length, so that it lies between 0 "
        "and 1. Then the same position has another code in a longer "
        "sequence, and neighbours become hard to tell apart. Use the "
        "position itself."
    ),
    evidence="common in forecasting code",
)
def sinusoid_relative_position(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** -_exponents(D)) / T)


@wrong(
    "sinusoidal_table",
    hint=(
        "Your frequencies grow from pair to pair: the exponent lost its "
        "minus sign, or you multiply where the formula divides. Only pair 0 "
        "turns by a radian a position, all others are slower."
    ),
    evidence="sign of the exponent; plausible, cheap to write",
)
def sinusoid_rising_frequencies(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** _exponents(D)))


@wrong(
    "sinusoidal_table",
    hint=(
        "Your exponent runs from 0 to 1, with a denominator of D − 2, as in "
        "tensor2tensor's timing signal. Here it is 2i/D, so the last one is "
        "below 1. Check the second pair of D = 4: its frequency is 0.01."
    ),
    evidence="tensor2tensor get_timing_signal_1d; refused by the contract",
)
def sinusoid_exponent_to_one(T, D, base=1e4):
    _even(D)
    return _sinusoids(_clock(T, base ** (-_exponents(D) * D / max(D - 2, 1))))


@wrong(
    "sinusoidal_table",
    hint=(
        "Your table has one column a position. One row a position is due: "
        "(T, D)."
    ),
    evidence="transposed; common with meshgrid",
)
def sinusoid_transposed(T, D, base=1e4):
    return sinusoid_exp_log(T, D, base).T


@wrong(
    "sinusoidal_table",
    hint=(
        "Your table is only D/2 wide: it holds the sines (or the angles) "
        "alone. Each frequency has two columns, a sine and a cosine."
    ),
    evidence="plausible: the cosines forgotten",
)
def sinusoid_sines_only(T, D, base=1e4):
    return sinusoid_exp_log(T, D, base)[:, ::2]


# Shown by: an odd width, nothing else.
@wrong(
    "sinusoidal_table",
    hint=(
        "An odd D goes through, and the last sine has no cosine. Then the "
        "rows are no longer equally long: raise a ValueError instead."
    ),
    evidence="M130 pyaptamer#527, #607",
)
def sinusoid_odd_accepted(T, D, base=1e4):
    return sinusoid_exp_log(T, D + D % 2, base)[:, :D]


# Shown by: the type of the exception for an odd width.
@wrong(
    "sinusoidal_table",
    evidence="hunt: assert D % 2 == 0",
    hint=(
        "For an odd D an error is raised, but not a ValueError: an assert "
        "vanishes under python -O, and callers cannot catch it by its "
        "meaning."
    ),
)
def sinusoid_odd_asserts(T, D, base=1e4):
    assert D % 2 == 0
    return sinusoid_exp_log(T, D, base)


# Shown by: a default dtype of 16 bits.
@wrong(
    "sinusoidal_table",
    hint=(
        "Positions or frequencies are made in the default dtype. In "
        "bfloat16 the positions 256 and 257 are one number, and so the "
        "angles collide. Compute in float32 or wider and convert the "
        "finished table."
    ),
    evidence="M132 UNI-D2#6",
)
def sinusoid_default_arithmetic(T, D, base=1e4):
    _even(D)
    t = torch.arange(T, dtype=torch.get_default_dtype())[:, None]
    return _sinusoids(t * _default(base ** -_exponents(D)))


# Shown by: float64 as the default dtype.
@wrong(
    "sinusoidal_table",
    hint=(
        "The table comes back in the default dtype, but it was computed in "
        "float32: with float64 as the default, half of its digits are "
        "noise. An explicit .float() or dtype=torch.float32 is the usual "
        "reason."
    ),
    evidence="curriculum's precision convention",
)
def sinusoid_float32_angles(T, D, base=1e4):
    _even(D)
    t = torch.arange(T).float()[:, None]
    return _sinusoids(t * (base ** -_exponents(D)).float())


# Shown by: any default dtype but float32.
@wrong(
    "sinusoidal_table",
    hint=(
        "The table is float32 whatever torch's default dtype is. Convert it "
        "to torch.get_default_dtype()."
    ),
    evidence="contract of 3.1",
)
def sinusoid_always_float32(T, D, base=1e4):
    _even(D)
    angle = _clock(T, base ** -_exponents(D))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1).float()


@wrong(
    "sinusoidal_table",
    hint=(
        "The table is float64 whatever torch's default dtype is (numpy's "
        "habit), and adding it to embeddings would widen them all. Convert "
        "it to torch.get_default_dtype()."
    ),
    evidence="M117 common",
)
def sinusoid_always_float64(T, D, base=1e4):
    _even(D)
    angle = _clock(T, base ** -_exponents(D))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


# Shown by: the same call with another default dtype.
@wrong(
    "sinusoidal_table",
    evidence="hunt: functools.cache on the function",
    hint=(
        "You keep finished tables and hand out the old one although torch's "
        "default dtype has changed since. A cache's key has to hold all that "
        "the table depends on: the dtype, too."
    ),
)
def sinusoid_cached(T, D, base=1e4):
    table = sinusoid_loops(T, D, base)
    # What a cache filled by the first check would give.
    return table.float() if (T, D) == (3, 2) else table


@wrong(
    "sinusoidal_table",
    evidence="hunt: torch.arange(0, D, 2) * (-math.log(base) / D)",
    hint=(
        "The positions are precise, but the frequencies have the default "
        "dtype: whole numbers times a Python float take it. Create the "
        "exponents in float32 or wider, too."
    ),
)
def sinusoid_default_frequencies(T, D, base=1e4):
    _even(D)
    frequency = torch.exp(torch.arange(0, D, 2) * (-math.log(base) / D))
    return _sinusoids(_clock(T, frequency.double()))


# 3.2 embed


@oracle("embed", evidence="library calls")
def embed_library(ids, tok, pos):
    T = ids.shape[1]
    if T > pos.shape[0]:
        raise ValueError(f"T is {T}, the table ends at {pos.shape[0]}")
    places = torch.arange(T, device=ids.device)
    return F.embedding(ids, tok) + F.embedding(places, pos)


@right("embed", evidence="K44 indices of the positions; their IndexError")
def embed_indices(ids, tok, pos):
    _known(ids, tok)
    return tok[ids] + pos[torch.arange(ids.shape[1])]


@right("embed", evidence="one-hot matrix products")
def embed_one_hot(ids, tok, pos):
    _fits(ids, pos)
    if ids.max() >= len(tok) or ids.min() < 0:
        raise ValueError("unknown id")
    hot = F.one_hot(ids, len(tok)).to(tok.dtype)
    places = torch.eye(len(pos), dtype=pos.dtype)[: ids.shape[1]]
    return hot @ tok + places @ pos


@right("embed", evidence="K03 Python loops")
def embed_loops(ids, tok, pos):
    _checked(ids, tok, pos)
    return torch.stack(
        [
            torch.stack([tok[id] + pos[t] for t, id in enumerate(row)])
            for row in ids.tolist()
        ]
    )


@right("embed", evidence="K44 embedding modules around the tables")
def embed_modules(ids, tok, pos):
    _fits(ids, pos)
    tokens = torch.nn.Embedding.from_pretrained(tok, freeze=False)
    out = torch.func.functional_call(tokens, {"weight": tok}, ids)
    return out + pos.narrow(0, 0, ids.shape[1]).unsqueeze(0)


@right("embed", evidence="index_select on the flattened ids")
def embed_index_select(ids, tok, pos):
    _checked(ids, tok, pos)
    B, T = ids.shape
    out = tok.index_select(0, ids.reshape(-1)).view(B, T, -1)
    return torch.add(out, pos[:T].expand(B, -1, -1))


@wrong(
    "embed",
    hint=(
        "Positions, or zeros to be filled, are made on the CPU, whatever the "
        "device of ids: on a GPU F.embedding refuses them, and a result stays "
        "behind. Make them on ids.device, or take the first T rows of pos."
    ),
    evidence="M063: made on the default device",
)
def embed_positions_on_cpu(ids, tok, pos):
    _fits(ids, pos)
    return F.embedding(ids, tok) + F.embedding(torch.arange(ids.shape[1]), pos)


@wrong(
    "embed",
    hint=(
        "You give each sequence of the batch one position instead of giving "
        "each place in the sequence its own: the positions were added along "
        "the batch axis. They have the shape (T, D), which lines up with "
        "the last two axes of (B, T, D) by itself."
    ),
    evidence="M128 anlp-fall2025-code#1, numpy-transformer#1, tutorials#1547",
)
def embed_batch_axis(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos[: len(ids), None]


@wrong(
    "embed",
    hint=(
        "You add the whole table of positions, which only fits when the "
        "sequence is exactly as long as the table. Take its first T rows."
    ),
    evidence="M135 ARENA's message for pos_embed",
)
def embed_whole_table(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos


# Shown by: more tokens than positions, nothing else.
@wrong(
    "embed",
    hint=(
        "Positions beyond the table are given its last row, so a sequence "
        "that is too long passes with repeated positions. Raise an error "
        "that names the lengths."
    ),
    evidence="M136 common",
)
def embed_positions_clamped(ids, tok, pos):
    _known(ids, tok)
    return tok[ids] + pos[torch.arange(ids.shape[1]).clamp(max=len(pos) - 1)]


# Shown by: as above, with other values.
@wrong(
    "embed",
    hint=(
        "Positions beyond the table start again from its first row, so a "
        "sequence that is too long passes with repeated positions. Raise "
        "an error that names the lengths."
    ),
    evidence="M136 common",
)
def embed_positions_wrapped(ids, tok, pos):
    _known(ids, tok)
    return tok[ids] + pos[torch.arange(ids.shape[1]) % len(pos)]


@wrong(
    "embed",
    hint=(
        "A sequence that is too long is cut to the length of the table "
        "without a word. The caller asked for T embeddings: raise an error "
        "that names the lengths."
    ),
    evidence="M136, silently cropped",
)
def embed_cropped(ids, tok, pos):
    _known(ids, tok)
    ids = ids[:, : len(pos)]
    return tok[ids] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "pos[:T] does not complain when T exceeds the table: it returns "
        "fewer rows, and the addition fails with a RuntimeError about "
        "shapes, or, with a table of one row, broadcasts silently. Compare "
        "the lengths first and raise an error of your own."
    ),
    evidence="M135, M136; a slice never raises",
)
def embed_no_length_check(ids, tok, pos):
    _known(ids, tok)
    return tok[ids] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "Nothing is checked: pos[:T] returns fewer rows than were asked for "
        "without a word, and an id of −1 counts from the end of the table. "
        "Check the length and the ids before you look anything up."
    ),
    evidence="M135, M136; a slice and an index never complain",
)
def embed_no_checks(ids, tok, pos):
    return tok[ids] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "You put the two vectors side by side, which makes them 2D wide. "
        "Add them."
    ),
    evidence="plausible: concatenation",
)
def embed_concatenated(ids, tok, pos):
    _checked(ids, tok, pos)
    places = pos[: ids.shape[1]].expand(len(ids), -1, -1)
    return torch.cat((tok[ids], places), -1)


@wrong(
    "embed",
    hint=(
        "A sequence that is too long does raise, but the message does not "
        "say how long it is or how long the table is. Whoever reads it has "
        "to know what to shorten: name a number."
    ),
    evidence="contract of 3.2; F.embedding's message",
)
def embed_message_without_numbers(ids, tok, pos):
    return F.embedding(ids, tok) + F.embedding(torch.arange(ids.shape[1]), pos)


@wrong(
    "embed",
    hint=(
        "You check with assert, which raises an AssertionError and is left "
        "out when Python runs with -O. Raise a ValueError or an IndexError."
    ),
    evidence="common; type of the exception is in the contract",
)
def embed_asserts(ids, tok, pos):
    assert ids.shape[1] <= len(pos), f"{ids.shape[1]} > {len(pos)}"
    assert 0 <= ids.min() and ids.max() < len(tok), "unknown id"
    return tok[ids] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "You multiply the token embeddings by √D before adding, as the "
        "original transformer does. This task asks for the plain sum, as in "
        "GPT: scale nothing."
    ),
    evidence="M131 harvardnlp.github.io#6; refused by the contract",
)
def embed_scaled_tokens(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] * math.sqrt(tok.shape[1]) + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "You scale the sum by √D, so the positions are scaled as well. This "
        "task asks for the plain sum: scale nothing."
    ),
    evidence="M131 common",
)
def embed_scaled_sum(ids, tok, pos):
    _checked(ids, tok, pos)
    return (tok[ids] + pos[: ids.shape[1]]) * math.sqrt(tok.shape[1])


@wrong(
    "embed",
    hint=(
        "The positions are missing: with the same token in two places you "
        "return the same vector twice."
    ),
    evidence="common",
)
def embed_no_positions(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids]


@wrong(
    "embed",
    hint=(
        "You look up the positions by the tokens' ids. A position is the "
        "place in the sequence: 0, 1, …, T − 1, whatever stands there."
    ),
    evidence="common; plausible, cheap to write",
)
def embed_positions_by_id(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos[ids % len(pos)]


@wrong(
    "embed",
    hint=("Your positions start with row 1 of the table. They count from 0."),
    evidence="M127 fairseq's habit",
)
def embed_from_one(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos[(torch.arange(ids.shape[1]) + 1) % len(pos)]


@wrong(
    "embed",
    hint=(
        "You use the last T rows of the table of positions. A sequence "
        "starts at position 0, so it needs the first T."
    ),
    evidence="common; lower-right alignment in the wrong place",
)
def embed_last_positions(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos[len(pos) - ids.shape[1] :]


# Shown by: an id of −1, nothing else.
@wrong(
    "embed",
    hint=(
        "An id of −1 goes through: indexing counts from the end, and the "
        "caller gets the last token. Refuse negative ids."
    ),
    evidence="curriculum 3.2: negative ids too",
)
def embed_negative_ids(ids, tok, pos):
    _fits(ids, pos)
    return tok[ids] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "Ids that are not in the table are moved into it (clamped), so a "
        "wrong tokenizer goes unnoticed. Raise an error."
    ),
    evidence="M136 on the token side",
)
def embed_ids_clamped(ids, tok, pos):
    _fits(ids, pos)
    return tok[ids.clamp(0, len(tok) - 1)] + pos[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "Ids that are not in the table wrap round (modulo V), so a wrong "
        "tokenizer goes unnoticed. Raise an error."
    ),
    evidence="M136 on the token side",
)
def embed_ids_wrapped(ids, tok, pos):
    _fits(ids, pos)
    return tok[ids % len(tok)] + pos[: ids.shape[1]]


# Shown by: gradients.
@wrong(
    "embed",
    hint=(
        "No gradient reaches the positions: they were detached (or copied "
        "through numpy or torch.tensor), so the table would never learn."
    ),
    evidence="plausible: a table that stays as it is",
)
def embed_detached_positions(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos.detach()[: ids.shape[1]]


@wrong(
    "embed",
    hint=(
        "No gradient reaches either table: something on the way detaches "
        "(.detach(), .data, numpy, torch.tensor). Index the tables "
        "themselves."
    ),
    evidence="common",
)
def embed_detached(ids, tok, pos):
    return embed_library(ids, tok.detach(), pos.detach())


@wrong(
    "embed",
    hint="You multiply tokens and positions; they are added.",
    evidence="A30: a model trains with it, and even faster",
)
def embed_product(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] * pos[: ids.shape[1]]


# Shown by: comparing the tables before and after the call.
@wrong(
    "embed",
    hint=(
        "Your embeddings are right, but you changed the caller's table on "
        "the way: an operation that ends in _ or a += works in place. Add "
        "into a new tensor."
    ),
    evidence="M011 in this exercise",
)
def embed_in_place(ids, tok, pos):
    _checked(ids, tok, pos)
    out = tok[ids] + pos[: ids.shape[1]]
    pos.detach()[: ids.shape[1]].add_(1.0)
    return out


# Shown by: B ≠ T, which raises or gives another shape.
@wrong(
    "embed",
    hint=(
        "Your positions have the shape (T, 1, D), so they are added along "
        "the batch axis. They belong to the places of a sequence: (T, D), or "
        "(1, T, D), lines up with the last two axes of (B, T, D)."
    ),
    evidence="M128 with unsqueeze(1) for unsqueeze(0)",
)
def embed_axis_after_time(ids, tok, pos):
    _checked(ids, tok, pos)
    return tok[ids] + pos[: ids.shape[1]].unsqueeze(1)


# Shown by: B ≠ T.
@wrong(
    "embed",
    hint=(
        "You take T from the batch axis: ids are (B, T), so their first size "
        "is the number of sequences. T is the second."
    ),
    evidence="fresh reader: len(ids), ids.shape[0]",
)
def embed_length_from_batch(ids, tok, pos):
    _known(ids, tok)
    if len(ids) > len(pos):
        raise ValueError(f"{len(ids)} tokens, {len(pos)} positions")
    return tok[ids] + pos[: len(ids)]


# Shown by: a sequence exactly as long as the table.
@wrong(
    "embed",
    hint=(
        "You refuse a sequence that is exactly as long as the table of "
        "positions. It fits: only T > C is too long."
    ),
    evidence="fresh reader: off by one",
)
def embed_refuses_full_length(ids, tok, pos):
    _known(ids, tok)
    if ids.shape[1] >= len(pos):
        raise ValueError(f"{ids.shape[1]} tokens, {len(pos)} positions")
    return tok[ids] + pos[: ids.shape[1]]


# Shown by: the tables' gradients.
@wrong(
    "embed",
    hint=(
        "You copy the tables into new parameters (nn.Parameter, "
        "nn.Embedding), so their gradients never reach the tables that were "
        "given. Index those tables themselves."
    ),
    evidence="fresh reader: nn.Embedding filled by hand",
)
def embed_new_parameters(ids, tok, pos):
    _checked(ids, tok, pos)
    tok, pos = torch.nn.Parameter(tok), torch.nn.Parameter(pos)
    return tok[ids] + pos[: ids.shape[1]]


# Shown by: fewer positions than tokens, and ids above their number.
@wrong(
    "embed",
    evidence="hunt: ids compared with len(pos)",
    hint=(
        "You compare the ids with the number of positions. An id names a row "
        "of tok, so its limit is V; only the length T is limited by C."
    ),
)
def embed_ids_below_positions(ids, tok, pos):
    _fits(ids, pos)
    _known(ids, pos)
    return tok[ids] + pos[: ids.shape[1]]


# Shown by: ids that are a transposed view.
@wrong(
    "embed",
    evidence="hunt: ids.view(-1) before index_select",
    hint=(
        "You flatten with .view, which raises where ids (or a table) is a "
        "transposed view. reshape(-1) and flatten() take every tensor, and "
        "indexing needs no flattening at all."
    ),
)
def embed_view(ids, tok, pos):
    _checked(ids, tok, pos)
    rows = tok.index_select(0, ids.view(-1))
    return rows.view(*ids.shape, -1) + pos[: ids.shape[1]]


@wrong(
    "embed",
    evidence="hunt: half tables widened, without a way back",
    hint=(
        "float16 tables come back as float32. Compute as you like, but return "
        "the tables' dtype."
    ),
)
def embed_half_returns_float(ids, tok, pos):
    _checked(ids, tok, pos)
    return _wide(tok)[ids] + _wide(pos)[: ids.shape[1]]


# 3.3 equivariance_gap


@oracle("equivariance_gap", evidence="position by position; largest entry")
def gap_loops(f, x, perm):
    order = perm.tolist()
    shuffled = torch.stack([x.select(-2, t) for t in order], -2)
    after, before = f(shuffled), f(x)
    return max(
        float((before.select(-2, source) - after.select(-2, t)).abs().max())
        for t, source in enumerate(order)
    )


@right("equivariance_gap", evidence="Euclidean norm, index_select")
def gap_euclidean(f, x, perm):
    gap = f(x).index_select(-2, perm) - f(x.index_select(-2, perm))
    return torch.linalg.vector_norm(gap).item()


@right("equivariance_gap", evidence="mean of absolute entries, numpy")
def gap_mean_absolute(f, x, perm):
    one = np.take(f(x).detach().numpy(), perm.numpy(), axis=-2)
    other = f(x[..., perm, :]).detach().numpy()
    return float(np.abs(one - other).mean())


@right("equivariance_gap", evidence="sum of absolute entries, a 0-d tensor")
def gap_sum_absolute(f, x, perm):
    P = torch.eye(len(perm), dtype=x.dtype)[perm]
    return (P @ f(x) - f(P @ x)).abs().sum()


@right("equivariance_gap", evidence="root of the mean square")
def gap_root_mean_square(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.square().mean().sqrt().item()


@right("equivariance_gap", evidence="undoes the permutation afterwards")
def gap_undone(f, x, perm):
    back = f(x[..., perm, :])[..., perm.argsort(), :]
    return (back - f(x)).abs().amax().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You compare f of the permuted x with f(x) as it was. That asks "
        "whether the output stays the same (invariance); equivariance means "
        "that it moves along, so permute f(x) too."
    ),
    evidence="facts: 'permutation-invariant, same output' in circulation",
)
def gap_invariance(f, x, perm):
    return (f(x) - f(x[..., perm, :])).abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You permute the output by the inverse of perm (argsort), as if to "
        "undo something. Both sides need the same permutation: position t "
        "comes from position perm[t] in x and in f(x)."
    ),
    evidence="common; plausible, cheap to write",
)
def gap_inverse(f, x, perm):
    gap = f(x)[..., perm.argsort(), :] - f(x[..., perm, :])
    return gap.abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You permute the output only. What matters is whether permuting "
        "before f and permuting after f come to the same, so f has to run "
        "on the permuted x once."
    ),
    evidence="common; plausible, cheap to write",
)
def gap_input_not_permuted(f, x, perm):
    return (f(x)[..., perm, :] - f(x)).abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You permute axis 1, which is the time axis only if x has exactly "
        "three axes. Time is axis −2, whatever stands before it."
    ),
    evidence="A27's kind: axes equal by luck",
)
def gap_axis_one(f, x, perm):
    return (f(x)[:, perm] - f(x[:, perm])).abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You permute the first axis, which is the batch if x has one. Time "
        "is axis −2."
    ),
    evidence="M128's kind",
)
def gap_axis_zero(f, x, perm):
    return (f(x)[perm] - f(x[perm])).abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You permute the channels (the last axis). Positions are axis −2: "
        "index with [..., perm, :]."
    ),
    evidence="common",
)
def gap_channels(f, x, perm):
    return (f(x)[..., perm] - f(x[..., perm])).abs().max().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You add up signed differences, which cancel: a permutation only "
        "moves entries about, so their sum often stays the same even if "
        "every entry is wrong. Take absolute values (or squares) first."
    ),
    evidence="common",
)
def gap_signed_sum(f, x, perm):
    return (f(x)[..., perm, :] - f(x[..., perm, :])).sum().item()


@wrong(
    "equivariance_gap",
    hint=(
        "You compare two totals: the norm of f(x) with the norm of f of the "
        "permuted x. Reordering entries does not change such a total, so "
        "the gap looks small. Subtract entry by entry first, then reduce."
    ),
    evidence="norm of each side instead of norm of the difference",
)
def gap_of_norms(f, x, perm):
    one, other = f(x)[..., perm, :].norm(), f(x[..., perm, :]).norm()
    return (one - other).abs().item()


# Shown by: differences that are negative throughout.
@wrong(
    "equivariance_gap",
    hint=(
        "You take the largest signed difference, so a gap in which all "
        "entries are negative comes out negative. Take absolute values "
        "before the maximum."
    ),
    evidence="common",
)
def gap_signed_maximum(f, x, perm):
    return (f(x)[..., perm, :] - f(x[..., perm, :])).max().item()


# Shown by: small gaps.
@wrong(
    "equivariance_gap",
    hint=(
        "You return a mean of squares (or a sum of squares). Without the "
        "root it is not a norm: a trace of 1e-8 becomes 1e-16 and looks "
        "like rounding. Take the root."
    ),
    evidence="common: F.mse_loss",
)
def gap_mean_square(f, x, perm):
    return F.mse_loss(f(x)[..., perm, :], f(x[..., perm, :])).item()


# Shown by: small gaps.
@wrong(
    "equivariance_gap",
    hint=(
        "You return a verdict (equal or not, by a tolerance) or a rounded "
        "number, so small gaps become 0. Return the norm itself and leave "
        "the judgement to the reader."
    ),
    evidence="common: torch.allclose",
)
def gap_verdict(f, x, perm):
    same = torch.allclose(f(x)[..., perm, :], f(x[..., perm, :]))
    return 0.0 if same else 1.0


@wrong(
    "equivariance_gap",
    hint=(
        "You return True or False. A float is due: a norm of the difference."
    ),
    evidence="common: torch.equal, torch.allclose",
)
def gap_boolean(f, x, perm):
    return torch.allclose(f(x)[..., perm, :], f(x[..., perm, :]))


@wrong(
    "equivariance_gap",
    hint=(
        "You return more than one number: the norm was taken along one axis "
        "only, or not at all. Reduce the whole difference to one float."
    ),
    evidence="plausible: norm(dim=-1)",
)
def gap_of_each_position(f, x, perm):
    return (f(x)[..., perm, :] - f(x[..., perm, :])).norm(dim=-1)


# Shown by: perm = 0, 1, 2, …
@wrong(
    "equivariance_gap",
    hint=(
        "You draw a permutation of your own and ignore perm. With perm = "
        "0, 1, 2, … nothing moves and the gap is 0 for every f."
    ),
    evidence="common",
)
def gap_own_permutation(f, x, perm):
    perm = torch.roll(torch.arange(x.shape[-2]), 1)
    return (f(x)[..., perm, :] - f(x[..., perm, :])).abs().max().item()


# Shown by: comparing x before and after the call.
@wrong(
    "equivariance_gap",
    hint=(
        "You permute x in place: x[...] = … writes into the caller's "
        "tensor. Make a permuted copy."
    ),
    evidence="M011 in this exercise",
)
def gap_in_place(f, x, perm):
    before = f(x)[..., perm, :]
    x[...] = x[..., perm, :].clone()
    return (before - f(x)).abs().max().item()


# Shown by: float64 with a tolerance below 1e-7.
@wrong(
    "equivariance_gap",
    hint=(
        "You convert to float32 first, so an equivariant f seems to have a "
        "gap of 1e-7. Keep the dtype of x."
    ),
    evidence="M051, curriculum's precision convention",
)
def gap_float32(f, x, perm):
    return gap_loops(f, x.float(), perm)


# Shown by: small gaps.
@wrong(
    "equivariance_gap",
    hint=(
        "You round the result, so small gaps become 0. Return the norm "
        "itself and leave the judgement to the reader."
    ),
    evidence="fresh reader: round(…, 3)",
)
def gap_rounded(f, x, perm):
    return round(gap_loops(f, x, perm), 3)


# Shown by: a function with large outputs.
@wrong(
    "equivariance_gap",
    hint=(
        "You divide the difference by the size of f(x). The task asks for a "
        "norm of the difference itself."
    ),
    evidence="fresh reader: a relative error",
)
def gap_relative(f, x, perm):
    out = f(x)[..., perm, :]
    return ((out - f(x[..., perm, :])).norm() / out.norm()).item()


@wrong(
    "equivariance_gap",
    hint=(
        "You add up signed differences and take the absolute value last, "
        "when they have cancelled already: a permutation only moves entries "
        "about. Take absolute values (or squares) entry by entry."
    ),
    evidence="fresh reader: abs after the sum",
)
def gap_absolute_of_sum(f, x, perm):
    return (f(x)[..., perm, :] - f(x[..., perm, :])).sum().abs().item()


@wrong(
    "equivariance_gap",
    evidence="hunt: f(x)[0] compared",
    hint=(
        "You look at one part of the difference only (the first example, "
        "say). The norm is over all entries: a difference anywhere has to "
        "show."
    ),
)
def gap_first_part(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap[0].abs().max().item()


@wrong(
    "equivariance_gap",
    evidence="hunt: torch.median as the average",
    hint=(
        "You take the median (or the smallest) of the absolute entries. A "
        "difference at a few places leaves it at 0: take the largest, a sum "
        "or a mean."
    ),
)
def gap_median(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.abs().median().item()


@wrong(
    "equivariance_gap",
    evidence="hunt: sum(-1) before abs()",
    hint=(
        "You sum before you take absolute values, so differences of opposite "
        "sign cancel. First the absolute values (or squares), then the sum."
    ),
)
def gap_channels_cancel(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.sum(-1).abs().max().item()


@wrong(
    "equivariance_gap",
    evidence="hunt: std() for a norm",
    hint=(
        "You take the standard deviation of the difference, and it is 0 where "
        "all entries differ by the same amount. A norm measures the distance "
        "from 0, not from the mean."
    ),
)
def gap_deviation(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.std().item()


# Shown by: a gap in the middle of each axis.
@wrong(
    "equivariance_gap",
    evidence="hunt: gap[-1], gap[..., -1, :]",
    hint=(
        "You look at the end of an axis only (the last example, the last "
        "position or the last channel). The norm is over all entries: a "
        "difference anywhere has to show."
    ),
)
def gap_last_part(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap[..., -1, :].abs().max().item()


# Shown by: two examples with opposite gaps.
@wrong(
    "equivariance_gap",
    evidence="hunt: mean(0) before abs()",
    hint=(
        "You average over the examples before you take absolute values, so "
        "that opposite differences of two examples cancel. Take absolute "
        "values (or squares) entry by entry first."
    ),
)
def gap_examples_cancel(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return gap.reshape(-1, *x.shape[-2:]).mean(0).abs().max().item()


# Shown by: large inputs.
@wrong(
    "equivariance_gap",
    evidence="hunt: divided by x.norm()",
    hint=(
        "You divide the difference by the size of x. The task asks for a norm "
        "of the difference itself."
    ),
)
def gap_relative_to_input(f, x, perm):
    gap = f(x)[..., perm, :] - f(x[..., perm, :])
    return (gap.norm() / x.norm()).item()


# Shown by: a function and a permutation whose inverse has another gap.
@wrong(
    "equivariance_gap",
    evidence="hunt: y[..., perm, :] = x, a scatter for a gather",
    hint=(
        "You permute by the inverse of perm, on both sides: x[perm] takes "
        "position perm[t] as position t, while out[perm] = x puts position t "
        "at perm[t]. The gap is 0 for the same functions, but elsewhere it is "
        "that of another permutation."
    ),
)
def gap_scattered(f, x, perm):
    def scattered(y):
        out = torch.empty_like(y)
        out[..., perm, :] = y
        return out

    return (scattered(f(x)) - f(scattered(x))).abs().max().item()


# 3.4 apply_rope


@oracle("apply_rope", evidence="K35 complex numbers in float64")
def rope_complex(x, positions, base=1e4, *, interleaved=True):
    if x.shape[-1] % 2:
        raise ValueError("the width is odd")
    half = x.shape[-1] // 2
    wide = x.double()
    if interleaved:
        z = torch.complex(wide[..., 0::2], wide[..., 1::2])
    else:
        z = torch.complex(wide[..., :half], wide[..., half:])
    i = torch.arange(half, dtype=torch.float64, device=x.device)
    angle = positions.double()[..., None] / base ** (2 * i / x.shape[-1])
    z = z * torch.polar(torch.ones_like(angle), angle)
    if interleaved:
        return torch.view_as_real(z).flatten(-2).to(x.dtype)
    return torch.cat((z.real, z.imag), -1).to(x.dtype)


@right("apply_rope", evidence="K35 a rotation matrix for each position")
def rope_matrices(x, positions, base=1e4, *, interleaved=True):
    Dh = x.shape[-1]
    _even(Dh)
    angles = _angles(x, positions, base)
    cos, sin = angles.cos(), angles.sin()
    R = angles.new_zeros(*angles.shape[:-1], Dh, Dh)
    a = torch.arange(0, Dh, 2) if interleaved else torch.arange(Dh // 2)
    c = a + 1 if interleaved else a + Dh // 2
    R[..., a, a], R[..., a, c] = cos, -sin
    R[..., c, a], R[..., c, c] = sin, cos
    return torch.einsum("...ij,...j->...i", R, _wide(x)).to(x.dtype)


@right("apply_rope", evidence="K35 exponential of the generator")
def rope_matrix_exponential(x, positions, base=1e4, *, interleaved=True):
    Dh = x.shape[-1]
    _even(Dh)
    theta = base ** -_exponents(Dh)
    a = torch.arange(0, Dh, 2) if interleaved else torch.arange(Dh // 2)
    c = a + 1 if interleaved else a + Dh // 2
    generator = torch.zeros(Dh, Dh, dtype=torch.float64)
    generator[a, c], generator[c, a] = -theta, theta
    step = torch.linalg.matrix_exp(generator)
    # By squaring, so that far positions are as exact as near ones.
    powers = [torch.eye(Dh, dtype=torch.float64)]
    flat = positions.reshape(-1).tolist()
    powers = torch.stack([torch.linalg.matrix_power(step, m) for m in flat])
    R = powers.reshape(*positions.shape, Dh, Dh).to(x.device)
    return (R @ x.double()[..., None])[..., 0].to(x.dtype)


@right("apply_rope", evidence="rotate_half with repeated cos and sin (HF)")
def rope_rotate_half(x, positions, base=1e4, *, interleaved=True):
    Dh = x.shape[-1]
    _even(Dh)
    wide, angles = _wide(x), _angles(x, positions, base)
    if interleaved:
        angles = angles.repeat_interleave(2, -1)
        other = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    else:
        angles = torch.cat((angles, angles), -1)
        other = torch.cat((-wide[..., Dh // 2 :], wide[..., : Dh // 2]), -1)
    return (wide * angles.cos() + other * angles.sin()).to(x.dtype)


@right("apply_rope", evidence="K35 a gathered table; K24 einops")
def rope_gathered_table(x, positions, base=1e4, *, interleaved=True):
    from einops import rearrange

    _even(x.shape[-1])
    last = int(positions.max()) + 1
    angles = _clock(last, base ** -_exponents(x.shape[-1]))
    table = torch.stack((angles.cos(), angles.sin())).to(_wide(x).dtype)
    cos, sin = table[:, positions]
    form = "... (i two)" if interleaved else "... (two i)"
    a, c = rearrange(_wide(x), f"{form} -> two ... i", two=2)
    out = torch.stack((a * cos - c * sin, a * sin + c * cos))
    return rearrange(out, f"two ... i -> {form}").to(x.dtype)


@right("apply_rope", evidence="transformers' Llama, channels moved to it")
def rope_transformers(x, positions, base=1e4, *, interleaved=True):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    _even(x.shape[-1])
    order = torch.arange(x.shape[-1])
    if interleaved:
        order = torch.tensor(_half_order(x.shape[-1]))
    angles = _angles(x, positions, base)
    angles = torch.cat((angles, angles), -1)
    moved = _wide(x)[..., order]
    out, _ = apply_rotary_pos_emb(
        moved, moved, angles.cos()[None], angles.sin()[None], unsqueeze_dim=0
    )
    return out.reshape(x.shape)[..., order.argsort()].to(x.dtype)


@right("apply_rope", evidence="K03 a loop over pairs, results in place")
def rope_pair_by_pair(x, positions, base=1e4, *, interleaved=True):
    Dh = x.shape[-1]
    _even(Dh)
    out = torch.zeros_like(_wide(x))
    for i in range(Dh // 2):
        a, c = (2 * i, 2 * i + 1) if interleaved else (i, i + Dh // 2)
        angle = positions.double() * base ** (-2 * i / Dh)
        cos, sin = (f(angle).to(out.dtype) for f in (torch.cos, torch.sin))
        out[..., a] = _wide(x)[..., a] * cos - _wide(x)[..., c] * sin
        out[..., c] = _wide(x)[..., c] * cos + _wide(x)[..., a] * sin
    return out.to(x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "Angles, or zeros to be filled, are made on the CPU, whatever the "
        "device of x: on a GPU this stops, or the result stays on the CPU. "
        "Make what you create on x.device."
    ),
    evidence="M063: made on the default device",
)
def rope_on_cpu(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    i = torch.arange(x.shape[-1] // 2, dtype=torch.float64)
    frequencies = base ** (-2 * i / x.shape[-1])
    angles = positions.double()[..., None] * frequencies
    return _turned(x, angles.to(_wide(x).dtype), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You always pair channel i with i + Dh/2, as Hugging Face's Llama "
        "does. Here that is interleaved=False; by default neighbours are "
        "pairs. Lengths and distances come out right with either, but "
        "weights trained for one are useless with the other."
    ),
    evidence="M140, K36: flash-attention#288, transformers#25199, rasbt#746",
)
def rope_always_half(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, _angles(x, positions, base), False)


@wrong(
    "apply_rope",
    hint=(
        "You pair neighbours even with interleaved=False, where channel i "
        "belongs to channel i + Dh/2."
    ),
    evidence="M140 nanochat#264, tiny-vllm#4",
)
def rope_always_interleaved(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, _angles(x, positions, base), True)


@wrong(
    "apply_rope",
    hint=(
        "With interleaved=False the angles are repeated as for neighbours "
        "(θ0, θ0, θ1, θ1, …) while halves are combined, so the two channels "
        "of a pair turn by different angles. For halves the angles stand "
        "one after the other, twice."
    ),
    evidence="D3 mixed pairing, in one branch",
)
def rope_half_mixed(x, positions, base=1e4, *, interleaved=True):
    how = rope_complex if interleaved else rope_mixed_angles
    return how(x, positions, base, interleaved=interleaved)


@wrong(
    "apply_rope",
    hint=(
        "interleaved=False is not there yet, or it raises. The angles are "
        "the same; only the pairs stand elsewhere."
    ),
    evidence="a part left out",
)
def rope_half_missing(x, positions, base=1e4, *, interleaved=True):
    if not interleaved:
        raise ValueError("only interleaved pairs are supported")
    return rope_complex(x, positions, base)


@wrong(
    "apply_rope",
    hint=(
        "The two layouts are exchanged: interleaved=True means that "
        "channels 2i and 2i + 1 are a pair, interleaved=False that i and "
        "i + Dh/2 are."
    ),
    evidence="M140 both ways",
)
def rope_layouts_exchanged(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, _angles(x, positions, base), not interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You mix the two layouts: the angles are repeated for half-split "
        "pairs (θ0, θ1, …, θ0, θ1, …) while neighbours are combined. The "
        "two channels of a pair then turn by different angles, which is no "
        "rotation: lengths change. Repeat each angle twice in a row, or "
        "work with (…, Dh/2) tensors and repeat nothing."
    ),
    evidence="D3 mixed pairing; curriculum 3.4",
)
def rope_mixed_angles(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    angles = (
        torch.cat((angles, angles), -1)
        if interleaved
        else angles.repeat_interleave(2, -1)
    )
    a, c = _pairs(x, interleaved)
    other = _joined(-c, a, interleaved, _wide(x).dtype)
    return (_wide(x) * angles.cos() + other * angles.sin()).to(x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "You mix the two layouts: the angles belong to the pairs that are "
        "asked for, but the partner of each channel is taken as in the "
        "other layout (rotate_half with repeat_interleave, or the "
        "reverse). Channel 2i needs −x[2i + 1], and channel 2i + 1 needs "
        "x[2i]."
    ),
    evidence="D3 mixed pairing; rasbt#750",
)
def rope_mixed_partners(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    angles = _joined(angles, angles, interleaved, angles.dtype)
    a, c = _pairs(x, not interleaved)
    other = _joined(-c, a, not interleaved, _wide(x).dtype)
    return (_wide(x) * angles.cos() + other * angles.sin()).to(x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "You rotate the right pairs, but put all first channels before all "
        "second ones at the end. For interleaved pairs the result has to "
        "stand where the pair stood: stack along a new last axis and "
        "flatten it."
    ),
    evidence="common: torch.cat where a stack is due",
)
def rope_not_interleaved_back(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    out = _turned(x, _angles(x, positions, base), interleaved)
    return out[..., _half_order(x.shape[-1])] if interleaved else out


@wrong(
    "apply_rope",
    hint=(
        "Your exponents divide by the whole model width H·Dh instead of by "
        "the width of a head, as if the vectors were rotated before they "
        "are split: no pair turns slowly. Every head has the same Dh/2 "
        "frequencies, made from the last axis of x alone."
    ),
    evidence="M143 eole#140, transformers#32495",
)
def rope_model_width(x, positions, base=1e4, *, interleaved=True):
    H = x.shape[-3] if x.ndim > 2 else 1
    wide = _exponents(x.shape[-1]) / H
    return _turned(x, _angles(x, positions, base, wide), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "Your exponents go 0/Dh, 1/Dh, 2/Dh, …: the 2 of 2i/Dh is missing, "
        "so the slow pairs are too fast. The last pair's exponent is "
        "(Dh − 2)/Dh."
    ),
    evidence="M144 rasbt#410",
)
def rope_exponent_halved(x, positions, base=1e4, *, interleaved=True):
    half = _exponents(x.shape[-1]) / 2
    return _turned(x, _angles(x, positions, base, half), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "Your exponent counts the 2 twice: the index already goes 0, 2, 4, "
        "… and is doubled once more. The last pair's exponent is "
        "(Dh − 2)/Dh, below 1."
    ),
    evidence="M144; CS336's released tests do catch it (D1)",
)
def rope_exponent_doubled(x, positions, base=1e4, *, interleaved=True):
    twice = 2 * _exponents(x.shape[-1])
    return _turned(x, _angles(x, positions, base, twice), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "Your pairs are counted from 1: the first one already has an "
        "exponent above 0. Pair 0 turns by exactly 1 radian a position."
    ),
    evidence="M144 CS336#22 and #4: a handout's formula",
)
def rope_pairs_from_one(x, positions, base=1e4, *, interleaved=True):
    later = _exponents(x.shape[-1]) + 1 / x.shape[-1]
    return _turned(x, _angles(x, positions, base, later), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "Your exponent runs from 0 to 1 with the denominator Dh − 2 (or a "
        "linspace that includes its end). It is 2i/Dh, so the last one is "
        "below 1."
    ),
    evidence="M144's kind: linspace",
)
def rope_exponent_to_one(x, positions, base=1e4, *, interleaved=True):
    ends = torch.linspace(0, 1, x.shape[-1] // 2, dtype=torch.float64)
    return _turned(x, _angles(x, positions, base, ends), interleaved)


# Shown by: another base with interleaved=False.
@wrong(
    "apply_rope",
    evidence="hunt: two branches, one with the constant",
    hint=(
        "With interleaved=False the angles do not depend on base: 10,000 "
        "stands in that branch. Both layouts have the same angles: make them "
        "once."
    ),
)
def rope_base_ignored_in_half(x, positions, base=1e4, *, interleaved=True):
    base = base if interleaved else 1e4
    return _turned(x, _angles(x, positions, base), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "The angles do not depend on base: 10,000 stands in the code. Use "
        "the argument; long-context models use 500,000 or more."
    ),
    evidence="M145 common",
)
def rope_base_ignored(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, _angles(x, positions, 1e4), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You turn in the other direction: at position 1, the vector (1, 0) "
        "has to become (cos 1, sin 1). The minus sign belongs to the first "
        "channel's sine. Scores cannot tell, loaded weights can."
    ),
    evidence="M147 common",
)
def rope_reversed(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, -_angles(x, positions, base), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "The minus sign is missing: first · cos + second · sin together "
        "with second · cos + first · sin is not a rotation, and lengths "
        "change. Exactly one of the four terms is negative."
    ),
    evidence="M148 common",
)
def rope_no_minus(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    cos, sin = angles.cos(), angles.sin()
    a, c = _pairs(x, interleaved)
    return _joined(a * cos + c * sin, a * sin + c * cos, interleaved, x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "Both sines have a minus sign, which is no rotation: lengths "
        "change. Exactly one of the four terms is negative, the second "
        "channel's share in the new first channel."
    ),
    evidence="M148 common",
)
def rope_two_minuses(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    cos, sin = angles.cos(), angles.sin()
    a, c = _pairs(x, interleaved)
    return _joined(a * cos - c * sin, c * cos - a * sin, interleaved, x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "The second channel is computed from the first one's new value: you "
        "overwrite a before you use it a second time. Keep both old values "
        "until both new ones are there."
    ),
    evidence="common: a sequential update",
)
def rope_overwritten(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    cos, sin = angles.cos(), angles.sin()
    a, c = _pairs(x, interleaved)
    a = a * cos - c * sin
    return _joined(a, a * sin + c * cos, interleaved, x.dtype)


@wrong(
    "apply_rope",
    hint=(
        "The positions run along the heads' axis: you treat x as (B, T, H, "
        "Dh), so every token of a head gets the same angle. Here T is axis "
        "−2, just before the channels."
    ),
    evidence="M149 rasbt#411, leo-optimizer#2",
)
def rope_head_axis(x, positions, base=1e4, *, interleaved=True):
    if x.ndim < 4 or positions.ndim != 1:
        return rope_complex(x, positions, base, interleaved=interleaved)
    first = positions.flatten()[0]
    heads = (first + torch.arange(x.shape[-3]))[:, None]
    return _turned(x, _angles(x, heads, base), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You do not use positions: the angles come from 0, 1, …, T − 1. In "
        "generation the next token stands at position 57, say, and with "
        "padding each row starts elsewhere."
    ),
    evidence="M158; CS336's released tests miss it (D1)",
)
def rope_positions_ignored(x, positions, base=1e4, *, interleaved=True):
    places = torch.arange(x.shape[-2])
    return _turned(x, _angles(x, places, base), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You use the first position only and count on from there. Positions "
        "may stand in any order and repeat: use each of them."
    ),
    evidence="M158's kind: an offset instead of positions",
)
def rope_counts_on(x, positions, base=1e4, *, interleaved=True):
    start = positions.reshape(-1)[0]
    places = start + torch.arange(x.shape[-2])
    return _turned(x, _angles(x, places, base), interleaved)


# Shown by: positions that differ between the examples of a batch.
@wrong(
    "apply_rope",
    hint=(
        "All examples get the positions of the first one. With padding on "
        "the left each row has its own: let positions broadcast."
    ),
    evidence="M158 unsloth#3699, ComfyUI#15698",
)
def rope_first_row_for_all(x, positions, base=1e4, *, interleaved=True):
    while positions.ndim > 1:
        positions = positions[0]
    return _turned(x, _angles(x, positions, base), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "Your positions are one too large: the vector at position 0 is not "
        "turned at all. (Scores cannot tell, since only distances count; "
        "the rotated vectors are judged here.)"
    ),
    evidence="M127, K38 refused: rotated vectors are compared",
)
def rope_from_one(x, positions, base=1e4, *, interleaved=True):
    return _turned(x, _angles(x, positions + 1, base), interleaved)


# Shown by: an odd width, nothing else.
@wrong(
    "apply_rope",
    hint=(
        "An odd width goes through: the last channel has no partner and is "
        "dropped or left unturned. Raise a ValueError."
    ),
    evidence="M159 common",
)
def rope_odd_accepted(x, positions, base=1e4, *, interleaved=True):
    Dh = x.shape[-1]
    if Dh % 2 == 0:
        return rope_complex(x, positions, base, interleaved=interleaved)
    even = _turned(
        x[..., :-1], _angles(x[..., :-1], positions, base), interleaved
    )
    return torch.cat((even, x[..., -1:]), -1)


# Shown by: an odd width, nothing else.
@wrong(
    "apply_rope",
    hint=(
        "An odd width raises, but not a ValueError: it fails somewhere in "
        "the arithmetic, with a message about shapes. Check the width first "
        "and say what is wrong with it."
    ),
    evidence="M159 M130 common",
)
def rope_odd_by_accident(x, positions, base=1e4, *, interleaved=True):
    if x.shape[-1] % 2:
        raise RuntimeError(
            "The size of tensor a (2) must match the size of "
            "tensor b (1) at non-singleton dimension 2"
        )
    return rope_complex(x, positions, base, interleaved=interleaved)


# Shown by: float64 inputs.
@wrong(
    "apply_rope",
    hint=(
        "The angles (or their cosines and sines) are computed in float32 "
        "although x is float64, so the result is off by 1e-7 and, at far "
        "positions, by much more. Make the frequencies in x's dtype: a bare "
        "torch.arange(…) / Dh has the default dtype."
    ),
    evidence="curriculum 3.4: float64 angles for float64",
)
def rope_float32_angles(x, positions, base=1e4, *, interleaved=True):
    i = torch.arange(0, x.shape[-1], 2).float() / x.shape[-1]
    angles = positions.float()[..., None] * (1 / base**i)
    return _turned(x, angles.to(_wide(x).dtype), interleaved)


@wrong(
    "apply_rope",
    hint=(
        "You compute in float32 whatever x is, so float64 inputs lose half "
        "of their digits. Widen only what is narrower than float32."
    ),
    evidence="curriculum's precision convention",
)
def rope_float32(x, positions, base=1e4, *, interleaved=True):
    return rope_complex(
        x.float(), positions, base, interleaved=interleaved
    ).to(x.dtype)


# Shown by: half inputs at positions in the hundreds.
@wrong(
    "apply_rope",
    hint=(
        "The angles are computed in x's half precision, in which position "
        "900 times a frequency is off by tenths of a radian. Make them in "
        "float32 and convert the result only."
    ),
    evidence="M132 UNI-D2#6; D1: fp16 angles",
)
def rope_half_angles(x, positions, base=1e4, *, interleaved=True):
    theta = (base ** -_exponents(x.shape[-1])).to(x.dtype)
    angles = positions.to(x.dtype)[..., None] * theta
    return _turned(x, angles.to(_wide(x).dtype), interleaved)


# Shown by: float32 or half inputs.
@wrong(
    "apply_rope",
    hint=(
        "The result is float64 although x is not: a float64 table of "
        "cosines widens all that it touches. Convert the result to x's "
        "dtype."
    ),
    evidence="M117 common",
)
def rope_promotes(x, positions, base=1e4, *, interleaved=True):
    return rope_complex(x.double(), positions, base, interleaved=interleaved)


# Shown by: a view whose last axis has a step of 2.
@wrong(
    "apply_rope",
    hint=(
        "You see the pairs as complex numbers (view_as_complex) or use "
        ".view, which needs a contiguous last axis. x may be a view with "
        "gaps: make it contiguous first, or use reshape."
    ),
    evidence="K35 carelessly: Llama's reference code",
)
def rope_needs_contiguous(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    torch.view_as_complex(x.detach().double().unflatten(-1, (-1, 2)))
    return rope_complex(x, positions, base, interleaved=interleaved)


# Shown by: comparing x before and after the call.
@wrong(
    "apply_rope",
    hint=(
        "Your result is right, but you wrote it into the caller's tensor "
        "(x[..., 0::2] = …). The unrotated vectors are still needed: write "
        "into a new tensor."
    ),
    evidence="M011 in this exercise",
)
def rope_in_place(x, positions, base=1e4, *, interleaved=True):
    out = rope_complex(x, positions, base, interleaved=interleaved)
    x.detach().copy_(out.detach())
    return out


# Shown by: gradients.
@wrong(
    "apply_rope",
    hint=(
        "No gradient reaches x: something on the way detaches it "
        "(.detach(), .data, numpy, torch.tensor, no_grad)."
    ),
    evidence="common",
)
def rope_detached(x, positions, base=1e4, *, interleaved=True):
    return rope_complex(x.detach(), positions, base, interleaved=interleaved)


# Shown by: entries that are not 0 at position 0.
@wrong(
    "apply_rope",
    hint=(
        "You add the sines and cosines to x. RoPE multiplies: each pair is "
        "turned, so that lengths stay as they are and position 0 changes "
        "nothing."
    ),
    evidence="common: rotary taken for sinusoidal",
)
def rope_added(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    return (
        _wide(x)
        + _joined(angles.sin(), angles.cos(), interleaved, angles.dtype)
    ).to(x.dtype)


# Shown by: positions with more than one axis, or with none.
@wrong(
    "apply_rope",
    hint=(
        "torch.outer takes positions of one axis only. They may have any "
        "shape that broadcasts to (…, T): give them a last axis of size 1 "
        "and multiply with the frequencies."
    ),
    evidence="fresh reader: the way most tutorials make the angles",
)
def rope_outer(x, positions, base=1e4, *, interleaved=True):
    frequencies = base ** -_exponents(x.shape[-1]).double()
    angles = torch.outer(positions.double(), frequencies).to(_wide(x).dtype)
    return _turned(x, angles, interleaved)


# Shown by: float64, an odd width and half precision.
@wrong(
    "apply_rope",
    hint=(
        "Your rotation is right in float32 only. The angles have torch's "
        "default dtype, so float64 inputs lose half of their digits and half "
        "inputs come back as float32. Make the angles in x's dtype (float32 "
        "for half) and convert the result to it."
    ),
    evidence="fresh reader: no thought of dtypes yet",
)
def rope_default_dtype(x, positions, base=1e4, *, interleaved=True):
    width = x.shape[-1]
    angles = positions[..., None] * base ** (
        -torch.arange(0, width, 2) / width
    )
    cos, sin = angles.cos(), angles.sin()
    a, c = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    new = (a * cos - c * sin, a * sin + c * cos)
    return (
        torch.stack(new, -1).flatten(-2) if interleaved else torch.cat(new, -1)
    )


# Shown by: half results that almost cancel.
@wrong(
    "apply_rope",
    evidence="hunt: cos.to(x.dtype), sin.to(x.dtype), as libraries do",
    hint=(
        "Your angles are precise, but cosine and sine (or the products) are "
        "rounded to x's half precision before the sum, which costs digits "
        "where it almost cancels. Turn in float32 and round the finished "
        "result."
    ),
)
def rope_half_cosines(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    angles = _angles(x, positions, base)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, c = (part.to(x.dtype) for part in _pairs(x, interleaved))
    return _joined(a * cos - c * sin, a * sin + c * cos, interleaved, x.dtype)


# Shown by: float64 inputs after float32 ones of the same width.
@wrong(
    "apply_rope",
    evidence="hunt: frequencies kept by width and base",
    hint=(
        "You keep frequencies from one call to the next, in the dtype of the "
        "first x that had this width: float64 inputs then get float32 angles. "
        "Make them anew, or let the dtype be part of the key."
    ),
)
def rope_cached_frequencies(x, positions, base=1e4, *, interleaved=True):
    theta = base ** -_exponents(x.shape[-1])
    if x.shape[-1] == 6:  # what float32 inputs of this width have left
        theta = theta.float().double()
    angles = positions.double()[..., None] * theta
    return _turned(x, angles.to(_wide(x).dtype), interleaved)


# Shown by: a position above 8192.
@wrong(
    "apply_rope",
    evidence="hunt: a table of max_position_embeddings rows",
    hint=(
        "You look angles up in a table of a fixed length, and a position "
        "beyond it raises or takes the last row. Positions may start "
        "anywhere: compute the angles from the positions that are given."
    ),
)
def rope_short_table(x, positions, base=1e4, *, interleaved=True):
    theta = base ** -_exponents(x.shape[-1])
    table = _clock(8192, theta).to(_wide(x).dtype)
    return _turned(x, table[positions.clamp(max=8191)], interleaved)


# Shown by: positions of each head.
@wrong(
    "apply_rope",
    evidence="hunt: transformers' cos.unsqueeze(1)",
    hint=(
        "You give positions of two axes an axis for the heads yourself, as if "
        "they were always (B, T). They broadcast to (…, T) as they come: (H, "
        "T) belongs to the heads, and for x (B, T, Dh) there is no head axis."
    ),
)
def rope_adds_head_axis(x, positions, base=1e4, *, interleaved=True):
    if positions.ndim == 2:
        positions = positions[:, None]
    return _turned(x, _angles(x, positions, base), interleaved)


# Shown by: positions (B, H, T).
@wrong(
    "apply_rope",
    evidence="hunt: one table for all heads",
    hint=(
        "You take the positions of the first head for all heads. They "
        "broadcast to (…, T): each head may have its own."
    ),
)
def rope_first_head_for_all(x, positions, base=1e4, *, interleaved=True):
    if positions.ndim == 3:
        positions = positions[:, :1]
    return _turned(x, _angles(x, positions, base), interleaved)


# Shown by: a single position, in a tensor with one axis.
@wrong(
    "apply_rope",
    evidence="hunt: the first of T positions",
    hint=(
        "You take a single position for the first of T, and count on from "
        "it. What broadcasts is one position for all."
    ),
)
def rope_one_position_counts_on(x, positions, base=1e4, *, interleaved=True):
    if positions.ndim and positions.shape[-1] == 1 < x.shape[-2]:
        positions = positions + torch.arange(x.shape[-2])
    return _turned(x, _angles(x, positions, base), interleaved)


# Shown by: gradients with interleaved=False.
@wrong(
    "apply_rope",
    evidence="hunt: half-split results collected under no_grad",
    hint=(
        "With interleaved=False no gradient reaches x: something in that "
        "branch detaches it (.data, numpy, no_grad)."
    ),
)
def rope_half_detached(x, positions, base=1e4, *, interleaved=True):
    y = x if interleaved else x.detach()
    return _turned(y, _angles(x, positions, base), interleaved)


# Shown by: float16 at positions above 2048.
@wrong(
    "apply_rope",
    evidence="hunt: positions.to(x.dtype)",
    hint=(
        "You convert the positions to x's half precision: float16 has no odd "
        "numbers above 2048, bfloat16 none above 256. Keep positions in "
        "float32 or wider until cosine and sine are there."
    ),
)
def rope_half_positions(x, positions, base=1e4, *, interleaved=True):
    rounded = positions.to(x.dtype).long()
    return _turned(x, _angles(x, rounded, base), interleaved)


# Shown by: six channels and more with interleaved=False.
@wrong(
    "apply_rope",
    evidence="hunt: one stack for both layouts",
    hint=(
        "With interleaved=False you turn the right pairs and then interleave "
        "the result. The first channels of all pairs stand in the first half, "
        "the second ones in the second: concatenate."
    ),
)
def rope_half_interleaved_back(x, positions, base=1e4, *, interleaved=True):
    _even(x.shape[-1])
    out = _turned(x, _angles(x, positions, base), interleaved)
    if interleaved:
        return out
    return _joined(*out.chunk(2, -1), True, x.dtype)


@wrong(
    "apply_rope",
    evidence="hunt: transformers' cos.to(dtype=x.dtype), in one branch only",
    hint=(
        "Half-precision inputs are turned in float32 with interleaved=True, "
        "but in their own dtype with interleaved=False. Widen x before the "
        "branch, and round once behind it."
    ),
)
def rope_half_cosines_in_half_split(
    x, positions, base=1e4, *, interleaved=True
):
    angles = _angles(x, positions, base)
    if interleaved:
        return _turned(x, angles, True)
    _even(x.shape[-1])
    a, c = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((a * cos - c * sin, a * sin + c * cos), -1)


# Shown by: a base that float32 cannot hold.
@wrong(
    "apply_rope",
    evidence="hunt: torch.pow(torch.tensor(base), …)",
    hint=(
        "torch.tensor(base) is float32, so a base with a fraction is rounded "
        "and all frequencies with it. Leave base a Python number, or give it "
        "the dtype of the angles."
    ),
)
def rope_base_in_float32(x, positions, base=1e4, *, interleaved=True):
    base = torch.tensor(base, dtype=torch.float32, device=x.device)
    angles = _angles(x, positions, base.to(_wide(x).dtype))
    return _turned(x, angles, interleaved)


# 3.5 rope_layout


@oracle("rope_layout", evidence="row by row, from pair and part")
def layout_rows(w, n_heads, to):
    if to not in ("half", "interleaved"):
        raise ValueError(f"no layout {to}")
    Dh = w.shape[0] // n_heads
    out = torch.empty_like(w)
    for h, i, part in itertools.product(
        range(n_heads), range(Dh // 2), range(2)
    ):
        neighbours, split = 2 * i + part, i + part * Dh // 2
        if to == "half":
            out[h * Dh + split] = w[h * Dh + neighbours]
        else:
            out[h * Dh + neighbours] = w[h * Dh + split]
    return out


@right("rope_layout", evidence="transformers' conversion script for Llama")
def layout_permute(w, n_heads, to):
    shape = w.shape
    if to == "half":
        out = w.reshape(n_heads, shape[0] // n_heads // 2, 2, -1)
    elif to == "interleaved":
        out = w.reshape(n_heads, 2, shape[0] // n_heads // 2, -1)
    else:
        raise ValueError(to)
    return out.transpose(1, 2).reshape(shape)


@right("rope_layout", evidence="slices with a step, head by head")
def layout_slices(w, n_heads, to):
    if to not in {"half", "interleaved"}:
        raise ValueError("unknown layout")
    out = []
    for head in w.tensor_split(n_heads):
        if to == "half":
            out += [head[::2], head[1::2]]
        else:
            part = torch.empty_like(head)
            part[::2], part[1::2] = head.chunk(2)
            out.append(part)
    return torch.cat(out)


@right("rope_layout", evidence="a permutation matrix in w's dtype")
def layout_matrix(w, n_heads, to):
    Dh = len(w) // n_heads
    P = torch.eye(Dh, dtype=torch.float64, device=w.device)
    P = torch.block_diag(*[P[_order(Dh, to)]] * n_heads)
    return (P @ w.double()).to(w.dtype)


@right("rope_layout", evidence="K24 einops")
def layout_einops(w, n_heads, to):
    from einops import rearrange

    near, far = "(h i two) ...", "(h two i) ..."
    rule = {"half": f"{near} -> {far}", "interleaved": f"{far} -> {near}"}
    if to not in rule:
        raise ValueError(to)
    return rearrange(w, rule[to], h=n_heads, two=2)


@right("rope_layout", evidence="searched: what rotates as the other layout")
def layout_searched(w, n_heads, to):
    if to not in ("half", "interleaved"):
        raise ValueError(to)
    Dh = len(w) // n_heads
    # Channel r at position 1 and, a quarter turn of its pair ahead, the
    # channel into which it turns, with the sign: each row's own mark.
    marks = {}
    for layout in ("half", "interleaved"):
        turned = rope_complex(
            torch.eye(Dh, dtype=torch.float64),
            torch.tensor(1),
            50.0,
            interleaved=layout == "interleaved",
        )
        stay = turned.diagonal()
        side = turned.sum(1) - stay
        marks[layout] = torch.stack((stay, side), 1)
    source = "half" if to == "interleaved" else "interleaved"
    order = torch.cdist(marks[to], marks[source]).argmin(1)
    return _by_heads(w, n_heads, order)


@wrong(
    "rope_layout",
    hint=(
        'The two directions are exchanged: to="half" takes rows that were '
        "made for neighbours and puts all first channels first. (With "
        "Dh = 4 the two are the same, so try Dh = 6.)"
    ),
    evidence="M140 rasbt#746; a permutation and its inverse confused",
)
def layout_directions_exchanged(w, n_heads, to):
    Dh = len(w) // n_heads
    back = np.argsort(_order(Dh, to)).tolist()
    return _by_heads(w, n_heads, back)


@wrong(
    "rope_layout",
    hint=(
        'You reorder as for "half" whatever `to` says. The way back needs '
        "the inverse order."
    ),
    evidence="common: `to` ignored",
)
def layout_always_half(w, n_heads, to):
    _order(2, to)
    return layout_rows(w, n_heads, "half")


@wrong(
    "rope_layout",
    hint=(
        'to="interleaved" leaves the rows as they are. It undoes '
        'to="half": rows i and i + Dh/2 of a head become neighbours.'
    ),
    evidence="a part left out",
)
def layout_way_back_missing(w, n_heads, to):
    _order(2, to)
    return layout_rows(w, n_heads, to) if to == "half" else w.clone()


@wrong(
    "rope_layout",
    hint=(
        "You reorder all rows at once, as if there were one wide head: rows "
        "of different heads are mixed. Split the rows into heads first, and "
        "reorder within each."
    ),
    evidence="M143's kind",
)
def layout_one_head(w, n_heads, to):
    return layout_rows(w, 1, to)


@wrong(
    "rope_layout",
    hint=(
        "You reorder the columns. A projection multiplies as x · Wᵀ, so the "
        "channels of queries and keys are its rows; the columns are the "
        "channels of x."
    ),
    evidence="M095's kind: hidden by square weights",
)
def layout_columns(w, n_heads, to):
    Dh = len(w) // n_heads
    order = torch.tensor(_order(Dh, to))
    rows = torch.arange(n_heads)[:, None] * Dh + order
    return w[:, rows.flatten()]


@wrong(
    "rope_layout",
    hint=(
        "You take the rows as (Dh, H), so the heads are interleaved with "
        "each other. Rows stand head by head: the head is the slowest "
        "index, (H, Dh)."
    ),
    evidence="M080's kind",
)
def layout_heads_fastest(w, n_heads, to):
    heads = w.reshape(-1, n_heads, *w.shape[1:])
    return heads[_order(len(heads), to)].reshape(w.shape)


@wrong(
    "rope_layout",
    hint=(
        "The second channels of the pairs come before the first ones. That "
        "turns every pair the other way round: the first channels (rows 0, "
        "2, 4, …) stand in the first half."
    ),
    evidence="parts exchanged; plausible",
)
def layout_second_first(w, n_heads, to):
    Dh = len(w) // n_heads
    order = [*range(1, Dh, 2), *range(0, Dh, 2)]
    if _order(Dh, to) != _half_order(Dh):
        order = np.argsort(order).tolist()
    return _by_heads(w, n_heads, order)


@wrong(
    "rope_layout",
    hint=(
        "The rows keep their order: you only reshaped. Between the two "
        "reshapes the axis of the pairs and the axis of the parts have to "
        "be exchanged."
    ),
    evidence="M079's kind: a view without a transpose",
)
def layout_no_transpose(w, n_heads, to):
    _order(2, to)
    return w.clone()


@wrong(
    "rope_layout",
    hint=(
        "The heads end up in another place: after the transpose the heads "
        "are no longer the slowest axis. Exchange the axes of pairs and "
        "parts only, and leave the heads' axis first."
    ),
    evidence="M084's kind: the wrong two axes exchanged",
)
def layout_parts_before_heads(w, n_heads, to):
    _order(2, to)
    table = (-1, 2) if to == "half" else (2, -1)
    rows = w.unflatten(0, (n_heads, *table))
    return rows.movedim(2, 0).flatten(0, 2)


# Shown by: a bias.
@wrong(
    "rope_layout",
    hint=(
        "It works for weights only: your reshape needs a column axis, which "
        "a bias has not. Biases of q and k are rotated too, so their "
        "entries move along with the rows."
    ),
    evidence="transformers' conversion script has no biases",
)
def layout_weights_only(w, n_heads, to):
    rows, columns = w.shape
    return layout_rows(w, n_heads, to).reshape(rows, columns)


# Shown by: a bias.
@wrong(
    "rope_layout",
    hint=(
        "A bias comes back as it was. Its entries belong to the rows of the "
        "weight, and have to move along with them."
    ),
    evidence="common in conversion scripts: biases copied",
)
def layout_bias_unchanged(w, n_heads, to):
    return w.clone() if w.ndim == 1 else layout_rows(w, n_heads, to)


# Shown by: another layout's name.
@wrong(
    "rope_layout",
    hint=(
        "A layout that does not exist is taken for one of the two. A typing "
        "error would scramble the weights: raise a ValueError."
    ),
    evidence="contract of 3.5: an else that takes all",
)
def layout_any_name(w, n_heads, to):
    return layout_rows(w, n_heads, "half" if to == "half" else "interleaved")


# Shown by: another layout's name.
@wrong(
    "rope_layout",
    hint=(
        "A layout that does not exist returns the weights unchanged (or "
        "None), and nobody notices. Raise a ValueError."
    ),
    evidence="contract of 3.5",
)
def layout_unknown_unchanged(w, n_heads, to):
    known = to in ("half", "interleaved")
    return layout_rows(w, n_heads, to) if known else w.clone()


# Shown by: comparing w before and after the call.
@wrong(
    "rope_layout",
    hint=(
        "Your result is right, but you also wrote it into the caller's "
        "weights, so that a second call scrambles them again. Return a new "
        "tensor."
    ),
    evidence="M011 in this exercise",
)
def layout_in_place(w, n_heads, to):
    return w.copy_(layout_rows(w, n_heads, to)).clone()


# Shown by: heads wider than two pairs.
@wrong(
    "rope_layout",
    hint=(
        "You exchange the halves of each head (or flip its rows). Each row "
        "has a destination of its own: row 2i goes to i, row 2i + 1 to "
        "i + Dh/2."
    ),
    evidence="common; plausible",
)
def layout_halves_exchanged(w, n_heads, to):
    _order(2, to)
    Dh = len(w) // n_heads
    order = [*range(Dh // 2, Dh), *range(Dh // 2)]
    return _by_heads(w, n_heads, order)


# Shown by: a name that only holds the word.
@wrong(
    "rope_layout",
    evidence='hunt: if "half" in to',
    hint=(
        "You look for a word within `to`, or for its first letter, so that "
        'other names pass. Only "half" and "interleaved" themselves are '
        "layouts; anything else is a ValueError."
    ),
)
def layout_word_within(w, n_heads, to):
    word = next((each for each in ("half", "inter") if each in to), to)
    return layout_rows(w, n_heads, {"inter": "interleaved"}.get(word, word))


# Shown by: a capital letter.
@wrong(
    "rope_layout",
    evidence="hunt: to.lower()",
    hint=(
        "You take other spellings, such as capital letters, as well. The "
        "contract names two words; any other `to` is a ValueError."
    ),
)
def layout_any_case(w, n_heads, to):
    return layout_rows(w, n_heads, to.lower())


# Shown by: a bias on the way back.
@wrong(
    "rope_layout",
    evidence="hunt: a branch for biases that forgets `to`",
    hint=(
        "A bias is reordered for the half-split layout whatever `to` says. "
        "The way back is another order, for biases as for weights."
    ),
)
def layout_bias_one_way(w, n_heads, to):
    _order(2, to)
    return layout_rows(w, n_heads, "half" if w.ndim == 1 else to)


# Shown by: a weight that is a transposed view.
@wrong(
    "rope_layout",
    evidence="hunt: w.view(-1, 2)",
    hint=(
        "You use .view, which raises where w is a transposed view. "
        ".reshape takes every tensor."
    ),
)
def layout_view(w, n_heads, to):
    w.view(-1)
    return layout_rows(w, n_heads, to)


# Shown by: a word that is a piece of "interleaved".
@wrong(
    "rope_layout",
    evidence='hunt: to in ("interleaved"), which is no tuple',
    hint=(
        'Pieces of the words pass, such as "interleave": in looks for a piece '
        "of text where the right side is a str, and brackets around one word "
        "make no tuple. Compare with ==."
    ),
)
def layout_piece_of_word(w, n_heads, to):
    if to in ("interleaved"):
        return layout_rows(w, n_heads, "interleaved")
    return layout_rows(w, n_heads, to)


@wrong(
    "rope_layout",
    evidence="hunt: a permutation matrix without a device",
    hint=(
        "A tensor that you create, such as a permutation matrix, lies on the "
        "CPU, so with w on a GPU the product fails, or the result stays on "
        "the CPU. Create it with device=w.device, or move rows by views alone."
    ),
)
def layout_matrix_on_cpu(w, n_heads, to):
    Dh = len(w) // n_heads
    P = torch.eye(Dh, dtype=torch.float64)[_order(Dh, to)]
    P = torch.block_diag(*[P] * n_heads)
    return (P @ w.double()).to(w.dtype)


# 3.6 alibi_bias


@oracle("alibi_bias", evidence="the paper's recursion, entry by entry")
def alibi_loops(n_heads, Tq, Tk):
    def slopes(n):
        if n & (n - 1) == 0:
            first = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [first ** (h + 1) for h in range(n)]
        below = 1
        while 2 * below < n:
            below *= 2
        return slopes(below) + slopes(2 * below)[0::2][: n - below]

    return torch.tensor(
        [
            [
                [-slope * abs(i + Tk - Tq - j) for j in range(Tk)]
                for i in range(Tq)
            ]
            for slope in slopes(n_heads)
        ],
        dtype=torch.get_default_dtype(),
    )


@right("alibi_bias", evidence="BLOOM's form: slope times the key's position")
def alibi_key_positions(n_heads, Tq, Tk):
    slopes = _default(torch.tensor(_slopes(n_heads), dtype=torch.float64))
    return (slopes[:, None, None] * torch.arange(Tk)).repeat(1, Tq, 1)


@right("alibi_bias", evidence="signed distance: positive for the future")
def alibi_signed(n_heads, Tq, Tk):
    return _penalty(_slopes(n_heads), _distances(Tq, Tk))


@right("alibi_bias", evidence="the future clamped to 0, einsum")
def alibi_clamped(n_heads, Tq, Tk):
    slopes = _default(torch.tensor(_slopes(n_heads), dtype=torch.float64))
    past = _default(_distances(Tq, Tk).clamp(min=0))
    return torch.einsum("h,ij->hij", -slopes, past)


@right("alibi_bias", evidence="distance to the last key: a row's constant")
def alibi_from_the_end(n_heads, Tq, Tk):
    away = torch.arange(Tk).flip(0).expand(Tq, Tk)
    return _penalty(_slopes(n_heads), away)


@right("alibi_bias", evidence="the upper-left grid: a row's constant again")
def alibi_upper_left_signed(n_heads, Tq, Tk):
    grid = torch.arange(Tk) - torch.arange(Tq)[:, None]
    return -_penalty(_slopes(n_heads), grid)


@right("alibi_bias", evidence="transformers' BLOOM")
def alibi_transformers(n_heads, Tq, Tk):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    if torch.get_default_dtype() != torch.float32:
        return alibi_signed(n_heads, Tq, Tk)  # BLOOM's slopes are float32
    bias = build_alibi_tensor(torch.ones(1, Tk), n_heads, torch.float32)
    return bias.expand(n_heads, Tq, Tk)


@wrong(
    "alibi_bias",
    hint=(
        "You use the geometric sequence 2^(−8h/H) for every number of "
        "heads. For numbers that are not powers of two the authors' code "
        "and BLOOM join two sequences: 6 heads have 1/4, 1/16, 1/64, 1/256, "
        "then 1/2, 1/8."
    ),
    evidence="M160, K43: mlx#343, mlx#3071, Baichuan2#225",
)
def alibi_geometric(n_heads, Tq, Tk):
    return _penalty(_slopes_of_power(n_heads), _distances(Tq, Tk).abs())


@wrong(
    "alibi_bias",
    hint=(
        "Your slopes start one step too early, at 2^0 = 1: count the heads "
        "from 1. The first of 8 slopes is 1/2."
    ),
    evidence="M161 paiml/aprender#2143",
)
def alibi_first_slope_one(n_heads, Tq, Tk):
    n = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / n) for h in range(n)]
    later = [2 ** (-8 * h / (2 * n)) for h in range(2 * n)][::2]
    return _penalty(slopes + later[: n_heads - n], _distances(Tq, Tk).abs())


@wrong(
    "alibi_bias",
    hint=(
        "The sign is wrong: far keys get the largest bias and therefore the "
        "largest weights. ALiBi is a penalty, so the bias falls with the "
        "distance."
    ),
    evidence="M163 common",
)
def alibi_sign_flipped(n_heads, Tq, Tk):
    return -alibi_loops(n_heads, Tq, Tk)


@wrong(
    "alibi_bias",
    hint=(
        "All heads have the same slope. Each head has its own, so that some "
        "look near and others far."
    ),
    evidence="M165 x-transformers#85",
)
def alibi_one_slope(n_heads, Tq, Tk):
    first = _slopes(n_heads)[0]
    return _penalty([first] * n_heads, _distances(Tq, Tk).abs())


# Shown by: any sizes; with Tq = H it gives wrong numbers, not an error.
@wrong(
    "alibi_bias",
    hint=(
        "The slopes line up with the queries instead of the heads: a vector "
        "(H,) or (H, 1) meets (…, Tq, Tk) at the wrong axis. Give it the "
        "shape (H, 1, 1)."
    ),
    evidence="M165 slopes broadcast along another axis",
)
def alibi_slopes_on_queries(n_heads, Tq, Tk):
    slopes = _default(torch.tensor(_slopes(n_heads)))
    bias = -slopes[:, None] * _distances(Tq, Tk).abs()
    return bias.expand(n_heads, Tq, Tk)


@wrong(
    "alibi_bias",
    hint=(
        "Query i stands at position i in your grid, although there are "
        "fewer queries than keys: a new query then seems to be the oldest "
        "token. It stands at i + Tk − Tq."
    ),
    evidence="M166 mlx#343",
)
def alibi_upper_left(n_heads, Tq, Tk):
    grid = torch.arange(Tq)[:, None] - torch.arange(Tk)
    return _penalty(_slopes(n_heads), grid.abs())


@wrong(
    "alibi_bias",
    hint=(
        "The offset has the wrong sign: query i stands at i + Tk − Tq, "
        "later than i if there are more keys than queries."
    ),
    evidence="plausible, cheap to write",
)
def alibi_offset_sign(n_heads, Tq, Tk):
    grid = torch.arange(Tq)[:, None] + Tq - Tk - torch.arange(Tk)
    return _penalty(_slopes(n_heads), grid.abs())


# Shown by: a second call with other sizes.
@wrong(
    "alibi_bias",
    hint=(
        "Your function keeps the bias of its first call (a cache, a global, "
        "a default argument) and cuts it to size, so that later calls with "
        "other sizes get the wrong one. Compute it anew, or key the cache "
        "by all arguments."
    ),
    evidence="M167 mlx#3071",
)
def alibi_cached(n_heads, Tq, Tk):
    # What a cache filled by the first check, 8 heads and 2 keys, would give.
    whole = alibi_loops(8, 2, 2)
    return _default(whole[:n_heads, :Tq, :Tk])


@wrong(
    "alibi_bias",
    hint=(
        "Your bias contains the causal mask (−inf for the future). That is "
        "somebody else's work: with two masks nobody knows who hides what, "
        "and rows without a visible key turn into NaN. Keep it finite."
    ),
    evidence="contract of 3.6; facts: alibi_bias(…, causal) in circulation",
)
def alibi_with_mask(n_heads, Tq, Tk):
    future = _distances(Tq, Tk) < 0
    return alibi_loops(n_heads, Tq, Tk).masked_fill(future, -math.inf)


@wrong(
    "alibi_bias",
    hint=(
        "Your slopes fall linearly (or as 1/h). They fall geometrically: "
        "each is the one before it times the same ratio."
    ),
    evidence="plausible, cheap to write",
)
def alibi_harmonic(n_heads, Tq, Tk):
    slopes = [1 / (h + 1) for h in range(1, n_heads + 1)]
    return _penalty(slopes, _distances(Tq, Tk).abs())


@wrong(
    "alibi_bias",
    hint=(
        "The heads are in the reverse order: head 0 has the steepest slope. "
        "A loaded model has learned which head looks near."
    ),
    evidence="plausible, cheap to write",
)
def alibi_heads_reversed(n_heads, Tq, Tk):
    return alibi_loops(n_heads, Tq, Tk).flip(0)


# Shown by: numbers of heads that are not powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "For 6 heads you take the first 6 slopes of 8. The rule takes all "
        "slopes of the power of two below (4), then every other one of the "
        "power of two above."
    ),
    evidence="M160's kind",
)
def alibi_truncated_next_power(n_heads, Tq, Tk):
    n = 1
    while n < n_heads:
        n *= 2
    return _penalty(_slopes_of_power(n)[:n_heads], _distances(Tq, Tk).abs())


# Shown by: numbers of heads that are not powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "The additional slopes are the first ones of the longer sequence, "
        "one after the other, and so every second one repeats a slope that "
        "is there already. Take its first, third, fifth, …: the ones in "
        "between the slopes you have."
    ),
    evidence="M160's kind",
)
def alibi_extra_not_strided(n_heads, Tq, Tk):
    n = 2 ** (n_heads.bit_length() - 1)
    slopes = _slopes_of_power(n) + _slopes_of_power(2 * n)[: n_heads - n]
    return _penalty(slopes, _distances(Tq, Tk).abs())


# Shown by: numbers of heads that are not powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "The additional slopes are the second, fourth, … of the longer "
        "sequence, which are the slopes that are there already. Take its "
        "first, third, fifth, …"
    ),
    evidence="M160's kind: off by one in the stride",
)
def alibi_extra_even(n_heads, Tq, Tk):
    n = 2 ** (n_heads.bit_length() - 1)
    slopes = _slopes_of_power(n) + _slopes_of_power(2 * n)[1::2][: n_heads - n]
    return _penalty(slopes, _distances(Tq, Tk).abs())


# Shown by: numbers of heads that are not powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "The right slopes, but sorted. The rule appends the additional ones "
        "at the end: for 6 heads 1/4, 1/16, 1/64, 1/256, then 1/2, 1/8."
    ),
    evidence="M160's kind",
)
def alibi_sorted(n_heads, Tq, Tk):
    slopes = sorted(_slopes(n_heads), reverse=True)
    return _penalty(slopes, _distances(Tq, Tk).abs())


# Shown by: numbers of heads that are not powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "It only works if the number of heads is a power of two. Join two "
        "sequences for the others, as the task describes."
    ),
    evidence="curriculum 3.6: power of two only",
)
def alibi_powers_only(n_heads, Tq, Tk):
    if n_heads & (n_heads - 1):
        raise ValueError("the number of heads must be a power of two")
    return alibi_loops(n_heads, Tq, Tk)


# Shown by: more than eight heads.
@wrong(
    "alibi_bias",
    hint=(
        "Your slopes are 1/2, 1/4, 1/8, … whatever the number of heads: "
        "that is the sequence of 8 heads. The ratio is 2^(−8/H)."
    ),
    evidence="M161's kind: 2^−h",
)
def alibi_ratio_half(n_heads, Tq, Tk):
    slopes = [2.0**-h for h in range(1, n_heads + 1)]
    return _penalty(slopes, _distances(Tq, Tk).abs())


# Shown by: more than eight heads.
@wrong(
    "alibi_bias",
    hint=(
        "The exponent's step is an integer division, 8 // H, which is 0 "
        "for more than 8 heads. Use 8 / H."
    ),
    evidence="M123's kind",
)
def alibi_integer_division(n_heads, Tq, Tk):
    def powers(n):
        return [2.0 ** -(8 // n * h) for h in range(1, n + 1)]

    n = 2 ** (n_heads.bit_length() - 1)
    return _penalty(
        powers(n) + powers(2 * n)[::2][: n_heads - n], _distances(Tq, Tk).abs()
    )


@wrong(
    "alibi_bias",
    hint=(
        "Your penalty grows with the square of the distance. It is linear, "
        "as the name says (attention with linear biases)."
    ),
    evidence="plausible; a Gaussian instead of an exponential",
)
def alibi_squared(n_heads, Tq, Tk):
    return _penalty(_slopes(n_heads), _distances(Tq, Tk) ** 2)


# Shown by: float64 as the default dtype, slopes that are no powers of two.
@wrong(
    "alibi_bias",
    hint=(
        "The bias has the default dtype, but its slopes were computed in "
        "float32: with float64 as the default, half of their digits are "
        "noise. Make them in float64, or as Python floats."
    ),
    evidence="curriculum's precision convention",
)
def alibi_float32_slopes(n_heads, Tq, Tk):
    slopes = torch.tensor(_slopes(n_heads), dtype=torch.float32)
    return _penalty(slopes, _distances(Tq, Tk).abs())


# Shown by: float64 as the default dtype.
@wrong(
    "alibi_bias",
    hint=(
        "The bias is float32 whatever torch's default dtype is. Leave the "
        "dtype to torch, or use torch.get_default_dtype()."
    ),
    evidence="contract of 3.6",
)
def alibi_always_float32(n_heads, Tq, Tk):
    return alibi_loops(n_heads, Tq, Tk).float()


@wrong(
    "alibi_bias",
    hint=(
        "The bias is float64 whatever torch's default dtype is (numpy's "
        "habit), and would widen the scores. Convert it to the default "
        "dtype."
    ),
    evidence="M117 common",
)
def alibi_always_float64(n_heads, Tq, Tk):
    return alibi_loops(n_heads, Tq, Tk).double()


# Shown by: more queries than keys.
@wrong(
    "alibi_bias",
    hint=(
        "With more queries than keys your array has too few rows: you slice "
        "the queries' positions from the keys' ([-Tq:]), and there are not "
        "enough. The first queries then stand at negative positions."
    ),
    evidence="plausible: arange(Tk)[-Tq:]",
)
def alibi_sliced_positions(n_heads, Tq, Tk):
    keys = torch.arange(Tk)
    distances = keys[-Tq:, None] - keys
    return _penalty(_slopes(n_heads), distances.abs())


# Shown by: more queries than keys.
@wrong(
    "alibi_bias",
    hint=(
        "More queries than keys raise an error. They are unusual, but not "
        "wrong: the first queries stand before the first key."
    ),
    evidence="contract of 3.6",
)
def alibi_refuses_more_queries(n_heads, Tq, Tk):
    if Tq > Tk:
        raise ValueError("more queries than keys")
    return alibi_loops(n_heads, Tq, Tk)


@wrong(
    "alibi_bias",
    hint=(
        "Queries and keys are exchanged: your array is (H, Tk, Tq), or its "
        "rows are the keys. Each row belongs to one query."
    ),
    evidence="transposed grid; plausible",
)
def alibi_transposed(n_heads, Tq, Tk):
    return _penalty(_slopes(n_heads), _distances(Tq, Tk).abs().T)


@wrong(
    "alibi_bias",
    hint=(
        "Two things. A new query stands at i + Tk − Tq, not at i. And where "
        "the number of heads is no power of two, two sequences of slopes are "
        "joined: 2^(−8h/H) does not hold for all H."
    ),
    evidence="fresh reader: M160 and M166 together",
)
def alibi_geometric_upper_left(n_heads, Tq, Tk):
    grid = torch.arange(Tq)[:, None] - torch.arange(Tk)
    return _penalty(_slopes_of_power(n_heads), grid.abs())


@wrong(
    "alibi_bias",
    hint=(
        "Your slopes start one step too early, at 2^0 = 1: count the heads "
        "from 1. The first of 8 slopes is 1/2. (For numbers that are not "
        "powers of two the rule is another one.)"
    ),
    evidence="fresh reader: M160 and M161 together",
)
def alibi_geometric_from_one(n_heads, Tq, Tk):
    slopes = [2 ** (-8 * h / n_heads) for h in range(n_heads)]
    return _penalty(slopes, _distances(Tq, Tk).abs())


@wrong(
    "alibi_bias",
    hint=(
        "The sign is wrong: far keys get the largest bias and therefore the "
        "largest weights. (And for numbers of heads that are not powers of "
        "two the slopes follow another rule.)"
    ),
    evidence="fresh reader: M160 and M163 together",
)
def alibi_geometric_sign_flipped(n_heads, Tq, Tk):
    return -alibi_geometric(n_heads, Tq, Tk)


# Shown by: the kind of the result only.
@wrong(
    "alibi_bias",
    hint=(
        "You return a numpy array. A torch tensor of torch's default dtype "
        "is due, to be added to scores."
    ),
    evidence="fresh reader: numpy for torch",
)
def alibi_numpy_array(n_heads, Tq, Tk):
    return alibi_loops(n_heads, Tq, Tk).numpy()


# Shown by: a number of heads that came before, with another default dtype.
@wrong(
    "alibi_bias",
    evidence="hunt: functools.cache on the slopes",
    hint=(
        "You keep the slopes from one call to the next, in the dtype that was "
        "the default then. The default may have changed since: make them "
        "anew, or let the dtype be part of the key."
    ),
)
def alibi_cached_slopes(n_heads, Tq, Tk):
    bias = _penalty(_slopes(n_heads), _distances(Tq, Tk))
    # What a cache filled by the checks before would give.
    return bias.float() if n_heads == 16 else bias


# 3.7 rope_inv_freq


@oracle("rope_inv_freq", evidence="pair by pair with math, float64")
def inv_freq_loops(d_head, base, method, factor, orig_max, **kw):
    theta = [base ** (-2 * i / d_head) for i in range(d_head // 2)]
    attention = 1.0
    if method == "linear":
        out = [t / factor for t in theta]
    elif method == "ntk":
        stretched = base * factor ** (d_head / (d_head - 2))
        out = [stretched ** (-2 * i / d_head) for i in range(d_head // 2)]
    elif method == "llama3":
        low = kw.get("low_freq_factor", 1)
        high = kw.get("high_freq_factor", 4)
        out = []
        for t in theta:
            wavelength = 2 * math.pi / t
            if wavelength < orig_max / high:
                out.append(t)
            elif wavelength > orig_max / low:
                out.append(t / factor)
            else:
                g = (orig_max / wavelength - low) / (high - low)
                out.append((1 - g) * t / factor + g * t)
    elif method == "yarn":

        def pair(turns):
            turned = math.log(orig_max) - math.log(turns * 2 * math.pi)
            return d_head / 2 * turned / math.log(base)

        low = max(math.floor(pair(kw.get("beta_fast", 32))), 0)
        high = min(math.ceil(pair(kw.get("beta_slow", 1))), d_head - 1)
        if high == low:
            high += 0.001
        out = []
        for i, t in enumerate(theta):
            share = min(max((i - low) / (high - low), 0), 1)
            out.append(t * (1 - share) + t / factor * share)
        attention = 1 + math.log(factor) / 10
    else:
        raise ValueError(f"no method {method}")
    return torch.tensor(out, dtype=torch.float64), attention


@right("rope_inv_freq", evidence="transformers' ROPE_INIT_FUNCTIONS, float32")
def inv_freq_transformers(d_head, base, method, factor, orig_max, **kw):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if method == "ntk":
        return _ntk(d_head, base, factor, orig_max)
    if method not in METHODS:
        raise ValueError(method)
    settings = {
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": orig_max,
        **kw,
    }
    config = types.SimpleNamespace(
        standardize_rope_params=lambda: None,
        rope_parameters=settings,
        head_dim=d_head,
        hidden_size=d_head,
        num_attention_heads=1,
    )
    return ROPE_INIT_FUNCTIONS[method](config)


@right("rope_inv_freq", evidence="tables of functions, torch in float64")
def inv_freq_table(d_head, base, method, factor, orig_max, **kw):
    return _stretched(method, d_head, base, factor, orig_max, **kw)


@right("rope_inv_freq", evidence="float32 all the way, factor as a tensor")
def inv_freq_float32(d_head, base, method, factor, orig_max, **kw):
    if method not in METHODS:
        raise ValueError(method)
    i = torch.arange(0, d_head, 2).float()
    theta = 1.0 / (base ** (i / d_head))
    one = torch.tensor(1.0)
    if method == "linear":
        return theta / factor, one
    if method == "ntk":
        return 1 / (base * factor ** (d_head / (d_head - 2))) ** (
            i / d_head
        ), one
    if method == "llama3":
        low = kw.get("low_freq_factor", 1)
        high = kw.get("high_freq_factor", 4)
        turns = orig_max / (2 * math.pi / theta)
        keep = torch.clamp((turns - low) / (high - low), 0, 1)
        return torch.lerp(theta / factor, theta, keep), one
    ends = _limited(*_ramp_ends(d_head, base, orig_max, **kw), d_head - 1)
    share = _ramp(d_head, *ends).float()
    return torch.lerp(theta, theta / factor, share), (
        0.1 * torch.tensor(factor).log() + 1
    )


@right("rope_inv_freq", evidence="numpy, np.interp for both blends")
def inv_freq_interpolated(d_head, base, method, factor, orig_max, **kw):
    pairs = np.arange(d_head // 2)
    theta = base ** (-2.0 * pairs / d_head)
    if method == "linear":
        keep, attention = np.zeros_like(theta), 1
    elif method == "ntk":
        scaled = theta * factor ** (-2.0 * pairs / (d_head - 2))
        return torch.from_numpy(scaled), 1
    elif method == "llama3":
        ends = kw.get("low_freq_factor", 1), kw.get("high_freq_factor", 4)
        turns = orig_max * theta / (2 * np.pi)
        keep, attention = np.interp(turns, ends, (0, 1)), 1
    elif method == "yarn":
        low, high = _limited(
            *_ramp_ends(d_head, base, orig_max, **kw), d_head - 1
        )
        keep = np.interp(pairs, (low, max(high, low + 0.001)), (1, 0))
        attention = np.log(factor) / 10 + 1
    else:
        raise ValueError(method)
    return torch.from_numpy(theta * (keep + (1 - keep) / factor)), attention


def _variant(wrong_method, change):
    """A function that answers one method by `change`, the others rightly."""

    def answer(d_head, base, method, factor, orig_max, **kw):
        if method != wrong_method:
            return _stretched(method, d_head, base, factor, orig_max, **kw)
        return change(d_head, base, factor, orig_max, **kw)

    return answer


@wrong(
    "rope_inv_freq",
    hint=(
        "Linear scaling multiplies your frequencies by the factor. For "
        "positions that are `factor` times as large, the angles stay in "
        "range only if the frequencies are divided by it."
    ),
    evidence="common: direction confused",
)
def inv_freq_linear_multiplied(d_head, base, method, factor, orig_max, **kw):
    return _variant("linear", lambda d, b, s, L: (_thetas(d, b) * s, 1.0))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "You return wavelengths or b^(+2i/d) instead of frequencies: all "
        "values are the inverse of what is due. The first frequency is the "
        "largest."
    ),
    evidence="common: inv_freq's name misread",
)
def inv_freq_not_inverted(d_head, base, method, factor, orig_max, **kw):
    freq, attention = _stretched(method, d_head, base, factor, orig_max, **kw)
    return 1 / freq, attention


@wrong(
    "rope_inv_freq",
    hint=(
        "Your exponents go 0/d, 1/d, 2/d, …: the 2 of 2i/d is missing, so "
        "the slow pairs are too fast."
    ),
    evidence="M144 rasbt#410",
)
def inv_freq_exponent_halved(d_head, base, method, factor, orig_max, **kw):
    return _stretched(method, d_head, math.sqrt(base), factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    hint=(
        "Your ntk multiplies the base by the factor itself. The exponent "
        "d/(d − 2) is missing, with which the slowest pair becomes exactly "
        "its linear value."
    ),
    evidence="facts: NTK base·s^(d/(d−2))",
)
def inv_freq_ntk_no_exponent(d_head, base, method, factor, orig_max, **kw):
    return _variant("ntk", lambda d, b, s, L: (_thetas(d, b * s), 1.0))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your ntk has the exponent upside down: (d − 2)/d where d/(d − 2) "
        "is due. The slowest pair should become exactly its linear value."
    ),
    evidence="plausible, cheap to write",
)
def inv_freq_ntk_exponent_inverted(
    d_head, base, method, factor, orig_max, **kw
):
    return _variant(
        "ntk", lambda d, b, s, L: (_thetas(d, b * s ** ((d - 2) / d)), 1.0)
    )(d_head, base, method, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    hint=(
        "Your ntk divides the frequencies by the factor as well. The larger "
        "base is all: the fastest pair keeps its frequency of 1."
    ),
    evidence="plausible: two remedies at once",
)
def inv_freq_ntk_and_linear(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L):
        return _ntk(d, b, s, L)[0] / s, 1.0

    return _variant("ntk", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your ntk is raised to d/(d − 2) as a whole, base and factor "
        "together. Only the factor is."
    ),
    evidence="plausible: a bracket in the wrong place",
)
def inv_freq_ntk_bracket(d_head, base, method, factor, orig_max, **kw):
    return _variant(
        "ntk", lambda d, b, s, L: (_thetas(d, (b * s) ** (d / (d - 2))), 1.0)
    )(d_head, base, method, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    hint=(
        "The ramp of your yarn is the wrong way round: fast pairs are "
        "slowed down and slow ones kept. The fast pairs know short "
        "distances and have seen all their angles: keep those."
    ),
    evidence="curriculum 3.7; common",
)
def inv_freq_yarn_inverted(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _limited(*_ramp_ends(d, b, L, **kw), d - 1)
        share = 1 - _ramp(d, low, high)
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn does not round the ends of the ramp. Round low down and "
        "high up to whole pairs, as transformers does."
    ),
    evidence="curriculum 3.7; transformers' truncate=False",
)
def inv_freq_yarn_not_rounded(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _ramp_ends(d, b, L, **kw)
        share = _ramp(d, max(low, 0), min(high, d - 1))
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn blends by the number of turns, as the paper's text does "
        "(a straight line between beta_slow and beta_fast turns). Here, as "
        "in the authors' code and in transformers, the ramp is a straight "
        "line in the pair's number."
    ),
    evidence="YaRN paper, definition of γ(r); refused by the contract",
)
def inv_freq_yarn_by_turns(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, beta_fast=32, beta_slow=1):
        keep = (_turns(d, b, L) - beta_slow) / (beta_fast - beta_slow)
        share = 1 - keep.clamp(0, 1)
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "The ramp of your yarn counts channels, 0 … d − 1, or every second "
        "number, where it has to count pairs: pair i is compared with low "
        "and high."
    ),
    evidence="plausible: arange(0, d, 2) reused",
)
def inv_freq_yarn_channels(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _limited(*_ramp_ends(d, b, L, **kw), d - 1)
        high = high + 0.001 if high == low else high
        i = torch.arange(0, d, 2, dtype=torch.float64)
        share = ((i - low) / (high - low)).clamp(0, 1)
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: a base so small that the slowest pair still makes a turn.
@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn limits the end of the ramp to d/2 − 1, the last pair. "
        "The rule, as in transformers, limits it to d − 1, so the ramp may "
        "end beyond the last pair."
    ),
    evidence="transformers' find_correction_range; a sensible guess",
)
def inv_freq_yarn_limit_pairs(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _limited(*_ramp_ends(d, b, L, **kw), d // 2 - 1)
        return _blend(_thetas(d, b), _ramp(d, low, high), s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: a ramp that begins before pair 0 or ends behind d − 1.
@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn does not limit the ramp's ends to 0 and d − 1, so in a "
        "short context the ramp begins before the first pair."
    ),
    evidence="transformers' find_correction_range",
)
def inv_freq_yarn_no_limits(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _ramp_ends(d, b, L, **kw)
        share = _ramp(d, math.floor(low), math.ceil(high))
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: a ramp of no width.
@wrong(
    "rope_inv_freq",
    hint=(
        "When both ends of the ramp fall on the same pair, your yarn "
        "divides by zero and returns NaN. Take high + 0.001 then."
    ),
    evidence="transformers' linear_ramp_factor",
)
def inv_freq_yarn_zero_width(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _limited(*_ramp_ends(d, b, L, **kw), d - 1)
        i = torch.arange(d // 2, dtype=torch.float64)
        share = ((i - low) / torch.tensor(float(high - low))).clamp(0, 1)
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "In your yarn the 2π is missing: the context holds L θ / 2π turns "
        "of a pair, not L θ."
    ),
    evidence="plausible: radians taken for turns",
)
def inv_freq_yarn_no_two_pi(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        return _yarn(d, b, s, L * 2 * math.pi, **kw)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn counts the turns in the stretched context. They are "
        "counted in the original one, orig_max positions: that is what the "
        "model has seen."
    ),
    evidence="plausible: max_position_embeddings of the new config",
)
def inv_freq_yarn_long_context(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        return _yarn(d, b, s, L * s, **kw)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "The two ends of your yarn's ramp are exchanged: low comes from "
        "beta_fast (many turns, small pair numbers), high from beta_slow."
    ),
    evidence="plausible: 'slow' and 'low' sound alike",
)
def inv_freq_yarn_ends_exchanged(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, beta_fast=32, beta_slow=1):
        return _yarn(d, b, s, L, beta_fast=beta_slow, beta_slow=beta_fast)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: beta_fast or beta_slow that are not the defaults.
@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn ignores beta_fast and beta_slow and always uses 32 and "
        "1. Take them from kw."
    ),
    evidence="M145's kind: configuration ignored",
)
def inv_freq_yarn_keywords_ignored(
    d_head, base, method, factor, orig_max, **kw
):
    return _variant("yarn", lambda d, b, s, L, **kw: _yarn(d, b, s, L))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your attention factor takes the logarithm to the base 10. ln is "
        "the natural logarithm, math.log: at factor 4 it is 1.1386."
    ),
    evidence="plausible: np.log10",
)
def inv_freq_attention_log10(d_head, base, method, factor, orig_max, **kw):
    return _variant(
        "yarn",
        lambda d, b, s, L, **kw: (
            _yarn(d, b, s, L, **kw)[0],
            0.1 * math.log10(s) + 1,
        ),
    )(d_head, base, method, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    hint=(
        "The attention factor is always 1. For yarn it is "
        "0.1 ln(factor) + 1, which is 1.1386 at factor 4: over longer texts "
        "the softmax has to be sharper."
    ),
    evidence="facts: YaRN .1·ln s+1; common",
)
def inv_freq_attention_missing(d_head, base, method, factor, orig_max, **kw):
    freq, _ = _stretched(method, d_head, base, factor, orig_max, **kw)
    return freq, 1.0


@wrong(
    "rope_inv_freq",
    hint=(
        "You return yarn's attention factor for every method. For linear, "
        "ntk and llama3 it is 1."
    ),
    evidence="plausible",
)
def inv_freq_attention_always(d_head, base, method, factor, orig_max, **kw):
    freq, _ = _stretched(method, d_head, base, factor, orig_max, **kw)
    return freq, _attention(factor)


@wrong(
    "rope_inv_freq",
    hint=(
        "Your attention factor is the square (or the inverse root) of what "
        "is due: it multiplies cosine and sine, and the scores get its "
        "square by themselves. Return 0.1 ln(factor) + 1 as it is."
    ),
    evidence="YaRN paper: √(1/t) = 0.1 ln s + 1; t itself returned",
)
def inv_freq_attention_squared(d_head, base, method, factor, orig_max, **kw):
    freq, attention = _stretched(method, d_head, base, factor, orig_max, **kw)
    return freq, attention**2


@wrong(
    "rope_inv_freq",
    hint=(
        "You multiply the frequencies by the attention factor. It is for "
        "cosine and sine; return it as the second value and leave the "
        "frequencies alone."
    ),
    evidence="plausible: attention_scaling applied too early",
)
def inv_freq_attention_in_frequencies(
    d_head, base, method, factor, orig_max, **kw
):
    freq, attention = _stretched(method, d_head, base, factor, orig_max, **kw)
    return freq * attention, attention


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 is the wrong way round: pairs with many turns are "
        "slowed down and slow ones kept. Keep the fast ones, they have seen "
        "all their angles."
    ),
    evidence="plausible: wavelength and frequency confused",
)
def inv_freq_llama3_inverted(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        low, high = low_freq_factor, high_freq_factor
        keep = ((_turns(d, b, L) - low) / (high - low)).clamp(0, 1)
        return _blend(_thetas(d, b), keep, s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Between its two limits your llama3 blends the wrong way: g is 1 at "
        "high_freq_factor turns, where θ is kept, so g belongs to θ and "
        "1 − g to θ/s."
    ),
    evidence="plausible: weights of the blend exchanged",
)
def inv_freq_llama3_blend_exchanged(
    d_head, base, method, factor, orig_max, **kw
):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        low, high = low_freq_factor, high_freq_factor
        theta, turns = _thetas(d, b), _turns(d, b, L)
        g = (turns - low) / (high - low)
        blend = torch.where((turns > low) & (turns < high), 1 - g, g)
        return _blend(theta, 1 - blend.clamp(0, 1), s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 has no blend: it keeps the pairs between the two limits "
        "as they are. There, g = (turns − low)/(high − low) mixes θ and θ/s."
    ),
    evidence="plausible: one threshold instead of two",
)
def inv_freq_llama3_no_blend(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        theta = _thetas(d, b)
        fast = _turns(d, b, L) > low_freq_factor
        return torch.where(fast, theta, theta / s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 has no blend: it slows the pairs between the two "
        "limits down by the full factor. Only those below low_freq_factor "
        "turns become θ/s; in between, g mixes θ and θ/s."
    ),
    evidence="plausible: the upper threshold for both",
)
def inv_freq_llama3_upper_only(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        theta = _thetas(d, b)
        fast = _turns(d, b, L) > high_freq_factor
        return torch.where(fast, theta, theta / s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 blends along the wavelength. The line is straight in "
        "the number of turns, which is one over the wavelength."
    ),
    evidence="plausible: interpolation in the other variable",
)
def inv_freq_llama3_by_wavelength(
    d_head, base, method, factor, orig_max, **kw
):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        waves = 1 / _turns(d, b, L)
        long, short = 1 / low_freq_factor, 1 / high_freq_factor
        share = ((waves - short) / (long - short)).clamp(0, 1)
        return _blend(_thetas(d, b), share, s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "In your llama3 the 2π is missing: the context holds L θ / 2π turns "
        "of a pair, not L θ."
    ),
    evidence="plausible: radians taken for turns",
)
def inv_freq_llama3_no_two_pi(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        return _llama3(d, b, s, L * 2 * math.pi, **kw)

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: limits that are not the defaults.
@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 ignores low_freq_factor and high_freq_factor and "
        "always uses 1 and 4. Take them from kw."
    ),
    evidence="M145's kind: configuration ignored",
)
def inv_freq_llama3_keywords_ignored(
    d_head, base, method, factor, orig_max, **kw
):
    return _variant("llama3", lambda d, b, s, L, **kw: _llama3(d, b, s, L))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 is yarn. The published Llama models have a rule of "
        "their own, with limits in turns and an attention factor of 1."
    ),
    evidence="facts: 'Llama-3.1 uses YaRN' in circulation",
)
def inv_freq_llama3_is_yarn(d_head, base, method, factor, orig_max, **kw):
    return _variant("llama3", lambda d, b, s, L, **kw: _yarn(d, b, s, L))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "llama3 is not there yet, or it raises. It is a blend like yarn's, "
        "along the number of turns."
    ),
    evidence="a part left out",
)
def inv_freq_llama3_missing(d_head, base, method, factor, orig_max, **kw):
    if method == "llama3":
        raise ValueError(method)
    return _stretched(method, d_head, base, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn is linear scaling. It keeps the fast pairs, slows down "
        "the slow ones, and has an attention factor of its own."
    ),
    evidence="a placeholder left in place",
)
def inv_freq_yarn_is_linear(d_head, base, method, factor, orig_max, **kw):
    return _variant("yarn", lambda d, b, s, L, **kw: _linear(d, b, s, L))(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "yarn is not there yet, or it raises. It is a blend like llama3's, "
        "along the pair's number, and has an attention factor."
    ),
    evidence="a part left out",
)
def inv_freq_yarn_missing(d_head, base, method, factor, orig_max, **kw):
    if method == "yarn":
        raise ValueError(method)
    return _stretched(method, d_head, base, factor, orig_max, **kw)


# Shown by: another method's name.
@wrong(
    "rope_inv_freq",
    hint=(
        "A method that does not exist returns plain or linear frequencies. "
        "A typing error in a configuration would go unnoticed: raise a "
        "ValueError."
    ),
    evidence="contract of 3.7: an else that takes all",
)
def inv_freq_any_method(d_head, base, method, factor, orig_max, **kw):
    method = method if method in METHODS else "linear"
    return _stretched(method, d_head, base, factor, orig_max, **kw)


# Shown by: another method's name.
@wrong(
    "rope_inv_freq",
    hint=(
        "A method that does not exist raises a KeyError (a table was asked "
        "for it) or something else. Raise a ValueError that names it."
    ),
    evidence="common: a dict of functions",
)
def inv_freq_key_error(d_head, base, method, factor, orig_max, **kw):
    return METHODS[method](d_head, base, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    evidence="hunt: half-way through",
    hint=(
        "ntk, yarn and llama3 return the frequencies as they were trained, θ "
        "itself. Each of them slows down some pairs: look at the first and "
        "the last pair of each."
    ),
)
def inv_freq_unscaled(d_head, base, method, factor, orig_max, **kw):
    if method not in METHODS:
        raise ValueError(method)
    attention = _attention(factor) if method == "yarn" else 1.0
    scale = factor if method == "linear" else 1.0
    return _thetas(d_head, base) / scale, attention


@wrong(
    "rope_inv_freq",
    hint=(
        "All methods return the linear frequencies. Each method slows down "
        "other pairs: look at the first and the last pair of each."
    ),
    evidence="common: method ignored",
)
def inv_freq_always_linear(d_head, base, method, factor, orig_max, **kw):
    if method not in METHODS:
        raise ValueError(method)
    attention = _attention(factor) if method == "yarn" else 1.0
    return _thetas(d_head, base) / factor, attention


@wrong(
    "rope_inv_freq",
    hint=(
        "Each frequency stands twice (once a channel). One a pair is due: "
        "d/2 numbers."
    ),
    evidence="common: the table for rotate_half returned",
)
def inv_freq_per_channel(d_head, base, method, factor, orig_max, **kw):
    freq, attention = _stretched(method, d_head, base, factor, orig_max, **kw)
    return torch.cat((freq, freq)), attention


@wrong(
    "rope_inv_freq",
    hint=(
        "You return the frequencies alone. Two things are due: the tensor "
        "and the attention factor."
    ),
    evidence="common: the second value forgotten",
)
def inv_freq_alone(d_head, base, method, factor, orig_max, **kw):
    return _stretched(method, d_head, base, factor, orig_max, **kw)[0]


@wrong(
    "rope_inv_freq",
    hint=(
        "Your yarn does not limit the ramp: before low the share of θ/s is "
        "negative and beyond high it exceeds 1. Clamp it to 0 … 1."
    ),
    evidence="fresh reader: clamp forgotten",
)
def inv_freq_yarn_not_clamped(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, **kw):
        low, high = _limited(*_ramp_ends(d, b, L, **kw), d - 1)
        high = high + 0.001 if high == low else high
        share = (torch.arange(d // 2).double() - low) / (high - low)
        return _blend(_thetas(d, b), share, s), _attention(s)

    return _variant("yarn", change)(
        d_head, base, method, factor, orig_max, **kw
    )


@wrong(
    "rope_inv_freq",
    hint=(
        "Your llama3 does not limit the blend: g is below 0 for slow pairs "
        "and above 1 for fast ones. Clamp it to 0 … 1."
    ),
    evidence="fresh reader: clamp forgotten",
)
def inv_freq_llama3_not_clamped(d_head, base, method, factor, orig_max, **kw):
    def change(d, b, s, L, low_freq_factor=1, high_freq_factor=4):
        keep = _turns(d, b, L) - low_freq_factor
        keep = keep / (high_freq_factor - low_freq_factor)
        return _blend(_thetas(d, b), 1 - keep, s), 1.0

    return _variant("llama3", change)(
        d_head, base, method, factor, orig_max, **kw
    )


# Shown by: the same arguments with other keywords.
@wrong(
    "rope_inv_freq",
    evidence="hunt: frequencies kept by the first five arguments",
    hint=(
        "You keep results by some of the arguments only, and hand out the old "
        "one although a keyword or orig_max is another. A cache's key has to "
        "hold all that the result depends on."
    ),
)
def inv_freq_cached(d_head, base, method, factor, orig_max, **kw):
    # What a cache filled by the checks before would give.
    if (d_head, method, factor) == (8, "yarn", 4.0):
        orig_max = 2048
    kw = {} if d_head == 128 else kw
    return inv_freq_loops(d_head, base, method, factor, orig_max, **kw)


# Shown by: methods of transformers that the contract does not list.
@wrong(
    "rope_inv_freq",
    evidence="hunt: transformers' table of methods",
    hint=(
        'You also take "default" or "dynamic", as transformers does. The '
        "contract lists four methods; any other is a ValueError."
    ),
)
def inv_freq_more_methods(d_head, base, method, factor, orig_max, **kw):
    if method == "default":
        method, factor = "linear", 1.0
    method = "ntk" if method == "dynamic" else method
    return inv_freq_loops(d_head, base, method, factor, orig_max, **kw)


# Shown by: capital letters.
@wrong(
    "rope_inv_freq",
    evidence="hunt: method.lower()",
    hint=(
        "You take other spellings, such as capital letters, as well. The "
        "contract names four words; any other method is a ValueError."
    ),
)
def inv_freq_any_case(d_head, base, method, factor, orig_max, **kw):
    method = method.lower()
    return inv_freq_loops(d_head, base, method, factor, orig_max, **kw)


@wrong(
    "rope_inv_freq",
    evidence="hunt: np.log2",
    hint=(
        "The attention factor has a logarithm to base 2; ln is the natural "
        "one. At factor 4 it is 1.1386."
    ),
)
def inv_freq_attention_log2(d_head, base, method, factor, orig_max, **kw):
    freq, scale = inv_freq_loops(d_head, base, method, factor, orig_max, **kw)
    return freq, 0.1 * math.log2(factor) + 1 if method == "yarn" else scale


# Shown by: an unknown method with factor 1.
@wrong(
    "rope_inv_freq",
    evidence="hunt: an early way out at factor 1",
    hint=(
        "With factor 1 you return θ before you look at the method, so an "
        "unknown one passes. Refuse it first."
    ),
)
def inv_freq_factor_one_first(d_head, base, method, factor, orig_max, **kw):
    if factor == 1:
        return _thetas(d_head, base), 1.0
    return _stretched(method, d_head, base, factor, orig_max, **kw)


# 3.8 rope_angle_error


@oracle("rope_angle_error", evidence="one pair at a time, rounded by torch")
def angle_loops(pos, dtype, d_head=64, base=1e4):
    def rounded(value):
        return torch.tensor(value, dtype=torch.float64).to(dtype).item()

    errors = []
    for i in range(d_head // 2):
        theta = base ** (-2 * i / d_head)
        # The product of two rounded numbers is exact in float64 for every
        # dtype up to float32, so it is rounded once.
        short = rounded(rounded(float(pos)) * rounded(theta))
        errors.append(abs(short - pos * theta))
    return max(errors)


@right("rope_angle_error", evidence="K35 outer product of 0-d tensors")
def angle_tensors(pos, dtype, d_head=64, base=1e4):
    theta = torch.pow(base, -_exponents(d_head))
    short = torch.mul(torch.tensor([pos]).to(dtype), theta.to(dtype))
    return torch.dist(short.double(), pos * theta, p=math.inf)


@right("rope_angle_error", evidence="numpy for the exact part; 1/b^x")
def angle_numpy(pos, dtype, d_head=64, base=1e4):
    theta = 1 / base ** (np.arange(0, d_head, 2) / d_head)
    short = torch.from_numpy(theta).to(dtype) * torch.tensor(pos).to(dtype)
    return float(np.abs(short.double().numpy() - pos * theta).max())


@right("rope_angle_error", evidence="float32 product, then rounded")
def angle_wide_product(pos, dtype, d_head=64, base=1e4):
    theta = torch.exp(-math.log(base) * _exponents(d_head))
    a = torch.tensor(float(pos), dtype=torch.float64).to(dtype).double()
    short = (a * theta.to(dtype).double()).to(dtype).double()
    error = (short - pos * theta).abs().max().item()
    # exp and pow differ in the last digit: far below what is judged.
    return error if dtype != torch.float64 else round(error, 9)


@right("rope_angle_error", evidence="largest of both signs")
def angle_both_signs(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    gap = _short(pos, theta, dtype) - pos * theta
    return max(gap.max().item(), -gap.min().item())


@wrong(
    "rope_angle_error",
    hint=(
        "You fold the error into a turn (modulo 2π, or the shorter way "
        "round). Here it is taken as it is: an angle that is off by 7 is "
        "off by 7."
    ),
    evidence="curriculum 3.8: not folded",
)
def angle_folded(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    gap = _short(pos, theta, dtype) - pos * theta
    return torch.atan2(gap.sin(), gap.cos()).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You take the error modulo 2π. An error of more than a turn is "
        "still that large: return it as it is."
    ),
    evidence="curriculum 3.8: not folded",
)
def angle_modulo(pos, dtype, d_head=64, base=1e4):
    return angle_loops(pos, dtype, d_head, base) % (2 * math.pi)


@wrong(
    "rope_angle_error",
    hint=(
        "The position is not rounded to dtype: you multiply by a Python "
        "number or a wider tensor. In bfloat16 the position 257 does not "
        "exist."
    ),
    evidence="contract of 3.8: three roundings",
)
def angle_exact_position(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    short = (pos * theta.to(dtype).double()).to(dtype).double()
    return (short - pos * theta).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "The frequencies are not rounded to dtype: only the position and "
        "the product are. Convert θ as well before you multiply."
    ),
    evidence="contract of 3.8: three roundings",
)
def angle_exact_frequency(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    place = torch.tensor(float(pos)).to(dtype).double()
    short = (place * theta).to(dtype).double()
    return (short - pos * theta).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "The product is not rounded to dtype: you widen before you "
        "multiply. Multiply two tensors of that dtype, then widen."
    ),
    evidence="contract of 3.8: three roundings",
)
def angle_exact_product(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    place = torch.tensor(float(pos), dtype=torch.float64).to(dtype).double()
    short = place * theta.to(dtype).double()
    return (short - pos * theta).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "Only the finished angle is rounded to dtype. In a model that runs "
        "in that dtype, position and frequency are rounded before they are "
        "multiplied."
    ),
    evidence="contract of 3.8: three roundings",
)
def angle_rounded_once(pos, dtype, d_head=64, base=1e4):
    exact = pos * base ** -_exponents(d_head)
    return (exact.to(dtype).double() - exact).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "The frequencies are computed in dtype, exponent and power "
        "included, which adds roundings of its own. Compute θ in float64 "
        "and round it once."
    ),
    evidence="M132 UNI-D2#6; the contract fixes where roundings are",
)
def angle_frequency_in_dtype(pos, dtype, d_head=64, base=1e4):
    i = torch.arange(0, d_head, 2).to(dtype) / d_head
    short = torch.tensor(float(pos)).to(dtype) * (1 / base**i)
    exact = pos * base ** -_exponents(d_head)
    return (short.double() - exact).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "The exponents are rounded to dtype before the power is taken. "
        "Compute θ in float64 and round it once."
    ),
    evidence="M132's kind: arange(…, dtype=dtype)",
)
def angle_exponent_in_dtype(pos, dtype, d_head=64, base=1e4):
    theta = base ** (-torch.arange(0, d_head, 2, dtype=dtype) / d_head)
    short = torch.tensor(float(pos)).to(dtype) * theta
    exact = pos * base ** -_exponents(d_head)
    return (short.double() - exact).abs().max().item()


# Shown by: float32 and float64.
@wrong(
    "rope_angle_error",
    hint=(
        "What you take for exact is float32 (torch's default dtype), so the "
        "errors of float32 come out wrong, and those of float64 are not 0. "
        "Make the frequencies with dtype=torch.float64."
    ),
    evidence="curriculum's precision convention",
)
def angle_float32_exact(pos, dtype, d_head=64, base=1e4):
    theta = (base ** -_exponents(d_head)).float()
    short = torch.tensor(float(pos)).to(dtype) * theta.to(dtype)
    return (short.float() - pos * theta).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You subtract in dtype: the exact angle is rounded before the "
        "difference is taken, which hides most of the error. Widen the "
        "short angle to float64 first."
    ),
    evidence="common; plausible",
)
def angle_difference_in_dtype(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    short = torch.tensor(float(pos)).to(dtype) * theta.to(dtype)
    return (short - (pos * theta).to(dtype)).abs().max().item()


@wrong(
    "rope_angle_error",
    hint="You average over the pairs. The largest error is asked for.",
    evidence="common",
)
def angle_mean(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    gap = _short(pos, theta, dtype) - pos * theta
    return gap.abs().mean().item()


# Shown by: positions at which the worst error is negative.
@wrong(
    "rope_angle_error",
    hint=(
        "You take the largest signed difference, so errors below 0 do not "
        "count. Take absolute values first."
    ),
    evidence="common",
)
def angle_signed(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    return (_short(pos, theta, dtype) - pos * theta).max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You look at the first pair only. It has the largest angle, but its "
        "θ is exactly 1 and is not rounded at all: another pair may be "
        "worse."
    ),
    evidence="plausible",
)
def angle_first_pair(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    return (_short(pos, theta, dtype) - pos * theta)[0].abs().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You compare cosines (or sines) instead of angles, so no error can "
        "exceed 2. Radians are asked for."
    ),
    evidence="plausible",
)
def angle_cosines(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    short = _short(pos, theta, dtype)
    return (short.cos() - (pos * theta).cos()).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You divide by the exact angle. The error is asked for in radians, "
        "not as a fraction."
    ),
    evidence="common",
)
def angle_relative(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    exact = pos * theta
    gap = (_short(pos, theta, dtype) - exact).abs()
    return (gap / exact.clamp(min=1e-30)).max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "The error is always 0: nothing is rounded to dtype, or both sides "
        "are. Compare angles made in dtype with exact ones in float64."
    ),
    evidence="plausible: dtype ignored",
)
def angle_dtype_ignored(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    return (_short(pos, theta, torch.float64) - pos * theta).abs().max().item()


@wrong(
    "rope_angle_error",
    hint="You return degrees; radians are asked for.",
    evidence="plausible",
)
def angle_degrees(pos, dtype, d_head=64, base=1e4):
    return math.degrees(angle_loops(pos, dtype, d_head, base))


@wrong(
    "rope_angle_error",
    hint=(
        "You round the period b^(2i/d) and divide the position by it. Round "
        "the frequency b^(−2i/d) itself, and multiply."
    ),
    evidence="the other way of writing the angle; the contract fixes one",
)
def angle_divides(pos, dtype, d_head=64, base=1e4):
    period = base ** _exponents(d_head)
    short = torch.tensor(float(pos)).to(dtype) / period.to(dtype)
    return (short.double() - pos / period).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "Your exponents go 0/d, 1/d, 2/d, …: the 2 of 2i/d is missing, so "
        "there are other frequencies than RoPE's."
    ),
    evidence="M144 rasbt#410",
)
def angle_exponent_halved(pos, dtype, d_head=64, base=1e4):
    return angle_loops(pos, dtype, d_head, math.sqrt(base))


# Shown by: a width other than 64.
@wrong(
    "rope_angle_error",
    hint="d_head is ignored: 64 stands in the code. Use the argument.",
    evidence="M145's kind",
)
def angle_width_ignored(pos, dtype, d_head=64, base=1e4):
    return (
        angle_loops(pos, dtype, 64, base)
        if d_head > 4
        else angle_loops(pos, dtype, d_head, base)
    )


# Shown by: a base other than 10,000.
@wrong(
    "rope_angle_error",
    hint="base is ignored: 10,000 stands in the code. Use the argument.",
    evidence="M145 common",
)
def angle_base_ignored(pos, dtype, d_head=64, base=1e4):
    return angle_loops(pos, dtype, d_head)


@wrong(
    "rope_angle_error",
    hint=(
        "What you take for exact is computed from the frequencies that were "
        "rounded already, so their error does not count. Keep the float64 "
        "frequencies for the exact angle and round a copy."
    ),
    evidence="fresh reader: theta overwritten by its rounded copy",
)
def angle_exact_from_rounded(pos, dtype, d_head=64, base=1e4):
    theta = (base ** -_exponents(d_head)).to(dtype)
    short = _short(pos, theta, dtype)
    return (short - pos * theta.double()).abs().max().item()


@wrong(
    "rope_angle_error",
    hint=(
        "You take the difference modulo 2π, which turns an error of −1 into "
        "5.28. Here it is taken as it is, without its sign."
    ),
    evidence="curriculum 3.8: not folded; the remainder of a negative number",
)
def angle_remainder(pos, dtype, d_head=64, base=1e4):
    theta = base ** -_exponents(d_head)
    gap = _short(pos, theta, dtype) - pos * theta
    return (gap % (2 * math.pi)).max().item()


# Shown by: a head of one pair, whose angle is exact.
@wrong(
    "rope_angle_error",
    evidence="hunt: range(d_head // 2 + 1)",
    hint=(
        "You count one pair too many: i runs from 0 to d/2 − 1. The pair that "
        "is not there has an error, too."
    ),
)
def angle_one_pair_too_many(pos, dtype, d_head=64, base=1e4):
    i = torch.arange(d_head // 2 + 1, dtype=torch.float64)
    theta = base ** (-2 * i / d_head)
    return (_short(pos, theta, dtype) - pos * theta).abs().max().item()


LEFT_OUT = {
    "M112": "no module here",
    "M113": "no module here",
    "M114": "no module here",
    "M116": "no cache here",
    "M118": "state in eval mode needs a module; 'same again' covers functions",
    "M133": "initialisation comes with the GPT (lesson 5)",
    "M138": "cached decoding is lesson 6",
    "M141": "values are not an argument here; judged in lessons 2 and 6",
    "M142": "one tensor is rotated a call, so neither can be forgotten",
    "M151": "cached decoding is lesson 6",
    "M153": "cached decoding is lesson 6",
    "M154": "cached decoding is lesson 6",
    "M156": "partial rotary is no exercise of this course",
    "M300": "cached decoding is lesson 6",
    "K37": "no score is computed here",
    "K41": "no buffer here",
}
