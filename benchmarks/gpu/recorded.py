"""Our calls as a run of `jax_cocktail.jit` makes them, and the time of their kernels without XLA."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.gpu.roofline import predict
from jax_cocktail.compiler import Artifact
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering import variants
from jax_cocktail.runtime.cuda.card import Card, CudaError, Launch
from jax_cocktail.utask.plan import LaunchPlan


@dataclass(frozen=True, slots=True)
class Call:
    """One launch. `operands`: on the host; `results`: shapes and dtypes, the workspace left out; `aliases`:
    operand -> result that shares its memory."""

    binary: bytes
    plan: LaunchPlan
    operands: tuple[np.ndarray, ...]
    results: tuple[Any, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the binary."""
        return hashlib.sha256(self.binary).hexdigest()


@dataclass
class Recording:
    """What was built, by digest of the binary, and what was launched, in order."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def limit_seconds(self, spec: DeviceSpec) -> float:
        """The limit of all calls together (see `benchmarks.gpu.roofline`)."""
        return sum(predict(self.artifacts[call.digest].emitted, spec).limit_seconds for call in self.calls)

    def predicted_seconds(self, spec: DeviceSpec) -> float:
        """What the model says that all calls together take, launches included."""
        return sum(predict(self.artifacts[call.digest].emitted, spec).seconds for call in self.calls)


@contextmanager
def recording(prelude: str = "", operands: bool = True) -> Iterator[Recording]:
    """Writes down what is compiled and run inside; functions must be new to this process.

    prelude: text before every program. operands: copy those of every call to the host.
    """
    found = Recording()
    build, ffi_call = variants.build, jax.ffi.ffi_call

    def built(emitted: Any, *arguments: Any, **how: Any) -> Artifact:
        if prelude:
            emitted = replace(emitted, source=prelude + emitted.source)
        artifact = build(emitted, *arguments, **how)
        found.artifacts[artifact.digest] = artifact
        return artifact

    def called(target: str, shapes: Any, **how: Any) -> Callable[..., Any]:
        inner = ffi_call(target, shapes, **how)

        def bound(*values: Any, **attributes: Any) -> Any:
            def copied(*given: Any) -> Any:
                found.calls.append(_call(given, shapes, attributes, how.get("input_output_aliases") or {}))
                return list(map(np.asarray, given))

            types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
            if operands and "sync" in attributes:  # a call of ours on a GPU
                values = tuple(jax.pure_callback(copied, types, *values))
            return inner(*values, **attributes)

        return bound

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(variants, "build", built))
        patches.enter_context(mock.patch.object(jax.ffi, "ffi_call", called))
        yield found


def _call(
    values: Sequence[Any], shapes: Sequence[Any], attributes: Mapping[str, Any], aliases: Mapping[int, int]
) -> Call:
    plan = LaunchPlan.from_attribute([int(x) for x in attributes["launch"]])
    results = tuple(shapes[:-1] if plan.workspace_bytes else shapes)
    binary = np.asarray(attributes["binary"], np.uint8).tobytes()
    return Call(binary, plan, tuple(np.array(v, order="C") for v in values), results, dict(aliases))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Median seconds between events around a launch; which kernel of the program, and on how many blocks."""

    seconds: float
    kernel: str
    grid: int


def kernel_time(card: Card, call: Call, times: int = 9) -> KernelTime:
    """Launches the program of a call as the handler would, several times. Raises CudaError."""
    plan = call.plan
    module = card.load(call.binary)
    kernel, function, grid, shared, cluster = _choose(card, module, plan)
    kept = [card.upload(operand) for operand in call.operands]
    given = [
        card.allocate(operand.nbytes) if k in call.aliases else kept[k]
        for k, operand in enumerate(call.operands)
    ]
    shared_with = {result: given[operand] for operand, result in call.aliases.items()}
    sizes = [int(np.prod(r.shape)) * np.dtype(r.dtype).itemsize for r in call.results]
    results = [shared_with.get(k) or card.allocate(size) for k, size in enumerate(sizes)]
    workspace = card.allocate(plan.workspace_bytes)
    cooperative = plan.cooperative and grid > 1 and cluster == 1
    pointers = (*given, *results, workspace, 0)
    launch = Launch(function, grid, plan.threads, shared, pointers, cooperative=cooperative, cluster=cluster)

    def before() -> None:
        for k in call.aliases:
            card.copy(given[k], kept[k], call.operands[k].nbytes)
        if plan.header_bytes and cluster == 1:
            card.fill(workspace, 0, plan.header_bytes)

    card.seconds(launch, before, times=2)  # loads the code, warms caches
    return KernelTime(card.seconds(launch, before, times), kernel, grid)


def _choose(card: Card, module: int, plan: LaunchPlan) -> tuple[str, int, int, int, int]:
    """Name, kernel, grid, shared memory and blocks of a cluster: by what fits, as `handler_programs.h`
    chooses on a card that is all there."""
    kernels = (
        ("ck_resident", plan.resident_shared_bytes, plan.resident_units or plan.most_units, plan.most_units),
        ("ck_portable", plan.portable_shared_bytes, 1, plan.portable_units or plan.most_units),
    )
    for name, shared, least, most in kernels:
        near = plan.cluster and name == "ck_resident"
        if shared > card.facts.attributes["shared_bytes"] or (near and card.facts.attributes["major"] < 9):
            continue
        function = card.function(module, name, shared)
        fit = card.co_resident(function, plan.threads, shared)
        if not plan.cooperative and fit:
            fit = plan.most_units
        if fit >= least:
            return name, function, min(fit, most), shared, min(fit, most) if near else 1
    raise CudaError(f"no block of {plan.threads} threads fits this card")
