"""Special functions in float64: series of our own, and the error and gamma functions of Python's `math`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jax_cocktail.utask.arrays import Array
from tests.oracle.interpreter.common import Evaluate
from tests.oracle.interpreter.elementwise import unary

_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """Applies a function of one float to arrays."""

    def apply(x: Array) -> Array:
        flat = [function(float(v)) for v in x.reshape(-1)]
        return np.asarray(flat, np.float64).reshape(x.shape)

    return apply


def _lgamma(x: float) -> float:
    """log |gamma(x)|, infinite at the poles."""
    if x == -math.inf or x > 2.5e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return -math.log(abs(x)) if abs(x) < 1e-300 else math.lgamma(x)  # which overflows for denormals


def _digamma(x: float) -> float:
    """Digamma by reflection below zero, recurrence up to 10, then the asymptotic series (DLMF 5.11.2)."""
    if math.isnan(x) or x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.nan
    if x == math.inf:
        return math.inf
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.remainder(x, 1.0))
    shifted = 0.0
    while x < 10:
        shifted -= 1 / x
        x += 1
    square = 1 / (x * x)
    tail = 0.0
    for coefficient in reversed(_BERNOULLI):
        tail = (tail + coefficient) * square
    return shifted + math.log(x) - 0.5 / x - tail


def _erf_inv(x: float) -> float:
    """Newton steps from a rational start; the complementary function keeps digits near 1."""
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if x == 0:
        return x
    size = abs(x)
    log = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + log / 2
    y = math.sqrt(math.sqrt(half * half - log / 0.147) - half)
    for _ in range(6):
        error = math.erf(y) - size if size < 0.5 else (1 - size) - math.erfc(y)
        step = error / (2 / math.sqrt(math.pi) * math.exp(-y * y))
        y -= step / (1 + y * step)
    return math.copysign(y, x)


def _bessel(order: int) -> Callable[[float], float]:
    """exp(-|x|) I_order(x): the power series (DLMF 10.25.2) up to 30, then Hankel's expansion (10.40.1)."""

    def scaled(x: float) -> float:
        size = abs(x)
        if math.isnan(x):
            return x
        if size == math.inf:
            return math.copysign(0.0, x) if order else 0.0
        if size <= 30:
            term, total = (size / 2) ** order, 0.0
            for k in range(1, 200):
                total += term
                term *= size * size / 4 / (k * (k + order))
            result = total * math.exp(-size)
        else:
            term, total = 1.0, 1.0
            for k in range(1, 30):
                term *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * size * k)
                total += term
            result = total / math.sqrt(2 * math.pi * size)
        return math.copysign(result, x) if order else result

    return scaled


SPECIAL: dict[str, Evaluate] = {
    name: unary(_each(function), False)
    for name, function in {
        "erf": math.erf,
        "erfc": math.erfc,
        "erf_inv": _erf_inv,
        "lgamma": _lgamma,
        "digamma": _digamma,
        "bessel_i0e": _bessel(0),
        "bessel_i1e": _bessel(1),
    }.items()
}
