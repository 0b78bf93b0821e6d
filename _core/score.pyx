# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which of the rows that take a pod is best, and what that is in the protocol's 0..10.

A score is in GPUs: the higher, the more a placement leaves to the pods that are to come. Nothing here decides
whether a pod may go somewhere: that is `fit`.
"""

import numpy as np

from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint32_t

from _core.cards cimport Need, Row, Seats, card_at, choose, free_cards, is_free, need_on, row_at
from _core.checks cimport exact, indices, whole_number
from _core.columns cimport MOST_CARDS, Ask, Table, known_resources
from _core.demand cimport Demand
from _core.fit cimport CONTENDED, FITS, verdict
from _core.fragmentation cimport Choice, weigh
from _core.instances cimport instances_worth
from _core.linked cimport links_worth
from _core.shares cimport reclaimable


def score(Table table not None, rows, codes, Ask ask not None, Demand demand not None):
    """What placing one pod is worth, per row.

    The sum of four kernels, each in GPUs and times its scale of the demand: `fragmentation` (cards and cores),
    `instances` (MIG), `linked` (NVLink) and `shares` (what can be given back). Soft claims count as held on rows that
    fit with them.

    Parameters
    ----------
    table : Table
    rows : int32[n]
    codes : int8[n]
        What `fit` said of the rows.
    ask : Ask
    demand : Demand

    Returns
    -------
    float64[n]
        GPUs; 0 where the pod does not fit.

    Raises
    ------
    ValueError
        If a row or a resource is not in the table, or if `codes` does not go with `rows`.
    """
    cdef const int32_t[::1] at = indices(rows, "rows", table.rows)
    cdef const int8_t[::1] fits = exact(codes, "codes", "int8", (at.shape[0],))
    cdef double[::1] scores
    cdef Py_ssize_t i
    known_resources(table, ask)
    result = np.zeros(at.shape[0])
    scores = result
    with nogil:
        for i in range(at.shape[0]):
            scores[i] = points(table, at[i], fits[i], ask, demand)
    return result


cdef struct Parts:
    # in GPUs, each times its scale
    double fragmentation
    double mig
    double topology
    double shares


cdef double points(Table table, Py_ssize_t row, int8_t code, Ask ask, Demand demand) noexcept nogil:
    cdef Parts found = apart(table, row, code, ask, demand)
    return found.fragmentation + found.mig + found.topology + found.shares


cdef Parts apart(Table table, Py_ssize_t row, int8_t code, Ask ask, Demand demand) noexcept nogil:
    cdef bint soft = code == FITS and table.soft[row] > 0
    cdef Parts found
    cdef Row there
    cdef Choice choice
    choice.value, choice.first = 0, -1
    found.fragmentation = found.mig = found.topology = found.shares = 0
    if code != FITS and code != CONTENDED:
        return found
    if demand.fragmentation != 0:
        choice = weigh(table, row, ask, soft, demand)
        found.fragmentation = demand.fragmentation * choice.value
    if demand.mig != 0:
        found.mig = demand.mig * instances_worth(table, row, ask, soft)
    if demand.topology != 0:
        there = row_at(table, row, ask.memory, soft)
        found.topology = demand.topology * links_worth(table, row, &there, need_on(table, row, ask).whole)
    if demand.shares != 0 and ask.returns >= 0:
        found.shares = demand.shares * shares_worth(table, row, ask, soft, choice.first)
    return found


cdef double shares_worth(Table table, Py_ssize_t row, Ask ask, bint soft, Py_ssize_t first) noexcept nogil:
    """What of the row's block the pod costs, its first share on the card `first` (-1: the fullest).

    Which cards are lent is not told, only how many: a card in use counts as lent if all in use are.
    """
    cdef int32_t[MOST_CARDS] cards
    cdef int32_t[MOST_CARDS] many
    cdef Need need = need_on(table, row, ask)
    cdef Row there = row_at(table, row, ask.memory, soft)
    cdef int64_t free = max(free_cards(&there, 0) - there.opaque, 0), takes = need.whole
    cdef Seats seats
    cdef Py_ssize_t i
    if need.shares > 0:
        seats = choose(&there, need, first, cards, many)
        takes = seats.chosen
        if free + table.lent[row] < there.cards:
            for i in range(seats.whole, seats.chosen):
                takes -= not is_free(card_at(&there, cards[i]), 0)
    return reclaimable(there.cards, free, table.lent[row], takes, ask.returns)


def parts(Table table not None, row, code, Ask ask not None, Demand demand not None):
    """What a row's score is made of: (fragmentation, mig, topology, shares), in GPUs; they add up to what `score` says.

    Raises
    ------
    ValueError
        If the row or a resource is not in the table.
    """
    cdef Py_ssize_t at = whole_number(row, "row", 0, table.rows - 1)
    cdef Parts found
    known_resources(table, ask)
    found = apart(table, at, whole_number(code, "code", -128, 127), ask, demand)
    return found.fragmentation, found.mig, found.topology, found.shares


def renew(Table table not None, versions, seen, codes, scores, Ask ask not None, Demand demand not None):
    """Judge and score, in place, the rows whose version is not the one seen; then it is.

    Parameters
    ----------
    table : Table
    versions : int64[N]
        By row of the table, what it is now.
    seen : int64[N]
        The version of the row that `codes` and `scores` tell of.
    codes : int8[N]
        What `fit` says of the row.
    scores : float64[N]
        What `score` says of it.
    ask : Ask
    demand : Demand

    Raises
    ------
    ValueError
        If the arrays do not have an entry per row, or a resource is not in the table.
    """
    cdef Py_ssize_t i, n = table.rows
    cdef const int64_t[::1] now = exact(versions, "versions", "int64", (n,))
    cdef int64_t[::1] then = exact(seen, "seen", "int64", (n,))
    cdef int8_t[::1] fits = exact(codes, "codes", "int8", (n,))
    cdef double[::1] worth = exact(scores, "scores", "float64", (n,))
    known_resources(table, ask)
    with nogil:
        for i in range(n):
            if then[i] != now[i]:
                fits[i] = verdict(table, i, ask)
                worth[i] = points(table, i, fits[i], ask, demand)
                then[i] = now[i]


def best(codes, scores, order, k):
    """Positions of the best rows, best first.

    Rows that fit come before contended ones, then the higher score, then the lower `order`, then the
    position.

    Parameters
    ----------
    codes : int8[n]
    scores : float64[n]
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
    cdef const double[::1] points = exact(scores, "scores", "float64", (n,))
    cdef const uint32_t[::1] ties = exact(order, "order", "uint32", (n,))
    cdef Py_ssize_t most = min(n, <Py_ssize_t>whole_number(k, "k", 0, INT64_MAX))
    cdef int32_t[::1] heap
    result = np.empty(most, np.int32)
    heap = result
    with nogil:
        found = rank(fits, points, ties, heap)
    return result[:found]


