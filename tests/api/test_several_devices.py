"""Programs over 2 and 8 devices of the host agree with stock XLA's (see `several_devices`)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.api.several_devices import cases_of, wrong
from tests.process import python

MODULES = ("tests.api.several_devices", "tests.api.collective_loops")


@pytest.mark.parametrize("devices", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", cases_of(*MODULES))
def test_devices(name: str, devices: int) -> None:
    assert not wrong(devices, *MODULES)[name], wrong(devices, *MODULES)[name]


LATER = """
    import sys
    import jax, jax_cocktail
    from jax.sharding import Mesh, PartitionSpec as P
    from jax_cocktail.lowering.state import STATE
    from tests.api.collective_loops import trained
    from tests.api.several_devices import ROWS, divided, inputs, np, recurrent, same, weights

    mesh = Mesh(np.array(jax.devices()), ("d",))
    steps = jax.shard_map(trained, mesh=mesh, in_specs=(P(), ROWS), out_specs=P())
    for function in (divided(recurrent, mesh), steps):
        jitted = jax_cocktail.jit(function, options={"force": "cocktail", "compile": "background"})
        expected = jax.jit(function)(weights(), inputs(mesh))
        before = STATE.ours
        same(jitted(weights(), inputs(mesh)), expected)
        at_once = STATE.ours - before, jax_cocktail.cache_info().waiting
        assert jax_cocktail.wait()
        same(jitted(weights(), inputs(mesh)), expected)
        print(*at_once, jax_cocktail.cache_info().changed_over)
"""


def test_a_later_process_runs_ours_from_the_first_call_on(tmp_path: Path) -> None:
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_COCKTAIL_CACHE_DIR": str(tmp_path),
        "JAX_COCKTAIL_PLANS": "cached",
    }
    first, second = (python(LATER, **environment).splitlines() for _ in range(2))
    assert first == ["0 1 1", "0 1 2"]  # stock XLA runs the first call, and ours the next one
    assert second == ["1 0 0", "1 0 0"]


TRACED = """
    import jax, jax_cocktail
    from jax.sharding import Mesh
    from tests.api.several_devices import divided, inputs, np, ours, recurrent, same, weights

    mesh = Mesh(np.array(jax.devices()), ("d",))
    found = jax_cocktail.trace(ours(divided(recurrent, mesh)))(weights(), inputs(mesh))
    assert found.regions == () and "trace the function of one device" in found.notes[0], found
    same(found.results, jax.jit(divided(recurrent, mesh))(weights(), inputs(mesh)))
    shard = inputs(mesh)[:, :2]
    assert len(jax_cocktail.trace(ours(recurrent))(weights(), shard).regions) == 1
"""


def test_a_trace_says_what_to_trace_instead() -> None:
    python(TRACED, XLA_FLAGS="--xla_force_host_platform_device_count=2")


SAVED = """
    import pickle, sys
    import jax, jax.export, jax_cocktail
    from jax.experimental import serialize_executable
    from jax.sharding import Mesh
    from tests.api.several_devices import divided, inputs, np, ours, recurrent, weights

    mesh = Mesh(np.array(jax.devices()), ("d",))
    function, arguments = divided(recurrent, mesh), (weights(), np.asarray(inputs(mesh)))
    check = jax.export.DisabledSafetyCheck.custom_call("jax_cocktail_cpu")
    saved = [arguments]
    for wrap in (jax.jit, ours):
        exported = jax.export.export(wrap(function), disabled_checks=[check])(*arguments)
        saved.append(bytes(exported.serialize()))
        saved.append(serialize_executable.serialize(wrap(function).lower(*arguments).compile()))
    with open(f"{sys.argv[1]}/saved", "wb") as file:
        pickle.dump(saved, file)
    ours(function)(*arguments)
    jax_cocktail.save_bundle(f"{sys.argv[1]}/bundle")
"""
LOADED = """
    import pickle, sys
    import jax, jax.export, jax_cocktail
    from jax.experimental import serialize_executable
    from jax.sharding import Mesh
    from tests.api.several_devices import agrees, divided, inputs, np, raised, recurrent, weights

    jax_cocktail.load_bundle(f"{sys.argv[1]}/bundle")
    mesh = Mesh(np.array(jax.devices()), ("d",))
    agrees(divided(recurrent, mesh), weights(), inputs(mesh))
    with open(f"{sys.argv[1]}/saved", "rb") as file:
        arguments, *saved = pickle.load(file)
    errors = []
    for exported, executable in (saved[:2], saved[2:]):
        called = jax.export.deserialize(bytearray(exported)).call
        load = lambda *a: serialize_executable.deserialize_and_load(*executable)(*a)
        errors.append([raised(each, *arguments) for each in (called, load)])
    stock, mine = errors
    assert mine == stock, (mine, stock)
    assert "exported for 4 devices" in mine[0][1], mine
"""


def test_devices_that_are_missing_where_a_program_is_loaded(tmp_path: Path) -> None:
    """Exported and compiled programs for four devices raise JAX's own errors in a process with two."""
    for program, devices in ((SAVED, 4), (LOADED, 2)):
        python(
            f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n" + textwrap.dedent(program),
            XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
            JAX_COCKTAIL_CACHE_DIR=str(tmp_path / "cache"),
            JAX_COCKTAIL_PLANS="cached",
        )
