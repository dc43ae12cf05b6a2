"""The transcendental functions of one argument: their references in float64, and the errors allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def _by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _erf_inv(x: float) -> float:
    """Newton's method; on erfc near 1, where erf would cancel."""
    a = abs(x)
    if not a < 1:
        return math.copysign(math.inf, x) if a == 1 else math.nan
    y = math.sqrt(-math.log1p(-a)) if a > 0.5 else a
    for _ in range(60):
        error = math.erfc(y) - (1 - a) if a > 0.5 else a - math.erf(y)
        step = error * math.sqrt(math.pi) / 2 * math.exp(y * y)
        y += max(-0.5, min(0.5, step / (1 + abs(y * step))))
    return math.copysign(y, x)


def _digamma(x: float) -> float:
    if math.isnan(x) or x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.nan
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.remainder(x, 1))
    shift = 0.0
    while x < 60:
        shift, x = shift + 1 / x, x + 1
    return math.log(x) - 0.5 / x - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) - shift


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _bessel(order: int) -> Callable[[np.ndarray], np.ndarray]:
    """exp(-|x|) I(x) by its power series, or for large x by the trapezoid rule on its integral."""
    angle = (np.arange(400) + 0.5) * math.pi / 400

    def one(x: float) -> float:
        a = abs(x)
        if a < 10:
            terms = (
                (a / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order))
                for k in range(60)
            )
            value = math.exp(-a) * math.fsum(terms)
        else:
            value = float(np.mean(np.exp(-2 * a * np.sin(angle / 2) ** 2) * np.cos(order * angle)))
        return math.copysign(value, x) if order else value

    return _by_element(one)


@dataclass(frozen=True)
class Case:
    """A function, its reference, where it is tried, and the error allowed (ulp, in f32 and in f64)."""

    name: str
    reference: Callable[[np.ndarray], np.ndarray]
    intervals: tuple[tuple[float, float], ...]
    ulp: float = 1.0
    ulp_f64: float = 2.0


CASES = (
    Case("floor", np.floor, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("ceil", np.ceil, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("round_even", np.rint, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("sqrt", np.sqrt, ((0, 100), (0, 1e30)), 0.51, 0.51),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), ((0, 100), (1e-30, 1e30)), 1.6),
    Case("exp", np.exp, ((-87.3, 88.7), (-1, 1)), 1.1),
    Case("exp2", np.exp2, ((-126, 127.99), (-1, 1)), 1.0),
    Case("expm1", np.expm1, ((-20, 88.7), (-1, 1), (-1e-4, 1e-4)), 1.6),
    Case("log", np.log, ((0.4, 2.2), (1e-37, 1e-30), (1, 3e38)), 1.1),
    Case("log1p", np.log1p, ((-0.9999, 3), (-1e-4, 1e-4), (1, 3e38)), 1.6),
    Case("tanh", np.tanh, ((-10, 10), (-1, 1), (-1e-4, 1e-4)), 2.4),
    Case("logistic", _logistic, ((-87, 30), (-3, 3)), 2.6, 4.0),
    Case("sin", np.sin, ((-4, 4), (-100, 100), (-1e30, 1e30)), 0.51),
    Case("cos", np.cos, ((-4, 4), (-100, 100), (-1e30, 1e30)), 0.51),
    Case("erf", _by_element(math.erf), ((-5, 5), (-1, 1), (-1e-4, 1e-4)), 2.0),
    Case("erf_inv", _by_element(_erf_inv), ((-1, 1), (0.99, 1), (-1e-3, 1e-3)), 3.0, 8.0),
    Case("cbrt", np.cbrt, ((-100, 100), (-1e30, 1e30)), 0.51, 4.0),
    Case("tan", np.tan, ((-4, 4), (-100, 100)), 0.51),
    Case("asin", np.arcsin, ((-1, 1),), 1.9),
    Case("acos", np.arccos, ((-1, 1),), 1.4),
    Case("atan", np.arctan, ((-10, 10), (-1e6, 1e6)), 1.6),
    Case("sinh", np.sinh, ((-80, 80), (-1, 1)), 1.7),
    Case("cosh", np.cosh, ((-80, 80), (-1, 1)), 1.5),
    Case("asinh", np.arcsinh, ((-10, 10), (-1e30, 1e30)), 1.8),
    Case("acosh", np.arccosh, ((1, 10), (1, 1e30)), 1.9),
    Case("atanh", np.arctanh, ((-1, 1), (-1e-3, 1e-3)), 2.2),
    Case("erfc", _by_element(math.erfc), ((-5, 9), (-1, 1)), 2.6),
    Case("lgamma", _by_element(_lgamma), ((3, 50), (3, 1e20)), 0.6, 16.0),
    Case("digamma", _by_element(_digamma), ((2, 50), (0.01, 1), (-1e-20, -1e-30)), 0.6, 60.0),
    Case("bessel_i0e", _bessel(0), ((-30, 30), (-1, 1)), 3.1, 16.0),
    Case("bessel_i1e", _bessel(1), ((-30, 30), (0.1, 1)), 2.6, 16.0),
)


def samples(case: Case, dtype: np.dtype, count: int = 4001) -> np.ndarray:
    """Numbers from all intervals of a case."""
    generator = np.random.default_rng(0)
    return np.concatenate([generator.uniform(a, b, count) for a, b in case.intervals]).astype(dtype)
