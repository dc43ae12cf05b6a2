"""Ctrl-C and `max_seconds` stop a running program, and the next calls are right."""

from __future__ import annotations

import ast
import math
import re
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import config
from tests.process import python

NOW = {"force": "cocktail", "compile": "now"}
SLACK = 1.0  # seconds; usually it takes some milliseconds


def halvings(x, bound):
    """How often `x` can be halved until it is at least `bound`: once too often if `x` is less."""
    return lax.while_loop(lambda s: s[0] < bound, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0))[1]


def steps(n, end):
    def step(s):
        return jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1

    return lax.while_loop(lambda s: s[0] != end, step, (n, 0))[1]


def long_scan(x, w):
    return lax.fori_loop(0, 10**12, lambda _, h: jnp.tanh(h @ w), x)


def of_batch(numbers, end):
    return jax.vmap(steps, (0, None))(numbers, end)


@jax_cocktail.recursive
def fibonacci(self, n):
    return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))


NUMBERS = jnp.arange(1, 100)
ROWS, MATRIX = jnp.ones((16, 64)), jnp.eye(64) / 3
CASES = {  # function, arguments of a call that does not end, and of one that does
    "while": (halvings, (1.0, 2.0), (1.0, 0.5)),
    "batch": (of_batch, (NUMBERS, -7), (NUMBERS, 1)),
    "scan": (long_scan, (ROWS, MATRIX), None),
    "recursion": (fibonacci, (45,), (12,)),
}


def stopped(function, *arguments, seconds=0.1):
    begin = time.perf_counter()
    with (
        jax_cocktail.options(max_seconds=seconds),
        pytest.raises(jax_cocktail.TimeLimitError, match=rf"stopped after {seconds:g} s ") as error,
    ):
        function(*arguments)
    assert seconds <= time.perf_counter() - begin < seconds + SLACK
    return str(error.value)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_limit_stops_a_call(name, units):
    function, endless, ending = CASES[name]
    jitted = jax_cocktail.jit(function, options={**NOW, "units": units})
    with jax_cocktail.options(max_seconds=0.01), pytest.raises(jax_cocktail.TimeLimitError):
        jitted(*endless)  # compiles
    text = stopped(jitted, *endless)
    if name == "recursion":  # nobody counts its steps
        assert "had run" not in text
    else:
        assert int(text.split("had run ")[1].split(" ")[0]) > 100
    assert "test_stop.py" in text or "in a loop of fibonacci" in text
    if ending is not None:
        np.testing.assert_array_equal(jitted(*ending), jax.jit(function)(*ending))
    stopped(jitted, *endless)  # again


def test_a_limit_compiles_nothing():
    jitted = jax_cocktail.jit(halvings, options=NOW)
    jitted(1.0, 0.5)
    before = jitted._cache_size()
    for seconds in (1.0, 2, math.inf):
        with jax_cocktail.options(max_seconds=seconds):
            assert jitted(1.0, 0.5) == 0
    assert jitted._cache_size() == before
    assert len(jitted._scoped) == 0
    tokens = {config.Options(max_seconds=seconds).token for seconds in (1.0, 2.0, math.inf)}
    assert len(tokens) == 1


def test_the_innermost_limit_counts():
    jitted = jax_cocktail.jit(halvings, options={**NOW, "max_seconds": 0.1})
    free = jax_cocktail.jit(halvings, options=NOW)
    with jax_cocktail.options(max_seconds=50):
        stopped(free, 1.0, 2.0)
        with pytest.raises(TimeoutError, match=r"after 0.1 s"):
            jitted(1.0, 2.0)
        with jax_cocktail.options(force="cocktail"), pytest.raises(TimeoutError, match=r"after 0.1 s"):
            jitted(1.0, 2.0)
    assert jitted(1.0, 0.5) == free(1.0, 0.5) == 0


def test_a_call_that_ends_in_time_is_not_stopped():
    jitted = jax_cocktail.jit(of_batch, options=NOW)
    expected = jitted(NUMBERS, 1)
    with jax_cocktail.options(max_seconds=20):
        for _ in range(50):
            np.testing.assert_array_equal(jitted(NUMBERS, 1), expected)
    with jax_cocktail.options(max_seconds=0.1):
        time.sleep(0.15)  # the limit is that of each call
        np.testing.assert_array_equal(jitted(NUMBERS, 1), expected)


def heavy(x, bound):
    """XLA runs it in a thread of its own."""
    return halvings(jnp.sum(jnp.sin(x @ x)) * 0 + 1.0, bound)


def test_a_call_that_xla_runs_in_its_own_thread_is_stopped():
    jitted = jax_cocktail.jit(heavy, options=NOW)
    x = jnp.ones((256, 256))
    assert jitted(x, 0.5) == 0
    stopped(jitted, x, 2.0)
    assert jitted(x, 0.5) == 0


def test_a_stopped_call_takes_what_is_donated():
    def decay(x, bound):
        return lax.while_loop(lambda y: y[0] < bound, lambda y: y * 0.5, x)

    jitted = jax_cocktail.jit(decay, options=NOW, donate_argnums=0)
    jitted(jnp.ones(1000), 0.5)
    given = jnp.ones(1000)
    stopped(jitted, given, 2.0)
    assert given.is_deleted()
    np.testing.assert_array_equal(jitted(jnp.ones(1000), 0.5), np.ones(1000))


