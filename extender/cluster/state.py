"""The book: `ClusterState.apply(event)` is its only door in, `snapshot()` its only door out.

Here is who has a seat, a claim or waits; `Rows` says what that weighs on the nodes, and `Agents` what these report.
Pods and nodes come in any order: a seat is kept under its node's name, so it weighs as soon as the node is there,
also when the node is removed and created again. When a node's inventory changes, its row is charged anew from its
seats, so nothing can leak over a relabelling.
"""

import contextlib
from collections.abc import Iterable

import numpy as np

from _core import fit, score
from extender.cluster.agents import Agents
from extender.cluster.columns import Columns
from extender.cluster.events import (
    Claimed,
    Elapsed,
    Event,
    Filled,
    NodeGone,
    NodeSeen,
    Nudged,
    Outcome,
    PodGone,
    PodSeen,
    Promised,
    Reckoned,
    Reserved,
    Settled,
    Unclaimed,
    Withdrawn,
)
from extender.cluster.inventory import inventory_of
from extender.cluster.limits import UNLIMITED, Limits
from extender.cluster.mix import EVEN, Scales
from extender.cluster.notices import (
    BoundPastUs,
    NodeClosed,
    Notice,
    WorstCase,
)
from extender.cluster.outlook import Outlook
from extender.cluster.reported import Report
from extender.cluster.reports import Beat, ReportGone, ReportSeen
from extender.cluster.request import (
    RequestError,
    asks_devices,
    is_over,
    request_of,
)
from extender.cluster.rows import Rows
from extender.cluster.seats import (
    Phase,
    Seat,
    SoftClaim,
    seat_of,
)
from extender.cluster.snapshot import Snapshot, Waiting
from extender.cluster.unlisted import Unlisted
from extender.wire.devices import ANNOTATION
from extender.wire.objects import Pod


