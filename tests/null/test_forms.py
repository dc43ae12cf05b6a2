"""Forms: what the runtime reads of a size gives what the size gives in a call."""

from __future__ import annotations

import itertools

import pytest

from jax_cocktail.utask.forms import Forms
from jax_cocktail.utask.sizes import COMPARISONS, Decision, Parameter, Size, at, place_in
from tests.oracle.forms import read

N, M = Parameter(1031, least=33), Parameter(1223, least=2)
n, m = (Size((((each,), 1),)) for each in (N, M))
PLACES = {N: (0, 1), M: (2, 0)}
SIZES = {
    "one": n,
    "affine": 3 * n - 7,
    "product": n * m * 4 + m,
    "quotient": (n + 5) // 8 * 8 + n % 3,
    "nested": ((n + 1) // 2 + m) // 16,
    "negative": 5 - n,
}


@pytest.mark.parametrize("name", SIZES)
def test_values(name: str) -> None:
    forms = Forms(PLACES)
    number = forms.number(SIZES[name])
    assert forms.number(SIZES[name]) == number == -2, "one form for each size"
    for given in ((1031, 1223), (33, 2), (40, 1000), (999, 17)):
        values, _ = read(forms.encoded, [(7, given[0]), (), (given[1],)])
        assert values == [at(SIZES[name], {N: given[0], M: given[1]})]


def test_places_follow_from_sizes() -> None:
    forms, place = Forms(PLACES), place_in(n * 24 + 64, "workspace")
    (parameter,) = place.parameters
    assert forms.parameter(parameter) == -2
    assert read(forms.encoded, [(0, 40), (), ()])[0] == [40 * 24 + 64]


def test_what_follows_from_nothing_is_itself() -> None:
    forms, length = Forms(PLACES), Parameter(50)
    assert [forms.number(0), forms.number(24), forms.parameter(length)] == [0, 24, 50]
    assert forms.number(Size((((length,), 2),))) == 100
    assert forms.encoded == (0, 0)


@pytest.mark.parametrize("how", [*COMPARISONS, ">", ">="])
@pytest.mark.parametrize("outcome", [True, False])
def test_guards(how: str, outcome: bool) -> None:
    decision = Decision(n, 2 * m - 4, how, outcome)
    forms = Forms(PLACES)
    forms.guard(decision)
    for first, second in itertools.product((34, 36, 38, 40), (19, 20, 21, 22)):
        _, holds = read(forms.encoded, [(0, first), (), (second,)])
        assert holds == decision.holds({N: first, M: second})
