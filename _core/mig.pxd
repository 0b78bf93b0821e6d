# cython: boundscheck=False, wraparound=False, initializedcheck=False
# Look-up tables of one GPU model, and the choice of a card that all callers share.

from libc.stdint cimport INT32_MIN, int8_t, int32_t, uint32_t


cdef class Slices:
    cdef readonly Py_ssize_t profiles           # P
    cdef readonly Py_ssize_t occupancies        # M, a power of 2
    cdef readonly object starts                 # int8[P, M], read-only
    cdef readonly object after                  # int32[P, M], read-only
    cdef readonly object scores                 # int32[P, M], read-only
    cdef const int8_t[:, ::1] start_of
    cdef const int32_t[:, ::1] after_of
    cdef const int32_t[:, ::1] score_of         # INT32_MIN where there is no start


cdef inline Py_ssize_t best_card(Slices slices, Py_ssize_t profile, const int32_t* cards,
                                 Py_ssize_t count) noexcept nogil:
    """The card of highest score on which the profile can start, the lowest of equals; -1 if there is none."""
    cdef const int32_t* scores = &slices.score_of[profile, 0]
    cdef uint32_t occupancy, most = <uint32_t>slices.occupancies
    cdef Py_ssize_t card, best = -1
    cdef int32_t score, highest = INT32_MIN
    for card in range(count):
        occupancy = <uint32_t>cards[card]       # -1, not a dynamic card, is above all occupancies
        score = scores[occupancy] if occupancy < most else INT32_MIN
        if score > highest:
            best, highest = card, score
    return best