@pytest.mark.parametrize("units", [1, 2])
def test_short_trips_run_without_a_look_in_between(units, tmp_path):
    def decay(x, count):
        return lax.fori_loop(0, count, lambda _, y: y * 0.5 + 1.0, x)

    jitted = jax_cocktail.jit(decay, options={**NOW, "units": units, "dump_to": str(tmp_path)})
    numbers = jnp.arange(8.0)
    for count in (0, 1, 511, 512, 513, 1023, 1024, 1025, 5000):
        np.testing.assert_array_equal(jitted(numbers, count), jax.jit(decay)(numbers, count))
    (source,) = tmp_path.rglob("program.cc")
    # Else the compiler stores and loads what the loop carries in every trip.
    assert "for (i64 end = trip0 + 512; trip0 < end; ++trip0)" in source.read_text()


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("batch", [False, True])
def test_a_recursion_looks_at_the_alarm_where_it_tests_its_stack(units, batch, tmp_path):
    options = {**NOW, "units": units, "dump_to": str(tmp_path)}
    if batch:
        jax_cocktail.jit(jax.vmap(fibonacci), options=options)(jnp.arange(8))
    else:
        jax_cocktail.jit(fibonacci, options=options)(12)
    (source,) = tmp_path.rglob("program.cc")
    # A counter takes a tenth of the time of such steps, even one that is only counted down.
    step = r"while \(!ck_may_end\(alarm, v\d+\)\) {\n(.*?)\n *if \(ck_stops"
    (step,) = re.findall(step, source.read_text(), re.DOTALL)
    assert "trip" not in step


@jax_cocktail.recursive(out_like=lambda n, x: x)
def costly(self, n, x):
    def inner():
        y = lax.fori_loop(0, 10_000, lambda _, y: jnp.cos(y + x), x)
        return self(n - 1, y) + self(n - 2, y)

    return lax.cond(n < 2, lambda: x, inner)


@jax_cocktail.recursive(out_like=jnp.ones(64))
def products(self, n, x):
    return lax.cond(n < 2, lambda: x[0], lambda: self(n - 1, jnp.tanh(x @ x)) + self(n - 2, x))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("function, x", [(costly, 1.0), (products, jnp.ones((64, 64)))])
def test_a_recursion_of_costly_steps_is_stopped(function, x, batch):
    if batch:
        jitted = jax_cocktail.jit(jax.vmap(function, (0, None)), options=NOW)
        endless = jnp.arange(60, 64), x
    else:
        jitted, endless = jax_cocktail.jit(function, options=NOW), (60, x)
    with jax_cocktail.options(max_seconds=0.01), pytest.raises(jax_cocktail.TimeLimitError):
        jitted(*endless)  # compiles
    stopped(jitted, *endless)


def test_threads_have_limits_of_their_own():
    jitted = jax_cocktail.jit(halvings, options=NOW)
    jitted(1.0, 0.5)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stopped, jitted, 1.0, 2.0, seconds=0.1)
        second = pool.submit(stopped, jitted, 1.0, 2.0, seconds=0.4)
        assert "0.1 s" in first.result()
        assert "0.4 s" in second.result()


def test_the_longest_limit_counts_where_xla_runs_the_calls():
    jitted = jax_cocktail.jit(heavy, options=NOW)
    x = jnp.ones((256, 256))
    assert jitted(x, 0.5) == 0
    with ThreadPoolExecutor(1) as pool:
        shorter = jax_cocktail.options(max_seconds=0.05)
        with jax_cocktail.options(max_seconds=0.3):
            pool.submit(shorter.__enter__).result()
            stopped(jitted, x, 2.0, seconds=0.3)
            pool.submit(shorter.__exit__, None, None, None).result()
            stopped(jitted, x, 2.0, seconds=0.3)


def test_a_limit_is_not_one_of_measurements():
    def slow(x, count):
        return lax.fori_loop(0, count, lambda _, h: jnp.cos(h + x[0, 0]), jnp.sum(jnp.sin(x @ x)))

    jitted = jax_cocktail.jit(slow, options={"compile": "now"})
    x = jnp.ones((256, 256))
    with warnings.catch_warnings(), jax_cocktail.options(max_seconds=0.002), suppress(TimeoutError):
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)  # it would say that stock XLA runs it
        jitted(x, 1_000_000)
    np.testing.assert_allclose(jitted(x, 1000), jax.jit(slow)(x, 1000), rtol=1e-4)


def test_a_limit_may_be_any_positive_number():
    jitted = jax_cocktail.jit(halvings, options=NOW)
    for value in (1, np.int64(1), np.float32(1), np.float64(1), 1e-300, 1e300, 10**400, math.inf):
        with jax_cocktail.options(max_seconds=value):
            assert jitted(1.0, 0.5) == 0
        assert config.SCOPES.limit is None


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "2", None, True])
def test_other_limits_are_refused(value):
    with pytest.raises(ValueError, match=r"option 'max_seconds' must be a number > 0, not"):
        jax_cocktail.jit(halvings, options={"max_seconds": value})
    with pytest.raises(ValueError, match="max_seconds"), jax_cocktail.options(max_seconds=value):
        pass


