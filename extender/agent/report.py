"""From what the driver said to the GPUNode, and whether that is worth writing. Pure.

A card that was there since the machine started stays in the report, with what was last known to be on it: that it
can't be seen does not make it free. Its index is the one under which it was first seen, since the driver counts anew
when a card vanishes.

Memory moves all the time. It is written when it has risen by one step, a hundredth of the card, or fallen by two;
`slack` tells readers how far above the written amount it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import structs

from extender import __version__
from extender.agent.health import judge, stamp
from extender.agent.sample import Card, Sample
from extender.wire.gpunode import (
    API_VERSION,
    KIND,
    GPUNode,
    GPUNodeMeta,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    Health,
    Links,
    Memory,
    Process,
    Profile,
)

STEPS = 100
"""A card's memory in steps."""

_GONE = "The driver no longer shows the card."
Owner = tuple[str | None, int | None]


def report(
    sample: Sample,
    node: str,
    boot_id: str,
    before: GPUNode | None,
    pod_of: Callable[[int], str | None],
    replicas: Mapping[str, int],
) -> GPUNode:
    """The report on a node.

    Parameters
    ----------
    before
        The report before this one, from this agent or from the API server; what it says holds on if the machine was
        not started again since.
    pod_of
        The uid of the pod that a process belongs to; raises ProcessLookupError if that can't be seen.
    replicas
        By uuid of a card: into how many the device plugin divides it; 1 where it is not named.
    """
    old = before if before is not None and before.spec.boot_id == boot_id else None
    gone = _cards(old, sample.problem.message if sample.problem else _GONE)
    cards = _with_identity(sample.cards, gone)
    told = {status.uuid: status for status in (old.status.gpus if old and old.status else []) if status.uuid}
    seen = {card.gpu.uuid for card in cards if card.gpu.uuid}
    cards += [card for card in gone if card.gpu.uuid and card.gpu.uuid not in seen]
    placed = sorted(zip(_indices(cards, old), cards, strict=True), key=lambda pair: pair[0])
    gpus, statuses = [], []
    geometries: list[list[Profile]] = []
    for index, card in placed:
        if card.profiles and card.profiles not in geometries:
            geometries.append(card.profiles)
        geometry = geometries.index(card.profiles) if card.profiles else None
        gpus.append(structs.replace(card.gpu, index=index, geometry=geometry))
        statuses.append(_status(card, index, told.get(card.gpu.uuid), sample.when, pod_of, replicas))
    numbers = {card.gpu.index: index for index, card in placed if not card.lost}
    return GPUNode(
        api_version=API_VERSION,
        kind=KIND,
        metadata=GPUNodeMeta(name=node),
        spec=GPUNodeSpec(
            boot_id=boot_id,
            driver=sample.driver or (old.spec.driver if old else ""),
            gpus=gpus,
            geometries=geometries,
            links=_links(sample.links, numbers, old.spec.links if old else None),
        ),
        status=GPUNodeStatus(stamp(sample.when), __version__, statuses, sample.problem),
    )


def changed(old: GPUNode | None, new: GPUNode) -> bool:
    """Whether anything that decides differs from `old`, the report that was written last."""
    if old is None or old.status is None or new.status is None or old.spec != new.spec:
        return True
    one, other = old.status, new.status
    return (one.agent, one.problem, len(one.gpus)) != (other.agent, other.problem, len(other.gpus)) or any(
        _card_changed(*pair) for pair in zip(one.gpus, other.gpus, strict=True)
    )


def _with_identity(cards: list[Card], gone: list[Card]) -> list[Card]:
    """The cards, less what only looks new: one that was lost before it could be asked who it is.

    It is taken for the card that is missing, by its index where several are.
    """
    seen = {card.gpu.uuid for card in cards}
    missing = [card for card in gone if card.gpu.uuid not in seen]
    found = []
    for card in cards:
        likely = [one for one in missing if len(missing) == 1 or one.gpu.index == card.gpu.index]
        if not card.gpu.uuid and card.lost and likely:
            missing.remove(likely[0])
            likely[0].lost = card.lost
            found.append(likely[0])
        else:
            found.append(card)
    return found


def _cards(old: GPUNode | None, lost: str) -> list[Card]:
    """The cards that have been here before, as they are if the driver no longer shows them: `lost`."""
    if old is None:
        return []
    known = dict(enumerate(old.spec.geometries))
    return [
        Card(gpu, known.get(-1 if gpu.geometry is None else gpu.geometry, []), lost) for gpu in old.spec.gpus
    ]


def _indices(cards: list[Card], old: GPUNode | None) -> list[int]:
    """The index of each card when it was first seen since the machine started."""
    first = {gpu.uuid: gpu.index for gpu in (old.spec.gpus if old else []) if gpu.uuid}
    taken = set(first.values())
    found = []
    for card in cards:
        index = first.get(card.gpu.uuid)
        if index is None:
            index = card.gpu.index if card.gpu.index not in taken else max(taken) + 1
            taken.add(index)
        found.append(index)
    return found


