"""The host C++ target."""

from __future__ import annotations

from jax_cocktail.device.target import Target

CPU = Target(
    name="cpu",
    headers=(
        *("base", "index", "arith", "reduce", "rows", "math", "random", "dot", "conv", "linalg", "lapack"),
        *("sort", "scan", "units", "trace"),
    ),
    lanes="CK_LANES",
    copy="__builtin_memcpy({target}, {source}, {size});",
    table="static const",
    wait="if (ck_wait(unit)) return {left};",
    stop="if (ck_stops(unit, {alarm}, {loop}, {trip})) return {left};",
    entry=(
        "CK_EXPORT int ck_program(const void* const* operands, void* const* results,\n"
        "                         u8* workspace, CkUnit* unit)"
    ),
    epilogue=("return 0;",),
    piece=(
        "CK_NOINLINE {result} {name}(const void* const* operands, void* const* results,\n"
        "                         u8* workspace, CkUnit* unit{parameters}) {{",
        "{name}(operands, results, workspace, unit{parameters})",
    ),
    fail="failed = failed ? failed : int({code});",
    fail_begin=("int failed = 0;",),
    fail_end=("return failed;",),
    units=(
        "CK_EXPORT const i64 ck_most_units;",
        "const i64 ck_most_units = {most_units};",
    ),
)
