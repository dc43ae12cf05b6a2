"""A pack of small rows, made for the emulation, and the process that uses the card."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu import bundle, inputs, items, latency, pack, packed, worker
from benchmarks.gpu.ensembles import ENSEMBLES
from benchmarks.gpu.rows import ROWS
from jax_cocktail.device.nvidia import H200
from jax_cocktail.errors import BuildError
from jax_cocktail.plain import to_plain
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import micro as gpu_micro
from tests.api import small_pack
from tests.api.fake_card import FakeCard
from tests.cpu.cuda_compilers import nvcc
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

ROW, NEXT = "conjugate_gradient", "hidden_markov"  # in the order of a run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pack of two rows, never written to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "ANSWERED", (ROW,))
        return small_pack.made(tmp_path_factory.mktemp("pack"), (ROW, NEXT))


@pytest.fixture
def there(made, tmp_path, monkeypatch):
    """The pack where the card is."""
    fake = FakeCard(tmp_path)
    fake.set(sms=small_pack.UNITS.units)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(fake.path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    return packed.Pack(small_pack.copied(made, tmp_path / "pack"))


def test_every_row_has_a_place():
    assert sorted(packed.ORDER) == sorted(ROWS) and tuple(ENSEMBLES) == packed.ENSEMBLES


def test_pack(there):
    """Arguments are left out, what they are is known, and making the pack again does nothing."""
    rows = there.rows()
    assert [row.name for row in rows] == [ROW, NEXT] and there.facts["small"]
    for row in rows:
        assert row.programs[0].phase == "best" and {operand.argument for operand in row.operands} != {-1}
        answers = {"answer 0"} if row.name == ROW else set()
        assert set(there.arrays(row.name)) == {"result 0"} | answers
        assert {p.phase for p in row.programs} <= set(packed.PHASES)
        assert all(hashlib.sha256(there.binary(p.digest)).hexdigest() == p.digest for p in row.programs)
    assert there.size() < packed.MOST_BYTES


def test_pack_goes_on(there, capsys):
    """A row of the same sources for the same card is there; one of others is made again."""
    with small_pack.emulating() as patch:
        patch.setattr(pack, "_add", None)
        assert pack.make(there.folder, small_pack.UNITS, (ROW, NEXT), small=True) == 0
        assert capsys.readouterr().out.count("is there") == 2
        with pytest.raises(SystemExit, match="no row lstm1; there are lstm/1, "):
            pack.make(there.folder, small_pack.UNITS, ("lstm1",), small=True)
        other = replace(small_pack.UNITS, launch_seconds=1e-5)  # plans depend on it
        assert pack.make(there.folder, other, (ROW,), small=True) == 1 and not there.rows()
        patch.setattr(packed, "source_digest", lambda: "another")
        assert (
            pack.make(there.folder, small_pack.UNITS, (ROW,), small=True) == 1
        )  # it tries, and says that it failed


def test_binaries_are_packed(there):
    (path,) = (there.folder / f"{there.facts['clock']}.bin",)
    assert path.stat().st_size < len(there.binary(there.facts["clock"])) / 2


def test_crossings(there, tmp_path):
    """How the blocks of each program wait for each other."""
    others = packed.Pack(small_pack.made(tmp_path / "others", ("rae/1",)))
    rows = (*there.rows(), *others.rows())
    found = {(row.name, p.plan, p.phase): p.crossing for row in rows for p in row.programs}
    assert all(found[name, "1 unit", "best"] == "" for name in (ROW, NEXT))
    assert all(found[name, "4 units", "other"] == "exchange" for name in (ROW, NEXT))
    assert found["rae/1", "4 units", "other"] == "barrier"


# ---- the worker --------------------------------------------------------------------------------------------


@pytest.fixture
def working(there, tmp_path):
    """A worker in this process, with the arguments of both rows."""
    for row in there.rows():
        inputs.make(row, tmp_path, True)
    with gpu_card.Card() as card, gpu_card.Card() as beside:
        yield worker.Worker(card, beside, there, tmp_path)


def test_figures(working, monkeypatch):
    """One at a time, from the packed binaries, each with the clock of the card."""
    monkeypatch.setattr(gpu_micro, "program", None)
    kinds = working.do("card", "", "")["figures"]
    assert set(kinds) < set(packed.MEASURES) and "launch in a graph" in kinds["micro"]
    found = working.do("micro", "launch in a graph", "")
    assert found["seconds"] > 0 and found["sm_clock"] == pytest.approx(1e9, rel=0.1)  # of nanoseconds
    assert "none" in working.do("micro", "no such figure", "")
    assert working.do("litmus", "message passing, barrier", "")["ok"]
    seen = []
    monkeypatch.setattr(latency, "measure", lambda card, binary, p: seen.append((binary, p.kind)) or {})
    working.do("latency", "block barrier, 1024 threads", "")
    assert seen == [(working.pack.binary(working.pack.facts["latency"]), "block_barrier")]


def test_two_streams(working):
    """Two programs whose blocks wait for each other give their answers together and alone."""
    for name in (ROW, NEXT):
        row = working.pack.row(name)
        crossing = next(p for p in row.programs if p.crossing)
        working.pack.add(
            replace(row, programs=(replace(crossing, phase="best"),)), working.pack.arrays(name), ()
        )
    found = working.do("streams", f"{ROW} + {NEXT}", "")
    assert found["ok"] and found["seconds"] > 0 and len(found["alone_seconds"]) == 2
    arrays = {"result 0": 2 * working.pack.arrays(NEXT)["result 0"]}
    working.pack.add(working.pack.row(NEXT), arrays, ())
    found = working.do("streams", f"{ROW} + {NEXT}", "")
    assert not found["ok"] and [answer["ok"] for answer in found["answers"]] == [True, False]


def test_other_inputs_are_no_wrong_answer(working, tmp_path):
    """Nobody knows what is right then."""
    row = working.pack.row(ROW)
    operands = tuple(replace(operand, digest="another") for operand in row.operands)
    working.pack.add(replace(row, operands=operands), working.pack.arrays(ROW), ())
    found = working.do("program", ROW, row.best().digest)
    assert found["ok"] is None and not found["same_inputs"] and found["seconds"] > 0


# ---- jax with a pack ---------------------------------------------------------------------------------------


def test_answers(there, tmp_path):
    """Of whole calls, against what the pack says."""
    settings = items.Settings(tmp_path, small=True, pack=there.folder)
    found = items.answers(ROW, settings)
    assert found["ok"] and 0 < found["highest"]["ours"] <= found["highest"]["limit"]
    row, arrays = there.row(ROW), there.arrays(ROW)
    there.add(row, arrays | {"answer 0": arrays["answer 0"] + 1}, ())
    assert not items.answers(ROW, settings)["ok"]


LOWERS = """
    import json, os, warnings
    import jax
    import jax_cocktail
    from benchmarks.gpu.packed import Pack
    from benchmarks.gpu.rows import ROWS
    from jax_cocktail.build import cuda, host
    from jax_cocktail.lowering.edge import gpu_call
    from jax_cocktail.device.spec import DeviceSpec
    from jax_cocktail.plain import from_plain
    from pathlib import Path

    host.zig = lambda: None  # the package may be installed
    cuda._candidates = lambda *_: iter(())
    assert Pack(Path(os.environ["PACK"])).load_bundle() == ""
    spec = from_plain(DeviceSpec, json.loads(os.environ["SPEC"]), "a device")
    gpu_call.gpu = lambda arch="", platform="cuda": gpu_call.Gpu(spec.name, spec.arch, spec.units)
    gpu_call.spec_of = lambda arch="", platform="cuda", measured=True: spec
    function, arguments = ROWS["attention/1"].make(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        jitted = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "profile": "off"})
        text = jitted.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    info = jax_cocktail.cache_info()
    print(json.dumps([text.count('custom_call @jax_cocktail_gpu'), info.compiled, info.surveys.made,
                      info.programs.made, info.programs.stored]))
