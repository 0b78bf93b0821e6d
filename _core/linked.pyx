# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What a pod's whole cards get of the links of a row: those that the stock device plugin would hand out.

The kubelet and its plugin choose the physical cards, so a row is as good as that choice, not as the best one. Where
links are not known, or some cards are held by pods of which it is not known which, nothing is promised.
"""

from libc.stdint cimport int64_t, uint32_t

from _core.cards cimport Row, card_at, is_free
from _core.columns cimport Ask, Table
from _core.fit cimport FITS, LINKS_TAKEN, LINKS_TOO_SLOW, LINKS_UNKNOWN
from _core.topology cimport Linked, Sets, link


cdef inline bint known(Table table, Py_ssize_t row, const Row* there) noexcept nogil:
    """Whether the row's links are known, for as many cards as it has."""
    cdef Py_ssize_t at = table.topology[row]
    return 0 <= at < table.hardware.topologies and _gpus(<Sets><void*>table.hardware.links_at[at]) == there.cards


cdef inline int _gpus(Sets sets) noexcept nogil:
    return sets.gpus


cdef inline bint _nvlink(Sets sets, uint32_t chosen) noexcept nogil:
    return sets.nvlinked[chosen]


cdef uint32_t free_mask(const Row* there) noexcept nogil:
    cdef uint32_t mask = 0
    cdef Py_ssize_t i
    for i in range(there.cards):
        mask |= <uint32_t>is_free(card_at(there, i), there.declared) << i
    return mask


cdef Linked linked(Table table, Py_ssize_t row, const Row* there, int64_t whole) noexcept nogil:
    """The set, its slowest pair and its score; nothing is chosen where links are unknown or too few are free."""
    cdef Linked found
    cdef Py_ssize_t at = table.topology[row]
    if not known(table, row, there) or there.opaque > 0:
        found.chosen, found.slowest, found.score = 0, 0, 0
        return found
    return link(<Sets><void*>table.hardware.links_at[at], free_mask(there), whole,
                table.hardware.offer[at, min(whole, there.cards)], True)


cdef int links_verdict(Table table, Py_ssize_t row, const Row* there, Ask ask, int64_t whole) noexcept nogil:
    """FITS, or why the pod's cards are not linked as it needs them; the pod has as many cards."""
    cdef Py_ssize_t at = table.topology[row]
    cdef Linked found
    if whole < 2 or (ask.bandwidth <= 0 and not ask.nvlink):
        return FITS
    if not known(table, row, there):
        return LINKS_UNKNOWN
    found = link(<Sets><void*>table.hardware.links_at[at], (<uint32_t>1 << there.cards) - 1, whole, 0, False)
    if not enough(<Sets><void*>table.hardware.links_at[at], ask, found):
        return LINKS_TOO_SLOW
    found = linked(table, row, there, whole)
    return FITS if found.chosen and enough(<Sets><void*>table.hardware.links_at[at], ask, found) else LINKS_TAKEN


cdef inline bint enough(Sets sets, Ask ask, Linked found) noexcept nogil:
    return found.slowest >= ask.bandwidth and (not ask.nvlink or _nvlink(sets, found.chosen))


cdef double links_worth(Table table, Py_ssize_t row, const Row* there, int64_t whole) noexcept nogil:
    """What the cards lack of the best, less what the rest of the row loses: 0 at best, -2 at worst.

    1 is all the bandwidth that the card type has to offer to so many cards, or all that the row's own cards are
    worth together. A row that promises nothing counts as the worst for several cards; one card has no links.
    """
    cdef Linked found
    if whole < 1 or table.hardware.topologies == 0:
        return 0
    found = linked(table, row, there, whole)
    if found.chosen == 0:
        return -2 if whole > 1 else 0
    return found.score - 1
