# Checks of arguments; each raises a ValueError whose sentence names the argument.

from libc.stdint cimport int32_t, int64_t

cdef object exact(object array, str name, str dtype, tuple shape)
cdef int64_t whole_number(object value, str name, int64_t least, int64_t most) except? -1
cdef const int32_t[::1] indices(object array, str name, Py_ssize_t limit)
