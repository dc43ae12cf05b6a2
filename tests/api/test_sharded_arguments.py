"""Programs whose arguments 2 and 8 devices of the host divide agree with stock XLA's (see
`sharded_arguments`)."""

from __future__ import annotations

import json
from functools import cache

import pytest

import tests.api.said_shardings
import tests.api.sharded_arguments
from tests.api.several_devices import CASES
from tests.process import python

MODULES = [tests.api.sharded_arguments.__name__, tests.api.said_shardings.__name__]
NAMES = [name for name, each in CASES.items() if each.__module__ in MODULES]


@cache
def wrong(devices: int) -> dict[str, str]:
    """What is wrong with each case, in a process with so many devices."""
    out = python(
        f"""
        import sys
        import tests.api.said_shardings
        from tests.api.several_devices import main
        sys.argv[1:] = {[str(devices), *NAMES]}
        main()
        """,
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )
    found: dict[str, str] = json.loads(out.splitlines()[-1])  # JAX prints lines of its own
    return found


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("name", NAMES)
def test_devices(name: str, devices: int) -> None:
    assert not wrong(devices)[name], wrong(devices)[name]
