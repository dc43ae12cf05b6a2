"""Programs over 2 and 8 devices of the host agree with stock XLA's (see `several_devices`)."""

from __future__ import annotations

import json
from functools import cache

import pytest

import tests.api.collective_loops  # noqa: F401 - it has more cases
from tests.api.several_devices import CASES
from tests.process import python


@cache
def wrong(devices: int) -> dict[str, str]:
    """What is wrong with each case, in a process with so many devices."""
    out = python(
        f"import sys; sys.argv[1:] = ['{devices}']; from tests.api.several_devices import main; main()",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )
    found: dict[str, str] = json.loads(out.splitlines()[-1])  # JAX prints lines of its own
    return found


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("name", CASES)
def test_devices(name: str, devices: int) -> None:
    assert not wrong(devices)[name], wrong(devices)[name]
