"""Emits whole programs: control flow, views, copies at joins, the enclosing function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

from jax_cocktail.codegen import stops, threads
from jax_cocktail.codegen.anchors import emit_anchor
from jax_cocktail.codegen.context import ALONE, OF_THREAD, Context
from jax_cocktail.codegen.divide import LENGTH, divide
from jax_cocktail.codegen.early import EarlyLoads
from jax_cocktail.codegen.groups import emit_group
from jax_cocktail.codegen.held import emit_run, holding, run_at
from jax_cocktail.codegen.kernel import (
    LEFT,
    Comment,
    Compound,
    Expression,
    Line,
    Name,
    SizeName,
    Spelled,
    spelled,
    text,
)
from jax_cocktail.codegen.launch import Text, counts, declared, lengths, own_size, parameters, sized_spaces
from jax_cocktail.codegen.outline import (
    Outer,
    OutlineTable,
    body_of,
    declarations,
    gives_register,
    is_outlined,
    product_in,
    touches,
)
from jax_cocktail.codegen.parts import PART_BYTES, arranged, tables
from jax_cocktail.codegen.roles import Role, roles_of
from jax_cocktail.codegen.stamps import StampTable
from jax_cocktail.codegen.text import COMPUTE, MOST_ELEMENTS, STORAGE
from jax_cocktail.codegen.threads import alone
from jax_cocktail.codegen.transfer import emit_transfer
from jax_cocktail.codegen.writer import Writer, code, down, joined, up
from jax_cocktail.cost.kernel import outlines_loops
from jax_cocktail.device.machine import Machine
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.exchange import anything_crosses, tagged_words
from jax_cocktail.utask.failure import first_codes
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    by_threads,
    is_a,
    operators_in,
)
from jax_cocktail.utask.operators import HALVES
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import NOWHERE

FIRST = Name("first", outer=True)  # the unit that executes the first trip: a parameter of a part


def emit_program(
    program: UProgram,
    plan: MemoryPlan,
    machine: Machine,
    *,
    places: bool = False,
    stamps: StampTable | None = None,
) -> Text:
    """The source text of a stitched program under a memory plan. Raises UnsupportedError.

    The text has neither names nor positions of the user's program, so that a program that moves is not
    compiled again. `places`: comments for readers say where in the user's program statements come from.
    `stamps`: those of a traced program, which has one more result.
    """
    target = machine.target
    for size in {v.type.size for v in plan.layouts} if target.index == "i32" else ():
        if size > MOST_ELEMENTS:
            raise UnsupportedError(f"an array of {size} elements: a GPU program counts them in 32 bits")
    codes = first_codes(operators_in(program.entry))
    functions = OutlineTable(target, can_fail=bool(codes))
    context = Context(machine, plan, Writer(target.index), first_codes=codes)
    context.outlines = functions if outlines_loops(program, target.outline_limit) else None
    context.products = functions if functions.has_pieces else context.outlines
    context.places, context.stamps, context.rings = places, stamps, len(program.entry.results)
    context.sizes, context.counts = lengths(program, plan), counts(plan)
    context.sized_spaces = sized_spaces(plan, target.sized_spaces)
    begin, end = (target.fail_begin, target.fail_end) if codes else ((), target.epilogue)
    context.begin_trace()
    _load_parameters(context, program)
    _emit_region(context, program.entry)
    _store_results(context, program)
    context.end_trace()
    nodes, given = divide(context.writer.nodes, context.about, functions, LENGTH)
    lines, names = body_of([*map(code, begin), *nodes, *map(code, end)], context.about)
    sizes, own = parameters(names), own_size(plan, target)
    if context.has_units or target.has_threads or sizes:
        context.needs.add("units")
    numbers = facts(program, plan, stamps) | {"sizes": len(sizes) + len(own), "own_size": len(sizes)}
    if context.sized_spaces:
        numbers["shared_bytes"] = 0  # they follow from launch parameters
    if own and functions.has_parts:
        raise UnsupportedError("own memory that follows from launch parameters, in functions without these")
    if own:
        numbers["own_bytes"] = 0
    prologue = target.prologue_of(numbers, plan.cluster) + (stamps.prologue if stamps else ())
    prologue += target.own_sized if own else ()
    head = ["// jax_cocktail program", *(line.format(**numbers) for line in prologue)]
    head += [f'#include "cocktail_{each}.h"' for each in target.headers if each in context.needs]
    units = [text.format(**numbers) for text in target.units if context.has_units]
    chosen = _spelled(context, names) | {name: f"size{number}" for number, name in enumerate(sizes)}
    chosen[LEFT] = "failed" if codes else "0"
    others = declarations({name: names[name] for name in sorted(names.keys() - chosen.keys())}, given)
    body = text([*declared(sizes, context.size_type, target.assume), *others, *lines], chosen)
    entry = ["", f"{target.entry} {{", body, "}", *target.footer]
    constants, part_bytes = tables(program, plan, target), PART_BYTES if functions.has_pieces else 0
    parts = arranged(units, constants, functions.functions(), entry, part_bytes)
    given_sizes = (*(each.parameter for each in sizes), *own)
    return Text("\n".join([*head, *parts, ""]), given_sizes, tuple(context.loops))


def _spelled(context: Context, names: Mapping[Name, Outer]) -> dict[Name, str]:
    """A program with outlined functions reads pointers to operands and results at their uses: hundreds of
    them would take all registers of a thread."""
    if context.outlines is None or not context.target.has_threads:
        return {}
    places = ("input", "output")
    arrays = ((name, about) for name, about in names.items() if about.slot and about.slot.space in places)
    return {name: f"(({about.type})({about.address}))" for name, about in arrays}


def facts(program: UProgram, plan: MemoryPlan, stamps: StampTable | None = None) -> dict[str, int]:
    """Numbers of a program that a target may define in its prologue."""
    return {
        "operands": len(program.entry.parameters),
        "results": len(program.entry.results) + (stamps is not None),
        "most_units": plan.most_units,
        "resident_units": plan.resident_units,
        "own_bytes": plan.own_bytes,
        "shared_bytes": plan.shared_bytes,
        "resident_bytes": plan.resident_bytes,
        "scratch_bytes": plan.template_bytes,
        "crosses": anything_crosses(operators_in(program.entry)),
        "tagged_words": tagged_words(operators_in(program.entry), plan.most_units),
    }


def _load_parameters(context: Context, program: UProgram) -> None:
    for position, value in enumerate(program.entry.parameters):
        if value.type.is_scalar:
            storage = STORAGE[value.type.dtype]
            context.set(value, up(code("*(const {}*)operands[{}]", storage, position), value.type.dtype))


def _store_results(context: Context, program: UProgram) -> None:
    for position, value in enumerate(program.entry.results):
        dtype = value.type.dtype
        if value.type.is_scalar:
            home = code("*({}*)results[{}]", STORAGE[dtype], position)
            once = context.one_thread(of_one_unit=True)
            context.writer.set(home, down(context.register(value), dtype), once)
            continue
        layout, slot = context.layout(value), context.slot(value)
        if value.type.size == 0 or (layout.is_whole and (slot.space, slot.index) == ("output", position)):
            continue
        begin: Expression = context.pointer(value)
        begin = code("{} + {}", begin, layout.offset) if layout.offset else begin
        with context.writer.block(f"if ({ALONE})") if context.has_units else nullcontext():
            context.copy(f"results[{position}]", begin, value.type.nbytes)


# -- statements ----------------------------------------------------------------------------------------------
def _emit_region(context: Context, region: Region) -> None:
    where, early, run = NOWHERE, EarlyLoads(context), range(0)
    for position, statement in enumerate(region.body):
        if context.places and statement.source.file and statement.source != where:
            where = statement.source
            short = replace(where, file=where.file.rsplit("/", 1)[-1])
            context.writer.add(Comment(str(short)))  # never ends in a backslash: see `Source.__str__`
        if position not in run:
            context.stamp(region, position)
            run = run_at(context, region, position)
            if not (run and emit_run(context, region, run)):
                run = range(0)
                _emit_statement(context, statement)
        if context.target.has_threads and not (position in run and is_a(statement, "block_barrier")):
            early.after(statement)


def _emit_statement(context: Context, statement: Statement) -> None:
    if isinstance(statement, LoopUTask):
        _emit_loop(context, statement)
    elif isinstance(statement, BranchUTask):
        _emit_branch(context, statement)
    elif isinstance(statement, StitchedUTask):
        _emit_stitched(context, statement)
    elif statement.is_element:
        _emit_view(context, statement)
    elif statement.kind == "block_barrier":
        context.fence()
    elif statement.kind in HALVES:
        _emit_barrier(context, statement.kind)
    else:
        with context.alone(*statement.outputs):
            outlined = is_outlined(statement) or (context.target.has_threads and gives_register(statement))
            _emit_part(context, outlined, statement, partial(emit_anchor, context, statement))


def _emit_barrier(context: Context, half: str) -> None:
    target = context.target
    many = target.has_threads and context.outlines is not None and not context.in_part
    if many and not context.plan.cluster:
        context.needs.add("program")
        context.writer.line(f"ck_{half}_apart(unit);")
    elif half == "wait":
        context.writer.add(code(target.wait, left=LEFT))
    else:
        context.writer.line("ck_arrive(unit);")


def _emit_stitched(context: Context, group: StitchedUTask) -> None:
    """Scopes the temporaries of a group with braces; registers are declared outside."""
    if not is_outlined(group):
        outlined = context.target.has_threads and gives_register(group)
        _emit_part(context, outlined, group, partial(emit_group, context, group))
        return
    with context.alone(*group.outputs):
        context.part_depth += 1  # one unit runs the rest alone
        _emit_part(context, True, group, partial(emit_group, context, group))
        context.part_depth -= 1


def _emit_part(context: Context, outlined: bool, statement: Statement, emit: Callable[[], None]) -> None:
    """Emits a statement in its own braces, or as an outlined function if the program has outlined functions
    and it can be one. In a part that a loop repeats it stays: a function in a function gets few registers,
    and then waits for one load after the other."""
    repeated, template = context.by_thread or (context.in_part and context.loop_depth), product_in(statement)
    outlines = context.products if template else context.outlines
    if outlines is None or not outlined or repeated:
        with context.writer.block(template=template):
            emit()
        return
    outer, context.writer = context.writer, Writer(context.target.index)
    emit()
    inner, context.writer = context.writer.nodes, outer
    result = context.register(statement.outputs[0]) if gives_register(statement) else None
    assert result is None or isinstance(result, Name)
    if result and touches(inner, result):  # of a loop: what it was, and what it becomes
        context.writer.add(Compound("", tuple(inner)))
        return
    context.writer.add(outlines.call(inner, context.about, result, template))


def _emit_view(context: Context, operator: UOperator) -> None:
    """Emits the pointer of a dynamic_slice; other views cost nothing. Scalar constants are literals."""
    value = operator.output
    if value.type.is_scalar:
        data = bytes(value.type.nbytes) if operator.kind == "empty" else cast(bytes, operator["data"])
        context.registers[value] = context.literal(data, value.type.dtype)
        return
    if operator.kind != "dynamic_slice" or value.type.size == 0:
        return
    source, *starts = operator.inputs
    layout = context.layout(source)
    pieces: list[Expression] = [context.pointer(source)]
    if layout.offset:
        pieces.append(spelled(layout.offset))
    sizes = zip(source.type.shape, value.type.shape, starts, layout.strides, strict=True)
    for n, size, start, stride in sizes:
        if n != size:
            position = context.start(start, context.register(start), n - size)
            pieces.append(code("{} * {}", position, stride))
    name, type_ = Name(f"d{value.id}", outer=True), f"const {STORAGE[value.type.dtype]}*"
    context.names[name] = Outer(type_, context.where(context.slot(source)))
    context.writer.var(f"{type_} const", name, joined(" + ", pieces))


# -- control flow --------------------------------------------------------------------------------------------
def _emit_loop(context: Context, loop: LoopUTask) -> None:
    if context.outlines is not None and not context.in_part and context.has_units and context.target.part[0]:
        if loop.parallel:
            _emit_parts(context, loop, context.outlines)
            return
        if roles := roles_of(loop, context.plan):
            with context.writer.block("if constexpr (RESIDENT)"):
                _emit_roles(context, loop, roles, context.outlines)
            with context.writer.block("else"):
                _emit_inline_loop(context, loop)
            return
    if by_threads(loop) or context.by_thread:
        _emit_inline_loop(context, loop)
        return
    _emit_held_loop(context, loop)


def _emit_held_loop(context: Context, loop: LoopUTask) -> None:
    with holding(context, loop):
        _emit_inline_loop(context, loop)


def _emit_parts(context: Context, loop: LoopUTask, outlines: OutlineTable) -> None:
    """Emits a parallel loop as a function, so that its pointers take no registers elsewhere. Units without a
    part do not call it."""
    trips, begin = cast(int, loop.trip_count), _first_part(loop.first, loop.first)
    call = outlines.part(*_function(context, loop.first, partial(_emit_inline_loop, context, loop)))
    some = code("if ({} < {})", begin, trips) if trips < context.plan.most_units else ""
    with context.writer.block(some) if some else nullcontext():
        context.writer.add(call)


def _emit_roles(context: Context, whole: LoopUTask, roles: Sequence[Role], outlines: OutlineTable) -> None:
    """Emits a loop as a function for each role. Equal ones share it: what they differ in, constants as well,
    are its parameters."""
    registers, names, stamps = context.registers, context.names, context.stamps
    for role in roles:
        context.registers, context.names = dict(registers), dict(names)
        context.stamps = stamps and stamps.of_share(whole, role.loop, role.positions)
        given = dict[Name, Expression]()
        for constant in role.constants:
            value, name = constant.output, Name(f"c{len(given)}", outer=True)
            given[name] = context.literal(cast(bytes, constant["data"]), value.type.dtype)
            context.registers[value], context.names[name] = name, Outer(COMPUTE[value.type.dtype])
        emit = partial(_emit_held_loop, context, role.loop)
        lines, parameters, places = _function(context, role.first, emit)
        head = "if (unit->index < {})" if role is roles[0] else "else if (unit->index < {})"
        with context.writer.block(code(head, role.end)):
            context.writer.add(outlines.role(lines, parameters, given | places))
    context.registers, context.names, context.stamps = registers, names, stamps


def _function(
    context: Context, first: int, emit: Callable[[], None]
) -> tuple[list[Line], dict[Name, Outer], dict[Name, Expression]]:
    """Statements as the body of a function for units from `first` on; its parameters, and what they are given
    that has no name outside. Parameters are the registers, operands and launch parameters that it reads,
    every buffer with the same address on all units, and where the units begin, so that equal loops share one
    function. It writes memory only."""
    context.needs.add("program")
    outer, indices, known = context.writer, context.indices, set(context.names) | set(context.indices)
    context.writer, context.indices = Writer(outer.index), dict.fromkeys(indices, outer.index)
    context.indices[FIRST], context.in_part = outer.index, True
    emit()
    context.in_part = False
    lines, names = body_of(context.writer.nodes, context.about)
    context.writer, context.indices = outer, indices
    known |= {FIRST, *(name for name in names if isinstance(name, SizeName))}
    own = {n: o for n, o in names.items() if not o.fixed and (o.address or n not in known)}
    taken = {n: o for n, o in names.items() if n not in own}
    own, places = _slices_from(context, own, first)
    taken |= dict.fromkeys(places, Outer("i64"))
    taken |= {size: context.about(size) for size in parameters(own)}
    return [*declarations(own), *lines], taken, {FIRST: str(first), **places}


def _slices_from(
    context: Context, own: Mapping[Name, Outer], first: int
) -> tuple[dict[Name, Outer], dict[Name, Expression]]:
    """Pointers of a part, with slices that begin at its first unit counted from the parameter FIRST; and the
    parameters that say where such an array is in the workspace. These are constants at every call: pointers
    would take registers of the program's function, from one call to the next."""
    pointers, places = dict(own), dict[Name, Expression]()
    for name, about in own.items():
        part = context.plan.parts.get(about.slot) if about.slot else None
        if part and first and part.first == first and about.slot:
            place = Name(f"{name.text}_all", outer=True)
            places[place] = spelled(context.offset(about.slot))
            address = context.slices(part, code("workspace + {}", place), FIRST)
            pointers[name] = replace(about, address=address)
    return pointers, places