cdef Py_ssize_t rank(const int8_t[::1] codes, const double[::1] scores, const uint32_t[::1] order,
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


cdef inline bint better(const int8_t[::1] codes, const double[::1] scores, const uint32_t[::1] order,
                        Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    if codes[a] != codes[b]:
        return codes[a] < codes[b]
    if scores[a] != scores[b]:
        return scores[a] > scores[b]
    if order[a] != order[b]:
        return order[a] < order[b]
    return a < b


cdef void rise(const int8_t[::1] codes, const double[::1] scores, const uint32_t[::1] order,
               int32_t[::1] heap, Py_ssize_t at, int32_t position) noexcept nogil:
    cdef Py_ssize_t parent
    while at > 0:
        parent = (at - 1) // 2
        if not better(codes, scores, order, heap[parent], position):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = position


cdef void sink(const int8_t[::1] codes, const double[::1] scores, const uint32_t[::1] order,
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
    scores : float64[n]
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
    cdef const double[::1] points = exact(scores, "scores", "float64", (fits.shape[0],))
    cdef const int32_t[::1] first = indices(ranked, "ranked", fits.shape[0])
    cdef int8_t[::1] grades
    result = np.zeros(fits.shape[0], np.int8)
    grades = result
    if first.shape[0] > 0:
        with nogil:
            grade_all(fits, points, first[0], grades)
    return result


cdef void grade_all(const int8_t[::1] codes, const double[::1] scores, Py_ssize_t top,
                    int8_t[::1] grades) noexcept nogil:
    cdef Py_ssize_t i
    cdef double highest = scores[top], lowest = highest
    for i in range(codes.shape[0]):
        if codes[i] == FITS:
            lowest = min(lowest, scores[i])
    for i in range(codes.shape[0]):
        if codes[i] == FITS:
            if scores[i] >= highest:
                grades[i] = 9
            else:
                grades[i] = <int8_t>(9 * (scores[i] - lowest) / (highest - lowest))
    grades[top] = 10
