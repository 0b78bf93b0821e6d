"""What the nodes' agents write, told as reports and beats; how late an agent is, is by this process's clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from extender.cluster.reports import AgentEvent, Beat, ReportGone, ReportSeen
from extender.kube import reflector
from extender.kube.agents import Agents
from extender.kube.client import Client
from tests.agent.builders import card, spec, status
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import until

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Times:
    """Both clocks of this process."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return 5000.0 + self.passed

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.passed)


@contextlib.asynccontextmanager
async def following(client: Client, times: Times) -> AsyncIterator[list[AgentEvent]]:
    told: list[AgentEvent] = []
    agents = Agents(client, told.append, clock=times.monotonic, wall=times.wall)
    task = asyncio.create_task(agents.run())
    try:
        await asyncio.wait_for(agents.wait_synced(), 5)
        assert agents.synced
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def put_report(server: FakeApiServer, node: str, used: int) -> None:
    parts = {"spec": msgspec.to_builtins(spec()), "status": msgspec.to_builtins(status(card(used=used)))}
    server.put("gpunodes", node, {"metadata": {"name": node}, **parts})


def put_lease(server: FakeApiServer, node: str, renewed: float | None) -> None:
    """Renewed so many seconds after noon, by the node's own clock."""
    time = {} if renewed is None else {"renewTime": (NOON + timedelta(seconds=renewed)).isoformat()}
    meta = {"name": node, "namespace": "kvitej"}
    server.put("leases", f"kvitej/{node}", {"metadata": meta, "spec": time})


def beats(told: list[AgentEvent]) -> list[Beat]:
    return [each for each in told if isinstance(each, Beat)]


def reports(told: list[AgentEvent]) -> list[AgentEvent]:
    return [each for each in told if not isinstance(each, Beat)]


async def test_each_report_is_told_until_it_is_gone(server: FakeApiServer, client: Client) -> None:
    put_report(server, "a", used=1)
    async with following(client, Times()) as told:
        assert told == [ReportSeen("a", spec(), status(card(used=1)))]
        put_report(server, "a", used=2)
        put_report(server, "b", used=3)
        server.delete("gpunodes", "a")
        await until(lambda: len(told) == 4)
        assert told[1:] == [
            ReportSeen("a", spec(), status(card(used=2))),
            ReportSeen("b", spec(), status(card(used=3))),
            ReportGone("a"),
        ]


async def test_a_report_that_is_not_written_yet_says_nothing_of_cards(
    server: FakeApiServer, client: Client
) -> None:
    server.put("gpunodes", "a", {"metadata": {"name": "a"}, "spec": msgspec.to_builtins(spec())})
    async with following(client, Times()) as told:
        assert told == [ReportSeen("a", spec(), None)]


async def test_a_report_that_can_not_be_read_is_told_as_a_fault_and_not_left_as_it_was(
    server: FakeApiServer, client: Client
) -> None:
    put_report(server, "a", used=1)
    async with following(client, Times()) as told:
        server.put("gpunodes", "a", {"metadata": {"name": "a"}, "status": {"gpus": [{"uuid": 7}]}})
        await until(lambda: len(told) == 2)
        last = told[1]
        assert isinstance(last, ReportSeen)
        assert (last.node, last.status) == ("a", None)
        assert last.fault.endswith("`$.status.gpus[0].uuid`")
        put_report(server, "a", used=2)
        await until(lambda: len(told) == 3)
        assert told[2] == ReportSeen("a", spec(), status(card(used=2)))


async def test_a_beat_is_when_a_lease_changes_whatever_time_it_says(
    server: FakeApiServer, client: Client
) -> None:
    times = Times()
    async with following(client, times) as told:
        put_lease(server, "a", 0)
        await until(lambda: len(told) == 1)
        times.passed = 31
        put_lease(server, "a", -3600)
        await until(lambda: len(told) == 2)
        times.passed = 40
        put_lease(server, "a", -3600)
        put_lease(server, "b", 7200)
        await until(lambda: len(told) == 3)
        assert told == [Beat("a", 5000.0), Beat("a", 5031.0), Beat("b", 5040.0)]


async def test_at_the_start_a_lease_of_long_ago_is_no_beat_of_now(
    server: FakeApiServer, client: Client
) -> None:
    put_lease(server, "dead", -600)
    put_lease(server, "alive", -10)
    put_lease(server, "fast", 600)
    put_lease(server, "silent", None)
    async with following(client, Times()) as told:
        assert sorted(beats(told), key=lambda beat: beat.node) == [
            Beat("alive", 4990.0),
            Beat("dead", 4400.0),
            Beat("fast", 5000.0),
        ]


async def test_a_watch_that_is_read_anew_makes_no_beats(server: FakeApiServer, client: Client) -> None:
    times = Times()
    put_lease(server, "a", 0)
    put_report(server, "a", used=1)
    async with following(client, times) as told:
        before = len(server.requests)
        times.passed = 60
        server.compact()
        server.cut_watches()
        await until(lambda: len(server.requests) >= before + 2)
        put_lease(server, "b", 60)
        await until(lambda: len(beats(told)) == 2)
        assert beats(told) == [Beat("a", 5000.0), Beat("b", 5060.0)]


async def test_a_cluster_without_reports_is_followed_until_it_has_some(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.05)
    server.absent = {"gpunodes"}
    async with following(client, Times()) as told:
        assert told == []
        server.absent.clear()
        put_report(server, "a", used=1)
        await until(lambda: reports(told) == [ReportSeen("a", spec(), status(card(used=1)))])


async def test_events_that_trickle_are_told_together_and_many_at_once_without_a_wait(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client, Times()) as told:
        turns: list[int] = []
        for number in range(40):
            put_lease(server, f"node-{number}", 0)
            before = len(told)
            await asyncio.sleep(0.01)
            turns.append(len(told) - before)
        await until(lambda: len(told) == 40)
        assert sum(turn > 0 for turn in turns) < 10
        begun = time.monotonic()
        for number in range(40, 6000):
            put_lease(server, f"node-{number}", 0)
        await until(lambda: len(told) == 6000)
        assert time.monotonic() - begun < 3
