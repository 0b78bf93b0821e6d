"""The planner: turns, claims, nominations, holds, and what it says of a wait."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.claims import Settings
from extender.decide.instructions import Clear, Elsewhere, Evict, Failed, Nominate, NotEvicted, Release
from extender.decide.room import Rows
from extender.decide.turns import Victims
from extender.decide.waits import Reason
from extender.fairness.ledger import Ledger
from extender.fairness.policy import Policy, Share, Tenant
from tests.builders import GPU
from tests.decide.planning import Job, World, released
from tests.fairness.builders import policy

OPEN = Policy("p", (Tenant("a", 1.0, preemptible=True), Tenant("b", 1.0, preemptible=True)), hold_after=60.0)
"""Two equal tenants that may have everything."""


def jobs(tenant: str, many: int, *, gpus: int = 1, first: int = 0) -> list[Job]:
    numbers = range(first, first + many)
    return [Job(f"{tenant}{number}", tenant, gpus, born=number) for number in numbers]


# turns and room


def test_a_gated_pod_with_room_is_nominated_and_released_at_once_and_keeps_its_seat() -> None:
    world = World([OPEN], nodes=["n0"])
    said = world.put(Job("a0", "a", 8))
    assert released(said) == [("a0", "n0")]
    assert world.put(Job("b0", "b", 1)) == []
    world.carry()
    assert world.schedule("uid-a0") == "n0"
    assert world.state.snapshot().seats["uid-a0"].record == world.jobs["uid-a0"].record


def test_tenants_take_turns_by_what_they_have_and_pods_of_one_by_priority_then_age() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("x", "a", 8))
    world.put(Job("a0", "a", born=1), Job("a1", "a", born=2), Job("a2", "a", priority=5, born=3))
    world.put(Job("b0", "b", 2, born=9), Job("b1", "b", 2, born=8))
    said = world.end("uid-x")
    assert [name for name, _ in released(said)] == ["a2", "b1", "a0", "a1", "b0"]


def test_shares_in_use_settle_at_the_entitlements_when_all_want_more_than_they_may_have() -> None:
    world = World([policy()])
    for tenant in ("training", "inference", "research"):
        world.put(*jobs(tenant, 64))
    for number in range(8):
        world.put_node(f"n{number}", 8)
    world.run()
    used = [world.gpus_of(tenant) for tenant in ("training", "inference", "research")]
    assert sum(used) == 64
    assert used == pytest.approx([25.6, 32, 6.4], abs=1)


def test_nobody_gets_more_than_his_maximum_however_empty_the_cluster() -> None:
    world = World([policy()], nodes=["n0", "n1"])
    world.put(*jobs("research", 9))
    world.run()
    assert world.gpus_of("research") == 4
    assert world.planner.explain("uid-research8").reason is Reason.QUOTA


def test_work_that_cannot_be_evicted_leaves_the_minima_of_others_free() -> None:
    world = World([policy()], nodes=["n0", "n1"])
    world.put(*jobs("inference", 16))
    world.run()
    assert world.gpus_of("inference") == 12, "16 less 20 % and 5 %"
    assert "kept for the minima of others" in " ".join(world.planner.explain("uid-inference15").sentences)


def test_what_does_not_fit_lets_smaller_work_pass() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("a0", "a", 4), Job("big", "a", 8, born=1))
    assert released(world.put(Job("b0", "b", 4, born=2))) == [("b0", "n0")]
    assert world.planner.explain("uid-big").reason is Reason.ROOM


def test_cpu_memory_taints_and_selectors_are_checked_before_a_release() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("a0", "a", 1, cores=90))
    assert world.put(Job("a1", "a", 1, cores=10)) == [], "the node has 96 cores"
    selecting = (("nodeSelector", {"zone": "x"}),)
    assert world.put(Job("a2", "a", 1, spec=selecting)) == []
    assert released(world.put_node("n1", 8, labels={"zone": "x"})) == [("a1", "n1"), ("a2", "n1")]
    tainted = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    world = World([OPEN])
    world.put(Job("a0", "a"))
    assert world.put_node("n0", 8, **tainted) == []
    assert released(world.put_node("n0", 8)) == [("a0", "n0")]


def test_pods_that_others_gate_get_no_seat_until_those_gates_are_gone() -> None:
    world = World([OPEN], nodes=["n0"])
    held = Job("a0", "a", gates=("kvitej.io/turn", "kueue"))
    assert world.put(held) == []
    assert "kueue" in world.planner.explain("uid-a0").sentences[0]
    assert released(world.change("uid-a0", gates=("kvitej.io/turn",))) == [("a0", "n0")]


def test_pods_without_a_tenant_go_last_and_uncovered_ones_after_them() -> None:
    only_a = Policy("p", (Tenant("a", 1.0),), scheduler_names=frozenset({"fair-quota"}))
    settings = Settings(schedulers=frozenset({"fair-quota", "other"}))
    world = World([only_a], nodes=["n0"], gpus=1, settings=settings)
    world.put(Job("x", "a"))
    world.put(Job("o0", "a", scheduler="other", priority=9))
    world.put(Job("s0", "stranger", priority=5), Job("a0", "a"))
    order = []
    for uid in ("uid-x", "uid-a0", "uid-s0"):
        ((name, _),) = released(world.end(uid))
        order.append(name)
    assert order == ["a0", "s0", "o0"]


def test_a_step_seats_so_many_and_is_busy_till_all_are() -> None:
    world = World([OPEN], nodes=[f"n{i}" for i in range(3)], settings=Settings(at_once=4, in_flight=10))
    world.put(Job("x", "a", 8), Job("y", "a", 8), Job("z", "a", 8))
    world.run()
    world.put(*jobs("a", 12), *jobs("b", 12))
    world.end("uid-x")
    assert len(released(world.end("uid-y"))) == 4
    assert world.planner.busy
    world.rest()
    assert len(world.todo) == 10, "no more are on their way at once"
    world.run()
    assert len(world.sitting()) == 17


# claims


def test_a_released_pod_that_is_not_bound_in_time_is_loose_and_planned_elsewhere() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("a0", "a"))
    world.carry()
    world.put_node("n1", 8)
    said = world.wait(30)
    assert said == [Clear(said[0].pod, "n0")], "it rests first"
    assert world.planner.claims.refusals == 1
    assert "not bound there within 30 s" in world_reason(world, "uid-a0")
    answer = world.planner.seat_for(world.jobs["uid-a0"].pod)
    assert answer is not None
    assert "not bound there within 30 s" in answer.reason
    assert [type(each) for each in world.wait(1)] == [Nominate]
    assert world.todo[-1] == Nominate(said[0].pod, "n1"), "the node that the scheduler refused is left alone"
    world.carry_all()
    assert world.schedule("uid-a0") == "n1"


def elsewhere(world: World, uid: str, *names: str) -> None:
    index = world.state.snapshot().index
    world.tell(Elsewhere(uid, np.array([index.get(name) for name in names], np.int32)))


def test_a_pod_that_the_scheduler_would_only_take_elsewhere_gets_its_seat_there() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("a0", "a"))
    world.put_node("n1", 8)
    world.put_node("n2", 8)
    world.carry()
    elsewhere(world, "uid-a0", "n1", "n2")
    answer = world.planner.seat_for(world.jobs["uid-a0"].pod)
    assert answer is not None
    assert answer.node in ("n1", "n2")
    assert world.planner.claims.refusals == 1
    assert world.schedule("uid-a0") == answer.node


def test_a_pod_that_the_scheduler_takes_nowhere_stands_in_line_again() -> None:
    world = World([OPEN], nodes=["n0", "n1"])
    world.put(Job("x", "b", 8), Job("a0", "a"))
    world.carry_all()
    held = world.planner.seat_for(world.jobs["uid-x"].pod)
    assert held is not None
    assert held.node is not None
    elsewhere(world, "uid-a0", held.node)
    answer = world.planner.seat_for(world.jobs["uid-a0"].pod)
    assert answer is not None
    assert answer.node is None
    assert "nor kvitej elsewhere" in answer.reason


def world_reason(world: World, uid: str) -> str:
    return " ".join(world.planner.explain(uid).sentences)


def test_what_the_scheduler_refused_is_learned_for_the_shape_and_forgotten_after_a_while() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("a0", "a"))
    world.carry()
    world.change("uid-a0", unschedulable=True, nominated=None)
    assert world.planner.waiters["uid-a0"].node is None
    assert world.put(Job("a1", "a")) == [], "it is alike"
    assert released(world.put(Job("b2", "b", 2))) == [("b2", "n0")]
    world.carry_all()
    world.schedule("uid-b2")
    said = world.wait(121)
    assert {each.pod.name for each in said if isinstance(each, Release | Nominate)} == {"a0", "a1"}


def test_a_failed_write_ends_the_claim_and_the_pod_is_tried_again_later() -> None:
    world = World([OPEN], nodes=["n0"])
    (release,) = world.put(Job("a0", "a", 8))
    said = world.tell(Failed("uid-a0", "the API server is away"))
    assert said == [Clear(release.pod, "n0")]
    assert "the API server is away" in world.planner.explain("uid-a0").sentences[0]
    assert released(world.wait(2)) == [("a0", "n0")]


def test_a_pod_that_leaves_gives_its_seat_to_the_next() -> None:
    world = World([OPEN], nodes=["n0"], gpus=1)
    world.put(Job("a0", "a"), Job("a1", "a", born=1))
    assert released(world.end("uid-a0")) == [("a1", "n0")]


def test_a_node_that_is_lost_takes_its_claims_with_it() -> None:
    world = World([OPEN], nodes=["n0"])
    (release,) = world.put(Job("a0", "a"))
    assert world.remove_node("n0") == [Clear(release.pod, "n0")]
    assert released(world.put_node("n1", 8)) == [("a0", "n1")]


def test_a_pod_that_skipped_the_webhook_is_seated_only_in_its_turn() -> None:
    world = World([OPEN], nodes=["n0"], gpus=2)
    world.put(Job("x", "a", 2))
    world.put(Job("a0", "a", 2, gates=(), born=0), Job("b0", "b", 2, born=9))
    answer = world.planner.seat_for(world.jobs["uid-a0"].pod)
    assert answer is not None
    assert answer.node is None
    assert "number 1 of tenant a in line" in answer.reason
    assert world.schedule("uid-a0") is None
    world.carry_all()
    world.schedule("uid-x")
    said = world.end("uid-x")
    assert len(said) == 1
    world.carry_all()
    world.run()
    assert world.sitting() in (["a0"], ["b0"])


def test_uncovered_pods_without_a_gate_are_left_to_the_scheduler() -> None:
    world = World(nodes=["n0"])
    assert world.put(Job("a0", "a", gates=())) == []
    assert world.planner.seat_for(world.jobs["uid-a0"].pod) is None
    assert world.schedule("uid-a0") == "n0"
    assert released(world.put(Job("a1", "a"))) == [("a1", "n0")], "a gated one would wait for ever"


def test_a_pod_that_the_planner_has_not_seen_gets_no_seat() -> None:
    world = World([OPEN], nodes=["n0"])
    answer = world.planner.seat_for(Job("new", "a", gates=()).pod)
    assert answer is not None
    assert answer.node is None
    assert world.planner.seat_for(Job("new", "a", gpus=0, gates=()).pod) is None, "it needs no GPU"


# a process that begins


def test_a_new_process_carries_on_with_order_claims_and_nominations() -> None:
    world = World([OPEN], nodes=["n0"], gpus=2)
    world.put(Job("a0", "a", 2))
    world.put(Job("a1", "a", 2, born=1), Job("a2", "a", 2, born=2))
    world.carry()
    world.start()
    assert world.todo == type(world.todo)(), "it was released and keeps its seat"
    assert world.planner.waiters["uid-a0"].node == "n0"
    assert released(world.end("uid-a0")) == [("a1", "n0")]


def test_killed_between_the_status_patch_and_the_gate_patch_the_nomination_is_replaced_or_cleared() -> None:
    world = World([OPEN], nodes=["n0"], gpus=1)
    world.put(Job("a0", "a"), Job("a1", "a", born=1))
    world.jobs["uid-a1"] = Job("a1", "a", born=1, nominated="n0")
    world.jobs["uid-a0"] = Job("a0", "a", nominated="gone")
    world.start()
    assert released(world.todo) == [("a0", "n0")]
    assert [each for each in world.todo if isinstance(each, Clear)] == [
        Clear(world.planner.waiters["uid-a1"].ref, "n0")
    ]


def test_an_edited_policy_moves_those_who_wait_and_keeps_claims() -> None:
    world = World([OPEN], nodes=["n0"], gpus=2)
    world.put(Job("a0", "a", 2), Job("a1", "a", 2, born=1))
    assert world.edit(Policy("q", (Tenant("a", 1.0, most=Share(gpus=1)),))) == []
    assert world.planner.waiters["uid-a0"].node == "n0"
    assert world.planner.pools.by_name["q"].ledger.account("a").released == 2_000_000
    world.end("uid-a0")
    assert world.planner.explain("uid-a1").reason is Reason.QUOTA
    assert released(world.edit(OPEN)) == [("a1", "n0")]


# holds


def test_a_big_job_that_has_waited_gets_a_node_held_under_a_stream_of_small_ones() -> None:
    world = World([OPEN], nodes=["n0", "n1"])
    world.put(*jobs("b", 20))
    world.run()
    world.put(Job("big", "a", 8, born=20))
    number = 20
    while "big" not in world.sitting():
        assert world.now < 400, "it is starved"
        world.wait(5)
        oldest = min((job for job in world.jobs.values() if job.at), key=lambda job: job.born)
        world.end(oldest.uid)
        world.put(Job(f"b{number}", "b", born=number))
        number += 1
        world.run()
    assert world.now > 60, "before, small jobs pass"


def test_a_hold_is_never_on_gpus_of_work_that_nobody_evicts_and_is_explained() -> None:
    mixed = Policy("p", (Tenant("a", 1.0, preemptible=True), Tenant("i", 1.0)), hold_after=60.0)
    world = World([mixed], nodes=["n0", "n1"])
    world.put(Job("i0", "i", 1))
    world.put(*jobs("a", 15))
    world.run()
    pinned = world.jobs["uid-i0"].at
    world.put(Job("big", "a", 8, born=20))
    world.wait(62)
    (hold,) = world.planner.pools.by_name["p"].holds.values()
    assert hold.node != pinned
    wait = world.planner.explain("uid-big")
    assert (wait.reason, wait.node) == (Reason.HOLD, hold.node)
    assert "8 GPUs still to be freed" in wait.sentences[-1]


def test_a_hold_keeps_what_it_has_gained_and_moves_once_a_pod_in_its_way_has_outlasted_all_patience() -> None:
    world = World([OPEN], nodes=["n0", "n1"])
    world.put(*jobs("b", 16))
    world.run()
    world.wait(1)
    world.put(Job("big", "a", 8, born=20))
    world.wait(62)
    holds = world.planner.pools.by_name["p"].holds
    first = holds["uid-big"].node
    (other,) = {"n0", "n1"} - {first}
    world.put(*[Job(f"c{number}", "b", born=90 + number) for number in range(8)])
    for uid in [uid for uid, job in world.jobs.items() if job.at == other]:
        world.end(uid)
    world.run()
    on_it = [uid for uid, job in world.jobs.items() if job.at == first]
    for uid in on_it[1:]:
        world.end(uid)
    world.wait(30 * 60)
    assert holds["uid-big"].node == first, "the last pod takes longest"
    assert f"Node {first} is kept free for it; 1 GPU " in world.planner.explain("uid-big").sentences[-1]
    world.wait(2 * 60)
    assert holds["uid-big"].node == other, "the last one may stay for ever"


def test_a_hold_that_may_come_to_something_nowhere_ends_until_others_have_come() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(*jobs("b", 8))
    world.run()
    world.wait(33 * 60)
    world.put(Job("big", "a", 8, born=33 * 60))
    world.wait(62)
    holds = world.planner.pools.by_name["p"].holds
    assert not holds, "who has been there for so long may stay for ever"
    for number in range(8):
        world.put(Job(f"c{number}", "b", born=33 * 60 + number))
        world.end(f"uid-b{number}")
        world.run()
    world.wait(2)
    assert holds["uid-big"].node == "n0"


def test_a_job_that_no_node_can_be_freed_for_keeps_no_other_from_a_hold() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put_node("n1", 4)
    world.put(*jobs("b", 12))
    world.run()
    world.wait(33 * 60)
    world.put(Job("big", "a", 8, born=33 * 60))
    world.wait(30)
    world.put(*[Job(f"d{number}", "b", born=34 * 60 + number) for number in range(4)])
    for uid in [uid for uid, job in world.jobs.items() if job.at == "n1"]:
        world.end(uid)
    world.run()
    world.put(Job("half", "a", 4, born=34 * 60 + 9))
    world.wait(64)
    holds = world.planner.pools.by_name["p"].holds
    assert {uid: hold.node for uid, hold in holds.items()} == {"uid-half": "n1"}


def test_a_hold_that_ends_gives_its_node_back() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(*jobs("b", 8))
    world.run()
    world.put(Job("big", "a", 8, born=20))
    world.wait(62)
    world.put(Job("small", "a", born=90))
    assert world.end("uid-b0") == [], "the GPU is kept for the big one"
    assert released(world.end("uid-big")) == [("small", "n0")]


def test_a_hold_is_where_small_jobs_sit_since_a_big_one_leaves_its_node_to_the_line_as_it_is() -> None:
    world = World([OPEN], nodes=["n0", "n1", "n2", "n3"])
    world.put(*jobs("b", 3, gpus=8))
    world.put(*jobs("a", 8))
    world.run()
    (small,) = {job.at for job in world.jobs.values() if job.gpus == 1}
    world.put(Job("big", "a", 8, born=20))
    world.wait(62)
    assert world.planner.pools.by_name["p"].holds["uid-big"].node == small


def test_a_hold_whose_job_sits_elsewhere_is_handed_on_with_what_it_has_gained() -> None:
    world = World([OPEN], nodes=["n0", "n1"])
    world.put(Job("b-big", "b", 8))
    world.put(*jobs("b", 8))
    world.run()
    held = world.jobs["uid-b0"].at
    world.put(Job("first", "a", 8, born=20), Job("second", "a", 8, born=21))
    world.wait(62)
    holds = world.planner.pools.by_name["p"].holds
    assert {uid: hold.node for uid, hold in holds.items()} == {"uid-first": held}
    world.put(Job("small", "b", born=90))
    assert world.end("uid-b0") == []
    assert released(world.end("uid-b-big")) == [("first", ({"n0", "n1"} - {held}).pop())]
    world.run()
    assert {uid: hold.node for uid, hold in holds.items()} == {"uid-second": held}
    assert "small" not in world.sitting()


def test_of_two_whom_nodes_are_held_for_the_elder_gets_the_one_that_is_free_first() -> None:
    world = World([OPEN], nodes=["n0", "n1"])
    world.put(*jobs("b", 16))
    world.run()
    for number in range(78):
        world.put_node(f"t{number}", 1)
    world.put(Job("elder", "a", 8, born=20))
    world.wait(1)
    world.put(Job("younger", "a", 8, born=21))
    world.wait(62)
    holds = world.planner.pools.by_name["p"].holds
    of_elder, of_younger = holds["uid-elder"].node, holds["uid-younger"].node
    for uid in [uid for uid, job in world.jobs.items() if job.at == of_younger]:
        world.end(uid)
    world.run()
    assert world.jobs["uid-elder"].at == of_younger
    assert {uid: hold.node for uid, hold in holds.items()} == {"uid-younger": of_elder}


def test_who_waits_long_for_quota_is_not_passed_for_ever_by_smaller_work_of_his_tenant() -> None:
    tight = Policy("p", (Tenant("a", 1.0, most=Share(gpus=4), preemptible=True),), hold_after=60.0)
    world = World([tight], nodes=["n0"])
    world.put(*jobs("a", 4))
    world.run()
    world.put(Job("big", "a", 4, born=10))
    number = 20
    while "big" not in world.sitting():
        assert world.now < 400
        world.wait(10)
        sitting = world.sitting()
        if sitting:
            world.end(f"uid-{sitting[0]}")
        world.put(Job(f"a{number}", "a", born=number))
        number += 1
        world.run()


# autoscaling and requests that never fit


def test_some_gates_are_lifted_without_a_seat_so_that_an_autoscaler_sees_the_pods() -> None:
    scaling = Policy("p", (Tenant("a", 1.0), Tenant("b", 1.0)), max_pending=2)
    world = World([scaling], nodes=["n0", "n1"])
    said = world.put(*jobs("b", 3, gpus=5))
    assert released(said) == [("b0", "n0"), ("b1", "n1"), ("b2", None)]
    assert released(world.put(*jobs("a", 4, gpus=4))) == [("a0", None)]
    assert world.planner.explain("uid-a0").reason is Reason.ROOM
    world.carry_all()
    assert world.schedule("uid-a0") is None
    said = world.put_node("n2", 8)
    assert [(type(each), each.pod.name) for each in said[:2]] == [(Nominate, "a0"), (Release, "a1")]


def test_a_request_that_no_node_would_hold_even_when_empty_is_told() -> None:
    world = World([OPEN], nodes=["n0"])
    world.put(Job("full", "a", 8), Job("huge", "a", 9), Job("busy", "a", 8, born=1))
    for name, never in (("huge", True), ("busy", False)):
        shape = world.planner.waiters[f"uid-{name}"].shape
        assert shape is not None
        assert world.planner.never_fits("p", shape.request, shape.eligible.constraints) == never
        assert ("even when empty" in world_reason(world, f"uid-{name}")) == never


# others make room


def of_others(
    snapshot: Snapshot,
    request: Request,
    tenant: str,
    rows: Rows,
    ledger: Ledger,
    leaving: Collection[str],
    now: float,
) -> Victims | None:
    """The fewest preemptible pods of tenants above their entitlement, on the node where that is least."""
    best: Victims | None = None
    for row in rows.tolist():
        name = snapshot.index.name(row)
        free = int(
            snapshot.columns.allocatable[row, snapshot.ids[GPU]]
            - snapshot.columns.used[row, snapshot.ids[GPU]]
        )
        over = {
            other: ledger.account(other).used - ledger.entitlements.get(other, 0.0)
            for other in ("a", "b", "training", "research")
        }
        chosen: list[str] = []
        for uid, seat in sorted(snapshot.seats_by_node.get(name, {}).items()):
            entry = ledger.entries.get(uid)
            if free >= request.count(GPU):
                break
            if (
                entry
                and entry.preemptible
                and not entry.released
                and entry.tenant != tenant
                and uid not in leaving
                and over[entry.tenant] >= entry.units
            ):
                over[entry.tenant] -= entry.units
                chosen.append(uid)
                free += seat.request.count(GPU)
        if free >= request.count(GPU) and chosen and (best is None or len(chosen) < len(best.uids)):
            best = Victims(name, tuple(chosen), "a has less than it is entitled to")
    return best


def test_a_tenant_below_its_entitlement_gets_back_what_others_borrow_and_nobody_slips_in() -> None:
    world = World([OPEN], nodes=["n0"], reclaim=of_others)
    world.put(*jobs("b", 8))
    world.run()
    said = world.put(Job("a0", "a", 2, born=20))
    nominate, evict = said
    assert nominate == Nominate(evict.pod, "n0")
    assert isinstance(evict, Evict)
    assert len(evict.victims) == 2
    assert "until 2 pods have left" in world_reason(world, "uid-a0")
    assert world.put(Job("b99", "b", born=30)) == []
    first, last = evict.victims
    assert world.end(first.uid) == [], "its gate stays till the last victim is gone"
    assert world.end(last.uid) == [Release(evict.pod, "n0")]
    world.todo.clear()
    world.todo.append(Release(evict.pod, "n0"))
    world.run()
    assert "a0" in world.sitting()
    assert "b99" not in world.sitting()


def test_a_pod_that_nobody_can_help_does_not_keep_its_tenant_from_getting_back_what_others_borrow() -> None:
    world = World([OPEN], nodes=["n0"], reclaim=of_others)
    world.put(*jobs("b", 8))
    world.put(Job("pinned", "a", 1, spec=(("nodeSelector", {"there": "is-none"}),)))
    world.run()
    world.wait(5)
    said = world.put(Job("a0", "a", 2, born=20))
    assert any(isinstance(each, Evict) for each in said), "a shape that is new is asked for at once"


def test_a_tenant_whom_no_reclaim_helps_asks_less_and_less_often() -> None:
    asked: list[float] = []

    def nobody(*of: Any, **named: Any) -> None:
        asked.append(of[-1])

    world = World([OPEN], nodes=["n0"], reclaim=nobody)
    world.put(*jobs("b", 8))
    world.run()
    world.put(Job("a0", "a", 2, born=20))
    for _ in range(16):
        world.wait(1)
    assert [after - before for before, after in itertools.pairwise(asked)] == [1, 2, 4, 4, 4]


def test_a_victim_that_stays_ends_the_claim_and_its_nomination() -> None:
    world = World([OPEN], nodes=["n0"], reclaim=of_others)
    world.put(*jobs("b", 8))
    world.run()
    _, evict = world.put(Job("a0", "a", 2, born=20))
    assert isinstance(evict, Evict)
    said = world.tell(NotEvicted(evict.victims[0].uid, "a disruption budget"))
    assert said == [Clear(evict.pod, "n0")]
    assert "a disruption budget" in world_reason(world, "uid-a0")


def test_inference_that_comes_late_gets_its_entitlement_and_keeps_its_minimum() -> None:
    world = World([policy()], nodes=[f"n{i}" for i in range(4)], reclaim=of_others)
    world.put(*jobs("training", 32), *jobs("research", 32))
    world.run()
    assert world.gpus_of("training") + world.gpus_of("research") == 19 + 8
    world.put(*jobs("inference", 32, first=40))
    for _ in range(30):
        world.run()
        world.wait(2)
    assert world.gpus_of("inference") == 16
    assert len(world.sitting()) == 32


# what it says


def test_a_wait_is_explained_with_who_is_ahead_and_why() -> None:
    world = World([OPEN], nodes=["n0"], gpus=2)
    world.put(Job("x", "a", 2))
    world.put(*jobs("a", 2), *jobs("b", 3))
    wait = world.planner.explain("uid-a1")
    assert (wait.reason, wait.place, wait.ahead) == (Reason.ROOM, 2, {"a": 1, "b": 3})
    assert wait.sentences == (
        "It is number 2 of tenant a in line.",
        "3 pods of tenant b are ahead of it: it has 0 of the 1 GPUs that it is entitled to.",
        "1 pod of tenant a of higher priority or age is ahead of it.",
        "It waits for room: no node that it may use has 1 nvidia.com/gpu free now.",
    )
    with pytest.raises(KeyError):
        world.planner.explain("uid-of-nobody")


def test_a_request_that_cannot_be_read_gets_no_seat_and_says_so() -> None:
    world = World([OPEN], nodes=["n0"])
    torn = Job("a0", "a", spec=(("containers", [{"name": "m", "resources": {"limits": {GPU: "1.5"}}}]),))
    assert world.put(torn) == []
    assert world.planner.explain("uid-a0").reason is Reason.REQUEST
