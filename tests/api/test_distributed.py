"""Two processes of `jax.distributed`, each with devices of the host, run one program over all of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

from tests.process import ROOT

EACH = """
    import sys, warnings
    import jax, jax.numpy as jnp, numpy as np
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_cocktail
    from tests.api.several_devices import recurrent

    assert jax.process_count() == 2 and len(jax.local_devices()) == 2 and jax.device_count() == 4
    mesh = Mesh(np.array(jax.devices()), ("d",))
    warnings.simplefilter("error", jax_cocktail.CocktailWarning)

    def loss(w, xs):
        return lax.pmean((recurrent(w, xs) ** 2).mean(), "d")

    def train(w, xs):
        def gradient(w, xs):
            return lax.pmean(jax.grad(lambda w: (recurrent(w, xs) ** 2).mean())(w), "d")
        for _ in range(3):
            w = w - 0.1 * gradient(w, xs)
        return w, loss(w, xs)

    whole = np.asarray(jax.random.normal(jax.random.key(1), (12, 8, 8)))
    xs = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P(None, "d")), lambda at: whole[at])
    w = np.asarray(jax.random.normal(jax.random.key(0), (8, 8)) * 0.3)
    mapped = jax.shard_map(
        train, mesh=mesh, in_specs=(P(), P(None, "d")), out_specs=(P(), P()), check_vma=False
    )
    def whole_batch(w, xs):
        value, gradient = jax.value_and_grad(lambda w: (recurrent(w, xs) ** 2).mean())(w)
        return w - 0.1 * gradient, value

    every = ({"force": "cocktail"}, {"force": "auto"}, {"compile": "background", "profile": "full"})
    for function, options in [(f, options) for f in (mapped, whole_batch) for options in every]:
        ours, expected = jax_cocktail.jit(function, options=options), jax.jit(function)(w, xs)
        for _ in range(3):
            for mine, stock in zip(ours(w, xs), expected, strict=True):
                assert mine.sharding == stock.sharding
                np.testing.assert_allclose(np.asarray(mine), np.asarray(stock), rtol=1e-5, atol=1e-6)
        assert jax_cocktail.wait()
        report = jax_cocktail.explain(ours)(w, xs)
        assert not report.trials and report.stock_seconds is None, report
        assert not report.left or report.choice == "stock", report
        print(report.choice, len(report.captured))
"""


def run(address: str, number: int) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    flags = "--xla_force_host_platform_device_count=2"
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EACH), address, str(number)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_both_run_one_program() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda number: run(address, number), range(2)))
    for each in done:
        assert each.returncode == 0, each.stdout + each.stderr
    chosen = "cocktail", "stock"  # other lines are Gloo's
    lines = ([line for line in each.stdout.splitlines() if line.startswith(chosen)] for each in done)
    first, second = lines
    assert first == second
    for forced in (first[0], first[3]):
        assert forced.startswith("cocktail") and int(forced.split()[1]) > 0
