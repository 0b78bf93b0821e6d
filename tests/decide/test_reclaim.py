"""Reclaim: the victims are the cheapest there are, nobody goes who must not, and nothing goes back and forth."""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases.reclaim import CARD_GIB, REPLICAS, Running, State, agrees, draw, least, ours
from extender.cluster.assignment import Cards, units
from extender.cluster.events import PodGone, Reserved
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.among import Spared, Terms, spared
from extender.decide.lent import Candidate, Lent
from extender.decide.reclaim import NoReclaim, Reclaim, reclaim
from extender.wire.objects import Pod
from tests.builders import GPU, SHARED, book, node, pod, record_of

SEEDS = st.integers(0, 2**32)
NOW = 10_000.0


def on(name: str, *cards: int, at: str = "n0", **more: Any) -> Pod:
    return pod(name, {GPU: str(len(cards))}, at=at, record=record_of(gpu=cards), **more)


def lend(state: ClusterState, **said: dict[str, Any]) -> Lent:
    """All that sits, as tenant a's, started an hour ago; `said` tells of some pods what is different."""
    snapshot, lent = state.snapshot(), Lent()
    for seat in snapshot.seats.values():
        charged = units(seat.request, snapshot.inventories[seat.node])
        candidate = Candidate(seat.uid, seat.node, "a", seat.request, charged, NOW - 3_600, seat.cards)
        lent.put(dataclasses.replace(candidate, **said.get(seat.name, {})))
    return lent


def asked(
    state: ClusterState, asking: Pod, lent: Lent, *, over: dict[str, float] | None = None, **terms: Any
) -> Reclaim | NoReclaim:
    snapshot = state.snapshot()
    rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)
    told = Terms(NOW, {"owed": -100.0, "a": 100.0, "b": 100.0, **(over or {})}, **terms)
    found = reclaim(snapshot, request_of(asking), "owed", rows, lent, told)
    state.check()
    return found


def names(found: Reclaim | NoReclaim) -> list[str]:
    assert isinstance(found, Reclaim), found
    return sorted(victim.uid.removeprefix("uid-") for victim in found.victims)


ONE, TWO, FOUR = (pod("p", {GPU: str(count)}) for count in (1, 2, 4))


@pytest.fixture
def full() -> ClusterState:
    """n0: four jobs of one card. n1: two of one, and one of two."""
    sitting = [on(name, card) for card, name in enumerate("abcd")]
    sitting += [on("e", 0, at="n1"), on("f", 1, at="n1"), on("g", 2, 3, at="n1")]
    return book(node("n0", {GPU: "4"}), node("n1", {GPU: "4"}), pods=sitting)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_victims_are_the_cheapest_of_all_sets(seed: int) -> None:
    state = draw(seed)
    found, expected = ours(state), least(state)
    assert agrees(state, expected, found), (expected, found)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_nobody_goes_who_must_not_and_no_tenant_ends_below_by_a_whole_victim(seed: int) -> None:
    state = draw(seed)
    found = ours(state)
    if isinstance(found, NoReclaim):
        assert found.reason.endswith(".")
        return
    by_tenant: dict[str, list[float]] = {}
    for victim in found.victims:
        assert victim.preemptible
        assert state.now - victim.started >= state.min_runtime.get(victim.tenant, 0)
        assert all(state.pdbs.get(pdb, 0) > 0 for pdb in victim.pdbs)
        by_tenant.setdefault(victim.tenant, []).append(victim.units)
    for tenant, lost in by_tenant.items():
        assert sum(lost) - state.over[tenant] < min(lost) + 1e-6
        assert len(lost) <= state.budget.get(tenant, len(lost))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_no_order_of_reclaims_leads_back(seed: int) -> None:
    """Victims wait and may reclaim in their turn: what is held above entitlements falls until nobody can."""
    state = draw(seed)
    state.min_runtime, state.budget, state.pdbs = {}, {}, {"guard": 99}
    waiting = [state.wanted]
    above = held_above(state)
    quiet = 0
    while quiet < len(waiting):
        state.wanted = waiting.pop(0)
        found = ours(state)
        if isinstance(found, NoReclaim):
            waiting.append(state.wanted)
            quiet += 1
            continue
        winner, losers = state.wanted, carry_out(state, found)
        assert held_above(state) < above - 1e-7
        above, quiet = held_above(state), 0
        for loser in losers:
            state.wanted = loser
            back = ours(state)
            if isinstance(back, Reclaim):
                assert winner.tenant not in {victim.tenant for victim in back.victims}
        waiting += losers


def held_above(state: State) -> float:
    return sum(max(over, 0) for over in state.over.values())


