"""Bundles: a machine without a compiler runs what another one has compiled, and refuses what does not fit."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import cache
from jax_cocktail.errors import BundleError
from jax_cocktail.lowering.choice import bundle, decisions
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.memory import MEMORY, Carried
from jax_cocktail.utask.candidate import Candidate
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

OPTIONS = {"force": "cocktail", "plans": "cached", "units": 2, "profile": "off"}
X = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)
FUNCTIONS = """
    import json, os, sys, warnings
    import jax, jax.numpy as jnp, numpy as np
    from jax import lax
    import jax_cocktail

    def loop(x):
        return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * 1.5 - i, x)

    def search(x):
        return lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, x)

    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)
    forced = {"force": "cocktail", "plans": "cached", "profile": "off"}
    def say(**more):
        info = jax_cocktail.cache_info()
        print(json.dumps({"compiled": info.compiled, "stored": info.programs.stored, **more}))
"""
SAVES = """
    functions = [jax_cocktail.jit(f, options={**forced, "units": 2}) for f in (loop, search)]
    ours = [np.asarray(f(x)).tolist() for f in functions]
    jax_cocktail.explain(jax_cocktail.jit(loop))(x)  # times both, and stores the decision
    assert jax_cocktail.wait()
    ours = [np.asarray(f(x)).tolist() for f in functions]  # by the compiled programs
    say(ours=ours, digest=jax_cocktail.save_bundle(os.environ["BUNDLE"]))
"""


@pytest.fixture(autouse=True)
def empty_handed(monkeypatch):
    """What a test loads is gone for the next one, of whatever file."""
    monkeypatch.setattr(MEMORY, "carried", Carried())
    monkeypatch.setattr(MEMORY, "planned_for", set())


def child(program, folder, **environment):
    """What a process prints that has an empty cache folder."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    places = {"JAX_COCKTAIL_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    places |= {"JAX_COCKTAIL_PLANS": "cached", "JAX_COCKTAIL_COMPILE": "background", **environment}
    return json.loads(python(FUNCTIONS + program, **places).splitlines()[-1])


