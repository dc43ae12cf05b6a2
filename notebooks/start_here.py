# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here: two loops, under stock XLA and under jax_cocktail
#
# You learn whether the results are equal, which one is faster on your machine, what changes in the compiled
# program, and how to ask why. The two programs are an LSTM (`scan`: a loop of known length) and a greedy
# decoder (`while_loop`: it stops when the data says so). This takes about a minute.
#
# The stored pictures come from a run on two cores of a processor with x86-64 instructions, with jax 0.10.2
# and no GPU. Other programs may have used these cores, which mostly slows stock XLA down: the first output
# says how many processes there were for each core. **Times depend on the machine: run it on yours.**

# %% [markdown]
# `SMALL` shrinks every size, so that the notebook runs in seconds; its times say nothing. `SECONDS` is how
# long each program is timed.

# %% tags=["parameters"]
SMALL = False
SECONDS = 3.0

# %%
# %matplotlib inline
import os
import re
from collections import Counter

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import lax

import jax_cocktail
from jax_cocktail_tools.models.compare import compare

plt.style.use("both.mplstyle")
load = os.getloadavg()[0] / os.cpu_count()
print(f"jax {jax.__version__} on {jax.default_backend()}; {load:.1f} processes for each core at the start")

# %% [markdown]
# ## Two ordinary JAX programs


# %%
def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) / shape[-2] ** 0.5


def cell(x, h, c, weights):
    gates = jnp.concatenate([x, h], axis=-1) @ weights
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(inputs, layers):
    """All layers, for one sentence: `inputs` is (steps, units)."""

    def step(states, x):
        new = []
        for (h, c), weights in zip(states, layers, strict=True):
            h, c = cell(x, h, c, weights)
            new.append((h, c))
            x = h
        return new, None

    zero = jnp.zeros(inputs.shape[1])
    return lax.scan(step, [(zero, zero) for _ in layers], inputs)[0][-1][0]


def decode(h, embedding, weights, readout, longest=50):
    """The most likely word, again and again, until the word 0 ends the sentence; and the number of words."""

    def go_on(state):
        step, word, *_ = state
        return (word != 0) & (step < longest)

    def next_word(state):
        step, word, h, c, words = state
        h, c = cell(embedding[word], h, c, weights)
        word = jnp.argmax(h @ readout).astype(jnp.int32)
        return step + 1, word, h, c, words.at[step].set(word)

    state = 0, jnp.int32(1), h, jnp.zeros_like(h), jnp.zeros(longest, jnp.int32)
    step, _, _, _, words = lax.while_loop(go_on, next_word, state)
    return words, step


# %%
steps, units, depth = (8, 16, 2) if SMALL else (64, 256, 10)
small_units, vocabulary = (16, 40) if SMALL else (128, 500)
layers = [2 * normal(n, 2 * units, 4 * units) for n in range(depth)]
programs = {
    "LSTM": (lstm, (normal(50, steps, units), layers)),
    "decoder": (
        decode,
        (
            jnp.tanh(normal(60, 1, small_units)[0]),
            jax.random.normal(jax.random.key(61), (vocabulary, small_units)),
            2 * normal(62, 2 * small_units, 4 * small_units),
            normal(63, small_units, vocabulary),
        ),
    ),
}
for name, (_, arguments) in programs.items():
    shapes = [str(leaf.shape) for leaf in jax.tree.leaves(arguments)]
    print(f"{name}: {', '.join(shapes[:4])}{', ...' if shapes[4:] else ''}")

# %% [markdown]
# ## Equal results?
#
# `compare` calls each program under `jax.jit`, under `jax_cocktail.jit` with our program forced, and under
# `jax_cocktail.jit` as it is, which times both and keeps the faster one. `difference` is the largest
# difference from the result of stock XLA, relative to the largest element if that is above 1. Words are
# integers: they must be equal.

# %%
rows = {
    name: compare(function, arguments, seconds=SECONDS) for name, (function, arguments) in programs.items()
}
for name, row in rows.items():
    print(
        f"{name:8} captured {row.captured}, difference {row.difference:.1e}; stock {row.stock * 1e3:.3f} ms, "
        f"ours {row.ours * 1e3:.3f} ms; jit uses {row.choice}"
    )
    assert row.difference < 2e-5

# %% [markdown]
# ## How much faster?

