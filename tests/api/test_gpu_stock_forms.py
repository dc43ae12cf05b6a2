"""On a GPU ours has to beat the best form of stock XLA; and what a decision about a GPU belongs to."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
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
from jax_cocktail.lowering.choice import decisions, stock_forms, variants
from jax_cocktail.lowering.choice.decisions import CAPTURED, FORMS, STOCK, UNROLLED, Plan
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.lowering.edge.gpu_call import Gpu
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.run.stopwatch import CAPTURE, UNROLL, CallFails, Times
from jax_cocktail.lowering.state import Call, calling, collecting
from jax_cocktail.memory import MEMORY
from jax_cocktail.runtime.cuda import measure as gpu_measure
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.plan import LaunchPlan

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

INFINITE = float("inf")
BINARY = b"not looked at while lowering"
LAUNCH = LaunchPlan(256, 132, 128, 4096, 1024, 4352, cooperative=True)
X = jnp.ones(8)
COUNTED = """
%body (x: f32[8]) -> f32[8] {
  ROOT %y = f32[8]{0} tanh(%x)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %loop = f32[8]{0} while(%x), body=%body, backend_config={"known_trip_count":{"n":"500"}}
}
"""


def function(x):
    return lax.fori_loop(0, 500, lambda _, y: jnp.tanh(y) + x, x)


@pytest.fixture
def card(monkeypatch, tmp_path):
    """Calls for a GPU are measured, with times that the test says: `times` of the forms of stock, and of
    ours. `text`: the module of stock."""
    settings = SimpleNamespace(times=(1.0,) * 4, built=[], races=0, captures=True, text=COUNTED, seconds=0.0)

    def build(emitted, *, cache_limit_bytes):
        digest = hashlib.sha256(BINARY).hexdigest()
        return Artifact(BINARY, digest, emitted, 0.0, True, "program", LAUNCH)

    def runner(jaxpr, arguments, options=None):
        if not settings.captures and CAPTURE.keys() & (options or {}).keys():
            raise RuntimeError("conditional nodes need a newer driver")
        settings.built.append(dict(options or {}))

    def race(runs, effort, optional):
        settings.races += 1
        *stock, ours = settings.times
        assert list(optional) == list(range(1, len(stock)))
        return Times((*stock, *(ours,) * (len(runs) - len(stock))))

    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(variants, "build", build)
    monkeypatch.setattr(stopwatch, "race", race)
    monkeypatch.setattr(stopwatch, "runner", lambda *how: runner(*how) or settings)
    monkeypatch.setattr(custom_call, "present", lambda platform: True)
    monkeypatch.setattr(gpu_measure, "measure_once", lambda *how: None)
    monkeypatch.setattr(
        gpu_call, "gpu", lambda arch="", platform="cuda": Gpu(H200.name, H200.arch, H200.units)
    )
    MEMORY.decisions.clear()
    MEMORY.warned.clear()
    return settings


def lowered(jitted):
    """The module and the report of a call, as `jitted(X)` would be lowered on a card."""
    jitted = jitted.copy()  # nothing is lowered yet
    traced = jitted.trace(X)
    with calling(Call(jitted._marked, (X,), {})), collecting() as reports:
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return text, reports[0]


def names_in(report):
    return {trial.name for trial in report.trials}


def options_in(text):
    """The options that are advised; None if none are."""
    return ast.literal_eval(text.partition("compiler_options=")[2].removesuffix(")") or "None")


# ---- the best form of stock --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "choice", "advised"),
    [
        ((1.0, 0.8, 0.7, 0.5), "cocktail", None),  # ours beats all
        ((1.0, 0.4, 0.6, 0.5), "cocktail", CAPTURE),  # what the caller can have is faster still
        ((1.0, 0.4, 0.3, 0.5), "cocktail", UNROLL),
        ((1.0, 0.4, 0.3, 2.0), "stock", UNROLL),
        ((1.0, 0.3, 0.4, 2.0), "stock", CAPTURE),
        ((1.0, 0.3, INFINITE, 2.0), "stock", CAPTURE),  # the driver refuses
        ((1.0, INFINITE, 0.4, 2.0), "stock", UNROLL),
        ((1.0, INFINITE, INFINITE, 2.0), "stock", None),
        ((1.0, 0.995, 0.99, 2.0), "stock", None),  # capturing is worth nothing
        ((1.0, 3.0, 3.0, 0.9), "cocktail", None),
        ((1.0, 3.0, 3.0, 1.1), "stock", None),
    ],
)
def test_who_wins(times, choice, advised):
    plans = [Plan(Candidate(4))]
    found = decisions.choose(plans, Times(times), False, 0, (STOCK, CAPTURED, UNROLLED))
    assert found.choice == choice and options_in(found.advice) == advised
    names = (STOCK, CAPTURED, UNROLLED, plans[0].name)
    timed = [(name, seconds) for name, seconds in zip(names, times, strict=True) if seconds < INFINITE]
    assert [(trial.name, trial.seconds) for trial in found.trials] == timed
    assert (found.stock_seconds, found.cocktail_seconds) == (times[0], times[3])


def test_decisions_with_all_forms_are_kept(card):
    """A form that could not run leaves no trial, so there is no time that cannot be read again."""
    found = decisions.choose(
        [Plan()], Times((1.0, 0.5, INFINITE, 2.0)), False, 0, (STOCK, CAPTURED, UNROLLED)
    )
    decisions.store("key", found)
    MEMORY.decisions.clear()
    assert decisions.load("key") == found and found.advice


def test_ours_wins_against_the_captured_forms(card):
    card.times = (1.0, 0.5, 0.4, 0.1)
    text, report = lowered(jax_cocktail.jit(function))
    assert "@jax_cocktail_gpu(" in text and report.choice == "cocktail"
    assert names_in(report) >= {STOCK, CAPTURED, UNROLLED} and "compiler_options" not in report.why
    assert card.built[:3] == [{}, CAPTURE, UNROLL] and not any(card.built[3:])


@pytest.mark.parametrize(
    ("times", "words", "form"),
    [
        ((1.0, 0.2, 0.4, 0.5), "in command buffers is fastest, 2.5 times", CAPTURE),
        ((1.0, 0.4, 0.2, 0.5), "in command buffers with unrolled loops is fastest, 2.5 times", UNROLL),
    ],
)
def test_a_captured_form_wins(card, times, words, form):
    """What the caller can do is said: once in a warning, always by explain; it can be typed in as it is."""
    card.times = times
    with pytest.warns(CocktailWarning, match=f"function: stock XLA captured {words}") as seen:
        text, report = lowered(jax_cocktail.jit(function))
    assert "@jax_cocktail_gpu(" in text and report.choice == "cocktail" and len(seen) == 1
    assert options_in(report.why) == form
    options = str(dict(form))
    again = lowered(jax_cocktail.jit(function))[1]
    assert card.races == 1 and "before" in again.why and options in again.why and options in str(again)


def test_with_the_options_that_were_advised(card):
    """All are timed in the form that the caller has chosen, and that is a decision of its own."""
    card.times = (1.0, 0.4, 0.2, 0.5)
    with pytest.warns(CocktailWarning):
        lowered(jax_cocktail.jit(function))
    card.built.clear()
    card.times = (0.2, 0.1)
    text, report = lowered(jax_cocktail.jit(function, compiler_options=dict(UNROLL)))
    assert card.races == 2 and report.choice == "cocktail" and "@jax_cocktail_gpu(" in text
    assert len(card.built) >= 2 and all(options == UNROLL for options in card.built)
    assert not names_in(report) & FORMS.keys()


def test_with_options_of_the_other_form(card):
    """A part of a form's options lets the rest be tried; another value of one does not."""
    card.times = (1.0, 0.2, 0.5)
    with pytest.warns(CocktailWarning, match="with unrolled loops is fastest"):
        report = lowered(jax_cocktail.jit(function, compiler_options=dict(CAPTURE)))[1]
    assert names_in(report) & FORMS.keys() == {UNROLLED} and card.built[:2] == [CAPTURE, UNROLL]
    card.times = (1.0, 0.5)
    report = lowered(jax_cocktail.jit(function, compiler_options={"xla_gpu_graph_min_graph_size": 5}))[1]
    assert not names_in(report) & FORMS.keys()


