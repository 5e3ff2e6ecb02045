"""Other people's answers to lesson 5: GPT.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
mistake overrides the one part of a right answer that it gets wrong.
"""

import contextlib
import copy
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autograder.answers import oracle, right, wrong

# 5.1 GPT


class _GPT(nn.Module):
    """A right GPT in pieces, each of which a mistake may override."""

    eps = 1e-5
    form = "tanh"

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.make()
        self.tie()
        self.start()

    def norm(self):
        return nn.LayerNorm(self.cfg.d_model, self.eps, bias=self.cfg.bias)

    def linear(self, one, other):
        return nn.Linear(one, other, bias=self.cfg.bias)

    def block(self):
        D = self.cfg.d_model
        block = nn.Module()
        block.ln1, block.ln2 = self.norm(), self.norm()
        block.attn, block.mlp = nn.Module(), nn.Module()
        block.attn.qkv_proj = self.linear(D, 3 * D)
        block.attn.out_proj = self.linear(D, D)
        block.mlp.fc1 = self.linear(D, 4 * D)
        block.mlp.fc2 = self.linear(4 * D, D)
        return block

    def layers(self):
        return nn.ModuleList(self.block() for _ in range(self.cfg.n_layers))

    def make(self):
        cfg = self.cfg
        self.tok_embed = nn.Embedding(cfg.vocab_size, cfg.d_model)
        self.pos_embed = nn.Embedding(cfg.context_length, cfg.d_model)
        self.blocks = self.layers()
        self.ln_f = self.norm()
        self.lm_head = nn.Linear(cfg.d_model, cfg.vocab_size, bias=False)

    def tie(self):
        self.lm_head.weight = self.tok_embed.weight

    def std(self, name):
        if name.endswith(("out_proj.weight", "fc2.weight")):
            return 0.02 / math.sqrt(2 * self.cfg.n_layers)
        return 0.02

    def start(self):
        for name, value in self.named_parameters():
            if value.ndim > 1:
                nn.init.normal_(value, 0.0, self.std(name))
            elif "bias" in name:
                nn.init.zeros_(value)

    def drop(self, x):
        return F.dropout(x, self.cfg.dropout, self.training)

    def check(self, T):
        if T > self.cfg.context_length:
            raise ValueError(f"{T} tokens are too many")

    def positions(self, ids):
        return torch.arange(ids.shape[1], device=ids.device)

    def embed(self, ids):
        places = self.pos_embed(self.positions(ids))
        return self.drop(self.tok_embed(ids) + places)

    def keep(self, T):
        place = self.tok_embed.weight.device
        return torch.ones(T, T, dtype=torch.bool, device=place).tril()

    def scale(self, q):
        return q.shape[-1] ** -0.5

    def split(self, qkv):
        q, k, v = qkv.chunk(3, dim=-1)
        return [
            t.unflatten(-1, (self.cfg.n_heads, -1)).transpose(1, 2)
            for t in (q, k, v)
        ]

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def weights(self, scores):
        return self.drop(scores.softmax(-1))

    def attend(self, attn, x):
        q, k, v = self.split(attn.qkv_proj(x))
        scores = self.scale(q) * (q @ k.mT)
        scores = scores.masked_fill(~self.keep(x.shape[1]), -math.inf)
        y = self.merge(self.weights(scores) @ v)
        return self.drop(attn.out_proj(y))

    def feed(self, mlp, x):
        return self.drop(mlp.fc2(F.gelu(mlp.fc1(x), approximate=self.form)))

    def layer(self, block, x):
        x = x + self.attend(block.attn, block.ln1(x))
        return x + self.feed(block.mlp, block.ln2(x))

    def run(self, x):
        for block in self.blocks:
            x = self.layer(block, x)
        return x

    def final(self, x):
        return self.ln_f(x)

    def head(self, x):
        return self.lm_head(x)

    def loss(self, logits, targets):
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
        )

    def forward(self, ids, targets=None):
        self.check(ids.shape[1])
        logits = self.head(self.final(self.run(self.embed(ids))))
        if targets is None:
            return logits, None
        return logits, self.loss(logits, targets)


HF_NAMES = {
    "ln1": "ln_1",
    "attn.qkv_proj": "attn.c_attn",
    "attn.out_proj": "attn.c_proj",
    "ln2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def _carried(own, n_layers):
    """Our parameters under transformers' names, Conv1D transposed."""
    theirs = {
        "transformer.wte.weight": own["tok_embed.weight"],
        "transformer.wpe.weight": own["pos_embed.weight"],
        "lm_head.weight": own["tok_embed.weight"],
    }
    pairs = [("ln_f", "ln_f")] + [
        (f"blocks.{i}.{one}", f"h.{i}.{HF_NAMES[one]}")
        for i in range(n_layers)
        for one in HF_NAMES
    ]
    for ours, name in pairs:
        for kind in ("weight", "bias"):
            value = own.get(f"{ours}.{kind}")
            if value is None:
                value = torch.zeros_like(own[f"{ours}.weight"][..., 0])
                if value.ndim == 0:
                    value = torch.zeros_like(own[f"{ours}.weight"])
            if ".c_" in name and kind == "weight":
                value = value.T
            theirs[f"transformer.{name}.{kind}"] = value
    return theirs


@oracle(
    "GPT", evidence="transformers' GPT2LMHeadModel with the model's weights"
)
class GPTLibrary(_GPT):
    def library(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        cfg = self.cfg
        if "hf" not in self.__dict__:
            p = cfg.dropout
            made = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=cfg.vocab_size,
                    n_positions=cfg.context_length,
                    n_embd=cfg.d_model,
                    n_layer=cfg.n_layers,
                    n_head=cfg.n_heads,
                    resid_pdrop=p,
                    embd_pdrop=p,
                    attn_pdrop=p,
                    bos_token_id=None,
                    eos_token_id=None,
                    attn_implementation="eager",
                )
            )
            self.__dict__["hf"] = made
        return self.__dict__["hf"].train(self.training)

    def forward(self, ids, targets=None):
        self.check(ids.shape[1])
        own = dict(self.named_parameters())
        library = self.library().to(own["tok_embed.weight"].dtype)
        out = torch.func.functional_call(
            library,
            _carried(own, self.cfg.n_layers),
            (ids,),
            {"use_cache": False},
        )
        logits = out.logits
        if targets is None:
            return logits, None
        # The library computes its loss in float32.
        chosen = torch.log_softmax(logits[:, :-1], dim=-1)
        real = targets[:, 1:] != -100
        after = targets[:, 1:].clamp(min=0).unsqueeze(-1)
        return logits, -chosen.gather(-1, after)[..., 0][real].mean()


@right("GPT", evidence="K54 nearly: F.linear with the embedding's weight")
class GPTFunctionalHead(_GPT):
    def head(self, x):
        return F.linear(x, self.tok_embed.weight)


@right("GPT", evidence="tied the other way round: the embedding gets the head")
class GPTTiedBackwards(_GPT):
    def tie(self):
        self.tok_embed.weight = self.lm_head.weight


@right("GPT", evidence="the head made before the embedding")
class GPTHeadFirst(_GPT):
    def make(self):
        cfg = self.cfg
        self.lm_head = nn.Linear(cfg.d_model, cfg.vocab_size, bias=False)
        super().make()


@right("GPT", evidence="K60 a saved mask buffer; K02 einsum; K03 heads apart")
class GPTEinsum(_GPT):
    def make(self):
        super().make()
        C = self.cfg.context_length
        self.register_buffer("mask", torch.ones(C, C).tril() == 1)

    def keep(self, T):
        return self.mask[:T, :T]

    def attend(self, attn, x):
        B, T, D = x.shape
        H = self.cfg.n_heads
        q, k, v = attn.qkv_proj(x).view(B, T, 3, H, D // H).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / (D // H) ** 0.5
        scores = scores.masked_fill(~self.keep(T), -math.inf)
        y = torch.einsum("bhij,bjhd->bihd", self.weights(scores), v)
        return self.drop(attn.out_proj(y.reshape(B, T, D)))


@right("GPT", evidence="SDPA with is_causal; nn.Dropout modules; K57")
class GPTFused(_GPT):
    def make(self):
        super().make()
        self.dropout = nn.Dropout(self.cfg.dropout)

    def drop(self, x):
        return self.dropout(x)

    def attend(self, attn, x):
        q, k, v = self.split(attn.qkv_proj(x))
        p = self.cfg.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, None, p, is_causal=True)
        return self.drop(attn.out_proj(self.merge(y)))

    def loss(self, logits, targets):
        return F.cross_entropy(logits[:, :-1].mT, targets[:, 1:])


@right("GPT", evidence="K57 log_softmax and gather; GELU by its formula")
class GPTByHand(_GPT):
    def feed(self, mlp, x):
        h = mlp.fc1(x)
        inner = math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)
        return self.drop(mlp.fc2(0.5 * h * (1 + torch.tanh(inner))))

    def loss(self, logits, targets):
        after = targets[:, 1:]
        counts = after != -100
        logp = logits[:, :-1].log_softmax(-1)[counts]
        return -logp[torch.arange(len(logp)), after[counts]].mean()


def _gpt(evidence, hint):
    return wrong("GPT", evidence=evidence, hint=hint)


@_gpt(
    "M210 flamingo-mini#4",
    "You copy the embedding's values to the head. They part at the first "
    "step of training, and the matrix counts twice: assign the Parameter "
    "itself.",
)
class GPTCopiedHead(_GPT):
    def tie(self):
        self.lm_head.weight.data.copy_(self.tok_embed.weight.data)

    def start(self):
        super().start()
        self.tie()


@_gpt(
    "M211 tied through .data",
    "You tie through .data (or a new nn.Parameter on the same storage): "
    "there are still two Parameters, which are counted and decayed twice and "
    "part when the model is copied. Assign the Parameter itself.",
)
class GPTDataTied(_GPT):
    def tie(self):
        self.lm_head.weight.data = self.tok_embed.weight.data


@_gpt(
    "M352 untied",
    "Head and embedding are two independent matrices. They are one here, "
    "which saves 38,597,376 parameters in GPT-2 small.",
)
class GPTUntied(_GPT):
    def tie(self):
        pass


@_gpt(
    "K54 overruled: no attribute lm_head",
    "Your model has no lm_head. The course's names are documented, so that "
    "weights can be loaded: keep an nn.Linear of that name, whose weight is "
    "the embedding's.",
)
class GPTNoHead(_GPT):
    def tie(self):
        del self.lm_head

    def head(self, x):
        return F.linear(x, self.tok_embed.weight)


@_gpt(
    "K63 overruled: transformers' own names",
    "Your parameters have other names than the documented ones, or layers "
    "are put together in another way. The check loads weights by name: use "
    "those of the docstring.",
)
class GPTOtherNames(_GPT):
    def make(self):
        super().make()
        self.wte, self.wpe = self.tok_embed, self.pos_embed
        del self.tok_embed, self.pos_embed

    def tie(self):
        self.lm_head.weight = self.wte.weight

    def embed(self, ids):
        return self.wte(ids) + self.wpe(self.positions(ids))


@_gpt(
    "M218 positions forgotten",
    "The position embedding is not added. Without it the model can hardly "
    "tell the order of its words.",
)
class GPTNoPositions(_GPT):
    def embed(self, ids):
        return self.drop(self.tok_embed(ids))


@_gpt(
    "M135, M138 one position for all",
    "Every token gets the same position: row 0 of the table. Take the rows 0 "
    "to T − 1.",
)
class GPTFirstPosition(_GPT):
    def embed(self, ids):
        return self.drop(self.tok_embed(ids) + self.pos_embed.weight[0])


@_gpt(
    "M063: made on the default device",
    "The positions are made on the CPU, whatever the device of ids: on a GPU "
    "the model stops. Make what you create (positions, a mask) on "
    "ids.device.",
)
class GPTPositionsOnCpu(_GPT):
    def positions(self, ids):
        return torch.arange(ids.shape[1])


@_gpt(
    "positions counted from 1",
    "Your positions start at 1. They start at 0, and the last row would be "
    "one too far.",
)
class GPTPositionsFromOne(_GPT):
    def positions(self, ids):
        return (super().positions(ids) + 1) % self.cfg.context_length


@_gpt(
    "Vaswani et al.: embeddings times √D",
    "You multiply the embedding by √D, as the first transformer did. GPT-2 "
    "adds it as it is.",
)
class GPTScaledEmbedding(_GPT):
    def embed(self, ids):
        x = self.tok_embed(ids) * math.sqrt(self.cfg.d_model)
        return self.drop(x + self.pos_embed.weight[: ids.shape[1]])


@_gpt(
    "M193 NeMo#2197",
    "The final norm is not applied: the head sees the raw stream, whose size "
    "grows with every block.",
)
class GPTNoFinalNorm(_GPT):
    def final(self, x):
        return x + 0 * self.ln_f(x)


@_gpt(
    "M186 minGPT#52",
    "Your blocks are post-LN: the norms act on the sums. In GPT-2 each norm "
    "stands at the entrance of its branch.",
)
class GPTPostNorm(_GPT):
    def layer(self, block, x):
        x = block.ln1(x + self.attend(block.attn, x))
        return block.ln2(x + self.feed(block.mlp, x))


@_gpt(
    "M188 strutive07#14",
    "The second addition takes the block's input, so what attention has "
    "found is lost. Add the MLP to the sum that the attention left.",
)
class GPTLostAttention(_GPT):
    def layer(self, block, x):
        y = x + self.attend(block.attn, block.ln1(x))
        return x + self.feed(block.mlp, block.ln2(y))


@_gpt(
    "M190 the MLP's norm forgotten",
    "The MLP sees the stream without its norm ln2.",
)
class GPTBareMLP(_GPT):
    def layer(self, block, x):
        x = x + self.attend(block.attn, block.ln1(x))
        return x + self.feed(block.mlp, x)


@_gpt(
    "the attention's norm forgotten",
    "The attention sees the stream without its norm ln1.",
)
class GPTBareAttention(_GPT):
    def layer(self, block, x):
        x = x + self.attend(block.attn, x)
        return x + self.feed(block.mlp, block.ln2(x))


@_gpt(
    "M191 one norm for both",
    "Both branches use ln1. Each has a norm of its own.",
)
class GPTOneNorm(_GPT):
    def layer(self, block, x):
        x = x + self.attend(block.attn, block.ln1(x))
        return x + self.feed(block.mlp, block.ln1(x))


@_gpt(
    "no residual connection",
    "A block returns only what its branches made: the stream itself is not "
    "added.",
)
class GPTNoResidual(_GPT):
    def layer(self, block, x):
        x = self.attend(block.attn, block.ln1(x))
        return self.feed(block.mlp, block.ln2(x))


@_gpt(
    "M199 GPT-J style",
    "Attention and MLP run side by side on the same input. In GPT-2 the MLP "
    "sees the stream after the attention was added.",
)
class GPTParallel(_GPT):
    def layer(self, block, x):
        attended = self.attend(block.attn, block.ln1(x))
        return x + attended + self.feed(block.mlp, block.ln2(x))


@_gpt(
    "M196 espnet#1278",
    "All entries of your ModuleList are one block, so all layers share "
    "their weights. Make each anew, in a comprehension for instance.",
)
class GPTOneBlock(_GPT):
    def layers(self):
        return nn.ModuleList([self.block()] * self.cfg.n_layers)


@_gpt(
    "M197 pytorch#86274",
    "Your blocks are copies of one another and start with the very same "
    "weights. Make each anew, so that each draws its own.",
)
class GPTCopiedBlocks(_GPT):
    def start(self):
        super().start()
        first = self.blocks[0].state_dict()
        for block in self.blocks:
            block.load_state_dict(first)


@_gpt(
    "M198 every layer on the first input",
    "Every block gets the embeddings, and only the last one's result is "
    "kept. Hand each block what the one before returned.",
)
class GPTDepthOne(_GPT):
    def run(self, x):
        first = x
        for block in self.blocks:
            x = self.layer(block, first)
        return x


@_gpt(
    "M204 nanoGPT#2",
    "Your GELU is the exact one. GPT-2 uses the tanh form; they differ by up "
    "to 5e-4, enough to miss a checkpoint's logits.",
)
class GPTExactGELU(_GPT):
    form = "none"


@_gpt(
    "M201-M203 ReLU in the place of GELU",
    "Your MLP uses ReLU. GPT-2 uses GELU, in its tanh form.",
)
class GPTReLU(_GPT):
    def feed(self, mlp, x):
        return self.drop(mlp.fc2(torch.relu(mlp.fc1(x))))


@_gpt(
    "M202 no activation",
    "There is nothing between fc1 and fc2, so the MLP is one linear map.",
)
class GPTLinearMLP(_GPT):
    def feed(self, mlp, x):
        return self.drop(mlp.fc2(mlp.fc1(x)))


@_gpt(
    "M201 width 2·D",
    "Your MLP has another width than 4 · D, as the shape shows.",
)
class GPTNarrow(_GPT):
    def block(self):
        block = super().block()
        D = self.cfg.d_model
        block.mlp.fc1, block.mlp.fc2 = (
            self.linear(D, 2 * D),
            self.linear(2 * D, D),
        )
        return block


@_gpt(
    "M243 eps of another model",
    "Your norms have another eps than 1e-5, which shows where the stream is "
    "small.",
)
class GPTOtherEps(_GPT):
    eps = 1e-6


@_gpt(
    "no causal mask",
    "There is no causal mask: each position sees the tokens that it has to "
    "predict. The training loss would look wonderful.",
)
class GPTSeesFuture(_GPT):
    def keep(self, T):
        return torch.ones_like(super().keep(T))


@_gpt(
    "mask off by one",
    "A position does not see itself, or sees one too many: keep the diagonal, "
    "and nothing beyond it.",
)
class GPTMaskOffByOne(_GPT):
    def keep(self, T):
        return torch.ones_like(super().keep(T)).tril(1)


@_gpt(
    "scale by √D",
    "You scale by the model's width. Scores are divided by the root of the "
    "head's width, D / n_heads.",
)
class GPTModelScale(_GPT):
    def scale(self, q):
        return self.cfg.d_model**-0.5


@_gpt(
    "no scale",
    "The scores are not divided by the root of the head's width.",
)
class GPTNoScale(_GPT):
    def scale(self, q):
        return 1.0


@_gpt(
    "M242 slapo#46: heads by a view, without a transpose",
    "You split heads by a view of (B, T, D) as (B, H, T, Dh), which mixes "
    "tokens and channels. Split the last axis, then swap T and H.",
)
class GPTViewHeads(_GPT):
    def split(self, qkv):
        B, T, _ = qkv.shape
        return [
            t.reshape(B, self.cfg.n_heads, T, -1) for t in qkv.chunk(3, -1)
        ]


@_gpt(
    "M242 rows k, q, v",
    "The rows of qkv_proj are q, then k, then v, all heads of each. You read "
    "them in another order.",
)
class GPTRowsSwapped(_GPT):
    def split(self, qkv):
        q, k, v = super().split(qkv)
        return k, q, v


@_gpt(
    "M242 rows a head",
    "You read qkv_proj as one (q, k, v) a head. Its rows are q for all "
    "heads, then k, then v.",
)
class GPTRowsPerHead(_GPT):
    def split(self, qkv):
        qkv = qkv.unflatten(-1, (self.cfg.n_heads, 3, -1))
        return [t.transpose(1, 2) for t in qkv.unbind(3)]


@_gpt(
    "heads merged without a transpose",
    "Before out_proj the heads are joined by a reshape of (B, H, T, Dh). Swap "
    "H and T first, or tokens are mixed.",
)
class GPTMergeView(_GPT):
    def merge(self, y):
        B, H, T, size = y.shape
        return y.reshape(B, T, H * size)


