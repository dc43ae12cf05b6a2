"""Errors that the handler for GPUs tells."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import re
from pathlib import Path

import pytest

from jax_cocktail.runtime import trust
from tests.cpu.fake_gpu import frames
from tests.cpu.fake_gpu.calls import BINARY, PLAN, Doubling, memory, refused, run, simple
from tests.cpu.fake_gpu.driver import CUDA, EXECUTE, ROCM, Call, Fake, Handlers, Vendor, Xla
from tests.cpu.fake_gpu.frames import Code

NOT_PERMITTED = "neither this process nor this user's cache has compiled it, so its machine code does not run"
MISFIT = (
    "the call passes other types, shapes or shared buffers than the program was compiled for; the module was"
    " changed: compile it again"
)


@pytest.mark.parametrize(
    ("symbol", "result", "code", "words"),
    [
        ("cuModuleLoadData", 209, Code.FAILED_PRECONDITION, "another GPU than this one (sm_90)"),
        ("cuModuleLoadData", 2, Code.RESOURCE_EXHAUSTED, "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("cuModuleLoadData", 222, Code.FAILED_PRECONDITION, "newer driver"),
        ("cuModuleGetFunction", 500, Code.FAILED_PRECONDITION, "CUDA_ERROR_NOT_FOUND"),
        ("cuLaunchKernelEx", 720, Code.FAILED_PRECONDITION, "the cooperative launch was refused"),
        ("cuLaunchKernelEx", 801, Code.FAILED_PRECONDITION, "the cooperative launch was refused"),
        ("cuLaunchKernelEx", 701, Code.RESOURCE_EXHAUSTED, "registers or shared memory"),
        ("cuLaunchKernelEx", 719, Code.INTERNAL, 'errors="sync"'),
        ("cuLaunchKernelEx", 900, Code.FAILED_PRECONDITION, "command buffer"),
        ("cuLaunchKernelEx", 998, Code.FAILED_PRECONDITION, "unknown error (998"),
        ("cuMemsetD8Async", 1, Code.FAILED_PRECONDITION, 'force="stock"'),
        ("cuFuncSetAttribute", 1, Code.FAILED_PRECONDITION, "cuFuncSetAttribute"),
        ("cuOccupancyMaxActiveBlocksPerMultiprocessor", 1, Code.FAILED_PRECONDITION, "Occupancy"),
        ("cuCtxGetDevice", 201, Code.FAILED_PRECONDITION, "CUDA_ERROR_INVALID_CONTEXT"),
        ("cuStreamGetCtx", 201, Code.FAILED_PRECONDITION, "cuStreamGetCtx"),
        ("cuCtxPushCurrent", 201, Code.FAILED_PRECONDITION, "cuCtxPushCurrent"),
    ],
)
def test_errors_of_the_driver(
    handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor, symbol: str, result: int, code: int, words: str
) -> None:
    """Each names the program, the call and what to try; the next execution may succeed."""
    symbol, words = vendor.symbol(symbol), vendor.said(words)
    if not symbol:
        pytest.skip("there is no such function")
    fake.fail(symbol, result, times=1)
    found, text = refused(handlers, xla, simple())
    assert found == code and text.startswith("jax_cocktail: the program decode: ")
    assert words in text and (symbol in text)
    assert fake.depth() == 0
    assert run(handlers, xla, simple()) is None


def test_failed_loads_leave_nothing(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    fake.fail(vendor.symbol("cuMemHostGetDevicePointer"), 1, times=1)
    refused(handlers, xla, simple(plan=dataclasses.replace(PLAN, can_fail=True)), graph=False)
    names = [entry[""] for entry in fake.log()]
    assert names == ["load", "pinned", "unpinned", "unload"]
    allocates = vendor.symbol("cuMemHostAlloc")
    fake.fail(allocates, 2, times=1)
    code, text = refused(handlers, xla, simple(plan=dataclasses.replace(PLAN, can_fail=True)), graph=False)
    assert code == Code.RESOURCE_EXHAUSTED and allocates in text
    assert handlers.load_count() == 0


def test_wrong_architecture(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    fake.set(major=8, minor=0)
    _, text = refused(handlers, xla, simple())
    assert vendor.said("another GPU than this one (sm_80)") in text and "compile it again" in text


def test_too_much_shared_memory(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(shared=49152)
    plan = dataclasses.replace(PLAN, portable_shared_bytes=65536)
    code, text = refused(handlers, xla, simple(plan=plan))
    assert code == Code.RESOURCE_EXHAUSTED
    assert "256 threads with 65536 bytes of shared memory" in text and "49152 bytes per block" in text


@pytest.mark.parametrize("vendor", [CUDA], indirect=True, ids=str)
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
            assert code == Code.RESOURCE_EXHAUSTED and f"the limit is {most}" in text


def test_limit_of_parameters_of_hip(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    """It names none."""
    fake.set(version=60342134)
    call = Call(b"FAKE", PLAN, memory(1) * 509, memory(3))
    if vendor.platform == "rocm":
        code, text = refused(handlers, xla, call)
        assert code == Code.RESOURCE_EXHAUSTED and "the limit is 4096 with HIP 6.3)" in text
    else:
        assert run(handlers, xla, call) is None


def test_wrong_number_of_arrays(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    if vendor.has_contexts:  # HIP does not say what a kernel takes
        code, text = refused(handlers, xla, simple(results=2))
        assert code == Code.INVALID_ARGUMENT and "32 bytes of parameters and the kernel takes 40" in text
    code, text = refused(handlers, xla, simple(results=0))
    assert code == Code.INVALID_ARGUMENT and "no workspace result" in text


def test_damaged_binary(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    call = simple()
    call.digest = "0" * 64
    code, text = refused(handlers, xla, call)
    assert code == Code.DATA_LOSS and "damaged" in text
    assert fake.log("load") == []


def test_what_nobody_permits_is_not_loaded(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    call = simple(BINARY + b" " + os.urandom(8).hex().encode())
    call.trusted = False
    code, text = refused(handlers, xla, call)
    assert code == Code.PERMISSION_DENIED and NOT_PERMITTED in text
    assert "load(trust=...)" in text and fake.log("load") == []
    call.trusted = True
    assert run(handlers, xla, call) is None and len(fake.log("load")) == 1


def test_the_digest_covers_how_a_binary_is_called(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """Also after the program has been loaded: what else a module says about it is not believed."""
    honest = simple()
    assert run(handlers, xla, honest) is None
    signature = trust.signature([("uint8", (9,))], [("uint8", ())] * 3, ())
    own = trust.signature([("uint8", ())], [("uint8", ())] * 3, ())
    digest = trust.digest_of(PLAN.attribute, own, hashlib.sha256(BINARY).hexdigest())
    more, longer = (dataclasses.replace(PLAN, **x) for x in ({"workspace_bytes": 1 << 30}, {"sizes": (9,)}))
    others = [Call(BINARY, plan, [1], [2, 3, 4]) for plan in (more, longer)]
    for call in (Call(BINARY, PLAN, [1], [2, 3, 4], signature=signature), *others):
        call.digest = digest
        code, text = refused(handlers, xla, call)
        assert code == Code.DATA_LOSS and "damaged" in text


@pytest.mark.parametrize(
    "signature",
    [
        trust.signature([("uint8", (2,))], [("uint8", ())] * 3, ()),
        trust.signature([("float32", ())], [("uint8", ())] * 3, ()),
        trust.signature([("uint8", ())], [("uint8", ())] * 2, ()),
        trust.signature([("uint8", ())], [("uint8", ())] * 3, [(0, 0)]),
        trust.signature([("uint8", ())], [("uint8", ())] * 3, [(0, 3)]),
        trust.signature([("uint8", ())], [("uint8", ())] * 3, [(-1, 0)]),
        (*trust.signature([("uint8", ())], [("uint8", ())] * 3, ()), 0),
        trust.signature([("uint8", ())], [("uint8", ())] * 3, ())[:-1],
        (1, 3),
    ],
)
def test_buffers_that_a_program_was_not_compiled_for(
    handlers: Handlers, xla: Xla, fake: Fake, signature: tuple[int, ...]
) -> None:
    call = simple()
    call.signature = signature
    code, text = refused(handlers, xla, call)
    assert code == Code.INVALID_ARGUMENT and MISFIT in text and fake.log("launch") == []


def test_operands_that_become_results(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    call = simple()
    call.results = [call.operands[0], *call.results[1:]]
    call.signature = trust.signature([("uint8", ())], [("uint8", ())] * 3, [(0, 0)])
    assert run(handlers, xla, call) is None


def test_attributes_are_checked(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    short = simple()
    short.digest = "abc"
    call = simple()
    frame = call.frame(xla, EXECUTE)
    frame.attributes.size = 5  # without the last one
    numbers = ctypes.cast(frame.attributes.items[2], ctypes.POINTER(frames.Array)).contents
    other = simple()
    future = other.frame(xla, EXECUTE)
    numbers = ctypes.cast(future.attributes.items[2], ctypes.POINTER(frames.Array)).contents
    ctypes.c_int64.from_address(numbers.data).value = 3
    for bad in (short.frame(xla, EXECUTE), frame, future):
        for name in ("initialize", "execute", "execute_nograph"):
            error = getattr(handlers, name)(ctypes.byref(bad))
            code, text = xla.errors[error - 1]
            assert code == Code.INVALID_ARGUMENT and "needs the attributes" in text


def test_error_word_is_told_at_the_next_call(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True))
    doubling.x[0] = -1
    assert run(handlers, xla, doubling.call, graph=False) is None
    doubling.x[0] = 1
    fake.log()
    code, text = refused(handlers, xla, doubling.call, graph=False)
    assert code == Code.INTERNAL
    assert "the program decode: stopped with code 5 in an earlier call" in text and "not to be used" in text
    assert fake.log("launch") == [] and fake.log("synchronize") == []
    assert run(handlers, xla, doubling.call, graph=False) is None  # told once
    assert doubling.y[0] == 2


def test_codes_with_a_meaning(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """Of a program whose call has a line for every code."""
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True))
    for lines, words, expected in (
        ("a\nb\nc\nd\nf is too deep; raise max_depth=8\ng", "f is too deep; raise max_depth=8 (in", 11),
        ("a\nb\nc\nd\nlast", "last (in an earlier call; its results there are not to be used)", 11),
        ("a\nb\nc\nd", "stopped with code 5 in an earlier call", Code.INTERNAL),
        ("a\nb\nc\nd\n\ng", "stopped with code 5 in an earlier call", Code.INTERNAL),
    ):
        doubling.call.failures = lines
        doubling.x[0] = -1
        assert run(handlers, xla, doubling.call, graph=False) is None
        doubling.x[0] = 1
        code, text = refused(handlers, xla, doubling.call, graph=False)
        assert code == expected and f"the program decode: {words}" in text
        assert run(handlers, xla, doubling.call, graph=False) is None
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True), sync=1)
    doubling.call.failures = "a\nb\nc\nd\nlast"
    doubling.x[0] = -1
    assert "last (in this call; its results" in refused(handlers, xla, doubling.call, graph=False)[1]


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


def test_sync_and_a_kernel_that_died(handlers: Handlers, xla: Xla, fake: Fake, vendor: Vendor) -> None:
    """The word says more than the driver; without one the driver's error is told."""
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True), sync=1)
    waits = vendor.symbol("cuStreamSynchronize")
    fake.fail(waits, 719)
    code, text = refused(handlers, xla, doubling.call, graph=False)
    assert code == Code.INTERNAL and vendor.said(f"{waits}: CUDA_ERROR_LAUNCH_FAILED (719") in text
    doubling.x[0] = -1
    assert "stopped with code 5 in this call" in refused(handlers, xla, doubling.call, graph=False)[1]


