"""The text for AMD's cards: NVIDIA's behind other numbers, so that the golden files of CUDA serve both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.candidate import Candidate
from tests.golden.programs import PROGRAMS


@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_numbers_of_the_device_differ(name, units):
    """Of two cards that are alike but for their makers."""
    made = [
        emit(
            PROGRAMS[name](), machine_of(replace(H200, platform=platform)), candidate=Candidate(units)
        ).source
        for platform in ("cuda", "rocm")
    ]
    cuda, rocm = (text.splitlines() for text in made)
    assert "#define CK_WARP 32" in rocm
    assert [line for line in rocm if line != "#define CK_WARP 32"] == cuda


@pytest.mark.parametrize("dies", [1, 8])
def test_a_text_says_how_many_dies_there_are(dies):
    spec = replace(H200, platform="rocm", warp=64, dies=dies)
    lines = emit(PROGRAMS["lstm_cell"](), machine_of(spec)).source.splitlines()
    assert "#define CK_WARP 64" in lines
    assert ("#define CK_DIES 8" in lines) == (dies == 8)
