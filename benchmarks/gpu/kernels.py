"""The kernels that a record of measured times belongs to, as the cost model sees them, in a file beside it.

Planner and templates change; what was measured does not. So the kernels are kept: the trees of `cost.kernel`,
the generation of the templates, and how often loops of unknown trip count ran.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.packed import BY_THREADS, TOGETHER
from jax_cocktail.cost.kernel import Branch, Each, Kernel, Node, Nodes, Parts, Repeat, Sync, Work
from jax_cocktail.device.cards import card_like
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.templates import GENERATIONS, TEMPLATES, Templates
from jax_cocktail.device.tuning import BLOCK, MODEL
from jax_cocktail.plain import from_plain

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kernels:
    """`trips`: by row, or by row and plan where plans differ in them, with a comma between; `plans`: the
    kernels by row and plan, one for each region that we compile."""

    generation: str
    trips: Mapping[str, int]
    plans: Mapping[str, Mapping[str, tuple[Kernel, ...]]]

    @property
    def templates(self) -> Templates:
        return GENERATIONS[self.generation]

    def trips_of(self, row: str, plan: str) -> int:
        """Trips of loops that stop by their data."""
        return self.trips.get(f"{row}, {plan}", self.trips.get(row, MODEL.unknown_trips))


def spec_of(record: Record) -> DeviceSpec:
    """The measured card; what an older record does not have is that of the table."""
    sections = record["sections"]
    card, spec = sections["versions"]["all"]["card"], sections["measure"]["card"]["spec"]
    names = {field.name for field in fields(DeviceSpec)}
    clock = {"clock_rate": 1e3 * card["attributes"]["clock_khz"]}
    known = {name: value for name, value in spec.items() if name in names}
    return replace(card_like(spec["name"], spec["arch"]), **{**clock, **known})


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one plan, without its launch. `alone`: kernels, not a call with the host's share."""

    row: str
    plan: str
    seconds: float
    alone: bool


def measured(record: Record) -> Iterator[Measured]:
    """Everything of ours that was timed: kernels in graphs; else kernels between events, less what an empty
    launch takes there; and calls of plans that only `jit` timed."""
    sections = record["sections"]
    card = sections["measure"]["card"]
    host = card["figures"].get("empty launch between events", {}).get("seconds", 0.0)
    for row in dict.fromkeys((*sections.get("kernels", {}), *sections.get("times", {}))):
        known = set()
        for plan, found in sections.get("kernels", {}).get(row, {}).items():
            if "seconds" in found and found["phase"] in ("best", "other"):
                known.add(plan)
                yield Measured(row, plan, found["seconds"] - card["spec"]["launch_seconds"], True)
        times = sections.get("times", {}).get(row, {})
        plan = sections.get("plan", {}).get(f"{row}@card", {}).get("plan", "")
        if "seconds" in times.get("kernel", {}) and plan not in known:
            known.add(plan)
            launch = card["spec"]["launch_seconds"] if "code" in times else host  # older: between events
            yield Measured(row, plan, times["kernel"]["seconds"] - launch, True)
        for name, seconds in sections.get("auto", {}).get(row, {}).get("trials", {}).items():
            if name not in known and not name.startswith("stock XLA"):
                yield Measured(row, name, seconds, False)


# ---- the file ----------------------------------------------------------------------------------------------


def path_of(record: Path) -> Path:
    """The file beside a record."""
    return record.with_name(record.name.replace("gpu_check_", "kernels_", 1))


