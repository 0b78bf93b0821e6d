"""Plays a cluster file's workload on a clock of its own: pods arrive, wait for their turn, are bound, run, and leave.

At each moment the planner and the scheduler go on until neither has anything left to do. A pod that Bind refused is
tried again after the scheduler's backoff, one that is evicted leaves after its grace and is created again, as by its
controller. Meanwhile the nodes' agents report (`incidents`). The play is over at the file's end, or when every pod has
been bound or can't be.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

from extender import duration
from extender.cluster.events import Event, Outcome
from extender.cluster.notices import AgentSilent, Moved, Notice
from extender.cluster.request import request_of
from extender.cluster.snapshot import Snapshot
from extender.decide.waits import Reason, Wait
from extender.simulate.admission import RefusedError
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster, Json, is_gated, nomination
from extender.simulate.clusterfile import ClusterFile, Intruder, PodKind, Process, numbered
from extender.simulate.incidents import Incidents
from extender.simulate.scheduler import NAME, Bound, Scheduler, Unschedulable, Vetoed, lacking
from extender.simulate.story import (
    Step,
    What,
    asks_text,
    cards_text,
    what_stands_against,
    why_chosen,
    why_in_line,
    why_unschedulable,
)
from extender.wire.marks import EVICTED, GPU_MEMORY
from extender.wire.quantity import milli
from extender.wire.shares import Shares

BACKOFF = 1.0
GRACE = 30.0
STEP = 1.0
"""Seconds after which the planner hears that time has passed, while somebody waits."""
PATIENCE = 300.0
"""Seconds that the planner gets for those who wait, once nothing else is to come."""


class Planning(Protocol):
    """The door Wait, as the play drives it."""

    async def settle(self) -> None:
        """Plan for the moment that it is, until all that was decided is carried out."""

    def explain(self, uid: str) -> Wait:
        """Why a waiting pod waits."""

    def shares(self) -> Shares:
        """Who has what now."""


@dataclass(slots=True)
class _Entry:
    """A pod of the file, and its object while there is one.

    `told`: it was shown as waiting, for this reason; `vetoed`: not since Bind refused it. `offered` is the node on
    which it was last tried as nominated, `seated` the step that last bound it.
    """

    kind: PodKind
    name: str
    intruder: Intruder | None
    process: Process | None
    pod: Json | None = None
    since: float = 0.0
    told: Reason | None = None
    gated: bool = False
    nominated: str | None = None
    offered: str | None = None
    tried: bool = False
    vetoed: bool = False
    seated: Step | None = None
    evicted: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.kind.tenant, self.name

    @property
    def asks(self) -> str:
        return asks_text(self.kind.asks, self.kind.gpu_memory)


class Player:
    """`show` is awaited with each step as it happens.

    `bound` by tenant and `vetoed` are the answers of Bind, `evicted` who had to make room.
    """

    SHOWN = (Moved, AgentSilent)
    """Notices of the book that become steps."""

    def __init__(
        self,
        file: ClusterFile,
        cluster: EmbeddedCluster,
        scheduler: Scheduler,
        planning: Planning,
        deliver: Callable[[Event], None],
        snapshot: Callable[[], Snapshot],
        show: Callable[[Step], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self.file = file
        self.bound: Counter[str] = Counter()
        self.vetoed: list[Step] = []
        self.evicted: list[Step] = []
        self._cluster = cluster
        self._scheduler = scheduler
        self._planning = planning
        self._snapshot = snapshot
        self._show = show
        self._clock = clock
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._order = count()
        self._unbound: dict[tuple[str, str], _Entry] = {}
        self._by_uid: dict[str, _Entry] = {}
        self._ready: deque[_Entry] = deque()
        self._leaving: deque[_Entry] = deque()
        self._heard: deque[Moved | AgentSilent] = deque()
        self._incidents = Incidents(file, cluster, deliver, self._at, show, clock)
        cluster.follow(self._changed)
        for kind in sorted(file.pods, key=lambda kind: kind.at):
            intruder, process = kind.intruder, kind.process
            for name in numbered(kind.name, kind.count):
                entry = self._unbound[kind.tenant, name] = _Entry(kind, name, intruder, process)
                self._at(kind.at, partial(self._arrive, entry))
                intruder = process = None

    async def play(self) -> None:
        """To the file's end, or until every pod is bound, or nothing comes any more that could help.

        Raises
        ------
        PlayError
            A verb did not answer as the protocol says.
        """
        ends = self.file.ends or math.inf
        heard = 0.0
        while self._unbound or ends < math.inf:
            at = self._events[0][0] if self._events else math.inf
            waits = self._unbound and (self._events or self._clock() < heard + PATIENCE)
            moment = min(at, self._clock() + STEP if waits else math.inf)
            if min(moment, ends) < math.inf:
                moment = min(moment, self._incidents.due)
            if moment > ends or moment == math.inf:
                break
            self._clock.advance(moment)
            self._incidents.look()
            if at <= moment:
                heard = moment
                await heapq.heappop(self._events)[2]()
            await self._settle()
        if ends < math.inf:
            self._clock.advance(ends)
            await self._settle()

    def hear(self, notice: Notice) -> None:
        """What the book has noticed; of some, a step is shown."""
        if isinstance(notice, self.SHOWN):
            self._heard.append(notice)

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """Tenant and name of the pods without a node, in the order of their arrival."""
        return list(self._unbound)

    def unexpected(self) -> str:
        """A sentence on what went otherwise than the file expects; empty when nothing did."""
        expect = self.file.expect
        found = sum(self.bound.values()), len(self.vetoed), len(self.evicted)
        if expect is None or (expect.bound, expect.vetoed, expect.evicted) == found:
            return ""
        return (
            f"The play did not go as its file expects: {found[0]} pods were bound, {found[1]} vetoed at Bind and "
            f"{found[2]} evicted, and expect says {expect.bound}, {expect.vetoed} and {expect.evicted}."
        )

    # time

    def _at(self, at: float, happens: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (at, next(self._order), happens))

    async def _settle(self) -> None:
        """Until neither the planner nor the scheduler has anything to do at this moment."""
        while True:
            await self._planning.settle()
            if self._leaving:
                await self._tell_eviction(self._leaving.popleft())
            elif self._heard:
                await self._tell_notice(self._heard.popleft())
            elif self._ready:
                await self._try(self._ready.popleft())
            else:
                break
        for entry in list(self._unbound.values()):
            await self._tell_wait(entry)

    # what is seen of the cluster

    def _changed(self, pod: Json) -> None:
        entry = self._by_uid.get(pod["metadata"]["uid"])
        if entry is None:
            return
        had, entry.gated, entry.nominated = (entry.gated, entry.nominated), is_gated(pod), nomination(pod)
        if "deletionTimestamp" in pod["metadata"]:
            if not entry.evicted:
                entry.evicted = True
                self._leaving.append(entry)
        elif (
            "nodeName" not in pod["spec"]
            and not entry.gated
            and (entry.nominated or had[0])
            and had != (False, entry.nominated)
        ):
            self._ready.append(entry)

    # what happens

    async def _arrive(self, entry: _Entry) -> None:
        kind = entry.kind
        declared = {GPU_MEMORY: str(kind.gpu_memory)} if kind.gpu_memory else {}
        entry.since, entry.told, entry.offered = self._clock(), None, None
        entry.tried = entry.vetoed = entry.evicted = False
        try:
            pod = self._cluster.create(kind.tenant, entry.name, kind.asks, declared, NAME)
        except RefusedError as error:
            del self._unbound[entry.key]
            await self._show(self._step(What.REFUSED, entry, "-", f"refused at create: {error}"))
            return
        entry.pod, entry.gated, entry.nominated = pod, is_gated(pod), nomination(pod)
        self._by_uid[pod["metadata"]["uid"]] = entry
        if not entry.gated:
            self._ready.append(entry)

    async def _try(self, entry: _Entry) -> None:
        """One cycle of the scheduler for the pod."""
        if entry.pod is None or entry.key not in self._unbound:
            return

        async def before_bind(node: str) -> None:
            intruder, entry.intruder = entry.intruder, None
            if intruder is not None:
                await self._intrude(intruder, node)
            process, entry.process = entry.process, None
            if process is not None:
                await self._incidents.between(process, node)

        if entry.told is not None and entry.nominated not in (None, entry.offered):
            how = "its gate is lifted"
            if entry.tried:
                how = "it is nominated" if entry.offered is None else "it is nominated for this node instead"
            why = f"its turn after {duration.text(self._clock() - entry.since)}: {how}"
            await self._show(self._step(What.RELEASED, entry, entry.nominated or "", why))
        entry.offered, entry.tried = entry.nominated, True
        match await self._scheduler.schedule(entry.pod, before_bind):
            case Bound(node) as bound:
                book = self._snapshot()
                seat = book.seats.get(entry.pod["metadata"]["uid"])
                why = why_chosen(bound, seat, book, self._planning.shares(), entry.kind.tenant)
                step = self._step(What.BOUND, entry, node, why, cards_text(seat))
                entry.seated = step
                self.bound[entry.kind.tenant] += 1
                del self._unbound[entry.key]
                self._at(self._clock() + entry.kind.runs, partial(self._end, entry, entry.pod))
            case Unschedulable() as refused:
                if entry.told is not None:
                    return
                entry.told = Reason.ROOM
                step = self._step(What.WAITS, entry, "-", why_unschedulable(refused))
            case Vetoed(node, reason):
                step = self._step(What.VETOED, entry, node, f"vetoed at Bind: {reason}")
                entry.told, entry.vetoed = Reason.SCHEDULER, True
                self.vetoed.append(step)
                self._at(self._clock() + BACKOFF, partial(self._again, entry, entry.pod))
        await self._show(step)

    async def _again(self, entry: _Entry, pod: Json) -> None:
        if entry.pod is pod:
            self._ready.append(entry)

    async def _intrude(self, intruder: Intruder, node: str) -> None:
        """Let another scheduler, which counts only what is bound, put its pod on `node` now, if it has room."""
        asks = [(resource, milli(amount)) for resource, amount in intruder.asks.items()]
        if lacking(asks, self._cluster.room()[node]):
            return
        namespace, name = intruder.namespace, intruder.name
        try:
            pod = self._cluster.create(namespace, name, intruder.asks, {}, "another-scheduler")
        except RefusedError:
            return
        uid = pod["metadata"]["uid"]
        bound = await self._cluster.bind(namespace=namespace, name=name, uid=uid, node=node, annotations={})
        if bound.outcome is not Outcome.BOUND:
            # A policy that gives such pods to our own scheduler has gated it.
            self._cluster.delete(namespace, name)
            return
        step = Step(
            self._clock(),
            What.PAST_US,
            namespace,
            name,
            asks_text(intruder.asks, ""),
            node,
            cards_text(self._snapshot().seats.get(uid)),
            "another scheduler binds it here, past kvitej",
        )
        self._at(self._clock() + intruder.runs, partial(self._leave, step, intruder.runs))
        await self._show(step)

    async def _end(self, entry: _Entry, pod: Json) -> None:
        """The pod has done its work, unless it was evicted before."""
        if entry.pod is pod and entry.seated is not None and not entry.evicted:
            entry.pod = None
            await self._leave(entry.seated, entry.kind.runs)

    async def _leave(self, seated: Step, ran: float) -> None:
        self._cluster.delete(seated.tenant, seated.pod)
        why = f"has run for {duration.text(ran)} and leaves"
        await self._show(replace(seated, at=self._clock(), what=What.ENDED, why=why))
        # Those that nobody plans are the scheduler's, which tries them again when another pod leaves.
        self._ready += [
            entry for entry in self._unbound.values() if entry.pod and not entry.gated and not entry.nominated
        ]

    # evictions and waits

    async def _tell_eviction(self, entry: _Entry) -> None:
        assert entry.pod is not None
        assert entry.seated is not None
        reason = entry.pod["metadata"]["annotations"][EVICTED]
        step = replace(entry.seated, at=self._clock(), what=What.EVICTED, why=f"evicted {reason}")
        self.evicted.append(step)
        self._at(self._clock() + GRACE, partial(self._is_replaced, entry))
        await self._show(step)

    async def _is_replaced(self, entry: _Entry) -> None:
        """An evicted pod's grace is over: it leaves, and its controller creates it again."""
        self._cluster.delete(*entry.key)
        entry.pod = None
        await self._settle()
        self._unbound[entry.key] = entry
        await self._arrive(entry)

    async def _tell_wait(self, entry: _Entry) -> None:
        """Show that a pod waits: gated, or vetoed with no room elsewhere; again once a seat is being emptied for it."""
        if entry.pod is None or not (entry.gated or entry.vetoed):
            return
        uid = entry.pod["metadata"]["uid"]
        wait = self._planning.explain(uid)
        if not entry.gated and wait.reason is not Reason.ROOM:
            return
        anew = entry.told is None or entry.vetoed
        if anew or (wait.reason is Reason.VICTIMS and entry.told is not Reason.VICTIMS):
            entry.told, entry.vetoed = wait.reason, False
            why = "created again after its eviction: " if entry.seated and not wait.node else ""
            why += why_in_line(wait)
            if wait.reason is Reason.ROOM:
                book = self._snapshot()
                why += f" {what_stands_against(book, request_of(book.waiting[uid].pod))}"
            await self._show(self._step(What.WAITS, entry, wait.node or "-", why.rstrip()))

    async def _tell_notice(self, notice: Moved | AgentSilent) -> None:
        if isinstance(notice, AgentSilent):
            await self._show(Step(self._clock(), What.SILENT, "", "", "", notice.node, "", str(notice)))
            return
        entry = self._by_uid.get(notice.uid)
        why = (
            f"planned on {notice.planned}, and the kubelet gave it {notice.given}: the book follows the node"
        )
        step = Step(
            self._clock(),
            What.MOVED,
            notice.namespace,
            notice.name,
            entry.asks if entry is not None else "",
            notice.node,
            cards_text(self._snapshot().seats.get(notice.uid)),
            why,
        )
        if entry is not None and entry.seated is not None:
            entry.seated = replace(entry.seated, cards=step.cards)
        await self._show(step)

    def _step(self, what: What, entry: _Entry, node: str, why: str, cards: str = "") -> Step:
        return Step(self._clock(), what, entry.kind.tenant, entry.name, entry.asks, node, cards, why)
