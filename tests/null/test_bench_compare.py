"""Results of `bench`: intervals, files, comparisons, and the page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re

import numpy as np
import pytest

from benchmarks import targets
from jax_cocktail_tools.commands import compare, page, result
from jax_cocktail_tools.commands.intervals import Interval, median_interval, ratio_interval
from jax_cocktail_tools.commands.machine import MachineFacts
from jax_cocktail_tools.commands.problem import Problem
from jax_cocktail_tools.commands.result import Ceilings, Curve, Result, Row, Step, Timing

MACHINE = MachineFacts("a processor", 4, 8, None, 0.5, 8 << 30, None, None, "Linux")


def interval(middle: float, spread: float = 0.1) -> Interval:
    return Interval(middle, middle - spread * middle, middle + spread * middle)


def row(model: str = "lstm", ratio: float = 2.0, **changes: object) -> Row:
    times = [
        Timing(interval(each), (each * 0.9, each * 1.2), 1.5) for each in (1e-3, 1e-3 / ratio, 1e-3 / ratio)
    ]
    made = Row(
        model=model,
        batch=1,
        description="an <LSTM>",
        captured="1 of 1",
        choice="cocktail",
        difference=1e-7,
        tolerance=1e-5,
        stock=times[0],
        ours=times[1],
        auto=times[2],
        ratio=interval(ratio),
        auto_ratio=interval(ratio),
        rounds=100,
        others=0.0,
        units=2,
        flops=1e6,
        bytes=4e5,
    )
    return dataclasses.replace(made, **changes)


def bench(*rows: Row, **changes: object) -> Result:
    versions = {"jax": "0.10.2", "C++ compiler": "g++"}
    steps = tuple(Step(at, interval(2e-3), interval(1e-3 / at)) for at in (1, 2, 4))
    made = Result(
        made="2026-01-01T00:00:00+00:00",
        versions=versions,
        machine=MACHINE,
        devices=("cpu: cpu",),
        settings={"sizes": "full"},
        rows=rows,
        curves=(Curve("lstm", "units", steps), Curve("lstm", "batch", steps[:1])),
        ceilings=Ceilings(1e11, {"L2 cache": 2e11, "memory": 2e10}, "measured"),
    )
    return dataclasses.replace(made, **changes)


# ---- intervals ---------------------------------------------------------------------------------------------


def test_intervals_hold_the_true_ratio_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        common = random.lognormal(0.0, 0.5, 60)  # what slows a round slows both
        stock, ours = (common * scale * random.lognormal(0.0, 0.05, 60) for scale in (3.0, 2.0))
        found = ratio_interval(stock, ours)
        assert found.low <= found.middle <= found.high
        held += found.low <= 1.5 <= found.high
    assert held >= 85


def test_intervals_are_reproducible_and_shrink() -> None:
    random = np.random.default_rng(2)
    many, ours = random.normal(3.0, 0.3, 400), random.normal(1.0, 0.1, 400)
    wide, narrow = ratio_interval(many[:20], ours[:20]), ratio_interval(many, ours)
    assert narrow == ratio_interval(many, ours)
    assert narrow.high - narrow.low < wide.high - wide.low
    assert median_interval([2.0]) == Interval(2.0, 2.0, 2.0)


def test_slow_phases_widen_an_interval() -> None:
    phases = np.repeat([1.0, 2.0] * 5, 10)
    mixed = np.random.default_rng(3).permutation(phases)
    widths = [found.high - found.low for found in (median_interval(phases), median_interval(mixed))]
    assert widths[0] >= widths[1]


@pytest.mark.parametrize("pair", [([], []), ([1.0], [1.0, 2.0])])
def test_samples_must_be_pairs(pair) -> None:
    with pytest.raises(ValueError, match="make no ratio"):
        ratio_interval(*pair)


# ---- files -------------------------------------------------------------------------------------------------


def test_a_result_is_read_as_it_was_written(tmp_path) -> None:
    found = bench(row(), row("rae", 0.5), ceilings=None)
    path = tmp_path / "a.json"
    path.write_text(result.to_json(found))
    assert result.read(path) == found
    path.write_text(result.to_json(bench(row())))
    assert result.read(path) == bench(row())


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda d: d.update(schema="other"), "has the schema 'other'"),
        (lambda d: d.pop("versions"), "result lacks the field 'versions'"),
        (lambda d: d["rows"][0].pop("ratio"), r"rows\[0\] lacks the field 'ratio'"),
        (lambda d: d["rows"][0]["ratio"].update(low="x"), r"rows\[0\].ratio.low: 'x' is not of type float"),
        (
            lambda d: d["rows"][0]["ours"].update(quartiles=[1.0]),
            r"rows\[0\].ours.quartiles: 1 items in place of 2",
        ),
        (lambda d: d.update(machine=3), "machine: 3 is no record"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, change, said) -> None:
    data = json.loads(result.to_json(bench(row())))
    change(data)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    with pytest.raises(Problem, match=said):
        result.read(path)


@pytest.mark.parametrize("difference", [math.inf, math.nan])
def test_wrong_results_can_be_read(tmp_path, difference) -> None:
    path = tmp_path / "a.json"
    path.write_text(result.to_json(bench(row(difference=difference))))
    (found,) = result.read(path).rows
    assert found.wrong


def test_files_that_are_none(tmp_path) -> None:
    with pytest.raises(Problem, match="cannot be read"):
        result.read(tmp_path / "none.json")
    path = tmp_path / "a.json"
    for text in ("no json", "[1]"):
        path.write_text(text)
        with pytest.raises(Problem, match="is not JSON|has the schema None"):
            result.read(path)


# ---- comparisons -------------------------------------------------------------------------------------------


def run(tmp_path, before: Result, after: Result, *words: str) -> int:
    """The exit status."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, found in zip(paths, (before, after), strict=True):
        path.write_text(result.to_json(found))
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.main(parser.parse_args([*map(str, paths), *words]))


