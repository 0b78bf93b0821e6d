# What a pod's whole cards get of the links of one row.

from libc.stdint cimport int64_t

from _core.cards cimport Row
from _core.columns cimport Ask, Table
from _core.topology cimport Linked

cdef Linked linked(Table table, Py_ssize_t row, const Row* there, int64_t whole) noexcept nogil
cdef int links_verdict(Table table, Py_ssize_t row, const Row* there, Ask ask, int64_t whole) noexcept nogil
cdef double links_worth(Table table, Py_ssize_t row, const Row* there, int64_t whole) noexcept nogil
