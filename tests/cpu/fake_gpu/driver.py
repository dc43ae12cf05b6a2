"""The fake drivers, and XLA's side of a handler: call frames made by hand, and errors caught."""

from __future__ import annotations

import ctypes as c
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from jax_cocktail.build import host as build
from jax_cocktail.runtime import ffi, trust
from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.fake_gpu import frames

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
INSTANTIATE, INITIALIZE, EXECUTE = 0, 2, 3


@dataclass(frozen=True, eq=False)
class Vendor:
    """A vendor's driver as the tests' text names it.

    fake: its source; variable: names its library; prefix: of symbols; special: symbols that are not those of
    CUDA with this prefix, "" for none; words: what stands for words of CUDA in messages; old: a version that
    is too old; has_contexts: they have identities, there are clusters, and what a kernel takes is known.
    """

    platform: str
    fake: str
    variable: str
    library: str
    prefix: str
    special: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    old: int = 11070
    has_contexts: bool = True

    @property
    def includes(self) -> tuple[Path, ...]:
        folders = (f"{self.platform}_src", "gpu_src", "common_src")
        return (*(ROOT / folder for folder in folders), Path(jax.ffi.include_dir()))

    def symbol(self, name: str) -> str:
        """The function that this driver has for one of CUDA's; "" if it has none."""
        return self.special.get(name, f"{self.prefix}{name.removeprefix('cu')}")

    def said(self, text: str) -> str:
        """A message about CUDA as it is about this driver."""
        for words, others in {**self.words, **self.special}.items():
            text = text.replace(words, others or words)
        return text

    def __str__(self) -> str:
        return self.platform


CUDA = Vendor("cuda", "fake_cuda.cc", "JAX_COCKTAIL_CUDA_DRIVER", "libcuda.so.1", "cu")
ROCM = Vendor(
    platform="rocm",
    fake="fake_hip.cc",
    variable="JAX_COCKTAIL_HIP_LIBRARY",
    library="libamdhip64.so.7",
    prefix="hip",
    special={
        "cuLaunchKernelEx": "hipModuleLaunchCooperativeKernel",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuFuncSetAttribute": "",
        "cuCtxGetDevice": "hipDeviceGetName",
        "cuStreamGetCtx": "hipStreamGetDevice",
        "cuCtxPushCurrent": "hipGetDevice",
        "cuMemHostAlloc": "hipHostMalloc",
        "cuMemHostGetDevicePointer": "hipHostGetDevicePointer",
    },
    words={
        "CUDA_ERROR_NOT_FOUND": "hipErrorNotFound",
        "CUDA_ERROR_INVALID_CONTEXT": "hipErrorInvalidContext",
        "CUDA_ERROR_LAUNCH_FAILED": "hipErrorLaunchFailure",
        "CUDA_VISIBLE_DEVICES": "HIP_VISIBLE_DEVICES",
        "nvidia-smi": "rocm-smi",
        "CUDA driver": "HIP runtime",
        "CUDA 11.": "HIP 5.",
        "11.8": "6.0",
        "sm_": "AMD Fake ",
    },
    old=50731921,
    has_contexts=False,
)
VENDORS = (CUDA, ROCM)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


