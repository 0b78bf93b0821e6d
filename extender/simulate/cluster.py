"""The embedded cluster's API server: nodes and pods as JSON objects, whose changes are told to kvitej's book.

It takes writes as the real one does: the uid is a precondition, a Binding's annotations land in the same write, a pod
that has a node gets no other, and a new pod passes the admission step. Events are delivered at once, in order.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

import msgspec

from extender.cluster.events import BindResult, Event, NodeSeen, Outcome, PodGone, PodSeen
from extender.simulate.admission import Admission
from extender.simulate.clock import Clock
from extender.wire.marks import EVICTED, GATE
from extender.wire.objects import Node, Pod, Quantity
from extender.wire.quantity import milli

Json = dict[str, Any]


class Written(NamedTuple):
    """What became of a write, with a sentence unless it is done."""

    done: bool
    detail: str = ""


DONE = Written(True)


class EmbeddedCluster:
    """`deliver` is told of every change; the objects are the ones that a watch would send.

    `admission` is what new pods go through, if anything.
    """

    def __init__(
        self, deliver: Callable[[Event], None], clock: Clock, admission: Admission | None = None
    ) -> None:
        self.admission = admission
        self._deliver = deliver
        self._clock = clock
        self._follower: Callable[[Json], None] = lambda pod: None
        self._uids = map(str, map(uuid.UUID, (f"{number:032x}" for number in count(1))))
        self._nodes: dict[str, Json] = {}
        self._pods: dict[tuple[str, str], Json] = {}

    def follow(self, follower: Callable[[Json], None]) -> None:
        """Tell this one, too, of every pod that is created or changed: scheduler and kubelet watch as well."""
        self._follower = follower

    def add_node(self, name: str, labels: Mapping[str, str], allocatable: Mapping[str, Quantity]) -> None:
        amounts = {resource: str(amount) for resource, amount in allocatable.items()}
        node = {
            "metadata": {"name": name, "uid": next(self._uids), "labels": dict(labels)},
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
        """Create a pending pod of one container; gives the object.

        Raises
        ------
        RefusedError
            The admission step refused it.
        """
        amounts = {resource: str(amount) for resource, amount in asks.items()}
        pod: Json = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": next(self._uids),
                "creationTimestamp": self._stamp(),
                "annotations": dict(annotations),
            },
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
            },
            "status": {"phase": "Pending"},
        }
        if self.admission is not None:
            pod = self.admission.admit(pod)
        self._pods[namespace, name] = pod
        self._tell(pod)
        return pod

    def delete(self, namespace: str, name: str) -> None:
        pod = self._pods.pop((namespace, name))
        self._deliver(PodGone(pod["metadata"]["uid"]))

    # what kvitej writes

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult:
        pod, fault = self._of(namespace, name, uid)
        if pod is None:
            return BindResult(Outcome.REFUSED, fault)
        metadata, spec = pod["metadata"], pod["spec"]
        if "nodeName" in spec:
            return BindResult(
                Outcome.REFUSED, f"pod {namespace}/{name} is bound to {spec['nodeName']} already"
            )
        if is_gated(pod):
            return BindResult(Outcome.REFUSED, f"pod {namespace}/{name} has scheduling gates")
        metadata["annotations"] |= annotations
        spec["nodeName"] = node
        pod["status"] = {"phase": "Running", "startTime": self._stamp()}
        self._tell(pod)
        return BindResult(Outcome.BOUND)

    async def read(self, namespace: str, name: str) -> Pod | None:
        pod = self._pods.get((namespace, name))
        return None if pod is None else msgspec.convert(pod, Pod)

    async def nominate(self, namespace: str, name: str, uid: str, node: str | None) -> Written:
        pod, fault = self._of(namespace, name, uid)
        if pod is None:
            return Written(False, fault)
        self._set_nomination(pod, node)
        self._tell(pod)
        return DONE

    async def lift(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> Written:
        pod, fault = self._of(namespace, name, uid)
        if pod is None:
            return Written(False, fault)
        gates = pod["spec"].get("schedulingGates", [])
        pod["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != GATE]
        pod["metadata"]["annotations"] |= annotations
        self._tell(pod)
        return DONE

    async def evict(self, namespace: str, name: str, uid: str, reason: str) -> Written:
        """The pod terminates from now on; whoever plays its kubelet deletes it after its grace."""
        pod, fault = self._of(namespace, name, uid)
        if pod is None:
            return Written(False, fault)
        pod["metadata"]["annotations"][EVICTED] = reason
        pod["metadata"]["deletionTimestamp"] = self._stamp()
        self._tell(pod)
        return DONE

    # what the scheduler writes and counts

    def unschedulable(self, pod: Json) -> None:
        """The scheduler has found no node: it says so, and its nomination is no more."""
        metadata = pod["metadata"]
        if self._of(metadata["namespace"], metadata["name"], metadata["uid"])[0] is None:
            return
        self._set_nomination(pod, None)
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        ]
        self._tell(pod)

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

    def pods_on(self, node: str) -> list[Json]:
        """The pods that are bound to the node."""
        return [pod for pod in self._pods.values() if pod["spec"].get("nodeName") == node]

    def _of(self, namespace: str, name: str, uid: str) -> tuple[Json | None, str]:
        """The pod that is meant, or why there is none."""
        pod = self._pods.get((namespace, name))
        if pod is None:
            return None, f"pod {namespace}/{name} is gone"
        if pod["metadata"]["uid"] != uid:
            return None, f"pod {namespace}/{name} was re-created: it isn't {uid} any more"
        return pod, ""

    @staticmethod
    def _set_nomination(pod: Json, node: str | None) -> None:
        if node is None:
            pod["status"].pop("nominatedNodeName", None)
        else:
            pod["status"]["nominatedNodeName"] = node

    def _stamp(self) -> str:
        """The time as RFC 3339 writes it."""
        return datetime.fromtimestamp(self._clock.wall(), UTC).isoformat()

    def _tell(self, pod: Json) -> None:
        self._deliver(PodSeen(msgspec.convert(pod, Pod)))
        self._follower(pod)


def is_gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def nomination(pod: Json) -> str | None:
    """The node that the scheduler shall try first."""
    found: str | None = pod["status"].get("nominatedNodeName")
    return found


def asks_of(pod: Json) -> Iterator[tuple[str, int]]:
    """What the pod requests, in thousandths, by resource."""
    for container in pod["spec"]["containers"]:
        for resource, amount in container["resources"]["requests"].items():
            yield resource, milli(amount)
