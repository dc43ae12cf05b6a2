"""Ours or stock: measured once on the first real arguments, stored, and never asked again."""

from __future__ import annotations

import dataclasses
import inspect
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.special import zeta

import jax_cocktail
from jax_cocktail.cost.hlo import Module
from jax_cocktail.cost.price import Comparison, Price
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.choice import decisions, stock_xla, survey, variants
from jax_cocktail.lowering.choice.decisions import STOCK, Decision, Plan
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.run.stopwatch import QUICK, THOROUGH, Times
from jax_cocktail.memory import MEMORY
from jax_cocktail.report import Trial
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import walk
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

TARGET = "jax_cocktail_cpu"


def function(x):
    return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) * x, x)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    root = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root))
    MEMORY.decisions.clear()
    return root / "decisions"


@pytest.fixture
def measured(monkeypatch):
    """What each measurement finds, in place of real times; the calls are counted. XLA steps through loops."""

    class Measured:
        count = 0
        choice = "cocktail"
        efforts = []

    def race(runs, effort, _):
        Measured.count += 1
        Measured.efforts.append(effort)
        ours = 1.0 if Measured.choice == "cocktail" else 4.0
        return Times((2.0, *(ours + 0.1 * n for n in range(len(runs) - 1))), others=0.25)

    monkeypatch.setattr(stopwatch, "race", race)
    monkeypatch.setattr(stopwatch, "runner", lambda *_: stopwatch.Compiled(None, None, 0.0))
    monkeypatch.setattr(stock_xla, "stock_module", lambda *_: Module(""))
    return Measured


def choice(x, **options):
    """The choice for a fresh function, as a call makes it."""
    fresh = jax_cocktail.jit(function, options=options).copy()
    fresh(x)
    return jax_cocktail.explain(fresh)(x)


def test_first_call_measures_and_stores(folder):
    jax_cocktail.jit(function)(jnp.ones(4))
    (path,) = folder.glob("*.json")
    facts = json.loads(path.read_text())["facts"]
    assert facts["choice"] in ("cocktail", "stock")
    times = {trial["name"]: trial["seconds"] for trial in facts["trials"]}
    assert all(seconds > 0 for seconds in times.values())
    ours_won = times["1 unit"] <= decisions.MARGIN * times[STOCK]
    assert facts["choice"] == ("cocktail" if ours_won else "stock")


@pytest.mark.parametrize("winner", ["cocktail", "stock"])
def test_the_winner_runs_and_nothing_is_measured_again(measured, winner):
    measured.choice = winner
    x = jnp.ones(4)
    for _ in range(2):
        report = choice(x)
        assert report.choice == winner
        assert report.stock_seconds is not None
        lowered = jax_cocktail.jit(function).copy().lower(x).as_text()
        assert (TARGET in lowered) == (winner == "cocktail")
    assert measured.count == 1
    assert report.why == "measured before on this machine"


def test_another_size_is_another_program(measured):
    choice(jnp.ones(4))
    choice(jnp.ones(5))
    assert measured.count == 2


def test_profile_off_measures_nothing(measured, folder):
    report = choice(jnp.ones(4), profile="off")
    assert report.choice == "cocktail"
    assert 'not measured (the option profile is "off"): the model says' in report.why
    assert measured.count == 0
    assert not folder.exists()


@pytest.mark.parametrize("force", ["cocktail", "stock"])
def test_force_wins_over_what_is_stored(measured, force):
    measured.choice = "stock" if force == "cocktail" else "cocktail"
    choice(jnp.ones(4))
    assert choice(jnp.ones(4), force=force).choice == force


def test_effects_are_not_repeated_to_measure(measured):
    def printing(x):
        jax.debug.callback(lambda: seen.append(1))
        return function(x)

    seen = []
    wrapped = jax_cocktail.jit(printing)
    wrapped(jnp.ones(4))
    jax.effects_barrier()
    assert (measured.count, len(seen)) == (0, 1)
    assert "not measured (the call has side effects)" in jax_cocktail.explain(wrapped)(jnp.ones(4)).why


def heavy(x, w):
    return lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ w), x)


