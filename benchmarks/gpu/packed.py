"""A pack: what a machine with a card needs to check and time programs that were compiled elsewhere.

A folder with a description (`pack.json`), binaries by digest, and for each row a description and arrays. It
is read without jax. Arguments of rows are not in it: they are made again from their seeds.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jax_cocktail
from benchmarks.gpu.results import write
from jax_cocktail.codegen.stamps import Stamp
from jax_cocktail.utask.types import Source

ROOT = Path(__file__).resolve().parents[2]
# The rows that count most, batches of loops, and the others.
MAIN = (
    *("lstm/1", "lstm/64", "nasrnn/1", "nasrnn/64", "seq2seq/1", "seq2seq/64", "attention/1", "attention/64"),
    "blockdrop/1",
)
ENSEMBLES = (
    *("collatz/10000", "collatz/1000000", "lorenz/100000", "price_paths/100000", "ray_marching/262144"),
    "metropolis/4096",
)
TIMED = (*MAIN, *ENSEMBLES)  # rows that jax times, too
ORDER = (
    *TIMED,
    *("lstm_gradient", "gru_gradient", "skipnet/1", "blockdrop/64", "rae/1", "rae_recursive/1"),
    *("fibonacci/1", "scalar_scan", "vmapped_while", "conjugate_gradient", "runge_kutta", "hidden_markov"),
)
# Rows that jax runs against float64, and those that it runs as it decides itself.
ANSWERED = ("lstm/64", "seq2seq/1", "blockdrop/1", "collatz/10000", "metropolis/4096")
AUTO = ("lstm/1", "nasrnn/64", "attention/1", "seq2seq/64", *ENSEMBLES)
TOGETHER, BY_THREADS = "together", "by threads"  # the ways of a batch of loops
PHASES = ("best", "exact", "other", "traced")  # in the order in which they run, each for all rows
MEASURES = ("micro", "litmus", "latency", "clock")  # programs of ours that measure the card
BUNDLE = "programs.bundle"  # what `jax_cocktail.load_bundle` reads: with it jax's part compiles nothing
SUFFIXES = (".py", ".h", ".cc", ".cu", ".cuh")  # of sources
MOST_BYTES = 64 << 20  # of a pack
MOST_CHECKED = 1 << 18  # elements of a result

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Type:
    """Of an array."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """`argument`: the argument of the row that it is; -1 if it is computed before the call, and stored as
    ``operand N``. `digest`: of its bytes."""

    type: Type
    argument: int
    digest: str


@dataclass(frozen=True, slots=True)
class Result:
    """The float64 reference is stored as ``result N``: every `stride`-th element. `scale`: the largest finite
    magnitude of all elements. `strays`: the share of them that may be far from the reference."""

    type: Type
    stride: int
    scale: float
    strays: float = 0.0


@dataclass(frozen=True, slots=True)
class Packed:
    """A program for a row.

    phase: "best", by the model; "exact": the best with exact products; "other": another candidate; "traced":
    the best, which records its timeline. plan: its name; crossing: how its blocks wait for each other, "" if
    they do not; limit: of the difference to float64; predicted_seconds: with the launch. way: of a batch of
    loops, `BY_THREADS` if a thread runs the loop of an element, else `TOGETHER`; "" of other rows.
    predicted_stock_seconds: of stock XLA's default. Where a batch of loops asks its data how often they run,
    the predictions know the answer.
    """

    phase: str
    plan: str
    digest: str
    crossing: str
    launch: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    limit: float
    predicted_seconds: float
    predicted_stock_seconds: float
    way: str = ""

    @property
    def label(self) -> str:
        """Its name among those of the row."""
        return f"{self.plan}, {self.phase}" if self.phase in ("exact", "traced") else self.plan


@dataclass(frozen=True, slots=True)
class Stamps:
    """`shape`: of the rings, which are one more result; `level`, `rows`: as in `StampTable`."""

    shape: tuple[int, ...]
    level: int
    rows: tuple[Stamp, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a pack. `code`: the digest of everything that it follows from; `answers`: what the whole row
    returns, stored as ``answer N``; empty where nobody asks."""

    name: str
    code: str
    answers: tuple[Result, ...]
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    programs: tuple[Packed, ...]

    @staticmethod
    def read(data: Mapping[str, Any]) -> Row:
        """From the JSON of `asdict`."""

        def kind(of: Mapping[str, Any]) -> Type:
            return Type(of["dtype"], tuple(of["shape"]))

        def program(of: Mapping[str, Any]) -> Packed:
            pairs = tuple((int(a), int(b)) for a, b in of["aliases"])
            return Packed(**{**of, "launch": tuple(of["launch"]), "aliases": pairs})

        def result(of: Mapping[str, Any]) -> Result:
            return Result(kind(of["type"]), of["stride"], of["scale"], of["strays"])

        return Row(
            data["name"],
            data["code"],
            tuple(map(result, data["answers"])),
            tuple(Operand(kind(x["type"]), x["argument"], x["digest"]) for x in data["operands"]),
            tuple(map(result, data["results"])),
            tuple(map(program, data["programs"])),
        )

    def best(self) -> Packed:
        """The best program by the model."""
        return next(program for program in self.programs if program.phase == "best")


