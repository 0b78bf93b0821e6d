"""What the kernels are asked about, and what they have said: asks, the demand to come, kinds of nodes, judgements.

Resource names become ids, a request an `Ask`; the pods and nodes that come say what others will ask for. The book owns
the columns; what is here follows them.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from _core import Ask, Demand
from extender.cluster.columns import Columns
from extender.cluster.geometry import by_size
from extender.cluster.hardware import UNKNOWN, Kinds
from extender.cluster.inventory import Inventory
from extender.cluster.judgements import Judgement, Judgements
from extender.cluster.mix import CardKind, Mix, Scales, shape_of
from extender.cluster.request import GPU, SHARED, Request
from extender.wire.topo import TopoError

MOST_ASKS = 4096


class Outlook:
    """`ids` are the resources known, by name: columns of the book. `scales` weigh the parts of the score."""

    def __init__(self, columns: Columns, scales: Scales) -> None:
        self.ids: dict[str, int] = {}
        self._columns = columns
        self._scales = scales
        self._kinds = Kinds()
        self._mix = Mix()
        self._cards: Counter[CardKind] = Counter()
        self._asks: dict[tuple[object, ...], Ask] = {}
        self._demand: Demand | None = None
        self._judgements = Judgements()

    # what comes

    def learn(self, inventory: Inventory) -> str:
        """The node's resources, cards and kind get their places; gives why its links count for nothing, if they do."""
        ids, hardware = len(self.ids), self._columns.table.hardware
        for resource, _ in inventory.allocatable:
            self.ids.setdefault(resource, len(self.ids))
        self._columns.want(max(inventory.cards, inventory.sliced), len(self.ids))
        geometry, topology, links_fault = self.kind_of(inventory)
        if len(self.ids) > ids or geometry >= hardware.models or topology >= hardware.topologies:
            self._equip()
        return links_fault

    def kind_of(self, inventory: Inventory) -> tuple[int, int, str]:
        """(geometry, topology, why the links are not known although told of)."""
        geometry = self._kinds.geometry(inventory.geometry)
        try:
            return geometry, self._kinds.topology(inventory.links, inventory.product), inventory.links_fault
        except TopoError as error:
            return geometry, UNKNOWN, str(error)

    def count_cards(self, had: Inventory | None, has: Inventory | None) -> None:
        """A node has other cards than before, or none any more."""
        for inventory, sign in ((had, -1), (has, 1)):
            if inventory is not None and inventory.cards:
                kind = CardKind(inventory.mode, inventory.replicas, inventory.card_memory)
                self._cards[kind] += sign * inventory.cards
                if not self._cards[kind]:
                    del self._cards[kind]
        self._mix.stir()

    def observe(self, request: Request) -> None:
        """A pod came, which says what others will ask for."""
        self._mix.observe(shape_of(request, self._cards))
        self._kinds.observe(request.devices)

    def _equip(self) -> None:
        self._columns.equip(self._kinds.hardware(self.ids, self._columns.table.used.shape[1]))

    # what is asked

    def ask(self, request: Request, borrowed: bool | None = None) -> Ask | None:
        """The request in the kernels' terms, the same object for equal ones; None if no node has what it names."""
        if not self._scales.shares:
            borrowed = None
        shape = (
            *(request.devices, request.cpu, request.gpu_memory),
            *(request.bandwidth, request.nvlink, borrowed),
        )
        ask = self._asks.get(shape)
        if ask is None:
            if any(name not in self.ids for name, _ in request.devices):
                return None
            if len(self._asks) >= MOST_ASKS:
                self._asks.clear()
            devices = sorted(request.devices, key=lambda device: by_size(device[0]))
            ask = self._asks[shape] = Ask(
                np.array([self.ids[name] for name, _ in devices], np.int32),
                np.array([count for _, count in devices], np.int64),
                whole=request.count(GPU),
                shares=request.count(SHARED),
                memory=request.gpu_memory,
                cpu=request.cpu,
                gpu_id=self.ids[GPU] if request.count(GPU) else -1,
                shared_id=self.ids[SHARED] if request.count(SHARED) else -1,
                bandwidth=request.bandwidth,
                nvlink=request.nvlink,
                borrowed=borrowed,
            )
        return ask

    def judge(self, request: Request, borrowed: bool | None = None) -> Judgement | None:
        """Code and score of every row for the request; None as above."""
        ask = self.ask(request, borrowed)
        return None if ask is None else self._judgements.of(self._columns, ask, self.demand())

    def demand(self) -> Demand:
        """The pods that are to come, as far as is known."""
        if self._demand is None or self._mix.due:
            if self._kinds.cut_on_demand:
                self._equip()
            self._demand = self._mix.demand(self._columns.table, scales=self._scales)
        return self._demand

    def judgements(self) -> Iterator[Judgement]:
        """Those that are kept and still hold for rows that have not changed since."""
        return (kept for kept in self._judgements.kept() if kept.holds(self._columns, kept.demand))
