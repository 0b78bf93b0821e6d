# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which GPUs of a node belong together, and what a job on some of them costs the rest.

Sets are bit masks: bit i is GPU i of the matrix. A set is better by the bandwidth of its slowest pair, then
by that of all its pairs, then by their PCIe and NUMA ranks, then by what the free GPUs that remain are
worth, then by lower numbers.

What free GPUs are worth is one number, so that sets can be compared by what they leave, and nodes by what
they lose. For every size s of 2, 4, 8, 16 within the matrix: split the free GPUs into disjoint sets of s so
that the bandwidths of the sets' slowest pairs add up to the most; divide by the same of the whole matrix.
The worth is the mean over s.
"""

import numpy as np

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

from _core.allocator cimport AHEAD, MOST_GPUS, Allocator, bits, lower, lowest, square
from _core.checks cimport exact, whole_number

cdef double SLOWEST = 0.95                      # its weight in a set's quality; the total has the rest


cdef struct Set:
    uint32_t mask
    int32_t slowest
    int32_t total
    int32_t ranks
    double left


cdef class Sets:
    """The best sets of one link matrix of G GPUs, 1 to 16.

    Up to 8 GPUs all answers are worked out here; above, each when it is first asked for, and kept: at most 4
    MB for 16 GPUs.

    Parameters
    ----------
    bandwidth : int32[G, G]
        MB/s between two GPUs: symmetric, 1 to 8,000,000; the diagonal means nothing.
    rank : int32[G, G]
        How close two GPUs are by PCIe and NUMA, higher is closer: symmetric, 0 to 8,000,000.
    allocator : Allocator
        What the stock device plugin does with the same GPUs.
    nvlink : bool[2^G] or None
        By mask, whether all pairs have NVLink; None: none has.

    Attributes
    ----------
    gpus : int
    bottleneck, total : int32[2^G]
        By mask, MB/s: of the slowest pair (INT32_MAX for fewer than two GPUs), and of all pairs together.
    kept : float64[2^G]
        By mask: what these GPUs are worth while they are free, 0 to 1.

    Raises
    ------
    ValueError
        If an array does not agree with the above; the message names it.
    """

    def __cinit__(self, bandwidth, rank, Allocator allocator not None, nvlink=None):
        cdef const int32_t[:, ::1] pairs = square(bandwidth, "bandwidth", -1, 1)
        cdef Py_ssize_t gpus = pairs.shape[0], masks = <Py_ssize_t>1 << gpus
        cdef const int32_t[:, ::1] close = square(rank, "rank", gpus, 0)
        cdef int32_t[:, ::1] split = np.zeros((4, masks), np.int32)
        cdef uint32_t mask
        self.gpus = gpus
        self.bottleneck, self.total = np.zeros(masks, np.int32), np.zeros(masks, np.int32)
        self.kept = np.zeros(masks, np.float64)
        self.slowest, self.sum, self.worth = self.bottleneck, self.total, self.kept
        self.ranks, self.known = np.zeros(masks, np.int32), np.zeros(masks, np.uint8)
        self.best = np.zeros((masks, gpus + 1), np.uint16)
        if nvlink is None:
            nvlink = np.zeros(masks, np.bool_)
        self.nvlink = exact(nvlink, "nvlink", "bool", (masks,)).copy()
        self.nvlinked = self.nvlink.view(np.uint8)
        if allocator.gpus != gpus:
            raise ValueError(f"allocator must be for {gpus} GPUs, not for {allocator.gpus}.")
        self.allocator = allocator
        with nogil:
            _add_up(self, pairs, close)
            _weigh(self, split)
            if gpus <= AHEAD:
                for mask in range(<uint32_t>masks):
                    self.look(mask)
        for array in (self.bottleneck, self.total, self.kept, self.nvlink):
            array.flags.writeable = False

    def choose(self, free, k):
        """The best set of `k` of the GPUs in the mask `free`, as a mask; 0 if there are not so many.

        Raises
        ------
        ValueError
            If `free` is not a mask of these GPUs, or `k` is negative.
        """
        cdef uint32_t mask = whole_number(free, "free", 0, (1 << self.gpus) - 1)
        return link(self, mask, whole_number(k, "k", 0, INT32_MAX), 0, False).chosen

    cdef void look(self, uint32_t free) noexcept nogil:
        """Work out the best subsets of a mask, of every size, unless they are known."""
        cdef Set champion[MOST_GPUS + 1]
        cdef Set now
        cdef uint32_t mask = free
        cdef int k
        if self.known[free]:
            return
        for k in range(self.gpus + 1):
            champion[k].mask = 0
        while mask > 0:
            k = bits(mask)
            now.mask, now.slowest, now.total = mask, self.slowest[mask], self.sum[mask]
            now.ranks, now.left = self.ranks[mask], self.worth[free ^ mask]
            if champion[k].mask == 0 or better(&now, &champion[k]):
                champion[k] = now
            mask = (mask - 1) & free
        for k in range(self.gpus + 1):
            self.best[free, k] = champion[k].mask
        self.known[free] = 1


cdef inline bint better(const Set* a, const Set* b) noexcept nogil:
    if a.slowest != b.slowest:
        return a.slowest > b.slowest
    if a.total != b.total:
        return a.total > b.total
    if a.ranks != b.ranks:
        return a.ranks > b.ranks
    if a.left != b.left:
        return a.left > b.left
    return lower(a.mask, b.mask)


cdef void _add_up(Sets sets, const int32_t[:, ::1] bandwidth, const int32_t[:, ::1] rank) noexcept nogil:
    """Each set's pairs: those of the set without its lowest GPU, and those that GPU adds."""
    cdef uint32_t mask, others
    cdef int i, j
    sets.slowest[0] = INT32_MAX
    for mask in range(<uint32_t>1, <uint32_t>1 << sets.gpus):
        others = mask ^ lowest(mask)
        i = bits(lowest(mask) - 1)
        sets.slowest[mask], sets.sum[mask] = sets.slowest[others], sets.sum[others]
        sets.ranks[mask] = sets.ranks[others]
        for j in range(i + 1, sets.gpus):
            if others >> j & 1:
                sets.slowest[mask] = min(sets.slowest[mask], bandwidth[i, j])
                sets.sum[mask] += bandwidth[i, j]
                sets.ranks[mask] += rank[i, j]


