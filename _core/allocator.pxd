# The stock device plugin's choice of GPUs, and what both kinds of tables over sets of GPUs share.

from libc.stdint cimport int32_t, uint16_t, uint32_t

cdef enum:
    MOST_GPUS = 16      # a set is a bit mask of 16 bits
    AHEAD = 8           # up to so many GPUs, everything is worked out when a table is built


cdef class Allocator:
    cdef readonly int gpus                      # G
    cdef int32_t[::1] points                    # [2^G] of the set's pairs, added
    cdef uint16_t[:, ::1] first                 # [G + 1, 2^G] first set of the partition, by size and mask
    cdef unsigned char[::1] partitioned         # [G + 1] whether first has the size
    cdef uint32_t pick(self, uint32_t free, int k) noexcept nogil
    cdef void add_up(self, const int32_t[:, ::1] pairs) noexcept nogil
    cdef void partition(self, int k) noexcept nogil
    cdef int32_t partition_points(self, int k, uint32_t mask) noexcept nogil


cdef object square(object array, str name, Py_ssize_t gpus, int32_t least)


cdef inline int bits(uint32_t mask) noexcept nogil:
    """How many GPUs; the compiler's own is a call where the processor is not named."""
    mask -= mask >> 1 & <uint32_t>0x55555555
    mask = (mask & <uint32_t>0x33333333) + (mask >> 2 & <uint32_t>0x33333333)
    return ((mask + (mask >> 4)) & <uint32_t>0x0F0F0F0F) * <uint32_t>0x01010101 >> 24


cdef inline uint32_t lowest(uint32_t mask) noexcept nogil:
    return mask & (0 - mask)


cdef inline bint lower(uint32_t a, uint32_t b) noexcept nogil:
    """Whether a comes before b, both of one size and written as ascending numbers."""
    return (a & lowest(a ^ b)) != 0
