"""The process that uses the card in a run of a pack: python -m benchmarks.gpu.worker PACK FOLDER.

Reads items from standard input, a line of JSON each, and answers with a line of JSON each. It needs numpy and
the driver alone. It ends at the first error of the driver, after which the card may not be usable here.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import latency, launching
from benchmarks.gpu.packed import Array, Pack, Packed, Row, Stamps, Type, difference, file_name
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda.card import Card, CudaError
from jax_cocktail.timeline import table
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.utask.plan import LaunchPlan

INPUT_SECONDS = 60.0  # the most that is waited for the arguments of a row
Record = dict[str, Any]


class Worker:
    """A card, a pack, and the folder with the arguments of rows. The arrays of the last row are kept."""

    def __init__(self, card: Card, pack: Pack, folder: Path) -> None:
        self.card, self.pack, self.folder = card, pack, folder
        self._row: Row | None = None
        self._arrays: dict[str, Array] = {}
        self._operands: tuple[Array, ...] = ()
        self._same = True

    def do(self, kind: str, name: str, digest: str) -> Record:
        """The record of an item."""
        if kind == "card":
            figures = {"micro": gpu_micro.names(self.card), "latency": tuple(latency.probes_of(self.card))}
            return {"facts": asdict(self.card.facts), "figures": figures}
        return self.program(name, digest) if kind == "program" else self.figure(name)

    def program(self, name: str, digest: str) -> Record:
        """Checks and times a program of a row."""
        row = self._read(name)
        program = next(p for p in row.programs if p.digest == digest)
        stamps = self.pack.stamps(digest) if program.phase == "traced" else None
        rings = (Type("uint32", stamps.shape),) if stamps else ()
        call = launching.Call(
            self.pack.binary(digest),
            LaunchPlan.from_attribute(program.launch),
            self._operands,
            (*(result.type for result in row.results), *rings),
            dict(program.aliases),
        )
        try:
            loaded = launching.load(self.card, call)
            results = loaded.run()
            timed = asdict(loaded.time())
        finally:
            self.card.release()
        gap = difference(results[: len(row.results)], row, self._arrays)
        found = {**_described(program), "same_inputs": self._same, **_checked(gap, program), **timed}
        return {**found, "timeline": _timeline(results[-1], stamps)} if stamps else found

    def figure(self, name: str) -> Record:
        """Measures one figure of the card."""
        if (probe := latency.probes_of(self.card).get(name)) is not None:
            return latency.measure(self.card, self.pack.binary(self.pack.facts["latency"]), probe)
        binary = self.pack.binary(self.pack.facts["micro"])
        found = gpu_micro.measure(self.card, only=(name,), binary=binary)
        return found.get(name, {"none": "this card has no such figure"})

    def _read(self, name: str) -> Row:
        """Makes the operands of a row ready."""
        if self._row is not None and self._row.name == name:
            return self._row
        row = self.pack.row(name)
        assert row is not None
        self._row, self._arrays = None, self.pack.arrays(name)
        arguments = self._arguments(name)
        operands = []
        for number, operand in enumerate(row.operands):
            stored = operand.argument < 0
            of, key = (self._arrays, number) if stored else (arguments, operand.argument)
            operands.append(of[f"{'operand' if stored else 'argument'} {key}"].reshape(operand.type.shape))
        digests = [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in operands]
        self._same = digests == [operand.digest for operand in row.operands]
        self._operands, self._row = tuple(operands), row
        return row

    def _arguments(self, name: str) -> Mapping[str, Array]:
        """What the process that makes arguments has made, or will have made soon."""
        path = self.folder / f"{file_name(name)}.npz"
        end = time.monotonic() + INPUT_SECONDS
        while not path.exists():
            if path.with_suffix(".error").exists():
                raise ValueError(path.with_suffix(".error").read_text())
            if time.monotonic() > end:
                raise ValueError(f"no arguments after {INPUT_SECONDS:g} s")
            time.sleep(0.02)
        with np.load(path) as file:
            return {key: file[key] for key in file.files}


def _timeline(rings: Array, stamps: Stamps) -> list[str]:
    """The table of a recorded call."""
    words = rings.view(np.uint64)
    return table.lines(read(0, words, stamps.rows, stamps.level, begin_of(words)))


def _described(program: Packed) -> Record:
    names = ("phase", "digest", "limit", "predicted_seconds")
    return {name: getattr(program, name) for name in names}


def _checked(gap: float, program: Packed) -> Record:
    """`difference` is None where it is infinite, which JSON does not know."""
    return {"difference": gap if np.isfinite(gap) else None, "ok": gap <= program.limit}


def main() -> int:
    pack, folder = Pack(Path(sys.argv[1])), Path(sys.argv[2])
    with Card() as card:
        worker = Worker(card, pack, folder)
        for line in sys.stdin:
            start, failed = time.monotonic(), False
            try:
                record = worker.do(*json.loads(line))
            except Exception as error:
                record = {"error": f"{type(error).__name__}: {error}"[:1000]}
                failed = isinstance(error, CudaError)
            record["wall_seconds"] = round(time.monotonic() - start, 3)
            print(json.dumps(record), flush=True)
            if failed:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
