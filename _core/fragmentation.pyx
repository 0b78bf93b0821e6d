# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What a placement leaves of a row for the pods that are to come, in GPUs.

A row's worth to a demand of classes m (cores, cards, part of a card; frequency p_m, weight w_m):

    D1:  min(G, C / rho) - sum p_m f_m + sum w_m c_m
    P1:  min(G, C / rho)
    FGD: -sum p_m f_m

G is what is left of its cards, MIG instances and all, C its free cores, rho the cores per GPU of the demand: what
cores can't feed is of no use. f_m is what class m can't use: all of G where it doesn't fit, else the cards that are
left with less than its part. c_m is how many pods of m still fit. A placement's value is the change of the worth,
minus a pull towards the rows that come first in a fixed order (D1 0.5, P1 2 over all rows), which fills rows one
after another; FGD is the published integer of it, 0 to 100. BEST_FIT and FIRST_FIT are what it was measured against.
"""

import numpy as np

from libc.math cimport exp
from libc.stdint cimport int32_t, int64_t

from _core.cards cimport (
    Card,
    Need,
    Row,
    Seats,
    card_at,
    choose,
    free_cards,
    is_free,
    is_open,
    need_on,
    row_at,
    share_cost,
    takes_one,
)
from _core.columns cimport MOST_CARDS, OPEN, Ask, Table
from _core.demand cimport BEST_FIT, FGD, FIRST_FIT, MOST_CLASSES, P1, SLACK, Demand
from _core.instances cimport instances_asked, instances_left

cdef double ROWS = 4294967296.0     # `order` spreads rows over all of uint32
cdef double MOST_CORES = 128000.0   # the largest node of the published best fit, in thousandths of a core
cdef double MOST_GPUS = 8.0
cdef double[5] PULL                 # by kind
PULL[:] = [0.5, 2.0, 0.0, 0.0, 1.0]


def slots(Table table not None, Demand demand not None):
    """How many pods of each class the open rows still take.

    Parameters
    ----------
    table : Table
    demand : Demand

    Returns
    -------
    float64[M]
        Every class by itself, as if no other came; soft claims don't count.
    """
    cdef double[::1] total
    cdef Py_ssize_t row
    result = np.zeros(demand.classes)
    total = result
    if demand.classes > 0:
        with nogil:
            for row in range(table.rows):
                if table.state[row] == OPEN:
                    add_slots(table, row, demand, &total[0])
    return result


cdef void add_slots(Table table, Py_ssize_t row, Demand demand, double* total) noexcept nogil:
    cdef double[MOST_CARDS] left
    cdef double[MOST_CLASSES] fits
    cdef double[MOST_CLASSES] lost
    cdef Row there = row_at(table, row, 0, False)
    cdef Py_ssize_t m
    look(&there, left)
    count(demand, left, there.cards, there.replicas > 0, cores_left(table, row, 0), fits, lost)
    for m in range(demand.classes):
        total[m] += fits[m]


cdef Choice weigh(Table table, Py_ssize_t row, Ask ask, bint soft, Demand demand) noexcept nogil:
    """The value of placing a pod on a row that takes it, on the best of its cards.

    Shares try each card first, a single one but one card of each kind (left now, left then). Of equal value, the
    lowest stays.
    """
    cdef double[MOST_CARDS] left
    cdef double[MOST_CARDS] then
    cdef double[MOST_CARDS] tried
    cdef double[MOST_CARDS] tried_then
    cdef Need need = need_on(table, row, ask)
    cdef Row there = row_at(table, row, ask.memory, soft)
    cdef double before, value, mig = instances_left(table, row, soft), cores = cores_left(table, row, ask.cpu)
    cdef double pull = PULL[demand.kind] * (table.order[row] / ROWS)
    cdef Py_ssize_t i, j, kinds = 0
    cdef int64_t place = 0, end
    cdef Choice choice
    cdef Card card
    choice.value, choice.first = -pull, -1
    if demand.kind == FIRST_FIT:
        return choice
    look(&there, left)
    before = worth(demand, left, there.cards, mig, there.replicas > 0, cores_left(table, row, 0))
    mig = max(mig - instances_asked(table, row, ask), 0) if mig > 0 else 0
    if need.shares == 0 or demand.kind == P1 or demand.kind == BEST_FIT:
        choice.value += gain(demand, &there, need, -1, left, then, mig, before, cores)
        return choice
    end = free_cards(&there, there.declared) - there.opaque
    for i in range(there.cards):
        card = card_at(&there, i)
        if is_free(card, there.declared):
            place += 1
            if place <= need.whole or place > end:
                continue
        if not takes_one(&there, card):
            continue
        card.left -= share_cost(&there, card)
        card.shares += 1
        tried[kinds], tried_then[kinds] = left[i], part_left(&there, card)
        j = 0
        while tried[j] != tried[kinds] or tried_then[j] != tried_then[kinds]:
            j += 1
        if j < kinds and need.shares == 1:
            continue
        kinds += 1
        value = gain(demand, &there, need, i, left, then, mig, before, cores) - pull
        if choice.first < 0 or value > choice.value:
            choice.value, choice.first = value, i
    return choice


cdef double gain(Demand demand, Row* there, Need need, Py_ssize_t first, const double* left, double* then,
                 double mig, double before, double cores) noexcept nogil:
    """What the worth changes by when the need is seated, its first share on `first`; `then` is room to work in."""
    cdef int32_t[MOST_CARDS] cards
    cdef int32_t[MOST_CARDS] many
    cdef Seats seats
    cdef Py_ssize_t i, at
    cdef Card card
    cdef double after
    for i in range(there.cards):
        then[i] = left[i]
    if need.whole > 0 or need.shares > 0:
        seats = choose(there, need, first, cards, many)
        for i in range(seats.chosen):
            at = cards[i]
            if i < seats.whole:
                then[at] = 0
            else:
                card = card_at(there, at)
                card.left -= many[at] * share_cost(there, card)
                card.shares += many[at]
                then[at] = part_left(there, card)
    after = worth(demand, then, there.cards, mig, there.replicas > 0, cores)
    if demand.kind == BEST_FIT:
        return after
    if demand.kind == FGD:
        return <int32_t>(100 / (1 + exp(before - after)))
    return after - before


cdef double worth(Demand demand, const double* left, Py_ssize_t cards, double mig, bint sharing,
                  double cores) noexcept nogil:
    """`mig`: what is left of cards in MIG mode, which cores feed and no class of the mix uses."""
    cdef double[MOST_CLASSES] fits
    cdef double[MOST_CLASSES] lost
    cdef double total = 0, value
    cdef Py_ssize_t i, m
    for i in range(cards):
        total += left[i]
    if demand.kind == BEST_FIT:
        return -50 * (cores / MOST_CORES + total / MOST_GPUS)
    value = 0 if demand.kind == FGD else min(total + mig, cores / (1000 * demand.cores))
    if demand.kind != P1:
        count(demand, left, cards, sharing, cores, fits, lost)
        for m in range(demand.classes):
            value += demand.w[m] * fits[m] - demand.p[m] * (lost[m] if fits[m] >= 1 else total)
    return value


cdef void count(Demand demand, const double* left, Py_ssize_t cards, bint sharing, double cores, double* fits,
                double* lost) noexcept nogil:
    """By class: how many pods fit, and what is left on cards that are left with too little for one."""
    cdef double idle = 0, part
    cdef Py_ssize_t i, m
    for i in range(cards):
        idle += left[i] >= 1
    for m in range(demand.classes):
        fits[m] = idle * demand.per_idle[m]
        lost[m] = 0
    for i in range(cards):
        part = left[i]
        if 0 < part < 1:
            for m in range(demand.classes):
                fits[m] += <double><int32_t>(part * demand.per_part[m] + SLACK)
                lost[m] += part if part < demand.least[m] else 0
    for m in range(demand.classes):
        fits[m] = <double><int32_t>min(fits[m] * demand.per_gpu[m] + SLACK,
                                       cores * demand.per_cpu[m] + demand.cpu_slack[m])
    if not sharing:
        for m in range(demand.classes):
            fits[m] *= 1 - demand.of_shared[m]


cdef void look(Row* row, double* left) noexcept nogil:
    """What is left of each card: 1 free, 0 held alone or by a pod whose card is unknown, else a part."""
    cdef int64_t place = 0, end = free_cards(row, 0) - row.opaque
    cdef Py_ssize_t i
    cdef Card card
    for i in range(row.cards):
        card = card_at(row, i)
        if is_free(card, 0):
            place += 1
            left[i] = 1 if place <= end else 0
        else:
            left[i] = part_left(row, card)


cdef inline double part_left(const Row* row, Card card) noexcept nogil:
    """Of a card that is shared: the smaller of its memory, where known, and its replicas that nobody holds."""
    cdef double part
    if card.owners > 0 or card.shares >= row.replicas or not is_open(row, card):
        return 0
    part = <double>(row.replicas - card.shares) / row.replicas
    if card.memory > 0:
        part = min(part, <double>card.left / card.memory)
    return max(part, 0)


cdef inline double cores_left(Table table, Py_ssize_t row, int64_t asked) noexcept nogil:
    """Thousandths of a core, never below 0."""
    return max(table.cpu[row] - table.cpu_used[row] - asked, 0)
