"""Breaks the compiler in many small ways, and counts how many of them the random programs notice.

    python -m tests.mutants                                50 mutants, at most 2000 programs for each
    python -m tests.mutants --mutants 200 --seed 7 --jobs 2 --corpus ../corpus.pickle
    python -m tests.mutants --match liveness --mutants 9   drawn from those whose line has this text

The seed draws the mutants (tests/mutation.py). A pass is checked by interpreters, as `python -m tests.fuzz
passes` does; what prints text is checked by building the text and running it. A mutant is found if a program
fails, or does not end. Programs run on the unbroken compiler first, which notes the mutants that would take
effect in each; others cannot be noticed, and what compiles to the same text need not run. Programs come in
groups, and what is found by one group is not hunted any more.

Survivors are printed with the number of programs whose text they change. Mutants that no program can notice
are listed with their reasons in tests/mutants_alike.py; they are not drawn.

--corpus keeps the translated programs for the next run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from jax_cocktail.compiler import Emitted, build, emit
from tests.cpu.runner import run_artifact
from tests.generator.passes import Task, difference, emitted, interpret, results, variant
from tests.mutation import Mutant, drawn, install, watch

STAGE = 250  # programs of a group
MOST_BUILDS = 12  # texts of a mutant that are built, in a group
SECONDS = 60  # for one program under a mutant
_FORK = multiprocessing.get_context("fork")


# ---- programs ----------------------------------------------------------------------------------------------


def translated(seed: int) -> Task:
    """The program of a seed."""
    from tests.generator.tasks import task

    return task(seed)


def groups(programs: int, jobs: int, file: Path | None) -> Iterator[list[Task]]:
    """Programs in groups, from the file as far as it has them."""
    found: list[Task] = pickle.loads(file.read_bytes()) if file is not None and file.exists() else []
    for begin in range(0, programs, STAGE):
        end = min(begin + STAGE, programs)
        if len(found) < end:
            with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
                found += pool.map(translated, range(len(found), end), chunksize=16)
            if file is not None:
                file.write_bytes(pickle.dumps(found))
        yield found[begin:end]


@dataclass(frozen=True, slots=True)
class Unbroken:
    """How a program compiles in one of its ways: into which text, and the numbers of the mutants that would
    take effect."""

    text: tuple[object, ...]
    reached: frozenset[int]


@dataclass(frozen=True, slots=True)
class Known:
    """A program, what it computes, and how it compiles without a mutant: in its way, and plainly for one
    unit."""

    task: Task
    expected: tuple[np.ndarray, ...]
    own: Unbroken
    plain: Unbroken

    def reaches(self, number: int, of_text: bool) -> bool:
        return number in (self.plain if of_text else self.own).reached


def text_of(made: Emitted) -> tuple[object, ...]:
    """All that decides what a program does when it runs."""
    plan = made.plan
    return made.source, plan.aliases, plan.most_units, plan.shared_bytes, plan.own_bytes, plan.cluster


def known(task: Task, seen: set[int]) -> Known | None:
    """What the unbroken compiler does with a program; None if that is wrong already. `seen`: see `watch`."""
    try:
        expected = tuple(interpret(task.program, task.arguments))
        seen.clear()
        made = emitted(task, variant(task))
        own = Unbroken(text_of(made), frozenset(seen))
        if difference(task, results(task, made), expected):
            return None
        seen.clear()
        plain = text_of(emit(task.program))
    except Exception:
        return None
    return Known(task, expected, own, Unbroken(plain, frozenset(seen)))


def _survey(mutants: Sequence[Mutant], tasks: Sequence[Task]) -> list[Known | None]:
    seen = watch(mutants)
    return [known(task, seen) for task in tasks]


def survey(mutants: Sequence[Mutant], tasks: Sequence[Task], jobs: int) -> list[Known]:
    """The programs, without those that fail already."""
    with ProcessPoolExecutor(jobs, _FORK, max_tasks_per_child=None) as pool:
        shares = [tasks[share::jobs] for share in range(jobs)]
        parts = pool.map(_survey, [mutants] * jobs, shares)
        found = [each for part in parts for each in part]
    return sorted((each for each in found if each is not None), key=lambda each: each.task.seed)


# ---- the hunt ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    """What a program says of a mutant: what goes wrong, or ""; and whether its text changes."""

    seed: int
    message: str
    changed: bool


def notices(mutant: Mutant, number: int, programs: Sequence[Known]) -> Iterator[Notice]:
    """What every program says in turn, if the mutant takes effect in it."""
    builds = 0
    for each in programs:
        if not each.reaches(number, mutant.of_text):
            continue
        if not mutant.of_text:
            yield _passes_notice(each)
        elif builds < MOST_BUILDS:
            found = _text_notices(each)
            builds += found.changed
            yield found


def _passes_notice(each: Known) -> Notice:
    task = each.task
    try:
        made = emitted(task, variant(task))
        if text_of(made) == each.own.text:
            return Notice(task.seed, "", False)
        message = difference(task, results(task, made), each.expected)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    return Notice(task.seed, message, True)


def _text_notices(each: Known) -> Notice:
    """Compares in every bit: rounding does not depend on what prints the text."""
    task = each.task
    try:
        made = emit(task.program)
        if text_of(made) == each.plain.text:
            return Notice(task.seed, "", False)
        found = run_artifact(build(made), task.program, task.arguments)
    except Exception as error:
        return Notice(task.seed, f"{type(error).__name__}: {error}", True)
    unbroken = build(replace(made, source=str(each.plain.text[0])))
    same = run_artifact(unbroken, task.program, task.arguments)
    differs = any(x.tobytes() != y.tobytes() for x, y in zip(found, same, strict=True))
    return Notice(task.seed, "other results" if differs else "", True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a mutant: the message of the program that noticed, or "", and its number; how many programs ran,
    and of how many the text changed."""

    mutant: Mutant
    message: str = ""
    program: int = -1
    ran: int = 0
    changed: int = 0

    def then(self, later: Verdict) -> Verdict:
        """Of two groups of programs."""
        return replace(later, ran=self.ran + later.ran, changed=self.changed + later.changed)

    def __str__(self) -> str:
        said = self.message.partition("\n")[0][:100]
        if said:
            return f"{self.mutant}: found by program {self.program + 1}: {said}"
        return f"{self.mutant}: survives; it takes effect in {self.ran} programs and changes {self.changed}"


