"""Other people's answers to lesson 6: KV cache and FlashAttention.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
mistake overrides the one part of a right answer that it gets wrong.

Lines that do not apply: M317 (joining everything at each step is right, and
only slow); M319 and M158 (rows of a batch have one length here); M309, M154
and the other lines of E10 (learned positions, nothing is rotated); M346 (no
dropout); M362 (the width of a head is an argument).
"""

import collections
import functools
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autograder.answers import oracle, right, wrong

# 6.1 kv_cache_bytes


@oracle("kv_cache_bytes", evidence="the size of real tensors on meta")
def kv_cache_bytes_tensors(
    n_layers, n_kv_heads, d_head, seq_len, batch=1, dtype_size=2
):
    dtype = {1: torch.int8, 2: torch.half, 4: torch.float, 8: torch.double}
    total = 0
    for _ in range(n_layers):
        for _ in ("keys", "values"):
            total += torch.empty(
                batch,
                n_kv_heads,
                seq_len,
                d_head,
                dtype=dtype[dtype_size],
                device="meta",
            ).nbytes
    return total


def _bytes(L, G, Dh, T, B=1, size=2):
    return 2 * L * G * Dh * T * B * size


@right("kv_cache_bytes", evidence="K83 a float")
def kv_cache_bytes_float(
    n_layers, n_kv_heads, d_head, seq_len, batch=1, dtype_size=2
):
    return float(
        _bytes(n_layers, n_kv_heads, d_head, seq_len, batch, dtype_size)
    )


@right("kv_cache_bytes", evidence="K83 a numpy integer")
def kv_cache_bytes_numpy(*sizes, batch=1, dtype_size=2):
    sizes = [*sizes, batch, dtype_size][:6] if len(sizes) == 4 else sizes
    if len(sizes) == 5:
        sizes = [*sizes, dtype_size]
    return 2 * np.prod(np.array(sizes, dtype=np.int64))


@right("kv_cache_bytes", evidence="K03 token by token of a small cache")
def kv_cache_bytes_tokens(
    n_layers, n_kv_heads, d_head, seq_len, batch=1, dtype_size=2
):
    token = sum(d_head + d_head for _ in range(n_kv_heads)) * dtype_size
    return sum(token * n_layers for _ in range(min(seq_len, 1))) * (
        seq_len * batch
    )


def _bytes_wrong(evidence, hint):
    return wrong("kv_cache_bytes", evidence=evidence, hint=hint)


@_bytes_wrong(
    "M360; curriculum 6.1",
    "It is half of what is due: a token leaves two vectors in each head, a "
    "key and a value. Count what attention reads at the next step.",
)
def kv_cache_bytes_keys_only(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, dtype_size) // 2


@_bytes_wrong(
    "facts.md: the cache holds 'hidden states'; common",
    "You count three vectors a token. Queries are used at once and never "
    "again: which two of the three does a later token look at?",
)
def kv_cache_bytes_queries_too(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, dtype_size) // 2 * 3


