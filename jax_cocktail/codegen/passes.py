"""Passes over the kernel IR of lane loops: hoisting, batching, unrolling. All are functions of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.codegen.kernel import Call, Declaration, Load, Loop, Node, Store, length, names_in, nodes_in
from jax_cocktail.device.tuning import BLOCK


def hoisted(loop: Loop) -> list[Node]:
    """Hoists the invariants of a loop with independent iterations. The compiler cannot hoist a load, and
    emits gathers: it must assume that the stores of the loop change the loaded element.
    """
    inside, before, body = {loop.name}, list[Node](), list[Node]()
    for node in loop.body:
        if isinstance(node, Declaration) and node.const:
            if inside.isdisjoint(names_in(node.value)):
                before.append(node)
                continue
            inside.add(node.name)
        elif not isinstance(node, Store):
            return [loop]
        body.append(node)
    return [*before, replace(loop, body=tuple(body))]


def unrolled(loop: Loop, trips: int, most: int) -> list[Node]:
    """Limits how far the compiler unrolls a loop of more than `most` iterations (0: no limit). Without one it
    unrolls hundreds of short iterations, whose loads then take all registers."""
    if not most or trips <= most:
        return [loop]
    return [replace(loop, pragma=f"#pragma unroll {_together(length(loop), most)}")]


def batch(body: Sequence[Node], trips: int, most: int) -> int:
    """The number of iterations, up to `most`, that a thread takes at a time: 1 if the body loads nothing, or
    is too long."""
    if not any(isinstance(node, Load) for node in nodes_in(*body)):
        return 1
    calls = sum(any(isinstance(part, Call) for part in nodes_in(node)) for node in body)
    return _together(len(body) + (BLOCK.call_lines - 1) * calls, min(trips, most))


def _together(lines: int, most: int) -> int:
    together = 1
    while 2 * together <= most and 2 * together * lines <= BLOCK.batch_lines:
        together *= 2
    return together