def carry_out(state: State, found: Reclaim) -> list[Running]:
    """Victims leave, the winner sits: the victims as they wait again."""
    machine = state.machines[int(found.node.removeprefix("n"))]
    gone = {victim.uid for victim in found.victims}
    losers = [each for each in machine.pods if each.uid in gone]
    machine.pods = [each for each in machine.pods if each.uid not in gone]
    winner = copy.copy(state.wanted)
    alone = {card for each in machine.pods for card in each.cards}
    on_card = {card: [each for each in machine.pods if each.share == card] for card in range(machine.cards)}
    if winner.share is not None:
        part = CARD_GIB // REPLICAS
        winner.share = next(
            card
            for card, shares in on_card.items()
            if card not in alone
            and len(shares) < REPLICAS
            and sum(max(each.memory, part) for each in shares) + max(winner.memory, part) <= CARD_GIB
        )
    elif winner.cards:
        idle = [card for card, shares in on_card.items() if card not in alone and not shares]
        winner.cards = tuple(idle[: len(winner.cards)])
    winner.started = state.now - 1
    machine.pods.append(winner)
    state.over[winner.tenant] = round(state.over[winner.tenant] + winner.units, 6)
    for loser in losers:
        state.over[loser.tenant] = round(state.over[loser.tenant] - loser.units, 6)
    return losers


def test_one_victim_is_better_than_two_and_a_small_one_than_a_large(full: ClusterState) -> None:
    assert names(asked(full, TWO, lend(full))) == ["g"]
    lent = lend(full, f={"started": NOW - 60})
    found = asked(full, ONE, lent)
    assert names(found) == ["f"]
    assert isinstance(found, Reclaim)
    assert (found.node, found.exact) == ("n1", True)
    assert "owed is 100 GPU units below its entitlement and a 100 above; 1 pod with 1 GPU" in found.why


def test_all_of_a_node_may_have_to_go(full: ClusterState) -> None:
    assert names(asked(full, FOUR, lend(full))) == ["e", "f", "g"]
    assert names(asked(full, FOUR, lend(full, e={"preemptible": False}))) == ["a", "b", "c", "d"]


def test_of_equal_size_who_saved_last_goes(full: ClusterState) -> None:
    assert names(asked(full, ONE, lend(full, c={"checkpoint": NOW - 5}))) == ["c"]
    # Every 1,700 s since the start: 200 s ago.
    assert names(asked(full, ONE, lend(full, c={"interval": 1_700.0}))) == ["c"]
    # What it reports is believed before what it announced.
    said = {"interval": 1_700.0, "checkpoint": NOW - 3_000}
    assert names(asked(full, ONE, lend(full, c=said, d={"checkpoint": NOW - 2_900}))) == ["d"]


def test_of_equal_loss_the_lowest_priority_goes_then_the_youngest(full: ClusterState) -> None:
    everyone = {name: {"checkpoint": NOW, "priority": 5} for name in "abcdefg"}
    assert names(asked(full, ONE, lend(full, **{**everyone, "b": {"checkpoint": NOW, "priority": 1}}))) == [
        "b"
    ]
    young = {**everyone["d"], "started": NOW - 10}
    assert names(asked(full, ONE, lend(full, **{**everyone, "d": young}))) == ["d"]


@pytest.mark.parametrize(
    ("said", "terms", "why"),
    [
        ({"preemptible": False}, {}, Spared.NOT_PREEMPTIBLE),
        ({"tenant": "owed"}, {}, Spared.ENTITLED),
        ({"tenant": "unheard of"}, {}, Spared.ENTITLED),
        ({}, {"min_runtime": {"a": 3_601.0}}, Spared.MIN_RUNTIME),
        ({}, {"budget": {"a": 0}}, Spared.BUDGET),
        ({"pdbs": ("x",)}, {}, Spared.PDB),
        ({"pdbs": ("x",)}, {"pdbs": {"x": 0}}, Spared.PDB),
        ({"pdbs": ("x", "y")}, {"pdbs": {"x": 9, "y": 9}}, Spared.PDB),
    ],
)
def test_who_may_not_go_is_counted_with_the_reason(
    full: ClusterState, said: dict[str, Any], terms: dict[str, Any], why: Spared
) -> None:
    found = asked(full, ONE, lend(full, **dict.fromkeys("abcdefg", said)), **terms)
    assert isinstance(found, NoReclaim)
    assert found.spared == {why: 7}
    assert f"none could go; 7 are {why.value}." in found.reason
    # One who may is found among them.
    lent = lend(full, **dict.fromkeys("abcdef", said), g={"tenant": "b"})
    assert names(asked(full, ONE, lent, **terms)) == ["g"]


