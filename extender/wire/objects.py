"""Slim Kubernetes objects: only the fields that a decision reads.

msgspec skips every field that is not declared here without building anything for it, so 50,000 pods decode in
about a second. `gc=False` keeps these short-lived trees out of the garbage collector (they hold no cycles).
Optional fields default to what the API server means by leaving them out; null counts as left out.
"""

from typing import Any

import msgspec


class Slim(msgspec.Struct, gc=False, rename="camel"):
    """Base of all slim objects: camelCase on the wire, unknown fields skipped."""


class ObjectMeta(Slim):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


Quantity = str | int | float
"""A quantity as it arrives; `extender.wire.quantity` reads it."""


class Resources(Slim):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Container(Slim):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class SchedulingGate(Slim):
    name: str = ""


class SelectorRequirement(Slim):
    """Of a node selector or a label selector; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Slim):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Slim):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Slim):
    required: NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Slim):
    node_affinity: NodeAffinity | None = None


class Toleration(Slim):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PodSpec(Slim):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: dict[str, Quantity] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None


class Condition(Slim):
    type: str = ""
    status: str = ""
    reason: str | None = None
    last_transition_time: str | None = None


class PodStatus(Slim):
    phase: str | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None


class Pod(Slim):
    metadata: ObjectMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Taint(Slim):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(Slim):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(Slim):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None


class Node(Slim):
    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Binding(Slim):
    """Body of `POST pods/NAME/binding`; the uid is a precondition, the annotations land in the same write."""

    api_version: str
    kind: str
    metadata: dict[str, Any]
    target: dict[str, str]


class Status(Slim):
    """The API server's answer to a write, and the object of a watch's ERROR event."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None


class ListMeta(Slim):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class PodList(Slim):
    metadata: ListMeta
    items: list[Pod] | None = None
