"""The planner's claims: seats kept in the book for pods that are on their way to the scheduler, and how they end.

A claim ends at its Bind, when a write fails, when the scheduler refuses the node, or after its time. Then the pod
stands in line again, at once or after a rest, and the nomination that we wrote is replaced or cleared.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from extender.cluster.events import Event, Promised, Withdrawn
from extender.cluster.seats import Phase, Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.bind import Granted, devices_without, seat_pod
from extender.decide.instructions import Clear, Evict, Instruction, Nominate, Ref, Release
from extender.decide.place import fits_without
from extender.decide.pools import Pools
from extender.decide.room import Room, Rows
from extender.decide.waiter import NO_VICTIMS, Waiter


class Book(Protocol):
    """The book, as the planner reads and writes it."""

    def snapshot(self) -> Snapshot: ...

    def apply(self, event: Event) -> object: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """`schedulers` are ours. Times are in seconds.

    `claim`: how long a released pod's seat is kept; `evicting`: how long one is kept for victims to leave.
    `in_flight`: claims at once, so that none ends before the scheduler gets to it. `at_once`: seats per step.
    `retry`, `most_retry`: the first pause after a failure, doubled each time, and the longest.
    `refused`, `most_refused`: the same for a node that the scheduler refused, for all pods of the shape.
    """

    schedulers: frozenset[str] = frozenset({"fair-quota"})
    claim: float = 30.0
    evicting: float = 600.0
    in_flight: int = 512
    at_once: int = 32
    retry: float = 1.0
    most_retry: float = 60.0
    refused: float = 2.0
    most_refused: float = 120.0


class Claims:
    """`line_up` puts a pod in line or takes it out, as it should be. `now` is set by whoever steps.

    `refusals` counts released pods that the scheduler did not bind where they had a seat.
    """

    def __init__(
        self, book: Book, pools: Pools, settings: Settings, line_up: Callable[[Waiter], None], now: float
    ) -> None:
        self.now = now
        self.room = Room()
        self.refusals = 0
        self.out: list[Instruction] = []
        self.leaving: dict[str, Waiter] = {}
        """By victim, who gets its room."""
        self.changed = True
        """Something that the line depends on has changed."""
        self._book = book
        self._pools = pools
        self._settings = settings
        self._line_up = line_up
        self._live: dict[str, Waiter] = {}
        self._resting: dict[str, Waiter] = {}
        self._stale: dict[str, Waiter] = {}

    @property
    def full(self) -> bool:
        """As many pods as should be are on their way to the scheduler."""
        return len(self._live) >= self._settings.in_flight

    def rests(self, uid: str) -> bool:
        return uid in self._resting

    def is_claimed(self, uid: str) -> bool:
        """Whether the pod has a claim that is not being bound yet."""
        seat = self._book.snapshot().seats.get(uid)
        return seat is not None and seat.phase is Phase.CLAIMED

    def on(self, node: str) -> list[Waiter]:
        """Who has a claim on the node."""
        return [each for uid, each in self._live.items() if each.node == node and self.is_claimed(uid)]

    def nodes(self) -> set[str]:
        """Where there are claims that are not being bound yet."""
        return {
            each.node for uid, each in self._live.items() if each.node is not None and self.is_claimed(uid)
        }

    # beginning

    def seat(self, waiter: Waiter, row: int) -> bool:
        """Give the pod a seat on the row and send it there; False if the last check refuses it, and it rests."""
        shape = waiter.shape
        assert shape is not None
        node = self._book.snapshot().index.name(row)
        verdict = seat_pod(self._book.snapshot(), waiter.ref.uid, shape.request, node)
        if not isinstance(verdict, Granted) or verdict.devices is None:
            self.rest(waiter, getattr(verdict, "reason", "it holds no device"))
            return False
        self._claim(waiter, node, verdict.devices)
        self._send(waiter)
        return True

    def keep(self, waiter: Waiter, node: str) -> None:
        """A pod that was sent to the node before keeps its seat there, if that is still free."""
        snapshot = self._book.snapshot()
        row = snapshot.index.get(node)
        shape = waiter.shape
        if shape is None or row < 0 or not self.room.fits(snapshot, shape, row):
            return
        verdict = seat_pod(snapshot, waiter.ref.uid, shape.request, node)
        if isinstance(verdict, Granted) and verdict.devices is not None:
            self._claim(waiter, node, verdict.devices)

    def seat_after(self, waiter: Waiter, node: str, victims: Collection[str], why: str) -> bool:
        """Give the pod the seat that it has once the victims are gone, and have them evicted.

        It is nominated at once, so that nobody slips into the gap, and sent when the last of them has left.
        """
        shape = waiter.shape
        assert shape is not None
        snapshot = self._book.snapshot()
        seats = [snapshot.seats[uid] for uid in victims]
        devices = devices_without(snapshot, shape.request, node, seats)
        if devices is None:
            return False
        self._claim(waiter, node, devices)
        waiter.until = self.now + self._settings.evicting
        waiter.victims = frozenset(victims)
        self.leaving.update(dict.fromkeys(victims, waiter))
        if waiter.gated:
            waiter.wrote = node
            self.out.append(Nominate(waiter.ref, node))
        self.out.append(Evict(tuple(map(_ref, seats)), waiter.ref, node, why))
        return True

    def _claim(self, waiter: Waiter, node: str, devices: str) -> None:
        uid = waiter.ref.uid
        snapshot = self._book.snapshot()
        self._book.apply(Promised(snapshot.waiting[uid].pod, node, devices))
        snapshot = self._book.snapshot()
        self._pools.charge(snapshot, uid, self.now)
        self.room.seen(snapshot, snapshot.index.get(node))
        waiter.node, waiter.until = node, self.now + self._settings.claim
        self._live[uid] = waiter
        self._resting.pop(uid, None)
        self._line_up(waiter)

    def _send(self, waiter: Waiter) -> None:
        """The pod may go to the node of its claim now."""
        assert waiter.node is not None
        waiter.until, waiter.clearing = self.now + self._settings.claim, False
        waiter.wrote = waiter.node
        write = Release if waiter.gated else Nominate
        self.out.append(write(waiter.ref, waiter.node))

    # going on

    def carried(self, uid: str) -> None:
        """The scheduler can see it now, so its time begins."""
        waiter = self._live.get(uid)
        if waiter is not None and not waiter.held_back:
            waiter.until = self.now + self._settings.claim

    def reserved(self, waiter: Waiter, node: str) -> None:
        """Bind has the seat now, be it a claimed one or not."""
        self.changed |= self.full
        self._live.pop(waiter.ref.uid, None)
        self._resting.pop(waiter.ref.uid, None)
        waiter.node, waiter.until = node, math.inf
        self._line_up(waiter)

    def left(self, uid: str) -> None:
        """The pod is gone; who waits for its room may have it all now."""
        if uid in self.leaving:
            winner = self.leaving.pop(uid)
            winner.victims -= {uid}
            if not winner.victims:
                winner.clearing, winner.until = True, self.now + self._settings.claim
                self._send_if_cleared(winner)

    def _send_if_cleared(self, waiter: Waiter) -> None:
        assert waiter.node is not None
        if self._holds(waiter, waiter.node):
            self._send(waiter)

    # ending

    def end(self, waiter: Waiter) -> None:
        """The pod waits no more."""
        uid = waiter.ref.uid
        self._spare(waiter)
        self.changed |= self.full
        for kept in (self._live, self._resting, self._stale):
            kept.pop(uid, None)

    def withdraw(self, waiter: Waiter) -> None:
        """End its claim, if it is no more than that."""
        if self.is_claimed(waiter.ref.uid):
            self._book.apply(Withdrawn(waiter.ref.uid))
            self.lost(waiter)

    def recheck(self, node: str) -> None:
        """The node has changed: claims that it does not hold any more end."""
        for waiter in self.on(node):
            if waiter.clearing:
                self._send_if_cleared(waiter)
            elif not self._holds(waiter, node):
                self.withdraw(waiter)

    def _holds(self, waiter: Waiter, node: str) -> bool:
        """Whether the node still has the pod's seat, once its victims are gone."""
        snapshot = self._book.snapshot()
        seat, shape = snapshot.seats[waiter.ref.uid], waiter.shape
        if shape is None or seat.cards is None or not self.room.allows(shape, snapshot.index.get(node)):
            return False
        leaving = [seat, *(snapshot.seats[uid] for uid in waiter.victims if uid in snapshot.seats)]
        ask = snapshot.ask(shape.request)
        return ask is not None and fits_without(snapshot, ask, node, leaving)

    def lost(self, waiter: Waiter) -> None:
        """The pod has no seat any more: it stands in line, unless it rests."""
        uid = waiter.ref.uid
        self._live.pop(uid, None)
        self._spare(waiter)
        waiter.node, waiter.until = None, math.inf
        self._pools.charge(self._book.snapshot(), uid, self.now)
        self.disown(waiter)
        self._line_up(waiter)
        self.changed = True

    def disown(self, waiter: Waiter) -> None:
        """Its nomination is to be cleared, unless this step writes another."""
        if waiter.wrote is not None:
            self._stale[waiter.ref.uid] = waiter

    def move(self, waiter: Waiter, rows: Rows) -> None:
        """The scheduler does not take the pod where it has its seat, but would on one of these rows."""
        shape, uid = waiter.shape, waiter.ref.uid
        assert shape is not None
        self._learn(waiter)
        self._book.apply(Withdrawn(uid))
        snapshot, pool = self._book.snapshot(), self._pools.of(waiter.pool)
        held = {hold.row for hold in pool.holds.values()} if pool else set()
        borrowed = waiter.preemptible if waiter.covered else None
        row = self.room.find_among(snapshot, shape, rows, held, borrowed)
        if row is not None:
            node = snapshot.index.name(row)
            verdict = seat_pod(snapshot, uid, shape.request, node)
            if isinstance(verdict, Granted) and verdict.devices is not None:
                self._claim(waiter, node, verdict.devices)
                return
        self.rest(
            waiter, f"node {waiter.node}: the scheduler found no room for it there, nor kvitej elsewhere"
        )
        self.lost(waiter)

    def _learn(self, waiter: Waiter) -> None:
        """Like pods aren't sent to the node for a while."""
        self.refusals += 1
        if waiter.shape is not None and waiter.node is not None:
            settings = self._settings
            self.room.refuse(waiter.shape, waiter.node, self.now, settings.refused, settings.most_refused)

    def refuse(self, waiter: Waiter, why: str) -> None:
        """The scheduler did not bind the pod where it has a seat."""
        self._learn(waiter)
        self.fail(waiter, f"node {waiter.node}: {why}")

    def fail(self, waiter: Waiter, trouble: str) -> None:
        """What was tried for the pod came to nothing."""
        self.rest(waiter, trouble)
        self.withdraw(waiter)

    def rest(self, waiter: Waiter, trouble: str) -> None:
        """The pod is not tried for a while, each time for longer."""
        pause = min(self._settings.retry * 2**waiter.tries, self._settings.most_retry)
        waiter.tries = min(waiter.tries + 1, 16)
        waiter.rests_until, waiter.trouble = self.now + pause, trouble
        self._resting[waiter.ref.uid] = waiter
        self._line_up(waiter)

    def elapse(self) -> None:
        """Time has passed: claims, rests and refusals that are old enough end."""
        for waiter in [waiter for waiter in self._live.values() if waiter.clearing]:
            self._send_if_cleared(waiter)
        for waiter in [waiter for waiter in self._live.values() if waiter.until <= self.now]:
            if not self.is_claimed(waiter.ref.uid):
                waiter.until = math.inf
            elif waiter.victims:
                self.fail(waiter, "those that were to make room for it have not left in time")
            elif waiter.clearing:
                self.fail(
                    waiter, "those that made room for it are gone, and their room is not free on the node"
                )
            else:
                self.refuse(waiter, f"it was not bound there within {self._settings.claim:g} s")
        for uid in [uid for uid, waiter in self._resting.items() if waiter.rests_until <= self.now]:
            self._line_up(self._resting.pop(uid))
        self.room.forgive(self.now)

    def flush(self) -> list[Instruction]:
        """All instructions of the step; nominations whose claim has ended and was not replaced are cleared."""
        for waiter in self._stale.values():
            if waiter.node is None and waiter.wrote is not None:
                self.out.append(Clear(waiter.ref, waiter.wrote))
                waiter.wrote = None
        self._stale.clear()
        out, self.out = self.out, []
        return out

    def _spare(self, waiter: Waiter) -> None:
        for victim in waiter.victims:
            self.leaving.pop(victim, None)
        waiter.victims, waiter.clearing = NO_VICTIMS, False


def _ref(seat: Seat) -> Ref:
    return Ref(seat.namespace, seat.name, seat.uid)
