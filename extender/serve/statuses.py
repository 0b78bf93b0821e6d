"""Writes each policy's status every 30 s and on stop, so that decayed use outlives the process."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from extender.decide.plan import Planner
from extender.decide.status import Status, status_of, status_refused
from extender.fairness.record import Fairness
from extender.serve.book import Book
from extender.wire.surroundings import FairnessPolicy

if TYPE_CHECKING:
    from extender.kube.releaser import Releaser

log = structlog.get_logger()

WRITE_SECONDS = 30.0


def statuses_in(policies: Iterable[FairnessPolicy]) -> dict[str, Status]:
    """What the policies' statuses are, by name: what `restore` begins with."""
    return {policy.metadata.name: policy.status for policy in policies}


class StatusWriter:
    """`planner` gives it once it has begun; `policies` are those of the cluster, `faults` why one can't be read.

    Nothing is written before the planner has begun, or else what an earlier process has left would be lost.
    """

    def __init__(
        self,
        book: Book,
        planner: Callable[[], Planner | None],
        fairness: Fairness,
        releaser: "Releaser",
        policies: Callable[[], Iterable[FairnessPolicy]],
        faults: Callable[[], Mapping[str, str]],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._planner = planner
        self._fairness = fairness
        self._releaser = releaser
        self._policies = policies
        self._faults = faults
        self._wall = wall
        self._clock = clock

    async def run(self) -> None:
        """Write until cancelled; then `write` is to be called once more."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write all statuses now."""
        for name, status in self._statuses().items():
            written = await self._releaser.write_status(name, status)
            if not written.done:
                log.warning("a policy's status was not written", policy=name, reason=written.detail)

    def _statuses(self) -> dict[str, dict[str, Any]]:
        planner = self._planner()
        if planner is None:
            return {}
        wall, now = self._wall(), self._clock()
        policies = {policy.metadata.name: policy for policy in self._policies()}
        had = statuses_in(policies.values())
        statuses = status_of(planner, self._book.snapshot(), self._fairness, had, wall=wall, now=now)
        found = {name: status for name, status in statuses.items() if name in policies}
        for name, fault in self._faults().items():
            if name in policies:
                generation = policies[name].metadata.generation
                refused = status_refused(fault, generation, had[name], wall=wall)
                found[name] = {**found.get(name, {}), **refused}
        return found
