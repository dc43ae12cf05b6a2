"""The handler for GPUs against fake drivers: no GPU, CUDA or ROCm is needed."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from jax_cocktail.build import host as build
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.runtime import ffi, trust
from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.emulation import emulator
from tests.cpu.emulation.text import program
from tests.cpu.fake_gpu import frames
from tests.cpu.fake_gpu.calls import ALONE, BINARY, PLAN, Doubling, run, simple
from tests.cpu.fake_gpu.driver import (
    CUDA,
    EXECUTE,
    HERE,
    INSTANTIATE,
    ROCM,
    Call,
    Fake,
    Handlers,
    Vendor,
    Xla,
    compiled,
)
from tests.golden.texts import divided

ONLY_CUDA = pytest.mark.parametrize("vendor", [CUDA], indirect=True, ids=str)

# ---- the interface -----------------------------------------------------------------------------------------


def test_metadata(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """API 0.1, and the trait for command buffers in the one handler that has it."""
    traits = {"initialize": 0, "execute": frames.COMMAND_BUFFER_COMPATIBLE, "execute_nograph": 0}
    for name, expected in traits.items():
        metadata = ffi.Metadata(ctypes.sizeof(ffi.Metadata), traits=99, state_type=99)
        extension = ffi.MetadataExtension(
            ctypes.sizeof(ffi.MetadataExtension), ffi.METADATA_EXTENSION, None, ctypes.pointer(metadata)
        )
        frame = ffi.CallFrame(struct_size=ctypes.sizeof(ffi.CallFrame), stage=INSTANTIATE)
        frame.extension_start = ctypes.addressof(extension)
        assert not getattr(handlers, name)(ctypes.byref(frame))
        assert (metadata.version.major, metadata.version.minor) == (0, 1)
        assert (metadata.traits, metadata.state_type) == (expected, 0)
    assert fake.log() == []


def test_layouts() -> None:
    """The structures in Python are those of jaxlib's header."""
    lines = ['#include "xla/ffi/api/c_api.h"', "#include <stddef.h>"]
    names = {
        ffi.CallFrame: "XLA_FFI_CallFrame",
        ffi.Buffer: "XLA_FFI_Buffer",
        ffi.Buffers: "XLA_FFI_Args",
        ffi.Attributes: "XLA_FFI_Attrs",
        ffi.ByteSpan: "XLA_FFI_ByteSpan",
        frames.Scalar: "XLA_FFI_Scalar",
        frames.Array: "XLA_FFI_Array",
        ffi.Metadata: "XLA_FFI_Metadata",
        ffi.MetadataExtension: "XLA_FFI_Metadata_Extension",
        ffi.ErrorCreateArgs: "XLA_FFI_Error_Create_Args",
        frames.StreamGetArgs: "XLA_FFI_Stream_Get_Args",
    }
    lines += [f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});" for kind, name in names.items()]
    fields = [
        ("XLA_FFI_Api", "XLA_FFI_Error_Create", frames.Api.error_create),
        ("XLA_FFI_Api", "XLA_FFI_Stream_Get", frames.Api.stream_get),
        ("XLA_FFI_CallFrame", "ctx", ffi.CallFrame.context),
        ("XLA_FFI_CallFrame", "args", ffi.CallFrame.operands),
        ("XLA_FFI_CallFrame", "rets", ffi.CallFrame.results),
        ("XLA_FFI_CallFrame", "attrs", ffi.CallFrame.attributes),
        ("XLA_FFI_Buffer", "data", ffi.Buffer.data),
        ("XLA_FFI_Args", "args", ffi.Buffers.items),
        ("XLA_FFI_Attrs", "names", ffi.Attributes.names),
        ("XLA_FFI_Attrs", "attrs", ffi.Attributes.items),
        ("XLA_FFI_Metadata", "traits", ffi.Metadata.traits),
        ("XLA_FFI_Error_Create_Args", "errc", ffi.ErrorCreateArgs.code),
        ("XLA_FFI_Stream_Get_Args", "stream", frames.StreamGetArgs.stream),
    ]
    lines += [f"static_assert(offsetof({name}, {at}) == {field.offset});" for name, at, field in fields]
    lines += [f"static_assert(XLA_FFI_Error_Code_{code.name} == {code.value});" for code in frames.Code]
    assert all(getattr(ffi, code.name, code) == code for code in frames.Code)
    assert (frames.Kind.STRING, trust.DTYPES["int32"]) == (ffi.STRING, ffi.S32)
    names = {"bool": "PRED", "bfloat16": "BF16"}
    for dtype, number in trust.DTYPES.items():
        kind, bits = re.fullmatch(r"([a-z]+)(\d*)", dtype).groups()
        name = names.get(dtype) or {"int": "S", "uint": "U", "float": "F"}[kind] + bits
        lines.append(f"static_assert(XLA_FFI_DataType_{name} == {number});")
    lines += [f"static_assert(XLA_FFI_AttrType_{kind.name} == {kind.value});" for kind in frames.Kind]
    compiled("\n".join(lines) + "\n")