@pytest.mark.parametrize("text", ["0", "soon", "nan", "-2"])
def test_other_limits_in_the_environment_are_refused(text, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_MAX_SECONDS", text)
    with pytest.raises(ValueError, match="JAX_COCKTAIL_MAX_SECONDS must be a number > 0"):
        config.resolve({})


# ---- in a process of its own: Ctrl-C ---------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
import jax_cocktail
from tests.api.test_stop import CASES, NOW, halvings

def press(seconds=0.3):
    def kill():
        time.sleep(seconds)
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)
    pressed = []
    threading.Thread(target=kill, daemon=True).start()
    return pressed

spin = jax_cocktail.jit(halvings, options=NOW)
spin(1.0, 0.5)
"""


def said(script, **environment):
    return [ast.literal_eval(line) for line in python(SCRIPT + script, **environment).splitlines()]


def test_an_interrupt_stops_calls():
    found = said("""
for name, (function, endless, ending) in CASES.items():
    for units in 1, 2:
        jitted = jax_cocktail.jit(function, options={**NOW, "units": units})
        try:
            with jax_cocktail.options(max_seconds=0.01):
                jitted(*endless)
        except jax_cocktail.TimeLimitError:
            pass
        pressed = press()
        try:
            jitted(*endless)
        except KeyboardInterrupt as error:
            late, notes = time.perf_counter() - pressed[0], "".join(error.__notes__)
        right = ending is None or np.array_equal(jitted(*ending), jax.jit(function)(*ending))
        print((name, late, notes, bool(right)))
""")
    assert [name for name, *_ in found] == [name for name in CASES for _ in (1, 2)]
    for name, late, notes, right in found:
        assert right
        assert late < SLACK
        assert "stopped in " in notes
        assert "test_stop.py" in notes or "of fibonacci" in notes
        assert ("iterations" in notes) == (name != "recursion")


def test_a_handler_of_the_users_keeps_its_meaning():
    found = said("""
heard = []
default = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
press()
try:
    with jax_cocktail.options(max_seconds=1.0):
        spin(1.0, 2.0)
except jax_cocktail.TimeLimitError:  # it went on
    print(len(heard))
signal.signal(signal.SIGINT, default)  # as ipykernel does around a cell
pressed = press()
try:
    spin(1.0, 2.0)
except KeyboardInterrupt as error:
    print((time.perf_counter() - pressed[0], len(error.__notes__), len(heard)))
""")
    went_on, (late, notes, heard) = found
    assert went_on == notes == heard == 1
    assert late < SLACK


def test_an_interrupt_leaves_calls_of_other_threads_alone():
    found = said("""
def work():
    try:
        with jax_cocktail.options(max_seconds=1.5):
            spin(1.0, 2.0)
    except jax_cocktail.TimeLimitError as error:
        print(str(error).count("stopped after 1.5 s"))
thread = threading.Thread(target=work)
thread.start()
pressed = press()
try:
    time.sleep(10)
except KeyboardInterrupt as error:
    print(hasattr(error, "__notes__"))
thread.join()
""")
    assert found == [False, 1]


def test_an_interrupt_stops_no_measurement():
    found = said("""
from jax_cocktail.lowering.run import stopwatch
def slow(x, count):  # XLA runs it in a thread of its own
    return jax.lax.fori_loop(0, count, lambda _, h: jnp.cos(h), jnp.sum(jnp.sin(x @ x)))
jitted, x = jax_cocktail.jit(slow, options=NOW), jnp.ones((256, 256))
jax.block_until_ready(jitted(x, 1_000_000))
def time_it():
    try:
        print((stopwatch.race([lambda: jitted(x, 1_000_000)]).seconds[0] > 0, ""))
    except BaseException as error:
        print((False, repr(error)))
thread = threading.Thread(target=time_it)
thread.start()
heard = 0
for _ in range(4):
    try:
        thread.join(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        heard += 1
thread.join()
print(heard)
""")
    assert sorted(found, key=str) == [(True, ""), 4]


def test_a_forked_child_stops_too():
    found = said("""
if (child := os.fork()) == 0:
    try:
        with jax_cocktail.options(max_seconds=0.1):
            time.sleep(0.2)
            print(int(jax.device_get(spin(1.0, 0.5))), flush=True)
            spin(1.0, 2.0)
    except jax_cocktail.TimeLimitError as error:
        print(str(error).count("after 0.1 s"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert found == [0, 1]


def test_the_environment_sets_a_limit():
    found = said(
        """
begin = time.perf_counter()
try:
    spin(1.0, 2.0)
except jax_cocktail.TimeLimitError as error:
    print((time.perf_counter() - begin, "after 0.2 s" in str(error)))
""",
        JAX_COCKTAIL_MAX_SECONDS="0.2",
    )
    ((late, told),) = found
    assert told
    assert late < 0.2 + SLACK
