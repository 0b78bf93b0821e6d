"""The planner: who of those that wait gets which seat now. A pure state machine, one event in, its instructions out.

A waiting pod is *gated*, *released* (it has a live claim) or *loose* (ungated without one: it skipped the webhook, its
gate was removed, or its claim came to nothing). Gated and loose pods stand in line alike. Whoever is next and has room
gets a seat in the book, so that nobody else can have it; then its node is nominated and its gate lifted, and the
scheduler binds it there. A claim ends at its Bind, when a write fails, when the scheduler refuses, or after its time.

The planner owns the nominations that it wrote: it replaces or clears them when their claim ends.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, Protocol

from extender.cluster.assignment import units
from extender.cluster.eligibility import Constraints, constraints_of
from extender.cluster.events import (
    Event,
    NodeGone,
    NodeSeen,
    Outcome,
    PodGone,
    PodSeen,
    Promised,
    Reserved,
    Settled,
    Withdrawn,
)
from extender.cluster.request import Request, RequestError, is_over, request_of
from extender.cluster.seats import Phase, Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.bind import Granted, devices_without, seat_pod
from extender.decide.holds import Hold, holds_without, is_big, missing, most_holds, node_to_hold
from extender.decide.instructions import (
    Carried,
    Clear,
    Evict,
    Failed,
    Happening,
    Instruction,
    NamespaceSeen,
    Nominate,
    NotEvicted,
    PoliciesSeen,
    Ref,
    Release,
    Tick,
)
from extender.decide.pools import Pool, Pools
from extender.decide.room import Room, Rows, Shape, never_fits
from extender.decide.waiter import NO_VICTIMS, Waiter, created_at, is_preemptible, look_at, ref_of
from extender.decide.waits import Wait, explain_wait
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Ledger
from extender.fairness.line import Group, Line, Stand
from extender.fairness.reading import Policies
from extender.wire.objects import Pod


class Book(Protocol):
    """The book, as the planner reads and writes it."""

    def snapshot(self) -> Snapshot: ...

    def apply(self, event: Event) -> object: ...


@dataclass(frozen=True, slots=True)
class Victims:
    """Evict these from the node, and the pod has room; `why` is for people."""

    node: str
    uids: tuple[str, ...]
    why: str


class Answer(NamedTuple):
    """The only node that the pod may go to, or why there is none yet."""

    node: str | None
    reason: str = ""


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


@dataclass(frozen=True, slots=True)
class Settings:
    """`schedulers` are ours. Times are in seconds.

    `claim`: how long a released pod's seat is kept; `evicting`: how long one is kept for victims to leave.
    `in_flight`: claims at once, so that none ends before the scheduler gets to it. `at_once`: seats per step.
    `retry`, `most_retry`: the first pause after a failure, doubled each time, and the longest.
    `refused`: how long a node that the scheduler refused is left alone.
    """

    schedulers: frozenset[str] = frozenset({"fair-quota"})
    claim: float = 30.0
    evicting: float = 600.0
    in_flight: int = 512
    at_once: int = 32
    retry: float = 1.0
    most_retry: float = 60.0
    refused: float = 120.0


RECLAIMS_AT_ONCE = 4
HOLDS_AT_ONCE = 4
ASK_AGAIN = 1.0
"""Seconds after which a tenant whom no reclaim helped may ask again."""


class Planner:
    """Follows the book; `refusals` counts released pods that the scheduler did not bind where they had a seat.

    Each event of the cluster is applied to the book first and told to `step` then.
    """

    def __init__(
        self, book: Book, policies: Policies, settings: Settings, now: float, reclaim: Reclaim | None = None
    ) -> None:
        self.book = book
        self.settings = settings
        self.waiters: dict[str, Waiter] = {}
        self.pools = Pools(policies, now)
        self.room = Room()
        self.busy = False
        """More can be planned at once: the next step is due now."""
        self.refusals = 0
        self._reclaim = reclaim
        self._now = now
        self._dirty = True
        self._claims: dict[str, Waiter] = {}
        self._resting: dict[str, Waiter] = {}
        self._leaving: dict[str, Waiter] = {}
        self._left = 0
        self._stale: dict[str, Waiter] = {}
        self._out: list[Instruction] = []

    def begin(self, now: float, wall: float) -> list[Instruction]:
        """The book is complete: take over who waits in it, also what an earlier process has nominated.

        Ungated pods keep the seat that was nominated if it is still free; `wall` is the time by the wall clock, from
        which it is known how long they have waited.
        """
        self._now = now
        self._take_over()
        snapshot = self.book.snapshot()
        self.room.renew(snapshot)
        for waiter in self.waiters.values():
            waiter.since = now - max(0.0, wall - waiter.created) if waiter.created < math.inf else now
            if waiter.nominated is not None:
                waiter.wrote = waiter.nominated
                self._stale[waiter.ref.uid] = waiter
                if waiter.stands and not waiter.gated:
                    self._keep_nominated(waiter)
        self._plan()
        return self._flush()

    def step(self, event: Happening, now: float) -> list[Instruction]:
        """What to do about the event; `now` is in seconds of one monotonic clock."""
        self._now = max(now, self._now)
        match event:
            case PodSeen(pod):
                self._pod_seen(pod)
            case PodGone(uid):
                self._gone(uid)
            case NodeSeen(node):
                self._node_seen(node.metadata.name)
            case NodeGone(name):
                self._node_gone(name)
            case Reserved(pod, node):
                self._reserved(pod, node)
            case Settled(uid, outcome):
                self._settled(uid, outcome)
            case Carried(uid):
                if uid in self._claims and not self._claims[uid].victims:
                    self._claims[uid].until = self._now + self.settings.claim
            case Failed(uid, reason):
                self._failed(uid, reason)
            case NotEvicted(uid, reason):
                self._not_evicted(uid, reason)
            case PoliciesSeen(policies):
                self.pools.follow(policies, self._now)
                self._take_over()
            case NamespaceSeen(name, labels):
                if self.pools.namespace(name, labels):
                    self.pools.follow(self.pools.policies, self._now)
                    self._take_over()
            case Tick():
                self._tick()
        self._plan()
        return self._flush()

    # who waits

    def _take_over(self) -> None:
        """Place every node, seat and waiting pod anew; claims, nominations and waiting times carry on."""
        snapshot = self.book.snapshot()
        self.room = Room()
        self.room.renew(snapshot)
        for name, inventory in snapshot.inventories.items():
            pool = self.pools.node(inventory)
            self.room.node(snapshot, name, pool.policy.name if pool else None)
        for uid in snapshot.seats:
            self.pools.charge(snapshot, uid, self._now)
        for waiter in self.waiters.values():
            pool = self._pool(waiter)
            if pool is not None:
                pool.pending.discard(waiter.ref.uid)
        for waiting in list(snapshot.waiting.values()):
            self._arrive(snapshot, waiting.pod, self.waiters.get(waiting.pod.metadata.uid))
        self._dirty = True

    def _pod_seen(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        snapshot = self.book.snapshot()
        if is_over(pod) or uid not in snapshot.waiting:
            self._gone(uid)
            return
        waiter = self.waiters.get(uid)
        if waiter is None:
            self._arrive(snapshot, pod, None)
            return
        before, look = waiter.unschedulable, look_at(pod)
        cleared = waiter.nominated == waiter.node and look.nominated is None
        refused = (
            waiter.node is not None
            and not waiter.victims
            and look.unschedulable
            and not look.gated
            and (not before or cleared)
        )
        self._arrive(snapshot, pod, waiter)
        if refused and self._is_claimed(uid):
            self._refused(waiter, "the scheduler found no room for it there")

    def _arrive(self, snapshot: Snapshot, pod: Pod, had: Waiter | None) -> None:
        """The pod waits and looks like this; `had` is what was known of it."""
        look = look_at(pod)
        spec = pod.spec
        scheduler = (spec.scheduler_name if spec else None) or "default-scheduler"
        ref = had.ref if had else ref_of(pod)
        ours = scheduler in self.settings.schedulers
        place = self.pools.place(ref.namespace, scheduler) if ours else None
        name = place.policy.name if place else None
        tenant = place.tenant if place else None
        shape = self._shape(pod, name)
        waiter = had or Waiter(
            ref=ref,
            pool=name,
            tenant="",
            shape=shape,
            priority=0,
            preemptible=False,
            created=created_at(pod),
            since=self._now,
        )
        stood = (waiter.pool, waiter.tenant, waiter.shape, waiter.priority, waiter.preemptible)
        waiter.pool, waiter.tenant, waiter.shape = name, tenant.name if tenant else FREE_FOR_ALL, shape
        waiter.priority = (spec.priority if spec else None) or 0
        waiter.preemptible = is_preemptible(pod) or (tenant is not None and tenant.preemptible)
        waiter.covered = place is not None
        waiter.gated, waiter.gates = look.gated, look.gates
        waiter.nominated, waiter.unschedulable = look.nominated, look.unschedulable
        if had is None:
            self.waiters[ref.uid] = waiter
        elif stood != (waiter.pool, waiter.tenant, waiter.shape, waiter.priority, waiter.preemptible):
            self._leave_line(waiter, stood[0])
        if waiter.node is not None and waiter.gates and self._is_claimed(ref.uid):
            self._withdraw(waiter)
        self._line_up(waiter)

    def _shape(self, pod: Pod, pool: str | None) -> Shape | None:
        try:
            request = request_of(pod)
        except RequestError:
            return None
        return self.room.shape(pool, request, constraints_of(pod)) if request.devices else None

    def _line_up(self, waiter: Waiter) -> None:
        """Put the pod in line, or take it out, as it should be."""
        uid = waiter.ref.uid
        line = self._line(waiter)
        if not waiter.stands or uid in self._resting:
            if uid in line:
                line.remove(uid)
                self._dirty = True
            return
        if uid not in line and waiter.shape is not None:
            line.add(
                uid,
                tenant=waiter.tenant,
                shape=waiter.shape,
                priority=waiter.priority,
                preemptible=waiter.preemptible,
                units=self._estimate(waiter.shape),
                created=waiter.created,
            )
            self._dirty = True

    def _leave_line(self, waiter: Waiter, pool_name: str | None) -> None:
        pool = self.pools.by_name.get(pool_name) if pool_name is not None else None
        line = pool.line if pool else self.pools.guests
        line.remove(waiter.ref.uid)
        if pool is not None:
            self._end_hold(pool, waiter.ref.uid)

    def _pool(self, waiter: Waiter) -> Pool | None:
        return self.pools.by_name.get(waiter.pool) if waiter.pool is not None else None

    def _line(self, waiter: Waiter) -> Line[Shape]:
        pool = self._pool(waiter)
        return pool.line if pool else self.pools.guests

    def _estimate(self, shape: Shape) -> int:
        """What a pod of the shape will probably be charged: as on the first node that it may use."""
        snapshot = self.book.snapshot()
        rows = shape.eligible.all()
        if not len(rows):
            return sum(count for _, count in shape.request.devices) * MICRO
        return self._units(snapshot, shape.request, snapshot.index.name(int(rows[0])))

    @staticmethod
    def _units(snapshot: Snapshot, request: Request, node: str) -> int:
        return round(units(request, snapshot.inventories[node]) * MICRO)

    def _gone(self, uid: str) -> None:
        """The pod waits no more: it is bound, over or deleted."""
        waiter = self.waiters.pop(uid, None)
        if waiter is not None:
            self._leave_line(waiter, waiter.pool)
            pool = self._pool(waiter)
            if pool is not None:
                pool.pending.discard(uid)
            self._spare_victims(waiter)
            self._claims.pop(uid, None)
            self._resting.pop(uid, None)
            self._stale.pop(uid, None)
        snapshot = self.book.snapshot()
        self._dirty |= self.pools.charge(snapshot, uid, self._now)
        if uid in self._leaving and uid not in snapshot.seats:
            winner = self._leaving.pop(uid)
            winner.victims -= {uid}
            if not winner.victims:
                self._lift(winner)

    # nodes

    def _node_seen(self, name: str) -> None:
        snapshot = self.book.snapshot()
        inventory = snapshot.inventories[name]
        if self.room.knows(name, inventory):
            return
        pool = self.pools.node(inventory)
        self.room.node(snapshot, name, pool.policy.name if pool else None)
        for uid in list(snapshot.seats_by_node.get(name, ())):
            self.pools.charge(snapshot, uid, self._now)
        row = snapshot.index.get(name)
        for waiter in self._claimed_on(name):
            seat = snapshot.seats[waiter.ref.uid]
            if seat.cards is None or waiter.shape is None or not self.room.allows(waiter.shape, row):
                self._withdraw(waiter)
        self._dirty = True

    def _node_gone(self, name: str) -> None:
        self.pools.node_gone(name)
        self.room.node_gone(name)
        for waiter in self._claimed_on(name):
            self._withdraw(waiter)
        snapshot = self.book.snapshot()
        for uid in list(snapshot.seats_by_node.get(name, ())):
            self.pools.charge(snapshot, uid, self._now)
        for pool in self.pools.by_name.values():
            for uid in [uid for uid, hold in pool.holds.items() if hold.node == name]:
                del pool.holds[uid]
        self._dirty = True

    def _claimed_on(self, node: str) -> list[Waiter]:
        return [
            waiter for uid, waiter in self._claims.items() if waiter.node == node and self._is_claimed(uid)
        ]

    def _is_claimed(self, uid: str) -> bool:
        """Whether the pod has a claim that has not turned into a reservation."""
        seat = self.book.snapshot().seats.get(uid)
        return seat is not None and seat.phase is Phase.CLAIMED

    # claims

    def _claim(self, waiter: Waiter, node: str, devices: str) -> None:
        uid = waiter.ref.uid
        snapshot = self.book.snapshot()
        row = snapshot.index.get(node)
        self.book.apply(Promised(snapshot.waiting[uid].pod, node, devices))
        snapshot = self.book.snapshot()
        self.room.seen(snapshot, row)
        self.pools.charge(snapshot, uid, self._now)
        waiter.node, waiter.until = node, self._now + self.settings.claim
        self._claims[uid] = waiter
        self._line(waiter).remove(uid)
        pool = self._pool(waiter)
        if pool is not None:
            pool.pending.discard(uid)
            self._end_hold(pool, uid)

    def _seat(self, waiter: Waiter, row: int) -> bool:
        """Give the pod a seat on the row and say so to the scheduler; False if the last check refuses it."""
        snapshot = self.book.snapshot()
        shape = waiter.shape
        assert shape is not None
        node = snapshot.index.name(row)
        verdict = seat_pod(snapshot, waiter.ref.uid, shape.request, node)
        if not isinstance(verdict, Granted) or verdict.devices is None:
            self._rest(waiter, getattr(verdict, "reason", ""))
            return False
        self._claim(waiter, node, verdict.devices)
        self._lift(waiter)
        return True

    def _lift(self, waiter: Waiter) -> None:
        """The pod may go to the node of its claim now."""
        assert waiter.node is not None
        waiter.until = self._now + self.settings.claim
        waiter.wrote = waiter.node
        if waiter.gated:
            self._out.append(Release(waiter.ref, waiter.node))
        else:
            self._out.append(Nominate(waiter.ref, waiter.node))

    def _withdraw(self, waiter: Waiter) -> None:
        """The claim ends and the pod stands in line again, unless it rests."""
        uid = waiter.ref.uid
        self.book.apply(Withdrawn(uid))
        self._lost(waiter)

    def _lost(self, waiter: Waiter) -> None:
        """The pod has no seat any more."""
        uid = waiter.ref.uid
        self._claims.pop(uid, None)
        self._spare_victims(waiter)
        waiter.node, waiter.until = None, math.inf
        self.pools.charge(self.book.snapshot(), uid, self._now)
        if waiter.wrote is not None:
            self._stale[uid] = waiter
        self._line_up(waiter)
        self._dirty = True

    def _spare_victims(self, waiter: Waiter) -> None:
        for victim in waiter.victims:
            self._leaving.pop(victim, None)
        waiter.victims = NO_VICTIMS

    def _rest(self, waiter: Waiter, trouble: str) -> None:
        """The pod is not tried again for a while, each time for longer."""
        pause = min(self.settings.retry * 2**waiter.tries, self.settings.most_retry)
        waiter.tries = min(waiter.tries + 1, 16)
        waiter.rests_until, waiter.trouble = self._now + pause, trouble
        self._resting[waiter.ref.uid] = waiter
        self._line_up(waiter)

    def _refused(self, waiter: Waiter, why: str) -> None:
        """The scheduler did not bind the pod on the node of its claim: like pods aren't sent there for a while."""
        self.refusals += 1
        if waiter.shape is not None and waiter.node is not None:
            self.room.refuse(waiter.shape, waiter.node, self._now + self.settings.refused)
        self._rest(waiter, f"node {waiter.node}: {why}")
        self._withdraw(waiter)

    def _reserved(self, pod: Pod, node: str) -> None:
        uid = pod.metadata.uid
        self._dirty |= self.pools.charge(self.book.snapshot(), uid, self._now)
        waiter = self.waiters.get(uid)
        if waiter is not None:
            self._claims.pop(uid, None)
            self._resting.pop(uid, None)
            self._leave_line(waiter, waiter.pool)
            waiter.node, waiter.until = node, math.inf

    def _settled(self, uid: str, outcome: Outcome) -> None:
        if outcome is Outcome.BOUND:
            self._gone(uid)
        elif outcome is Outcome.REFUSED and uid not in self.book.snapshot().seats:
            waiter = self.waiters.get(uid)
            if waiter is not None:
                self._rest(waiter, "its Bind was refused")
                self._lost(waiter)
            else:
                self._dirty |= self.pools.charge(self.book.snapshot(), uid, self._now)

    def _failed(self, uid: str, reason: str) -> None:
        waiter = self.waiters.get(uid)
        if waiter is None:
            return
        self._rest(waiter, reason)
        if self._is_claimed(uid):
            self._withdraw(waiter)
        pool = self._pool(waiter)
        if pool is not None:
            pool.pending.discard(uid)

    def _not_evicted(self, victim: str, reason: str) -> None:
        winner = self._leaving.get(victim)
        if winner is not None:
            self._rest(winner, f"room that was to be made for it was not: {reason}")
            self._withdraw(winner)

    def _keep_nominated(self, waiter: Waiter) -> None:
        """The pod was released before: it keeps its seat if that is still free."""
        snapshot = self.book.snapshot()
        node, shape = waiter.nominated, waiter.shape
        row = snapshot.index.get(node) if node is not None else -1
        if node is None or row < 0 or shape is None or not self.room.fits(snapshot, shape, row):
            return
        verdict = seat_pod(snapshot, waiter.ref.uid, shape.request, node)
        if isinstance(verdict, Granted) and verdict.devices is not None:
            self._claim(waiter, node, verdict.devices)
            waiter.wrote = node

    # time

    def _tick(self) -> None:
        now = self._now
        for waiter in [waiter for waiter in self._claims.values() if waiter.until <= now]:
            if not self._is_claimed(waiter.ref.uid):
                waiter.until = math.inf
            elif waiter.victims:
                self._rest(waiter, "those that were to make room for it have not left in time")
                self._withdraw(waiter)
            else:
                self._refused(waiter, f"it was not bound there within {self.settings.claim:g} s")
        for uid in [uid for uid, waiter in self._resting.items() if waiter.rests_until <= now]:
            self._line_up(self._resting.pop(uid))
        self.room.forgive(now)
        self._dirty = True
        for pool in self.pools.by_name.values():
            self._hold(pool)
        if len(self.room) > 2 * len(self.waiters) + 64:
            needed = {id(waiter.shape) for waiter in self.waiters.values()}
            self.room.forget(lambda shape: id(shape) in needed)

    # planning

    def _plan(self) -> None:
        snapshot = self.book.snapshot()
        changed = self.room.renew(snapshot)
        if not changed and not self._dirty:
            return
        self._dirty = False
        self._left = self.settings.at_once
        for pool in self.pools.by_name.values():
            if pool.line:
                self._plan_pool(pool)
        if self.pools.guests:
            self._seat_guests()
        self._dirty |= self._left == 0 and len(self._claims) < self.settings.in_flight
        self.busy = self._dirty

    def _plan_pool(self, pool: Pool) -> None:
        line = pool.line
        pool.ledger.entitle({tenant: line.units(tenant) for tenant in line.tenants()}, self._now)
        for hold in list(pool.holds.values()):
            self._serve_hold(pool, hold)
        stuck = self._walk(pool)
        if self._reclaim is not None:
            self._ask_back(pool, stuck)
        if pool.policy.max_pending:
            self._let_pend(pool, stuck)

    def _walk(self, pool: Pool) -> list[Group[Shape]]:
        """Seat who is next and has room, until nobody is; gives the groups that may have a seat but have no room."""
        line, ledger = pool.line, pool.ledger
        turns = [(ledger.turn(tenant), tenant) for tenant in line.tenants()]
        heapify(turns)
        queues: dict[str, list[tuple[Stand, Group[Shape]]]] = {}
        stuck: list[Group[Shape]] = []
        full: set[int] = set()
        barred = [hold.row for hold in pool.holds.values()]
        while turns and self._may_seat():
            _, tenant = heappop(turns)
            queue = queues.get(tenant)
            if queue is None:
                queue = queues[tenant] = [(group.head, group) for group in line.groups(tenant)]
                heapify(queue)
            may = (ledger.allowance(tenant, False), ledger.allowance(tenant, True))
            while queue:
                _, group = queue[0]
                if group.units > may[group.preemptible]:
                    if self._is_owed(ledger, group):
                        queue.clear()
                        break
                    heappop(queue)
                    continue
                row = None if id(group.shape) in full else self._find(group, barred, may)
                if row is None:
                    full.add(id(group.shape))
                    stuck.append(group)
                    heappop(queue)
                    continue
                seated = self._seat(self.waiters[group.pods[0][1]], row)
                if group.pods:
                    heapreplace(queue, (group.head, group))
                else:
                    heappop(queue)
                if seated:
                    self._left -= 1
                    heappush(turns, (ledger.turn(tenant), tenant))
                    break
        return stuck

    def _may_seat(self) -> bool:
        return self._left > 0 and len(self._claims) < self.settings.in_flight

    def _find(self, group: Group[Shape], barred: Collection[int], may: tuple[int, int]) -> int | None:
        """The row for the group's head; what it is charged there becomes what the group is reckoned at."""
        snapshot = self.book.snapshot()
        shape = group.shape
        waiter = self.waiters[group.pods[0][1]]
        if waiter.nominated is not None and waiter.wrote is None:
            row = snapshot.index.get(waiter.nominated)
            if row >= 0 and row not in barred and self.room.fits(snapshot, shape, row):
                return row
        found = self.room.find(snapshot, shape, barred)
        if found is None:
            return None
        exact = self._units(snapshot, shape.request, snapshot.index.name(found))
        if exact != group.units:
            self._line(waiter).reckon(group, exact)
        return found if exact <= may[group.preemptible] else None

    def _is_owed(self, ledger: Ledger, group: Group[Shape]) -> bool:
        """Whether the group's head waits for quota for so long that others of its tenant may not pass any more."""
        waiter = self.waiters[group.pods[0][1]]
        return self._now - waiter.since >= ledger.policy.hold_after and group.units <= ledger.bound(
            group.tenant, group.preemptible
        )

    def _seat_guests(self) -> None:
        """Pods that no policy covers: by priority, then age, into what is left."""
        line = self.pools.guests
        barred = [hold.row for pool in self.pools.by_name.values() for hold in pool.holds.values()]
        queue = [(group.head, group) for group in line.groups(FREE_FOR_ALL)]
        heapify(queue)
        while queue and self._may_seat():
            _, group = queue[0]
            snapshot = self.book.snapshot()
            shut = [
                pool
                for pool in self.pools.by_name.values()
                if pool.ledger.allowance(FREE_FOR_ALL, group.preemptible) < group.units
            ]
            if shut:
                group.shape.tried = -1
                shut_rows = [
                    snapshot.index.get(name)
                    for name in snapshot.inventories
                    if self.pools.of_node(name) in shut
                ]
                row = self.room.find(snapshot, group.shape, [*barred, *shut_rows])
                group.shape.tried = -1
            else:
                row = self.room.find(snapshot, group.shape, barred)
            if row is not None and self._seat(self.waiters[group.pods[0][1]], row):
                self._left -= 1
            elif row is None:
                heappop(queue)
                continue
            if group.pods:
                heapreplace(queue, (group.head, group))
            else:
                heappop(queue)

    # holds

    def _hold(self, pool: Pool) -> None:
        """Keep nodes for the jobs of several GPUs that have waited longest, and move holds that gain nothing."""
        for hold in list(pool.holds.values()):
            if self._now - hold.gained >= pool.policy.hold_after:
                self._move_hold(pool, hold)
        free = most_holds(pool.nodes) - len(pool.holds)
        if free <= 0:
            return
        waited = [
            (self.waiters[uid].since, uid)
            for group in pool.line.all_groups()
            if is_big(group.shape.request)
            for _, uid in group.pods[: most_holds(pool.nodes)]
            if uid not in pool.holds
        ]
        for since, uid in sorted(waited)[: min(free, HOLDS_AT_ONCE)]:
            if self._now - since < pool.policy.hold_after:
                break
            waiter = self.waiters[uid]
            group = pool.line.group_of(uid)
            if group is not None and group.units <= pool.ledger.bound(group.tenant, group.preemptible):
                self._begin_hold(pool, waiter, {hold.row for hold in pool.holds.values()})

    def _begin_hold(self, pool: Pool, waiter: Waiter, barred: Collection[int]) -> bool:
        assert waiter.shape is not None
        snapshot = self.book.snapshot()
        found = node_to_hold(
            snapshot,
            self.room,
            waiter.shape,
            barred,
            lambda seat: self._leaves(pool, seat),
            lambda node: -(-pool.ledger.pinned(node) // MICRO),
        )
        if found is None:
            return False
        row, lacking = found
        uid = waiter.ref.uid
        self._end_hold(pool, uid)
        pool.holds[uid] = Hold(uid, snapshot.index.name(row), row, lacking, self._now)
        return True

    def _move_hold(self, pool: Pool, hold: Hold) -> None:
        waiter = self.waiters[hold.uid]
        if self._begin_hold(pool, waiter, {each.row for each in pool.holds.values()}):
            return
        assert waiter.shape is not None
        hold.gained = self._now
        if not holds_without(
            self.book.snapshot(), waiter.shape.request, hold.node, lambda seat: self._leaves(pool, seat)
        ):
            self._end_hold(pool, hold.uid)

    def _serve_hold(self, pool: Pool, hold: Hold) -> None:
        """Seat the job if its node has the room now; note what the hold has gained."""
        waiter = self.waiters[hold.uid]
        if waiter.shape is None or not waiter.stands or hold.uid in self._resting:
            self._end_hold(pool, hold.uid)
            return
        snapshot = self.book.snapshot()
        lacking = missing(snapshot, waiter.shape.request, hold.row)
        if lacking < hold.missing:
            hold.gained = self._now
        hold.missing = lacking
        group = pool.line.group_of(hold.uid)
        if (
            group is not None
            and self._may_seat()
            and self.room.fits(snapshot, waiter.shape, hold.row)
            and group.units <= pool.ledger.allowance(waiter.tenant, waiter.preemptible)
            and self._seat(waiter, hold.row)
        ):
            self._left -= 1

    def _end_hold(self, pool: Pool, uid: str) -> None:
        hold = pool.holds.pop(uid, None)
        if hold is not None:
            self.room.touch(hold.row)
            self._dirty = True

    def _leaves(self, pool: Pool, seat: Seat) -> bool:
        """Whether a hold may count on the pod to leave."""
        entry = pool.ledger.entries.get(seat.uid)
        return entry is not None and entry.preemptible

    # others make room

    def _ask_back(self, pool: Pool, stuck: list[Group[Shape]]) -> None:
        """Evict borrowed work for tenants that have less than they are entitled to."""
        assert self._reclaim is not None
        asked = 0
        for group in sorted((group for group in stuck if group.pods), key=lambda group: group.head):
            tenant = group.tenant
            if (
                asked == RECLAIMS_AT_ONCE
                or not self._may_seat()
                or self._now - pool.asked.get(tenant, -math.inf) < ASK_AGAIN
                or not pool.ledger.is_entitled(tenant, group.units)
                or group.units > pool.ledger.allowance(tenant, group.preemptible)
            ):
                continue
            asked += 1
            waiter = self.waiters[group.pods[0][1]]
            if self._make_room(pool, waiter):
                self._left -= 1
                self._dirty = True
            else:
                pool.asked[tenant] = self._now

    def _make_room(self, pool: Pool, waiter: Waiter) -> bool:
        assert self._reclaim is not None
        assert waiter.shape is not None
        snapshot = self.book.snapshot()
        request = waiter.shape.request
        taken = {winner.node for winner in self._leaving.values()}
        held = {hold.node for hold in pool.holds.values()}
        barred = [snapshot.index.get(node) for node in (taken | held | waiter.shape.refused.keys()) if node]
        rows = waiter.shape.eligible.all()
        rows = rows[[row not in barred for row in rows.tolist()]] if barred else rows
        found = self._reclaim(
            snapshot, request, waiter.tenant, rows, pool.ledger, self._leaving.keys(), self._now
        )
        if found is None:
            return False
        seats = [snapshot.seats[uid] for uid in found.uids]
        devices = devices_without(snapshot, request, found.node, seats)
        if devices is None:
            return False
        self._claim(waiter, found.node, devices)
        waiter.until = self._now + self.settings.evicting
        waiter.victims = frozenset(found.uids)
        self._leaving.update(dict.fromkeys(found.uids, waiter))
        if waiter.gated:
            waiter.wrote = found.node
            self._out.append(Nominate(waiter.ref, found.node))
        victims = tuple(Ref(seat.namespace, seat.name, seat.uid) for seat in seats)
        self._out.append(Evict(victims, waiter.ref, found.node, found.why))
        return True

    def _let_pend(self, pool: Pool, stuck: list[Group[Shape]]) -> None:
        """Let an autoscaler see some of those that are entitled to a seat and find none."""
        for group in sorted((group for group in stuck if group.pods), key=lambda group: group.head):
            for _, uid in group.pods:
                waiter = self.waiters[uid]
                if len(pool.pending) >= pool.policy.max_pending:
                    return
                if not pool.ledger.is_entitled(group.tenant, group.units):
                    break
                if waiter.gated and uid not in pool.pending:
                    pool.pending.add(uid)
                    self._out.append(Release(waiter.ref, None))

    def _flush(self) -> list[Instruction]:
        """All instructions of the step; nominations whose claim has ended and was not replaced are cleared."""
        for uid, waiter in self._stale.items():
            if waiter.node is None and waiter.wrote is not None and uid in self.waiters:
                self._out.append(Clear(waiter.ref, waiter.wrote))
                waiter.wrote = None
        self._stale.clear()
        out, self._out = self._out, []
        return out

    # questions

    def seat_for(self, pod: Pod) -> Answer | None:
        """Where the scheduler may put a pod that is past its gate; None: anywhere, it is not ours to say."""
        uid = pod.metadata.uid
        waiter = self.waiters.get(uid)
        if waiter is not None:
            if waiter.node is not None:
                return Answer(waiter.node)
            return Answer(None, " ".join(self.explain(uid).sentences)) if waiter.covered else None
        scheduler = (pod.spec.scheduler_name if pod.spec else None) or "default-scheduler"
        namespace = pod.metadata.namespace or "default"
        if scheduler not in self.settings.schedulers or self.pools.place(namespace, scheduler) is None:
            return None
        return Answer(None, "kvitej has not seen the pod yet; it stands in line as soon as it has")

    def explain(self, uid: str) -> Wait:
        """Why a waiting pod waits. Raises KeyError if no such pod waits."""
        waiter = self.waiters[uid]
        pool = self._pool(waiter)
        rests = uid in self._resting
        return explain_wait(self.book.snapshot(), waiter, pool, self._line(waiter), rests, self._now)

    def never_fits(self, pool: str | None, request: Request, constraints: Constraints) -> bool:
        """Whether no node that such pods may use would hold one even when empty; None: any pool's."""
        shape = self.room.shape(pool, request, constraints)
        return never_fits(self.book.snapshot(), shape)

    def check(self) -> None:
        """AssertionError names what the planner has got wrong about the book."""
        snapshot = self.book.snapshot()
        self.pools.check(snapshot)
        for uid, waiter in self.waiters.items():
            assert uid in snapshot.waiting, "a pod is planned that does not wait"
            assert (waiter.node is not None) == (uid in snapshot.seats), "a claim and the book differ"
            resting = uid in self._resting
            assert (uid in self._line(waiter)) == (waiter.stands and not resting), (
                "a pod is not where it belongs"
            )
        lines = [pool.line for pool in self.pools.by_name.values()]
        standing = sum(uid in self._line(waiter) for uid, waiter in self.waiters.items())
        assert sum(map(len, (*lines, self.pools.guests))) == standing, "a line has a pod too many"
