"""Built programs against the interpreter, and the interpreter against itself between every two passes."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.compiler import transform
from jax_cocktail.passes import passes
from jax_cocktail.utask.candidate import SINGLE
from tests.cpu.runner import run_compiled
from tests.golden.programs import PROGRAMS
from tests.null.programs import arguments, branch, build, counted, elementwise, random_program
from tests.oracle.interpreter.run import run


def agree(ours, expected):
    for x, y in zip(ours, expected, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    program = random_program(seed)
    inputs = arguments(program, seed)
    expected = run(program, inputs)
    stages = []
    transform(program, [lambda name, after, _: stages.append((name, after.program))])
    assert [name for name, _ in stages] == [name for name, _ in passes(SINGLE)]
    for _, after in stages:
        agree(run(after, inputs), expected)
    agree(run_compiled(program, inputs), expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_pinned_programs(name):
    program = PROGRAMS[name]()
    inputs = arguments(program, 1)
    agree(run_compiled(program, inputs), run(program, inputs))


HAZARDS = {
    "swap": lambda b, x, y, z: (y, x, z),
    "rotate": lambda b, x, y, z: (y, z, x),
    "rotate and change": lambda b, x, y, z: (y, z, elementwise(b, "neg", x)),
    "duplicate": lambda b, x, y, z: (y, y, z),
    "duplicate and change": lambda b, x, y, z: (y, elementwise(b, "add", y, z), y),
    "self update": lambda b, x, y, z: (elementwise(b, "mul", x, y), y, z),
    "shift register": lambda b, x, y, z: (elementwise(b, "sub", y, z), x, y),
    "reversed": lambda b, x, y, z: (b.emit("reverse", (x,), "float32", (6,), dimensions=(0,)), z, y),
    "pass through": lambda b, x, y, z: (x, y, elementwise(b, "add", z, x)),
    "all from one": lambda b, x, y, z: (elementwise(b, "add", x, x), x, x),
}


@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize("donated", [(), (0, 1, 2)])
def test_carried_hazards(name, donated):
    def body(b, x, y, z):
        return counted(b, 5, (x, y, z), lambda _, *carried: HAZARDS[name](b, *carried))

    program = build(["float32[6]"] * 3, body, donated)
    inputs = arguments(program, 2)
    agree(run_compiled(program, inputs), run(program, inputs))


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards_of_scalars_and_branches(name):
    def body(b, flag, x, y, z):
        def step(_, *carried):
            return branch(b, flag, lambda: carried, lambda: HAZARDS[name](b, *carried))

        return counted(b, 4, (x, y, z), step)

    if name != "reversed":
        program = build(["int32[]"] + ["float32[]"] * 3, body)
        for flag in (0, 1):
            inputs = [np.int32(flag), *arguments(program, 3)[1:]]
            agree(run_compiled(program, inputs), run(program, inputs))
    program = build(["int32[]"] + ["float32[6]"] * 3, body, (1, 2, 3))
    for flag in (0, 1, 7, -3):
        inputs = [np.int32(flag), *arguments(program, 3)[1:]]
        agree(run_compiled(program, inputs), run(program, inputs))
