"""A card is measured when it is first used, once; on a fake driver that runs emulated programs."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.config import Options
from jax_cocktail.device import store as device_store
from jax_cocktail.device.nvidia import H100, H200
from jax_cocktail.device.store import Measured
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.lowering.choice import variants
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.lowering.edge.gpu_call import Gpu
from jax_cocktail.memory import MEMORY
from jax_cocktail.runtime.cuda import measure as gpu_measure
from jax_cocktail.runtime.cuda import micro as gpu_micro
from tests.api.fake_card import FakeCard, emulate
from tests.cpu.fake_gpu.driver import Fake
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

NAME, ARCH = "Fake Card 1", "sm_90"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A card that jax uses, too, with nothing known of it."""
    made = FakeCard(tmp_path)
    made.set(sms=4, pointers=5)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(made.path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_call, "gpu", lambda arch="", platform="cuda": Gpu(NAME, arch or ARCH, 4))
    MEMORY.cards.clear()
    monkeypatch.setattr(gpu_micro, "PLAUSIBLE", 1e12)  # the host is slower than cards
    emulate(monkeypatch)
    _few_rounds(monkeypatch)
    return made


def _few_rounds(monkeypatch):
    """An emulated barrier takes long; and so few of them may take no time, as far as a clock can tell."""
    bench, each = gpu_micro.Bench, gpu_micro._Prepared.each
    monkeypatch.setattr(gpu_micro._Prepared, "each", lambda *how: abs(each(*how)) + 1e-9)
    monkeypatch.setattr(gpu_micro, "Bench", lambda card, *_: bench(card, 1e-3, 1))
    monkeypatch.setattr(gpu_measure, "LEAST_SECONDS", 30.0)


def forget(monkeypatch):
    """As in a new process."""
    MEMORY.cards.clear()
    MEMORY.warned.clear()


def mark(**options):
    return SimpleNamespace(options=Options(**options))


def test_measured_once(fake, monkeypatch):
    spec = variants.spec_of(mark(), "cuda")
    count = fake.launches()
    assert count > 10 and fake.depth() == 0
    found = device_store.load_measured(NAME)
    assert (found.spec, found.driver, found.failed) == (spec, 13000, "")
    assert (spec.name, spec.arch, spec.units, spec.memory_bytes) == (NAME, ARCH, 4, 80 << 30)
    measured = ("launch_seconds", "barrier_seconds", "hop_seconds", "shared_rate", "l2_rate", "memory_rate")
    assert not found.left and all(getattr(spec, name) != getattr(H200, name) for name in measured)
    for _ in range(2):
        assert variants.spec_of(mark(), "cuda") == spec == gpu_call.spec_of()
        forget(monkeypatch)
    assert fake.launches() == count


def test_clear_cache_forgets(fake):
    variants.spec_of(mark(), "cuda")
    count = fake.launches()
    jax_cocktail.clear_cache()
    assert gpu_measure.kept(NAME, ARCH) is None
    variants.spec_of(mark(), "cuda")
    assert fake.launches() > count


def test_a_second_process_measures_nothing(fake, tmp_path):
    spec = variants.spec_of(mark(), "cuda")
    text = (
        "from jax_cocktail.runtime.cuda import measure as gpu_measure, micro as gpu_micro\n"
        "gpu_micro.program = gpu_measure.Card = None\n"
        f"gpu_measure.measure_once({NAME!r}, {ARCH!r})\n"
        f"print(gpu_measure.kept({NAME!r}, {ARCH!r}).barrier_seconds)"
    )
    assert float(python(text).split()[-1]) == spec.barrier_seconds


@pytest.mark.parametrize("how", ["driver", "arch", "broken", "writable"])
def test_what_is_not_of_this_card_is_measured_anew(fake, monkeypatch, how):
    variants.spec_of(mark(), "cuda")
    before, path = fake.launches(), device_store.store_measured(device_store.load_measured(NAME))
    if how == "driver":
        fake.set(version=13010)
    elif how == "arch":
        found = device_store.load_measured(NAME)
        device_store.store_measured(replace(found, spec=replace(found.spec, arch="sm_80")))
    elif how == "broken":
        path.write_text(path.read_text()[:-40])
    else:
        path.chmod(0o666)
    forget(monkeypatch)
    spec = variants.spec_of(mark(), "cuda")
    found = device_store.load_measured(NAME)
    assert fake.launches() > before and found.spec == spec
    assert found.driver == (13010 if how == "driver" else 13000)


