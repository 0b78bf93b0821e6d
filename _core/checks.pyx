# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What is asked of arguments, once per call, so that the loops need no checks: types, shapes, ranges."""

from operator import index

import numpy as np

from libc.stdint cimport int32_t, int64_t


cdef object exact(object array, str name, str dtype, tuple shape):
    """`array` if it is a C-contiguous array of this type and shape (-1: any length), else ValueError."""
    if isinstance(array, np.ndarray):
        if (array.dtype == dtype and array.flags.c_contiguous and array.ndim == len(shape)
                and all([want in (-1, got) for want, got in zip(shape, array.shape)])):
            return array
        layout = "" if array.flags.c_contiguous else "non-contiguous "
        got = f"a {layout}{array.dtype} array of shape {array.shape}"
    else:
        got = f"a {type(array).__name__}"
    wanted = str(shape).replace("-1", "n")
    raise ValueError(f"{name} must be a C-contiguous {dtype} array of shape {wanted}, not {got}.")


cdef int64_t whole_number(object value, str name, int64_t least, int64_t most) except? -1:
    number = index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {number}.")
    return number


cdef const int32_t[::1] indices(object array, str name, Py_ssize_t limit):
    """A view of an int32[n] array whose values all lie in 0..limit-1, else ValueError."""
    cdef const int32_t[::1] view = exact(array, name, "int32", (-1,))
    cdef Py_ssize_t wrong = _outside(view, limit)
    if wrong >= 0:
        raise ValueError(f"{name}[{wrong}] is {view[wrong]}, but there are only rows 0 to {limit - 1}.")
    return view


cdef Py_ssize_t _outside(const int32_t[::1] view, Py_ssize_t limit) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        if view[i] < 0 or view[i] >= limit:
            return i
    return -1
