"""`bench topology`: do jobs get the best-connected GPUs, on every link matrix that was collected?

The captures of `nvidia-smi topo -m` under tests/data/topo become nodes. First, each mask of free GPUs is
answered and compared with the best of all sets. Then jobs of 1, 2 and 4 GPUs come and go on twelve nodes of one
kind at a time, under each policy with the same arrivals and lots for departures, and what a job of 4 gets is
measured against the best set of 4 that its kind of node has. go-gpuallocator picks GPUs within a node, as the
stock device plugin does: `kvitej and go-gpuallocator` is what happens where that plugin stays, `kvitej` where
the forecast is followed.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from _core import Sets, connect
from bench.report import Measurement, measured
from extender.cluster.topology import Topologies, Topology, topology
from extender.wire.topo import LinkMatrix, TopoError, parse

CASE = "topology"
DATA = Path(__file__).parents[2] / "tests" / "data" / "topo"
NODES = 12
JOBS = 500
SIZES, WEIGHTS = (1, 2, 4), (2, 1, 1)
LOAD = 0.85
BUILDS = 20

Policy = Callable[[Sets, NDArray[np.uint32], int], tuple[int, int] | None]


def run(say: Callable[[str], None], seeds: int = 3, plot: Path | None = None) -> list[Measurement]:
    """All three parts; `plot` is the file for a picture of the second."""
    kinds = _kinds()
    say(f"every mask of {len(kinds)} kinds of nodes")
    found = [_against_best(kinds, k) for k in (2, 4)]
    outcomes: dict[str, list[_Outcome]] = {policy: [] for policy in POLICIES}
    busy = {name: kind for name, kind in kinds.items() if kind.sets.gpus > max(SIZES) // 2}
    for name, kind in busy.items():
        say(f"{seeds} × {JOBS} jobs on {NODES} nodes like {name}")
        for policy, pick in POLICIES.items():
            outcomes[policy].append(_Outcome())
            for seed in range(seeds):
                _play(kind.sets, pick, seed, outcomes[policy][-1])
    found += _compared(outcomes)
    found.append(measured(CASE, "table of 8 GPUs", _build_ms(kinds), "ms", at_most=50))
    if plot is not None:
        _plot(plot, list(busy), outcomes)
        say(f"drew {plot}")
    return found


def captures() -> Iterator[tuple[str, LinkMatrix]]:
    """Each readable capture by its file name."""
    for file in [*sorted(DATA.glob("*.txt")), *sorted(DATA.glob("derived/*.txt"))]:
        try:
            yield file.stem, parse(file.read_text())
        except TopoError:
            continue


def _kinds() -> dict[str, Topology]:
    """The captures without those that differ only in what does not matter here."""
    register = Topologies()
    kinds: dict[str, Topology] = {}
    for name, matrix in captures():
        if register.add(matrix) == len(kinds):
            kinds[name] = register[len(kinds)]
    return kinds


def _against_best(kinds: dict[str, Topology], k: int) -> Measurement:
    least = 1.0
    for kind in kinds.values():
        best = _best_possible(kind.bandwidth, k)
        for mask in np.flatnonzero(best).tolist():
            least = min(least, float(kind.sets.bottleneck[kind.sets.choose(mask, k)] / best[mask]))
    return measured(CASE, f"{k} GPUs, any free mask: worst of achieved ÷ best possible", least, at_least=1)


def _best_possible(bandwidth: NDArray[np.int32], k: int) -> NDArray[np.int32]:
    """By mask, the most that the slowest pair of any k GPUs in it has; every set against every mask."""
    masks = np.arange(1 << len(bandwidth))
    best = np.zeros(len(masks), np.int32)
    for members in itertools.combinations(range(len(bandwidth)), k):
        slowest = min(bandwidth[pair] for pair in itertools.combinations(members, 2))
        inside = sum(1 << member for member in members)
        np.maximum(best, slowest, out=best, where=masks & inside == inside)
    return best


@dataclass
class _Outcome:
    """Of the jobs of 4: bandwidth over the best of the kind for those that sat, and how many found no room."""

    ratios: list[float] = field(default_factory=list)
    turned_away: int = 0


def _play(sets: Sets, policy: Policy, seed: int, outcome: _Outcome) -> None:
    """Jobs come one by one; above the load, running ones leave by lot before the next comes. No job waits."""
    lots, departures = random.Random(seed), random.Random(-1 - seed)
    full = (1 << sets.gpus) - 1
    free = np.full(NODES, full, np.uint32)
    best = sets.bottleneck[sets.choose(full, 4)]
    running: list[tuple[int, int]] = []
    for _ in range(JOBS):
        while _held(running) > LOAD * NODES * sets.gpus:
            node, mask = running.pop(departures.randrange(len(running)))
            free[node] |= mask
        size = lots.choices(SIZES, WEIGHTS)[0]
        seat = policy(sets, free, size)
        if seat is not None:
            node, mask = seat
            free[node] ^= mask
            running.append(seat)
        if size == 4:
            if seat is None:
                outcome.turned_away += 1
            else:
                outcome.ratios.append(float(sets.bottleneck[seat[1]] / best))


def _held(running: list[tuple[int, int]]) -> int:
    return sum(mask.bit_count() for _, mask in running)


def _first_fit(sets: Sets, free: NDArray[np.uint32], k: int) -> tuple[int, int] | None:
    return next(
        ((node, _lowest(mask, k)) for node, mask in enumerate(free.tolist()) if mask.bit_count() >= k), None
    )


def _best_fit_node(free: NDArray[np.uint32], k: int) -> int | None:
    fitting = [(mask.bit_count(), node) for node, mask in enumerate(free.tolist()) if mask.bit_count() >= k]
    return min(fitting)[1] if fitting else None


def _best_fit(sets: Sets, free: NDArray[np.uint32], k: int) -> tuple[int, int] | None:
    node = _best_fit_node(free, k)
    return None if node is None else (node, _lowest(int(free[node]), k))


def _plugin(sets: Sets, free: NDArray[np.uint32], k: int) -> tuple[int, int] | None:
    node = _best_fit_node(free, k)
    return None if node is None else (node, sets.allocator.choose(int(free[node]), k))


def _kvitej(sets: Sets, free: NDArray[np.uint32], k: int, plugin: bool = False) -> tuple[int, int] | None:
    """The node with the highest score, of several the one with the fewest free GPUs."""
    at, offer = np.zeros(NODES, np.int32), np.zeros(1, np.int32)
    chosen, score, _ = connect([sets], at, free, k, offer, plugin)
    node = int(np.lexsort((np.bitwise_count(free), -score, chosen == 0))[0])
    return (node, int(chosen[node])) if chosen[node] else None


def _kvitej_node(sets: Sets, free: NDArray[np.uint32], k: int) -> tuple[int, int] | None:
    return _kvitej(sets, free, k, plugin=True)


def _lowest(mask: int, k: int) -> int:
    return sum(1 << bit for bit in [bit for bit in range(mask.bit_length()) if mask >> bit & 1][:k])


OURS = "kvitej"
RIVALS: dict[str, Policy] = {
    "first fit": _first_fit,
    "best fit": _best_fit,
    "best fit and go-gpuallocator": _plugin,
}
POLICIES = RIVALS | {f"{OURS} and go-gpuallocator": _kvitej_node, OURS: _kvitej}


def _compared(outcomes: dict[str, list[_Outcome]]) -> list[Measurement]:
    means = {policy: _mean(of_kinds) for policy, of_kinds in outcomes.items()}
    found = []
    for policy, of_kinds in outcomes.items():
        goal = max(means[rival] for rival in RIVALS) if policy == OURS else None
        found.append(
            measured(CASE, f"4-GPU jobs, {policy}: mean of achieved ÷ best", means[policy], at_least=goal)
        )
        sat = sum(len(outcome.ratios) for outcome in of_kinds)
        away = sum(outcome.turned_away for outcome in of_kinds)
        found.append(measured(CASE, f"4-GPU jobs, {policy}: turned away", 100 * away / (sat + away), "%"))
    return found


def _mean(of_kinds: list[_Outcome]) -> float:
    return statistics.mean(statistics.mean(outcome.ratios) for outcome in of_kinds)


def _build_ms(kinds: dict[str, Topology]) -> float:
    """The slowest of the kinds with 8 GPUs, each by its median over some builds, bandwidths included."""
    medians = []
    for kind in kinds.values():
        if kind.sets.gpus == 8:
            times = []
            for _ in range(BUILDS):
                begun = time.perf_counter()
                topology(kind.matrix)
                times.append(time.perf_counter() - begun)
            medians.append(statistics.median(times))
    return 1e3 * max(medians)


def _plot(file: Path, names: list[str], outcomes: dict[str, list[_Outcome]]) -> None:
    """One group of bars per kind of node on which policies differ; matplotlib is loaded for this alone."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 6), layout="constrained")
    means = {
        policy: [statistics.mean(each.ratios) for each in of_kinds] for policy, of_kinds in outcomes.items()
    }
    told = [kind for kind in range(len(names)) if len({of_kinds[kind] for of_kinds in means.values()}) > 1]
    height = 0.8 / len(outcomes)
    for i, (policy, of_kinds) in enumerate(means.items()):
        at = [place + i * height for place in range(len(told))]
        axes.barh(at, [of_kinds[kind] for kind in told], height, label=policy)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(told))], [names[kind] for kind in told])
    axes.invert_yaxis()
    axes.set_xlabel("bandwidth of the slowest pair of a 4-GPU job ÷ best of the kind")
    figure.legend(loc="outside upper center", ncols=3)
    figure.savefig(file)
