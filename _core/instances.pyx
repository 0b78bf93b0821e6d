# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""A pod's MIG instances on a row: where they would be cut, or, where they exist, what taking them leaves.

On cards that are cut on demand the tables of `mig` decide. Where the device plugin advertises instances that exist,
nothing is created, and a row is as good as its instances are already in use.
"""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t

from _core.allocator cimport bits
from _core.checks cimport exact, indices
from _core.columns cimport INSTANCE, MOST_CARDS, Ask, Table, known_resources
from _core.fit cimport CONTENDED, FITS
from _core.mig cimport Slices, best_card

cdef enum:
    PER_MILLE = 1000
    TENTHS = 10

cdef int64_t MOST_COUNT = <int64_t>1 << 30      # counts above weigh no more; keeps sums far from overflow
cdef double SCORE_PER_GPU = 7_000_000           # the tables count millionths of a compute slice, of which 7 are a card


cdef struct Cut:
    bint fits
    int64_t score           # millionths of a compute slice


cdef inline Py_ssize_t model_of(Table table, Py_ssize_t row) noexcept nogil:
    """Index of the tables by which the row's cards are cut on demand; -1: none are."""
    return table.geometry[row] if 0 <= table.geometry[row] < table.hardware.models else -1


cdef inline int64_t part_on(Table table, Py_ssize_t row, Ask ask, Py_ssize_t kind) noexcept nogil:
    """Per mille of a card that one of a resource is on the row; 0: not a MIG instance."""
    if kind == ask.gpu_id:
        return min(max(table.part[row], 0), PER_MILLE) if table.mode[row] == INSTANCE else 0
    return table.hardware.part[kind]


cdef bint asks_instances(Table table, Py_ssize_t row, Ask ask) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(ask.ids.shape[0]):
        if part_on(table, row, ask, ask.ids[i]) > 0:
            return True
    return False


cdef bint can_cut(Table table, Py_ssize_t row, Ask ask, bint soft, int32_t* places) noexcept nogil:
    """Whether what the pod asks for can be cut, true where nothing is; `places`, if not NULL, tells where."""
    if model_of(table, row) < 0 or not asks_instances(table, row, ask):
        return True
    return table.misplaced[row] <= 0 and cut(table, row, ask, soft, places).fits


cdef Cut cut(Table table, Py_ssize_t row, Ask ask, bint soft, int32_t* places) noexcept nogil:
    cdef int32_t[MOST_CARDS] cards
    cdef Py_ssize_t card, model = model_of(table, row)
    for card in range(table.width):
        cards[card] = table.slices[row, card]
        if soft and cards[card] >= 0:
            cards[card] |= table.slices_soft[row, card]
    return _cut(<Slices><void*>table.hardware.slices_at[model], &table.hardware.profile[model, 0], ask, cards,
                table.width, places)


cdef Cut _cut(Slices slices, const int32_t* profile_of, Ask ask, int32_t* cards, Py_ssize_t width,
              int32_t* places) noexcept nogil:
    """One instance after another, those of the last resource first."""
    cdef Cut found
    cdef Py_ssize_t i, card, profile
    cdef int64_t left
    cdef int32_t after
    found.fits, found.score = True, 0
    for i in range(ask.ids.shape[0] - 1, -1, -1):
        profile = profile_of[ask.ids[i]]
        left = ask.amounts[i] if profile >= 0 else 0
        while left > 0:
            left -= 1
            card = best_card(slices, profile, cards, width)
            if card < 0:
                found.fits = False
                return found
            after = slices.after_of[profile, cards[card]]
            if places:
                places[0], places[1] = ask.ids[i], card
                places[2], places[3] = slices.start_of[profile, cards[card]], after ^ cards[card]
                places += PLACE
            found.score += slices.score_of[profile, cards[card]]
            cards[card] = after
    return found


cdef double instances_worth(Table table, Py_ssize_t row, Ask ask, bint soft) noexcept nogil:
    """What taking the pod's instances from the row is worth, in GPUs; 0 where it asks for none."""
    if not asks_instances(table, row, ask):
        return 0
    if model_of(table, row) >= 0:
        return cut(table, row, ask, soft, NULL).score / SCORE_PER_GPU
    return <double>_static(table, row, ask, soft) / TENTHS