def _links(links: Links | None, numbers: Mapping[int, int], old: Links | None) -> Links | None:
    """The links under the report's indices; the old ones while they name all cards that can be seen."""
    if old is not None and set(numbers.values()) <= set(old.gpus):
        return old
    if links is None:
        return None
    order = sorted(range(len(links.gpus)), key=lambda at: numbers.get(links.gpus[at], links.gpus[at]))
    cells = [links.rows[at].split() for at in order]
    return Links(
        [numbers.get(links.gpus[at], links.gpus[at]) for at in order],
        [" ".join(row[at] for at in order) for row in cells],
    )


def _status(
    card: Card,
    index: int,
    before: GPUStatus | None,
    when: float,
    pod_of: Callable[[int], str | None],
    replicas: Mapping[str, int],
) -> GPUStatus:
    health = judge(card, before.health if before else None, when)
    if card.lost is not None:
        last = before or GPUStatus(card.gpu.uuid, index, health)
        return structs.replace(last, index=index, health=health, unreadable=card.unreadable)
    processes = None
    if card.processes is not None:
        processes = [_with_pod(process, pod_of) for process in card.processes]
    shared = "time-slicing" if replicas.get(card.gpu.uuid, 1) > 1 else "none"
    return GPUStatus(
        uuid=card.gpu.uuid,
        index=index,
        health=health,
        memory=_with_slack(card.memory),
        processes=processes,
        mig=card.mig,
        instances=[structs.replace(one, memory=_with_slack(one.memory)) for one in card.instances],
        sharing="mps" if any(process.mps for process in processes or []) else shared,
        unreadable=card.unreadable,
    )


def _with_pod(process: Process, pod_of: Callable[[int], str | None]) -> Process:
    try:
        return structs.replace(process, pod=pod_of(process.pid))
    except ProcessLookupError:
        return structs.replace(process, hidden=True)


def _with_slack(memory: Memory | None) -> Memory | None:
    return None if memory is None else structs.replace(memory, slack=-(-memory.total // STEPS))


def _card_changed(old: GPUStatus, new: GPUStatus) -> bool:
    return (
        (old.uuid, old.index, old.mig, old.sharing, old.unreadable)
        != (new.uuid, new.index, new.mig, new.sharing, new.unreadable)
        or _deciding(old.health) != _deciding(new.health)
        or _memory_changed(old.memory, new.memory)
        or [structs.replace(one, memory=None) for one in old.instances]
        != [structs.replace(one, memory=None) for one in new.instances]
        or any(
            _memory_changed(one.memory, other.memory)
            for one, other in zip(old.instances, new.instances, strict=True)
        )
        or _owners_changed(old, new)
    )


def _deciding(health: Health) -> tuple[object, ...]:
    """What of it decides: not counts and times, nor clocks that software has slowed."""
    return (
        health.healthy,
        health.why,
        [(xid.code, xid.severity) for xid in health.xids],
        health.ecc and health.ecc.uncorrected,
        health.retired_pages and health.retired_pages.pending,
        health.remapped_rows and (health.remapped_rows.pending, health.remapped_rows.failed),
        [reason for reason in health.throttling if "software" not in reason],
        health.recovery,
    )


def _memory_changed(old: Memory | None, new: Memory | None) -> bool:
    if old is None or new is None:
        return old is not new
    return (
        old.total != new.total
        or (old.reserved is None) != (new.reserved is None)
        or _moved(old.reserved or 0, new.reserved or 0, new.slack)
        or _moved(old.used, new.used, new.slack)
    )


def _moved(old: int, new: int, step: int) -> bool:
    """Up by one step, or down by two: what swings by less than that is written once, at its height.

    That all is gone is always written: a card may be closed for what little was there.
    """
    return new - old >= step or old - new >= 2 * step or (10 * new <= step < 5 * old)


def _owners_changed(old: GPUStatus, new: GPUStatus) -> bool:
    """Who is on the card, and with how much; processes come and go within a pod without being news."""
    if old.processes is None or new.processes is None:
        return old.processes is not new.processes
    one, other = _owners(old.processes), _owners(new.processes)
    if {owner for owner in one if owner[0]} != {owner for owner in other if owner[0]}:
        return True
    step = new.memory.slack if new.memory else 1
    for owner in one.keys() | other.keys():
        before, now = one.get(owner, 0), other.get(owner, 0)
        if before is None or now is None:
            if before is not now:
                return True
        elif _moved(before, now, step):
            return True
    return False


def _owners(processes: Iterable[Process]) -> dict[Owner, int | None]:
    """Bytes by pod and MIG instance, (None, …) being foreign processes; None where one of them is unknown."""
    found: dict[Owner, int | None] = {}
    for process in processes:
        owner = (process.pod, process.instance)
        so_far = found.get(owner, 0)
        found[owner] = None if so_far is None or process.used is None else so_far + process.used
    return found
