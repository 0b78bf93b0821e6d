"""What each kernel means, in plain Python: one row, one card, one share at a time, and no thought for speed.

The twins follow the written rules, not the kernels' code: a seat is found by placing share after share, a ranking
by sorting, an answer by the json module.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from _core import (
    BEST_FIT,
    CLOSED,
    CONTENDED,
    D1,
    FGD,
    FIRST_FIT,
    FITS,
    IS_OCCUPIED,
    IS_UNFIT,
    IS_WITHHELD,
    LACKING,
    LINKS_TAKEN,
    LINKS_TOO_SLOW,
    LINKS_UNKNOWN,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    MEMORY_UNKNOWN,
    OCCUPIED,
    P1,
    STALE,
    TAKEN,
    UNHEALTHY,
    UNKNOWN,
    WATERMARK,
    Ask,
    Demand,
    Sets,
    Table,
    connect,
)
from tests.core import mig_twins

VACANT, SILENT, REPLICA, INSTANCE = 1, 3, 1, 2
PULL = {D1: 0.5, P1: 2.0, FGD: 0.0, BEST_FIT: 0.0, FIRST_FIT: 1.0}
SLACK = 1e-9


class Names:
    """NameIndex as two dicts."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.names: dict[int, str] = {}

    def insert(self, name: str, row: int) -> None:
        if json.dumps(name) != f'"{name}"' or not name.isprintable():
            raise ValueError(name)
        if name in self.rows or row in self.names or not 0 <= row < 2**31 - 1:
            raise ValueError(name, row)
        self.rows[name], self.names[row] = row, name

    def remove(self, name: str) -> None:
        if name not in self.rows:
            raise ValueError(name)
        del self.names[self.rows.pop(name)]

    def lookup(self, raw: bytes) -> tuple[list[int], list[str]]:
        try:
            names = json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
            raise ValueError(raw) from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(raw)
        known = dict.fromkeys(self.rows[name] for name in names if name in self.rows)
        unknown = dict.fromkeys(name for name in names if name not in self.rows)
        return list(known), list(unknown)


@dataclass
class Card:
    index: int
    memory: int
    left: int
    shares: int
    owners: int
    trouble: int
    shut: bool
    measured: bool

    def free(self, declared: int) -> bool:
        held = self.owners or self.shares or self.trouble
        return not held and (not declared or self.left >= declared)

    def cost(self, replicas: int, declared: int) -> int:
        part = 0 if self.measured else self.memory // replicas
        return max(declared, part) if self.memory else 0

    def takes(self, replicas: int, declared: int) -> bool:
        if self.shut or self.owners or self.shares >= replicas or self.memory < declared:
            return False
        cost = self.cost(replicas, declared)
        return self.left >= cost or (cost == 0 and not (self.measured and self.memory))

    def take(self, replicas: int, declared: int) -> None:
        self.left -= self.cost(replicas, declared)
        self.shares += 1


def cards_on(table: Table, row: int, soft: bool) -> list[Card]:
    return [
        Card(
            index=card,
            memory=int(table.memory[row, card]),
            left=int(
                table.memory[row, card]
                - table.memory_used[row, card]
                - table.extra[row, card]
                - soft * table.memory_soft[row, card]
            ),
            shares=int(table.shares[row, card] + soft * table.shares_soft[row, card]),
            owners=int(table.exclusive[row, card] + soft * table.exclusive_soft[row, card]),
            trouble=int(table.trouble[row, card]),
            shut=is_shut(table, row, card),
            measured=bool(table.measured[row]),
        )
        for card in range(min(int(table.cards[row]), table.memory.shape[1]))
    ]


def is_shut(table: Table, row: int, card: int) -> bool:
    """Whether no share of the card is given out."""
    trouble = int(table.trouble[row, card])
    return bool(trouble & (IS_UNFIT | IS_WITHHELD) or (trouble and table.opaque[row]))


def need_on(table: Table, row: int, ask: Ask) -> tuple[int, int]:
    if table.mode[row] == REPLICA:
        return 0, ask.shares + ask.whole
    if table.mode[row] == INSTANCE:
        return 0, ask.shares
    return ask.whole, ask.shares


