"""Differential cases: every primitive as a small function of arrays, for all dtypes or most that it takes.

tests/cpu/test_primitives.py runs all cases of one group and dtype (`groups()`) as one program, in a branch in
a loop, and compares with stock JAX: integers, booleans and random bits exactly, floats within the tolerance
of their case. More cases are in cases_structure.py, cases_indexing.py and cases_linalg.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from tests.case import (
    ALL,
    FLOATS,
    NUMBERS,
    SIGNED,
    TOLERANCE,
    UNSIGNED,
    WIDE,
    Case,
    Table,
    array,
    constant,
    edge_array,
    edge_pairs,
    numpy_dtype,
)
from tests.cases_indexing import add_indexing
from tests.cases_linalg import add_linalg
from tests.cases_structure import add_structure

CASES = Table()
add = CASES.add

# elementwise -----------------------------------------------------------------------------------------------

_EXACT_FLOAT = "neg sign floor ceil abs is_finite"
_MATH: dict[str, tuple[float, float, float]] = {  # name: domain, tolerance factor
    "exp": (-8, 8, 1),
    "exp2": (-8, 8, 3),
    "expm1": (-8, 8, 1),
    "log": (0.01, 50, 1),
    "log1p": (-0.9, 50, 1),
    "tanh": (-5, 5, 1),
    "logistic": (-8, 8, 1),
    "sin": (-30, 30, 1),
    "cos": (-30, 30, 1),
    "tan": (-1.4, 1.4, 2),
    "asin": (-1, 1, 1),
    "acos": (-1, 1, 1),
    "atan": (-20, 20, 1),
    "sinh": (-6, 6, 1),
    "cosh": (-6, 6, 1),
    "asinh": (-20, 20, 1),
    "acosh": (1, 20, 2),
    "atanh": (-0.95, 0.95, 1),
    "sqrt": (0, 50, 1),
    "rsqrt": (0.01, 50, 1),
    "cbrt": (-50, 50, 1),
    "erf": (-4, 4, 1),
    "erfc": (-4, 8, 4),
    "erf_inv": (-0.99, 0.99, 2),
    "lgamma": (0.1, 20, 8),
    "digamma": (0.1, 20, 8),
    "bessel_i0e": (-20, 20, 2),
    "bessel_i1e": (-20, 20, 2),
    "square": (-9, 9, 1),
}
# edge values are poles or lie far outside for these; stock's exp2 of 100 is 27 % off in bfloat16
_NO_EDGES = frozenset({"tan", "digamma", "lgamma", "bessel_i0e", "bessel_i1e", "exp2"})


def _elementwise() -> None:
    for dtype in FLOATS:
        tolerance = TOLERANCE[dtype]
        for name in _EXACT_FLOAT.split():
            add("elementwise", name, getattr(lax, name), edge_array(dtype), dtype=dtype)
        for method in lax.RoundingMethod:
            function = partial(lax.round, rounding_method=method)
            halves = edge_array(dtype, -9, 9)
            add("elementwise", f"round_{method.name.lower()}", function, halves, dtype=dtype)
        for name, (low, high, factor) in _MATH.items():
            maker = edge_array(dtype, low, high, edges=name not in _NO_EDGES)
            function = getattr(lax, name)
            add("elementwise", name, function, maker, dtype=dtype, tolerance=tolerance * factor)
        limits = constant([np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0, 2.0], dtype)
        add("elementwise", "exp2_limits", lax.exp2, limits, dtype=dtype, tolerance=tolerance)
        for exponent in (-3, -1, 0, 1, 2, 3, 7):
            function = partial(lax.integer_pow, y=exponent)
            name = f"integer_pow[{exponent}]"
            add("elementwise", name, function, edge_array(dtype), dtype=dtype, tolerance=tolerance)
        precision = partial(lax.reduce_precision, exponent_bits=5, mantissa_bits=2)
        add("elementwise", "reduce_precision", precision, edge_array(dtype), dtype=dtype)
    for dtype in FLOATS:
        add("elementwise", "nextafter", lax.nextafter, *edge_pairs(dtype), dtype=dtype)
    for dtype in SIGNED + UNSIGNED:
        names = ("neg", "sign", "population_count", "clz", "square")
        for name in names + (("abs",) if dtype in SIGNED else ()):
            add("elementwise", name, getattr(lax, name), edge_array(dtype), dtype=dtype)
        cube = partial(lax.integer_pow, y=3)
        add("elementwise", "integer_pow[3]", cube, edge_array(dtype), dtype=dtype)
    for dtype in ("bool", *SIGNED, *UNSIGNED):
        add("elementwise", "not", lax.bitwise_not, edge_array(dtype), dtype=dtype)


def _binary() -> None:
    for dtype in NUMBERS:
        for name in ("add", "sub", "mul", "div", "rem", "max", "min"):
            tolerance = TOLERANCE.get(dtype, 0.0) if name in ("div", "rem") else 0.0
            function = getattr(lax, name)
            add("binary", name, function, *edge_pairs(dtype), dtype=dtype, tolerance=tolerance)
    for dtype in FLOATS:
        tolerance = TOLERANCE[dtype]
        positive = edge_array(dtype, 0.1, 4, edges=False)
        add("binary", "pow", lax.pow, positive, edge_array(dtype), dtype=dtype, tolerance=4 * tolerance)
        add("binary", "pow_edges", lax.pow, *edge_pairs(dtype), dtype=dtype, tolerance=4 * tolerance)
        whole = edge_array("int32", -3, 4, edges=False)
        add("binary", "pow_integer", lax.pow, positive, whole, dtype=dtype, tolerance=4 * tolerance)
        add("binary", "atan2", lax.atan2, *edge_pairs(dtype), dtype=dtype, tolerance=tolerance)
    for dtype in ("bool", *SIGNED, *UNSIGNED):
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            add("binary", name, getattr(lax, name), *edge_pairs(dtype), dtype=dtype)
    for dtype in SIGNED + UNSIGNED:
        for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic"):
            add("binary", name, getattr(lax, name), *edge_pairs(dtype), dtype=dtype)
    for dtype in ALL:
        add("binary", "compare", _compare, *edge_pairs(dtype), dtype=dtype)
        add("binary", "total_order", _total_order, *edge_pairs(dtype), dtype=dtype)
    add("binary", "max", lax.max, *edge_pairs("bool"), dtype="bool")
    add("binary", "min", lax.min, *edge_pairs("bool"), dtype="bool")


def _compare(x: Any, y: Any) -> list[Any]:
    return [op(x, y) for op in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)]


def _total_order(x: Any, y: Any) -> list[Any]:
    return [p.bind(x, y) for p in (lax.eq_to_p, lax.le_to_p, lax.lt_to_p)]


def _newer() -> None:
    """Primitives that some supported versions lack."""
    for dtype in FLOATS:
        tolerance = 2 * TOLERANCE[dtype]
        gradient = jax.grad(lambda x: lax.tanh(x).sum())
        smooth = array(dtype, (37,), -2, 2)
        add("newer", "tanh_gradient", gradient, smooth, dtype=dtype, tolerance=tolerance)
        positive = array(dtype, (37,), 0.1, 9)
        if hasattr(lax, "log2"):
            add("newer", "log2", lax.log2, positive, dtype=dtype, tolerance=tolerance)
        if hasattr(lax, "polynomial"):
            coefficients = [array(dtype, (), 1, 2)] * 4
            function = lambda x, *c: lax.polynomial(x, c)  # noqa: E731
            add("newer", "polynomial", function, positive, *coefficients, dtype=dtype, tolerance=tolerance)


def _selecting() -> None:
    for dtype in ALL:
        x, y = array(dtype, (5, 7)), array(dtype, (5, 7))
        add("select", "select_n", lax.select_n, array("bool", (5, 7)), x, y, dtype=dtype)
        add("select", "select_n_scalar", lax.select_n, array("bool"), x, y, dtype=dtype)
        which = array("int32", (5, 7), -1, 5)
        function = lambda i, *cases: lax.select_n(i, *cases)  # noqa: E731
        add("select", "select_n_many", function, which, *(array(dtype, (5, 7)),) * 5, dtype=dtype)
    for dtype in NUMBERS:
        low, high = array(dtype, (), 0, 1), array(dtype, (), 1, 2)
        add("select", "clamp_scalar", lax.clamp, low, edge_array(dtype), high, dtype=dtype)
        bounds = edge_array(dtype, 0, 1), edge_array(dtype, 1, 2)
        add("select", "clamp", lax.clamp, bounds[0], edge_array(dtype), bounds[1], dtype=dtype)


def _conversions() -> None:
    for dtype in ALL:
        targets = [t for t in ALL if t not in WIDE]
        function = partial(_convert_to, targets)
        add("convert", "convert", function, edge_array(dtype, -300, 70000), dtype=dtype)
        function = partial(_convert_to, sorted(WIDE))
        maker = edge_array(dtype, -300, 70000)
        add("convert", "convert_wide", function, maker, dtype=dtype, x64=True)
    for dtype in NUMBERS:
        width = numpy_dtype(dtype).itemsize
        same = [t for t in NUMBERS if numpy_dtype(t).itemsize == width]
        add("convert", "bitcast", partial(_bitcast_to, same), edge_array(dtype, edges=False), dtype=dtype)
        narrow = [t for t in NUMBERS if numpy_dtype(t).itemsize < width]
        if narrow:
            maker = array(dtype, (3, 5))
            add("convert", "bitcast_narrow", partial(_bitcast_to, narrow), maker, dtype=dtype)
        for target in ("int32", "float64"):
            ratio = numpy_dtype(target).itemsize // width
            if ratio > 1:
                add(
                    "convert",
                    f"bitcast_wide[{target}]",
                    partial(_bitcast_to, [target]),
                    array(dtype, (3, ratio), 0, 100),
                    dtype=dtype,
                    x64=target in WIDE,
                )


def _convert_to(targets: Sequence[str], x: Any) -> list[Any]:
    return [lax.convert_element_type(x, numpy_dtype(t)) for t in targets]


def _bitcast_to(targets: Sequence[str], x: Any) -> list[Any]:
    """Bits as integers, so that NaN payloads are compared as well."""
    results = [lax.bitcast_convert_type(x, numpy_dtype(t)) for t in targets]
    widths = [numpy_dtype(t).itemsize * 8 for t in targets]
    pairs = zip(results, widths, strict=True)
    return [lax.bitcast_convert_type(y, np.dtype(f"uint{w}")) for y, w in pairs]


def groups() -> dict[tuple[str, str, bool], list[Case]]:
    """Cases by (group, dtype, x64)."""
    table: dict[tuple[str, str, bool], list[Case]] = {}
    for case in CASES:
        table.setdefault((case.group, case.dtype, case.x64), []).append(case)
    return table


_elementwise()
_binary()
_newer()
_selecting()
_conversions()
add_structure(CASES)
add_linalg(CASES)
add_indexing(CASES)
