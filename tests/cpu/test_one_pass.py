"""Reductions and element-wise results that one pass over memory computes, against stock."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks.traffic.count import Traffic, count
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.primitives import translate
from jax_cocktail.utask.candidate import SINGLE, way
from tests.cpu.emulated import Emulation

Function = Callable[..., Any]
FORCED = {"force": "cocktail", "strict": True}


def moments(axes: int | tuple[int, ...] | None) -> Function:
    return lambda x: (x.max(axes), x.min(axes), x.sum(axes), (x * x).sum(axes))


def softmax(x: jax.Array) -> tuple[jax.Array, ...]:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    return e / total, total


def softmax_of_all(x: jax.Array) -> tuple[jax.Array, ...]:
    e = jnp.exp(x - x.max())
    return e, e.sum(), e / e.sum()


def softmax_of_columns(x: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max(0))
    return e / e.sum(0)


def layer_norm_gradient(x: jax.Array) -> tuple[jax.Array, ...]:
    def norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
        mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
        return jnp.sin((x - mean) * lax.rsqrt(square - mean * mean + 0.5) * gamma + beta)

    width = x.shape[-1]
    gradient = jax.grad(lambda *given: norm(*given).sum(), (0, 1, 2))
    return gradient(x, jnp.linspace(0.5, 2, width), jnp.linspace(-1, 1, width))


def with_a_copy(x: jax.Array) -> tuple[jax.Array, ...]:
    """The element-wise result is stored in a part of another array."""
    y = jnp.tanh(x)
    return jnp.zeros((2, *x.shape)).at[1].set(y), y.sum(-1), (y * x).sum(-1)


FUNCTIONS: dict[str, Function] = {
    "rows": moments(-1),
    "columns": moments(0),
    "all": moments(None),
    "softmax": softmax,
    "softmax_of_all": softmax_of_all,
    "softmax_of_columns": softmax_of_columns,
    "layer_norm_gradient": layer_norm_gradient,
    "with_a_copy": with_a_copy,
}


def everything(x: jax.Array) -> list[Any]:
    return [function(x) for function in FUNCTIONS.values()]


SHAPES = [
    (5, 7),
    (64, 100),
    (3, 33, 12),
    (1, 9),
    (9, 1),
    (300, 3),
    (2, 1500),
    (1500, 20),
    (7, 333),
    (3, 9000),
]


def looped(function: Function) -> Function:
    """Applies it to each of the first axis."""
    return lambda *given: lax.scan(lambda c, each: (c, function(*each)), 0, given)[1]


def ours(function: Function, *given: Any, **options: Any) -> Any:
    return jax_cocktail.jit(function, options={**FORCED, **options})(*given)


def check(found: Any, wanted: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol, atol * max(1, a.size and scale(b))
        )


def scale(x: Any) -> float:
    """The largest finite number."""
    wide = np.abs(np.asarray(x, np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0))


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> jax.Array:
    x = np.random.default_rng(1).standard_normal((2, *shape)) * 3
    return jnp.asarray(x).astype(dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_those_of_stock(shape: tuple[int, ...]) -> None:
    function, x = looped(everything), numbers(shape)
    found = ours(function, x)
    check(found, jax.jit(function)(x))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(ours(function, x, units=2)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int32", "uint8", "int64"])
def test_reductions_of_every_type(dtype: str) -> None:
    def function(x: jax.Array) -> list[Any]:
        return [moments(axes)(x) for axes in (-1, 0, None, (0, 2))]

    with jax.enable_x64(True):
        function, x = looped(function), numbers((6, 10, 20), dtype)
        check(
            ours(function, x), jax.jit(function)(x), *([2e-2] * 2 if dtype in ("bfloat16", "float16") else [])
        )


def test_reductions_of_several_types_and_operators() -> None:
    def along(axes: Any, x: jax.Array, n: jax.Array) -> tuple[jax.Array, ...]:
        wide, big = x.astype("float64"), x > 0.5
        logic = big.any(axes), big.all(axes), lax.reduce_xor(n, (0, 1))
        return x.sum(axes), wide.sum(axes), n.sum(axes), n.max(axes), (x * n).prod(axes), x.min(axes), *logic

    def function(x: jax.Array, n: jax.Array) -> list[Any]:
        return [along(axes, x, n) for axes in (-1, 0, None)]

    with jax.enable_x64(True):
        x, n = numbers((30, 40)), numbers((30, 40), "int32")
        check(ours(looped(function), x, n), jax.jit(looped(function))(x, n))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 5), (5, 1)], ids=str)
def test_empty_and_short_axes(shape: tuple[int, ...]) -> None:
    def function(x: jax.Array) -> list[Any]:
        e = jnp.exp(x)
        return [e, *((x.sum(axes), x.prod(axes), e.sum(axes)) for axes in (-1, 0, None))]

    x = numbers(shape)
    check(ours(looped(function), x), jax.jit(looped(function))(x))


def test_special_numbers() -> None:
    x = np.random.default_rng(2).standard_normal((2, 40, 70)).astype(np.float32)
    x[0, 3, 5], x[0, 7, 66], x[1, 2, 1], x[1, 2, 65] = np.nan, np.inf, -np.inf, np.inf
    x[1, 5] = -np.inf
    names = ("rows", "columns", "all", "softmax", "softmax_of_columns")
    function = looped(lambda x: [FUNCTIONS[name](x) for name in names])
    check(ours(function, x), jax.jit(function)(x))


def test_long_sums_stay_exact() -> None:
    """Beside a maximum, along rows and down columns."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        return x.sum(0), x.max(0), x.sum(1), x.min(1)

    x = np.random.default_rng(3).uniform(0, 1, (2, 5000, 1700)).astype(np.float32)
    found, wanted = ours(looped(function), x), jax.jit(looped(function))(x)
    exact = function(x[0].astype(np.float64))
    for a, b, c in zip(found, wanted, exact, strict=True):
        mine, theirs = (np.abs(np.asarray(y[0], np.float64) - c).max() for y in (a, b))
        assert mine <= 2 * theirs + 1e-7 * np.abs(c).max()


