"""Which cards of its node a pod holds, container by container, and the record of it in the pod's annotation.

The kernels choose cards for the pod as a whole; `record` deals them out to containers in their start order (an
ordinary init container uses cards that the running containers get later, as the kubelet does), and `recall` reads
the record back and believes it only if it says exactly what the pod's spec asks for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from extender.cluster.geometry import profile_of, unit_share
from extender.cluster.inventory import Inventory, Mode
from extender.cluster.mig import Geometry
from extender.cluster.request import GPU, SHARED, Kind, Need, Request, steps
from extender.wire.devices import ContainerDevices, Devices, decode


class Slice(NamedTuple):
    """A MIG instance on a card that is cut on demand: resource name, card among these, first unit."""

    resource: str
    card: int
    start: int


@dataclass(frozen=True, slots=True)
class Cards:
    """`whole`: cards held alone; `shared`: one entry per replica, so a card may occur twice.

    `slices`: of MIG instances that are cut on demand, where they are; a forecast. `memory`: bytes per replica that
    the Binding recorded; None where it recorded none.
    """

    whole: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    memory: int | None = None
    slices: tuple[Slice, ...] = ()

    def __str__(self) -> str:
        shared = Counter(self.shared)
        told = [f"GPU {card}" for card in self.whole]
        told += [f"GPU {card} (shared{f' × {count}' if count > 1 else ''})" for card, count in shared.items()]
        told += [f"{place.resource} on MIG GPU {place.card} at {place.start}" for place in self.slices]
        return ", ".join(told) or "no card"


def split(request: Request, mode: Mode) -> tuple[int, int]:
    """(whole cards, replicas) that the request means on a node of this mode; MIG instances are counts only."""
    gpus, shared = request.count(GPU), request.count(SHARED)
    if mode is Mode.REPLICA:
        return 0, gpus + shared
    return (0 if mode is Mode.INSTANCE else gpus), shared


def answers(cards: Cards, request: Request, inventory: Inventory) -> bool:
    """Whether the cards are as many of each kind as the request asks for, on a node like this."""
    asked: dict[str, int] = {}
    told: dict[str, int] = {}
    if inventory.geometry is not None:
        asked = sliced(request.devices, inventory.geometry)
        told = dict(Counter(place.resource for place in cards.slices))
        if not _have_room(cards.slices, inventory.geometry, inventory.sliced):
            return False
    counts = (len(cards.whole), len(cards.shared))
    return (
        counts == split(request, inventory.mode)
        and told == asked
        and (any(counts) or bool(asked))
        and all(card < inventory.cards for card in (*cards.whole, *cards.shared))
    )


def units(request: Request, inventory: Inventory) -> float:
    """GPU units charged: whole 1; MIG its share of the card; a replica the larger of 1/replicas and its memory."""
    whole, shared = split(request, inventory.mode)
    part = 1 / inventory.replicas if inventory.replicas else 1.0
    if request.gpu_memory and inventory.card_memory:
        part = max(part, request.gpu_memory / inventory.card_memory)
    total = whole + shared * part
    for name, count in request.devices:
        if name == GPU and inventory.mode is Mode.INSTANCE:
            name = "nvidia.com/mig-" + inventory.product.rpartition("-MIG-")[2]
        if name not in (GPU, SHARED):
            share = unit_share(name.removesuffix(".shared"), inventory.product)
            total += count * (float(share) if share is not None else 1.0)
    return round(total, 6)


def record(request: Request, inventory: Inventory, cards: Cards) -> Devices:
    """What the Binding's annotation says: per container its cards and instances, and the units of the pod."""
    containers: dict[str, ContainerDevices] = {}
    held_whole = held_shared = 0
    places: dict[str, list[tuple[int, int]]] = {}
    for resource, card, start in cards.slices:
        places.setdefault(resource, []).append((card, start))
    held_cut = dict.fromkeys(places, 0)
    for need in request.needs:
        whole, shared, mig = _parts(need, inventory.mode)
        containers[need.container] = ContainerDevices(
            cards.whole[held_whole : held_whole + whole],
            cards.shared[held_shared : held_shared + shared],
            mig,
            {
                name: tuple(places[name][held_cut[name] : held_cut[name] + count])
                for name, count in mig.items()
                if name in places
            },
        )
        if need.kind is not Kind.INIT:
            held_whole, held_shared = held_whole + whole, held_shared + shared
            for name in mig.keys() & places.keys():
                held_cut[name] += mig[name]
    return Devices(units(request, inventory), containers, request.gpu_memory if cards.shared else None)


