"""Turns regions into XLA custom calls: handler registration, the call, and the rewritten jaxpr."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex
import numpy as np

from jax_cocktail import config, portable
from jax_cocktail.build.executable import Executable
from jax_cocktail.build.host import build_runtime, host_toolchain
from jax_cocktail.build.library import provided
from jax_cocktail.cache import prepare_root
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.lowering.edge.adapter import at_source_of, is_key, labelled, primitive_name, with_attribute
from jax_cocktail.lowering.edge.capture import Capture, Region
from jax_cocktail.lowering.edge.rerun import Rewritten, Told, deliver, run_again
from jax_cocktail.primitives import CONTROL_FLOW, physical_type
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.runtime import python, trust
from jax_cocktail.utask.plan import LaunchPlan

if TYPE_CHECKING:
    from jax_cocktail.lowering.edge.shardings import Division

TARGET = "jax_cocktail_cpu"
TARGETS = (TARGET, gpu_call.TARGET, gpu_call.TARGET_WITHOUT_GRAPH)
PLATFORM = "cpu"
PLATFORMS = (PLATFORM, *gpu_call.PLATFORMS)  # the supported platforms, by jax's names
# Scratch memory up to this size is a result of the call, and XLA places it beside its other buffers. Larger
# results may be fresh pages in every call, so larger scratch memory comes from a pool of the runtime.
WORKSPACE_RESULT_BYTES = 256 << 10

_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_runtime = b""  # the file of the library


def register(platform: str = PLATFORM) -> None:
    """Registers the handlers of a platform with XLA, once per process.

    Raises:
      BuildError: the runtime library cannot be built or loaded.
    """
    if platform in gpu_call.PLATFORMS:
        gpu_call.register(platform)
    else:
        register_cpu()


def register_cpu(runtime: bytes = b"") -> None:
    """Registers the handlers for the CPU. `runtime`: the runtime library, if it need not be built."""
    global _library, _runtime
    with _lock:
        if _library is not None:
            return
        most_units = config.resolve({}, scopes=()).units
        library, runtime = provided(
            "the runtime library",
            runtime,
            lambda: build_runtime(jax.ffi.include_dir(), host_toolchain()),
        )
        trust.guard(library)
        python.provide(library)
        with suppress(OSError):  # then no program is loaded from there
            library.ck_cpu_set_folder(os.fsencode(prepare_root().absolute()))
        library.ck_cpu_state_type_id.restype = ctypes.c_void_p
        library.ck_cpu_state_type_info.restype = ctypes.c_void_p
        state_type = {
            "type_id": _capsule(library.ck_cpu_state_type_id()),
            "type_info": _capsule(library.ck_cpu_state_type_info()),
        }
        stages = {
            "instantiate": jax.ffi.pycapsule(library.ck_cpu_instantiate),
            "execute": jax.ffi.pycapsule(library.ck_cpu_execute),
        }
        # The type comes first: its registration fills in the id that the handlers report.
        jax.ffi.register_ffi_type("jax_cocktail_state", state_type, platform=PLATFORM)
        jax.ffi.register_ffi_target(TARGET, stages, platform=PLATFORM)
        library.ck_cpu_units.restype = ctypes.c_int64
        library.ck_cpu_units_now.restype = ctypes.c_int64
        library.ck_cpu_exits.restype = ctypes.c_int64
        library.ck_cpu_set_units.argtypes = [ctypes.c_int64]
        library.ck_cpu_set_units(most_units)
        library.ck_cpu_load.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
        library.ck_cpu_load.argtypes += [ctypes.c_char_p, ctypes.c_size_t]
        python.hear(library)
        python.usual_limit(library, config.resolve({}, scopes=()).max_seconds)
        config.tell_limits(functools.partial(python.limit, library))
        _library, _runtime = library, runtime


def library() -> ctypes.CDLL | None:
    """The runtime library for the CPU; None if it is not registered or could not be built."""
    return _library


def runtime_binary() -> bytes:
    """The file of the runtime library for the CPU; empty if it is not loaded."""
    return _runtime


def units() -> int:
    """The most units that a call may use in this process (from cores, quota and JAX_COCKTAIL_UNITS); 0 if the
    runtime library is not loaded."""
    return 0 if _library is None else int(_library.ck_cpu_units())


def pressure() -> str:
    """A sentence about cores that other processes have taken from calls; "" if they have not."""
    if _library is None:
        return ""
    lost = ctypes.c_int64(0)
    now, most = int(_library.ck_cpu_units_now(ctypes.byref(lost))), units()
    if not lost.value:
        return ""
    calls = "1 call" if lost.value == 1 else f"{lost.value} calls"
    return f"{calls} so far lost units to other processes; a call now has {now} of {most} units"


def exits(digest: str) -> tuple[int, int]:
    """The numbers of side exits and of calls of the program with this digest. Both are 0
    on a GPU, where the handler does not wait for the flag."""
    if _library is None:
        return 0, 0
    calls = ctypes.c_int64(0)
    left = int(_library.ck_cpu_exits(digest.encode(), ctypes.byref(calls)))
    return left, calls.value


def expected_platforms() -> tuple[str, ...]:
    """The platforms that this process is likely to run programs on."""
    return PLATFORM, *gpu_call.expected()


def device(platform: str, arch: str = "") -> str:
    """The device to generate code for, "" for the CPU. `arch`: the option gpu_arch."""
    return "" if platform == PLATFORM else f"{platform}, {gpu_call.gpu(arch, platform).name}"


def present(platform: str) -> bool:
    """True if this process can run programs for the platform."""
    return platform == PLATFORM or bool(gpu_call.gpu(platform=platform).kind)


def register_quietly() -> None:
    """Like `register`, for use at import: errors and warnings are deferred to the first use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for platform in expected_platforms():
            with suppress(Exception):
                register(platform)


