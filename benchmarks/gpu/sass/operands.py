"""Operands of an instruction, bound to the state of a block: functions that fetch and store."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.sass.state import ZERO, Addresses, Mask, State, Words

Floats = npt.NDArray[np.float32]
Fetch = Callable[[], Words]
FetchFloats = Callable[[], Floats]
FetchMask = Callable[[], Mask]
Store = Callable[[Words, Mask], None]
StoreMask = Callable[[Mask, Mask], None]
Locate = Callable[[], Addresses]

_REGISTER = re.compile(r"(U?)R(\d+|Z)\b")
_SUFFIX = re.compile(r"\.(reuse|H0_H0|H1_H1|H0|H1|B[0-3]|U16|U8|F32|64|U32|NP|X\d+)$")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?")
CONSTANT = re.compile(r"c\[(0x[0-9a-f]+)\]\[(.+)\]")
_SPECIAL = {"+INF": 0x7F800000, "INF": 0x7F800000, "-INF": 0xFF800000}


def is_predicate(text: str) -> bool:
    return re.fullmatch(r"!?U?P(\d|T)", text) is not None


def register_number(text: str) -> int | None:
    """Of the general or uniform register that an operand names; None for the zero register."""
    found = _REGISTER.search(text)
    if found is None:
        raise ValueError(f"{text!r} names no register")
    return None if found[2] == "Z" else int(found[2])


def is_register(text: str) -> bool:
    return re.fullmatch(r"R(\d+|Z)(\.\w+)*", text) is not None


class Binder:
    """Binds operand texts to a state."""

    def __init__(self, state: State) -> None:
        self.state = state

    # ---- reading

    def bits(self, text: str) -> tuple[Fetch, str]:
        """The plain words of an operand, and the modifiers in front of it: of "-", "~", "|"."""
        modifiers = ""
        while text[:1] in "~|" or (text[:1] == "-" and text[1:2] in "|RUc"):
            modifiers += text[0]
            text = text[1:]
        text = text.rstrip("|")
        while found := _SUFFIX.search(text):
            text = text[: found.start()].rstrip("|")
        return self._plain(text), modifiers

    def _plain(self, text: str) -> Fetch:
        if text in ("RZ", "SRZ", "URZ"):
            return _always(0)
        if match := re.fullmatch(r"R(\d+)", text):
            row = self.state.registers[int(match[1])]
            return lambda: row
        if match := re.fullmatch(r"UR(\d+)", text):
            uniform = self.state.uniform[int(match[1])]
            return lambda: uniform
        if match := CONSTANT.fullmatch(text):
            return self.constant(match)
        return _always(literal(text))

    def constant(self, match: re.Match[str]) -> Fetch:
        state, bank = self.state, int(match[1], 16)
        parts = re.findall(r"[-+]?[^-+]+", match[2])
        offset = sum(int(part, 16) for part in parts if "0x" in part)
        indices = [self._plain(part.strip("+")) for part in parts if "0x" not in part]
        if not indices:
            return _always(state.constant(bank, offset))

        def indexed() -> Words:
            at = offset + sum(index().astype(np.int64) for index in indices)
            found: Words = np.vectorize(lambda each: state.constant(bank, int(each)), otypes=[np.uint32])(at)
            return found

        return indexed

    def integer(self, text: str) -> Fetch:
        fetch, modifiers = self.bits(text)
        if modifiers == "-":
            return lambda: np.negative(fetch())
        if modifiers == "~":
            return lambda: np.invert(fetch())
        if modifiers == "|":
            return lambda: np.abs(fetch().view(np.int32)).view(np.uint32)
        if modifiers:
            raise ValueError(f"the integer operand {text!r}")
        return fetch

    def float(self, text: str) -> FetchFloats:
        fetch, modifiers = self.bits(text)
        if modifiers == "-":
            return lambda: np.negative(fetch().view(np.float32))
        if modifiers == "|":
            return lambda: np.abs(fetch().view(np.float32))
        if modifiers in ("-|", "|-"):
            return lambda: np.negative(np.abs(fetch().view(np.float32)))
        return lambda: fetch().view(np.float32)

    def double(self, text: str) -> Callable[[], npt.NDArray[np.float64]]:
        """A float64 in two registers, or a literal or constant."""
        low, modifiers = self.bits(text)
        plain = text.lstrip("-~|")
        if match := CONSTANT.search(plain):
            high = _always(self.state.constant(int(match[1], 16), int(match[2], 16) + 4))
        elif re.match(r"U?R\d", plain):
            number = register_number(plain)
            assert number is not None
            high = self._plain(f"{'U' if plain[0] == 'U' else ''}R{number + 1}")
        elif plain.startswith(("RZ", "URZ")):
            high = _always(0)
        else:
            value = np.array([[float(plain)]])
            low, high = _always(0), _always(int(value.view(np.uint64)[0, 0] >> np.uint64(32)))

        def fetch() -> npt.NDArray[np.float64]:
            pair = np.broadcast_arrays(low(), high())
            value = np.stack(pair, axis=-1).view(np.float64)[..., 0]
            value = np.abs(value) if "|" in modifiers else value
            return -value if "-" in modifiers else value

        return fetch

    def predicate(self, text: str) -> FetchMask:
        state, name = self.state, text.lstrip("!")
        rows = state.uniform_predicates if name.startswith("U") else state.predicates
        row = rows[7 if name.endswith("T") else int(name.lstrip("UP"))]
        return (lambda: ~row) if text.startswith("!") else (lambda: row)

    def pair(self, text: str) -> tuple[Fetch, Fetch]:
        """A 64-bit integer: low and high words."""
        plain = text.lstrip("-~")
        if match := CONSTANT.search(plain):
            bank, offset = int(match[1], 16), int(match[2], 16)
            return _always(self.state.constant(bank, offset)), _always(self.state.constant(bank, offset + 4))
        if re.match(r"U?R\d", plain):
            number = register_number(plain)
            assert number is not None
            name = "UR" if plain[0] == "U" else "R"
            return self._plain(f"{name}{number}"), self._plain(f"{name}{number + 1}")
        return self._plain(plain), _always(0)

    # ---- addresses

    def address(self, text: str, *, wide: bool) -> Locate:
        """Of "[R2.64+0x10]", "desc[UR8][R2.64+UR4]", "[R33+UR8+0x9400]". `wide`: of 64 bits."""
        inner = re.findall(r"\[([^\]]*)\]", text)[-1]
        offset, terms, full = 0, list[tuple[Fetch, Fetch | None, int]](), False
        for part in re.findall(r"[-+]*[^-+]+", inner):
            name, sign = part.lstrip("+-"), -1 if "-" in part[: len(part) - len(part.lstrip("+-"))] else 1
            if name.startswith(("RZ", "URZ")):
                continue
            if not name.startswith(("R", "UR")):
                offset += sign * int(name, 16)
                continue
            scale = re.search(r"\.X(\d+)", name)
            both = ".64" in name or (wide and name.startswith("U") and not full)
            full |= both
            low, high = self.pair(name.split(".")[0])
            terms.append((low, high if both else None, int(scale[1]) if scale else 1))
        shape = self.state.registers[0].shape

        def locate() -> Addresses:
            at = np.full(shape, offset, np.int64)
            for low, high, factor in terms:
                at += low().astype(np.int64) * factor
                if high is not None:
                    at += high().astype(np.int64) << 32
            return at

        return locate

    # ---- writing

    def store(self, text: str, plus: int = 0) -> Store:
        """Stores words to a register, or to the one `plus` places behind it."""
        number = register_number(text)
        if number is None:
            return lambda value, mask: None
        if text.startswith("U"):
            uniform = self.state.uniform[number + plus]
            return lambda value, mask: _store_uniform(uniform, value, mask)
        row = self.state.registers[number + plus]
        return lambda value, mask: np.copyto(row, value, where=mask)

    def store_predicate(self, text: str) -> StoreMask:
        if text.endswith("T"):
            return lambda value, mask: None
        if text.startswith("U"):
            uniform = self.state.uniform_predicates[int(text[2:])]
            return lambda value, mask: _store_uniform(uniform, value, mask)
        row = self.state.predicates[int(text[1:])]
        return lambda value, mask: np.copyto(row, value, where=mask)

    def row(self, text: str, plus: int = 0) -> Words:
        """The registers that an operand names, to be read."""
        number = register_number(text)
        rows = self.state.uniform if text.startswith("U") else self.state.registers
        row: Words = self.state.registers[ZERO] if number is None else rows[number + plus]
        return row


def _store_uniform(row: npt.NDArray[np.generic], value: npt.NDArray[np.generic], mask: Mask) -> None:
    """One value for each warp: that of its first active lane."""
    if value.shape[-1] != 1:
        first = mask.argmax(axis=-1, keepdims=True)
        value = np.take_along_axis(np.broadcast_to(value, mask.shape), first, axis=-1)
    np.copyto(row, value, where=mask.any(axis=-1, keepdims=True))


def _always(value: int) -> Fetch:
    word = np.array([[value & 0xFFFFFFFF]], np.uint32)
    return lambda: word


def literal(text: str) -> int:
    """The bits of a number as the listing writes it: integers in hexadecimal, floats in decimal."""
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        return int(text, 16) & 0xFFFFFFFF
    if text in _SPECIAL:
        return _SPECIAL[text]
    if "NAN" in text:
        return 0x7FC00000 | (0x80000000 if text.startswith("-") else 0)
    if _NUMBER.fullmatch(text):
        return int(np.float32(float(text)).view(np.uint32))
    raise ValueError(f"the operand {text!r}")