@pytest.mark.parametrize(
    ("options", "platform", "gpu"),
    [
        ({"profile": "off"}, "cuda", Gpu(NAME, ARCH, 4)),
        ({"force": "stock"}, "cuda", Gpu(NAME, ARCH, 4)),
        ({}, "cuda", Gpu("", ARCH)),
        ({}, "cpu", Gpu(NAME, ARCH, 4)),
        ({"gpu_arch": "sm_80"}, "cuda", Gpu(NAME, ARCH, 4)),
    ],
    ids=["off", "stock", "ahead of time", "host", "another architecture"],
)
def test_not_measured(fake, monkeypatch, options, platform, gpu):
    monkeypatch.setattr(gpu_call, "gpu", lambda arch="", platform="cuda": replace(gpu, arch=arch or gpu.arch))
    spec = variants.spec_of(mark(**options), platform)
    assert fake.launches() == 0 and device_store.load_measured(NAME) is None
    if platform == "cuda":
        assert spec.barrier_seconds in (H200.barrier_seconds, 1.3e-6)


def test_numbers_of_the_card_of_that_name(monkeypatch):
    """The architecture alone does not say how fast the memory is."""
    monkeypatch.setattr(
        gpu_call, "gpu", lambda arch="", platform="cuda": Gpu(H100.name, arch or H100.arch, 114)
    )
    assert gpu_call.spec_of() == replace(H100, units=114)


def test_a_call_for_a_card_has_it_measured(fake):
    """Where it is lowered, before it is planned. Nothing can run here, so it is not timed."""
    ours = jax_cocktail.jit(lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y) + x, x))
    ours.trace(jnp.ones(8)).lower(lowering_platforms=("cuda",))
    assert fake.launches() > 10


# ---- one at a time -----------------------------------------------------------------------------------------