def test_other_options_go_with_all_forms(card):
    own = {"xla_gpu_autotune_level": 0}
    card.times = (1.0, 2.0, 2.0, 0.5)
    lowered(jax_cocktail.jit(function, compiler_options=own))
    assert card.built[:3] == [own, {**own, **CAPTURE}, {**own, **UNROLL}]
    assert set(map(str, card.built[3:])) == {str(own)}


def test_a_driver_without_loops_in_graphs(card):
    """Fewer forms."""
    card.captures = False
    card.times = (1.0, 0.5)
    report = lowered(jax_cocktail.jit(function))[1]
    assert report.choice == "cocktail" and not names_in(report) & FORMS.keys()


@pytest.mark.parametrize(
    "text", [COUNTED.replace('"500"', '"20001"'), COUNTED.replace("known", "no"), "None"]
)
def test_loops_that_are_not_unrolled(card, text):
    """Too many nodes, a number that nobody knows, no module."""
    card.text, card.times = text, (1.0, 0.9, 0.5)
    report = lowered(jax_cocktail.jit(function))[1]
    assert names_in(report) & FORMS.keys() == {CAPTURED} and card.built[:2] == [{}, CAPTURE]


def test_on_the_host_there_is_one_form(monkeypatch, tmp_path):
    built = []
    runner = stopwatch.runner
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stopwatch, "runner", lambda *how: built.append(how[2]) or runner(*how))
    jax_cocktail.jit(function)(X)
    assert len(built) >= 2 and not any(built)


