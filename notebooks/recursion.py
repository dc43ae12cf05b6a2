# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Recursion: trees that are data
#
# JAX has no recursive functions. A model over trees is usually written in one of three other ways. You learn
# what each of them costs beside `jax_cocktail.recursive`: the time of a call, and the number of compilations
# when new trees arrive. This takes about a minute, most of it for the compilations of stock XLA.
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
import numpy as np
from jax import lax

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


OURS = {
    "force": "cocktail",
    "compile": "now",
}  # our program even where stock XLA is faster; wait for the compiler
units, leaves, number = (8, 5, 2) if SMALL else (128, 24, 6)

# %% [markdown]
# ## Trees in tables
#
# A tree is four arrays: the children of each node, whether it is a leaf, and the root. Tables have room for
# the largest tree, so all trees have the same shapes. The model is a recursive auto-encoder: a leaf's vector
# is an input, an inner node's is `tanh([left, right] @ weights)`.


# %%
def random_tree(rng, leaves):
    """Nested pairs; None is a leaf."""
    if leaves == 1:
        return None
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def depth(tree):
    return 0 if tree is None else 1 + max(map(depth, tree))


def tables(tree, room):
    left, right, is_leaf = np.zeros(room, np.int32), np.zeros(room, np.int32), np.ones(room, bool)
    used = 0

    def add(tree):
        nonlocal used
        children = None if tree is None else (add(tree[0]), add(tree[1]))
        node, used = used, used + 1
        if children:
            (left[node], right[node]), is_leaf[node] = children, False
        return node

    root = add(tree)
    return left, right, is_leaf, np.int32(root)


