"""The short form of `bench fairness` and `bench line`: the load is as promised, each peer as it is called."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bench import tenants
from bench.cases import fairness, line
from bench.cases.fairness import INFERENCE, Played
from bench.openb import NodeShape, PodShape
from bench.policies import WEIGHTS, DominantShare, Greedy, Reserved, RoundRobin, Strict
from bench.tenants import DAY, HOUR, TENANTS, Lifetimes, Load
from bench.virtual import GRACE, Job, Pool, Scheduler

NODES = tenants.nodes()
GPUS = sum(node.gpu for node in NODES)


@pytest.fixture(scope="module")
def month() -> Load:
    return tenants.load(GPUS, 30, 1)


def test_the_cluster_is_a_tenth_of_openb() -> None:
    assert (len(NODES), GPUS) == (122, 621)


def test_tenants_offer_what_is_promised(month: Load) -> None:
    units = np.array([shape.gpu_units for shape in month.shapes])
    owner = np.array(month.owner)[month.shape]
    coming = month.came > 0
    for number, tenant in enumerate(TENANTS):
        own = coming & (owner == number)
        offered = float((units[month.shape[own]] * month.life[own]).sum()) / (GPUS * month.until)
        assert offered == pytest.approx(tenant.offers, rel=0.1), tenant.name
    assert month.life.max() == DAY


def test_training_comes_four_times_as_often_on_weekday_mornings(month: Load) -> None:
    owner = np.array(month.owner)[month.shape]
    hours = month.came[(owner == 1) & (month.came > 0)] / HOUR
    day, hour = hours // 24 % 7, hours % 24
    peak = (hour >= 8) & (hour < 10)
    a_peak_hour = (peak & (day < 5)).sum() / (2 * 22)
    an_hour = (~peak & (day < 5)).sum() / (22 * 22)
    assert a_peak_hour / an_hour == pytest.approx(4, rel=0.05)
    weekend = (peak & (day >= 5)).sum() / (8 * 2)
    assert weekend / an_hour == pytest.approx(1, rel=0.1)


def test_the_same_seed_gives_the_same_load() -> None:
    first, again, other = (tenants.load(GPUS, 0.1, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.came, again.came)
    assert np.array_equal(first.life, again.life)
    assert len(first) != len(other) or not np.array_equal(first.came, other.came)


def test_lifetimes_have_the_quantiles_of_their_class() -> None:
    drawn = Lifetimes.of("BE").draw(np.random.default_rng(0), 50_000)
    assert np.percentile(drawn, [25, 50, 75]) == pytest.approx([148, 256, 1126], rel=0.05)


# the peers


def small(came: list[tuple[float, int, int, float]], until: float = DAY) -> Load:
    """Pods of whole GPUs: (when, tenant, GPUs, lifetime)."""
    sizes = sorted({(tenant, gpus) for _, tenant, gpus, _ in came})
    shapes = [PodShape(4_000, 8_192, gpus, 1_000) for _, gpus in sizes]
    return Load(
        TENANTS,
        shapes,
        [tenant for tenant, _ in sizes],
        np.array([when for when, *_ in came], float),
        np.array([sizes.index((tenant, gpus)) for _, tenant, gpus, _ in came], np.int32),
        np.array([life for *_, life in came], float),
        until,
    )


INFERENCE_, TRAINING, RESEARCH = range(3)
ONE = [NodeShape(96_000, 393_216, 8, "G2")]


class Watched:
    """When each pod began to run, by when it came."""

    def __init__(self, make: Callable[[Pool], Scheduler], load: Load) -> None:
        self.pool = Pool(load, ONE, 0.0)
        self.began: dict[float, list[float]] = {}
        begin = self.pool.begin

        def noted(job: Job) -> None:
            begin(job)
            self.began.setdefault(job.came, []).append(job.began)

        self.pool.begin = noted  # type: ignore[method-assign]
        self.tally = self.pool.play(make(self.pool))


FULL = [(float(at), TRAINING, 1, 1_000.0) for at in range(8)]


def test_first_come_first_served_lets_a_burst_go_ahead() -> None:
    load = small(
        [*FULL, *[(10.0 + at, TRAINING, 1, 1_000.0) for at in range(8)], (20.0, INFERENCE_, 1, 10.0)]
    )
    assert Watched(Greedy, load).began[20.0] == [2_000.0]


def test_a_priority_class_goes_ahead_of_a_burst_and_evicts_nobody() -> None:
    load = small(
        [*FULL, *[(10.0 + at, TRAINING, 1, 1_000.0) for at in range(8)], (20.0, INFERENCE_, 1, 10.0)]
    )
    watched = Watched(RoundRobin, load)
    assert watched.began[20.0] == [1_000.0]
    assert sum(watched.tally.evictions) == 0


def test_tenants_of_one_class_take_turns() -> None:
    waiting = [(10.0 + at, TRAINING, 1, 5_000.0) for at in range(6)]
    late = [(20.0 + at, RESEARCH, 1, 5_000.0) for at in range(3)]
    watched = Watched(RoundRobin, small([*FULL, *waiting, *late]))
    assert watched.began[20.0] == [1_000.0]
    assert watched.began[22.0][0] < watched.began[14.0][0]


def test_strict_priority_evicts_and_waits_for_no_more_than_the_grace() -> None:
    watched = Watched(Strict, small([*FULL, (20.0, INFERENCE_, 2, 10.0)]))
    assert watched.began[20.0] == [20.0 + GRACE]
    assert sum(watched.tally.evictions) == 2
    assert watched.tally.victims == 2
    assert sum(watched.tally.lost) > 0


def test_research_makes_room_before_training_does() -> None:
    held = [(float(at), RESEARCH if at == 5 else TRAINING, 1, 1_000.0) for at in range(8)]
    watched = Watched(Strict, small([*held, (20.0, INFERENCE_, 1, 10.0)]))
    owner = watched.pool.load.owner
    evicted = [owner[shape] for shape, count in enumerate(watched.tally.evictions) for _ in range(count)]
    assert evicted == [RESEARCH]


def test_a_reservation_keeps_a_tenant_out_of_idle_gpus() -> None:
    most = int(8 * WEIGHTS[TRAINING] / sum(WEIGHTS))
    watched = Watched(Reserved, small(FULL))
    assert [watched.began[float(at)][0] for at in range(most)] == [float(at) for at in range(most)]
    assert watched.began[float(most)] == [1_000.0]


def test_the_smallest_dominant_share_goes_next() -> None:
    waiting = [(10.0, TRAINING, 1, 100.0), (11.0, RESEARCH, 1, 100.0), (12.0, INFERENCE_, 1, 100.0)]
    held = [(float(at), TRAINING, 8, 1_000.0) for at in range(1)]
    watched = Watched(DominantShare, small([*held, *waiting]))
    assert {watched.began[when][0] for when in (10.0, 11.0, 12.0)} == {1_000.0}
    full = [*held, *[(10.0 + at, TRAINING, 4, 100.0) for at in range(3)], (20.0, INFERENCE_, 4, 100.0)]
    assert Watched(DominantShare, small(full)).began[20.0] == [1_000.0]


# ours, and the goals


def test_kvitej_serves_inference_before_what_came_earlier_and_evicts_none_of_it() -> None:
    load = small(
        [*FULL, *[(10.0 + at, TRAINING, 1, 1_000.0) for at in range(8)], (20.0, INFERENCE_, 1, 10.0)]
    )
    watched = Watched(fairness.make_ours, load)
    assert watched.began[20.0][0] <= 1_000.0
    owner = watched.pool.load.owner
    assert not any(count for shape, count in enumerate(watched.tally.evictions) if owner[shape] == INFERENCE_)


def played(inference: float, evictions: float, used: float) -> Played:
    waits = [np.array([inference]), np.array([1.0]), np.array([1.0])]
    return Played(waits, [0.0, evictions, 0.0], [used, 0.0, 0.0], [0.0] * 3, 1.0)


def test_each_goal_can_be_missed() -> None:
    peers = {name: played(1_000.0, 0.0, 0.9) for name in fairness.NO_EVICTION}
    peers[fairness.STRICT] = played(30.0, 100.0, 0.9)
    good = fairness.goals({fairness.OURS: played(300.0, 20.0, 0.9), **peers})
    assert all(each.met for each in good)
    bad = fairness.goals({fairness.OURS: played(600.0, 21.0, 0.88), **peers})
    assert [each.met for each in bad] == [True, False, False, False, False, False, False]


def test_the_bench_tells_of_every_policy() -> None:
    found = fairness.run(lambda _: None, seeds=1, days=0.06, only=("static reservation",))
    assert [each.metric for each in found if each.metric.startswith("GPUs in use")] == [
        "GPUs in use, static reservation"
    ]
    p99 = [each.value for each in found if each.metric.startswith("inference waits, p99")]
    assert INFERENCE == 0
    assert p99
    assert p99[0] >= 0


def test_a_hold_lets_a_big_job_in() -> None:
    """Single GPUs keep a node of eight busy for ever unless it is held for the job that wants all of it."""
    stream = [(at * 60.0, TRAINING, 1, 480.0 + at % 7) for at in range(400)]
    load = small(sorted([*stream, (1_000.0, TRAINING, 8, 100.0)]), until=400 * 60.0)
    began = {
        rule: Watched(make, load).began.get(1_000.0)
        for rule, make in (("held", line.holding(600.0)), ("not", line.holding(np.inf)))
    }
    assert began["held"] is not None
    assert began["held"][0] < 1_000.0 + 2_000.0
    assert began["not"] is None or began["not"][0] > 4 * began["held"][0]
