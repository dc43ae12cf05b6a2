"""Denormals, signed zeros, the ends of the range: every operator on floats, bit by bit against stock XLA.

XLA's threads flush denormals. A row of the table is an operator; `differs` says for which operands the result
may be another one than stock XLA's, which docs/captured.md names. Where nothing differs, the bits
are equal (all NaNs are one); functions that are approximated may differ in their last digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import operators_in
from jax_cocktail.utask.operators import BARRIERS, ELEMENTWISE, KINDS, MOVEMENT
from tests.oracle.interpreter.run import run

PAGE = Path(__file__).parents[2] / "docs" / "captured.md"
FLOATS = ("bfloat16", "float16", "float32", "float64")
# Of XLA: last bits are those of optimised code, also where `make test` asks for other code.
OPTIMISED = {"xla_backend_optimization_level": 3}
# the interpreter flushes more, or less (see its `run`), or adds in another order or precision
NOT_INTERPRETED = (
    "to_bool to_bfloat16 to_float32 times_1 larger rem nextafter reduce_of_one sort cumsum scatter_max"
    " scatter_min dot bessel_i0e bessel_i1e"
)
FACTORS = {kind for kind in KINDS if KINDS[kind].cubic}  # of matrices: every element is rounded many times
# operators that see no float, or that only move bits
OTHERS = BARRIERS | MOVEMENT | {"block_barrier", "copy", "dynamic_update_slice", "fail", "units"}
ON_INTEGERS = {kind for kind in ELEMENTWISE if KINDS[kind].takes in ("bits", "integers")} | {"threefry2x32"}


@dataclass(frozen=True)
class Row:
    """`function` of as many vectors as `arity` says, or of the rows of a matrix with two columns (arity 0).

    exact: the result is rounded at most once. differs: "" nowhere; "denormal": an operand or the result is
    denormal, or so close to it that stock XLA's own steps are; "order": the places of denormal operands;
    "sign": only the sign of a zero.
    """

    name: str
    arity: int
    function: Callable[..., Any]
    exact: bool = True
    differs: str = ""


def _rows(dtype: str) -> list[Row]:
    return [*_unary(dtype), *_binary(dtype), *_anchors(dtype)]


def _unary(dtype: str) -> list[Row]:
    number = jnp.dtype(dtype).type
    exact = {
        name: getattr(lax, name) for name in ("neg", "abs", "sign", "floor", "ceil", "is_finite", "sqrt")
    }
    exact |= {f"round_{m.name}": partial(lax.round, rounding_method=m) for m in lax.RoundingMethod}
    exact |= {f"power_{n}": partial(lax.integer_pow, y=n) for n in (2, 3)}
    targets = ("bool", "int32", *FLOATS[1:])
    exact |= {f"to_{t}": partial(lax.convert_element_type, new_dtype=t) for t in targets}
    exact["reduce_precision"] = partial(lax.reduce_precision, exponent_bits=5, mantissa_bits=6)
    exact["bits"] = lambda x: lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    exact["clamp"] = lambda x: lax.clamp(number(-1), x, number(1))
    exact["positive"] = lambda x: x > 0
    exact["maximum_of_0"] = lambda x: lax.max(number(0), x)
    exact["minimum_of_0"] = lambda x: lax.min(x, number(0))
    exact["plus_0"] = lambda x: x + 0
    exact["minus_0"] = lambda x: x - 0
    exact["times_1"] = lambda x: x * 1
    rows = [Row(name, 1, function) for name, function in exact.items()]
    # newer versions of XLA's compiler take the instruction of processors that have one
    differs = "denormal" if dtype == "float32" and jax.__version_info__ >= (0, 11) else ""
    narrow = partial(lax.convert_element_type, new_dtype="bfloat16")
    rows.append(Row("to_bfloat16", 1, narrow, differs=differs))
    # XLA's compiler turns this comparison into one of bits, and that with a zero that it does not know not
    rows.append(Row("is_0", 1, lambda x: x == 0, differs="denormal" if dtype == "bfloat16" else ""))
    for name in (
        "rsqrt",
        "exp",
        "exp2",
        "cos",
        "logistic",
        "acos",
        "cosh",
        "acosh",
        "erf",
        "erfc",
        "erf_inv",
    ):
        rows.append(Row(name, 1, getattr(lax, name), exact=False))
    for name in ("bessel_i0e", "bessel_i1e"):
        rows.append(Row(name, 1, getattr(lax, name), exact=False))
    # stock's lgamma of 1 is not 0, and versions of JAX differ in the digamma of 0
    for name, f, without in (("lgamma", lax.lgamma, 1), ("digamma", lax.digamma, 0)):
        function = lambda x, f=f, n=without: f(jnp.where(x == n, number(2), x))  # noqa: E731
        rows.append(Row(name, 1, function, exact=False, differs="denormal"))
    for name in (
        "expm1",
        "log",
        "log1p",
        "tanh",
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "asinh",
        "atanh",
        "cbrt",
    ):
        rows.append(Row(name, 1, getattr(lax, name), exact=False, differs="denormal"))
    return rows


def _binary(dtype: str) -> list[Row]:
    names = ("add", "sub", "mul", "div", "max", "min", "rem", "nextafter", "eq", "ne", "lt", "le", "gt", "ge")
    rows = [Row(name, 2, getattr(lax, name)) for name in names]
    rows.append(Row("select", 2, lambda x, y: jnp.where(y > 1, x, y)))
    # C++ compilers, and XLA's, may make a maximum of it
    rows.append(Row("larger", 2, lambda x, y: jnp.where(x > y, x, y), differs="denormal"))
    rows.append(Row("clamp_low", 2, lambda x, y: lax.clamp(x, y, jnp.full_like(y, 2))))
    rows.append(Row("clamp_high", 2, lambda x, y: lax.clamp(jnp.full_like(y, -2), x, y)))
    rows.append(Row("copysign", 2, jnp.copysign))
    return [*rows, *(Row(name, 2, getattr(lax, name), False, "denormal") for name in ("pow", "atan2"))]


def _anchors(dtype: str) -> list[Row]:
    number = jnp.dtype(dtype).type
    limits = {"max": -np.inf, "min": np.inf, "add": 0, "mul": 1}
    both = {"dimension_numbers": (((1,), (1,)), ((0,), (0,)))}
    tables: dict[str, Callable[[Any], Any]] = {
        "reduce_max": lambda m: jnp.max(m, 1),
        "reduce_min": lambda m: jnp.min(m, 0),
        "reduce_of_one": lambda m: jnp.sum(m[:, None], 1),
        "reduce_prod": lambda m: jnp.prod(m, 1),
        "argmax": lambda m: jnp.argmax(m, 1),
        "argmin": lambda m: jnp.argmin(m, 1),
        "cumsum": lambda m: lax.cumsum(m, 1),
        "cummax": lambda m: lax.cummax(m, 1),
        "cummin": lambda m: lax.cummin(m, 1),
        "sort": lambda m: lax.sort(m, dimension=1),
        "dot_of_one_term": lambda m: lax.dot_general(m[:, :1], m[:, 1:], **both),
        "pool_gradient": jax.grad(lambda m: jnp.sum(_pool(m, lax.max, number(-np.inf)))),
    }
    for name, start in limits.items():
        tables[f"pool_{name}"] = partial(_pool, computation=getattr(lax, name), start=number(start))
    for name in ("add", "multiply", "max", "min"):
        tables[f"scatter_{name}"] = partial(_scatter, name)
    rows = [Row(name, 0, function) for name, function in tables.items()]
    dot = lambda m: lax.dot_general(m, m[:, ::-1], **both)  # noqa: E731
    conv = lambda m: lax.conv_general_dilated(m[:, None], m[7:8, :1, None], (1,), "VALID")  # noqa: E731
    sums = lambda m: jnp.sum(m, 1)  # noqa: E731
    rows.append(Row("top_k", 0, lambda m: lax.top_k(m, 2), differs="order" if dtype == "bfloat16" else ""))
    rows.append(Row("reduce_sum", 0, sums, differs="sign" if dtype == "bfloat16" else ""))
    rows += [Row("dot", 0, dot, differs="sign"), Row("conv", 0, conv, differs="sign")]
    return [*rows, Row("cumprod", 0, lambda m: lax.cumprod(m, 1), differs="denormal")]


def _pool(m: Any, computation: Callable[..., Any], start: Any) -> Any:
    return lax.reduce_window(m, start, computation, (1, 2), (1, 1), "VALID")


def _scatter(name: str, m: Any) -> Any:
    return getattr(m[:, 0].at[jnp.arange(len(m))], name)(m[:, 1])


def _values(dtype: str) -> np.ndarray:
    """Zeros, denormals, the smallest normal numbers, some whose products underflow, both ends, NaN."""
    limits = jnp.finfo(dtype)
    tiny, least = float(limits.tiny), float(limits.smallest_subnormal)
    root = 2.0 ** (int(limits.minexp) // 2)
    small = [0.0, least, 2 * least, tiny / 2, tiny - least, tiny, 1.5 * tiny, 2 * tiny, root, root / 4]
    positive = np.array([*small, 0.5, 1.0, 1.5, 3.0, 1 / root, float(limits.max), np.inf])
    return np.concatenate([positive, -positive, [np.nan]]).astype(jnp.dtype(dtype))


def _operands(dtype: str) -> dict[int, tuple[np.ndarray, ...]]:
    """By arity: all values, all pairs, all pairs as rows."""
    values = _values(dtype)
    pairs = np.repeat(values, len(values)), np.tile(values, len(values))
    return {1: (values,), 2: pairs, 0: (np.stack(pairs, 1),)}


def _stacks(dtype: str) -> dict[int, tuple[np.ndarray, ...]]:
    """The operands of two iterations, of which the second has those of `_operands`."""
    return {arity: tuple(np.stack([x[::-1], x]) for x in given) for arity, given in _operands(dtype).items()}


def _program(rows: list[Row]) -> Callable[..., Any]:
    """Every row in the body of a loop, on operands that are read in each iteration. Two rows of one arity
    may share instructions, as they do in programs."""

    def loop(arity: int, count: Any, stacks: Any) -> Any:
        def step(i: Any) -> list[Any]:
            given = [lax.dynamic_index_in_dim(x, i, 0, False) for x in stacks]
            return [row.function(*given) for row in rows if row.arity == arity]

        initial = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(step, 0))
        return lax.fori_loop(0, count, lambda i, _: step(i), initial)

    return lambda count, stacks: {arity: loop(arity, count, stacks[arity]) for arity in stacks}


def _bits(x: np.ndarray) -> np.ndarray:
    """The bits of an array; all NaNs are one."""
    if x.dtype.kind not in "fV":
        return x
    x = np.where(np.isnan(x.astype(np.float64)), np.array(np.nan, x.dtype), x)
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _close(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Equal but for the last digits; never a zero and a number, nor numbers of two signs."""
    limits = jnp.finfo(x.dtype)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= np.maximum(256 * float(limits.eps) * np.abs(b), 8 * float(limits.eps))
    numbers = np.isfinite(a) & (np.minimum(np.abs(a), np.abs(b)) >= float(limits.tiny))
    return near & numbers


