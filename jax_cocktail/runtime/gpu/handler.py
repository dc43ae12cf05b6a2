"""A GPU's handler in Python, used if no host compiler can build `gpu_src/handler.cc`.

XLA calls it through ctypes. Its behaviour and error messages equal those of handler.cc (the same tests run
both), but a call takes tens of microseconds more.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from jax_cocktail.runtime import trust
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
from jax_cocktail.runtime.gpu.driver import CAPTURE_RELAXED, NO_BINARY, DeviceFacts, Driver, Launch
from jax_cocktail.utask.plan import LaunchPlan

_Key = tuple[str, LaunchPlan, tuple[int, ...], tuple[int, int]]  # the last: the place


@dataclass(frozen=True, slots=True)
class _Program:
    """A program loaded into a place. `parameter_bytes`: the size of the kernel's parameters, 0 if unknown;
    `error_word`: the host address of pinned memory, or 0; `error_address`: its device address."""

    launch: Launch
    parameter_bytes: int
    parameter_limit: int
    error_word: int = 0
    error_address: int = 0


class Handlers:
    """The handlers for the driver that `open_driver` returns at first use: the counterparts of
    ck_gpu_initialize, ck_gpu_execute and ck_gpu_execute_nograph. `programs`: those loaded so far."""

    def __init__(self, open_driver: Callable[[], Driver]) -> None:
        self.programs: dict[_Key, _Program] = {}
        self._driver, self._lock = open_driver, threading.Lock()
        self.initialize = handler(partial(self._run, executes=False))
        self.execute = handler(partial(self._run, captured=True), COMMAND_BUFFER_COMPATIBLE)
        self.execute_nograph = handler(self._run)

    def _run(self, frame: CallFrame, *, executes: bool = True, captured: bool = False) -> int | None:
        """Runs one call. Returns the address of an XLA error, or None. Raises Refused for our own errors."""
        call = read_call(frame)
        driver = self._driver()
        if driver.problem:
            raise call.refused(FAILED_PRECONDITION, driver.problem)
        wanted = StreamGetArgs(c.sizeof(StreamGetArgs), None, frame.context, None)
        function = c.CFUNCTYPE(c.c_void_p, c.POINTER(StreamGetArgs))(frame.api.contents.stream_get)
        error = function(c.byref(wanted))
        if error:
            return int(error)
        stream = wanted.stream or 0
        with _current(driver, call, stream) as place:
            program = self._find(driver, call, place)
            if not executes:
                return None
            with _logged(call.name) if call.log else nullcontext():
                self._take_error(call, program, "an earlier call")
                _enqueue(driver, frame, call, program, stream)
                if call.sync and not captured:
                    try:
                        driver.call(call, driver.symbols.wait, stream)
                    finally:
                        self._take_error(call, program, "this call")  # more specific than a failed kernel
        return None

    def _find(self, driver: Driver, call: Call, place: tuple[int, int]) -> _Program:
        """The program of a call in the current place; loads it if it is new."""
        key = call.digest, call.plan, call.signature, place
        program = self.programs.get(key)
        if program is None:
            _require_trust(call)
            with self._lock:
                program = self.programs.get(key)
                if program is None:
                    program = self.programs[key] = _load(driver, call)
        return program

    def _take_error(self, call: Call, program: _Program, when: str) -> None:
        """Raises Refused if the program left an error code, and clears the code."""
        if not program.error_word:
            return
        word = c.c_uint32.from_address(program.error_word)
        with self._lock:
            code, word.value = word.value, 0
        if code >> 31:  # of builds with a limit
            block, phase = code >> 16 & 0x7FFF, code & 0xFFFF
            text = f"block {block} waited too long for the others in phase {phase}, in {when}"
            raise call.refused(INTERNAL, f"{text}; please report this")
        lines = call.failures.split("\n")
        if 0 < code <= len(lines) and lines[code - 1]:
            text = f"{lines[code - 1]} (in {when}; its results there are not to be used)"
            raise call.refused(OUT_OF_RANGE, text)
        if code:
            text = f"stopped with code {code} in {when}; its results there are not to be used"
            raise call.refused(INTERNAL, text)


# ---- programs ----------------------------------------------------------------------------------------------


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
    exchange = driver.functions[driver.symbols.capture_mode]
    exchange(c.byref(mode))
    module, word = c.c_void_p(), c.c_void_p()
    try:
        return _filled(driver, call, module, word)
    except Refused:
        if word.value:
            driver.functions[driver.symbols.host_free](word)
        if module.value:
            driver.functions[driver.symbols.unload](module)
        raise
    finally:
        exchange(c.byref(mode))


def _filled(driver: Driver, call: Call, module: c.c_void_p, word: c.c_void_p) -> _Program:
    facts, symbols = driver.describe(call), driver.symbols
    result = driver.functions[symbols.load](c.byref(module), call.binary[0])
    if result == NO_BINARY:
        raise call.refused(
            FAILED_PRECONDITION,
            f"{symbols.load}: {driver.name_of(result)}: it was compiled for another GPU than this one"
            f" ({facts.name}); compile it again on this machine",
        )
    driver.check(call, result, symbols.load)
    chosen = _choose(driver, call, facts, module)
    if not call.plan.can_fail:
        return chosen
    driver.call(call, symbols.host_alloc, c.byref(word), 4, driver.host_flags)
    assert word.value
    c.c_uint32.from_address(word.value).value = 0
    address = c.c_uint64()
    driver.call(call, symbols.host_address, c.byref(address), word, 0)
    return replace(chosen, error_word=word.value, error_address=address.value)


def _room(driver: Driver, call: Call, facts: DeviceFacts, launch: Launch) -> int:
    """The number of blocks of a kernel that can be resident at once, 0 if not even one fits."""
    if launch.shared_bytes > facts.shared_bytes:
        return 0
    if launch.cluster:
        return launch.grid if driver.fits_cluster(call, launch) else 0
    return driver.co_resident(call, launch) * facts.units


def _choose(driver: Driver, call: Call, facts: DeviceFacts, module: c.c_void_p) -> _Program:
    """Chooses a kernel and a grid that fit the device; see handler_programs.h."""
    plan = call.plan
    kernels = (
        (b"ck_resident", plan.resident_shared_bytes, plan.resident_units, plan.most_units, plan.cluster),
        (b"ck_portable", plan.portable_shared_bytes, 1, plan.portable_units, False),
    )
    for name, shared, least, most, cluster in kernels:
        function = c.c_void_p()
        driver.call(call, driver.symbols.find, c.byref(function), module, name)
        assert function.value
        launch = Launch(function.value, plan.most_units, plan.threads, shared, cluster=cluster)
        fit = _room(driver, call, facts, launch)
        if plan.cooperative and not cluster and not facts.cooperative:
            fit = min(fit, 1)
        if not plan.cooperative and fit > 0:
            fit = plan.most_units
        if fit < least:
            continue
        grid = min(fit, most)
        several, cooperative = grid > 1, plan.cooperative and not cluster
        launch = replace(launch, grid=grid, cooperative=several and cooperative, cluster=several and cluster)
        return _Program(launch, driver.parameter_bytes(function.value), facts.parameter_limit)
    raise call.refused(
        RESOURCE_EXHAUSTED,
        f"no block of {plan.threads} threads with {plan.portable_shared_bytes} bytes of shared memory fits"
        f" this device ({facts.name}, {facts.units} multiprocessors, {facts.shared_bytes} bytes per block);"
        ' compile it again on this machine, or use the option force="stock"',
    )


# ---- execution ---------------------------------------------------------------------------------------------


@contextmanager
def _current(driver: Driver, call: Call, stream: int) -> Iterator[tuple[int, int]]:
    """Makes the place of a stream current in the block."""
    place, before = driver.enter(call, stream)
    try:
        yield place
    finally:
        driver.leave(before)


def _pointers(frame: CallFrame, call: Call, program: _Program, driver: Driver) -> tuple[Any, int | None]:
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
            f" limit is {program.parameter_limit} with {driver.release}); pack some of them into one array,"
            f" or update {driver.vendor.of_vendor}",
        )
    if program.parameter_bytes not in (0, size):
        text = f"the call passes {size} bytes of parameters and the kernel takes {program.parameter_bytes}"
        raise call.refused(INVALID_ARGUMENT, text)
    return (c.c_void_p * len(values))(*values), workspace


def _enqueue(driver: Driver, frame: CallFrame, call: Call, program: _Program, stream: int) -> None:
    if not fits(call.signature, frame):
        raise call.refused(INVALID_ARGUMENT, trust.MISFIT)
    pointers, workspace = _pointers(frame, call, program, driver)
    if call.plan.header_bytes and not program.launch.cluster:
        driver.call(call, driver.symbols.memset, workspace or 0, 0, call.plan.header_bytes, stream)
    parameters = (c.c_void_p * 1)(c.addressof(pointers))
    driver.start(call, program.launch, stream, parameters)


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
