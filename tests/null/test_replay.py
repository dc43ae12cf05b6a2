"""The comparison of emitted texts."""

from __future__ import annotations

from tests.replay import differences, report, without_names


def test_same_texts_differ_in_nothing():
    assert report({"a 0": "x = 1;"}, {"a 0": "x = 1;"}) == (
        "1 texts on both sides: 1 the same, 0 differ in 0 ways\n0 only before, 0 only after",
        True,
    )


def test_a_changed_line_is_shown():
    text, same = report({"a 0": "x = 1;\ny = 2;"}, {"a 0": "x = 1;\ny = 3;", "a 1": "z"})
    assert not same
    assert "-y = 2;" in text and "+y = 3;" in text and "1 only after" in text


def test_names_may_differ_if_they_differ_alike():
    assert without_names("a + b - a") == without_names("c + a - c") != without_names("a + b - b")
    assert differences({"k": "meet(x)"}, {"k": "sync(x)"}, ignore_names=True) == {}
    assert differences({"k": "f(x, y)"}, {"k": "f(x, x)"}, ignore_names=True)


def test_nothing_in_common_is_no_agreement():
    assert not report({"a 0": "x"}, {"b 0": "x"})[1]
