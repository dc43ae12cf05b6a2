"""Loops of batch elements given nothing, NaN, too much or errors: they do as stock XLA does.

`on`: one unit of a CPU or two, where `recover` makes the loops, or an emulated GPU, where `threads` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import jax_cocktail
from jax_cocktail import compiler
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import BATCH, BatchTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.memory import MEMORY
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import by_threads, is_a, walk
from tests.cpu.emulated import Emulation
from tests.cpu.runner import EAGER

ROOT = Path(__file__).parents[2]
PLACES = {"cpu": 1, "cpus": 2, "gpu": 3}  # and units
MANY = 100_000  # elements


@pytest.fixture(params=PLACES)
def on(request, monkeypatch):
    return _on(request.param, monkeypatch)


@pytest.fixture
def gpu(monkeypatch):
    return _on("gpu", monkeypatch)


def _on(place, monkeypatch):
    emulation = None
    if place == "gpu":
        monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
        emulation = Emulation(launches=[]).install(monkeypatch)
    return Place(PLACES[place], emulation)


class Place:
    def __init__(self, units, emulation):
        self.options = {"force": "cocktail", "strict": True, "units": units}
        self.emulation = emulation

    def jit(self, function):
        return jax_cocktail.jit(function, options=self.options)

    def agrees(self, function, *arguments):
        """Ours is stock's, and ours has run. Returns the function that is jitted."""
        ours = self.jit(function)
        jax.tree.map(equal, ours(*arguments), jax.jit(function)(*arguments))
        self.has_run(ours, *arguments)
        return ours

    def has_run(self, ours, *arguments):
        if self.emulation is None:
            assert "@jax_cocktail_cpu" in ours.lower(*arguments).as_text()
        else:
            assert self.emulation.launches or not arguments[0].size  # XLA calls nothing for no result

    def loops_by_threads(self):
        emitted = self.emulation.launches[-1][0]
        return sum(map(by_threads, walk(emitted.program.entry)))


def equal(ours, stock):
    assert ours.dtype == stock.dtype and ours.shape == stock.shape
    if np.issubdtype(stock.dtype, np.inexact):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-5)
    else:
        np.testing.assert_array_equal(ours, stock)


def mapped(function):
    return lambda x: lax.map(function, x)


# -- how many elements ---------------------------------------------------------------------------------------
def collatz(n):
    def step(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return lax.while_loop(lambda state: state[0] > 1, step, (n, 0))[1]


def halved(x):
    return lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x * 0.5, x)


def bent(x):
    """A branch in a loop."""

    def body(_, y):
        return lax.cond(y > 1, lambda y: y * 0.5, lambda y: jnp.sin(jnp.exp(y)), y)

    return lax.fori_loop(0, 3, body, x)


@pytest.mark.parametrize("on", ["cpu", "gpu"], indirect=True)
@pytest.mark.parametrize("count", [0, 1])
def test_no_element_and_a_single_one(on, count):
    def function(n, x, rows):
        found = [jax.vmap(collatz)(n), jax.vmap(jax.vmap(collatz))(jnp.zeros((70, count), jnp.int32) + 7)]
        if on.emulation is not None:
            return [*found, lax.map(collatz, n)]
        return [*found, jax.vmap(halved)(rows), jax.vmap(halved)(rows[:, :0]), jax.vmap(bent)(x)]

    n = np.arange(7, 7 + count, dtype=np.int32)
    on.agrees(function, n, n * np.float32(0.3), np.ones((count, 70), np.float32))


def translated(function, *arguments):
    return translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "elements")


def planned(function, *arguments):
    """The program for an H200, as emitted."""
    program = translated(function, *arguments)
    return compiler.emit(program, machine_of(H200), candidate=Candidate(H200.units))


def bits(count):
    return jax.ShapeDtypeStruct((count,), np.int8)


