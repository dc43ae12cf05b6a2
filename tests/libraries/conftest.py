"""Prints what was found of each program, and fails a run that had too few of them."""

from __future__ import annotations

import pytest

LEAST = "--least-programs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(LEAST, type=int, default=0, help="fail unless as many programs of other libraries pass")


def _passed(config: pytest.Config) -> list[pytest.TestReport]:
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("passed", ())
    return [report for report in reports if "told" in dict(report.user_properties)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    controls = not hasattr(session.config, "workerinput")
    if controls and len(_passed(session.config)) < session.config.getoption(LEAST, 0):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    found, least = _passed(config), config.getoption(LEAST, 0)
    for report in sorted(found, key=lambda report: report.nodeid):
        name = report.nodeid.partition("[")[2].rstrip("]")
        terminalreporter.write_line(
            f"{name:32}{dict(report.user_properties)['told']}, {report.duration:.1f} s"
        )
    if len(found) < least:
        terminalreporter.write_line(f"{len(found)} programs passed, fewer than {least}", red=True)
