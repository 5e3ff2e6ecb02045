# %% [markdown]
# # Scaling laws
#
# **Goal:** know what a training run costs before it starts, and which model
# is worth that cost.
#
# Read [the chapter](../book/ch7_scaling_laws.md) first, or keep it open
# beside this notebook: every task below is one idea of it.
# Each task is followed by a cell in which you write and a cell that checks.
# The tasks do not need each other.
#
# **Conventions** hold in every task of this notebook and are graded:
#
# - **Letters.** N is the number of parameters, D the number of tokens that a
#   model is trained on, C the compute of that training in FLOPs, loss is the
#   mean cross-entropy in nats a token.
#   (Elsewhere in the course, and still in task 7.1, D is the width of a model
#   and L its number of layers.
#   From 7.2 on D counts tokens, and losses that come with runs are called L,
#   as in the papers.)
# - **Counting.** A multiply-add is 2 FLOPs.
#   Attention is counted dense, as if there were no causal mask.
#   Training on D tokens takes C = 6ND FLOPs, where nothing finer is asked
#   for: 2N for a token's forward pass, 4N for its backward pass.
# - **A loss's constants** come as a dict `p` with the keys `"A"`, `"B"`,
#   `"E"`, `"alpha"` and `"beta"`, in any order, all positive floats:
#   $\mathrm{loss}(N, D) = E + A / N^\alpha + B / D^\beta$.
# - **Numbers** are Python floats or integers; arrays are numpy arrays of
#   `float64` or of integers.
#   All are positive where nothing else is said.
#   Where you return a number, a Python or a numpy number is right.
# - **Arguments** are never modified, and arrays may be non-contiguous views.

# %% provided="imports"
import math
from dataclasses import dataclass

import numpy as np

from autograder import check


# %% provided="gpt_config"
@dataclass
class GPTConfig:
    """Sizes of a GPT; by default those of GPT-2 small."""

    vocab_size: int = 50257
    context_length: int = 1024
    d_model: int = 768
    n_heads: int = 12
    n_layers: int = 12
    dropout: float = 0.0
    bias: bool = True


# %% [markdown]
# Three published sets of constants, to try your functions on.
# The first two come from the same fit: the paper prints rounded exponents,
# its source text has more digits.
# The third is another group's fit to the same experiments.

# %% provided="constants"
CONSTANTS = {
    # Hoffmann et al. 2022, section 3.3: as printed
    "rounded": dict(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28),
    # the same fit, exponents as in the source of the paper
    "unrounded": dict(A=406.4, B=410.7, E=1.69, alpha=0.33917, beta=0.28491),
    # Besiroglu et al. 2024
    "replicated": dict(
        A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658
    ),
}

# %% [markdown]
# ## 7.1 What a pass through a GPT costs
#
# **Goal:** count the FLOPs of one sequence, part by part.
#
# The model is chapter 5's GPT: L layers with attention and an MLP that is 4
# times as wide as the stream, and a head of V logits.
# Only products of matrices are counted.
# Norms, softmaxes, GELUs, biases, residual additions and the lookup of
# embeddings together are small change, and count nothing.
#
# **Contract**
#
# - `cfg` is a `GPTConfig` as above; `T` is the length of the sequence, which
#   may be shorter or longer than `cfg.context_length`.
# - Return a dict with exactly these keys (integers, or floats of the same
#   value), FLOPs for **one sequence of T tokens** and for **all layers**:
#   - `projections`: those of attention, D → 3D and D → D;
#   - `attention`: the products $QK^\top$ and weights · V of all heads, dense;
#   - `mlp`: D → 4D and 4D → D;
#   - `lm_head`: D → V, at all T positions (a tied matrix saves memory, not
#     this product);
#   - `forward`: the sum of these four;
#   - `train`: forward and backward pass.
#     Backward, each product becomes two of the same size, one for the
#     gradient of either factor; so this is three times `forward`.
# - D is `cfg.d_model` here, L is `cfg.n_layers`, V is `cfg.vocab_size`;
#   `cfg.n_heads` divides D, and nothing has to be checked.
#
# **Example**
#
# ```python
# cfg = GPTConfig(vocab_size=7, d_model=4, n_heads=2, n_layers=1)
# transformer_flops(cfg, T=3)
# # {"projections": 384, "attention": 144, "mlp": 768, "lm_head": 168,
# #  "forward": 1464, "train": 4392}
# transformer_flops(GPTConfig(), T=1024)["forward"]  # 291_648_307_200
# ```
#
# torch's `FlopCounterMode` counts the same 291,648,307,200 on GPT-2 small when
# attention is written as two products; the CPU's fused attention it does not
# count at all (torch 2.13).
#
# **Why it matters:** trained on sequences of 1,024, that is 854 million FLOPs
# a token, while the rule of thumb says 6N = 747 million.
# The rule has no term for attention, which grows with T, and it counts the
# positions' table, which costs nothing.
#
# <details>
# <summary>Hint 1: what does a product of matrices cost?</summary>
#
# A product (m, n) @ (n, p) has m·p results, and each takes n multiply-adds.
# Which m do all linear layers of one sequence have?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# The linear layers of a block map T rows: D → 3D, D → D, D → 4D, 4D → D.
# In a head, the scores are (T, Dh) @ (Dh, T), and the weights meet the values
# in (T, T) @ (T, Dh).
# Multiply by the heads, and H·Dh is D again.
# Blocks count L times, the head once.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `2 * T * n_in * n_out` for a linear layer; `2 * (2 * T * T * D)` for the
# attention of all heads of one layer.
#
# </details>


