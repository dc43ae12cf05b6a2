"""The figures of this machine: the table's by its caches and vectors, and those that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.device import processor
from jax_cocktail.device.host import NARROW, SERVER, Figures, from_table
from jax_cocktail.lowering.choice import host as choice
from jax_cocktail.runtime import host_figures


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    host_figures._known.cache_clear()
    yield tmp_path
    host_figures._known.cache_clear()


def _cache(folder: Path, index: int, kind: str, level: int, size: str) -> None:
    place = folder / f"index{index}"
    place.mkdir()
    for name, text in {"type": kind, "level": str(level), "size": size}.items():
        (place / name).write_text(text + "\n")


def test_caches_as_linux_tells_them(tmp_path: Path) -> None:
    _cache(tmp_path, 0, "Data", 1, "32K")
    _cache(tmp_path, 1, "Instruction", 1, "64K")
    _cache(tmp_path, 2, "Unified", 2, "1M")
    _cache(tmp_path, 3, "Unified", 3, "33792K")
    assert processor.cache_sizes(tmp_path) == (32 << 10, 1 << 20, 33 << 20)


def test_caches_that_cannot_be_read(tmp_path: Path) -> None:
    assert processor.cache_sizes(tmp_path / "nothing") == (0, 0, 0)
    _cache(tmp_path, 0, "Data", 1, "unknown")
    _cache(tmp_path, 1, "Unified", 2, "1M")
    (tmp_path / "index2").mkdir()
    assert processor.cache_sizes(tmp_path) == (0, 1 << 20, 0)
    assert from_table(8, (0, 0, 0)) == NARROW and from_table(16, (0, 0, 0)) == SERVER


def test_figures_of_the_table() -> None:
    spec = from_table(8, (48 << 10, 2 << 20, 0))
    assert [size for size, _ in spec.levels] == [48 << 10, 2 << 20, NARROW.levels[2][0]]
    assert spec.ours == NARROW.ours
    assert from_table(16, (32 << 10, 512 << 10, 16 << 20)).levels[2] == (16 << 20, SERVER.levels[2][1])


def test_memory_serves_all_cores() -> None:
    spec = replace(NARROW, memory_rate=20e9, memory_all=30e9)
    beyond = spec.levels[-1][0] + 1
    assert [spec.bandwidth(beyond, cores) for cores in (1, 2, 4)] == [20e9, 15e9, 7.5e9]
    assert spec.bandwidth(1 << 10, 64) == spec.levels[0][1]


def test_figures_that_no_processor_has_are_not_taken() -> None:
    table = Figures.of(NARROW)
    assert NARROW.with_figures(table) == NARROW
    wrong = Figures(*(figure * 1e3 for figure in astuple(table)))
    assert NARROW.with_figures(wrong) == NARROW
    faster = NARROW.with_figures(replace(table, heavy=150e9, barrier=0.0, memory=float("nan")))
    assert faster.ours.heavy == 150e9 and faster.stock.heavy == 2 * NARROW.stock.heavy
    assert (faster.barrier_seconds, faster.memory_rate) == (NARROW.barrier_seconds, NARROW.memory_rate)


def test_measured_once_for_later_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = processor.table_spec()
    assert host_figures.host() == table and not host_figures.is_measured()
    host_figures.measure_once()
    assert host_figures.host() == table  # prices do not change while a process runs
    host_figures._known.cache_clear()
    found = host_figures.host()
    assert host_figures.is_measured() and found != table and host_figures.host(measured=False) == table
    rates = [rate for _, rate in found.levels]
    assert 0 < found.memory_rate <= 2 * max(rates)
    assert found.ours.heavy > found.ours.light > 0
    monkeypatch.setattr(host_figures, "measured", lambda: pytest.fail("it was measured before"))
    host_figures.measure_once()


@pytest.mark.parametrize("plans", ("cached", "fresh"))
def test_measured_before_a_call_that_compiles_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plans: str
) -> None:
    asked = list[str]()
    monkeypatch.setattr(choice, "measure_host", lambda: asked.append(plans))
    options = {"compile": "now", "plans": plans, "detach": True}
    halved = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x), options=options)
    assert halved(8.0) == 1.0 and bool(asked) == (plans == "cached")


def test_nothing_is_stored_of_a_busy_machine(folder: Path) -> None:
    host_figures.measure_once(lambda: lambda: 0.5)
    assert not host_figures.is_measured()


def test_a_compiler_for_another_processor_measures_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++ -march=x86-64-v3")
    monkeypatch.setattr(host_figures, "measured", lambda: pytest.fail("its program may not run here"))
    host_figures.measure_once()


def test_what_cannot_be_told_is_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cache of unknown size, nobody knows what lies beyond it; one core has no barrier."""
    monkeypatch.setattr(processor, "cache_sizes", lambda: (0, 0, 0))
    monkeypatch.setattr(processor, "cores", lambda: 1)
    found = host_figures.measured()
    assert (found.memory, found.memory_all, found.barrier) == (0, 0, 0) and found.heavy > 0


def test_a_damaged_record_is_none(folder: Path) -> None:
    host_figures._STORE.store(host_figures._name(), Figures.of(NARROW))
    assert host_figures.is_measured()
    host_figures._known.cache_clear()
    for file in (folder / host_figures.FOLDER).glob("host-*"):
        if file.is_file() and file.suffix == ".json":
            file.write_text(file.read_text().replace("0", "1"))
    assert not host_figures.is_measured() and host_figures.host() == processor.table_spec()