# %%
figure, axes = plt.subplots(figsize=(6, 2.4))
ways = {"stock XLA": "stock", "ours, forced": "ours", "ours, left to choose": "auto"}
for offset, (label, field) in enumerate(ways.items()):
    found = [getattr(row, field) for row in rows.values()]
    speedups = [row.stock / seconds for row, seconds in zip(rows.values(), found, strict=True)]
    bars = axes.bar([k + 0.27 * (offset - 1) for k in range(len(rows))], speedups, 0.25, label=label)
    axes.bar_label(bars, [f"{seconds * 1e3:.2f} ms" for seconds in found], fontsize=8)
axes.set_xticks(range(len(rows)), rows)
axes.set_ylabel("speed-up over stock XLA")
axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()

# %% [markdown]
# **What the picture shows:** stock XLA's time over ours, each the median of calls that took turns.
# Higher is faster. The third bar is what you get without options: if ours were slower than stock XLA, it
# would be close to 1.
#
# **What it does not show:** the first call. Ours needs a C++ compiler once; the result is stored on disk, and
# by default stock XLA runs the calls meanwhile. The next cell prints this cost.

# %%
for name, row in rows.items():
    print(f"{name:8} first call: stock XLA {row.first_stock:.2f} s, ours {row.first_ours:.2f} s if it waits")

# %% [markdown]
# ## What changes in the compiled program?
#
# Both are XLA modules, which JAX shows as text. Stock XLA keeps the loop: a `while` whose body launches many
# small kernels in each trip. Ours is one `custom-call`: the loop runs inside of it, beside the data.


# %%
def compiled(jitted, arguments):
    return jitted.lower(*arguments).compile().as_text()


def count(text):
    return Counter(re.findall(r"^\s*(?:ROOT )?%[\w.-]+ = .*? ([a-z][\w-]*)\(", text, re.MULTILINE))


def short(text, opcode):
    """The first instruction of this kind, without its operands."""
    line = next(line.strip() for line in text.splitlines() if f" {opcode}(" in line)
    name, right = line.removeprefix("ROOT ").split(" = ", 1)
    shape, rest = right.split(f" {opcode}(", 1)
    shape = shape if len(shape) < 50 else f"{shape[:40]}...)"
    facts = re.findall(r'(?:condition|body|custom_call_target)=[%"\w.]+|known_trip_count":\{"n":"\d+', rest)
    facts = [fact.replace('":{"n":"', "=") for fact in facts]
    return f"{name} = {shape} {opcode}(...), {', '.join(facts)}"


shown = ("while", "dot", "fusion", "custom-call", "copy", "dynamic-slice")
for name, (function, arguments) in programs.items():
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "compile": "now"})
    before, after = (compiled(jitted, arguments) for jitted in (jax.jit(function), ours))
    print(f"{name}, stock XLA:\n  {short(before, 'while')}\n{name}, ours:\n  {short(after, 'custom-call')}")
    for title, text in (("stock XLA", before), ("ours", after)):
        found = count(text)
        print(f"  {title:10}", "  ".join(f"{found[opcode]} {opcode}" for opcode in shown))
    assert count(before)["while"] == 1 and count(after)["while"] == 0 and count(after)["custom-call"] == 1

# %% [markdown]
# The counts are of instructions in the text, those of the loop's body once. A `fusion` or `dot` of the body
# runs in every trip of the loop.
#
# ## Why?
#
# `explain` says what was captured, who decided, the times of all candidates, and what the compiler did. With
# `stock=True` it counts the kernels of stock XLA. Its lines are described in `docs/explain.md`.

# %%
report = jax_cocktail.explain(lstm, stock=True)(*programs["LSTM"][1])
for captured in report.captured:  # none where stock XLA is the better choice
    print(f"one call: {captured.kernels} kernel and {captured.waits:.0f} barriers")
    print(f"under stock XLA: {captured.stock.kernels:.0f} kernels")

# %%
report

# %% [markdown]
# ## Next
#
# - `branches`: what a skipped block costs. `recursion`: trees that are data. `stitching`: code without loops.
# - `bring_your_own_loop`: solvers, samplers and decoders of libraries. `reading_results`: GPUs, and
#   timelines.
# - For your own function: `jax_cocktail.jit(f)` instead of `jax.jit(f)`, then
#   `print(jax_cocktail.explain(f)(*arguments))`.
