"""Other people's answers to lesson 4: the transformer block.

For each exercise: the oracle, right answers in unusual styles, and mistakes
that people make. M and K numbers name lines of the survey of mistakes. A
mistake overrides the one part of a right answer that it gets wrong.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autograder.answers import oracle, right, wrong


def _wide(x):
    """x in float32 or wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# 4.1 LayerNorm


class _LayerNorm(nn.Module):
    """A right layer norm in pieces."""

    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / ((c * c).mean(-1, keepdim=True) + self.eps).sqrt()

    def affine(self, x):
        y = x * self.weight.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def forward(self, x):
        return self.affine(self.normal(_wide(x))).to(x.dtype)


@oracle("LayerNorm", evidence="library call in float64")
class LayerNormLibrary(_LayerNorm):
    def forward(self, x):
        bias = None if self.bias is None else self.bias.double()
        return F.layer_norm(
            x.double(), x.shape[-1:], self.weight.double(), bias, self.eps
        ).to(x.dtype)


@right("LayerNorm", evidence="K47 norms and rsqrt")
class LayerNormByVector(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        size = torch.linalg.vector_norm(c, dim=-1, keepdim=True)
        return c * (size**2 / x.shape[-1] + self.eps).rsqrt()


@right("LayerNorm", evidence="var(correction=0), std_mean")
class LayerNormVarMean(_LayerNorm):
    def normal(self, x):
        var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps)


@right("LayerNorm", evidence="K34 einsum and a centring matrix")
class LayerNormCentring(_LayerNorm):
    def normal(self, x):
        d = x.shape[-1]
        centre = torch.eye(d, dtype=x.dtype) - 1 / d
        c = torch.einsum("...i,ij->...j", x, centre)
        return (
            c
            / (torch.einsum("...i,...i->...", c, c) / d + self.eps).sqrt()[
                ..., None
            ]
        )


@right("LayerNorm", evidence="K34 loops over rows")
class LayerNormLoops(_LayerNorm):
    def normal(self, x):
        rows = []
        for row in x.double().reshape(-1, x.shape[-1]):
            c = row - sum(row) / len(row)
            rows.append(c / (sum(c**2) / len(row) + self.eps) ** 0.5)
        return torch.stack(rows).reshape(x.shape).to(x.dtype)


# Shown by: small d; at d = 768 the factor is 0.9993.
@wrong(
    "LayerNorm",
    evidence="M168 annotated-transformer#119, #122",
    hint=(
        "You divide the squares by d − 1, as torch.var does unless told "
        "otherwise. A norm divides by d: these numbers are the whole row, "
        "not a sample of it."
    ),
)
class LayerNormUnbiased(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / (x.var(-1, keepdim=True) + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="M170 and M181, hyunwoongko#7",
    hint=(
        "eps is missing, or not where it belongs (added to the standard "
        "deviation, say). It is added to the variance, inside the root: for "
        "rows with a spread of 1e-3 that makes a factor."
    ),
)
class LayerNormEpsOutside(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / (
            (c * c).mean(-1, keepdim=True).add(1e-30).sqrt() + self.eps
        )


@wrong(
    "LayerNorm",
    evidence="M168 and M170 together, the annotated one",
    hint=(
        "You use x.std() + eps, which is off twice: torch's std divides by d "
        "− 1, and eps belongs to the variance, inside the root."
    ),
)
class LayerNormStd(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / (x.std(-1, keepdim=True) + self.eps)


@wrong(
    "LayerNorm",
    evidence="M170 root of the standard deviation",
    hint=(
        "You take the root twice: the deviations are divided by the root of "
        "the standard deviation, so ten times the input is not normalised to "
        "the same output."
    ),
)
class LayerNormRootTwice(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / ((c * c).mean(-1, keepdim=True) + self.eps) ** 0.25


@wrong(
    "LayerNorm",
    evidence="M171 131250208/TPlinker#37",
    hint=(
        "You divide by the variance instead of its root: the result shrinks "
        "when the input grows."
    ),
)
class LayerNormVariance(_LayerNorm):
    def normal(self, x):
        c = x - x.mean(-1, keepdim=True)
        return c / ((c * c).mean(-1, keepdim=True) + self.eps)


@wrong(
    "LayerNorm",
    evidence="M172, M200 common",
    hint=(
        "You take mean and variance along the axis before the last, over "
        "tokens instead of channels: one token's size then changes all "
        "others, and a later token leaks into earlier ones. Normalise each "
        "vector by itself."
    ),
)
class LayerNormOverTime(_LayerNorm):
    def normal(self, x):
        axis = -2 if x.ndim > 1 else -1
        c = x - x.mean(axis, keepdim=True)
        return c / ((c * c).mean(axis, keepdim=True) + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="M172 statistics over all axes",
    hint=(
        "You take one mean and one variance over the whole tensor, or over "
        "several of its axes, so tokens influence each other. Each vector "
        "along the last axis has its own."
    ),
)
class LayerNormOverAll(_LayerNorm):
    def normal(self, x):
        c = x - x.mean()
        return c / ((c * c).mean() + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="M173 never tested by mlab",
    hint=(
        "Your layer has a gain and a bias but never applies them. At the "
        "start they are 1 and 0, so this only shows after training."
    ),
)
class LayerNormNoAffine(_LayerNorm):
    def affine(self, x):
        return x


@wrong(
    "LayerNorm",
    evidence="M173 gain only",
    hint=(
        "You apply the gain but not the bias. It is 0 at the start, so this "
        "only shows after training."
    ),
)
class LayerNormNoBias(_LayerNorm):
    def affine(self, x):
        return x * self.weight.to(x.dtype)


@wrong(
    "LayerNorm",
    evidence="M173 order",
    hint=(
        "You add the bias before you multiply with the gain. The gain acts on "
        "the normalised row, then the bias is added."
    ),
)
class LayerNormBiasFirst(_LayerNorm):
    def affine(self, x):
        bias = 0 if self.bias is None else self.bias.to(x.dtype)
        return (x + bias) * self.weight.to(x.dtype)


@wrong(
    "LayerNorm",
    evidence="M174 common",
    hint=(
        "The gain of a new layer is not 1, or its bias not 0: before "
        "training a norm should normalise and do nothing else."
    ),
)
class LayerNormZeroGain(_LayerNorm):
    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__(d, eps, bias)
        nn.init.zeros_(self.weight)
        if bias:
            nn.init.ones_(self.bias)


@wrong(
    "LayerNorm",
    evidence="M175, gradient error 1.1",
    hint=(
        "Your output is right, but something on the way is detached or "
        "frozen (mean, variance or both, or a parameter), so the gradient "
        "takes it for a constant. Mean and variance depend on x: let "
        "gradients flow through everything."
    ),
)
class LayerNormDetached(_LayerNorm):
    def normal(self, x):
        mean = x.mean(-1, keepdim=True).detach()
        var = x.var(-1, correction=0, keepdim=True).detach()
        return (x - mean) / (var + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="M176 minimind#301",
    hint=(
        "You compute in half precision: the square of 1e4 overflows float16 "
        "and the result is 0 or NaN. Widen half inputs to float32, compute, "
        "and convert the result back."
    ),
)
class LayerNormHalf(_LayerNorm):
    def forward(self, x):
        return self.affine(self.normal(x))


@wrong(
    "LayerNorm",
    evidence="M051, curriculum's precision convention",
    hint=(
        "You convert every input to float32, so float64 loses half of its "
        "digits even if you convert back. Widen only what is narrower than "
        "float32."
    ),
)
class LayerNormFloat32(_LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


@wrong(
    "LayerNorm",
    evidence="precision: the way back forgotten",
    hint=(
        "Half-precision inputs come back as float32: convert the result to "
        "the input's dtype."
    ),
)
class LayerNormStaysWide(_LayerNorm):
    def forward(self, x):
        return self.affine(self.normal(_wide(x)))


@wrong(
    "LayerNorm",
    evidence="hard-coded eps; plausible",
    hint=(
        "You use a fixed eps, whatever is given to the class. Keep the "
        "argument and use it in forward."
    ),
)
class LayerNormFixedEps(_LayerNorm):
    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__(d, 1e-5, bias)


@wrong(
    "LayerNorm",
    evidence="RMSNorm's default taken over",
    hint=(
        "Your default for eps is not 1e-5. On rows with a small spread it "
        "decides the result."
    ),
)
class LayerNormOtherDefault(_LayerNorm):
    def __init__(self, d, eps=1e-6, bias=True):
        super().__init__(d, eps, bias)


@wrong(
    "LayerNorm",
    evidence="the flag's misuse; plausible",
    hint=(
        "With bias=False your layer still has a bias. Leave the parameter out "
        "(None is fine), or weights of a bias-free model cannot be loaded."
    ),
)
class LayerNormKeepsBias(_LayerNorm):
    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__(d, eps, True)


@wrong(
    "LayerNorm",
    evidence="K45 refused: fails where rows lie far from 0",
    hint=(
        "You compute the variance as mean(x²) − mean(x)². Far from 0 the two "
        "cancel and little is left of a small variance: subtract the mean "
        "first, then square."
    ),
)
class LayerNormMomentDifference(_LayerNorm):
    def normal(self, x):
        mean = x.mean(-1, keepdim=True)
        var = (x * x).mean(-1, keepdim=True) - mean**2
        return (x - mean) / (var.clamp(min=0) + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="A09 and K63 refused: other names",
    hint=(
        "Your parameters are called gamma and beta. The names weight and bias "
        "are part of the contract: they are the keys under which weights are "
        "stored, here and in PyTorch."
    ),
)
class LayerNormGammaBeta(nn.Module):
    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d))
        self.beta = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x):
        c = x - x.mean(-1, keepdim=True)
        y = c / ((c * c).mean(-1, keepdim=True) + self.eps).sqrt()
        return y * self.gamma + (0 if self.beta is None else self.beta)


@wrong(
    "LayerNorm",
    evidence="K46 refused: loaded gains mean themselves",
    hint=(
        "You multiply with 1 + weight. That is a legitimate way to store a "
        "gain, but here weight is the gain itself, starting at 1, as in "
        "PyTorch."
    ),
)
class LayerNormOnePlusGain(_LayerNorm):
    def __init__(self, d, eps=1e-5, bias=True):
        super().__init__(d, eps, bias)
        nn.init.zeros_(self.weight)

    def affine(self, x):
        y = x * (1 + self.weight.to(x.dtype))
        return y if self.bias is None else y + self.bias.to(x.dtype)


@wrong(
    "LayerNorm",
    evidence="RMSNorm instead; confusion",
    hint=(
        "You do not subtract the mean from the numerator: that is nearer to "
        "RMSNorm. A layer norm's rows have mean 0 before the gain."
    ),
)
class LayerNormNoMean(_LayerNorm):
    def normal(self, x):
        return x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()


@wrong(
    "LayerNorm",
    evidence="M011 in this exercise",
    hint=(
        "Your result is right, but you subtracted the mean in place, from the "
        "caller's tensor. The residual stream still needs it: make a new "
        "tensor."
    ),
)
class LayerNormInPlace(_LayerNorm):
    def forward(self, x):
        y = super().forward(x)
        x.data.sub_(x.data.mean(-1, keepdim=True))
        return y


@wrong(
    "LayerNorm",
    evidence="the flag half done; common",
    hint=(
        "With bias=False your forward still adds the bias, which is None. "
        "Add it only where there is one."
    ),
)
class LayerNormAddsNone(_LayerNorm):
    def affine(self, x):
        return x * self.weight.to(x.dtype) + self.bias.to(x.dtype)


# Shown by: half rows that lie far from 0.
@wrong(
    "LayerNorm",
    evidence="hunt: half until the square",
    hint=(
        "You take the mean, and subtract it, in half precision: near 1,000 "
        "float16 numbers are half a unit apart, so the mean of small "
        "differences is lost. Widen half inputs first, then compute."
    ),
)
class LayerNormHalfMean(_LayerNorm):
    def forward(self, x):
        c = _wide(x - x.mean(-1, keepdim=True))
        y = c / ((c * c).mean(-1, keepdim=True) + self.eps).sqrt()
        return self.affine(y).to(x.dtype)


# Shown by: bfloat16 rows that lie far from 0.
@wrong(
    "LayerNorm",
    evidence="hunt: if x.dtype == torch.float16",
    hint=(
        "You widen float16 only. bfloat16 has even fewer digits: near 1,000 "
        "its numbers are 4 apart, and a mean taken in it is lost."
    ),
)
class LayerNormWidensFloat16(_LayerNorm):
    def forward(self, x):
        y = x.float() if x.dtype == torch.float16 else x
        return self.affine(self.normal(y)).to(x.dtype)


# Shown by: a view whose leading axes are exchanged.
@wrong(
    "LayerNorm",
    evidence="hunt: x.view(-1, d)",
    hint=(
        "You flatten the leading axes with .view, which raises where x is a "
        "transposed view. Nothing has to be flattened: dim=-1 with "
        "keepdim=True works for any number of axes. (.reshape would do, too.)"
    ),
)
class LayerNormView(_LayerNorm):
    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1])).view(x.shape)


# Shown by: train mode.
@wrong(
    "LayerNorm",
    evidence="hunt: a batch norm's habit",
    hint=(
        "In train mode you take mean and variance over the whole batch, as a "
        "batch norm does. A layer norm treats each vector by itself in either "
        "mode."
    ),
)
class LayerNormTrainsOnBatch(_LayerNorm):
    def normal(self, x):
        if not self.training:
            return super().normal(x)
        c = x - x.mean()
        return c / ((c * c).mean() + self.eps).sqrt()


# Shown by: eps as the second argument.
@wrong(
    "LayerNorm",
    evidence="hunt: bias before eps, or eps behind a star",
    hint=(
        "The second argument of your class is not eps. Callers write "
        "LayerNorm(d, 0.1): keep the order d, eps, bias of the contract."
    ),
)
class LayerNormOtherOrder(_LayerNorm):
    def __init__(self, d, bias=True, eps=1e-5):
        super().__init__(d, eps, bias)


# 4.1 RMSNorm


class _RMSNorm(nn.Module):
    """A right RMS norm in pieces."""

    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))

    def normal(self, x):
        return x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()

    def affine(self, x):
        return x * self.weight.to(x.dtype)

    def forward(self, x):
        return self.affine(self.normal(_wide(x))).to(x.dtype)


@oracle("RMSNorm", evidence="library call in float64")
class RMSNormLibrary(_RMSNorm):
    def forward(self, x):
        return F.rms_norm(
            x.double(), x.shape[-1:], self.weight.double(), self.eps
        ).to(x.dtype)


@right("RMSNorm", evidence="K47 rsqrt")
class RMSNormRsqrt(_RMSNorm):
    def normal(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


@right("RMSNorm", evidence="K48 cast down before the gain, as Llama does")
class RMSNormLlama(_RMSNorm):
    def forward(self, x):
        return self.weight * self.normal(_wide(x)).to(x.dtype)


@right("RMSNorm", evidence="K34 einsum in float64")
class RMSNormEinsum(_RMSNorm):
    def forward(self, x):
        y = x.double()
        square = torch.einsum("...i,...i->...", y, y) / x.shape[-1]
        y = torch.einsum(
            "...i,...,i->...i",
            y,
            (square + self.eps) ** -0.5,
            self.weight.double(),
        )
        return y.to(x.dtype)


@wrong(
    "RMSNorm",
    evidence="M179 stanford-cs336/assignment1-basics#93",
    hint=(
        "You subtract the mean, which makes it a layer norm. RMSNorm leaves "
        "the mean where it is: adding 5 to a row changes its result."
    ),
)
class RMSNormSubtractsMean(_RMSNorm):
    def normal(self, x):
        return super().normal(x - x.mean(-1, keepdim=True))


@wrong(
    "RMSNorm",
    evidence="M179 divides by std",
    hint=(
        "You divide by the standard deviation, which measures from the mean. "
        "RMSNorm divides by the root of the mean square, measured from 0."
    ),
)
class RMSNormByStd(_RMSNorm):
    def normal(self, x):
        return x / (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M180 mosaicml/llm-foundry#371",
    hint=(
        "You multiply by the root mean square instead of dividing by it (or "
        "divide by its inverse, rsqrt): large rows become larger."
    ),
)
class RMSNormInverse(_RMSNorm):
    def normal(self, x):
        return x * ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M181 OLMo#281, TransformerEngine#364",
    hint=(
        "You add eps outside the root. It belongs to the mean square, inside: "
        "for rows of size 1e-4 the two differ by far."
    ),
)
class RMSNormEpsOutside(_RMSNorm):
    def normal(self, x):
        root = ((x * x).mean(-1, keepdim=True) + 1e-30).sqrt()
        return x / (root + self.eps)


@wrong(
    "RMSNorm",
    evidence="M182 common",
    hint=(
        "You divide by the length of the vector, the root of the sum of "
        "squares. The mean of the squares is due: a row of ones stays a row "
        "of ones."
    ),
)
class RMSNormSum(_RMSNorm):
    def normal(self, x):
        return x / ((x * x).sum(-1, keepdim=True) + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M185 coremltools#2822",
    hint=(
        "You divide by the largest entry first and add eps afterwards, so "
        "eps is measured in units of that entry: for small or spiky rows it "
        "means something else. Add eps to the mean square of x itself."
    ),
)
class RMSNormRescaled(_RMSNorm):
    def normal(self, x):
        top = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
        return super().normal(x / top)


@wrong(
    "RMSNorm",
    evidence="variance not under a root",
    hint=(
        "You divide by the mean square, without the root: ten times the input "
        "gives a tenth of the output."
    ),
)
class RMSNormNoRoot(_RMSNorm):
    def normal(self, x):
        return x / ((x * x).mean(-1, keepdim=True) + self.eps)


@wrong(
    "RMSNorm",
    evidence="mean absolute value; plausible",
    hint=(
        "You divide by the mean absolute value. The root of the mean square "
        "is due, which gives large entries more weight."
    ),
)
class RMSNormAbsolute(_RMSNorm):
    def normal(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps)


@wrong(
    "RMSNorm",
    evidence="M172 in this exercise",
    hint=(
        "You take the mean square over more than the last axis, so tokens "
        "influence each other. Each vector has its own."
    ),
)
class RMSNormOverAll(_RMSNorm):
    def normal(self, x):
        return x / ((x * x).mean() + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M172 over time",
    hint=(
        "You take the mean square along the axis before the last, over tokens "
        "instead of channels. Normalise each vector by itself."
    ),
)
class RMSNormOverTime(_RMSNorm):
    def normal(self, x):
        axis = -2 if x.ndim > 1 else -1
        return x / ((x * x).mean(axis, keepdim=True) + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M173 the lesson's rms_norm has no gain",
    hint=(
        "Your layer has a gain but never applies it. It is 1 at the start, so "
        "this only shows after training."
    ),
)
class RMSNormNoGain(_RMSNorm):
    def affine(self, x):
        return x


@wrong(
    "RMSNorm",
    evidence="M174 common",
    hint=(
        "The gain of a new layer is not 1. Before training a norm should "
        "normalise and do nothing else."
    ),
)
class RMSNormZeroGain(_RMSNorm):
    def __init__(self, d, eps=1e-6):
        super().__init__(d, eps)
        nn.init.zeros_(self.weight)


@wrong(
    "RMSNorm",
    evidence="M175 in this exercise",
    hint=(
        "Your output is right, but something on the way is detached or "
        "frozen (the mean square, or the gain), so the gradient takes it for "
        "a constant. Let gradients flow through everything."
    ),
)
class RMSNormDetached(_RMSNorm):
    def normal(self, x):
        square = (x * x).mean(-1, keepdim=True).detach()
        return x / (square + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="M176 minimind#301",
    hint=(
        "You compute in half precision: the square of 1e4 overflows float16 "
        "and the result is 0. Widen half inputs to float32, compute, and "
        "convert the result back."
    ),
)
class RMSNormHalf(_RMSNorm):
    def forward(self, x):
        return self.affine(self.normal(x))


@wrong(
    "RMSNorm",
    evidence="M051; Llama's own x.float()",
    hint=(
        "You convert every input to float32, so float64 loses half of its "
        "digits even if you convert back. Widen only what is narrower than "
        "float32."
    ),
)
class RMSNormFloat32(_RMSNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


@wrong(
    "RMSNorm",
    evidence="LayerNorm's default taken over",
    hint=(
        "Your default for eps is not 1e-6. On small rows it decides the "
        "result."
    ),
)
class RMSNormOtherDefault(_RMSNorm):
    def __init__(self, d, eps=1e-5):
        super().__init__(d, eps)


@wrong(
    "RMSNorm",
    evidence="hard-coded eps; plausible",
    hint=(
        "You use a fixed eps, whatever is given to the class. Keep the "
        "argument and use it in forward."
    ),
)
class RMSNormFixedEps(_RMSNorm):
    def __init__(self, d, eps=1e-6):
        super().__init__(d, 1e-6)


@wrong(
    "RMSNorm",
    evidence="LayerNorm's bias taken over",
    hint=("RMSNorm has no bias: its only parameter is weight."),
)
class RMSNormWithBias(_RMSNorm):
    def __init__(self, d, eps=1e-6):
        super().__init__(d, eps)
        self.bias = nn.Parameter(torch.zeros(d))

    def affine(self, x):
        return x * self.weight.to(x.dtype) + self.bias.to(x.dtype)


@wrong(
    "RMSNorm",
    evidence="M011 in this exercise",
    hint=(
        "Your result is right, but you changed the caller's tensor on the "
        "way. The residual stream still needs it: make a new tensor."
    ),
)
class RMSNormInPlace(_RMSNorm):
    def forward(self, x):
        y = super().forward(x)
        x.data.mul_(2)
        return y


@wrong(
    "RMSNorm",
    evidence="A09 and K63 refused: other names",
    hint=(
        "Your gain is not called weight, or has not the shape (d,). Name and "
        "shape are part of the contract: weights are stored under them, here "
        "and in PyTorch."
    ),
)
class RMSNormOtherName(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (
            F.rms_norm(_wide(x), x.shape[-1:], eps=self.eps).to(x.dtype)
            * self.scale
        )


# Shown by: a view whose leading axes are exchanged.
@wrong(
    "RMSNorm",
    evidence="hunt: x.view(-1, d)",
    hint=(
        "You flatten the leading axes with .view, which raises where x is a "
        "transposed view. Nothing has to be flattened: dim=-1 with "
        "keepdim=True works for any number of axes. (.reshape would do, too.)"
    ),
)
class RMSNormView(_RMSNorm):
    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1])).view(x.shape)


# Shown by: train mode.
@wrong(
    "RMSNorm",
    evidence="hunt: one mean square for the batch in training",
    hint=(
        "In train mode you take one mean square for the whole batch. Each "
        "vector has its own, in either mode."
    ),
)
class RMSNormTrainsOnBatch(_RMSNorm):
    def normal(self, x):
        if not self.training:
            return super().normal(x)
        return x / ((x * x).mean() + self.eps).sqrt()


@wrong(
    "RMSNorm",
    evidence="hunt: F.normalize(x, dim=-1) * d ** 0.5, a widespread form",
    hint=(
        "eps is missing: F.normalize knows it only as a lower limit of the "
        "length. It is added to the mean square, inside the root, which "
        "matters for small rows and with loaded weights."
    ),
)
class RMSNormNormalize(_RMSNorm):
    def normal(self, x):
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5


# 4.2 gelu


ROOT = math.sqrt(2 / math.pi)


def _form(approximate):
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}")
    return approximate


def _erf_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _tanh_gelu(x, root=ROOT, cubic=0.044715):
    return 0.5 * x * (1 + torch.tanh(root * (x + cubic * x**3)))


