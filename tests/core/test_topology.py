"""`Sets`, `connect` and `Allocator` against their twins on random matrices, small enough for ties to come up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from _core import Allocator, Sets, connect
from tests.core.topology_twins import Twin, plugin_sets

Matrix = NDArray[np.int32]


def symmetric(seed: int, gpus: int, values: list[int]) -> Matrix:
    drawn = np.random.default_rng(seed).choice(np.array(values, np.int32), (gpus, gpus))
    upper: Matrix = np.triu(drawn, 1)
    return upper + upper.T


def matrices(values: list[int], most: int = 8) -> st.SearchStrategy[Matrix]:
    return st.builds(symmetric, st.integers(0, 2**32), st.integers(1, most), st.just(values))


def sets_of(bandwidth: Matrix, rank: Matrix | None = None) -> Sets:
    return Sets(bandwidth, np.zeros_like(bandwidth) if rank is None else rank, Allocator(bandwidth))


def members(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def mask_of(gpus: tuple[int | None, ...]) -> int:
    return sum(1 << gpu for gpu in gpus if gpu is not None)


@settings(max_examples=100, deadline=None)
@given(matrices([30, 30, 60, 600]), st.integers(0, 2**32), st.data())
def test_the_best_set_and_its_score_are_what_the_twin_says(
    bandwidth: Matrix, seed: int, data: st.DataObject
) -> None:
    gpus = len(bandwidth)
    rank = symmetric(seed, gpus, [0, 1])
    sets, twin = sets_of(bandwidth, rank), Twin(bandwidth.tolist(), rank.tolist())
    free = np.array(data.draw(st.lists(st.integers(0, 2**gpus - 1), min_size=1, max_size=6)), np.uint32)
    best = data.draw(st.sampled_from([0, 60, 900]))
    for k in range(gpus + 2):
        chosen, score, slowest = connect(
            [sets], np.zeros(len(free), np.int32), free, k, np.array([best], np.int32)
        )
        for i, mask in enumerate(free.tolist()):
            expected = twin.choose(members(mask), k)
            assert members(int(chosen[i])) == members(sets.choose(mask, k)) == expected
            if expected:
                assert slowest[i] == twin.slowest(expected)
                assert score[i] == pytest.approx(twin.score(members(mask), expected, best), abs=1e-12)
                assert -1 <= score[i] <= 1
            else:
                assert (score[i], slowest[i]) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(matrices([10, 10, 30, 200]), st.data())
def test_the_plugin_hands_out_what_its_own_code_would(points: Matrix, data: st.DataObject) -> None:
    gpus = len(points)
    allocator = Allocator(points)
    for k in range(1, gpus + 1):
        mask = data.draw(st.integers(0, 2**gpus - 1))
        handed = plugin_sets(points.tolist(), members(mask), (), k)
        ours = allocator.choose(mask, k)
        if None in handed:
            assert mask_of(handed) & ours == mask_of(handed)
        else:
            assert members(ours) == handed
        assert ours.bit_count() == (k if k <= mask.bit_count() else 0)


def test_a_set_that_the_plugin_leaves_short_is_filled_with_the_lowest_free_gpus() -> None:
    points = np.array(
        [
            [0, 1200, 10, 10, 10],
            [1200, 0, 10, 10, 10],
            [10, 10, 0, 20, 20],
            [10, 10, 20, 0, 20],
            [10, 10, 20, 20, 0],
        ],
        np.int32,
    )
    assert plugin_sets(points.tolist(), range(5), (), 3) == (0, 1, None)
    assert members(Allocator(points).choose(0b11111, 3)) == (0, 1, 2)


@pytest.mark.parametrize("gpus", [9, 16])
def test_above_eight_gpus_answers_come_on_demand_and_are_the_same(gpus: int) -> None:
    bandwidth = symmetric(gpus, gpus, [30, 60, 600])
    sets, again = sets_of(bandwidth), sets_of(bandwidth)
    full = 2**gpus - 1
    lots = np.random.default_rng(1)
    for mask in [full, *lots.integers(0, full, 20).tolist()]:
        for k in (1, 2, 3, 4, 8, gpus):
            chosen = sets.choose(mask, k)
            assert chosen == sets.choose(mask, k) == again.choose(mask, k)
            assert chosen & ~mask == 0
            assert chosen.bit_count() == (k if k <= mask.bit_count() else 0)
            assert sets.allocator.choose(mask, k) == again.allocator.choose(mask, k)
    assert sets.kept[full] == pytest.approx(1)
    assert sets.kept[0] == 0
    assert (sets.kept[1 : full + 1 : 2] >= sets.kept[0 : full + 1 : 2]).all()


def test_a_large_matrix_holds_a_small_one() -> None:
    """Sixteen GPUs of which eight have links: the same sets of those as the eight alone."""
    small = symmetric(5, 8, [30, 60, 600])
    large = np.ones((16, 16), np.int32)
    large[4:12, 4:12] = small
    alone, among = sets_of(small), sets_of(large)
    for mask in range(0, 256, 7):
        for k in (2, 3, 4):
            if mask.bit_count() >= k:
                assert among.bottleneck[among.choose(mask << 4, k)] == alone.bottleneck[alone.choose(mask, k)]
                assert among.total[among.choose(mask << 4, k)] == alone.total[alone.choose(mask, k)]


def test_what_a_job_leaves_decides_between_equal_sets() -> None:
    """Two islands of four: a pair comes from the island that is broken already, one GPU from where it is odd."""
    islands = np.full((8, 8), 30, np.int32)
    islands[:4, :4] = islands[4:, 4:] = 600
    sets = sets_of(islands)
    assert members(sets.choose(0b1111_1100, 2)) == (2, 3)
    assert members(sets.choose(0b0011_1111, 2)) == (4, 5)
    assert members(sets.choose(0b0111_1111, 1)) == (4,)
    assert members(sets.choose(0b1111_0111, 3)) == (0, 1, 2)


def test_a_node_scores_by_what_it_gives_and_by_what_it_loses() -> None:
    even = sets_of(np.full((4, 4), 600, np.int32))
    at, none = np.zeros(3, np.int32), np.zeros(1, np.int32)
    _, score, slowest = connect([even], at, np.array([0b1111, 0b0111, 0b0011], np.uint32), 2, none)
    assert slowest.tolist() == [600, 600, 600]
    # Worth: half for the set of four, a quarter for each pair.
    assert score == pytest.approx([1 - 0.75, 1 - 0.25, 1 - 0.25])
    _, score, _ = connect([even], at, np.array([0b1111, 0b0111, 0b0011], np.uint32), 1, none)
    assert score == pytest.approx([1 - 0.75, 1, 1 - 0.25])
    _, score, _ = connect([even], at[:1], np.array([0b0011], np.uint32), 2, np.array([1200], np.int32))
    assert score == pytest.approx([0.95 * 0.5 + 0.05 - 0.25])


def test_a_node_whose_gpus_the_plugin_would_waste_scores_lower() -> None:
    bandwidth = np.full((8, 8), 30, np.int32)
    bandwidth[:4, :4] = bandwidth[4:, 4:] = 600
    blind = Sets(bandwidth, np.zeros_like(bandwidth), Allocator(np.full((8, 8), 10, np.int32)))
    at, free, none = np.zeros(1, np.int32), np.array([0b1111_1000], np.uint32), np.zeros(1, np.int32)
    chosen, score, slowest = connect([blind], at, free, 4, none)
    assert (members(int(chosen[0])), slowest[0]) == ((4, 5, 6, 7), 600)
    chosen, worse, slowest = connect([blind], at, free, 4, none, True)
    assert (members(int(chosen[0])), slowest[0]) == ((3, 4, 5, 6), 30)
    assert worse[0] < score[0]


def test_a_node_without_known_links_and_one_without_room_are_neutral() -> None:
    sets = [sets_of(np.full((2, 2), 9, np.int32))]
    found = connect(sets, np.array([-1, 0], np.int32), np.array([3, 1], np.uint32), 2, np.zeros(1, np.int32))
    assert [values.tolist() for values in found] == [[0, 0], [0, 0], [0, 0]]


def test_bad_arrays_are_refused_with_a_sentence() -> None:
    good = np.ones((2, 2), np.int32)
    with pytest.raises(ValueError, match=r"bandwidth must be for 1 to 16 GPUs, not of shape \(17, 17\)"):
        Sets(np.ones((17, 17), np.int32), good, Allocator(good))
    with pytest.raises(ValueError, match=r"must be for 1 to 16 GPUs, not of shape \(0, 0\)"):
        Allocator(np.zeros((0, 0), np.int32))
    with pytest.raises(ValueError, match=r"not of shape \(2, 3\)"):
        Allocator(np.zeros((2, 3), np.int32))
    with pytest.raises(ValueError, match=r"bandwidth\[1, 0\] is 0; it must be from 1 to 8000000"):
        Sets(np.zeros((2, 2), np.int32), good, Allocator(good))
    with pytest.raises(ValueError, match=r"rank\[1, 0\] is 2, but rank\[0, 1\] is 1"):
        sets_of(good, np.array([[0, 1], [2, 0]], np.int32))
    with pytest.raises(ValueError, match="bandwidth must be a C-contiguous int32 array"):
        Sets(np.ones((2, 2)), good, Allocator(good))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="allocator must be for 2 GPUs, not for 3"):
        Sets(good, good, Allocator(np.ones((3, 3), np.int32)))
    with pytest.raises(TypeError):
        Sets(good, good, None)  # type: ignore[arg-type]
    sets, none = sets_of(good), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="free must be from 0 to 3, not 4"):
        sets.choose(4, 1)
    with pytest.raises(ValueError, match="k must be from 0"):
        sets.allocator.choose(3, -1)
    with pytest.raises(ValueError, match=r"free\[0\] is 0b100, but its matrix has only 2 GPUs"):
        connect([sets], none, np.array([4], np.uint32), 1, none)
    with pytest.raises(ValueError, match=r"at\[0\] is 1, but there are only sets 0 to 0"):
        connect([sets], np.ones(1, np.int32), np.array([3], np.uint32), 1, none)
    with pytest.raises(ValueError, match="best must be"):
        connect([sets], none, np.array([3], np.uint32), 1, np.zeros(2, np.int32))
    with pytest.raises(TypeError, match="sets must hold Sets, not a int"):
        connect([1], none, np.array([3], np.uint32), 1, none)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="read-only"):
        sets.bottleneck[0] = 1
