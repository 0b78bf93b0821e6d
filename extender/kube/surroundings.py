"""Keeps at hand what fairness reads besides nodes and pods, from the API server's watches.

FairnessPolicies, namespaces, PriorityClasses and PodDisruptionBudgets are few and small, so they are kept as
they are now rather than passed on one by one: whoever needs them is told that something changed, and reads.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

from extender.kube.client import Client
from extender.kube.reflector import Reflector
from extender.kube.resource import Resource, T
from extender.wire.surroundings import (
    GROUP,
    VERSION,
    FairnessPolicy,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
)


class Part(Enum):
    """Which of the kept objects changed."""

    POLICIES = "policies"
    NAMESPACES = "namespaces"
    PRIORITY_CLASSES = "priority classes"
    BUDGETS = "disruption budgets"


@dataclass(frozen=True, slots=True)
class _Gone:
    uid: str


class _Shelf(Generic[T]):
    """The objects of one resource, by uid; one that cannot be read stays as it was when it last could be."""

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[T],
        changed: Callable[[], None],
        *,
        optional: bool,
        inactivity: float,
    ) -> None:
        self.objects: dict[str, T] = {}
        self._changed = changed
        resource: Resource[T, T | _Gone] = Resource(
            path, kind, lambda thing: thing, lambda name, uid: _Gone(uid), optional=optional
        )
        self.reflector = Reflector(client, resource, self._take, lambda _: None, inactivity=inactivity)

    def _take(self, event: T | _Gone) -> None:
        if not isinstance(event, _Gone):
            self.objects[event.metadata.uid] = event
        elif self.objects.pop(event.uid, None) is None:
            return
        self._changed()


class Surroundings:
    """The four watches and what they have told so far.

    Parameters
    ----------
    changed
        Called on the loop's thread after each change, hence in thousands at the start: note it, and read later.

    Attributes
    ----------
    policies, namespaces, priority_classes, budgets : Mapping
        uid → object, live and read-only. While the cluster has no such CRD there are no policies.
    """

    def __init__(self, client: Client, changed: Callable[[Part], None], *, inactivity: float = 150.0) -> None:
        def shelf(part: Part, path: str, kind: type[T], *, optional: bool = False) -> _Shelf[T]:
            return _Shelf(client, path, kind, lambda: changed(part), optional=optional, inactivity=inactivity)

        policies = shelf(
            Part.POLICIES, f"/apis/{GROUP}/{VERSION}/fairnesspolicies", FairnessPolicy, optional=True
        )
        namespaces = shelf(Part.NAMESPACES, "/api/v1/namespaces", Namespace)
        classes = shelf(Part.PRIORITY_CLASSES, "/apis/scheduling.k8s.io/v1/priorityclasses", PriorityClass)
        budgets = shelf(Part.BUDGETS, "/apis/policy/v1/poddisruptionbudgets", PodDisruptionBudget)
        self.policies: Mapping[str, FairnessPolicy] = policies.objects
        self.namespaces: Mapping[str, Namespace] = namespaces.objects
        self.priority_classes: Mapping[str, PriorityClass] = classes.objects
        self.budgets: Mapping[str, PodDisruptionBudget] = budgets.objects
        self.reflectors: dict[Part, Reflector[Any, Any]] = {
            Part.POLICIES: policies.reflector,
            Part.NAMESPACES: namespaces.reflector,
            Part.PRIORITY_CLASSES: classes.reflector,
            Part.BUDGETS: budgets.reflector,
        }

    async def run(self) -> None:
        """Follow all until cancelled; what `changed` raises ends it."""
        async with asyncio.TaskGroup() as group:
            for part, reflector in self.reflectors.items():
                group.create_task(reflector.run(), name=f"watch {part.value}")

    async def wait_synced(self) -> None:
        """Return once everything has been told for the first time."""
        for reflector in self.reflectors.values():
            await reflector.synced.wait()

    @property
    def synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self.reflectors.values())

    def stale_for(self, now: float) -> float:
        """Seconds at `now` (monotonic) since one of the watches went down; 0 while all are open."""
        downs = [each.down_since for each in self.reflectors.values() if each.down_since is not None]
        return now - min(downs) if downs else 0.0
