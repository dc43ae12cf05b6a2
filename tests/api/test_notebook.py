"""The notebooks run from top to bottom without a display, at small sizes; what is stored is what they say."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import socket
from pathlib import Path

import pytest

from tests.process import python

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = ["branches", "bring_your_own_loop", "reading_results", "recursion", "start_here", "stitching"]
EACH = pytest.mark.parametrize("name", NAMES)
LIBRARIES = "diffrax", "flax", "blackjax"
SMALL = "SMALL = True\nSECONDS = 0.02"
LARGEST_PICTURE, LARGEST_NOTEBOOK = 60_000, 250_000  # bytes

jupytext = pytest.importorskip("jupytext", reason="the notebooks extra is not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebooks extra is not installed")
nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook):
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def pictures(notebook):
    data = [output.data for output in outputs(notebook) if "data" in output]
    return [base64.b64decode(each["image/png"]) for each in data if "image/png" in each]


def run(name, tmp_path, monkeypatch):
    """At small sizes. Nothing is timed to choose a program, and XLA does not optimise: times say nothing."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JAX_COCKTAIL_PROFILE", "off")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    notebook = jupytext.read(FOLDER / f"{name}.py")
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = SMALL
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(FOLDER))
    assert pictures(notebook)
    return notebook


def test_start_here(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_FORCE", "cocktail")  # stock XLA may be better at small sizes
    text = printed(run("start_here", tmp_path, monkeypatch))
    assert 'custom_call_target="jax_cocktail_cpu"' in text and "one call: 1 kernel" in text


@pytest.mark.long
@pytest.mark.one_jax
@pytest.mark.parametrize("name", ["branches", "reading_results", "recursion", "stitching"])
def test_runs_headless(name, tmp_path, monkeypatch):
    run(name, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.one_jax
def test_sections_of_missing_libraries_are_skipped(tmp_path, monkeypatch):
    text = printed(run("bring_your_own_loop", tmp_path, monkeypatch))
    for library in LIBRARIES:
        assert (f"skipped: {library} " in text) == (importlib.util.find_spec(library) is None)
    assert "because: the operation 'io_callback' has side effects" in text


def test_every_notebook_is_tested_and_listed():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    listed = (FOLDER / "README.md").read_text()
    assert [name for name in NAMES if f"({name}.ipynb)" not in listed] == []


@EACH
def test_notebook_and_text_agree(name):
    def cells(notebook):
        return [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in notebook.cells]

    nbformat.validate(stored(name))
    written = jupytext.read(FOLDER / f"{name}.py")
    assert cells(stored(name)) == cells(written), "run notebooks/render.py"


@EACH
def test_stored_outputs_are_complete_and_small(name):
    notebook = stored(name)
    assert printed(notebook) and pictures(notebook)
    assert max(map(len, pictures(notebook))) < LARGEST_PICTURE
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST_NOTEBOOK


@EACH
def test_stored_outputs_are_of_no_machine(name):
    """No path, host, warning, or time of execution."""
    notebook = stored(name)
    assert {o.name for o in outputs(notebook) if o.output_type == "stream"} <= {"stdout"}
    assert [o for o in outputs(notebook) if o.output_type == "error"] == []
    assert [cell for cell in notebook.cells if cell.get("execution_count")] == []
    text = "\n".join(
        str({kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"})
        + output.get("text", "")
        for output in outputs(notebook)
    )
    assert re.findall(r"(?<![\w.}$*~])/(?:home|root|work|tmp|Users|usr|opt)/\S*", text) == []
    assert socket.gethostname() not in text
    assert "Warning" not in text
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags"}


def test_cells_are_named_as_ipython_does(tmp_path):
    """In reports and warnings. Without a history, cells share a number, and keep their files' names."""
    text = python(
        """
        import linecache, warnings
        from IPython.core.interactiveshell import InteractiveShell

        CELLS = (
            "import jax_cocktail, jax.numpy as jnp",
            "from jax import lax, pure_callback",
            "# the third cell\\n\\ndef f(x):\\n  return lax.fori_loop(0, 7, lambda i, h: jnp.sort(h) + i, x)",
            "g = jax_cocktail.jit(f, options={'force': 'cocktail'})",
            "report = jax_cocktail.explain(g)(jnp.ones(5))",
            "def cube(x): return lax.fori_loop(0, 3, lambda i, y: pure_callback(abs, x, y), x)",
        )
        shell = InteractiveShell.instance()

        def run(*cells, history=True):
            for cell in cells:
                shell.run_cell(cell, store_history=history).raise_error()

        run(*CELLS)
        found = shell.user_ns["report"]
        print(found.captured[0].control_flow, dict(found.code)["In[3]:4 (f)"])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run("result = jax_cocktail.jit(cube)(jnp.ones(2))")
        print(linecache.getline(said[0].filename, said[0].lineno).strip())
        each = "def {0}(x): return lax.fori_loop(0, 9, lambda i, y: jnp.sort(y) + len('{0}'), x)"
        run(each.format("a"), each.format("b"), history=False)
        run("pair = jax_cocktail.jit(lambda x: a(b(x)), options={'force': 'cocktail'})")
        run("code = dict(jax_cocktail.explain(pair)(jnp.ones(5)).code)")
        print(sorted(text[4] for text in set(shell.user_ns["code"].values()) if text[:3] == "def"))
        """,
        IPYTHONDIR=str(tmp_path),
    )
    assert text.splitlines() == [
        "('scan at In[3]:4 (f)',) return lax.fori_loop(0, 7, lambda i, h: jnp.sort(h) + i, x)",
        "def cube(x): return lax.fori_loop(0, 3, lambda i, y: pure_callback(abs, x, y), x)",
        "['a', 'b']",
    ]
