"""The book: `ClusterState.apply(event)` is its only door in, `snapshot()` its only door out.

Pods and nodes come in any order: a seat is kept under its node's name, so it weighs as soon as the node is there,
also when the node is removed and created again. When a node's inventory changes, its row is charged anew from its
seats, so nothing can leak over a relabelling.
"""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from _core import NameIndex, fit, score
from extender.cluster.assignment import Cards, answers, recall, sliced
from extender.cluster.columns import CLOSED, OPEN, STALE, Columns
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
from extender.cluster.inventory import Inventory, Mode, inventory_of
from extender.cluster.limits import UNLIMITED, Limits
from extender.cluster.measure import is_measured, measure
from extender.cluster.mig import PREFIX
from extender.cluster.mix import EVEN, Scales
from extender.cluster.notices import (
    AgentSilent,
    BoundPastUs,
    Leaked,
    LinksUnknown,
    Moved,
    NodeClosed,
    Notice,
    ReportUnreadable,
    UnlistedResource,
    WorstCase,
)
from extender.cluster.outlook import Outlook
from extender.cluster.reported import Report
from extender.cluster.reports import Beat, ReportGone, ReportSeen
from extender.cluster.request import (
    GPU,
    MOST_DEVICES,
    SHARED,
    RequestError,
    asks_devices,
    is_over,
    request_of,
)
from extender.cluster.seats import (
    Phase,
    Seat,
    SoftClaim,
    bits_of,
    charge,
    cut_out,
    forecast,
    hold,
    hold_slices,
    lend,
    seat_of,
)
from extender.cluster.snapshot import Snapshot, Waiting
from extender.cluster.truth import described, truth_of
from extender.wire.devices import ANNOTATION
from extender.wire.objects import Pod


