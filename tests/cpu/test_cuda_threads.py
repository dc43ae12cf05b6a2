"""Whole programs on blocks of several sizes, or with a function for every lane loop, against stock."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail_tools.models import MODELS, largest_difference
from tests.cpu.emulated import Emulation
from tests.cpu.runner import EAGER

KERNELS = ("ck_resident", "ck_portable")


def run(monkeypatch, function, arguments, units, **how):
    """Both kernels' results, and what was launched."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], **how).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": units})
    found = []
    for emulation.kernel in KERNELS:
        with jax.default_matmul_precision("highest"):
            found.append(ours(*arguments))
    return found, emulation.launches


@pytest.mark.parametrize("threads", [128, 512])
@pytest.mark.parametrize("name", ["attention", "blockdrop", "nasrnn", "rae"])
def test_models(name, threads, monkeypatch):
    model = MODELS[name]
    function, arguments = model.make(model.batches[0], small=True)
    stock = jax.jit(function)(*arguments)
    found, launches = run(monkeypatch, function, arguments, 2, threads=threads)
    assert all(largest_difference(each, stock) <= model.tolerance for each in found)
    assert all(f"#define CK_THREADS {threads}\n" in emitted.source for emitted, _, _ in launches)


@pytest.mark.parametrize(
    ("name", "sanitizer"), [("lstm", "address"), ("skipnet", None), ("blockdrop", "thread")]
)
def test_models_of_functions(name, sanitizer, monkeypatch):
    model = MODELS[name]
    function, arguments = model.make(model.batches[0], small=True)
    stock = jax.jit(function)(*arguments)
    found, launches = run(monkeypatch, function, arguments, 2, outline_limit=0, sanitizer=sanitizer)
    assert all(largest_difference(each, stock) <= model.tolerance for each in found)
    (source,) = {emitted.source for emitted, _, _ in launches}
    assert "ck_far(x" in source and "outlined0<RESIDENT>(" in source


def steps(x, y):
    """Loops in place, with a remainder, with two results, along a slice, and of constants."""

    def body(k, state):
        a, b, table = state
        a = jnp.sin(a) + b * 0.5
        b = jnp.where(a > b, b + 1.0, b - 1.0)
        row = jax.lax.dynamic_slice(table, (k, 0), (1, table.shape[1])) * 2.0 + a[: table.shape[1]]
        table = jax.lax.dynamic_update_slice(table, row, ((k + 1) % 3, 0))
        return a, b, table

    return jax.lax.fori_loop(0, 5, body, (x, y, jnp.ones((3, 650), x.dtype)))


@pytest.mark.parametrize(
    ("threads", "sanitizer", "outline_limit"),
    [(32, "thread", 32), (64, "address", 0), (64, "thread", 0), (128, None, 32), (512, None, 32)],
)
def test_batches_of_positions(threads, sanitizer, outline_limit, monkeypatch):
    """What several positions of a loop need is loaded before any of them is stored: they are independent."""
    x, y = np.random.default_rng(0).normal(size=(2, 1333)).astype(np.float32)
    stock = jax.jit(steps)(x, y)
    how = {"threads": threads, "sanitizer": sanitizer, "outline_limit": outline_limit}
    found, launches = run(monkeypatch, steps, (x, y), 1, **how)
    for each in found:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), each, stock)
    sizes = re.findall(r"f32 h\d+\[(\d)\];", launches[0][0].source)
    assert bool(sizes) == (2 * threads <= 1333)


def short_rows(x):
    """Totals of what each warp reduces for itself, between loops over the same elements."""

    def body(k, x):
        shifted = jnp.exp(x - jnp.max(x))
        total = jnp.sum(shifted)
        return jnp.sin(shifted / total + jnp.argmin(shifted) * jnp.float32(0.01) + k)

    return jax.lax.fori_loop(0, 5, body, x)


@pytest.mark.parametrize(("threads", "sanitizer"), [(32, None), (96, "thread"), (256, "address")])
@pytest.mark.parametrize("size", [33, 64, 65])
def test_every_warp_reduces_a_short_row(size, threads, sanitizer, monkeypatch):
    x = np.random.default_rng(1).normal(size=size).astype(np.float32)
    stock = jax.jit(short_rows)(x)
    found, launches = run(monkeypatch, short_rows, (x,), 1, threads=threads, sanitizer=sanitizer)
    for each in found:
        np.testing.assert_allclose(each, stock, rtol=1e-5, atol=1e-6)
    groups = set(re.findall(r"ck_group_reduce<(\d+),", launches[0][0].source))
    assert groups == {str(32 if size <= 64 else threads)}


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_rows_are_copied_whole(sanitizer, monkeypatch):
    """A carry begins as part of an array, whose rows have no gaps."""

    def rows(x, k):
        return jax.lax.fori_loop(0, 3, lambda i, y: y.at[i].add(y[k]), x[:, 8:520])

    x = np.random.default_rng(2).normal(size=(5, 700)).astype(np.float32)
    stock = jax.jit(rows)(x, 1)
    found, launches = run(monkeypatch, rows, (x, 1), 1, sanitizer=sanitizer)
    for each in found:
        np.testing.assert_allclose(each, stock, rtol=1e-6)
    assert re.search(r"ck_copy\(&.*700 \* i0", launches[0][0].source)
