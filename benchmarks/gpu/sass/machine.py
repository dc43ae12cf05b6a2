"""What the emulated machine takes for what: latencies in cycles, prices of crossings in seconds.

Sources of the values here, for H100: the vendor's figures and public microbenchmarks, but for the far load,
which was fitted: with 400 cycles all kernels of the record come out best (an idle second-level cache answers
after 290). A record on a card replaces those that it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

LAUNCH = "empty launch between events"  # of the record: what the host adds to a kernel's time


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """One multiprocessor, and how it meets others. Cycles, unless said otherwise.

    Attributes:
      arch: "sm_90".
      hertz: cycles a second.
      schedulers: warps are divided among them; each issues one instruction a cycle.
      far_load: a load that the first-level cache misses, beyond the way there.
      far_copy: a `cp.async`, likewise.
      near_load: a load that it hits.
      shared_load: a load from shared memory; shared_wide: what one of 16 bytes a lane takes more.
      remote_load: what a generic load from shared memory takes more.
      matrix_load: `ldmatrix`; shuffle: a `shfl`, a vote.
      special: a reciprocal or exponential; conversion: between integers and floats.
      wide_float: an operation in float64.
      matrix: a tensor-core product of 16x8x8 TF32; matrix_step: until its scheduler takes the next one.
      special_register: to read a thread's index; constant: an indexed constant.
      to_uniform: a register to the uniform registers.
      block_barrier: after the last warp arrives.
      taken_branch, call: beyond the next instruction's issue; calls and returns alike.
      membar: `fence` for all units; atomic: until its result is there.
      operands: until a load's or store's operand registers are free again.
      barrier, cluster_barrier, exchange, flag: seconds of a crossing between units.
    """

    arch: str
    hertz: float = 1.98e9
    schedulers: int = 4
    far_load: float = 400
    far_copy: float = 450
    near_load: float = 34
    shared_load: float = 23
    shared_wide: float = 6
    remote_load: float = 12
    matrix_load: float = 26
    shuffle: float = 23
    special: float = 20
    conversion: float = 14
    wide_float: float = 16
    matrix: float = 33
    matrix_step: float = 8
    special_register: float = 20
    constant: float = 30
    to_uniform: float = 12
    block_barrier: float = 22
    taken_branch: float = 10
    call: float = 12
    membar: float = 0
    atomic: float = 0
    operands: float = 8
    barrier: float = 1e-6
    cluster_barrier: float = 6.5e-7
    exchange: float = 1e-6
    flag: float = 6.8e-7

    def price(self, kind: str) -> float:
        """Seconds of a crossing."""
        return {"barrier": self.barrier, "cluster_barrier": self.cluster_barrier, "exchange": self.exchange}[
            kind
        ]

    def told(self) -> str:
        """The values that matter most."""
        return (
            f"{self.hertz / 1e9:.2f} GHz, a load from afar {self.far_load:.0f} cycles, "
            f"a block barrier {self.block_barrier:.0f}, "
            f"a barrier of all {1e6 * self.barrier:.2f} us, an exchange {1e6 * self.exchange:.2f} us"
        )


# What a record may hold. Probes measure chains: field -> name of the figure, how often the latency is in it,
# and clocks of what else is. Loads are left out: alone on the card they are faster than beside 131 other
# blocks.
PROBES = {
    "shuffle": ("shuffle", 1, 0),
    "shared_load": ("shared load of 4 bytes", 1, 4),
    "block_barrier": ("block barrier, 256 threads", 1, 9),
    "call": ("call and return", 2, 26),
    "matrix_step": ("matrix products of one warp", 1, 0),
}
_CROSSINGS = {
    "barrier": "barrier, {units} blocks",
    "cluster_barrier": "cluster barrier of 16, 16 blocks",
    "exchange": "tagged exchange of 1024 words, {units} blocks",
    "flag": "hop, flag",
}


def machine_for(arch: str, record: Mapping[str, Any]) -> Multiprocessor:
    """The machine of an architecture, with the figures of a record if that is of such a card."""
    card = record["measure"]["card"]
    if card["spec"]["arch"] != arch:
        return Multiprocessor(arch)
    found: dict[str, Any] = {}
    for field, (name, times, beside) in PROBES.items():
        clocks = card["figures"].get(name, {}).get("clocks")
        if clocks is not None:
            found[field] = (float(clocks) - beside) / times
    for field, name in _CROSSINGS.items():
        seconds = card["figures"].get(name.format(units=card["spec"]["units"]), {}).get("seconds")
        if seconds is not None:
            found[field] = float(seconds)
    clock = record["versions"]["all"]["card"]["attributes"]["clock_khz"]
    return replace(Multiprocessor(arch), hertz=1e3 * clock, **found)
