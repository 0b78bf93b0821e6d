"""What the book knows of a node's cards: who is on each and from where that is known, its memory, health and links.

The numbers are those that the doors go by: a card is refused where `used` + `promised` and what a pod declares pass
its `limit`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from _core import IS_OCCUPIED, IS_WITHHELD
from extender.cluster import truth
from extender.cluster.assignment import Cards, Slice, split
from extender.cluster.columns import STALE
from extender.cluster.inventory import Inventory, Mode
from extender.cluster.measure import by_card, use_by
from extender.cluster.mig import PREFIX, resource_of
from extender.cluster.reported import Report
from extender.cluster.request import GPU
from extender.cluster.seats import Seat
from extender.cluster.snapshot import Snapshot
from extender.wire.cards import Agent, Card, FreeInstance, Holder, NodeCards, Offer, Source
from extender.wire.gpunode import uuids
from extender.wire.topo import Link, LinkClass


def nodes_with_cards(snapshot: Snapshot) -> list[str]:
    """Those that offer devices, have pods with some, or have an agent; by name."""
    return sorted(
        name
        for name, inventory in snapshot.inventories.items()
        if inventory.allocatable
        or name in snapshot.reports
        or name in snapshot.unreadable
        or _seats(snapshot, name)
    )


def cards_of(snapshot: Snapshot, node: str) -> NodeCards:
    """All that is known of the node's cards. Raises KeyError for a node that the book does not have."""
    inventory, report = snapshot.inventories[node], snapshot.reports.get(node)
    seats = _seats(snapshot, node)
    plain, cut = inventory.cards, inventory.sliced
    if report is not None:
        plain, cut = max(plain, len(report.truth.cards)), max(cut, len(report.truth.sliced))
    cards = [_card(snapshot, node, number, seats) for number in range(plain)]
    cards += [_cut_card(inventory, report, number, seats) for number in range(cut)]
    if report is not None:
        cards.sort(key=lambda card: card.index)
    return NodeCards(
        node=node,
        agent=_agent(snapshot, node),
        age=report.age if report is not None else None,
        when=report.when if report is not None else "",
        problems=list(_problems(snapshot, inventory, report, seats)),
        watermark=snapshot.watermarks.get(node, snapshot.watermark),
        choice="planned" if inventory.planned else "kubelet",
        replicas=inventory.replicas,
        offers=_offers(snapshot, inventory),
        cards=cards,
        unplaced=[_holder(seat, None) for seat in seats if _is_lost(seat, inventory, report)],
        links=[list(map(str, row)) for row in inventory.links.links] if inventory.links else None,
    )


def _agent(snapshot: Snapshot, node: str) -> Agent:
    if node in snapshot.unreadable:
        return "unreadable"
    report = snapshot.reports.get(node)
    return "none" if report is None else "stale" if report.stale else "fresh"


def _seats(snapshot: Snapshot, node: str) -> list[Seat]:
    found = [seat for seat in snapshot.seats_by_node.get(node, {}).values() if seat.request.devices]
    return sorted(found, key=lambda seat: (seat.namespace, seat.name))


