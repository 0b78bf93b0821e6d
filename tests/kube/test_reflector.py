"""The reflector against a fake API server: what is told, in which order, and what it costs to recover."""

import asyncio
import contextlib
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from extender.cluster.events import NodeGone, NodeSeen, PodGone, PodSeen
from extender.kube import reflector as reflector_module
from extender.kube.client import Client
from extender.kube.resource import NODES, PODS
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import following, until


def lists(server: FakeApiServer) -> list[str]:
    """Full reads of pods that were asked for."""
    reads = [query for _, query in server.requests if query.startswith("/api/v1/pods?")]
    return [query for query in reads if "resourceVersion=" not in query and "continue=" not in query]


async def test_one_watch_list_tells_everything_that_exists(server: FakeApiServer, client: Client) -> None:
    uids = {server.put_pod(f"p{i}") for i in range(50)}
    async with following(client, PODS) as (pods, mirror):
        assert set(mirror.existing) == uids
        assert pods.down_since is None
        assert len(server.requests) == 1
        uids.add(server.put_pod("late"))
        await until(lambda: set(mirror.existing) == uids)
        assert pods.relists == pods.reconnects == 0


async def test_it_is_not_synced_before_the_marked_bookmark(server: FakeApiServer, client: Client) -> None:
    server.put_pod("p")
    server.withhold_marker = True
    async with following(client, PODS, synced=False) as (pods, mirror):
        await until(lambda: pods.events >= 4)  # the pod and several plain bookmarks
        assert mirror.existing
        assert not pods.synced.is_set()
        assert pods.down_since is not None
        server.send("pods", server.bookmark("pods", initial_events_end=True))
        await until(pods.synced.is_set)
        assert pods.down_since is None


async def test_a_server_without_watch_list_is_read_in_pages(server: FakeApiServer, client: Client) -> None:
    server.refuse_watch_list = True
    uids = {server.put_pod(f"p{i}") for i in range(1200)}
    async with following(client, PODS) as (pods, mirror):
        assert set(mirror.existing) == uids
        assert sum("continue=" in query for _, query in server.requests) == 2
        uids.add(server.put_pod("late"))
        await until(lambda: set(mirror.existing) == uids)
        assert pods.down_since is None
        asked = [query for _, query in server.requests if "sendInitialEvents" in query]
        server.send("pods", b'{"type":"ERROR","object":{"code":410}}\n')
        await until(lambda: pods.relists == 1)
        assert [query for _, query in server.requests if "sendInitialEvents" in query] == asked


async def test_a_list_whose_next_page_expired_is_begun_again(server: FakeApiServer, client: Client) -> None:
    server.refuse_watch_list = True
    uids = {server.put_pod(f"p{i}") for i in range(600)}
    async with following(client, PODS, synced=False) as (pods, mirror):
        await until(lambda: pods.events > 0)
        server.compact()
        await until(pods.synced.is_set)
        assert set(mirror.existing) == uids


async def test_pods_that_ended_are_gone(server: FakeApiServer, client: Client) -> None:
    server.put_pod("done", status={"phase": "Succeeded"})
    uid = server.put_pod("running", status={"phase": "Running"})
    async with following(client, PODS) as (_, mirror):
        assert list(mirror.existing) == [uid]
        server.set_phase("running", "Failed")
        await until(lambda: mirror.events[-1] == PodGone(uid))
        assert not mirror.existing


async def test_an_ended_pod_that_the_server_sends_nevertheless_is_gone(
    server: FakeApiServer, client: Client
) -> None:
    uid = server.put_pod("p")
    async with following(client, PODS) as (_, mirror):
        meta = b'{"name":"p","namespace":"default","uid":"%s","resourceVersion":"9000"}' % uid.encode()
        line = b'{"type":"MODIFIED","object":{"metadata":%s,"status":{"phase":"Succeeded"}}}\n' % meta
        server.send("pods", line)
        await until(lambda: mirror.events[-1] == PodGone(uid))


@pytest.mark.parametrize("how", ["cut_watches", "end_watches"])
async def test_a_watch_that_stops_is_taken_up_at_once_without_reading_anew(
    server: FakeApiServer, client: Client, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "BACKOFF_SECONDS", (60.0, 60.0))
    async with following(client, PODS) as (pods, mirror):
        uids = set()
        for i in range(5):
            getattr(server, how)()
            uids.add(server.put_pod(f"p{i}"))
            await until(lambda: set(mirror.existing) == uids)
            await until(lambda: server.watches == 1)
        assert pods.reconnects == 5
        assert pods.relists == 0
        assert len(lists(server)) == 1


