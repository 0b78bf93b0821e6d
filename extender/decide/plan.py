"""The planner: who of those that wait gets which seat now. A pure state machine, one event in, its instructions out.

A waiting pod is *gated*, *released* (it has a live claim) or *loose* (ungated without one: it skipped the webhook, its
gate was removed, or its claim came to nothing). Gated and loose pods stand in line alike. Whoever is next and has room
gets a seat in the book, so that nobody else can have it; then its node is nominated and its gate lifted, and the
scheduler binds it there. The planner owns the nominations that it wrote: it replaces or clears them.

Here events become who waits where; `turns` seats them, `claims` keeps what was promised, `waits` explains.
"""

import math
from typing import NamedTuple

from extender.cluster.assignment import units
from extender.cluster.columns import OPEN
from extender.cluster.eligibility import Constraints, constraints_of
from extender.cluster.events import (
    Filled,
    NodeGone,
    NodeSeen,
    Outcome,
    PodGone,
    PodSeen,
    Reckoned,
    Reserved,
    Settled,
)
from extender.cluster.reports import ReportGone, ReportSeen
from extender.cluster.request import Request, RequestError, is_over, request_of
from extender.cluster.snapshot import Snapshot
from extender.decide.claims import Book, Claims, Settings
from extender.decide.instructions import (
    Carried,
    ClassesSeen,
    Elsewhere,
    Failed,
    Happening,
    Instruction,
    NamespaceSeen,
    NotEvicted,
    PoliciesSeen,
    Tick,
)
from extender.decide.pools import Pool, Pools
from extender.decide.room import Room, Shape
from extender.decide.turns import Reclaim, Turns
from extender.decide.waiter import Waiter, created_at, is_preemptible, look_at, ref_of
from extender.decide.waits import Wait, explain_wait, standing
from extender.decide.watermarks import Watermarks
from extender.fairness.ledger import FREE_FOR_ALL, MICRO
from extender.fairness.line import Line
from extender.fairness.policy import Place
from extender.fairness.reading import Policies
from extender.wire.marks import DEFAULT_SCHEDULER
from extender.wire.objects import Pod


class Answer(NamedTuple):
    """The only node that the pod may go to, or why there is none yet."""

    node: str | None
    reason: str = ""


