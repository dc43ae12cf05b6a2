"""Every primitive and dtype on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

from math import prod

import jax
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.buckets import check_bucket, chosen
from tests.case import QUICK
from tests.cpu.emulated import Emulation


@pytest.mark.sampled(32)
@pytest.mark.parametrize("cases, x64", chosen())
def test_bucket(cases, x64, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    with jax.default_matmul_precision("highest"):
        check_bucket(cases, x64, QUICK)
    assert emulation.launches


WINDOWS = {  # where they begin, and their shape
    "that overlap": ([[2, 0], [1, 1], [2, 0]], (3, 4)),
    "that are rows": ([[2, 0], [5, 0], [2, 0]], (1, 6)),
    "of which there is one": ([[5, 1]], (3, 4)),
}


@pytest.mark.parametrize("windows", WINDOWS)
def test_threads_do_not_race_for_windows(windows, monkeypatch):
    """Scatters in which threads share windows, and one in which they cannot."""
    (places, window), rows = WINDOWS[windows], windows == "that are rows"
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    if rows:
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    x, expected = np.ones((8, 6), np.float32), np.ones((8, 6), np.float32)
    updates = np.arange(len(places) * prod(window), dtype=np.float32).reshape(len(places), *window)
    for (i, j), update in zip(places * 2, [*updates, *updates], strict=True):
        expected[i : i + window[0], j : j + window[1]] += update
    emulation = Emulation(launches=[], sanitizer="thread").install(monkeypatch)
    add = lambda y, *rest: lax.scatter_add(y, *rest, numbers)  # noqa: E731
    twice = lambda x, *rest: lax.fori_loop(0, 2, lambda _, y: add(y, *rest), x)  # noqa: E731
    ours = jax_cocktail.jit(twice, options={"force": "cocktail", "strict": True})
    given = updates[:, 0] if rows else updates
    np.testing.assert_array_equal(ours(x, np.array(places, np.int32), given), expected)
    assert emulation.launches
