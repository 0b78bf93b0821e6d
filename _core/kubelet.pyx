# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What may come of a pod on a row whose cards the kubelet picks: it may give any that is free for it, so each must do.

Free for the kubelet is what it has not given away of the devices that it gives out at all. The shares of which it has
not told yet (loose) may be on any of the cards, and all on the same one.
"""

from libc.stdint cimport int8_t, int64_t

from _core.cards cimport Need, Row, card_at, share_cost
from _core.columns cimport IS_OCCUPIED, IS_UNFIT, IS_WITHHELD, Table
from _core.fit cimport FITS, OCCUPIED, UNHEALTHY


cdef int may_give_trouble(Table table, Py_ssize_t row, const Row* cards, Need need) noexcept nogil:
    """FITS, or what is wrong with a card that the pod could get: no departing pod mends that."""
    cdef int8_t trouble, met = 0
    cdef Py_ssize_t i
    for i in range(cards.cards):
        trouble = cards.trouble[i]
        if trouble & IS_WITHHELD:
            continue
        if need.whole > 0 and table.given[row, i] == 0:
            met |= trouble
        if need.shares > 0 and table.given[row, i] < cards.replicas:
            met |= trouble & IS_UNFIT
    if met & IS_UNFIT:
        return UNHEALTHY
    return OCCUPIED if met & IS_OCCUPIED else FITS


cdef bint may_overfill(Table table, Py_ssize_t row, Row* cards, Need need) noexcept nogil:
    """Whether a card that the pod could get would hold more than its memory; one of unknown memory never does."""
    cdef Py_ssize_t i
    for i in range(cards.cards):
        if cards.memory[i] <= 0 or cards.trouble[i] & IS_WITHHELD:
            continue
        if (need.whole > 0 and table.given[row, i] == 0 and cards.declared > 0
                and cards.declared > cards.memory[i] - cards.extra[i]):
            return True
        if need.shares > 0 and table.given[row, i] < cards.replicas and overfills(table, row, cards, need.shares, i):
            return True
    return False


cdef inline bint overfills(Table table, Py_ssize_t row, Row* cards, int64_t shares, Py_ssize_t card) noexcept nogil:
    """Whether as many of the shares as the card has replicas left, and all loose ones, are too much for it.

    Numbers are divided, not multiplied: a pod may declare any number of bytes.
    """
    cdef int64_t many = min(shares, cards.replicas - table.given[row, card])
    cdef int64_t cost = share_cost(cards, card_at(cards, card))
    cdef int64_t room = cards.memory[card] - cards.extra[card] - table.given_memory[row, card] - table.loose_memory[row]
    return room < 0 or (cost > 0 and many > room // cost)
