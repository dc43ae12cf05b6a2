"""Programs lowered for GPUs where there may be none: what the module says, and what is decided."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.build.device import device_toolchain
from jax_cocktail.build.executable import Executable
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import Artifact
from jax_cocktail.device.amd import MI250X
from jax_cocktail.errors import BuildError, CocktailWarning, StrictModeError
from jax_cocktail.lowering.choice import decisions, variants
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.lowering.lower import lower
from jax_cocktail.lowering.state import Mark, collecting
from jax_cocktail.memory import MEMORY, Recent
from jax_cocktail.recursion.failure import failure_p
from jax_cocktail.runtime import trust
from jax_cocktail.utask.plan import LaunchPlan
from jax_cocktail_tools.models import MODELS
from tests.cpu.fake_gpu.driver import VENDORS, Handlers

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

BINARY = b"not looked at while lowering"
PLAN = LaunchPlan(256, 132, 128, 4096, 1024, 4352, cooperative=True)


# Of a program with barriers. HIP does not capture its launch.
TARGETS = {"cuda": "jax_cocktail_gpu", "rocm": "jax_cocktail_gpu_nograph"}


def function(x):
    return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y) + x, x)


def lowered(options=None, platform="cuda", f=function):
    options = {"force": "cocktail", "strict": True, **(options or {})}
    traced = jax_cocktail.jit(f, options=options).trace(jnp.ones(8))
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def compiler(monkeypatch):
    """Programs are not compiled; `launch` says how they would be launched."""
    settings = SimpleNamespace(launch=PLAN)

    def build(emitted, *, cache_limit_bytes):
        digest = hashlib.sha256(BINARY).hexdigest()
        return Artifact(BINARY, digest, emitted, 0.0, True, "program", settings.launch)

    monkeypatch.setattr(variants, "build", build)
    return settings


# ---- the module --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", gpu_call.PLATFORMS)
def test_call(compiler, platform):
    """One call with all attributes; the workspace is its last result, and nobody uses it."""
    text = lowered(platform=platform)
    assert text.count(f"@{TARGETS[platform]}(") == 1 and "while" not in text
    (digest,) = re.findall(r'digest = "(\w+)"', text)
    (signature,) = re.findall(r"signature = dense<\[([\d, ]+)\]>", text)
    binary, numbers = hashlib.sha256(BINARY).hexdigest(), [int(n) for n in signature.split(",")]
    assert digest == trust.digest_of(PLAN.attribute, numbers, binary)
    assert trust.permission(digest) == trust.COMPILED_HERE
    assert "launch = dense<[2, 256, 132, 128, 4096, 1024, 4352, 1, 0, 132, 132, 0]> : tensor<12xi64>" in text
    assert 'name = "function"' in text and "sync = 0 : i64" in text
    assert f"binary = dense<[{', '.join(map(str, BINARY))}]> : tensor<{len(BINARY)}xui8>" in text
    assert "-> (tensor<8xf32>, tensor<4352xui8>)" in text
    assert "mhlo.backend_config = {" in text


def test_no_card_of_the_platform_has_run_a_program(compiler):
    """Only who asks for it gets programs that were compiled and emulated, and never ran on a card."""
    traced = jax_cocktail.jit(function).trace(jnp.ones(8))
    with pytest.warns(jax_cocktail.CocktailWarning, match='no program has run on an AMD card yet.*force="co'):
        text = traced.lower(lowering_platforms=("rocm",)).as_text()
    assert "@jax_cocktail_gpu" not in text and "while" in text
    assert "@jax_cocktail_gpu_nograph(" in lowered(platform="rocm")


def test_a_side_exit(compiler):
    """The flag is a result of the call. If it is set, stock XLA runs the loop."""

    def body(_, y):
        rare = lax.cond(y[0] > 9, lambda y: lax.real(lax.complex(y, y)), lambda y: y, y)
        return rare + 1

    text = lowered(f=lambda x: lax.fori_loop(0, 5, body, x))
    assert "-> (tensor<8xf32>, tensor<i1>, tensor<4352xui8>)" in text
    assert text.index("@jax_cocktail_gpu(") < text.index("stablehlo.case") < text.index("stablehlo.while")


@pytest.mark.parametrize("platform", TARGETS)
def test_prints(compiler, platform):
    """The log is a result like any other, and JAX's own callback gets it. JAX lowers callbacks for a GPU only
    where there is one."""

    def printing(x):
        def step(y, _):
            jax.debug.print("{}", y)
            return jnp.tanh(y) + x, None

        return lax.scan(step, x, None, length=5)[0]

    closed = jax.make_jaxpr(printing)(jnp.ones(8))
    outcome = lower(
        closed, Mark("printing", jax_cocktail.Options(force="cocktail", strict=True)), "", platform
    )
    text = str(outcome.jaxpr)
    assert f"u32[{5 * (1 + 8)}]" in text and "debug_callback" in text
    assert "target_name=jax_cocktail_gpu" in text and "scan[" not in text


def test_without_workspace(compiler):
    compiler.launch = dataclasses.replace(PLAN, header_bytes=0, workspace_bytes=0, cooperative=False)
    text = lowered()
    assert "ui8>)" not in text.split("@jax_cocktail_gpu(")[1].splitlines()[0].split("->")[1]


@pytest.mark.parametrize(
    ("can_fail", "errors", "target", "sync"),
    [
        (False, "deferred", "jax_cocktail_gpu", 0),
        (True, "deferred", "jax_cocktail_gpu_nograph", 0),
        (False, "sync", "jax_cocktail_gpu_nograph", 1),
        (True, "sync", "jax_cocktail_gpu_nograph", 1),
        (False, "log", "jax_cocktail_gpu_nograph", 2),
    ],
)
def test_errors(compiler, can_fail, errors, target, sync):
    """What can fail, or is waited for, is not captured."""
    compiler.launch = dataclasses.replace(PLAN, can_fail=can_fail)
    text = lowered({"errors": errors})
    assert f"@{target}(" in text and f"sync = {sync} : i64" in text


@pytest.mark.parametrize(
    ("platform", "cooperative", "target"),
    [
        ("cuda", True, "jax_cocktail_gpu"),
        ("rocm", False, "jax_cocktail_gpu"),
        ("rocm", True, "jax_cocktail_gpu_nograph"),
    ],
)
def test_command_buffers(compiler, platform, cooperative, target):
    """HIP does not capture launches of blocks that wait for each other."""
    compiler.launch = dataclasses.replace(PLAN, cooperative=cooperative)
    assert f"@{target}(" in lowered(platform=platform)


def test_what_codes_mean(compiler):
    """A line for every code, if there are codes."""

    def checked(x):
        status = (x[0] > 5).astype(jnp.int32)
        return lax.fori_loop(0, 5, lambda _, y: y + failure_p.bind(status, text="too deep\ntoo many"), x)

    compiler.launch = dataclasses.replace(PLAN, can_fail=True)
    assert r'failures = "too deep\0Atoo many"' in lowered(f=checked)
    assert "failures" not in lowered()
    assert "@jax_cocktail_failure" not in lowered(f=checked)


def test_all_platforms_in_one_process(compiler, monkeypatch):
    """The same traced function, for one and for the other, in both orders."""
    for order in (("cuda", "cpu", "rocm"), ("rocm", "cpu", "cuda")):
        traced = jax_cocktail.jit(function, options={"force": "cocktail"}).trace(jnp.ones(8))
        for platform in order:
            with monkeypatch.context() as patch:
                if platform == "cpu":
                    patch.undo()
                    patch.setattr(variants, "build", _build)
                text = traced.lower(lowering_platforms=(platform,)).as_text()
            calls = {"cpu": "jax_cocktail_cpu", **TARGETS}
            assert {call: f"@{call}(" in text for call in calls.values()} == {
                call: call == calls[platform] for call in calls.values()
            }


_build = variants.build


def depth_of(x):
    """A recursion and a branch in one call."""

    @jax_cocktail.recursive(max_depth=40)
    def count(call, n):
        return lax.cond(n < 2, lambda: n, lambda: call(n - 1) + call(n - 2))

    return lax.cond(x[0] > 0, lambda: count(jnp.int32(8)), lambda: jnp.int32(0))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_for_amd(compiler, name):
    model = MODELS[name]
    f, arguments = model.make(model.batches[0], small=True)
    traced = jax_cocktail.jit(f, options={"force": "cocktail", "strict": True}).trace(*arguments)
    text = traced.lower(lowering_platforms=("rocm",)).as_text()
    assert text.count("@jax_cocktail_gpu") == 1 and "stablehlo.while" not in text


@pytest.mark.parametrize("f", [function, depth_of])
def test_compiled_for_amd(f):
    """To a code object in the module, without a card, by whichever compiler is there."""
    found = {}
    for arch in ("gfx942", "gfx90a"):
        with contextlib.suppress(BuildError):
            found[arch] = device_toolchain(arch)
    if not found:
        pytest.skip("no compiler for AMD's GPUs is installed")
    text = lowered({"gpu_arch": next(iter(found))}, "rocm", f)
    assert text.count("@jax_cocktail_gpu") == 1
    assert not re.search("stablehlo.(while|case)", text)
    (begin,) = re.findall(r'binary = dense<"0x([0-9A-F]{8})', text)
    assert bytes.fromhex(begin) in (b"\x7fELF", b"__CL")


# ---- what is not ours --------------------------------------------------------------------------------------


def test_other_platforms_go_to_stock():
    with pytest.raises(StrictModeError, match="only the platforms cpu, cuda, rocm are supported, not tpu"):
        lowered(platform="tpu")


def test_several_platforms_go_to_stock():
    traced = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True}).trace(jnp.ones(8))
    with pytest.raises(StrictModeError, match="several platforms"):
        traced.lower(lowering_platforms=("cpu", "cuda"))


def test_a_missing_compiler_is_told(compiler, monkeypatch):
    def build(emitted, *, cache_limit_bytes):
        raise BuildError("there is no CUDA compiler", "install one")

    monkeypatch.setattr(variants, "build", build)
    with pytest.warns(CocktailWarning, match="there is no CUDA compiler; try: install one"):
        text = lowered({"strict": False})
    assert "jax_cocktail_gpu" not in text and "while" in text


# ---- decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", gpu_call.PLATFORMS)
def test_without_a_device_the_model_decides(compiler, monkeypatch, tmp_path, platform):
    """Nothing is measured, whatever lies in the call's arguments."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(custom_call, "present", lambda platform: platform == "cpu")
    traced = jax_cocktail.jit(function).trace(jnp.ones(8))
    with collecting() as reports:
        traced.lower(lowering_platforms=(platform,))
    (report,) = reports
    if gpu_call.doubt(platform):
        assert report.why == gpu_call.doubt(platform)
    else:
        assert "not measured" in report.why
        assert f"this process has no {platform} device" in report.why or "model" in report.why
    assert report.stock_seconds is None


