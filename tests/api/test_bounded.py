"""`while_loop` with a bound: values and derivatives of any order equal those of a loop in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jax_cocktail
from jax_cocktail.bounded import primitive
from jax_cocktail.primitives.jaxprs import equations_in

BOUND = 9
FORCED = {"force": "cocktail", "compile": "now"}


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


def bounded(cond, body, init, **options):
    return jax_cocktail.while_loop(cond, body, init, **{"max_trips": BOUND, **options})


def unrolled(cond, body, init, **options):
    while cond(init):
        init = body(init)
    return init


def masked(cond, body, init, **options):
    """The same with `scan` over the bound."""

    def step(state, _):
        active = cond(state)
        safe = jax.tree.map(lax.stop_gradient, init)
        following = body(jax.tree.map(lambda x, y: jnp.where(active, x, y), state, safe))
        return jax.tree.map(lambda x, y: jnp.where(active, x, y), following, state), None

    return lax.scan(step, jax.tree.map(jnp.asarray, init), None, length=BOUND)[0]


def wave(loop: Callable[..., Any], trips: int, **options: Any) -> Callable[..., Any]:
    """A loop with a dictionary of a tuple and an integer, that closes over traced constants."""

    def f(a, x):
        def body(state):
            u, v = state["x"]
            return {"x": (jnp.sin(a * u) + 0.5 * v, u * v - a.sum()), "i": state["i"] + 1}

        last = loop(lambda s: s["i"] < trips, body, {"x": (x, jnp.cos(x)), "i": 0}, **options)
        return (last["x"][0] * a).sum() + last["x"][1][0]

    return f


A, X = np.array([1.3, 0.2, 0.7]), np.array([0.4, 0.5, -1.0])
DERIVATIVES = {
    "value": lambda f: f,
    "jvp": lambda f: lambda a, x: jax.jvp(f, (a, x), (x, a)),
    "grad": lambda f: jax.grad(f, (0, 1)),
    "linearize": lambda f: lambda a, x: jax.linearize(f, a, x)[1](x, a),
    "remat": lambda f: jax.grad(jax.checkpoint(f), (0, 1)),
    "jit inside": lambda f: jax.grad(jax.jit(f), (0, 1)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f, (0, 1)), (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f, (0, 1)), (0, 1)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f), (0, 1)),
}


def same(found, wanted, tolerance=1e-9):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance), found, wanted)


@pytest.mark.parametrize("checkpoints", [None, 1, 3, 99])
@pytest.mark.parametrize("how", DERIVATIVES)
def test_derivatives(how, checkpoints):
    for trips in (0, 7):
        found = jax.jit(DERIVATIVES[how](wave(bounded, trips, checkpoints=checkpoints)))(A, X)
        same(found, DERIVATIVES[how](wave(unrolled, trips))(A, X))


@pytest.mark.parametrize("trips", [0, 4, BOUND])
def test_it_equals_a_masked_scan(trips):
    for how in ("grad", "jvp"):
        found = DERIVATIVES[how](wave(bounded, trips))(A, X)
        same(found, DERIVATIVES[how](wave(masked, trips))(A, X))


@pytest.mark.parametrize("options", [{}, {"checkpoints": 3}], ids=str)
def test_ours_captures_both_loops_as_one_call(options):
    gradient = jax.grad(wave(bounded, 5, **options), (0, 1))
    ours = jax_cocktail.jit(gradient, options=FORCED)
    report = jax_cocktail.explain(ours)(A, X)
    assert len(report.captured) == 1 and not report.left
    loops = report.captured[0].control_flow
    assert len(loops) == 2 and all("test_bounded.py:" in loop for loop in loops)
    same(ours(A, X), jax.grad(wave(unrolled, 5), (0, 1))(A, X))


def loops_in(function, *arguments):
    equations = equations_in(jax.make_jaxpr(function)(*arguments))
    return [e.params["loop"] for e in equations if e.primitive.name == "bounded_while"]


def test_the_forward_loop_runs_once_and_forward_mode_has_no_tape():
    f = wave(bounded, 5)
    forward, backward = loops_in(jax.grad(f), A, X)
    assert forward.condition is not None and forward.row_results and backward.condition is None
    (joint,) = loops_in(lambda a, x: jax.jvp(f, (a, x), (x, a)), A, X)
    assert not joint.row_results
    for inside in (lambda c, _: (f(c, X) * c, None), jax.checkpoint(lambda c, _: (f(c, X) * c, None))):
        found = loops_in(jax.grad(lambda a, inside=inside: lax.scan(inside, a, None, 3)[0].sum()), A)
        assert sum(loop.condition is None for loop in found) == 1


def test_the_tape_has_only_what_the_gradient_reads():
    def f(a):
        def body(s):
            return (s[0] * a, s[1] + a, s[2] + 1)

        last = bounded(lambda s: s[2] < 4, body, (a, jnp.zeros(1000), 0))
        return last[0] + last[1].sum()

    forward, _ = loops_in(jax.grad(f), 1.5)
    assert [aval.shape for aval in forward.row_results] == [()]
    same(jax.grad(f)(1.5), 5 * 1.5**4 + 4000)


@pytest.mark.parametrize("checkpoints", [None, 5])
def test_memory_of_checkpoints(checkpoints, monkeypatch):
    if checkpoints is None:
        monkeypatch.setattr(primitive, "TAPE_BYTES", 1000)

    def f(x, loop=bounded):
        def body(s):
            return (jnp.sin(s[0]), s[1] + 1)

        return loop(lambda s: s[1] < 20, body, (x, 0), max_trips=99, checkpoints=checkpoints)[0].sum()

    forward, backward = loops_in(jax.grad(f), X)[0], loops_in(jax.grad(f), X)[-1]
    assert forward.most == (10 if checkpoints is None else 5)
    assert all(loop.most <= 20 for loop in loops_in(jax.grad(f), X))
    found = jax.grad(f)(X)
    same(found, jax.grad(lambda x: f(x, unrolled))(X))
    assert backward.condition is None


@pytest.mark.parametrize("jit", [jax.jit, lambda f: jax_cocktail.jit(f, options=FORCED)])
def test_as_many_checkpoints_as_trips_are_the_tape(jit, monkeypatch):
    """Its bits are those of the tape, with BOUND rows as with more, and however long the tape is."""

    def gradient(**options):
        return jax.grad(wave(bounded, 7, **options), (0, 1))

    wanted = jit(gradient())(A, X)
    monkeypatch.setattr(primitive, "TAPE_BYTES", 0)
    assert all(loop.most < BOUND for loop in loops_in(gradient(), A, X))
    for checkpoints in (BOUND, BOUND + 1, 99):
        found = gradient(checkpoints=checkpoints)
        assert [loop.most for loop in loops_in(found, A, X)] == [BOUND + 1] * 2
        jax.tree.map(np.testing.assert_array_equal, jit(found)(A, X), wanted)
    same(jit(gradient())(A, X), wanted)  # only close: sums over trips are made segment by segment


def test_memory_of_checkpoints_grows_with_the_square_root(monkeypatch):
    monkeypatch.setattr(primitive, "TAPE_BYTES", 1000)
    x = jnp.linspace(0.1, 1, 256)

    def rows(most):
        """Rows of memory beside arguments and results: under stock XLA, and in our program."""

        def f(x):
            last = bounded(lambda s: s[1] < 5, lambda s: (jnp.sin(s[0]), s[1] + 1), (x, 0), max_trips=most)
            return last[0].sum()

        (captured,) = jax_cocktail.explain(jax_cocktail.jit(jax.grad(f), options=FORCED))(x).captured
        stock = jax.jit(jax.grad(f)).lower(x).compile().memory_analysis().temp_size_in_bytes
        return np.array([stock, captured.workspace_bytes]) / x.nbytes

    few, many = rows(400), rows(1600)
    assert (few < 2 * 20 + 8).all()
    np.testing.assert_allclose(many / few, 2, rtol=0.1)


# ---- vmap --------------------------------------------------------------------------------------------------


def sinking(loop):
    """A loop that ends where its derivative is infinite."""
    return lambda x: loop(lambda x: x > 0, lambda x: x - jnp.sqrt(x), x)


STARTS = np.array([1.0, 2.0, 0.0, 4.0, 1.0])


BATCHED = {  # by name: the transformation, and the derivative of one element that it gives
    "value": (jax.vmap, 0),
    "tangent": (lambda f: lambda x: jax.jvp(jax.vmap(f), (x,), (jnp.ones_like(x),))[1], 1),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), 1),
    "grad of vmap": (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), 1),
    "vmap of second": (lambda f: jax.vmap(jax.grad(jax.grad(f))), 2),
    "second of vmap": (
        lambda f: jax.grad(lambda x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x).sum()),
        2,
    ),
}


@pytest.mark.parametrize("how", BATCHED)
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, lambda f: jax_cocktail.jit(f, options=FORCED)])
def test_elements_end_at_different_trips(how, jit):
    transformed, order = BATCHED[how]
    one = sinking(unrolled)
    for _ in range(order):
        one = jax.grad(one)
    found = jit(lambda x: transformed(sinking(bounded))(x))(STARTS)
    same(found, np.stack([one(x) for x in STARTS]))


def test_elements_share_constants():
    trips = np.array([0, 3, BOUND, 2])
    inputs = np.linspace(-1, 1, 12).reshape(4, 3)

    def one(loop, w, x, n):
        def body(s):
            return (jnp.sin(w * s[0]), s[1] + 1)

        return loop(lambda s: s[1] < n, body, (x, 0))[0].sum()

    def ours(w, xs):
        return jax.vmap(lambda x, n: one(bounded, w, x, n))(xs, trips).sum()

    def theirs(w, xs):
        return sum(one(unrolled, w, x, int(n)) for x, n in zip(xs, trips, strict=True))

    for order in (jax.grad, jax.hessian):
        same(jax.jit(order(ours, (0, 1)))(A, inputs), order(theirs, (0, 1))(A, inputs))


def test_a_linear_map_of_a_loop_under_vmap_has_a_transpose():
    maps = [jax.linearize(wave(loop, 4), A, X)[1] for loop in (bounded, unrolled)]
    many = np.stack([A, X, A - X])
    for axes, types in (((0, 0), (many, many)), ((0, None), (many, X))):
        found, wanted = (jax.linear_transpose(jax.vmap(f, axes), *types)(np.arange(3.0)) for f in maps)
        same(found, wanted)


# ---- structure ---------------------------------------------------------------------------------------------


def test_keys_are_carried():
    def f(loop):
        def run(a):
            def body(state):
                key, x, i = state
                key, own = jax.random.split(key)
                return key, jnp.sin(x * a) + a * jax.random.normal(own), i + 1

            return loop(lambda s: s[2] < 4, body, (jax.random.key(1), a, 0))[1]

        return run

    same(jax.grad(f(bounded))(1.3), jax.grad(f(unrolled))(1.3))


def test_loops_in_loops_and_branches():
    def f(loop):
        def run(a):
            def inner(x):
                return loop(lambda s: s[1] < 3, lambda s: (jnp.sin(s[0] * a), s[1] + 1), (x, 0))[0]

            def step(x, _):
                return lax.cond(x > 0.4, inner, lambda x: x * x + a, x), x

            last, xs = lax.scan(step, a, None, length=4)
            def outer(s):
                return (inner(s[0]) + last, s[1] + 1)

            return loop(lambda s: s[1] < 2, outer, (a, 0))[0] + xs.sum()

        return run

    for order in (jax.grad, lambda f: jax.grad(jax.grad(f))):
        same(jax.jit(order(f(bounded)))(0.7), order(reference)(0.7))


def reference(a):
    def inner(x):
        for _ in range(3):
            x = jnp.sin(x * a)
        return x

    x, total = a, 0.0
    for _ in range(4):
        total, x = total + x, jnp.where(x > 0.4, inner(x), x * x + a)
    return inner(inner(a) + x) + x + total


OPERATIONS = {
    "sin": lambda x, a: jnp.sin(x * a),
    "product": lambda x, a: 0.5 * x * a + 0.1,
    "matrix": lambda x, a: jnp.tanh(jnp.outer(a, x) @ x),
    "roll": lambda x, a: jnp.roll(x, 1) - 0.3 * a,
    "division": lambda x, a: a / (1 + x * x),
    "choice": lambda x, a: jnp.where(x > a, x - a, a * x),
}


@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4),
    trips=st.integers(0, BOUND),
    checkpoints=st.sampled_from([None, 2, 4]),
    data_dependent=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_random_bodies(names, trips, checkpoints, data_dependent):
    def f(loop):
        def run(a, x):
            def body(state):
                i, (x, y) = state
                for name in names:
                    x, y = OPERATIONS[name](x, a) + 0.1 * y, x
                return i + 1, (x, y)

            def cond(state):
                more = state[0] < trips
                return more & (jnp.abs(state[1][0]).sum() < 4) if data_dependent else more

            return loop(cond, body, (0, (x, x * a)), checkpoints=checkpoints)[1][0].sum()

        return run

    with jax.enable_x64(True):
        same(jax.jit(jax.grad(f(bounded), (0, 1)))(A, X), jax.grad(f(unrolled), (0, 1))(A, X))


# ---- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, least", [("max_trips", 0), ("checkpoints", 1)])
@pytest.mark.parametrize("value", [-1, -3, 1 << 40, True])
def test_a_bound_is_not_negative(name, least, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer from {least} to"):
        bounded(lambda x: x < 1, lambda x: x + 1, 0.0, **{name: value})


@pytest.mark.parametrize("name", ["max_trips", "checkpoints"])
def test_a_bound_is_an_integer(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer, not 2.5"):
        bounded(lambda x: x < 1, lambda x: x + 1, 0.0, **{name: 2.5})


JITS = [lambda f: f, jax.jit, lambda f: jax_cocktail.jit(f, options=FORCED)]


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("how", ["value", "jvp", "grad", "reverse over reverse"])
@pytest.mark.parametrize("options", [{}, {"checkpoints": 1}, {"checkpoints": 3}], ids=str)
def test_a_bound_of_no_trips(how, jit, options):
    found = jit(DERIVATIVES[how](wave(bounded, 0, max_trips=0, **options)))(A, X)
    same(found, DERIVATIVES[how](wave(unrolled, 0))(A, X))
    function = jit(DERIVATIVES[how](wave(bounded, 1, max_trips=0, **options)))
    error = jax.errors.JaxRuntimeError, ValueError
    with pytest.raises(error, match="more than 0 trips; raise max_trips=0"):
        jax.block_until_ready(function(A, X))


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("how", ["value", "jvp", "grad"])
@pytest.mark.parametrize("options", [{}, {"checkpoints": 3}], ids=str)
def test_more_trips_than_the_bound_are_an_error(how, jit, options):
    function = jit(DERIVATIVES[how](wave(bounded, BOUND + 1, **options)))
    error = jax.errors.JaxRuntimeError, ValueError
    with pytest.raises(error, match=r"test_bounded.py:\d+ .* raise max_trips=9"):
        jax.block_until_ready(function(A, X))


def test_side_effects_are_refused():
    def body(x):
        jax.debug.print("{}", x)
        return x + 1

    with pytest.raises(jax_cocktail.UnsupportedError, match="has effects"):
        bounded(lambda x: x < 1, body, 0.0)


def test_a_body_that_changes_a_type_is_refused_as_by_jax():
    with pytest.raises(TypeError, match="must have same type structure|equal types|carry"):
        bounded(lambda x: x.sum() < 1, lambda x: jnp.concatenate([x, x]), jnp.ones(2))


def single(loop, **options):
    """A loop whose trips do not depend on what it multiplies."""
    return lambda a: loop(lambda s: s[1] < 3, lambda s: (s[0] * a, s[1] + 1), (a, 0), **options)


def test_numbers_of_numpy_without_float64():
    with jax.enable_x64(False):
        for init in (np.zeros(2), np.int64(0), 0.0):
            ours = bounded(lambda s: jnp.all(s < 3), lambda s: s + 1, init)
            stock = lax.while_loop(lambda s: jnp.all(s < 3), lambda s: s + 1, init)
            assert ours.dtype == stock.dtype and ours.weak_type == stock.weak_type
            np.testing.assert_array_equal(ours, stock)


def test_types_that_give_way():
    x = jnp.ones(3, jnp.bfloat16)
    assert (x * bounded(lambda s: s < 3.0, lambda s: s * 2, 1.0)).dtype == jnp.bfloat16


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_a_counter_is_the_same_for_all_batch_elements(transform):
    """As under `vmap` of JAX's own loop."""
    x = jnp.arange(4.0)
    ours = transform(jax.vmap(single(bounded), out_axes=(0, None)))(x)
    np.testing.assert_array_equal(ours[0], x**4)
    assert ours[1].shape == () and ours[1] == 3
    both = jax.grad(lambda x: sum(jnp.sum(y) for y in jax.vmap(single(bounded))(x)))
    np.testing.assert_allclose(transform(both)(x), 4 * x**3)
    assert jax.vmap(single(bounded))(jnp.zeros(0))[1].shape == (0,)


def test_a_checked_mesh_has_no_derivative():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(lambda x: single(bounded)(x)[0], mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(jax_cocktail.UnsupportedError, match="check_vma=False"):
        jax.grad(lambda x: mapped(x).sum())(jnp.ones(2))
