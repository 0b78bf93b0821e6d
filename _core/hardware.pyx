# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What the kinds of the book's nodes are made of: how their cards can be cut, how they are linked.

Nodes share few kinds, so rows hold an index and the tables stand here once. Immutable: with other nodes, or another
demand for MIG instances, the book makes a new one.
"""

import numpy as np

from libc.stdlib cimport free, malloc

from _core.allocator cimport MOST_GPUS
from _core.checks cimport exact
from _core.mig cimport Slices
from _core.topology cimport Sets

cdef int PER_MILLE = 1000


cdef class Hardware:
    """The kinds of hardware of a book that knows R extended resources.

    Parameters
    ----------
    slices : list of S Slices
        By model whose cards are cut on demand.
    profiles : int32[S, R]
        Which profile of the model each resource is; -1: none.
    units : int32[S]
        Placement units of a card of the model: the lowest bits of an occupancy.
    links : list of T Sets
        By topology.
    offers : int32[T, 17]
        MB/s between the slowest two of the best k cards that the topology's card type offers anywhere.
    parts : int32[R]
        Per mille of a card that one of the resource is, from 1; 0: not a MIG instance.

    Raises
    ------
    ValueError
        If the arrays do not agree, a profile is not in its tables, or a part is out of range.
    TypeError
        If a table is not of the named class.
    """

    def __cinit__(self, *, slices, profiles, units, links, offers, parts):
        cdef Py_ssize_t i
        self.slices, self.links = tuple(slices), tuple(links)
        self.models, self.topologies = len(self.slices), len(self.links)
        self.kinds = len(parts)
        exact(parts, "parts", "int32", (-1,))
        exact(profiles, "profiles", "int32", (self.models, self.kinds))
        exact(units, "units", "int32", (self.models,))
        exact(offers, "offers", "int32", (self.topologies, MOST_GPUS + 1))
        if self.kinds == 0 or parts.min() < 0 or parts.max() > PER_MILLE:
            raise ValueError(f"parts must be from 0 to {PER_MILLE} for at least one resource, not {parts}.")
        for tables, kind in ((self.slices, Slices), (self.links, Sets)):
            for one in tables:
                if not isinstance(one, kind):
                    raise TypeError(f"{kind.__name__} are wanted, not a {type(one).__name__}.")
        for one, rows in zip(self.slices, profiles):
            if rows.min() < -1 or rows.max() >= one.profiles:
                raise ValueError(f"profiles must be from -1 to {one.profiles - 1}, not {rows.tolist()}.")
        if self.models and (units.min() < 1 or units.max() > 16):
            raise ValueError(f"units must be from 1 to 16, not {units.tolist()}.")
        self.profiles, self.units, self.parts = profiles.copy(), units.copy(), parts.copy()
        self.offers = offers.copy()
        for array in (self.profiles, self.units, self.parts, self.offers):
            array.flags.writeable = False
        self.profile, self.units_of, self.part, self.offer = self.profiles, self.units, self.parts, self.offers
        self.instances = np.count_nonzero(parts)
        self.slices_at = <size_t*>malloc(max(self.models, 1) * sizeof(size_t))
        self.links_at = <size_t*>malloc(max(self.topologies, 1) * sizeof(size_t))
        if not self.slices_at or not self.links_at:
            raise MemoryError
        for i in range(self.models):
            self.slices_at[i] = <size_t><void*>self.slices[i]
        for i in range(self.topologies):
            self.links_at[i] = <size_t><void*>self.links[i]

    def __dealloc__(self):
        free(self.slices_at)
        free(self.links_at)

    @staticmethod
    def none(kinds):
        """Of a book that knows `kinds` resources, none of them a MIG instance, and no kind of node."""
        return Hardware(
            slices=(), profiles=np.zeros((0, kinds), np.int32), units=np.zeros(0, np.int32), links=(),
            offers=np.zeros((0, MOST_GPUS + 1), np.int32), parts=np.zeros(kinds, np.int32),
        )
