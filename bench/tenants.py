"""The load that three tenants offer to a tenth of openb, and the same as objects of a cluster.

Pods of the default list by their QoS class (LS is inference, BE training, Burstable research), those with GPUs; each
lives for a time drawn from the same class, a day at most. They come at random times at rates that offer 35, 60 and
15 % of the pool; training comes four times as often from 8 to 10 h on weekdays, its mean kept. At the beginning as
much is there as if they had come for ever.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench import openb
from bench.openb import NodeShape, PodShape
from extender.cluster.request import GPU, SHARED
from extender.fairness.policy import Policy
from extender.fairness.reading import read_policy
from extender.wire.marks import GPU_MEMORY
from extender.wire.objects import Container, Node, PodSpec, Quantity, Resources
from extender.wire.policy import FairnessPolicy

HOUR, DAY = 3_600.0, 86_400.0
LONGEST = DAY
EVERY = 10
"""Every so many nodes of openb are in the cluster."""
REPLICAS = 1_000
"""Cards are shared by the thousandth."""
MIB_PER_MILLI = 16
PEAK = 4.0
PEAK_HOURS = (8.0, 10.0)
WEEKDAYS = 5

POLICY = msgspec.convert(
    {
        "metadata": {"name": "myfair-cluster"},
        "spec": {
            "decayHalfLife": "24h",
            "tenants": [
                {"name": "training", "weight": 40, "minShare": 20, "maxShare": 60, "preemptible": True},
                {"name": "inference", "weight": 50, "minShare": 40, "maxShare": 80, "preemptible": False},
                {"name": "research", "weight": 10, "minShare": 5, "maxShare": 25, "preemptible": True},
            ],
        },
    },
    FairnessPolicy,
)


def policy() -> Policy:
    return read_policy(POLICY)


@dataclass(frozen=True, slots=True)
class Tenant:
    """`offers` is the part of the pool's GPUs that its pods would hold if none had to wait."""

    name: str
    qos: str
    offers: float
    preemptible: bool
    peaks: bool = False


TENANTS = (
    Tenant("inference", "LS", 0.35, preemptible=False),
    Tenant("training", "BE", 0.60, preemptible=True, peaks=True),
    Tenant("research", "Burstable", 0.15, preemptible=True),
)


@dataclass(frozen=True)
class Load:
    """Pods in the order in which they come: when [P], of which shape [P] and for how long [P], in seconds.

    `owner` is the position in `tenants` of the tenant that has each shape.
    """

    tenants: Sequence[Tenant]
    shapes: Sequence[PodShape]
    owner: Sequence[int]
    came: NDArray[np.float64]
    shape: NDArray[np.int32]
    life: NDArray[np.float64]
    until: float

    def __len__(self) -> int:
        return len(self.came)


def nodes() -> list[NodeShape]:
    return openb.nodes()[::EVERY]


def load(gpus: int, days: float, seed: int) -> Load:
    """All that comes to a pool of that many GPUs in `days` days, the first of which is a Monday."""
    until = days * DAY
    shapes: list[PodShape] = []
    owner: list[int] = []
    parts: list[tuple[NDArray[Any], ...]] = []
    for number, tenant in enumerate(TENANTS):
        chance = np.random.default_rng((seed, number))
        own, counts = shapes_of(tenant.qos)
        lives = Lifetimes.of(tenant.qos)
        units = float(np.average([shape.gpu_units for shape in own], weights=counts))
        rate = tenant.offers * gpus / (units * lives.mean)
        there = lives.left(chance, chance.poisson(rate * lives.mean * (pace(0.0) if tenant.peaks else 1.0)))
        came = np.concatenate((np.zeros(len(there)), _arrivals(chance, rate, until, tenant.peaks)))
        size = len(came)
        life = np.concatenate((there, lives.draw(chance, size - len(there))))
        which = chance.choice(len(own), size, p=counts / counts.sum())
        parts.append((came, which + len(shapes), life, chance.random(size)))
        shapes += own
        owner += [number] * len(own)
    came, which, life, by_chance = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((by_chance, came))
    return Load(TENANTS, shapes, owner, came[order], which[order].astype(np.int32), life[order], until)


