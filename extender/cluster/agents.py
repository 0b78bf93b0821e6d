"""What the nodes' agents have told the book: the newest report of each node, and whether it is still stood by.

The rows follow the reports that are kept here.
"""

from collections.abc import Iterator

from extender.cluster.limits import Limits
from extender.cluster.notices import AgentSilent, Leaked, Notice, ReportUnreadable
from extender.cluster.reported import Report
from extender.cluster.reports import ReportSeen
from extender.cluster.rows import Rows
from extender.cluster.truth import truth_of


class Agents:
    """Keeps `reports`, by node, also of nodes that are not there (yet).

    `unreadable` says by node why what its agent has written since can't be read.
    """

    def __init__(self, reports: dict[str, Report], rows: Rows, limits: Limits) -> None:
        self.unreadable: dict[str, str] = {}
        self._reports = reports
        self._rows = rows
        self._limits = limits
        self._beats: dict[str, float] = {}
        self._bereft: set[str] = set()
        """Nodes whose report was deleted and still counts."""
        self._now = 0.0

    def seen(self, event: ReportSeen) -> tuple[Notice, ...]:
        """The node's agent says this."""
        name = event.node
        if event.fault:
            self.unreadable[name] = event.fault
            return (ReportUnreadable(name, event.fault),)
        self.unreadable.pop(name, None)
        if event.status is None:
            return ()
        self._bereft.discard(name)
        report = self._reports.get(name)
        truth = truth_of(event.spec, event.status, report.truth if report is not None else None)
        anew = report is None or report.renew(truth, event.status.when)
        if report is None:
            report = self._reports[name] = Report(truth, event.status.when)
            for seat in self._rows.on(name):
                report.came(seat)
        report.look_for_strays(self._rows.on(name))
        return self._rows.renew(name) if anew else tuple(self._rows.retell(name))

    def gone(self, name: str) -> None:
        """What was said last holds on, as if the agent were silent, while it says nothing and the node is there."""
        self.unreadable.pop(name, None)
        if name in self._rows.inventories and name in self._reports:
            self._bereft.add(name)
            self._beats[name] = self._now - self._limits.stale_after
        else:
            self._reports.pop(name, None)
            self._beats.pop(name, None)

    def node_gone(self, name: str) -> None:
        """A report that is deleted holds no longer than its node is there."""
        if name in self._bereft:
            self._bereft.discard(name)
            del self._reports[name], self._beats[name]

    def beat(self, name: str, at: float) -> None:
        """The node's agent stood by its report then."""
        self._beats[name] = max(at, self._beats.get(name, at))

    def age(self, now: float) -> Iterator[Notice]:
        """Agents that have been silent for too long, and devices that a pod which is gone has held for too long."""
        self._now = now
        for name, report in self._reports.items():
            report.age = now - self._beats.setdefault(name, now)
            stale = report.age > self._limits.stale_after
            if stale != report.stale:
                report.stale = stale
                if stale:
                    yield AgentSilent(name, report.age, self._limits.close_stale)
                self._rows.renew(name)
            if report.strays:
                found = report.leaks(self._rows.on(name), now)
                for (namespace, pod), cards in found.items():
                    yield Leaked(name, namespace, pod, str(cards))
                if found:
                    self._rows.renew(name)
            if report.doubted and report.settle(now):
                yield from self._rows.renew(name)
