"""Makes programs that serve any size of an axis: of a batch, or of a cache.

A program has *numbers*: the lengths of its operands' axes, the trips of its loops and its constants. Two
calls of a function with other shapes have programs that are alike but for some of these. The numbers that
change are then made general: in the place of each stands a size that all later passes see as one number, for
which they plan, while the text of the program reads the number of the call when it starts.

A program may be planned for a number in a way that does not suit others. So it is planned for two numbers:
only if both give the same text, no pass has made anything of their values. What passes have decided by
comparing sizes is noted (`sizes.deciding`), and must hold for the numbers of a call as well.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod

from jax_cocktail.analysis.lengths import axes_of_loops, axes_tied_to
from jax_cocktail.schedule.launch_parameters import Marks
from jax_cocktail.utask.ir import (
    Attribute,
    LoopUTask,
    Statement,
    UProgram,
    defined_in,
    operators_in,
    walk,
)
from jax_cocktail.utask.numbers import Number, encoded, is_number, numbers, numbers_of
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.sizes import Parameter, Size, at, is_general, least_of, size_in, size_of, sized
from jax_cocktail.utask.types import Value

# For each range of numbers, its first one and groups of numbers that stand for it: primes, which nothing
# divides, and which are not near each other. The first three of a group ascend: two numbers that vary have
# stand-ins in the same order in both plans. What is decided for one group may not suit numbers that are much
# smaller. What is decided for the last group of a few suits larger numbers, and seldom depends on them.
RANGES = (
    (33, ((1031, 1223, 1361, 1489), (67, 79, 97, 103), (131, 157, 173, 181), (257, 307, 331, 349))),
    (2, ((23, 29, 31, 19), (11, 13, 17, 19), (5, 7, 11, 3), (19, 31, 37, 17), (1117, 1319, 1451, 1553))),
)
# On a GPU, what a number is decides how many blocks and threads have work, and which tiles products take. So
# numbers stand for others of their own size.
GPU_RANGES = (
    (1 << 20, ((4000037, 4520003, 5160007, 5640031),)),
    (1 << 17, ((400009, 452009, 516017, 564013),)),
    (1 << 14, ((50021, 56501, 64513, 70501),)),
    (2049, ((6007, 6779, 7741, 8461),)),
    (257, ((701, 797, 907, 991), (401, 457, 521, 577), (1031, 1223, 1361, 1489))),
    (33, ((131, 157, 173, 181), (67, 79, 83, 89), (101, 107, 113, 127), (37, 41, 43, 47))),
    (2, ((19, 23, 29, 31), (5, 7, 11, 13))),
)
LEVELS = 5  # of groups, at most
Ranges = tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]


@dataclass(frozen=True, slots=True)
class General:
    """A program that is planned for numbers that stand for others, and those of the call."""

    program: UProgram
    given: Mapping[Parameter, int]


def generalise(
    program: UProgram, varying: Collection[int], attempt: int = 0, on_gpu: bool = False
) -> General | None:
    """The program with some numbers made general; None if something else follows from them.

    Args:
      program: a translated program.
      varying: the positions in `numbers` of those that other calls have otherwise.
      attempt: from 0; two of each level, which has other numbers that stand for them.
      on_gpu: it will run on one.
    """
    ranges: Ranges = GPU_RANGES if on_gpu else RANGES
    found = [item for k, item in enumerate(numbers_of(program)) if k in varying]
    others = {where.id: number for where, number in found if isinstance(where, Value)}
    places = [(program.entry.parameters.index(at[0]), at[1]) for at, _ in found if isinstance(at, tuple)]
    taken, given = set(_integers(program)), dict[Parameter, int]()
    while places:
        operand, axis = places[0]
        value = program.entry.parameters[operand]
        number = int(value.type.shape[axis])
        stand_in = _stand_in(number, attempt, taken, ranges)
        if stand_in is None:
            return None
        try:
            tied = axes_tied_to(program, (value, axis))
        except ValueError:  # a reshape of an axis that is not general to one that is
            return None
        places = [(k, d) for k, d in places if (program.entry.parameters[k], d) not in tied]
        taken.add(stand_in.value)
        given[stand_in] = number
        if number in others.values():  # loops of so many trips make arrays, too
            along = {axis for axis, n in axes_of_loops(program, 2).items() if n == number}
            tied |= along
        marks = Marks({number: size_of(stand_in)}, dict.fromkeys(tied, number), given)
        try:
            program = replace(program, entry=marks.entry(program.entry))
        except ValueError:  # the shapes of some values follow from the number in another way
            return None
    return _with_numbers(program, others, given)


def _stand_in(number: int, attempt: int, taken: Collection[int], ranges: Ranges) -> Parameter | None:
    """The parameter that stands for a number. `taken`: what the program has."""
    most, (level, second) = 0, divmod(attempt, 2)
    for first, groups in ranges:
        if number >= first:
            free = [n for n in groups[level] if n not in taken] if level < len(groups) else []
            return Parameter(free[second], least=first, most=most) if second < len(free) else None
        most = first - 1
    return None


def forms_in(program: UProgram) -> tuple[Hashable, ...]:
    """The forms of the sizes that follow from general parameters: programs of equal text may differ in
    them."""
    found = [n for value in defined_in(program.entry) for n in value.type.shape]
    trips = (s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask))
    found += [n for n in trips if n is not None]
    found += [n for o in operators_in(program.entry) if is_number(o) and (n := size_in(o.data)) is not None]
    return tuple(n.terms for n in found if isinstance(n, Size) and n.is_general)


def suits_all(program: UProgram) -> bool:
    """True if no axis or loop of a planned program is of negative length in any call, nor was planned for at
    most one element or trip: these have forms of their own."""
    lengths = {n for value in defined_in(program.entry) for n in value.type.shape}
    lengths |= {s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask) and s.trip_count}
    return all(n > 1 and least_of(n) > -1 for n in lengths if is_general(n))


def _integers(program: UProgram) -> Iterator[int]:
    """The lengths of all axes, the trips of loops, and the integers among constants and attributes."""
    yield from (int(n) for value in defined_in(program.entry) for n in value.type.shape)
    yield from (int(number) for number in numbers(program) if isfinite(number))
    for operator in operators_in(program.entry):
        yield from (n for _, value in operator.attributes for n in _flattened(value) if isinstance(n, int))


def _flattened(value: Attribute) -> Iterator[object]:
    if isinstance(value, tuple):
        for each in value:
            yield from _flattened(each)
    else:
        yield value


def _with_numbers(
    program: UProgram, others: Mapping[int, Number], given: Mapping[Parameter, int]
) -> General | None:
    """Exchanges trips and constants that vary for sizes. `others`: their numbers, by what has them."""
    shapes = {value.type.shape for value in defined_in(program.entry)}
    sizes = [n for shape in shapes for n in (prod(shape), *shape)]
    general = [n for n in sizes if is_general(n)]
    known: dict[Number, int] = {at(n, given): n for n in (*(n - 1 for n in general), *general)}
    if not all(number in known for number in others.values()):
        return None

    def change(statement: Statement) -> Statement:
        if isinstance(statement, LoopUTask) and statement.body.parameters[0].id in others:
            return replace(statement, trip_count=known[others[statement.body.parameters[0].id]])
        if is_number(statement) and statement.output.id in others:
            size = known[others[statement.output.id]]
            data = sized(encoded(int(size), statement.output.type.dtype), size)
            return replace(statement, attributes=(("data", data),))
        return statement

    return General(rewrite(program, change), given)
