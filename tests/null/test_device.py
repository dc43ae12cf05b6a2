"""Devices as data: occupancy, text form, what is kept, and the option that names an architecture."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from jax_cocktail import config
from jax_cocktail.config import Options, resolve
from jax_cocktail.device import spec as device
from jax_cocktail.device import store as device_store
from jax_cocktail.device.amd import RX_7900_XTX
from jax_cocktail.device.cards import ARCHES, CARDS, DEFAULT, spec_for
from jax_cocktail.device.nvidia import A100, B200, H100, H200, RTX_3090
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.store import Measured
from jax_cocktail.errors import BuildError
from jax_cocktail.plain import from_plain, to_plain
from jax_cocktail.records import sealed

EACH_CARD = pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.name)


@EACH_CARD
def test_cards_make_sense(spec):
    whole = spec.shared_bytes + spec.reserved_shared_bytes
    # A pair of RDNA's compute units has the memory of two: a block can have half of it.
    assert spec.shared_per_unit == (2 * whole if spec == RX_7900_XTX else whole)
    assert spec.hop_seconds < spec.barrier_seconds < 2 * spec.launch_seconds < 1e-5
    assert spec.memory_rate < spec.l2_rate < spec.shared_rate
    near = spec.in_cluster()
    assert near.hop_seconds <= near.barrier_seconds <= spec.barrier_seconds
    assert (near.hop_seconds < spec.hop_seconds) == (spec.cluster_units > 1)
    assert (spec.cluster_units > 1) == (spec.arch in ("sm_90", "sm_100", "sm_103"))
    assert spec.flops <= spec.tensor_flops < spec.half_flops
    assert (spec.shared_bytes + 4 * spec.registers) * spec.units > spec.l2_bytes / 4
    line = 128 * spec.shared_per_unit // whole  # bytes a clock
    assert spec.units * line * 1e9 < spec.shared_rate < spec.units * line * 2.7e9


def test_cards_of_the_issue():
    assert [spec.arch for spec in (A100, H100, H200, B200)] == ["sm_80", "sm_90", "sm_90", "sm_100"]
    assert DEFAULT is H200 and (H200.units, H200.shared_bytes, H200.warp) == (132, 232448, 32)
    assert H100.memory_rate < H200.memory_rate and H100.barrier_seconds == H200.barrier_seconds
    assert A100.shared_bytes == 166912


@pytest.mark.parametrize(
    ("spec", "threads", "registers", "shared", "units"),
    [
        (H200, 256, 32, 0, 8),  # threads
        (H200, 1024, 64, 0, 1),  # registers: the whole file
        (H200, 1024, 65, 0, 0),  # eights: 72
        (H200, 256, 255, 0, 1),
        (H200, 288, 224, 0, 0),  # nine warps take the registers of twelve
        (H200, 256, 168, 0, 1),
        (H200, 256, 128, 0, 2),
        (H200, 32, 16, 0, 32),  # blocks
        (H200, 256, 32, H200.shared_bytes, 1),  # shared memory: all of it
        (H200, 256, 32, H200.shared_bytes + 1, 0),
        (H200, 256, 32, 113 << 10, 2),  # 1 KiB of each block is the system's
        (H200, 256, 32, (113 << 10) + 1, 1),
        (H200, 1025, 8, 0, 0),
        (H200, 64, 256, 0, 0),
        (A100, 256, 32, 0, 8),
        (A100, 256, 32, 163 << 10, 1),
        (RTX_3090, 1024, 32, 0, 1),  # 1536 threads
        (RTX_3090, 32, 16, 0, 16),
        (H200, 32, 128, 0, 16),  # each warp is on one of four schedulers, with registers of its own
        (H200, 32, 136, 0, 12),
        (replace(H200, warp=64), 65, 32, 0, 16),  # two warps of 64, each on a scheduler
    ],
)
def test_blocks_that_fit_one_unit(spec, threads, registers, shared, units):
    assert spec.resident_units(threads, registers, shared) == units


@EACH_CARD
@pytest.mark.parametrize("threads", [32, 96, 256, 288, 512, 1024])
def test_most_registers_is_the_edge(spec, threads):
    most = spec.most_registers(threads)
    assert most % spec.register_step == 0 or most == spec.thread_registers
    assert spec.resident_units(threads, most) >= 1
    assert spec.resident_units(threads, most + 1) == 0


def to_json(spec: DeviceSpec) -> str:
    return json.dumps(to_plain(spec))


def from_json(text: str) -> DeviceSpec:
    return from_plain(DeviceSpec, json.loads(text), "a device")


@EACH_CARD
def test_text_form(spec):
    assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("warp"),
        lambda values: values.update(colour="green"),
        lambda values: values.update(units="132"),
        lambda values: values.update(units=132.5),
        lambda values: values.update(units=True),
        lambda values: values.update(units=0),
        lambda values: values.update(l2_rate=-1.0),
        lambda values: values.update(l2_rate=float("nan")),
        lambda values: values.update(name=3),
    ],
)
def test_other_text_is_refused(damage):
    values = json.loads(to_json(H200))
    damage(values)
    with pytest.raises(ValueError):
        from_json(json.dumps(values))
    for text in ("", "{", "[]", "3"):
        with pytest.raises(ValueError):
            from_json(text)


def test_architecture_stands_for_a_card():
    assert spec_for("sm_90") is spec_for("sm_90a") is DEFAULT
    assert all(spec_for(arch).arch == arch for arch in ARCHES)
    for arch in ("sm_12", "gfx900", ""):
        with pytest.raises(BuildError, match="gpu_arch.*sm_100"):
            spec_for(arch)


# ---- what is kept ------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_measured_devices_are_kept_by_name(root):
    assert device_store.load_measured(H200.name) is None
    measured = Measured(replace(H200, barrier_seconds=9.75e-7), 13000, {"flops": "no time was left"})
    path = device_store.store_measured(measured)
    assert path.is_relative_to(root) and device_store.load_measured(H200.name) == measured
    assert device_store.load_measured(H100.name) is None
    again = replace(measured, spec=replace(H200, barrier_seconds=9.5e-7), driver=13010, failed="it died")
    assert device_store.store_measured(again) == path and device_store.load_measured(H200.name) == again
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_names_that_files_cannot_hold(root):
    specs = [Measured(replace(H200, name=name), 13000) for name in ("A/B", "A B", "../A B", "x" * 300)]
    assert all(device_store.store_measured(spec) for spec in specs)
    assert [device_store.load_measured(found.spec.name) for found in specs] == specs


def test_what_cannot_be_trusted_is_not_read(root):
    kept = Measured(H200, 13000)
    path = device_store.store_measured(kept)
    text = path.read_text()
    path.chmod(0o666)
    assert device_store.load_measured(H200.name) is None
    path.chmod(0o644)
    assert device_store.load_measured(H200.name) == kept
    damaged = [
        text.replace(*pair) for pair in (('"units"', '"sms"'), ("13000", '"new"'), (H200.name, "other"))
    ]
    damaged += [text.replace('"left": {}', '"left": []'), text.replace('"format": 6', '"format": 3')]
    record = json.loads(text)
    facts = record["facts"]
    for change in (
        *({"driver": value} for value in ("new", True, -1)),
        *({"left": value} for value in ([], {"flops": 1}, None)),
        *({"spec": {**facts["spec"], "units": value}} for value in (-1, 2.5, "2")),
        {"failed": None},
    ):  # as if this version had written it
        damaged.append(json.dumps({**record, **sealed({**facts, **change})}))
    for damage in ("{", "[]", to_json(H200), *damaged):
        assert damage != text
        path.write_text(damage, encoding="utf-8")
        assert device_store.load_measured(H200.name) is None


def test_nowhere_to_keep_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert device_store.store_measured(Measured(H200, 13000)) is None
    assert device_store.load_measured(H200.name) is None
    with device_store.one_measures(H200.name) as ours:
        assert ours


# ---- the option --------------------------------------------------------------------------------------------


def test_gpu_arch_names_what_can_be_planned_for(monkeypatch):
    (option,) = [option for option in config.REGISTRY if option.name == "gpu_arch"]
    assert set(option.choices) == {"", *ARCHES}
    assert Options().gpu_arch == ""
    monkeypatch.setenv("JAX_COCKTAIL_GPU_ARCH", "sm_100")
    assert resolve({}).gpu_arch == "sm_100" and resolve({"gpu_arch": "sm_80"}).gpu_arch == "sm_80"
    monkeypatch.setenv("JAX_COCKTAIL_GPU_ARCH", "sm_75")
    with pytest.raises(ValueError, match='JAX_COCKTAIL_GPU_ARCH must be one of "", sm_80, .*not .sm_75.'):
        resolve({})
    assert Options(gpu_arch="sm_90").token != Options().token


def test_every_number_has_a_unit_in_the_documentation():
    for field in fields(device.DeviceSpec):
        assert field.name in device.DeviceSpec.__doc__
