"""What no program for a row takes less than: the table beside the rows, and on a card that was measured."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.gpu import roofline
from benchmarks.gpu.kernels import spec_of
from benchmarks.gpu.roofline import LIMITS, limit_seconds
from benchmarks.gpu.rows import ROWS
from jax_cocktail.device.amd import MI300X
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail_tools.models import MODELS

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_check_nvidia_h100_80gb_hbm3.json"
# Microseconds on that card, worked out by hand for each row from a drawing of its chain; one figure: within a
# tenth of it.
EXPECTED = {
    "lstm/1": (55, 63),
    "lstm/64": (0.9 * 126, 1.1 * 126),
    "nasrnn/1": (450, 550),
    "nasrnn/64": (540, 660),
    "attention/1": (11, 14),
    "attention/64": (30, 35),
    "seq2seq/1": (0.9 * 19, 1.1 * 19),
    "seq2seq/64": (90, 100),
    "blockdrop/1": (0.9 * 11, 1.1 * 11),
}


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads(RECORD.read_text())


@pytest.mark.parametrize("row", EXPECTED)
def test_limits_of_the_card_that_was_measured(record, row):
    least, most = EXPECTED[row]
    found = limit_seconds(row, spec_of(record))
    assert found is not None and least <= 1e6 * found <= most
    took = record["sections"]["times"][row]["kernel"]["seconds"]
    assert 2 < took / found < 40, "no kernel of that run is within its limit, and none is far from all"


def test_rows_and_cards_without_a_limit():
    assert EXPECTED.keys() == LIMITS.keys() <= ROWS.keys()
    assert limit_seconds("rae/1", H200) is None and limit_seconds("lstm/1", MI300X) is None
    for row in LIMITS:
        fast, usual, slow = (limit_seconds(row, spec) for spec in (B200, H200, A100))
        assert fast < usual < slow or row in ("nasrnn/1", "attention/1"), "these have the clock of Hopper"


def test_figures_of_the_record(record):
    """The measured ones among the constants."""
    figures = record["sections"]["measure"]["card"]["figures"]
    flag, one, many = (
        figures[f"hop, {name}"]["seconds"] for name in ("flag", "tagged, 1 word", "tagged, 1024 words")
    )
    assert pytest.approx(one / flag, rel=0.01) == roofline.TAGGED
    assert pytest.approx((many - one) * spec_of(record).clock_rate / 1024, rel=0.01) == roofline.WORD
    assert spec_of(record).meet_clocks == roofline.MEET


# ---- the rows themselves -----------------------------------------------------------------------------------


def flops_of(jaxpr: Any, trips: int, taken: Any) -> float:
    """Of products and convolutions. `trips`: of a loop whose number is not known; `taken`: an iterator over
    the branches of `cond`s."""
    total = 0.0
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        out = prod(eqn.outvars[0].aval.shape) if eqn.outvars else 0
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            total += 2 * out * prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            *taps, inputs, _ = eqn.invars[1].aval.shape  # HWIO
            total += 2 * out * prod(taps) * inputs
        elif name == "scan":
            total += params["length"] * flops_of(params["jaxpr"].jaxpr, trips, taken)
        elif name == "while":
            total += trips * flops_of(params["body_jaxpr"].jaxpr, trips, taken)
        elif name == "cond":
            total += flops_of(params["branches"][next(taken)].jaxpr, trips, taken)
        elif "jaxpr" in params:
            inner = params["jaxpr"]
            total += flops_of(getattr(inner, "jaxpr", inner), trips, taken)
    return total


def instance(row: str) -> tuple[Any, Any, int, list[int]]:
    """Function, arguments, trips of a loop that stops by its data, and branches that are taken."""
    name, _, batch = row.partition("/")
    function, arguments = MODELS[name].make(int(batch), small=False)
    trips, branches = 0, []
    if name == "seq2seq":
        trips = int(jax.jit(function)(*arguments)[1])
    if name == "blockdrop":
        branches = [int(n) for n in np.asarray(arguments[1]).max(0)]
    return function, arguments, trips, branches


@pytest.mark.parametrize("row", LIMITS)
def test_work_of_a_row(row):
    function, arguments, trips, branches = instance(row)
    found = flops_of(jax.make_jaxpr(function)(*arguments).jaxpr, trips, iter(branches))
    assert LIMITS[row].flops == found
    results = jax.tree.leaves(jax.eval_shape(function, *arguments))
    size = sum(x.size * x.dtype.itemsize for x in results)
    size += sum(x.nbytes for x in jax.tree.leaves(arguments))
    if row.startswith("seq2seq"):  # masks of tokens that do not come, and words that are not said
        _, _, mask, embedding, *_ = arguments
        unread = len(mask) - trips
        size -= unread * mask[0].nbytes + embedding.nbytes - trips * mask.shape[1] * embedding[0].nbytes
    if row.startswith("blockdrop"):
        blocks = zip(branches, arguments[3], strict=True)
        size -= sum(x.nbytes for taken, block in blocks if not taken for x in jax.tree.leaves(block))
    assert LIMITS[row].bytes == size


@pytest.mark.parametrize("row", LIMITS)
def test_steps_of_a_row(row):
    function, arguments, trips, branches = instance(row)
    if row.startswith("lstm"):
        inputs, layers = arguments
        steps = len(inputs) + len(layers) - 1  # diagonals of the wavefront
    elif row.startswith("nasrnn"):
        steps = len(arguments[0])
    elif row.startswith("attention"):
        steps = 32
    else:
        steps = trips or 1 + 2 * sum(branches)
    assert LIMITS[row].steps == steps and LIMITS[row].first_bytes < LIMITS[row].bytes
    assert LIMITS[row].step_flops * steps <= 1.15 * LIMITS[row].flops, (
        "short diagonals take as long as full ones"
    )
