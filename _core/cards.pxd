# One row's cards, as `fit` and `score` ask about them.

from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t

from _core.columns cimport Ask, Table

cdef struct Need:
    # an ask in terms of one row's cards
    int64_t whole       # cards for the pod alone
    int64_t shares      # replicas of shared cards

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
    const int64_t* extra
    const int8_t* trouble
    int8_t shut         # bits of trouble with which a card takes no share
    bint measured       # what is really used is known
    int64_t declared    # memory that the pod declares per card, 0 = undeclared
    int64_t weighed     # the card memory that the next two were worked out for: mostly the same on all cards
    int64_t cost        # bytes that one share takes: what is declared; if not measured, at least its part
    int64_t least       # bytes that must be left for it; no card has INT64_MAX

cdef struct Card:
    int64_t memory      # bytes, 0 = unknown
    int64_t left        # memory that nobody holds or uses
    int64_t shares      # replicas in use
    int64_t owners      # pods that have the card alone
    int8_t trouble

cdef struct Seats:
    # where a pod goes
    Py_ssize_t whole    # the first of the chosen cards are the pod's alone
    Py_ssize_t chosen   # cards in all, in the order in which they are taken

cdef Need need_on(Table table, Py_ssize_t row, Ask ask) noexcept nogil
cdef Row row_at(Table table, Py_ssize_t row, int64_t declared, bint soft) noexcept nogil
cdef int64_t free_cards(const Row* row, int64_t declared) noexcept nogil
cdef bint has_room(Row* row, Need need) noexcept nogil
cdef bint takes_one(Row* row, Card card) noexcept nogil
cdef Seats choose(Row* row, Need need, Py_ssize_t first, int32_t* cards, int32_t* many) noexcept nogil


cdef inline bint is_free(Card card, int64_t declared) noexcept nogil:
    return ((card.owners == 0) & (card.shares == 0) & (card.trouble == 0)
            & (declared == 0 or card.left >= declared))


cdef inline bint is_open(const Row* row, Card card) noexcept nogil:
    """Whether shares of it are given out at all."""
    return card.trouble & row.shut == 0


cdef inline Card card_at(const Row* row, Py_ssize_t card) noexcept nogil:
    cdef Card seen
    seen.memory = row.memory[card]
    seen.left = seen.memory - row.used[card] - row.extra[card]
    seen.shares = row.shares[card]
    seen.owners = row.owners[card]
    seen.trouble = row.trouble[card]
    if row.soft:
        seen.left -= row.used_soft[card]
        seen.shares += row.shares_soft[card]
        seen.owners += row.owners_soft[card]
    return seen


cdef inline int64_t share_cost(Row* row, Card card) noexcept nogil:
    """Bytes that one share takes of a card, 0 if its memory is unknown."""
    cdef int64_t part
    if card.memory != row.weighed:
        row.weighed = card.memory
        part = 0 if row.measured else card.memory // max(row.replicas, 1)
        row.cost = max(row.declared, part) if card.memory > 0 else 0
        row.least = row.cost if row.cost > 0 or (row.measured and card.memory > 0) else INT64_MIN
        if card.memory < row.declared:
            row.least = INT64_MAX
    return row.cost
