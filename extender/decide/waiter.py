"""A pod that waits for a node, as the planner keeps it."""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

from extender.decide.instructions import Ref
from extender.decide.room import Shape
from extender.fairness.ledger import FREE_FOR_ALL
from extender.fairness.usage import wall_of
from extender.wire.marks import GATE, PREEMPTIBLE
from extender.wire.objects import Pod
from extender.wire.surroundings import PriorityClass

NO_VICTIMS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What a pod's object says that may change while it waits.

    `gates` are those of others: it gets no seat until they are gone. `unschedulable`: the scheduler has tried it and
    found no node.
    """

    gated: bool
    gates: tuple[str, ...]
    nominated: str | None
    unschedulable: bool


UNSEEN = Look(False, (), None, False)


@dataclass(slots=True, eq=False)
class Waiter:
    """Times are seconds of the planner's clock but `created`, which is wall time and orders the line.

    `node` is that of its live claim, which ends at `until`; its gate is lifted once the `victims` are gone.
    """

    ref: Ref
    created: float
    since: float
    pool: str | None = None
    tenant: str = FREE_FOR_ALL
    shape: Shape | None = None
    """None: what it asks for cannot be read."""
    priority: int = 0
    preemptible: bool = False
    covered: bool = False
    look: Look = UNSEEN
    node: str | None = None
    until: float = math.inf
    victims: frozenset[str] = NO_VICTIMS
    clearing: bool = False
    """They are gone, and the node's report still has them on its cards."""
    wrote: str | None = None
    """The nomination that we wrote and have not ended."""
    tries: int = 0
    rests_until: float = 0.0
    trouble: str = ""
    """What its last try came to."""

    @property
    def standing(self) -> tuple[str | None, str, Shape | None, int, bool]:
        """What decides where in which line it belongs."""
        return self.pool, self.tenant, self.shape, self.priority, self.preemptible

    @property
    def held_back(self) -> bool:
        """Its seat is kept, and it is not sent there before others have left."""
        return bool(self.victims) or self.clearing

    @property
    def gated(self) -> bool:
        return self.look.gated

    @property
    def nominated(self) -> str | None:
        return self.look.nominated

    @property
    def stands(self) -> bool:
        """Whether it belongs in line, unless it rests."""
        return (
            self.node is None
            and self.shape is not None
            and not self.look.gates
            and (self.look.gated or self.covered)
        )

    def is_refused_by(self, look: Look) -> bool:
        """Whether this look, the first after the last one, says that the scheduler has refused its claim's node.

        A pod that was refused before looks so until it is tried again: then only its nomination tells, which the
        scheduler clears.
        """
        cleared = self.look.nominated == self.node and look.nominated is None
        return (
            self.node is not None
            and not self.held_back
            and look.unschedulable
            and not look.gated
            and (cleared or not self.look.unschedulable)
        )


def look_at(pod: Pod) -> Look:
    names = [gate.name for gate in (pod.spec.scheduling_gates if pod.spec else None) or ()]
    status = pod.status
    return Look(
        gated=GATE in names,
        gates=tuple(name for name in names if name != GATE),
        nominated=(status.nominated_node_name if status else None) or None,
        unschedulable=any(
            condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
            for condition in (status.conditions if status else None) or ()
        ),
    )


def ref_of(pod: Pod) -> Ref:
    metadata = pod.metadata
    return Ref(metadata.namespace or "default", metadata.name, metadata.uid)


def created_at(pod: Pod) -> float:
    """Seconds of the wall clock; a pod that does not say when it came is the youngest."""
    try:
        return wall_of(pod.metadata.creation_timestamp or "")
    except ValueError:
        return math.inf


def bound_at(pod: Pod) -> float | None:
    """Seconds of the wall clock at which the pod was bound, or at the latest; None if it does not say."""
    status = pod.status
    times = [
        condition.last_transition_time
        for condition in (status.conditions if status else None) or ()
        if condition.type == "PodScheduled" and condition.status == "True"
    ]
    for text in (*times, status.start_time if status else None):
        try:
            return wall_of(text or "")
        except ValueError:
            continue
    return None


def is_preemptible(pod: Pod, classes: Container[str]) -> bool:
    """Whether the pod or its PriorityClass, if it is one of these, says that it may be evicted."""
    by_class = pod.spec is not None and pod.spec.priority_class_name in classes
    return by_class or (pod.metadata.labels or {}).get(PREEMPTIBLE) == "true"


def preemptible_classes(classes: Iterable[PriorityClass]) -> frozenset[str]:
    """The names of those whose pods may be evicted, as `ClassesSeen` takes them."""
    return frozenset(
        each.metadata.name for each in classes if (each.metadata.labels or {}).get(PREEMPTIBLE) == "true"
    )
