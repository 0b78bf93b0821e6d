"""The planner with somebody who counts: what each step says of waits, releases, evictions and nominations.

Once a second it also looks at the shares, and compares a few charges with what sits.
"""

import math
from collections.abc import Callable

from extender.cluster.events import Outcome, PodGone, PodSeen, Settled
from extender.cluster.request import is_over
from extender.cluster.snapshot import Snapshot
from extender.decide.audit import Audit
from extender.decide.instructions import Evict, Happening, Instruction, NotEvicted, Release, Tick
from extender.decide.plan import Planner
from extender.decide.report import tables_of
from extender.fairness.depth import Queue
from extender.fairness.record import Fairness

LOOK_SECONDS = 1.0


class Counted:
    """`step` is the planner's, and `fairness` knows of it; `snapshot` is the book's.

    A victim counts as evicted when it leaves after it was asked to, so that neither a lost answer nor a refused
    eviction counts wrongly.
    """

    def __init__(self, planner: Planner, fairness: Fairness, snapshot: Callable[[], Snapshot]) -> None:
        self.planner = planner
        self.fairness = fairness
        self._snapshot = snapshot
        self._audit = Audit(planner.pools)
        self._looked = -math.inf
        self._asked: dict[str, Queue] = {}
        """Pods whose eviction was asked for and that are still there."""

    def begin(self, now: float, wall: float) -> list[Instruction]:
        """As `Planner.begin`."""
        return self._told(self.planner.begin(now, wall), now)

    def step(self, event: Happening, now: float) -> list[Instruction]:
        """As `Planner.step`."""
        match event:
            case Settled(uid, Outcome.BOUND):
                waiter = self.planner.waiters.get(uid)
                self._bound(uid, waiter.node if waiter else None, now)
            case Settled(uid, Outcome.REFUSED):
                waiter = self.planner.waiters.get(uid)
                if waiter is not None and waiter.wrote is not None and waiter.wrote == waiter.node:
                    self.fairness.missed()
            case PodSeen(pod):
                if pod.spec is not None and pod.spec.node_name:
                    self._bound(pod.metadata.uid, pod.spec.node_name, now)
                if is_over(pod):
                    self._left(pod.metadata.uid)
            case PodGone(uid):
                self._left(uid)
            case NotEvicted(uid):
                self._asked.pop(uid, None)
        refusals = self.planner.claims.refusals
        said = self.planner.step(event, now)
        self.fairness.missed(self.planner.claims.refusals - refusals)
        if isinstance(event, Tick) and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(now)
        return self._told(said, now)

    def _look(self, now: float) -> None:
        self.fairness.observe(tables_of(self.planner, self.fairness, now), now)
        self._audit.step(self._snapshot())
        self.fairness.charged_wrongly = self._audit.off

    def _bound(self, uid: str, node: str | None, now: float) -> None:
        """Whichever tells of it first: the answer to Bind or the watch."""
        waiter = self.planner.waiters.get(uid)
        pool = self.planner.pools.of(waiter.pool) if waiter is not None else None
        if waiter is None or pool is None:
            return
        tenant = pool.policy.tenant(waiter.tenant)
        target = tenant.wait_target if tenant is not None else None
        self.fairness.bound(Queue(pool.policy.name, waiter.tenant), now - waiter.since, target)
        if waiter.wrote is not None:
            (self.fairness.held if waiter.wrote == node else self.fairness.missed)()

    def _left(self, uid: str) -> None:
        whose = self._asked.pop(uid, None)
        if whose is not None:
            self.fairness.evicted(whose)

    def _told(self, said: list[Instruction], now: float) -> list[Instruction]:
        for each in said:
            match each:
                case Release(pod):
                    waiter = self.planner.waiters.get(pod.uid)
                    if waiter is not None and waiter.pool is not None:
                        self.fairness.released(Queue(waiter.pool, waiter.tenant))
                case Evict(victims, _, node):
                    pool = self.planner.pools.of_node(node)
                    if pool is None:
                        continue
                    self.fairness.reclaims(pool.policy.name, now)
                    for victim in victims:
                        entry = pool.ledger.entries.get(victim.uid)
                        if entry is not None:
                            self._asked[victim.uid] = Queue(pool.policy.name, entry.tenant)
        return said
