"""Programs written by hand, and how they are launched: what no compiled program does."""

from __future__ import annotations

import numpy as np

from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.emulation.text import program

ALONE = LaunchPlan(
    header_bytes=256,
    most_units=1,
    threads=64,
    resident_shared_bytes=1024 + 256 + 512,
    portable_shared_bytes=1024,
    workspace_bytes=256 + 1024 + 256,
    cooperative=False,
    can_fail=True,
)
# Doubles its operand; negative numbers are a failure.
FAILING = program(
    """
  f32 x = ((const f32*)operands[0])[0];
  if (ck_lane() == 0) {
    ((f32*)results[0])[0] = 2 * x;
    if (x < 0) ck_fail(unit, 5);
  }
""",
    most_units=1,
)
ONE = np.zeros(1, np.float32)


def number(x: float) -> list[np.ndarray]:
    return [np.array([x], np.float32)]


# Unit 1 never arrives; the limit ends what would be a hang.
HANGING = program(
    """
  if (unit->index == 0) {
    ck_arrive(unit);
    ck_wait(unit);
  }
""",
    most_units=2,
    CK_SPIN_LIMIT=20000,
)
TOGETHER = LaunchPlan(
    header_bytes=256,
    most_units=2,
    threads=64,
    resident_shared_bytes=1024 + 256 + 512,
    portable_shared_bytes=1024,
    workspace_bytes=256 + 1024 + 2 * 256,
    cooperative=True,
    can_fail=True,
)