def test_calls_tell_of_themselves(handlers: Handlers, xla: Xla, fake: Fake, capfd) -> None:
    """When they begin and when they end, whatever happens; others tell nothing."""
    fake.set(pointers=4)
    doubling = Doubling(dataclasses.replace(PLAN, can_fail=True), sync=2)
    assert run(handlers, xla, doubling.call, graph=False) is None
    doubling.x[0] = -1
    assert "code 5 in this call" in refused(handlers, xla, doubling.call, graph=False)[1]
    lines = capfd.readouterr().err.splitlines()
    said = [re.sub(r"\d+(\.\d+)?", "N", line) for line in lines]
    name = re.sub(r"\d+", "N", doubling.call.name)
    assert said == [
        f"jax_cocktail: call N: {name} {what}"
        for what in ("begins", "ends after N ms", "begins", "fails after N ms")
    ]
    assert len(fake.log("synchronize")) == 2
    for sync in (0, 1):
        assert run(handlers, xla, Doubling(sync=sync).call, graph=False) is None
    assert capfd.readouterr().err == ""


def test_nothing_waits_without_being_asked(handlers: Handlers, xla: Xla, fake: Fake) -> None:
    """Not in a call that may be captured, whatever its attribute says."""
    fake.set(pointers=4)
    assert run(handlers, xla, Doubling().call, graph=False) is None
    assert run(handlers, xla, Doubling(sync=1).call, graph=True) is None
    assert fake.log("synchronize") == []


