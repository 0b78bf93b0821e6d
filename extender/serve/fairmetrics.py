"""What Prometheus reads of fairness: tenants as they are at the scrape, and what has been counted of them.

Series are per pool and tenant, never per pod. The README's table of metrics is this file in words.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.fairness.record import Fairness, Histogram, Tally
from extender.wire.shares import PoolShares, TenantShares

_LABELS = ("pool", "tenant")
_GAUGES: tuple[tuple[str, str, Callable[[TenantShares], float | None]], ...] = (
    ("kvitej_tenant_gpus_in_use", "GPU units that the tenant has now.", lambda row: row.in_use),
    (
        "kvitej_tenant_gpus_decayed",
        "GPU units that the tenant has had of late: its decayed use.",
        lambda row: row.decayed_use,
    ),
    ("kvitej_tenant_gpus_entitled", "GPU units that the tenant may have now.", lambda row: row.entitlement),
    (
        "kvitej_tenant_drift_ratio",
        "(in use - entitlement) / entitlement; absent for use without an entitlement.",
        lambda row: row.drift,
    ),
    (
        "kvitej_tenant_fairness_score",
        "1 within 20 % of the entitlement, then falling to 0 at nothing or twice of it.",
        lambda row: row.score,
    ),
    ("kvitej_queue_depth", "Pods of the tenant that are not bound.", lambda row: row.waiting),
    (
        "kvitej_longest_wait_seconds",
        "Seconds that the first of these pods has waited.",
        lambda row: row.longest_wait,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    (
        "kvitej_share_violation_seconds",
        "Seconds with pods waiting and less than 80 % of the entitlement in use.",
        lambda tally: tally.short_seconds,
    ),
    ("kvitej_releases", "Pods whose gate kvitej lifted in their turn.", lambda tally: tally.releases),
    (
        "kvitej_evictions",
        "Pods that were evicted for others to get their share; carried over a restart.",
        lambda tally: tally.evictions,
    ),
)


class FairnessCollector(Collector):
    """`tables` gives the pools as they are now."""

    def __init__(self, tables: Callable[[], Sequence[PoolShares]], fairness: Fairness) -> None:
        self._tables = tables
        self._fairness = fairness

    def describe(self) -> list[Metric]:
        """Nothing: to register must not read the book."""
        return []

    def collect(self) -> Iterator[Metric]:
        pools = self._tables()
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for pool in pools:
                for row in pool.tenants:
                    found = value(row)
                    if found is not None:
                        gauge.add_metric([pool.policy, row.name], found)
            yield gauge
        capacity = GaugeMetricFamily("kvitej_pool_gpus", "GPU units of the pool.", labels=["pool"])
        for pool in pools:
            capacity.add_metric([pool.policy], pool.capacity)
        yield capacity
        yield from self._counted()

    def _counted(self) -> Iterator[Metric]:
        tallies = self._fairness.tallies.items()
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for whose, tally in tallies:
                counter.add_metric(whose, value(tally))
            yield counter
        delays = HistogramMetricFamily(
            "kvitej_admission_delay_seconds", "Seconds from a pod's create to its Bind.", labels=_LABELS
        )
        judged = CounterMetricFamily(
            "kvitej_wait_target_admissions",
            "Pods bound of tenants with a waitTarget, by whether they waited no longer.",
            labels=[*_LABELS, "within"],
        )
        met = GaugeMetricFamily(
            "kvitej_wait_target_met_ratio",
            "Share of these that waited no longer, since the process began.",
            labels=_LABELS,
        )
        for whose, tally in tallies:
            delays.add_metric(whose, _buckets(tally.delays), tally.delays.total)
            if tally.judged:
                judged.add_metric([*whose, "true"], tally.in_time)
                judged.add_metric([*whose, "false"], tally.judged - tally.in_time)
                met.add_metric(whose, tally.in_time / tally.judged)
        yield delays
        yield judged
        yield met
        recoveries = HistogramMetricFamily(
            "kvitej_recovery_seconds",
            "Seconds from the first eviction of a burst until every fairness score of the pool is 1.",
            labels=["pool"],
        )
        going = GaugeMetricFamily(
            "kvitej_recovering_seconds",
            "Seconds that the recovery which goes on has taken; 0 while there is none.",
            labels=["pool"],
        )
        for name, recovery in self._fairness.recoveries.items():
            recoveries.add_metric([name], _buckets(recovery.seconds), recovery.seconds.total)
            going.add_metric([name], recovery.going)
        yield recoveries
        yield going
        nominations = CounterMetricFamily(
            "kvitej_nominations",
            "Pods that were bound on the node nominated for them (held), or were not (missed).",
            labels=["outcome"],
        )
        nominations.add_metric(["held"], self._fairness.nominations_held)
        nominations.add_metric(["missed"], self._fairness.nominations_missed)
        yield nominations
        wrong = GaugeMetricFamily(
            "kvitej_ledger_drift_gpus",
            "GPU units by which the ledgers differ from what sits on the nodes; not 0 is a bug in kvitej.",
        )
        if self._fairness.charged_wrongly is not None:
            wrong.add_metric([], self._fairness.charged_wrongly)
        yield wrong


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus's: cumulative, by upper bound."""
    found, sum_so_far = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        sum_so_far += count
        found.append(("+Inf" if bound == float("inf") else str(bound), float(sum_so_far)))
    return found
