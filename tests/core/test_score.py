"""`score`, `best` and `grade` against their twins, and each rule of the waste by its arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import CONTENDED, FITS, TAKEN, Ask, Table, best, fit, grade, score
from tests.core import twins
from tests.core.builders import OTHER, ask, asks, tables
from tests.core.test_fit import GIB, node


@settings(max_examples=400)
@given(tables, asks)
def test_score_is_what_its_twin_says(table: Table, pod: Ask) -> None:
    rows = np.arange(table.rows, dtype=np.int32)[::-1].copy()
    codes = fit(table, rows, pod)
    expected = twins.score(table, rows.tolist(), codes.tolist(), pod)
    assert score(table, rows, codes, pod).tolist() == expected


ranked_rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(-3, 0) | st.integers(-(2**55), 0),
        st.integers(0, 2) | st.just(2**32 - 1),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(ranked_rows, st.integers(0, 70))
def test_best_and_grade_are_what_their_twins_say(entries: list[tuple[int, int, int]], k: int) -> None:
    codes = np.array([code for code, _, _ in entries], np.int8)
    scores = np.array([points for _, points, _ in entries], np.int64)
    order = np.array([tie for _, _, tie in entries], np.uint32)
    plain = codes.tolist(), scores.tolist()
    ranked = best(codes, scores, order, k)
    assert ranked.dtype == np.int32
    assert ranked.tolist() == twins.best(*plain, order.tolist(), k)
    assert grade(codes, scores, ranked).tolist() == twins.grade(*plain, ranked.tolist())


@pytest.mark.parametrize(
    ("table", "pod", "waste"),
    [
        pytest.param(node(cards=8), ask(whole=2), 6000, id="six of eight cards stay free"),
        pytest.param(node(cards=8, opaque=1), ask(whole=2), 5000, id="an opaque card is not free"),
        # 80 GiB / 4 = 20 GiB a share; 40 of 80 are left.
        pytest.param(
            node(cards=2, replicas=4, shares=[[1, 0]], memory_used=[[20 * GIB, 0]]),
            ask(shares=1),
            500,
            id="half of a shared card is left",
        ),
        # 30 GiB declared on a fresh card: 50 of 80 left, and 2 of 3 cards stay free.
        pytest.param(
            node(cards=3, replicas=4),
            ask(shares=1, memory=30 * GIB),
            625 + 1000 + 2000,
            id="a fresh card is opened",
        ),
        pytest.param(
            node(cards=1, replicas=4, memory=0, shares=1),
            ask(shares=2),
            250,
            id="replicas where memory is unknown",
        ),
        pytest.param(
            node(used=[[0, 0, 1]]), ask(others={OTHER: 1}), 2000, id="other resources by what is left"
        ),
        pytest.param(node(mode=2, allocatable=7), ask(whole=3), 4000, id="instances by what is left"),
        pytest.param(node(soft=1, exclusive_soft=[[1, 0]]), ask(whole=1), 0, id="soft claims hold cards"),
        pytest.param(
            node(allocatable=2**63 - 1), ask(others={OTHER: 1}), 1000 * 2**40, id="waste is bounded"
        ),
    ],
)
def test_waste_adds_up(table: Table, pod: Ask, waste: int) -> None:
    rows = np.zeros(1, np.int32)
    codes = fit(table, rows, pod)
    assert codes.tolist() == [FITS]
    assert score(table, rows, codes, pod).tolist() == [-waste]


def test_a_contended_row_is_weighed_without_soft_claims() -> None:
    table, rows = node(cards=4, soft=1, exclusive_soft=[[1, 1, 1, 0]]), np.zeros(1, np.int32)
    codes = fit(table, rows, ask(whole=2))
    assert codes.tolist() == [CONTENDED]
    assert score(table, rows, codes, ask(whole=2)).tolist() == [-2000]


def test_scores_of_rows_that_do_not_fit_are_zero_whatever_their_code() -> None:
    rows = np.zeros(3, np.int32)
    assert score(node(), rows, np.array([TAKEN, 127, -128], np.int8), ask(whole=1)).tolist() == [0, 0, 0]


def test_codes_that_do_not_belong_to_the_rows_stay_in_bounds() -> None:
    table, rows = node(exclusive=1), np.zeros(1, np.int32)
    for pod in (ask(whole=2), ask(shares=5), ask(whole=2**40, shares=2**40)):
        assert score(table, rows, np.array([FITS], np.int8), pod).shape == (1,)


def test_the_kernels_refuse_arrays_that_do_not_agree() -> None:
    codes, scores, order = np.zeros(2, np.int8), np.zeros(2, np.int64), np.zeros(2, np.uint32)
    with pytest.raises(
        ValueError, match=r"codes must be .* of shape \(1,\), not a int8 array of shape \(2,\)"
    ):
        score(node(), np.zeros(1, np.int32), codes, ask())
    with pytest.raises(ValueError, match="scores must be"):
        best(codes, scores[:1], order, 1)
    with pytest.raises(ValueError, match="order must be a C-contiguous uint32 array"):
        best(codes, scores, scores, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be from 0"):
        best(codes, scores, order, -1)
    with pytest.raises(ValueError, match=r"ranked\[0\] is 2"):
        grade(codes, scores, np.array([2], np.int32))
    with pytest.raises(ValueError, match="scores must be"):
        grade(codes, scores[:1], np.array([0], np.int32))
