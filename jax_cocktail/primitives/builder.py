"""Builds uTask regions statement by statement. All rules make IR with this builder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jax_cocktail.utask import builder
from jax_cocktail.utask.ir import Attribute, BranchUTask, LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


class Builder(builder.Builder):
    """One per program."""

    def __init__(self) -> None:
        super().__init__(FreshValues())

    def value(self, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A fresh value (a region parameter, for example)."""
        return self.fresh.make(TensorType(dtype, tuple(int(d) for d in shape)))

    def emit_many(
        self,
        kind: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[str, Sequence[int]]],
        /,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Appends an operator with any number of results."""
        outputs = tuple(self.value(dtype, shape) for dtype, shape in results)
        self.define(outputs, kind, inputs, **attributes)
        return outputs

    @contextmanager
    def region(self) -> Iterator[list[Statement]]:
        """Redirects statements emitted inside the block to the yielded list."""
        outer, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = outer

    def append(self, statement: LoopUTask | BranchUTask) -> None:
        self.out.append(statement)

    def finish(self, parameters: Sequence[Value], results: Sequence[Value]) -> Region:
        """The outermost region, after everything is emitted."""
        return Region(tuple(parameters), tuple(self.out), tuple(results))

    def full(self, number: object, dtype: str, shape: Sequence[int]) -> Value:
        scalar = self.constant(number, dtype)
        return self.broadcast(scalar, shape, ()) if tuple(shape) else scalar
