# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which rows take a pod, why the others do not, and which cards it would get.

A row is judged as it stands (bound and reserved pods), and where it has soft claims with those added as well:
what fits only without them is contended. A reason that no departing pod can lift (too few cards, too little
memory in a card) wins over one that it can (taken), so that nothing is evicted in vain. Where the kubelet picks the
cards, whichever it could give must do (`kubelet`).
"""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t

from _core.allocator cimport bits
from _core.cards cimport Need, Row, Seats, choose, free_cards, has_room, need_on, row_at
from _core.checks cimport indices, whole_number
from _core.columns cimport INSTANCE, OPEN, STALE as SILENT, VACANT, Ask, Table, known_resources
from _core.demand cimport Demand
from _core.fragmentation cimport weigh
from _core.instances cimport PLACE, asks_instances, can_cut
from _core.kubelet cimport may_give_trouble, may_overfill
from _core.linked cimport linked, links_verdict
from _core.topology cimport Linked


def fit(Table table not None, rows, Ask ask not None):
    """Judge rows for one pod.

    Parameters
    ----------
    table : Table
    rows : int32[n]
        Rows of the table, in any order.
    ask : Ask

    Returns
    -------
    int8[n]
        For each row FITS, CONTENDED (fits only if soft claims are not counted) or the reason why not.

    Raises
    ------
    ValueError
        If a row or a resource is not in the table.
    """
    cdef const int32_t[::1] at = indices(rows, "rows", table.rows)
    cdef int8_t[::1] codes
    cdef Py_ssize_t i
    known_resources(table, ask)
    result = np.empty(at.shape[0], np.int8)
    codes = result
    with nogil:
        for i in range(at.shape[0]):
            codes[i] = verdict(table, at[i], ask)
    return result


def seat(Table table not None, row, Ask ask not None, Demand demand not None, bint soft=False):
    """Choose a row's cards for one pod: those that its score was given for.

    Whole cards are those that the device plugin would hand out, where the row's links are known and no share goes
    beside them, else the free ones of lowest index. The first share goes where the demand's score is highest.
    Every other one goes to the same card while it has room, then to the shared card that has room and is left
    with the least memory (with the fewest replicas where memory is unknown; those come last), then to the card of
    lowest index that nobody holds.

    Parameters
    ----------
    table : Table
    row : int
    ask : Ask
    demand : Demand
    soft : bool
        Whether soft claims hold cards, too.

    Returns
    -------
    whole : int32[w]
        Cards for the pod alone.
    shares : int32[s]
        The card of each share.
    instances : int32[m, 4]
        Of each MIG instance that is cut on demand: its resource, card, start, and the bits it takes there.

    Raises
    ------
    ValueError
        If the row or a resource is not in the table, or if the pod does not fit on the row.
    """
    cdef Py_ssize_t at = whole_number(row, "row", 0, table.rows - 1)
    cdef int code
    cdef Row there
    cdef Seats seats
    cdef int32_t[::1] cards, many
    cdef Py_ssize_t first, card
    cdef Linked found
    known_resources(table, ask)
    code = judge(table, at, ask, soft)
    if code != FITS:
        raise ValueError(f"The pod does not fit on row {at} (code {code}), so it has no seat there.")
    chosen, counts = np.empty(table.width, np.int32), np.empty(table.width, np.int32)
    cards, many = chosen, counts
    there = row_at(table, at, ask.memory, soft)
    first = weigh(table, at, ask, soft, demand).first
    seats = choose(&there, need_on(table, at, ask), first, &cards[0], &many[0])
    shared = chosen[seats.whole:seats.chosen]
    whole = chosen[:seats.whole].copy()
    if seats.whole > 0 and seats.chosen == seats.whole:
        found = linked(table, at, &there, seats.whole)
        if bits(found.chosen) == seats.whole:
            whole = np.array([card for card in range(there.cards) if found.chosen >> card & 1], np.int32)
    return whole, np.repeat(shared, counts[shared]), _places(table, at, ask, soft)


cdef object _places(Table table, Py_ssize_t row, Ask ask, bint soft):
    cdef int32_t[:, ::1] places
    cdef Py_ssize_t i, count = 0
    cdef Py_ssize_t model = table.geometry[row]
    if 0 <= model < table.hardware.models and asks_instances(table, row, ask):
        for i in range(ask.ids.shape[0]):
            count += ask.amounts[i] if table.hardware.profile[model, ask.ids[i]] >= 0 else 0
    result = np.empty((count, PLACE), np.int32)
    if count > 0:
        places = result
        can_cut(table, row, ask, soft, &places[0, 0])
    return result


cdef int verdict(Table table, Py_ssize_t row, Ask ask) noexcept nogil:
    """The code of one row."""
    cdef int code = judge(table, row, ask, False)
    if code == FITS and table.soft[row] > 0 and judge(table, row, ask, True) != FITS:
        return CONTENDED
    return code


cdef int judge(Table table, Py_ssize_t row, Ask ask, bint soft) noexcept nogil:
    """FITS or the reason why not, with soft claims counted or not; never CONTENDED."""
    cdef Py_ssize_t i, kind
    cdef int links, trouble
    cdef int64_t used, enough = 0, known = 0
    cdef bint lacking = False, taken = False
    cdef Need need
    cdef Row cards
    if table.state[row] != OPEN:
        if table.state[row] == SILENT:
            return STALE
        return UNKNOWN if table.state[row] == VACANT else CLOSED
    for i in range(ask.ids.shape[0]):
        kind = ask.ids[i]
        used = table.used[row, kind] + (table.used_soft[row, kind] if soft else 0)
        lacking |= table.allocatable[row, kind] < ask.amounts[i]
        taken |= table.allocatable[row, kind] - used < ask.amounts[i]
    if lacking:
        return LACKING
    need = need_on(table, row, ask)
    # There the row's first card stands for the instances, which are all alike.
    if table.mode[row] == INSTANCE and ask.whole > 0 and ask.memory > 0:
        if table.memory[row, 0] <= 0:
            return MEMORY_UNKNOWN
        if table.memory[row, 0] < ask.memory:
            return MEMORY_TOO_SMALL
    if need.whole == 0 and need.shares == 0:
        return TAKEN if taken or not can_cut(table, row, ask, soft, NULL) else FITS
    cards = row_at(table, row, ask.memory, soft)
    if need.whole > cards.cards or (need.shares > 0 and (cards.cards == 0 or cards.replicas <= 0)):
        return LACKING
    if ask.memory > 0:
        for i in range(cards.cards):
            known += cards.memory[i] > 0
            enough += cards.memory[i] >= ask.memory
        if known == 0:
            return MEMORY_UNKNOWN
        if enough < max(need.whole, 1):
            return MEMORY_TOO_SMALL
    links = links_verdict(table, row, &cards, ask, need.whole)
    if links == LINKS_UNKNOWN or links == LINKS_TOO_SLOW:
        return links
    if table.choice[row] == 1:
        trouble = may_give_trouble(table, row, &cards, need)
        if trouble != FITS:
            return trouble
    # More whole cards are held somewhere than are free: one of them may be any of the shared ones.
    if taken or free_cards(&cards, 0) < cards.opaque:
        return TAKEN
    if need.whole > 0 and free_cards(&cards, ask.memory) - cards.opaque < need.whole:
        return TAKEN
    if need.shares > 0 and not has_room(&cards, need):
        if ask.memory > 0:
            cards = row_at(table, row, 0, soft)
            if has_room(&cards, need):
                return MEMORY_TAKEN
        return TAKEN
    if not can_cut(table, row, ask, soft, NULL):
        return TAKEN
    if table.choice[row] == 1 and may_overfill(table, row, &cards, need):
        return WATERMARK
    return links
