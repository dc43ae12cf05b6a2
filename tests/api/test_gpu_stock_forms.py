"""On a GPU ours has to beat the best form of stock XLA; and what a decision about a GPU belongs to."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import Artifact
from jax_cocktail.config import Options
from jax_cocktail.device.nvidia import H200
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.lowering import custom_call, decisions, gpu_call, lower, stopwatch, variants
from jax_cocktail.lowering.decisions import CAPTURED, STOCK, Plan
from jax_cocktail.lowering.gpu_call import Gpu
from jax_cocktail.lowering.state import STATE, collecting
from jax_cocktail.lowering.stopwatch import CAPTURE, Times
from jax_cocktail.runtime.cuda import measure as gpu_measure
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.plan import LaunchPlan

BINARY = b"not looked at while lowering"
LAUNCH = LaunchPlan(256, 132, 128, 4096, 1024, 4352, cooperative=True)
X = jnp.ones(8)


def function(x):
    return lax.fori_loop(0, 500, lambda _, y: jnp.tanh(y) + x, x)


@pytest.fixture
def card(monkeypatch, tmp_path):
    """Calls for a GPU are measured, with times that the test says: `times` of stock, captured, ours."""
    settings = SimpleNamespace(times=(1.0, 1.0, 1.0), built=[], races=0, captures=True)

    def build(emitted, *, cache_limit_bytes):
        digest = hashlib.sha256(BINARY).hexdigest()
        return Artifact(BINARY, digest, emitted, 0.0, True, "program", LAUNCH)

    def runner(jaxpr, arguments, options=None):
        if not settings.captures and CAPTURE.keys() & (options or {}).keys():
            raise RuntimeError("conditional nodes need a newer driver")
        settings.built.append(dict(options or {}))

    def race(runs, effort):
        settings.races += 1
        stock, captured, *_ = settings.times
        ours = (settings.times[-1],) * (len(runs) - 1 - settings.captured)
        return Times((stock, captured, *ours) if settings.captured else (stock, *ours))

    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(variants, "build", build)
    monkeypatch.setattr(stopwatch, "race", race)
    monkeypatch.setattr(stopwatch, "runner", lambda *how: runner(*how) or settings)
    monkeypatch.setattr(custom_call, "present", lambda platform: True)
    monkeypatch.setattr(gpu_measure, "measure_once", lambda *how: None)
    monkeypatch.setattr(
        gpu_call, "gpu", lambda arch="", platform="cuda": Gpu(H200.name, H200.arch, H200.units)
    )
    monkeypatch.setattr(decisions, "_remembered", {})
    monkeypatch.setattr(lower, "_warned", {})
    settings.captured = True
    return settings


def lowered(jitted):
    """The module and the report of a call, as `jitted(X)` would be lowered on a card."""
    jitted = jitted.copy()  # nothing is lowered yet
    traced = jitted.trace(X)
    STATE.arguments = (jitted._marked, (X,), {}, None)
    try:
        with collecting() as reports:
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
    finally:
        STATE.arguments = None
    return text, reports[0]


# ---- the best form of stock --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "choice", "advice"),
    [
        ((1.0, 0.8, 0.5), "cocktail", False),  # ours beats both
        ((1.0, 0.4, 0.5), "cocktail", True),  # what the caller can have is faster still
        ((1.0, 0.4, 2.0), "stock", True),
        ((1.0, 0.995, 2.0), "stock", False),  # capturing is worth nothing
        ((1.0, 3.0, 0.9), "cocktail", False),
        ((1.0, 3.0, 1.1), "stock", False),
    ],
)
def test_who_wins(times, choice, advice):
    plans = [Plan(Candidate(4))]
    found = decisions.choose(plans, Times(times), False, 0, captured=True)
    assert (found.choice, bool(found.advice)) == (choice, advice)
    assert [trial.name for trial in found.trials] == [STOCK, CAPTURED, plans[0].name]
    assert (found.stock_seconds, found.cocktail_seconds) == (times[0], times[2])


def test_ours_wins_against_the_captured_form(card):
    card.times = (1.0, 0.5, 0.1)
    text, report = lowered(jax_cocktail.jit(function))
    assert "@jax_cocktail_gpu(" in text and report.choice == "cocktail"
    assert CAPTURED in {trial.name for trial in report.trials} and "compiler_options" not in report.why
    assert card.built[:2] == [{}, dict(CAPTURE)] and not any(card.built[2:])


def test_the_captured_form_wins(card):
    """What the caller can do is said: once in a warning, always by explain; it can be typed in as it is."""
    card.times = (1.0, 0.2, 0.5)
    with pytest.warns(CocktailWarning, match="function: stock XLA captured .* fastest, 2.5 times") as seen:
        text, report = lowered(jax_cocktail.jit(function))
    assert "@jax_cocktail_gpu(" in text and report.choice == "cocktail" and len(seen) == 1
    options = report.why.partition("compiler_options=")[2].removesuffix(")")
    assert eval(options) == CAPTURE  # noqa: S307
    again = lowered(jax_cocktail.jit(function))[1]
    assert card.races == 1 and "before" in again.why and options in again.why and options in str(again)


def test_with_the_options_that_were_advised(card):
    """All are timed in the form that the caller has chosen, and that is a decision of its own."""
    card.times = (1.0, 0.2, 0.5)
    with pytest.warns(CocktailWarning):
        lowered(jax_cocktail.jit(function))
    card.built.clear()
    card.captured, card.times = False, (0.2, 0.1)
    text, report = lowered(jax_cocktail.jit(function, compiler_options=dict(CAPTURE)))
    assert card.races == 2 and report.choice == "cocktail" and "@jax_cocktail_gpu(" in text
    assert len(card.built) >= 2 and all(options == CAPTURE for options in card.built)
    assert CAPTURED not in {trial.name for trial in report.trials}


def test_other_options_go_with_both_forms(card):
    own = {"xla_gpu_autotune_level": 0}
    card.times = (1.0, 2.0, 0.5)
    lowered(jax_cocktail.jit(function, compiler_options=own))
    assert card.built[:2] == [own, {**own, **CAPTURE}] and set(map(str, card.built[2:])) == {str(own)}


def test_a_driver_without_loops_in_graphs(card):
    """One form less."""
    card.captures = card.captured = False
    card.times = (1.0, 0.5)
    report = lowered(jax_cocktail.jit(function))[1]
    assert report.choice == "cocktail" and CAPTURED not in {trial.name for trial in report.trials}


def test_on_the_host_there_is_one_form(monkeypatch, tmp_path):
    built = []
    runner = stopwatch.runner
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stopwatch, "runner", lambda *how: built.append(how[2]) or runner(*how))
    jax_cocktail.jit(function)(X)
    assert len(built) >= 2 and not any(built)


def test_runners_are_compiled_with_their_options():
    closed = jax.make_jaxpr(function)(X)
    plain, captured = stopwatch.runner(closed, [X]), stopwatch.captured_runner(closed, [X], {})
    assert jnp.allclose(captured()[0], plain()[0])
    assert stopwatch.captured_runner(closed, [X], {"xla_gpu_graph_min_graph_size": 5}) is None
    assert stopwatch.captured_runner(closed, [X], {"no_such_option_of_xla": 1}) is None


# ---- what a decision belongs to ----------------------------------------------------------------------------


def test_keys_of_decisions(monkeypatch):
    """A new card, driver or compiler, or other options of XLA, and it is measured anew."""
    closed = jax.make_jaxpr(function)(X)
    facts = SimpleNamespace(name="NVIDIA H200", driver=13000, compiler="nvcc 13.0.88")

    def toolchain(arch):
        if not facts.compiler:
            raise BuildError("there is none", "install one")
        return facts.compiler

    monkeypatch.setattr(gpu_call, "driver_version", lambda platform: facts.driver)
    monkeypatch.setattr(variants, "device_toolchain", toolchain)
    monkeypatch.setattr(gpu_call, "gpu", lambda arch="", platform="cuda": Gpu(facts.name, "sm_90", 132))
    mark = SimpleNamespace(options=Options(profile="off"))

    def key(**options):
        machine = machine_of(variants.spec_of(mark, "cuda"))
        return decisions.key_of(closed, 132, variants.device_of(mark, machine), options)

    found = [key()]
    for change in (
        {"name": "NVIDIA H100 80GB HBM3"},
        {"driver": 13010},
        {"compiler": "nvcc 13.1.80"},
        {"compiler": "nvrtc 13.1.80"},
        {"compiler": ""},
    ):
        vars(facts).update(change)
        found.append(key())
        assert found[-1] == key()
    found.append(key(**CAPTURE))
    assert len(set(found)) == len(found)
    assert variants.device_of(mark, HOST) == ""
