"""Reports on real programs: what they have of the program, how they are shown and kept, and what differs."""

from __future__ import annotations

import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.special import zeta

import jax_cocktail
from jax_cocktail.report.code import flat

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

ARGUMENTS = jnp.eye(128), jnp.ones((8, 128))


def rnn(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return lax.scan(step, jnp.zeros(128), xs)[1]


def special(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return zeta(h + 2, 2.0), h

    return lax.scan(step, jnp.zeros(128), xs)[1]


def explained(function, **options):
    jitted = jax_cocktail.jit(function, options={"force": "cocktail", "units": 1, **options})
    return jax_cocktail.explain(jitted)(*ARGUMENTS)


@pytest.fixture(scope="module")
def report():
    return explained(rnn)


def test_the_tree_is_the_program(report):
    (region,) = report.captured
    (loop,) = (node for node in flat(region.tree) if node.kind == "loop")
    stages = [node.what for node in loop.inner]
    assert loop.trips == 8 and "rnn" in loop.where and loop.seconds > 0 and loop.barriers == 0
    places = [where for node in loop.inner for where in (node.where, *node.others)]
    assert any(where.startswith(f"{__file__}:") and "step" in where for where in places)
    assert any("dot" in what for what in stages) and any("tanh" in what for what in stages)
    code = dict(report.code)
    line = rnn.__code__.co_firstlineno
    assert code[f"{__file__}:{line + 2} (rnn.<locals>.step)"] == "h = jnp.tanh(h @ w + x)"
    assert code[loop.where] == "return lax.scan(step, jnp.zeros(128), xs)[1]"
    assert {flow.made for flow in region.flows} <= {node.number for node in flat(region.tree)}
    assert report.made.jax == jax.__version__ and report.made.jax_cocktail == jax_cocktail.__version__
    assert report.made.device and report.made.cores > 0


def test_it_is_shown_and_kept(report, tmp_path):
    for suffix in ("html", "svg", "txt", "json"):
        report.save(tmp_path / f"rnn.{suffix}")
    assert jax_cocktail.Report.load(tmp_path / "rnn.json") == report
    assert (tmp_path / "rnn.txt").read_text() == f"{report}\n"
    svg = ElementTree.parse(tmp_path / "rnn.svg").getroot()
    texts = {element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"loop, 8 trips", "h = jnp.tanh(h @ w + x)", "matrix product"} <= texts
    assert "h = jnp.tanh(h @ w + x)" in (tmp_path / "rnn.html").read_text()


def test_what_made_it_another_program(report):
    """An operation that we do not have leaves the loop to stock XLA; two reports say so."""
    with pytest.warns(jax_cocktail.CocktailWarning):
        found = explained(special).difference(report)
    topics = [finding.topic for finding in found.findings]
    assert topics == ["a loop left to stock XLA", "the choice", "a custom call lost"]
    assert "'zeta'" in found.findings[0].text
    assert (
        str(found).splitlines()[1].startswith("  if the time has changed, most likely because of a loop left")
    )
    assert report.difference(explained(rnn)).findings == ()


def test_the_examples_of_the_documentation_run(report, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    section = text.partition("## The report as a value")[2].partition("\n## ")[0]
    names = {"jax_cocktail": jax_cocktail, "arguments": ARGUMENTS}
    names["rnn"] = jax_cocktail.jit(rnn, options={"force": "cocktail", "units": 1})
    with chdir(tmp_path), redirect_stdout(StringIO()) as out:
        for program in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            exec(compile(program, "explain.md", "exec"), names)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".json", ".svg", ".txt"]
    assert names["old"] == names["report"] and out.getvalue().endswith("nothing else differs\n")
