"""The embedded API server: what it refuses, and what it tells the book."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.events import BindResult, Event, NodeSeen, Outcome, PodGone, PodSeen
from extender.simulate.admission import Admission, RefusedError
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster, is_gated
from extender.wire.admission import Add, Patch, Remove, allowed, denied
from extender.wire.marks import EVICTED, GATE


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def cluster(events: list[Event]) -> EmbeddedCluster:
    made = EmbeddedCluster(events.append, Clock())
    made.add_node("a", {"kind": "x"}, {"cpu": 8, "nvidia.com/gpu": 2})
    return made


async def bind(cluster: EmbeddedCluster, pod: dict[str, Any], node: str, **others: Any) -> BindResult:
    metadata = pod["metadata"]
    call = {"namespace": "team", "name": metadata["name"], "uid": metadata["uid"], "annotations": {"b": "2"}}
    return await cluster.bind(node=node, **{**call, **others})


async def test_every_change_is_told_with_the_object_as_it_then_is(
    cluster: EmbeddedCluster, events: list[Event]
) -> None:
    pod = cluster.create("team", "train", {"cpu": "500m", "nvidia.com/gpu": 1}, {"a": "1"}, "fair-quota")
    assert (await bind(cluster, pod, "a")) == BindResult(Outcome.BOUND)
    assert cluster.room() == {"a": {"cpu": 7500, "nvidia.com/gpu": 1000}}
    cluster.delete("team", "train")
    assert cluster.room() == {"a": {"cpu": 8000, "nvidia.com/gpu": 2000}}
    node, created, bound, gone = events
    assert isinstance(node, NodeSeen)
    assert node.node.metadata.labels == {"kind": "x"}
    assert isinstance(created, PodSeen)
    assert created.pod.spec is not None
    assert created.pod.spec.node_name is None
    assert isinstance(bound, PodSeen)
    assert bound.pod.spec is not None
    assert bound.pod.spec.node_name == "a"
    assert bound.pod.metadata.annotations == {"a": "1", "b": "2"}
    assert gone == PodGone(pod["metadata"]["uid"])


async def test_a_binding_is_refused_where_the_real_api_server_refuses_it(
    cluster: EmbeddedCluster, events: list[Event]
) -> None:
    pod = cluster.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    seen = len(events)
    assert (await bind(cluster, pod, "a", name="other")).detail == "pod team/other is gone"
    assert "re-created" in (await bind(cluster, pod, "a", uid="another")).detail
    assert len(events) == seen
    assert (await bind(cluster, pod, "a")).outcome is Outcome.BOUND
    again = await bind(cluster, pod, "a")
    assert again == BindResult(Outcome.REFUSED, "pod team/train is bound to a already")
    found = await cluster.read("team", "train")
    assert found is not None
    assert found.spec is not None
    assert found.spec.node_name == "a"
    assert await cluster.read("team", "other") is None


async def test_kvitejs_writes_hit_only_the_pod_that_was_meant(
    cluster: EmbeddedCluster, events: list[Event]
) -> None:
    pod = cluster.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    pod["spec"]["schedulingGates"] = [{"name": "other.io/gate"}, {"name": GATE}]
    uid, seen = pod["metadata"]["uid"], len(events)
    for written in (
        await cluster.nominate("team", "train", "another", "a"),
        await cluster.lift("team", "train", "another", {}),
        await cluster.evict("team", "gone", uid, "why"),
    ):
        assert not written.done
        assert "pod team/" in written.detail
    assert len(events) == seen
    assert "has scheduling gates" in (await bind(cluster, pod, "a")).detail
    assert (await cluster.nominate("team", "train", uid, "a")).done
    assert (await cluster.lift("team", "train", uid, {"why": "turn"})).done
    assert pod["spec"]["schedulingGates"] == [{"name": "other.io/gate"}], "ours and no other"
    assert pod["metadata"]["annotations"] == {"why": "turn"}
    told = events[-1]
    assert isinstance(told, PodSeen)
    assert told.pod.status is not None
    assert told.pod.status.nominated_node_name == "a"
    assert (await cluster.nominate("team", "train", uid, None)).done
    assert "nominatedNodeName" not in pod["status"]


async def test_an_evicted_pod_terminates_and_knows_why(cluster: EmbeddedCluster, events: list[Event]) -> None:
    followed: list[dict[str, Any]] = []
    cluster.follow(followed.append)
    pod = cluster.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    assert (await cluster.evict("team", "train", pod["metadata"]["uid"], "room for another")).done
    told = events[-1]
    assert isinstance(told, PodSeen)
    assert told.pod.metadata.deletion_timestamp
    assert told.pod.metadata.annotations == {EVICTED: "room for another"}
    assert followed == [pod, pod]


def test_a_new_pod_is_stored_as_the_reviews_leave_it_or_not_at_all(events: list[Event]) -> None:
    verdicts = iter([allowed("u"), denied("u", 429, "TooManyRequests", "kvitej: the queue is full")])
    gates: Patch = [
        Add("/spec/schedulingGates", [{"name": GATE}]),
        Remove("/metadata/annotations/kvitej.io~1evicted"),
    ]
    admission = Admission(lambda body: allowed("u", gates), lambda body: next(verdicts))
    cluster = EmbeddedCluster(events.append, Clock(), admission)
    pod = cluster.create("team", "train", {"nvidia.com/gpu": 1}, {EVICTED: "forged"}, "fair-quota")
    assert is_gated(pod)
    assert pod["metadata"]["annotations"] == {}
    assert len(events) == 1
    with pytest.raises(RefusedError, match="the queue is full"):
        cluster.create("team", "other", {"nvidia.com/gpu": 1}, {EVICTED: "forged"}, "fair-quota")
    assert len(events) == 1


def test_the_clock_stands_still_and_never_goes_back() -> None:
    clock = Clock()
    wall = clock.wall()
    clock.advance(60)
    clock.advance(30)
    assert (clock(), clock.wall() - wall) == (60, 60)
