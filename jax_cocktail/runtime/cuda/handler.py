"""The handler for NVIDIA GPUs in Python, used if no host compiler can build `cuda_src/handler.cc`.

XLA calls it through ctypes. Its behaviour and error messages equal those of handler.cc (the same tests run
both), but a call takes tens of microseconds more.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count
from typing import Any

from jax_cocktail.device.spec import PORTABLE_CLUSTER
from jax_cocktail.runtime import trust
from jax_cocktail.runtime.cuda.driver import (
    ATTRIBUTES,
    CAPTURE_RELAXED,
    DYNAMIC_SHARED_BYTES,
    FIRST_WITH_CLUSTERS,
    HOST_DEVICE_MAP,
    HOST_PORTABLE,
    NO_BINARY,
    NON_PORTABLE_CLUSTER,
    Driver,
    launch_config,
    the_driver,
)
from jax_cocktail.runtime.ffi import (
    COMMAND_BUFFER_COMPATIBLE,
    DATA_LOSS,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    OUT_OF_RANGE,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    Call,
    CallFrame,
    Refused,
    StreamGetArgs,
    fits,
    handler,
    read_call,
)
from jax_cocktail.utask.plan import LaunchPlan

# ---- programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Program:
    """A program loaded into a context. `cooperative`, `cluster`: the launch mode, at most one of them;
    `parameter_bytes`: the size of the kernel's parameters, 0 if unknown; `error_word`: the host address of
    pinned memory, or 0; `error_address`: its device address."""

    function: int
    grid: int
    shared_bytes: int
    cooperative: bool
    cluster: bool
    parameter_bytes: int
    parameter_limit: int
    error_word: int = 0
    error_address: int = 0


@dataclass(frozen=True, slots=True)
class _Facts:
    """The attributes of a device, by their names in the driver's table. `cooperative`: 0 or 1."""

    units: int
    shared_bytes: int
    cooperative: int
    major: int
    minor: int


_programs: dict[tuple[str, LaunchPlan, tuple[int, ...], int, int], _Program] = {}
_lock = threading.Lock()


def _find(driver: Driver, call: Call, context: int) -> _Program:
    """The program of a call in the current context; loads it if it is new."""
    identity = c.c_ulonglong()
    if "cuCtxGetId" in driver.functions:
        driver.functions["cuCtxGetId"](context, c.byref(identity))
    key = call.digest, call.plan, call.signature, context, identity.value
    program = _programs.get(key)
    if program is None:
        _require_trust(call)
        with _lock:
            program = _programs.get(key)
            if program is None:
                program = _programs[key] = _load(driver, call)
    return program


def _require_trust(call: Call) -> None:
    """Raises Refused if the call is damaged or not permitted."""
    binary = hashlib.sha256(c.string_at(*call.binary)).hexdigest()
    actual = trust.digest_of(call.plan.attribute, call.signature, binary)
    if actual != call.digest:
        raise call.refused(
            DATA_LOSS,
            f"it is damaged (SHA-256 {actual[:16]}..., expected {call.digest[:16]}...); remove the executable"
            " from the cache",
        )
    if trust.permission(actual) == trust.REFUSED:
        raise call.refused(PERMISSION_DENIED, trust.NOT_PERMITTED.format(digest=actual))


def _load(driver: Driver, call: Call) -> _Program:
    mode = c.c_int(CAPTURE_RELAXED)  # these calls do not disturb a capture of this or another thread
    exchange = driver.functions["cuThreadExchangeStreamCaptureMode"]
    exchange(c.byref(mode))
    module, word = c.c_void_p(), c.c_void_p()
    try:
        return _filled(driver, call, module, word)
    except Refused:
        if word.value:
            driver.functions["cuMemFreeHost"](word)
        if module.value:
            driver.functions["cuModuleUnload"](module)
        raise
    finally:
        exchange(c.byref(mode))


def _filled(driver: Driver, call: Call, module: c.c_void_p, word: c.c_void_p) -> _Program:
    facts = _facts(driver, call)
    result = driver.functions["cuModuleLoadData"](c.byref(module), call.binary[0])
    if result == NO_BINARY:
        raise call.refused(
            FAILED_PRECONDITION,
            "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU: it was compiled for another GPU than this one"
            f" (sm_{facts.major}{facts.minor}); compile it again on this machine",
        )
    driver.check(call, result, "cuModuleLoadData")
    # Since CUDA 12.1 a kernel may have more parameters (from Volta on).
    limit = 32764 if driver.version >= 12010 and facts.major >= 7 else 4096
    chosen = _choose(driver, call, facts, module, limit)
    if not call.plan.can_fail:
        return chosen
    driver.call(call, "cuMemHostAlloc", c.byref(word), 4, HOST_PORTABLE | HOST_DEVICE_MAP)
    assert word.value
    c.c_uint32.from_address(word.value).value = 0
    address = c.c_uint64()
    driver.call(call, "cuMemHostGetDevicePointer_v2", c.byref(address), word, 0)
    return replace(chosen, error_word=word.value, error_address=address.value)