# -- traffic -------------------------------------------------------------------------------------------------
def emitted(function: Function, *given: Any, units: int = 1) -> tuple[Emitted, list[np.ndarray]]:
    closed = jax.make_jaxpr(function)(*given)
    (region,) = capture(closed).regions
    program = translate(region.program, "counted", tuple(range(len(region.operands))))
    candidate = SINGLE if units == 1 else way(units=units, distribute=True)
    return emit(program, candidate=candidate), [given[closed.jaxpr.invars.index(o)] for o in region.operands]


def counted(function: Function, x: np.ndarray, units: int = 1) -> Traffic:
    found = count(*emitted(looped(function), x, units=units), units)
    check(list(found.results), jax.tree.leaves(jax.jit(looped(function))(x)))
    return found


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((2, 64, 1000), np.float32)


@pytest.mark.parametrize(("name", "units"), [("rows", 1), ("rows", 2), ("columns", 2), ("all", 1)])
def test_reductions_of_an_array_load_it_once(x: np.ndarray, name: str, units: int) -> None:
    moved = counted(FUNCTIONS[name], x, units).total("operand")
    assert moved.loaded == x.nbytes


@pytest.mark.parametrize("units", [1, 2])
def test_a_long_array_is_loaded_once_by_all_units_together(units: int) -> None:
    """Its reductions are split into the same parts."""
    x = np.random.default_rng(5).standard_normal((2, 1 << 17), np.float32)
    assert counted(moments(None), x, units).total("operand").loaded == x.nbytes


def test_softmax_stores_and_adds_exponentials_in_one_pass(x: np.ndarray) -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return e, e.sum(-1)

    found, row = counted(function, x), x.nbytes // 1000
    assert found.total("operand").loaded == 2 * x.nbytes, "for the maximum and for the rest"
    assert found.total("result", "workspace", "own").loaded <= 4 * row