"""


def test_nothing_is_compiled_with_the_bundle(tmp_path, monkeypatch):
    """On either kind of card, in a process without any compiler."""
    nvcc()
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bundle, "AUTO", ("attention/1",))
    digest = bundle.make(tmp_path / packed.BUNDLE, ("attention/1",), H200, small=True)
    packed.write(tmp_path / "pack.json", {"bundle": digest})
    (tmp_path / "empty").mkdir()
    for name in bundle.CARDS:
        places = {
            "JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "other"),
            "PATH": str(tmp_path / "empty"),
            "CXX": "",
        }
        places |= {"PACK": str(tmp_path), "SPEC": json.dumps(to_plain(replace(H200, name=name)))}
        places |= {"JAX_COCKTAIL_PLANS": "cached", "JAX_COCKTAIL_COMPILE": "now"}
        assert json.loads(python(LOWERS, **places).splitlines()[-1]) == [1, 0, 0, 0, 1]


def test_a_bundle_of_other_sources(there):
    """jax compiles then; the reason is said."""
    assert "No such file" in there.load_bundle()
    (there.folder / packed.BUNDLE).write_bytes(b"something")
    assert "is no bundle" in there.load_bundle()


# ---- what is compared --------------------------------------------------------------------------------------


def test_difference():
    """Errors are relative to the largest element, however small it is; NaNs and integers are exact."""
    result = packed.Result(packed.Type("float32", (4,)), 3, 1e-6)
    expected = [np.array([1e-6, 2e-7], np.float32)]
    array = np.array([1e-6, 9, 9, 2e-7], np.float32)  # only every third element is known
    assert packed.difference([array], (result,), expected) == 0
    assert packed.difference([np.zeros(4, np.float32)], (result,), expected) == pytest.approx(1)
    array[3] = np.nan
    assert packed.difference([array], (result,), expected) == np.inf
    whole = packed.Result(packed.Type("int32", (2,)), 1, 3.0)
    assert packed.difference([np.array([1, 2])], (whole,), [np.array([1, 3])]) == np.inf


def test_a_plan_that_cannot_be_built_is_left_out(monkeypatch, capsys):
    def build(emitted):
        raise BuildError("too many registers", "fewer threads")

    monkeypatch.setattr(pack, "build", build)
    assert pack._built(ROWS[ROW], pack._Planned("other", "132 units", None, 1.0)) is None
    assert "132 units, other: too many registers" in capsys.readouterr().out
    with pytest.raises(BuildError):
        pack._built(ROWS[ROW], pack._Planned("best", "132 units", None, 1.0))