def shifted(n):
    return lax.while_loop(lambda n: n > 1, lambda n: n // 2, n)


def test_more_elements_than_threads_count(gpu):
    """Below 2^31 the elements stay together; above, no program for a GPU can count them."""
    for count, fired in ((1 << 30, True), ((1 << 30) + 5, False)):
        emitted = planned(jax.vmap(shifted), bits(count))
        (told,) = [remark for remark in emitted.remarks if remark.transform == "batch elements"]
        assert told.fired == fired and (fired or "1073741829 are too many" in told.text)
        assert sum(map(by_threads, walk(emitted.program.entry))) == fired
    MEMORY.warned.clear()
    ours = jax_cocktail.jit(jax.vmap(shifted), options={"force": "cocktail"})
    with pytest.warns(jax_cocktail.CocktailWarning, match="an array of 2147483653 elements"):
        report = jax_cocktail.explain(ours)(bits((1 << 31) + 5))
    assert report.choice == "stock" and "counts them in 32 bits" in report.left[0].reason


def recovered(function, *arguments, limits):
    """The program before and after `recover`, and what it says."""
    told = []
    before = simplify(translated(function, *arguments))
    return before, recover(before, limits=limits, remark=told.append), told


def costly(n):
    def steps(n):
        for _ in range(64):
            n = n * n + n
        return n

    return lax.cond(n > 3, steps, lambda n: n, n)


def wrapped(program):
    """The counts in a program that do not fit in their type."""
    made = (s for s in walk(program.entry) if is_a(s, "constant") and s.outputs[0].type.dtype == "int32")
    return [n for s in made for n in np.frombuffer(s["data"], np.int32) if n < 0]


@pytest.mark.parametrize("function", [shifted, costly])
def test_more_elements_than_slots_count(function):
    """Slots and lists of elements count in 32 bits, so a larger batch stays as stock XLA has it."""
    limits = BatchTuning(branch_flops=8.0)
    before, after, (told,) = recovered(jax.vmap(function), bits(BATCH.most), limits=limits)
    assert after is not before and told.fired and not wrapped(after)
    eager = replace(limits, most=1 << 40)
    assert wrapped(recovered(jax.vmap(function), bits((1 << 31) + 5), limits=eager)[1])
    before, after, (*_, told) = recovered(jax.vmap(function), bits((1 << 31) + 5), limits=limits)
    assert simplify(after) == before and not told.fired
    assert "2147483653" in told.text and "too many" in told.text
    assert "i32 i0" not in compiler.emit(translated(jax.vmap(function), bits((1 << 31) + 5))).source


# -- how large an element is ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("on", "numbers", "told"),
    [
        ("cpu", 60, "40 batch elements of a vmapped while loop share 32 slots"),
        ("cpu", 70, "40 batch elements of a vmapped while loop run one by one"),
        ("gpu", 60, "each of 64 batch elements runs its own loop on a thread"),
        ("gpu", 5000, "no thread and no block runs the loop of one batch element: "),
    ],
    indirect=["on"],
)
def test_large_elements_take_the_next_level(on, numbers, told):
    count = 64 if on.emulation else 40
    x = np.random.default_rng(0).uniform(1, 9, (count, numbers)).astype(np.float32)
    ours = on.agrees(jax.vmap(halved), x)
    (region,) = jax_cocktail.explain(ours)(x).captured
    assert any(f"batch elements{how}: {told}" in remark for how in ("", " not") for remark in region.remarks)
    assert on.emulation is None or on.loops_by_threads() == told.endswith("on a thread")


# -- NaN -----------------------------------------------------------------------------------------------------
def until_nan(x):
    """Infinity minus infinity ends the loop."""

    def body(state):
        x, k = state
        return x * x - x * x * x * 1e30, k + 1

    return lax.while_loop(lambda state: state[0] > 2, body, (x, 0))


def while_not_above(x, number, trips):
    """A predicate that NaN keeps true, and NaN that elements make, or would make beyond their end. Two NaNs
    change places: their signs and other bits are kept."""
    first = lax.bitcast_convert_type(number, jnp.float32)

    def body(state):
        k, x, first, second, a, q = state
        left = trips - k - 1
        return k + 1, jnp.sqrt(x) * 3, second, first, a + jnp.log(left * 1.0) / left, q // left

    start = 0, x, first, -first, jnp.float32(1), 1000
    k, x, *pair, a, q = lax.while_loop(lambda s: ~(s[1] > 5) & (s[0] < trips), body, start)
    return k, x, lax.bitcast_convert_type(jnp.stack(pair), jnp.uint32), a, q