# %% exercise="transformer_flops" level=2 minutes=20
def transformer_flops(cfg, T: int) -> dict:
    """FLOPs of a GPT's matrix products for one sequence.

    cfg: a GPTConfig
    T: tokens in the sequence
    returns: {"projections", "attention", "mlp", "lm_head": FLOPs of a
        forward pass in all layers, "forward": their sum, "train": with the
        backward pass}; a multiply-add is 2, attention is dense
    source: Kaplan et al. 2020, table 1; Chowdhery et al. 2022, appendix B
    """

    ### BEGIN SOLUTION
    def linear(n_in, n_out):
        return 2 * T * n_in * n_out

    D, layers = cfg.d_model, cfg.n_layers
    parts = {
        "projections": layers * (linear(D, 3 * D) + linear(D, D)),
        "attention": layers * 2 * (2 * T * T * D),
        "mlp": layers * (linear(D, 4 * D) + linear(4 * D, D)),
        "lm_head": linear(D, cfg.vocab_size),
    }
    forward = sum(parts.values())
    return {**parts, "forward": forward, "train": 3 * forward}
    ### END SOLUTION


# %% [markdown]
# ## 7.2 Model FLOPs utilisation
#
# **Goal:** say which share of a machine's arithmetic does the model's work.
#
# **Contract**
#
# - `tokens_per_s` is what the whole machine trains on in a second,
#   `flops_per_token` what a token costs **in training**, forward and backward
#   pass together; `peak` is the FLOPs that the whole machine could do in a
#   second, all its chips together.
# - Return the share of `peak` that the model uses, as a float: 0.25, not
#   25.
# - Return what the numbers say, neither rounded nor limited: more than 1 is
#   impossible, so you want to see it when it comes out.
#   0 tokens a second are 0.0.
#
# **Example**
#
# ```python
# mfu(tokens_per_s=100_000, flops_per_token=1e9, peak=4e14)   # 0.25
# ```
#
# **Why it matters:** a utilisation is comparable between machines and models,
# tokens a second are not.
# Only the FLOPs that the model needs count, not those that a program does:
# with activations computed a second time, PaLM's training used 57.8% of the
# hardware's peak, and 46.2% of the peak for the model (Chowdhery et al. 2022).
#
# <details>
# <summary>Hint 1: which unit must come out?</summary>
#
# None.
# Tokens a second times FLOPs a token are in which unit?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# FLOPs a second that the model needs, divided by FLOPs a second that the
# machine can do.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `tokens_per_s * flops_per_token` is the numerator; the factor for the
# backward pass is already in it.
#
# </details>


