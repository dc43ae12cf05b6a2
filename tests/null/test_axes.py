"""Axis rules: which axes are tied and which are consumed, for every operator kind."""

from __future__ import annotations

import pytest

from jax_cocktail.analysis.axes import RULES, consumed, made_whole, rule
from jax_cocktail.utask.operators import KINDS
from tests.null.operators import SAMPLES, Sample, sample

NO_RULE = {"arrive", "exchange", "fail", "block_barrier", "units", "wait"}


def ties(operator) -> dict[tuple[int, ...], tuple[tuple[int | None, ...], int]]:
    return {tie.outputs: (tie.inputs, tie.parts) for tie in rule(operator).ties}


def _of(kind: str, position: int = 0):
    return [s for s in SAMPLES if s.kind == kind][position].operator()


def test_every_kind_has_a_rule_and_a_sample():
    assert set(RULES) | NO_RULE == set(KINDS)
    assert {s.kind for s in SAMPLES} | NO_RULE == set(KINDS)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_ties_fit_the_types(case: Sample):
    operator = case.operator()
    for tie in rule(operator).ties:
        assert tie.parts > 1
        for value, axis in zip(operator.outputs, tie.outputs, strict=True):
            assert value.type.shape[axis] % tie.parts == 0
        for value, axis in zip(operator.inputs, tie.inputs, strict=True):
            assert axis is None or value.type.shape[axis] % tie.parts == 0


def test_no_rule_consumes_every_axis(monkeypatch):
    monkeypatch.delitem(RULES, "exp")
    assert consumed(_of("exp")) == ((0, 0), (0, 1))
    assert made_whole(_of("exp")) == ((0, 0), (0, 1))


def test_elementwise_ties_all():
    assert ties(_of("add")) == {(0,): ((0, 0), 4), (1,): ((1, 1), 6)}
    assert consumed(_of("add")) == ()


@pytest.mark.parametrize(
    ("source", "target", "tied", "eaten"),
    [
        ("4,6", "24", {(0,): ((0,), 4)}, ((0, 1),)),
        ("24", "4,6", {(0,): ((0,), 4)}, ()),
        ("2,6,4", "6,2,4", {(0,): ((0,), 2), (2,): ((2,), 4)}, ((0, 1),)),
        ("6,4", "4,6", {(0,): ((0,), 2)}, ((0, 1),)),
        ("3,4", "4,3", {}, ((0, 0), (0, 1))),
        ("4,1,6", "1,4,6", {(1,): ((0,), 4), (2,): ((2,), 6)}, ()),
    ],
)
def test_reshape_ties_major_factors(source, target, tied, eaten):
    operator = sample("reshape", f"float32[{source}]", f"float32[{target}]").operator()
    assert ties(operator) == tied
    assert consumed(operator) == eaten


def test_broadcast():
    operator = _of("broadcast")
    assert ties(operator) == {(0,): ((None,), 2), (1,): ((0,), 4), (2,): ((None,), 6)}


def test_partial_slices_consume():
    assert ties(_of("slice")) == {(0,): ((0,), 4)}
    assert consumed(_of("slice")) == ((0, 1),)
    assert made_whole(_of("slice")) == ((0, 1),)
    assert ties(_of("dynamic_slice")) == {(0,): ((0, None, None), 4)}
    assert ties(_of("dynamic_update_slice")) == {(0,): ((0, 0, None, None), 4)}
    assert consumed(_of("dynamic_update_slice")) == ((0, 1), (1, 1))


def test_worked_on_axes_are_consumed():
    for kind, axis in (("reverse", 1), ("sort", 1), ("top_k", 1), ("cumulative", 0), ("concatenate", 1)):
        operator = _of(kind)
        count = len(operator.inputs)
        assert consumed(operator) == tuple((k, axis) for k in range(count)), kind
        assert list(ties(operator)) == [(1 - axis,) * len(operator.outputs)], kind
    assert consumed(_of("reduce")) == ((0, 1),)
    assert consumed(_of("arg_reduce")) == ((0, 1),)


def test_dot_ties_batch_and_free_axes():
    operator = _of("dot", 2)
    assert ties(operator) == {(0,): ((1, 2), 2), (1,): ((0, None), 4), (2,): ((None, 1), 6)}
    assert consumed(operator) == ((0, 2), (1, 0))


def test_conv():
    batch_and_features = {(0,): ((0, None), 4), (2,): ((None, 2), 6)}
    assert ties(_of("conv")) == batch_and_features
    assert consumed(_of("conv")) == ((0, 1), (0, 2), (1, 0), (1, 1))
    assert ties(_of("conv", 1)) == {(0,): ((0, None), 4), (2,): ((2, 2), 4)}  # feature groups
    assert ties(_of("conv", 2)) == {}  # batch groups
    assert ties(_of("conv", 3)) == {(0,): ((0, None), 4), (1,): ((None, 0), 6)}


def test_gather_follows_indices_and_whole_windows():
    assert ties(_of("gather")) == {(0,): ((None, 0), 6), (1,): ((1, None), 4)}
    assert consumed(_of("gather")) == ((0, 0),)
    assert ties(_of("gather", 3)) == {(0,): ((None, 0), 6)}  # part of the rows
    assert ties(_of("gather", 5)) == {(0,): ((None, 0), 2), (1,): ((0, 1), 6), (2,): ((2, None), 4)}


def test_scatter_keeps_batching_dimensions_and_whole_windows():
    assert ties(_of("scatter")) == {(1,): ((1, None, 1), 4)}
    assert consumed(_of("scatter")) == ((0, 0), (1, 0), (2, 0))
    assert ties(_of("scatter", 3)) == {}
    assert ties(_of("scatter", 4)) == {(0,): ((0, 1, 1), 6), (2,): ((2, None, 2), 4)}


def test_windows_consume():
    assert ties(_of("reduce_window")) == {(0,): ((0,), 4)}
    assert consumed(_of("reduce_window")) == ((0, 1), (0, 2))
    assert ties(_of("select_and_scatter_add")) == {(0,): ((0, 0), 4), (2,): ((2, 2), 6)}


def test_empty_arrays_have_no_ties():
    assert rule(sample("exp", "float32[0,4]", "float32[0,4]").operator()).ties == ()
