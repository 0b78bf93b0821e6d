"""Rules for every test: hypothesis without time limits, and no silent gap where the control plane belongs.

With `KVITEJ_REQUIRE_CONTROLPLANE=1` a run proves that kvitej works under a real kube-scheduler: a skipped
`controlplane` test fails with the reason of its skip, and so does a run in which none has passed.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kvitej", deadline=None, print_blob=True)
settings.load_profile("kvitej")

_REQUIRED = os.environ.get("KVITEJ_REQUIRE_CONTROLPLANE") == "1"
_FOLDER = Path(__file__).parent / "controlplane"
_passed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _REQUIRED and item.get_closest_marker("controlplane"):
        if report.skipped and not hasattr(report, "wasxfail"):
            _fail(report)
        elif report.when == "call" and report.passed:
            _passed.add(report.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _REQUIRED and report.skipped and collector.path.is_relative_to(_FOLDER):
        _fail(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _REQUIRED and session.exitstatus == pytest.ExitCode.OK and not _passed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _REQUIRED and not _passed:
        terminalreporter.section("control plane")
        terminalreporter.write_line(
            "No test has passed against the real control plane, and this run requires it."
        )


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"KVITEJ_REQUIRE_CONTROLPLANE=1 lets no control-plane test be skipped. {reason}"
