# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Bring your own loop
#
# Four loops that people run: an ODE solver (diffrax), the forward algorithm of a hidden Markov model, a beam
# search over a recurrent network (flax), and two samplers (blackjax). Nothing in them is written for
# jax_cocktail: `jax_cocktail.jit` takes the place of `jax.jit`. You learn how to try it on code of yours, and
# what to look at. This takes about a minute.
#
# A section whose library is missing says so and is skipped; `pip install diffrax blackjax flax` brings them.
#
# The stored pictures come from a run on two cores of a processor with x86-64 instructions, with jax 0.10.2
# and no GPU. Other programs may have used these cores, which mostly slows stock XLA down: the first output
# says how many processes there were for each core. **Times depend on the machine: run it on yours.**

# %% tags=["parameters"]
SMALL = False
SECONDS = 1.0

# %%
# %matplotlib inline
import importlib.util
import os
import time
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import lax
from jax.experimental import io_callback

import jax_cocktail
from jax_cocktail_tools.models import largest_difference

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


OURS = {"force": "cocktail", "compile": "now"}  # our program even where stock XLA is faster
rows = {}  # seconds of a call under (stock XLA, ours)


def has(library):
    found = importlib.util.find_spec(library) is not None
    if not found:
        print(f"skipped: {library} is not installed")
    return found


def show(name, function, *arguments, tolerance=1e-4):
    """Compares with stock XLA. `captured` counts loops and branches that became custom calls."""
    stock, ours = jax.jit(function), jax_cocktail.jit(function, options=OURS)
    difference = largest_difference(ours(*arguments), stock(*arguments))
    report = jax_cocktail.explain(ours)(*arguments)
    captured, loops = len(report.captured), len(report.captured) + len(report.left)
    times = fastest(*[lambda f=f: f(*arguments) for f in (stock, ours)])
    rows[name] = times
    print(
        f"{name}: captured {captured} of {loops}, difference {difference:.1e}; "
        f"stock {times[0] * 1e3:.3f} ms, ours {times[1] * 1e3:.3f} ms, ratio {times[0] / times[1]:.2f}"
    )
    for left in sorted({f"{left.what}: {left.reason}" for left in report.left}):
        print(f"  left to stock XLA: {left}")
    assert captured and difference <= tolerance


# %% [markdown]
# ## A hidden Markov model, in plain JAX
#
# The forward algorithm: one small matrix product and a sum for each observation.


# %%
def log_likelihood(start, transition, likelihoods):
    def step(state, likelihood):
        belief, total = state
        belief = (belief @ transition) * likelihood
        scale = belief.sum()
        return (belief / scale, total + jnp.log(scale)), None

    first = start * likelihoods[0]
    return lax.scan(step, (first / first.sum(), jnp.log(first.sum())), likelihoods[1:])[0][1]


states, length = (4, 20) if SMALL else (32, 1000)
key = jax.random.key(0)
transition = jax.nn.softmax(jax.random.normal(key, (states, states)))
likelihoods = jax.random.uniform(key, (length, states), minval=0.1)
show("HMM", log_likelihood, jnp.full(states, 1 / states), transition, likelihoods)

# %% [markdown]
# ## An ODE solver: diffrax
#
# An adaptive Runge-Kutta method is a `while_loop` whose step size depends on the data. Van der Pol's
# oscillator for one parameter, and with `vmap` for many: a batch of solvers goes on until the slowest one
# is done. Its loop is captured. The three branches that are not are checks of diffrax, which call Python to
# raise an error; they run once a call, outside of the loop.

# %%
if has("diffrax"):
    import diffrax

    end = 2.0 if SMALL else 10.0

    def solve(stiffness, y):
        def slope(t, y, stiffness):
            return jnp.array([y[1], stiffness * (1 - y[0] ** 2) * y[1] - y[0]])

        found = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            diffrax.Tsit5(),
            0.0,
            end,
            0.05,
            y,
            args=stiffness,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, end, 21)),
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-6),
        )
        return found.ys

    begin = jnp.array([1.0, 0.5])
    show("ODE", solve, 2.0, begin, tolerance=1e-3)
    if not SMALL:
        show("ODE, 32 at once", jax.vmap(solve, (0, None)), jnp.linspace(0.5, 3.0, 32), begin, tolerance=1e-3)

# %% [markdown]
# ## A beam search: flax
#
# The network is flax's; the search is a `while_loop` around it. Each step keeps the best continuations of all
# beams, and it stops when every beam has ended.

