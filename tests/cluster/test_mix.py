"""The demand mix: what is learned, forgotten, expected before anything is seen, and how much is kept."""

import random

import numpy as np
import pytest

from _core import Demand
from extender.cluster.events import PodGone, PodSeen, Reserved
from extender.cluster.inventory import Mode
from extender.cluster.mix import MOST_CLASSES, MOST_KEPT, REFRESH, CardKind, Mix, Shape, shape_of
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from tests.builders import GPU, MIG, SHARED, book, node, pod, record_of

ONE = Shape(8_000, 1, 1000)
HALF = Shape(4_000, 1, 500)
EIGHT = Shape(64_000, 8, 1000)


def classes(demand: Demand) -> dict[Shape, float]:
    shapes = zip(demand.cpu.tolist(), demand.gpus.tolist(), demand.share.tolist(), strict=True)
    return {
        Shape(cpu, cards, round(1000 * share)): often
        for (cpu, cards, share), often in zip(shapes, demand.often.tolist(), strict=True)
    }


def table(state: ClusterState) -> Demand:
    return state.snapshot().demand()


def test_jobs_of_1_2_4_and_8_cards_are_expected_alike_until_pods_come() -> None:
    # 96 cores for 8 cards: half of 12 cores a card are expected to be asked for.
    found = classes(table(book(node("n0", {GPU: "8"}))))
    assert found == {
        Shape(6_000 * cards, cards, 1000): pytest.approx(8 / 15 / cards) for cards in (1, 2, 4, 8)
    }
    assert table(book()).classes == 4


def test_frequencies_are_those_of_the_pods_that_came_and_halve_in_time() -> None:
    empty = book().snapshot().table
    mix = Mix(half_life=10_000)
    for shape in [ONE] * 3000 + [HALF] * 6000:
        mix.observe(shape)
    found = classes(mix.demand(empty))
    assert found[HALF] / found[ONE] == pytest.approx(6000 / 3000, rel=0.4)
    quick = Mix(half_life=50)
    for shape in [ONE] * 1000 + [HALF] * 50:
        quick.observe(shape)
    found = classes(quick.demand(empty))
    assert found[HALF] / found[ONE] == pytest.approx(1.0, rel=0.05)


def test_what_is_rare_in_gpus_is_left_out_and_the_cores_per_gpu_are_those_of_the_rest() -> None:
    mix = Mix(half_life=1e9)
    for shape in [EIGHT] * 1000 + [HALF] * 20 + [Shape(1_000, 0, 1000)] * 9000:
        mix.observe(shape)
    found = mix.demand(book().snapshot().table)
    assert classes(found) == {EIGHT: 1.0}
    assert found.cores == pytest.approx(8.0)


def test_room_is_worth_more_the_less_of_it_there_is() -> None:
    # Cards for 2 halves each: twice as many slots as for whole ones; the weights sum up to the demand.
    mix = Mix(half_life=1e9)
    for shape in [Shape(0, 1, 1000)] * 1000 + [Shape(0, 1, 500)] * 2000:
        mix.observe(shape)
    found = mix.demand(book(node("n0", {GPU: "50", SHARED: "100"}, replicas=2)).snapshot().table)
    weight = dict(zip(classes(found), found.weight.tolist(), strict=True))
    assert weight[Shape(0, 1, 1000)] / weight[Shape(0, 1, 500)] == pytest.approx(101 / 51, rel=1e-3)
    assert found.weight.sum() == pytest.approx(2 / 3, rel=1e-3)


def test_what_is_kept_is_bounded_and_what_is_demanded_most_stays() -> None:
    mix, chance = Mix(), random.Random(1)
    for number in range(5000):
        mix.observe(Shape(number, 1, chance.randint(1, 1000)))
        mix.observe(EIGHT)
    found = mix.demand(book().snapshot().table)
    assert len(mix._weights) <= MOST_KEPT
    assert found.classes <= MOST_CLASSES
    assert classes(found)[EIGHT] > 0.8


def test_numbers_stay_finite_however_many_pods_come() -> None:
    mix = Mix(half_life=1)
    for _ in range(3000):
        mix.observe(ONE)
    found = mix.demand(book().snapshot().table)
    assert classes(found) == {ONE: 1.0}
    assert np.isfinite(found.weight).all()


def test_a_demand_is_due_soon_at_first_and_every_so_many_pods_later() -> None:
    mix, empty = Mix(), book().snapshot().table
    due = []
    for number in range(3 * REFRESH):
        mix.observe(ONE)
        if mix.due:
            mix.demand(empty)
            due.append(number + 1)
    assert due[:4] == [1, 2, 5, 12]
    assert due[-1] - due[-2] == REFRESH


KINDS = {CardKind(Mode.WHOLE, 0, 2**30): 4, CardKind(Mode.WHOLE, 10, 1000 << 20): 8}


@pytest.mark.parametrize(
    ("asks", "memory", "shape"),
    [
        ({GPU: "2", "cpu": "3"}, None, Shape(3_000, 2, 1000)),
        ({SHARED: "1"}, None, Shape(0, 1, 100)),
        ({SHARED: "1"}, "333Mi", Shape(0, 1, 333)),
        ({SHARED: "3"}, "250Mi", Shape(0, 1, 750)),
        ({SHARED: "5"}, "250Mi", Shape(0, 2, 1000)),
        ({SHARED: "1", GPU: "1"}, None, Shape(0, 2, 1000)),
        ({MIG: "3", "cpu": "1"}, None, Shape(1_000, 0, 1000)),
    ],
)
def test_a_pods_class_is_its_cards_and_what_a_share_takes_of_the_usual_one(
    asks: dict[str, str], memory: str | None, shape: Shape
) -> None:
    assert shape_of(request_of(pod("p", asks, memory=memory)), KINDS) == shape


def test_without_shared_cards_a_share_is_a_card_and_on_time_sliced_ones_a_gpu_is_a_share() -> None:
    assert shape_of(request_of(pod("p", {SHARED: "1"})), {}) == Shape(0, 1, 1000)
    assert shape_of(request_of(pod("p", {GPU: "1"})), {CardKind(Mode.REPLICA, 4, 0): 8}) == Shape(0, 1, 250)


def test_the_book_counts_each_pod_once_however_it_hears_of_it() -> None:
    state = book(node("n0", {GPU: "64"}))
    asks = {GPU: "1", "cpu": "3"}
    for _ in range(3):
        state.apply(PodSeen(pod("waits", asks)))
        state.apply(PodSeen(pod("sits", asks, at="n0", record=record_of(gpu=(0,)))))
    state.apply(Reserved(pod("waits", asks), "n0", record_of(gpu=(1,))))
    state.apply(PodSeen(pod("waits", asks, at="n0", record=record_of(gpu=(1,)))))
    state.apply(Reserved(pod("quick", asks), "n0", record_of(gpu=(2,))))
    state.apply(PodSeen(pod("quick", asks)))
    state.apply(PodGone("uid-quick"))
    mix = state._outlook._mix
    assert sum(mix._weights.values()) == pytest.approx(3, rel=0.01)
    assert list(mix._weights) == [Shape(3_000, 1, 1000)]
    state.check()
