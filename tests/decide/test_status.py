"""What a policy's status keeps, and that a planner which begins with it carries on as if it had never stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.events import NodeSeen, PodSeen
from extender.cluster.state import ClusterState
from extender.decide.claims import Settings
from extender.decide.giving import Giver
from extender.decide.plan import Planner
from extender.decide.status import restore, status_of, status_refused
from extender.decide.waiter import bound_at
from extender.fairness.depth import Queue
from extender.fairness.reading import Policies
from extender.fairness.record import Fairness
from extender.fairness.usage import wall_of
from extender.schedulerconfig import managed_resources
from extender.wire.policy import PolicyStatus
from tests.builders import GPU, node, raw_pod, read_pod
from tests.decide.planning import WALL, Job, World
from tests.fairness.builders import policy

POLICY = policy(
    """
decayHalfLife: 1h
tenants:
- {name: ml, weight: 1, preemptible: true}
- {name: web, weight: 3, decayHalfLife: 10m}
""",
    "p",
)


def written(world: World, fairness: Fairness | None = None, had: Any = None) -> dict[str, Any]:
    status = status_of(
        world.planner,
        world.state.snapshot(),
        fairness or Fairness(),
        {"p": had or {}},
        wall=WALL + world.now,
        now=world.now,
    )
    found = status["p"]
    assert msgspec.to_builtins(msgspec.convert(found, PolicyStatus)) == found
    return found


def restarted(
    world: World, status: Any, bound: dict[str, float], wall: float, now: float = 5_000.0
) -> tuple[Planner, Fairness, list[str]]:
    """A process that begins at `wall` with the pods that are there."""
    state = ClusterState(managed_resources())
    for name, gpus in world.nodes.items():
        state.apply(NodeSeen(node(name, {GPU: str(gpus)})))
    for job in world.jobs.values():
        state.apply(PodSeen(job.pod))
    planner, fairness = Planner(state, Policies([POLICY]), Settings(), now), Fairness()
    complaints = restore(planner, state.snapshot(), fairness, {"p": status}, bound, wall=wall, now=now)
    planner.begin(now, wall)
    planner.check()
    return planner, fairness, complaints


def decayed(planner: Planner, tenant: str, now: float) -> float:
    return planner.pools.by_name["p"].ledger.usage.of(tenant, now)


def test_a_status_says_what_the_table_says_and_when() -> None:
    world, fairness = World([POLICY], nodes=["n0"]), Fairness()
    fairness.evicted(Queue("p", "ml"), 4)
    world.put(*(Job(f"a-{n}", "ml") for n in range(10)))
    world.run()
    world.now += 3600
    found = written(world, fairness)
    assert found["decayedAt"] == "2026-11-30T13:00:00.000000Z"
    assert (found["capacity"], found["inUse"], found["waiting"]) == (8, 8, 2)
    ml = found["tenants"][0]
    assert (ml["name"], ml["inUse"], ml["waiting"], ml["longestWait"], ml["evictions"]) == (
        "ml",
        8,
        2,
        3600,
        4,
    )
    assert ml["decayedUse"] == pytest.approx(4)
    assert [(each["type"], each["status"]) for each in found["conditions"]] == [
        ("Accepted", "True"),
        ("Conflict", "False"),
        ("MinimaCut", "False"),
    ]


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    world = World([POLICY], nodes=["n0"])
    first = written(world)
    world.now = 60
    second = written(world, had=first)
    assert second["conditions"] == first["conditions"]
    refused = status_refused("spec.tenants is empty", 7, second, wall=WALL + 90)
    assert refused.keys() == {"observedGeneration", "conditions"}
    (accepted,) = refused["conditions"]
    assert (accepted["status"], accepted["message"]) == ("False", "spec.tenants is empty")
    assert accepted["lastTransitionTime"] == "2026-11-30T12:01:30.000000Z"
    again = written(world, had={**second, **refused})
    assert again["conditions"][0]["lastTransitionTime"] == "2026-11-30T12:01:00.000000Z"


def test_a_new_process_carries_on_from_the_status_and_the_pods_that_live() -> None:
    world = World([POLICY], nodes=["n0"])
    world.put(*(Job(f"a-{n}", "ml") for n in range(5)), Job("b", "web", 2))
    world.run()
    world.now = 1800
    status = written(world)
    world.put(Job("late", "web"))
    world.run()
    bound = {**dict.fromkeys((f"uid-a-{n}" for n in range(5)), WALL), "uid-b": WALL, "uid-late": WALL + 1800}
    world.now = 2400
    planner, fairness, complaints = restarted(world, status, bound, WALL + 2400)
    assert not complaints
    for tenant in ("ml", "web"):
        assert decayed(planner, tenant, 5000) == pytest.approx(decayed(world.planner, tenant, 2400), abs=1e-9)
        assert decayed(planner, tenant, 6000) == pytest.approx(decayed(world.planner, tenant, 3400), abs=1e-9)
    assert fairness.tallies == {}


def test_evictions_are_counted_on() -> None:
    world, fairness = World([POLICY], nodes=["n0"]), Fairness()
    fairness.evicted(Queue("p", "ml"), 4)
    _, restored, _ = restarted(world, written(world, fairness), {}, WALL)
    assert restored.tally(Queue("p", "ml")).evictions == 4


@pytest.mark.parametrize(
    "broken",
    [
        {"decayedAt": "yesterday", "tenants": [{"name": "ml", "decayedUse": 3}]},
        {"decayedAt": "2026-11-30T12:00:00Z", "tenants": [{"name": "ml", "decayedUse": -1}]},
        {"decayedAt": "2026-11-30T12:00:00Z", "tenants": [{"name": "ml", "decayedUse": "3"}]},
        {"tenants": 7},
    ],
)
def test_a_status_that_cannot_be_read_is_said_and_use_is_reckoned_from_what_runs(broken: Any) -> None:
    world = World([POLICY], nodes=["n0"])
    world.put(Job("a", "ml", 8, at="n0", record="0,1,2,3,4,5,6,7"))
    planner, _, complaints = restarted(world, broken, {"uid-a": WALL - 3600}, WALL)
    assert decayed(planner, "ml", 5000) == pytest.approx(4)
    (told,) = complaints
    assert told.startswith("The status of FairnessPolicy p cannot be read (")


def test_a_pod_whose_bind_is_not_told_was_there_at_the_last_status() -> None:
    world = World([POLICY], nodes=["n0"])
    world.put(Job("a", "ml", 8, at="n0", record="0,1,2,3,4,5,6,7"))
    status = {"decayedAt": "2026-11-30T12:00:00Z", "tenants": [{"name": "ml", "decayedUse": 0}]}
    planner, _, _ = restarted(world, status, {}, WALL + 3600)
    assert decayed(planner, "ml", 5000) == pytest.approx(4)
    fresh, _, _ = restarted(world, {}, {}, WALL + 3600)
    assert decayed(fresh, "ml", 5000) == 0


STEPS = st.lists(
    st.tuples(st.floats(0, 20), st.sampled_from(["ml", "web"]), st.integers(1, 4), st.booleans()), max_size=12
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.floats(0, 30), st.floats(0, 3000))
def test_after_a_kill_no_more_is_off_than_what_was_unseen(
    steps: list[tuple[float, str, int, bool]], unsaved: float, down: float
) -> None:
    """Statuses are written every 30 s; pods come and go until the kill, and the rest live through the gap."""
    world = World([POLICY], nodes=["n0"])
    bound: dict[str, float] = {}
    status = written(world)
    saved_at = 0.0
    for number, (pause, tenant, gpus, ends) in enumerate(steps):
        later = world.now + pause
        while saved_at + 30 <= later:
            saved_at = world.now = saved_at + 30
            status = written(world)
        world.now = later
        if ends and world.sitting(tenant):
            world.end(f"uid-{world.sitting(tenant)[0]}")
        else:
            world.put(Job(f"p{number}", tenant, gpus, born=min(number, 59)))
        world.run()
        for name in world.sitting():
            bound.setdefault(f"uid-{name}", WALL + world.now)
    world.now = max(world.now, min(saved_at + unsaved, saved_at + 30))
    waiting = [uid for uid, job in world.jobs.items() if job.at is None]
    for uid in waiting:
        world.end(uid)
    world.now += down
    planner, _, _ = restarted(world, status, bound, WALL + world.now)
    for tenant, half_life in (("ml", 3600), ("web", 600)):
        off = abs(decayed(planner, tenant, 5000) - decayed(world.planner, tenant, world.now))
        assert off <= 8 * (1 - 0.5 ** (30 / half_life)) + 1e-9


def test_a_pod_tells_when_it_was_bound_as_well_as_it_can() -> None:
    raw = raw_pod("a", at="n0", created="2026-11-30T12:00:00Z")
    assert bound_at(read_pod(raw)) is None
    raw["status"]["startTime"] = "2026-11-30T12:05:00Z"
    assert bound_at(read_pod(raw)) == wall_of("2026-11-30T12:05:00Z")
    raw["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T12:09:00Z"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T12:04:00Z"},
    ]
    assert bound_at(read_pod(raw)) == wall_of("2026-11-30T12:04:00Z")


def test_the_giver_knows_since_when_each_pod_is_bound() -> None:
    state = ClusterState(managed_resources())
    giver = Giver(state, WALL)
    raw = raw_pod("a", {GPU: "1"}, at="n0", phase="Running")
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T11:00:00Z"}
    ]
    seen: list[Any] = [
        NodeSeen(node("n0", {GPU: "8"})),
        PodSeen(read_pod(raw)),
        PodSeen(read_pod(raw_pod("b", {GPU: "1"}, at="n0", phase="Running"))),
        PodSeen(read_pod(raw_pod("c", {GPU: "1"}))),
    ]
    for event in seen:
        state.apply(event)
        giver.apply(event, 40.0)
    assert giver.bound() == {"uid-a": WALL - 3600, "uid-b": WALL + 40}
