"""Our calls, written down as a run of `jax_cocktail.jit` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.gpu.launching import Call
from benchmarks.gpu.roofline import predict
from jax_cocktail.compiler import Artifact
from jax_cocktail.config import FRESH, options
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice import variants
from jax_cocktail.utask.plan import LaunchPlan


@dataclass
class Recording:
    """What was built, by digest of the binary, and what was launched, in order."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

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
        patches.enter_context(options(plans=FRESH))  # what the plan cache has is not built
        yield found


def _call(
    values: Sequence[Any], shapes: Sequence[Any], attributes: Mapping[str, Any], aliases: Mapping[int, int]
) -> Call:
    plan = LaunchPlan.from_attribute([int(x) for x in attributes["launch"]])
    results = tuple(shapes[:-1] if plan.workspace_bytes else shapes)
    binary = np.asarray(attributes["binary"], np.uint8).tobytes()
    return Call(binary, plan, tuple(np.array(v, order="C") for v in values), results, dict(aliases))
