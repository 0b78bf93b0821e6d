"""What a node's report says in the book's terms: card by card who is on it, how much is used, and what can be given.

The book numbers the cards that are not in MIG mode by the driver's index, and those in MIG mode by themselves, too.
A report tells of processes by the uid of their pod, and the kubelet of devices by the pod's name; who of them has a
seat is the book's to know, so `Card` keeps them apart and `use` adds them up for the seats of the moment.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from extender.cluster.assignment import Cards, Slice
from extender.cluster.inventory import MOST_CARDS, MOST_MEMORY, Inventory, Mode
from extender.cluster.mig import resource_of
from extender.cluster.request import GPU, SHARED
from extender.wire import gpunode
from extender.wire.gpunode import (
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    Held,
    Instance,
    Kubelet,
    Memory,
    matrix_of,
    uuids,
)
from extender.wire.topo import LinkMatrix, TopoError

PodName = tuple[str, str]
"""Namespace and name, as the kubelet calls a pod."""

_NOTHING = Memory(0, 0)


# Not frozen: eight are made of each report, and frozen ones take three times as long to make.
@dataclass(slots=True)
class Card:
    """One card as reported; amounts in bytes, `total` 0 where the driver does not tell.

    `pods` are what processes use by the uid of their pod, `foreign` what those use that are of no pod, `unknown` what
    is used beside: by processes that cannot be seen, or whose amount is not told. `used` is all three.
    `why` says why it takes no new work, empty while it does. `offered`: the kubelet could give it. `instances` are of
    MIG and exist, whoever has them.
    """

    uuid: str
    index: int
    model: str
    total: int
    reserved: int
    slack: int
    pods: Mapping[str, int]
    foreign: int
    unknown: int
    why: str
    offered: bool
    instances: Sequence[Instance]

    @property
    def used(self) -> int:
        return sum(self.pods.values()) + self.foreign + self.unknown

    def budget(self, watermark: float) -> int:
        """What may be in use by all, in bytes: a part of what the driver leaves, less what may go unreported."""
        return max(int(watermark * (self.total - self.reserved)) - self.slack, 0)


class Use(NamedTuple):
    """Of one card: bytes by uid of those that have a seat on the node, and bytes of nobody who has one."""

    seated: Mapping[str, int]
    others: int


class Heard(NamedTuple):
    """What the kubelet tells, and what its devices are: the number of each card, the place of each MIG instance."""

    kubelet: Kubelet | None
    numbers: Mapping[str, int]
    places: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Truth:
    """`cards` are not in MIG mode, `sliced` are; both by the book's numbers.

    `given` is what the kubelet has given to each pod; None where it does not tell. `offered` are uuids of the cards
    that it could give, whole or in parts, None likewise. Both follow from what was `heard`.
    """

    cards: tuple[Card, ...]
    sliced: tuple[Card, ...]
    heard: Heard
    given: Mapping[PodName, Cards] | None
    offered: frozenset[str] | None
    blocked: frozenset[str]
    """Resources of MIG instances of which a free one is on a card that takes no new work."""
    links: LinkMatrix | None = None
    links_fault: str = ""
    problem: str = ""
    """Why the driver tells the agent nothing."""

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What rows are described by: while it stays the same, only who is where and what is used has changed."""
        cards = tuple((card.uuid, card.total, card.reserved, card.slack, card.offered) for card in self.cards)
        sliced = tuple((card.uuid, card.why) for card in self.sliced)
        return cards, sliced, self.given is None, self.blocked, self.links, self.links_fault


