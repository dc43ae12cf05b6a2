"""Makes a pack on a machine without a card: see `packed`. Binaries come from the cache of programs, rows of
the same source tree from the pack itself, so a run that was interrupted goes on where it ended."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from benchmarks.gpu import bundle, clock, latency, litmus, packed, versions
from benchmarks.gpu.kernels import spec_of
from benchmarks.gpu.results import newest, write
from benchmarks.gpu.roofline import predict, predict_stock
from benchmarks.gpu.rows import OF_STOCK, ROWS, TF32_TOLERANCE, Row, widened
from jax_cocktail.build.device import device_toolchain
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import STAGES
from jax_cocktail.compiler import Artifact, Emitted, build, emit
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import Prepared, prepare
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.exchange import anything_crosses
from jax_cocktail.utask.ir import by_threads, operators_in, walk

MOST_PLANS = 3  # of a row
WORTH = 20.0  # a plan that takes so many times the best one's seconds, by the model, is not packed

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def measured_spec(card: str) -> DeviceSpec:
    """A card with the figures that its latest results file has."""
    files = newest()
    if card not in files:
        raise SystemExit(f"no results of {card}; there are some of {', '.join(files)}")
    return spec_of(json.loads(files[card].read_text(encoding="utf-8")))


# ---- what a program computes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Values:
    """Operands of the region of a row, and the results of stock XLA on the host."""

    operands: tuple[packed.Array, ...]
    results: tuple[packed.Array, ...]


def _evaluated(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Values:
    captured = capture(jax.make_jaxpr(function)(*arguments), "cuda")
    (region,) = captured.regions
    flat = replace(captured.flat, outvars=(*region.operands, *region.results))
    run = jax.jit(jex.jaxpr_as_fun(flat.close(flat.equations)))
    values = tuple(np.asarray(value) for value in run(*jax.tree.leaves(arguments)))
    count = len(region.operands)
    return _Values(values[:count], values[count:])


def _values(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[_Values, _Values]:
    """In float32 and in float64."""
    with jax.default_matmul_precision("highest"):
        narrow = _evaluated(function, arguments)
        with jax.enable_x64(True):
            wide = _evaluated(function, jax.tree.map(widened, arguments))
    shapes = [[value.shape for value in values.results] for values in (narrow, wide)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"in float64 the program gives {shapes[1]}, not {shapes[0]}")
    return narrow, wide


def _type(array: packed.Array) -> packed.Type:
    return packed.Type(array.dtype.name, array.shape)


def _reference(exact: packed.Array, dtype: Any, strays: float) -> tuple[packed.Result, packed.Array]:
    """A result as it is described, and the elements of its float64 reference that are stored."""
    finite = np.abs(exact[np.isfinite(exact)].astype(np.float64))
    stride = 2 * (exact.size // (2 * packed.MOST_CHECKED)) + 1  # odd: it meets every column
    kind = packed.Type(np.dtype(dtype).name, exact.shape)
    result = packed.Result(kind, stride, float(finite.max(initial=0.0)), strays)
    return result, exact.reshape(-1)[::stride].astype(dtype)


@dataclass(frozen=True, slots=True)
class _Described:
    """Of a row: operands, results, the arrays to store, and how far stock XLA on the host is from float64."""

    operands: tuple[packed.Operand, ...]
    results: tuple[packed.Result, ...]
    arrays: dict[str, packed.Array]
    stock: float


def _described(function: Callable[..., Any], arguments: tuple[Any, ...], strays: float) -> _Described:
    narrow, wide = _values(function, arguments)
    known: dict[str, int] = {}
    for number, leaf in enumerate(jax.tree.leaves(arguments)):
        known.setdefault(packed.digest(np.asarray(leaf)), number)
    arrays, operands, results, worst = {}, [], [], 0.0
    for number, value in enumerate(narrow.operands):
        digest = packed.digest(value)
        operands.append(packed.Operand(_type(value), known.get(digest, -1), digest))
        if digest not in known:
            arrays[f"operand {number}"] = value
    for number, (value, exact) in enumerate(zip(narrow.results, wide.results, strict=True)):
        result, arrays[f"result {number}"] = _reference(exact, value.dtype, strays)
        results.append(result)
        if np.issubdtype(value.dtype, np.floating) and result.scale:
            gap = np.abs(packed.without_strays(value, exact, strays) - exact)
            worst = max(worst, float(np.max(gap, where=np.isfinite(gap), initial=0.0)) / result.scale)
    return _Described(tuple(operands), tuple(results), arrays, worst)


def _answers(
    function: Callable[..., Any], arguments: tuple[Any, ...], strays: float
) -> tuple[tuple[packed.Result, ...], dict[str, packed.Array]]:
    """The results of the whole row in float64."""
    narrow = jax.tree.leaves(jax.eval_shape(function, *arguments))
    with jax.enable_x64(True):
        wide = jax.tree.leaves(jax.jit(function)(*jax.tree.map(widened, arguments)))
    found = [_reference(np.asarray(w), n.dtype, strays) for w, n in zip(wide, narrow, strict=True)]
    return tuple(result for result, _ in found), {f"answer {k}": array for k, (_, array) in enumerate(found)}


# ---- programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Planned:
    """A program to pack. `name`: of its plan; `stock`: seconds of stock XLA by the model."""

    phase: str
    name: str
    emitted: Emitted
    stock: float


def _plans(
    row: Row, program: Program, spec: DeviceSpec, most_trips: int | None = None
) -> Iterator[_Planned]:
    """The best plan, it with a timeline or with exact products, and others. `most_trips`: of loops whose trip
    count depends on data, if it is known."""
    function, arguments = program
    for precision in (None, "highest"):

        def fresh(*given: Any) -> Any:  # what is traced depends on the precision
            return function(*given)

        with jax.default_matmul_precision(precision):
            prepared = prepare(jax.make_jaxpr(fresh)(*arguments), row.name, machine_of(spec))
        found = survey(prepared, spec.units)
        ranked = sorted(zip(found.seconds, found.plans, strict=True), key=lambda pair: pair[0])
        whole = [(seconds, plan.candidate) for seconds, plan in ranked if not plan.skip]
        translated, best = prepared.programs[0], whole[0][1]
        stock = predict_stock(translated, spec, most_trips)
        if precision:
            yield _Planned("exact", best.name, prepared.emitted[best, 0], stock)
            continue
        for candidate in _worth(row, prepared, whole):
            phase = "best" if candidate == best else "other"
            yield _Planned(phase, candidate.name, prepared.emitted[candidate, 0], stock)
        traced = emit(translated, prepared.machine, candidate=best, trace=STAGES)
        yield _Planned("traced", best.name, traced, stock)


def _worth(row: Row, prepared: Prepared, whole: Sequence[tuple[float, Candidate]]) -> Iterator[Candidate]:
    """The candidates of a row that are packed, of all of them with their seconds, the best first. Of a batch
    of loops, the best one of each way is packed whatever it takes: the model may be wrong."""
    missing = {packed.BY_THREADS, packed.TOGETHER} if row.ensemble else set[str]()
    for rank, (seconds, candidate) in enumerate(whole):
        way = way_of(row, prepared.emitted[candidate, 0])
        if way in missing or (rank < MOST_PLANS and seconds <= WORTH * whole[0][0]):
            missing.discard(way)
            yield candidate


def way_of(row: Row, emitted: Emitted) -> str:
    """The way in which a program runs a batch of loops; "" for other rows."""
    if row.ensemble is None:
        return ""
    return packed.BY_THREADS if any(map(by_threads, walk(emitted.program.entry))) else packed.TOGETHER


def crossing_of(emitted: Emitted) -> str:
    """The way in which the blocks of a program wait for each other; "" if they do not."""
    operators = tuple(operators_in(emitted.program.entry))
    if not anything_crosses(operators):
        return ""
    exchanges = any(operator.kind == "exchange" for operator in operators)
    return "cluster" if emitted.plan.cluster else "exchange" if exchanges else "barrier"


def _packed(
    row: Row, plan: _Planned, artifact: Artifact, stock: float, spec: DeviceSpec, trips: Mapping[str, int]
) -> packed.Packed:
    """`stock`: the difference of stock XLA to float64; `trips`: of unknown loops, by way."""
    assert artifact.launch is not None
    exact = plan.phase == "exact" or row.ensemble is not None  # which has no products
    tolerance = row.tolerance if exact else max(row.tolerance, TF32_TOLERANCE)
    way = way_of(row, artifact.emitted)
    return packed.Packed(
        plan.phase,
        plan.name,
        artifact.digest,
        crossing_of(artifact.emitted),
        artifact.launch.attribute,
        artifact.aliases,
        max(tolerance, OF_STOCK * stock),
        predict(artifact.emitted, spec, trips.get(way)).seconds,
        plan.stock,
        way,
    )


def _built(row: Row, plan: _Planned) -> Artifact | None:
    """The program; None if it cannot be built and is not the best one."""
    try:
        return build(plan.emitted)
    except BuildError as error:
        if plan.phase == "best":
            raise
        print(f"{row.name}, {plan.name}, {plan.phase}: {error}", flush=True)
        return None


def _add(pack: packed.Pack, row: Row, code: str, spec: DeviceSpec, small: bool) -> None:
    function, arguments = row.make(small)
    described = _described(function, arguments, row.strays)
    asked = row.name in packed.ANSWERED
    answers, references = _answers(function, arguments, row.strays) if asked else ((), {})
    trips = row.ensemble.trips_by_way(small, spec.warp) if row.ensemble else {}
    plans = list(_plans(row, (function, arguments), spec, trips.get(packed.TOGETHER)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        artifacts = list(pool.map(lambda plan: _built(row, plan), plans))
    programs: dict[str, packed.Packed] = {}
    for plan, artifact in zip(plans, artifacts, strict=True):
        if artifact is None:
            continue
        new = _packed(row, plan, artifact, described.stock, spec, trips)
        old = programs.setdefault(new.digest, new)  # without large products the exact program is the best one
        programs[new.digest] = replace(old, limit=min(old.limit, new.limit))
        if (table := artifact.emitted.stamps) is not None:
            pack.add_stamps(new.digest, packed.Stamps(table.shape, table.level, table.rows))
    found = packed.Row(
        row.name, code, answers, described.operands, described.results, tuple(programs.values())
    )
    binaries = ((a.digest, a.binary) for a in artifacts if a is not None)
    pack.add(found, described.arrays | references, binaries)


def _measures(pack: packed.Pack, arch: str) -> dict[str, str]:
    """Adds what measures the card; the digests by name."""
    found = {}
    for name, module in zip(packed.MEASURES, (gpu_micro, litmus, latency, clock), strict=True):
        binary = module.program(arch)
        found[name] = hashlib.sha256(binary).hexdigest()
        pack.add_binary(found[name], binary)
    return found


def make(folder: Path, spec: DeviceSpec, only: Sequence[str] = (), small: bool = False) -> int:
    """Makes or completes a pack, and says on the way what it does; 1 if something is missing in it."""
    wanted = tuple(only or packed.ORDER)
    if unknown := set(wanted) - set(packed.ORDER):
        raise SystemExit(f"no row {', '.join(sorted(unknown))}; there are {', '.join(packed.ORDER)}")
    folder.mkdir(parents=True, exist_ok=True)
    pack, missing = packed.Pack(folder), 0
    facts = {"arch": spec.arch, "small": small, "spec": asdict(spec), "bundle": ""}
    facts |= {"compiler": str(device_toolchain(spec.arch)), "versions": versions.found()["packages"]}
    facts |= {"sources": packed.source_digest()}
    code = facts["code"] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    facts |= _measures(pack, spec.arch)
    write(folder / "pack.json", facts)
    for name in wanted:
        if pack.has(name):
            print(f"{name}: is there", flush=True)
        else:
            missing += not _said(name, lambda name=name: _add(pack, ROWS[name], code, spec, small))
    timed = [row.name for row in pack.rows() if row.name in packed.TIMED]
    missing += not _said(
        packed.BUNDLE,
        lambda: facts.update(bundle=bundle.make(folder / packed.BUNDLE, timed, spec, small)),
    )
    write(folder / "pack.json", facts)
    size = pack.size()
    print(f"{folder}: {len(pack.rows())} rows, {size / 2**20:.1f} MiB")
    if size > packed.MOST_BYTES:
        print(f"this is more than the {packed.MOST_BYTES >> 20} MiB that travel with a working tree")
    return int(missing > 0 or size > packed.MOST_BYTES)


def _said(name: str, work: Callable[[], None]) -> bool:
    """True if the work is done; else the reason is said, and the pack lacks something."""
    start = time.monotonic()
    try:
        work()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    return True
