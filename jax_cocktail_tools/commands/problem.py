"""An error that a command says instead of a traceback."""

from __future__ import annotations


class Problem(Exception):
    """Raised if a command cannot do what it was asked for.

    Attributes:
      reason: what is wrong, no trailing period.
      remedy: what to try, or "".
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(reason + (f"; try: {remedy}" if remedy else ""))