def load(executable: Executable) -> None:
    """Loads a program for the CPU that was built for this machine. XLA would report a program that cannot be
    loaded only when it is called, too late for stock XLA to run instead. Raises BuildError."""
    if executable.launch is not None or _library is None:
        return
    problem = problem_with(executable.digest, executable.binary, here=True)
    if problem:
        raise BuildError(
            problem,
            "set TMPDIR to a folder with room that allows execution, or raise the limits of the process",
        )


def problem_with(digest: str, binary: bytes, here: bool = False) -> str:
    """Loads a program for a call that follows soon. Returns why it cannot run, or "". `here`: it was built on
    this machine, so that features of the processor which the runtime does not know are no problem."""
    if _library is None:
        return "the runtime library is not loaded"
    problem, size = ctypes.create_string_buffer(1024), ctypes.c_size_t(len(binary))
    _library.ck_cpu_load(digest.encode(), binary, size, not here, problem, len(problem))
    return problem.value.decode(errors="replace")


def _capsule(address: int) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)


@dataclass(frozen=True, slots=True)
class Invocation:
    """XLA's view of a call: the name of the handlers, their attributes, how they launch the binary, and the
    size in bytes of the scratch memory that is the last result (0: none)."""

    target: str
    attributes: Mapping[str, Any]
    launch: tuple[int, ...]
    workspace_bytes: int


def on_cpu(executable: Executable, region: Region, logged: str, loops: Sequence[str]) -> Invocation:
    workspace = executable.workspace_bytes
    as_result = 0 < workspace <= WORKSPACE_RESULT_BYTES and not executable.forms
    exit_flag = len(region.results) if region.exits else -1
    lent = 0 if as_result else workspace
    launch = lent, int(as_result), exit_flag, executable.own_bytes, *executable.sizes  # Launch of runtime.cc
    told = {"log": logged, "loops": "\n".join(loops)}
    attributes = {**gpu_call.failures_of(executable), **{name: text for name, text in told.items() if text}}
    return Invocation(TARGET, attributes, launch, workspace if as_result else 0)


