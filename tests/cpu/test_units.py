"""Units of a call: barriers, the worker pool, and what happens to it at fork, exit and error."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_cocktail.build import host as build

pytestmark = pytest.mark.one_jax  # about the runtime alone

PAGE = 4096
# operands[0]: what to do and a number; results[0]: int64[units, 4].
PROGRAM = """#include "cocktail_units.h"
extern "C" int sched_getcpu();
static int rounds_of_exchange(i64 rounds, i64* cells, CkUnit* unit) {
  int wrong = 0;
  for (i64 round = 0; round < rounds; ++round) {
    cells[4 * unit->index] = round;
    ck_arrive(unit);
    if (ck_wait(unit)) return wrong;
    for (i64 i = 0; i < unit->count; ++i) wrong |= cells[4 * i] != round;
    ck_arrive(unit);
    if (ck_wait(unit)) return wrong;
  }
  return wrong;
}
CK_EXPORT int ck_program(const void* const* operands, void* const* results, u8*, CkUnit* unit) {
  const i64* order = (const i64*)operands[0];
  i64* cells = (i64*)results[0];
  i64* mine = cells + 4 * unit->index;
  if (order[0] == 0) return rounds_of_exchange(order[1], cells, unit);
  if (order[0] == 1) return unit->index == order[1] ? 40 + int(unit->index) : 0;
  mine[0] = order[0] == 3 ? sched_getcpu() : unit->index;
  mine[1] = unit->count;
  mine[2] = (i64)unit->own;
  mine[3] = FLOAT_MODE;
  return 0;
}
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 256;
"""
FLOAT_MODE = """
#if defined(__x86_64__)
#define FLOAT_MODE __builtin_ia32_stmxcsr() & ~0x3fu
CK_EXPORT u32 change_float_mode(u32 flip) {
  u32 mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mode ^ flip);
  return mode & ~0x3fu;
}
#else
#define FLOAT_MODE 0
#endif
"""
EXCHANGE, FAIL, DESCRIBE, CORE = range(4)


class Units:
    """The runtime and a program, without jax in between; `run` in any thread."""

    def __init__(self, runtime: str, program: str) -> None:
        self.runtime, self.program = ctypes.CDLL(runtime), ctypes.CDLL(program)
        self.paths = (runtime, program)
        self.runtime.ck_cpu_units.restype = ctypes.c_int64
        self.entry = ctypes.cast(self.program.ck_program, ctypes.c_void_p)

    def run(
        self, what: int, number: int, units: int, most: int = 256, own: int = 5000
    ) -> tuple[int, np.ndarray]:
        order = np.array([what, number])
        cells = np.full((256, 4), -1)
        operands = (ctypes.c_void_p * 1)(order.ctypes.data)
        results = (ctypes.c_void_p * 1)(cells.ctypes.data)
        numbers = (ctypes.c_int64(most), ctypes.c_int64(own), None)
        code = self.runtime.ck_cpu_run(self.entry, *numbers, operands, results, None, ctypes.c_int64(units))
        return code, cells

    def set_units(self, units: int) -> None:
        self.runtime.ck_cpu_set_units(ctypes.c_int64(units))


@pytest.fixture(scope="module")
def units() -> Units:
    toolchain = build.host_toolchain()
    text = PROGRAM.replace('_units.h"\n', '_units.h"' + FLOAT_MODE, 1)
    runtime = build.build_runtime(jax.ffi.include_dir(), toolchain)
    return Units(runtime, build.build_program(text, toolchain).path)


@pytest.mark.parametrize(("count", "rounds"), [(1, 1000), (2, 5000), (3, 500), (8, 200), (20, 50)])
def test_barriers(units: Units, count: int, rounds: int) -> None:
    """More units than cores as well; 20 meet in the tree."""
    for _ in range(4):
        code, cells = units.run(EXCHANGE, rounds, count)
        assert code == 0
        assert np.all(cells[:count, 0] == rounds - 1) and np.all(cells[count:, 0] == -1)


def test_256_units(units: Units) -> None:
    code, cells = units.run(EXCHANGE, 3, 1000)
    assert code == 0 and np.all(cells[:, 0] == 2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_unit_runs_once_with_memory_of_its_own(units: Units, count: int) -> None:
    code, cells = units.run(DESCRIBE, 0, count)
    assert code == 0
    np.testing.assert_array_equal(cells[:count, 0], np.arange(count))
    assert set(cells[:count, 1]) == {count}
    own = cells[:count, 2]
    assert np.all(own % PAGE == 0) and np.all(np.diff(np.sort(own)) >= 2 * PAGE)


def test_no_more_units_than_have_work(units: Units) -> None:
    _, cells = units.run(DESCRIBE, 0, 8, most=3, own=0)
    assert set(cells[:3, 1]) == {3} and np.all(cells[3:] == -1) and not np.any(cells[:3, 2])


def test_number_of_units_is_chosen(units: Units) -> None:
    automatic = units.runtime.ck_cpu_units()
    assert 1 <= automatic <= len(os.sched_getaffinity(0))
    assert 1 <= units.run(DESCRIBE, 0, 0)[1][0, 1] <= automatic  # fewer if others take a core
    more = len(os.sched_getaffinity(0)) + 1  # never fewer: the user wants them although there are no cores
    try:
        for count in (1, more):
            units.set_units(count)
            assert units.runtime.ck_cpu_units() == count
            assert units.run(DESCRIBE, 0, 0)[1][0, 1] == count
    finally:
        units.set_units(0)
    assert units.runtime.ck_cpu_units() == automatic


@pytest.mark.parametrize("failing", range(3))
def test_the_code_of_a_failing_unit_arrives(units: Units, failing: int) -> None:
    assert units.run(FAIL, failing, 3)[0] == 40 + failing
    assert units.run(FAIL, 7, 3)[0] == 0


def test_concurrent_calls_share_the_cores(units: Units) -> None:
    """Nobody waits for another call's workers: with few units in all, somebody runs with fewer."""
    more = len(os.sched_getaffinity(0)) + 1
    units.set_units(more)

    def work(seed: int) -> bool:
        return all(units.run(EXCHANGE, 5 + seed % 3, seed % 2 * 3)[0] == 0 for _ in range(40))

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(16)))
        assert units.run(DESCRIBE, 0, 0)[1][0, 1] == more
    finally:
        units.set_units(0)