# %% exercise="mfu" level=1 minutes=5
def mfu(tokens_per_s: float, flops_per_token: float, peak: float) -> float:
    """Model FLOPs utilisation.

    tokens_per_s: tokens a second, of the whole machine
    flops_per_token: FLOPs of a token's forward and backward pass
    peak: FLOPs a second of the whole machine
    returns: a fraction
    source: Chowdhery et al. 2022, section 4.1
    """
    ### BEGIN SOLUTION
    achieved = tokens_per_s * flops_per_token
    return achieved / peak
    ### END SOLUTION


# %% [markdown]
# ## 7.3a The loss of a model that was never trained
#
# **Goal:** predict a loss from two sizes.
#
# $$\mathrm{loss}(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}$$
#
# E is what this kind of model cannot learn, since text is not certain; the
# second term is what a model of N parameters misses, the third what D tokens
# cannot teach.
#
# **Contract**
#
# - `N` and `D` are numbers or arrays; two arrays have shapes that broadcast.
# - Return the loss in nats: a float for two numbers, otherwise a `float64`
#   array of the broadcast shape.
# - `p` holds the five constants, as in the conventions, and may be any such
#   dict, not only the published ones.
#
# **Example**
#
# ```python
# p = dict(A=8.0, B=27.0, E=1.5, alpha=0.5, beta=1 / 3)
# parametric_loss(16.0, 27.0, p)                          # 1.5 + 2 + 9 = 12.5
# parametric_loss(np.array([16.0, 64.0]), 27.0, p)        # [12.5, 11.5]
# parametric_loss(70e9, 1.4e12, CONSTANTS["rounded"])     # 1.937
# ```
#
# The last line is Chinchilla itself: 70 billion parameters, 1.4 trillion
# tokens.
#
# **Why it matters:** the sum says that neither size can make up for the other:
# with infinitely many tokens a small model still keeps its $A/N^\alpha$.
#
# <details>
# <summary>Hint 1: what is left for infinite N and D?</summary>
#
# Text that is not certain: which of the five constants is that?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Three summands; the first exponent belongs to N, the second to D.
# Arithmetic on numpy arrays broadcasts by itself, so numbers and arrays need
# no different code.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `p["A"] / N ** p["alpha"]`
#
# </details>


# %% exercise="parametric_loss" level=3 minutes=10
def parametric_loss(N, D, p: dict):
    """Loss of a model of N parameters after D tokens.

    N, D: numbers, or arrays whose shapes broadcast
    p: {"A", "B", "E", "alpha", "beta"}
    returns: nats a token; a number, or an array of the broadcast shape
    source: Hoffmann et al. 2022, equation 2
    """
    ### BEGIN SOLUTION
    missed_by_size = p["A"] / N ** p["alpha"]
    missed_by_data = p["B"] / D ** p["beta"]
    return p["E"] + missed_by_size + missed_by_data
    ### END SOLUTION


# %% [markdown]
# ## 7.3b The best model for a budget
#
# **Goal:** spend C FLOPs so that the loss is smallest.
#
# A larger model sees fewer tokens: N and D are tied by 6ND = C.
# Along that line the loss falls, and then rises again.
#
# **Contract**
#
# - `C` is a number or an array of budgets in FLOPs; `p` as in the conventions.
# - Return the pair (N, D) that minimises $E + A/N^\alpha + B/D^\beta$ under
#   $6ND = C$:
#   two floats for a number, two `float64` arrays of C's shape for an array.
#   They need not be whole numbers.
# - N is judged to a relative 1e-3, so a numeric minimum is as good as the
#   closed form; 6ND = C is judged to a relative 1e-6.
# - C lies between 1e15 and 1e28.
#
# **Example**
#
# ```python
# even = dict(A=400.0, B=400.0, E=1.7, alpha=0.3, beta=0.3)
# compute_optimal(6e20, even)                      # N = D = 1e10
# compute_optimal(5.76e23, CONSTANTS["rounded"])   # N 3.219e10, D 2.982e12
# ```
#
# **Why it matters:** the three sets of constants disagree.
# For Chinchilla's own budget of 5.76e23 FLOPs, and for a small one:
#
# | Constants | N at 1e19 | D/N | N at 5.76e23 | D/N |
# |---|---|---|---|---|
# | rounded | 228 M | 32.1 | 32.2 B | 92.6 |
# | unrounded | 271 M | 22.7 | 40.4 B | 58.9 |
# | replicated | 262 M | 24.2 | 72.2 B | 18.4 |
#
# Rounding the exponents to two digits makes the best model a fifth smaller.
# "20 tokens a parameter" is near to some of these numbers and far from
# others: it is no constant.
#
# <details>
# <summary>Hint 1: at the best point, what balances what?</summary>
#
# Let N grow by 1%; then D shrinks by 1%.
# By how much does $A/N^\alpha$ fall, and by how much does $B/D^\beta$ rise?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Put D = C / 6N into the loss, and set the derivative with respect to ln N to
# 0: $\alpha A/N^\alpha = \beta B/D^\beta$.
# Put D in once more and solve for N; then D is C / 6N.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `G * (C / 6) ** (beta / (alpha + beta))` is N, with
# `G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))`.
#
# </details>