class Planner:
    """Follows the book: each event of the cluster is applied to the book first and told to `step` then.

    `busy` says that more can be planned at once: the next step is due now, not at the next event.
    """

    def __init__(
        self, book: Book, policies: Policies, settings: Settings, now: float, reclaim: Reclaim | None = None
    ) -> None:
        self.waiters: dict[str, Waiter] = {}
        self.pools = Pools(policies, now, lambda uid, borrowed: book.apply(Reckoned(uid, borrowed)))
        self.claims = Claims(book, self.pools, settings, self._line_up, now)
        self.busy = False
        self._watermarks = Watermarks()
        self._book = book
        self._settings = settings
        self._turns = Turns(book, self.pools, self.claims, self.waiters, settings, reclaim)

    def begin(self, now: float, wall: float) -> list[Instruction]:
        """The book is complete: take over who waits in it, also what an earlier process has nominated.

        Ungated pods keep the seat that was nominated if it is still free; `wall` is the time by the wall clock, from
        which it is known how long they have waited.
        """
        self.claims.now = now
        self._take_over()
        for waiter in self.waiters.values():
            if waiter.created < math.inf:
                waiter.since = now - max(0.0, wall - waiter.created)
            if waiter.nominated is not None:
                waiter.wrote = waiter.nominated
                if waiter.stands and not waiter.gated:
                    self.claims.keep(waiter, waiter.nominated)
                self.claims.disown(waiter)
        return self._plan()

    def step(self, event: Happening, now: float) -> list[Instruction]:
        """What to do about the event; `now` is in seconds of one monotonic clock."""
        self.claims.now = max(now, self.claims.now)
        match event:
            case PodSeen(pod):
                self._pod_seen(pod)
            case PodGone(uid):
                self._gone(uid)
            case NodeSeen(node):
                self._node_seen(node.metadata.name)
            case NodeGone(name):
                self._node_gone(name)
            case ReportSeen(node=name) | ReportGone(node=name):
                self._reported(name)
            case Reserved(pod, node):
                self._reserved(pod.metadata.uid, node)
            case Settled(uid, outcome):
                self._settled(uid, outcome)
            case Carried(uid):
                self.claims.carried(uid)
            case Failed(uid, reason):
                self._failed(uid, reason)
            case NotEvicted(uid, reason):
                winner = self.claims.leaving.get(uid)
                if winner is not None:
                    self.claims.fail(winner, f"room that was to be made for it was not: {reason}")
            case PoliciesSeen(policies):
                self.pools.follow(policies, self.claims.now)
                self._take_over()
            case NamespaceSeen(name, labels):
                if self.pools.namespace(name, labels):
                    self.pools.follow(self.pools.policies, self.claims.now)
                    self._take_over()
            case ClassesSeen(preemptible):
                if preemptible != self.pools.classes:
                    self.pools.classes = preemptible
                    self._ask_all_again()
            case Elsewhere(uid, rows):
                waiter = self.waiters.get(uid)
                if waiter is not None and self.claims.is_claimed(uid) and not waiter.held_back:
                    self.claims.move(waiter, rows)
            case Tick():
                self._tick()
        return self._plan()

    def _plan(self) -> list[Instruction]:
        changed = self.claims.room.renew(self._book.snapshot())
        if changed or self.claims.changed:
            self.claims.changed = False
            self.claims.changed |= self._turns.run()
        self.busy = self.claims.changed
        return self.claims.flush()

    # who waits

    def _take_over(self) -> None:
        """Place every node, seat and waiting pod anew; claims, nominations and waiting times carry on."""
        snapshot = self._book.snapshot()
        room = self.claims.room = Room()
        room.renew(snapshot)
        for name, inventory in snapshot.inventories.items():
            pool = self.pools.node(inventory)
            room.node(snapshot, name, pool.policy.name if pool else None)
            self._fill(name, pool)
        for uid in snapshot.seats:
            self.pools.charge(snapshot, uid, self.claims.now)
        for waiting in list(snapshot.waiting.values()):
            self._see(snapshot, waiting.pod)
        self.claims.changed = True

    def _ask_all_again(self) -> None:
        """Who may be evicted has changed."""
        snapshot = self._book.snapshot()
        for uid in snapshot.seats:
            self._charge(uid)
        for waiting in list(snapshot.waiting.values()):
            self._see(snapshot, waiting.pod)

    def _pod_seen(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        snapshot = self._book.snapshot()
        if is_over(pod) or uid not in snapshot.waiting:
            self._gone(uid)
            return
        waiter = self.waiters.get(uid)
        refused = waiter is not None and waiter.is_refused_by(look_at(pod))
        self._see(snapshot, pod)
        if waiter is not None and refused and self.claims.is_claimed(uid):
            self.claims.refuse(waiter, "the scheduler found no room for it there")

    def _see(self, snapshot: Snapshot, pod: Pod) -> None:
        """The pod waits and looks like this."""
        uid, spec = pod.metadata.uid, pod.spec
        place = self.place(pod)
        tenant = place.tenant if place else None
        pool = place.policy.name if place else None
        shape = self._shape(pod, pool)
        waiter = self.waiters.get(uid)
        if waiter is None:
            waiter = self.waiters[uid] = Waiter(ref_of(pod), created_at(pod), self.claims.now)
        stood = waiter.standing
        waiter.pool, waiter.tenant, waiter.shape = pool, tenant.name if tenant else FREE_FOR_ALL, shape
        waiter.priority = (spec.priority if spec else None) or 0
        waiter.preemptible = is_preemptible(pod, self.pools.classes) or (
            tenant is not None and tenant.preemptible
        )
        if waiter.standing != stood:
            self._leave(waiter, self.pools.of(stood[0]))
        waiter.covered = place is not None
        waiter.look = look_at(pod)
        if waiter.look.gates:
            self.claims.withdraw(waiter)
        self._line_up(waiter)

    def place(self, pod: Pod) -> Place | None:
        """Where the pod stands; None: under no policy."""
        scheduler = (pod.spec.scheduler_name if pod.spec else None) or DEFAULT_SCHEDULER
        if scheduler not in self._settings.schedulers:
            return None
        return self.pools.place(pod.metadata.namespace or "default", scheduler)

    def _shape(self, pod: Pod, pool: str | None) -> Shape | None:
        try:
            request = request_of(pod)
        except RequestError:
            return None
        return self.claims.room.shape(pool, request, constraints_of(pod)) if request.devices else None

    def _line(self, waiter: Waiter) -> Line[Shape]:
        pool = self.pools.of(waiter.pool)
        return pool.line if pool else self.pools.guests

    def _line_up(self, waiter: Waiter) -> None:
        """Put the pod in line, or take it out, as it should be."""
        uid = waiter.ref.uid
        line = self._line(waiter)
        if not waiter.stands or self.claims.rests(uid):
            if uid in line:
                self._leave(waiter, self.pools.of(waiter.pool))
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
            self.claims.changed = True

    def _leave(self, waiter: Waiter, pool: Pool | None) -> None:
        """The pod does not stand in that pool's line any more."""
        uid = waiter.ref.uid
        (pool.line if pool else self.pools.guests).remove(uid)
        if pool is not None:
            self._turns.hand_on(pool, uid)
            pool.pending.discard(uid)

    def _estimate(self, shape: Shape) -> int:
        """What a pod of the shape will probably be charged: as on the first node that would hold it."""
        found = self.charge_of(shape)
        shape.homeless = found is None
        return sum(count for _, count in shape.request.devices) * MICRO if found is None else found

    def charge_of(self, shape: Shape) -> int | None:
        """Millionths of a GPU that a pod is charged on the first node that would hold it; None: none ever would."""
        snapshot = self._book.snapshot()
        row = self.claims.room.home(snapshot, shape)
        if row is None:
            return None
        return round(units(shape.request, snapshot.inventories[snapshot.index.name(row)]) * MICRO)

    def _estimate_again(self) -> None:
        """Pods that no node would hold may have one now, where they are charged otherwise than was thought."""
        lines = [self.pools.guests, *(pool.line for pool in self.pools.by_name.values())]
        homeless = [(line, group) for line in lines for group in line.all_groups() if group.shape.homeless]
        for line, group in homeless:
            line.reckon(group, self._estimate(group.shape))

    def _gone(self, uid: str) -> None:
        """The pod waits no more: it is bound, over or deleted."""
        waiter = self.waiters.pop(uid, None)
        if waiter is not None:
            self._leave(waiter, self.pools.of(waiter.pool))
            self.claims.end(waiter)
        self._charge(uid)
        if uid not in self._book.snapshot().seats:
            self.claims.left(uid)

    def _charge(self, uid: str) -> None:
        self.claims.changed |= self.pools.charge(self._book.snapshot(), uid, self.claims.now)

    # what became of it

    def _reserved(self, uid: str, node: str) -> None:
        self._charge(uid)
        waiter = self.waiters.get(uid)
        if waiter is not None:
            self.claims.reserved(waiter, node)

    def _settled(self, uid: str, outcome: Outcome) -> None:
        if outcome is Outcome.BOUND:
            self._gone(uid)
        elif outcome is Outcome.REFUSED and uid not in self._book.snapshot().seats:
            self._charge(uid)
            waiter = self.waiters.get(uid)
            if waiter is not None:
                self.claims.rest(waiter, "its Bind was refused")
                self.claims.lost(waiter)

    def _failed(self, uid: str, reason: str) -> None:
        waiter = self.waiters.get(uid)
        if waiter is not None:
            pool = self.pools.of(waiter.pool)
            if pool is not None:
                pool.pending.discard(uid)
            self.claims.fail(waiter, reason)

    # nodes

    def _node_seen(self, name: str) -> None:
        snapshot = self._book.snapshot()
        inventory, room = snapshot.inventories[name], self.claims.room
        if room.knows(name, inventory):
            return
        pool = self.pools.node(inventory)
        room.node(snapshot, name, pool.policy.name if pool else None)
        self._fill(name, pool)
        for uid in snapshot.seats_by_node.get(name, {}):
            self._charge(uid)
        self.claims.recheck(name)
        self.claims.changed = True

    def _reported(self, name: str) -> None:
        """The node's cards are known better than before."""
        if name in self._book.snapshot().inventories:
            self._node_seen(name)
            self.claims.recheck(name)

    def _fill(self, name: str, pool: Pool | None) -> None:
        """Let the node's cards be filled as far as those of its pool."""
        self._book.apply(Filled(name, self._watermarks.of(pool.policy) if pool else None))

    def _fill_again(self) -> None:
        """Watermarks that are to move do."""
        snapshot = self._book.snapshot()
        moved = {
            pool.policy.name
            for pool in self.pools.by_name.values()
            if self._watermarks.step(pool.policy, bool(pool.pending), snapshot.watermark, self.claims.now)
        }
        if moved:
            for name in snapshot.inventories:
                pool = self.pools.of_node(name)
                if pool is not None and pool.policy.name in moved:
                    self._fill(name, pool)
            for name in self.claims.nodes():
                self.claims.recheck(name)

    def _leave_closed(self) -> None:
        """Claims on nodes that have closed since, as where an agent has fallen silent, end."""
        snapshot = self._book.snapshot()
        for name in self.claims.nodes():
            if snapshot.table.state[snapshot.index.get(name)] != OPEN:
                self.claims.recheck(name)

    def _node_gone(self, name: str) -> None:
        self.pools.node_gone(name)
        self.claims.room.node_gone(name)
        for waiter in self.claims.on(name):
            self.claims.withdraw(waiter)
        for uid in self._book.snapshot().seats_by_node.get(name, {}):
            self._charge(uid)
        for pool in self.pools.by_name.values():
            for uid in [uid for uid, hold in pool.holds.items() if hold.node == name]:
                self._turns.end_hold(pool, uid)
        self.claims.changed = True

    def _tick(self) -> None:
        self.claims.elapse()
        self._turns.elapse()
        self._fill_again()
        self._leave_closed()
        self._estimate_again()
        self.claims.changed = True
        if len(self.claims.room) > 2 * len(self.waiters) + 64:
            needed = {waiter.shape for waiter in self.waiters.values()}
            self.claims.room.forget(needed.__contains__)

    # questions

    def seat_for(self, pod: Pod) -> Answer | None:
        """Where the scheduler may put a pod that is past its gate; None: anywhere, it is not ours to say."""
        uid = pod.metadata.uid
        waiter = self.waiters.get(uid)
        if waiter is None:
            if self.place(pod) is None or not _asks_devices(pod):
                return None
            return Answer(None, "kvitej has not seen the pod yet; it stands in line as soon as it has")
        if waiter.node is not None:
            return Answer(waiter.node)
        return Answer(None, standing(waiter, self._line(waiter))) if waiter.covered else None

    def explain(self, uid: str) -> Wait:
        """Why a waiting pod waits. Raises KeyError if no such pod waits."""
        waiter = self.waiters[uid]
        pool = self.pools.of(waiter.pool)
        if pool is not None:
            pool.entitle(self.claims.now)
        rests = self.claims.rests(uid)
        snapshot, now = self._book.snapshot(), self.claims.now
        return explain_wait(snapshot, waiter, pool, self._line(waiter), rests, now)

    def never_fits(self, pool: str | None, request: Request, constraints: Constraints) -> bool:
        """Whether no node that such pods may use would hold one even when empty; None: any pool's."""
        shape = self.claims.room.shape(pool, request, constraints)
        return self.claims.room.home(self._book.snapshot(), shape) is None

    def check(self) -> None:
        """AssertionError names what the planner has got wrong about the book."""
        snapshot = self._book.snapshot()
        self.pools.check(snapshot)
        assert self.waiters.keys() == snapshot.waiting.keys(), "those planned are not those that wait"
        standing = 0
        for uid, waiter in self.waiters.items():
            seat = snapshot.seats.get(uid)
            assert waiter.node == (seat.node if seat else None), f"{uid}: its claim and the book differ"
            stands = waiter.stands and not self.claims.rests(uid)
            assert (uid in self._line(waiter)) == stands, f"{uid}: it is not in line as it should be"
            standing += stands
        lines = [self.pools.guests, *(pool.line for pool in self.pools.by_name.values())]
        assert sum(map(len, lines)) == standing, "a line has a pod too many"


def _asks_devices(pod: Pod) -> bool:
    """Whether a seat would hold a device; what cannot be read may."""
    try:
        return bool(request_of(pod).devices)
    except RequestError:
        return True
