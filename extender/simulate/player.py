"""Plays a cluster file's workload: pods arrive, are scheduled one by one, run, and leave, on a clock of its own.

A pod that found no node is tried again whenever another leaves, and one that Bind refused after the scheduler's
backoff; as in kube-scheduler, in the order of arrival. The play is over when every pod has been bound, or can't be.
"""

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count

from extender import duration
from extender.cluster.snapshot import Snapshot
from extender.simulate.cluster import EmbeddedCluster, Json
from extender.simulate.clusterfile import ClusterFile, Intruder, PodKind, numbered
from extender.simulate.scheduler import NAME, Bound, Scheduler, Unschedulable, Vetoed, lacking
from extender.simulate.story import Step, What, asks_text, cards_text, why_chosen, why_waiting
from extender.wire.marks import GPU_MEMORY
from extender.wire.quantity import milli

_BACKOFF = 1.0


@dataclass(slots=True)
class _Entry:
    """A pod of the file. `told` is set once it was shown as waiting."""

    kind: PodKind
    name: str
    intruder: Intruder | None
    pod: Json | None = None
    told: bool = False


@dataclass(frozen=True, slots=True)
class _Leaving:
    """The end of a pod's run: the step that seated it, and how long it ran."""

    seated: Step
    ran: float


class Player:
    """`show` is awaited with each step as it happens; `bound` by tenant and `vetoed` are the answers of Bind."""

    def __init__(
        self,
        file: ClusterFile,
        cluster: EmbeddedCluster,
        scheduler: Scheduler,
        snapshot: Callable[[], Snapshot],
        show: Callable[[Step], Awaitable[None]],
    ) -> None:
        self.file = file
        self.bound: Counter[str] = Counter()
        self.vetoed: list[Step] = []
        self._cluster = cluster
        self._scheduler = scheduler
        self._snapshot = snapshot
        self._show = show
        self._now = 0.0
        self._events: list[tuple[float, int, _Entry | _Leaving]] = []
        self._order = count()
        self._unbound: dict[tuple[str, str], _Entry] = {}
        for kind in sorted(file.pods, key=lambda kind: kind.at):
            intruder = kind.intruder
            for name in numbered(kind.name, kind.count):
                entry = self._unbound[kind.tenant, name] = _Entry(kind, name, intruder)
                self._push(kind.at, entry)
                intruder = None

    async def play(self) -> None:
        """Until every pod is bound, or no event is left that could help.

        Raises
        ------
        PlayError
            A verb did not answer as the protocol says.
        """
        while self._events and self._unbound:
            self._now, _, event = heapq.heappop(self._events)
            if isinstance(event, _Leaving):
                await self._leave(event)
            elif (event.kind.tenant, event.name) in self._unbound:
                await self._try(event)

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """Tenant and name of the pods without a node, in the order of their arrival."""
        return list(self._unbound)

    def unexpected(self) -> str:
        """A sentence on what went otherwise than the file expects; empty when nothing did."""
        expect = self.file.expect
        bound, vetoed = sum(self.bound.values()), len(self.vetoed)
        if expect is None or (expect.bound, expect.vetoed) == (bound, vetoed):
            return ""
        return (
            f"The play did not go as its file expects: {bound} pods were bound and {vetoed} vetoed at Bind, "
            f"and expect says {expect.bound} and {expect.vetoed}."
        )

    def _push(self, at: float, event: _Entry | _Leaving) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    async def _try(self, entry: _Entry) -> None:
        kind = entry.kind
        asks = asks_text(kind.asks, kind.gpu_memory)
        if entry.pod is None:
            declared = {GPU_MEMORY: str(kind.gpu_memory)} if kind.gpu_memory else {}
            entry.pod = self._cluster.create(kind.tenant, entry.name, kind.asks, declared, NAME)

        async def before_bind(node: str) -> None:
            intruder, entry.intruder = entry.intruder, None
            if intruder is not None:
                await self._intrude(intruder, node)

        at, told = self._now, (kind.tenant, entry.name, asks)
        match await self._scheduler.schedule(entry.pod, before_bind):
            case Bound(node) as bound:
                book = self._snapshot()
                seat = book.seats.get(entry.pod["metadata"]["uid"])
                waited = f"after waiting {duration.text(at - kind.at)}: " if at > kind.at else ""
                why = waited + why_chosen(bound, seat, book)
                step = Step(at, What.BOUND, *told, node, cards_text(seat), why)
                self.bound[kind.tenant] += 1
                del self._unbound[kind.tenant, entry.name]
                self._push(at + kind.runs, _Leaving(step, kind.runs))
            case Unschedulable() as refused:
                if entry.told:
                    return
                entry.told = True
                step = Step(at, What.WAITS, *told, "-", "", why_waiting(refused))
            case Vetoed(node, reason):
                step = Step(at, What.VETOED, *told, node, "", f"vetoed at Bind: {reason}")
                self.vetoed.append(step)
                self._push(at + _BACKOFF, entry)
        await self._show(step)

    async def _intrude(self, intruder: Intruder, node: str) -> None:
        """Let another scheduler, which counts only what is bound, put its pod on `node` now, if it has room."""
        asks = [(resource, milli(amount)) for resource, amount in intruder.asks.items()]
        if lacking(asks, self._cluster.room()[node]):
            return
        namespace, name = intruder.namespace, intruder.name
        uid = self._cluster.create(namespace, name, intruder.asks, {}, "another-scheduler")["metadata"]["uid"]
        await self._cluster.bind(namespace=namespace, name=name, uid=uid, node=node, annotations={})
        step = Step(
            self._now,
            What.PAST_US,
            namespace,
            name,
            asks_text(intruder.asks, ""),
            node,
            cards_text(self._snapshot().seats.get(uid)),
            "another scheduler binds it here, past kvitej",
        )
        self._push(self._now + intruder.runs, _Leaving(step, intruder.runs))
        await self._show(step)

    async def _leave(self, leaving: _Leaving) -> None:
        seated = leaving.seated
        self._cluster.delete(seated.tenant, seated.pod)
        why = f"has run for {duration.text(leaving.ran)} and leaves"
        await self._show(replace(seated, at=self._now, what=What.ENDED, why=why))
        for entry in self._unbound.values():
            if entry.pod is not None:
                self._push(self._now, entry)