def line_of(found, text):
    lines, start = inspect.getsourcelines(found)
    return start + next(i for i, line in enumerate(lines) if text in line)


def priced(monkeypatch, ours, stock):
    """Makes the model say so."""
    monkeypatch.setattr(survey, "our_price", lambda *_: ours)
    monkeypatch.setattr(survey, "stock_price", lambda *_: stock)
    return Comparison(ours, stock)


@pytest.mark.parametrize("hopeless", [False, True])
def test_stock_by_price_alone(measured, monkeypatch, folder, hopeless):
    """Without a build, and the report says so, now and when the decision is found again."""
    cost = priced(monkeypatch, Price(2.0, 2.0, 2.0, 2.0 * hopeless), Price(1.0, 1.0, 1.0, 1.0 * hopeless))
    assert (cost.hopeless(), cost.favours_stock()) == (hopeless, True)
    monkeypatch.setattr(variants, "build", None)  # nobody calls it
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    arguments = (jnp.ones((64, 64)),) * 2 if hopeless else (shape, shape)
    MEMORY.prepared.clear()
    report = jax_cocktail.explain(heavy)(*arguments)
    assert (report.choice, report.captured) == ("stock", ())
    (left,) = report.left
    assert left.what == "while" or left.what == "scan"
    assert f"test_decisions.py:{line_of(heavy, 'fori_loop')}" in left.where
    assert left.reason == report.why
    assert str(cost) in report.why
    assert ("no concrete arguments" in report.why) == (not hopeless)
    assert "no loop or branch" not in str(report)
    assert len(list(folder.glob("*.json"))) == hopeless
    MEMORY.decisions.clear()
    if hopeless:
        monkeypatch.setattr(survey, "our_price", None)  # it is stored
    assert jax_cocktail.explain(heavy)(*arguments) == report
    wrapped = jax_cocktail.jit(heavy)
    assert TARGET not in wrapped.lower(*arguments).as_text()
    assert measured.count == 0


def test_whoever_asks_for_all_candidates_gets_hopeless_ones_timed(measured, monkeypatch):
    priced(monkeypatch, Price(2.0, 2.0, 2.0, 2.0), Price(1.0, 1.0, 1.0, 1.0))
    assert choice(jnp.ones(4)).choice == "stock"
    assert measured.count == 0
    assert choice(jnp.ones(4), profile="full").choice == "cocktail"
    assert measured.count == 1


def test_the_model_decides_in_transformed_functions(measured, monkeypatch):
    gradient = jax.jit(jax.grad(lambda x: jax_cocktail.jit(function)(x).sum()))
    assert TARGET in gradient.lower(jnp.ones(4)).as_text()
    priced(monkeypatch, Price(2.0), Price(1.0))
    gradient = jax.jit(jax.grad(lambda x: jax_cocktail.jit(function)(x).sum()))
    assert TARGET not in gradient.lower(jnp.ones(4)).as_text()
    assert choice(jnp.ones(4), profile="off").choice == "stock"
    assert measured.count == 0
    choice(jnp.ones(4))  # with values at hand it is measured all the same
    assert measured.count == 1


@pytest.fixture
def several(monkeypatch):
    """Every candidate gives another source text, whatever the passes make of it."""
    real = variants.emit

    def emit(program, *machine, **keywords):
        found = real(program, *machine, **keywords)
        return dataclasses.replace(found, source=f"{found.source}// {keywords['candidate'].text}\n")

    monkeypatch.setattr(variants, "emit", emit)
    monkeypatch.setattr(variants.custom_call, "units", lambda: 2)
    MEMORY.prepared.clear()


NAMES = {"2 units", "1 unit", "2 units, loops undivided", "1 unit, loops undivided"}


