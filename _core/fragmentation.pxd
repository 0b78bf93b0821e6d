# What a row's room is worth to a demand, and what a placement makes of it.

from libc.stdint cimport int32_t

from _core.columns cimport Ask, Table
from _core.demand cimport Demand

cdef struct Choice:
    double value        # the better, the higher
    Py_ssize_t first    # the card for the first share; -1: the fullest

cdef Choice weigh(Table table, Py_ssize_t row, Ask ask, bint soft, Demand demand) noexcept nogil
