"""The checks of `doctor`. None of them imports jax: a process of its own asks it, see `probe`."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jax_cocktail import cache, config
from jax_cocktail.build import command, cuda, rocm
from jax_cocktail.build.host import host_toolchain, program_flags
from jax_cocktail.build.job import Toolchain
from jax_cocktail.errors import BuildError
from jax_cocktail.runtime import host_figures
from jax_cocktail.runtime.drivers import CUDA, HIP
from jax_cocktail_tools.commands import cache as cache_command
from jax_cocktail_tools.commands.machine import this_machine
from jax_cocktail_tools.commands.probing import Probe
from jax_cocktail_tools.report.text import NOTABLE

OK, WARNING, PROBLEM = "ok", "warning", "problem"
OLDEST_PYTHON = (3, 11)
OLDEST_JAX, FIRST_UNKNOWN_JAX = (0, 10, 2), (0, 13)  # as in pyproject.toml
PREFIX = "JAX_COCKTAIL_"
VARIABLES = ("JAX_COCKTAIL_CACHE_DIR", "JAX_COCKTAIL_VERIFY", CUDA.variable, HIP.variable)
CARDS = {  # what the system has if there is a card and its driver
    "NVIDIA": (Path("/dev/nvidiactl"), Path("/dev/dxg")),
    "AMD": (Path("/dev/kfd"),),
}
PLUGINS = {"NVIDIA": "pip install 'jax[cuda13]'", "AMD": "install jax's plugin for ROCm"}
LITTLE_MEMORY, LITTLE_DISK = 1 << 30, 256 << 20
TOLERANCE = 1e-4  # of the results of the end-to-end check
_COMPILE_SECONDS = 120.0  # zig builds its library first
_PROGRAM = """
#include <math.h>
int main(int argc, char**) {
  float x[64], sum = 0;
  for (int i = 0; i < 64; ++i) x[i] = sqrtf(float(i * argc));
  for (int i = 0; i < 64; ++i) sum += x[i] * x[i];
  return fabsf(sum - 2016 * argc) < 0.1f ? 0 : 1;
}
"""


@dataclass(frozen=True, slots=True)
class Check:
    """A result: `state` is OK, WARNING or PROBLEM; `remedy`: how to mend it, or ""."""

    name: str
    state: str
    text: str
    remedy: str = ""


def _words(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


# ---- Python and jax ----------------------------------------------------------------------------------------


def python() -> Iterator[Check]:
    """The version of Python, and the system."""
    version = sys.version_info[:3]
    text = f"{_words(version)} ({sys.executable or 'no executable is known'})"
    bad = version < OLDEST_PYTHON
    yield Check("Python", PROBLEM if bad else OK, text, f"Python {_words(OLDEST_PYTHON)}" if bad else "")
    if platform.system() != "Linux":
        yield Check(
            "system", PROBLEM, f"{platform.system()}: jax_cocktail needs Linux", "Linux, or a container"
        )


def jax_versions() -> Iterator[Check]:
    """The versions of jax and jaxlib."""
    for name in ("jax", "jaxlib"):
        install = f"pip install 'jax>={_words(OLDEST_JAX)},<{_words(FIRST_UNKNOWN_JAX)}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, PROBLEM, "not installed", install)
            continue
        if _numbers(version) < OLDEST_JAX:
            yield Check(name, PROBLEM, f"{version} is too old", install)
        elif _numbers(version) >= FIRST_UNKNOWN_JAX:
            yield Check(name, WARNING, f"{version} is newer than what this version was tested with", install)
        else:
            yield Check(name, OK, version)


# ---- compilers ---------------------------------------------------------------------------------------------


def host_compiler() -> Iterator[Check]:
    """The C++ compiler: whether it is there, and whether what it makes runs."""
    try:
        found = host_toolchain()
    except BuildError as error:
        yield Check("C++ compiler", PROBLEM, error.reason, error.remedy)
        return
    start = time.perf_counter()
    failure = _trial(found)
    text = f"{found.version.splitlines()[0]} ({' '.join(found.command)})"
    if failure:
        yield Check("C++ compiler", PROBLEM, f"{text}: {failure}", "another compiler with CXX")
    else:
        seconds = time.perf_counter() - start
        yield Check("C++ compiler", OK, f"{text} builds programs that run; {seconds:.1f} s for a tiny one")
    yield Check("its flags", OK, " ".join(program_flags(found)))


def _trial(found: Toolchain) -> str:
    """Compiles and runs a tiny program with the flags of all others. Returns what failed, or ""."""
    flags = [flag for flag in program_flags(found) if flag != "-shared"]
    with tempfile.TemporaryDirectory(prefix="jax_cocktail-") as name:
        folder = Path(name)
        (folder / "trial.cc").write_text(_PROGRAM, encoding="utf-8")
        words = [*found.command, *flags, "trial.cc", "-o", "trial", "-lm"]
        made = command.run(words, dict(found.environment), _COMPILE_SECONDS, folder=folder)
        if made.status != 0:
            return f"it cannot build a tiny program: {_last(made.output)}"
        ran = command.run([str(folder / "trial")], {}, command.ANSWER_SECONDS, folder=folder)
        if ran.status < 0:
            return f"a tiny program was killed by signal {-ran.status}"
        return f"a tiny program does not run: {_last(ran.output)}" if ran.status else ""


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")[:300]


def device_compilers() -> Iterator[Check]:
    """The compilers for GPUs. None is needed where there is no GPU."""
    installed = {"NVIDIA": [*cuda.installed()], "AMD": [*rocm.installed()]}
    for vendor, found in installed.items():
        for each in found:
            place = each.command[-1 if each.kind in ("nvrtc", "hiprtc") else 0]  # the library, or the program
            yield Check(f"compiler for {vendor}", OK, f"{each} ({place})")
        if not found:
            yield Check(f"compiler for {vendor}", OK, "none; only a GPU needs one")
    nvcc = [Path(each.command[0]).parent for each in installed["NVIDIA"] if each.kind == "nvcc"]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, nvcc)])
    if ptxas := shutil.which("ptxas", path=path):
        version = re.search(r"\bV(\d[\w.]*)", command.answer([ptxas, "--version"]))
        state, text = (OK, version[1]) if version else (WARNING, "does not tell its version")
        yield Check("ptxas", state, f"{text} ({ptxas})", "" if version else "another CUDA with CUDA_HOME")


def drivers() -> Iterator[Check]:
    """The drivers of GPUs, as their libraries tell their versions."""
    version, hip = CUDA.installed(), HIP.installed()
    yield Check("NVIDIA driver", OK, CUDA.release(version) if version else "none")
    text = HIP.release(hip) if hip else "none"
    yield Check("AMD driver", OK, text if not hip or CARDS["AMD"][0].exists() else f"{text}, but no card")


# ---- folder and variables ----------------------------------------------------------------------------------


def cache_folder() -> Iterator[Check]:
    """The cache folder: whether it can be used and trusted, its size, and what is damaged."""
    name, root = "cache folder", cache.cache_dir()
    try:
        cache.prepare_root()
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        reason = str(error) if error.errno is None else f"{root} cannot be written ({error.strerror})"
        remedy = "mend its owner and mode (only you may write to it), or set JAX_COCKTAIL_CACHE_DIR"
        yield Check(name, PROBLEM, f"{reason}; programs are built again in every process", remedy)
        return
    yield Check(name, OK, f"{root}, which only you can write to")
    count, damaged, size = cache_command.counts()
    limit = config.Options().cache_limit_bytes
    with suppress(TypeError, ValueError):  # a wrong variable is reported elsewhere
        limit = config.resolve({}, scopes=()).cache_limit_bytes
    text = f"{count} entries and records; programs have {size / 2**20:.1f} of at most {limit / 2**20:.0f} MiB"
    small = f"a larger JAX_COCKTAIL_CACHE_LIMIT_BYTES than {limit}" if size > limit else ""
    yield Check("its size", WARNING if small else OK, text, small)
    if damaged:
        remedy = "python -m jax_cocktail cache verify --remove"
        yield Check(
            "its content", WARNING, f"{damaged} entries or records are damaged and are not used", remedy
        )
    free = shutil.disk_usage(root).free
    if free < LITTLE_DISK:
        yield Check(
            "its disk", WARNING, f"only {free / 2**20:.0f} MiB are free", "make room, or another folder"
        )


def variables() -> Iterator[Check]:
    """The environment variables: whether they are known, and whether their values are allowed."""
    options = {option.variable: option for option in config.REGISTRY}
    count = 0
    for name in sorted(os.environ):
        value = os.environ[name]
        if not name.startswith(PREFIX):
            continue
        count += 1
        if name in options:
            try:
                config.parsed(options[name], value)
            except (TypeError, ValueError) as error:
                yield Check(name, PROBLEM, str(error), f"another value, or unset {name}")
            else:
                yield Check(name, OK, value)
        elif name in VARIABLES:
            yield Check(name, OK, value)
        else:
            known = {each.removeprefix(PREFIX): each for each in (*options, *VARIABLES)}
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known, 1)
            remedy = f"{known[near[0]]}, or unset it" if near else "unset it"
            yield Check(name, WARNING, "no such option; it does nothing", remedy)
    if not count:
        yield Check("variables", OK, "no JAX_COCKTAIL_... is set")
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "CXX"):
        if os.environ.get(name):
            yield Check(name, OK, os.environ[name])
    if os.environ.get("JAX_DISABLE_JIT", "").lower() in ("1", "true", "yes", "on"):
        yield Check("JAX_DISABLE_JIT", WARNING, "nothing is compiled", "unset it")


# ---- the machine -------------------------------------------------------------------------------------------


def machine() -> Iterator[Check]:
    """Cores and memory, and their limits."""
    found = this_machine()
    text = f"{found.cores} of {found.all_cores} ({found.processor})"
    if found.quota is not None and found.quota < found.cores:
        text += f", but the control group may use the time of only {found.quota:g}"
        fewer = max(int(found.quota), 1)
        yield Check("cores", WARNING, text, f"JAX_COCKTAIL_UNITS={fewer}, or a larger quota")
    else:
        yield Check("cores", OK, text)
    limits = [size for size in (found.memory_bytes, found.limit_bytes) if size]
    if limits:
        text = f"{min(limits) / 2**30:.1f} GiB"
        text += " by the limit of the control group" if min(limits) == found.limit_bytes else ""
        free = found.available_bytes
        text += f"; {free / 2**30:.1f} GiB of the machine's memory are available" if free is not None else ""
        little = min([*limits, *([free] if free is not None else [])]) < LITTLE_MEMORY
        remedy = "end other programs: compilers may run out of memory" if little else ""
        yield Check("memory", WARNING if little else OK, text, remedy)
    yield Check("figures of a core", OK, _figures())


def _figures() -> str:
    """The figures by which prices are made, and where they come from."""
    spec = host_figures.host()
    caches = ", ".join(f"{size >> 10} KiB at {rate / 1e9:.0f} GB/s" for size, rate in spec.levels)
    source = "measured" if host_figures.is_measured() else "of a table until the background has measured them"
    memory = f"memory at {spec.memory_rate / 1e9:.0f} GB/s"
    return f"{caches}, {memory}, products at {spec.ours.heavy / 1e9:.0f} GFLOP/s: {source}"


# ---- what jax says -----------------------------------------------------------------------------------------


def devices(found: Probe) -> Iterator[Check]:
    """The devices that jax computes on, and those that it leaves alone."""
    if "devices" not in found.facts:
        wanted = os.environ.get("JAX_PLATFORMS")
        text, remedy = f"jax lists none: {found.failure}", "python -c 'import jax; print(jax.devices())'"
        if wanted:
            text = f"JAX_PLATFORMS is {wanted}, and jax finds no such device: {found.failure}"
            remedy = "unset JAX_PLATFORMS, or install jax for these devices, such as 'jax[cuda13]'"
        yield Check("devices of jax", PROBLEM, text, remedy)
        return
    backend, listed = found.facts["backend"], found.facts["devices"]
    kinds = [f"{listed.count(kind)} x {kind}" for kind in dict.fromkeys(listed)]
    version = f" ({found.facts['version']})" if backend != "cpu" and found.facts.get("version") else ""
    yield Check("devices of jax", OK, ", ".join(kinds) + version)
    if backend == "cpu" and not os.environ.get("JAX_PLATFORMS"):
        for vendor, nodes in CARDS.items():
            if any(node.exists() for node in nodes):
                text = f"there is one of {vendor}, but jax uses the CPU"
                yield Check("GPU", WARNING, text, PLUGINS[vendor])
    elif backend == "gpu":
        kinds_of = {"cuda": cuda, "rocm": rocm}
        platform_ = "rocm" if "rocm" in found.facts.get("version", "").lower() else "cuda"
        if not [*kinds_of[platform_].installed()]:
            install = kinds_of[platform_].COMPILERS.install
            yield Check(
                "compiler for the GPU", PROBLEM, "there is none: stock XLA runs all programs", install
            )


def load(found: Probe) -> Iterator[Check]:
    """The load by other processes."""
    others = found.facts.get("others")
    if others is None:
        return
    text = f"other processes hold {others:.0%} of the cores now"
    remedy = "measure when it is idle; `jit` decides again then" if others >= NOTABLE else ""
    yield Check("load of the machine", WARNING if others >= NOTABLE else OK, text, remedy)


def end_to_end(found: Probe) -> Iterator[Check]:
    """Checks that a small scan, compiled by us, has the result of stock XLA."""
    name = "a scan, end to end"
    if "difference" not in found.facts:
        yield Check(name, PROBLEM, found.failure or "no result", "mend what is above; else report this")
        return
    difference, seconds = found.facts["difference"], found.facts["seconds"]
    text = f"difference to stock XLA {difference:.1e}; {seconds:.1f} s for the first call"
    good = difference <= TOLERANCE
    yield Check(name, OK if good else PROBLEM, text, "" if good else "report this, with the output of doctor")


WITHOUT_JAX: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
    ("Python", python),
    ("jax", jax_versions),
    ("C++ compiler", host_compiler),
    ("compilers for GPUs", device_compilers),
    ("drivers", drivers),
    ("cache folder", cache_folder),
    ("variables", variables),
    ("machine", machine),
)
WITH_JAX: tuple[tuple[str, Callable[[Probe], Iterator[Check]]], ...] = (
    ("devices of jax", devices),
    ("load of the machine", load),
    ("a scan, end to end", end_to_end),
)