# ---- no driver ---------------------------------------------------------------------------------------------


def test_no_driver(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vendor.variable, str(tmp_path / vendor.library))
    handlers = Handlers(tmp_path, vendor)
    code, text = refused(handlers, Xla(0), simple())
    assert code == Code.FAILED_PRECONDITION
    expected = vendor.said("jax_cocktail: the program decode: the CUDA driver cannot be loaded (")
    assert text.startswith(expected) and vendor.library in text and vendor.variable in text


def test_the_library_that_is_loaded_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the releases of HIP that of XLA, whose streams it knows, wherever it was found."""
    monkeypatch.delenv(ROCM.variable, raising=False)
    fake = Fake(tmp_path, "-Wl,-soname,libamdhip64.so.6", vendor=ROCM)
    assert run(Handlers(tmp_path, ROCM), Xla(fake.stream(fake.context())), simple()) is None
    assert len(fake.log("launch")) == 1


@pytest.mark.parametrize("result", [100, 803])
def test_no_device(vendor: Vendor, tmp_path: Path, fake: Fake, result: int) -> None:
    fake.fail(vendor.symbol("cuInit"), result)
    code, text = refused(Handlers(tmp_path, vendor), Xla(0), simple())
    words = "CUDA_VISIBLE_DEVICES" if result == 100 else "nvidia-smi"
    assert code == Code.FAILED_PRECONDITION and vendor.said(words) in text


def test_old_driver(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Fake(tmp_path, "-DFAKE_OLD", vendor=vendor)
    old.set(version=vendor.old)
    monkeypatch.setenv(vendor.variable, str(old.path))
    _, text = refused(Handlers(tmp_path, vendor), Xla(0), simple())
    launches = vendor.symbol("cuLaunchKernelEx")
    assert f"too old ({vendor.said('CUDA 11.7')}, without {launches})" in text
    assert vendor.said("11.8 or newer") in text
