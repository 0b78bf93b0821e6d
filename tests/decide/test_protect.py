"""Preemption under a policy: who is spared whatever the preemptor's priority, and which victims may go together."""

from typing import Any

import pytest

from extender.cluster.request import Request
from extender.cluster.seats import Phase, Seat
from extender.decide.among import Terms
from extender.decide.lent import Candidate, Lent
from extender.decide.preempt import Protection
from extender.decide.protect import PolicyProtection

NOW = 1_000.0
REQUEST = Request(0, 0, (("nvidia.com/gpu", 2),))
BASE = Protection(frozenset({"kube-system"}), 1_000)


def seat(uid: str, namespace: str = "team", priority: int = 0) -> Seat:
    return Seat(uid, namespace, uid, "n0", REQUEST, Phase.BOUND, priority)


def protection(
    *candidates: Candidate, units: float = 2.0, over: Any = None, **terms: Any
) -> PolicyProtection:
    told = Terms(NOW, over or {"me": -4.0, "a": 4.0, "b": 0.0}, **terms)
    return PolicyProtection(BASE, "me", units, Lent(candidates), told)


def candidate(uid: str = "x", tenant: str = "a", **more: Any) -> Candidate:
    return Candidate(uid, "n0", tenant, REQUEST, **{"units": 2.0, "started": 0.0, **more})


def test_pods_that_no_policy_knows_are_left_to_the_configured_protection() -> None:
    rule = protection()
    assert not rule.covers(seat("x"))
    assert rule.covers(seat("x", "kube-system"))
    assert rule.covers(seat("x", priority=1_000))
    assert rule.allows([seat("x")])


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
    assert protection(x, y, z).allows([seat("x"), seat("y")])
    assert not protection(x, y, z).allows([seat("x"), seat("y"), seat("z")])
    assert protection(x, y, z, over={"me": -4.0, "a": 4.5}).allows([seat("x"), seat("y"), seat("z")])
    assert not protection(x, y, budget={"a": 1}).allows([seat("x"), seat("y")])


def test_who_would_end_above_pushes_nobody_below_unless_it_gives_as_much_itself() -> None:
    x, mine = candidate("x"), candidate("mine", "me")
    short = {"me": -1.0, "a": 1.0}
    assert not protection(x, over=short).allows([seat("x")])
    assert protection(x, mine, over=short).allows([seat("x"), seat("mine")])
    assert protection(mine, over={"me": 5.0}).allows([seat("mine")])
