"""What `ClusterState.apply` has to tell a person: the caller logs and counts it, the book only notices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BoundPastUs:
    """A GPU pod has a node that kvitej did not give it."""

    namespace: str
    name: str
    node: str

    def __str__(self) -> str:
        return (
            f"pod {self.namespace}/{self.name} was bound to {self.node} past kvitej: it is charged at its worst case; "
            "check its schedulerName and the managedResources of the scheduler configuration"
        )


@dataclass(frozen=True, slots=True)
class WorstCase:
    """Which cards the pod holds is not known: its record is missing, unreadable or not what its spec asks."""

    namespace: str
    name: str
    node: str

    def __str__(self) -> str:
        return (
            f"which cards of {self.node} pod {self.namespace}/{self.name} holds is not known: "
            "it is charged at its worst case until it is gone"
        )


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """Nothing more is placed on the node while the reason lasts."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} is closed: {self.reason}"


@dataclass(frozen=True, slots=True)
class UnlistedResource:
    """A node advertises a resource that the scheduler does not ask us about."""

    node: str
    resource: str

    def __str__(self) -> str:
        return (
            f"node {self.node} advertises {self.resource}, which managedResources of the scheduler lacks: "
            "pods that ask for it go past the veto; add the name (`kvitej scheduler-config` prints the known ones)"
        )


@dataclass(frozen=True, slots=True)
class LinksUnknown:
    """What the node says of its links counts for nothing."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"the links of node {self.node} count as unknown: {self.reason}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The kubelet gave the pod other cards than kvitej planned."""

    namespace: str
    name: str
    uid: str
    node: str
    planned: str
    given: str

    def __str__(self) -> str:
        return (
            f"pod {self.namespace}/{self.name} was planned on {self.planned} of {self.node}, "
            f"and the kubelet gave it {self.given}: the book follows the node"
        )


@dataclass(frozen=True, slots=True)
class Leaked:
    """The kubelet says that a pod holds devices, and there is no such pod on the node."""

    node: str
    namespace: str
    name: str
    devices: str

    def __str__(self) -> str:
        return (
            f"{self.devices} of node {self.node} leaked: the kubelet says that pod {self.namespace}/{self.name} holds "
            "them, and there is no such pod; kvitej gives them to nobody; if they stay held, restart the kubelet"
        )


@dataclass(frozen=True, slots=True)
class AgentSilent:
    """What a node's report says is old."""

    node: str
    age: float
    closed: bool

    def __str__(self) -> str:
        how = "takes nothing until it does" if self.closed else "counts by its labels and its last report"
        return f"the agent of node {self.node} has not reported for {self.age:.0f} s: the node {how}"


@dataclass(frozen=True, slots=True)
class ReportUnreadable:
    """A node's report can't be read: what the one before said holds on."""

    node: str
    fault: str

    def __str__(self) -> str:
        return f"the report on node {self.node} cannot be read, so the last one that could be counts: {self.fault}"


Notice = (
    BoundPastUs
    | WorstCase
    | NodeClosed
    | UnlistedResource
    | LinksUnknown
    | Moved
    | Leaked
    | AgentSilent
    | ReportUnreadable
)
