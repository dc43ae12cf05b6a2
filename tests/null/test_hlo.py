"""What XLA's optimised modules run, read from their text."""

from __future__ import annotations

import pytest

from jax_cocktail.cost.hlo import Module

LOOP = """HloModule jit_f

%add (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} add(%a, %a)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %fused = f32[8]{0} fusion(%x), kind=kLoop, calls=%add
  ROOT %next = (s32[], f32[8]{0}) tuple(%n, %fused)
}

%condition (state.1: (s32[], f32[8])) -> pred[] {
  %state.1 = (s32[], f32[8]{0}) parameter(0)
  %n.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%n.1, %n.1), direction=LT
}

%loop (state.2: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state.2 = (s32[], f32[8]{0}) parameter(0)
  ROOT %while = (s32[], f32[8]{0}) while(%state.2), condition=%condition, body=%body, TRIPS
}

%nothing (state.3: (s32[], f32[8])) -> (s32[], f32[8]) {
  ROOT %state.3 = (s32[], f32[8]{0}) parameter(0)
}

ENTRY %main (p: (s32[], f32[8]), c: pred[]) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %c = pred[] parameter(1)
  ROOT %result = (s32[], f32[8]{0}) INSTRUCTION
}
"""
LOOP = LOOP.replace("TRIPS", 'backend_config={"known_trip_count":{"n":"10"}}')
CALL = "call(%p), to_apply=%loop"


@pytest.mark.parametrize(
    "instruction, steps, kernels",
    [
        ("while(%p), condition=%condition, body=%body", True, 32),
        (CALL, True, 20),
        (f'{CALL}, frontend_attributes={{xla_cpu_small_call="true"}}', False, 1),
        ("conditional(%c, %p, %p), true_computation=%loop, false_computation=%nothing", True, 20),
        ("conditional(%c, %p, %p), branch_computations={%nothing, %nothing}", False, 0),
        ("tuple(%c, %p)", False, 0),
    ],
)
def test_loops_that_the_runtime_steps_through(instruction, steps, kernels):
    module = Module(LOOP.replace("INSTRUCTION", instruction), unknown_trips=16)
    assert (module.steps, module.cost.kernels) == (steps, kernels)


def test_bytes_of_operands_and_results():
    cost = Module(LOOP.replace("INSTRUCTION", CALL)).cost
    assert cost.bytes == 10 * (2 * 8 * 4 + (1 + 4 + 4)) and cost.decisions == 10 and not cost.unknown


@pytest.mark.parametrize(
    "instruction, nodes",
    [
        (CALL, 20),
        ("while(%p), condition=%condition, body=%body", 0),  # nobody knows how often: it stays a loop
        ('while(%p), condition=%condition, body=%loop, backend_config={"known_trip_count":{"n":"3"}}', 63),
        ("while(%p), condition=%condition, body=%loop", 21),  # and one in it that is known
        ("conditional(%c, %p, %p), branch_computations={%loop, %loop}", 40),
        ("conditional(%c, %p, %p), branch_computations={%nothing, %loop}", 20),
    ],
)
def test_nodes_of_graphs_with_unrolled_loops(instruction, nodes):
    text = LOOP if "%loop" in instruction else LOOP.replace("known_trip_count", "nothing")
    assert Module(text.replace("INSTRUCTION", instruction)).unrolled_nodes == nodes


def test_what_is_begun_and_ended_is_one_kernel():
    text = LOOP.replace("%fused = f32[8]{0} fusion(%x)", "%begun = ((f32[8]{0}), f32[8]{0}) fusion-start(%x)")
    text = text.replace("  ROOT %next", "  %fused = f32[8]{0} fusion-done(%begun)\n  ROOT %next")
    module = Module(text.replace("INSTRUCTION", CALL))
    assert "fusion-done" in text and module.cost.kernels == module.unrolled_nodes == 20


def test_what_cannot_be_read_is_stepped_through():
    assert Module("None").steps and not Module("None").unrolled_nodes
