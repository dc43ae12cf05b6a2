"""Machines: the spellings of a target with the facts of a GPU, or without one for the host; their numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.gpu import LINE_BYTES, TAGGED_PAIR_BYTES, header_bytes
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.device.cards import CARDS
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import BLOCKS_TOGETHER, PORTABLE_CLUSTER
from jax_cocktail.device.tuning import BLOCK, FACTORS, PROGRAM
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.runtime.cuda.driver import FIRST_WITH_CLUSTERS
from jax_cocktail.schedule.policy import MOST_UNITS
from jax_cocktail.utask.candidate import MOST_IN_CLUSTER


def test_the_host_has_no_spec():
    assert machine_of(None) is HOST
    assert (HOST.is_gpu, HOST.platform, HOST.target) == (False, "cpu", CPU)


@pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.name)
def test_every_card_is_a_machine(spec):
    machine = machine_of(spec)
    assert (machine.is_gpu, machine.platform, machine.spec) == (True, spec.platform, spec)
    assert machine_of(spec, 64).target.threads == 64


def test_spellings_and_facts_fit():
    with pytest.raises(ValueError, match="without blocks of threads"):
        Machine(cuda())
    with pytest.raises(ValueError, match="a block has 32, 64 ... 1024 threads, not 1"):
        Machine(CPU, H200)
    with pytest.raises(ValueError, match="64, 128 ... 1024 threads, not 96"):
        Machine(cuda(96), replace(H200, warp=64))


def test_a_platform_without_spellings_is_refused():
    with pytest.raises(UnsupportedError, match="the platform metal"):
        machine_of(replace(H200, platform="metal"))


# ---- numbers that C++ has too ------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def number(header, pattern):
    """The only number of a header that the pattern is followed by."""
    (found,) = re.findall(pattern + r"\D*(\d+)", (ROOT / header).read_text())
    return int(found)


@pytest.mark.parametrize(
    ("header", "pattern", "expected"),
    [
        ("gpu_src/cocktail_units.h", r"struct alignas\(", LINE_BYTES),
        ("gpu_src/cocktail_units.h", r"define CK_FRONT_BYTES \\\s*\(\(", LINE_BYTES),
        ("gpu_src/cocktail_units.h", r"define CK_NEAR_WORDS_BYTES \(CK_ONE_CLUSTER \? \(", TAGGED_PAIR_BYTES),
        ("gpu_src/cocktail_units.h", "a cluster has at most", MOST_IN_CLUSTER),
        ("cuda_src/cocktail_base.h", "define CK_WARP ", H200.warp),
        ("gpu_src/cocktail_device.h", "CK_THREADS <=", H200.threads_per_block),
        ("cuda_src/cocktail_base.h", "CK_THREADS == CK_WARP", BLOCKS_TOGETHER),
        ("rocm_src/cocktail_base.h", "CK_THREADS == CK_WARP", BLOCKS_TOGETHER),
        ("cuda_src/handler_driver.h", "kPortableCluster =", PORTABLE_CLUSTER),
        ("cuda_src/handler_driver.h", "kFirstWithClusters =", FIRST_WITH_CLUSTERS),
        ("cpu_src/cocktail_units.h", "CK_MOST_UNITS =", MOST_UNITS),
        ("cpu_src/cocktail_gemm.h", "kCkSomeRows =", PROGRAM.some_rows),
        ("cpu_src/cocktail_gemm.h", "kCkManyRows =", PROGRAM.many_rows),
        ("cpu_src/cocktail_gemm.h", "kCkBlockRows =", FACTORS.block_rows),
        ("cpu_src/cocktail_gemm.h", "kCkPanelBytes =", FACTORS.panel_bytes),
    ],
)
def test_headers_have_the_same_numbers(header, pattern, expected):
    assert number(header, pattern) == expected


def test_what_follows_from_the_numbers():
    assert [header_bytes(words) for words in (0, 8, 9)] == [256, 256, 512]
    assert max(spec.cluster_units for spec in CARDS) == MOST_IN_CLUSTER
    assert all(machine_of(spec).target.threads == BLOCK.threads for spec in CARDS)