def pace(time: float) -> float:
    """How often training comes at that time, beside its mean."""
    day, hour = divmod(time / HOUR, 24)
    base = 7 * 24 / (7 * 24 + WEEKDAYS * (PEAK_HOURS[1] - PEAK_HOURS[0]) * (PEAK - 1))
    peaks = day % 7 < WEEKDAYS and PEAK_HOURS[0] <= hour < PEAK_HOURS[1]
    return base * PEAK if peaks else base


def _arrivals(chance: np.random.Generator, rate: float, until: float, peaks: bool) -> NDArray[np.float64]:
    """A Poisson process, in order; one that peaks is thinned out of a faster one."""
    fastest = rate * max(pace(hour * HOUR) for hour in range(24)) if peaks else rate
    came = np.sort(chance.uniform(0, until, chance.poisson(fastest * until)))
    if not peaks:
        return came
    paces = np.array([pace(hour * HOUR) for hour in range(math.ceil(until / HOUR))])
    often = rate * paces[(came / HOUR).astype(np.int64)] / fastest
    return came[chance.random(len(came)) < often]


@dataclass(frozen=True)
class Lifetimes:
    """A class's lifetimes in seconds by its quantiles, geometric in between, none longer than a day."""

    at: NDArray[np.float64]
    logs: NDArray[np.float64]

    @classmethod
    def of(cls, qos: str) -> Lifetimes:
        with open(openb.DATA / "openb_lifetimes.csv", newline="") as file:
            row = next(row for row in csv.DictReader(file) if row["qos"] == qos)
        quantiles = {
            float(name[1:]) / 100: max(float(value), 1.0)
            for name, value in row.items()
            if name[0] == "p" and name[1:].isdigit()
        }
        return cls(np.array([*quantiles]), np.log([*quantiles.values()]))

    @property
    def mean(self) -> float:
        steps = (np.arange(200_000) + 0.5) / 200_000
        return float(self._value(steps).mean())

    def draw(self, chance: np.random.Generator, size: int) -> NDArray[np.float64]:
        return self._value(chance.random(size))

    def left(self, chance: np.random.Generator, size: int) -> NDArray[np.float64]:
        """What is left of the lifetimes of those that are there at one moment: long ones are there more often."""
        every = self._value((np.arange(20_000) + 0.5) / 20_000)
        there = chance.choice(every, size, p=every / every.sum())
        return there * chance.random(size)

    def _value(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.minimum(np.exp(np.interp(at, self.at, self.logs)), LONGEST)


def shapes_of(qos: str | None = None) -> tuple[list[PodShape], NDArray[np.float64]]:
    """The shapes of the list, or of a class of it, that have GPUs, and how many pods have each."""
    counts = Counter(pod for pod in openb.pods(0) if pod.num_gpu and qos in (None, pod.qos))
    shapes = sorted(
        counts, key=lambda each: (each.qos, each.cpu_milli, each.memory_mib, each.num_gpu, each.gpu_milli)
    )
    return shapes, np.array([counts[shape] for shape in shapes], float)


# the same as objects


def node(number: int, shape: NodeShape) -> Node:
    name = f"openb-node-{number:04}"
    memory = MIB_PER_MILLI * REPLICAS
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "nvidia.com/gpu.product": shape.model,
                    "nvidia.com/gpu.memory": str(memory),
                    "nvidia.com/gpu.count": str(shape.gpu),
                    "nvidia.com/gpu.replicas": str(REPLICAS),
                },
            },
            "status": {
                "allocatable": {
                    "cpu": f"{shape.cpu_milli}m",
                    "memory": f"{shape.memory_mib}Mi",
                    GPU: str(shape.gpu),
                    SHARED: str(shape.gpu * REPLICAS),
                }
            },
        },
        Node,
    )


def spec_of(shape: PodShape) -> PodSpec:
    asks: dict[str, Quantity] = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.memory_mib}Mi"}
    asks[SHARED if shape.shares else GPU] = "1" if shape.shares else str(shape.num_gpu)
    return PodSpec(containers=[Container("main", Resources(requests=asks))], scheduler_name="fair-quota")


def annotations_of(shape: PodShape) -> dict[str, str]:
    return {GPU_MEMORY: f"{shape.gpu_milli * MIB_PER_MILLI}Mi"} if shape.shares else {}
