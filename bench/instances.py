"""MIG instances that exist before anyone asks, as the stock device plugin advertises them: 25 nodes of 4 cards.

The cards are cut for the mix by filling them with it once. A request takes an instance of exactly its profile, so what
is lost does not depend on the score; how many nodes stay quite empty, and could be cut anew or drained, does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from _core import Ask, Hardware, Table, best, fit, score_static
from bench.pool import CARDS, GEOMETRY, WARM_UP, Requests, fill, known, lost, requests
from extender.cluster.columns import OPEN, Columns
from extender.cluster.hardware import Kinds

PER_NODE = 4
KINDS = {profile.resources[0]: kind for kind, profile in enumerate(GEOMETRY.profiles)}
HARDWARE: Hardware = Kinds().hardware(KINDS, len(KINDS))
ASKS = [Ask(np.array([kind], np.int32), np.ones(1, np.int64), 0, 0, 0) for kind in range(len(KINDS))]

Score = Callable[[Table, NDArray[np.int32], NDArray[np.int8], Ask], NDArray[np.float64]]
SCORES: Mapping[str, Score] = {
    "kvitej": lambda table, rows, codes, ask: score_static(table, rows, codes, ask).astype(np.float64),
    "fewest of the profile left": lambda table, rows, codes, ask: (table.used - table.allocatable)[
        rows, ask.resources[0]
    ].astype(np.float64),
    "first fit": lambda table, rows, codes, ask: np.zeros(len(rows)),
}


def play(mix: str, seed: int, count: int, load: float, scorer: Score) -> tuple[float, float]:
    """(compute slices lost, nodes quite empty), each in per cent, the latter over time."""
    played = requests(mix, seed, count, load)
    columns = _cut(mix, seed)
    table = columns.table
    nodes = CARDS // PER_NODE
    rows = np.arange(nodes, dtype=np.int32)
    order, used = table.order[:nodes], columns.used[:nodes]
    held, empty, span = np.full(count, -1, np.int32), 0.0, 0.0
    for event, lasted, now in _spans(played):
        if event >= 0:
            ask = ASKS[played.profiles[event]]
            codes = fit(table, rows, ask)
            found = best(codes, scorer(table, rows, codes, ask), order, 1)
            if len(found):
                held[event] = found[0]
                used[found[0], played.profiles[event]] += 1
        elif held[-1 - event] >= 0:
            used[held[-1 - event], played.profiles[-1 - event]] -= 1
        if now >= WARM_UP:
            empty += lasted * int((used.sum(axis=1) == 0).sum())
            span += lasted
    return lost(played, held, WARM_UP), 100 * empty / span / nodes


def _spans(played: Requests) -> list[tuple[int, float, float]]:
    """The events up to the last arrival, with how long the pool then stays as it is, and when they happen."""
    last = int(np.flatnonzero(played.events == len(played.profiles) - 1)[0])
    events = played.events[: last + 1]
    arrivals = np.flatnonzero(events >= 0)
    times = np.interp(np.arange(len(events)), arrivals, played.arrived)
    return list(zip(events.tolist(), np.diff(times, append=times[-1]).tolist(), times.tolist(), strict=True))


def _cut(mix: str, seed: int) -> Columns:
    nodes = CARDS // PER_NODE
    columns = Columns(nodes, 1, len(KINDS))
    columns.equip(HARDWARE)
    columns.state[:nodes] = OPEN
    columns.order[:nodes] = np.arange(nodes)
    filled = fill(mix, seed)
    chosen = known(filled)
    placed = chosen >= 0
    np.add.at(columns.allocatable, (chosen[placed] // PER_NODE, filled.profiles[placed]), 1)
    return columns
