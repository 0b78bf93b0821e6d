"""The look-up tables against the formula in plain Python, the order of starts, the trap, and the learned demand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _core import Slices, place_dynamic
from extender.cluster import migscore
from extender.cluster.geometry import by_size, geometries, geometry_of
from extender.cluster.mig import Geometry
from extender.cluster.migscore import (
    DemandMix,
    MigTables,
    preferred,
    slices_of,
)
from tests.cluster.test_mig import PLACED, STATES, named

H100 = geometries()["H100-80GB"]
ONE, THREE, FOUR = (named(H100, name) for name in ("1g.10gb", "3g.40gb", "4g.40gb"))


def flat(geometry: Geometry) -> Slices:
    return slices_of(geometry, np.full(len(geometry.profiles), 1 / len(geometry.profiles)))


def place(slices: Slices, cards: list[int], *profiles: int) -> tuple[list[int], list[int]]:
    """(card, start) of each instance on one row of cards."""
    chosen, starts, _ = place_dynamic(
        slices, np.array([cards], np.int32), np.zeros(1, np.int32), np.array(profiles, np.int32)
    )
    return chosen[0].tolist(), starts[0].tolist()


def together(geometry: Geometry, occupancy: int, profile: int) -> int:
    """How many more instances of the profile fit, by trying all sets of starts."""
    bits = list(geometry.placements(profile).values())
    return max(
        count
        for count in range(len(bits) + 1)
        for chosen in itertools.combinations(bits, count)
        if sum(chosen) & occupancy == 0
        and sum(chosen).bit_count() == sum(b.bit_count() for b in chosen)
        and all(a & b == 0 for a, b in itertools.combinations(chosen, 2))
    )


def worth(geometry: Geometry, demand: list[float], occupancy: int) -> float:
    free = sum(not occupancy >> unit & 1 for unit in range(geometry.units)) * 8 / geometry.units
    value = 0.3 * free**2 / 8 + 0.2 * (occupancy == 0)
    for index, (profile, share) in enumerate(zip(geometry.profiles, demand, strict=True)):
        slices = profile.compute * 7 / geometry.compute
        value += share * slices * together(geometry, occupancy, index) ** 0.75
    return value


@pytest.mark.parametrize("model", ["H100-80GB", "A30-24GB", "RTX-PRO-6000-Blackwell-96GB"])
@given(data=st.data())
def test_the_tables_say_what_the_formula_says(model: str, data: st.DataObject) -> None:
    geometry = geometries()[model]
    counts = data.draw(
        st.lists(st.integers(1, 9), min_size=len(geometry.profiles), max_size=len(geometry.profiles))
    )
    demand = [count / sum(counts) for count in counts]
    slices = slices_of(geometry, np.array(demand))
    occupancy = data.draw(st.integers(0, slices.occupancies - 1))
    free = sum(not occupancy >> unit & 1 for unit in range(geometry.units)) * 8 / geometry.units
    for index, profile in enumerate(geometry.profiles):
        starts = [s for s in preferred(profile) if s in geometry.free_starts(occupancy, index)]
        assert slices.starts[index, occupancy] == (starts[0] if starts else -1)
        if starts:
            after = occupancy | geometry.placements(index)[starts[0]]
            assert slices.after[index, occupancy] == after
            score = worth(geometry, demand, after) - worth(geometry, demand, occupancy) - 0.1 * free
            assert slices.scores[index, occupancy] == pytest.approx(score * 1e6, abs=1)


@pytest.mark.parametrize("geometry", PLACED, ids=lambda geometry: geometry.model)
def test_every_model_can_be_filled_to_its_largest_profile(geometry: Geometry) -> None:
    slices = flat(geometry)
    largest = max(range(len(geometry.profiles)), key=lambda index: geometry.profiles[index].size)
    assert place(slices, [0, -1], largest) == ([0], [0])
    assert place(slices, [0, -1], largest, 0) == ([-1, -1], [-1, -1])


def test_a_model_without_placements_has_no_tables() -> None:
    geometry = geometry_of("NVIDIA-RTX-PRO-4500-Blackwell")
    assert geometry is not None
    with pytest.raises(
        ValueError, match=r"RTX-PRO-4500-Blackwell-32GB are not known; its instances are counted"
    ):
        flat(geometry)


def in_creation_order(example: int) -> tuple[list[tuple[str, int]], object]:
    """Where our order puts the instances of a documented creation on an empty card, and what is documented."""
    documented = STATES["_creation_order_examples"][example]
    geometry = geometries()[documented["model"]]
    slices, cards, placed = flat(geometry), 0, []
    for name in documented["request"]:
        profile = named(geometry, name)
        start = int(slices.starts[profile, cards])
        placed.append((name, start))
        if start >= 0:
            cards = int(slices.after[profile, cards])
    return placed, documented["result"]


@pytest.mark.parametrize("example", [2, 4], ids=["driver, twice 3g", "HAMi"])
def test_starts_are_those_of_the_documented_creations_that_use_our_order(example: int) -> None:
    placed, documented = in_creation_order(example)
    assert [list(each) for each in placed] == documented


@pytest.mark.parametrize("example", range(5))
def test_a_creation_succeeds_in_our_order_exactly_if_the_documented_one_did(example: int) -> None:
    # NVIDIA's own driver starts 1g low and 2g high, so only the outcome can be compared.
    placed, documented = in_creation_order(example)
    assert all(start >= 0 for _, start in placed) == (documented != "Insufficient Resources")


def test_one_slice_after_another_leaves_room_for_three_or_four() -> None:
    slices, card = flat(H100), 0
    for start in (6, 5, 4):
        assert place(slices, [card, 0], ONE) == ([0], [start])
        card = int(slices.after[ONE, card])
    assert H100.free_starts(card, THREE) == H100.free_starts(card, FOUR) == [0]


def test_the_trap_of_0_1_and_5_is_avoided_where_best_fit_walks_into_it() -> None:
    # The card with 1g at 0 and 1 still has a place for 3g, which a third 1g there would take; the other has 6 to spare.
    trap, other = (H100.occupancy([(ONE, start) for start in starts]) for starts in ((0, 1), (5,)))
    slices = flat(H100)
    used = np.array([occupancy.bit_count() for occupancy in range(slices.occupancies)], np.int32)
    best_fit = slices.with_scores(np.tile(used, (slices.profiles, 1)))
    assert place(best_fit, [trap, other], ONE) == ([0], [6])
    assert place(slices, [trap, other], ONE) == ([1], [6])
    after = int(slices.after[ONE, other])
    assert H100.free_starts(trap, THREE) == [4]
    assert H100.free_starts(after, FOUR) == [0]
    # Once a card is in the trap, what is left of it is used before a card that is not.
    trapped = H100.occupancy([(ONE, start) for start in (0, 1, 5)])
    assert place(slices, [0, other, trapped], ONE)[0] == [2]


def test_an_empty_card_is_kept_for_seven_slices() -> None:
    slices = flat(H100)
    for profile in (ONE, THREE):
        assert place(slices, [0, int(slices.after[ONE, 0])], profile)[0] == [1]


def in_order(geometry: Geometry, profiles: Iterable[int]) -> list[int]:
    """As the kernels place a pod's instances."""
    return sorted(
        profiles, key=lambda profile: by_size(geometry.profiles[profile].resources[0]), reverse=True
    )


