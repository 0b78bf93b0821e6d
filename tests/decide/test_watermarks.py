"""How far the cards of a pool may be filled, and that all who look at its room follow when that moves."""

from dataclasses import replace

import pytest

from extender.cluster.eligibility import constraints_of
from extender.cluster.events import Elapsed
from extender.cluster.limits import Limits
from extender.cluster.reports import Beat
from extender.cluster.request import request_of
from extender.decide.instructions import Clear
from extender.decide.watermarks import PAUSE, Watermarks
from extender.fairness.policy import Policy
from tests.decide.planning import Job, World, released
from tests.fairness.builders import policy
from tests.reports import GIB, card, report

RISES = policy(
    "{watermark: 85, dynamicWatermark: {max: 90}, autoscaling: {maxPending: 100}, "
    "tenants: [{name: a, weight: 1}, {name: b, weight: 1, preemptible: true}]}"
)
USUAL = 0.85


def marks(watermarks: Watermarks, policy: Policy, coming: bool, start: float, ticks: int) -> list[float]:
    found = []
    for tick in range(ticks):
        watermarks.step(policy, coming, USUAL, start + PAUSE * tick)
        at = watermarks.of(policy)
        assert at is not None
        found.append(at)
    return found


@pytest.mark.parametrize("base", [0.85, None])
def test_the_mark_rises_to_its_bound_and_falls_back_in_at_most_three_ticks(base: float | None) -> None:
    rises, watermarks = replace(RISES, watermark=base), Watermarks()
    assert marks(watermarks, rises, False, 0, 3) == [0.85] * 3
    rising = marks(watermarks, rises, True, 100, 50)
    assert rising == sorted(rising)
    assert (rising[2], max(rising)) == (0.9, 0.9)
    falling = marks(watermarks, rises, False, 1000, 50)
    assert falling == sorted(falling, reverse=True)
    assert falling[2:] == [0.85] * 48


def test_a_wait_that_comes_and_goes_does_not_move_the_mark_with_each_tick() -> None:
    watermarks = Watermarks()
    moved = [watermarks.step(RISES, tick % 2 == 0, USUAL, float(tick)) for tick in range(60)]
    assert sum(moved) <= 60 / PAUSE


def test_a_policy_that_says_otherwise_holds_at_once() -> None:
    watermarks = Watermarks()
    marks(watermarks, RISES, True, 0, 3)
    assert watermarks.of(replace(RISES, watermark_max=0.88)) == 0.88, "never above the bound"
    lower = replace(RISES, watermark=0.7)
    assert watermarks.of(lower) == 0.7
    assert watermarks.step(lower, False, USUAL, 1000.0), "cards are to be filled less now"
    assert watermarks.of(lower) == 0.7
    still = replace(RISES, watermark=0.7, watermark_max=None)
    assert watermarks.step(still, True, USUAL, 1001.0)
    assert watermarks.of(still) == 0.7


def fills(world: World) -> float:
    """The watermark of n0 as its only card's memory says it."""
    snapshot = world.state.snapshot()
    return round(int(snapshot.table.memory[snapshot.index.get("n0"), 0]) / (80 * GIB), 4)


def full(nodes: int) -> World:
    """All GPUs are in use by `b`, so whoever of `a` waits is entitled to them and lacks room."""
    world = World([RISES])
    for n in range(nodes):
        world.put_node(f"n{n}", 8, memory=80 * 1024)
        world.put(Job(f"sits{n}", "b", gpus=8))
    world.run()
    return world


def test_pods_that_wait_for_an_autoscaler_raise_the_mark_and_their_end_lowers_it() -> None:
    world = full(25)
    assert fills(world) == 0.85
    world.put(*(Job(f"p{n}", "a") for n in range(100)))
    found = []
    for _ in range(3):
        world.wait(PAUSE, PAUSE)
        found.append(fills(world))
    (pool,) = world.planner.pools.by_name.values()
    assert len(pool.pending) == 100
    assert found == [0.875, 0.9, 0.9]
    for n in range(100):
        world.end(f"uid-p{n}")
    found = []
    for _ in range(3):
        world.wait(PAUSE, PAUSE)
        found.append(fills(world))
    assert found == [0.875, 0.85, 0.85]


