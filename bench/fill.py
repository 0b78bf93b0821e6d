"""The openb protocol on the product's own kernels: pods come into the openb nodes until they hold no more.

Workload: the list and pods drawn from it again until their demand is 1.3 times the GPUs, shuffled by a seed. Pods that
do not fit are lost. Every card is shared by the thousandth, and holds as many units of memory, so that a pod's part of
a card is the memory that it declares.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _core import BEST_FIT, D1, FGD, FIRST_FIT, P1, Ask, Demand, Replay, Table
from bench.openb import NodeShape, PodShape
from extender.cluster.columns import Columns
from extender.cluster.mix import REFRESH, Mix, Shape

SCORES = {"d1": D1, "p1": P1, "fgd": FGD, "bestfit": BEST_FIT, "firstfit": FIRST_FIT}
MILLI = 1000
GPU, SHARED = 0, 1
TYPICAL = 0.95
"""FGD's typical pods: the most frequent shapes, up to this part of all pods."""


def shape_of(pod: PodShape) -> Shape:
    return Shape(pod.cpu_milli, pod.num_gpu, pod.gpu_milli if pod.shares else MILLI)


@dataclass(frozen=True)
class Cluster:
    """Nodes as a table. Rows are ordered by the hash of their name, as the product's are, or by name."""

    nodes: Sequence[NodeShape]

    @property
    def gpus(self) -> int:
        return sum(node.gpu for node in self.nodes)

    def table(self, *, by_name: bool) -> Table:
        columns = Columns(nodes=len(self.nodes))
        for row, node in enumerate(self.nodes):
            columns.state[columns.take_row()] = 0
            columns.cards[row], columns.replicas[row] = node.gpu, MILLI
            columns.cpu[row] = node.cpu_milli
            columns.memory[row, : node.gpu] = MILLI
            columns.allocatable[row, [GPU, SHARED]] = node.gpu, MILLI * node.gpu
            name = f"openb-node-{row:04}"
            columns.order[row] = row * (2**32 // len(self.nodes)) if by_name else zlib.crc32(name.encode())
        return columns.table


@dataclass(frozen=True)
class Workload:
    """Pods as they come, and `events` as `Replay.run` takes them."""

    pods: Sequence[PodShape]
    events: NDArray[np.int32]
    gpus: NDArray[np.float64]
    measured: NDArray[np.bool_]

    @staticmethod
    def of(pods: Sequence[PodShape], events: NDArray[np.int32], measured: NDArray[np.bool_]) -> Workload:
        return Workload(pods, events, np.array([pod.gpu_units for pod in pods]), measured)

    @staticmethod
    def filling(listed: Sequence[PodShape], capacity: float, seed: int, times: float = 1.3) -> Workload:
        """The list, and more of its pods by chance, until they ask for `times` the capacity, shuffled."""
        chance = random.Random(seed)
        pods = list(listed)
        asked = sum(pod.gpu_units for pod in pods)
        while asked < times * capacity:
            pods.append(chance.choice(listed))
            asked += pods[-1].gpu_units
        chance.shuffle(pods)
        return Workload.of(pods, np.arange(len(pods), dtype=np.int32), np.ones(len(pods), np.bool_))

    @staticmethod
    def departing(
        draw: Callable[[random.Random, float], PodShape],
        capacity: float,
        seed: int,
        *,
        mean_gpus: float,
        load: float = 0.95,
        warm_up: float = 3.0,
        until: float = 8.0,
    ) -> Workload:
        """Pods that come at random times and stay for lifetimes of mean 1, offering `load` times the capacity.

        `draw` gives the pod that comes at a time; those from `warm_up` on are measured.
        """
        chance = random.Random(seed)
        pods: list[PodShape] = []
        times: list[tuple[float, int]] = []
        came: list[float] = []
        now = chance.expovariate(rate := load * capacity / mean_gpus)
        while now < until:
            times += (now, len(pods)), (now + chance.expovariate(1.0), -len(pods) - 1)
            pods.append(draw(chance, now))
            came.append(now)
            now += chance.expovariate(rate)
        events = np.array([event for time, event in sorted(times) if time < until], np.int32)
        return Workload.of(pods, events, np.array(came) >= warm_up)


def typical(pods: Sequence[PodShape]) -> Demand:
    """The demand that FGD is published with: the most frequent shapes, those without GPU as well."""
    counts = Counter(map(shape_of, pods)).most_common()
    total, shapes = 0, []
    for shape, count in counts:
        shapes.append((shape, count))
        total += count
        if total >= TYPICAL * len(pods):
            break
    often = np.array([count / total for _, count in shapes])
    return Demand(
        FGD,
        1.0,
        np.array([shape.cpu for shape, _ in shapes], np.int64),
        np.array([shape.cards for shape, _ in shapes], np.int32),
        np.array([shape.milli / MILLI for shape, _ in shapes]),
        often,
        np.zeros(len(shapes)),
    )


def replayed(
    cluster: Cluster,
    workload: Workload,
    score: str,
    *,
    mix: Mix,
    learn: bool = False,
    refresh: int = REFRESH,
    sample: int = 0,
    graded: bool = False,
    random_ties: bool = False,
    by_name: bool = False,
    seed: int = 0,
) -> NDArray[np.bool_]:
    """Whether each pod [P] was placed when it came.

    Parameters
    ----------
    mix
        What is known of the demand from the start; `learn` adds every pod just before it is placed.
    refresh
        Pods between two looks at the mix and at the room that is left for its classes.
    by_name
        Order rows by name instead of by its hash. The other options are those of `Replay`.
    """
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(map(_key, workload.pods)))}
    models = {model: 1 << bit for bit, model in enumerate(sorted({node.model for node in cluster.nodes}))}
    every = sum(models.values())
    replay = Replay(
        cluster.table(by_name=by_name),
        [_ask(cpu, cards, milli) for cpu, _, cards, milli, _ in kinds],
        memory=np.array([node.memory_mib for node in cluster.nodes], np.int64),
        models=np.array([models[node.model] for node in cluster.nodes], np.uint32),
        memory_asked=np.array([memory for _, memory, *_ in kinds], np.int64),
        models_allowed=np.array(
            [sum(models.get(name, 0) for name in allowed) if allowed else every for *_, allowed in kinds],
            np.uint32,
        ),
        pods=np.array([kinds[_key(pod)] for pod in workload.pods], np.int32),
        sample=sample,
        graded=graded,
        random_ties=random_ties,
        seed=seed,
    )
    fixed = typical(workload.pods) if score == "fgd" else None
    step = refresh if fixed is None else len(workload.events)
    for start in range(0, len(workload.events), step):
        events = workload.events[start : start + step]
        came = events[events >= 0]
        if learn:
            for pod in came:
                mix.observe(shape_of(workload.pods[pod]))
        replay.run(events, fixed or mix.demand(replay.table, SCORES[score]))
    return replay.at >= 0


def _key(pod: PodShape) -> tuple[int, int, int, int, frozenset[str]]:
    return (pod.cpu_milli, pod.memory_mib, pod.num_gpu, pod.gpu_milli if pod.shares else MILLI, pod.models)


def _ask(cpu: int, cards: int, milli: int) -> Ask:
    shared = milli < MILLI
    resources = np.array([SHARED if shared else GPU][:cards], np.int32)
    return Ask(
        resources,
        np.full(len(resources), cards, np.int64),
        whole=0 if shared else cards,
        shares=cards if shared else 0,
        memory=milli if shared else 0,
        cpu=cpu,
        gpu_id=GPU if cards and not shared else -1,
        shared_id=SHARED if shared else -1,
    )
