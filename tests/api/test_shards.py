"""The programs of parts of a batch compute together what the whole program does, by the interpreter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.vmap.cut import SUM, Uncuttable
from jax_cocktail.schedule.vmap.shards import shard
from tests.generator.programs import program
from tests.generator.tasks import task
from tests.oracle.interpreter.run import run

ROWS, COLUMNS = 4, 6


def translated(function, *arguments):
    return translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "whole")


def together(whole, arguments, axes, parts):
    """The results of all parts, put together, and the axis of each."""
    made = shard(whole, axes, parts)
    verify(made.program)
    found = []
    for number in range(parts):
        pairs = zip(arguments, made.operands, strict=True)
        own = [x if axis is None else np.split(x, parts, axis)[number] for x, axis in pairs]
        found.append(run(made.program, [*own, *([np.int32(number)] if made.numbered else [])]))
    return [joined(axis, values) for axis, *values in zip(made.results, *found, strict=True)], made.results


def joined(axis, values):
    if axis == SUM:
        return sum(values[1:], values[0])
    for other in values[1:] if axis is None else ():
        close(other, values[0], 0)
    return values[0] if axis is None else np.concatenate(values, axis)


def close(mine, wanted, tolerance):
    mine, wanted = (np.asarray(x, np.float64) for x in (mine, wanted))
    np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_random_programs(seed):
    made = program(seed)
    stacked = [np.stack([x, np.roll(x, 1), x, x]) for x in made.arguments()]
    with jax.enable_x64(made.x64), np.errstate(all="ignore"):
        whole = translated(jax.vmap(made.function()), *stacked)
        wanted = run(whole, stacked)
        for parts in (2, 4):
            try:
                found, _ = together(whole, stacked, dict.fromkeys(range(len(stacked)), 0), parts)
            except Uncuttable:  # with arrays without elements, for instance
                continue
            for mine, other, kind in zip(found, wanted, made.kinds, strict=True):
                close(mine, other, 0 if kind.exact else max(made.tolerance, 1e-6))


@pytest.mark.parametrize("seed", range(12))
def test_any_axis_of_random_programs(seed):
    made = task(seed)
    with np.errstate(all="ignore"):
        wanted = run(made.program, made.arguments)
        places = [(n, d) for n, x in enumerate(made.arguments) for d, size in enumerate(x.shape) if size == 2]
        for number, axis in places:
            try:
                found, _ = together(made.program, made.arguments, {number: axis}, 2)
            except Uncuttable:
                continue
            for mine, other, exact in zip(found, wanted, made.exact, strict=True):
                close(mine, other, 0 if exact else max(made.tolerance, 1e-5))


SUMS = {
    "reduction": lambda x: x.sum(0),
    "all": lambda x: x.sum() * 2 / 3 - x.sum(),
    "product": lambda x: x.T @ x,
    "product with a whole one": lambda x: jnp.arange(float(ROWS)) @ x @ jnp.ones((COLUMNS, 2)),
    "movement": lambda x: jnp.pad(x.sum(0).reshape(2, 3).T[::-1, :1], ((1, 2), (0, 0))),
    "joined with zeros": lambda x: jnp.concatenate([x.sum(0), jnp.zeros(2), x[:, :2].sum(0)]),
    "chosen": lambda x: jnp.where(jnp.arange(COLUMNS) > 2, x.sum(0), jnp.zeros(COLUMNS)),
    "scattered": lambda x: jnp.zeros((3, COLUMNS)).at[jnp.arange(ROWS) % 3].add(x),
    "filters": lambda x: lax.conv_general_dilated(
        x.reshape(1, ROWS, COLUMNS), x.reshape(1, ROWS, COLUMNS)[..., :3], (1,), "VALID"
    ),
    "narrowed": lambda x: x.sum(0).astype(jnp.bfloat16).astype(jnp.float32),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_parts(name):
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    whole = translated(SUMS[name], x)
    found, axes = together(whole, [x], {0: 0}, 2)
    assert axes == (SUM,)
    close(found[0], run(whole, [x])[0], 3e-2 if name == "narrowed" else 1e-5)


def test_sums_over_iterations():
    def function(x, w):
        def step(carry, row):
            total, table = carry
            h = jnp.tanh(row @ w)
            return (total + row.T @ h, table.at[1].add(h.sum(0))), h.sum(0)

        return lax.scan(step, (jnp.zeros((3, 3)), jnp.zeros((2, 3))), x)

    generator = np.random.default_rng(1)
    x, w = (generator.standard_normal(s).astype(np.float32) for s in ((5, ROWS, 3), (3, 3)))
    whole = translated(function, x, w)
    found, axes = together(whole, [x, w], {0: 1}, 2)
    assert axes == (SUM,) * 3
    for mine, wanted in zip(found, run(whole, [x, w]), strict=True):
        close(mine, wanted, 1e-5)


REFUSED = {
    "largest": lambda x: x.max(0),
    "a sum and another value": lambda x: x.sum(0) + 1,
    "a function of a sum": lambda x: jnp.sqrt(x.sum(0)),
    "a product of sums": lambda x: x.sum(0) * x.sum(0),
    "a product with parts": lambda x: x.sum(0) * x,
    "rows that meet": lambda x: x[1:] * x[:-1],
    "scattered to others": lambda x: x.at[jnp.arange(ROWS) % 3].set(1.0),
    "added to other values": lambda x: jnp.ones((3, COLUMNS)).at[jnp.arange(ROWS) % 3].add(x),
    "a sum from ones": lambda x: lax.fori_loop(0, 3, lambda i, t: t + x.sum(0), jnp.ones(COLUMNS)),
    "whole updates of sums": lambda x: jnp.zeros(COLUMNS).at[jnp.arange(2)].add(jnp.ones(2)) + x.sum(0),
    "a count of a loop": lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
    "a choice": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "divided by what may be zero": lambda x: x.sum(0) / lax.optimization_barrier(jnp.arange(COLUMNS) * 0.0),
    "batches added to a sum": lambda x: jax.vmap(lambda t, i, u: t.at[i].add(u))(
        jnp.ones((ROWS, ROWS)) @ x, jnp.arange(ROWS) % 3, x[:, 0]
    ),
    "integers of sums": lambda x: x.sum(0).astype(jnp.int32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_parts_is_refused(name):
    x = np.ones((ROWS, COLUMNS), np.float32)
    with pytest.raises(Uncuttable, match="needs values of all devices"):
        shard(translated(REFUSED[name], x), {0: 0}, 2)
    shard(translated(jax.vmap(REFUSED[name], 2, 0), x[..., None] + np.zeros(2, np.float32)), {0: 2}, 2)