def asked(ask: Ask) -> Iterator[tuple[int, int]]:
    return zip(ask.resources.tolist(), ask.counts.tolist(), strict=True)


def left_of(table: Table, row: int, kind: int, soft: bool) -> int:
    return int(table.allocatable[row, kind] - table.used[row, kind] - soft * table.used_soft[row, kind])


def place(
    table: Table, row: int, whole: int, shares: int, declared: int, soft: bool, first: int | None = None
) -> tuple[list[Card], list[Card]] | None:
    """Whole cards and share cards (one per share); None if they do not fit. `first` is taken before any other."""
    cards, replicas = cards_on(table, row, soft), int(table.replicas[row])
    free = [card for card in cards if card.free(declared)]
    known_free = len(free) - int(table.opaque[row])
    if whole and known_free < whole:
        return None
    taken = [*free[:whole], *free[max(known_free, whole) :]]
    fresh = [card for card in cards if card not in taken and not card.shares]
    shared = [card for card in cards if card.shares > 0]
    seats = []
    for _ in range(shares):
        candidates = [card for card in shared if card.takes(replicas, declared)]
        preferred = [card for card in cards if card.index == first and card.takes(replicas, declared)]
        if preferred:
            seat = preferred[0]
            if seat not in shared:
                shared.append(seat)
        elif candidates:
            seat = min(candidates, key=lambda card: preference(card, replicas, declared))
        else:
            openable = [card for card in fresh if card not in shared and card.takes(replicas, declared)]
            if not openable:
                return None
            seat = openable[0]
            shared.append(seat)
        seat.take(replicas, declared)
        seats.append(seat)
    return free[:whole], seats


def preference(card: Card, replicas: int, declared: int) -> tuple[bool, int, int]:
    left = card.left - card.cost(replicas, declared) if card.memory else replicas - card.shares
    return card.memory == 0, left, card.index


def judge(table: Table, row: int, ask: Ask, soft: bool) -> int:
    if table.state[row] != 0:
        return {VACANT: UNKNOWN, SILENT: STALE}.get(int(table.state[row]), CLOSED)
    if any(table.allocatable[row, kind] < count for kind, count in asked(ask)):
        return LACKING
    if table.mode[row] == INSTANCE and ask.whole and ask.memory and table.memory[row, 0] < ask.memory:
        return MEMORY_TOO_SMALL if table.memory[row, 0] else MEMORY_UNKNOWN
    whole, shares = need_on(table, row, ask)
    cards = cards_on(table, row, soft)
    if whole > len(cards) or (shares and (not cards or table.replicas[row] <= 0)):
        return LACKING
    if (whole or shares) and ask.memory:
        if not any(card.memory for card in cards):
            return MEMORY_UNKNOWN
        if sum(card.memory >= ask.memory for card in cards) < max(whole, 1):
            return MEMORY_TOO_SMALL
    needed = need_links(table, row, ask, whole, len(cards))
    if needed is not None:
        return needed
    gifts = gifts_of(table, row, whole, shares) if table.choice[row] else []
    if any(gift.trouble & IS_UNFIT for gift in gifts):
        return UNHEALTHY
    if any(gift.trouble & IS_OCCUPIED and gift.alone for gift in gifts):
        return OCCUPIED
    if any(left_of(table, row, kind, soft) < count for kind, count in asked(ask)):
        return TAKEN
    if (whole or shares) and sum(card.free(0) for card in cards) < table.opaque[row]:
        return TAKEN
    if place(table, row, whole, shares, ask.memory, soft) is not None:
        if cut(table, row, ask, soft) is None:
            return TAKEN
        if any(gift.fullest(ask.memory) > gift.memory > 0 for gift in gifts):
            return WATERMARK
        return FITS if links_do(table, row, ask, whole, soft) else LINKS_TAKEN
    if place(table, row, whole, 0, ask.memory, soft) is None:
        return TAKEN
    if ask.memory and place(table, row, whole, shares, 0, soft) is not None:
        return MEMORY_TAKEN
    return TAKEN


