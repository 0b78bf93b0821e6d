"""MIG instances on a row: those that exist and those that are cut on demand, against twins and by arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from _core import CONTENDED, FITS, TAKEN, Ask, Hardware, Slices, Table, fit, score, score_static, seat
from tests.core import twins
from tests.core.builders import OTHER, ask, asks, demand, tables
from tests.core.test_fit import code, node


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def halves(**cells: Any) -> Table:
    """A node on which OTHER is half a card."""
    return node(hardware=hardware(), **cells)


def hardware(*slices: Slices) -> Hardware:
    """OTHER is half a card, and the only profile of the models."""
    return Hardware(
        slices=slices,
        profiles=np.array([[-1, -1, 0]] * len(slices), np.int32).reshape(len(slices), 3),
        units=np.array([2] * len(slices), np.int32),
        links=(),
        offers=np.zeros((0, 17), np.int32),
        parts=ints(0, 0, 500),
    )


@settings(max_examples=400)
@given(tables, asks)
def test_the_static_score_is_what_its_twin_says(table: Table, pod: Ask) -> None:
    rows = np.arange(table.rows, dtype=np.int32)[::-1].copy()
    codes = fit(table, rows, pod)
    expected = [
        twins.static(table, row, pod, code == FITS and table.soft[row] > 0) if code <= CONTENDED else 0
        for row, code in zip(rows.tolist(), codes.tolist(), strict=True)
    ]
    assert score_static(table, rows, codes, pod).tolist() == expected


@pytest.mark.parametrize(
    ("table", "pod", "score"),
    [
        pytest.param(
            halves(allocatable=[[0, 0, 8]], used=[[0, 0, 3]]),
            ask(others={OTHER: 1}),
            -5,
            id="half stays free",
        ),
        pytest.param(
            halves(allocatable=[[0, 0, 8]], used=[[0, 0, 7]]), ask(others={OTHER: 1}), 0, id="the last one"
        ),
        pytest.param(
            halves(allocatable=[[0, 0, 8]]), ask(others={OTHER: 1}), -8 - 10, id="an empty node is opened"
        ),
        pytest.param(halves(allocatable=[[0, 0, 1]]), ask(others={OTHER: 1}), -10, id="however small it is"),
        pytest.param(
            halves(allocatable=[[0, 0, 8]]), ask(others={OTHER: 8}), -10, id="or if it is filled at once"
        ),
        pytest.param(
            halves(part=1000, mode=2, allocatable=[[7, 0, 0]], used=[[2, 0, 0]]),
            ask(whole=1),
            -5,
            id="strategy single",
        ),
        pytest.param(halves(allocatable=[[8, 0, 0]]), ask(whole=1), 0, id="whole cards are none of these"),
        pytest.param(
            halves(allocatable=[[0, 0, 8]], soft=1, used_soft=[[0, 0, 3]]),
            ask(others={OTHER: 1}),
            -5,
            id="soft claims",
        ),
        pytest.param(
            halves(allocatable=2**63 - 1), ask(others={OTHER: 1}), -9 - 10, id="sums stay within 64 bits"
        ),
    ],
)
def test_the_static_score_by_its_arithmetic(table: Table, pod: Ask, score: int) -> None:
    assert score_static(table, ints(0), np.zeros(1, np.int8), pod).tolist() == [score]


def test_a_row_that_does_not_fit_has_no_static_score() -> None:
    codes = np.array([TAKEN], np.int8)
    assert score_static(halves(allocatable=9), ints(0), codes, ask(others={OTHER: 1})).tolist() == [0]


TWO = Slices(
    np.array([[1, 1, 0, -1]], np.int8),
    np.array([[2, 3, 3, 3]], np.int32),
    np.array([[-7_000_000, 0, 3_500_000, 0]], np.int32),
)
"""A card of two units: the profile takes the upper first, would rather not open a card, and fills gaps below."""


def cutting(*cards: int, **cells: Any) -> Table:
    slices = np.array([cards], np.int32)
    cells = {"allocatable": 9, "slices": slices, "geometry": 0, **cells}
    return node(cards=0, width=len(cards), hardware=hardware(TWO), **cells)


def test_instances_are_cut_where_the_tables_say_one_after_the_other() -> None:
    whole, shares, places = seat(cutting(0, 2, 3, 1), 0, ask(others={OTHER: 3}), demand())
    assert places.tolist() == [[OTHER, 1, 0, 1], [OTHER, 3, 1, 2], [OTHER, 0, 1, 2]]
    assert (len(whole), len(shares)) == (0, 0)


@pytest.mark.parametrize(
    ("table", "count", "expected"),
    [
        pytest.param(cutting(0), 2, FITS, id="two halves"),
        pytest.param(cutting(0), 3, TAKEN, id="no third"),
        pytest.param(cutting(3, -1), 1, TAKEN, id="cards that are not cut on demand take none"),
        pytest.param(cutting(0, misplaced=1), 1, TAKEN, id="somebody is somewhere"),
        pytest.param(cutting(0, soft=1, slices_soft=3), 1, CONTENDED, id="soft claims"),
        pytest.param(cutting(0, geometry=1), 3, FITS, id="an unknown model is counted only"),
        pytest.param(cutting(0, geometry=-1), 3, FITS, id="so is one that is not cut on demand"),
    ],
)
def test_a_row_takes_what_can_be_cut(table: Table, count: int, expected: int) -> None:
    assert code(table, ask(others={OTHER: count})) == expected


def test_a_cut_is_worth_its_score_in_sevenths_and_the_scale_turns_it_off() -> None:
    pod = ask(others={OTHER: 1})
    mix: dict[str, Any] = {"fragmentation": 0.0}
    rows, codes = np.zeros(1, np.int32), np.zeros(1, np.int8)
    assert score(cutting(0), rows, codes, pod, demand(**mix)).tolist() == [-1.0]
    assert score(cutting(2), rows, codes, pod, demand(mig=3.0, **mix)).tolist() == [1.5]
    assert score(cutting(2), rows, codes, pod, demand(mig=0.0, **mix)).tolist() == [0.0]


def test_cores_feed_cards_in_mig_mode_too() -> None:
    """Of three cards, a half is held; 2 cores feed 2 of the 2.5 that are left, and still do when a half goes."""
    pod = ask(others={OTHER: 1})
    rows, codes = np.zeros(1, np.int32), np.zeros(1, np.int8)
    for cpu, change in ((2_000, 0.0), (9_000, -0.5)):
        table = cutting(0, 1, 0, cpu=cpu)
        assert score(table, rows, codes, pod, demand(cores=1, mig=0.0)).tolist() == [change]


def test_tables_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="profiles must be from -1 to 0"):
        Hardware(
            slices=[TWO],
            profiles=ints(0, 1).reshape(1, 2),
            units=ints(2),
            links=(),
            offers=np.zeros((0, 17), np.int32),
            parts=ints(0, 0),
        )
    with pytest.raises(ValueError, match="parts must be from 0 to 1000"):
        Hardware(
            slices=(),
            profiles=np.zeros((0, 1), np.int32),
            units=ints(),
            links=(),
            offers=np.zeros((0, 17), np.int32),
            parts=ints(1001),
        )
    with pytest.raises(ValueError, match="hardware must be for 3 resources, not for 2"):
        node(hardware=Hardware.none(2))
