"""The short form of `bench mig`: the same play with fewer requests, and bounds that best fit itself would miss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import instances, pool
from bench.cases import mig
from bench.report import missed

SEEDS = (101, 102)


def test_fewer_slices_are_lost_than_under_best_fit() -> None:
    churned = mig.churn(SEEDS, count=12_000)
    assert float(mig.difference(churned).mean()) < -0.8
    for mix in pool.MIXES:
        assert float(mig.difference(churned, mix).mean()) < 0.4, mix
    # A demand that is known from the beginning is worth little more than one that is learned.
    gap = np.mean([churned[mix]["kvitej"] - churned[mix]["kvitej, demand known"] for mix in pool.MIXES])
    assert abs(gap) < 0.3
    assert np.mean([churned[mix]["best fit"] - churned[mix]["first fit"] for mix in pool.MIXES]) < -0.5


def test_a_fill_loses_no_more_than_under_best_fit() -> None:
    filled = mig.fills(SEEDS, each=20)
    assert float(mig.difference(filled).mean()) < 0.01
    for mix in pool.MIXES:
        assert float(mig.difference(filled, mix).mean()) < 0.2, mix


@pytest.mark.parametrize(
    ("mix", "best_fit", "first_fit", "w"), [("large", 11.54, 13.28, 9.64), ("mid", 10.65, 11.73, 9.42)]
)
def test_the_pool_loses_what_was_found_before(mix: str, best_fit: float, first_fit: float, w: float) -> None:
    # Expected: 20 seeds of an independent simulation of the same model.
    policies = ("best fit", "first fit", "kvitej, demand known")
    played = [pool.requests(mix, seed, 40_000, 1.0) for seed in range(1, 7)]
    found = [
        np.mean([pool.lost(each, pool.POLICIES[name](each), pool.WARM_UP) for each in played])
        for name in policies
    ]
    assert found == pytest.approx([best_fit, first_fit, w], abs=0.5)


def test_no_card_is_ever_given_out_twice() -> None:
    played = pool.requests("dbl", 7, 3_000, 1.2)
    for name, policy in pool.POLICIES.items():
        chosen = policy(played)
        held: dict[int, list[int]] = {}
        for event in played.events.tolist():
            request = event if event >= 0 else -1 - event
            card = int(chosen[request])
            if card < 0:
                continue
            on = held.setdefault(card, [])
            if event >= 0:
                on.append(request)
                assert sum(pool.GEOMETRY.profiles[played.profiles[each]].size for each in on) <= 8, name
                assert sum(pool.COMPUTE[played.profiles[each]] for each in on) <= 7, name
            else:
                on.remove(request)


def test_instances_that_exist_are_lost_alike_but_ours_keeps_more_nodes_empty() -> None:
    found = {name: instances.play("large", 3, 3_000, 0.5, score) for name, score in instances.SCORES.items()}
    assert len({lost for lost, _ in found.values()}) == 1
    empty = {name: nodes for name, (_, nodes) in found.items()}
    assert empty["kvitej"] > empty["first fit"] > empty["fewest of the profile left"]


def test_the_bench_reports_every_goal_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said: list[str] = []
    found = mig.run(said.append, seeds=1, plot=tmp_path / "lost.svg", count=2_000, each=2, static=1_500)
    assert (tmp_path / "lost.svg").read_text().startswith("<?xml")
    assert [each.goal for each in found if each.goal][:4] == ["≤ -1", "≤ 0.25", "≤ 0", "≤ 0.15"]
    assert any("lost.svg" in line for line in said)


def test_best_fit_in_our_place_would_miss_the_goals() -> None:
    churned = mig.churn((101,), count=4_000)
    swapped = {mix: {**found, "kvitej": found["best fit"]} for mix, found in churned.items()}
    judged = mig.differences("", swapped, at_most=-mig.LESS_ON_THE_MEAN, worst=mig.MORE_ON_THE_WORST)
    assert any("mean of the mixes" in line for line in missed(judged))
