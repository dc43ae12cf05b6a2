"""The handler for NVIDIA GPUs, built and in Python, against a fake driver: no GPU and no CUDA is needed."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from jax_cocktail import build
from jax_cocktail.lowering import ffi_layout as ffi
from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.cuda_text import program
from tests.cpu.emulation import emulator
from tests.cpu.fake_cuda.driver import (
    EXECUTE,
    HERE,
    INCLUDES,
    INITIALIZE,
    INSTANTIATE,
    Call,
    Fake,
    Handlers,
    Xla,
    compiled,
)

PLAN = LaunchPlan(
    header_bytes=256,
    most_units=132,
    threads=256,
    resident_shared_bytes=100_000,
    portable_shared_bytes=4096,
    workspace_bytes=1024,
    cooperative=True,
)
ALONE = dataclasses.replace(PLAN, header_bytes=0, most_units=1, workspace_bytes=0, cooperative=False)
BINARY = b"FAKE arch=90 parameters=40"  # an operand, two results, workspace, error word

# Doubles its operand; the workspace behind the header must be as it was, the header zero.
KERNELS = """
#include <stdint.h>
#define KERNEL(NAME)                                                                            \\
  extern "C" __attribute__((visibility("default"))) void NAME(void* const* p, unsigned grid,    \\
                                                              unsigned threads, unsigned) {     \\
    auto* workspace = (unsigned char*)p[2];                                                     \\
    for (int i = 0; i < 256; ++i) {                                                             \\
      if (workspace[i] != 0) return;                                                            \\
    }                                                                                           \\
    if (workspace[256] != 7) return;                                                            \\
    workspace[0] = 1;                                                                           \\
    auto x = *(const float*)p[0];                                                               \\
    *(float*)p[1] = 2 * x;                                                                      \\
    auto* word = (uint32_t*)p[3];                                                               \\
    if (word && x < 0) *word = x < -1 ? 0x80050003u : 5;                                        \\
  }
