"""Random programs for as long as you like.

    python -m tests.fuzz passes --programs 100000 --jobs 2 --log ../fuzz.log
                                                        interpreters before and after the passes; no compiler
    python -m tests.fuzz built --programs 2000 --jobs 2 emitted, compiled, run, and compared with stock XLA
    python -m tests.fuzz sanitized                      emitted and run under ASan and UBSan, and under TSan
    python -m tests.fuzz recursion --programs 12 --seed 991

The programs of `passes`, `built` and `sanitized` follow from a seed each (tests/generator). Values that are
computed without rounding must agree in every bit, NaN with NaN; others within a tolerance. A failure is
printed with the line that repeats it, after statements that it does not need have been left out. With --log a
second run goes on where the first one stopped. A program that kills its process, or takes longer than
--seconds, is a failure. The number of programs and their rate are told every minute.

`cpu`, `cuda`, `cuda-thread` (in emulation; every access is watched for races) and `recursion` draw from the
strategies of the tests instead, in one process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

STRATEGIES = ("cpu", "cuda", "cuda-thread", "recursion")
DEPTHS = ("passes", "built", "sanitized")
MOST_TRIES = 80  # to leave statements out
TOLD_EVERY = 60.0  # seconds: how far it has come
RETIRED_AFTER = 300  # programs of a process; jax keeps what it compiled
_SPAWN = multiprocessing.get_context("spawn")


def check(depth: str, seed: int, without: frozenset[int] = frozenset()) -> str:
    """What goes wrong with a program, or ""."""
    from tests.generator import built, passes, tasks

    if depth == "passes":
        return passes.check(tasks.task(seed, without))
    if depth == "built":
        return built.check(seed, without)
    return built.check_sanitized(tasks.task(seed, without))


def reduced(depth: str, seed: int, without: frozenset[int]) -> frozenset[int]:
    """The statements that a program can lose and still fail."""
    from tests.generator.programs import program

    numbers = program(seed).numbers
    for number in numbers[:MOST_TRIES]:
        if number not in without and check(depth, seed, without | {number}):
            without |= {number}
    return without


def repetition(depth: str, seed: int, without: frozenset[int]) -> str:
    """The command that runs one program."""
    left_out = f" --without {' '.join(map(str, sorted(without)))}" if without else ""
    return f"python -m tests.fuzz {depth} --seed {seed} --programs 1{left_out}"


def _serve(connection: Connection, depth: str) -> None:
    """A process that checks the seeds that it is sent."""
    while True:
        seed, without = connection.recv()
        try:
            message = check(depth, seed, without)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        if message:
            message = f"{message}\n  {repetition(depth, seed, reduced(depth, seed, without))}"
        connection.send(message)


class Worker:
    """A process, and the seed that it is at."""

    def __init__(self, depth: str) -> None:
        self.connection, other = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(other, depth), daemon=True)
        self.process.start()
        other.close()
        self.seed, self.since, self.count = -1, 0.0, 0

    def send(self, seed: int, without: frozenset[int]) -> None:
        self.seed, self.since, self.count = seed, time.monotonic(), self.count + 1
        self.connection.send((seed, without))

    def receive(self) -> str:
        """What it found; that it is dead, if it is."""
        try:
            return str(self.connection.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()
            return f"the process died with exit code {self.process.exitcode}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def run(
    depth: str, seeds: Iterator[int], jobs: int, seconds: float, without: frozenset[int] = frozenset()
) -> Iterator[tuple[int, str]]:
    """(seed, what goes wrong or "") of every program, as they end."""
    workers: list[Worker] = []
    try:
        while True:
            while len(workers) < jobs and (seed := next(seeds, None)) is not None:
                workers.append(Worker(depth))
                workers[-1].send(seed, without)
            if not workers:
                return
            ready = wait([w.connection for w in workers], timeout=1)
            for worker in list(workers):
                late = time.monotonic() - worker.since > seconds
                if worker.connection not in ready and not late:
                    continue
                message = f"no end within {seconds:g} s" if late else worker.receive()
                yield worker.seed, message
                following = None
                if worker.process.is_alive() and not late and worker.count < RETIRED_AFTER:
                    following = next(seeds, None)
                if following is None:
                    worker.end()
                    workers.remove(worker)
                else:
                    worker.send(following, without)
    finally:
        for worker in workers:
            worker.end()


class Pace:
    """How many programs have ended here, and how fast."""

    def __init__(self) -> None:
        self.begun = self.told = time.monotonic()
        self.count = 0

    def __str__(self) -> str:
        rate = self.count / max(time.monotonic() - self.begun, 1e-3)
        return f"{self.count} ran, {rate:.2f} a second"

    def tell(self, failed: int) -> None:
        """One more has ended; says so now and then."""
        self.count += 1
        if time.monotonic() - self.told > TOLD_EVERY:
            self.told = time.monotonic()
            print(f"{self}, {failed} failed", flush=True)


def done(log: Path | None) -> dict[int, str]:
    """What a log has: by seed, "ok" or "failed"."""
    lines = log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else []
    return {int(seed): word for seed, _, word in (line.partition(" ") for line in lines)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("depth", choices=(*DEPTHS, *STRATEGIES))
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=600, help="most time for one program")
    parser.add_argument("--log", type=Path, help="a file of the seeds that are done")
    parser.add_argument("--without", type=int, nargs="*", default=(), help="statements to leave out")
    chosen = parser.parse_args(arguments)
    if chosen.depth in STRATEGIES:
        from tests.fuzz_strategies import fuzz_strategies

        fuzz_strategies(chosen.depth, chosen.programs, chosen.seed)
        print(f"{chosen.programs} programs, seed {chosen.seed}: all equal")
        return 0
    known = done(chosen.log)
    wanted = range(chosen.seed, chosen.seed + chosen.programs)
    failed = [seed for seed in wanted if known.get(seed) == "failed"]
    seeds = (seed for seed in wanted if seed not in known)
    pace = Pace()
    for seed, message in run(chosen.depth, seeds, chosen.jobs, chosen.seconds, frozenset(chosen.without)):
        if message:
            failed.append(seed)
            print(f"seed {seed}: {message}", flush=True)
        if chosen.log is not None:
            with chosen.log.open("a", encoding="utf-8") as log:
                log.write(f"{seed} {'failed' if message else 'ok'}\n")
        pace.tell(len(failed))
    print(f"{chosen.programs} programs, depth {chosen.depth}: {len(failed)} failed {failed or ''}; {pace}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
