"""jax.export: a program with our calls leaves the process and comes back in another one."""

from __future__ import annotations

import hashlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jax_cocktail
from jax_cocktail import cache
from jax_cocktail.build.host import host_toolchain
from jax_cocktail.memory import MEMORY
from jax_cocktail.runtime import trust
from tests.process import python

TARGET = "jax_cocktail_cpu"
ALLOWED = [export.DisabledSafetyCheck.custom_call(TARGET)]


@pytest.fixture(autouse=True)
def fresh():
    """Every warning is told again."""
    MEMORY.warned.clear()


def function(x):
    return lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, x)


OURS = jax_cocktail.jit(function, options={"force": "cocktail"})


def test_needs_permission():
    with pytest.raises(ValueError, match=TARGET):
        export.export(OURS)(jnp.ones(4))


def test_ours_needs_none():
    """Our `export` permits our calls, also those of a recursion on stock XLA, and no other."""

    @jax_cocktail.recursive(max_depth=8)
    def count(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    exported = jax_cocktail.export(OURS)(jax.ShapeDtypeStruct((4,), jnp.float32))
    assert TARGET in exported.mlir_module()
    assert jnp.allclose(exported.call(jnp.ones(4)), jax.jit(function)(jnp.ones(4)))
    with jax_cocktail.options(force="stock"):
        assert int(jax_cocktail.export(count)(jnp.int32(0)).call(jnp.int32(7))) == 7

    def foreign(x):
        return jax.ffi.ffi_call("foreign", jax.ShapeDtypeStruct(x.shape, x.dtype))(function(x))

    with pytest.raises(ValueError, match="foreign"):
        jax_cocktail.export(foreign)(jnp.ones(4))
    permitted = [export.DisabledSafetyCheck.custom_call("foreign")]
    assert jax_cocktail.export(foreign, disabled_checks=permitted)(jnp.ones(4)).platforms == ("cpu",)
    with pytest.raises(TypeError, match="callable"):
        jax_cocktail.export(3)


def test_ours_takes_methods_and_platforms():
    class Model:
        @jax_cocktail.jit(static_argnums=0)
        def run(self, x):
            return function(x)

    exported = jax_cocktail.export(Model().run, platforms=["cpu"])(jnp.ones(4))
    assert jnp.allclose(exported.call(jnp.ones(4)), jax.jit(function)(jnp.ones(4)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A file with an exported program, alone in its folder."""
    pytest.importorskip("flatbuffers")
    path = tmp_path_factory.mktemp("exported") / "program"
    path.write_bytes(export.export(OURS, disabled_checks=ALLOWED)(jnp.ones(4)).serialize())
    return path


def test_here(exported):
    expected = jax.jit(function)(jnp.ones(4))
    found = export.deserialize(bytearray(exported.read_bytes())).call(jnp.ones(4))
    assert jnp.allclose(found, expected)


READER = """
    import os, pathlib
    import jax_cocktail
    import jax.numpy as jnp
    from jax import export

    def say(path):
        program = export.deserialize(bytearray(pathlib.Path(path).read_bytes()))
        try:
            print(float(program.call(jnp.ones(4))[0]))
        except Exception as error:
            print("load(trust=...)" in str(error))

    jax_cocktail.jit  # the import registers the handlers
    good, evil = os.environ["GOOD"], os.environ["EVIL"]
"""
EVIL = """#include <stdio.h>
__attribute__((constructor)) static void evil(void) { FILE* f = fopen("%s", "w"); if (f) fclose(f); }
int ck_program(const void* const* o, void* const* r, unsigned char* w, void* u) { return 0; }
"""


@pytest.fixture
def attack(tmp_path):
    """A module with a binary that writes a file as soon as it is loaded, and with every digest right."""
    source, library = tmp_path / "evil.c", tmp_path / "evil.so"
    source.write_text(EVIL % (tmp_path / "ran"))
    subprocess.run(
        [*host_toolchain().command, "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True
    )
    binary = library.read_bytes()
    signature = trust.signature([("float32", (4,))], [("float32", (4,))], ())

    def call(x):
        return jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))(
            x,
            binary=np.frombuffer(binary, np.uint8),
            digest=trust.digest_of((0, 0, -1, 0), signature, hashlib.sha256(binary).hexdigest()),
            launch=np.asarray((0, 0, -1, 0), np.int64),
            signature=np.asarray(signature, np.int64),
        )

    path = tmp_path / "attack"
    path.write_bytes(export.export(jax.jit(call), disabled_checks=ALLOWED)(jnp.ones(4)).serialize())
    return path


def test_another_process_runs_what_it_trusts(exported, attack, tmp_path):
    """Neither the import nor `load` lets machine code in; trust in one file is no trust in another one."""
    program = f"""{READER}
    for trust in ((), False, "0" * 64):
        say(good), say(evil)
        jax_cocktail.load(trust=trust)
    jax_cocktail.load(trust=good)
    say(good), say(evil)
    print(os.path.exists(os.environ["RAN"]))
    jax_cocktail.load(trust=True)
    say(evil)
    """
    folders = {"JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache"), "RAN": str(tmp_path / "ran")}
    said = python(program, GOOD=str(exported), EVIL=str(attack), **folders).split()
    assert said[:6] == ["True"] * 6, "refused, with advice"
    expected = float(jax.jit(function)(jnp.ones(4))[0])
    assert abs(float(said[6]) - expected) < 1e-4 and said[7:9] == ["True", "False"]
    assert (tmp_path / "ran").exists(), "with trust=True the attack works"


def test_another_process_of_this_user(exported, attack):
    """What this user's cache records is not foreign."""
    folder = str(cache.cache_dir())
    program = f"{READER}    say(good), say(evil)"
    said = python(program, JAX_COCKTAIL_CACHE_DIR=folder, GOOD=str(exported), EVIL=str(attack)).split()
    expected = float(jax.jit(function)(jnp.ones(4))[0])
    assert abs(float(said[0]) - expected) < 1e-4 and said[1] == "True"


def test_lapack_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers")
    ours = jax_cocktail.jit(
        lambda x: lax.fori_loop(0, 3, lambda _, a: jnp.linalg.eigh(a)[1] * a, jnp.diag(x) + 1),
        options={"force": "cocktail"},
    )
    path = tmp_path / "program"
    exported = export.export(ours, disabled_checks=ALLOWED)(jnp.ones(4))
    path.write_bytes(exported.serialize())
    reader = """
        import os, pathlib, sys
        import jax_cocktail, jax.numpy as jnp
        from jax import export

        jax_cocktail.load(trust=os.environ["GOOD"])
        assert "scipy.linalg.cython_lapack" not in sys.modules
        program = export.deserialize(bytearray(pathlib.Path(os.environ["GOOD"]).read_bytes()))
        print(float(program.call(jnp.ones(4))[0, 0]))
    """
    found = float(python(reader, GOOD=str(path), JAX_COCKTAIL_CACHE_DIR=str(tmp_path / "cache")))
    assert abs(found - float(ours(jnp.ones(4))[0, 0])) < 1e-5


@pytest.mark.parametrize("form", ["str(path)", "path", "path.parent", "data", "bytearray(data)", "[digest]"])
def test_forms_of_trust(exported, monkeypatch, form):
    data = exported.read_bytes()
    (digest,) = trust._named(data)
    monkeypatch.setattr(trust, "_trusted", set())
    jax_cocktail.load(trust=eval(form, {"path": exported, "data": data, "digest": digest}))
    assert trust._trusted == {digest}


def test_executables_of_jax_in_another_process(tmp_path):
    """JAX's compilation cache and its serialized executables bypass the compiler of the second process."""
    program = """
        import os, pathlib, pickle
        import jax, jax.numpy as jnp
        from jax import lax
        from jax.experimental import serialize_executable
        import jax_cocktail
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        path = pathlib.Path(os.environ["FOLDER"]) / "executable"
        f = jax_cocktail.jit(lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, x),
                             options={"force": "cocktail"})
        if path.exists():
            print(serialize_executable.deserialize_and_load(*pickle.loads(path.read_bytes()))(jnp.ones(4))[0])
        else:
            path.write_bytes(pickle.dumps(serialize_executable.serialize(f.lower(jnp.ones(4)).compile())))
        print(f(jnp.ones(4))[0])
    """
    folders = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"), "FOLDER": str(tmp_path)}
    folders["JAX_COCKTAIL_CACHE_DIR"] = str(tmp_path / "cache")
    (first,), again = (python(program, **folders).split() for _ in range(2))
    assert again == [first, first] and [*(tmp_path / "xla").iterdir()]


def test_trust_in_nothing(monkeypatch):
    """A program that stock XLA runs has no call of ours; whoever reads it need not know."""
    monkeypatch.setattr(trust, "_trusted", set())
    with jax_cocktail.options(force="stock"):
        jax_cocktail.load(trust=export.export(jax_cocktail.jit(function))(jnp.ones(4)).serialize())
    assert trust._trusted == set()
    with pytest.raises(OSError, match="No such file"):
        jax_cocktail.load(trust="/nowhere/at/all")


def test_an_empty_text_is_not_the_current_folder(exported, monkeypatch):
    monkeypatch.setattr(trust, "_trusted", set())
    monkeypatch.chdir(exported.parent)
    with pytest.raises(FileNotFoundError, match="names no file"):
        jax_cocktail.load(trust="")
    with pytest.raises(TypeError, match="not 3"):
        jax_cocktail.load(trust=[exported, 3])
    assert len(trust._trusted) == 1


def test_a_recursion_on_stock_needs_permission_of_its_own():
    """Its custom call raises the error of a recursion that is too deep."""

    @jax_cocktail.recursive(max_depth=8)
    def count(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    with pytest.raises(ValueError, match="jax_cocktail_failure"):
        export.export(jax.jit(count))(jnp.int32(0))
    permitted = [export.DisabledSafetyCheck.custom_call("jax_cocktail_failure")]
    exported = export.export(jax.jit(count), disabled_checks=permitted)(jnp.int32(0))
    assert int(exported.call(jnp.int32(7))) == 7


def test_a_recursion_that_is_ours_needs_no_other_permission():
    @jax_cocktail.recursive(max_depth=8)
    def fib(self, n):
        return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))

    compiled = jax_cocktail.jit(fib, options={"force": "cocktail"})
    exported = export.export(compiled, disabled_checks=ALLOWED)(jnp.int32(0))
    assert int(exported.call(jnp.int32(8))) == 21


def test_several_platforms_are_stock():
    with pytest.warns(jax_cocktail.CocktailWarning, match="several platforms"):
        exported = export.export(OURS, platforms=("cpu", "cuda"))(jnp.ones(4))
    assert exported.platforms == ("cpu", "cuda")
    assert TARGET not in exported.mlir_module()


def test_another_platform_is_stock():
    with pytest.warns(jax_cocktail.CocktailWarning, match="only the platforms cpu"):
        lowered = OURS.trace(jnp.ones(4)).lower(lowering_platforms=("tpu",))
    assert TARGET not in lowered.as_text()