rng = np.random.default_rng(3)
room = 2 * leaves - 1
nested = [random_tree(rng, int(rng.integers(leaves // 2, leaves + 1))) for _ in range(number)]
trees = [tables(tree, room) for tree in nested]
inputs = jax.random.normal(jax.random.key(0), (room, units))
weights = jax.random.normal(jax.random.key(1), (2 * units, units)) / units**0.5
print(f"{number} trees; nodes: {[int(tree[3]) + 1 for tree in trees]}; depths: {[*map(depth, nested)]}")

# %% [markdown]
# ## Four ways to write it
#
# Python runs the body of a jitted function once for each compilation, so a line of Python in it counts
# compilations.

# %%
compilations = {}


def counted(name):
    compilations[name] = compilations.get(name, 0) + 1


def join(weights, left, right):
    return jnp.tanh(jnp.concatenate([left, right]) @ weights)


def ours(weights, inputs, left, right, is_leaf, root):
    """A function that calls itself."""
    counted("ours")

    @jax_cocktail.recursive(out_like=inputs[0], max_depth=room, max_calls=room)
    def vector(self, node):
        def inner():
            return join(weights, self(left[node]), self(right[node]))

        return lax.cond(is_leaf[node], lambda: inputs[node], inner)

    return vector(root)


def stack(weights, inputs, left, right, is_leaf, root):
    """A loop with two stacks: nodes to visit, and vectors. A node is visited again after its children."""
    counted("loop with a stack")

    def leaf(state):
        top, nodes, again, filled, vectors = state
        return top - 1, nodes, again, filled + 1, vectors.at[filled].set(inputs[nodes[top - 1]])

    def open_node(state):
        top, nodes, again, filled, vectors = state
        node = nodes[top - 1]
        nodes = nodes.at[top].set(right[node]).at[top + 1].set(left[node])
        again = again.at[top - 1].set(True).at[top].set(False).at[top + 1].set(False)
        return top + 2, nodes, again, filled, vectors

    def close_node(state):
        top, nodes, again, filled, vectors = state
        vector = join(weights, vectors[filled - 2], vectors[filled - 1])
        return top - 1, nodes, again, filled - 1, vectors.at[filled - 2].set(vector)

    def visit(state):
        top, nodes, again, *_ = state
        which = jnp.where(is_leaf[nodes[top - 1]], 0, jnp.where(again[top - 1], 2, 1))
        return lax.switch(which, [leaf, open_node, close_node], state)

    nodes = jnp.zeros(room + 1, jnp.int32).at[0].set(root)
    state = 1, nodes, jnp.zeros(room + 1, bool), 0, jnp.zeros_like(inputs)
    return lax.while_loop(lambda state: state[0] > 0, visit, state)[4][0]


def padded(weights, inputs, left, right, is_leaf, root, levels):
    """A full tree with 2^levels places in its lowest level, most of them unused; level by level."""
    counted("padded to a full tree")
    rows = [jnp.full(1, root)]
    for _ in range(levels):
        above = rows[-1]
        below = jnp.stack([left[above], right[above]], axis=1).ravel()
        rows.append(jnp.where(jnp.repeat(is_leaf[above], 2), 0, below))
    vectors = inputs[rows[-1]]
    for row in reversed(rows[:-1]):
        pairs = vectors.reshape(-1, 2 * units)
        vectors = jnp.where(is_leaf[row][:, None], inputs[row], jnp.tanh(pairs @ weights))
    return vectors[0]


def unrolled(tree):
    """Python recursion over one tree, which becomes a part of the program."""
    left, right, is_leaf, root = tree

    def function(weights, inputs):
        counted("unrolled in Python")

        def vector(node):
            if is_leaf[node]:
                return inputs[node]
            return join(weights, vector(left[node]), vector(right[node]))

        return vector(root)

    return function


# %% [markdown]
# ## New trees arrive
#
# Each way computes the vectors of all trees, one after the other. The clock includes compilations. A padded
# full tree needs the depth of the deepest tree in advance; one that is deeper would need another compilation.

# %%
levels = max(map(depth, nested))
jitted = {
    "ours": jax_cocktail.jit(ours, options=OURS),
    "loop with a stack": jax.jit(stack),
    "padded to a full tree": jax.jit(padded, static_argnames="levels"),
}


def run(name, tree):
    if name == "unrolled in Python":
        return fixed[id(tree)](weights, inputs)
    extra = {"levels": levels} if name == "padded to a full tree" else {}
    return jitted[name](weights, inputs, *tree, **extra)


names = ["unrolled in Python", "padded to a full tree", "loop with a stack", "ours"]
fixed = {id(tree): jax.jit(unrolled(tree)) for tree in trees}
clock, results = {}, {}
for name in names:
    begin, clock[name], results[name] = time.perf_counter(), [0.0], []
    for tree in trees:
        results[name].append(jax.block_until_ready(run(name, tree)))
        clock[name].append(time.perf_counter() - begin)
for name in names:
    difference = largest_difference(results[name], results["unrolled in Python"])
    print(
        f"{name:22} compilations {compilations[name]}, {clock[name][-1]:5.2f} s, difference {difference:.1e}"
    )
    assert difference < 1e-4
assert compilations["unrolled in Python"] == number
assert compilations["ours"] == 1, "a new tree is data"

# %% [markdown]
# ## The time of a call, compiled

# %%
ours_stack = jax_cocktail.jit(stack, options=OURS)
jax.block_until_ready(ours_stack(weights, inputs, *trees[0]))  # compiles
times = {name: [] for name in (*names, "stack, ours")}
for tree in trees[:3]:
    runs = [lambda n=name, t=tree: run(n, t) for name in names]
    runs.append(lambda t=tree: ours_stack(weights, inputs, *t))
    for name, seconds in zip(times, fastest(*runs), strict=True):
        times[name].append(1e6 * seconds)

# %%
figure, (left_panel, right_panel) = plt.subplots(1, 2, figsize=(7.6, 2.9))
colors = dict(zip(times, ("#d9822b", "#a05195", "#8a8f98", "#2f7fd6", "#7fb2e8"), strict=True))
for name in names:
    left_panel.plot(range(number + 1), clock[name], marker="o", markersize=3, color=colors[name], label=name)
left_panel.set_xlabel("trees seen so far, each a new one")
left_panel.set_ylabel("seconds, compilations included")
left_panel.legend(fontsize=8)
middle = [float(np.median(found)) for found in times.values()]
bars = right_panel.barh(list(times), middle, color=list(colors.values()))
right_panel.bar_label(bars, [f"{value:.0f}" for value in middle], fontsize=8, padding=2)
right_panel.margins(x=0.15)
right_panel.set_xlabel("microseconds per call, compiled")
right_panel.grid(axis="y", visible=False)
plt.show()

# %% [markdown]
# **What the picture shows.** Left: Python recursion compiles for every tree, so its line climbs with each;
# the others compile once and stay flat. The height of a flat line is its one compilation. Ours takes
# longest, since a C++ compiler works as well; a later process finds the result on disk. Right: the time of
# a call afterwards. The loop by hand pays for each visit to a node with several kernels of stock XLA. The
# padded tree computes every place of a full tree. Ours runs the calls inside one custom call.
#
# **What it does not show.** Deep trees: the padded tree doubles with each level. Large matrices, whose
# products dominate. And the gradient: a recursive function has one, but JAX cannot differentiate a
# `while_loop` in reverse. The last bar is the loop with a stack under `jax_cocktail.jit`: what is gained
# comes from the compiler, and the recursive function is the shorter way to write it.
#
# ## Which strategy ran it?

# %%
report = jax_cocktail.explain(ours)(weights, inputs, *trees[0])
print("\n".join(report.recursions))

# %% [markdown]
# A forest is a `vmap`: trees of several sizes at the same time, in tables of one shape. Here, too, new trees
# are data.

# %%
forest = [jnp.stack(parts) for parts in zip(*trees, strict=True)]
batched = jax_cocktail.jit(jax.vmap(ours, (None, None, 0, 0, 0, 0)), options=OURS)
vectors = batched(weights, inputs, *forest)
difference = largest_difference(list(vectors), results["unrolled in Python"])
print(f"{len(vectors)} trees in one call, difference {difference:.1e}")
assert difference < 1e-4