def test_decisions_belong_to_devices(monkeypatch):
    closed = jax.make_jaxpr(function)(jnp.ones(8))
    kinds = [
        gpu_call.Gpu("NVIDIA H200", "sm_90"),
        gpu_call.Gpu("NVIDIA H100", "sm_90"),
        gpu_call.Gpu("", "sm_90"),
    ]
    devices = [""]
    for kind in kinds:
        monkeypatch.setattr(gpu_call, "gpu", lambda arch="", platform="cuda", kind=kind: kind)
        devices.append(custom_call.device("cuda"))
        assert custom_call.device("cpu") == ""
    assert len({decisions.key_of(closed, 8, device) for device in devices}) == len(devices)
    assert decisions.key_of(closed, 8) == decisions.key_of(closed, 8, "")


def test_units_are_those_of_the_device(monkeypatch):
    mark = SimpleNamespace(options=jax_cocktail.config.Options(gpu_arch="sm_80"))
    spec = variants.spec_of(mark, "cuda")
    assert (spec.arch, variants.units_of(mark, machine_of(spec))) == ("sm_80", 108)
    amd = variants.spec_of(SimpleNamespace(options=jax_cocktail.config.Options()), "rocm")
    assert (amd.arch, amd.warp, variants.units_of(mark, machine_of(amd))) == ("gfx942", 64, 304)
    three = SimpleNamespace(options=jax_cocktail.config.Options(units=3))
    assert variants.units_of(three, HOST) == variants.units_of(three, machine_of(spec)) == 3
    assert variants.spec_of(three, "cpu") is None


