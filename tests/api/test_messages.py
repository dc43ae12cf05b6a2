"""Prints and debug callbacks inside compiled loops: they are made after the call, as stock XLA makes them."""

from __future__ import annotations

import functools
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.primitives import messages
from tests.cpu.emulated import Emulation
from tests.process import python

TARGET = "@jax_cocktail_cpu"
FORCED = {"force": "cocktail", "strict": True}
seen: list[tuple[object, ...]] = []


def note(*values, **named):
    every = (*values, *(named[name] for name in sorted(named)))
    seen.append(tuple((str(np.asarray(v).dtype), str(np.asarray(v).tolist())) for v in every))


def printed(capfd, function, *arguments):
    """The results, the lines printed, and what the callbacks got."""
    seen.clear()
    results = jax.block_until_ready(function(*arguments))
    jax.effects_barrier()
    return results, capfd.readouterr().out.splitlines(), list(seen)


def compare(capfd, program, *arguments, options=FORCED, in_order=True):
    """Our program and stock XLA print the same lines, and return the same. Our lines and what was heard."""
    ours = jax_cocktail.jit(program, options=options)
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        mine, lines, heard = printed(capfd, ours, *arguments)
    stock, expected, known = printed(capfd, jax.jit(program), *arguments)
    order = list if in_order else sorted
    assert order(lines) == order(expected) and order(heard) == order(known)
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(stock), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    text = ours.lower(*arguments).as_text()
    assert TARGET in text
    return lines or heard


def scan(xs):
    def step(a, x):
        jax.debug.print("a={} x={x:.3f}", a, x=x)
        return a + x, a * 2

    return lax.scan(step, 0.0, xs)


def rarely(n, x):
    def body(state):
        i, a = state
        lax.cond(i % 3 == 0, lambda: jax.debug.print("{} {}", i, a), lambda: None)
        return i + 1, a * 1.5

    return lax.while_loop(lambda state: state[0] < n, body, (0, x))


def nested(n):
    def outer(i, a):
        jax.debug.print("outer {}", i)

        def inner(j, b):
            jax.debug.print("inner {} {}", i, j)
            return b + 1

        a = lax.fori_loop(0, i, inner, a)
        jax.debug.print("after {a}", a=a)
        return a

    return lax.fori_loop(0, n, outer, 0)


def condition(n):
    def test(i):
        jax.debug.print("test {}", i)
        return i < n

    def body(i):
        jax.debug.print("body {}", i)
        return i + 1

    return lax.while_loop(test, body, 0), lax.while_loop(test, lambda i: i + 2, 1)


def branches(which, x):
    def side(number, x):
        jax.debug.print("side {} of {}", number, x)
        return x + number

    return lax.switch(which, [functools.partial(side, n) for n in range(3)], x)


def formats(x):
    def body(i, a):
        with np.printoptions(precision=2):
            jax.debug.print("{a} and {}", i, a=a)
        jax.debug.print("nothing")
        jax.debug.print("{0:>8.2f} {1!r} {2}", a[0], "static", {"key": a[1]})
        return a / 4

    return lax.fori_loop(0, 3, body, x)


def both_sides_of_a_mask(x):
    """Under `vmap` both sides of a branch run, and each batch element prints."""

    def one(x):
        def body(i, a):
            return lax.cond(a > 2, lambda a: (jax.debug.print("large {}", a), a)[1], lambda a: a + 1, a)

        return lax.fori_loop(0, 3, body, x)

    return jax.vmap(one)(x)


def batched_while(x):
    def body(a):
        jax.debug.print("{}", a)
        return a * 2

    return jax.vmap(lambda a: lax.while_loop(lambda a: a < 9, body, a))(x)


def derivative(x):
    def f(x):
        def step(a, _):
            jax.debug.print("forward {}", a)
            return jnp.sin(a) * x, None

        return lax.scan(jax.checkpoint(step), x, None, length=3)[0]

    return jax.grad(f)(x)


