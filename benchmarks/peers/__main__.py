"""Ours and stock XLA beside what a user would pick instead: ONNX Runtime, OpenVINO, PyTorch, numba, C++.

Every row is a program as one writes it in JAX. Peers that are not installed are left out; `pip install -e
'.[peers]'` installs them. All run in turn, with as many threads as there are cores, and the medians count.
Before its turn, each waits until the threads of the one before sleep: some wait for work in a loop for long.
Four sizes of LSTMs are the same with every seed; others come from it, so that nothing can be tuned to them.

    python -m benchmarks.peers                        all rows, `jit` as it decides
    python -m benchmarks.peers --only LSTM --force    rows with this in their names, ours forced
    python -m benchmarks.peers --seed 7 --out FILE    other sizes; the figures as JSON
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_cocktail
from benchmarks.peers import decoder, recurrent, scalar
from benchmarks.peers.rows import Row, Run
from jax_cocktail_tools.models.measure import interleaved_samples, largest_difference

REST = 0.04  # longer than a thread of any of them waits for work in a loop
NAMES = ("ONNX Runtime", "OpenVINO", "PyTorch", "numba", "C++")
Record = dict[str, Any]


def peers_of(row: Row, expected: Any) -> dict[str, Run]:
    """The runs of the peers that are installed and agree with JAX."""
    found = {}
    for name, make in row.peers.items():
        try:
            run = make()
        except ImportError:
            continue
        result = np.asarray(run())
        gap = largest_difference(result, np.asarray(expected).reshape(result.shape))
        if gap > row.tolerance:
            warnings.warn(f"{row.name}: {name} differs by {gap:.1e}, and is left out", stacklevel=1)
        else:
            found[name] = run
    return found


def measure(row: Row, force: bool, seconds: float) -> Record:
    """The median seconds of a row in every system, and the best peer's over ours."""
    options = {"compile": "now", "force": "cocktail" if force else "auto"}
    stock, ours = jax.jit(row.function), jax_cocktail.jit(row.function, options=options)
    expected = jax.block_until_ready(stock(*row.arguments))
    jax.block_until_ready(ours(*row.arguments))
    ways: dict[str, Callable[[], Any]] = {
        "ours": partial(ours, *row.arguments),
        "stock": partial(stock, *row.arguments),
        **peers_of(row, expected),
    }
    timed = interleaved_samples(list(ways.values()), seconds=seconds, rest=REST)
    found = dict(zip(ways, timed.medians, strict=True))
    rivals = {name: time for name, time in found.items() if name not in ("ours", "stock")}
    best = min(rivals.values(), default=float("nan"))
    return {"row": row.name, **found, "best peer / ours": best / found["ours"], "others": timed.others}


def printed(found: Record) -> str:
    """One line of the table, in milliseconds."""
    cells = [f"{found['row']:44}"]
    ways = ("ours", "stock", *NAMES)
    cells += [f"{found[name] * 1e3:14.3f}" if name in found else f"{'':14}" for name in ways]
    return "".join((*cells, f"{found['stock'] / found['ours']:12.2f}{found['best peer / ours']:12.2f}"))


def main() -> None:
    """Prints one line for every row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--only", nargs="+", default=[""], help="rows with one of these in their names")
    parser.add_argument("--force", action="store_true", help="our programs, also where stock XLA is faster")
    parser.add_argument("--seed", type=int, default=0, help="of sizes and numbers")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = "".join(f"{name:>14}" for name in ("ours", "stock", *NAMES))
    print(f"{'ms':44}{names}{'stock/ours':>12}{'peer/ours':>12}")
    found = []
    for row in (row for kind in (recurrent, decoder, scalar) for row in kind.rows(given.seed)):
        if any(part in row.name for part in given.only):
            found.append(measure(row, given.force, given.seconds))
            print(printed(found[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
