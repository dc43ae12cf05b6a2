"""Element functions as C text: how one element of a value is computed from elements of other values.

Fusing is composing: asking for an element of an inline value asks for the elements that it needs. What was
computed once in a lane loop is remembered per (value, index), so shared work is done once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jax_cocktail.codegen.text import COMPUTE, NARROW, STORAGE, Index, Writer, literal
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import Value

Indices = tuple[Index, ...]
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
INFIX = ARITHMETIC | {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BITWISE = {"and": "&", "or": "|", "xor": "^"}
NARROW_SENSITIVE = (
    "nextafter",
    "bitcast",
    "is_finite",
    "reduce_precision",
    "round_even",
)  # on 16-bit operands
HEADER = {"threefry2x32": "random"}
NO_HEADER = frozenset({*INFIX, *BITWISE, "neg", "select"})


class ElementWriter:
    """Writes the body of one lane loop (or of straight-line scalar code).

    `load(value, indices)` gives the C text that reads an element from memory or a register; `rename` maps
    loop variables when axes were merged. `addresses` and `inspected` report what the loop accessed.
    """

    def __init__(
        self,
        writer: Writer,
        members: Sequence[UOperator],
        load: Callable[[Value, Indices], Index | str],
        pointer: Callable[[Value], str],
        needs: set[str],
        rename: Mapping[str, tuple[str, int]],
        index: str = "i64",
    ) -> None:
        self.writer, self.load, self.pointer = writer, load, pointer
        self.needs, self.rename, self.index = needs, rename, index
        self.members = {v: m for m in members for v in m.outputs}
        self.reads = Counter(x for m in members for x in m.inputs)
        self.memo: dict[tuple[Value, Indices], str] = {}
        self.addresses: list[Index] = []
        self.inspected: set[str] = set()
        self.registers: dict[Value, str] = {}

    # -- names -------------------------------------------------------------------------------------------
    def temporary(self, dtype: str, text: str) -> str:
        name = self.writer.fresh("t")
        self.writer.line(f"const {COMPUTE[dtype]} {name} = {text};")
        return name

    def index_text(self, index: Index) -> str:
        """An index used as a number: its loop variables cannot be merged with others."""
        self.inspected.update(name for name, _ in index.terms)
        return index.text()

    def opaque(self, text: str) -> Index:
        """A run-time index under a fresh name."""
        name = self.writer.fresh("n")
        self.writer.line(f"const {self.index} {name} = {text};")
        return Index(0, ((name, 1),))

    # -- elements ----------------------------------------------------------------------------------------
    def element(self, value: Value, indices: Indices) -> str:
        if value.type.is_scalar:
            indices = (Index(),) * value.type.rank
        key = (value, indices)
        if key not in self.memo:
            self.memo[key] = self._element(value, indices)
        return self.memo[key]

    def _element(self, value: Value, indices: Indices) -> str:
        member = self.members.get(value)
        if member is None:
            return self._read(value, indices)
        if member.kind == "constant" and value.type.is_scalar:
            return literal(cast(bytes, member["data"]), value.type.dtype)
        if KINDS[member.kind].sort == "elementwise":
            text = self._apply(member, [self.element(x, indices) for x in member.inputs])
            name = self.temporary(value.type.dtype, text)
            return self._rounded(value, member, name)
        return MOVEMENT[member.kind](self, member, indices)

    def _rounded(self, value: Value, member: UOperator, name: str) -> str:
        """16-bit floats stay wide along a chain; a value that is read twice must be one value."""
        dtype = value.type.dtype
        if dtype in NARROW and (self.reads[value] > 1 or member.kind in ("convert", "reduce_precision")):
            return self.temporary(dtype, f"ck_up(ck_down<{STORAGE[dtype]}>({name}))")
        return name

    def _read(self, value: Value, indices: Indices) -> str:
        place = self.load(value, indices)
        if isinstance(place, str):
            return place
        self.addresses.append(place)
        text = f"{self.pointer(value)}[{place.text(self.rename)}]"
        dtype = value.type.dtype
        return self.temporary(dtype, f"ck_up({text})" if dtype in NARROW else text)

    def _apply(self, member: UOperator, args: list[str]) -> str:
        kind, source = member.kind, member.inputs[0].type.dtype
        target = member.output.type.dtype
        if kind not in NO_HEADER:
            self.needs.add(HEADER.get(kind, "arith" if KINDS[kind].cost <= 8 else "math"))
        if kind in INFIX and source != "bool":
            return f"{args[0]} {INFIX[kind]} {args[1]}"
        if kind in BITWISE:
            return f"{args[0]} {BITWISE[kind]} {args[1]}"
        if kind == "neg" and source != "bool":
            return f"-{args[0]}"
        if kind == "convert" and target == "bool" and source in NARROW:
            return f"(ck_down<{STORAGE[source]}>({args[0]}).bits & 0x7fff) != 0"  # denormals are not zero
        if kind == "select":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if source in NARROW and kind in NARROW_SENSITIVE:
            args = [f"ck_down<{STORAGE[source]}>({a})" for a in args]
        spelled = _typed_name(member, target)
        self.needs.add("arith")
        text = f"{spelled}({', '.join(args)})"
        narrow_result = kind in NARROW_SENSITIVE and target in NARROW
        return f"ck_up({text})" if narrow_result else text


def _typed_name(member: UOperator, target: str) -> str:
    """ck_<kind>, with template arguments where the result is not the operand's type."""
    kind = member.kind
    if kind == "convert":
        return "ck_convert_bool" if target == "bool" else f"ck_convert<{COMPUTE[target]}>"
    if kind == "bitcast":
        return f"ck_bitcast<{STORAGE[target]}>"
    if kind == "integer_pow":
        return f"ck_integer_pow<{_int(member, 'exponent')}>"
    if kind == "reduce_precision":
        return f"ck_reduce_precision<{_int(member, 'exponent_bits')}, {_int(member, 'mantissa_bits')}>"
    if kind == "threefry2x32":
        return f"ck_threefry2x32<{_int(member, 'word')}>"
    return f"ck_{kind}"


