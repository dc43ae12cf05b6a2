"""Element functions on an emulated block against float64: division there errs by up to 2 ulp."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.arrays import SPECIAL, same, ulps
from tests.cpu.cuda_text import program
from tests.cpu.emulation import emulator
from tests.cpu.functions import CASES, Case, samples

# The allowed error where a function divides: that of the host, and that of the quotient.
WITH_QUOTIENT = {"tanh": 2.4, "logistic": 4.1, "atan": 2.2, "asinh": 1.9, "atanh": 3.9, "bessel_i1e": 2.9}
LOOP = """for (i32 i = ck_lane(); i < {size}; i += CK_THREADS) {{
  ((f32*)results[{place}])[i] = {function}({arguments});
}}
"""


def _call(function: str, *operands: np.ndarray) -> np.ndarray:
    """The function of every element, f32."""
    result = np.zeros_like(operands[0])
    arguments = ", ".join(f"((const f32*)operands[{n}])[i]" for n in range(len(operands)))
    body = LOOP.format(size=result.size, place=0, function=function, arguments=arguments)
    text = program(body, operands=len(operands), headers=("cocktail_math.h",))
    emulator.build(text).launch(operands, [result], units=1)
    return result


def _any(count: int = 20000) -> np.ndarray:
    """Floats of every size, denormals, infinities and NaN among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, count, dtype=np.uint32)
    return np.concatenate([bits.view(np.float32), np.array(SPECIAL, np.float32)])


@pytest.fixture(scope="module")
def results() -> dict[str, np.ndarray]:
    """Every function of one argument at its samples; one program computes all."""
    given = [samples(case, np.dtype(np.float32)) for case in CASES]
    loops = [
        LOOP.format(
            size=x.size, place=n, function=f"ck_{case.name}", arguments=f"((const f32*)operands[{n}])[i]"
        )
        for n, (case, x) in enumerate(zip(CASES, given, strict=True))
    ]
    text = program("".join(loops), operands=len(CASES), results=len(CASES), headers=("cocktail_math.h",))
    found = [np.zeros_like(x) for x in given]
    emulator.build(text).launch(given, found, units=1)
    return {case.name: result for case, result in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accuracy(results: dict[str, np.ndarray], case: Case) -> None:
    x = samples(case, np.dtype(np.float32)).astype(np.float64)
    assert ulps(results[case.name], case.reference(x)) <= WITH_QUOTIENT.get(case.name, case.ulp)


@pytest.mark.parametrize("name", ["tanh", "logistic", "sinh", "cosh", "asinh", "atan", "cbrt", "erfc"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_size_of_an_argument(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    x = _any()
    found, expected = _call(f"ck_{name}", x), case.reference(x.astype(np.float64)).astype(np.float32)
    tiny = np.abs(expected) < np.finfo(np.float32).tiny  # where exp(-x) overflows, here and on the host
    matching = same(found, expected, 5e-7) | (tiny & (np.abs(found - expected) < 1.2e-38))
    assert matching.all(), list(zip(x[~matching], found[~matching], expected[~matching], strict=True))
    zero = np.array([0.0, -0.0, 1e-45, -1e-40], np.float32)
    if name == "tanh":
        assert _call("ck_tanh", zero).tobytes() == zero.tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quotients_are_within_two_ulp_and_no_better() -> None:
    a, b = _any(), np.roll(_any(), 1)
    values = np.array(SPECIAL, np.float32)
    a, b = (np.concatenate([x, y.ravel()]) for x, y in zip((a, b), np.meshgrid(values, values), strict=True))
    found, exact = _call("ck_div", a, b), a.astype(np.float64) / b.astype(np.float64)
    rounded = exact.astype(np.float32)
    special = (rounded == 0) | ~np.isfinite(rounded)
    assert same(found[special], rounded[special], 0).all()
    assert 1 < ulps(found[~special], exact[~special]) <= 2  # the emulation is as bad as a card may be
