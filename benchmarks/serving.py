"""Requests of unlike length, answered by one call: stock XLA, a host loop that swaps requests, and ours.

    python -m benchmarks.serving                              64 and 256 requests
    python -m benchmarks.serving --requests 64 --slots 16     another number, other slots of the host loop
    python -m benchmarks.serving --no-stock                   without stock XLA's batch, which takes longest

The host loop is what one writes without us (Orca: Yu et al., OSDI'22): stock XLA runs a step of all slots,
the caches stay on the device, and Python gives the slot of a complete answer to the next request. It knows
the lengths, so that it never waits for the device to ask whether an answer is complete. It runs with 8, 16
and 32 slots, and the best counts. All ways answer with the same tokens. They run in turn; medians count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from jax_cocktail_tools.models import serving
from jax_cocktail_tools.models.measure import interleaved_samples
from jax_cocktail_tools.models.model import generator

SLOTS = (8, 16, 32)
Record = dict[str, Any]


class HostLoop:
    """Stock XLA steps, and a queue in Python."""

    def __init__(self, weights: Any, heads: int, most: int, slots: int) -> None:
        self.weights, self.slots, self.most = weights, slots, most
        width = weights["table"].shape[1]
        self.cache = (slots, serving.cache_rows(most), heads, width // heads)
        step = jax.vmap(serving.following, in_axes=(0, 0, 0, 0, None))

        def steps(count: int, state: Any, weights: Any) -> tuple[Any, Any]:
            """So many steps of all slots, and their tokens, (count, slots)."""

            def one(state: Any, _: None) -> tuple[Any, Any]:
                token, at, keys, values = state
                token, keys, values = step(token, jnp.minimum(at, most - 1), keys, values, weights)
                return (token, at + 1, keys, values), token

            return jax.lax.scan(one, state, None, length=count)

        self.steps = jax.jit(steps, static_argnums=0, donate_argnums=1)

        def swap(state: Any, slot: Any, token: Any) -> Any:
            tokens, at, keys, values = state
            return tokens.at[slot].set(token), at.at[slot].set(0), keys, values

        self.swap = jax.jit(swap, donate_argnums=0)

    def __call__(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The answers, (requests, most)."""
        answers = np.zeros((len(tokens), self.most), np.int32)
        caches = (jnp.zeros(self.cache), jnp.zeros(self.cache))
        state = (jnp.zeros(self.slots, jnp.int32), jnp.zeros(self.slots, jnp.int32), *caches)
        request, done, following = np.full(self.slots, -1), np.zeros(self.slots, int), 0
        made: list[tuple[np.ndarray, np.ndarray, int, Any]] = []
        while True:
            for slot in range(self.slots):
                ended = request[slot] >= 0 and done[slot] == lengths[request[slot]]
                if (ended or request[slot] < 0) and following < len(tokens):
                    state = self.swap(state, slot, tokens[following])
                    request[slot], done[slot] = following, 0
                    following += 1
                elif ended:
                    request[slot] = -1
                    state = self.swap(state, slot, 0)  # attention shall not read its cache any more
            active = request >= 0
            if not active.any():
                break
            left = int((lengths[request[active]] - done[active]).min())
            count = 1 << (left.bit_length() - 1)  # few programs: powers of two
            state, new = self.steps(count, state, self.weights)
            made.append((request.copy(), done.copy(), count, new))
            done[active] += count
        for request, begin, count, new in made:
            rows = np.asarray(new)
            for slot in np.flatnonzero(request >= 0):
                answers[request[slot], begin[slot] : begin[slot] + count] = rows[:, slot]
        return answers


def measure(count: int, slots: tuple[int, ...], stock: bool, seconds: float, size: Record) -> Record:
    """Median seconds of each way to answer so many requests."""
    random = generator("serving")
    weights = jax.tree.map(jnp.asarray, serving.weights_of(random, size["width"], size["words"]))
    tokens, lengths = serving.requests(random, count, size["words"], size["most"])
    function = serving.server(size["heads"], size["most"])
    arguments = (jnp.asarray(tokens), jnp.asarray(lengths), weights)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "compile": "now"})
    expected = np.asarray(ours(*arguments))
    ways: dict[str, Callable[[], Any]] = {"ours": partial(ours, *arguments)}
    if stock:
        ways["stock"] = partial(jax.jit(function), *arguments)
    for n in slots:
        loop = HostLoop(weights, size["heads"], size["most"], n)
        ways[f"host loop, {n} slots"] = partial(loop, tokens, lengths)
    for name, way in ways.items():
        same = (np.asarray(way()) == expected).mean()
        if same < 1:
            print(f"{name}: {1 - same:.2%} of the tokens differ")
    found = interleaved_samples(list(ways.values()), seconds=seconds)
    times = dict(zip(ways, found.medians, strict=True))
    facts = {"requests": count, "tokens": int(lengths.sum()), "longest": int(lengths.max()), **size}
    return {**facts, "jax": jax.__version__, "seconds": times}


def printed(found: Record) -> str:
    """Lines of a table."""
    seconds, tokens = found["seconds"], found["tokens"]
    host = min(time for name, time in seconds.items() if name.startswith("host"))
    head = f"{found['requests']} requests, {tokens} tokens, the longest answer {found['longest']}"
    lines = [f"  {name:22}{t * 1e3:10.1f} ms{tokens / t:10.0f} tokens/s" for name, t in seconds.items()]
    ratio = f"  the best host loop / ours: {host / seconds['ours']:.2f}"
    if "stock" in seconds:
        ratio += f"   stock / ours: {seconds['stock'] / seconds['ours']:.1f}"
    return "\n".join((head, *lines, ratio))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--slots", type=int, nargs="+", default=list(SLOTS), help="of the host loop")
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of requests")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--most", type=int, default=2000, help="tokens of the longest answer: rows of caches")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    size = {"width": given.width, "heads": 4, "words": 1000, "most": given.most}
    found = []
    for count in given.requests:
        found.append(measure(count, tuple(given.slots), not given.no_stock, given.seconds, size))
        print(printed(found[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
