"""What `explain` returns."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.report.text import text
from jax_cocktail.report.values import Contents


@dataclass(frozen=True, slots=True)
class Report(Contents):
    """Describes how one call is compiled. `print` shows it as text.

    Attributes:
      function: its name.
      captured: the regions that became custom calls.
      left: the loops and branches that stock XLA runs, and with scope="memory_bound" the subgraphs.
      beside: the primitives around the regions, which stock XLA compiles.
      recursions: the execution strategy of each recursion, one sentence each.
      choice: ``"cocktail"`` or ``"stock"``: the one that `jit` uses.
      why: the reason for `choice`.
      stock_seconds, cocktail_seconds: measured seconds per call of stock XLA and of our best candidate; None
        if nothing was measured.
      trials: everything that was timed.
      others: the fraction of our cores that other processes held during the measurement.
      pressure: how other processes have slowed down this process's calls so far; "" if they have not.
      inner: reports of jitted functions that are called from code that stock XLA runs.
    """

    @property
    def workspace_bytes(self) -> int:
        return sum(region.workspace_bytes for region in self.captured)

    def __str__(self) -> str:
        return text(self)
