"""What the play tells: a step per thing that happens to a pod or a card, in true words from answers and book."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from _core import FITS, OCCUPIED, STALE, UNHEALTHY, WATERMARK
from extender.cluster.inventory import Mode
from extender.cluster.request import GPU, SHARED, VENDOR, Request
from extender.cluster.seats import Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.doubts import doubt
from extender.decide.place import fits
from extender.decide.waits import Wait
from extender.sharetable import amount
from extender.simulate.scheduler import Bound, Unschedulable
from extender.wire.objects import Quantity
from extender.wire.shares import Shares


class What(Enum):
    WAITS = "waits"
    RELEASED = "released"
    BOUND = "bound"
    VETOED = "vetoed"
    REFUSED = "refused"
    EVICTED = "evicted"
    PAST_US = "past kvitej"
    MOVED = "moved"
    INTRUDES = "intrudes"
    ILL = "ill"
    WELL = "well"
    SILENT = "silent"
    BACK = "back"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Step:
    """`at` in seconds of the play's own clock. What happens to a card has no `tenant`, and a process for its `pod`."""

    at: float
    what: What
    tenant: str
    pod: str
    asks: str
    node: str
    cards: str
    why: str


def asks_text(asks: Mapping[str, Quantity], gpu_memory: Quantity) -> str:
    """The devices asked for, without their vendor: `2 gpu`, `1 gpu.shared, 20Gi`."""
    devices = [
        f"{amount} {name.removeprefix(VENDOR)}" for name, amount in asks.items() if name.startswith(VENDOR)
    ]
    return ", ".join(devices + ([f"{gpu_memory}"] if gpu_memory else []))


def cards_text(seat: Seat | None) -> str:
    """The cards that the pod holds by the book, `0-3,6`; `MIG` if it holds only instances, `?` if not known."""
    if seat is None or seat.cards is None:
        return "?"
    return ",".join(_ranges(sorted({*seat.cards.whole, *seat.cards.shared}))) or "MIG"


def why_chosen(bound: Bound, seat: Seat | None, book: Snapshot, shares: Shares, tenant: str) -> str:
    """How the node was found, what the pod leaves of it, and what its tenant has now."""
    if bound.nominated:
        found = "as nominated"
    elif bound.totals:
        found = f"best of {len(bound.totals)} that fit, before {_runner_up(bound)}"
    elif bound.asked == 1:
        found = "the only node with room"
    else:
        found = f"the only one of {bound.asked} that kvitej kept"
    left = "" if seat is None else ", ".join(_left(seat, book))
    return "; ".join((found, *([f"leaves {left}"] if left else ()), *_holds(shares, tenant)))


def _holds(shares: Shares, tenant: str) -> Iterator[str]:
    for row in (row for pool in shares.pools for row in pool.tenants if row.name == tenant):
        borrowed = f", {amount(row.borrowed)} of them above its minimum" if row.borrowed > 0 else ""
        yield f"{tenant} has {amount(row.in_use)} GPUs{borrowed}"


def why_in_line(wait: Wait) -> str:
    """Its place in line and what it waits for; `kvitej explain` also says who is ahead and why."""
    return " ".join(wait.sentences if len(wait.sentences) < 2 else (wait.sentences[0], wait.sentences[-1]))


def what_stands_against(book: Snapshot, request: Request) -> str:
    """Of a pod that has no room: why nodes refuse it for what their agents report; nothing where none does for that."""
    ask = book.ask(request)
    if ask is None:
        return ""
    said = []
    for node in book.reports:
        row = book.index.get(node)
        code = fits(book.table, row, ask) if row >= 0 else FITS
        if code in (STALE, UNHEALTHY, OCCUPIED, WATERMARK):
            why = doubt(book, book.table, row, node, request, code).rstrip(".")
            said.append(f"{node}: {why}." if code == STALE else f"{why[0].upper()}{why[1:]}.")
    return " ".join(said)


def why_unschedulable(refused: Unschedulable) -> str:
    """The reasons, each with the number of nodes that gave it."""
    reasons = [f"{count} {reason} (kvitej)" for reason, count in refused.extender.items()]
    reasons += [f"{count} {reason}" for reason, count in refused.in_tree.items()]
    return f"waits, no room on {refused.nodes} nodes: " + ", ".join(reasons)


def _runner_up(bound: Bound) -> str:
    others = [name for name in bound.totals if name != bound.node]
    return min(others, key=lambda name: (-bound.totals[name], name))


def _left(seat: Seat, book: Snapshot) -> Iterator[str]:
    table, row, inventory = book.table, book.index.get(seat.node), book.inventories[seat.node]
    for name, _ in seat.request.devices:
        short = name.removeprefix(VENDOR)
        if name == GPU and inventory.mode is Mode.WHOLE:
            held = (table.exclusive[row] > 0) | (table.shares[row] > 0)
            free = inventory.cards - int(held[: inventory.cards].sum()) - int(table.opaque[row])
            yield f"{free} of {inventory.cards} {short}"
        else:
            most = int(table.allocatable[row, book.ids[name]])
            yield f"{most - int(table.used[row, book.ids[name]])} of {most} {short}"
        if name == SHARED and seat.request.gpu_memory and seat.cards is not None:
            for card in sorted(set(seat.cards.shared)):
                free = int(table.memory[row, card] - table.memory_used[row, card] - table.extra[row, card])
                yield f"{free >> 30} GiB of card {card}"


def _ranges(cards: list[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(cards) + 1):
        if end == len(cards) or cards[end] != cards[end - 1] + 1:
            yield f"{cards[start]}-{cards[end - 1]}" if end - start > 1 else str(cards[start])
            start = end
