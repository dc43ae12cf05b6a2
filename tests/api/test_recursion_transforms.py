"""Recursion under JAX's transformations and compilers, and the errors of a recursion that cannot be."""

from __future__ import annotations

import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import source_info_util

import jax_cocktail
from jax_cocktail_tools.models.rae import post_order, tree_of
from tests.recursion_compare import COMPILERS, OURS, check
from tests.recursion_programs import SORTED, X, plain_waves, quicksort, waves
from tests.recursion_python import by_python, like, total, unrolled
from tests.recursion_trees import INPUTS, ROOT, B, W, plain_rae, rae

recursive = jax_cocktail.recursive
COUNT = np.int32(3)


def tree_loss(which):
    """A function of the weights, which the recursion closes over."""
    encode = rae(which)
    return lambda w: total(encode(jnp.asarray(INPUTS), w, jnp.asarray(B), jnp.asarray(ROOT)))


def wave(which):
    """A function of a number that changes from call to call."""
    run = waves(which)
    return lambda x: run(x, jnp.asarray(COUNT))


def ones(x):
    return jnp.ones_like(x)


TRANSFORMS = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (ones(x),)),
    "vjp": lambda f, x: jax.vjp(f, x)[1](jnp.ones((), x.dtype)),
    "forward over reverse": lambda f, x: jax.jvp(jax.grad(f), (x,), (ones(x),)),
    "reverse over forward": lambda f, x: jax.grad(lambda x: jax.jvp(f, (x,), (ones(x),))[1])(x),
    "reverse over reverse": lambda f, x: jax.grad(lambda x: jnp.sum(jax.grad(f)(x)))(x),
    "linearize": lambda f, x: [g(x) for g in (jax.linearize(f, x)[1],)],
}


@pytest.mark.parametrize("how", TRANSFORMS)
def test_derivatives(how):
    transform = TRANSFORMS[how]
    for program, x in ((tree_loss, W), (wave, X)):
        expected = by_python(lambda p=program, x=x: transform(p(unrolled), jnp.asarray(x, np.float64)))
        found = jax.jit(lambda x, p=program: transform(p(recursive), x))(jnp.asarray(x))
        check(found, expected, 2e-4)


def test_jacobians():
    x = jnp.asarray([X, X + 0.5])

    def pair(which):
        run = wave(which)
        return lambda x: jnp.stack([run(x[0] * x[1]), x[1]])

    def both(which, x):
        return jax.jacfwd(pair(which))(x), jax.jacrev(pair(which))(x)

    expected = by_python(lambda: both(unrolled, jnp.asarray(x, np.float64)))
    check(jax.jit(lambda x: both(recursive, x))(x), expected, 2e-4)


@pytest.mark.parametrize("policy", [None, "dots_saveable"])
def test_checkpoint(policy):
    rule = policy and getattr(jax.checkpoint_policies, policy)
    loss = jax.checkpoint(lambda w: jnp.sin(tree_loss(recursive)(w)), policy=rule)
    expected = by_python(
        lambda: jax.grad(lambda w: jnp.sin(tree_loss(unrolled)(w)))(jnp.asarray(W, np.float64))
    )
    check(jax.jit(jax.grad(loss))(W), expected, 1e-4)


def test_checkpoint_around_a_call():
    def down(x, n):
        @recursive(out_like=like(x))
        def f(self, n):
            return lax.cond(n == 0, lambda: x, lambda: jax.checkpoint(lambda k: jnp.sin(self(k)) * x)(n - 1))

        return f(n)

    def plain(x):
        return jnp.sin(jnp.sin(x) * x) * x

    check(jax.jit(jax.value_and_grad(down))(0.7, 2), jax.value_and_grad(plain)(0.7))


# -- vmap ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compiler", ["stock", "ours"])
def test_vmap(compiler):
    encode, roots = rae(recursive), np.array([6, 5, 0, 3], np.int32)
    expected = np.stack([plain_rae(INPUTS, W, B, int(root)) for root in roots])
    batched = COMPILERS[compiler](jax.vmap(encode, (None, None, None, 0)))
    check(batched(INPUTS, W, B, roots), expected)


