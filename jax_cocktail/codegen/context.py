"""What the emitters of one program share: the plan, names of registers and buffers, headers in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jax_cocktail.codegen.stages import Name, StageTable
from jax_cocktail.codegen.text import COMPUTE, NARROW, STORAGE, Index, Writer
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.target import Target
from jax_cocktail.utask.layout import Layout, row_major
from jax_cocktail.utask.plan import MAILBOX_BYTES, MemoryPlan, Slot
from jax_cocktail.utask.types import Value

ALONE = "unit->index == 0"
_PREFIX = {"workspace": "w", "own": "o", "private": "q"}  # of the names of pointers


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array as the text of a pointer to its first element, with strides in elements."""

    pointer: str
    strides: tuple[int, ...]
    dtype: str

    def place(self, indices: Sequence[Index]) -> Index:
        """Where one element lies, counted from `pointer`."""
        place = Index()
        for index, stride in zip(indices, self.strides, strict=True):
            place = place + index * stride
        return place

    def at(self, indices: Sequence[Index]) -> str:
        """Text of one element in its storage type."""
        return f"{self.pointer}[{self.place(indices).text()}]"

    def read(self, indices: Sequence[Index]) -> str:
        """Text of one element in its compute type."""
        text = self.at(indices)
        return f"ck_up({text})" if self.dtype in NARROW else text


