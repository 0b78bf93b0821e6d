"""What each kernel means, in plain Python: one row, one card, one share at a time, and no thought for speed.

The twins follow the written rules, not the kernels' code: a seat is found by placing share after share, a ranking
by sorting, an answer by the json module.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from _core import (
    CLOSED,
    CONTENDED,
    FITS,
    LACKING,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    MEMORY_UNKNOWN,
    TAKEN,
    UNKNOWN,
    Ask,
    Table,
)

VACANT, REPLICA, INSTANCE = 1, 1, 2
MOST_LEFT = 2**40


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

    def free(self, declared: int) -> bool:
        return self.owners == 0 and self.shares == 0 and self.memory >= declared

    def cost(self, replicas: int, declared: int) -> int:
        return max(declared, self.memory // replicas) if self.memory else 0

    def takes(self, replicas: int, declared: int) -> bool:
        if self.owners or self.shares >= replicas or self.memory < declared:
            return False
        cost = self.cost(replicas, declared)
        return cost == 0 or self.left >= cost

    def take(self, replicas: int, declared: int) -> None:
        self.left -= self.cost(replicas, declared)
        self.shares += 1


def cards_on(table: Table, row: int, soft: bool) -> list[Card]:
    return [
        Card(
            index=card,
            memory=int(table.memory[row, card]),
            left=int(
                table.memory[row, card] - table.memory_used[row, card] - soft * table.memory_soft[row, card]
            ),
            shares=int(table.shares[row, card] + soft * table.shares_soft[row, card]),
            owners=int(table.exclusive[row, card] + soft * table.exclusive_soft[row, card]),
        )
        for card in range(min(int(table.cards[row]), table.memory.shape[1]))
    ]


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
    table: Table, row: int, whole: int, shares: int, declared: int, soft: bool
) -> tuple[list[Card], list[Card], list[int]] | None:
    """Whole cards, share cards (one per share) and opened cards; None if they do not fit."""
    cards, replicas = cards_on(table, row, soft), int(table.replicas[row])
    free = [card for card in cards if card.free(declared)]
    known_free = len(free) - int(table.opaque[row])
    if whole and known_free < whole:
        return None
    fresh = free[whole : max(known_free, whole)]
    shared = [card for card in cards if card.shares > 0]
    seats, opened = [], []
    for _ in range(shares):
        candidates = [card for card in shared if card.takes(replicas, declared)]
        if candidates:
            seat = min(candidates, key=lambda card: preference(card, replicas, declared))
        else:
            openable = [card for card in fresh if card not in shared and card.takes(replicas, declared)]
            if not openable:
                return None
            seat = openable[0]
            shared.append(seat)
            opened.append(seat.index)
        seat.take(replicas, declared)
        seats.append(seat)
    return free[:whole], seats, opened


def preference(card: Card, replicas: int, declared: int) -> tuple[bool, int, int]:
    left = card.left - card.cost(replicas, declared) if card.memory else replicas - card.shares
    return card.memory == 0, left, card.index


def judge(table: Table, row: int, ask: Ask, soft: bool) -> int:
    if table.state[row] != 0:
        return UNKNOWN if table.state[row] == VACANT else CLOSED
    if any(table.allocatable[row, kind] < count for kind, count in asked(ask)):
        return LACKING
    whole, shares = need_on(table, row, ask)
    cards = cards_on(table, row, soft)
    if whole > len(cards) or (shares and (not cards or table.replicas[row] <= 0)):
        return LACKING
    if (whole or shares) and ask.memory:
        if not any(card.memory for card in cards):
            return MEMORY_UNKNOWN
        if sum(card.memory >= ask.memory for card in cards) < max(whole, 1):
            return MEMORY_TOO_SMALL
    if any(left_of(table, row, kind, soft) < count for kind, count in asked(ask)):
        return TAKEN
    if (whole or shares) and sum(card.free(0) for card in cards) < table.opaque[row]:
        return TAKEN
    if place(table, row, whole, shares, ask.memory, soft) is not None:
        return FITS
    if place(table, row, whole, 0, ask.memory, soft) is None:
        return TAKEN
    if ask.memory and place(table, row, whole, shares, 0, soft) is not None:
        return MEMORY_TAKEN
    return TAKEN


def fit(table: Table, rows: Sequence[int], ask: Ask) -> list[int]:
    codes = []
    for row in rows:
        code = judge(table, row, ask, soft=False)
        if code == FITS and table.soft[row] > 0 and judge(table, row, ask, soft=True) != FITS:
            code = CONTENDED
        codes.append(code)
    return codes


def seat(table: Table, row: int, ask: Ask, soft: bool) -> tuple[list[int], list[int]]:
    if judge(table, row, ask, soft) != FITS:
        raise ValueError(row)
    placed = place(table, row, *need_on(table, row, ask), ask.memory, soft)
    assert placed is not None
    return [card.index for card in placed[0]], [card.index for card in placed[1]]


def score(table: Table, rows: Sequence[int], codes: Sequence[int], ask: Ask) -> list[int]:
    return [
        -waste(table, row, ask, soft=code == FITS and table.soft[row] > 0) if code <= CONTENDED else 0
        for row, code in zip(rows, codes, strict=True)
    ]


def waste(table: Table, row: int, ask: Ask, soft: bool) -> int:
    need = need_on(table, row, ask)
    placed = place(table, row, *need, ask.memory, soft)
    assert placed is not None
    whole, seats, opened = placed
    free = sum(card.free(0) for card in cards_on(table, row, soft))
    free_left = free - int(table.opaque[row]) - len(whole) - len(opened)
    total = 1000 * free_left if whole else 0
    if seats:
        last, replicas = seats[-1], int(table.replicas[row])
        left, size = (max(last.left, 0), last.memory) if last.memory else (replicas - last.shares, replicas)
        total += 1000 * left // size
    if opened:
        total += 1000 + 1000 * free_left
    for kind, count in asked(ask):
        if kind != ask.shared_id and (kind != ask.gpu_id or table.mode[row] == INSTANCE):
            total += 1000 * min(left_of(table, row, kind, soft) - count, MOST_LEFT)
    return total


def best(codes: Sequence[int], scores: Sequence[int], order: Sequence[int], k: int) -> list[int]:
    able = [at for at, code in enumerate(codes) if code in (FITS, CONTENDED)]
    return sorted(able, key=lambda at: (codes[at], -scores[at], order[at], at))[:k]


def grade(codes: Sequence[int], scores: Sequence[int], ranked: Sequence[int]) -> list[int]:
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
            grades.append(9 if points >= highest else 9 * (points - lowest) // (highest - lowest))
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
