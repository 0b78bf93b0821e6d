"""Shows what `/devices` answers: per node one table of its cards, and in sentences what is wrong with them."""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extender.wire.cards import Card, Devices, Holder, NodeCards

LEGEND = (
    "Memory in GiB: used by all processes, others of it by those that nobody scheduled, promised what pods declare and "
    "do not use yet; no pod that shares a card or declares memory may bring used + promised past limit. "
    "planned: kvitej's forecast of the card; given: the kubelet has said so."
)
_MEMORY = ("total", "used", "others", "promised", "limit")


def tables(node: str | None) -> Callable[[str], RenderableType]:
    """From the answer to tables; of one node alone also the cards' uuids and all links."""

    def of(answer: str) -> RenderableType:
        return table_of(msgspec.json.decode(answer, type=Devices), full=node is not None)

    return of


def table_of(devices: Devices, full: bool = False) -> RenderableType:
    """For people."""
    if not devices.nodes:
        return Text("No node has GPUs.")
    parts: list[RenderableType] = []
    for node in devices.nodes:
        parts += _node(node)
        if full and node.cards:
            parts.append(_identities(node))
    parts.append(Text(LEGEND, "dim"))
    return Group(*parts)


def _node(node: NodeCards) -> Iterator[RenderableType]:
    yield Text(f"{node.node}: {', '.join(_has(node))}", "bold")
    yield Text(", ".join(_reported(node)), "italic")
    for problem in node.problems:
        yield Text(problem, "yellow")
    if node.cards:
        yield _cards(node)
    for card in node.cards:
        for sentence in _troubles(card):
            yield Text(f"{_name(card)} {sentence}", "yellow")
    if node.unplaced:
        who = "; ".join(f"{each.namespace}/{each.pod}{_phase(each)}" for each in node.unplaced)
        yield Text(f"On a card that is not known: {who}.")
    yield Text("")


def _has(node: NodeCards) -> Iterator[str]:
    models = Counter(card.model or "card of unknown model" for card in node.cards)
    yield from (f"{count} × {model}" for model, count in models.items())
    if node.replicas:
        yield f"{node.replicas} shares each"
    for offer in node.offers:
        if offer.taken or "mig-" not in offer.resource:
            yield f"{offer.taken} of {offer.amount} {offer.resource.removeprefix('nvidia.com/')} taken"


def _reported(node: NodeCards) -> Iterator[str]:
    if node.agent == "none":
        yield "no agent"
    elif node.agent == "unreadable":
        yield "agent's report cannot be read"
    elif node.agent == "stale":
        yield f"agent silent for {node.age or 0:.0f} s"
    else:
        yield "agent reports" if node.age is None else f"agent reported {node.age:.0f} s ago"
    yield f"watermark {100 * node.watermark:g} %"
    yield "the kubelet chooses the card" if node.choice == "kubelet" else "cards are given as planned"


def _cards(node: NodeCards) -> Table:
    mixed = len({card.model for card in node.cards}) > 1
    linked = any(card.links for card in node.cards)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("GPU", *(("model",) if mixed else ()), "state"):
        table.add_column(name, no_wrap=True)
    for name in _MEMORY:
        table.add_column(name, justify="right", no_wrap=True)
    if linked:
        table.add_column("links", no_wrap=True)
    table.add_column("who", overflow="fold")
    for card in node.cards:
        state = ", ".join(_state(card))
        amounts = [card.total, card.used, card.others, card.promised, card.limit]
        # The hardware keeps instances apart, so there is no limit to what is not known.
        unknown = ["?", "?", "?", "-", "-"] if card.mig else ["?"] * 5
        cells = [
            f"{card.index} MIG" if card.mig else str(card.index),
            *((card.model,) if mixed else ()),
            state,
            *(gib(amount) or said for amount, said in zip(amounts, unknown, strict=True)),
            *((card.links,) if linked else ()),
        ]
        who = [*map(_who, card.holders), *_free(card)] or ["-"]
        table.add_row(*cells, who[0], style=None if state in ("ok", "?") else "yellow")
        for other in who[1:]:
            table.add_row(*[""] * len(cells), other)
    return table


def _state(card: Card) -> list[str]:
    if card.healthy is None:
        return ["?"]
    return [*(["unhealthy"] if not card.healthy else []), *card.trouble] or ["ok"]


def _troubles(card: Card) -> Iterator[str]:
    if card.healthy is False:
        yield f"takes no new work: {card.why}"
    if "occupied" in card.trouble:
        yield f"goes to nobody as a whole: processes that nobody scheduled use {gib(card.others)} GiB of it."
    if "withheld" in card.trouble and not any(holder.source == "leaked" for holder in card.holders):
        yield "is not among the devices that the kubelet can give."


def _who(holder: Holder) -> str:
    said = [f"{holder.source}{_phase(holder)}"]
    if holder.instance:
        said.append(holder.instance + (f" at {holder.start}" if holder.start is not None else ""))
    if holder.shares:
        said.append("1 share" if holder.shares == 1 else f"{holder.shares} shares")
    if holder.declared is None:
        said.append("declares what can't be read")
    elif holder.declared and holder.used is None:
        said.append(f"declares {gib(holder.declared)}")
    if holder.used is not None:
        said.append(f"uses {gib(holder.used)}" + (f" of {gib(holder.declared)}" if holder.declared else ""))
    return f"{holder.namespace}/{holder.pod}: {', '.join(said)}"


def _free(card: Card) -> Iterator[str]:
    starts: dict[str, list[str]] = {}
    for each in card.free or ():
        starts.setdefault(each.instance or "?", []).append("?" if each.start is None else str(each.start))
    if starts:
        yield "free: " + "; ".join(f"{name} at {', '.join(found)}" for name, found in starts.items())


def _phase(holder: Holder) -> str:
    return f" ({holder.phase})" if holder.phase not in ("", "bound") else ""


def _identities(node: NodeCards) -> Table:
    """The uuid of each card, and its links to the others."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    plain = [card for card in node.cards if not card.mig]
    links = node.links if node.links is not None and len(node.links) == len(plain) else []
    table.add_column("", no_wrap=True)
    table.add_column("uuid", no_wrap=True)
    for card in plain if links else ():
        table.add_column(_name(card).replace(" ", ""), no_wrap=True)
    rows = iter(links)
    for card in node.cards:
        table.add_row(_name(card), card.uuid or "?", *(() if card.mig or not links else next(rows)))
    return table


def _name(card: Card) -> str:
    return f"GPU {card.index}"


def gib(amount: int | None) -> str:
    """To a tenth; nothing for what is not known."""
    return "" if amount is None else f"{amount / 2**30:.1f}"
