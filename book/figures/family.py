"""A family of small language models, from which chapter 7 fits its laws.

    cd book && python -m figures.family

trains them all and writes `book/assets/family.csv`. The text is Python's own
help pages, so nothing is fetched; the models read characters, and they train
on one thread, whatever the machine has. The CSV begins with the command, the
machine and the date that made it; the chapter reads it, and makes it anew
where the reader asks for that.
"""

import csv
import datetime
import functools
import math
import pathlib
import platform
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STORED = pathlib.Path(__file__).parent.parent / "assets" / "family.csv"
COMMAND = "cd book && python -m figures.family"

T = 64  # characters in a training window
BATCH = 4  # windows a step: few, since a small budget must last many steps
LAYERS = 2
D_HEAD = 8
LONGEST = 256  # positions that a model can be asked for

# Groups of equal compute: {training FLOPs by the rule 6 N D: widths}.
GROUPS = {
    2e9: (4, 6, 8, 12, 16, 24),
    6e9: (6, 8, 12, 16, 24, 32),
    2e10: (12, 16, 24, 32, 48),
    5e10: (16, 24, 32, 48, 64),
    1.5e11: (24, 32, 48, 64, 96),
}
# More than one seed where a run takes seconds: the spread between seeds is
# the noise of every fit.
SEEDS = {2e9: (0, 1), 6e9: (0, 1)}


@functools.cache
def text():
    """The help pages as characters: (training, held out, vocabulary size).

    Every tenth block of 1,024 characters is held out, so that both parts
    come from all over the text. training: (n,) int64; held out: (m, 1024)
    """
    from pydoc_data.topics import topics

    raw = " ".join(topics.values()).encode("ascii", "ignore")
    letters, codes = np.unique(
        np.frombuffer(raw, np.uint8), return_inverse=True
    )
    blocks = codes[: len(codes) // 1024 * 1024].reshape(-1, 1024)
    held_out = np.arange(len(blocks)) % 10 == 9
    return (
        torch.tensor(blocks[~held_out].ravel(), device="cpu"),
        torch.tensor(blocks[held_out], device="cpu"),
        len(letters),
    )


class Block(nn.Module):
    """A pre-LN block without biases; positions enter where it is told."""

    def __init__(self, width, n_heads, positions):
        super().__init__()
        self.n_heads, self.positions = n_heads, positions
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, bias=False) for _ in range(2)
        )
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.wide = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, turns, bias):
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, Dh)
        if self.positions == "rotary":
            q, k = _turned(q, turns), _turned(k, turns)
        causal = bias is None
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=causal
        )
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


def _turned(x, turns):
    """Halves of a head's channels, turned by their position."""
    cos, sin = turns
    a, c = x.chunk(2, -1)
    return torch.cat([a * cos - c * sin, a * sin + c * cos], -1)