@pytest.mark.parametrize("profile", ["auto", "full"])
def test_the_best_few_or_all_candidates_are_timed(measured, several, profile):
    report = choice(jnp.ones(4), profile=profile)
    assert (report.choice, measured.count) == ("cocktail", 1)
    assert measured.efforts[-1] == (QUICK if profile == "auto" else THOROUGH)
    stock, *ours = report.trials
    assert stock == Trial(STOCK, 2.0)
    names = {trial.name for trial in ours}
    assert names == NAMES if profile == "full" else names < NAMES and len(names) == 3
    (chosen,) = (trial for trial in ours if trial.chosen)
    assert report.cocktail_seconds == chosen.seconds == min(trial.seconds for trial in ours)
    text = str(report)
    for part in ("candidate", "us per call", "speedup", "1000000.0        busy  chosen", "25% of the cores"):
        assert part in text


def test_all_candidates_are_timed_once_even_where_a_few_were(measured, several):
    for profile, count in (("auto", 1), ("full", 2), ("full", 2), ("auto", 2), ("off", 2)):
        report = choice(jnp.ones(4), profile=profile)
        assert measured.count == count
        assert len(report.trials) == (4 if count == 1 else 5)


def test_a_candidate_that_cannot_be_built_is_left_out(measured, several, monkeypatch):
    real = variants.build

    def gave_up(*_, **__):
        raise BuildError("the compiler gave up", "nothing helps")

    def build(emitted, *rest, **keywords):
        return (gave_up if emitted.candidate.units == 2 else real)(emitted, **keywords)

    monkeypatch.setattr(variants, "build", build)
    with pytest.warns(jax_cocktail.CocktailWarning, match="left out: the compiler gave up"):
        report = choice(jnp.ones(4), profile="full")
    assert {trial.name for trial in report.trials} == {STOCK, "1 unit", "1 unit, loops undivided"}
    monkeypatch.setattr(variants, "build", gave_up)
    MEMORY.prepared.clear()
    with pytest.warns(jax_cocktail.CocktailWarning, match="the compiler gave up"):
        assert choice(jnp.ones(5)).choice == "stock"


def test_equal_programs_are_timed_as_one(measured):
    assert [trial.name for trial in choice(jnp.ones(4), profile="full").trials] == [STOCK, "1 unit"]


def test_what_was_measured_says_which_program_force_means(measured, several):
    first = choice(jnp.ones(4), force="cocktail").captured[0].fingerprint
    measured.choice = "stock"
    chosen = choice(jnp.ones(4)).captured[0].fingerprint
    assert choice(jnp.ones(4), force="cocktail").captured[0].fingerprint == chosen
    assert isinstance(first, str)


def test_another_number_of_units_is_another_decision(measured):
    reports = [choice(jnp.ones(4), units=units) for units in (1, 2, 3)]
    assert measured.count == 3
    assert {report.captured[0].units for report in reports} == {1}
    choice(jnp.ones(4), units=2)
    assert measured.count == 3


def test_one_unit_is_the_single_threaded_program(measured, several):
    report = choice(jnp.ones(4), units=1, profile="full")
    assert {trial.name for trial in report.trials} == {STOCK, "1 unit", "1 unit, loops undivided"}


def test_a_region_that_loses_may_stay_with_stock(measured, several, monkeypatch):
    """Two regions with an operator of stock XLA's between them; the model thinks little of the second."""

    def two(x):
        y = lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), x)
        q = zeta(jnp.outer(y, y) + 2, 2.0)
        return lax.fori_loop(0, 5, lambda i, a: jnp.cos(a) @ a, q)

    def worth(program, profile, launch):
        kinds = {getattr(s, "kind", "") for s in walk(program.entry)}
        return "dot" not in kinds, ()

    monkeypatch.setattr(survey, "worth_taking", worth)
    x = jnp.linspace(0.0, 1.0, 4)
    report = jax_cocktail.explain(jax_cocktail.jit(two, options={"profile": "full"}))(x)
    (mixed,) = (trial.name for trial in report.trials if "without call" in trial.name)
    assert mixed == "1 unit without call 1"
    key = next(iter(MEMORY.decisions))[1]
    known = decisions.load(key)
    decisions.store(key, dataclasses.replace(known, plan=Plan(Candidate(2), (1,))))
    wrapped = jax_cocktail.jit(two)
    assert wrapped.lower(x).as_text().count(f"@{TARGET}(") == 1
    report = jax_cocktail.explain(wrapped)(x)
    assert len(report.captured) == 1
    assert "stock XLA is faster at it" in report.left[-1].reason
    assert jnp.allclose(wrapped(x), jax.jit(two)(x), atol=1e-5)