@pytest.mark.parametrize(("arch", "platform"), [("gfx942", "cuda"), ("sm_90", "rocm")])
def test_an_architecture_of_another_platform_is_refused(arch, platform):
    with pytest.raises(BuildError, match=f"{arch} is no architecture of the platform {platform}"):
        lowered({"gpu_arch": arch}, platform)


def test_gpu_without_and_with_a_device(monkeypatch):
    def nothing(backend):
        raise RuntimeError("Unknown backend cuda")

    monkeypatch.setattr(jax, "local_devices", nothing)
    assert gpu_call.gpu() == gpu_call.Gpu("", "sm_90") and gpu_call.gpu("sm_80").arch == "sm_80"
    assert not custom_call.present("cuda") and custom_call.present("cpu")
    card = SimpleNamespace(device_kind="NVIDIA B200", compute_capability="10.0")
    monkeypatch.setattr(jax, "local_devices", lambda backend: [card])
    assert gpu_call.gpu() == gpu_call.Gpu("NVIDIA B200", "sm_100")
    assert gpu_call.gpu("sm_90") == gpu_call.Gpu("NVIDIA B200", "sm_90")
    assert custom_call.present("cuda") and "NVIDIA B200" in custom_call.device("cuda")


def test_amd_gpu_without_and_with_a_device(monkeypatch):
    """The driver appends the modes of the memory to the architecture. Nothing is measured."""
    card = SimpleNamespace(
        device_kind="AMD Instinct MI250X",
        compute_capability="gfx90a:sramecc+:xnack-",
        core_count=104,
        local_hardware_id=3,
    )
    backends = {"cpu": [], "rocm": [card]}
    monkeypatch.setattr(jax, "local_devices", lambda backend: backends.get(backend, []))
    found = gpu_call.gpu(platform="rocm")
    assert found == gpu_call.Gpu("AMD Instinct MI250X", "gfx90a", 104, 3)
    assert custom_call.present("rocm") and not custom_call.present("cuda")
    assert custom_call.device("rocm") == "rocm, AMD Instinct MI250X (gfx90a)"
    assert gpu_call.is_measured(platform="rocm")
    mark = SimpleNamespace(options=jax_cocktail.config.Options())
    spec = variants.spec_of(mark, "rocm")
    assert spec == dataclasses.replace(MI250X, units=104)
    backends.clear()
    assert gpu_call.gpu(platform="rocm") == gpu_call.Gpu("", "gfx942")
    assert gpu_call.gpu("gfx1100", "rocm").arch == "gfx1100"


