"""The comparison of emitted texts."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.replay import ROOT, differences, pairs, report, texts, without_names


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
    assert differences(pairs({"k 0": "meet(x)"}, {"k 0": "sync(x)"}, ignore_names=True)) == {}
    assert without_names("  // a.py:3 f\nx;") == without_names("  // a.py:9 f\ny;")
    assert differences(pairs({"k 0": "f(x, y)"}, {"k 0": "f(x, x)"}, ignore_names=True))


def test_a_new_program_within_a_test_moves_the_numbers_of_others():
    before = {"t 0": "a", "t 1": "b", "t 2": "c"}
    after = {"t 0": "new", "t 1": "a", "t 2": "b", "t 3": "c"}
    assert differences(pairs(before, after)) == {}
    assert (
        "3 the same" in report(before, after)[0] and "0 only before, 1 only after" in report(before, after)[0]
    )


def test_texts_of_a_test_are_in_order():
    before = {f"t {n}": f"x{n}" for n in range(12)}
    after = {**before, "t 11": "y11"}
    assert list(differences(pairs(before, after))) == ["t 11"]


def test_nothing_in_common_is_no_agreement():
    assert not report({"a 0": "x"}, {"b 0": "x"})[1]


def test_a_recording_has_the_texts_of_its_tests(tmp_path):
    wanted = "tests/golden/test_golden.py::test_texts[softmax]"
    command = [sys.executable, "-m", "tests.replay", "--record", str(tmp_path / "base"), wanted]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    recorded = texts(tmp_path / "base")
    assert any(key.endswith(" IR 0") for key in recorded), recorded.keys()
    assert any("void" in text for text in recorded.values())