def test_changes_beyond_the_noise_are_told_from_noise(tmp_path, capsys) -> None:
    before = bench(row("same", 2.0), row("slow", 2.0), row("fast", 2.0), row("old"))
    after = bench(row("same", 2.1), row("slow", 1.0), row("fast", 4.0), row("new"))
    assert run(tmp_path, before, after) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["same/1"].endswith("1.05  within the noise")
    assert lines["slow/1"].endswith("0.50  slower") and lines["fast/1"].endswith("2.00  faster")
    assert lines["old/1:"] == "old/1: only in A" and lines["new/1:"] == "new/1: only in B"


def test_status_says_whether_something_got_slower(tmp_path, capsys) -> None:
    before, slower = bench(row(ratio=2.0)), bench(row(ratio=1.0))
    assert run(tmp_path, before, slower, "--fail-slower", "5") == 1
    assert "slower by more than 5 %: lstm/1" in capsys.readouterr().out
    assert run(tmp_path, before, slower, "--fail-slower", "150") == 0, "the time grew by 100 %"
    assert run(tmp_path, slower, before, "--fail-slower", "5") == 0, "faster"
    assert run(tmp_path, before, bench(row(ratio=1.9)), "--fail-slower", "1") == 0, "noise"


def test_times_can_be_compared_too(tmp_path, capsys) -> None:
    slow = row(ratio=2.0, ours=Timing(interval(1e-2), (1e-2, 1e-2), 1.0))
    assert run(tmp_path, bench(row(ratio=2.0)), bench(slow), "--by", "time", "--fail-slower", "5") == 1
    assert run(tmp_path, bench(row(ratio=2.0)), bench(slow), "--fail-slower", "5") == 0
    assert "0.05  slower" in capsys.readouterr().out


def test_what_else_differs_is_said() -> None:
    other = bench(
        row(others=0.4),
        versions={"jax": "0.11.0", "C++ compiler": "g++", "numpy": "2.0"},
        machine=dataclasses.replace(MACHINE, cores=2),
        settings={"sizes": "full", "JAX_COCKTAIL_UNITS": "1"},
    )
    assert [*compare.differing(bench(row()), bench(row()))] == []
    assert [*compare.differing(bench(row()), other)] == [
        "version of jax: 0.10.2 in A, 0.11.0 in B",
        "version of numpy: none in A, 2.0 in B",
        "cores: 4 in A, 2 in B",
        "setting JAX_COCKTAIL_UNITS: none in A, 1 in B",
        "B was measured while other processes held up to 40% of the cores",
    ]


