"""Runs `probe` in a process of its own, which may crash or hang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300.0
COMMAND = ("-m", "jax_cocktail_tools.commands.probe")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt|Exit)\b")  # the end of a traceback


@dataclass(frozen=True, slots=True)
class Probe:
    """Facts that the process told, by name, and how it failed, or ""."""

    facts: dict[str, Any]
    failure: str = ""


def probe(seconds: float = SECONDS) -> Probe:
    """Runs the process."""
    source = str(Path(__file__).parents[2])  # a checkout that is not installed
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, *COMMAND],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return Probe(_facts(error.stdout), f"it did not end within {seconds:.0f} s")
    except OSError as error:
        return Probe({}, f"Python cannot be started ({error.strerror})")
    return Probe(_facts(done.stdout), _failure(done.returncode, done.stderr))


def _facts(output: str | bytes | None) -> dict[str, Any]:
    """The facts in the lines that are JSON objects."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            found.update(json.loads(line))
    return found


def _failure(status: int, errors: str) -> str:
    if status == 0:
        return ""
    if status < 0:
        return f"it was killed by signal {-status}"
    lines = [line.rstrip() for line in errors.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return "".join((raised or lines)[-1:])[-500:] or f"it ended with status {status}"