cdef void _weigh(Sets sets, int32_t[:, ::1] split) noexcept nogil:
    """What each mask is worth; `split[i]` holds the best split of each mask into disjoint sets of 2^(i+1)."""
    cdef uint32_t mask, low, others, sub, full = (<uint32_t>1 << sets.gpus) - 1
    cdef int i, size, sizes = 0
    while 2 << sizes <= sets.gpus:
        sizes += 1
    for mask in range(<uint32_t>1, full + 1):
        low = lowest(mask)
        others = sub = mask ^ low
        for i in range(sizes):
            split[i, mask] = split[i, others]
        while sub > 0:
            size = bits(sub) + 1
            if size & (size - 1) == 0:
                i = bits(size - 1) - 1
                split[i, mask] = max(split[i, mask], sets.slowest[low | sub] + split[i, others ^ sub])
            sub = (sub - 1) & others
    for mask in range(full + 1):
        for i in range(sizes):
            sets.worth[mask] += <double>split[i, mask] / split[i, full] / sizes


cdef Linked link(Sets sets, uint32_t free, int64_t k, int32_t best, bint plugin) noexcept nogil:
    """What a job of k GPUs gets of the free ones, scored as by `connect`; a `best` of 0 has no effect."""
    cdef Linked found
    cdef uint32_t top, full = (<uint32_t>1 << sets.gpus) - 1
    cdef double quality = 1
    found.chosen, found.slowest, found.score = 0, 0, 0
    if k <= 0 or k > bits(free):
        return found
    sets.look(free)
    found.chosen = sets.best[free, k]
    if plugin:
        found.chosen = sets.allocator.pick(free, k)
    found.slowest = sets.slowest[found.chosen]
    if k > 1:
        sets.look(full)
        top = sets.best[full, k]
        quality = (SLOWEST * min(1.0, <double>found.slowest / max(best, sets.slowest[top]))
                   + (1 - SLOWEST) * min(1.0, <double>sets.sum[found.chosen] / sets.sum[top]))
    found.score = quality - (sets.worth[free] - sets.worth[free ^ found.chosen])
    return found


def connect(sets, at, free, k, best, plugin=False):
    """The GPUs that a job of `k` would get on each of n nodes, and how good that is.

    The score is the set's quality less what the node's free GPUs lose in worth. Quality is 0.95 of the
    slowest pair's bandwidth over `best`, and 0.05 of the total over that of the best set of the whole
    matrix; 1 for one GPU.

    Parameters
    ----------
    sets : list of Sets
    at : int32[n]
        Which of them each node has; -1 for a node whose links are not known.
    free : uint32[n]
        Mask of the free GPUs.
    k : int
    best : int32[len(sets)]
        MB/s between the slowest two of the best `k` GPUs that the card type offers; less than the matrix
        itself offers has no effect.
    plugin : bool
        The stock device plugin picks the GPUs, by its best-effort policy.

    Returns
    -------
    chosen : uint32[n]
        Masks; 0 where links are not known or fewer than `k` are free, and score and slowest are 0 there too.
    score : float64[n]
        -1 to 1.
    slowest : int32[n]
        MB/s of the slowest pair; INT32_MAX for one GPU.

    Raises
    ------
    ValueError
        If arrays do not agree, an index is not in `sets`, a mask has other GPUs than the matrix, or `k` is
        negative.
    TypeError
        If `sets` is not a list of Sets.
    """
    cdef list tables = sets
    cdef const int32_t[::1] index = exact(at, "at", "int32", (-1,))
    cdef Py_ssize_t i, n = index.shape[0]
    cdef const uint32_t[::1] masks = exact(free, "free", "uint32", (n,))
    cdef const int32_t[::1] offered = exact(best, "best", "int32", (len(tables),))
    cdef int64_t size = whole_number(k, "k", 0, INT32_MAX)
    cdef bint by_plugin = plugin
    cdef Sets table
    cdef Linked found
    chosen, score, slowest = np.zeros(n, np.uint32), np.zeros(n, np.float64), np.zeros(n, np.int32)
    cdef uint32_t[::1] put_chosen = chosen
    cdef double[::1] put_score = score
    cdef int32_t[::1] put_slowest = slowest
    for one in tables:
        if not isinstance(one, Sets):
            raise TypeError(f"sets must hold Sets, not a {type(one).__name__}.")
    for i in range(n):
        if index[i] < -1 or index[i] >= len(tables):
            raise ValueError(f"at[{i}] is {index[i]}, but there are only sets 0 to {len(tables) - 1}.")
        if index[i] < 0:
            continue
        table = <Sets>tables[index[i]]
        if masks[i] >> table.gpus:
            raise ValueError(f"free[{i}] is {masks[i]:#b}, but its matrix has only {table.gpus} GPUs.")
        found = link(table, masks[i], size, offered[index[i]], by_plugin)
        put_chosen[i], put_score[i], put_slowest[i] = found.chosen, found.score, found.slowest
    return chosen, score, slowest
