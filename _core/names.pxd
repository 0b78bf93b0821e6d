# Node names by row, as `encode` copies them.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef struct Fragment:
    int64_t offset      # of `"name"` in the arena
    int32_t length      # with both quotes; 0 = the row has no name
    int32_t following   # the row that came next in the last request; a guess
    uint64_t stamp      # of the last request that named the row

cdef struct Slot:
    uint32_t hash
    int32_t row         # -1 = empty


cdef class NameIndex:
    cdef char* arena
    cdef int64_t arena_size
    cdef int64_t arena_used
    cdef int64_t arena_dead         # bytes of removed names
    cdef Fragment* fragments        # by row
    cdef Py_ssize_t rows            # allocated in `fragments`
    cdef Slot* slots                # open addressing, at most half full
    cdef Py_ssize_t mask            # slots - 1
    cdef Py_ssize_t count
    cdef uint64_t stamp

    cdef int32_t find(self, const char* text, Py_ssize_t length) noexcept nogil
    cdef Py_ssize_t scan(self, const char* at, const char* end, int32_t* out) noexcept nogil
    cdef void link(self, uint32_t hash, int32_t row) noexcept nogil
    cdef int grow_rows(self, Py_ssize_t rows) except -1
    cdef int grow_slots(self, Py_ssize_t slots) except -1
    cdef int make_room(self, Py_ssize_t length) except -1
    cdef tuple read_slowly(self, bytes raw)
