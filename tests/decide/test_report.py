"""What the planner knows, as tables: shares against worked numbers, the line in the order in which pods are seated."""

from __future__ import annotations

import msgspec
import pytest

from extender.decide.claims import Settings
from extender.decide.instructions import Release
from extender.decide.report import in_turn, lines_of, shares_of, shares_of_tenant, tables_of
from extender.fairness.depth import Queue
from extender.fairness.record import Fairness
from extender.wire.shares import Lines, Shares, TenantShares, Waiting
from tests.decide.planning import Job, World
from tests.fairness.builders import policy

TWO = """
tenants:
- {name: ml, weight: 1, minShare: 25, maxShare: 75, preemptible: true}
- {name: web, weight: 3, minGPUs: 4}
"""
FREE = {
    "tenants": [
        {"name": "ml", "weight": 1, "preemptible": True},
        {"name": "web", "weight": 3, "preemptible": True},
    ]
}


def jobs(tenant: str, many: int, gpus: int = 1, prefix: str = "") -> list[Job]:
    return [Job(f"{prefix or tenant}-{n:03}", tenant, gpus, born=n) for n in range(many)]


def shares(world: World, fairness: Fairness | None = None) -> Shares:
    found = shares_of(world.planner, world.state.snapshot(), fairness or Fairness(), world.now)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Shares) == found
    return found


def lines(world: World, most: int = 100) -> Lines:
    return lines_of(world.planner, world.state.snapshot(), world.now, most)


def rows(world: World) -> dict[str, TenantShares]:
    return {row.name: row for pool in shares(world).pools for row in pool.tenants}


def test_an_empty_pool_promises_minima_and_entitles_nobody() -> None:
    found = shares(World([policy(TWO, "p")], nodes=["n0", "n1"]))
    (pool,) = found.pools
    assert (pool.policy, pool.capacity, pool.in_use, pool.waiting) == ("p", 16, 0, 0)
    told = [
        (row.name, row.min, row.max, row.weight, row.entitlement, row.drift, row.score)
        for row in pool.tenants
    ]
    assert told == [("ml", 4, 12, 1, 0, 0, 1), ("web", 4, 16, 3, 0, 0, 1)]
    assert [(each.type, each.status) for each in pool.conditions] == [
        ("Accepted", True),
        ("Conflict", False),
        ("MinimaCut", False),
    ]


def test_a_full_pool_is_divided_by_weight_and_the_rest_waits() -> None:
    world = World([policy(TWO, "p")], nodes=["n0", "n1"])
    world.put(*jobs("ml", 20))
    world.run()
    assert rows(world)["ml"].in_use == 12
    world.put(*jobs("web", 20))
    world.run()
    world.now += 7
    found = rows(world)
    ml, web = found["ml"], found["web"]
    assert (ml.in_use, ml.borrowed, ml.waiting) == (12, 8, 8)
    assert (web.in_use, web.borrowed, web.waiting) == (4, 0, 16)
    # By weight 4 and 12, which is ml's minimum.
    assert (ml.entitlement, web.entitlement) == pytest.approx((4, 12))
    assert (ml.whole, web.whole) == (4, 12)
    assert (ml.drift, web.drift) == pytest.approx((2, -2 / 3))
    assert (ml.score, web.score) == pytest.approx((0, (1 - 2 / 3) / 0.8))
    assert ml.longest_wait == world.now - 0
    assert web.longest_wait == 7
    assert ml.decayed_use == pytest.approx(12 * (1 - 0.5 ** (7 / 86_400)))


def test_whole_shares_add_up_to_the_pool() -> None:
    spec = {"tenants": [{"name": name, "weight": 1} for name in "abc"]}
    world = World([policy(spec, "p")], nodes=["n0"])
    for tenant in "abc":
        world.put(*jobs(tenant, 8))
    (pool,) = shares(world).pools
    assert [row.entitlement for row in pool.tenants] == pytest.approx([8 / 3] * 3)
    assert sorted(row.whole for row in pool.tenants) == [2, 3, 3]


def test_minima_above_the_pool_are_said_to_be_cut() -> None:
    spec = {"tenants": [{"name": "a", "weight": 1, "minGPUs": 6}, {"name": "b", "weight": 1, "minGPUs": 4}]}
    (pool,) = shares(World([policy(spec, "p")], nodes=["n0"])).pools
    cut = pool.conditions[2]
    assert (cut.status, cut.reason) == (True, "PoolTooSmall")
    assert cut.message.startswith("The minima add up to 10 GPUs and the pool has 8:")


def test_a_namespace_that_two_policies_claim_is_said_in_both() -> None:
    spec = {"tenants": [{"name": "a", "weight": 1}], "nodeSelector": {"pool": "x"}}
    found = shares(World([policy(spec, "one"), policy(spec, "two")], nodes=["n0"]))
    for pool in found.pools:
        conflict = pool.conditions[1]
        assert conflict.status
        assert "Namespace a is in tenant a of one and in tenant a of two" in conflict.message


def test_pods_of_no_tenant_have_a_row_once_there_are_any() -> None:
    world = World([policy(TWO, "p")], nodes=["n0"])
    assert "" not in rows(world)
    world.put(*jobs("stray", 2))
    world.run()
    stray = rows(world)[""]
    assert (stray.in_use, stray.score, stray.drift) == (2, None, None)
    assert shares(world).pools[0].in_use == 2