def test_threads(fake):
    found = []
    threads = [threading.Thread(target=lambda: found.append(variants.spec_of(mark(), "cuda"))) for _ in "123"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once = fake.launches()
    assert len(found) == 3 and found[0] == found[1] == found[2]
    device_store.load_measured(NAME)
    MEMORY.cards.clear()
    variants.spec_of(mark(), "cuda")
    assert fake.launches() == once


def test_who_waited_for_another_process_reads(fake):
    other = Measured(replace(H200, name=NAME, barrier_seconds=2e-6), 13000)
    found = []
    with device_store.one_measures(NAME):
        thread = threading.Thread(target=lambda: found.append(variants.spec_of(mark(), "cuda")))
        thread.start()
        time.sleep(0.2)
        assert not found
        device_store.store_measured(other)
    thread.join()
    assert found == [other.spec] and fake.launches() == 0


def test_who_waited_for_long_takes_the_table(fake, monkeypatch):
    monkeypatch.setattr(device_store, "_LOCK_SECONDS", 0.05)
    with device_store.one_measures(NAME), pytest.warns(CocktailWarning, match="another process"):
        thread_spec = variants.spec_of(mark(), "cuda")
    assert thread_spec.barrier_seconds == H200.barrier_seconds and fake.launches() == 0


# ---- what goes wrong ---------------------------------------------------------------------------------------


def told(match):
    """One remark, and the numbers of the table; then none any more."""
    with pytest.warns(
        CocktailWarning, match=f"{NAME} was not measured.*numbers of a table: .*{match}"
    ) as seen:
        spec = variants.spec_of(mark(), "cuda")
        assert variants.spec_of(mark(), "cuda") == spec
    assert len(seen) == 1 and (spec.name, spec.units) == (NAME, 4)
    assert (spec.barrier_seconds, spec.l2_rate) == (H200.barrier_seconds, H200.l2_rate)


@pytest.mark.parametrize(
    ("symbol", "result", "words"),
    [
        ("cuInit", 100, "CUDA_ERROR_NO_DEVICE"),
        ("cuStreamCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuModuleLoadData", 209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
        ("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuLaunchKernelEx", 719, "CUDA_ERROR_LAUNCH_FAILED"),
    ],
)
def test_a_driver_that_fails(fake, monkeypatch, symbol, result, words):
    fake.fail(symbol, result)
    told(words)
    assert fake.launches() == 0 == fake.depth()
    forget(monkeypatch)
    before_any_launch = symbol in ("cuInit", "cuStreamCreate")
    if before_any_launch:
        assert device_store.load_measured(NAME) is None
        told(words)
        return
    assert words in device_store.load_measured(NAME).failed
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is known, and nobody tries again
        variants.spec_of(mark(), "cuda")


def test_no_compiler(fake, monkeypatch):
    def program(arch):
        raise BuildError("no CUDA compiler was found", "install one")

    monkeypatch.setattr(gpu_micro, "program", program)
    told("no CUDA compiler was found; try: install one")
    assert device_store.load_measured(NAME) is None


def test_another_card_than_jax_uses(fake, monkeypatch):
    monkeypatch.setattr(
        gpu_call, "gpu", lambda arch="", platform="cuda": Gpu("NVIDIA H200", arch or ARCH, 132, 3)
    )
    with pytest.warns(CocktailWarning, match="the driver's card 3 is Fake Card 1 .sm_90., not NVIDIA H200"):
        assert variants.spec_of(mark(), "cuda") == H200
    assert fake.launches() == 0


def test_a_process_that_died_is_no_example(fake, monkeypatch):
    """What it was about to do is not done again with this driver."""

    def dies(*args, **how):
        raise KeyboardInterrupt

    measure = gpu_micro.measure
    monkeypatch.setattr(gpu_micro, "measure", dies)
    with pytest.raises(KeyboardInterrupt):
        variants.spec_of(mark(), "cuda")
    monkeypatch.setattr(gpu_micro, "measure", measure)
    forget(monkeypatch)
    with pytest.warns(CocktailWarning, match="did not end"):
        spec = variants.spec_of(mark(), "cuda")
    assert fake.launches() == 0 and "did not end" in device_store.load_measured(NAME).failed
    assert (spec.units, spec.barrier_seconds) == (4, H200.barrier_seconds)
    fake.set(version=13010)
    assert variants.spec_of(mark(), "cuda").barrier_seconds != H200.barrier_seconds


def test_what_finds_no_time_is_the_table_s(fake, monkeypatch):
    monkeypatch.setattr(gpu_measure, "SECONDS", 0.0)
    monkeypatch.setattr(gpu_measure, "LEAST_SECONDS", 0.0)
    told("no time was left")
    assert fake.launches() == 0


def test_nowhere_to_keep_it(fake, monkeypatch, tmp_path):
    """This process keeps it for itself."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = variants.spec_of(mark(), "cuda")
    count = fake.launches()
    assert count > 10 and variants.spec_of(mark(), "cuda") == spec and fake.launches() == count


def test_jax_says_which_card(monkeypatch):
    device = SimpleNamespace(
        device_kind="NVIDIA H200", compute_capability="9.0", core_count=132, local_hardware_id=5
    )
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    assert gpu_call.gpu() == Gpu("NVIDIA H200", "sm_90", 132, 5)


def test_a_driver_that_is_too_old(fake, monkeypatch, tmp_path):
    """It has what a handler needs, and not what measuring does."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(Fake(tmp_path).path))
    told("the CUDA driver .* is too old: it has no cuDeviceGetCount")


def test_no_driver(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "none.so"))
    told("the CUDA driver cannot be loaded")


def test_several_devices():
    """Over a mesh of cards, each runs our call on its part of the arguments; if it is not known how these are
    divided, stock XLA runs the loop."""
    text = """
        import jax, jax.numpy as jnp, warnings
        from jax import lax
        from jax.sharding import NamedSharding, PartitionSpec
        import jax_cocktail

        mesh = jax.make_mesh((2,), ("x",))
        spread = NamedSharding(mesh, PartitionSpec("x"))
        def looped(x):
            return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y) + x, x)

        ours = jax_cocktail.jit(looped, options={"force": "cocktail"}, in_shardings=spread)
        unknown = jax_cocktail.jit(looped, options={"force": "cocktail"})
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for function in (ours, jax.jit(lambda x: unknown(jnp.sin(x)), in_shardings=spread)):
                module = function.trace(jnp.ones(8)).lower(lowering_platforms=("cuda",)).as_text()
                print(module.count("jax_cocktail_gpu"), "while" in module, [str(w.message) for w in seen])
    """
    said = python(text, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    first, second, *_ = said.splitlines()
    assert first == "1 False []", said
    assert second.startswith("0 True") and "the module runs on 2 devices" in second, said