def _card(snapshot: Snapshot, node: str, number: int, seats: Collection[Seat]) -> Card:
    """One that is not in MIG mode."""
    inventory, report = snapshot.inventories[node], snapshot.reports.get(node)
    told = _told(report.truth.cards, number) if report is not None else None
    table, row = snapshot.table, snapshot.index.get(node)
    has_row = number < inventory.cards
    found = _blank(inventory, told, number)
    used: Mapping[str, int] = {}
    if report is not None and told is not None:
        anywhere, on = by_card(seats)
        on_it = use_by({**anywhere, **on.get(number, {})}, told, number, report.ended())
        used = on_it.seated
        if told.total:
            found.used, found.others = sum(used.values()) + on_it.others, on_it.others
    if has_row and table.memory[row, number] > 0:
        chosen = table.given_memory if table.choice[row] else table.memory_used
        loose = int(table.loose_memory[row]) if table.choice[row] else 0
        counted = int(chosen[row, number]) + int(table.extra[row, number]) + loose
        found.promised = max(counted - (found.used or 0), 0)
        found.limit = int(table.memory[row, number])
    trouble = int(table.trouble[row, number]) if has_row else 0
    if trouble & IS_OCCUPIED:
        found.trouble.append("occupied")
    if trouble & IS_WITHHELD:
        found.trouble.append("withheld")
    if has_row and inventory.links is not None:
        found.links = _linked(inventory.links.links[number])
    for seat in seats:
        cards = seat.cards
        if cards is not None and (number in cards.whole or number in cards.shared):
            found.holders.append(_holder(seat, used.get(seat.uid, 0) if told else None, cards, number))
    for pod, source, cards in _gone(report, seats):
        if number in cards.whole or number in cards.shared:
            shares = cards.shared.count(number)
            found.holders.append(Holder(*pod, source, whole=number in cards.whole, shares=shares))
    return found


def _cut_card(inventory: Inventory, report: Report | None, number: int, seats: Iterable[Seat]) -> Card:
    """One in MIG mode."""
    told = _told(report.truth.sliced, number) if report is not None else None
    found = _blank(inventory, told, number)
    found.mig = True
    uids = {seat.uid for seat in seats}
    if told is not None and told.total:
        strangers = [amount for uid, amount in told.pods.items() if uid not in uids]
        found.used, found.others = told.used, told.foreign + sum(strangers)
    for seat in seats:
        slices, source = _slices(seat, inventory, report)
        for resource, card, start in slices:
            if card == number:
                holder = _holder(seat, told.pods.get(seat.uid, 0) if told else None)
                holder.source, holder.instance, holder.start = source, resource.removeprefix(PREFIX), start
                found.holders.append(holder)
    found.holders += [
        Holder(*pod, source, instance=resource.removeprefix(PREFIX), start=start)
        for pod, source, cards in _gone(report, seats)
        for resource, card, start in cards.slices
        if card == number
    ]
    found.free = _free(told, report, found.holders)
    return found


def _free(
    told: truth.Card | None, report: Report | None, holders: Iterable[Holder]
) -> list[FreeInstance] | None:
    """Instances that the kubelet could give, and for which nobody is planned."""
    kubelet = report.truth.heard.kubelet if report is not None else None
    if told is None or kubelet is None or kubelet.held is None:
        return None
    taken = uuids(kubelet.held)
    could = (
        uuids(kubelet.allocatable)
        if kubelet.allocatable is not None
        else {uuid for instance in told.instances for uuid in instance.uuids}
    )
    planned = {each.start for each in holders if each.start is not None}
    return [
        FreeInstance(resource_of(instance.name).removeprefix(PREFIX), instance.start)
        for instance in told.instances
        if instance.start not in planned and (could - taken) & set(instance.uuids)
    ]


def _blank(inventory: Inventory, told: truth.Card | None, number: int) -> Card:
    """The card with what is told of itself, and nobody on it."""
    total = (told.total if told is not None else 0) or inventory.card_memory
    return Card(
        index=told.index if told is not None else number,
        uuid=(told.uuid or None) if told is not None else None,
        model=(told.model if told is not None else "") or inventory.product,
        mig=False,
        total=total or None,
        reserved=told.reserved if told is not None and told.total else None,
        used=None,
        others=None,
        promised=None,
        limit=None,
        healthy=not told.why if told is not None else None,
        why=told.why if told is not None else "",
        trouble=[],
        links="",
        holders=[],
        free=[],
    )


def _told(cards: tuple[truth.Card, ...], number: int) -> truth.Card | None:
    return cards[number] if number < len(cards) else None


def _holder(seat: Seat, used: int | None, cards: Cards | None = None, number: int = 0) -> Holder:
    return Holder(
        namespace=seat.namespace,
        pod=seat.name,
        source="given" if seat.told else "planned",
        phase=seat.phase.value,
        whole=cards is not None and number in cards.whole,
        shares=cards.shared.count(number) if cards is not None else 0,
        declared=seat.declared,
        used=used,
    )


