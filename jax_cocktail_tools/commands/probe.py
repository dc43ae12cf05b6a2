"""Answers what `doctor` asks jax, in a process of its own: ``python -m jax_cocktail_tools.commands.probe``.

It prints a JSON object a line, so that what came before a crash is known.
"""

from __future__ import annotations

import json
import time
from typing import Any

SETTLE_SECONDS = 0.3  # to see what other processes do


def tell(**facts: Any) -> None:
    """Prints facts."""
    print(json.dumps(facts), flush=True)


def devices() -> None:
    """The devices that jax computes on."""
    import jax

    found = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    version = str(getattr(jax.devices()[0].client, "platform_version", "")).strip()
    tell(backend=jax.default_backend(), devices=found, version=version.splitlines()[-1] if version else "")


def load() -> None:
    """The fraction of the cores that other processes hold."""
    from jax_cocktail.lowering.run import stopwatch

    watch = stopwatch.Watch()
    time.sleep(SETTLE_SECONDS)
    tell(others=watch.others())


def end_to_end() -> None:
    """A small scan, compiled by us, against stock XLA."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from jax_cocktail import api
    from jax_cocktail_tools.models.measure import largest_difference

    def function(weights: Any, inputs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = jnp.tanh(state @ weights + x)
            return state, jnp.sum(state)

        return lax.scan(step, jnp.zeros(8), inputs)

    arguments = jnp.eye(8) * 0.5 + 0.1, jnp.linspace(-1.0, 1.0, 96).reshape(12, 8)
    options = {"force": "cocktail", "compile": "now", "strict": True, "errors": "sync"}
    start = time.perf_counter()
    ours = jax.block_until_ready(api.jit(function, options=options)(*arguments))
    seconds = time.perf_counter() - start
    tell(difference=largest_difference(ours, jax.jit(function)(*arguments)), seconds=seconds)


def main() -> None:
    """Asks everything."""
    devices()
    load()
    end_to_end()


if __name__ == "__main__":
    main()
