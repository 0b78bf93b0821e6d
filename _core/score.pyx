# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which of the rows that take a pod is best, and what that is in the protocol's 0..10.

Best fit: a score is minus the waste that a placement leaves behind, so whole free cards stay together for the
pods that need many of them. Nothing here decides whether a pod may go somewhere: that is `fit`.
"""

import numpy as np

from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint32_t

from _core.cards cimport Card, Need, Row, Seats, card_at, choose, free_cards, need_on, row_at, share_cost
from _core.columns cimport INSTANCE, Ask, Table, exact, indices, known_resources, whole_number
from _core.fit cimport CONTENDED, FITS

cdef enum:
    PER_MILLE = 1000

cdef int64_t MOST_LEFT = <int64_t>1 << 40   # counts above waste no more; keeps sums far from overflow


def score(Table table not None, rows, codes, Ask ask not None):
    """Minus the waste of placing one pod, per row.

    Waste: 1000 per free card left if the pod takes whole cards; for shares the per mille of the last share's
    card left (memory, else replicas), and 1000 plus 1000 per free card left if a free card was opened; 1000
    per unit left of every other resource asked for. Soft claims count as held on rows that fit with them.

    Parameters
    ----------
    table : Table
    rows : int32[n]
    codes : int8[n]
        What `fit` said of the rows.
    ask : Ask

    Returns
    -------
    int64[n]
        At most 0; 0 where the pod does not fit.

    Raises
    ------
    ValueError
        If a row or a resource is not in the table, or if `codes` does not go with `rows`.
    """
    cdef const int32_t[::1] at = indices(rows, "rows", table.rows)
    cdef const int8_t[::1] fits = exact(codes, "codes", "int8", (at.shape[0],))
    cdef int64_t[::1] scores
    cdef int32_t[:, ::1] scratch = np.empty((2, table.width), np.int32)
    known_resources(table, ask)
    result = np.zeros(at.shape[0], np.int64)
    scores = result
    with nogil:
        _score(table, at, fits, ask, scores, scratch)
    return result


cdef void _score(Table table, const int32_t[::1] rows, const int8_t[::1] codes, Ask ask, int64_t[::1] scores,
                 int32_t[:, ::1] scratch) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint soft
    for i in range(rows.shape[0]):
        if codes[i] == FITS or codes[i] == CONTENDED:
            soft = codes[i] == FITS and table.soft[rows[i]] > 0
            scores[i] = -(waste_of_cards(table, rows[i], ask, soft, &scratch[0, 0], &scratch[1, 0])
                          + waste_of_counts(table, rows[i], ask, soft))


cdef int64_t waste_of_cards(Table table, Py_ssize_t row, Ask ask, bint soft, int32_t* cards,
                            int32_t* many) noexcept nogil:
    cdef Need need = need_on(table, row, ask)
    cdef Row there
    cdef Seats seats
    cdef Card card
    cdef int64_t free_left, waste = 0
    cdef Py_ssize_t last
    if need.whole == 0 and need.shares == 0:
        return 0
    there = row_at(table, row, ask.memory, soft)
    if need.shares == 0:
        return PER_MILLE * (free_cards(&there, 0) - there.opaque - need.whole)
    seats = choose(&there, need, cards, many)
    if seats.chosen > seats.whole:
        last = cards[seats.chosen - 1]
        card = card_at(&there, last)
        if card.memory > 0:
            card.left -= many[last] * share_cost(&there, card)
            waste = PER_MILLE * max(card.left, 0) // card.memory
        else:
            waste = PER_MILLE * (there.replicas - card.shares - many[last]) // there.replicas
    if need.whole > 0 or seats.opened > 0:
        free_left = free_cards(&there, 0) - there.opaque - seats.whole - seats.opened
        if need.whole > 0:
            waste += PER_MILLE * free_left
        if seats.opened > 0:
            waste += PER_MILLE + PER_MILLE * free_left
    return waste


cdef int64_t waste_of_counts(Table table, Py_ssize_t row, Ask ask, bint soft) noexcept nogil:
    cdef Py_ssize_t i, kind
    cdef int64_t left, waste = 0
    for i in range(ask.ids.shape[0]):
        kind = ask.ids[i]
        if kind == ask.shared_id or (kind == ask.gpu_id and table.mode[row] != INSTANCE):
            continue
        left = table.allocatable[row, kind] - table.used[row, kind] - ask.amounts[i]
        if soft:
            left -= table.used_soft[row, kind]
        waste += PER_MILLE * min(left, MOST_LEFT)
    return waste


def best(codes, scores, order, k):
    """Positions of the best rows, best first.

    Rows that fit come before contended ones, then the higher score, then the lower `order`, then the
    position.

    Parameters
    ----------
    codes : int8[n]
    scores : int64[n]
    order : uint32[n]
        The rows' tie breakers: `table.order[rows]`.
    k : int
        The most positions to return, at least 0.

    Returns
    -------
    int32[at most k]

    Raises
    ------
    ValueError
        If the arrays do not agree or `k` is negative.
    """
    cdef const int8_t[::1] fits = exact(codes, "codes", "int8", (-1,))
    cdef Py_ssize_t n = fits.shape[0], found
    cdef const int64_t[::1] points = exact(scores, "scores", "int64", (n,))
    cdef const uint32_t[::1] ties = exact(order, "order", "uint32", (n,))
    cdef Py_ssize_t most = min(n, <Py_ssize_t>whole_number(k, "k", 0, INT64_MAX))
    cdef int32_t[::1] heap
    result = np.empty(most, np.int32)
    heap = result
    with nogil:
        found = _best(fits, points, ties, heap)
    return result[:found]


cdef Py_ssize_t _best(const int8_t[::1] codes, const int64_t[::1] scores, const uint32_t[::1] order,
                      int32_t[::1] heap) noexcept nogil:
    """Fill `heap` with the best positions, sorted; the root is the worst one kept while it fills."""
    cdef Py_ssize_t i, size = 0, most = heap.shape[0]
    cdef int32_t last
    if most == 0:
        return 0
    for i in range(codes.shape[0]):
        if codes[i] != FITS and codes[i] != CONTENDED:
            continue
        if size < most:
            rise(codes, scores, order, heap, size, i)
            size += 1
        elif better(codes, scores, order, i, heap[0]):
            sink(codes, scores, order, heap, size, i)
    for i in range(size - 1, 0, -1):
        last = heap[i]
        heap[i] = heap[0]
        sink(codes, scores, order, heap, i, last)
    return size


cdef inline bint better(const int8_t[::1] codes, const int64_t[::1] scores, const uint32_t[::1] order,
                        Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    if codes[a] != codes[b]:
        return codes[a] < codes[b]
    if scores[a] != scores[b]:
        return scores[a] > scores[b]
    if order[a] != order[b]:
        return order[a] < order[b]
    return a < b


cdef void rise(const int8_t[::1] codes, const int64_t[::1] scores, const uint32_t[::1] order,
               int32_t[::1] heap, Py_ssize_t at, int32_t position) noexcept nogil:
    cdef Py_ssize_t parent
    while at > 0:
        parent = (at - 1) // 2
        if not better(codes, scores, order, heap[parent], position):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = position


cdef void sink(const int8_t[::1] codes, const int64_t[::1] scores, const uint32_t[::1] order,
               int32_t[::1] heap, Py_ssize_t size, int32_t position) noexcept nogil:
    """Put `position` in the place of the root of a heap of `size`."""
    cdef Py_ssize_t at = 0, child = 1
    while child < size:
        if child + 1 < size and better(codes, scores, order, heap[child], heap[child + 1]):
            child += 1
        if not better(codes, scores, order, position, heap[child]):
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = position


def grade(codes, scores, ranked):
    """The protocol's 0..10 for Prioritize.

    The best position gets 10. Other rows that fit get 9 (as good as the best) down to 0 (the worst that
    fits), linear and rounded down. Contended rows and rows that do not fit get 0, and so do all if `ranked`
    is empty.

    Parameters
    ----------
    codes : int8[n]
    scores : int64[n]
        As `score` gives them.
    ranked : int32[r]
        Positions, best first, as `best` gives them; only the first matters.

    Returns
    -------
    int8[n]

    Raises
    ------
    ValueError
        If the arrays do not agree or a position is not in them.
    """
    cdef const int8_t[::1] fits = exact(codes, "codes", "int8", (-1,))
    cdef const int64_t[::1] points = exact(scores, "scores", "int64", (fits.shape[0],))
    cdef const int32_t[::1] first = indices(ranked, "ranked", fits.shape[0])
    cdef int8_t[::1] grades
    result = np.zeros(fits.shape[0], np.int8)
    grades = result
    if first.shape[0] > 0:
        with nogil:
            _grade(fits, points, first[0], grades)
    return result


cdef void _grade(const int8_t[::1] codes, const int64_t[::1] scores, Py_ssize_t top,
                 int8_t[::1] grades) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t highest = scores[top], lowest = highest
    for i in range(codes.shape[0]):
        if codes[i] == FITS:
            lowest = min(lowest, scores[i])
    for i in range(codes.shape[0]):
        if codes[i] == FITS:
            if scores[i] >= highest:
                grades[i] = 9
            else:
                grades[i] = 9 * (scores[i] - lowest) // (highest - lowest)
    grades[top] = 10
