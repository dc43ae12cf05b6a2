"""The programs of the table: the golden ones, the benchmark models at small sizes, a few stitched bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.primitives import translate
from jax_cocktail.utask.candidate import SINGLE, Candidate, way
from jax_cocktail.utask.ir import UProgram
from jax_cocktail_tools.models import MODELS, RECURSIVE
from tests.golden.programs import DIVIDED, PROGRAMS
from tests.null.programs import arguments

TRIPS, SHAPE = 5, (64, 256)  # of the stitched bodies
Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Called:
    """A translated program and the values that it is called with."""

    program: UProgram
    values: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table. `make`: its programs, one for each custom call; `divided`: how several units share
    them."""

    make: Callable[[], tuple[Called, ...]]
    divided: Candidate = way(units=2, distribute=True)

    def candidate(self, units: int) -> Candidate:
        return SINGLE if units == 1 else self.divided


def regions(function: Callable[..., Any], values: Sequence[Any]) -> tuple[Called, ...]:
    """The custom calls of a function. What stock XLA computes for them is computed here."""
    closed = jax.make_jaxpr(function)(*values)
    captured = capture(closed)
    wanted = dict.fromkeys(operand for region in captured.regions for operand in region.operands)
    flat = captured.flat
    jaxpr = flat.template.replace(
        constvars=list(flat.constvars), eqns=list(flat.equations), outvars=list(wanted)
    )
    found = jax.jit(jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, list(flat.consts))))(*jax.tree.leaves(values))
    known = dict(zip(wanted, map(np.asarray, found), strict=True))
    return tuple(
        Called(
            translate(region.program, f"region{number}", ()),
            tuple(known[operand] for operand in region.operands),
        )
        for number, region in enumerate(captured.regions)
    )


def _layer_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5)


def _sinkhorn(x: jax.Array) -> jax.Array:
    x = x / x.sum(1, keepdims=True)
    return x / x.sum(0, keepdims=True)


BODIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softmax_rows": lambda x: jax.nn.softmax(x, axis=1),
    "layer_norm": _layer_norm,
    "minus_mean": lambda x: x - x.mean(),
    "column_mean": lambda x: x - x.mean(0),
    "sinkhorn": _sinkhorn,
}


def _repeated(step: Callable[[jax.Array], jax.Array]) -> tuple[Called, ...]:
    x = np.random.default_rng(1).random(SHAPE, np.float32) + 0.5
    return regions(lambda x: jax.lax.fori_loop(0, TRIPS, lambda _, x: step(x), jnp.asarray(x)), (x,))


def _golden(make: Callable[[], UProgram]) -> tuple[Called, ...]:
    program = make()
    return (Called(program, tuple(arguments(program))),)


def _model(name: str) -> tuple[Called, ...]:
    function, values = (MODELS | RECURSIVE)[name].make(1, small=True)
    return regions(function, values)


CASES: dict[str, Case] = {
    **{name: Case(partial(_golden, make)) for name, make in PROGRAMS.items()},
    **{
        name: Case(partial(_golden, each.program), each.candidate)
        for name, each in DIVIDED.items()
        if not each.on_gpu
    },
    **{name: Case(partial(_repeated, step)) for name, step in BODIES.items()},
    **{f"model_{name}": Case(partial(_model, name)) for name in MODELS | RECURSIVE},
}