def _first_part(number: int, first: Expression | int) -> Expression:
    """The first trip that this unit executes of a parallel loop, whose first unit has a number and a name."""
    return code("ck_first_part(unit, {})", first) if number else "unit->index"


def _emit_inline_loop(context: Context, loop: LoopUTask) -> None:
    size = threads.own_bytes(context, loop) if by_threads(loop) else 0
    with context.writer.block() if size else nullcontext():
        if size:
            context.writer.line("alignas(16) u8 {}[{}];", OF_THREAD, size)
        _emit_whole_loop(context, loop)


def _emit_whole_loop(context: Context, loop: LoopUTask) -> None:
    _alias(context, loop)
    emit_transfer(context, loop.initial, loop.carried)
    if by_threads(loop) and not all(map(context.same_place, loop.initial, loop.carried)):
        context.fence()  # a trip may be on another thread than the copy of what it reads
    if loop.condition is None:
        if by_threads(loop) and (nest := threads.nest(context, loop)):
            _emit_refilled(context, nest)
            return
        name = _count_trips(context, loop)
        if by_threads(loop) and (branch := threads.branch_alone(context, loop)):
            threads.emit_sides(context, loop, branch, name, partial(_emit_region, context))
            del context.indices[name]
            return
        with _trips(context, loop, name):
            if stops.checked_trips(context, loop) == 1:
                stops.emit_check(context, loop, name)
            _emit_region(context, loop.body)
            context.stamp_within(loop)
            emit_transfer(context, loop.body.results, loop.carried)
        del context.indices[name]
        return
    with _repeated(context), stops.trips(context, loop, partial(_emit_condition, context, loop.condition)):
        _emit_region(context, loop.body)
        context.stamp_within(loop)
        emit_transfer(context, loop.body.results, loop.carried)


