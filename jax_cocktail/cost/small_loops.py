"""Loops that stock XLA compiles to one kernel on a CPU: those that touch little in an iteration.

XLA (its pass that hoists small while loops) adds up the operands and results of all fusions of a condition
and a body. Below a limit the loop becomes one function, unless something in it calls a library.
"""

from __future__ import annotations

from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, walk
from jax_cocktail.utask.operators import LEAVES, PARTIAL, PRODUCTS, UPDATES, VIEWS
from jax_cocktail.utask.types import Value

_LIBRARIES = frozenset({"cholesky", "lu", "qr", "ormqr", "triangular_solve", "eigh", "svd"})
_CALLED = PRODUCTS | _LIBRARIES | {"scatter"}  # what XLA does not put into such a function
_COUNTER = 21  # bytes: a counter is read and written, and compared with a limit
_INLINE = VIEWS | {"broadcast", "select"}  # a fusion takes them in, as it does element-wise operators


def is_one_kernel(loop: LoopUTask, limit: int) -> bool:
    """True if stock XLA on a CPU runs the loop as one kernel. `limit`: bytes of an iteration."""
    if loop.parallel or any(isinstance(s, UOperator) and s.kind in _CALLED for s in walk(loop)):
        return False
    return _accessed((loop,)) < limit


def _accessed(statements: tuple[Statement, ...]) -> float:
    """Bytes that the loops among the statements, and those inside, read and write in one iteration."""
    loops = [s for s in statements if isinstance(s, LoopUTask)]
    return float(sum(_region(region) for loop in loops for region in loop.regions) + _COUNTER * len(loops))


def _region(region: Region) -> float:
    """Bytes of the fusions of a region: each computes a result, or what is not element-wise."""
    read: dict[Value, frozenset[Value]] = {}  # what a fusion that computes a value reads
    moved = _accessed(region.body)
    for statement in region.body:
        if not isinstance(statement, UOperator):
            moved += sum(map(_region, statement.regions)) if not isinstance(statement, LoopUTask) else 0
            continue
        reads = frozenset[Value]().union(*(read.get(v, frozenset((v,))) for v in statement.inputs))
        if statement.kind in LEAVES:
            reads = frozenset()
        elif statement.kind in UPDATES:  # only what is written counts
            moved += 2 * statement.inputs[statement.facts.updates].type.nbytes
            reads = frozenset(statement.outputs)
        elif statement.kind in PARTIAL:  # only what is read counts
            reads = frozenset(statement.outputs)
        elif not (statement.is_element or statement.kind in _INLINE):
            moved += sum(v.type.nbytes for v in (*reads, *statement.outputs))
            reads = frozenset(statement.outputs)
        read.update((v, reads) for v in statement.outputs)
    for result in region.results:
        found = read.get(result, frozenset())
        if result not in found:
            moved += result.type.nbytes + sum(v.type.nbytes for v in found)
    return float(moved)
