"""GPUs as the planner sees them: levels, their sizes, and the costs of using and crossing them. Pure data.

Sizes come from the driver's properties of the named card. Rates and times are one of
  [D] the vendor's data sheet, at the highest clock;
  [M] measured by others, in public microbenchmarks of the card or of the nearest one;
  [E] estimated from the two, until somebody measures that card.
A machine's own measurements replace them: see `device.store`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from jax_cocktail.device.block import Block

BLOCKS_TOGETHER = 16  # [E] of one warp each, on a multiprocessor at least: they hide each other's latency
PORTABLE_CLUSTER = 8  # the largest cluster for which every card with clusters has room [D]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU.

    Attributes:
      name: the name that the driver reports.
      platform: "cuda" or "rocm".
      arch: the compiler's name for the architecture ("sm_90", "gfx942").
      units: multiprocessors (SMs, CUs). The planner runs one block on each.
      dies: parts of the device with a second-level cache each, between which barriers are dearer.
      warp: threads that run in step: 32, or 64 on most AMD cards.
      cell_columns: columns of the sums of one matrix instruction; their rows are 16.
      sector: bytes of memory that come together.
      threads_per_block, threads_per_unit, blocks_per_unit: the largest numbers allowed.
      registers: 32-bit registers of one multiprocessor.
      thread_registers: the most registers that one thread can have.
      operand_registers: those of them that every instruction can name.
      register_step, warp_step: registers of a thread are allocated in steps of so many, to so many warps at
        a time.
      shared_bytes: the most shared memory that one block can ask for.
      shared_per_unit: shared memory of a multiprocessor, bytes.
      shared_step: the shared memory of a block is a multiple of so many bytes.
      reserved_shared_bytes: bytes that the system takes of every resident block; 0 if it takes none.
      l2_bytes, memory_bytes: second-level cache and memory of the device, bytes.
      launch_seconds: from the start of one kernel to that of the next, back to back in a graph.
      barrier_seconds: one barrier of all `units` blocks.
      hop_seconds: from one block's release to another's acquire.
      cluster_units: the most blocks of one cluster; 1 where there are no clusters.
      cluster_barrier_seconds: one barrier of the blocks of a cluster, after which they also see each
        other's writes to global memory.
      cluster_hop_seconds: from a block's store to another's shared memory until that block has read it.
      shared_rate, l2_rate, memory_rate: bytes a second, all units together.
      flops: float32 flops per second, without tensor cores; a multiply-add counts two.
      tensor_flops: float32 operands rounded to TF32 (dense); half_flops: bfloat16 and float16 (dense).
      clock_rate: clocks of a multiprocessor per second.
      matrix_float32: what matrix instructions make of float32 factors: "rounded" (to 10 bits of mantissa),
        "exact", or "none" if there are no such instructions.
      far_clocks: from a load of what is in the second-level cache, under load, until its first use.
      meet_clocks: a barrier of the threads of one block.
    """

    name: str
    platform: str
    arch: str
    units: int
    warp: int
    threads_per_block: int
    threads_per_unit: int
    blocks_per_unit: int
    registers: int
    shared_bytes: int
    shared_per_unit: int
    l2_bytes: int
    memory_bytes: int
    launch_seconds: float
    barrier_seconds: float
    hop_seconds: float
    cluster_units: int
    cluster_barrier_seconds: float
    cluster_hop_seconds: float
    shared_rate: float
    l2_rate: float
    memory_rate: float
    flops: float
    tensor_flops: float
    half_flops: float
    cell_columns: int = 8
    sector: int = 32
    thread_registers: int = 255
    operand_registers: int = 255
    register_step: int = 8
    warp_step: int = 4
    shared_step: int = 128
    reserved_shared_bytes: int = 1024
    dies: int = 1
    matrix_float32: str = "rounded"
    clock_rate: float = 1.98e9  # [D] H100 and H200
    far_clocks: float = 400.0  # [E] H100: 290 without load [M]
    meet_clocks: float = 30.0  # [M] H100: 29, 256 threads

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_nothing = field.name == "reserved_shared_bytes" and value == 0
            if isinstance(value, int | float) and not (value > 0 or may_be_nothing):
                raise ValueError(f"{field.name} of the device {self.name!r} is positive, not {value}")

    def in_cluster(self) -> DeviceSpec:
        """The device as the blocks of one cluster see it."""
        barrier, hop = self.cluster_barrier_seconds, self.cluster_hop_seconds
        return replace(self, barrier_seconds=barrier, hop_seconds=hop)

    def check_block(self, threads: int) -> None:
        """Raises ValueError unless a block can have so many threads."""
        warp, most = self.warp, self.threads_per_block
        if threads % warp or not warp <= threads <= most:
            raise ValueError(f"a block has {warp}, {2 * warp} ... {most} threads, not {threads}")

    def block(self, threads: int) -> Block:
        """A block of so many threads. Its registers are those that every instruction can name."""
        registers = min(self.most_registers(threads), self.operand_registers)
        if threads == self.warp:
            registers = min(registers, self.registers // (BLOCKS_TOGETHER * self.warp))
        return Block(threads, self.warp, self.cell_columns, registers, self.sector)

    def block_registers(self, threads: int, registers: int) -> int:
        """Registers that one block takes from its unit; `registers`: of a thread, from the compiler."""
        warps = _up(-(-threads // self.warp), self.warp_step)
        return warps * self.warp * _up(registers, self.register_step)

    def resident_units(self, threads: int, registers: int, shared_bytes: int = 0) -> int:
        """The number of blocks that one multiprocessor holds at a time; 0: such a block cannot be launched.

        `threads` of a block; `registers` of a thread; `shared_bytes` of a block, static and dynamic.
        """
        if not 0 < threads <= self.threads_per_block or registers > self.thread_registers:
            return 0
        if shared_bytes > self.shared_bytes:
            return 0
        warps = _up(threads, self.warp)
        shared = _up(shared_bytes + self.reserved_shared_bytes, self.shared_step)
        by_shared = self.shared_per_unit // shared if shared else self.blocks_per_unit
        each = self.warp * _up(max(registers, 1), self.register_step)
        warps_by_registers = self.registers // self.warp_step // each * self.warp_step
        by_registers = warps_by_registers // -(-threads // self.warp)
        return min(self.blocks_per_unit, self.threads_per_unit // warps, by_shared, by_registers)

    def room(self, threads: int) -> int:
        """Bytes of shared memory for a block of so many threads: all that it can ask for, or so much that
        `BLOCKS_TOGETHER` blocks of one warp have room on a multiprocessor."""
        if threads != self.warp:
            return self.shared_bytes
        share = self.shared_per_unit // BLOCKS_TOGETHER
        return share - share % self.shared_step - self.reserved_shared_bytes

    def most_registers(self, threads: int) -> int:
        """The most registers of a thread with which a block of `threads` can still be launched."""
        warps = _up(-(-threads // self.warp), self.warp_step)
        room = self.registers // (warps * self.warp)
        return min(room - room % self.register_step, self.thread_registers)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