class CharacterModel(nn.Module):
    """A small language model; its head is its table of characters.

    positions: "none", "learned", "sinusoidal", "rotary" or "alibi"
    """

    def __init__(
        self, width, vocabulary, *, positions="rotary", d_head=D_HEAD
    ):
        super().__init__()
        n_heads = max(1, width // d_head)
        self.positions = positions
        self.characters = nn.Embedding(vocabulary, width)
        if positions == "learned":
            self.places = nn.Embedding(LONGEST, width)
            nn.init.normal_(self.places.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(
            Block(width, n_heads, positions) for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        nn.init.normal_(self.characters.weight, std=width**-0.5)
        for block in self.blocks:
            for linear in (block.qkv, block.mix, block.wide, block.narrow):
                std = linear.in_features**-0.5
                if linear in (block.mix, block.narrow):
                    std /= math.sqrt(2 * LAYERS)
                nn.init.normal_(linear.weight, std=std)
        place = torch.arange(LONGEST)
        self._keep("turns", _clocks(place, width // n_heads))
        self._keep("waves", torch.cat(_clocks(place, width), -1))
        slopes = 2.0 ** (-8 * torch.arange(1, n_heads + 1) / n_heads)
        distance = (place[:, None] - place).float()
        self._keep(
            "penalty",
            torch.where(
                distance < 0, -math.inf, -slopes[:, None, None] * distance
            ),
        )

    def _keep(self, name, values):
        if isinstance(values, tuple):
            values = torch.stack(values)
        self.register_buffer(name, values, persistent=False)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.characters(ids)
        if self.positions == "learned":
            x = x + self.places.weight[:n]
        if self.positions == "sinusoidal":
            # The table's rows have the size of the characters' vectors.
            x = x + self.waves[:n] * (2 / x.shape[-1]) ** 0.5
        bias = None
        if self.positions == "alibi":
            bias = self.penalty[:, :n, :n]
        for block in self.blocks:
            x = block(x, self.turns[:, :n], bias)
        return self.norm(x) @ self.characters.weight.T


def _clocks(place, channels):
    speed = 10_000 ** (-torch.arange(0, channels, 2) / channels)
    angle = place[:, None] * speed
    return angle.cos(), angle.sin()


def sizes(width, vocabulary=None):
    """(parameters, parameters without the table of characters)."""
    vocabulary = vocabulary or text()[2]
    with torch.device("meta"):
        # The buffers hold no data on this device, and none is needed.
        model = CharacterModel(width, vocabulary)
    every = sum(p.numel() for p in model.parameters())
    return every, every - vocabulary * width


def exact_flops(width, vocabulary, tokens):
    """Training FLOPs with what 6 N D leaves out: attention's products."""
    products = LAYERS * 12 * width**2 + vocabulary * width
    return 3 * tokens * (2 * products + LAYERS * 4 * T * width)


def train(width, tokens, seed=0, *, positions="rotary", d_head=D_HEAD):
    """A model trained on about so many characters, on one thread of the CPU.

    The learning rate rises over a tenth of the steps and then falls to 0,
    so every run ends its own schedule. Its peak is 0.5 / width: half and
    twice as much were no better at widths 12, 16 and 32, three seeds each.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for matrices this small more only wait
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return _trained(width, tokens, seed, positions, d_head)
    finally:
        torch.set_num_threads(threads)


def _trained(width, tokens, seed, positions, d_head):
    training, _, vocabulary = text()
    torch.manual_seed(seed)
    model = CharacterModel(
        width, vocabulary, positions=positions, d_head=d_head
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=0.0
    )
    steps = max(1, round(tokens / (BATCH * T)))
    warmup = max(1, steps // 10)
    for step in range(steps):
        up = (step + 1) / warmup
        down = (steps - step) / max(1, steps - warmup)
        optimizer.param_groups[0]["lr"] = 0.5 / width * min(up, down)
        start = torch.randint(len(training) - T, (BATCH, 1))
        ids = training[start + torch.arange(T + 1)]
        logits = model(ids[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


@torch.no_grad()
def held_out_loss(model):
    """Mean loss of the held-out text in nats a character, windows of T."""
    _, blocks, _ = text()
    with torch.device("cpu"):
        windows = blocks.unfold(1, T + 1, T).flatten(0, 1)
        logits = model(windows[:, :-1]).flatten(0, 1)
        return F.cross_entropy(logits, windows[:, 1:].flatten()).item()


def run(budget, width, seed=0):
    """Train one model of a group; a row of the CSV, numbers as numbers."""
    every, blocks = sizes(width)
    began = time.process_time()
    tokens = round(budget / (6 * every) / (BATCH * T)) * BATCH * T
    loss = held_out_loss(train(width, tokens, seed))
    return {
        "budget": budget,
        "width": width,
        "seed": seed,
        "N": every,
        "N_blocks": blocks,
        "D": tokens,
        "flops": exact_flops(width, text()[2], tokens),
        "loss": round(loss, 4),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def measure(report=print):
    """Train the whole family; rows as `read` gives them."""
    plan = [
        (budget, width, seed)
        for budget, widths in GROUPS.items()
        for seed in SEEDS.get(budget, (0,))
        for width in widths
    ]
    rows = []
    for number, each in enumerate(plan, 1):
        rows.append(run(*each))
        report(
            "{:2}/{}  C {budget:.1e}  width {width:3}  N {N:7,}  "
            "D {D:9,}  loss {loss:.3f}  {cpu_seconds:5.1f} s".format(
                number, len(plan), **rows[-1]
            )
        )
    return rows


def made_by(command):
    """Lines about the command, the machine and the date."""
    return [
        f"command: {command}",
        f"machine: {_processor()}, 1 thread; torch {torch.__version__}, "
        f"Python {platform.python_version()}",
        f"date: {datetime.date.today().isoformat()}",
    ]


def _processor():
    about = pathlib.Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write(rows, path=STORED, command=COMMAND):
    """Store rows of equal keys below the lines about their making."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for line in made_by(command):
            file.write(f"# {line}\n")
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read(path=STORED):
    """(rows, lines about their making) of a stored CSV.

    Every value that can be a number is one.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    about = [line[2:] for line in lines if line.startswith("# ")]
    table = csv.DictReader(line for line in lines if line[:1] != "#")
    return [{k: _number(v) for k, v in row.items()} for row in table], about


def _number(word):
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def main():
    rows = measure(lambda line: print(line, file=sys.stderr, flush=True))
    write(rows)
    total = sum(row["cpu_seconds"] for row in rows)
    print(f"{len(rows)} runs, {total:.0f} CPU seconds, in {STORED.name}")


if __name__ == "__main__":
    main()
