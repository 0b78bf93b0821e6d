"""What may happen to the book: the only values that `ClusterState.apply` takes.

The first four come from the API server's watch, those of `reports` from the nodes' agents, the rest from kvitej's own
doors. Times are seconds of one
monotonic clock, passed in by whoever makes the event.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from extender.cluster.assignment import Cards
from extender.cluster.reports import AgentEvent
from extender.cluster.request import Request
from extender.wire.objects import Node, Pod


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node exists and looks like this; `fault` says that the rest of it could not be decoded."""

    node: Node
    fault: str = ""


@dataclass(frozen=True, slots=True)
class NodeGone:
    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod exists and looks like this; a terminal pod holds nothing.

    `fault` says that its spec could not be decoded: then `pod` has only what could be.
    """

    pod: Pod
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PodGone:
    uid: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """Filter expects the pod on these cards: lowers the node's rank for others until `until` or its Bind."""

    pod: Pod
    request: Request
    node: str
    cards: Cards
    until: float


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """The pod's soft claim ends: where it will sit is being decided anew."""

    uid: str


@dataclass(frozen=True, slots=True)
class Nudged:
    """The waiting pods were woken for the room that the book has now; more room may wake them again."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Promised:
    """The planner claims the seat for a waiting pod, in place of an earlier claim of its own if there is one."""

    pod: Pod
    node: str
    devices: str
    """The value of the annotation `kvitej.io/devices` that its Binding is to carry."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The planner's claim ends without a Bind; a seat that is more than claimed stays."""

    uid: str


@dataclass(frozen=True, slots=True)
class Reckoned:
    """The planner reckons that the pod's work is borrowed (it can be asked back), or that it is not."""

    uid: str
    borrowed: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """Bind is about to write: the seat is taken from now on."""

    pod: Pod
    node: str
    devices: str | None
    """The value of the annotation `kvitej.io/devices` that the Binding carries; None if it holds no device."""


class Outcome(Enum):
    """How a Binding ended, as far as the API server has told."""

    BOUND = "bound"
    REFUSED = "refused"
    """Certainly not written: the pod is gone, changed, bound elsewhere, or the write never left."""
    UNKNOWN = "unknown"
    """The answer was lost: the write may have happened, so the seat stays until a read or the watch tells."""


class BindResult(NamedTuple):
    """What became of a Binding, with a sentence for whoever asked for it (empty when bound)."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of the Binding for which the seat was reserved."""

    uid: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Filled:
    """Cards of the node may be filled up to this part of what the driver leaves; None: as is usual."""

    node: str
    watermark: float | None


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Time has passed: soft claims older than `now` end, and agents that have been silent for too long are noticed."""

    now: float


Event = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | Claimed
    | Unclaimed
    | Nudged
    | Promised
    | Withdrawn
    | Reckoned
    | Reserved
    | Settled
    | Filled
    | Elapsed
    | AgentEvent
)
