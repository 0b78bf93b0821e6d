"""`bench kernels`: what one placement costs, beside the same score in numpy, and how long openb's whole fill takes.

A placement is `decide.place` on a book of nodes in use (`bench.filled`), for the demand of openb's pods: after one node
has changed, and for a pod whose like was not asked about before, which looks at every node.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from _core import Ask, Demand, Table, fit, score
from bench import filled, openb
from bench.cases.placement import shuffled_nodes
from bench.fill import Cluster, Workload, replayed
from bench.report import Measurement, measured
from extender.cluster.events import NodeSeen, PodSeen
from extender.cluster.mix import Mix
from extender.cluster.request import GPU, SHARED, Request
from extender.cluster.state import ClusterState
from extender.decide.place import place
from extender.schedulerconfig import managed_resources
from extender.wire.objects import Node, Pod

CASE = "kernels"
NODES, MANY_NODES = 5_000, 50_000
WARM_CALLS, COLD_CALLS = 400, 30
DEMAND_PODS = 2_000
KEEP = 100
WARM_MS, COLD_MS, FILL_SECONDS = 0.5, 5.0, 20.0
GROWTH = 1.5
"""How much more than ten times as long ten times the nodes may take: they no longer fit the caches."""
SEED = 42
COLD_ASKS = ((GPU, 1, 0), (SHARED, 1, 24 << 30), (GPU, 4, 0), ("nvidia.com/mig-3g.40gb", 1, 0))


def run(
    say: Callable[[str], None], *, nodes: int = NODES, many: int = MANY_NODES, calls: int = WARM_CALLS
) -> list[Measurement]:
    """Measure on `nodes` and on `many` nodes, `calls` warm placements each."""
    say(f"a book of {nodes:,} nodes in use")
    state = book(nodes)
    warm, cold = _warm(state, nodes, calls), _cold(state, nodes)
    found = [
        measured(CASE, f"placement, one node changed, {nodes:,} nodes, p50", warm, "ms", at_most=WARM_MS),
        measured(CASE, f"placement, first of its shape, {nodes:,} nodes, p50", cold, "ms", at_most=COLD_MS),
        *_beside_numpy(state, nodes),
    ]
    say(f"a book of {many:,} nodes in use")
    state = book(many)
    warm_many, cold_many = _warm(state, many, calls // 4), _cold(state, many)
    times = many / nodes
    found += [
        measured(CASE, f"placement, one node changed, {many:,} nodes, p50", warm_many, "ms"),
        measured(CASE, f"placement, first of its shape, {many:,} nodes, p50", cold_many, "ms"),
        measured(CASE, "growth of the former per node", warm_many / warm / times, "times", at_most=GROWTH),
        measured(CASE, "growth of the latter per node", cold_many / cold / times, "times", at_most=GROWTH),
    ]
    say("filling openb")
    return [*found, *_fill()]


def book(nodes: int) -> ClusterState:
    """Nodes in use, and pods of openb that wait, from which the book learns the demand."""
    state = ClusterState(managed_resources())
    chance = random.Random(filled.SEED)
    for number in range(nodes):
        state.apply(NodeSeen(msgspec.convert(filled.node(number), Node)))
        for pod in filled.seated(number, chance):
            pod["metadata"]["uid"] = pod["metadata"]["name"]
            state.apply(PodSeen(msgspec.convert(pod, Pod)))
    for number, shape in enumerate(openb.pods(SEED)[:DEMAND_PODS]):
        asks = {SHARED: "1"} if shape.shares else {GPU: str(shape.num_gpu)}
        state.apply(PodSeen(_pod(f"waits-{number}", asks, shape.cpu_milli, shape.gpu_milli)))
    return state


def _pod(name: str, asks: dict[str, str], cpu: int, gpu_milli: int, at: str | None = None) -> Pod:
    annotations = {}
    if SHARED in asks:
        annotations["kvitej.io/gpu-memory"] = f"{filled.CARD_MIB * gpu_milli // 1000}Mi"
    resources = {"requests": {"cpu": f"{cpu}m", **asks}}
    spec = {"containers": [{"name": "main", "resources": resources}], **({"nodeName": at} if at else {})}
    metadata = {"name": name, "uid": name, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, Pod)


def _warm(state: ClusterState, nodes: int, calls: int) -> float:
    """Milliseconds, p50: a pod without GPU comes to some node, then a pod of one GPU is placed."""
    rows, request = np.arange(nodes, dtype=np.int32), Request(4_000, 0, ((GPU, 1),))
    chance, took = random.Random(SEED), []
    place(state.snapshot(), request, rows, KEEP)
    gc.collect()
    for number in range(calls):
        state.apply(PodSeen(_pod(f"comes-{number}", {}, 100, 0, filled.node_name(chance.randrange(nodes)))))
        begun = time.perf_counter()
        found = place(state.snapshot(), request, rows, KEEP)
        took.append(time.perf_counter() - begun)
        assert len(found.kept) == KEEP
    return 1000 * float(np.median(took))


def _cold(state: ClusterState, nodes: int) -> float:
    """Milliseconds, p50, over GPUs, shares and MIG instances: no pod of as many cores was placed before."""
    rows, took = np.arange(nodes, dtype=np.int32), []
    for number in range(COLD_CALLS):
        name, count, memory = COLD_ASKS[number % len(COLD_ASKS)]
        begun = time.perf_counter()
        place(state.snapshot(), Request(4_001 + number, 0, ((name, count),), (), memory), rows, KEEP)
        took.append(time.perf_counter() - begun)
    return 1000 * float(np.median(took))


def _beside_numpy(state: ClusterState, nodes: int) -> list[Measurement]:
    """D1 of a pod of one GPU on every node, by the kernel and by numpy, which must agree."""
    snapshot, rows = state.snapshot(), np.arange(nodes, dtype=np.int32)
    table, learned, ask = snapshot.table, snapshot.demand(), snapshot.ask(Request(4_000, 0, ((GPU, 1),)))
    assert ask is not None
    classes = (learned.cpu, learned.gpus, learned.share, learned.often, learned.weight)
    demand = Demand(learned.kind, learned.cores, *classes, mig=0, topology=0)
    codes = fit(table, rows, ask)
    ours, by_kernel = _fastest(lambda: score(table, rows, codes, ask, demand))
    theirs, by_numpy = _fastest(lambda: d1_whole(table, rows, ask, demand))
    return [
        measured(CASE, f"score of {nodes:,} nodes for {demand.classes} classes", by_kernel, "ms"),
        measured(CASE, "the same in numpy", by_numpy, "ms"),
        measured(CASE, "numpy ÷ kernel", by_numpy / by_kernel, "times"),
        measured(
            CASE, "largest difference of the two", float(np.abs(ours - theirs).max()), "GPUs", at_most=1e-6
        ),
    ]


def _fastest(call: Callable[[], NDArray[np.float64]], times: int = 10) -> tuple[NDArray[np.float64], float]:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        found = call()
        took.append(time.perf_counter() - begun)
    return found, 1000 * min(took)


def d1_whole(table: Table, rows: NDArray[np.int32], ask: Ask, demand: Demand) -> NDArray[np.float64]:
    """D1 of a pod of whole cards on rows that take it, without soft claims or unknown owners, in numpy."""
    width = int(table.cards[rows].max())
    replicas = np.maximum(table.replicas[rows, None], 1)
    memory = table.memory[rows, :width]
    left = (replicas - table.shares[rows, :width]) / replicas
    left = np.minimum(left, (memory - table.memory_used[rows, :width]) / memory)
    left[table.exclusive[rows, :width] > 0] = 0
    cores = np.maximum(table.cpu - table.cpu_used, 0)[rows].astype(np.float64)
    idle = left >= 1
    then = np.where(idle & (np.cumsum(idle, axis=1) <= ask.whole), 0, left)
    cut = table.slices[rows]
    mig = np.where(cut >= 0, 1 - np.bitwise_count(cut & 0xFF) / 8, 0).sum(axis=1)
    worth = _worth(then, mig, np.maximum(cores - ask.cpu, 0), demand) - _worth(left, mig, cores, demand)
    return np.asarray(worth - 0.5 * table.order[rows] / 2**32)


def _worth(
    left: NDArray[np.float64], mig: NDArray[np.float64], cores: NDArray[np.float64], demand: Demand
) -> NDArray[np.float64]:
    total = left.sum(axis=1)
    worth = np.minimum(total + mig, cores / (1000 * demand.cores))
    classes = zip(demand.cpu, demand.gpus, demand.share, demand.often, demand.weight, strict=True)
    for cpu, gpus, share, often, weight in classes:
        fits = np.floor(left / share + 1e-9).sum(axis=1) // gpus
        if cpu:
            fits = np.minimum(fits, np.floor(cores / cpu + 1e-9))
        stranded = np.where(left < share - 1e-9, left, 0).sum(axis=1)
        worth += weight * fits - often * np.where(fits >= 1, stranded, total)
    return np.asarray(worth)


def _fill() -> list[Measurement]:
    cluster = Cluster(shuffled_nodes())
    workload = Workload.filling(openb.pods(SEED), cluster.gpus, SEED)
    begun = time.perf_counter()
    replayed(cluster, workload, "d1", mix=Mix(), learn=True)
    took = time.perf_counter() - begun
    what = f"openb filled: {len(workload.pods):,} pods, {len(cluster.nodes):,} nodes, mix learned"
    return [measured(CASE, what, took, "s", at_most=FILL_SECONDS)]
