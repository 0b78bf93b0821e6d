# The best-connected sets of GPUs of one link matrix, as other kernels look them up.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t

from _core.allocator cimport Allocator

cdef struct Linked:
    # what a job of k GPUs gets
    uint32_t chosen     # the set as a mask, 0 = not that many are free
    int32_t slowest     # MB/s of its slowest pair
    double score        # -1 to 1


cdef class Sets:
    cdef readonly int gpus                      # G
    cdef readonly object bottleneck             # int32[2^G], what Python reads
    cdef readonly object total                  # int32[2^G]
    cdef readonly object kept                   # float64[2^G]
    cdef readonly object nvlink                 # bool[2^G]
    cdef const unsigned char[::1] nvlinked      # the same
    cdef int32_t[::1] slowest                   # MB/s of the slowest pair of the set
    cdef int32_t[::1] sum                       # MB/s of all its pairs
    cdef int32_t[::1] ranks                     # their PCIe and NUMA ranks, added
    cdef double[::1] worth                      # of the set while it is free, 0 to 1
    cdef uint16_t[:, ::1] best                  # [2^G, G + 1] best subset by free mask and size
    cdef unsigned char[::1] known               # [2^G] whether best has the mask
    cdef readonly Allocator allocator           # what the device plugin does with the same GPUs
    cdef void look(self, uint32_t free) noexcept nogil


cdef Linked link(Sets sets, uint32_t free, int64_t k, int32_t best, bint plugin) noexcept nogil
