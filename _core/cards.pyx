# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""One row's cards: which are free, which take another share, and which a pod would get.

A card is free when nobody holds any of it. Which cards are held by pods whose card is unknown (opaque) cannot
be told, so they count against the free ones. Loops over cards avoid branches: what is free and what is full
looks random to a processor, and a wrong guess costs more than the arithmetic.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t

from _core.columns cimport INSTANCE, REPLICA, Ask, Table

cdef int64_t UNKNOWN_LEFT = INT64_MAX - INT32_MAX - 1   # behind every memory that is known


cdef Need need_on(Table table, Py_ssize_t row, Ask ask) noexcept nogil:
    cdef Need need
    need.whole, need.shares, need.memory = ask.whole, ask.shares, ask.memory
    if table.mode[row] == REPLICA:
        # No row has INT32_MAX replicas to give; the bound keeps the sum in range.
        need.shares = min(need.shares, INT32_MAX) + min(need.whole, INT32_MAX)
        need.whole = 0
    elif table.mode[row] == INSTANCE:
        need.whole = 0
    return need


cdef Row row_at(Table table, Py_ssize_t row, bint soft) noexcept nogil:
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
    cards.split = cards.part = 0
    return cards


cdef inline bint is_free(Card card, int64_t declared) noexcept nogil:
    return (card.owners == 0) & (card.shares == 0) & (card.memory >= declared)


cdef inline bint takes_one(const Row* row, Card card, int64_t cost, int64_t declared) noexcept nogil:
    """Whether a card takes one more share. Of unknown memory (0), it takes none that declares some."""
    return ((card.owners == 0) & (card.shares < row.replicas) & (card.memory >= declared)
            & ((cost == 0) | (card.left >= cost)))


cdef inline int64_t room_on(const Row* row, Card card, int64_t cost, int64_t declared) noexcept nogil:
    """How many more shares a card takes."""
    if not takes_one(row, card, cost, declared):
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
    cdef int64_t cost, end, place = 0, room = 0
    cdef Py_ssize_t i
    cdef Card card
    for i in range(row.cards):
        card = card_at(row, i)
        cost = share_cost(row, card.memory, need.memory)
        room += (card.shares > 0) & takes_one(row, card, cost, need.memory)
    if room >= need.shares:
        return True
    room = 0
    end = free_cards(row, need.memory) - row.opaque
    for i in range(row.cards):
        card = card_at(row, i)
        if is_free(card, need.memory):
            place += 1
            if place <= need.whole or place > end:
                continue
        cost = share_cost(row, card.memory, need.memory)
        room += room_on(row, card, cost, need.memory)
        if room >= need.shares:
            return True
    return False


cdef Seats choose(Row* row, Need need, int32_t* cards, int32_t* many) noexcept nogil:
    """Seat a need that fits.

    `cards` and `many` have room for every card of the row: the chosen cards in order, and by card the shares
    put on it (-1: the card is the pod's alone).
    """
    cdef Seats seats
    cdef Py_ssize_t i
    cdef int64_t cost, end, place = 0, shares = need.shares
    cdef Card card
    seats.whole = seats.opened = 0
    for i in range(row.cards):
        many[i] = 0
    if need.whole > 0:
        for i in range(row.cards):
            if seats.whole < need.whole and is_free(card_at(row, i), need.memory):
                many[i] = -1
                cards[seats.whole] = i
                seats.whole += 1
    seats.chosen = seats.whole
    while shares > 0:
        # The card that the first share prefers stays preferred until it is full, so it takes all it can.
        i = fullest(row, need.memory, many)
        if i < 0:
            break
        shares -= put(row, &seats, cards, many, i, shares, need.memory)
    if shares > 0:
        end = free_cards(row, need.memory) - row.opaque
        for i in range(row.cards):
            card = card_at(row, i)
            cost = share_cost(row, card.memory, need.memory)
            if is_free(card, need.memory):
                place += 1
                if shares > 0 and seats.whole < place <= end and takes_one(row, card, cost, need.memory):
                    shares -= put(row, &seats, cards, many, i, shares, need.memory)
                    seats.opened += 1
    return seats


cdef inline Py_ssize_t fullest(Row* row, int64_t declared, const int32_t* many) noexcept nogil:
    """The shared card that one more share leaves with the least memory (unknown: last, by replicas) or -1."""
    cdef Py_ssize_t i, best = -1
    cdef int64_t cost, left, best_left = INT64_MAX
    cdef bint nearer
    cdef Card card
    for i in range(row.cards):
        card = card_at(row, i)
        cost = share_cost(row, card.memory, declared)
        left = card.left - cost if card.memory > 0 else UNKNOWN_LEFT + row.replicas - card.shares
        nearer = ((card.shares > 0) & (many[i] == 0) & takes_one(row, card, cost, declared)
                  & (left < best_left))
        best = i if nearer else best
        best_left = left if nearer else best_left
    return best


cdef inline int64_t put(Row* row, Seats* seats, int32_t* cards, int32_t* many, Py_ssize_t at, int64_t shares,
                        int64_t declared) noexcept nogil:
    """Put as many of the shares on a card as it takes: how many."""
    cdef Card card = card_at(row, at)
    if shares > 1:
        shares = min(shares, room_on(row, card, share_cost(row, card.memory, declared), declared))
    cards[seats.chosen] = at
    many[at] = shares
    seats.chosen += 1
    return shares