class ClusterState:
    """Nodes, seats, claims and waiting GPU pods.

    `managed` are the resource names of the scheduler configuration; a node's other `nvidia.com/*` names are noticed,
    since pods that ask for them go past the veto. `scales` weigh the parts of the score, `limits` say how far cards
    may be filled.
    """

    def __init__(self, managed: Iterable[str], scales: Scales = EVEN, limits: Limits = UNLIMITED) -> None:
        self._managed = frozenset(managed)
        self._limits = limits
        self._columns = Columns()
        self._outlook = Outlook(self._columns, scales)
        self._ids = self._outlook.ids
        self._index = NameIndex()
        self._nodes: dict[str, Inventory] = {}
        self._inventories: dict[str, Inventory] = {}
        """The same of each node, completed by its report."""
        self._reports: dict[str, Report] = {}
        self._beats: dict[str, float] = {}
        self._bereft: set[str] = set()
        """Nodes whose report was deleted and still counts."""
        self._now = 0.0
        self._watermarks: dict[str, float] = {}
        self._seats: dict[str, Seat] = {}
        self._seats_by_node: dict[str, dict[str, Seat]] = {}
        self._claims: dict[str, SoftClaim] = {}
        self._waiting: dict[str, Waiting] = {}
        self._past_us: set[str] = set()
        self._worst_case: set[str] = set()
        self._unlisted: dict[str, set[str]] = {}
        self._generation = 0
        self._room = 0
        self._seen: Snapshot | None = None
        self._descriptions = 0

    def snapshot(self) -> Snapshot:
        """The book as of now, for one synchronous decision; not to be kept across an `apply`."""
        if self._seen is None:
            self._seen = self._look()
        return self._seen

    def _look(self) -> Snapshot:
        return Snapshot(
            columns=self._columns,
            index=self._index,
            inventories=self._inventories,
            ids=self._ids,
            seats=self._seats,
            seats_by_node=self._seats_by_node,
            claims=self._claims,
            waiting=self._waiting,
            past_us=self._past_us,
            worst_case=self._worst_case,
            unlisted=self._unlisted,
            reports=self._reports,
            watermarks=self._watermarks,
            watermark=self._limits.watermark,
            generation=self._generation,
            room=self._room,
            descriptions=self._descriptions,
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
                return self._node_seen(inventory_of(node, fault))
            case NodeGone(name):
                self._node_gone(name)
            case Claimed(pod, request, node, cards, until):
                self._claim(pod.metadata.uid, SoftClaim(node, pod, request, cards, until))
            case Unclaimed(uid):
                self._drop_claim(uid)
            case Nudged(uids):
                for uid in uids:
                    if uid in self._waiting:
                        self._waiting[uid].nudged = self._room
            case Promised(pod, node, devices):
                self._promise(pod, node, devices)
            case Withdrawn(uid):
                seat = self._seats.get(uid)
                if seat is not None and seat.phase is Phase.CLAIMED:
                    self._leave(seat)
            case Reckoned(uid, borrowed):
                self._reckon(uid, borrowed)
            case Reserved(pod, node, devices):
                self._reserve(pod, node, devices)
            case Settled(uid, outcome):
                self._settle(uid, outcome)
            case ReportSeen():
                return self._report_seen(event)
            case ReportGone(name):
                self._report_gone(name)
            case Beat(name, at):
                self._beats[name] = max(at, self._beats.get(name, at))
            case Filled(name, watermark):
                self._fill(name, watermark)
            case Elapsed(now):
                for uid in [uid for uid, claim in self._claims.items() if claim.until <= now]:
                    self._drop_claim(uid)
                return tuple(self._age(now))
        return ()

    def check(self) -> None:
        """Recompute all from the seats and claims; AssertionError names what differs."""
        fresh = Columns()
        fresh.want(self._columns.table.memory.shape[1], self._columns.table.used.shape[1])
        rows = {name: self._index.get(name) for name in self._inventories}
        for name, inventory in self._inventories.items():
            row = fresh.take_row()
            self._describe(fresh, row, inventory)
            for seat in self._seats_by_node.get(name, {}).values():
                charge(fresh, row, inventory, seat, self._ids, 1)
            claims = self._claims_on(name)
            for claim in claims:
                hold(fresh, row, claim, self._ids, 1)
            hold_slices(fresh, row, inventory, claims)
            self._measure(fresh, row, name)
            for column in (*fresh.NAMES,):
                if column == "version":
                    continue
                ours, theirs = getattr(self._columns, column)[rows[name]], getattr(fresh, column)[row]
                assert np.array_equal(ours, theirs), (
                    f"{column} of {name}: the book says {ours}, its seats {theirs}"
                )
        for kept in self._outlook.judgements():
            current = np.flatnonzero(kept.seen == self._columns.version[: len(kept.seen)]).astype(np.int32)
            codes = fit(self._columns.table, current, kept.ask)
            scores = score(self._columns.table, current, codes, kept.ask, kept.demand)
            assert np.array_equal(kept.codes[current], codes), "a kept code is not what the row gives now"
            assert np.array_equal(kept.scores[current], scores), "a kept score is not what the row gives now"
        assert sum(map(len, self._seats_by_node.values())) == len(self._seats)
        assert not self._seats.keys() & self._claims.keys(), "a pod has a seat and a claim"

    # pods

    def _pod_seen(self, pod: Pod, fault: str) -> tuple[Notice, ...]:
        uid = pod.metadata.uid
        if is_over(pod):
            self._forget(uid)
            return ()
        if pod.spec is not None and pod.spec.node_name:
            new = self._waiting.pop(uid, None) is None and uid not in self._seats
            self._drop_claim(uid)
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
        if seat.uid in self._worst_case and seat.record is not None:
            notices.append(WorstCase(seat.namespace, seat.name, seat.node))
        return tuple(notices)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._drop_claim(uid)
        seat = self._seats.get(uid)
        if seat is not None:
            self._leave(seat)

    # seats

    def _take(self, seat: Seat) -> None:
        self._seats[seat.uid] = seat
        self._seats_by_node.setdefault(seat.node, {})[seat.uid] = seat
        row = self._index.get(seat.node)
        report = self._reports.get(seat.node)
        if report is not None:
            report.came(seat)
        if row >= 0:
            self._weigh(row, seat)
            self._measure(self._columns, row, seat.node)

    def _weigh(self, row: int, seat: Seat) -> None:
        inventory = self._inventories[seat.node]
        if seat.request.devices:
            seat.cards, seat.told = self._cards_of(seat)
            if seat.cards is None or seat.declared is None:
                self._worst_case.add(seat.uid)
            else:
                self._worst_case.discard(seat.uid)
            if inventory.geometry is not None:
                self._put(row, inventory, seat)
        charge(self._columns, row, inventory, seat, self._ids, 1)
        if seat.fault:
            self._columns.state[row] = CLOSED

    def _cards_of(self, seat: Seat) -> tuple[Cards | None, bool]:
        """The seat's cards, and whether the kubelet has told of them: else they are as recorded."""
        inventory, report = self._inventories[seat.node], self._reports.get(seat.node)
        planned = recall(seat.record, seat.request, inventory)
        given = report.given_to(seat) if report is not None else None
        if given is None or not answers(given, seat.request, inventory):
            return planned, False
        slices = given.slices if inventory.geometry is not None else ()
        return replace(given, memory=planned.memory if planned is not None else None, slices=slices), True

    def _put(self, row: int, inventory: Inventory, seat: Seat) -> None:
        """Find where the seat's instances are on cards that are cut on demand: as recorded, else as they would be."""
        assert inventory.geometry is not None
        asked = sliced(seat.request.devices, inventory.geometry)
        cut = self._columns.slices[row]
        seat.slices = seat.cards.slices if seat.cards is not None else ()
        if not seat.slices or any(cut[card] & bits for card, bits in bits_of(seat.slices, inventory)):
            seat.slices = forecast(self._columns.table, row, inventory.geometry, asked)
        instances = sum(count for name, count in seat.request.devices if name.startswith(PREFIX))
        seat.misplaced = instances - len(seat.slices)

    def _leave(self, seat: Seat) -> None:
        del self._seats[seat.uid]
        others = self._seats_by_node[seat.node]
        del others[seat.uid]
        if not others:
            del self._seats_by_node[seat.node]
        self._past_us.discard(seat.uid)
        self._worst_case.discard(seat.uid)
        row = self._index.get(seat.node)
        if row >= 0:
            inventory = self._inventories[seat.node]
            charge(self._columns, row, inventory, seat, self._ids, -1)
            self._columns.state[row] = self._openness(inventory)
            if seat.request.devices or seat.fault:
                self._room += 1
            report = self._reports.get(seat.node)
            if report is not None:
                report.left(seat)
                report.look_for_strays(others.values())
                for other in [
                    each for each in others.values() if each.told and report.given_to(each) is None
                ]:
                    charge(self._columns, row, inventory, other, self._ids, -1)
                    self._weigh(row, other)
                self._measure(self._columns, row, seat.node)

    def _promise(self, pod: Pod, node: str, devices: str) -> None:
        uid = pod.metadata.uid
        self._drop_claim(uid)
        had = self._seats.get(uid)
        if had is not None:
            if had.phase is not Phase.CLAIMED:
                raise ValueError(
                    f"pod {pod.metadata.name} has a seat on {had.node} ({had.phase.value}): "
                    f"it can't be promised one on {node}"
                )
            self._leave(had)
        self._take(seat_of(pod, node, Phase.CLAIMED, devices, ""))

    def _reckon(self, uid: str, borrowed: bool) -> None:
        seat = self._seats.get(uid)
        if seat is None or seat.borrowed == borrowed:
            return
        row = self._index.get(seat.node) if seat.request.devices else -1
        if row >= 0:
            lend(self._columns, row, seat, -1)
        seat.borrowed = borrowed
        if row >= 0:
            lend(self._columns, row, seat, 1)
            self._columns.version[row] += 1

    def _reserve(self, pod: Pod, node: str, devices: str | None) -> None:
        uid = pod.metadata.uid
        self._drop_claim(uid)
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

    # soft claims

    def _claim(self, uid: str, claim: SoftClaim) -> None:
        self._drop_claim(uid)
        row = self._index.get(claim.node)
        if row >= 0 and uid not in self._seats:
            self._claims[uid] = claim
            self._hold(row, claim, 1)

    def _drop_claim(self, uid: str) -> None:
        claim = self._claims.pop(uid, None)
        if claim is not None:
            self._hold(self._index.get(claim.node), claim, -1)

    def _hold(self, row: int, claim: SoftClaim, sign: int) -> None:
        hold(self._columns, row, claim, self._ids, sign)
        if claim.cards.slices:
            hold_slices(self._columns, row, self._inventories[claim.node], self._claims_on(claim.node))

    def _claims_on(self, node: str) -> list[SoftClaim]:
        return [claim for claim in self._claims.values() if claim.node == node]

    # nodes

    def _node_seen(self, inventory: Inventory) -> tuple[Notice, ...]:
        if self._nodes.get(inventory.name) == inventory:
            return ()
        self._nodes[inventory.name] = inventory
        return self._renew(inventory.name)

    def _renew(self, name: str) -> tuple[Notice, ...]:
        """Describe the node anew, by itself and by its report, and charge its row anew."""
        if name not in self._nodes:
            return ()
        had, report = self._inventories.get(name), self._reports.get(name)
        inventory = described(self._nodes[name], report.truth if report is not None else None)
        if had == inventory:
            inventory = had
        for uid in [uid for uid, claim in self._claims.items() if claim.node == name]:
            self._drop_claim(uid)
        notices = self._unlist(inventory)
        links_fault = self._outlook.learn(inventory)
        if links_fault and (had is None or had.links_fault != links_fault):
            notices.append(LinksUnknown(name, links_fault))
        if had is None:
            row = self._columns.take_row()
            self._index.insert(name, row)
        else:
            row = self._index.get(name)
            self._columns.clear(row)
        self._outlook.count_cards(had, inventory)
        self._inventories[name] = inventory
        self._describe(self._columns, row, inventory)
        # What is recorded comes first, so that a forecast does not take its place.
        for seat in sorted(self._seats_by_node.get(name, {}).values(), key=lambda seat: seat.record is None):
            planned = seat.cards if not seat.told else None
            self._weigh(row, seat)
            notices += self._moved(seat, planned)
        self._measure(self._columns, row, name)
        self._room += 1
        self._descriptions += 1
        if inventory.fault and (had is None or had.fault != inventory.fault):
            notices.append(NodeClosed(name, inventory.fault))
        return tuple(notices)

    def _node_gone(self, name: str) -> None:
        had = self._inventories.pop(name, None)
        if had is None:
            return
        del self._nodes[name]
        self._watermarks.pop(name, None)
        if name in self._bereft:
            self._bereft.discard(name)
            del self._reports[name], self._beats[name]
        self._outlook.count_cards(had, None)
        for uid in [uid for uid, claim in self._claims.items() if claim.node == name]:
            del self._claims[uid]
        for names in self._unlisted.values():
            names.discard(name)
        row = self._index.get(name)
        self._index.remove(name)
        self._columns.free_row(row)

    def _unlist(self, inventory: Inventory) -> list[Notice]:
        """Note which of the node's resources the scheduler does not ask about."""
        notices: list[Notice] = []
        unlisted = {name for name, count in inventory.allocatable if count} - self._managed
        for resource, nodes in self._unlisted.items():
            if resource not in unlisted:
                nodes.discard(inventory.name)
        for resource in sorted(unlisted):
            nodes = self._unlisted.setdefault(resource, set())
            if not nodes:
                notices.append(UnlistedResource(inventory.name, resource))
            nodes.add(inventory.name)
        return notices

    def _describe(self, columns: Columns, row: int, inventory: Inventory) -> None:
        columns.version[row] += 1
        columns.mode[row] = inventory.mode
        columns.cards[row] = inventory.cards
        columns.replicas[row] = inventory.replicas
        columns.order[row] = zlib.crc32(inventory.name.encode())
        columns.memory[row, : inventory.cards] = self._budgets(inventory)
        if inventory.mode is Mode.INSTANCE:
            # Where one `nvidia.com/gpu` is an instance, the label is of its memory, all of which is the pod's.
            columns.memory[row, 0] = inventory.card_memory
        columns.cpu[row] = inventory.cpu
        columns.ram[row] = inventory.memory
        columns.part[row] = inventory.part
        columns.geometry[row], columns.topology[row], _ = self._outlook.kind_of(inventory)
        columns.slices[row, : inventory.sliced] = 0
        for resource, count in inventory.allocatable:
            columns.allocatable[row, self._ids[resource]] = count
        columns.state[row] = self._openness(inventory)
        report = self._reports.get(inventory.name)
        if report is None:
            return
        measured = is_measured(inventory, report.truth)
        columns.measured[row] = measured
        columns.choice[row] = not inventory.planned and (measured or report.truth.given is not None)
        advertised = {name for name, _ in inventory.allocatable}
        for resource in report.truth.blocked & advertised:
            columns.used[row, self._ids[resource]] += MOST_DEVICES
        for cards in report.leaked.values():
            for resource, count in ((GPU, len(cards.whole)), (SHARED, len(cards.shared))):
                if resource == SHARED and inventory.mode is Mode.REPLICA:
                    resource = GPU
                if resource in advertised:
                    columns.used[row, self._ids[resource]] += count
            for place in cards.slices:
                if place.resource in advertised:
                    columns.used[row, self._ids[place.resource]] += 1
                for card, bits in cut_out([place], inventory):
                    columns.slices[row, card] |= bits

    def _openness(self, inventory: Inventory) -> int:
        seats = self._seats_by_node.get(inventory.name, {}).values()
        if inventory.fault or any(seat.fault for seat in seats):
            return CLOSED
        report = self._reports.get(inventory.name)
        return STALE if report is not None and report.stale and self._limits.close_stale else OPEN

    # reports

    def _report_seen(self, event: ReportSeen) -> tuple[Notice, ...]:
        name = event.node
        if event.status is None:
            return (ReportUnreadable(name, event.fault),) if event.fault else ()
        self._bereft.discard(name)
        report = self._reports.get(name)
        truth = truth_of(event.spec, event.status, report.truth if report is not None else None)
        anew = report is None or report.renew(truth, event.status.when)
        if report is None:
            report = self._reports[name] = Report(truth, event.status.when)
            for seat in self._seats_by_node.get(name, {}).values():
                report.came(seat)
        report.look_for_strays(self._seats_by_node.get(name, {}).values())
        return self._renew(name) if anew else tuple(self._retell(name))

    def _report_gone(self, name: str) -> None:
        """What was said last holds on, as if the agent were silent, while it says nothing and the node is there."""
        if name in self._nodes and name in self._reports:
            self._bereft.add(name)
            self._beats[name] = self._now - self._limits.stale_after
        else:
            self._reports.pop(name, None)
            self._beats.pop(name, None)

    def _retell(self, name: str) -> Iterator[Notice]:
        """Who is where, and what is used, may have changed, and nothing else."""
        row = self._index.get(name)
        if row < 0:
            return
        inventory, columns = self._inventories[name], self._columns
        report, version = self._reports[name], int(columns.version[row])
        given = report.truth.given or {}
        for seat in self._seats_by_node.get(name, {}).values():
            pod = (seat.namespace, seat.name)
            if not (pod in report.regiven or (pod in given and not seat.told)) or not seat.request.devices:
                continue
            if (seat.cards, seat.told) == self._cards_of(seat):
                continue
            planned = seat.cards if not seat.told else None
            charge(columns, row, inventory, seat, self._ids, -1)
            self._weigh(row, seat)
            yield from self._moved(seat, planned)
        if self._measure(columns, row, name):
            columns.version[row] += 1
        if columns.version[row] != version:
            self._room += 1

    def _moved(self, seat: Seat, planned: Cards | None) -> Iterator[Notice]:
        """Whether the kubelet gave the seat's pod, for which this was planned, something else."""
        if seat.told and planned is not None and seat.cards is not None:
            plan, given = (replace(cards, memory=None) for cards in (planned, seat.cards))
            if plan != given:
                yield Moved(seat.namespace, seat.name, seat.uid, seat.node, str(plan), str(given))

    def _measure(self, columns: Columns, row: int, name: str) -> bool:
        """Whether that changes anything."""
        report = self._reports.get(name)
        return report is not None and measure(
            columns,
            row,
            self._inventories[name],
            report.truth,
            self._seats_by_node.get(name, {}).values(),
            floor=self._limits.floor,
            departed=report.ended(),
            withheld={card for cards in report.leaked.values() for card in cards.whole},
        )

    def _budgets(self, inventory: Inventory) -> list[int]:
        """Bytes of each card that may be in use by all."""
        watermark = self._watermarks.get(inventory.name, self._limits.watermark)
        found = [int(watermark * self._nodes[inventory.name].card_memory)] * inventory.cards
        report = self._reports.get(inventory.name)
        for number, card in enumerate(report.truth.cards[: inventory.cards] if report is not None else ()):
            if card.total:
                found[number] = card.budget(watermark)
        return found

    def _fill(self, name: str, watermark: float | None) -> None:
        if self._watermarks.get(name) == watermark:
            return
        if watermark is None:
            del self._watermarks[name]
        else:
            self._watermarks[name] = watermark
        self._renew(name)

    def _age(self, now: float) -> Iterator[Notice]:
        """Agents that have been silent for too long, and devices that a pod which is gone has held for too long."""
        self._now = now
        for name, report in self._reports.items():
            report.age = now - self._beats.setdefault(name, now)
            stale = report.age > self._limits.stale_after
            if stale != report.stale:
                report.stale = stale
                if stale:
                    yield AgentSilent(name, report.age, self._limits.close_stale)
                self._renew(name)
            if report.strays:
                found = report.leaks(self._seats_by_node.get(name, {}).values(), now)
                for (namespace, pod), cards in found.items():
                    yield Leaked(name, namespace, pod, str(cards))
                if found:
                    self._renew(name)
            if report.doubted and report.settle(now):
                yield from self._renew(name)