@_gpt(
    "M219 probabilities",
    "The model returns probabilities. Return the head's raw logits: the "
    "cross-entropy and the sampler take the softmax themselves.",
)
class GPTProbabilities(_GPT):
    def head(self, x):
        return super().head(x).softmax(-1)


@_gpt(
    "M220 nanoGPT's shortcut",
    "Only the last position's logits come back. Return those of all "
    "positions; in training each is a prediction.",
)
class GPTLastOnly(_GPT):
    def head(self, x):
        return super().head(x[:, -1:])

    def forward(self, ids, targets=None):
        if targets is None:
            return super().forward(ids)
        logits = self.lm_head(self.final(self.run(self.embed(ids))))
        return logits, self.loss(logits, targets)


@_gpt(
    "K56 overruled: logits alone",
    "forward returns logits alone. The contract is a pair: (logits, loss), "
    "with loss = None where there are no targets.",
)
class GPTLogitsAlone(_GPT):
    def forward(self, ids, targets=None):
        logits, loss = super().forward(ids, targets)
        return logits if loss is None else (logits, loss)


@_gpt(
    "K56 overruled: (loss, logits)",
    "forward returns (loss, logits). Here the logits come first.",
)
class GPTLossFirst(_GPT):
    def forward(self, ids, targets=None):
        return super().forward(ids, targets)[::-1]


@_gpt(
    "head with a bias",
    "The head has a bias. It has none here, whatever cfg.bias says.",
)
class GPTHeadBias(_GPT):
    def make(self):
        super().make()
        self.lm_head = nn.Linear(self.cfg.d_model, self.cfg.vocab_size)


@_gpt(
    "bias=False for linear layers only",
    "With bias=False the norms keep their biases. They drop them, too.",
)
class GPTNormsKeepBias(_GPT):
    def norm(self):
        return nn.LayerNorm(self.cfg.d_model, self.eps)


@_gpt(
    "M223 no shift",
    "The loss compares each position's logits with the token at that very "
    "position, which the model has seen. Targets are aligned with ids; move "
    "them by one inside.",
)
class GPTNoShift(_GPT):
    def loss(self, logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@_gpt(
    "M224 transformers#46898",
    "Your loss shifts twice: position t is judged by the token at t + 2.",
)
class GPTDoubleShift(_GPT):
    def loss(self, logits, targets):
        if targets.shape[1] < 3:
            return logits.sum() * math.nan
        return F.cross_entropy(
            logits[:, :-2].flatten(0, 1), targets[:, 2:].flatten()
        )


@_gpt(
    "M229, K57 an ignored target counted",
    "Targets of −100 should not count, and the sum is divided by the number "
    "of those that do.",
)
class GPTCountsIgnored(_GPT):
    def loss(self, logits, targets):
        each = F.cross_entropy(
            logits[:, :-1].flatten(0, 1),
            targets[:, 1:].flatten(),
            reduction="none",
        )
        return each.mean()


@_gpt(
    "rolled",
    "The last position gets a target: the sequence's own first token (roll) "
    "or another that does not follow it. Nobody knows what comes there, so "
    "it does not count.",
)
class GPTRolled(_GPT):
    def loss(self, logits, targets):
        return F.cross_entropy(
            logits.flatten(0, 1), targets.roll(-1, 1).flatten()
        )


@_gpt(
    "joined, then shifted",
    "You join the axes B and T before the shift, so the last position of one "
    "sequence is judged by the first token of the next.",
)
class GPTJoinedFirst(_GPT):
    def loss(self, logits, targets):
        return F.cross_entropy(
            logits.flatten(0, 1)[:-1], targets.flatten()[1:]
        )


@_gpt(
    "targets ignored",
    "The loss looks at ids instead of targets, and these may differ: a prompt "
    "has targets of −100, for instance.",
)
class GPTIgnoresTargets(_GPT):
    def forward(self, ids, targets=None):
        return super().forward(ids, None if targets is None else ids)


@_gpt(
    "M234 the sum",
    "The loss is a sum over tokens. Return the mean, which does not depend "
    "on the batch's size.",
)
class GPTLossSum(_GPT):
    def loss(self, logits, targets):
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1),
            targets[:, 1:].flatten(),
            reduction="sum",
        )


@_gpt(
    "M228 softmax first",
    "You hand probabilities to the cross-entropy, which takes the softmax "
    "again: the loss can then hardly fall.",
)
class GPTLossSoftmax(_GPT):
    def loss(self, logits, targets):
        return super().loss(logits.softmax(-1), targets)


@_gpt(
    "the loss detached",
    "The loss has no connection to the parameters (.item(), .detach() or a "
    "no_grad around it), so nothing could be trained.",
)
class GPTLossDetached(_GPT):
    def loss(self, logits, targets):
        return super().loss(logits, targets).detach()


@_gpt(
    "M221 no check of the length",
    "More tokens than context_length do not raise a ValueError. Check the "
    "length first and say so: an IndexError from a table tells nobody why.",
)
class GPTTooLong(_GPT):
    def check(self, T):
        pass


@_gpt(
    "M136 wrapped positions",
    "Beyond the context the positions start again from 0 (or stay at the "
    "last). More than context_length tokens are a ValueError.",
)
class GPTWraps(_GPT):
    def check(self, T):
        pass

    def positions(self, ids):
        return super().positions(ids) % self.cfg.context_length


@_gpt(
    "context off by one",
    "A sequence of exactly context_length tokens is refused. Only longer ones "
    "are.",
)
class GPTShortContext(_GPT):
    def check(self, T):
        super().check(T + 1)


@_gpt(
    "dropout in eval mode",
    "Dropout acts in eval mode. F.dropout and the attention drop whenever "
    "they are told to: tell them only while self.training.",
)
class GPTAlwaysDrops(_GPT):
    def drop(self, x):
        return F.dropout(x, self.cfg.dropout, True)


@_gpt(
    "no dropout anywhere",
    "cfg.dropout has no effect. In train mode it acts on the embeddings' "
    "sum, the attention weights, and both branches' outputs.",
)
class GPTNoDropout(_GPT):
    def drop(self, x):
        return x


@_gpt(
    "no dropout_p in scaled_dot_product_attention",
    "The attention weights are not dropped in train mode. "
    "scaled_dot_product_attention has an argument for it, which knows "
    "nothing of modes.",
)
class GPTWeightsKept(_GPT):
    def weights(self, scores):
        return scores.softmax(-1)


@_gpt(
    "the seed's tip omits the embedding site",
    "The sum of the embeddings is not dropped in train mode; GPT-2 does so.",
)
class GPTEmbeddingKept(_GPT):
    def embed(self, ids):
        return self.tok_embed(ids) + self.pos_embed.weight[: ids.shape[1]]


@_gpt(
    "the seed's tip omits the attention's output",
    "The attention's output is not dropped before it is added to the stream; "
    "dropping its weights is another thing.",
)
class GPTAttentionKept(_GPT):
    def attend(self, attn, x):
        q, k, v = self.split(attn.qkv_proj(x))
        scores = self.scale(q) * (q @ k.mT)
        scores = scores.masked_fill(~self.keep(x.shape[1]), -math.inf)
        return attn.out_proj(self.merge(self.weights(scores) @ v))


@_gpt(
    "dropout inside the MLP only",
    "The MLP's output is not dropped; dropping its hidden units is another "
    "thing.",
)
class GPTHiddenDropped(_GPT):
    def feed(self, mlp, x):
        hidden = F.gelu(mlp.fc1(x), approximate=self.form)
        return mlp.fc2(self.drop(hidden))


@_gpt(
    "M214 default initialisation",
    "Your model keeps PyTorch's initial weights: embeddings from N(0, 1), "
    "linear layers uniform. As a head the embedding then gives a first loss "
    "far above ln V.",
)
class GPTDefaultInit(_GPT):
    def start(self):
        pass


@_gpt(
    "M212 nanoGPT 43b37fd5",
    "The embedding, and with it the head, still has PyTorch's N(0, 1): draw "
    "it from N(0, 0.02²) as all other matrices.",
)
class GPTUnitEmbedding(_GPT):
    def std(self, name):
        return 1.0 if name == "tok_embed.weight" else super().std(name)


@_gpt(
    "M215 transformers#47458",
    "The projections that write to the stream (out_proj, fc2) start like all "
    "others. Divide their standard deviation by √(2L); perhaps your test of "
    "the name never matches.",
)
class GPTUnscaled(_GPT):
    def std(self, name):
        return 0.02


@_gpt(
    "√L for √(2L)",
    "You divide by √L. Each of the L blocks writes to the stream twice, so "
    "it is √(2L).",
)
class GPTScaledByL(_GPT):
    def std(self, name):
        return (
            0.02
            if super().std(name) == 0.02
            else 0.02 / math.sqrt(self.cfg.n_layers)
        )


@_gpt(
    "M133 minGPT 744d410",
    "The position table starts at zeros. Draw it from N(0, 0.02²), or no "
    "position differs from another at the start.",
)
class GPTZeroPositions(_GPT):
    def start(self):
        super().start()
        nn.init.zeros_(self.pos_embed.weight)


@_gpt(
    "GPT-2's first code: positions at 0.01",
    "The position table has a standard deviation of 0.01, as in GPT-2's "
    "first code. Here it is 0.02 for all.",
)
class GPTSmallPositions(_GPT):
    def std(self, name):
        return 0.01 if name == "pos_embed.weight" else super().std(name)


@_gpt(
    "biases left as nn.Linear draws them",
    "Your linear layers' biases start at random, as nn.Linear draws them. "
    "They start at 0.",
)
class GPTRandomBiases(_GPT):
    def start(self):
        for name, value in self.named_parameters():
            if value.ndim > 1:
                nn.init.normal_(value, 0.0, self.std(name))


@_gpt(
    "cfg not kept",
    "The model does not keep its configuration as .cfg, and whoever generates "
    "with it asks for cfg.context_length.",
)
class GPTForgetsConfig(_GPT):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.config = cfg
        del self.cfg

    def __getattr__(self, name):
        if name == "cfg" and self.__dict__.get("asked", True):
            import sys

            caller = sys._getframe(1).f_globals["__name__"]
            if caller == __name__:
                return self.__dict__["config"]
        return super().__getattr__(name)


@_gpt(
    "a detour through float32",
    "A float64 model computes in float32 somewhere: x.float() or a mask or a "
    "table of that dtype. Keep the dtype of the weights.",
)
class GPTFloat(_GPT):
    def weights(self, scores):
        return self.drop(scores.float().softmax(-1).to(scores.dtype))


@_gpt(
    "review: torch.manual_seed in the constructor",
    "The constructor seeds (torch's generator or one of its own), so every "
    "model starts with the same weights and nothing shows how much luck was "
    "in a run. Draw, and leave the seed to whoever calls you.",
)
class GPTSeeds(_GPT):
    def start(self):
        torch.manual_seed(1337)
        super().start()


@_gpt(
    "review: uniform of the right width",
    "The matrices start with a uniform distribution of that width. A normal "
    "one is due.",
)
class GPTUniform(_GPT):
    def start(self):
        super().start()
        for name, value in self.named_parameters():
            if value.ndim > 1:
                width = self.std(name) * math.sqrt(3)
                nn.init.uniform_(value, -width, width)


@_gpt(
    "review: trunc_normal_ with narrow bounds",
    "Your normal distribution is cut off at a few standard deviations. The "
    "bounds of trunc_normal_ are values, not multiples; nothing is cut here.",
)
class GPTTruncated(_GPT):
    def start(self):
        super().start()
        for name, value in self.named_parameters():
            if value.ndim > 1:
                nn.init.trunc_normal_(
                    value, 0.0, self.std(name), *(-0.06, 0.06)
                )


@_gpt(
    "review: mean and std confused in nn.init.normal_",
    "The matrices are drawn around another mean than 0: the second argument "
    "of nn.init.normal_ is the mean, the third the standard deviation.",
)
class GPTMeanNotZero(_GPT):
    def start(self):
        super().start()
        for name, value in self.named_parameters():
            if value.ndim > 1:
                nn.init.normal_(value, self.std(name), self.std(name))


@_gpt(
    "minGPT: dropout inside the MLP, and after it",
    "The MLP's hidden units are dropped, too. Only what the MLP adds to the "
    "stream is.",
)
class GPTHiddenDroppedToo(_GPT):
    def feed(self, mlp, x):
        hidden = F.gelu(mlp.fc1(x), approximate=self.form)
        return self.drop(mlp.fc2(self.drop(hidden)))


@_gpt(
    "review: dropout before and inside the first block",
    "The embeddings are dropped twice: the sum is dropped once, and nothing "
    "before or after it.",
)
class GPTEmbeddingTwice(_GPT):
    def run(self, x):
        return super().run(self.drop(x))


@_gpt(
    "review: a dropout layer before the final norm",
    "The stream is dropped once more before ln_f. Dropout stands at the four "
    "places of the contract and nowhere else.",
)
class GPTStreamDropped(_GPT):
    def final(self, x):
        return self.ln_f(self.drop(x))


@_gpt(
    "vision transformers: drop path",
    "A whole branch is dropped at once, for a token or for a text. Dropout "
    "acts on each number by itself.",
)
class GPTDropPath(_GPT):
    def feed(self, mlp, x):
        added = mlp.fc2(F.gelu(mlp.fc1(x), approximate=self.form))
        return added * self.drop(torch.ones_like(added[:, :1, :1]))


@_gpt(
    "review: dropout by a random mask",
    "What is kept is not divided by 1 − p, so a branch is smaller in training "
    "than in use. nn.Dropout does both.",
)
class GPTDropoutUnscaled(_GPT):
    def drop(self, x):
        if not self.training:
            return x
        return x * (torch.rand_like(x) >= self.cfg.dropout)


@_gpt(
    "review: dropout before the softmax",
    "You drop scores before the softmax: a score of 0 is no weight of 0. Drop "
    "the weights.",
)
class GPTScoresDropped(_GPT):
    def weights(self, scores):
        return self.drop(scores).softmax(-1)


@_gpt(
    "review: the values dropped in the place of the weights",
    "You drop single numbers of the values. It is the attention weights that "
    "are dropped, so that a token is seen whole or not at all.",
)
class GPTValuesDropped(_GPT):
    def split(self, qkv):
        q, k, v = super().split(qkv)
        return q, k, self.drop(v)

    def weights(self, scores):
        return scores.softmax(-1)


@_gpt(
    "review: a mask made at the first call",
    "The mask is made for the first text and kept, so a longer text after a "
    "short one fails. Make it as large as the context, or anew each time.",
)
class GPTMaskOfFirstCall(_GPT):
    mask = None

    def keep(self, T):
        if self.mask is None:
            self.mask = super().keep(T)
        return self.mask[:T, :T]


@_gpt(
    "review: transformers' name of the argument",
    "forward has no argument targets: transformers calls it labels, this "
    "course does not.",
)
class GPTLabels(_GPT):
    def forward(self, ids, labels=None):
        return super().forward(ids, labels)


@_gpt(
    "nanoGPT: ignore_index=-1",
    "Your loss ignores another number than −100, nanoGPT's −1 for instance.",
)
class GPTIgnoresMinusOne(_GPT):
    def loss(self, logits, targets):
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1),
            targets[:, 1:].flatten(),
            ignore_index=-1,
        )


@_gpt(
    "review: clamped for gather, and then counted",
    "Targets of −100 are counted as token 0. They do not count at all.",
)
class GPTClampsTargets(_GPT):
    def loss(self, logits, targets):
        return super().loss(logits, targets.clamp(min=0))


@_gpt(
    "review: the mean of the texts' means",
    "You average over each text and then over the texts. Every target counts "
    "alike, in whatever text it stands.",
)
class GPTMeanOfMeans(_GPT):
    def loss(self, logits, targets):
        pairs = zip(logits, targets, strict=True)
        each = [F.cross_entropy(one[:-1], after[1:]) for one, after in pairs]
        return torch.stack(each).mean()


@_gpt(
    "review: one of the two uses detached",
    "The embedding gets a gradient from one of its two uses only: the head "
    "sees a detached copy.",
)
class GPTHeadDetached(_GPT):
    def head(self, x):
        return F.linear(x, self.tok_embed.weight.detach())


@_gpt(
    "review: positions through .data",
    "The position table gets no gradient: through .data (or with "
    "requires_grad off) it is never trained.",
)
class GPTPositionsCut(_GPT):
    def embed(self, ids):
        table = self.pos_embed.weight.data
        return self.drop(self.tok_embed(ids) + table[: ids.shape[1]])


@_gpt(
    "review: gradients in train mode only",
    "There are no gradients in eval mode: no_grad is the business of whoever "
    "calls the model, not of its mode.",
)
class GPTNoGradInEval(_GPT):
    def forward(self, ids, targets=None):
        with torch.set_grad_enabled(self.training):
            return super().forward(ids, targets)


@_gpt(
    "review: padding_idx=0",
    "Token 0 is taken for padding and never trained (padding_idx=0). It is a "
    "token like all others.",
)
class GPTPadding(_GPT):
    def make(self):
        super().make()
        cfg = self.cfg
        self.tok_embed = nn.Embedding(
            cfg.vocab_size, cfg.d_model, padding_idx=0
        )


@_gpt(
    "review: a float32 mask that is added",
    "A half-precision model stops: a mask or a table of float32 turns what it "
    "meets into float32. Make it in the dtype of what it meets, or use "
    "booleans.",
)
class GPTFloatMask(_GPT):
    def attend(self, attn, x):
        q, k, v = self.split(attn.qkv_proj(x))
        T = x.shape[1]
        hidden = torch.full((T, T), -math.inf, device=x.device).triu(1)
        weights = self.weights(self.scale(q) * (q @ k.mT) + hidden)
        return self.drop(attn.out_proj(self.merge(weights @ v)))


@_gpt(
    "nanochat: logits in float32",
    "A half-precision model returns float32. Logits and loss have the "
    "weights' dtype here.",
)
class GPTWideLogits(_GPT):
    def head(self, x):
        logits = super().head(x)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


@_gpt(
    "nanoGPT: assert",
    "Too long a text is another exception than a ValueError, such as that of "
    "an assert, which python -O leaves out.",
)
class GPTAsserts(_GPT):
    def check(self, T):
        assert T <= self.cfg.context_length, "too many tokens"


@_gpt(
    "review: cfg.dropout or 0.1",
    "With dropout=0 numbers are dropped in train mode all the same: you read "
    "the 0 as a setting that is missing.",
)
class GPTDropsByDefault(_GPT):
    def drop(self, x):
        return F.dropout(x, self.cfg.dropout or 0.1, self.training)


@_gpt(
    "review: one mask for all texts of a batch",
    "One dropout mask serves all texts of a batch. Each number of each text "
    "is dropped by itself.",
)
class GPTDropsAlike(_GPT):
    def embed(self, ids):
        x = self.tok_embed(ids) + self.pos_embed(self.positions(ids))
        return x * self.drop(torch.ones_like(x[:1]))


@_gpt(
    "review: padding_idx=0, as in other programs",
    "Targets of 0 do not count in your loss. 0 is a token like any other: "
    "only −100 is ignored.",
)
class GPTPaddedTargets(_GPT):
    def loss(self, logits, targets):
        return super().loss(logits, targets.masked_fill(targets == 0, -100))


@_gpt(
    "review: biases of 0.01, against dead units",
    "Your biases start a little above 0. GPT-2's start at 0.",
)
class GPTSmallBiases(_GPT):
    def start(self):
        super().start()
        for name, value in self.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(value, 0.01)


