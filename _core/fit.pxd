# What `fit` says of a row.

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
