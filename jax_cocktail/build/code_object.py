"""Reads what compilers for AMD's cards write: a code object, or a bundle of them.

A note in each says what its kernels take. All compilers write it alike, unlike what they report in words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from jax_cocktail.build.kernels import FRAMES_BYTES, KernelFacts

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_AMDGPU = 224  # the machine, EM_AMDGPU
_NOTES, _METADATA = 7, 32  # SHT_NOTE, NT_AMDGPU_METADATA
_ENTRY = struct.Struct("<QQQ")  # of a bundle: offset, bytes, and the length of the name that follows
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")

Resources = Mapping[str, Mapping[str, object]]


def facts_of(binary: bytes) -> dict[str, KernelFacts]:
    """The facts of each kernel. Raises ValueError if this is no code object."""
    return {name: _facts(said) for name, said in resources(binary).items()}


def _facts(said: Mapping[str, object]) -> KernelFacts:
    """The notes tell private memory, and spills of the kernel's own function alone. What is more than the
    frames of functions that call each other counts as spilled."""
    registers, private = (_count(said, note) for note in (".vgpr_count", ".private_segment_fixed_size"))
    return KernelFacts(
        registers=registers,
        spill_bytes=private if private > FRAMES_BYTES else 0,
        stack_bytes=private,
        shared_bytes=_count(said, ".group_segment_fixed_size"),
    )


def _count(said: Mapping[str, object], key: str) -> int:
    value = said.get(key)
    if not isinstance(value, int):
        raise ValueError(f"it does not tell {key}")
    return value


def resources(binary: bytes) -> Resources:
    """The facts that the notes hold of each kernel, by the names of LLVM's guide to AMDGPU ("Code Object
    Metadata"). Raises ValueError if this is no code object."""
    try:
        found = {}
        for metadata in _metadata(code_of(binary)):
            for kernel in metadata["amdhsa.kernels"]:
                found[str(kernel[".name"])] = kernel
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError) as problem:
        raise ValueError(f"it is damaged: {problem}") from problem
    return found


def code_of(binary: bytes) -> bytes:
    """The code object itself, in a bundle the first. Raises ValueError if there is none."""
    images = _bundled(binary) if binary.startswith(_BUNDLE) else iter((binary,))
    for image in images:
        if image.startswith(_ELF) and image[18:20] == _AMDGPU.to_bytes(2, "little"):
            return image
    raise ValueError("it is not code of an AMD GPU")


def _bundled(binary: bytes) -> Iterator[bytes]:
    at = len(_BUNDLE)
    (count,) = struct.unpack_from("<Q", binary, at)
    at += 8
    for _ in range(count):
        offset, size, name = _ENTRY.unpack_from(binary, at)
        yield binary[offset : offset + size]
        at += _ENTRY.size + name


def _metadata(code: bytes) -> Iterator[Any]:
    """The notes with metadata."""
    (sections,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    for number in range(count):
        _, kind, _, _, offset, length, *_ = _SECTION.unpack_from(code, sections + number * size)
        end = offset + length
        while kind == _NOTES and offset + _NOTE.size <= end:
            name, body, note = _NOTE.unpack_from(code, offset)
            start = offset + _NOTE.size + _up(name)
            if note == _METADATA:
                value, _ = _unpacked(code[start : start + body], 0)
                yield value
            offset = start + _up(body)


def _up(size: int) -> int:
    return (size + 3) // 4 * 4


# ---- MessagePack -------------------------------------------------------------------------------------------

_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The value at a place, and where it ends. ValueError for kinds that metadata does not have.

    The first byte says the kind, and holds a small number or length; larger ones follow it.
    """
    kind, at = data[at], at + 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind in _PLAIN:
        return _PLAIN[kind], at
    if kind in _NUMBERS:
        return _number(data, at, _NUMBERS[kind])
    for few, mask, long, read in _SEQUENCES:
        if kind & ~mask == few:
            return read(data, at, kind & mask)
        if kind in long:
            return read(data, *reversed(_number(data, at, long[kind])))
    raise ValueError(f"its notes hold a value of the kind {kind:#x}")


def _number(data: bytes, at: int, code: str) -> tuple[int, int]:
    (value,) = struct.unpack_from(f">{code}", data, at)
    return value, at + struct.calcsize(f">{code}")


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    return data[at : at + size].decode(), at + size


def _list(data: bytes, at: int, size: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(size):
        value, at = _unpacked(data, at)
        values.append(value)
    return values, at


def _map(data: bytes, at: int, size: int) -> tuple[dict[Any, Any], int]:
    flat, at = _list(data, at, 2 * size)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at


# The first byte of a short one without its length, the bits of the length, and the codes of longer ones.
_SEQUENCES = (
    (0xA0, 0x1F, {0xD9: "B", 0xDA: "H", 0xDB: "I"}, _text),
    (0x90, 0x0F, {0xDC: "H", 0xDD: "I"}, _list),
    (0x80, 0x0F, {0xDE: "H", 0xDF: "I"}, _map),
)
