# Score and rank of rows, for one pod after another.

from libc.stdint cimport int8_t, int32_t, uint32_t

from _core.columns cimport Ask, Table
from _core.demand cimport Demand

cdef double points(Table table, Py_ssize_t row, int8_t code, Ask ask, Demand demand) noexcept nogil
cdef Py_ssize_t rank(const int8_t[::1] codes, const double[::1] scores, const uint32_t[::1] order,
                     int32_t[::1] heap) noexcept nogil
cdef void grade_all(const int8_t[::1] codes, const double[::1] scores, Py_ssize_t top,
                    int8_t[::1] grades) noexcept nogil
