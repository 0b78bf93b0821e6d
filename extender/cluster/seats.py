"""Seats: one record per pod UID, claimed → reserved → bound, and how a seat weighs on its node's columns.

`charge` is the only writer of the `used` columns and `hold` of the `soft` ones, each with a sign, so that what was
added is exactly what is taken away.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from _core import Table, place_dynamic
from extender.cluster.assignment import Cards, Slice, split
from extender.cluster.columns import Columns
from extender.cluster.geometry import by_size, profile_of
from extender.cluster.inventory import Inventory
from extender.cluster.mig import Geometry
from extender.cluster.request import Request, RequestError, request_of
from extender.wire.marks import PREEMPTIBLE
from extender.wire.objects import Pod

MOST_INSTANCES = 1024
"""More than any node has; a pod that asks for as many has no place."""


class Phase(Enum):
    CLAIMED = "claimed"
    """The planner promised it: nobody else may have it, and the pod may go nowhere else."""
    RESERVED = "reserved"
    """Bind is writing."""
    UNCERTAIN = "uncertain"
    """The write's answer was lost: the seat stays until a read or the watch tells."""
    BOUND = "bound"


@dataclass(slots=True)
class Seat:
    """Who sits where. `cards` is None while they are not known: then the worst case is charged."""

    uid: str
    namespace: str
    name: str
    node: str
    request: Request
    phase: Phase
    priority: int = 0
    record: str | None = None
    """The annotation `kvitej.io/devices` as found; None says that kvitej did not bind the pod."""
    cards: Cards | None = None
    fault: str = ""
    """Why the pod's spec cannot be read; its node is closed while it is there."""
    memory_unknown: bool = False
    """The GPU memory that it declares cannot be read."""
    slices: tuple[Slice, ...] = ()
    """Where its instances weigh on cards that are cut on demand; `misplaced` more have no place."""
    misplaced: int = 0
    preemptible: bool = False
    """The pod says of itself that it may be evicted."""
    priority_class: str | None = None
    borrowed: bool = False
    """It can be asked back, as the planner reckons it; nothing is where no policy says so."""
    told: bool = False
    """`cards` are those that the kubelet has given it; a plan else."""
    began: str = ""
    """When the pod began on its node, as RFC 3339 writes it; when it was created, where that is not told."""
    excess: tuple[tuple[int, int], ...] = ()
    """By card, bytes that it really uses beyond what it is charged."""

    @property
    def declared(self) -> int | None:
        """Bytes per replica: as the Binding recorded, else as the pod declares; None (all of a card) if unreadable."""
        if self.cards is not None and self.cards.memory is not None:
            return self.cards.memory
        return None if self.memory_unknown else self.request.gpu_memory

    def is_like(self, other: "Seat") -> bool:
        """Whether both weigh the same on the same node."""
        return (self.node, self.request, self.record, self.fault, self.memory_unknown) == (
            other.node,
            other.request,
            other.record,
            other.fault,
            other.memory_unknown,
        )


@dataclass(frozen=True, slots=True)
class SoftClaim:
    """Filter's expectation: the pod will likely take `cards` of `node` within moments."""

    node: str
    pod: Pod
    request: Request
    cards: Cards
    until: float