def _on_gpu(
    executable: Executable, plan: LaunchPlan, platform: str, name: str, sync: bool, logged: str
) -> Invocation:
    attributes = gpu_call.attributes_of(executable, logged or name, sync, log=bool(logged))
    target = gpu_call.target_of(executable, sync, platform)
    return Invocation(target, attributes, plan.attribute, executable.workspace_bytes)


def _bound(
    executable: Executable, launch: Sequence[int], operands: Sequence[Any], results: Sequence[Any]
) -> Mapping[str, Any]:
    """The attributes that bind the binary to what it was compiled for; they permit this process to run it."""
    shapes = executable.shapes or [x.shape for x in (*operands, *results)]
    buffers = [(x.dtype.name, shape) for x, shape in zip((*operands, *results), shapes, strict=True)]
    passed, returned = buffers[: len(operands)], buffers[len(operands) :]
    signature = trust.signature(passed, returned, executable.aliases)
    digest = trust.digest_of(launch, signature, executable.digest, executable.forms)
    trust.admit(digest, elsewhere=not portable.carries(executable.digest))
    numbers = {"launch": launch, "signature": signature}
    if executable.forms:
        numbers["forms"] = executable.forms
    return {"digest": digest, **{name: np.asarray(each, np.int64) for name, each in numbers.items()}}


def rewrite(
    captured: Capture,
    executables: Mapping[int, Executable],
    platform: str,
    name: str = "",
    sync: bool = False,
    logged: Mapping[int, str] = MappingProxyType({}),
    loops: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> Rewritten:
    """Replaces every region that has an executable by a custom call.

    Args:
      captured: the marked jaxpr and its regions.
      executables: compiled programs by region number.
      platform: the platform that they are compiled for, by jax's name.
      name: the function's name, for error messages.
      sync: wait for the end of every call on a GPU.
      logged: by region number, the names of programs that write a line when they begin and when they end.
      loops: by region number, a line for each loop in which a call can be stopped.
    """
    flat = captured.flat
    equations: list[Any] = []
    flags: list[Any] = []
    rings: list[Any] = []
    for step in captured.order:
        if isinstance(step, int):
            equations.append(flat.equations[step])
        else:
            (number,) = step
            region = captured.regions[number]
            if number in executables:
                executable = executables[number]
                plan = executable.launch
                label = logged.get(number, "")
                invocation = (
                    on_cpu(executable, region, label, loops.get(number, ()))
                    if plan is None
                    else _on_gpu(executable, plan, platform, name, sync, label)
                )
                stock = [flat.equations[member] for member in region.members]
                call, flag, ring = call_of(region, executable, invocation, stock, name)
                equations += call
                flags += flag
                rings += ring
            else:
                equations += [flat.equations[member] for member in region.members]
    return Rewritten(flat.close(equations), tuple(flags), tuple(rings))


def call_of(
    region: Region, executable: Executable, invocation: Invocation, stock: Sequence[Any], name: str
) -> tuple[list[Any], list[Any], list[Any]]:
    """The equations of one custom call, which read and define the variables of the region; its exit flag and
    its rings, if it has them. `stock`: the equations that it replaces, which run again after a side exit.
    `name`: the function's. Debuggers and profilers see the call where the first loop or branch was."""
    operands = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in region.operands]
    division = region.division
    results = [physical_type(a) for a in region.program.outputs] if division is None else division.types
    shapes = [jax.ShapeDtypeStruct(t.shape, np.dtype(_numpy_name(t.dtype))) for t in results]
    if executable.forms:  # it was planned for other sizes than the symbolic ones of the call
        whole = zip((var.aval.shape for var in region.results), shapes, strict=True)
        shapes = [jax.ShapeDtypeStruct((*s, *t.shape[len(s) :]), t.dtype) for s, t in whole]
    stamps = executable.stamps
    if stamps is not None:
        shapes.append(jax.ShapeDtypeStruct(stamps.shape, np.uint32))
    if invocation.workspace_bytes:
        shapes.append(jax.ShapeDtypeStruct((invocation.workspace_bytes,), np.uint8))

    others = len(shapes) - len(results)

    def run(*plain: Any) -> Any:
        function = jax.ffi.ffi_call(invocation.target, shapes, input_output_aliases=dict(executable.aliases))
        bound = _bound(executable, invocation.launch, plain, shapes)
        return function(*plain, **bound, **invocation.attributes, binary=np.empty(0, np.uint8))

    def call(*values: Any) -> list[Any]:
        plain = [jax.random.key_data(v) if is_key(v) else v for v in values]
        outputs = (run if division is None else _divided(run, division, others))(*plain)
        pairs = zip(outputs[: len(results)], region.program.outputs, strict=True)
        rings = outputs[len(results) : len(results) + (stamps is not None)]
        return [*(_wrapped(output, atom.key_impl) for output, atom in pairs), *rings]

    # The types belong to the program: the current setting of jax_enable_x64 must not narrow them.
    with jax.enable_x64(True):
        traced = open_jaxpr(jax.make_jaxpr(call)(*operands))
    names = dict(zip(traced.invars, region.operands, strict=True))
    # It comes after the trace, because JAX remembers for long what it has traced.
    binary = np.frombuffer(executable.binary, np.uint8)
    returned, rings = traced.outvars[: len(results)], traced.outvars[len(results) :]
    ours, flags = returned[: len(region.results)], returned[len(region.results) :][: bool(region.exits)]
    told = None if region.log is None else Told(region.log, *returned[-2:])
    if flags:
        following = run_again(stock, flags[0], ours, region.results, told)
    else:
        names.update(zip(ours, region.results, strict=True))
        following = [] if told is None else deliver(told)
    first = next((each for each in stock if primitive_name(each) in CONTROL_FLOW), stock[0])
    label = label_of(region, name)
    call_itself = [
        _completed(equation, binary, label).replace(
            invars=[a if isinstance(a, jex.Literal) else names.get(a, a) for a in equation.invars],
            outvars=[names.get(var, var) for var in equation.outvars],
        )
        for equation in traced.eqns
    ]
    return [at_source_of(each, first) for each in call_itself + following], flags, rings