@pytest.mark.parametrize("flip", [0x8040, 0x2000])
def test_workers_have_the_float_mode_of_the_caller(units: Units, flip: int) -> None:
    """Denormals flushed, and another rounding."""
    change = getattr(units.program, "change_float_mode", None)
    if change is None:
        pytest.skip("this processor has another control register")
    before = change(flip)
    try:
        _, changed = units.run(DESCRIBE, 0, 3)
    finally:
        change(flip)
    _, restored = units.run(DESCRIBE, 0, 3)
    assert set(changed[:3, 3]) == {before ^ flip} and set(restored[:3, 3]) == {before}


def _worker_status() -> list[dict[str, str]]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
            continue
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found += [status] if status["Name"] == "cocktail_unit" else []
    return found


def test_workers_take_no_signals_and_sleep_when_idle(units: Units) -> None:
    units.run(EXCHANGE, 10, 3)
    time.sleep(0.02)
    workers = _worker_status()
    assert len(workers) >= 2
    blocked = [int(status["SigBlk"], 16) for status in workers]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPROF, signal.SIGUSR1):
        assert all(mask >> (number - 1) & 1 for mask in blocked)
    assert not any(mask >> (signal.SIGSEGV - 1) & 1 for mask in blocked)  # fault handlers still work
    start = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - start < 0.05


def _switches(kind: str) -> dict[str, int]:
    return {status["Pid"]: int(status[f"{kind}_ctxt_switches"]) for status in _worker_status()}


def _sleeps(units: Units, apart: float) -> tuple[int, int]:
    """How often a worker slept, and lost its core to another process, in 150 calls that begin so many seconds
    after the end of the last."""
    kinds = "voluntary", "nonvoluntary"
    before = [_switches(kind) for kind in kinds]
    for _ in range(150):
        end = time.perf_counter() + apart
        while time.perf_counter() < end:
            pass
        units.run(EXCHANGE, 10, 2)
    found = [
        max(count - old.get(worker, 0) for worker, count in _switches(kind).items())
        for kind, old in zip(kinds, before, strict=True)
    ]
    return found[0], found[1]


def test_workers_watch_for_calls_that_come_again_and_again(units: Units) -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one core only")
    units.run(EXCHANGE, 10, 2)
    # Other processes may take the core: then a call comes late, or the worker does sleep, for some calls.
    assert any(_sleeps(units, 0.004)[0] > 100 for _ in range(5))
    undisturbed, before = [], True  # a worker that has lost its core sleeps in the 100 calls that follow
    for _ in range(20):
        sleeps, lost = _sleeps(units, 0.0003)
        if sleeps < 60:
            return
        undisturbed += [] if lost or before else [sleeps]
        before = lost > 0
    assert len(undisturbed) < 3, f"sleeps in 150 calls: {undisturbed}"
    pytest.skip("other processes take the core all the time")


def test_workers_are_not_bound_to_the_core_of_a_thread(units: Units) -> None:
    cores = os.sched_getaffinity(0)

    def bound() -> int:
        os.sched_setaffinity(0, {min(cores)})
        return units.run(EXCHANGE, 10, 12)[0]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bound).result() == 0
    units.run(EXCHANGE, 10, 12)
    time.sleep(0.02)
    assert all(os.sched_getaffinity(int(status["Pid"])) == cores for status in _worker_status())


