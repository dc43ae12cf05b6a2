"""Machines: the spellings of a target with the facts of a GPU, or without one for the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import CARDS, H200
from jax_cocktail.errors import UnsupportedError


def test_the_host_has_no_spec():
    assert machine_of(None) is HOST
    assert (HOST.is_gpu, HOST.platform, HOST.target) == (False, "cpu", CPU)


@pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.name)
def test_every_card_is_a_machine(spec):
    machine = machine_of(spec)
    assert (machine.is_gpu, machine.platform, machine.spec) == (True, "cuda", spec)
    assert machine_of(spec, 64).target.threads == 64


def test_spellings_and_facts_fit():
    with pytest.raises(ValueError, match="without blocks of threads"):
        Machine(cuda())
    with pytest.raises(ValueError, match="a block has 32, 64 ... 1024 threads, not 1"):
        Machine(CPU, H200)
    with pytest.raises(ValueError, match="64, 128 ... 1024 threads, not 96"):
        Machine(cuda(96), replace(H200, warp=64))


def test_a_platform_without_spellings_is_refused():
    with pytest.raises(UnsupportedError, match="the platform rocm"):
        machine_of(replace(H200, platform="rocm"))
