"""What the MIG kernels mean, in plain Python: one card, one instance, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence

from _core import CONTENDED, FITS, Ask, Slices, Table

INSTANCE = 2


def place_dynamic(
    slices: Slices, cards: Sequence[int], profiles: Sequence[int]
) -> tuple[list[int], list[int], int]:
    """(cards, starts, score) of one row."""
    occupied, chosen, starts, total = list(cards), [], [], 0
    for profile in profiles:
        possible = [
            card
            for card, occupancy in enumerate(occupied)
            if 0 <= occupancy < slices.occupancies and slices.starts[profile, occupancy] >= 0
        ]
        if not possible:
            return [-1] * len(profiles), [-1] * len(profiles), 0
        card = max(possible, key=lambda card: (slices.scores[profile, occupied[card]], -card))
        chosen.append(card)
        starts.append(int(slices.starts[profile, occupied[card]]))
        total += int(slices.scores[profile, occupied[card]])
        occupied[card] = int(slices.after[profile, occupied[card]])
    return chosen, starts, total


def replay_dynamic(
    slices: Slices, cards: Sequence[int], profiles: Sequence[int], events: Sequence[int]
) -> tuple[list[int], list[int]]:
    """(occupancies at the end, card of each request), through `place_dynamic`."""
    occupied, held = list(cards), {}
    chosen = [-1] * len(profiles)
    for event in events:
        if event >= 0:
            (card,), _, _ = place_dynamic(slices, occupied, [profiles[event]])
            chosen[event] = card
            if card >= 0:
                after = int(slices.after[profiles[event], occupied[card]])
                held[event] = card, after - occupied[card]
                occupied[card] = after
        elif -1 - event in held:
            card, bits = held.pop(-1 - event)
            occupied[card] -= bits
    return occupied, chosen


def score_static(
    table: Table, rows: Sequence[int], codes: Sequence[int], ask: Ask, weights: Sequence[int]
) -> list[int]:
    return [
        _static(table, row, ask, weights, code == FITS and table.soft[row] > 0)
        if code in (FITS, CONTENDED)
        else 0
        for row, code in zip(rows, codes, strict=True)
    ]


def _static(table: Table, row: int, ask: Ask, weights: Sequence[int], soft: bool) -> int:
    wanted = dict(zip(ask.resources.tolist(), ask.counts.tolist(), strict=True))
    total = free = left = 0
    for kind, weight in enumerate(weights):
        if kind == ask.gpu_id:
            weight = 1000 if table.mode[row] == INSTANCE else 0
        offered = int(table.allocatable[row, kind])
        used = int(table.used[row, kind]) + (int(table.used_soft[row, kind]) if soft else 0)
        unused = max(offered - used, 0)
        total += weight * offered
        free += weight * unused
        left += weight * (unused - wanted.get(kind, 0))
    if not total:
        return 0
    return -(10 * max(left, 0) // total) - (10 if free == total else 0)