def of_a_row(x):
    def body(state):
        return state[0] * 1.5, state[1] + 1

    return lax.while_loop(lambda state: ~(jnp.max(state[0]) > 50) & (state[1] < 7), body, (x, 0))


@pytest.mark.parametrize("on", ["cpu", "gpu"], indirect=True)
def test_not_a_number(on):
    rng = np.random.default_rng(0)
    x = rng.uniform(-9, 9, 100).astype(np.float32)
    x[3::7], x[4::9], x[5::11], x[6] = np.nan, np.inf, -np.inf, -0.0
    numbers = 0x7FC00000 | rng.integers(0, 1 << 22, 100).astype(np.uint32)
    numbers[::3] |= 1 << 31
    rows = np.where(rng.uniform(size=(100, 5)) < 0.1, np.nan, rng.uniform(0, 9, (100, 5))).astype(np.float32)

    def function(x, numbers, trips, rows):
        return jax.vmap(until_nan)(x), jax.vmap(while_not_above)(x, numbers, trips), jax.vmap(of_a_row)(rows)

    on.agrees(function, x, numbers, np.arange(100, dtype=np.int32) % 7, rows)


# -- what an element cannot do -------------------------------------------------------------------------------
def too_large(x):
    """What a check does that raises an error."""

    def call(value):
        raise ValueError("too large")

    return jax.pure_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_batching.custom_vmap
def error_if(x, wrong):
    return lax.cond(wrong, too_large, lambda x: x, x)


@error_if.def_vmap
def _(size, in_batched, x, wrong):
    """As libraries do it: there is an error if there is one in any batch element."""
    return error_if(x, jnp.any(wrong)), True


def checked(x):
    return lax.while_loop(lambda x: x > 1, lambda x: error_if(x, x > 1000) * 0.5, x)


def functionally(x):
    def body(_, x):
        checkify.check(x < 1000, "too large: {x}", x=x)
        return x * 0.5

    return lax.fori_loop(0, 3, body, x)


def until_small(x):
    """JAX marks the checks of a condition, so that nothing removes them."""

    def step(x):
        checkify.check(x < 1000, "too large: {x}", x=x)
        return x * 0.5

    return lax.while_loop(lambda x: x > 1, step, x)


def one_wrong(count):
    x = np.random.default_rng(0).uniform(1, 50, count).astype(np.float32)
    return x, np.where(np.arange(count) == count // 3, np.float32(4096), x)


@pytest.mark.parametrize(
    ("on", "batched"), [("cpus", jax.vmap), ("cpus", mapped), ("gpu", mapped)], indirect=["on"]
)
def test_an_error_in_one_element(on, batched):
    right, wrong = one_wrong(70 if on.emulation else MANY)
    ours = on.agrees(batched(checked), right)
    for function in (ours, jax.jit(batched(checked))):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="too large"):
            jax.block_until_ready(function(wrong))
    jax.tree.map(equal, ours(right), jax.jit(batched(checked))(right))  # and the next call has none


@pytest.mark.one_jax  # older ones count traces in the errors
@pytest.mark.parametrize("each", [functionally, until_small])
@pytest.mark.parametrize("on", ["cpus", "gpu"], indirect=True)
def test_a_functional_check_in_one_element(on, each):
    function = jax.vmap(checkify.checkify(each))
    ours, stock = on.jit(function), jax.jit(function)
    for x in one_wrong(70 if on.emulation else MANY):
        (error, found), (expected, known) = ours(x), stock(x)
        jax.tree.map(equal, (error, found), (expected, known))
        raised, *_ = jax.tree.leaves(error)
        assert raised.dtype == bool and np.flatnonzero(raised).tolist() == np.flatnonzero(x > 1000).tolist()
    on.has_run(ours, x)