async def test_a_bookmark_is_a_place_to_go_on_from(server: FakeApiServer, client: Client) -> None:
    server.put_pod("quiet")
    async with following(client, PODS) as (pods, _):
        for i in range(10):
            server.put_node(f"n{i}")
        seen = pods.events
        await until(lambda: pods.events > seen)
        server.compact()
        server.cut_watches()
        await until(lambda: pods.reconnects == 1)
        assert pods.gone_410 == 0


@pytest.mark.parametrize("as_status", [False, True])
async def test_after_a_410_what_did_not_come_back_is_gone(
    server: FakeApiServer, client: Client, as_status: bool
) -> None:
    server.gone_as_status = as_status
    old = {name: server.put_pod(name) for name in ("kept", "deleted", "replaced")}
    async with following(client, PODS) as (pods, mirror):
        server.pause()
        server.cut_watches()
        server.delete("pods", "default/deleted")
        server.delete("pods", "default/replaced")
        new = server.put_pod("replaced")
        late = server.put_pod("late")
        server.compact()
        server.resume()
        await until(lambda: pods.relists == 1 and pods.down_since is None)
        assert pods.gone_410 == 1
        assert set(mirror.existing) == {old["kept"], new, late}
        gone = mirror.events.index(PodGone(old["replaced"]))
        came = next(
            i for i, e in enumerate(mirror.events) if isinstance(e, PodSeen) and e.pod.metadata.uid == new
        )
        assert gone < came


async def test_a_410_does_not_count_as_up_to_date(server: FakeApiServer, client: Client) -> None:
    async with following(client, PODS) as (pods, _):
        server.pause()
        server.cut_watches()
        await until(lambda: pods.down_since is not None)
        down = pods.down_since
        server.put_pod("missed")
        server.compact()
        server.withhold_marker = True
        server.resume()
        await until(lambda: pods.relists == 1)
        assert pods.down_since == down
        server.withhold_marker = False
        server.cut_watches()
        await until(lambda: pods.down_since is None)


async def test_a_re_created_node_is_first_gone_then_seen(server: FakeApiServer, client: Client) -> None:
    server.put_node("n")
    async with following(client, NODES) as (_, mirror):
        server.delete("nodes", "n")
        uid = server.put_node("n")
        await until(lambda: mirror.existing.get("n") == uid)
        assert [type(event) for event in mirror.events] == [NodeSeen, NodeGone, NodeSeen]


async def test_a_node_re_created_unseen_is_first_gone_then_seen(
    server: FakeApiServer, client: Client
) -> None:
    server.put_node("n")
    async with following(client, NODES) as (nodes, mirror):
        server.pause()
        server.cut_watches()
        server.delete("nodes", "n")
        uid = server.put_node("n")
        server.compact()
        server.resume()
        await until(lambda: mirror.existing.get("n") == uid)
        await until(lambda: nodes.down_since is None)
        assert [type(event) for event in mirror.events] == [NodeSeen, NodeGone, NodeSeen]


async def test_a_silent_watch_is_given_up_and_taken_up(server: FakeApiServer, client: Client) -> None:
    server.bookmark_seconds = 60.0
    async with following(client, PODS, inactivity=0.2) as (pods, _):
        await until(lambda: pods.lag(time.monotonic()) > 0.1)
        await until(lambda: pods.reconnects >= 2)
        assert pods.relists == 0


async def test_an_unreadable_pod_is_told_counted_and_named_once(
    server: FakeApiServer, client: Client
) -> None:
    broken: dict[str, Any] = {"metadata": {"labels": {"a": 5}}, "spec": {"nodeName": "n1"}}
    with capture_logs() as logs:
        others = [server.put_pod("before")]
        uid = server.put_pod("broken", **broken)
        others.append(server.put_pod("after"))
        async with following(client, PODS) as (pods, mirror):
            assert sorted(mirror.existing) == sorted(others)
            server.put_pod("broken", **broken)
            await until(lambda: pods.unreadable == 2)
            found = mirror.unreadable[-1]
            assert (found.namespace, found.name, found.uid, found.node) == ("default", "broken", uid, "n1")
            assert "labels" in found.reason
            server.put_pod("broken", spec={"nodeName": "n1"})
            await until(lambda: uid in mirror.existing)
            server.delete("pods", "default/broken")
            await until(lambda: uid not in mirror.existing)
    assert [entry["name"] for entry in logs if entry["event"] == "object cannot be read"] == ["broken"]


