"""Programs whose units never meet: no header, and so nothing to clear before a launch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.amd import MI300X
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail_tools.models import MODELS
from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts, program
from tests.cpu.emulated import KERNELS, WAVES, Emulation, array, check_launches
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import EmulationError
from tests.cpu.rocm_compilers import zig
from tests.golden.programs import DIVIDED, PROGRAMS

DEFINE = "#define CK_NOTHING_CROSSES 1"
APART = {"batch_4_blocks", "collatz_132_blocks", "factors_132_blocks", "lorenz_132_blocks"}  # of the divided
ON_GPU = [name for name, case in DIVIDED.items() if case.on_gpu]


def launched(emitted: Emitted):
    return launch_plan(emitted.program, emitted.plan, emitted.machine)


@pytest.mark.parametrize("spec", [H200, MI300X], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("name", ON_GPU)
def test_a_header_is_for_what_crosses(name, spec):
    case = DIVIDED[name]
    emitted = compiler.emit(case.program(), machine_of(spec, 128), candidate=case.candidate)
    plan, apart = launched(emitted), name in APART
    assert emitted.plan.most_units > 1 and (DEFINE in emitted.source.splitlines()) == apart
    assert (plan.header_bytes == 0) == apart == (not plan.cooperative)
    assert plan.workspace_bytes > plan.header_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_unit_has_no_header(name):
    emitted = compiler.emit(PROGRAMS[name](), machine_of(H200, 128))
    assert launched(emitted).header_bytes == 0 and DEFINE in emitted.source.splitlines()


def rows(trips: int):
    """Independent recurrences, one for each row; a unit has some of them."""

    def run(x, w):
        return lax.fori_loop(0, trips, lambda i, x: jnp.tanh(jnp.sort(x @ w, axis=-1)), x)

    return run, (array(1, 12, 24), array(2, 24, 24))


@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize("spec", [H200, WAVES[64]], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("sanitizer", ["address", None])
def test_nothing_is_read_where_the_header_was(units, spec, sanitizer, monkeypatch):
    """The workspace holds NaNs when a launch begins, from its first byte on."""
    emulation = Emulation(spec=spec, sanitizer=sanitizer)
    launches = [(kernel, seed) for kernel in KERNELS for seed in range(2)]
    emitted = check_launches(monkeypatch, emulation, *rows(3), units, launches)
    assert emitted.plan.most_units == units and launched(emitted).header_bytes == 0


def test_fewer_blocks_than_find_work(monkeypatch):
    """Own memory lies in the workspace."""
    emulation = Emulation(grid=3, kernel="ck_portable")
    check_launches(monkeypatch, emulation, *rows(2), 4, [("ck_portable", 0)])


@pytest.mark.parametrize("meets", ["ck_arrive(unit);", "ck_wait(unit);", "ck_exchange(unit, 0);"])
def test_a_text_that_says_so_and_meets_is_none(meets):
    text = f"{DEFINE}\n{program(meets, most_units=2)}"
    with pytest.raises(EmulationError, match="not declared|undeclared"):
        emulator.build(text)


def attention(spec: DeviceSpec) -> Emitted:
    function, given = MODELS["attention"].make(1, small=False)
    (found,) = prepare(jax.make_jaxpr(function)(*given), "test", machine_of(spec)).programs
    emitted = compiler.emit(found, machine_of(spec), candidate=Candidate(spec.units))
    assert emitted.plan.most_units > 1 and launched(emitted).header_bytes == 0
    return emitted


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
def test_compiled_for_nvidia(tmp_path):
    assert nvcc_facts(attention(H200).source, tmp_path, "sm_90").keys() == set(KERNELS)


def test_compiled_for_amd():
    built = build_device_program(attention(MI300X).source, zig(), MI300X)
    assert built.kernels.keys() == set(KERNELS)
