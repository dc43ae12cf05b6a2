# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stitching: code without loops
#
# With `scope="memory_bound"`, chains of operators that memory limits become custom calls, too: softmax,
# normalisations and their gradients, losses. XLA makes several kernels of them, which pass arrays through
# memory. You learn how many bytes both move beside the least that is possible, and what this means for time,
# also where there is nothing to gain. This takes about a minute, and longer on a busy machine. It needs a
# checkout, since the census is not part of the installed package.
#
# The stored pictures come from a run on two cores of a processor with x86-64 instructions, with jax 0.10.2
# and no GPU. Other programs may have used these cores, which mostly slows stock XLA down: the first output
# says how many processes there were for each core. **Times depend on the machine: run it on yours.**

# %% tags=["parameters"]
SMALL = False
SECONDS = 1.0

# %%
# %matplotlib inline
import os
import sys

import jax
import matplotlib.pyplot as plt

import jax_cocktail

sys.path.insert(0, "..")  # the root of the checkout
from benchmarks.census.measure import measure
from benchmarks.census.patterns import PATTERNS

plt.style.use("both.mplstyle")
load = os.getloadavg()[0] / os.cpu_count()
print(f"jax {jax.__version__} on {jax.default_backend()}; {load:.1f} processes for each core at the start")

# %% [markdown]
# ## One pattern
#
# A softmax reads each row three times: for its maximum, for the sum, for the result. If a row stays in a
# cache or in registers, memory has to deliver it once.


# %%
def softmax(x):
    return jax.nn.softmax(x, axis=-1)


x = jax.random.normal(jax.random.key(0), (16, 500) if SMALL else (64, 20_000))
ours = jax_cocktail.jit(softmax, options={"scope": "memory_bound", "force": "cocktail", "compile": "now"})
print(jax_cocktail.explain(ours, stock=True)(x))

# %% [markdown]
# ## The census
#
# `benchmarks/census` has 18 such patterns. `measure` compiles one under stock XLA and under ours (forced),
# compares both results with float64, counts bytes, and times both in turn. `python -m benchmarks.census`
# prints all of them.

# %%
NAMES = (
    ["softmax 30000", "quantise", "figure 7"]
    if SMALL
    else [
        "softmax 50257",
        "layer norm backward",
        "rms norm backward",
        "group norm",
        "standardise columns",
        "several consumers",
        "divergence",
        "quantise",
        "rows of 30000",
        "figure 7",
    ]
)
rows = [measure(PATTERNS[name], "straight", SECONDS, small=SMALL) for name in NAMES]
for row in rows:
    print(
        f"{row.pattern:20} kernels {row.stock.kernels:3.0f} -> {row.ours.kernels:.0f}, "
        f"bytes {row.stock.traffic:.2f} -> {row.ours.traffic:.2f} (to memory {row.ours.far:.2f}), "
        f"{row.stock.seconds * 1e3:7.2f} ms -> {row.ours.seconds * 1e3:6.2f} ms, ratio {row.ratio:.2f}"
    )
    assert not row.problem, row.problem

# %% [markdown]
# ## Bytes against the lower bound
#
# Every input has to be read once and every output written once: this is the lower bound, 1.

# %%
figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1))
for row_number, row in enumerate(rows):
    axes.plot([row.ours.far, row.stock.traffic], [row_number] * 2, color="#767676", alpha=0.4, zorder=1)
places = range(len(rows))
axes.scatter(
    [row.stock.traffic for row in rows],
    places,
    color="#8a8f98",
    label="stock XLA: operands and results of kernels",
)
axes.scatter(
    [row.ours.traffic for row in rows],
    places,
    facecolors="none",
    edgecolors="#2f7fd6",
    label="ours: all loads and stores",
)
axes.scatter(
    [row.ours.far for row in rows], places, color="#2f7fd6", label="ours: those that leave the caches"
)
axes.axvline(1, color="#3a9d5d", linewidth=1.2)
axes.set_yticks(places, [row.pattern for row in rows])
axes.invert_yaxis()
axes.set_xlim(left=0)
axes.set_xlabel("bytes moved, over those of inputs and outputs")
axes.legend(
    fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3, handletextpad=0.1, columnspacing=0.8
)
plt.show()

# %% [markdown]
# **What the picture shows.** The green line is the lower bound. Grey: what stock XLA's kernels read and
# write, counted from its compiled module. Blue: ours, counted in a simulated run. A row that is loaded again
# while it is in a cache counts for the open circle, but not for the full one.
#
# **What it does not show.** Caches help stock XLA as well: its figure has no simulation of them. And bytes
# are not time: where arithmetic (an `exp`, a division) takes longer than memory, fewer bytes gain nothing.
#
# ## Time

# %%
figure, axes = plt.subplots(figsize=(7, 0.34 * len(rows) + 0.9))
ratios = [row.ratio for row in rows]
bars = axes.barh(
    [row.pattern for row in rows], ratios, color=["#2f7fd6" if ratio >= 1 else "#d9822b" for ratio in ratios]
)
axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], fontsize=8, padding=2)
axes.axvline(1, color="#767676", linewidth=1)
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
axes.margins(x=0.1)
axes.set_xlabel("time of stock XLA / ours, of the fastest calls")
plt.show()
slower = [row.pattern for row in rows if row.ratio < 1]
print("slower than stock XLA in this run:", ", ".join(slower) or "none")

# %% [markdown]
# **What the picture shows.** Right of 1, ours is faster (blue); left of it, slower (orange), and the last
# line names these. A reduction that stock XLA computes with one kernel (`rows of 30000`), and a pattern of
# few bytes and much arithmetic (`quantise`), have little to gain: on an idle machine they are close to 1,
# on either side. Without `force`, `jit` times both and keeps stock XLA where that is faster.
#
# **What it does not show.** Other machines. On two cores that other processes use, the times of stock XLA
# grow more than ours, so the ratios are larger than on idle ones. On a GPU, ratios are others; no file in
# `benchmarks/results` has the census of one yet.
