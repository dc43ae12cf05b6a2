"""Runs the notebooks, and stores them with their pictures as .ipynb beside the .py files they are written in.

    python notebooks/render.py                       all of them, at full size
    python notebooks/render.py start_here branches   only these
    python notebooks/render.py --text start_here     nothing runs: new text around the outputs of equal code

A .py file is the source of its notebook (jupytext's "percent" format). Stored outputs have no paths, times of
execution, or warnings; `tests/api/test_notebook.py` holds them to that.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
from jupytext.combine import combine_inputs_with_outputs

HERE = Path(__file__).resolve().parent
SOURCES = tuple(
    sorted(path for path in HERE.glob("*.py") if path.read_text().startswith("# ---\n# jupyter:"))
)
KEPT = {"name", "display_name", "language"}  # of the metadata of a kernel
# where a cell lies, as a path and as a part of a name
CELL = re.compile(r"(?:(?:/[^/\s:'\"]+)*/ipykernel_\d+/|\b)\d{5,}\.py|(?<=_)\d{5,}_py(?=_)")


def cleaned(notebook: Any, replaced: dict[str, str]) -> Any:
    """Without what differs from machine to machine. `replaced`: what stands for texts of outputs."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [*map(clean, value)]
        if isinstance(value, dict):
            return {key: each if key.startswith("image/png") else clean(each) for key, each in value.items()}
        if not isinstance(value, str):
            return value
        for old, new in replaced.items():
            value = value.replace(old, new)
        return CELL.sub("cell", value)

    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [nbformat.from_dict(clean(output)) for output in cell.outputs]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
                if "metadata" in output:
                    output.metadata = {}
    kernel = {key: value for key, value in notebook.metadata.kernelspec.items() if key in KEPT}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def render(source: Path, text_only: bool) -> None:
    notebook, stored = jupytext.read(source), source.with_suffix(".ipynb")
    if text_only:
        notebook = combine_inputs_with_outputs(notebook, nbformat.read(stored, as_version=4))
        replaced: dict[str, str] = {}
    else:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["JAX_COCKTAIL_CACHE_DIR"] = cache
            client = nbclient.NotebookClient(
                notebook, timeout=600, kernel_name="python3", record_timing=False
            )
            client.execute(cwd=str(HERE))
        replaced = {cache: "~/.cache/jax_cocktail", str(HERE.parent): "jax_cocktail", str(Path.home()): "~"}
    nbformat.write(cleaned(notebook, replaced), stored)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if there is none")
    parser.add_argument("--text", action="store_true", help="run nothing")
    options = parser.parse_args()
    for source in SOURCES:
        if not options.names or source.stem in options.names:
            render(source, options.text)
            print(source.stem, flush=True)


if __name__ == "__main__":
    main()
