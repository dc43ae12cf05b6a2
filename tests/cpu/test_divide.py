"""Programs in pieces and parts compute what they compute as a whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.build import host, job
from jax_cocktail.codegen import program
from jax_cocktail.codegen.divide import Length
from jax_cocktail.errors import BuildError
from jax_cocktail.placement.place import place
from tests.cpu.runner import EAGER, compile_program, run_artifact
from tests.null.programs import arguments, build, counted, elementwise, long_program
from tests.oracle.interpreter.run import run
from tests.strategies import check_program, programs

FEW = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
MATRIX = np.linspace(-0.3, 0.3, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def short(monkeypatch):
    """Everything counts as long."""
    monkeypatch.setattr(program, "LENGTH", Length(most=12, piece=6, least=2))
    monkeypatch.setattr(program, "PART_BYTES", 4096)


@FEW
@given(program=programs(), seed=st.integers(0, 5), units=st.integers(1, 3))
def test_random_programs(monkeypatch, short, program, seed, units):
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    check_program(program, seed, units)


@FEW
@given(program=programs(exits=True), seed=st.integers(0, 5))
def test_random_programs_that_may_leave(short, program, seed):
    check_program((("fori", 3, seed % 2 > 0, program),), seed)


def test_same_bits(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    source = long_program()
    (whole,) = run_artifact(compile_program(source), source, [MATRIX])
    monkeypatch.setattr(program, "LENGTH", Length(most=12, piece=6, least=2))
    monkeypatch.setattr(program, "PART_BYTES", 512)
    divided = compile_program(source)
    (found,) = run_artifact(divided, source, [MATRIX])
    assert found.tobytes() == whole.tobytes()
    commands = (Path(divided.path).parent / "command.txt").read_text().splitlines()
    assert len(commands) == 1 + host._parts(divided.emitted.source) > 2
    assert not list(Path(divided.path).parent.glob("*.o"))


def sums_and_loops(rows, depth=20):
    """Loops over the rows, and running sums of them that lie in the workspace."""

    def body(b, xs):
        zero, found = b.full(0, "int64", ()), []

        def step(i, total):
            row = b.emit("dynamic_slice", (xs, i, zero), "float32", (1, depth))
            row = b.reshape(row, (depth,))
            return (elementwise(b, "add", elementwise(b, "tanh", total), row),)

        x = xs
        for reverse in (False, True, False):
            (total,) = counted(b, rows, (b.full(0.0, "float32", (depth,)),), step)
            x = b.emit("cumulative", (x,), "float32", (rows, depth), axis=0, op="max", reverse=reverse)
            x = elementwise(b, "tanh", x)
            found.append(total)
        return [*found, x]

    return build([f"float32[{rows},{depth}]"], body)


def test_launch_parameters_reach_pieces(short):
    """One binary in pieces serves several lengths, on which the places of arrays depend."""
    programs = [sums_and_loops(rows) for rows in (33, 50)]
    built = [compile_program(program) for program in programs]
    assert len({each.digest for each in built}) == 1 and "piece" in built[0].emitted.source
    for artifact, source in zip(built, programs, strict=True):
        found, expected = run_artifact(artifact, source, arguments(source)), run(source, arguments(source))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_memory_of_compilers_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(job, "memory_limit", lambda compilers: 64 << 20)
    large = '#include "cocktail_base.h"\nstatic const i32 x[] = {' + "1, 2, 3,\n" * 400_000 + "};\n"
    entry = "CK_EXPORT int ck_program() { return x[7]; }\n"
    with pytest.raises(BuildError, match="more memory"):
        host.build_program(large + entry, host.host_toolchain())
    assert host.build_program(
        '#include "cocktail_base.h"\nstatic const i32 x[8] = {};\n' + entry, host.host_toolchain()
    )


def test_a_part_that_fails_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    text = '#include "cocktail_base.h"\n#if CK_IN_PART(1)\nint f() { return missing; }\n#endif\n'
    with pytest.raises(BuildError, match="missing"):
        host.build_program(text, host.host_toolchain())


@pytest.mark.parametrize("compilers", [1, 2, 64])
def test_compilers_together_take_half_of_the_memory_or_a_little_each(compilers):
    memory = job.os.sysconf("SC_PHYS_PAGES") * job.os.sysconf("SC_PAGE_SIZE")
    assert job.memory_limit(compilers) == max(memory // 2 // (4 * compilers), 2 << 30)
