"""Programs without control flow, with the option scope="memory_bound": values, choices and reports."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks.census import accuracy
from benchmarks.census.patterns import PATTERNS, in_loop
from jax_cocktail import cache
from jax_cocktail.device import tuning
from jax_cocktail.device.host import SERVER
from jax_cocktail.lowering.choice import decisions, request, survey
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.state import collecting
from jax_cocktail.memory import MEMORY
from tests.cpu.emulated import SPEC, WAVES, Emulation

SCOPE = {"scope": "memory_bound"}
FORCED = {**SCOPE, "force": "cocktail", "strict": True}
X = np.random.default_rng(3).standard_normal((64, 128), np.float32)


@pytest.fixture(autouse=True)
def fresh():
    MEMORY.warned.clear()


def captured(function, *operands, **options):
    return jax_cocktail.explain(jax_cocktail.jit(function, options={**FORCED, **options}))(*operands).captured


def agrees(function, operands, options=FORCED):
    """Ours is at most twice as far from float64 as stock XLA."""
    compare(jax_cocktail.jit(function, options=options), function, operands)


def compare(ours, function, operands):
    exact = accuracy.reference(function, operands)
    stock = accuracy.error(jax.jit(function)(*operands), exact)
    found = accuracy.error(ours(*operands), exact)
    assert not found.exceeds(stock), (found, stock)


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_agree_with_float64(name, units):
    pattern = PATTERNS[name]
    operands = pattern.operands(small=True)
    with collecting() as reports:
        agrees(pattern.function, operands, {**FORCED, "units": units})
    (report,) = reports
    assert report.captured
    assert all("memory-bound subgraph" in region.control_flow[0] for region in report.captured)


@pytest.mark.sampled(9)
@pytest.mark.one_jax
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_agree_in_loops(name):
    pattern = PATTERNS[name]
    agrees(in_loop(pattern.function, 2), pattern.operands(small=True))


@pytest.mark.sampled(12)
@pytest.mark.one_jax
@pytest.mark.parametrize("spec", [SPEC, *WAVES.values()], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("name", sorted(set(PATTERNS) - {"clip and adam"}))  # for lack of time
def test_patterns_agree_on_an_emulated_gpu(name, spec, monkeypatch):
    """Powers and exponentials are those of a GPU, so stock XLA on the host is no measure of the error."""
    pattern, operands = PATTERNS[name], PATTERNS[name].operands(small=True)
    exact = accuracy.reference(pattern.function, operands)
    emulation = Emulation(launches=[], seed=5, spec=spec).install(monkeypatch)
    ours = jax_cocktail.jit(pattern.function, options={**FORCED, "units": 3})(*operands)
    assert accuracy.error(ours, exact).largest < 1e-6 and len(emulation.launches) == 1


def rows(x, y, rng):
    """A random graph of light operators on two arrays of one shape."""
    values = [x, y]
    for _ in range(rng.randint(3, 12)):
        a, b = rng.choice(values), rng.choice(values)
        axis = rng.choice([0, 1])
        values.append(
            rng.choice(
                [
                    lambda a, b, axis: a + b,
                    lambda a, b, axis: a * jnp.tanh(b),
                    lambda a, b, axis: jnp.where(a > b, a, -b),
                    lambda a, b, axis: a - 0.5 * a.mean(axis, keepdims=True),
                    lambda a, b, axis: jnp.broadcast_to(a.max(axis, keepdims=True), a.shape) + b,
                    lambda a, b, axis: jax.nn.softmax(a, axis=axis),
                    lambda a, b, axis: a * jnp.sum(b * b, axis, keepdims=True) / 128,
                    lambda a, b, axis: a[::-1] + b,
                    lambda a, b, axis: jnp.concatenate([a[:3], b[3:]]),
                ]
            )(a, b, axis)
        )
    return values[-1], values[-2].sum(1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_agree(seed):
    agrees(lambda x, y: rows(x, y, random.Random(seed)), (X, X[::-1] * 0.5), {**FORCED, "units": 2})


def test_products_stay_with_stock_xla():
    w = np.random.default_rng(4).standard_normal((128, 128), np.float32)

    def network(x, w):
        return softmax(jax.nn.gelu(softmax(x) @ w) @ w.T)

    regions = captured(network, X, w)
    assert len(regions) == 2  # gelu is element-wise and has one result
    assert not any("dot_general" in dict(region.operators) for region in regions)
    assert not any("transpose" in dict(region.operators) for region in regions)
    agrees(network, (X, w))


@pytest.mark.parametrize("updates", [8, 2048])
def test_a_scatter_is_a_wall_if_it_has_many_updates(updates):
    table = np.random.default_rng(5).standard_normal((4096, 32), np.float32)

    def function(x, rows):
        y = softmax(x)
        return softmax(y.at[rows].add(y[:1]))

    regions = captured(function, table, np.arange(updates, dtype=np.int32))
    assert len(regions) == (1 if updates == 8 else 2)
    agrees(function, (table, np.arange(updates, dtype=np.int32)))


@pytest.mark.all_candidates
def test_control_flow_keeps_its_region():
    def function(x):
        y = lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c) @ jnp.ones((128, 128)) / 128, softmax(x))
        return y, softmax(x * 2)

    beside, loop = sorted(captured(function, X), key=lambda region: "scan" in dict(region.operators))
    (alone,) = captured(function, X, scope="control_flow")
    assert loop.fingerprint == alone.fingerprint and "dot_general" in dict(loop.operators)
    assert dict(beside.operators)["exp"] == 1
    agrees(function, (X,))


@pytest.mark.parametrize("wrap", [jax.jit, jax_cocktail.jit, jax.checkpoint, lambda f: jax.vmap(f)])
def test_calls_are_seen_through(wrap):
    regions = captured(lambda x: wrap(softmax)(x) * 2, X)
    assert len(regions) == (wrap is not jax.checkpoint)  # which XLA would not compute again


def test_derivatives_are_seen_through():
    operands = X, X[::-1] * 0.5
    agrees(lambda x, ct: jax.vjp(softmax, x)[1](ct), operands)

    def loss(x):
        return jnp.sum(softmax(x) ** 2)

    compare(jax.grad(jax_cocktail.jit(loss, options=FORCED)), jax.grad(loss), (X,))


DONATED = {
    "by position": ({"donate_argnums": 0}, lambda f, x, y: f(x, y)),
    "by position, passed by name": ({"donate_argnums": (0,)}, lambda f, x, y: f(y=y, x=x)),
    "by name": ({"donate_argnames": ["x"]}, lambda f, x, y: f(x, y=y)),
}


@pytest.mark.parametrize("how", DONATED)
def test_only_donated_operands_are_overwritten(how):
    jit_options, call = DONATED[how]

    def step(x, y):
        return x * 2 + jnp.tanh(y), (y * y).sum()

    ours = jax_cocktail.jit(step, options={**FORCED, "units": 2}, **jit_options)
    large = np.tile(X, (16, 8))  # worth two units
    x, y = jnp.asarray(large), jnp.asarray(large[::-1])
    text = call(ours.lower, x, y).compile().as_text()
    assert "input_output_alias" in text and " copy(" not in text
    wanted = step(x, y)
    found = call(ours, x, y)
    assert x.is_deleted() and not y.is_deleted()
    np.testing.assert_array_equal(y, large[::-1])
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_no_operand_is_copied():
    """XLA would copy one that our program overwrites."""
    text = jax_cocktail.jit(softmax, options=FORCED).lower(X).compile().as_text()
    assert " copy(" not in text and "jax_cocktail_cpu" in text


def test_nothing_is_taken_by_default():
    report = jax_cocktail.explain(jax_cocktail.jit(softmax, options={"force": "cocktail"}))(X)
    assert report.choice == "stock" and not report.captured and "no loop or branch" in report.why


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: jnp.tanh(x) * 2 + x, "one kernel"),
        (lambda x: x.sum(0), "fewer than two"),
        (lambda x: softmax(x[:2]), "bytes"),
    ],
)
def test_why_a_subgraph_is_declined(function, reason):
    report = jax_cocktail.explain(jax_cocktail.jit(function, options=FORCED))(X)
    (left,) = report.left
    assert report.choice == "stock" and reason in left.reason
    assert left.what.startswith("memory-bound subgraph (") and "test_memory_bound.py" in left.where


def forget():
    """Removes every decision."""
    MEMORY.decisions.clear()
    cache.clear_records(decisions.FOLDER)


@pytest.mark.parametrize("fast", [True, False])
def test_a_measurement_decides(fast, monkeypatch):
    def race(runs, *_):
        return stopwatch.Times((1.0, *[0.5 if fast else 1.5 for _ in runs[1:]]), 0.0)

    monkeypatch.setattr(stopwatch, "race", race)
    forget()
    ours = jax_cocktail.jit(softmax, options=SCOPE)
    report = jax_cocktail.explain(ours)(X)
    assert (report.choice == "cocktail") == fast and "measured now" in report.why and report.captured
    np.testing.assert_allclose(ours(X), softmax(X), rtol=1e-5)
    forget()


SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)
UNMEASURED = {
    "outer jit": lambda f: jax.jit(lambda x: f(x) + 1).lower(SHAPE).as_text(),
    "gradient": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())).lower(SHAPE).as_text(),
    "ahead of time": lambda f: f.lower(SHAPE).as_text(),
}


@pytest.mark.parametrize("way", UNMEASURED)
def test_without_a_measurement_stock_xla_runs(way, monkeypatch):
    """Unless the model is never wrong. By the figures of a table: its prices differ on other machines."""
    monkeypatch.setattr(request, "host_of", lambda *_: SERVER)
    forget()
    assert "jax_cocktail_cpu" not in UNMEASURED[way](jax_cocktail.jit(softmax, options=SCOPE))
    monkeypatch.setattr(survey, "MODEL", tuning.ModelTuning(stitched_gain=0.0))
    assert "jax_cocktail_cpu" in UNMEASURED[way](jax_cocktail.jit(lambda x: softmax(x), options=SCOPE))


def test_a_loop_is_taken_without_the_doubtful_region_beside_it():
    def function(x):
        y = lax.fori_loop(0, 300, lambda _, c: jnp.sort(c) + 1e-3, x[0, :8])
        return y, softmax(x)

    ours = jax_cocktail.jit(function, options={**SCOPE, "profile": "off"})
    report = jax_cocktail.explain(ours)(X)
    assert report.choice == "cocktail" and len(report.captured) == 1
    assert "scan" in report.captured[0].control_flow[0]
    (left,) = report.left
    assert "memory-bound" in left.what and "no control flow" in left.reason


def test_a_trusted_model_takes_regions(monkeypatch):
    forget()
    monkeypatch.setattr(survey, "MODEL", tuning.ModelTuning(stitched_gain=0.0))
    report = jax_cocktail.explain(jax_cocktail.jit(softmax, options={**SCOPE, "profile": "off"}))(X)
    assert report.choice == "cocktail" and "not measured" in report.why


def test_decisions_differ_by_scope():
    closed = jax.make_jaxpr(softmax)(X)
    assert decisions.key_of(closed, 2) != decisions.key_of(closed, 2, memory_bound=True)