# ---- registration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platforms", "installed", "expected"),
    [
        (None, "", ()),
        (None, "jax_plugins.xla_cuda13", ("cuda",)),
        (None, "jax_rocm7_plugin", ("rocm",)),
        ("", "jax_plugins.xla_cuda13", ("cuda",)),
        ("cpu", "jax_plugins.xla_cuda13", ()),
        ("cuda", "", ("cuda",)),
        ("rocm,cpu", "", ("rocm",)),
        ("gpu,cpu", "", ("cuda", "rocm")),
    ],
)
def test_expected(monkeypatch, platforms, installed, expected):
    monkeypatch.setattr(gpu_call, "jax", SimpleNamespace(config=SimpleNamespace(jax_platforms=platforms)))
    monkeypatch.setattr(gpu_call, "_installed", lambda module: module == installed)
    assert gpu_call.expected() == expected


def test_packages_are_found():
    assert gpu_call._installed("jax") and not gpu_call._installed("jax_plugins_of_nobody.xla_cuda13")


def registered(monkeypatch, platform):
    """What a first registration registers."""
    found = {}
    monkeypatch.setattr(gpu_call, "_handlers", {})
    monkeypatch.setattr(
        jax.ffi,
        "register_ffi_target",
        lambda name, stages, platform: found.update({name: (stages, platform)}),
    )
    gpu_call.register(platform)
    monkeypatch.delattr(jax.ffi, "register_ffi_target")
    gpu_call.register(platform)  # once only
    return found


@pytest.mark.parametrize("name", gpu_call.PLATFORMS)
def test_registration(monkeypatch, name):
    found = registered(monkeypatch, name)
    assert set(found) == {"jax_cocktail_gpu", "jax_cocktail_gpu_nograph"}
    for stages, platform in found.values():
        assert platform == name.upper() and set(stages) == {"initialize", "execute"}
    graph, without = (found[name][0] for name in ("jax_cocktail_gpu", "jax_cocktail_gpu_nograph"))
    assert repr(graph["execute"]) != repr(without["execute"])


