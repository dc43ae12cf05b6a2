"""What was measured on this machine's GPUs, kept beside the compiled programs: one file for each name."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from jax_cocktail.cache import cache_dir, distrust, prepare_root
from jax_cocktail.device import DeviceSpec, from_json, to_json
from jax_cocktail.errors import BuildError

_FOLDER = "devices"


def _file(root: Path, name: str) -> Path:
    """Readable, and different for names that differ only in what a file's name cannot hold."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
    return root / _FOLDER / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def load_measured(name: str) -> DeviceSpec | None:
    """The spec that `store_measured` kept for the device called `name`; None if none can be trusted."""
    path = _file(cache_dir(), name)
    if any(distrust(place) for place in (path.parent.parent, path.parent, path)):
        return None
    try:
        spec = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return spec if spec.name == name else None


def store_measured(spec: DeviceSpec) -> Path | None:
    """Keeps a measured spec under its name. The file, or None if there is no place to keep it."""
    try:
        path = _file(prepare_root(), spec.name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(to_json(spec))
        os.replace(temporary, path)  # complete or absent, whoever reads
    except (BuildError, OSError):
        return None
    return path
