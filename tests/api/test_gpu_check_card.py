"""What speaks to a card in `benchmarks/gpu_check.py`: kernels emulated, driver code on a fake driver."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import clock, items, launching, recorded, timing
from jax_cocktail.build.device import build_device_program
from jax_cocktail.device import store as device_store
from jax_cocktail.device.cards import spec_for
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.store import Measured
from jax_cocktail.errors import BuildError
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda import micro_kernels as gpu_kernels
from jax_cocktail.utask.plan import LaunchPlan
from tests.api.fake_card import FakeCard, emulate
from tests.cpu.cuda_compilers import nvcc, nvrtc
from tests.cpu.cuda_text import program
from tests.cpu.emulation import emulator
from tests.cpu.micro_runs import small_runs


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeCard(tmp_path)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(made.path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    return made


@pytest.fixture
def emulate_builds(monkeypatch):
    """What would be compiled for the card is compiled for the emulation."""
    emulate(monkeypatch)


# ---- kernels -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built():
    return emulator.build(gpu_kernels.text())


@pytest.mark.parametrize("run", small_runs(), ids=lambda r: f"{r.kernel.name}-{r.units}-{r.size}")
def test_kernels_emulated(built, run):
    """Every kernel computes what is expected of it, and a wrong result is noticed."""
    result = run.result()
    built.launch([run.numbers, run.data], [result], units=run.units, cluster=run.cluster, seed=3)
    assert run.problem(result) == ""
    assert "something else" in run.problem(result + result.dtype.type(1))


@pytest.mark.parametrize(
    ("compiler", "arch"), [(nvcc, "sm_80"), (nvcc, "sm_90"), (nvcc, "sm_100"), (nvrtc, "sm_90")]
)
def test_kernels_compile(compiler, arch):
    built = build_device_program(gpu_kernels.text(), compiler(), arch)
    assert set(built.kernels) == {"ck_resident", "ck_portable"} and not built.spills
    registers = built.kernels["ck_portable"].registers
    for kernel in gpu_kernels.KERNELS:
        room = spec_for(arch).resident_units(gpu_kernels.THREADS, registers, kernel.scratch)
        assert room >= 2  # the barrier of two blocks on each multiprocessor


# ---- the driver --------------------------------------------------------------------------------------------


def test_card(fake):
    fake.set(sms=132)
    assert gpu_card.count() == (1, "the driver lists no card")
    with gpu_card.Card() as card:
        facts = card.facts
        assert (facts.name, facts.arch, facts.driver) == ("Fake Card 1", "sm_90", 13000)
        values = np.arange(5, dtype=np.float32)
        assert np.array_equal(card.download(card.upload(values), np.zeros(5, np.float32)), values)
        with pytest.raises(gpu_card.CudaError, match=r"cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE \(200\)"):
            card.load(b"nothing of that kind")
    spec = gpu_card.spec_of(facts)
    assert replace(spec, name=H200.name, memory_bytes=H200.memory_bytes) == H200
    newer = replace(facts, attributes={**facts.attributes, "major": 11})
    assert gpu_card.spec_of(newer).tensor_flops == spec_for("sm_103").tensor_flops


def test_no_card(monkeypatch, tmp_path, fake):
    fake.fail("cuInit", 100)
    assert gpu_card.count() == (0, "cuInit: CUDA_ERROR_NO_DEVICE (100)")
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "none.so"))
    number, why = gpu_card.count()
    assert number == 0 and "cannot be loaded" in why


def test_microbenchmarks(fake, emulate_builds):
    """All of them run; clusters are refused by the fake driver, which is one figure less and no more."""
    fake.set(sms=4, pointers=5)
    with gpu_card.Card() as card:
        figures = gpu_micro.measure(card, scale=1e-3)
        spec, left = gpu_micro.measured_spec(card.facts, figures)
    failed = {name for name, figure in figures.items() if "error" in figure}
    assert failed and all(
        "cluster" in name or "16 blocks" in name or "32" in name or "64" in name for name in failed
    )
    assert {"barrier, 4 blocks", "barrier, 8 blocks", "hop, tagged, 1 word", "L2 read"} <= set(
        figures
    ) - failed
    assert all("launches" not in name for name in left)
    assert spec.units == 4 and spec.name == "Fake Card 1"
    assert device_store.store_measured(Measured(spec, 13000))
    assert device_store.load_measured("Fake Card 1").spec == spec and fake.depth() == 0


def test_wrong_results_are_no_figures(fake, emulate_builds, monkeypatch):
    fake.set(sms=4, pointers=5)
    monkeypatch.setattr(gpu_micro, "GROUPS", (gpu_micro.hops,))
    monkeypatch.setattr(gpu_kernels.MicroRun, "problem", lambda run, result: "wrong")
    with gpu_card.Card() as card:
        figures = gpu_micro.measure(card, scale=1e-3)
    assert figures["hop, flag"] == {"error": "CudaError: wrong"}


def test_measured_spec_takes_what_is_plausible():
    attributes = {name: getattr(H200, name) for name in gpu_card._SIZES} | {"major": 9, "minor": 0}
    attributes["clock_khz"] = 1_500_000
    facts = gpu_card.Facts("A card", 13000, 141 * 10**9, attributes)
    figures = {
        "barrier, 132 blocks": {"seconds": 1.2e-6},
        "hop, flag": {"seconds": 1.0},
        "L2 read": {"rate": 6e12},
        "memory read": {"error": "no"},
        "launch in a graph": {"seconds": float("nan")},
    }
    spec, left = gpu_micro.measured_spec(facts, figures)
    assert (spec.barrier_seconds, spec.l2_rate, spec.clock_rate) == (1.2e-6, 6e12, 1.5e9)
    hidden = gpu_card.Facts("A card", 13000, 141 * 10**9, attributes | {"clock_khz": 0})
    assert gpu_micro.measured_spec(hidden, figures)[0].clock_rate == H200.clock_rate
    assert (spec.hop_seconds, spec.memory_rate) == (H200.hop_seconds, H200.memory_rate)
    assert "not plausible" in left["hop_seconds"] and left["memory_rate"] == "no"
    assert set(left) == {"hop_seconds", "memory_rate", "launch_seconds", "shared_rate", "flops"}


# ---- our kernels without XLA -------------------------------------------------------------------------------


DOUBLING = """
  f32* y = (f32*)results[0];
  const f32* x = (const f32*)operands[0];
  ck_arrive(unit); ck_wait(unit);
  for (i32 i = ck_lane(); i < 8; i += CK_THREADS) if (unit->index == i % unit->count) y[i] = 2 * x[i];
