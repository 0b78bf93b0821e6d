# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Answers as bytes, copied together from fragments that exist already.

Names stand in the NameIndex as JSON, reasons come as JSON, and scores are eleven digits: each function
measures its answer, allocates it once and copies. As in `names`, the GIL is kept while names are read.
"""

from libc.stdint cimport int8_t, int32_t, int64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_FromStringAndSize

from _core.checks cimport exact, indices
from _core.names cimport NameIndex

cdef const char* DIGITS = "0123456789"
cdef const char* HOST = '{"Host":'
cdef const char* SCORE = ',"Score":'

cdef enum:
    FEW_CODES = 64      # codes that `wanted` can name
    HOST_LENGTH = 8
    SCORE_LENGTH = 9


def names_json(NameIndex index not None, rows):
    """`["a","b"]`: the names of rows.

    Parameters
    ----------
    index : NameIndex
    rows : int32[n]

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If a row has no name.
    """
    cdef const int32_t[::1] at
    cdef Py_ssize_t i
    cdef bytes text
    cdef char* to
    at = named(index, rows)
    text = blank(2 + commas(at.shape[0]) + length_of_names(index, at))
    to = text
    to = copy(to, "[", 1)
    for i in range(at.shape[0]):
        to = copy_name(comma(to, i), index, at[i])
    copy(to, "]", 1)
    return text


def failures_json(NameIndex index not None, rows, codes, list fragments not None, wanted):
    """`{"a":"reason"}`: the reasons of the rows whose code is wanted.

    Parameters
    ----------
    index : NameIndex
    rows : int32[n]
    codes : int8[n]
    fragments : list of bytes
        By code, the reason as a JSON string with its quotes; at most 64.
    wanted : int
        Bit mask: a row with code c is told if `wanted >> c & 1`.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If a row has no name, a code has no fragment, or a fragment is not a JSON string.
    """
    cdef const int32_t[::1] at
    cdef const int8_t[::1] why
    cdef const char* reasons[FEW_CODES]
    cdef Py_ssize_t lengths[FEW_CODES]
    cdef bint told[FEW_CODES]
    cdef Py_ssize_t i, size = 0, count = 0, known = len(fragments)
    cdef bytes fragment, text
    cdef char* to
    if known > FEW_CODES:
        raise ValueError(f"fragments must be at most {FEW_CODES} reasons, not {known}.")
    for i in range(known):
        fragment = fragments[i]
        if len(fragment) < 2 or not fragment.startswith(b'"') or not fragment.endswith(b'"'):
            raise ValueError(f"fragments[{i}] must be a JSON string with its quotes, not {fragment!r}.")
        reasons[i], lengths[i], told[i] = fragment, len(fragment), wanted >> i & 1
    at = named(index, rows)
    why = exact(codes, "codes", "int8", (at.shape[0],))
    for i in range(at.shape[0]):
        if why[i] < 0 or why[i] >= known:
            raise ValueError(f"codes[{i}] is {why[i]}, but fragments has only 0 to {known - 1}.")
        if told[why[i]]:
            size += index.fragments[at[i]].length + 1 + lengths[why[i]]
            count += 1
    text = blank(2 + commas(count) + size)
    to = text
    to = copy(to, "{", 1)
    count = 0
    for i in range(at.shape[0]):
        if told[why[i]]:
            to = copy_name(comma(to, count), index, at[i])
            to = copy(to, ":", 1)
            to = copy(to, reasons[why[i]], lengths[why[i]])
            count += 1
    copy(to, "}", 1)
    return text


def priorities_json(NameIndex index not None, rows, grades):
    """`[{"Host":"a","Score":10}]`; a grade of 0 is left out, since the scheduler reads an omitted host as 0.

    Parameters
    ----------
    index : NameIndex
    rows : int32[n]
    grades : int8[n]
        0 to 10.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If a row has no name or a grade is not from 0 to 10.
    """
    cdef const int32_t[::1] at
    cdef const int8_t[::1] points
    cdef Py_ssize_t i, size = 0, count = 0
    cdef bytes text
    cdef char* to
    at = named(index, rows)
    points = exact(grades, "grades", "int8", (at.shape[0],))
    for i in range(at.shape[0]):
        if points[i] < 0 or points[i] > 10:
            raise ValueError(f"grades[{i}] must be from 0 to 10, not {points[i]}.")
        if points[i] > 0:
            size += HOST_LENGTH + index.fragments[at[i]].length + SCORE_LENGTH + 2 + points[i] // 10
            count += 1
    text = blank(2 + commas(count) + size)
    to = text
    to = copy(to, "[", 1)
    count = 0
    for i in range(at.shape[0]):
        if points[i] > 0:
            to = copy(comma(to, count), HOST, HOST_LENGTH)
            to = copy(copy_name(to, index, at[i]), SCORE, SCORE_LENGTH)
            if points[i] == 10:
                to = copy(to, "10}", 3)
            else:
                to = copy(copy(to, DIGITS + points[i], 1), "}", 1)
            count += 1
    copy(to, "]", 1)
    return text


cdef const int32_t[::1] named(NameIndex index, object rows):
    """A view of int32[n] rows that all have names, else ValueError."""
    cdef const int32_t[::1] at = indices(rows, "rows", index.rows)
    cdef Py_ssize_t i
    for i in range(at.shape[0]):
        if index.fragments[at[i]].length == 0:
            raise ValueError(f"rows[{i}] is {at[i]}, a row that has no node name.")
    return at


cdef int64_t length_of_names(NameIndex index, const int32_t[::1] rows) noexcept nogil:
    cdef int64_t length = 0
    cdef Py_ssize_t i
    for i in range(rows.shape[0]):
        length += index.fragments[rows[i]].length
    return length


cdef inline Py_ssize_t commas(Py_ssize_t count) noexcept nogil:
    return max(count - 1, 0)


cdef bytes blank(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline char* copy(char* to, const char* text, Py_ssize_t length) noexcept nogil:
    memcpy(to, text, length)
    return to + length


cdef inline char* copy_name(char* to, NameIndex index, int32_t row) noexcept nogil:
    return copy(to, index.arena + index.fragments[row].offset, index.fragments[row].length)


cdef inline char* comma(char* to, Py_ssize_t place) noexcept nogil:
    """A comma before every entry but the first."""
    return copy(to, ",", 1) if place > 0 else to