def test_pods_under_no_policy_are_counted_apart() -> None:
    world = World([], nodes=["n0"])
    world.put(*jobs("ml", 3, gpus=4))
    found = shares(world)
    assert (found.pools, found.outside) == ([], 3)


def test_a_tenant_alone_is_its_row_of_each_pool_that_has_it() -> None:
    other = {"tenants": [{"name": "web", "weight": 1}], "nodeSelector": {"pool": "x"}}
    found = shares(World([policy(TWO, "p"), policy(other, "q")], nodes=["n0"]))
    web = shares_of_tenant(found, "web")
    assert [(pool.policy, [row.name for row in pool.tenants]) for pool in web.pools] == [
        ("p", ["web"]),
        ("q", ["web"]),
    ]
    assert [pool.policy for pool in shares_of_tenant(found, "ml").pools] == ["p"]
    with pytest.raises(KeyError):
        shares_of_tenant(found, "m")


def test_what_has_been_counted_is_shown() -> None:
    world, fairness = World([policy(TWO, "p")], nodes=["n0"]), Fairness()
    fairness.evicted(Queue("p", "ml"), 3)
    fairness.tallies[Queue("p", "ml")].short_seconds = 2.5
    ml, web = tables_of(world.planner, fairness, 0)[0].tenants
    assert (ml.evictions, ml.short_seconds, web.evictions) == (3, 2.5, 0)


def test_the_line_is_listed_in_the_order_in_which_pods_are_seated() -> None:
    world = World([policy(FREE, "p")], nodes=["n0", "n1"], settings=Settings(at_once=1))
    world.put(Job("filler", "web", 8), Job("filler-2", "web", 8))
    world.run()
    world.put(*jobs("ml", 6), *jobs("web", 9), Job("urgent", "ml", priority=5, born=50))
    shares(world)
    pool = world.planner.pools.by_name["p"]
    expected = [world.jobs[uid].name for uid in in_turn(pool.line, pool)]
    (found,) = lines(world).pools
    assert [each.pod for each in found.pods] == expected
    assert [each.place for each in found.pods] == list(range(1, 17))
    assert found.pods[0].pod == "urgent"
    own = [each.pod for each in found.pods if each.tenant == "ml"]
    assert own == ["urgent", *(f"ml-{n:03}" for n in range(6))]
    world.end("uid-filler")
    shares(world)
    expected = [world.jobs[uid].name for uid in in_turn(pool.line, pool)]
    before = len(world.said)
    while world.planner.busy:
        world.rest()
    seated = [each.pod.name for each in world.said[before:] if isinstance(each, Release)]
    assert seated == expected[: len(seated)]
    assert len(seated) == 7


def pod_of(world: World, name: str) -> Waiting:
    return next(each for pool in lines(world).pools for each in pool.pods if each.pod == name)


def test_each_state_of_a_waiting_pod_is_told_with_what_it_waits_for() -> None:
    world = World([policy(FREE, "p")], nodes=["n0"])
    world.put(Job("filler", "ml", 7))
    world.run()
    world.put(*jobs("web", 1))
    sent = pod_of(world, "web-000")
    assert (sent.place, sent.state, sent.waits_for, sent.node) == (0, "gated", "scheduler", "n0")
    world.carry_all()
    assert pod_of(world, "web-000").state == "released"
    world.run()
    world.put(Job("stuck", "web", 2), Job("loose", "web", gates=()), Job("foreign", "web", gates=("other",)))
    world.now += 3
    stuck = pod_of(world, "stuck")
    assert (stuck.state, stuck.waits_for, stuck.gpus, stuck.waited) == ("gated", "room", 2, 3)
    assert stuck.why == "It waits for room: no node that it may use has 2 nvidia.com/gpu free now."
    assert pod_of(world, "loose").state == "loose"
    foreign = pod_of(world, "foreign")
    assert (foreign.place, foreign.waits_for) == (0, "gates")
    assert "other" in foreign.why


def test_a_pool_full_of_what_may_not_be_evicted_is_a_lack_of_room_and_no_quota() -> None:
    world = World([policy(TWO, "p")], nodes=["n0", "n1"])
    world.put(Job("filler", "web", 8), Job("filler-2", "web", 4))
    world.run()
    world.put(Job("more", "web", 2), Job("guest", "stray", 8))
    assert pod_of(world, "more").waits_for == "quota"
    assert "kept for the minima of others" in pod_of(world, "more").why
    assert pod_of(world, "guest").waits_for == "room"
    assert pod_of(world, "guest").why.endswith("others have the rest of the pool, and may not be evicted.")


def test_a_long_line_is_cut_and_says_so() -> None:
    world = World([policy(FREE, "p")], nodes=["n0"])
    world.put(Job("filler", "web", 8))
    world.run()
    world.put(*jobs("ml", 30))
    (found,) = lines(world, most=10).pools
    assert (len(found.pods), found.more) == (10, 20)
    assert lines(world, most=0).pools[0].more == 30


def test_pods_under_no_policy_have_a_line_of_their_own() -> None:
    world = World([], nodes=["n0"])
    world.put(Job("filler", "x", 8))
    world.run()
    world.put(*jobs("x", 2))
    (found,) = lines(world).pools
    assert (found.policy, [each.pod for each in found.pods]) == ("", ["x-000", "x-001"])
