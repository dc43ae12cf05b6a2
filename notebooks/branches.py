# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Branches: does a skipped block cost nothing?
#
# Networks like BlockDrop and SkipNet decide for each input which of their blocks run. In JAX this is a
# `lax.cond` for each block. You learn how the time of a call depends on the share of blocks that run: for one
# input, for a batch in which every input has gates of its own (`vmap`), and where convolutions dominate. This
# takes about a minute.
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
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import lax

import jax_cocktail
from jax_cocktail_tools.models import MODELS, largest_difference

plt.style.use("both.mplstyle")
load = os.getloadavg()[0] / os.cpu_count()
print(f"jax {jax.__version__} on {jax.default_backend()}; {load:.1f} processes for each core at the start")


def fastest(*functions):
    """Seconds of the fastest of many calls, in turn: other programs only ever make a call slower."""
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for number, function in enumerate(functions):
            begin = time.perf_counter()
            jax.block_until_ready(function())
            best[number] = min(best[number], time.perf_counter() - begin)
    return best


OURS = {
    "force": "cocktail",
    "compile": "now",
}  # our program even where stock XLA is faster; wait for the compiler

# %% [markdown]
# ## A network with a gate in front of each block


# %%
def network(x, gates, weights):
    def block(x, operands):
        gate, (inner, outer) = operands

        def run(x):
            return x + jnp.tanh(x @ inner) @ outer

        return lax.cond(gate, run, lambda x: x, x), None

    return lax.scan(block, x, (gates, weights))[0]


blocks, size, batch = (8, 16, 4) if SMALL else (32, 128, 32)
keys = jax.random.split(jax.random.key(0), 5)
weights = tuple(jax.random.normal(key, (blocks, size, size)) / size for key in keys[:2])
x, xs = jax.random.normal(keys[2], (size,)), jax.random.normal(keys[3], (batch, size))
order = jax.random.uniform(keys[4], (batch, blocks)).argsort(axis=1)  # which block is switched on first
print(f"{blocks} blocks of two {size} x {size} matrices; a batch has {batch} inputs")

# %% [markdown]
# `sweep` calls a function under stock XLA and under ours for more and more blocks that run, and takes the
# fastest of many calls. The results must be equal up to rounding. Nothing is compiled again: gates are data.

# %%
SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]


def sweep(function, arguments_of, shares):
    """Microseconds of a call under (stock XLA, ours), for each share."""
    stock, ours = jax.jit(function), jax_cocktail.jit(function, options=OURS)
    found = []
    for share in shares:
        arguments = arguments_of(share)
        assert largest_difference(ours(*arguments), stock(*arguments)) < 5e-5
        runs = [lambda f=f, a=arguments: f(*a) for f in (stock, ours)]
        found.append([1e6 * seconds for seconds in fastest(*runs)])
    return found


gates_of = {share: order < round(share * blocks) for share in SHARES}
one = sweep(network, lambda share: (x, gates_of[share][0], weights), SHARES)
many = sweep(jax.vmap(network, (0, 0, None)), lambda share: (xs, gates_of[share], weights), SHARES)
for title, rows in (("one input", one), (f"a batch of {batch}", many)):
    for share, (stock, ours) in zip(SHARES, rows, strict=True):
        print(f"{title:15} {share:4.0%} of the blocks run: stock {stock:7.0f} us, ours {ours:7.0f} us")

# %%
figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.8))
titles = "one input", f"vmap: {batch} inputs, each with its gates"
for axes, title, rows in zip(panels, titles, (one, many), strict=True):
    for label, times in zip(("stock XLA", "ours, forced"), zip(*rows, strict=True), strict=True):
        axes.plot([100 * share for share in SHARES], times, marker="o", label=label)
    axes.set_title(title)
    axes.set_xlabel("blocks that run, %")
panels[0].set_ylim(bottom=0)
panels[0].set_ylabel("microseconds per call")
panels[0].legend()
panels[1].set_yscale("log")
plt.show()

# %% [markdown]
# **What the picture shows.** Left: under both, a skipped block is cheap; the distance between the lines is
# what stock XLA spends on the loop, the branches and the start of small kernels. Right (logarithmic): `vmap`
# turns a `cond` with a batch of predicates into a `select`, so stock XLA runs every block for every input,
# whatever the gates are. Ours turns it back into a branch: each input runs its own blocks.
#
# **What it does not show.** Blocks that are large matrix products of a whole batch: the more time a block
# takes, the closer the lines are, and XLA's matrix products for many rows can be better than ours. Ours is
# forced here; without the option, `jit` uses whichever is faster.

# %%
for title, which in (("all blocks skipped", 0), ("all blocks run", -1)):
    ratios = [rows[which][0] / rows[which][1] for rows in (one, many)]
    print(f"{title:18} stock / ours = {ratios[0]:.1f} for one input, {ratios[1]:.1f} for a batch")

# %% [markdown]
# ## Convolutions: BlockDrop
#
# The model of the COCKTAILER paper: a ResNet for 32 x 32 images, with 15 blocks of two convolutions. The
# policy, an argument, says which blocks run.

# %%
function, arguments = MODELS["blockdrop"].make(batch=1, small=SMALL)
images, policy, *rest = arguments
number = policy.shape[1]
spread = (jnp.arange(number) * 7 % number).argsort()  # blocks of all widths, in turn


def with_blocks(running):
    return images, (spread < running).astype(jnp.float32)[None], *rest


counts = [0, number // 4, number // 2, 3 * number // 4, number]
convolutions = sweep(function, with_blocks, counts)

# %%
figure, axes = plt.subplots(figsize=(4.2, 2.6))
for label, times in zip(("stock XLA", "ours, forced"), zip(*convolutions, strict=True), strict=True):
    axes.plot(counts, [time / 1e3 for time in times], marker="o", label=label)
axes.set_xlabel(f"blocks that run, of {number}")
axes.set_ylabel("milliseconds per call")
axes.set_ylim(bottom=0)
axes.legend()
plt.show()

# %% [markdown]
# **What the picture shows.** Both lines begin near the cost of the first convolution and grow with the blocks
# that run. Here arithmetic dominates, so there is much less to gain from the branches.
#
# ## What the compiler did
#
# The line `batch elements: ...` says that the `select` became a branch again.

# %%
ours = jax_cocktail.jit(jax.vmap(network, (0, 0, None)), options=OURS)
print(jax_cocktail.explain(ours)(xs, gates_of[0.5], weights))
