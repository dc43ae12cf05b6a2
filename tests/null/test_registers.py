"""Kernels that run out of registers are built in other ways; what the CUDA compiler reports is invented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jax_cocktail import compiler
from jax_cocktail.build.kernels import DeviceBuilt, KernelFacts
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import EVERYTHING
from jax_cocktail.device.nvidia import H200
from jax_cocktail.errors import BuildError
from jax_cocktail.utask.candidate import way
from tests.null.gpus import recurrence


@pytest.fixture
def builds(monkeypatch):
    """The ways that were tried, as (threads, outlined); `spills` says what the compiler reports of each."""
    tried, spills = [], {}

    def build(source, *_, **__):
        threads = int(re.search(r"#define CK_THREADS (\d+)", source)[1])
        way = threads, "CK_NOINLINE" in source
        tried.append(way)
        facts = KernelFacts(spills.get("registers", 64), spills.get(way, 0), 0, 0)
        return DeviceBuilt(b"", source, str(Path("program")), 0.0, False, "sm_90", {"ck_resident": facts})

    monkeypatch.setattr(compiler, "build_device_program", build)
    monkeypatch.setattr(compiler, "device_toolchain", lambda arch: None)
    return tried, spills


def artifact(threads):
    candidate = way(1, threads=threads)
    return compiler.build(compiler.emit(recurrence(1, 64, 16), machine_of(H200), candidate=candidate))


def told(found):
    return [str(remark) for remark in found.emitted.remarks if remark.transform == "build"]


@pytest.mark.parametrize("threads", [128, 256, 512])
def test_without_spills_one_build_suffices(builds, threads):
    found = artifact(threads)
    assert builds[0] == [(threads, False)]
    assert found.launch.threads == found.emitted.target.threads == threads


@pytest.mark.parametrize("threads", [64, 512, 1024])
def test_a_block_that_spills_becomes_one_of_the_usual_size(builds, threads):
    tried, spills = builds
    spills |= {(threads, False): 100, (threads, True): 100}
    found = artifact(threads)
    assert tried == [(threads, False), (threads, True), (256, False)]
    assert found.launch.threads == found.emitted.target.threads == 256
    assert f"build: 256 threads per block in place of {threads}: spills 0 bytes of a thread, not 100" in told(
        found
    )


def test_a_traced_program_has_a_ring_for_every_warp_of_the_blocks_it_is_built_for(builds):
    builds[1].update({(64, False): 100, (64, True): 100})
    emitted = compiler.emit(
        recurrence(1, 64, 16), machine_of(H200), candidate=way(1, threads=64), trace=EVERYTHING
    )
    found = compiler.build(emitted)
    assert (emitted.stamps.writers, found.emitted.stamps.writers) == (2, 8)
    assert "#define CK_TRACE_WRITERS 8\n" in found.source
    assert found.emitted.stamps.rows == emitted.stamps.rows


def test_functions_suffice_if_they_end_the_spills(builds):
    tried, spills = builds
    spills[512, False] = 100
    found = artifact(512)
    assert tried == [(512, False), (512, True)] and found.launch.threads == 512
    assert "build: each lane loop is a function: spills 0 bytes of a thread, not 100" in told(found)


def test_the_way_that_spills_least_is_taken(builds):
    tried, spills = builds
    spills |= {(512, False): 100, (512, True): 40, (256, False): 60}
    found = artifact(512)
    assert tried == [(512, False), (512, True), (256, False)]
    assert found.launch.threads == 512 and "CK_NOINLINE" in found.source
    assert any(text.startswith("build not: ") and "spills 40 bytes" in text for text in told(found))


def test_the_usual_size_has_only_functions(builds):
    tried, spills = builds
    spills |= {(256, False): 100, (256, True): 100}
    assert artifact(256).launch.threads == 256
    assert tried == [(256, False), (256, True)]


def test_a_block_that_cannot_be_launched_is_an_error(builds):
    builds[1]["registers"] = 200
    assert artifact(256).launch.threads == 256
    with pytest.raises(BuildError, match="cannot be launched"):
        artifact(512)