def recall(text: str | None, request: Request, inventory: Inventory) -> Cards | None:
    """The cards that the annotation records; None when it is missing, unreadable or not what the spec asks."""
    if not text:
        return None
    cards = _recall(text, request, inventory.mode, inventory.cards, inventory.replicas)
    if cards is None or inventory.geometry is None:
        return cards
    return replace(cards, slices=_slices(text, request, inventory.geometry, inventory.sliced))


# Pods of one shape on nodes of one kind have few different records, and a restart reads all of them.
@lru_cache(4096)
def _recall(text: str, request: Request, mode: Mode, cards: int, replicas: int) -> Cards | None:
    devices = decode(text)
    if devices is None or devices.containers.keys() != {need.container for need in request.needs}:
        return None
    for need in request.needs:
        whole, shared, mig = _parts(need, mode)
        found = devices.containers[need.container]
        if (len(set(found.gpu)), len(found.gpu), len(found.shared), found.mig) != (whole, whole, shared, mig):
            return None
    held: set[int] = set()
    shares: Counter[int] = Counter()
    for step in steps(request.needs):
        held.update(card for need in step for card in devices.containers[need.container].gpu)
        shares |= Counter(card for need in step for card in devices.containers[need.container].shared)
    if (len(held), shares.total()) != split(request, mode):
        return None
    if not all(0 <= card < cards for card in held | shares.keys()) or held & shares.keys():
        return None
    if any(count > replicas for count in shares.values()):
        return None
    return Cards(tuple(sorted(held)), tuple(sorted(shares.elements())), devices.memory)


@lru_cache(4096)
def _slices(text: str, request: Request, geometry: Geometry, cards: int) -> tuple[Slice, ...]:
    """Where the recorded instances are; nothing unless it is told of all, each somewhere it can be, and once."""
    devices = decode(text)
    held: set[Slice] = set()
    for step in steps(request.needs):
        for need in step:
            cut = devices.containers[need.container].cut if devices else {}
            here = [Slice(name, *place) for name, places in cut.items() for place in places]
            if dict(Counter(place.resource for place in here)) != sliced(need.devices, geometry):
                return ()
            held.update(here)
    if Counter(place.resource for place in held) != sliced(request.devices, geometry):
        return ()
    return tuple(sorted(held)) if _have_room(held, geometry, cards) else ()


def _have_room(slices: Iterable[Slice], geometry: Geometry, cards: int) -> bool:
    """Whether all can be at once where they are, on as many cards."""
    taken: dict[int, int] = {}
    for name, card, start in slices:
        profile = profile_of(geometry, name)
        bits = geometry.placements(profile).get(start, 0) if profile is not None else 0
        if not (0 <= card < cards and bits) or taken.get(card, 0) & bits:
            return False
        taken[card] = taken.get(card, 0) | bits
    return True


def sliced(devices: tuple[tuple[str, int], ...], geometry: Geometry) -> dict[str, int]:
    """Those of the devices that are cut out of cards of this geometry."""
    return {name: count for name, count in devices if profile_of(geometry, name) is not None}


def _parts(need: Need, mode: Mode) -> tuple[int, int, dict[str, int]]:
    asks = dict(need.devices)
    gpus, shared = asks.get(GPU, 0), asks.get(SHARED, 0)
    mig = {name: count for name, count in need.devices if name not in (GPU, SHARED)}
    if mode is Mode.REPLICA:
        return 0, gpus + shared, mig
    if mode is Mode.INSTANCE:
        return 0, shared, {**({GPU: gpus} if gpus else {}), **mig}
    return gpus, shared, mig
