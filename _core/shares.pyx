# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""The fair-share term of a row's score: what of the block that it could give back a placement costs, in GPUs.

Borrowed or preemptible work can be asked back, so a row's block is what would be free once all of it had left: its
free cards and those that only such work holds. The rest is pinned by guaranteed work for as long as that stays. With
b = (free + lent) / cards, a pod that takes k cards of the block costs

    guaranteed:  k b          it pins them: little where most is pinned already, all of k on a row that is whole
    borrowed:    k (1 - b)    giving it back restores the part b: nothing is lost on a row that is whole

so that guaranteed work gathers on rows that are pinned, and borrowed work on those that can be given back whole.
"""

import numpy as np

from libc.stdint cimport int32_t

from _core.checks cimport exact, indices


def give_back(rows, cards, free, lent, takes, bint borrowed):
    """What a placement costs of each row's block, negative, to be added to a score.

    Parameters
    ----------
    rows : int32[n]
        Rows of the columns, in any order.
    cards, free, lent : int32[N]
        By row: its cards, those that nobody holds, and those held by borrowed or preemptible pods only. What
        exceeds the cards does not count.
    takes : int32[n]
        Of each of `rows`, how many free or lent cards the pod would sit on; 0 for a share of a pinned card.
    borrowed : bool
        Whether the pod can be asked back.

    Returns
    -------
    float64[n]
        GPUs, from -takes to 0; 0 for a row without cards.

    Raises
    ------
    ValueError
        If the arrays do not agree or a row is not in them.
    """
    cdef const int32_t[::1] of = exact(cards, "cards", "int32", (-1,))
    cdef const int32_t[::1] idle = exact(free, "free", "int32", (of.shape[0],))
    cdef const int32_t[::1] back = exact(lent, "lent", "int32", (of.shape[0],))
    cdef const int32_t[::1] at = indices(rows, "rows", of.shape[0])
    cdef const int32_t[::1] taken = exact(takes, "takes", "int32", (at.shape[0],))
    cdef double[::1] costs
    cdef Py_ssize_t i, row
    result = np.empty(at.shape[0])
    costs = result
    with nogil:
        for i in range(at.shape[0]):
            row = at[i]
            costs[i] = reclaimable(of[row], idle[row], back[row], taken[i], borrowed)
    return result
