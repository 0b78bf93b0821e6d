"""`score`, `best` and `grade` against their twins, and each part of the score by its arithmetic."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import (
    BEST_FIT,
    CONTENDED,
    FGD,
    FIRST_FIT,
    FITS,
    P1,
    TAKEN,
    Ask,
    Demand,
    Table,
    best,
    fit,
    grade,
    parts,
    renew,
    score,
    slots,
)
from tests.core import twins
from tests.core.builders import OTHER, ask, asks, demand, demands, tables
from tests.core.test_fit import GIB, node


@settings(max_examples=400)
@given(tables, asks, demands)
def test_score_is_what_its_twin_says(table: Table, pod: Ask, mix: Demand) -> None:
    rows = np.arange(table.rows, dtype=np.int32)[::-1].copy()
    codes = fit(table, rows, pod)
    expected = twins.score(table, rows.tolist(), codes.tolist(), pod, mix)
    # FGD's are whole numbers, cut off where sums of rounded numbers may differ in the last digit.
    assert score(table, rows, codes, pod, mix).tolist() == pytest.approx(
        expected, rel=0, abs=1.0 if mix.kind == FGD else 1e-9
    )


@settings(max_examples=300)
@given(tables, asks, demands, st.sampled_from([0.0, 1.0, 2.0]))
def test_the_fair_share_part_is_what_its_twin_says(table: Table, pod: Ask, mix: Demand, scale: float) -> None:
    arrays = (mix.cpu, mix.gpus, mix.share, mix.often, mix.weight)
    scaled = Demand(mix.kind, mix.cores, *arrays, mig=mix.mig, topology=mix.topology, shares=scale)
    rows = np.arange(table.rows, dtype=np.int32)
    codes = fit(table, rows, pod)
    scores = score(table, rows, codes, pod, scaled)
    for row, code in enumerate(codes.tolist()):
        found = parts(table, row, code, pod, scaled)
        assert sum(found) == pytest.approx(scores[row])
        assert sum(found[:3]) == pytest.approx(sum(parts(table, row, code, pod, mix)))
        if code > CONTENDED:
            assert found[3] == 0
            continue
        soft = code == FITS and table.soft[row] > 0
        values = twins.values(table, row, pod, soft, scaled)
        likely = [first for first, value in values.items() if value >= max(values.values()) - 1e-9]
        worth = [scale * twins.shares_worth(table, row, pod, soft, first) for first in likely]
        assert any(found[3] == pytest.approx(each) for each in worth), (found, worth)


@given(tables, asks, demands, st.data())
def test_rows_are_renewed_where_their_version_was_not_seen(
    table: Table, pod: Ask, mix: Demand, data: st.DataObject
) -> None:
    rows = np.arange(table.rows, dtype=np.int32)
    versions = np.arange(table.rows, dtype=np.int64)
    old = np.array(data.draw(st.lists(st.booleans(), min_size=table.rows, max_size=table.rows)), bool)
    seen = np.where(old, -1, versions)
    codes, scores = np.full(table.rows, 77, np.int8), np.full(table.rows, 0.5)
    renew(table, versions, seen, codes, scores, pod, mix)
    fresh = fit(table, rows, pod)
    assert codes.tolist() == np.where(old, fresh, 77).tolist()
    assert scores.tolist() == np.where(old, score(table, rows, fresh, pod, mix), 0.5).tolist()
    assert seen.tolist() == versions.tolist()


@given(tables, demands)
def test_slots_are_what_their_twin_counts(table: Table, mix: Demand) -> None:
    assert slots(table, mix).tolist() == twins.slots(table, mix)


ranked_rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(-3, 0).map(float) | st.floats(-1e6, 100, allow_nan=False),
        st.integers(0, 2) | st.just(2**32 - 1),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(ranked_rows, st.integers(0, 70))
def test_best_and_grade_are_what_their_twins_say(entries: list[tuple[int, float, int]], k: int) -> None:
    codes = np.array([code for code, _, _ in entries], np.int8)
    scores = np.array([points for _, points, _ in entries], np.float64)
    order = np.array([tie for _, _, tie in entries], np.uint32)
    plain = codes.tolist(), scores.tolist()
    ranked = best(codes, scores, order, k)
    assert ranked.dtype == np.int32
    assert ranked.tolist() == twins.best(*plain, order.tolist(), k)
    assert grade(codes, scores, ranked).tolist() == twins.grade(*plain, ranked.tolist())


GPUS8: dict[str, Any] = {"cards": 8, "cpu": 64_000, "memory": 80 * GIB}
HALF_AND_EIGHT = [(4_000, 1, 0.5, 0.5, 0.0), (32_000, 8, 1.0, 0.5, 0.0)]


@pytest.mark.parametrize(
    ("table", "pod", "mix", "points"),
    [
        # 64 cores feed all of 8 GPUs at 8 a GPU: G falls from 8 to 6, and cores suffice for 7 then.
        pytest.param(
            node(**GPUS8), ask(whole=2, cpu=8_000), demand(cores=8), -2.0, id="GPUs that are taken are gone"
        ),
        # 64 - 48 = 16 cores feed 2 of the 7 GPUs left, where 8 were fed.
        pytest.param(node(**GPUS8), ask(whole=1, cpu=48_000), demand(cores=8), -6.0, id="cores strand GPUs"),
        # 10 cores a GPU: 6.4 GPUs were fed, and 6.4 - 1.2 are: the ninth card costs nothing, 12 cores do.
        pytest.param(
            node(**GPUS8), ask(cpu=12_000), demand(cores=10), -1.2, id="a pod without GPU strands, too"
        ),
        # Half a card of 8: not one of halves; for the job of 8 all is lost, 7.5 where nothing was: 0.5 * -7.5.
        pytest.param(
            node(replicas=2, **GPUS8),
            ask(shares=1, memory=40 * GIB),
            demand(*HALF_AND_EIGHT, cores=1),
            -0.5 - 0.5 * 7.5,
            id="fragments",
        ),
        # Room for halves falls from 16 to 15, by cores from 16 to 15; for the job of 8 from 1 to 0.
        pytest.param(
            node(replicas=2, **GPUS8),
            ask(shares=1, memory=40 * GIB, cpu=4_000),
            demand((4_000, 1, 0.5, 0.0, 0.25), (64_000, 8, 1.0, 0.0, 3.0), cores=1),
            -0.5 - 0.25 - 3.0,
            id="room for others",
        ),
        pytest.param(
            node(used=[[0, 0, 1]]),
            ask(others={OTHER: 1}),
            demand(),
            0.0,
            id="what is no instance counts nothing",
        ),
        pytest.param(
            node(mode=2, allocatable=7, part=143),
            ask(whole=3),
            demand(),
            -0.5 - 1,
            id="instances by the tenths that are left, and the node was free",
        ),
        pytest.param(
            node(soft=1, exclusive_soft=[[1, 0]], cpu=9_000),
            ask(whole=1),
            demand((1, 1, 1.0, 0.0, 1.0), cores=1),
            -2.0,
            id="soft claims hold cards: one was left, and one pod fitted",
        ),
        pytest.param(
            node(order=2**31, cpu=9_000), ask(whole=1), demand(cores=1), -1 - 0.25, id="the order counts"
        ),
        pytest.param(
            node(order=2**31, cpu=9_000), ask(whole=1), demand(cores=1, kind=P1), -1 - 1.0, id="more so in P1"
        ),
        pytest.param(
            node(order=2**31, cpu=64_000),
            ask(whole=1, cpu=8_000),
            demand(kind=BEST_FIT),
            -50 * (56 / 128 + 1 / 8),
            id="best fit: cores and GPUs left",
        ),
        pytest.param(
            node(order=2**31), ask(whole=1), demand(kind=FIRST_FIT), -0.5, id="first fit: the order"
        ),
    ],
)
def test_scores_add_up(table: Table, pod: Ask, mix: Demand, points: float) -> None:
    rows = np.zeros(1, np.int32)
    codes = fit(table, rows, pod)
    assert codes.tolist() == [FITS]
    assert score(table, rows, codes, pod, mix).tolist() == pytest.approx([points])


@pytest.mark.parametrize(
    ("borrowed", "points"),
    [
        # Of four cards one is pinned, one lent and two free: three could be given back.
        pytest.param(False, -2 * 3 / 4, id="guaranteed work pins them"),
        pytest.param(True, -2 * 1 / 4, id="borrowed work has a fourth of the node against it"),
        pytest.param(None, 0.0, id="without a policy nothing is lent"),
    ],
)
def test_fair_shares_weigh_the_block_that_could_be_given_back(borrowed: bool | None, points: float) -> None:
    table = node(cards=4, exclusive=[[1, 1, 0, 0]], lent=1)
    rows, pod = np.zeros(1, np.int32), ask(whole=2, borrowed=borrowed)
    codes = fit(table, rows, pod)
    off = demand(cores=1, fragmentation=0, mig=0, topology=0, shares=1)
    assert score(table, rows, codes, pod, off).tolist() == [points]
    assert parts(table, 0, FITS, pod, off) == (0, 0, 0, points)
    none = demand(cores=1, fragmentation=0, mig=0, topology=0, shares=0)
    assert score(table, rows, codes, pod, none).tolist() == [0.0]


def test_a_share_on_a_pinned_card_costs_nothing_and_one_on_a_free_or_lent_card_does() -> None:
    off = demand(cores=1, fragmentation=0, mig=0, topology=0)
    pod = ask(shares=1, borrowed=False)
    pinned = node(cards=2, replicas=2, shares=[[1, 0]])
    lent = node(cards=2, replicas=2, shares=[[1, 0]], lent=1)
    full = node(cards=2, replicas=2, shares=[[2, 0]])
    assert [parts(table, 0, FITS, pod, off)[3] for table in (pinned, lent, full)] == [0.0, -1.0, -0.5]


def test_a_contended_row_is_weighed_without_soft_claims() -> None:
    table = node(cards=4, soft=1, exclusive_soft=[[1, 1, 1, 0]], cpu=9_000)
    rows, mix = np.zeros(1, np.int32), demand((1, 2, 1.0, 0.0, 1.0), cores=1)
    codes = fit(table, rows, ask(whole=2))
    assert codes.tolist() == [CONTENDED]
    # Two cards are gone, and of two jobs of two cards one still fits.
    assert score(table, rows, codes, ask(whole=2), mix).tolist() == [-3.0]


def test_scores_of_rows_that_do_not_fit_are_zero_whatever_their_code() -> None:
    rows = np.zeros(3, np.int32)
    assert score(node(), rows, np.array([TAKEN, 127, -128], np.int8), ask(whole=1), demand()).tolist() == [
        0,
        0,
        0,
    ]


def test_codes_that_do_not_belong_to_the_rows_stay_in_bounds() -> None:
    table, rows = node(exclusive=1), np.zeros(1, np.int32)
    for pod in (ask(whole=2), ask(shares=5), ask(whole=2**40, shares=2**40)):
        assert score(table, rows, np.array([FITS], np.int8), pod, demand()).shape == (1,)


def test_the_kernels_refuse_arrays_that_do_not_agree() -> None:
    codes, scores, order = np.zeros(2, np.int8), np.zeros(2), np.zeros(2, np.uint32)
    with pytest.raises(
        ValueError, match=r"codes must be .* of shape \(1,\), not a int8 array of shape \(2,\)"
    ):
        score(node(), np.zeros(1, np.int32), codes, ask(), demand())
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