def _emit_condition(context: Context, condition: Region) -> Spelled:
    """Emits the condition of a loop. Returns the statement that leaves it."""
    _emit_region(context, condition)
    return code("if (!{}) break;", context.register(condition.results[0]))


def _count_trips(context: Context, loop: LoopUTask) -> Name:
    """Names the variable that counts the trips of a loop."""
    assert loop.index is not None
    name, dtype = Name(f"v{loop.index.id}", outer=True), COMPUTE[loop.index.type.dtype]
    context.registers[loop.index] = name if dtype == context.writer.index else code("{}({})", dtype, name)
    context.indices[name] = "i64"
    context.counted[loop.index] = cast(int, loop.trip_count)
    return name


def _emit_refilled(context: Context, nest: tuple[LoopUTask, ...]) -> None:
    """Loops in a loop whose trips threads take, each when it is done with another one."""
    for inner in nest[1:]:
        _alias(context, inner)
    names = [None if loop.condition is not None else _count_trips(context, loop) for loop in nest]
    threads.Refilled(context, nest, names, partial(_emit_region, context)).write()
    for name in filter(None, names):
        del context.indices[name]


def _alias(context: Context, loop: LoopUTask) -> None:
    """Gives the registers of a loop's carries to its results, and to what its condition tests."""
    for values in (loop.outputs, loop.tested):
        for value, home in zip(values, loop.carried, strict=True):
            if value.type.is_scalar and value is not home:
                context.alias(value, home)


