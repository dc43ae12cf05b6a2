"""Recursive programs over trees (see `recursion_programs`), with their values in plain NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.recursion_python import floats, like, unrolled

LEFT = np.array([0, 0, 0, 1, 0, 3, 4, 0], np.int32)
RIGHT = np.array([0, 0, 0, 2, 0, 0, 5, 0], np.int32)
IS_LEAF = np.array([1, 1, 1, 0, 1, 0, 0, 1], bool)
ROOT = np.int32(6)
LEAVES = (0, 1, 2, 4)
SIZE = 4
INPUTS = floats(len(LEFT), SIZE)
W, B = floats(2 * SIZE, SIZE, scale=0.4), floats(SIZE, scale=0.1)
W_CELL, W_SUM = floats(2 * SIZE, 4 * SIZE, scale=0.4), floats(SIZE, SIZE, scale=0.4)


def tree_sum(recursive):
    def run(weights, root):
        @recursive(out_like=like(weights))
        def add(self, node):
            def inner():
                return self(jnp.asarray(LEFT)[node]) + weights[node] * self(jnp.asarray(RIGHT)[node])

            return lax.cond(jnp.asarray(IS_LEAF)[node], lambda: weights[node], inner)

        return add(root)

    return run


def plain_tree_sum(weights, node):
    if IS_LEAF[node]:
        return float(weights[node])
    left, right = plain_tree_sum(weights, LEFT[node]), plain_tree_sum(weights, RIGHT[node])
    return left + float(weights[node]) * right


def rae(recursive):
    def run(inputs, w, b, root):
        left, right, is_leaf = (jnp.asarray(x) for x in (LEFT, RIGHT, IS_LEAF))

        @recursive(out_like=like(b, b.shape))
        def encode(self, node):
            def inner():
                return jnp.tanh(jnp.concatenate([self(left[node]), self(right[node])]) @ w + b)

            return lax.cond(is_leaf[node], lambda: inputs[node], inner)

        return encode(root)

    return run


def plain_rae(inputs, w, b, node):
    if IS_LEAF[node]:
        return inputs[node].astype(np.float64)
    children = [plain_rae(inputs, w, b, x) for x in (LEFT[node], RIGHT[node])]
    return np.tanh(np.concatenate(children) @ w.astype(np.float64) + b)


def tree_lstm(recursive):
    """Binary TreeLSTM; the state is a dict."""

    def run(inputs, w, root):
        left, right, is_leaf = (jnp.asarray(x) for x in (LEFT, RIGHT, IS_LEAF))
        zeros = jnp.zeros((SIZE,), w.dtype)

        @recursive(out_like={"h": like(w, (SIZE,)), "c": like(w, (SIZE,))})
        def encode(self, node):
            def leaf():
                return {"h": jnp.tanh(inputs[node]), "c": inputs[node]}

            def inner():
                a, b = self(left[node]), self(right[node])
                gates = jnp.concatenate([a["h"], b["h"]]) @ w
                i, f, g, o = (zeros + x for x in jnp.split(gates, 4))
                c = jax.nn.sigmoid(i) * jnp.tanh(g) + jax.nn.sigmoid(f) * (a["c"] + b["c"])
                return {"h": jax.nn.sigmoid(o) * jnp.tanh(c), "c": c}

            return lax.cond(is_leaf[node], leaf, inner)

        return encode(root)

    return run


# up to three children; 7 is an empty one
CHILDREN = np.array([[7, 7, 7], [7, 7, 7], [0, 1, 7], [7, 7, 7], [7, 7, 7], [2, 3, 4], [5, 7, 7], [7, 7, 7]])
CHILDREN = CHILDREN.astype(np.int32)
COUNTS = (CHILDREN != 7).sum(1).astype(np.int32)
EMPTY = np.int32(7)


def over_children_scan(self, row, zero):
    def step(state, child):
        return state + lax.cond(child == EMPTY, lambda: zero, lambda: self(child)), None

    return lax.scan(step, zero, row)[0]


def over_children_fori(self, row, zero):
    def step(k, state):
        return state + lax.cond(row[k] == EMPTY, lambda: zero, lambda: self(row[k]))

    return lax.fori_loop(0, 3, step, zero)


def over_children_while(self, row, zero):
    def more(state):
        return (state[0] < 3) & (row[jnp.minimum(state[0], 2)] != EMPTY)

    return lax.while_loop(more, lambda s: (s[0] + 1, s[1] + self(row[s[0]])), (jnp.int32(0), zero))[1]


def over_children_vmap(self, row, zero):
    return jax.vmap(self)(row).sum(0)


def over_children_python(self, row, zero):
    return sum((self(child) for child in row), zero)


def child_sum(over_children):
    """The state is (2, SIZE): h and c; leaves (and the empty one) end the recursion."""

    def make(recursive):
        def run(inputs, w, root):
            loop = over_children
            if recursive is unrolled and loop is over_children_vmap:
                loop = over_children_python  # a vmapped branch is no branch
            children = jnp.asarray(CHILDREN)
            counts = jnp.asarray(COUNTS)

            @recursive(out_like=like(w, (2, SIZE)))
            def encode(self, node):
                zero = jnp.zeros((2, SIZE), w.dtype)

                def leaf():
                    return jnp.where(node == EMPTY, zero, jnp.stack([jnp.tanh(inputs[node]), inputs[node]]))

                def inner():
                    h, c = loop(self, children[node], zero)
                    gates = jax.nn.sigmoid(h @ w + inputs[node])
                    c = gates * c + jnp.tanh(inputs[node])
                    return jnp.stack([gates * jnp.tanh(c), c])

                return lax.cond(counts[node] == 0, leaf, inner)

            return encode(root)

        return run

    return make


def plain_child_sum(inputs, w, node):
    if COUNTS[node] == 0:
        return np.stack([np.tanh(inputs[node]), inputs[node]]).astype(np.float64)
    parts = [plain_child_sum(inputs, w, x) for x in CHILDREN[node] if x != EMPTY]
    h, c = np.sum(parts, 0)
    gates = 1 / (1 + np.exp(-(h @ w + inputs[node])))
    c = gates * c + np.tanh(inputs[node])
    return np.stack([gates * np.tanh(c), c])
