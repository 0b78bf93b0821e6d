"""Fixtures that give a test a running control plane, or skip it with the reason why there is none."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.controlplane.api import Api
from tests.controlplane.binaries import Binaries, Unavailable, ensure
from tests.controlplane.processes import ControlPlane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the time limit of control-plane tests begin after their fixtures: a first build takes minutes."""
    for item in items:
        if item.get_closest_marker("controlplane") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    """The binaries; the first run builds them, for minutes, and says so on the terminal."""
    # A run ended by SIGTERM, as `timeout` does, then stops its servers as one ended by Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        try:
            return ensure(progress=sys.stderr)
        except Unavailable as reason:
            pytest.skip(f"no control plane: {reason}")


@pytest.fixture(scope="module")
def control_plane(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for all tests of a module; a test that needs its own makes a `ControlPlane`."""
    with ControlPlane(binaries, tmp_path_factory.mktemp("controlplane")) as started:
        yield started


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """A client of the control plane as its admin."""
    async with Api(control_plane) as client:
        yield client
