"""The rows of the book, one per node: described by the node and its report, and charged with who is there.

Seats and claims are kept by node, so that a row can always be written anew from them. Who may sit where is not judged
here.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from _core import NameIndex
from extender.cluster.assignment import Cards, answers, recall, sliced
from extender.cluster.columns import CLOSED, OPEN, STALE, Columns
from extender.cluster.describe import budgets, describe
from extender.cluster.inventory import Inventory
from extender.cluster.limits import Limits
from extender.cluster.measure import measure
from extender.cluster.mig import PREFIX
from extender.cluster.notices import LinksUnknown, Moved, NodeClosed, Notice
from extender.cluster.outlook import Outlook
from extender.cluster.reported import Report
from extender.cluster.seats import Seat, SoftClaim, bits_of, charge, forecast, hold, hold_slices, lend
from extender.cluster.truth import described
from extender.cluster.unlisted import Unlisted


class Rows:
    """Writes `columns`, with a row for each name in `index`.

    `reports` are those that hold now, by node.

    Attributes
    ----------
    inventories
        By node, completed by its report.
    seats, claims
        Those on each node, also on one that is not there; soft claims by uid, on nodes that are.
    watermarks
        Of nodes whose cards may be filled otherwise than is usual.
    worst_case
        Uids of seats whose cards are not known.
    room, descriptions
        How often room was made, and how often what nodes could hold when empty was learnt.
    """

    def __init__(
        self,
        columns: Columns,
        outlook: Outlook,
        unlisted: Unlisted,
        limits: Limits,
        reports: Mapping[str, Report],
    ) -> None:
        self.columns = columns
        self.index = NameIndex()
        self.inventories: dict[str, Inventory] = {}
        self.seats: dict[str, dict[str, Seat]] = {}
        self.claims: dict[str, SoftClaim] = {}
        self.watermarks: dict[str, float] = {}
        self.worst_case: set[str] = set()
        self.room = 0
        self.descriptions = 0
        self._outlook = outlook
        self._ids = outlook.ids
        self._unlisted = unlisted
        self._limits = limits
        self._reports = reports
        self._nodes: dict[str, Inventory] = {}
        """What each says of itself."""

    def on(self, node: str) -> Collection[Seat]:
        """The seats there."""
        return self.seats.get(node, {}).values()

    # nodes

    def seen(self, inventory: Inventory) -> tuple[Notice, ...]:
        """The node says this of itself from now on."""
        if self._nodes.get(inventory.name) == inventory:
            return ()
        self._nodes[inventory.name] = inventory
        return self.renew(inventory.name)

    def gone(self, name: str) -> None:
        """The node is not there any more; its seats stay for when it comes back, its claims end."""
        had = self.inventories.pop(name, None)
        if had is None:
            return
        del self._nodes[name]
        self.watermarks.pop(name, None)
        self._outlook.count_cards(had, None)
        for uid in self._claims_on(name):
            del self.claims[uid]
        self._unlisted.gone(name)
        row = self.index.get(name)
        self.index.remove(name)
        self.columns.free_row(row)

    def fill(self, name: str, watermark: float | None) -> None:
        """The node's cards may be filled up to this; None: as is usual."""
        if self.watermarks.get(name) == watermark:
            return
        if watermark is None:
            del self.watermarks[name]
        else:
            self.watermarks[name] = watermark
        self.renew(name)

    def renew(self, name: str) -> tuple[Notice, ...]:
        """Describe the node anew, by itself and by its report, and charge its row anew."""
        if name not in self._nodes:
            return ()
        had, report = self.inventories.get(name), self._reports.get(name)
        inventory = described(self._nodes[name], report.truth if report is not None else None)
        if had == inventory:
            inventory = had
        for uid in self._claims_on(name):
            self.release(uid)
        notices: list[Notice] = self._unlisted.seen(inventory)
        links_fault = self._outlook.learn(inventory)
        if links_fault and (had is None or had.links_fault != links_fault):
            notices.append(LinksUnknown(name, links_fault))
        if had is None:
            row = self.columns.take_row()
            self.index.insert(name, row)
        else:
            row = self.index.get(name)
            self.columns.clear(row)
        self._outlook.count_cards(had, inventory)
        self.inventories[name] = inventory
        self._describe(self.columns, row, inventory)
        # What is recorded comes first, so that a forecast does not take its place.
        for seat in sorted(self.on(name), key=lambda seat: seat.record is None):
            notices += self._weigh_anew(row, seat)
        self._measure(self.columns, row, name)
        self.room += 1
        self.descriptions += 1
        if inventory.fault and (had is None or had.fault != inventory.fault):
            notices.append(NodeClosed(name, inventory.fault))
        return tuple(notices)

    def retell(self, name: str) -> Iterator[Notice]:
        """Who is where, and what is used, may have changed by the report, and nothing else."""
        row = self.index.get(name)
        if row < 0:
            return
        inventory, columns = self.inventories[name], self.columns
        report, version = self._reports[name], int(columns.version[row])
        given = report.truth.given or {}
        for seat in self.on(name):
            pod = (seat.namespace, seat.name)
            if not (pod in report.regiven or (pod in given and not seat.told)) or not seat.request.devices:
                continue
            if (seat.cards, seat.told) == self._cards_of(seat):
                continue
            charge(columns, row, inventory, seat, self._ids, -1)
            yield from self._weigh_anew(row, seat)
        if self._measure(columns, row, name):
            columns.version[row] += 1
        if columns.version[row] != version:
            self.room += 1

    def _describe(self, columns: Columns, row: int, inventory: Inventory) -> None:
        name = inventory.name
        report = self._reports.get(name)
        watermark = self.watermarks.get(name, self._limits.watermark)
        amounts = budgets(inventory, self._nodes[name].card_memory, report, watermark)
        describe(columns, row, inventory, report, self._outlook, amounts)
        columns.state[row] = self._openness(inventory)

    def _openness(self, inventory: Inventory) -> int:
        if inventory.fault or any(seat.fault for seat in self.on(inventory.name)):
            return CLOSED
        report = self._reports.get(inventory.name)
        return STALE if report is not None and report.stale and self._limits.close_stale else OPEN

    def _measure(self, columns: Columns, row: int, name: str) -> bool:
        """Whether that changes anything."""
        report = self._reports.get(name)
        return report is not None and measure(
            columns,
            row,
            self.inventories[name],
            report.truth,
            self.on(name),
            floor=self._limits.floor,
            departed=report.ended(),
            withheld={card for cards in report.leaked.values() for card in cards.whole},
        )

    # seats

    def came(self, seat: Seat) -> None:
        """The seat is taken."""
        self.seats.setdefault(seat.node, {})[seat.uid] = seat
        report = self._reports.get(seat.node)
        if report is not None:
            report.came(seat)
        row = self.index.get(seat.node)
        if row >= 0:
            self._weigh(row, seat)
            self._measure(self.columns, row, seat.node)

    def left(self, seat: Seat) -> None:
        """The seat is free again."""
        others = self.seats[seat.node]
        del others[seat.uid]
        if not others:
            del self.seats[seat.node]
        self.worst_case.discard(seat.uid)
        row = self.index.get(seat.node)
        if row < 0:
            return
        inventory = self.inventories[seat.node]
        charge(self.columns, row, inventory, seat, self._ids, -1)
        self.columns.state[row] = self._openness(inventory)
        if seat.request.devices or seat.fault:
            self.room += 1
        report = self._reports.get(seat.node)
        if report is not None:
            report.left(seat)
            report.look_for_strays(others.values())
            for other in [each for each in others.values() if each.told and report.given_to(each) is None]:
                charge(self.columns, row, inventory, other, self._ids, -1)
                self._weigh(row, other)
            self._measure(self.columns, row, seat.node)

    def reckon(self, seat: Seat, borrowed: bool) -> None:
        """The seat's work can be asked back, or not any more."""
        if seat.borrowed == borrowed:
            return
        row = self.index.get(seat.node) if seat.request.devices else -1
        if row >= 0:
            lend(self.columns, row, seat, -1)
        seat.borrowed = borrowed
        if row >= 0:
            lend(self.columns, row, seat, 1)
            self.columns.version[row] += 1

    def _weigh(self, row: int, seat: Seat) -> None:
        inventory = self.inventories[seat.node]
        if seat.request.devices:
            seat.cards, seat.told = self._cards_of(seat)
            if seat.cards is None or seat.declared is None:
                self.worst_case.add(seat.uid)
            else:
                self.worst_case.discard(seat.uid)
            if inventory.geometry is not None:
                self._put(row, inventory, seat)
        charge(self.columns, row, inventory, seat, self._ids, 1)
        if seat.fault:
            self.columns.state[row] = CLOSED

    def _weigh_anew(self, row: int, seat: Seat) -> tuple[Notice, ...]:
        """Says if the kubelet gave the seat's pod, for which something was planned, something else."""
        planned = seat.cards if not seat.told else None
        self._weigh(row, seat)
        if seat.told and planned is not None and seat.cards is not None:
            plan, given = (replace(cards, memory=None) for cards in (planned, seat.cards))
            if plan != given:
                return (Moved(seat.namespace, seat.name, seat.uid, seat.node, str(plan), str(given)),)
        return ()

    def _cards_of(self, seat: Seat) -> tuple[Cards | None, bool]:
        """The seat's cards, and whether the kubelet has told of them: else they are as recorded."""
        inventory, report = self.inventories[seat.node], self._reports.get(seat.node)
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
        cut = self.columns.slices[row]
        seat.slices = seat.cards.slices if seat.cards is not None else ()
        if not seat.slices or any(cut[card] & bits for card, bits in bits_of(seat.slices, inventory)):
            seat.slices = forecast(self.columns.table, row, inventory.geometry, asked)
        instances = sum(count for name, count in seat.request.devices if name.startswith(PREFIX))
        seat.misplaced = instances - len(seat.slices)

    # soft claims

    def hold(self, uid: str, claim: SoftClaim) -> None:
        """Hold for a pod what Filter expects that it takes; nothing on a node that is not there."""
        row = self.index.get(claim.node)
        if row >= 0:
            self.claims[uid] = claim
            self._hold(row, claim, 1)

    def release(self, uid: str) -> None:
        """End the pod's claim, if there is one."""
        claim = self.claims.pop(uid, None)
        if claim is not None:
            self._hold(self.index.get(claim.node), claim, -1)

    def _hold(self, row: int, claim: SoftClaim, sign: int) -> None:
        hold(self.columns, row, claim, self._ids, sign)
        if claim.cards.slices:
            claims = self._claims_on(claim.node).values()
            hold_slices(self.columns, row, self.inventories[claim.node], claims)

    def _claims_on(self, node: str) -> dict[str, SoftClaim]:
        return {uid: claim for uid, claim in self.claims.items() if claim.node == node}

    # what must hold

    def check(self) -> None:
        """Write all anew from the seats and claims; AssertionError names what differs."""
        fresh = Columns()
        fresh.want(self.columns.table.memory.shape[1], self.columns.table.used.shape[1])
        for name, inventory in self.inventories.items():
            row, ours = fresh.take_row(), self.index.get(name)
            self._describe(fresh, row, inventory)
            for seat in self.on(name):
                charge(fresh, row, inventory, seat, self._ids, 1)
            claims = self._claims_on(name).values()
            for claim in claims:
                hold(fresh, row, claim, self._ids, 1)
            hold_slices(fresh, row, inventory, claims)
            self._measure(fresh, row, name)
            for column in fresh.NAMES:
                if column == "version":
                    continue
                kept, told = getattr(self.columns, column)[ours], getattr(fresh, column)[row]
                assert np.array_equal(kept, told), (
                    f"{column} of {name}: the book says {kept}, its seats {told}"
                )
