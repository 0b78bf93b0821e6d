"""Follows what the nodes' agents write: GPUNodes, and the Leases that say that they are current.

Whether an agent is late is judged by this process's clock alone: a beat is when a Lease was seen to change, however
wrong the node's clock is. Only where a Lease is seen for the first time (at the start) its own time counts, since
an agent that died long ago would look alive otherwise; nobody's beat is ever in the future.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from extender.cluster.reports import AgentEvent, Beat, ReportGone, ReportSeen
from extender.kube.client import Client
from extender.kube.reflector import Reflector
from extender.kube.resource import Resource, Unreadable
from extender.wire.gpunode import PATH, GPUNodeSpec, GPUNodeStatus
from extender.wire.objects import ObjectMeta, Slim

NAMESPACE = "kvitej"
PAUSE_SECONDS = 0.2
"""How long what agents write may wait to be read together: an agent looks each 5 s."""


class LeaseSpec(Slim):
    renew_time: datetime | None = None


class Lease(Slim):
    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class Reported(Slim):
    """A GPUNode as the watch has it."""

    metadata: ObjectMeta
    spec: GPUNodeSpec = msgspec.field(default_factory=GPUNodeSpec)
    status: GPUNodeStatus | None = None


class Agents:
    """Both watches; while the cluster has no such CRD there are no reports.

    Parameters
    ----------
    tell
        Takes each event, in order per kind, on the loop's thread: a beat may come before its report.
    clock, wall
        Monotonic seconds, and the time of day.

    Attributes
    ----------
    reports, leases : Reflector
        With their counters and lag, for metrics.
    """

    def __init__(
        self,
        client: Client,
        tell: Callable[[AgentEvent], None],
        *,
        namespace: str = NAMESPACE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        inactivity: float = 150.0,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._renewed: dict[str, datetime] = {}
        reports: Resource[Reported, AgentEvent] = Resource(
            PATH, Reported, _report, lambda name, uid: ReportGone(name), optional=True
        )
        leases: Resource[Lease, Lease | str] = Resource(
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
            Lease,
            lambda lease: lease,
            lambda name, uid: name,
        )
        self.reports = Reflector(
            client, reports, tell, self._unreadable, inactivity=inactivity, pause=PAUSE_SECONDS
        )
        # A Lease that can't be read is no beat, which is all that it can say.
        self.leases = Reflector(
            client, leases, self._lease, lambda _: None, inactivity=inactivity, pause=PAUSE_SECONDS
        )

    async def run(self) -> None:
        """Follow both until cancelled; what `tell` raises ends it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reports.run(), name="watch GPU nodes")
            group.create_task(self.leases.run(), name="watch leases")

    async def wait_synced(self) -> None:
        """Return once every report and every Lease has been told for the first time."""
        await self.reports.synced.wait()
        await self.leases.synced.wait()

    @property
    def synced(self) -> bool:
        return self.reports.synced.is_set() and self.leases.synced.is_set()

    def stale_for(self, now: float) -> float:
        """Seconds at `now` (monotonic) since one of the watches went down; 0 while both are open."""
        downs = [each.down_since for each in (self.reports, self.leases) if each.down_since is not None]
        return now - min(downs) if downs else 0.0

    def _unreadable(self, found: Unreadable) -> None:
        self._tell(ReportSeen(found.name, GPUNodeSpec(), None, found.reason))

    def _lease(self, event: Lease | str) -> None:
        if isinstance(event, str):
            self._renewed.pop(event, None)
            return
        node, renewed = event.metadata.name, event.spec.renew_time
        if renewed is None or self._renewed.get(node) == renewed:
            return
        first = node not in self._renewed
        self._renewed[node] = renewed
        age = max((self._wall() - renewed).total_seconds(), 0.0) if first else 0.0
        self._tell(Beat(node, self._clock() - age))


def _report(found: Reported) -> ReportSeen:
    return ReportSeen(found.metadata.name, found.spec, found.status)
