"""Passes have the names of their modules; the last ones are verified, observed and dumped like all others."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from jax_cocktail import compiler
from jax_cocktail.analysis import verifier
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.dump import Dump
from jax_cocktail.errors import VerificationError
from jax_cocktail.passes import passes
from jax_cocktail.schedule.sync import plan_tail
from jax_cocktail.schedule.sync.plan_tail import NOWHERE, Planned, finish, tail_passes
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import operators_in
from tests.null.gpus import recurrence

GPU = machine_of(H200)
PROGRAM = recurrence(1, 512, 16)
MACHINES = pytest.mark.parametrize("machine", [HOST, GPU], ids=["host", "gpu"])


@MACHINES
@pytest.mark.parametrize("units", [1, 4])
def test_passes_have_the_names_of_their_modules(machine, units):
    candidate = way(units, distribute=True, pipeline=units > 1)
    for name, run in passes(candidate, machine=machine):
        function = run.func if isinstance(run, partial) else run
        assert function.__module__.rpartition(".")[2] == name
        assert f" {name} " in compiler.__doc__ or f" {name}\n" in compiler.__doc__


@MACHINES
def test_stages_have_the_names_of_their_modules(machine):
    for name, _ in tail_passes(machine):
        rooms = (f"jax_cocktail.schedule.{room}.{name}" for room in ("memory", "sync"))
        assert any(importlib.util.find_spec(module) is not None for module in rooms)
        assert name in compiler.__doc__ and name in plan_tail.__doc__


@MACHINES
def test_every_stage_is_observed(machine):
    seen = []
    emitted = emit(PROGRAM, machine, [lambda *what: seen.append(what)], Candidate(4))
    names = [name for name, _ in (*passes(Candidate(4), machine=machine), *tail_passes(machine))]
    assert [name for name, *_ in seen] == names
    assert all(seconds >= 0 for *_, seconds in seen)
    _, last, _ = seen[-1]
    assert last == Planned(emitted.program, emitted.plan)
    assert all(after.plan is NOWHERE for name, after, _ in seen[: names.index("plan")])


@MACHINES
def test_every_stage_is_verified(machine, monkeypatch):
    def forgetful(program, plan):
        return replace(program, entry=replace(program.entry, body=()))

    monkeypatch.setattr(plan_tail, "barriers", forgetful)
    with pytest.raises(VerificationError, match="before its definition"):
        emit(PROGRAM, machine, (), Candidate(4))


@MACHINES
def test_both_ends_are_verified_and_under_test_every_pass(machine, monkeypatch):
    checked, stages = [], []
    check = verifier._Verifier._check_entry
    monkeypatch.setattr(verifier._Verifier, "_check_entry", lambda self: checked.append(self) or check(self))

    def forms_checked():
        given = recurrence(1, 512, 16)  # no test has verified its passes
        checked.clear()
        stages[:] = [(given, "translated")]
        emit(given, machine, [lambda name, after, _: stages.append((after.program, name))], Candidate(4))
        return [each._form for each in checked]

    monkeypatch.setenv(compiler.VERIFY, "")
    assert forms_checked() == ["translated", "planned"]
    assert checked[0]._program is stages[0][0] and checked[1]._program is stages[-1][0]
    monkeypatch.setenv(compiler.VERIFY, compiler.EACH_PASS)
    forms = forms_checked()
    changed = [new for (old, _), (new, _) in pairwise(stages) if new is not old]
    assert [*dict.fromkeys(forms)] == ["translated", "placed", "planned"]
    assert {id(each._program) for each in checked} == {id(program) for program in (stages[0][0], *changed)}
    assert 2 < len(forms) <= len(changed) + 3  # a program that a new form begins with is verified for it


def test_barriers_and_memory_are_dumped(tmp_path):
    dump = Dump(str(tmp_path), "f", 0, "0123456789abcdef")
    emitted = emit(PROGRAM, HOST, [dump.observe], Candidate(2))
    (folder,) = Path(tmp_path).iterdir()
    (last,) = folder.glob("*_barriers.txt")
    text = last.read_text()
    assert "wait" in text and "arrive" in text
    assert f"memory of {emitted.plan.most_units} units" in text
    assert f"workspace: {emitted.plan.workspace_bytes} bytes" in text
    assert not any("memory of" in f.read_text() for f in folder.glob("*_fuse.txt"))


def test_trials_plan_for_the_host():
    names = ["plan", "copies", "barriers"]
    assert [name for name, _ in tail_passes()] == names
    seen = []
    program = compiler.transform(PROGRAM, candidate=Candidate(2))
    planned = finish(program, observe=lambda name, *_: seen.append(name))
    assert seen == [name for name, _ in tail_passes()]
    assert any(o.kind == "wait" for o in operators_in(planned.program.entry))
