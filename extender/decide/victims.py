"""Which pods of one node have to go so that a request has room there: the cheapest set, found exactly.

Whether a set makes room is asked of the kernels, on a copy of the node's row from which it is gone, so that cards,
memory and MIG instances count as everywhere else. Branch and bound: what a set still lacks (cards, instances, cores)
tells how many more must go at least, and a set that cannot become cheaper than the best one known is not followed.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple

from _core import CONTENDED, Ask
from extender.cluster.assignment import split
from extender.cluster.request import Request
from extender.cluster.seats import Seat, imagine, share_cost
from extender.cluster.snapshot import Snapshot
from extender.decide.lent import Candidate
from extender.decide.place import fits

NEVER = 2**31
"""More victims than there are."""


class Cost(NamedTuple):
    """What a set of victims costs, in the order in which it counts; all are whole numbers.

    `units` in millionths of a GPU unit, `lost` in GPU-seconds of work since it was last saved, `priority` the highest
    of them, `ran` in seconds, of all together.
    """

    pods: int
    units: int
    lost: int
    priority: int
    ran: int


@dataclass(frozen=True, slots=True)
class Victim:
    """A candidate that may go, with its seat and what it costs."""

    candidate: Candidate
    seat: Seat
    cost: Cost


@dataclass(frozen=True, slots=True)
class Limits:
    """Which sets of victims are fair; units in millionths.

    Each victim must hold something that its tenant isn't entitled to, even when the others are gone: so no tenant
    ends below its entitlement by as much as any of its victims. If the request takes its own tenant `beyond` what that
    is entitled to, no victim's tenant may end below at all, and more must be given back than is taken beyond. What all
    tenants together hold above their entitlements falls with every reclaim; so no order of reclaims leads back.
    """

    over: Mapping[str, int]
    budget: Mapping[str, int]
    pdbs: Mapping[str, int]
    beyond: int = 0

    def allow(self, victims: Sequence[Victim]) -> bool:
        """What holds of a set holds of each part of it."""
        by_tenant: dict[str, list[int]] = {}
        pdbs: Counter[str] = Counter()
        for victim in victims:
            by_tenant.setdefault(victim.candidate.tenant, []).append(victim.cost.units)
            pdbs.update(victim.candidate.pdbs)
        for tenant, units in by_tenant.items():
            over = self.over.get(tenant, 0)
            if sum(units) - min(units) >= over or (self.beyond > 0 and sum(units) > over):
                return False
            if len(units) > self.budget.get(tenant, NEVER):
                return False
        return all(count <= self.pdbs.get(pdb, 0) for pdb, count in pdbs.items())

    def enough(self, victims: Sequence[Victim]) -> bool:
        return self.beyond <= 0 or sum(victim.cost.units for victim in victims) > self.beyond


@dataclass(slots=True)
class Effort:
    """How many more sets may be looked at."""

    left: int

    @property
    def spent(self) -> bool:
        return self.left <= 0


class Best(NamedTuple):
    """The cheapest set so far; of equal ones the first found, in the order of their members' costs and uids."""

    cost: Cost
    victims: tuple[Victim, ...]


class Room:
    """What a node lacks for a request, and whether it is there once some of its pods are gone."""

    def __init__(self, snapshot: Snapshot, ask: Ask, request: Request, node: str) -> None:
        self.inventory = snapshot.inventories[node]
        self.table = snapshot.table.copy_row(snapshot.index.get(node))
        self.request = request
        self._ask = ask
        self._ids = snapshot.ids
        seats = snapshot.seats_by_node.get(node, {}).values()
        self.cpu = request.cpu - self.inventory.cpu + sum(seat.request.cpu for seat in seats)
        self.ram = request.memory - self.inventory.memory + sum(seat.request.memory for seat in seats)

    def without(self, leaving: Collection[Seat]) -> bool:
        """What-if: the request fits, cores and memory included."""
        if self.cpu > sum(seat.request.cpu for seat in leaving):
            return False
        if self.ram > sum(seat.request.memory for seat in leaving):
            return False
        leavers = [seat for seat in leaving if seat.request.devices]
        for seat in leavers:
            imagine(self.table, self.inventory, seat, self._ids, -1)
        code = fits(self.table, 0, self._ask)
        for seat in leavers:
            imagine(self.table, self.inventory, seat, self._ids, 1)
        return code <= CONTENDED

    def lacks(self, resource: str) -> int:
        """How many of an extended resource must come free; negative where some are left over."""
        column = self._ids[resource]
        left = int(self.table.allocatable[0, column] - self.table.used[0, column])
        return self.request.count(resource) - left


