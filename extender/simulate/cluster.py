"""The embedded cluster's API server: nodes and pods as JSON objects, whose changes are told to kvitej's book.

It takes Bindings as the real one does: the uid is a precondition, the annotations land in the same write, and a pod
that has a node gets no other. Events are delivered at once, in order.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from extender.cluster.events import BindResult, Event, NodeSeen, Outcome, PodGone, PodSeen
from extender.wire.objects import Node, Pod, Quantity
from extender.wire.quantity import milli

Json = dict[str, Any]


class EmbeddedCluster:
    """`deliver` is told of every change; the objects are the ones that a watch would send."""

    def __init__(self, deliver: Callable[[Event], None]) -> None:
        self._deliver = deliver
        self._nodes: dict[str, Json] = {}
        self._pods: dict[tuple[str, str], Json] = {}

    def add_node(self, name: str, labels: Mapping[str, str], allocatable: Mapping[str, Quantity]) -> None:
        amounts = {resource: str(amount) for resource, amount in allocatable.items()}
        node = {
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "labels": dict(labels)},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        self._nodes[name] = node
        self._deliver(NodeSeen(msgspec.convert(node, Node)))

    def create(
        self,
        namespace: str,
        name: str,
        asks: Mapping[str, Quantity],
        annotations: Mapping[str, str],
        scheduler: str,
    ) -> Json:
        """Create a pending pod of one container; gives the object."""
        amounts = {resource: str(amount) for resource, amount in asks.items()}
        pod = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "annotations": dict(annotations),
            },
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
            },
            "status": {"phase": "Pending"},
        }
        self._pods[namespace, name] = pod
        self._tell(pod)
        return pod

    def delete(self, namespace: str, name: str) -> None:
        pod = self._pods.pop((namespace, name))
        self._deliver(PodGone(pod["metadata"]["uid"]))

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult:
        pod = self._pods.get((namespace, name))
        if pod is None:
            return BindResult(Outcome.REFUSED, f"pod {namespace}/{name} is gone")
        metadata, spec = pod["metadata"], pod["spec"]
        if metadata["uid"] != uid:
            return BindResult(
                Outcome.REFUSED, f"pod {namespace}/{name} was re-created: it isn't {uid} any more"
            )
        if "nodeName" in spec:
            return BindResult(
                Outcome.REFUSED, f"pod {namespace}/{name} is bound to {spec['nodeName']} already"
            )
        metadata["annotations"] |= annotations
        spec["nodeName"] = node
        pod["status"]["phase"] = "Running"
        self._tell(pod)
        return BindResult(Outcome.BOUND)

    async def read(self, namespace: str, name: str) -> Pod | None:
        pod = self._pods.get((namespace, name))
        return None if pod is None else msgspec.convert(pod, Pod)

    def room(self) -> dict[str, dict[str, int]]:
        """What pods leave of each node's allocatable, in thousandths, by resource: the scheduler's own count."""
        room = {
            name: {resource: milli(amount) for resource, amount in node["status"]["allocatable"].items()}
            for name, node in self._nodes.items()
        }
        for pod in self._pods.values():
            node = pod["spec"].get("nodeName")
            if node is not None:
                for resource, amount in asks_of(pod):
                    room[node][resource] = room[node].get(resource, 0) - amount
        return room

    def _tell(self, pod: Json) -> None:
        self._deliver(PodSeen(msgspec.convert(pod, Pod)))


def asks_of(pod: Json) -> Iterator[tuple[str, int]]:
    """What the pod requests, in thousandths, by resource."""
    for container in pod["spec"]["containers"]:
        for resource, amount in container["resources"]["requests"].items():
            yield resource, milli(amount)