CASES = {
    "scan": (scan, np.arange(4.0, dtype=np.float32)),
    "scan of nothing": (scan, np.zeros(0, np.float32)),
    "rarely": (rarely, 8, np.ones(3, np.float32)),
    "never": (rarely, 0, np.ones(3, np.float32)),
    "nested": (nested, 4),
    "condition": (condition, 3),
    "branches": (branches, 1, 5),
    "formats": (formats, np.arange(1.0, 4.0, dtype=np.float32)),
    "vmap of a branch": (both_sides_of_a_mask, np.arange(4.0, dtype=np.float32)),
    "vmap of a while": (batched_while, np.arange(1.0, 4.0, dtype=np.float32)),
    "derivative": (derivative, np.float32(0.5)),
    "complex": (lambda x: scan(jnp.abs(lax.fori_loop(0, 2, lambda i, z: z * 1j, x + 0j))), np.ones(3)),
}


# Stock XLA may exchange the prints of several places in one iteration. Ours are in the order of the program.
ONE_PLACE = frozenset(("scan", "rarely", "branches", "complex"))


@pytest.mark.parametrize("name", CASES)
def test_lines_are_those_of_stock_xla(name, capfd):
    program, *arguments = CASES[name]
    lines = compare(capfd, program, *arguments, in_order=name in ONE_PLACE)
    assert bool(lines) == (name not in ("scan of nothing", "never"))
    if name in ("nested", "condition", "formats"):
        with jax.disable_jit():
            assert lines == printed(capfd, program, *arguments)[1]


DTYPES = (
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    + ("float16", "bfloat16", "float32", "float64")
)  # fmt: skip


def test_operands_of_all_types(capfd):
    numbers = [-3, 100, 0.1, -0.0, 7e4, 2**63 - 1, 1e-310, np.nan, np.inf]

    def program(tables):
        def step(i, rows):
            for table, row in zip(tables, rows, strict=True):
                jax.debug.callback(note, i, row[0], row=row, table=table[:, :0])
            return i + 1, None

        return lax.scan(step, 0, tables)[0]

    with np.errstate(all="ignore"):
        doubles = np.asarray(numbers, np.float64).reshape(3, 3)
        tables = tuple(doubles.astype(np.dtype(dtype)) for dtype in DTYPES)
    jax.config.update("jax_enable_x64", True)  # for the thread that calls back, too
    try:
        heard = compare(capfd, program, tables, in_order=False)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert [call[1][0] for call in heard] == 3 * list(DTYPES)


def test_ordered_prints_keep_their_order(capfd):
    def program(x):
        def say(what, i, a):
            jax.debug.print("{} {}", what, i, ordered=True)
            return a * 2

        jax.debug.print("begin", ordered=True)
        y = lax.fori_loop(0, 2, functools.partial(say, "first"), x)
        jax.debug.print("between {}", y, ordered=True)
        z = lax.fori_loop(0, 2, functools.partial(say, "second"), x + 1)
        z = lax.fori_loop(0, x.astype(int), functools.partial(say, "third"), z)
        jax.debug.print("end", ordered=True)
        return y, z

    lines = compare(capfd, program, np.float32(2))
    assert [line.split()[0] for line in lines].index("third") == 6


@pytest.mark.parametrize("length, left", [(87, 0), (88, 1)])
def test_a_full_log_is_printed_by_stock_xla(length, left, capfd, monkeypatch):
    """One record has three words."""

    def program(n, x):
        def body(state):
            i, a = state
            jax.debug.print("{} {}", i, a)
            return i + 1, a + left

        return lax.while_loop(lambda state: state[0] < n, body, (0, x))

    monkeypatch.setattr(messages, "LOG_WORDS", 3 * 87)
    ours, arguments = jax_cocktail.jit(program, options=FORCED), (length, np.float32(1))
    (result, _), lines, _ = printed(capfd, ours, *arguments)
    assert result == length and lines == printed(capfd, jax.jit(program), *arguments)[1]
    (region,) = jax_cocktail.explain(ours)(*arguments).captured
    assert region.exited == (left, 1) and len(lines) == length


def recurrent(x, w):
    """The state is computed by all units, and printed from memory that they share."""

    def step(h, row):
        h = jnp.tanh(h @ w + row)
        jax.debug.callback(note, jnp.sum(h > 0), (h > 0)[:, :3])
        return h, None

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)[0] > 0


