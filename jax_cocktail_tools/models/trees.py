"""Models over trees, written as functions that call themselves on a node's children.

The trees are padded tables, so one program serves all of them; a forest is a `vmap`. The models set limits,
because stock XLA copies the stack for every call and is faster with a small one. `rae` is the model of
COCKTAILER's recursion experiment (rae.py has it as a loop). The TreeLSTMs are those of Tai, Socher and
Manning (ACL'15, sections 3.1 and 3.2), over random trees.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cocktail import recursive
from jax_cocktail_tools.models import rae as loop
from jax_cocktail_tools.models.model import Instance, Model, generator, normal

NO_CHILD = -1


def rae(inputs: Any, left: Any, right: Any, is_leaf: Any, root: Any, w: Any, b: Any) -> Any:
    """The root's vector: a leaf's is its row of ``inputs``, else ``tanh([left; right] @ w + b)``."""
    nodes = is_leaf.shape[0]  # one call visits each

    @recursive(out_like=jax.ShapeDtypeStruct(b.shape, b.dtype), max_depth=nodes, max_calls=nodes)
    def encode(self: Any, node: Any) -> Any:
        def inner() -> Any:
            return jnp.tanh(jnp.concatenate([self(left[node]), self(right[node])]) @ w + b)

        return jax.lax.cond(is_leaf[node], lambda: inputs[node], inner)

    return encode(root)


def binary(words: Any, left: Any, right: Any, is_leaf: Any, root: Any, table: Any, w: Any, b: Any) -> Any:
    """The hidden state of a binary TreeLSTM at the root. ``words``: the leaves' rows in ``table``; ``w``:
    (2 size, 5 size) for input, output, candidate, and one forget gate per child."""
    state = jax.ShapeDtypeStruct(table.shape[1:], table.dtype)
    nodes = is_leaf.shape[0]

    @recursive(out_like=(state, state), max_depth=nodes, max_calls=nodes)
    def encode(self: Any, node: Any) -> Any:
        def leaf() -> Any:
            cell = table[words[node]]
            return jnp.tanh(cell), cell

        def inner() -> Any:
            (left_hidden, left_cell), (right_hidden, right_cell) = self(left[node]), self(right[node])
            gates = jnp.concatenate([left_hidden, right_hidden]) @ w + b
            i, o, u, f, g = jnp.split(gates, 5)
            sigmoid, tanh = jax.nn.sigmoid, jnp.tanh
            cell = sigmoid(i) * tanh(u) + sigmoid(f) * left_cell + sigmoid(g) * right_cell
            return sigmoid(o) * tanh(cell), cell

        return jax.lax.cond(is_leaf[node], leaf, inner)

    return encode(root)[0]


def child_sum(words: Any, children: Any, root: Any, table: Any, w: Any, u: Any, v: Any, b: Any) -> Any:
    """The hidden state of a child-sum TreeLSTM at the root.

    Each node has a word, a row of ``table``. ``children``: (nodes, most children), padded with `NO_CHILD`.
    ``w``, ``u``: (size, 3 size), the weights of the word and of the children's sum for input, output and
    candidate. ``v``: (size, 2 size), the weights of the word and of a child for the child's forget gate.
    """
    size = table.shape[1]
    state = jax.ShapeDtypeStruct((size,), table.dtype)
    zero = jnp.zeros((size,), table.dtype)
    nodes = children.shape[0]

    @recursive(out_like=(state, state), max_depth=nodes, max_calls=nodes)
    def encode(self: Any, node: Any) -> Any:
        word = table[words[node]]
        forgotten = word @ v[:, :size]

        def child(number: Any) -> Any:
            hidden, cell = self(number)
            return hidden, jax.nn.sigmoid(forgotten + hidden @ v[:, size:]) * cell

        def add(sums: Any, number: Any) -> Any:
            found = jax.lax.cond(number == NO_CHILD, lambda: (zero, zero), lambda: child(number))
            return jax.tree.map(jnp.add, sums, found), None

        (hidden, kept), _ = jax.lax.scan(add, (zero, zero), children[node])
        i, o, c = jnp.split(word @ w + hidden @ u + b, 3)
        cell = jax.nn.sigmoid(i) * jnp.tanh(c) + kept
        return jax.nn.sigmoid(o) * jnp.tanh(cell), cell

    return encode(root)[0]


# -- trees ---------------------------------------------------------------------------------------------------
def random_tree(random: np.random.Generator, leaves: int) -> loop.Tree:
    """A random binary tree, with all splits of the leaves equally likely."""
    if leaves == 1:
        return None
    first = int(random.integers(1, leaves))
    return random_tree(random, first), random_tree(random, leaves - first)


def random_children(random: np.random.Generator, nodes: int, most: int, capacity: int) -> np.ndarray:
    """The children of a random tree's nodes, (capacity, most); node 0 is the root."""
    children = np.full((capacity, most), NO_CHILD, np.int32)
    open_nodes = [0]
    for node in range(1, nodes):
        parent = open_nodes[int(random.integers(len(open_nodes)))]
        (free,) = np.nonzero(children[parent] == NO_CHILD)
        children[parent, free[0]] = node
        if len(free) == 1:
            open_nodes.remove(parent)
        open_nodes.append(node)
    return children


