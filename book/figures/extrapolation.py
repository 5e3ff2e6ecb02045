"""Trained on 64 characters, asked about 256: every scheme of positions.

    cd book && python -m figures.extrapolation

trains one small model a scheme and seed and writes
`book/assets/extrapolation.csv`, the measured result of chapter 7's lab. The
table of learned positions has 256 rows, of which training touches 64; a
table that ended there could not be asked at all.
"""

import sys
import time

import torch
import torch.nn.functional as F

from figures import family

STORED = family.STORED.with_name("extrapolation.csv")
COMMAND = "cd book && python -m figures.extrapolation"
SCHEMES = ("none", "learned", "sinusoidal", "rotary", "alibi")
CONTEXTS = (64, 128, 256)
WIDTH, D_HEAD, TOKENS = 48, 12, 500_000


@torch.no_grad()
def loss_from(model, context):
    """Mean loss of the same held-out characters from so many before each.

    The characters are the same for every context, so that only what the
    model sees of their past differs. returns: nats a character
    """
    _, blocks, _ = family.text()
    with torch.device("cpu"):
        last = torch.arange(family.LONGEST, blocks.shape[1] - 1, 48)
        windows = blocks[:, last[:, None] + torch.arange(1 - context, 1)]
        logits = model(windows.flatten(0, 1))[:, -1]
        return F.cross_entropy(logits, blocks[:, last + 1].flatten()).item()


def run(scheme, seed=0, tokens=TOKENS):
    """Train with one scheme and test it; a row of the CSV."""
    began = time.process_time()
    model = family.train(WIDTH, tokens, seed, positions=scheme, d_head=D_HEAD)
    losses = {
        f"loss_{context}": round(loss_from(model, context), 3)
        for context in CONTEXTS
    }
    spent = round(time.process_time() - began, 1)
    return {"scheme": scheme, "seed": seed, **losses, "cpu_seconds": spent}


def measure(seeds=(0, 1), report=print):
    """Train every scheme; rows as `family.read` gives them."""
    rows = []
    for seed in seeds:
        for scheme in SCHEMES:
            rows.append(run(scheme, seed))
            report(rows[-1])
    return rows


def main():
    rows = measure(report=lambda row: print(row, file=sys.stderr, flush=True))
    family.write(rows, STORED, COMMAND)
    total = sum(row["cpu_seconds"] for row in rows)
    print(f"{len(rows)} runs, {total:.0f} CPU seconds, in {STORED.name}")


if __name__ == "__main__":
    main()
