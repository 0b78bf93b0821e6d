# One row's cards, as `fit` and `score` ask about them.

from libc.stdint cimport int32_t, int64_t

from _core.columns cimport Ask, Table

cdef struct Need:
    # an ask in terms of one row's cards
    int64_t whole       # cards for the pod alone
    int64_t shares      # replicas of shared cards
    int64_t memory      # bytes declared per card, 0 = undeclared

cdef struct Row:
    Py_ssize_t cards
    int64_t replicas    # per card, 0 = not shared
    int64_t opaque      # whole cards held by pods whose card is unknown
    bint soft           # soft claims count as held
    const int64_t* memory
    const int64_t* used
    const int64_t* used_soft
    const int32_t* shares
    const int32_t* shares_soft
    const int32_t* owners
    const int32_t* owners_soft
    int64_t split       # the memory that was last divided by the replicas,
    int64_t part        # and the result: a node's cards are mostly alike, and division is slow

cdef struct Card:
    int64_t memory      # bytes, 0 = unknown
    int64_t left        # memory that nobody holds
    int64_t shares      # replicas in use
    int64_t owners      # pods that have the card alone

cdef struct Seats:
    # where a pod goes
    Py_ssize_t whole    # the first of the chosen cards are the pod's alone
    Py_ssize_t chosen   # cards in all, in the order in which they are taken
    Py_ssize_t opened   # cards that were free and are shared now

cdef Need need_on(Table table, Py_ssize_t row, Ask ask) noexcept nogil
cdef Row row_at(Table table, Py_ssize_t row, bint soft) noexcept nogil
cdef int64_t free_cards(const Row* row, int64_t declared) noexcept nogil
cdef bint has_room(Row* row, Need need) noexcept nogil
cdef Seats choose(Row* row, Need need, int32_t* cards, int32_t* many) noexcept nogil


cdef inline Card card_at(const Row* row, Py_ssize_t card) noexcept nogil:
    cdef Card seen
    seen.memory = row.memory[card]
    seen.left = seen.memory - row.used[card]
    seen.shares = row.shares[card]
    seen.owners = row.owners[card]
    if row.soft:
        seen.left -= row.used_soft[card]
        seen.shares += row.shares_soft[card]
        seen.owners += row.owners_soft[card]
    return seen


cdef inline int64_t share_cost(Row* row, int64_t card_memory, int64_t declared) noexcept nogil:
    """Bytes that one share takes of a card: what the pod declares, at least the card's part per replica."""
    if card_memory != row.split:
        row.split, row.part = card_memory, card_memory // max(row.replicas, 1)
    return max(declared, row.part) if card_memory > 0 else 0