def test_a_woken_worker_avoids_the_core_of_the_caller(units: Units) -> None:
    """Not always: the kernel may move it back when other processes are busy."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")

    def apart() -> int:
        os.sched_setaffinity(0, {max(cores)})
        count = 0
        for _ in range(20):
            time.sleep(0.002)
            used = units.run(CORE, 0, 2)[1][:2, 0]
            assert used[0] == max(cores)
            count += used[1] != used[0]
        return count

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(apart).result() > 10


# ---- processes ---------------------------------------------------------------------------------------------

HEAD = """
import ctypes, os, sys, time
runtime, program = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
entry = ctypes.cast(program.ck_program, ctypes.c_void_p)
def run(units, rounds=20):
    order, cells = (ctypes.c_int64 * 2)(0, rounds), (ctypes.c_int64 * 1024)()
    operands = (ctypes.c_void_p * 1)(ctypes.addressof(order))
    results = (ctypes.c_void_p * 1)(ctypes.addressof(cells))
    number = ctypes.c_int64
    return runtime.ck_cpu_run(entry, number(256), number(64), None, operands, results, None, number(units))
def threads():
    return len(os.listdir("/proc/self/task"))
"""


def _process(units: Units, body: str) -> str:
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body), *units.paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fork_after_use(units: Units) -> None:
    """Also in the middle of other threads' calls, and twice over."""
    body = """
    import threading
    stop = False
    def hammer():
        while not stop:
            assert run(2, 5) == 0
    others = [threading.Thread(target=hammer) for _ in range(2)]
    assert run(3) == 0
    for other in others:
        other.start()
    def check(depth):
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    assert threads() == 1
                    assert run(3) == 0 and run(0) == 0
                    assert threads() >= 3
                    if depth:
                        check(depth - 1)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
    check(1)
    stop = True
    for other in others:
        other.join()
    assert run(3) == 0
    print("fine")
    """
    assert _process(units, body) == "fine\n"


@pytest.mark.parametrize("pause", [0, 0.05])
def test_exit_while_workers_idle_or_watch(units: Units, pause: float) -> None:
    start = time.perf_counter()
    assert _process(units, f"assert run(4) == 0\ntime.sleep({pause})\nprint('end')") == "end\n"
    assert time.perf_counter() - start < 10


def test_exit_in_the_middle_of_a_call(units: Units) -> None:
    body = """
    import threading
    threading.Thread(target=run, args=(2, 1 << 40), daemon=True).start()
    time.sleep(0.1)
    print("end")
    """
    assert _process(units, body) == "end\n"


def test_closing_the_library_leaves_workers_unharmed(units: Units) -> None:
    body = """
    assert run(3) == 0
    close = ctypes.CDLL(None).dlclose
    close(ctypes.c_void_p(runtime._handle))
    time.sleep(0.05)
    runtime = ctypes.CDLL(sys.argv[1])
    assert run(3) == 0 and threads() == 3
    print("fine")
    """
    assert _process(units, body) == "fine\n"


def test_without_threads_the_caller_does_all(units: Units) -> None:
    """The system refuses new threads: a call has as many units as it could get."""
    body = """
    import resource
    try:
        if os.getuid() == 0:  # whom this limit does not bind
            os.setuid(54321)
    except OSError:  # a sandbox that knows one user only
        print("refused")
        sys.exit()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    assert run(4) == 0 and threads() == 1
    print("fine")
    """
    said = _process(units, body)
    if said == "refused\n":
        pytest.skip("this process cannot become another user")
    assert said == "fine\n"


# ---- the driver --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    compiler = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("the sanitizers need g++ or clang++")
    folder = tmp_path_factory.mktemp("driver")

    def built(flags: tuple[str, ...]) -> Path:
        target = folder / ("driver" + "".join(flags))
        source = Path(__file__).with_name("units_driver.cc")
        command = [compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags]
        command += [f"-I{folder}" for folder in build.program_folders("cpu_src")]
        command += [str(source), "-o", str(target), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and flags and "san" in done.stderr and "cannot find" in done.stderr:
            pytest.skip(f"the library of {flags[0]} is not installed")
        assert done.returncode == 0, done.stderr
        return target

    return built


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers(driver: Callable[[tuple[str, ...]], Path], sanitizer: str) -> None:
    path = driver((f"-fsanitize={sanitizer}",))
    done = subprocess.run([path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Sanitizer" not in done.stderr, done.stderr[-4000:]


def test_quota_of_control_groups(driver: Callable[[tuple[str, ...]], Path], tmp_path: Path) -> None:
    path = driver(())

    def quota(membership: str, files: dict[str, str]) -> int:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in {"membership": membership, **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return int(subprocess.check_output([path, root, root / "membership"]))

    assert quota("0::/\n", {}) == 0
    assert quota("0::/\n", {"cpu.max": "max 100000\n"}) == 0
    assert quota("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n", "a/cpu.max": "max 100000\n"}) == 3
    assert quota("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}) == 1
    assert quota("0::/outer/name\n", {"cpu.max": "200000 100000\n"}) == 2
    old = {"cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"}
    assert quota("5:cpuset:/x\n4:cpu,cpuacct:/x\n", old) == 2
    old["cpu,cpuacct/x/cpu.cfs_quota_us"] = "-1\n"
    assert quota("4:cpu,cpuacct:/x\n0::/\n", old) == 0
