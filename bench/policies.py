"""Five usual ways to share a pool, on the product's own placement: what `bench fairness` compares the planner with.

All are greedy: whoever may and can be seated is, and what does not fit lets others pass, so that a big pod does not
idle the pool. They differ in whose turn it is, in who may have how much, and in whether anybody has to go. Only what
has changed is tried again, as in the product.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from bench import tenants
from bench.tenants import TENANTS, policy
from bench.virtual import Job, Pool
from extender.cluster.events import PodGone, PodSeen
from extender.decide.among import Terms
from extender.decide.bind import Granted, seat_pod
from extender.decide.lent import Lent
from extender.decide.place import place
from extender.decide.reclaim import Reclaim, reclaim

WEIGHTS = [policy().tenant(tenant.name).weight for tenant in TENANTS]  # type: ignore[union-attr]
PLENTY = 1e6
"""GPU units above what it is entitled to that let a tenant lose all, or below that let one take all."""
Turn = tuple[float, ...]


class Greedy:
    """First come, first served."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.used = [0.0] * len(TENANTS)
        shapes = pool.load.shapes
        self._waiting: list[deque[Job]] = [deque() for _ in shapes]
        self._waits = np.zeros(len(shapes), np.bool_)
        self._cpu = np.array([shape.cpu_milli for shape in shapes])
        self._ram = np.array([request.memory for request in pool.requests])
        self._whole = np.array([0 if shape.shares else shape.num_gpu for shape in shapes])
        self._shared = np.array([shape.gpu_milli if shape.shares else 0 for shape in shapes])
        self._nodes: dict[str, str] = {}
        snapshot = pool.book.snapshot()
        self._rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)

    # what a policy says

    def turn(self, job: Job) -> Turn:
        """The lowest goes first."""
        return (job.came,)

    def may_have(self, job: Job) -> bool:
        return True

    def make_room(self, job: Job) -> None:
        """There is none for the pod, the first of its shape."""

    # the machinery

    def came(self, job: Job) -> None:
        first = not self._waits[job.shape]
        if first and self.may_have(job) and self._seat(job, self._rows):
            return
        self._waiting[job.shape].append(job)
        self._waits[job.shape] = True
        if first:
            self.make_room(job)

    def left(self, job: Job) -> None:
        node = self._nodes.pop(job.uid, None)
        if node is None:
            self._waiting[job.shape].remove(job)
            self._waits[job.shape] = bool(self._waiting[job.shape])
            return
        self.used[job.tenant] -= self.pool.units[job.shape]
        self.pool.book.apply(PodGone(job.uid))
        self._fill(node)

    def tick(self) -> None:
        """Nothing here depends on the time."""

    def _seat(self, job: Job, rows: NDArray[np.int32]) -> bool:
        """Seat the pod on the best of the rows, if it fits on any."""
        pool = self.pool
        snapshot, request = pool.book.snapshot(), pool.requests[job.shape]
        columns = snapshot.columns
        if len(rows) > 1:
            free = (columns.cpu[rows] - columns.cpu_used[rows] >= request.cpu) & (
                columns.ram[rows] - columns.ram_used[rows] >= request.memory
            )
            rows = rows[free]
        kept = place(snapshot, request, rows, 1).kept
        if not len(kept):
            return False
        self._sit(job, snapshot.index.name(int(kept[0])))
        return True

    def _sit(self, job: Job, node: str) -> bool:
        pool = self.pool
        verdict = seat_pod(pool.book.snapshot(), job.uid, pool.requests[job.shape], node)
        if not isinstance(verdict, Granted) or verdict.devices is None:
            return False
        pool.book.apply(PodSeen(pool.bound(job, node, verdict.devices)))
        self._nodes[job.uid] = node
        self.used[job.tenant] += pool.units[job.shape]
        pool.begin(job)
        return True

    def _next(self, shape: int) -> None:
        """The first of the shape waits no more."""
        self._waiting[shape].popleft()
        self._waits[shape] = bool(self._waiting[shape])

    def _fill(self, node: str) -> None:
        """The node has changed: seat there who is next and fits, until nobody does."""
        snapshot = self.pool.book.snapshot()
        row = snapshot.index.get(node)
        only = np.array([row], np.int32)
        tried = np.zeros(len(self._waits), np.bool_)
        while True:
            able = self._waits & ~tried & self._may_fit(row)
            heads = [self._waiting[shape][0] for shape in np.flatnonzero(able).tolist()]
            heads = [job for job in heads if self.may_have(job)]
            for job in sorted(heads, key=self.turn):
                if self._seat(job, only):
                    self._next(job.shape)
                    break
                tried[job.shape] = True
            else:
                return

    def _may_fit(self, row: int) -> NDArray[np.bool_]:
        """Shapes that the row has enough of everything for, cards not looked at one by one."""
        columns = self.pool.book.snapshot().columns
        cards = int(columns.cards[row])
        exclusive, shares = columns.exclusive[row, :cards], columns.shares[row, :cards]
        idle = int(((exclusive == 0) & (shares == 0)).sum())
        left = columns.memory[row, :cards] - columns.memory_used[row, :cards]
        part = int(left[exclusive == 0].max(initial=0)) // (tenants.MIB_PER_MILLI << 20)
        return np.asarray(
            (self._whole <= idle)
            & (self._shared <= part)
            & (self._cpu <= columns.cpu[row] - columns.cpu_used[row])
            & (self._ram <= columns.ram[row] - columns.ram_used[row])
        )


