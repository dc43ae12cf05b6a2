"""The state that the emitters of one program share: plan, names of registers and buffers, headers in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import unpack

from jax_cocktail.codegen.kernel import (
    Barrier,
    Expression,
    Index,
    Load,
    Name,
    Pointer,
    SizeName,
    Store,
    spelled,
)
from jax_cocktail.codegen.outline import Outer, OutlineTable
from jax_cocktail.codegen.stamps import StampTable
from jax_cocktail.codegen.text import COMPUTE, MOST_ELEMENTS, STORAGE, literal
from jax_cocktail.codegen.writer import Writer, clamped, code, down, up
from jax_cocktail.device.block import Block
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.target import Target
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import Region, Statement, UOperator
from jax_cocktail.utask.layout import Layout, row_major
from jax_cocktail.utask.plan import MAILBOX_BYTES, MemoryPlan, Part, Slot
from jax_cocktail.utask.sizes import Size, is_general, place_in, size_in, within
from jax_cocktail.utask.types import Source, Value

ALONE = "unit->index == 0"
OF_THREAD = "mine"  # the memory of a thread, which the loop by threads declares
_PREFIX = {"workspace": "w", "own": "o", "private": "q", "output": "r", "input": "p"}  # of pointers' names
_LETTER_BYTES = 16  # of the mailbox, for each of several results of one element
_RAW = ("workspace", "own", "private")  # bytes that arrays of several types may share


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array in memory, with strides in elements. `base`: the index of its first element from `pointer`."""

    pointer: Pointer
    strides: tuple[int, ...]
    dtype: str
    base: Index = Index()

    def place(self, indices: Sequence[Index]) -> Index:
        """The index of an element from `pointer`."""
        return self.base.along(indices, self.strides)

    def at(self, indices: Sequence[Index]) -> Load:
        """One element in its storage type."""
        return Load(self.pointer, self.place(indices))

    def read(self, indices: Sequence[Index]) -> Expression:
        """One element in its compute type."""
        return up(self.at(indices), self.dtype)

    def store(self, indices: Sequence[Index], value: Expression, condition: Expression = "") -> Store:
        """The statement that sets one element to a value of the compute type."""
        return Store(self.at(indices), down(value, self.dtype), condition)


@dataclass(frozen=True, slots=True)
class HeldMatrix:
    """The part of a product that stays in registers. `text`: the arguments of `CkDotHeld`; `together`: the
    results of all products that one call makes."""

    name: Name
    text: str
    together: tuple[Value, ...]


