"""Preemption under a policy: who is spared whatever the preemptor's priority, and which victims may go together."""

from typing import Any

import pytest

from extender.cluster.events import NodeSeen, PodSeen, Reserved
from extender.cluster.request import Request, request_of
from extender.cluster.seats import Phase, Seat
from extender.decide.among import Terms
from extender.decide.lent import Candidate, Lent
from extender.decide.preempt import Protection, victims_by_node
from extender.decide.protect import PolicyProtection, guard_for
from extender.wire.extender import Victims
from tests.builders import GPU, node
from tests.decide.lending import World, pod

NOW = 1_000.0
REQUEST = Request(0, 0, (("nvidia.com/gpu", 2),))
BASE = Protection(frozenset({"kube-system"}), 1_000)


def seat(uid: str, namespace: str = "team", priority: int = 0) -> Seat:
    return Seat(uid, namespace, uid, "n0", REQUEST, Phase.BOUND, priority)


def protection(*candidates: Candidate, over: Any = None, **terms: Any) -> PolicyProtection:
    told = Terms(NOW, over or {"me": -4.0, "a": 4.0, "b": 0.0}, **terms)
    return PolicyProtection(BASE, "me", Lent(candidates), told)


def may(rule: PolicyProtection, *victims: str) -> bool:
    """Whether these may go together to make room for a pod of 2 GPU units."""
    seats = [seat(name) for name in victims]
    return rule.allows(seats, 2.0) and rule.suffices(seats, 2.0)


def candidate(uid: str = "x", tenant: str = "a", **more: Any) -> Candidate:
    return Candidate(uid, "n0", tenant, REQUEST, **{"units": 2.0, "started": 0.0, **more})


def test_pods_that_no_policy_knows_are_left_to_the_configured_protection() -> None:
    rule = protection()
    assert not rule.covers(seat("x"))
    assert rule.covers(seat("x", "kube-system"))
    assert rule.covers(seat("x", priority=1_000))
    assert may(rule, "x")


@pytest.mark.parametrize(
    ("who", "terms", "covered"),
    [
        (candidate(), {}, False),
        (candidate(), {"over": {"me": 0.0, "a": 4.0}}, True),
        (candidate(tenant="b"), {}, True),
        (candidate(preemptible=False), {}, True),
        (candidate(), {"min_runtime": {"a": NOW + 1}}, True),
        (candidate(), {"budget": {"a": 0}}, True),
        (candidate(pdbs=("p",)), {}, True),
        (candidate(pdbs=("p",)), {"pdbs": {"p": 1}}, False),
        (candidate(tenant="me"), {}, False),
        (candidate(tenant="me"), {"over": {"me": 3.0}}, False),
        (candidate(tenant="me", preemptible=False), {}, True),
        (candidate(tenant="me"), {"min_runtime": {"me": NOW + 1}}, True),
    ],
)
def test_who_is_spared(who: Candidate, terms: dict[str, Any], covered: bool) -> None:
    assert protection(who, **terms).covers(seat("x")) == covered


def test_the_configured_protection_still_counts() -> None:
    assert protection(candidate()).covers(seat("x", "kube-system"))


def test_victims_together_take_no_more_than_is_borrowed() -> None:
    x, y, z = (candidate(name) for name in "xyz")
    assert may(protection(x, y, z), "x", "y")
    assert not may(protection(x, y, z), "x", "y", "z")
    assert may(protection(x, y, z, over={"me": -4.0, "a": 4.5}), "x", "y", "z")
    assert not may(protection(x, y, budget={"a": 1}), "x", "y")


def test_who_would_end_above_pushes_nobody_below_unless_it_gives_as_much_itself() -> None:
    x, mine = candidate("x"), candidate("mine", "me")
    short = {"me": -1.0, "a": 1.0}
    assert not may(protection(x, over=short), "x")
    assert may(protection(x, mine, over=short), "x", "mine")
    assert may(protection(mine, over={"me": 5.0}), "mine")


def preempted(world: World, uid: str, *proposed: str, at: str = "n0") -> list[str] | None:
    """Names of the victims on that node of a pod of high priority; None: the node is not answered."""
    snapshot = world.state.snapshot()
    request = request_of(snapshot.waiting[uid].pod)
    asked = {at: Victims(tuple(f"uid-{name}" for name in proposed))}
    guard = guard_for(world.planner, world.giver, uid, BASE, world.now)
    found = victims_by_node(snapshot, uid, request, 1_000, asked, guard)
    return sorted(uid.removeprefix("uid-") for uid in found[at].uids) if found else None


def test_a_high_priority_makes_nobody_fair_game_under_a_policy() -> None:
    world = World(preemptible=False)
    world.fill()
    world.wants("w")
    assert preempted(world, "uid-w", "a") is None
    world.sits("b", 1, labels={"kvitej.io/preemptible": "true"})
    world.now += 0.1
    assert preempted(world, "uid-w", "a") is None
    assert preempted(world, "uid-w", "b") == ["b"]
    assert preempted(world, "uid-w") == ["b"]


def test_victims_that_kvitej_adds_leave_their_tenant_what_it_is_entitled_to() -> None:
    world = World(dry_run=True)
    world.fill()
    world.wants("w", 3)
    # Three of four would leave batch with one GPU where it is entitled to two, and live would have three.
    assert preempted(world, "uid-w") is None
    world.wants("v", 2)
    found = preempted(world, "uid-v")
    assert found is not None
    assert len(found) == 2


def test_a_pod_of_no_tenant_takes_nothing_from_tenants() -> None:
    world = World(dry_run=True)
    world.fill()
    world.see(PodSeen(pod("guest", 1, "elsewhere")))
    assert preempted(world, "uid-guest", "a") is None


def test_a_pod_that_is_being_bound_is_no_victim_yet() -> None:
    world = World(gpus=2, dry_run=True)
    world.sits("other", 1)
    late = pod("late", 1, "batch")
    world.state.apply(PodSeen(late))
    world.planner.step(PodSeen(late), world.now)
    held = world.state.snapshot().seats["uid-late"].record
    world.see(Reserved(late, "n0", held))
    world.wants("w")
    assert preempted(world, "uid-w", "late") is None
    world.see(PodSeen(pod("late", 1, "batch", at="n0", record=held)))
    assert preempted(world, "uid-w", "late") == ["late"]


def test_without_policies_only_the_configured_protection_counts() -> None:
    world = World(policies=False)
    world.fill()
    world.wants("w")
    guard = guard_for(world.planner, world.giver, "uid-w", BASE, world.now)
    assert guard is BASE
    assert preempted(world, "uid-w", "a") == ["a"]


def test_pods_of_another_pool_are_no_victims() -> None:
    world = World(dry_run=True, selector={"pool": "ours"})
    world.see(NodeSeen(node("n1", {GPU: "2"}, labels={"pool": "ours"})))
    world.see(NodeSeen(node("n2", {GPU: "1"}, labels={"pool": "theirs"})))
    world.sits("a", 0, at="n1")
    world.sits("c", 1, at="n1")
    world.sits("b", 0, at="n2")
    world.wants("w")
    assert preempted(world, "uid-w", "a", at="n1") == ["a"]
    assert preempted(world, "uid-w", "b", at="n2") is None
