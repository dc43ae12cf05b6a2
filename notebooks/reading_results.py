# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading results: a file from a GPU, and a timeline
#
# Two things to read when a number surprises you. The first part reads a file that `python
# benchmarks/gpu_check.py` wrote on a card; it needs no GPU here. The second part records a call on this
# machine and shows where its time went. This takes less than half a minute.
#
# The times of the first part are those of the card that the file names. Those of the second part come from
# a run on two cores of a processor with x86-64 instructions; the first output says how many other processes
# there were for each core.

# %% tags=["parameters"]
SMALL = False
SECONDS = 1.0

# %%
# %matplotlib inline
import json
import os
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import lax

import jax_cocktail

plt.style.use("both.mplstyle")
load = os.getloadavg()[0] / os.cpu_count()
print(f"jax {jax.__version__} on {jax.default_backend()}; {load:.1f} processes for each core at the start")

# %% [markdown]
# ## A file of results
#
# `benchmarks/results` has a file for each run on a card: `gpu_check_<card>_<sources>.json`. It has a section
# for each kind of measurement, and in it a record for each program. `benchmarks/results/README.md` describes
# them.

# %%
paths = sorted(Path("../benchmarks/results").glob("gpu_check_*.json"))
runs = {path.name: json.loads(path.read_text()) for path in paths}
runs = {name: run for name, run in runs.items() if run["sections"]["versions"]["all"].get("card")}
name, run = next(iter(runs.items()))
sections = run["sections"]
versions = sections["versions"]["all"]
print(name)
print(f"{versions['card']['name']}, jax {versions['packages']['jax']}, {versions['compiler']}")
print("sections:", ", ".join(f"{section} ({len(records)})" for section, records in sections.items()))

# %% [markdown]
# **Are the results right?** `correct` compares with float64. A record without `ok` was not finished: `error`
# or `skipped` says why. Such a program has no time either; never read a missing time as a good one.

# %%
programs = list(sections["reference"])
states = {}
for program in programs:
    record = sections["correct"].get(program, {})
    state = {True: "agrees", False: "WRONG"}.get(record.get("ok"), "not checked")
    states.setdefault(state, []).append(program)
for state, found in states.items():
    print(f"{state}: {len(found)}" + (f" ({', '.join(found)})" if state != "agrees" else ""))
timed = [program for program in programs if "ours" in sections["times"].get(program, {}).get("seconds", {})]
print(f"timed: {len(timed)} of {len(programs)}")

# %% [markdown]
# **How fast are whole calls?** `times` has the seconds of a call in each form: `ours` (forced), `stock`, and
# `graphs`: stock XLA with everything captured in CUDA graphs that can be. Compare with the better one of the
# two.

# %%
forms = {"stock": "stock XLA", "graphs": "stock XLA, captured", "ours": "ours, forced"}
seconds = {form: [1e6 * sections["times"][program]["seconds"][form] for program in timed] for form in forms}
figure, axes = plt.subplots(figsize=(7.4, 3))
for offset, (form, color) in enumerate(zip(forms, ("#8a8f98", "#d9822b", "#2f7fd6"), strict=True)):
    axes.bar(
        [k + 0.27 * (offset - 1) for k in range(len(timed))],
        seconds[form],
        0.25,
        color=color,
        label=forms[form],
    )
axes.set_yscale("log")
axes.set_xticks(range(len(timed)), timed, rotation=25, ha="right")
axes.grid(axis="x", visible=False)
axes.set_ylabel("microseconds per call")
axes.set_title(f"whole calls on an {versions['card']['name']}", pad=24)
axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.99))
plt.show()
for program, stock, graphs, ours in zip(timed, *seconds.values(), strict=True):
    best = min(stock, graphs)
    print(f"{program:12} better form of stock / ours = {best / ours:5.2f}{'  slower' if best < ours else ''}")

# %% [markdown]
# **What the picture shows.** Lower is faster, and the scale is logarithmic. `lstm/64` is the LSTM with a
# batch of 64.
#
# **What it does not show.** What `jit` uses by default: it keeps stock XLA where that is faster (section
# `auto`). And what of a call is the kernel: `times` has our kernels alone.

# %%
for program in timed:
    kernel = sections["times"][program].get("kernel", {})
    choice = sections["auto"].get(program, {}).get("choice", "not measured")
    if "seconds" in kernel:
        took, said = (kernel[key] * 1e6 for key in ("seconds", "predicted_seconds"))
        print(f"{program:12} kernel {took:7.0f} us; the model of that run said {said:6.1f} us; jit: {choice}")

# %% [markdown]
# A kernel far above the model's prediction says that the model is wrong about it, and then the choice between
# two plans may be wrong as well. `docs/gpu.md` discusses these figures, and has the least time that each
# kernel can take.
#
# ## A timeline
#
# A profiler sees one custom call. `jax_cocktail.trace` makes a call with clock stamps in our program: what
# each thread did, and when.


# %%
def rnn(weights, inputs, xs):
    def step(h, x):
        h = jnp.tanh(h @ weights + x @ inputs)
        return h, h

    return lax.scan(step, jnp.zeros(weights.shape[0]), xs)[1]


size, steps = (16, 10) if SMALL else (512, 100)
keys = jax.random.split(jax.random.key(0), 3)
arguments = (
    jax.random.normal(keys[0], (size, size)) / size**0.5,
    jax.random.normal(keys[1], (size // 2, size)) / size**0.5,
    jax.random.normal(keys[2], (steps, size // 2)),
)
ours = jax_cocktail.jit(rnn, options={"force": "cocktail", "units": 2})  # two threads
found = jax_cocktail.trace(ours)(*arguments)
difference = abs(found.results - jax.jit(rnn)(*arguments)).max()
print(f"difference from stock XLA: {difference:.1e}")
assert difference < 1e-4

# %%
found

# %% [markdown]
# **How to read it.** A row is a stage of the program with its line. `time` is its part of the time of all
# threads, `path` its part of the critical path: what the call would have been shorter without. `wait` is time
# lost at barriers; for each barrier, `skew` is how far apart the threads arrived. A large skew means uneven
# work, or a core that something else used: on a busy machine, `max` is far above `p95`. `docs/explain.md`
# explains each column.
#
# **What it does not show.** What stock XLA does before and after the custom call, and single operators of a
# stage that takes less time than a stamp (about 10 ns).
#
# A file for [Perfetto](https://ui.perfetto.dev) has the whole timeline, one row for each thread:

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "rnn.json"
    found.perfetto(path)
    events = json.loads(path.read_text())["traceEvents"]
print(f"{len(events)} events; open such a file at ui.perfetto.dev")