def test_declarations_are_those_of_cuda(tmp_path: Path) -> None:
    """What handler_driver.h says of the driver, against cuda.h."""
    nvcc = shutil.which("nvcc")
    header = nvcc and next(Path(nvcc).resolve().parents[1].glob("**/include/cuda.h"), None)
    if not header:
        pytest.skip("there is no cuda.h here")
    pairs = {
        "kDeviceMultiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
        "kDeviceMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "kDeviceMinor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        "kDeviceCooperativeLaunch": "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH",
        "kDeviceSharedMemoryOptIn": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "kFunctionDynamicSharedBytes": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "kFunctionNonPortableCluster": "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "kLaunchCooperative": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
        "kLaunchCluster": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "kCaptureRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
        "kHostPortable": "CU_MEMHOSTALLOC_PORTABLE",
        "kHostDeviceMap": "CU_MEMHOSTALLOC_DEVICEMAP",
        "kNoBinaryForGpu": "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "kLaunchOutOfResources": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "kLaunchFailed": "CUDA_ERROR_LAUNCH_FAILED",
        "kCooperativeLaunchTooLarge": "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "kSystemNotReady": "CUDA_ERROR_SYSTEM_NOT_READY",
        "kStreamCaptureUnsupported": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "kStreamCaptureWrongThread": "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "sizeof(LaunchConfig)": "sizeof(CUlaunchConfig)",
        "sizeof(LaunchAttribute)": "sizeof(CUlaunchAttribute)",
        "offsetof(LaunchAttribute, value)": "offsetof(CUlaunchAttribute, value)",
        "sizeof(LaunchAttribute::value.cluster)": "sizeof(CUlaunchAttributeValue::clusterDim)",
        "offsetof(LaunchConfig, shared_bytes)": "offsetof(CUlaunchConfig, sharedMemBytes)",
        "offsetof(LaunchConfig, stream)": "offsetof(CUlaunchConfig, hStream)",
        "offsetof(LaunchConfig, attributes)": "offsetof(CUlaunchConfig, attrs)",
        "offsetof(LaunchConfig, num_attributes)": "offsetof(CUlaunchConfig, numAttrs)",
    }
    _agree(CUDA, pairs, ["#include <cuda.h>"], header.parent)


