# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""One row's cards: which are free, which take another share, and which a pod would get.

A card is free when nobody holds any of it and nothing is wrong with it. Which cards are held by pods whose card is
unknown (opaque) cannot be told, so they count against the free ones. Loops over cards avoid branches: what is free and
what is full looks random to a processor, and a wrong guess costs more than the arithmetic.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t

from _core.columns cimport INSTANCE, IS_OCCUPIED, IS_UNFIT, IS_WITHHELD, REPLICA, Ask, Table

cdef int64_t UNKNOWN_LEFT = INT64_MAX - INT32_MAX - 1   # behind every memory that is known


cdef Need need_on(Table table, Py_ssize_t row, Ask ask) noexcept nogil:
    cdef Need need
    need.whole, need.shares = ask.whole, ask.shares
    if table.mode[row] == REPLICA:
        # No row has INT32_MAX replicas to give; the bound keeps the sum in range.
        need.shares = min(need.shares, INT32_MAX) + min(need.whole, INT32_MAX)
        need.whole = 0
    elif table.mode[row] == INSTANCE:
        need.whole = 0
    return need


cdef Row row_at(Table table, Py_ssize_t row, int64_t declared, bint soft) noexcept nogil:
    cdef Row cards
    cards.cards = min(max(table.cards[row], 0), table.width)
    cards.replicas = table.replicas[row]
    cards.opaque = table.opaque[row]
    cards.soft = soft
    cards.memory = &table.memory[row, 0]
    cards.used = &table.memory_used[row, 0]
    cards.used_soft = &table.memory_soft[row, 0]
    cards.shares = &table.shares[row, 0]
    cards.shares_soft = &table.shares_soft[row, 0]
    cards.owners = &table.exclusive[row, 0]
    cards.owners_soft = &table.exclusive_soft[row, 0]
    cards.extra = &table.extra[row, 0]
    cards.trouble = &table.trouble[row, 0]
    # What strangers use may as well be what a pod of unknown card holds.
    cards.shut = IS_UNFIT | IS_WITHHELD | (IS_OCCUPIED if cards.opaque > 0 else 0)
    cards.measured = table.measured[row] == 1
    cards.declared = declared
    cards.weighed, cards.cost, cards.least = -1, 0, INT64_MAX
    return cards


cdef bint takes_one(Row* row, Card card) noexcept nogil:
    """Whether a card takes one more share. Of unknown memory (0), it takes none that declares some."""
    share_cost(row, card)
    return (card.owners == 0) & (card.shares < row.replicas) & (card.left >= row.least) & is_open(row, card)


cdef inline int64_t room_on(Row* row, Card card) noexcept nogil:
    """How many more shares a card takes."""
    cdef int64_t cost = share_cost(row, card)
    if not takes_one(row, card):
        return 0
    return min(row.replicas - card.shares, card.left // cost) if cost > 0 else row.replicas - card.shares


cdef int64_t free_cards(const Row* row, int64_t declared) noexcept nogil:
    cdef int64_t count = 0
    cdef Py_ssize_t i
    for i in range(row.cards):
        count += is_free(card_at(row, i), declared)
    return count


cdef bint has_room(Row* row, Need need) noexcept nogil:
    """Whether the cards take the shares, beside the whole cards (which fit) that the same pod takes first."""
    cdef int64_t end, place = 0, room = 0
    cdef Py_ssize_t i
    cdef Card card
    for i in range(row.cards):
        card = card_at(row, i)
        room += (card.shares > 0) & takes_one(row, card)
    if room >= need.shares:
        return True
    room = 0
    end = free_cards(row, row.declared) - row.opaque
    for i in range(row.cards):
        card = card_at(row, i)
        if is_free(card, row.declared):
            place += 1
            if place <= need.whole or place > end:
                continue
        room += room_on(row, card)
        if room >= need.shares:
            return True
    return False


cdef Seats choose(Row* row, Need need, Py_ssize_t first, int32_t* cards, int32_t* many) noexcept nogil:
    """Seat a need that fits, its shares on the card `first` before any other (-1: the fullest).

    `cards` and `many` have room for every card of the row: the chosen cards in order, and by card the shares
    put on it (-1: the card is the pod's alone).
    """
    cdef Seats seats
    cdef Py_ssize_t i
    cdef int64_t end, place = 0, shares = need.shares
    cdef Card card
    seats.whole = 0
    for i in range(row.cards):
        many[i] = 0
    if need.whole > 0:
        for i in range(row.cards):
            if seats.whole < need.whole and is_free(card_at(row, i), row.declared):
                many[i] = -1
                cards[seats.whole] = i
                seats.whole += 1
    seats.chosen = seats.whole
    if shares > 0 and first >= 0:
        shares -= put(row, &seats, cards, many, first, shares)
    while shares > 0:
        # The card that the first share prefers stays preferred until it is full, so it takes all it can.
        i = fullest(row, many)
        if i < 0:
            break
        shares -= put(row, &seats, cards, many, i, shares)
    if shares > 0:
        end = free_cards(row, row.declared) - row.opaque
        for i in range(row.cards):
            card = card_at(row, i)
            if is_free(card, row.declared):
                place += 1
                if place <= seats.whole or place > end:
                    continue
            if shares > 0 and many[i] == 0 and takes_one(row, card):
                shares -= put(row, &seats, cards, many, i, shares)
    return seats


cdef inline Py_ssize_t fullest(Row* row, const int32_t* many) noexcept nogil:
    """The shared card that one more share leaves with the least memory (unknown: last, by replicas) or -1."""
    cdef Py_ssize_t i, best = -1
    cdef int64_t left, best_left = INT64_MAX
    cdef bint nearer
    cdef Card card
    for i in range(row.cards):
        card = card_at(row, i)
        left = card.left - share_cost(row, card)
        if card.memory == 0:
            left = UNKNOWN_LEFT + row.replicas - card.shares
        nearer = (card.shares > 0) & (many[i] == 0) & takes_one(row, card) & (left < best_left)
        best = i if nearer else best
        best_left = left if nearer else best_left
    return best


cdef inline int64_t put(Row* row, Seats* seats, int32_t* cards, int32_t* many, Py_ssize_t at,
                        int64_t shares) noexcept nogil:
    """Put as many of the shares on a card as it takes: how many."""
    if shares > 1:
        shares = min(shares, room_on(row, card_at(row, at)))
    cards[seats.chosen] = at
    many[at] = shares
    seats.chosen += 1
    return shares