@dataclass(frozen=True, slots=True)
class Pack:
    """A folder of that kind."""

    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        """`arch`, `compiler`, `spec`, `small`, `versions`; `sources`: their digest; `code`: that of all of
        these; those of `MEASURES`: digests of what measures the card; `bundle`: the digest of `BUNDLE`, "" if
        there is none."""
        found: dict[str, Any] = json.loads((self.folder / "pack.json").read_text())
        return found

    def rows(self) -> tuple[Row, ...]:
        """The rows that belong to the pack's facts, the most important first."""
        code = self.facts["code"]
        return tuple(Row.read(data) for name in ORDER if (data := self._data(name)).get("code") == code)

    def row(self, name: str) -> Row | None:
        """A row, or None."""
        data = self._data(name)
        return Row.read(data) if data else None

    def has(self, name: str) -> bool:
        """True if a row is there that belongs to the pack's facts. One of others may have other fields."""
        return bool(self._data(name).get("code") == self.facts["code"])

    def _data(self, name: str) -> dict[str, Any]:
        """The description of a row; nothing if it is not there."""
        path = self._path(name, ".json")
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays of a row by name."""
        with np.load(self._path(name, ".npz")) as file:
            return {key: file[key] for key in file.files}

    def binary(self, digest: str) -> bytes:
        """A program's code."""
        return zlib.decompress((self.folder / f"{digest}.bin").read_bytes())

    def digests(self) -> frozenset[str]:
        """Of all programs of rows."""
        return frozenset(program.digest for row in self.rows() for program in row.programs)

    def stamps(self, digest: str) -> Stamps:
        """Those of a traced program."""
        data = json.loads((self.folder / f"{digest}.stamps").read_text())
        rows = (Stamp(**{**row, "source": Source(**row["source"])}) for row in data["rows"])
        return Stamps(tuple(data["shape"]), data["level"], tuple(rows))

    def add_stamps(self, digest: str, stamps: Stamps) -> None:
        write(self.folder / f"{digest}.stamps", asdict(stamps))

    def add(self, row: Row, arrays: Mapping[str, Array], binaries: Iterable[tuple[str, bytes]]) -> None:
        """Adds a row, or replaces it. Its description comes last: without it there is no row."""
        for digest, binary in binaries:
            self.add_binary(digest, binary)
        with open(self._path(row.name, ".npz"), "wb") as file:
            np.savez_compressed(file, **dict(arrays))
        write(self._path(row.name, ".json"), asdict(row))

    def add_binary(self, digest: str, binary: bytes) -> None:
        (self.folder / f"{digest}.bin").write_bytes(zlib.compress(binary))

    def size(self) -> int:
        """Bytes of all files, after those that no row has were deleted."""
        used = self.digests() | {self.facts[name] for name in MEASURES}
        for path in (*self.folder.glob("*.bin"), *self.folder.glob("*.stamps")):
            if path.stem not in used:
                path.unlink()
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def load_bundle(self) -> str:
        """Gives this process the programs for jax. Returns the reason if they are compiled anew, or "". To be
        called before anything else of jax_cocktail is used."""
        try:
            jax_cocktail.load_bundle(self.folder / BUNDLE, trust=self.facts["bundle"])
        except (jax_cocktail.BundleError, OSError) as error:
            return str(error)
        return ""

    def _path(self, name: str, suffix: str) -> Path:
        return self.folder / (file_name(name) + suffix)


def source_digest() -> str:
    """Of everything that determines a row of a pack, and how it is measured."""
    found = hashlib.sha256()
    folders = ("jax_cocktail", "cuda_src", "gpu_src", "common_src", "benchmarks/gpu")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in sorted((*paths, ROOT / "benchmarks" / "gpu_check.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def digest(array: Array) -> str:
    """Of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def file_name(row: str) -> str:
    """The name of a row in a folder."""
    return row.replace("/", "-")


def difference(found: Sequence[Array], results: Sequence[Result], expected: Sequence[Array]) -> float:
    """The largest difference of a result to its reference, relative to the result's largest magnitude, so
    that zeros are never right by being small; infinite if integers differ or a NaN is on one side. Strays do
    not count."""
    worst = 0.0
    for array, result, reference in zip(found, results, expected, strict=True):
        sample = without_strays(array.reshape(-1)[:: result.stride], reference, result.strays)
        if not np.issubdtype(reference.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(sample, reference) else float("inf"))
        elif sample.size:
            with np.errstate(invalid="ignore"):
                same = (sample == reference) | (np.isnan(sample) & np.isnan(reference))
                gap = np.where(same, 0.0, np.abs(sample - reference.astype(np.float64)))
            worst = max(worst, float(np.nan_to_num(gap, nan=np.inf).max()) / (result.scale or 1.0))
    return worst


def without_strays(found: Array, expected: Array, share: float) -> Array:
    """The array with this share of its elements as they are expected, those that differ most."""
    if not (number := int(share * found.size)):
        return found
    with np.errstate(invalid="ignore"):
        gap = np.abs(found.astype(np.float64) - expected).reshape(-1)
    worst = np.argpartition(np.nan_to_num(gap, nan=np.inf), -number)[-number:]
    kept = found.copy()
    kept.reshape(-1)[worst] = expected.reshape(-1)[worst]
    return kept


def described(program: Packed) -> dict[str, Any]:
    """The part of a program's record that the pack knows."""
    names = ("phase", "digest", "crossing", "limit", "predicted_seconds", "predicted_stock_seconds", "way")
    return {name: getattr(program, name) for name in names}


def judged_right(gap: float | None, same_inputs: bool, limit: float) -> bool | None:
    """True if an answer is within its limit. None if this machine's numpy makes other inputs from the seeds
    than those of the reference: nobody knows then what is right. `gap`: None if it is infinite."""
    return (gap is not None and gap <= limit) if same_inputs else None


def references(arrays: Mapping[str, Array], kind: str, count: int) -> list[Array]:
    """The stored arrays of one kind, in order."""
    return [arrays[f"{kind} {number}"] for number in range(count)]