def test_what_takes_most_is_placed_first() -> None:
    two = named(H100, "2g.20gb")
    assert in_order(H100, [ONE, two, FOUR, THREE]) == [FOUR, THREE, two, ONE]
    assert place(flat(H100), [0], FOUR, THREE) == ([0, 0], [0, 4])


@pytest.mark.parametrize("geometry", PLACED, ids=lambda geometry: geometry.model)
def test_several_instances_of_a_pod_find_the_places_that_a_card_has(geometry: Geometry) -> None:
    """In this order, what fits on an empty card in any way is placed."""
    slices = flat(geometry)
    small = [index for index, profile in enumerate(geometry.profiles) if not profile.media][:6]
    for count in (2, 3, 4):
        for profiles in itertools.combinations_with_replacement(small, count):
            if fits_somehow(geometry, 0, list(profiles)):
                assert place(slices, [0], *in_order(geometry, profiles))[0] == [0] * count, profiles


def fits_somehow(geometry: Geometry, occupancy: int, profiles: list[int]) -> bool:
    if not profiles:
        return True
    placements = geometry.placements(profiles[0])
    return any(
        fits_somehow(geometry, occupancy | placements[start], profiles[1:])
        for start in geometry.free_starts(occupancy, profiles[0])
    )


# demand


def test_demand_is_flat_until_something_is_asked_for_and_again_when_all_is_long_ago() -> None:
    mix = DemandMix(half_life=10)
    groups = [("a",), ("b", "c"), ("d",), ("e",)]
    assert mix.weights(groups, 0).tolist() == [0.25] * 4
    mix.observe("a", 0, 60)
    mix.observe("c", 0, 20)
    # 20 requests are spread over the four groups beforehand: 65, 25, 5 and 5 of 100.
    assert mix.weights(groups, 0) == pytest.approx([0.65, 0.25, 0.05, 0.05])
    # A half-life later 30 and 10 are left of what was seen.
    assert mix.weights(groups, 10) == pytest.approx([35 / 60, 15 / 60, 5 / 60, 5 / 60])
    assert mix.weights(groups, 1e5) == pytest.approx([0.25] * 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e4), st.integers(1, 9)), max_size=40))
