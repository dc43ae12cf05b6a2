"""Specifications of AMD's cards; `device.spec` says what [D], [M] and [E] mean.

Nothing here was measured by this project. Sizes and rates are those of AMD's data sheets and of its guides to
the instruction sets (CDNA, CDNA 2, CDNA 3, CDNA 4, RDNA 3).
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.device.spec import DeviceSpec

KIB, MIB = 1 << 10, 1 << 20

MI100 = DeviceSpec(
    name="AMD Instinct MI100",
    platform="rocm",
    arch="gfx908",
    units=120,
    warp=64,
    threads_per_block=1024,
    threads_per_unit=2048,  # 8 waves on each of four vector units, as the runtime counts
    blocks_per_unit=32,
    registers=4 * 256 * 64,  # vector registers; there are as many more for matrix instructions alone
    cell_columns=16,
    sector=64,  # [D] a line of the first-level cache
    thread_registers=256,
    operand_registers=256,
    register_step=4,
    warp_step=4,  # each of four vector units has registers of its own
    shared_bytes=64 * KIB,
    shared_per_unit=64 * KIB,
    shared_step=512,
    reserved_shared_bytes=0,
    matrix_float32="exact",
    l2_bytes=8 * MIB,
    memory_bytes=32 * 10**9,
    launch_seconds=4.5e-6,  # [M] on MI300X
    barrier_seconds=1.5e-6,  # [E] one die, [M] 0.6 to 1.1 us on one die of RDNA 3
    hop_seconds=0.9e-6,  # [E]
    cluster_units=1,
    cluster_barrier_seconds=1.5e-6,  # that of the device, as the next
    cluster_hop_seconds=0.9e-6,
    shared_rate=20e12,  # [E] 23e12 by clock: 128 bytes a clock of each unit
    l2_rate=3.0e12,  # [D] 64 bytes a clock of each of 32 channels
    memory_rate=1.0e12,  # [E] [D] 1.23e12
    flops=23.1e12,  # [D]
    tensor_flops=46.1e12,  # [D] float32 factors are not rounded
    half_flops=92.3e12,  # [D] bfloat16; float16 is twice as fast
    clock_rate=1.502e9,  # [D]
    far_clocks=500.0,  # [E]
    meet_clocks=40.0,  # [E]
)
# One of two dies on a module: each is a device of its own.
MI250X = replace(
    MI100,
    name="AMD Instinct MI250X",
    arch="gfx90a",
    units=110,
    registers=4 * 512 * 64,
    thread_registers=512,  # half of them serve matrix instructions, loads and stores alone
    register_step=8,
    memory_bytes=64 * 10**9,
    l2_rate=6.0e12,  # [D] 128 bytes a clock of each of 32 channels
    memory_rate=1.35e12,  # [E] [D] 1.6e12
    flops=23.9e12,  # [D]
    tensor_flops=47.9e12,  # [D]
    half_flops=191.5e12,  # [D]
    clock_rate=1.7e9,  # [D]
)
MI300X = replace(
    MI250X,
    name="AMD Instinct MI300X",
    arch="gfx942",
    units=304,
    dies=8,
    sector=128,  # [D]
    l2_bytes=4 * MIB,  # of a die: others keep copies of what they read
    memory_bytes=192 * 10**9,
    barrier_seconds=3.3e-6,  # [M] on MI355X, a counter on a line of its own; 7 to 25 us otherwise
    hop_seconds=0.9e-6,  # [M] on MI300X, by words that carry their step
    cluster_barrier_seconds=3.3e-6,
    cluster_hop_seconds=0.9e-6,
    shared_rate=70e12,  # [E] 82e12 by clock
    l2_rate=17e12,  # [E] of the cache behind the dies, 256 MB
    memory_rate=4.2e12,  # [E] [D] 5.3e12
    flops=163.4e12,  # [D]
    tensor_flops=163.4e12,  # [D]
    half_flops=1307.4e12,  # [D]
    clock_rate=2.1e9,  # [D]
)
MI355X = replace(
    MI300X,
    name="AMD Instinct MI355X",
    arch="gfx950",
    units=256,
    shared_bytes=160 * KIB,
    shared_per_unit=160 * KIB,
    shared_step=1280,
    memory_bytes=288 * 10**9,
    launch_seconds=2.6e-6,  # [M]
    memory_rate=6.4e12,  # [E] [D] 8e12
    flops=157.3e12,  # [D]
    tensor_flops=157.3e12,  # [D]
    half_flops=2516.6e12,  # [D]
    clock_rate=2.4e9,  # [D]
)
RX_7900_XTX = replace(
    MI100,
    name="AMD Radeon RX 7900 XTX",
    arch="gfx1100",
    units=48,  # pairs of compute units, as the runtime counts: a block runs on both of a pair
    warp=32,
    sector=128,  # [D]
    threads_per_unit=2048,  # 16 waves on each of four vector units
    registers=4 * 1536 * 32,
    thread_registers=256,
    register_step=24,
    shared_per_unit=128 * KIB,
    matrix_float32="none",
    l2_bytes=6 * MIB,
    memory_bytes=24 * 10**9,
    barrier_seconds=0.9e-6,  # [M] 0.6 to 1.1
    hop_seconds=0.6e-6,  # [E]
    cluster_barrier_seconds=0.9e-6,
    cluster_hop_seconds=0.6e-6,
    shared_rate=25e12,  # [E] 31e12 by clock
    l2_rate=5.0e12,  # [E]
    memory_rate=0.8e12,  # [E] [D] 0.96e12
    flops=61.4e12,  # [D] two operations of a wave at a time
    tensor_flops=61.4e12,  # without matrix instructions for float32
    half_flops=122.8e12,  # [D]
    clock_rate=2.5e9,  # [D]
)
