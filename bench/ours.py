"""The product's planner in virtual time: the same state machine as in production, its instructions carried out at once.

The scheduler is thought to bind whatever is nominated, so the planner hears of a pod three times: gated, bound, gone.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from bench import tenants
from bench.virtual import Job, Pool
from extender.cluster.events import PodGone, PodSeen
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.among import Terms
from extender.decide.claims import Settings
from extender.decide.instructions import Evict, Happening, Release, Tick
from extender.decide.lent import Candidate, Lent
from extender.decide.plan import Planner
from extender.decide.reclaim import Reclaim, reclaim
from extender.decide.turns import Victims
from extender.fairness.ledger import MICRO, Ledger
from extender.fairness.policy import Policy
from extender.fairness.reading import Policies


class Ours:
    def __init__(self, pool: Pool, policy: Policy) -> None:
        self._pool = pool
        self._lent = Lent()
        self._policy = policy
        self._left: list[Job] = []
        self.planner = Planner(pool.book, Policies([policy]), Settings(), 0.0, self._reclaim)
        self.planner.begin(0.0, 0.0)

    def came(self, job: Job) -> None:
        event = PodSeen(self._pool.gated(job))
        self._pool.book.apply(event)
        self._step(event)

    def left(self, job: Job) -> None:
        self._lent.drop(job.uid)
        event = PodGone(job.uid)
        self._pool.book.apply(event)
        self._step(event)

    def tick(self) -> None:
        self._step(Tick())

    def _step(self, event: Happening) -> None:
        pool, planner = self._pool, self.planner
        todo = list(planner.step(event, pool.now))
        while todo or planner.busy:
            if not todo:
                todo += planner.step(Tick(), pool.now)
                continue
            match todo.pop(0):
                case Release(pod, node):
                    assert node is not None
                    todo += self._bind(pool.jobs[pod.uid], node)
                case Evict(victims, _, _, _):
                    pool.evict_for([victim.uid for victim in victims])

    def _bind(self, job: Job, node: str) -> list:
        pool = self._pool
        seat = pool.book.snapshot().seats[job.uid]
        assert seat.record is not None
        event = PodSeen(pool.bound(job, node, seat.record))
        pool.book.apply(event)
        pool.begin(job)
        self._lent.put(pool.candidate(job, seat))
        return self.planner.step(event, pool.now)

    def _reclaim(
        self,
        snapshot: Snapshot,
        request: Request,
        tenant: str,
        rows: NDArray[np.int32],
        ledger: Ledger,
        leaving: Collection[str],
        now: float,
    ) -> Victims | None:
        """As the product wires it: what each tenant has above its entitlement, less what is leaving."""
        over = {
            name: (ledger.account(name).used - entitled) / MICRO for name, entitled in ledger.entitlements.items()
        }
        for uid in leaving:
            entry = ledger.entries.get(uid)
            if entry is not None:
                over[entry.tenant] -= entry.units / MICRO
        runtime = {each.name: each.min_runtime for each in self._policy.tenants}
        found = reclaim(snapshot, request, tenant, rows, self._lent, Terms(now, over, runtime))
        if not isinstance(found, Reclaim):
            return None
        return Victims(found.node, tuple(victim.uid for victim in found.victims), found.why)