# %% exercise="compute_optimal" level=3 minutes=20
def compute_optimal(C: float, p: dict) -> tuple[float, float]:
    """Parameters and tokens that give the smallest loss for a budget.

    C: FLOPs of training, 6 N D; a number or an array
    p: {"A", "B", "E", "alpha", "beta"}
    returns: N and D, each as C is
    source: Hoffmann et al. 2022, equation 4
    """
    ### BEGIN SOLUTION
    alpha, beta = p["alpha"], p["beta"]
    ratio = alpha * p["A"] / (beta * p["B"])
    N = ratio ** (1 / (alpha + beta)) * (C / 6) ** (beta / (alpha + beta))
    return N, C / (6 * N)
    ### END SOLUTION


# %% [markdown]
# ## 7.4 The first scaling laws
#
# **Goal:** the laws that came two years before Chinchilla's, with which they
# are easily mixed up.
#
# They have no E: for large models and much data the loss goes to 0.
# Kaplan et al. (2020) give three of them,
#
# $$\begin{gathered}
# \mathrm{loss}(N) = \left(\frac{N_c}{N}\right)^{\alpha_N} \\
# \mathrm{loss}(D) = \left(\frac{D_c}{D}\right)^{\alpha_D}
# \end{gathered}$$
#
# $$\mathrm{loss}(N, D) = \left[\left(\frac{N_c}{N}\right)
# ^{\alpha_N/\alpha_D} + \frac{D_c}{D}\right]^{\alpha_D}$$
#
# for models with enough data, data with a model that is large enough, and
# both limits at once.
#
# **Contract**
#
# - $N_c = 8.8 \cdot 10^{13}$, $\alpha_N = 0.076$, $D_c = 5.4 \cdot 10^{13}$,
#   $\alpha_D = 0.095$, in all three laws.
#   (For the third one the paper also has a fit of its own, with other
#   constants, $D_c$ a third of this one; it is not asked for here.)
# - N is the number of parameters **without embeddings**, D the number of
#   tokens; each is a number, or `None`, which is the default.
# - With N alone return the first law, with D alone the second, with both the
#   third, as a float, in nats.
# - Without either, raise a `ValueError`.
#
# **Example**
#
# ```python
# kaplan_loss(N=1e9)             # 2.376
# kaplan_loss(D=1e10)            # 2.262
# kaplan_loss(N=1e9, D=1e10)     # 2.484
# ```
#
# **Why it matters:** these laws stood behind models like GPT-3, with 175
# billion parameters and 300 billion tokens: 1.7 tokens a parameter.
# Chinchilla's came to another exponent; part of the reason is the N without
# embeddings, which makes a small model look far smaller than it is.
#
# <details>
# <summary>Hint 1: what happens to the third law for infinite D?</summary>
#
# Which summand in the bracket vanishes?
# What do the two exponents that are left make together?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Tell the four cases apart with `is None`.
# In the third law the bracket is a sum, and the outer exponent holds for all
# of it.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `((N_c / N) ** (alpha_N / alpha_D) + D_c / D) ** alpha_D`
#
# </details>


