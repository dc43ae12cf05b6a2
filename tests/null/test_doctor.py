"""The facts of machines and the checks of `doctor`, where things are missing or broken."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from jax_cocktail import cache
from jax_cocktail_tools.commands import checks, doctor, machine, probing
from jax_cocktail_tools.commands.checks import OK, PROBLEM, WARNING, Check
from jax_cocktail_tools.commands.probing import Probe
from tests.process import python

ROOT = Path(__file__).parents[2]


def write(root: Path, **texts: str) -> Path:
    """Files with these texts; two underscores separate folders."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def states(found: list[Check]) -> dict[str, str]:
    return {check.name: check.state for check in found}


def test_jax_is_not_needed() -> None:
    names = ("checks", "compare", "doctor", "page", "result")
    python(
        "import sys; sys.modules['jax'] = None\n"
        + "".join(f"import jax_cocktail_tools.commands.{n}\n" for n in names)
    )


# ---- the machine -------------------------------------------------------------------------------------------


def test_facts_of_a_machine_with_limits(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        proc__cpuinfo="processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n",
        proc__loadavg="1.50 1.0 0.5 1/99 1234\n",
        proc__meminfo="MemTotal: 8388608 kB\nMemAvailable: 1024 kB\nbroken\n",
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__cpu_DOT_max="150000 100000\n",
        sys__fs__cgroup__a__b__cpu_DOT_max="max 100000\n",
        sys__fs__cgroup__a__b__memory_DOT_max="1073741824\n",
        sys__fs__cgroup__memory_DOT_max="max\n",
    )
    found = machine.this_machine(root)
    assert (found.processor, found.load, found.quota) == ("Some CPU @ 2 GHz", 1.5, 1.5)
    assert (found.memory_bytes, found.limit_bytes, found.available_bytes) == (8 << 30, 1 << 30, 1 << 20)


def test_facts_of_older_control_groups(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        proc__self__cgroup="4:cpu,cpuacct:/x\n3:memory:/x\n",
        sys__fs__cgroup__cpu__x__cpu_DOT_cfs_quota_us="50000\n",
        sys__fs__cgroup__cpu__x__cpu_DOT_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__x__memory_DOT_limit_in_bytes="9223372036854771712\n",
    )
    found = machine.this_machine(root)
    assert found.quota == 0.5 and found.limit_bytes is None, "this number means no limit"


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    found = machine.this_machine(tmp_path)
    assert found.processor and found.cores >= 1
    assert found.quota is found.load is found.memory_bytes is found.limit_bytes is None


def test_limits_of_control_groups_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine.MachineFacts("CPU", 8, 16, 1.5, 0.0, 64 << 30, 512 << 20, 32 << 30, "Linux")
    monkeypatch.setattr(checks, "this_machine", lambda: made)
    cores, memory, _ = checks.machine()
    assert cores.state == memory.state == WARNING
    assert cores.remedy.startswith("JAX_COCKTAIL_UNITS=1") and "limit of the control group" in memory.text


# ---- versions, variables, folder ---------------------------------------------------------------------------


def test_supported_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, first_unknown = (".".join(map(str, v)) for v in (checks.OLDEST_JAX, checks.FIRST_UNKNOWN_JAX))
    assert f"jax>={oldest},<{first_unknown}" in project["dependencies"]
    assert project["requires-python"] == ">=" + ".".join(map(str, checks.OLDEST_PYTHON))


