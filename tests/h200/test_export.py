"""Programs that leave the process: exported modules and JAX's compilation cache carry our calls with them."""

from __future__ import annotations

import hashlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

from benchmarks.gpu.peers import COMMAND_BUFFERS
from jax_cocktail.runtime import trust
from tests.h200.card import OURS, compiled, ours
from tests.process import python

X = jnp.zeros((32, 32), jnp.float32)
ALLOWED = [export.DisabledSafetyCheck.custom_call(OURS)]


def loop(x):
    return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y @ x), x)


@pytest.fixture(scope="module")
def exported():
    return export.export(ours(loop), platforms=("cuda",), disabled_checks=ALLOWED)(X).serialize()


def test_export_has_to_allow_the_call():
    with pytest.raises(ValueError, match=OURS):
        export.export(ours(loop), platforms=("cuda",))(X)


def test_exported(exported, tmp_path):
    found = export.deserialize(exported)
    assert found.platforms == ("cuda",)
    again = compiled(jax.jit(found.call), (X,), tmp_path, options=COMMAND_BUFFERS)
    assert again.targets == [OURS] and "kCustomCall" in again.captured


def test_exported_programs_need_no_compiler_of_ours(exported, tmp_path):
    """A process on a machine for GPUs that only loads jax_cocktail has the handlers."""
    (tmp_path / "module").write_bytes(exported)
    program = """
        import os, pathlib
        import jax_cocktail
        jax_cocktail.load()
        from jax_cocktail.lowering.choice import variants
        from jax_cocktail.lowering.edge import gpu_call
        assert gpu_call._handlers, "loading registers"
        variants.build = variants.emit = None
        import jax
        jax.config.update("jax_platforms", "cpu")  # there is none
        from jax import export
        from tests.h200.card import compiled
        folder = pathlib.Path(os.environ["FOLDER"])
        found = export.deserialize((folder / "module").read_bytes())
        shape = jax.ShapeDtypeStruct((32, 32), "float32")
        print(*compiled(jax.jit(found.call), (shape,), folder / "dumps").targets)
    """
    assert python(program, JAX_PLATFORMS="", FOLDER=str(tmp_path)).split() == [OURS]


def test_executables_carry_the_program(tmp_path):
    """The machine code is an attribute of the call in the optimised module, unharmed, so that all that keeps
    executables keeps it."""
    text = compiled(ours(loop), (X,), tmp_path).text
    (digest,), (program,), (launch,), (signature,) = (
        re.findall(pattern, text)
        for pattern in (
            r'\bdigest = "(\w+)"',
            r'\bbinary = dense<"0x([0-9A-F]+)">',
            r"\blaunch = dense<\[([-\d, ]+)\]>",
            r"\bsignature = dense<\[([-\d, ]+)\]>",
        )
    )
    numbers = ([int(number) for number in text.split(",")] for text in (launch, signature))
    assert trust.digest_of(*numbers, hashlib.sha256(bytes.fromhex(program)).hexdigest()) == digest


def test_the_compilation_cache_knows_programs_that_another_process_compiled(tmp_path):
    """A second process, which has to run our compiler and nvcc anew, makes the same key of JAX's cache. (To
    load the entry takes a GPU.)"""
    program = """
        import os, pathlib, jax, jax.numpy as jnp
        from jax import lax
        from tests.h200.card import ours, shapes
        folder = os.environ["FOLDER"]
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        def loop(x):
            return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y @ x), x)
        ours(loop).lower(*shapes((jnp.zeros((32, 32), jnp.float32),))).compile()
        print(*sorted(path.name for path in pathlib.Path(folder).glob("jit_loop-*-cache")))
    """
    found = [
        python(program, FOLDER=str(tmp_path / "xla"), JAX_COCKTAIL_CACHE_DIR=str(tmp_path / name)).split()
        for name in ("one", "two")
    ]
    assert found[0] == found[1] and len(found[0]) == 1