def test_a_decision_survives_the_disk(folder):
    decision = Decision("stock", Plan(way(4, distribute=False), (2,)), (Trial("a", 1.0),), "w", True, 0.5)
    decisions.store("0" * 64, decision)
    MEMORY.decisions.clear()
    assert decisions.load("0" * 64) == decision


def test_without_values_the_model_or_what_is_stored_decides(measured):
    x = jnp.ones(4)
    gradient = jax.grad(lambda x: jax_cocktail.jit(function)(x).sum())
    gradient(x)
    jax.jit(lambda x: jax_cocktail.jit(function)(x))(x)
    assert TARGET in jax_cocktail.jit(function).lower(jax.ShapeDtypeStruct((4,), jnp.float32)).as_text()
    assert measured.count == 0
    measured.choice = "stock"
    choice(x)
    assert measured.count == 1
    assert (
        TARGET
        not in jax_cocktail.jit(function).copy().lower(jax.ShapeDtypeStruct((4,), jnp.float32)).as_text()
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda f: (f, (jnp.ones(4), jnp.ones(3))),
        lambda f: (f, (2.0, jnp.ones(3))),
        lambda f: (f, (jnp.ones(4), {"a": 1, "b": (True, None)})),
    ],
)
def test_arguments_of_every_kind_can_be_measured_on(measured, make):
    wrapped, arguments = make(jax_cocktail.jit(lambda x, unused: function(x)))
    wrapped(*arguments)
    assert measured.count == 1


def test_measured_with_closed_over_keys_keywords_and_static_arguments(measured):
    key, w = jax.random.key(0), jnp.ones(4)

    def everything(x, n, *, y):
        return lax.fori_loop(0, n, lambda i, a: a * y + w + jax.random.normal(key, (4,)), x)

    wrapped = jax_cocktail.jit(everything, static_argnames="n")
    wrapped(jnp.ones(4), 3, y=2.0)
    assert measured.count == 1
    wrapped(jnp.ones(4), n=4, y=2.0)
    assert measured.count == 2


def test_typed_keys_can_be_measured_on(measured):
    jax_cocktail.jit(lambda k: lax.fori_loop(0, 3, lambda i, k: jax.random.fold_in(k, i), k))(
        jax.random.key(0)
    )
    assert measured.count == 1


def test_measuring_does_not_consume_donated_arguments():
    wrapped = jax_cocktail.jit(function, donate_argnums=0)
    x = jnp.ones(1000)
    expected = jax.jit(function)(jnp.ones(1000))
    assert jnp.allclose(wrapped(x), expected)
    assert x.is_deleted()


def test_nested_functions_are_measured_once_as_one(measured):
    inner = jax_cocktail.jit(function)
    jax_cocktail.jit(lambda x: inner(x) + lax.fori_loop(0, 2, lambda i, a: a + 1, x))(jnp.ones(4))
    assert measured.count == 1


def test_stock_means_all_of_it(measured):
    """What a function that chose stock calls does not come back as a custom call."""
    measured.choice = "stock"
    inner = jax_cocktail.jit(function)

    def outer(x):
        y = lax.fori_loop(0, 2, lambda i, a: a + 1, x)
        return lax.fori_loop(0, 2, lambda i, a: inner(zeta(a + 2, 2.0)), y)

    wrapped = jax_cocktail.jit(outer)
    with pytest.warns(jax_cocktail.CocktailWarning, match="zeta"):
        wrapped(jnp.ones(4))
    assert measured.count == 1
    assert TARGET not in jax_cocktail.jit(outer).lower(jnp.ones(4)).as_text()
    report = jax_cocktail.explain(wrapped)(jnp.ones(4))
    assert report.choice == "stock" and report.inner
    assert {(each.why, each.captured) for each in report.inner} == {("stock XLA runs the code around it", ())}


