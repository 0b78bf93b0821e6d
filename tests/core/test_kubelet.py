"""What agents report of cards: nothing goes where trouble is, and where the kubelet picks, each card must do."""

from typing import Any

import numpy as np
import pytest

from _core import (
    BEST_FIT,
    CONTENDED,
    D1,
    FITS,
    IS_OCCUPIED,
    IS_UNFIT,
    IS_WITHHELD,
    LACKING,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    OCCUPIED,
    STALE,
    TAKEN,
    UNHEALTHY,
    WATERMARK,
    Ask,
    Table,
    seat,
    slots,
)
from tests.core.builders import ask, demand
from tests.core.test_fit import GIB, code, node


def picked(**cells: Any) -> Table:
    """Two cards of 80 GiB, of which the kubelet picks."""
    return node(**{"choice": 1, **cells})


def shared(**cells: Any) -> Table:
    """The same in four replicas each: 20 GiB a share."""
    return picked(**{"replicas": 4, **cells})


SECOND_UNFIT, SECOND_OCCUPIED, SECOND_WITHHELD = (
    {"trouble": [[0, bit]]} for bit in (IS_UNFIT, IS_OCCUPIED, IS_WITHHELD)
)
FIRST_SHARED = {"shares": [[1, 0]], "memory_used": [[20 * GIB, 0]]}


@pytest.mark.parametrize(
    ("cells", "pod", "expected"),
    [
        pytest.param(SECOND_UNFIT, ask(whole=2), TAKEN, id="an unhealthy card is not free"),
        pytest.param(SECOND_OCCUPIED, ask(whole=2), TAKEN, id="nor one that others use"),
        pytest.param(SECOND_WITHHELD, ask(whole=2), TAKEN, id="nor one that is not given out"),
        pytest.param(SECOND_UNFIT, ask(whole=1), FITS, id="the other card is as free as ever"),
        pytest.param(SECOND_UNFIT, ask(shares=5), TAKEN, id="an unhealthy card takes no share"),
        pytest.param(SECOND_WITHHELD, ask(shares=5), TAKEN, id="nor does one that is not given out"),
        pytest.param(SECOND_UNFIT, ask(shares=4), FITS, id="the other card takes its four"),
        pytest.param(
            {**SECOND_OCCUPIED, **FIRST_SHARED, "shares": 1},
            ask(shares=6),
            FITS,
            id="a card that others use takes shares while it has memory",
        ),
        pytest.param(SECOND_OCCUPIED, ask(shares=8), FITS, id="the first share as well as another"),
        pytest.param(
            {**SECOND_OCCUPIED, "opaque": 1},
            ask(shares=1),
            TAKEN,
            id="it may be what a pod of unknown card holds",
        ),
        pytest.param({"extra": 41 * GIB}, ask(whole=1, memory=40 * GIB), TAKEN, id="real use counts"),
        pytest.param({"extra": 40 * GIB}, ask(whole=1, memory=40 * GIB), FITS, id="to the byte"),
        pytest.param({"extra": 80 * GIB}, ask(whole=1), FITS, id="who declares nothing asks for no memory"),
        pytest.param(
            {"extra": 50 * GIB},
            ask(shares=1, memory=40 * GIB),
            MEMORY_TAKEN,
            id="a share fits beside what is used for real, or not at all",
        ),
        pytest.param({"extra": 61 * GIB}, ask(shares=1), TAKEN, id="no part of a card is left"),
        pytest.param({"extra": 60 * GIB}, ask(shares=2), FITS, id="one part of each card is left"),
        pytest.param(
            {"memory": 0, "extra": 90 * GIB}, ask(whole=1, shares=4), FITS, id="unknown memory stays unknown"
        ),
        pytest.param(
            {"extra": [[0, 70 * GIB]], "soft": 1, "shares_soft": [[1, 0]], "memory_soft": [[20 * GIB, 0]]},
            ask(whole=1, shares=1),
            TAKEN,
            id="a soft claim makes no room",
        ),
        pytest.param({"given": 4, "loose_memory": 2**50}, ask(whole=2), FITS, id="what is told"),
    ],
)
def test_where_the_plan_is_what_happens_trouble_and_use_close_a_card(
    cells: dict[str, Any], pod: Ask, expected: int
) -> None:
    assert code(node(replicas=4, **cells), pod) == expected


