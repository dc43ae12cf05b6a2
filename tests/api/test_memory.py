"""What a function closes over dies with it, as under stock `jax.jit`."""

from __future__ import annotations

import gc
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks import memory
from jax_cocktail.lowering.choice import decisions, leaving, variants
from jax_cocktail.memory import MEMORY, MOST, Recent
from jax_cocktail.warning import warn

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

X = jnp.arange(3.0)
FORCED = {"force": "cocktail", "profile": "off", "units": 1}


def alive(*refs):
    gc.collect()
    return [ref() is not None for ref in refs]


def closure(size=400):
    """A function with a loop that closes over an array, too large to be a part of a program."""
    table = jnp.ones((size, size)) * 2

    def f(x):
        return lax.fori_loop(0, 3, lambda i, a: a * 1.5 + table[i, :3], x)

    return f, weakref.ref(table)


def recursion():
    """The same with a recursion, and a derivative of the user's own."""
    table = jnp.ones((400, 400)) * 2

    @jax.custom_vjp
    def scaled(x):
        return x * table[0, :3]

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, ct: (ct * table[0, :3],))

    @jax_cocktail.recursive
    def f(self, x, n):
        return lax.cond(n <= 0, lambda: x, lambda: self(scaled(x) + table[1, :3], n - 1))

    return lambda x: f(x, 3), weakref.ref(table)


TARGETS = ("jax_cocktail_cpu", "jax_cocktail_failure")
UNCHECKED = [jax.export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
USES = {
    "call": lambda f: f(X),
    "lower": lambda f: f.lower(X).compile()(X),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: jax.vmap(f)(jnp.ones((4, 3))),
    "inside": lambda f: jax.jit(lambda x: f(x) + 1)(X),
    "explain": lambda f: jax_cocktail.explain(f)(X),
    "export": lambda f: jax.export.export(f, disabled_checks=UNCHECKED)(X),
}
MAKERS = {"loop": closure, "recursion": recursion}


FORMS = [(FORCED, use) for use in USES] + [({}, "call")]  # without options the call is measured


@pytest.mark.covering(1)
@pytest.mark.parametrize(("options", "use"), FORMS, ids=[*USES, "measured"])
@pytest.mark.parametrize("make", MAKERS)
def test_what_a_function_closes_over_dies_with_it(make, options, use):
    def outlives(wrap):
        function, ref = MAKERS[make]()
        wrapped = wrap(function)
        USES[use](wrapped)
        del function, wrapped
        if not any(alive(ref)):
            return 0
        jax.clear_caches()
        return 1 + sum(alive(ref))

    ours = outlives(lambda f: jax_cocktail.jit(f, options=options))
    assert ours == 0 or ours == outlives(jax.jit) == 1  # 1: until `jax.clear_caches`, as under stock jax


def test_a_program_lives_as_long_as_its_function():
    function, table = closure()
    ours = jax_cocktail.jit(function, options=FORCED)
    wanted = np.asarray(ours(X))
    del function
    assert alive(table) == [True]
    jax.clear_caches()
    jax_cocktail.clear_cache()
    np.testing.assert_array_equal(ours(X), wanted)
    del ours
    assert alive(table) == [False]


def test_what_was_prepared_is_used_again(monkeypatch):
    captured = []
    real = variants.capture
    monkeypatch.setattr(variants, "capture", lambda *args: captured.append(args) or real(*args))
    ours = jax_cocktail.jit(closure()[0], options=FORCED)
    ours.lower(X)
    ours(X)
    traced = ours.trace(X)
    traced.lower()
    assert len(captured) == 1 and MEMORY.prepared
    jax_cocktail.clear_cache()
    assert not MEMORY.prepared


def test_a_wrapper_remembers_no_shape():
    ours = jax_cocktail.jit(lambda x, unused: lax.fori_loop(0, 3, lambda i, a: a * 1.5, x))
    for n in range(1, 9):
        ours.eval_shape(jnp.ones(n), X)
    traced = ours._marked._record.traced
    assert any(alive(*traced))
    jax.clear_caches()
    gc.collect()
    assert not any(alive(*traced))
    ours.eval_shape(X, X)
    assert len(traced) == 1


def test_what_a_function_closes_over_dies_at_once():
    table = jnp.ones(3)
    ref = weakref.ref(table)
    function = (lambda table: lambda: lax.fori_loop(0, 3, lambda _, a: a * 1.5, table))(table)
    ours = jax_cocktail.jit(function, options=FORCED)
    ours()
    gc.collect()
    gc.disable()
    try:
        del table, function
        assert ref() is not None
        del ours
        assert ref() is None
    finally:
        gc.enable()


def test_jax_keeps_no_binary():
    """Not among what it remembers of traces either, where nothing tells that the function has died."""

    def copies():
        gc.collect()
        arrays = (each for each in gc.get_objects() if type(each).__name__ == "HashableArray")
        return sum(np.asarray(each.val).nbytes > 4096 for each in arrays)

    before = copies()
    ours = jax_cocktail.jit(closure()[0], options=FORCED)
    ours(X)
    ours.clear_cache()
    del ours
    assert copies() <= before


def test_what_a_process_remembers_is_bounded(monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", "/proc/nowhere")
    tables = MEMORY.decisions, MEMORY.watched, MEMORY.warned
    decision = decisions.Decision("stock")
    with warnings.catch_warnings(action="ignore"):
        for n in range(MOST + 9):
            decisions.store(str(n), decision)
            leaving.watch(str(n), decision, ("digest",))
            warn((str(n), ""), "text")
    assert [len(table) for table in tables] == [MOST] * 3
    assert decisions.used_here(str(n)) and not decisions.used_here("1")
    MEMORY.renew()
    assert not any((MEMORY.decisions, MEMORY.watched, MEMORY.warned))


def test_what_came_last_is_kept():
    table = Recent[int, str](most=3)
    for n in (1, 2, 3, 1, 4):
        table.keep(n, str(n))
    assert list(table.items()) == [(3, "3"), (1, "1"), (4, "4")]


IDLE = 8  # of the programs that nobody calls, so many stay loaded


def test_a_process_stays_flat():
    """Nothing keeps the programs, nor the arrays that they close over: a loaded program has five mappings."""
    steps = list(memory.measure("ours", programs=20, calls=1500))
    (_, first, early), *_, (_, last, late) = (
        step for step in steps if step[0] == "programs" and step[1] > IDLE
    )
    for name, most in (("MiB", 4), ("arrays", 0), ("mappings", 1.5), ("files", 0.1), ("threads", 0.1)):
        assert late[name] - early[name] <= most * (last - first), name
    for name, most in (("MiB", 16), ("arrays", 0), ("mappings", 8), ("files", 1), ("threads", 1)):
        assert steps[-1][2][name] - late[name] <= most, name


def test_shapes_of_a_function_are_dropped_with_it():
    """Programs of many shapes: those that are loaded are unloaded, but for the last few."""
    *steps, (what, _, dropped) = memory.measure("ours", programs=0, calls=0, shapes=20)
    assert what == "shapes, dropped"
    first, last = steps[0][2], steps[-1][2]
    assert last["mappings"] - first["mappings"] > 5 * IDLE, "they are loaded"
    assert dropped["mappings"] - first["mappings"] <= 5 * IDLE
    for name in ("arrays", "files"):
        assert dropped[name] <= first[name], name
