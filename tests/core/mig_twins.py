"""What the MIG kernels mean, in plain Python: one card, one instance, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence

from _core import Slices


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
