"""What profilers and debuggers show of our calls."""

from __future__ import annotations

import gzip
import inspect
import json
import re
from contextlib import chdir
from pathlib import Path

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest
from jax import lax
from jax._src.interpreters import mlir

import jax_cocktail

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

FORCED = {"force": "cocktail", "strict": True}


@jax.jit
def inner(x):
    return lax.fori_loop(0, 3, lambda i, a: (a + x / a) * 0.5, x)


def outer(x):
    with jax.named_scope("newton"):
        return jnp.sort(inner(x))


def instruction_of(compiled):
    """The custom call in the text of a compiled program, without its attributes."""
    lines = (line for line in compiled.as_text().splitlines() if '"jax_cocktail_cpu"' in line)
    (text,) = (re.sub(r"backend_config=.*", "", line) for line in lines)
    return text


def test_the_names_of_a_call():
    x = jnp.ones(4)
    text = instruction_of(jax_cocktail.jit(outer, options=FORCED).lower(x).compile())
    lines, start = inspect.getsourcelines(inner)
    line = start + next(n for n, each in enumerate(lines) if "fori_loop" in each)
    assert f"%outer_scan_at_test_profiling_py_{line}" in text
    scopes = re.search(r'op_name="([^"]*)"', text)[1]
    assert scopes.endswith(f"/newton/jit(inner)/outer scan at test_profiling.py:{line}")
    stock = jax.jit(outer).lower(x).compile().as_text()
    assert "/newton/jit(inner)/while" in stock and scopes.startswith("jit(outer)/")


def test_a_profile(tmp_path):
    ours = jax_cocktail.jit(outer, options=FORCED)
    jax.block_until_ready(ours(jnp.ones(4)))
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(ours(jnp.ones(4)))
    (found,) = tmp_path.rglob("*.trace.json.gz")
    names = {
        event.get("name", "") for event in json.loads(gzip.decompress(found.read_bytes()))["traceEvents"]
    }
    assert any(name.startswith("outer_scan_at_test_profiling_py_") for name in names)


def test_the_page_about_it(tmp_path, capfd):
    """Its programs print what they say, and its lines of HLO are those of the first one."""
    page = (Path(__file__).parents[2] / "docs" / "profiling.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    with chdir(tmp_path), jax_cocktail.options(**FORCED):
        for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(program, "root.py", "exec"), names)
        capfd.readouterr()
        assert any(tmp_path.rglob("*.trace.json.gz"))
        names["root"](9.0)
        jax.effects_barrier()
        text = instruction_of(names["root"].lower(9.0).compile())
    assert capfd.readouterr().out.startswith("estimate 5.0\nestimate 3.4")
    (shown,) = re.findall(r"%(root_\w+)\.0 = [^`]*?metadata=\{op_name=\"(.*?)\"", page)
    assert f"%{shown[0]}" in text and f'op_name="{shown[1]}"' in text


def test_several_loops_and_branches_are_counted():
    def program(x):
        y = lax.fori_loop(0, 3, lambda i, a: a * 2, x)
        return lax.cond(y[0] > 2, jnp.sin, jnp.cos, lax.fori_loop(0, 3, lambda i, a: a + y, x))

    text = instruction_of(jax_cocktail.jit(program, options=FORCED).lower(jnp.ones(4)).compile())
    assert " and 2 more" in text


def test_a_subgraph_without_loops():
    def program(x):
        return jax.nn.softmax(x * 2 + 1) @ x.T

    options = {**FORCED, "scope": "memory_bound"}
    text = instruction_of(jax_cocktail.jit(program, options=options).lower(jnp.ones((64, 128))).compile())
    assert "program subgraph at test_profiling.py:" in text


def test_scopes_around_transformed_calls():
    """Scopes inside of a loop are gone with its operators; those around it stay."""

    def program(x):
        with jax.named_scope("loss"):
            return jnp.sum(outer(x) ** 2)

    text = jax_cocktail.jit(jax.grad(program), options=FORCED).lower(jnp.ones(4)).compile().as_text()
    assert re.search(r'op_name="[^"]*loss[^"]*newton[^"]*program scan at test_profiling.py', text)


def test_a_version_of_jax_that_refuses_the_label(monkeypatch):
    """Then the call has the name that JAX gives it."""
    known = mlir.source_info_to_location

    def strict(context, primitive, *place):
        if not isinstance(primitive, jex.Primitive | None):
            raise TypeError
        return known(context, primitive, *place)

    monkeypatch.setattr(mlir, "source_info_to_location", strict)
    text = instruction_of(jax_cocktail.jit(outer, options=FORCED).lower(jnp.ones(4)).compile())
    assert "/newton/jit(inner)/jax_cocktail_call" in text