def test_vmap_and_grad():
    """Of each lane, and of the sum over lanes, whose weights are shared."""
    xs, ns = jnp.asarray([0.3, 0.7]), jnp.asarray([2, 3], jnp.int32)
    run = waves(recursive)
    each = by_python(
        lambda: [jax.value_and_grad(waves(unrolled))(x, n) for x, n in zip([0.3, 0.7], ns, strict=True)]
    )
    values, slopes = (np.stack(parts) for parts in zip(*each, strict=True))
    check(jax.jit(jax.vmap(jax.value_and_grad(run)))(xs, ns), (values, slopes), 1e-4)

    def loss(w, roots):
        return jax.vmap(lambda root: total(rae(recursive)(INPUTS_, w, B_, root)))(roots).sum()

    def plain(w):
        return sum(total(rae(unrolled)(INPUTS_, w, B_, jnp.asarray(root))) for root in (6, 5, 0))

    INPUTS_, B_ = jnp.asarray(INPUTS), jnp.asarray(B)
    expected = by_python(lambda: jax.grad(plain)(jnp.asarray(W, np.float64)))
    check(jax.jit(jax.grad(loss))(W, np.array([6, 5, 0], np.int32)), expected, 1e-4)


def test_vmapped_branch_not_taken():
    """Under vmap both sides run. The tape of the one that was not taken is zeros, and must not be read."""
    run = waves(recursive)

    def maybe(taken, x):
        return lax.cond(taken, lambda: run(x, COUNT), lambda: 2 * x)

    found = jax.jit(jax.vmap(jax.grad(maybe, 1)))(jnp.asarray([True, False]), jnp.asarray([X, X]))
    slope = by_python(lambda: jax.grad(waves(unrolled))(jnp.asarray(X, np.float64), COUNT))
    check(found, np.stack([slope, 2.0]), 1e-4)


def test_loops_around():
    def repeated(x):
        run = waves(recursive)
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, run(s[1], s[0])), (jnp.int32(0), x))[1]

    def plain(x):
        return plain_waves(plain_waves(plain_waves(x, 0), 1), 2)

    check(jax.jit(jax.vmap(repeated))(jnp.asarray([0.3, 0.4])), np.array([plain(0.3), plain(0.4)]))


# -- compilers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compiler", ["stock", "ours"])
def test_a_new_tree_compiles_nothing(compiler):
    traces = []

    def encode(inputs, left, right, is_leaf, root):
        traces.append(1)

        @recursive(out_like=like(inputs, (4,)))
        def node(self, k):
            def inner():
                return jnp.tanh(jnp.concatenate([self(left[k]), self(right[k])]) @ W)

            return lax.cond(is_leaf[k], lambda: inputs[k], inner)

        return node(root)

    compiled = COMPILERS[compiler](encode)
    inputs = np.linspace(-1, 1, 31 * 4, dtype=np.float32).reshape(31, 4)
    results = []
    for profile in ((3, 2, 1, 1), (1, 1), (4, 2, 1)):
        *tables, root = post_order(tree_of(profile), 31)
        results.append(compiled(inputs, *tables, np.int32(root)))
    assert len(traces) == 1
    assert not np.allclose(results[0], results[1])


def test_ahead_of_time_and_donation():
    for jit in (jax.jit, lambda f, **how: jax_cocktail.jit(f, options=OURS, **how)):
        sort = jit(quicksort(recursive), donate_argnums=0)
        check(sort(jnp.array(SORTED)), np.sort(SORTED))
        check(sort.lower(SORTED).compile()(jnp.array(SORTED)), np.sort(SORTED))


def test_explained():
    report = jax_cocktail.explain(jax_cocktail.jit(rae(recursive), options=OURS))(INPUTS, W, B, ROOT)
    assert report.captured and not report.left


def test_x64():
    with jax.enable_x64(True):
        check(waves(recursive)(0.7, 4), plain_waves(0.7, 4), 1e-12)