# ---- targets -----------------------------------------------------------------------------------------------


def by_hand(**seconds: float) -> dict[str, Timing]:
    return {how: Timing(interval(each), (each, each), 1.0) for how, each in seconds.items()}


def test_stock_xla_counts_at_its_best() -> None:
    """Of all that was written by hand but what is another program, and of all settings."""
    one = bench(row("lstm", 5.0, by_hand=by_hand(hoisted=6e-4, distributed=5e-4)), row("unknown"))
    (best,) = targets.judged([one])
    assert (best.how, best.ratio, best.to_distributed) == ("hoisted", pytest.approx(3.0), pytest.approx(2.5))
    assert best.share_of_must == pytest.approx(0.6) and " missed " in str(best)
    assert best.share == pytest.approx(targets.WANTED["lstm/1"].limit(one.ceilings) / 2e-4)
    other = bench(row("lstm", 2.0), settings={"sizes": "full", "XLA_FLAGS": "--flag"})
    (best,) = targets.judged([one, other])
    assert (best.how, best.ratio) == ("stock, --flag", pytest.approx(2.0))


def test_stock_xla_by_both_names_is_as_fast() -> None:
    for ratio, counted in ((0.98, 1.0), (0.9, 0.9)):
        (best,) = targets.judged([bench(row("blockdrop", ratio, choice="stock"))])
        assert best.ratio == pytest.approx(counted)


def test_targets_bound_the_worst_row() -> None:
    found = bench(row("tiny_conds", 2.5), row("rae", 0.99), row("empty_call", 0.5))
    calls = [{"call": "a", "stock": 1.0, "wrapper": 2.5}]
    calls.append({"call": "of programs of ours", "stock": 1.0, "wrapper": 9.0, "ours": 1.0})
    first = [{"row": "rae/1", "stock": {"first": 1.0}, "first": {"first": 2.0}, "next": {"first": 1.2}}]
    told = {each.name: str(each) for each in targets.targets(found, targets.judged([found]), calls, first)}
    ends = {
        "models, as jit runs them: stock / auto": "0.990  met (rae/1)",
        "tiny conds: stock / ours": "2.500  missed (tiny_conds/1)",
        "skipped conds: stock / ours": "-  not measured",
        "call overhead": "1.500  met (a)",
        "first call, above stock": "1.000  met (rae/1)",
        "first call of a second process, above stock": "0.200  missed (rae/1)",
    }
    assert {name: told[name][-len(end) :] for name, end in ends.items()} == ends


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_page_has_everything_and_needs_nothing() -> None:
    text = page.page(bench(row(), row("rae", 0.5, difference=1.0, others=0.5)))
    assert text.count("<svg") == 3, "bars, roofline, and the curve with more than one point"
    assert "an &lt;LSTM&gt;" in text and "(wrong)" in text
    assert "other processes held up to 50% of the cores during 1 of 2 rows" in text
    assert "0.10.2" in text and "200 GB/s" in text and "a processor" in text
    assert "by hand" not in text
    assert "lstm/1 by hand, loop: 2.000 ms" in page.page(bench(row(by_hand=by_hand(loop=2e-3))))
    assert not re.search(r"<script|<link|@import|url\(|src=|href=", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_says_if_the_rates_are_too_low() -> None:
    rates = Ceilings(1e11, {"memory": 2e10}, "measured")
    said = "The rates are too low: other processes held 30% of the cores"
    assert said in page.page(bench(row(), ceilings=dataclasses.replace(rates, others=0.3)))
    assert said[:22] not in page.page(bench(row(), ceilings=rates))


def test_the_page_leaves_out_what_is_not_known() -> None:
    text = page.page(bench(row(flops=0.0), ceilings=None, curves=()))
    assert "Roofline" not in text and "Scaling" not in text and text.count("<svg") == 1
    assert "Nothing was measured." in page.page(bench())


def test_small_models_are_no_benchmark() -> None:
    (said,) = result.remarks(bench(row(), settings={"sizes": "small"}))
    assert said.startswith("These are tiny models")