class RoundRobin(Greedy):
    """Priority classes, inference above the others; tenants of one class take turns, a pod each."""

    CLASS = (0, 1, 1)

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._last = [0] * len(TENANTS)
        self._turns = 0

    def turn(self, job: Job) -> Turn:
        return (self.CLASS[job.tenant], self._last[job.tenant], job.came)

    def _sit(self, job: Job, node: str) -> bool:
        self._turns += 1
        self._last[job.tenant] = self._turns
        return super()._sit(job, node)


class DominantShare(Greedy):
    """DRF: whose largest share of GPUs, cores or memory is the smallest for its weight; nobody is evicted."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        columns = pool.book.snapshot().columns
        self._all = np.array([pool.gpus, columns.cpu.sum(), columns.ram.sum()], float)
        self._asks = np.stack([np.array(pool.units), self._cpu, self._ram], axis=1)
        self._has = np.zeros((len(TENANTS), 3))

    def turn(self, job: Job) -> Turn:
        return (float((self._has[job.tenant] / self._all).max()) / WEIGHTS[job.tenant], job.came)

    def _sit(self, job: Job, node: str) -> bool:
        self._has[job.tenant] += self._asks[job.shape]
        return super()._sit(job, node)

    def left(self, job: Job) -> None:
        if job.uid in self._nodes:
            self._has[job.tenant] -= self._asks[job.shape]
        super().left(job)


class Reserved(Greedy):
    """Static reservation: each tenant has its weight's part of the pool and no more."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._quota = [pool.gpus * weight / sum(WEIGHTS) for weight in WEIGHTS]
        self._blocked: set[int] = set()

    def may_have(self, job: Job) -> bool:
        if self.used[job.tenant] + self.pool.units[job.shape] <= self._quota[job.tenant] + 1e-6:
            return True
        self._blocked.add(job.shape)
        return False

    def left(self, job: Job) -> None:
        super().left(job)
        blocked, self._blocked = self._blocked, set()
        heads = [self._waiting[shape][0] for shape in blocked if self._waits[shape]]
        for first in sorted(heads, key=self.turn):
            while self._waits[first.shape]:
                head = self._waiting[first.shape][0]
                if not self.may_have(head) or not self._seat(head, self._rows):
                    break
                self._next(first.shape)


class Strict(Greedy):
    """Strict priority with preemption: inference above training above research; whoever is below makes room.

    Victims are of the lowest priority that suffices, and of these the fewest and cheapest, as a reclaim finds them.
    """

    PRIORITY = (0, 1, 2)
    RETRIES = 4

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._lent = Lent()
        self._kept: dict[str, tuple[Job, set[str]]] = {}

    def turn(self, job: Job) -> Turn:
        return (self.PRIORITY[job.tenant], job.came)

    def _sit(self, job: Job, node: str) -> bool:
        if not super()._sit(job, node):
            return False
        seat = self.pool.book.snapshot().seats[job.uid]
        self._lent.put(self.pool.candidate(job, seat))
        return True

    def make_room(self, job: Job) -> None:
        snapshot = self.pool.book.snapshot()
        name = TENANTS[job.tenant].name
        kept = [snapshot.index.get(node) for node in self._kept]
        rows = self._rows[~np.isin(self._rows, kept)] if kept else self._rows
        for floor in range(len(TENANTS) - 1, self.PRIORITY[job.tenant], -1):
            below = [
                tenant.name
                for tenant, priority in zip(TENANTS, self.PRIORITY, strict=True)
                if priority >= floor
            ]
            if not any(self.used[at] for at in range(len(TENANTS)) if TENANTS[at].name in below):
                continue
            terms = Terms(self.pool.now, {name: -PLENTY, **dict.fromkeys(below, PLENTY)})
            found = reclaim(snapshot, self.pool.requests[job.shape], name, rows, self._lent, terms)
            if isinstance(found, Reclaim):
                victims = [victim.uid for victim in found.victims]
                self._kept[found.node] = (job, set(victims))
                self._waiting[job.shape].remove(job)
                self._waits[job.shape] = bool(self._waiting[job.shape])
                self.pool.evict_for(victims)
                for uid in victims:
                    self._lent.drop(uid)
                return

    def left(self, job: Job) -> None:
        self._lent.drop(job.uid)
        super().left(job)

    def _fill(self, node: str) -> None:
        """A node that is kept for a pod is its alone, once the last victim is gone."""
        kept = self._kept.get(node)
        if kept is not None:
            job, victims = kept
            victims &= self._nodes.keys()
            if victims:
                return
            del self._kept[node]
            if not self._sit(job, node):
                self._waiting[job.shape].appendleft(job)
                self._waits[job.shape] = True
            elif self._waits[job.shape]:
                self.make_room(self._waiting[job.shape][0])
        super()._fill(node)

    def _seat(self, job: Job, rows: NDArray[np.int32]) -> bool:
        if self._kept:
            index = self.pool.book.snapshot().index
            rows = rows[~np.isin(rows, [index.get(node) for node in self._kept])]
        return len(rows) > 0 and super()._seat(job, rows)

    def tick(self) -> None:
        """Pods for which nobody could make room try again, the most urgent ones."""
        heads = [self._waiting[shape][0] for shape in np.flatnonzero(self._waits).tolist()]
        for job in sorted(heads, key=self.turn)[: self.RETRIES]:
            self.make_room(job)


POLICIES: dict[str, type[Greedy]] = {
    "round robin with priority classes": RoundRobin,
    "strict priority with preemption": Strict,
    "static reservation": Reserved,
    "dominant share (DRF)": DominantShare,
    "first come first served": Greedy,
}
