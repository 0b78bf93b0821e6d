# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which card a MIG instance goes to where cards are cut on demand: a look-up.

A card that is cut on demand is its occupancy, an index into the `Slices` of its model, which say for each profile
where it would start, what the card would be then and how good that is. All of it is decided when the tables are
built; here it is only looked up.
"""

import numpy as np

from libc.stdint cimport INT32_MIN, int32_t, int64_t

from _core.checks cimport exact, indices


cdef class Slices:
    """The look-up tables of one GPU model, for P profiles and M occupancies of a card; immutable.

    Parameters
    ----------
    starts : int8[P, M]
        Where an instance of the profile would start on a card so occupied; -1: nowhere.
    after : int32[P, M]
        The card's occupancy then: all of its bits and at least one more. Read only where there is a start.
    scores : int32[P, M]
        How good that is, in millionths of the score's unit; the highest wins. Where there is no start they
        are not read, and are the least int32 when read back.

    Raises
    ------
    ValueError
        If the arrays do not agree, M is no power of 2, an occupancy would lose a bit or gain none, or a
        score of a start is the least int32.
    """

    def __cinit__(self, starts, after, scores):
        exact(starts, "starts", "int8", (-1, -1))
        exact(after, "after", "int32", starts.shape)
        exact(scores, "scores", "int32", starts.shape)
        self.profiles, self.occupancies = starts.shape
        if self.profiles == 0 or self.occupancies == 0 or self.occupancies & (self.occupancies - 1):
            raise ValueError(f"starts must have a row per profile and a column for each of 2^bits occupancies, "
                             f"not the shape {starts.shape}.")
        before = np.arange(self.occupancies, dtype=np.int32)
        wrong = (starts >= 0) & ((after & before != before) | (after <= before) | (after >= self.occupancies))
        if wrong.any():
            profile, occupancy = np.argwhere(wrong)[0].tolist()
            raise ValueError(f"after[{profile}, {occupancy}] is {after[profile, occupancy]}, which is not the "
                             f"occupancy {occupancy} with more bits.")
        if (scores[starts >= 0] == INT32_MIN).any():
            raise ValueError(f"scores must be above {INT32_MIN} where there is a start.")
        self.starts, self.after, self.scores = starts.copy(), after.copy(), scores.copy()
        self.scores[starts < 0] = INT32_MIN
        for array in (self.starts, self.after, self.scores):
            array.flags.writeable = False
        self.start_of, self.after_of, self.score_of = self.starts, self.after, self.scores

    def with_scores(self, scores):
        """The same tables with other int32[P, M] scores."""
        exact(scores, "scores", "int32", self.starts.shape)
        cdef Slices other = Slices.__new__(Slices, self.starts, self.after, scores)
        return other


def place_dynamic(Slices slices not None, cards, rows, profiles):
    """For each row, the cards that instances of the profiles would go to, one after another.

    Each goes to the card of highest score, the lowest of equals, and the next one finds the card so occupied.
    What takes the most units should come first.

    Parameters
    ----------
    slices : Slices
    cards : int32[N, G]
        The occupancy of each row's cards; -1, or any that the tables do not have: no card of this kind.
    rows : int32[n]
    profiles : int32[k]
        Rows of the tables, in the order in which they are placed, at least one.

    Returns
    -------
    chosen : int32[n, k]
        The card of each instance; -1 throughout where not all of them have room.
    starts : int32[n, k]
        Where on its card each starts; -1 likewise.
    scores : int64[n]
        The sum of the scores; 0 where they do not fit.

    Raises
    ------
    ValueError
        If a row or a profile is out of range, or the arrays are of another type or shape.
    """
    exact(cards, "cards", "int32", (-1, -1))
    cdef const int32_t[:, ::1] occupied = cards
    cdef const int32_t[::1] at = indices(rows, "rows", occupied.shape[0])
    cdef const int32_t[::1] wanted = indices(profiles, "profiles", slices.profiles)
    if wanted.shape[0] == 0:
        raise ValueError("profiles must name at least one profile to place.")
    if occupied.shape[1] == 0:
        raise ValueError("cards must have at least one card column, not none.")
    chosen = np.empty((at.shape[0], wanted.shape[0]), np.int32)
    starts = np.empty((at.shape[0], wanted.shape[0]), np.int32)
    scores = np.empty(at.shape[0], np.int64)
    cdef int32_t[::1] scratch = np.empty(occupied.shape[1], np.int32)
    cdef int32_t[:, ::1] chosen_of = chosen, starts_of = starts
    cdef int64_t[::1] scores_of = scores
    cdef Py_ssize_t i
    with nogil:
        for i in range(at.shape[0]):
            scores_of[i] = _place(slices, &occupied[at[i], 0], wanted, scratch, chosen_of[i], starts_of[i])
    return chosen, starts, scores


cdef int64_t _place(Slices slices, const int32_t* cards, const int32_t[::1] profiles, int32_t[::1] scratch,
                    int32_t[::1] chosen, int32_t[::1] starts) noexcept nogil:
    cdef Py_ssize_t i, card, width = scratch.shape[0]
    cdef int32_t occupancy
    cdef int64_t total = 0
    for card in range(width):
        scratch[card] = cards[card]
    for i in range(profiles.shape[0]):
        card = best_card(slices, profiles[i], &scratch[0], width)
        if card < 0:
            chosen[:] = -1
            starts[:] = -1
            return 0
        occupancy = scratch[card]
        chosen[i], starts[i] = card, slices.start_of[profiles[i], occupancy]
        total += slices.score_of[profiles[i], occupancy]
        scratch[card] = slices.after_of[profiles[i], occupancy]
    return total


def replay_dynamic(Slices slices not None, cards, profiles, events, chosen, bits):
    """Play arrivals and departures on one pool of cards; each arrival goes where `place_dynamic` would put it.

    Parameters
    ----------
    slices : Slices
    cards : int32[n]
        Occupancies, changed in place.
    profiles : int32[k]
        What each request asks for.
    events : int32[e]
        In the order of time: i is the arrival of request i, -1 - i its departure.
    chosen, bits : int32[k]
        The card of each request that was placed and the bits that it takes there, else -1 and 0; written at its
        arrival, read at its departure, so a long replay can be cut into several with different tables.

    Raises
    ------
    ValueError
        If the arrays do not agree, or an event or a card that a departure would free does not exist.
    """
    exact(cards, "cards", "int32", (-1,))
    cdef int32_t[::1] occupied = cards
    cdef const int32_t[::1] wanted = indices(profiles, "profiles", slices.profiles)
    cdef const int32_t[::1] order = exact(events, "events", "int32", (-1,))
    exact(chosen, "chosen", "int32", profiles.shape)
    exact(bits, "bits", "int32", profiles.shape)
    cdef int32_t[::1] chosen_of = chosen, bits_of = bits
    cdef Py_ssize_t wrong = _impossible(order, chosen_of, occupied.shape[0])
    if wrong >= 0:
        raise ValueError(f"events[{wrong}] is {order[wrong]}: there are requests 0 to {len(profiles) - 1}, and one "
                         f"that departs must have a card from 0 to {len(cards) - 1}, or -1.")
    with nogil:
        _replay(slices, occupied, wanted, order, chosen_of, bits_of)


cdef Py_ssize_t _impossible(const int32_t[::1] events, const int32_t[::1] chosen, Py_ssize_t cards) noexcept nogil:
    cdef Py_ssize_t i, request
    for i in range(events.shape[0]):
        request = events[i] if events[i] >= 0 else -1 - events[i]
        if request >= chosen.shape[0] or (events[i] < 0 and chosen[request] >= cards):
            return i
    return -1


cdef void _replay(Slices slices, int32_t[::1] cards, const int32_t[::1] profiles, const int32_t[::1] events,
                  int32_t[::1] chosen, int32_t[::1] bits) noexcept nogil:
    cdef Py_ssize_t i, card
    cdef int32_t event, after
    for i in range(events.shape[0]):
        event = events[i]
        if event >= 0:
            card = best_card(slices, profiles[event], &cards[0], cards.shape[0]) if cards.shape[0] else -1
            chosen[event], bits[event] = card, 0
            if card >= 0:
                after = slices.after_of[profiles[event], cards[card]]
                bits[event] = after ^ cards[card]
                cards[card] = after
        elif chosen[-1 - event] >= 0:
            cards[chosen[-1 - event]] &= ~bits[-1 - event]