def _facts(driver: Driver, call: Call) -> _Facts:
    device, value = c.c_int(), c.c_int()
    driver.call(call, "cuCtxGetDevice", c.byref(device))
    found = []
    for field in fields(_Facts):
        driver.call(call, "cuDeviceGetAttribute", c.byref(value), ATTRIBUTES[field.name], device)
        found.append(value.value)
    return _Facts(*found)


def _co_resident(driver: Driver, call: Call, facts: _Facts, function: c.c_void_p, shared: int) -> int:
    """The number of blocks of a kernel that can be resident at once, 0 if not even one fits."""
    if shared > facts.shared_bytes:
        return 0
    driver.call(call, "cuFuncSetAttribute", function, DYNAMIC_SHARED_BYTES, shared)
    blocks, threads = c.c_int(), call.plan.threads
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    driver.call(call, name, c.byref(blocks), function, threads, shared)
    return blocks.value * facts.units


def _in_one_cluster(driver: Driver, call: Call, facts: _Facts, function: c.c_void_p, shared: int) -> int:
    """The number of blocks of a kernel if they fit as one cluster, else 0."""
    ask = driver.functions.get("cuOccupancyMaxActiveClusters")
    if ask is None or facts.major < FIRST_WITH_CLUSTERS or shared > facts.shared_bytes:
        return 0
    driver.call(call, "cuFuncSetAttribute", function, DYNAMIC_SHARED_BYTES, shared)
    blocks = call.plan.most_units
    if blocks > PORTABLE_CLUSTER and driver.functions["cuFuncSetAttribute"](
        function, NON_PORTABLE_CLUSTER, 1
    ):
        return 0
    found = c.c_int()
    config = launch_config(blocks, call.plan.threads, shared, 0, cooperative=False, cluster=blocks)
    return blocks if ask(c.byref(found), function, c.byref(config)) == 0 and found.value > 0 else 0


def _choose(driver: Driver, call: Call, facts: _Facts, module: c.c_void_p, limit: int) -> _Program:
    """Chooses a kernel and a grid that fit the device; see handler_programs.h."""
    plan = call.plan
    kernels = (
        (b"ck_resident", plan.resident_shared_bytes, plan.resident_units, plan.most_units, plan.cluster),
        (b"ck_portable", plan.portable_shared_bytes, 1, plan.portable_units, False),
    )
    for name, shared, least, most, cluster in kernels:
        function = c.c_void_p()
        driver.call(call, "cuModuleGetFunction", c.byref(function), module, name)
        room = _in_one_cluster if cluster else _co_resident
        fit = room(driver, call, facts, function, shared)
        if plan.cooperative and not cluster and not facts.cooperative:
            fit = min(fit, 1)
        if not plan.cooperative and fit > 0:
            fit = plan.most_units
        if fit < least:
            continue
        offset, size = c.c_size_t(), c.c_size_t()
        ask = driver.functions.get("cuFuncGetParamInfo")
        if ask is None or ask(function, 0, c.byref(offset), c.byref(size)) != 0:
            size.value = 0
        grid = min(fit, most)
        assert function.value
        alone = grid == 1
        cooperative = plan.cooperative and not (alone or cluster)
        return _Program(function.value, grid, shared, cooperative, cluster and not alone, size.value, limit)
    raise call.refused(
        RESOURCE_EXHAUSTED,
        f"no block of {plan.threads} threads with {plan.portable_shared_bytes} bytes of shared memory fits"
        f" this device (sm_{facts.major}{facts.minor}, {facts.units} multiprocessors, {facts.shared_bytes}"
        ' bytes per block); compile it again on this machine, or use the option force="stock"',
    )


# ---- execution ---------------------------------------------------------------------------------------------


@contextmanager
def _current(driver: Driver, call: Call, stream: int) -> Iterator[int]:
    """Makes the context of a stream current in the block."""
    context, before = c.c_void_p(), c.c_void_p()
    driver.call(call, "cuStreamGetCtx", stream, c.byref(context))
    driver.functions["cuCtxGetCurrent"](c.byref(before))
    pushed = before.value != context.value
    if pushed:
        driver.call(call, "cuCtxPushCurrent_v2", context)
    try:
        yield context.value or 0
    finally:
        if pushed:
            driver.functions["cuCtxPopCurrent_v2"](c.byref(before))


