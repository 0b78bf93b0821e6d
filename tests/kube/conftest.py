"""A fake API server in the loop, a client on it, and a mirror of what a reflector has told."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.events import Event, NodeGone, NodeSeen, PodGone, PodSeen
from extender.kube.client import Client, connect
from extender.kube.reflector import Reflector
from extender.kube.resource import Unreadable
from tests.fakes.apiserver import FakeApiServer


@pytest.fixture(autouse=True)
def _no_system_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of the system's CAs takes longer than most of these tests, and none needs them."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client


class Mirror:
    """What exists according to the events so far: pods by uid, nodes by name."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.unreadable: list[Unreadable] = []
        self.existing: dict[str, str] = {}

    def take(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case PodSeen(pod):
                self.existing[pod.metadata.uid] = pod.metadata.name
            case NodeSeen(node):
                self.existing[node.metadata.name] = node.metadata.uid
            case PodGone(uid):
                self.existing.pop(uid, None)
            case NodeGone(name):
                self.existing.pop(name, None)

    def take_unreadable(self, found: Unreadable) -> None:
        self.unreadable.append(found)


@contextlib.asynccontextmanager
async def following(
    client: Client, resource: Any, *, synced: bool = True, inactivity: float = 30.0
) -> AsyncIterator[tuple[Reflector[Any, Any], Mirror]]:
    """A reflector at work, by default after its first sync."""
    mirror = Mirror()
    reflector = Reflector(client, resource, mirror.take, mirror.take_unreadable, inactivity=inactivity)
    task = asyncio.create_task(reflector.run())
    try:
        if synced:
            await asyncio.wait_for(reflector.synced.wait(), 5)
        yield reflector, mirror
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