def _int(member: UOperator, name: str) -> int:
    return cast(int, member[name])


def _constant(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    return w._read(m.output, indices)


def _empty(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    return f"{COMPUTE[m.output.type.dtype]}(0)"


def _iota(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    dtype = m.output.type.dtype
    return w.temporary(dtype, f"{COMPUTE[dtype]}({w.index_text(indices[cast(int, m['dimension'])])})")


def _broadcast(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    (x,) = m.inputs
    picked = (indices[axis] for axis in m.ints("dimensions"))
    return w.element(x, tuple(i if n != 1 else Index() for i, n in zip(picked, x.type.shape, strict=True)))


def _reshape(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    (x,) = m.inputs
    source, target = x.type.shape, m.output.type.shape
    if [n for n in source if n != 1] == [n for n in target if n != 1]:
        rest = iter([i for i, n in zip(indices, target, strict=True) if n != 1])
        return w.element(x, tuple(next(rest) if n != 1 else Index() for n in source))
    flat = Index()
    for index, n in zip(indices, target, strict=True):
        flat = flat * n + index
    text = w.index_text(flat)
    split: list[Index] = []
    for n in reversed(source):
        split.append(w.opaque(f"({text}) % {n}"))
        text = f"({text}) / {n}"
    return w.element(x, tuple(reversed(split)))


def _transpose(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    moved = [Index()] * len(indices)
    for position, axis in enumerate(m.ints("permutation")):
        moved[axis] = indices[position]
    return w.element(m.inputs[0], tuple(moved))


def _slice(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    starts, steps = m.ints("starts"), m.ints("strides")
    moved = tuple(i * s + b for i, s, b in zip(indices, steps, starts, strict=True))
    return w.element(m.inputs[0], moved)


def _reverse(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    flipped = set(m.ints("dimensions"))
    shape = m.output.type.shape
    moved = tuple(i * -1 + (shape[d] - 1) if d in flipped else i for d, i in enumerate(indices))
    return w.element(m.inputs[0], moved)


def _pad(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    """Reads at a clamped index and selects: no branch, so the loop vectorises."""
    x, filler = m.inputs
    inside: list[str] = []
    moved: list[Index] = []
    plain = zip(indices, m.ints("low"), m.ints("interior"), x.type.shape, m.output.type.shape, strict=True)
    for index, low, interior, n, total in plain:
        shifted = index + -low
        if interior == 0 and low == 0 and total <= n:
            moved.append(shifted)
            continue
        position = w.opaque(w.index_text(shifted)).text()
        step = interior + 1
        inside.append(f"({position} >= 0) & ({position} <= {(n - 1) * step})")
        if step > 1:
            inside.append(f"({position} % {step} == 0)")
            position = f"{position} / {step}"
        moved.append(w.opaque(f"ck_clamp_index({position}, {max(n - 1, 0)})"))
    outside = w.element(filler, ())
    if 0 in x.type.shape:
        return outside
    value = w.element(x, tuple(moved))
    if not inside:
        return value
    return w.temporary(m.output.type.dtype, f"({' & '.join(inside)}) ? {value} : {outside}")


def _concatenate(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    axis = cast(int, m["dimension"])
    position = w.opaque(w.index_text(indices[axis])).text()
    begin, text = 0, ""
    for x in m.inputs:
        n = x.type.shape[axis]
        if n == 0:
            continue
        local = w.opaque(f"ck_clamp_index({position} - {begin}, {n - 1})")
        part = w.element(x, (*indices[:axis], local, *indices[axis + 1 :]))
        text = (
            part if not text else w.temporary(m.output.type.dtype, f"{position} >= {begin} ? {part} : {text}")
        )
        begin += n
    return text


def _dynamic_slice(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    x, *starts = m.inputs
    moved = []
    for index, start, n, size in zip(indices, starts, x.type.shape, m.output.type.shape, strict=True):
        if n == size:
            moved.append(index)
            continue
        moved.append(index + w.opaque(f"ck_clamp_index({w.element(start, ())}, {n - size})"))
    return w.element(x, tuple(moved))


def _gather(w: ElementWriter, m: UOperator, indices: Indices) -> str:
    """stablehlo.gather, one result element; the index vector is the last axis of the indices."""
    operand, table = m.inputs
    offsets = m.ints("offset_dims")
    batch = [i for d, i in enumerate(indices) if d not in offsets]
    collapsed = set(m.ints("collapsed_slice_dims")) | set(m.ints("operand_batching_dims"))
    window = iter([indices[d] for d in offsets])
    sizes, shape = m.ints("slice_sizes"), operand.type.shape
    place = [Index() if d in collapsed else next(window) for d in range(len(shape))]
    for d, b in zip(m.ints("operand_batching_dims"), m.ints("start_indices_batching_dims"), strict=True):
        place[d] = place[d] + batch[b]
    inside: list[str] = []
    for component, d in enumerate(m.ints("start_index_map")):
        start = w.element(table, (*batch, Index(component)))
        limit = shape[d] - sizes[d]
        if m["mode"] == "fill":
            inside.append(f"ck_index_within({start}, {limit})")
        place[d] = place[d] + w.opaque(f"ck_clamp_index({start}, {limit})")
    if 0 in shape:
        return literal(cast(bytes, m["fill_value"]), m.output.type.dtype)
    value = w.element(operand, tuple(place))
    if not inside:
        return value
    filler = literal(cast(bytes, m["fill_value"]), m.output.type.dtype)
    return w.temporary(m.output.type.dtype, f"({' & '.join(inside)}) ? {value} : {filler}")


MOVEMENT: dict[str, Callable[[ElementWriter, UOperator, Indices], str]] = {
    "constant": _constant,
    "empty": _empty,
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}
