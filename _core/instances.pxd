# A pod's MIG instances on one row.

from libc.stdint cimport int32_t

from _core.columns cimport Ask, Table

cdef enum:
    PLACE = 4               # numbers that tell an instance's place: resource, card, start, bits

cdef bint asks_instances(Table table, Py_ssize_t row, Ask ask) noexcept nogil
cdef bint can_cut(Table table, Py_ssize_t row, Ask ask, bint soft, int32_t* places) noexcept nogil
cdef double instances_worth(Table table, Py_ssize_t row, Ask ask, bint soft) noexcept nogil
cdef double instances_left(Table table, Py_ssize_t row, bint soft) noexcept nogil
cdef double instances_asked(Table table, Py_ssize_t row, Ask ask) noexcept nogil
