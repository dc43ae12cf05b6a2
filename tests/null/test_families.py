"""Families of uTasks: the union of the parts is the whole, for every kind and every axis that can be cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.families import num_utasks, schedule_operator
from jax_cocktail.placement.mesh import UnitMesh, set_resource
from jax_cocktail.utask.plan import MemoryPlan
from tests.null.operators import SAMPLES, Sample, sample
from tests.null.programs import arguments
from tests.oracle.families import Family, compute, input_slice, utask_family
from tests.oracle.interpreter.run import run


def numbers_of_parts(operator, tie: Tie) -> list[int]:
    return [n for n in range(2, tie.parts + 1) if num_utasks(operator, tie.outputs, n) == n]


def union(family: Family, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What all uTasks compute, each from its own slices; every element of a result is written once."""
    operator = family.operator
    written = [np.zeros(v.type.shape, np.int64) for v in operator.outputs]
    results: list[np.ndarray | None] = [None] * len(operator.outputs)
    for utask in family.utasks:
        own = [s.of(a) for s, a in zip(input_slice(utask), arrays, strict=True)]
        parts = zip(utask.output_slices, compute(utask, own), strict=True)
        for k, (place, part) in enumerate(parts):
            assert part.shape == place.sizes
            if results[k] is None:
                results[k] = np.empty(operator.outputs[k].type.shape, part.dtype)
            place.of(results[k])[...] = part
            place.of(written[k])[...] += 1
    assert all((w == 1).all() for w in written)
    return results


def same(found, expected) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        if x.dtype.kind in "iub":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_union_of_all_utasks_is_the_operator(case: Sample):
    program = case.program()
    (operator,) = program.entry.body
    given_arrays = arguments(program)
    expected = run(program, given_arrays)
    for tie in rule(operator).ties:
        assert tie.parts in numbers_of_parts(operator, tie)
        for parts in numbers_of_parts(operator, tie):
            family = utask_family(operator, tie.outputs, parts)
            assert len(family.utasks) - parts in (0, 1)
            same(union(family, given_arrays), expected)


@st.composite
def scheduled(draw) -> tuple[Sample, tuple[int, ...], int]:
    """An operator of random extents, the axes of its results, and a number of parts."""
    a, b, c = (draw(st.integers(2, 9)) for _ in range(3))
    choice = draw(st.integers(0, 5))
    if choice == 0:
        axes = {"lhs_batch": (0,), "lhs_contract": (2,), "rhs_batch": (0,), "rhs_contract": (1,)}
        case = sample("dot", f"float32[{a},{b},3] float32[{a},3,{c}]", f"float32[{a},{b},{c}]", **axes)
    elif choice == 1:
        case = sample("reshape", f"float32[{a},{b},{c}]", f"float32[{a * b},{c}]")
    elif choice == 2:
        case = sample("reduce", f"float32[{a},{b},{c}]", f"float32[{a},{c}]", axes=(1,), op="max")
    elif choice == 3:
        case = sample("transpose", f"int32[{a},{b},{c}]", f"int32[{c},{a},{b}]", permutation=(2, 0, 1))
    elif choice == 4:
        case = sample("iota", "", f"uint8[{a},{b},{c}]", dimension=draw(st.integers(0, 2)))
    else:
        case = sample("top_k", f"float32[{a},{b}]", f"float32[{a},2] int32[{a},2]", axis=1, k=2)
    ties = rule(case.operator()).ties
    tie: Tie = draw(st.sampled_from(ties))
    return case, tie.outputs, draw(st.sampled_from(numbers_of_parts(case.operator(), tie)))


@given(scheduled(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_random_extents(choice, seed):
    case, axes, parts = choice
    program = case.program()
    given_arrays = arguments(program, seed)
    family = utask_family(case.operator(), axes, parts)
    same(union(family, given_arrays), run(program, given_arrays))


def test_slices_of_a_matmul():
    """The columns of the matrix are cut, the rows of the other operand are read by all."""
    axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
    operator = sample("dot", "float32[4,3] float32[3,6]", "float32[4,6]", **axes).operator()
    utask = utask_family(operator, (1,), 3).utasks[2]
    left, right = input_slice(utask)
    assert (left.starts, left.sizes) == ((0, 0), (4, 3))
    assert (right.starts, right.sizes) == ((0, 4), (3, 2))
    (result,) = utask.output_slices
    assert (result.starts, result.sizes) == ((0, 4), (4, 2))


def test_number_of_utasks():
    add = sample("add", "float32[4,6] float32[4,6]", "float32[4,6]").operator()
    assert [num_utasks(add, (1,), n) for n in (1, 2, 4, 6, 12)] == [1, 2, 4, 6, 6]
    flat = sample("reshape", "float32[4,6]", "float32[24]").operator()
    assert [num_utasks(flat, (0,), n) for n in (1, 2, 3, 4, 24)] == [1, 2, 1, 4, 4]
    sort = sample("reverse", "float32[4,6]", "float32[4,6]", dimensions=(1,)).operator()
    assert num_utasks(sort, (1,), 6) == 1
    assert num_utasks(sort, (None,), 6) == 1


def test_what_is_not_independent_is_refused():
    operator = sample("reverse", "float32[4,6]", "float32[4,6]", dimensions=(1,)).operator()
    with pytest.raises(VerificationError, match="reverse cannot be cut along"):
        schedule_operator(operator, (1,), 2)
    with pytest.raises(VerificationError, match="into 5 parts"):
        schedule_operator(operator, (0,), 5)


def test_what_equal_parts_leave_over():
    operator = sample("exp", "float32[4,7]", "float32[4,7]").operator()
    family = utask_family(operator, (1,), 3)
    slices = [utask.output_slices[0] for utask in family.utasks]
    assert [(s.starts[1], s.sizes[1]) for s in slices] == [(0, 2), (2, 2), (4, 2), (6, 1)]
    assert [utask.is_rest for utask in family.utasks] == [False, False, False, True]


def test_attributes_that_hold_sizes():
    spec = (0, 2, 1)
    sizes = {"batch_group_count": 1, "lhs_dilation": (1,), "rhs_dilation": (1,), "window_strides": (1,)}
    specs = {"lhs_spec": spec, "out_spec": spec, "rhs_spec": (2, 1, 0), "padding": ((1, 1),)}
    operator = sample(
        "conv", "float32[4,5,8] float32[3,2,12]", "float32[4,5,12]", feature_group_count=4, **sizes, **specs
    ).operator()
    by_batch, by_group = utask_family(operator, (0,), 4), utask_family(operator, (2,), 2)
    assert dict(by_batch.attributes())["feature_group_count"] == 4
    assert dict(by_group.attributes())["feature_group_count"] == 2


def test_resource():
    plan = MemoryPlan({}, {}, (), 0, most_units=6)
    assert set_resource(plan, 4) == UnitMesh(4)
    assert set_resource(plan, 64) == UnitMesh(6)
    assert set_resource(MemoryPlan({}, {}, (), 0), 64) == UnitMesh(1)