def test_demand_is_the_sum_of_what_was_asked_for_halved_each_half_life(
    seen: list[tuple[str, float, int]],
) -> None:
    half_life = 3.0
    mix, now, plain = DemandMix(half_life), 0.0, dict.fromkeys("abc", 0.0)
    for name, gap, count in seen:
        now += gap
        plain = {key: value * 2 ** (-gap / half_life) for key, value in plain.items()}
        plain[name] += count
        mix.observe(name, now, count)
    total = sum(plain.values()) + migscore.PRIOR
    expected = [(plain[name] + migscore.PRIOR / 3) / total for name in "abc"]
    assert mix.weights(["a", "b", "c"], now).tolist() == pytest.approx(expected)


def test_demand_forgets_the_least_asked_for_rather_than_growing() -> None:
    mix = DemandMix(half_life=1)
    mix.observe("often", 0, 10)
    for number in range(10 * migscore.MOST_NAMES):
        mix.observe(f"once-{number}", 0)
    weights = mix.weights(
        [("often",), tuple(f"once-{number}" for number in range(10 * migscore.MOST_NAMES))], 0
    )
    assert weights[0] == pytest.approx((10 + 10) / (10 + migscore.MOST_NAMES - 1 + 20))


def test_a_clock_that_goes_back_stands_still() -> None:
    mix = DemandMix(half_life=1)
    mix.observe("a", 100)
    mix.observe("b", 0)
    assert mix.weights(["a", "b"], 50).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("half_life", [0, -1, math.nan])
def test_a_half_life_that_is_none_is_refused(half_life: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        DemandMix(half_life)


def test_tables_follow_the_demand_and_stay_the_same_object_in_between() -> None:
    tables = MigTables(DemandMix(half_life=1e9))
    first = tables.of(H100, 0)
    assert tables.of(H100, 0) is first
    for _ in range(2000):
        tables.observe("nvidia.com/mig-1g.10gb", 0)
    second = tables.of(H100, 0)
    assert (second.scores != first.scores).any()
    for _ in range(migscore.REFRESH - 1):
        tables.observe("nvidia.com/mig-7g.80gb", 0)
        assert tables.of(H100, 0) is second
    tables.observe("nvidia.com/mig-7g.79gb", 0)
    assert tables.of(H100, 0) is not second