# -- prints --------------------------------------------------------------------------------------------------
def printing(n):
    def step(state):
        n, steps = state
        lax.cond(steps == 1, lambda: jax.debug.print("{} after one", n), lambda: None)
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return lax.while_loop(lambda state: (state[0] > 1) & (state[1] < 3), step, (n, 0))[1]


@pytest.mark.parametrize(
    ("on", "batched"), [("cpu", jax.vmap), ("gpu", mapped)], indirect=["on"]
)
def test_lines_are_those_of_stock_xla(on, batched, capfd):
    """Batch elements that print stay together: those that are done print as well, under stock XLA."""
    count = 20 if batched is jax.vmap else 70  # JAX makes a print for each element of a batch
    n, found = np.arange(1, 1 + count, dtype=np.int32), []
    ours = on.jit(batched(printing))
    for function in (ours, jax.jit(batched(printing))):
        capfd.readouterr()
        steps = np.asarray(function(n)).tolist()
        jax.effects_barrier()
        found.append((steps, Counter(capfd.readouterr().out.splitlines())))
    on.has_run(ours, n)
    assert found[0] == found[1] and found[0][1]


# -- what never ends -----------------------------------------------------------------------------------------
NEVER = """
    import signal, threading, time
    import jax, jax_cocktail, jax.numpy as jnp, numpy as np
    from jax import lax
    from jax_cocktail.device.tuning import BATCH
    from jax_cocktail.lowering.edge import adapter
    from jax_cocktail.primitives import translate
    from tests.cpu import runner

    def one(n):  # a negative number never ends
        step = lambda state: (jnp.where(state[0] > 0, state[0] - 1, state[0]), state[1] + 1)
        return lax.while_loop(lambda state: state[0] != 0, step, (n, 0))[1]

    def beside(work, *arguments):
        threading.Thread(target=work, args=arguments, daemon=True).start()

    stopped = threading.Event()

    def press():  # again: nobody hears it between the last line of Python and the begin of the program
        time.sleep(0.3)
        print("other threads run", flush=True)
        signal.raise_signal(signal.SIGINT)
        while not stopped.wait(3):
            signal.raise_signal(signal.SIGINT)

    numbers = np.arange(1, 1001, dtype=np.int32) % 50
    numbers[300] = -1

    # All but those in the slots have their results.
    jaxpr = jax.make_jaxpr(jax.vmap(one))(numbers)
    artifact = runner.compile_program(translate(adapter.program(jaxpr), "one"))
    results = []
    beside(runner.run_artifact, artifact, artifact.emitted.program, [numbers], results)
    end = time.monotonic() + 60
    while not results or np.sum(results[0] != numbers) > BATCH.slots and time.monotonic() < end:
        time.sleep(0.01)
    print(np.sum(results[0] != numbers) <= BATCH.slots, flush=True)

    # XLA has a thread for what it estimates at 1000 flops or more. Our program counts for nothing.
    ours = jax_cocktail.jit(jax.vmap(one), options={"force": "cocktail", "strict": True, "units": 1})
    large = jax.jit(lambda n: (ours(n), n * 3 + 1))
    assert (ours(abs(numbers)) == abs(numbers)).all() and (large(abs(numbers))[0] == abs(numbers)).all()
    beside(press)
    heard = False
    try:
        try:
            jax.block_until_ready(large(numbers))
        except jax.errors.JaxRuntimeError as error:  # XLA's, before Python's; an audit hook may swallow that
            stopped.set()
            heard = "stopped in the loop" in error.args[0]
            time.sleep(0.1)
    except KeyboardInterrupt:
        stopped.set()
        heard = True
    print("heard" if heard else "not heard", flush=True)

    # In the caller's thread Python hears nothing, as in small calls of stock XLA. The system's handler does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    beside(press)
    jax.block_until_ready(ours(numbers))
"""


@pytest.mark.one_jax
def test_one_element_that_never_ends():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(NEVER)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    run = "other threads run"
    assert done.stdout.splitlines() == ["True", run, "heard", run], done.stderr
    assert done.returncode == -signal.SIGINT
