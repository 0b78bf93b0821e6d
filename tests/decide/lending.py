"""A cluster whose planner asks back what is lent: tenant batch borrows, tenant live is owed half of it."""

from typing import Any

from extender.cluster.events import NodeSeen, PodSeen
from extender.cluster.mix import EVEN, Scales
from extender.cluster.state import ClusterState
from extender.decide.claims import Settings
from extender.decide.giving import Giver
from extender.decide.instructions import ClassesSeen, Instruction, PoliciesSeen, Tick
from extender.decide.plan import Planner
from extender.fairness.policy import Policy, Share, Tenant
from extender.fairness.reading import Policies
from extender.fairness.usage import timestamp
from extender.schedulerconfig import managed_resources
from extender.wire.marks import GATE
from extender.wire.objects import Pod
from tests.builders import GPU, node, raw_pod, read_pod, record_of

WALL = 1.8e9
"""When the planner's clock was 0."""


class World:
    """A book, its planner and the giver, told of everything in the order in which the server tells it."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        gpus: int = 4,
        scales: Scales = EVEN,
        dry_run: bool = False,
        policies: bool = True,
        selector: dict[str, str] | None = None,
        **batch: Any,
    ) -> None:
        self.now = 10_000.0
        self.state = ClusterState(managed_resources(), scales)
        tenants = (
            Tenant("batch", 1.0, **{"preemptible": True, **batch}),
            Tenant("live", 1.0, least=Share(part=0.5)),
        )
        self.policy = Policy("all", tenants, node_selector=selector, reclaim_dry_run=dry_run)
        others = Policy("others", tenants, node_selector={"pool": "theirs"})
        both = [self.policy] if selector is None else [self.policy, others]
        self.giver = Giver(self.state, WALL)
        self.planner = Planner(
            self.state, Policies(both if policies else []), Settings(), self.now, self.giver
        )
        for number in range(nodes):
            self.see(NodeSeen(node(f"n{number}", {GPU: str(gpus)})))

    def see(self, event: Any, after: float = 0.0) -> list[Instruction]:
        self.now += after
        if not isinstance(event, Tick | ClassesSeen | PoliciesSeen):
            self.state.apply(event)
        self.giver.apply(event, self.now)
        told = self.planner.step(event, self.now)
        while self.planner.busy:
            told += self.planner.step(Tick(), self.now)
        self.planner.check()
        self.state.check()
        return told

    def sits(self, name: str, *cards: int, at: str = "n0", tenant: str = "batch", **said: Any) -> Pod:
        found = pod(name, len(cards), tenant, at=at, record=record_of(gpu=cards), **said)
        self.see(PodSeen(found))
        return found

    def fill(self, **said: Any) -> None:
        for card, name in enumerate("abcd"):
            self.sits(name, card, **said)

    def wants(self, name: str = "w", gpus: int = 1, tenant: str = "live", **said: Any) -> list[Instruction]:
        return self.see(PodSeen(pod(name, gpus, tenant, gated=True, **said)))

    def retry(self) -> list[Instruction]:
        return self.see(Tick(), 2.0)


def pod(
    name: str,
    gpus: int,
    tenant: str,
    *,
    gated: bool = False,
    labels: dict[str, str] | None = None,
    started: float | None = None,
    leaves: bool = False,
    marks: dict[str, str] | None = None,
    klass: str | None = None,
    **parts: Any,
) -> Pod:
    spec: dict[str, Any] = {"schedulerName": "fair-quota", "priorityClassName": klass}
    if gated:
        spec["schedulingGates"] = [{"name": GATE}]
    raw = raw_pod(name, {GPU: str(gpus)}, namespace=tenant, spec=spec, **parts)
    raw["metadata"]["labels"] = labels or {}
    raw["metadata"]["annotations"].update(marks or {})
    if leaves:
        raw["metadata"]["deletionTimestamp"] = timestamp(WALL)
    if started is not None:
        raw["status"]["startTime"] = timestamp(WALL + started)
    return read_pod(raw)