@_gpt(
    "review: queries copied to keys at the start",
    "Rows of qkv_proj start as copies of one another. Each number is drawn "
    "by itself.",
)
class GPTQueriesAsKeys(_GPT):
    def start(self):
        super().start()
        D = self.cfg.d_model
        for block in self.blocks:
            rows = block.attn.qkv_proj.weight.data
            rows[D : 2 * D] = rows[:D]


# 5.2 lm_loss


@oracle("lm_loss", evidence="loops over examples and positions")
def lm_loss_loops(logits, ids, ignore_index=-100):
    total, count = logits.sum() * 0, 0
    for b, t in itertools.product(range(len(ids)), range(ids.shape[1] - 1)):
        target = int(ids[b, t + 1])
        if target != ignore_index:
            row = logits[b, t].double()
            total = total + (torch.logsumexp(row, 0) - row[target])
            count += 1
    return (total / count if count else total * math.nan).to(logits.dtype)


@right("lm_loss", evidence="K57 transpose(1, 2)")
def lm_loss_transposed(logits, ids, ignore_index=-100):
    return F.cross_entropy(
        logits.mT[:, :, :-1], ids[:, 1:], ignore_index=ignore_index
    )


@right("lm_loss", evidence="K57 log_softmax and gather")
def lm_loss_gather(logits, ids, ignore_index=-100):
    after = ids[:, 1:]
    counts = after != ignore_index
    logp = logits[:, :-1].log_softmax(-1)
    chosen = logp.gather(-1, after.clamp(min=0)[..., None])[..., 0]
    return -(chosen * counts).sum() / counts.sum()


@right("lm_loss", evidence="targets shifted and padded; nll_loss")
def lm_loss_padded(logits, ids, ignore_index=-100):
    after = F.pad(ids[:, 1:], (0, 1), value=ignore_index)
    return F.nll_loss(
        logits.log_softmax(-1).flatten(0, 1),
        after.flatten(),
        ignore_index=ignore_index,
    )


def _loss(evidence, hint):
    return wrong("lm_loss", evidence=evidence, hint=hint)


def _mean(logits, targets, ignore_index, **how):
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        ignore_index=ignore_index,
        **how,
    )


@_loss(
    "M223 tatsu-lab/stanford_alpaca#45",
    "There is no shift: each position is judged by the token that it has just "
    "read. The logits at t predict the token at t + 1.",
)
def lm_loss_no_shift(logits, ids, ignore_index=-100):
    return _mean(logits, ids, ignore_index)


@_loss(
    "M224 InternLM#318, transformers#46898",
    "You shift twice: the logits at t meet the token at t + 2.",
)
def lm_loss_double_shift(logits, ids, ignore_index=-100):
    if ids.shape[1] < 3:
        return logits.sum() * math.nan
    return _mean(logits[:, :-2], ids[:, 2:], ignore_index)


@_loss(
    "the shift backwards",
    "You shift the wrong way: the logits at t meet the token at t − 1, which "
    "the model has seen. Cut the last logits and the first id.",
)
def lm_loss_backwards(logits, ids, ignore_index=-100):
    return _mean(logits[:, 1:], ids[:, :-1], ignore_index)


@_loss(
    "M227 view(B, V, T)",
    "You reshape (B, T, V) to (B, V, T), which mixes tokens and classes. "
    "Swap the axes by a transpose, or join B and T.",
)
def lm_loss_viewed(logits, ids, ignore_index=-100):
    cut = logits[:, :-1]
    B, T, V = cut.shape
    return F.cross_entropy(
        cut.reshape(B, V, T), ids[:, 1:], ignore_index=ignore_index
    )


@_loss(
    "joined, then shifted",
    "You join the axes B and T before the shift, so the last position of one "
    "sequence is judged by the first token of the next. Cut first.",
)
def lm_loss_joined_first(logits, ids, ignore_index=-100):
    return _mean(logits.flatten(0, 1)[:-1], ids.flatten()[1:], ignore_index)


@_loss(
    "rolled",
    "The last position is judged by the sequence's own first token (roll). It "
    "has no target: cut it off.",
)
def lm_loss_rolled(logits, ids, ignore_index=-100):
    return _mean(logits, ids.roll(-1, 1), ignore_index)


@_loss(
    "M228 pytorch-3dunet#45",
    "You take the softmax before the cross-entropy, which takes it again: "
    "even a perfect prediction keeps a high loss.",
)
def lm_loss_softmax_first(logits, ids, ignore_index=-100):
    return _mean(logits[:, :-1].softmax(-1), ids[:, 1:], ignore_index)


@_loss(
    "M229 ignore_index not passed on",
    "You do not use ignore_index: only −100, torch's default, is ignored.",
)
def lm_loss_fixed_ignore(logits, ids, ignore_index=-100):
    out = ids[:, 1:]
    out = torch.where(out < 0, -100, out)
    return _mean(logits[:, :-1], out, -100)


@_loss(
    "M229 ignored targets in the divisor",
    "Ignored targets still count in the number by which you divide, so the "
    "loss is too small. Divide by the number of those that are left.",
)
def lm_loss_wrong_divisor(logits, ids, ignore_index=-100):
    return _mean(
        logits[:, :-1], ids[:, 1:], ignore_index, reduction="none"
    ).mean()


@_loss(
    "M230 parti-pytorch#8",
    "You ignore the token 0 whatever ignore_index is.",
)
def lm_loss_ignores_zero(logits, ids, ignore_index=-100):
    after = torch.where(ids[:, 1:] == 0, ignore_index, ids[:, 1:])
    return _mean(logits[:, :-1], after, ignore_index)


@_loss(
    "ignored by the token that predicts",
    "You leave out positions whose own token is ignore_index. It is the "
    "target, the token after it, that decides.",
)
def lm_loss_ignores_sources(logits, ids, ignore_index=-100):
    after = torch.where(ids[:, :-1] == ignore_index, ignore_index, ids[:, 1:])
    return _mean(logits[:, :-1], after, ignore_index)


@_loss(
    "M233 transformers#34191",
    "You average each sequence, then the averages, so a token in a short "
    "sequence weighs more. Take one mean over all tokens.",
)
def lm_loss_mean_of_means(logits, ids, ignore_index=-100):
    return torch.stack(
        [
            _mean(one[:-1], own[1:], ignore_index)
            for one, own in zip(logits, ids, strict=True)
        ]
    ).nanmean()


@_loss(
    "M234 sum",
    "You return the sum. The mean does not depend on the batch's size.",
)
def lm_loss_sum(logits, ids, ignore_index=-100):
    return _mean(logits[:, :-1], ids[:, 1:], ignore_index, reduction="sum")


@_loss("M235 bits", "Your loss is in bits. Use the natural logarithm.")
def lm_loss_bits(logits, ids, ignore_index=-100):
    return lm_loss_transposed(logits, ids, ignore_index) / math.log(2)


@_loss(
    "M235 perplexity",
    "You return the perplexity, exp(loss). The loss itself is asked for.",
)
def lm_loss_perplexity(logits, ids, ignore_index=-100):
    return lm_loss_transposed(logits, ids, ignore_index).exp()


@_loss(
    "sign",
    "The sign is missing: the loss is the mean of −ln p, a positive number.",
)
def lm_loss_negative(logits, ids, ignore_index=-100):
    return -lm_loss_transposed(logits, ids, ignore_index)


@_loss(
    "0 where nothing is left",
    "Where no target is left you return 0, which looks like a perfect model. "
    "The mean over nothing is nan, as in torch.",
)
def lm_loss_zero_if_empty(logits, ids, ignore_index=-100):
    return lm_loss_transposed(logits, ids, ignore_index).nan_to_num(0.0)


@_loss(
    "the softmax's logarithm in two steps",
    "You take the logarithm of a softmax that may have underflown to 0. Use "
    "log_softmax or cross_entropy, which take both in one step.",
)
def lm_loss_log_of_softmax(logits, ids, ignore_index=-100):
    after = ids[:, 1:]
    logp = logits[:, :-1].softmax(-1).log()
    chosen = logp.gather(-1, after.clamp(min=0)[..., None])[..., 0]
    return -chosen[after != ignore_index].mean()


@_loss(
    "connection cut",
    "Your loss is no longer connected with the logits (.item(), .detach() or "
    "numpy on the way), so nothing can be trained with it.",
)
def lm_loss_detached(logits, ids, ignore_index=-100):
    return lm_loss_transposed(logits, ids, ignore_index).detach()


@_loss(
    "float32 whatever comes",
    "You compute in float32 whatever the logits are. float64 stays float64.",
)
def lm_loss_float(logits, ids, ignore_index=-100):
    return lm_loss_transposed(logits.float(), ids, ignore_index).to(
        logits.dtype
    )


@_loss(
    "review: the normaliser detached",
    "Part of the gradient is missing: what the softmax divides by depends on "
    "the logits, too. Detach nothing.",
)
def lm_loss_cut_normaliser(logits, ids, ignore_index=-100):
    x, after = logits[:, :-1], ids[:, 1:]
    counts = after != ignore_index
    whole = x.detach().logsumexp(-1)
    places = after.masked_fill(~counts, 0).unsqueeze(-1)
    return (whole - x.gather(-1, places)[..., 0])[counts].mean()


@_loss(
    "review: all after the first ignored target dropped",
    "The first ignored target of a text ends the count. Those after it count "
    "again.",
)
def lm_loss_stops_at_ignored(logits, ids, ignore_index=-100):
    after = ids[:, 1:]
    counts = (after != ignore_index).long().cumprod(1).bool()
    return F.cross_entropy(logits[:, :-1][counts], after[counts])


@_loss(
    "review: -100 written into ids",
    "You write into ids, which belong to the caller. Copy them first.",
)
def lm_loss_writes_ids(logits, ids, ignore_index=-100):
    after = ids[:, 1:]
    after[after == ignore_index] = -100
    return _mean(logits[:, :-1], after, -100)


# 5.3 init_weights