@pytest.fixture
def no_host_compiler(monkeypatch):
    """A process that has registered nothing and cannot build it; call it to install a compiler."""

    def find():
        raise BuildError("no C++ compiler was found", "install g++")

    monkeypatch.setattr(gpu_call, "_handlers", {})
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *args, **named: None)
    monkeypatch.setattr(MEMORY, "warned", Recent())
    with monkeypatch.context() as patch:
        patch.setattr(gpu_call, "host_toolchain", find)
        yield patch.undo


NO_HANDLER = r"the handler of GPU calls cannot be built: no C\+\+ compiler was found; try: install g\+\+"


@pytest.mark.parametrize("platform", gpu_call.PLATFORMS)
def test_without_a_host_compiler_stock_xla_runs_programs(compiler, no_host_compiler, monkeypatch, platform):
    """Whatever compiles for the GPU; and one that is installed later is found."""

    def loop(x):
        return function(x)

    with pytest.warns(CocktailWarning, match=rf"loop: runs on stock XLA \(.*\): {NO_HANDLER}"):
        text = lowered({"strict": False}, platform, loop)
    assert "jax_cocktail_gpu" not in text and "while" in text
    with pytest.raises(BuildError, match=NO_HANDLER):
        lowered({"strict": True}, platform, loop)
    monkeypatch.setattr(gpu_call, "expected", lambda: (platform,))
    custom_call.register_quietly()
    assert not gpu_call._handlers
    no_host_compiler()
    assert f"@{TARGETS[platform]}(" in lowered({"strict": True}, platform, loop)
    assert list(gpu_call._handlers) == [platform]


def test_a_host_compiler_that_fails_is_told(monkeypatch):
    """With what it said."""

    def build(*args):
        raise BuildError("the C++ compiler failed (exit status 1)", "another CXX", "error: no room")

    monkeypatch.setattr(gpu_call, "_handlers", {})
    monkeypatch.setattr(gpu_call, "build_gpu_handler", build)
    with pytest.raises(BuildError, match=r"of GPU calls cannot be built: (?s:.)*\nerror: no room$"):
        gpu_call.register()


def test_a_handler_that_cannot_be_loaded_is_told(monkeypatch, tmp_path):
    rubbish = tmp_path / "rubbish.so"
    rubbish.write_bytes(b"no library")
    monkeypatch.setattr(gpu_call, "_handlers", {})
    monkeypatch.setattr(gpu_call, "build_gpu_handler", lambda *args: str(rubbish))
    with pytest.raises(BuildError, match="of GPU calls cannot be loaded .*; try: empty the cache"):
        gpu_call.register()
    assert not gpu_call._handlers


@pytest.mark.parametrize(("platforms", "count"), [("cuda,cpu", 1), ("rocm,cpu", 1), ("cpu", 0)])
def test_import_registers_where_gpus_are_expected(platforms, count):
    """Without a GPU and without CUDA, and without starting a backend."""
    text = (
        "from jax_cocktail import jit; from jax_cocktail.lowering.edge import gpu_call;"
        "from jax._src import xla_bridge;"
        "print(len(gpu_call._handlers), xla_bridge.backends_are_initialized())"
    )
    environment = {
        **os.environ,
        "JAX_PLATFORMS": platforms,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(count), "False"]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_attributes_arrive(vendor, compiler, tmp_path: Path, monkeypatch):
    """XLA hands the attributes of a call over as the handler wants them. (XLA for the CPU: it has no stream,
    and here there is no driver, which is what is told first.)"""
    monkeypatch.setenv(vendor.variable, str(tmp_path / "no_driver.so"))
    handlers = Handlers(tmp_path, vendor)
    target = f"jax_cocktail_gpu_attributes_{vendor}"
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handlers.execute), platform="cpu")
    test_attributes_arrive.kept = (*getattr(test_attributes_arrive, "kept", ()), handlers)
    artifact = Executable(BINARY, hashlib.sha256(BINARY).hexdigest(), "", (), 0, (), PLAN)
    attributes = gpu_call.attributes_of(artifact, "decode", sync=True)

    def call(x):
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((4352,), np.uint8)]
        bound = custom_call._bound(artifact, PLAN.attribute, [x], types)
        binary = np.frombuffer(BINARY, np.uint8)
        return jax.ffi.ffi_call(target, types)(x, binary=binary, **bound, **attributes)[0]

    with pytest.raises(Exception, match=vendor.said("the program decode: the CUDA driver cannot be loaded")):
        jax.block_until_ready(jax.jit(call)(jnp.ones(8)))
