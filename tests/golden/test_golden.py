"""IR after the last pass, memory plan and source text of a few programs, pinned."""

from __future__ import annotations

import pytest

from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.compiler import emit
from jax_cocktail.device.spec import H200
from jax_cocktail.utask.printer import print_program
from tests.golden.programs import PROGRAMS


def _plan_text(plan):
    slots = sorted({(slot.space, slot.index) for slot in plan.slots.values()})
    text = "".join(f"  {space} {index}\n" for space, index in slots)
    return f"buffers:\n{text}aliases: {list(plan.aliases)}\nworkspace: {plan.workspace_bytes} bytes\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, golden):
    emitted = emit(PROGRAMS[name]())
    golden(f"{name}.txt", f"{print_program(emitted.program)}\n{_plan_text(emitted.plan)}")
    golden(f"{name}.cc", emitted.source)


@pytest.mark.parametrize("name", PROGRAMS)
def test_cuda_text(name, golden):
    golden(f"{name}.cu", emit(PROGRAMS[name](), cuda(128), spec=H200).source)


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_text_every_time(name):
    assert emit(PROGRAMS[name]()).source == emit(PROGRAMS[name]()).source


@pytest.mark.parametrize("name", ["lstm_cell", "skipped_branch", "updated_row"])
def test_carries_move_no_byte(name):
    emitted = emit(PROGRAMS[name]())
    assert "memcpy" not in emitted.source
    assert {slot.space for slot in emitted.plan.slots.values()} <= {"input", "output", "workspace"}


def test_swap_takes_no_temporary():
    assert emit(PROGRAMS["swapped_carries"]()).plan.workspace_bytes == 0