def truth_of(spec: GPUNodeSpec, status: GPUNodeStatus, before: Truth | None = None) -> Truth:
    """What the report says; never raises. What the kubelet tells as it did `before` is taken from there."""
    identities = {gpu.index: gpu for gpu in spec.gpus}
    told = sorted(status.gpus, key=lambda gpu: gpu.index)[:MOST_CARDS]
    whole = [gpu for gpu in told if not gpu.mig]
    cut = [gpu for gpu in told if gpu.mig]
    numbers = {gpu.uuid: number for number, gpu in enumerate(whole) if gpu.uuid}
    heard = Heard(status.kubelet, numbers, _places(cut))
    held = status.kubelet.held if status.kubelet is not None else None
    if before is not None and before.heard == heard:
        heard, given, offered = before.heard, before.given, before.offered
    else:
        unseen = {uuid: len(whole) + at for at, uuid in enumerate(_unseen(status, held or ()))}
        given = None if held is None else _given(held, numbers | unseen, heard.places)
        offered = _offered(status)
    links, links_fault = _links(spec, [gpu.index for gpu in whole])
    return Truth(
        cards=tuple(_card(gpu, identities.get(gpu.index), offered) for gpu in whole),
        sliced=tuple(_card(gpu, identities.get(gpu.index), None) for gpu in cut),
        heard=heard,
        given=given,
        offered=offered,
        blocked=frozenset(_blocked(status, cut, held or ())),
        links=links,
        links_fault=links_fault,
        problem=status.problem.message if status.problem is not None else "",
    )


def use(card: Card, seated: Collection[str], owner: str | None, departed: Collection[str] = ()) -> Use:
    """Whose the card's memory is.

    Parameters
    ----------
    seated
        Uids of those that have a seat on the node.
    owner
        Who of them has all of the card as the kubelet says: what cannot be told apart is its.
    departed
        Uids that had a seat and have not any more: what they used counts for nothing.
    """
    found: dict[str, int] = {}
    others = card.foreign
    for uid, amount in card.pods.items():
        if uid in seated:
            found[uid] = amount
        elif uid not in departed:
            others += amount
    if owner is not None:
        found[owner] = found.get(owner, 0) + card.unknown
    else:
        others += card.unknown
    return Use(found, others)


def described(inventory: Inventory, truth: Truth | None) -> Inventory:
    """The inventory of a node that says this of itself and of which the report says that."""
    if truth is None or inventory.fault:
        return inventory
    cards = inventory.cards
    if inventory.mode is not Mode.INSTANCE:
        cards = max(cards, len(truth.cards))
    totals = [card.total for card in truth.cards if card.total]
    found = replace(
        inventory,
        cards=cards,
        unseen=cards - inventory.cards,
        card_memory=min(totals, default=inventory.card_memory),
    )
    if not found.product and truth.cards:
        found = replace(found, product=truth.cards[0].model.replace(" ", "-"))
    if found.links is None and not found.links_fault and len(truth.cards) == cards:
        found = replace(found, links=truth.links, links_fault=truth.links_fault)
    return inventory if found == inventory else found


def _card(gpu: GPUStatus, identity: gpunode.GPU | None, offered: Collection[str] | None) -> Card:
    memory = gpu.memory or _NOTHING
    total = memory.total if 0 < memory.total <= MOST_MEMORY else 0
    most = total or MOST_MEMORY
    used = min(max(memory.used, 0), most)
    pods: dict[str, int] = {}
    foreign = 0
    for process in gpu.processes or ():
        pod, amount = process.pod, process.used or 0
        if not 0 <= amount <= most:
            amount = min(max(amount, 0), most)
        if pod is not None:
            pods[pod] = pods.get(pod, 0) + amount
        elif not process.hidden:
            foreign += amount
    return Card(
        uuid=gpu.uuid,
        index=gpu.index,
        model=identity.model if identity else "",
        total=total,
        reserved=min(max(memory.reserved or 0, 0), total),
        slack=min(max(memory.slack, 0), total),
        pods=pods,
        foreign=foreign,
        unknown=max(used - foreign - sum(pods.values()), 0),
        why="" if gpu.health.healthy else " ".join(gpu.health.why) or "The card is not healthy.",
        offered=offered is None or not gpu.uuid or gpu.uuid in offered,
        instances=gpu.instances,
    )