def cheapest(
    room: Room, victims: Sequence[Victim], limits: Limits, best: Best | None, effort: Effort
) -> Best | None:
    """The cheapest fair set that makes room and of which nobody can be spared, if it is cheaper than `best`.

    Where the effort is spent before all sets are ruled out, the best of those looked at.
    """
    for group, lacks, cards in _groups(room, victims):
        search = _Search(room, group, lacks, cards, limits, best, effort)
        best = search.run()
    return best


class _Lack(NamedTuple):
    """What must come free of one thing, and what each victim gives of it."""

    amount: int
    gives: tuple[int, ...]


class _Cards(NamedTuple):
    """Whole cards that must come free, and for each card that could, the positions of those who hold it."""

    amount: int
    holders: tuple[tuple[int, ...], ...]


_Group = tuple[list[Victim], list[_Lack], _Cards | None]


def _groups(room: Room, victims: Sequence[Victim]) -> Iterator[_Group]:
    """Sets of victims to search one by one: all, or those of one card where the request is one share of a card."""
    ordered = sorted(victims, key=lambda victim: (victim.cost, victim.candidate.uid))
    whole, shares = split(room.request, room.inventory.mode)
    known = all(victim.seat.cards is not None for victim in ordered)
    devices = [name for name, _ in room.request.devices]
    one = (whole, shares) == (0, 1) and len(devices) == 1 and room.lacks(devices[0]) <= 1
    if one and known and room.cpu <= 0 and room.ram <= 0:
        for card in range(room.inventory.cards):
            group = [victim for victim in ordered if _holds(victim, card)]
            if group:
                yield group, _lacks_of_card(room, group, card), None
        return
    lacks = [
        _Lack(room.lacks(name), tuple(victim.seat.request.count(name) for victim in ordered))
        for name in devices
    ]
    lacks.append(_Lack(room.cpu, tuple(victim.seat.request.cpu for victim in ordered)))
    lacks.append(_Lack(room.ram, tuple(victim.seat.request.memory for victim in ordered)))
    yield ordered, lacks, _cards(room, ordered, whole) if known and whole else None


def _holds(victim: Victim, card: int) -> bool:
    cards = victim.seat.cards
    return cards is not None and (card in cards.whole or card in cards.shared)


def _lacks_of_card(room: Room, group: Sequence[Victim], card: int) -> list[_Lack]:
    """Replicas and memory of one card that one more share lacks."""
    table = room.table
    memory, replicas = int(table.memory[0, card]), int(table.replicas[0])
    wanted = share_cost(table, 0, card, room.request.gpu_memory)
    gives_replicas, gives_memory = [], []
    for victim in group:
        cards = victim.seat.cards
        assert cards is not None
        count = cards.shared.count(card)
        gives_replicas.append(count or replicas)
        gives_memory.append(min(count * share_cost(table, 0, card, victim.seat.declared), memory))
    return [
        _Lack(1 - replicas + int(table.shares[0, card]), tuple(gives_replicas)),
        _Lack(wanted - memory + int(table.memory_used[0, card]), tuple(gives_memory)),
    ]


def _cards(room: Room, victims: Sequence[Victim], whole: int) -> _Cards:
    table = room.table
    free, holders = 0, []
    for card in range(room.inventory.cards):
        owners, shares = int(table.exclusive[0, card]), int(table.shares[0, card])
        if table.memory[0, card] < room.request.gpu_memory:
            continue
        if not owners and not shares:
            free += 1
            continue
        on = [at for at, victim in enumerate(victims) if _holds(victim, card)]
        for at in on:
            cards = victims[at].seat.cards
            assert cards is not None
            owners, shares = owners - (card in cards.whole), shares - cards.shared.count(card)
        if not owners and not shares:
            holders.append(tuple(on))
    return _Cards(whole - free + int(table.opaque[0]), tuple(holders))