def _excused(row: Row, given: tuple[np.ndarray, ...], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where a row may differ."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    if row.differs == "sign":
        return (a == 0) & (b == 0)
    if row.differs not in ("denormal", "order"):
        return np.zeros(x.shape, bool)
    tiny = 4 * float(jnp.finfo(given[0].dtype).tiny)
    small = [(v != 0) & (np.abs(v) < tiny) for v in (g.astype(np.float64) for g in given)]
    operand = np.any(small, axis=0)
    if row.differs == "order":
        return np.broadcast_to(operand.any(-1, keepdims=True), x.shape)
    return operand & ([True, False] if row.arity == 0 else True)  # the first element of a cumprod


def _differences(row: Row, given: tuple[np.ndarray, ...], ours: Any, stock: Any) -> list[str]:
    found = []
    for x, y in zip(
        map(np.asarray, jax.tree.leaves(ours)), map(np.asarray, jax.tree.leaves(stock)), strict=True
    ):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        wrong = (_bits(x) != _bits(y)) & ~_excused(row, given, x, y)
        wrong &= row.exact | ~_close(x, y) if jnp.issubdtype(x.dtype, np.floating) else True
        for place in np.argwhere(wrong)[:3]:
            at = tuple(place)
            operands = [float(v) for g in given for v in np.atleast_1d(g[at[0]] if row.arity == 0 else g[at])]
            found.append(f"{row.name}{tuple(operands)}{at[1:]} = {x[at]} instead of {y[at]}")
    return found


def test_the_table_has_a_row_for_every_operator() -> None:
    with jax.enable_x64(True):
        program = jax.make_jaxpr(_program(_rows("float32")))(np.int32(2), _stacks("float32"))
        translated = translate(adapter.program(program), "table")
    found = {operator.kind for operator in operators_in(translated.entry)}
    assert not KINDS.keys() - found - OTHERS - ON_INTEGERS - FACTORS


def test_a_page_names_what_differs() -> None:
    _, _, told = PAGE.read_text(encoding="utf-8").partition("it excepts\nthese results:")
    phrases = {"is_0": "`x == 0` of bfloat16", "larger": "`where(x > y, x, y)`", "reduce_sum": "bfloat16 sum"}
    phrases |= {"to_bfloat16": "converts float32 to it"}
    different = {row.name for dtype in FLOATS for row in _rows(dtype) if row.differs}
    assert [name for name in different if phrases.get(name, f"`{name}`") not in told] == []
    # `max`: in the sentence about other versions of JAX
    assert set(re.findall(r"`(\w+)`", told)) == different - phrases.keys() | {"max"}


# In newer versions XLA keeps denormals of bfloat16 in these, see docs/captured.md.
EXTREMES = {f"{kind}{name}" for kind in ("", "reduce_", "cum", "pool_") for name in ("max", "min")}
KEEP_DENORMALS = {"to_bool", *EXTREMES} if jax.__version_info__ >= (0, 11) else set()


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_operator_at_the_ends_of_the_range(dtype: str) -> None:
    with jax.enable_x64(True):
        rows, operands, stacks = _rows(dtype), _operands(dtype), _stacks(dtype)
        program = _program(rows)
        options = {"force": "cocktail", "profile": "off", "strict": True, "units": 1}
        ours = jax_cocktail.jit(program, options=options)(np.int32(2), stacks)
        stock = jax.jit(program, compiler_options=OPTIMISED)(np.int32(2), stacks)
        interpreted = _interpreted(program, (np.int32(2), stacks), jax.tree.structure(stock))
    found = []
    for arity, given in operands.items():
        chosen = [row for row in rows if row.arity == arity]
        for row, x, y, z in zip(chosen, ours[arity], stock[arity], interpreted[arity], strict=True):
            if dtype == "bfloat16" and row.name in KEEP_DENORMALS:
                continue
            found += _differences(row, given, x, y)
            if row.name not in NOT_INTERPRETED.split():
                found += [f"interpreted: {each}" for each in _differences(row, given, z, y)]
    assert not found, "\n".join(found)


def _interpreted(program: Callable[..., Any], arguments: Any, structure: Any) -> Any:
    translated = translate(adapter.program(jax.make_jaxpr(program)(*arguments)), "table")
    prepared = canonicalise(simplify(translated))
    return jax.tree.unflatten(structure, run(prepared, jax.tree.leaves(arguments), flush_denormals=True))
