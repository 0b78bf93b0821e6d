"""The door Wait: the planner as it runs beside the others.

The book tells it all that happens, it decides, and what it decided is carried out here: nominate, lift the gate, evict.
The outcome goes back to it as events. Instructions for one pod are carried out one after another, those for different
pods side by side.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from extender.cluster.eligibility import constraints_of
from extender.cluster.events import Event, NodeGone, NodeSeen, PodGone, PodSeen, Reserved, Settled
from extender.cluster.reports import ReportGone, ReportSeen
from extender.cluster.request import request_of
from extender.decide.claims import Settings
from extender.decide.counted import Counted
from extender.decide.giving import Giver
from extender.decide.headroom import room_of
from extender.decide.instructions import (
    Carried,
    ClassesSeen,
    Clear,
    Elsewhere,
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
from extender.decide.migprofile import offered
from extender.decide.plan import Answer, Planner
from extender.decide.preempt import Guard, Protection
from extender.decide.protect import guard_for
from extender.decide.rules import Room
from extender.decide.status import Status, restore
from extender.decide.waiter import preemptible_classes
from extender.fairness.depth import Queue, QueueDepths
from extender.fairness.policy import Place, Policy
from extender.fairness.reading import Policies
from extender.fairness.record import Fairness
from extender.serve.book import Book
from extender.wire.objects import Pod
from extender.wire.surroundings import PodDisruptionBudget, PriorityClass

log = structlog.get_logger()

_TICK = 1.0
_OF_THE_CLUSTER = (PodSeen, PodGone, NodeSeen, NodeGone, ReportSeen, ReportGone, Reserved, Settled)


class Outcome(Protocol):
    """What became of a write: a sentence unless it is done."""

    @property
    def done(self) -> bool: ...

    @property
    def detail(self) -> str: ...


class Releaser(Protocol):
    """Who writes to the API server for the planner; never raises."""

    async def nominate(self, namespace: str, name: str, uid: str, node: str | None) -> Outcome: ...

    async def lift(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> Outcome: ...

    async def evict(self, namespace: str, name: str, uid: str, reason: str) -> Outcome: ...


class WaitDoor:
    """Whose turn is it, and where will it sit?

    Until `begin`, the book is not complete and nothing is planned. `told` hears of each eviction and why. `clock` is
    monotonic, `wall` the time of the day, in seconds. `fairness` is what has been counted since.
    """

    def __init__(
        self,
        book: Book,
        releaser: Releaser,
        settings: Settings,
        *,
        in_flight: int,
        told: Callable[[Ref, str], None] = lambda victim, why: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.depths = QueueDepths()
        self.planner: Planner | None = None
        self.fairness = Fairness()
        self._counted: Counted
        self._book = book
        self._releaser = releaser
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._giver = Giver(book.state, wall() - clock())
        self._told = told
        self._writes = asyncio.Semaphore(in_flight)
        self._policies = Policies(())
        self._labels: dict[str, Mapping[str, str]] = {}
        self.preemptible_classes: frozenset[str] = frozenset()
        """PriorityClasses whose pods may be evicted, as they are now."""
        self._last: dict[str, asyncio.Task[None]] = {}
        self._resumed = False
        book.follow(self._happened)

    # what is asked of it

    def seat_for(self, pod: Pod) -> Answer | None:
        """Where a pod that is past its gate may go; None: anywhere, as far as its turn is concerned."""
        return None if self.planner is None else self.planner.seat_for(pod)

    def elsewhere(self, pod: Pod, rows: NDArray[np.int32]) -> None:
        """The scheduler does not take the pod where it was nominated, but would on one of these rows."""
        self._step(Elsewhere(pod.metadata.uid, rows))

    def place(self, namespace: str, labels: Mapping[str, str], scheduler: str, /) -> Place | None:
        """The policy and tenant of pods, by the policies as they are now."""
        return self._policies.place(namespace, labels, scheduler)

    def never_fits(self, policy: Policy, pod: Pod) -> bool:
        """Whether no node of the policy's pool would hold the pod even when empty; not said while nothing is known."""
        if self.planner is None or not self._book.snapshot().inventories:
            return False
        return self.planner.never_fits(policy.name, request_of(pod), constraints_of(pod))

    def room(self, policy: Policy, pod: Pod) -> Room | None:
        """What the policy's pool has left for one more pod such as this; None while too little is known."""
        if self.planner is None:
            return None
        return room_of(self.planner, policy.name, request_of(pod), constraints_of(pod))

    def offers(self, policy: Policy | None) -> frozenset[str] | None:
        """The MIG instances that nodes of the policy's pool have or can cut, or all nodes; None while none is known."""
        inventories = self._book.snapshot().inventories
        if self.planner is None or not inventories:
            return None
        pools = self.planner.pools
        pool = pools.of(policy.name) if policy is not None else None
        return offered(
            inventory
            for name, inventory in inventories.items()
            if pool is None or pools.of_node(name) is pool
        )

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        return self._labels.get(namespace, {})

    # what it is told

    def begin(self, statuses: Mapping[str, Status]) -> None:
        """The book is complete, policies and namespaces are told: plan from now on.

        `statuses` are those of the policies, in which an earlier process has left what each tenant had used.
        """
        now = self._clock()
        planner = Planner(self._book.state, self._policies, self._settings, now, self._giver)
        for name, labels in self._labels.items():
            planner.pools.namespace(name, labels)
        planner.step(ClassesSeen(self.preemptible_classes), now)
        told = restore(
            planner,
            self._book.snapshot(),
            self.fairness,
            statuses,
            self._giver.bound(),
            wall=self._wall(),
            now=now,
        )
        for sentence in told:
            log.warning(sentence)
        self.planner = planner
        self._counted = Counted(planner, self.fairness, self._book.snapshot)
        for waiting in list(self._book.snapshot().waiting.values()):
            self._count(waiting.pod)
        self._carry_out(self._counted.begin(now, self._wall()))
        for pool in planner.pools.by_name.values():
            self._giver.catch_up(pool.ledger)

    def policies(self, policies: Policies) -> None:
        """These are the policies now."""
        self._policies = policies
        self._step(PoliciesSeen(policies))
        for waiting in list(self._book.snapshot().waiting.values()):
            self._count(waiting.pod)

    def namespaces(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """These are the namespaces now, with their labels."""
        for name in self._labels.keys() - labels.keys():
            self._step(NamespaceSeen(name, None))
        changed = {name: found for name, found in labels.items() if self._labels.get(name) != found}
        self._labels = dict(labels)
        for name, found in changed.items():
            self._step(NamespaceSeen(name, found))

    def classes(self, classes: Iterable[PriorityClass]) -> None:
        """These are the PriorityClasses now."""
        self.preemptible_classes = preemptible_classes(classes)
        self._step(ClassesSeen(self.preemptible_classes))

    def budgets(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        """These are the disruption budgets now."""
        self._giver.budgets(budgets)

    def guard(self, uid: str, base: Protection) -> Guard:
        """What the pod must spare when it preempts."""
        if self.planner is None:
            return base
        return guard_for(self.planner, self._giver, uid, base, self._clock())

    async def run(self) -> None:
        """Let time pass, until cancelled."""
        while True:
            await asyncio.sleep(_TICK)
            self.tick()

    def tick(self) -> None:
        """Time has passed; nobody is sent anywhere by a book that can't be trusted."""
        if self._book.unfit() is None:
            self._step(Tick())

    async def settle(self) -> None:
        """Until all that could be planned is planned and carried out."""
        while self._last or self._resumed:
            await asyncio.wait(self._last.values()) if self._last else await asyncio.sleep(0)

    def _happened(self, event: Event) -> None:
        self._giver.apply(event, self._clock())
        if self.planner is None or not isinstance(event, _OF_THE_CLUSTER):
            return
        if isinstance(event, PodSeen):
            self._count(event.pod)
        elif isinstance(event, PodGone):
            self.depths.gone(event.uid)
        self._step(event)

    def _count(self, pod: Pod) -> None:
        """Note whether the pod waits in a queue, once there is a planner to say."""
        uid = pod.metadata.uid
        waits = self.planner is not None and uid in self._book.snapshot().waiting
        place = self.planner.place(pod) if self.planner is not None and waits else None
        if place is None or place.tenant is None:
            self.depths.gone(uid)
        else:
            self.depths.seen(uid, Queue(place.policy.name, place.tenant.name))

    def _step(self, event: Happening) -> None:
        if self.planner is None:
            return
        self._carry_out(self._counted.step(event, self._clock()))
        for notice in self._giver.notices():
            log.warning(str(notice), notice=type(notice).__name__)
        if self.planner.busy and not self._resumed:
            # The loop first gets to what has come in meanwhile.
            self._resumed = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._resumed = False
        self.tick()

    # what it does

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            uid = instruction.pod.uid
            task = asyncio.create_task(self._after(self._last.get(uid), instruction))
            self._last[uid] = task
            task.add_done_callback(partial(self._forget, uid))

    def _forget(self, uid: str, done: "asyncio.Task[None]") -> None:
        if self._last.get(uid) is done:
            del self._last[uid]
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("an instruction failed: this is a bug in kvitej", exc_info=error)

    async def _after(self, last: "asyncio.Task[None] | None", instruction: Instruction) -> None:
        if last is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(last)
        match instruction:
            case Release(pod, node):
                await self._release(pod, node)
            case Nominate(pod, node):
                self._tell(pod, await self._write(self._releaser.nominate(*_names(pod), node)))
            case Clear(pod, value):
                await self._clear(pod, value)
            case Evict(victims, pod, node, why):
                reason = f"to make room on {node} for {pod.namespace}/{pod.name}: {why}"
                await asyncio.gather(*(self._evict(victim, reason) for victim in victims))

    async def _release(self, pod: Ref, node: str | None) -> None:
        written = None
        if node is not None:
            written = await self._write(self._releaser.nominate(*_names(pod), node))
        if written is None or written.done:
            written = await self._write(self._releaser.lift(*_names(pod), {}))
        log.info("released", pod=f"{pod.namespace}/{pod.name}", node=node, failed=written.detail or None)
        self._tell(pod, written)

    async def _clear(self, pod: Ref, value: str) -> None:
        waiting = self._book.snapshot().waiting.get(pod.uid)
        if waiting is None:
            return
        status = waiting.pod.status
        if (status.nominated_node_name if status else None) not in (None, "", value):
            return
        written = await self._write(self._releaser.nominate(*_names(pod), None))
        if not written.done:
            log.warning(
                "a nomination was not cleared", pod=f"{pod.namespace}/{pod.name}", reason=written.detail
            )

    async def _evict(self, victim: Ref, reason: str) -> None:
        written = await self._write(self._releaser.evict(*_names(victim), reason))
        name = f"{victim.namespace}/{victim.name}"
        log.info("evicted" if written.done else "not evicted", pod=name, reason=written.detail or reason)
        if written.done:
            self._giver.evicted(victim.uid, self._clock())
            self._told(victim, reason)
        else:
            self._step(NotEvicted(victim.uid, written.detail))

    def _tell(self, pod: Ref, written: Outcome) -> None:
        self._step(Carried(pod.uid) if written.done else Failed(pod.uid, written.detail))

    async def _write(self, write: Awaitable[Outcome]) -> Outcome:
        async with self._writes:
            return await write


def _names(pod: Ref) -> tuple[str, str, str]:
    return pod.namespace, pod.name, pod.uid
