"""The import, and the first call of a program that the cache has, load few modules: the compiler is not among
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

IMPORT = """
import json, sys
import jax_cocktail
def ours():
    print(json.dumps(sorted(name for name in sys.modules if name.startswith("jax_cocktail"))))
"""
CALL = (
    IMPORT
    + """
import jax.numpy as jnp
from jax import lax
def halved(x):
    return lax.fori_loop(0, 3, lambda _, c: c / 2 + x.sum(), x)
jitted = jax_cocktail.jit(halved, options={options})
assert float(jitted(jnp.ones(3)).sum()) > 0
ours()
"""
)
IDLE = "from jax_cocktail.lowering.run import stopwatch; stopwatch.Watch.others = lambda self: 0.0\n"
MOST_OF_THE_IMPORT, MOST_OF_A_CALL = 15, 147  # of about 380
PASSES = ("placement", "stitch.fuse")
COMPILER = ("analysis.verifier", "codegen.program", "compiler", "cost.price", "dump", *PASSES)
RARE = ("recursion.levels", "recursion.trace", "runtime.cuda.measure", "timeline")


def modules(code, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COCKTAIL_PLANS"}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_import(tmp_path):
    found = modules(IMPORT + "ours()", tmp_path)
    assert "jax_cocktail.config" in found and len(found) <= MOST_OF_THE_IMPORT, found


@pytest.mark.parametrize("options", [{"compile": "now"}, {"compile": "now", "force": "cocktail"}])
def test_a_call_of_a_cached_program(options, tmp_path):
    code = CALL.replace("{options}", repr(options))
    made = modules(IDLE + code, tmp_path)  # else it is measured again
    assert "jax_cocktail.compiler" in made
    found = modules(code, tmp_path)
    assert len(found) <= MOST_OF_A_CALL < len(made), found
    unexpected = [name for name in (*COMPILER, *RARE) if f"jax_cocktail.{name}" in found]
    assert not unexpected
    assert not [name for name in found if name.startswith("jax_cocktail_tools")]
