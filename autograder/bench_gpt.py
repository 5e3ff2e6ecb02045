"""How fast the course's GPT is: against transformers', side by side.

Both models get the same sizes, weights of the same kind, fused attention and
two threads; their rounds take turns, so that a busy machine slows both.
"""

import statistics
import time

import torch

from autograder.verify import references

SIZES = {"d_model": 256, "n_heads": 4, "n_layers": 4, "vocab_size": 512}
BATCH, TIME = 8, 256  # training: sequences, tokens of each
PROMPT, NEW = 8, 256  # generation: tokens given, tokens made
STEPS = 3  # training steps a round
ROUNDS = 7
THREADS = 2


def bench_gpt(say=print):
    """Print tokens per second of training and of cached generation."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        _compare(
            "training (float32, AdamW)",
            # Fused, as lesson 5's `train` has it; the same AdamW.
            training(our_gpt().to(device), _our_loss, fused=True),
            training(their_gpt(TIME).to(device), _their_loss),
            BATCH * TIME * STEPS,
            say,
        )
        _compare(
            f"generation with a cache ({NEW} tokens, greedy)",
            our_generation(device),
            their_generation(device),
            NEW,
            say,
        )
    finally:
        torch.set_num_threads(threads)


def our_gpt():
    """Lesson 5's model."""
    lesson = references("ch5_gpt")
    return lesson["GPT"](lesson["GPTConfig"](context_length=TIME, **SIZES))


def their_gpt(context_length):
    """transformers' GPT-2 of the same sizes, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=SIZES["vocab_size"],
        n_positions=context_length,
        n_embd=SIZES["d_model"],
        n_head=SIZES["n_heads"],
        n_layer=SIZES["n_layers"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _our_loss(model, ids):
    return model(ids, ids)[1]


def _their_loss(model, ids):
    return model(input_ids=ids, labels=ids).loss


def training(model, loss_of, **options):
    """A function that makes some steps: forward, backward, update.

    options: of AdamW
    """
    device = next(model.parameters()).device
    ids = torch.randint(SIZES["vocab_size"], (BATCH, TIME), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    model.train()

    def round_():
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, ids).backward()
            optimizer.step()

    return round_


def our_generation(device):
    """A function that continues a prompt with lesson 6's model and cache."""
    lesson = references("ch6_kv_cache_flash")
    cfg = lesson["GPTConfig"](context_length=PROMPT + NEW, **SIZES)
    model = lesson["CachedGPT"](cfg).to(device).eval()
    prompt = torch.zeros(1, PROMPT, dtype=torch.long, device=device)
    d_head = cfg.d_model // cfg.n_heads

    @torch.inference_mode()
    def round_():
        cache = lesson["KVCache"](
            cfg.n_layers, 1, cfg.n_heads, PROMPT + NEW, d_head
        )
        ids = prompt
        for _ in range(NEW):
            ids = model(ids, cache)[:, -1:].argmax(-1)

    return round_


def their_generation(device):
    """The same with transformers' generate and its cache."""
    model = their_gpt(PROMPT + NEW).to(device).eval()
    prompt = torch.zeros(1, PROMPT, dtype=torch.long, device=device)

    def round_():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW,
            do_sample=False,
            use_cache=True,
        )

    return round_


def _compare(title, ours, theirs, tokens, say):
    times = [[], []]
    for number in range(ROUNDS + 1):
        for kept, round_ in zip(times, (ours, theirs), strict=True):
            seconds = _timed(round_)
            if number:  # the first round warms up
                kept.append(seconds)
    our, their = (tokens / statistics.median(each) for each in times)
    say(
        f"{title}: {our:,.0f} tokens a second, transformers {their:,.0f}: "
        f"{our / their:.2f} times as many"
    )


def _timed(round_):
    start = time.perf_counter()
    round_()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
