"""Whatever happens to the cache folder, programs run, and what is not as it was written counts as absent.

Entries, plan records and decisions are damaged together, as an accident or an attacker would. The tables of
faults of the compiler and the environment are in test_faults.py, and those of bundles in test_bundle.py.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import cache
from jax_cocktail.build import stuck
from jax_cocktail.lowering.choice.plan_cache import Lookups
from jax_cocktail.memory import MEMORY
from tests.process import ROOT, python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

OPTIONS = {"plans": "cached", "units": 1}
X = jnp.linspace(0, 1, 24, dtype=jnp.float32).reshape(4, 6)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A cache folder with programs, plans and the decisions of two calls."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.warned.clear()
    new_process(monkeypatch)
    for scale in (1.5, 2.5):
        called(scale)
    for scale in (1.5, 2.5):
        called(scale, force="cocktail")
    new_process(monkeypatch)
    return tmp_path / "cache"


def new_process(monkeypatch):
    """Forgets what only a process knows."""
    MEMORY.plans.clear()
    MEMORY.lookups.clear()
    monkeypatch.setattr(MEMORY.counts, "compiled", 0)
    MEMORY.decisions.clear()


def called(scale, **options):
    """Calls ours, and compares with stock."""

    def function(x):
        return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * scale - i, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jax_cocktail.CocktailWarning)
        found = jax_cocktail.jit(function, options={**OPTIONS, **options})(X)
    np.testing.assert_allclose(found, jax.jit(function)(X), atol=1e-5)


Break = Callable[[Path, pytest.MonkeyPatch], object]  # (cache folder, monkeypatch)


def everything(change: Callable[[Path], object], *patterns: str) -> Break:
    """Changes all files of these kinds; without any, all entries and records."""

    def break_it(root: Path, patch: pytest.MonkeyPatch) -> None:
        for pattern in patterns or ("entries/*/*", "plans/*.json", "decisions/*.json"):
            paths = sorted(root.glob(pattern))
            assert paths, pattern
            for path in paths:
                change(path)

    return break_it


def file_in_its_place(root, patch):
    shutil.rmtree(root)
    root.write_text("")


def halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tampered(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swapped(root, patch):
    """Files of one kind exchange their names."""
    for pattern in ("entries/*", "plans/program-*", "plans/survey-*", "decisions/*"):
        paths = sorted(root.glob(pattern))
        assert len(paths) > 1, pattern
        paths[0].rename(root / "aside")
        for path, target in zip(paths[1:], paths, strict=False):
            path.rename(target)
        (root / "aside").rename(paths[-1])


def other_format(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def refusing(number):
    """Nothing can be written any more."""

    def break_it(root: Path, patch: pytest.MonkeyPatch) -> None:
        def refuse(*rest, **options):
            raise OSError(number, os.strerror(number))

        for module, name in ((tempfile, "mkstemp"), (os, "utime"), (os, "mkdir"), (Path, "mkdir")):
            patch.setattr(module, name, refuse)

    return break_it


def foreign(root, patch):
    """Another user owns everything."""
    uid = os.getuid()
    patch.setattr(os, "getuid", lambda: uid + 54321)
    if uid == 0:  # root can be trusted anyway
        for path in (root, *root.rglob("*")):
            os.chown(path, 12345, 12345)


@dataclass(frozen=True)
class Fault:
    """What happens to the cache. `reads`: what it has can still be read; `writes`: so can what is written."""

    name: str
    breaks: Break
    reads: bool = False
    writes: bool = True


FAULTS = [
    Fault("missing", lambda root, patch: shutil.rmtree(root)),
    Fault("a file in its place", file_in_its_place, writes=False),
    Fault("read-only", refusing(errno.EROFS), reads=True, writes=False),
    Fault("full", refusing(errno.ENOSPC), reads=True, writes=False),
    Fault("foreign-owned", foreign, writes=False),
    Fault("world-writable", lambda root, patch: root.chmod(0o777), writes=False),
    Fault("world-writable files", everything(lambda path: path.chmod(0o666))),
    Fault("truncated", everything(halved)),
    Fault("empty", everything(lambda path: path.write_bytes(b""))),
    Fault("tampered", everything(tampered, "entries/*/program.so", "plans/*.json")),
    Fault("swapped", swapped),
    Fault("another format", everything(other_format, "plans/*.json", "decisions/*.json")),
    Fault("only the binaries are gone", everything(Path.unlink, "entries/*/program.so")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_programs_run(fault, root, monkeypatch):
    with monkeypatch.context() as patch:
        fault.breaks(root, patch)
        called(1.5)
        called(1.5, force="cocktail")
        programs = jax_cocktail.cache_info().programs
        assert (programs.stored > 0) == fault.reads
        assert (programs.made > 0) != fault.reads
    if fault.writes:
        new_process(monkeypatch)
        called(1.5, force="cocktail")
        assert jax_cocktail.cache_info().programs == Lookups(stored=1), "it was mended"


@pytest.mark.parametrize("step", [-3600.0, -10 * 365 * 86400.0])
def test_a_clock_that_goes_backwards(step, root, monkeypatch):
    """What was written in the future counts, and nothing is stuck for longer than it should be."""
    stuck.remember("command")
    assert stuck.remembered("command")
    now = time.time() + step
    monkeypatch.setattr(time, "time", lambda: now)
    assert not stuck.remembered("command")
    called(1.5)
    called(1.5, force="cocktail")
    called(2.2, force="cocktail")
    programs = jax_cocktail.cache_info().programs
    assert (programs.stored, programs.made) == (1, 1)
    with cache.build_folder(
        root
    ) as folder:  # one that is in use, which looks as if it was made in the future
        jax_cocktail.clear_cache()
        assert folder.is_dir()
    MEMORY.stuck.clear()


def test_the_limit_after_a_clock_went_backwards(root):
    """What was built now looks old beside what was used in the future, and it stays nevertheless."""
    for path in root.glob("entries/*/meta.json"):
        os.utime(path, (time.time() + 1e6,) * 2)
    called(2.2, force="cocktail", cache_limit_bytes=1)
    called(2.2, force="cocktail")
    assert jax_cocktail.cache_info().programs.here == 1
    assert len([*root.glob("entries/*")]) == 1


# ---- two versions of the package ---------------------------------------------------------------------------

PROGRAM = """
    import json
    import jax, jax.numpy as jnp
    from jax import lax
    import jax_cocktail

    def function(x):
        return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * 1.5 - i, x)

    x = jnp.linspace(0, 1, 24)
    found = jax_cocktail.jit(function, options={"force": "cocktail", "plans": "cached"})(x)
    assert jnp.allclose(found, jax.jit(function)(x))
    info = jax_cocktail.cache_info()
    print(json.dumps([jax_cocktail.__version__, info.programs.stored, info.compiled]))
"""


def test_two_versions_side_by_side(tmp_path):
    """They share a cache folder, take turns, and neither uses or spoils what the other one has stored."""
    other = tmp_path / "other"
    for name in ("jax_cocktail", "common_src", "cpu_src", "gpu_src", "cuda_src", "rocm_src"):
        shutil.copytree(ROOT / name, other / name, ignore=shutil.ignore_patterns("__pycache__"))
    config = other / "jax_cocktail" / "config.py"
    text = config.read_text()
    assert "VERSION = " in text
    config.write_text(text.replace("VERSION = ", 'VERSION = "9.9.9"  # ', 1))

    def run(folder):
        program = PROGRAM.replace("import json\n", f"import json, sys; sys.path.insert(0, {str(folder)!r})\n")
        return json.loads(python(program, JAX_COCKTAIL_CACHE_DIR=str(tmp_path / "cache")))

    ours, theirs = run(ROOT), run(other)
    assert ours[0] != theirs[0] == "9.9.9"
    assert ours[1:] == [0, 1] and theirs[1] == 0, "their plans are their own"
    assert run(ROOT)[1:] == run(other)[1:] == [1, 0]
