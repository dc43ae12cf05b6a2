"""Checks what jax_cocktail needs on this machine. It works where jax or a compiler is missing."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator

from jax_cocktail_tools.commands import checks
from jax_cocktail_tools.commands.checks import OK, PROBLEM, WARNING, Check
from jax_cocktail_tools.commands.probing import probe
from jax_cocktail_tools.words import counted

SCHEMA = "jax_cocktail doctor 1"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def main(options: argparse.Namespace) -> int:
    """Prints all checks. Returns 1 if something is broken."""
    made = []
    for each in run():
        made.append(each)
        if not options.json:
            print(check_text(each), flush=True)
    problems, warnings = (sum(each.state == state for each in made) for state in (PROBLEM, WARNING))
    if options.json:
        facts = {"schema": SCHEMA, "checks": [dataclasses.asdict(each) for each in made]}
        print(json.dumps({**facts, "problems": problems, "warnings": warnings}, indent=1))
    elif problems or warnings:
        print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    else:
        print("\nEverything is in order.")
    return 1 if problems else 0


def run() -> Iterator[Check]:
    """All checks, one after another."""
    for name, check in checks.WITHOUT_JAX:
        yield from _safe(name, check)
    found = probe()
    for name, inspect in checks.WITH_JAX:
        yield from _safe(name, functools.partial(inspect, found))


def _safe(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The results of a check; one that fails itself is a problem, and the others go on."""
    try:
        yield from check()
    except Exception as error:
        text = f"the check failed with {type(error).__name__}: {error}"
        yield Check(name, PROBLEM, text, "report this")


def check_text(check: Check) -> str:
    """A check as text."""
    mark = {OK: "ok", WARNING: "warning", PROBLEM: "PROBLEM"}[check.state]
    text = f"{mark:8} {check.name:22} {check.text}"
    return text + (f"\n{'':9}{'':22} try: {check.remedy}" if check.remedy else "")