# %%
if has("flax"):
    from flax import linen

    beams, units, vocabulary, longest = (2, 8, 12, 6) if SMALL else (4, 64, 256, 40)

    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, hidden, words):
            embedded = linen.Embed(vocabulary, units)(words)
            hidden, out = linen.GRUCell(units)(hidden, embedded)
            return hidden, jax.nn.log_softmax(4 * linen.Dense(vocabulary)(out))

    decoder = Decoder()
    hidden = jax.random.normal(jax.random.key(1), (beams, units))
    parameters = decoder.init(jax.random.key(2), hidden, jnp.ones(beams, jnp.int32))

    def search(parameters, hidden):
        def go_on(state):
            step, ended, *_ = state
            return (step < longest) & ~ended.all()

        def extend(state):
            step, ended, scores, hidden, sentences = state
            words = sentences[:, step - 1]
            hidden, logits = decoder.apply(parameters, hidden, words)
            stay = jnp.full(vocabulary, -jnp.inf).at[0].set(0.0)  # the word 0 ends a sentence
            total = scores[:, None] + jnp.where(ended[:, None], stay, logits)
            scores, best = lax.top_k(total.ravel(), beams)
            beam, words = best // vocabulary, best % vocabulary
            sentences = sentences[beam].at[:, step].set(words)
            return step + 1, ended[beam] | (words == 0), scores, hidden[beam], sentences

        scores = jnp.full(beams, -jnp.inf).at[0].set(0.0)
        sentences = jnp.ones((beams, longest), jnp.int32)
        state = 1, jnp.zeros(beams, bool), scores, hidden, sentences
        _, _, scores, _, sentences = lax.while_loop(go_on, extend, state)
        return sentences, scores

    show("beam search", search, parameters, hidden)

# %% [markdown]
# ## Samplers: blackjax
#
# Hamiltonian Monte Carlo is a `scan` of `fori_loop`s. NUTS decides from the data how far it goes: loops with
# branches in loops. Chains multiply rounding errors, so only their beginnings are compared.

# %%
if has("blackjax"):
    import blackjax

    def log_density(x):  # a banana in each pair of neighbours
        return -2 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.5 * jnp.sum((1 - x) ** 2)

    def chain(kernel, steps):
        def sample(key, x):
            def step(state, key):
                state, _ = kernel.step(key, state)
                return state, state.position

            return lax.scan(step, kernel.init(x), jax.random.split(key, steps))[1][:5]

        return sample

    size = 5
    steps = 5 if SMALL else 200
    hmc = blackjax.hmc(log_density, 0.05, jnp.ones(size), 3 if SMALL else 10)
    show("HMC", chain(hmc, steps), key, jnp.zeros(size), tolerance=1e-2)
    if not SMALL:
        nuts = blackjax.nuts(log_density, 0.1, jnp.ones(size))
        show("NUTS", chain(nuts, 50), key, jnp.zeros(size), tolerance=1e-2)

# %% [markdown]
# ## All of them

# %%
figure, axes = plt.subplots(figsize=(6.4, 0.42 * len(rows) + 0.8))
ratios = [stock / ours for stock, ours in rows.values()]
bars = axes.barh(list(rows), ratios, color=["#2f7fd6" if ratio >= 1 else "#d9822b" for ratio in ratios])
texts = [f"{stock / ours:.1f}  ({stock * 1e3:.2f} -> {ours * 1e3:.2f} ms)" for stock, ours in rows.values()]
axes.bar_label(bars, texts, fontsize=8, padding=2)
axes.axvline(1, color="#767676", linewidth=1)
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
axes.margins(x=0.35)
axes.set_xlabel("time of stock XLA / ours, forced")
plt.show()

# %% [markdown]
# **What the picture shows.** Times of the fastest of many calls that took turns. The gain is large where a
# step is a few dozen scalar operations, as in solvers and samplers of few dimensions: stock XLA starts a
# kernel for each small group of them.
#
# **What it does not show.** The first call: compiling NUTS takes both compilers seconds. And large states:
# the more work a step has, the smaller is the share that we can save.
#
# ## Libraries that call `jax.jit` themselves
#
# `replace_jit` puts ours in the place of `jax.jit` for the code of a block, so that a library's own calls of
# it are ours.


# %%
def library_call(x):  # think of it as part of a library
    return jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, carry: carry * x, 1.0))(x)


with jax_cocktail.replace_jit(force="cocktail", compile="now"):
    print(library_call(1.5), "and under stock XLA", 1.5**3)

# %% [markdown]
# ## What if a loop is not captured?
#
# `explain` names the operation and its line. Here a callback with a side effect is in the way: it has
# to run in the middle of the loop.


# %%
def chatty(x):
    def step(x, _):
        io_callback(lambda value: None, None, x[0])
        return jnp.tanh(x), None

    return lax.scan(step, x, length=10)[0]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a call would warn of the same
    report = jax_cocktail.explain(chatty)(jnp.ones(4))
for left in report.left:
    print(f"{left.what} at {left.where}\n  because: {left.reason}")
