"""GPUs as the planner sees them: levels, their sizes, and the costs of using and crossing them. Pure data.

Sizes come from the driver's properties of the named card. Rates and times are one of
  [D] the vendor's data sheet, at the highest clock;
  [M] measured by others, in public microbenchmarks of the card or of the nearest one;
  [E] estimated from the two, until somebody measures that card.
A machine's own measurements replace them: see `device.store`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

from jax_cocktail.errors import BuildError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PORTABLE_CLUSTER = 8  # the largest cluster for which every card with clusters has room [D]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU.

    Attributes:
      name: the name that the driver reports.
      platform: "cuda" or "rocm".
      arch: the compiler's name for the architecture ("sm_90", "gfx942").
      units: multiprocessors (SMs, CUs). The planner runs one block on each.
      warp: threads that run in step: 32, or 64 on most AMD cards.
      threads_per_block, threads_per_unit, blocks_per_unit: the largest numbers allowed.
      registers: 32-bit registers of one multiprocessor.
      thread_registers: the most registers that one thread can have.
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
    thread_registers: int = 255
    register_step: int = 8
    warp_step: int = 4
    shared_step: int = 128
    reserved_shared_bytes: int = 1024
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
        by_shared = self.shared_per_unit // _up(shared_bytes + self.reserved_shared_bytes, self.shared_step)
        by_registers = self.registers // self.block_registers(threads, max(registers, 1))
        return min(self.blocks_per_unit, self.threads_per_unit // warps, by_shared, by_registers)

    def most_registers(self, threads: int) -> int:
        """The most registers of a thread with which a block of `threads` can still be launched."""
        warps = _up(-(-threads // self.warp), self.warp_step)
        room = self.registers // (warps * self.warp)
        return min(room - room % self.register_step, self.thread_registers)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def to_json(spec: DeviceSpec) -> str:
    """The spec as JSON text; `from_json` gives it back."""
    return json.dumps(asdict(spec), indent=1) + "\n"


def from_json(text: str) -> DeviceSpec:
    """The spec that `to_json` wrote. ValueError for anything else."""
    values = json.loads(text)
    kinds = {field.name: str(field.type) for field in fields(DeviceSpec)}
    if not isinstance(values, dict) or values.keys() != kinds.keys():
        raise ValueError("this text does not describe a device in this version's way")
    accepted: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
    for name, kind in kinds.items():
        if not isinstance(values[name], accepted[kind]) or isinstance(values[name], bool):
            raise ValueError(f"{name} of a device is of type {kind}, not {values[name]!r}")
    return DeviceSpec(**values)


# ---- cards -------------------------------------------------------------------------------------------------

H200 = DeviceSpec(
    name="NVIDIA H200",
    platform="cuda",
    arch="sm_90",
    units=132,
    warp=32,
    threads_per_block=1024,
    threads_per_unit=2048,
    blocks_per_unit=32,
    registers=65536,
    shared_bytes=227 * KIB,
    shared_per_unit=228 * KIB,
    l2_bytes=50 * MIB,  # drivers report 50 or 60 MiB; the smaller is safe
    memory_bytes=141 * 10**9,
    launch_seconds=1.35e-6,  # [M] on H100, in a graph: 1.3 to 1.4
    barrier_seconds=1.05e-6,  # [M] on H100, 132 blocks, counter with release and acquire: 1.0 to 1.1
    hop_seconds=0.65e-6,  # [M] on H100
    cluster_units=16,  # eight are portable; the driver says if there is room for more
    cluster_barrier_seconds=0.65e-6,  # [M] on H100, by placement; it waits for L2 as any release does
    cluster_hop_seconds=0.3e-6,  # [E] [M] on H100 2.3 times faster than through global memory
    shared_rate=25e12,  # [M] 20 to 30e12; 33e12 by clock
    l2_rate=5.5e12,  # [M] on H100: 5 to 10e12 by access pattern
    memory_rate=4.3e12,  # [M] copy; [D] 4.8e12
    flops=66.9e12,  # [D]
    tensor_flops=495e12,  # [D]
    half_flops=780e12,  # [M] random data; [D] 989e12
)
H100 = replace(
    H200,
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=80 * 10**9,
    memory_rate=3.0e12,  # [M] sustained 2.8 to 3.1e12; [D] 3.35e12
)
A100 = replace(
    H200,
    name="NVIDIA A100-SXM4-80GB",
    arch="sm_80",
    units=108,
    shared_bytes=163 * KIB,
    shared_per_unit=164 * KIB,
    l2_bytes=40 * MIB,
    memory_bytes=80 * 10**9,
    launch_seconds=1.6e-6,  # [E]
    barrier_seconds=1.3e-6,  # [E]
    hop_seconds=0.8e-6,  # [E]
    cluster_units=1,
    cluster_barrier_seconds=1.3e-6,  # that of the device, as the next
    cluster_hop_seconds=0.8e-6,
    shared_rate=16e12,  # [E] 19.5e12 by clock
    l2_rate=4.0e12,  # [E]
    memory_rate=1.75e12,  # [E] [D] 2.04e12
    flops=19.5e12,  # [D]
    tensor_flops=156e12,  # [D]
    half_flops=312e12,  # [D]
    clock_rate=1.41e9,  # [D]
)
B200 = replace(
    H200,
    name="NVIDIA B200",
    arch="sm_100",
    units=148,
    l2_bytes=126 * MIB,
    memory_bytes=180 * 10**9,
    shared_rate=28e12,  # [E] 37e12 by clock
    l2_rate=10e12,  # [E]
    memory_rate=6.9e12,  # [E] [D] 7.7e12
    flops=74e12,  # [D]
    tensor_flops=1100e12,  # [D]
    half_flops=2200e12,  # [D]
    clock_rate=1.97e9,  # [D]
)
B300 = replace(
    B200,
    name="NVIDIA B300",
    arch="sm_103",
    memory_bytes=270 * 10**9,
    memory_rate=7.1e12,  # [E] [D] 7.9e12
)
# Cards of workstations have less shared memory and fewer threads per multiprocessor.
RTX_3090 = replace(
    A100,
    name="NVIDIA GeForce RTX 3090",
    arch="sm_86",
    units=82,
    threads_per_unit=1536,
    blocks_per_unit=16,
    shared_bytes=99 * KIB,
    shared_per_unit=100 * KIB,
    l2_bytes=6 * MIB,
    memory_bytes=24 * 10**9,
    launch_seconds=0.83e-6,  # [M] in a graph; 1.54 in a stream
    barrier_seconds=0.73e-6,  # [M]
    hop_seconds=0.5e-6,  # [E]
    cluster_barrier_seconds=0.73e-6,
    cluster_hop_seconds=0.5e-6,
    shared_rate=14e12,  # [E] 17.8e12 by clock
    l2_rate=2.0e12,  # [E]
    memory_rate=0.82e12,  # [E] [D] 0.936e12
    flops=35.6e12,  # [D]
    tensor_flops=35.6e12,  # [D]
    half_flops=71e12,  # [D] with float32 sums
    clock_rate=1.70e9,  # [D]
)
L40S = replace(
    RTX_3090,
    name="NVIDIA L40S",
    arch="sm_89",
    units=142,
    blocks_per_unit=24,
    l2_bytes=96 * MIB,
    memory_bytes=48 * 10**9,
    barrier_seconds=0.8e-6,  # [E]
    cluster_barrier_seconds=0.8e-6,
    shared_rate=36e12,  # [E] 45e12 by clock
    l2_rate=4.0e12,  # [E]
    memory_rate=0.75e12,  # [E] [D] 0.864e12
    flops=91.6e12,  # [D]
    tensor_flops=183e12,  # [D]
    half_flops=362e12,  # [D]
    clock_rate=2.52e9,  # [D]
)
RTX_5090 = replace(
    L40S,
    name="NVIDIA GeForce RTX 5090",
    arch="sm_120",
    units=170,
    memory_bytes=32 * 10**9,
    launch_seconds=0.84e-6,  # [M] on a card of this architecture
    barrier_seconds=0.6e-6,  # [M] the same
    hop_seconds=0.4e-6,  # [M] the same
    cluster_barrier_seconds=0.6e-6,
    cluster_hop_seconds=0.4e-6,
    shared_rate=42e12,  # [E] 52e12 by clock
    l2_rate=6.0e12,  # [E]
    memory_rate=1.55e12,  # [E] [D] 1.79e12
    flops=104.8e12,  # [D]
    tensor_flops=104.8e12,  # [D]
    half_flops=210e12,  # [D] with float32 sums
    clock_rate=2.41e9,  # [D]
)

# The known cards. The last one of an architecture represents it.
CARDS = (A100, RTX_3090, L40S, H100, H200, B200, B300, RTX_5090)
DEFAULT = H200
_BY_ARCH = {spec.arch: spec for spec in CARDS}
ARCHES = tuple(_BY_ARCH)


def spec_for(arch: str) -> DeviceSpec:
    """The card that represents an architecture: "sm_90", also as "sm_90a". BuildError if there is none."""
    spec = _BY_ARCH.get(arch) or _BY_ARCH.get(arch.rstrip("af"))
    if spec is None:
        raise BuildError(
            f"there is no device of the architecture {arch!r} to plan for",
            f"set the option gpu_arch (or JAX_COCKTAIL_GPU_ARCH) to one of {', '.join(ARCHES)}",
        )
    return spec


def card_like(name: str, arch: str) -> DeviceSpec:
    """The known card of this name and architecture, else the one that represents the architecture."""
    return next((spec for spec in CARDS if (spec.name, spec.arch) == (name, arch)), None) or spec_for(arch)
