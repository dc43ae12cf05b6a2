"""Every benchmark model: our calls give stock XLA's results, and both are close to float64."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import jax_cocktail
from benchmarks import targets
from jax_cocktail_tools.models import MODELS, RECURSIVE, largest_difference
from jax_cocktail_tools.models.by_hand import BY_HAND
from jax_cocktail_tools.models.gradients import GRADIENTS
from jax_cocktail_tools.models.programs import PROGRAMS
from jax_cocktail_tools.models.rae import INNER_NODES_PER_HEIGHT, post_order, tree_of
from jax_cocktail_tools.models.skipnet import gate_offsets

CASES = [(name, batch) for name, model in MODELS.items() for batch in model.batches]
EACH_CASE = pytest.mark.parametrize(("name", "batch"), CASES)


def in_float64(function, arguments):
    """The result with every float argument widened; integers and booleans stay as they are."""

    def widen(leaf):
        array = np.asarray(leaf)
        return array.astype(np.float64) if array.dtype == np.float32 else array

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(widen, arguments)))


@functools.cache
def stock_results(name, batch):
    function, arguments = MODELS[name].make(batch, small=True)
    return jax.jit(function)(*arguments), in_float64(function, arguments)


@EACH_CASE
def test_stock_agrees_with_float64(name, batch):
    stock, exact = stock_results(name, batch)
    assert largest_difference(stock, exact) <= MODELS[name].tolerance


@EACH_CASE
def test_ours_agrees_with_stock_and_float64(name, batch):
    function, arguments = MODELS[name].make(batch, small=True)
    stock, exact = stock_results(name, batch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})(*arguments)
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    assert largest_difference(ours, stock) <= MODELS[name].tolerance
    rounding = float(np.finfo(np.float32).eps)
    assert largest_difference(ours, exact) <= 2 * largest_difference(stock, exact) + 8 * rounding


@EACH_CASE
def test_all_control_flow_is_captured(name, batch):
    function, arguments = MODELS[name].make(batch, small=True)
    report = jax_cocktail.explain(function)(*arguments)
    assert report.captured
    assert not report.left


@pytest.mark.parametrize("name", MODELS)
def test_same_numbers_every_time(name):
    first, second = (MODELS[name].make(1, small=True)[1] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))


def test_unknown_batch_is_refused():
    with pytest.raises(ValueError, match=r"defined for batch \(1,\), not 64"):
        MODELS["rae"].make(64)


def test_decoder_stops_when_the_longest_sentence_ends():
    for batch, steps in ((1, 4), (64, 20)):
        function, arguments = MODELS["seq2seq"].make(batch, small=True)
        tokens, taken = jax.jit(function)(*arguments)
        assert taken == steps
        assert np.array_equal(tokens, np.argmax(arguments[2], axis=-1))


def test_tree_has_the_published_shape():
    left, right, is_leaf, root = post_order(tree_of(INNER_NODES_PER_HEIGHT), 127)
    assert (root, int(is_leaf[: root + 1].sum())) == (64, 33)
    height = np.zeros(127, int)
    for node in range(root + 1):
        if not is_leaf[node]:
            assert max(left[node], right[node]) < node
            height[node] = 1 + max(height[left[node]], height[right[node]])
    assert tuple(np.bincount(height[: root + 1])[1:]) == INNER_NODES_PER_HEIGHT


def test_share_of_running_blocks():
    assert [int((gate_offsets(32, running) > 0).sum()) for running in (0, 8, 22, 32)] == [0, 8, 22, 32]


@pytest.mark.one_jax
@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_written_by_hand_has_the_results_of_its_model(name):
    model = (MODELS | RECURSIVE | PROGRAMS)[name]
    function, arguments = model.make(small=True)
    expected = jax.jit(function)(*arguments)
    for other in BY_HAND[name].values():
        assert largest_difference(jax.jit(other)(*arguments), expected) <= model.tolerance


def test_names_of_what_is_timed_are_distinct():
    names = [*MODELS, *RECURSIVE, *PROGRAMS, *GRADIENTS]
    assert len(set(names)) == len(names)
    assert set(PROGRAMS) == targets.ISOLATED
    assert {wanted.partition("/")[0] for wanted in targets.WANTED} <= set(names)
