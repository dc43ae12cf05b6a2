"""`jax_cocktail.jit` with programs for a GPU, which an emulation on the host runs in the place of a card.

What is captured, translated, planned and emitted is what a card would get; a callback stands for the launch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail import compiler
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Artifact, Emitted, Executable
from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.lowering.choice import survey, variants
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.placement.limits import Limits
from jax_cocktail.utask.candidate import Candidate, way
from tests.case import QUICK
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import Program
from tests.cpu.runner import EAGER
from tests.strategies import check_state, initial_state, run

THREADS = 64
KERNELS = ("ck_resident", "ck_portable")
SPEC = replace(H200, name="emulated", shared_bytes=96 << 10)
WAVES = {  # AMD's cards by the lanes of a wave
    64: replace(MI300X, name="emulated"),
    32: replace(RX_7900_XTX, name="emulated"),
}


@dataclass
class Emulation:
    """What to emulate next, and what was: `launches` are (emitted program, built program, kernel)."""

    threads: int = THREADS
    outline_limit: int = PROGRAM.outlined_loops
    spec: DeviceSpec = SPEC
    kernel: str = "ck_resident"
    seed: int = 0
    grid: int | None = None  # blocks, if not as many as find work
    sanitizer: Any = None
    distribute: bool = True
    pipeline: bool = False
    cluster: bool = False
    launches: list[tuple[Emitted, Program, str]] | None = None

    def emit(self, program: Any, *_: Any, candidate: Candidate, trace: int = 0, **more: Any) -> Emitted:
        machine = machine_of(self.spec, self.threads)
        machine = replace(machine, target=replace(machine.target, outline_limit=self.outline_limit))
        return compiler.emit(program, machine, candidate=candidate, trace=trace, **more)

    def build(self, emitted: Emitted, *_: Any, **__: Any) -> Artifact:
        digest, built = self._digest(emitted), self.program(emitted)
        self._built[digest] = Artifact(emitted.source.encode(), digest, emitted, 0.0, False, str(built.path))
        return self._built[digest]

    @staticmethod
    def _digest(emitted: Emitted) -> str:
        return hashlib.sha256(emitted.source.encode()).hexdigest()

    def program(self, emitted: Emitted) -> Program:
        gpu = emulator.Gpu(self.spec.platform, self.spec.warp, self.spec.dies)
        return emulator.build(emitted.source, sanitizer=self.sanitizer, gpu=gpu)

    def launch(self, artifact: Artifact, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """One launch on copies of the arguments; donated ones become results."""
        emitted = artifact.emitted
        operands = [np.array(x, order="C") for x in arguments]
        shapes = [v.type for v in emitted.program.entry.results]
        of = emitted.in_call
        results = [np.zeros([*map(of, t.shape)], custom_call._numpy_name(t.dtype)) for t in shapes]
        for operand, result in artifact.aliases:
            results[result] = operands[operand]
        if emitted.stamps is not None:
            results.append(np.zeros(emitted.stamps.shape, np.uint32))
        program = self.program(emitted)
        plan = launch_plan(*(emitted.program, emitted.plan, emitted.machine, emitted.sizes), emitted.given)
        units = self.grid or plan.most_units
        near = emitted.plan.cluster and self.kernel == "ck_resident"
        grid = {"units": units, "cluster": units if near else 1}
        shared_bytes = emitted.plan.in_call(emitted.given).shared_bytes if emitted.sizes else 0
        lengths = {"sizes": emitted.sizes, "shared_bytes": shared_bytes}
        program.launch(operands, results, kernel=self.kernel, seed=self.seed, **grid, **lengths)
        if self.launches is not None:
            self.launches.append((emitted, program, self.kernel))
        return results

    def call(self, _: str, shapes: Any, **__: Any) -> Any:
        """Stands for `jax.ffi.ffi_call`."""

        def bound(*operands: Any, digest: str, **___: Any) -> Any:
            artifact = self._artifacts[digest]

            def run(*values: Any) -> Any:
                found = self.launch(artifact, list(values))
                return [*found, *(np.zeros(s.shape, s.dtype) for s in shapes[len(found) :])]

            return jax.pure_callback(run, list(shapes), *operands)

        return bound

    def __post_init__(self) -> None:
        self._built: dict[str, Artifact] = {}  # by the digest of the source
        self._artifacts: dict[str, Artifact] = {}  # by the digest of the call

    def install(self, monkeypatch: Any) -> Emulation:
        """Compiles for a GPU and emulates it until the test ends."""

        attributes = custom_call._bound

        def bound(executable: Executable, *rest: Any) -> Any:
            found = attributes(executable, *rest)
            self._artifacts[found["digest"]] = self._built[executable.digest]
            return found

        how = {name: getattr(self, name) for name in ("distribute", "pipeline", "cluster")}
        monkeypatch.setattr(variants, "candidates", lambda _, units, *__: (way(units, **how),))
        monkeypatch.setattr(survey, "better_size", lambda _, machine: machine.target.threads)
        monkeypatch.setattr(variants, "emit", self.emit)
        monkeypatch.setattr(variants, "build", self.build)
        monkeypatch.setattr(variants, "is_built", lambda emitted: self._digest(emitted) in self._built)
        monkeypatch.setattr(custom_call, "_bound", bound)
        monkeypatch.setattr(custom_call, "load", lambda _: None)
        monkeypatch.setattr(jax.ffi, "ffi_call", self.call)
        return self


def check_program(program: Any, seed: int, units: int, limits: Limits = EAGER, **how: Any) -> Emulation:
    """A random program (see tests/strategies.py), divided into whatever parts there can be, equals stock."""
    state = initial_state(seed)
    stock = jax.jit(lambda *s: run(program, s), compiler_options=QUICK)(*state)
    emulation = Emulation(launches=[], seed=seed, **how)
    options = {"force": "cocktail", "strict": True, "units": units}
    with pytest.MonkeyPatch.context() as patch, jax.default_matmul_precision("highest"):
        patch.setattr("jax_cocktail.passes.limits_for", lambda *_: limits)
        emulation.install(patch)
        check_state(jax_cocktail.jit(lambda *s: run(program, s), options=options)(*state), stock)
    return emulation


def check_launches(
    monkeypatch: pytest.MonkeyPatch,
    emulation: Emulation,
    function: Callable[..., Any],
    given: tuple[Any, ...],
    units: int,
    launches: Iterable[tuple[str, int]],
) -> Emitted:
    """The function's program on emulated units equals stock in every launch, which is (kernel, seed). It is
    compiled once; returns what was emitted."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation.launches = []
    emulation.install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function, compiler_options=QUICK)(*given)
        ours = jax_cocktail.jit(function, options=options)
        for emulation.kernel, emulation.seed in launches:
            for x, y in zip(jax.tree.leaves(ours(*given)), jax.tree.leaves(stock), strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
    return emulation.launches[-1][0]


def array(seed: int, *shape: int) -> jax.Array:
    """Normal numbers whose rows have a length of about 1."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32) / shape[-1] ** 0.5)


def greedy_decoder(hidden: int, words: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A decoder that feeds back the likeliest word until that is word 0, and its arguments."""

    def run(state: Any, table: Any, w: Any, out: Any) -> Any:
        def step(carry: Any) -> Any:
            count, word, h, said = carry
            h = jnp.tanh(h @ w + table[word])
            word = jnp.argmax(h @ out, axis=-1)[0].astype(jnp.int32)
            return count + 1, word, h, said.at[count].set(word)

        start = (jnp.int32(0), jnp.int32(1), state, jnp.zeros(12, jnp.int32))
        return jax.lax.while_loop(lambda c: (c[1] != 0) & (c[0] < 12), step, start)[2:]

    weights = 3 * array(2, words, hidden), array(3, hidden, hidden), array(4, hidden, words)
    return run, (array(1, 1, hidden), *weights)
