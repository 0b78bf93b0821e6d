"""What the planner tells others to do, and what they tell it of the outcome.

An instruction is carried out by whoever writes to the API server, those for one pod in the order in which they came;
the outcome comes back as an event. Nothing here is said twice: what fails is planned anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from extender.cluster.events import NodeGone, NodeSeen, PodGone, PodSeen, Reserved, Settled
from extender.cluster.reports import ReportGone, ReportSeen
from extender.fairness.reading import Policies


@dataclass(frozen=True, slots=True)
class Ref:
    """A pod of one life: `uid` is the precondition of every write."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Nominate the node, then lift our gate. `node` None: lift it only, so that an autoscaler sees the pod."""

    pod: Ref
    node: str | None


@dataclass(frozen=True, slots=True)
class Nominate:
    """Nominate the node; the gate stays if there is one."""

    pod: Ref
    node: str


@dataclass(frozen=True, slots=True)
class Clear:
    """End the nomination that we wrote, if it still is `value`."""

    pod: Ref
    value: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict the victims to make room for the pod on the node; `why` is for people."""

    victims: tuple[Ref, ...]
    pod: Ref
    node: str
    why: str


Instruction = Release | Nominate | Clear | Evict


@dataclass(frozen=True, slots=True)
class PoliciesSeen:
    """These are the policies from now on."""

    policies: Policies


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """The namespace has these labels; None: it is gone."""

    name: str
    labels: Mapping[str, str] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClassesSeen:
    """Pods of these PriorityClasses may be evicted, in whatever tenant."""

    preemptible: frozenset[str]


@dataclass(frozen=True, slots=True)
class Carried:
    """The Release or Nominate for the pod is written."""

    uid: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The Release or Nominate for the pod did not come about, as far as is known."""

    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class NotEvicted:
    """The victim stays: a disruption budget or the API server refused."""

    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The scheduler does not take the pod where it was nominated, but would on one of these rows."""

    uid: str
    rows: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Happening = (
    PodSeen
    | PodGone
    | NodeSeen
    | NodeGone
    | ReportSeen
    | ReportGone
    | Reserved
    | Settled
    | PoliciesSeen
    | NamespaceSeen
    | ClassesSeen
    | Carried
    | Failed
    | NotEvicted
    | Elsewhere
    | Tick
)
"""What a step is about; those of the cluster have been applied to the book before."""