cdef double instances_left(Table table, Py_ssize_t row, bint soft) noexcept nogil:
    """Cards' worth of MIG instances that nobody holds, or of what can still be cut."""
    cdef Py_ssize_t kind, card, model = model_of(table, row)
    cdef int32_t occupancy
    cdef int64_t left
    cdef double total = 0
    if table.hardware.instances == 0:
        return 0
    if model >= 0:
        for card in range(table.width):
            occupancy = table.slices[row, card]
            if occupancy >= 0:
                if soft:
                    occupancy |= table.slices_soft[row, card]
                occupancy &= (1 << table.hardware.units_of[model]) - 1
                total += 1 - <double>bits(occupancy) / table.hardware.units_of[model]
        return total
    for kind in range(table.kinds):
        if table.hardware.part[kind] > 0 and table.allocatable[row, kind] > 0:
            left = table.allocatable[row, kind] - table.used[row, kind]
            if soft:
                left -= table.used_soft[row, kind]
            total += <double>max(left, 0) * table.hardware.part[kind] / PER_MILLE
    return total


cdef double instances_asked(Table table, Py_ssize_t row, Ask ask) noexcept nogil:
    """Cards' worth of MIG instances that the pod takes."""
    cdef Py_ssize_t i
    cdef double total = 0
    for i in range(ask.ids.shape[0]):
        if table.mode[row] != INSTANCE or ask.ids[i] != ask.gpu_id:
            total += <double>ask.amounts[i] * table.hardware.part[ask.ids[i]] / PER_MILLE
    return total


def score_static(Table table not None, rows, codes, Ask ask not None):
    """How good it is to take the pod's instances, which exist, from each row.

    Minus the tenths of the row's instances, each by its part of a card, that stay free, rounded down; another -10
    where all were free. So the fullest node comes first, one that is quite empty stays so whatever its size, and
    a node's free large instances speak against breaking into it more than its small ones. Tenths, so that much
    the same is a tie, and the order of the nodes keeps filling the same ones. A request names its profile
    exactly, so nothing larger is ever used up in its place.

    Parameters
    ----------
    table : Table
        Its `hardware.parts` tell which resources are instances; on a row of MIG strategy single, nvidia.com/gpu is.
    rows : int32[n]
    codes : int8[n]
        What `fit` said of the rows.
    ask : Ask

    Returns
    -------
    int64[n]
        From -20 to 0; 0 where the pod does not fit or the row has no instances. Soft claims count as held on
        rows that fit with them.

    Raises
    ------
    ValueError
        If a row or a resource is not in the table, or the arrays do not agree.
    """
    cdef const int32_t[::1] at = indices(rows, "rows", table.rows)
    cdef const int8_t[::1] fits = exact(codes, "codes", "int8", (at.shape[0],))
    cdef int64_t[::1] scores
    cdef Py_ssize_t i
    known_resources(table, ask)
    result = np.zeros(at.shape[0], np.int64)
    scores = result
    with nogil:
        for i in range(at.shape[0]):
            if fits[i] == FITS or fits[i] == CONTENDED:
                scores[i] = _static(table, at[i], ask, fits[i] == FITS and table.soft[at[i]] > 0)
    return result


cdef int64_t _static(Table table, Py_ssize_t row, Ask ask, bint soft) noexcept nogil:
    cdef Py_ssize_t i, kind
    cdef int64_t used, offered, total = 0, free = 0, left
    for kind in range(table.kinds):
        offered = min(max(table.allocatable[row, kind], 0), MOST_COUNT)
        used = table.used[row, kind] + (table.used_soft[row, kind] if soft else 0)
        total += part_on(table, row, ask, kind) * offered
        free += part_on(table, row, ask, kind) * (offered - min(max(used, 0), offered))
    if total == 0:
        return 0
    left = free
    for i in range(ask.ids.shape[0]):
        left -= part_on(table, row, ask, ask.ids[i]) * min(ask.amounts[i], MOST_COUNT)
    return -<int64_t>(<double>TENTHS * max(left, 0) / total) - (TENTHS if free == total else 0)
