"""Planning takes time in proportion to the program."""

from __future__ import annotations

import pytest

from benchmarks.growth import planning_seconds, straight
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import walk
from jax_cocktail.utask.types import Value

SHORT, LONG = 400, 3200  # statements
WORST = 4.0  # how many times longer each statement of a long program may take: eight, were it quadratic


@pytest.mark.parametrize("machine", [machine_of(None), machine_of(H200)], ids=["host", "gpu"])
@pytest.mark.parametrize("units", [1, 4])
def test_planning_grows_linearly(machine, units):
    short, long = straight(SHORT), straight(LONG)
    few, many = (sum(1 for _ in walk(p.entry)) for p in (short, long))
    assert many > 7 * few
    seconds = [
        min(planning_seconds(p, machine, Candidate(units))["all"] for _ in range(2)) for p in (short, long)
    ]
    assert seconds[1] / many < WORST * seconds[0] / few


@pytest.mark.parametrize("units", [1, 4])
def test_placement_asks_for_as_many_values_per_statement(units, monkeypatch):
    """The sentences about what is not divided count as well: here one class has an axis of every value."""
    asked = []
    monkeypatch.setattr(Value, "__hash__", lambda value: asked.append(0) or value.id)

    def per_statement(size):
        program, notes = straight(size), []
        asked.clear()
        place(program, UnitMesh(units=units), notes)
        assert len(notes) > size / 4 or units > 1  # one unit divides nothing
        return len(asked) / size

    assert per_statement(1600) < 1.2 * per_statement(200)


def test_every_pass_is_timed():
    seconds = planning_seconds(straight(30))
    assert {"simplify", "place", "plan", "barriers", "double_buffer", "all"} - seconds.keys() == {
        "double_buffer"
    }
    assert seconds["all"] >= max(seconds.values())
