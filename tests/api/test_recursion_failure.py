"""Recursion that gets too deep, or makes too many calls: an error on every path, never a wrong number."""

from __future__ import annotations

import functools
import gc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.lowering.edge import failure_call
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.memory import MEMORY
from jax_cocktail.recursion.failure import failure_p
from tests.process import python

# What jax raises for an error of a custom call: the second where its fast path made the call.
ERRORS = (jax.errors.JaxRuntimeError, ValueError)
DEEP = r"count called itself more than 8 deep; raise max_depth=8"
MANY = r"power was called more than 4 times.*raise max_calls=4"
OURS = {"force": "cocktail", "strict": True}


@recursive(max_depth=8)
def count(self, n):
    return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)


@recursive(max_depth=100, max_calls=4, out_like=lambda n, x: x)
def power(self, n, x):
    return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x) * x)


def ours(function):
    return jax_cocktail.jit(function, options=OURS)


PATHS = {"eager": lambda f: f, "jit": jax.jit, "ours": ours}


@pytest.fixture(params=PATHS)
def path(request):
    return PATHS[request.param]


def refused(match: str, function, *arguments) -> str:
    with pytest.raises(ERRORS, match=match) as caught:
        jax.block_until_ready(function(*arguments))
    return str(caught.value)


# ---- one call ----------------------------------------------------------------------------------------------
def test_too_deep(path):
    function = path(count)
    assert "jax_cocktail: count called" in refused(DEEP, function, 100)
    refused(DEEP, function, 8)


def test_at_the_limit_and_after_a_failure(path):
    """The limit is the number of calls under way; what failed leaves nothing behind."""
    function = path(count)
    for _ in range(3):
        assert int(function(7)) == 7
        refused(DEEP, function, 8)
        refused(DEEP, function, 1000)
    assert int(function(0)) == 0


def test_says_what_the_status_is_about(path):
    """The line of another failure is not told."""
    assert "max_calls" not in refused(DEEP, path(count), 8)
    assert "max_depth" not in refused(MANY, path(jax.grad(power, argnums=1)), 5, 1.5)


def test_gradient_of_too_many_calls(path):
    gradient = path(jax.grad(power, argnums=1))
    assert float(gradient(3, 1.5)) == pytest.approx(4 * 1.5**3)
    refused(MANY, gradient, 4, 1.5)
    assert float(gradient(2, 1.5)) == pytest.approx(3 * 1.5**2)
    assert float(path(power)(6, 1.5)) == pytest.approx(1.5**7)  # only the derivative keeps something of calls


def test_gradient_that_is_too_deep(path):
    @recursive(max_depth=3, max_calls=50, out_like=lambda n, x: x)
    def deep(self, n, x):
        return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x) * x)

    gradient = path(jax.grad(deep, argnums=1))
    assert float(gradient(2, 1.5)) == pytest.approx(3 * 1.5**2)
    refused("deep called itself more than 3 deep; raise max_depth=3", gradient, 3, 1.5)


def test_debug_nans_names_the_function(path):
    @recursive
    def descend(self, x, n):
        return lax.cond(n < 1, lambda: jnp.log(x), lambda: self(x - 1, n - 1))

    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError, match="invalid value encountered in descend"),
    ):
        path(descend)(1.0, 3)


def test_any_lane(path):
    function = path(jax.vmap(count))
    np.testing.assert_array_equal(function(jnp.array([7, 0, 3])), [7, 0, 3])
    refused(DEEP, function, jnp.array([7, 8, 3]))
    np.testing.assert_array_equal(function(jnp.array([1, 6, 7])), [1, 6, 7])


def test_gradient_of_lanes(path):
    gradient = path(jax.vmap(jax.grad(power, argnums=1)))
    x = jnp.array([1.5, 0.5])
    np.testing.assert_allclose(gradient(jnp.array([3, 1]), x), [4 * 1.5**3, 2 * 0.5], rtol=1e-6)
    refused(MANY, gradient, jnp.array([3, 4]), x)


def test_inside_a_loop(path):
    function = path(lambda n: lax.fori_loop(0, n, lambda k, c: c + count(k), 0))
    assert int(function(8)) == sum(range(8))
    refused(DEEP, function, 9)


def test_on_the_side_that_is_taken(path):
    function = path(lambda n: lax.cond(n > 7, lambda: -1, lambda: count(n)))
    assert int(function(100)) == -1 and int(function(5)) == 5


