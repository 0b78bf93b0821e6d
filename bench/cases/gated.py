"""`bench throughput --gated`: pods a second from create to bound when kvitej plans who goes where, beside stock.

Pods are created 24 at a time while earlier ones are released: each passes the webhook, waits behind its gate, is
nominated and released, and the stock scheduler binds it through kvitej. Runs take turns with the stock scheduler alone,
all nodes scored, on the same nodes; stock with default sampling stands beside.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench import cluster, programs
from bench.report import Measurement, measured
from tests.controlplane.api import Api, node, pod
from tests.controlplane.binaries import KUBERNETES
from tests.controlplane.fair import admitted, install, policy
from tests.controlplane.processes import ControlPlane
from tests.controlplane.program import Process

CASE = "throughput, gated"
GOALS = {500: 0.45, 5_000: 2.0, 20_000: 7.0}
"""Least ratio to stock by number of nodes: two more writes per pod cost more than a short search saves."""
PODS = 1_500
RUNS = 3
WARM_UP = 100
SECONDS_PER_POD = 1.0


def run(
    say: Callable[[str], None],
    *,
    kubernetes: str = KUBERNETES,
    nodes: int | None = None,
    pods: int = PODS,
    runs: int = RUNS,
) -> list[Measurement]:
    """Measure on each number of nodes that has a goal, or on `nodes`."""
    found: list[Measurement] = []
    for many in GOALS if nodes is None else (nodes,):
        with programs.directory("gated") as at, cluster.control_plane(at, kubernetes) as plane:
            found += asyncio.run(_measure(say, plane, many, pods, runs))
    return found


async def _measure(
    say: Callable[[str], None], plane: ControlPlane, nodes: int, pods: int, runs: int
) -> list[Measurement]:
    stock, gated, costs = [], [], []
    async with cluster.admin(plane) as api:
        await install(api)
        await api.apply(policy("all", [{"name": "default", "weight": 1}]))
        say(f"creating {nodes:,} nodes")
        await api.create_nodes(node(f"gpu-{number:05}") for number in range(nodes))
        for turn in range(runs):
            rate, cost = await _stock(plane, api, pods, all_nodes=True)
            stock.append(rate)
            say(f"{nodes:,} nodes, run {turn + 1} of {runs}: stock: {rate:.1f} pods/s, {cost}")
            rate, cost = await _gated(plane, api, pods)
            gated.append(rate)
            costs.append(cost)
            say(f"{nodes:,} nodes, run {turn + 1} of {runs}: gated: {rate:.1f} pods/s, {cost}")
        sampled, _ = await _stock(plane, api, pods, all_nodes=False)
    ours, theirs = statistics.median(gated), statistics.median(stock)
    cost = costs[-1]
    return [
        measured(CASE, f"stock, all nodes scored, {nodes:,} nodes", theirs, "pods/s"),
        measured(CASE, f"stock, default sampling, {nodes:,} nodes", sampled, "pods/s"),
        measured(CASE, f"kvitej, create to bound, {nodes:,} nodes", ours, "pods/s"),
        measured(CASE, f"kvitej ÷ stock, {nodes:,} nodes", ours / theirs, at_least=GOALS.get(nodes)),
        measured(CASE, f"scheduler's CPU per pod with kvitej, {nodes:,} nodes", cost.scheduler, "ms"),
        measured(CASE, f"kvitej's CPU per pod, {nodes:,} nodes", cost.kvitej, "ms"),
        *(
            measured(CASE, f"API requests per pod with kvitej, {name}, {nodes:,} nodes", amount / pods)
            for name, amount in sorted(cost.requests.items())
            if amount >= pods / 100
        ),
    ]


class Cost:
    """What a burst of `pods` cost: milliseconds of CPU per pod, and requests about pods by verb and subresource."""

    def __init__(
        self, pods: int, scheduler: float, kvitej: float, before: Counter[str], after: Counter[str]
    ) -> None:
        self.scheduler, self.kvitej = 1000 * scheduler / pods, 1000 * kvitej / pods
        self.requests = after - before

    def __str__(self) -> str:
        return f"scheduler {self.scheduler:.1f} ms, kvitej {self.kvitej:.1f} ms of CPU per pod"


async def _stock(plane: ControlPlane, api: Api, pods: int, *, all_nodes: bool) -> tuple[float, Cost]:
    config = {"percentageOfNodesToScore": 100 if all_nodes else 0}
    scheduler = plane.start_scheduler(config)
    try:
        return await _bursts(plane, api, pods, scheduler, None, {})
    finally:
        scheduler.stop()


async def _gated(plane: ControlPlane, api: Api, pods: int) -> tuple[float, Cost]:
    async with admitted(plane, api) as extender:
        config: dict[str, Any] = {**extender.scheduler_config(), "percentageOfNodesToScore": 100}
        scheduler = plane.start_scheduler(config)
        try:
            return await _bursts(plane, api, pods, scheduler, extender, {"scheduler": "fair-quota"})
        finally:
            scheduler.stop()


async def _bursts(
    plane: ControlPlane,
    api: Api,
    pods: int,
    scheduler: Process,
    extender: Process | None,
    form: dict[str, Any],
) -> tuple[float, Cost]:
    await _burst(api, "warm-up", WARM_UP, form)
    await cluster.delete_pods(api)
    before = await _requests(api)
    used = scheduler.cpu_seconds(), extender.cpu_seconds() if extender else 0.0
    seconds = await _burst(api, "pod", pods, form)
    after = await _requests(api)
    cost = Cost(
        pods,
        scheduler.cpu_seconds() - used[0],
        extender.cpu_seconds() - used[1] if extender else 0.0,
        before,
        after,
    )
    await cluster.delete_pods(api)
    return pods / seconds, cost


async def _burst(api: Api, name: str, count: int, form: dict[str, Any]) -> float:
    async with cluster.Burst(api) as burst:
        await burst.create([pod(f"{name}-{number}", **form) for number in range(count)])
        await burst.all_bound(60 + count * SECONDS_PER_POD)
        return burst.seconds


async def _requests(api: Api) -> Counter[str]:
    """Writes about pods that the API server has served, by verb and subresource."""
    found: Counter[str] = Counter()
    for line in (await api.text("/metrics")).splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="pods"' in line:
            labels, _, value = line.rpartition(" ")
            told = dict(
                part.split("=", 1) for part in labels.partition("{")[2].rstrip("}").split(",") if "=" in part
            )
            verb, part = told["verb"].strip('"'), told["subresource"].strip('"')
            if verb in ("POST", "PUT", "PATCH"):
                found[f"{verb} pods/{part}" if part else f"{verb} pods"] += int(float(value))
    return found