@pytest.mark.parametrize(
    ("table", "pod", "expected"),
    [
        pytest.param(picked(), ask(whole=2), FITS, id="two good cards"),
        pytest.param(picked(**SECOND_UNFIT), ask(whole=1), UNHEALTHY, id="it might be the unhealthy one"),
        pytest.param(picked(**SECOND_OCCUPIED), ask(whole=1), OCCUPIED, id="it might be the one in use"),
        pytest.param(picked(**SECOND_WITHHELD), ask(whole=1), FITS, id="never the one that is not given out"),
        pytest.param(
            picked(trouble=[[IS_OCCUPIED, IS_UNFIT]]), ask(whole=1), UNHEALTHY, id="health comes first"
        ),
        pytest.param(
            picked(trouble=[[0, IS_UNFIT | IS_WITHHELD]]),
            ask(whole=1),
            FITS,
            id="unhealthy, but not given out",
        ),
        pytest.param(
            picked(**SECOND_UNFIT, given=[[0, 1]], exclusive=[[0, 1]], used=[[1, 0, 0]]),
            ask(whole=1),
            FITS,
            id="the unhealthy one is given away already",
        ),
        pytest.param(
            picked(**SECOND_UNFIT, exclusive=[[1, 0]], used=[[1, 0, 0]]),
            ask(whole=2),
            UNHEALTHY,
            id="what no departing pod mends wins over taken",
        ),
        pytest.param(picked(**SECOND_UNFIT), ask(whole=3), LACKING, id="lacking wins over trouble"),
        pytest.param(
            picked(**SECOND_UNFIT), ask(whole=1, memory=81 * GIB), MEMORY_TOO_SMALL, id="so does too small"
        ),
        pytest.param(
            picked(**SECOND_UNFIT, state=3), ask(whole=1), STALE, id="a stale row tells nothing else"
        ),
        pytest.param(picked(**SECOND_UNFIT), ask(), FITS, id="a pod without GPU gets none"),
        pytest.param(
            picked(extra=[[0, 41 * GIB]]),
            ask(whole=1, memory=40 * GIB),
            WATERMARK,
            id="it might be the full one",
        ),
        pytest.param(
            picked(extra=[[0, 40 * GIB]]), ask(whole=1, memory=40 * GIB), FITS, id="full to the byte does"
        ),
        pytest.param(picked(extra=80 * GIB), ask(whole=2), FITS, id="who declares nothing fills nothing"),
        pytest.param(
            picked(memory=[[80 * GIB, 40 * GIB]]),
            ask(whole=1, memory=50 * GIB),
            WATERMARK,
            id="it might be the smaller one",
        ),
        pytest.param(
            picked(memory=[[80 * GIB, 0]]),
            ask(whole=1, memory=50 * GIB),
            FITS,
            id="of an unknown memory nothing is said",
        ),
        pytest.param(
            picked(extra=[[0, 41 * GIB]], soft=1, exclusive_soft=[[1, 0]]),
            ask(whole=1, memory=40 * GIB),
            WATERMARK,
            id="beyond the watermark with or without soft claims",
        ),
        pytest.param(
            picked(soft=1, exclusive_soft=1),
            ask(whole=1, memory=40 * GIB),
            CONTENDED,
            id="contended as ever",
        ),
    ],
)
def test_a_whole_card_must_do_whichever_it_is(table: Table, pod: Ask, expected: int) -> None:
    assert code(table, pod) == expected


@pytest.mark.parametrize(
    ("table", "pod", "expected"),
    [
        pytest.param(shared(), ask(shares=8), FITS, id="all replicas of two good cards"),
        pytest.param(shared(**SECOND_UNFIT), ask(shares=1), UNHEALTHY, id="it might be the unhealthy one"),
        pytest.param(
            shared(**SECOND_UNFIT, given=[[0, 4]], shares=[[0, 4]], memory_used=[[0, 80 * GIB]]),
            ask(shares=1),
            FITS,
            id="the unhealthy one has no replica left",
        ),
        pytest.param(shared(**SECOND_OCCUPIED), ask(shares=1), FITS, id="shares go where there is memory"),
        pytest.param(shared(**SECOND_WITHHELD), ask(shares=4), FITS, id="on what is given out"),
        pytest.param(
            shared(mode=1, allocatable=8, **SECOND_UNFIT), ask(whole=1), UNHEALTHY, id="replicas named gpu"
        ),
        pytest.param(
            shared(mode=1, allocatable=8, extra=[[0, 61 * GIB]]),
            ask(whole=1),
            WATERMARK,
            id="and their memory",
        ),
        pytest.param(
            shared(extra=[[0, 50 * GIB]]),
            ask(shares=1, memory=31 * GIB),
            WATERMARK,
            id="one share on the fuller",
        ),
        pytest.param(
            shared(extra=[[0, 50 * GIB]]),
            ask(shares=1, memory=30 * GIB),
            FITS,
            id="one share fills it to the byte",
        ),
        pytest.param(
            shared(extra=[[0, 50 * GIB]]), ask(shares=2), WATERMARK, id="both shares might go to the fuller"
        ),
        pytest.param(
            shared(**FIRST_SHARED, given=[[1, 0]], given_memory=[[20 * GIB, 0]], extra=[[30 * GIB, 0]]),
            ask(shares=1, memory=31 * GIB),
            WATERMARK,
            id="beside what the kubelet gave of it",
        ),
        pytest.param(
            shared(**FIRST_SHARED, given=[[1, 0]], given_memory=[[20 * GIB, 0]], extra=[[30 * GIB, 0]]),
            ask(shares=1, memory=30 * GIB),
            FITS,
            id="and no more than that",
        ),
        pytest.param(
            shared(**FIRST_SHARED, loose_memory=20 * GIB, extra=[[0, 50 * GIB]]),
            ask(shares=1),
            WATERMARK,
            id="a loose share might be on the fuller as well",
        ),
        pytest.param(
            shared(**FIRST_SHARED, loose_memory=20 * GIB, extra=[[0, 40 * GIB]]),
            ask(shares=1),
            FITS,
            id="and cost there what it costs",
        ),
        pytest.param(
            shared(
                shares=[[1, 0]],
                memory_used=[[30 * GIB, 0]],
                loose_memory=30 * GIB,
                extra=[[0, 31 * GIB]],
            ),
            ask(shares=1),
            WATERMARK,
            id="however much that is",
        ),
        pytest.param(
            shared(measured=1, extra=[[0, 80 * GIB]]),
            ask(shares=1),
            FITS,
            id="where use is measured, who declares nothing costs nothing",
        ),
        pytest.param(
            shared(measured=1, extra=[[0, 81 * GIB]]),
            ask(shares=1),
            WATERMARK,
            id="and goes on no card that is too full already",
        ),
        pytest.param(
            shared(measured=1, extra=[[0, 50 * GIB]], loose_memory=20 * GIB),
            ask(shares=1, memory=10 * GIB),
            FITS,
            id="who declares little costs little",
        ),
        pytest.param(
            shared(extra=[[0, 81 * GIB]], given=[[0, 4]], shares=[[0, 4]]),
            ask(shares=1),
            FITS,
            id="a card without a replica left may be as full as it is",
        ),
        pytest.param(
            shared(memory=[[80 * GIB, 40 * GIB]]),
            ask(shares=1, memory=50 * GIB),
            WATERMARK,
            id="it might be the smaller one",
        ),
        pytest.param(
            shared(extra=[[0, 50 * GIB]], shares=4, memory_used=80 * GIB),
            ask(shares=1, memory=31 * GIB),
            TAKEN,
            id="taken wins over the watermark",
        ),
    ],
)
def test_a_share_must_do_whichever_card_it_is_on(table: Table, pod: Ask, expected: int) -> None:
    assert code(table, pod) == expected


