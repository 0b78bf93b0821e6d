"""`bench mig`: how many compute slices of MIG requests are lost, and how many nodes of instances that exist stay empty.

Cards that are cut on demand are played natively, through the tables and the choice of card that placing uses
(`bench.pool`); best fit and first fit are the same play with other scores. Instances that exist are played beside
(`bench.instances`). Differences are paired over seeds and come with two standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import instances
from bench.pool import CARDS, GEOMETRY, MIXES, POLICIES, WARM_UP, fill, lost, requests
from bench.report import Measurement, measured

CASE = "mig"
SEEDS = 8
LOAD = 1.0
REQUESTS = 40_000
FILLS = 50
"""Fills a seed; one is only about 200 requests."""
LESS_ON_THE_MEAN = 1.0
MORE_ON_THE_WORST = 0.25
MORE_IN_THE_WORST_FILL = 0.15

STATIC_LOAD = 0.5
STATIC_REQUESTS = 5_000

OURS, BEST_FIT = "kvitej", "best fit"
Lost = Mapping[str, Mapping[str, NDArray[np.float64]]]
"""Per mix and policy, per cent of the compute slices that were asked for [seeds]."""


def run(
    say: Callable[[str], None],
    *,
    seeds: int = SEEDS,
    plot: Path | None = None,
    count: int = REQUESTS,
    each: int = FILLS,
    static: int = STATIC_REQUESTS,
) -> list[Measurement]:
    """Play every mix `seeds` times under every policy; with `plot`, draw what was lost into that file.

    `count` requests come and go, `each` fills are made a seed, and `static` requests ask for instances that exist.
    """
    churned = churn(range(1, seeds + 1), count, say=say)
    filled = fills(range(1, seeds + 1), each, say=say)
    found = [
        *(
            measured(CASE, f"{mix}: lost, {policy}", float(values.mean()), "% of slices")
            for mix, by_policy in churned.items()
            for policy, values in by_policy.items()
        ),
        *differences("", churned, at_most=-LESS_ON_THE_MEAN, worst=MORE_ON_THE_WORST),
        *differences("fill, ", filled, at_most=0.0, worst=MORE_IN_THE_WORST_FILL),
        *_static(static, say),
    ]
    if plot is not None:
        _draw(churned, plot)
        say(f"wrote {plot}")
    return found


def churn(
    seeds: Sequence[int], count: int = REQUESTS, load: float = LOAD, say: Callable[[str], None] | None = None
) -> Lost:
    """Requests that come and go: what each policy loses once the pool is warm."""
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for mix in MIXES:
        if say is not None:
            say(f"{mix}: {count:,} requests on {CARDS} cards at load {load:g}, {len(seeds)} seeds")
        played = [requests(mix, seed, count, load) for seed in seeds]
        found[mix] = {
            name: np.array([lost(each, policy(each), WARM_UP) for each in played])
            for name, policy in POLICIES.items()
        }
    return found


def fills(seeds: Sequence[int], each: int = FILLS, say: Callable[[str], None] | None = None) -> Lost:
    """Requests that stay, until they come to the slices of all cards; a seed's value is the mean of `each` fills."""
    if say is not None:
        say(f"filling {CARDS} cards, {each} times a seed and mix")
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for mix in MIXES:
        played = [[fill(mix, seed * 10_000 + turn) for turn in range(each)] for seed in seeds]
        found[mix] = {
            name: np.array([np.mean([lost(one, policy(one)) for one in turns]) for turns in played])
            for name, policy in POLICIES.items()
        }
    return found


def difference(found: Lost, mix: str | None = None) -> NDArray[np.float64]:
    """Ours minus best fit [seeds], of one mix or on the mean of all."""
    mixes = [mix] if mix else list(found)
    return np.asarray(np.mean([found[each][OURS] - found[each][BEST_FIT] for each in mixes], axis=0))


def differences(kind: str, found: Lost, *, at_most: float, worst: float) -> list[Measurement]:
    """Ours minus best fit: of each mix, on the mean, and on the mix where we do worst, the latter two with a goal."""
    mean = difference(found)
    worst_mix = max(found, key=lambda mix: float(difference(found, mix).mean()))
    return [
        *(_paired(f"{kind}{mix}: {OURS} − {BEST_FIT}", difference(found, mix)) for mix in found),
        _paired(f"{kind}mean of the mixes: {OURS} − {BEST_FIT}", mean, at_most),
        _paired(f"{kind}worst mix, {worst_mix}: {OURS} − {BEST_FIT}", difference(found, worst_mix), worst),
    ]


def _paired(metric: str, values: NDArray[np.float64], at_most: float | None = None) -> Measurement:
    spread = f" ± {2 * values.std(ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return measured(CASE, metric + spread, float(values.mean()), "points", at_most=at_most)


def _static(count: int, say: Callable[[str], None]) -> list[Measurement]:
    say(f"instances that exist: {count:,} requests a mix at load {STATIC_LOAD:g} and at {LOAD:g}")
    found = []
    empty: dict[str, list[float]] = {name: [] for name in instances.SCORES}
    for mix in MIXES:
        missed, _ = instances.play(mix, 1, count, LOAD, instances.SCORES[OURS])
        found.append(measured(CASE, f"{mix}: lost, instances that exist, any score", missed, "% of slices"))
        for name, scorer in instances.SCORES.items():
            empty[name].append(instances.play(mix, 1, count, STATIC_LOAD, scorer)[1])
    means = {name: float(np.mean(values)) for name, values in empty.items()}
    others = max(value for name, value in means.items() if name != OURS)
    what = f"nodes of existing instances quite empty at load {STATIC_LOAD:g}"
    return found + [
        measured(CASE, f"{what}, {name}", value, "%", at_least=others if name == OURS else None)
        for name, value in means.items()
    ]


def _draw(churned: Lost, plot: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
    width = 0.8 / len(POLICIES)
    for position, policy in enumerate(POLICIES):
        values = [churned[mix][policy] for mix in MIXES]
        spread = [2 * each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else 0.0 for each in values]
        at = np.arange(len(MIXES)) + (position - (len(POLICIES) - 1) / 2) * width
        axes.bar(at, [each.mean() for each in values], width, yerr=spread, label=policy)
    axes.set_xticks(range(len(MIXES)), list(MIXES))
    axes.set_ylabel("compute slices lost, %")
    axes.set_title(f"{CARDS} cards of {GEOMETRY.model}, load {LOAD:g}")
    axes.legend()
    figure.savefig(plot)
    pyplot.close(figure)