def load(path: Path) -> Kernels:
    """Reads a file of `store`."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    plans = {
        row: {plan: tuple(map(_kernel, kernels)) for plan, kernels in plans.items()}
        for row, plans in facts["plans"].items()
    }
    return Kernels(facts["generation"], facts["trips"], plans)


def store(kernels: Kernels, path: Path) -> None:
    """Writes a line for each plan."""

    def plain(plans: Mapping[str, tuple[Kernel, ...]]) -> str:
        texts = ([_plain_kernel(k) for k in found] for found in plans.values())
        lines = (json.dumps(text, separators=(",", ":")) for text in texts)
        return ",\n".join(f"   {json.dumps(n)}: {line}" for n, line in zip(plans, lines, strict=True))

    rows = ",\n".join(
        f"  {json.dumps(row)}: {{\n{plain(plans)}\n  }}" for row, plans in kernels.plans.items()
    )
    generation, trips = json.dumps(kernels.generation), json.dumps(kernels.trips)
    text = f' "generation": {generation},\n "trips": {trips},\n "plans": {{\n{rows}\n }}'
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _plain_kernel(kernel: Kernel) -> list[Any]:
    size = () if kernel.threads == BLOCK.threads else (kernel.threads,)  # older records have no other
    return [_plain(kernel.nodes), kernel.units, kernel.read, kernel.shared, kernel.cluster, *size]


def _kernel(plain: list[Any]) -> Kernel:
    return Kernel(_nodes(plain[0]), *plain[1:])


def _plain(nodes: Nodes) -> list[Any]:
    return [_plain_node(node) for node in nodes]


def _plain_node(node: Node) -> list[Any]:
    if isinstance(node, Work):
        counts = {name: number for name, number in node.counts.items() if number}
        return ["work", counts, float(f"{node.seconds:.4g}")]
    if isinstance(node, Sync):
        return ["crossing", node.words]
    if isinstance(node, Repeat):
        return ["repeat", _plain(node.body), node.trips, node.doubled]
    if isinstance(node, Parts):
        return ["parts", _plain(node.body), node.first, node.count]
    if isinstance(node, Each):
        return ["each", _plain(node.body), node.count, node.bytes]
    return ["choice", [_plain(side) for side in node.sides], node.stage]


_NESTS: Mapping[str, Callable[..., Node]] = {"repeat": Repeat, "parts": Parts, "each": Each}


def _nodes(plain: list[Any]) -> Nodes:
    return tuple(_node(kind, *values) for kind, *values in plain)


def _node(kind: str, first: Any, *others: Any) -> Node:
    if kind == "choice":
        return Branch(tuple(map(_nodes, first)), *others)
    if kind in _NESTS:
        return _NESTS[kind](_nodes(first), *others)
    return Sync(first) if kind == "crossing" else Work(first, *others)


# ---- planning ----------------------------------------------------------------------------------------------


def planned(record: Record) -> Kernels:
    """The kernels of a record, planned by today's code: right while it plans what was measured."""
    import jax

    from benchmarks.gpu.rows import ROWS
    from jax_cocktail.codegen.machines import machine_of
    from jax_cocktail.cost.kernel import kernel_of
    from jax_cocktail.lowering.choice.survey import survey
    from jax_cocktail.lowering.choice.variants import prepare

    packed = record["sections"]["versions"]["all"].get("spec")  # that of the pack
    spec = from_plain(DeviceSpec, packed, "a device") if packed else spec_of(record)
    wanted: dict[str, list[str]] = {}
    for each in measured(record):
        wanted.setdefault(each.row, []).append(each.plan)
    trips, plans = {}, {}
    for row, names in wanted.items():
        function, arguments = ROWS[row].make(False)
        closed = jax.make_jaxpr(function)(*arguments)
        prepared = prepare(closed, row, machine_of(spec))
        survey(prepared, spec.units, thorough=True)
        plans[row] = {
            candidate.name: tuple(
                kernel_of(each.program, each.mesh.units, spec, each.plan, each.target.threads)
                for (other, _), each in sorted(prepared.emitted.items(), key=lambda item: item[0][1])
                if other == candidate
            )
            for candidate, _ in prepared.emitted
            if candidate.name in names
        }
        if (ensemble := ROWS[row].ensemble) is not None:
            by_way = ensemble.trips_by_way(False, spec.warp)
            trips |= {f"{row}, {name}": by_way[_way(k)] for name, k in plans[row].items() if by_way}
            continue
        # A loop that stops by its data counts its trips, and the row returns the number.
        results = jax.tree.leaves(jax.jit(function)(*arguments))
        counted = next((int(r) for r in results if r.ndim == 0 and r.dtype.kind == "i"), None)
        if counted is not None:
            trips[row] = counted
    generation = next(name for name, each in GENERATIONS.items() if each == TEMPLATES)
    return Kernels(generation, trips, plans)


def _way(kernels: tuple[Kernel, ...]) -> str:
    """The way in which a plan runs a batch of loops."""
    return BY_THREADS if any(isinstance(node, Each) for k in kernels for node in k.nodes) else TOGETHER
