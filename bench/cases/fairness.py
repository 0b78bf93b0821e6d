"""`bench fairness`: six ways to share one pool among training, inference and research, on one load in virtual time.

What `bench.tenants` offers to a tenth of openb is played to the product's planner, under the policy of the README, and
to five usual policies; placement is the product's for all. Pods wait, run and are evicted; an evicted one begins anew.
`--seeds 5 --days 30` plays the months that the figures are promised for, 550,000 pods each, which takes hours; the
default plays the same seeds for their first Monday, the peak of training in it, in less than ten minutes on two cores.
Each policy and seed is played in a process of its own, on all cores.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import tenants
from bench.ours import Ours
from bench.policies import POLICIES
from bench.report import Measurement, measured
from bench.tenants import DAY, HOUR, TENANTS
from bench.virtual import Pool, Scheduler, Tally
from extender.cluster.mix import EVEN
from extender.fairness.policy import Policy

CASE = "fairness"
SEEDS = 5
DAYS = 1.0
WARM_UP = HOUR
MIN_RUNTIME, WAIT_TARGET = 300.0, 120.0
"""Seconds that preemptible work runs before it is asked back, and that pods should not wait longer than."""
OURS = "kvitej"
WITHOUT = "kvitej without the fair-share kernel"
STRICT = "strict priority with preemption"
NO_EVICTION = ("first come first served", "round robin with priority classes", "dominant share (DRF)")
INFERENCE = 0


def run(
    say: Callable[[str], None],
    *,
    seeds: int = SEEDS,
    days: float = DAYS,
    only: Sequence[str] = (),
    plot: Path | None = None,
) -> list[Measurement]:
    """Play `days` days under each policy, or those of the names `only`; with `plot`, draw the waits into that file."""
    names = [name for name in _policies() if not only or name in only]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as processes:
        playing = {
            name: [processes.submit(_play, name, days, seed) for seed in range(1, seeds + 1)]
            for name in names
        }
        found = {}
        try:
            for name, tallies in playing.items():
                found[name] = played([tally.result() for tally in tallies], days)
                say(f"{name}: {seeds} seeds, {days:g} days")
        except BaseException:
            processes.shutdown(cancel_futures=True)
            raise
    if plot is not None:
        _draw(found, plot)
        say(f"wrote {plot}")
    return [each for name, result in found.items() for each in _told(name, result)] + goals(found)


def ruled() -> Policy:
    """The README's policy, with a wait target, and a minimum runtime for what may be evicted."""
    policy = tenants.policy()
    return dataclasses.replace(
        policy,
        tenants=tuple(
            dataclasses.replace(
                each, wait_target=WAIT_TARGET, min_runtime=MIN_RUNTIME if each.preemptible else 0.0
            )
            for each in policy.tenants
        ),
    )


def make_ours(pool: Pool) -> Scheduler:
    return Ours(pool, ruled())


def _policies() -> dict[str, Callable[[Pool], Scheduler]]:
    return {OURS: make_ours, WITHOUT: make_ours, **POLICIES}


@dataclass(frozen=True)
class Played:
    """Of all seeds together; by tenant: waits in seconds, evictions a day, and the part of the pool held or lost."""

    waits: Sequence[NDArray[np.float64]]
    evictions: Sequence[float]
    held: Sequence[float]
    lost: Sequence[float]
    victims: float

    @property
    def used(self) -> float:
        """The part of the GPUs in use."""
        return sum(self.held)

    def wait(self, tenant: int, percent: float) -> float:
        waits = self.waits[tenant]
        return float(np.percentile(waits, percent)) if len(waits) else math.nan


def _play(name: str, days: float, seed: int) -> Tally:
    nodes = tenants.nodes()
    scales = EVEN._replace(shares=0.0) if name == WITHOUT else EVEN
    pool = Pool(tenants.load(sum(node.gpu for node in nodes), days, seed), nodes, WARM_UP, scales)
    return pool.play(_policies()[name](pool))


