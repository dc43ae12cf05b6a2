"""Every primitive against stock XLA on the same device.

XLA's arithmetic on a GPU is not the host's: divisions and roots are not correctly rounded, elementary
functions are CUDA's. What the host's tests want equal may differ by roundings here, if it is made of floats.
"""

from __future__ import annotations

import os
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests import buckets
from tests.case import Case, differences
from tests.gpu.card import EPSILON, Card

ROUNDINGS = 8
# A card's time is scarce; JAX_COCKTAIL_TEST_FULL=1 takes the other types too.
USUAL = ("float32", "bfloat16", "int32", "bool")
MORE = ("elementwise-float64-x64", "binary-int64-x64", "binary-uint8", "dot-float64-x64", "dot-int8")
FULL = os.environ.get("JAX_COCKTAIL_TEST_FULL") == "1"
QUICK = ("select-float32", "select-int32")  # to emulate


def chosen():
    """Parameters `cases, x64`."""
    for one in buckets.buckets():
        if FULL or one.id in (*MORE, *QUICK) or one.id.split("-", 1)[1] in USUAL:
            marks = pytest.mark.emulated if one.id in QUICK else ()
            yield pytest.param(*one.values, id=one.id, marks=marks)


def within_roundings(case, ours, stock):
    """What differs by more than a few roundings."""
    least = ROUNDINGS * EPSILON.get(case.dtype, EPSILON["float32"])
    return differences(replace(case, tolerance=max(case.tolerance, least)), ours, stock)


@pytest.mark.parametrize("cases, x64", list(chosen()))
def test_bucket(card: Card, cases, x64, monkeypatch):
    if card.emulation is None:
        monkeypatch.setattr(buckets, "differences", within_roundings)
    with jax.default_matmul_precision("highest"):
        buckets.check_bucket(cases, x64)


def test_what_differs_is_found():
    """The comparison lets roundings pass and nothing else."""
    case = Case("case", "group", lambda x: x, ())
    one = np.ones(3, np.float32)
    assert not within_roundings(case, one * np.float32(1 + 2**-22), one)
    assert within_roundings(case, one * np.float32(1 + 2**-18), one)
    assert within_roundings(case, np.arange(3), np.arange(3) + 1)
