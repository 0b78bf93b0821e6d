"""What is counted of fairness: waits and their target, who had too little for how long, and recoveries."""

from __future__ import annotations

import pytest

from extender.fairness.depth import Queue
from extender.fairness.entitlement import drift, fairness_score
from extender.fairness.record import DELAYS, Fairness, Histogram
from extender.wire.shares import PoolShares, TenantShares

ML = Queue("pool", "ml")


def row(name: str, used: float, entitled: float, waiting: int = 0) -> TenantShares:
    apart = drift(used, entitled)
    return TenantShares(
        name=name,
        min=0,
        max=8,
        weight=1,
        entitlement=entitled,
        whole=int(entitled),
        in_use=used,
        borrowed=0,
        decayed_use=0,
        drift=apart if apart < float("inf") else None,
        score=fairness_score(used, entitled),
        waiting=waiting,
        longest_wait=0,
        evictions=0,
        short_seconds=0,
    )


def pool(*rows: TenantShares, name: str = "pool") -> list[PoolShares]:
    return [PoolShares(name, 8, 0, 0, list(rows), [])]


def test_a_wait_of_exactly_a_bound_is_in_its_bucket() -> None:
    found = Histogram((1, 2))
    for seconds in (0, 1, 1.5, 2, 2.1):
        found.observe(seconds)
    assert found.counts == [2, 2, 1]
    assert found.total == pytest.approx(6.6)


def test_admissions_are_judged_by_the_target_if_there_is_one() -> None:
    fairness = Fairness()
    for wait, target in ((1, None), (5, 5.0), (5.1, 5.0)):
        fairness.bound(ML, wait, target)
    tally = fairness.tallies[ML]
    assert (tally.judged, tally.in_time, sum(tally.delays.counts)) == (2, 1, 3)


def test_a_wait_before_the_clock_began_counts_as_none() -> None:
    fairness = Fairness()
    fairness.bound(ML, -3, 1)
    assert fairness.tallies[ML].delays.counts[0] == 1
    assert fairness.tallies[ML].delays.total == 0
    assert len(fairness.tallies[ML].delays.counts) == len(DELAYS) + 1


@pytest.mark.parametrize(
    ("used", "waiting", "short"), [(3, 1, True), (4, 1, False), (0, 1, True), (0, 0, False), (9, 1, False)]
)
def test_a_tenant_is_short_while_it_waits_and_has_clearly_too_little(
    used: float, waiting: int, short: bool
) -> None:
    fairness = Fairness()
    fairness.observe(pool(row("ml", used, 5, waiting)), 100)
    fairness.observe(pool(row("ml", used, 5, waiting)), 103)
    assert fairness.tally(ML).short_seconds == (3 if short else 0)


def test_time_that_steps_back_is_no_time() -> None:
    fairness = Fairness()
    for now in (100, 90, 92):
        fairness.observe(pool(row("ml", 0, 5, 1)), now)
    assert fairness.tally(ML).short_seconds == 2


def test_a_recovery_lasts_from_the_first_eviction_until_all_scores_are_one() -> None:
    fairness = Fairness()
    fairness.reclaims("pool", 10)
    fairness.reclaims("pool", 14)
    fairness.observe(pool(row("ml", 2, 4, 1), row("web", 6, 4)), 15)
    recovery = fairness.recoveries["pool"]
    assert (recovery.going, sum(recovery.seconds.counts)) == (5, 0)
    fairness.observe(pool(row("ml", 4, 4, 1), row("web", 4, 4)), 17)
    assert (recovery.going, recovery.began) == (0, None)
    assert (recovery.seconds.total, sum(recovery.seconds.counts)) == (7, 1)
    fairness.observe(pool(row("ml", 2, 4, 1), row("web", 6, 4)), 30)
    assert sum(recovery.seconds.counts) == 1


def test_tenants_and_pools_that_are_no_more_are_forgotten() -> None:
    fairness = Fairness()
    fairness.released(ML)
    fairness.released(Queue("pool", "old"))
    fairness.evicted(Queue("pool", ""))
    fairness.evicted(Queue("other", "ml"))
    fairness.reclaims("other", 1)
    fairness.observe(pool(row("ml", 1, 1)), 2)
    assert fairness.tallies.keys() == {ML, Queue("pool", "")}
    assert not fairness.recoveries