OLD = '{"format": 2, "choice": "stock", "stock_seconds": 1.0, "cocktail_seconds": 2.0, "why": ""}'
BAD = '{"format": 3, "choice": "stock", "plan": {"candidate": {"threads": 2}, "skip": []}, "trials": []}'


@pytest.mark.parametrize("text", ["", "{", '{"format": 3, "choice": "rm -rf"}', "[1]", OLD, BAD])
def test_a_damaged_file_is_measured_again(measured, folder, text):
    choice(jnp.ones(4))
    (path,) = folder.glob("*.json")
    path.write_text(text)
    MEMORY.decisions.clear()
    assert choice(jnp.ones(4)).choice == "cocktail"
    assert measured.count == 2
    assert json.loads(path.read_text())["facts"]["choice"] == "cocktail"


def test_a_file_that_others_can_write_is_not_believed(measured, folder):
    choice(jnp.ones(4))
    (path,) = folder.glob("*.json")
    path.chmod(0o666)
    MEMORY.decisions.clear()
    choice(jnp.ones(4))
    assert measured.count == 2


def test_clear_cache_forgets(measured, folder):
    choice(jnp.ones(4))
    jax_cocktail.clear_cache()
    assert not list(folder.glob("*.json"))
    choice(jnp.ones(4))
    assert measured.count == 2


def test_real_times_are_plausible():
    run = stopwatch.runner(jax.make_jaxpr(function)(jnp.ones(4)), [jnp.ones(4)])
    found = stopwatch.race([run, run])
    assert all(1e-7 < seconds < 10 for seconds in found.seconds)
    assert 0.0 <= found.others <= 1.0


def test_a_clear_loser_leaves_the_race():
    counts = [0, 0]

    def run(which, seconds):
        counts[which] += 1
        time.sleep(seconds)

    found = stopwatch.race([lambda: run(0, 1e-3), lambda: run(1, 5e-3)])
    assert counts[1] == stopwatch.QUICK.fewest_rounds < counts[0]
    assert found.seconds[1] > 3 * found.seconds[0]


def test_a_busy_machine_is_given_time(monkeypatch):
    monkeypatch.setattr(stopwatch.Watch, "others", lambda self: 0.5)
    start = time.perf_counter()
    found = stopwatch.race([lambda: time.sleep(1e-3)], dataclasses.replace(QUICK, seconds=0.02))
    assert found.others == 0.5
    assert time.perf_counter() - start >= 0.02 * stopwatch.PATIENCE


@pytest.mark.one_jax
def test_a_second_process_believes_the_first(folder):
    program = """
        import jax.numpy as jnp, jax_cocktail
        from jax import lax
        from jax_cocktail.lowering.run import stopwatch
        real, count = stopwatch.race, []
        stopwatch.race = lambda *a: count.append(1) or real(*a)
        jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda i, a: a + x, x))(jnp.ones(3))
        print(len(count))
    """
    assert [python(program).strip() for _ in range(2)] == ["1", "0"]


def test_a_callback_in_a_rare_case_is_not_called_by_measurements():
    called = []

    def checked(x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(lambda value: called.append(0) or value, shape, x)

    def function(xs):
        return lax.scan(lambda a, x: (lax.cond(x > 4.5, checked, jnp.sin, x) + a, a), 0.0, xs)[0]

    ours = jax_cocktail.jit(function)
    jax.block_until_ready(ours(jnp.arange(6.0)))
    assert len(called) == 1
    assert "would call Python" in jax_cocktail.explain(ours)(jnp.arange(6.0)).why
    assert jax_cocktail.explain(ours)(jnp.zeros(6)).stock_seconds is not None
    assert len(called) == 1


def test_all_sources_of_the_compiler_are_in_the_keys():
    """Else a later process runs what another compiler has built."""
    package = Path(jax_cocktail.__file__).resolve().parent
    sources = {Path(path) for path in decisions.compiler_sources()}
    assert {path for path in package.rglob("*.py") if "_src" not in path.parts} <= sources
    assert {"cpu_src", "gpu_src", "cuda_src", "rocm_src"} <= {path.parent.name for path in sources}