KERNEL(ck_resident)
KERNEL(ck_portable)
"""


@pytest.fixture(params=["built", "callback"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(made.path))
    return made


@pytest.fixture
def handlers(kind: str, tmp_path: Path) -> Handlers:
    return Handlers(kind, tmp_path)


@pytest.fixture
def xla(fake: Fake) -> Xla:
    return Xla(fake.stream(fake.context()))


class Doubling:
    """A call of KERNELS, with its memory."""

    def __init__(self, plan: LaunchPlan = PLAN, sync: int = 0) -> None:
        self.x, self.y = np.zeros(1, np.float32), np.zeros(1, np.float32)
        self.workspace = np.full(plan.workspace_bytes, 7, np.uint8)
        results = [self.y.ctypes.data, self.workspace.ctypes.data]
        self.call = Call(compiled(KERNELS).read_bytes(), plan, [self.x.ctypes.data], results, sync=sync)


def memory(count: int) -> list[int]:
    """Addresses of that many blocks of 1 KB."""
    block = np.zeros(1024 * count, np.uint8)
    memory.kept.append(block)
    return [block.ctypes.data + 1024 * k for k in range(count)]


memory.kept = []


def run(handlers: Handlers, xla: Xla, call: Call, graph: bool = True) -> tuple[int, str] | None:
    """What XLA does at an execution."""
    problem = call.invoke(handlers.initialize, xla, INITIALIZE)
    return problem or call.invoke(handlers.execute if graph else handlers.execute_nograph, xla, EXECUTE)


def simple(binary: bytes = BINARY, plan: LaunchPlan = PLAN, results: int = 3) -> Call:
    addresses = memory(1 + results)
    return Call(binary, plan, addresses[:1], addresses[1:])


# ---- the interface -----------------------------------------------------------------------------------------


def test_metadata(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """API 0.1, and the trait for command buffers in the one handler that has it."""
    traits = {"initialize": 0, "execute": ffi.COMMAND_BUFFER_COMPATIBLE, "execute_nograph": 0}
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
        ffi.Scalar: "XLA_FFI_Scalar",
        ffi.Array: "XLA_FFI_Array",
        ffi.Metadata: "XLA_FFI_Metadata",
        ffi.MetadataExtension: "XLA_FFI_Metadata_Extension",
        ffi.ErrorCreateArgs: "XLA_FFI_Error_Create_Args",
        ffi.StreamGetArgs: "XLA_FFI_Stream_Get_Args",
    }
    lines += [f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});" for kind, name in names.items()]
    fields = [
        ("XLA_FFI_Api", "XLA_FFI_Error_Create", ffi.Api.error_create),
        ("XLA_FFI_Api", "XLA_FFI_Stream_Get", ffi.Api.stream_get),
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
        ("XLA_FFI_Stream_Get_Args", "stream", ffi.StreamGetArgs.stream),
    ]
    lines += [f"static_assert(offsetof({name}, {at}) == {field.offset});" for name, at, field in fields]
    codes = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "INTERNAL", "DATA_LOSS")
    lines += [f"static_assert(XLA_FFI_Error_Code_{code} == {getattr(ffi, code)});" for code in codes]
    kinds = ("ARRAY", "SCALAR", "STRING")
    lines += [f"static_assert(XLA_FFI_AttrType_{kind} == {getattr(ffi, kind)});" for kind in kinds]
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
        "kLaunchCooperative": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
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
        "offsetof(LaunchConfig, shared_bytes)": "offsetof(CUlaunchConfig, sharedMemBytes)",
        "offsetof(LaunchConfig, stream)": "offsetof(CUlaunchConfig, hStream)",
        "offsetof(LaunchConfig, attributes)": "offsetof(CUlaunchConfig, attrs)",
        "offsetof(LaunchConfig, num_attributes)": "offsetof(CUlaunchConfig, numAttrs)",
    }
    lines = ['#include "handler_driver.h"', "#include <stddef.h>", "#include <cuda.h>"]
    lines += [f"static_assert(int({ours}) == int({theirs}));" for ours, theirs in pairs.items()]
    # Pointers and handles differ in name only: the number of parameters and each one's size must agree.
    lines += [
        "template <class R, class... A> constexpr int count(R (*)(A...)) { return sizeof...(A); }",
        "template <class R, class... A> constexpr unsigned long bytes(R (*)(A...)) {",
        "  unsigned long total = 0; ((total = total * 31 + sizeof(A)), ...); return total; }",
        "template <class A, class B> constexpr bool agree(A a, B b) {",
        "  return count(a) == count(b) && bytes(a) == bytes(b); }",
        "#define CK_AGREE(field, symbol, parameters) \\",
        "  static_assert(agree((Result(*) parameters)nullptr, (decltype(&CK_OF(field)))nullptr), symbol);",
        "#define CK_OF(field) CK_NAMED_##field",
    ]
    renamed = {"MaxActiveBlocks": "OccupancyMaxActiveBlocksPerMultiprocessor"}
    renamed["ExchangeCaptureMode"] = "ThreadExchangeStreamCaptureMode"
    text = (INCLUDES[0] / "handler_driver.h").read_text()
    for field in dict.fromkeys(part.split(",")[0] for part in text.split("REQUIRED(")[1:]):
        if field.isidentifier() and field != "REQUIRED":
            lines.append(f"#define CK_NAMED_{field} cu{renamed.get(field, field)}")
    lines.append("CK_DRIVER_CALLS(CK_AGREE, CK_SKIP)")
    lines.insert(0, "#define CK_SKIP(field, symbol, parameters)")
    compiled("\n".join(lines) + "\n", f"-I{header.parent}")


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
            "stream": hex(xla.stream),
            "pointers": ",".join([*map(hex, addresses), "0"]).replace("0x0", "0"),
        },
    ]
    assert fake.depth() == 0


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


def test_context_at_the_address_of_another(handlers: Handlers, fake: Fake) -> None:
    """What was loaded into a context that is gone is not used."""
    context = fake.context()
    xla = Xla(fake.stream(context))
    assert run(handlers, xla, simple()) is None
    fake.replace_context(context)
    assert run(handlers, xla, simple()) is None
    assert handlers.load_count() == 2


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


def test_emulated_program(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """From a program's text to its answer, through the handler: blocks that wait for each other."""
    body = """
      i32* x = (i32*)workspace;
      if (ck_lane() == 0) x[unit->index] = ((const i32*)operands[0])[unit->index];
      ck_arrive(unit); ck_wait(unit);
      i32 total = 0;
      for (i32 i = 0; i < 4; ++i) total += x[i];
      if (ck_lane() == 0) ((i32*)results[0])[unit->index] = total;
    """
    text = program(body, threads=32, most_units=4, shared=64)
    binary = emulator.build(text).path.read_bytes()
    x, y = np.arange(1, 5, dtype=np.int32), np.zeros(4, np.int32)
    workspace = np.zeros(512, np.uint8)
    plan = LaunchPlan(256, 4, 32, 4096, 4096, 512, cooperative=True)
    call = Call(binary, plan, [x.ctypes.data], [y.ctypes.data, workspace.ctypes.data])
    fake.set(pointers=4)
    assert run(handlers, xla, call) is None
    assert fake.log("emulation:") == []
    np.testing.assert_array_equal(y, [10] * 4)


