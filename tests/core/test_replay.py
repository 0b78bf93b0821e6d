"""`Replay` places as fit, score, best, grade and seat do one by one, and charges as the book does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import D1, FGD, FITS, Demand, Replay, Table, best, fit, score, seat
from extender.cluster.assignment import Cards
from extender.cluster.inventory import Inventory, Mode
from extender.cluster.request import GPU, SHARED, Request
from extender.cluster.seats import Phase, Seat, charge_devices
from tests.core.builders import ask, columns, demand, demands

ASKS = [
    ask(whole=1, cpu=10_000),
    ask(whole=4, cpu=8_000),
    ask(shares=1, memory=30, cpu=3_000),
    ask(shares=1, memory=55),
    ask(shares=2, memory=20, cpu=1_000),
    ask(cpu=16_000),
]
WANTS = [(1, 0, 0), (4, 0, 0), (0, 1, 30), (0, 1, 55), (0, 2, 20), (0, 0, 0)]
IDS = {GPU: 0, SHARED: 1}


def cluster(rows: int) -> Table:
    """Nodes of four cards of 100 units, shared by ten, with 32 or 96 cores."""
    table = columns(rows, 4, 3)
    table["cards"][:], table["replicas"][:], table["memory"][:] = 4, 10, 100
    table["allocatable"][:] = 4, 40, 0
    table["cpu"][:] = np.where(np.arange(rows) % 2, 32_000, 96_000)
    table["order"][:] = np.arange(rows)[::-1] * (2**32 // rows)
    return Table(**table)


def replay(table: Table, pods: list[int], **options: Any) -> Replay:
    rows, count = table.rows, len(ASKS)
    unlimited: dict[str, Any] = {
        "memory": np.full(rows, 100, np.int64),
        "models": np.ones(rows, np.uint32),
        "memory_asked": np.zeros(count, np.int64),
        "models_allowed": np.ones(count, np.uint32),
    }
    return Replay(table, ASKS, pods=np.array(pods, np.int32), **{**unlimited, **options})


class ByHand:
    """The same with the exported kernels and the book's own charge."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.seats: dict[int, tuple[int, Seat]] = {}

    def come(self, pod: int, shape: int, mix: Demand) -> int:
        asking = ASKS[shape]
        rows = np.arange(self.table.rows, dtype=np.int32)
        codes = fit(self.table, rows, asking)
        codes[self.table.cpu - self.table.cpu_used < asking.cpu] = 2
        found = best(codes, score(self.table, rows, codes, asking, mix), self.table.order, 1)
        if not len(found):
            return -1
        row = int(found[0])
        whole, shares, _ = seat(self.table, row, asking, mix)
        gpus, shared, memory = WANTS[shape]
        devices = tuple((name, count) for name, count in ((GPU, gpus), (SHARED, shared)) if count)
        cards = Cards(tuple(whole.tolist()), tuple(shares.tolist()))
        request = Request(asking.cpu, 0, devices, (), memory)
        self.seats[pod] = row, Seat("", "", "", "", request, Phase.BOUND, cards=cards)
        self.charge(pod, 1)
        return row

    def charge(self, pod: int, sign: int) -> None:
        row, seated = self.seats[pod]
        inventory = Inventory("n", Mode.WHOLE, 4, 10, 100, "", ((GPU, 4), (SHARED, 40)), 0, 0)
        charge_devices(self.table, row, inventory, seated, IDS, sign)
        self.table.cpu_used[row] += sign * seated.request.cpu


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, len(ASKS) - 1), min_size=1, max_size=40),
    st.integers(1, 5),
    demands,
    st.randoms(use_true_random=False),
)
def test_a_replay_is_what_the_kernels_say_one_by_one(
    pods: list[int], rows: int, mix: Demand, chance: Any
) -> None:
    events = list(range(len(pods)))
    for pod in range(len(pods)):
        if chance.random() < 0.4:
            events.insert(chance.randint(events.index(pod) + 1, len(events)), -pod - 1)
    hand, played = ByHand(cluster(rows)), replay(cluster(rows), pods)
    half = len(events) // 2
    for part in (events[:half], events[half:]):
        played.run(np.array(part, np.int32), mix)
        for event in part:
            if event >= 0:
                assert played.at[event] == hand.come(event, pods[event], mix)
            elif -event - 1 in hand.seats:
                hand.charge(-event - 1, -1)
    for name in ("cpu_used", "used", "memory_used", "shares", "exclusive", "opaque"):
        assert np.array_equal(getattr(played.table, name), getattr(hand.table, name)), name


def test_memory_and_models_are_the_schedulers_filters() -> None:
    models = np.array([1, 2], np.uint32)
    allowed = np.array([2] * len(ASKS), np.uint32)
    asked = np.full(len(ASKS), 60, np.int64)
    played = replay(cluster(2), [0, 0], models=models, models_allowed=allowed, memory_asked=asked)
    played.run(np.array([0, 1], np.int32), demand())
    # Only row 1 is of the model, and its memory of 100 holds one of them.
    assert played.at.tolist() == [1, -1]
    played.run(np.array([-1, 1], np.int32), demand())
    assert played.at.tolist() == [1, 1]


def test_a_sample_looks_at_so_many_rows_that_fit_and_goes_on_from_there() -> None:
    played = replay(cluster(4), [0] * 4, sample=2)
    played.run(np.arange(4, dtype=np.int32), demand(kind=D1))
    # Rows 0 and 1, then 2 and 3, and around again; of two rows, the later one comes first in order.
    assert played.at.tolist() == [1, 3, 1, 3]


def test_chance_decides_between_equal_rows_only_when_asked() -> None:
    # FGD without classes gives every row the same.
    pods, events, mix = [2] * 20, np.arange(20, dtype=np.int32), demand(kind=FGD)
    ordered, drawn, other = (
        replay(cluster(4), pods, random_ties=chance, seed=seed)
        for chance, seed in ((False, 1), (True, 1), (True, 2))
    )
    for each in (ordered, drawn, other):
        each.run(events, mix)
    assert set(ordered.at.tolist()[:10]) == {3}
    assert set(drawn.at.tolist()) == set(range(4))
    assert drawn.at.tolist() != other.at.tolist()


def test_the_best_alone_has_ten_so_grades_place_as_scores_do() -> None:
    plain, graded = replay(cluster(4), [0] * 9), replay(cluster(4), [0] * 9, graded=True)
    for each in (plain, graded):
        each.run(np.arange(9, dtype=np.int32), demand(cores=1))
    assert plain.at.tolist() == graded.at.tolist()


@pytest.mark.parametrize(
    ("events", "words"),
    [([1], r"events\[0\] is 1: there is no such pod"), ([-3], "no such pod"), ([0, 0], "sits already")],
)
def test_an_event_that_cannot_be_is_refused(events: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replay(cluster(1), [0]).run(np.array(events, np.int32), demand())


def test_a_replay_does_not_touch_the_table_that_it_was_given() -> None:
    table = cluster(1)
    played = replay(table, [0])
    played.run(np.zeros(1, np.int32), demand())
    assert played.table.exclusive.sum() == 1
    assert table.exclusive.sum() == 0
    assert fit(table, np.zeros(1, np.int32), ASKS[0]).tolist() == [FITS]
