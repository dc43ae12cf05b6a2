"""The exception family. Every error says what, where in the user's program, and what to try."""


class CocktailError(Exception):
    """Base of everything that jax_cocktail raises on its own account."""


class UnsupportedError(CocktailError):
    """A construct that the compiler leaves to stock XLA.

    Attributes:
      reason: one sentence, no trailing period.
      where: ``file:line (function)`` in the user's program, or "" if unknown.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason} at {where}" if where else reason)


class BuildError(CocktailError):
    """The host or device compiler is missing or failed.

    Attributes:
      reason: what went wrong.
      remedy: what to try.
      log: compiler output, if there is any.
    """

    def __init__(self, reason: str, remedy: str = "", log: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        self.log = log
        tail = f"\n{log.strip()[-2000:]}" if log.strip() else ""
        super().__init__(reason + (f"; try: {remedy}" if remedy else "") + tail)


class VerificationError(CocktailError):
    """An invalid uTask program: a fault of a compiler pass, never of the user."""


class ProgramFailure(CocktailError):
    """What a program says, run by an interpreter, that fails at run time: a recursion that is too deep."""


class PlacementError(VerificationError):
    """Parts of a placed program that cannot be written in place; the program is then left undivided."""


class StrictModeError(CocktailError):
    """``strict=True`` and some control flow would run on stock XLA."""


class CocktailWarning(UserWarning):
    """Something ran on stock XLA although jax_cocktail was asked for; the text says why."""


class RecursionTypeError(CocktailError, TypeError):
    """A recursive function whose arguments or results do not have one type, or that never ends."""

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason}\n  at {where}" if where else reason)