def played(tallies: Sequence[Tally], days: float) -> Played:
    """One tally a seed."""
    gpus = sum(node.gpu for node in tenants.nodes())
    span = len(tallies) * (days * DAY - WARM_UP)
    owner = np.repeat(np.arange(len(TENANTS)), [len(tenants.shapes_of(each.qos)[0]) for each in TENANTS])
    reclaims = sum(tally.reclaims for tally in tallies)

    def total(amounts: Callable[[Tally], Sequence[float]]) -> list[float]:
        return [
            sum(float(np.array(amounts(tally))[owner == tenant].sum()) for tally in tallies) / span
            for tenant in range(len(TENANTS))
        ]

    def waits(tenant: int) -> NDArray[np.float64]:
        shapes = np.flatnonzero(owner == tenant).tolist()
        return np.array([wait for tally in tallies for shape in shapes for wait in tally.waits[shape]])

    return Played(
        [waits(tenant) for tenant in range(len(TENANTS))],
        [DAY * count for count in total(lambda tally: tally.evictions)],
        [held / gpus for held in total(lambda tally: tally.held)],
        [lost / gpus for lost in total(lambda tally: tally.lost)],
        sum(tally.victims for tally in tallies) / reclaims if reclaims else math.nan,
    )


def _told(name: str, result: Played) -> list[Measurement]:
    found = [measured(CASE, f"GPUs in use, {name}", 100 * result.used, "%")]
    for tenant, each in enumerate(TENANTS):
        found += [
            measured(CASE, f"{each.name} has, {name}", 100 * result.held[tenant], "% of GPUs"),
            measured(CASE, f"{each.name} waits, mean, {name}", float(result.waits[tenant].mean()), "s"),
            measured(CASE, f"{each.name} waits, p99, {name}", result.wait(tenant, 99), "s"),
        ]
    if any(result.evictions):
        found += [
            measured(CASE, f"evictions, {name}", sum(result.evictions), "a day"),
            measured(CASE, f"victims a reclaim, {name}", result.victims, "pods"),
            measured(CASE, f"work lost to evictions, {name}", 100 * sum(result.lost), "% of GPUs"),
        ]
    return found


def goals(found: Mapping[str, Played]) -> list[Measurement]:
    """What is promised of ours beside the others that were played."""
    if OURS not in found:
        return []
    ours = found[OURS]
    p99 = {name: result.wait(INFERENCE, 99) for name, result in found.items()}
    goals = [measured(CASE, "evictions of inference", ours.evictions[INFERENCE], "a day", at_most=0)]
    goals += [
        measured(CASE, f"inference waits, p99 ÷ {name}", _over(p99[OURS], p99[name]), "×", at_most=0.5)
        for name in NO_EVICTION
        if name in found
    ]
    if STRICT in found:
        strict = found[STRICT]
        more = p99[OURS] - p99[STRICT]
        fewer = _over(sum(ours.evictions), sum(strict.evictions))
        goals += [
            measured(CASE, "inference waits, p99 − strict priority", more, "s", at_most=MIN_RUNTIME),
            measured(CASE, "evictions ÷ strict priority", fewer, "×", at_most=0.2),
        ]
    if WITHOUT in found:
        victims = _over(ours.victims, found[WITHOUT].victims)
        goals.append(
            measured(CASE, "victims a reclaim, with ÷ without the kernel", victims, "×", at_most=0.9)
        )
    best = max(result.used for result in found.values())
    goals.append(measured(CASE, "GPUs in use, best − kvitej", 100 * (best - ours.used), "points", at_most=1))
    return goals


def _over(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)


def _draw(found: Mapping[str, Played], plot: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TENANTS), figsize=(12, 4), layout="constrained", sharey=True)
    for tenant, (each, panel) in enumerate(zip(TENANTS, axes, strict=True)):
        for name, result in found.items():
            waits = np.sort(result.waits[tenant])[::-1]
            panel.plot(np.maximum(waits, 1.0), (np.arange(len(waits)) + 1) / len(waits), label=name)
        panel.set(xscale="log", yscale="log", xlabel="seconds", title=each.name)
    axes[0].set_ylabel("part of the pods that wait longer")
    axes[0].legend(fontsize="x-small")
    figure.savefig(plot)
    plt.close(figure)
