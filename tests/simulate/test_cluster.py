"""The embedded API server: what it refuses, and what it tells the book."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.events import BindResult, Event, NodeSeen, Outcome, PodGone, PodSeen
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster


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