def without_compiler(program, folder, **environment):
    """The same, where no compiler can be found."""
    (folder / "empty").mkdir(parents=True, exist_ok=True)
    program = (
        """
    from jax_cocktail.build import host
    host.zig = lambda: None  # the package may be installed
    try:
        host.host_toolchain()
        raise SystemExit("there is a compiler")
    except jax_cocktail.BuildError:
        pass
    """
        + program
    )
    return child(program, folder, PATH=str(folder / "empty"), CXX="", **environment)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A bundle that another process has made, and what it said."""
    folder = tmp_path_factory.mktemp("maker")
    path = folder / "model.bundle"
    said = child(SAVES, folder, BUNDLE=str(path))
    assert said["compiled"] >= 2
    return path, said


LOADS = """
    jax_cocktail.load_bundle(os.environ["BUNDLE"], trust=os.environ["DIGEST"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        functions = [jax_cocktail.jit(f, options={**forced, **UNITS}) for f in (loop, search)]
        ours = ["jax_cocktail_cpu" in f.lower(x).as_text() for f in functions]
        report = jax_cocktail.explain(functions[0])(x)
        say(ours=ours, results=[np.asarray(f(x)).tolist() for f in functions],
            choice=report.choice, captured=len(report.captured),
            why=jax_cocktail.explain(jax_cocktail.jit(loop))(x).why,
            folder=sorted(os.listdir(os.environ["JAX_COCKTAIL_CACHE_DIR"])))
"""


@pytest.mark.parametrize("units", [{"units": 2}, {}])
def test_a_machine_without_a_compiler_runs_it(saved, tmp_path, units):
    """With as many units as the maker planned for, and on a machine with another number of cores."""
    path, made = saved
    program = LOADS.replace("UNITS", repr(units))
    said = without_compiler(program, tmp_path, BUNDLE=str(path), DIGEST=made["digest"])
    assert said["ours"] == [True, True] and said["results"] == made["ours"]
    assert said["compiled"] == 0 and said["stored"] >= 2
    assert said["choice"] == "cocktail" and said["captured"] == 1
    if not units:
        assert "measured before" in said["why"]
    assert {"entries", "calls", "decisions"}.isdisjoint(said["folder"]), "nothing of it is written there"


MAKES_HANDLERS = """
    from jax_cocktail.lowering.edge import gpu_call
    gpu_call.register("cuda")
    jax_cocktail.jit(loop, options=forced)(x)
    say(digest=jax_cocktail.save_bundle(os.environ["BUNDLE"]))
"""


def test_it_has_the_handlers_for_gpus(tmp_path):
    """Without a compiler and without them, stock XLA would run the programs."""
    path = tmp_path / "gpu.bundle"
    made = child(MAKES_HANDLERS, tmp_path / "maker", BUNDLE=str(path), JAX_COCKTAIL_COMPILE="now")
    program = """
    from jax_cocktail.lowering.edge import gpu_call
    jax_cocktail.load_bundle(os.environ["BUNDLE"], trust=os.environ["DIGEST"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        gpu_call.register("cuda")
    say(handlers=type(gpu_call._handlers["cuda"]).__name__, platforms=list(gpu_call.handler_binaries()))
    """
    said = without_compiler(program, tmp_path / "user", BUNDLE=str(path), DIGEST=made["digest"])
    assert (said["handlers"], said["platforms"]) == ("CDLL", ["cuda"])


@pytest.mark.parametrize("used", ["", "jax_cocktail.jit"])
def test_handlers_are_taken_before_those_that_the_import_registers(tmp_path, used):
    """Where jax expects a GPU, the first use of the API registers handlers. It finds none without a compiler,
    and a bundle that comes later brings them."""
    path = tmp_path / "gpu.bundle"
    made = child(MAKES_HANDLERS, tmp_path / "maker", BUNDLE=str(path), JAX_COCKTAIL_COMPILE="now")
    program = f"""
    import os, json
    from jax_cocktail.build import host
    host.zig = lambda: None  # the package may be installed
    import jax_cocktail
    {used}
    jax_cocktail.load_bundle(os.environ["BUNDLE"], trust=os.environ["DIGEST"])
    jax_cocktail.jit
    from jax_cocktail.lowering.edge import gpu_call
    gpu_call.register("cuda")
    print(json.dumps(type(gpu_call._handlers["cuda"]).__name__))
    """
    (tmp_path / "empty").mkdir()
    places = {"JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path / "empty"), "CXX": ""}
    said = python(program, BUNDLE=str(path), DIGEST=made["digest"], JAX_PLATFORMS="cuda,cpu", **places)
    assert json.loads(said.splitlines()[-1]) == "CDLL"


def test_what_is_not_in_it_runs_on_stock(saved, tmp_path):
    path, made = saved
    program = """
    jax_cocktail.load_bundle(os.environ["BUNDLE"], trust=os.environ["DIGEST"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other = jax_cocktail.jit(lambda x: lax.fori_loop(0, 9, lambda i, a: a * x, x), options=forced)
        say(result=float(other(2.0)), told=[str(each.message) for each in told])
    """
    named = {"BUNDLE": str(path), "DIGEST": made["digest"], "JAX_COCKTAIL_COMPILE": "now"}
    said = without_compiler(program, tmp_path, **named)
    assert said["result"] == 1024 and "no C++ compiler was found" in said["told"][0]


def test_it_can_be_saved_again_without_a_compiler(saved, tmp_path):
    path, made = saved
    program = """
    jax_cocktail.load_bundle(os.environ["BUNDLE"], trust=os.environ["DIGEST"])
    np.asarray(jax_cocktail.jit(loop, options={**forced, "units": 2})(x))
    say(digest=jax_cocktail.save_bundle(os.environ["COPY"]))
    """
    copy = tmp_path / "copy.bundle"
    first = without_compiler(program, tmp_path, BUNDLE=str(path), DIGEST=made["digest"], COPY=str(copy))
    program = LOADS.replace("UNITS", '{"units": 2}')
    said = without_compiler(program, tmp_path / "other", BUNDLE=str(copy), DIGEST=first["digest"])
    assert said["results"] == made["ours"] and said["compiled"] == 0


# ---- in this process ---------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache folder of its own, and a process that carries nothing."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.renew()
    return tmp_path


def function(x):
    return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * 1.5 - i, x)


@pytest.fixture
def made(fresh):
    """A bundle that this process has made."""
    jax_cocktail.jit(function, options=OPTIONS)(X)
    path = fresh / "model.bundle"
    return path, jax_cocktail.save_bundle(path)


def edited(path, change):
    """Changes the contents of a bundle, and returns its new digest."""
    head, header, rest = path.read_bytes().split(b"\n", 2)
    found = json.loads(header)
    rest = new if isinstance(new := change(found, rest), bytes) else rest
    body = json.dumps(found).encode() + b"\n" + rest
    digest = hashlib.sha256(body).hexdigest()
    path.write_bytes(b"jax_cocktail bundle 3 " + digest.encode() + b"\n" + body)
    return digest


def refused(path, trust, words):
    """The bundle is refused, nothing of it counts, and the program runs."""
    with pytest.raises(BundleError, match=words):
        jax_cocktail.load_bundle(path, trust=trust)
    assert not MEMORY.carried.records and not MEMORY.carried.programs and not MEMORY.planned_for
    np.testing.assert_allclose(
        jax_cocktail.jit(function, options=OPTIONS)(X), jax.jit(function)(X), rtol=2e-6
    )


def test_what_this_user_has_made_is_trusted(made):
    jax_cocktail.load_bundle(made[0])
    assert MEMORY.carried.programs


def test_nothing_else_is_trusted_by_itself(made, fresh, monkeypatch):
    path, digest = made
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(fresh / "other"))
    refused(path, False, f'not trusted.*trust="{digest}"')
    refused(path, "0" * 64, f"its digest is {digest}")
    refused(path, "", "is not the trusted bundle")
    jax_cocktail.load_bundle(path, trust=digest)
    assert MEMORY.carried.programs


@pytest.mark.parametrize("where", ["file", "folder", "owner"])
def test_what_others_can_write_needs_its_digest(made, where):
    path, digest = made
    if where == "owner":
        if os.getuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 54321, 54321)
    else:
        (path if where == "file" else path.parent).chmod(0o777)
    for odd in (digest.encode(), b"0", 1, None):
        with pytest.raises(TypeError, match="trust is True, False or a digest"):
            jax_cocktail.load_bundle(path, trust=odd)
    with pytest.raises(BundleError, match="other user.*pass trust= the digest"):
        jax_cocktail.load_bundle(path, trust=True)
    jax_cocktail.load_bundle(path, trust=digest)


def test_no_file(fresh):
    with pytest.raises(OSError, match="nowhere"):
        jax_cocktail.load_bundle(fresh / "nowhere", trust=True)
    (fresh / "empty").write_bytes(b"")
    refused(fresh / "empty", True, "is no bundle")


def test_a_truncated_bundle(made):
    path, digest = made
    data = path.read_bytes()
    for size in (len(data) - 1, len(data) // 2, 100):
        path.write_bytes(data[:size])
        refused(path, digest, "is damaged")
    path.write_bytes(data[:40])
    refused(path, digest, "is no bundle")


def test_a_tampered_bundle(made):
    path, digest = made
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    refused(path, digest, "is damaged")
    refused(path, True, "is damaged")


def test_a_bundle_in_the_place_of_another(made):
    path, digest = made
    edited(path, lambda header, rest: header["records"].pop())
    refused(path, digest, "is not the trusted bundle")


CHANGES = {
    "another version of ours": (
        lambda h, r: operator.setitem(h["versions"], 2, "0.0.1"),
        "jax_cocktail 0.0.1",
    ),
    "other sources": (lambda h, r: operator.setitem(h["versions"], 3, "f" * 64), "its sources ffff"),
    "another version of jax": (lambda h, r: operator.setitem(h["versions"], 0, "0.1"), "jax 0.1, here"),
    "another architecture": (lambda h, r: operator.setitem(h["processor"], 0, "risc"), "processor: risc"),
    "fewer versions": (lambda h, r: h["versions"].pop(), "not what this version writes"),
    "no records": (lambda h, r: h.pop("records"), "not what this version writes"),
    "other sizes": (lambda h, r: h.update(runtime=h["runtime"] - 1), "not what this version writes"),
    "a negative size": (lambda h, r: h.update(runtime=-1), "not what this version writes"),
    "records of calls": (lambda h, r: h["records"].append(["calls", "0" * 64, {}]), "not what this version"),
    "another feature": (lambda h, r: r.replace(b"AVX,", b"AVQ,"), "another processor.*AVQ"),
    "no program": (lambda h, r: r[: h["runtime"]] + bytes(len(r) - h["runtime"]), "cannot be loaded"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_does_not_fit_is_refused(made, what):
    """Somebody trusts it, and it has the digest that it names."""
    path, _ = made
    change, words = CHANGES[what]
    before = path.read_bytes()
    digest = edited(path, change)
    if path.read_bytes() == before:
        pytest.skip("this compiler names no such feature")
    refused(path, digest, words)


def test_another_format(made):
    path, digest = made
    path.write_bytes(path.read_bytes().replace(b"bundle 3 ", b"bundle 4 ", 1))
    refused(path, digest, "has format 4, and this version reads 3")


def test_swapped_programs_do_not_run(made, monkeypatch):
    """A record names the digest of its program."""
    path, _ = made
    jax_cocktail.jit(lambda x: function(x) + 1, options=OPTIONS)(X[:2])
    jax_cocktail.save_bundle(path)

    def swap(header, rest):
        (one, _), (two, _) = header["programs"]
        header["programs"][0][0], header["programs"][1][0] = two, one

    digest = edited(path, swap)
    jax_cocktail.load_bundle(path, trust=digest)
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(path.parent / "other"))
    jax_cocktail.jit(lambda x: function(x), options=OPTIONS)(X)
    info = jax_cocktail.cache_info().programs
    assert info.stored == 0 and info.made


def test_nothing_to_save(fresh):
    with pytest.raises(BundleError, match="nothing to save.*call the functions first"):
        jax_cocktail.save_bundle(fresh / "model.bundle")
    jax_cocktail.jit(function, options=OPTIONS)(X)
    jax_cocktail.clear_cache()
    with pytest.raises(BundleError, match="nothing to save"):
        jax_cocktail.save_bundle(fresh / "model.bundle")
    assert not (fresh / "model.bundle").exists()


def test_what_the_cache_has_lost_cannot_be_saved(fresh):
    jax_cocktail.jit(function, options=OPTIONS)(X)
    cache.clear_cache()
    with pytest.raises(BundleError, match="no longer has the program.*cache_limit_bytes"):
        jax_cocktail.save_bundle(fresh / "model.bundle")


def test_a_place_that_cannot_be_written(made):
    path, _ = made
    with pytest.raises(OSError, match="No such file"):
        jax_cocktail.save_bundle(path.parent / "nowhere" / "model.bundle")
    assert [each.name for each in path.parent.iterdir() if "bundle" in each.name] == ["model.bundle"]


def test_a_provisional_decision_is_final_in_a_bundle(fresh):
    """The machine that loads it may be unable to measure it again."""
    decision = decisions.Decision("stock", decisions.Plan(Candidate(2)), others=0.9)
    record = json.loads(json.dumps(decisions.STORE.record(decision)))
    assert decisions.STORE.parsed(bundle._final(record)) == replace(decision, others=0.0)


def test_the_runtime_is_in_it(made):
    """A library that is built with the flags of the oldest processor."""
    path, _ = made
    header, rest = path.read_bytes().split(b"\n", 2)[1:]
    runtime = rest[: json.loads(header)["runtime"]]
    assert runtime == custom_call.runtime_binary() and b"ck_cpu_execute" in runtime
    assert bundle.FOLDER == "bundles" and Path(path).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("what", ["missing", "a file", "world-writable", "read-only", "damaged"])
def test_the_cache_folder_is_unusable(made, monkeypatch, what):
    """A bundle does not need it."""
    path, digest = made
    root = cache.cache_dir()
    if what == "a file":
        root = path.parent / "file"
        root.write_text("")
    elif what == "world-writable":
        root.chmod(0o777)
    elif what == "damaged":
        for each in [*root.glob("plans/*"), *root.glob("entries/*/*")]:
            each.write_bytes(each.read_bytes()[:50])
    else:
        root = Path("/proc/nowhere") if what == "read-only" else path.parent / "nowhere"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root))
    jax_cocktail.load_bundle(path, trust=digest)
    MEMORY.plans.clear()
    MEMORY.lookups.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        found = jax_cocktail.jit(lambda x: function(x), options=OPTIONS)(X)  # traced anew
    np.testing.assert_allclose(found, jax.jit(function)(X), atol=1e-5)
    assert jax_cocktail.cache_info().programs.stored == 1
