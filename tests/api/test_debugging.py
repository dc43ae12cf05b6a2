"""The switches for when something is wrong: checked plans, programs that tell of themselves, all stages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import cache
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import sealed

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

OPTIONS = {"force": "cocktail", "profile": "off", "compile": "now", "units": 1}
X = jnp.linspace(0, 1, 24, dtype=jnp.float32)


def made():
    """A function that is new to the process, with a program that is not."""

    def repeated(x):
        return lax.fori_loop(0, 5, lambda i, a: jnp.cumsum(jnp.tanh(a)) - jnp.cumsum(a) * i, x)

    return repeated


def called(**options):
    function = made()
    found = jax_cocktail.jit(function, options={**OPTIONS, **options})(X)
    np.testing.assert_allclose(found, jax.jit(function)(X), rtol=2e-5)


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """The plan cache of a process that begins, with one call of another one."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    called(plans="cached")
    MEMORY.plans.clear()
    MEMORY.lookups.clear()
    return tmp_path / "cache" / "plans"


def changed(plans, kind, change):
    """Changes what a record says, and seals it as an older version of ours could have."""
    (path,) = plans.glob(f"{kind}-*.json")
    facts = cache.read_record("plans", path.stem)["facts"]
    change(facts)
    cache.write_record("plans", path.stem, sealed(facts))


# ---- checked plans -----------------------------------------------------------------------------------------


def test_a_good_plan_passes_the_check(plans):
    called(plans="checked")
    info = jax_cocktail.cache_info()
    assert (info.surveys.stored, info.programs.stored) == (1, 1), "there was something to check"


def test_a_stale_program_is_an_error(plans, tmp_path):
    def larger(facts):
        facts["workspace_bytes"] += 64

    changed(plans, "program", larger)
    called(plans="cached")  # nobody notices
    with pytest.raises(jax_cocktail.StalePlanError) as told:
        called(plans="checked", dump_to=str(tmp_path / "dumps"))
    text = str(told.value)
    assert text.startswith("repeated: ") and "they differ in workspace_bytes." in text
    fingerprints = re.findall(r"fingerprint (\w{16})\)", text)
    assert len(fingerprints) == 2
    folders = re.search(r"is (\S+), with its source.* are in (\S+);", text)
    cached, fresh = folders.groups()
    assert cached.startswith(str(tmp_path / "cache")) and fresh.startswith(str(tmp_path / "dumps"))
    for folder in (cached.rpartition("/")[0], fresh):
        assert "ck_program" in Path(folder, "program.cc").read_text()


def test_a_program_that_was_exchanged_is_an_error(plans):
    """The binary of another function, in order by itself."""
    options = {**OPTIONS, "plans": "cached"}
    other = jax_cocktail.jit(lambda x: lax.fori_loop(0, 5, lambda i, a: a * i, x), options=options)
    (mine,) = plans.glob("program-*.json")
    other(X)
    (theirs,) = set(plans.glob("program-*.json")) - {mine}
    facts = cache.read_record("plans", theirs.stem)["facts"]
    cache.write_record("plans", mine.stem, sealed(facts))
    with pytest.raises(jax_cocktail.StalePlanError, match=r"they differ in binary, digest") as told:
        called(plans="checked")
    one, another = re.findall(r"fingerprint (\w{16})\)", str(told.value))
    assert one != another
    shutil.rmtree(re.search(r" are in (\S+)/repeated_0_\w+;", str(told.value))[1])  # no folder was given


def test_a_stale_survey_is_an_error(plans):
    def cheaper(facts):
        facts["seconds"][0] /= 2

    changed(plans, "survey", cheaper)
    called(plans="cached")
    with pytest.raises(jax_cocktail.StalePlanError, match=r"repeated: the plan cache compares .* 1 unit"):
        called(plans="checked")


# ---- programs that tell of themselves ----------------------------------------------------------------------


def test_calls_are_named(tmp_path, capfd):
    """By the folder that `dump_to` makes for the program."""
    function = jax_cocktail.jit(made(), options={**OPTIONS, "errors": "log", "dump_to": str(tmp_path)})
    for _ in range(2):
        jax.block_until_ready(function(X))
    (folder,) = tmp_path.glob("repeated_0_*")
    told = re.findall(
        r"jax_cocktail: call (\d+): (\w+) (begins|ends after \d+\.\d{3} ms)\n", capfd.readouterr().err
    )
    assert [name for _, name, _ in told] == [folder.name] * 4
    numbers = [int(number) for number, _, _ in told]
    assert numbers == [numbers[0], numbers[0], numbers[0] + 1, numbers[0] + 1]
    assert [what[:6] for *_, what in told] == ["begins", "ends a"] * 2


