"""Whose turn it is: who of a pool's line gets a seat now, what is held for big jobs, and who is asked to make room.

Only shapes that may fit somewhere are looked at, and of those only groups whose tenants may have more; so when nothing
has changed for a shape, its pods cost nothing, however many wait.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from typing import Protocol

from extender.cluster.assignment import units
from extender.cluster.request import GPU, Request
from extender.cluster.seats import Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.claims import Book, Claims, Settings
from extender.decide.holds import (
    OUTLASTS,
    Hold,
    holds_without,
    is_big,
    most_holds,
    node_to_hold,
)
from extender.decide.instructions import Release
from extender.decide.pools import Pool, Pools
from extender.decide.room import Rows, Shape
from extender.decide.waiter import Waiter
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Ledger
from extender.fairness.line import Group, Stand

_Queue = list[tuple[Stand, Group[Shape]]]
"""A heap of a tenant's groups by their heads."""

RECLAIMS_AT_ONCE = 4
HOLDS_AT_ONCE = 4
ASK_AGAIN, ASK_AGAIN_AT_LAST = 1.0, 4.0
"""Seconds after which a tenant whom no reclaim helped may ask again: twice as long each time, up to the second."""
PATIENCE = 0.5
"""Of its tenant's waitTarget, how long a pod waits for room that comes free by itself: others leave in the rest."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Evict these from the node, and the pod has room; `why` is for people."""

    node: str
    uids: tuple[str, ...]
    why: str


class Reclaim(Protocol):
    """Chooses whose borrowed work makes room for a request of a tenant on one of `rows`; None: nobody's.

    `leaving` are the pods whose eviction has been asked for.
    """

    def __call__(
        self,
        snapshot: Snapshot,
        request: Request,
        tenant: str,
        rows: Rows,
        ledger: Ledger,
        leaving: Collection[str],
        now: float,
    ) -> Victims | None: ...