def hunt(mutant: Mutant, number: int, programs: Sequence[Known]) -> Verdict:
    """Runs the programs under a mutant in a process of its own, until one notices."""
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_hunted, args=(there, mutant, number, programs))
    process.start()
    there.close()
    ran = changed = 0
    last = Notice(-1, "", False)
    try:
        while not last.message:
            last = here.recv()
            ran, changed = ran + 1, changed + last.changed
    except EOFError:
        process.join()
        if process.exitcode:
            later = [e.task.seed for e in programs if e.task.seed > last.seed]
            reached = next((e.task.seed for e in programs if e.task.seed in later), last.seed)
            last = Notice(reached, f"the process died with exit code {process.exitcode}", True)
    process.join()
    return Verdict(mutant, last.message, last.seed, ran, changed)


def _hunted(connection: Connection, mutant: Mutant, number: int, programs: Sequence[Known]) -> None:
    install(mutant)
    found = notices(mutant, number, programs)
    while True:
        signal.alarm(SECONDS)  # ends the process
        notice = next(found, None)
        if notice is None:
            break
        connection.send(notice)
        if notice.message:
            break
    os._exit(0)


def hunts(mutants: Sequence[Mutant], chosen: argparse.Namespace) -> Iterator[Verdict]:
    """What becomes of every mutant: those that are found first."""
    left = [Verdict(mutant) for mutant in mutants]
    for tasks in groups(chosen.programs, chosen.jobs, chosen.corpus):
        known = survey([verdict.mutant for verdict in left], tasks, chosen.jobs)

        def hunted(number: int, verdict: Verdict, known: Sequence[Known] = known) -> Verdict:
            mutant, room = verdict.mutant, max(chosen.most - verdict.ran, 0)
            here = [each for each in known if each.reaches(number, mutant.of_text)]
            return verdict.then(hunt(mutant, number, here[:room]))

        with ThreadPoolExecutor(chosen.jobs) as pool:
            verdicts = list(pool.map(hunted, range(len(left)), left))
        yield from (verdict for verdict in verdicts if verdict.message)
        left = [verdict for verdict in verdicts if not verdict.message]
        if not left:
            return
    yield from left


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mutants", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=2000, help="at most, for a mutant")
    parser.add_argument("--most", type=int, default=200, help="programs in which it takes effect, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--corpus", type=Path, help="a file to keep the programs in")
    parser.add_argument("--match", default="", help="only mutants whose line has this text")
    chosen = parser.parse_args(arguments)
    mutants = drawn(chosen.mutants, chosen.seed, chosen.match)
    found = 0
    for verdict in hunts(mutants, chosen):
        found += bool(verdict.message)
        print(verdict, flush=True)
    print(f"{found} of {len(mutants)} mutants found within {chosen.programs} programs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
