"""Several processes and one cache: what one has compiled, no other compiles, even when all start at once."""

from __future__ import annotations

import json
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jax_cocktail.build.host import host_toolchain
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

PROGRAM = """
    import jax.numpy as jnp, json
    from jax import lax
    import jax_cocktail

    def function(x, count):
        return lax.fori_loop(0, count, lambda i, a: jnp.tanh(a) * 1.5 - i, x)

    jitted = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
    print(json.dumps(jitted(jnp.linspace(0, 1, 11), 7).tolist()))
"""


@pytest.fixture
def place(tmp_path):
    """An empty cache, and a compiler that writes down what it is asked for: (environment, runs)."""
    log, wrapper = tmp_path / "log", tmp_path / "compiler"
    real = shlex.join(host_toolchain().command)
    wrapper.write_text(f'#!/bin/sh\necho "$*" >> {shlex.quote(str(log))}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)

    def runs():
        """Command lines that compiled something; asking for the version compiles nothing."""
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if "-shared" in line]

    return {"JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(wrapper)}, runs


def test_second_process_runs_no_compiler(place):
    environment, runs = place
    first = python(PROGRAM, **environment)
    compiled = runs()
    assert len(compiled) == 2, "the program and the runtime"
    assert python(PROGRAM, **environment) == first
    assert runs() == compiled


def test_eight_processes_compile_one_program_once(place, tmp_path):
    environment, runs = place
    together = threading.Barrier(8)

    def process(_):
        together.wait()
        return json.loads(python(PROGRAM, **environment))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(process, range(8)))
    assert all(result == results[0] for result in results)
    sources = [path.read_text() for path in (tmp_path / "cache").rglob("*.cc")]
    assert sum("ck_program" in text and "XLA_FFI" not in text for text in sources) == 1
    assert len(sources) == len(runs()) == 2, "the program and the runtime, each once"