@dataclass(slots=True)
class Context:
    """Mutable state of one emission."""

    machine: Machine
    plan: MemoryPlan
    writer: Writer
    needs: set[str] = field(default_factory=lambda: {"base", "index", "arith"})
    registers: dict[Value, Expression] = field(default_factory=dict)
    names: dict[Name, Outer] = field(default_factory=dict)  # registers and pointers
    indices: dict[Name, str] = field(default_factory=dict)  # of the loops around the statement -> C type
    outlines: OutlineTable | None = None  # if lane loops become functions
    products: OutlineTable | None = None  # if products do, so that they can be compiled beside the rest
    first_codes: Mapping[str, int] = field(default_factory=dict)  # see `utask.failure`
    part_depth: int = 0  # parallel loops around the statement at hand
    loop_depth: int = 0  # other loops around it
    by_thread: bool = False  # it is in a parallel loop whose trips the threads share: each runs it alone
    in_part: bool = False  # it is in a function of its own for the parts of a parallel loop
    counted: dict[Value, int] = field(default_factory=dict)  # the trips of a loop by what counts them
    letters: int = 0  # results of one element of the template at hand
    held: dict[Value, HeldMatrix] = field(default_factory=dict)  # see `codegen.held`
    held_bytes: int = 0
    places: bool = False  # comments say where statements come from
    stamps: StampTable | None = None  # of a traced program
    loops: list[Source] = field(default_factory=list)  # where a call can be stopped, see `codegen.stops`
    rings: int = 0  # the number of the result that holds its stamps
    sizes: Mapping[int, Size] = field(default_factory=dict)  # see `launch.lengths`
    counts: Mapping[float, Size] = field(default_factory=dict)  # see `launch.counts`
    sized_spaces: frozenset[str] = frozenset()  # see `launch.sized_spaces`
    places_of: dict[tuple[str, int], int] = field(default_factory=dict)  # numbers of buffers in the workspace

    @property
    def target(self) -> Target:
        """The spellings."""
        return self.machine.target

    @property
    def block(self) -> Block:
        """The threads of a unit."""
        return self.machine.block

    def about(self, name: Name) -> Outer:
        """The meaning of a name that a function takes as a parameter."""
        if isinstance(name, SizeName):
            return Outer(self.size_type(name))
        return self.names.get(name) or Outer(self.indices[name])

    def size_type(self, name: SizeName) -> str:
        """The C type of a launch parameter: places in memory are counted in bytes, which may be many, and
        loops may have more trips than arrays have elements."""
        wide = name.parameter.role or name.parameter.value > MOST_ELEMENTS
        return "i64" if wide else self.target.index

    # -- registers ---------------------------------------------------------------------------------------
    def register(self, value: Value) -> Expression:
        """The variable that holds a one-element value; for a constant, its literal."""
        if value not in self.registers:
            name = Name(f"v{value.id}", outer=True)
            self.registers[value] = name
            self.names[name] = Outer(COMPUTE[value.type.dtype])
        return self.registers[value]

    def alias(self, value: Value, other: Value) -> None:
        """Makes two one-element values one variable."""
        self.registers[value] = self.register(other)

    def set(self, value: Value, result: Expression) -> None:
        """Sets the register of a one-element value."""
        self.writer.set(self.register(value), result)

    def set_rounded(self, value: Value, result: Expression) -> None:
        """Stores a wider result, rounded, so that a register holds what memory would hold."""
        self.set(value, up(down(result, value.type.dtype), value.type.dtype))

    def literal(self, data: bytes, dtype: str) -> Expression:
        """The text of a constant element. It may follow from a launch parameter: the last of its trips."""
        known = size_in(data)
        if known is not None:
            return code("{}({})", COMPUTE[dtype], known)
        if self.sizes and dtype in ("int32", "int64"):
            known = self.sizes.get(int.from_bytes(data, "little", signed=True))
        elif self.counts and dtype in ("float32", "float64"):
            known = self.counts.get(unpack("<f" if dtype == "float32" else "<d", data)[0])
        return literal(data, dtype) if known is None else code("{}({})", COMPUTE[dtype], known)

    # -- memory ------------------------------------------------------------------------------------------
    def layout(self, value: Value) -> Layout:
        return self.plan.layouts[value]

    def slot(self, value: Value) -> Slot:
        return self.plan.slots[self.layout(value).root]

    def pointer(self, value: Value) -> Pointer:
        """The base pointer of the layout of `value`."""
        layout, slot, dtype = self.layout(value), self.slot(value), value.type.dtype
        if layout.base != layout.root:
            return Pointer(Name(f"d{layout.base.id}", outer=True), STORAGE[dtype], slot.space)
        return self.slot_pointer(slot, dtype)

    def slot_pointer(self, slot: Slot, dtype: str) -> Pointer:
        storage = STORAGE[dtype]
        if slot.space == "constant":
            return Pointer(f"((const {storage}*)c{slot.index})", storage, slot.space)
        if slot.space == "thread":
            return Pointer(f"(({storage}*)({OF_THREAD} + {slot.index}))", storage, slot.space)
        type_ = f"_{storage}" if slot.space in _RAW else ""
        name = Name(f"{_PREFIX[slot.space]}{self._number(slot)}{type_}", outer=True)
        if name not in self.names:
            self.names[name] = self._outer(slot, storage)
        return Pointer(name, storage, slot.space)

    def _number(self, slot: Slot) -> int:
        """The number in the names of pointers to a buffer. Where places are launch parameters, buffers are
        numbered in order of appearance."""
        if slot.space not in self.sized_spaces:
            return slot.index
        return self.places_of.setdefault((slot.space, slot.index), len(self.places_of))

    def _outer(self, slot: Slot, storage: str) -> Outer:
        if slot.space in _RAW:
            fixed = slot.space == "workspace" and not self.is_near(slot)
            address = self._memory(slot.space, slot.index)
            return Outer(f"{storage}*", self.where(slot), address, slot, fixed)
        array, const = ("results", "") if slot.space == "output" else ("operands", "const ")
        address = f"{array}[{slot.index}]"
        return Outer(f"{const}{storage}*", self.where(slot), address, slot, fixed=True)

    def is_near(self, slot: Slot) -> bool:
        """True for memory of one unit, which may be kept near it."""
        return slot.space == "own" or Slot(slot.space, slot.index) in self.plan.parts

    def where(self, slot: Slot) -> str:
        """Declares where a pointer to this memory points, see `Target`."""
        return self.target.near if self.is_near(slot) else self.target.far

    def is_at(self, pointer: Pointer, where: str) -> bool:
        """True if a pointer surely points to that kind of memory."""
        outer = self.names.get(pointer.base) if isinstance(pointer.base, Name) else None
        return outer is not None and outer.where == where

    def offset(self, slot: Slot) -> int:
        """A buffer's offset in its space: a launch parameter if arrays of many lengths lie side by side."""
        return place_in(slot.index, slot.space) if slot.space in self.sized_spaces else slot.index

    def _memory(self, space: str, begin: int) -> Expression:
        """An address. `begin`: in the space, in bytes."""
        offset = self.offset(Slot(space, begin))
        if space == "own":
            return code("unit->own + {}", offset)
        part = self.plan.parts.get(Slot(space, offset))
        if part is not None:
            return self.slices(part, code("workspace + {}", offset), part.first)
        if space == "private":
            base, step = self.plan.workspace_bytes + begin, self.plan.private_bytes
            if space in self.sized_spaces:
                base, step = place_in(base, space), place_in(step, space)
            return code("workspace + {} + i64(unit->index) * {}", base, step)
        return code("workspace + {}", offset)

    def slices(self, part: Part, place: Expression, first: Expression | int) -> Expression:
        """The address of an array whose slices the units from `first` on keep. `place`: in the workspace."""
        self.needs.add("program")
        return code("ck_part<RESIDENT>(unit, {}, {}, {}, {})", place, part.offset, part.bytes, first)

    def load(self, value: Value, indices: tuple[Index, ...]) -> Expression:
        """The location of an element: an index from `pointer(value)`, or the register that holds it."""
        return self.register(value) if value.type.is_scalar else self.place(value, indices)

    def start(self, start: Value, position: Expression, limit: int) -> Expression:
        """The place where a slice begins, at most at `limit`. `position`: what `start` holds. A compiler sees
        by itself that a loop does not leave an array, unless the length is given with the call."""
        trips = self.counted.get(start)
        inside = trips is not None and is_general(limit) and within(trips - 1, limit)
        return position if inside else clamped(position, limit)

    def place(self, value: Value, indices: tuple[Index, ...]) -> Index:
        """The index of an element from `pointer(value)`."""
        layout = self.layout(value)
        return Index(layout.offset).along(indices, layout.strides)

    def same_place(self, a: Value, b: Value) -> bool:
        """True if copying one to the other is no work."""
        return self.plan.same_place(a, b)

    # -- operands and results of templates ---------------------------------------------------------------
    def array(self, value: Value) -> ArrayView:
        """A value as an array, even if it lives in a register."""
        dtype = value.type.dtype
        if value.type.is_scalar:
            name = self.writer.fresh("s")
            held = down(self.register(value), dtype)
            self.writer.line("const {} {}[1] = {{{}}};", STORAGE[dtype], name, held)
            return ArrayView(Pointer(name, STORAGE[dtype]), (0,) * value.type.rank, dtype)
        layout, pointer = self.layout(value), self.pointer(value)
        begin = pointer + spelled(layout.offset) if layout.offset else pointer
        return ArrayView(begin, layout.strides, dtype)

    @contextmanager
    def result(self, value: Value) -> Iterator[ArrayView]:
        """A value as an array to write; a register is assigned at the end."""
        dtype = value.type.dtype
        if not value.type.is_scalar:
            yield self.array(value)
            return
        if self.target.has_threads:  # one thread writes it, all read it
            place = self.plan.own_bytes - MAILBOX_BYTES + _LETTER_BYTES * self.letters
            pointer = self.slot_pointer(Slot("own", place), dtype)
        else:
            pointer = Pointer(self.writer.fresh("s"), STORAGE[dtype])
            self.writer.line("{} {}[1];", STORAGE[dtype], pointer)
        self.letters += 1
        yield ArrayView(pointer, row_major(value.type.shape), dtype)
        self.letters -= 1
        self.fence()
        self.set(value, up(Load(pointer, "0"), dtype))
        self.fence()

    def scratch(self, dtype: str, offset: int = 0) -> Pointer:
        """Pointer to the scratch that an operator may use while it runs."""
        address = self._memory(self.plan.scratch_space, self.plan.scratch_offset + offset)
        pointer = code("(({}*)({}))", STORAGE[dtype], address)
        return Pointer(pointer, STORAGE[dtype], self.plan.scratch_space)

    # -- units -------------------------------------------------------------------------------------------
    @property
    def has_units(self) -> bool:
        return self.plan.most_units > 1

    def is_shared(self, value: Value) -> bool:
        """True if the value lies in shared memory and all units run this code."""
        if not self.has_units or self.part_depth or value.type.is_scalar or not value.type.size:
            return False
        return self.slot(value).space in ("workspace", "output", "input")

    @contextmanager
    def alone(self, *written: Value) -> Iterator[None]:
        """Statements that only unit 0 runs: they write shared memory at device scope."""
        if any(self.is_shared(value) for value in written):
            with self.writer.block(f"if ({ALONE})"):
                yield
        else:
            yield

    def one_thread(self, *, of_one_unit: bool) -> str:
        """The condition of a statement that is executed once, by unit 0 if `of_one_unit`, else by each unit,
        or each thread that is alone."""
        terms = [ALONE] if of_one_unit and self.has_units else []
        terms += ["ck_lane() == 0"] if self.target.has_threads and not self.by_thread else []
        return " && ".join(terms)

    def fence(self) -> None:
        """A barrier between two steps of an operator: each thread of a unit sees what the others wrote."""
        self._together("waits for others")
        if self.target.block_barrier:
            self.writer.add(Barrier(self.target.block_barrier))

    def _together(self, what: str) -> None:
        """Raises UnsupportedError where a thread is alone."""
        if self.by_thread:
            raise UnsupportedError(f"what one thread runs {what}")

    def copy(self, target: Expression, source: Expression, size: int) -> None:
        """Copies bytes; all threads of the unit take part."""
        self._together("copies an array")
        if self.target.has_threads:
            self.needs.add("block")
        self.writer.add(code(self.target.copy, target=target, source=source, size=size))

    # -- the timeline ------------------------------------------------------------------------------------
    def stamp(self, region: Region, position: int) -> None:
        """Notes the clock if the table has a stamp before a statement of a region."""
        if self.stamps is not None and (number := self.stamps.before.get((id(region), position))):
            self._trace("ck_stamp({}, unit, {});", number)

    def stamp_within(self, statement: Statement) -> None:
        """Writes the stamps inside a statement."""
        if self.stamps is not None and (number := self.stamps.within.get(id(statement))):
            self._trace("ck_stamp({}, unit, {});", number)

    def begin_trace(self) -> None:
        if self.stamps is not None:
            self.needs |= {"units", "trace"}
            self._trace("ck_begin_trace({}, unit);")

    def end_trace(self) -> None:
        if self.stamps is not None:
            self._trace("ck_end_trace({}, unit);")

    def _trace(self, template: str, *operands: int) -> None:
        self.writer.line(template, self.slot_pointer(Slot("output", self.rings), "uint64"), *operands)


Emitter = Callable[[Context, UOperator], None]  # writes the call of an anchor's template
