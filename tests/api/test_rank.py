"""The cost models of the host against the committed records of measured times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.rank import __main__ as command
from benchmarks.rank.predict import MODELS, Entry, entries, ranks
from benchmarks.rank.record import Record, Row, merged, read
from jax_cocktail.lowering.choice.decisions import STOCK
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORDS = sorted(RESULTS.glob("rank_*.json"))
# The least tau over our rows, over stock XLA's and over the choices of a case, and the largest overestimate.
# The last is large where jax 0.12 compiles loops to one kernel: the price of a whole call asks XLA.
LEAST = {
    "rank_xeon_2_cores": {"SOL": (0.70, 0.74, -0.10, 240.0), "projected": (0.78, 0.76, 0.68, 30.0)},
    "rank_epyc_2_cores": {"SOL": (0.72, 0.72, -0.26, 3100.0), "projected": (0.79, 0.73, 0.64, 760.0)},
}


@pytest.fixture(scope="module", params=RECORDS, ids=lambda path: path.stem)
def record(request):
    return request.param


@pytest.fixture(scope="module")
def found(record):
    return list(entries(read(record)))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_ranks_what_was_measured(record, found, model):
    rank, (ours, stock, choices, overestimate) = ranks(found, model), LEAST[record.stem][model]
    assert rank.ours >= ours and rank.stock >= stock and rank.choices >= choices, rank
    assert rank.overestimate <= overestimate, rank


def test_a_model_that_knows_nothing_does_not_pass(found):
    """The test above can fail: all seconds alike, or each the inverse of what was measured."""
    for seconds in (lambda _: 1.0, lambda entry: 1 / entry.measured):
        blind = [replace(each, predicted={"blind": seconds(each)}) for each in found]
        rank = ranks(blind, "blind")
        assert max(rank.ours, rank.stock, rank.choices) < 0


def test_a_record_has_every_census_pattern(found):
    names = {each.case for each in found}
    assert {"softmax 50257, straight", "clip and adam, loop", "lstm/1", "rae/1", "skipnet/1"} <= names


ROWS = [("a", STOCK, 4.0, 8.0), ("a", "1 unit", 2.0, 1.0), ("b", STOCK, 1.0, 1.0), ("b", "1 unit", 1.05, 2.0)]


def test_ranks():
    rank = ranks([Entry(case, choice, s, {"it": said}) for case, choice, s, said in ROWS], "it")
    assert (rank.ours, rank.stock, rank.choices) == (-1, 1, 1)  # choices of b are too close to tell apart
    assert (rank.overestimate, rank.at) == (4.0, "a, 1 unit")


def test_the_shorter_time_stays():
    old = Record(
        "2026-01-01", "cpu", 2, "1", (Row("a", 2.0, {"1 unit": 1.0, "gone": 3.0}), Row("b", 1.0, {}))
    )
    new = Record("2026-02-02", "cpu", 2, "1", (Row("a", 1.0, {"1 unit": 5.0, "2 units": 4.0}),))
    both = merged(old, new)
    assert both.date == "2026-02-02"
    assert both.rows == (Row("a", 1.0, {"1 unit": 1.0, "2 units": 4.0}), Row("b", 1.0, {}))
    with pytest.raises(ValueError, match="a record of cpu, 2 cores"):
        merged(old, replace(new, cores=4))


def test_measures_and_reads_again(tmp_path, capsys):
    path = tmp_path / "record.json"
    first = command.main(["--only", "empty_call", "--seconds", "0.05", "--out", str(path)])
    assert {each.choice for each in first} >= {STOCK, "1 unit"}
    assert all(each.measured > 0 and min(each.predicted.values()) > 0 for each in first)
    again = command.main(["--fit", str(path)])
    assert again == first
    assert "Kendall tau" in capsys.readouterr().out


@pytest.mark.all_candidates
def test_one_text_for_one_unit_and_for_several_is_two_plans():
    """The text of a division over rows does not depend on the number of units, but its price does."""

    def quantise(x):
        return jnp.round(x / jnp.abs(x).max(-1, keepdims=True) * 127).astype(jnp.int8)

    closed = jax.make_jaxpr(quantise)(jax.ShapeDtypeStruct((4096, 1024), jnp.float32))
    found = survey(prepare(closed, "quantise", memory_bound=True), units=2)
    assert {plan.candidate.units for plan in found.plans} == {1, 2}
    assert found.best.candidate.units == 2