def operands_of_recurrent(width):
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 16, width)).astype(np.float32)
    return x, (random.standard_normal((width, width)) / width**0.5).astype(np.float32)


def test_several_units(capfd):
    options = FORCED | {"units": 2}
    arguments = operands_of_recurrent(256)
    assert len(compare(capfd, recurrent, *arguments, options=options)) == 4
    ours = jax_cocktail.jit(recurrent, options=options)
    assert jax_cocktail.explain(ours)(*arguments).captured[0].units == 2


def test_an_emulated_gpu(capfd, monkeypatch):
    arguments = operands_of_recurrent(32)
    _, _, expected = printed(capfd, jax.jit(recurrent), *arguments)
    emulation = Emulation(launches=[]).install(monkeypatch)
    _, _, heard = printed(capfd, jax_cocktail.jit(recurrent, options=FORCED), *arguments)
    assert heard == expected and len(emulation.launches) == 1


PROCESS = """
import jax, jax_cocktail
from jax import lax

@jax_cocktail.jit
def program(n):
    return lax.fori_loop(0, n, lambda i, a: (jax.debug.print("{} {}", i, a), a * 3 + 1)[1], 2)

with jax_cocktail.options(force="cocktail", plans="cached"):
    program(3)
    jax.effects_barrier()
    print(jax_cocktail.cache_info().compiled)
"""


def test_a_later_process_compiles_nothing(capfd):
    """Another process has other callbacks, and the same programs."""
    exec(PROCESS, {})
    lines = ["0 2", "1 7", "2 22"]
    assert capfd.readouterr().out.splitlines()[:-1] == lines
    assert python(PROCESS).splitlines() == [*lines, "0"]


def test_what_never_fits_stays_with_stock_xla(monkeypatch, capfd):
    monkeypatch.setattr(messages, "LOG_WORDS", 8)
    ours = jax_cocktail.jit(scan, options={"force": "cocktail"})
    with pytest.warns(jax_cocktail.CocktailWarning, match="fill more than"):
        _, lines, _ = printed(capfd, ours, jnp.arange(3.0))
    assert lines == printed(capfd, jax.jit(scan), jnp.arange(3.0))[1]

    def large(x):  # a side that is rarely taken, with an operand that does not fit
        def body(i, a):
            return lax.cond(a[0] > 2, lambda a: (jax.debug.print("{}", a), a + 1)[1], lambda a: a + 1, a)

        return lax.fori_loop(0, 4, body, x)

    for start in (0.0, -9.0):
        compare(capfd, large, np.full(8, start, np.float32))


def test_beside_a_side_exit(capfd):
    """All messages are made once, whether the program leaves or not."""

    def program(x, limit):
        def body(i, a):
            jax.debug.print("{} {}", i, a)
            return lax.cond(a > limit, lambda a: jnp.fft.fft(jnp.stack([a, a])).real[0], lambda a: a + 1, a)

        return lax.fori_loop(0, 4, body, x)

    for limit in (100.0, 2.5):
        assert len(compare(capfd, program, np.float32(1), np.float32(limit))) == 4


def test_an_error_of_a_callback_is_the_callers():
    def fail(i):
        seen.append((int(i),))
        if i == 2:
            raise ValueError("enough")

    def program(n):
        return lax.fori_loop(0, n, lambda i, a: (jax.debug.callback(fail, i), a + 1)[1], 0)

    for function in (jax.jit(program), jax_cocktail.jit(program, options=FORCED)):
        seen.clear()
        with pytest.raises(jax.errors.JaxRuntimeError, match="enough"):
            jax.block_until_ready(function(5))
            jax.effects_barrier()
        assert seen == [(0,), (1,), (2,)]


