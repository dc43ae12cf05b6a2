"""Level-synchronous recursion: runs all calls of one height and path together.

`recursion.order` walks the call tree with integers alone and sorts the calls by height, highest first.
Independent calls then run in groups of 1, 2, 4 ... calls. In a group, the product of a vector and the weights
becomes the product of a matrix and the weights, so the weights are read once per group. Repeated calls fill
up the last group. A sweep down the order computes arguments, a sweep up computes results.

If there are more calls than there is room for, the stack machine runs the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from jax_cocktail.recursion.blocks import Accumulate, AddInto, Invoke, Keep
from jax_cocktail.recursion.machine import StackMachine, State, planned
from jax_cocktail.recursion.memory import put, put_rows, replaced, row, uninitialised
from jax_cocktail.recursion.order import Axes, Forest, Order, order_calls
from jax_cocktail.recursion.paths import LevelPlan, Path
from jax_cocktail.recursion.structure import Op, Var
from jax_cocktail.recursion.sums import capacity, clamped_start, product, with_products
from jax_cocktail.recursion.task import Aval, Elements, Numbering, placed, ranges, split
from jax_cocktail.recursion.values import CallValues
from jax_cocktail.utask.failure import FINE

WIDTHS = (1, 2, 4, 8, 16)  # group sizes for one tree
FOREST_WIDTHS = (1, 4, 16, 64)  # group sizes for a batch of trees
UNROLLED = 4  # at most this many rows are moved one by one

_Made: TypeAlias = tuple[Any, list[Any], list[Any], list[list[Any]], list[Any]]


def widths(elements: int) -> tuple[int, ...]:
    """The group sizes for this many batch elements."""
    return WIDTHS if elements == 1 else FOREST_WIDTHS


def run_levels(
    levels: LevelPlan,
    operands: Sequence[Any],
    elements: Sequence[Elements],
    by_stack: Callable[[], tuple[Any, list[Any]]],
) -> tuple[Any, list[Any]]:
    """Runs a task for all batch elements. Returns the status, and the results without the token.

    `by_stack`: does the same with the stack machine.
    """
    plan, forest = levels.plan, _forest(levels, operands, elements)
    sweeps = _Sweeps(levels, forest, order_calls(levels, forest, widths(forest.size)))
    machine_plan = planned(plan.task)
    keeps = not elements and machine_plan.sites is plan.sites  # both strategies store the same factors

    def side_by_side() -> _Made:
        state = sweeps.initial()
        if levels.down:
            state = sweeps.down(state)
        if levels.up:
            state = sweeps.up(state)
        return jnp.int32(FINE), sweeps.returned(state), state["sums"], state["kept"], state["counts"]

    def one_by_one() -> _Made:
        nothing = sweeps.nothing()
        if not keeps:
            status, results = by_stack()
            sums, rest = split(results, len(sweeps.sums))
            sums = [axes.joined(x) for x, axes in zip(sums, sweeps.sums, strict=True)]
            return status, rest, sums, nothing["kept"], nothing["counts"]
        state = StackMachine(machine_plan, operands).final(**nothing)
        rest = [*state["rows"], *state["returned"][0]]
        return state["status"], rest, state["sums"], state["kept"], state["counts"]

    # the products come after both strategies, so that the units can share their work
    found: _Made = lax.cond(sweeps.order.status == FINE, side_by_side, one_by_one)
    status, rest, sums, kept, counts = found
    products = [sweeps.product(k, x, n) for k, (x, n) in enumerate(zip(kept, counts, strict=True))]
    sums = with_products(sums, plan.blocks if keeps else None, plan.sites, products)
    return status, [*(axes.split(x) for x, axes in zip(sums, sweeps.sums, strict=True)), *rest]


def _forest(levels: LevelPlan, operands: Sequence[Any], elements: Sequence[Elements]) -> Forest:
    """Merges all batch axes into one."""
    task = levels.plan.task
    sizes = tuple(level.size for level in elements)
    known = [(x, Axes(sizes, tuple(level.operands[k] for level in elements))) for k, x in enumerate(operands)]
    head, environment, rows, arguments = task.split_operands(known)

    def spread(pairs: Sequence[tuple[Any, Axes]]) -> tuple[Any, ...]:
        return tuple(axes.spread(x) for x, axes in pairs)

    return Forest(
        math.prod(sizes),
        tuple((axes.joined(x), axes) for x, axes in environment),
        spread(rows),
        tuple(x - 1 for x in spread(head[1:])),
        spread(arguments),
        tuple(
            Axes(sizes, tuple(level.results[k] for level in elements)) for k in range(1, len(task.results))
        ),
    )


class _Sweeps:
    """The sweeps over the ordered calls. State: `arguments` and `results` by position in the order; `rows` by
    batch element and number; the remainder as in `StackMachine`."""

    def __init__(self, levels: LevelPlan, forest: Forest, order: Order) -> None:
        self.levels, self.forest, self.order = levels, forest, order
        self.task = levels.plan.task
        self.sums = forest.results[: len(self.task.accumulated)]
        self.row_ranges = ranges(len(f.row_results) for f in self.task.functions)
        self.widths = tuple(w for w in widths(forest.size) if w <= order.room)
        self.rows = [x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in forest.rows]

    def initial(self) -> State:
        room, size, columns = self.order.room, self.forest.size, self.levels.floats
        last = int(self.levels.has_guards)  # one more row, for calls that do not happen
        arguments = [uninitialised((room + last, *a.shape), a.dtype) for a in columns.types]
        for k, place in zip(columns.positions[0], columns.places[0], strict=True):
            first = self.forest.arguments[k]
            arguments[place] = _scattered(arguments[place], self.order.roots, first)
        rows = [uninitialised((size * self.task.max_calls, *a.shape), a.dtype) for a in self.task.row_results]
        return {
            "arguments": arguments,
            "results": [uninitialised((room, *a.shape), a.dtype) for a in self.levels.results.types],
            "rows": rows,
            "sums": [
                jnp.zeros((axes.count, *a.shape) if axes.any else a.shape, a.dtype)
                for a, axes in zip(self.task.accumulated, self.sums, strict=True)
            ],
            **self.nothing(),
        }

    def nothing(self) -> State:
        """Empty arrays for the factors of products."""
        sites = [(site, self.sums[site.target]) for site in self.levels.plan.sites]
        return {
            "kept": [
                [uninitialised((axes.count * self.room(axes), *a.shape), a.dtype) for a in site.factors]
                for site, axes in sites
            ],
            "counts": [
                jnp.zeros((axes.count,), jnp.int32) if axes.any else jnp.int32(0) for _, axes in sites
            ],
        }

    def axes_of(self, site: int) -> Axes:
        """The axes of the sum that a site's products are added to."""
        return self.sums[self.levels.plan.sites[site].target]

    def room(self, axes: Axes) -> int:
        """The capacity for the factors of one sum, if there is a sum for each index of these axes."""
        return capacity(self.order.room // axes.count)

    def returned(self, state: State) -> list[Any]:
        """The results of the task except sums, from the last state."""
        every = (self.forest.size, self.task.max_calls)
        found = [x.reshape(*every, *x.shape[1:]) for x in state["rows"]]
        found += [_rows(state["results"][place], self.order.roots) for place in self.levels.results.places[0]]
        rest = self.forest.results[len(self.sums) :]
        return [axes.summed(x) for x, axes in zip(found, rest, strict=True)]

    def product(self, site: int, kept: Sequence[Any], count: Any) -> Any:
        """The sum of a site's products."""
        axes, own = self.axes_of(site), self.levels.plan.sites[site]
        if not axes.any:
            return product(own, kept, count)
        room = self.room(axes)
        return lax.map(lambda k: product(own, kept, row(count, k), k * room), jnp.arange(axes.count))

    def down(self, state: State) -> State:
        """Runs callers before their callees."""
        order, both = self.order, self.levels.up

        def step(at: Any, state: State) -> tuple[Any, State]:
            width = self._width(row(order.end, at) - at)
            return self._group(at, width, state, passes=True, returns=not both)

        _, state = lax.while_loop(lambda s: s[0] < order.count, lambda s: step(*s), (jnp.int32(0), state))
        return state

    def up(self, state: State) -> State:
        """Runs callees before their callers."""
        order = self.order

        def step(end: Any, state: State) -> tuple[Any, State]:
            width = self._width(end - row(order.begin, end - 1))
            at = end - self._span(width)
            _, state = self._group(at, width, state, passes=False, returns=True)
            return at, state

        _, state = lax.while_loop(lambda s: s[0] > 0, lambda s: step(*s), (order.count, state))
        return state

    def _width(self, most: Any) -> Any:
        """The index of the widest group that `most` calls fill."""
        return sum(((most >= w).astype(jnp.int32) for w in self.widths[1:]), start=jnp.int32(0))

    def _span(self, width: Any) -> Any:
        return jnp.asarray(self.widths, jnp.int32)[width]

    def _group(self, at: Any, width: Any, state: State, passes: bool, returns: bool) -> tuple[Any, State]:
        """Runs one group of calls from position `at` and returns its end and the new state.

        The units share the computation of the values. Each unit then stores the values for itself, so that no
        table moves between units.
        """
        paths = self.levels.bodies
        groups = [_Group(self, p, w, passes, returns) for w in self.widths for p in paths]
        slots: list[Aval] = []
        traced = [jax.make_jaxpr(group.made, return_shape=True)(at, state) for group in groups]
        places = [placed(_types(shape), slots) for _, shape in traced]
        index = width * len(paths) + row(self.order.path, at)
        each = list(zip(groups, places, traced, strict=True))
        made = lax.switch(
            index, [partial(g.filled, place, slots, jaxpr) for g, place, (jaxpr, _) in each], at, state
        )
        state = lax.switch(
            index, [partial(g.stored, place, shape) for g, place, (_, shape) in each], at, made, state
        )
        return at + self._span(width), state


@dataclass(frozen=True, eq=False, slots=True)
class _Group:
    """A group of calls on one path. `passes`: compute arguments; `returns`: compute results."""

    sweeps: _Sweeps
    path: Path
    width: int
    passes: bool
    returns: bool

    @property
    def effects(self) -> list[Any]:
        """The steps that update sums."""
        return [s for s in self.path.steps if not isinstance(s, Op)] if self.returns else []

    @property
    def invokes(self) -> list[Invoke]:
        """The calls of the path."""
        return [invoke for invoke, _ in self.path.calls]

    def own(self, array: Any, at: Any) -> Any:
        """The rows of the group."""
        return lax.dynamic_slice_in_dim(array, at, self.width)

    def called(self, at: Any) -> list[Any]:
        """The positions of the callees, for each call site."""
        return [self.own(x, at) for x in self.sweeps.order.calls[: len(self.path.calls)]]

    def count(self, at: Any) -> Any:
        """The number of calls that are not repetitions."""
        return jnp.minimum(row(self.sweeps.order.stop, at) - at, self.width)

    def address(self, at: Any) -> Any:
        """The rows of the tape."""
        order, calls = self.sweeps.order, self.sweeps.task.max_calls
        return self.own(order.element, at) * calls + self.own(order.number, at)

    def made(self, at: Any, state: State) -> Any:
        """The arguments for each callee, the results, and the terms of sums; each has shape (width, ...)."""
        sweeps, order = self.sweeps, self.sweeps.order
        floats = [_repeated(self.own(x, at), self.count(at)) for x in state["arguments"]]
        there = [  # a call that does not happen returns arbitrary values
            k if invoke.guard is None else jnp.minimum(k, order.room - 1)
            for k, invoke in zip(self.called(at), self.invokes, strict=True)
        ]
        results = []
        if self.returns:
            places = [sweeps.levels.results.places[invoke.call.function] for invoke in self.invokes]
            tables = [[state["results"][p] for p in own] for own in places]
            results = [[_rows(x, k) for x in own] for own, k in zip(tables, there, strict=True)]
        fresh = sweeps.task.numbering is Numbering.FRESH
        numbers = [_rows(order.number, k) for k in there] if fresh else []

        def one(*known: Any) -> Any:
            call = _Call(sweeps, self.path, *known)
            passed = [call.passed(invoke) for invoke in self.invokes] if self.passes else []
            values = [call.read(a) for a in self.path.results] if self.returns else []
            return passed, values, [[call.read(a) for a in s.inputs] for s in self.effects]

        integers = [self.own(x, at) for x in order.integers]
        told = (self.own(order.element, at), self.own(order.number, at), self.address(at))
        return _side_by_side(one, (*told, integers, floats, numbers, results), self.width)

    def filled(
        self, places: Mapping[int, int], slots: Sequence[Aval], made: Any, at: Any, state: State
    ) -> list[Any]:
        """The values of `made`, a jaxpr, in slots with the length of the widest group."""
        values = jex.jaxpr_as_fun(made)(*jax.tree.leaves((at, state)))
        own = {places[k]: x for k, x in enumerate(values)}
        blocks = [uninitialised((self.sweeps.widths[-1], *a.shape), a.dtype) for a in slots]
        return [put_rows(x, 0, own[n]) if n in own else x for n, x in enumerate(blocks)]

    def stored(
        self, places: Mapping[int, int], shapes: Any, at: Any, blocks: Sequence[Any], state: State
    ) -> State:
        """The state after storing the values of `made`, which have these shapes."""
        sweeps, structure = self.sweeps, jax.tree.structure(shapes)
        leaves = [blocks[places[k]][: self.width] for k in range(structure.num_leaves)]
        passed, values, inputs = jax.tree.unflatten(structure, leaves)
        state = dict(state)
        levels, called = sweeps.levels, self.called(at)
        for place, invoke, given in zip(called, self.invokes, passed, strict=False):
            columns = levels.floats.places[invoke.call.function]
            state["arguments"] = _changed(state["arguments"], columns, given, _scattered, place)
        if self.returns:
            ranges = sweeps.row_ranges[self.path.function]
            kept, made = split(values, len(ranges))
            state["rows"] = _changed(state["rows"], ranges, kept, _scattered, self.address(at))
            columns = levels.results.places[self.path.function]
            state["results"] = _changed(state["results"], columns, made, put_rows, at)
        for effect, operands in zip(self.effects, inputs, strict=True):
            self.affect(state, effect, operands, at)
        return state

    def affect(self, state: State, effect: Any, operands: Sequence[Any], at: Any) -> None:
        """Applies the group's updates to a sum."""
        sweeps, count = self.sweeps, self.count(at)
        if isinstance(effect, Keep):
            axes = sweeps.axes_of(effect.site)
            keep = self.keep_apart if axes.any else self.keep
            keep(state, effect.site, operands, at)
            return
        total, axes = state["sums"][effect.target], sweeps.sums[effect.target]
        element = self.own(sweeps.order.element, at)
        place = axes.place(element) if axes.any else element

        def add(k: Any, total: Any) -> Any:
            own = [row(x, k) for x in operands]
            if isinstance(effect, AddInto):
                return effect.run_in_row(total, place[k], *own) if axes.any else effect.run(total, *own)
            return put_rows(total, place[k], (row(total, place[k]) + own[0])[None])

        if isinstance(effect, Accumulate) and not axes.any:
            counts = lax.expand_dims(jnp.arange(self.width) < count, range(1, operands[0].ndim))
            terms = jnp.where(counts, operands[0], 0) if self.width > 1 else operands[0]
            total = total + terms.sum(axis=0, dtype=total.dtype)
        else:
            total = self.in_turn(count, add, total)
        state["sums"] = replaced(state["sums"], effect.target, total)

    def keep(self, state: State, site: int, operands: Sequence[Any], at: Any) -> None:
        """Stores factors of products."""
        kept, first = state["kept"], state["counts"][site]
        rows = [put_rows(x, first, y) for x, y in zip(kept[site], operands, strict=True)]
        state["kept"] = replaced(kept, site, rows)
        state["counts"] = replaced(state["counts"], site, first + self.count(at))

    def keep_apart(self, state: State, site: int, operands: Sequence[Any], at: Any) -> None:
        """Stores factors of products if some batch axes have sums of their own."""
        axes = self.sweeps.axes_of(site)
        place, room = axes.place(self.own(self.sweeps.order.element, at)), self.sweeps.room(axes)

        def keep(k: Any, kept: Any) -> Any:
            tables, counts = kept
            at, count = row(place, k), row(counts, row(place, k))
            tables = [put(x, at * room + count, row(y, k)) for x, y in zip(tables, operands, strict=True)]
            return tables, put(counts, at, count + 1)

        start = (state["kept"][site], state["counts"][site])
        tables, counts = self.in_turn(self.count(at), keep, start)
        state["kept"] = replaced(state["kept"], site, tables)
        state["counts"] = replaced(state["counts"], site, counts)

    def in_turn(self, count: Any, step: Callable[[Any, Any], Any], value: Any) -> Any:
        """Applies a step for each call that is not a repetition."""
        return lax.fori_loop(0, count, step, value) if self.width > 1 else step(0, value)


class _Call(CallValues):
    """One call of a group."""

    def __init__(self, sweeps: _Sweeps, path: Path, *known: Any) -> None:
        levels, plan, own = sweeps.levels, sweeps.levels.plan, path.function
        self.sweeps, self.plan = sweeps, plan
        self.element, number, self.address, integers, floats, numbers, results = known
        makers = {v: step for step in path.steps if isinstance(step, Op) for v in step.outputs}
        super().__init__({plan.numbers[own]: number}, makers)
        for columns, found in ((levels.integers, integers), (levels.floats, floats)):
            places = zip(columns.positions[own], columns.places[own], strict=True)
            self.values |= {plan.arguments[own][k]: found[place] for k, place in places}
        for k, ((_, outputs), made) in enumerate(zip(path.calls, results, strict=False)):
            given = [jnp.zeros((), jnp.float32), *numbers[k : k + 1], *made]
            self.values |= zip(outputs, given, strict=True)

    def outside(self, v: Var) -> Any | None:
        plan = self.plan
        if v in plan.shared:
            value, axes = self.sweeps.forest.environment[plan.shared[v]]
            return axes.row(value, self.element)
        return row(self.sweeps.rows[plan.rows[v]], self.address) if v in plan.rows else None

    def run(self, step: Op) -> Sequence[Any]:
        return self._looked_up(step) or super().run(step)

    def _looked_up(self, step: Op) -> list[Any] | None:
        """A slice of a table with a batch axis, taken from all batch elements at once: taking one element's
        table first would copy it."""
        table = step.inputs[0] if step.name == "dynamic_slice" else None
        if not isinstance(table, Var) or table not in self.plan.shared:
            return None
        value, axes = self.sweeps.forest.environment[self.plan.shared[table]]
        if not axes.any:
            return None
        sizes = (1, *step.params["slice_sizes"])
        spare = [has - takes for has, takes in zip(value.shape[1:], sizes[1:], strict=True)]
        starts = [clamped_start(self.read(a), most) for a, most in zip(step.inputs[1:], spare, strict=True)]
        return [
            lax.dynamic_slice(
                value, [axes.place(self.element), *starts], sizes, allow_negative_indices=False
            )[0]
        ]

    def passed(self, invoke: Any) -> list[Any]:
        """The float arguments of a call."""
        given = invoke.call.inputs[1 + self.plan.task.numbers :]
        return [self.read(given[k]) for k in self.sweeps.levels.floats.positions[invoke.call.function]]


def _types(shapes: Any) -> dict[int, Aval]:
    """The types of a group's values, in order, without the first axis."""
    return {k: Aval(x.shape[1:], x.dtype) for k, x in enumerate(jax.tree.leaves(shapes))}


def _side_by_side(element: Callable[..., Any], elements: Any, width: int) -> Any:
    """Like `jax.vmap`, but a group of one call is not batched, so a product with a vector remains one."""
    if width > 1:
        return jax.vmap(element)(*elements)
    return jax.tree.map(lambda x: jnp.expand_dims(x, 0), element(*jax.tree.map(lambda x: x[0], elements)))


def _changed(
    tables: Sequence[Any], places: Sequence[int], values: Sequence[Any], write: Callable[..., Any], at: Any
) -> list[Any]:
    """The tables after writing values at a place into some of them."""
    own = dict(zip(places, values, strict=True))
    return [write(x, at, own[k]) if k in own else x for k, x in enumerate(tables)]


def _repeated(rows: Any, count: Any) -> Any:
    """The first `count` rows, followed by repetitions of the last of them."""
    if rows.shape[0] == 1:
        return rows
    counts = lax.expand_dims(jnp.arange(rows.shape[0]) < count, range(1, rows.ndim))
    return jnp.where(counts, rows, row(rows, count - 1))


def _rows(array: Any, at: Any) -> Any:
    if at.shape[0] > UNROLLED:
        return array.at[at].get(mode="promise_in_bounds")
    return jnp.stack([row(array, at[k]) for k in range(at.shape[0])])


def _scattered(array: Any, at: Any, values: Any) -> Any:
    if at.shape[0] > UNROLLED:
        return lax.fori_loop(0, at.shape[0], lambda k, x: put(x, row(at, k), row(values, k)), array)
    for k in range(at.shape[0]):
        array = put(array, at[k], values[k])
    return array
