"""Functions in the text of CUDA programs, and how their loops are written."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.compiler import emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate, way
from tests.null.wavefronts import stacked_lstm


def text(function, *arguments, units=1, threads=128, outline_limit=0):
    """Source of the only program of a function; by default with a function for every lane loop."""
    (program,) = prepare(jax.make_jaxpr(function)(*arguments), "function").programs
    machine = Machine(replace(cuda(threads), outline_limit=outline_limit), H200)
    return emit(program, machine, candidate=Candidate(units)).source


def layers(x, *matrices):
    return lax.fori_loop(0, 5, lambda i, x: functools.reduce(lambda x, w: jnp.tanh(x @ w), matrices, x), x)


LAYERS = jnp.ones((1, 2048)), *[jnp.ones((2048, 2048))] * 3


def functions(source, kind):
    """Name -> parameters and body."""
    found = re.findall(rf"CK_NOINLINE \w+ ({kind}\d+)(\(.*?\n\}})\n", source, re.DOTALL)
    assert len(dict(found)) == len(found)
    return dict(found)


def test_equal_functions_are_one():
    source = text(layers, *LAYERS, units=128)
    parts, outlined = functions(source, "part"), functions(source, "outlined")
    assert parts and outlined and len({*parts.values(), *outlined.values()}) == len(parts) + len(outlined)
    assert len(re.findall(r"\bpart\d+<RESIDENT>\(", source)) > len(parts)


def test_layers_on_their_own_units_share_a_part():
    """Only the units of a layer call it, and no function of it calls another in every step."""
    machine = Machine(replace(cuda(128), outline_limit=0), H200)
    program = stacked_lstm(5, 8, 8, 256)
    source = emit(program, machine, candidate=way(10, pipeline=True)).source
    guarded = r"if \(ck_first_part\(unit, (\d+)\) < \d+\) \{\s+(part\d+)<RESIDENT>\((.*)\);"
    calls = re.findall(guarded, source[source.index("ck_body") :])
    steps = {name: body for name, body in functions(source, "part").items() if "ck_tanh" in body}
    layers = [(first, name) for first, name, _ in calls if name in steps]
    assert len(layers) > len(steps) and len({first for first, _ in layers}) > len(steps)
    assert all(f", {first}, " in given for first, name, given in calls if name in steps)
    assert steps and not any("outlined" in body for body in steps.values())


def test_functions_say_where_their_pointers_point_to():
    source = text(layers, *LAYERS, units=128)
    found = {**functions(source, "part"), **functions(source, "outlined")}
    for body in found.values():
        head = body.split("{", 1)[0]
        pointers = re.findall(r"\* (x\d+)\b", head)
        assert all(re.search(rf"ck_(far|near<RESIDENT>)\({name}\);", body) for name in pointers)
    assert any("ck_near<RESIDENT>" in body for body in found.values())


def test_barriers_of_long_programs_are_functions():
    assert "ck_wait_apart(unit);" in text(layers, *LAYERS, units=128)
    short = text(layers, *LAYERS, units=128, outline_limit=100)
    assert "ck_wait_apart" not in short and ("ck_wait(unit);" in short or "ck_receive_parts" in short)


def test_a_function_returns_a_scalar():
    """A sum that all threads make together; what a loop both reads and makes stays."""
    found = text(lambda x, w: lax.fori_loop(0, 5, lambda i, x: x * jnp.dot(x, w), x), *jnp.ones((2, 300)))
    assert re.search(r"v\d+ = outlined\d+<RESIDENT>\(", found)
    (body,) = (body for body in functions(found, "outlined").values() if "return x" in body)
    assert "ck_group_reduce<" in body


def test_one_element_is_no_row():
    found = text(lambda x: lax.fori_loop(0, 5, lambda i, c: c + jnp.sum(jnp.sin(c[None])), x), jnp.float32(1))
    assert "ck_group_reduce" not in found and "ck_sin" in found


@pytest.mark.parametrize(("size", "together"), [(64, 1), (256, 2), (1000, 4), (1 << 14, BLOCK.most_together)])
def test_batches(size, together):
    """As many positions at a time as each thread has, up to a limit."""
    found = text(lambda x: lax.fori_loop(0, 5, lambda i, x: x * 2 + 1, x), jnp.ones(size), outline_limit=100)
    sizes = re.findall(r"f32 h\d+\[(\d+)\];", found)
    assert sizes == ([str(together)] if together > 1 else [])
    assert (f"at < {size}; at += 128" in found) == (together > 1 and size % (128 * together) != 0)


def test_long_bodies_have_shorter_batches():
    def body(i, x):
        for k in range(12):
            x = x * (k + 2) + 1
        return x

    found = text(lambda x: lax.fori_loop(0, 5, body, x), jnp.ones(1 << 14))
    assert re.findall(r"f32 h\d+\[(\d+)\];", found) == ["2"]


def test_rows_are_not_written_out():
    found = text(lambda x: lax.fori_loop(0, 5, lambda i, x: x * jnp.sum(x), x), jnp.ones(1 << 14))
    assert f"#pragma unroll {BLOCK.most_together}" in found
