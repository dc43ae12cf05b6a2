"""Runs in flight share nothing: programs with scratch memory of all sizes, called by many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks import calls
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

THREADS = 8
SIZES = (8, 96, 320)  # their scratch memory is a result, of one arena, and of several pages of one


def made(number, size):
    """A program with scratch memory that is read after it was written, and differs from all others."""

    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ a.T + number) @ x / size, x)

    return function


@pytest.mark.parametrize("units", [1, 2])
def test_programs_of_several_threads(units):
    """Each of 8 threads calls its own program, and one that all of them call."""
    options = {"force": "cocktail", "units": units, "plans": "cached"}
    sizes = [SIZES[number % len(SIZES)] for number in range(THREADS + 1)]
    inputs = [jnp.linspace(-1, 1, n * n).reshape(n, n) for n in sizes]
    functions = [made(number, n) for number, n in enumerate(sizes)]
    ours = [jax_cocktail.jit(function, options=options) for function in functions]
    alone = [np.asarray(f(x)) for f, x in zip(ours, inputs, strict=True)]
    for function, x, found in zip(functions, inputs, alone, strict=True):
        np.testing.assert_allclose(found, jax.jit(function)(x), atol=1e-4)
    begin = threading.Barrier(THREADS)

    def same(number):
        """A program of one unit gives the same bits every time. Units that leave divide sums anew."""
        begin.wait()
        return all(
            np.allclose(ours[which](inputs[which]), alone[which], atol=0 if units == 1 else 1e-5)
            for _ in range(20)
            for which in (number, THREADS)
        )

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(same, range(THREADS)))


def test_the_benchmark_calls_all_programs():
    """It counts calls that were made."""
    x = jnp.ones(8)
    functions = [calls._program("ours", number, 2) for number in range(2)]
    found = [jax.block_until_ready(f(x)) for f in functions]
    assert not np.array_equal(*found)
    assert calls._rate(functions, x, seconds=0.05) > 10


def test_the_end_is_quiet():
    """Whatever is loaded, leased or asleep, and after a fork: the process ends with status 0, at once."""
    program = """
        import os
        import jax.numpy as jnp, numpy as np
        import jax_cocktail
        from jax import lax
        options = {"force": "cocktail", "units": 2, "compile": "now"}
        x = jnp.linspace(0, 1, 300 * 300).reshape(300, 300)
        def made(n):
            return lambda x: lax.fori_loop(0, 2, lambda i, a: jnp.tanh(a @ x) + n, x)
        functions = [jax_cocktail.jit(made(n), options=options) for n in range(3)]
        wanted = [np.asarray(f(x)) for f in functions]
        child = os.fork()
        if child == 0:
            os._exit(0)  # JAX's own threads are not there, and its end would miss them
        status = os.waitpid(child, 0)[1]
        functions[0].clear_cache()
        print(status, all(np.allclose(f(x), w, atol=1e-4) for f, w in zip(functions, wanted)))
    """
    assert python(program, PYTHONWARNINGS="ignore") == "0 True\n"