def share_cost(arrays: Columns | Table, row: int, card: int, declared: int | None) -> int:
    """Bytes that one replica costs on a card: what it declares (None: all; 0 where the card's memory is unknown).

    Where what it really uses is not measured, it costs at least its part of the card.
    """
    memory = int(arrays.memory[row, card])
    replicas = int(arrays.replicas[row])
    if declared is None:
        return memory
    if arrays.measured[row]:
        return declared if memory else 0
    return max(declared, memory // replicas if replicas else memory) if memory else 0


def shares_cost(arrays: Columns | Table, row: int, card: int, count: int, declared: int | None) -> int:
    """Bytes that all replicas of one pod cost on a card.

    One pod holds at most all of a card, whatever it declares; this keeps sums within 64 bits, too.
    """
    return min(count * share_cost(arrays, row, card, declared), int(arrays.memory[row, card]))


def charge(
    columns: Columns, row: int, inventory: Inventory, seat: Seat, ids: Mapping[str, int], sign: int
) -> None:
    """Add (`sign` 1) or take away (-1) all that the seat weighs on its row."""
    columns.version[row] += 1
    columns.cpu_used[row] += sign * seat.request.cpu
    columns.ram_used[row] += sign * seat.request.memory
    if seat.request.devices:
        charge_devices(columns, row, inventory, seat, ids, sign)
        lend(columns, row, seat, sign)


def lend(columns: Columns, row: int, seat: Seat, sign: int) -> None:
    """Add or take away what the seat borrows, and count the row's cards that nobody else holds.

    Cards that are not known are not lent.
    """
    if seat.borrowed and seat.cards is not None:
        for card in (*seat.cards.whole, *seat.cards.shared):
            columns.borrowed[row, card] += sign
    holders = columns.borrowed[row]
    held = columns.exclusive[row] + columns.shares[row]
    columns.lent[row] = np.count_nonzero((holders > 0) & (holders == held))


def charge_devices(
    arrays: Columns | Table, row: int, inventory: Inventory, seat: Seat, ids: Mapping[str, int], sign: int
) -> None:
    """The part of `charge` that the kernels read.

    Resources that the node does not advertise are not counted: any pod may name any number of them. When the node
    begins to, its inventory changes and the row is charged anew.
    """
    request = seat.request
    advertised = dict(inventory.allocatable)
    for name, count in request.devices:
        if name in advertised:
            arrays.used[row, ids[name]] += sign * count
    whole, shared = split(request, inventory.mode)
    cards = seat.cards
    shares: Mapping[int, int]
    if cards is None:
        arrays.opaque[row] += sign * whole
        shares = dict.fromkeys(range(inventory.cards), shared) if shared else {}
    else:
        for card in cards.whole:
            arrays.exclusive[row, card] += sign
        shares = Counter(cards.shared)
    for card, count in shares.items():
        amount = shares_cost(arrays, row, card, count, seat.declared)
        arrays.shares[row, card] += sign * count
        arrays.memory_used[row, card] += sign * amount
        if seat.told:
            arrays.given[row, card] += sign * count
            arrays.given_memory[row, card] += sign * amount
    if seat.told and cards is not None:
        for card in cards.whole:
            arrays.given[row, card] += sign * max(1, inventory.replicas)
    elif shared and arrays.choice[row]:
        arrays.loose_memory[row] += sign * max(
            (shares_cost(arrays, row, card, shared, seat.declared) for card in range(inventory.cards)),
            default=0,
        )
    arrays.misplaced[row] += sign * seat.misplaced
    for card, bits in bits_of(seat.slices, inventory):
        arrays.slices[row, card] += sign * bits


def imagine(table: Table, inventory: Inventory, seat: Seat, ids: Mapping[str, int], sign: int) -> None:
    """What-if: add or take away the seat, and what it really uses, on a copy of its row."""
    charge_devices(table, 0, inventory, seat, ids, sign)
    for card, amount in seat.excess:
        table.extra[0, card] += sign * amount


def bits_of(slices: Iterable[Slice], inventory: Inventory) -> Iterator[tuple[int, int]]:
    """Per slice, its card and the bits that it takes of the card's occupancy."""
    for resource, card, start in slices:
        assert inventory.geometry is not None
        profile = profile_of(inventory.geometry, resource)
        assert profile is not None
        yield card, inventory.geometry.placements(profile)[start]


def cut_out(slices: Iterable[Slice], inventory: Inventory) -> Iterator[tuple[int, int]]:
    """The same of those that the cards can be cut into; others are none of theirs."""
    geometry = inventory.geometry
    for place in slices:
        profile = profile_of(geometry, place.resource) if geometry is not None else None
        known = geometry is not None and profile is not None and place.start in geometry.placements(profile)
        if known and place.card < inventory.sliced:
            yield from bits_of([place], inventory)


def hold(columns: Columns, row: int, claim: SoftClaim, ids: Mapping[str, int], sign: int) -> None:
    """Add or take away a soft claim, but for its slices: those of claims may overlap, so `hold_slices` keeps them."""
    columns.version[row] += 1
    columns.soft[row] += sign
    for name, count in claim.request.devices:
        columns.used_soft[row, ids[name]] += sign * count
    for card in claim.cards.whole:
        columns.exclusive_soft[row, card] += sign
    for card in claim.cards.shared:
        columns.shares_soft[row, card] += sign
        columns.memory_soft[row, card] += sign * share_cost(columns, row, card, claim.request.gpu_memory)


def hold_slices(columns: Columns, row: int, inventory: Inventory, claims: Iterable[SoftClaim]) -> None:
    """Let the row's soft slices be those of all the claims on it."""
    columns.slices_soft[row] = 0
    for claim in claims:
        for card, bits in bits_of(claim.cards.slices, inventory):
            columns.slices_soft[row, card] |= bits


def forecast(table: Table, row: int, geometry: Geometry, asked: Mapping[str, int]) -> tuple[Slice, ...]:
    """Where instances would be cut now; nothing where not all of them have room."""
    names = [
        name
        for name in sorted(asked, key=by_size, reverse=True)
        for _ in range(min(asked[name], MOST_INSTANCES))
    ]
    profiles = [profile_of(geometry, name) for name in names]
    if not names or len(names) == MOST_INSTANCES:
        return ()
    slices = table.hardware.slices[int(table.geometry[row])]
    chosen, starts, _ = place_dynamic(
        slices, table.slices, np.array([row], np.int32), np.array(profiles, np.int32)
    )
    if chosen[0, 0] < 0:
        return ()
    places = zip(names, chosen[0].tolist(), starts[0].tolist(), strict=True)
    return tuple(Slice(*place) for place in places)


def seat_of(pod: Pod, node: str, phase: Phase, record: str | None, fault: str) -> Seat:
    """The pod's seat; what cannot be read of a pod that already sits is charged at its worst, never as nothing."""
    memory_unknown = False
    try:
        request = request_of(pod, linked=False)
    except RequestError:
        try:
            request, memory_unknown = request_of(pod, declared=False, linked=False), True
        except RequestError as error:
            request, fault = Request(0, 0), fault or str(error)
    metadata = pod.metadata
    return Seat(
        uid=metadata.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        node=node,
        request=request,
        phase=phase,
        priority=(pod.spec.priority if pod.spec else None) or 0,
        record=record if request.devices else None,
        fault=fault,
        memory_unknown=memory_unknown,
        preemptible=(metadata.labels or {}).get(PREEMPTIBLE) == "true",
        priority_class=pod.spec.priority_class_name if pod.spec else None,
        began=(pod.status.start_time if pod.status else None) or metadata.creation_timestamp or "",
    )
