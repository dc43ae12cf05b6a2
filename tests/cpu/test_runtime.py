"""The FFI handlers: loading, digests, workspace, errors, threads."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_cocktail.build import features
from jax_cocktail.build import host as build
from jax_cocktail.runtime import python, trust

OWN_BYTES = 100
TARGET = "jax_cocktail_runtime_test"
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="features of x86-64 processors")
# Doubles its input; with a workspace, through it. Negative input: error 7.
PROGRAM = """#include "cocktail_base.h"
CK_EXPORT int ck_program(const void* const* inputs, void* const* outputs, u8* workspace, CkUnit*) {
  const f32* x = (const f32*)inputs[0];
  f32* y = (f32*)outputs[0];
  if (x[0] < 0) return 7;
  if (x[0] > 1e6f) return 8;
  f32* scratch = workspace ? (f32*)workspace : y;
  if (workspace && (u64)workspace % 64 != 0) return 9;
  for (int i = 0; i < 8; ++i) scratch[i] = x[i] * 2;
  for (int i = 0; i < 8; ++i) y[i] = scratch[i] + (workspace ? 1 : 0);
  return 0;
}
"""
# Every unit marks its own memory and its cell of a workspace; unit 0 tells how many there were.
WITH_UNITS = """#include "cocktail_units.h"
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 5;
CK_EXPORT int ck_program(const void* const* inputs, void* const* outputs, u8* workspace, CkUnit* unit) {
  f32* y = (f32*)outputs[0];
  if ((u64)unit->own % 4096 != 0) return 9;
  unit->own[99] = u8(unit->index);
  y[1 + unit->index] = ((const f32*)inputs[0])[0];
  if (workspace) workspace[unit->index] = 1;
  ck_arrive(unit);
  if (ck_wait(unit)) return 0;
  if (unit->index == 0) y[0] = f32(unit->count);
  for (i64 i = 0; i < unit->count; ++i) {
    if (workspace && workspace[i] != 1) return 11;
  }
  return unit->own[99] == unit->index ? 0 : 12;
}
"""


def _capsule(address: int) -> object:
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(("PyCapsule_New", ctypes.pythonapi))(address, None, None)


def _registered(path: str, target: str) -> ctypes.CDLL:
    """A runtime library, loaded and registered under a name of its own."""
    handle = ctypes.CDLL(path)
    for name in ("ck_cpu_state_type_id", "ck_cpu_state_type_info"):
        getattr(handle, name).restype = ctypes.c_void_p
    handle.ck_cpu_load_count.restype = handle.ck_cpu_loaded_now.restype = ctypes.c_int64
    trust.guard(handle)
    python.provide(handle)
    types = {
        "type_id": _capsule(handle.ck_cpu_state_type_id()),
        "type_info": _capsule(handle.ck_cpu_state_type_info()),
    }
    jax.ffi.register_ffi_type(target, types, platform="cpu")
    stages = {
        "instantiate": jax.ffi.pycapsule(handle.ck_cpu_instantiate),
        "execute": jax.ffi.pycapsule(handle.ck_cpu_execute),
    }
    jax.ffi.register_ffi_target(target, stages, platform="cpu")
    return handle


@pytest.fixture(scope="module")
def runtime() -> ctypes.CDLL:
    return _registered(build.build_runtime(jax.ffi.include_dir(), build.host_toolchain()), TARGET)


def _caller(
    binary: bytes,
    digest: str = "",
    workspace: int = 0,
    result: int = 0,
    permit: Callable[[str], object] = trust.admit,
    launch: Sequence[int] | None = None,
    sizes: Sequence[int] = (),
    signature: Sequence[int] | None = None,
    target: str = TARGET,
    **attributes: str,
) -> Callable[[jax.Array], jax.Array]:
    """A call of a binary that maps 8 floats to 8 floats. `digest`, `launch`, `signature`: not its own."""
    own = (workspace, result, -1, OWN_BYTES, *sizes)
    types = [("float32", (8,))] + [("uint8", (1024,))] * result
    signed = trust.signature([("float32", (8,))], types, ())
    right = trust.digest_of(own, signed, hashlib.sha256(binary).hexdigest())
    permit(right)

    def call(x: jax.Array) -> jax.Array:
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
        shapes += [jax.ShapeDtypeStruct((1024,), np.uint8)] if result else []
        outputs = jax.ffi.ffi_call(target, shapes)(
            x,
            binary=np.frombuffer(binary, np.uint8),
            digest=digest or right,
            launch=np.asarray(own if launch is None else launch),
            signature=np.asarray(signed if signature is None else signature, np.int64),
            **attributes,
        )
        return outputs[0]

    return jax.jit(call)


def _built(text: str = PROGRAM) -> build.Built:
    return build.build_program(text, build.host_toolchain())


def test_runs_and_is_loaded_once(runtime: ctypes.CDLL) -> None:
    built = _built(PROGRAM.replace("return 7", "return 27"))
    before = runtime.ck_cpu_load_count()
    x = jnp.arange(8.0)
    for _ in range(3):
        np.testing.assert_array_equal(_caller(built.binary)(x), np.arange(8) * 2)
    assert runtime.ck_cpu_load_count() - before == 1


@pytest.mark.parametrize(("workspace", "result"), [(64, 0), (1 << 16, 0), (5 << 20, 0), (0, 1)])
def test_workspace(runtime: ctypes.CDLL, workspace: int, result: int) -> None:
    built = _built()
    call = _caller(built.binary, "", workspace, result)
    for _ in range(3):
        np.testing.assert_array_equal(call(jnp.arange(8.0)), np.arange(8) * 2 + 1)


@pytest.mark.parametrize(("workspace", "result"), [(0, 0), (5, 0), (3 << 20, 0), (0, 1)])
def test_units(runtime: ctypes.CDLL, workspace: int, result: int) -> None:
    built = _built(WITH_UNITS)
    call = _caller(built.binary, "", workspace, result)
    cores = len(os.sched_getaffinity(0))
    try:
        for count in (1, cores, cores + 1, 64):
            runtime.ck_cpu_set_units(ctypes.c_int64(count))
            for _ in range(3):
                y = np.asarray(call(jnp.full(8, 7.0)))
                used = min(count, 5) if count == 1 or count > cores else int(y[0])  # others may take a core
                assert 1 <= y[0] == used <= count and np.all(y[1 : 1 + used] == 7)
    finally:
        runtime.ck_cpu_set_units(ctypes.c_int64(0))


def test_units_of_another_layout_are_refused(runtime: ctypes.CDLL) -> None:
    text = WITH_UNITS.replace("#include", "#define ck_units_version unused_version\n#include", 1)
    text += "#undef ck_units_version\nCK_EXPORT const u32 ck_units_version;\n"
    text += "const u32 ck_units_version = 1000;\n"
    built = _built(text)
    with pytest.raises(Exception, match="another version"):
        _caller(built.binary)(jnp.ones(8))


def test_many_programs(runtime: ctypes.CDLL) -> None:
    """Each gets its own code, although file descriptors are used again."""
    for factor in range(3, 8):
        built = _built(PROGRAM.replace("x[i] * 2", f"x[i] * {factor}"))
        np.testing.assert_array_equal(_caller(built.binary)(jnp.arange(8.0)), np.arange(8) * factor)


def test_two_copies_of_the_runtime(tmp_path: Path) -> None:
    """Both load their first program with the same file descriptor, and each calls its own."""
    original = build.build_runtime(jax.ffi.include_dir(), build.host_toolchain())
    for factor in (3, 4):
        target = f"{TARGET}_{factor}"
        _registered(shutil.copy(original, tmp_path / f"{target}.so"), target)
        built = _built(PROGRAM.replace("x[i] * 2", f"x[i] * {factor}"))
        result = _caller(built.binary, target=target)(jnp.arange(8.0))
        np.testing.assert_array_equal(result, np.arange(8) * factor)


def test_errors_have_a_text(runtime: ctypes.CDLL) -> None:
    built = _built()
    call = _caller(built.binary, "", failures="1\n2\n3\n4\n5\n6\nnegative input")
    with pytest.raises(Exception, match="jax_cocktail: negative input"):
        call(-jnp.ones(8)).block_until_ready()
    with pytest.raises(Exception, match="status 8"):
        call(jnp.full(8, 2e6)).block_until_ready()
    with pytest.raises(Exception, match="code 8"):
        _caller(built.binary)(jnp.full(8, 2e6)).block_until_ready()
    np.testing.assert_array_equal(call(jnp.ones(8)), np.full(8, 2))


def test_damaged_and_wrong_binaries_are_refused(runtime: ctypes.CDLL) -> None:
    built = _built(PROGRAM.replace("return 7", "return 17"))
    x = jnp.ones(8)
    with pytest.raises(Exception, match="damaged"):
        _caller(built.binary[:-1] + b"!", built.digest)(x)
    with pytest.raises(Exception, match="cannot be loaded"):
        _caller(b"no shared object")(x)
    with pytest.raises(Exception, match="needs the attributes"):
        _caller(built.binary, "short")(x)
    other = built.binary.replace(b"ck_program", b"ck_another")
    with pytest.raises(Exception, match="no entry point"):
        _caller(other)(x)
    np.testing.assert_array_equal(_caller(built.binary)(x), np.full(8, 2))


# A library whose code runs as soon as it is loaded.
EVIL = """#include <stdio.h>
#include "cocktail_base.h"
__attribute__((constructor)) static void evil() { if (FILE* f = fopen("%s", "w")) fclose(f); }
CK_EXPORT int ck_program(const void* const*, void* const*, u8*, CkUnit*) { return 0; }
"""


def test_what_nobody_permits_is_not_even_loaded(runtime: ctypes.CDLL, tmp_path: Path) -> None:
    ran = tmp_path / os.urandom(8).hex()
    built = _built(EVIL % ran)  # the build tries to load it
    ran.unlink()
    with pytest.raises(Exception, match=r"not trusted: .*load\(trust="):
        _caller(built.binary, permit=len)(jnp.ones(8))
    assert not ran.exists()
    _caller(built.binary)(jnp.ones(8))
    assert ran.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launch", (1 << 40, 0, -1, OWN_BYTES)),
        ("launch", (0, 1, -1, OWN_BYTES)),
        ("launch", (0, 0, 0, OWN_BYTES)),
        ("launch", (0, 0, -1, OWN_BYTES + 1)),
        ("launch", (0, 0, -1, OWN_BYTES, 8)),
        ("signature", trust.signature([("float32", (7,))], [("float32", (8,))], ())),
        ("digest", "0" * 64),
    ],
)
def test_the_digest_covers_how_a_binary_is_called(runtime: ctypes.CDLL, name: str, value: Any) -> None:
    """Also after the program has been loaded: what else a module says about it is not believed."""
    built = _built()
    _caller(built.binary)(jnp.ones(8))
    with pytest.raises(Exception, match="damaged"):
        _caller(built.binary, **{name: value})(jnp.ones(8))


EIGHT = ("float32", (8,))


@pytest.mark.parametrize(
    "signature",
    [
        trust.signature([("float32", (7,))], [EIGHT], ()),
        trust.signature([EIGHT], [("float32", (2, 4))], ()),
        trust.signature([EIGHT], [("int32", (8,))], ()),
        trust.signature([EIGHT, EIGHT], [EIGHT], ()),
        trust.signature([EIGHT], [], ()),
        trust.signature([EIGHT], [EIGHT], [(0, 0)]),  # the operand and the result are not one
        trust.signature([EIGHT], [EIGHT], [(0, 1)]),
        trust.signature([EIGHT], [EIGHT], [(-1, 0)]),
        (*trust.signature([EIGHT], [EIGHT], ()), 0),
        trust.signature([EIGHT], [EIGHT], ())[:-1],
        (1, 1, 1 << 62, 11, 1, 8, 11, 1, 8),
        (1, 1),
        (),
    ],
)
def test_buffers_that_a_program_was_not_compiled_for(runtime: ctypes.CDLL, signature: Sequence[int]) -> None:
    built = _built()
    digest = trust.digest_of((0, 0, -1, OWN_BYTES), signature, built.digest)
    trust.admit(digest)
    with pytest.raises(Exception, match="other types, shapes or shared buffers"):
        _caller(built.binary, digest, signature=signature)(jnp.ones(8))


def test_a_module_with_other_shapes(runtime: ctypes.CDLL) -> None:
    """Smaller arrays around an honest binary would make it write out of bounds."""
    call = _caller(_built().binary)
    for size in (7, 9):
        with pytest.raises(Exception, match="other types, shapes or shared buffers"):
            call(jnp.ones(size))
    np.testing.assert_array_equal(call(jnp.ones(8)), np.full(8, 2))


# Tells its launch parameters.
WITH_SIZES = """#include "cocktail_units.h"
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 1;
CK_EXPORT int ck_program(const void* const* inputs, void* const* outputs, u8* workspace, CkUnit* unit) {
  for (int k = 0; k < 4; ++k) ((i32*)outputs[0])[k] = i32(unit->sizes[k]);
  return 0;
}
"""
# n, 3 n - 7, (n + 5) // 8 and n // 2 * 96, where n is the second axis of the first operand; n is at least 3.
FORMS = (
    *(5, 1),
    *(1, 1, 1, 0, 0, 1),
    *(2, 3, 1, 0, 0, 1, -7, 0),
    *(1, 1, 1, 8, 2, 1, 1, 0, 0, 1, 5, 0),
    *(1, 96, 1, 2, 1, 1, 1, 0, 0, 1),
    *(1, 3, 0),
    *(3, 4, 0),
)


def _any_size(forms: Sequence[int], sizes: Sequence[int] = (-2, -3, -4, 17), lent: int = -5) -> Any:
    """A call whose launch parameters follow from its operand, float32[2, n]."""
    binary = _built(WITH_SIZES).binary
    launch = (lent, 0, -1, -5, *sizes)
    signature = trust.signature([("float32", (2, -2))], [("int32", (4,))], ())
    digest = trust.digest_of(launch, signature, hashlib.sha256(binary).hexdigest(), forms)
    trust.admit(digest)
    attributes = {"launch": launch, "signature": signature, "forms": forms}
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((4,), np.int32))
    arrays = {name: np.asarray(numbers, np.int64) for name, numbers in attributes.items()}
    return lambda x: call(x, binary=np.frombuffer(binary, np.uint8), digest=digest, **arrays)


@pytest.mark.parametrize("n", [3, 4, 11, 1000])
def test_launch_parameters_of_any_size(runtime: ctypes.CDLL, n: int) -> None:
    found = _any_size(FORMS)(jnp.ones((2, n)))
    np.testing.assert_array_equal(found, [n, 3 * n - 7, (n + 5) // 8, 17])


def test_a_size_for_which_a_program_was_not_compiled(runtime: ctypes.CDLL) -> None:
    with pytest.raises(Exception, match="other types, shapes or shared buffers"):
        _any_size(FORMS)(jnp.ones((2, 2)))
    with pytest.raises(Exception, match="other types, shapes or shared buffers"):
        _any_size(FORMS)(jnp.ones((3, 4)))


@pytest.mark.parametrize("changed", [*range(len(FORMS)), "longer", "shorter"])
@pytest.mark.parametrize("number", [-1, 1 << 40])
def test_damaged_forms_do_no_harm(runtime: ctypes.CDLL, changed: int | str, number: int) -> None:
    """No value of any number reads what is not there. Some of them are forms of something else."""
    if changed == "longer":
        forms: Sequence[int] = (*FORMS, number)
    elif changed == "shorter":
        forms = FORMS[: number % len(FORMS)]
    else:
        forms = [number if k == changed else each for k, each in enumerate(FORMS)]
    try:
        _any_size(forms, lent=0)(jnp.ones((2, 11)))
    except jax.errors.JaxRuntimeError as error:
        assert re.search("jax_cocktail: (the call passes|no memory)", str(error)), error


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:jax_cocktail")


def test_programs_are_unloaded_after_their_last_executable(runtime: ctypes.CDLL) -> None:
    """A program that is called stays; of those that nobody holds, the last few stay a while."""
    kept = _caller(_built(PROGRAM.replace("x[i] * 2", "x[i] * 100")).binary)
    kept(jnp.arange(8.0))
    gc.collect()
    before = runtime.ck_cpu_loaded_now()
    for factor in range(101, 115):
        call = _caller(_built(PROGRAM.replace("x[i] * 2", f"x[i] * {factor}")).binary)
        np.testing.assert_array_equal(call(jnp.arange(8.0)), np.arange(8) * factor)
        call.clear_cache()
        del call
        gc.collect()
    assert runtime.ck_cpu_loaded_now() <= before + 8
    assert 0 < _mappings() <= 8 * (runtime.ck_cpu_loaded_now() + 1)
    np.testing.assert_array_equal(kept(jnp.arange(8.0)), np.arange(8) * 100)


def test_a_program_that_comes_back_is_not_loaded_again(runtime: ctypes.CDLL) -> None:
    built = _built(PROGRAM.replace("return 7", "return 37"))
    loads = runtime.ck_cpu_load_count()
    for _ in range(10):  # more often than programs are kept
        call = _caller(built.binary)
        call(jnp.ones(8))
        call.clear_cache()
        del call
        gc.collect()
    assert runtime.ck_cpu_load_count() == loads + 1


def _loads(runtime: ctypes.CDLL, built: build.Built) -> str:
    """The reason why the runtime does not load a program that was built here, or ""."""
    problem = ctypes.create_string_buffer(1024)
    size = ctypes.c_size_t(len(built.binary))
    room = ctypes.c_size_t(len(problem))
    loaded = runtime.ck_cpu_load(built.digest.encode(), built.binary, size, 0, problem, room)
    assert loaded == (not problem.value)
    return problem.value.decode()


def _needing(features: str) -> build.Built:
    """A program that says that it needs these features of the processor."""
    return _built(f"#undef CK_FEATURES\n#define CK_FEATURES {features}\n{PROGRAM}")


@X86
def test_program_for_another_processor_is_refused(runtime: ctypes.CDLL) -> None:
    built = _needing("SSE3,AVX512ER,SSSE3,AVX5124FMAPS")  # of a processor that was sold without the rest
    with pytest.raises(Exception, match="another processor.*lacks.*AVX512ER, AVX5124FMAPS; compile it again"):
        _caller(built.binary, permit=trust.trust)(jnp.ones(8))
    assert "AVX512ER" in _loads(runtime, built)


@X86
@pytest.mark.parametrize("feature", ["AVX", "AVX1024", "AVX2_", "unknown"])
def test_features_that_the_runtime_does_not_know(runtime: ctypes.CDLL, feature: str) -> None:
    """Only the processor for which the program was built is known to have them."""
    built = _needing(f"SSE3,{feature},RTM")
    x = jnp.ones(8)
    if feature != "AVX":
        with pytest.raises(Exception, match=f"not known to have, {feature}; compile it again"):
            _caller(built.binary, permit=trust.trust)(x)
    assert not _loads(runtime, built)
    np.testing.assert_array_equal(_caller(built.binary, permit=trust.trust)(x), np.full(8, 2))


@X86
def test_the_runtime_can_check_all_that_compilers_use(runtime: ctypes.CDLL) -> None:
    """The newest processors that the compiler knows."""
    text = (build.program_folders("cpu_src")[0] / "runtime_features.h").read_text()
    known = set(re.findall(r'\{"(\w+)", k', text))
    toolchain, named = build.host_toolchain(), set()
    for processor in ("native", "graniterapids", "sapphirerapids", "knm", "znver3", "znver5", "bdver4"):
        flags = tuple(flag.replace("native", processor) for flag in build.PROGRAM_FLAGS)
        named |= features.names_of(toolchain, flags) or set()  # an old compiler does not know all
    assert {"AVX2", "LZCNT", "F16C", "MOVBE"} <= named <= known, named - known


@X86
def test_programs_name_their_features(runtime: ctypes.CDLL) -> None:
    library = ctypes.CDLL(_built().path)
    found = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "ck_features"))).decode()
    assert set(found.split(",")) - {""} == features.names_of(build.host_toolchain(), build.PROGRAM_FLAGS)


def test_routines_that_this_process_does_not_have(runtime: ctypes.CDLL) -> None:
    program = PROGRAM.replace(
        '#include "cocktail_base.h"',
        '#include "cocktail_routines.h"\nCK_EXPORT CkRoutine ck_routines[];\n'
        'CkRoutine ck_routines[] = {{"dsyevd", nullptr}, {"%s", nullptr}, {nullptr, nullptr}};',
    )
    x = jnp.arange(8.0)
    for name, fits in (("ssyevd", True), ("dsyevx8", False)):
        call = _caller(_built(program.replace("%s", name)).binary)
        with nullcontext() if fits else pytest.raises(Exception, match="the program calls dsyevx8 of LAPACK"):
            np.testing.assert_array_equal(call(x), 2 * np.arange(8.0))


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_digest_of_every_length(runtime: ctypes.CDLL, size: int) -> None:
    """A right digest of something that is no program gets as far as the loader."""
    data = bytes(range(256)) * 4
    with pytest.raises(Exception, match="cannot be loaded"):
        _caller(data[: size + 1])(jnp.ones(8))


def test_a_program_reads_the_launch_parameters_of_its_call(runtime: ctypes.CDLL) -> None:
    """Two calls of one binary have their own."""
    text = PROGRAM.replace("x[i] * 2", "x[i] * f32(unit->sizes[0] - unit->sizes[1])")
    text = text.replace("CkUnit*", "CkUnit* unit").replace("cocktail_base.h", "cocktail_units.h")
    built, x = _built(text), jnp.arange(8.0)
    first, second = (_caller(built.binary, sizes=sizes) for sizes in ((10, 3), (1 << 33, (1 << 33) - 5)))
    for call, factor in ((first, 7), (second, 5), (first, 7)):
        np.testing.assert_array_equal(call(x), np.arange(8) * factor)


def test_concurrent_calls(runtime: ctypes.CDLL) -> None:
    built = _built()
    call = _caller(built.binary, "", 4096)

    def work(seed: int) -> bool:
        x = jnp.arange(8.0) + seed
        return all(np.array_equal(call(x), np.asarray(x) * 2 + 1) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