# ---- errors ------------------------------------------------------------------------------------------------


def refused(handlers: Handlers, xla: Xla, call: Call, graph: bool = True) -> tuple[int, str]:
    problem = run(handlers, xla, call, graph)
    assert problem is not None, "the call went through"
    return problem


@pytest.mark.parametrize(
    ("symbol", "result", "code", "words"),
    [
        ("cuModuleLoadData", 209, ffi.FAILED_PRECONDITION, "another GPU than this one (sm_90)"),
        ("cuModuleLoadData", 2, ffi.RESOURCE_EXHAUSTED, "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("cuModuleLoadData", 222, ffi.FAILED_PRECONDITION, "newer driver"),
        ("cuModuleGetFunction", 500, ffi.FAILED_PRECONDITION, "CUDA_ERROR_NOT_FOUND"),
        ("cuLaunchKernelEx", 720, ffi.FAILED_PRECONDITION, "the cooperative launch was refused"),
        ("cuLaunchKernelEx", 801, ffi.FAILED_PRECONDITION, "the cooperative launch was refused"),
        ("cuLaunchKernelEx", 701, ffi.RESOURCE_EXHAUSTED, "registers or shared memory"),
        ("cuLaunchKernelEx", 719, ffi.INTERNAL, 'errors="sync"'),
        ("cuLaunchKernelEx", 900, ffi.FAILED_PRECONDITION, "command buffer"),
        ("cuLaunchKernelEx", 998, ffi.FAILED_PRECONDITION, "unknown error (998"),
        ("cuMemsetD8Async", 1, ffi.FAILED_PRECONDITION, 'force="stock"'),
        ("cuFuncSetAttribute", 1, ffi.FAILED_PRECONDITION, "cuFuncSetAttribute"),
        ("cuOccupancyMaxActiveBlocksPerMultiprocessor", 1, ffi.FAILED_PRECONDITION, "Occupancy"),
        ("cuCtxGetDevice", 201, ffi.FAILED_PRECONDITION, "CUDA_ERROR_INVALID_CONTEXT"),
        ("cuStreamGetCtx", 201, ffi.FAILED_PRECONDITION, "cuStreamGetCtx"),
        ("cuCtxPushCurrent", 201, ffi.FAILED_PRECONDITION, "cuCtxPushCurrent"),
    ],
)
def test_errors_of_the_driver(
    handlers: Handlers, xla: Xla, fake: Fake, symbol: str, result: int, code: int, words: str
) -> None:
    """Each names the program, the call and what to try; the next execution may succeed."""
    fake.fail(symbol, result, times=1)
    found, text = refused(handlers, xla, simple())
    assert found == code and text.startswith("jax_cocktail: the program decode: ")
    assert words in text and (symbol in text)
    assert fake.depth() == 0
    assert run(handlers, xla, simple()) is None


def test_failed_loads_leave_nothing(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.fail("cuMemHostGetDevicePointer", 1, times=1)
    refused(handlers, xla, simple(plan=dataclasses.replace(PLAN, can_fail=True)), graph=False)
    names = [entry[""] for entry in fake.log()]
    assert names == ["load", "pinned", "unpinned", "unload"]
    fake.fail("cuMemHostAlloc", 2, times=1)
    code, text = refused(handlers, xla, simple(plan=dataclasses.replace(PLAN, can_fail=True)), graph=False)
    assert code == ffi.RESOURCE_EXHAUSTED and "cuMemHostAlloc" in text
    assert handlers.load_count() == 0


def test_wrong_architecture(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(major=8, minor=0)
    _, text = refused(handlers, xla, simple())
    assert "another GPU than this one (sm_80)" in text and "compile it again" in text


def test_too_much_shared_memory(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(shared=49152)
    plan = dataclasses.replace(PLAN, portable_shared_bytes=65536)
    code, text = refused(handlers, xla, simple(plan=plan))
    assert code == ffi.RESOURCE_EXHAUSTED
    assert "256 threads with 65536 bytes of shared memory" in text and "49152 bytes per block" in text


@pytest.mark.parametrize(
    ("version", "major", "most"), [(13000, 9, 32764), (12000, 9, 4096), (12080, 6, 4096), (12010, 7, 32764)]
)
def test_limit_of_parameters(
    handlers: Handlers, xla: Xla, fake: Fake, version: int, major: int, most: int
) -> None:
    fake.set(version=version, major=major)
    most_pointers = most // 8
    for count in (most_pointers, most_pointers + 1):
        binary = f"FAKE parameters={8 * count}".encode()
        operands = memory(1) * (count - 4)
        call = Call(binary, PLAN, operands, memory(3))
        if count == most_pointers:
            assert run(handlers, xla, call) is None
        else:
            code, text = refused(handlers, xla, call)
            assert code == ffi.RESOURCE_EXHAUSTED and f"the limit is {most}" in text


def test_wrong_number_of_arrays(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    code, text = refused(handlers, xla, simple(results=2))
    assert code == ffi.INVALID_ARGUMENT and "32 bytes of parameters and the kernel takes 40" in text
    code, text = refused(handlers, xla, simple(results=0))
    assert code == ffi.INVALID_ARGUMENT and "no workspace result" in text


def test_damaged_binary(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    call = simple()
    call.digest = "0" * 64
    code, text = refused(handlers, xla, call)
    assert code == ffi.DATA_LOSS and "damaged" in text
    assert fake.log("load") == []


def test_attributes_are_checked(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    short = simple()
    short.digest = "abc"
    call = simple()
    frame = call.frame(xla, EXECUTE)
    frame.attributes.size = 4  # without the last one
    numbers = ctypes.cast(frame.attributes.items[2], ctypes.POINTER(ffi.Array)).contents
    other = simple()
    future = other.frame(xla, EXECUTE)
    numbers = ctypes.cast(future.attributes.items[2], ctypes.POINTER(ffi.Array)).contents
    ctypes.c_int64.from_address(numbers.data).value = 2
    for bad in (short.frame(xla, EXECUTE), frame, future):
        for name in ("initialize", "execute", "execute_nograph"):
            error = getattr(handlers, name)(ctypes.byref(bad))
            code, text = xla.errors[error - 1]
            assert code == ffi.INVALID_ARGUMENT and "needs the attributes" in text


def test_error_word_is_told_at_the_next_call(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True))
    doubling.x[0] = -1
    assert run(handlers, xla, doubling.call, graph=False) is None
    doubling.x[0] = 1
    fake.log()
    code, text = refused(handlers, xla, doubling.call, graph=False)
    assert code == ffi.INTERNAL
    assert "the program decode: stopped with code 5 in an earlier call" in text and "NaN" in text
    assert fake.log("launch") == [] and fake.log("synchronize") == []
    assert run(handlers, xla, doubling.call, graph=False) is None  # told once
    assert doubling.y[0] == 2


def test_error_word_of_one_context_is_not_that_of_another(handlers: Handlers, fake: Fake) -> None:
    fake.set(pointers=4)
    streams = [Xla(fake.stream(fake.context(device))) for device in (0, 1)]
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True))
    doubling.x[0] = -1
    assert run(handlers, streams[0], doubling.call, graph=False) is None
    doubling.x[0] = 1
    assert run(handlers, streams[1], doubling.call, graph=False) is None
    assert "code 5" in refused(handlers, streams[0], doubling.call, graph=False)[1]


def test_sync_tells_at_once(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True), sync=1)
    doubling.x[0] = -1
    assert "stopped with code 5 in this call" in refused(handlers, xla, doubling.call, graph=False)[1]
    doubling.x[0] = -2
    text = refused(handlers, xla, doubling.call, graph=False)[1]
    assert "block 5 waited too long for the others in phase 3, in this call" in text
    doubling.x[0] = 2
    assert run(handlers, xla, doubling.call, graph=False) is None
    assert doubling.y[0] == 4 and len(fake.log("synchronize")) == 3


def test_sync_and_a_kernel_that_died(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """The word says more than the driver; without one the driver's error is told."""
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True), sync=1)
    fake.fail("cuStreamSynchronize", 719)
    code, text = refused(handlers, xla, doubling.call, graph=False)
    assert code == ffi.INTERNAL and "cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED (719" in text
    doubling.x[0] = -1
    assert "stopped with code 5 in this call" in refused(handlers, xla, doubling.call, graph=False)[1]


def test_nothing_waits_without_being_asked(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """Not in a call that may be captured, whatever its attribute says."""
    fake.set(pointers=4)
    assert run(handlers, xla, Doubling().call, graph=False) is None
    assert run(handlers, xla, Doubling(sync=1).call, graph=True) is None
    assert fake.log("synchronize") == []


# ---- no driver ---------------------------------------------------------------------------------------------


def test_no_driver(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "libcuda.so.1"))
    handlers = Handlers(kind, tmp_path)
    code, text = refused(handlers, Xla(0), simple())
    assert code == ffi.FAILED_PRECONDITION
    assert text.startswith("jax_cocktail: the program decode: the CUDA driver cannot be loaded (")
    assert "libcuda.so.1" in text and "JAX_COCKTAIL_CUDA_DRIVER" in text


@pytest.mark.parametrize("result", [100, 803])
def test_no_device(kind: str, tmp_path: Path, fake: Fake, result: int) -> None:
    fake.fail("cuInit", result)
    code, text = refused(Handlers(kind, tmp_path), Xla(0), simple())
    words = "CUDA_VISIBLE_DEVICES" if result == 100 else "nvidia-smi"
    assert code == ffi.FAILED_PRECONDITION and words in text


def test_old_driver(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Fake(tmp_path, "-DFAKE_OLD")
    old.set(version=11070)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(old.path))
    _, text = refused(Handlers(kind, tmp_path), Xla(0), simple())
    assert "too old (CUDA 11.7, without cuLaunchKernelEx)" in text and "11.8 or newer" in text


def test_thread_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler from many threads, in a program of its own: Python is not built for this."""
    target = tmp_path / "threads"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", *(f"-I{path}" for path in INCLUDES)]
    command = [*build.host_toolchain().command, *flags, str(HERE / "threads.cc"), "-o", str(target)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("the library of the sanitizer is not installed")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(compiled(HERE / "fake_cuda.cc", "-fsanitize=thread")))
    ran = subprocess.run([str(target)], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert ran.stdout == "2 programs, 1600 launches\n"
