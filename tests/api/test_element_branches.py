"""Vmapped branches outside of loops, before and after `threads`, in the interpreter, against stock."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.cost.gpu import gpu_price
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import ELEMENTS, ElementTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.recover import narrowed, recover
from jax_cocktail.schedule.vmap.threads import threads
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, by_threads, is_a, walk
from tests.oracle.interpreter.run import run as interpreted
from tests.selection import ALL
from tests.strategies import check_state, initial_state, programs
from tests.strategies import run as random_run

FEW = ElementTuning(fewest=2)
EAGER = ElementTuning(fewest=2, branch_flops=1.0, side_flops=1.0)
EVERY = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
SHORT, LONG, LONGER = 7, 40, 90
X = np.linspace(-2, 2, 12, dtype=np.float32)


class Taken:
    """A program after the pass, compared with stock. `trips`: how often the loops of each length ran;
    `told`: the remarks."""

    def __init__(self, function, arguments, limits=FEW):
        self.told = []
        traced = jax.make_jaxpr(function)(*arguments)
        self.before = simplify(translate(adapter.program(traced), "branches"))
        after = threads(self.before, self.told.append, limits)
        self.changed = after is not self.before
        self.after = simplify(after)
        verify(self.after, "placed")
        counts, loops = Counter(), [s for s in walk(self.after.entry) if isinstance(s, LoopUTask)]
        lengths = {id(s.body): s.trip_count for s in loops}
        ours = interpreted(self.after, list(arguments), observe=lambda r: counts.update([id(r)]))
        check_state(ours, jax.tree.leaves(jax.jit(function)(*arguments)))
        self.trips = Counter()
        for region, number in counts.items():
            if region in lengths:
                self.trips[lengths[region]] += number
        self.loops = [s for s in loops if by_threads(s)]

    @property
    def branches(self):
        """The number of branches in loops by threads."""
        return sum(isinstance(s, BranchUTask) for loop in self.loops for s in walk(loop.body))


def steps(count):
    return lambda x: jax.lax.fori_loop(0, count, lambda i, v: jnp.sin(v) + 0.1 * i, x)


def either(flag, x):
    return jax.lax.cond(flag, steps(LONG), steps(LONGER), x)


FLAGS = {
    "mixed": np.arange(12) % 3 == 0,
    "one": np.arange(12) == 5,
    "all": np.ones(12, bool),
    "none": np.zeros(12, bool),
}


@pytest.mark.parametrize("name", FLAGS)
def test_an_element_runs_one_side(name):
    flags = FLAGS[name]
    found = Taken(jax.vmap(either), (flags, X))
    assert (len(found.loops), found.branches) == (1, 1), found.told
    assert found.trips[LONG] == flags.sum() * LONG
    assert found.trips[LONGER] == (~flags).sum() * LONGER


def choose(i, x):
    return jax.lax.switch(i, [steps(SHORT), steps(LONG), lambda x: x, steps(LONGER)], x)


@pytest.mark.parametrize("shape", [(12,), (12, 3)])
def test_switch(shape):
    """Indices out of range are clamped, as under stock."""
    which = np.array([0, 1, 2, 3, -5, 9, 1, 1, 0, 2, 3, 3], np.int32)
    found = Taken(jax.vmap(choose), (which, np.resize(X, shape)))
    assert len(found.loops) == 1 and found.branches >= 2, found.told
    taken = Counter(np.clip(which, 0, 3).tolist())
    expected = {SHORT: taken[0] * SHORT, LONG: taken[1] * LONG, LONGER: taken[3] * LONGER}
    assert {n: found.trips[n] for n in expected} == expected


def nested(a, b, x):
    def inner(x):
        return jax.lax.cond(b, steps(SHORT * 5), steps(LONG), x) + 1

    return jax.lax.cond(a, inner, steps(LONGER), x)


def test_branch_in_a_branch():
    a, b = np.arange(12) % 2 == 0, np.arange(12) % 3 == 0
    found = Taken(jax.vmap(nested), (a, b, X))
    assert (len(found.loops), found.branches) == (1, 2), found.told
    assert found.trips[SHORT * 5] == (a & b).sum() * SHORT * 5
    assert found.trips[LONG] == (a & ~b).sum() * LONG
    assert found.trips[LONGER] == (~a).sum() * LONGER


def several(flag, x, n):
    """Results of several types and shapes, one of which only one side changes."""

    def first(x, n):
        x, n = jax.lax.fori_loop(0, LONG, lambda i, s: (jnp.cos(s[0]), s[1] * 3 + i), (x, n))
        return x, n, jnp.stack([x, x + 1]), n > 0

    def second(x, n):
        n = jax.lax.while_loop(lambda n: n < 1000, lambda n: n * 2 + 1, jnp.abs(n))
        return x, n, jnp.stack([x, -x]), n % 2 == 0

    return jax.lax.cond(flag, first, second, x, n)


def test_results_of_several_types():
    n = np.arange(-6, 6, dtype=np.int32)
    found = Taken(jax.vmap(several), (FLAGS["mixed"], X, n))
    assert len(found.loops) == 1 and found.branches, found.told
    assert found.trips[LONG] == FLAGS["mixed"].sum() * LONG


def test_operators_over_the_whole_batch():
    """They read what all threads have written, and threads read what they write."""

    def function(flags, x):
        x = x - jnp.mean(x)
        y = jax.vmap(either)(flags, x)
        z = jax.vmap(either)(y > jnp.sum(y) / 12, y[::-1])
        return jnp.sum(z), jnp.cumsum(z), y

    found = Taken(function, (FLAGS["mixed"], X))
    assert (len(found.loops), found.branches) == (2, 2), found.told


def careful(x):
    """The side that is not taken divides by zero, takes roots and logarithms, and does not converge."""

    def root(x):
        return jax.lax.fori_loop(0, LONG, lambda _, y: 0.5 * (y + x / y), jnp.sqrt(x) + jnp.log(x))

    return jax.lax.cond(x > 0, root, lambda x: jax.lax.fori_loop(0, SHORT, lambda _, y: y / 2 - 1, x), x)


def test_not_a_number_in_the_side_not_taken():
    x = np.array([0, -1, 4, -np.inf, np.inf, np.nan, 2, -0.0, 1e-30, 9, 16, -3], np.float32)
    found = Taken(jax.vmap(careful), (x,))
    assert found.branches == 1
    assert found.trips[LONG] == (x > 0).sum() * LONG


def test_gradient():
    def loss(x, flags):
        return jnp.sum(jax.vmap(either)(flags, x) ** 2)

    found = Taken(jax.grad(loss), (X, FLAGS["mixed"]))
    assert found.branches == 1, found.told  # of the way back; one side of it is cheap


def test_gradient_of_an_element():
    """A thread runs the way there and back of one side; what it keeps for the way back is in registers."""

    def curved(count):
        return lambda x: jax.lax.fori_loop(0, count, lambda _, v: jnp.tanh(v) * v + 1, x)

    def loss(x, flag):
        return jax.lax.cond(flag, curved(SHORT), curved(LONG), x)

    found = Taken(jax.vmap(jax.grad(loss)), (X, FLAGS["mixed"]))
    assert (len(found.loops), found.branches) == (1, 3), found.told
    assert found.trips[LONG] == 2 * (~FLAGS["mixed"]).sum() * LONG
    assert found.trips[SHORT] == 2 * FLAGS["mixed"].sum() * SHORT


def test_batches_of_batches():
    flags = np.arange(12).reshape(3, 4) % 5 < 2
    found = Taken(jax.vmap(jax.vmap(either)), (flags, X.reshape(3, 4)))
    assert (len(found.loops), found.branches) == (1, 1), found.told
    assert found.loops[0].trip_count == 12
    assert found.trips[LONG] == flags.sum() * LONG


def test_inside_of_a_loop_that_stays():
    """Its trips mix the batch elements, so none of them has a loop of its own."""

    def function(x):
        def step(_, x):
            return jax.vmap(either)(x > 0, x) - jnp.mean(x)

        return jax.lax.fori_loop(0, 3, step, x)

    found = Taken(function, (X,))
    assert (len(found.loops), found.branches) == (1, 1), found.told


def test_common_work_is_done_once():
    """What a side computes for all elements alike, and what it needs of all elements."""

    def summed(_, t):
        return jnp.sin(jnp.cumsum(t))

    def function(flags, x):
        def one(flag, x):
            def first(x):
                shared = jax.lax.fori_loop(0, SHORT, summed, 0.1 * jnp.arange(70.0))
                return steps(LONG)(x) + shared[3]

            return jax.lax.cond(flag, first, steps(LONGER), x)

        def mixed(x):
            y = jnp.tanh(x)
            return steps(LONG)(y + jnp.sum(y))

        return jax.vmap(one)(flags, x), jnp.where(flags, mixed(x), x)

    found = Taken(function, (FLAGS["mixed"], X))
    assert (len(found.loops), found.branches) == (2, 2), found.told
    assert found.trips[SHORT] == SHORT


def test_whole_batch_in_a_side_on_a_cpu():
    """What an operator over all elements needs stays before the elements that take the side."""

    def function(flags, x):
        y = jnp.tanh(x)
        return (jnp.where(flags, steps(900)(y + jnp.sum(y)), x),)

    flags, x = np.arange(64) % 3 == 0, np.linspace(-1, 1, 64, dtype=np.float32)
    told, program = [], translate(adapter.program(jax.make_jaxpr(function)(flags, x)), "branches")
    after = simplify(recover(simplify(program), remark=told.append))
    verify(after, "placed")
    check_state(interpreted(after, [flags, x]), jax.jit(function)(flags, x))
    assert any(remark.fired for remark in told)


def test_shared_weights_stay_one_product():
    """On either side of a product, with its precision."""
    w = np.eye(3, dtype=np.float32)

    def function(x):
        return jax.vmap(lambda x: jax.lax.cond(x[0] > 0, lambda x: w @ x, lambda x: x @ w, x))(x)

    traced = jax.make_jaxpr(function)(np.ones((12, 3), np.float32))
    plain = narrowed(simplify(translate(adapter.program(traced), "branches")))
    products = [s for s in walk(plain.entry) if is_a(s, "dot")]
    assert len(products) == 2
    for product in products:
        assert [v.type.shape for v in product.inputs] == [(12, 3), (3, 3)]
        assert product["precision"] == "default"


def heavy(x):
    for _ in range(20):
        x = jnp.tanh(jnp.exp(-x * x)) + 0.5
    return x


def test_straight_sides():
    """Real work is worth a branch, and little is not."""

    def light(x):
        return jnp.tanh(x) + jnp.exp(-x)

    def function(side):
        return jax.vmap(lambda x: jax.lax.cond(x > 0, side, lambda x: x, x))

    assert Taken(function(heavy), (X,)).branches == 1
    assert not Taken(function(light), (X,)).changed


def translated(function, *arguments):
    return translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "branches")


def test_the_batch_may_stay_together():
    """Programs whose only work for threads is a branch have both candidates, without any loop as well."""
    x, machine = np.ones(100, np.float32), machine_of(H200)
    together = way(H200.units, elements=False)
    for function in (jax.vmap(lambda x: either(x > 0, x)), lambda x: jnp.where(x > 0, heavy(x), x)):
        assert together in candidates((translated(function, x),), H200.units, machine)
    light = translated(lambda x: jnp.where(x > 0, jnp.tanh(x), x), x)
    assert together not in candidates((light,), H200.units, machine)


def test_a_price_has_both_sides():
    """Lanes of one warp may take different sides."""

    def seconds(function):
        program = translated(jax.vmap(function), np.ones(1000, np.float32))
        emitted = emit(program, machine_of(H200), candidate=Candidate(H200.units))
        assert any(map(by_threads, walk(emitted.program.entry)))
        return gpu_price(emitted.program, H200.units, H200, emitted.plan).seconds

    def branch(first, second):
        return seconds(lambda x: jax.lax.cond(x > 0, steps(first), steps(second), x))

    longer = seconds(steps(800)) - seconds(steps(10))
    assert branch(10, 800) - branch(10, 11) == pytest.approx(longer, rel=0.1)
    assert branch(801, 800) - branch(10, 11) == pytest.approx(2 * longer, rel=0.1)


def weighed(w):
    def one(x):
        def side(x):
            return jax.lax.fori_loop(0, LONG, lambda _, v: jnp.tanh(w @ v), x)

        return jax.lax.cond(jnp.sum(x) > 0, side, lambda x: x, x)

    return jax.vmap(one)


def test_elements_that_share_weights_stay():
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    assert not Taken(weighed(np.eye(3, dtype=np.float32)), (x,)).branches


def test_large_elements_stay():
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    function = jax.vmap(lambda x: either(x[0] > 0, x))
    assert Taken(function, (x,), ElementTuning(fewest=2, numbers=5)).branches
    assert Taken(function, (x,), ElementTuning(fewest=2, numbers=4)).branches  # in memory of the thread
    found = Taken(function, (x,), ElementTuning(fewest=2, numbers=4, local=0))
    assert not found.branches
    assert any("does not fit in registers" in remark.text for remark in found.told)


def test_few_elements_stay():
    assert not Taken(jax.vmap(either), (FLAGS["mixed"], X), ELEMENTS).changed


def test_a_part_that_needs_all_elements():
    """Sorting the batch in every trip cannot be cut, and the remark says so."""

    def function(flags, x):
        return jnp.where(flags, jax.lax.fori_loop(0, LONG, lambda _, v: jnp.sort(v) * 0.9, x), x)

    found = Taken(function, (FLAGS["mixed"], X))
    assert not found.loops
    assert any("both sides run" in remark.text for remark in found.told)


@pytest.mark.one_jax
def test_random_branches():
    found = []

    @settings(EVERY, max_examples=100 if ALL else 4)
    @given(programs(), programs(), st.integers(0, 5))
    def each(first, second, seed):
        def one(flag, *state):
            def side(program, length):
                return lambda *state: random_run((("fori", length, False, program),), state)

            return jax.lax.cond(flag, side(first, 3), side(second, 2), *state)

        states = [initial_state(100 * seed + k) for k in range(4)]
        state = tuple(np.stack(parts) for parts in zip(*states, strict=True))
        flags = np.random.default_rng(seed).integers(2, size=4) > 0
        taken = Taken(jax.vmap(one), (flags, *state), EAGER)
        found.append(taken.branches)

    each()
    assert sum(n > 0 for n in found) >= len(found) // 3, found
