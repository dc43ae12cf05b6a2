"""One program for a GPU serves many lengths of a sequence, too: on the emulation, and as it is lowered."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.lowering.state import collecting
from jax_cocktail.memory import MEMORY
from jax_cocktail_tools.models.nasrnn import nasrnn
from tests.cpu.cuda_text import NO_NVCC, NVCC
from tests.cpu.emulated import KERNELS, SPEC, Emulation, array
from tests.cpu.runner import EAGER

HIDDEN = 16
SMALL = replace(SPEC, shared_bytes=38 << 10)  # blocks without room for whole sequences


def lstm(xs, w, u, reverse=False):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], HIDDEN))
    return lax.scan(step, (zero, zero), xs, reverse=reverse)


def decay(xs):
    return lax.scan(lambda c, x: (0.9 * c + x, jnp.tanh(c)), jnp.zeros(xs.shape[1:]), xs)


def recurrence(xs, u):
    """The mean needs the length as a number, and the last product the rows of all steps."""
    state, ys = lax.scan(lambda h, x: (jnp.tanh(x + h @ u), h), jnp.zeros(xs.shape[1:]), xs)
    return state, jnp.mean(ys, axis=0), ys.reshape(-1, HIDDEN) @ u


def wide(xs, u):
    return lax.scan(lambda h, x: (jnp.tanh(x + h @ u), h), jnp.zeros(xs.shape[1:]), xs)


def last(xs, u):
    """Each unit keeps the steps of its rows for itself, and takes the last one."""
    return wide(xs, u)[1][-1]


def hoisted(xs, w, u):
    """A product that leaves the loop: its results for all steps lie in the workspace."""
    return lax.scan(lambda h, x: (jnp.tanh(x @ w + h @ u), h), jnp.zeros(xs.shape[1:]), xs)


def along_columns(xs, w):
    """A product whose columns are the steps."""
    return decay(xs)[1][:, 0], w @ xs.reshape(-1, HIDDEN).T


def batch(steps, rows=3):
    return array(steps, steps, rows, HIDDEN)


PROGRAMS = {
    "lstm": (lstm, lambda n: (batch(n), array(1, HIDDEN, 4 * HIDDEN), array(2, HIDDEN, 4 * HIDDEN))),
    "reverse": (
        lambda *given: lstm(*given, reverse=True),
        lambda n: (batch(n), array(1, HIDDEN, 4 * HIDDEN), array(2, HIDDEN, 4 * HIDDEN)),
    ),
    "wide": (wide, lambda n: (array(n, n, 1, 64), array(2, 64, 64))),
    "last": (last, lambda n: (batch(n, 4), array(2, HIDDEN, HIDDEN))),
    "hoisted": (hoisted, lambda n: (array(n, n, 1, 64), array(1, 64, 64), array(2, 64, 64))),
    "decay": (decay, lambda n: (batch(n),)),
    "recurrence": (recurrence, lambda n: (batch(n), array(2, HIDDEN, HIDDEN))),
    "along columns": (along_columns, lambda n: (batch(n, 1), array(2, 12, HIDDEN))),
}


def emulated(monkeypatch, name, lengths, units, **how):
    """What is emitted of a function for several lengths. Each equals stock XLA in both kernels."""
    function, make = PROGRAMS[name]
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], spec=SMALL, **how).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    ours = jax_cocktail.jit(function, options=options)
    found = []
    for length in lengths:
        given = make(length)
        with jax.default_matmul_precision("highest"):
            stock = jax.jit(function)(*given)
            for emulation.kernel in KERNELS:
                for x, y in zip(jax.tree.leaves(ours(*given)), jax.tree.leaves(stock), strict=True):
                    np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
        found.append(emulation.launches[-1][0])
    return found


@pytest.mark.parametrize(
    ("name", "lengths", "units"),
    [
        ("lstm", (33, 40, 71), 1),
        ("reverse", (20, 37), 1),
        ("decay", (9, 50), 1),
        ("wide", (33, 47), 4),
        ("hoisted", (32, 64), 4),
        ("last", (700, 733), 2),
        ("along columns", (35, 60), 1),
    ],
)
def test_one_text_serves_several_lengths(name, lengths, units, monkeypatch):
    programs = emulated(monkeypatch, name, lengths, units, distribute=name in ("hoisted", "wide", "last"))
    assert len({each.source for each in programs}) == 1
    for length, each in zip(lengths, programs, strict=True):
        assert length in each.sizes and "#define CK_SIZES" in each.source


@pytest.mark.parametrize("lengths", [(11, 12), (130, 140)], ids=["few rows", "many rows"])
def test_rows_of_a_product(lengths, monkeypatch):
    """All steps at once, in blocks of rows of which the last begins where it ends."""
    programs = emulated(monkeypatch, "recurrence", lengths, 1)
    assert len({each.source for each in programs}) == 1
    assert all("ck_dot_rows<" in each.source for each in programs)


def test_places_in_memory_of_units(monkeypatch):
    """Own memory comes in front of what follows from lengths, also if that belongs to single units alone."""
    for each in emulated(monkeypatch, "last", (700, 733), 2, distribute=True, sanitizer="address"):
        spaces = {slot.space for slot in each.plan.slots.values()}
        assert "private" in spaces and "workspace" not in spaces
        assert "#define CK_SHARED_BYTES 0" in each.source


def test_sanitized(monkeypatch):
    """Launches in a process of their own get the launch parameters as well."""
    emulated(monkeypatch, "recurrence", (11,), 2, sanitizer="thread")


def test_the_device_compiler_runs_once(monkeypatch, tmp_path):
    if not NVCC:
        pytest.skip(NO_NVCC)
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("compiled", "resized"):
        monkeypatch.setattr(MEMORY.counts, name, 0)
    ours = jax_cocktail.jit(decay, options={"force": "cocktail", "strict": True, "units": 1})
    launches = set()
    for length in (40, 56, 90):
        with collecting() as reports:
            text = ours.trace(batch(length)).lower(lowering_platforms=("cuda",)).as_text()
        ((told, _),) = reports[0].captured[0].lengths
        assert told == length
        launches.add(text.partition("launch = dense<[")[2].partition("]>")[0])
        assert f", {length}" in text
    info = jax_cocktail.cache_info()
    assert (info.compiled, info.resized, len(launches)) == (1, 2, 3)


@pytest.mark.all_candidates
def test_equal_grids_of_different_lengths():
    """A product of all steps is divided along them: positions and lengths of the parts are sizes as well."""
    sources = set()
    for length in (800, 808):
        weights = array(1, 256, 2048), array(2, 256, 2048)
        prepared = prepare(jax.make_jaxpr(nasrnn)(array(3, length, 1, 256), *weights), "", machine_of(H200))
        emitted = prepared.emitted[survey(prepared, H200.units).best.candidate, 0]
        assert length in emitted.sizes
        sources.add(emitted.source)
    assert len(sources) == 1


def test_more_trips_than_32_bits_count():
    def function(x):
        return lax.scan(lambda c, _: (jnp.sin(c + 1), None), x, None, length=3_000_000_000)[0]

    prepared = prepare(jax.make_jaxpr(function)(array(1, 4)), "", machine_of(H200))
    emitted = prepared.emitted[survey(prepared, H200.units).best.candidate, 0]
    assert emitted.sizes == (3_000_000_000,)
    assert "const i64 size0 = unit->sizes[0];" in emitted.source
