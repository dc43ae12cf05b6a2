"""Plans static memory: assigns a buffer to each root, and an address to each buffer.

Carries, branch results and in-place updates are the phi functions of this IR: one buffer for both sides
replaces a copy (copy coalescing). The emitter copies where both sides cannot share. Nothing is allocated at
run time (ATB plans its workspace the same way, once per program).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jax_cocktail.errors import PlacementError
from jax_cocktail.schedule.memory.liveness import Liveness, liveness
from jax_cocktail.schedule.memory.packing import ALWAYS, Item, lower_bound, pack
from jax_cocktail.schedule.memory.sharing import Sharing, sharing_of
from jax_cocktail.utask.ir import UOperator, UProgram, is_a, is_parallel, walk
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.plan import ALIGNMENT, MemoryPlan, Slot, Usage, layouts_of, scratch_bytes
from jax_cocktail.utask.sizes import enough
from jax_cocktail.utask.types import Value


def plan_memory(program: UProgram, near: int | None = None, units: int = 0, warp: int = 1) -> MemoryPlan:
    """Expects a stitched program. `units`: the most that share the trips of loops by threads, 0 for any
    number; `warp`: such trips that one unit takes together.

    `near`: bytes of small, fast memory that each unit has (the shared memory of a thread block); None if a
    unit's own memory is like any other.
    """
    layouts = layouts_of(program)
    live = liveness(program, layouts)
    classes = _Classes(live)
    constants = _constants(program, layouts)
    for root in (*_parameters(program, layouts), *constants):
        classes.freeze(root)
    received = _received(program)
    if received:
        classes.keep_apart(received, _shared_for_sure(program, layouts))
    for a, b in live.same:
        classes.unite(a, b)
    for _, source, target in sorted(live.wishes, key=lambda w: -w[0]):
        classes.try_unite(source, target)
    slots: dict[Value, Slot] = {r: Slot("constant", r.id) for r in constants}
    slots |= {v: Slot("input", i) for i, v in enumerate(program.entry.parameters) if v in layouts}
    pinned = _pin_results(program, layouts, classes)
    aliases = _alias_inputs(program, layouts, classes, live, pinned)
    groups = classes.groups()
    number = {classes.find(root): result for result, root in reversed(pinned.items())}
    for group in groups:
        result = number.get(classes.find(group[0]))
        if result is not None:
            slots.update((root, Slot("output", result)) for root in group if root not in slots)
    operators = (s for s in walk(program.entry) if isinstance(s, UOperator))
    scratch = enough(scratch_bytes(s) for s in operators)
    free = [g for g in groups if g[0] not in slots]
    sharing = sharing_of(program, layouts, classes.find, {classes.find(r) for r in slots}, units, warp)
    plan = MemoryPlan(layouts, slots, aliases, 0)
    if sharing is None:
        return _with_own(plan, free, live, scratch, "workspace", near)
    if any(sharing.is_shared(root) for root in received):
        raise PlacementError("what a unit receives from others lies where all of them see it")
    shared = _lay_out([g for g in free if sharing.is_shared(g[0])], live, "workspace", sharing)
    plan = replace(plan, slots={**slots, **shared.slots}, most_units=sharing.most_units, work=sharing.work)
    if shared.size:
        plan = replace(plan, workspace_bytes=shared.size, usage={"workspace": shared.usage})
    alone = _of_threads([g for g in free if classes.find(g[0]) in sharing.alone], live)
    if alone.size:
        usage = {**plan.usage, "thread": alone.usage}
        plan = replace(plan, slots={**plan.slots, **alone.slots}, usage=usage, thread_bytes=alone.size)
    own = [g for g in free if not sharing.is_shared(g[0]) and g[0] not in alone.slots]
    return _with_own(plan, own, live, scratch, "own" if near is None else "private", near)


@dataclass(frozen=True, slots=True)
class _Laid:
    """Buffers in a space: their slots, the buffers, the size of all, and that of the largest live set."""

    slots: Mapping[Value, Slot]
    items: tuple[Item, ...]
    size: int
    bound: int

    @property
    def usage(self) -> Usage:
        return Usage(self.size, self.bound, sum(item.size for item in self.items))

    def with_scratch(self, size: int, live: int) -> _Laid:
        """This plan with scratch memory behind the buffers. Where it is in use, its positions say."""
        if not size:
            return self
        items = (*self.items, Item(size, live))
        return _Laid(self.slots, items, self.size + size, lower_bound(items))


def _with_own(
    plan: MemoryPlan, groups: list[list[Value]], live: Liveness, scratch: int, far: str, near: int | None
) -> MemoryPlan:
    """Adds the buffers that each unit has for itself: as many as fit in near memory, smallest first; the
    others, or all if there is no near memory, in the space `far`. The scratch comes last in its space."""
    inside = _lay_out([], live, "own")
    if near is not None:
        ordered = sorted(groups, key=lambda g: (g[0].type.nbytes, g[0].id))
        count = _most_that_fit(ordered, live, near)
        inside, groups = _lay_out(ordered[:count], live, "own"), ordered[count:]
    outside = _lay_out(groups, live, far)
    is_near = near is not None and inside.size + scratch <= near
    laid = {"own": inside, far: outside}
    space = "own" if is_near else far
    offset = laid[space].size
    laid[space] = laid[space].with_scratch(scratch, live.scratch)
    sizes = {name: each.size for name, each in laid.items()}
    if far == "workspace":
        plan = replace(plan, workspace_bytes=sizes[far])
    return replace(
        plan,
        slots={**plan.slots, **inside.slots, **outside.slots},
        usage={**plan.usage, **{name: each.usage for name, each in laid.items() if each.size}},
        scratch_offset=offset,
        scratch_space=space,
        own_bytes=sizes["own"],
        private_bytes=sizes.get("private", 0),
    )


def _of_threads(groups: list[list[Value]], live: Liveness) -> _Laid:
    """The buffers that each thread has for itself. Compilers of device code may exchange accesses to
    different types, where no barrier is between them: these never share bytes."""
    found = _Laid({}, (), 0, 0)
    for dtype in sorted({g[0].type.dtype for g in groups}):
        laid = _lay_out([g for g in groups if g[0].type.dtype == dtype], live, "thread")
        slots = {root: Slot("thread", found.size + slot.index) for root, slot in laid.slots.items()}
        items = (*found.items, *laid.items)
        found = _Laid({**found.slots, **slots}, items, found.size + laid.size, found.bound + laid.bound)
    return found


def _most_that_fit(groups: list[list[Value]], live: Liveness, size: int) -> int:
    """The largest number of leading groups that fit in `size` bytes."""
    low, high = 0, len(groups)
    while low < high:
        middle = (low + high + 1) // 2
        items = _items(_largest_first(groups[:middle]), live)
        if lower_bound(items) <= size and pack(items, enough=size).peak <= size:
            low = middle
        else:
            high = middle - 1
    return low


class _Classes:
    """Union-find over memory roots, with the rule that says when two classes may share a buffer."""

    def __init__(self, live: Liveness) -> None:
        self.live = live
        self.parent: dict[Value, Value] = {}
        self.members: dict[Value, list[Value]] = {}
        self.frozen: set[Value] = set()  # roots in read-only memory
        self.own: set[Value] = set()  # leaders of classes that every unit has for itself
        self.shared: set[Value] = set()  # leaders of classes that all units see
        for root in live.mask:
            self.find(root)

    def find(self, root: Value) -> Value:
        if root not in self.parent:
            self.parent[root] = root
            self.members[root] = [root]
        while self.parent[root] != root:
            self.parent[root] = self.parent[self.parent[root]]
            root = self.parent[root]
        return root

    def freeze(self, root: Value) -> None:
        self.frozen.add(self.find(root))

    def keep_apart(self, own: Iterable[Value], shared: Iterable[Value]) -> None:
        """Lets no class have roots of both sorts."""
        self.own.update(map(self.find, own))
        self.shared.update(map(self.find, shared))

    def unite(self, a: Value, b: Value) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
            self.members[a] += self.members.pop(b)
            for leaders in (self.own, self.shared):
                if b in leaders:
                    leaders.add(a)

    def try_unite(self, a: Value, b: Value) -> bool:
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if a in self.frozen or b in self.frozen or not self._compatible(a, b):
            return False
        if not {a, b}.isdisjoint(self.own) and not {a, b}.isdisjoint(self.shared):
            return False
        self.unite(a, b)
        return True

    def _compatible(self, a: Value, b: Value) -> bool:
        if a.type.dtype != b.type.dtype or a.type.size != b.type.size:
            return False
        mask = self.live.mask
        for x in self.members[a]:
            for y in self.members[b]:
                common = mask[x] & mask[y]
                while common:
                    lowest = common & -common
                    if not self._in_step(x, y, lowest):
                        return False
                    common ^= lowest
        return True

    def _in_step(self, x: Value, y: Value, bit: int) -> bool:
        return frozenset((x, y)) in self.live.related.get(bit.bit_length() - 1, ())

    def groups(self) -> list[list[Value]]:
        return [members for root, members in self.members.items() if root not in self.frozen]


def _parameters(program: UProgram, layouts: Mapping[Value, Layout]) -> list[Value]:
    return [v for v in program.entry.parameters if v in layouts]


def _received(program: UProgram) -> list[Value]:
    """Values that units receive from each other."""
    return [v for s in walk(program.entry) if is_a(s, "exchange") for v in s.outputs]


def _shared_for_sure(program: UProgram, layouts: Mapping[Value, Layout]) -> list[Value]:
    """Roots that are shared in any case: operands, constants, and arrays of parallel loops."""
    found = _parameters(program, layouts) + _constants(program, layouts)
    for statement in walk(program.entry):
        if is_parallel(statement):
            found += [layouts[v].root for v in (*statement.carried, *statement.outputs) if v in layouts]
    return found


def _constants(program: UProgram, layouts: Mapping[Value, Layout]) -> list[Value]:
    found = (s.output for s in walk(program.entry) if is_a(s, "constant"))
    return [v for v in found if v in layouts]


def _pin_results(program: UProgram, layouts: Mapping[Value, Layout], classes: _Classes) -> dict[int, Value]:
    """result number -> root computed directly into its buffer."""
    pinned: dict[int, Value] = {}
    taken: set[Value] = set()
    for number, value in enumerate(program.entry.results):
        layout = layouts.get(value)
        if layout is None or not layout.is_whole:
            continue
        leader = classes.find(layout.root)
        if leader not in classes.frozen | classes.own and leader not in taken:
            taken.add(leader)
            pinned[number] = layout.root
    return pinned


def _alias_inputs(
    program: UProgram,
    layouts: Mapping[Value, Layout],
    classes: _Classes,
    live: Liveness,
    pinned: Mapping[int, Value],
) -> tuple[tuple[int, int], ...]:
    """(operand, result) pairs that share memory: donated operands with results that overwrite them. XLA
    requires equal types."""
    aliases: list[tuple[int, int]] = []
    given = program.entry.results
    donated = {program.entry.parameters[operand]: operand for operand in program.donated}
    for _, source, target in live.wishes:
        if source not in donated:
            continue
        operand, leader = donated[source], classes.find(target)
        results = [
            n for n, root in pinned.items() if classes.find(root) == leader and given[n].type == source.type
        ]
        if not results or any(operand == i or results[0] == o for i, o in aliases):
            continue
        classes.frozen.discard(source)
        if classes.try_unite(source, target):
            aliases.append((operand, results[0]))
        else:
            classes.frozen.add(source)
    return tuple(aliases)


def _lay_out(groups: list[list[Value]], live: Liveness, space: str, sharing: Sharing | None = None) -> _Laid:
    """Buffers with disjoint lifetimes overlap, unless that needs a barrier."""
    groups = _largest_first(groups)
    items = _items(groups, live, sharing)
    packing = pack(items)
    placed = zip(groups, packing.offsets, strict=True)
    slots = {root: Slot(space, begin) for group, begin in placed for root in group}
    return _Laid(slots, items, packing.peak, packing.bound)


def _largest_first(groups: list[list[Value]]) -> list[list[Value]]:
    return sorted(groups, key=lambda g: (-g[0].type.nbytes, g[0].id))


def _items(groups: list[list[Value]], live: Liveness, sharing: Sharing | None = None) -> tuple[Item, ...]:
    """The buffers of groups."""
    least = 0 if sharing is None else sharing.overlap_bytes
    found = []
    for group in groups:
        mask, size = 0, group[0].type.nbytes
        for root in group:
            mask |= live.mask[root]
        found.append(Item(aligned(max(size, 1)), ALWAYS if size < least else mask))
    return tuple(found)


def aligned(size: int) -> int:
    """The bytes that a buffer of this size takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT
