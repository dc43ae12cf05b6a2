"""The commands `bench`, `explain` and `doctor`, whole. `demo` and `cache` have tests of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jax_cocktail_tools import command_line
from jax_cocktail_tools.commands import result

PROGRAM = """
import jax
import jax.numpy as jnp
from jax import lax


@jax.jit
def power(x, times=3):
    return lax.fori_loop(0, times, lambda _, c: jnp.sin(c * x), x)


def power_arguments():
    return jnp.ones(16), 5


def needs(a, b):
    return a @ b


example_arguments = {"a": jnp.ones((2, 3)), "b": jnp.ones((4, 5))}


class Solver:
    step = staticmethod(power)


number = 3
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit status, and what is printed to both outputs."""
    status = command_line.main(command_line.parse(["jax_cocktail", *words]))
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


# ---- bench -------------------------------------------------------------------------------------------------


@pytest.mark.one_jax
def test_bench_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "folder" / "a.json", tmp_path / "a.html"]
    words = ("bench", "--small", "--model", "lstm", "--seconds", "0.05", "--scaling", "--by-hand")
    status, out, err = run(capsys, *words, "--json", str(files[0]), "--html", str(files[1]))
    assert status == 0 and "lstm/1" in out and "tiny models" in out and "\r" not in err
    found = result.read(files[0])
    (row,) = found.rows
    assert not row.wrong and row.captured == "1 of 1" and row.rounds >= 5 and row.plan
    assert set(row.by_hand) == {"hoisted", "distributed"} and "lstm/1 by hand, hoisted: " in out
    assert 0 < row.ratio.low <= row.ratio.middle <= row.ratio.high
    assert row.ours.quartiles[0] <= row.ours.median.middle <= row.ours.quartiles[1]
    assert row.flops > 7 * 3 * 2 * 2 * 16 * 64 and row.bytes > 0, "two products in each cell"
    assert found.ceilings is not None and found.ceilings.flops > 1e8
    assert {"batch"} <= {curve.axis for curve in found.curves} <= {"batch", "units"}
    assert found.versions["jax"] and found.versions["C++ compiler"] != "none"
    assert files[1].read_text().count("<svg") == 2 + len(found.curves)
    status, out, _ = run(capsys, "bench", "compare", str(files[0]), str(files[0]), "--fail-slower", "0")
    assert status == 0 and "lstm/1" in out and "1.00  within the noise" in out


def test_bench_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "bench", "--model", "rae", "--batch", "3")
    assert status == 2 and err == ("error: no chosen model has this batch size; try: one of these: rae: 1\n")
    (tmp_path / "file").touch()
    status, _, err = run(capsys, "bench", "--json", str(tmp_path / "file" / "a.json"))
    assert status == 2 and "cannot be written" in err
    status, _, err = run(capsys, "bench", "compare", str(tmp_path / "file"), "none.json")
    assert status == 2 and "is not JSON" in err


@pytest.mark.parametrize("command", ["demo", "bench", "explain", "cache", "doctor"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["jax_cocktail", command, "--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert command_line.COMMANDS[command] in words


# ---- explain -----------------------------------------------------------------------------------------------


def test_explain_and_trace(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = tmp_path / "timeline.json"
    words = ("--force", "cocktail", "--stock", "--perfetto", str(timeline))
    status, out, _ = run(capsys, "explain", f"{program}:power", *words)
    assert status == 0 and out.startswith("power: runs on jax_cocktail")
    assert "custom call 0" in out and "program.py:9 (power)" in out and "under stock XLA" in out
    assert "power: 1 custom call recorded" in out
    assert json.loads(timeline.read_text())["traceEvents"]


def test_explain_takes_arguments(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--force", "stock", "--args")
    for place, text in (("power", "jnp.ones(4) * number, 2"), ("Solver.step", "np.ones(3)")):
        status, out, _ = run(capsys, "explain", f"{program}:{place}", *words, text)
        assert status == 0 and out.startswith("power: runs on stock XLA")


def test_explain_saves(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("html", "json", "svg", "txt"):
        path = tmp_path / f"report.{suffix}"
        status, out, _ = run(capsys, "explain", f"{program}:power", "--save", str(path))
        assert status == 0 and out.endswith(f"wrote {path}\n") and "power" in path.read_text()


@pytest.mark.parametrize(
    "place, words, said",
    [
        ("program.py:powr", (), "there is no powr in program.py; try: one of power, power_arguments, needs"),
        ("program.py:number", (), "number is no function, but int"),
        ("program.py:", (), "program.py: does not name a function; try: FILE:FUNCTION"),
        ("none.py:power", (), "there is no file none.py"),
        ("program.py:needs", (), "needs fails: TypeError: dot_general requires contracting dimensions"),
        (
            "program.py:needs",
            ("--args", "1, 2, 3"),
            "needs(a, b) does not take these arguments (3 by position)",
        ),
        ("program.py:power", ("--args", "nothing"), "--args 'nothing' has no value: NameError"),
        ("program.py:power", ("--save", "a.pdf"), "a.pdf has an unknown suffix; try: one of .html"),
        ("broken.py:power", (), "broken.py cannot be imported: ZeroDivisionError: division by zero (line 2)"),
        ("syntax.py:power", (), "syntax.py cannot be imported: SyntaxError: invalid syntax (line 1)"),
        ("exits.py:power", (), "exits.py exits when it is imported"),
        ("alone.py:f", (), "no arguments are given for f; try: --args 'EXPRESSION', or define f_arguments"),
    ],
)
def test_explain_says_what_is_wrong(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place, words, said
) -> None:
    monkeypatch.chdir(program.parent)
    others = {
        "broken": "x = 1\nx / 0\n",
        "syntax": "def (",
        "exits": "exit(3)",
        "alone": "def f(a): return a",
    }
    for name, text in others.items():
        Path(f"{name}.py").write_text(text)
    status, out, err = run(capsys, "explain", place, *words)
    assert status == 2 and out == "" and err.startswith("error: ") and said in err and "Traceback" not in err


# ---- doctor ------------------------------------------------------------------------------------------------


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["a scan, end to end"]["state"] == "ok", out
    assert checks["C++ compiler"]["state"] == checks["devices of jax"]["state"] == "ok"
    assert status == (1 if found["problems"] else 0)
    assert all(check["remedy"] for check in found["checks"] if check["state"] != "ok")


@pytest.mark.one_jax
def test_doctor_where_things_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    status, out, _ = run(capsys, "doctor")
    lines = out.splitlines()
    problems = [line.split("  ")[0] for line in lines if line.startswith("PROBLEM")]
    assert status == 1 and len(problems) == 2 and lines[-1].startswith("2 problems")
    assert any(line.startswith("PROBLEM  C++ compiler") for line in lines)
    assert any(line.startswith("PROBLEM  a scan, end to end") and "no-such" in line for line in lines), out
