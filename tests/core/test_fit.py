"""`fit` and `seat` against their twins, and the rules that are easiest to get wrong, one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import (
    BEST_FIT,
    CLOSED,
    CONTENDED,
    FGD,
    FITS,
    LACKING,
    LINKS_UNKNOWN,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    MEMORY_UNKNOWN,
    OCCUPIED,
    STALE,
    TAKEN,
    UNHEALTHY,
    UNKNOWN,
    WATERMARK,
    Ask,
    Demand,
    Hardware,
    Table,
    fit,
    seat,
)
from tests.core import twins
from tests.core.builders import OTHER, ask, asks, columns, demand, demands, random_table, tables

GIB = 2**30


def node(
    cards: int = 2,
    replicas: int = 0,
    memory: object = 80 * GIB,
    hardware: Hardware | None = None,
    width: int = 1,
    **cells: object,
) -> Table:
    """One open row; `cells` overwrite whole columns."""
    table = columns(1, max(cards, width), 3)
    table["cards"][:], table["replicas"][:], table["memory"][:] = cards, replicas, memory
    table["allocatable"][0] = cards, cards * replicas, 4
    for name, value in cells.items():
        table[name][:] = value
    return Table(**table, hardware=hardware)


def code(table: Table, pod: Ask) -> int:
    return int(fit(table, np.zeros(1, np.int32), pod)[0])


@settings(max_examples=400)
@given(tables, asks, st.data())
def test_fit_says_what_its_twin_says(table: Table, pod: Ask, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, table.rows - 1), max_size=60))
    assert fit(table, np.array(rows, np.int32), pod).tolist() == twins.fit(table, rows, pod)


@settings(max_examples=200)
@given(tables, asks, demands, st.booleans())
def test_seat_chooses_the_cards_that_its_twin_chooses(
    table: Table, pod: Ask, mix: Demand, soft: bool
) -> None:
    for row in range(table.rows):
        if twins.judge(table, row, pod, soft) != FITS:
            with pytest.raises(ValueError, match="does not fit"):
                seat(table, row, pod, mix, soft)
            continue
        whole, shares, cut = seat(table, row, pod, mix, soft)
        values = twins.values(table, row, pod, soft, mix)
        first = None if None in values else shares.tolist()[0]
        places = [(kind, card, start) for kind, card, start, _ in cut.tolist()]
        assert (whole.tolist(), shares.tolist(), places) == twins.seat(table, row, pod, soft, first)
        assert whole.dtype == shares.dtype == np.int32
        # FGD's values are whole numbers, cut off where sums of rounded numbers may differ in the last digit.
        assert values[first] >= max(values.values()) - (1 if mix.kind == FGD else 1e-9)


def test_random_tables_meet_every_code_in_every_mode() -> None:
    table = random_table(seed=7, rows=4000, cards=8)
    rows = np.arange(table.rows, dtype=np.int32)
    pods = [
        ask(whole=1),
        ask(whole=2, memory=80),
        ask(shares=2, memory=40),
        ask(shares=1, whole=1, memory=10),
    ]
    met = {
        (m, c)
        for pod in pods
        for m, c in zip(table.mode.tolist(), fit(table, rows, pod).tolist(), strict=True)
    }
    codes = [*range(LINKS_UNKNOWN), STALE, UNHEALTHY, WATERMARK]
    # Nobody asks for a whole card on rows of the other modes.
    assert met == {(mode, code) for mode in range(3) for code in codes} | {(0, OCCUPIED)}


@pytest.mark.parametrize(
    ("table", "pod", "expected"),
    [
        pytest.param(node(), ask(whole=2), FITS, id="two free cards take two"),
        pytest.param(node(state=1), ask(whole=1), UNKNOWN, id="a vacant row is unknown"),
        pytest.param(node(state=2), ask(whole=1), CLOSED, id="a closed row is closed"),
        pytest.param(node(state=3), ask(whole=1), STALE, id="a row whose agent is silent is stale"),
        pytest.param(node(), ask(whole=3), LACKING, id="two cards never take three"),
        pytest.param(node(), ask(shares=1), LACKING, id="a node that is not shared has no shares"),
        pytest.param(node(used=1), ask(whole=2), TAKEN, id="counts in use are taken"),
        pytest.param(
            node(used=[[1, 0, 0]]), ask(whole=2, others={OTHER: 5}), LACKING, id="lacking wins over taken"
        ),
        pytest.param(
            node(used=[[2, 0, 0]]),
            ask(whole=2, memory=81 * GIB),
            MEMORY_TOO_SMALL,
            id="for good wins over for now",
        ),
        pytest.param(
            node(opaque=1), ask(whole=2), TAKEN, id="a pod on an unknown card holds one of the free ones"
        ),
        pytest.param(node(replicas=4, shares=[[1, 0]]), ask(whole=2), TAKEN, id="a shared card is not free"),
        pytest.param(
            node(memory=0), ask(whole=1, memory=1), MEMORY_UNKNOWN, id="unknown memory takes no declared pod"
        ),
        pytest.param(
            node(memory=[[0, 80 * GIB]]),
            ask(whole=2, memory=1),
            MEMORY_TOO_SMALL,
            id="one known card is not two",
        ),
        pytest.param(
            node(replicas=4, memory_used=60 * GIB, shares=1),
            ask(shares=1, memory=30 * GIB),
            MEMORY_TAKEN,
            id="replicas are left but not the declared memory",
        ),
        pytest.param(
            node(replicas=4, memory_used=80 * GIB, shares=4),
            ask(shares=1, memory=30 * GIB),
            TAKEN,
            id="no replica is left either",
        ),
        pytest.param(
            node(replicas=4, exclusive=[[1, 0]], opaque=1),
            ask(shares=1),
            TAKEN,
            id="the last free card is opaque",
        ),
        pytest.param(
            node(replicas=4, shares=[[1, 0]], memory_used=[[20 * GIB, 0]], opaque=1),
            ask(shares=3),
            FITS,
            id="a card that is shared already cannot be the opaque one",
        ),
        pytest.param(
            node(mode=1, replicas=4, allocatable=8),
            ask(whole=8),
            FITS,
            id="eight replicas named gpu on two cards",
        ),
        pytest.param(
            node(mode=2, cards=0, allocatable=7), ask(whole=7), FITS, id="instances need no card of their own"
        ),
        pytest.param(
            node(soft=1, exclusive_soft=[[1, 0]]),
            ask(whole=2),
            CONTENDED,
            id="only a soft claim stands in the way",
        ),
        pytest.param(
            node(soft=1, used_soft=1, used=[[1, 0, 0]]),
            ask(whole=2),
            TAKEN,
            id="the reason leaves soft claims out",
        ),
        pytest.param(
            node(soft=0, exclusive_soft=1), ask(whole=2), FITS, id="no soft claims on the row, no second look"
        ),
    ],
)
def test_fit_gives_the_reason(table: Table, pod: Ask, expected: int) -> None:
    assert code(table, pod) == expected


@pytest.mark.parametrize(
    ("table", "pod", "expected"),
    [
        # 80 GiB / 4 replicas = 20 GiB a share: card 1 has room for 3 more, card 2 for 1; the fuller one comes first.
        pytest.param(
            node(cards=3, replicas=4, shares=[[0, 1, 3]], memory_used=[[0, 20 * GIB, 60 * GIB]]),
            ask(shares=5),
            ([], [2, 1, 1, 1, 0]),
            id="the fullest shared card first, a fresh one last",
        ),
        pytest.param(
            node(cards=3, replicas=4, exclusive=[[1, 0, 0]]),
            ask(whole=1, shares=1),
            ([1], [2]),
            id="whole cards take the lowest free ones",
        ),
        pytest.param(
            node(cards=3, memory=[[16 * GIB, 80 * GIB, 80 * GIB]]),
            ask(whole=1, memory=40 * GIB),
            ([1], []),
            id="a card that is too small is passed over",
        ),
        pytest.param(
            node(cards=2, replicas=4, memory=0, shares=[[1, 2]]),
            ask(shares=3),
            ([], [1, 1, 0]),
            id="by replicas where memory is unknown",
        ),
    ],
)
def test_seat_gives_the_cards(table: Table, pod: Ask, expected: tuple[list[int], list[int]]) -> None:
    whole, shares, _ = seat(table, 0, pod, demand(kind=BEST_FIT))
    assert (whole.tolist(), shares.tolist()) == expected


def test_seat_counts_soft_claims_only_when_asked() -> None:
    table = node(soft=1, exclusive_soft=[[1, 0]])
    assert seat(table, 0, ask(whole=1), demand())[0].tolist() == [0]
    assert seat(table, 0, ask(whole=1), demand(), soft=True)[0].tolist() == [1]


def test_an_ask_beyond_every_number_lacks_instead_of_wrapping() -> None:
    pod = ask(whole=2**63 - 1, shares=2**63 - 1)
    assert code(node(mode=1, replicas=4, allocatable=2**63 - 1), pod) == TAKEN
    assert code(node(), pod) == LACKING


def test_an_ask_for_nothing_extended_fits_every_open_row() -> None:
    assert code(node(exclusive=1), ask()) == FITS


def test_fit_and_seat_name_a_row_or_resource_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"rows\[1\] is 1, but there are only rows 0 to 0"):
        fit(node(), np.array([0, 1], np.int32), ask())
    with pytest.raises(ValueError, match=r"rows\[0\] is -1"):
        fit(node(), np.array([-1], np.int32), ask())
    with pytest.raises(
        ValueError, match=r"rows must be a C-contiguous int32 array of shape .*, not a .*int64"
    ):
        fit(node(), np.array([0]), ask())
    with pytest.raises(ValueError, match=r"rows must be .* not a list"):
        fit(node(), [0], ask())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="resource 3, but the table has only 0 to 2"):
        fit(node(), np.array([0], np.int32), ask(others={3: 1}))
    with pytest.raises(ValueError, match="row must be from 0 to 0, not 1"):
        seat(node(), 1, ask(), demand())
    with pytest.raises(TypeError):
        fit(None, np.array([0], np.int32), ask())  # type: ignore[arg-type]