# %% exercise="kaplan_loss" level=1 minutes=10
def kaplan_loss(N: float | None = None, D: float | None = None) -> float:
    """Loss by the laws of 2020, for either limit or for both.

    N: parameters without embeddings
    D: tokens
    returns: nats a token
    raises ValueError: if neither is given
    source: Kaplan et al. 2020, equations 1.1, 1.2 and 1.5
    """
    ### BEGIN SOLUTION
    N_c, alpha_N = 8.8e13, 0.076
    D_c, alpha_D = 5.4e13, 0.095
    if N is None and D is None:
        raise ValueError("give N, D, or both")
    if D is None:
        return (N_c / N) ** alpha_N
    if N is None:
        return (D_c / D) ** alpha_D
    return ((N_c / N) ** (alpha_N / alpha_D) + D_c / D) ** alpha_D
    ### END SOLUTION


# %% [markdown]
# ## 7.5 The valley of a budget
#
# **Goal:** read the best size for each budget off real runs, and the power law
# that the best sizes follow.
#
# Train several models with the **same** compute C, from small ones on many
# tokens to large ones on few.
# Plotted against ln N, their losses form a valley; its lowest point is the
# best size for C.
#
# **Contract**
#
# - `runs` is a list of dicts `{"C": FLOPs, "N": parameters, "L": loss}`, all
#   floats, in **any order**.
#   Runs of one budget have exactly the same C.
#   There are at least two budgets with at least three different N each; the
#   number of runs may differ from budget to budget, and one N may have
#   several runs, which all count, equal ones too.
# - For each budget fit a **parabola** to the loss L as a function of ln N, by
#   least squares with equal weights.
#   Its vertex is $\ln N_\text{opt}$, wherever it lies, outside of the runs
#   too.
# - Then fit a straight line to $\ln N_\text{opt}$ as a function of ln C, by
#   least squares, **each budget counting once**: so
#   $N_\text{opt} \approx \text{coefficient} \cdot C^\text{exponent}$.
# - Return a dict with exactly these keys:
#   - `C`: the budgets, rising, each once; `N_opt`: the sizes at the vertices,
#     in the same order (both arrays or lists of floats);
#   - `exponent` and `coefficient`, floats.
# - Judged to a relative 1e-5.
#
# **Example**
#
# ```python
# def run(C, N, best):  # an exact valley
#     return {"C": C, "N": N, "L": 2 + np.log(N / best) ** 2}
#
# small = [run(1e18, N, best=2e7) for N in (1e7, 2e7, 3e7)]
# large = [run(1e20, N, best=2e8) for N in (1e8, 3e8, 9e8)]
# isoflop_fit(small + large)
# # C [1e18, 1e20], N_opt [2e7, 2e8], exponent 0.5, coefficient 0.02
# ```
#
# **Why it matters:** no law of the loss is assumed, which makes this the most
# honest of Chinchilla's three methods, but not an unbiased one: a real valley
# is no parabola.
# On losses from the rounded constants of 7.3, nine sizes from a quarter to
# four times the best one give an N_opt that is 1.4% too large; nine sizes
# from a sixteenth of the best one up to it give one that is 10% too small.
# If all budgets from 1e18 to 1e22 use the same sizes from 3e7 to 1e10, the
# smallest budget's vertex is 11% too large and the largest's 27% too small,
# and the exponent comes out as 0.414 instead of 0.452.
#
# <details>
# <summary>Hint 1: where is the lowest point of a parabola?</summary>
#
# For a·x² + b·x + c with a > 0, where is the derivative 0?
# And what is x here?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Collect the runs by their C.
# In each group fit a polynomial of degree 2 in ln N, take its vertex, and
# return from the logarithm.
# Then fit a polynomial of degree 1 to the logarithms of the best sizes.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `a, b, _ = np.polyfit(np.log(N), L, 2)`, and the vertex is `-b / (2 * a)`.
#
# </details>


# %% exercise="isoflop_fit" level=3 minutes=30
def isoflop_fit(runs: list[dict]) -> dict:
    """The best size of each budget, and the power law through them.

    runs: [{"C": FLOPs, "N": parameters, "L": nats a token}, ...]
    returns: {"C": budgets, rising, "N_opt": the best sizes, "exponent",
        "coefficient": N_opt is coefficient * C ** exponent}
    source: Hoffmann et al. 2022, section 3.2
    """
    ### BEGIN SOLUTION
    budgets = sorted({run["C"] for run in runs})
    log_best = []
    for C in budgets:
        own = [run for run in runs if run["C"] == C]
        log_N = np.log([run["N"] for run in own])
        a, b, _ = np.polyfit(log_N, [run["L"] for run in own], 2)
        log_best.append(-b / (2 * a))
    exponent, intercept = np.polyfit(np.log(budgets), log_best, 1)
    return {
        "C": budgets,
        "N_opt": np.exp(log_best),
        "exponent": exponent,
        "coefficient": np.exp(intercept),
    }
    ### END SOLUTION


