# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Which GPUs the stock device plugin hands out: the best-effort policy of NVIDIA's go-gpuallocator.

The plugin, not the scheduler, picks the physical GPUs of a node. Its policy gives every pair points, splits
the free GPUs into sets of the asked size so that the points within the sets add up to the most, and hands
out the set with the most points. Sets are bit masks: bit i is GPU i of the matrix.
"""

import numpy as np

from libc.stdint cimport INT32_MAX, int32_t, uint32_t

from _core.checks cimport exact, whole_number

cdef enum:
    MOST = 8000000      # per pair; keeps the sum over all pairs within 32 bits


cdef class Allocator:
    """The policy on one matrix of G GPUs, 1 to 16.

    Up to 8 GPUs all answers are worked out here; above, those for a size when it is first asked for, and
    kept: at most 3 MB for 16 GPUs.

    Parameters
    ----------
    points : int32[G, G]
        Per pair: symmetric, 0 to 8,000,000; the diagonal means nothing.

    Raises
    ------
    ValueError
        If `points` is not such a matrix.
    """

    def __cinit__(self, points):
        cdef const int32_t[:, ::1] pairs = square(points, "points", -1, 0)
        cdef Py_ssize_t masks = <Py_ssize_t>1 << pairs.shape[0]
        cdef int k
        self.gpus = pairs.shape[0]
        self.points = np.zeros(masks, np.int32)
        self.first = np.zeros((self.gpus + 1, masks), np.uint16)
        self.partitioned = np.zeros(self.gpus + 1, np.uint8)
        with nogil:
            self.add_up(pairs)
            if self.gpus <= AHEAD:
                for k in range(1, self.gpus + 1):
                    self.partition(k)

    def choose(self, free, k):
        """The set of `k` GPUs of the mask `free` that is handed out, as a mask; 0 if there are not so many.

        The policy can end in a set with fewer GPUs than asked for; the lowest free ones then fill it up.

        Raises
        ------
        ValueError
            If `free` is not a mask of these GPUs, or `k` is negative.
        """
        cdef uint32_t mask = whole_number(free, "free", 0, (1 << self.gpus) - 1)
        cdef int32_t size = whole_number(k, "k", 0, INT32_MAX)
        return self.pick(mask, size) if 0 < size <= bits(mask) else 0

    cdef uint32_t pick(self, uint32_t free, int k) noexcept nogil:
        """The first set with the most points of the best partition; `k` is 1 to as many as are free."""
        cdef uint32_t part, chosen, rest = free
        self.partition(k)
        chosen = self.first[k, free]
        while rest > 0:
            part = self.first[k, rest]
            if self.points[part] > self.points[chosen]:
                chosen = part
            rest ^= part
        while bits(chosen) < k:
            chosen |= lowest(free & ~chosen)
        return chosen

    cdef void add_up(self, const int32_t[:, ::1] pairs) noexcept nogil:
        cdef uint32_t mask, others
        cdef int i, j
        for mask in range(<uint32_t>1, <uint32_t>1 << self.gpus):
            others = mask ^ lowest(mask)
            i = bits(lowest(mask) - 1)
            self.points[mask] = self.points[others]
            for j in range(i + 1, self.gpus):
                if others >> j & 1:
                    self.points[mask] += pairs[i, j]

    cdef void partition(self, int k) noexcept nogil:
        """Work out the plugin's best partition into sets of k, of every mask, unless it is known.

        The plugin adds nil until k divides the GPUs; one set takes all of it. It takes the partition with the
        most points, of several the first; sets are counted up with nil as the highest numbers.
        """
        cdef uint32_t mask, low, others, sub, part, found
        cdef int32_t points, most
        cdef int nil, count
        if self.partitioned[k]:
            return
        for mask in range(<uint32_t>1, <uint32_t>1 << self.gpus):
            low = mask & (0 - mask)
            others = sub = mask ^ low
            nil = (k - bits(mask) % k) % k
            found, most = 0, -1
            while True:
                part = low | sub
                count = bits(part)
                if count == k or count == k - nil:
                    points = self.points[part] + self.partition_points(k, mask ^ part)
                    if points > most or (
                        points == most and lower(padded(part, k, self.gpus), padded(found, k, self.gpus))
                    ):
                        found, most = part, points
                if sub == 0:
                    break
                sub = (sub - 1) & others
            self.first[k, mask] = found
        self.partitioned[k] = 1

    cdef int32_t partition_points(self, int k, uint32_t mask) noexcept nogil:
        cdef int32_t points = 0
        while mask > 0:
            points += self.points[self.first[k, mask]]
            mask ^= self.first[k, mask]
        return points


cdef inline uint32_t padded(uint32_t part, int k, int gpus) noexcept nogil:
    """The set with nil for what it lacks to k, as numbers above all GPUs."""
    return part | (((<uint32_t>1 << (k - bits(part))) - 1) << gpus)


cdef object square(object array, str name, Py_ssize_t gpus, int32_t least):
    """`array` if it is symmetric int32[G, G] within the bounds off its diagonal, else ValueError."""
    cdef const int32_t[:, ::1] view = exact(array, name, "int32", (gpus, gpus))
    cdef Py_ssize_t i, j
    if not (0 < view.shape[0] <= MOST_GPUS and view.shape[0] == view.shape[1]):
        raise ValueError(f"{name} must be for 1 to {MOST_GPUS} GPUs, not of shape {array.shape}.")
    for i in range(view.shape[0]):
        for j in range(i):
            if view[i, j] != view[j, i]:
                raise ValueError(f"{name}[{i}, {j}] is {view[i, j]}, but {name}[{j}, {i}] is {view[j, i]}.")
            if not least <= view[i, j] <= MOST:
                raise ValueError(f"{name}[{i}, {j}] is {view[i, j]}; it must be from {least} to {MOST}.")
    return array
