"""Batch elements on threads of a GPU whose arrays lie in the memory of each thread, against stock."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import build, emit
from jax_cocktail.device.cards import spec_for
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.sync import plan_tail
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import by_threads, walk
from tests.cpu.by_threads import run
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.rocm_compilers import zig


def history(x):
    """A history of 200 numbers, written at a place and read back at others."""

    def step(state):
        k, past, x = state
        past = past.at[(k * 7) % 200].set(x)
        return k + 1, past, x * 0.5 + past[(k * 3) % 200]

    start = jnp.int32(0), jnp.zeros(200, x.dtype), x
    return jax.lax.while_loop(lambda state: (state[0] < 300) & (state[2] < 1e3), step, start)[2]


def inputs(count, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def local_bytes(emitted):
    """The bytes of arrays that a thread has for itself; a loop by threads declares them."""
    assert any(map(by_threads, walk(emitted.program.entry)))
    assert bool(emitted.plan.thread_bytes) == ("u8 mine[" in emitted.source)
    return emitted.plan.thread_bytes


@pytest.mark.parametrize("sanitizer", [None, "address", "thread"])
def test_a_history(sanitizer, monkeypatch):
    emitted = run(monkeypatch, jax.vmap(history), (inputs(70),), sanitizer=sanitizer)
    assert local_bytes(emitted) == 832  # updated in place: there is no copy of it


def filter_of(size):
    """A step of a filter: the covariance is factored, and a system is solved with it."""

    def element(matrix, start):
        def step(x, drive):
            spread = matrix @ matrix.T + jnp.diag(1 + x * x)
            factor = jnp.linalg.cholesky(spread)
            y = jax.scipy.linalg.solve_triangular(factor, start + drive * x, lower=True)
            return jax.scipy.linalg.solve_triangular(factor.T, y, lower=False), jnp.trace(factor)

        return jax.lax.scan(step, start, jnp.arange(3.0, dtype=start.dtype))

    return jax.vmap(element)


@pytest.mark.parametrize("size", [12, 16])
def test_cholesky(size, monkeypatch):
    arguments = inputs(70, size, size), inputs(70, size)
    emitted = run(monkeypatch, filter_of(size), arguments, sanitizer="address")
    assert local_bytes(emitted)


def test_a_factor_that_there_is_not(monkeypatch):
    """A pivot that is not positive makes all elements NaN, as in registers."""
    matrices = inputs(64, 9, 9)

    def element(matrix):
        return jnp.linalg.cholesky(looped(matrix @ matrix.T - 3))

    run(monkeypatch, lambda a: jax.lax.map(element, a), (matrices,))


def looped(x):
    return jax.lax.fori_loop(0, 2, lambda _, x: x * 1.0, x)


def test_lu(monkeypatch):
    def element(matrix, right):
        def step(_, x):
            factors, pivots, _ = jax.lax.linalg.lu(matrix + jnp.diag(x))
            order = jnp.arange(12).at[pivots[3]].add(0)
            found = jnp.linalg.solve(matrix + 20 * jnp.eye(12), x)
            return found + 0.01 * factors[pivots[0], order[1]] + right

        return jax.lax.fori_loop(0, 3, step, right)

    run(monkeypatch, jax.vmap(element), (inputs(70, 12, 12), inputs(70, 12)), sanitizer="address")


def machine(code):
    """A stack machine: its stack has 100 places."""

    def step(state):
        at, top, stack = state
        a, b = stack[top], stack[top - 1]
        stack = jax.lax.switch(
            code[at] % 5,
            [
                lambda s: s.at[top + 1].set(code[at] * 7),
                lambda s: s.at[top - 1].set(a + b),
                lambda s: s.at[top - 1].set(a * b),
                lambda s: s.at[top + 1].set(a),
                lambda s: s.at[top].set(b).at[top - 1].set(a),
            ],
            stack,
        )
        moves = jnp.array([1, -1, -1, 1, 0])
        return at + 1, jnp.maximum(top + moves[code[at] % 5], 1), stack

    start = jnp.int32(0), jnp.int32(1), jnp.zeros(100, jnp.int32)
    _, top, stack = jax.lax.while_loop(lambda s: (s[0] < 60) & (code[s[0]] != 37), step, start)
    return stack[top], jnp.sum(stack)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_stack_machine(sanitizer, monkeypatch):
    code = np.random.default_rng(3).integers(0, 60, size=(90, 60)).astype(np.int32)
    emitted = run(monkeypatch, jax.vmap(machine), (code,), sanitizer=sanitizer)
    assert local_bytes(emitted)


def sorted_by_heap(values):
    """A binary heap of 128 numbers: all are pushed, then popped."""

    def push(k, heap):
        def up(state):
            at, heap = state
            parent = (at - 1) // 2
            return parent, heap.at[at].set(heap[parent]).at[parent].set(heap[at])

        def is_smaller(state):
            at, heap = state
            return (at > 0) & (heap[at] < heap[(at - 1) // 2])

        heap = heap.at[k].set(values[k])
        return jax.lax.while_loop(is_smaller, up, (k, heap))[1]

    def pop(k, state):
        heap, total = state
        count = 100 - k
        total = total * 31 + heap[0]
        heap = heap.at[0].set(heap[count - 1]).at[count - 1].set(2**30)

        def child(at, heap):
            left = 2 * at + 1
            return jnp.where(heap[jnp.minimum(left + 1, 127)] < heap[jnp.minimum(left, 127)], left + 1, left)

        def down(state):
            at, heap = state
            to = child(at, heap)
            return to, heap.at[at].set(heap[to]).at[to].set(heap[at])

        def goes_on(state):
            at, heap = state
            return (2 * at + 2 < 128) & (heap[jnp.minimum(child(at, heap), 127)] < heap[at])

        return jax.lax.while_loop(goes_on, down, (jnp.int32(0), heap))[1], total

    heap = jax.lax.fori_loop(0, 100, push, jnp.full(128, 2**30, jnp.int32))
    return jax.lax.fori_loop(0, 100, pop, (heap, jnp.int32(0)))[1]


def test_a_heap(monkeypatch):
    values = np.random.default_rng(1).integers(0, 1000, size=(64, 100)).astype(np.int32)
    emitted = run(monkeypatch, jax.vmap(sorted_by_heap), (values,), loops=2, sanitizer="address")
    assert local_bytes(emitted)


def swapped(x):
    """Arrays that change places, that a branch hands on, and of which older states are read."""

    def step(k, state):
        a, b, total = state
        old = a
        a = a.at[(k * 5) % 80].add(x)
        kept = jax.lax.cond(total > 0, lambda: a.at[3].set(total), lambda: b * 0.5)
        total = total * 0.5 + old[(k * 5) % 80] + kept[k] + jnp.max(b) - b[jnp.argmin(a)]
        return b, kept, total

    start = jnp.arange(80.0, dtype=x.dtype) * 0.01, jnp.ones(80, x.dtype) * x, x
    return jax.lax.fori_loop(0, 20, step, start)[2]


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_arrays_that_change_places(sanitizer, monkeypatch):
    emitted = run(monkeypatch, jax.vmap(swapped), (inputs(65),), sanitizer=sanitizer)
    assert local_bytes(emitted)


def many(x, places):
    """Other operators on arrays that do not fit in registers."""
    ones = jnp.ones((100, 10))

    def step(k, a):
        b = jnp.concatenate([a[40:], jnp.flip(a[:40]), a.reshape(10, 9).T.reshape(-1)[:30]])
        c = jnp.pad(jnp.cumsum(b.reshape(10, 12), axis=1), ((0, 1), (2, 0)))
        d = jnp.take(c.reshape(-1), (places * 11 + k) % 150)
        d = d + jax.lax.cummax(a, reverse=True)[places[0]]
        e = jnp.zeros(100).at[(places * 7) % 110].add(d, mode="drop")
        total = c.sum() + c.max(axis=0)[3] + jnp.argmax(c, axis=1)[2] + e @ jnp.tril(ones)[:, 4]
        a = a * 0.9 + 0.01 * jnp.tanh(jax.lax.dynamic_slice(e, (k,), (90,))) + 1e-4 * total
        return jnp.where(jnp.arange(90) % 3 == k % 3, a, -a)

    return jax.lax.fori_loop(0, 5, step, x)


def test_many_operators(monkeypatch):
    places = np.random.default_rng(1).integers(0, 100, size=(64, 90)).astype(np.int32)
    emitted = run(monkeypatch, jax.vmap(many), (inputs(64, 90), places), sanitizer="address")
    assert local_bytes(emitted)


def test_a_map(monkeypatch):
    """The trips of `lax.map` are elements, too, and their results are rows."""

    def one(x):
        def step(k, past):
            return past.at[(k * 3) % 90].set(x + past[k])

        return jax.lax.fori_loop(0, 60, step, jnp.zeros(90))

    emitted = run(monkeypatch, lambda x: jax.lax.map(one, x), (inputs(64),), sanitizer="address")
    assert local_bytes(emitted)


@pytest.mark.parametrize(
    ("function", "shapes"), [(jax.vmap(history), [()]), (filter_of(12), [(12, 12), (12,)])]
)
def test_float64(function, shapes, monkeypatch):
    with jax.enable_x64():
        run(monkeypatch, function, [inputs(64, *shape).astype(np.float64) for shape in shapes])


def planned(function, shapes, spec):
    """A program by threads, for a card."""
    arguments = [np.zeros((20000, *shape), dtype) for dtype, *shape in shapes]
    prepared = prepare(jax.make_jaxpr(function)(*arguments), "elements", machine_of(spec))
    (program,) = prepared.programs
    return emit(program, machine_of(spec), candidate=Candidate(spec.units))


COMPILED = {
    "history": (jax.vmap(history), [("float32",)]),
    "filter": (filter_of(16), [("float32", 16, 16), ("float32", 16)]),
    "machine": (jax.vmap(machine), [("int32", 60)]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compiled(arch, name):
    """Arrays of a thread are its stack; nothing else is there, and nothing spills."""
    spec = spec_for(arch)
    emitted, toolchain = planned(*COMPILED[name], spec), nvcc()
    for facts in build_device_program(emitted.source, toolchain, spec).kernels.values():
        assert not facts.spill_bytes
        assert 0 < facts.stack_bytes <= emitted.plan.thread_bytes


@pytest.mark.long
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_compiled_for_amd(arch, name):
    """Its compilers do not tell such arrays from spilled registers: the build does."""
    spec = spec_for(arch)
    built = build(planned(*COMPILED[name], spec), compiler=zig())
    assert not any("spills" in remark.text for remark in built.emitted.remarks)


# -- the choice ----------------------------------------------------------------------------------------------
def prices(function, *rows):
    """The prices of the candidates on an H200, by candidate."""
    rows = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in rows]
    prepared = prepare(jax.make_jaxpr(function)(*rows), "elements", machine_of(H200))
    found = survey(prepared, H200.units)
    return {p.candidate: s for p, s in zip(found.plans, found.seconds, strict=True)}


def settle(x):
    return jax.lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x * 0.5, x)


def until_one(x):
    return jax.lax.while_loop(lambda x: x > 1, jnp.sqrt, x)


def test_the_price_decides_between_threads_and_larger_groups():
    units = H200.units
    by_thread, by_warp = Candidate(units), way(units, threads=H200.warp)
    by_block, together = way(units, local=False), way(units, elements=False)
    found = prices(jax.vmap(history), (100000,))  # a place in each trip
    assert max(found[by_thread], found[by_block]) < found[together]
    found = prices(jax.vmap(settle), (4096, 200))  # all places in each trip, and few elements
    assert found[by_warp] < found[by_block] < found[by_thread] < found[together]
    assert by_block not in prices(jax.vmap(until_one), (4096,))  # without an array


def test_arrays_that_no_cache_holds_cost_more():
    """The same accesses to arrays of 1,000 numbers in the place of 70."""

    def visits(size):
        def element(x):
            def step(k, state):
                past, x = state
                past = past.at[(k * 7) % 64].set(x)
                return past, x * 0.5 + past[(k * 3) % 64]

            return jax.lax.fori_loop(0, 5000, step, (jnp.zeros(size), x))[1]

        return prices(jax.vmap(element), (1 << 20,))[Candidate(H200.units)]

    assert visits(1000) > 1.5 * visits(70)


def test_too_much_local_memory(monkeypatch):
    """Cards reserve it for all threads that they can hold."""
    prepared = prepare(jax.make_jaxpr(jax.vmap(history))(jnp.zeros(1000)), "elements", machine_of(H200))
    (program,) = prepared.programs
    usual = emit(program, machine_of(H200), candidate=Candidate(H200.units))
    held = usual.plan.thread_bytes * H200.threads_per_unit * H200.units
    monkeypatch.setattr(plan_tail, "_MOST_PRIVATE", H200.memory_bytes // held)
    assert emit(program, machine_of(H200), candidate=Candidate(H200.units)).plan.thread_bytes
    monkeypatch.setattr(plan_tail, "_MOST_PRIVATE", H200.memory_bytes // held + 1)
    emitted = emit(program, machine_of(H200), candidate=Candidate(H200.units))
    assert "of all threads" in str(emitted.remarks[-1]) and not emitted.plan.thread_bytes