# %% [markdown]
# ## 7.6 Fit the law itself
#
# **Goal:** find A, B, E, α and β from a few dozen runs, of which some went
# wrong.
#
# The fit is Chinchilla's third method.
# With a = ln A, b = ln B and e = ln E, all of which may be any number, the
# logarithm of the loss is
# $\mathrm{LSE}(a - \alpha \ln N,\; b - \beta \ln D,\; e)$, where LSE is the
# logarithm of a sum of exponentials.
# Minimised is
#
# $$\begin{gathered}
# \sum_i \mathrm{Huber}_\delta\!\left(\mathrm{LSE}_i - \ln L_i\right), \\
# \mathrm{Huber}_\delta(r) = \begin{cases} r^2/2 & |r| \le \delta \\
# \delta\,(|r| - \delta/2) & |r| > \delta \end{cases}
# \end{gathered}$$
#
# so that a run which is off by much pulls no harder than one which is off by
# δ.
#
# **Contract**
#
# - `N`, `D`, `L` are arrays (n,): parameters, tokens, and the loss in nats of
#   n runs; `delta` is δ.
# - Return a dict with exactly the keys `A`, `B`, `E`, `alpha`, `beta`, all
#   floats: A, B and E themselves, not their logarithms.
# - **The data** are synthetic, and their true constants are what your result
#   is compared with.
#   n is 36; N lies between 1e7 and 1e10, D between 1e8 and 1e11, each at six
#   sizes, in every combination.
#   The true α and β lie between 0.25 and 0.55, E between 1.4 and 2.2, A and B
#   between 80 and 20,000.
#   Losses are exact, or off by up to 0.1% with three of the 36 runs broken:
#   their loss is 10 to 30% too high.
# - α, β and E are judged to ±0.04, and the losses that your constants predict
#   to 1%, in the middle of the data $(N = 10^{8.5}, D = 10^{9.5})$ and
#   beyond them $(N = 10^{11}, D = 10^{12}).$
#   One case has broken runs and δ = 10, far above all residuals; the minimum
#   of the sum is not at the true constants then, and you are compared with
#   the minimum.
# - **Search to the end.**
#   The sum is as small as δ, so slopes and changes that optimisers take for
#   0 by default can be those of a point far from the minimum: scipy's
#   L-BFGS-B, from one start, ends with an error of up to 0.4 on some data and
#   none on others.
#   With 10,000 times the sum, the same search is off by less than 0.01 on all
#   of 40 draws of this check.
# - **Time:** at most 2 seconds of one core for each fit, on average.
#   The check makes five, and the grader ends it after 10 seconds.
# - numpy and torch (`import torch`) are all you need; where scipy is installed
#   you may use it.
#
# **Example**
#
# ```python
# p = dict(A=400.0, B=1000.0, E=1.7, alpha=0.33, beta=0.35)
# N, D = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6),
#                                        np.geomspace(1e8, 1e11, 6)))
# fit_chinchilla(N, D, p["E"] + p["A"] / N**p["alpha"] + p["B"] / D**p["beta"])
# # {"A": 400.0, "B": 1000.0, "E": 1.7, "alpha": 0.33, "beta": 0.35}
# ```
#
# **Why it matters:** the published constants of Chinchilla come from such a
# fit, and Besiroglu et al. (2024) show that they are not its minimum.
# The sum has flat regions and several valleys; a search may end in the wrong
# one, or on the way to the right one.
#
# <details>
# <summary>Hint 1: where does one start from one point end?</summary>
#
# Start with α = β = 1: for N = 1e9, how large are the first two terms beside
# E, and how large are their derivatives?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Write the sum as a function of (a, b, e, α, β), try many starts on a grid,
# minimise from each, and keep the best of all ends.
# For a given α and β, the loss is a **linear** function of A, B and E: least
# squares gives a start for each pair of exponents.
# All starts can be minimised at once as a batch, with torch's LBFGS or with
# Gauss-Newton steps in which each run has the weight min(1, δ/|r|).
# An optimiser's default tolerances are made for sums of the size of 1 and
# above: give it 10,000 times the sum.
# (Divided by δ it is large enough for δ = 0.001, and too small for δ = 10.)
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `np.logaddexp.reduce([a - alpha * x, b - beta * y, e + 0 * x])` with x = ln N
# and y = ln D, or `torch.logsumexp` of the same three, stacked.
# With m = min(|r|, δ), the Huber loss of r is `m * (abs(r) - m / 2)`.
#
# </details>


