"""Rates of matrix products in a loop: ours, and those of stock XLA, OpenBLAS (NumPy) and oneDNN (PyTorch).

    python -m benchmarks.products                        all shapes, on all cores of this process
    python -m benchmarks.products --cores 1 --out FILE   on one core; the figures as JSON
    python -m benchmarks.products --rows 1 64            only products of so many rows

A trip of the loop multiplies an m x k matrix by a k x n one, and the result by an n x k one, so no product is
like the one before and none can leave the loop. Weights are the same in all trips. All run in turn, and
medians count. One run has one number of cores: libraries read it when they are imported. PyTorch is left out
if it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ROWS = (1, 2, 4, 8, 16, 64, 512)
MATRICES = ((32, 32), (128, 512), (256, 1024), (337, 1348), (512, 2048), (2048, 2048))  # k, n
FLOPS, LEAST_TRIPS, MOST_TRIPS = 4e8, 32, 400  # of a call: weights are worth packing
REST = 0.02  # longer than a thread of a library waits for work in a loop
Record = dict[str, Any]


def bind(cores: int) -> int:
    """Lets this process use so many of its cores, 0: all of them, and returns the number. Call it before
    anything is imported that starts threads."""
    here = sorted(os.sched_getaffinity(0))[: cores or None]
    os.sched_setaffinity(0, here)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(len(here))
    return len(here)


def chain(x: Any, first: Any, second: Any, trips: int) -> Any:
    """The loop in JAX. x: float32[m, k]; first: float32[k, n]; second: float32[n, k]; float32[m, k]."""
    from jax import lax

    return lax.fori_loop(0, trips, lambda _, x: (x @ first) @ second, x)


def with_numpy(x: Any, first: Any, second: Any, trips: int) -> Any:
    """The loop of a BLAS that works in place."""
    import numpy as np

    x, between = x.copy(), np.empty((x.shape[0], first.shape[1]), x.dtype)
    for _ in range(trips):
        np.matmul(x, first, out=between)
        np.matmul(between, second, out=x)
    return x


def with_torch(x: Any, first: Any, second: Any, trips: int) -> Callable[[], Any]:
    """The same in PyTorch. Raises ImportError."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    start, *weights = map(torch.from_numpy, (x, first, second))

    def run() -> Any:
        with torch.inference_mode():
            x, between = start.clone(), torch.empty(start.shape[0], weights[0].shape[1])
            for _ in range(trips):
                torch.mm(x, weights[0], out=between)
                torch.mm(between, weights[1], out=x)
            return x.numpy()

    return run


def trips_of(rows: int, k: int, n: int) -> int:
    """The trips of a call, which takes a while but not long."""
    return int(min(max(FLOPS / (4 * rows * k * n), LEAST_TRIPS), MOST_TRIPS))


def measure(rows: int, k: int, n: int, seconds: float, units: int) -> Record:
    """GFLOP/s in every system, and ours over the best of the others.

    Raises:
      AssertionError: the results differ.
    """
    import jax
    import numpy as np

    import jax_cocktail
    from jax_cocktail_tools.models.measure import interleaved_samples, largest_difference

    random, trips = np.random.default_rng(rows + k + n), trips_of(rows, k, n)
    x, first, second = (
        (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        for shape in ((rows, k), (k, n), (n, k))
    )
    options = {"force": "cocktail", "compile": "now", "units": units}
    here = jax.device_put((x, first, second))
    ways: dict[str, Callable[[], Any]] = {
        "ours": partial(jax_cocktail.jit(chain, static_argnums=3, options=options), *here, trips),
        "stock XLA": partial(jax.jit(chain, static_argnums=3), *here, trips),
        "OpenBLAS": partial(with_numpy, x, first, second, trips),
    }
    with suppress(ImportError):
        ways["oneDNN"] = with_torch(x, first, second, trips)
    expected = np.asarray(ways["stock XLA"]())
    for name, run in ways.items():
        gap = largest_difference(np.asarray(run()), expected)
        assert gap < 1e-3, f"{name} differs by {gap:.1e}"
    timed = interleaved_samples(list(ways.values()), seconds=seconds, rest=REST)
    flops = 4.0 * rows * k * n * trips
    rates = {name: flops / time / 1e9 for name, time in zip(ways, timed.medians, strict=True)}
    best = max(rate for name, rate in rates.items() if name != "ours")
    shape = {"rows": rows, "k": k, "n": n}
    return {**shape, **rates, "ours / best": rates["ours"] / best, "others": timed.others}


NAMES = ("ours", "stock XLA", "OpenBLAS", "oneDNN")


def printed(found: Record) -> str:
    """One line of the table, in GFLOP/s."""
    cells = (f"{found[name]:12.1f}" if name in found else f"{'':12}" for name in NAMES)
    shape = f"{found['rows']} x {found['k']} x {found['n']}"
    return f"{shape:20}{''.join(cells)}{found['ours / best']:14.2f}"


def main() -> None:
    """Prints one line for every shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products")
    parser.add_argument("--cores", type=int, default=0, help="so many of this process (0: all)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cores = bind(given.cores)
    print(f"{f'GFLOP/s, {cores} cores':20}{''.join(f'{name:>12}' for name in NAMES)}{'ours / best':>14}")
    found = []
    for k, n in MATRICES:
        for rows in given.rows:
            found.append({"cores": cores, **measure(rows, k, n, given.seconds, cores)})
            print(printed(found[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
