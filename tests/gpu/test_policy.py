"""What `jit` decides on a card when nothing is forced, and what `explain` says about it."""

from __future__ import annotations

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.device import store as device_store
from jax_cocktail.errors import CocktailWarning
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.memory import MEMORY
from jax_cocktail.runtime.cuda import measure as gpu_measure
from tests.gpu import programs
from tests.gpu.card import Card, check_close, in_float64


@pytest.fixture(autouse=True)
def new_store(monkeypatch, tmp_path):
    """Nothing was decided before."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))


def long_loop(x):
    """Thousands of tiny steps, which cost stock a launch each."""
    return lax.fori_loop(0, 3000, lambda i, x: jnp.sin(x) * 1.01 + 0.1 * i, x)


def convolutions(x, w):
    """Steps that take long in a library which no kernel of ours can call."""

    def step(_, x):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.tanh(y)

    return lax.fori_loop(0, 4, step, x)


def test_small_steps_are_ours(gpu: Card):
    """Measured on the arguments of the first call, and told."""
    x = programs.floats(64)
    ours = jax_cocktail.jit(lambda x: long_loop(x))
    report = jax_cocktail.explain(ours)(x)
    assert report.choice == "cocktail" and report.cocktail_seconds < report.stock_seconds
    text = str(report)
    assert "measured" in text and "block" in report.captured[0].scope
    assert {"stock XLA", "1 unit"} <= {trial.name for trial in report.trials}
    check_close(ours(x), jax.jit(long_loop)(x), in_float64(long_loop, (x,)), times=16.0)


def test_units_share_wide_recurrences(gpu: Card):
    arguments = programs.lstm_arguments(64, 64, 512)
    ours = jax_cocktail.jit(programs.lstm, options={"force": "cocktail", "strict": True})
    (captured,) = jax_cocktail.explain(ours)(*arguments).captured
    assert captured.units > 1 and captured.scope.startswith("device (L2)") and captured.barriers


def test_a_stored_decision_is_used_again(gpu: Card, monkeypatch):
    """Neither timed nor planned again."""
    x = programs.floats(64)
    first = jax_cocktail.explain(jax_cocktail.jit(lambda x: long_loop(x)))(x)

    def never(*_):
        raise AssertionError("it was timed again")

    monkeypatch.setattr(stopwatch, "race", never)
    again = jax_cocktail.explain(jax_cocktail.jit(lambda x: long_loop(x)))(x)
    assert again.choice == first.choice and "before" in again.why
    assert again.trials == first.trials


def test_heavy_convolutions_stay_with_stock(gpu: Card):
    """By price, without a measurement."""
    x, w = programs.floats(32, 56, 56, 256), programs.floats(3, 3, 256, 256)
    report = jax_cocktail.explain(jax_cocktail.jit(lambda x, w: convolutions(x, w)))(x, w)
    assert report.choice == "stock" and "not measured" in report.why


def test_the_device_is_known(gpu: Card):
    """Its name and arch are jax's, its units the driver's."""
    found, device = gpu_call.gpu(), jax.devices("cuda")[0]
    assert found.kind == device.device_kind and found.kind in found.name
    assert found.arch == f"sm_{str(device.compute_capability).replace('.', '')}"
    spec = gpu_call.spec_of()
    assert spec.name == found.kind and spec.arch == found.arch
    assert spec.units == found.units or not found.units


def test_the_card_is_measured_once(gpu: Card, monkeypatch):
    """At first use, without a warning, and within the time that is said to take."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CocktailWarning)
        gpu_call.measure_once()
    assert time.perf_counter() - start < 10 * gpu_measure.SECONDS  # the compiler has the time that it needs
    found, spec = device_store.load_measured(gpu_call.gpu().kind), gpu_call.spec_of()
    assert found is not None and found.spec == spec and not found.failed
    assert not {"launch_seconds", "barrier_seconds", "l2_rate", "shared_rate"} & found.left.keys()

    def never(*_, **__):
        raise AssertionError("it was measured again")

    MEMORY.cards.clear()
    monkeypatch.setattr(gpu_measure, "Card", never)
    gpu_call.measure_once()
    assert gpu_call.spec_of() == spec


def test_stock_is_timed_captured_too(gpu: Card):
    """Both as a trial, and as what the caller has asked for."""
    x = programs.floats(64)
    report = jax_cocktail.explain(jax_cocktail.jit(lambda x: long_loop(x)))(x)
    assert decisions.CAPTURED in {trial.name for trial in report.trials}
    ours = jax_cocktail.jit(lambda x: long_loop(x), compiler_options=dict(stopwatch.CAPTURE))
    report = jax_cocktail.explain(ours)(x)
    assert report.stock_seconds and decisions.CAPTURED not in {trial.name for trial in report.trials}
    check_close(ours(x), jax.jit(long_loop)(x), in_float64(long_loop, (x,)), times=16.0)


def test_profile_off_times_nothing(gpu: Card, monkeypatch):
    def never(*_):
        raise AssertionError("it was timed")

    monkeypatch.setattr(stopwatch, "race", never)
    ours = jax_cocktail.jit(lambda x: long_loop(x), options={"profile": "off"})
    report = jax_cocktail.explain(ours)(programs.floats(64))
    assert report.choice == "cocktail" and "the model says" in report.why
    assert np.isfinite(ours(programs.floats(64))).all()
