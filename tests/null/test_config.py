"""Options: where a value comes from, what is allowed, and their names."""

from __future__ import annotations

import threading

import pytest

from jax_cocktail import config
from jax_cocktail.config import REGISTRY, Options, from_token, options, resolve


def current():
    """The options in force where nothing is said to `jit`."""
    return resolve({})


def test_defaults_are_those_of_the_table():
    assert {option.name: getattr(Options(), option.name) for option in REGISTRY} == {
        option.name: option.default for option in REGISTRY
    }


def test_order_of_look_up(monkeypatch):
    assert current().force == "auto"
    monkeypatch.setenv("JAX_COCKTAIL_FORCE", "stock")
    assert current().force == "stock"
    with options(force="cocktail"):
        assert current().force == "cocktail"
        with options(strict=True):
            assert (current().force, current().strict) == ("cocktail", True)
            assert resolve({"force": "auto"}).force == "auto"
            assert resolve({}, scopes=()).force == "stock"
        assert not current().strict
    assert current().force == "stock"


def test_a_block_ends_with_an_error():
    with pytest.raises(KeyError), options(strict=True):
        raise KeyError
    assert not current().strict


def test_a_block_is_for_its_thread():
    found = []
    with options(force="stock"):
        thread = threading.Thread(target=lambda: found.append(current().force))
        thread.start()
        thread.join()
    assert found == ["auto"]


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("STRICT", "1", True),
        ("STRICT", "off", False),
        ("CACHE_LIMIT_BYTES", "1000", 1000),
        ("DUMP_TO", "somewhere", "somewhere"),
        ("PROFILE", "off", "off"),
        ("PROFILE", "full", "full"),
        ("UNITS", "3", 3),
    ],
)
def test_environment(monkeypatch, variable, text, value):
    monkeypatch.setenv(f"JAX_COCKTAIL_{variable}", text)
    assert getattr(current(), variable.lower()) == value


@pytest.mark.parametrize(
    ("name", "text"), [("FORCE", "ours"), ("STRICT", "maybe"), ("CACHE_LIMIT_BYTES", "-1"), ("UNITS", "all")]
)
def test_bad_environment_says_which_variable(monkeypatch, name, text):
    monkeypatch.setenv(f"JAX_COCKTAIL_{name}", text)
    with pytest.raises(ValueError, match=f"JAX_COCKTAIL_{name} must be .*{text}"):
        current()


@pytest.mark.parametrize(
    "values",
    [
        {"force": "ours"},
        {"units": True},
        {"strict": 1},
        {"cache_limit_bytes": -1},
        {"dump_to": 3},
        {"nothing": 1},
    ],
)
def test_bad_values(values):
    for make in (lambda: Options(**values), lambda: config.check(values), options(**values).__enter__):
        with pytest.raises((TypeError, ValueError)):
            make()


def test_paths_become_text(tmp_path):
    assert Options(dump_to=tmp_path).dump_to == str(tmp_path)


def test_token_names_the_values():
    first, second = Options(force="stock"), Options(force="stock", strict=True)
    assert first.token == Options(force="stock").token != second.token
    assert from_token(first.token) == first
    assert from_token("nothing") is None


@pytest.mark.parametrize("values", [["force"], 5, "force"])
def test_options_are_a_dictionary(values):
    with pytest.raises(TypeError, match="must be a dictionary"):
        config.check(values)


def test_no_path_has_a_null_character():
    with pytest.raises(ValueError, match="null character"):
        config.check({"dump_to": "a\0b"})
