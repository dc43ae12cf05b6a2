"""`python -m benchmarks.census`: its table, and what it says of wrong results."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import jax_cocktail
from benchmarks.census import accuracy, measure
from benchmarks.census.patterns import PATTERNS, Array, Pattern, softmax
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

ONLY = ("softmax 30000", "quantise", "rows of 32")


def test_the_table(tmp_path):
    out = tmp_path / "rows.json"
    arguments = ["--only", *ONLY, "--small", "--seconds", "0.01", "--units", "1", "--out", str(out)]
    text = python(f"from benchmarks.census.__main__ import main; main({arguments!r})")
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [(row["pattern"], row["form"]) for row in rows] == [
        (name, form) for name in ONLY for form in ("straight", "loop")
    ]
    for row in rows:
        assert row["problem"] == "" and f"{row['pattern']:24}{row['form']}" in text
        stock, ours = row["stock"], row["ours"]
        assert ours["kernels"] == 1 and stock["kernels"] >= 1
        assert ours["traffic"] > 0.99 and stock["traffic"] > 0.99  # inputs are read, results written
        assert 0 < ours["seconds"] <= ours["median"] and 0 < stock["seconds"] <= stock["median"]
        assert ours["first"] > ours["median"] and row["predicted"] > 0
    assert rows[0]["stock"]["kernels"] > 1  # of a softmax
    assert rows[1]["stock"]["kernels"] > measure.TRIPS * rows[0]["stock"]["kernels"] - 1  # in the loop
    assert "straight: geometric mean of 3" in text and "loop: geometric mean of 3" in text


def test_our_bytes_are_those_of_the_passes():
    """Two loads of the operand and a store, at least: the sum of squares is known only at the end."""
    pattern = Pattern("scaled", lambda x: x / (x * x).sum(-1, keepdims=True), (Array((0,), (64, 1024)),))
    row = measure.measure(pattern, "straight", 0.0, units=1, small=True)
    assert 1.5 <= row.ours.traffic < 1.51


def test_what_is_not_taken_is_said():
    pattern = Pattern("product", lambda x: x @ x, (Array((0,), (256, 256)),))
    row = measure.measure(pattern, "straight", 0.0, small=True)
    assert row.problem == "NOT TAKEN" and row.ours.kernels == row.stock.kernels == 1


def test_wrong_results_are_said(monkeypatch):
    pattern = PATTERNS["softmax 30000"]

    def wrong(function, **options):
        return jax_cocktail_jit(lambda x: softmax(x) * 1.0001, **options)

    jax_cocktail_jit = jax_cocktail.jit
    monkeypatch.setattr(jax_cocktail, "jit", wrong)
    row = measure.measure(pattern, "straight", 0.0, small=True, traffic=False)
    assert row.problem.startswith("DIFFERS by ")


def test_what_fails_is_said(monkeypatch):
    def failing(function, **options):
        raise ValueError("no such luck\nmore")

    monkeypatch.setattr(jax_cocktail, "jit", failing)
    row = measure.measure(PATTERNS["rows of 32"], "straight", 0.0, small=True)
    assert row.ours is None and row.ratio is None and row.problem == "FAILS: no such luck"


def test_errors():
    x = np.linspace(1, 2, 5, dtype=np.float32)
    exact = x.astype(np.float64)
    none, off = accuracy.error(x, exact), accuracy.error(x * np.float32(1 + 1e-5), exact)
    assert none.largest == none.mean == 0 and 0.5e-5 < off.mean < off.largest < 1.1e-5
    assert off.exceeds(none) and not off.exceeds(off) and not none.exceeds(off)
    assert not accuracy.error(x + np.float32(2**-23), exact).exceeds(none)  # the last bit
    broken = accuracy.error(np.where(x > 1.9, np.nan, x), exact)
    assert broken.exceeds(off) and broken.exceeds(none)
    integers = np.arange(5, dtype=np.int8)
    assert accuracy.error(integers + 1, integers).largest == 0
    assert accuracy.error(integers + 3, integers).exceeds(none)


def test_operands_are_the_same_in_every_run():
    for pattern in PATTERNS.values():
        pairs = zip(*(jax.tree.leaves(pattern.operands(small=True)) for _ in range(2)), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
