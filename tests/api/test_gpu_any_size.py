"""One program for a GPU serves any size of a batch where no tile of a product is chosen for it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks.gpu.elements import ROWS
from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.cards import spec_for
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.lowering.state import collecting
from jax_cocktail.memory import MEMORY
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.numbers import numbers
from tests.api.sized_programs import PROGRAMS, array, lstm
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.cuda_text import NO_NVCC, NVCC
from tests.cpu.emulated import KERNELS, WAVES, Emulation
from tests.cpu.rocm_compilers import hipcc, zig

MACHINE = machine_of(H200)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.general.clear()


def relaxed(x):
    """A ring of values, each with a loop of its own: too large for a thread."""

    def step(state):
        x, error = state
        new = (jnp.roll(x, 1) + x + jnp.roll(x, -1)) / 3
        return new, jnp.abs(new - x).max()

    return lax.while_loop(lambda state: state[1] > 0.05, step, (x, jnp.float32(1)))[0]


def walked(x):
    """Random steps, whose counters follow from the number of elements."""

    def step(i, x):
        return x + jax.random.normal(jax.random.fold_in(jax.random.key(3), i), x.shape)

    return lax.fori_loop(0, 3, step, x)


def two_axes(x):
    """Both axes of the batch are on threads."""

    def one(x):
        return lax.while_loop(lambda s: s < 3, lambda s: s * 1.5 + 0.1, jnp.abs(x))

    return jax.vmap(jax.vmap(one))(x)


CASES = {
    "collatz": (*PROGRAMS["collatz"], 3),
    "branch": (*PROGRAMS["branch"], 2),
    "lstm": (*PROGRAMS["lstm"], 1),
    "relaxed": (jax.vmap(relaxed), lambda n: (array(n, 40),), 2),
    "walked": (walked, lambda n: (array(n),), 3),
    "two axes": (two_axes, lambda n: (array(n, 9),), 3),
    "both vary": (two_axes, lambda n: (array(n, n + 40),), 3),
}
SIZES = (70, 90, 66, 110, 130)  # the second shows what varies


def agree(emulation, function, given, units):
    options = {"force": "cocktail", "strict": True, "units": units}
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function)(*given)
        for emulation.kernel in KERNELS:
            ours = jax_cocktail.jit(lambda *x: function(*x), options=options)(*given)
            for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
    return emulation.launches[-1][0]


@pytest.mark.parametrize("name", CASES)
def test_one_text_for_many_sizes(name, monkeypatch):
    function, make, units = CASES[name]
    emulation = Emulation(launches=[]).install(monkeypatch)
    found = [agree(emulation, function, make(size), units) for size in SIZES]
    assert [bool(each.given) for each in found] == [False] + [True] * (len(SIZES) - 1)
    tiles = 2 if name == "lstm" else 1  # of a product, for a few rows and for many
    assert len({each.source for each in found[1:]}) == tiles
    assert len({each.sizes for each in found[1:]}) == len(SIZES) - 1


@pytest.mark.parametrize(("name", "sanitizer"), [("lstm", "address"), ("collatz", "thread")])
def test_sanitized(name, sanitizer, monkeypatch):
    """Own memory whose size is a launch parameter has a border behind it."""
    function, make, units = CASES[name]
    emulation = Emulation(launches=[], sanitizer=sanitizer).install(monkeypatch)
    found = [agree(emulation, function, make(size), units) for size in (40, 50, 33)]
    assert all(each.given for each in found[1:])


@pytest.mark.parametrize("lanes", WAVES)
def test_of_waves(lanes, monkeypatch):
    function, make, units = CASES["collatz"]
    emulation = Emulation(launches=[], spec=WAVES[lanes], threads=2 * lanes).install(monkeypatch)
    found = [agree(emulation, function, make(size), units) for size in SIZES[:3]]
    assert [bool(each.given) for each in found] == [False, True, True]
    assert found[1].source == found[2].source


def general(function, arguments, others, machine=MACHINE, **how):
    """A program that is emitted for any of the sizes in which two calls differ."""
    (program,) = prepare(jax.make_jaxpr(function)(*arguments), "f", machine).programs
    (other,) = prepare(jax.make_jaxpr(function)(*others), "f", machine).programs
    both = zip(numbers(program), numbers(other), strict=True)
    varying = frozenset(position for position, (a, b) in enumerate(both) if a != b)
    return compiler.emit(program, machine, candidate=way(**how), varying=varying)


def shaped(arguments, size):
    """The same arguments for another number of elements."""
    leaves, tree = jax.tree.flatten(arguments)
    count = leaves[0].shape[0]
    shapes = [(size, *x.shape[1:]) if x.shape[:1] == (count,) else x.shape for x in leaves]
    return tree.unflatten(map(jax.ShapeDtypeStruct, shapes, [x.dtype for x in leaves]))


@pytest.mark.all_candidates
@pytest.mark.parametrize(
    "row", ["lorenz/100000", "price_paths/100000", "pendulums/100000", "rings_256/4096", "rings_64/4096"]
)
def test_ensembles_for_a_card(row):
    """The plan that the model takes has one text for all ensembles of about a size."""
    function, arguments = ROWS[row]()
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, MACHINE)
    candidate = survey(prepared, H200.units).best.candidate
    count = jax.tree.leaves(arguments)[0].shape[0]
    how = {"units": candidate.units, "threads": candidate.threads}
    found = [
        general(function, shaped(arguments, size), shaped(arguments, size + 7), **how)
        for size in (count, count + 1111, count - 17)
    ]
    assert all(each.given for each in found)
    assert len({each.source for each in found}) == 1


MORE_REGISTERS = 8  # than the program for one size takes: nvcc counts them by eights


@pytest.mark.parametrize(
    ("arch", "compiler_of"),
    [("sm_80", nvcc), ("sm_90", nvcc), ("sm_100", nvcc), ("gfx90a", hipcc), ("gfx942", zig)],
)
@pytest.mark.parametrize("name", ["collatz", "relaxed", "lstm"])
def test_registers(name, arch, compiler_of):
    """Nothing spills. Sizes are operands in NVIDIA's bank of constants, and take few registers. A product of
    any rows has other tiles."""
    toolchain, spec = compiler_of(), spec_for(arch)
    function, make, units = CASES[name]
    how = {"units": 1 if units == 1 else spec.units, "distribute": True}
    found = {}
    for others in (140, 141):  # the same size: nothing varies
        emitted = general(function, make(140), make(others), machine_of(spec), **how)
        assert bool(emitted.given) == (others == 141)
        kernels = build_device_program(emitted.source, toolchain, spec).kernels.values()
        assert not any(each.spill_bytes for each in kernels)
        found[others] = max(each.registers for each in kernels)
    if name != "lstm" and compiler_of is nvcc:
        assert found[141] <= found[140] + MORE_REGISTERS, found


def collatz_of(count, machine=MACHINE):
    given = [jax.ShapeDtypeStruct((n,), np.int32) for n in (count, count + 5)]
    return general(PROGRAMS["collatz"][0], given[:1], given[1:], machine, units=132, distribute=True)


def test_the_grid_follows_the_call():
    """As many blocks as find work, though one text serves few and many."""
    grids = {}
    for count in (300, 1300):
        each = collatz_of(count)
        facts = each.program, each.plan, each.machine, each.sizes
        grids[count] = launch_plan(*facts, each.given).most_units, each.source
        assert "#define CK_MOST_UNITS 132" in each.source
    assert grids[300][0] == 10 and grids[1300][0] == 41  # of 32 elements each
    assert grids[300][1] == grids[1300][1]


def test_what_32_bits_do_not_count_has_a_text_of_its_own():
    assert collatz_of(500_000_000).given
    assert not collatz_of(540_000_000).given  # bytes


@pytest.mark.parametrize("kilobytes", [96, 128])
def test_shared_memory_must_suffice(kilobytes):
    """The numbers that stand for others have room, and those of the call do not."""
    machine, make = machine_of(replace(H200, shared_bytes=kilobytes << 10)), PROGRAMS["lstm"][1]
    found = {size: general(lstm, make(size), make(size + 1), machine) for size in (140, 180)}
    assert [bool(each.given) for each in found.values()] == [True, kilobytes > 96]


def test_tiles_of_products_are_constants():
    """Blocks that divide a product among them have tiles for its number of rows."""
    weights = array(256, 1024)

    def recurrent(h):
        return lax.fori_loop(0, 4, lambda _, h: jnp.tanh(h @ weights)[:, :256], h)

    assert not general(recurrent, [array(200, 256)], [array(300, 256)], units=132, distribute=True).given


@pytest.mark.all_candidates
def test_the_device_compiler_runs_twice(monkeypatch):
    """For the first size, and for all others."""
    if not NVCC:
        pytest.skip(NO_NVCC)
    monkeypatch.setattr(MEMORY.counts, "compiled", 0)
    function = PROGRAMS["collatz"][0]
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
    told = []
    for count in (5000, 7000, 9000, 3000):
        with collecting() as reports:
            ours.trace(jnp.arange(1, count + 1)).lower(lowering_platforms=("cuda",))
        told.append([length for length, _ in reports[0].captured[0].lengths])
    assert jax_cocktail.cache_info().compiled == 2
    assert all(count in each for count, each in zip((7000, 9000, 3000), told[1:], strict=True))