@pytest.mark.parametrize(
    "version, state", [("0.10.2", OK), ("0.12.9", OK), ("0.10.1", PROBLEM), ("0.13.0", WARNING)]
)
def test_versions_of_jax(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr(checks.importlib.metadata, "version", lambda name: version)
    assert states([*checks.jax_versions()]) == {"jax": state, "jaxlib": state}


def test_jax_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise checks.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checks.importlib.metadata, "version", missing)
    found = [*checks.jax_versions()]
    assert states(found) == {"jax": PROBLEM, "jaxlib": PROBLEM} and "pip install 'jax>=" in found[0].remedy


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("JAX_COCKTAIL_")]:
        monkeypatch.delenv(name)
    assert states([*checks.variables()])["variables"] == OK
    for name, value in (("FORCE", "stock"), ("UNITS", "-1"), ("FORSE", "stock"), ("ZZZ", "1")):
        monkeypatch.setenv(f"JAX_COCKTAIL_{name}", value)
    monkeypatch.setenv("JAX_DISABLE_JIT", "1")
    found = {check.name.removeprefix("JAX_COCKTAIL_"): check for check in checks.variables()}
    assert found["FORCE"].state == OK and found["UNITS"].state == PROBLEM
    assert found["FORSE"].remedy == "JAX_COCKTAIL_FORCE, or unset it" and found["ZZZ"].remedy == "unset it"
    assert found["JAX_DISABLE_JIT"].state == WARNING


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    assert states([*checks.cache_folder()]) == {"cache folder": OK, "its size": OK}
    key = "ab" * 32
    root = cache.prepare_root()
    with cache.build_folder(root) as folder:
        (folder / cache.BINARY).write_bytes(b"a program" * 500)
        cache.seal(folder, key, {"seconds": 1.0})
        cache.publish(folder, cache.entry_folder(root, key))
    (cache.entry_folder(root, key) / cache.BINARY).write_bytes(b"another")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_LIMIT_BYTES", "10")
    found = {check.name: check for check in checks.cache_folder()}
    assert found["its size"].state == WARNING and "JAX_COCKTAIL_CACHE_LIMIT_BYTES" in found["its size"].remedy
    assert found["its content"].state == WARNING and "cache verify --remove" in found["its content"].remedy
    root.chmod(0o777)
    (unsafe,) = checks.cache_folder()
    assert unsafe.state == PROBLEM and "writable by other users" in unsafe.text
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "file" / "x"))
    assert states([*checks.cache_folder()]) == {"cache folder": PROBLEM}


def test_compilers_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    (found,) = checks.host_compiler()
    assert found.state == PROBLEM and found.remedy == "correct or unset CXX"
    for finder in (checks.cuda, checks.rocm):
        monkeypatch.setattr(finder, "installed", lambda: iter(()))
    assert [check.text for check in checks.device_compilers()] == ["none; only a GPU needs one"] * 2


# ---- what jax says, and the whole --------------------------------------------------------------------------


def test_a_good_answer() -> None:
    facts = {"backend": "cpu", "devices": ["cpu: cpu"] * 2, "others": 0.0, "difference": 1e-7, "seconds": 1.0}
    found = [check for _, inspect in checks.WITH_JAX for check in inspect(Probe(facts))]
    assert {check.state for check in found} == {OK} and found[0].text == "2 x cpu: cpu"


def test_bad_answers() -> None:
    found = [check for _, inspect in checks.WITH_JAX for check in inspect(Probe({}, "it was killed"))]
    assert [check.state for check in found] == [PROBLEM, PROBLEM]
    (wrong,) = checks.end_to_end(Probe({"difference": 0.5, "seconds": 1.0}))
    (nan,) = checks.end_to_end(Probe({"difference": float("nan"), "seconds": 1.0}))
    (busy,) = checks.load(Probe({"others": 0.5}))
    assert (wrong.state, nan.state, busy.state) == (PROBLEM, PROBLEM, WARNING)


def test_a_gpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.cuda, "installed", lambda: iter(()))
    found = Probe({"backend": "gpu", "devices": ["gpu: A Card"], "version": "cuda 13000"})
    assert states([*checks.devices(found)]) == {"devices of jax": OK, "compiler for the GPU": PROBLEM}


def test_a_card_that_jax_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(checks, "CARDS", {"NVIDIA": (tmp_path,), "AMD": (tmp_path / "none",)})
    _, card = checks.devices(Probe({"backend": "cpu", "devices": ["cpu: cpu"]}))
    assert card.state == WARNING and card.remedy == "pip install 'jax[cuda13]'"


def test_a_failing_check_does_not_end_the_others() -> None:
    def broken():
        yield Check("first", OK, "")
        raise RuntimeError("no such thing")

    first, second = doctor._safe("broken", broken)
    assert first.state == OK and second.state == PROBLEM and "RuntimeError: no such thing" in second.text
    assert doctor.check_text(second).splitlines()[1].endswith("try: report this")


def test_failures_of_the_process_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, seconds, said in (
        ("import os; print('{\"others\": 0.5}', flush=True); os.kill(os.getpid(), 9)", 60, "signal 9"),
        ("raise ValueError('what is wrong')", 60, "ValueError: what is wrong"),
        ("import time; time.sleep(60)", 0.5, "did not end"),
    ):
        monkeypatch.setattr(probing, "COMMAND", ("-c", program))
        found = probing.probe(seconds)
        assert re.search(said, found.failure), found
        assert ("others" in found.facts) == (said == "signal 9")
