"""The demand mix: which pods come, learned from those that came, as the kernels weigh rows for them.

Every pod counts once, half as much after `HALF_LIFE` more; until some have come, jobs of 1, 2, 4 and 8 cards are
expected alike. What is kept is bounded: the classes that make up 99 % of the GPU demand reach the kernels, and of the
rest only the most demanding are remembered.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from _core import D1, Demand, Table, slots
from extender.cluster.assignment import split
from extender.cluster.inventory import Mode
from extender.cluster.request import Request

HALF_LIFE = 2_000
"""Pods; by measurement, see `bench placement`."""
REFRESH = 500
"""Pods and nodes that come between two demands: a demand makes every kept judgement stale."""
MOST_CLASSES = 64
MOST_KEPT = 512
COVERED = 0.99
PRIOR_CARDS = (1, 2, 4, 8)
PRIOR_GPUS = 1.0
"""GPUs of demand per class that are expected before any pod has come."""


class Shape(NamedTuple):
    """A class of pods: thousandths of a core, cards, thousandths of each card (1000 unless it is one share)."""

    cpu: int
    cards: int
    milli: int

    @property
    def gpus(self) -> float:
        return self.cards * self.milli / 1000


class Scales(NamedTuple):
    """What each kernel's part of the score is multiplied by; 0 switches it off."""

    fragmentation: float = 1.0
    mig: float = 1.0
    topology: float = 1.0
    shares: float = 1.0


EVEN = Scales()


class CardKind(NamedTuple):
    """What `nvidia.com/gpu` means, replicas per card (0: not shared) and bytes per card (0: unknown)."""

    mode: Mode
    replicas: int
    memory: int


def shape_of(request: Request, kinds: Mapping[CardKind, int]) -> Shape:
    """The class of a pod in a cluster with so many cards of each kind: a share is a part of the usual shared card.

    Pods that take MIG instances only have no cards here.
    """
    usual = max(kinds, key=lambda kind: kinds[kind], default=CardKind(Mode.WHOLE, 0, 0))
    whole, shared = split(request, usual.mode)
    if shared:
        sharing = max(
            (kind for kind in kinds if kind.replicas),
            key=lambda kind: kinds[kind],
            default=CardKind(Mode.WHOLE, 1, 0),
        )
        part = max(1 / sharing.replicas, request.gpu_memory / sharing.memory if sharing.memory else 0.0)
        milli = math.ceil(round(1000 * shared * min(part, 1.0), 6))
        if whole == 0 and milli < 1000:
            return Shape(request.cpu, 1, milli)
        whole += math.ceil(milli / 1000)
    return Shape(request.cpu, whole, 1000)


class Mix:
    """Frequencies of shapes, decayed; `demand` freezes them for the kernels."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._growth = 2 ** (1 / half_life)
        self._now = 1.0
        self._weights: dict[Shape, float] = {}
        self._prior = PRIOR_GPUS
        self._news = self._due = 0

    def observe(self, shape: Shape) -> None:
        """A pod came. Those without GPU say nothing about the demand for GPUs."""
        if not shape.gpus:
            return
        self._now *= self._growth
        self._weights[shape] = self._weights.get(shape, 0.0) + self._now
        if self._now > 1e100 or len(self._weights) > MOST_KEPT:
            self._shrink()
        self.stir()

    def stir(self) -> None:
        """Something changed that the demand depends on, such as the nodes."""
        self._news += 1

    @property
    def due(self) -> bool:
        """Whether enough has changed since the last demand: twice as much each time, at first."""
        return self._news >= self._due

    def demand(self, table: Table, kind: int = D1, scales: Scales = EVEN) -> Demand:
        """The mix as of now, each class weighed by how little room `table` has left for it."""
        self._due, self._news = min(REFRESH, 2 * self._due + 1), 0
        shapes, weights = self._covering(_cores_per_gpu(table))
        often = weights / weights.sum()
        gpus = np.array([shape.gpus for shape in shapes])
        cores = float(sum(often * [shape.cpu for shape in shapes]) / sum(often * gpus)) / 1000
        arrays = (
            max(cores, 1e-3),
            np.array([shape.cpu for shape in shapes], np.int64),
            np.array([shape.cards for shape in shapes], np.int32),
            np.array([shape.milli / 1000 for shape in shapes]),
            often,
        )
        wanted = often * gpus
        scarce = wanted / (slots(table, Demand(kind, *arrays, wanted)) + 1)
        return Demand(kind, *arrays, scarce * (wanted.sum() / scarce.sum()), **scales._asdict())

    def _covering(self, cores: float) -> tuple[list[Shape], NDArray[np.float64]]:
        """The most demanding classes that make up the covered part of the demand."""
        found = dict(self._weights)
        for cards in PRIOR_CARDS:
            shape = Shape(round(cores * cards * 500), cards, 1000)
            found[shape] = found.get(shape, 0.0) + self._prior / cards
        ranked = sorted(found, key=lambda shape: (-found[shape] * shape.gpus, shape))
        demand = np.cumsum([found[shape] * shape.gpus for shape in ranked])
        count = min(int(np.searchsorted(demand, COVERED * demand[-1])) + 1, MOST_CLASSES)
        return ranked[:count], np.array([found[shape] for shape in ranked[:count]])

    def _shrink(self) -> None:
        ranked = sorted(self._weights, key=lambda shape: -self._weights[shape] * shape.gpus)
        self._weights = {shape: self._weights[shape] / self._now for shape in ranked[: MOST_KEPT // 2]}
        self._prior /= self._now
        self._now = 1.0


def _cores_per_gpu(table: Table) -> float:
    """Of the rows that have cards; 1 if none has any."""
    having = table.cards > 0
    cards = int(table.cards[having].sum())
    return float(table.cpu[having].sum()) / 1000 / cards if cards else 1.0
