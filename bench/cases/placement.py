"""`bench placement`: GPUs that stay unused when openb's pods fill openb's nodes, under ours and the published scores.

Three questions, all through the product's kernels (`bench.fill`): how much is left when pods only come, how much demand
is lost when they also leave, and how fast the demand mix should forget. FGD, best fit and first fit break ties by node
name, as they were published; ours orders nodes by the hash of their name. Without `--traces` that is an order by chance
of the same nodes.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import openb
from bench.fill import Cluster, Workload, replayed, shape_of
from bench.openb import PodShape
from bench.report import Measurement, measured
from extender.cluster.mix import HALF_LIFE, Mix

CASE = "placement"
FIRST_SEED = 42
SEEDS = 10
SAMPLED = 497
"""Nodes that kube-scheduler looks at of 1,213 by default."""
MARKS = (100, 130)

CHURN_NODES = 10
"""Every so many nodes are in the smaller cluster, for pods that leave."""
CHURN_SEEDS = range(201, 241)
HALF_LIVES = (60, 125, 500, HALF_LIFE, 8_000, math.inf)
SHIFT_SEEDS = range(301, 317)
SHIFT = 1.0
"""Mean lifetimes for which the demand keeps its kind."""


@dataclass(frozen=True)
class Policy:
    """A score, and how it is put to use; `at_most` is promised of it on the default trace."""

    score: str
    learn: bool = False
    as_prioritized: bool = False
    by_name: bool = False
    at_most: float | None = None

    def play(
        self, cluster: Cluster, workload: Workload, listed: Sequence[PodShape], seed: int
    ) -> NDArray[np.bool_]:
        """Which pods were placed."""
        return replayed(
            cluster,
            workload,
            self.score,
            mix=Mix() if self.learn else known(listed),
            learn=self.learn,
            sample=min(SAMPLED, len(cluster.nodes)) if self.as_prioritized else 0,
            graded=self.as_prioritized,
            random_ties=self.as_prioritized,
            by_name=self.by_name,
            seed=seed,
        )


POLICIES = {
    "d1": Policy("d1", at_most=4.25),
    "d1, mix learned": Policy("d1", learn=True, at_most=4.30),
    f"d1, mix learned, 0..10 on {SAMPLED} nodes": Policy("d1", learn=True, as_prioritized=True, at_most=4.35),
    "p1": Policy("p1"),
    "fgd": Policy("fgd", by_name=True),
    "best fit": Policy("bestfit", by_name=True),
    "first fit": Policy("firstfit", by_name=True),
}
OURS = "d1, mix learned"


def run(
    say: Callable[[str], None],
    *,
    traces: Path | None = None,
    trace: Sequence[str] = (),
    seeds: int = SEEDS,
    score: str | None = None,
    plot: Path | None = None,
) -> list[Measurement]:
    """Fill with each of the `trace` lists in the folder `traces` (none named: all there; no folder: the default list).

    `score` plays one score only, and nothing beside; with `plot`, draw the fill of the first trace into that file.
    """
    policies = {name: policy for name, policy in POLICIES.items() if score in (None, policy.score)}
    cluster = Cluster(openb.nodes_from(traces) if traces else shuffled_nodes())
    found: list[Measurement] = []
    for at, name in enumerate(trace or (openb.traces_in(traces) if traces else ("default",))):
        listed = openb.pods_from(traces, name) if traces else openb.pods(FIRST_SEED)
        filled = fills(cluster, listed, range(FIRST_SEED, FIRST_SEED + seeds), policies, say, name)
        found += _left(name, filled, policies)
        if plot is not None and at == 0:
            _draw(name, filled, plot)
            say(f"wrote {plot}")
    if score is None:
        small = Cluster(cluster.nodes[::CHURN_NODES])
        listed = openb.pods_from(traces) if traces else openb.pods(FIRST_SEED)
        found += _churn(small, listed, say)
        found += _half_lives(small, listed, say)
    return found


def known(listed: Sequence[PodShape]) -> Mix:
    """The mix of all pods of a list, none forgotten."""
    mix = Mix(half_life=math.inf)
    for pod in listed:
        mix.observe(shape_of(pod))
    return mix


Filled = dict[str, NDArray[np.float64]]
"""Per policy, per cent of the GPUs that are not allocated [seeds, per cent of demand that has come]."""


def fills(
    cluster: Cluster,
    listed: Sequence[PodShape],
    seeds: Sequence[int],
    policies: dict[str, Policy],
    say: Callable[[str], None],
    name: str = "default",
) -> Filled:
    """Pods that stay, by policy."""
    workloads = [Workload.filling(listed, cluster.gpus, seed) for seed in seeds]
    found = {}
    for label, policy in policies.items():
        say(f"{name}: filling {len(cluster.nodes):,} nodes, {len(seeds)} seeds, {label}")
        found[label] = np.array(
            [
                _unallocated(cluster, workload, policy.play(cluster, workload, listed, seed))
                for workload, seed in zip(workloads, seeds, strict=True)
            ]
        )
    return found


def _unallocated(cluster: Cluster, workload: Workload, placed: NDArray[np.bool_]) -> NDArray[np.float64]:
    came = np.cumsum(workload.gpus)
    allocated = np.cumsum(workload.gpus * placed)
    marks = cluster.gpus * np.arange(MARKS[-1] + 1) / 100
    at = np.minimum(np.searchsorted(came, marks), len(came) - 1)
    return np.asarray(100 * (1 - allocated[at] / cluster.gpus))


def _left(trace: str, filled: Filled, policies: dict[str, Policy]) -> list[Measurement]:
    published = _published().get(trace)
    found = []
    for label, values in filled.items():
        for mark in MARKS:
            goal = policies[label].at_most if (mark, trace) == (100, "default") else None
            if (mark, label) == (100, OURS) and goal is None:
                goal = published
            metric = f"{trace}: not allocated at {mark} % of demand, {label}"
            found.append(measured(CASE, metric, float(values[:, mark].mean()), "% of GPUs", at_most=goal))
    if published is not None:
        metric = f"{trace}: not allocated at 100 % of demand, fgd as published"
        found.append(measured(CASE, metric, published, "% of GPUs"))
    return found


def _published() -> dict[str, float]:
    with open(openb.DATA / "fgd_published.csv", newline="") as file:
        return {row["trace"]: float(row["unallocated"]) for row in csv.DictReader(file)}


def _churn(cluster: Cluster, listed: Sequence[PodShape], say: Callable[[str], None]) -> list[Measurement]:
    """Pods that come and go: GPU demand lost, and what ours loses less than FGD with the same pods."""
    by_policy: dict[str, list[float]] = {}
    mean = float(np.mean([pod.gpu_units for pod in listed]))
    say(f"pods that leave: {len(cluster.nodes)} nodes, {cluster.gpus} GPUs, {len(CHURN_SEEDS)} seeds")
    for seed in CHURN_SEEDS:
        workload = Workload.departing(
            lambda chance, _: chance.choice(listed), cluster.gpus, seed, mean_gpus=mean
        )
        for label in ("fgd", "d1", OURS, "p1", "best fit", "first fit"):
            placed = POLICIES[label].play(cluster, workload, listed, seed)
            by_policy.setdefault(label, []).append(lost(workload, placed))
    found = [
        measured(CASE, f"pods leave: lost, {label}", float(np.mean(values)), "% of GPU demand")
        for label, values in by_policy.items()
    ]
    return found + [
        _paired(f"pods leave: {label} − fgd", np.subtract(by_policy[label], by_policy["fgd"]), at_most=0.0)
        for label in ("d1", OURS)
    ]


def _half_lives(
    cluster: Cluster, listed: Sequence[PodShape], say: Callable[[str], None]
) -> list[Measurement]:
    """How fast the mix should forget when demand turns between shares and whole cards and back."""
    shares = [pod for pod in listed if pod.shares]
    whole = [pod for pod in listed if not pod.shares]
    part = {True: 0.85, False: 0.1}

    def draw(chance: random.Random, now: float) -> PodShape:
        return chance.choice(shares if chance.random() < part[now // SHIFT % 2 == 1] else whole)

    mean = np.mean(list(part.values())) * np.mean([pod.gpu_units for pod in shares])
    mean += (1 - np.mean(list(part.values()))) * np.mean([pod.gpu_units for pod in whole])
    say(f"demand that turns: {len(HALF_LIVES)} half-lives, {len(SHIFT_SEEDS)} seeds")
    by_half_life: dict[float, list[float]] = {half_life: [] for half_life in HALF_LIVES}
    for seed in SHIFT_SEEDS:
        workload = Workload.departing(draw, cluster.gpus, seed, mean_gpus=float(mean), until=11.0)
        for half_life in HALF_LIVES:
            placed = replayed(cluster, workload, "d1", mix=Mix(half_life), learn=True, seed=seed)
            by_half_life[half_life].append(lost(workload, placed))
    found = []
    for half_life, values in by_half_life.items():
        label = f"half-life {half_life:,.0f} pods" if half_life < math.inf else "nothing forgotten"
        found.append(
            measured(CASE, f"demand turns: lost, {label}", float(np.mean(values)), "% of GPU demand")
        )
        if half_life != HALF_LIFE:
            against = np.subtract(values, by_half_life[HALF_LIFE])
            found.append(_paired(f"demand turns: {label} − {HALF_LIFE:,.0f} pods", against))
    return found


def lost(workload: Workload, placed: NDArray[np.bool_]) -> float:
    """Per cent of the GPU demand that was measured."""
    came = workload.gpus * workload.measured
    return 100 * float((came * ~placed).sum() / came.sum())


def _paired(metric: str, values: NDArray[np.float64], at_most: float | None = None) -> Measurement:
    """The mean of differences over seeds, with half of its 95 % interval."""
    half = 2 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return measured(CASE, f"{metric} ± {half:.2f}", float(values.mean()), "points", at_most=at_most)


def shuffled_nodes() -> list[openb.NodeShape]:
    """The nodes of openb in an order by chance, always the same: their real one mixes kinds, too."""
    nodes = openb.nodes()
    random.Random(0).shuffle(nodes)
    return nodes


def _draw(trace: str, filled: Filled, plot: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    marks = np.arange(85, MARKS[-1] + 1)
    for label, values in filled.items():
        axes.plot(marks, values[:, marks].mean(axis=0), label=label)
    axes.set_xlabel("GPU demand that has come, % of the GPUs")
    axes.set_ylabel("GPUs not allocated, %")
    axes.set_title(f"openb, {trace}: mean of {len(next(iter(filled.values())))} seeds")
    axes.legend(fontsize="small")
    figure.savefig(plot)
    plt.close(figure)
