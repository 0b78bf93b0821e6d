"""A small cluster around the planner: pods as the API server has them, and who carries its instructions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from extender.cluster.events import NodeGone, NodeSeen, Outcome, PodGone, PodSeen, Reserved, Settled
from extender.cluster.limits import UNLIMITED, Limits
from extender.cluster.reports import ReportGone, ReportSeen
from extender.cluster.state import ClusterState
from extender.decide.bind import Granted, seat_pod
from extender.decide.claims import Settings
from extender.decide.instructions import (
    Carried,
    Clear,
    Evict,
    Failed,
    Happening,
    Instruction,
    Nominate,
    PoliciesSeen,
    Release,
    Tick,
)
from extender.decide.plan import Planner
from extender.decide.turns import Reclaim
from extender.fairness.policy import Policy
from extender.fairness.reading import Policies
from extender.schedulerconfig import managed_resources
from extender.wire.marks import GATE
from extender.wire.objects import Pod
from tests.builders import GPU, Json, container, node, raw_pod, read_pod

WALL = 1_796_040_000.0
"""2026-11-30T12:00:00Z, the wall time at 0."""


@dataclass(frozen=True)
class Job:
    """A pod of one container, as the API server has it. `born` is its creation in seconds after `WALL`."""

    name: str
    tenant: str
    gpus: int = 1
    cores: int = 1
    priority: int = 0
    born: int = 0
    gates: tuple[str, ...] = (GATE,)
    scheduler: str = "fair-quota"
    labels: tuple[tuple[str, str], ...] = ()
    spec: tuple[tuple[str, Any], ...] = ()
    at: str | None = None
    record: str | None = None
    memory: str | None = None
    nominated: str | None = None
    unschedulable: bool = False

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def pod(self) -> Pod:
        asks = {GPU: str(self.gpus), "cpu": str(self.cores)}
        spec: Json = {
            "containers": [container("main", asks)],
            "schedulerName": self.scheduler,
            **dict(self.spec),
        }
        spec["schedulingGates"] = [{"name": gate} for gate in self.gates]
        raw = raw_pod(
            self.name,
            namespace=self.tenant,
            at=self.at,
            record=self.record,
            memory=self.memory,
            priority=self.priority,
            refused=self.unschedulable,
            created=f"2026-11-30T12:{self.born // 60:02}:{self.born % 60:02}Z",
            phase="Running" if self.at else "Pending",
            spec=spec,
        )
        raw["metadata"]["labels"] = dict(self.labels)
        raw["status"]["nominatedNodeName"] = self.nominated
        return read_pod(raw)


class World:
    """Instructions wait in `todo` until they are carried out; `said` keeps all, and `judge` hears those of a step."""

    def __init__(
        self,
        policies: Iterable[Policy] = (),
        *,
        nodes: Iterable[str] = (),
        gpus: int = 8,
        settings: Settings | None = None,
        reclaim: Reclaim | None = None,
        limits: Limits = UNLIMITED,
    ) -> None:
        self.now = 0.0
        self.nodes = dict.fromkeys(nodes, gpus)
        self.jobs: dict[str, Job] = {}
        self.policies = Policies(policies)
        self.settings = settings or Settings()
        self.reclaim = reclaim
        self.limits = limits
        self.said: list[Instruction] = []
        self.judge: Callable[[list[Instruction]], None] = lambda said: None
        self.start()

    def start(self) -> None:
        """The process begins and lists everything; what was to be carried out is forgotten."""
        self.todo: deque[Instruction] = deque()
        self.state = ClusterState(managed_resources(), limits=self.limits)
        for name, gpus in self.nodes.items():
            self.state.apply(NodeSeen(node(name, {GPU: str(gpus)})))
        for job in self.jobs.values():
            self.state.apply(PodSeen(job.pod))
        self.planner = Planner(self.state, self.policies, self.settings, self.now, self.reclaim)
        self.hear(self.planner.begin(self.now, WALL + self.now))

    def hear(self, instructions: list[Instruction]) -> list[Instruction]:
        self.todo += instructions
        self.said += instructions
        self.state.check()
        self.planner.check()
        self.judge(instructions)
        return instructions

    def tell(self, event: Happening) -> list[Instruction]:
        if isinstance(
            event, PodSeen | PodGone | NodeSeen | NodeGone | Reserved | Settled | ReportSeen | ReportGone
        ):
            self.state.apply(event)
        return self.hear(self.planner.step(event, self.now))

    # the API server

    def put(self, *jobs: Job) -> list[Instruction]:
        """These exist and look like this now."""
        found: list[Instruction] = []
        for job in jobs:
            self.jobs[job.uid] = job
            found += self.tell(PodSeen(job.pod))
        return found

    def change(self, uid: str, **parts: Any) -> list[Instruction]:
        return self.put(replace(self.jobs[uid], **parts))

    def end(self, uid: str) -> list[Instruction]:
        del self.jobs[uid]
        return self.tell(PodGone(uid))

    def put_node(self, name: str, gpus: int, **more: Any) -> list[Instruction]:
        self.nodes[name] = gpus
        return self.tell(NodeSeen(node(name, {GPU: str(gpus)}, **more)))

    def remove_node(self, name: str) -> list[Instruction]:
        del self.nodes[name]
        return self.tell(NodeGone(name))

    def edit(self, *policies: Policy) -> list[Instruction]:
        self.policies = Policies(policies)
        return self.tell(PoliciesSeen(self.policies))

    def wait(self, seconds: float, step: float = 1.0) -> list[Instruction]:
        """Time passes, a tick each `step`."""
        found: list[Instruction] = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + step)
            found += self.tell(Tick())
        return found

    def rest(self) -> None:
        """All that can be planned at once is."""
        while self.planner.busy:
            self.tell(Tick())

    # who carries out

    def carry(self) -> None:
        """The next instruction is carried out."""
        match self.todo.popleft():
            case Release(pod, at):
                job = self.jobs.get(pod.uid)
                if job is None:
                    self.tell(Failed(pod.uid, "the pod is gone"))
                    return
                gates = tuple(gate for gate in job.gates if gate != GATE)
                if at is not None:
                    self.change(pod.uid, nominated=at)
                self.change(pod.uid, gates=gates)
                self.tell(Carried(pod.uid))
            case Nominate(pod, at):
                if pod.uid in self.jobs:
                    self.change(pod.uid, nominated=at)
                    self.tell(Carried(pod.uid))
            case Clear(pod, value):
                if pod.uid in self.jobs and self.jobs[pod.uid].nominated == value:
                    self.change(pod.uid, nominated=None)
            case Evict(victims):
                for victim in victims:
                    if victim.uid in self.jobs:
                        self.end(victim.uid)

    def carry_all(self) -> None:
        while self.todo:
            self.carry()

    # the scheduler

    def schedule(self, uid: str) -> str | None:
        """The scheduler tries the pod: Filter, then Bind; gives its node if it was bound."""
        job = self.jobs[uid]
        assert not job.gates
        assert job.at is None
        answer = self.planner.seat_for(job.pod)
        snapshot = self.state.snapshot()
        names = list(snapshot.inventories) if answer is None else [answer.node] if answer.node else []
        waiter = self.planner.waiters[uid]
        assert waiter.shape is not None
        for name in names:
            granted = seat_pod(snapshot, uid, waiter.shape.request, name)
            if isinstance(granted, Granted):
                self.tell(Reserved(job.pod, name, granted.devices))
                self.jobs[uid] = replace(job, at=name, record=granted.devices, nominated=None)
                self.tell(Settled(uid, Outcome.BOUND))
                self.tell(PodSeen(self.jobs[uid].pod))
                return name
        self.change(uid, unschedulable=True, nominated=None)
        return None

    def run(self) -> None:
        """Instructions are carried out and released pods are bound, until nothing is left to do."""
        while True:
            self.rest()
            self.carry_all()
            ready = [uid for uid in self.jobs if self.is_ready(uid)]
            if not ready:
                return
            for uid in ready:
                if self.is_ready(uid):
                    self.schedule(uid)

    def is_ready(self, uid: str) -> bool:
        """The pod is past its gate, has a seat and waits for the scheduler."""
        job = self.jobs[uid]
        return job.at is None and not job.gates and uid in self.state.snapshot().seats

    def sitting(self, tenant: str | None = None) -> list[str]:
        """Names of bound pods."""
        return [job.name for job in self.jobs.values() if job.at and tenant in (None, job.tenant)]

    def gpus_of(self, tenant: str) -> int:
        return sum(job.gpus for job in self.jobs.values() if job.at and job.tenant == tenant)


def released(said: Iterable[Instruction]) -> list[tuple[str, str | None]]:
    """(pod, node) of each Release."""
    return [(each.pod.name, each.node) for each in said if isinstance(each, Release)]