"""


@pytest.mark.parametrize(("sms", "kernel", "grid"), [(4, "ck_resident", 4), (1, "ck_portable", 2)])
def test_kernel_time(fake, monkeypatch, sms, kernel, grid):
    """The kernel and grid that the handler would choose; overwritten operands are new each time."""
    monkeypatch.setattr(launching, "GRAPH_SECONDS", 1e9)  # a graph is full, however slow this machine is
    monkeypatch.setattr(launching, "MOST_IN_A_GRAPH", 3)
    fake.set(sms=sms, per_sm=64 if sms == 1 else 2048, pointers=4)
    text = program(DOUBLING, threads=32, most_units=4, shared=64)
    plan = LaunchPlan(256, 4, 32, 4096, 4096, 512, cooperative=True)
    x = np.arange(8, dtype=np.float32)
    binary = emulator.build(text).path.read_bytes()
    call = launching.Call(binary, plan, (x,), (jax.ShapeDtypeStruct(x.shape, x.dtype),), {0: 0})
    with gpu_card.Card() as card:
        loaded = launching.load(card, call)
        found = loaded.time()
        assert (found.kernel, found.grid) == (kernel, grid)
        assert all(np.array_equal(result, 2 * x) for _ in range(2) for result in loaded.run())
    assert fake.launches() == 2 + 1 + 3 + 2  # to choose a number, to load, in a graph, by `run`


@pytest.mark.parametrize(
    ("room", "kernel", "grid", "cluster"), [(16, "ck_resident", 4, 4), (2, "ck_portable", 4, 1)]
)
def test_a_cluster_runs_where_the_handler_would_run_it(fake, room, kernel, grid, cluster):
    """Elsewhere the portable kernel does, as cooperative blocks whose header is cleared."""
    fake.set(sms=16, in_cluster=room, pointers=4)
    text = "#define CK_ONE_CLUSTER 1\n" + program(DOUBLING, threads=32, most_units=4, shared=64)
    plan = LaunchPlan(256, 4, 32, 4096, 4096, 512, cooperative=True, cluster=True)
    x = np.arange(8, dtype=np.float32)
    call = launching.Call(
        emulator.build(text).path.read_bytes(), plan, (x,), (jax.ShapeDtypeStruct((8,), x.dtype),)
    )
    with gpu_card.Card() as card:
        loaded = launching.load(card, call)
        launch = loaded.launch
        assert (loaded.kernel, launch.grid, launch.cluster) == (kernel, grid, cluster)
        assert launch.cooperative == (cluster == 1) and loaded.cleared == (256 if cluster == 1 else 0)
        assert np.array_equal(loaded.run()[0], 2 * x)


def test_calls_are_timed_on_a_card_that_is_awake(fake, monkeypatch):
    """Each with the clock of its multiprocessors."""
    fake.set(sms=4, pointers=0)
    monkeypatch.setattr(clock, "program", lambda arch: emulator.build(clock.text()).path.read_bytes())
    plan = LaunchPlan(256, 4, 32, 4096, 4096, 512, cooperative=True)
    x = np.arange(8, dtype=np.float32)
    binary = emulator.build(program(DOUBLING, threads=32, most_units=4, shared=64)).path.read_bytes()
    call = launching.Call(binary, plan, (x,), (jax.ShapeDtypeStruct(x.shape, x.dtype),))
    seen = SimpleNamespace(calls=[call, call], predicted_seconds=lambda spec: 1.0)
    with gpu_card.Card() as card:
        found = timing.on_card(card, seen)
    assert found["seconds"] == sum(each["seconds"] for each in found["calls"]) and len(found["calls"]) == 2
    assert all(each["sm_clock"] == pytest.approx(1e9, rel=0.1) for each in found["calls"])  # of nanoseconds


def test_recording(monkeypatch):
    """Operands come as they were given, and the program gives what it gave."""
    calls = []

    def ffi_call(target, shapes, **how):
        def bound(*values, **attributes):
            calls.append(attributes)
            return [values[0] * 2, jnp.zeros(512, jnp.uint8)]

        return bound

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    plan = LaunchPlan(256, 4, 32, 4096, 4096, 512, cooperative=True)
    binary = np.frombuffer(b"code", np.uint8)
    attributes = {"binary": binary, "launch": np.asarray(plan.attribute), "sync": np.int64(0)}
    shapes = [jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((512,), np.uint8)]
    with recorded.recording() as seen:
        run = jax.jit(
            lambda x: jax.ffi.ffi_call("t", shapes, input_output_aliases={0: 0})(x, **attributes)[0]
        )
        found = run(jnp.arange(3.0))
    assert np.array_equal(found, [0, 2, 4]) and len(calls) == 1
    (call,) = seen.calls
    assert (call.binary, call.aliases, len(call.results)) == (b"code", {0: 0}, 1)
    assert call.plan == LaunchPlan.from_attribute(plan.attribute)
    assert np.array_equal(call.operands[0], [0, 1, 2])


def test_plans_for_the_card_that_is_here(fake, tmp_path):
    """With its numbers, measured or of the table; nothing is started on it."""
    fake.set(sms=60)
    settings = items.Settings(tmp_path, small=True)
    table = items.plan("scalar_scan@card", settings)
    assert table["card"] == "Fake Card 1" and fake.launches() == 0
    slow = replace(gpu_card.spec_of(gpu_card.describe()), launch_seconds=2e-5)
    assert slow.units == 60
    device_store.store_measured(Measured(slow, 13000))
    assert items.plan("scalar_scan@card", settings)["seconds"] > table["seconds"]


def test_a_card_that_is_too_old(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_MAJOR", "7")
    with pytest.raises(BuildError, match="sm_70.* older than every known card"):
        items.measure("card", items.Settings(tmp_path))
