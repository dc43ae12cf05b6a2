"""What the models' programs for AMD's cards are made of. No card has run them, so there are no times.

    python -m benchmarks.amd                  the models for MI100 and MI300X; needs a compiler for them
    python -m benchmarks.amd --rows lstm/1    rows of benchmarks/gpu/rows.py with this in their names

Barriers (and exchanges) are those of a call's critical path. Bytes are what all units read, by the level that
they come from. Registers, scratch memory and waves of a compute unit are those of the kernel with most
registers; LDS is that of the resident kernel. pip install 'jax_cocktail[compiler]' brings a compiler.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.gpu.plans import facts, planned, prediction
from benchmarks.gpu.rows import ROWS
from jax_cocktail.device.amd import MI100, MI300X
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail_tools.models import MODELS

CARDS = (MI100, MI300X)
HEAD = (
    *("program", "card", "units", "barriers", "LDS read", "L2 read", "memory read"),
    *("VGPRs", "scratch, bytes", "LDS, bytes", "waves of a CU"),
)


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def row(name: str, spec: DeviceSpec) -> Sequence[str]:
    """The cells of a program on a card."""
    function, arguments = ROWS[name].make(False)
    plan = planned(name, function, arguments, spec)
    said, expected = facts(plan, spec), prediction(plan, spec)
    threads, shared, registers = said["threads"], said["resident_shared_bytes"], said["registers"]
    waves = spec.resident_units(threads, registers, shared) * threads // spec.warp
    moved = (size(expected["bytes"].get(level, 0)) for level in ("shared", "l2", "memory"))
    numbers = registers, said["spill_bytes"], shared, waves
    card = spec.name.rpartition(" ")[2]
    return name, card, str(said["blocks"]), f"{expected['barriers']:,.0f}", *moved, *map(str, numbers)


def lines(names: Sequence[str]) -> Iterator[str]:
    """The table in Markdown."""
    for cells in (HEAD, ["---"] * len(HEAD)):
        yield f"| {' | '.join(cells)} |"
    for name in names:
        for spec in CARDS:
            yield f"| {' | '.join(row(name, spec))} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amd")
    parser.add_argument("--rows", default="", help="those with this in their names; else those of the models")
    asked = parser.parse_args().rows
    models = tuple(name for name in ROWS if name.partition("/")[0] in MODELS)
    for line in lines([name for name in ROWS if asked in name] if asked else models):
        print(line, flush=True)


if __name__ == "__main__":
    main()
