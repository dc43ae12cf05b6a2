"""What a process holds while it compiles many programs and makes many calls, beside stock `jax.jit`.

Every program is a function of its own that closes over an array of 1 MiB. It is called once and dropped.
The shapes are those of one function, which keeps what is compiled for each of them, and is then dropped. The
calls that follow are all of one program. Each side is a process of its own. In "background", stock XLA runs
the call until our program is ready, and each function is dropped while that is compiled.

    python -m benchmarks.memory                                2,000 programs and 1,000,000 calls
    python -m benchmarks.memory --programs 300 --calls 100000  fewer
    python -m benchmarks.memory --programs 0 --shapes 1000 --calls 0
    python -m benchmarks.memory --sides ours background        without stock
    python -m benchmarks.memory --out FILE                     the same figures as JSON
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIDES = ("stock", "ours", "background")
FIGURES = ("MiB", "arrays", "mappings", "files", "threads")
STEPS = 5  # lines for the programs, and as many for the calls
Figures = dict[str, float]


def held() -> Figures:
    """What this process holds. `MiB`: the resident set; `arrays`: those that JAX knows."""
    import jax

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    values = (
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        len(jax.live_arrays()),
        Path("/proc/self/maps").read_bytes().count(b"\n"),
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
    )
    return dict(zip(FIGURES, values, strict=True))


def _jit(side: str) -> Any:
    import jax

    import jax_cocktail

    if side == "stock":
        return jax.jit
    options = {"force": "cocktail", "profile": "off", "compile": "now" if side == "ours" else side}
    return lambda function: jax_cocktail.jit(function, options=options)


def serve(side: str, programs: int, calls: int, shapes: int) -> Iterator[tuple[str, int, Figures]]:
    """Yields what was done so far, how often, and what the process then holds."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    import jax_cocktail

    jit, x = _jit(side), jnp.ones(3)

    def made(number: int) -> Any:
        table = jnp.full((512, 512), float(number))

        def function(x: Any) -> Any:
            return lax.fori_loop(0, 3, lambda i, a: a * (1.0 + number / 1024) + table[i, :3], x)

        return jit(function)

    function = None
    for number in range(1, programs + 1):
        function = made(number)
        jax.block_until_ready(function(x))
        if number % max(programs // STEPS, 1) == 0:
            if side == "background":
                jax_cocktail.wait()
            gc.collect()
            yield "programs", number, held()
    if shapes:
        yield from _serve_shapes(jit, shapes)
    function = function or made(0)
    for number in range(1, calls + 1):
        jax.block_until_ready(function(x))
        if number % max(calls // STEPS, 1) == 0:
            gc.collect()
            yield "calls", number, held()


def _serve_shapes(jit: Any, shapes: int) -> Iterator[tuple[str, int, Figures]]:
    """Calls one function with arrays of many lengths, and drops it."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    function = jit(lambda x: lax.fori_loop(0, 3, lambda i, a: a * 1.5 + i, x))
    for number in range(1, shapes + 1):
        jax.block_until_ready(function(jnp.ones(number + 2)))
        if number % max(shapes // STEPS, 1) == 0:
            gc.collect()
            yield "shapes", number, held()
    del function
    jax.clear_caches()
    gc.collect()
    yield "shapes, dropped", shapes, held()


def measure(side: str, programs: int, calls: int, shapes: int = 0) -> Iterator[tuple[str, int, Figures]]:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--serve", side]
    command += ["--programs", str(programs), "--calls", str(calls), "--shapes", str(shapes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout
        for line in child.stdout:
            what, number, figures = json.loads(line)
            yield what, number, figures
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)


def main() -> None:
    """Prints one line for every step of each side."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--shapes", type=int, default=0)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    counts = options.programs, options.calls, options.shapes
    if options.serve:
        for step in serve(options.serve, *counts):
            print(json.dumps(step), flush=True)
        return
    print(f"{'':30}" + "".join(f"{name:>10}" for name in FIGURES))
    found = []
    for side in options.sides:
        for what, number, figures in measure(side, *counts):
            found.append({"side": side, what: number, **figures})
            cells = "".join(f"{figures[name]:10.0f}" for name in FIGURES)
            print(f"{f'{side}, {number} {what}':30}{cells}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
