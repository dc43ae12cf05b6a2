"""What the CUDA target says of a program besides its text: launch, memory, rounding."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_cocktail.codegen.gpu import TILE_BYTES, launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.plan import LaunchPlan


def emitted(function, *arguments, units=1, spec=H200, threads=128):
    """The only program of a function, for a GPU."""
    (program,) = prepare(jax.make_jaxpr(function)(*arguments), "function").programs
    return emit(program, machine_of(spec, threads), candidate=Candidate(units))


def launched(found):
    return launch_plan(found.program, found.plan, found.machine)


def powers(x, w, precision=None):
    return lax.fori_loop(0, 5, lambda i, x: jnp.tanh(jnp.dot(x, w, precision=precision)), x)


WIDE = jnp.ones((64, 512)), jnp.ones((512, 512))
NARROW = jnp.ones((1, 512)), jnp.ones((512, 512))


@pytest.mark.parametrize(
    ("precision", "rounds"),
    [
        (None, True),
        ("default", True),
        (lax.DotAlgorithmPreset.TF32_TF32_F32, True),
        ("highest", False),
        ("high", False),
        (lax.DotAlgorithmPreset.F32_F32_F32, False),
    ],
)
def test_products_round_only_where_jax_may(precision, rounds):
    text = emitted(lambda x, w: powers(x, w, precision), *WIDE).source
    assert ("CK_TF32" in text) == rounds and "ck_dot_fixed<f32" in text


def test_only_f32_is_rounded():
    halves = [x.astype(jnp.bfloat16) for x in WIDE]
    assert "CK_TF32" not in emitted(powers, *halves).source


def test_the_host_rounds_nothing():
    (program,) = prepare(jax.make_jaxpr(powers)(*WIDE), "function").programs
    assert "CK_TF32" not in emit(program).source


def test_one_block_waits_for_nobody():
    found = emitted(lambda x: lax.fori_loop(0, 9, lambda i, x: jnp.sin(x), x), jnp.ones(300))
    plan = launched(found)
    assert (plan.most_units, plan.cooperative, plan.resident_units) == (1, False, 1)
    assert plan.threads == 128 and f"#define CK_THREADS {plan.threads}" in found.source


def test_units_that_share_work_are_launched_together():
    found = emitted(powers, *WIDE, units=H200.units)
    plan = launched(found)
    assert 1 < plan.most_units <= H200.units and plan.cooperative
    assert f"#define CK_MOST_UNITS {plan.most_units}" in found.source


def test_shared_memory_fits_the_device():
    for spec in (H200, replace(H200, shared_bytes=48 << 10)):
        for arguments in (WIDE, NARROW):
            plan = launched(emitted(powers, *arguments, units=spec.units, spec=spec))
            assert plan.portable_shared_bytes <= plan.resident_shared_bytes <= spec.shared_bytes


def test_weights_that_stay_want_all_units():
    found = emitted(powers, *NARROW, units=H200.units)
    weights = 4 * 512 * 512 // found.plan.most_units
    assert found.plan.resident_bytes >= weights
    assert launched(found).resident_units == launched(found).most_units
    small = emitted(powers, *NARROW, units=H200.units, spec=replace(H200, shared_bytes=12 << 10))
    assert small.plan.resident_bytes < weights


def test_what_does_not_fit_goes_to_the_workspace():
    def sums(x):
        return lax.fori_loop(0, 3, lambda i, x: jnp.cumsum(jnp.sort(x)), x)

    near, far = (emitted(sums, jnp.ones(9000), spec=replace(H200, shared_bytes=n << 10)) for n in (200, 32))
    assert near.plan.own_bytes > far.plan.own_bytes
    assert launched(far).workspace_bytes > far.plan.workspace_bytes > near.plan.workspace_bytes


def test_tiles_are_for_products_of_many_rows():
    assert emitted(powers, *NARROW).plan.template_bytes == BLOCK.small_bytes
    assert emitted(powers, *WIDE).plan.template_bytes == BLOCK.tensor_bytes < TILE_BYTES["dot"]
    with jax.default_matmul_precision("highest"):
        assert emitted(powers, *WIDE).plan.template_bytes == TILE_BYTES["dot"]


def test_launch_plan_travels_as_numbers():
    plan = LaunchPlan(256, 132, 256, 100_000, 8192, 4096, cooperative=True, portable_units=7)
    assert LaunchPlan.from_attribute(plan.attribute) == replace(plan, resident_units=132)
    sized = replace(plan, resident_units=132, sizes=(100, 1 << 40))
    assert sized.attribute[12:] == sized.sizes and LaunchPlan.from_attribute(sized.attribute) == sized
    with pytest.raises(ValueError, match="version"):
        LaunchPlan.from_attribute((0, *plan.attribute[1:]))
    with pytest.raises(ValueError, match="not a launch"):
        replace(plan, resident_units=133)
    near = replace(plan, most_units=16, cluster=True)
    assert LaunchPlan.from_attribute(near.attribute) == replace(near, resident_units=16)
    with pytest.raises(ValueError, match="not a launch"):
        replace(near, resident_units=15)


def test_elements_are_counted_in_32_bits():
    def function(x):
        return lax.fori_loop(0, 2, lambda i, x: x + 1, x)

    large = jax.ShapeDtypeStruct((1 << 16, 1 << 15), jnp.int8)
    (program,) = prepare(jax.make_jaxpr(function)(large), "function").programs
    with pytest.raises(UnsupportedError, match="2147483648 elements"):
        emit(program, machine_of(H200))
    assert "ck_program" in emit(program).source


def test_elements_that_are_in_no_array_count_too():
    def function(y):
        return lax.fori_loop(0, 3, lambda i, s: s * 0.5 + jnp.sum(y[:, None] * s * y[None, :]), 0.0)

    with pytest.raises(UnsupportedError, match="4294967296 elements"):
        emitted(function, jax.ShapeDtypeStruct((1 << 16,), jnp.float32))


def test_long_loops_count_in_64_bits():
    with jax.enable_x64(True):
        found = emitted(lambda x: lax.fori_loop(0, 1 << 33, lambda i, x: jnp.sin(x), x), jnp.ones(3))
    assert "for (i64 " in found.source


def test_threads_are_whole_warps():
    for threads in (0, 31, 48, 2048):
        with pytest.raises(ValueError, match="a block has 32"):
            machine_of(H200, threads)
