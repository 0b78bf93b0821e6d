# What a placement costs of the block that a row could give back, as the score asks about it.

from libc.stdint cimport int64_t


cdef inline double reclaimable(int64_t cards, int64_t free, int64_t lent, int64_t takes, bint borrowed) noexcept nogil:
    """GPUs, from -takes to 0; 0 for a row without cards, and for a pod that sits only on cards that are pinned."""
    cdef double block
    if cards <= 0 or takes <= 0:
        return 0
    block = <double>min(max(free + lent, 0), cards) / cards
    return takes * (block - 1) if borrowed else 0 - takes * block
