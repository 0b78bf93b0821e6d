"""Compares the ledgers with the seats that they are about, a few at a time: a charge that drifts is a bug, and is told.

Ledgers follow events, so one that was missed would stay wrong for ever and take from somebody's share.
"""

from collections import deque

from extender.cluster.snapshot import Snapshot
from extender.decide.pools import Pools
from extender.fairness.ledger import MICRO


class Audit:
    """`at_once` is pods per step.

    `off` is by how many GPU units pods were charged wrongly in the last round, None before the first has ended.
    """

    def __init__(self, pools: Pools, at_once: int = 500) -> None:
        self.off: float | None = None
        self._pools = pools
        self._at_once = at_once
        self._left: deque[str] = deque()
        self._sum = 0

    def step(self, snapshot: Snapshot) -> None:
        """Compare the next pods; a round begins anew with those that there are then."""
        if not self._left:
            self._left.extend(snapshot.seats)
            for pool in self._pools.by_name.values():
                self._left.extend(pool.ledger.entries.keys() - snapshot.seats.keys())
            self._sum = 0
        for _ in range(min(self._at_once, len(self._left))):
            self._sum += self._compare(snapshot, self._left.popleft())
        if not self._left:
            self.off = self._sum / MICRO

    def _compare(self, snapshot: Snapshot, uid: str) -> int:
        seat = snapshot.seats.get(uid)
        right = self._pools.entry_of(snapshot, seat) if seat is not None else None
        where = self._pools.of_node(seat.node) if seat is not None else None
        off = 0
        for pool in self._pools.by_name.values():
            entry, due = pool.ledger.entries.get(uid), right if pool is where else None
            if entry != due:
                off += max(entry.units if entry else 0, due.units if due else 0)
        return off
