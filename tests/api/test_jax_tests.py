"""The lane of JAX's own tests, on a small file of tests in the place of a checkout."""

from __future__ import annotations

import re

from tests.jax_tests import KNOWN, known_differences, main

TESTS = """
import os
import jax
from jax import lax

def is_ours():
    return "cocktail" in type(jax.jit).__module__ + repr(jax.jit(abs))

def test_passes():
    assert jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c * 2, x))(1.5) == 12

def test_a_loop_outside_of_jit():
    assert lax.fori_loop(0, jax.numpy.int32(3), lambda _, c: c * 2, 1.5) == 12

def test_fails_for_both():
    assert False

def test_differs():
    assert not is_ours()

def test_kills_the_process():
    if is_ours():
        os.abort()

def test_after_it():
    assert jax.jit(lambda x: x + 1)(1) == 2
"""


def test_a_file_of_tests(tmp_path, capsys):
    (tmp_path / "tiny_test.py").write_text(TESTS)
    status = main([str(tmp_path), "--files", "tiny", "--logs", str(tmp_path / "logs")])
    text = capsys.readouterr().out
    assert status == 1
    assert re.findall(r"^UNEXPECTED tiny_test.py::(\w+): (\w+)", text, re.MULTILINE) == [
        ("test_differs", "failed"),
        ("test_kills_the_process", "crashed"),
    ]
    assert "tiny: crashed 1, failed 2, passed 3\n  as with stock 1, known differences 0, unexpected 2" in text


def test_known_differences_have_reasons():
    assert KNOWN.exists()
    for pattern, reason in known_differences():
        assert re.match(r"\w+_test\.py::", pattern) and len(reason) > 20