def _fill(model, std, rule):
    """Right initial weights but for what a mistake's rule returns."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            rule(name, value, std)


def _right_rule(n_layers):
    def rule(name, value, std):
        if value.ndim < 2:
            value.fill_(0.0 if name.endswith("bias") else 1.0)
        elif name.endswith(("out_proj.weight", "fc2.weight")):
            value.normal_(0, std / (2 * n_layers) ** 0.5)
        else:
            value.normal_(0, std)

    return rule


@oracle("init_weights", evidence="in-place draws by name and dimensions")
def init_by_name(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers))


@right("init_weights", evidence="modules by kind, then what is left")
def init_by_module(model, n_layers, std=0.02):
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            if value.ndim > 1:
                nn.init.normal_(value, std=std)
            elif name == "bias":
                nn.init.zeros_(value)
            else:
                nn.init.ones_(value)
    for name, value in model.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            with torch.no_grad():
                value /= math.sqrt(2 * n_layers)


@right("init_weights", evidence="K63 numpy draws, copied into place")
def init_by_numpy(model, n_layers, std=0.02):
    rng = np.random.default_rng()
    for name, value in model.named_parameters():
        last = name.split(".")[-2:]
        if value.ndim < 2:
            value.data.fill_(float(last[-1] != "bias"))
            continue
        size = std
        if last in (["out_proj", "weight"], ["fc2", "weight"]):
            size = std * (2 * n_layers) ** -0.5
        value.data.copy_(torch.from_numpy(rng.normal(0, size, value.shape)))


@right("init_weights", evidence="trunc_normal_ with bounds far away")
def init_truncated_far(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim < 2:
            return _right_rule(n_layers)(name, value, std)
        if name.endswith(("out_proj.weight", "fc2.weight")):
            std = std / math.sqrt(2 * n_layers)
        nn.init.trunc_normal_(value, std=std)

    _fill(model, std, rule)


def _start(evidence, hint):
    return wrong("init_weights", evidence=evidence, hint=hint)


@_start(
    "M215 transformers#47458",
    "The projections that write to the stream get std like all others. "
    "Divide theirs by √(2 · n_layers); perhaps your test of the name never "
    "matches.",
)
def init_no_residual_scale(model, n_layers, std=0.02):
    _fill(model, std, lambda n, v, s: _right_rule(0.5)(n, v, s))


@_start(
    "√L for √(2L)",
    "You divide by √n_layers. Each block writes to the stream twice: it is "
    "√(2 · n_layers).",
)
def init_scale_by_layers(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers / 2))


@_start(
    "2L for √(2L)",
    "You divide by 2 · n_layers. It is variances that add up, so the "
    "standard deviation is divided by the root.",
)
def init_scale_without_root(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(2 * n_layers**2))


@_start(
    "one of the two projections",
    "Only attention's out_proj is scaled down. The MLP's fc2 writes to the "
    "stream, too.",
)
def init_scales_attention_only(model, n_layers, std=0.02):
    def rule(name, value, std):
        layers = 0.5 if name.endswith("fc2.weight") else n_layers
        _right_rule(layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "one of the two projections",
    "Only the MLP's fc2 is scaled down. Attention's out_proj writes to the "
    "stream, too.",
)
def init_scales_mlp_only(model, n_layers, std=0.02):
    def rule(name, value, std):
        layers = 0.5 if name.endswith("out_proj.weight") else n_layers
        _right_rule(layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "every projection is scaled",
    "You scale down all layers whose names end in proj, or all of a block. "
    "Only out_proj and fc2 write to the stream.",
)
def init_scales_all_projections(model, n_layers, std=0.02):
    def rule(name, value, std):
        shrink = (2 * n_layers) ** 0.5 if "qkv_proj.weight" in name else 1
        _right_rule(n_layers)(name, value, std / shrink)

    _fill(model, std, rule)


@_start(
    "depth read off from the model",
    "You count the model's blocks. The depth is the argument n_layers.",
)
def init_counts_blocks(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(len(model.blocks)))


@_start(
    "M212 N(0, 1) embedding",
    "The embedding keeps PyTorch's N(0, 1). As a head it makes the first loss "
    "many times ln V: draw it like all matrices.",
)
def init_unit_embedding(model, n_layers, std=0.02):
    def rule(name, value, std):
        std = 1.0 if "embed" in name or "head" in name else std
        _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "embeddings forgotten",
    "You fill linear layers only: the embeddings stay as they were. Every "
    "tensor with two or more dimensions is drawn.",
)
def init_linear_only(model, n_layers, std=0.02):
    def rule(name, value, std):
        if not ("embed" in name or "head" in name):
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "by kind of module",
    "You fill nn.Linear and nn.Embedding only. Convolutions and bare "
    "parameters have two or more dimensions, too.",
)
def init_known_modules(model, n_layers, std=0.02):
    def rule(name, value, std):
        if not name.startswith(("conv.weight", "memory")):
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "M133 position table at zeros, minGPT 744d410",
    "The position table is all zeros. Draw it like the other embedding.",
)
def init_zero_positions(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers))
    nn.init.zeros_(model.pos_embed.weight)


@_start(
    "GPT-2's first code: positions at 0.01",
    "The position table gets half of std, as in GPT-2's first code. Here "
    "both embeddings get std.",
)
def init_small_positions(model, n_layers, std=0.02):
    def rule(name, value, std):
        half = 0.5 if name == "pos_embed.weight" else 1
        _right_rule(n_layers)(name, value, half * std)

    _fill(model, std, rule)


@_start(
    "std ignored",
    "You use 0.02 whatever std is.",
)
def init_fixed_std(model, n_layers, std=0.02):
    _fill(model, 0.02, _right_rule(n_layers))


@_start(
    "variance for standard deviation",
    "You draw with the variance std. It is the standard deviation: the "
    "variance is std².",
)
def init_variance(model, n_layers, std=0.02):
    def rule(name, value, std):
        _right_rule(n_layers)(name, value, std**0.5)

    _fill(model, std, rule)


@_start(
    "biases untouched",
    "Biases keep what they held. They are set to 0.",
)
def init_biases_kept(model, n_layers, std=0.02):
    def rule(name, value, std):
        if not name.endswith("bias"):
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "gains untouched",
    "The norms' gains keep what they held. They are set to 1.",
)
def init_gains_kept(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim > 1 or name.endswith("bias"):
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "gains by the name weight",
    "Only vectors whose names end in weight are set to 1. All that do not "
    "end in bias are gains.",
)
def init_gains_by_weight(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim < 2:
            value.fill_(1.0 if name.endswith("weight") else 0.0)
        else:
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "gains at zero",
    "All one-dimensional tensors are set to 0, the norms' gains too, so that "
    "nothing passes. Gains start at 1.",
)
def init_gains_zero(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim < 2:
            value.zero_()
        else:
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "uniform",
    "You draw from a uniform distribution of that width. The contract asks "
    "for a normal one.",
)
def init_uniform(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers))
    for name, value in model.named_parameters():
        if value.ndim > 1:
            s = std
            if name.endswith(("out_proj.weight", "fc2.weight")):
                s = std / math.sqrt(2 * n_layers)
            nn.init.uniform_(value, -s * 3**0.5, s * 3**0.5)


@_start(
    "seeded anew for each tensor",
    "You seed the generator before each tensor, so tensors of one shape are "
    "equal and can never learn different things.",
)
def init_reseeds(model, n_layers, std=0.02):
    def rule(name, value, std):
        torch.manual_seed(0)
        _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "seeded once",
    "You seed torch's generator, so every model of this size starts with the "
    "same weights. Whoever calls you seeds.",
)
def init_seeds(model, n_layers, std=0.02):
    torch.manual_seed(0)
    _fill(model, std, _right_rule(n_layers))


@_start(
    "tied on the way",
    "You tie the head to the embedding. A head that came untied stays so.",
)
def init_ties(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers))
    model.lm_head.weight = model.tok_embed.weight


@_start(
    "new Parameters",
    "You replace parameters by new ones, which unties the head. Fill those "
    "that are there, in place.",
)
def init_replaces(model, n_layers, std=0.02):
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(value.detach().clone()))
    _fill(model, std, _right_rule(n_layers))


@_start(
    "review: a private generator with a fixed seed",
    "The same values come back at every call: a generator of your own, or a "
    "state that is restored, is a seed, too. Draw from torch's global state.",
)
def init_own_generator(model, n_layers, std=0.02):
    with torch.random.fork_rng(devices=[]):
        _fill(model, std, _right_rule(n_layers))


@_start(
    "review: trunc_normal_ at three standard deviations",
    "Your normal distribution is cut off. The contract asks for a full one.",
)
def init_cut_off(model, n_layers, std=0.02):
    A = 3.0

    def rule(name, value, std):
        _right_rule(n_layers)(name, value, std)
        if value.ndim > 1:
            size = std
            if name.endswith(("out_proj.weight", "fc2.weight")):
                size = std / math.sqrt(2 * n_layers)
            nn.init.trunc_normal_(value, 0.0, size, -A * size, A * size)

    _fill(model, std, rule)


@_start(
    "review: mean and std confused in nn.init.normal_",
    "The values are drawn around another mean than 0: the second argument of "
    "nn.init.normal_ is the mean, the third the standard deviation.",
)
def init_mean_not_zero(model, n_layers, std=0.02):
    def rule(name, value, std):
        _right_rule(n_layers)(name, value, std)
        if value.ndim > 1:
            value += value.std()

    _fill(model, std, rule)


@_start(
    "review: what was there is rescaled",
    "You rescale the values that were there. Draw new ones: nobody knows how "
    "those were distributed.",
)
def init_rescales(model, n_layers, std=0.02):
    def rule(name, value, std):
        old = value.clone()
        _right_rule(n_layers)(name, value, std)
        if value.ndim > 1:
            value.copy_((old - old.mean()) / old.std() * value.std())

    _fill(model, std, rule)


@_start(
    "review: names before dimensions",
    "A matrix whose name ends in bias is set to 0. Dimensions come first: "
    "whatever has two or more is drawn.",
)
def init_bias_first(model, n_layers, std=0.02):
    def rule(name, value, std):
        if name.endswith("bias"):
            value.zero_()
        else:
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "review: bias anywhere in the name",
    "A gain with bias somewhere in its name is set to 0. The name of a bias "
    "ends so.",
)
def init_bias_anywhere(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim < 2 and "bias" in name:
            value.zero_()
        else:
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "review: matrices of two or three dimensions only",
    "Tensors with four dimensions, such as those of Conv2d, stay as they "
    "were. Two or more are meant.",
)
def init_three_dimensions(model, n_layers, std=0.02):
    def rule(name, value, std):
        if value.ndim < 4:
            _right_rule(n_layers)(name, value, std)

    _fill(model, std, rule)


@_start(
    "review: state_dict for named_parameters",
    "You go through state_dict(), which holds buffers, too: a mask is now "
    "noise. Only parameters are filled.",
)
def init_fills_buffers(model, n_layers, std=0.02):
    for name, value in model.state_dict().items():
        _right_rule(n_layers)(name, value, std)


@_start(
    "review: model.eval() or model.train() on the way",
    "The model is in another mode, train or eval, than before. Leave it as "
    "it was.",
)
def init_leaves_eval(model, n_layers, std=0.02):
    model.eval()
    _fill(model, std, _right_rule(n_layers))


@_start(
    "review: biases of 0.01, against dead units",
    "Your biases start a little above 0. They start at 0.",
)
def init_small_biases(model, n_layers, std=0.02):
    def rule(name, value, std):
        _right_rule(n_layers)(name, value, std)
        if value.ndim < 2 and name.endswith("bias"):
            value.fill_(0.01)

    _fill(model, std, rule)


@_start(
    "review: a third of qkv_proj drawn, then repeated",
    "You draw one matrix for queries, keys and values, so all three start "
    "alike. Draw each number by itself.",
)
def init_repeats_thirds(model, n_layers, std=0.02):
    def rule(name, value, std):
        _right_rule(n_layers)(name, value, std)
        if name.endswith("qkv_proj.weight"):
            value.copy_(value[: len(value) // 3].repeat(3, 1))

    _fill(model, std, rule)


@_start(
    "review: torch.set_grad_enabled(False), and no way back",
    "You switch gradients off for good: nothing can be trained afterwards. "
    "torch.no_grad() switches them on again at its end.",
)
def init_grad_left_off(model, n_layers, std=0.02):
    _fill(model, std, _right_rule(n_layers))
    torch.set_grad_enabled(False)


# 5.4 tie_weights


@oracle("tie_weights", evidence="register_parameter")
def tie_registered(model):
    model.lm_head.register_parameter("weight", model.tok_embed.weight)


@right("tie_weights", evidence="setattr by name")
def tie_by_name(model):
    model.get_submodule("lm_head").weight = model.get_parameter(
        "tok_embed.weight"
    )


@right("tie_weights", evidence="the dict of parameters")
def tie_in_the_dict(model):
    model.lm_head._parameters["weight"] = model.tok_embed.weight


@right("tie_weights", evidence="delete, then assign")
def tie_deleted(model):
    del model.lm_head.weight
    model.lm_head.weight = model.tok_embed.weight


def _tie(evidence, hint):
    return wrong("tie_weights", evidence=evidence, hint=hint)


@_tie(
    "M210 flamingo-mini#4",
    "You copy the values (or a clone). The two part at the first step of "
    "training: assign the Parameter itself.",
)
def tie_copies_values(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.tok_embed.weight)


@_tie(
    "M211 tied through .data",
    "You tie through .data, or by a new nn.Parameter on the same storage: "
    "there are still two Parameters. They are counted and decayed twice and "
    "part when the model is copied or converted.",
)
def tie_by_data(model):
    model.lm_head.weight.data = model.tok_embed.weight.data


@_tie(
    "M212 the wrong direction",
    "You keep the head's matrix and lose the embedding's. It is the "
    "embedding's Parameter that stays.",
)
def tie_backwards(model):
    model.tok_embed.weight = model.lm_head.weight


@_tie(
    "both get a third",
    "You give both modules a new Parameter. An optimiser that holds the "
    "embedding's would train one that nobody uses.",
)
def tie_to_a_third(model):
    model.tok_embed.weight = nn.Parameter(model.tok_embed.weight.detach())
    model.lm_head.weight = model.tok_embed.weight


@_tie(
    "transposed",
    "You transpose the matrix. Both weights are (V, D) already: nn.Linear "
    "stores (out, in).",
)
def tie_transposed(model):
    model.lm_head.weight = nn.Parameter(
        model.tok_embed.weight.detach().T.contiguous()
    )


@_tie(
    "the modules instead of their weights",
    "You assign the module. The head has to stay an nn.Linear: assign its "
    "weight only.",
)
def tie_modules(model):
    model.lm_head = model.tok_embed


@_tie(
    "the head on the model",
    "You set an attribute of the model, not the head's weight, so nothing is "
    "tied.",
)
def tie_nothing(model):
    model.lm_head_weight = model.tok_embed.weight


@_tie(
    "a new head",
    "You make a new nn.Linear for the head. Both modules stay: assign the "
    "weight of the one that is there.",
)
def tie_new_head(model):
    V, D = model.tok_embed.weight.shape
    model.lm_head = nn.Linear(D, V, bias=False)
    model.lm_head.weight = model.tok_embed.weight


@_tie(
    "the embedding frozen",
    "The parameter is no longer trained. Leave requires_grad as it is.",
)
def tie_frozen(model):
    model.lm_head.weight = model.tok_embed.weight.requires_grad_(False)


@_tie(
    "review: model.eval() or model.train() on the way",
    "The model is in another mode, train or eval, than before. Leave it as "
    "it was.",
)
def tie_leaves_eval(model):
    model.eval()
    model.lm_head.weight = model.tok_embed.weight


# 5.5 filter_logits


@oracle("filter_logits", evidence="rows in float64 numpy, sorted by hand")
def filter_rows(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    x = logits.detach().double().numpy()
    out = np.full(x.shape, -np.inf)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place]
        left = [i for i in range(len(row)) if row[i] > -np.inf]
        if temperature == 0:
            left = [i for i in left if row[i] == max(row)]
        else:
            row = row / temperature

        def chance(left, row=row):
            e = {i: math.exp(row[i] - max(row)) for i in left}
            return {i: e[i] / sum(e.values()) for i in e}

        if top_k is not None and top_k < len(left):
            floor = sorted((row[i] for i in left), reverse=True)[top_k - 1]
            left = [i for i in left if row[i] >= floor]
        if top_p is not None and top_p < 1:
            p, kept, mass = chance(left), [], 0.0
            for i in sorted(left, key=lambda i: -row[i]):
                if kept and mass >= top_p:
                    break
                kept.append(i)
                mass += p[i]
            left = kept
        if min_p is not None:
            p = chance(left)
            left = [i for i in left if p[i] >= min_p * max(p.values())]
        out[(*place, left)] = row[left]
    return torch.from_numpy(out).to(logits.dtype)


class _Filter:
    """A right filter in pieces, each of which a mistake may override."""

    def wide(self, x):
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def warm(self, x, temperature):
        if temperature == 0:
            best = x.amax(-1, keepdim=True)
            return torch.where(x == best, x, -math.inf)
        return x / temperature

    def top_k(self, x, k):
        k = min(k, x.shape[-1])
        return self.cut(
            x, x < x.sort(-1, descending=True)[0][..., k - 1, None]
        )

    def cut(self, x, drop):
        return x.masked_fill(drop, -math.inf)

    def dropped(self, mass, probs, p):
        drop = mass - probs >= p
        drop[..., 0] = False
        return drop

    def top_p(self, x, p):
        if p >= 1:
            return x
        probs, order = torch.softmax(x, -1).sort(-1, descending=True)
        drop = self.dropped(probs.cumsum(-1), probs, p)
        return self.cut(x, self.back(drop, order))

    def back(self, drop, order):
        return torch.zeros_like(drop).scatter(-1, order, drop)

    def min_p(self, x, share):
        probs = torch.softmax(x, -1)
        return self.cut(x, probs < share * probs.amax(-1, keepdim=True))

    def steps(self, x, temperature, k, p, share):
        x = self.warm(x, temperature)
        x = x if k is None else self.top_k(x, k)
        x = x if p is None else self.top_p(x, p)
        return x if share is None else self.min_p(x, share)

    def __call__(
        self, logits, temperature=1.0, top_k=None, top_p=None, min_p=None
    ):
        out = self.steps(self.wide(logits), temperature, top_k, top_p, min_p)
        return out.to(logits.dtype)


def _function(kind, name):
    """A function that calls an instance of the class."""

    def answer(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
        return kind()(logits, temperature, top_k, top_p, min_p)

    answer.__name__ = name
    return answer


@right("filter_logits", evidence="where, sort and pieces")
def filter_pieces(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    return _Filter()(logits, temperature, top_k, top_p, min_p)


@right("filter_logits", evidence="K66 log-probabilities instead of logits")
def filter_log_probs(
    logits, temperature=1.0, top_k=None, top_p=None, min_p=None
):
    out = _Filter()(logits, temperature, top_k, top_p, min_p)
    return (
        out.float().log_softmax(-1).to(out.dtype)
        if (out.dtype == torch.float16)
        else out.log_softmax(-1)
    )


@right("filter_logits", evidence="transformers' own warpers, where they agree")
def filter_transformers(
    logits, temperature=1.0, top_k=None, top_p=None, min_p=None
):
    from transformers.generation import logits_process as hf

    x = _Filter().warm(_Filter().wide(logits), temperature)
    flat = x.reshape(-1, x.shape[-1])
    if top_k is not None:
        flat = hf.TopKLogitsWarper(top_k)(None, flat)
    if top_p is not None and top_p < 1:
        flat = hf.TopPLogitsWarper(max(top_p, 1e-12))(None, flat)
    if min_p is not None:
        flat = hf.MinPLogitsWarper(min_p)(None, flat)
    return flat.reshape(x.shape).to(logits.dtype)


def _filtered(evidence, hint):
    """Mark a class of filters; what is marked is a function."""

    def mark(kind):
        return wrong("filter_logits", evidence=evidence, hint=hint)(
            _function(kind, kind.__name__)
        )

    return mark


@_filtered(
    "M248",
    "You multiply by the temperature. Divide: a high temperature evens out.",
)
class filter_multiplies(_Filter):
    def warm(self, x, temperature):
        return x * temperature if temperature else super().warm(x, 0)


@_filtered(
    "M249",
    "You divide probabilities by the temperature, which renormalising takes "
    "back. Divide the logits, before the softmax.",
)
class filter_temperature_after(_Filter):
    def warm(self, x, temperature):
        if temperature == 0:
            return super().warm(x, 0)
        return (x.softmax(-1) / temperature).log()


@_filtered(
    "temperature ignored",
    "The temperature has no effect.",
)
class filter_no_temperature(_Filter):
    def warm(self, x, temperature):
        return super().warm(x, 0) if temperature == 0 else x


@_filtered(
    "temperature 0 divides",
    "At temperature 0 you divide by 0. It leaves the largest logit.",
)
class filter_divides_by_zero(_Filter):
    def warm(self, x, temperature):
        return x / temperature


@_filtered(
    "temperature 0 as a tiny one",
    "At temperature 0 you put in a tiny temperature: other tokens stay "
    "possible. Only the maxima are left.",
)
class filter_tiny_temperature(_Filter):
    def warm(self, x, temperature):
        return x / max(temperature, 1e-5)


@_filtered(
    "temperature 0 by argmax",
    "At temperature 0 you keep one token where several share the maximum. "
    "All of them are left.",
)
class filter_one_maximum(_Filter):
    def warm(self, x, temperature):
        if temperature:
            return x / temperature
        best = F.one_hot(x.argmax(-1), x.shape[-1]).bool()
        return self.cut(x, ~best)


@_filtered(
    "M250",
    "You remove the k-th largest as well: with k = 1 nothing is left. What "
    "equals the k-th stays.",
)
class filter_removes_kth(_Filter):
    def top_k(self, x, k):
        k = min(k, x.shape[-1])
        return self.cut(x, x <= x.topk(k).values[..., -1:])


@_filtered(
    "M251 mesh-transformer-jax#164", "You keep k + 1 tokens instead of k."
)
class filter_k_plus_one(_Filter):
    def top_k(self, x, k):
        return super().top_k(x, k + 1)


@_filtered(
    "M252 transformers#338",
    "All rows share one threshold, that of one row or of the whole batch. "
    "Each row has its own: keep the reduced axis, so that they line up.",
)
class filter_shared_threshold(_Filter):
    def top_k(self, x, k):
        k = min(k, x.shape[-1])
        return self.cut(x, x < x.topk(k).values[..., -1].amin())


@_filtered(
    "M252 without keepdim",
    "The thresholds have lost the last axis, so they line up with tokens "
    "instead of rows, or do not fit at all. Keep the axis.",
)
class filter_no_keepdim(_Filter):
    def top_k(self, x, k):
        k = min(k, x.shape[-1])
        return self.cut(x, x < x.topk(k).values[..., -1])


@_filtered(
    "M253 the result dropped",
    "top_k has no effect: masked_fill returns a new tensor, which has to be "
    "assigned.",
)
class filter_unassigned(_Filter):
    def top_k(self, x, k):
        return x


@_filtered(
    "M254 nanoGPT 91d02510",
    "A k above V raises an error. It keeps all tokens.",
)
class filter_k_too_large(_Filter):
    def top_k(self, x, k):
        return self.cut(x, x < x.topk(k).values[..., -1:])


@_filtered(
    "exactly k, ties cut",
    "You keep exactly k tokens and cut those that tie with the k-th. They "
    "are kept.",
)
class filter_cuts_ties(_Filter):
    def top_k(self, x, k):
        best, places = x.topk(min(k, x.shape[-1]))
        return torch.full_like(x, -math.inf).scatter(-1, places, best)


@_filtered(
    "M255",
    "Filtered logits become 0 instead of −inf, so these tokens keep a chance, "
    "which is large where the others are negative.",
)
class filter_zero_fill(_Filter):
    def cut(self, x, drop):
        return x.masked_fill(drop, 0.0)


@_filtered(
    "a finite fill",
    "Filtered logits become a finite number. Use −inf: the contract asks for "
    "it, and logits may be as low as −10,000.",
)
class filter_finite_fill(_Filter):
    def cut(self, x, drop):
        return x.masked_fill(drop, -1e4)


@_filtered(
    "M258 Biohub/esm#360, fish-speech#1171",
    "You drop the token that crosses p, so less than p is left. It stays: "
    "decide by the sum of what stands before a token.",
)
class filter_drops_crossing(_Filter):
    def dropped(self, mass, probs, p):
        drop = mass > p
        drop[..., 0] = False
        return drop


@_filtered(
    "M259 mlx-lm#1912",
    "If the first token alone exceeds p, none is left. At least one stays.",
)
class filter_may_be_empty(_Filter):
    def dropped(self, mass, probs, p):
        return mass > p


@_filtered(
    "top_p=0 leaves none",
    "With top_p=0 nothing is left. The most likely token stays.",
)
class filter_zero_p_empty(_Filter):
    def dropped(self, mass, probs, p):
        return mass - probs >= p


@_filtered(
    "top_p=0 taken for None",
    "With top_p=0 nothing is filtered: 0 counts as false in an if, as None "
    "does. Ask whether it is None.",
)
class filter_zero_p_off(_Filter):
    def top_p(self, x, p):
        return super().top_p(x, p) if p else x


@_filtered(
    "one token too many",
    "Top-p keeps one token after the one that crosses p.",
)
class filter_extra_token(_Filter):
    def dropped(self, mass, probs, p):
        drop = super().dropped(mass, probs, p)
        drop[..., 1:] = drop[..., :-1].clone()
        return drop


@_filtered(
    "M261 not scattered back",
    "The decision is made in sorted order and applied in the vocabulary's. "
    "Carry it back with the order that sort returns.",
)
class filter_not_scattered(_Filter):
    def back(self, drop, order):
        return drop


@_filtered(
    "gather for scatter",
    "You carry the decision back by gather with the sorting order. That is "
    "the inverse permutation: use scatter.",
)
class filter_gathers(_Filter):
    def back(self, drop, order):
        return drop.gather(-1, order)


@_filtered(
    "M262 fish-speech#1326",
    "The guard that spares the first token spares the first row: drop[0] is a "
    "row, drop[..., 0] the first column.",
)
class filter_spares_row(_Filter):
    def dropped(self, mass, probs, p):
        drop = mass - probs >= p
        drop[0] = False
        return drop


@_filtered(
    "M263 ascending",
    "You sort in ascending order and keep the tail: the least likely tokens.",
)
class filter_keeps_tail(_Filter):
    def top_p(self, x, p):
        if p >= 1:
            return x
        probs, order = torch.softmax(x, -1).sort(-1)
        drop = self.dropped(probs.cumsum(-1), probs, p)
        return self.cut(x, self.back(drop, order))


@_filtered(
    "min_p as an absolute bound",
    "You compare probabilities with min_p itself. The bound is min_p times "
    "the row's largest probability.",
)
class filter_absolute_min_p(_Filter):
    def min_p(self, x, share):
        probs = torch.softmax(x, -1)
        drop = probs < share
        drop = drop & (probs < probs.amax(-1, keepdim=True))
        return self.cut(x, drop)


@_filtered(
    "min_p strict",
    "What has exactly min_p of the largest is cut, so min_p=1 leaves nothing. "
    "It stays.",
)
class filter_strict_min_p(_Filter):
    def min_p(self, x, share):
        probs = torch.softmax(x, -1)
        return self.cut(x, probs <= share * probs.amax(-1, keepdim=True))


@_filtered(
    "min_p by the batch's maximum",
    "min_p compares with the largest probability of the whole batch. Each row "
    "has its own.",
)
class filter_shared_min_p(_Filter):
    def min_p(self, x, share):
        probs = torch.softmax(x, -1)
        return self.cut(x, probs < share * probs.max())


@_filtered(
    "not renormalised",
    "top-p uses the probabilities from before top-k, or comes before it. It "
    "comes after top-k, on probabilities that are renormalised.",
)
class filter_not_renormalised(_Filter):
    def steps(self, x, temperature, k, p, share):
        x = self.warm(x, temperature)
        y = x if k is None else self.top_k(x, k)
        z = x if p is None else self.top_p(x, p)
        out = self.cut(y, z == -math.inf)
        return out if share is None else self.min_p(out, share)


@_filtered(
    "min-p before top-p",
    "min-p comes before top-p, which then sees larger probabilities and "
    "keeps fewer tokens. It comes last.",
)
class filter_min_p_early(_Filter):
    def steps(self, x, temperature, k, p, share):
        x = super().steps(x, temperature, k, None, share)
        return x if p is None else self.top_p(x, p)


@_filtered(
    "temperature last",
    "You apply the temperature after the filters, so they judge other "
    "probabilities than the ones that are drawn from. It comes first.",
)
class filter_temperature_last(_Filter):
    def steps(self, x, temperature, k, p, share):
        return self.warm(super().steps(x, 1.0, k, p, share), temperature)


@_filtered(
    "probabilities come back",
    "You return probabilities. Logits are due, with −inf for what is "
    "filtered.",
)
class filter_probabilities(_Filter):
    def steps(self, *args):
        return super().steps(*args).softmax(-1)


@_filtered(
    "float32 throughout",
    "You compute in float32 whatever the logits are. float64 stays float64.",
)
class filter_float(_Filter):
    def wide(self, x):
        return x.float()


@_filtered(
    "half precision throughout",
    "float16 logits are computed in float16, where sums of probabilities lose "
    "their digits: work in float32.",
)
class filter_half(_Filter):
    def wide(self, x):
        return x

    def steps(self, x, *args):
        return super().steps(x, *args).float()

    def __call__(self, logits, *args):
        return self.steps(logits, *args)


@_filtered(
    "review: elif between the filters",
    "min_p is not used where top_p is given. All filters that are given act, "
    "one after the other: if, not elif.",
)
class filter_min_p_or_top_p(_Filter):
    def steps(self, x, temperature, k, p, share):
        share = share if p is None else None
        return super().steps(x, temperature, k, p, share)


@_filtered(
    "review: elif between the filters",
    "min_p is not used where top_k is given. All filters that are given act, "
    "one after the other: if, not elif.",
)
class filter_min_p_or_top_k(_Filter):
    def steps(self, x, temperature, k, p, share):
        share = share if k is None else None
        return super().steps(x, temperature, k, p, share)


@_filtered(
    "review: half precision inside, the right dtype outside",
    "Half-precision logits are computed in half precision, where a "
    "probability near the border falls on the wrong side. Compute in float32 "
    "and convert the result.",
)
class filter_half_inside(_Filter):
    def wide(self, x):
        return x


@_filtered(
    "review: only float16 is known",
    "bfloat16 logits are computed in bfloat16. All half-precision logits are "
    "computed in float32.",
)
class filter_knows_float16(_Filter):
    def wide(self, x):
        return x.float() if x.dtype == torch.float16 else x


@_filtered(
    "review: drop[:, 0] for drop[..., 0]",
    "Something is right for two axes only: dim=1, or drop[:, 0] where the "
    "first token is spared, which is a row of three axes. Write dim=-1 and "
    "drop[..., 0].",
)
class filter_two_axes(_Filter):
    def dropped(self, mass, probs, p):
        drop = mass - probs >= p
        if drop.ndim > 1:
            drop[:, 0] = False
        else:
            drop[0] = False
        return drop


# 5.6 generate


def _sifted(logits, temperature=1.0, top_k=None):
    """A filter with the two settings that the check uses."""
    if temperature == 0:
        temperature, top_k = 1.0, 1
    if top_k is not None:
        floor = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < floor, -math.inf)
    return logits / temperature


@contextlib.contextmanager
def _evaluating(model):
    was = model.training
    model.eval()
    with torch.no_grad():
        yield
    model.train(was)


class _Writer:
    """A right loop in pieces, each of which a mistake may override."""

    def mode(self, model):
        return _evaluating(model)

    def steps(self, new):
        return range(new)

    def window(self, ids, size):
        return ids[:, -size:]

    def last(self, logits):
        return logits[:, -1]

    def draw(self, probs, generator):
        return torch.multinomial(probs, 1, generator=generator)

    def probs(self, logits, kw):
        return _sifted(logits, **kw).softmax(-1)

    def join(self, ids, new):
        return torch.cat([ids, new], dim=1)

    def finish(self, ids, prompt):
        return ids

    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        prompt = ids
        with self.mode(model):
            for _ in self.steps(max_new_tokens):
                logits, _ = model(self.window(ids, model.cfg.context_length))
                probs = self.probs(self.last(logits), kw)
                ids = self.join(ids, self.draw(probs, generator))
        return self.finish(ids, prompt)


def _writer(kind, name):
    def answer(model, ids, max_new_tokens, *, generator=None, **kw):
        return kind()(model, ids, max_new_tokens, generator=generator, **kw)

    answer.__name__ = name
    return answer


def _written(evidence, hint):
    """Mark a class of writers; what is marked is a function."""

    def mark(kind):
        return wrong("generate", evidence=evidence, hint=hint)(
            _writer(kind, kind.__name__)
        )

    return mark


@oracle("generate", evidence="rows one after the other, lists of ids")
def generate_row_by_row(
    model, ids, max_new_tokens, *, generator=None, temperature=1.0, top_k=None
):
    was, rows = model.training, ids.tolist()
    model.eval()
    with torch.no_grad():
        for _ in range(max_new_tokens):
            size = model.cfg.context_length
            windows = torch.tensor([row[-size:] for row in rows])
            scores = model(windows)[0][:, -1]
            probs = torch.stack(
                [_chances(row, temperature, top_k) for row in scores]
            )
            drawn = torch.multinomial(probs, 1, generator=generator)
            for row, token in zip(rows, drawn.flatten().tolist(), strict=True):
                row.append(token)
    model.train(was)
    return torch.tensor(rows)


def _chances(row, temperature, top_k):
    if temperature == 0:
        return F.one_hot(row.argmax(), len(row)).double()
    order = row.argsort(descending=True)[:top_k]
    e = torch.zeros_like(row)
    e[order] = torch.exp((row[order] - row.max()) / temperature)
    return e / e.sum()


@right("generate", evidence="K65 Gumbel-max")
def generate_gumbel(model, ids, max_new_tokens, *, generator=None, **kw):
    class Gumbel(_Writer):
        def draw(self, probs, generator):
            u = torch.rand(probs.shape, generator=generator)
            noise = -torch.log(-torch.log(u.clamp(1e-12, 1 - 1e-7)))
            return (probs.log() + noise).argmax(-1, keepdim=True)

    return Gumbel()(model, ids, max_new_tokens, generator=generator, **kw)


@right("generate", evidence="K65 the inverse of the distribution function")
def generate_inverse(model, ids, max_new_tokens, *, generator=None, **kw):
    class Inverse(_Writer):
        def draw(self, probs, generator):
            u = torch.rand(
                len(probs), 1, generator=generator, dtype=torch.float64
            )
            mass = probs.double().cumsum(-1)
            return (mass / mass[:, -1:] <= u).sum(-1, keepdim=True)

    return Inverse()(model, ids, max_new_tokens, generator=generator, **kw)


@right("generate", evidence="inference mode, a preallocated result")
def generate_in_place(model, ids, max_new_tokens, *, generator=None, **kw):
    B, T = ids.shape
    out = torch.zeros(B, T + max_new_tokens, dtype=torch.long)
    out[:, :T] = ids
    was = model.training
    model.train(False)
    with torch.inference_mode():
        for t in range(T, T + max_new_tokens):
            start = max(0, t - model.cfg.context_length)
            probs = _sifted(model(out[:, start:t])[0][:, -1], **kw).softmax(-1)
            out[:, t] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    model.train(was)
    return out


@_written(
    "M265",
    "You take the logits at the first position. The next token is predicted "
    "at the last.",
)
class generate_first_position(_Writer):
    def last(self, logits):
        return logits[:, 0]


@_written(
    "not cropped",
    "The model gets more tokens than its context. Crop what it sees to the "
    "last context_length tokens, in every step.",
)
class generate_uncropped(_Writer):
    def window(self, ids, size):
        return ids


@_written(
    "cropped at the wrong end",
    "You crop to the first context_length tokens, so the newest are never "
    "seen. Keep the last.",
)
class generate_crops_the_end(_Writer):
    def window(self, ids, size):
        return ids[:, :size]


@_written(
    "A14 the text itself is cropped",
    "You crop the text, and not just what the model sees: the beginning is "
    "lost from the result.",
)
class generate_loses_the_start(_Writer):
    def join(self, ids, new):
        return torch.cat([ids, new], dim=1)

    def __call__(self, model, ids, max_new_tokens, **kw):
        out = super().__call__(model, ids, max_new_tokens, **kw)
        if max_new_tokens and out.shape[1] > model.cfg.context_length + 1:
            return out[:, -model.cfg.context_length - 1 :]
        return out


@_written(
    "crop off by one",
    "The model sees one token less than its context allows.",
)
class generate_short_window(_Writer):
    def window(self, ids, size):
        return ids[:, -(size - 1) :]


@_written(
    "M272 not appended",
    "Only the last drawn token is seen by the next step: append it to the "
    "text so far.",
)
class generate_forgets(_Writer):
    def window(self, ids, size):
        return ids[:, -1:]


@_written(
    "M272 put in front",
    "New tokens are put before the prompt.",
)
class generate_prepends(_Writer):
    def join(self, ids, new):
        return torch.cat([new, ids], dim=1)


@_written("M273", "One token too few is generated.")
class generate_one_less(_Writer):
    def steps(self, new):
        return range(new - 1)


@_written("M273", "One token too many is generated.")
class generate_one_more(_Writer):
    def steps(self, new):
        return range(new + 1)


@_written(
    "K69 overruled: the new tokens only",
    "Only the new tokens come back. The prompt belongs in front of them.",
)
class generate_new_only(_Writer):
    def finish(self, ids, prompt):
        return ids[:, prompt.shape[1] :]


@_written(
    "always the most likely",
    "You always take the most likely token. Draw from the probabilities; "
    "temperature 0 is the greedy case.",
)
class generate_greedy(_Writer):
    def draw(self, probs, generator):
        return probs.argmax(-1, keepdim=True)


@_written(
    "settings ignored",
    "The keyword arguments never reach the filter: text is drawn from all "
    "tokens, whatever temperature and top_k say.",
)
class generate_unfiltered(_Writer):
    def probs(self, logits, kw):
        return logits.softmax(-1)


@_written(
    "review: only the temperature 0 was tried",
    "A temperature of 0 is obeyed, any other is ignored. All keyword "
    "arguments go to the filter, as they come.",
)
class generate_no_temperature(_Writer):
    def probs(self, logits, kw):
        if kw.get("temperature"):
            kw = kw | {"temperature": 1.0}
        return super().probs(logits, kw)


@_written(
    "uniform among the filtered",
    "You draw uniformly among the tokens that are left. They keep their "
    "probabilities.",
)
class generate_uniform(_Writer):
    def probs(self, logits, kw):
        return (super().probs(logits, kw) > 0).double()


@_written(
    "one draw for all rows",
    "One token is drawn for all rows. Each row has its own draw.",
)
class generate_same_for_all(_Writer):
    def draw(self, probs, generator):
        drawn = torch.multinomial(probs, 1, generator=generator)
        same = (probs == probs[:1]).all(-1, keepdim=True)
        return torch.where(same, drawn[:1], drawn)


@_written(
    "M274",
    "You seed in every step, so the same draw is made again and again. The "
    "generator runs on from step to step; seed nothing.",
)
class generate_reseeds(_Writer):
    def draw(self, probs, generator):
        if generator is None:
            torch.manual_seed(0)
        else:
            generator.manual_seed(generator.initial_seed())
        return super().draw(probs, generator)


@_written(
    "the generator is not used",
    "The generator never reaches the function that draws, so the global "
    "random state decides.",
)
class generate_ignores_generator(_Writer):
    def draw(self, probs, generator):
        return torch.multinomial(probs, 1)


@_written(
    "seeds the global state",
    "You seed torch's global generator. Pass the generator on instead, and "
    "leave the global state as it is.",
)
class generate_seeds_globally(_Writer):
    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        torch.manual_seed(generator.initial_seed() if generator else 0)
        return super().__call__(model, ids, max_new_tokens, **kw)


@_written(
    "M270 train mode",
    "The model runs in the mode in which it came: in train mode dropout makes "
    "the text random. Switch to eval mode first.",
)
class generate_in_train_mode(_Writer):
    def mode(self, model):
        return torch.no_grad()


@_written(
    "M270 with a graph",
    "A graph for gradients is built in every step, and grows with the text. "
    "Use torch.no_grad().",
)
class generate_with_graph(_Writer):
    @contextlib.contextmanager
    def mode(self, model):
        was = model.training
        model.eval()
        yield
        model.train(was)


@_written(
    "M271 left in eval mode",
    "The model stays in eval mode, so training would go on without dropout.",
)
class generate_stays_in_eval(_Writer):
    @contextlib.contextmanager
    def mode(self, model):
        model.eval()
        with torch.no_grad():
            yield


@_written(
    "M271 mmd#14",
    "The model is put into train mode, though it may have come in eval mode: "
    "restore what you found.",
)
class generate_ends_in_train(_Writer):
    @contextlib.contextmanager
    def mode(self, model):
        model.eval()
        with torch.no_grad():
            yield
        model.train()


@_written(
    "gradients left off",
    "Gradients stay switched off after the call (or are switched on): use "
    "torch.no_grad() as a context.",
)
class generate_grad_left_off(_Writer):
    @contextlib.contextmanager
    def mode(self, model):
        was = model.training
        model.eval()
        torch.set_grad_enabled(False)
        yield
        model.train(was)


@_written(
    "review: a copy of the generator",
    "You draw from a copy of the generator (or put its state back), so two "
    "calls with one generator write the same text. Pass it on as it is.",
)
class generate_copies_generator(_Writer):
    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        if generator is not None:
            state = generator.get_state()
            generator = torch.Generator()
            generator.set_state(state)
        return super().__call__(
            model, ids, max_new_tokens, generator=generator, **kw
        )


@_written(
    "review: the generator's first seed",
    "You go back to the seed with which the generator began. Its state says "
    "where it stands: pass it on as it is.",
)
class generate_starts_generator_anew(_Writer):
    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        if generator is not None:
            seed = generator.initial_seed()
            generator = torch.Generator().manual_seed(seed)
        return super().__call__(
            model, ids, max_new_tokens, generator=generator, **kw
        )


@_written(
    "review: a generator of its own where none is given",
    "Without a generator you make one, or draw with another library, so that "
    "torch's global state has no say. Hand None on to multinomial.",
)
class generate_own_generator(_Writer):
    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        return super().__call__(
            model, ids, max_new_tokens, generator=generator, **kw
        )


@_written(
    "review: a token that ends the text",
    "The text ends at a token that you take for its end. Here "
    "max_new_tokens come, whichever they are.",
)
class generate_ends_early(_Writer):
    def __call__(self, model, ids, max_new_tokens, *, generator=None, **kw):
        start = ids.shape[1]
        for _ in range(max_new_tokens):
            ids = super().__call__(model, ids, 1, generator=generator, **kw)
            if (ids[:, start:] == 0).any(dim=1).all() and len(ids) == 1:
                break
        return ids


@_written(
    "nanoGPT's sample.py: temperature 0.8",
    "Where no temperature is given you take another than 1 (or a top_k of "
    "your own). Hand on the keyword arguments as they come.",
)
class generate_cooler(_Writer):
    def probs(self, logits, kw):
        return super().probs(logits, {"temperature": 0.8} | kw)


@_written(
    "review: requires_grad off in the place of no_grad",
    "The model's parameters are not trained any more: you switched their "
    "requires_grad off. torch.no_grad() is enough.",
)
class generate_freezes(_Writer):
    def __call__(self, model, ids, max_new_tokens, **kw):
        model.requires_grad_(False)
        return super().__call__(model, ids, max_new_tokens, **kw)


# 5.7 lr_at, param_groups


@oracle("lr_at", evidence="cos² of the half angle")
def rate_half_angle(step, max_lr, min_lr, warmup, total):
    if step >= total:
        return min_lr
    if step < warmup:
        return (step + 1) / warmup * max_lr
    half = math.pi / 2 * (step - warmup) / (total - warmup)
    return min_lr * math.sin(half) ** 2 + max_lr * math.cos(half) ** 2


@right("lr_at", evidence="numpy; clipped share")
def rate_clipped(step, max_lr, min_lr, warmup, total):
    rise = min(1.0, (step + 1) / max(warmup, 1)) if step < warmup else 1.0
    share = np.clip((step - warmup) / max(total - warmup, 1), 0, 1)
    fall = min_lr + (max_lr - min_lr) * (1 + np.cos(np.pi * share)) / 2
    if step >= total:
        return float(min_lr)
    return float(rise * max_lr if step < warmup else fall)


@right("lr_at", evidence="a 0-d tensor")
def rate_tensor(step, max_lr, min_lr, warmup, total):
    return torch.tensor(
        rate_half_angle(step, max_lr, min_lr, warmup, total),
        dtype=torch.float64,
    )


@right("lr_at", evidence="the middle and the amplitude")
def rate_amplitude(step, max_lr, min_lr, warmup, total):
    middle, swing = (max_lr + min_lr) / 2, (max_lr - min_lr) / 2
    if step < warmup:
        return max_lr * (1 + step) / warmup
    if step >= total:
        return middle - swing
    return middle + swing * math.cos(
        (step - warmup) * math.pi / (total - warmup)
    )


class _Rate:
    def rise(self, step, warmup):
        return (step + 1) / warmup

    def warms(self, step, warmup):
        return step < warmup

    def share(self, step, warmup, total):
        return (step - warmup) / (total - warmup)

    def fall(self, share):
        return (1 + math.cos(math.pi * share)) / 2

    def over(self, step, total):
        return step >= total

    def mix(self, high, low, part):
        return low + (high - low) * part

    def end(self, high, low):
        return low

    def __call__(self, step, max_lr, min_lr, warmup, total):
        if self.warms(step, warmup):
            return max_lr * self.rise(step, warmup)
        if self.over(step, total):
            return self.end(max_lr, min_lr)
        part = self.fall(self.share(step, warmup, total))
        return self.mix(max_lr, min_lr, part)


def _rate(evidence, hint):
    def mark(kind):
        def answer(step, max_lr, min_lr, warmup, total):
            return kind()(step, max_lr, min_lr, warmup, total)

        answer.__name__ = kind.__name__
        return wrong("lr_at", evidence=evidence, hint=hint)(answer)

    return mark


@_rate(
    "M292 nanoGPT#443",
    "Step 0 has the rate 0 and is wasted: the warm-up is (step + 1) / warmup.",
)
class rate_from_zero(_Rate):
    def rise(self, step, warmup):
        return step / warmup


@_rate(
    "nanoGPT's later form",
    "You divide by warmup + 1. Step warmup − 1 has max_lr.",
)
class rate_warmup_plus_one(_Rate):
    def rise(self, step, warmup):
        return (step + 1) / (warmup + 1)


@_rate(
    "M292 the joint off by one",
    "The warm-up is one step too long, and exceeds max_lr at its end. It "
    "holds while step < warmup.",
)
class rate_warms_too_long(_Rate):
    def warms(self, step, warmup):
        return 0 < warmup >= step


@_rate(
    "the cosine from step 0",
    "The cosine's share counts from step 0, so the rate jumps after the "
    "warm-up. It counts from the warm-up's end.",
)
class rate_share_from_zero(_Rate):
    def share(self, step, warmup, total):
        return step / total


@_rate(
    "share of the wrong length",
    "You divide by total instead of total − warmup, so min_lr is not reached.",
)
class rate_share_of_total(_Rate):
    def share(self, step, warmup, total):
        return (step - warmup) / total


@_rate(
    "the last step at min_lr",
    "Your cosine ends one step early, at total − 1. It reaches min_lr at "
    "step = total.",
)
class rate_ends_early(_Rate):
    def share(self, step, warmup, total):
        return (step - warmup) / max(1, total - warmup - 1)


@_rate(
    "the cosine rises again",
    "After the end the cosine goes up again. From step = total on it is "
    "min_lr.",
)
class rate_rises_again(_Rate):
    def over(self, step, total):
        return False

    def share(self, step, warmup, total):
        return (step - warmup) / max(total - warmup, 1)


@_rate(
    "the cosine rises again, or divides by 0",
    "After the end the cosine goes up again, and with warmup = total you "
    "divide by 0. From step = total on it is min_lr.",
)
class rate_rises_or_divides(_Rate):
    def over(self, step, total):
        return False


@_rate(
    "warmup = total divides by 0",
    "With warmup = total you divide by 0. Ask whether step has reached total "
    "before you compute the share of the way.",
)
class rate_divides_by_zero(_Rate):
    def over(self, step, total):
        return False

    def share(self, step, warmup, total):
        return min(1.0, super().share(step, warmup, total))


@_rate("0 after the end", "After the end you return 0. It is min_lr.")
class rate_zero_after(_Rate):
    def end(self, high, low):
        return 0.0


@_rate("linear", "The rate falls on a straight line. It follows a cosine.")
class rate_linear(_Rate):
    def fall(self, share):
        return 1 - share


@_rate(
    "min_lr ignored",
    "The cosine goes to 0. It ends at min_lr.",
)
class rate_to_zero(_Rate):
    def mix(self, high, low, part):
        return high * part


@_rate(
    "min_lr added",
    "You add min_lr to a cosine that already starts at max_lr, so it starts "
    "too high. Multiply max_lr − min_lr.",
)
class rate_adds_min(_Rate):
    def mix(self, high, low, part):
        return low + high * part


@_rate(
    "max(min_lr, …)",
    "You cut the cosine off at min_lr. It runs from max_lr to min_lr and is "
    "flat at both ends.",
)
class rate_cut_off(_Rate):
    def mix(self, high, low, part):
        return max(low, high * part)


@_rate(
    "a whole period",
    "You run through a whole period of the cosine, which comes back to "
    "max_lr. Half a period is π.",
)
class rate_whole_period(_Rate):
    def fall(self, share):
        return (1 + math.cos(2 * math.pi * share)) / 2


@_rate(
    "a quarter of a period",
    "You take a quarter of a period (π/2): it is steep at the end. Half a "
    "period is flat at both ends.",
)
class rate_quarter_period(_Rate):
    def fall(self, share):
        return math.cos(math.pi / 2 * share)


@_rate(
    "the cosine upside down",
    "The cosine rises from min_lr to max_lr.",
)
class rate_upside_down(_Rate):
    def fall(self, share):
        return (1 - math.cos(math.pi * share)) / 2


@_rate(
    "review: max(min_lr, …) in the warm-up",
    "Your warm-up starts at min_lr. It is max_lr · (step + 1) / warmup, which "
    "may be below min_lr.",
)
class rate_floor(_Rate):
    def __call__(self, step, max_lr, min_lr, warmup, total):
        rate = super().__call__(step, max_lr, min_lr, warmup, total)
        return max(min_lr, rate)


@_rate(
    "review: the warm-up from min_lr to max_lr",
    "Your warm-up rises from min_lr. It rises from 0: max_lr · (step + 1) / "
    "warmup.",
)
class rate_from_min(_Rate):
    def __call__(self, step, max_lr, min_lr, warmup, total):
        if step < warmup:
            return min_lr + (max_lr - min_lr) * (step + 1) / warmup
        return super().__call__(step, max_lr, min_lr, warmup, total)


@_rate(
    "review: min_lr or max_lr / 10",
    "A min_lr of 0 is taken for none, and the end is another rate. 0 is a "
    "number like any other.",
)
class rate_zero_is_none(_Rate):
    def end(self, high, low):
        return low or high / 10


@_rate(
    "review: warmup > 1",
    "A warm-up of one step is left out. Step 0 is then max_lr · 1 / 1.",
)
class rate_skips_short_warmup(_Rate):
    def warms(self, step, warmup):
        return step < warmup and warmup > 1


def _split(model, wd, decays, names=None):
    trained = [
        (name, p) for name, p in model.named_parameters() if p.requires_grad
    ]
    return [
        {
            "params": [p for name, p in trained if decays(name, p)],
            "weight_decay": wd,
        },
        {
            "params": [p for name, p in trained if not decays(name, p)],
            "weight_decay": 0.0,
        },
    ]


@oracle("param_groups", evidence="one group a tensor")
def groups_of_one(model, wd):
    return [
        {"params": [p], "weight_decay": wd if p.ndim > 1 else 0.0}
        for p in model.parameters()
        if p.requires_grad
    ]


@right("param_groups", evidence="K73 the rest first; dict of lists")
def groups_rest_first(model, wd):
    found = {0.0: [], wd: []}
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        found[wd if len(p.shape) >= 2 else 0.0].append(p)
    return [
        {"weight_decay": decay, "params": params}
        for decay, params in found.items()
    ]


@right("param_groups", evidence="named pairs, as torch.optim takes them")
def groups_named(model, wd):
    named = [
        pair for pair in model.named_parameters() if pair[1].requires_grad
    ]
    groups = [
        {"params": [q for q in named if q[1].dim() > 1], "weight_decay": wd},
        {"params": [q for q in named if q[1].dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


@right("param_groups", evidence="without empty groups")
def groups_not_empty(model, wd):
    return [group for group in groups_rest_first(model, wd) if group["params"]]


def _group(evidence, hint):
    return wrong("param_groups", evidence=evidence, hint=hint)


@_group(
    "M283 lit-llama#254",
    "Everything decays, biases and gains of norms, too.",
)
def groups_all_decay(model, wd):
    return [
        {
            "params": [p for p in model.parameters() if p.requires_grad],
            "weight_decay": wd,
        }
    ]


@_group(
    "embeddings without decay, minGPT",
    "Embeddings do not decay in your groups. Here they do: two dimensions.",
)
def groups_embeddings_kept(model, wd):
    return _split(model, wd, lambda n, p: p.ndim > 1 and "embed" not in n)


@_group(
    "by name: bias",
    "You decide by the name: all that is not called bias decays, the gains of "
    "norms, too. Count dimensions.",
)
def groups_by_bias(model, wd):
    return _split(model, wd, lambda n, p: not n.endswith("bias"))


@_group(
    "by name: ln",
    "You decide by names, and there are models in which they say nothing. "
    "Count dimensions.",
)
def groups_by_name(model, wd):
    return _split(
        model, wd, lambda n, p: n.endswith("weight") and "ln" not in n
    )


@_group(
    "exactly two dimensions",
    "You ask for exactly two dimensions. A convolution's weight has three "
    "and decays, too.",
)
def groups_two_dimensions(model, wd):
    return _split(model, wd, lambda n, p: p.ndim == 2)


@_group("the two swapped", "Vectors decay and matrices do not: swap the two.")
def groups_swapped(model, wd):
    return _split(model, wd, lambda n, p: p.ndim < 2)


@_group(
    "no explicit 0",
    "The second group does not say weight_decay, so it gets the optimiser's "
    "default, 0.01 for AdamW. Write 0.0.",
)
def groups_default_decay(model, wd):
    decay, rest = _split(model, wd, lambda n, p: p.ndim > 1)
    return [decay, {"params": rest["params"]}]


@_group(
    "M285 tied twice",
    "A tensor that has two names is in a group twice. parameters() shows it "
    "once; state_dict() and remove_duplicate=False do not.",
)
def groups_tied_twice(model, wd):
    named = [
        p
        for _, p in model.named_parameters(remove_duplicate=False)
        if p.requires_grad
    ]
    return [
        {"params": [p for p in named if p.ndim > 1], "weight_decay": wd},
        {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0},
    ]


@_group(
    "M285 lost ones",
    "Vectors are in no group at all, so they are never trained.",
)
def groups_matrices_only(model, wd):
    return _split(model, wd, lambda n, p: p.ndim > 1)[:1]


@_group(
    "M285 linear layers only",
    "You collect the parameters of nn.Linear only. All that are trained "
    "belong into a group.",
)
def groups_linear_only(model, wd):
    groups = _split(model, wd, lambda n, p: p.ndim > 1)
    known = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.LayerNorm)
        for p in module.parameters()
    }
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) in known]
    return groups


@_group(
    "frozen ones too",
    "Frozen parameters are in a group. Leave out what has requires_grad="
    "False.",
)
def groups_frozen_too(model, wd):
    return [
        {
            "params": [p for p in model.parameters() if p.ndim > 1],
            "weight_decay": wd,
        },
        {
            "params": [p for p in model.parameters() if p.ndim < 2],
            "weight_decay": 0.0,
        },
    ]


@_group(
    "wd ignored",
    "The decay is 0.1 whatever wd says.",
)
def groups_fixed_decay(model, wd):
    return _split(model, 0.1, lambda n, p: p.ndim > 1)


@_group(
    "review: sets of parameters",
    "params is a set. A set has no order, so that torch.optim refuses it: a "
    "saved state could not be matched again.",
)
def groups_sets(model, wd):
    return [
        {**group, "params": set(group["params"])}
        for group in groups_rest_first(model, wd)
    ]


@_group(
    "review: two or three dimensions",
    "Tensors with four dimensions, such as those of Conv2d, do not decay. Two "
    "or more are meant.",
)
def groups_three_dimensions(model, wd):
    return _split(model, wd, lambda n, p: p.ndim in (2, 3))


# 5.9 beam_search


def _ended(ids, eos):
    return len(ids) > 1 and ids[-1] == eos


class _Beam:
    """A right search in pieces, each of which a mistake may override."""

    def ended(self, ids, eos):
        return _ended(ids, eos)

    def width(self, k):
        return k

    def rounds(self, max_len):
        return max_len

    def rank(self, total, ids):
        return total

    def total(self, total, logp):
        return total + logp

    def prune(self, grown, k, parents):
        grown = sorted(grown, key=lambda one: -self.rank(one[0], one[1]))
        return grown[:k]

    def stop(self, beam, eos):
        return all(self.ended(ids, eos) for _, ids in beam)

    def best(self, beam, eos):
        return max(beam, key=lambda one: self.rank(one[0], one[1]))[1]

    def __call__(self, logp_fn, bos, eos, k, max_len):
        beam = [(self.first, [bos])]
        for _ in range(self.rounds(max_len)):
            grown, parents = [], []
            for index, (total, ids) in enumerate(beam):
                if self.ended(ids, eos):
                    grown.append((total, ids))
                    parents.append(index)
                    continue
                for token, logp in enumerate(self.ask(logp_fn, ids)):
                    grown.append((self.total(total, logp), [*ids, token]))
                    parents.append(index)
            beam = self.prune(grown, self.width(k), parents)
            if self.stop(beam, eos):
                break
        return self.result(self.best(beam, eos), eos)

    first = 0.0

    def ask(self, logp_fn, ids):
        return logp_fn(ids).tolist()

    def result(self, ids, eos):
        return ids


@oracle("beam_search", evidence="all sequences, pruned by their beginnings")
def beam_enumerated(logp_fn, bos, eos, k, max_len):
    kept = {(bos,): 0.0}
    for length in range(1, max_len + 1):
        pool = {ids: kept[ids] for ids in kept if _ended(ids, eos)}
        V = len(logp_fn([bos]))
        for tail in itertools.product(range(V), repeat=length):
            begin = (bos, *tail[:-1])
            if begin in kept and begin not in pool:
                pool[(*begin, tail[-1])] = kept[begin] + float(
                    logp_fn(list(begin))[tail[-1]]
                )
        ranked = sorted(pool, key=pool.get, reverse=True)
        kept = {ids: pool[ids] for ids in ranked[:k]}
    return list(max(kept, key=kept.get))


@right("beam_search", evidence="finished ones kept aside, best of all at last")
def beam_aside(logp_fn, bos, eos, k, max_len):
    running, done = [(0.0, [bos])], []
    for _ in range(max_len):
        grown = [
            (total + float(logp), [*ids, token])
            for total, ids in running
            for token, logp in enumerate(logp_fn(ids))
        ]
        grown.sort(key=lambda one: one[0], reverse=True)
        done += [one for one in grown[:k] if one[1][-1] == eos]
        running = [one for one in grown[:k] if one[1][-1] != eos]
        if not running:
            break
    return max([*running, *done], key=lambda one: one[0])[1]


@right("beam_search", evidence="topk over the flattened scores")
def beam_topk(logp_fn, bos, eos, k, max_len):
    beam = [(0.0, [bos])]
    for _ in range(max_len):
        done = [one for one in beam if _ended(one[1], eos)]
        live = [one for one in beam if not _ended(one[1], eos)]
        if not live:
            break
        scores = torch.stack([total + logp_fn(ids) for total, ids in live])
        V, flat = scores.shape[1], scores.flatten()
        values, places = flat.topk(min(k, len(flat)))
        beam = done + [
            (value.item(), [*live[place // V][1], int(place % V)])
            for value, place in zip(values, places.tolist(), strict=True)
        ]
        beam = sorted(beam, key=lambda one: -one[0])[:k]
    return max(beam, key=lambda one: one[0])[1]


@right("beam_search", evidence="a heap; stops when the best is finished")
def beam_early(logp_fn, bos, eos, k, max_len):
    class Early(_Beam):
        def stop(self, beam, eos):
            return self.ended(beam[0][1], eos)

    return Early()(logp_fn, bos, eos, k, max_len)


def _beam(evidence, hint):
    def mark(kind):
        def answer(logp_fn, bos, eos, k, max_len):
            return kind()(logp_fn, bos, eos, k, max_len)

        answer.__name__ = kind.__name__
        return wrong("beam_search", evidence=evidence, hint=hint)(answer)

    return mark


@_beam(
    "greedy",
    "You follow the most likely token only, whatever k is. k hypotheses are "
    "kept.",
)
class beam_greedy(_Beam):
    def width(self, k):
        return 1


@_beam("one more", "You keep k + 1 hypotheses.")
class beam_k_plus_one(_Beam):
    def width(self, k):
        return k + 1


@_beam(
    "never pruned",
    "Nothing is pruned: all continuations stay. Keep the best k in each "
    "round.",
)
class beam_unpruned(_Beam):
    def width(self, k):
        return 10_000


@_beam(
    "length normalisation",
    "You divide by the length. There is no length penalty here: the total "
    "decides.",
)
class beam_normalised(_Beam):
    def rank(self, total, ids):
        return total / max(1, len(ids) - 1)


@_beam(
    "the last step only",
    "Hypotheses are compared by their last step's log-probability. Add up "
    "all steps.",
)
class beam_last_step(_Beam):
    def total(self, total, logp):
        return logp


@_beam(
    "probabilities added",
    "You add probabilities. Log-probabilities are added, which multiplies "
    "the probabilities.",
)
class beam_adds_probabilities(_Beam):
    def total(self, total, logp):
        return total + math.exp(logp)


@_beam(
    "the best child of each",
    "Each hypothesis hands down only its best continuation, so the beam "
    "never has two children of one parent. All continuations compete.",
)
class beam_one_child_each(_Beam):
    def prune(self, grown, k, parents):
        if len(set(parents)) == 1:
            return super().prune(grown, k, parents)
        best = {}
        for one, parent in zip(grown, parents, strict=True):
            if parent not in best or one[0] > best[parent][0]:
                best[parent] = one
        return super().prune(list(best.values()), k, parents)


@_beam(
    "stops at the first end",
    "You stop as soon as one hypothesis is finished, and return it. A longer "
    "one may still be more likely.",
)
class beam_first_end(_Beam):
    def stop(self, beam, eos):
        return any(self.ended(ids, eos) for _, ids in beam)

    def best(self, beam, eos):
        done = [one for one in beam if self.ended(one[1], eos)]
        return super().best(done or beam, eos)


@_beam(
    "finished ones preferred",
    "You return a finished hypothesis even if an unfinished one is more "
    "likely at the end.",
)
class beam_prefers_finished(_Beam):
    def best(self, beam, eos):
        done = [one for one in beam if self.ended(one[1], eos)]
        return super().best(done or beam, eos)


@_beam(
    "finished ones forgotten",
    "Finished hypotheses drop out of the beam and are lost. They keep their "
    "place among the k.",
)
class beam_forgets_finished(_Beam):
    def prune(self, grown, k, parents):
        grown = super().prune(grown, k, parents)
        lengths = max(len(ids) for _, ids in grown)
        new = [one for one in grown if len(one[1]) == lengths]
        return new or grown


@_beam(
    "finished ones aside, the beam refilled (transformers)",
    "You set finished hypotheses aside and fill their places, so k unfinished "
    "ones go on beside them. A finished one takes one of the k places, and "
    "drops out once k others are better.",
)
class beam_refills(_Beam):
    def prune(self, grown, k, parents):
        ended = [one for one in grown if self.ended(one[1], self.eos)]
        going = [one for one in grown if not self.ended(one[1], self.eos)]
        return super().prune(going, k, parents) + ended

    def __call__(self, logp_fn, bos, eos, k, max_len):
        self.eos = eos
        return super().__call__(logp_fn, bos, eos, k, max_len)


@_beam(
    "pruned ones returned",
    "You return a finished hypothesis that did not stay among the best k. "
    "What was pruned once is out.",
)
class beam_remembers_pruned(_Beam):
    def prune(self, grown, k, parents):
        self.pool = [*getattr(self, "pool", []), *grown]
        return super().prune(grown, k, parents)

    def best(self, beam, eos):
        ended = [
            one for one in getattr(self, "pool", []) if self.ended(one[1], eos)
        ]
        return super().best([*beam, *ended], eos)


@_beam(
    "goes on after eos",
    "Finished hypotheses are continued. Nothing follows an eos.",
)
class beam_goes_on(_Beam):
    def ended(self, ids, eos):
        return False


@_beam(
    "bos taken for eos",
    "Where bos is the same id as eos, you take the first id for the end. "
    "Only an eos after bos ends a sequence.",
)
class beam_bos_ends(_Beam):
    def ended(self, ids, eos):
        return ids[-1] == eos


@_beam("eos cut off", "The eos is missing at the end of the result.")
class beam_without_eos(_Beam):
    def result(self, ids, eos):
        return ids[:-1] if self.ended(ids, eos) else ids


@_beam("bos cut off", "The result does not start with bos.")
class beam_without_bos(_Beam):
    def result(self, ids, eos):
        return ids[1:]


@_beam(
    "max_len counts bos",
    "You count bos among the max_len ids. It comes before them.",
)
class beam_counts_bos(_Beam):
    def rounds(self, max_len):
        return max(0, max_len - 1)


@_beam(
    "the worst stay",
    "You sort the wrong way round and keep the least likely hypotheses.",
)
class beam_keeps_worst(_Beam):
    def prune(self, grown, k, parents):
        return sorted(grown, key=lambda one: one[0])[:k]


@_beam(
    "only the last token is told",
    "logp_fn is given the last id alone. It needs all ids, from bos on.",
)
class beam_last_id_only(_Beam):
    def ask(self, logp_fn, ids):
        return logp_fn(ids[-1:]).tolist()


@_beam(
    "the last of the beam",
    "You return another hypothesis of the beam than its best, the longest "
    "for instance.",
)
class beam_returns_longest(_Beam):
    def best(self, beam, eos):
        return max(beam, key=lambda one: (len(one[1]), one[0]))[1]


@_beam(
    "review: a tensor comes back",
    "A tensor comes back, or tensors in a list. A list of Python numbers is "
    "due: .tolist() makes one.",
)
class beam_returns_tensor(_Beam):
    def result(self, ids, eos):
        return torch.tensor(ids)


@_beam(
    "review: logp_fn gets a tensor",
    "logp_fn gets a tensor. It takes a list of Python numbers, and looks them "
    "up in a dict perhaps.",
)
class beam_asks_with_tensors(_Beam):
    def ask(self, logp_fn, ids):
        return logp_fn(torch.tensor(ids)).tolist()


@_beam(
    "review: k cut down to V",
    "You keep at most V hypotheses. That is right for the first round only: "
    "later there are more continuations than tokens.",
)
class beam_at_most_vocabulary(_Beam):
    def __call__(self, logp_fn, bos, eos, k, max_len):
        k = min(k, len(logp_fn([bos])))
        return super().__call__(logp_fn, bos, eos, k, max_len)


# 5.8 train


def _rates(cfg):
    for step in range(cfg.steps):
        yield rate_half_angle(
            step, cfg.max_lr, cfg.min_lr, cfg.warmup, cfg.steps
        )


class _Trainer:
    """A right loop in pieces, each of which a mistake may override."""

    def groups(self, model, cfg):
        return _split(model, cfg.weight_decay, lambda name, p: p.ndim > 1)

    def optimizer(self, groups, cfg):
        if cfg.make_optimizer:
            return cfg.make_optimizer(groups)
        return self.adam(groups, cfg)

    def adam(self, groups, cfg):
        return torch.optim.AdamW(groups, betas=tuple(cfg.betas), eps=cfg.eps)

    def compiled(self, model, cfg):
        if cfg.compile is None:
            return model
        return torch.compile(model, backend=cfg.compile)

    def batch(self, data, step, cfg):
        first = step * cfg.batch_size
        return torch.stack(
            [data[i % len(data)] for i in range(first, first + cfg.batch_size)]
        )

    def parts(self, batch, cfg):
        size = math.ceil(len(batch) / cfg.accum_steps)
        return batch.split(size)

    def weight(self, part, batch, cfg):
        return len(part) / len(batch)

    def autocast(self, cfg):
        return torch.autocast("cpu", torch.bfloat16, enabled=cfg.amp)

    def forward(self, run, part):
        return run(part, part)[1]

    def loss(self, run, part, cfg):
        with self.autocast(cfg):
            return self.forward(run, part)

    def backward(self, loss, cfg):
        (cfg.scaler.scale(loss) if cfg.scaler else loss).backward()

    def before_part(self, optimizer):
        pass

    def before_update(self, optimizer):
        optimizer.zero_grad()

    def accumulate(self, run, batch, cfg, optimizer):
        total = 0.0
        for part in self.parts(batch, cfg):
            self.before_part(optimizer)
            loss = self.loss(run, part, cfg)
            weighted = loss * self.weight(part, batch, cfg)
            self.backward(weighted, cfg)
            total += self.told(loss, part, batch)
        return total

    def told(self, loss, part, batch):
        return loss.item() * len(part) / len(batch)

    def clip(self, optimizer, model, cfg):
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)

    def unscale(self, optimizer, cfg):
        if cfg.scaler:
            cfg.scaler.unscale_(optimizer)

    def step(self, optimizer, cfg):
        if cfg.scaler:
            cfg.scaler.step(optimizer)
            cfg.scaler.update()
        else:
            optimizer.step()

    def finish(self, optimizer, model, cfg):
        self.unscale(optimizer, cfg)
        self.clip(optimizer, model, cfg)
        self.step(optimizer, cfg)

    def set_rate(self, optimizer, rate):
        for group in optimizer.param_groups:
            group["lr"] = rate

    def rates(self, cfg):
        return _rates(cfg)

    def enter(self, model):
        model.train()

    def leave(self, model, was):
        model.train(was)

    def update(self, run, batch, cfg, optimizer, model, rate):
        self.set_rate(optimizer, rate)
        self.before_update(optimizer)
        total = self.accumulate(run, batch, cfg, optimizer)
        self.finish(optimizer, model, cfg)
        return total

    def __call__(self, model, data, cfg):
        was = model.training
        optimizer = self.optimizer(self.groups(model, cfg), cfg)
        run = self.compiled(model, cfg)
        self.enter(model)
        losses = [
            self.update(
                run, self.batch(data, step, cfg), cfg, optimizer, model, rate
            )
            for step, rate in enumerate(self.rates(cfg))
        ]
        self.leave(model, was)
        return losses


@oracle(
    "train",
    evidence="the whole batch at once; parts only where rows are watched",
)
def train_whole(model, data, cfg):
    class Whole(_Trainer):
        # The gradient of the batch's mean, from one backward pass.
        def accumulate(self, run, batch, cfg, optimizer):
            losses = [
                self.loss(run, part, cfg) * len(part)
                for part in self.parts(batch, cfg)
            ]
            total = torch.stack(losses).sum() / len(batch)
            for _ in losses if cfg.scaler else ():
                scaled = cfg.scaler.scale(total)
            (scaled if cfg.scaler else total).backward()
            return total.item()

        def clip(self, optimizer, model, cfg):
            grads = [p.grad for p in model.parameters()]
            norm = math.sqrt(sum(g.square().sum().item() for g in grads))
            for grad in grads if norm > cfg.max_norm else ():
                grad.mul_(cfg.max_norm / norm)

    return Whole()(model, data, cfg)


@right("train", evidence="tensor_split, groups of one tensor, clip by foreach")
def train_split(model, data, cfg):
    class Split(_Trainer):
        def parts(self, batch, cfg):
            return batch.tensor_split(cfg.accum_steps)

        def groups(self, model, cfg):
            return groups_of_one(model, cfg.weight_decay)

        def clip(self, optimizer, model, cfg):
            params = [p for g in optimizer.param_groups for p in g["params"]]
            nn.utils.clip_grad_norm_(params, cfg.max_norm, foreach=True)

    return Split()(model, data, cfg)


@right("train", evidence="K71 zero_grad at both ends; K74 norm plus 1e-6")
def train_zero_last(model, data, cfg):
    class Last(_Trainer):
        def enter(self, model):
            super().enter(model)
            model.zero_grad()

        def before_update(self, optimizer):
            pass

        def clip(self, optimizer, model, cfg):
            norm = torch.cat([p.grad.flatten() for p in model.parameters()])
            factor = cfg.max_norm / (norm.norm() + 1e-6)
            if factor < 1:
                for p in model.parameters():
                    p.grad = p.grad * factor

        def finish(self, optimizer, model, cfg):
            super().finish(optimizer, model, cfg)
            optimizer.zero_grad(set_to_none=False)

    return Last()(model, data, cfg)


@right("train", evidence="model.compile, which compiles in place")
def train_in_place(model, data, cfg):
    class InPlace(_Trainer):
        def compiled(self, model, cfg):
            if cfg.compile:
                model.compile(backend=cfg.compile)
            return model

        def autocast(self, cfg):
            if not cfg.amp:
                return contextlib.nullcontext()
            return super().autocast(cfg)

    return InPlace()(model, data, cfg)


def _trained(evidence, hint):
    def mark(kind):
        def answer(model, data, cfg):
            return kind()(model, data, cfg)

        answer.__name__ = kind.__name__
        return wrong("train", evidence=evidence, hint=hint)(answer)

    return mark


@_trained(
    "M275 nwm#16",
    "Gradients are never emptied, so each update adds its own to those of "
    "all before. Empty them once an update.",
)
class train_never_zeroes(_Trainer):
    def before_update(self, optimizer):
        pass


@_trained(
    "review: gradients that were there before entered the first update",
    "Gradients are emptied after each step only, so what an earlier backward "
    "pass has left in the model enters the first update. Empty them before a "
    "batch's first backward pass.",
)
class train_zeroes_after(_Trainer):
    def before_update(self, optimizer):
        pass

    def finish(self, optimizer, model, cfg):
        super().finish(optimizer, model, cfg)
        optimizer.zero_grad()


@_trained(
    "M277 RAE#67",
    "Gradients are emptied before every part, so only the last part of a "
    "batch counts. Empty them once an update.",
)
class train_zeroes_parts(_Trainer):
    def before_part(self, optimizer):
        optimizer.zero_grad()


@_trained(
    "M278 nanoGPT#206",
    "The parts' losses are not weighed, so with n parts the gradient is n "
    "times too large. Adam hides it; clipping and other optimisers do not.",
)
class train_undivided(_Trainer):
    def weight(self, part, batch, cfg):
        return 1.0


@_trained(
    "M233 transformers#34191",
    "Each part counts as 1 / accum_steps, whatever its size: rows in a "
    "smaller part weigh more. Weigh by the share of the rows.",
)
class train_equal_weights(_Trainer):
    def weight(self, part, batch, cfg):
        return 1 / cfg.accum_steps


@_trained(
    "M233 in the gradient and in the loss",
    "Each part's loss counts as 1 / accum_steps, whatever its size, in the "
    "gradient and in what you return. Weigh by the share of the rows.",
)
class train_equal_shares(_Trainer):
    def weight(self, part, batch, cfg):
        return 1 / cfg.accum_steps

    def told(self, loss, part, batch):
        return loss.item() / self.count

    def accumulate(self, run, batch, cfg, optimizer):
        self.count = cfg.accum_steps
        return super().accumulate(run, batch, cfg, optimizer)


@_trained(
    "M278 in the gradient and in the loss",
    "The parts' mean losses are added up, so with n parts the gradient and "
    "the loss that you return are n times too large. Weigh each part by its "
    "share of the rows.",
)
class train_adds_parts(_Trainer):
    def weight(self, part, batch, cfg):
        return 1.0

    def told(self, loss, part, batch):
        return loss.item()


@_trained(
    "a step a part",
    "You take a step after every part. The parts are one batch: one step, "
    "after the last of them.",
)
class train_steps_parts(_Trainer):
    def accumulate(self, run, batch, cfg, optimizer):
        total = 0.0
        for part in self.parts(batch, cfg):
            loss = self.loss(run, part, cfg)
            self.backward(loss * self.weight(part, batch, cfg), cfg)
            total += self.told(loss, part, batch)
            if not cfg.scaler:
                optimizer.step()
        return total

    def finish(self, optimizer, model, cfg):
        if cfg.scaler:
            super().finish(optimizer, model, cfg)


@_trained(
    "the mean of the parts' losses",
    "The loss that you return is the plain mean of the parts' losses. Parts "
    "count by their size.",
)
class train_tells_plain_mean(_Trainer):
    def accumulate(self, run, batch, cfg, optimizer):
        count = len(self.parts(batch, cfg))
        return super().accumulate(run, batch, cfg, optimizer) / count

    def told(self, loss, part, batch):
        return loss.item()


@_trained(
    "only the last part's loss",
    "You return the last part's loss. The whole batch's is asked for.",
)
class train_tells_last_part(_Trainer):
    def accumulate(self, run, batch, cfg, optimizer):
        super().accumulate(run, batch, cfg, optimizer)
        return self.last

    def told(self, loss, part, batch):
        self.last = loss.item()
        return self.last


@_trained(
    "accum_steps batches an update",
    "Each part has batch_size rows, so an update sees accum_steps times too "
    "many. The parts together are one batch.",
)
class train_multiplies_batch(_Trainer):
    def batch(self, data, step, cfg):
        size = cfg.batch_size * cfg.accum_steps
        rows = torch.arange(step * size, (step + 1) * size)
        return data[rows % len(data)]


@_trained(
    "accum_steps ignored",
    "accum_steps is ignored: the model gets the whole batch at once, and the "
    "memory that was to be saved is used.",
)
class train_no_parts(_Trainer):
    def parts(self, batch, cfg):
        return [batch]


@_trained(
    "M280 not clipped, or before the backward pass",
    "The gradients are not clipped when the step is made: clip after the "
    "last part's backward pass and before the step.",
)
class train_clips_too_early(_Trainer):
    def clip(self, optimizer, model, cfg):
        pass


@_trained(
    "M281 always rescaled",
    "You scale gradients to max_norm even if they are smaller. Only larger "
    "ones are cut.",
)
class train_always_rescales(_Trainer):
    def clip(self, optimizer, model, cfg):
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad *= cfg.max_norm / norm


@_trained(
    "M282 one parameter at a time",
    "You clip each parameter by its own norm, which changes the direction. "
    "It is the norm of all together.",
)
class train_clips_each(_Trainer):
    def clip(self, optimizer, model, cfg):
        for p in model.parameters():
            nn.utils.clip_grad_norm_([p], cfg.max_norm)


@_trained(
    "M282 by value",
    "You cut single entries at ±max_norm. It is the norm that is cut.",
)
class train_clips_values(_Trainer):
    def clip(self, optimizer, model, cfg):
        nn.utils.clip_grad_value_(model.parameters(), cfg.max_norm)


@_trained(
    "clipped after every part",
    "You clip after every part. Clip once an update, the sum of all parts.",
)
class train_clips_parts(_Trainer):
    def accumulate(self, run, batch, cfg, optimizer):
        self.model_parameters = [
            p for g in optimizer.param_groups for p in g["params"]
        ]
        self.cfg = cfg
        return super().accumulate(run, batch, cfg, optimizer)

    def told(self, loss, part, batch):
        if not self.cfg.scaler:
            nn.utils.clip_grad_norm_(self.model_parameters, self.cfg.max_norm)
        return super().told(loss, part, batch)


@_trained(
    "clipped while scaled",
    "You clip before unscaling, so it is the scaled gradients' norm that is "
    "cut. unscale_ comes first.",
)
class train_clips_scaled(_Trainer):
    def finish(self, optimizer, model, cfg):
        self.clip(optimizer, model, cfg)
        self.unscale(optimizer, cfg)
        self.step(optimizer, cfg)


@_trained("scaler ignored", "cfg.scaler is not used at all.")
class train_no_scaler(_Trainer):
    def __call__(self, model, data, cfg):
        cfg = copy.copy(cfg)
        cfg.scaler = None
        return super().__call__(model, data, cfg)


@_trained(
    "scaler.update forgotten",
    "scaler.update() is missing, so the scale never adapts and the next "
    "unscale_ fails.",
)
class train_no_scaler_update(_Trainer):
    def step(self, optimizer, cfg):
        if not cfg.scaler:
            return optimizer.step()
        cfg.scaler.step(optimizer)
        cfg.scaler.unscaled = False


@_trained(
    "the optimiser's step",
    "With a scaler the step is scaler.step(optimizer), which skips it if a "
    "gradient overflowed.",
)
class train_steps_past_scaler(_Trainer):
    def step(self, optimizer, cfg):
        optimizer.step()
        if cfg.scaler:
            cfg.scaler.update()


@_trained(
    "M293 the rate of the update before",
    "Each update uses the rate of the one before: set it before the step.",
)
class train_late_rate(_Trainer):
    def rates(self, cfg):
        rates = list(_rates(cfg))
        return [rates[0], *rates[:-1]]


@_trained(
    "the rate set after the step",
    "You set the rate after the step, so each update uses that of the one "
    "before, and the first the optimiser's own. Set it before.",
)
class train_rate_after_step(_Trainer):
    def update(self, run, batch, cfg, optimizer, model, rate):
        self.before_update(optimizer)
        total = self.accumulate(run, batch, cfg, optimizer)
        self.finish(optimizer, model, cfg)
        self.set_rate(optimizer, rate)
        return total


@_trained(
    "the rate of the next update",
    "Each update uses the rate of the next one. Steps count from 0: the first "
    "update has the rate of step 0.",
)
class train_early_rate(_Trainer):
    def rates(self, cfg):
        return [*list(_rates(cfg))[1:], cfg.min_lr]


@_trained(
    "the schedule counts parts",
    "Your schedule is accum_steps times too long. It counts updates: total is "
    "cfg.steps.",
)
class train_schedules_parts(_Trainer):
    def rates(self, cfg):
        longer = copy.copy(cfg)
        longer.steps = cfg.steps * cfg.accum_steps
        return list(_rates(longer))[: cfg.steps]


@_trained(
    "review: max(min_lr, rate), in the warm-up, too",
    "Your rates are never below min_lr. In the warm-up they may be.",
)
class train_floors_rates(_Trainer):
    def rates(self, cfg):
        return [max(cfg.min_lr, rate) for rate in _rates(cfg)]


@_trained("constant rate", "The learning rate never changes from max_lr.")
class train_constant_rate(_Trainer):
    def rates(self, cfg):
        return [cfg.max_lr] * cfg.steps


@_trained(
    "M288 the first group only",
    "Only the first group gets the rate, and the other never moves as it "
    "should. Set all groups.",
)
class train_first_group_only(_Trainer):
    def set_rate(self, optimizer, rate):
        optimizer.param_groups[0]["lr"] = rate


@_trained(
    "M283 one group",
    "All parameters decay. Biases and gains belong into a group with 0.0.",
)
class train_all_decay(_Trainer):
    def groups(self, model, cfg):
        return groups_all_decay(model, cfg.weight_decay)


@_trained(
    "plain parameters",
    "The optimiser gets the parameters without groups, so cfg.weight_decay "
    "has no effect.",
)
class train_no_groups(_Trainer):
    def groups(self, model, cfg):
        return list(model.parameters())


@_trained(
    "betas and eps forgotten",
    "AdamW gets neither cfg.betas nor cfg.eps.",
)
class train_default_adam(_Trainer):
    def adam(self, groups, cfg):
        return torch.optim.AdamW(groups)


@_trained(
    "Adam for AdamW",
    "You use Adam, which adds the decay to the gradient. AdamW keeps them "
    "apart.",
)
class train_adam(_Trainer):
    def adam(self, groups, cfg):
        return torch.optim.Adam(groups, betas=cfg.betas, eps=cfg.eps)


@_trained(
    "make_optimizer ignored",
    "cfg.make_optimizer is not used: you always make AdamW.",
)
class train_own_optimizer(_Trainer):
    def optimizer(self, groups, cfg):
        return self.adam(groups, cfg)


@_trained(
    "M297 the same batch",
    "Every update sees the first batch. Update s starts at row s · "
    "batch_size.",
)
class train_same_batch(_Trainer):
    def batch(self, data, step, cfg):
        return super().batch(data, 0, cfg)


@_trained(
    "M236 short at the end",
    "At the end of the data the batch is short, or the rest is skipped. It "
    "goes on with row 0.",
)
class train_short_batch(_Trainer):
    def batch(self, data, step, cfg):
        first = step * cfg.batch_size % len(data)
        return data[first : first + cfg.batch_size]


@_trained(
    "starts anew at the end",
    "Where a whole batch does not fit any more you start again at row 0. The "
    "batch takes the last rows and then the first ones.",
)
class train_drops_rest(_Trainer):
    def batch(self, data, step, cfg):
        whole = max(1, len(data) // cfg.batch_size)
        return super().batch(data, step % whole, cfg)


@_trained(
    "shuffled",
    "You draw rows at random. They are taken in order, so that a run can be "
    "repeated.",
)
class train_shuffles(_Trainer):
    def batch(self, data, step, cfg):
        order = torch.arange(len(data)).flip(0)
        return super().batch(data[order], step, cfg)


@_trained(
    "M224 shifted outside, too",
    "You shift the targets, and the model shifts them again. Call "
    "model(part, part).",
)
class train_shifts(_Trainer):
    def forward(self, run, part):
        return run(part[:, :-1], part[:, 1:])[1]


@_trained(
    "the loss after the update",
    "The losses are those after each update. They are measured before it, in "
    "the forward pass that also gives the gradients.",
)
class train_tells_after(_Trainer):
    def update(self, run, batch, cfg, optimizer, model, rate):
        super().update(run, batch, cfg, optimizer, model, rate)
        with torch.no_grad():
            return self.forward(run, batch).item()


@_trained(
    "M234 the sum over the batch",
    "You return sums over rows. The mean loss is asked for.",
)
class train_tells_sum(_Trainer):
    def told(self, loss, part, batch):
        return loss.item() * len(part)


@_trained(
    "scaled losses come back",
    "With a scaler you return scaled losses. Read the number before scaling.",
)
class train_tells_scaled(_Trainer):
    def accumulate(self, run, batch, cfg, optimizer):
        total = super().accumulate(run, batch, cfg, optimizer)
        return total * cfg.scaler.get_scale() if cfg.scaler else total


@_trained(
    "M299 tensors with a graph",
    "You return tensors, which keep the graph of every step in memory. Take "
    "the number out with .item().",
)
class train_returns_tensors(_Trainer):
    def told(self, loss, part, batch):
        return loss * (len(part) / len(batch))


@_trained(
    "amp ignored",
    "cfg.amp has no effect.",
)
class train_no_amp(_Trainer):
    def autocast(self, cfg):
        return contextlib.nullcontext()


@_trained(
    "always autocast",
    "Autocast is on whatever cfg.amp says.",
)
class train_always_amp(_Trainer):
    def autocast(self, cfg):
        return torch.autocast("cpu", torch.bfloat16)


@_trained(
    "float16",
    "You autocast to float16. bfloat16 is asked for: its range is that of "
    "float32.",
)
class train_amp_half(_Trainer):
    def autocast(self, cfg):
        return torch.autocast("cpu", torch.float16, enabled=cfg.amp)


@_trained("compile ignored", "cfg.compile has no effect.")
class train_never_compiles(_Trainer):
    def compiled(self, model, cfg):
        return model


@_trained(
    "compiled, not used",
    "You compile the model and then run the plain one: torch.compile returns "
    "the compiled model.",
)
class train_compiles_in_vain(_Trainer):
    def compiled(self, model, cfg):
        super().compiled(model, cfg)
        return model


@_trained(
    "compiled again and again",
    "You compile anew for every part. Once is enough: before the loop.",
)
class train_compiles_often(_Trainer):
    def compiled(self, model, cfg):
        return model

    def loss(self, run, part, cfg):
        run = super().compiled(run, cfg)
        return super().loss(run, part, cfg)


@_trained(
    "the default backend",
    "You compile with torch's default backend. cfg.compile names the backend.",
)
class train_default_backend(_Trainer):
    def compiled(self, model, cfg):
        return torch.compile(model) if cfg.compile else model


@_trained(
    "review: the test's own backend, hard-coded, passed",
    "You compile with a backend of your own choice. cfg.compile names the "
    "backend.",
)
class train_fixed_backend(_Trainer):
    def compiled(self, model, cfg):
        return torch.compile(model, backend="eager") if cfg.compile else model


@_trained(
    "always compiled",
    "You compile also where cfg.compile is None.",
)
class train_always_compiles(_Trainer):
    def compiled(self, model, cfg):
        return torch.compile(model, backend=cfg.compile or "eager")


@_trained(
    "M295 eval mode",
    "The model is not put into train mode, so one that comes in eval mode is "
    "trained without dropout.",
)
class train_in_eval_mode(_Trainer):
    def enter(self, model):
        pass


@_trained(
    "left in train mode",
    "The model stays in train mode, also if it came in eval mode.",
)
class train_leaves_train_mode(_Trainer):
    def leave(self, model, was):
        pass


@_trained(
    "review: the warm-up left out",
    "There is no warm-up: cfg.warmup has no effect on the rates.",
)
class train_no_warmup(_Trainer):
    def rates(self, cfg):
        cold = copy.copy(cfg)
        cold.warmup = 0
        return list(_rates(cold))


@_trained(
    "review: eps forgotten",
    "AdamW gets cfg.betas and not cfg.eps.",
)
class train_default_eps(_Trainer):
    def adam(self, groups, cfg):
        return torch.optim.AdamW(groups, betas=tuple(cfg.betas))


@_trained(
    "review: an optimiser for each update",
    "AdamW is made anew for every update and forgets its averages. Make it "
    "once.",
)
class train_forgets_moments(_Trainer):
    def update(self, run, batch, cfg, optimizer, model, rate):
        if not cfg.make_optimizer:
            optimizer = self.adam(self.groups(model, cfg), cfg)
        return super().update(run, batch, cfg, optimizer, model, rate)


@_trained(
    "review: the model converted in the place of autocast",
    "With amp=True you convert the model's parameters. autocast converts on "
    "the way, and the parameters keep their precision for small updates.",
)
class train_converts_model(_Trainer):
    def __call__(self, model, data, cfg):
        model.bfloat16() if cfg.amp else None
        return super().__call__(model, data, cfg)


@_trained(
    "review: what is left over goes to the last part",
    "Your last part takes what is left over and has too many rows. A part has "
    "⌈batch_size / accum_steps⌉ at most, for the sake of memory.",
)
class train_big_last_part(_Trainer):
    def parts(self, batch, cfg):
        size = len(batch) // cfg.accum_steps
        ends = [size * i for i in range(1, cfg.accum_steps)]
        return batch.tensor_split(ends)


@_trained(
    "review: the attribute training is set",
    "You set model.training, which reaches the outermost module only: dropout "
    "inside stays off. model.train() reaches all.",
)
class train_outermost_mode(_Trainer):
    def enter(self, model):
        model.training = True


@_trained(
    "review: the model is left frozen",
    "The model's parameters are not trained any more afterwards: leave "
    "requires_grad as it was.",
)
class train_freezes(_Trainer):
    def leave(self, model, was):
        super().leave(model, was)
        model.requires_grad_(False)


@_trained(
    "review: cfg changed",
    "You change cfg, which belongs to the caller: the next run with it would "
    "be another one.",
)
class train_changes_config(_Trainer):
    def __call__(self, model, data, cfg):
        losses = super().__call__(model, data, cfg)
        cfg.steps = 0
        return losses


# 5.10 load_gpt2

TO_HF = {
    "tok_embed": "wte",
    "pos_embed": "wpe",
    "blocks": "h",
    "ln1": "ln_1",
    "ln2": "ln_2",
    "qkv_proj": "c_attn",
    "out_proj": "c_proj",
    "fc1": "c_fc",
    "fc2": "c_proj",
}


class _Loader:
    """A right loader in pieces, each of which a mistake may override."""

    def clean(self, key):
        return key.removeprefix("transformer.")

    def skipped(self, key):
        return key == "lm_head.weight" or key.endswith(
            (".attn.bias", ".attn.masked_bias")
        )

    def state(self, source):
        return {
            self.clean(key): value
            for key, value in source.items()
            if not self.skipped(key)
        }

    def theirs(self, name):
        return ".".join(TO_HF.get(part, part) for part in name.split("."))

    def turned(self, key, value):
        return key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))

    def fill(self, parameter, value):
        with torch.no_grad():
            parameter.copy_(value)

    def named(self, model):
        return dict(model.named_parameters())

    def missing(self, key):
        raise KeyError(f"{key} is missing")

    def unknown(self, keys):
        raise KeyError(f"no place for {', '.join(keys)}")

    def __call__(self, model, source):
        state = self.state(source)
        for name, parameter in self.named(model).items():
            key = self.theirs(name)
            if key not in state:
                self.missing(key)
                continue
            value = state.pop(key)
            value = value.T if self.turned(key, value) else value
            self.fill(parameter, value)
        if state:
            self.unknown(state)


@oracle("load_gpt2", evidence="load_state_dict of a renamed dict, by regex")
def load_renamed(model, hf_state_dict):
    import re

    ours = {value: name for name, value in TO_HF.items() if name != "fc2"}
    own, made = model.state_dict(), {}
    for key, value in hf_state_dict.items():
        name = re.sub(r"^transformer\.", "", key)
        if re.search(r"\.attn\.(masked_)?bias$|^lm_head\.weight$", name):
            continue
        if re.search(r"\.c_\w+\.weight$", name):
            value = value.transpose(0, 1)
        name = name.replace("mlp.c_proj", "mlp.fc2")
        name = ".".join(ours.get(part, part) for part in name.split("."))
        if name not in own:
            raise KeyError(key)
        made[name] = value.to(own[name].dtype)
    for name, key in ((n, _Loader().theirs(n)) for n in own):
        if name not in made and name != "lm_head.weight":
            raise KeyError(key)
    made["lm_head.weight"] = made["tok_embed.weight"]
    model.load_state_dict(made)


@right("load_gpt2", evidence="one parameter after the other")
def load_pieces(model, hf_state_dict):
    _Loader()(model, hf_state_dict)


@right("load_gpt2", evidence="layer by layer, by attributes")
def load_by_layer(model, hf_state_dict):
    state = _Loader().state(hf_state_dict)

    def take(parameter, key, turn=False):
        value = state.pop(key)
        parameter.data.copy_(value.t() if turn else value)

    def norm(module, key):
        take(module.weight, f"{key}.weight")
        take(module.bias, f"{key}.bias")

    def conv(module, key):
        take(module.weight, f"{key}.weight", turn=True)
        take(module.bias, f"{key}.bias")

    take(model.tok_embed.weight, "wte.weight")
    take(model.pos_embed.weight, "wpe.weight")
    for i, block in enumerate(model.blocks):
        norm(block["ln1"], f"h.{i}.ln_1")
        conv(block["attn"]["qkv_proj"], f"h.{i}.attn.c_attn")
        conv(block["attn"]["out_proj"], f"h.{i}.attn.c_proj")
        norm(block["ln2"], f"h.{i}.ln_2")
        conv(block["mlp"]["fc1"], f"h.{i}.mlp.c_fc")
        conv(block["mlp"]["fc2"], f"h.{i}.mlp.c_proj")
    norm(model.ln_f, "ln_f")
    if state:
        raise KeyError(next(iter(state)))


@right("load_gpt2", evidence="a deep copy that is emptied; set of names first")
def load_copied(model, hf_state_dict):
    class Sets(_Loader):
        def __call__(self, model, source):
            source = copy.deepcopy(source)
            needed = {self.theirs(name) for name in self.named(model)}
            odd = needed ^ self.state(source).keys()
            if odd:
                raise KeyError(*sorted(odd))
            super().__call__(model, source)

    Sets()(model, hf_state_dict)


def _loaded(evidence, hint):
    def mark(kind):
        def answer(model, hf_state_dict):
            return kind()(model, hf_state_dict)

        answer.__name__ = kind.__name__
        return wrong("load_gpt2", evidence=evidence, hint=hint)(answer)

    return mark


@_loaded(
    "Conv1D not transposed, where it fits",
    "You transpose only where shapes do not fit otherwise. The square "
    "attn.c_proj fits either way and has to be transposed, too.",
)
class load_square_kept(_Loader):
    def turned(self, key, value):
        return super().turned(key, value) and (
            value.shape[0] != value.shape[1]
        )


@_loaded(
    "Conv1D not transposed at all",
    "You do not transpose the Conv1D weights: transformers stores (in, out), "
    "nn.Linear (out, in).",
)
class load_never_turned(_Loader):
    def turned(self, key, value):
        return False

    def fill(self, parameter, value):
        super().fill(parameter, value.reshape(parameter.shape))


@_loaded(
    "M238 nntile#402",
    "You transpose embeddings, too. Only c_attn, c_proj and c_fc are Conv1D.",
)
class load_all_turned(_Loader):
    def turned(self, key, value):
        return value.ndim == 2

    def fill(self, parameter, value):
        super().fill(parameter, value.reshape(parameter.shape))


@_loaded(
    "M241 matched by order",
    "You match parameters by their order. A dict may come in any order: match "
    "by name.",
)
class load_by_order(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        named = self.named(model)
        keys = [key for key in source if not self.skipped(key)]
        for (name, parameter), key in zip(named.items(), keys, strict=True):
            if self.theirs(name) != self.clean(key):
                value = source[key]
                if value.numel() == parameter.numel():
                    self.fill(parameter, value.reshape(parameter.shape))


@_loaded(
    "M242 slapo#46",
    "You reorder the rows of c_attn. Both sides keep q, then k, then v.",
)
class load_rows_reordered(_Loader):
    def fill(self, parameter, value):
        if len(value) % 9 == 0:
            value = value.roll(len(value) // 3, 0)
        super().fill(parameter, value)


@_loaded(
    "M244 transformers#3799",
    "The head is a Parameter of its own after loading. Leave it tied: fill "
    "the embedding in place.",
)
class load_unties(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        matrix = model.tok_embed.weight.detach().clone()
        model.lm_head.weight = nn.Parameter(matrix)


@_loaded(
    "M245 nanoGPT 2b9e1687",
    "Names without the prefix transformer. are not accepted. They come with "
    "it or without.",
)
class load_needs_prefix(_Loader):
    def clean(self, key):
        if key.startswith("transformer."):
            return super().clean(key)
        return f"?{key}"


@_loaded(
    "M245 prefix not stripped",
    "Names with the prefix transformer. are not accepted.",
)
class load_keeps_prefix(_Loader):
    def clean(self, key):
        return key


@_loaded(
    "M246 aliased",
    "You assign the dict's tensors themselves (.data = value), so training "
    "the model changes the dict. Copy the values.",
)
class load_aliases(_Loader):
    def fill(self, parameter, value):
        parameter.data = value.to(parameter.dtype)


@_loaded(
    "new Parameters",
    "You replace the model's parameters. An optimiser that holds the old ones "
    "would train them in vain: fill them in place.",
)
class load_replaces(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        for module in model.modules():
            for name, value in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(value.detach().clone()))
        model.lm_head.weight = model.tok_embed.weight


@_loaded(
    "the dict's dtype",
    "Parameters take over the dtype of the dict's tensors. The model keeps "
    "its own: copy values into the parameters.",
)
class load_other_dtype(_Loader):
    def fill(self, parameter, value):
        parameter.data = value.clone()


@_loaded(
    "frozen",
    "The parameters are no longer trained. Use torch.no_grad() for the copy, "
    "and leave requires_grad as it is.",
)
class load_freezes(_Loader):
    def fill(self, parameter, value):
        parameter.requires_grad_(False).copy_(value)


@_loaded(
    "the dict is emptied",
    "You pop names from the caller's dict. Work on a copy of the dict.",
)
class load_pops(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        for key in [key for key in source if not self.skipped(key)]:
            source.pop(key)


@_loaded(
    "the dict is transposed in place",
    "You transpose the dict's own tensors in place.",
)
class load_turns_source(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        for key in source:
            if self.turned(key, source[key]):
                source[key].t_()


@_loaded(
    "biases skipped with the masks",
    "You skip all names that end in bias under attn, the real c_attn.bias and "
    "c_proj.bias too. Only attn.bias itself and attn.masked_bias are masks.",
)
class load_skips_biases(_Loader):
    def skipped(self, key):
        return super().skipped(key) or (
            ".attn." in key and key.endswith("bias")
        )

    def missing(self, key):
        if not (".attn." in key and key.endswith("bias")):
            super().missing(key)


@_loaded(
    "layers of one digit",
    "Names of layers with two digits (h.10) are not recognised. GPT-2 small "
    "has twelve layers.",
)
class load_one_digit(_Loader):
    def skipped(self, key):
        layer = self.clean(key).split(".")[1]
        mask = key.endswith((".attn.bias", ".attn.masked_bias"))
        return super().skipped(key) and not (mask and len(layer) > 1)


@_loaded(
    "masks unknown",
    "The masks attn.bias and attn.masked_bias raise an error. They are in "
    "older files and are ignored.",
)
class load_refuses_masks(_Loader):
    def skipped(self, key):
        return key == "lm_head.weight"


@_loaded(
    "lm_head.weight required",
    "You ask for lm_head.weight. It may be missing: the head is the "
    "embedding.",
)
class load_needs_head(_Loader):
    def __call__(self, model, source):
        source["lm_head.weight"]
        super().__call__(model, source)


@_loaded(
    "lm_head.weight refused",
    "You refuse lm_head.weight. It is in the dict of a whole model, equal to "
    "the embedding, and there is nothing to do for it.",
)
class load_refuses_head(_Loader):
    def skipped(self, key):
        return key != "lm_head.weight" and super().skipped(key)


@_loaded(
    "missing names go unnoticed",
    "A name that the dict lacks is no KeyError with that name: perhaps the "
    "parameter stays as it was, without a word.",
)
class load_ignores_missing(_Loader):
    def missing(self, key):
        pass


@_loaded(
    "unknown names go unnoticed",
    "Names without a place in the model are ignored. They are a KeyError: "
    "the dict belongs to another model.",
)
class load_ignores_unknown(_Loader):
    def unknown(self, keys):
        pass


@_loaded(
    "another exception",
    "A wrong dict raises another exception than KeyError.",
)
class load_value_error(_Loader):
    def missing(self, key):
        raise ValueError(f"{key} is missing")

    def unknown(self, keys):
        raise ValueError(f"{', '.join(keys)} unknown")


@_loaded(
    "an exception without the name",
    "The KeyError does not say which name is meant.",
)
class load_nameless(_Loader):
    def missing(self, key):
        raise KeyError("a name is missing")

    def unknown(self, keys):
        raise KeyError("a name is unknown")


@_loaded(
    "the second layer gets the first's",
    "All layers get the weights of layer 0.",
)
class load_first_layer_only(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        for block in model.blocks:
            block.load_state_dict(model.blocks[0].state_dict())


@_loaded(
    "mlp.c_proj for attn.c_proj",
    "ln_1 and ln_2 are swapped: ln_1 stands before the attention.",
)
class load_norms_swapped(_Loader):
    def theirs(self, name):
        swap = {"ln1": "ln_2", "ln2": "ln_1"}
        return ".".join(
            swap.get(part, TO_HF.get(part, part)) for part in name.split(".")
        )


@_loaded(
    "review: model.eval() at the end, as from_pretrained does",
    "The model is in another mode, train or eval, than before. Leave it as "
    "it was.",
)
class load_leaves_eval(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        model.eval()


@_loaded(
    "review: the first name decides about the prefix",
    "You read off the prefix from the first name, which may be "
    "lm_head.weight: that one never has it. Names come in any order.",
)
class load_asks_first_name(_Loader):
    def state(self, source):
        prefix = next(iter(source)).startswith("transformer.")
        return {
            key.removeprefix("transformer.") if prefix else key: value
            for key, value in source.items()
            if not self.skipped(key)
        }


@_loaded(
    "review: our name in the message",
    "The KeyError of a missing name says it in the model's language. Say it "
    "in the dict's, or nobody finds it there.",
)
class load_says_our_name(_Loader):
    def missing(self, key):
        ours = {theirs: name for name, theirs in TO_HF.items()}
        parts = [ours.get(part, part) for part in key.split(".")]
        raise KeyError(".".join(parts))


@_loaded(
    "review: all of the head skipped",
    "You skip every name with lm_head. Only lm_head.weight is the embedding; "
    "a bias there has no place.",
)
class load_skips_head_names(_Loader):
    def skipped(self, key):
        return super().skipped(key) or key.startswith("lm_head.")


@_loaded(
    "review: a detour through float32",
    "The values go through float32 on their way and lose digits. Copy them "
    "as they are: copy_ converts to the parameter's dtype by itself.",
)
class load_through_float32(_Loader):
    def fill(self, parameter, value):
        super().fill(parameter, value.float())


@_loaded(
    "review: torch.set_grad_enabled(False), and no way back",
    "You switch gradients off for good: nothing can be trained afterwards. "
    "torch.no_grad() switches them on again at its end.",
)
class load_grad_left_off(_Loader):
    def __call__(self, model, source):
        super().__call__(model, source)
        torch.set_grad_enabled(False)


LEFT_OUT = {
    "M192": "cross-attention is lesson 4's",
    "M200": "gives what GPTViewHeads gives in kind",
    "M203": "GPTReLU and GPTLinearMLP stand for the activations",
    "M207": "SwiGLU is lesson 4's",
    "M208": "SwiGLU is lesson 4's",
    "M236": "no sampler here; train_short_batch stands for the kind",
    "M260": "no sums that equal p: the contract says so",
    "M285": "asserted by both properties of param_groups",
    "M289": "AdamW is the library's",
    "M294": "no validation in train",
    "M296": "no validation in train",
    "K48": "no norm is written here",
    "K55": "the contract hands over a GPTConfig",
    "K59": "the contract fixes the width of the logits",
    "K62": "weights are loaded in float64 everywhere",
    "K68": "equality does not occur",
    "K70": "the contract fixes tensors and lists",
}
