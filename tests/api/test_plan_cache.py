"""The plan cache: what was planned and built once is found again, and nothing else is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.compiler import Artifact, identity
from jax_cocktail.cost.vector import Comparison, Price
from jax_cocktail.lowering.choice import plan_cache, survey, variants
from jax_cocktail.lowering.choice.plan_cache import Lookups
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import sealed
from jax_cocktail.utask.candidate import SINGLE
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

OPTIONS = {"force": "cocktail", "plans": "cached", "units": 2}
X = jnp.linspace(0, 1, 24, dtype=jnp.float32).reshape(4, 6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test, and counters that begin at zero."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    forget_here(monkeypatch)
    return tmp_path / "cache" / "plans"


def forget_here(monkeypatch):
    """What a new process knows."""
    MEMORY.plans.clear()
    MEMORY.lookups.clear()
    monkeypatch.setattr(MEMORY.counts, "compiled", 0)


def made(scale=1.5, text="x"):
    """A function whose program depends on the scale alone."""

    def function(x):
        with jax.named_scope(text):
            return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * scale - i, x)

    return function


def called(function, x=X, **options):
    """What a call of ours returns, as stock does."""
    found = jax_cocktail.jit(function, options={**OPTIONS, **options})(x)
    np.testing.assert_allclose(found, jax.jit(function)(x), rtol=2e-6)
    return np.asarray(found)


def counted():
    info = jax_cocktail.cache_info()
    return info.surveys, info.programs, info.compiled


def test_an_equal_function_is_found_in_the_process():
    first = called(made(text="a"))
    assert counted() == (Lookups(made=1), Lookups(made=1), 1)
    second = called(made(text="b"))
    assert counted() == (Lookups(here=1, made=1), Lookups(here=1, made=1), 1)
    np.testing.assert_array_equal(first, second)


def test_nothing_is_planned_for_what_is_stored(monkeypatch):
    first = called(made())
    forget_here(monkeypatch)

    def refuses(*_, **__):
        raise AssertionError("this is known")

    for place, name in ((variants, "emit"), (variants, "build"), (survey, "survey")):
        monkeypatch.setattr(place, name, refuses)
    np.testing.assert_array_equal(called(made()), first)
    assert counted() == (Lookups(stored=1), Lookups(stored=1), 0)


@pytest.mark.parametrize("other", [{"scale": 2.5}, {"x": X[:3]}, {"x": X.T}])
def test_another_program_is_not_found(other):
    called(made())
    function = made(other.pop("scale", 1.5))
    called(function, **other)
    assert counted()[1] == Lookups(made=2)


def test_equal_layers_of_one_function_are_compiled_once():
    def function(x):
        for _ in range(2):
            x = jnp.fft.fft(lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) - i, x)).real
        return x

    called(function)
    assert len(jax_cocktail.explain(jax_cocktail.jit(function, options=OPTIONS))(X).captured) == 2
    assert jax_cocktail.cache_info().compiled == 1


def test_messages_are_part_of_a_program():
    """Recursions that differ in the place and the limit that their error names."""

    def limited(depth):
        @jax_cocktail.recursive(max_depth=depth)
        def count(self, n):
            return lax.cond(n > 0, lambda n: self(n - 1) + 1, lambda n: n, n)

        return lambda n: count(n)

    for depth in (10, 20):
        with pytest.raises(jax.errors.JaxRuntimeError, match=str(depth)):
            jax.block_until_ready(jax_cocktail.jit(limited(depth), options=OPTIONS)(jnp.int32(50)))


def test_fresh_plans_are_made_again():
    for _ in range(2):
        called(made(), plans="fresh")
    assert counted()[:2] == (Lookups(), Lookups())


def test_explain_tells_as_much_of_a_known_program(monkeypatch):
    function = jax_cocktail.jit(made(), options=OPTIONS)
    reports = []
    for _ in range(2):
        report = jax_cocktail.explain(function)(X)
        reports.append([replace(each, seconds=0.0, cached=True) for each in report.captured])
        forget_here(monkeypatch)
    assert reports[0] == reports[1] and reports[0][0].edges


def test_clear_cache_forgets(folder):
    called(made())
    assert len([*folder.glob("*.json")]) == 3  # a survey, a program and the call
    jax_cocktail.clear_cache()
    assert not [*folder.glob("*.json")]
    called(made())
    assert counted()[1] == Lookups(made=2)


def test_a_table_is_bounded(monkeypatch):
    monkeypatch.setattr(MEMORY.plans["survey"], "most", 3)
    for scale in range(5):
        plan_cache.survey(str(scale), lambda: SURVEY)
    assert len(MEMORY.plans["survey"]) == 3


SURVEY = plan_cache.Survey(
    (variants.Plan(SINGLE), variants.Plan(replace(SINGLE, units=2), (1,))),
    (2.0, 1.0),
    Comparison(Price(1.0, 0.5), Price(3.0)),
    None,
    (0.25, 0.0),
)


def test_a_survey_comes_back_as_it_was(monkeypatch):
    assert plan_cache.survey("a", lambda: SURVEY) is SURVEY
    forget_here(monkeypatch)
    assert plan_cache.survey("a", lambda: pytest.fail("it is stored")) == SURVEY


# ---- damage ------------------------------------------------------------------------------------------------


def stored(folder, kind):
    (path,) = folder.glob(f"{kind}-*.json")
    return path


@pytest.mark.parametrize("kind", ["survey", "program"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_text(""),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace("1", "2", 1)),
        lambda path: path.chmod(0o666),
        lambda path: path.unlink(),
    ],
    ids=["truncated", "empty", "nested", "edited", "writable by others", "gone"],
)
def test_a_damaged_record_is_made_again(folder, monkeypatch, kind, damage):
    first = called(made())
    forget_here(monkeypatch)
    damage(stored(folder, kind))
    np.testing.assert_array_equal(called(made()), first)
    surveys, programs, _ = counted()
    assert (surveys if kind == "survey" else programs) == Lookups(made=1)
    forget_here(monkeypatch)
    called(made())
    assert counted()[:2] == (Lookups(stored=1), Lookups(stored=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key", 7),
        ("key", "../../elsewhere"),
        ("digest", "0" * 64),
        ("aliases", [[0]]),
        ("aliases", [["0", 1]]),
        ("workspace_bytes", 1.5),
        ("workspace_bytes", True),
        ("failures", [1]),
        ("launch", [1, 2]),
        ("launch", "none"),
    ],
)
def test_values_of_other_types_are_not_believed(folder, monkeypatch, name, value):
    first = called(made())
    path = stored(folder, "program")
    record = json.loads(path.read_text())
    edited = sealed({**record["facts"], name: value})
    path.write_text(json.dumps({"record": record["record"], **edited}))
    forget_here(monkeypatch)
    np.testing.assert_array_equal(called(made()), first)
    assert counted()[1] == Lookups(made=1)


def test_a_record_of_another_program_is_not_believed(folder, monkeypatch):
    called(made(1.5))
    mine = stored(folder, "program")
    called(made(2.5))
    (other,) = (path for path in folder.glob("program-*.json") if path != mine)
    shutil.copyfile(other, mine)
    forget_here(monkeypatch)
    called(made(1.5))
    assert counted()[1] == Lookups(made=1)


def test_a_program_whose_binary_is_gone_is_built_again(folder, monkeypatch):
    called(made())
    shutil.rmtree(folder.parent / "entries")
    forget_here(monkeypatch)
    called(made())
    assert counted()[1:] == (Lookups(made=1), 1)


def test_a_survey_with_impossible_plans_is_not_believed(folder, monkeypatch):
    called(made())
    path = stored(folder, "survey")
    record = json.loads(path.read_text())
    for plan in record["facts"]["plans"]:
        plan["candidate"]["units"] = 10**9
    path.write_text(json.dumps({"record": record["record"], **sealed(record["facts"])}))
    forget_here(monkeypatch)
    called(made())


def test_without_a_folder_the_process_remembers(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(jax_cocktail.CocktailWarning, match="cache of compiled programs is not used"):
        called(made())
    called(made(text="again"))
    assert counted()[0] == Lookups(here=1, made=1)


# ---- keys --------------------------------------------------------------------------------------------------


def test_equal_identities_have_equal_sources():
    """Over functions that differ in names and places alone, and in one number."""
    sources = {}
    for function in (made(1.5, "a"), made(1.5, "b"), made(2.5, "a")):
        closed = jax.make_jaxpr(function)(X)
        prepared = variants.prepare(closed, function.__name__)
        emitted = variants.emitted(prepared, SINGLE, 0)
        sources.setdefault(identity(prepared.programs[0], SINGLE), set()).add(emitted.source)
    assert len(sources) == 2 and all(len(found) == 1 for found in sources.values())


def test_what_is_not_in_the_cache_is_not_stored(folder, monkeypatch):
    """A program that a private folder holds, or that a test has made up."""
    build = variants.build
    monkeypatch.setattr(variants, "build", lambda *a, **k: replace(build(*a, **k), key=""))
    called(made())
    assert not [*folder.glob("program-*.json")]


def test_an_artifact_tells_its_executable():
    closed = jax.make_jaxpr(made())(X)
    prepared = variants.prepare(closed, "function")
    emitted = variants.emitted(prepared, SINGLE, 0)
    artifact = Artifact(b"1", "2", emitted, 0.0, False, "3")
    executable = artifact.executable
    assert (executable.binary, executable.digest, executable.path) == (b"1", "2", "3")
    assert executable.workspace_bytes == artifact.workspace_bytes and executable.aliases == artifact.aliases


def test_another_process_finds_everything():
    text = """
        import jax.numpy as jnp, json
        from jax import lax
        import jax_cocktail

        def function(x, count):
            return lax.fori_loop(0, count, lambda i, a: jnp.tanh(a) * 1.5 - i, x)

        jitted = jax_cocktail.jit(function, options={"force": "cocktail", "plans": "cached"})
        value = jitted(jnp.linspace(0, 1, 11), 7).tolist()
        info = jax_cocktail.cache_info()
        print(json.dumps([value, [info.surveys.stored, info.programs.stored, info.compiled]]))
    """
    first, second = (json.loads(python(text)) for _ in range(2))
    assert first[1] == [0, 0, 1] and second[1] == [1, 1, 0]
    assert first[0] == second[0]