def test_seats_keep_off_cards_in_trouble() -> None:
    table = node(cards=4, replicas=4, trouble=[[IS_UNFIT, IS_OCCUPIED, IS_WITHHELD, 0]])
    assert seat(table, 0, ask(whole=1), demand(kind=BEST_FIT))[0].tolist() == [3]
    for kind in (D1, BEST_FIT):
        # Strangers leave a card's memory to shares, which are taken one card after another.
        assert seat(table, 0, ask(shares=5), demand(kind=kind))[1].tolist() == [1, 1, 1, 1, 3]


def test_slots_count_no_card_in_trouble() -> None:
    whole_cards = demand((0, 1, 1.0, 1.0, 1.0))
    assert slots(node(cards=4), whole_cards).tolist() == [4]
    assert slots(node(cards=4, trouble=[[IS_UNFIT, IS_OCCUPIED, IS_WITHHELD, 0]]), whole_cards).tolist() == [
        1
    ]
    quarters = demand((0, 1, 0.25, 1.0, 1.0))
    halved = node(replicas=4, trouble=IS_OCCUPIED, extra=[[40 * GIB, 80 * GIB]])
    assert slots(halved, quarters).tolist() == [2]


@pytest.mark.parametrize("most", [2**42, 2**50])
def test_the_largest_numbers_are_refused_instead_of_wrapping(most: int) -> None:
    replicas = 2**31 - 1
    table = shared(memory=most, replicas=replicas, allocatable=2**63 - 1, loose_memory=2**50)
    assert code(table, ask(shares=2**33, memory=2**42 - 1)) == TAKEN
    assert code(table, ask(shares=1, memory=2**63 - 1)) == MEMORY_TOO_SMALL
    assert code(table, ask(shares=1, memory=2**41)) == WATERMARK
    uneven = picked(memory=[[2**63 - 1, 8]], extra=[[0, 2**50]], replicas=2, allocatable=4)
    assert code(uneven, ask(whole=1, memory=2**63 - 1)) == WATERMARK
    assert code(uneven, ask(shares=1, memory=2**63 - 1)) == WATERMARK
    many = shared(memory=[[2**50, 2**42]], replicas=replicas, allocatable=2**63 - 1, extra=[[0, 2048]])
    # 2^42 bytes are 2,048 for each replica, and 2,048 that are left over.
    assert code(many, ask(shares=replicas, memory=1)) == FITS
    many.extra[0, 1] += 1
    assert code(many, ask(shares=replicas, memory=1)) == WATERMARK


def test_what_is_told_of_other_rows_and_slots_does_not_count() -> None:
    # The row has one card of the two that there is room for.
    table = picked(cards=1, width=2, trouble=[[0, IS_UNFIT]], extra=[[0, 2**50]])
    assert code(table, ask(whole=1, memory=80 * GIB)) == FITS
    assert table.copy_row(0).trouble.dtype == np.int8