def _take_error(call: Call, program: _Program, when: str) -> None:
    """Raises Refused if the program left an error code, and clears the code."""
    if not program.error_word:
        return
    word = c.c_uint32.from_address(program.error_word)
    with _lock:
        code, word.value = word.value, 0
    if code >> 31:  # of builds with a limit
        block, phase = code >> 16 & 0x7FFF, code & 0xFFFF
        text = f"block {block} waited too long for the others in phase {phase}, in {when}; please report this"
        raise call.refused(INTERNAL, text)
    lines = call.failures.split("\n")
    if 0 < code <= len(lines) and lines[code - 1]:
        text = f"{lines[code - 1]} (in {when}; its results there are not to be used)"
        raise call.refused(OUT_OF_RANGE, text)
    if code:
        text = f"stopped with code {code} in {when}; its results there are not to be used"
        raise call.refused(INTERNAL, text)


def _pointers(frame: CallFrame, call: Call, program: _Program, version: int) -> tuple[Any, int | None]:
    """The kernel's parameter, and the address of the workspace."""
    operands = [frame.operands.items[i].contents.data for i in range(frame.operands.size)]
    results = [frame.results.items[i].contents.data for i in range(frame.results.size)]
    workspace = None
    if call.plan.workspace_bytes:
        if not results:
            raise call.refused(INVALID_ARGUMENT, "the call has no workspace result")
        workspace = results.pop()
    values = (*operands, *results, workspace, program.error_address or None, *call.plan.sizes)
    count, size = len(operands) + len(results), 8 * len(values)
    if size > program.parameter_limit:
        raise call.refused(
            RESOURCE_EXHAUSTED,
            f"{count} operands and results are more than a kernel takes here ({size} bytes of parameters, the"
            f" limit is {program.parameter_limit} with CUDA {version // 1000}.{version % 1000 // 10}); pack"
            " some of them into one array, or update NVIDIA's driver",
        )
    if program.parameter_bytes not in (0, size):
        text = f"the call passes {size} bytes of parameters and the kernel takes {program.parameter_bytes}"
        raise call.refused(INVALID_ARGUMENT, text)
    return (c.c_void_p * len(values))(*values), workspace


def _enqueue(driver: Driver, frame: CallFrame, call: Call, program: _Program, stream: int) -> None:
    if not fits(call.signature, frame):
        raise call.refused(INVALID_ARGUMENT, trust.MISFIT)
    pointers, workspace = _pointers(frame, call, program, driver.version)
    if call.plan.header_bytes and not program.cluster:
        driver.call(call, "cuMemsetD8Async", workspace or 0, 0, call.plan.header_bytes, stream)
    config = launch_config(
        program.grid,
        call.plan.threads,
        program.shared_bytes,
        stream,
        cooperative=program.cooperative,
        cluster=program.grid if program.cluster else 0,
    )
    parameters = (c.c_void_p * 1)(c.addressof(pointers))
    driver.call(call, "cuLaunchKernelEx", c.byref(config), program.function, parameters, None)


def _run(frame: CallFrame, *, executes: bool = True, captured: bool = False) -> int | None:
    """Runs one call. Returns the address of an XLA error, or None. Raises Refused for our own errors."""
    call = read_call(frame)
    driver = the_driver()
    if driver.problem:
        raise call.refused(FAILED_PRECONDITION, driver.problem)
    wanted = StreamGetArgs(c.sizeof(StreamGetArgs), None, frame.context, None)
    function = c.CFUNCTYPE(c.c_void_p, c.POINTER(StreamGetArgs))(frame.api.contents.stream_get)
    error = function(c.byref(wanted))
    if error:
        return int(error)
    stream = wanted.stream or 0
    with _current(driver, call, stream) as context:
        program = _find(driver, call, context)
        if not executes:
            return None
        with _logged(call.name) if call.log else nullcontext():
            _take_error(call, program, "an earlier call")
            _enqueue(driver, frame, call, program, stream)
            if call.sync and not captured:
                try:
                    driver.call(call, "cuStreamSynchronize", stream)
                finally:
                    _take_error(call, program, "this call")  # more specific than a failed kernel
    return None


_numbers = count(1)


@contextmanager
def _logged(name: str) -> Iterator[None]:
    """Writes a line when a call begins and one when it ends, as runtime_log.h does."""
    number, start, how = next(_numbers), time.monotonic(), "fails"
    _tell(number, name, "begins")
    try:
        yield
        how = "ends"
    finally:
        _tell(number, name, f"{how} after {(time.monotonic() - start) * 1e3:.3f} ms")


def _tell(number: int, name: str, what: str) -> None:
    os.write(2, f"jax_cocktail: call {number}: {name} {what}\n".encode(errors="backslashreplace"))


# The counterparts of ck_gpu_initialize, ck_gpu_execute and ck_gpu_execute_nograph in handler.cc.
initialize = handler(partial(_run, executes=False))
execute = handler(partial(_run, captured=True), COMMAND_BUFFER_COMPATIBLE)
execute_nograph = handler(_run)
