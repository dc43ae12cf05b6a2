"""The process that uses the card in a run of a pack: python -m benchmarks.gpu.worker PACK FOLDER.

Reads items from standard input, a line of JSON each, and answers with a line of JSON each. It needs numpy and
the driver alone. It ends at the first error of the driver, after which the card may not be usable here.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import clock, latency, launching, litmus
from benchmarks.gpu.packed import (
    Array,
    Pack,
    Packed,
    Row,
    Stamps,
    Type,
    described,
    difference,
    digest,
    file_name,
    judged_right,
    references,
)
from benchmarks.gpu.pool import end_with_parent
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda.card import Card, CudaError
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.utask.plan import LaunchPlan
from jax_cocktail_tools.timeline import table

SMALL = 1e-3  # of the rounds of a figure, for packs of small sizes
TURNS, FEW_TURNS = 20, 2  # calls of each program on two streams; of small sizes
Record = dict[str, Any]


class Worker:
    """A card, a pack, and the folder with the arguments of rows. The arrays of the last row are kept.

    `beside`: the same card with another stream and memory of its own."""

    def __init__(self, card: Card, beside: Card, pack: Pack, folder: Path) -> None:
        self.card, self.beside, self.pack, self.folder = card, beside, pack, folder
        self._facts = pack.facts
        self._clock = pack.binary(self._facts["clock"])
        self._scale = SMALL if self._facts["small"] else 1.0
        self._wake = clock.WAKE_SECONDS * self._scale
        self._turns = FEW_TURNS if self._facts["small"] else TURNS
        self._row: Row | None = None
        self._arrays: dict[str, Array] = {}
        self._operands: tuple[Array, ...] = ()
        self._same = True
        self.lost = False  # the driver has failed, and the card may not be usable here

    def do(self, kind: str, name: str, digest: str) -> Record:
        """The record of an item."""
        if kind == "card":
            figures = {
                "micro": gpu_micro.names(self.card),
                "litmus": litmus.names_of(self.card),
                "latency": tuple(self._probes()),
            }
            return {"facts": asdict(self.card.facts), "figures": figures}
        if kind == "program":
            return self.program(name, digest)
        if kind == "streams":
            return self._clocked(lambda: self.streams(*name.split(" + ")))
        return self._clocked(lambda: self.figure(kind, name))

    def program(self, name: str, digest: str) -> Record:
        """Checks and times a program of a row."""
        row = self._read(name)
        program = next(p for p in row.programs if p.digest == digest)
        stamps = self.pack.stamps(digest) if program.phase == "traced" else None
        try:
            loaded = launching.load(self.card, self._call(row, program, stamps))
            results = loaded.run()
            checked = _checked(results, row, program, self._arrays, self._same)
            found = {**described(program), **checked}
            if stamps:
                found["timeline"] = _timeline(results[-1], stamps)
            tell({"so far": found})  # an answer counts even if its timing fails
            return {**found, **self._timed(loaded)}
        finally:
            with contextlib.suppress(CudaError):
                self.card.release()

    def _timed(self, loaded: launching.Loaded) -> Record:
        try:
            return self._clocked(lambda: asdict(loaded.time()))
        except CudaError as error:
            self.lost = True
            return {"error": f"its timing failed: {error}"}

    def streams(self, *names: str) -> Record:
        """Runs the best programs of two rows on two streams at once, and each of them alone.

        Blocks of either wait for each other, so neither may hold the room that the other one needs."""
        loaded, rows = [], []
        try:
            for name, card in zip(names, (self.card, self.beside), strict=True):
                row = self._read(name)
                loaded.append(launching.load(card, self._call(row, row.best())))
                rows.append((row, row.best(), self._arrays, self._same))
            alone = [_timed([each], self._turns) for each in loaded]
            together = _timed(loaded, self._turns)
            found = [each.downloaded() for each in loaded]
        finally:
            self.card.release()
            self.beside.release()
        checked = [_checked(f, *how) for f, how in zip(found, rows, strict=True)]
        answers = [record["ok"] for record in checked]
        ok = None if None in answers else all(answers)
        return {"seconds": together, "alone_seconds": alone, "answers": checked, "ok": ok}

    def figure(self, kind: str, name: str) -> Record:
        """Measures one figure of the card, or runs one litmus test."""
        binary = self.pack.binary(self._facts[kind])
        if kind == "litmus":
            return litmus.measure(self.card, binary, name, self._scale)
        if kind == "latency":
            return latency.measure(self.card, binary, self._probes()[name])
        found = gpu_micro.measure(self.card, self._scale, only=(name,), binary=binary)
        return found.get(name, {"none": "this card has no such figure"})

    def _probes(self) -> dict[str, latency.Probe]:
        """The probes of latencies. For small sizes, which emulations run, those of the largest block, since
        an emulated block has no other size; and few rounds."""
        found = latency.probes_of(self.card)
        if not self._facts["small"]:
            return found
        return {name: replace(p, rounds=1) for name, p in found.items() if p.threads == latency.THREADS}

    def _clocked(self, work: Callable[[], Record]) -> Record:
        return clock.awake(self.beside, self._clock, work, self._wake)

    def _call(self, row: Row, program: Packed, stamps: Stamps | None = None) -> launching.Call:
        rings = (Type("uint32", stamps.shape),) if stamps else ()
        return launching.Call(
            self.pack.binary(program.digest),
            LaunchPlan.from_attribute(program.launch),
            self._operands,
            (*(result.type for result in row.results), *rings),
            dict(program.aliases),
        )

    def _read(self, name: str) -> Row:
        """Makes the operands of a row ready. Its arguments are there: who asks has waited for them."""
        if self._row is not None and self._row.name == name:
            return self._row
        row = self.pack.row(name)
        assert row is not None
        self._row, self._arrays = None, self.pack.arrays(name)
        with np.load(self.folder / f"{file_name(name)}.npz") as file:
            arguments = {key: file[key] for key in file.files}
        operands = []
        for number, operand in enumerate(row.operands):
            stored = operand.argument < 0
            of, key = (self._arrays, number) if stored else (arguments, operand.argument)
            operands.append(of[f"{'operand' if stored else 'argument'} {key}"].reshape(operand.type.shape))
        self._same = [digest(array) for array in operands] == [operand.digest for operand in row.operands]
        self._operands, self._row = tuple(operands), row
        return row


def _timed(loaded: Sequence[launching.Loaded], turns: int) -> float:
    """Seconds of a call of each program: of several that are waited for together, after as many others."""
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(turns):
            for each in loaded:
                each.enqueue()
        for each in loaded:
            each.card.wait()
    return (time.perf_counter() - start) / turns


def tell(record: Record) -> None:
    """Answers, with strict JSON."""
    print(json.dumps(record, allow_nan=False), flush=True)


def _timeline(rings: Array, stamps: Stamps) -> list[str]:
    """The table of a recorded call."""
    words = rings.view(np.uint64)
    return table.lines(read(0, words, stamps.rows, stamps.level, begin_of(words)))


def _checked(results: list[Array], row: Row, program: Packed, arrays: dict[str, Array], same: bool) -> Record:
    """`difference` is None where it is infinite, which JSON does not know."""
    count = len(row.results)
    gap = difference(results[:count], row.results, references(arrays, "result", count))
    known = float(gap) if np.isfinite(gap) else None
    return {"same_inputs": same, "difference": known, "ok": judged_right(known, same, program.limit)}


def main() -> int:
    end_with_parent()
    pack, folder = Pack(Path(sys.argv[1])), Path(sys.argv[2])
    try:
        with Card() as card, Card() as beside:
            return serve(Worker(card, beside, pack, folder))
    except (CudaError, OSError, ValueError, KeyError) as error:
        tell({"error": f"{type(error).__name__}: {error}"})
        return 1


def serve(worker: Worker) -> int:
    """Answers all items of standard input, until the driver fails."""
    for line in sys.stdin:
        start = time.monotonic()
        try:
            record = worker.do(*json.loads(line))
            json.dumps(record, allow_nan=False)
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}"[:1000]}
            worker.lost = isinstance(error, CudaError)
        tell({**record, "wall_seconds": round(time.monotonic() - start, 3)})
        if worker.lost:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