@_bytes_wrong(
    "M363 layers forgotten",
    "The number of layers is missing. Every layer has keys and values of "
    "its own.",
)
def kv_cache_bytes_one_layer(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(1, G, Dh, T, batch, dtype_size)


@_bytes_wrong(
    "facts.md: a 7B example that omits x32 heads",
    "The number of heads is missing: you count one key-value head a layer. "
    "A published example has this error, and is off by a factor of 32.",
)
def kv_cache_bytes_one_head(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, 1, Dh, T, batch, dtype_size)


@_bytes_wrong(
    "M363 batch forgotten",
    "The batch is ignored. Each sequence has other tokens, and so a cache of "
    "its own.",
)
def kv_cache_bytes_no_batch(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, 1, dtype_size)


@_bytes_wrong(
    "M363 bytes of the dtype",
    "dtype_size is ignored: you always count 2 bytes a number.",
)
def kv_cache_bytes_two_bytes(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, 2)


@_bytes_wrong(
    "M363; float32 assumed",
    "By default you count 4 bytes a number. The default here is 2, as "
    "models are served in half precision.",
)
def kv_cache_bytes_float32(L, G, Dh, T, batch=1, dtype_size=4):
    return _bytes(L, G, Dh, T, batch, dtype_size)


@_bytes_wrong(
    "M363 elements",
    "You count numbers. Multiply by the bytes that one number takes.",
)
def kv_cache_bytes_elements(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, 1)


@_bytes_wrong(
    "bits; common",
    "You count bits, eight times what is due: dtype_size is in bytes already.",
)
def kv_cache_bytes_bits(L, G, Dh, T, batch=1, dtype_size=2):
    return 8 * _bytes(L, G, Dh, T, batch, dtype_size)


@_bytes_wrong(
    "M363 GB and GiB",
    "You return MiB or another large unit. The contract asks for bytes, "
    "which leaves no doubt about 1,000 or 1,024.",
)
def kv_cache_bytes_mebibytes(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, dtype_size) / 2**20


@_bytes_wrong(
    "cache and scores confused; common",
    "It grows with the square of the length, as scores do. A cache keeps "
    "vectors, one pair a token and head: twice the text, twice the cache.",
)
def kv_cache_bytes_quadratic(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T * T, batch, dtype_size)


@_bytes_wrong(
    "off by one; plausible",
    "One token is missing. Keys and values of all seq_len tokens are kept, "
    "the newest included.",
)
def kv_cache_bytes_without_newest(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G, Dh, T - 1, batch, dtype_size)


@_bytes_wrong(
    "width taken for d_model; M362's kind",
    "You multiply by the number of heads twice, as if d_head were the width "
    "of all heads together. It is the width of one.",
)
def kv_cache_bytes_heads_twice(L, G, Dh, T, batch=1, dtype_size=2):
    return _bytes(L, G * G, Dh, T, batch, dtype_size)


@_bytes_wrong(
    "precision: float32",
    "You compute in float32, which holds seven digits. Caches have more "
    "bytes than that: use Python's integers.",
)
def kv_cache_bytes_single(L, G, Dh, T, batch=1, dtype_size=2):
    sizes = 2, L, G, Dh, T, batch, dtype_size
    return float(np.prod(np.array(sizes, dtype=np.float32)))


@_bytes_wrong(
    "default of batch; plausible",
    "By default you count two sequences. The default of batch is 1.",
)
def kv_cache_bytes_two_sequences(L, G, Dh, T, batch=2, dtype_size=2):
    return _bytes(L, G, Dh, T, batch, dtype_size)


# 6.2 decode_cost


@oracle("decode_cost", evidence="counted pair by pair")
def decode_cost_counted(N):
    forwards = pairs = kept = 0
    for n in range(1, min(N, 200) + 1):
        forwards += n
        pairs += sum(range(1, n + 1))
        kept += n
    if N > 200:  # sums of powers, by Faulhaber
        forwards = kept = (N * N + N) // 2
        pairs = (N**3 + 3 * N**2 + 2 * N) // 6
    return {
        "forwards_no_cache": forwards,
        "forwards_cache": N,
        "pairs_no_cache": pairs,
        "pairs_cache": kept,
    }


def _decode(N, **other):
    return {
        "forwards_no_cache": math.comb(N + 1, 2),
        "forwards_cache": N,
        "pairs_no_cache": math.comb(N + 2, 3),
        "pairs_cache": math.comb(N + 1, 2),
    } | other


@right("decode_cost", evidence="K83 numpy integers, keys in other order")
def decode_cost_numpy(N):
    n = np.arange(1, N + 1)
    return {
        "pairs_cache": n.sum(),
        "pairs_no_cache": (n * (n + 1) // 2).sum(),
        "forwards_cache": np.ones_like(n).sum(),
        "forwards_no_cache": n.cumsum()[-1] if N else 0,
    }


@right("decode_cost", evidence="K83 floats; binomial coefficients")
def decode_cost_floats(N):
    return {key: float(value) for key, value in _decode(N).items()}


def _decode_wrong(evidence, hint):
    return wrong("decode_cost", evidence=evidence, hint=hint)


@_decode_wrong(
    "facts.md: 'prints 5050 vs 100', whose naive path is cached already",
    "You count the cached path without a cache, too: forwards_no_cache is N. "
    "Without a cache every step pushes the whole text through the model "
    "again.",
)
def decode_cost_naive_is_cached(N):
    return _decode(N, forwards_no_cache=N)


@_decode_wrong(
    "common",
    "forwards_no_cache is N²: you take every step for as long as the last. "
    "Step n has n tokens.",
)
def decode_cost_square(N):
    return _decode(N, forwards_no_cache=N * N)


@_decode_wrong(
    "common",
    "With a cache the old tokens are not pushed through the model any more: "
    "forwards_cache counts one token a step.",
)
def decode_cost_cache_repeats(N):
    return _decode(N, forwards_cache=N * (N + 1) // 2)


@_decode_wrong(
    "M355 dense counting",
    "pairs_no_cache counts all n² pairs of a step. Asked for are those that "
    "a query may see: the first of n queries sees one key, not n.",
)
def decode_cost_dense_pairs(N):
    return _decode(N, pairs_no_cache=N * (N + 1) * (2 * N + 1) // 6)


@_decode_wrong(
    "common",
    "pairs_no_cache is that of the last step alone. Every step before it "
    "looked at pairs, too, and they are all computed anew.",
)
def decode_cost_last_step(N):
    return _decode(N, pairs_no_cache=N * (N + 1) // 2)


@_decode_wrong(
    "pairs of the last step; common",
    "Both counts of pairs are those of the last step alone. Add up all steps, "
    "as for the tokens.",
)
def decode_cost_last_pairs(N):
    return _decode(N, pairs_no_cache=N * (N + 1) // 2, pairs_cache=N)


@_decode_wrong(
    "common",
    "pairs_cache counts one pair a step. The one new query looks at n keys: "
    "a cache saves projections, not looks.",
)
def decode_cost_one_pair(N):
    return _decode(N, pairs_cache=N)


@_decode_wrong(
    "own key forgotten; common",
    "The query's own key is missing: at step n there are n keys, n − 1 old "
    "ones and its own.",
)
def decode_cost_without_own_key(N):
    return _decode(
        N,
        pairs_cache=N * (N - 1) // 2,
        pairs_no_cache=math.comb(N + 1, 3),
    )


@_decode_wrong(
    "range(N); common",
    "Your steps run from 0 to N − 1, so the longest one is missing. Step n "
    "has n tokens, and n goes up to N.",
)
def decode_cost_from_zero(N):
    return {
        "forwards_no_cache": N * (N - 1) // 2,
        "forwards_cache": N,
        "pairs_no_cache": math.comb(N + 1, 3),
        "pairs_cache": N * (N - 1) // 2,
    }


@_decode_wrong(
    "swapped; plausible",
    "The numbers with and without a cache are swapped: a cache is there to "
    "save work.",
)
def decode_cost_swapped(N):
    counts = _decode(N)
    for kind in ("forwards", "pairs"):
        one, other = f"{kind}_cache", f"{kind}_no_cache"
        counts[one], counts[other] = counts[other], counts[one]
    return counts


@_decode_wrong(
    "one step for all; plausible",
    "You count the last step alone: N tokens without a cache, one with it. "
    "Asked for is the sum over all N steps.",
)
def decode_cost_final_step_only(N):
    return {
        "forwards_no_cache": N,
        "forwards_cache": 1,
        "pairs_no_cache": N * (N + 1) // 2,
        "pairs_cache": N,
    }


@_decode_wrong(
    "keys of the dict; common",
    "The dict has other keys than the contract. Copy the four names from "
    "there.",
)
def decode_cost_other_keys(N):
    counts = _decode(N)
    return {key.replace("_no_cache", "_naive"): counts[key] for key in counts}


@_decode_wrong(
    "precision: float32",
    "You add up in float32, which holds seven digits, and the sums have "
    "more: use integers or float64.",
)
def decode_cost_single(N):
    n = torch.arange(1, N + 1, dtype=torch.float32)
    return _decode(N, pairs_no_cache=(n * (n + 1) / 2).sum().item())


@_decode_wrong(
    "no dict; common",
    "You return the four numbers without their names. A dict with the keys "
    "of the contract is due.",
)
def decode_cost_numbers(N):
    return tuple(_decode(N).values())


@_decode_wrong(
    "recursion; plausible",
    "You call yourself once a step, and Python stops at a depth of about "
    "1,000. Use a loop, sum or a closed form.",
)
def decode_cost_recursive(N):
    def triangle(n):
        return n + triangle(n - 1) if n else 0

    return _decode(N, forwards_no_cache=triangle(N))


@_decode_wrong(
    "the half forgotten; common",
    "You multiply N by N + 1: the sum of 1 to N is half of that.",
)
def decode_cost_not_halved(N):
    square = N * (N + 1)
    return _decode(
        N,
        forwards_no_cache=square,
        pairs_no_cache=square * (N + 2) // 3,
        pairs_cache=square,
    )


@_decode_wrong(
    "operator precedence; plausible",
    "You divide before you multiply: N // 2 drops the half of an odd N. "
    "N·(N + 1) is even, so divide the product.",
)
def decode_cost_halved_first(N):
    half = N // 2 * (N + 1)
    return _decode(N, forwards_no_cache=half, pairs_cache=half)


# 6.2 hbm_accesses


@oracle("hbm_accesses", evidence="exact fractions")
def hbm_accesses_fractions(N, d, M):
    from fractions import Fraction

    flash = Fraction(N) ** 2 * Fraction(d) ** 2 / Fraction(M)
    return {"standard": N * (N + d), "flash": float(flash)}


@right("hbm_accesses", evidence="K83 numpy, keys in other order")
def hbm_accesses_numpy(N, d, M):
    sizes = np.array([N, d], dtype=float)
    return {
        "flash": np.float64(sizes.prod() ** 2 / M),
        "standard": np.float64(N * sizes.sum()),
    }


@right("hbm_accesses", evidence="tiles times what each of them reads")
def hbm_accesses_tiles(N, d, M):
    return dict(standard=N * N + d * N, flash=(N * d / M) * (N * d))


def _hbm(N, d, M, **other):
    return {"standard": N * d + N * N, "flash": N * N * d * d / M} | other


def _hbm_wrong(evidence, hint):
    return wrong("hbm_accesses", evidence=evidence, hint=hint)


@_hbm_wrong(
    "integer division; common",
    "flash is rounded down. Use / for a quotient that need not be whole.",
)
def hbm_accesses_floor(N, d, M):
    return _hbm(N, d, M, flash=N * N * d * d // M)


@_hbm_wrong(
    "common",
    "standard lacks N·d: queries, keys, values and output are moved as well "
    "as the scores.",
)
def hbm_accesses_scores_only(N, d, M):
    return _hbm(N, d, M, standard=N * N)


@_hbm_wrong(
    "operations and accesses confused; common",
    "standard is N²·d, the number of multiplications. Here numbers moved are "
    "counted: each score is written once, however many products it took.",
)
def hbm_accesses_operations(N, d, M):
    return _hbm(N, d, M, standard=N * N * d)


@_hbm_wrong(
    "facts.md; the belief that flash is linear in memory traffic",
    "flash grows in proportion to N. Its memory does, its traffic does not: "
    "all keys are read once for each tile of queries, and both their numbers "
    "grow.",
)
def hbm_accesses_linear(N, d, M):
    return _hbm(N, d, M, flash=N * d * d / M)


@_hbm_wrong(
    "one factor d; plausible",
    "flash has d where d² is due: a wider head makes what is read larger, "
    "and also the tiles fewer-rowed, so that they become more.",
)
def hbm_accesses_one_d(N, d, M):
    return _hbm(N, d, M, flash=N * N * d / M)


@_hbm_wrong(
    "M forgotten; plausible",
    "flash does not depend on M. The more fits on the chip, the fewer times "
    "the keys are read.",
)
def hbm_accesses_no_memory(N, d, M):
    return _hbm(N, d, M, flash=N * N * d * d)


@_hbm_wrong(
    "swapped; plausible",
    "standard and flash are swapped. Only one of them can depend on M.",
)
def hbm_accesses_swapped(N, d, M):
    counts = _hbm(N, d, M)
    return {"standard": counts["flash"], "flash": counts["standard"]}


@_hbm_wrong(
    "constants; plausible",
    "standard counts every matrix with its factor (four of N·d, and scores "
    "written and read). The formula is asked for as it stands, without "
    "constants.",
)
def hbm_accesses_constants(N, d, M):
    return _hbm(N, d, M, standard=4 * N * d + 4 * N * N)


@_hbm_wrong(
    "limited; plausible",
    "flash is limited to standard. With little fast memory the formula "
    "gives more: return it as it stands.",
)
def hbm_accesses_limited(N, d, M):
    return _hbm(N, d, M, flash=min(N * N * d * d / M, N * d + N * N))


@_hbm_wrong(
    "whole tiles; plausible",
    "You count whole tiles, rounded up. The formula is asked for as it "
    "stands, without rounding.",
)
def hbm_accesses_whole_tiles(N, d, M):
    return _hbm(N, d, M, flash=math.ceil(N * d / M) * N * d)


# 6.3 KVCache


@oracle(
    "KVCache", evidence="a list of tokens in numpy, stacked on the way out"
)
class KVCacheTokens:
    def __init__(self, n_layers, B, n_kv_heads, max_len, d_head):
        self.max_len, self.n_layers = max_len, n_layers
        self.reset()

    def reset(self):
        self.tokens = collections.defaultdict(list)

    @property
    def length(self):
        return min(len(self.tokens[each]) for each in range(self.n_layers))

    def update(self, layer, k, v):
        count = k.shape[2]
        if len(self.tokens[layer]) + count > self.max_len:
            raise ValueError("full")
        if k.device.type == "meta":
            return torch.empty_like(k), torch.empty_like(v)
        for t in range(count):
            self.tokens[layer].append(
                (k[:, :, t].numpy().copy(), v[:, :, t].numpy().copy())
            )
        return tuple(
            torch.from_numpy(np.stack(part, axis=2))
            for part in zip(*self.tokens[layer], strict=True)
        )


class _KV:
    """A right cache in pieces."""

    def __init__(self, n_layers, B, n_kv_heads, max_len, d_head):
        self.n_layers, self.max_len = n_layers, max_len
        self.sizes = (B, n_kv_heads, max_len, d_head)
        self.reset()

    def reset(self):
        self.pairs = [None] * self.n_layers

    def used(self, layer):
        pair = self.pairs[layer]
        return 0 if pair is None else pair[0].shape[2]

    @property
    def length(self):
        return min(map(self.used, range(self.n_layers)))

    def check(self, layer, k):
        if self.used(layer) + k.shape[2] > self.max_len:
            raise ValueError(f"more than {self.max_len} tokens")

    def take(self, x):
        return x.clone()

    def give(self, x):
        return x.clone()

    def join(self, old, new):
        return torch.cat([old, new], dim=2)

    def update(self, layer, k, v):
        self.check(layer, k)
        k, v = self.take(k), self.take(v)
        if self.pairs[layer] is not None:
            old_k, old_v = self.pairs[layer]
            k, v = self.join(old_k, k), self.join(old_v, v)
        self.pairs[layer] = k, v
        return self.give(k), self.give(v)


class _Buffered(_KV):
    """The same with buffers of the full size."""

    def reset(self):
        self.counts = [0] * self.n_layers
        self.buffers = [None] * self.n_layers

    def used(self, layer):
        return self.counts[layer]

    def make(self, k):
        return k.new_zeros(2, *self.sizes)

    def room(self, layer, k):
        if self.buffers[layer] is None:
            self.buffers[layer] = self.make(k)
        return self.buffers[layer]

    def start(self, layer):
        return self.counts[layer]

    def counted(self, layer, end):
        self.counts[layer] = end

    def filled(self, buffer, end):
        return self.give(buffer[0, :, :, :end]), self.give(
            buffer[1, :, :, :end]
        )

    def update(self, layer, k, v):
        self.check(layer, k)
        buffer, start = self.room(layer, k), self.start(layer)
        end = start + k.shape[2]
        buffer[0, :, :, start:end], buffer[1, :, :, start:end] = k, v
        self.counted(layer, end)
        return self.filled(buffer, end)


@right("KVCache", evidence="K76 joined, copied in and out")
class KVCacheJoined(_KV):
    pass


@right("KVCache", evidence="K76 buffers of the full size")
class KVCacheBuffered(_Buffered):
    pass


@right("KVCache", evidence="K76 a list of chunks, joined on the way out")
class KVCacheChunks:
    def __init__(self, n_layers, B, n_kv_heads, max_len, d_head):
        self.max_len, self.layers = max_len, range(n_layers)
        self.reset()

    def reset(self):
        self.chunks = {layer: ([], []) for layer in self.layers}
        self.length = 0

    def update(self, layer, k, v):
        keys, values = self.chunks[layer]
        if sum(x.size(2) for x in keys) + k.size(2) > self.max_len:
            raise ValueError
        keys.append(k.clone())
        values.append(v.clone())
        self.length = min(
            sum(x.size(2) for x in self.chunks[each][0])
            for each in self.layers
        )
        return [torch.cat(keys, 2), torch.cat(values, 2)]


@right("KVCache", evidence="K76 layout (T, B, heads, d), index_copy")
class KVCacheTimeFirst(_Buffered):
    def make(self, k):
        B, G, T, Dh = self.sizes
        return k.new_empty(2, T, B, G, Dh).permute(0, 2, 3, 1, 4)

    def give(self, x):
        return x.contiguous() if not x.is_contiguous() else x.clone()


def _kv_wrong(evidence, hint):
    return wrong("KVCache", evidence=evidence, hint=hint)


@_kv_wrong(
    "M301 joined along the batch",
    "You join along the batch axis. Tokens follow one another along time, "
    "which is the axis before the last.",
)
class KVCacheBatchAxis(_KV):
    def join(self, old, new):
        return torch.cat([old, new], dim=0)

    def used(self, layer):
        pair = self.pairs[layer]
        return 0 if pair is None else len(pair[0])


@_kv_wrong(
    "M301 joined along the heads; layouts (B, T, H, d) and (B, H, T, d) mixed",
    "You join along the axis of the heads, as if the layout were "
    "(B, T, heads, d). Here time is the axis before the last.",
)
class KVCacheHeadAxis(_KV):
    def join(self, old, new):
        return torch.cat([old, new], dim=1)


@_kv_wrong(
    "M301 joined along the features",
    "You join along the last axis, so keys grow wider instead of more. "
    "Time is the axis before the last.",
)
class KVCacheLastAxis(_KV):
    def join(self, old, new):
        return torch.cat([old, new], dim=-1)


@_kv_wrong(
    "M302 new keys before old ones",
    "New tokens stand before the old ones. A single query without a mask "
    "does not mind, but every causal mask takes the order for the order of "
    "time: the new ones belong at the end.",
)
class KVCacheNewFirst(_KV):
    def join(self, old, new):
        return torch.cat([new, old], dim=2)


@_kv_wrong(
    "common",
    "update returns the new tokens only. It has to return everything that "
    "the layer holds, since the new queries look at all of it.",
)
class KVCacheOnlyNew(_KV):
    def update(self, layer, k, v):
        super().update(layer, k, v)
        return k.clone(), v.clone()


@_kv_wrong(
    "one step late; plausible",
    "update returns what was there before the new tokens. The new queries "
    "see their own keys, too: store first, then return.",
)
class KVCacheOnlyOld(_KV):
    def update(self, layer, k, v):
        keys, values = super().update(layer, k, v)
        T = keys.shape[2] - k.shape[2]
        return keys[:, :, :T], values[:, :, :T]


@_kv_wrong(
    "M304 Liger#269's pattern",
    "All layers share one storage: perhaps a list multiplied by n_layers, "
    "which repeats one object. Make one for each layer in a loop.",
)
class KVCacheSharedLayers(_KV):
    def update(self, layer, k, v):
        return super().update(0, k, v)

    @property
    def length(self):
        return self.used(0)


@_kv_wrong(
    "M304 [buffer] * n_layers; counters apart",
    "The layers have counters of their own, but one buffer: a list "
    "multiplied by n_layers repeats the same tensor. The last layer that "
    "writes overwrites what the others stored.",
)
class KVCacheOneBuffer(_Buffered):
    def room(self, layer, k):
        return super().room(0, k)


@_kv_wrong(
    "keys and values in one buffer; plausible",
    "Keys and values share one buffer, so what comes back as keys are the "
    "values. Each needs its own.",
)
class KVCacheOneForBoth(_Buffered):
    def make(self, k):
        return k.new_zeros(1, *self.sizes).expand(2, -1, -1, -1, -1)

    def update(self, layer, k, v):
        self.check(layer, k)
        buffer, start = self.room(layer, k), self.start(layer)
        end = start + k.shape[2]
        buffer[0, :, :, start:end] = k
        buffer[1, :, :, start:end] = v
        self.counted(layer, end)
        return self.filled(buffer, end)


@_kv_wrong(
    "order of results; common",
    "Keys and values are swapped on the way out. Return the keys first.",
)
class KVCacheSwapped(_KV):
    def update(self, layer, k, v):
        return super().update(layer, k, v)[::-1]


@_kv_wrong(
    "M311 mlx-examples#977",
    "The whole buffer comes back, with empty places at the end. Attention "
    "would look at them as at keys of 0, which get a weight: return the part "
    "that is filled.",
)
class KVCacheWholeBuffer(_Buffered):
    def filled(self, buffer, end):
        return buffer[0].clone(), buffer[1].clone()


@_kv_wrong(
    "M315 karpathy/nanochat#186",
    "Your buffer grows with resize_, which keeps the numbers in memory and "
    "reads them in another shape: everything that was stored is scrambled. "
    "Make a new buffer and copy, or join along the time axis.",
)
class KVCacheResized(_KV):
    def join(self, old, new):
        B, G, T, Dh = old.shape
        room = torch.zeros_like(new)  # or whatever the memory held
        grown = torch.cat([old.flatten(), room.flatten()])
        grown = grown.view(B, G, T + new.shape[2], Dh)
        grown[:, :, T:] = new
        return grown


@_kv_wrong(
    "M308 rasbt#925",
    "reset leaves something behind: after it, old tokens still come back.",
)
class KVCacheNoReset(_KV):
    def __init__(self, n_layers, *sizes, **named):
        self.pairs = [None] * n_layers
        super().__init__(n_layers, *sizes, **named)

    def reset(self):
        pass


@_kv_wrong(
    "M308 pointer left",
    "reset empties the buffers but not the counters, so new tokens land "
    "where the old ones ended, behind a row of zeros.",
)
class KVCacheCounterLeft(_Buffered):
    def __init__(self, n_layers, *sizes, **named):
        self.counts = [0] * n_layers
        super().__init__(n_layers, *sizes, **named)

    def reset(self):
        self.buffers = [None] * self.n_layers


@_kv_wrong(
    "M308 one layer reset; plausible",
    "reset empties one layer only. Go over all of them.",
)
class KVCacheResetsFirst(_KV):
    def __init__(self, n_layers, *sizes, **named):
        self.pairs = [None] * n_layers
        super().__init__(n_layers, *sizes, **named)

    def reset(self):
        self.pairs[0] = None


@_kv_wrong(
    "buffer of the first dtype; plausible",
    "After reset the buffers still have the first text's dtype, into which "
    "new tokens are converted. Give up the buffers at reset.",
)
class KVCacheDtypeLeft(_Buffered):
    def __init__(self, n_layers, *sizes, **named):
        self.buffers = [None] * n_layers
        super().__init__(n_layers, *sizes, **named)

    def reset(self):
        self.counts = [0] * self.n_layers


@_kv_wrong(
    "default dtype in the constructor; M063's kind",
    "The buffers are made in the constructor, in the default dtype and on "
    "the default device. They have to be those of k: make them at the first "
    "update.",
)
class KVCacheFloat32(_Buffered):
    def make(self, k):
        return torch.zeros(2, *self.sizes)


@_kv_wrong(
    "M063 made on the CPU",
    "The buffers have k's dtype, but are on the CPU. Take dtype and device "
    "from k, with k.new_empty for instance.",
)
class KVCacheCpu(_Buffered):
    def make(self, k):
        return torch.zeros(2, *self.sizes, dtype=k.dtype)


@_kv_wrong(
    "no limit; common",
    "There is no limit: more than max_len tokens are stored. Compare with "
    "max_len and raise a ValueError.",
)
class KVCacheNoLimit(_KV):
    def check(self, layer, k):
        pass


@_kv_wrong(
    "limit by torch's own error; common",
    "Overflow raises the RuntimeError of torch when the slice is too short. "
    "Check first and raise a ValueError, whose text can name the limit.",
)
class KVCacheRuntimeError(_KV):
    def check(self, layer, k):
        if self.used(layer) + k.shape[2] > self.max_len:
            raise RuntimeError("The expanded size must match")


@_kv_wrong(
    "assert; common",
    "Overflow is an AssertionError. Asserts vanish under python -O; raise a "
    "ValueError.",
)
class KVCacheAssert(_KV):
    def check(self, layer, k):
        assert self.used(layer) + k.shape[2] <= self.max_len


@_kv_wrong(
    "off by one; common",
    "The last place stays empty: you refuse a token when max_len are not yet "
    "stored. Exactly max_len tokens fit.",
)
class KVCacheOneLess(_KV):
    def check(self, layer, k):
        if self.used(layer) + k.shape[2] >= self.max_len:
            raise ValueError("full")


@_kv_wrong(
    "checked before the new tokens; common",
    "You compare what is stored, not what would be stored, with max_len. "
    "A chunk that begins inside and ends outside is let through.",
)
class KVCacheCheckedEarly(_KV):
    def check(self, layer, k):
        if self.used(layer) >= self.max_len:
            raise ValueError("full")


@_kv_wrong(
    "limit by the common length; plausible",
    "You compare the length that all layers share with max_len. A layer that "
    "is ahead of the others overflows unseen: compare what it holds itself.",
)
class KVCacheCommonLimit(_KV):
    def check(self, layer, k):
        if self.length + k.shape[2] > self.max_len:
            raise ValueError("full")


@_kv_wrong(
    "cropped in silence; common",
    "When it is full you drop the oldest tokens in silence. That is the "
    "rolling cache of task 6.5; here it is a ValueError.",
)
class KVCacheCropped(_KV):
    def check(self, layer, k):
        pass

    def join(self, old, new):
        return super().join(old, new)[:, :, -self.max_len :]


@_kv_wrong(
    "stored, then checked; plausible",
    "The ValueError comes after the tokens were stored, so a caller that "
    "catches it has a cache with too many. Check before anything changes.",
)
class KVCacheStoredAnyway(_KV):
    def check(self, layer, k):
        pass

    def update(self, layer, k, v):
        result = super().update(layer, k, v)
        if self.used(layer) > self.max_len:
            raise ValueError("full")
        return result


@_kv_wrong(
    "filled up to the limit; plausible",
    "At an overflow you store what still fits and then raise. Nothing may "
    "change: the caller cannot know how much was stored.",
)
class KVCachePartly(_KV):
    def check(self, layer, k):
        pass

    def update(self, layer, k, v):
        fits = self.max_len - self.used(layer)
        result = super().update(layer, k[:, :, :fits], v[:, :, :fits])
        if k.shape[2] > fits:
            raise ValueError("full")
        return result


@_kv_wrong(
    "M153 mlx-lm#1806: one shared counter",
    "length is that of the layer with most tokens. In the middle of a step "
    "the later layers do not hold the new tokens yet: take the least.",
)
class KVCacheLongest(_KV):
    @property
    def length(self):
        return max(map(self.used, range(self.n_layers)))


@_kv_wrong(
    "length of layer 0; common",
    "length is that of the first layer, which is ahead of the others in the "
    "middle of a step. It counts what every layer holds.",
)
class KVCacheFirstLayer(_KV):
    @property
    def length(self):
        return self.used(0)


@_kv_wrong(
    "length of the last layer; common",
    "length is that of the last layer. That is right as long as layers are "
    "updated in order; it counts what every layer holds.",
)
class KVCacheLastLayer(_KV):
    @property
    def length(self):
        return self.used(self.n_layers - 1)


@_kv_wrong(
    "sum over layers; plausible",
    "length adds up the layers. All of them hold the same text: count its "
    "tokens once.",
)
class KVCacheSummed(_KV):
    @property
    def length(self):
        return sum(map(self.used, range(self.n_layers)))


@_kv_wrong(
    "calls counted; plausible",
    "length counts calls of update. A call may bring several tokens.",
)
class KVCacheCalls(_KV):
    def reset(self):
        super().reset()
        self.calls = [0] * self.n_layers

    def update(self, layer, k, v):
        result = super().update(layer, k, v)
        self.calls[layer] += 1
        return result

    @property
    def length(self):
        return min(self.calls)


@_kv_wrong(
    "method for attribute; common",
    "length is a method. The contract has an attribute: put @property above "
    "it, or assign a number.",
)
class KVCacheMethod(_KV):
    def length(self):
        return min(map(self.used, range(self.n_layers)))


@_kv_wrong(
    "M153 a counter that the first layer moves",
    "One counter for all layers, which the first layer moves: the others "
    "then write behind the place that is theirs. Count for each layer.",
)
class KVCacheOneCounter(_Buffered):
    def start(self, layer):
        return 0 if layer == 0 and not self.counts[0] else self.counts[0]

    def counted(self, layer, end):
        self.counts = [max(end, each) for each in self.counts]

    def check(self, layer, k):
        if self.counts[layer] + k.shape[2] > self.max_len:
            raise ValueError("full")


@_kv_wrong(
    "written at the common length; plausible",
    "You write every layer at the length that all layers share. A layer "
    "that is ahead of the others is overwritten: use its own count.",
)
class KVCacheCommonStart(_Buffered):
    def start(self, layer):
        return min(self.counts)


@_kv_wrong(
    "M318 MemOS#2303",
    "What you return is a view of the buffer. When the caller overwrites it, "
    "or the cache is reset and filled anew, both change: return a copy.",
)
class KVCacheViews(_Buffered):
    def give(self, x):
        return x


@_kv_wrong(
    "review: contiguous() for a copy",
    "contiguous() copies only what is not contiguous yet. With one sequence "
    "and one head the used part of the buffer is, so the caller gets the "
    "buffer itself: copy always.",
)
class KVCacheContiguous(_Buffered):
    def give(self, x):
        return x.contiguous()


@_kv_wrong(
    "M318 the stored tensor itself",
    "You return the very tensors that you keep. A caller that writes into "
    "them writes into the cache: return a copy.",
)
class KVCacheReturnsOwn(_KV):
    def give(self, x):
        return x


@_kv_wrong(
    "a list of two, kept and filled anew; plausible",
    "Every call for a layer returns the same list and puts new tensors into "
    "it, so that what an earlier call returned changes: return a new pair.",
)
class KVCacheOneList(_KV):
    def reset(self):
        super().reset()
        self.results = [[] for _ in range(self.n_layers)]

    def update(self, layer, k, v):
        self.results[layer][:] = super().update(layer, k, v)
        return self.results[layer]


@_kv_wrong(
    "M318's kind on the way in",
    "You keep the tensors that you were given. The caller may use the same "
    "memory for its next tokens: store a copy.",
)
class KVCacheKeepsGiven(_KV):
    def take(self, x):
        return x


@_kv_wrong(
    "mlx#3071: class-level cache",
    "Two caches share their storage: an attribute of the class, or a "
    "mutable default. Create it in __init__, on self.",
)
class KVCacheOfClass(_KV):
    store = []

    def reset(self):
        KVCacheOfClass.store = [None] * self.n_layers

    @property
    def pairs(self):
        return KVCacheOfClass.store


@_kv_wrong(
    "what a refused call decides; plausible",
    "A call that is refused has decided the dtype already: the buffer is "
    "made before the size is checked. Check first.",
)
class KVCacheRefusedDtype(_Buffered):
    def update(self, layer, k, v):
        self.room(layer, k)
        return super().update(layer, k, v)


@_kv_wrong(
    "precision: float32 inside",
    "What is kept is float32, and comes back in k's dtype without its last "
    "digits. Keep k's dtype.",
)
class KVCacheRounded(_KV):
    def take(self, x):
        return x.float().to(x.dtype)


@_kv_wrong(
    "half precision widened",
    "Half-precision keys come back in float32. What is stored is not "
    "computed with: keep k's dtype.",
)
class KVCacheWidened(_KV):
    def take(self, x):
        return x.float() if x.dtype == torch.float16 else x.clone()


@_kv_wrong(
    "names of other libraries",
    "The constructor's parameters have other names than in the task, and "
    "the caller may use those: n_layers, B, n_kv_heads, max_len, d_head.",
)
class KVCacheOtherNames(_KV):
    def __init__(self, layers, batch_size, num_heads, max_seq_len, head_dim):
        super().__init__(layers, batch_size, num_heads, max_seq_len, head_dim)


@_kv_wrong(
    "torch.inference_mode; plausible",
    "update runs in torch.inference_mode, so its results are tensors that "
    "nobody may write into. The caller may: no_grad does not have that "
    "effect.",
)
class KVCacheInference(_KV):
    @torch.inference_mode()
    def update(self, layer, k, v):
        return super().update(layer, k, v)


# 6.4 CachedGPT


class _Cached(nn.Module):
    """A right GPT with a cache in pieces."""

    form = "tanh"

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        D = cfg.d_model
        self.tok_embed = nn.Embedding(cfg.vocab_size, D)
        self.pos_embed = nn.Embedding(cfg.context_length, D)
        self.blocks = nn.ModuleList(self.block(D) for _ in range(cfg.n_layers))
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, cfg.vocab_size, bias=False)
        self.tie()

    def tie(self):
        self.lm_head.weight = self.tok_embed.weight

    def block(self, D):
        block = nn.Module()
        block.ln1, block.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        block.attn, block.mlp = nn.Module(), nn.Module()
        block.attn.qkv_proj = nn.Linear(D, 3 * D)
        block.attn.out_proj = nn.Linear(D, D)
        block.mlp.fc1, block.mlp.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        return block

    def check(self, start, T):
        if start + T > self.cfg.context_length:
            raise ValueError(f"{start + T} tokens are too many")

    def start(self, cache):
        return 0 if cache is None else cache.length

    def positions(self, start, T):
        place = self.pos_embed.weight.device
        return torch.arange(start, start + T, device=place)

    def split(self, qkv):
        return [
            part.unflatten(-1, (self.cfg.n_heads, -1)).transpose(1, 2)
            for part in qkv.chunk(3, dim=-1)
        ]

    def remembered(self, cache, layer, k, v):
        return (k, v) if cache is None else cache.update(layer, k, v)

    def keep(self, Tq, Tk):
        place = self.pos_embed.weight.device
        seen = torch.ones(Tq, Tk, dtype=torch.bool, device=place)
        return seen.tril(Tk - Tq)

    def attend(self, q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        keep = self.keep(q.shape[2], k.shape[2])
        return scores.masked_fill(~keep, -math.inf).softmax(-1) @ v

    def attention(self, attn, x, layer, cache):
        q, k, v = self.split(attn.qkv_proj(x))
        k, v = self.remembered(cache, layer, k, v)
        return attn.out_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def run(self, x, cache):
        for layer, block in enumerate(self.blocks):
            x = x + self.attention(block.attn, block.ln1(x), layer, cache)
            hidden = F.gelu(block.mlp.fc1(block.ln2(x)), approximate=self.form)
            x = x + block.mlp.fc2(hidden)
        return x

    def head(self, x):
        return self.lm_head(self.ln_f(x))

    def forward(self, ids, cache=None):
        start, T = self.start(cache), ids.shape[1]
        self.check(start, T)
        x = self.tok_embed(ids) + self.pos_embed(self.positions(start, T))
        return self.head(self.run(x, cache))


@oracle(
    "CachedGPT",
    evidence="the whole text through PyTorch's own pre-LN layer at each step; "
    "what the cache is given is only noted",
)
class CachedGPTWhole(_Cached):
    def forward(self, ids, cache=None):
        T = ids.shape[1]
        if cache is None:
            text = ids
        else:
            if cache.length == 0:
                cache.text = ids[:, :0]
            text = torch.cat([cache.text, ids], dim=1)
        self.check(0, text.shape[1])
        x = self.tok_embed.weight[text]
        x = x + self.pos_embed.weight[: text.shape[1]]
        for layer, block in enumerate(self.blocks):
            if cache is not None:
                cache.update(layer, *self.split(self.projected(block, x, T)))
            x = self.library(block, x)
        if cache is not None:
            cache.text = text
        return self.head(x)[:, -T:]

    def projected(self, block, x, T):
        kv = block.attn.qkv_proj(block.ln1(x))[:, -T:]
        return kv

    def split(self, qkv):
        return super().split(qkv)[1:]

    def library(self, block, x):
        T, D = x.shape[1:]
        y = block.ln1(x).transpose(0, 1)
        y, _ = F.multi_head_attention_forward(
            y,
            y,
            y,
            D,
            self.cfg.n_heads,
            block.attn.qkv_proj.weight,
            block.attn.qkv_proj.bias,
            None,
            None,
            False,
            0.0,
            block.attn.out_proj.weight,
            block.attn.out_proj.bias,
            training=False,
            need_weights=False,
            attn_mask=x.new_ones((T, T), dtype=torch.bool).triu(1),
        )
        x = x + y.transpose(0, 1)
        hidden = block.mlp.fc1(block.ln2(x))
        cubic = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        return x + block.mlp.fc2(hidden / 2 * (1 + torch.tanh(cubic)))


@right("CachedGPT", evidence="K78 no mask for a single query")
class CachedGPTUnmaskedStep(_Cached):
    def attend(self, q, k, v):
        if q.shape[2] == 1:
            return F.scaled_dot_product_attention(q, k, v)
        keep = self.keep(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@right("CachedGPT", evidence="K60 a saved mask buffer, sliced by position")
class CachedGPTBuffer(_Cached):
    def __init__(self, cfg):
        super().__init__(cfg)
        C = cfg.context_length
        self.register_buffer("mask", torch.ones(C, C).tril() == 1)

    def keep(self, Tq, Tk):
        return self.mask[Tk - Tq : Tk, :Tk]


@right("CachedGPT", evidence="K02 einsum; one query at a time within a chunk")
class CachedGPTRows(_Cached):
    def attend(self, q, k, v):
        Tq, Tk = q.shape[2], k.shape[2]
        rows = []
        for t in range(Tq):
            end = Tk - Tq + t + 1
            s = torch.einsum("bhd,bhjd->bhj", q[:, :, t], k[:, :, :end])
            w = (s * q.shape[-1] ** -0.5).softmax(-1)
            rows.append(torch.einsum("bhj,bhjd->bhd", w, v[:, :, :end]))
        return torch.stack(rows, dim=2)


def _cached_wrong(evidence, hint):
    return wrong("CachedGPT", evidence=evidence, hint=hint)


@_cached_wrong(
    "M063: made on the default device",
    "The mask is made on the CPU, whatever the device of ids: on a GPU this "
    "stops. Make what you create (a mask, positions) on ids.device.",
)
class CachedGPTMaskOnCpu(_Cached):
    def keep(self, Tq, Tk):
        return torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)


@_cached_wrong(
    "M138, M300; curriculum 6.4",
    "Positions restart at 0 with every call, so each new token is embedded "
    "as the first of a text. They go on where the cache ends.",
)
class CachedGPTRestart(_Cached):
    def positions(self, start, T):
        return super().positions(0, T)


@_cached_wrong(
    "M151 off by one",
    "Positions begin one too early: the first new token gets the position "
    "of the last old one. With n tokens in the cache, these are at 0 to "
    "n − 1.",
)
class CachedGPTOneBehind(_Cached):
    def positions(self, start, T):
        return super().positions(start, T) - int(start > 0)


@_cached_wrong(
    "M153 the length is read after the update",
    "Positions begin one too late, or the length is read after the cache "
    "was updated. Read it once, before any layer.",
)
class CachedGPTOneAhead(_Cached):
    def positions(self, start, T):
        ahead = super().positions(start, T) + (start > 0)
        return ahead.clamp(max=self.cfg.context_length - 1)


@_cached_wrong(
    "one position for a whole chunk; common in single-token code",
    "All tokens of a chunk get the same position, that of the first one. "
    "Count on within the chunk.",
)
class CachedGPTOnePosition(_Cached):
    def positions(self, start, T):
        first = super().positions(0, T)
        return first if start == 0 else torch.full_like(first, start)


@_cached_wrong(
    "M057, M058 rasbt#697; curriculum 6.4",
    "The causal mask is aligned to the upper left: with old keys there, the "
    "new queries see the oldest keys only. The newest query sees everything: "
    "align to the lower right.",
)
class CachedGPTUpperLeft(_Cached):
    def keep(self, Tq, Tk):
        return torch.ones_like(super().keep(Tq, Tk)).tril()


@_cached_wrong(
    "M310 executorch#21749: is_causal with a chunk",
    "One query at a time is right, but a chunk gets is_causal=True, which "
    "aligns to the upper left where Tq ≠ Tk. Give an explicit mask.",
)
class CachedGPTIsCausal(_Cached):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=q.shape[2] > 1
        )


@_cached_wrong(
    "M059 torchtune#1791's pattern; curriculum 6.4",
    "With a cache there is no mask at all. That is right for a single new "
    "token; within a chunk, earlier tokens must not see later ones.",
)
class CachedGPTNoMask(_Cached):
    def attend(self, q, k, v):
        Tq, Tk = q.shape[2], k.shape[2]
        if Tq == Tk and not self.cached:
            return super().attend(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, ids, cache=None):
        self.cached = cache is not None
        return super().forward(ids, cache)


@_cached_wrong(
    "review: a mask remembered by the number of queries",
    "A mask that was made once serves every later chunk of as many queries. "
    "It depends on the number of keys, too: a new text starts with few.",
)
class CachedGPTMaskRemembered(_Cached):
    def keep(self, Tq, Tk):
        masks = self.__dict__.setdefault("masks", {})
        if Tq not in masks or masks[Tq].shape[1] < Tk:
            masks[Tq] = super().keep(Tq, Tk)
        return masks[Tq][:, :Tk]


@_cached_wrong(
    "M059 masked only while the cache is empty",
    "The first chunk is masked, the later ones are not. Every chunk of more "
    "than one token needs a mask.",
)
class CachedGPTFirstMasked(_Cached):
    def attend(self, q, k, v):
        if q.shape[2] == k.shape[2]:
            return super().attend(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)


@_cached_wrong(
    "M056 off by one",
    "The mask lets each query see one key too many, the next token's. In a "
    "chunk it is aligned to the lower right, with the diagonal as the last "
    "visible key.",
)
class CachedGPTLooksAhead(_Cached):
    def keep(self, Tq, Tk):
        seen = torch.ones_like(super().keep(Tq, Tk))
        return seen.tril(Tk - Tq + 1)


@_cached_wrong(
    "M307's kind: what the cache returns is not used; M058's kind",
    "Keys and values are handed to the cache, but the new queries see the "
    "new keys only: what update returns is not used, or a mask hides it.",
)
class CachedGPTIgnoresCache(_Cached):
    def remembered(self, cache, layer, k, v):
        if cache is not None:
            cache.update(layer, k, v)
        return k, v


@_cached_wrong(
    "M304 one layer number for all",
    "All layers use the same layer of the cache, so their keys are mixed. "
    "Number the layers from 0.",
)
class CachedGPTOneLayer(_Cached):
    def remembered(self, cache, layer, k, v):
        return super().remembered(cache, 0, k, v)


@_cached_wrong(
    "layers counted from 1; plausible",
    "Layers are counted from 1. The first is number 0.",
)
class CachedGPTFromOne(_Cached):
    def remembered(self, cache, layer, k, v):
        return super().remembered(cache, layer + 1, k, v)


@_cached_wrong(
    "M306 keys stored twice",
    "Each token is stored twice: once in the cache, and joined again to what "
    "it returns. What update returns holds the new tokens already.",
)
class CachedGPTTwice(_Cached):
    def remembered(self, cache, layer, k, v):
        if cache is None:
            return k, v
        keys, values = cache.update(layer, k, v)
        return torch.cat([keys, k], 2), torch.cat([values, v], 2)


@_cached_wrong(
    "order of k and v; common",
    "Keys and values are swapped on their way to the cache or back.",
)
class CachedGPTSwapped(_Cached):
    def remembered(self, cache, layer, k, v):
        if cache is None:
            return k, v
        keys, values = cache.update(layer, k, v)
        return values, keys


@_cached_wrong(
    "M302 new keys before old",
    "The new keys stand before the old ones, where the causal mask takes "
    "them for the oldest. Use the order in which the cache returns them.",
)
class CachedGPTRolled(_Cached):
    def remembered(self, cache, layer, k, v):
        keys, values = super().remembered(cache, layer, k, v)
        T = k.shape[2]
        return keys.roll(T, 2), values.roll(T, 2)


@_cached_wrong(
    "the cache holds 'hidden states' (facts.md)",
    "The cache gets what stands before the projections, which are then done "
    "again for the whole text at every step. The logits are right, and the "
    "work is not saved: store keys and values.",
)
class CachedGPTHidden(_Cached):
    def attention(self, attn, x, layer, cache):
        if cache is None:
            return super().attention(attn, x, layer, None)
        heads = x.unflatten(-1, (self.cfg.n_heads, -1)).transpose(1, 2)
        kept, _ = cache.update(layer, heads, heads)
        text = kept.transpose(1, 2).flatten(2)
        q, k, v = self.split(attn.qkv_proj(text))
        q = q[:, :, -x.shape[1] :]
        return attn.out_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


@_cached_wrong(
    "M307 rasbt#981: everything is recomputed",
    "You keep the ids and run the whole text again at each step. The logits "
    "are right, and the cache saves nothing: push the new tokens only.",
)
class CachedGPTRecomputes(_Cached):
    def forward(self, ids, cache=None):
        if cache is None:
            return super().forward(ids)
        if cache.length == 0:
            cache.text = ids[:, :0]
        text = torch.cat([cache.text, ids], dim=1)
        self.check(0, text.shape[1])
        cache.reset()
        logits = super().forward(text, cache)
        cache.text = text
        return logits[:, -ids.shape[1] :]


@_cached_wrong(
    "MemOS#2303's kind: state in the model",
    "The model itself remembers keys and values, so a second text, or a "
    "call without a cache, goes on with the first. Only the cache may "
    "remember.",
)
class CachedGPTOwnState(_Cached):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.memory = {}

    def start(self, cache):
        if cache is None:
            return 0
        if 0 in self.memory:
            return self.memory[0][0].shape[2]
        return 0

    def remembered(self, cache, layer, k, v):
        if cache is None:
            return k, v
        cache.update(layer, k, v)
        if layer in self.memory and self.memory[layer][0].shape[0] == len(k):
            old = self.memory[layer]
            k, v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
        self.memory[layer] = (k, v)
        return k, v


@_cached_wrong(
    "M308 a counter in the model; nanoGPT-style self.pos",
    "The model counts positions itself, and goes on counting with the next "
    "text. Ask the cache for its length.",
)
class CachedGPTOwnCounter(_Cached):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.seen = 0

    def start(self, cache):
        return 0 if cache is None else self.seen

    def forward(self, ids, cache=None):
        start = self.start(cache)
        logits = super().forward(ids, cache)
        self.seen = start + ids.shape[1] if cache is not None else self.seen
        return logits


@_cached_wrong(
    "generation code: the last logits only",
    "Only the logits of the last token come back. A chunk has logits for "
    "each of its tokens.",
)
class CachedGPTLastOnly(_Cached):
    def head(self, x):
        return super().head(x[:, -1:])


@_cached_wrong(
    "M136's kind: only the chunk is compared",
    "Only the new tokens are compared with the context. Those in the cache "
    "count, too.",
)
class CachedGPTChunkLimit(_Cached):
    def check(self, start, T):
        super().check(0, T)

    def positions(self, start, T):
        last = self.cfg.context_length - 1
        return super().positions(start, T).clamp(max=last)


@_cached_wrong(
    "M136 no check",
    "Past the context torch raises an IndexError from deep inside, or "
    "positions repeat. Compare first and raise a ValueError.",
)
class CachedGPTNoLimit(_Cached):
    def check(self, start, T):
        pass


@_cached_wrong(
    "off by one; common",
    "The last place of the context stays empty: exactly context_length "
    "tokens are allowed.",
)
class CachedGPTOneLess(_Cached):
    def check(self, start, T):
        super().check(start, T + 1)


@_cached_wrong(
    "stored, then checked; plausible",
    "The ValueError comes after the cache was updated, so it holds tokens "
    "that the model refused. Check before the first layer.",
)
class CachedGPTLateCheck(_Cached):
    def check(self, start, T):
        pass

    def positions(self, start, T):
        last = self.cfg.context_length - 1
        return super().positions(start, T).clamp(max=last)

    def forward(self, ids, cache=None):
        start = self.start(cache)
        logits = super().forward(ids, cache)
        super().check(start, ids.shape[1])
        return logits


@_cached_wrong(
    "M052 mask forgotten without a cache",
    "Without a cache there is no causal mask, so the whole text's logits "
    "know what comes next.",
)
class CachedGPTBidirectional(_Cached):
    def keep(self, Tq, Tk):
        return torch.ones_like(super().keep(Tq, Tk))


@_cached_wrong(
    "E15: GELU's exact form",
    "The MLP has the exact GELU. GPT-2 uses the tanh form.",
)
class CachedGPTExactGelu(_Cached):
    form = "none"


@_cached_wrong(
    "M211 tied by value only",
    "The head is a Parameter of its own. It has to be the embedding's: "
    "assign the Parameter itself.",
)
class CachedGPTUntied(_Cached):
    def tie(self):
        self.lm_head.weight = nn.Parameter(self.tok_embed.weight.data)


@_cached_wrong(
    "final norm forgotten; minGPT ports",
    "The final norm ln_f is built and never called. It stands before the "
    "head.",
)
class CachedGPTNoFinalNorm(_Cached):
    def head(self, x):
        return self.lm_head(x)


@_cached_wrong(
    "M079 view without transpose",
    "Heads are split by a view to (B, H, T, Dh) without a transpose, which "
    "mixes tokens and heads. Split the last axis, then move it.",
)
class CachedGPTView(_Cached):
    def split(self, qkv):
        B, T, _ = qkv.shape
        return [
            part.reshape(B, self.cfg.n_heads, T, -1)
            for part in qkv.chunk(3, dim=-1)
        ]


@_cached_wrong(
    "M016: no scale; plausible",
    "Scores are not divided by √Dh.",
)
class CachedGPTUnscaled(_Cached):
    def attend(self, q, k, v):
        return super().attend(q * math.sqrt(q.shape[-1]), k, v)


@_cached_wrong(
    "arguments in place",
    "ids are changed. The caller still needs them.",
)
class CachedGPTChangesIds(_Cached):
    def forward(self, ids, cache=None):
        logits = super().forward(ids, cache)
        ids.zero_()
        return logits


@_cached_wrong(
    "[block] * n; common",
    "All layers are one and the same: a list multiplied by n_layers repeats "
    "one object. Make a block for each layer.",
)
class CachedGPTSharedBlocks(_Cached):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.blocks = nn.ModuleList([self.blocks[0]] * cfg.n_layers)


@_cached_wrong(
    "batch and heads in one axis; plausible",
    "Batch and heads are one axis of what the cache is given. The cache is "
    "made for (B, H, T, Dh).",
)
class CachedGPTMergedHeads(_Cached):
    def remembered(self, cache, layer, k, v):
        if cache is None:
            return k, v
        kept = cache.update(layer, *(x.flatten(0, 1)[None] for x in (k, v)))
        return [x[0].unflatten(0, k.shape[:2]) for x in kept]


@_cached_wrong(
    "a chunk as many calls; plausible",
    "A chunk is pushed through token by token, so each layer is updated "
    "once a token. The chunk is one call: all of its tokens at once.",
)
class CachedGPTTokenByToken(_Cached):
    def run(self, x, cache):
        if cache is None:
            return super().run(x, None)
        step = super().run
        steps = [step(part, cache) for part in x.split(1, dim=1)]
        return torch.cat(steps, dim=1)


@_cached_wrong(
    "norm's eps; common",
    "The norms have another eps than 1e-5, the default of nn.LayerNorm.",
)
class CachedGPTOtherEps(_Cached):
    def __init__(self, cfg):
        super().__init__(cfg)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6


@_cached_wrong(
    "GPT-NeoX's layout",
    "The rows of qkv_proj are taken head by head, q, k and v of the first "
    "head, then of the second. Here all of q comes first, then k, then v.",
)
class CachedGPTHeadByHead(_Cached):
    def split(self, qkv):
        heads = qkv.unflatten(-1, (self.cfg.n_heads, 3, -1))
        return heads.permute(3, 0, 2, 1, 4)


@_cached_wrong(
    "GPT-2's own dropout of 0.1; common",
    "In training something is dropped at a rate of your own. cfg.dropout is "
    "0: drop at that rate, or not at all.",
)
class CachedGPTDropout(_Cached):
    def run(self, x, cache):
        x = F.dropout(x, 0.1, self.training)
        return F.dropout(super().run(x, cache), 0.1, self.training)


# 6.5 sliding_window_mask


@oracle("sliding_window_mask", evidence="two loops over positions")
def sliding_window_mask_loops(Tq, Tk, window):
    mask = torch.zeros(Tq, Tk, dtype=torch.bool)
    for i in range(Tq):
        position = Tk - Tq + i
        for j in range(Tk):
            mask[i, j] = j in range(position - window + 1, position + 1)
    return mask


@right("sliding_window_mask", evidence="tril and triu")
def sliding_window_mask_triangles(Tq, Tk, window):
    full = torch.ones(Tq, Tk, dtype=torch.bool)
    return full.tril(Tk - Tq) & full.triu(Tk - Tq - window + 1)


@right("sliding_window_mask", evidence="the last rows of a square mask")
def sliding_window_mask_rows(Tq, Tk, window):
    n = max(Tq, Tk)
    full = np.tri(n, n, dtype=bool) & ~np.tri(n, n, -window, dtype=bool)
    return torch.from_numpy(full)[n - Tq :, n - Tk :]


@right("sliding_window_mask", evidence="difference of two causal masks")
def sliding_window_mask_difference(Tq, Tk, window):
    full = torch.ones(Tq, Tk)
    seen = full.tril(Tk - Tq) - full.tril(Tk - Tq - window)
    return seen.bool()


def _window_wrong(evidence, hint):
    return wrong("sliding_window_mask", evidence=evidence, hint=hint)


def _behind(Tq, Tk):
    return torch.arange(Tq)[:, None] + (Tk - Tq) - torch.arange(Tk)


@_window_wrong(
    "own key not counted; common",
    "The window is one key too wide: you count the query's own key extra. "
    "With a window of 1 a query sees itself and nothing else.",
)
def sliding_window_mask_too_wide(Tq, Tk, window):
    behind = _behind(Tq, Tk)
    return (behind >= 0) & (behind <= window)


@_window_wrong(
    "off by one the other way; common",
    "The window is one key too narrow. With a window of 1 a query sees its "
    "own key, not none.",
)
def sliding_window_mask_too_narrow(Tq, Tk, window):
    behind = _behind(Tq, Tk)
    return (behind >= 0) & (behind < window - 1)


@_window_wrong(
    "causality forgotten; Longformer's symmetric window",
    "The window reaches into the future as well, as an encoder's would. "
    "Here it is causal: no key behind the query's own.",
)
def sliding_window_mask_symmetric(Tq, Tk, window):
    return _behind(Tq, Tk).abs() < window


@_window_wrong(
    "window ignored",
    "This is the causal mask: keys that lie window or more behind the query "
    "are still visible.",
)
def sliding_window_mask_causal(Tq, Tk, window):
    return _behind(Tq, Tk) >= 0


@_window_wrong(
    "M057 upper left",
    "The mask is aligned to the upper left. With fewer queries than keys, "
    "the queries are the newest positions: shift by Tk − Tq.",
)
def sliding_window_mask_upper_left(Tq, Tk, window):
    behind = torch.arange(Tq)[:, None] - torch.arange(Tk)
    return (behind >= 0) & (behind < window)


@_window_wrong(
    "M057 on one edge only",
    "The causal edge is aligned to the lower right, the window's edge to the "
    "upper left. Both move with the query's position.",
)
def sliding_window_mask_one_edge(Tq, Tk, window):
    behind = torch.arange(Tq)[:, None] - torch.arange(Tk)
    return (behind + (Tk - Tq) >= 0) & (behind < window)


@_window_wrong(
    "M041's kind: inverted",
    "It is True where the query may not look. Here True means visible.",
)
def sliding_window_mask_inverted(Tq, Tk, window):
    return ~sliding_window_mask_loops(Tq, Tk, window)


@_window_wrong(
    "M068 a float mask",
    "You return a mask of numbers that is added to scores. A boolean one is "
    "asked for.",
)
def sliding_window_mask_float(Tq, Tk, window):
    keep = sliding_window_mask_loops(Tq, Tk, window)
    return torch.zeros(Tq, Tk).masked_fill(~keep, -math.inf)


@_window_wrong(
    "blocks instead of a window; plausible",
    "Each query sees the keys of its own block of `window` positions. The "
    "window slides: it ends at each query's own key.",
)
def sliding_window_mask_blocks(Tq, Tk, window):
    query = torch.arange(Tq)[:, None] + (Tk - Tq)
    key = torch.arange(Tk)
    same = query.div(window, rounding_mode="floor") == key // window
    return same & (key <= query)


@_window_wrong(
    "one window for all queries; plausible",
    "All queries see the last `window` keys. The window moves with the "
    "query: an earlier one sees earlier keys.",
)
def sliding_window_mask_fixed(Tq, Tk, window):
    key = torch.arange(Tk)
    return (_behind(Tq, Tk) >= 0) & (key >= Tk - window)


@_window_wrong(
    "positions clamped; plausible",
    "With more queries than keys you shift by 0 instead of a negative "
    "number, so the first queries see keys that lie behind them.",
)
def sliding_window_mask_clamped(Tq, Tk, window):
    behind = torch.arange(Tq)[:, None] + max(Tk - Tq, 0) - torch.arange(Tk)
    return (behind >= 0) & (behind < window)


@_window_wrong(
    "dead rows given a key; plausible",
    "A query that sees no key is given the first one. It stays without: "
    "the course's attention gives zeros there.",
)
def sliding_window_mask_no_dead_rows(Tq, Tk, window):
    mask = sliding_window_mask_loops(Tq, Tk, window)
    mask[~mask.any(-1), 0] = True
    return mask


@_window_wrong(
    "M054 diagonal hidden",
    "The query's own key is hidden. It is the last one that the query sees, "
    "and counts in the window.",
)
def sliding_window_mask_no_diagonal(Tq, Tk, window):
    behind = _behind(Tq, Tk)
    return (behind > 0) & (behind <= window)


# 6.5 RollingCache


@oracle("RollingCache", evidence="the whole history in numpy, sliced by time")
class RollingCacheHistory:
    def __init__(self, n_layers, B, n_kv_heads, window, d_head):
        self.window, self.n_layers = window, n_layers
        self.reset()

    def reset(self):
        self.seen = [0] * self.n_layers
        self.tokens = [collections.deque() for _ in range(self.n_layers)]

    @property
    def length(self):
        return min(self.seen)

    @property
    def stored(self):
        return min(map(len, self.tokens))

    def update(self, layer, k, v):
        Tnew = k.shape[2]
        if k.device.type == "meta":
            return torch.empty_like(k), torch.empty_like(v)
        for t in range(Tnew):
            pair = k[:, :, t].numpy().copy(), v[:, :, t].numpy().copy()
            self.tokens[layer].append(pair)
        self.seen[layer] += Tnew
        needed = list(self.tokens[layer])[-(self.window - 1 + Tnew) :]
        while len(self.tokens[layer]) > self.window:
            self.tokens[layer].popleft()
        return tuple(
            torch.from_numpy(np.stack(part, axis=2))
            for part in zip(*needed, strict=True)
        )


class _Rolling:
    """A right rolling cache in pieces."""

    def __init__(self, n_layers, B, n_kv_heads, window, d_head):
        self.n_layers, self.window = n_layers, window
        self.reset()

    def reset(self):
        self.pairs = [None] * self.n_layers
        self.seen = [0] * self.n_layers

    @property
    def length(self):
        return min(self.seen)

    @property
    def stored(self):
        return min(0 if p is None else p[0].shape[2] for p in self.pairs)

    def before(self, x):
        """What the first new query sees of the old tokens."""
        return x[:, :, max(0, x.shape[2] - self.window + 1) :]

    def kept(self, x):
        return x[:, :, max(0, x.shape[2] - self.window) :].clone()

    def join(self, old, new):
        return torch.cat([self.before(old), new], dim=2)

    def take(self, x):
        return x.clone()

    def give(self, x, Tnew):
        return x.clone()

    def update(self, layer, k, v):
        Tnew = k.shape[2]
        k, v = self.take(k), self.take(v)
        if self.pairs[layer] is not None:
            old_k, old_v = self.pairs[layer]
            k, v = self.join(old_k, k), self.join(old_v, v)
        self.pairs[layer] = tuple(self.kept(x) for x in (k, v))
        self.seen[layer] += Tnew
        return self.give(k, Tnew), self.give(v, Tnew)


@right("RollingCache", evidence="K76 joined; window tokens kept")
class RollingCacheJoined(_Rolling):
    pass


@right("RollingCache", evidence="K76 joined; window − 1 tokens kept")
class RollingCacheLess(_Rolling):
    @property
    def stored(self):
        return min(0 if p is None else p[0].shape[2] for p in self.pairs)

    def kept(self, x):
        return self.before(x).clone()


@right("RollingCache", evidence="K76 a ring of window places, unrolled")
class RollingCacheRing:
    def __init__(self, n_layers, B, n_kv_heads, window, d_head):
        self.sizes = (2, B, n_kv_heads, window, d_head)
        self.window, self.n_layers = window, n_layers
        self.reset()

    def reset(self):
        self.rings, self.seen = {}, [0] * self.n_layers

    length = property(lambda self: min(self.seen))
    stored = property(lambda self: min(min(self.seen), self.window))

    def update(self, layer, k, v):
        if layer not in self.rings:
            self.rings[layer] = k.new_zeros(self.sizes)
        ring, seen, w = self.rings[layer], self.seen[layer], self.window
        old = torch.arange(max(0, seen - w + 1), seen) % w
        new = torch.stack([k, v])
        result = torch.cat([ring[:, :, :, old], new], dim=3)
        end = seen + k.shape[2]
        last = torch.arange(max(seen, end - w), end)
        ring[:, :, :, last % w] = new[:, :, :, last - seen]
        self.seen[layer] = end
        return result.unbind()


def _rolling_wrong(evidence, hint):
    return wrong("RollingCache", evidence=evidence, hint=hint)


@_rolling_wrong(
    "crop to the window whatever the chunk, deque(maxlen=window); common",
    "At most `window` tokens come back, also for a chunk. Its first query "
    "sees window − 1 older keys, its last query another window − 1: together "
    "they need window − 1 + Tnew. Return first, then drop.",
)
class RollingCacheCropped(_Rolling):
    def give(self, x, Tnew):
        return x[:, :, -self.window :].clone()


@_rolling_wrong(
    "all that is kept comes back; common",
    "One old token too many comes back: window old ones before the new. "
    "The first new query is itself one of the window keys that it sees.",
)
class RollingCacheOneMore(_Rolling):
    def before(self, x):
        return x


@_rolling_wrong(
    "off by one; common",
    "One old token is missing: the first new query sees window − 1 of them, "
    "besides itself.",
)
class RollingCacheOneLess(_Rolling):
    def before(self, x):
        return x[:, :, max(0, x.shape[2] - self.window + 2) :]


@_rolling_wrong(
    "a slice from −0 on; common",
    "With a window of 1 the slice x[-(window - 1):] is x[-0:], which is "
    "everything. Slice from a start that you compute.",
)
class RollingCacheMinusZero(_Rolling):
    def before(self, x):
        return x[:, :, -(self.window - 1) :]


@_rolling_wrong(
    "ring not unrolled; common",
    "What comes back is the ring as it lies in memory: in the order of its "
    "places, not of time. Turn it so that the oldest comes first.",
)
class RollingCacheTurned(_Rolling):
    def update(self, layer, k, v):
        result = super().update(layer, k, v)
        count, seen = result[0].shape[2], self.seen[layer]
        if k.shape[2] > 1 or seen <= self.window:
            return result
        places = torch.arange(seen - count, seen) % self.window
        return tuple(x[:, :, places.argsort()] for x in result)


@_rolling_wrong(
    "no forgetting; common",
    "Everything is kept, and stored only claims otherwise: memory grows with "
    "the text. Keep the end and let go of the rest.",
)
class RollingCacheKeepsAll(_Rolling):
    @property
    def stored(self):
        return min(self.length, self.window)

    def kept(self, x):
        return x

    def join(self, old, new):
        return torch.cat([old, new], dim=2)

    def give(self, x, Tnew):
        return x[:, :, max(0, x.shape[2] - self.window + 1 - Tnew) :].clone()


@_rolling_wrong(
    "M317's kind: a slice that holds on to everything",
    "What is kept is a slice, and a slice keeps the whole tensor alive that "
    "it was cut from: after a long prompt, all of it. Copy the slice.",
)
class RollingCacheSlices(_Rolling):
    def kept(self, x):
        return x[:, :, max(0, x.shape[2] - self.window) :]


@_rolling_wrong(
    "review: a view of the first prompt",
    "What is kept of the first prompt is a slice, which holds on to all of "
    "it until the next token comes. Copy the slice there, too.",
)
class RollingCacheFirstSlice(_Rolling):
    def update(self, layer, k, v):
        first = self.pairs[layer] is None
        result = super().update(layer, k, v)
        if first:
            self.pairs[layer] = tuple(
                x.clone()[:, :, max(0, x.shape[2] - self.window) :]
                for x in (k, v)
            )
        return result


@_rolling_wrong(
    "contiguous() for a copy; common",
    "contiguous() copies only what is not contiguous yet. With one sequence "
    "and one head the end of a text is, so you keep a view of all of it, and "
    "of what you returned. Use clone().",
)
class RollingCacheContiguous(_Rolling):
    def kept(self, x):
        return x[:, :, max(0, x.shape[2] - self.window) :].contiguous()

    def give(self, x, Tnew):
        return x


@_rolling_wrong(
    "review: stored of one layer",
    "stored looks at the first layer alone. Layers are updated one after the "
    "other: count what every layer keeps.",
)
class RollingCacheStoredFirst(_Rolling):
    @property
    def stored(self):
        return min(self.seen[0], self.window)


@_rolling_wrong(
    "no window at all",
    "Everything that was ever seen comes back, as in task 6.3. Tokens that "
    "no new query sees are to be dropped.",
)
class RollingCacheNoWindow(_Rolling):
    def before(self, x):
        return x

    def kept(self, x):
        return x


@_rolling_wrong(
    "length of what is kept; common",
    "length counts what is kept. It counts all tokens that were seen, since "
    "the position of the next one follows from it.",
)
class RollingCacheLengthStored(_Rolling):
    @property
    def length(self):
        return self.stored


@_rolling_wrong(
    "stored counts what was seen; plausible",
    "stored grows beyond the window: it counts tokens that are gone.",
)
class RollingCacheStoredSeen(_Rolling):
    @property
    def stored(self):
        return self.length


@_rolling_wrong(
    "chunk kept whole; plausible",
    "After a long chunk all of it is kept, until the next call: more than "
    "`window` tokens. Cut after the update, too.",
)
class RollingCacheChunkKept(_Rolling):
    def kept(self, x):
        return x


@_rolling_wrong(
    "M153 the longest layer",
    "length is that of the layer that has seen most. It counts what every "
    "layer has seen.",
)
class RollingCacheLongest(_Rolling):
    @property
    def length(self):
        return max(self.seen)


@_rolling_wrong(
    "calls counted; plausible",
    "length counts calls of update. A call may bring several tokens.",
)
class RollingCacheCalls(_Rolling):
    def update(self, layer, k, v):
        result = super().update(layer, k, v)
        self.seen[layer] += 1 - k.shape[2]
        return result


@_rolling_wrong(
    "long chunks cut on the way in; plausible",
    "A chunk longer than the window is cut to the window before it is "
    "returned. All of its queries need their keys.",
)
class RollingCacheLongCut(_Rolling):
    def give(self, x, Tnew):
        return x[:, :, -self.window :].clone() if Tnew > self.window else x


@_rolling_wrong(
    "M311 zeros until the ring is full",
    "Until it is full, the cache returns its empty places as well: zeros "
    "that attention takes for keys.",
)
class RollingCachePadded(_Rolling):
    def give(self, x, Tnew):
        due = self.window - 1 + Tnew
        return F.pad(x, (0, 0, due - x.shape[2], 0))


@_rolling_wrong(
    "M302 new before old",
    "New tokens stand before the old ones. The order is that of time.",
)
class RollingCacheNewFirst(_Rolling):
    def join(self, old, new):
        return torch.cat([new, self.before(old)], dim=2)

    def kept(self, x):
        return x[:, :, : self.window]

    def before(self, x):
        return x[:, :, : max(self.window - 1, 0)]


@_rolling_wrong(
    "the oldest are kept; plausible",
    "When it is full the newest are dropped. A window slides on: drop the "
    "oldest.",
)
class RollingCacheKeepsOldest(_Rolling):
    def kept(self, x):
        return x[:, :, : self.window]


@_rolling_wrong(
    "M304 shared layers",
    "All layers share one storage. Make one for each of them.",
)
class RollingCacheSharedLayers(_Rolling):
    def update(self, layer, k, v):
        result = super().update(0, k, v)
        self.seen = [self.seen[0]] * self.n_layers
        return result

    @property
    def stored(self):
        pair = self.pairs[0]
        return 0 if pair is None else pair[0].shape[2]


@_rolling_wrong(
    "M308 tokens left",
    "reset sets the counts to 0 and leaves the tokens, which come back with "
    "the next text.",
)
class RollingCacheTokensLeft(_Rolling):
    def __init__(self, n_layers, *sizes):
        self.pairs = [None] * n_layers
        super().__init__(n_layers, *sizes)

    def reset(self):
        self.seen = [0] * self.n_layers

    @property
    def stored(self):
        return min(super().stored, self.length)


@_rolling_wrong(
    "M308 counts left",
    "reset forgets the tokens, but length goes on from where it was.",
)
class RollingCacheCountsLeft(_Rolling):
    def __init__(self, n_layers, *sizes):
        self.seen = [0] * n_layers
        super().__init__(n_layers, *sizes)

    def reset(self):
        self.pairs = [None] * self.n_layers


@_rolling_wrong(
    "default dtype",
    "Everything is converted to float32. What comes back has k's dtype.",
)
class RollingCacheFloat32(_Rolling):
    def take(self, x):
        return x.float().clone()


@_rolling_wrong(
    "M063 made on the CPU",
    "The storage is made on the CPU. It has to be where k is.",
)
class RollingCacheCpu(_Rolling):
    def take(self, x):
        return torch.zeros(x.shape, dtype=x.dtype).copy_(x)


@_rolling_wrong(
    "M318 the stored tensor itself",
    "You return the very tensors that you keep, or views of them. A caller "
    "that overwrites them overwrites the cache: return a copy.",
)
class RollingCacheReturnsOwn(_Rolling):
    def give(self, x, Tnew):
        return x

    def kept(self, x):
        return x if x.shape[2] <= self.window else super().kept(x)


@_rolling_wrong(
    "M318's kind on the way in",
    "You keep the tensors that you were given. Store a copy.",
)
class RollingCacheKeepsGiven(_Rolling):
    def take(self, x):
        return x

    def kept(self, x):
        return x if x.shape[2] <= self.window else super().kept(x)


@_rolling_wrong(
    "M153 one counter; a ring",
    "The ring's place is computed from length, which all layers share. A "
    "layer that is ahead of the others overwrites what it needs: count for "
    "each layer.",
)
class RollingCacheCommonPlace(RollingCacheRing):
    def update(self, layer, k, v):
        own, self.seen[layer] = self.seen[layer], min(self.seen)
        result = super().update(layer, k, v)
        self.seen[layer] = own + k.shape[2]
        return result


@_rolling_wrong(
    "cut now and then; plausible",
    "Tokens are dropped only when twice the window are there, so that more "
    "than window are kept. Cut after each call.",
)
class RollingCacheCutLate(_Rolling):
    def kept(self, x):
        late = x.shape[2] >= 2 * self.window
        return super().kept(x) if late else x.clone()


@_rolling_wrong(
    "precision: float32 inside",
    "What is kept is float32, and comes back in k's dtype without its last "
    "digits. Keep k's dtype.",
)
class RollingCacheRounded(_Rolling):
    def take(self, x):
        return x.float().to(x.dtype)


@_rolling_wrong(
    "half precision widened",
    "Half-precision keys come back in float32. Keep k's dtype.",
)
class RollingCacheWidened(_Rolling):
    def take(self, x):
        return x.float() if x.dtype == torch.float16 else x.clone()


# 6.6 PagedKVCache


@oracle(
    "PagedKVCache",
    evidence="a plain model: lists of tokens, and block objects whose users "
    "are found by looking at every sequence",
)
class PagedKVCachePlain:
    def __init__(self, n_blocks, block_size=16):
        self.n_blocks, self.block_size = n_blocks, block_size
        self.tokens, self.blocks = {}, {}

    @property
    def free_blocks(self):
        used = {id(b) for blocks in self.blocks.values() for b in blocks}
        return self.n_blocks - len(used)

    def append(self, seq, k, v):
        tokens, blocks = self.tokens.get(seq, ()), self.blocks.get(seq, ())
        inside = len(tokens) % self.block_size
        others = [
            b
            for name, theirs in self.blocks.items()
            if name != seq
            for b in theirs
        ]
        alone = inside and not any(b is blocks[-1] for b in others)
        if not alone:
            if self.free_blocks == 0:
                raise RuntimeError("full")
            blocks = (*(blocks[:-1] if inside else blocks), object())
        self.blocks[seq] = blocks
        self.tokens[seq] = (*tokens, (k.clone(), v.clone()))

    def gather(self, seq):
        keys, values = zip(*self.tokens[seq], strict=True)
        return torch.stack(keys), torch.stack(values)

    def fork(self, src, dst):
        if src not in self.tokens:
            raise KeyError(src)
        if dst in self.tokens:
            raise ValueError(dst)
        self.tokens[dst], self.blocks[dst] = self.tokens[src], self.blocks[src]

    def free(self, seq):
        del self.tokens[seq], self.blocks[seq]


class _Paged:
    """A right paged cache in pieces; a block is a list of tokens."""

    def __init__(self, n_blocks, block_size=16):
        self.block_size = block_size
        self.blocks = [[] for _ in range(n_blocks)]
        self.users = [0] * n_blocks
        self.unused = list(range(n_blocks))[::-1]
        self.tables = {}
        self.lengths = {}

    @property
    def free_blocks(self):
        return len(self.unused)

    def new(self):
        if not self.unused:
            raise RuntimeError("no free block")
        block = self.unused.pop()
        self.blocks[block] = []
        self.users[block] = 1
        return block

    def started(self, seq):
        return list(self.tables.get(seq, []))

    def is_shared(self, block):
        return self.users[block] > 1

    def left(self, block):
        self.users[block] -= 1

    def copied(self, block, offset):
        return list(self.blocks[block][:offset])

    def keep(self, x):
        return x.clone()

    def append(self, seq, k, v):
        table, length = self.started(seq), self.lengths.get(seq, 0)
        offset = length % self.block_size
        if offset == 0:
            table.append(self.new())
        elif self.is_shared(table[-1]):
            old, block = table[-1], self.new()
            self.blocks[block] = self.copied(old, offset)
            self.left(old)
            table[-1] = block
        self.write(table[-1], offset, (self.keep(k), self.keep(v)))
        self.tables[seq], self.lengths[seq] = table, length + 1

    def write(self, block, offset, pair):
        self.blocks[block][offset:] = [pair]

    def pairs(self, seq):
        table = self.tables[seq]
        pairs = [pair for block in table for pair in self.blocks[block]]
        return pairs[: self.lengths[seq]]

    def gather(self, seq):
        keys, values = zip(*self.pairs(seq), strict=True)
        return torch.stack(keys), torch.stack(values)

    def fork(self, src, dst):
        table = self.tables[src]
        if dst in self.tables:
            raise ValueError(f"{dst} exists")
        self.shared(src, dst, table)

    def shared(self, src, dst, table):
        for block in table:
            self.users[block] += 1
        self.tables[dst], self.lengths[dst] = list(table), self.lengths[src]

    def free(self, seq):
        for block in self.tables.pop(seq):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)
        del self.lengths[seq]


@right("PagedKVCache", evidence="K76 lists of tokens in blocks, user counts")
class PagedKVCacheLists(_Paged):
    pass


@right("PagedKVCache", evidence="a set of free blocks; users found by search")
class PagedKVCacheSearch:
    def __init__(self, n_blocks, block_size=16):
        self.size, self.free_blocks = block_size, n_blocks
        self.store, self.sequences = {}, {}
        self.ids = itertools.count()

    def _others(self, block, seq):
        return [
            name
            for name, (blocks, _) in self.sequences.items()
            if name != seq and block in blocks
        ]

    def append(self, seq, k, v):
        blocks, count = self.sequences.get(seq, ([], 0))
        at = count % self.size
        if at == 0 or self._others(blocks[-1], seq):
            if self.free_blocks < 1:
                raise RuntimeError("out of blocks")
            self.free_blocks -= 1
            fresh = next(self.ids)
            old = self.store[blocks[-1]] if at else None
            self.store[fresh] = dict(old) if at else {}
            blocks = (blocks[:-1] if at else blocks) + [fresh]
        self.store[blocks[-1]][at] = (k.detach().clone(), v.detach().clone())
        self.sequences[seq] = (blocks, count + 1)

    def gather(self, seq):
        blocks, count = self.sequences[seq]
        pairs = [
            self.store[blocks[i // self.size]][i % self.size]
            for i in range(count)
        ]
        return [torch.stack([p[side] for p in pairs]) for side in (0, 1)]

    def fork(self, src, dst):
        if src not in self.sequences:
            raise KeyError(f"no sequence {src}")
        if dst in self.sequences:
            raise ValueError(f"{dst} is taken")
        blocks, count = self.sequences[src]
        self.sequences[dst] = (blocks[:], count)

    def free(self, seq):
        blocks, _ = self.sequences[seq]
        for block in blocks:
            if not self._others(block, seq):
                del self.store[block]
                self.free_blocks += 1
        del self.sequences[seq]


def _paged_wrong(evidence, hint):
    return wrong("PagedKVCache", evidence=evidence, hint=hint)


@_paged_wrong(
    "no sharing; common",
    "fork copies all blocks at once, so a fork costs as much as a second "
    "sequence. It takes no block: both use the same ones until one of them "
    "writes.",
)
class PagedKVCacheForkCopies(_Paged):
    def shared(self, src, dst, table):
        new = []
        for block in table:
            other = self.new()
            self.blocks[other] = list(self.blocks[block])
            new.append(other)
        self.tables[dst], self.lengths[dst] = new, self.lengths[src]


@_paged_wrong(
    "no copy on write; curriculum 6.6",
    "Both sequences write into the shared block: a token of one appears in "
    "the other, or overwrites its. Copy a block that is shared before you "
    "write into it.",
)
class PagedKVCacheNoCopy(_Paged):
    def is_shared(self, block):
        return False


@_paged_wrong(
    "table shared instead of blocks; common",
    "After a fork both names have the same list of blocks, so a block that "
    "one of them takes belongs to both. Copy the list; the blocks stay "
    "shared.",
)
class PagedKVCacheOneTable(_Paged):
    def started(self, seq):
        return self.tables.get(seq, [])

    def shared(self, src, dst, table):
        super().shared(src, dst, table)
        self.tables[dst] = table


@_paged_wrong(
    "copied tokens forgotten; plausible",
    "Copy on write takes a new block but copies nothing into it: the tokens "
    "that the shared block held are lost to the one that writes.",
)
class PagedKVCacheEmptyCopy(_Paged):
    def copied(self, block, offset):
        pair = self.blocks[block][0]
        return [(pair[0] * 0, pair[1] * 0)] * offset


@_paged_wrong(
    "one token copied; plausible",
    "Copy on write copies a single token. Copy all that the shared block "
    "holds so far: offset many.",
)
class PagedKVCacheCopiesOne(_Paged):
    def copied(self, block, offset):
        return self.blocks[block][:1] * offset


@_paged_wrong(
    "str(seq) for a key; plausible",
    'Names are turned into text, so that 1 and "1" are one sequence. Take '
    "the name as it is for a key.",
)
class PagedKVCacheTextNames(_Paged):
    def append(self, seq, k, v):
        super().append(str(seq), k, v)

    def pairs(self, seq):
        return super().pairs(str(seq))

    def fork(self, src, dst):
        super().fork(str(src), str(dst))

    def free(self, seq):
        super().free(str(seq))


@_paged_wrong(
    "src == dst asked first; plausible",
    "A fork to itself is a ValueError even where there is no such sequence. "
    "Look first whether it exists: a KeyError.",
)
class PagedKVCacheItselfFirst(_Paged):
    def fork(self, src, dst):
        if src == dst:
            raise ValueError(f"{dst} exists")
        super().fork(src, dst)


@_paged_wrong(
    "users not counted down; vLLM's reference counts",
    "After a copy the old block still counts the sequence that left it. So "
    "the other one, which is alone now, copies as well, and the old block is "
    "never free again.",
)
class PagedKVCacheBothCopy(_Paged):
    def left(self, block):
        pass


@_paged_wrong(
    "every block of a fork is marked for ever; plausible",
    "A block that was shared once is copied at every later append, also by "
    "a sequence that is alone with it.",
)
class PagedKVCacheMarked(_Paged):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.marked = set()

    def shared(self, src, dst, table):
        super().shared(src, dst, table)
        self.marked.update(table)

    def is_shared(self, block):
        return block in self.marked

    def left(self, block):
        super().left(block)
        if self.users[block] == 0:
            self.unused.append(block)


@_paged_wrong(
    "full blocks copied, too; plausible",
    "At the first append after a fork all blocks are copied. Only the one "
    "that is written into has to be: full blocks are never written again.",
)
class PagedKVCacheCopiesAll(_Paged):
    def append(self, seq, k, v):
        table = self.started(seq)
        if any(self.users[block] > 1 for block in table):
            shared = [b for b in table if self.users[b] > 1]
            if len(shared) > len(self.unused):
                raise RuntimeError("no free block")
            for place, block in enumerate(table):
                if self.users[block] > 1:
                    new = self.new()
                    self.blocks[new] = list(self.blocks[block])
                    self.left(block)
                    table[place] = new
            self.tables[seq] = table
        super().append(seq, k, v)


@_paged_wrong(
    "last block copied even if full; plausible",
    "A fork of a sequence whose last block is full copies that block at the "
    "next append. A full block is not written into: take a new one and leave "
    "it shared.",
)
class PagedKVCacheCopiesFull(_Paged):
    def append(self, seq, k, v):
        table = self.started(seq)
        if table and self.users[table[-1]] > 1:
            if self.lengths[seq] % self.block_size == 0:
                old, new = table[-1], self.new()
                self.blocks[new] = list(self.blocks[old])
                self.left(old)
                self.tables[seq] = [*table[:-1], new]
        super().append(seq, k, v)


@_paged_wrong(
    "eager allocation; plausible",
    "A new block is taken as soon as the last one is full. Take it when a "
    "token needs it: most sequences end before.",
)
class PagedKVCacheEager(_Paged):
    def append(self, seq, k, v):
        table = self.started(seq)
        length = self.lengths.get(seq, 0)
        if not table:
            table.append(self.new())
        offset = length % self.block_size
        block = table[length // self.block_size]
        if self.is_shared(block):
            new = self.new()
            self.blocks[new] = self.copied(block, offset)
            self.left(block)
            table[-1] = block = new
        self.write(block, offset, (k.clone(), v.clone()))
        if offset == self.block_size - 1:
            table.append(self.new())
        self.tables[seq], self.lengths[seq] = table, length + 1


@_paged_wrong(
    "a block a token; plausible",
    "Every token takes a block of its own. A block holds block_size tokens.",
)
class PagedKVCacheBlockPerToken(_Paged):
    def __init__(self, n_blocks, block_size=16):
        super().__init__(n_blocks, 1)


@_paged_wrong(
    "free list by arithmetic; plausible",
    "free_blocks adds up the blocks of all sequences, so that a block that "
    "two of them share counts twice.",
)
class PagedKVCacheCountedTwice(_Paged):
    @property
    def free_blocks(self):
        return len(self.blocks) - sum(map(len, self.tables.values()))


@_paged_wrong(
    "tokens counted; plausible",
    "free_blocks is computed from the number of all tokens, as if sequences "
    "shared their last blocks. Each rounds up by itself.",
)
class PagedKVCachePooledTokens(_Paged):
    @property
    def free_blocks(self):
        tokens = sum(
            min(self.block_size, len(self.blocks[block]))
            for block in {b for t in self.tables.values() for b in t}
        )
        return len(self.blocks) - -(-tokens // self.block_size)


@_paged_wrong(
    "default 8; common",
    "Without a block_size your blocks do not hold 16 tokens.",
)
class PagedKVCacheDefault(_Paged):
    def __init__(self, n_blocks, block_size=8):
        super().__init__(n_blocks, block_size)


@_paged_wrong(
    "leak; common",
    "free gives no block back, so the pool runs dry.",
)
class PagedKVCacheLeak(_Paged):
    def free(self, seq):
        del self.tables[seq], self.lengths[seq]


@_paged_wrong(
    "no user counts; curriculum 6.6",
    "free gives back blocks that a fork still uses: the next sequence "
    "overwrites them. Count the users of each block.",
)
class PagedKVCacheFreesShared(_Paged):
    def free(self, seq):
        for block in self.tables.pop(seq):
            self.users[block] = max(self.users[block] - 1, 0)
            if block not in self.unused:
                self.unused.append(block)
        del self.lengths[seq]


@_paged_wrong(
    "shared blocks never freed; plausible",
    "Blocks of a sequence that was forked are never given back, also when "
    "both have ended. Count down at each free, and give back at 0.",
)
class PagedKVCacheSharedLeak(_Paged):
    def free(self, seq):
        for block in self.tables.pop(seq):
            if self.users[block] == 1:
                self.unused.append(block)
        del self.lengths[seq]


@_paged_wrong(
    "last block only; plausible",
    "free gives back one block. A sequence has as many as its table lists.",
)
class PagedKVCacheFreesOne(_Paged):
    def free(self, seq):
        table = self.tables[seq]
        for block in table[:-1]:
            self.users[block] += 1
        super().free(seq)


@_paged_wrong(
    "the sequence remains; plausible",
    "After free the sequence still exists, with no blocks or with those that "
    "now belong to others. Forget its table.",
)
class PagedKVCacheStillThere(_Paged):
    def free(self, seq):
        for block in self.tables[seq]:
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)
        self.tables[seq] = self.tables[seq][:0]
        self.lengths[seq] = 0


@_paged_wrong(
    "review: freed twice",
    "A sequence that was freed may be freed again, without an error. It does "
    "not exist any more: that is a KeyError, as for any unknown name.",
)
class PagedKVCacheFreesTwice(_Paged):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.freed = set()

    def free(self, seq):
        if seq in self.tables or seq not in self.freed:
            super().free(seq)
        self.freed.add(seq)


@_paged_wrong(
    "review: a name once forked to",
    "A fork to a name that was freed is refused. Only the names of sequences "
    "that exist are taken: forget a name when it is freed.",
)
class PagedKVCacheForksOnce(_Paged):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.made = set()

    def fork(self, src, dst):
        if dst in self.made:
            raise ValueError(f"{dst} exists")
        super().fork(src, dst)
        self.made.add(dst)


@_paged_wrong(
    "review: gathered tokens remembered by name and length",
    "gather returns what it returned earlier for this name and this length, "
    "also if the sequence was freed and begun anew in between. Forget such "
    "results when a sequence is freed, or gather anew.",
)
class PagedKVCacheRemembers(_Paged):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.gathered = {}

    def gather(self, seq):
        key = seq, self.lengths[seq]
        if key not in self.gathered:
            self.gathered[key] = super().gather(seq)
        return tuple(x.clone() for x in self.gathered[key])


@_paged_wrong(
    "started before the block is there; common",
    "When no block is free, a new sequence is left behind without tokens. "
    "Find a block first, then write anything down.",
)
class PagedKVCacheStartsFirst(_Paged):
    def append(self, seq, k, v):
        if seq not in self.tables:
            self.tables[seq], self.lengths[seq] = [], 0
        super().append(seq, k, v)


@_paged_wrong(
    "setdefault before the block is there; common",
    "When no block is free, the new name stays in the table, so that a later "
    "fork to it is refused. Write a name down when its block is there.",
)
class PagedKVCacheNameLeft(_Paged):
    def started(self, seq):
        return list(self.tables.setdefault(seq, []))

    def gather(self, seq):
        self.lengths[seq]  # a KeyError where nothing was stored
        return super().gather(seq)


@_paged_wrong(
    "length counted first; plausible",
    "When no block is free, the sequence's length has grown all the same. "
    "Change nothing before a block is found.",
)
class PagedKVCacheCountsFirst(_Paged):
    def append(self, seq, k, v):
        before = self.lengths.get(seq)
        try:
            super().append(seq, k, v)
        except RuntimeError:
            if before is not None:
                self.lengths[seq] = before + 1
                block = self.tables[seq][-1]
                self.blocks[block] = [*self.blocks[block], (k * 0, v * 0)]
            raise


@_paged_wrong(
    "left before the block is there; plausible",
    "When a copy is due and no block is free, the sequence has already left "
    "the shared block: users are counted down before the RuntimeError.",
)
class PagedKVCacheLeavesFirst(_Paged):
    def append(self, seq, k, v):
        table, length = self.started(seq), self.lengths.get(seq, 0)
        if length % self.block_size and self.is_shared(table[-1]):
            if not self.unused:
                self.left(table[-1])
        super().append(seq, k, v)


@_paged_wrong(
    "other exceptions; common",
    "A full pool raises something else than a RuntimeError, perhaps the "
    "IndexError of an empty list. Check and raise.",
)
class PagedKVCacheIndexError(_Paged):
    def new(self):
        block = self.unused.pop()
        self.blocks[block], self.users[block] = [], 1
        return block


@_paged_wrong(
    "MemoryError; plausible",
    "A full pool is a MemoryError. The contract has a RuntimeError, which a "
    "server catches to let a sequence wait.",
)
class PagedKVCacheMemoryError(_Paged):
    def new(self):
        if not self.unused:
            raise MemoryError("no free block")
        return super().new()


@_paged_wrong(
    "grows in silence; common",
    "There is no limit: when no block is free, a new one is made. The pool "
    "has n_blocks.",
)
class PagedKVCacheUnlimited(_Paged):
    def new(self):
        if not self.unused:
            self.blocks.append([])
            self.users.append(1)
            return len(self.blocks) - 1
        return super().new()


@_paged_wrong(
    "padding returned; M311's kind",
    "gather returns whole blocks, with places that were never written, or "
    "not by this sequence. Cut at the sequence's length.",
)
class PagedKVCachePadded(_Paged):
    def pairs(self, seq):
        pairs = super().pairs(seq)
        missing = -len(pairs) % self.block_size
        zero = tuple(x * 0 for x in pairs[0])
        return pairs + [zero] * missing


@_paged_wrong(
    "cut by the block, not by the sequence; plausible",
    "gather returns all that the blocks hold, also tokens that another "
    "sequence appended to a shared one. Cut at the sequence's own length.",
)
class PagedKVCacheUncut(_Paged):
    def is_shared(self, block):
        return False

    def append(self, seq, k, v):
        table, length = self.started(seq), self.lengths.get(seq, 0)
        if not table or len(self.blocks[table[-1]]) == self.block_size:
            table.append(self.new())
        self.blocks[table[-1]].append((k.clone(), v.clone()))
        self.tables[seq], self.lengths[seq] = table, length + 1

    def pairs(self, seq):
        table = self.tables[seq]
        return [pair for block in table for pair in self.blocks[block]]


@_paged_wrong(
    "order of block numbers; plausible",
    "gather goes over the blocks in the order of their numbers. The order "
    "is that of the sequence's table.",
)
class PagedKVCacheSorted(_Paged):
    def pairs(self, seq):
        self.tables[seq] = sorted(self.tables[seq])
        return super().pairs(seq)


@_paged_wrong(
    "joined instead of stacked; common",
    "gather joins the tokens along an axis that they have. They are stacked "
    "along a new first axis.",
)
class PagedKVCacheConcatenated(_Paged):
    def gather(self, seq):
        keys, values = zip(*self.pairs(seq), strict=True)
        return (
            torch.cat([torch.atleast_1d(x) for x in keys]),
            torch.cat([torch.atleast_1d(x) for x in values]),
        )


@_paged_wrong(
    "newest first; plausible",
    "gather returns the newest token first. The order is that of append.",
)
class PagedKVCacheReversed(_Paged):
    def pairs(self, seq):
        return super().pairs(seq)[::-1]


@_paged_wrong(
    "one length for all; plausible",
    "All sequences share a place in the block: two that are filled in turns "
    "get each other's tokens. Each has a table and a length of its own.",
)
class PagedKVCacheOneSequence(_Paged):
    def append(self, seq, k, v):
        super().append(0, k, v)

    def gather(self, seq):
        return super().gather(0)

    def free(self, seq):
        if 0 in self.tables:
            super().free(0)

    def fork(self, src, dst):
        pass


@_paged_wrong(
    "unknown names are empty; common",
    "A sequence that does not exist is treated as an empty one. That hides "
    "mistakes of the caller: it is a KeyError.",
)
class PagedKVCacheForgiving(_Paged):
    def gather(self, seq):
        if seq not in self.tables:
            return torch.empty(0), torch.empty(0)
        return super().gather(seq)

    def free(self, seq):
        if seq in self.tables:
            super().free(seq)

    def fork(self, src, dst):
        if src in self.tables:
            super().fork(src, dst)


@_paged_wrong(
    "a fork over an existing name; common",
    "A fork to a name that exists replaces that sequence, whose blocks are "
    "never free again. It is a ValueError.",
)
class PagedKVCacheForkOver(_Paged):
    def fork(self, src, dst):
        self.shared(src, dst, self.tables[src])


@_paged_wrong(
    "M318's kind on the way in",
    "You keep the tensors that you were given. Store copies.",
)
class PagedKVCacheKeepsGiven(_Paged):
    def keep(self, x):
        return x


@_paged_wrong(
    "default dtype",
    "Blocks are float32, whatever was appended. What comes back has the "
    "dtype of k.",
)
class PagedKVCacheFloat32(_Paged):
    def keep(self, x):
        return x.float().clone()


@_paged_wrong(
    "mlx#3071: class-level state",
    "Two caches share their sequences: a table that belongs to the class, "
    "or a mutable default argument. Create it in __init__.",
)
class PagedKVCacheOfClass(_Paged):
    newest = None

    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        PagedKVCacheOfClass.newest = self.__dict__

    def append(self, seq, k, v):
        self.__dict__ = PagedKVCacheOfClass.newest
        super().append(seq, k, v)


@_paged_wrong(
    "users counted before the name is looked at; plausible",
    "A fork that is refused has counted its users already, so those blocks "
    "are never free again. Look at both names first.",
)
class PagedKVCacheCountsRefused(_Paged):
    def fork(self, src, dst):
        for block in self.tables[src]:
            self.users[block] += 1
        if dst in self.tables:
            raise ValueError(f"{dst} exists")
        self.tables[dst] = list(self.tables[src])
        self.lengths[dst] = self.lengths[src]


@_paged_wrong(
    "collections.defaultdict; common",
    "Asking for a sequence that does not exist creates it, as a defaultdict "
    "does: a later fork to that name is refused. Use `in`, or get.",
)
class PagedKVCacheCreates(_Paged):
    def free(self, seq):
        if not self.tables.setdefault(seq, []):
            raise KeyError(seq)
        super().free(seq)

    def started(self, seq):
        return list(self.tables.get(seq) or [])

    def pairs(self, seq):
        if not self.tables.get(seq):
            raise KeyError(seq)
        return super().pairs(seq)


@_paged_wrong(
    "only the fork copies; plausible",
    "Only the sequence that was made by a fork copies a shared block; the "
    "original writes into it. Whoever writes first copies.",
)
class PagedKVCacheForkCopiesOnly(_Paged):
    def append(self, seq, k, v):
        self.writer = seq
        super().append(seq, k, v)

    def shared(self, src, dst, table):
        self.forks = {*getattr(self, "forks", ()), dst}
        super().shared(src, dst, table)

    def is_shared(self, block):
        fork = self.writer in getattr(self, "forks", ())
        return fork and super().is_shared(block)


@_paged_wrong(
    "any block shared; plausible",
    "With no block free you refuse a token to every sequence that shares a "
    "block. Only its last block matters: where that is its own and not full, "
    "no block is needed.",
)
class PagedKVCacheRefusesEarly(_Paged):
    def append(self, seq, k, v):
        if not self.unused and any(map(self.is_shared, self.started(seq))):
            raise RuntimeError("no free block")
        super().append(seq, k, v)


@_paged_wrong(
    "precision: float32 inside",
    "What is kept is float32, and comes back in k's dtype without its last "
    "digits. Keep k's dtype.",
)
class PagedKVCacheRounded(_Paged):
    def keep(self, x):
        return x.float().to(x.dtype)


@_paged_wrong(
    "names of other libraries",
    "The constructor's parameters have other names than in the task, and "
    "the caller may use those: n_blocks and block_size.",
)
class PagedKVCacheOtherNames(_Paged):
    def __init__(self, num_blocks, page_size=16):
        super().__init__(num_blocks, page_size)


@_paged_wrong(
    "ValueError for everything; common",
    "A sequence that does not exist is a ValueError. The contract has a "
    "KeyError.",
)
class PagedKVCacheValueError(_Paged):
    def known(self, seq):
        if seq not in self.tables:
            raise ValueError(f"there is no {seq}")

    def gather(self, seq):
        self.known(seq)
        return super().gather(seq)

    def free(self, seq):
        self.known(seq)
        super().free(seq)

    def fork(self, src, dst):
        self.known(src)
        super().fork(src, dst)


# 6.7 online_softmax_state


@oracle("online_softmax_state", evidence="scipy's logsumexp, and a loop")
def online_softmax_state_scipy(s):
    from scipy import special

    m = np.full(s.shape[:-1], -np.inf, dtype=s.dtype)
    for index in np.ndindex(m.shape):
        for score in s[index]:
            m[index] = max(m[index], score)
    with np.errstate(all="ignore"):
        if s.shape[-1] == 0:
            return m, np.zeros_like(m)
        total = special.logsumexp(s.astype(float), axis=-1) - m
    return m, np.where(np.isneginf(m), 0, np.exp(total)).astype(s.dtype)


@right("online_softmax_state", evidence="the log-sum-exp itself, and l = 1")
def online_softmax_state_lse(s):
    from scipy import special

    if s.shape[-1] == 0:
        empty = np.full(s.shape[:-1], -np.inf, dtype=s.dtype)
        return empty, np.zeros_like(empty)
    lse = np.asarray(special.logsumexp(s, axis=-1), dtype=s.dtype)
    return lse, (lse > -np.inf).astype(s.dtype)


@right("online_softmax_state", evidence="Milakov 2018: one score at a time")
def online_softmax_state_stream(s):
    m = np.full(s.shape[:-1], -np.inf, dtype=s.dtype)
    total = np.zeros_like(m)
    for score in np.moveaxis(s, -1, 0):
        new = np.maximum(m, score)
        base = np.where(new == -np.inf, s.dtype.type(0), new)
        total = total * np.exp(m - base) + np.exp(score - base)
        m = new
    return m, total


@right("online_softmax_state", evidence="K81 a finite guard; K02 einsum")
def online_softmax_state_guard(s):
    s64 = np.concatenate([np.full((*s.shape[:-1], 1), -np.inf), s], axis=-1)
    m = s64.max(-1)
    with np.errstate(invalid="ignore"):
        e = np.nan_to_num(np.exp(s64 - m[..., None]))
    return m.astype(s.dtype), np.einsum("...n->...", e).astype(s.dtype)


def _state_wrong(evidence, hint):
    return wrong("online_softmax_state", evidence=evidence, hint=hint)


def _guarded(m):
    return np.where(np.isneginf(m), np.zeros_like(m), m)


def _sum_exp(s, m):
    return np.exp(s - m[..., None]).sum(-1)


def _top(s):
    return s.max(-1, initial=-np.inf)


@_state_wrong(
    "M332 maximum starts at 0; curriculum 6.7",
    "Your maximum starts at 0, so it is too large where all scores are "
    "negative: far below 0 every exponential is 0. Start from −inf.",
)
def online_softmax_state_from_zero(s):
    m = s.max(-1, initial=0)
    return m, _sum_exp(s, m)


@_state_wrong(
    "M001 no maximum",
    "There is no maximum: exp(s) overflows for large scores and vanishes "
    "for small ones.",
)
def online_softmax_state_no_maximum(s):
    with np.errstate(all="ignore"):
        total = np.exp(s).sum(-1)
    return np.zeros_like(total), total


@_state_wrong(
    "M329's kind: l is not relative to m",
    "l is the plain sum of exp(s), but m + ln l counts m again: l has to be "
    "relative to m, the sum of exp(s − m).",
)
def online_softmax_state_absolute(s):
    with np.errstate(all="ignore"):
        return _top(s), np.exp(s).sum(-1)


@_state_wrong(
    "sign; common",
    "The sign in the exponent is reversed: exp(m − s) is large where the "
    "score is small.",
)
def online_softmax_state_sign(s):
    m = _top(s)
    with np.errstate(all="ignore"):
        return m, np.exp(_guarded(m)[..., None] - s).sum(-1)


@_state_wrong(
    "order of the pair; common",
    "m and l are swapped. Return m first.",
)
def online_softmax_state_swapped(s):
    m, total = online_softmax_state_stream(s)
    return total, m


@_state_wrong(
    "logarithm taken already; plausible",
    "The second number is ln l. Return l itself, which can be added.",
)
def online_softmax_state_log(s):
    m, total = online_softmax_state_stream(s)
    with np.errstate(all="ignore"):
        return m, np.log(total)


@_state_wrong(
    "the maximum is counted extra; plausible",
    "l is 1 too large, or the maximum's own exponential is counted twice. "
    "It is one of the terms of the sum.",
)
def online_softmax_state_twice(s):
    m, total = online_softmax_state_stream(s)
    return m, total + (total > 0)


@_state_wrong(
    "mean; plausible",
    "l is the mean of the exponentials. Means of pieces of different lengths "
    "cannot be merged: take the sum.",
)
def online_softmax_state_mean(s):
    m, total = online_softmax_state_stream(s)
    return m, total / max(s.shape[-1], 1)


@_state_wrong(
    "M003 one maximum for all rows",
    "The maximum is that of the whole array. A row far below it is lost: "
    "take each row's own.",
)
def online_softmax_state_global(s):
    m = np.full(s.shape[:-1], s.max(initial=-np.inf), dtype=s.dtype)
    return m, _sum_exp(s, _guarded(m))


@_state_wrong(
    "axis 0; common",
    "The state is taken over the first axis. Each row is one slice of the "
    "last axis.",
)
def online_softmax_state_first_axis(s):
    m = s.max(0, initial=-np.inf)
    return m, np.exp(s - _guarded(m)).sum(0)


@_state_wrong(
    "M007's kind: keepdims",
    "The last axis is still there, with size 1. m and l have s's shape "
    "without its last axis.",
)
def online_softmax_state_keepdims(s):
    m, total = online_softmax_state_stream(s)
    return m[..., None], total[..., None]


@_state_wrong(
    "M334 −inf − (−inf)",
    "Where every score is −inf you subtract −inf from −inf, which is NaN. "
    "Subtract something finite there: exp(−inf) is 0.",
)
def online_softmax_state_nan(s):
    m = _top(s)
    with np.errstate(invalid="ignore"):
        return m, _sum_exp(s, m)


@_state_wrong(
    "K81 half done: nan_to_num on m",
    "Where nothing is visible m has become a finite number or l something "
    "else than 0. The state of nothing is (−inf, 0): only what is "
    "subtracted has to be finite.",
)
def online_softmax_state_finite(s):
    m = np.maximum(_top(s), s.dtype.type(-1e9))
    with np.errstate(invalid="ignore"):
        return m, _sum_exp(np.maximum(s, m.dtype.type(-1e9)), m)


@_state_wrong(
    "maximum of nothing; common",
    "With no score at all it raises: numpy has no maximum of an empty axis. "
    "Give it an initial value.",
)
def online_softmax_state_empty(s):
    m = s.max(-1)
    return m, _sum_exp(s, _guarded(m))


@_state_wrong(
    "l = 1 for nothing; plausible",
    "Where nothing is visible l is 1, as if one score had been seen. Then "
    "(m, l) with a finite m would stand for a key that is not there: the "
    "state is (−inf, 0).",
)
def online_softmax_state_one_for_nothing(s):
    m, total = online_softmax_state_stream(s)
    return _guarded(m), np.where(total == 0, 1, total).astype(s.dtype)


@_state_wrong(
    "precision: float64 for all",
    "A float32 row gives a float64 state. Keep the scores' dtype.",
)
def online_softmax_state_double(s):
    return online_softmax_state_stream(s.astype(np.float64))


@_state_wrong(
    "M011 in place",
    "The scores are changed: −= works on the caller's array. Subtract into a "
    "new one.",
)
def online_softmax_state_in_place(s):
    m = _top(s)
    s -= _guarded(m)[..., None]
    return m, np.exp(s).sum(-1)


@_state_wrong(
    "base 2; FlashAttention kernels work with exp2",
    "The exponentials have base 2. Kernels do that after scaling the scores "
    "by log2(e); without it the result differs.",
)
def online_softmax_state_base_two(s):
    m = _top(s)
    return m, np.exp2(s - _guarded(m)[..., None]).sum(-1)


@_state_wrong(
    "torch for numpy; common",
    "You return torch's tensors. The task is one of numpy: two arrays.",
)
def online_softmax_state_tensors(s):
    return tuple(torch.from_numpy(x) for x in online_softmax_state_stream(s))


@_state_wrong(
    "a start that is low enough for most; common",
    "The maximum starts at a finite number such as −1e9, and where nothing is "
    "visible it stays there. Start at −inf.",
)
def online_softmax_state_low_start(s):
    m = s.max(-1, initial=-1e9)
    return m, _sum_exp(s, m)


@_state_wrong(
    "a guard left in m; plausible",
    "Where nothing is visible m is 0, the guard against −inf − (−inf). "
    "Subtract it, but return −inf: a merge takes the larger m, and 0 may be "
    "far above the other piece.",
)
def online_softmax_state_guard_returned(s):
    m, total = online_softmax_state_stream(s)
    return _guarded(m), total


@_state_wrong(
    "clamped for safety; plausible",
    "The maximum is limited to a range such as ±100, as a guard. Scores "
    "beyond it overflow all the same, or vanish: subtract the maximum itself.",
)
def online_softmax_state_limited(s):
    m = np.where(np.isneginf(_top(s)), _top(s), np.clip(_top(s), -100, 100))
    return m, _sum_exp(s, _guarded(m))


# 6.7 merge_states


@oracle("merge_states", evidence="numpy's logaddexp of the two log-sums")
def merge_states_logaddexp(a, b):
    with np.errstate(all="ignore"):
        one, other = (m + np.log(total) for m, total in (a, b))
        both = np.logaddexp(one.astype(float), other.astype(float))
    m = np.maximum(a[0], b[0])
    total = np.exp(both - np.where(np.isneginf(m), 0, m))
    return m, np.where(np.isneginf(m), 0, total).astype(m.dtype)


@right("merge_states", evidence="K81 where on every part")
def merge_states_where(a, b):
    (m1, l1), (m2, l2) = a, b
    first = m1 >= m2
    m = np.where(first, m1, m2)
    with np.errstate(invalid="ignore"):
        smaller = np.exp(-np.abs(m1 - m2))
    smaller = np.where(np.isnan(smaller), m.dtype.type(0), smaller)
    return m, np.where(first, l1 + l2 * smaller, l2 + l1 * smaller)


@right("merge_states", evidence="only the log-sum is kept, with l = 1")
def merge_states_one(a, b):
    with np.errstate(all="ignore"):
        one, other = (m + np.log(total) for m, total in (a, b))
        m = np.logaddexp(one, other)
    return m, np.isfinite(m).astype(m.dtype)


@right("merge_states", evidence="K03 number by number")
def merge_states_loops(a, b):
    m = np.empty_like(a[0])
    total = np.empty_like(a[1])
    for index in np.ndindex(m.shape):
        pairs = [(x[0][index], x[1][index]) for x in (a, b)]
        pairs = [pair for pair in pairs if pair[1] > 0]
        m[index] = max((pair[0] for pair in pairs), default=-np.inf)
        total[index] = sum(np.exp(p[0] - m[index]) * p[1] for p in pairs)
    return [m, total]


def _merge_wrong(evidence, hint):
    return wrong("merge_states", evidence=evidence, hint=hint)


def _merged(a, b, scale_a=None, scale_b=None):
    """The right merge, with some corrections replaced."""
    m = np.maximum(a[0], b[0])
    base = _guarded(m)
    with np.errstate(all="ignore"):
        one = np.exp(a[0] - base) if scale_a is None else scale_a(a[0], base)
        other = np.exp(b[0] - base) if scale_b is None else scale_b(b[0], base)
        return m, a[1] * one + b[1] * other


def _unscaled(old, new):
    return np.ones_like(old)


@_merge_wrong(
    "M329 no rescaling; curriculum 6.7",
    "The two sums are added as they are, though each is relative to its own "
    "maximum. Bring them to the common one first.",
)
def merge_states_added(a, b):
    return _merged(a, b, _unscaled, _unscaled)


@_merge_wrong(
    "M329 the old sum is not rescaled",
    "Only the second sum is corrected. When the second piece has the larger "
    "maximum, the first sum has to shrink.",
)
def merge_states_first_kept(a, b):
    return _merged(a, b, scale_a=_unscaled)


@_merge_wrong(
    "M329 the new sum is not rescaled",
    "Only the first sum is corrected. When the first piece has the larger "
    "maximum, the second sum has to shrink.",
)
def merge_states_second_kept(a, b):
    return _merged(a, b, scale_b=_unscaled)


@_merge_wrong(
    "M331 sign of the correction",
    "The corrections grow where they should shrink: it is exp(old maximum − "
    "common maximum), at most 1.",
)
def merge_states_sign(a, b):
    def scale(old, base):
        return np.exp(base - old)

    return _merged(a, b, scale, scale)


@_merge_wrong(
    "M331's kind: corrections swapped",
    "The corrections are swapped: each sum is multiplied by the other "
    "piece's.",
)
def merge_states_swapped(a, b):
    return _merged(
        a,
        b,
        lambda old, base: np.exp(b[0] - base),
        lambda old, base: np.exp(a[0] - base),
    )


@_merge_wrong(
    "relative to the first; plausible",
    "Everything is brought to the first maximum. That is right on paper; "
    "where the second is much larger, its correction overflows. Take the "
    "larger one.",
)
def merge_states_first_reference(a, b):
    m = a[0]
    with np.errstate(all="ignore"):
        total = a[1] + b[1] * np.exp(b[0] - _guarded(m))
    empty = np.isneginf(m)
    return np.where(empty, b[0], m), np.where(empty, b[1], total)


@_merge_wrong(
    "the smaller maximum; plausible",
    "Everything is brought to the smaller maximum, so that corrections "
    "exceed 1 and overflow when the maxima are far apart. Take the larger "
    "one.",
)
def merge_states_smaller(a, b):
    m = np.minimum(a[0], b[0])
    m = np.where(np.isneginf(m), np.maximum(a[0], b[0]), m)
    base = _guarded(m)
    with np.errstate(all="ignore"):
        return m, a[1] * np.exp(a[0] - base) + b[1] * np.exp(b[0] - base)


@_merge_wrong(
    "M332 maximum starts at 0",
    "The common maximum is at least 0. Where both pieces lie far below, "
    "both corrections vanish. Start from the two maxima themselves.",
)
def merge_states_at_least_zero(a, b):
    m = np.maximum(np.maximum(a[0], b[0]), 0)
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


@_merge_wrong(
    "sum of exponents without m; plausible",
    "You leave the logarithmic scale: exp(m) overflows for large maxima and "
    "vanishes for small ones. Only differences of maxima may be "
    "exponentiated.",
)
def merge_states_linear(a, b):
    with np.errstate(all="ignore"):
        total = a[1] * np.exp(a[0]) + b[1] * np.exp(b[0])
    return np.zeros_like(total), total


@_merge_wrong(
    "the larger piece wins; plausible",
    "Only the piece with the larger maximum is kept. The other one's scores "
    "are smaller, and there are many of them.",
)
def merge_states_winner(a, b):
    first = a[0] >= b[0]
    return np.where(first, a[0], b[0]), np.where(first, a[1], b[1])


@_merge_wrong(
    "maxima added; plausible",
    "The maxima are added. The common maximum is the larger of the two.",
)
def merge_states_sum_of_maxima(a, b):
    m = a[0] + b[0]
    return m, _merged(a, b)[1]


@_merge_wrong(
    "M334 both empty",
    "Two empty states give NaN: −inf − (−inf). Where both are empty, "
    "subtract something finite; the corrections then are 0.",
)
def merge_states_nan(a, b):
    m = np.maximum(a[0], b[0])
    with np.errstate(invalid="ignore"):
        return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


@_merge_wrong(
    "one test for all rows; common",
    "You ask once whether a state is empty. Each row is a state of its own: "
    "some may be empty and others not.",
)
def merge_states_whole_empty(a, b):
    if np.isneginf(a[0]).all():
        return b
    if np.isneginf(b[0]).all():
        return a
    return merge_states_nan(a, b)


@_merge_wrong(
    "l = 1 for nothing; plausible",
    "Two empty states give one that is not: l must stay 0, or m −inf.",
)
def merge_states_empty_counts(a, b):
    m, total = _merged(a, b)
    empty = np.isneginf(m)
    return np.where(empty, 0, m).astype(m.dtype), np.where(
        empty, 1, total
    ).astype(m.dtype)


@_merge_wrong(
    "averaged; plausible",
    "The sums are averaged. The denominator of the whole row is the sum of "
    "both.",
)
def merge_states_averaged(a, b):
    m, total = _merged(a, b)
    return m, total / 2


@_merge_wrong(
    "maximum applied twice; M331",
    "The sum of the larger piece is corrected, too, by exp(m) or a second "
    "time. Its maximum is the common one, so its correction is 1.",
)
def merge_states_twice(a, b):
    def scale(old, base):
        return np.exp(2 * (old - base))

    return _merged(a, b, scale, scale)


@_merge_wrong(
    "base 2",
    "The corrections have base 2. The sums are sums of natural exponentials.",
)
def merge_states_base_two(a, b):
    def scale(old, base):
        return np.exp2(old - base)

    return _merged(a, b, scale, scale)


@_merge_wrong(
    "order of the pair",
    "l comes back before m. Return (m, l).",
)
def merge_states_reversed_pair(a, b):
    return _merged(a, b)[::-1]


@_merge_wrong(
    "precision: float64 for all",
    "float32 states give a float64 state. Keep their dtype.",
)
def merge_states_double(a, b):
    a, b = (tuple(x.astype(np.float64) for x in pair) for pair in (a, b))
    return _merged(a, b)


@_merge_wrong(
    "M011 in place",
    "The first state is changed. Its owner may merge it with another one "
    "later: make new arrays.",
)
def merge_states_in_place(a, b):
    m, total = _merged(a, b)
    a[1][...] = total
    a[0][...] = m
    return m, total


@_merge_wrong(
    "if m_a > m_b for whole arrays; plausible",
    "One piece's maximum is the common one for all rows, whichever array has "
    "the largest. Each row has its own: take the larger in each.",
)
def merge_states_whole_array(a, b):
    (m_a, l_a), (m_b, l_b) = a, b
    m = m_a if m_a.max(initial=-np.inf) >= m_b.max(initial=-np.inf) else m_b
    m = np.where(np.isneginf(m), np.maximum(m_a, m_b), m)
    base = _guarded(m)
    return m, l_a * np.exp(m_a - base) + l_b * np.exp(m_b - base)


@_merge_wrong(
    "one maximum for all rows; plausible",
    "All rows are relative to the largest maximum of the array. A row far "
    "below it vanishes: take each row's own.",
)
def merge_states_one_maximum(a, b):
    (m_a, l_a), (m_b, l_b) = a, b
    top = _guarded(np.maximum(m_a, m_b).max(initial=-np.inf))
    total = l_a * np.exp(m_a - top) + l_b * np.exp(m_b - top)
    return np.where(total > 0, top, -np.inf).astype(m_a.dtype), total


@_merge_wrong(
    "−1e30 for −inf; common in kernels",
    "Two empty states give a finite m, the number that stands for −inf in "
    "your code. Return −inf there.",
)
def merge_states_sentinel(a, b):
    (m_a, l_a), (m_b, l_b) = a, b
    m_a, m_b = (np.maximum(m, m.dtype.type(-1e30)) for m in (m_a, m_b))
    m = np.maximum(m_a, m_b)
    return m, l_a * np.exp(m_a - m) + l_b * np.exp(m_b - m)


# 6.8 flash_forward


def _wide(x):
    """x in float32 or wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@oracle(
    "flash_forward",
    evidence="torch.logaddexp over the keys, then a second pass, in float64",
)
def flash_forward_two_passes(q, k, v, *, block_q, block_k, is_causal):
    wide = torch.promote_types(q.dtype, torch.float32)
    dtype, (q, k, v) = q.dtype, (x.detach().double() for x in (q, k, v))
    Tq, Tk = q.shape[-2], k.shape[-2]
    position = torch.arange(Tq) + Tk - Tq

    def scores(j):  # (..., Tq), with one key
        s = (q * k[..., j : j + 1, :]).sum(-1) / math.sqrt(q.shape[-1])
        return s.masked_fill(is_causal & (position < j), -math.inf)

    lse = torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    for j in range(Tk):
        lse = torch.logaddexp(lse, scores(j))
    safe = lse.masked_fill(lse == -math.inf, math.inf)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for j in range(Tk):
        out += (scores(j) - safe).exp()[..., None] * v[..., j : j + 1, :]
    return out.to(dtype), lse.to(wide)


class _Flash:
    """A right forward pass in tiles, in pieces."""

    def __call__(self, q, k, v, *, block_q, block_k, is_causal):
        self.causal, dtype = is_causal, q.dtype
        self.Tq, self.Tk = q.shape[-2], k.shape[-2]
        self.block_q, self.block_k = self.sizes(block_q, block_k)
        q, k, v = (self.wide(x) for x in (q, k, v))
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        lse = q.new_zeros(q.shape[:-1])
        for i in self.starts(self.Tq, self.block_q):
            rows = slice(i, min(i + self.block_q, self.Tq))
            state = self.row_of_tiles(q, k, v, rows)
            out[..., rows, :], lse[..., rows] = self.finish(*state)
        return out.to(dtype), self.result(lse, dtype)

    def row_of_tiles(self, q, k, v, rows):
        q = q[..., rows, :]
        m = torch.full(q.shape[:-1], self.start, dtype=q.dtype)
        total = torch.zeros_like(m)
        acc = q.new_zeros(*m.shape, v.shape[-1])
        for j in self.starts(self.Tk, self.block_k):
            columns = slice(j, min(j + self.block_k, self.Tk))
            if self.causal and self.skips(rows, columns):
                continue
            keys, values = self.tile(k, columns), self.tile(v, columns)
            s = self.scores(q, keys)
            if self.causal:
                s = s.masked_fill(self.hidden(rows, columns), self.fill)
            m, total, acc = self.update(m, total, acc, s, values)
        return m, total, acc

    start = fill = -math.inf

    def sizes(self, block_q, block_k):
        return block_q, block_k

    def wide(self, x):
        return _wide(x)

    def starts(self, T, size):
        return range(0, T, size)

    def ahead(self):
        return self.Tk - self.Tq

    def skips(self, rows, columns):
        return columns.start > rows.stop - 1 + self.ahead()

    def hidden(self, rows, columns):
        i = torch.arange(rows.start, rows.stop) + self.ahead()
        return torch.arange(columns.start, columns.stop) > i[:, None]

    def tile(self, x, columns):
        return x[..., columns, :]

    def scale(self, d):
        return 1 / math.sqrt(d)

    def scores(self, q, k):
        return q @ k.mT * self.scale(q.shape[-1])

    def finite(self, m):
        return m.masked_fill(m == -math.inf, 0)

    def correction(self, old, new):
        return torch.exp(old - self.finite(new))

    def top(self, s):
        return s.amax(-1)

    def update(self, m, total, acc, s, values):
        new = torch.maximum(m, self.top(s))
        p = torch.exp(s - self.finite(new)[..., None])
        factor = self.correction(m, new)
        return (
            new,
            self.more(total, factor, p),
            self.added(acc, factor, p @ values),
        )

    def more(self, total, factor, p):
        return total * factor + p.sum(-1)

    def added(self, acc, factor, part):
        return acc * factor[..., None] + part

    def divisor(self, total):
        return total.masked_fill(total == 0, 1)

    def log_sum(self, m, total):
        return m + self.divisor(total).log()

    def finish(self, m, total, acc):
        return acc / self.divisor(total)[..., None], self.log_sum(m, total)

    def result(self, lse, dtype):
        return lse


def _answered(cls):
    """The function that a class of pieces stands for."""

    def flash(q, k, v, *, block_q, block_k, is_causal):
        return cls()(
            q, k, v, block_q=block_q, block_k=block_k, is_causal=is_causal
        )

    flash.__name__ = cls.__name__
    return flash


@right("flash_forward", evidence="K79 division deferred; queries outside")
@_answered
class flash_forward_pieces(_Flash):
    pass


@right("flash_forward", evidence="plausible: positions listed by torch")
@_answered
class flash_forward_listed(_Flash):
    def starts(self, T, size):
        return torch.arange(0, T, size).tolist()


@right("flash_forward", evidence="K79 running output, always divided")
@_answered
class flash_forward_running(_Flash):
    def update(self, m, total, acc, s, values):
        lse = torch.logsumexp(s, -1)
        seen = s.amax(-1) > -math.inf
        part = s.masked_fill(~seen[..., None], 0).softmax(-1) @ values
        old = m
        new = torch.logaddexp(old, torch.where(seen, lse, -math.inf))
        base = self.finite(new)
        acc = acc * torch.exp(old - base)[..., None]
        weight = torch.where(seen, torch.exp(lse - base), 0)
        return new, total, acc + part * weight[..., None]

    def finish(self, m, total, acc):
        return acc, m


@right("flash_forward", evidence="K79 keys outside, queries inside; in place")
def flash_forward_keys_outside(q, k, v, *, block_q, block_k, is_causal):
    Tq, Tk, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
    m = torch.full(q.shape[:-1], -math.inf, dtype=wide)
    total = torch.zeros(q.shape[:-1], dtype=wide)
    for j in range(0, Tk, block_k):
        key = torch.arange(Tk)[j : j + block_k]
        kj, vj = k[..., key, :].to(wide), v[..., key, :].to(wide)
        for i in range(0, Tq, block_q):
            row = torch.arange(Tq)[i : i + block_q]
            s = torch.einsum("...id,...jd->...ij", q[..., row, :].to(wide), kj)
            s /= d**0.5
            if is_causal:
                late = key > (row + Tk - Tq)[:, None]
                s.masked_fill_(late, float("-inf"))
            new = torch.maximum(m[..., row], s.max(-1).values)
            base = torch.where(torch.isinf(new), 0, new)
            p = torch.exp(s - base[..., None])
            factor = torch.exp(m[..., row] - base)
            m[..., row] = new
            total[..., row] = total[..., row] * factor + p.sum(-1)
            old = acc[..., row, :] * factor[..., None]
            acc[..., row, :] = old + torch.einsum("...ij,...jd->...id", p, vj)
    alive = total > 0
    acc /= torch.where(alive, total, 1)[..., None]
    lse = torch.where(alive, m + total.log(), float("-inf"))
    return acc.to(q.dtype), lse


@right("flash_forward", evidence="K80 l starts at 1; K81 finite guards")
@_answered
class flash_forward_one_start(_Flash):
    def row_of_tiles(self, q, k, v, rows):
        self.one = True
        return super().row_of_tiles(q, k, v, rows)

    def more(self, total, factor, p):
        if self.one:
            total, self.one = total + 1, False
        return super().more(total, factor, p)


def _flash_wrong(evidence, hint):
    mark = wrong("flash_forward", evidence=evidence, hint=hint)

    def marked(answer):
        if isinstance(answer, type):
            answer = _answered(answer)
        return mark(answer)

    return marked


@_flash_wrong(
    "M328 the classic",
    "The output that was accumulated is not rescaled when the maximum rises, "
    "so the first tiles weigh too much. It is relative to the old maximum, "
    "as the sum is.",
)
class flash_forward_output_kept(_Flash):
    def added(self, acc, factor, part):
        return acc + part


@_flash_wrong(
    "M329",
    "The sum is not rescaled when the maximum rises: output and sum are then "
    "relative to different maxima.",
)
class flash_forward_sum_kept(_Flash):
    def more(self, total, factor, p):
        return total + p.sum(-1)


@_flash_wrong(
    "M328, M329 together; M331: the maximum is overwritten first",
    "Neither sum nor output is rescaled when the maximum rises: a factor is "
    "missing, or it is always 1 since the old maximum is overwritten before "
    "it is used.",
)
class flash_forward_nothing_rescaled(_Flash):
    def correction(self, old, new):
        return torch.ones_like(new)


@_flash_wrong(
    "M331 sign of the correction",
    "The correction is exp(new maximum − old maximum), which grows. What "
    "was summed up relative to a smaller maximum has to shrink.",
)
class flash_forward_correction_sign(_Flash):
    def correction(self, old, new):
        return torch.exp(self.finite(new) - self.finite(old))


@_flash_wrong(
    "maximum of the tile; M328's kind",
    "Each tile is relative to its own maximum, and the running one is lost: "
    "the new maximum is the larger of the old one and the tile's.",
)
class flash_forward_tile_maximum(_Flash):
    def update(self, m, total, acc, s, values):
        new = s.amax(-1)
        p = torch.exp(s - self.finite(new)[..., None])
        factor = self.correction(m, new)
        return (
            torch.maximum(m, new),
            self.more(total, factor, p),
            self.added(acc, factor, p @ values),
        )


@_flash_wrong(
    "softmax in each tile; common",
    "Each tile has a softmax of its own, and the outputs are added or "
    "averaged. A tile's weights depend on the sums of all others.",
)
class flash_forward_tile_softmax(_Flash):
    def update(self, m, total, acc, s, values):
        seen = s.amax(-1, keepdim=True) > -math.inf
        part = s.masked_fill(~seen, 0).softmax(-1) * seen
        new = torch.logaddexp(m, s.logsumexp(-1).nan_to_num(neginf=-1e300))
        new = torch.where(seen[..., 0], new, m)
        return new, total + seen[..., 0], acc + part @ values

    def log_sum(self, m, total):
        return m


@_flash_wrong(
    "M332 maximum starts at 0",
    "The running maximum starts at 0. Where all scores lie far below 0, "
    "every exponential vanishes and 0/0 is left. Start at −inf.",
)
class flash_forward_from_zero(_Flash):
    start = 0.0


@_flash_wrong(
    "M333 flashinfer#4267",
    "Hidden scores, or the starting maximum, are a finite number such as "
    "−1e6. Scores may lie below it, and then hidden keys win. Use −inf.",
)
class flash_forward_sentinel(_Flash):
    fill = -1e6


@_flash_wrong(
    "M333 with a far larger number; common",
    "Hidden scores are a finite number such as −1e9. A query that sees no "
    "key then averages the values of what is hidden. Use −inf.",
)
class flash_forward_billion(_Flash):
    fill = -1e9


@_flash_wrong(
    "M334 flash-attention#1948",
    "A row of which nothing is visible yet gives −inf − (−inf), which is "
    "NaN. Subtract something finite there.",
)
class flash_forward_nan(_Flash):
    def finite(self, m):
        return m


@_flash_wrong(
    "0/0 in dead rows; M069",
    "A query that sees no key ends as 0/0. Its output is 0: divide by "
    "something else where the sum is 0.",
)
class flash_forward_dead_division(_Flash):
    def finish(self, m, total, acc):
        return acc / total[..., None], m + total.log()


@_flash_wrong(
    "lse of a dead row; plausible",
    "The log-sum-exp of a query that sees no key is 0 or another finite "
    "number. Nothing was summed up: it is −inf.",
)
class flash_forward_dead_lse(_Flash):
    def log_sum(self, m, total):
        return self.finite(m) + self.divisor(total).log()


@_flash_wrong(
    "M336 flashinfer#5090",
    "The last tile of keys is filled up with zeros, which get the weight "
    "exp(0 − m). Cut the tile, or hide the places behind the end.",
)
class flash_forward_padded(_Flash):
    def tile(self, x, columns):
        return F.pad(
            x[..., columns, :],
            (0, 0, 0, self.block_k - (columns.stop - columns.start)),
        )

    def hidden(self, rows, columns):
        hidden = super().hidden(rows, columns)
        return F.pad(hidden, (0, self.block_k - hidden.shape[-1]), value=False)


@_flash_wrong(
    "M336's kind: tiles counted by //",
    "Keys behind the last full tile are left out: the number of tiles is "
    "rounded down. Round up.",
)
class flash_forward_tail_dropped(_Flash):
    def starts(self, T, size):
        if T == self.Tk and T > size:
            return range(0, T - size + 1, size)
        return range(0, T, size)


@_flash_wrong(
    "ragged queries left out; plausible",
    "Queries behind the last full tile are left out: their output is 0. "
    "Round the number of tiles up.",
)
class flash_forward_queries_dropped(_Flash):
    def starts(self, T, size):
        if size == self.block_q and T == self.Tq and T > size:
            return range(0, T - size + 1, size)
        return range(0, T, size)

    def row_of_tiles(self, q, k, v, rows):
        saved, self.starts = self.starts, super().starts
        state = super().row_of_tiles(q, k, v, rows)
        self.starts = saved
        return state


@_flash_wrong(
    "M337 starts compared",
    "A tile is skipped if it starts behind the tile of queries. The later "
    "queries of the tile still see its first keys: compare with the last "
    "query.",
)
class flash_forward_skip_by_starts(_Flash):
    def skips(self, rows, columns):
        return columns.start > rows.start + self.ahead()


@_flash_wrong(
    "tile numbers compared; M337's kind",
    "Tiles are skipped by their numbers, which count the same only if both "
    "blocks have the same size. Compare positions.",
)
class flash_forward_skip_by_number(_Flash):
    def skips(self, rows, columns):
        tile = (rows.start + self.ahead()) // self.block_q
        return columns.start // self.block_k > tile


@_flash_wrong(
    "curriculum 6.8: skipping off by one",
    "The tile with the diagonal is skipped, or the last visible key: skip "
    "only tiles that begin behind the last query.",
)
class flash_forward_skip_one_more(_Flash):
    def skips(self, rows, columns):
        return columns.stop > rows.stop + self.ahead()


@_flash_wrong(
    "M338 positions within a tile",
    "The causal mask compares places within the tile. Only tiles on the "
    "diagonal may be masked that way: add where the tile starts.",
)
class flash_forward_local_mask(_Flash):
    def hidden(self, rows, columns):
        i = torch.arange(rows.stop - rows.start)
        return torch.arange(columns.stop - columns.start) > i[:, None]


@_flash_wrong(
    "M339 sparkinfer#3, flash-attention#517",
    "The causal mask is aligned to the upper left. With Tq ≠ Tk the queries "
    "are the newest positions: shift by Tk − Tq.",
)
class flash_forward_upper_left(_Flash):
    def ahead(self):
        return 0


@_flash_wrong(
    "M339 in the skip only",
    "The mask is shifted by Tk − Tq, the skipping of tiles is not, so tiles "
    "that the queries see are left out.",
)
class flash_forward_skip_unshifted(_Flash):
    def skips(self, rows, columns):
        return columns.start > rows.stop - 1


@_flash_wrong(
    "M054 the diagonal is hidden",
    "A query does not see its own key: hide what lies behind its position, "
    "not the position itself.",
)
class flash_forward_no_diagonal(_Flash):
    def hidden(self, rows, columns):
        i = torch.arange(rows.start, rows.stop) + self.ahead()
        return torch.arange(columns.start, columns.stop) >= i[:, None]


@_flash_wrong(
    "M056 one key too many",
    "A query sees the key after its own.",
)
class flash_forward_looks_ahead(_Flash):
    def hidden(self, rows, columns):
        i = torch.arange(rows.start, rows.stop) + self.ahead() + 1
        return torch.arange(columns.start, columns.stop) > i[:, None]

    def skips(self, rows, columns):
        return columns.start > rows.stop + self.ahead()


@_flash_wrong(
    "M052 is_causal ignored",
    "is_causal has no effect: every query sees every key.",
)
class flash_forward_not_causal(_Flash):
    def hidden(self, rows, columns):
        return torch.zeros(1, 1, dtype=torch.bool)

    def skips(self, rows, columns):
        return False


@_flash_wrong(
    "M014's kind: no scale",
    "The scores are not divided by √d.",
)
class flash_forward_unscaled(_Flash):
    def scale(self, d):
        return 1.0


@_flash_wrong(
    "scale by d; common",
    "The scores are divided by d. It is √d.",
)
class flash_forward_scaled_by_d(_Flash):
    def scale(self, d):
        return 1 / d


@_flash_wrong(
    "output not divided; plausible",
    "The output is not divided by the sum: it is Σ exp(s − m) v, which needs "
    "the softmax's denominator at the end.",
)
class flash_forward_undivided(_Flash):
    def finish(self, m, total, acc):
        return acc, self.log_sum(m, total)


@_flash_wrong(
    "lse without the maximum; scaling-book#52's kind",
    "The second result is ln l, relative to the maximum. Add the maximum: "
    "it is the logarithm of the true sum.",
)
class flash_forward_lse_relative(_Flash):
    def log_sum(self, m, total):
        return self.divisor(total).log() + torch.where(m == -math.inf, m, 0)


@_flash_wrong(
    "the maximum for lse; plausible",
    "The second result is the running maximum. Add ln l to it.",
)
class flash_forward_maximum_only(_Flash):
    def log_sum(self, m, total):
        return m


@_flash_wrong(
    "the sum for lse; plausible",
    "The second result is the sum relative to the maximum. Take its "
    "logarithm and add the maximum.",
)
class flash_forward_sum_only(_Flash):
    def log_sum(self, m, total):
        return total


@_flash_wrong(
    "base 2; kernels with exp2",
    "The log-sum-exp has base 2. The natural logarithm is asked for: "
    "multiply by ln 2.",
)
class flash_forward_log2(_Flash):
    def log_sum(self, m, total):
        return super().log_sum(m, total) / math.log(2)


@_flash_wrong(
    "M343 accumulated in half precision",
    "Half-precision inputs are computed in half precision, tile after tile. "
    "Widen to float32 first, and round the output once, at the end.",
)
class flash_forward_half(_Flash):
    def wide(self, x):
        return x

    def result(self, lse, dtype):
        return _wide(lse)


@_flash_wrong(
    "M343 scores in half precision",
    "The scores are computed in half precision, where large ones overflow "
    "to inf. Widen q and k before the product.",
)
class flash_forward_half_scores(_Flash):
    def __call__(self, q, k, v, **how):
        self.half = q.dtype == torch.float16
        return super().__call__(q, k, v, **how)

    def scores(self, q, k):
        if self.half:
            return (q.half() @ k.half().mT).float() * self.scale(q.shape[-1])
        return super().scores(q, k)


@_flash_wrong(
    "lse in half precision",
    "The log-sum-exp has the inputs' half precision. It is float32 there.",
)
class flash_forward_half_lse(_Flash):
    def result(self, lse, dtype):
        return lse.to(dtype)


@_flash_wrong(
    "float32 for all; convention on precision",
    "float64 inputs are computed in float32. Widen only what is narrower: "
    "x.float() on float64 loses nine digits.",
)
class flash_forward_float32(_Flash):
    def wide(self, x):
        return x.float()

    def result(self, lse, dtype):
        return lse.to(torch.promote_types(dtype, torch.float32))


@_flash_wrong(
    "dv taken for d; plausible",
    "The output has the width of the keys. dv may differ from d.",
)
class flash_forward_width(_Flash):
    def __call__(self, q, k, v, **how):
        return super().__call__(
            q, k, F.pad(v, (0, q.shape[-1] - v.shape[-1])), **how
        )


@_flash_wrong(
    "plain attention: no tiles at all",
    "This is plain attention: right, and all scores are there at once. Go "
    "over tiles of keys, with a running maximum and sum.",
)
def flash_forward_plain(q, k, v, *, block_q, block_k, is_causal):
    return flash_forward_pieces(
        q, k, v, block_q=10**6, block_k=10**6, is_causal=is_causal
    )


@_flash_wrong(
    "fresh reader: plain attention where the check does not look",
    "The numbers leave PyTorch's tensors for an array or a list, where the "
    "check cannot measure what you hold. Compute with tensors, tile by tile.",
)
def flash_forward_in_numpy(q, k, v, *, block_q, block_k, is_causal):
    wide = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    s = np.matmul(*(x.numpy() for x in (next(wide), next(wide).mT)))
    s = s / math.sqrt(q.shape[-1])
    Tq, Tk = s.shape[-2:]
    if is_causal:
        s = np.where(np.tri(Tq, Tk, Tk - Tq, dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    power = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = power.sum(-1, keepdims=True)
    out = power / np.where(total == 0, 1, total) @ v.numpy().astype(s.dtype)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    return torch.from_numpy(out).to(q.dtype), torch.from_numpy(lse)


@_flash_wrong(
    "review: attention in Python's floats passed",
    "You take q, k or the scores out one by one, with item() or float(), and "
    "compute in Python's numbers, where the check cannot measure what you "
    "hold. Compute with tensors, tile by tile.",
)
def flash_forward_by_floats(q, k, v, *, block_q, block_k, is_causal):
    heads = [
        _row_by_row(
            *([[*map(float, row)] for row in x] for x in head), is_causal
        )
        for head in zip(
            *(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)), strict=True
        )
    ]
    outs, sums = zip(*heads, strict=True)
    out = torch.tensor(outs, dtype=torch.float64).to(q.dtype)
    lse = torch.tensor(sums, dtype=torch.float64).to(_wide(q).dtype)
    return (
        out.reshape(*q.shape[:-1], v.shape[-1]),
        lse.reshape(q.shape[:-1]),
    )


def _row_by_row(q, k, v, is_causal):
    """Attention of one head in lists of floats: output and log-sum-exp."""
    outs, sums = [], []
    for i, query in enumerate(q):
        seen = max(0, i + 1 + len(k) - len(q)) if is_causal else len(k)
        scores = [
            sum(a * b for a, b in zip(query, key, strict=True))
            / math.sqrt(len(query))
            for key in k[:seen]
        ]
        top = max(scores, default=-math.inf)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        outs.append(
            [
                sum(p * value[c] for p, value in zip(powers, v, strict=False))
                / (total or 1)
                for c in range(len(v[0]))
            ]
        )
        sums.append(top + math.log(total or 1))
    return outs, sums


@_flash_wrong(
    "a loop over heads; plausible",
    "You go over batch and heads one by one and compute plain attention for "
    "each: the scores of one head are there as a whole. Tile queries and "
    "keys.",
)
def flash_forward_by_heads(q, k, v, *, block_q, block_k, is_causal):
    shape = q.shape[:-2]
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    pairs = [
        flash_forward_plain(*one, block_q=1, block_k=1, is_causal=is_causal)
        for one in zip(*flat, strict=True)
    ]
    out, lse = (torch.stack(part) for part in zip(*pairs, strict=True))
    return out.unflatten(0, shape or (1,)).reshape(
        *shape, *out.shape[1:]
    ), lse.reshape(*shape, lse.shape[-1])


@_flash_wrong(
    "tiles of queries only; plausible",
    "Only the queries are tiled: every tile meets all keys at once. That "
    "needs no running maximum, and memory that grows with the text.",
)
class flash_forward_query_tiles(_Flash):
    def sizes(self, block_q, block_k):
        return block_q, 10**6


@_flash_wrong(
    "one query at a time; plausible",
    "Each query meets all its keys at once, one query after the other, as in "
    "an ordinary softmax. Memory is small that way, but block_k has no part "
    "in it: tile the keys, too.",
)
class flash_forward_single_queries(_Flash):
    def sizes(self, block_q, block_k):
        return 1, 10**6


@_flash_wrong(
    "tiles of keys only; plausible",
    "Only the keys are tiled: all queries meet each tile at once. Tile the "
    "queries as well.",
)
class flash_forward_key_tiles(_Flash):
    def sizes(self, block_q, block_k):
        return 10**6, block_k


@_flash_wrong(
    "fixed tiles; plausible",
    "The tiles have a size of their own, whatever block_q and block_k say. "
    "The caller knows what fits on the chip: use the arguments.",
)
class flash_forward_fixed_tiles(_Flash):
    def sizes(self, block_q, block_k):
        return 16, 16


@_flash_wrong(
    "tiles kept and joined; plausible",
    "The tiles of scores are kept in a list and joined at the end: together "
    "they are all the scores. Use a tile up before the next one.",
)
def flash_forward_joined(q, k, v, *, block_q, block_k, is_causal):
    dtype, Tq, Tk = q.dtype, q.shape[-2], k.shape[-2]
    q, k, v = map(_wide, (q, k, v))
    rows = []
    for i in range(0, Tq, block_q):
        tiles = []
        for j in range(0, Tk, block_k):
            s = q[..., i : i + block_q, :] @ k[..., j : j + block_k, :].mT
            tiles.append(s / math.sqrt(q.shape[-1]))
        rows.append(tiles)
    outs, sums = [], []
    for i, tiles in enumerate(rows):
        s = torch.cat(tiles, dim=-1)
        if is_causal:
            at = torch.arange(s.shape[-2]) + i * block_q + Tk - Tq
            hide = torch.arange(Tk) > at[:, None]
            s = s.masked_fill(hide, -math.inf)
        lse = s.logsumexp(-1)
        safe = lse.masked_fill(lse == -math.inf, 0)
        outs.append(torch.exp(s - safe[..., None]) @ v)
        sums.append(lse)
    return torch.cat(outs, -2).to(dtype), torch.cat(sums, -1)


@_flash_wrong(
    "two results swapped; common",
    "lse comes back before the output. Return (out, lse).",
)
def flash_forward_swapped(q, k, v, **how):
    return flash_forward_pieces(q, k, v, **how)[::-1]


@_flash_wrong(
    "M011 in place",
    "q is changed: scaling it with *= works on the caller's tensor. Scale a "
    "copy, or the scores.",
)
def flash_forward_in_place(q, k, v, **how):
    out = flash_forward_pieces(q, k, v, **how)
    q *= 1 / math.sqrt(q.shape[-1])
    return out


@_flash_wrong(
    "half precision at the end",
    "The output and its divisor are narrowed before the division. Sums of "
    "exp(s − m)·v may not fit into float16: divide in float32, then narrow.",
)
class flash_forward_half_division(_Flash):
    def __call__(self, q, k, v, **how):
        self.dtype = q.dtype
        return super().__call__(q, k, v, **how)

    def finish(self, m, total, acc):
        divisor = self.divisor(total)[..., None]
        out = acc.to(self.dtype) / divisor.to(self.dtype)
        return out, self.log_sum(m, total)


@_flash_wrong(
    "p.to(v.dtype) @ v, as in kernels",
    "The weights are narrowed to the inputs' dtype before they meet the "
    "values. Kernels do that for speed; here everything is float32 until "
    "the output is done.",
)
class flash_forward_half_weights(_Flash):
    def __call__(self, q, k, v, **how):
        self.dtype = q.dtype
        return super().__call__(q, k, v, **how)

    def update(self, m, total, acc, s, values):
        new = torch.maximum(m, s.amax(-1))
        p = torch.exp(s - self.finite(new)[..., None])
        factor = self.correction(m, new)
        part = p.to(self.dtype).to(values.dtype) @ values
        return (
            new,
            self.more(total, factor, p),
            self.added(acc, factor, part),
        )


@_flash_wrong(
    "float16 only; common",
    "float16 is widened, bfloat16 is not. Widen whatever is narrower than "
    "float32, with torch.promote_types(q.dtype, torch.float32) for instance.",
)
class flash_forward_one_half(_Flash):
    def wide(self, x):
        return x.float() if x.dtype == torch.float16 else x


class _FloatMask(_Flash):
    def hidden(self, rows, columns):
        mask = torch.full((self.Tq, self.Tk), -math.inf)
        return mask.triu(1 + self.ahead())[rows, columns] < 0


@_flash_wrong(
    "a float mask of all positions; common",
    "A mask of floating numbers for all queries and keys is as large as one "
    "head's scores. Make it boolean, or for one tile at a time.",
)
class flash_forward_float_mask(_FloatMask):
    pass


@_flash_wrong(
    "M339's kind: a shift that is never negative",
    "With more queries than keys you shift by 0 instead of a negative "
    "number, so queries that stand before every key see some.",
)
class flash_forward_clamped(_Flash):
    def ahead(self):
        return max(0, self.Tk - self.Tq)


@_flash_wrong(
    "B, H, T, d = q.shape; common",
    "Four axes at most are taken. Any number of leading axes may come: "
    "write `...` for them.",
)
class flash_forward_four_axes(_Flash):
    def __call__(self, q, k, v, **how):
        if q.ndim > 4:
            raise ValueError("too many values to unpack (expected 4)")
        return super().__call__(q, k, v, **how)


@_flash_wrong(
    "s.amax over too many axes; plausible",
    "All batches and heads share one maximum. Where their scores differ "
    "widely, nothing is left of the lower ones: take the maximum over the "
    "last axis alone, for each row.",
)
class flash_forward_common_maximum(_Flash):
    def top(self, s):
        top = super().top(s)
        return top.reshape(-1, top.shape[-1]).amax(0).expand_as(top)


# 6.9 FlashAttention


@oracle(
    "FlashAttention",
    evidence="the chain rule through the log-sum-exp, by autograd of single "
    "tiles in float64: no formula of the softmax's gradient",
)
class FlashAttentionChainRule(torch.autograd.Function):
    @staticmethod
    def tiles(q, k, is_causal):
        ahead = k.shape[-2] - q.shape[-2]
        for i in torch.arange(q.shape[-2]).split(16):
            for j in torch.arange(k.shape[-2]).split(16):
                yield i, j, is_causal & (j > i[:, None] + ahead)

    @staticmethod
    def scores(q, k, hidden):
        s = torch.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
        return s.masked_fill(hidden, -math.inf)

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        cls, dtype = FlashAttentionChainRule, q.dtype
        q, k, v = (x.detach().double() for x in (q, k, v))
        lse = torch.full_like(q[..., :1], -math.inf)
        for i, j, hidden in cls.tiles(q, k, is_causal):
            s = cls.scores(q[..., i, :], k[..., j, :], hidden)
            own = s.logsumexp(-1, keepdim=True)
            lse[..., i, :] = torch.logaddexp(lse[..., i, :], own)
        lse = lse.masked_fill(lse == -math.inf, math.inf)  # exp(s - inf) = 0
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        for i, j, hidden in cls.tiles(q, k, is_causal):
            s = cls.scores(q[..., i, :], k[..., j, :], hidden)
            out[..., i, :] += torch.exp(s - lse[..., i, :]) @ v[..., j, :]
        ctx.save_for_backward(q.to(dtype), k.to(dtype), v.to(dtype), lse)
        ctx.is_causal = is_causal
        return out.to(dtype)

    @staticmethod
    def backward(ctx, d_out):
        dtype, d_out = d_out.dtype, d_out.double()
        given = [x.double() for x in ctx.saved_tensors]
        grads = [torch.zeros_like(x) for x in given]

        def sweep(value):
            cls = FlashAttentionChainRule
            for i, j, hidden in cls.tiles(*given[:2], ctx.is_causal):
                places = i, j, j, i
                with torch.enable_grad():
                    a, b, c, lse = parts = [
                        x[..., at, :].detach().requires_grad_()
                        for x, at in zip(given, places, strict=True)
                    ]
                    p = torch.exp(cls.scores(a, b, hidden) - lse)
                    total = value(p, c, i).sum()
                own = torch.autograd.grad(total, parts, materialize_grads=True)
                for grad, part, at in zip(grads, own, places, strict=True):
                    grad[..., at, :] += part

        sweep(lambda p, c, i: p @ c * d_out[..., i, :])
        d_lse = grads[3].clone()
        # The log-sum-exp comes from the scores, too: its derivative is p.
        sweep(lambda p, c, i: p * d_lse[..., i, :])
        return *(grad.to(dtype) for grad in grads[:3]), None


class _Own(torch.autograd.Function):
    """A right FlashAttention in pieces, found through the class in use."""

    block_q = block_k = 16

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        cls = ctx._forward_cls
        blocks = {"block_q": cls.block_q, "block_k": cls.block_k}
        out, lse = cls.flash()(q, k, v, **blocks, is_causal=is_causal)
        cls.save(ctx, q, k, v, out, cls.kept(lse))
        ctx.is_causal = is_causal
        return out

    @classmethod
    def flash(cls):
        return _Flash()

    @classmethod
    def kept(cls, lse):
        return lse

    @classmethod
    def save(cls, ctx, *tensors):
        ctx.save_for_backward(*tensors)

    @classmethod
    def delta(cls, d_out, out):
        return (d_out * out).sum(-1)

    @classmethod
    def hidden(cls, i, j, ahead):
        return j > i[:, None] + ahead

    @classmethod
    def weights(cls, s, lse):
        safe = lse.masked_fill(lse == -math.inf, math.inf)
        return torch.exp(s - safe[..., None])

    @classmethod
    def score_gradient(cls, p, dp, delta):
        return p * (dp - delta[..., None])

    @classmethod
    def d_values(cls, p, ds, d_out):
        return p.mT @ d_out

    @classmethod
    def add(cls, grad, at, part, name):
        grad[..., at, :] += part

    @classmethod
    def scales(cls, d):
        return 1 / math.sqrt(d), 1 / math.sqrt(d)

    @classmethod
    def upstream(cls, d_out):
        return d_out

    @classmethod
    def recomputed_scale(cls, d):
        return 1 / math.sqrt(d)

    @classmethod
    def results(cls, dq, dk, dv):
        return dq, dk, dv, None

    @staticmethod
    def backward(ctx, d_out):
        return ctx._forward_cls.gradients(ctx, d_out)

    @classmethod
    def gradients(cls, ctx, d_out):
        q, k, v, out, lse = ctx.saved_tensors
        Tq, Tk, d = q.shape[-2], k.shape[-2], q.shape[-1]
        d_out = cls.upstream(d_out)
        delta = cls.delta(d_out, out)
        scale_q, scale_k = cls.scales(d)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for start in range(0, Tq, cls.block_q):
            i = torch.arange(start, min(start + cls.block_q, Tq))
            rows = slice(start, start + cls.block_q)
            for begin in range(0, Tk, cls.block_k):
                j = torch.arange(begin, min(begin + cls.block_k, Tk))
                at = slice(begin, begin + cls.block_k)
                s = q[..., rows, :] @ k[..., at, :].mT
                s = s * cls.recomputed_scale(d)
                if ctx.is_causal:
                    hide = cls.hidden(i, j, Tk - Tq)
                    s = s.masked_fill(hide, -math.inf)
                p = cls.weights(s, lse[..., rows])
                up = d_out[..., rows, :]
                dp = up @ v[..., at, :].mT
                ds = cls.score_gradient(p, dp, delta[..., rows])
                cls.add(dv, at, cls.d_values(p, ds, up), "dv")
                cls.add(dq, rows, ds @ k[..., at, :] * scale_q, "dq")
                cls.add(dk, at, ds.mT @ q[..., rows, :] * scale_k, "dk")
        return cls.results(dq, dk, dv)


@right("FlashAttention", evidence="K79 lse saved, Δ from dO∘O")
class FlashAttentionPieces(_Own):
    pass


@right(
    "FlashAttention",
    evidence="K79 tiles of 15; setup_context; lse computed again",
)
class FlashAttentionPairs(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, is_causal=False):
        out, lse = flash_forward_keys_outside(
            q, k, v, block_q=15, block_k=15, is_causal=is_causal
        )
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v = inputs[:3]
        ctx.causal = inputs[3] if len(inputs) > 3 else False
        ctx.save_for_backward(q, k, v, output)

    @staticmethod
    def backward(ctx, up):
        q, k, v, out = ctx.saved_tensors
        root, ahead = math.sqrt(q.shape[-1]), k.shape[-2] - q.shape[-2]
        _, lse = flash_forward_keys_outside(
            q, k, v, block_q=15, block_k=15, is_causal=ctx.causal
        )
        delta = torch.einsum("...id,...id->...i", up, out)
        dq, dk, dv = q * 0, k * 0, v * 0
        for j in torch.arange(k.shape[-2]).split(15):
            for i in torch.arange(q.shape[-2]).split(15):
                s = torch.einsum(
                    "...id,...jd->...ij", q[..., i, :], k[..., j, :]
                )
                p = torch.exp(s / root - lse[..., i, None])
                if ctx.causal:
                    p = torch.where(j <= i[:, None] + ahead, p, 0)
                dp = torch.einsum(
                    "...id,...jd->...ij", up[..., i, :], v[..., j, :]
                )
                ds = p * (dp - delta[..., i, None]) / root
                dq[..., i, :] += torch.einsum(
                    "...ij,...jd->...id", ds, k[..., j, :]
                )
                dk[..., j, :] += torch.einsum(
                    "...ij,...id->...jd", ds, q[..., i, :]
                )
                dv[..., j, :] += torch.einsum(
                    "...ij,...id->...jd", p, up[..., i, :]
                )
        return dq, dk, dv, None


@right("FlashAttention", evidence="autograd inside each tile; tiles of 16")
class FlashAttentionTileAutograd(_Own):
    @classmethod
    def gradients(cls, ctx, d_out):
        q, k, v, out, lse = ctx.saved_tensors
        ahead, root = k.shape[-2] - q.shape[-2], math.sqrt(q.shape[-1])
        grads = [torch.zeros_like(x) for x in (q, k, v)]
        delta = (d_out * out).sum(-1)
        for i in torch.arange(q.shape[-2]).split(16):
            safe = lse[..., i].masked_fill(lse[..., i] == -math.inf, math.inf)
            for j in torch.arange(k.shape[-2]).split(16):
                places = i, j, j
                with torch.enable_grad():
                    a, b, c = (
                        x[..., at, :].detach().requires_grad_()
                        for x, at in zip((q, k, v), places, strict=True)
                    )
                    p = torch.exp(a @ b.mT / root - safe[..., None])
                    if ctx.is_causal:
                        p = p * (j <= i[:, None] + ahead)
                    up = d_out[..., i, :]
                    # p as a function of s, with its sum held fixed by Δ.
                    loss = (p @ c * up).sum() - (
                        p.sum(-1) * delta[..., i]
                    ).sum()
                own = torch.autograd.grad(loss, (a, b, c))
                for grad, part, at in zip(grads, own, places, strict=True):
                    grad[..., at, :] += part
        return *grads, None


def _function_wrong(evidence, hint):
    return wrong("FlashAttention", evidence=evidence, hint=hint)


@_function_wrong(
    "M345 the delta term is missing",
    "dS lacks the term Δ = rowsum(dO∘O), which comes from the softmax's "
    "denominator. dV is right without it.",
)
class FlashAttentionNoDelta(_Own):
    @classmethod
    def delta(cls, d_out, out):
        return torch.zeros_like(out[..., 0])


@_function_wrong(
    "Δ from one tile; plausible",
    "Δ is taken as rowsum(P∘dP) of the tile at hand. It sums over all keys: "
    "rowsum(dO∘O) is the same number, and needs no tile.",
)
class FlashAttentionTileDelta(_Own):
    @classmethod
    def score_gradient(cls, p, dp, delta):
        return p * (dp - (p * dp).sum(-1, keepdim=True))


@_function_wrong(
    "Δ without the upstream gradient; plausible",
    "Δ does not depend on both dO and O as it should: it is the sum of "
    "their products along a row.",
)
class FlashAttentionDeltaOut(_Own):
    @classmethod
    def delta(cls, d_out, out):
        return d_out.sum(-1)


@_function_wrong(
    "mean for sum; plausible",
    "Δ is a mean along the row where a sum is due.",
)
class FlashAttentionDeltaMean(_Own):
    @classmethod
    def delta(cls, d_out, out):
        return (d_out * out).mean(-1)


@_function_wrong(
    "sign; common",
    "dS has the wrong sign for q and k: Δ is subtracted from dP, not the "
    "other way round.",
)
class FlashAttentionSign(_Own):
    @classmethod
    def score_gradient(cls, p, dp, delta):
        return p * (delta[..., None] - dp)


@_function_wrong(
    "missing factor P; plausible",
    "dS lacks the factor P in front: hidden and unlikely keys get as much "
    "gradient as the others.",
)
class FlashAttentionNoWeight(_Own):
    @classmethod
    def score_gradient(cls, p, dp, delta):
        return dp - delta[..., None]


@_function_wrong(
    "M345 mask missing in backward",
    "The backward pass recomputes P without the causal mask, so hidden keys "
    "get gradients. Hide what the forward pass hid.",
)
class FlashAttentionUnmaskedBackward(_Own):
    @classmethod
    def hidden(cls, i, j, ahead):
        return torch.zeros(len(i), len(j), dtype=torch.bool)


@_function_wrong(
    "M339 in the backward pass only",
    "The backward pass aligns the mask to the upper left, the forward pass "
    "to the lower right. With Tq ≠ Tk they differ.",
)
class FlashAttentionUpperLeftBackward(_Own):
    @classmethod
    def hidden(cls, i, j, ahead):
        return super().hidden(i, j, 0)


@_function_wrong(
    "M338 in the backward pass",
    "The backward pass compares places within a tile. Add where the tiles "
    "start.",
)
class FlashAttentionLocalMask(_Own):
    @classmethod
    def hidden(cls, i, j, ahead):
        return (j - j[0]) > (i - i[0])[:, None] + ahead


@_function_wrong(
    "curriculum 6.8's skipping off by one, in the backward pass",
    "The backward pass skips tiles of which some scores are visible: those "
    "that end behind the last query. Skip only tiles that begin behind it.",
)
class FlashAttentionSkipsVisible(_Own):
    @classmethod
    def hidden(cls, i, j, ahead):
        return super().hidden(i, j, ahead) | (j[-1] > i[-1] + ahead)


@_function_wrong(
    "M344 no scale in dQ and dK",
    "dQ and dK lack the factor 1/√d: the scores have it in the forward pass, "
    "so their gradients get it on the way back.",
)
class FlashAttentionNoScale(_Own):
    @classmethod
    def scales(cls, d):
        return 1.0, 1.0


@_function_wrong(
    "M344 on one side",
    "dQ has the factor 1/√d and dK has not. Both get it once.",
)
class FlashAttentionKeyScale(_Own):
    @classmethod
    def scales(cls, d):
        return 1 / math.sqrt(d), 1.0


@_function_wrong(
    "scaled twice; plausible",
    "dQ and dK have the factor 1/√d twice.",
)
class FlashAttentionScaledTwice(_Own):
    @classmethod
    def scales(cls, d):
        return 1 / d, 1 / d


@_function_wrong(
    "q was scaled before; plausible",
    "dK has the factor 1/√d twice, and dQ once: perhaps q was scaled before, "
    "and dS is scaled as well.",
)
class FlashAttentionKeyScaledTwice(_Own):
    @classmethod
    def scales(cls, d):
        return 1 / math.sqrt(d), 1 / d


@_function_wrong(
    "scaled twice on one side; plausible",
    "dQ has the factor 1/√d twice, and dK once. Both get it once.",
)
class FlashAttentionQueryScaledTwice(_Own):
    @classmethod
    def scales(cls, d):
        return 1 / d, 1 / math.sqrt(d)


@_function_wrong(
    "an accumulation forgotten; plausible",
    "dQ stays 0: each tile of keys adds dS·K/√d to the rows of its queries.",
)
class FlashAttentionNoQueryGradient(_Own):
    @classmethod
    def scales(cls, d):
        return 0.0, 1 / math.sqrt(d)


@_function_wrong(
    "scale missing in the recomputation; plausible",
    "The backward pass recomputes the scores without 1/√d, so that P is "
    "another one than the forward pass had.",
)
class FlashAttentionRecomputedUnscaled(_Own):
    @classmethod
    def recomputed_scale(cls, d):
        return 1.0


@_function_wrong(
    "overwritten; common",
    "dK and dV are overwritten by each tile of queries. A key is seen by "
    "many queries: add up.",
)
class FlashAttentionKeysOverwritten(_Own):
    @classmethod
    def add(cls, grad, at, part, name):
        if name == "dq":
            grad[..., at, :] += part
        else:
            grad[..., at, :] = part


@_function_wrong(
    "overwritten; common",
    "dQ is overwritten by each tile of keys. A query sees keys of many "
    "tiles: add up.",
)
class FlashAttentionQueriesOverwritten(_Own):
    @classmethod
    def add(cls, grad, at, part, name):
        if name == "dq":
            grad[..., at, :] = part
        else:
            grad[..., at, :] += part


@_function_wrong(
    "dV from dS; plausible",
    "dV uses dS. The values do not pass through the softmax: dV is Pᵀ dO.",
)
class FlashAttentionValuesFromScores(_Own):
    @classmethod
    def d_values(cls, p, ds, d_out):
        return ds.mT @ d_out


@_function_wrong(
    "softmax of a tile; common",
    "The backward pass takes the softmax of each tile. P is normalised over "
    "all keys: exp(s − lse), with the lse of the forward pass.",
)
class FlashAttentionTileSoftmax(_Own):
    @classmethod
    def weights(cls, s, lse):
        alive = s.amax(-1, keepdim=True) > -math.inf
        return s.masked_fill(~alive, 0).softmax(-1) * alive


@_function_wrong(
    "fresh reader: plain attention where the check does not look",
    "The numbers leave PyTorch's tensors for an array, where the check cannot "
    "measure what you hold. Compute with tensors, tile by tile.",
)
class FlashAttentionInNumpy(_Own):
    @classmethod
    def flash(cls):
        def forward(q, k, v, **how):
            q, k, v = (x.detach() for x in (q, k, v))
            return flash_forward_in_numpy(q, k, v, **how)

        return forward


@_function_wrong(
    "review: numpy in the backward pass was not seen",
    "In the backward pass the numbers leave PyTorch's tensors for arrays, "
    "where the check cannot measure what you hold. Compute with tensors, tile "
    "by tile.",
)
class FlashAttentionBackwardInNumpy(_Own):
    @classmethod
    def weights(cls, s, lse):
        safe = np.where(np.isneginf(lse.numpy()), np.inf, lse.numpy())
        return torch.from_numpy(np.exp(s.numpy() - safe[..., None]))


@_function_wrong(
    "review: attention in Python's floats passed",
    "Numbers leave PyTorch's tensors one by one, with item() or float(), and "
    "the attention is computed in Python's, where the check cannot measure "
    "what you hold. Compute with tensors, tile by tile.",
)
class FlashAttentionByFloats(_Own):
    @classmethod
    def flash(cls):
        return flash_forward_by_floats


@_function_wrong(
    "the maximum saved for lse; plausible",
    "P is exp(s − m), which is not normalised: save m + ln l, or divide by l.",
)
class FlashAttentionMaximumSaved(_Own):
    @classmethod
    def flash(cls):
        class Maximum(_Flash):
            def log_sum(self, m, total):
                return m

        return Maximum()


@_function_wrong(
    "exp(s) / exp(lse); overflow",
    "P is computed as exp(s) / exp(lse), which overflows for large scores "
    "and is 0/0 for small ones. Subtract before you exponentiate.",
)
class FlashAttentionOverflow(_Own):
    @classmethod
    def weights(cls, s, lse):
        total = lse.exp()
        dead = (lse == -math.inf)[..., None]
        return (s.exp() / total[..., None]).masked_fill(dead, 0)


@_function_wrong(
    "M334 in the backward pass",
    "A query that sees nothing has the log-sum-exp −inf, and exp(−inf + inf) "
    "is NaN, which spreads into all of dK and dV. Its P is 0.",
)
class FlashAttentionDeadRows(_Own):
    @classmethod
    def weights(cls, s, lse):
        return torch.exp(s - lse[..., None])


@_function_wrong(
    "the upstream gradient is ignored; plausible",
    "The gradients are those of the sum of the output: the upstream gradient "
    "is not used.",
)
class FlashAttentionOnes(_Own):
    @classmethod
    def upstream(cls, d_out):
        return torch.ones_like(d_out)


@_function_wrong(
    "order of gradients; common",
    "The gradients come back in another order than the arguments: q, k, v.",
)
class FlashAttentionOrder(_Own):
    @classmethod
    def results(cls, dq, dk, dv):
        return dk, dq, dv, None


@_function_wrong(
    "one gradient an argument; common",
    "backward returns three gradients, but forward has four arguments: "
    "is_causal gets None.",
)
class FlashAttentionThree(_Own):
    @classmethod
    def results(cls, dq, dk, dv):
        return dq, dk, dv


@_function_wrong(
    "M052 is_causal ignored",
    "is_causal has no effect.",
)
class FlashAttentionNotCausal(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        return _Own.forward(ctx, q, k, v, False)


@_function_wrong(
    "M339 upper left in both passes",
    "The causal mask is aligned to the upper left. With Tq ≠ Tk shift by "
    "Tk − Tq.",
)
class FlashAttentionUpperLeft(_Own):
    @classmethod
    def flash(cls):
        class UpperLeft(_Flash):
            def ahead(self):
                return 0

        return UpperLeft()

    @classmethod
    def hidden(cls, i, j, ahead):
        return super().hidden(i, j, 0)


@_function_wrong(
    "M328 in the forward pass",
    "The accumulated output is not rescaled when the maximum rises. More "
    "than one tile of keys shows it.",
)
class FlashAttentionOutputKept(_Own):
    @classmethod
    def flash(cls):
        class Kept(_Flash):
            def added(self, acc, factor, part):
                return acc + part

        return Kept()


@_function_wrong(
    "no default; plausible",
    "is_causal has no default value, so apply(q, k, v) fails.",
)
class FlashAttentionNoDefault(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        return _Own.forward(ctx, q, k, v, is_causal)


@_function_wrong(
    "lse returned as well; task 6.8's signature",
    "apply returns the log-sum-exp as well. Here the output alone is "
    "returned; keep the lse on ctx.",
)
class FlashAttentionTwoResults(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        out = _Own.forward(ctx, q, k, v, is_causal)
        return out, out.sum(-1)

    @staticmethod
    def backward(ctx, d_out, _):
        return _Own.backward(ctx, d_out)


@_function_wrong(
    "the weights saved; what autograd would do",
    "P is saved for the backward pass: as large as the scores, which is what "
    "this is to avoid. Save the lse and recompute.",
)
class FlashAttentionSavesWeights(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        out = _Own.forward(ctx, q, k, v, is_causal)
        ctx.tiles = [
            q[..., i, :] @ k[..., j, :].mT
            for i in torch.arange(q.shape[-2]).split(16)
            for j in torch.arange(k.shape[-2]).split(16)
        ]
        return out


@_function_wrong(
    "state on the class; common",
    "What backward needs is kept on the class, where the next call "
    "overwrites it. Keep it on ctx, which belongs to one call.",
)
class FlashAttentionClassState(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        out = _Own.forward(ctx, q, k, v, is_causal)
        FlashAttentionClassState.latest = ctx.to_save, ctx.is_causal
        return out

    @classmethod
    def gradients(cls, ctx, d_out):
        class Latest:
            saved_tensors, is_causal = FlashAttentionClassState.latest

        return super().gradients(Latest, d_out)


@_function_wrong(
    "plain attention forward; common",
    "The forward pass holds all scores at once. Go over tiles of at most 16 "
    "queries and 16 keys.",
)
class FlashAttentionPlainForward(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        flash = _Flash()
        how = {"block_q": 10**6, "block_k": 10**6, "is_causal": is_causal}
        out, lse = flash(q, k, v, **how)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.is_causal = is_causal
        return out


@_function_wrong(
    "plain attention backward; common",
    "The backward pass recomputes all scores at once. Recompute one tile at "
    "a time.",
)
class FlashAttentionPlainBackward(_Own):
    @classmethod
    def gradients(cls, ctx, d_out):
        q, k, v, _, lse = ctx.saved_tensors
        Tq, Tk = q.shape[-2], k.shape[-2]
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if ctx.is_causal:
            hide = cls.hidden(torch.arange(Tq), torch.arange(Tk), Tk - Tq)
            s = s.masked_fill(hide, -math.inf)
        p = cls.weights(s, lse)
        dp = d_out @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        ds = ds / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ d_out, None


@_function_wrong(
    "tiles too large for the text; plausible",
    "The tiles have more than 16 queries or keys. They may be of any size up "
    "to that, so that a small text has several.",
)
class FlashAttentionLargeTiles(_Own):
    block_q = block_k = 64


@_function_wrong(
    "review: one query at a time passed",
    "Each query meets all its keys at once, one query after the other, as in "
    "an ordinary softmax. Such a row grows with the text, and no chip holds "
    "it: take at most 16 keys at a time, too.",
)
class FlashAttentionSingleQueries(_Own):
    block_q, block_k = 1, 10**6


@_function_wrong(
    "tiles of keys only; plausible",
    "Only the keys are tiled: all queries meet each tile at once. Take at "
    "most 16 queries at a time, too.",
)
class FlashAttentionKeyTiles(_Own):
    block_q = 10**6


@_function_wrong(
    "autograd through all tiles; plausible",
    "The backward pass holds many tiles at a time: tiles that have all keys, "
    "or a graph through all tiles, which keeps each of them. Go tile by "
    "tile, and drop each before the next.",
)
class FlashAttentionGraph(_Own):
    @classmethod
    def gradients(cls, ctx, d_out):
        with torch.enable_grad():
            parts = [
                x.detach().requires_grad_() for x in ctx.saved_tensors[:3]
            ]
            out, _ = flash_forward_pieces(
                *parts, block_q=16, block_k=16, is_causal=ctx.is_causal
            )
        return *torch.autograd.grad(out, parts, d_out), None


@_function_wrong(
    "no autograd.Function; plausible",
    "This is no torch.autograd.Function: apply is an ordinary function, so "
    "autograd records every tile and keeps it for the backward pass.",
)
class FlashAttentionPlainClass:
    @staticmethod
    def apply(q, k, v, is_causal=False):
        return flash_forward_pieces(
            q, k, v, block_q=16, block_k=16, is_causal=is_causal
        )[0]


@_function_wrong(
    "e ** s for exp(s)",
    "The backward pass takes each query with all its keys at once. That the "
    "exponentials are written as powers changes nothing: at most 16 keys at "
    "a time.",
)
class FlashAttentionPowers(_Own):
    @classmethod
    def gradients(cls, ctx, d_out):
        cls.block_q, cls.block_k = 1, 1000
        try:
            return super().gradients(ctx, d_out)
        finally:
            cls.block_q = cls.block_k = 16

    @classmethod
    def weights(cls, s, lse):
        safe = lse.masked_fill(lse == -math.inf, math.inf)
        return torch.pow(math.e, s - safe[..., None])


@_function_wrong(
    "another default",
    "Without the fourth argument your attention is causal. The default is "
    "False.",
)
class FlashAttentionCausalDefault(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=True):
        return _Own.forward(ctx, q, k, v, is_causal)


@_function_wrong(
    "M339's kind: a shift that is never negative",
    "With more queries than keys the backward pass shifts its mask by 0 "
    "instead of a negative number: hidden keys get gradients.",
)
class FlashAttentionClampedBackward(_Own):
    @classmethod
    def hidden(cls, i, j, ahead):
        return super().hidden(i, j, max(0, ahead))


@_function_wrong(
    "view of the upstream gradient; common",
    "The upstream gradient is reshaped with view, which fails where it is "
    "no block of memory, as after a sum or a transpose. Use reshape, or "
    "leading axes as they are.",
)
class FlashAttentionViews(_Own):
    @classmethod
    def upstream(cls, d_out):
        return d_out.view(-1).view(d_out.shape)


@_function_wrong(
    "the upstream gradient in place; plausible",
    "The upstream gradient is changed in place. It belongs to autograd, "
    "which may use it elsewhere, or hand over one number under many places.",
)
class FlashAttentionWritesUpstream(_Own):
    @classmethod
    def upstream(cls, d_out):
        return d_out.mul_(1)


@_function_wrong(
    "half precision in the backward pass; as in kernels",
    "float32 gradients are computed in half precision. Inputs of float32 "
    "stay float32 all the way.",
)
class FlashAttentionHalfGradients(_Own):
    @classmethod
    def d_values(cls, p, ds, d_out):
        narrow = torch.bfloat16 if p.dtype == torch.float32 else p.dtype
        return (p.to(narrow).mT @ d_out.to(narrow)).to(p.dtype)


@_function_wrong(
    "B, H, T, d = q.shape; common",
    "Four axes at most are taken. Any number of leading axes may come: "
    "write `...` for them.",
)
class FlashAttentionFourAxes(_Own):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        if q.ndim > 4:
            raise ValueError("too many values to unpack (expected 4)")
        return _Own.forward(ctx, q, k, v, is_causal)


@_function_wrong(
    "a float mask of all positions; common",
    "A mask of floating numbers for all queries and keys is as large as one "
    "head's scores. Make it boolean, or for one tile at a time.",
)
class FlashAttentionFloatMask(_Own):
    @classmethod
    def flash(cls):
        return _FloatMask()
