"""The report: what was captured, what was not and why, in the user's own lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.scipy.special import zeta

import jax_cocktail
from jax_cocktail.cost.hlo import Module
from jax_cocktail.memory import MEMORY
from jax_cocktail.report import Captured, Edge, Left, Memory, Report, Stock, Trial

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

FORCED = {"force": "cocktail"}


@pytest.fixture(autouse=True)
def fresh():
    """Every warning is told again."""
    MEMORY.warned.clear()


def mixed(x):
    y = lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a * 2), x)
    return lax.while_loop(lambda c: c.sum() < 1, lambda c: zeta(c + 2, 2.0), jnp.outer(y, y))


def line_of(function, text):
    import inspect

    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_captured_and_left():
    with pytest.warns(jax_cocktail.CocktailWarning, match="'zeta'"):
        report = jax_cocktail.explain(jax_cocktail.jit(mixed, options=FORCED))(jnp.ones(3))
    assert report.function == "mixed"
    assert report.choice == "cocktail"
    (region,) = report.captured
    assert f"test_explain.py:{line_of(mixed, 'fori_loop')} (mixed)" in region.control_flow[0]
    assert dict(region.operators)["tanh"] == 1
    assert len(region.fingerprint) == 64
    assert region.path.endswith("program.so")
    (left,) = report.left
    assert left.what == "while"
    assert "'zeta'" in left.reason
    assert f"test_explain.py:{line_of(mixed, 'while_loop')}" in left.where
    text = str(report)
    for part in (
        "mixed: runs on jax_cocktail",
        "custom call 0",
        "left to stock XLA: while",
        "because",
        "scope",
    ):
        assert part in text


def test_nothing_to_compile():
    report = jax_cocktail.explain(lambda x: x + 1)(1.0)
    assert (report.captured, report.left, report.choice) == ((), (), "stock")
    assert "no loop or branch" in str(report)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax_cocktail.jit])
def test_of_any_function(wrap):
    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: a + 1, x)

    assert len(jax_cocktail.explain(wrap(function))(jnp.ones(2)).captured) == 1


def test_twice_gives_the_same_answer():
    function = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda i, a: a + 1, x))
    first, second = (jax_cocktail.explain(function)(jnp.ones(2)) for _ in range(2))
    assert first.captured[0].fingerprint == second.captured[0].fingerprint
    assert second.captured[0].cached


def test_runs_nothing_and_takes_shapes():
    seen = []

    def function(x):
        seen.append(x)
        return lax.fori_loop(0, 3, lambda i, a: jnp.sort(a) + 1, x)

    report = jax_cocktail.explain(function)(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert report.captured
    assert len(seen) == 1


def test_forced_stock_still_tells_what_could_be():
    function = jax_cocktail.jit(
        lambda x: lax.fori_loop(0, 3, lambda i, a: a + 1, x), options={"force": "stock"}
    )
    report = jax_cocktail.explain(function)(jnp.ones(2))
    assert report.choice == "stock"
    assert report.captured
    assert '"stock"' in report.why


def test_effects_have_a_reason():
    def function(x):
        def body(i, a):
            io_callback(print, None, a)
            return a + 1

        return lax.fori_loop(0, 3, body, x)

    with pytest.warns(jax_cocktail.CocktailWarning, match="side effects"):
        report = jax_cocktail.explain(function)(1.0)
    (left,) = report.left
    assert "side effects" in left.reason
    assert "no loop or branch" not in str(report)
    for found, text in ((left.where, "fori_loop"), (left.culprit, "io_callback(print")):
        assert f"test_explain.py:{line_of(function, text)}" in found and found in str(report)


def test_expensive_work_beside_a_loop_is_not_taken():
    def function(x, w):
        return lax.fori_loop(0, 3, lambda i, a: a + 1, jnp.sin(x @ w)) @ w

    report = jax_cocktail.explain(function)(jnp.ones((128, 128)), jnp.ones((128, 128)))
    assert dict(report.beside) == {"dot_general": 2}
    assert "sin" in dict(report.captured[0].operators)


def test_the_same_line_again_is_counted():
    region = Captured(("cond at a.py:1 (f)",) * 15 + ("scan",) * 2, (), "unit", 0, "f" * 64, "", 0.5, True)
    left = (Left("while", "a reason", "b.py:2 (g)"),) * 3 + (Left("while", "another", "b.py:2 (g)"),)
    lines = [line.strip() for line in str(Report("f", (region,), left)).splitlines()]
    assert lines.count("cond x15 at a.py:1 (f)") == 1
    assert lines.count("scan x2") == 1
    assert lines.count("left to stock XLA: while x3 at b.py:2 (g)") == 1
    assert lines.count("left to stock XLA: while at b.py:2 (g)") == 1
    assert lines.count("because: a reason") == 1


def test_sizes_and_times_read_well():
    region = Captured(
        ("scan at a.py:1 (f)",), (("add", 2), ("scan", 1)), "unit", 3 << 20, "f" * 64, "", 0.5, True
    )
    report = Report("f", (region,), choice="stock", why="measured", stock_seconds=2e-6, cocktail_seconds=2.0)
    text = str(report)
    for part in (
        "2.0 us",
        "2.00 s",
        "3.0 MiB",
        "2 add, scan",
        "from the cache in 500 ms",
        "runs on stock XLA",
    ):
        assert part in text
    assert report.workspace_bytes == 3 << 20


def recurrence(xs, w):
    def step(h, x):
        h = jnp.tanh(x @ w + h)
        return h, h

    return lax.scan(step, jnp.zeros(w.shape[1]), xs)


def test_what_changed_the_program_and_how_far_it_grows():
    xs, w = jnp.ones((16, 64)), jnp.ones((64, 64))
    (region,) = jax_cocktail.explain(jax_cocktail.jit(recurrence, options=FORCED))(xs, w).captured
    assert {"distribute", "fuse"} <= set(region.fired)
    assert region.units >= 1
    (grown,) = (text for text in region.remarks if "the program grows around it" in text)
    assert f"test_explain.py:{line_of(recurrence, 'lax.scan')}" in grown


def test_one_unit_waits_for_nobody():
    xs, w = jnp.ones((16, 64)), jnp.ones((64, 64))
    alone = jax_cocktail.jit(recurrence, options={**FORCED, "units": 1})
    (region,) = jax_cocktail.explain(alone)(xs, w).captured
    assert (region.units, region.barriers) == (1, ())


def test_units_barriers_and_remarks_are_shown():
    region = Captured(
        ("scan at a.py:1 (f)",),
        (),
        "device (L2)",
        0,
        "f" * 64,
        "",
        0.5,
        True,
        units=2,
        barriers=((64, "a.py:1 (f)", 1),) * 3 + ((None, "b.py:2 (g)", 2),),
        fired=("hoist", "place"),
        remarks=("distribute not: a reason (a.py:1)",),
        memory=(Memory("workspace", 2048, 1024, 4 << 20), Memory("own", 64, 64, 128)),
    )
    lines = [line.strip() for line in str(Report("f", (region,))).splitlines()]
    for line in (
        "scope: device (L2); 2 units; workspace: 0 B",
        "memory: workspace 2.0 KiB (lower bound 1.0 KiB, without reuse 4.0 MiB);"
        " own 64 B (lower bound 64 B, without reuse 128 B)",
        "1 barrier per iteration of a loop of 64 trips x3 at a.py:1 (f)",
        "2 barriers per iteration of a while loop at b.py:2 (g)",
        "changed by the passes: hoist, place",
        "distribute not: a reason (a.py:1)",
    ):
        assert line in lines


def test_candidates_are_a_table():
    trials = (Trial("stock XLA", 4e-3), Trial("2 units", 1e-3, chosen=True), Trial("1 unit", 2e-3))
    lines = str(Report("f", choice="cocktail", trials=trials, others=0.02)).splitlines()[1:]
    assert [line.split() for line in lines] == [
        ["candidate", "us", "per", "call", "speedup"],
        ["2", "units", "1000.0", "4.00", "chosen"],
        ["1", "unit", "2000.0", "2.00"],
        ["stock", "XLA", "4000.0", "1.00"],
    ]
    assert "other processes held 30% of the cores" in str(Report("f", trials=trials, others=0.3))


def test_what_a_call_moves():
    """Each of the products reads the weights once: more than all other operands and results together."""

    def function(w, x):
        return lax.fori_loop(0, 40, lambda i, h: jnp.tanh(h @ w), x)

    options = FORCED | {"units": 2, "profile": "off"}
    report = jax_cocktail.explain(jax_cocktail.jit(function, options=options))(
        jnp.ones((512, 512)), jnp.ones(512)
    )
    (region,) = report.captured
    weights = 40 * 512 * 512 * 4
    assert weights < region.loaded_bytes < 1.1 * weights
    assert 40 * 512 * 4 <= region.stored_bytes < 0.05 * weights
    per_iteration = sum((trips or 0) * waits for trips, _, waits in region.barriers)
    assert region.waits >= per_iteration > 0
    line = f"a call: 1 kernel, {region.waits:.0f} barriers; loads {region.loaded_bytes / 2**20:.1f} MiB"
    assert line in str(report) and "no barrier" not in str(report)


def normalised(x):
    centred = x - x.sum(1, keepdims=True) / x.shape[1]
    squares = centred * centred
    return centred / squares.sum(1, keepdims=True)


def test_edges_are_told_by_the_users_lines():
    """The squares exist only in registers: one store and one load of 64 * 32 floats fewer."""
    options = FORCED | {"scope": "memory_bound", "units": 1}
    (region,) = jax_cocktail.explain(jax_cocktail.jit(normalised, options=options))(
        jnp.ones((64, 32))
    ).captured
    (squares,) = (edge for edge in region.edges if edge.read.startswith("reduce_sum") and "mul" in edge.made)
    assert f"mul at {__file__}:{line_of(normalised, 'squares = ')} (normalised)" == squares.made
    assert f"test_explain.py:{line_of(normalised, 'squares.sum')}" in squares.read
    assert (squares.scheme, squares.bytes, squares.saved_bytes) == ("local", 64 * 32 * 4, 2 * 64 * 32 * 4)
    assert {edge.scheme for edge in region.edges} == {"local", "regional"} and region.waits == 0
    assert region.stock is None


def test_a_value_that_units_exchange_is_a_global_edge():
    def function(w, x):
        return lax.fori_loop(0, 40, lambda i, h: jnp.tanh(h @ w), x)

    arguments = jnp.ones((512, 512)), jnp.ones(512)
    for units in (1, 2):
        jitted = jax_cocktail.jit(function, options=FORCED | {"units": units, "profile": "off"})
        (region,) = jax_cocktail.explain(jitted)(*arguments).captured
        crossing = [edge for edge in region.edges if edge.scheme == "global"]
        assert bool(crossing) == bool(region.waits) == (units == 2)
    (edge,) = crossing
    assert edge.made.startswith("tanh") and edge.read.startswith("dot")
    assert (edge.bytes, edge.saved_bytes) == (40 * 512 * 4, 0)


def test_stock_is_counted_on_request():
    """The region is the whole function: its counts are those of what stock XLA makes of the function."""

    def function(x):
        return lax.fori_loop(0, 7, lambda i, h: jnp.sin(h @ h + i), x)  # no version makes one kernel of it

    x = jnp.ones((64, 64))
    expected = Module(jax.jit(function).lower(x).compile().as_text()).cost
    assert expected.kernels >= 7 and expected.bytes >= 7 * 2 * x.nbytes
    report = jax_cocktail.explain(jax_cocktail.jit(function, options=FORCED), stock=True)(x)
    (region,) = report.captured
    assert region.stock == Stock(expected.kernels, expected.bytes)
    assert f"under stock XLA: {expected.kernels:.0f} kernels; loads and stores" in str(report)


def test_stock_takes_the_constants_of_a_region():
    """Large constants are operands of our call, and keys have a type of their own."""
    table = jnp.arange(4096.0)

    def function(x, key):
        return lax.fori_loop(0, 3, lambda i, h: h * table + jax.random.uniform(key, h.shape), x)

    jitted = jax_cocktail.jit(function, options=FORCED)
    (region,) = jax_cocktail.explain(jitted, stock=True)(jnp.ones(4096), jax.random.key(0)).captured
    assert region.stock is not None and region.stock.kernels > 0 and region.stock.bytes > 3 * table.nbytes


def test_only_the_largest_edges_are_printed():
    edges = tuple(Edge(f"exp at a.py:{n} (f)", "add", "local", "a reason", 1024, 2048) for n in range(1, 9))
    far = Edge("max", "sub at b.py:2 (g)", "global", "another", 4096, 0, times=2)
    region = Captured((), (), "unit", 0, "f" * 64, "", 0.5, True, edges=(*edges, far))
    lines = [line.strip() for line in str(Report("f", (region,))).splitlines()]
    assert "edges: 8 local, 2 global; they save 16.0 KiB" in lines
    assert "exp at a.py:3 (f) -> add" in lines and "exp at a.py:4 (f) -> add" not in lines
    assert "local, saves 2.0 KiB: a reason" in lines
    assert lines[lines.index("max -> sub at b.py:2 (g) x2") + 1] == "global, 4.0 KiB: another"
    assert "5 more edges: 10.0 KiB" in lines


def test_a_small_loop_of_stock_xla_is_one_kernel():
    """On a CPU, XLA compiles loops of small operators to one function, none with a product of matrices."""
    x = jnp.ones((8, 8))

    def kernels(body):
        function = jax_cocktail.jit(lambda x: lax.fori_loop(0, 50, lambda _, y: body(y), x), options=FORCED)
        return jax_cocktail.explain(function, stock=True)(x).captured[0].stock.kernels

    assert kernels(jnp.sin) < 5 and kernels(lambda y: jnp.sin(y @ y)) > 50
