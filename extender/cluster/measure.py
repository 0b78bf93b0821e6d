"""What a report adds to a row beside the seats: memory that nobody is charged for, and cards that are in trouble."""

from collections.abc import Collection, Iterable, Mapping

from _core import IS_OCCUPIED, IS_UNFIT, IS_WITHHELD
from extender.cluster.assignment import split
from extender.cluster.columns import Columns
from extender.cluster.inventory import MOST_MEMORY, Inventory
from extender.cluster.seats import Seat, shares_cost
from extender.cluster.truth import Card, Truth, Use, use


def measure(
    columns: Columns,
    row: int,
    inventory: Inventory,
    truth: Truth,
    seats: Collection[Seat],
    *,
    floor: int,
    departed: Mapping[str, Collection[str]],
    withheld: Collection[int],
) -> bool:
    """Write the row's `extra` and `trouble`, and close what is cut on demand out of cards that take no new work.

    Whether either is other than it was.

    Each seat's `excess` is what it adds to `extra`.

    Of a seat's memory, what it really uses counts up to what it is charged for; what it uses more, and what others
    use, is extra. Seats whose card is not told may be on any.

    Parameters
    ----------
    floor
        Bytes that others may use of a card that is given as a whole.
    departed
        By uid of those whose processes have ended since the report, the uuids of the cards that were theirs alone.
    withheld
        Cards that the kubelet cannot give although it offers them.
    """
    anywhere, on = by_card(seats)
    excess: dict[str, list[tuple[int, int]]] = {}
    extras, troubles = [], []
    for number, card in enumerate(truth.cards[: inventory.cards]):
        here = {**anywhere, **on.get(number, {})}
        used = use_by(here, card, number, departed)
        extra = used.others
        for uid, amount in used.seated.items():
            more = amount - _charged(columns, row, number, here[uid], inventory)
            if more > 0:
                excess.setdefault(uid, []).append((number, more))
                extra += more
        extras.append(extra)
        troubles.append(
            (IS_UNFIT if card.why else 0)
            | (IS_OCCUPIED if used.others > floor else 0)
            | (IS_WITHHELD if not card.offered or number in withheld else 0)
        )
    for number, card in enumerate(truth.sliced[: inventory.sliced]):
        if card.why:
            # Only now: those that sit there are to be found there, too. No kernel takes a card below 0 for one.
            columns.slices[row, number] = -1
    for seat in seats:
        seat.excess = tuple(excess.get(seat.uid, ()))
    many = len(extras)
    before = columns.extra[row, :many].tolist(), columns.trouble[row, :many].tolist()
    columns.extra[row, :many], columns.trouble[row, :many] = extras, troubles
    return before != (extras, troubles)


def is_measured(inventory: Inventory, truth: Truth) -> bool:
    """Whether what is really used is known of each card."""
    return len(truth.cards) >= inventory.cards and all(card.total for card in truth.cards[: inventory.cards])


def use_by(here: Mapping[str, Seat], card: Card, number: int, departed: Mapping[str, Collection[str]]) -> Use:
    """Whose the memory of the card of that number is, where those seats may be on it; `departed` as in `measure`."""
    owner = next((uid for uid, seat in here.items() if seat.told and _has_alone(seat, number)), None)
    if owner is None:
        owner = next((uid for uid, cards in departed.items() if card.uuid in cards), None)
    found = use(card, here, owner, departed)
    return Use({uid: amount for uid, amount in found.seated.items() if uid in here}, found.others)


def by_card(seats: Iterable[Seat]) -> tuple[dict[str, Seat], dict[int, dict[str, Seat]]]:
    """By uid: seats that may be on any card, as theirs is not told, and those that are on each."""
    anywhere: dict[str, Seat] = {}
    on: dict[int, dict[str, Seat]] = {}
    for seat in seats:
        if seat.request.devices and not seat.told:
            anywhere[seat.uid] = seat
        elif seat.told and seat.cards is not None:
            for card in (*seat.cards.whole, *seat.cards.shared):
                on.setdefault(card, {})[seat.uid] = seat
    return anywhere, on


def _has_alone(seat: Seat, card: int) -> bool:
    return seat.cards is not None and card in seat.cards.whole


def _charged(columns: Columns, row: int, card: int, seat: Seat, inventory: Inventory) -> int:
    """Bytes that the seat is charged for on the card: all there can be of one that it has alone.

    While its cards are not known, it is charged on each of them for all its shares.
    """
    if seat.cards is None or (columns.choice[row] and not seat.told):
        return shares_cost(columns, row, card, split(seat.request, inventory.mode)[1], seat.declared)
    if card in seat.cards.whole:
        return MOST_MEMORY
    return shares_cost(columns, row, card, seat.cards.shared.count(card), seat.declared)
