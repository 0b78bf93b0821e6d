# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""Thousands of placements in one call, for benches: pods come, are placed as `fit`, `score`, `best`, `grade` and
`seat` say, and leave.

It calls what these call, row by row, on a table of its own. What was said of a row for an ask is kept until the
row changes, as the book does. Cores, memory and models stand for the scheduler's own filters; there are no soft
claims. A pod that does not fit when it comes is lost.
"""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t, uint64_t

from _core.cards cimport Row, Seats, card_at, choose, need_on, row_at, share_cost
from _core.checks cimport exact, indices, whole_number
from _core.columns cimport MOST_CARDS, Ask, Table, known_resources
from _core.demand cimport Demand
from _core.fit cimport CONTENDED, UNKNOWN, verdict
from _core.fragmentation cimport weigh
from _core.score cimport grade_all, points, rank


cdef class Replay:
    """A cluster of N rows into which pods of A shapes come.

    Parameters
    ----------
    table : Table
        Copied.
    asks : list of A Ask
    memory, models : int64[N], uint32[N]
        What a row has of memory, and its model as one bit.
    memory_asked, models_allowed : int64[A], uint32[A]
        The same by shape; a row does when it has any of the bits.
    pods : int32[P]
        The shape of every pod.
    sample : int
        Stop looking after so many rows that fit, and go on from there for the next pod, as kube-scheduler does; 0
        looks at all.
    graded : bool
        Whether the 0..10 of Prioritize decide, equal ones by chance, instead of the scores themselves.
    random_ties : bool
        Whether equal scores are decided by chance instead of by the rows' order.
    seed : int

    Attributes
    ----------
    at : int32[P]
        The row that each pod got when it came, -1 if none.
    table : Table
        As it is now.

    Raises
    ------
    ValueError
        If types, shapes or indices do not agree with the above.
    """

    cdef readonly Table table
    cdef readonly object at
    cdef list asks
    cdef Demand demand
    cdef bint graded, random_ties
    cdef Py_ssize_t sample, next_row
    cdef uint64_t chance
    cdef const int64_t[::1] memory_asked
    cdef const uint32_t[::1] models, models_allowed
    cdef const int32_t[::1] pods
    cdef int64_t[::1] memory_free, cpu_used, version
    cdef int32_t[::1] rows
    cdef int64_t[:, ::1] used, card_used, seen
    cdef int32_t[:, ::1] shares, owners
    cdef int8_t[:, ::1] codes
    cdef double[:, ::1] scores
    cdef int32_t[:, ::1] held                   # by pod and card: shares, -1 = the card is the pod's alone
    cdef int8_t[::1] sits
    cdef int8_t[::1] now, grades                # codes of the pod at hand, rows that are out set to UNKNOWN
    cdef uint32_t[::1] ties
    cdef int32_t[::1] top

    def __init__(self, Table table not None, list asks not None, *, memory, models, memory_asked, models_allowed,
                 pods, sample=0, bint graded=False, bint random_ties=False, seed=0):
        cdef Py_ssize_t n = table.rows, count = len(asks)
        self.table = Table(**{name: array.copy() for name, array in table.arrays.items()})
        for ask in asks:
            known_resources(table, ask)
        self.asks = list(asks)
        self.models = exact(models, "models", "uint32", (n,))
        self.memory_asked = exact(memory_asked, "memory_asked", "int64", (count,))
        self.models_allowed = exact(models_allowed, "models_allowed", "uint32", (count,))
        self.memory_free = exact(memory, "memory", "int64", (n,)).copy()
        self.pods = indices(pods, "pods", count).copy()
        self.sample = whole_number(sample, "sample", 0, n)
        self.graded, self.random_ties = graded, random_ties
        self.chance = 2 * whole_number(seed, "seed", 0, 2**62) + 1
        arrays = self.table.arrays
        self.cpu_used, self.used = arrays["cpu_used"], arrays["used"]
        self.card_used, self.shares, self.owners = arrays["memory_used"], arrays["shares"], arrays["exclusive"]
        self.version = np.zeros(n, np.int64)
        self.codes, self.scores = np.zeros((count, n), np.int8), np.zeros((count, n))
        self.seen = np.full((count, n), -1, np.int64)
        self.now, self.grades, self.ties = np.zeros(n, np.int8), np.zeros(n, np.int8), np.zeros(n, np.uint32)
        self.top = np.zeros(1, np.int32)
        self.at = np.full(len(pods), -1, np.int32)
        self.rows, self.sits = self.at, np.zeros(len(pods), np.int8)
        self.held = np.zeros((len(pods), table.width), np.int32)

    def run(self, events, Demand demand not None):
        """Let pods come and go, scored for `demand`.

        Parameters
        ----------
        events : int32[n]
            p: pod p comes, -p - 1: it leaves, which is nothing if it does not sit.
        demand : Demand

        Raises
        ------
        ValueError
            If an event names no pod, or lets a pod come that sits.
        """
        cdef const int32_t[::1] happens = exact(events, "events", "int32", (-1,))
        cdef Py_ssize_t i, pod
        cdef Ask ask
        if demand is not self.demand:
            self.demand = demand
            self.seen[:] = -1
        for i in range(happens.shape[0]):
            pod = happens[i] if happens[i] >= 0 else -1 - <Py_ssize_t>happens[i]
            if pod >= self.pods.shape[0] or (happens[i] >= 0 and self.sits[pod]):
                raise ValueError(f"events[{i}] is {happens[i]}: there is no such pod, or it sits already.")
            ask = self.asks[self.pods[pod]]
            with nogil:
                if happens[i] >= 0:
                    self.come(pod, ask)
                elif self.sits[pod]:
                    self.charge(pod, ask, -1)

    cdef void come(self, Py_ssize_t pod, Ask ask) noexcept nogil:
        cdef int32_t row = self.choose_row(self.pods[pod], ask)
        cdef int32_t[MOST_CARDS] cards
        cdef int32_t[MOST_CARDS] many
        cdef Row there
        cdef Seats seats
        cdef Py_ssize_t i
        self.rows[pod] = row
        if row < 0:
            return
        there = row_at(self.table, row, ask.memory, False)
        seats = choose(&there, need_on(self.table, row, ask), weigh(self.table, row, ask, False, self.demand).first,
                       cards, many)
        for i in range(self.held.shape[1]):
            self.held[pod, i] = 0
        for i in range(seats.chosen):
            self.held[pod, cards[i]] = many[cards[i]]
        self.charge(pod, ask, 1)

    cdef int32_t choose_row(self, Py_ssize_t shape, Ask ask) noexcept nogil:
        """The row that the pod gets, or -1."""
        cdef Py_ssize_t i, row, n = self.table.rows, found = 0
        for row in range(n):
            self.now[row] = UNKNOWN
            if self.random_ties:
                self.ties[row] = self.draw()
        for i in range(n):
            row = (self.next_row + i) % n if self.sample > 0 else i
            self.now[row] = self.judged(shape, row, ask)
            found += self.now[row] <= CONTENDED
            if self.sample > 0 and found == self.sample:
                break
        else:
            i = n - 1
        if self.sample > 0:
            self.next_row = (self.next_row + i + 1) % n
        if found == 0:
            return -1
        rank(self.now, self.scores[shape], self.ties if self.random_ties else self.table.order, self.top)
        if not self.graded:
            return self.top[0]
        grade_all(self.now, self.scores[shape], self.top[0], self.grades)
        return self.any_of_the_best()

    cdef int8_t judged(self, Py_ssize_t shape, Py_ssize_t row, Ask ask) noexcept nogil:
        """The row's code for the shape, UNKNOWN if the scheduler's own filters take it out first."""
        if (self.table.cpu[row] - self.table.cpu_used[row] < ask.cpu
                or self.memory_free[row] < self.memory_asked[shape]
                or self.models[row] & self.models_allowed[shape] == 0):
            return UNKNOWN
        if self.seen[shape, row] != self.version[row]:
            self.codes[shape, row] = verdict(self.table, row, ask)
            self.scores[shape, row] = points(self.table, row, self.codes[shape, row], ask, self.demand)
            self.seen[shape, row] = self.version[row]
        return self.codes[shape, row]

    cdef int32_t any_of_the_best(self) noexcept nogil:
        cdef Py_ssize_t row
        cdef int8_t highest = -1
        cdef uint32_t many = 0
        cdef int32_t chosen = -1
        for row in range(self.table.rows):
            if self.now[row] > CONTENDED or self.grades[row] < highest:
                continue
            many = many + 1 if self.grades[row] == highest else 1
            highest = self.grades[row]
            if self.draw() % many == 0:
                chosen = row
        return chosen

    cdef uint32_t draw(self) noexcept nogil:
        """splitmix64, its upper half."""
        cdef uint64_t z
        self.chance += <uint64_t>0x9E3779B97F4A7C15
        z = self.chance
        z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
        return <uint32_t>((z ^ (z >> 31)) >> 32)

    cdef void charge(self, Py_ssize_t pod, Ask ask, int sign) noexcept nogil:
        """What the book's `charge` does, on this table."""
        cdef Py_ssize_t row = self.rows[pod], i
        cdef Row there = row_at(self.table, row, ask.memory, False)
        cdef int64_t size, cost
        for i in range(ask.ids.shape[0]):
            self.used[row, ask.ids[i]] += sign * ask.amounts[i]
        for i in range(there.cards):
            if self.held[pod, i] < 0:
                self.owners[row, i] += sign
            elif self.held[pod, i] > 0:
                size = there.memory[i]
                cost = self.held[pod, i] * share_cost(&there, card_at(&there, i))
                self.shares[row, i] += sign * self.held[pod, i]
                self.card_used[row, i] += sign * min(cost, size)
        self.cpu_used[row] += sign * ask.cpu
        self.memory_free[row] -= sign * self.memory_asked[self.pods[pod]]
        self.version[row] += 1
        self.sits[pod] = sign > 0