def test_declarations_are_those_of_hip() -> None:
    """The same of HIP, where Debian or ROCm has put its headers."""
    places = (os.environ.get("ROCM_PATH", "/opt" + "/rocm"), "/usr")
    folder = next(
        (Path(p, "include") for p in places if Path(p, "include/hip/hip_version.h").is_file()), None
    )
    if folder is None:
        pytest.skip("there is no hip_runtime_api.h here")
    pairs = {
        "kDeviceMultiprocessors": "hipDeviceAttributeMultiprocessorCount",
        "kDeviceSharedMemory": "hipDeviceAttributeMaxSharedMemoryPerBlock",
        "kDeviceCooperativeLaunch": "hipDeviceAttributeCooperativeLaunch",
        "kCaptureRelaxed": "hipStreamCaptureModeRelaxed",
        "kHostPortable": "hipHostMallocPortable",
        "kHostDeviceMap": "hipHostMallocMapped",
        "kHostCoherent": "hipHostMallocCoherent",
        "kOutOfMemory": "hipErrorOutOfMemory",
        "kNoDevice": "hipErrorNoDevice",
        "kInvalidImage": "hipErrorInvalidImage",
        "kNoBinaryForGpu": "hipErrorNoBinaryForGpu",
        "kInvalidPtx": "hipErrorInvalidKernelFile",
        "kInvalidSource": "hipErrorInvalidSource",
        "kSharedObjectInitFailed": "hipErrorSharedObjectInitFailed",
        "kIllegalAddress": "hipErrorIllegalAddress",
        "kLaunchOutOfResources": "hipErrorLaunchOutOfResources",
        "kLaunchTimeout": "hipErrorLaunchTimeOut",
        "kAssert": "hipErrorAssert",
        "kLaunchFailed": "hipErrorLaunchFailure",
        "kCooperativeLaunchTooLarge": "hipErrorCooperativeLaunchTooLarge",
        "kNotSupported": "hipErrorNotSupported",
        "kStreamCaptureUnsupported": "hipErrorStreamCaptureUnsupported",
        "kStreamCaptureWrongThread": "hipErrorStreamCaptureWrongThread",
    }
    before = [
        "#define __HIP_PLATFORM_AMD__",
        "#define __HIP_DISABLE_CPP_FUNCTIONS__",
        "#include <hip/hip_runtime_api.h>",
        "#include <hip/hip_version.h>",
    ]
    newer = [  # than the headers of Debian 12
        "#if HIP_VERSION_MAJOR < 6",
        "hipError_t hipStreamGetDevice(hipStream_t, hipDevice_t*);",
        "hipError_t hipDrvGetErrorName(hipError_t, const char**);",
        "hipError_t hipDrvGetErrorString(hipError_t, const char**);",
        "hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned,",
        "    unsigned, unsigned, unsigned, hipStream_t, void**);",
        "#endif",
    ]
    _agree(ROCM, pairs, [*before, *newer], folder)


def _agree(vendor: Vendor, pairs: dict[str, str], header: list[str], folder: Path) -> None:
    """The numbers of handler_driver.h are those of a header, and the functions have the same parameters."""
    lines = ['#include "handler_driver.h"', "#include <stddef.h>", *header]
    lines += [f"static_assert(int({ours}) == int({theirs}));" for ours, theirs in pairs.items()]
    # Pointers and handles differ in name only: the number of parameters and each one's size must agree.
    lines += [
        "template <class R, class... A> constexpr int count(R (*)(A...)) { return sizeof...(A); }",
        "template <class R, class... A> constexpr unsigned long bytes(R (*)(A...)) {",
        "  unsigned long total = 0; ((total = total * 31 + sizeof(A)), ...); return total; }",
        "template <class A, class B> constexpr bool agree(A a, B b) {",
        "  return count(a) == count(b) && bytes(a) == bytes(b); }",
    ]
    text = (vendor.includes[0] / "handler_driver.h").read_text()
    found = re.findall(r'REQUIRED\(\w+, "(\w+)",[\s\\]*(\(.*\))\)\s', text)
    assert len(found) == text.count("REQUIRED(") > 20
    lines += [
        f"static_assert(agree((Result(*) {parameters})nullptr, (decltype(&{symbol}))nullptr));"
        for symbol, parameters in found
    ]
    compiled("\n".join(lines) + "\n", f"-I{folder}", vendor=vendor)


# ---- launches ----------------------------------------------------------------------------------------------