@dataclass
class Gift:
    """A card that the kubelet could give the pod: all of it alone, or `shares` replicas, with what is `charged`."""

    alone: bool
    memory: int
    trouble: int
    extra: int
    shares: int = 0
    part: int = 0
    charged: int = 0

    def fullest(self, declared: int) -> int:
        """Bytes in use at most, when all that may come has come."""
        if self.alone:
            return self.extra + declared if declared else 0
        return self.extra + self.charged + self.shares * max(declared, self.part)


def gifts_of(table: Table, row: int, whole: int, shares: int) -> list[Gift]:
    gifts = []
    for card in range(min(int(table.cards[row]), table.memory.shape[1])):
        memory, trouble = int(table.memory[row, card]), int(table.trouble[row, card])
        extra, given, replicas = (
            int(table.extra[row, card]),
            int(table.given[row, card]),
            int(table.replicas[row]),
        )
        if trouble & IS_WITHHELD:
            continue
        if whole and given == 0:
            gifts.append(Gift(True, memory, trouble, extra))
        if shares and given < replicas:
            mine = min(shares, replicas - given)
            part = 0 if table.measured[row] else memory // replicas
            charged = int(table.given_memory[row, card] + table.loose_memory[row])
            gifts.append(Gift(False, memory, trouble, extra, mine, part, charged))
    return gifts


def parts_on(table: Table, row: int, ask: Ask) -> list[int]:
    """Per mille of a card that one of each resource is, 0 for what is no MIG instance."""
    parts: list[int] = table.hardware.parts.tolist()
    if ask.gpu_id >= 0:
        parts[ask.gpu_id] = int(table.part[row]) if table.mode[row] == INSTANCE else 0
    return parts


def instances(table: Table, row: int, ask: Ask) -> list[tuple[int, int]]:
    """(resource, profile of the row's model) of each instance to cut, the last resource first."""
    model, parts = int(table.geometry[row]), parts_on(table, row, ask)
    if not 0 <= model < table.hardware.models or not any(parts[kind] for kind, _ in asked(ask)):
        return []
    profiles = table.hardware.profiles[model].tolist()
    return [
        (kind, profiles[kind])
        for kind, count in reversed(list(asked(ask)))
        for _ in range(count)
        if profiles[kind] >= 0
    ]


def occupancies(table: Table, row: int, soft: bool) -> list[int]:
    return [
        cut | (held if soft and cut >= 0 else 0)
        for cut, held in zip(table.slices[row].tolist(), table.slices_soft[row].tolist(), strict=True)
    ]


def cut(table: Table, row: int, ask: Ask, soft: bool) -> tuple[list[tuple[int, int, int]], int] | None:
    """((resource, card, start) of each instance to cut, their score); None where they have no room."""
    model, parts = int(table.geometry[row]), parts_on(table, row, ask)
    if (
        0 <= model < table.hardware.models
        and any(parts[kind] for kind, _ in asked(ask))
        and table.misplaced[row]
    ):
        return None
    wanted = instances(table, row, ask)
    if not wanted:
        return [], 0
    slices = table.hardware.slices[model]
    chosen, starts, score = mig_twins.place_dynamic(
        slices, occupancies(table, row, soft), [profile for _, profile in wanted]
    )
    if -1 in chosen:
        return None
    return [(kind, card, start) for (kind, _), card, start in zip(wanted, chosen, starts, strict=True)], score


def links_of(table: Table, row: int) -> Sets | None:
    at = int(table.topology[row])
    if not 0 <= at < table.hardware.topologies:
        return None
    sets = table.hardware.links[at]
    return sets if sets.gpus == min(int(table.cards[row]), table.memory.shape[1]) else None


def need_links(table: Table, row: int, ask: Ask, whole: int, cards: int) -> int | None:
    """Why no departing pod can link the cards as the pod needs them."""
    if whole < 2 or not (ask.bandwidth or ask.nvlink):
        return None
    sets = links_of(table, row)
    if sets is None:
        return LINKS_UNKNOWN
    return None if linked_enough(sets, ask, sets.choose((1 << cards) - 1, whole)) else LINKS_TOO_SLOW