@pytest.mark.parametrize("make", [jax.random.PRNGKey, jax.random.key])
def test_random_keys(make):
    @recursive(out_like=like(np.float32(0)))
    def walk(self, key, n):
        def more():
            a, b = jax.random.split(key)
            return self(a, n - 1) + 2 * self(b, n - 1)

        return lax.cond(n == 0, lambda: jax.random.normal(key), more)

    def plain(key, n):
        if n == 0:
            return jax.random.normal(key)
        a, b = jax.random.split(key)
        return plain(a, n - 1) + 2 * plain(b, n - 1)

    check(jax.jit(walk)(make(3), 2), plain(make(3), 2))


def test_what_is_shared_is_not_in_the_frame():
    """Weights that every call hands on, and the table that it closes over."""

    def run(x, weights, n):
        table = jnp.sin(x)

        @recursive
        def f(self, x, weights, n):
            return lax.cond(n == 0, lambda: x, lambda: x * self(x * 2, weights, n - 1) + weights[n] + table)

        return f(x, weights, n)

    jaxpr = str(jax.make_jaxpr(run)(1.0, jnp.arange(5.0), 3))
    task = next(e.params["task"] for e in _equations(jax.make_jaxpr(run)(1.0, jnp.arange(5.0), 3)))
    assert {a.shape for a in task.environment} == {(5,), ()}, jaxpr
    assert [a.shape for a in task.entry.arguments] == [(), ()]


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "recursion":
            yield equation
        if "jaxpr" in equation.params:
            yield from _equations(equation.params["jaxpr"])


def test_one_function_for_several_types():
    """Called by another one, by its name, for a number and for a vector."""

    @recursive
    def double(self, x, n):
        return lax.cond(n == 0, lambda: x, lambda: 2 * self(x, n - 1))

    @recursive
    def sums(self, x, n):
        def more():
            return self(x, n - 1) + double(x, n) + double(jnp.stack([x, x]), n)[0]

        return lax.cond(n == 0, lambda: x, more)

    assert sums(1.0, 2) == 1 + 2 * 2 + 2 * 4


def test_nothing_is_kept():
    """What a recursion closes over goes when the recursion goes."""

    def run():
        weights = jnp.arange(3.0)

        @recursive
        def f(self, x, n):
            return lax.cond(n == 0, lambda: x, lambda: self(x, n - 1) * weights[n])

        assert jax.jit(jax.value_and_grad(f))(2.0, 2) == (4.0, 2.0)
        return weakref.ref(weights)

    gone = run()
    gc.collect()
    assert gone() is None


def test_no_tracer_is_leaked():
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: waves(recursive)(x, COUNT)))(X)


# -- errors --------------------------------------------------------------------------------------------------
FLOAT = jnp.zeros(3)


@recursive
def no_base_case(self, n):
    return self(n - 1)


@recursive
def base_case_in_another_loop(self, n):
    return lax.fori_loop(0, 3, lambda _, x: self(x), n)


@recursive
def float_for_integer(self, n):
    return lax.cond(n == 0, lambda: 1.0, lambda: self(n - 1) * 1.0)


@recursive(out_like=lambda n: {"a": n})
def other_structure(self, n):
    return {"b": n}


@recursive
def other_shape(self, x):
    return lax.cond(x[0] > 0, lambda: x, lambda: jnp.pad(self(x[1:]), (1, 0)))


@recursive
def other_arguments(self, x):
    return lax.cond(x[0] > 0, lambda: x, lambda: self((x[0], x[1])))


@recursive
def differentiates_itself(self, x, n):
    return lax.cond(n == 0, lambda: x, lambda: jax.grad(lambda y: self(y, n - 1))(x))


@recursive
def called_from_inside(self, x):
    @recursive
    def inner(_, x):
        return lax.cond(x > 0, lambda: x, lambda: called_from_inside(x))

    return inner(x)


KEPT = []


@recursive
def keeps_itself(self, n):
    KEPT.append(self)
    return n


@recursive
def without_arguments(self):
    return 1.0


