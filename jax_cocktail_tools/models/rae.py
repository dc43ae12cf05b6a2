"""RAE: a recursive auto-encoder over a binary parse tree, as a loop over the nodes in post-order.

The tree is that of COCKTAILER's recursion experiment: 65 nodes, 33 leaves, height 12, padded to 127 nodes.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model, generator, normal

INNER_NODES_PER_HEIGHT = (7, 5, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1)

Tree = tuple["Tree", "Tree"] | None  # None is a leaf


def rae(inputs: Any, left: Any, right: Any, is_leaf: Any, root: Any, w: Any, b: Any) -> Any:
    """Returns the root's vector. Children have smaller numbers than their parent.

    A leaf's vector is its row of ``inputs``, an inner node's is ``tanh([left; right] @ w + b)``.
    """

    def combine(vectors: Any, node: Any) -> Any:
        return jnp.tanh(jnp.concatenate([vectors[left[node]], vectors[right[node]]]) @ w + b)

    def leaf(vectors: Any, node: Any) -> Any:
        return inputs[node]

    def visit(state: Any) -> tuple[Any, Any]:
        node, vectors = state
        vector = lax.cond(is_leaf[node], leaf, combine, vectors, node)
        return node + 1, vectors.at[node].set(vector)

    first = (jnp.zeros((), root.dtype), jnp.zeros_like(inputs))
    _, vectors = lax.while_loop(lambda state: state[0] <= root, visit, first)
    return vectors[root]


def tree_of(profile: tuple[int, ...]) -> Tree:
    """A tree with ``profile[h - 1]`` inner nodes of height ``h`` (non-increasing, ending in 1)."""
    below: list[Tree] = [(None, None) for _ in range(profile[0])]
    for count in profile[1:]:
        spare = below[count:]
        below = [(node, spare.pop() if spare else None) for node in below[:count]]
        if spare:
            raise ValueError(f"profile {profile} leaves nodes without a parent")
    (root,) = below
    return root


def post_order(tree: Tree, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The arrays left, right and is_leaf, padded to ``capacity``, and the root's number."""
    left, right = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
    is_leaf = np.ones(capacity, np.bool_)
    free = 0

    def number(node: Tree) -> int:
        nonlocal free
        children = None if node is None else (number(node[0]), number(node[1]))
        mine, free = free, free + 1
        if children is not None:
            left[mine], right[mine] = children
            is_leaf[mine] = False
        return mine

    root = number(tree)
    return left, right, is_leaf, root


def build(batch: int, small: bool) -> Instance:
    size, capacity, profile = (16, 31, (3, 2, 1, 1)) if small else (512, 127, INNER_NODES_PER_HEIGHT)
    random = generator("rae")
    left, right, is_leaf, root = post_order(tree_of(profile), capacity)
    inputs = normal(random, capacity, size)
    w = normal(random, 2 * size, size, scale=(2 * size) ** -0.5)
    b = normal(random, size, scale=0.1)
    arrays = [jnp.asarray(a) for a in (inputs, left, right, is_leaf, np.int32(root), w, b)]
    return rae, tuple(arrays)


MODEL = Model(
    "rae", "recursive auto-encoder, 65-node tree, 512 units: while_loop with cond", (1,), 2e-5, build
)
