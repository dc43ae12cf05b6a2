"""Emitted programs of several units under the thread and address sanitizers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from jax_cocktail.compiler import emit
from jax_cocktail.placement.place import place
from jax_cocktail.utask.candidate import Candidate
from tests.cpu.runner import EAGER
from tests.cpu.sanitizers import SANITIZERS, STOPPED, NoSanitizer, complaint, complaint_of
from tests.golden.programs import PROGRAMS
from tests.null.programs import arguments


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("name", ["lstm_cell", "greedy_decoder", "softmax"])
def test_emitted_programs(name: str, sanitizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    program = PROGRAMS[name]()
    emitted = emit(program, candidate=Candidate(units=2))
    assert emitted.plan.most_units > 1, "nothing was divided"
    try:
        assert complaint(emitted, arguments(program), sanitizer, tmp_path) == ""
    except NoSanitizer as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_stopped_calls(sanitizer: str, tmp_path: Path) -> None:
    try:
        assert complaint_of(STOPPED, sanitizer, tmp_path) == ""
    except NoSanitizer as why:
        pytest.skip(str(why))
