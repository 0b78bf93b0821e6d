"""What has become of fairness so far: waits, releases, evictions, and how long who had too little.

Counts since the process began, but for evictions, which a policy's status carries over. They are kept by pool and
tenant, never by pod, so that their number stays that of the tenants.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from extender.fairness.depth import Queue
from extender.fairness.entitlement import FAIR_WITHIN
from extender.fairness.ledger import FREE_FOR_ALL
from extender.wire.shares import PoolShares, TenantShares

DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
RECOVERIES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Histogram:
    """Seconds by upper bound, which belongs to its bucket; `counts` has one more for what is above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Tally:
    """Of one tenant in one pool. `in_time` of the `judged` were bound within the tenant's `waitTarget`."""

    delays: Histogram = field(default_factory=lambda: Histogram(DELAYS))
    judged: int = 0
    in_time: int = 0
    short_seconds: float = 0.0
    releases: int = 0
    evictions: int = 0


@dataclass(slots=True)
class Recovery:
    """Of one pool: how long it took after evictions until every fairness score was 1 again.

    `began`: the first eviction of the burst that goes on, None while there is none.
    """

    seconds: Histogram = field(default_factory=lambda: Histogram(RECOVERIES))
    began: float | None = None
    going: float = 0.0
    """Seconds that the one which goes on has taken, as last observed."""


class Fairness:
    """`now` is in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.tallies: dict[Queue, Tally] = {}
        self.recoveries: dict[str, Recovery] = {}
        self.nominations_held = 0
        self.nominations_missed = 0
        self.charged_wrongly: float | None = None
        """GPU units by which ledgers differ from what sits: not 0 is a bug. None while that is not known."""
        self._observed: float | None = None

    def tally(self, whose: Queue) -> Tally:
        """What is counted so far; a new one that is not kept where nothing is."""
        return self.tallies.get(whose) or Tally()

    def bound(self, whose: Queue, wait: float, target: float | None) -> None:
        """A pod was bound `wait` seconds after its create; `target` is what its tenant expects, if anything."""
        tally = self._kept(whose)
        tally.delays.observe(max(0.0, wait))
        if target is not None:
            tally.judged += 1
            tally.in_time += wait <= target

    def released(self, whose: Queue) -> None:
        """A pod's gate is to be lifted."""
        self._kept(whose).releases += 1

    def evicted(self, whose: Queue, many: int = 1) -> None:
        """Pods of the tenant have left because they were evicted."""
        self._kept(whose).evictions += many

    def reclaims(self, pool: str, now: float) -> None:
        """An eviction is asked for; unless a recovery goes on, one begins."""
        recovery = self.recoveries.setdefault(pool, Recovery())
        if recovery.began is None:
            recovery.began = now

    def held(self) -> None:
        """A pod was bound on the node that was nominated for it."""
        self.nominations_held += 1

    def missed(self, many: int = 1) -> None:
        """That many pods were not."""
        self.nominations_missed += many

    def observe(self, pools: Sequence[PoolShares], now: float) -> None:
        """Time has passed and shares are like this now: who has too little, and who has recovered.

        Tenants and pools that are no more are forgotten.
        """
        passed = max(0.0, now - self._observed) if self._observed is not None else 0.0
        self._observed = now
        for pool in pools:
            for tenant in pool.tenants:
                if is_short(tenant):
                    self._kept(Queue(pool.policy, tenant.name)).short_seconds += passed
            recovery = self.recoveries.get(pool.policy)
            if recovery is not None and recovery.began is not None:
                recovery.going = now - recovery.began
                if all(tenant.score is None or tenant.score >= 1 for tenant in pool.tenants):
                    recovery.seconds.observe(recovery.going)
                    recovery.began, recovery.going = None, 0.0
        known = {Queue(pool.policy, tenant.name) for pool in pools for tenant in pool.tenants}
        known |= {Queue(pool.policy, FREE_FOR_ALL) for pool in pools}
        self.tallies = {whose: tally for whose, tally in self.tallies.items() if whose in known}
        names = {pool.policy for pool in pools}
        self.recoveries = {name: each for name, each in self.recoveries.items() if name in names}

    def _kept(self, whose: Queue) -> Tally:
        return self.tallies.setdefault(whose, Tally())


def is_short(tenant: TenantShares) -> bool:
    """Whether the tenant has pods waiting and clearly less than its entitlement."""
    return tenant.waiting > 0 and tenant.drift is not None and tenant.drift < -FAIR_WITHIN
