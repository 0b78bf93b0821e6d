"""What can be on a card together, against an enumeration made elsewhere, and geometries that no card can have."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.geometry import geometries
from extender.cluster.mig import Geometry, GeometryError, Profile

STATES: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data/mig/states.json").read_text())
ENUMERATED = [name for name in STATES if not name.startswith("_")]
PLACED = [geometry for geometry in geometries().values() if geometry.units]

Placed = frozenset[tuple[int, int]]


def named(geometry: Geometry, name: str) -> int:
    return next(i for i, profile in enumerate(geometry.profiles) if name in profile.names)


def reachable(geometry: Geometry, profiles: Iterable[int]) -> tuple[set[Placed], set[Placed]]:
    """All sets of (profile, start) that creation after creation leads to, and those to which nothing can be added."""
    found: set[Placed] = {frozenset()}
    full: set[Placed] = set()
    todo: list[Placed] = [frozenset()]
    while todo:
        state = todo.pop()
        occupancy = geometry.occupancy(state)
        more = [state | {(p, start)} for p in profiles for start in geometry.free_starts(occupancy, p)]
        if not more:
            full.add(state)
        todo += set(more) - found
        found |= set(more)
    return found, full


@pytest.mark.parametrize("name", ENUMERATED)
def test_the_states_of_a_card_are_those_of_the_enumeration(name: str) -> None:
    expected = STATES[name]
    geometry = geometries()[expected["model"]]
    found, full = reachable(geometry, [named(geometry, profile) for profile in expected["profiles"]])

    def label(state: Placed) -> tuple[str, ...]:
        return tuple(sorted(geometry.profiles[profile].names[0] for profile, _ in state))

    assert len(found) == expected["placement_sets_including_empty"]
    assert len({label(state) for state in found}) == expected["distinct_multisets"]
    assert len(full) == expected["maximal_placement_sets"]
    maximal = Counter(label(state) for state in full)
    assert len(maximal) == expected["maximal_multisets"]
    assert maximal == {tuple(sorted(each["multiset"])): each["ways"] for each in expected["maximal"]}
    if "multiset_ways" in expected:
        ways = {tuple(sorted(each["multiset"])): each["ways"] for each in expected["multiset_ways"]}
        assert Counter(map(label, found)) == ways
    if "maximal_placements" in expected:
        assert full == {
            frozenset((named(geometry, each["profile"]), each["start"]) for each in placed)
            for placed in expected["maximal_placements"]
        }


@pytest.mark.parametrize("geometry", PLACED, ids=lambda geometry: geometry.model)
def test_a_card_holds_as_many_of_one_profile_as_the_table_says(geometry: Geometry) -> None:
    for index, profile in enumerate(geometry.profiles):
        states, _ = reachable(geometry, [index])
        assert max(map(len, states)) == profile.most, profile.names


def test_the_media_engines_go_to_one_instance_of_a_card() -> None:
    card = geometries()["RTX-PRO-6000-Blackwell-96GB"]
    taken = card.occupancy([(named(card, "1g.24gb+me"), 0)])
    assert card.free_starts(taken, named(card, "1g.24gb+me")) == []
    assert card.free_starts(taken, named(card, "2g.48gb+me.all")) == []
    assert card.free_starts(taken, named(card, "1g.24gb-me")) == [3, 6, 9]


def test_one_instance_at_each_of_0_1_and_5_leaves_no_place_for_three_slices_or_four() -> None:
    card = geometries()["H100-80GB"]
    taken = card.occupancy([(named(card, "1g.10gb"), start) for start in (0, 1, 5)])
    assert card.free_starts(taken, named(card, "3g.40gb")) == []
    assert card.free_starts(taken, named(card, "4g.40gb")) == []
    assert card.free_starts(taken, named(card, "2g.20gb")) == [2]


def test_two_of_three_slices_leave_no_place_although_a_compute_slice_is_free() -> None:
    card = geometries()["A100-40GB"]
    taken = card.occupancy([(named(card, "3g.20gb"), 0), (named(card, "3g.20gb"), 4)])
    assert [card.free_starts(taken, profile) for profile in range(len(card.profiles))] == [[]] * 7


def test_a_model_without_known_placements_is_counted_by_resource_only() -> None:
    unknown = {model for model, geometry in geometries().items() if not geometry.units}
    assert unknown == {"RTX-PRO-5000-Blackwell-48GB", "RTX-PRO-4500-Blackwell-32GB"}
    for model in unknown:
        assert geometries()[model].free_starts(0, 0) == []


@pytest.mark.parametrize(
    ("instances", "sentence"),
    [
        ([(0, 0), (0, 0)], "1g.10gb at start 0 of H100-80GB overlaps another instance of the card."),
        ([(4, 4), (3, 4)], "2g.20gb at start 4 of H100-80GB overlaps another instance of the card."),
        ([(1, 0), (1, 3)], "1g.10gb+me at start 3 of H100-80GB overlaps"),
        ([(4, 2)], "H100-80GB has no 3g.40gb at start 2; report what is on the card."),
        ([(0, 7)], "has no 1g.10gb at start 7"),
        ([(0, -1)], "has no 1g.10gb at start -1"),
        ([(7, 0)], "has no profile 7 at start 0"),
        ([(-1, 0)], "has no profile -1 at start 0"),
    ],
)
def test_instances_that_cannot_be_on_a_card_are_refused(
    instances: list[tuple[int, int]], sentence: str
) -> None:
    with pytest.raises(GeometryError) as refused:
        geometries()["H100-80GB"].occupancy(instances)
    assert sentence in str(refused.value)


ONE = Profile(id=19, names=("1g.5gb",), compute=1, size=1, starts=(0, 1, 2), most=3)
ALL = Profile(id=0, names=("3g.20gb",), compute=3, size=4, starts=(0,), most=1)


def geometry(**changed: Any) -> Geometry:
    return Geometry("New GPU", 3, 4, (dataclasses.replace(ONE, **changed), ALL))


def test_a_reported_geometry_is_like_any_other() -> None:
    card = geometry()
    assert card.bits == 4
    assert len(reachable(card, [0, 1])[0]) == 8 + 1
    assert geometry(most=1).bits == 5


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"size": 0}, "1g.5gb takes 0 units; at least 1 is needed."),
        ({"size": -1}, "1g.5gb takes -1 units"),
        ({"size": 5}, "1g.5gb takes 5 units from 0 on, but the card has units 0 to 3."),
        ({"starts": (4,)}, "1g.5gb takes 1 units from 4 on, but the card has units 0 to 3."),
        ({"starts": (-1,)}, "1g.5gb takes 1 units from -1 on"),
        ({"starts": (2**70,)}, f"1g.5gb takes 1 units from {2**70} on"),
        ({"starts": ()}, "1g.5gb has no start; list where it can be placed."),
        ({"compute": 0}, "1g.5gb takes 0 compute slices, but the card has 1 to 3 to give."),
        ({"compute": -1}, "1g.5gb takes -1 compute slices"),
        ({"compute": 4}, "1g.5gb takes 4 compute slices"),
        ({"compute": 2}, "disjoint placements come to 6 compute slices, but the card has 3."),
        ({"most": 0}, "a card holds 0 of 1g.5gb; at least 1 is needed."),
        ({"most": 2}, "at most 2 of 1g.5gb where 3 have room; only a limit of 1 can be followed."),
        ({"id": 0}, "two profiles have the profile id 0."),
        ({"names": ("3g.20gb",)}, "two profiles have the name 3g.20gb."),
        ({"names": ()}, "'' is no profile name such as 1g.10gb or 1g.10gb+me."),
        ({"names": ("1g.5gb\n",)}, r"'1g.5gb\n' is no profile name"),
        ({"names": ("../../gpu",)}, "'../../gpu' is no profile name"),
        ({"names": ("1g.5gb+" + "x" * 99,)}, "is no profile name"),
    ],
)
def test_an_impossible_profile_gives_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GeometryError) as refused:
        geometry(**changed)
    assert str(refused.value).startswith("The MIG geometry of 'New GPU': ")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("compute", "units", "profiles", "sentence"),
    [
        (3, 17, (ONE,), "17 placement units, but a card has from 1 to 16."),
        (3, -1, (ONE,), "-1 placement units"),
        (0, 4, (ONE,), "0 compute slices, but a card has from 1 to 16."),
        (3, 4, (), "0 profiles, but a card has from 1 to 64."),
        (3, 4, (ONE,) * 65, "65 profiles"),
        (3, 0, (ONE,), "1g.5gb has placements, but the card has no placement units."),
        (
            3,
            16,
            (dataclasses.replace(ONE, most=1),),
            "16 units and 1 limits of one are more than 16 together.",
        ),
    ],
)
def test_an_impossible_card_gives_a_sentence(
    compute: int, units: int, profiles: tuple[Profile, ...], sentence: str
) -> None:
    with pytest.raises(GeometryError) as refused:
        Geometry("New GPU", compute, units, profiles)
    assert sentence in str(refused.value)
