"""Element functions as C expressions: one element of a value, computed from elements of other values.

Fusion is composition: an element of an inline value asks for the elements that it needs. A lane loop caches
each (value, index), so that shared work is done once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import cast

from jax_cocktail.codegen.kernel import Expression, Index, Load, Name, Pointer, Select, names_in
from jax_cocktail.codegen.text import COMPUTE, NARROW, STORAGE, literal
from jax_cocktail.codegen.writer import Writer, call, clamped, code, down, joined, up, variable
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.layout import divided_axes
from jax_cocktail.utask.maps import positions
from jax_cocktail.utask.operators import ELEMENTWISE, KINDS, MAPPED, NEEDS_WIDTH
from jax_cocktail.utask.sizes import within
from jax_cocktail.utask.types import Shape, Value

Indices = tuple[Index, ...]
# How C spells them.
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
INFIX = ARITHMETIC | {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BITWISE = {"and": "&", "or": "|", "xor": "^"}
HEADER = {"threefry2x32": "random"}
NO_HEADER = frozenset({*INFIX, *BITWISE, "neg", "select"})


class ElementWriter:
    """Writes the body of one lane loop (or of straight-line scalar code).

    `load(value, indices)` gives the index of an element in memory, or the register that holds it;
    `constant(data, dtype)` the text of a constant; `start(value, position, limit)` the place where a slice
    begins, in bounds, for the value with the position; `merged`: loop variables of axes that were merged into
    others. `addresses` and `inspected` report what the loop accessed.
    """

    def __init__(
        self,
        writer: Writer,
        members: Sequence[UOperator],
        load: Callable[[Value, Indices], Expression],
        pointer: Callable[[Value], Pointer],
        constant: Callable[[bytes, str], Expression],
        needs: set[str],
        merged: frozenset[Name],
        index: str = "i64",
        start: Callable[[Value, Expression, int], Expression] = lambda _, place, limit: clamped(place, limit),
    ) -> None:
        self.start = start
        self.writer, self.load, self.pointer, self.constant = writer, load, pointer, constant
        self.needs, self.merged, self.index = needs, merged, index
        self.members = {v: m for m in members for v in m.outputs}
        self.reads = Counter(x for m in members for x in m.inputs)
        self.memo: dict[tuple[Value, Indices], Expression] = {}
        self.loaded: dict[Load, Name] = {}
        self.addresses: list[Index] = []
        self.inspected: set[Name] = set()

    # -- names -------------------------------------------------------------------------------------------
    def temporary(self, dtype: str, value: Expression) -> Name:
        return self.writer.let(COMPUTE[dtype], self.writer.fresh("t"), value)

    def number(self, index: Index) -> Index:
        """An index as a number. Its loop variables can then not be merged with others."""
        self.inspected.update(names_in(index))
        return index

    def opaque(self, value: Expression) -> Index:
        """A run-time index under a fresh name."""
        return variable(self.writer.let(self.index, self.writer.fresh("n"), value))

    # -- elements ----------------------------------------------------------------------------------------
    def element(self, value: Value, indices: Indices) -> Expression:
        if value.type.is_scalar:
            indices = (Index(),) * value.type.rank
        key = (value, indices)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._element(value, indices)
        return found

    def _element(self, value: Value, indices: Indices) -> Expression:
        member = self.members.get(value)
        if member is None:
            return self._read(value, indices)
        if member.kind == "constant" and value.type.is_scalar:
            return self.constant(member.data, value.type.dtype)
        if member.kind in ELEMENTWISE:
            result = self._apply(member, [self.element(x, indices) for x in member.inputs])
            name = self.temporary(value.type.dtype, result)
            return self._rounded(value, member, name)
        return MOVEMENT[member.kind](self, member, indices)

    def _rounded(self, value: Value, member: UOperator, name: Name) -> Name:
        """Rounds a value that is read twice, so that the reads agree; a chain keeps 16-bit floats wide."""
        dtype = value.type.dtype
        if dtype in NARROW and (self.reads[value] > 1 or member.kind in ("convert", "reduce_precision")):
            return self.temporary(dtype, up(down(name, dtype), dtype))
        return name

    def _read(self, value: Value, indices: Indices) -> Expression:
        place = self.load(value, indices)
        if not isinstance(place, Index):
            return place
        self.addresses.append(place)
        dtype, element = value.type.dtype, Load(self.pointer(value), place.without(self.merged))
        if element not in self.loaded:  # through another view of the array
            self.loaded[element] = self.temporary(dtype, up(element, dtype))
        return self.loaded[element]

    def _apply(self, member: UOperator, args: list[Expression]) -> Expression:
        kind, source = member.kind, member.inputs[0].type.dtype
        target = member.output.type.dtype
        if kind not in NO_HEADER:
            self.needs.add(HEADER.get(kind, "arith" if KINDS[kind].cost <= 8 else "math"))
        if kind in INFIX and source != "bool":
            return joined(f" {INFIX[kind]} ", args)
        if kind in BITWISE:
            return joined(f" {BITWISE[kind]} ", args)
        if kind == "neg" and source != "bool":
            return code("-{}", *args)
        if kind == "convert" and target == "bool" and source in NARROW:
            return code("({}.bits & 0x7fff) != 0", down(args[0], source))  # denormals are not zero
        if kind == "select":
            return code("{} ? {} : {}", *args)
        if kind in NEEDS_WIDTH:
            args = [down(a, source) for a in args]
        self.needs.add("arith")
        result = call(_typed_name(member, target), *args)
        return up(result, target) if kind in NEEDS_WIDTH else result


def _typed_name(member: UOperator, target: str) -> str:
    """ck_<kind>, with template arguments if the result type differs from the operand's."""
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