def test_runners_are_compiled_with_their_options():
    closed = jax.make_jaxpr(function)(X)
    plain, *others = stock_forms.runners(closed, [X], {}, on_gpu=True).values()
    assert "ENTRY" in plain.text and len(others) == 2
    assert all(jnp.allclose(each()[0], plain()[0]) for each in others)
    assert list(stock_forms.runners(closed, [X], {}, on_gpu=False)) == [STOCK]
    assert stopwatch.captured_runner(closed, [X], {}, {"no_such_option_of_xla": 1}) is None


def refusing(calls):
    """A run that fails from its third call on, as one that cannot be captured."""
    calls.append(1)
    if len(calls) > 2:
        raise RuntimeError("the driver knows no such node")


def test_what_fails_while_it_runs_leaves_the_race():
    calls = []
    runs = [lambda: None, functools.partial(refusing, calls), lambda: None]
    seconds = stopwatch.race(runs, optional=[1]).seconds
    assert seconds[1] == INFINITE and max(seconds[0], seconds[2]) < 1 and len(calls) == 3
    with pytest.raises(RuntimeError, match="no such node"):
        stopwatch.race([lambda: None, functools.partial(refusing, calls)])
    with pytest.raises(CallFails):
        stopwatch.race([functools.partial(refusing, calls)])


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
    found += [key(**CAPTURE), key(**UNROLL)]
    assert len(set(found)) == len(found)
    assert variants.device_of(mark, HOST) == ""


def test_the_price_of_unrolled_graphs_where_nothing_is_measured(card):
    """It is said, and decides nothing: only the caller can ask for it. On the host there is no such form."""
    wrapped = jax_cocktail.jit(function, options={"profile": "off", "compile": "now"})
    with collecting() as reports:
        wrapped.trace(X).lower(lowering_platforms=("cuda",))
    (why,) = {report.why for report in reports}
    assert re.search(r"[\d.]+ us under stock XLA, about [\d.]+ us as one graph with unrolled loops$", why), (
        why
    )
    assert (
        "unrolled" not in jax_cocktail.explain(jax_cocktail.jit(function, options={"profile": "off"}))(X).why
    )
