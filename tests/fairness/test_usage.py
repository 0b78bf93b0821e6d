"""Decayed use against worked numbers and its closed form, over restarts, and under clocks that jump."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.fairness.usage import Running, Saved, Usage, saved_in, timestamp, wall_of
from extender.wire.policy import PolicyStatus, TenantStatus

ORACLES: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "fairness_oracles.json").read_text(encoding="utf-8")
)
DAY = 86_400.0
CAPACITY = 512.0


def holding(units: float, half_life: float = DAY, used: float = 0.0) -> Usage:
    usage = Usage.restored({"ml": half_life}, Saved(0, {"ml": used}), [], wall=0, now=0)
    usage.charge("ml", units, 0)
    return usage


@pytest.mark.parametrize("case", ORACLES["half_life"]["exact"])
def test_idle_use_halves_as_in_the_oracle(case: dict[str, Any]) -> None:
    usage = holding(0, case["half_life_s"], case["usage0"])
    assert usage.of("ml", case["dt_s"]) == pytest.approx(case["usage"], abs=1e-6)


def test_constant_use_is_approached_as_in_the_oracle() -> None:
    case = ORACLES["kueue_afs"]["sequence"]
    usage = holding(case["constant_gpus"], case["half_life_s"])
    for step, expected in enumerate(case["usage_after_n"], 1):
        assert usage.of("ml", step * case["sampling_s"]) == pytest.approx(expected, abs=1e-9)
    assert usage.of("ml", case["half_life_s"]) == pytest.approx(case["usage_after_one_half_life"], abs=1e-12)


def test_changing_use_is_followed_as_in_the_oracle() -> None:
    usage = holding(0, 600)
    for step in ORACLES["kueue_afs"]["half_life_10min_sampling_60s"]["trace"]:
        usage.charge("ml", step["current"], step["t_s"] - 60)
        assert usage.of("ml", step["t_s"]) == pytest.approx(step["usage"], abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, CAPACITY)), max_size=200),
    st.floats(60, 1e7),
    st.floats(0, CAPACITY),
)
def test_decay_is_exact_whatever_the_steps(
    steps: list[tuple[float, float]], half_life: float, used: float
) -> None:
    usage, now, terms = holding(0, half_life, used), 0.0, [(0.0, used)]
    current = 0.0
    for length, units in steps:
        usage.charge("ml", units, now)
        terms.append((now, units - current))
        current, now = units, now + length
        usage.charge("ml", units, now - length / 3)
    # Each change of use counts for the part of it that the time since then has brought in.
    exact = used * 0.5 ** (now / half_life) + math.fsum(
        change * -math.expm1(-math.log(2) * (now - at) / half_life) for at, change in terms[1:]
    )
    assert usage.of("ml", now) == pytest.approx(exact, abs=1e-9)
    assert -1e-9 <= usage.of("ml", now) <= CAPACITY + 1e-9


def test_a_hundred_thousand_small_steps_are_one_large_step() -> None:
    usage = holding(8)
    for step in range(100_000):
        usage.charge("ml", 8, step * 0.864)
    assert usage.of("ml", DAY) == pytest.approx(4, abs=1e-9)


@given(st.lists(st.floats(-DAY, DAY), max_size=20), st.floats(0, 64), st.floats(0, 64))
def test_a_clock_that_steps_back_changes_nothing(jumps: list[float], units: float, used: float) -> None:
    usage, latest, now = holding(units, used=used), 0.0, 0.0
    for jump in jumps:
        now += jump
        latest = max(latest, now)
        usage.charge("ml", units, now)
        assert usage.of("ml", now) == usage.of("ml", latest)
    assert usage.of("ml", latest) == pytest.approx(holding(units, used=used).of("ml", latest), abs=1e-9)


def test_a_new_half_life_holds_from_the_edit_on() -> None:
    usage = holding(0, 100, used=8)
    usage.follow({"ml": 50, "web": 10}, 100)
    assert usage.of("ml", 100) == pytest.approx(4)
    assert usage.of("ml", 150) == pytest.approx(2)
    assert usage.of("web", 150) == 0
    usage.follow({"web": 10}, 150)
    usage.follow({"ml": 50}, 150)
    assert usage.of("ml", 150) == 0


pods = st.lists(st.tuples(st.floats(-2 * DAY, DAY), st.floats(0.01, 2 * DAY), st.floats(0.1, 8)), max_size=12)


@given(pods, st.floats(600, 7 * DAY), st.floats(0, DAY))
def test_a_gap_is_made_up_for_exactly_when_no_pod_ended_in_it(
    pods: list[tuple[float, float, float]], half_life: float, gap: float
) -> None:
    """Pods that bound before the gap or in it, and live on; wall time 0 is where the gap begins."""
    alive = [(min(bound, gap), units) for bound, _, units in pods]
    straight = Usage({"ml": half_life}, -2 * DAY)
    saved = Saved(0, {})
    for bound in sorted((*(at for at, _ in alive), 0.0)):
        if bound > 0:
            break
        straight.charge("ml", sum(held for at, held in alive if at <= bound), bound)
        saved = straight.save(wall=0, now=0)
    for bound, _ in sorted(alive):
        if bound > 0:
            straight.charge("ml", sum(held for at, held in alive if at <= bound), bound)
    running = [Running("ml", units, bound) for bound, units in alive]
    restored = Usage.restored({"ml": half_life}, saved, running, wall=gap, now=1_000)
    for later in (0.0, 1_000.0):
        assert restored.of("ml", 1_000 + later) == pytest.approx(straight.of("ml", gap + later), abs=1e-9)
    anew = Usage.restored({"ml": half_life}, None, running, wall=gap, now=0)
    assert anew.of("ml", 0) == pytest.approx(straight.of("ml", gap), abs=1e-9)


@given(pods, st.floats(600, 7 * DAY), st.floats(0, 30))
def test_after_a_kill_use_is_off_by_no_more_than_the_gap_allows(
    pods: list[tuple[float, float, float]], half_life: float, gap: float
) -> None:
    """Saved at wall time 0, killed and back `gap` later; in between pods came and went unseen."""
    capacity = sum(units for _, _, units in pods)
    model = Usage({"ml": half_life}, -2 * DAY)
    moments = sorted({moment for bound, length, _ in pods for moment in (bound, bound + length)} | {0.0})

    def held(now: float) -> float:
        return sum(units for bound, length, units in pods if bound <= now < bound + length)

    saved = Saved(0, {})
    for moment in moments:
        if moment > gap:
            break
        model.charge("ml", held(moment), moment)
        if moment == 0:
            saved = model.save(wall=0, now=0)
    running = [Running("ml", units, bound) for bound, length, units in pods if bound <= gap < bound + length]
    restored = Usage.restored({"ml": half_life}, saved, running, wall=gap, now=0)
    off = abs(restored.of("ml", 0) - model.of("ml", gap))
    assert off <= capacity * (1 - 0.5 ** (gap / half_life)) + 1e-9


def test_wall_time_that_stepped_back_over_a_restart_neither_forgives_nor_charges() -> None:
    running = [Running("ml", 8, since=900), Running("ml", 4, since=5_000)]
    back = Usage.restored({"ml": 100}, Saved(1_000, {"ml": 50}), running, wall=400, now=0)
    assert back.of("ml", 0) == 50
    assert back.of("ml", 100) == pytest.approx((50 + 12) / 2)


def test_use_is_saved_in_the_status_and_read_from_it_to_the_last_bit() -> None:
    usage = holding(8)
    saved = usage.save(wall=1_767_225_600.25, now=1_000)
    status = PolicyStatus(
        decayed_at=timestamp(saved.at),
        tenants=[TenantStatus(name, decayed_use=used) for name, used in saved.used.items()],
    )
    assert status.decayed_at == "2026-01-01T00:00:00.250000Z"
    assert saved_in(msgspec.json.decode(msgspec.json.encode(status), type=PolicyStatus)) == saved
    assert saved_in(None) is saved_in(PolicyStatus()) is None


@given(st.floats(0, 4e9))
def test_times_survive_to_the_microsecond(wall: float) -> None:
    assert wall_of(timestamp(wall)) == pytest.approx(wall, abs=1e-6)


@pytest.mark.parametrize("text", ["", "now", "2026-01-01", "2026-01-01T00:00:00", "1767225600"])
def test_a_time_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no time as the API server writes it"):
        saved_in(PolicyStatus(decayed_at=text))


@pytest.mark.parametrize("used", [-1.0, math.inf, math.nan])
def test_an_amount_that_cannot_be_is_told(used: float) -> None:
    status = PolicyStatus(decayed_at="2026-01-01T00:00:00Z", tenants=[TenantStatus("ml", decayed_use=used)])
    with pytest.raises(ValueError, match=r"status\.tenants\[ml\]\.decayedUse is"):
        saved_in(status)
