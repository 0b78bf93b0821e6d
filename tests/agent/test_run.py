"""The agent's loop: it writes what is new and nothing else, and beats only while it stands by what is stored."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from extender.agent.run import Loop
from extender.agent.writer import NodeWriter
from extender.config import Agent as Settings
from extender.kube.client import Client, connect
from extender.wire.gpunode import GPUNode, GPUNodeMeta, Held, Kubelet
from tests.agent.builders import STEP, GiB, card, spec, status
from tests.fakes.apiserver import FakeApiServer

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_system_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put("nodes", "a", {"metadata": {"name": "a"}})
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client


class Run:
    """A loop whose node and clock are the test's: each `sample` is one look, five seconds after the one before."""

    def __init__(self, server: FakeApiServer, client: Client, settings: Settings | None = None) -> None:
        self.server = server
        self.now = -5.0
        self.seen = GPUNode(metadata=GPUNodeMeta(name="a"), spec=spec(), status=status(card()))
        self.loop = Loop(
            NodeWriter(client, "a", timeout=1),
            self._look,
            settings or Settings(),
            clock=lambda: self.now,
            wall=lambda: NOON + timedelta(seconds=self.now),
        )

    async def _look(self) -> GPUNode:
        return self.seen

    async def sample(self, used: int = 0, *, times: int = 1, kubelet: Kubelet | None = None) -> list[str]:
        """The parts of the API that were written to, in order."""
        before = len(self.server.requests)
        for _ in range(times):
            self.now += 5
            when = (NOON + timedelta(seconds=self.now)).isoformat()
            self.seen = replace(self.seen, status=status(card(used=used), when=when, kubelet=kubelet))
            await self.loop.step()
        return [
            path.rpartition("/")[2] if path.endswith("status") else path.split("/")[-2]
            for method, path in self.server.requests[before:]
            if method == "PATCH"
        ]

    @property
    def used(self) -> int:
        found: int = self.server.read("gpunodes", "a")["status"]["gpus"][0]["memory"]["used"]
        return found

    @property
    def beat(self) -> datetime:
        return datetime.fromisoformat(self.server.read("leases", "kvitej/a")["spec"]["renewTime"])


@pytest.fixture
def run(server: FakeApiServer, client: Client) -> Run:
    return Run(server, client)


async def test_at_rest_there_is_one_report_and_a_beat_each_thirty_seconds(run: Run) -> None:
    await run.sample(used=GiB)
    assert (run.used, run.beat) == (GiB, NOON)
    assert run.server.read("gpunodes", "a")["spec"]["bootId"] == "boot-1"
    assert await run.sample(used=GiB, times=60) == ["leases"] * 10
    assert run.beat == NOON + timedelta(seconds=300)


async def test_the_heartbeat_is_as_often_as_configured(server: FakeApiServer, client: Client) -> None:
    run = Run(server, client, Settings(heartbeat=10))
    await run.sample()
    assert await run.sample(times=60) == ["leases"] * 30


async def test_the_node_is_looked_at_as_often_as_configured(server: FakeApiServer, client: Client) -> None:
    looks = 0

    async def look() -> GPUNode:
        nonlocal looks
        looks += 1
        return GPUNode(metadata=GPUNodeMeta(name="a"), spec=spec(), status=status(card()))

    loop = Loop(NodeWriter(client, "a"), look, Settings(sample=0.05))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.run(), 0.62)
    assert 6 <= looks <= 13


async def test_memory_is_written_when_it_has_grown_by_a_step_and_never_said_too_low(run: Run) -> None:
    await run.sample(used=0)
    assert run.server.read("gpunodes", "a")["status"]["gpus"][0]["memory"]["slack"] == STEP
    written = 0
    for used in range(0, 20 * GiB, GiB // 8):
        written += (await run.sample(used=used)).count("status")
        assert run.used <= used < run.used + STEP
    assert 15 < written < 30


async def test_what_the_kubelet_says_anew_is_written_at_once(run: Run) -> None:
    await run.sample(kubelet=Kubelet(held=[]))
    held = Kubelet(held=[Held("team", "pod", "main", "nvidia.com/gpu", ["GPU-0"])])
    assert await run.sample(kubelet=held) == ["status"]
    stored = run.server.read("gpunodes", "a")["status"]
    assert stored["kubelet"]["held"][0]["pod"] == "pod"
    assert stored["summary"] == {"gpus": 1, "free": 0, "memoryUsed": "0 of 80 GiB", "health": "healthy"}


async def test_while_the_report_is_refused_there_is_no_beat_and_calls_get_rare(run: Run) -> None:
    await run.sample(used=0)
    run.server.refuse = 503
    before = len(run.server.requests)
    await run.sample(used=40 * GiB, times=60)
    assert run.beat == NOON
    assert 8 <= len(run.server.requests) - before <= 25
    run.server.refuse = None
    await run.sample(used=40 * GiB, times=7)
    assert run.used == 40 * GiB
    assert run.beat > NOON + timedelta(seconds=300)


async def test_a_lost_answer_is_written_again_whole(run: Run) -> None:
    await run.sample(used=0)
    run.server.after_write = {"status": "drop"}
    await run.sample(used=10 * GiB)
    assert run.used == 10 * GiB
    run.server.put("gpunodes", "a", {"metadata": {"name": "a"}, "status": {"agent": "somebody"}})
    await run.sample(used=10 * GiB, times=3)
    assert run.used == 10 * GiB
    assert run.server.read("gpunodes", "a")["spec"]["bootId"] == "boot-1"


async def test_a_node_that_was_made_anew_gets_its_report_and_lease_again(run: Run) -> None:
    await run.sample(used=GiB)
    run.server.delete("gpunodes", "a")
    run.server.delete("leases", "kvitej/a")
    await run.sample(used=GiB, times=6)
    assert run.used == GiB
    assert run.beat == NOON + timedelta(seconds=30)


async def test_another_boot_is_written_at_once(run: Run) -> None:
    await run.sample()
    run.seen = replace(run.seen, spec=replace(run.seen.spec, boot_id="boot-2"))
    assert await run.sample() == ["gpunodes", "status"]
    assert run.server.read("gpunodes", "a")["spec"]["bootId"] == "boot-2"
