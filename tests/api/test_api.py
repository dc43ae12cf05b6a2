"""`jax_cocktail.jit` as an object: what `jax.jit` offers, what the options do, and what a call costs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.edge import intercept
from jax_cocktail.lowering.state import call, read_mark
from jax_cocktail.memory import MEMORY
from tests.process import python

TARGET = "jax_cocktail_cpu"
FORCED = {"force": "cocktail"}


def cubed(x):
    """Three times x."""
    return lax.fori_loop(0, 3, lambda i, a: a + x, jnp.zeros_like(x))


def text(function, *arguments):
    return function.lower(*arguments).as_text()


# ---- the canary -------------------------------------------------------------------------------------------


def test_the_private_rule_is_where_we_look():
    jax_cocktail.jit(cubed)
    assert intercept.available()


def marks_in(jaxpr):
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        mark = read_mark(equation.params.get("name"))
        if mark is not None:
            yield mark.function
        for value in equation.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from marks_in(value)


SURVIVES = {
    "nothing": lambda f: f,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "vmap": jax.vmap,
    "jit": jax.jit,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
}


@pytest.mark.parametrize("name", SURVIVES)
def test_the_mark_survives(name):
    function = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda i, a: jnp.sin(a * x), x))
    assert list(marks_in(jax.make_jaxpr(SURVIVES[name](function))(jnp.ones(3))))


def test_a_lost_mark_is_stock(monkeypatch):
    monkeypatch.setattr("jax_cocktail.lowering.edge.intercept.read_mark", lambda name: None)
    MEMORY.warned.clear()
    function = jax_cocktail.jit(lambda x: cubed(x) + 1, options=FORCED)
    with pytest.warns(jax_cocktail.CocktailWarning, match="does not reach"):
        assert TARGET not in text(function, jnp.ones(3))
    report = jax_cocktail.explain(function)(jnp.ones(4))
    assert "does not reach" in report.why
    assert "test_api.py:" in report.left[0].where


# ---- the object -------------------------------------------------------------------------------------------


def test_decorator_forms():
    @jax_cocktail.jit
    def plain(x):
        return cubed(x)

    @jax_cocktail.jit(static_argnames="n", options=FORCED)
    def with_arguments(x, n):
        return lax.fori_loop(0, n, lambda i, a: a + x, x)

    @functools.partial(jax_cocktail.jit, static_argnums=1)
    def by_partial(x, n):
        return lax.fori_loop(0, n, lambda i, a: a + x, x)

    assert plain(1.0) == 3.0
    assert with_arguments(1.0, n=2) == 3.0
    assert with_arguments(1.0, 4) == 5.0
    assert by_partial(1.0, 2) == 3.0


def test_looks_like_the_function():
    function = jax_cocktail.jit(cubed)
    assert (function.__name__, function.__doc__) == ("cubed", "Three times x.")
    assert function.__wrapped__ is cubed
    assert inspect.signature(function) == inspect.signature(cubed)
    assert isinstance(function, jax.stages.Wrapped)
    public = [name for name in dir(jax.jit(cubed)) if not name.startswith("_")]
    assert all(hasattr(function, name) for name in public)
    assert not hasattr(function, "no_such_thing")


def test_methods():
    class Model:
        def __init__(self, rate):
            self.rate = rate

        @functools.partial(jax_cocktail.jit, static_argnums=0, options=FORCED)
        def step(self, x):
            return lax.fori_loop(0, 3, lambda i, a: a * self.rate, x)

        @staticmethod
        @jax_cocktail.jit
        def still(x):
            return cubed(x)

    assert Model(2.0).step(1.0) == 8.0
    assert Model(3.0).step(1.0) == 27.0
    assert Model.still(1.0) == 3.0
    assert isinstance(Model.step, type(jax_cocktail.jit(cubed)))


def test_callables_without_a_name():
    class Callable:
        def __call__(self, x):
            return cubed(x)

    assert jax_cocktail.jit(Callable())(1.0) == 3.0
    assert jax_cocktail.jit(functools.partial(lambda n, x: cubed(x) * n, 2.0))(1.0) == 6.0
    assert jax_cocktail.jit(jax.jit(cubed))(1.0) == 3.0


@pytest.mark.parametrize(
    "option",
    [{"inline": True}, {"keep_unused": True}, {"compiler_options": {"xla_cpu_enable_fast_math": False}}],
)
def test_options_of_jax(option):
    function = jax_cocktail.jit(lambda x, unused: cubed(x), options=FORCED, **option)
    assert function(1.0, 2.0) == 3.0
    if "compiler_options" not in option:
        assert jax.jit(lambda x: function(x, x) + 1)(1.0) == 4.0


def test_donated_by_name():
    function = jax_cocktail.jit(lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + b, a), donate_argnames="a")
    a = jnp.zeros(1000)
    assert function(a=a, b=jnp.float32(2))[0] == 6
    assert a.is_deleted()


def test_disable_jit():
    seen = []

    @jax_cocktail.jit
    def function(x):
        seen.append(type(x))
        return cubed(x)

    with jax.disable_jit():
        assert function(jnp.float32(1)) == 3.0
    assert not issubclass(seen[0], jax.core.Tracer)


def test_clear_cache_traces_again():
    traces = []

    @jax_cocktail.jit
    def function(x):
        traces.append(x)
        return cubed(x)

    function(1.0)
    function(2.0)
    assert len(traces) == 1
    function.clear_cache()
    function(1.0)
    assert len(traces) == 2


def test_static_values_do_not_mix():
    function = jax_cocktail.jit(lambda x, how: cubed(x) if how == "up" else -cubed(x), static_argnames="how")
    assert [float(function(1.0, how)) for how in ("up", "down", "up")] == [3.0, -3.0, 3.0]


def test_calls_from_threads():
    function = jax_cocktail.jit(lambda x: cubed(x) * 2)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: float(function(jnp.full(n % 3 + 1, float(n)))[0]), range(32)))
    assert results == [6.0 * n for n in range(32)]
    assert call() is None


def test_lowering_in_threads_that_crowd_each_other_out(monkeypatch):
    monkeypatch.setattr(MEMORY.prepared, "most", 1)
    MEMORY.prepared.clear()
    functions = [jax_cocktail.jit(lambda x, n=n: cubed(x) * n, options=FORCED) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda function: text(function, jnp.ones(3)), functions * 2))
    assert all(TARGET in found for found in texts)
    assert len(MEMORY.prepared) <= 1


# ---- errors of the user are JAX's own ---------------------------------------------------------------------


def bad_carry(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1].astype(int)), (0, x))


WRONG = {
    "carry type": (bad_carry, (1.0,)),
    "predicate shape": (lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), (np.ones(3),)),
    "branch types": (lambda x: lax.cond(x > 0, lambda: 1.0, lambda: 1), (1.0,)),
    "bool of a tracer": (lambda x: 1 if x > 0 else 2, (1.0,)),
    "an argument too few": (lambda x, y: x, (1.0,)),
    "not an array": (lambda x: x, ("text",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_same_error_as_jax(name):
    function, arguments = WRONG[name]
    found = []
    for wrap in (jax.jit, jax_cocktail.jit):
        with pytest.raises(Exception) as caught:
            wrap(function)(*arguments)
        found.append((caught.type, re.sub(r"0x[0-9a-f]+", "", str(caught.value))))
    assert found[0][0] is found[1][0]
    assert found[0][1] == found[1][1]


def test_unhashable_static_argument():
    for wrap in (jax.jit, jax_cocktail.jit):
        with pytest.raises(ValueError, match="[Nn]on-hashable static"):
            wrap(lambda x, n: x, static_argnums=1)(1.0, [1])


# ---- options ----------------------------------------------------------------------------------------------


def test_context_traces_again_and_ends():
    function = jax_cocktail.jit(lambda x: cubed(x) - 1)
    x = jnp.ones(5)
    with jax_cocktail.options(force="cocktail"):
        assert TARGET in text(function, x)
        assert float(function(x)[0]) == 2.0
        with jax_cocktail.options(force="stock"):
            assert TARGET not in text(function, x)
            assert float(function(x)[0]) == 2.0
        assert TARGET in text(function, x)


def test_options_of_the_function_win():
    function = jax_cocktail.jit(lambda x: cubed(x) - 2, options={"force": "stock"})
    with jax_cocktail.options(force="cocktail"):
        assert TARGET not in text(function, jnp.ones(5))
    everything = jax_cocktail.Options(force="cocktail")
    assert TARGET in text(jax_cocktail.jit(cubed, options=everything), jnp.ones(5))


def test_environment(monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_FORCE", "stock")
    assert TARGET not in text(jax_cocktail.jit(lambda x: cubed(x) - 3), jnp.ones(5))
    monkeypatch.setenv("JAX_COCKTAIL_FORCE", "cocktail")
    assert TARGET in text(jax_cocktail.jit(lambda x: cubed(x) - 3), jnp.ones(5))


def test_what_is_no_function():
    for wrong in (3, jnp.ones(2), None):
        with pytest.raises(TypeError, match="Expected a callable value, got"):
            jax_cocktail.explain(wrong)
    with pytest.raises(TypeError, match="Expected a callable value, got 3"):
        jax_cocktail.jit(3)


def test_an_option_in_the_wrong_place():
    with pytest.raises(TypeError, match="options={'force': 'stock'}"):
        jax_cocktail.jit(jnp.sin, force="stock")


def test_unknown_option():
    with pytest.raises(TypeError, match="no option 'fource'"):
        jax_cocktail.jit(cubed, options={"fource": "stock"})


def test_a_forced_inner_function_stays_with_stock():
    inner = jax_cocktail.jit(cubed, options={"force": "stock"})
    outer = jax_cocktail.jit(
        lambda x: lax.fori_loop(0, 2, lambda i, a: a + 1, inner(lax.fori_loop(0, 2, lambda i, a: a * 2, x))),
        options=FORCED,
    )
    lowered = text(outer, jnp.ones(3))
    assert lowered.count(f"@{TARGET}") == 2
    assert lowered.count("stablehlo.while") == 1
    assert float(outer(jnp.ones(3))[0]) == 14.0


def test_dump(tmp_path):
    jax_cocktail.jit(cubed, options={**FORCED, "dump_to": str(tmp_path)}).lower(jnp.ones(7))
    (folder,) = tmp_path.glob("cubed_0_*")
    names = sorted(path.name for path in folder.iterdir())
    assert {"jaxpr.txt", "program.cc", "command.txt", "00_translate.txt"} <= set(names)
    assert "ck_program" in (folder / "program.cc").read_text()


# ---- cost and processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scoped", [False, True])
def test_call_overhead(scoped):
    with jax_cocktail.options(strict=True) if scoped else contextlib.nullcontext():
        check_overhead()


def check_overhead():
    functions = [wrap(lambda x: x + 1) for wrap in (jax.jit, jax_cocktail.jit)]
    x = jnp.ones(8)
    best = [1.0, 1.0]
    for _ in range(15):
        for which, function in enumerate(functions):
            function(x)
            start = time.perf_counter()
            for _ in range(1000):
                function(x)
            best[which] = min(best[which], (time.perf_counter() - start) / 1000)
    # benchmarks/targets.py holds it to 2 us on a quiet machine; other tests run beside this one
    assert best[1] - best[0] < 1e-5


def test_several_devices():
    out = python(
        """
        import warnings
        import jax, jax.numpy as jnp, numpy as np, jax_cocktail
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        def f(x): return lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a) * x, x)
        ours = jax_cocktail.jit(f, options={"force": "cocktail"})
        mesh = Mesh(np.array(jax.devices()), ("d",))
        x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
        assert "jax_cocktail_cpu" in ours.lower(x).as_text()
        assert np.allclose(ours(x), jax.jit(f)(x)) and ours(x).sharding.spec == P("d")
        unknown = jax.jit(lambda x: ours(x * 2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert "jax_cocktail_cpu" not in unknown.lower(x).as_text()
        assert "2 devices" in str(caught[0].message), caught
        assert np.allclose(unknown(x), jax.jit(f)(x * 2)) and unknown(x).sharding.spec == P("d")
        mapped = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        assert "jax_cocktail_cpu" in mapped.lower(x).as_text()
        assert np.allclose(mapped(x), jax.jit(f)(x))
        outside = jax_cocktail.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        both = jax_cocktail.jit(jax.shard_map(ours, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.allclose(outside(x), jax.jit(f)(x))
            assert np.allclose(both(x), jax.jit(f)(x))
        assert "jax_cocktail_cpu" in both.lower(x).as_text()
        assert not jax_cocktail.explain(both)(x).left
        print("fine")
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert out.strip() == "fine"


def test_persistent_cache_of_jax(tmp_path):
    program = """
        import jax, jax.numpy as jnp, jax_cocktail
        from jax import lax
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        hits = []
        jax.monitoring.register_event_listener(
            lambda name, **kw: hits.append(name) if name.endswith("cache_hits") else None)
        f = lambda x: lax.fori_loop(0, 3, lambda i, a: a + x, x)
        print(float(jax_cocktail.jit(f, options={"force": "cocktail"})(jnp.ones(3))[0]), len(hits) > 0)
    """
    runs = [python(program, JAX_COMPILATION_CACHE_DIR=str(tmp_path)).split() for _ in range(2)]
    assert [run[0] for run in runs] == ["4.0", "4.0"]
    assert runs[1][1] == "True"


def test_importing_the_compiler_does_not_import_jax():
    python("import sys, jax_cocktail, jax_cocktail.config; assert 'jax' not in sys.modules")


def test_public_names():
    assert {"jit", "explain", "options", "clear_cache", "load", "Report", "__version__"} <= set(
        dir(jax_cocktail)
    )
    assert all(getattr(jax_cocktail, name) is not None for name in jax_cocktail.__all__)
