"""The softmax beside its logarithm: which programs compute its exponentials once."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.stitch.share_exponentials import share_exponentials
from jax_cocktail.utask.ir import operators_in
from tests.null.programs import arguments, build, counted, elementwise
from tests.oracle.interpreter.run import run

SQUARE = "float32[6,6]"  # so that a wrong axis would fit, too


def per_row(b, x, op, axes=(1,)):
    kept = tuple(n for d, n in enumerate(x.type.shape) if d not in axes)
    return b.emit("reduce", (x,), x.type.dtype, kept, axes=axes, op=op)


def spread(b, row, shape=(6, 6), dimensions=(0,)):
    return b.broadcast(row, shape, dimensions)


def softmax(b, x, guarded=True, axes=(1,)):
    """Of each row, and its logarithm, as jax.nn writes it."""
    shape, kept = x.type.shape, tuple(d for d in range(x.type.rank) if d not in axes)
    largest = per_row(b, x, "max", axes)
    if guarded:
        least = b.full(-np.inf, x.type.dtype, largest.type.shape)
        largest = elementwise(b, "max", least, largest)
    a = elementwise(b, "sub", x, spread(b, largest, shape, kept))
    total = per_row(b, elementwise(b, "exp", a), "sum", axes)
    unit = tuple(1 if d in axes else n for d, n in enumerate(shape))
    logarithm = elementwise(b, "log", spread(b, total, unit, kept))
    logs = elementwise(b, "sub", a, spread(b, logarithm, shape, range(len(shape))))
    return elementwise(b, "exp", logs), logs


def shared(program):
    """The program after the pass, whose results are those of the original."""
    after = share_exponentials(program)
    verify(after)
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    return after


def kinds(program):
    return [operator.kind for operator in operators_in(program.entry)]


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_quotient_replaces_the_second_exponential(dtype, guarded):
    program = build([f"{dtype}[6,5]"], lambda b, x: softmax(b, x, guarded))
    after = kinds(shared(program))
    assert (after.count("exp"), after.count("div")) == (1, 1)
    assert "log" in after, "the other result needs it"
    alone = build([f"{dtype}[6,5]"], lambda b, x: softmax(b, x, guarded)[:1])
    assert "log" not in kinds(shared(alone))


def test_rows_of_several_axes_and_of_all():
    for axes in ((1, 2), (0, 1, 2)):
        after = kinds(shared(build(["float32[4,3,5]"], lambda b, x, axes=axes: softmax(b, x, axes=axes))))
        assert (after.count("exp"), after.count("div")) == (1, 1)


def test_inside_a_loop():
    def body(b, x):
        return counted(b, 3, (x,), lambda _, y: softmax(b, y)[:1])

    assert kinds(shared(build([SQUARE], body))).count("exp") == 1


def unrelated(b, x, y):
    """The logarithm of the sum of another array."""
    a, c = (elementwise(b, "sub", z, spread(b, per_row(b, z, "max"))) for z in (x, y))
    total = per_row(b, elementwise(b, "exp", c), "sum")
    return (elementwise(b, "exp", elementwise(b, "sub", a, spread(b, elementwise(b, "log", total)))),)


def plain(b, x, _):
    """Without the maximum, an exponential may overflow where the difference is small."""
    total = per_row(b, elementwise(b, "exp", x), "sum")
    return (elementwise(b, "exp", elementwise(b, "sub", x, spread(b, elementwise(b, "log", total)))),)


def by_others(b, x, y):
    """The maximum is that of another array."""
    a = elementwise(b, "sub", x, spread(b, per_row(b, y, "max")))
    total = per_row(b, elementwise(b, "exp", a), "sum")
    return (elementwise(b, "exp", elementwise(b, "sub", a, spread(b, elementwise(b, "log", total)))),)


def by_least(b, x, _):
    """The smallest element is subtracted."""
    a = elementwise(b, "sub", x, spread(b, per_row(b, x, "min")))
    total = per_row(b, elementwise(b, "exp", a), "sum")
    return (elementwise(b, "exp", elementwise(b, "sub", a, spread(b, elementwise(b, "log", total)))),)


def turned(b, x, _):
    """Element [i, j] gets the logarithm of row j."""
    a = elementwise(b, "sub", x, spread(b, per_row(b, x, "max")))
    total = per_row(b, elementwise(b, "exp", a), "sum")
    other = spread(b, elementwise(b, "log", total), dimensions=(1,))
    return (elementwise(b, "exp", elementwise(b, "sub", a, other)),)


def columns(b, x, _):
    """A core would keep parts of many rows."""
    return softmax(b, x, axes=(0,))


@pytest.mark.parametrize("body", [unrelated, plain, by_others, by_least, turned, columns])
def test_other_programs_stay(body):
    program = build([SQUARE] * 2, body)
    assert share_exponentials(program) is program


@pytest.mark.parametrize("type_", ["float16[6,5]", "float32[2,100000]"])
def test_short_types_and_long_rows_stay(type_):
    program = build([type_], softmax)
    assert share_exponentials(program) is program
