"""The command line, as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, expect=0):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "jax_cocktail", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_prints_one_row_per_model():
    out, err = run("demo", "--small", "--seconds", "0.1")
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["lstm", "seq2seq", "blockdrop"]
    assert all(float(row[-1]) < 1e-4 for row in rows)
    assert "WRONG" not in err
    assert "\r" not in err, "a progress line is for terminals only"


@pytest.mark.one_jax
def test_model_and_batch_can_be_chosen():
    out, _ = run("demo", "--small", "--seconds", "0.1", "--model", "attention", "--batch", "64")
    assert out.splitlines()[-1].split()[:2] == ["attention", "64"]


@pytest.mark.one_jax
def test_unknown_batch_says_what_there_is():
    out, _ = run("demo", "--small", "--model", "rae", "--batch", "3")
    assert "rae: no batch 3; defined for 1" in out


@pytest.mark.one_jax
@pytest.mark.parametrize("arguments", [("demo", "--model", "nothing"), ()])
def test_bad_usage(arguments):
    _, err = run(*arguments, expect=2)
    assert "usage:" in err
