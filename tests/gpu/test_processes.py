"""Programs that leave the process: exported, or found again in JAX's cache of executables."""

from __future__ import annotations

import json
import os

import jax
import numpy as np
import pytest
from jax import export

from tests.gpu import programs
from tests.gpu.card import Card
from tests.process import python

SETTING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
TARGETS = ("jax_cocktail_gpu", "jax_cocktail_gpu_nograph")


@pytest.mark.parametrize("errors", ["deferred", "sync"])
def test_exported(gpu: Card, eager, tmp_path, errors):
    """The other process has no compiler of ours to call: the program is in the call."""
    pytest.importorskip("flatbuffers")
    ours = gpu.jit(programs.decoder, errors=errors)
    allowed = [export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
    arguments = programs.decoder_arguments()
    data = export.export(ours, disabled_checks=allowed)(*arguments).serialize()
    (tmp_path / "program").write_bytes(data)
    program = f"""
        import jax_cocktail, json, pathlib
        jax_cocktail.load()
        from jax import export
        from tests.gpu import programs
        program = export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        token, count, seen = program.call(*programs.decoder_arguments())
        print(json.dumps([int(token), int(count), seen.tolist()]))
    """
    said = python(program, **SETTING, JAX_COCKTAIL_CACHE_DIR=str(tmp_path / "cache"))
    token, count, seen = jax.jit(programs.decoder)(*arguments)
    assert json.loads(said.splitlines()[-1]) == [int(token), int(count), np.asarray(seen).tolist()]


PROGRAM = """
    import jax, json, logging
    import jax_cocktail
    from tests.gpu import programs

    found = []
    class Listener(logging.Handler):
        def emit(self, record):
            if "Persistent compilation cache hit" in record.getMessage():
                found.append(record.getMessage())
    logger = logging.getLogger("jax._src.compiler")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Listener())
    ours = jax_cocktail.jit(programs.decoder, options={"force": "cocktail", "strict": True})
    token, count, seen = ours(*programs.decoder_arguments())
    hits = sum("decoder" in text for text in found)
    print(json.dumps([hits, int(token), int(count), seen.tolist()]))
"""


def test_persistent_cache(gpu: Card, tmp_path):
    """The second process takes the executable from JAX's cache, the program with it."""
    environment = {
        **SETTING,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "ours"),
    }
    first, second = (json.loads(python(PROGRAM, **environment).splitlines()[-1]) for _ in range(2))
    assert first[0] == 0 and second[0] > 0
    token, count, seen = jax.jit(programs.decoder)(*programs.decoder_arguments())
    assert first[1:] == second[1:] == [int(token), int(count), np.asarray(seen).tolist()]
