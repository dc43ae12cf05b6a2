"""The exceptions. Every message says what happened, where in the user's program, and what to try."""


class CocktailError(Exception):
    """Base class of all exceptions of jax_cocktail."""


class UnsupportedError(CocktailError):
    """Raised for a construct that the compiler cannot compile and leaves to stock XLA.

    Attributes:
      reason: one sentence, no trailing period.
      where: ``file:line (function)`` in the user's program, or "" if unknown.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason} at {where}" if where else reason)


class BuildError(CocktailError):
    """Raised if the host or device compiler is missing or fails.

    Attributes:
      reason: what went wrong.
      remedy: what to try.
      log: the compiler's output, or "".
    """

    def __init__(self, reason: str, remedy: str = "", log: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        self.log = log
        tail = f"\n{log.strip()[-2000:]}" if log.strip() else ""
        super().__init__(reason + (f"; try: {remedy}" if remedy else "") + tail)


class BundleError(CocktailError):
    """Raised if a bundle cannot be saved, is not trusted, is damaged, or does not fit this machine.

    Attributes:
      reason: what is wrong.
      remedy: what to try.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason}; try: {remedy}")


class VerificationError(CocktailError):
    """Raised for an invalid uTask program: a bug in a compiler pass, never the user's mistake."""


class ProgramFailure(CocktailError):
    """Raised by an interpreter when a program executes `fail`, such as a recursion that is too deep."""


class PlacementError(VerificationError):
    """Raised if tiles of a placed program cannot be written in place; the program is then left undivided."""


class StrictModeError(CocktailError):
    """Raised under ``strict=True`` if a loop or branch cannot be compiled and would run on stock XLA."""


class StalePlanError(CocktailError):
    """Raised under ``plans="checked"`` if the plan cache has something else than planning makes now."""


class CocktailWarning(UserWarning):
    """Warns that stock XLA runs something that jax_cocktail should have compiled, and gives the reason."""


class RecursionTypeError(CocktailError, TypeError):
    """Raised for a recursive function whose calls differ in type, or that never returns.

    Attributes:
      reason: one sentence, no trailing period.
      where: ``file:line (function)`` in the user's program, or "" if unknown.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason}\n  at {where}" if where else reason)