@pytest.mark.all_candidates  # a checked plan is compared with all of them
@pytest.mark.parametrize("options", [{"errors": "sync"}, {"units": 2}, {"plans": "checked"}])
def test_with_other_options(options, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    compare(capfd, scan, np.arange(4.0, dtype=np.float32), options=FORCED | options)


def test_decided_without_a_measurement(capfd):
    """No run of a measurement prints, and later calls print again. Another function with the same program has
    its own messages."""

    def made(text):
        def program(n, x):
            def body(state):
                i, a = state
                lax.cond(i % 512 == 511, lambda: jax.debug.print(text, i), lambda: None)
                return i + 1, jnp.where(a > 3, a - i, a + 0.5)

            return lax.while_loop(lambda state: state[0] < n, body, (0, x))[1]

        return program

    for text in ("one {}", "two {}"):
        ours = jax_cocktail.jit(made(text), options={"compile": "now"})
        expected = [text.format(n) for n in (511, 1023)]
        for _ in range(2):
            assert printed(capfd, ours, 1024, 1.0)[1] == expected
        report = jax_cocktail.explain(ours)(1024, 1.0)
        assert report.choice == "cocktail" and "side effects" in report.why
        assert TARGET in jax.jit(jax.vmap(ours, (None, 0))).lower(8, jnp.ones(2)).as_text()
    before = jax_cocktail.cache_info().compiled
    assert printed(capfd, jax_cocktail.jit(made("three {}")), 1024, 1.0)[1] == ["three 511", "three 1023"]
    assert jax_cocktail.wait() and jax_cocktail.cache_info().compiled == before


def test_changing_over_from_stock_xla(capfd):
    def program(x):
        return scan(x + 0.25)

    ours = jax_cocktail.jit(program, options=FORCED | {"compile": "background", "plans": "fresh"})
    expected = printed(capfd, jax.jit(program), jnp.arange(3.0))[1]
    before = jax_cocktail.cache_info().changed_over
    assert printed(capfd, ours, jnp.arange(3.0))[1] == expected
    assert jax_cocktail.wait(60) and capfd.readouterr().out == ""
    assert printed(capfd, ours, jnp.arange(3.0))[1] == expected
    assert jax_cocktail.cache_info().changed_over == before + 1


def test_explain():
    def program(x):
        def body(i, a):
            jax.debug.print("{}", i)
            jax.debug.callback(note, a)
            return a + 1

        return lax.fori_loop(0, 3, body, x)

    report = jax_cocktail.explain(jax_cocktail.jit(program, options=FORCED))(1.0)
    (region,) = report.captured
    assert [text.split(" at ")[0] for text in region.messages] == ["debug_print", "debug_callback"]
    assert all("test_messages.py:" in text for text in region.messages) and not region.exits
    assert "1 print and 1 debug callback are kept, and made after the call" in str(report)


def test_export_refuses_callbacks_as_stock_xla_does():
    for export, function in (
        (jax.export.export, jax.jit(scan)),
        (jax_cocktail.export, jax_cocktail.jit(scan, options=FORCED)),
    ):
        with pytest.raises(RuntimeError, match="host_callbacks"):
            export(function)(jnp.arange(3.0))


def test_a_trace_prints_once(capfd):
    found = jax_cocktail.trace(jax_cocktail.jit(scan, options=FORCED))(jnp.arange(3.0))
    jax.block_until_ready(found.results)
    jax.effects_barrier()
    assert len(capfd.readouterr().out.splitlines()) == 3 and len(found.regions) == 1


def test_devices_that_wait_for_each_other():
    """All threads of the CPU's pool may be in callbacks: none of them can copy a large operand."""
    program = """
        import faulthandler, jax, jax.numpy as jnp, jax_cocktail, numpy as np
        from jax import lax
        from jax.sharding import Mesh, PartitionSpec as S

        faulthandler.dump_traceback_later(120, exit=True)

        @jax_cocktail.jit(options={"force": "cocktail", "compile": "now"})
        def few(n):
            def step(i):
                jax.debug.print("at {}", i)
                return i + 1
            return lax.while_loop(lambda i: (i < n).all(), step, jnp.zeros_like(n))

        mesh = Mesh(np.array(jax.devices()), ("d",))
        summed = jax.shard_map(lambda n: lax.psum(few(n), "d"), mesh=mesh, in_specs=S("d"), out_specs=S())
        jax.jit(summed)(jnp.arange(1, len(jax.devices()) + 1)).block_until_ready()
        jax.effects_barrier()
    """
    count = max(os.cpu_count() or 2, 2)
    out = python(program, XLA_FLAGS=f"--xla_force_host_platform_device_count={count}")
    assert out.count("at ") == count * (count + 1) // 2