def test_a_long_row_has_accumulators_for_a_run() -> None:
    """One vector of them would wait for itself."""
    source = emitted(looped(moments(-1)), np.ones((2, 4, 1000), np.float32))[0].source
    assert re.findall(r"f32 a\d+\[(\d+)\];", source) == ["64"] * 4
    assert re.findall("ck_fold_lanes<(.*?)>", source) == [
        f"Ck{op}, 64" for op in ("Max", "Min", "Sum", "Sum")
    ]


def test_a_column_is_added_in_registers(x: np.ndarray) -> None:
    moved = counted(lambda x: x.sum(0), x).total("result", "workspace", "own")
    assert moved.stored <= 2 * 2 * 4000, "once, and once to the stacked result"


def test_one_loop_has_all_accumulators() -> None:
    source = emitted(looped(moments(-1)), np.ones((2, 64, 50), np.float32))[0].source
    loop = source[source.index("alignas(64)") : source.index("ck_fold_rows")]
    assert re.findall("ck_keep_row<(.*?)>", loop) == [f"Ck{op}, 64" for op in ("Max", "Min", "Sum", "Sum")]
    assert loop.count("50 * i0 + i1]") == 1, "one load for all"


LENGTHS = (2, 7, 8, 10, 17, 32, 50, 95, 130)  # longer rows may be split, if there are many elements
FEW = (7, 32, 50, 130)  # shorter than the lanes of every type, as many as those of one, some more, many more


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8", "bool"])
def test_lanes_of_many_rows_are_combined_at_once(
    dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row has the same bits, however many there are: in programs for these numbers of rows, not for any."""

    def reduced(x: jax.Array) -> tuple[jax.Array, ...]:
        if dtype == "bool":
            return x.any(-1), x.all(-1)
        return x.max(-1), x.min(-1), x.sum(-1, dtype=x.dtype), (x * x).sum(-1, dtype=x.dtype)

    with jax.enable_x64(True):
        for length in LENGTHS if dtype == "float32" else FEW:
            numbers = np.random.default_rng(length).standard_normal((37, length)) * 5
            x = jnp.asarray(np.abs(numbers) if dtype == "uint8" else numbers).astype(dtype)
            results = []
            for each in (x, x[30:35]):
                # a folder that knows no other size
                monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / f"{length}x{len(each)}"))
                results.append(ours(looped(reduced), each[None]))
            many, few = results
            for a, b in zip(many, few, strict=True):
                np.testing.assert_array_equal(np.asarray(a)[:, 30:35], np.asarray(b))
            if dtype == "float32":
                wide = np.asarray(x, np.float64)
                exact = wide.max(-1), wide.min(-1), wide.sum(-1), (wide * wide).sum(-1)
                stock = jax.jit(reduced)(x)
                for a, b, c in zip(many, stock, exact, strict=True):
                    unit = np.finfo(np.float32).eps * max(1.0, np.abs(c).max())
                    assert np.abs(a[0] - c).max() <= 2 * np.abs(b - c).max() + unit
            else:
                rtol = 0.02 if dtype == "bfloat16" else 1e-12
                check(many, jax.jit(looped(reduced))(x[None]), rtol, rtol)


def test_nan_wins_in_a_row_of_many() -> None:
    x = np.random.default_rng(3).standard_normal((1, 40, 33)).astype(np.float32)
    x[0, 7, 32] = x[0, 39, 0] = np.nan
    x[0, 8, 5], x[0, 9, 6] = np.inf, -np.inf
    found = ours(looped(moments(-1)), x)
    check(found, jax.jit(looped(moments(-1)))(x))
    assert [int(np.isnan(each).sum()) for each in found] == [2, 2, 2, 2]


def test_lanes_run_through_a_group_of_channels() -> None:
    """They are not combined in each of its rows."""
    x = np.random.default_rng(4).standard_normal((1, 2, 300, 4, 10), np.float32)
    function = looped(moments((1, 3)))
    source = emitted(function, x)[0].source
    assert re.findall("ck_fold_lanes<(.*?)>", source) == [
        f"Ck{op}, 16" for op in ("Max", "Min", "Sum", "Sum")
    ]
    check(ours(function, x), jax.jit(function)(x))


# -- a GPU, emulated -----------------------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "units", "threads", "sanitizer"),
    [
        ((5, 7), 1, 64, "thread"),
        ((5, 7), 3, 256, "thread"),
        ((6, 70), 1, 256, "thread"),
        ((6, 70), 3, 256, "address"),
        ((3, 700), 1, 256, "thread"),
        ((3, 300), 2, 64, "address"),
        ((1, 50), 1, 64, "thread"),
        ((1, 50), 2, 256, "thread"),
        ((300, 3), 1, 64, "thread"),
    ],
)
def test_blocks_of_threads(
    shape: tuple[int, ...], units: int, threads: int, sanitizer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulation = Emulation(launches=[], threads=threads, sanitizer=sanitizer).install(monkeypatch)

    x = numbers(shape)
    check(ours(looped(everything), x, units=units), jax.jit(looped(everything))(x))
    assert emulation.launches


def test_threads_reduce_one_row_for_several_results(monkeypatch: pytest.MonkeyPatch) -> None:
    emulation = Emulation(launches=[], threads=256).install(monkeypatch)
    x = numbers((4, 300))
    ours(looped(moments(-1)), x, units=1)
    source = emulation.launches[0][0].source
    loops = source.count("i1 = ck_lane() % 32; i1 < 300")
    assert loops == 1 and len(re.findall("= ck_group_reduce<", source)) == 4


# -- mean and variance of large arrays -----------------------------------------------------------------------
def mean_and_variance(axes: Any) -> Function:
    return lambda x: (x.mean(axes), x.var(axes), x.std(axes, ddof=1, keepdims=True))


LARGE = {  # shape and axes
    "all": ((700, 400), (0, 1)),
    "a prime": ((1000003,), (0,)),
    "columns": ((6007, 40), (0,)),
    "images": ((12, 30, 31, 24), (0, 1, 2)),
}
VALUES: dict[str, Callable[[Any, int], Any]] = {  # from normal numbers, and their number
    "normal": lambda x, n: x,
    "far from zero": lambda x, n: x + 1e4,
    "rising": lambda x, n: x + np.linspace(1e4, 2e4, n),
    "constant": lambda x, n: 0 * x + 0.1,
    "large": lambda x, n: x * 1e15,
}


def large(name: str, values: str = "normal", dtype: str = "float32") -> np.ndarray:
    shape = LARGE[name][0]
    x = np.random.default_rng(7).standard_normal(shape).reshape(-1)
    return np.asarray(VALUES[values](x, x.size).reshape(shape), dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", LARGE)
def test_moments_are_exact(name: str, values: str) -> None:
    x, axes = large(name, values), LARGE[name][1]
    function = mean_and_variance(axes)
    found = ours(function, x, scope="memory_bound")
    exact = mean_and_variance(axes)(x.astype(np.float64))
    mean, variance, deviation = (np.abs(y).max() for y in exact)
    sums = 2e-6  # of f32
    bounds = (mean + deviation) * sums, variance * sums + (mean * sums) ** 2, (mean + deviation) * sums
    for a, b, c, bound in zip(found, jax.jit(function)(x), exact, bounds, strict=True):
        mine, theirs = (np.abs(np.asarray(y, np.float64) - c).max() for y in (a, b))
        assert mine <= 2 * theirs + bound
    for a, b in zip(found, ours(function, x, scope="memory_bound", units=2), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", LARGE)
def test_moments_of_other_types(name: str, dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(large(name, "far from zero" if dtype == "float64" else "normal")).astype(dtype)
        function = mean_and_variance(LARGE[name][1])
        found, wanted = ours(function, x, scope="memory_bound"), jax.jit(function)(x)
        check(found, wanted, *([1e-12] * 2 if dtype == "float64" else [2e-2] * 2))


@pytest.mark.covering(1)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e30, 3e38])
@pytest.mark.parametrize("name", LARGE)
def test_special_numbers_have_the_moments_of_stock(name: str, special: float) -> None:
    x = large(name)
    x.reshape(-1)[[5, x.size // 2]] = special
    function = mean_and_variance(LARGE[name][1])
    found = ours(function, x, scope="memory_bound")
    for a, b in zip(found, jax.jit(function)(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