def linked_enough(sets: Sets, ask: Ask, mask: int) -> bool:
    return int(sets.bottleneck[mask]) >= ask.bandwidth and (not ask.nvlink or bool(sets.nvlink[mask]))


def handed_out(table: Table, row: int, declared: int, whole: int, soft: bool) -> tuple[int, float]:
    """The mask that the device plugin would give, and its score; 0 where that can't be said."""
    sets = links_of(table, row)
    if sets is None or table.opaque[row]:
        return 0, 0.0
    mask = sum(1 << card.index for card in cards_on(table, row, soft) if card.free(declared))
    best = table.hardware.offers[int(table.topology[row]), min(whole, sets.gpus)].reshape(1)
    chosen, score, _ = connect(
        [sets], np.zeros(1, np.int32), np.array([mask], np.uint32), whole, best, plugin=True
    )
    return int(chosen[0]), float(score[0])


def links_do(table: Table, row: int, ask: Ask, whole: int, soft: bool) -> bool:
    if whole < 2 or not (ask.bandwidth or ask.nvlink):
        return True
    sets, (mask, _) = links_of(table, row), handed_out(table, row, ask.memory, whole, soft)
    return sets is not None and mask > 0 and linked_enough(sets, ask, mask)


def links_worth(table: Table, row: int, ask: Ask, soft: bool) -> float:
    whole, _ = need_on(table, row, ask)
    if whole == 0 or not table.hardware.topologies:
        return 0.0
    mask, score = handed_out(table, row, ask.memory, whole, soft)
    if mask == 0:
        return -2.0 if whole > 1 else 0.0
    return score - 1


def instances_worth(table: Table, row: int, ask: Ask, soft: bool) -> float:
    if not any(parts_on(table, row, ask)[kind] for kind, _ in asked(ask)):
        return 0.0
    if 0 <= table.geometry[row] < table.hardware.models:
        found = cut(table, row, ask, soft)
        return found[1] / 7_000_000 if found else math.nan
    return static(table, row, ask, soft) / 10


