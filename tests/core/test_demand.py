"""What a Demand accepts, keeps and refuses, and FGD's published values."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from _core import FGD, FITS, Demand, fit, score, seat
from tests.core.builders import ask, demand
from tests.core.test_fit import node

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "fgd_oracle.json").read_text(encoding="utf-8")
)
NOWHERE = 10**9
"""Cores that no node has: how a class of another GPU model looks to a node."""


def fgd(typical: list[dict[str, Any]], model: str) -> Demand:
    return demand(
        *(
            (
                pod["cpu_milli"] if pod["gpu_spec"] in ("", model) else NOWHERE,
                pod["num_gpu"],
                pod["gpu_milli"] / 1000 or 1.0,
                pod["p"],
                0.0,
            )
            for pod in typical
        ),
        kind=FGD,
    )


def gradient(cpu_left: int, gpu_left: list[int], mix: Demand, pod: dict[str, Any]) -> tuple[int, int]:
    """Score and card of a pod of one GPU on a node of which this is left, shared by the thousandth."""
    cards = len(gpu_left)
    used = [[1000 - left for left in gpu_left]]
    table = node(
        cards=cards,
        replicas=1000,
        memory=1000,
        cpu=cpu_left,
        memory_used=used,
        shares=[[u > 0 for u in used[0]]],
    )
    asking = ask(shares=1, memory=pod["gpu_milli"], cpu=pod["cpu_milli"])
    rows = np.zeros(1, np.int32)
    codes = fit(table, rows, asking)
    assert codes.tolist() == [FITS]
    return int(score(table, rows, codes, asking, mix)[0]), int(seat(table, 0, asking, mix)[1][0])


def lost(cpu_left: int, gpu_left: list[int], mix: Demand) -> float:
    """F in thousandths of a GPU, by what a pod changes that takes all cores of a node and no card: all is lost then."""
    parts = np.array(gpu_left) / 1000
    everything = parts.sum() * mix.often.sum()
    table = node(
        cards=len(parts),
        replicas=1000,
        memory=10**6,
        cpu=max(cpu_left, 1),
        cpu_used=0 if cpu_left else 1,
        memory_used=[np.round(10**6 * (1 - parts))],
        shares=[parts < 1],
    )
    asking = ask(cpu=10**9)
    raw = Demand(0, 1e9, mix.cpu, mix.gpus, mix.share, mix.often, mix.weight)
    rows = np.zeros(1, np.int32)
    change = float(score(table, rows, fit(table, rows, asking), asking, raw)[0])
    return 1000 * (float(everything) + change)


@pytest.mark.parametrize("case", ORACLE["upstream_tests"])
def test_fragments_are_those_of_the_published_tests(case: dict[str, Any]) -> None:
    name, _, only = case["list"].partition("[0]")
    typical = ORACLE["typical_pod_lists"][name][: 1 if only else None]
    found = lost(case["cpu_left"], case["gpu_left"], fgd(typical, case["model"]))
    assert found == pytest.approx(case["expected_F"], abs=case["tolerance"])


@pytest.mark.parametrize("case", ORACLE["hand_made"]["F"])
def test_fragments_are_those_that_are_worked_out_by_hand(case: dict[str, Any]) -> None:
    mix = fgd(ORACLE["hand_made"]["typical_pods"], case["model"])
    assert lost(case["cpu_left"], case["gpu_left"], mix) == pytest.approx(case["F"], abs=0.01)


def test_the_published_score_and_its_card() -> None:
    first, second = ORACLE["hand_made"]["placement"]
    mix = fgd(ORACLE["hand_made"]["typical_pods"], "T4")
    found = gradient(first["node"]["cpu_left"], first["node"]["gpu_left"], mix, first["pod"])
    assert found == (second["score"], second["gpu"])
    alone = gradient(first["node"]["cpu_left"] - 0, [1000, 0], mix, first["pod"])
    # The same pod with the half card gone: F rises from 200 less the half's part; the score is its sigmoid.
    before, after = lost(32_000, [1000, 0], mix), lost(30_000, [500, 0], mix)
    assert alone == (int(100 / (1 + math.exp((after - before) / 1000))), 0)


def test_a_demand_keeps_copies_that_cannot_be_written() -> None:
    mix = demand((4_000, 1, 0.5, 1.0, 0.25))
    for array in (mix.cpu, mix.gpus, mix.share, mix.often, mix.weight):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert (mix.classes, mix.cores) == (1, 0.01)


@pytest.mark.parametrize(
    ("classes", "kind", "cores", "words"),
    [
        ([], 5, 1.0, "kind must be from 0 to 4, not 5"),
        ([], 0, 0.0, "cores must be a number above 0, not 0.0"),
        ([], 0, math.nan, "cores must be a number above 0, not nan"),
        ([(-1, 1, 1.0, 1.0, 1.0)], 0, 1.0, "Class 0 asks for -1 thousandths of a core and 1 cards"),
        ([(1, 1, 0.0, 1.0, 1.0)], 0, 1.0, r"share\[0\] must be above 0"),
        ([(1, 1, math.nan, 1.0, 1.0)], 0, 1.0, r"share\[0\] must be above 0"),
        ([(1, 1, 1.0, -1.0, 1.0)], 0, 1.0, r"often\[0\] must be a number of at least 0, not -1"),
        ([(1, 1, 1.0, 1.0, math.inf)], 0, 1.0, r"weight\[0\] must be a number of at least 0, not inf"),
        ([(1, 1, 1.0, 1.0, 1.0)] * 129, 0, 1.0, "at most 128 classes, not 129"),
    ],
)
def test_a_demand_that_cannot_be_is_refused(
    classes: list[tuple[int, int, float, float, float]], kind: int, cores: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        demand(*classes, kind=kind, cores=cores)
