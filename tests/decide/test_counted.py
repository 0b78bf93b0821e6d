"""What each step of the planner adds to the counts: once for each pod, whoever tells of it first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from extender.cluster.events import NodeGone, NodeSeen, Outcome, PodGone, PodSeen, Reserved, Settled
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.counted import Counted
from extender.decide.instructions import Evict, Happening, Instruction, NotEvicted
from extender.decide.room import Rows
from extender.decide.turns import Victims
from extender.fairness.depth import Queue
from extender.fairness.ledger import Ledger
from extender.fairness.record import Fairness, Tally
from tests.decide.planning import Job, World
from tests.fairness.builders import policy

POLICY = """
tenants:
- {name: ml, weight: 1, preemptible: true}
- {name: web, weight: 1, waitTarget: 10s}
"""


def first_of_ml(
    snapshot: Snapshot,
    request: Request,
    tenant: str,
    rows: Rows,
    ledger: Ledger,
    leaving: Collection[str],
    now: float,
) -> Victims | None:
    """A reclaim that takes the first pod of ml by name."""
    found = sorted(
        uid for uid, entry in ledger.entries.items() if entry.tenant == "ml" and uid not in leaving
    )
    if tenant == "ml" or not found:
        return None
    return Victims(snapshot.seats[found[0]].node, (found[0],), "it is over its share")


class CountedWorld(World):
    """A world whose planner's steps are counted."""

    def __init__(self, **parts: Any) -> None:
        super().__init__([policy(POLICY, "p")], nodes=["n0"], **parts)
        self.fairness = Fairness()
        self.counted = Counted(self.planner, self.fairness, self.state.snapshot)

    def tell(self, event: Happening) -> list[Instruction]:
        if isinstance(event, PodSeen | PodGone | NodeSeen | NodeGone | Reserved | Settled):
            self.state.apply(event)
        return self.hear(self.counted.step(event, self.now))

    def tally(self, tenant: str) -> Tally:
        return self.fairness.tally(Queue("p", tenant))


def test_a_pod_that_is_bound_where_it_was_nominated_counts_once() -> None:
    world = CountedWorld()
    world.put(Job("a", "web"), Job("b", "ml"))
    world.now = 7
    world.run()
    web = world.tally("web")
    assert (web.releases, web.judged, web.in_time, web.delays.total) == (1, 1, 1, 7)
    assert sum(web.delays.counts) == 1
    assert (world.tally("ml").releases, world.tally("ml").judged) == (1, 0)
    assert (world.fairness.nominations_held, world.fairness.nominations_missed) == (2, 0)


def test_a_pod_that_waits_for_longer_than_its_target_is_late() -> None:
    world = CountedWorld()
    world.put(Job("a", "web", 8))
    world.run()
    world.put(Job("b", "web"))
    world.wait(11)
    world.end("uid-a")
    world.run()
    web = world.tally("web")
    assert (web.judged, web.in_time, web.delays.total) == (2, 1, 11)


def test_the_watch_may_tell_of_a_bind_before_its_answer() -> None:
    world = CountedWorld()
    world.put(Job("a", "web"))
    world.carry_all()
    node = world.planner.waiters["uid-a"].node
    world.put(Job("a", "web", gates=(), at=node, record="0"))
    world.tell(Settled("uid-a", Outcome.BOUND))
    assert (world.tally("web").judged, world.fairness.nominations_held) == (1, 1)


def test_a_pod_that_somebody_else_binds_elsewhere_was_missed() -> None:
    world = CountedWorld()
    world.put_node("n1", 8)
    world.put(Job("a", "web"))
    world.carry_all()
    other = {"n0": "n1", "n1": "n0"}[world.planner.waiters["uid-a"].node or ""]
    world.put(Job("a", "web", gates=(), at=other))
    assert (world.fairness.nominations_held, world.fairness.nominations_missed) == (0, 1)


def test_a_release_that_never_binds_was_missed() -> None:
    world = CountedWorld()
    world.put(Job("a", "web"))
    world.carry_all()
    world.wait(31)
    assert (world.fairness.nominations_held, world.fairness.nominations_missed) == (0, 1)


def test_a_refused_bind_was_missed() -> None:
    world = CountedWorld()
    world.put(Job("a", "web"))
    world.carry_all()
    node = world.planner.waiters["uid-a"].node
    assert node is not None
    world.tell(Reserved(world.jobs["uid-a"].pod, node, "0"))
    world.tell(Settled("uid-a", Outcome.REFUSED))
    assert (world.fairness.nominations_held, world.fairness.nominations_missed) == (0, 1)


def reclaiming() -> CountedWorld:
    """Work of ml fills the node, and web asks for its share."""
    world = CountedWorld(reclaim=first_of_ml)
    world.put(*(Job(f"ml-{n}", "ml", 4) for n in range(2)))
    world.run()
    world.put(Job("a", "web", 4))
    world.wait(4)
    assert not any(isinstance(each, Evict) for each in world.said), "room may come free by itself"
    world.wait(2)
    assert [each.victims[0].name for each in world.said if isinstance(each, Evict)] == ["ml-0"]
    return world


def test_a_victim_counts_when_it_has_left() -> None:
    world = reclaiming()
    assert world.tally("ml").evictions == 0
    assert world.fairness.recoveries["p"].began == 5
    world.run()
    assert world.tally("ml").evictions == 1
    assert world.gpus_of("web") == 4


@pytest.mark.parametrize("reason", ["a disruption budget", ""])
def test_a_victim_whose_eviction_is_refused_does_not_count_when_it_leaves(reason: str) -> None:
    world = reclaiming()
    world.tell(NotEvicted("uid-ml-0", reason))
    world.end("uid-ml-0")
    assert world.tally("ml").evictions == 0


def test_shares_and_charges_are_looked_at_once_a_second() -> None:
    world = CountedWorld()
    world.put(*(Job(f"ml-{n}", "ml", 4) for n in range(2)))
    world.run()
    assert world.fairness.charged_wrongly is None
    world.wait(1)
    assert world.fairness.charged_wrongly == 0
    world.put(Job("a", "web", 4))
    world.wait(5, step=0.1)
    assert 4 <= world.tally("web").short_seconds <= 5
    assert world.tally("ml").short_seconds == 0


def test_a_recovery_ends_once_every_score_is_one_again() -> None:
    world = reclaiming()
    world.now = 5
    world.run()
    world.wait(2)
    recovery = world.fairness.recoveries["p"]
    assert (recovery.began, sum(recovery.seconds.counts)) == (None, 1)
    assert 0 < recovery.seconds.total <= 7