def never_fits(world: World, job: Job) -> bool:
    return world.planner.never_fits("myfair-cluster", request_of(job.pod), constraints_of(job.pod))


def test_what_never_fits_is_worked_out_anew_when_the_mark_moves_or_a_report_tells_of_memory() -> None:
    world = World([policy("{watermark: 80, tenants: [{name: a, weight: 1}]}")])
    world.put_node("n0", 1, memory=80 * 1024)
    large = Job("large", "a", memory="70Gi")
    assert never_fits(world, large)
    world.edit(policy("{watermark: 90, tenants: [{name: a, weight: 1}]}"))
    assert not never_fits(world, large)
    world.tell(report(card(0, total=80, reserved=10)))
    assert never_fits(world, large), "the driver keeps 10 GiB"
    world.tell(report(card(0, total=80, reserved=1)))
    assert not never_fits(world, large)


def test_what_never_fits_follows_a_mark_that_rises_by_itself() -> None:
    world = full(2)
    large = Job("large", "a", memory="70Gi")
    assert never_fits(world, large), "85 % of 80 GiB are 68"
    world.put(Job("waits", "a"))
    world.wait(3 * PAUSE)
    assert fills(world) == 0.9
    assert not never_fits(world, large)


def test_a_claim_ends_where_the_mark_has_fallen_below_it() -> None:
    world = full(2)
    world.put(Job("waits", "a"))
    world.wait(3 * PAUSE)
    world.put(Job("large", "a", memory="71Gi"))
    world.end("uid-waits")
    world.end("uid-sits0")
    assert world.planner.waiters["uid-large"].node == "n0"
    world.wait(1.0)
    assert world.planner.waiters["uid-large"].node is None, "its Bind would be vetoed by now"


def test_a_report_that_closes_a_card_ends_the_claim_on_it_and_the_pod_is_planned_elsewhere() -> None:
    world = World([policy("{tenants: [{name: a, weight: 1}]}")])
    for name in ("n0", "n1"):
        world.put_node(name, 1, memory=80 * 1024)
        world.tell(report(card(0), node=name, held={}))
    world.put(Job("p", "a"))
    world.carry_all()
    first = world.jobs["uid-p"].nominated
    assert first is not None
    told = world.tell(report(card(0, foreign=9), node=first, held={}))
    other = "n1" if first == "n0" else "n0"
    assert world.planner.waiters["uid-p"].node == other
    world.carry_all()
    assert world.jobs["uid-p"].nominated == other, told
    world.tell(report(card(0, why="Xid 79."), node=other, held={}))
    assert world.planner.waiters["uid-p"].node is None
    assert [each for each in world.todo if isinstance(each, Clear)] == [
        Clear(world.planner.waiters["uid-p"].ref, other)
    ]
    world.carry_all()
    assert world.jobs["uid-p"].nominated is None
    world.tell(report(card(0), node=other, held={}))
    world.run()
    assert world.jobs["uid-p"].at == other


def test_a_claim_ends_where_an_agent_has_fallen_silent_and_such_nodes_are_closed() -> None:
    world = World(
        [policy("{tenants: [{name: a, weight: 1}]}")], limits=Limits(stale_after=90, close_stale=True)
    )
    world.put_node("n0", 1, memory=80 * 1024)
    world.tell(report(card(0), held={}))
    world.state.apply(Beat("n0", 0.0))
    assert released(world.put(Job("p", "a"))) == [("p", "n0")]
    world.state.apply(Elapsed(91.0))
    world.wait(1.0)
    assert world.planner.waiters["uid-p"].node is None
    world.state.apply(Beat("n0", 92.0))
    world.state.apply(Elapsed(92.0))
    world.run()
    assert world.jobs["uid-p"].at == "n0"
