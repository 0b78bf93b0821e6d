"""`bench throughput`: pods a second that the real kube-scheduler binds, alone and with an extender.

5,000 nodes of 8 GPUs; in each run 1,500 pods of one GPU are created 24 at a time, and the time is taken from the first
creation to the last node seen on a watch. Contenders take turns; each run has a scheduler and an extender of its own,
and an empty cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import cluster, programs
from bench.report import Measurement, measured
from extender.config import Config
from tests.controlplane.api import Api, node, pod
from tests.controlplane.binaries import KUBERNETES
from tests.controlplane.extender import grant, scheduler_config
from tests.controlplane.processes import ControlPlane

CASE = "throughput"
NODES = 5_000
PODS = 1_500
RUNS = 3
WARM_UP = 100
SECONDS_PER_POD = 0.5
BATCHING_SINCE = 35
"""The minor version of Kubernetes that brought the feature gate OpportunisticBatching."""

OF_TRIVIAL = 0.9
OF_STOCK = 1.05
STOCK = "stock"
UNBATCHED = "stock, no batching"
TRIVIAL = "trivial"
KVITEJ = "kvitej"

Extender = Callable[[ControlPlane], contextlib.AbstractContextManager[int]]
"""Starts an extender and gives its port."""


@dataclass(frozen=True)
class Contender:
    """One way to run the scheduler; `extender` None is the scheduler alone with its own defaults."""

    name: str
    extender: Extender | None = None
    gates: Mapping[str, bool] = field(default_factory=dict)


def run(
    say: Callable[[str], None],
    *,
    kubernetes: str = KUBERNETES,
    nodes: int = NODES,
    pods: int = PODS,
    runs: int = RUNS,
) -> list[Measurement]:
    """Measure every contender `runs` times with all nodes scored, and once with default sampling."""
    with programs.directory(CASE) as at, cluster.control_plane(at, kubernetes) as plane:
        return asyncio.run(_measure(say, plane, nodes, pods, runs))


async def _measure(
    say: Callable[[str], None], plane: ControlPlane, nodes: int, pods: int, runs: int
) -> list[Measurement]:
    contenders = _contenders(plane.binaries.version)
    rates: dict[str, list[float]] = defaultdict(list)
    sampled: dict[str, float] = {}
    async with cluster.admin(plane) as api:
        await grant(api)
        say(f"creating {nodes:,} nodes")
        await api.create_nodes(node(f"gpu-{number:05}") for number in range(nodes))
        for turn in range(runs):
            for contender in contenders:
                rates[contender.name].append(await _run(plane, api, contender, pods, all_nodes=True))
                say(f"run {turn + 1} of {runs}: {contender.name}: {rates[contender.name][-1]:.1f} pods/s")
        for contender in contenders:
            sampled[contender.name] = await _run(plane, api, contender, pods, all_nodes=False)
            say(f"default sampling: {contender.name}: {sampled[contender.name]:.1f} pods/s")
    return _report({name: statistics.median(found) for name, found in rates.items()}, sampled)


def _contenders(kubernetes: str) -> list[Contender]:
    keep = Config().filter.keep
    gates = {"OpportunisticBatching": False}
    return [
        Contender(STOCK),
        *([Contender(UNBATCHED, gates=gates)] if int(kubernetes.split(".")[1]) >= BATCHING_SINCE else []),
        Contender(TRIVIAL, _trivial(None)),
        Contender(_keeping(keep), _trivial(keep)),
        Contender(KVITEJ, _kvitej),
    ]


def _keeping(keep: int) -> str:
    return f"{TRIVIAL}, keeps {keep}"


def _trivial(keep: int | None) -> Extender:
    @contextlib.contextmanager
    def extender(plane: ControlPlane) -> Iterator[int]:
        keeping: tuple[str, ...] = () if keep is None else ("--keep", str(keep))
        with programs.peer(plane.directory, "extender", "--kubeconfig", plane.kubeconfig(), *keeping) as port:
            yield port

    return extender


@contextlib.contextmanager
def _kvitej(plane: ControlPlane) -> Iterator[int]:
    with programs.kvitej(plane.directory, plane.kubeconfig("kvitej")) as kvitej:
        yield kvitej.port


async def _run(plane: ControlPlane, api: Api, contender: Contender, pods: int, *, all_nodes: bool) -> float:
    """Pods a second of one run."""
    with contextlib.ExitStack() as running:
        config: dict[str, Any] = {}
        if contender.extender is not None:
            config = scheduler_config(running.enter_context(contender.extender(plane)))
        config["percentageOfNodesToScore"] = 100 if all_nodes else 0
        scheduler = plane.start_scheduler(config, feature_gates=contender.gates)
        running.callback(scheduler.stop)
        await _burst(api, "warm-up", WARM_UP)
        await cluster.delete_pods(api)
        seconds = await _burst(api, "pod", pods)
    await cluster.delete_pods(api)
    return pods / seconds


async def _burst(api: Api, name: str, count: int) -> float:
    async with cluster.Burst(api) as burst:
        await burst.create([pod(f"{name}-{number}") for number in range(count)])
        await burst.all_bound(60 + count * SECONDS_PER_POD)
        return burst.seconds


def _report(rates: dict[str, float], sampled: dict[str, float]) -> list[Measurement]:
    kvitej, keeping = rates[KVITEJ], _keeping(Config().filter.keep)
    return [
        *(measured(CASE, f"{name}, all nodes scored", rate, "pods/s") for name, rate in rates.items()),
        measured(CASE, f"{KVITEJ} ÷ {keeping}", kvitej / rates[keeping], at_least=OF_TRIVIAL),
        measured(CASE, f"{KVITEJ} ÷ {STOCK}", kvitej / rates[STOCK], at_least=OF_STOCK),
        *(
            measured(CASE, f"{KVITEJ} ÷ {name}", kvitej / rates[name])
            for name in rates
            if name not in (KVITEJ, STOCK, keeping)
        ),
        *(measured(CASE, f"{name}, default sampling", rate, "pods/s") for name, rate in sampled.items()),
    ]
