"""The operators in scope, for passes that go through a program region by region."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager

from jax_cocktail.utask.ir import Region, UOperator
from jax_cocktail.utask.types import Value


class Scopes:
    """`made`: the operators in scope, by result."""

    def __init__(self) -> None:
        self.made: ChainMap[Value, UOperator] = ChainMap()

    @contextmanager
    def entered(self, region: Region) -> Iterator[None]:
        """A region inside of the one at hand."""
        outer, self.made = self.made, self.made.new_child()
        self.made.update((v, s) for s in region.body if isinstance(s, UOperator) for v in s.outputs)
        yield
        self.made = outer