def static(table: Table, row: int, ask: Ask, soft: bool) -> int:
    total = free = left = 0
    for kind, part in enumerate(parts_on(table, row, ask)):
        offered = int(table.allocatable[row, kind])
        used = int(table.used[row, kind]) + (int(table.used_soft[row, kind]) if soft else 0)
        unused = max(offered - used, 0)
        total += part * offered
        free += part * unused
        left += part * (unused - dict(asked(ask)).get(kind, 0))
    if not total:
        return 0
    return -(10 * max(left, 0) // total) - (10 if free == total else 0)


def instances_left(table: Table, row: int, soft: bool) -> float:
    """Cards' worth of MIG instances that nobody holds."""
    model = int(table.geometry[row])
    if 0 <= model < table.hardware.models and table.hardware.parts.any():
        units = int(table.hardware.units[model])
        return math.fsum(
            1 - (occupied & (1 << units) - 1).bit_count() / units
            for occupied in occupancies(table, row, soft)
            if occupied >= 0
        )
    return math.fsum(
        max(left_of(table, row, kind, soft), 0) * part / 1000
        for kind, part in enumerate(table.hardware.parts.tolist())
    )


def instances_asked(table: Table, row: int, ask: Ask) -> float:
    return math.fsum(
        count * int(table.hardware.parts[kind]) / 1000
        for kind, count in asked(ask)
        if table.mode[row] != INSTANCE or kind != ask.gpu_id
    )


def fit(table: Table, rows: Sequence[int], ask: Ask) -> list[int]:
    codes = []
    for row in rows:
        code = judge(table, row, ask, soft=False)
        if code == FITS and table.soft[row] > 0 and judge(table, row, ask, soft=True) != FITS:
            code = CONTENDED
        codes.append(code)
    return codes


def seat(
    table: Table, row: int, ask: Ask, soft: bool, first: int | None
) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
    if judge(table, row, ask, soft) != FITS:
        raise ValueError(row)
    whole, shares = need_on(table, row, ask)
    placed, slices = place(table, row, whole, shares, ask.memory, soft, first), cut(table, row, ask, soft)
    assert placed is not None
    assert slices is not None
    cards = [card.index for card in placed[0]]
    mask, _ = handed_out(table, row, ask.memory, whole, soft) if whole and not shares else (0, 0)
    if mask:
        cards = [card for card in range(mask.bit_length()) if mask >> card & 1]
    return cards, [card.index for card in placed[1]], slices[0]


def part_left(card: Card, replicas: int) -> float:
    if card.owners or card.shares >= replicas or card.shut:
        return 0.0
    of_memory = card.left / card.memory if card.memory else 1.0
    return max(min((replicas - card.shares) / replicas, of_memory), 0.0)


def parts_left(table: Table, row: int, soft: bool) -> list[float]:
    cards = cards_on(table, row, soft)
    free = [card.index for card in cards if card.free(0)]
    known_free = free[: max(len(free) - int(table.opaque[row]), 0)]
    return [
        float(card.index in known_free) if card.index in free else part_left(card, int(table.replicas[row]))
        for card in cards
    ]


@dataclass
class Room:
    """What is left of a row: parts of its cards, thousandths of a core, and whether its cards are shared at all."""

    parts: list[float]
    cores: int
    sharing: bool
    mig: float

    def fits(self, cpu: int, gpus: int, share: float) -> int:
        if gpus == 0 or (share < 1 and not self.sharing):
            return 0
        shares = sum(math.floor(part / share + SLACK) for part in self.parts)
        return min(shares // gpus, self.cores // cpu if cpu else shares)

    def stranded(self, cpu: int, gpus: int, share: float) -> float:
        if self.fits(cpu, gpus, share) == 0:
            return sum(self.parts)
        return sum(part for part in self.parts if part < share - SLACK)

    def worth(self, demand: Demand) -> float:
        total = sum(self.parts)
        if demand.kind == BEST_FIT:
            return -50.0 * (self.cores / 128_000 + total / 8)
        usable = min(total + self.mig, self.cores / 1000 / float(demand.cores))
        classes = list(zip(demand.cpu.tolist(), demand.gpus.tolist(), demand.share.tolist(), strict=True))
        lost: float = sum(p * self.stranded(*each) for p, each in zip(demand.often, classes, strict=True))
        capacity: float = sum(w * self.fits(*each) for w, each in zip(demand.weight, classes, strict=True))
        if demand.kind == P1:
            return usable
        return capacity - lost + (usable if demand.kind == D1 else 0.0)


def slots(table: Table, demand: Demand) -> list[int]:
    classes = list(zip(demand.cpu.tolist(), demand.gpus.tolist(), demand.share.tolist(), strict=True))
    rooms = [room(table, row, soft=False) for row in range(table.rows) if table.state[row] == 0]
    return [sum(each.fits(*shape) for each in rooms) for shape in classes]


def room(table: Table, row: int, soft: bool) -> Room:
    cores = max(int(table.cpu[row] - table.cpu_used[row]), 0)
    mig = instances_left(table, row, soft)
    return Room(parts_left(table, row, soft), cores, bool(table.replicas[row] > 0), mig)


def value(table: Table, row: int, ask: Ask, soft: bool, demand: Demand, first: int | None) -> float:
    """What the row's worth changes by, its first share on card `first`."""
    if demand.kind == FIRST_FIT:
        return 0.0
    placed = place(table, row, *need_on(table, row, ask), ask.memory, soft, first)
    assert placed is not None
    before = room(table, row, soft)
    after = Room(
        list(before.parts),
        max(int(table.cpu[row] - table.cpu_used[row]) - ask.cpu, 0),
        before.sharing,
        max(before.mig - instances_asked(table, row, ask), 0),
    )
    for card in placed[0]:
        after.parts[card.index] = 0.0
    for card in placed[1]:
        after.parts[card.index] = part_left(card, int(table.replicas[row]))
    if demand.kind == BEST_FIT:
        return after.worth(demand)
    gain = after.worth(demand) - before.worth(demand)
    return int(100 / (1 + math.exp(-gain))) if demand.kind == FGD else gain


def values(table: Table, row: int, ask: Ask, soft: bool, demand: Demand) -> dict[int | None, float]:
    """The value by card for the first share, where that is chosen by value; under None where it is not."""
    whole, shares = need_on(table, row, ask)
    if not shares or demand.kind not in (D1, FGD):
        return {None: value(table, row, ask, soft, demand, None)}
    cards, replicas = cards_on(table, row, soft), int(table.replicas[row])
    free = [card.index for card in cards if card.free(ask.memory)]
    openable = free[whole : max(len(free) - int(table.opaque[row]), whole)]
    return {
        card.index: value(table, row, ask, soft, demand, card.index)
        for card in cards
        if card.takes(replicas, ask.memory) and (card.index in openable or card.index not in free)
    }


def score(table: Table, rows: Sequence[int], codes: Sequence[int], ask: Ask, demand: Demand) -> list[float]:
    return [
        points(table, row, ask, code == FITS and table.soft[row] > 0, demand) if code <= CONTENDED else 0.0
        for row, code in zip(rows, codes, strict=True)
    ]


def points(table: Table, row: int, ask: Ask, soft: bool, demand: Demand) -> float:
    found = max(values(table, row, ask, soft, demand).values())
    found -= PULL[demand.kind] * int(table.order[row]) / 2**32
    found *= demand.fragmentation
    if demand.mig:
        found += demand.mig * instances_worth(table, row, ask, soft)
    return found + demand.topology * links_worth(table, row, ask, soft)


def shares_worth(table: Table, row: int, ask: Ask, soft: bool, first: int | None) -> float:
    """What of the block that could be given back the pod costs, with its first share on that card."""
    cards = cards_on(table, row, soft)
    if ask.borrowed is None or not cards:
        return 0.0
    free = max(sum(card.free(0) for card in cards) - int(table.opaque[row]), 0)
    part = min(free + int(table.lent[row]), len(cards)) / len(cards)
    whole, shares = need_on(table, row, ask)
    placed = place(table, row, whole, shares, ask.memory, soft, first)
    assert placed is not None
    on = {card.index for card in placed[1]}
    if free + table.lent[row] < len(cards):
        on = {card for card in on if cards[card].free(0)}
    return -(whole + len(on)) * (1 - part if ask.borrowed else part)


def best(codes: Sequence[int], scores: Sequence[float], order: Sequence[int], k: int) -> list[int]:
    able = [at for at, code in enumerate(codes) if code in (FITS, CONTENDED)]
    return sorted(able, key=lambda at: (codes[at], -scores[at], order[at], at))[:k]


def grade(codes: Sequence[int], scores: Sequence[float], ranked: Sequence[int]) -> list[int]:
    if not ranked:
        return [0] * len(codes)
    highest = scores[ranked[0]]
    lowest = min([score for code, score in zip(codes, scores, strict=True) if code == FITS], default=highest)
    grades = []
    for at, (code, points) in enumerate(zip(codes, scores, strict=True)):
        if at == ranked[0]:
            grades.append(10)
        elif code != FITS:
            grades.append(0)
        else:
            grades.append(9 if points >= highest else int(9 * (points - lowest) / (highest - lowest)))
    return grades


def names_json(names: Names, rows: Sequence[int]) -> bytes:
    return compact([names.names[row] for row in rows])


def failures_json(
    names: Names, rows: Sequence[int], codes: Sequence[int], fragments: Sequence[bytes], wanted: int
) -> bytes:
    told = [(row, code) for row, code in zip(rows, codes, strict=True) if 1 << code & wanted]
    return compact({names.names[row]: json.loads(fragments[code]) for row, code in told})


def priorities_json(names: Names, rows: Sequence[int], grades: Sequence[int]) -> bytes:
    graded = zip(rows, grades, strict=True)
    return compact([{"Host": names.names[row], "Score": grade} for row, grade in graded if grade])


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