def _divided(function: Any, division: Division, others: int) -> Any:
    from jax_cocktail.lowering.edge.divisions import on_each_device  # few calls are divided

    return on_each_device(division, function, others)


def _completed(equation: Any, binary: Any, label: str) -> Any:
    """The equation with the binary and the label of the call that it is, or that is in it."""
    inner = equation.params.get("jaxpr")
    if inner is None:
        return labelled(with_attribute(equation, "binary", binary), label)
    opened = open_jaxpr(inner)
    body = opened.replace(eqns=[_completed(each, binary, label) for each in opened.eqns])
    return equation.replace(params={**equation.params, "jaxpr": body})


def label_of(region: Region, name: str) -> str:
    """The label of a call for profilers: the function, and its first loop, branch or subgraph."""
    first, *others = region.control_flow or (f"subgraph at {region.source}",)
    what, _, where = first.partition(" at ")
    place = PurePath(re.sub(r" \(.*", "", where)).name
    more = f" and {len(others)} more" if others else ""
    return " ".join(filter(None, (name, what, place and f"at {place}"))) + more


_IMPLEMENTATIONS = {"fry": "threefry2x32"}


def _wrapped(words: Any, key_impl: str) -> Any:
    """Wraps the words of a typed key; returns anything else unchanged."""
    return jax.random.wrap_key_data(words, impl=_IMPLEMENTATIONS[key_impl]) if key_impl else words


def _numpy_name(dtype: str) -> Any:
    return jax.numpy.bfloat16 if dtype == "bfloat16" else dtype
