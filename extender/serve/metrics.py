"""What Prometheus reads: decisions as they are counted, and the book as it is at the scrape.

Children are held, not looked up, on the hot path. Cardinality stays within verbs × outcomes, and no pod names but
those charged at their worst case, of which at most `NAMED` are named.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from _core import IS_OCCUPIED, IS_UNFIT, IS_WITHHELD
from extender.cluster.columns import CLOSED
from extender.cluster.seats import Phase
from extender.cluster.snapshot import Snapshot
from extender.serve.fairmetrics import FairnessCollector
from extender.serve.sharing import SharesDoor

NAMED = 50
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """One registry; `watch` gives the reflectors' numbers as (name, resource, value)."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], watch: Callable[[], Iterable[tuple[str, str, float]]]
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        decisions = Counter(
            "kvitej_decisions", "Answers by verb and outcome.", ["verb", "outcome"], registry=self.registry
        )
        seconds = Histogram(
            "kvitej_verb_seconds",
            "Time from request to answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._decisions = {
            (verb, outcome): decisions.labels(verb, outcome)
            for verb, outcomes in _OUTCOMES.items()
            for outcome in outcomes
        }
        self._seconds = {verb: seconds.labels(verb) for verb in _OUTCOMES}
        self.nudges = Counter(
            "kvitej_nudges", "Waiting pods woken because room appeared.", registry=self.registry
        )
        self._refusals = Counter(
            "kvitej_refusals",
            "Requests that the webhook refused, by tenant (none: empty) and reason; no dry runs.",
            ["tenant", "reason"],
            registry=self.registry,
        )
        self.moved = Counter(
            "kvitej_pods_moved",
            "Pods to which the kubelet gave other cards than planned.",
            registry=self.registry,
        )
        self._would_refuse = Counter(
            "kvitej_dry_run_refusals",
            "Requests that rules with dryRun would have refused, by tenant (none: empty) and reason.",
            ["tenant", "reason"],
            registry=self.registry,
        )
        self.registry.register(_Book(snapshot, watch))

    def follow(self, shares: SharesDoor) -> None:
        """Tell of tenants, too."""
        self.registry.register(FairnessCollector(shares.tables, shares.fairness))

    def refused(self, tenant: str, reason: str) -> None:
        self._refusals.labels(tenant, reason).inc()

    def would_refuse(self, tenant: str, reason: str) -> None:
        self._would_refuse.labels(tenant, reason).inc()

    def decided(self, verb: str, outcome: str, seconds: float) -> None:
        self._decisions[verb, outcome].inc()
        self._seconds[verb].observe(seconds)


_OUTCOMES = {
    "filter": ("kept", "refused", "waits", "error"),
    "prioritize": ("graded", "error"),
    "preempt": ("answered", "error"),
    "mutate": ("allowed", "refused", "error"),
    "validate": ("allowed", "refused", "error"),
    "bind": ("bound", "vetoed", "failed", "unknown", "error"),
}


class _Book(Collector):
    def __init__(
        self, snapshot: Callable[[], Snapshot], watch: Callable[[], Iterable[tuple[str, str, float]]]
    ) -> None:
        self._snapshot = snapshot
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        book = self._snapshot()
        rows = [book.index.get(name) for name in book.inventories]
        yield _gauge("kvitej_nodes", "Nodes in the book.", len(rows))
        yield _gauge(
            "kvitej_nodes_closed",
            "Nodes on which nothing is placed.",
            int((book.table.state[rows] == CLOSED).sum()),
        )
        seats = GaugeMetricFamily("kvitej_seats", "Pods that sit on a node, by phase.", labels=["phase"])
        phases = Tally(seat.phase for seat in book.seats.values())
        for phase in Phase:
            seats.add_metric([phase.value], phases[phase])
        yield seats
        yield _gauge("kvitej_waiting_pods", "GPU pods without a node.", len(book.waiting))
        yield _gauge(
            "kvitej_soft_claims", "Soft claims that Filter left and nothing ended yet.", len(book.claims)
        )
        yield _gauge(
            "kvitej_pods_bound_past_us",
            "GPU pods on a node that kvitej did not give them.",
            len(book.past_us),
        )
        yield _gauge("kvitej_pods_at_worst_case", "Pods whose cards are not known.", len(book.worst_case))
        named = GaugeMetricFamily(
            "kvitej_pod_at_worst_case",
            f"1 for each such pod, at most {NAMED}.",
            labels=["namespace", "pod", "node"],
        )
        for uid in islice(sorted(book.worst_case), NAMED):
            seat = book.seats[uid]
            named.add_metric([seat.namespace, seat.name, seat.node], 1)
        yield named
        reports = book.reports.values()
        yield _gauge("kvitej_reports", "Nodes whose agent reports what its cards are.", len(reports))
        yield _gauge(
            "kvitej_reports_stale",
            "Nodes whose agent has been silent for too long.",
            sum(report.stale for report in reports),
        )
        unreadable = GaugeMetricFamily(
            "kvitej_reports_unreadable",
            "Nodes whose agent's newest report can't be read, by the part of it that can't be: spec, status or other.",
            labels=["part"],
        )
        parts = Tally(map(_part, book.unreadable.values()))
        for part in (*_PARTS, "other"):
            unreadable.add_metric([part], parts[part])
        yield unreadable
        yield _gauge(
            "kvitej_pods_leaking",
            "Pods that are gone and, as the kubelet says, still hold devices.",
            sum(len(report.leaked) for report in reports),
        )
        troubled = book.table.trouble[rows]
        cards = GaugeMetricFamily(
            "kvitej_cards_in_trouble",
            "Cards that take no new work or not all of it, by why: unfit, occupied by processes that nobody "
            "scheduled, or withheld by the kubelet.",
            labels=["why"],
        )
        for why, bit in (("unfit", IS_UNFIT), ("occupied", IS_OCCUPIED), ("withheld", IS_WITHHELD)):
            cards.add_metric([why], int(((troubled & bit) > 0).sum()))
        yield cards
        unlisted = GaugeMetricFamily(
            "kvitej_nodes_with_unlisted_resource",
            "Nodes that advertise a resource which the scheduler configuration lacks.",
            labels=["resource"],
        )
        for resource, nodes in book.unlisted.items():
            unlisted.add_metric([resource], len(nodes))
        yield unlisted
        watches: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, resource, value in self._watch():
            if name not in watches:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                watches[name] = kind("kvitej_watch_" + name, _WATCH[name], labels=["resource"])
            watches[name].add_metric([resource], value)
        yield from watches.values()


_WATCH = {
    "lag_seconds": "Seconds since the last byte of the watch on the API server.",
    "down_seconds": "Seconds since the watch went down; 0 while it is open.",
    "relists_total": "Times that the whole list was read.",
    "gone_total": "Times that the API server answered 410 Gone.",
    "reconnects_total": "Times that the watch was opened again.",
    "unreadable_total": "Objects that could not be decoded.",
}


_PARTS = ("spec", "status")


def _part(fault: str) -> str:
    """Of a report, as the decoder names it: what it complains of has too many forms for a label."""
    return next((part for part in _PARTS if f"`$.{part}" in fault), "other")


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