def _gelu(x, approximate, exact=_erf_gelu, tanh=_tanh_gelu):
    """GELU from two forms, in the dtype of x."""
    form = tanh if _form(approximate) == "tanh" else exact
    return form(_wide(x)).to(x.dtype)


@oracle("gelu", evidence="library call in float64")
def gelu_library(x, approximate="none"):
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}")
    return F.gelu(x.double(), approximate=approximate).to(x.dtype)


@right("gelu", evidence="the normal distribution's own function")
def gelu_ndtr(x, approximate="none"):
    return _gelu(x, approximate, lambda x: x * torch.special.ndtr(x))


@right("gelu", evidence="erfc, and tanh as a sigmoid")
def gelu_sigmoid_of_twice(x, approximate="none"):
    root = math.sqrt(8 / math.pi)
    return _gelu(
        x,
        approximate,
        lambda x: x * torch.erfc(-x * math.sqrt(0.5)) / 2,
        lambda x: x * torch.sigmoid(root * (x + 0.044715 * x * x * x)),
    )


@right("gelu", evidence="torch.distributions, in float64")
def gelu_distribution(x, approximate="none"):
    normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
    return _gelu(x.double(), approximate, lambda x: x * normal.cdf(x)).to(
        x.dtype
    )


@right("gelu", evidence="K30 scipy.special and a Function of its own")
def gelu_scipy(x, approximate="none"):
    from scipy import special

    if _form(approximate) == "tanh":
        return _tanh_gelu(_wide(x)).to(x.dtype)

    class Phi(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.from_numpy(
                np.asarray(special.ndtr(x.detach().double().numpy()))
            ).to(x.dtype)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    wide = _wide(x)
    return (wide * Phi.apply(wide)).to(x.dtype)


@wrong(
    "gelu",
    evidence="M204 mlx-embeddings#81, tvm#14814",
    hint=(
        "You always compute the tanh form. The exact form is the default; the "
        "two differ by up to 5e-4, enough to make a converted model's outputs "
        "drift."
    ),
)
def gelu_always_tanh(x, approximate="none"):
    return _gelu(x, approximate, _tanh_gelu)


@wrong(
    "gelu",
    evidence="M204 the reverse",
    hint=(
        'You always compute the exact form. approximate="tanh" asks for the '
        "tanh form, which GPT-2 was trained with."
    ),
)
def gelu_always_exact(x, approximate="none"):
    return _gelu(x, approximate, tanh=_erf_gelu)


@wrong(
    "gelu",
    evidence="not done yet; plausible",
    hint=(
        "You do not look at approximate: the tanh form is missing, and so is"
        " the ValueError for other values."
    ),
)
def gelu_ignores_approximate(x, approximate="none"):
    return _erf_gelu(_wide(x)).to(x.dtype)


@wrong(
    "gelu",
    evidence="the two values swapped; plausible",
    hint=(
        'Your two forms are swapped: "none" is the exact one, with the error '
        "function."
    ),
)
def gelu_swapped(x, approximate="none"):
    return _gelu(x, approximate, _tanh_gelu, _erf_gelu)


@wrong(
    "gelu",
    evidence="sigmoid form, error 2e-2",
    hint=(
        "You use x·σ(1.702 x), the roughest approximation, off by 0.02. The "
        "exact form needs the error function."
    ),
)
def gelu_sigmoid(x, approximate="none"):
    return _gelu(x, approximate, lambda x: x * torch.sigmoid(1.702 * x))


@wrong(
    "gelu",
    evidence="sigmoid form, approximate ignored",
    hint=(
        "You use x·σ(1.702 x) whatever approximate says. That is the "
        "roughest form, off by 0.02, and neither of the two: the exact one "
        "needs the error function, the other tanh."
    ),
)
def gelu_only_sigmoid(x, approximate="none"):
    return x * torch.sigmoid(1.702 * x)


@wrong(
    "gelu",
    evidence="facts.md: ReLU called GELU in 10/04",
    hint=(
        "That is a ReLU: it has a corner at 0 and no gradient below. GELU is "
        "smooth and slightly negative left of 0."
    ),
)
def gelu_relu(x, approximate="none"):
    return _gelu(x, approximate, torch.relu, torch.relu)


@wrong(
    "gelu",
    evidence="confusion with SiLU",
    hint=(
        "You weight x with the logistic function, which gives SiLU. GELU "
        "weights it with the normal distribution's."
    ),
)
def gelu_silu(x, approximate="none"):
    return _gelu(x, approximate, F.silu)


@wrong(
    "gelu",
    evidence="√2 forgotten; common",
    hint=(
        "You feed x itself to the error function. erf belongs to a normal "
        "distribution with variance ½, so x has to be divided by √2."
    ),
)
def gelu_erf_unscaled(x, approximate="none"):
    return _gelu(x, approximate, lambda x: x * 0.5 * (1 + torch.erf(x)))


@wrong(
    "gelu",
    evidence="factor ½ forgotten; common",
    hint=(
        "The factor ½ is missing: 1 + erf runs from 0 to 2, while the share "
        "of a distribution runs from 0 to 1."
    ),
)
def gelu_no_half(x, approximate="none"):
    return _gelu(
        x, approximate, lambda x: 2 * _erf_gelu(x), lambda x: 2 * _tanh_gelu(x)
    )


@wrong(
    "gelu",
    evidence="the distribution's function itself",
    hint=(
        "You return the share of the distribution, without multiplying by x: "
        "large inputs then give 1 instead of themselves."
    ),
)
def gelu_no_factor(x, approximate="none"):
    return _gelu(
        x, approximate, lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    )


@wrong(
    "gelu",
    evidence="constant copied with a slip",
    hint=(
        "A constant of your tanh form is off: the cubic term has 0.044715, "
        "the bracket √(2/π). A slip in the first passes unnoticed near 0 and "
        "shows around ±2.7."
    ),
)
def gelu_cubic_slip(x, approximate="none"):
    return _gelu(x, approximate, tanh=lambda x: _tanh_gelu(x, cubic=0.44715))


@wrong(
    "gelu",
    evidence="cubic term left out",
    hint=(
        "Your tanh form has no cubic term, or another one: inside the tanh "
        "stands √(2/π) times x + 0.044715 x³."
    ),
)
def gelu_no_cubic(x, approximate="none"):
    return _gelu(x, approximate, tanh=lambda x: _tanh_gelu(x, cubic=0.0))


@wrong(
    "gelu",
    evidence="the outer factor left out; plausible",
    hint=(
        "Inside the tanh the bracket x + 0.044715 x³ lacks its factor √(2/π)."
    ),
)
def gelu_no_outer_factor(x, approximate="none"):
    return _gelu(
        x,
        approximate,
        tanh=lambda x: x / 2 * (1 + torch.tanh(x + 0.044715 * x**3)),
    )


@wrong(
    "gelu",
    evidence="2/π without the root; plausible",
    hint=(
        "The factor in the tanh is 2/π. Its root is due: √(2/π), about 0.798."
    ),
)
def gelu_no_root(x, approximate="none"):
    return _gelu(x, approximate, tanh=lambda x: _tanh_gelu(x, ROOT**2))


@wrong(
    "gelu",
    evidence="√(2/π) mistaken; common",
    hint=(
        "The factor inside the tanh is √(2/π), about 0.798. Yours is another: "
        "check what stands under the root."
    ),
)
def gelu_wrong_root(x, approximate="none"):
    return _gelu(
        x,
        approximate,
        tanh=lambda x: _tanh_gelu(x, root=math.sqrt(2) / math.pi),
    )


@wrong(
    "gelu",
    evidence="cube of the scaled argument",
    hint=(
        "You scale x before you cube it. The factor √(2/π) stands outside the "
        "bracket x + 0.044715 x³."
    ),
)
def gelu_scales_before_cube(x, approximate="none"):
    def tanh(x):
        u = math.sqrt(2 / math.pi) * x
        return 0.5 * x * (1 + torch.tanh(u + 0.044715 * u**3))

    return _gelu(x, approximate, tanh=tanh)


@wrong(
    "gelu",
    evidence="tanh by exponentials",
    hint=(
        "You write tanh with exponentials, which overflow for large "
        "arguments: infinity divided by infinity is NaN. Use torch.tanh, or "
        "a sigmoid."
    ),
)
def gelu_tanh_overflows(x, approximate="none"):
    def tanh(x):
        u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        e = torch.exp(2 * u)
        return 0.5 * x * (1 + (e - 1) / (e + 1))

    return _gelu(x, approximate, tanh=tanh)


@wrong(
    "gelu",
    evidence="no check of the argument",
    hint=(
        "An unknown value of approximate does not raise a ValueError. If it "
        "is taken for one of the two forms, a typing mistake goes unnoticed."
    ),
)
def gelu_accepts_anything(x, approximate="none"):
    form = _tanh_gelu if approximate == "tanh" else _erf_gelu
    return form(_wide(x)).to(x.dtype)


@wrong(
    "gelu",
    evidence="M051 in this exercise",
    hint=(
        "You convert every input to float32, so float64 loses half of its "
        "digits even if you convert back. Widen only what is narrower than "
        "float32."
    ),
)
def gelu_float32(x, approximate="none"):
    return _gelu(x.float(), approximate).to(x.dtype)


@wrong(
    "gelu",
    evidence="M176 in this exercise",
    hint=(
        "You compute in half precision, where each step rounds to 3 digits, "
        "and 1 plus the error function keeps none of them for x far below "
        "0. Widen half inputs to float32 and "
        "convert the result back."
    ),
)
def gelu_half(x, approximate="none"):
    form = _tanh_gelu if _form(approximate) == "tanh" else _erf_gelu
    return form(x)


@wrong(
    "gelu",
    evidence="M011 in this exercise",
    hint=(
        "Your result is right, but you wrote it into the caller's tensor. "
        "Make a new one."
    ),
)
def gelu_in_place(x, approximate="none"):
    y = _gelu(x, approximate)
    x.data.copy_(y.data)
    return y


@wrong(
    "gelu",
    evidence="numbers taken out of the graph",
    hint=(
        "No gradient flows, or only a part of it: the computation leaves "
        "torch, or detaches, on the way. Stay with torch operations on x "
        "itself."
    ),
)
def gelu_detached(x, approximate="none"):
    return _gelu(x.detach(), approximate)


@wrong(
    "gelu",
    evidence="hunt: quick GELU taken for the approximate form",
    hint=(
        'For approximate="tanh" you use x·σ(1.702 x), which is another and '
        "rougher approximation. The contract gives the formula with tanh."
    ),
)
def gelu_quick_for_tanh(x, approximate="none"):
    return _gelu(x, approximate, tanh=lambda x: x * torch.sigmoid(1.702 * x))


# Shown by: gradients far below 0, in the tanh form.
@wrong(
    "gelu",
    evidence="hunt: x / (1 + exp(−2u)), a tanh as a sigmoid by hand",
    hint=(
        "Far below 0 your exponential is infinite. The result is still 0, "
        "but the gradient is infinity times 0, a NaN. torch.tanh and "
        "torch.sigmoid are safe."
    ),
)
def gelu_gradient_overflows(x, approximate="none"):
    def tanh(x):
        u = ROOT * (x + 0.044715 * x**3)
        return x / (1 + torch.exp(-2 * u))

    return _gelu(x, approximate, tanh=tanh)


# Shown by: a transposed view.
@wrong(
    "gelu",
    evidence="hunt: x.view(-1)",
    hint=(
        "You flatten with .view, which raises where x is a transposed view. "
        "GELU acts number by number: nothing has to be flattened."
    ),
)
def gelu_view(x, approximate="none"):
    return _gelu(x.view(-1), approximate).view(x.shape)


# Shown by: other spellings, and None.
@wrong(
    "gelu",
    evidence="hunt: approximate.lower(), or None for none",
    hint=(
        "You accept another spelling, or None. The contract names the two "
        'strings "none" and "tanh"; any other value is a ValueError.'
    ),
)
def gelu_lenient(x, approximate="none"):
    return _gelu(x, str(approximate).lower())


# Shown by: bfloat16 far below 0.
@wrong(
    "gelu",
    evidence="hunt: if x.dtype == torch.float16",
    hint=(
        "You widen float16 only. bfloat16 has even fewer digits, and 1 plus "
        "the error function keeps none of them for x far below 0."
    ),
)
def gelu_widens_float16(x, approximate="none"):
    form = _tanh_gelu if _form(approximate) == "tanh" else _erf_gelu
    y = x.float() if x.dtype == torch.float16 else x
    return form(y).to(x.dtype)


# 4.2 SwiGLU


class _SwiGLU(nn.Module):
    """A right SwiGLU in pieces."""

    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__()
        if d_ff is None:
            d_ff = self.width(d_model, multiple_of)
        else:
            d_ff = self.given(d_ff, multiple_of)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def width(self, d_model, multiple_of):
        width = 8 * d_model // 3
        return (width + multiple_of - 1) // multiple_of * multiple_of

    def given(self, d_ff, multiple_of):
        return d_ff

    def hidden(self, gate, up):
        return F.silu(gate) * up

    def forward(self, x):
        return self.down_proj(self.hidden(self.gate_proj(x), self.up_proj(x)))


@oracle("SwiGLU", evidence="einsum and exp; the width by counting up")
class SwiGLUEinsum(_SwiGLU):
    def width(self, d_model, multiple_of):
        width = multiple_of
        while width < 8 * d_model // 3:
            width += multiple_of
        return width

    def forward(self, x):
        gate = torch.einsum("...i,ji->...j", x, self.gate_proj.weight)
        up = torch.einsum("...i,ji->...j", x, self.up_proj.weight)
        return torch.einsum(
            "...j,ij->...i",
            gate / (1 + (-gate).exp()) * up,
            self.down_proj.weight,
        )


@right("SwiGLU", evidence="curriculum 4.2: transformers' LlamaMLP itself")
class SwiGLULlama(nn.Module):
    def __new__(cls, d_model, d_ff=None, multiple_of=64):
        import types

        from transformers.models.llama.modeling_llama import LlamaMLP

        width = d_ff or math.ceil((8 * d_model // 3) / multiple_of) * (
            multiple_of
        )
        return LlamaMLP(
            types.SimpleNamespace(
                hidden_size=d_model,
                intermediate_size=width,
                mlp_bias=False,
                hidden_act="silu",
            )
        )


@right("SwiGLU", evidence="one product with both matrices joined")
class SwiGLUJoined(_SwiGLU):
    def forward(self, x):
        both = torch.cat([self.gate_proj.weight, self.up_proj.weight])
        gate, up = (x @ both.T).chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up) @ self.down_proj.weight.T


@right("SwiGLU", evidence="K63 bare parameters in modules of their own")
class SwiGLUBare(nn.Module):
    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__()
        width = -(-(8 * d_model // 3) // multiple_of) * multiple_of
        width = width if d_ff is None else d_ff
        for name, shape in [
            ("gate_proj", (width, d_model)),
            ("up_proj", (width, d_model)),
            ("down_proj", (d_model, width)),
        ]:
            holder = nn.Module()
            holder.weight = nn.Parameter(torch.randn(shape) / shape[1] ** 0.5)
            setattr(self, name, holder)

    def forward(self, x):
        gate = x @ self.gate_proj.weight.T
        up = self.up_proj.weight @ x.unsqueeze(-1)
        return F.linear(up.squeeze(-1) * F.silu(gate), self.down_proj.weight)


@wrong(
    "SwiGLU",
    evidence="M207 Nijikadesu/breakdown-minimind#3",
    hint=(
        "SiLU acts on the product of gate and up. It belongs to the gate "
        "alone; the up projection stays linear."
    ),
)
class SwiGLUOfProduct(_SwiGLU):
    def hidden(self, gate, up):
        return F.silu(gate * up)


@wrong(
    "SwiGLU",
    evidence="gate and up swapped; common",
    hint=(
        "SiLU acts on the up projection instead of the gate: the two matrices "
        "have changed places. With random weights all looks well, with loaded "
        "ones nothing fits."
    ),
)
class SwiGLUSwapped(_SwiGLU):
    def hidden(self, gate, up):
        return gate * F.silu(up)


@wrong(
    "SwiGLU",
    evidence="M208 google-research/timesfm#493",
    hint=(
        "There is no gate: the up projection is never used (or the gate is), "
        "so it is an ordinary MLP with SiLU. Gate and up projection multiply "
        "each other, entry by entry."
    ),
)
class SwiGLUNoGate(_SwiGLU):
    def hidden(self, gate, up):
        return F.silu(gate)


@wrong(
    "SwiGLU",
    evidence="M202 in this exercise",
    hint=(
        "There is no activation: gate times up is a product of two linear "
        "maps. SiLU acts on the gate."
    ),
)
class SwiGLUBilinear(_SwiGLU):
    def hidden(self, gate, up):
        return gate * up


@wrong(
    "SwiGLU",
    evidence="GLU instead of SwiGLU",
    hint=(
        "You use the sigmoid of the gate, which is the original GLU. SwiGLU "
        "uses SiLU: the gate times its sigmoid."
    ),
)
class SwiGLUSigmoid(_SwiGLU):
    def hidden(self, gate, up):
        return torch.sigmoid(gate) * up


@wrong(
    "SwiGLU",
    evidence="GEGLU instead of SwiGLU",
    hint=("You use GELU on the gate, which gives GEGLU. SwiGLU uses SiLU."),
)
class SwiGLUGelu(_SwiGLU):
    def hidden(self, gate, up):
        return F.gelu(gate) * up


@wrong(
    "SwiGLU",
    evidence="ReGLU instead of SwiGLU",
    hint=(
        "You use ReLU on the gate, which gives ReGLU. SwiGLU uses SiLU, "
        "which is smooth."
    ),
)
class SwiGLURelu(_SwiGLU):
    def hidden(self, gate, up):
        return F.relu(gate) * up


@wrong(
    "SwiGLU",
    evidence="sum for product; plausible",
    hint=(
        "You add the up projection to the gate. A gate multiplies: where it "
        "is 0, nothing passes."
    ),
)
class SwiGLUAdds(_SwiGLU):
    def hidden(self, gate, up):
        return F.silu(gate) + up


@wrong(
    "SwiGLU",
    evidence="both activated; plausible",
    hint=(
        "SiLU acts on gate and up projection alike. It belongs to the gate "
        "alone; the up projection stays linear."
    ),
)
class SwiGLUBoth(_SwiGLU):
    def hidden(self, gate, up):
        return F.silu(gate) * F.silu(up)


@wrong(
    "SwiGLU",
    evidence="M203 in this exercise",
    hint=(
        "There is a second activation after the down projection, so the "
        "outputs are bounded below. The down projection comes last, and is "
        "linear."
    ),
)
class SwiGLUActivatesLast(_SwiGLU):
    def forward(self, x):
        return F.silu(super().forward(x))


@wrong(
    "SwiGLU",
    evidence="M201 the 8/3 rule not applied",
    hint=(
        "Your default width is 4·d_model. With three matrices instead of "
        "two, ⌊8·d_model/3⌋ keeps the number of parameters where it was, "
        "rounded up to the multiple."
    ),
)
class SwiGLUFourTimes(_SwiGLU):
    def width(self, d_model, multiple_of):
        return -(-4 * d_model // multiple_of) * multiple_of


@wrong(
    "SwiGLU",
    evidence="rounded down; Megatron-LLM#64's kind",
    hint=(
        "You round the default width down to the multiple. Round up: 4096 "
        "with multiple_of 256 gives 11008, as in Llama."
    ),
)
class SwiGLURoundsDown(_SwiGLU):
    def width(self, d_model, multiple_of):
        return max(1, 8 * d_model // 3 // multiple_of) * multiple_of


@wrong(
    "SwiGLU",
    evidence="a step too far; plausible",
    hint=(
        "A width that is a multiple already is rounded up to the next one. "
        "Rounding up leaves multiples where they are."
    ),
)
class SwiGLUOneTooMany(_SwiGLU):
    def width(self, d_model, multiple_of):
        return (8 * d_model // 3 // multiple_of + 1) * multiple_of


@wrong(
    "SwiGLU",
    evidence="math.ceil of 8d/3; plausible",
    hint=(
        "You round up from 8·d_model/3 itself. Its whole part is taken "
        "first: where that is a multiple already, the fraction must not cost"
        " another one."
    ),
)
class SwiGLUCeiling(_SwiGLU):
    def width(self, d_model, multiple_of):
        return math.ceil(8 * d_model / 3 / multiple_of) * multiple_of


@wrong(
    "SwiGLU",
    evidence="multiple_of not used",
    hint=(
        "You do not round the default width to a multiple of multiple_of. "
        "Such widths suit the hardware; here they decide whether weights fit."
    ),
)
class SwiGLUNotRounded(_SwiGLU):
    def width(self, d_model, multiple_of):
        return 8 * d_model // 3


@wrong(
    "SwiGLU",
    evidence="multiple_of fixed at 64",
    hint=("You always round to a multiple of 64, whatever multiple_of says."),
)
class SwiGLUFixedMultiple(_SwiGLU):
    def width(self, d_model, multiple_of):
        return super().width(d_model, 64)


@wrong(
    "SwiGLU",
    evidence="Llama's own hidden_dim rule applied to d_ff",
    hint=(
        "You round a d_ff that is given. It is taken as it is; the rule is "
        "for the default only."
    ),
)
class SwiGLURoundsGiven(_SwiGLU):
    def given(self, d_ff, multiple_of):
        return -(-d_ff // multiple_of) * multiple_of


@wrong(
    "SwiGLU",
    evidence="nn.Linear's default bias",
    hint=(
        "Your projections have biases, nn.Linear's default. SwiGLU has none."
    ),
)
class SwiGLUBiased(_SwiGLU):
    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__(d_model, d_ff, multiple_of)
        for one in (self.gate_proj, self.up_proj, self.down_proj):
            one.bias = nn.Parameter(torch.zeros(len(one.weight)))


@wrong(
    "SwiGLU",
    evidence="K63 refused: w1, w2, w3 as in Meta's Llama",
    hint=(
        "Your matrices are called w1, w2 and w3. The names gate_proj, "
        "up_proj and down_proj are part of the contract, so that weights can "
        "be loaded by name."
    ),
)
class SwiGLUOtherNames(nn.Module):
    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__()
        width = d_ff or -(-(8 * d_model // 3) // multiple_of) * multiple_of
        self.w1 = nn.Linear(d_model, width, bias=False)
        self.w2 = nn.Linear(width, d_model, bias=False)
        self.w3 = nn.Linear(d_model, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


# Shown by: the initial values only.
@wrong(
    "SwiGLU",
    evidence="M197 pytorch#86274",
    hint=(
        "up_proj is a copy of gate_proj, so both start with the same weights. "
        "Make each layer anew."
    ),
)
class SwiGLUCopied(_SwiGLU):
    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__(d_model, d_ff, multiple_of)
        self.up_proj.load_state_dict(self.gate_proj.state_dict())


# Shown by: gradients only.
@wrong(
    "SwiGLU",
    evidence="M175's kind",
    hint=(
        "Your output is right, but something on the way is detached (the "
        "gate, say), so neither its matrix nor x learns through it."
    ),
)
class SwiGLUDetachedGate(_SwiGLU):
    def hidden(self, gate, up):
        return F.silu(gate).detach() * up


@wrong(
    "SwiGLU",
    evidence="M086 gate and up made one module",
    hint=(
        "gate_proj and up_proj are one and the same layer, so a third of the "
        "parameters is missing and the gate cannot differ from what it gates. "
        "Make each layer anew."
    ),
)
class SwiGLUShared(_SwiGLU):
    def __init__(self, d_model, d_ff=None, multiple_of=64):
        super().__init__(d_model, d_ff, multiple_of)
        self.up_proj = self.gate_proj


# Shown by: gates in the thousands.
@wrong(
    "SwiGLU",
    evidence="hunt: exp(u) / (1 + exp(u))",
    hint=(
        "Your sigmoid is exp(u) / (1 + exp(u)): for large u that is infinity "
        "by infinity, a NaN. 1 / (1 + exp(−u)), torch.sigmoid or F.silu do "
        "not overflow there."
    ),
)
class SwiGLUOverflows(_SwiGLU):
    def hidden(self, gate, up):
        e = gate.exp()
        return gate * e / (1 + e) * up


# Shown by: train mode.
@wrong(
    "SwiGLU",
    evidence="hunt: a dropout of 0.1 from another MLP",
    hint=(
        "In train mode something is dropped. This MLP has no dropout: the "
        "result is the same in either mode."
    ),
)
class SwiGLUDrops(_SwiGLU):
    def hidden(self, gate, up):
        return F.dropout(super().hidden(gate, up), 0.1, self.training)


# Shown by: a view whose leading axes are exchanged.
@wrong(
    "SwiGLU",
    evidence="hunt: x.view(-1, d_model)",
    hint=(
        "You flatten the leading axes with .view, which raises where x is a "
        "transposed view. A linear layer takes any number of leading axes. "
        "(.reshape would do, too.)"
    ),
)
class SwiGLUView(_SwiGLU):
    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1])).view(x.shape)


# 4.3, 4.5, 4.7: a right block in pieces


def _linears(**shapes):
    """A module with a linear layer of each name."""
    return nn.ModuleDict(
        {
            name: nn.Linear(*shape[:2], bias=shape[2])
            for name, shape in shapes.items()
        }
    )


def _weights(scores, keep):
    """Softmax over the visible keys; rows without one give zeros."""
    if keep is None:
        return scores.softmax(-1)
    hidden = scores.masked_fill(~keep, -math.inf)
    dead = ~keep.any(-1, keepdim=True)
    return hidden.masked_fill(dead, 0).softmax(-1).masked_fill(~keep, 0)


class _Attends(nn.Module):
    """What all blocks share: heads, attention, MLP."""

    eps, p = 1e-5, 0.0

    def scale(self, d_head):
        return 1 / math.sqrt(d_head)

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(-3, -2)

    def merge(self, x):
        return x.transpose(-3, -2).flatten(-2)

    def qkv(self, x):
        return self.attn["qkv_proj"](x).chunk(3, dim=-1)

    def weights(self, scores, keep):
        return _weights(scores, keep)

    def drop(self, x):
        return F.dropout(x, self.p, self.training)

    def drop_weights(self, weights):
        return self.drop(weights)

    def mix(self, q, k, v, keep):
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = q @ k.transpose(-2, -1) * self.scale(q.shape[-1])
        if keep is not None:
            keep = keep.expand(scores.shape)
        weights = self.drop_weights(self.weights(scores, keep))
        return self.merge(weights @ v)

    def activate(self, x):
        return F.gelu(x)

    def hidden(self, x):
        return self.activate(self.mlp["fc1"](x))

    def feed(self, x):
        return self.drop(self.mlp["fc2"](self.hidden(x)))


class _Block(_Attends):
    """A right transformer block in pieces."""

    def __init__(
        self,
        d_model,
        n_heads,
        *,
        max_context_length=1024,
        mlp_expansion=4,
        dropout=0.0,
        norm_first=True,
        bias=True,
        gelu="none",
    ):
        super().__init__()
        self.n_heads, self.longest = n_heads, max_context_length
        self.p, self.norm_first, self.form = dropout, norm_first, gelu
        wide = self.wide(d_model, mlp_expansion)
        self.ln1 = nn.LayerNorm(d_model, eps=self.eps, bias=bias)
        self.attn = _linears(
            qkv_proj=(d_model, 3 * d_model, bias),
            out_proj=(d_model, d_model, bias),
        )
        self.ln2 = nn.LayerNorm(d_model, eps=self.eps, bias=bias)
        self.mlp = _linears(
            fc1=(d_model, wide, bias), fc2=(wide, d_model, bias)
        )

    def wide(self, d_model, mlp_expansion):
        return mlp_expansion * d_model

    def activate(self, x):
        return F.gelu(x, approximate=self.form)

    def causal(self, T):
        place = self.ln1.weight.device
        return torch.ones(T, T, dtype=torch.bool, device=place).tril()

    def project(self, x):
        return self.drop(self.attn["out_proj"](x))

    def attend(self, x):
        return self.project(self.mix(*self.qkv(x), self.causal(x.shape[1])))

    def check(self, T):
        if T > self.longest:
            raise ValueError(f"{T} tokens exceed {self.longest}")

    def pre(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.feed(self.ln2(x))

    def post(self, x):
        x = self.ln1(x + self.attend(x))
        return self.ln2(x + self.feed(x))

    def forward(self, x):
        self.check(x.shape[1])
        return self.pre(x) if self.norm_first else self.post(x)


def _torch_layer(block, d_model, n_heads, wide, gelu):
    """PyTorch's encoder layer with a block's weights, as a function."""
    own = dict(block.named_parameters())
    layer = nn.TransformerEncoderLayer(
        d_model,
        n_heads,
        wide,
        block.p,
        lambda x: F.gelu(x, approximate=gelu),
        block.eps,
        True,
        block.norm_first,
        bias="ln1.bias" in own,
    )
    # The library also drops hidden units, which the contract does not.
    layer.dropout = nn.Identity()
    layer.train(block.training)
    names = {
        "ln1": "norm1",
        "ln2": "norm2",
        "mlp.fc1": "linear1",
        "mlp.fc2": "linear2",
        "attn.out_proj": "self_attn.out_proj",
    }
    theirs = {}
    for name, value in own.items():
        stem, kind = name.rsplit(".", 1)
        theirs[
            f"{names[stem]}.{kind}"
            if stem in names
            else f"self_attn.in_proj_{kind}"
        ] = value
    return lambda *args, **how: torch.func.functional_call(
        layer, theirs, args, how
    )


@oracle(
    "TransformerBlock",
    evidence="nn.TransformerEncoderLayer with a "
    "causal mask and the block's weights",
)
class BlockLibrary(_Block):
    def forward(self, x):
        self.check(x.shape[1])
        D, T = x.shape[-1], x.shape[1]
        call = _torch_layer(
            self, D, self.n_heads, len(self.mlp["fc1"].weight), self.form
        )
        return call(x, ~self.causal(T), is_causal=False)


@right(
    "TransformerBlock",
    evidence="K26 multi_head_attention_forward with the block's weights",
)
class BlockFunctionalMHA(_Block):
    def attend(self, x):
        y = x.transpose(0, 1)
        qkv, out = self.attn["qkv_proj"], self.attn["out_proj"]
        y, _ = F.multi_head_attention_forward(
            y,
            y,
            y,
            x.shape[-1],
            self.n_heads,
            qkv.weight,
            qkv.bias,
            None,
            None,
            False,
            self.p if self.training else 0.0,
            out.weight,
            out.bias,
            training=self.training,
            need_weights=False,
            attn_mask=~self.causal(x.shape[1]),
        )
        return self.drop(y.transpose(0, 1))


@right(
    "TransformerBlock",
    evidence="K02 einsum; K22 heads first; K08 an additive mask of −inf",
)
class BlockEinsum(_Block):
    def mix(self, q, k, v, keep):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (q, k, v))
        scores = torch.einsum("bihd,bjhd->hbij", q, k) / q.shape[-1] ** 0.5
        future = torch.full_like(scores[0, 0], -math.inf).triu(1)
        scores = scores + future
        weights = self.drop(torch.softmax(scores, -1))
        return torch.einsum("hbij,bjhd->bihd", weights, v).flatten(2)


@right(
    "TransformerBlock",
    evidence="K03 a loop over heads; K23 a sum of out-projections a head",
)
class BlockLoops(_Block):
    def attend(self, x):
        D = x.shape[-1]
        size = D // self.n_heads
        out, q_k_v = self.attn["out_proj"], self.qkv(x)
        y = 0 if out.bias is None else out.bias
        for h in range(self.n_heads):
            part = slice(h * size, (h + 1) * size)
            q, k, v = (t[..., part] for t in q_k_v)
            mixed = F.scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                dropout_p=self.p if self.training else 0.0,
            )
            y = y + mixed @ out.weight[:, part].T
        return self.drop(y)


@right("TransformerBlock", evidence="K50 1x1 convolutions; K52 rebinding")
class BlockConvolutions(_Block):
    def feed(self, x):
        y = x.mT
        for name in ("fc1", "fc2"):
            layer = self.mlp[name]
            y = F.conv1d(y, layer.weight[..., None], layer.bias)
            y = self.activate(y) if name == "fc1" else y
        return self.drop(y.mT)

    def pre(self, x):
        residual = x
        x = self.ln1(x)
        x = residual + self.attend(x)
        residual = x
        return residual + self.feed(self.ln2(x))


@right(
    "TransformerBlock",
    evidence="K60 a mask buffer that is saved; nn."
    "Dropout modules; a sum made in place "
    "in a tensor of its own",
)
class BlockBuffered(_Block):
    def __init__(self, d_model, n_heads, *, max_context_length=1024, **how):
        super().__init__(
            d_model, n_heads, max_context_length=max_context_length, **how
        )
        self.register_buffer(
            "mask",
            torch.ones(
                max_context_length, max_context_length, dtype=torch.bool
            ).tril(),
        )
        self.dropout = nn.Dropout(self.p)

    def drop(self, x):
        return self.dropout(x)

    def causal(self, T):
        return self.mask[:T, :T]

    def pre(self, x):
        y = self.attend(self.ln1(x))
        y += x
        z = self.feed(self.ln2(y))
        z += y
        return z


def _block(evidence, hint):
    return wrong("TransformerBlock", evidence=evidence, hint=hint)


@_block(
    "M186 annotated-transformer#1, minGPT#52",
    (
        "Your block is post-LN whatever norm_first says: the norms act on "
        "the sum. In a pre-LN block, the default, each norm stands at the "
        "entrance of its branch and the stream passes unnormalised."
    ),
)
class BlockAlwaysPost(_Block):
    def pre(self, x):
        return self.post(x)


@_block(
    "M186 the reverse; norm_first ignored",
    (
        "Your block is pre-LN whatever norm_first says. With norm_first=False "
        "each norm acts on the sum of the stream and its branch."
    ),
)
class BlockAlwaysPre(_Block):
    def post(self, x):
        return self.pre(x)


@_block(
    "norm_first the wrong way round",
    ("norm_first is the wrong way round: True, the default, is pre-LN."),
)
class BlockOrderSwapped(_Block):
    def forward(self, x):
        self.check(x.shape[1])
        return self.post(x) if self.norm_first else self.pre(x)


@_block(
    "norms on the branch's output; plausible",
    (
        "Your norms stand at the exit of each branch. In a pre-LN block they "
        "stand at its entrance: norm, then attention, then add."
    ),
)
class BlockNormsBranchOutput(_Block):
    def pre(self, x):
        x = x + self.ln1(self.attend(x))
        return x + self.ln2(self.feed(x))


@_block(
    "norm on the branch for post-LN; plausible",
    (
        "With norm_first=False your norms act on what the branches return. "
        "In a post-LN block they act on the sum: add first, then norm, so "
        "that what leaves the block is normed."
    ),
)
class BlockPostNormsBranch(_Block):
    def post(self, x):
        x = x + self.ln1(self.attend(x))
        return x + self.ln2(self.feed(x))


@_block(
    "one norm left out of post-LN; plausible",
    (
        "With norm_first=False the first sum is not normed: it is ln1 of the "
        "stream plus what attention returns."
    ),
)
class BlockPostNoFirstNorm(_Block):
    def post(self, x):
        x = x + self.attend(x)
        return self.ln2(x + self.feed(x))


@_block(
    "one norm left out of post-LN; plausible",
    (
        "With norm_first=False the second sum is not normed: a post-LN block "
        "ends with ln2 of the stream plus what the MLP returns."
    ),
)
class BlockPostNoSecondNorm(_Block):
    def post(self, x):
        x = self.ln1(x + self.attend(x))
        return x + self.feed(x)


@_block(
    "one residual left out of post-LN; plausible",
    (
        "With norm_first=False attention replaces the stream: ln1 acts on "
        "the sum of the two."
    ),
)
class BlockPostNoFirstResidual(_Block):
    def post(self, x):
        x = self.ln1(self.attend(x))
        return self.ln2(x + self.feed(x))


@_block(
    "one residual left out of post-LN; plausible",
    (
        "With norm_first=False the MLP replaces the stream: ln2 acts on the "
        "sum of the two."
    ),
)
class BlockPostNoSecondResidual(_Block):
    def post(self, x):
        x = self.ln1(x + self.attend(x))
        return self.ln2(self.feed(x))


@_block(
    "curriculum 4.3: missing residual",
    (
        "Your block has no residual connections: each branch replaces the "
        "stream instead of adding to it, so nothing of the input survives a "
        "deep stack."
    ),
)
class BlockNoResiduals(_Block):
    def pre(self, x):
        return self.feed(self.ln2(self.attend(self.ln1(x))))

    def post(self, x):
        return self.ln2(self.feed(self.ln1(self.attend(x))))


@_block(
    "curriculum 4.3: missing residual around attention",
    (
        "The residual connection around attention is missing: its result "
        "replaces the stream instead of being added to it."
    ),
)
class BlockNoFirstResidual(_Block):
    def pre(self, x):
        x = self.attend(self.ln1(x))
        return x + self.feed(self.ln2(x))

    def post(self, x):
        x = self.ln1(self.attend(x))
        return self.ln2(x + self.feed(x))


@_block(
    "curriculum 4.3: missing residual around the MLP",
    (
        "The residual connection around the MLP is missing: its result "
        "replaces the stream instead of being added to it."
    ),
)
class BlockNoSecondResidual(_Block):
    def pre(self, x):
        x = x + self.attend(self.ln1(x))
        return self.feed(self.ln2(x))

    def post(self, x):
        x = self.ln1(x + self.attend(x))
        return self.ln2(self.feed(x))


# Shown by: comparing the argument before and after the call.
@_block(
    "curriculum 4.3: in-place residual",
    (
        "Your result is right, but x += … wrote it into the caller's tensor. "
        "Whoever still needs the stream as it was finds other numbers, and "
        "the norm's backward pass is among them: write x = x + … instead."
    ),
)
class BlockInPlace(_Block):
    def pre(self, x):
        x += self.attend(self.ln1(x))
        x += self.feed(self.ln2(x))
        return x

    def post(self, x):
        x += self.attend(x)
        x = self.ln1(x)
        return self.ln2(x + self.feed(x))


# Shown by: gradients only.
@_block(
    "in-place residual on a clone",
    (
        "Your result is right, but x += … changes a tensor that the norm has "
        "kept for its backward pass, so the gradient raises an error. Write "
        "x = x + … instead; it costs nothing that matters."
    ),
)
class BlockInPlaceOnClone(_Block):
    def pre(self, x):
        x = x.clone()
        x += self.attend(self.ln1(x))
        x += self.feed(self.ln2(x))
        return x


@_block(
    "M188 strutive07/transformer-tensorflow2.0#14",
    (
        "The second residual adds the block's input instead of the result of "
        "the first sum, so what attention found is lost from the stream."
    ),
)
class BlockStaleResidual(_Block):
    def pre(self, x):
        y = x + self.attend(self.ln1(x))
        return x + self.feed(self.ln2(y))

    def post(self, x):
        y = self.ln1(x + self.attend(x))
        return self.ln2(x + self.feed(y))


@_block(
    "the normed value as residual; common",
    (
        "You add each branch to the normed stream: the norm's result was "
        "stored in x before the sum. In a pre-LN block the stream itself is "
        "never normalised."
    ),
)
class BlockResidualOfNormed(_Block):
    def pre(self, x):
        x = self.ln1(x)
        x = x + self.attend(x)
        x = self.ln2(x)
        return x + self.feed(x)


@_block(
    "no norms yet; plausible",
    (
        "Neither norm is used. In a pre-LN block each branch starts with "
        "one; in a post-LN block each sum goes through one."
    ),
)
class BlockNoNorms(_Block):
    def pre(self, x):
        x = x + self.attend(x)
        return x + self.feed(x)

    post = pre


@_block(
    "M190 in the first branch: missing norm",
    (
        "Attention is fed the stream as it is: the first norm is missing, or "
        "its result is not used."
    ),
)
class BlockNoFirstNorm(_Block):
    def pre(self, x):
        x = x + self.attend(x)
        return x + self.feed(self.ln2(x))


@_block(
    "M190 common: missing norm",
    (
        "The MLP is fed the stream as it is: the second norm is missing, or "
        "its result is not used."
    ),
)
class BlockNoSecondNorm(_Block):
    def pre(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.feed(x)


@_block(
    "ln1 and ln2 exchanged; plausible",
    (
        "ln1 and ln2 have changed places. At the start all norms are equal, "
        "so it shows only once weights are loaded: ln1 belongs to attention,"
        " ln2 to the MLP."
    ),
)
class BlockNormsSwapped(_Block):
    def pre(self, x):
        x = x + self.attend(self.ln2(x))
        return x + self.feed(self.ln1(x))

    def post(self, x):
        x = self.ln2(x + self.attend(x))
        return self.ln1(x + self.feed(x))


@_block(
    "M191 common",
    (
        "Both branches use one and the same norm. At the start all norms are "
        "equal, so it shows only after training: each branch has its own."
    ),
)
class BlockSharedNorm(_Block):
    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.ln2 = self.ln1


@_block(
    "M191 the second norm's weights never used",
    ("The MLP uses the first norm a second time; the second is never used."),
)
class BlockFirstNormTwice(_Block):
    def pre(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.feed(self.ln1(x))


@_block(
    "M193 in this exercise",
    (
        "There is one norm too many: the block's output is normalised. The "
        "final norm belongs to the model, after its last block."
    ),
)
class BlockExtraNorm(_Block):
    def pre(self, x):
        return F.layer_norm(super().pre(x), x.shape[-1:])


@_block(
    "M199 GPT-J style",
    (
        "Attention and MLP run side by side, both on the block's input. Here "
        "the MLP comes second and sees what attention has added."
    ),
)
class BlockParallel(_Block):
    def pre(self, x):
        return x + self.attend(self.ln1(x)) + self.feed(self.ln2(x))


@_block(
    "order of the branches; plausible",
    ("The MLP comes before attention. The order is attention, then MLP."),
)
class BlockMlpFirst(_Block):
    def pre(self, x):
        x = x + self.feed(self.ln2(x))
        return x + self.attend(self.ln1(x))


@_block(
    "M200, M172 AEMatter#3",
    (
        "Your norm takes its statistics over tokens instead of channels, so a "
        "later token changes earlier ones."
    ),
)
class BlockNormOverTime(_Block):
    def pre(self, x):
        def norm(layer, x):
            c = x - x.mean(1, keepdim=True)
            y = c / ((c * c).mean(1, keepdim=True) + self.eps).sqrt()
            return F.linear(y, layer.weight.diag(), layer.bias)

        x = x + self.attend(norm(self.ln1, x))
        return x + self.feed(norm(self.ln2, x))


@_block(
    "M063: made on the default device",
    (
        "The causal mask is made on the CPU, whatever the device of x: on a "
        "GPU the block stops. Make it on x.device, or register it as a "
        "buffer that is not saved."
    ),
)
class BlockMaskOnCpu(_Block):
    def causal(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril()


@_block(
    "M052, M064 jadore801120#19",
    (
        "Your attention has no causal mask: every token sees those after it, "
        "so a model trained on this reads the answers."
    ),
)
class BlockNotCausal(_Block):
    def causal(self, T):
        return torch.ones_like(super().causal(T))


@_block(
    "M056 diagonal off by one",
    (
        "Your mask lets each token see the one after it: its diagonal is off "
        "by one."
    ),
)
class BlockSeesOneAhead(_Block):
    def causal(self, T):
        return torch.ones_like(super().causal(T)).tril(1)


@_block(
    "M054 diagonal hidden",
    (
        "Your mask hides each token from itself, so the first one sees "
        "nothing. The diagonal is visible."
    ),
)
class BlockHidesItself(_Block):
    def causal(self, T):
        return torch.ones_like(super().causal(T)).tril(-1)


@_block(
    "M041, M053 inverted mask",
    (
        "Your mask is inverted: each token sees only what comes after it. For "
        "scaled_dot_product_attention True means visible, for "
        "nn.MultiheadAttention hidden."
    ),
)
class BlockMaskInverted(_Block):
    def causal(self, T):
        return torch.ones_like(super().causal(T)).triu()


@_block(
    "M034 mask after the softmax",
    (
        "You set the hidden weights to 0 after the softmax, so rows sum to "
        "less than 1 and later tokens still decide how much. Hide scores "
        "with −inf before the softmax."
    ),
)
class BlockMaskAfterSoftmax(_Block):
    def weights(self, scores, keep):
        return scores.softmax(-1) * keep


@_block(
    "M024 softmax over the queries",
    (
        "Your softmax runs over the queries. Each query's weights over the "
        "keys, the last axis, sum to 1."
    ),
)
class BlockSoftmaxOverQueries(_Block):
    def weights(self, scores, keep):
        return scores.masked_fill(~keep, -math.inf).softmax(-2)


@_block(
    "M079 view without transpose",
    (
        "You split the heads by a view to (B, H, T, Dh): the shape is right, "
        "but tokens and channels are scrambled. Split the last axis first, "
        "then swap axes."
    ),
)
class BlockSplitByView(_Block):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, self.n_heads, T, D // self.n_heads)


@_block(
    "M079, both ways",
    (
        "You split and merge the heads by a reshape alone, to (B, H, T, Dh) "
        "and back, which mixes tokens and channels. Split the last axis into"
        " (H, Dh), and only swap axes to move H."
    ),
)
class BlockReshapesBothWays(_Block):
    split = BlockSplitByView.split

    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@_block(
    "(B, H, T, Dh) handed to attend; plausible",
    (
        "Attention runs over the heads of each token instead of over the "
        "tokens: the axes of time and heads are the other way round. "
        "`attend` takes (B, T, H, Dh), without a transpose."
    ),
)
class BlockAttendsOverHeads(_Block):
    def mix(self, q, k, v, keep):
        q, k, v = (x.unflatten(-1, (self.n_heads, -1)) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p * self.training
        )
        return out.flatten(-2)


@_block(
    "M079 merge by view",
    (
        "You merge the heads without swapping the axes back: the shape is "
        "right, but tokens and heads are scrambled."
    ),
)
class BlockMergeByView(_Block):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@_block(
    "M080 channels strided across heads",
    (
        "Your heads take every H-th channel. A head is a contiguous slice of "
        "Dh channels: split the last axis into (H, Dh), in this order."
    ),
)
class BlockSplitStrided(_Block):
    def split(self, x):
        return x.unflatten(-1, (-1, self.n_heads)).movedim(-1, 1)


@_block(
    "M083 merge in d-major order",
    (
        "You merge the heads channel by channel, so their channels "
        "interleave. Put one head's slice after the other."
    ),
)
class BlockMergeStrided(_Block):
    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


@_block(
    "M016 divisor √H",
    (
        "You divide the scores by the root of the number of heads. The root "
        "of the head width Dh is due."
    ),
)
class BlockScaleByHeads(_Block):
    def scale(self, d_head):
        return 1 / math.sqrt(self.n_heads)


@_block(
    "D2 divisor √d_model",
    (
        "You divide the scores by the root of d_model. Queries and keys have "
        "d_model / n_heads entries each, and that width is due."
    ),
)
class BlockScaleByModel(_Block):
    def scale(self, d_head):
        return 1 / math.sqrt(self.n_heads * d_head)


@_block(
    "scale forgotten",
    ("Your scores are not scaled: divide them by the root of the head width."),
)
class BlockNoScale(_Block):
    def scale(self, d_head):
        return 1.0


@_block(
    "K21 refused where weights are loaded: rows are q, k, v",
    (
        "You take the rows of qkv_proj in another order. The contract lists "
        "queries, then keys, then values, so that weights can be loaded."
    ),
)
class BlockRowsReordered(_Block):
    def qkv(self, x):
        k, q, v = super().qkv(x)
        return q, k, v


@_block(
    "(H, 3, Dh) in place of (3, H, Dh); M-kind of 2.4",
    (
        "You read the rows of qkv_proj head by head. They are all queries, "
        "then all keys, then all values: split the last axis into (3, H, "
        "Dh), in this order."
    ),
)
class BlockQkvByHead(_Block):
    def qkv(self, x):
        parts = super().qkv(x)
        joined = torch.cat(parts, -1).unflatten(-1, (self.n_heads, 3, -1))
        return [x.flatten(-2) for x in joined.unbind(-2)]


@_block(
    "M094 Khaliladib11/Transformer-from-scratch#1",
    (
        "One projection is used for two of queries, keys and values, and "
        "another never. Look for a copied line."
    ),
)
class BlockKeysAsValues(_Block):
    def qkv(self, x):
        q, k, _ = super().qkv(x)
        return q, k, k


@_block(
    "M088 d2l-en#439",
    ("The output projection is never applied, so the heads are not mixed."),
)
class BlockNoOutProjection(_Block):
    def project(self, x):
        return self.drop(x)


@_block(
    "M091 common",
    (
        "The bias of the output projection is added once a head. Project the "
        "merged heads once."
    ),
)
class BlockBiasPerHead(_Block):
    def project(self, x):
        bias = self.attn["out_proj"].bias
        extra = 0 if bias is None else (self.n_heads - 1) * bias
        return self.drop(self.attn["out_proj"](x) + extra)


@_block(
    "M201 Megatron-LLM#64",
    (
        "The MLP's width does not follow mlp_expansion: it is mlp_expansion · "
        "d_model."
    ),
)
class BlockFixedWidth(_Block):
    def wide(self, d_model, mlp_expansion):
        return 4 * d_model


@_block(
    "M201 width of twice d_model",
    (
        "The MLP is too narrow: its width is mlp_expansion · d_model, four "
        "times d_model by default."
    ),
)
class BlockNarrow(_Block):
    def wide(self, d_model, mlp_expansion):
        return 2 * d_model


@_block(
    "M202 common",
    (
        "There is no activation between the MLP's layers, so the two are one "
        "linear map."
    ),
)
class BlockNoActivation(_Block):
    def activate(self, x):
        return x


@_block(
    "M203 common",
    (
        "The MLP has a second activation after its second layer, so it can "
        "hardly lower the stream. Only the hidden layer is activated."
    ),
)
class BlockActivatesTwice(_Block):
    def feed(self, x):
        return self.drop(self.activate(self.mlp["fc2"](self.hidden(x))))


@_block(
    "ReLU for GELU; facts.md on 10/04",
    ("The MLP uses ReLU. The blocks of this course use GELU."),
)
class BlockRelu(_Block):
    def activate(self, x):
        return F.relu(x)


@_block(
    "M204 keras-bert#129",
    (
        "Your MLP always uses the tanh form. The exact form is the default, "
        "and the argument gelu chooses."
    ),
)
class BlockAlwaysTanh(_Block):
    def activate(self, x):
        return F.gelu(x, approximate="tanh")


@_block(
    "M204 the reverse; the argument is not used",
    (
        'The argument gelu is not passed on: gelu="tanh" asks for the tanh '
        "form."
    ),
)
class BlockNeverTanh(_Block):
    def activate(self, x):
        return F.gelu(x)


@_block(
    "the flag reaches no layer; common",
    (
        "With bias=False your block still has biases. The flag goes to every "
        "linear layer and to both norms."
    ),
)
class BlockKeepsBiases(_Block):
    def __init__(self, *args, bias=True, **how):
        super().__init__(*args, bias=True, **how)


@_block(
    "curriculum's convention on bias; nn.LayerNorm's default",
    (
        "With bias=False your norms still have a bias. The flag drops the "
        "biases of linears and of norms alike."
    ),
)
class BlockKeepsNormBiases(_Block):
    def __init__(self, d_model, *args, **how):
        super().__init__(d_model, *args, **how)
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)


@_block(
    "GPT-style blocks without a qkv bias",
    (
        "Your fused projection has no bias although bias is True: the flag "
        "goes to all four linear layers."
    ),
)
class BlockNoQkvBias(_Block):
    def __init__(self, d_model, *args, **how):
        super().__init__(d_model, *args, **how)
        self.attn["qkv_proj"] = nn.Linear(d_model, 3 * d_model, bias=False)


@_block(
    "K63 refused: separate projections",
    (
        "You keep queries, keys and values in three layers. That computes the "
        "same, but here they are one layer, attn.qkv_proj, whose rows are the "
        "queries', then the keys', then the values'; weights are loaded by "
        "these names."
    ),
)
class BlockSeparateNames(_Block):
    def __init__(self, d_model, *args, bias=True, **how):
        super().__init__(d_model, *args, bias=bias, **how)
        shape = (d_model, d_model, bias)
        self.attn = _linears(
            q_proj=shape, k_proj=shape, v_proj=shape, out_proj=shape
        )

    def qkv(self, x):
        return tuple(self.attn[f"{name}_proj"](x) for name in "qkv")


@_block(
    "another eps; OLMo's kind",
    (
        "Your norms use another eps than 1e-5, so loaded weights do not "
        "reproduce the outputs they were trained for."
    ),
)
class BlockOtherEps(_Block):
    eps = 1e-6


# Shown by: eval mode with dropout > 0.
@_block(
    "M103 nanoGPT#240, pytorch#124464",
    (
        "The attention weights are dropped in eval mode too: the probability "
        "is passed on whatever the mode. Pass 0 unless self.training."
    ),
)
class BlockDropsInEval(_Block):
    def drop_weights(self, weights):
        return F.dropout(weights, self.p)


@_block(
    "dropout everywhere in eval; K27 without training=",
    (
        "Dropout acts in eval mode as well: F.dropout drops unless told "
        "training=self.training, or use nn.Dropout modules."
    ),
)
class BlockAlwaysDrops(_Block):
    def drop(self, x):
        return F.dropout(x, self.p)


@_block(
    "M104 Megatron-LM#411",
    (
        "After one call in eval mode your block never drops again: it forgets "
        "its probability. Decide by self.training in every call."
    ),
)
class BlockDropsOnlyAtFirst(_Block):
    def drop(self, x):
        if not self.training:
            self.p = 0.0
        return super().drop(x)


@_block(
    "M107 nikhilbarhate99/min-decision-transformer#2",
    (
        "The attention weights are not dropped: you drop the mixed values "
        "instead, before the output projection. Drop entries of the weights, "
        "after the softmax and before they meet the values."
    ),
)
class BlockDropsMixedValues(_Block):
    def drop_weights(self, weights):
        return weights

    def project(self, x):
        return super().project(self.drop(x))


@_block(
    "dropout of the weights left out; M110's kind",
    (
        "The attention weights are never dropped. The dropout argument acts "
        "on them, too."
    ),
)
class BlockKeepsWeights(_Block):
    def drop_weights(self, weights):
        return weights


@_block(
    "dropout after attention left out; facts.md, dropout tip",
    (
        "The attention's output is not dropped. Dropout acts after out_proj, "
        "before the sum."
    ),
)
class BlockKeepsAttention(_Block):
    def project(self, x):
        return self.attn["out_proj"](x)


@_block(
    "dropout after the MLP left out",
    (
        "The MLP's output is not dropped. Dropout acts after fc2, before the "
        "sum."
    ),
)
class BlockKeepsMlp(_Block):
    def feed(self, x):
        return self.mlp["fc2"](self.hidden(x))


@_block(
    "M110 jadore801120#69; torch's own layer does this",
    (
        "The hidden units of the MLP are dropped as well. The contract has "
        "three places: attention weights, attention's output, MLP's output."
    ),
)
class BlockDropsHidden(_Block):
    def hidden(self, x):
        return self.drop(super().hidden(x))


@_block(
    "M108 torchnlp#11",
    (
        "You drop entries of the sum, so the stream itself loses entries. "
        "Drop the branch, then add: with certain dropout the block hands its "
        "input through."
    ),
)
class BlockDropsStream(_Block):
    def project(self, x):
        return self.attn["out_proj"](x)

    def feed(self, x):
        return self.mlp["fc2"](self.hidden(x))

    def pre(self, x):
        x = self.drop(x + self.attend(self.ln1(x)))
        return self.drop(x + self.feed(self.ln2(x)))


@_block(
    "M109 NVIDIA/apex#816",
    (
        "You take dropout for the probability of keeping an entry. It is "
        "that of dropping one."
    ),
)
class BlockKeepProbability(_Block):
    def drop(self, x):
        p = 1 - self.p if self.p else 0.0
        return F.dropout(x, p, self.training)


@_block(
    "M109 survivors not scaled",
    (
        "What survives dropout is not scaled by 1 / (1 − p), so training and "
        "eval differ in the mean. nn.Dropout scales by itself."
    ),
)
class BlockUnscaledDropout(_Block):
    def drop(self, x):
        return super().drop(x) * (1 - self.p if self.training else 1)


@_block(
    "dropout never reaches the block; plausible",
    ("Your block never drops anything: the dropout argument is not used."),
)
class BlockNoDropout(_Block):
    def drop(self, x):
        return x


@_block(
    "no check of the length",
    (
        "A sequence longer than max_context_length is accepted. Raise a "
        "ValueError: a model has no positions beyond its context."
    ),
)
class BlockAnyLength(_Block):
    def check(self, T):
        pass


@_block(
    "assert for a ValueError; plausible",
    (
        "A sequence longer than max_context_length raises another exception."
        " The contract asks for a ValueError."
    ),
)
class BlockAsserts(_Block):
    def check(self, T):
        assert T <= self.longest


@_block(
    "off by one in the check",
    (
        "You refuse a sequence of exactly max_context_length tokens. Only "
        "longer ones are a ValueError."
    ),
)
class BlockRefusesFullContext(_Block):
    def check(self, T):
        super().check(T + 1)


# Shown by: a post-LN block with too many tokens.
@_block(
    "two hand-written paths; the check in one of them",
    (
        "With norm_first=False you never compare the length with "
        "max_context_length. Check it before you choose the layout."
    ),
)
class BlockPostUnchecked(_Block):
    def check(self, T):
        if self.norm_first:
            super().check(T)


@_block(
    "cropping instead of refusing; generation code does it",
    (
        "A sequence longer than max_context_length is cropped in silence. The "
        "contract asks for a ValueError."
    ),
)
class BlockCrops(_Block):
    def forward(self, x):
        x = x[:, -self.longest :]
        return self.pre(x) if self.norm_first else self.post(x)


@_block(
    "M051 in this exercise",
    (
        "Something on the way converts to float32, so float64 inputs lose "
        "half of their digits. Leave the dtype alone."
    ),
)
class BlockFloat32(_Block):
    def weights(self, scores, keep):
        return super().weights(scores.float(), keep).to(scores.dtype)


# Shown by: gradients only.
@_block(
    "M175's kind: .detach() inside a branch",
    (
        "Your output is right, but something on the way is detached "
        "(.detach(), .data, no_grad), so the gradient of x or of a parameter "
        "is too small or 0. Nothing here is a constant."
    ),
)
class BlockDetached(_Block):
    def attend(self, x):
        return super().attend(x.detach())


# Shown by: gelu='tanh'.
@_block(
    "hunt: constants of the tanh form rounded",
    (
        "Your tanh form is not quite that of the contract: its constants are "
        "√(2/π) and 0.044715, unrounded. F.gelu has it, too, as "
        "approximate='tanh'."
    ),
)
class BlockRoundedTanh(_Block):
    def activate(self, x):
        if self.form == "none":
            return F.gelu(x)
        return 0.5 * x * (1 + torch.tanh(0.798 * (x + 0.0447 * x**3)))


@_block(
    "hunt: dropout on the normed stream",
    (
        "What goes into a branch is dropped as well. The contract has three "
        "places: attention weights, attention's output, MLP's output."
    ),
)
class BlockDropsNormed(_Block):
    def pre(self, x):
        x = x + self.attend(self.drop(self.ln1(x)))
        return x + self.feed(self.drop(self.ln2(x)))


@_block(
    "dropout of whole tokens; F.dropout1d",
    (
        "Dropout takes all entries of a token together. In all three places "
        "it acts on each entry by itself, as nn.Dropout does."
    ),
)
class BlockDropsTokens(_Block):
    def drop(self, x):
        return x * super().drop(torch.ones_like(x[..., :1]))


@_block(
    "hunt: one mask for all heads",
    (
        "All heads lose the same attention weights. Each weight is dropped by "
        "itself, in each head anew."
    ),
)
class BlockDropsHeadsTogether(_Block):
    def drop_weights(self, weights):
        return weights * self.drop(torch.ones_like(weights[:, :1]))


@_block(
    "hunt: dropout before out_proj in place of after it",
    (
        "You drop what goes into out_proj instead of what comes out of it, "
        "so no entry of the branch is ever 0. Dropout acts after out_proj."
    ),
)
class BlockDropsBeforeOut(_Block):
    def project(self, x):
        return self.attn["out_proj"](self.drop(x))


@_block(
    "hunt: nn.Sequential(fc1, GELU, Dropout, fc2)",
    (
        "You drop the hidden units instead of the MLP's output. Dropout acts "
        "after fc2."
    ),
)
class BlockDropsHiddenOnly(_Block):
    def feed(self, x):
        return self.mlp["fc2"](self.drop(self.hidden(x)))


# Shown by: dropout of the weights, in which a head's channels go together.
@_block(
    "hunt: dropout of the values",
    (
        "You drop entries of the values instead of attention weights: the "
        "channels of a head then lose different tokens. A dropped weight "
        "hides one token from a whole head."
    ),
)
class BlockDropsValues(_Block):
    def drop_weights(self, weights):
        return weights

    def mix(self, q, k, v, keep):
        return super().mix(q, k, self.drop(v), keep)


@_block(
    "hunt: dropout of the scores",
    (
        "You drop scores before the softmax. A score of 0 still gets a "
        "weight: dropout acts on the weights, after the softmax."
    ),
)
class BlockDropsScores(_Block):
    def drop_weights(self, weights):
        return weights

    def weights(self, scores, keep):
        return super().weights(self.drop(scores), keep)


@_block(
    "hunt: weights divided by their sum after dropout",
    (
        "You make the weights sum to 1 again after dropout, which undoes it "
        "in the mean. Dropout scales what survives by 1/(1 − p), and that is "
        "all."
    ),
)
class BlockRenormalizes(_Block):
    def drop_weights(self, weights):
        left = self.drop(weights)
        return left / left.sum(-1, keepdim=True).clamp_min(1e-9)


# Shown by: dropout in train mode, token by token.
@_block(
    "hunt: one mask for all tokens, F.dropout1d's kind",
    (
        "All tokens of an example lose the same channels. Each entry is "
        "dropped by itself, at each token anew."
    ),
)
class BlockDropsChannels(_Block):
    def drop(self, x):
        return x * super().drop(torch.ones_like(x[:, :1]))

    def drop_weights(self, weights):
        return F.dropout(weights, self.p, self.training)


# Shown by: two calls in train mode.
@_block(
    "hunt: a generator seeded in forward",
    (
        "Every call drops the same entries, since you seed within the call. "
        "Dropout draws anew each time: leave the seed to the caller."
    ),
)
class BlockSeedsDropout(_Block):
    def drop(self, x):
        if not self.training or not self.p:
            return x
        rng = torch.Generator().manual_seed(0)
        kept = torch.rand(x.shape, generator=rng, dtype=x.dtype) >= self.p
        return x * kept / (1 - self.p)


# Shown by: a post-LN block in train mode.
@_block(
    "hunt: dropout at the end of the post-LN branch",
    (
        "With norm_first=False you drop entries of the block's output as "
        "well. Dropout acts on the branches only, before the sums."
    ),
)
class BlockDropsPostOutput(_Block):
    def post(self, x):
        return self.drop(super().post(x))


# Shown by: a post-LN block in train mode.
@_block(
    "two hand-written paths; dropout of the weights in one of them",
    (
        "With norm_first=False you never drop an attention weight. The layout "
        "decides where the norms act, and nothing else: call attend with the "
        "same dropout_p in both."
    ),
)
class BlockPostKeepsWeights(_Block):
    def drop_weights(self, weights):
        return self.drop(weights) if self.norm_first else weights


# Shown by: a post-LN block in train mode, with hidden units for each channel.
@_block(
    "PyTorch's TransformerEncoderLayer, by hand for post-LN only",
    (
        "With norm_first=False you drop hidden units of the MLP, as PyTorch's "
        "layer does. Here dropout acts on the MLP's output instead, in both "
        "layouts."
    ),
)
class BlockPostDropsHidden(_Block):
    def hidden(self, x):
        hidden = super().hidden(x)
        return hidden if self.norm_first else self.drop(hidden)


# Shown by: a post-LN block in train mode.
@_block(
    "Vaswani et al. 2017 drop the embedding; moved into the block",
    (
        "With norm_first=False you drop entries of the stream itself, where "
        "it enters. Dropout acts on a branch before it is added; dropout of "
        "the embedding is not the block's task."
    ),
)
class BlockPostDropsInput(_Block):
    def post(self, x):
        return super().post(self.drop(x))


# Shown by: a post-LN block in train mode.
@_block(
    "hunt: dropout written in one of the two layouts",
    (
        "With norm_first=False nothing is dropped. Both layouts have the same "
        "three places."
    ),
)
class BlockPostKeepsAll(_Block):
    def drop(self, x):
        return super().drop(x) if self.norm_first else x


# Shown by: train mode without a word about dropout.
@_block(
    "hunt: dropout=0.1 for a default",
    (
        "In train mode your block drops although no dropout was asked for. "
        "The default is 0."
    ),
)
class BlockDropsByDefault(_Block):
    def __init__(self, d_model, n_heads, *, dropout=0.1, **options):
        super().__init__(d_model, n_heads, dropout=dropout, **options)


# Shown by: train mode without dropout.
@_block(
    "hunt: is_causal=not self.training, a slip between two branches",
    (
        "In train mode your attention is not causal. Training is where the "
        "mask matters most: without it, each token sees its own target."
    ),
)
class BlockTrainsWithoutMask(_Block):
    def causal(self, T):
        keep = super().causal(T)
        return torch.ones_like(keep) if self.training else keep


# Shown by: a longer sequence in a second call.
@_block(
    "hunt: a mask made in the first call",
    (
        "You keep the mask of the first call, and a longer sequence does not "
        "fit it. Make the mask for the T at hand, or one for "
        "max_context_length and cut it."
    ),
)
class BlockKeepsFirstMask(_Block):
    first = None

    def causal(self, T):
        if self.first is None:
            self.first = super().causal(T)
        return self.first[:T, :T]


# Shown by: keys and values of an earlier call with the same shape.
@_block(
    "hunt: a cache of keys and values in a block without one",
    (
        "Keys and values of an earlier call take part in the next one. A "
        "block is a function of its input: keep nothing between calls."
    ),
)
class BlockRemembersKeys(_Block):
    before = None

    def mix(self, q, k, v, keep):
        if self.before is not None and self.before[0].shape == k.shape:
            k, v = (k + self.before[0]) / 2, (v + self.before[1]) / 2
        self.before = k.detach(), v.detach()
        return super().mix(q, k, v, keep)


# Shown by: post-LN with the tanh form.
@_block(
    "hunt: options handed on in one of the two layouts",
    (
        "With norm_first=False your MLP ignores gelu and uses the exact form. "
        "Options hold in both layouts."
    ),
)
class BlockPostIgnoresTanh(_Block):
    def activate(self, x):
        return super().activate(x) if self.norm_first else F.gelu(x)


# Shown by: post-LN, where scores may be huge.
@_block(
    "hunt: −10,000 for −inf, as in early BERT code",
    (
        "Your mask adds −10,000 to hidden scores. In a post-LN block scores "
        "may be larger than that, and the future shows through. Use −inf, or "
        "a boolean mask."
    ),
)
class BlockMaskTooSmall(_Block):
    def weights(self, scores, keep):
        return (scores - 1e4 * ~keep).softmax(-1)


# Shown by: a view whose leading axes are exchanged.
@_block(
    "hunt: x.view(B * T, D)",
    (
        "You flatten batch and time with .view, which raises where x is a "
        "transposed view. Linear layers and norms take (B, T, D) as it is. "
        "(.reshape would do, too.)"
    ),
)
class BlockView(_Block):
    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1]).view(x.shape))


# 4.4 dropout_sites


def _dropouts(block):
    return {
        name: one
        for name, one in block.named_modules()
        if isinstance(one, nn.Dropout)
    }


class _Experiment:
    """A right experiment in pieces."""

    def among(self, block):
        return _dropouts(block)

    def input(self, block):
        return torch.randn(2, 5, block.d_model)

    def prepare(self, block):
        block.train()

    def idle(self, one, others):
        for other in others:
            other.p = 0.0

    def differs(self, one, other):
        return not torch.equal(one, other)

    def restore(self, block, modes, p, state):
        for one, mode in modes.items():
            one.training = mode
        for one, value in p.items():
            one.p = value
        torch.set_rng_state(state)

    @torch.no_grad()
    def __call__(self, block):
        modes = {one: one.training for one in block.modules()}
        p = {one: one.p for one in _dropouts(block).values()}
        state = torch.get_rng_state()
        try:
            return self.found(block)
        finally:
            self.restore(block, modes, p, state)

    def found(self, block):
        sites, x = self.among(block), self.input(block)
        self.prepare(block)
        self.idle(None, _dropouts(block).values())
        plain, found = block(x), []
        for name, one in sites.items():
            self.idle(one, _dropouts(block).values())
            one.p = 1.0
            if self.differs(block(x), plain):
                found.append(name)
            one.p = 0.0
        return found


@oracle(
    "dropout_sites",
    evidence="the experiment on a deep copy each time, with modules replaced",
)
def sites_on_copies(block):
    import copy

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = torch.randn(
            3, 2, block.d_model, generator=torch.Generator().manual_seed(0)
        )
        outs = {}
        for certain in [None, *_dropouts(block)]:
            twin = copy.deepcopy(block).train()
            for name in _dropouts(twin):
                new = nn.Dropout(1.0 if name == certain else 0.0)
                parent, _, last = name.rpartition(".")
                setattr(twin.get_submodule(parent), last, new.train())
            outs[certain] = twin(x)
        return [
            name
            for name in _dropouts(block)
            if not torch.equal(outs[name], outs[None])
        ]


@right("dropout_sites", evidence="in place, everything restored")
def sites_restored(block):
    return _Experiment()(block)


@right("dropout_sites", evidence="hooks that zero one module's output")
def sites_by_hooks(block):
    twins = {one: (one.training, one.p) for one in _dropouts(block).values()}
    x = torch.randn(
        2, 3, block.d_model, generator=torch.Generator().manual_seed(1)
    )
    modes = {one: one.training for one in block.modules()}
    found = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        block.train()
        for one in twins:
            one.p = 0.0
        plain = block(x)
        for name, one in _dropouts(block).items():
            hook = one.register_forward_hook(
                lambda module, args, out: torch.zeros_like(out)
            )
            if (block(x) - plain).abs().max() > 0:
                found.insert(0, name)
            hook.remove()
    for one, mode in modes.items():
        one.training = mode
    for one, (_, p) in twins.items():
        one.p = p
    assert all((one.training, one.p) == was for one, was in twins.items())
    return found


@right("dropout_sites", evidence="gradients kept, allclose, another input")
def sites_allclose(block):
    class Close(_Experiment):
        def input(self, block):
            return (
                torch.linspace(-2, 2, 8 * block.d_model).sin().view(2, 4, -1)
                * 3
            )

        def differs(self, one, other):
            return not torch.allclose(one, other)

    return Close()(block)


def _site(evidence, hint):
    """Mark a class of experiments, as the function that it is."""

    def mark(kind):
        def answer(block):
            return kind()(block)

        answer.__name__ = kind.__name__
        return wrong("dropout_sites", evidence=evidence, hint=hint)(answer)

    return mark


@_site(
    "no experiment; common",
    (
        "You list every dropout module that the block owns. One that forward "
        "never uses, or whose branch adds nothing, changes no output: run the "
        "block to find out."
    ),
)
class sites_all_modules(_Experiment):
    def found(self, block):
        return list(_dropouts(block))


@_site(
    "configuration for behaviour; plausible",
    (
        "You look at p as it is at present and skip those with p = 0. The "
        "question is where dropout would act: set p yourself, and put it back."
    ),
)
class sites_with_positive_p(_Experiment):
    def among(self, block):
        return {
            name: one for name, one in _dropouts(block).items() if one.p > 0
        }


@_site(
    "configuration for behaviour, no experiment",
    (
        "You list the dropouts whose p is not 0, without running the block. "
        "Neither tells whether one acts: p may be 0 at present, and a module"
        " may never be called. Set p to 1, run and compare."
    ),
)
class sites_by_p_alone(_Experiment):
    def found(self, block):
        return [name for name, one in _dropouts(block).items() if one.p > 0]


@_site(
    "eval mode; A25",
    (
        "Your experiment runs in the mode in which you found the block, or "
        "part of it: in eval mode dropout does nothing. Put every module "
        "into train mode, and back afterwards."
    ),
)
class sites_in_found_mode(_Experiment):
    def prepare(self, block):
        pass


@_site(
    "eval mode always",
    (
        "Your experiment runs in eval mode, where no dropout acts, so "
        "nothing is found. Put the block into train mode, and back "
        "afterwards."
    ),
)
class sites_in_eval(_Experiment):
    def prepare(self, block):
        block.eval()


@_site(
    "others left at their p; plausible",
    (
        "While you try one dropout, the others keep the p they had and drop "
        "at random, so the output differs in any case. Set them to 0."
    ),
)
class sites_others_drop(_Experiment):
    def input(self, block):
        return torch.randn(16, 16, block.d_model)

    def found(self, block):
        p = {one: one.p for one in _dropouts(block).values()}

        def idle(one, others):
            for other in others:
                other.p = p[other] if one else 0.0

        self.idle = idle
        return super().found(block)


@_site(
    "all at once; plausible",
    (
        "You switch all dropouts to p = 1 together and credit every one of "
        "them with the difference. One at a time shows who caused it."
    ),
)
class sites_all_at_once(_Experiment):
    def idle(self, one, others):
        for other in others:
            other.p = 0.0 if one is None else 1.0


@_site(
    "M108's kind: p left changed",
    (
        "After the call the dropouts have another p than before: put each "
        "one's own value back, also where it was not the usual one."
    ),
)
class sites_forget_p(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, modes, {}, state)


@_site(
    "one p for all put back",
    (
        "You put one common p back into all dropouts. Each had its own: "
        "remember them one by one."
    ),
)
class sites_restore_one_p(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, modes, dict.fromkeys(p, 0.1), state)


@_site(
    "nothing put back; plausible",
    (
        "After the call modes and p are other than before. Remember both for"
        " every module, and put them back one by one."
    ),
)
class sites_restore_nothing(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, {}, {}, state)


@_site(
    "M104's kind: mode left changed",
    ("After the call the block is in train mode, whatever it was before."),
)
class sites_leave_train(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, {}, p, state)


@_site(
    "leaves eval mode; common",
    ("After the call the block is in eval mode, whatever it was before."),
)
class sites_leave_eval(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, {}, p, state)
        block.eval()


@_site(
    "block.train(was) for mixed modes; common",
    (
        "You put the block's own mode back with block.train(mode), which "
        "sets it for all parts. A part may have a mode of its own (a frozen "
        "one stands in eval mode): remember the mode of each module."
    ),
)
class sites_one_mode(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, {}, p, state)
        block.train(modes[block])


@_site(
    "random state moved on; M108's kind",
    (
        "Your call moves torch's global random state on (or seeds it anew), "
        "so whatever the caller draws next is different from what it would "
        "have been. Dropout draws, too, even at p = 1: save the state and "
        "put it back, or work under torch.random.fork_rng."
    ),
)
class sites_move_random_state(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, modes, p, torch.get_rng_state())


@_site(
    "input of zeros or ones; plausible",
    (
        "Your input is the same in every channel. A norm turns such rows into "
        "zeros, and dropping zeros changes nothing: use a random input."
    ),
)
class sites_with_zeros(_Experiment):
    def input(self, block):
        return torch.zeros(2, 5, block.d_model)


@_site(
    "last parts of the names",
    (
        "You return the last part of each name. Two branches may both have a "
        'dropout called "2": the qualified name, as named_modules gives it, '
        "tells which."
    ),
)
class sites_short_names(_Experiment):
    def found(self, block):
        return [name.rpartition(".")[2] for name in super().found(block)]


@_site(
    "only the block's own children",
    (
        "You look at the block's direct children only. Dropout usually sits "
        "deeper, inside a branch: named_modules goes all the way down."
    ),
)
class sites_children_only(_Experiment):
    def among(self, block):
        return {
            name: one
            for name, one in block.named_children()
            if isinstance(one, nn.Dropout)
        }


@_site(
    "stops at the first",
    ("You return after the first site. A block may have several."),
)
class sites_first_only(_Experiment):
    def found(self, block):
        return super().found(block)[:1]


@_site(
    "dead ones for live ones",
    (
        "You list the dropouts that do not change the output. The list is of "
        "those that do."
    ),
)
class sites_dead_ones(_Experiment):
    def differs(self, one, other):
        return torch.equal(one, other)


@_site(
    "a set or tuple for a list",
    (
        "Your names come in a set or a tuple. A list is due: its order does "
        "not matter."
    ),
)
class sites_as_set(_Experiment):
    def found(self, block):
        return set(super().found(block))


@_site(
    "the modules themselves",
    (
        "You return the dropout modules themselves. Return their names, as "
        "strings."
    ),
)
class sites_modules(_Experiment):
    def found(self, block):
        known = _dropouts(block)
        return [known[name] for name in super().found(block)]


@_site(
    "hunt: hooks that note which modules run",
    (
        "You list the dropouts that are called. One that runs in a branch "
        "whose gain is 0 changes nothing: compare outputs."
    ),
)
class sites_by_calls(_Experiment):
    def found(self, block):
        self.prepare(block)
        called = []
        hooks = [
            one.register_forward_hook(
                lambda *_, name=name: called.append(name)
            )
            for name, one in self.among(block).items()
        ]
        block(self.input(block))
        for hook in hooks:
            hook.remove()
        return list(dict.fromkeys(called))


# Shown by: a block that leaves a dropout out in eval mode.
@_site(
    "hunt: only the dropouts put into train mode",
    (
        "You put the dropouts themselves into train mode, and leave the rest "
        "of the block in the mode in which you found it. A part may leave its "
        "dropout out in eval mode: the question is asked of a block all of "
        "which is in train mode."
    ),
)
class sites_only_dropouts_train(_Experiment):
    def prepare(self, block):
        for one in _dropouts(block).values():
            one.train()


# Shown by: a branch with a small gain.
@_site(
    "hunt: allclose with a wide tolerance",
    (
        "Your comparison takes small changes for none. Without dropout two "
        "runs agree exactly, so any difference counts: torch.equal."
    ),
)
class sites_coarse(_Experiment):
    def differs(self, one, other):
        return not torch.allclose(one, other, atol=1e-2)


# Shown by: a class derived from nn.Dropout.
@_site(
    "hunt: type(module) is nn.Dropout",
    (
        "You compare types and miss a dropout whose class derives from "
        "nn.Dropout. isinstance finds both."
    ),
)
class sites_exact_type(_Experiment):
    def among(self, block):
        return {
            name: one
            for name, one in _dropouts(block).items()
            if type(one) is nn.Dropout
        }


# Shown by: gradients that were there before.
@_site(
    "hunt: zero_grad() at the end",
    (
        "After the call the parameters' gradients are gone, or others. The "
        "caller may be about to step: run under torch.no_grad and leave them "
        "alone."
    ),
)
class sites_clear_gradients(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, modes, p, state)
        block.zero_grad()


# Shown by: a parameter that was frozen before.
@_site(
    "hunt: requires_grad_(True) at the end",
    (
        "After the call all parameters are trained, also those that were "
        "frozen before. torch.no_grad needs no change to the parameters."
    ),
)
class sites_unfreeze(_Experiment):
    def restore(self, block, modes, p, state):
        super().restore(block, modes, p, state)
        block.requires_grad_(True)


# 4.5 EncoderLayer


class _Encoder(_Block):
    """A right encoder layer in pieces."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)

    def mask(self, x, keep):
        return None if keep is None else keep[:, None, None, :]

    def attend(self, x):
        return self.project(self.mix(*self.qkv(x), self.mask(x, self.keep)))

    def forward(self, x, keep=None):
        self.keep = keep
        return self.pre(x)


@oracle(
    "EncoderLayer",
    evidence="nn.TransformerEncoderLayer; where nothing "
    "is kept, with values and mask set so that "
    "attention gives zeros",
)
class EncoderLibrary(_Encoder):
    def forward(self, x, keep=None):
        B, T, D = x.shape
        call = _torch_layer(self, D, self.n_heads, 4 * D, "none")
        if keep is None:
            return call(x)
        rows = []
        for row, real in zip(x, keep, strict=True):
            if real.any():
                hide = torch.zeros(T, T, dtype=torch.bool)
                hide[:, ~real] = True
                rows.append(call(row[None], src_mask=hide)[0])
            else:
                # What out_proj makes of zeros is its bias.
                y = row + self.attn["out_proj"].bias
                norm = F.layer_norm(y, (D,), self.ln2.weight, self.ln2.bias)
                rows.append(y + self.mlp["fc2"](F.gelu(self.mlp["fc1"](norm))))
        return torch.stack(rows)


@right("EncoderLayer", evidence="fused attention with a boolean mask")
class EncoderFused(_Encoder):
    def mix(self, q, k, v, keep):
        q, k, v = self.split(q), self.split(k), self.split(v)
        return self.merge(F.scaled_dot_product_attention(q, k, v, keep))


@right(
    "EncoderLayer",
    evidence="K11 where; an additive mask in which dead rows are 0",
)
class EncoderWhere(_Encoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        dead = ~keep.any(-1, keepdim=True)
        bias = torch.zeros_like(scores).masked_fill(~keep & ~dead, -math.inf)
        return torch.where(dead, 0.0, (scores + bias).softmax(-1))


@right(
    "EncoderLayer", evidence="K03 one example at a time, kept keys picked out"
)
class EncoderPicks(_Encoder):
    def attend(self, x):
        q, k, v = self.qkv(x)
        outs = []
        for b in range(len(x)):
            real = (
                torch.ones(x.shape[1], dtype=torch.bool)
                if self.keep is None
                else self.keep[b]
            )
            parts = [self.split(t) for t in (q[b], k[b][real], v[b][real])]
            scores = parts[0] @ parts[1].mT / parts[0].shape[-1] ** 0.5
            outs.append(self.merge(scores.softmax(-1) @ parts[2]))
        return self.attn["out_proj"](torch.stack(outs))


def _encoder(evidence, hint):
    return wrong("EncoderLayer", evidence=evidence, hint=hint)


@_encoder(
    "M063: made on the default device",
    (
        "The zeros for rows without a key are made on the CPU, whatever the "
        "device of x: on a GPU the layer stops. torch.zeros_like(weights) "
        "has the right device and dtype."
    ),
)
class EncoderZerosOnCpu(_Encoder):
    def weights(self, scores, keep):
        weights = super().weights(scores, keep)
        if keep is None:
            return weights
        zeros = torch.zeros(scores.shape, dtype=scores.dtype)
        return torch.where(keep, weights, zeros)


@_encoder(
    "decoder's mask in an encoder; common",
    (
        "Your attention is causal. An encoder reads the whole input at once: "
        "every position sees every other."
    ),
)
class EncoderCausal(_Encoder):
    def mask(self, x, keep):
        causal = self.causal(x.shape[1])
        return causal if keep is None else causal & keep[:, None, None, :]


@_encoder(
    "M046, M077 keep not passed on",
    ("keep is never used, so padding takes part in every average."),
)
class EncoderIgnoresKeep(_Encoder):
    def mask(self, x, keep):
        return None


@_encoder(
    "M041 nn.MultiheadAttention's polarity",
    (
        "Your mask is inverted: keep is True at real positions, while "
        "nn.MultiheadAttention's key_padding_mask is True at padding."
    ),
)
class EncoderKeepInverted(_Encoder):
    def mask(self, x, keep):
        return None if keep is None else ~keep[:, None, None, :]


@_encoder(
    "mask over queries; common",
    (
        "You hide the padded queries instead of the padded keys: the axis of "
        "keep has to line up with the keys, the last axis of the scores."
    ),
)
class EncoderMasksQueries(_Encoder):
    def mask(self, x, keep):
        return None if keep is None else keep[:, None, :, None]


@_encoder(
    "padded queries hidden, too; common",
    (
        "You hide padded queries as well as padded keys, so padded positions "
        "see nothing. They are computed like all others; only as keys are "
        "they hidden."
    ),
)
class EncoderMasksBoth(_Encoder):
    def mask(self, x, keep):
        if keep is None:
            return None
        return keep[:, None, None, :] & keep[:, None, :, None]


@_encoder(
    "mask handed on as it comes; plausible",
    (
        "Your mask has the axes (B, T) of keep, so they line up with queries"
        " and keys. Insert axes for heads and queries: (B, 1, 1, T)."
    ),
)
class EncoderBareMask(_Encoder):
    def mask(self, x, keep):
        return keep


@_encoder(
    "M044 annotated-transformer#17",
    (
        "Your mask has no axis for the heads, so it is broadcast as if "
        "examples were heads: with as many examples as heads, head h gets "
        "the mask of example h. Insert axes so that (B, T) becomes (B, 1, 1, "
        "T)."
    ),
)
class EncoderMaskWithoutHeads(_Encoder):
    def mask(self, x, keep):
        return None if keep is None else keep[:, None, :]


@_encoder(
    "one example's mask for all",
    (
        "You use the first example's mask for the whole batch. Each example "
        "has its own padding."
    ),
)
class EncoderFirstMask(_Encoder):
    def mask(self, x, keep):
        return None if keep is None else keep[:1, None, None, :]


@_encoder(
    "M042 boolean mask added",
    (
        "You add the boolean mask to the scores, so kept keys get 1 more and "
        "nothing is hidden."
    ),
)
class EncoderAddsBoolean(_Encoder):
    def weights(self, scores, keep):
        return (scores if keep is None else scores + keep).softmax(-1)


@_encoder(
    "M034 mask after the softmax",
    (
        "You set the hidden weights to 0 after the softmax, so the padding "
        "still takes its share. Hide with −inf before it."
    ),
)
class EncoderMaskAfterSoftmax(_Encoder):
    def weights(self, scores, keep):
        weights = scores.softmax(-1)
        return weights if keep is None else weights * keep


@_encoder(
    "M069 pytorch#103749",
    (
        "Where nothing is kept, your softmax runs over −inf only and gives "
        "NaN, which spreads from there. Such a row gives zeros."
    ),
)
class EncoderDeadNan(_Encoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        return scores.masked_fill(~keep, -math.inf).softmax(-1)


@_encoder(
    "D5 a finite fill leaves a uniform average",
    (
        "Where nothing is kept, your finite fill gives a uniform average over "
        "padding. Such a row gives zeros: hide with −inf and treat dead rows."
    ),
)
class EncoderDeadUniform(_Encoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        return scores.masked_fill(~keep, -1e30).softmax(-1)


@_encoder(
    "zeros behind out_proj; plausible",
    (
        "Where nothing is kept, your attention adds nothing at all. The zeros "
        "stand before out_proj, so its bias is added."
    ),
)
class EncoderDeadWithoutBias(_Encoder):
    def attend(self, x):
        out = super().attend(x)
        if self.keep is None:
            return out
        return out * self.keep.any(-1)[:, None, None]


@_encoder(
    "D5 NaN replaced at the end",
    (
        "Your output is right, but a NaN arises on the way where nothing is "
        "kept and comes back in the gradient, however it is replaced later. "
        "Keep it from arising."
    ),
)
class EncoderNanGradient(_Encoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        bias = torch.zeros_like(scores).masked_fill(~keep, -math.inf)
        return (scores + bias).softmax(-1).nan_to_num(0.0)


@_encoder(
    "M078's kind: padded outputs zeroed",
    (
        "You set the output to 0 at padded positions. They are computed like "
        "all others: whoever reads the output decides what to skip."
    ),
)
class EncoderZeroesPadding(_Encoder):
    def forward(self, x, keep=None):
        out = super().forward(x, keep)
        return out if keep is None else out * keep[..., None]


@_encoder(
    "padding set to 0 instead of hidden; plausible",
    (
        "You set padded tokens to 0 instead of hiding them. A key of zeros "
        "still gets a share of the attention: hand the mask to the "
        "attention, which takes them out of the softmax."
    ),
)
class EncoderZeroesInput(_Encoder):
    def forward(self, x, keep=None):
        if keep is not None:
            x = x * keep[..., None]
        return super().forward(x)


@_encoder(
    "normed padding set to 0; plausible",
    (
        "You set padded tokens to 0 behind the norm instead of hiding them. "
        "A key that is only its bias still gets a share of the attention: "
        "hand the mask to the attention."
    ),
)
class EncoderZeroesNormed(_Encoder):
    def attend(self, x):
        if self.keep is not None:
            x = x * self.keep[..., None]
        return self.project(self.mix(*self.qkv(x), None))


@_encoder(
    "M186 post-LN",
    (
        "Your layer is post-LN. Each norm stands at the entrance of its "
        "branch, and the stream passes unnormalised."
    ),
)
class EncoderPost(_Encoder):
    def pre(self, x):
        return self.post(x)


@_encoder(
    "M188 in this exercise",
    (
        "The second residual adds the layer's input instead of the result of "
        "the first sum."
    ),
)
class EncoderStaleResidual(_Encoder):
    pre = BlockStaleResidual.pre


@_encoder(
    "missing residual",
    ("There are no residual connections: each branch replaces the stream."),
)
class EncoderNoResiduals(_Encoder):
    pre = BlockNoResiduals.pre


@_encoder(
    "residual around the MLP forgotten; plausible",
    (
        "The MLP replaces the stream: add what it returns to what attention "
        "left there."
    ),
)
class EncoderNoSecondResidual(_Encoder):
    def pre(self, x):
        x = x + self.attend(self.ln1(x))
        return self.feed(self.ln2(x))


@_encoder(
    "M190 missing norm",
    ("The MLP is fed the stream as it is: the second norm is missing."),
)
class EncoderNoSecondNorm(_Encoder):
    pre = BlockNoSecondNorm.pre


@_encoder(
    "M190 missing norm",
    ("Attention is fed the stream as it is: the first norm is missing."),
)
class EncoderNoFirstNorm(_Encoder):
    pre = BlockNoFirstNorm.pre


@_encoder(
    "M199 in this exercise",
    (
        "Attention and MLP run side by side. The MLP sees what attention has "
        "added."
    ),
)
class EncoderParallel(_Encoder):
    pre = BlockParallel.pre


@_encoder(
    "M204 in this exercise",
    ("Your MLP uses the tanh form of GELU. The exact form is due."),
)
class EncoderTanh(_Encoder):
    activate = BlockAlwaysTanh.activate


@_encoder(
    "the 2017 encoder's activation",
    ("Your MLP uses ReLU, as in 2017. Here it is GELU."),
)
class EncoderRelu(_Encoder):
    activate = BlockRelu.activate


@_encoder(
    "M079 view without transpose",
    (
        "You split the heads by a view to (B, H, T, Dh): tokens and channels "
        "are scrambled. Split the last axis first, then swap axes."
    ),
)
class EncoderSplitByView(_Encoder):
    split = BlockSplitByView.split


@_encoder(
    "M016, D2 wrong divisor",
    (
        "You divide the scores by the root of d_model. The root of the head "
        "width is due."
    ),
)
class EncoderScaleByModel(_Encoder):
    scale = BlockScaleByModel.scale


# Shown by: gradients only.
@_encoder(
    "M175's kind",
    (
        "Your output is right, but something on the way is detached "
        "(.detach(), .data, no_grad), so the gradient of x or of a parameter "
        "is too small or 0. Nothing here is a constant."
    ),
)
class EncoderDetached(_Encoder):
    def attend(self, x):
        return super().attend(x.detach())


# Shown by: a batch in which no example keeps anything.
@_encoder(
    "hunt: if keep.any(): … else: no mask",
    (
        "Where nothing of the whole batch is kept you leave the mask out, so "
        "that every token sees all padding. The attention gives zeros there, "
        "whether one example is empty or all are."
    ),
)
class EncoderSkipsEmptyMask(_Encoder):
    def mask(self, x, keep):
        kept = keep is not None and keep.any()
        return super().mask(x, keep if kept else None)


# Shown by: padding at the end of every example.
@_encoder(
    "hunt: cropped to the longest example",
    (
        "You crop the batch to its longest example and pad the result, so "
        "tokens beyond get nothing from the attention. A padded token is "
        "hidden as a key only; as a query it is computed like any other."
    ),
)
class EncoderCrops(_Encoder):
    def mix(self, q, k, v, keep):
        mixed = super().mix(q, k, v, keep)
        if keep is None or not keep.any():
            return mixed
        end = int(keep.flatten(0, 2).any(0).nonzero().max()) + 1
        beyond = torch.arange(q.shape[1]) >= end
        return mixed.masked_fill(beyond[:, None], 0.0)


# Shown by: scores in the tens of thousands.
@_encoder(
    "hunt: −10,000 for −inf, as in early BERT code",
    (
        "Your mask adds −10,000 to hidden scores. Scores may be larger than "
        "that, and padding shows through. Use −inf, or a boolean mask."
    ),
)
class EncoderMaskTooSmall(_Encoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        dead = ~keep.any(-1, keepdim=True)
        return (scores - 1e4 * ~keep).softmax(-1).masked_fill(dead, 0.0)


# Shown by: train mode.
@_encoder(
    "hunt: nn.TransformerEncoderLayer's default dropout",
    (
        "In train mode something is dropped. This layer has no dropout: if "
        "you use one of torch's layers, tell it dropout=0.0."
    ),
)
class EncoderDrops(_Encoder):
    p = 0.1

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.p = 0.1


# Shown by: a call without keep after one with it.
@_encoder(
    "hunt: self.keep set only where keep is given",
    (
        "The mask of one call is still there in the next, which has none. "
        "keep=None means that all tokens are real."
    ),
)
class EncoderRemembersMask(_Encoder):
    keep = None

    def forward(self, x, keep=None):
        if keep is not None:
            self.keep = keep
        return self.pre(x)

    def mask(self, x, keep):
        fits = keep is not None and keep.shape == x.shape[:2]
        return super().mask(x, keep if fits else None)


# Shown by: a view whose leading axes are exchanged.
@_encoder(
    "hunt: x.view(B * T, D)",
    (
        "You flatten batch and time with .view, which raises where x is a "
        "transposed view. Linear layers and norms take (B, T, D) as it is. "
        "(.reshape would do, too.)"
    ),
)
class EncoderView(_Encoder):
    def forward(self, x, keep=None):
        return super().forward(x.view(-1, x.shape[-1]).view(x.shape), keep)


# 4.5 DecoderLayer


class _Decoder(_Attends):
    """A right decoder layer in pieces."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        square = (d_model, d_model, True)
        self.ln1, self.ln2, self.ln3 = (
            nn.LayerNorm(d_model) for _ in range(3)
        )
        self.attn = _linears(
            qkv_proj=(d_model, 3 * d_model, True), out_proj=square
        )
        self.cross_attn = _linears(
            q_proj=square, k_proj=square, v_proj=square, out_proj=square
        )
        self.mlp = _linears(
            fc1=(d_model, 4 * d_model, True), fc2=(4 * d_model, d_model, True)
        )

    def causal(self, T):
        place = self.ln1.weight.device
        return torch.ones(T, T, dtype=torch.bool, device=place).tril()

    def attend(self, x):
        return self.attn["out_proj"](
            self.mix(*self.qkv(x), self.causal(x.shape[1]))
        )

    def mask(self, x, keep):
        return None if keep is None else keep[:, None, None, :]

    def project(self, x, memory):
        cross = self.cross_attn
        return (
            cross["q_proj"](x),
            cross["k_proj"](memory),
            cross["v_proj"](memory),
        )

    def cross(self, x, memory, keep):
        mixed = self.mix(*self.project(x, memory), self.mask(x, keep))
        return self.cross_attn["out_proj"](mixed)

    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        x = x + self.cross(self.ln2(x), memory, memory_keep)
        return x + self.feed(self.ln3(x))


@oracle(
    "DecoderLayer",
    evidence="nn.TransformerDecoderLayer, an example at "
    "a time; where nothing is kept, with the "
    "cross-attention's weights at zero",
)
class DecoderLibrary(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        D = x.shape[-1]
        layer = nn.TransformerDecoderLayer(
            D,
            self.n_heads,
            4 * D,
            0.0,
            F.gelu,
            batch_first=True,
            norm_first=True,
        )
        own = dict(self.named_parameters())
        cross = "cross_attn."
        theirs = {
            f"{name}.{kind}": own[f"{mine}.{kind}"]
            for name, mine in [
                ("norm1", "ln1"),
                ("norm2", "ln2"),
                ("norm3", "ln3"),
                ("linear1", "mlp.fc1"),
                ("linear2", "mlp.fc2"),
                ("self_attn.out_proj", "attn.out_proj"),
                ("multihead_attn.out_proj", cross + "out_proj"),
            ]
            for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            theirs[f"self_attn.in_proj_{kind}"] = own[f"attn.qkv_proj.{kind}"]
            theirs[f"multihead_attn.in_proj_{kind}"] = torch.cat(
                [own[f"{cross}{part}_proj.{kind}"] for part in "qkv"]
            )
        none = theirs | {
            "multihead_attn.out_proj.weight": torch.zeros_like(
                own[cross + "out_proj.weight"]
            )
        }
        hide = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        rows = []
        for b in range(len(x)):
            seen = memory[b : b + 1]
            if memory_keep is not None:
                seen = seen[:, memory_keep[b]]
            weights = theirs
            if not seen.shape[1]:
                seen, weights = torch.zeros_like(memory[:1]), none
            rows.append(
                torch.func.functional_call(
                    layer, weights, (x[b : b + 1], seen), {"tgt_mask": hide}
                )
            )
        return torch.cat(rows)


@right("DecoderLayer", evidence="fused attention with masks")
class DecoderFused(_Decoder):
    def mix(self, q, k, v, keep):
        q, k, v = self.split(q), self.split(k), self.split(v)
        return self.merge(F.scaled_dot_product_attention(q, k, v, keep))


@right("DecoderLayer", evidence="K02 einsum, K11 where for dead rows")
class DecoderEinsum(_Decoder):
    def mix(self, q, k, v, keep):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (q, k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        if keep is not None:
            fill = torch.where(keep, 0.0, -math.inf).to(q.dtype)
            dead = (fill == -math.inf).all(-1, keepdim=True)
            scores = scores + torch.where(dead, 0.0, fill)
            weights = torch.where(dead, 0.0, scores.softmax(-1))
        else:
            weights = scores.softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


@right("DecoderLayer", evidence="K23 a sum over heads; K52 rebinding")
class DecoderHeadSum(_Decoder):
    def cross(self, x, memory, keep):
        q, k, v = (self.split(t) for t in self.project(x, memory))
        keep = self.mask(x, keep)
        out = self.cross_attn["out_proj"]
        total = out.bias
        for h, rows in enumerate(out.weight.chunk(self.n_heads, dim=1)):
            mask = None if keep is None else keep[:, 0]
            mixed = F.scaled_dot_product_attention(
                q[:, h], k[:, h], v[:, h], mask
            )
            total = total + mixed @ rows.T
        return total


def _decoder(evidence, hint):
    return wrong("DecoderLayer", evidence=evidence, hint=hint)


@_decoder(
    "M099 common",
    (
        "Your cross-attention takes keys and values from the stream, so the "
        "memory is never read: the output must change with the memory."
    ),
)
class DecoderIgnoresMemory(_Decoder):
    def cross(self, x, memory, keep):
        return super().cross(x, x, None)


@_decoder(
    "values from the stream; M099's half",
    (
        "Your cross-attention scores the memory but averages values of the "
        "stream. Keys and values both come from the memory."
    ),
)
class DecoderQueriesFromMemory(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        y = self.mix(
            self.cross_attn["q_proj"](memory),
            *self.project(self.ln2(x), self.ln2(x))[1:],
            None,
        )
        y = y.mean(1, keepdim=True)
        x = x + self.cross_attn["out_proj"](y)
        return x + self.feed(self.ln3(x))


@_decoder(
    "M192 xformers#233, the reverse",
    (
        "You normalise the memory with the decoder's norm. The memory is "
        "taken as it comes: the encoder's final norm has been there already."
    ),
)
class DecoderNormsMemory(_Decoder):
    def cross(self, x, memory, keep):
        return super().cross(x, self.ln2(memory), keep)


@_decoder(
    "M192 queries not normalised",
    (
        "The cross-attention's queries come from the stream as it is: the "
        "second norm is missing, or its result is not used."
    ),
)
class DecoderQueriesNotNormed(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        x = x + self.cross(x, memory, memory_keep)
        return x + self.feed(self.ln3(x))


@_decoder(
    "M052 in a decoder",
    (
        "The decoder's self-attention has no causal mask: every token sees "
        "those after it."
    ),
)
class DecoderNotCausal(_Decoder):
    def causal(self, T):
        return None


@_decoder(
    "M063: made on the default device",
    (
        "The causal mask is made on the CPU, whatever the device of x: on a "
        "GPU the block stops. Make it on x.device, or register it as a "
        "buffer that is not saved."
    ),
)
class DecoderMaskOnCpu(_Decoder):
    def causal(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril()


@_decoder(
    "M041, M053 inverted mask",
    ("The causal mask is inverted: each token sees only what comes after it."),
)
class DecoderMaskInverted(_Decoder):
    def causal(self, T):
        return torch.ones_like(super().causal(T)).triu()


@_decoder(
    "M056 diagonal off by one",
    ("The causal mask lets each token see the one after it."),
)
class DecoderSeesOneAhead(_Decoder):
    def causal(self, T):
        return torch.ones_like(super().causal(T)).tril(1)


@_decoder(
    "causal cross-attention; common",
    (
        "Your cross-attention is causal. The memory is complete when decoding "
        "starts: every token sees all of it."
    ),
)
class DecoderCausalCross(_Decoder):
    def mask(self, x, keep):
        return self.cut if keep is None else self.cut & super().mask(x, keep)

    def cross(self, x, memory, keep):
        shape = x.shape[1], memory.shape[1]
        self.cut = x.new_ones(shape, dtype=torch.bool).tril()
        return super().cross(x, memory, keep)


@_decoder(
    "M076 common",
    (
        "memory_keep is never used, so the memory's padding takes part in "
        "every average."
    ),
)
class DecoderIgnoresKeep(_Decoder):
    def mask(self, x, keep):
        return None


@_decoder(
    "M041 nn.MultiheadAttention's polarity",
    ("Your mask is inverted: memory_keep is True at real positions."),
)
class DecoderKeepInverted(_Decoder):
    def mask(self, x, keep):
        return None if keep is None else ~keep[:, None, None, :]


@_decoder(
    "M044 in this exercise",
    (
        "Your mask has no axis for the heads, so examples are taken for "
        "heads. Insert axes so that (B, Tm) becomes (B, 1, 1, Tm)."
    ),
)
class DecoderMaskWithoutHeads(_Decoder):
    def mask(self, x, keep):
        return None if keep is None else keep[:, None, :]


@_decoder(
    "M034 mask after the softmax",
    (
        "You set the hidden weights to 0 after the softmax, so the hidden "
        "positions still take their share. Hide with −inf before it."
    ),
)
class DecoderMaskAfterSoftmax(_Decoder):
    def weights(self, scores, keep):
        weights = scores.softmax(-1)
        return weights if keep is None else weights * keep


@_decoder(
    "M069 in cross-attention",
    (
        "Where nothing of the memory is kept, your softmax runs over −inf "
        "only and gives NaN. Such a row gives zeros."
    ),
)
class DecoderDeadNan(_Decoder):
    weights = EncoderDeadNan.weights


@_decoder(
    "D5 a finite fill in cross-attention",
    (
        "Where nothing of the memory is kept, your finite fill gives a "
        "uniform average over padding. Such a row gives zeros."
    ),
)
class DecoderDeadUniform(_Decoder):
    weights = EncoderDeadUniform.weights


@_decoder(
    "D5 NaN replaced at the end",
    (
        "Your output is right, but a NaN arises on the way where nothing of "
        "the memory is kept and comes back in the gradient, however it is "
        "replaced later. Keep it from arising."
    ),
)
class DecoderNanGradient(_Decoder):
    weights = EncoderNanGradient.weights


@_decoder(
    "zeros behind out_proj; plausible",
    (
        "Where nothing of the memory is kept, your cross-attention adds "
        "nothing. The zeros stand before out_proj, so its bias is added."
    ),
)
class DecoderDeadWithoutBias(_Decoder):
    def cross(self, x, memory, keep):
        out = super().cross(x, memory, keep)
        return out if keep is None else out * keep.any(-1)[:, None, None]


@_decoder(
    "order of the sublayers; plausible",
    (
        "Cross-attention comes before self-attention. The order is "
        "self-attention, cross-attention, MLP."
    ),
)
class DecoderCrossFirst(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.cross(self.ln2(x), memory, memory_keep)
        x = x + self.attend(self.ln1(x))
        return x + self.feed(self.ln3(x))


@_decoder(
    "names of norms by another order",
    (
        "The norms have changed places: ln1 belongs to self-attention, ln2 to "
        "cross-attention, ln3 to the MLP."
    ),
)
class DecoderNormsSwapped(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        x = x + self.cross(self.ln3(x), memory, memory_keep)
        return x + self.feed(self.ln2(x))


@_decoder(
    "missing residual around cross-attention",
    (
        "The residual connection around cross-attention is missing: what the "
        "decoder itself has found is lost."
    ),
)
class DecoderNoCrossResidual(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        x = self.cross(self.ln2(x), memory, memory_keep)
        return x + self.feed(self.ln3(x))


@_decoder(
    "missing residuals",
    ("There are no residual connections: each branch replaces the stream."),
)
class DecoderNoResiduals(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = self.attend(self.ln1(x))
        x = self.cross(self.ln2(x), memory, memory_keep)
        return self.feed(self.ln3(x))


@_decoder(
    "M188 in this exercise",
    (
        "A later residual adds the layer's input instead of the sum before "
        "it, so an attention's result is lost from the stream."
    ),
)
class DecoderStaleResidual(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        y = x + self.attend(self.ln1(x))
        y = y + self.cross(self.ln2(y), memory, memory_keep)
        return x + self.feed(self.ln3(y))


@_decoder(
    "M199 two attentions side by side",
    (
        "Both attentions read the layer's input side by side. Cross-attention "
        "sees what self-attention has added."
    ),
)
class DecoderParallel(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = (
            x
            + self.attend(self.ln1(x))
            + self.cross(self.ln2(x), memory, memory_keep)
        )
        return x + self.feed(self.ln3(x))


@_decoder(
    "M186 post-LN, the 2017 layer",
    (
        "Your layer is post-LN, as in 2017. Each norm stands at the entrance "
        "of its branch."
    ),
)
class DecoderPost(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = self.ln1(x + self.attend(x))
        x = self.ln2(x + self.cross(x, memory, memory_keep))
        return self.ln3(x + self.feed(x))


@_decoder(
    "M094 copied line",
    ("k_proj and v_proj have changed places, or one is used for both."),
)
class DecoderKeysAndValuesSwapped(_Decoder):
    def project(self, x, memory):
        q, k, v = super().project(x, memory)
        return q, v, k


@_decoder(
    "M094 one projection for keys and values",
    (
        "Keys and values come from one projection; v_proj is never used. Look "
        "for a copied line."
    ),
)
class DecoderKeysAsValues(_Decoder):
    def project(self, x, memory):
        q, k, _ = super().project(x, memory)
        return q, k, k


@_decoder(
    "self-attention without effect: no cross-attention at all",
    (
        "There is no cross-attention: the layer is a causal block, and the "
        "memory is never read."
    ),
)
class DecoderWithoutCross(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        return x + self.feed(self.ln3(x))


@_decoder(
    "M190 in this exercise",
    ("The MLP is fed the stream as it is: the third norm is missing."),
)
class DecoderNoThirdNorm(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x = x + self.attend(self.ln1(x))
        x = x + self.cross(self.ln2(x), memory, memory_keep)
        return x + self.feed(x)


@_decoder(
    "M204 in this exercise",
    ("Your MLP uses the tanh form of GELU. The exact form is due."),
)
class DecoderTanh(_Decoder):
    activate = BlockAlwaysTanh.activate


@_decoder(
    "the 2017 decoder's activation",
    ("Your MLP uses ReLU, as in 2017. Here it is GELU."),
)
class DecoderRelu(_Decoder):
    activate = BlockRelu.activate


@_decoder(
    "M079 view without transpose",
    (
        "You split the heads by a view to (B, H, T, Dh): tokens and channels "
        "are scrambled. Split the last axis first, then swap axes."
    ),
)
class DecoderSplitByView(_Decoder):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, self.n_heads, T, D // self.n_heads)


@_decoder(
    "D2 wrong divisor",
    (
        "You divide the scores by the root of d_model. The root of the head "
        "width is due."
    ),
)
class DecoderScaleByModel(_Decoder):
    scale = BlockScaleByModel.scale


# Shown by: gradients only.
@_decoder(
    "hunt: the encoder taken for frozen",
    (
        "Your output is right, but something on the way is detached (the "
        "memory, say), so its gradient is too small or 0. The encoder learns "
        "through the memory."
    ),
)
class DecoderDetached(_Decoder):
    def cross(self, x, memory, keep):
        return super().cross(x, memory.detach(), keep)


# Shown by: a batch in which no memory keeps anything.
@_decoder(
    "hunt: if memory_keep.any(): … else: no mask",
    (
        "Where nothing of any memory is kept you leave the mask out, so that "
        "every token sees all padding. The cross-attention gives zeros there, "
        "whether one memory is empty or all are."
    ),
)
class DecoderSkipsEmptyMask(_Decoder):
    def mask(self, x, keep):
        kept = keep is not None and keep.any()
        return super().mask(x, keep if kept else None)


# Shown by: a batch in which no memory keeps anything.
@_decoder(
    "hunt: the sublayer skipped where no memory is left",
    (
        "Where nothing of any memory is kept you skip the cross-attention. "
        "Its attention gives zeros there, so it still adds the bias of its "
        "out_proj."
    ),
)
class DecoderSkipsCross(_Decoder):
    def cross(self, x, memory, keep):
        out = super().cross(x, memory, keep)
        return out if keep is None or keep.any() else torch.zeros_like(out)


# Shown by: a large memory with padding.
@_decoder(
    "hunt: −10,000 for −inf, as in early BERT code",
    (
        "Your mask adds −10,000 to hidden scores. The memory is not normed, "
        "so scores may be larger than that, and padding shows through. Use "
        "−inf, or a boolean mask."
    ),
)
class DecoderMaskTooSmall(_Decoder):
    def weights(self, scores, keep):
        if keep is None:
            return scores.softmax(-1)
        dead = ~keep.any(-1, keepdim=True)
        return (scores - 1e4 * ~keep).softmax(-1).masked_fill(dead, 0.0)


# Shown by: train mode.
@_decoder(
    "hunt: nn.TransformerDecoderLayer's default dropout",
    (
        "In train mode something is dropped. This layer has no dropout: if "
        "you use one of torch's layers, tell it dropout=0.0."
    ),
)
class DecoderDrops(_Decoder):
    p = 0.1


# Shown by: another memory of the same shape in a second call.
@_decoder(
    "hunt: keys and values of the memory kept for generation",
    (
        "You keep keys and values of the first memory, and the next call "
        "reads them instead of its own. Keep nothing between calls."
    ),
)
class DecoderRemembersMemory(_Decoder):
    first = None

    def cross(self, x, memory, keep):
        if self.first is None or self.first.shape != memory.shape:
            self.first = memory
        return super().cross(x, self.first, keep)


# Shown by: a view whose leading axes are exchanged.
@_decoder(
    "hunt: x.view(B * T, D)",
    (
        "You flatten batch and time with .view, which raises where x or the "
        "memory is a transposed view. Linear layers and norms take (B, T, D) "
        "as it is. (.reshape would do, too.)"
    ),
)
class DecoderView(_Decoder):
    def forward(self, x, memory, memory_keep=None):
        x, memory = (
            each.view(-1, each.shape[-1]).view(each.shape)
            for each in (x, memory)
        )
        return super().forward(x, memory, memory_keep)


# 4.6 depth_profile


class _Profile:
    """A right profile in pieces."""

    B, T, D, H, V = 4, 32, 64, 4, 64
    gain, reduction = 1.0, "mean"

    def weight(self, rows, columns):
        return (
            self.gain
            * torch.randn(rows, columns, generator=self.rng)
            / math.sqrt(columns)
        )

    def norm(self, x):
        return F.layer_norm(x, (self.D,))

    def attend(self, x, qkv, out):
        q, k, v = (
            t.unflatten(-1, (self.H, -1)).transpose(1, 2)
            for t in (x @ qkv.T).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2) @ out.T

    def feed(self, x, fc1, fc2):
        return F.gelu(x @ fc1.T) @ fc2.T

    def pre(self, x, qkv, out, fc1, fc2):
        x = x + self.attend(self.norm(x), qkv, out)
        return x + self.feed(self.norm(x), fc1, fc2)

    def post(self, x, qkv, out, fc1, fc2):
        x = self.norm(x + self.attend(x, qkv, out))
        return self.norm(x + self.feed(x, fc1, fc2))

    def final(self, x):
        return self.norm(x)

    def loss(self, x, head):
        targets = torch.randint(self.V, (self.B * self.T,), generator=self.rng)
        logits = self.final(x) @ head.T
        return F.cross_entropy(
            logits.flatten(0, 1), targets, reduction=self.reduction
        )

    def input(self):
        return torch.randn(self.B, self.T, self.D, generator=self.rng)

    def size(self, x):
        return x.pow(2).mean().sqrt().item()

    def slope(self, grad):
        return grad.norm().item()

    def generator(self, seed):
        return torch.Generator().manual_seed(seed)

    def shapes(self):
        D = self.D
        return (3 * D, D), (D, D), (4 * D, D), (D, 4 * D)

    @torch.enable_grad()
    def __call__(self, L, norm_first, seed):
        self.rng = self.generator(seed)
        x = self.input().requires_grad_()
        stream = [x]
        for _ in range(L):
            weights = [self.weight(*shape) for shape in self.shapes()]
            x = (self.pre if norm_first else self.post)(x, *weights)
            stream.append(x)
        loss = self.loss(x, self.weight(self.V, self.D))
        grads = torch.autograd.grad(loss, stream, allow_unused=True)
        return self.told(
            stream,
            [torch.zeros(1) if grad is None else grad for grad in grads],
        )

    def told(self, stream, grads):
        return {
            "rms": [self.size(x) for x in stream],
            "grad": [self.slope(grad) for grad in grads],
        }


def _profile(mark):
    """Mark a class of profiles, as the function that it is."""

    def marked(kind):
        def answer(L, norm_first, seed):
            return kind()(L, norm_first, seed)

        answer.__name__ = kind.__name__
        return mark(answer)

    return marked


@oracle(
    "depth_profile",
    evidence="PyTorch's encoder layers, their weights drawn anew, and hooks",
)
def depth_profile_library(L, norm_first, seed):
    rng = torch.Generator().manual_seed(seed)
    layers = [
        nn.TransformerEncoderLayer(
            64, 4, 256, 0.0, F.gelu, batch_first=True, norm_first=norm_first
        )
        for _ in range(L)
    ]
    head = nn.Linear(64, 64)
    for part in (*layers, head):
        for name, value in part.named_parameters():
            if value.ndim == 2:
                nn.init.normal_(
                    value, 0, value.shape[1] ** -0.5, generator=rng
                )
            elif "norm" not in name:
                nn.init.zeros_(value)
    x = torch.randn(4, 32, 64, generator=rng, requires_grad=True)
    hide = torch.ones(32, 32, dtype=torch.bool).triu(1)
    stream = [x]
    for layer in layers:
        stream.append(layer(stream[-1], hide))
    logits = head(F.layer_norm(stream[-1], (64,)))
    targets = torch.randint(64, (128,), generator=rng)
    loss = F.cross_entropy(logits.flatten(0, 1), targets)
    grads = torch.autograd.grad(loss, stream)
    return {
        "rms": [part.square().mean().sqrt().item() for part in stream],
        "grad": [part.norm().item() for part in grads],
    }


@_profile(right("depth_profile", evidence="hand-written; generator local"))
class profile_by_hand(_Profile):
    pass


@_profile(
    right(
        "depth_profile",
        evidence="K83 numpy numbers; another stream "
        "of random numbers; float64",
    )
)
class profile_float64(_Profile):
    def generator(self, seed):
        return np.random.default_rng(seed)

    def weight(self, rows, columns):
        return torch.from_numpy(
            self.rng.normal(0, columns**-0.5, (rows, columns))
        )

    def input(self):
        return torch.from_numpy(self.rng.normal(size=(self.B, self.T, self.D)))

    def loss(self, x, head):
        targets = torch.from_numpy(
            self.rng.integers(self.V, size=self.B * self.T)
        )
        logp = torch.log_softmax(self.final(x) @ head.T, -1).flatten(0, 1)
        return -logp.gather(1, targets[:, None]).mean()

    def told(self, stream, grads):
        return {
            "rms": np.array([self.size(x) for x in stream]),
            "grad": torch.tensor([grad.norm() for grad in grads]),
        }


@_profile(
    right(
        "depth_profile",
        evidence="global generator, retain_grad's kind; the tanh form",
    )
)
class profile_global_seed(_Profile):
    def generator(self, seed):
        return torch.manual_seed(seed)

    def feed(self, x, fc1, fc2):
        return F.gelu(x @ fc1.T, approximate="tanh") @ fc2.T


def _depth(evidence, hint):
    return _profile(wrong("depth_profile", evidence=evidence, hint=hint))


@_depth(
    "curriculum 4.6; facts.md: the copied demo",
    (
        "Your loss is the squared norm of a normed vector. Whatever the "
        "weights are, a norm's rows have the same length, so this loss is a "
        "constant and its gradient is 0 up to eps and rounding. Use "
        "cross-entropy."
    ),
)
class profile_constant_loss(_Profile):
    def loss(self, x, head):
        return self.final(x).square().sum()


@_depth(
    "norm_first the wrong way round",
    ("norm_first is the wrong way round: True is pre-LN, whose stream grows."),
)
class profile_swapped(_Profile):
    def __call__(self, L, norm_first, seed):
        return super().__call__(L, not norm_first, seed)


@_depth(
    "norm_first ignored",
    (
        "Your blocks are pre-LN in both cases. With norm_first=False each "
        "norm acts on the sum."
    ),
)
class profile_always_pre(_Profile):
    def __call__(self, L, norm_first, seed):
        return super().__call__(L, True, seed)


@_depth(
    "norm_first ignored, the other way",
    (
        "Your blocks are post-LN in both cases. With norm_first=True the "
        "norms stand at the entrances of the branches."
    ),
)
class profile_always_post(_Profile):
    def __call__(self, L, norm_first, seed):
        return super().__call__(L, False, seed)


@_depth(
    "nn.Linear's default initialisation",
    (
        "Your weights have a variance of 1 / (3 fan_in), as nn.Linear gives "
        "them, so each branch adds less than it should. Draw them from N(0, "
        "1/fan_in)."
    ),
)
class profile_default_init(_Profile):
    gain = 3**-0.5


@_depth(
    "GPT-2's 0.02",
    (
        "Your weights are drawn with a standard deviation of 0.02, as "
        "GPT-2's. Here it is 1/√fan_in."
    ),
)
class profile_gpt2_init(_Profile):
    def weight(self, rows, columns):
        return 0.02 * torch.randn(rows, columns, generator=self.rng)


@_depth(
    "missing causal mask; common",
    (
        "Your attention has no causal mask: early tokens average over all 32 "
        "positions where they should see few, so the branch adds less."
    ),
)
class profile_without_mask(_Profile):
    def attend(self, x, qkv, out):
        q, k, v = (
            t.unflatten(-1, (self.H, -1)).transpose(1, 2)
            for t in (x @ qkv.T).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).flatten(2) @ out.T


@_depth(
    "the first transformer's activation",
    (
        "Your MLP uses ReLU, which lets more through than GELU, so its "
        "branch adds more to the stream. The set-up asks for the exact GELU."
    ),
)
class profile_with_relu(_Profile):
    def feed(self, x, fc1, fc2):
        return F.relu(x @ fc1.T) @ fc2.T


@_depth(
    "SiLU for GELU; common",
    (
        "Your MLP uses SiLU, which lets less through than GELU, so its "
        "branch adds less to the stream. The set-up asks for the exact GELU."
    ),
)
class profile_with_silu(_Profile):
    def feed(self, x, fc1, fc2):
        return F.silu(x @ fc1.T) @ fc2.T


@_depth(
    "facts.md: fan-in of the second MLP matrix",
    (
        "The second matrix of your MLP is scaled by 1/√D, although 4·D "
        "numbers enter it: its branch comes out twice too large. The fan-in "
        "is the number of inputs of that layer."
    ),
)
class profile_wrong_fan_in(_Profile):
    def weight(self, rows, columns):
        return torch.randn(rows, columns, generator=self.rng) / 8


@_depth(
    "fan-out for fan-in; common",
    (
        "You scale by the number of outputs, 1/√fan_out. Scale by the number "
        "of inputs of the layer, the columns of its weight."
    ),
)
class profile_fan_out(_Profile):
    def weight(self, rows, columns):
        return torch.randn(rows, columns, generator=self.rng) / rows**0.5


@_depth(
    "N(0, 1/fan_in) read as a standard deviation",
    (
        "You use 1/fan_in as the standard deviation. It is the variance: its "
        "root is the standard deviation."
    ),
)
class profile_variance_as_std(_Profile):
    def weight(self, rows, columns):
        return torch.randn(rows, columns, generator=self.rng) / columns


@_depth(
    "missing residuals",
    (
        "Your blocks have no residual connections, so the stream does not add "
        "up: pre-LN would not grow."
    ),
)
class profile_no_residuals(_Profile):
    def pre(self, x, qkv, out, fc1, fc2):
        return self.feed(
            self.norm(self.attend(self.norm(x), qkv, out)), fc1, fc2
        )


@_depth(
    "one layout only; plausible",
    (
        "Your post-LN blocks have no residual connections: each norm acts on "
        "the sum of the stream and its branch."
    ),
)
class profile_post_without_residuals(_Profile):
    def post(self, x, qkv, out, fc1, fc2):
        x = self.norm(self.attend(x, qkv, out))
        return self.norm(self.feed(x, fc1, fc2))


@_depth(
    "a result that is dropped; plausible",
    (
        "What the branches of your post-LN blocks compute is lost: the norms "
        "act on the stream alone. Add each branch before its norm."
    ),
)
class profile_post_without_branches(_Profile):
    def post(self, x, qkv, out, fc1, fc2):
        return self.norm(self.norm(x))


@_depth(
    "norms left out; plausible",
    (
        "Your blocks have no norms: in pre-LN one stands before each branch, "
        "in post-LN one after each sum."
    ),
)
class profile_without_norms(_Profile):
    def pre(self, x, qkv, out, fc1, fc2):
        x = x + self.attend(x, qkv, out)
        return x + self.feed(x, fc1, fc2)

    def post(self, x, *weights):
        return self.pre(x, *weights)


@_depth(
    "M193 no final norm",
    (
        "There is no final norm before the head, so pre-LN's grown stream "
        "makes large logits and other gradients."
    ),
)
class profile_no_final_norm(_Profile):
    def final(self, x):
        return x


@_depth(
    "the branch's input measured",
    (
        "You measure the stream after a norm, which is 1 by construction. "
        "Measure the stream itself, the block's output."
    ),
)
class profile_of_normed(_Profile):
    def size(self, x):
        return super().size(self.norm(x))


@_depth(
    "reduction; common",
    (
        "Your loss is the sum over tokens, 128 times the mean, and so are the "
        "gradients. Cross-entropy's default is the mean."
    ),
)
class profile_sum_of_losses(_Profile):
    reduction = "sum"


@_depth(
    "RMS of the gradient for its norm",
    (
        "You give the gradient's root mean square. Its norm is due: the root "
        "of the sum of all squares."
    ),
)
class profile_gradient_rms(_Profile):
    def slope(self, grad):
        return grad.square().mean().sqrt().item()


@_depth(
    "norm of one position's gradient",
    (
        "You average the norms of the single tokens' gradients. The norm of "
        "the whole (4, 32, 64) tensor is due."
    ),
)
class profile_gradient_by_token(_Profile):
    def slope(self, grad):
        return grad.norm(dim=-1).mean().item()


@_depth(
    "norm of the stream for its RMS",
    (
        "You give the stream's norm. Its root mean square is due: the root of "
        "the mean of all squares."
    ),
)
class profile_stream_norm(_Profile):
    def size(self, x):
        return x.norm().item()


@_depth(
    "mean square without the root",
    ("You give the mean square. Take its root."),
)
class profile_mean_square(_Profile):
    def size(self, x):
        return x.square().mean().item()


@_depth(
    "L entries for L + 1",
    (
        "Your lists have L entries: the stream before the first block is "
        "missing."
    ),
)
class profile_without_embedding(_Profile):
    def told(self, stream, grads):
        return super().told(stream[1:], grads[1:])


@_depth(
    "a tuple for a dict; plausible",
    (
        'Return a dict with the two lists under "rms" and "grad", not a '
        "tuple of them."
    ),
)
class profile_tuple(_Profile):
    def told(self, stream, grads):
        return tuple(super().told(stream, grads).values())


@_depth(
    "not done yet",
    (
        'The dict has no "grad" yet: the norms of the loss\'s gradient at the'
        " same L + 1 tensors."
    ),
)
class profile_no_gradients(_Profile):
    def told(self, stream, grads):
        return {"rms": super().told(stream, grads)["rms"]}


@_depth(
    "order of a backward hook",
    (
        "Your gradients stand in the order in which backward meets them, from "
        "the last block to the first. Entry l belongs to the stream after l "
        "blocks."
    ),
)
class profile_reversed_gradients(_Profile):
    def told(self, stream, grads):
        return super().told(stream, grads[::-1])


@_depth(
    "uniform input",
    (
        "Your input is not drawn from N(0, 1): its RMS before the first block "
        "is not 1."
    ),
)
class profile_uniform_input(_Profile):
    def input(self):
        return torch.rand(self.B, self.T, self.D, generator=self.rng)


@_depth(
    "targets that the model itself prefers; plausible",
    (
        "Your targets are not random: they are what the model already "
        "predicts, so the loss and its gradients are too small."
    ),
)
class profile_own_targets(_Profile):
    def loss(self, x, head):
        logits = (self.final(x) @ head.T).flatten(0, 1)
        return F.cross_entropy(logits, logits.argmax(-1))


@_depth(
    "seed ignored",
    (
        "Two seeds give the very same numbers: the seed does not reach what "
        "is drawn."
    ),
)
class profile_ignores_seed(_Profile):
    def generator(self, seed):
        return torch.Generator().manual_seed(0)


@_depth(
    "fresh entropy each time",
    (
        "The same seed gives other numbers each time: something is drawn from "
        "another generator."
    ),
)
class profile_unseeded(_Profile):
    def generator(self, seed):
        return torch.Generator().manual_seed(
            int(torch.randint(2**31, ()).item())
        )


# 4.7 patchify


def _checked(img, patch):
    H, W = img.shape[-2:]
    if H % patch or W % patch:
        raise ValueError(f"{patch} does not divide {H} and {W}")


@oracle("patchify", evidence="loops over patches, rows and columns")
def patchify_loops(img, patch=16):
    _checked(img, patch)
    H, W = img.shape[-2:]
    return torch.stack(
        [
            torch.stack(
                [
                    img[:, c, i + a, j + b]
                    for c in range(img.shape[1])
                    for a in range(patch)
                    for b in range(patch)
                ],
                dim=-1,
            )
            for i in range(0, H, patch)
            for j in range(0, W, patch)
        ],
        dim=1,
    )


@right("patchify", evidence="F.unfold")
def patchify_unfold(img, patch=16):
    _checked(img, patch)
    return F.unfold(img, patch, stride=patch).mT


@right("patchify", evidence="K24 einops")
def patchify_einops(img, patch=16):
    from einops import rearrange

    _checked(img, patch)
    return rearrange(
        img, "b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch
    )


@right(
    "patchify",
    evidence="curriculum 4.7: a strided convolution whose "
    "kernels pick one number each",
)
def patchify_convolution(img, patch=16):
    _checked(img, patch)
    C = img.shape[1]
    kernels = torch.eye(C * patch**2, dtype=img.dtype).view(
        -1, C, patch, patch
    )
    return F.conv2d(img, kernels, stride=patch).flatten(2).mT


@right("patchify", evidence="Tensor.unfold; K15 a view as the result")
def patchify_views(img, patch=16):
    _checked(img, patch)
    parts = img.unfold(2, patch, patch).unfold(3, patch, patch)
    return parts.flatten(2, 3).transpose(1, 2).flatten(2)


def _patches(img, patch, order):
    B, C, H, W = img.shape
    parts = img.reshape(B, C, H // patch, patch, W // patch, patch)
    return parts.permute(0, *order).reshape(B, H * W // patch**2, C * patch**2)


def _patchify(evidence, hint):
    return wrong("patchify", evidence=evidence, hint=hint)


@_patchify(
    "M079's kind: reshape alone",
    (
        "You only reshape. That cuts the image's memory into pieces of the "
        "right size, not into squares: give rows and columns two axes each, "
        "reorder the axes, then merge."
    ),
)
def patchify_reshape(img, patch=16):
    _checked(img, patch)
    B, C, H, W = img.shape
    return img.reshape(B, H * W // patch**2, C * patch**2)


@_patchify(
    "inner order (p, p, C), as in JAX's ViT",
    (
        "Inside a patch the channels run last. The order is channel, row, "
        "column, which is also that of a convolution's weights."
    ),
)
def patchify_channels_last(img, patch=16):
    _checked(img, patch)
    return _patches(img, patch, (2, 4, 3, 5, 1))


@_patchify(
    "patches down the columns",
    (
        "Your patches run down the columns. They run row by row, left to "
        "right, as one reads."
    ),
)
def patchify_by_columns(img, patch=16):
    _checked(img, patch)
    return _patches(img, patch, (4, 2, 1, 3, 5))


@_patchify(
    "patches transposed",
    ("Inside a patch, rows and columns have changed places."),
)
def patchify_transposed(img, patch=16):
    _checked(img, patch)
    return _patches(img, patch, (2, 4, 1, 5, 3))


@_patchify(
    "channel outside the patch",
    (
        "The channels are cut into patches of their own: the channel axis "
        "came before the patches when you merged. A patch holds all channels "
        "of its square."
    ),
)
def patchify_channels_apart(img, patch=16):
    _checked(img, patch)
    return _patches(img, patch, (1, 2, 4, 3, 5))


@_patchify(
    "interleaved pixels: axes (p, H/p) for (H/p, p)",
    (
        "You split height into (p, H/p) instead of (H/p, p), so a patch "
        "collects pixels spread over the image. Neighbouring pixels belong "
        "together: the inner axis is p."
    ),
)
def patchify_strided(img, patch=16):
    _checked(img, patch)
    B, C, H, W = img.shape
    parts = img.reshape(B, C, patch, H // patch, patch, W // patch)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(B, H * W // patch**2, -1)


@_patchify(
    "no check",
    (
        "An image that patches do not fill is cropped in silence. Raise a "
        "ValueError: the learner of the model would never see the rim."
    ),
)
def patchify_crops(img, patch=16):
    return (
        F.unfold(img, patch, stride=patch).mT
        if (min(img.shape[-2:]) >= patch)
        else img.new_zeros(len(img), 0, img.shape[1] * patch**2)
    )


@_patchify(
    "only the height checked",
    ("You check the height only. The patch has to divide the width as well."),
)
def patchify_checks_height(img, patch=16):
    _checked(img[..., :1].expand(-1, -1, -1, patch), patch)
    return F.unfold(img, patch, stride=patch).mT


@_patchify(
    "the number of pixels checked",
    (
        "You check that the patch's area divides the image's. A patch of 4 × "
        "4 has as many pixels as an image of 2 × 8 and still does not fit: "
        "check height and width one by one."
    ),
)
def patchify_checks_area(img, patch=16):
    H, W = img.shape[-2:]
    if (H * W) % patch**2:
        raise ValueError(f"{patch}² does not divide {H * W}")
    return patchify_crops(img, patch)


@_patchify(
    "another exception",
    (
        "Where patches do not fill the image, an error of torch's comes out "
        "of some reshape. The contract asks for a ValueError of yours, which "
        "says what is wrong."
    ),
)
def patchify_runtime_error(img, patch=16):
    return _patches(img, patch, (2, 4, 1, 3, 5))


@_patchify(
    "patch size fixed at 16", ("You use patches of 16 whatever is asked for.")
)
def patchify_fixed(img, patch=16):
    _checked(img, 16)
    return F.unfold(img, 16, stride=16).mT


@_patchify(
    "overlapping patches: stride forgotten",
    (
        "Your patches overlap: they are taken at every pixel. The stride is "
        "the patch's size."
    ),
)
def patchify_overlapping(img, patch=16):
    _checked(img, patch)
    return F.unfold(img, patch).mT


@_patchify(
    "(B, C·p·p, N): F.unfold's own layout",
    (
        "Your axes are (B, numbers, patches), which is what F.unfold returns. "
        "Patches come first: swap the last two axes."
    ),
)
def patchify_not_swapped(img, patch=16):
    _checked(img, patch)
    return F.unfold(img, patch, stride=patch)


@_patchify(
    "through numpy; gradient lost",
    (
        "No gradient flows to the pixels: the image leaves torch, or is "
        "detached, on the way."
    ),
)
def patchify_detached(img, patch=16):
    _checked(img, patch)
    return F.unfold(img.detach(), patch, stride=patch).mT


# Shown by: an image whose channels lie last in memory.
@_patchify(
    "hunt: img.view where the image is channels last",
    (
        "You use .view on the image as a whole, which raises where it is a "
        "transposed view, such as one loaded with its channels last. .reshape "
        "takes every tensor."
    ),
)
def patchify_view(img, patch=16):
    _checked(img, patch)
    flat = img.view(len(img), -1).view(img.shape)
    return F.unfold(flat, patch, stride=patch).mT


# Shown by: numbers that float32 cannot hold.
@_patchify(
    "hunt: img.float() first",
    (
        "You convert the pixels to float32, so float64 images lose half of "
        "their digits even if you convert back. Patches only move numbers."
    ),
)
def patchify_float32(img, patch=16):
    _checked(img, patch)
    return F.unfold(img.float(), patch, stride=patch).mT.to(img.dtype)


# 4.7 ViT


class _VitBlock(_Block):
    eps = 1e-6

    def causal(self, T):
        return None

    def check(self, T):
        pass


class _ViT(nn.Module):
    """A right vision transformer in pieces."""

    block, eps = _VitBlock, 1e-6

    def __init__(
        self,
        image_size=224,
        patch=16,
        d_model=768,
        n_heads=12,
        n_layers=12,
        n_classes=1000,
    ):
        super().__init__()
        self.patch, count = patch, (image_size // patch) ** 2
        self.patch_embed = nn.Linear(3 * patch**2, d_model)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.pos_embed = nn.Parameter(torch.randn(1, count + 1, d_model))
        self.blocks = self.stack(d_model, n_heads, n_layers)
        self.ln_f = nn.LayerNorm(d_model, eps=self.eps)
        self.head = nn.Linear(d_model, n_classes)

    def stack(self, d_model, n_heads, n_layers):
        return nn.ModuleList(
            self.block(d_model, n_heads) for _ in range(n_layers)
        )

    def tokens(self, img):
        x = self.patch_embed(F.unfold(img, self.patch, stride=self.patch).mT)
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos_embed

    def through(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def read(self, x):
        return self.head(self.ln_f(x)[:, 0])

    def forward(self, img):
        return self.read(self.through(self.tokens(img)))


@oracle(
    "ViT",
    evidence="a strided convolution and PyTorch's encoder layers "
    "with the model's weights",
)
class ViTLibrary(_ViT):
    def forward(self, img):
        D, p = self.ln_f.weight.shape[0], self.patch
        x = (
            F.conv2d(
                img,
                self.patch_embed.weight.view(D, 3, p, p),
                self.patch_embed.bias,
                stride=p,
            )
            .flatten(2)
            .mT
        )
        x = torch.cat([self.cls_token.expand(len(x), 1, D), x], 1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = _torch_layer(block, D, block.n_heads, 4 * D, "none")(x)
        return self.head(self.ln_f(x[:, 0]))


@right(
    "ViT",
    evidence="the norm after the class token is picked; fused "
    "attention; einops' kind of patches",
)
class ViTFused(_ViT):
    class block(_VitBlock):
        def mix(self, q, k, v, keep):
            q, k, v = self.split(q), self.split(k), self.split(v)
            return self.merge(F.scaled_dot_product_attention(q, k, v))

    def read(self, x):
        return F.linear(self.ln_f(x[:, 0]), self.head.weight, self.head.bias)


@right(
    "ViT", evidence="nn.Sequential for the stack; positions added in two parts"
)
class ViTSequential(_ViT):
    def stack(self, *sizes):
        return nn.Sequential(*super().stack(*sizes))

    def through(self, x):
        return self.blocks(x)

    def tokens(self, img):
        first, rest = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        x = self.patch_embed(patchify_einops(img, self.patch)) + rest
        return torch.cat(
            [(self.cls_token + first).expand(len(x), -1, -1), x], dim=1
        )


@right("ViT", evidence="K22 layout (T, B, D) inside")
class ViTTimeFirst(_ViT):
    def tokens(self, img):
        x = self.patch_embed(patchify_views(img, self.patch)).transpose(0, 1)
        cls = self.cls_token[0].expand(x.shape[1], -1)
        return (torch.stack([cls, *x]) + self.pos_embed[0][:, None]).transpose(
            0, 1
        )


def _vit(evidence, hint):
    return wrong("ViT", evidence=evidence, hint=hint)


@_vit(
    "curriculum 4.7; a GPT's block taken over",
    (
        "Your blocks are causal. The class token stands first, so it sees "
        "only itself and the image has no influence: no mask here."
    ),
)
class ViTCausal(_ViT):
    class block(_VitBlock):
        causal = _Block.causal


@_vit(
    "class token last; plausible",
    (
        "The class token stands after the patches, or has the last position. "
        "It comes first, and the positions are laid out accordingly."
    ),
)
class ViTClassLast(_ViT):
    def tokens(self, img):
        x = self.patch_embed(patchify_unfold(img, self.patch))
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([x, cls], dim=1) + self.pos_embed

    def read(self, x):
        return self.head(self.ln_f(x)[:, -1])


@_vit(
    "last token read, as in a GPT",
    ("The head reads the last token. The class token stands first."),
)
class ViTReadsLast(_ViT):
    def read(self, x):
        return self.head(self.ln_f(x)[:, -1])


@_vit(
    "mean pooling; a later variant",
    (
        "The head reads the mean over the tokens. Here it reads the class "
        "token, which is what it is for."
    ),
)
class ViTPools(_ViT):
    def read(self, x):
        return self.head(self.ln_f(x).mean(1))


@_vit(
    "mean over the patches; timm's option",
    (
        "The head reads the mean over the patches. Here it reads the class "
        "token."
    ),
)
class ViTPoolsPatches(_ViT):
    def read(self, x):
        return self.head(self.ln_f(x)[:, 1:].mean(1))


@_vit(
    "head on every token",
    (
        "Your head is applied to every token. One vector of logits an image "
        "is due, that of the class token."
    ),
)
class ViTEveryToken(_ViT):
    def read(self, x):
        return self.head(self.ln_f(x))


@_vit(
    "M193 NeMo#2197",
    (
        "The final norm is missing, or not applied: the head reads the stream "
        "as it is."
    ),
)
class ViTNoFinalNorm(_ViT):
    def read(self, x):
        return self.head(x[:, 0])


@_vit(
    "positions forgotten",
    (
        "The positions are never added, so the model cannot tell where a "
        "patch lies."
    ),
)
class ViTNoPositions(_ViT):
    def tokens(self, img):
        return super().tokens(img) - self.pos_embed


@_vit(
    "positions for patches only",
    (
        "The class token gets no position. pos_embed has N + 1 rows, the "
        "first of which is its own."
    ),
)
class ViTPositionsForPatches(_ViT):
    def tokens(self, img):
        x = super().tokens(img)
        return torch.cat([x[:, :1] - self.pos_embed[:, :1], x[:, 1:]], 1)


@_vit(
    "positions shifted by one",
    (
        "The patches get the positions of their predecessors: the first row "
        "of pos_embed belongs to the class token."
    ),
)
class ViTPositionsShifted(_ViT):
    def tokens(self, img):
        return (
            super().tokens(img) - self.pos_embed + self.pos_embed.roll(-1, 1)
        )


@_vit(
    "class token not expanded; plausible",
    (
        "torch.cat does not broadcast: the class token (1, 1, D) has to be "
        "expanded to the batch before it can stand before the patches."
    ),
)
class ViTNotExpanded(_ViT):
    def tokens(self, img):
        x = self.patch_embed(F.unfold(img, self.patch, stride=self.patch).mT)
        return torch.cat([self.cls_token, x], dim=1) + self.pos_embed


@_vit(
    "class token forgotten",
    ("The class token is missing in the sequence, or stays 0 for ever."),
)
class ViTNoClassToken(_ViT):
    def tokens(self, img):
        x = super().tokens(img)
        return torch.cat([x[:, :1] - self.cls_token, x[:, 1:]], 1)


@_vit(
    "nn.LayerNorm's default eps",
    (
        "Your norms have eps 1e-5, PyTorch's default. Vision transformers use "
        "1e-6, and loaded weights expect it."
    ),
)
class ViTDefaultEps(_ViT):
    eps = 1e-5

    class block(_VitBlock):
        eps = 1e-5


@_vit(
    "eps of the blocks' norms only",
    (
        "One kind of norm has another eps than 1e-6: those in the blocks and "
        "the final one all have it."
    ),
)
class ViTBlocksDefaultEps(_ViT):
    class block(_VitBlock):
        eps = 1e-5


@_vit(
    "M186 in this exercise", ("Your blocks are post-LN. They are pre-LN here.")
)
class ViTPost(_ViT):
    class block(_VitBlock):
        pre = _Block.post


@_vit(
    "inner order of the patches",
    (
        "Inside a patch your numbers have another order than (C, p, p), so "
        "loaded weights of patch_embed meet the wrong pixels."
    ),
)
class ViTChannelsLast(_ViT):
    def tokens(self, img):
        x = self.patch_embed(patchify_channels_last(img, self.patch))
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos_embed


@_vit(
    "patches down the columns",
    (
        "Your patches run down the columns, so they meet the positions of "
        "others. They run row by row."
    ),
)
class ViTByColumns(_ViT):
    def tokens(self, img):
        x = self.patch_embed(patchify_by_columns(img, self.patch))
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos_embed


@_vit(
    "M198 common",
    (
        "Every block gets the first tokens, and only the last one's result is "
        "used: the depth is 1. Feed each block the result of the one before."
    ),
)
class ViTDepthOne(_ViT):
    def through(self, x):
        for block in self.blocks:
            y = block(x)
        return y


@_vit(
    "M196 espnet#1278, encodecmae#3",
    (
        "All blocks are one and the same module, so they share their weights: "
        "[block] * n repeats a reference. Make each anew."
    ),
)
class ViTSharedBlocks(_ViT):
    def stack(self, d_model, n_heads, n_layers):
        return nn.ModuleList([self.block(d_model, n_heads)] * n_layers)


# Shown by: the initial values only.
@_vit(
    "M197 pytorch#86274",
    (
        "Your blocks start with the same weights: they are copies of one "
        "another, or each is made after the same seed. Make each anew."
    ),
)
class ViTCopiedBlocks(_ViT):
    def stack(self, d_model, n_heads, n_layers):
        import copy

        one = self.block(d_model, n_heads)
        return nn.ModuleList(copy.deepcopy(one) for _ in range(n_layers))


@_vit(
    "frozen class token or positions",
    (
        "The class token, or the positions, are not trained: they are "
        "parameters like all others."
    ),
)
class ViTFrozenPositions(_ViT):
    def tokens(self, img):
        x = self.patch_embed(patchify_unfold(img, self.patch))
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos_embed.detach()


@_vit(
    "M204 in this exercise",
    ("Your MLP uses the tanh form of GELU. The exact form is due."),
)
class ViTTanh(_ViT):
    class block(_VitBlock):
        activate = BlockAlwaysTanh.activate


@wrong(
    "ViT",
    evidence="logits or probabilities; common",
    hint=(
        "You return probabilities. Logits are due, without a softmax: cross-"
        "entropy applies it itself."
    ),
)
class ViTSoftmax(_ViT):
    def forward(self, images):
        return super().forward(images).softmax(-1)


@_vit(
    "K63 refused: Conv2d as patch_embed",
    (
        "Your patch_embed is a convolution. It computes the same, but here "
        "it is a linear layer on patches, and weights are loaded by its "
        "shape (d_model, 3·p·p)."
    ),
)
class ViTConvolution(_ViT):
    def __init__(self, image_size=224, patch=16, d_model=768, **how):
        super().__init__(image_size, patch, d_model, **how)
        self.patch_embed = nn.Conv2d(3, d_model, patch, patch)

    def tokens(self, img):
        x = self.patch_embed(img).flatten(2).mT
        cls = self.cls_token.expand(len(img), -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos_embed


@_vit(
    "qkv bias left out",
    (
        "attn.qkv_proj has no bias here. The blocks have all their biases; "
        "without them the base size has 27,648 parameters too few."
    ),
)
class ViTNoQkvBias(_ViT):
    class block(_VitBlock):
        def __init__(self, d_model, n_heads):
            super().__init__(d_model, n_heads)
            self.attn["qkv_proj"] = nn.Linear(d_model, 3 * d_model, bias=False)


@_vit(
    "dropout or noise in eval",
    (
        "Two calls in eval mode give different logits: something is dropped "
        "or drawn although the model is not training."
    ),
)
class ViTNoisy(_ViT):
    def tokens(self, img):
        return F.dropout(super().tokens(img), 0.1)


# Shown by: gradients only.
@_vit(
    "M175's kind: patches cut under no_grad",
    (
        "Your logits are right, but something on the way is detached (the "
        "pixels, say), so the gradient ends there. It flows to the pixels and "
        "to every parameter."
    ),
)
class ViTDetached(_ViT):
    def tokens(self, img):
        return super().tokens(img.detach())


# Shown by: train mode.
@_vit(
    "hunt: a dropout of 0.1 after the positions, as in the paper's code",
    (
        "In train mode something is dropped. This model has no dropout, in "
        "its blocks or elsewhere."
    ),
)
class ViTDrops(_ViT):
    def tokens(self, img):
        return F.dropout(super().tokens(img), 0.1, self.training)


# Shown by: images whose channels lie last in memory.
@_vit(
    "hunt: images.view where images are channels last",
    (
        "You use .view on the images as a whole, which raises where they are "
        "a transposed view, such as images loaded with their channels last. "
        ".reshape takes every tensor."
    ),
)
class ViTView(_ViT):
    def tokens(self, img):
        return super().tokens(img.view(len(img), -1).view(img.shape))


# 4.8 block_backward


def _phi(u):
    return np.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def _Phi(u):
    return torch.special.ndtr(torch.from_numpy(np.array(u))).numpy()


class _Backward:
    """A right backward pass in pieces."""

    eps = 1e-5

    def unit(self, x):
        c = x - x.mean(-1, keepdims=True)
        s = np.sqrt((c * c).mean(-1, keepdims=True) + self.eps)
        return c / s, s

    def unit_back(self, dy, y, s):
        return (
            dy
            - dy.mean(-1, keepdims=True)
            - y * (dy * y).mean(-1, keepdims=True)
        ) / s

    def gelu_back(self, u):
        return _Phi(u) + u * _phi(u)

    def scale(self, d_head):
        return 1 / math.sqrt(d_head)

    def mask(self, T):
        return np.tril(np.ones((T, T), bool))

    def softmax(self, scores):
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    def softmax_back(self, p, dp):
        return p * (dp - (p * dp).sum(-1, keepdims=True))

    def over_tokens(self, x):
        return x.sum((0, 1))

    def linear_back(self, name, x, dy):
        self.grads[f"{name}.weight"] = np.einsum("bti,btj->ij", dy, x)
        self.grads[f"{name}.bias"] = self.over_tokens(dy)
        return dy @ self.params[f"{name}.weight"]

    def linear(self, name, x):
        return (
            x @ self.params[f"{name}.weight"].T + self.params[f"{name}.bias"]
        )

    def norm(self, name, y):
        return y * self.params[f"{name}.weight"] + self.params[f"{name}.bias"]

    def norm_back(self, name, y, s, dz):
        self.grads[f"{name}.weight"] = self.over_tokens(dz * y)
        self.grads[f"{name}.bias"] = self.over_tokens(dz)
        return self.unit_back(dz * self.params[f"{name}.weight"], y, s)

    def heads(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, self.H, D // self.H).transpose(0, 2, 1, 3)

    def merge(self, x):
        B, _, T, _ = x.shape
        return x.transpose(0, 2, 1, 3).reshape(B, T, -1)

    def back_to_rows(self, dq, dk, dv):
        return np.concatenate([self.merge(t) for t in (dq, dk, dv)], -1)

    def key_scale(self, scale):
        return scale

    def to_sum(self, dout, branch):
        return dout + branch

    def to_input(self, dh, branch):
        return dh + branch

    def __call__(self, params, x, dout, n_heads):
        self.params, self.H, self.grads = params, n_heads, {}
        y1, s1 = self.unit(x)
        a = self.norm("ln1", y1)
        q, k, v = (
            self.heads(t)
            for t in np.split(self.linear("attn.qkv_proj", a), 3, axis=-1)
        )
        scale = self.scale(q.shape[-1])
        scores = np.where(self.mask(x.shape[1]), q @ _swap(k) * scale, -np.inf)
        p = self.softmax(scores)
        mixed = self.merge(p @ v)
        h = x + self.linear("attn.out_proj", mixed)
        y2, s2 = self.unit(h)
        b = self.norm("ln2", y2)
        u = self.linear("mlp.fc1", b)

        du = self.linear_back("mlp.fc2", u * _Phi(u), dout)
        db = self.linear_back("mlp.fc1", b, du * self.gelu_back(u))
        dh = self.to_sum(dout, self.norm_back("ln2", y2, s2, db))
        do = self.heads(self.linear_back("attn.out_proj", mixed, dh))
        ds = self.softmax_back(p, do @ _swap(v))
        dqkv = self.back_to_rows(
            ds @ k * scale,
            _swap(ds) @ q * self.key_scale(scale),
            _swap(p) @ do,
        )
        da = self.linear_back("attn.qkv_proj", a, dqkv)
        self.grads["x"] = self.to_input(dh, self.norm_back("ln1", y1, s1, da))
        return self.grads


def _swap(x):
    return np.swapaxes(x, -1, -2)


def _backward(mark):
    """Mark a class of backward passes, as the function that it is."""

    def marked(kind):
        def answer(params, x, dout, n_heads):
            return kind()(params, x, dout, n_heads)

        answer.__name__ = kind.__name__
        return mark(answer)

    return marked


@oracle("block_backward", evidence="autograd through PyTorch's encoder layer")
def block_backward_autograd(params, x, dout, n_heads):
    block = _Block(
        x.shape[-1],
        n_heads,
        mlp_expansion=len(params["mlp.fc1.bias"]) // x.shape[-1],
    )
    block = block.double()
    block.load_state_dict(
        {name: torch.from_numpy(value) for name, value in params.items()}
    )
    call = _torch_layer(
        block, x.shape[-1], n_heads, len(params["mlp.fc1.bias"]), "none"
    )
    x = torch.from_numpy(np.array(x)).requires_grad_()
    hide = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    out = call(x, hide)
    own = dict(block.named_parameters())
    grads = torch.autograd.grad(
        out, [*own.values(), x], torch.from_numpy(np.array(dout))
    )
    return {
        name: grad.numpy()
        for name, grad in zip([*own, "x"], grads, strict=True)
    }


@_backward(right("block_backward", evidence="numpy, by hand"))
class backward_by_hand(_Backward):
    pass


@_backward(
    right(
        "block_backward",
        evidence="K34 the norm's Jacobian as a matrix; loops over rows",
    )
)
class backward_jacobians(_Backward):
    def unit_back(self, dy, y, s):
        d = y.shape[-1]
        out = np.empty_like(dy)
        for index in np.ndindex(dy.shape[:-1]):
            jacobian = (
                np.eye(d) - 1 / d - np.outer(y[index], y[index]) / d
            ) / s[index]
            out[index] = jacobian @ dy[index]
        return out

    def softmax_back(self, p, dp):
        out = np.empty_like(p)
        for index in np.ndindex(p.shape[:-1]):
            row = p[index]
            out[index] = (np.diag(row) - np.outer(row, row)) @ dp[index]
        return out


@_backward(right("block_backward", evidence="K30 math.erf, number by number"))
class backward_math_erf(_Backward):
    def gelu_back(self, u):
        erf = np.vectorize(math.erf)(u / math.sqrt(2))
        return (1 + erf) / 2 + u * _phi(u)


def _back(evidence, hint):
    return _backward(wrong("block_backward", evidence=evidence, hint=hint))


@_back(
    "M204 derivative of another form",
    (
        "The derivative of GELU is that of the tanh form. Here GELU is exact: "
        "Φ(u) + u φ(u)."
    ),
)
class backward_tanh_form(_Backward):
    def gelu_back(self, u):
        root = math.sqrt(2 / math.pi)
        t = np.tanh(root * (u + 0.044715 * u**3))
        return (1 + t) / 2 + u / 2 * (1 - t * t) * root * (
            1 + 3 * 0.044715 * u * u
        )


@_back(
    "one term of the product rule",
    (
        "GELU's derivative has two terms, since u stands in u·Φ(u) twice: you "
        "have left out u φ(u)."
    ),
)
class backward_gelu_one_term(_Backward):
    def gelu_back(self, u):
        return _Phi(u)


@_back(
    "GELU skipped on the way back; common",
    (
        "The gradient passes GELU unchanged. Multiply with its derivative at "
        "the hidden units."
    ),
)
class backward_no_gelu(_Backward):
    def gelu_back(self, u):
        return np.ones_like(u)


@_back(
    "ReLU's derivative",
    ("You multiply with ReLU's derivative, 0 or 1. GELU's is Φ(u) + u φ(u)."),
)
class backward_relu(_Backward):
    def gelu_back(self, u):
        return (u > 0).astype(float)


@_back(
    "density without its constant",
    ("The normal density lacks its factor 1/√(2π)."),
)
class backward_density_unscaled(_Backward):
    def gelu_back(self, u):
        return _Phi(u) + u * np.exp(-u * u / 2)


@_back(
    "M175 in this exercise",
    (
        "You take mean and standard deviation of the norms for constants. "
        "Both depend on the row: two more terms, one subtracts the mean of "
        "what arrives, one its part along the normalised row."
    ),
)
class backward_norm_detached(_Backward):
    def unit_back(self, dy, y, s):
        return dy / s


@_back(
    "M175 variance detached",
    (
        "The norms' variance is taken for a constant: subtract the part of "
        "what arrives that lies along the normalised row."
    ),
)
class backward_variance_detached(_Backward):
    def unit_back(self, dy, y, s):
        return (dy - dy.mean(-1, keepdims=True)) / s


@_back(
    "M175 mean detached",
    (
        "The norms' mean is taken for a constant: subtract the mean of what "
        "arrives."
    ),
)
class backward_mean_detached(_Backward):
    def unit_back(self, dy, y, s):
        return (dy - y * (dy * y).mean(-1, keepdims=True)) / s


@_back(
    "M182 sum for mean",
    (
        "In the norm's backward pass you sum where a mean over the channels "
        "is due."
    ),
)
class backward_norm_sums(_Backward):
    def unit_back(self, dy, y, s):
        return (
            dy
            - dy.sum(-1, keepdims=True)
            - y * (dy * y).sum(-1, keepdims=True)
        ) / s


@_back(
    "gain skipped",
    (
        "What arrives at a norm has to be multiplied with its gain before it "
        "goes through the normalisation."
    ),
)
class backward_gain_skipped(_Backward):
    def norm_back(self, name, y, s, dz):
        super().norm_back(name, y, s, dz)
        return self.unit_back(dz, y, s)


@_back(
    "M168 in this exercise",
    ("Your norms divide by d − 1. The block's norms divide by d."),
)
class backward_unbiased(_Backward):
    def unit(self, x):
        c = x - x.mean(-1, keepdims=True)
        s = np.sqrt(x.var(-1, ddof=1, keepdims=True) + self.eps)
        return c / s, s


@_back(
    "eps left out of the standard deviation",
    (
        "Your norms use another eps than 1e-5: rows that are close to equal "
        "show it."
    ),
)
class backward_other_eps(_Backward):
    eps = 1e-6


@_back(
    "residual forgotten around the MLP",
    (
        "The stream's own gradient is lost at the second sum: what arrives "
        "there is dout plus what came through the MLP's branch."
    ),
)
class backward_no_second_residual(_Backward):
    def to_sum(self, dout, branch):
        return branch


@_back(
    "residual forgotten around attention",
    (
        "The stream's own gradient is lost at the first sum: x gets what "
        "arrives there plus what came through the attention's branch."
    ),
)
class backward_no_first_residual(_Backward):
    def to_input(self, dh, branch):
        return branch


@_back(
    "the MLP's way forgotten",
    (
        "What comes back through the MLP's branch is lost: attention and x "
        "see dout only."
    ),
)
class backward_mlp_way_lost(_Backward):
    def to_sum(self, dout, branch):
        return dout


@_back(
    "the attention's way forgotten; facts.md on 10/04",
    ("What comes back through the attention's branch never reaches x."),
)
class backward_attention_way_lost(_Backward):
    def to_input(self, dh, branch):
        return dh


@_back(
    "scale forgotten on the way back",
    (
        "The gradients of queries or keys lack the scale 1/√Dh: both get it, "
        "since the scores are scaled products."
    ),
)
class backward_key_unscaled(_Backward):
    def key_scale(self, scale):
        return 1.0


@_back(
    "scale forgotten for both",
    (
        "The scale 1/√Dh is in your forward pass and not in the way back: "
        "the gradients of queries and of keys both get it."
    ),
)
class backward_unscaled(_Backward):
    def back_to_rows(self, dq, dk, dv):
        root = math.sqrt(dq.shape[-1])
        return super().back_to_rows(dq * root, dk * root, dv)


@_back(
    "D2 wrong divisor",
    (
        "Your scores are divided by the root of d_model. The root of the head "
        "width is due."
    ),
)
class backward_scale_by_model(_Backward):
    def scale(self, d_head):
        return 1 / math.sqrt(self.H * d_head)


@_back(
    "M-kind of 1.1: no maximum subtracted",
    (
        "Large scores overflow in your softmax and give NaN. Subtract each "
        "row's maximum before np.exp: it changes no weight."
    ),
)
class backward_overflows(_Backward):
    def softmax(self, scores):
        with np.errstate(all="ignore"):
            p = np.exp(scores)
            return p / p.sum(-1, keepdims=True)


@_back(
    "M003 in this exercise",
    (
        "You subtract the maximum of all scores. A row far below it "
        "underflows to zeros, and 0/0 is NaN: each row needs its own maximum."
    ),
)
class backward_global_maximum(_Backward):
    def softmax(self, scores):
        with np.errstate(all="ignore"):
            p = np.exp(scores - scores.max())
            return p / p.sum(-1, keepdims=True)


@_back(
    "hunt: exp of all scores, times the mask",
    (
        "The maximum that you subtract may be that of a hidden score. If it "
        "is by far the largest, all visible exponentials underflow to 0, and "
        "0/0 is NaN. Hide first, then take the maximum."
    ),
)
class backward_maximum_of_hidden(_Backward):
    def __call__(self, params, x, dout, n_heads):
        self.visible = super().mask(x.shape[1])
        return super().__call__(params, x, dout, n_heads)

    def mask(self, T):
        return np.ones((T, T), bool)

    def softmax(self, scores):
        with np.errstate(all="ignore"):
            p = np.exp(scores - scores.max(-1, keepdims=True)) * self.visible
            return p / p.sum(-1, keepdims=True)


@_back(
    "M052 in this exercise",
    ("Your forward pass has no causal mask. The block's attention is causal."),
)
class backward_not_causal(_Backward):
    def mask(self, T):
        return np.ones((T, T), bool)


@_back(
    "softmax's Jacobian taken for diagonal",
    (
        "You use the diagonal of the softmax's Jacobian only: p(1 − p)·dP. "
        "Each weight depends on all scores of its row."
    ),
)
class backward_softmax_diagonal(_Backward):
    def softmax_back(self, p, dp):
        return p * (1 - p) * dp


@_back(
    "softmax skipped",
    ("The average under P is not subtracted in the softmax's backward pass."),
)
class backward_softmax_half(_Backward):
    def softmax_back(self, p, dp):
        return p * dp


@_back(
    "order of the rows",
    (
        "You put queries', keys' and values' gradients together in another "
        "order than the rows of qkv_proj: q, k, v."
    ),
)
class backward_rows_reordered(_Backward):
    def back_to_rows(self, dq, dk, dv):
        return super().back_to_rows(dk, dq, dv)


@_back(
    "M079 on the way back",
    (
        "You merge the heads' gradients without swapping the axes back, so "
        "tokens and heads are scrambled."
    ),
)
class backward_merge_by_view(_Backward):
    def back_to_rows(self, dq, dk, dv):
        B, H, T, size = dq.shape
        return np.concatenate(
            [t.reshape(B, T, H * size) for t in (dq, dk, dv)], -1
        )


@_back(
    "means for sums",
    (
        "You average the gradients of biases and gains over the tokens. A "
        "gradient sums over everything that the parameter touches."
    ),
)
class backward_means(_Backward):
    def over_tokens(self, x):
        return x.mean((0, 1))


@_back(
    "M095's kind: weight gradients transposed",
    (
        "The gradients of the weights are transposed. They have the weights' "
        "shape, (out, in)."
    ),
)
class backward_transposed(_Backward):
    def linear_back(self, name, x, dy):
        out = super().linear_back(name, x, dy)
        self.grads[f"{name}.weight"] = self.grads[f"{name}.weight"].T.copy()
        return out


@_back(
    "biases forgotten",
    (
        "The dict lacks some gradients, those of the biases. Every name in "
        "params has one, and so has x."
    ),
)
class backward_without_biases(_Backward):
    def __call__(self, *args):
        return {
            name: grad
            for name, grad in super().__call__(*args).items()
            if not name.endswith("bias")
        }


@_back(
    "x forgotten",
    (
        'The dict lacks "x", the gradient with respect to the block\'s input, '
        "which the block below needs."
    ),
)
class backward_without_x(_Backward):
    def __call__(self, *args):
        grads = super().__call__(*args)
        del grads["x"]
        return grads


@_back(
    "M051 in this exercise",
    (
        "You compute in float32 although everything is float64, so half of "
        "the digits are lost."
    ),
)
class backward_float32(_Backward):
    def __call__(self, params, x, dout, n_heads):
        grads = super().__call__(
            {name: value.astype(np.float32) for name, value in params.items()},
            x.astype(np.float32),
            dout.astype(np.float32),
            n_heads,
        )
        return {name: grad.astype(float) for name, grad in grads.items()}


@_back(
    "M011 in this exercise",
    (
        "Your gradients are right, but you changed the caller's arrays on the "
        "way. Work on new ones."
    ),
)
class backward_in_place(_Backward):
    def __call__(self, params, x, dout, n_heads):
        grads = super().__call__(params, x, dout, n_heads)
        x += 1
        return grads


@_back(
    "post-LN in the forward pass; M186",
    (
        "Your forward pass feeds the branches the stream as it is: the norms "
        "are missing there, or stand elsewhere. The block is pre-LN."
    ),
)
class backward_without_first_norm(_Backward):
    def unit(self, x):
        return x, np.ones_like(x[..., :1])

    def unit_back(self, dy, y, s):
        return dy


LEFT_OUT = {
    "M084": "needs a flattened head axis; lesson 2 has it",
    "M085": "one matrix shared by heads has other shapes: refused by names",
    "M086": "SwiGLUShared stands for it; heads are one matrix here",
    "M096": "other shapes: refused by names",
    "M097": "the contract promises that n_heads divides d_model",
    "M098": "belongs to lesson 2, which judges the merge",
    "M100": "no cache here",
    "M101": "gives what the scrambled splits give in kind",
    "K11": "nan_to_num after the softmax has a NaN gradient (measured): "
    "EncoderWhere stands for the style that holds",
    "K14": "not an answer but mask shapes",
    "K17": "extra arguments change nothing here",
    "K20": "bias is fixed by the contract",
    "K21": "refused where rows are documented: BlockRowsReordered",
    "K45": "F.layer_norm is forbidden; the moment form is refused",
}
