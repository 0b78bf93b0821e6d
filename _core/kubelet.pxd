# What may come of a pod on a row whose cards the kubelet picks.

from _core.cards cimport Need, Row
from _core.columns cimport Table

cdef int may_give_trouble(Table table, Py_ssize_t row, const Row* cards, Need need) noexcept nogil
cdef bint may_overfill(Table table, Py_ssize_t row, Row* cards, Need need) noexcept nogil
