"""The cost model against the records of cards that it was fitted to, and the files that this takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import fit as model
from benchmarks.gpu.fit import FURTHEST, Fitted, fit, fitted, tau
from benchmarks.gpu.kernels import Kernels, Measured, load, measured, path_of, spec_of, store
from jax_cocktail.cost.gpu import kernel_spent
from jax_cocktail.cost.latency import clocks
from jax_cocktail.device import templates
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.templates import FIRST, GENERATIONS
from jax_cocktail.device.tuning import MODEL

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# A record is held to the model once `gpu_check.py --fit` has written its kernels beside it.
RECORDS = [path for path in sorted(RESULTS.glob("gpu_check_*.json")) if path_of(path).exists()]
BY_NAME = pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)


@BY_NAME
def test_the_model_fits(path, capsys):
    assert fit(path) == 0, capsys.readouterr().out
    rows = json.loads(path.read_text())["sections"]["times"]
    said = capsys.readouterr().out
    assert all(row in said for row, record in rows.items() if "kernel" in record)


@BY_NAME
def test_nearly_all_of_a_prediction_is_latency(path):
    """The rates alone, which were once the model, say far less than what was measured."""
    record = json.loads(path.read_text())
    free = replace(FIRST, **dict.fromkeys(FIRST.__slots__, 0.0))
    spec, kernels = spec_of(record), load(path_of(path))
    for each in measured(record):
        alone = sum(kernel_spent(k, spec, free, 16).seconds for k in kernels.plans[each.row][each.plan])
        assert alone < 0.7 * each.seconds, each


@BY_NAME
def test_plans_of_one_program_are_ranked(path):
    """What is not measured takes the plan with the least predicted time: it must not be the slower by far."""
    found = fitted(path, json.loads(path.read_text()))
    for each in found:
        for other in found:
            (slow, slower), (fast, faster) = ((x.measured.row, x.measured.seconds) for x in (each, other))
            if slow == fast and slower > 1.5 * faster:
                assert each.predicted > other.predicted, (each, other)


@BY_NAME
def test_other_templates_do_not_fit(path, monkeypatch, capsys):
    slower = replace(FIRST, mma_word=4 * FIRST.mma_word, operation=4 * FIRST.operation)
    monkeypatch.setitem(templates.GENERATIONS, load(path_of(path)).generation, slower)
    assert fit(path) == 1
    assert f"beyond {FURTHEST}" in capsys.readouterr().out


@BY_NAME
def test_kernels_survive_their_file(path, tmp_path):
    kernels = load(path_of(path))
    store(kernels, tmp_path / "again.json")
    assert load(tmp_path / "again.json") == kernels
    assert (tmp_path / "again.json").read_text() == path_of(path).read_text()


def test_tau_counts_pairs():
    def case(*pairs):
        return tau(pairs)

    assert case((1, 1), (2, 2), (3, 3)) == 1
    assert case((3, 1), (2, 2), (1, 3)) == -1
    assert case((1, 1), (3, 2), (2, 3)) == pytest.approx(1 / 3)


def test_trips_of_a_plan():
    """Those of the row, unless plans differ in them."""
    kernels = Kernels("first", {"one": 7, "two, 132 units": 171, "two": 261}, {})
    assert kernels.trips_of("one", "132 units") == 7
    assert kernels.trips_of("two", "132 units") == 171 and kernels.trips_of("two", "1 unit") == 261
    assert kernels.trips_of("three", "1 unit") == MODEL.unknown_trips


def test_a_kernel_fits_within_the_factor():
    def fits(predicted, alone=True):
        return Fitted(Measured("row", "plan", 1.0, alone), predicted).fits

    assert fits(FURTHEST) and fits(1 / FURTHEST)
    assert not fits(1.5) and not fits(0.7)
    assert fits(5.0, alone=False)


@pytest.mark.parametrize("threads", [64, 128, 512, 1024])
def test_larger_blocks_take_longer_turns(threads):
    """Of the same counts, more warps make no link shorter; fewer warps none longer, and a link that does not
    depend on them stays."""
    usual, sized = FIRST.sized(256), FIRST.sized(threads)
    assert usual == FIRST and (FIRST.sized(64) == FIRST.sized(128))
    for name in FIRST.__slots__:
        one, other = getattr(usual, name), getattr(sized, name)
        assert one <= other if threads > 256 else other <= one
    assert sized.line == FIRST.line and sized.publish == FIRST.publish
    assert (sized.gemv - FIRST.gemv) * (threads - 256) > 0
    assert (sized.reduction > FIRST.reduction) == (threads > 256)


def test_warps_of_other_blocks_issue_as_well():
    """They take turns as those of one large block do, and exchange nothing with it."""
    many, one, large = FIRST.sized(32, 16), FIRST.sized(32), FIRST.sized(512)
    assert (many.round, many.operation) == (large.round, large.operation) and many.round > one.round
    assert (many.reduction, many.stage) == (one.reduction, one.stage)
    assert FIRST.of_one_warp().reduction < FIRST.reduction


def test_every_figure_of_a_generation_counts():
    """A name that nothing counts would be a figure that nobody can be wrong about."""
    one = {name: clocks({name: 1.0}, FIRST, H200) for name in FIRST.__slots__}
    assert all(value > 0 for value in one.values())
    assert one["serial_load"] == FIRST.serial_load * H200.far_clocks
    counted = set()
    for path in RECORDS:
        text = path_of(path).read_text()
        counted |= {name for name in FIRST.__slots__ if f'"{name}"' in text}
    priced = {"foreign", "publish", "words"}  # of units, not of statements
    unmeasured = {"box_clock"}  # of templates that no card has run
    assert counted | priced | unmeasured == set(FIRST.__slots__)
    assert model.LEAST_TAU <= 1 and set(GENERATIONS) >= {"first"}


def test_what_is_measured_of_a_pack():
    """Exact products and timelines are other programs than those of a plan."""
    spec = {"launch_seconds": 1e-6}
    programs = {"a": "best", "b": "other", "a, exact": "exact", "a, traced": "traced"}
    kernels = {name: {"phase": phase, "seconds": 5e-6} for name, phase in programs.items()}
    sections = {"measure": {"card": {"spec": spec, "figures": {}}}, "kernels": {"row": kernels}}
    found = list(measured({"sections": sections}))
    assert [(each.plan, each.alone) for each in found] == [("a", True), ("b", True)]
    assert all(abs(each.seconds - 4e-6) < 1e-12 for each in found)
