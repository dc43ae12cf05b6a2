"""Words for numbers, which reports, pictures and commands share."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """``3 barriers``, ``1 barrier``."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def counts(found: Sequence[tuple[str, int]]) -> str:
    """``add, 2 mul``."""
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in found)


def duration(seconds: float) -> str:
    """Microseconds, milliseconds or seconds."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def brief(seconds: float) -> str:
    """Seconds as text, with nanoseconds for what is too short."""
    return f"{seconds * 1e9:.0f} ns" if seconds < 1e-7 else duration(seconds)


def size(number: float) -> str:
    """Bytes, KiB or MiB."""
    number = round(number)
    if number < 1 << 10:
        return f"{number} B"
    return f"{number / (1 << 10):.1f} KiB" if number < 1 << 20 else f"{number / (1 << 20):.1f} MiB"
