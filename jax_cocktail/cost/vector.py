"""Costs that add up, field by field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import add, attrgetter
from typing import Any, Self

from jax_cocktail.device.tuning import MODEL


class Vector:
    """The base of frozen dataclasses of two or more numbers or other vectors: their sums and multiples."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        make: Callable[..., Self] = type(self)
        numbers = _numbers(make)
        return make(*map(add, numbers(self), numbers(other)))

    def __mul__(self, factor: float) -> Self:
        make: Callable[..., Self] = type(self)
        return make(*(number * factor for number in _numbers(make)(self)))


@cache
def _numbers(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*(field.name for field in fields(kind)))


@dataclass(frozen=True, slots=True)
class Price(Vector):
    """Seconds per call. `heavy`: the part of `seconds` in large products and convolutions; `convolutions`: in
    convolutions; `least_convolutions`: in convolutions that run whichever branches are taken."""

    seconds: float = 0.0
    heavy: float = 0.0
    convolutions: float = 0.0
    least_convolutions: float = 0.0


def mean(sides: Sequence[Price]) -> Price:
    """The price of a branch with these sides, of which nobody knows which runs."""
    found = sum(sides, Price()) * (1 / len(sides))
    return replace(found, least_convolutions=min(side.least_convolutions for side in sides))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The price of our best candidate and that of stock XLA."""

    ours: Price
    stock: Price

    def __str__(self) -> str:
        ours, stock = self.ours.seconds * 1e6, self.stock.seconds * 1e6
        text = f"about {ours:.1f} us as one call of ours, {stock:.1f} us under stock XLA"
        return text + (", convolutions decide" if self.hopeless() else "")

    def favours_stock(self) -> bool:
        """True if stock XLA is the better assumption where nothing can be measured."""
        return self.ours.seconds > self.stock.seconds

    def heavy(self) -> bool:
        """True if large products and convolutions, which stock spreads over all cores, are most of it."""
        return self.stock.heavy > 0.5 * self.stock.seconds

    def hopeless(self) -> bool:
        """True if building and measuring our code is likely a waste, whichever branches are taken.

        Networks of convolutions are: XLA takes seconds to compile them, and measuring compiles twice. For
        these the model has to promise a clear gain.
        """
        convolutions = self.stock.least_convolutions > MODEL.convolution_seconds
        return convolutions and self.stock.seconds < MODEL.convolution_gain * self.ours.seconds
