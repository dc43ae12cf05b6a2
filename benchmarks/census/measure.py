"""Measures one pattern: stock XLA and jax_cocktail, in turn in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

import jax_cocktail
from benchmarks.census import accuracy
from benchmarks.census.patterns import Function, Pattern, in_loop
from benchmarks.gpu import peer
from benchmarks.gpu.peers import NoPeer
from benchmarks.traffic.count import count
from jax_cocktail.cost.hlo import Module
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.processor import cores
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import Prepared, prepare
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail_tools.models.measure import interleaved_samples

TRIPS = 3  # of the loop around a pattern
FORMS = ("straight", "loop")
OPTIONS = {"scope": "memory_bound", "force": "cocktail", "profile": "off", "strict": True}
_OURS = 'custom_call_target="jax_cocktail'
MOST_CALLS = 100_000
_SEEN = ("operand", "result", "workspace")  # memories that are not those of one unit


@dataclass(frozen=True, slots=True)
class Side:
    """One compiler's figures.

    Attributes:
      kernels: that one call runs: fusions, reductions, custom calls, copies.
      traffic: bytes moved, over those of inputs and outputs; None if not counted.
      seconds, median: the fastest call and the median one; None on a machine that is not here.
      first: seconds of the first call, compilation included.
      far: bytes that move in and out of simulated caches of the cores, over the same; None if not counted.
    """

    kernels: float
    traffic: float | None
    seconds: float | None = None
    median: float | None = None
    first: float | None = None
    far: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One pattern in one form. `h200`: stock XLA for that card; `predicted`: the speedup that the cost model
    says; `problem`: why there is no side of ours, or that its results differ."""

    pattern: str
    form: str
    stock: Side
    ours: Side | None
    h200: Side | None = None
    predicted: float | None = None
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """The speedup: stock XLA's fastest call over ours."""
        both = self.stock.seconds, self.ours and self.ours.seconds
        return both[0] / both[1] if both[0] and both[1] else None


def measure(
    pattern: Pattern, form: str, seconds: float, units: int = 0, small: bool = False, traffic: bool = True
) -> Row:
    """Compiles, compares, counts and times. `seconds`: how long the calls of both are timed; `units`: of our
    program, 0 for one per core; `traffic`: our bytes are counted too, by a slow run."""
    trips = TRIPS if form == "loop" else 1
    function = in_loop(pattern.function, TRIPS) if form == "loop" else pattern.function
    operands = pattern.operands(small)
    custom_call.register()
    stock, results, stock_first = _first(jax.jit(function), operands)
    moved = trips * sum(leaf.nbytes for leaf in jax.tree.leaves((operands, results)))
    exact = accuracy.reference(function, operands)
    card = _on_h200(function, operands, moved)
    theirs = Module(stock.as_text()).cost
    try:
        ours, found, first = _first(jax_cocktail.jit(function, options={**OPTIONS, "units": units}), operands)
    except Exception as error:  # what a table of patterns is for
        side = Side(theirs.kernels, theirs.bytes / moved, first=stock_first)
        return Row(pattern.name, form, side, None, card, problem=f"FAILS: {str(error).splitlines()[0]}")
    text = ours.as_text()
    problem = "" if _OURS in text else "NOT TAKEN"
    errors = accuracy.error(found, exact), accuracy.error(results, exact)
    if errors[0].exceeds(errors[1]):
        problem = f"DIFFERS by {errors[0]}; stock XLA by {errors[1]}"
    (near, far), predicted = _counted(function, operands, text, units, traffic)
    there = jax.device_put(operands)  # arrays of NumPy would be copied in every call
    runs = [lambda: stock(*there), lambda: ours(*there)]
    timed = interleaved_samples(runs, seconds=seconds, most=MOST_CALLS)
    times = tuple(zip(timed.fastest, timed.medians, strict=True))
    mine = Module(text).cost.kernels
    return Row(
        pattern.name,
        form,
        Side(theirs.kernels, theirs.bytes / moved, *times[0], stock_first),
        Side(mine, near and near / moved, *times[1], first, far and far / moved),
        card,
        predicted,
        problem,
    )


def _first(jitted: Any, operands: Sequence[Any]) -> tuple[Any, Any, float]:
    """The executable, the results of its first call, and the seconds that both took."""
    begin = time.perf_counter()
    compiled = jitted.lower(*operands).compile()
    results = jax.block_until_ready(compiled(*operands))
    return compiled, results, time.perf_counter() - begin


def _on_h200(function: Function, operands: Any, moved: float) -> Side | None:
    try:
        cost = Module(peer.compile_for(H200, function, operands)).cost
    except NoPeer:
        return None
    return Side(cost.kernels, cost.bytes / moved)


def _counted(
    function: Function, operands: Any, text: str, units: int, traffic: bool
) -> tuple[tuple[float, float] | tuple[None, None], float | None]:
    """The bytes that our custom calls and the kernels beside them move, those of them that leave the caches,
    and the speedup that the cost model predicts. Memory that only one unit sees does not count: it is as
    large as a cache."""
    closed = jax.make_jaxpr(function)(*operands)
    units = units or custom_call.units() or cores()
    prepared = prepare(closed, "census", memory_bound=True)
    if not prepared.programs:
        return (None, None), None
    found = survey(prepared, units)
    predicted = found.comparison.stock.seconds / found.comparison.ours.seconds
    if not traffic:
        return (None, None), predicted
    plan = prepared.forced(found.best)
    values = dict(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    beside = Module("\n".join(line for line in text.splitlines() if _OURS not in line)).cost.bytes
    near = far = beside
    for number in prepared.taken(plan):
        emitted = prepared.emitted[plan.candidate, number]
        totals = count(emitted, _operands(prepared, number, values), emitted.mesh.units)
        near += totals.total(*_SEEN).bytes
        far += totals.far.total(*_SEEN).bytes
    return (near, far), predicted


def _operands(prepared: Prepared, number: int, values: dict[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The operands of a custom call; zeros for what another kernel computes."""
    flat = prepared.captured.flat
    values = values | dict(zip(flat.constvars, flat.consts, strict=True))
    types = [value.type for value in prepared.programs[number].entry.parameters]
    pairs = zip(prepared.captured.regions[number].operands, types, strict=True)
    return [
        np.asarray(values[var]) if var in values else np.zeros(kind.shape, numpy_dtype(kind.dtype))
        for var, kind in pairs
        if not isinstance(var, jex.Literal)
    ]
