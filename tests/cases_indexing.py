"""Cases of run-time indexing, random numbers, typed keys and nested control flow."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.case import ALL, FLOATS, SIGNED, TOLERANCE, UNSIGNED, Table, array, constant, key, typed_key

_INDEX_DTYPES = ("int32", "int8", "uint8", "uint32", "int64")


def add_indexing(table: Table) -> None:
    _dynamic_slices(table)
    _gathers(table)
    _scatters(table)
    _random(table)
    _keys(table)
    _control_flow(table)


def _dynamic_slices(table: Table) -> None:
    for dtype in ALL:
        for start in (-2, 0, 1, 3, 100):
            makers = array(dtype, (5, 6)), constant(start, "int32")
            label = f"dynamic_slice[{start}]"
            table.add(
                "dynamic",
                label,
                lambda x, i: lax.dynamic_slice(x, (i, jnp.ones_like(i)), (3, 4)),
                *makers,
                dtype=dtype,
            )
            update = lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i))  # noqa: E731
            makers = array(dtype, (5, 6)), array(dtype, (2, 3)), constant(start, "int32")
            table.add("dynamic", f"dynamic_update_slice[{start}]", update, *makers, dtype=dtype)
    for index in _INDEX_DTYPES:
        makers = array("float32", (5, 6)), constant(3, index)
        function = lambda x, i: (lax.dynamic_slice(x, (i, i), (2, 2)), x[i], x.at[i].set(1))  # noqa: E731
        table.add("dynamic", f"index[{index}]", function, *makers, x64=index == "int64")
    makers = array("float32", (300,)), constant(255, "uint8")
    table.add("dynamic", "wide_operand", lambda x, i: lax.dynamic_slice(x, (i,), (100,)), *makers)


def _gathers(table: Table) -> None:
    indices = constant([0, 4, -1, 2, 7, -9], "int32")
    for dtype in ALL:
        x = array(dtype, (5, 6))
        for mode in ("clip", "fill", "promise_in_bounds"):
            inside = constant([0, 4, 1, 2, 3, 3], "int32") if mode == "promise_in_bounds" else indices
            function = partial(_take, mode)
            table.add("gather", f"take[{mode}]", function, x, inside, dtype=dtype)
        filled = lambda x, i: x.at[i].get(mode="fill", fill_value=1)  # noqa: E731
        table.add("gather", "take_fill_value", filled, x, indices, dtype=dtype)
        along = lambda x, i: jnp.take_along_axis(x, i, 1)  # noqa: E731
        table.add("gather", "take_along", along, x, array("int32", (5, 3), 0, 4), dtype=dtype)
    x, pairs = array("float32", (4, 5, 6)), array("int32", (3, 2), -2, 6)
    for mode in ("CLIP", "FILL_OR_DROP"):
        for name, numbers in _gather_numbers().items():
            function = partial(_gather, numbers, mode)
            table.add("gather", f"gather_{name}[{mode.lower()}]", function, x, pairs)
    rows = jax.vmap(lambda x, i: x[i])
    table.add("gather", "batched", rows, array("float32", (5, 6)), array("int32", (5, 4), 0, 5))
    table.add("gather", "without_rows", rows, array("float32", (0, 6)), array("int32", (0, 4), 0, 5))
    table.add("gather", "without_elements", rows, array("float32", (0, 0)), array("int32", (0, 4), 0, 5))
    table.add(
        "gather", "point", lambda x, i, j: x[i, j], x, array("int32", (3,), 0, 3), array("int32", (3,), 0, 4)
    )
    for index in _INDEX_DTYPES:
        maker = constant([0, 4, 100], index)
        function = partial(_take, "fill")
        table.add(
            "gather", f"index[{index}]", function, array("float32", (5, 6)), maker, x64=index == "int64"
        )


def _take(mode: str, x: Any, indices: Any) -> list[Any]:
    return [x.at[indices].get(mode=mode), x.at[:, indices].get(mode=mode)]


def _gather_numbers() -> dict[str, tuple[lax.GatherDimensionNumbers, tuple[int, ...]]]:
    numbers = lax.GatherDimensionNumbers
    return {
        "points": (numbers((1,), (0, 1), (0, 1)), (1, 1, 6)),
        "windows": (numbers((1, 2, 3), (), (0, 2)), (2, 3, 4)),
        "swapped": (numbers((0, 2), (1,), (1, 0)), (3, 1, 2)),
    }


def _gather(numbers: tuple[Any, tuple[int, ...]], mode: str, x: Any, indices: Any) -> Any:
    return lax.gather(x, indices, numbers[0], numbers[1], mode=lax.GatherScatterMode[mode])


def _scatters(table: Table) -> None:
    indices = constant([0, 4, 0, -1, 7, 2], "int32")
    operations = ("set", "add", "subtract", "multiply", "min", "max")
    for dtype in ALL:
        tolerance = 4 * TOLERANCE.get(dtype, 0.0)
        for operation in operations:
            if dtype == "bool" and operation not in ("set", "min", "max"):
                continue
            for mode in ("drop", "clip"):
                # two rows with one index: only a set of equal updates is defined
                rows = 1 if operation == "set" else 6
                makers = array(dtype, (5, 3), -2, 2), indices, array(dtype, (rows, 3), -2, 2)
                function = partial(_scatter, operation, mode)
                label = f"scatter_{operation}[{mode}]"
                table.add("scatter", label, function, *makers, dtype=dtype, tolerance=tolerance)
    window = lax.ScatterDimensionNumbers((1, 2), (0,), (2, 1))
    makers = array("float32", (3, 5, 6)), array("int32", (4, 2), -1, 5), array("float32", (4, 2, 3))
    for mode in ("CLIP", "FILL_OR_DROP"):
        function = partial(_scatter_window, window, mode)
        table.add("scatter", f"scatter_window[{mode.lower()}]", function, *makers, tolerance=1e-5)
    batched = jax.vmap(lambda x, i, u: x.at[i].add(u))
    makers = array("float32", (4, 6)), array("int32", (4, 3), 0, 5), array("float32", (4, 3))
    table.add("scatter", "batched", batched, *makers, tolerance=1e-5)
    gradient = jax.grad(lambda x, i: jnp.sum(x[i] ** 2))
    makers = array("float32", (5, 3)), array("int32", (7,), 0, 4)
    table.add("scatter", "gather_gradient", gradient, *makers, tolerance=1e-5)
    point = lambda x, i, u: x.at[i, i].set(u)  # noqa: E731
    makers = array("float32", (5, 6)), constant([1, 3, 9], "int32"), array("float32", (3,))
    table.add("scatter", "points", point, *makers)
    for index in _INDEX_DTYPES:
        makers = array("float32", (5, 3)), constant([0, 4, 100], index)
        label = f"index[{index}]"
        table.add("scatter", label, lambda x, i: x.at[i].add(2.0), *makers, x64=index == "int64")


def _scatter(operation: str, mode: str, x: Any, indices: Any, updates: Any) -> Any:
    return getattr(x.at[indices], operation)(updates, mode=mode)


def _scatter_window(numbers: Any, mode: str, x: Any, indices: Any, updates: Any) -> Any:
    return lax.scatter_add(x, indices, updates, numbers, mode=lax.GatherScatterMode[mode])


def _random(table: Table) -> None:
    for width in ("uint8", "uint16", "uint32", "uint64"):
        draw = lambda k, d=width: jax.random.bits(jax.random.wrap_key_data(k), (3, 5), d)  # noqa: E731
        table.add("random", "bits", draw, key(), dtype=width)
        table.add("random", "bits_of_keys", jax.vmap(draw), key(4), dtype=width)
    for dtype in FLOATS:
        tolerance = 2 * TOLERANCE[dtype]
        uniform = lambda k, d=dtype: jax.random.uniform(jax.random.wrap_key_data(k), (37,), d)  # noqa: E731
        table.add("random", "uniform", uniform, key(), dtype=dtype, tolerance=tolerance)
        normal = lambda k, d=dtype: jax.random.normal(jax.random.wrap_key_data(k), (37,), d)  # noqa: E731
        table.add("random", "normal", normal, key(), dtype=dtype, tolerance=4 * tolerance)
    draws = {
        "split": lambda k: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(k), (2, 3))),
        "split_raw": lambda k: jax.random.split(k, 5),
        "fold_in": lambda k: jax.random.fold_in(k, 17),
        "randint": lambda k: jax.random.randint(k, (11,), -5, 9),
        "permutation": lambda k: jax.random.permutation(k, 13),
        "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (37,)),
        "scalar": lambda k: jax.random.bits(k, ()),
        "categorical": lambda k: jax.random.categorical(k, jnp.arange(5.0), shape=(4,)),
    }
    for name, function in draws.items():
        table.add("random", name, function, key(), dtype="uint32")
    fold = jax.vmap(jax.random.fold_in, (0, None)), jax.vmap(jax.random.fold_in, (None, 0))
    table.add("random", "fold_in_keys", fold[0], key(4), constant(-3, "int32"), dtype="uint32")
    table.add("random", "fold_in_data", fold[1], key(), array("int32", (4,), -9, 9), dtype="uint32")
    for dtype in (*SIGNED, *UNSIGNED):
        seed = lambda s: jax.random.key_data(jax.random.key(s))  # noqa: E731
        table.add("random", "seed", seed, constant(-7 if dtype in SIGNED else 200, dtype), dtype=dtype)


def _keys(table: Table) -> None:
    """Movement of typed keys, inside a case and into and out of it."""
    functions = {
        "slice": lambda k: k[1:, 0],
        "transpose": lambda k: k.T,
        "reshape": lambda k: k.reshape(6),
        "broadcast": lambda k: jnp.broadcast_to(k, (2, 2, 3)),
        "concatenate": lambda k: jnp.concatenate([k, k], 1),
        "stack": lambda k: jnp.stack([k, k]),
        "rev": lambda k: k[::-1],
        "gather": lambda k: k[jnp.array([1, 0, 1])],
        "gather_fill": lambda k: k.at[:, jnp.array([1, 9])].get(mode="fill"),
        "scatter": lambda k: k.at[1].set(k[0]),
        "dynamic_slice": lambda k: lax.dynamic_slice(k, (1, 1), (1, 2)),
        "dynamic_update_slice": lambda k: lax.dynamic_update_slice(k, k[:1, :1], (1, 1)),
        "select": lambda k: jnp.where(jnp.array([True, False])[:, None], k, k[::-1]),
        "loop": lambda k: lax.fori_loop(
            0, 3, lambda i, c: jax.vmap(jax.vmap(partial(jax.random.fold_in, data=i)))(c), k
        ),
    }
    for name, function in functions.items():
        typed = lambda k, f=function: jax.random.key_data(f(jax.random.wrap_key_data(k)))  # noqa: E731
        table.add("keys", name, typed, key(2, 3), dtype="uint32")
    table.add("keys", "typed", lambda k: (k.T, jax.random.bits(k[0, 1])), typed_key(2, 3), dtype="uint32")
    equal = lambda k: jax.random.wrap_key_data(k) == jax.random.wrap_key_data(k[::-1])  # noqa: E731
    table.add("keys", "equal", equal, key(3), dtype="uint32")


def _control_flow(table: Table) -> None:
    xs, matrix = array("float32", (5, 4)), array("float32", (4, 4), -1, 1)
    for reverse in (False, True):
        step = partial(_scan, reverse)
        table.add("control", f"scan[reverse={reverse}]", step, xs, matrix, tolerance=1e-5)
    table.add("control", "scan_empty", lambda x, m: _scan(False, x[:0], m), xs, matrix)
    table.add(
        "control",
        "scan_gradient",
        jax.grad(lambda x, m: _scan(True, x, m)[0].sum()),
        xs,
        matrix,
        tolerance=1e-4,
    )
    table.add("control", "while", _collatz, constant(27, "int32"), dtype="int32")
    table.add(
        "control", "while_lanes", jax.vmap(_collatz), constant([1, 27, 6, 97, 1], "int32"), dtype="int32"
    )
    table.add(
        "control", "fori_dynamic", _powers, constant(5, "int32"), array("float32", (4,)), tolerance=1e-5
    )
    table.add("control", "fori_never", _powers, constant(-5, "int32"), array("float32", (4,)))
    for index in (-3, 0, 1, 2, 9):
        maker = constant(index, "int32")
        table.add("control", f"switch[{index}]", _switch, maker, array("float32", (4,)), tolerance=1e-5)
    for flag in (False, True):
        maker = constant(flag, "bool")
        table.add("control", f"cond[{flag}]", _cond, maker, array("float32", (4,)), tolerance=1e-5)
    lanes = jax.vmap(_cond)
    table.add("control", "cond_lanes", lanes, array("bool", (3,)), array("float32", (3, 4)), tolerance=1e-5)
    table.add("control", "rotate", _rotate, array("float32", (3,)), array("float32", (3,)))
    table.add("control", "nested", _nested, array("float32", (3, 4)), tolerance=1e-5)
    table.add(
        "control",
        "constants",
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + jnp.asarray(_CONSTANT)[i], x),
        array("float32", (4,)),
    )


_CONSTANT = np.arange(12, dtype=np.float32).reshape(3, 4)


def _scan(reverse: bool, xs: Any, matrix: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h, n = carry
        h = jnp.tanh(h @ matrix + x)
        return (h, n + 1), (h * 2.0, n)

    return lax.scan(step, (jnp.zeros(4), jnp.int32(0)), xs, reverse=reverse)[1]


def _collatz(n: Any) -> Any:
    return lax.while_loop(
        lambda c: c[0] != 1,
        lambda c: (jnp.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1),
        (n, jnp.zeros_like(n)),
    )


def _powers(n: Any, x: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, c: c * 1.5 + i, x)


def _switch(index: Any, x: Any) -> Any:
    return lax.switch(
        index, [lambda x: (x + 1, x), lambda x: (x, x * 2), lambda x: (jnp.sin(x), jnp.zeros(4))], x
    )


def _cond(flag: Any, x: Any) -> Any:
    return lax.cond(flag, lambda x: (x[::-1], jnp.int32(1)), lambda x: (x * 2, jnp.int32(0)), x)


def _rotate(x: Any, y: Any) -> Any:
    """Carries swapped, duplicated, and passed through."""
    return lax.fori_loop(0, 5, lambda i, c: (c[1], c[0] + c[3], c[0], c[3]), (x, y, x, y))


def _nested(xs: Any) -> Any:
    def row(total: Any, x: Any) -> Any:
        doubled = lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) < 20, lambda c: c * 2, x + 0.1)
        y = lax.cond(doubled[0] > 0, lambda d: d - total, lambda d: d + total, doubled)
        return total + y.mean(), y

    return lax.scan(row, jnp.float32(0), xs)