ERRORS = {
    no_base_case: ((3,), "never returns"),
    base_case_in_another_loop: ((3,), "never returns"),
    float_for_integer: ((3,), r"returned float32\[\] but int32\[\] was expected"),
    other_structure: ((3,), r"returned {'b': 'int32\[\]'} but {'a': 'int32\[\]'}"),
    other_shape: ((FLOAT,), r"is float32\[3\] in the first call and float32\[2\] here"),
    other_arguments: ((FLOAT,), "another structure"),
    differentiates_itself: ((1.0, 2), "differentiates one of its own calls"),
    called_from_inside: ((1.0,), "defined in the body of"),
    without_arguments: ((), "out_like="),
}


@pytest.mark.parametrize("function", ERRORS, ids=lambda f: f.__name__)
def test_errors_name_the_line(function):
    arguments, text = ERRORS[function]
    with pytest.raises(jax_cocktail.RecursionTypeError, match=text) as caught:
        function(*arguments)
    first = function.__wrapped__.__code__.co_firstlineno
    lines = range(first, first + len(inspect.getsource(function.__wrapped__).splitlines()))
    message = str(caught.value)
    assert any(f"{__file__}:{line} " in message for line in lines), message


@pytest.mark.parametrize("compiler", [lambda f: f, jax.jit, jax_cocktail.jit])
def test_side_effects_are_not_lost_in_silence(compiler):
    @recursive
    def told(self, n):
        return lax.cond(n < 1, lambda: n, lambda: (jax.debug.print("{}", n), self(n - 1))[1])

    with pytest.raises(jax_cocktail.UnsupportedError, match="told has side effects.*DebugEffect") as caught:
        compiler(told)(3)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
def test_axes_of_lanes_are_refused(compiler):
    @recursive
    def centred(self, x, n):
        return lax.cond(n < 1, lambda: x - lax.pmean(x, "lane"), lambda: self(x / 2, n - 1))

    with pytest.raises(jax_cocktail.UnsupportedError, match="centred uses the axis lane of jax.vmap"):
        compiler(jax.vmap(centred, (0, None), axis_name="lane"))(jnp.arange(3.0), 2)


@pytest.mark.parametrize("limit", ["max_depth", "max_calls"])
def test_limits_that_32_bits_do_not_hold(limit):
    with pytest.raises(ValueError, match=f"{limit} must be an integer from 1 to"):
        recursive(lambda self, n: n, **{limit: 2**31})


def test_a_call_is_on_the_users_line():
    (equation,) = jax.make_jaxpr(lambda: keeps_itself(3))().eqns
    assert f"{__file__}:" in str(source_info_util.summarize(equation.source_info))


def test_called_after_it_returned():
    keeps_itself(3)
    with pytest.raises(jax_cocktail.RecursionTypeError, match="after keeps_itself had returned") as caught:
        KEPT[0](3)
    assert __file__ in str(caught.value)


def test_derivative_of_a_while_loop_with_calls():
    @recursive
    def f(self, x, n):
        def repeated():
            return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, self(s[1], n - 1)), (0, x))[1]

        return lax.cond(n == 0, lambda: jnp.sin(x), repeated)

    with pytest.raises(jax_cocktail.UnsupportedError, match="while loop"):
        jax.grad(f)(1.0, 2)


def test_too_deep_and_too_many_calls():
    @recursive(max_depth=10, max_calls=7)
    def down(self, x, n):
        return lax.cond(n == 0, lambda: x, lambda: 0.5 * self(x, n - 1) + x)

    for compiled in (jax.jit(down), jax_cocktail.jit(down, options=OURS)):
        assert np.isfinite(compiled(1.0, 9))
        with pytest.raises(Exception, match="raise max_depth=10"):
            jax.block_until_ready(compiled(1.0, 10))
    gradient = jax.jit(jax.grad(down))
    assert np.isfinite(gradient(1.0, 6))
    with pytest.raises(Exception, match="raise max_calls=7"):
        jax.block_until_ready(gradient(1.0, 7))
