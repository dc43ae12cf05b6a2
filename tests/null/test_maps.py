"""Index maps against the interpreter: elements taken by the map are those of the result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from jax_cocktail.utask.maps import axis_groups, positions
from jax_cocktail.utask.operators import MAPPED, STATIC_VIEWS
from jax_cocktail.utask.sizes import Parameter, Size, deciding
from tests.null.operators import SAMPLES, Sample, sample
from tests.oracle.interpreter.run import EVALUATE


def typed(shape) -> str:
    return f"float32[{','.join(map(str, shape))}]"


def random_samples(count: int) -> Iterator[Sample]:
    """Operators on arrays of up to four axes, some of them with one element or none."""
    random = np.random.default_rng(0)
    for _ in range(count):
        shape = tuple(int(n) for n in random.choice([0, 1, 2, 3, 5], random.integers(0, 4)))
        order = tuple(int(d) for d in random.permutation(len(shape)))
        yield sample("transpose", typed(shape), typed(shape[d] for d in order), permutation=order)
        yield sample("reverse", typed(shape), typed(shape), dimensions=order[: len(order) // 2])
        steps = tuple(int(n) for n in random.integers(1, 3, len(shape)))
        starts = tuple(int(random.integers(0, max(n, 1))) for n in shape)
        sizes = [-(-(n - at) // step) for n, at, step in zip(shape, starts, steps, strict=True)]
        yield sample("slice", typed(shape), typed(sizes), starts=starts, strides=steps)
        wide = [int(n) for n in random.integers(1, 4, len(shape) + 1)]
        kept = tuple(int(d) for d in random.permutation(len(wide))[: len(shape)])
        for d, axis in enumerate(kept):
            wide[axis] = shape[d] if shape[d] != 1 else wide[axis]
        yield sample("broadcast", typed(shape), typed(wide), dimensions=kept)


@pytest.mark.parametrize("kind", sorted(MAPPED))
def test_elements_taken_by_the_map_are_those_of_the_result(kind):
    found = [s.operator() for s in (*SAMPLES, *random_samples(60)) if s.kind == kind]
    assert len(found) > 50
    for operator in found:
        x = np.arange(operator.inputs[0].type.size, dtype=np.float32).reshape(operator.inputs[0].type.shape)
        at = np.indices(operator.output.type.shape)
        places = positions(operator)
        taken = x[tuple(p.start + p.step * at[p.axis] if p.axis is not None else 0 for p in places)]
        result = EVALUATE[kind](operator, [x])
        np.testing.assert_array_equal(np.broadcast_to(taken, result.shape), result, str(operator))


def test_reshapes_alone_have_no_map():
    """Their axes are merged and split; other views are static and have one."""
    assert MAPPED | {"reshape"} == STATIC_VIEWS


def test_each_program_notes_how_a_reshape_compares_its_sizes():
    size = Size((((Parameter(1031, least=33),), 1),))
    shapes = (size, 8), (size * 8,)
    axis_groups((1031, 8), (8248,))
    for _ in range(2):
        with deciding() as found:
            assert axis_groups(*shapes) == (((0, 1), (0,)),)
        assert found
    with pytest.raises(ValueError, match="other numbers of elements"):
        axis_groups((1031 * 1031,), (size, 50))