def _offered(status: GPUNodeStatus) -> frozenset[str] | None:
    """Uuids of the cards that the kubelet could give, whole or in parts; None where it does not tell."""
    told = status.kubelet.allocatable if status.kubelet is not None else None
    if told is None:
        return None
    return frozenset(uuids(each for each in told if each.resource in (GPU, SHARED)))


def _unseen(status: GPUNodeStatus, held: Collection[Held]) -> list[str]:
    """Uuids of cards that the agent cannot see and the kubelet gives out: numbered behind the others."""
    could = (status.kubelet.allocatable if status.kubelet is not None else None) or ()
    seen = {gpu.uuid for gpu in status.gpus}
    seen.update(uuid for gpu in status.gpus for one in gpu.instances for uuid in one.uuids)
    told = uuids(each for each in (*held, *could) if each.resource in (GPU, SHARED))
    return sorted(uuid for uuid in told - seen if not uuid.startswith("MIG-"))


def _places(cut: list[GPUStatus]) -> dict[str, tuple[int, int]]:
    """Card and start of each MIG instance whose place is told, by each of its uuids."""
    return {
        uuid: (number, instance.start)
        for number, gpu in enumerate(cut)
        for instance in gpu.instances
        if instance.start is not None
        for uuid in instance.uuids
    }


def _given(
    held: list[Held], numbers: Mapping[str, int], places: Mapping[str, tuple[int, int]]
) -> dict[PodName, Cards]:
    """By pod, each device once: a container may use what another had before it."""
    whole: dict[PodName, set[int]] = {}
    shared: dict[PodName, dict[str, int]] = {}
    slices: dict[PodName, set[Slice]] = {}
    for each in held:
        pod = (each.namespace, each.pod)
        for device in each.devices:
            uuid, _, replica = device.partition("::")
            if uuid in places:
                slices.setdefault(pod, set()).add(Slice(each.resource, *places[uuid]))
            elif uuid not in numbers:
                continue
            elif replica:
                shared.setdefault(pod, {})[device] = numbers[uuid]
            else:
                whole.setdefault(pod, set()).add(numbers[uuid])
    return {
        pod: Cards(
            whole=tuple(sorted(whole.get(pod, ()))),
            shared=tuple(sorted(shared.get(pod, {}).values())),
            slices=tuple(sorted(slices.get(pod, ()))),
        )
        for pod in whole.keys() | shared.keys() | slices.keys()
    }


def _blocked(status: GPUNodeStatus, cut: list[GPUStatus], held: Collection[Held]) -> Iterator[str]:
    """The kubelet may give any free instance: one on an unhealthy card keeps all of its kind from being given."""
    if all(gpu.health.healthy for gpu in cut):
        return
    taken = {device for each in held for device in each.devices}
    could = status.kubelet.allocatable if status.kubelet is not None else None
    offered = None if could is None else {device for each in could for device in each.devices}
    for gpu in cut:
        if gpu.health.healthy:
            continue
        for instance in gpu.instances:
            free = [uuid for uuid in instance.uuids if uuid not in taken]
            if instance.name and any(offered is None or uuid in offered for uuid in free):
                yield resource_of(instance.name)


def _links(spec: GPUNodeSpec, indices: list[int]) -> tuple[LinkMatrix | None, str]:
    """The matrix of these cards; none where it is not told of all of them."""
    try:
        matrix = matrix_of(spec)
    except TopoError as error:
        return None, f"its report cannot be understood: {error}"
    if matrix is None or not indices or not set(indices) <= set(matrix.gpus):
        return None, ""
    if matrix.gpus == tuple(indices) == tuple(range(len(indices))):
        return matrix, ""
    at = [matrix.gpus.index(index) for index in indices]
    return (
        LinkMatrix(
            gpus=tuple(range(len(at))),
            links=tuple(tuple(matrix.links[row][column] for column in at) for row in at),
            numa=tuple(matrix.numa[row] for row in at),
            cpus=tuple(matrix.cpus[row] for row in at),
        ),
        "",
    )
