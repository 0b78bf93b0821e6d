"""Virtual time: a load is played to a scheduler, and the pods that it seats live in a book of the product's own.

Whoever decides sees pods come and leave and says where each sits and who has to go; what this costs and gains is
measured here, alike for all. An evicted pod holds its cards for a grace period, then its owner makes a new one that
begins from nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import msgspec
import numpy as np

from bench import tenants
from bench.openb import NodeShape
from bench.tenants import Load
from extender.cluster.events import NodeSeen
from extender.cluster.mix import EVEN, Scales
from extender.cluster.request import Request, request_of
from extender.cluster.seats import Seat
from extender.cluster.state import ClusterState
from extender.decide.lent import Candidate
from extender.fairness.usage import timestamp
from extender.schedulerconfig import managed_resources
from extender.wire.devices import ANNOTATION
from extender.wire.marks import GATE
from extender.wire.objects import ObjectMeta, Pod, PodSpec, SchedulingGate

GRACE = 30.0
"""Seconds from an eviction until the pod is gone: what Kubernetes gives by default."""
TICK = 60.0


@dataclass(slots=True, eq=False)
class Job:
    """One life of a pod; times are seconds from the beginning."""

    uid: str
    tenant: int
    shape: int
    life: float
    came: float
    began: float = -1.0
    evicted: bool = False


class Scheduler(Protocol):
    """Decides. It is told what happened and acts on the pool."""

    def came(self, job: Job) -> None: ...

    def left(self, job: Job) -> None: ...

    def tick(self) -> None: ...


@dataclass
class Tally:
    """By shape: waits in seconds, pods evicted, GPU-seconds held, and GPU-seconds lost to evictions."""

    waits: list[list[float]]
    evictions: list[int]
    held: list[float]
    lost: list[float]
    reclaims: int = 0
    victims: int = 0

    @classmethod
    def of(cls, shapes: int) -> Self:
        return cls([[] for _ in range(shapes)], [0] * shapes, [0.0] * shapes, [0.0] * shapes)


class Pool:
    """The cluster, its clock and what is running. What comes and leaves before `warm_up` is not tallied."""

    def __init__(self, load: Load, nodes: Sequence[NodeShape], warm_up: float, scales: Scales = EVEN) -> None:
        self.load = load
        self.now = 0.0
        self.warm_up = warm_up
        self.book = ClusterState(managed_resources(), scales)
        self.gpus = sum(node.gpu for node in nodes)
        for number, node in enumerate(nodes):
            self.book.apply(NodeSeen(tenants.node(number, node)))
        self.tally = Tally.of(len(load.shapes))
        self.units = [shape.gpu_units for shape in load.shapes]
        self.jobs: dict[str, Job] = {}
        self._specs = [tenants.spec_of(shape) for shape in load.shapes]
        self._notes = [tenants.annotations_of(shape) for shape in load.shapes]
        self._gated = [
            msgspec.structs.replace(spec, scheduling_gates=[SchedulingGate(GATE)]) for spec in self._specs
        ]
        self._bound: dict[tuple[int, str], PodSpec] = {}
        self.requests: list[Request] = [
            request_of(self._pod("", "", spec, notes))
            for spec, notes in zip(self._specs, self._notes, strict=True)
        ]
        self._ends: list[tuple[float, int, Job]] = []
        self._number = 0

    # pods as objects

    def _pod(self, uid: str, namespace: str, spec: PodSpec, notes: dict[str, str], came: float = 0.0) -> Pod:
        return Pod(
            ObjectMeta(uid, namespace, uid, annotations=notes, creation_timestamp=timestamp(came)), spec
        )

    def gated(self, job: Job) -> Pod:
        """As it comes through the webhook."""
        name = self.load.tenants[job.tenant].name
        return self._pod(job.uid, name, self._gated[job.shape], self._notes[job.shape], job.came)

    def bound(self, job: Job, node: str, record: str) -> Pod:
        spec = self._bound.get((job.shape, node))
        if spec is None:
            spec = msgspec.structs.replace(self._specs[job.shape], node_name=node)
            self._bound[job.shape, node] = spec
        notes = {**self._notes[job.shape], ANNOTATION: record}
        return self._pod(job.uid, self.load.tenants[job.tenant].name, spec, notes, job.came)

    # what schedulers do

    def begin(self, job: Job) -> None:
        """The pod runs now."""
        job.began = self.now
        self._end(self.now + job.life, job)
        if job.came >= self.warm_up:
            self.tally.waits[job.shape].append(self.now - job.came)

    def evict(self, job: Job) -> None:
        """It leaves after its grace."""
        if not job.evicted:
            job.evicted = True
            if self.now >= self.warm_up:
                self.tally.evictions[job.shape] += 1
            self._end(self.now + GRACE, job)

    def evict_for(self, victims: Sequence[str]) -> None:
        """Evict these so that another pod has room."""
        if self.now >= self.warm_up:
            self.tally.reclaims += 1
            self.tally.victims += len(victims)
        for uid in victims:
            self.evict(self.jobs[uid])

    def candidate(self, job: Job, seat: Seat) -> Candidate:
        """The running pod as a reclaim sees it."""
        return Candidate(
            job.uid,
            seat.node,
            self.load.tenants[job.tenant].name,
            seat.request,
            self.units[job.shape],
            self.now,
            seat.cards,
            preemptible=self.load.tenants[job.tenant].preemptible,
        )

    def _end(self, at: float, job: Job) -> None:
        self._number += 1
        heapq.heappush(self._ends, (at, self._number, job))

    # the clock

    def play(self, scheduler: Scheduler) -> Tally:
        load = self.load
        came, shape, life = (each.tolist() for each in (load.came, load.shape, load.life))
        came.append(np.inf)
        at, ticks = 0, 0.0
        while True:
            end = self._ends[0][0] if self._ends else np.inf
            now = min(came[at], end, ticks)
            if now >= load.until:
                break
            self.now = now
            if now == end:
                self._leave(heapq.heappop(self._ends)[2], scheduler)
            elif now == came[at]:
                self._arrive(Job(f"job-{at:07}", load.owner[shape[at]], shape[at], life[at], now), scheduler)
                at += 1
            else:
                scheduler.tick()
                ticks += TICK
        self.now = load.until
        for job in self.jobs.values():
            if job.began >= 0:
                self._count(job)
            elif job.came >= self.warm_up:
                self.tally.waits[job.shape].append(self.now - job.came)
        return self.tally

    def _arrive(self, job: Job, scheduler: Scheduler) -> None:
        self.jobs[job.uid] = job
        scheduler.came(job)

    def _leave(self, job: Job, scheduler: Scheduler) -> None:
        if self.jobs.pop(job.uid, None) is None:
            return
        self._count(job)
        ended = self.now - job.began >= job.life
        scheduler.left(job)
        if job.evicted and not ended:
            if self.now >= self.warm_up:
                self.tally.lost[job.shape] += self.units[job.shape] * (self.now - job.began)
            self._arrive(Job(f"{job.uid}r", job.tenant, job.shape, job.life, self.now), scheduler)

    def _count(self, job: Job) -> None:
        since = max(job.began, self.warm_up)
        if self.now > since:
            self.tally.held[job.shape] += self.units[job.shape] * (self.now - since)