class ClusterState:
    """Nodes, seats, claims and waiting GPU pods.

    `managed` are the resource names of the scheduler configuration; a node's other `nvidia.com/*` names are noticed,
    since pods that ask for them go past the veto. `scales` weigh the parts of the score, `limits` say how far cards
    may be filled.
    """

    def __init__(self, managed: Iterable[str], scales: Scales = EVEN, limits: Limits = UNLIMITED) -> None:
        self._limits = limits
        self._columns = Columns()
        self._outlook = Outlook(self._columns, scales)
        self._reports: dict[str, Report] = {}
        self._unlisted = Unlisted(managed)
        self._rows = Rows(self._columns, self._outlook, self._unlisted, limits, self._reports)
        self._agents = Agents(self._reports, self._rows, limits)
        self._seats: dict[str, Seat] = {}
        self._waiting: dict[str, Waiting] = {}
        self._past_us: set[str] = set()
        self._generation = 0
        self._seen: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """The book as of now, for one synchronous decision; not to be kept across an `apply`."""
        if self._seen is None:
            self._seen = self._look()
        return self._seen

    def _look(self) -> Snapshot:
        rows = self._rows
        return Snapshot(
            columns=self._columns,
            index=rows.index,
            inventories=rows.inventories,
            ids=self._outlook.ids,
            seats=self._seats,
            seats_by_node=rows.seats,
            claims=rows.claims,
            waiting=self._waiting,
            past_us=self._past_us,
            worst_case=rows.worst_case,
            unlisted=self._unlisted.nodes,
            reports=self._reports,
            unreadable=self._agents.unreadable,
            watermarks=rows.watermarks,
            watermark=self._limits.watermark,
            generation=self._generation,
            room=rows.room,
            descriptions=rows.descriptions,
            ask=self._outlook.ask,
            demand=self._outlook.demand,
            judge=self._outlook.judge,
        )

    def apply(self, event: Event) -> tuple[Notice, ...]:
        """Let it happen. What a person should hear about comes back as notices, mostly none."""
        self._generation += 1
        self._seen = None
        match event:
            case PodSeen(pod, fault):
                return self._pod_seen(pod, fault)
            case PodGone(uid):
                self._forget(uid)
            case NodeSeen(node, fault):
                return self._rows.seen(inventory_of(node, fault))
            case NodeGone(name):
                self._rows.gone(name)
                self._agents.node_gone(name)
            case Claimed(pod, request, node, cards, until):
                self._claim(pod.metadata.uid, SoftClaim(node, pod, request, cards, until))
            case Unclaimed(uid):
                self._rows.release(uid)
            case Nudged(uids):
                for uid in uids:
                    if uid in self._waiting:
                        self._waiting[uid].nudged = self._rows.room
            case Promised(pod, node, devices):
                self._promise(pod, node, devices)
            case Withdrawn(uid):
                seat = self._seats.get(uid)
                if seat is not None and seat.phase is Phase.CLAIMED:
                    self._leave(seat)
            case Reckoned(uid, borrowed):
                if uid in self._seats:
                    self._rows.reckon(self._seats[uid], borrowed)
            case Reserved(pod, node, devices):
                self._reserve(pod, node, devices)
            case Settled(uid, outcome):
                self._settle(uid, outcome)
            case ReportSeen():
                return self._agents.seen(event)
            case ReportGone(name):
                self._agents.gone(name)
            case Beat(name, at):
                self._agents.beat(name, at)
            case Filled(name, watermark):
                self._rows.fill(name, watermark)
            case Elapsed(now):
                for uid in [uid for uid, claim in self._rows.claims.items() if claim.until <= now]:
                    self._rows.release(uid)
                return tuple(self._agents.age(now))
        return ()

    def check(self) -> None:
        """Recompute all from the seats and claims; AssertionError names what differs."""
        self._rows.check()
        for kept in self._outlook.judgements():
            current = np.flatnonzero(kept.seen == self._columns.version[: len(kept.seen)]).astype(np.int32)
            codes = fit(self._columns.table, current, kept.ask)
            scores = score(self._columns.table, current, codes, kept.ask, kept.demand)
            assert np.array_equal(kept.codes[current], codes), "a kept code is not what the row gives now"
            assert np.array_equal(kept.scores[current], scores), "a kept score is not what the row gives now"
        assert sum(map(len, self._rows.seats.values())) == len(self._seats)
        assert not self._seats.keys() & self._rows.claims.keys(), "a pod has a seat and a claim"

    # pods

    def _pod_seen(self, pod: Pod, fault: str) -> tuple[Notice, ...]:
        uid = pod.metadata.uid
        if is_over(pod):
            self._forget(uid)
            return ()
        if pod.spec is not None and pod.spec.node_name:
            new = self._waiting.pop(uid, None) is None and uid not in self._seats
            self._rows.release(uid)
            record = (pod.metadata.annotations or {}).get(ANNOTATION)
            seat = seat_of(pod, pod.spec.node_name, Phase.BOUND, record, fault)
            if new:
                self._outlook.observe(seat.request)
            return self._sit(seat)
        waiting, seated = self._waiting.get(uid), self._seats.get(uid)
        if waiting is not None:
            waiting.pod = pod
        elif (seated is None or seated.phase is not Phase.BOUND) and asks_devices(pod):
            self._waiting[uid] = Waiting(pod)
            if seated is None:
                with contextlib.suppress(RequestError):
                    self._outlook.observe(request_of(pod))
        return ()

    def _sit(self, seat: Seat) -> tuple[Notice, ...]:
        """The pod is bound, whoever did it."""
        had = self._seats.get(seat.uid)
        if had is not None:
            if had.is_like(seat):
                had.phase, had.preemptible = Phase.BOUND, seat.preemptible
                return ()
            self._leave(had)
        notices: list[Notice] = []
        if seat.record is None and seat.request.devices:
            self._past_us.add(seat.uid)
            notices.append(BoundPastUs(seat.namespace, seat.name, seat.node))
        if seat.fault:
            notices.append(NodeClosed(seat.node, f"pod {seat.namespace}/{seat.name}: {seat.fault}"))
        self._take(seat)
        if seat.uid in self._rows.worst_case and seat.record is not None:
            notices.append(WorstCase(seat.namespace, seat.name, seat.node))
        return tuple(notices)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._rows.release(uid)
        seat = self._seats.get(uid)
        if seat is not None:
            self._leave(seat)

    # seats

    def _take(self, seat: Seat) -> None:
        self._seats[seat.uid] = seat
        self._rows.came(seat)

    def _leave(self, seat: Seat) -> None:
        del self._seats[seat.uid]
        self._past_us.discard(seat.uid)
        self._rows.left(seat)

    def _promise(self, pod: Pod, node: str, devices: str) -> None:
        uid = pod.metadata.uid
        self._rows.release(uid)
        had = self._seats.get(uid)
        if had is not None:
            if had.phase is not Phase.CLAIMED:
                raise ValueError(
                    f"pod {pod.metadata.name} has a seat on {had.node} ({had.phase.value}): "
                    f"it can't be promised one on {node}"
                )
            self._leave(had)
        self._take(seat_of(pod, node, Phase.CLAIMED, devices, ""))

    def _reserve(self, pod: Pod, node: str, devices: str | None) -> None:
        uid = pod.metadata.uid
        self._rows.release(uid)
        seat = seat_of(pod, node, Phase.RESERVED, devices, "")
        had = self._seats.get(uid)
        if had is not None:
            if had.phase is Phase.BOUND:
                raise ValueError(
                    f"pod {pod.metadata.name} is bound to {had.node}: it can't be reserved again"
                )
            if had.phase is Phase.CLAIMED and had.is_like(seat):
                had.phase = Phase.RESERVED
                if had.node in self._reports:
                    self._reports[had.node].came(had)
                return
            self._leave(had)
        if had is None and uid not in self._waiting:
            self._outlook.observe(seat.request)
        self._take(seat)

    def _settle(self, uid: str, outcome: Outcome) -> None:
        seat = self._seats.get(uid)
        if seat is None or seat.phase is Phase.BOUND:
            return
        if outcome is Outcome.BOUND:
            seat.phase = Phase.BOUND
            self._waiting.pop(uid, None)
        elif outcome is Outcome.UNKNOWN:
            seat.phase = Phase.UNCERTAIN
        else:
            self._leave(seat)

    def _claim(self, uid: str, claim: SoftClaim) -> None:
        self._rows.release(uid)
        if uid not in self._seats:
            self._rows.hold(uid, claim)
