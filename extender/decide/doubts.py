"""Which card of a node speaks against a pod, and its numbers: what a veto says beside the sentence of its code.

Filter's sentences name no node, since the scheduler groups them; a veto is about one node, and its event is read by the
pod's owner, who wants to know whose memory is in the way.
"""

from collections.abc import Iterator

from _core import (
    IS_OCCUPIED,
    IS_UNFIT,
    IS_WITHHELD,
    OCCUPIED,
    STALE,
    UNHEALTHY,
    WATERMARK,
    Table,
)
from extender.cluster.assignment import split
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.cluster.truth import Card
from extender.decide.reasons import SENTENCES


def doubt(snapshot: Snapshot, table: Table, row: int, node: str, request: Request, code: int) -> str:
    """The sentence of the code, with the node's card and its numbers where it is about one.

    `table` has the node in `row`, as it would be without those that are to leave.
    """
    said = SENTENCES[code]
    report = snapshot.reports.get(node)
    if report is None:
        return said
    if code == STALE:
        return f"{said}: {report.age or 0:.0f} s" if report.age is not None else said
    number = next(_against(snapshot, table, row, node, request, code), None)
    if number is None or number >= len(report.truth.cards):
        return said
    card = report.truth.cards[number]
    named = f"GPU {card.index} ({card.uuid or card.model}) of {node}"
    if code == UNHEALTHY:
        return f"{said}: {named}: {card.why}"
    if code == OCCUPIED:
        return f"{said}: {named}: {_size(card.used)} of its {_size(card.total)} are in use"
    return f"{said}: {named}: {_filled(snapshot, table, row, node, request, number, card)}"


def _filled(
    snapshot: Snapshot, table: Table, row: int, node: str, request: Request, number: int, card: Card
) -> str:
    worst = int(table.extra[row, number] + table.given_memory[row, number] + table.loose_memory[row])
    watermark = snapshot.watermarks.get(node, snapshot.watermark)
    slack = f", less {_size(card.slack)} that may be in use unreported," if card.slack else ""
    return (
        f"{_size(card.used)} used, {_size(max(worst - card.used, 0))} declared by others and not used yet, "
        f"{_size(request.gpu_memory)} declared by the pod, and the watermark of {100 * watermark:g} % of "
        f"{_size(card.total - card.reserved)}{slack} is {_size(int(table.memory[row, number]))}"
    )


def _against(
    snapshot: Snapshot, table: Table, row: int, node: str, request: Request, code: int
) -> Iterator[int]:
    """Cards that the kubelet could give the pod and that must not be given, the worst first."""
    whole, shared = split(request, snapshot.inventories[node].mode)
    replicas = max(1, int(table.replicas[row]))
    found = []
    for card in range(int(table.cards[row])):
        trouble, given = int(table.trouble[row, card]), int(table.given[row, card])
        if trouble & IS_WITHHELD:
            continue
        if not ((whole and given == 0) or (shared and given < replicas)):
            continue
        if (code == UNHEALTHY and trouble & IS_UNFIT) or (code == OCCUPIED and trouble & IS_OCCUPIED):
            yield card
        elif code == WATERMARK and table.memory[row, card] > 0:
            filled = int(table.extra[row, card] + table.given_memory[row, card])
            found.append((filled - int(table.memory[row, card]), card))
    yield from (card for _, card in sorted(found, reverse=True))


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
