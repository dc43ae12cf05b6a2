"""Calls of small programs, as the tests of the GPU's handler make them."""

from __future__ import annotations

import dataclasses

import numpy as np

from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.fake_gpu.driver import EXECUTE, INITIALIZE, Call, Handlers, Xla, compiled

PLAN = LaunchPlan(
    header_bytes=256,
    most_units=132,
    threads=256,
    resident_shared_bytes=100_000,
    portable_shared_bytes=4096,
    workspace_bytes=1024,
    cooperative=True,
)
ALONE = dataclasses.replace(PLAN, header_bytes=0, most_units=1, workspace_bytes=0, cooperative=False)
BINARY = b"FAKE arch=90 parameters=40"  # an operand, two results, workspace, error word

# Doubles its operand; the workspace behind the header must be as it was, the header zero.
KERNELS = """
#include <stdint.h>
#define KERNEL(NAME)                                                                            \\
  extern "C" __attribute__((visibility("default"))) void NAME(void* const* p, unsigned grid,    \\
                                                              unsigned threads, unsigned) {     \\
    auto* workspace = (unsigned char*)p[2];                                                     \\
    for (int i = 0; i < 256; ++i) {                                                             \\
      if (workspace[i] != 0) return;                                                            \\
    }                                                                                           \\
    if (workspace[256] != 7) return;                                                            \\
    workspace[0] = 1;                                                                           \\
    auto x = *(const float*)p[0];                                                               \\
    *(float*)p[1] = 2 * x;                                                                      \\
    auto* word = (uint32_t*)p[3];                                                               \\
    if (word && x < 0) *word = x < -1 ? 0x80050003u : 5;                                        \\
  }
KERNEL(ck_resident)
KERNEL(ck_portable)
"""


class Doubling:
    """A call of KERNELS, with its memory."""

    def __init__(self, plan: LaunchPlan = PLAN, sync: int = 0) -> None:
        self.x, self.y = np.zeros(1, np.float32), np.zeros(1, np.float32)
        self.workspace = np.full(plan.workspace_bytes, 7, np.uint8)
        results = [self.y.ctypes.data, self.workspace.ctypes.data]
        self.call = Call(compiled(KERNELS).read_bytes(), plan, [self.x.ctypes.data], results, sync=sync)


_blocks: list[np.ndarray] = []


def memory(count: int) -> list[int]:
    """Addresses of that many blocks of 1 KB, which are never freed."""
    _blocks.append(np.zeros(1024 * count, np.uint8))
    return [_blocks[-1].ctypes.data + 1024 * k for k in range(count)]


def run(handlers: Handlers, xla: Xla, call: Call, graph: bool = True) -> tuple[int, str] | None:
    """What XLA does at an execution."""
    problem = call.invoke(handlers.initialize, xla, INITIALIZE)
    return problem or call.invoke(handlers.execute if graph else handlers.execute_nograph, xla, EXECUTE)


def refused(handlers: Handlers, xla: Xla, call: Call, graph: bool = True) -> tuple[int, str]:
    """The error of an execution."""
    problem = run(handlers, xla, call, graph)
    assert problem is not None, "the call went through"
    return problem


def simple(binary: bytes = BINARY, plan: LaunchPlan = PLAN, results: int = 3) -> Call:
    """A call of a program that does nothing, with an operand, two results and the workspace."""
    addresses = memory(1 + results)
    return Call(binary, plan, addresses[:1], addresses[1:])
