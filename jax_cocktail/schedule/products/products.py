"""Stores factors of products that a loop repeats in the order in which the machine reads them.

`pack_factors` packs them before the loop: panels for a core, the part of each unit if units share a product.
Then `join_products` makes one product of two on tensor cores that add up, as those of a recurrent cell's
input and state do:

    a = dot(x, w)
    b = dot(h, u)
    y = (a + c) + b      ->      y = c + dot(x, w, h, u)

A block waits once for the rows of both, sums in the same registers, and writes one result. The right factors
are those in the order of tensor cores, so products in full precision stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from jax_cocktail.device.machine import Machine
from jax_cocktail.schedule.products.pack_factors import Packing, pack_factors
from jax_cocktail.utask.ir import Region, UOperator, UProgram, is_a, regions_in
from jax_cocktail.utask.operators import STATIC_VIEWS
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.substitute import region_reads
from jax_cocktail.utask.types import Value


def products(program: UProgram, machine: Machine) -> UProgram:
    """Returns its argument if no loop repeats a product that pays for it. Expects no stitched groups."""
    packed = pack_factors(program, Packing.of(machine))
    return packed if packed is program or machine.spec is None else join_products(packed)


def join_products(program: UProgram) -> UProgram:
    """Returns its argument if no two products add up."""
    return map_regions(program, _joined)


def _joined(region: Region) -> Region:
    region = map_body(region, lambda statement: map_regions(statement, _joined))
    while (pair := _Sums(region).pair()) is not None:
        region = _without(region, pair)
    return region


@dataclass(frozen=True, slots=True)
class _Term:
    """A product whose only use is a sum. `moves`: views of it; `addition`: of the last one to `others`."""

    product: UOperator
    moves: tuple[UOperator, ...]
    addition: UOperator
    others: Value


class _Sums:
    """The sums of a region."""

    def __init__(self, region: Region) -> None:
        every = tuple(regions_in(region))
        uses = Counter(v for each in every for s in each.body for v in s.inputs)
        uses.update(v for each in every for v in each.results)
        self._products = [s for s in region.body if isinstance(s, UOperator) and _qualifies(s)]
        self._readers = {v: s for s in region.body for v in s.inputs if uses[v] == 1}

    def pair(self) -> tuple[_Term, _Term] | None:
        """Two products of the same sizes in one sum, in the order of the program."""
        seen = dict[object, _Term]()
        for product in self._products:
            if (term := self._term(product)) is None:
                continue
            shapes = tuple((move.kind, move.attributes, move.output.type) for move in term.moves)
            types = tuple(v.type for v in (*product.inputs, product.output))
            key = self._sum(term.addition), types, product.attributes, shapes
            if key in seen:
                return seen[key], term
            seen[key] = term
        return None

    def _term(self, product: UOperator) -> _Term | None:
        moves, value = list[UOperator](), product.output
        while is_a(reader := self._readers.get(value), *STATIC_VIEWS):
            moves.append(reader)
            value = reader.output
        if not is_a(reader, "add"):
            return None
        (others,) = (v for v in reader.inputs if v != value)
        return _Term(product, tuple(moves), reader, others)

    def _sum(self, addition: UOperator) -> Value:
        """The whole sum that an addition belongs to."""
        while is_a(reader := self._readers.get(addition.output), "add"):
            addition = reader
        return addition.output


def _qualifies(operator: UOperator) -> bool:
    """True for one product of a matrix with columns in the order of tensor cores, of several lines each."""
    if operator.kind != "dot" or len(operator.inputs) != 2:
        return False
    depth, left = operator.ints("lhs_contract"), operator.inputs[0].type.shape
    return len(depth) > 1 and depth == tuple(range(1, len(left))) and left[1] > 1


def _without(region: Region, pair: tuple[_Term, _Term]) -> Region:
    """The region with the first product in the second one."""
    first, second = pair
    both = replace(second.product, inputs=(*first.product.inputs, *second.product.inputs))
    gone = {first.product, *first.moves, first.addition}
    body = [both if s is second.product else s for s in region.body if s not in gone]
    return region_reads(with_body(region, body), {first.addition.output: first.others})
