"""Short launches of every kernel of `micro.cu`."""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.runtime.cuda.micro_kernels import (
    BARRIER,
    BARRIER_CHECKED,
    CLUSTER,
    EMPTY,
    FLAG,
    FMA,
    GATHER,
    READ,
    SHARED,
    SHARED_BYTES,
    TAGGED,
    THREADS,
    MicroRun,
    chains,
    pattern,
)


def small_runs(threads: int = THREADS) -> Sequence[MicroRun]:
    """A little of everything, for the emulation. `threads`: 256 at most."""
    data, groups = pattern(1 << 15), 4096
    four = data[:4]
    return (
        MicroRun(EMPTY, 2, 3, four, threads=threads),
        MicroRun(BARRIER, 1, 3, four, threads=threads),
        MicroRun(BARRIER, 3, 4, four, threads=threads),
        MicroRun(BARRIER_CHECKED, 3, 4, four, threads=threads),
        MicroRun(CLUSTER, 4, 3, four, threads=threads, cluster=4),
        MicroRun(FLAG, 2, 5, four, threads=threads),
        MicroRun(TAGGED, 2, 4, four, 1, threads=threads),
        MicroRun(TAGGED, 2, 3, four, 300, threads=threads),
        MicroRun(GATHER, 3, 4, four, 256, threads=threads),
        MicroRun(READ, 2, 3, data[: 4 * groups], groups, threads=threads),
        MicroRun(SHARED, 2, 3, data[: SHARED_BYTES // 4], threads=threads),
        MicroRun(FMA, 1, 2, chains(), threads=threads),
    )
