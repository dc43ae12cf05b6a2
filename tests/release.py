"""Builds the distributions, and checks what a user gets who installs one into an empty environment.

    python -m tests.release build FOLDER     sdist and wheel, and a virtual environment with the wheel alone
    python -m tests.release check FOLDER     runs programs in that environment, outside of the checkout

The first command needs a package index, and `venv` with pip.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import importlib.metadata
import pathlib
import sys

import jax
import jax.numpy as jnp
import jax_cocktail
from jax import lax
from jax_cocktail.lowering.state import collecting

package = pathlib.Path(jax_cocktail.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert (package / "py.typed").is_file()
assert importlib.metadata.version("jax_cocktail") == jax_cocktail.__version__


def running(xs):
    return lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), jnp.zeros(3), xs)


xs = jnp.linspace(-1.0, 1.0, 30).reshape(10, 3)
with collecting() as reports:
    ours = jax_cocktail.jit(running, options={"force": "cocktail", "strict": True})(xs)
assert sum(len(report.captured) for report in reports) == 1, reports
for one, other in zip(ours, jax.jit(running)(xs), strict=True):
    assert jnp.allclose(one, other, rtol=1e-5, atol=1e-6)
print("jax_cocktail", jax_cocktail.__version__, "with jax", jax.__version__, "equals stock XLA")
"""


def python(folder: Path, name: str) -> str:
    """The interpreter of a virtual environment in the folder."""
    return str(folder / name / "bin" / "python")


def build(folder: Path) -> None:
    """Builds sdist and wheel, the wheel from the sdist as well, and installs it into an empty environment."""
    for name in ("tools", "empty"):
        venv.create(folder / name, with_pip=True, clear=True)
    pip = ("-m", "pip", "--disable-pip-version-check", "-q", "install")
    run(python(folder, "tools"), *pip, "hatchling>=1.25")
    hatch = (python(folder, "tools"), "-m", "hatchling", "build", "-d", str(folder))
    run(*hatch, "-t", "sdist", "-t", "wheel", cwd=ROOT)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(*hatch[:-1], str(folder / "again"), "-t", "wheel", cwd=unpacked)
    assert filecmp.cmp(wheel, folder / "again" / wheel.name, shallow=False), "the sdist builds another wheel"
    run(python(folder, "empty"), *pip, str(wheel))


def check(folder: Path) -> None:
    """Runs a program and the demo as a user does who has nothing but the wheel."""
    with tempfile.TemporaryDirectory() as place:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        settings = {**kept, "JAX_PLATFORMS": "cpu", "JAX_COCKTAIL_CACHE_DIR": f"{place}/cache"}
        empty = python(folder, "empty")
        run(empty, "-m", "pip", "check", cwd=place, env=settings)
        run(empty, "-c", PROGRAM, cwd=place, env=settings)
        run(empty, "-m", "jax_cocktail", "demo", "--small", cwd=place, env=settings)


def run(*command: str, cwd: Path | str | None = None, env: dict[str, str] | None = None) -> None:
    """Runs a command, which has to succeed."""
    subprocess.run(command, cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    {"build": build, "check": check}[sys.argv[1]](Path(sys.argv[2]).resolve())
