"""The pictures of the documentation are those that its script draws."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from docs.draw import BLOCKS, PICTURE, PICTURES, STEPS, Layers, pass_table, plan, run, timeline
from jax_cocktail.passes import passes
from jax_cocktail.utask.candidate import Candidate, way


@pytest.mark.parametrize("name", PICTURE)
def test_committed_pictures_are_drawn_from_the_programs_of_today(name):
    drawn = PICTURE[name]()
    ElementTree.fromstring(drawn)
    assert drawn == (PICTURES / name).read_text(encoding="utf-8"), "run python -m docs.draw and look at it"


def test_every_pass_is_shown():
    shown = [name for name, *_ in pass_table()]
    for candidate in (Candidate(1), way(BLOCKS, pipeline=True)):
        names = [name for name, _ in passes(candidate)]
        rest = iter(shown)
        assert all(name in rest for name in names), "in this order"


def test_units_pass_barriers_together():
    """A timeline in which all that units do in between is over before they pass a barrier."""
    spans, crossings, end = timeline(run(plan(2, True)))
    assert {span.unit for span in spans} == set(range(BLOCKS))
    for crossing in crossings:
        assert not any(span.begin < crossing.end < span.end for span in spans)
    assert max(span.end for span in spans) == end
    assert sum(crossing.kind == "exchange" for crossing in crossings) == STEPS + 1  # once per diagonal


def test_layers_are_told_apart_by_their_weights():
    layers = Layers(plan(2, True).program.entry)
    assert {layer for layer, _ in layers.work.values()} - {None} == {0, 1}