class Turns:
    """`run` plans for one step; True if more can be planned at once."""

    def __init__(
        self,
        book: Book,
        pools: Pools,
        claims: Claims,
        waiters: Mapping[str, Waiter],
        settings: Settings,
        reclaim: Reclaim | None,
    ) -> None:
        self._book = book
        self._pools = pools
        self._claims = claims
        self._waiters = waiters
        self._settings = settings
        self._reclaim = reclaim
        self._left = 0
        self._more = False

    def run(self) -> bool:
        self._left, self._more = self._settings.at_once, False
        for pool in self._pools.by_name.values():
            if pool.line:
                self._plan(pool)
        if self._pools.guests:
            self._seat_guests()
        return self._more or (self._left <= 0 and not self._claims.full)

    def elapse(self) -> None:
        """Time has passed: holds begin and move, and it is found who has waited long for quota."""
        for pool in self._pools.by_name.values():
            pool.owed = dict(self._owed(pool))
            self._hold(pool)

    def _plan(self, pool: Pool) -> None:
        line = pool.line
        barred = {hold.row for hold in pool.holds.values()}
        snapshot = self._book.snapshot()
        room = self._claims.room
        shapes = {shape for shape in line.shapes() if room.is_open(snapshot, shape, barred)}
        makes_room = self._reclaim is not None or pool.policy.max_pending > 0
        if not (shapes or pool.holds or makes_room):
            return
        pool.entitle(self._now)
        for hold in list(pool.holds.values()):
            self._serve(pool, hold)
        if shapes:
            self._walk(pool, shapes)
        if makes_room:
            self._make_room(pool)

    @property
    def _now(self) -> float:
        return self._claims.now

    def _may_seat(self) -> bool:
        return self._left > 0 and not self._claims.full

    def _seat(self, waiter: Waiter, row: int) -> bool:
        seated = self._claims.seat(waiter, row)
        self._left -= seated
        return seated

    def _head(self, group: Group[Shape]) -> Waiter:
        return self._waiters[group.pods[0][1]]

    # in turn

    def _walk(self, pool: Pool, shapes: set[Shape]) -> None:
        """Seat who is next and has room, until nobody is; `shapes` are those that may fit somewhere."""
        ledger = pool.ledger
        groups: dict[str, list[Group[Shape]]] = {}
        for shape in shapes:
            for group in pool.line.alike(shape):
                groups.setdefault(group.tenant, []).append(group)
        queues: dict[str, _Queue] = {}
        turns = [(ledger.turn(tenant), tenant) for tenant in groups]
        heapify(turns)
        barred = {hold.row for hold in pool.holds.values()}
        while turns and shapes and self._may_seat():
            _, tenant = heappop(turns)
            if tenant not in queues:
                queues[tenant] = [(group.head, group) for group in groups[tenant] if group.shape in shapes]
                heapify(queues[tenant])
            if self._seat_first(pool, queues[tenant], barred, shapes):
                heappush(turns, (ledger.turn(tenant), tenant))

    def _seat_first(self, pool: Pool, queue: _Queue, barred: Collection[int], shapes: set[Shape]) -> bool:
        """Seat the first pod of a tenant's queue that may be and can be; drop those that can't in this step."""
        while queue:
            stand, group = queue[0]
            if group.shape not in shapes or not self._may_have(pool, group, stand):
                heappop(queue)
                continue
            row = self._row_for(group, barred)
            if row is None:
                shapes.discard(group.shape)
                continue
            if not self._may_have(pool, group, stand):
                continue
            seated = self._seat(self._head(group), row)
            if group.pods:
                heapreplace(queue, (group.head, group))
            else:
                heappop(queue)
            if seated:
                return True
        return False

    @staticmethod
    def _may_have(pool: Pool, group: Group[Shape], stand: Stand) -> bool:
        """Whether the tenant may have as much now, and nobody ahead of the pod is owed it."""
        owed = pool.owed.get(group.tenant)
        if owed is not None and owed < stand and owed.uid in pool.line:
            return False
        return group.units <= pool.ledger.allowance(group.tenant, group.preemptible)

    def _row_for(self, group: Group[Shape], barred: Collection[int]) -> int | None:
        """The row for the group's head; what it is charged there becomes what the group is reckoned at."""
        snapshot = self._book.snapshot()
        waiter, shape, room = self._head(group), group.shape, self._claims.room
        if waiter.nominated is not None and waiter.wrote is None:
            # The scheduler nominated it when it preempted for it.
            row = snapshot.index.get(waiter.nominated)
            if row >= 0 and row not in barred and room.fits(snapshot, shape, row):
                return row
        borrowed = group.preemptible if waiter.pool is not None else None
        row_found = room.find(snapshot, shape, barred, borrowed)
        if row_found is not None:
            inventory = snapshot.inventories[snapshot.index.name(row_found)]
            exact = round(units(shape.request, inventory) * MICRO)
            pool = self._pools.of(waiter.pool)
            (pool.line if pool else self._pools.guests).reckon(group, exact)
        return row_found

    def _seat_guests(self) -> None:
        """Pods that no policy covers: by priority, then age, into what is left."""
        line, room = self._pools.guests, self._claims.room
        held = {hold.row for pool in self._pools.by_name.values() for hold in pool.holds.values()}
        queue: _Queue = [(group.head, group) for group in line.groups(FREE_FOR_ALL)]
        heapify(queue)
        while queue and self._may_seat():
            _, group = queue[0]
            shut = self._shut(group)
            if shut:
                group.shape.untry()
            snapshot = self._book.snapshot()
            row = room.find(snapshot, group.shape, held | shut)
            if shut:
                group.shape.untry()
            if row is not None:
                self._seat(self._head(group), row)
            if row is not None and group.pods:
                heapreplace(queue, (group.head, group))
            else:
                heappop(queue)

    def _shut(self, group: Group[Shape]) -> set[int]:
        """Rows of pools in which work of no tenant may not have as much now."""
        snapshot = self._book.snapshot()
        pools = [
            pool
            for pool in self._pools.by_name.values()
            if pool.ledger.allowance(FREE_FOR_ALL, group.preemptible) < group.units
        ]
        if not pools:
            return set()
        return {snapshot.index.get(n) for n in snapshot.inventories if self._pools.of_node(n) in pools}

    def _owed(self, pool: Pool) -> Iterable[tuple[str, Stand]]:
        """The first of each tenant that has waited for quota, which it may get, for longer than holds begin."""
        for tenant in pool.line.tenants():
            stands = [
                group.head
                for group in pool.line.groups(tenant)
                if self._now - self._head(group).since >= pool.policy.hold_after
                and pool.ledger.allowance(tenant, group.preemptible)
                < group.units
                <= pool.ledger.bound(tenant, group.preemptible)
            ]
            if stands:
                yield tenant, min(stands)

    # holds

    def _hold(self, pool: Pool) -> None:
        """Keep nodes for the jobs of several GPUs that have waited longest, and move holds that come to nothing."""
        snapshot = self._book.snapshot()
        for hold in list(pool.holds.values()):
            waiter = self._waiters[hold.uid]
            assert waiter.shape is not None
            leaves = self._leaves(pool, waiter)
            if not holds_without(snapshot, waiter.shape.request, hold.node, leaves) and not self._begin_hold(
                pool, waiter
            ):
                self.end_hold(pool, hold.uid)
        most = most_holds(pool.nodes)
        free = min(most - len(pool.holds), HOLDS_AT_ONCE)
        if free <= 0:
            return
        for _, uid in nsmallest(free, self._long_waiting(pool, most)):
            if not self._begin_hold(pool, self._waiters[uid]):
                # The others come first then: none of them waits behind one that fits nowhere.
                pool.searched[uid] = self._now

    def _long_waiting(self, pool: Pool, most: int) -> Iterator[tuple[float, str]]:
        """(since when, who) of the first `most` of each group whose jobs may have a node held and have none yet.

        Since when they wait, or when it was last looked for a node in vain.
        """
        for group in pool.line.all_groups():
            if not is_big(group.shape.request) or group.units > pool.ledger.bound(
                group.tenant, group.preemptible
            ):
                continue
            for _, uid in group.pods[:most]:
                since = self._waiters[uid].since
                if self._now - since < pool.policy.hold_after:
                    break
                if uid not in pool.holds:
                    yield pool.searched.get(uid, since), uid

    def _begin_hold(self, pool: Pool, waiter: Waiter) -> bool:
        assert waiter.shape is not None
        snapshot = self._book.snapshot()
        row = node_to_hold(
            snapshot,
            self._claims.room,
            waiter.shape,
            {hold.row for hold in pool.holds.values()},
            self._leaves(pool, waiter),
            lambda node: -(-pool.ledger.pinned(node) // MICRO),
            pool.vain.setdefault(waiter.ref.uid, set()),
        )
        if row is None:
            return False
        uid = waiter.ref.uid
        self.end_hold(pool, uid)
        pool.holds[uid] = Hold(uid, snapshot.index.name(row), row)
        return True

    def _serve(self, pool: Pool, hold: Hold) -> None:
        """Seat the job if its node has the room now, or another that has waited longer and leaves it its own node."""
        group = pool.line.group_of(hold.uid)
        if group is None:
            self.end_hold(pool, hold.uid)
        elif self._may_seat() and self._may_sit(pool, group, hold.row):
            elder = self._elder(pool, hold, group.shape)
            if elder is not None:
                pool.holds[hold.uid], pool.holds[elder.uid] = elder, hold
                hold.uid, elder.uid = elder.uid, hold.uid
            uid = hold.uid
            self.end_hold(pool, uid)
            self._seat(self._waiters[uid], hold.row)

    def _elder(self, pool: Pool, hold: Hold, shape: Shape) -> Hold | None:
        """The hold of the longest waiting job, as big at least, to which this hold's would be as good as its own is."""
        waiter, room = self._waiters[hold.uid], self._claims.room
        snapshot, leaves = self._book.snapshot(), self._leaves(pool, waiter)
        for elder in sorted(pool.holds.values(), key=lambda each: self._waiters[each.uid].since):
            if self._waiters[elder.uid].since >= waiter.since:
                break
            group = pool.line.group_of(elder.uid)
            if (
                group is not None
                and group.shape.request.count(GPU) >= shape.request.count(GPU)
                and self._may_sit(pool, group, hold.row)
                and room.allows(shape, elder.row)
                and holds_without(snapshot, shape.request, elder.node, leaves)
            ):
                return elder
        return None

    def _may_sit(self, pool: Pool, group: Group[Shape], row: int) -> bool:
        """Whether a pod of the group has room on the row now, and its tenant may have as much."""
        return self._claims.room.fits(self._book.snapshot(), group.shape, row) and (
            group.units <= pool.ledger.allowance(group.tenant, group.preemptible)
        )

    def hand_on(self, pool: Pool, uid: str) -> None:
        """The pod needs its hold no more: what its node has gained is kept for the next whom that helps."""
        hold = pool.holds.get(uid)
        self.end_hold(pool, uid)
        if hold is None:
            return
        snapshot, room = self._book.snapshot(), self._claims.room
        for _, heir in nsmallest(HOLDS_AT_ONCE, self._long_waiting(pool, most_holds(pool.nodes))):
            waiter = self._waiters[heir]
            assert waiter.shape is not None
            if room.allows(waiter.shape, hold.row) and holds_without(
                snapshot, waiter.shape.request, hold.node, self._leaves(pool, waiter)
            ):
                pool.holds[heir] = Hold(heir, hold.node, hold.row)
                return

    def end_hold(self, pool: Pool, uid: str) -> None:
        pool.vain.pop(uid, None)
        pool.searched.pop(uid, None)
        hold = pool.holds.pop(uid, None)
        if hold is not None:
            self._claims.room.touch(hold.row)
            self._claims.changed = True

    def _leaves(self, pool: Pool, waiter: Waiter) -> Callable[[Seat], bool]:
        """Whether a hold for the pod may count on another to leave: it may be evicted, and has not been there long."""
        entries, since = pool.ledger.entries, self._pools.since
        long_ago = min(waiter.since, self._now - OUTLASTS * pool.policy.hold_after)

        def leaves(seat: Seat) -> bool:
            entry = entries.get(seat.uid)
            return entry is not None and entry.preemptible and since[seat.uid] >= long_ago

        return leaves

    # others make room

    def _make_room(self, pool: Pool) -> None:
        """For tenants that have less than they are entitled to: ask back what others borrow, or ask for more nodes."""
        ledger, pends = pool.ledger, pool.policy.max_pending > 0
        stuck = [
            (ledger.turn(tenant), group.asked, group.head, group)
            for tenant in pool.line.tenants()
            for group in pool.line.groups(tenant)
            if group.shape.tried >= 0
            and (pends or self._may_ask(pool, group))
            and ledger.is_entitled(tenant, group.units)
            and self._may_have(pool, group, group.head)
        ]
        asked = 0
        for *_, group in sorted(stuck, key=lambda each: each[:3]):
            if asked < RECLAIMS_AT_ONCE and self._may_ask(pool, group):
                asked += 1
                if self._ask_back(pool, self._head(group)):
                    pool.rests.pop(group.tenant, None)
                    continue
                # The tenant's others come first then: none of them waits behind one that nobody can help.
                group.asked = self._now
                pause = min(2 * pool.rests.get(group.tenant, (0.0, ASK_AGAIN / 2))[1], ASK_AGAIN_AT_LAST)
                pool.rests[group.tenant] = self._now + pause, pause
            self._let_pend(pool, group)

    def _may_ask(self, pool: Pool, group: Group[Shape]) -> bool:
        """Those that are new at once, the others of a tenant one after another."""
        if self._reclaim is None or not self._may_seat():
            return False
        if group.asked > -math.inf and self._now < pool.rests.get(group.tenant, (-math.inf, 0.0))[0]:
            return False
        tenant = pool.policy.tenant(group.tenant)
        target = tenant.wait_target if tenant is not None else None
        return target is None or self._now - self._head(group).since >= PATIENCE * target

    def _ask_back(self, pool: Pool, waiter: Waiter) -> bool:
        assert self._reclaim is not None
        assert waiter.shape is not None
        snapshot = self._book.snapshot()
        held = {hold.node for uid, hold in pool.holds.items() if uid != waiter.ref.uid}
        emptied = {winner.node for winner in self._claims.leaving.values()}
        rows = self._claims.room.rows_but(waiter.shape, held | emptied)
        found = self._reclaim(
            snapshot,
            waiter.shape.request,
            waiter.tenant,
            rows,
            pool.ledger,
            self._claims.leaving.keys(),
            self._now,
        )
        if found is None or not self._claims.seat_after(waiter, found.node, found.uids, found.why):
            return False
        self._left -= 1
        self._more = True
        return True

    def _let_pend(self, pool: Pool, group: Group[Shape]) -> None:
        """Lift gates without a seat, so that an autoscaler sees the pods."""
        for _, uid in group.pods:
            if len(pool.pending) >= pool.policy.max_pending:
                return
            waiter = self._waiters[uid]
            beside = sum(
                each.units
                for each in map(pool.line.group_of, pool.pending)
                if each is not None and each.tenant == group.tenant
            )
            if not pool.ledger.is_entitled(group.tenant, group.units, beside):
                return
            if waiter.gated and uid not in pool.pending:
                pool.pending.add(uid)
                self._claims.out.append(Release(waiter.ref, None))
