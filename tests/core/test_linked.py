"""Whole cards and the links between them: what a row promises, what a pod can require, which cards it gets."""

from typing import Any

import numpy as np
import pytest

from _core import (
    FITS,
    LINKS_TAKEN,
    LINKS_TOO_SLOW,
    LINKS_UNKNOWN,
    TAKEN,
    Allocator,
    Ask,
    Hardware,
    Sets,
    Table,
    score,
    seat,
)
from tests.core.builders import ask, demand
from tests.core.test_fit import code, node

PAIRS = np.full((4, 4), 10, np.int32)
PAIRS[0, 2] = PAIRS[2, 0] = PAIRS[1, 3] = PAIRS[3, 1] = 100
"""GPUs 0 and 2, and 1 and 3, have a bridge."""
BRIDGED = np.array([mask & ~0b0101 == 0 or mask & ~0b1010 == 0 for mask in range(16)])


def linked(**cells: Any) -> Table:
    offers = np.zeros((1, 17), np.int32)
    offers[0, 2] = 100
    hardware = Hardware(
        slices=(),
        profiles=np.zeros((0, 3), np.int32),
        units=np.zeros(0, np.int32),
        links=[Sets(PAIRS, np.zeros_like(PAIRS), Allocator(PAIRS), BRIDGED)],
        offers=offers,
        parts=np.zeros(3, np.int32),
    )
    return node(**{"cards": 4, "hardware": hardware, "topology": 0, **cells})


def held(*cards: int) -> dict[str, Any]:
    return {"exclusive": [[int(card in cards) for card in range(4)]], "used": [[len(cards), 0, 0]]}


@pytest.mark.parametrize(
    ("table", "pod", "expected"),
    [
        pytest.param(linked(), ask(whole=2, bandwidth=100), FITS, id="as fast as required"),
        pytest.param(linked(), ask(whole=2, bandwidth=101), LINKS_TOO_SLOW, id="never as fast"),
        pytest.param(linked(), ask(whole=2, nvlink=True), FITS, id="a bridge"),
        pytest.param(linked(), ask(whole=3, nvlink=True), LINKS_TOO_SLOW, id="no bridge joins three"),
        pytest.param(
            linked(**held(0, 1)), ask(whole=2, bandwidth=100), LINKS_TAKEN, id="both bridges broken"
        ),
        pytest.param(linked(**held(0)), ask(whole=2, bandwidth=100), FITS, id="one bridge left"),
        pytest.param(linked(**held(0, 1, 2)), ask(whole=2, nvlink=True), TAKEN, id="too few left at all"),
        pytest.param(
            linked(**held(0)), ask(whole=1, bandwidth=500), FITS, id="one card has no links to need"
        ),
        pytest.param(linked(topology=-1), ask(whole=2, nvlink=True), LINKS_UNKNOWN, id="not told"),
        pytest.param(linked(topology=7), ask(whole=2, nvlink=True), LINKS_UNKNOWN, id="no such kind"),
        pytest.param(linked(cards=3), ask(whole=2, nvlink=True), LINKS_UNKNOWN, id="told of other cards"),
        pytest.param(
            linked(opaque=1, used=[[1, 0, 0]]),
            ask(whole=2, nvlink=True),
            LINKS_TAKEN,
            id="a card is held, who knows",
        ),
    ],
)
def test_what_a_pod_requires_of_links(table: Table, pod: Ask, expected: int) -> None:
    assert code(table, pod) == expected


def test_the_cards_are_those_that_the_plugin_hands_out() -> None:
    assert seat(linked(), 0, ask(whole=2), demand())[0].tolist() == [0, 2]
    assert seat(linked(**held(0)), 0, ask(whole=2), demand())[0].tolist() == [1, 3]
    assert seat(linked(topology=-1), 0, ask(whole=2), demand())[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("table", "pod", "worth"),
    [
        # A whole pair goes, of two: half of all that pairs and fours are worth is left of the pairs, nothing of fours.
        pytest.param(linked(), ask(whole=2), 0.0 - (0.5 + 1.0) / 2, id="a pair goes"),
        pytest.param(linked(**held(0, 2)), ask(whole=2), 0.0 - 0.5 / 2, id="the pair that was left goes"),
        pytest.param(
            linked(**held(0)), ask(whole=1), -0.45 / 2, id="the plugin breaks the bridge that is left"
        ),
        pytest.param(linked(topology=-1), ask(whole=2), -2.0, id="nothing is promised"),
        pytest.param(linked(topology=-1), ask(whole=1), 0.0, id="nor needed"),
        pytest.param(linked(), ask(shares=0), 0.0, id="no card at all"),
    ],
)
def test_links_are_worth_what_the_job_gets_less_what_the_rest_loses(
    table: Table, pod: Ask, worth: float
) -> None:
    rows, codes = np.zeros(1, np.int32), np.zeros(1, np.int8)
    mix: dict[str, Any] = {"fragmentation": 0.0, "mig": 0.0}
    assert score(table, rows, codes, pod, demand(**mix)).tolist() == pytest.approx([worth])
    assert score(table, rows, codes, pod, demand(topology=0.0, **mix)).tolist() == [0.0]
