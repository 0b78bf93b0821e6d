"""The fair-share term: its twin, and where it sends guaranteed and borrowed work."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _core import give_back

ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-1, 9)), min_size=1, max_size=12)


def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def twin(cards: int, free: int, lent: int, takes: int, borrowed: bool) -> Fraction:
    """The cards of the pod, each by the part of the row that stays pinned (borrowed) or could be given back."""
    if not cards:
        return Fraction(0)
    block = min(Fraction(max(free + lent, 0), cards), Fraction(1))
    return -max(takes, 0) * (1 - block if borrowed else block)


def costs(table: list[tuple[int, int, int]], takes: int, borrowed: bool) -> list[float]:
    cards, free, lent = (ints(list(column)) for column in zip(*table, strict=True))
    rows = np.arange(len(table), dtype=np.int32)
    found: list[float] = give_back(rows, cards, free, lent, ints([takes] * len(table)), borrowed).tolist()
    return found


@given(ROWS, st.integers(-1, 9), st.booleans())
def test_the_kernel_is_its_twin(table: list[tuple[int, int, int]], takes: int, borrowed: bool) -> None:
    expected = [float(twin(*row, takes, borrowed)) for row in table]
    assert costs(table, takes, borrowed) == pytest.approx(expected, abs=1e-12)
    cards, free, lent = (ints(list(column)) for column in zip(*table, strict=True))
    last = give_back(ints([len(table) - 1] * 2), cards, free, lent, ints([takes, 0]), borrowed)
    assert last.tolist() == pytest.approx([expected[-1], 0.0], abs=1e-12)


def test_borrowed_work_goes_where_all_can_be_given_back() -> None:
    # 8 cards each: empty; wholly lent but one; half of it pinned; all but two pinned.
    whole, lent, half, pinned = costs([(8, 8, 0), (8, 1, 7), (8, 2, 2), (8, 2, 0)], 2, True)
    assert whole == lent == 0
    assert lent > half == -1.0 > pinned == -1.5


def test_guaranteed_work_goes_where_it_pins_least() -> None:
    whole, half, pinned = costs([(8, 8, 0), (8, 2, 2), (8, 2, 0)], 2, False)
    assert (whole, half, pinned) == (-2.0, -1.0, -0.5)


def test_a_share_of_a_pinned_card_costs_nothing_and_neither_does_a_row_without_cards() -> None:
    assert costs([(8, 3, 2)], 0, False) == costs([(8, 3, 2)], 0, True) == [0.0]
    assert costs([(0, 0, 0)], 1, True) == [0.0]


@pytest.mark.parametrize(
    ("columns", "rows", "takes", "words"),
    [
        ((ints([8]), ints([8, 1]), ints([0])), ints([0]), ints([1]), "free must be"),
        ((ints([8]), ints([8]), ints([0])), ints([1]), ints([1]), r"rows\[0\] is 1"),
        ((ints([8]), ints([8]), ints([0])), ints([0]), ints([1, 1]), "takes must be"),
        ((ints([8]), ints([8]), np.zeros(1)), ints([0]), ints([1]), "lent must be a C-contiguous int32"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(
    columns: tuple[Any, Any, Any], rows: Any, takes: Any, words: str
) -> None:
    cards, free, lent = columns
    with pytest.raises(ValueError, match=words):
        give_back(rows, cards, free, lent, takes, True)
