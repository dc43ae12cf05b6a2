"""The meaning of ``-march=native`` by the compiler's own answer: the processor features that it may use,
which a program tells to the runtime, and the processor for which it chooses instructions."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Sequence

from jax_cocktail.build.command import answer
from jax_cocktail.build.job import Toolchain

_OLDEST = ("-march=x86-64", "-march=x86_64")  # the latter is zig's spelling
_TARGET = re.compile(r"^\s*-m(arch|tune)=\s+(\S+)$", re.MULTILINE)
_MACRO = re.compile(r"#define __([A-Z][A-Z0-9_]*)__ 1$", re.MULTILINE)


def features_argument(toolchain: Toolchain, flags: tuple[str, ...]) -> tuple[str, ...]:
    """The argument that defines CK_FEATURES (`cocktail_features.h`). There is none if the compiler does not
    tell, and for other processors than x86-64, where the runtime checks nothing."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    names = names_of(toolchain, flags)
    return () if names is None else (f"-DCK_FEATURES={','.join(sorted(names))}",)


@functools.lru_cache(maxsize=8)
def names_of(toolchain: Toolchain, flags: tuple[str, ...]) -> frozenset[str] | None:
    """The features that the flags allow and the oldest processor lacks; None if the compiler does not tell.

    They are what the compiler defines macros for: AVX2 for ``__AVX2__``.
    """
    here = _macros(toolchain, [*toolchain.command, *filter(_chooses, flags)])
    plain = [word for word in toolchain.command if not _chooses(word)]
    answers = (_macros(toolchain, [*plain, oldest]) for oldest in _OLDEST if here)
    everywhere = next(filter(None, answers), None)
    return None if everywhere is None else here - everywhere


@functools.lru_cache(maxsize=8)
def tuning_argument(toolchain: Toolchain) -> tuple[str, ...]:
    """The argument for GCC on a processor that is newer than it. GCC takes the features of an older one then,
    but the costs of no processor in particular, by which it loads nothing from tables in vector lanes: `sin`
    takes four times as long. With this argument it takes the costs of the older one, too."""
    if platform.machine() not in ("x86_64", "AMD64") or _names_processor(toolchain):
        return ()
    words = [*toolchain.command, "-march=native", "-Q", "--help=target"]
    said = dict(_TARGET.findall(answer(words, dict(toolchain.environment))))
    known = said.get("arch", "x86-64")
    return (f"-mtune={known}",) if said.get("tune") == "generic" and not known.startswith("x86-64") else ()


def _chooses(flag: str) -> bool:
    """True if a flag may choose processor features."""
    return flag.startswith("-m")


def _names_processor(toolchain: Toolchain) -> bool:
    """True if the command of a compiler says for which processor it compiles."""
    return any(word.startswith(("-march=", "-mcpu=", "-mtune=")) for word in toolchain.command)


def _macros(toolchain: Toolchain, command: Sequence[str]) -> frozenset[str]:
    words = [*command, "-dM", "-E", "-x", "c++", os.devnull]
    return frozenset(_MACRO.findall(answer(words, dict(toolchain.environment))))
