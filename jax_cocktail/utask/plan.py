"""Plan types: the decisions of scheduling, which emitters read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax_cocktail.utask.ir import UOperator, UProgram, regions_in
from jax_cocktail.utask.lapack import calls_lapack, lapack_bytes
from jax_cocktail.utask.layout import Layout, dense, view
from jax_cocktail.utask.sizes import Parameter, at
from jax_cocktail.utask.types import Value

_LAUNCH_VERSION = 2
ALIGNMENT = 64  # bytes of every buffer: a line of the host's cache, and its widest vector
MAILBOX_BYTES = ALIGNMENT  # at the end of a unit's own memory: one thread leaves a scalar there for others


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of a buffer. `space`: input | output (`index` = operand or result number) | workspace (`index` =
    byte offset; one for all units) | own (`index` = byte offset in each unit's own memory) | private (the
    same, in larger memory further away) | thread (each thread's own) | constant (`index` = value id)."""

    space: str
    index: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The density of a space, in bytes. `peak`: its size; `bound`: the largest set of buffers that are
    live at the same time: no plan needs less; `total`: all buffers, its size if no memory is used again."""

    peak: int
    bound: int
    total: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Static memory of a program.

    `layouts`: the layout of every value that is not a register; `slots`: memory of every root; `aliases`:
    (operand, result) pairs that share memory; `workspace_bytes`, `own_bytes`, `private_bytes`: sizes of the
    workspace and of each unit's own and private memory; `scratch_space`, `scratch_offset`: the scratch, the
    last part of its space, free for one operator at a time (`scratch_bytes`); `most_units`: number of units
    that find work; `template_bytes`: near memory that templates use while they run; `parts`: workspace
    buffers whose slices may also be with the units that alone touch them; `cluster`: units are one cluster;
    `usage`: of every space that has buffers or scratch; `thread_bytes`: of the memory of each thread; `work`:
    units that have work in each parallel loop, if some of these numbers follow from general sizes.
    """

    layouts: Mapping[Value, Layout]
    slots: Mapping[Value, Slot]
    aliases: tuple[tuple[int, int], ...]
    workspace_bytes: int
    scratch_offset: int = 0
    own_bytes: int = 0
    most_units: int = 1
    scratch_space: str = "workspace"
    private_bytes: int = 0
    template_bytes: int = 0
    parts: Mapping[Slot, Part] = field(default_factory=dict)
    cluster: bool = False
    usage: Mapping[str, Usage] = field(default_factory=dict)
    thread_bytes: int = 0
    work: tuple[int, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """The size of the workspace, including the private memory of every unit behind it."""
        return self.workspace_bytes + self.most_units * self.private_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of a unit's memory that its slices take."""
        return max((part.offset + part.bytes for part in self.parts.values()), default=0)

    @property
    def resident_units(self) -> int:
        """The least number of units that can run the program with slices in memory of their own."""
        return self.most_units if self.parts or self.cluster else 1

    def in_call(self, given: Mapping[Parameter, int]) -> MemoryPlan:
        """The plan with the bytes, and the units that have work, of a call with these numbers for general
        ones. Units that keep slices or are a cluster are always as many."""
        units = self.most_units
        if self.work and self.resident_units == 1:
            units = max(min(units, max(at(parts, given) for parts in self.work)), 1)
        return replace(
            self,
            workspace_bytes=at(self.workspace_bytes, given),
            own_bytes=at(self.own_bytes, given),
            private_bytes=at(self.private_bytes, given),
            most_units=units,
        )

    def slot(self, value: Value) -> Slot:
        """Memory of the buffer that holds a value in a layout."""
        return self.slots[self.layouts[value].root]

    def place(self, value: Value) -> Slot:
        """Memory behind a value in a layout; that of a result for an operand that shares it."""
        slot = self.slot(value)
        if slot.space != "input":
            return slot
        return next((Slot("output", b) for a, b in self.aliases if a == slot.index), slot)

    def same_place(self, a: Value, b: Value) -> bool:
        """True if two whole values share a buffer, so that copying one to the other is no work."""
        return self.layouts[a].is_whole and self.layouts[b].is_whole and self.place(a) == self.place(b)


@dataclass(frozen=True, slots=True)
class Part:
    """The slices of an array in the memory of the units that own them, in bytes: `offset` in the unit's
    memory, `bytes` of a slice; unit `first` owns the first one."""

    offset: int
    bytes: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch of a program on a GPU.

    `header_bytes`: size of the beginning of the workspace, cleared before every launch (barriers and tags), 0
    where nothing crosses units; `most_units`: number of blocks that find work; `threads`: threads of a block;
    `resident_shared_bytes`, `portable_shared_bytes`: dynamic shared memory of a block of either kernel;
    `workspace_bytes`: size of the call's last result, header included, 0 for none; `cooperative`: blocks wait
    for each other; `can_fail`: the program may leave an error code; `resident_units`: blocks that the
    resident kernel needs at least; `portable_units`: blocks for which the workspace has room; 0 in either
    means `most_units`; `cluster`: the blocks of the resident kernel are one cluster, which needs no header
    and no cooperative launch; `sizes`: the launch parameters, which the kernel gets behind its pointers.
    """

    header_bytes: int
    most_units: int
    threads: int
    resident_shared_bytes: int
    portable_shared_bytes: int
    workspace_bytes: int
    cooperative: bool
    can_fail: bool = False
    resident_units: int = 0
    portable_units: int = 0
    cluster: bool = False
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shared = self.resident_shared_bytes, self.portable_shared_bytes
        sizes = min(self.header_bytes, *shared) >= 0 and self.workspace_bytes >= self.header_bytes
        few, many = sorted((self.resident_units, self.portable_units))
        whole = not self.cluster or (self.resident_units or self.most_units) == self.most_units
        grids = few >= 0 and many <= self.most_units and 1 <= self.most_units < 1 << 20
        if not (sizes and grids and whole) or not 1 <= self.threads <= 1024:
            raise ValueError(f"not a launch: {self}")

    @property
    def attribute(self) -> tuple[int, ...]:
        """The fields as the handler reads them (struct LaunchPlan of handler_programs.h)."""
        units = self.resident_units or self.most_units, self.portable_units or self.most_units
        others = (int(getattr(self, name)) for name in self.__slots__[:-4])
        return (_LAUNCH_VERSION, *others, *units, int(self.cluster), *self.sizes)

    @classmethod
    def from_attribute(cls, values: Sequence[int]) -> LaunchPlan:
        """The plan with this `attribute`; raises ValueError if it is of another version."""
        count = len(cls.__slots__)
        if len(values) < count or values[0] != _LAUNCH_VERSION:
            raise ValueError(f"not a launch plan of version {_LAUNCH_VERSION}")
        found: dict[str, Any] = dict(zip(cls.__slots__[:-1], values[1:count], strict=True))
        found |= {name: bool(found[name]) for name in ("cooperative", "can_fail", "cluster")}
        return cls(**found, sizes=tuple(values[count:]))


def layouts_of(program: UProgram) -> dict[Value, Layout]:
    """Layouts of all values in memory of a stitched program (registers have none)."""
    layouts: dict[Value, Layout] = {}
    for region in regions_in(program.entry):
        layouts |= _own(region.parameters)
        for statement in region.body:
            if isinstance(statement, UOperator) and _is_view(statement, layouts):
                seen = view(statement, layouts[statement.inputs[0]])
                assert seen is not None
                layouts[statement.output] = seen
            else:
                layouts |= _own(statement.outputs)
    return layouts


def _own(values: Sequence[Value]) -> dict[Value, Layout]:
    return {value: dense(value) for value in values if not value.type.is_scalar}


def _is_view(operator: UOperator, layouts: Mapping[Value, Layout]) -> bool:
    """True for movement operators that stitching left alone; all other operators own memory."""
    if not operator.is_element or not operator.inputs or operator.output.type.size == 0:
        return False
    return operator.inputs[0] in layouts and not operator.output.type.is_scalar


def scratch_bytes(operator: UOperator) -> int:
    """Scratch memory of a running operator: sorting moves indices, not elements."""
    if calls_lapack(operator):
        return lapack_bytes(operator)
    if not operator.facts.orders:
        return 0
    axis = operator[operator.facts.orders]
    assert isinstance(axis, int)
    return 2 * 4 * operator.inputs[0].type.shape[axis]