def build_rae(batch: int, small: bool) -> Instance:
    return rae, loop.build(batch, small)[1]


def build_binary(batch: int, small: bool) -> Instance:
    size, leaves, vocabulary = (8, 6, 20) if small else (128, 32, 1000)
    random = generator("tree_lstm")
    capacity = 2 * leaves - 1
    trees = [
        loop.post_order(random_tree(random, int(random.integers(leaves // 4, leaves + 1))), capacity)
        for _ in range(batch)
    ]
    tables = [np.stack(parts) for parts in zip(*trees, strict=True)]
    left, right, is_leaf, root = (*tables[:3], tables[3].astype(np.int32))
    words = random.integers(vocabulary, size=(batch, capacity), dtype=np.int32)
    table = normal(random, vocabulary, size)
    w, b = normal(random, 2 * size, 5 * size, scale=(2 * size) ** -0.5), normal(random, 5 * size, scale=0.1)
    return _forest(binary, batch, (words, left, right, is_leaf, root), (table, w, b))


def build_child_sum(batch: int, small: bool) -> Instance:
    size, nodes, vocabulary = (8, 9, 20) if small else (128, 48, 1000)
    random = generator("child_sum_tree_lstm")
    trees = [
        random_children(random, int(random.integers(nodes // 4, nodes + 1)), 4, nodes) for _ in range(batch)
    ]
    words = random.integers(vocabulary, size=(batch, nodes), dtype=np.int32)
    scale = size**-0.5
    weights = (
        normal(random, vocabulary, size),
        normal(random, size, 3 * size, scale=scale),
        normal(random, size, 3 * size, scale=scale),
        normal(random, size, 2 * size, scale=scale),
        normal(random, 3 * size, scale=0.1),
    )
    return _forest(child_sum, batch, (words, np.stack(trees), np.zeros(batch, np.int32)), weights)


def _forest(function: Any, batch: int, trees: tuple[Any, ...], weights: tuple[Any, ...]) -> Instance:
    """One tree, or a `vmap` over trees with shared weights."""
    if batch == 1:
        trees = tuple(x[0] for x in trees)
    else:
        function = jax.vmap(function, (0,) * len(trees) + (None,) * len(weights))
    return function, tuple(jnp.asarray(x) for x in (*trees, *weights))


MODELS = (
    Model(
        "rae_recursive",
        "recursive auto-encoder, 65-node tree, 512 units: recursion",
        (1,),
        2e-5,
        build_rae,
    ),
    Model("tree_lstm", "binary TreeLSTM, 128 units, random trees: recursion", (1, 64), 2e-5, build_binary),
    Model(
        "child_sum_tree_lstm",
        "child-sum TreeLSTM, 128 units, random trees: recursion in a scan over children",
        (1, 64),
        2e-5,
        build_child_sum,
    ),
)