class _Search:
    """Branch and bound over one group; positions stand for victims, cheap ones first."""

    def __init__(
        self,
        room: Room,
        victims: Sequence[Victim],
        lacks: Sequence[_Lack],
        cards: _Cards | None,
        limits: Limits,
        best: Best | None,
        effort: Effort,
    ) -> None:
        self._room, self._victims, self._limits = room, victims, limits
        self._best, self._effort = best, effort
        self._cards = cards
        self._lacks = [lack for lack in lacks if lack.amount > 0]
        self._most_from = [_from_end(lack.gives, max) for lack in self._lacks]
        self._all_from = [_from_end(lack.gives, add) for lack in self._lacks]
        costs = [victim.cost for victim in victims]
        self._least_from = list(
            zip(*(_from_end([cost[part] for cost in costs], min) for part in range(1, 5)), strict=True)
        )
        self._parts: list[float] = []
        if cards is not None:
            held = Counter(at for on in cards.holders for at in on)
            self._parts = [1 / held[at] if held[at] else 0.0 for at in range(len(victims))]

    def run(self) -> Best | None:
        if self._fits(self._victims):
            self._greedy()
            self._extend([], 0)
        return self._best

    def _greedy(self) -> None:
        """A set to begin with: the cheapest one by one until there is room, then spare who can be spared."""
        chosen: list[Victim] = []
        for victim in self._victims:
            if self._fits(chosen):
                break
            if self._limits.allow([*chosen, victim]):
                chosen.append(victim)
        if chosen and self._fits(chosen):
            for victim in reversed(chosen[:]):
                spared = [other for other in chosen if other is not victim]
                if self._fits(spared):
                    chosen = spared
            self._offer(chosen)

    def _extend(self, chosen: list[int], start: int) -> None:
        victims = [self._victims[at] for at in chosen]
        spent = _total(victims)
        for at in range(start, len(self._victims)):
            more = self._least_more(chosen, at)
            if self._effort.spent or more == NEVER or self._too_dear(spent, more, at):
                return
            # Bounds say little about shares and unknown cards, so those who are left are tried together.
            if self._cards is None and at > start and not self._fits([*victims, *self._victims[at:]]):
                return
            extended = [*victims, self._victims[at]]
            if not self._limits.allow(extended):
                continue
            if not self._fits(extended):
                self._extend([*chosen, at], at + 1)
            elif not any(
                self._fits([other for other in extended if other is not spared]) for spared in victims
            ):
                self._offer(extended)

    def _fits(self, victims: Sequence[Victim]) -> bool:
        self._effort.left -= 1
        return self._room.without([victim.seat for victim in victims])

    def _offer(self, victims: Sequence[Victim]) -> None:
        cost = _total(victims)
        if (self._best is None or cost < self._best.cost) and self._limits.enough(victims):
            self._best = Best(cost, tuple(victims))

    def _too_dear(self, spent: Cost, more: int, at: int) -> bool:
        if self._best is None:
            return False
        units, lost, priority, ran = self._least_from[at]
        least = Cost(
            spent.pods + more,
            spent.units + more * units,
            spent.lost + more * lost,
            max(spent.priority, priority),
            spent.ran + more * ran,
        )
        return least >= self._best.cost

    def _least_more(self, chosen: Sequence[int], at: int) -> int:
        """How many of the victims from `at` on must go at least, besides the chosen; NEVER if all are too few."""
        more = 1
        for lack, most, rest in zip(self._lacks, self._most_from, self._all_from, strict=True):
            missing = lack.amount - sum(lack.gives[done] for done in chosen)
            if missing > rest[at]:
                return NEVER
            if missing > 0:
                more = max(more, -(-missing // most[at]))
        if self._cards is not None and self._cards.amount > 0:
            gone = set(chosen)
            weights = sorted(
                sum(self._parts[holder] for holder in on if holder not in gone)
                for on in self._cards.holders
                if all(holder >= at or holder in gone for holder in on)
            )
            if len(weights) < self._cards.amount:
                return NEVER
            more = max(more, math.ceil(sum(weights[: self._cards.amount]) - 1e-6))
        return more


def _from_end(values: Sequence[int], fold: Callable[[int, int], int]) -> list[int]:
    """For each position, what the fold makes of the values from there on."""
    return list(accumulate(reversed(values), fold))[::-1]


def _total(victims: Sequence[Victim]) -> Cost:
    costs = [victim.cost for victim in victims]
    return Cost(
        len(costs),
        sum(cost.units for cost in costs),
        sum(cost.lost for cost in costs),
        max((cost.priority for cost in costs), default=-NEVER),
        sum(cost.ran for cost in costs),
    )
