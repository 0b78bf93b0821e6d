"""Keeps the book current: nodes and pods of the whole cluster, from the API server's watches to `apply`."""

import asyncio
from collections.abc import Callable

from extender.cluster.events import Event
from extender.kube.client import Client
from extender.kube.reflector import Reflector
from extender.kube.resource import NODES, PODS, Unreadable


class Feed:
    """Both watches of the book; events of one resource come in order, a pod may come before its node.

    Attributes
    ----------
    nodes, pods : Reflector
        With their counters and lag, for metrics.
    """

    def __init__(
        self,
        client: Client,
        apply: Callable[[Event], None],
        on_unreadable: Callable[[Unreadable], None],
        *,
        inactivity: float = 150.0,
    ) -> None:
        self.nodes = Reflector(client, NODES, apply, on_unreadable, inactivity=inactivity)
        self.pods = Reflector(client, PODS, apply, on_unreadable, inactivity=inactivity)

    async def run(self) -> None:
        """Follow both until cancelled; what `apply` raises ends it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run(), name="watch nodes")
            group.create_task(self.pods.run(), name="watch pods")

    async def wait_synced(self) -> None:
        """Return once every node and pod has been told for the first time."""
        await self.nodes.synced.wait()
        await self.pods.synced.wait()

    @property
    def synced(self) -> bool:
        return self.nodes.synced.is_set() and self.pods.synced.is_set()

    def stale_for(self, now: float) -> float:
        """Seconds at `now` (monotonic) since one of the watches went down; 0 while both are open."""
        downs = [down for down in (self.nodes.down_since, self.pods.down_since) if down is not None]
        return now - min(downs) if downs else 0.0