def _constant(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    return w._read(m.output, indices)


def _empty(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    return f"{COMPUTE[m.output.type.dtype]}(0)"


def _iota(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    dtype = m.output.type.dtype
    position = w.number(indices[cast(int, m["dimension"])])
    return w.temporary(dtype, code("{}({})", COMPUTE[dtype], position))


def _moved(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    moved = (Index() if p.axis is None else indices[p.axis] * p.step + p.start for p in positions(m))
    return w.element(m.inputs[0], tuple(moved))


def _joined(indices: Indices, sizes: Shape, counts: Sequence[int]) -> Iterator[Index]:
    """The positions along axes of which each was divided into so many."""
    rest = iter(zip(indices, sizes, strict=True))
    for count in counts:
        index = Index()
        for inner, n in islice(rest, count):
            index = index * n + inner
        yield index


def _reshape(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    (x,) = m.inputs
    source, target = x.type.shape, m.output.type.shape
    if [n for n in source if n != 1] == [n for n in target if n != 1]:
        rest = iter([i for i, n in zip(indices, target, strict=True) if n != 1])
        return w.element(x, tuple(next(rest) if n != 1 else Index() for n in source))
    counts = divided_axes(source, target)
    if counts is not None:
        return w.element(x, tuple(_joined(indices, target, counts)))
    flat = Index()
    for index, n in zip(indices, target, strict=True):
        flat = flat * n + index
    rest_of: Expression = w.number(flat)
    split: list[Index] = []
    for n in reversed(source):
        split.append(w.opaque(code("({}) % {}", rest_of, n)))
        rest_of = code("({}) / {}", rest_of, n)
    return w.element(x, tuple(reversed(split)))


def _pad(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    """Reads at a clamped index and selects: no branch, so the loop vectorises."""
    x, filler = m.inputs
    inside: list[Expression] = []
    moved: list[Index] = []
    plain = zip(indices, m.ints("low"), m.ints("interior"), x.type.shape, m.output.type.shape, strict=True)
    for index, low, interior, n, total in plain:
        shifted = index + -low
        if interior == 0 and low == 0 and within(total, n):
            moved.append(shifted)
            continue
        position: Expression = w.opaque(w.number(shifted))
        step = interior + 1
        inside.append(code("({} >= 0) & ({} <= {})", position, position, (n - 1) * step))
        if step > 1:
            inside.append(code("({} % {} == 0)", position, step))
            position = code("{} / {}", position, step)
        moved.append(w.opaque(clamped(position, max(n - 1, 0))))
    outside = w.element(filler, ())
    if 0 in x.type.shape:
        return outside
    value = w.element(x, tuple(moved))
    if not inside:
        return value
    return w.temporary(m.output.type.dtype, Select(joined(" & ", inside), value, outside))


def _concatenate(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    axis = cast(int, m["dimension"])
    position = w.opaque(w.number(indices[axis]))
    begin, found = 0, None
    for x in m.inputs:
        n = x.type.shape[axis]
        if n == 0:
            continue
        local = w.opaque(clamped(code("{} - {}", position, begin), n - 1))
        part = w.element(x, (*indices[:axis], local, *indices[axis + 1 :]))
        if found is not None:
            part = w.temporary(m.output.type.dtype, code("{} >= {} ? {} : {}", position, begin, part, found))
        begin, found = begin + n, part
    return found or ""


def _dynamic_slice(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    x, *starts = m.inputs
    moved = []
    for index, start, n, size in zip(indices, starts, x.type.shape, m.output.type.shape, strict=True):
        if n == size:
            moved.append(index)
            continue
        moved.append(index + w.opaque(w.start(start, w.element(start, ()), n - size)))
    return w.element(x, tuple(moved))


def _gather(w: ElementWriter, m: UOperator, indices: Indices) -> Expression:
    """One element of stablehlo.gather; the index vector is the last axis of the indices."""
    operand, table = m.inputs
    offsets = m.ints("offset_dims")
    batch = [i for d, i in enumerate(indices) if d not in offsets]
    collapsed = set(m.ints("collapsed_slice_dims")) | set(m.ints("operand_batching_dims"))
    window = iter([indices[d] for d in offsets])
    sizes, shape = m.ints("slice_sizes"), operand.type.shape
    place = [Index() if d in collapsed else next(window) for d in range(len(shape))]
    for d, b in zip(m.ints("operand_batching_dims"), m.ints("start_indices_batching_dims"), strict=True):
        place[d] = place[d] + batch[b]
    inside: list[Expression] = []
    for component, d in enumerate(m.ints("start_index_map")):
        start = w.element(table, (*batch, Index(component)))
        limit = shape[d] - sizes[d]
        if m["mode"] == "fill":
            inside.append(call("ck_index_within", start, limit))
        place[d] = place[d] + w.opaque(clamped(start, limit))
    if 0 in shape:
        return literal(cast(bytes, m["fill_value"]), m.output.type.dtype)
    value = w.element(operand, tuple(place))
    if not inside:
        return value
    filler = literal(cast(bytes, m["fill_value"]), m.output.type.dtype)
    return w.temporary(m.output.type.dtype, Select(joined(" & ", inside), value, filler))


MOVEMENT: dict[str, Callable[[ElementWriter, UOperator, Indices], Expression]] = {
    **dict.fromkeys(MAPPED, _moved),
    "constant": _constant,
    "empty": _empty,
    "iota": _iota,
    "reshape": _reshape,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}