def test_terms_that_just_hold_are_kept(full: ClusterState) -> None:
    terms: dict[str, Any] = {"min_runtime": {"a": 3_600.0}, "budget": {"a": 2}, "pdbs": {"x": 2}}
    lent = lend(full, **{name: {"pdbs": ("x",)} for name in "abcdefg"})
    assert len(names(asked(full, TWO, lend(full, g={"preemptible": False}), **terms))) == 2
    found = asked(full, FOUR, lent, **terms)
    assert isinstance(found, NoReclaim)
    assert "7 could go" in found.reason
    assert len(names(asked(full, FOUR, lent, budget={"a": 3}, pdbs={"x": 3}))) == 3


def test_each_victim_holds_something_its_tenant_is_not_entitled_to(full: ClusterState) -> None:
    lent = lend(full, g={"preemptible": False})
    assert names(asked(full, ONE, lent, over={"a": 0.1}))
    assert isinstance(asked(full, TWO, lent, over={"a": 1.0}), NoReclaim)
    assert len(names(asked(full, TWO, lent, over={"a": 1.1}))) == 2


def test_who_would_end_above_pushes_nobody_below(full: ClusterState) -> None:
    lent = lend(full)
    # Two jobs of two cards, three entitled each: taking one from the other would only turn the tables.
    assert isinstance(asked(full, TWO, lent, over={"owed": -1.0, "a": 1.0}), NoReclaim)
    assert names(asked(full, TWO, lent, over={"owed": -1.0, "a": 2.0})) == ["g"]
    assert names(asked(full, TWO, lent, over={"owed": -2.0, "a": 1.0})) == ["g"]
    found = asked(full, TWO, lent, over={"owed": 0.0})
    assert isinstance(found, NoReclaim)
    assert found.reason == "Tenant owed is not below its entitlement, so nobody gives back for it."


def test_nobody_goes_where_there_is_room_or_where_no_eviction_helps(full: ClusterState) -> None:
    eight = asked(full, pod("p", {GPU: "8"}), lend(full))
    assert isinstance(eight, NoReclaim)
    assert eight.reason == "No node that the pod may use would have room for it, whoever left."
    unknown = asked(full, pod("p", {"nvidia.com/mig-7g.80gb": "1", "nvidia.com/unheard": "1"}), lend(full))
    assert isinstance(unknown, NoReclaim)
    assert "names a resource that no node has" in unknown.reason
    lent = lend(full)
    full.apply(PodGone("uid-g"))
    room = asked(full, TWO, lent)
    assert isinstance(room, NoReclaim)
    assert room.reason == "Node n1 has room for it, so nobody has to go."


def test_cores_and_memory_make_room_too() -> None:
    hungry = [
        on("a", 0, spec={"overhead": {"cpu": "60"}}),
        on("b", 1, spec={"overhead": {"memory": "1000Gi"}}),
    ]
    state = book(node("n0", {GPU: "4"}), pods=hungry)
    assert names(asked(state, pod("p", {GPU: "1", "cpu": "40"}), lend(state))) == ["a"]
    assert names(asked(state, pod("p", {GPU: "1", "memory": "100Gi"}), lend(state))) == ["b"]
    assert isinstance(asked(state, pod("p", {GPU: "1", "cpu": "97"}), lend(state)), NoReclaim)


def test_all_sharers_of_one_card_make_room_for_a_whole_one() -> None:
    held = [(0, 3), (1, 2), (2, 4)]
    sharers = [
        pod(f"s{card}{number}", {SHARED: "1"}, at="n0", record=record_of(shared=(card,), units=0.1))
        for card, count in held
        for number in range(count)
    ]
    state = book(node("n0", {GPU: "3", SHARED: "30"}, replicas=10, memory=81_920), pods=sharers)
    assert names(asked(state, ONE, lend(state))) == ["s10", "s11"]
    assert len(names(asked(state, TWO, lend(state)))) == 5
    assert names(asked(state, ONE, lend(state, s10={"preemptible": False}))) == ["s00", "s01", "s02"]


def test_pods_whose_cards_are_not_known_can_be_victims() -> None:
    state = book(
        node("n0", {GPU: "2"}),
        node("n1", {GPU: "2"}),
        pods=[pod("x", {GPU: "2"}, at="n0"), on("y", 0, at="n1"), on("z", 1, at="n1")],
    )
    assert names(asked(state, TWO, lend(state))) == ["x"]
    assert names(asked(state, TWO, lend(state, x={"preemptible": False}))) == ["y", "z"]