@dataclass(slots=True)
class Context:
    """Mutable state of one emission."""

    machine: Machine
    plan: MemoryPlan
    writer: Writer
    needs: set[str] = field(default_factory=lambda: {"base", "index", "arith"})
    registers: dict[Value, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)  # register -> C type
    buffers: dict[str, tuple[str, str]] = field(default_factory=dict)  # pointer -> C type, where it points
    views: dict[str, str] = field(default_factory=dict)  # run-time pointer -> C type
    near: set[str] = field(default_factory=set)  # pointers to what a unit may keep near
    stages: StageTable | None = None
    given: dict[str, str] = field(default_factory=dict)  # what a function gets from the one around -> C type
    indices: list[str] = field(default_factory=list)  # of the loops around the statement at hand
    first_codes: Mapping[str, int] = field(default_factory=dict)  # see `utask.failure`
    part_depth: int = 0  # parallel loops around the statement at hand

    @property
    def target(self) -> Target:
        """The spellings."""
        return self.machine.target

    def about(self, name: str) -> Name:
        """What a function has to know about a name that it gets."""
        if name in self.buffers:
            type_ = self.buffers[name][0]
        else:
            type_ = self.views.get(name) or self.declared.get(name) or self.given.get(name, "i64")
        where = self.target.near if name in self.near else self.target.far
        return Name(type_, where if type_.endswith("*") else "")

    # -- registers ---------------------------------------------------------------------------------------
    def register(self, value: Value) -> str:
        """Name of the scalar variable that holds a one-element value."""
        if value not in self.registers:
            name = f"v{value.id}"
            self.registers[value] = name
            self.declared[name] = COMPUTE[value.type.dtype]
        return self.registers[value]

    def alias(self, value: Value, other: Value) -> None:
        """Makes two one-element values one variable."""
        self.registers[value] = self.register(other)

    def rounded(self, text: str, dtype: str) -> str:
        """A register holds what memory would hold."""
        return f"ck_up(ck_down<{STORAGE[dtype]}>({text}))" if dtype in NARROW else text

    # -- memory ------------------------------------------------------------------------------------------
    def layout(self, value: Value) -> Layout:
        return self.plan.layouts[value]

    def slot(self, value: Value) -> Slot:
        return self.plan.slots[self.layout(value).root]

    def pointer(self, value: Value) -> str:
        """Name of the pointer that the layout of `value` counts from."""
        layout = self.layout(value)
        if layout.base != layout.root:
            return f"d{layout.base.id}"
        return self.slot_pointer(self.plan.slots[layout.root], value.type.dtype)

    def slot_pointer(self, slot: Slot, dtype: str) -> str:
        storage = STORAGE[dtype]
        if slot.space == "constant":
            return f"((const {storage}*)c{slot.index})"
        if slot.space in _PREFIX:
            name = f"{_PREFIX[slot.space]}{slot.index}_{storage}"
            self.buffers[name] = (f"{storage}*", self._memory(slot.space, slot.index))
            self.near |= {name} if self.is_near(slot) else set()
            return name
        space, prefix, const = ("operands", "p", "const ") if slot.space == "input" else ("results", "r", "")
        name = f"{prefix}{slot.index}"
        self.buffers[name] = (f"{const}{storage}*", f"{space}[{slot.index}]")
        return name

    def is_near(self, slot: Slot) -> bool:
        """True for memory of one unit, which may be kept near it."""
        return slot.space == "own" or Slot(slot.space, slot.index) in self.plan.parts

    def _memory(self, space: str, offset: int) -> str:
        """Text of an address."""
        if space == "own":
            return f"unit->own + {offset}"
        part = self.plan.parts.get(Slot(space, offset))
        if part is not None:
            self.needs.add("program")
            return f"ck_part<RESIDENT>(unit, workspace + {offset}, {part.offset}, {part.bytes}, {part.first})"
        if space == "private":
            base = self.plan.workspace_bytes + offset
            return f"workspace + {base} + i64(unit->index) * {self.plan.private_bytes}"
        return f"workspace + {offset}"

    def load(self, value: Value, indices: tuple[Index, ...]) -> Index | str:
        """Where an element lies: an index from `pointer(value)`, or the name of a register."""
        if value.type.is_scalar:
            return self.register(value)
        layout = self.layout(value)
        place = Index(layout.offset)
        for index, stride in zip(indices, layout.strides, strict=True):
            place = place + index * stride
        return place

    def same_place(self, a: Value, b: Value) -> bool:
        """True if copying one to the other is no work."""
        return self.plan.same_place(a, b)

    # -- operands and results of templates ---------------------------------------------------------------
    def array(self, value: Value) -> ArrayView:
        """A value as an array, even if it lives in a register."""
        dtype = value.type.dtype
        if value.type.is_scalar:
            name = self.writer.fresh("s")
            text = (
                f"ck_down<{STORAGE[dtype]}>({self.register(value)})"
                if dtype in NARROW
                else self.register(value)
            )
            self.writer.line(f"const {STORAGE[dtype]} {name}[1] = {{{text}}};")
            return ArrayView(name, (0,) * value.type.rank, dtype)
        layout = self.layout(value)
        pointer = self.pointer(value)
        if layout.offset:
            pointer = f"({pointer} + {layout.offset})"
        return ArrayView(pointer, layout.strides, dtype)

    @contextmanager
    def result(self, value: Value) -> Iterator[ArrayView]:
        """A value as an array to write; a register is assigned at the end."""
        dtype = value.type.dtype
        if not value.type.is_scalar:
            yield self.array(value)
            return
        if self.target.has_threads:  # one thread writes it, all read it
            name = self.slot_pointer(Slot("own", self.plan.own_bytes - MAILBOX_BYTES), dtype)
        else:
            name = self.writer.fresh("s")
            self.writer.line(f"{STORAGE[dtype]} {name}[1];")
        yield ArrayView(name, row_major(value.type.shape), dtype)
        text = f"ck_up({name}[0])" if dtype in NARROW else f"{name}[0]"
        self.fence()
        self.writer.line(f"{self.register(value)} = {text};")
        self.fence()

    def scratch(self, dtype: str, offset: int = 0) -> str:
        """Pointer into the part of the workspace that one operator may use while it runs."""
        address = self._memory(self.plan.scratch_space, self.plan.scratch_offset + offset)
        return f"(({STORAGE[dtype]}*)({address}))"

    # -- units -------------------------------------------------------------------------------------------
    @property
    def has_units(self) -> bool:
        return self.plan.most_units > 1

    def is_shared(self, value: Value) -> bool:
        """True if the value lies in memory that several units see, and this is code that all of them run."""
        if not self.has_units or self.part_depth or value.type.is_scalar or not value.type.size:
            return False
        return self.slot(value).space in ("workspace", "output", "input")

    @contextmanager
    def alone(self, *written: Value) -> Iterator[None]:
        """What writes shared memory at mesh level is done by unit 0."""
        if any(self.is_shared(value) for value in written):
            with self.writer.block(f"if ({ALONE})"):
                yield
        else:
            yield

    def one_thread(self, *, of_one_unit: bool) -> str:
        """What stands before a statement that is executed once, by unit 0 if `of_one_unit`, else by each."""
        terms = [ALONE] if of_one_unit and self.has_units else []
        terms += ["ck_lane() == 0"] if self.target.has_threads else []
        return f"if ({' && '.join(terms)}) " if terms else ""

    def fence(self) -> None:
        """Between two steps of one operator: the threads of a unit see what the others wrote."""
        if self.target.meet:
            self.writer.line(self.target.meet)

    def copy(self, target: str, source: str, size: int) -> None:
        """Copies bytes; all threads of the unit take part."""
        if self.target.has_threads:
            self.needs.add("block")
        self.writer.line(self.target.copy.format(target=target, source=source, size=size))


def stored(text: str, dtype: str) -> str:
    """A value of the compute type as it is stored."""
    return f"ck_down<{STORAGE[dtype]}>({text})" if dtype in NARROW else text
