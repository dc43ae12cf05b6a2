"""Our calls in executables that XLA compiles for an H200: what they hold, and what is captured in graphs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.gpu.peer import target_text
from benchmarks.gpu.peers import COMMAND_BUFFERS
from benchmarks.gpu.rows import ROWS
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.edge import gpu_call
from tests.h200.card import OURS, OURS_WITHOUT_GRAPH, card, compiled, ours

X = jnp.zeros((64, 64), jnp.float32)
VERSIONS = ("runtime_version", "driver_version", "compile_time_toolkit_version")


def loop(x):
    return lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ x), x)


def endless(x):
    """A loop whose trips nobody knows."""
    return lax.while_loop(lambda y: jnp.sum(y) < 9.0, lambda y: jnp.tanh(y @ x) @ x, x)


# ---- the card ----------------------------------------------------------------------------------------------


def test_the_card_is_the_one_described(tmp_path):
    """Fields that XLA does not understand, or lacks, would leave it with defaults."""
    assert card().platform == "gpu" and card().device_kind == H200.name
    config = compiled(jax.jit(jnp.sin), (X,), tmp_path).dumped["gpu_target_config.pbtxt"]
    for name, value in (
        ("core_count", H200.units),
        ("shared_memory_per_block_optin", H200.shared_bytes),
        ("shared_memory_per_core", H200.shared_per_unit),
        ("l2_cache_size", H200.l2_bytes),
        ("device_memory_size", H200.memory_bytes),
        ("registers_per_core_limit", H200.registers),
        ("memory_bandwidth", int(H200.memory_rate)),
    ):
        assert re.findall(rf"\b{name}: (\d+)", config) == [str(value)]
    for name in VERSIONS:
        assert re.search(rf'\b{name}: "13\.', config)
    assert re.search(r"cuda_compute_capability \{\s*major: 9\b", config)


def test_without_versions_loops_are_not_captured(tmp_path):
    """Which is why the description has to have them before jax 0.12, whose XLA takes them to be new."""
    bare = "\n".join(line for line in target_text(H200).splitlines() if not any(v in line for v in VERSIONS))
    assert bare.count("\n") == target_text(H200).count("\n") - 1 - len(VERSIONS)
    for text, captured in (("", True), (bare, False)):
        found = compiled(jax.jit(endless), (X,), tmp_path / str(captured), text, COMMAND_BUFFERS)
        assert ("kWhile" in found.captured) is (captured or jax.__version_info__ >= (0, 12))
        assert len(found.all("kWhile")) == 1


# ---- our calls ---------------------------------------------------------------------------------------------


def call_of(found, target=OURS):
    """The results of the only custom call, and the launch plan in it."""
    assert found.targets == [target]
    (line,) = (line for line in found.text.splitlines() if f'custom_call_target="{target}"' in line)
    results = re.search(r" = (\(.*?\)|\S+) custom-call\(", line)[1]
    launch = [int(n) for n in re.search(r"\blaunch = dense<\[([-\d, ]+)\]>", line)[1].split(",")]
    return re.findall(r"\b(\w+\[[\d,]*\])", results), launch


def test_unknown_targets_are_refused(tmp_path):
    """So what compiles is registered."""

    def function(x):
        return jax.ffi.ffi_call("jax_cocktail_of_nobody", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(Exception, match="No FFI handler registered for jax_cocktail_of_nobody"):
        compiled(jax.jit(function), (X,), tmp_path)


def test_call(tmp_path):
    """One call for the whole loop; the workspace is its last result; nothing of the loop is left to XLA."""
    found = compiled(ours(loop), (X,), tmp_path)
    results, launch = call_of(found)
    assert gpu_call._handlers
    assert results == ["f32[64,64]", f"u8[{launch[7 - 1]}]"] and launch[6] > launch[1] >= 0
    kinds = [step.kind for step in found.steps]
    assert kinds.count("kCustomCall") == 1 and set(kinds) <= {"kCustomCall", "kCopy"}


def test_a_lone_call_is_not_captured_by_default(tmp_path):
    found = compiled(ours(loop), (X,), tmp_path)
    assert found.all("kCommandBuffer") == [] and len(found.all("kCustomCall")) == 1


def test_captured(tmp_path):
    found = compiled(ours(loop), (X,), tmp_path, options=COMMAND_BUFFERS)
    assert found.targets == [OURS]
    assert [step.kind for step in found.steps] == ["kCommandBuffer"] and "kCustomCall" in found.captured


def test_captured_in_a_branch(tmp_path):
    inside = ours(loop)
    function = jax.jit(lambda taken, x: lax.cond(taken, inside, lambda x: 2 * x, x))
    found = compiled(function, (jnp.bool_(True), X), tmp_path, options=COMMAND_BUFFERS)
    assert found.targets == [OURS]
    (branch,) = found.all("kConditional")
    assert "kConditional" in found.captured
    assert "kCustomCall" in [each.kind for each in branch.walk()]


def test_captured_in_a_loop_of_stock(tmp_path):
    inside = ours(loop)
    function = jax.jit(lambda x: lax.while_loop(lambda y: jnp.sum(y) < 9.0, inside, x))
    found = compiled(function, (X,), tmp_path, options=COMMAND_BUFFERS)
    (stock,) = found.all("kWhile")
    assert "kWhile" in found.captured and "kCustomCall" in [each.kind for each in stock.walk()]


@pytest.mark.parametrize("options", [None, COMMAND_BUFFERS], ids=["default", "graphs"])
def test_calls_that_are_waited_for_are_not_captured(options, tmp_path):
    found = compiled(ours(loop, errors="sync"), (X,), tmp_path, options=options)
    call_of(found, OURS_WITHOUT_GRAPH)
    assert "kCustomCall" not in found.captured and len(found.all("kCustomCall")) == 1


@pytest.mark.parametrize("row", ["nasrnn/1", "attention/1", "seq2seq/1", "rae/1"])
def test_models(row, tmp_path):
    """At full size: one call, captured, with the workspace of the plan, and nothing of its loop left."""
    function, arguments = ROWS[row].make(False)
    found = compiled(ours(function), arguments, tmp_path, options=COMMAND_BUFFERS)
    results, launch = call_of(found)
    assert results[-1] == f"u8[{launch[6]}]" and launch[2] <= H200.units
    assert [step.kind for step in found.steps] == ["kCommandBuffer"]
    assert set(found.captured) <= {"kCustomCall", "kCopy", "kCustomKernel"}