def test_others_say_nothing(capfd):
    jax.block_until_ready(jax_cocktail.jit(made(), options=OPTIONS)(X))
    assert "call" not in capfd.readouterr().err


def test_a_failure_is_told(capfd):
    @jax_cocktail.recursive(max_depth=4)
    def count(self, n):
        return lax.cond(n > 0, lambda n: self(n - 1) + 1, lambda n: n, n)

    function = jax_cocktail.jit(lambda n: count(n), options={**OPTIONS, "errors": "log"})
    with pytest.raises(Exception, match="max_depth"):
        jax.block_until_ready(function(9))
    assert re.search(r"call \d+: \w+ fails after", capfd.readouterr().err)


HANGS = """
import jax.numpy as jnp
from jax import lax
import jax_cocktail

def endless(x):
    return lax.while_loop(lambda x: x[0] >= 0, lambda x: abs(x), x)

jax_cocktail.jit(endless)(jnp.ones(3)).block_until_ready()
"""


def test_a_program_that_hangs_is_named(monkeypatch):
    for name, value in {**OPTIONS, "errors": "log"}.items():
        monkeypatch.setenv(f"JAX_COCKTAIL_{name.upper()}", str(value))
    with subprocess.Popen([sys.executable, "-c", HANGS], stderr=subprocess.PIPE, text=True) as child:
        try:
            line = _first_told(child.stderr)
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
        finally:
            child.kill()
    assert re.fullmatch(r"jax_cocktail: call 1: endless_0_\w{12} begins\n", line)


def _first_told(stream):
    return next((line for line in iter(stream.readline, "") if "jax_cocktail: call" in line), "")


# ---- all switches ------------------------------------------------------------------------------------------

SWITCHES = {
    "dump_to": lambda folder: str(folder),
    "trace": lambda folder: 3,
    "errors": lambda folder: "log",
    "plans": lambda folder: "checked",
    "strict": lambda folder: True,
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_switches_change_nothing_that_runs(tmp_path, switch):
    """A recurrent network on two units has a barrier in each step."""
    key = jax.random.key(0)
    w, xs = jax.random.normal(key, (384, 384)) / 20, jax.random.normal(key, (12, 384))

    def network(w, xs):
        return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h[0]), xs[0], xs)

    options = {**OPTIONS, "units": 2}
    plain = jax_cocktail.jit(network, options=options)
    report = jax_cocktail.explain(plain)(w, xs)
    assert report.captured[0].waits > 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switched = jax_cocktail.jit(network, options={**options, switch: SWITCHES[switch](tmp_path)})
        found = jax.tree.map(np.asarray, switched(w, xs))
    assert "jax_cocktail_cpu" in switched.lower(w, xs).as_text()
    jax.tree.map(np.testing.assert_array_equal, found, plain(w, xs))
    assert jax_cocktail.explain(switched)(w, xs).captured[0].fingerprint == report.captured[0].fingerprint


# ---- all stages --------------------------------------------------------------------------------------------


def test_all_stages_are_dumped(tmp_path):
    jax_cocktail.jit(made(), options={**OPTIONS, "dump_to": str(tmp_path)})(X)
    (folder,) = tmp_path.glob("repeated_0_*")
    (decision,) = tmp_path.glob("repeated_decision_0_*")
    assert "choice: cocktail\nplan: 1 unit\nwhy: the option force" in (decision / "decision.txt").read_text()
    names = {path.name for path in folder.iterdir()}
    assert {"jaxpr.txt", "candidate.txt", "program.cc", "command.txt", "log.txt", "launch.txt"} <= names
    assert ("program.asm" in names) == (shutil.which("objdump") is not None)
    stages = sorted(name for name in names if re.match(r"\d\d_", name))
    assert stages[0] == "00_translate.txt" and stages[-1].endswith("_barriers.txt")
    (entry,) = re.findall(r"binary: (\S+)", (folder / "launch.txt").read_text())
    assert entry.endswith("program.so") and entry.startswith(str(cache.cache_dir()))
    memory = (folder / "memory.txt").read_text()
    (size, bound, total) = re.search(
        r"workspace: (\d+) bytes \(lower bound (\d+), without reuse (\d+)\)", memory
    ).groups()
    buffers = re.findall(r"float32\[24\] in workspace (\d+) to (\d+), live at ([\d, -]+)", memory)
    assert 0 < int(bound) <= int(size) <= int(total) and len(buffers) >= 2
    assert max(int(end) for _, end, _ in buffers) <= int(size)
