"""Small nodes and pods as the API server would send them, and the bodies that kube-scheduler makes of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from extender.cluster import assignment
from extender.cluster.events import Claimed, NodeSeen, PodSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.serve.book import new_state
from extender.wire.devices import ContainerDevices, Devices, encode
from extender.wire.objects import Node, Pod

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-1g.5gb"


def node(
    name: str = "n0",
    amounts: Mapping[str, Any] | None = None,
    *,
    memory: int | str = 0,
    replicas: int | str = 0,
    labels: Mapping[str, str] | None = None,
    capacity: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Node:
    """A node that advertises `amounts`; `memory` in MiB per card and `replicas` are its labels, 0 for none."""
    found = dict(labels or {})
    if memory:
        found["nvidia.com/gpu.memory"] = str(memory)
    if replicas:
        found["nvidia.com/gpu.replicas"] = str(replicas)
    allocatable = {"cpu": "96", "memory": "1Ti", **(amounts or {})}
    status: Json = {"allocatable": allocatable}
    if capacity is not None:
        status["capacity"] = {"cpu": "96", "memory": "1Ti", **capacity}
    metadata = {"name": name, "labels": found, "annotations": dict(annotations or {})}
    return msgspec.convert({"metadata": metadata, "status": status, **more}, Node)


def raw_pod(
    name: str = "p0",
    amounts: Mapping[str, Any] | None = None,
    *,
    memory: str | None = None,
    namespace: str = "team",
    uid: str | None = None,
    at: str | None = None,
    record: str | None = None,
    priority: int = 0,
    phase: str = "Pending",
    refused: bool = False,
    created: str = "2026-11-30T12:00:00Z",
    spec: Mapping[str, Any] | None = None,
) -> Json:
    """A pod of one container asking for `amounts`; `memory` is declared per card, `at` its node."""
    annotations = {}
    if memory is not None:
        annotations["kvitej.io/gpu-memory"] = memory
    if record is not None:
        annotations["kvitej.io/devices"] = record
    status: Json = {"phase": phase}
    if refused:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    asks = dict(amounts or {})
    pod_spec: Json = {"containers": [container("main", asks)], "priority": priority, **(spec or {})}
    if at is not None:
        pod_spec["nodeName"] = at
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "annotations": annotations,
            "creationTimestamp": created,
        },
        "spec": pod_spec,
        "status": status,
    }


def container(name: str, amounts: Mapping[str, Any], *, sidecar: bool = False) -> Json:
    found: Json = {"name": name, "resources": {"requests": dict(amounts), "limits": dict(amounts)}}
    return {**found, "restartPolicy": "Always"} if sidecar else found


def pod(name: str = "p0", amounts: Mapping[str, Any] | None = None, **parts: Any) -> Pod:
    """`raw_pod`, decoded."""
    return read_pod(raw_pod(name, amounts, **parts))


def read_pod(raw: Json) -> Pod:
    return msgspec.convert(raw, Pod)


def book(*nodes: Node, pods: Iterable[Pod] = (), config: Config | None = None) -> ClusterState:
    """A state that has seen these; cards may be filled up, unless a configuration says otherwise."""
    state = new_state(config or Config(cards=Cards(watermark=100)))
    for seen in nodes:
        state.apply(NodeSeen(seen))
    for sitting in pods:
        state.apply(PodSeen(sitting))
    return state


def filter_body(raw: Json, names: Iterable[str]) -> bytes:
    """Also the body of Prioritize."""
    return msgspec.json.encode({"Pod": raw, "Nodes": None, "NodeNames": list(names)})


def binding_body(raw: Json, at: str) -> bytes:
    meta = raw["metadata"]
    return msgspec.json.encode(
        {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": at,
        }
    )


def preemption_body(raw: Json, victims: Mapping[str, Iterable[str]]) -> bytes:
    proposed = {
        name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for name, uids in victims.items()
    }
    return msgspec.json.encode({"Pod": raw, "NodeNameToVictims": None, "NodeNameToMetaVictims": proposed})


def record_of(*, gpu: tuple[int, ...] = (), shared: tuple[int, ...] = (), units: float = 1.0) -> str:
    """The annotation's value for a pod whose container `main` holds these cards."""
    return encode(Devices(units, {"main": ContainerDevices(gpu, shared)}))


def claimed(pod: Pod, node: str, cards: assignment.Cards, until: float) -> Claimed:
    """Filter expects the pod there."""
    return Claimed(pod, request_of(pod), node, cards, until)
