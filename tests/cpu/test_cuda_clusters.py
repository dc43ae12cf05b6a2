"""Programs whose units are one cluster, emulated, against `jax.jit` on the host, and compiled."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_cocktail import compiler
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import LoopUTask, operators_in, walk
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail_tools.models import MODELS
from tests.cpu.cuda_text import FOLDERS, NO_NVCC, NVCC, nvcc_facts
from tests.cpu.emulated import KERNELS, Emulation, array, check_launches, greedy_decoder
from tests.cpu.emulation import emulator


def solver():
    """Conjugate gradients on 24 unknowns: one small value crosses in every step."""

    def run(matrix, right):
        def step(state):
            n, x, r, p, rr = state
            q = matrix @ p
            alpha = rr / (p @ q)
            x, r = x + alpha * p, r - alpha * q
            new = r @ r
            return n + 1, x, r, r + (new / rr) * p, new

        zeros = jnp.zeros_like(right)
        first = (jnp.int32(0), zeros, right, right, right @ right)
        return lax.while_loop(lambda s: (s[4] > 1e-6) & (s[0] < 9), step, first)[1]

    factor = array(5, 24, 24)
    return run, (factor @ factor.T + 2 * jnp.eye(24), array(6, 24))


def wide():
    """tanh(x + h W) of a state too large for an exchange: the units meet."""

    def run(xs, w, h):
        return lax.scan(lambda h, x: (jnp.tanh(x + h @ w), None), h, xs)[0]

    return run, (array(1, 3, 3, 400), array(2, 400, 400), array(3, 3, 400))


CASES = {"solver": solver, "wide": wide, "greedy": lambda: greedy_decoder(24, 16)}


def run(monkeypatch, name, units, kernel="ck_resident", seeds=(0,), edit=None, **how):
    """The program of a case, run on emulated units that are one cluster, equals stock."""
    emulation = Emulation(cluster=True, **how)
    if edit:
        emit = emulation.emit
        emulation.emit = lambda *program, **how: edited(emit(*program, **how), *edit)
    return check_launches(monkeypatch, emulation, *CASES[name](), units, [(kernel, seed) for seed in seeds])


def edited(emitted, pattern, replacement):
    text, count = re.subn(pattern, replacement, emitted.source)
    assert count
    return replace(emitted, source=text)


# -- emulated ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "units", "crossings"),
    [
        ("solver", 8, {"exchange"}),
        ("wide", 4, {"arrive", "wait"}),
        ("greedy", 8, {"exchange"}),
        ("greedy", 6, {"arrive", "wait"}),  # one unit makes what six parts leave over of 16
    ],
)
def test_equals_stock(name, units, crossings, kernel, monkeypatch):
    emitted = run(monkeypatch, name, units, kernel, seeds=range(3))
    assert emitted.plan.cluster and emitted.plan.most_units == units
    assert "#define CK_ONE_CLUSTER 1" in emitted.source
    loops = [s for s in walk(emitted.program.entry) if isinstance(s, LoopUTask) and not s.parallel]
    kinds = {o.kind for s in loops for o in operators_in(s.body)}
    assert kinds & BARRIERS == crossings


@pytest.mark.parametrize("name", ["solver", "wide"])
def test_no_race_among_threads(name, monkeypatch):
    emitted = run(monkeypatch, name, 4, seeds=(1,), sanitizer="thread")
    assert emitted.plan.cluster


def test_a_block_that_does_not_wait(monkeypatch):
    with pytest.raises(Exception, match="arrives twice at the cluster barrier"):
        run(monkeypatch, "wide", 4, edit=(r"ck_wait\(unit\);", ""))


def test_threads_of_one_block_alone_meet(monkeypatch):
    with pytest.raises(Exception, match="data race"):
        run(
            monkeypatch,
            "wide",
            4,
            sanitizer="thread",
            edit=(r"ck_(arrive|wait)\(unit\);", "ck_block_barrier();"),
        )


def test_without_a_cluster(monkeypatch):
    """The resident kernel is not for blocks that are launched each for itself."""
    launch = emulator.Program.launch
    alone = lambda *values, cluster, **how: launch(*values, cluster=1, **how)  # noqa: E731
    monkeypatch.setattr(emulator.Program, "launch", alone)
    with pytest.raises(Exception, match="the cluster has no block of this rank"):
        run(monkeypatch, "solver", 3)


# -- the real sizes ------------------------------------------------------------------------------------------
def emitted_for(name, candidate, spec=H200):
    function, given = MODELS[name].make(1, small=False)
    (program,) = prepare(jax.make_jaxpr(function)(*given), "test", machine_of(spec)).programs
    return compiler.emit(program, machine_of(spec), candidate=candidate)


def test_launch():
    emitted = emitted_for("rae", way(16, cluster=True))
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine)
    words = 16 * 512  # of a node's state, twice
    apart = replace(emitted.plan, cluster=False)
    other = launch_plan(emitted.program, apart, emitted.machine)
    assert launch.cluster and launch.resident_units == launch.most_units == 16
    assert launch.cooperative and launch.header_bytes == other.header_bytes > words
    assert launch.resident_shared_bytes == other.resident_shared_bytes + words <= H200.shared_bytes
    assert launch.portable_shared_bytes == other.portable_shared_bytes


def test_what_does_not_meet_is_no_cluster():
    emitted = emitted_for("attention", way(8, cluster=True))
    assert emitted.plan.most_units > 1 and not emitted.plan.cluster
    assert "CK_ONE_CLUSTER" not in emitted.source


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["rae", "nasrnn"])
def test_registers(name, arch, tmp_path):
    emitted = emitted_for(name, way(8, cluster=True))
    facts = nvcc_facts(emitted.source, tmp_path, arch)
    assert {name: kernel.spilled for name, kernel in facts.items()} == dict.fromkeys(KERNELS, 0)


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
def test_instructions(tmp_path):
    """Of clusters, in the resident kernel of a program that is one, and nowhere else."""
    near = instructions(emitted_for("rae", way(8, cluster=True)).source, tmp_path)
    assert {"barrier.cluster.arrive.release.aligned", "mapa.u64"} <= near["ck_resident"]
    assert not any(re.search("cluster|mapa", word) for word in near["ck_portable"])
    for found in instructions(emitted_for("rae", Candidate(8)).source, tmp_path).values():
        assert not any(re.search("cluster|mapa", word) for word in found)


def instructions(text, folder):
    """By kernel, with the functions in front of it, what its PTX is made of."""
    path = folder / "program.cu"
    path.write_text(text)
    command = [NVCC, "-ptx", "-std=c++17", "-arch=sm_90", "-O3", *(f"-I{f}" for f in FOLDERS)]
    subprocess.run([*command, "-o", "program.ptx", "program.cu"], cwd=folder, check=True)
    _, *parts = re.split(r"\.entry (\w+)", path.with_suffix(".ptx").read_text())
    texts = zip(parts[::2], parts[1::2], strict=True)
    return {name: set(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)", body, re.M)) for name, body in texts}
