"""Programs whose arguments 2 and 8 devices of the host divide agree with stock XLA's (see
`sharded_arguments`)."""

from __future__ import annotations

import pytest

from tests.api.several_devices import cases_of, wrong

MODULES = ("tests.api.sharded_arguments", "tests.api.said_shardings")


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.long), 8])
@pytest.mark.parametrize("name", cases_of(*MODULES))
def test_devices(name: str, devices: int) -> None:
    assert not wrong(devices, *MODULES)[name], wrong(devices, *MODULES)[name]
