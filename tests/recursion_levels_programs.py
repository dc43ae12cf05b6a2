"""Programs whose calls can run level by level: functions that call each other, and nodes of many children."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.recursion_python import floats, like

TABLE = floats(10, 4)
WEIGHTS = (floats(8, 4, scale=0.5), floats(8, 4, scale=0.5))
X = floats(4)


def mutual_arguments(count):
    return (TABLE, *WEIGHTS, np.int32(count), X)


def mutual(recursive):
    """Two functions with arguments and results in other places, and of other types."""

    def run(table, weights, last, n, x):
        row, limits = like(table, (4,)), {"max_depth": 16, "max_calls": 64}

        @recursive(out_like=row, **limits)
        def node(self, n, y):
            def inner():
                first, scale = pair(y * 0.5, n - 1, n)
                both = jnp.concatenate([first, self(n - 2, jnp.sin(y) + x)])
                return jnp.tanh(both @ weights + scale)

            return lax.cond(n < 2, lambda: table[n + 2] * y, inner)

        @recursive(out_like=(row, like(table)), **limits)
        def pair(self, z, n, at):
            def inner():
                a, b = node(n - 1, z), node(n - 2, z + 1)
                return jnp.tanh(jnp.concatenate([a, b]) @ last) + table[at], a[0] * z[0]

            return lax.cond(n < 1, lambda: (table[at] * z, z[0]), inner)

        return node(n, x)

    return run


def _tree(most, nodes):
    """Children of every node, up to `most`; `nodes` where there is none. The last node is the root."""
    random = np.random.default_rng(most)
    below = np.full((nodes, most), nodes, np.int32)
    for child in range(nodes - 1):  # the next node has room for one
        free = [(p, k) for p in range(child + 1, nodes) for k in range(most) if below[p, k] == nodes]
        parent, place = free[random.integers(len(free))] if child % 4 else (child + 1, 0)
        if below[parent, place] != nodes or (place == 0 and parent != child + 1):
            parent, place = child + 1, 0
        below[parent, place] = child
    return below


BELOW = {most: _tree(most, 14) for most in (5, 12)}
CHILDREN = {most: (floats(14, 4), floats(4, 4, scale=0.5)) for most in BELOW}


def child_sum(below):
    """The state is (2, 4): h and c."""
    nodes = len(below)

    def make(recursive):
        def run(x, weights, root):
            @recursive(out_like=like(weights, (2, 4)), max_depth=nodes + 1, max_calls=nodes + 1)
            def node(self, k):
                def trip(state, child):
                    h, c = state

                    def there():
                        below_h, below_c = self(child)
                        return h + below_h, c + below_h * x[k] * below_c

                    return lax.cond(child == nodes, lambda: (h, c), there), None

                zero = jnp.zeros(4, weights.dtype)
                (h, c), _ = lax.scan(trip, (zero, zero), jnp.asarray(below)[k])
                gate = jax.nn.sigmoid(h @ weights + x[k])
                c = gate * x[k] + c
                return jnp.stack([gate * jnp.tanh(c), c])

            return node(root)

        return run

    return make