# %% exercise="fit_chinchilla" level=5 minutes=60
def fit_chinchilla(
    N: np.ndarray, D: np.ndarray, L: np.ndarray, delta: float = 1e-3
) -> dict:
    """Constants of the loss E + A / N^alpha + B / D^beta, by a robust fit.

    N, D, L: (n,) parameters, tokens, and loss in nats a token
    delta: residual of ln L from which on the Huber loss is linear
    returns: {"A", "B", "E", "alpha", "beta"}
    source: Hoffmann et al. 2022, section 3.3
    """
    ### BEGIN SOLUTION
    log_N, log_D, log_L = np.log(N), np.log(D), np.log(L)

    def start(alpha, beta):
        terms = np.stack([N**-alpha, D**-beta, np.ones_like(L)], axis=1)
        best = np.linalg.lstsq(terms / L[:, None], np.ones_like(L))[0]
        return [*np.log(best.clip(min=1e-3)), alpha, beta]

    def look(points):
        """Loss, residuals and their derivatives, for each point."""
        a, b, e, alpha, beta = points.T[:, :, None]
        parts = np.stack([a - alpha * log_N, b - beta * log_D, e + 0 * log_N])
        total = np.logaddexp.reduce(parts)
        first, second, third = np.exp(parts - total)
        slopes = first, second, third, -log_N * first, -log_D * second
        r = total - log_L
        size = np.minimum(abs(r), delta)
        loss = (size * (abs(r) - size / 2)).sum(-1)
        return loss, r, np.stack(slopes, axis=-1)

    grid = (0.2, 0.4, 0.6)
    points = np.array([start(alpha, beta) for alpha in grid for beta in grid])
    damping = np.full((len(points), 1, 1), 1e-3)
    for _ in range(60):
        loss, r, slopes = look(points)
        pull = np.minimum(1, delta / np.maximum(abs(r), 1e-300))
        weighted = slopes.mT * pull[:, None]
        curvature = weighted @ slopes
        # In units of the curvature's own diagonal, so no scale matters.
        ridge = (damping * curvature + 1e-15) * np.eye(5)
        step = np.linalg.solve(curvature + ridge, weighted @ r[:, :, None])
        tried = points - step[:, :, 0]
        better = look(tried)[0] < loss
        points[better] = tried[better]
        damping *= np.where(better, 1 / 3, 3)[:, None, None]
    a, b, e, alpha, beta = points[np.argmin(look(points)[0])].tolist()
    return {
        "A": math.exp(a),
        "B": math.exp(b),
        "E": math.exp(e),
        "alpha": alpha,
        "beta": beta,
    }
    ### END SOLUTION


