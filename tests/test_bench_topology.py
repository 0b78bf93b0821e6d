"""`bench topology`: its goals are met, and would not be by the policies that it compares with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report
from bench.cases import topology as case


def play(policy: str, kind: str, seed: int = 0) -> case._Outcome:
    outcome = case._Outcome()
    case._play(case._kinds()[kind].sets, case.POLICIES[policy], seed, outcome)
    return outcome


def test_every_goal_is_met() -> None:
    measurements = case.run(lambda line: None, seeds=1)
    assert report.missed(measurements) == []
    assert sum(each.met is True for each in measurements) == 4


@pytest.mark.parametrize("rival", case.RIVALS)
def test_the_goal_is_missed_by_every_policy_that_it_compares_with(rival: str) -> None:
    outcomes = {policy: [play(policy, "dgx1_v100_8gpu_cube_mesh")] for policy in case.RIVALS}
    best = max(outcomes, key=lambda policy: case._mean(outcomes[policy]))
    found = case._compared({**outcomes, case.OURS: outcomes[rival]})
    assert bool(report.missed(found)) == (rival != best)
    ours = [play(case.OURS, "dgx1_v100_8gpu_cube_mesh")]
    assert case._mean(ours) > case._mean(outcomes[best]) + 0.05


def test_all_policies_see_the_same_jobs() -> None:
    outcomes = [play(policy, "pcie_8gpu_two_switches_pix") for policy in case.POLICIES]
    assert {len(outcome.ratios) + outcome.turned_away for outcome in outcomes} == {134}
    assert all(0 < ratio <= 1 for outcome in outcomes for ratio in outcome.ratios)


def test_what_is_turned_away_is_counted() -> None:
    outcome = play("first fit", "mixed_5gpu_phb")
    assert outcome.turned_away > 10


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    outcomes = {policy: [play(policy, "dgx1_v100_8gpu_cube_mesh")] for policy in case.POLICIES}
    case._plot(tmp_path / f"topology.{ending}", ["dgx1_v100_8gpu_cube_mesh"], outcomes)
    assert (tmp_path / f"topology.{ending}").stat().st_size > 5_000
