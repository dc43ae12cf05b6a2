"""What does not fit or is not there: a clear error, or stock XLA with a reason; never a hang."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import compiler
from jax_cocktail.build import cuda as build_cuda
from jax_cocktail.build.device import device_toolchain
from jax_cocktail.errors import BuildError, CocktailWarning, UnsupportedError
from jax_cocktail.lowering.edge import gpu_call
from tests.gpu import programs
from tests.gpu.card import Card, Failure, check, check_close, in_float64
from tests.gpu.handmade import ALONE, FAILING, ONE, number


@pytest.mark.emulated
@pytest.mark.parametrize("blocks", [1, 2])
def test_more_units_than_the_device_has(card: Card, eager, few_blocks, blocks):
    """Planned for more blocks than can be on the device at once."""
    if card.emulation:
        few_blocks(blocks)
    units = 5 if card.emulation else blocks * card.most_units + 1
    check(card, programs.cells, programs.floats(6, 16, 24), programs.floats(24, 24), units=units)


def test_no_kernel_fits(gpu: Card, eager, monkeypatch):
    plan = compiler.launch_plan

    def greedy(*how):
        return replace(plan(*how), resident_shared_bytes=1 << 30, portable_shared_bytes=1 << 30)

    monkeypatch.setattr(compiler, "launch_plan", greedy)
    with pytest.raises(Failure, match='shared memory fits this device .* force="stock"'):
        jax.block_until_ready(gpu.jit(lambda a: programs.newton(a))(programs.floats(9) ** 2 + 1))


def test_device_out_of_memory(gpu: Card):
    """A workspace larger than the card: XLA says so, and goes on afterwards."""
    plan = replace(ALONE, workspace_bytes=2 * gpu_call.spec_of().memory_bytes)
    with pytest.raises(Failure, match="(?i)out of memory|RESOURCE_EXHAUSTED"):
        gpu.launch(FAILING, number(1), [ONE], plan)
    assert gpu.launch(FAILING, number(4), [ONE], ALONE)[0] == 8


def test_arrays_of_too_many_elements():
    """They are refused before there is a program."""

    def program(n):
        return lax.fori_loop(0, 2, lambda i, x: x[::-1] * 1.5, lax.broadcast(n, (1 << 31, 5)))[:1]

    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})
    with pytest.raises(UnsupportedError, match="a GPU program counts them in 32 bits"):
        ours.trace(np.float32(1)).lower(lowering_platforms=("cuda",))


def test_without_nvcc(gpu: Card, eager, monkeypatch):
    """NVRTC makes the same program."""
    arguments = programs.floats(6, 16, 24), programs.floats(24, 24)
    with jax.default_matmul_precision("highest"):
        by_nvcc = gpu.jit(programs.cells)(*arguments)
    monkeypatch.setattr(build_cuda, "_nvcc_programs", lambda *_: ())
    build_cuda._find_toolchain.cache_clear()
    try:
        toolchain = device_toolchain(gpu_call.spec_of().arch)
        assert toolchain.kind == "nvrtc"
        with jax.default_matmul_precision("highest"):
            by_nvrtc = gpu.jit(lambda x, w: programs.cells(x, w))(*arguments)
            stock = jax.jit(programs.cells)(*arguments)
    except BuildError as error:
        pytest.skip(f"NVRTC is not here, or too old for this GPU: {error}")
    finally:
        build_cuda._find_toolchain.cache_clear()
    for found in (by_nvcc, by_nvrtc):
        check_close(found, stock, in_float64(programs.cells, arguments))


def test_without_any_compiler(gpu: Card, monkeypatch):
    """Stock, with a warning that says what to install."""

    def nothing(arch=""):
        raise BuildError("no CUDA compiler was found", "pip install 'jax_cocktail[cuda]'")

    monkeypatch.setattr(compiler, "device_toolchain", nothing)
    a = programs.floats(9) ** 2 + 1
    ours = jax_cocktail.jit(lambda a: programs.newton(a), options={"force": "cocktail"})
    with pytest.warns(CocktailWarning, match="no CUDA compiler was found; try: pip install"):
        found = ours(a)
    check_close(found, jax.jit(programs.newton)(a), in_float64(programs.newton, (a,)))


def other_arches(own: str) -> dict[str, str]:
    """One older and one newer than the device's, or of another line."""
    older = next((arch for arch in ("sm_80", "sm_90") if int(arch[3:]) < int(own[3:].rstrip("af"))), "")
    return {"older": older, "newer": "sm_100" if own == "sm_120" else "sm_120"}


def test_code_for_an_older_gpu(gpu: Card):
    """It comes with PTX, which the driver compiles; NVRTC's does not, and that is told."""
    arch = other_arches(gpu_call.gpu().arch)["older"]
    if not arch:
        pytest.skip("this GPU is of the oldest kind that there is code for")
    a = programs.floats(9) ** 2 + 1
    ours = gpu.jit(lambda a: programs.newton(a), gpu_arch=arch)
    try:
        found = jax.block_until_ready(ours(a))
    except Failure as error:
        assert "compiled for another GPU" in str(error)
    else:
        check_close(found, jax.jit(programs.newton)(a), in_float64(programs.newton, (a,)))


def test_code_for_a_newer_gpu(gpu: Card):
    arch = other_arches(gpu_call.gpu().arch)["newer"]
    ours = gpu.jit(lambda a: programs.newton(a), gpu_arch=arch)
    with pytest.raises(Failure, match="compiled for another GPU|for a newer driver"):
        jax.block_until_ready(ours(programs.floats(9) ** 2 + 1))


def test_other_arches():
    assert other_arches("sm_80") == {"older": "", "newer": "sm_120"}
    assert other_arches("sm_90a") == {"older": "sm_80", "newer": "sm_120"}
    assert other_arches("sm_120") == {"older": "sm_80", "newer": "sm_100"}


def test_several_devices_go_to_stock(gpu: Card):
    """A program over a mesh, even of one GPU, or copies of it on all of them."""
    mesh = jax.make_mesh((len(jax.devices("cuda")),), ("x",))
    spread = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    a = jax.device_put(programs.floats(8 * mesh.size) ** 2 + 1, spread)
    found = jax_cocktail.jit(lambda a: programs.newton(a), options={"force": "cocktail"})(a)
    check_close(found, jax.jit(programs.newton)(a), in_float64(programs.newton, (np.asarray(a),)))