async def test_an_unreadable_pod_that_is_deleted_is_gone(server: FakeApiServer, client: Client) -> None:
    server.refuse_watch_list = True
    uid = server.put_pod("broken", metadata={"labels": 7})
    async with following(client, PODS) as (_, mirror):
        assert [found.uid for found in mirror.unreadable] == [uid]
        assert mirror.unreadable[0].node is None
        server.delete("pods", "default/broken")
        await until(lambda: mirror.events == [PodGone(uid)])


async def test_an_unreadable_node_names_itself(server: FakeApiServer, client: Client) -> None:
    server.put_node("n", status={"allocatable": {"nvidia.com/gpu": ["8"]}})
    async with following(client, NODES) as (_, mirror):
        assert [(found.path, found.node) for found in mirror.unreadable] == [("/api/v1/nodes", "n")]
        assert "allocatable" in mirror.unreadable[0].reason


@pytest.mark.parametrize("thing", [b"[]", b'{"metadata":[]}', b'{"metadata":{"name":5,"uid":null}}'])
async def test_an_object_without_a_readable_name_is_told_too(
    server: FakeApiServer, client: Client, thing: bytes
) -> None:
    async with following(client, PODS) as (pods, mirror):
        server.send("pods", b'{"type":"ADDED","object":%s}\n' % thing)
        await until(lambda: pods.unreadable == 1)
        assert mirror.unreadable[0].name == ""
        uid = server.put_pod("next")
        await until(lambda: uid in mirror.existing)


async def test_an_error_event_that_is_no_410_reads_everything_anew(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client, PODS) as (pods, _):
        server.send("pods", b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":500}}\n')
        await until(lambda: pods.relists == 1 and pods.down_since is None)
        assert pods.gone_410 == 0


async def test_a_garbled_line_is_asked_for_again(server: FakeApiServer, client: Client) -> None:
    async with following(client, PODS) as (pods, mirror):
        server.send("pods", b'{"type":"ADDED","object":{"meta\n')
        await until(lambda: pods.reconnects == 1)
        uid = server.put_pod("next")
        await until(lambda: uid in mirror.existing)
        assert pods.relists == 0


async def test_an_object_of_a_megabyte_passes(server: FakeApiServer, client: Client) -> None:
    async with following(client, PODS) as (_, mirror):
        uid = server.put_pod("large", metadata={"annotations": {"note": "x" * 2**20}})
        await until(lambda: uid in mirror.existing)


async def test_a_server_that_is_away_for_a_while_is_asked_ever_less_often_and_not_read_anew(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client, PODS) as (pods, mirror):
        before = len(server.requests)
        server.refuse = 503
        server.cut_watches()
        await asyncio.sleep(1.2)
        assert 2 <= len(server.requests) - before <= 6
        assert pods.down_since is not None
        server.refuse = None
        uid = server.put_pod("next")
        await until(lambda: uid in mirror.existing)
        assert pods.down_since is None
        assert pods.relists == 0


async def test_a_version_that_is_refused_for_good_is_given_up(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "REFUSALS_TO_START_OVER", 2)
    async with following(client, PODS) as (pods, _):
        server.refuse = 504
        server.cut_watches()
        await until(lambda: pods.relists == 1)
        server.refuse = None
        await until(lambda: pods.down_since is None)


async def test_a_burst_of_events_leaves_the_loop_to_others(server: FakeApiServer, client: Client) -> None:
    turn = 0
    turns: dict[int, int] = {}

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def count(_: object) -> None:
        turns[turn] = turns.get(turn, 0) + 1

    async with following(client, PODS) as (pods, _):
        pods._emit = count
        task = asyncio.create_task(others())
        line = b'{"type":"ADDED","object":{"metadata":{"name":"p","uid":"u","resourceVersion":"9"}}}\n'
        server.send("pods", line * 3000)
        await until(lambda: sum(turns.values()) == 3000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert max(turns.values()) <= reflector_module.EVENTS_PER_TURN
