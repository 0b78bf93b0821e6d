"""The ledgers agree with the seats, and a charge that does not is found within one round."""

from __future__ import annotations

from extender.decide.audit import Audit
from extender.fairness.ledger import MICRO, Entry
from tests.decide.planning import Job, World
from tests.fairness.builders import policy


def full() -> World:
    world = World([policy()], nodes=["n0", "n1"])
    world.put(*(Job(f"a-{n}", "training") for n in range(12)), Job("b", "inference", 2))
    world.run()
    return world


def round_of(found: Audit, world: World) -> float | None:
    found.step(world.state.snapshot())
    return found.off


def test_nothing_is_off_in_a_planner_that_works() -> None:
    world = full()
    found = Audit(world.planner.pools)
    assert found.off is None
    assert round_of(found, world) == 0
    world.end("uid-b")
    assert round_of(found, world) == 0


def test_charges_that_are_lost_left_over_or_wrong_are_found() -> None:
    world = full()
    ledger = world.planner.pools.by_name["myfair-cluster"].ledger
    found = Audit(world.planner.pools)
    ledger.book("uid-b", None, 0)
    assert round_of(found, world) == 2
    ledger.book("uid-gone", Entry("research", 3 * MICRO, "n0", True), 0)
    assert round_of(found, world) == 5
    ledger.book("uid-gone", None, 0)
    assert round_of(found, world) == 2
    ledger.book("uid-b", Entry("research", 2 * MICRO, "n0", True), 0)
    assert round_of(found, world) == 2


def test_a_large_cluster_is_compared_in_many_steps() -> None:
    world = full()
    assert len(world.state.snapshot().seats) == 10
    found = Audit(world.planner.pools, at_once=4)
    assert [round_of(found, world) for _ in range(3)] == [None, None, 0]
