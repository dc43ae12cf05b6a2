"""Specifications of NVIDIA's cards; `device.spec` says what [D], [M] and [E] mean."""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.device.spec import DeviceSpec

KIB, MIB = 1 << 10, 1 << 20

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
