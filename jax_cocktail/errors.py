"""The exceptions. Every message says what happened, where in the user's program, and what to try."""


class CocktailError(Exception):
    """Base class of all exceptions of jax_cocktail.

    Examples:
      >>> issubclass(jax_cocktail.BuildError, jax_cocktail.CocktailError)
      True
    """


class UnsupportedError(CocktailError):
    """Raised for a construct that the compiler cannot compile and leaves to stock XLA.

    Attributes:
      reason: one sentence, no trailing period.
      where: ``file:line (function)`` in the user's program, or "" if unknown.

    Examples:
      >>> @jax_cocktail.recursive
      ... def loud(self, n):
      ...     jax.debug.callback(print, n)
      ...     return lax.cond(n < 1, lambda: n, lambda: self(n - 1))
      >>> try:
      ...     loud(3)
      ... except jax_cocktail.UnsupportedError as error:
      ...     print(error.reason)
      the body of loud has side effects ...
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason} at {where}" if where else reason)


class ChoiceError(CocktailError, ValueError):
    """Raised if the option ``choices`` or ``without`` names what is no choice of the function.

    Attributes:
      reason: what was named.
      choices: those of the function, each with its alternatives.

    Examples:
      >>> eighth = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))
      >>> try:
      ...     with jax_cocktail.options(choices={"unrol.1": 2}):
      ...         eighth(8.0)
      ... except jax_cocktail.ChoiceError as error:
      ...     print(error)
      there is no choice unrol.1; the choices are: ...
    """

    def __init__(self, reason: str, choices: str) -> None:
        self.reason = reason
        self.choices = choices
        super().__init__(f"{reason}; the choices are: {choices or 'none'}")


class BuildError(CocktailError):
    """Raised if the host or device compiler is missing or fails.

    Attributes:
      reason: what went wrong.
      remedy: what to try.
      log: the compiler's output, or "".

    Examples:
      >>> try:
      ...     raise jax_cocktail.BuildError("no C++ compiler was found", "apt install g++")
      ... except jax_cocktail.BuildError as error:
      ...     print(error)
      no C++ compiler was found; try: apt install g++
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

    Examples:
      >>> with open("empty.bundle", "wb"):
      ...     pass
      >>> try:
      ...     jax_cocktail.load_bundle("empty.bundle")
      ... except jax_cocktail.BundleError as error:
      ...     print(error)
      empty.bundle is no bundle; try: pass a file that save_bundle has written
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason}; try: {remedy}")


class VerificationError(CocktailError):
    """Raised for an invalid uTask program: a bug in a compiler pass, never the user's mistake.

    Examples:
      >>> issubclass(jax_cocktail.VerificationError, jax_cocktail.CocktailError)
      True
    """


class PlacementError(VerificationError):
    """Raised if tiles of a placed program cannot be written in place; the program is then left undivided."""


class StrictModeError(CocktailError):
    """Raised under ``strict=True`` if a loop or branch cannot be compiled and would run on stock XLA.

    Examples:
      >>> def waves(x):
      ...     return lax.fori_loop(0, 2, lambda _, x: jnp.fft.fft(x), x)
      >>> try:
      ...     jax_cocktail.jit(waves, options={"strict": True})(jnp.ones(4, jnp.complex64))
      ... except jax_cocktail.StrictModeError as error:
      ...     print(error)
      waves: scan at ... (waves) would run on stock XLA: the operation 'fft' ... is not supported at ...
    """


class StalePlanError(CocktailError):
    """Raised under ``plans="checked"`` if the plan cache has something else than planning makes now.

    Examples:
      >>> eighth = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))
      >>> with jax_cocktail.options(plans="checked", force="cocktail"):
      ...     print(eighth(8.0))  # would raise
      1.0
    """


class TimeLimitError(CocktailError, TimeoutError):
    """Raised by a call whose program has run for longer than the option ``max_seconds``.

    Examples:
      >>> @jax_cocktail.jit(options={"force": "cocktail", "compile": "now", "max_seconds": 0.1})
      ... def forever(x):
      ...     return lax.while_loop(lambda x: x < 2.0, lambda x: x / 2, x)
      >>> try:
      ...     forever(1.0)
      ... except jax_cocktail.TimeLimitError as error:
      ...     print(error)
      stopped after 0.1 s in the loop at ... (forever), which had run ... iterations; raise max_seconds ...
    """


class CocktailWarning(UserWarning):
    """Warns that stock XLA runs something that jax_cocktail should have compiled, and gives the reason.

    Examples:
      >>> def waves(x):
      ...     return lax.fori_loop(0, 2, lambda _, x: jnp.fft.fft(x), x)
      >>> with warnings.catch_warnings(record=True) as found:
      ...     warnings.simplefilter("always", jax_cocktail.CocktailWarning)
      ...     result = jax_cocktail.jit(waves)(jnp.ones(4, jnp.complex64))
      >>> print(found[0].message)
      waves: scan at ... (waves) runs on stock XLA: the operation 'fft' ... is not supported at ...
    """


class RecursionTypeError(CocktailError, TypeError):
    """Raised for a recursive function whose calls differ in type, or that never returns.

    Attributes:
      reason: one sentence, no trailing period.
      where: ``file:line (function)`` in the user's program, or "" if unknown.

    Examples:
      >>> @jax_cocktail.recursive
      ... def forever(self, x):
      ...     return self(x / 2)
      >>> try:
      ...     forever(1.0)
      ... except jax_cocktail.RecursionTypeError as error:
      ...     print(error.reason)
      forever never returns, since every call makes another one; ...
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{reason}\n  at {where}" if where else reason)


# What keeps a program from being compiled. Any other error in the compiler is a bug.
EXPECTED = (BuildError, UnsupportedError, OSError)
