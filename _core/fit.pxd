# What `fit` says of a row.

from _core.columns cimport Ask, Table

cpdef enum:
    FITS = 0
    CONTENDED = 1
    UNKNOWN = 2
    CLOSED = 3
    LACKING = 4
    TAKEN = 5
    MEMORY_UNKNOWN = 6
    MEMORY_TOO_SMALL = 7
    MEMORY_TAKEN = 8
    LINKS_UNKNOWN = 9
    LINKS_TOO_SLOW = 10
    LINKS_TAKEN = 11
    STALE = 12
    UNHEALTHY = 13
    OCCUPIED = 14
    WATERMARK = 15

cdef int verdict(Table table, Py_ssize_t row, Ask ask) noexcept nogil