@contextmanager
def _repeated(context: Context) -> Iterator[None]:
    context.loop_depth += 1
    yield
    context.loop_depth -= 1


@contextmanager
def _trips(context: Context, loop: LoopUTask, name: Name) -> Iterator[None]:
    """The head of a counted loop. Units share the iterations of an outermost parallel loop."""
    trips = cast(int, loop.trip_count)
    if not loop.parallel:
        several, unrolled = stops.checked_trips(context, loop), threads.unrolling(context, loop)
        head = context.writer.loop(name, trips, unrolled)
        with head if several == 1 else stops.blocks(context, loop, name, several), _repeated(context):
            yield
        return
    if by_threads(loop):
        with alone(context), context.writer.loop(name, trips, start=threads.FIRST, step=threads.NEXT):
            yield
        return
    start: Expression = "0"
    step = ""
    if context.has_units and not context.part_depth:
        first = FIRST if context.in_part else loop.first
        start, step = _first_part(loop.first, first), "unit->count"
    context.part_depth += 1
    with context.writer.loop(name, trips, start=start, step=step):
        yield
    context.part_depth -= 1


def _emit_branch(context: Context, branch: BranchUTask) -> None:
    last = len(branch.branches) - 1
    for position, region in enumerate(branch.branches):
        head: Expression = "else" if position else ""
        if position < last:
            first = "else if" if position else "if"
            head = code("{} ({})", first, threads.takes(context, branch, position))
        with context.writer.block(head):
            _emit_region(context, region)
            emit_transfer(context, region.results, branch.outputs)
