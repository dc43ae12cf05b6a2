"""Prices from the models of `cost.cpu` and `cost.gpu`, and comparisons of two prices."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.device.tuning import MODEL


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds per call. `heavy`: the part of `seconds` in large products and convolutions; `convolutions`: in
    convolutions; `least_convolutions`: in convolutions that run whichever branches are taken."""

    seconds: float = 0.0
    heavy: float = 0.0
    convolutions: float = 0.0
    least_convolutions: float = 0.0

    def __add__(self, other: Price) -> Price:
        return Price(
            self.seconds + other.seconds,
            self.heavy + other.heavy,
            self.convolutions + other.convolutions,
            self.least_convolutions + other.least_convolutions,
        )

    def __mul__(self, factor: float) -> Price:
        return Price(
            self.seconds * factor,
            self.heavy * factor,
            self.convolutions * factor,
            self.least_convolutions * factor,
        )


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
