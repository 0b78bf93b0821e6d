"""Reads policies and namespaces anew when the watches have told of a change, and tells the door Wait."""

import asyncio

import msgspec
import structlog

from extender.fairness.fields import PolicyError
from extender.fairness.policy import Policy
from extender.fairness.reading import Policies, read_policy
from extender.kube.surroundings import Part, Surroundings
from extender.serve.waiting import WaitDoor
from extender.wire import policy as wire
from extender.wire.surroundings import FairnessPolicy

log = structlog.get_logger()

_GATHER = 0.05
"""Seconds in which changes are gathered: at the start they come in thousands."""


class PolicyReader:
    """`changed` is for `Surroundings` to call; a policy that can't be read counts as it was when it last could be."""

    def __init__(self) -> None:
        self._dirty: set[Part] = set(Part)
        self._news = asyncio.Event()
        self._read: dict[str, tuple[int, Policy]] = {}
        self.faults: dict[str, str] = {}
        """By policy that can't be read, why."""

    def changed(self, part: Part) -> None:
        self._dirty.add(part)
        self._news.set()

    def tell(self, surroundings: Surroundings, wait: WaitDoor) -> None:
        """What has changed since the last time."""
        if Part.NAMESPACES in self._dirty:
            found = surroundings.namespaces.values()
            wait.namespaces({each.metadata.name: each.metadata.labels or {} for each in found})
        if Part.PRIORITY_CLASSES in self._dirty:
            wait.classes(surroundings.priority_classes.values())
        if Part.BUDGETS in self._dirty:
            wait.budgets(surroundings.budgets.values())
        if Part.POLICIES in self._dirty and self._reread(surroundings):
            wait.policies(Policies([policy for _, policy in self._read.values()]))
        self._dirty.clear()
        self._news.clear()

    async def run(self, surroundings: Surroundings, wait: WaitDoor) -> None:
        """Tell of changes until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHER)
            self.tell(surroundings, wait)

    def _reread(self, surroundings: Surroundings) -> bool:
        """Whether there is another policy, or one with another specification; status writes of our own are none."""
        there = {each.metadata.name: each for each in surroundings.policies.values()}
        news = bool(self._read.keys() - there.keys())
        self._read = {name: read for name, read in self._read.items() if name in there}
        self.faults = {name: fault for name, fault in self.faults.items() if name in there}
        for name, found in there.items():
            if name in self._read and self._read[name][0] == found.metadata.generation:
                continue
            try:
                self._read[name] = found.metadata.generation, read_policy(_shape(found))
            except (PolicyError, msgspec.ValidationError) as error:
                if self.faults.get(name) != str(error):
                    log.warning(
                        "a policy can't be read; it counts as it was before", policy=name, reason=str(error)
                    )
                self.faults[name] = str(error)
                continue
            self.faults.pop(name, None)
            news = True
            log.info("policy", name=name, tenants=len(self._read[name][1].tenants))
        return news


def _shape(found: FairnessPolicy) -> wire.FairnessPolicy:
    metadata = {
        "name": found.metadata.name,
        "uid": found.metadata.uid,
        "generation": found.metadata.generation,
    }
    parts = {"metadata": metadata, "spec": found.spec, "status": found.status}
    return msgspec.convert(parts, wire.FairnessPolicy)