@functools.cache
def compiled(source: Path | str, *flags: str, vendor: Vendor = CUDA) -> Path:
    """A shared object of the host, from a file or a text."""
    key = hashlib.sha256(repr((source, flags, vendor.platform)).encode()).hexdigest()[:16]
    target = Path(_folder().name) / f"{key}.so"
    text = source if isinstance(source, str) else source.read_text()
    command = [*build.host_toolchain().command, "-x", "c++", "-", "-std=c++17", "-O1", "-g", "-fPIC"]
    command += ["-shared", "-fvisibility=hidden", *flags]
    command += [*(f"-I{folder}" for folder in (*vendor.includes, HERE)), "-o", str(target)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return target


def copied(path: Path | str, folder: Path) -> Path:
    """The library under a name of its own: loaded again, it begins anew."""
    target = folder / f"{Path(path).stem}-{len(list(folder.iterdir()))}.so"
    shutil.copyfile(path, target)
    return target


class Fake:
    """A fake driver. `path` is for the variable of its vendor."""

    def __init__(self, folder: Path, *flags: str, vendor: Vendor = CUDA) -> None:
        self.path = copied(compiled(HERE / vendor.fake, *flags, vendor=vendor), folder)
        self._library = c.CDLL(str(self.path))
        self._library.fake_log.restype = c.c_char_p
        for name in ("fake_context", "fake_stream"):
            getattr(self._library, name).restype = c.c_void_p

    def set(self, **facts: int) -> None:
        """Facts about the devices, or about one (`sms_1`: of device 1)."""
        for name, value in facts.items():
            base, _, device = name.rpartition("_")
            key = f"{base}:{device}" if device.isdigit() else name
            self._library.fake_set(key.encode(), c.c_int64(value))

    def fail(self, symbol: str, result: int, times: int = -1) -> None:
        """The next calls of a function return an error; all of them, if `times` is negative."""
        self._library.fake_fail(symbol.encode(), result, c.c_int64(times))

    def context(self, device: int = 0) -> int:
        return self._library.fake_context(device)

    def replace_context(self, context: int) -> None:
        self._library.fake_replace_context(c.c_void_p(context))

    def stream(self, context: int) -> int:
        return self._library.fake_stream(c.c_void_p(context))

    def capture(self, stream: int, on: bool) -> None:
        self._library.fake_capture(c.c_void_p(stream), on)

    def replay(self, stream: int) -> int:
        return self._library.fake_replay(c.c_void_p(stream))

    def depth(self) -> int:
        """Contexts that were pushed by this thread and not popped."""
        return self._library.fake_depth()

    def log(self, word: str = "") -> list[dict[str, str]]:
        """What was called since the last time: {"": name, key: value}; only `word`, if given."""
        lines = self._library.fake_log().decode().splitlines()
        entries = []
        for line in lines:
            name, *pairs = line.split(" ")
            entries.append({"": name, **dict(pair.split("=", 1) for pair in pairs if "=" in pair)})
        self._library.fake_clear_log()
        return [entry for entry in entries if not word or entry[""] == word]


class Handlers:
    """`initialize`, `execute`, `execute_nograph` of a library that has seen nothing yet."""

    def __init__(self, folder: Path, vendor: Vendor = CUDA) -> None:
        built = build.build_gpu_handler(jax.ffi.include_dir(), build.host_toolchain(), vendor.platform)
        library = c.CDLL(str(copied(built, folder)))
        library.ck_gpu_load_count.restype = c.c_int64
        trust.guard(library)
        self.load_count = library.ck_gpu_load_count
        for stage in ("initialize", "execute", "execute_nograph"):
            function = getattr(library, f"ck_gpu_{stage}")
            function.restype, function.argtypes = c.c_void_p, [c.POINTER(ffi.CallFrame)]
            setattr(self, stage, function)


_CREATE = c.CFUNCTYPE(c.c_void_p, c.POINTER(ffi.ErrorCreateArgs))
_STREAM = c.CFUNCTYPE(c.c_void_p, c.POINTER(frames.StreamGetArgs))


class Xla:
    """The functions of XLA's table that handlers call. `stream`: what they are given."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.errors: list[tuple[int, str]] = []
        self._create = _CREATE(self._error_create)
        self._get = _STREAM(self._stream_get)
        self.api = frames.Api(
            struct_size=c.sizeof(frames.Api),
            error_create=c.cast(self._create, c.c_void_p),
            stream_get=c.cast(self._get, c.c_void_p),
        )

    def _error_create(self, args: Any) -> int:
        self.errors.append((args.contents.code, args.contents.message.decode()))
        return len(self.errors)

    def _stream_get(self, args: Any) -> None:
        args.contents.stream = self.stream


@dataclass(eq=False)
class Call:
    """One call site. `buffers`: addresses of operands and of results (the workspace is the last)."""

    binary: bytes
    plan: LaunchPlan
    operands: Sequence[int] = ()
    results: Sequence[int] = ()
    name: str = "decode"
    signature: Sequence[int] | None = None
    digest: str = ""
    sync: int = 0
    failures: str = ""  # a line for every code
    trusted: bool = True
    kept: list[Any] = field(default_factory=list)

    def invoke(self, function: Any, xla: Xla, stage: int) -> tuple[int, str] | None:
        """Calls a handler; its error, if any: code and text."""
        frame = self.frame(xla, stage)
        error = function(c.byref(frame))
        return xla.errors[error - 1] if error else None

    def frame(self, xla: Xla, stage: int) -> ffi.CallFrame:
        frame = ffi.CallFrame(struct_size=c.sizeof(ffi.CallFrame), stage=stage)
        frame.api = c.cast(c.pointer(xla.api), c.POINTER(ffi.Api))
        frame.operands, frame.results = self._buffers(self.operands), self._buffers(self.results)
        frame.attributes = self._attributes()
        self.kept.append(frame)
        return frame

    def _keep(self, thing: Any) -> Any:
        self.kept.append(thing)
        return thing

    def _buffers(self, addresses: Sequence[int]) -> ffi.Buffers:
        size = c.sizeof(ffi.Buffer)
        buffers = [self._keep(ffi.Buffer(size, None, frames.U8, at, 0, None)) for at in addresses]
        pointers = self._keep((c.POINTER(ffi.Buffer) * max(len(buffers), 1))(*map(c.pointer, buffers)))
        items = c.cast(pointers, c.POINTER(c.POINTER(ffi.Buffer)))
        return ffi.Buffers(c.sizeof(ffi.Buffers), None, len(buffers), None, items)

    def _attributes(self) -> ffi.Attributes:
        """Sorted by name, as XLA has them."""
        signature = self.signature
        if signature is None:
            byte = ("uint8", ())
            signature = trust.signature([byte] * len(self.operands), [byte] * len(self.results), ())
        signed = self._keep((c.c_int64 * len(signature))(*signature))
        binary = self._keep(c.create_string_buffer(self.binary, len(self.binary) + 1))
        numbers = self.plan.attribute
        launch = self._keep((c.c_int64 * len(numbers))(*numbers))
        sync = self._keep(c.c_int64(self.sync))
        digest = self.digest or trust.digest_of(numbers, signature, hashlib.sha256(self.binary).hexdigest())
        if self.trusted:
            trust.admit(digest)
        values = {
            "binary": (frames.Kind.ARRAY, frames.Array(frames.U8, len(self.binary), c.addressof(binary))),
            "digest": (frames.Kind.STRING, self._span(digest)),
            "launch": (frames.Kind.ARRAY, frames.Array(frames.S64, len(numbers), c.addressof(launch))),
            "name": (frames.Kind.STRING, self._span(self.name)),
            "signature": (frames.Kind.ARRAY, frames.Array(frames.S64, len(signature), c.addressof(signed))),
            "sync": (frames.Kind.SCALAR, frames.Scalar(frames.S64, c.addressof(sync))),
        }
        if self.failures:
            values["failures"] = frames.Kind.STRING, self._span(self.failures)
            values = dict(sorted(values.items()))
        count = len(values)
        types = self._keep((c.c_int * count)(*(kind for kind, _ in values.values())))
        spans = [self._span(name) for name in values]
        names = self._keep((c.POINTER(ffi.ByteSpan) * count)(*map(c.pointer, spans)))
        addresses = (c.addressof(self._keep(value)) for _, value in values.values())
        items = self._keep((c.c_void_p * count)(*addresses))
        return ffi.Attributes(
            c.sizeof(ffi.Attributes),
            None,
            count,
            c.cast(types, c.POINTER(c.c_int)),
            c.cast(names, c.POINTER(c.POINTER(ffi.ByteSpan))),
            c.cast(items, c.POINTER(c.c_void_p)),
        )

    def _span(self, text: str) -> ffi.ByteSpan:
        data = self._keep(c.create_string_buffer(text.encode()))
        return self._keep(ffi.ByteSpan(c.addressof(data), len(text.encode())))