# %% [markdown]
# ## 7.7 The best model for those who use it
#
# **Goal:** reach a given loss with the fewest FLOPs in a model's whole life.
#
# A model is trained once, for $6ND$ FLOPs, and then reads and writes
# $D_\text{inf}$ tokens for its users, for $2N$ FLOPs each.
# Many models reach the same loss: a smaller one needs more tokens of training
# and saves at every token of use.
#
# **Contract**
#
# - `loss` is a number in nats, `D_inf` the number of tokens in use, 0
#   included; `p` as in the conventions.
# - Return the pair of floats (N, D) that minimises
#   $6ND + 2N D_\text{inf}$ among all pairs with
#   $E + A/N^\alpha + B/D^\beta$ = `loss`.
# - N is judged to a relative 1e-3, so a numeric minimum will do; the loss at
#   your N and D is judged to 1e-6 nats.
# - `D_inf` lies between 0 and 1e16, the loss between E + 0.05 and E + 5; α and
#   β lie between 0.2 and 0.8.
# - A `loss` that is not above E is out of reach: raise a `ValueError`.
#
# **Example**
#
# ```python
# p = CONSTANTS["rounded"]
# inference_optimal(2.1, 0, p)       # N 6.724e9, D 4.454e11
# inference_optimal(2.1, 1e12, p)    # N 4.039e9, D 8.156e11
# inference_optimal(1.69, 1e12, p)   # ValueError
# ```
#
# With 10¹² tokens of use the second model takes 2.785e22 FLOPs in all, the
# first one 3.142e22: its training is cheaper (1.797e22 against 1.977e22), its
# use is not.
#
# **Why it matters:** this is why models are trained on hundreds or thousands
# of tokens a parameter.
# For $D_\text{inf} = 0$ the answer is that of 7.3b: what is cheapest for a
# loss is also what is best for its cost.
#
# <details>
# <summary>Hint 1: how many unknowns are there?</summary>
#
# Two, and one equation ties them.
# If you know D, which $A/N^\alpha$ is left for the model, and so which N?
#
# </details>
# <details>
# <summary>Hint 2: the idea in words</summary>
#
# Either minimise numerically over ln N or ln D alone, on the interval where
# the other one exists, with a search that keeps narrowing it.
# Or set the derivative to 0: with Lagrange's rule
# $\alpha A/N^\alpha = \beta B/D^\beta \, (1 + D_\text{inf}/3D)$.
# Together with the constraint that is one equation for D, whose left side
# falls as D grows, so halving an interval of ln D finds it.
#
# </details>
# <details>
# <summary>Hint 3: the key line</summary>
#
# `B / D**beta * (1 + beta / alpha * (1 + D_inf / (3 * D))) - (loss - E)` is
# 0 at the right D; below the D for D_inf = 0 it is positive.
#
# </details>


# %% exercise="inference_optimal" level=4 minutes=40
def inference_optimal(
    loss: float, D_inf: float, p: dict
) -> tuple[float, float]:
    """The model that costs least, training and use together.

    loss: to be reached, in nats a token
    D_inf: tokens that the model processes in use, 2 N FLOPs each
    p: {"A", "B", "E", "alpha", "beta"}
    returns: N and D that minimise 6 N D + 2 N D_inf at that loss
    raises ValueError: if the loss is not above E
    source: Sardana et al. 2024
    """
    ### BEGIN SOLUTION
    reducible = loss - p["E"]
    if reducible <= 0:
        raise ValueError(f"a loss of {loss} is not above E = {p['E']}")
    alpha, beta = p["alpha"], p["beta"]

    def missed_by_data(log_D):
        return p["B"] * math.exp(-beta * log_D)

    def too_high(log_D):
        use = 1 + D_inf / 3 * math.exp(-log_D)
        return missed_by_data(log_D) * (1 + beta / alpha * use) > reducible

    low = math.log(p["B"] / reducible) / beta
    high = low + 1
    while too_high(high):
        high += 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_high(middle) else (low, middle)
    N = (p["A"] / (reducible - missed_by_data(high))) ** (1 / alpha)
    return N, math.exp(high)
    ### END SOLUTION


# %% [markdown]
# ## Two labs
#
# They are not graded; each ends with numbers of your own beside measured
# ones, and both are in [the chapter](../book/ch7_scaling_laws.md):
#
# - **Length extrapolation**: train a small model on 64 tokens, test it on
#   256, with each way of giving it positions.
# - **Five tiny models** and the law that their losses follow.

# %% [markdown]
# ## What to do next
#
# Run `check.summary()` in a new cell: it lists your points and the tasks that
# still miss some.
# Before you hand in, restart the kernel and run all cells from the top, so
# that nothing depends on a cell you have since changed; then save and hand in
# this notebook under its own name.
# Write only in the cells that are yours: all others are restored when the
# notebook is graded, and your helper functions may stand in cells of their
# own.
#
# This was the last chapter.
# You can now build a GPT, make it fast, and say how large it should be before
# you train it.