def test_launch_and_parameters(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """Memset of the header and launch, on XLA's stream, with all addresses in one parameter."""
    call = simple()
    assert run(handlers, xla, call) is None
    calls = [entry for entry in fake.log() if entry[""] in ("memset", "launch")]
    addresses = [*call.operands, *call.results]
    assert calls == [
        {"": "memset", "at": hex(addresses[3]), "bytes": "256", "value": "0", "stream": hex(xla.stream)},
        {
            "": "launch",
            "kernel": "ck_resident",
            "grid": "132",
            "threads": "256",
            "shared": "100000",
            "cooperative": "1",
            "cluster": "1",
            "stream": hex(xla.stream),
            "pointers": ",".join([*map(hex, addresses), "0"]).replace("0x0", "0"),
        },
    ]
    assert fake.depth() == 0


def test_launch_parameters(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    """They are passed behind the addresses. A program with others is another one."""
    binary = BINARY.replace(b"=40", b"=56")
    for sizes in ((7, 1 << 40), (8, 1 << 41)):
        call = simple(binary, dataclasses.replace(PLAN, sizes=sizes))
        assert run(handlers, xla, call) is None
        assert fake.log("launch")[-1]["pointers"].split(",")[-3:] == ["0", *map(hex, sizes)]
    assert handlers.load_count() == 2
    if not vendor.has_contexts:
        return
    problem = run(handlers, xla, simple(binary))
    assert problem is not None and "passes 40 bytes of parameters and the kernel takes 56" in problem[1]


def test_runs_a_kernel(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(pointers=4)
    doubling = Doubling()
    for x in (1.5, 3.0):  # the second time the header is no longer zero
        doubling.x[0] = x
        assert run(handlers, xla, doubling.call) is None
        assert doubling.y[0] == 2 * x


def test_loads_once(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    for _ in range(3):
        assert run(handlers, xla, simple()) is None
    assert handlers.load_count() == 1 and len(fake.log("load")) == 1
    assert run(handlers, xla, simple(BINARY + b" another")) is None
    assert handlers.load_count() == 2
    # The same binary launched in another way is another program.
    assert run(handlers, xla, simple(plan=dataclasses.replace(PLAN, most_units=100))) is None
    assert handlers.load_count() == 3


def test_execute_alone_loads_too(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    assert simple().invoke(handlers.execute, xla, EXECUTE) is None
    assert len(fake.log("launch")) == 1


@pytest.mark.parametrize(
    ("facts", "plan", "kernel", "grid", "cooperative"),
    [
        ({"sms": 132}, {}, "ck_resident", 132, 1),
        ({"sms": 132}, {"resident_shared_bytes": 250_000}, "ck_portable", 132, 1),
        ({"sms": 66}, {}, "ck_resident", 132, 1),  # two blocks on each
        ({"sms": 14}, {}, "ck_portable", 112, 1),  # a slice of a device
        ({"sms": 14, "shared": 99 << 10}, {"resident_shared_bytes": 1 << 17}, "ck_portable", 112, 1),
        ({"sms": 1}, {}, "ck_portable", 8, 1),
        ({"sms": 1}, {"threads": 1024}, "ck_portable", 2, 1),
        ({"sms": 1, "per_sm": 256}, {}, "ck_portable", 1, 0),
        ({"sms": 160}, {"most_units": 132}, "ck_resident", 132, 1),
        ({"sms": 132, "cooperative": 0}, {}, "ck_portable", 1, 0),
        ({"sms": 132}, {"most_units": 1}, "ck_resident", 1, 0),
        ({"sms": 1}, {"cooperative": False, "header_bytes": 0}, "ck_resident", 132, 0),
        (
            {"sms": 1},
            {"cooperative": False, "header_bytes": 0, "resident_shared_bytes": 240_000},
            "ck_portable",
            132,
            0,
        ),
    ],
)
def test_choice(
    handlers: Handlers,
    xla: Xla,
    fake: Fake,
    facts: dict,
    plan: dict,
    kernel: str,
    grid: int,
    cooperative: int,
) -> None:
    """By what fits on the device at once; blocks that do not wait for each other need not."""
    fake.set(**facts)
    assert run(handlers, xla, simple(plan=dataclasses.replace(PLAN, **plan))) is None
    log = fake.log()
    (launch,) = (entry for entry in log if entry[""] == "launch")
    found = launch["kernel"], int(launch["grid"]), int(launch["cooperative"])
    assert found == (kernel, grid, cooperative)
    barriers = dataclasses.replace(PLAN, **plan).header_bytes > 0
    assert [entry[""] for entry in log if entry[""] == "memset"] == ["memset"] * barriers


NEAR = dataclasses.replace(PLAN, most_units=16, cluster=True)


@ONLY_CUDA
@pytest.mark.parametrize(
    ("facts", "plan", "kernel", "grid", "cluster"),
    [
        ({}, {}, "ck_resident", 16, 16),
        ({}, {"most_units": 8}, "ck_resident", 8, 8),
        ({}, {"most_units": 1}, "ck_resident", 1, 1),
        ({"cooperative": 0}, {}, "ck_resident", 16, 16),
        ({"in_cluster": 8}, {}, "ck_portable", 16, 1),
        ({"in_cluster": 8}, {"most_units": 6}, "ck_resident", 6, 6),
        ({"sms": 7}, {"most_units": 8}, "ck_portable", 8, 1),  # a slice of a device
        ({"sms": 1, "per_sm": 512}, {}, "ck_portable", 2, 1),
        ({"major": 8}, {}, "ck_portable", 16, 1),
        ({}, {"resident_shared_bytes": 240_000}, "ck_portable", 16, 1),
    ],
)
def test_one_cluster(
    handlers: Handlers, xla: Xla, fake: Fake, facts: dict, plan: dict, kernel: str, grid: int, cluster: int
) -> None:
    """Where there is room for the cluster it needs no barriers' words; else the blocks wait as any do."""
    fake.set(**facts)
    call = simple(binary=b"FAKE parameters=40", plan=dataclasses.replace(NEAR, **plan))
    assert run(handlers, xla, call) is None
    log = [entry for entry in fake.log() if entry[""] in ("memset", "launch")]
    launch = log[-1]
    assert (launch["kernel"], int(launch["grid"]), int(launch["cluster"])) == (kernel, grid, cluster)
    assert launch["cooperative"] == str(int(kernel == "ck_portable" and grid > 1))
    assert len(log) == (1 if cluster > 1 else 2)


@ONLY_CUDA
@pytest.mark.parametrize("symbol", ["cuOccupancyMaxActiveClusters", "cuFuncSetAttribute"])
def test_clusters_that_the_driver_refuses(handlers: Handlers, xla: Xla, fake: Fake, symbol: str) -> None:
    """What it says of clusters is no error of the call; what it says of the kernel is."""
    fake.fail(symbol, 1)
    error = run(handlers, xla, simple(plan=NEAR))
    if symbol == "cuFuncSetAttribute":
        assert error is not None and "cuFuncSetAttribute" in error[1]
    else:
        assert error is None and fake.log("launch")[0]["kernel"] == "ck_portable"


@pytest.mark.parametrize("vendor", [ROCM], indirect=True, ids=str)
def test_without_clusters(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    assert run(handlers, xla, simple(binary=b"FAKE parameters=40", plan=NEAR)) is None
    log = [entry for entry in fake.log() if entry[""] in ("memset", "launch")]
    assert (len(log), log[-1]["kernel"], log[-1]["grid"]) == (2, "ck_portable", "16")


def test_nothing_to_clear(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """The call of a program whose units never meet is one launch, with a workspace as well."""
    emitted = divided("batch_4_blocks")
    plan = launch_plan(emitted.program, emitted.plan, emitted.machine)
    assert plan.workspace_bytes > 0 and run(handlers, xla, simple(plan=plan)) is None
    (launch,) = (entry for entry in fake.log() if entry[""] in ("memset", "launch"))
    assert (launch["kernel"], launch["grid"], launch["cooperative"]) == ("ck_resident", "4", "0")


def test_without_workspace(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    call = simple(plan=ALONE, results=2)
    assert run(handlers, xla, call) is None
    (launch,) = fake.log("launch")
    assert launch["pointers"].split(",")[-2:] == ["0", "0"]


def test_two_contexts(handlers: Handlers, fake: Fake) -> None:
    """Each device has its own program and its own choice."""
    fake.set(sms_1=14)
    streams = [Xla(fake.stream(fake.context(device))) for device in (0, 1)]
    for xla in streams * 2:
        assert run(handlers, xla, simple()) is None
    assert [entry["grid"] for entry in fake.log("launch")] == ["132", "112"] * 2
    assert handlers.load_count() == 2 and fake.depth() == 0


@ONLY_CUDA
def test_context_at_the_address_of_another(handlers: Handlers, fake: Fake) -> None:
    """What was loaded into a context that is gone is not used, wherever the table keeps it."""
    context = fake.context()
    xla = Xla(fake.stream(context))
    assert run(handlers, xla, simple()) is None
    for _ in range(1024):
        fake.replace_context(context)
    assert run(handlers, xla, simple()) is None
    assert handlers.load_count() == 2


@ONLY_CUDA
def test_drivers_without_identities(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(ids=0)
    assert run(handlers, xla, simple()) is None and run(handlers, xla, simple()) is None
    assert handlers.load_count() == 1


def test_capture(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """A call is captured, also one that initialize did not see, and every replay runs it."""
    fake.set(pointers=4)
    doubling = Doubling()
    fake.capture(xla.stream, True)
    assert doubling.call.invoke(handlers.execute, xla, EXECUTE) is None
    fake.capture(xla.stream, False)
    assert doubling.y[0] == 0
    for x in (4.0, 6.0):
        doubling.x[0] = x
        assert fake.replay(xla.stream) == 2
        assert doubling.y[0] == 2 * x


def test_threads(handlers: Handlers, fake: Fake) -> None:
    """Many threads, streams and devices at once load every program once."""
    contexts = [fake.context(device) for device in (0, 1)]
    binaries = [BINARY + bytes([65 + k]) for k in range(4)]
    problems: list[object] = []

    def work(seed: int) -> None:
        xla = Xla(fake.stream(contexts[seed % 2]))
        for k in range(40):
            problems.append(run(handlers, xla, simple(binaries[(k + seed) % 4])))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(problems) == {None} and len(problems) == 320
    assert handlers.load_count() == 8
    assert len(fake.log("launch")) == 320


@pytest.mark.parametrize("cluster", [False, True])
def test_emulated_program(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor, cluster: bool) -> None:
    """From a program's text to its answer, through the handler: blocks that wait for each other."""
    body = """
      i32* x = (i32*)workspace;
      if (ck_lane() == 0) x[unit->index] = ((const i32*)operands[0])[unit->index];
      ck_arrive(unit); ck_wait(unit);
      i32 total = 0;
      for (i32 i = 0; i < 4; ++i) total += x[i];
      if (ck_lane() == 0) ((i32*)results[0])[unit->index] = total;
    """
    if cluster and not vendor.has_contexts:
        pytest.skip("there are no clusters")
    text = f"#define CK_ONE_CLUSTER {cluster:d}\n" + program(body, threads=64, most_units=4, shared=64)
    gpu = emulator.WAVES_OF_64 if vendor is ROCM else emulator.CUDA
    binary = emulator.build(text, gpu=gpu).path.read_bytes()
    x, y = np.arange(1, 5, dtype=np.int32), np.zeros(4, np.int32)
    workspace = np.zeros(512, np.uint8)
    plan = LaunchPlan(256, 4, 64, 4096, 4096, 512, cooperative=True, cluster=cluster)
    call = Call(binary, plan, [x.ctypes.data], [y.ctypes.data, workspace.ctypes.data])
    fake.set(pointers=4)
    assert run(handlers, xla, call) is None
    log = {entry[""]: entry for entry in fake.log()}
    assert "emulation:" not in log
    assert (log["launch"]["grid"], log["launch"]["cluster"]) == ("4", "4" if cluster else "1")
    np.testing.assert_array_equal(y, [10] * 4)


def test_thread_sanitizer(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler from many threads, in a program of its own: Python is not built for this."""
    target = tmp_path / "threads"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", *(f"-I{path}" for path in vendor.includes)]
    command = [*build.host_toolchain().command, *flags, str(HERE / "threads.cc"), "-o", str(target)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("the library of the sanitizer is not installed")
    assert done.returncode == 0, done.stderr
    fake = compiled(HERE / vendor.fake, "-fsanitize=thread", "-DFAKE_QUIET", vendor=vendor)
    monkeypatch.setenv(vendor.variable, str(fake))
    ran = subprocess.run([str(target)], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert ran.stdout == "2 programs, 1600 launches\n"
