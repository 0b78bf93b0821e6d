"""The planner's reclaims: who is asked back through the giver, and that it stays in step with book and ledger."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.events import NodeSeen, PodGone, PodSeen
from extender.cluster.mix import Scales
from extender.decide.budgets import Budgets
from extender.decide.giving import Giver, UnreadableMark, WouldEvict
from extender.decide.instructions import (
    ClassesSeen,
    Clear,
    Evict,
    Instruction,
    Nominate,
    PoliciesSeen,
    Release,
    Tick,
)
from extender.decide.status import restore, status_of
from extender.decide.waiter import preemptible_classes
from extender.fairness.reading import Policies
from extender.fairness.record import Fairness
from extender.fairness.usage import timestamp
from extender.wire.marks import CHECKPOINT_INTERVAL, LAST_CHECKPOINT, PREEMPTIBLE
from extender.wire.surroundings import PodDisruptionBudget, PriorityClass
from tests import reports
from tests.builders import GPU, node, record_of
from tests.decide.lending import WALL, World, pod


def pdb(name: str, allowed: int, selector: Any, namespace: str = "batch") -> PodDisruptionBudget:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed},
        },
        PodDisruptionBudget,
    )


def victims(told: list[Instruction]) -> list[str]:
    return [ref.name for each in told if isinstance(each, Evict) for ref in each.victims]


def test_borrowed_work_makes_room_and_the_winner_is_sent_once_it_has_left() -> None:
    world = World()
    world.fill()
    told = world.wants()
    [nominate, evict] = told
    assert isinstance(nominate, Nominate)
    assert isinstance(evict, Evict)
    assert (nominate.node, evict.pod.name) == ("n0", "w")
    [gone] = evict.victims
    assert world.retry() == []
    [release] = world.see(PodGone(gone.uid))
    assert release == Release(evict.pod, "n0")


def test_room_that_is_free_where_it_is_of_no_use_keeps_nobody_from_giving_back() -> None:
    """One card is free on each node, so all tenants together have less than the pool; `live` wants two on one."""
    world = World(nodes=2)
    for name in ("n0", "n1"):
        for card in range(3):
            world.sits(f"{name}-{card}", card, at=name)
    assert len(victims(world.wants(gpus=2))) == 1


def test_a_pod_that_nobody_can_make_room_for_does_not_stand_in_the_way_of_others() -> None:
    world = World(nodes=2)
    world.sits("kept", 0, tenant="live")
    for card in (1, 2, 3):
        world.sits(f"n0-{card}", card)
    for card in range(4):
        world.sits(f"n1-{card}", card, at="n1", labels={"kvitej.io/preemptible": "true"}, started=0.0)
    world.giver.budgets([pdb("all", 0, {})])
    assert victims(world.wants("big", gpus=3)) == []
    world.giver.budgets([])
    assert len(victims(world.wants("small"))) == 1


def test_who_leaves_and_who_is_promised_room_count_before_either_has_happened() -> None:
    world = World(nodes=4)
    for at in range(4):
        for card in range(4):
            world.sits(f"{at}-{card}", card, at=f"n{at}")
    for number in range(12):
        world.wants(f"w{number}")
    evicted = set(world.planner.claims.leaving)
    for _ in range(4):
        world.retry()
        for uid in list(world.planner.claims.leaving):
            evicted.add(uid)
            world.see(PodGone(uid))
    # 16 GPUs: live is entitled to 8, and batch keeps what it is entitled to.
    assert len(evicted) == 8


def test_the_work_that_loses_least_goes() -> None:
    world = World()
    every_hour = {CHECKPOINT_INTERVAL: "1h"}
    world.sits("a", 0, started=100.0)
    world.sits("b", 1, started=world.now - 3_500, marks=every_hour)
    world.sits("c", 2, started=world.now - 3_700, marks=every_hour)
    world.sits("d", 3, started=100.0, marks={LAST_CHECKPOINT: timestamp(WALL + world.now - 200)})
    assert victims(world.wants()) == ["c"]


@pytest.mark.parametrize(
    ("marks", "annotation"),
    [
        ({CHECKPOINT_INTERVAL: "often"}, CHECKPOINT_INTERVAL),
        ({CHECKPOINT_INTERVAL: "-1h"}, CHECKPOINT_INTERVAL),
        ({LAST_CHECKPOINT: "yesterday"}, LAST_CHECKPOINT),
        ({LAST_CHECKPOINT: "2026-01-01T00:00:00"}, LAST_CHECKPOINT),
    ],
)
def test_what_cannot_be_read_counts_as_absent_and_is_said_once(
    marks: dict[str, str], annotation: str
) -> None:
    world = World()
    world.sits("a", 0, marks=marks, started=5.0)
    [notice] = world.giver.notices()
    assert isinstance(notice, UnreadableMark)
    assert annotation in str(notice)
    assert next(iter(marks.values())) in str(notice)
    world.sits("a", 0, marks=marks, started=6.0)
    assert world.giver.notices() == []
    world.giver.catch_up(world.planner.pools.by_name["all"].ledger)
    found = world.giver.lent.get("uid-a")
    assert found is not None
    assert (found.interval, found.checkpoint) == (None, None)


def test_a_pod_that_does_not_say_when_it_started_runs_since_it_was_seen_bound() -> None:
    world = World(min_runtime=60.0)
    world.fill()
    assert world.wants() == []
    world.now += 50
    world.fill(started=world.now + 500)
    assert world.retry() == []
    assert victims(world.see(Tick(), 20.0)) != []


def test_work_within_its_min_runtime_stays() -> None:
    world = World(min_runtime=60.0)
    world.fill(started=9_950.0)
    assert world.wants() == []
    assert victims(world.see(Tick(), 11.0)) != []


def test_a_tenants_evictions_of_an_hour_are_counted_once_granted() -> None:
    world = World(nodes=2, evictions_per_hour=1)
    world.fill()
    for card, name in enumerate("efgh"):
        world.sits(name, card, at="n1")
    [first] = victims(world.wants("v"))
    assert world.wants("w") == []
    world.giver.evicted(f"uid-{first}", world.now)
    world.see(PodGone(f"uid-{first}"))
    assert world.retry() == []
    assert victims(world.see(Tick(), 3_500.0)) == []
    assert len(victims(world.see(Tick(), 101.0))) == 1


def test_the_hour_goes_on_after_a_restart() -> None:
    world = World(evictions_per_hour=1)
    world.fill()
    [first] = victims(world.wants("v"))
    world.giver.evicted(f"uid-{first}", world.now)
    stopped = world.now + 1_000
    statuses = status_of(
        world.planner, world.state.snapshot(), Fairness(), {}, wall=WALL + stopped, now=stopped
    )
    assert [len(each["evictedAt"]) for each in statuses["all"]["tenants"]] == [1, 0]
    later = World(evictions_per_hour=1)
    later.fill()
    begun = WALL + stopped + 100
    assert not restore(
        later.planner, later.state.snapshot(), Fairness(), statuses, {}, wall=begun, now=later.now
    )
    assert later.wants() == []
    assert victims(later.see(Tick(), 2_490.0)) == []
    assert len(victims(later.see(Tick(), 20.0))) == 1


def test_an_eviction_that_was_not_granted_does_not_count() -> None:
    world = World(evictions_per_hour=1)
    world.fill()
    [first] = victims(world.wants("v"))
    # It ends by itself.
    world.see(PodGone(f"uid-{first}"))
    assert len(victims(world.wants("w"))) == 1


def test_disruption_budgets_hold_also_for_evictions_under_way() -> None:
    world = World(nodes=2)
    world.fill(labels={"app": "x"})
    for card, name in enumerate("efgh"):
        world.sits(name, card, at="n1", labels={"app": "x"})
    world.giver.budgets([pdb("p", 0, {"matchLabels": {"app": "x"}})])
    assert world.wants("v") == []
    world.giver.budgets([pdb("p", 1, {"matchLabels": {"app": "x"}})])
    assert len(victims(world.retry())) == 1
    assert victims(world.wants("w")) == []
    world.giver.budgets([pdb("p", 1, {"matchLabels": {"app": "y"}})])
    assert len(victims(world.retry())) == 1


def test_a_pod_that_is_being_deleted_is_kept_by_no_budget() -> None:
    world = World()
    world.fill()
    world.sits("c", 2, leaves=True)
    world.giver.budgets([pdb("p", 0, {})])
    assert victims(world.wants()) == ["c"]


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "x", "tier": "y"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Near"}]}, True),
    ],
)
def test_budgets_cover_what_their_selector_says(selector: Any, covered: bool) -> None:
    budgets = Budgets()
    assert budgets.follow([pdb("p", 3, selector)]) == ({"batch"} if selector is not None else set())
    assert budgets.covering("batch", {"app": "x"}) == (("batch/p",) if covered else ())
    assert budgets.covering("other", {"app": "x"}) == ()
    assert budgets.allowed == {"batch/p": 3}
    assert budgets.follow([pdb("p", 2, selector)]) == set()
    assert budgets.follow([]) == ({"batch"} if selector is not None else set())


def test_work_that_is_not_preemptible_stays_unless_pod_or_class_say_otherwise() -> None:
    world = World(preemptible=False)
    world.fill()
    assert world.wants() == []
    world.sits("b", 1, labels={PREEMPTIBLE: "true"})
    assert victims(world.retry()) == ["b"]


def test_a_priority_class_makes_its_pods_preemptible_and_takes_it_back() -> None:
    cheap = msgspec.convert({"metadata": {"name": "cheap", "labels": {PREEMPTIBLE: "true"}}}, PriorityClass)
    plain = msgspec.convert({"metadata": {"name": "plain"}}, PriorityClass)
    names = preemptible_classes([cheap, plain])
    assert names == {"cheap"}
    world = World(preemptible=False)
    for card, name in enumerate("abcd"):
        world.sits(name, card, klass="cheap" if name == "c" else "plain")
    world.see(PodSeen(pod("x", 1, "batch", gated=True, klass="cheap")))
    assert world.wants() == []
    assert not world.planner.waiters["uid-x"].preemptible
    assert victims(world.see(ClassesSeen(names), 2.0)) == ["c"]
    assert world.planner.waiters["uid-x"].preemptible
    world.see(ClassesSeen(frozenset()))
    assert not world.planner.pools.by_name["all"].ledger.entries["uid-c"].preemptible
    assert not world.planner.waiters["uid-x"].preemptible


def test_who_holds_a_card_is_known_anew_when_the_kubelet_has_told() -> None:
    world = World()
    world.fill()
    assert victims(world.wants())
    held = {name: [f"GPU-{3 - at}"] for at, name in enumerate("abcd")}
    world.see(reports.report(*map(reports.card, range(4)), held=held, namespace="batch"))
    world.giver.catch_up(world.planner.pools.by_name["all"].ledger)
    found = {name: world.giver.lent.get(f"uid-{name}") for name in "abcd"}
    assert [each and each.cards and each.cards.whole for each in found.values()] == [(3,), (2,), (1,), (0,)]


def test_the_winner_is_sent_when_the_report_says_that_the_card_is_empty() -> None:
    """What a pod used is on its card until the agent has looked again, and Bind would veto."""
    world = World()
    world.fill()
    names = {name: f"GPU-{at}" for at, name in enumerate("abcd")}

    def told(*names_now: str) -> list[Instruction]:
        cards = [
            reports.card(at, pods={f"uid-{name}": 40} if name in names_now else {})
            for at, name in enumerate(names)
        ]
        held = {name: [names[name]] for name in names_now}
        return world.see(reports.report(*cards, held=held, namespace="batch"))

    told(*names)
    [_, evict] = world.wants()
    assert isinstance(evict, Evict)
    [gone] = evict.victims
    assert world.see(PodGone(gone.uid)) == [], "it would be vetoed"
    assert told(*names) == [], "a report from before"
    assert world.retry() == []
    assert world.state.snapshot().seats["uid-w"].node == "n0", "the room is kept for it"
    said = " ".join(world.planner.explain("uid-w").sentences)
    assert "the pods that made room are gone" in said
    assert told(*(name for name in names if name != gone.name)) == [Release(evict.pod, "n0")]


def test_a_winner_whose_room_stays_occupied_stands_in_line_again() -> None:
    world = World()
    world.fill()
    names = {name: f"GPU-{at}" for at, name in enumerate("abcd")}
    cards = [reports.card(at, pods={f"uid-{name}": 40}) for at, name in enumerate(names)]
    held = {name: [uuid] for name, uuid in names.items()}
    world.see(reports.report(*cards, held=held, namespace="batch"))
    [_, evict] = world.wants()
    assert isinstance(evict, Evict)
    [gone] = evict.victims
    world.see(PodGone(gone.uid))
    del held[gone.name]
    left = [reports.card(at, foreign=9 if name == gone.name else 0) for at, name in enumerate(names)]
    assert world.see(reports.report(*left, held=held, namespace="batch")) == []
    told = world.see(Tick(), 31.0)
    assert any(isinstance(each, Clear) for each in told)
    assert "uid-w" not in world.state.snapshot().seats


def test_a_dry_run_only_reports_and_does_so_once() -> None:
    world = World(dry_run=True)
    world.fill()
    assert world.wants() == []
    [notice] = world.giver.notices()
    assert isinstance(notice, WouldEvict)
    assert (notice.policy, notice.tenant, notice.node) == ("all", "live", "n0")
    assert notice.victims[0] in str(notice)
    assert world.retry() == []
    assert world.giver.notices() == []


def test_the_book_knows_what_is_borrowed_and_places_by_it() -> None:
    """Two GPUs of n0 are pinned: what is guaranteed joins them, what can be asked back stays apart."""
    world = World(nodes=2, preemptible=False, scales=Scales(fragmentation=0))
    world.sits("a", 0)
    world.sits("b", 1)
    [release] = world.wants("guaranteed", tenant="batch")
    assert isinstance(release, Release)
    assert release.node == "n0"
    [release] = world.wants("borrowed", tenant="batch", labels={PREEMPTIBLE: "true"})
    assert isinstance(release, Release)
    assert release.node == "n1"
    snapshot = world.state.snapshot()
    seats = snapshot.seats
    assert not seats["uid-guaranteed"].borrowed
    assert seats["uid-borrowed"].borrowed
    assert snapshot.table.lent[[snapshot.index.get("n0"), snapshot.index.get("n1")]].tolist() == [0, 1]
    world.see(PoliciesSeen(Policies([])))
    assert not seats["uid-borrowed"].borrowed
    assert not snapshot.table.lent.any()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sit", "go", "node", "budget", "look", "class", "report"]),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_what_is_kept_step_by_step_is_what_a_giver_finds_that_comes_later(steps: list[Any]) -> None:
    world = World(nodes=2, gpus=8)
    ledger = world.planner.pools.by_name["all"].ledger
    budgets: list[PodDisruptionBudget] = []
    seen: dict[str, PodSeen] = {}
    for what, which, how in steps:
        if what == "sit":
            klass = "cheap" if how % 2 else None
            marks = {CHECKPOINT_INTERVAL: f"{how}h"} if how else {}
            labels = {"n": str(how)}
            at, record = f"n{which % 2}", record_of(gpu=(which,))
            found = pod(
                f"p{which}",
                1,
                "batch",
                at=at,
                record=record,
                started=5.0,
                labels=labels,
                marks=marks,
                klass=klass,
            )
            seen[found.metadata.uid] = PodSeen(found)
            world.see(seen[found.metadata.uid])
        elif what == "go":
            seen.pop(f"uid-p{which}", None)
            world.see(PodGone(f"uid-p{which}"))
        elif what == "node":
            world.see(NodeSeen(node(f"n{which % 2}", {GPU: str(8 - how)})))
        elif what == "budget":
            budgets = [pdb("p", which, {"matchLabels": {"n": str(how)}})]
            world.giver.budgets(budgets)
        elif what == "report":
            held = {f"p{which}": [f"GPU-{how}"]}
            world.see(
                reports.report(
                    *map(reports.card, range(8)), node=f"n{which % 2}", held=held, namespace="batch"
                )
            )
        elif what == "class":
            world.see(ClassesSeen(frozenset({"cheap"} if how else ())))
        else:
            world.giver.catch_up(ledger)
    world.giver.catch_up(ledger)
    ledger.fresh |= ledger.entries.keys()
    later = Giver(world.state, WALL)
    later.budgets(budgets)
    for event in seen.values():
        later.apply(event, world.now)
    later.catch_up(ledger)
    ours = {each.uid: each for each in world.giver.lent}
    assert ours == {each.uid: each for each in later.lent}
    assert ours.keys() == seen.keys()
