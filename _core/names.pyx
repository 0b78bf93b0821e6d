# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Node names to rows and back, over the bytes of the request.

A Filter call names thousands of nodes, so reading the names costs more than judging the nodes. The scan works
on the raw JSON: it first guesses that the next name is the one that followed last time (the scheduler keeps
its order), which costs one memcmp, and else hashes the bytes between the quotes. Whatever is odd (an escape,
a name that is not ASCII, an unknown name, another token) hands the whole text to the json module, which gives
the same answer or the error. Names are kept as JSON fragments, so that `encode` only copies them.

The GIL is kept throughout, since an insert by another thread may move the memory that is being read. Without
a GIL, an index is for one thread at a time.
"""

import json
from operator import index

import numpy as np

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy


cdef enum:
    ABSENT = -1
    ODD = -2


cdef class NameIndex:
    """Node names <-> rows. Rows are whatever int32 numbers the book gives out, dense and reused."""

    def __cinit__(self):
        self.grow_rows(64)
        self.grow_slots(128)

    def __dealloc__(self):
        free(self.arena)
        free(self.fragments)
        free(self.slots)

    def __len__(self):
        return self.count

    def insert(self, str name, row):
        """Give `row` this name.

        Raises
        ------
        ValueError
            If the name or the row is taken, if the row is not from 0 to 2**31 - 2, or if the name has
            characters that JSON escapes or that are not ASCII (Kubernetes names are DNS-1123).
        """
        cdef Py_ssize_t length = len(name) + 2
        cdef int32_t at
        cdef bytes fragment
        cdef Fragment* new
        number = index(row)
        if not 0 <= number < INT32_MAX:
            raise ValueError(f"The row of node {name!r} must be from 0 to {INT32_MAX - 1}, not {number}.")
        if not name.isascii() or not name.isprintable() or '"' in name or "\\" in name:
            raise ValueError(f"Node name {name!r} cannot be kept: JSON does not write it as it is, in ASCII.")
        fragment = b'"' + name.encode("ascii") + b'"'
        at = self.find(<const char*>fragment + 1, length - 2)
        if at != ABSENT:
            raise ValueError(f"Node {name!r} already has row {at}; remove it first.")
        at = number
        if at < self.rows and self.fragments[at].length > 0:
            raise ValueError(f"Row {at} already belongs to node {self.name(at)!r}; remove that first.")
        self.grow_rows(at + 1)
        self.grow_slots(2 * (self.count + 1))
        self.make_room(length)
        new = &self.fragments[at]
        new.offset, new.length, new.following = self.arena_used, length, at + 1
        memcpy(self.arena + self.arena_used, <const char*>fragment, length)
        self.arena_used += length
        self.link(hash_of(<const char*>fragment + 1, length - 2), at)
        self.count += 1

    def remove(self, str name):
        """Forget a name; its row is free again.

        Raises
        ------
        ValueError
            If no node has this name.
        """
        cdef Py_ssize_t hole, probe, home
        cdef int32_t row = self.get(name)
        cdef Fragment* gone
        if row == ABSENT:
            raise ValueError(f"There is no node {name!r} to remove.")
        gone = &self.fragments[row]
        hole = hash_of(self.arena + gone.offset + 1, gone.length - 2) & self.mask
        while self.slots[hole].row != row:
            hole = (hole + 1) & self.mask
        # Later entries of the same run move up, so no tombstones are left for searches to cross.
        probe = hole
        while True:
            probe = (probe + 1) & self.mask
            if self.slots[probe].row == ABSENT:
                break
            home = self.slots[probe].hash & self.mask
            if ((probe - home) & self.mask) >= ((probe - hole) & self.mask):
                self.slots[hole] = self.slots[probe]
                hole = probe
        self.slots[hole].row = ABSENT
        self.arena_dead += gone.length
        gone.length = 0
        self.count -= 1

    def get(self, str name):
        """The row of a name, -1 if there is none."""
        cdef bytes text
        if not name.isascii():
            return ABSENT
        text = name.encode("ascii")
        return self.find(<const char*>text, len(text))

    def name(self, row):
        """The name of a row.

        Raises
        ------
        ValueError
            If the row has none.
        """
        number = index(row)
        if not 0 <= number < self.rows or self.fragments[<Py_ssize_t>number].length == 0:
            raise ValueError(f"Row {number} has no node name.")
        cdef Fragment* found = &self.fragments[<Py_ssize_t>number]
        return self.arena[found.offset + 1:found.offset + found.length - 1].decode("ascii")

    def lookup(self, const unsigned char[::1] raw not None):
        """Read a JSON array of node names.

        Parameters
        ----------
        raw : bytes
            The array as it stands in the request (anything with contiguous bytes).

        Returns
        -------
        rows : int32[n]
            Rows of the known names in the order of the request, each once.
        unknown : list of str
            Names without a row, in order, each once; a lone surrogate is read as U+FFFD, as Go does.

        Raises
        ------
        ValueError
            If `raw` is not a JSON array of strings.
        """
        cdef Py_ssize_t size = raw.shape[0], found
        cdef const char* start = <const char*>&raw[0] if size > 0 else NULL
        cdef int32_t[::1] view
        # A name takes three bytes at least: two quotes and a comma.
        rows = np.empty(min(self.count, size // 3) + 1, np.int32)
        view = rows
        self.stamp += 1
        found = self.scan(start, start + size, &view[0])
        if found == ODD:
            return self.read_slowly(bytes(raw))
        return rows[:found], []

    cdef Py_ssize_t scan(self, const char* at, const char* end, int32_t* out) noexcept nogil:
        """Rows of a plain array of known names into `out`: how many, or ODD."""
        cdef Py_ssize_t found = 0
        cdef int32_t row = 0, last = ABSENT
        cdef Fragment* guess
        cdef const char* close
        at = after_space(at, end)
        if at == end or at[0] != c"[":
            return ODD
        at = after_space(at + 1, end)
        if at < end and at[0] == c"]":
            return 0 if after_space(at + 1, end) == end else ODD
        while True:
            guess = &self.fragments[row]
            if (row < self.rows and 0 < guess.length <= end - at
                    and memcmp(at, self.arena + guess.offset, guess.length) == 0):
                at += guess.length
            else:
                if at == end or at[0] != c'"':
                    return ODD
                close = <const char*>memchr(at + 1, c'"', end - at - 1)
                if close == NULL:
                    return ODD
                row = self.find(at + 1, close - at - 1)
                if row == ABSENT:
                    return ODD
                at = close + 1
                if last != ABSENT:
                    self.fragments[last].following = row
                guess = &self.fragments[row]
            if guess.stamp != self.stamp:
                guess.stamp = self.stamp
                out[found] = row
                found += 1
            last = row
            row = guess.following
            at = after_space(at, end)
            if at == end:
                return ODD
            if at[0] == c"]":
                return found if after_space(at + 1, end) == end else ODD
            if at[0] != c",":
                return ODD
            at = after_space(at + 1, end)

    cdef int32_t find(self, const char* text, Py_ssize_t length) noexcept nogil:
        cdef uint32_t hash = hash_of(text, length)
        cdef Py_ssize_t at = hash & self.mask
        cdef Fragment* fragment
        while self.slots[at].row != ABSENT:
            if self.slots[at].hash == hash:
                fragment = &self.fragments[self.slots[at].row]
                if (fragment.length == length + 2
                        and memcmp(self.arena + fragment.offset + 1, text, length) == 0):
                    return self.slots[at].row
            at = (at + 1) & self.mask
        return ABSENT

    cdef void link(self, uint32_t hash, int32_t row) noexcept nogil:
        cdef Py_ssize_t at = hash & self.mask
        while self.slots[at].row != ABSENT:
            at = (at + 1) & self.mask
        self.slots[at].hash, self.slots[at].row = hash, row

    cdef int grow_rows(self, Py_ssize_t rows) except -1:
        cdef Py_ssize_t row
        cdef Fragment* larger
        if rows <= self.rows:
            return 0
        rows = max(rows, 2 * self.rows)
        larger = <Fragment*>realloc(self.fragments, rows * sizeof(Fragment))
        if larger == NULL:
            raise MemoryError
        for row in range(self.rows, rows):
            larger[row].length, larger[row].stamp = 0, 0
        self.fragments, self.rows = larger, rows
        return 0

    cdef int grow_slots(self, Py_ssize_t slots) except -1:
        cdef Py_ssize_t at, size = self.mask + 1
        cdef Slot* old = self.slots
        if slots <= size and old != NULL:
            return 0
        size = max(slots, 2 * size)
        while size & (size - 1):
            size += size & -size
        self.slots = <Slot*>malloc(size * sizeof(Slot))
        if self.slots == NULL:
            self.slots = old
            raise MemoryError
        for at in range(size):
            self.slots[at].row = ABSENT
        slots = self.mask + 1 if old != NULL else 0
        self.mask = size - 1
        for at in range(slots):
            if old[at].row != ABSENT:
                self.link(old[at].hash, old[at].row)
        free(old)
        return 0

    cdef int make_room(self, Py_ssize_t length) except -1:
        """Room for `length` more bytes at the end of the arena; removed names are squeezed out on the way."""
        cdef int64_t size, used = 0
        cdef Py_ssize_t row
        cdef Fragment* kept
        cdef char* arena
        if self.arena_used + length <= self.arena_size:
            return 0
        size = 2 * (self.arena_used - self.arena_dead + length)
        arena = <char*>malloc(size)
        if arena == NULL:
            raise MemoryError
        for row in range(self.rows):
            kept = &self.fragments[row]
            if kept.length > 0:
                memcpy(arena + used, self.arena + kept.offset, kept.length)
                kept.offset = used
                used += kept.length
        free(self.arena)
        self.arena, self.arena_size, self.arena_used, self.arena_dead = arena, size, used, 0
        return 0

    cdef tuple read_slowly(self, bytes raw):
        try:
            names = json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"The node names are not readable as JSON: {error}.") from None
        if not isinstance(names, list):
            raise ValueError(f"The node names must be a JSON array of strings, not {json_kind(names)}.")
        rows, unknown = {}, {}
        for place, name in enumerate(names):
            if not isinstance(name, str):
                raise ValueError(f"Node name {place} must be a string, not {json_kind(name)}.")
            row = self.get(name)
            if row == ABSENT:
                unknown[name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")] = None
            else:
                rows[row] = None
        return np.array(list(rows), np.int32), list(unknown)


cdef inline const char* after_space(const char* at, const char* end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t"):
        at += 1
    return at


cdef inline uint32_t hash_of(const char* text, Py_ssize_t length) noexcept nogil:
    """Eight bytes at a time, the last overlapping; the shift brings the product's good upper bits down."""
    cdef uint64_t hash = length, word = 0
    cdef const char* last = text + length - 8
    if length < 8:
        memcpy(&word, text, length)
        return <uint32_t>stirred(hash, word)
    while text < last:
        memcpy(&word, text, 8)
        hash = stirred(hash, word)
        text += 8
    memcpy(&word, last, 8)
    return <uint32_t>stirred(hash, word)


cdef inline uint64_t stirred(uint64_t hash, uint64_t word) noexcept nogil:
    hash = (hash ^ word) * <uint64_t>0x9E3779B97F4A7C15
    return hash ^ (hash >> 32)


cdef str json_kind(object value):
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
