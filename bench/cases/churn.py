"""`bench churn`: a full cluster under the real kube-scheduler, whose pods leave while others wait for their room.

500 nodes of 8 GPUs are filled through kvitej's gates, with a line behind them. Then a pod is deleted every so often,
and a new one is created; whoever is next is nominated where the room is. A nomination is held if its pod is bound
there, at the first try.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable

import aiohttp
import numpy as np

from bench import cluster, programs
from bench.report import Measurement, measured
from tests.controlplane.api import Api, Object, node, pod, wait_until
from tests.controlplane.binaries import KUBERNETES
from tests.controlplane.fair import admitted, install, policy
from tests.controlplane.processes import ControlPlane

CASE = "churn"
NODES, GPUS = 500, 8
WAITING = 300
PER_SECOND = 10.0
SECONDS = 600.0
HELD = 95.0
SEED = 42
TENANTS = ("a", "b", "c")


def run(
    say: Callable[[str], None],
    *,
    kubernetes: str = KUBERNETES,
    nodes: int = NODES,
    seconds: float = SECONDS,
    per_second: float = PER_SECOND,
) -> list[Measurement]:
    """Churn for `seconds`, `per_second` pods leaving."""
    with programs.directory(CASE) as at, cluster.control_plane(at, kubernetes) as plane:
        return asyncio.run(_measure(say, plane, nodes, seconds, per_second))


async def _measure(
    say: Callable[[str], None], plane: ControlPlane, nodes: int, seconds: float, per_second: float
) -> list[Measurement]:
    async with cluster.admin(plane) as api:
        await install(api)
        for tenant in TENANTS:
            await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant}})
        await api.apply(
            policy("all", [{"name": tenant, "weight": 1, "queueDepth": 10_000} for tenant in TENANTS])
        )
        await api.create_nodes(node(f"gpu-{number:04}", gpus=GPUS) for number in range(nodes))
        async with admitted(plane, api) as extender:
            scheduler = plane.start_scheduler(extender.scheduler_config())
            watch = Watch(api)
            following = asyncio.create_task(watch.follow())
            try:
                play = Play(api, watch)
                say(f"filling {nodes:,} nodes of {GPUS} GPUs")
                await play.fill(nodes * GPUS)
                say(f"{per_second:g} pods leave a second, for {seconds:g} s")
                used = extender.cpu_seconds()
                await play.churn(seconds, per_second)
                used = extender.cpu_seconds() - used
            finally:
                following.cancel()
                scheduler.stop()
    return play.report(used / seconds)


class Watch:
    """What a watch shows of all pods: who is bound where, since when, and where it was nominated before."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.node: dict[str, str] = {}
        self.bound_at: dict[str, float] = {}
        self.nominated: dict[str, list[str]] = defaultdict(list)

    async def follow(self) -> None:
        version = "0"
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                query = {"resourceVersion": version} if version != "0" else {}
                async with contextlib.aclosing(self._api.watch("/api/v1/pods", query)) as events:
                    async for kind, seen in events:
                        if kind == "ERROR":
                            version = "0"
                            break
                        version = seen["metadata"]["resourceVersion"]
                        if kind != "DELETED":
                            self._look(seen)
            await asyncio.sleep(0.01)

    def _look(self, seen: Object) -> None:
        uid = seen["metadata"]["uid"]
        nominated = seen.get("status", {}).get("nominatedNodeName")
        if nominated and self.nominated[uid][-1:] != [nominated]:
            self.nominated[uid].append(nominated)
        if seen["spec"].get("nodeName") and uid not in self.node:
            self.node[uid], self.bound_at[uid] = seen["spec"]["nodeName"], time.monotonic()


class Play:
    """Pods that come and go."""

    def __init__(self, api: Api, watch: Watch) -> None:
        self._api = api
        self._watch = watch
        self._chance = random.Random(SEED)
        self._made = 0
        self._pods: dict[str, tuple[str, str]] = {}
        self._left: list[tuple[str, float]] = []

    async def fill(self, seats: int) -> None:
        await self._create(seats + WAITING)
        await wait_until(
            lambda: len(self._watch.node) >= seats, 600, lambda: f"{seats} bound; {len(self._watch.node)} are"
        )

    async def churn(self, seconds: float, per_second: float) -> None:
        begun = time.monotonic()
        number = 0
        while time.monotonic() - begun < seconds:
            number += 1
            await asyncio.gather(self._leave(), self._create(1))
            await asyncio.sleep(max(0.0, begun + number / per_second - time.monotonic()))
        await asyncio.sleep(5)

    async def _create(self, many: int) -> None:
        numbers = range(self._made, self._made + many)
        self._made += many
        remaining = iter(numbers)

        async def some() -> None:
            for number in remaining:
                tenant = TENANTS[number % len(TENANTS)]
                made = pod(f"pod-{number}", namespace=tenant, scheduler="fair-quota")
                stored = await self._api.post(f"/api/v1/namespaces/{tenant}/pods", made)
                self._pods[stored["metadata"]["uid"]] = tenant, f"pod-{number}"

        async with asyncio.TaskGroup() as group:
            for _ in range(min(many, cluster.IN_FLIGHT)):
                group.create_task(some())

    async def _leave(self) -> None:
        """A bound pod is deleted."""
        uid = self._chance.choice([uid for uid in self._pods if uid in self._watch.node])
        tenant, name = self._pods.pop(uid)
        await self._api.delete(f"/api/v1/namespaces/{tenant}/pods/{name}", {"gracePeriodSeconds": 0})
        self._left.append((self._watch.node[uid], time.monotonic()))

    def report(self, cores: float) -> list[Measurement]:
        first = min(at for _, at in self._left)
        bound = sorted((at, uid) for uid, at in self._watch.bound_at.items() if at > first)
        held = [uid for _, uid in bound if self._watch.nominated[uid] == [self._watch.node[uid]]]
        rooms: dict[str, deque[float]] = defaultdict(deque)
        for name, at in self._left:
            rooms[name].append(at)
        waits = []
        for at, uid in bound:
            queue = rooms[self._watch.node[uid]]
            if queue and queue[0] <= at:
                waits.append(at - queue.popleft())
        return [
            measured(CASE, "pods that left", len(self._left)),
            measured(CASE, "pods bound in their room", len(bound)),
            measured(CASE, "nominations held", 100 * len(held) / len(bound), "%", at_least=HELD),
            measured(CASE, "from room to bound, median", 1000 * float(np.median(waits)), "ms"),
            measured(CASE, "from room to bound, p99", 1000 * float(np.percentile(waits, 99)), "ms"),
            measured(CASE, "kvitej's CPU", 100 * cores, "% of a core"),
        ]