def test_a_pod_whose_binding_is_not_settled_is_no_victim() -> None:
    state = book(node("n0", {GPU: "1"}))
    state.apply(Reserved(on("a", 0), "n0", record_of(gpu=(0,))))
    assert isinstance(asked(state, ONE, lend(state)), NoReclaim)


def test_a_search_that_is_cut_short_says_so(full: ClusterState) -> None:
    snapshot = full.snapshot()
    rows = np.array([snapshot.index.get("n0")], np.int32)
    terms = Terms(NOW, {"owed": -9.0, "a": 9.0})
    found = reclaim(snapshot, request_of(TWO), "owed", rows, lend(full), terms, effort=1)
    assert isinstance(found, NoReclaim) or not found.exact
    none = reclaim(snapshot, request_of(TWO), "owed", rows, lend(full), terms, effort=0)
    assert isinstance(none, NoReclaim)
    assert none.reason.endswith("The search was cut short.")


def test_only_the_rows_given_are_looked_at(full: ClusterState) -> None:
    snapshot = full.snapshot()
    terms = Terms(NOW, {"owed": -9.0, "a": 9.0})
    for name, victims in (("n0", 2), ("n1", 1)):
        rows = np.array([snapshot.index.get(name)], np.int32)
        found = reclaim(snapshot, request_of(TWO), "owed", rows, lend(full), terms)
        assert isinstance(found, Reclaim)
        assert (found.node, len(found.victims)) == (name, victims)


CANDIDATES = st.builds(
    Candidate,
    uid=st.sampled_from([f"u{number}" for number in range(12)]),
    node=st.sampled_from(["n0", "n1", "n2"]),
    tenant=st.sampled_from("abc"),
    request=st.sampled_from([request_of(pod("p", {GPU: str(count)})) for count in (1, 2)]),
    units=st.sampled_from([0.25, 1.0, 2.0]),
    started=st.floats(0, NOW),
    cards=st.sampled_from([None, Cards((0, 3)), Cards((), (1,)), Cards((), (1, 1))]),
    priority=st.integers(-5, 5),
    preemptible=st.booleans(),
    interval=st.sampled_from([None, 100.0]),
    checkpoint=st.sampled_from([None, NOW - 50]),
    pdbs=st.sampled_from([(), ("x",), ("y",), ("x", "y")]),
)


@settings(max_examples=60)
@given(st.lists(st.one_of(CANDIDATES, st.sampled_from([f"u{number}" for number in range(12)])), max_size=90))
def test_columns_say_of_each_candidate_what_its_record_says(steps: Iterable[Candidate | str]) -> None:
    lent = Lent()
    expected: dict[str, Candidate] = {}
    for step in steps:
        if isinstance(step, str):
            lent.drop(step)
            expected.pop(step, None)
        else:
            lent.put(step)
            expected[step.uid] = step
    assert {candidate.uid: candidate for candidate in lent} == expected
    assert len(lent) == len(lent.units) == len(expected)
    assert {name for name in lent.nodes.keys if name} == {each.node for each in expected.values()}
    assert all(lent.get(uid) == each for uid, each in expected.items())
    every = np.arange(len(lent))
    lost, ran = lent.lost(NOW, every), lent.ran(NOW, every)
    for at, each in enumerate(lent):
        assert lent.nodes.keys[lent.node[at]] == each.node
        assert lent.tenants.keys[lent.tenant[at]] == each.tenant
        assert lent.shapes.keys[lent.shape[at]] == each.request.devices
        assert ran[at] == round(NOW - each.started)
        since = NOW - max(each.started, each.checkpoint or 0)
        if each.interval and each.checkpoint is None:
            since %= each.interval
        assert lost[at] == pytest.approx(each.units * since, abs=0.51)


@settings(max_examples=80)
@given(st.lists(CANDIDATES, max_size=12, unique_by=lambda each: each.uid))
def test_the_reasons_counted_are_those_of_each_pod(candidates: list[Candidate]) -> None:
    sitting = [on(f"full{number}", 0, 1, at=f"n{number}") for number in range(3)]
    state = book(*(node(f"n{number}", {GPU: "2"}) for number in range(3)), pods=sitting)
    terms: dict[str, Any] = {"min_runtime": {"a": 5_000.0}, "budget": {"b": 0}, "pdbs": {"x": 1}}
    found = asked(state, ONE, Lent(candidates), over={"a": 5.0, "b": 5.0, "c": -1.0}, **terms)
    assert isinstance(found, NoReclaim)
    told = Terms(NOW, {"owed": -100.0, "a": 5.0, "b": 5.0, "c": -1.0}, **terms)
    reasons = [why for why in (spared(each, told) for each in candidates) if why]
    assert found.spared == {why: reasons.count(why) for why in reasons}
