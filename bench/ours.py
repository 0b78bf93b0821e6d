"""The product's planner in virtual time: the same state machine as in production, its instructions carried out at once.

The scheduler is thought to bind whatever is nominated and the API server to grant every eviction, so the planner hears
of a pod three times: when it is gated, bound and gone.
"""

from __future__ import annotations

from bench.virtual import Job, Pool
from extender.cluster.events import PodGone, PodSeen
from extender.decide.claims import Settings
from extender.decide.giving import Giver
from extender.decide.instructions import Evict, Instruction, Release, Tick
from extender.decide.plan import Planner
from extender.fairness.policy import Policy
from extender.fairness.reading import Policies


class Ours:
    """`bench.virtual.Scheduler`, by the planner and the giver under one policy; a lone tenant needs no giver."""

    def __init__(self, pool: Pool, policy: Policy) -> None:
        self._pool = pool
        self._giver = Giver(pool.book, wall=0.0) if len(policy.tenants) > 1 else None
        self.planner = Planner(pool.book, Policies([policy]), Settings(), 0.0, self._giver)
        self.planner.begin(0.0, 0.0)

    def came(self, job: Job) -> None:
        self._happens(PodSeen(self._pool.gated(job)))

    def left(self, job: Job) -> None:
        self._happens(PodGone(job.uid))

    def tick(self) -> None:
        self._carry_out(self.planner.step(Tick(), self._pool.now))

    def _happens(self, event: PodSeen | PodGone) -> None:
        self._carry_out(self._step(event))

    def _step(self, event: PodSeen | PodGone) -> list[Instruction]:
        pool = self._pool
        pool.book.apply(event)
        if self._giver is not None:
            self._giver.apply(event, pool.now)
        return self.planner.step(event, pool.now)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        pool = self._pool
        todo = list(instructions)
        while todo or self.planner.busy:
            if not todo:
                todo += self.planner.step(Tick(), pool.now)
                continue
            match todo.pop(0):
                case Release(pod, node):
                    assert node is not None
                    todo += self._bind(pool.jobs[pod.uid], node)
                case Evict(victims):
                    assert self._giver is not None
                    for victim in victims:
                        self._giver.evicted(victim.uid, pool.now)
                    pool.evict_for([victim.uid for victim in victims])

    def _bind(self, job: Job, node: str) -> list[Instruction]:
        """As the scheduler would, at once."""
        pool = self._pool
        record = pool.book.snapshot().seats[job.uid].record
        assert record is not None
        pool.begin(job)
        return self._step(PodSeen(pool.bound(job, node, record)))
