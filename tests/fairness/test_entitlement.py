"""Entitlements against worked numbers, against their definition, and what must hold of all of them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.fairness.entitlement import (
    Want,
    drift,
    effective_weights,
    fairness_score,
    fill,
    jain,
    largest_remainder,
    whole_shares,
)

ORACLES: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "fairness_oracles.json").read_text(encoding="utf-8")
)
CASES = ORACLES["water_filling"]["cases"]

amounts = st.integers(0, 64) | st.floats(0, 64)
wants = st.lists(
    st.builds(Want, st.integers(1, 9) | st.floats(0.01, 100), amounts, amounts | st.just(math.inf), amounts),
    min_size=1,
    max_size=8,
)
capacities = st.integers(0, 128) | st.floats(0, 128)


def floor_of(want: Want) -> float:
    return min(want.least, want.most, want.demand)


def cap_of(want: Want) -> float:
    return min(want.most, want.demand)


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
@pytest.mark.parametrize("number", [Fraction, float])
def test_filling_is_exactly_that_of_the_oracle(case: dict[str, Any], number: Any) -> None:
    entities = [
        Want(
            number(each["w"]),
            number(each["min"]),
            math.inf if each["max"] is None else number(each["max"]),
            number(each["demand"]),
        )
        for each in case["entities"]
    ]
    filling = fill(number(case["capacity"]), entities)
    if case["x"] is None:
        assert filling.short == sum(each["min"] for each in case["entities"]) - case["capacity"]
        return
    assert filling.short == 0
    expected = [Fraction(share) for share in case["x"]]
    level = None if case["level"] is None else Fraction(case["level"])
    if number is Fraction:
        assert list(filling.shares) == expected
        assert filling.level == level
    else:
        assert filling.shares == pytest.approx([float(share) for share in expected], rel=1e-15)


@given(capacities, wants)
def test_every_share_is_its_weight_at_one_level_within_its_bounds(capacity: float, wants: list[Want]) -> None:
    filling = fill(capacity, wants)
    near = 1e-9 * max(capacity, 1)
    assert sum(filling.shares) == pytest.approx(min(capacity, sum(map(cap_of, wants))), abs=near)
    for want, share in zip(wants, filling.shares, strict=True):
        assert share <= cap_of(want)
        assert share >= floor_of(want) * (1 - 1e-9) or filling.short > 0
        if filling.level is not None:
            assert share == min(max(filling.level * want.weight, floor_of(want)), cap_of(want))


@given(capacities, wants)
def test_minima_beyond_the_capacity_are_told_and_cut_alike(capacity: float, wants: list[Want]) -> None:
    filling = fill(capacity, wants)
    promised = sum(map(floor_of, wants))
    if filling.short:
        assert filling.short == pytest.approx(promised - capacity)
        assert filling.shares == pytest.approx([floor_of(want) * capacity / promised for want in wants])
    else:
        assert promised <= capacity * (1 + 1e-9)


@given(capacities, wants, st.floats(0, 64))
def test_more_capacity_takes_from_nobody(capacity: float, wants: list[Want], more: float) -> None:
    before, after = fill(capacity, wants), fill(capacity + more, wants)
    for one, other in zip(before.shares, after.shares, strict=True):
        assert other >= one - 1e-9


@given(capacities, wants, st.floats(0, 64), st.sampled_from(["weight", "least", "most", "demand"]))
def test_more_for_one_never_gives_less_to_it_or_more_to_others(
    capacity: float, wants: list[Want], more: float, field: str
) -> None:
    first, *rest = wants
    raised = first._replace(**{field: getattr(first, field) + more})
    before, after = fill(capacity, wants).shares, fill(capacity, [raised, *rest]).shares
    assert after[0] >= before[0] - 1e-9
    assert all(other <= one + 1e-9 for one, other in zip(before[1:], after[1:], strict=True))


def test_the_three_tenants_share_a_full_cluster_as_promised() -> None:
    busy = [
        Want(weight, least * 512, most * 512, 2_000)
        for weight, least, most in ((40, 0.2, 0.6), (50, 0.4, 0.8), (10, 0.05, 0.25))
    ]
    assert fill(512, busy).shares == pytest.approx([204.8, 256, 51.2])
    assert whole_shares(512, busy, fill(512, busy)) == [205, 256, 51]
    idle = [busy[0], busy[1]._replace(demand=0), busy[2]]
    assert fill(512, idle).shares == pytest.approx([307.2, 0, 128])


WORKED = [  # capacity, weights, used, strength, effective weights
    (100, [40, 50, 10], [40, 50, 10], 1, [40, 50, 10]),
    (100, [40, 50, 10], [0, 0, 0], 1, [80, 100, 20]),
    (100, [40, 50, 10], [80, 25, 10], 1, [20, 50 * 2**0.5, 10]),
    (100, [40, 50, 10], [60, 75, 15], 1, [40 / 2**0.5, 50 / 2**0.5, 10 / 2**0.5]),
    (100, [40, 50, 10], [100, 0, 1_000], 1, [20, 100, 5]),
    (100, [40, 50, 10], [100, 0, 1_000], 0, [40, 50, 10]),
    (100, [40, 50, 10], [100, 0, 1_000], 2, [40 / 2**1.5, 100, 2.5]),
    (64, [1, 3], [8, 60], 0.5, [2**0.5, 3 * 2**-0.25]),
    (0, [1, 3], [8, 0], 1, [1, 3]),
]


@pytest.mark.parametrize(("capacity", "weights", "used", "strength", "expected"), WORKED)
def test_effective_weights_are_those_of_the_worked_table(
    capacity: float, weights: list[float], used: list[float], strength: float, expected: list[float]
) -> None:
    assert effective_weights(capacity, weights, used, strength) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 3))
def test_use_slows_a_tenant_but_within_bounds(less: float, more: float, strength: float) -> None:
    less, more = sorted((less, more))
    (one, _), (other, _) = (effective_weights(64, [3, 1], [used, 0], strength) for used in (less, more))
    assert 3 * 2**-strength * (1 - 1e-12) <= other <= one <= 3 * 2**strength * (1 + 1e-12)


@pytest.mark.parametrize("case", ORACLES["largest_remainder"]["cases"])
def test_largest_remainder_is_that_of_the_oracle(case: dict[str, Any]) -> None:
    assert largest_remainder(case["total"], case["weights"]) == case["shares"]


@given(capacities, wants)
def test_whole_shares_are_near_the_entitlements_and_keep_every_bound_that_can_be_kept(
    capacity: float, wants: list[Want]
) -> None:
    filling = fill(capacity, wants)
    shares = whole_shares(capacity, wants, filling)
    assert sum(shares) <= min(capacity, sum(filling.shares) + 1e-6)
    assert all(0 <= share <= cap_of(want) for share, want in zip(shares, wants, strict=True))
    promised = sum(math.ceil(min(want.least, want.demand)) for want in wants)
    if promised <= math.floor(capacity) and sum(filling.shares) >= promised:
        for share, want in zip(shares, wants, strict=True):
            assert share >= min(math.ceil(min(want.least, want.demand)), math.floor(cap_of(want)))


@pytest.mark.parametrize("case", ORACLES["jain"]["cases"])
def test_jain_is_that_of_the_oracle(case: dict[str, Any]) -> None:
    assert jain(case["x"]) == pytest.approx(case["J"], abs=1e-9)


@pytest.mark.parametrize(
    ("usage", "target", "score", "off"),
    [
        (10, 10, 1, 0),
        (12, 10, 1, 0.2),
        (8, 10, 1, -0.2),
        (14, 10, 0.75, 0.4),
        (4, 10, 0.5, -0.6),
        (0, 10, 0, -1),
        (20, 10, 0, 1),
        (50, 10, 0, 4),
        (0, 0, 1, 0),
        (1, 0, 0, math.inf),
    ],
)
def test_score_and_drift(usage: float, target: float, score: float, off: float) -> None:
    assert fairness_score(usage, target) == pytest.approx(score)
    assert drift(usage, target) == pytest.approx(off)