def _slices(seat: Seat, inventory: Inventory, report: Report | None) -> tuple[Iterable[Slice], Source]:
    """Where its instances are; of those that exist before anybody asks for them only the kubelet can tell."""
    if inventory.geometry is not None:
        return seat.slices, "given" if seat.told else "planned"
    given = (report.truth.given or {}).get((seat.namespace, seat.name)) if report is not None else None
    return given.slices if given is not None else (), "given"


def _is_lost(seat: Seat, inventory: Inventory, report: Report | None) -> bool:
    """Whether it is not known of all its devices on which card they are."""
    whole, shared = split(seat.request, inventory.mode)
    instances = sum(count for name, count in seat.request.devices if name.startswith(PREFIX))
    if inventory.mode is Mode.INSTANCE:
        instances += seat.request.count(GPU)
    located = len(list(_slices(seat, inventory, report)[0]))
    return bool(seat.cards is None and whole + shared) or located < instances


def _gone(report: Report | None, seats: Iterable[Seat]) -> Iterator[tuple[truth.PodName, Source, Cards]]:
    """Pods that are not on the node and to which the kubelet has given something."""
    here = {(seat.namespace, seat.name) for seat in seats}
    for pod, cards in sorted((report.truth.given or {}).items()) if report is not None else ():
        if pod not in here:
            yield pod, "leaked" if report is not None and pod in report.leaked else "stray", cards


def _offers(snapshot: Snapshot, inventory: Inventory) -> list[Offer]:
    row = snapshot.index.get(inventory.name)
    taken = snapshot.table.used[row]
    return [
        Offer(name, count, min(int(taken[snapshot.ids[name]]), count))
        for name, count in inventory.allocatable
        if count
    ]


def _linked(row: Iterable[Link]) -> str:
    """The link to all others, or the worst and the best; nothing for a card that is alone."""
    found = sorted({link for link in row if link.kind is not LinkClass.SELF})
    return " to ".join(map(str, found[:1] + found[1:][-1:]))


def _problems(
    snapshot: Snapshot, inventory: Inventory, report: Report | None, seats: Iterable[Seat]
) -> Iterator[str]:
    name = inventory.name
    if inventory.fault:
        yield f"It is closed: {inventory.fault}."
    for seat in snapshot.seats_by_node.get(name, {}).values():
        if seat.fault:
            yield f"It is closed: pod {seat.namespace}/{seat.name}: {seat.fault}."
    for resource in sorted(resource for resource, nodes in snapshot.unlisted.items() if name in nodes):
        yield f"kube-scheduler does not ask kvitej about {resource}: add it to the extender's managedResources."
    if inventory.links_fault:
        yield f"Its links count as unknown: {inventory.links_fault.rstrip('.')}."
    if name in snapshot.unreadable:
        then = "" if report is None else ", so the last one that could be counts"
        yield f"Its agent's report cannot be read{then}: {snapshot.unreadable[name].rstrip('.')}."
    if report is None:
        return
    if report.stale:
        closed = snapshot.table.state[snapshot.index.get(name)] == STALE
        then = (
            "nothing is placed here until it does" if closed else "what it said last against a card holds on"
        )
        yield f"Its agent has not reported for {report.age or 0:.0f} s: {then}."
    has_cards = report.truth.cards or report.truth.sliced
    if report.truth.problem:
        yield f"The driver tells its agent nothing: {report.truth.problem}"
    elif not has_cards:
        yield f"Its agent reports no card: kubectl get gpunode {name} -o yaml says why."
    if has_cards and report.truth.given is None:
        yield "Its agent does not know to whom the kubelet gave which device: who has what is as planned."
    for (namespace, pod), source, _ in _gone(report, seats):
        if source == "leaked":
            yield (
                f"Pod {namespace}/{pod} is gone, and the kubelet still holds devices for it; if that lasts, restart "
                "the kubelet."
            )
