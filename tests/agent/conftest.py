"""A kubelet of this test, at a socket of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.kubelet import FakeKubelet, messages
from tests.controlplane.binaries import Unavailable


@pytest.fixture(scope="session")
def kubelet_api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kubelet's own messages."""
    try:
        return messages(tmp_path_factory.mktemp("kubelet"))
    except Unavailable as reason:
        pytest.skip(f"no sources of the kubelet's API: {reason}")


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where no kubelet listens yet; short, since the path of a unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(kubelet_api: Any, socket: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(kubelet_api, socket) as running:
        yield running
