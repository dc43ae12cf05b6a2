"""Texts of small CUDA programs, as the emitter would write them."""

from __future__ import annotations

TEXT = """#define CK_THREADS {threads}
#define CK_SCRATCH_BYTES {scratch}
#define CK_OPERANDS {operands}
#define CK_RESULTS {results}
#define CK_MOST_UNITS {most_units}
#define CK_SHARED_BYTES {shared}
#define CK_OWN_BYTES {own}
#define CK_RESIDENT_BYTES {resident}
{defines}
#include "cocktail_base.h"
#include "cocktail_units.h"
{before}
template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit) {{
{body}
}}
CK_ENTRIES
"""


def program(
    body: str,
    *,
    before: str = "",
    headers: tuple[str, ...] = (),
    threads: int = 64,
    operands: int = 1,
    results: int = 1,
    most_units: int = 9,
    scratch: int = 1024,
    shared: int = 1024,
    own: int = 256,
    resident: int = 512,
    **defines: int,
) -> str:
    """The text whose `ck_body` is `body`; `before` stands ahead of it, `defines` are further macros."""
    return TEXT.format(
        body=body,
        before="".join(f'#include "{name}"\n' for name in headers) + before,
        threads=threads,
        operands=operands,
        results=results,
        most_units=most_units,
        scratch=scratch,
        shared=shared,
        own=own,
        resident=resident,
        defines="\n".join(f"#define {name} {value}" for name, value in defines.items()),
    )
