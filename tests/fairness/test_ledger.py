"""The ledger against sums over its entries, and what it lets tenants have against the rules in words."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Entry, Ledger
from extender.fairness.policy import Policy, Share, Tenant
from extender.fairness.usage import Usage
from tests.fairness.builders import policy

TENANTS = ("training", "inference", "research", FREE_FOR_ALL)


def ledger(gpus: int = 100, found: Policy | None = None) -> Ledger:
    found = found or policy()
    made = Ledger(found, Usage({tenant.name: tenant.half_life for tenant in found.tenants}, 0.0))
    made.capacity = gpus * MICRO
    return made


def book(into: Ledger, tenant: str, gpus: float, *, preemptible: bool | None = None, **more: bool) -> None:
    may_go = tenant in ("training", "research") if preemptible is None else preemptible
    entry = Entry(tenant, round(gpus * MICRO), "n0", may_go, **more)
    into.book(f"{tenant}-{len(into.entries)}", entry, 0.0)


ENTRY = st.builds(
    Entry,
    st.sampled_from(TENANTS),
    st.integers(1, 8 * MICRO),
    st.sampled_from(["n0", "n1"]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | ENTRY), max_size=30))
def test_totals_are_sums_over_the_last_entry_of_each_pod(said: list[tuple[str, Entry | None]]) -> None:
    found = ledger()
    kept: dict[str, Entry] = {}
    for now, (uid, entry) in enumerate(said):
        had = kept.get(uid)
        alike = had is not None and entry is not None and had._replace(released=entry.released) == entry
        assert found.book(uid, entry, float(now)) == (had != entry and not alike)
        kept.pop(uid, None)
        if entry is not None:
            kept[uid] = entry
    found.check()
    for tenant in TENANTS:
        mine = [entry for entry in kept.values() if entry.tenant == tenant]
        account = found.account(tenant)
        assert account.charged == sum(entry.units for entry in mine if not entry.released)
        assert account.released == sum(entry.units for entry in mine if entry.released)
        assert account.lasting == sum(entry.units for entry in mine if not entry.preemptible)
    for node in ("n0", "n1"):
        assert found.pinned(node) == sum(
            entry.units for entry in kept.values() if entry.node == node and not entry.preemptible
        )
        spare = found.capacity
        for tenant in TENANTS:
            if tenant != "inference":
                spare -= max(found.least(tenant), found.account(tenant).lasting)
        assert found.bound("inference", False) == min(80 * MICRO, max(40 * MICRO, spare))


def test_the_tenant_with_the_least_of_what_it_is_entitled_to_is_next_and_no_tenant_comes_last() -> None:
    found = ledger()
    for tenant, gpus in (("training", 39.0), ("inference", 40.0), ("research", 10.0)):
        book(found, tenant, gpus)
    found.entitle(dict.fromkeys(TENANTS, 1000 * MICRO), 0.0)
    assert found.entitlements == pytest.approx(
        {"training": 40 * MICRO, "inference": 50 * MICRO, "research": 10 * MICRO}
    )
    assert sorted(TENANTS, key=found.turn) == ["inference", "training", "research", FREE_FOR_ALL]
    assert found.turn(FREE_FOR_ALL)[0] == math.inf
    assert found.turn("inference", 0) < found.turn("inference") < found.turn("inference", 80 * MICRO)


def test_a_tenant_that_asks_for_little_is_not_put_behind_one_that_asks_for_all() -> None:
    """Inference has all but one GPU of what it asks for, and much less than its share; training nearly its share."""
    found = ledger()
    book(found, "training", 38.0)
    book(found, "inference", 30.0)
    found.entitle({"training": 1_000 * MICRO, "inference": MICRO}, 0.0)
    assert found.entitlements["inference"] == 31 * MICRO
    assert found.turn("inference") < found.turn("training")


def test_released_pods_count_for_the_turn_and_only_charged_ones_for_decayed_use() -> None:
    found = ledger()
    book(found, "training", 8.0, released=True)
    assert found.account("training").used == 8 * MICRO
    assert found.usage.of("training", 1e9) == 0
    book(found, "training", 2.0)
    assert found.usage.of("training", 1e9) == pytest.approx(2)


def test_nobody_has_more_than_his_maximum() -> None:
    found = ledger()
    assert found.allowance("research", True) == 25 * MICRO
    book(found, "research", 25.0)
    assert found.allowance("research", True) == 0


def test_what_cannot_be_evicted_goes_above_its_minimum_only_into_what_no_minimum_of_others_needs() -> None:
    found = ledger()
    assert found.allowance("inference", False) == (100 - 20 - 5) * MICRO
    book(found, "training", 60.0)
    book(found, "research", 25.0)
    assert found.allowance("inference", False) == 75 * MICRO, "what they borrow can be asked back"
    book(found, "research", 10.0, preemptible=False)
    assert found.allowance("inference", False) == (100 - 20 - 10) * MICRO
    book(found, FREE_FOR_ALL, 40.0, preemptible=False)
    assert found.allowance("inference", False) == 40 * MICRO, "its minimum is promised to it"
    assert found.allowance("inference", True) == 80 * MICRO
    assert found.allowance(FREE_FOR_ALL, False) < 0


def test_a_tenant_is_entitled_to_its_entitlement_and_to_the_first_thing_it_asks_for() -> None:
    found = ledger(10, Policy("p", (Tenant("a", 1.0), Tenant("b", 3.0, most=Share(gpus=0)))))
    found.entitle({"a": 16 * MICRO, "b": 8 * MICRO}, 0.0)
    assert found.is_entitled("a", 16 * MICRO)
    assert not found.is_entitled("b", MICRO)
    book(found, "a", 8.0)
    found.entitle({"a": 8 * MICRO}, 0.0)
    assert found.is_entitled("a", 2 * MICRO)
    assert not found.is_entitled("a", 3 * MICRO)


def test_an_edited_policy_moves_limits_and_not_charges() -> None:
    found = ledger()
    book(found, "training", 50.0)
    found.follow(Policy("myfair-cluster", (Tenant("training", 1.0, most=Share(gpus=40)),)))
    assert found.allowance("training", True) == -10 * MICRO
    found.capacity = 200 * MICRO
    found.check()
    assert found.bound("training", True) == 40 * MICRO
