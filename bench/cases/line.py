"""`bench line`: what holds do for big jobs in a full cluster, through the product's planner in virtual time.

Pods of openb's default list come at random times to a tenth of its nodes, stay for exponential lifetimes and offer
93 % of the GPUs; nothing is lost, all wait. Once as the planner does it, once without holds; and both once more where
a third of the pods that are there at the beginning live for ever. Then few nodes can be freed for a job of 8 GPUs, and
none for those that need 640 GB of memory or more, which wait to the end whatever the rule: they are the longest
hundredth of the waits, so no more is asked of that than not to be longer. What holds are worth there, the means tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bench import tenants
from bench.ours import Ours
from bench.report import Measurement, measured
from bench.tenants import Load, Tenant
from bench.virtual import Pool, Scheduler
from extender.fairness.policy import Policy
from extender.fairness.policy import Tenant as Owner

CASE = "line"
SEEDS = 3
"""One has a hundred jobs of 8 GPUs or so: its p99 is that of the one or two that wait longest."""
OFFERED = 0.93
LIFE = tenants.HOUR
"""The mean lifetime in seconds; waits are told in these."""
WARM_UP, UNTIL = 6.0, 36.0
HOLD_AFTER = 0.2
LASTING = 1 / 3
ALL = Tenant("all", "", OFFERED, preemptible=True)
SIZES = {"shares": (0.0, 0.999), "1 GPU": (1, 1), "2–7 GPUs": (2, 7), "8 GPUs": (8, 8)}
BIG = "8 GPUs"


def run(say: Callable[[str], None], *, seeds: int = SEEDS, until: float = UNTIL) -> list[Measurement]:
    """Play `until` mean lifetimes with each rule."""
    found: list[Measurement] = []
    for lasting in (0.0, LASTING):
        what = "a third lasts for ever" if lasting else "all end"
        say(f"{what}: {seeds} seeds, {until:g} lifetimes, with holds and without")
        used, big = {}, {}
        for rule, after in (("holds", HOLD_AFTER * LIFE), ("no holds", math.inf)):
            used[rule], waits = played(seeds, until, lasting, after)
            found.append(measured(CASE, f"{what}: GPUs in use, {rule}", used[rule], "%"))
            for size, each in waits.items():
                found += [
                    measured(CASE, f"{what}: {size} wait, mean, {rule}", float(each.mean()), "lifetimes"),
                    measured(CASE, f"{what}: {size} wait, p99, {rule}", _p99(each), "lifetimes"),
                ]
            big[rule] = _p99(waits[BIG])
        part = big["holds"] / big["no holds"]
        lower = used["no holds"] - used["holds"]
        found += [
            measured(
                CASE,
                f"{what}: {BIG} wait, p99, holds ÷ no holds",
                part,
                "×",
                at_most=1.0 if lasting else 0.25,
            ),
            measured(CASE, f"{what}: GPUs in use, no holds − holds", lower, "points", at_most=0.0),
        ]
    return found


def played(
    seeds: int, until: float, lasting: float, hold_after: float
) -> tuple[float, dict[str, np.ndarray]]:
    """Per cent of the GPUs in use, and by size of the pods how many lifetimes they waited."""
    nodes = tenants.nodes()
    gpus = sum(node.gpu for node in nodes)
    make = holding(hold_after)
    held = 0.0
    waits: dict[str, list[float]] = {size: [] for size in SIZES}
    for seed in range(1, seeds + 1):
        pool = Pool(load(gpus, until, lasting, seed), nodes, WARM_UP * LIFE)
        tally = pool.play(make(pool))
        held += sum(tally.held)
        for shape, waited in zip(pool.load.shapes, tally.waits, strict=True):
            for size, (least, most) in SIZES.items():
                if least <= shape.gpu_units <= most:
                    waits[size] += waited
    used = 100 * held / (seeds * gpus * (until - WARM_UP) * LIFE)
    return used, {size: np.array(each) / LIFE for size, each in waits.items()}


def holding(after: float) -> Callable[[Pool], Scheduler]:
    """The planner, all being one tenant's; nodes are held for big jobs that have waited `after` seconds."""

    def make(pool: Pool) -> Scheduler:
        names = frozenset(tenant.name for tenant in pool.load.tenants)
        one = Owner("all", 1.0, preemptible=True, namespaces=names)
        return Ours(pool, Policy("all", (one,), hold_after=after))

    return make


def load(gpus: int, until: float, lasting: float, seed: int) -> Load:
    """Pods of the whole list; `lasting` is the part of those there at the beginning that never ends."""
    chance = np.random.default_rng((seed, round(1000 * lasting)))
    shapes, counts = tenants.shapes_of()
    units = float(np.average([shape.gpu_units for shape in shapes], weights=counts))
    there = chance.poisson(OFFERED * gpus / units)
    coming = chance.poisson((1 - lasting) * OFFERED * gpus / units * until)
    came = np.concatenate((np.zeros(there), np.sort(chance.uniform(0, until, coming)))) * LIFE
    life = chance.exponential(LIFE, there + coming)
    life[:there][chance.random(there) < lasting] = math.inf
    which = chance.choice(len(shapes), there + coming, p=counts / counts.sum())
    return Load([ALL], shapes, [0] * len(shapes), came, which.astype(np.int32), life, until * LIFE)


def _p99(waits: np.ndarray) -> float:
    return float(np.percentile(waits, 99))