def test_without_the_smallest_result(path):
    """Whichever result is used: all of them wait for the error."""

    @recursive(max_depth=4, out_like=lambda n, x: (n, x))
    def both(self, n, x):
        def further():
            m, y = self(n - 1, x + 1)
            return m + 1, y

        return lax.cond(n < 1, lambda: (n, x), further)

    for which in (0, 1):
        function = path(lambda n, x, which=which: both(n, x)[which])
        assert float(jnp.sum(function(3, jnp.zeros(5)))) == (3.0, 15.0)[which]
        refused("both called itself more than 4 deep", function, 4, jnp.zeros(5))


def test_two_functions_in_one_program(path):
    @recursive(max_depth=5)
    def other(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    function = path(lambda n, m: count(n) * other(m))
    assert int(function(7, 4)) == 28
    refused(DEEP, function, 8, 4)
    refused("other called itself more than 5 deep; raise max_depth=5", function, 7, 5)


# ---- other ways to get there -------------------------------------------------------------------------------
@pytest.mark.parametrize("wrap", [jax.jit, ours], ids=["jit", "ours"])
def test_ahead_of_time(wrap):
    compiled = wrap(lambda n: count(n)).lower(jnp.int32(1)).compile()
    assert int(compiled(jnp.int32(7))) == 7
    refused(DEEP, compiled, jnp.int32(8))


def test_auto_measures_nothing_on_arguments_that_fail(recwarn):
    MEMORY.warned.clear()
    function = jax_cocktail.jit(lambda n: count(n) + 41)
    assert "the call fails on these arguments" in jax_cocktail.explain(function)(50).why
    refused(DEEP, function, 50)
    assert int(function(7)) == 48
    assert not [w for w in recwarn if issubclass(w.category, jax_cocktail.CocktailWarning)]


def test_who_is_to_blame_for_a_failed_measurement():
    """On a GPU stock XLA goes on, and only our call tells that the arguments are bad."""

    def fails(text):
        raise jax.errors.JaxRuntimeError(text)

    told = "OUT_OF_RANGE: jax_cocktail: the program f: f called itself more than 8 deep"
    with pytest.raises(stopwatch.CallFails, match="8 deep"):
        stopwatch.race([lambda: 0, lambda: fails(told)])
    with pytest.raises(stopwatch.CallFails, match="memory"):
        stopwatch.race([lambda: fails("out of memory"), lambda: 0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="memory"):
        stopwatch.race([lambda: 0, lambda: fails("out of memory")])


def test_evaluated_at_once():
    assert int(failure_p.bind(jnp.int32(0), text="one\ntwo")) == 0
    with pytest.raises(jax.errors.JaxRuntimeError, match="jax_cocktail: two$"):
        failure_p.bind(jnp.int32([0, 2, 1]), text="one\ntwo")


def test_statuses_of_lanes():
    """As a GPU's lowering makes them: an array, in one call."""
    check = jax.jit(jax.vmap(lambda s: failure_p.bind(s, text="one\ntwo")))
    np.testing.assert_array_equal(check(jnp.zeros((3,), jnp.int32)), [0, 0, 0])
    assert check(jnp.zeros((0,), jnp.int32)).shape == (0,)
    refused("jax_cocktail: two", check, jnp.int32([0, 0, 2]))
    refused("jax_cocktail: one", check, jnp.int32([1, 0, 2]))
    refused("status 3", check, jnp.int32([0, 3, 0]))
    refused("status -5", check, jnp.int32([-5, 0, 0]))


def test_results_are_no_numbers_where_nothing_is_raised(monkeypatch):
    """As on platforms without a handler of ours."""
    monkeypatch.setattr(failure_p, "bind", lambda status, text: status)

    @recursive(max_depth=6, out_like=lambda n, x: (n, x))
    def quiet(self, n, x):
        def further():
            m, y = self(n - 1, x)
            return m + 1, y * 2

        return lax.cond(n < 1, lambda: (n, x), further)

    number, array = jax.jit(quiet)(6, jnp.ones(3))
    assert int(number) == np.iinfo(np.int32).min and np.isnan(array).all()
    number, array = jax.jit(quiet)(5, jnp.ones(3))
    assert int(number) == 5 and (np.asarray(array) == 32).all()


# ---- out of the process ------------------------------------------------------------------------------------
PROGRAM = """
    import jax, jax.numpy as jnp
    from jax import lax
    from jax_cocktail import recursive

    @recursive(max_depth=8)
    def count(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    function = jax.jit(count)
    print(int(function(7)))
    try:
        print(int(function(8)))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_export(tmp_path):
    pytest.importorskip("flatbuffers")
    with pytest.raises(ValueError, match=failure_call.TARGET):
        export.export(jax.jit(count))(jnp.int32(1))
    allowed = [export.DisabledSafetyCheck.custom_call(failure_call.TARGET)]
    exported = export.export(jax.jit(count), disabled_checks=allowed)(jnp.int32(1))
    data = exported.serialize()
    called = export.deserialize(data).call
    assert int(called(jnp.int32(7))) == 7
    refused(DEEP, called, jnp.int32(8))
    (tmp_path / "program").write_bytes(data)
    out = python(f"""
        import jax_cocktail
        jax_cocktail.load()
        import jax.numpy as jnp, pathlib
        from jax import export
        called = export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes()).call
        print(int(called(jnp.int32(7))))
        try:
            print(int(called(jnp.int32(8))))
        except Exception as error:
            print(error)
    """)
    first, rest = out.split("\n", 1)
    assert first == "7" and re.search(DEEP, rest)


def test_export_of_a_program_of_ours():
    pytest.importorskip("flatbuffers")
    allowed = [export.DisabledSafetyCheck.custom_call("jax_cocktail_cpu")]
    exported = export.export(ours(count), disabled_checks=allowed)(jnp.int32(1))
    called = export.deserialize(exported.serialize()).call
    assert int(called(jnp.int32(7))) == 7
    refused(DEEP, called, jnp.int32(8))


def test_persistent_cache(tmp_path):
    """The second process loads what the first one compiled."""
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    outs, entries = [], []
    for _ in range(2):
        outs.append(python(PROGRAM, **environment))
        entries.append({path.name for path in tmp_path.iterdir() if not path.name.endswith("-atime")})
    assert entries[0] and entries[0] == entries[1]
    for out in outs:
        first, rest = out.split("\n", 1)
        assert first == "7" and re.search(DEEP, rest)


def test_without_a_compiler(tmp_path):
    """The handler in Python says the same."""
    out = python(
        PROGRAM
        + "    from jax_cocktail.lowering.edge import custom_call\n    print(custom_call.library())\n",
        CXX=str(tmp_path / "none"),
        JAX_COCKTAIL_CACHE_DIR=str(tmp_path),
    )
    first, rest = out.split("\n", 1)
    assert first == "7" and re.search(DEEP, rest) and rest.strip().endswith("None")


@functools.cache
def register_in_python():
    from jax_cocktail.runtime import failure_handler

    stages = {"execute": jax.ffi.pycapsule(failure_handler.execute)}
    jax.ffi.register_ffi_target("jax_cocktail_failure_in_python", stages, platform="cpu")


def test_the_handler_in_python():
    """Many calls, and a collection of garbage: ctypes keeps what XLA calls."""
    register_in_python()

    @jax.jit
    def check(status):
        call = jax.ffi.ffi_call("jax_cocktail_failure_in_python", jax.typeof(status))
        return call(status, text="one\ntwo")

    gc.collect()
    for status in (0, 1, 0, 2, 7):
        if status:
            refused({1: "one", 2: "two"}.get(status, "status 7"), check, jnp.int32(status))
        else:
            assert int(check(jnp.int32(status))) == 0
    np.testing.assert_array_equal(check(jnp.zeros((2, 3), jnp.int32)), np.zeros((2, 3)))
    assert check(jnp.zeros((0, 3), jnp.int32)).shape == (0, 3)
    refused("jax_cocktail: two", check, jnp.int32([[0, 0], [0, 2]]))
    refused("takes one int32 array", jax.jit(check), jnp.float32(0))


@pytest.mark.parametrize("result", [(1,), (65,), ()])
@pytest.mark.parametrize("target", ["jax_cocktail_failure", "jax_cocktail_failure_in_python"])
def test_a_module_cannot_make_the_handler_write_out_of_bounds(target, result):
    """Nobody has to trust a module that calls it. A result of another size would overflow."""
    register_in_python()

    @jax.jit
    def call(status):
        return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(result, np.int32))(status, text="one")

    refused("returns one of its size", call, jnp.zeros(64, jnp.int32))
