"""Records the last run of each step of `.ci/long` in `long_run.json`: outcome, seconds, commit, versions.

python -m tests.long_run "812 every case: cpu" "40 release" --failed release
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".json")


def entries(steps: Sequence[str], failed: Sequence[str], commit: str, jax: str) -> dict[str, Any]:
    """What is recorded of steps, by their names. Each is given as its seconds and its name."""
    place = {
        "commit": commit,
        "day": datetime.now(UTC).date().isoformat(),
        "jax": jax,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }
    split = [step.partition(" ") for step in steps]
    return {
        name: {"passed": name not in failed, "seconds": int(seconds), **place} for seconds, _, name in split
    }


def merged(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the latest run of each step."""
    return dict(sorted({**known, **new}.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Adds the steps that have just run to the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.long_run", description=__doc__)
    parser.add_argument("steps", nargs="+", metavar="SECONDS NAME")
    parser.add_argument("--failed", nargs="*", default=[], metavar="NAME")
    chosen = parser.parse_args(arguments)
    import jax

    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    new = entries(chosen.steps, chosen.failed, commit, jax.__version__)
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps(merged(known, new), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(new, indent=1))


if __name__ == "__main__":
    main()
