"""Every public name has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import inspect
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from docs.pages import docstrings, public_names
from jax_cocktail.config import REGISTRY

pytestmark = [pytest.mark.one_jax, pytest.mark.all_candidates]
DOCSTRINGS = docstrings()
NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "jax_cocktail": jax_cocktail, "warnings": warnings}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    """One of their own: examples empty it, and store all of it in a bundle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
        jax_cocktail.wait()


def failures(text, name):
    """What the examples of a docstring print otherwise than it says."""
    test = doctest.DocTestParser().get_doctest(text, dict(NAMES), name, None, 0)
    assert test.examples, "an example is missing"
    found = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=found.append)
    return "".join(found)


@pytest.mark.parametrize("name", public_names())
def test_example(name, cache_folder, tmp_path, monkeypatch):
    if name == "load":
        pytest.importorskip("flatbuffers", reason="of the test extra")
    monkeypatch.chdir(tmp_path)
    assert not (found := failures(DOCSTRINGS[name], name)), found


def test_the_docstring_of_options_has_all():
    attributes = DOCSTRINGS["Options"].partition("Attributes:\n")[2].partition("\n\n")[0]
    named = [line.partition(":")[0].strip() for line in attributes.splitlines() if line[2] != " "]
    assert named == [option.name for option in REGISTRY]


def test_a_wrong_example_is_seen():
    assert "Expected" in failures(">>> 1 + 1\n3\n", "wrong")


@pytest.mark.parametrize("name", public_names())
def test_docstring_has_its_sections(name):
    """Arguments, returns and raises of functions; the text is that of the object."""
    value, text = getattr(jax_cocktail, name), DOCSTRINGS[name]
    if name != "__version__":
        assert text == inspect.getdoc(value)
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        assert ("Args:" in text) == bool(signature.parameters)
        for parameter in signature.parameters.values():
            stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
            assert f"\n  {stars}{parameter.name}: " in text
        returns = signature.return_annotation not in ("None", None)
        assert returns == ("Returns:" in text or "Yields:" in text)
