"""`bench planner`: what one step of the planner takes on a full cluster with a long line, and what a waiting pod keeps.

A cluster of 8-GPU nodes is full, 50 tenants have pods in line in a dozen shapes, and the machine plays on: a pod ends,
whoever is released loses its gate and is bound, a new one comes. Every call of `step` is timed. The book's own share
(`apply` of what the watch tells) is not.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bench.report import Measurement, measured
from extender.cluster.events import NodeSeen, Outcome, PodGone, PodSeen, Reserved, Settled
from extender.cluster.state import ClusterState
from extender.decide.claims import Settings
from extender.decide.instructions import Carried, Happening, Instruction, Release, Tick
from extender.decide.plan import Planner
from extender.fairness.policy import Policy, Share, Tenant
from extender.fairness.reading import Policies
from extender.fairness.usage import timestamp
from extender.schedulerconfig import managed_resources
from extender.wire.devices import ContainerDevices, Devices, encode
from extender.wire.marks import GATE
from extender.wire.objects import Node, Pod

CASE = "planner"
NODES, WAITING, TENANTS = 5_000, 10_000, 50
STEPS = 6_000
STEP_MS, KEPT_BYTES = 5.0, 2_048
SHAPES = [
    (1, 4),
    (1, 8),
    (1, 12),
    (2, 8),
    (2, 16),
    (2, 24),
    (4, 16),
    (4, 32),
    (4, 48),
    (8, 32),
    (8, 64),
    (8, 96),
]
"""GPUs and cores."""
OFTEN = [30, 15, 5, 12, 6, 3, 8, 4, 2, 9, 4, 2]
SEED = 42


def run(say: Callable[[str], None], *, steps: int = STEPS) -> list[Measurement]:
    found: list[Measurement] = []
    medians: dict[tuple[int, int], float] = {}
    for nodes, waiting in ((NODES, WAITING), (2 * NODES, WAITING), (NODES, 2 * WAITING)):
        first = not medians
        say(f"{nodes:,} nodes, {waiting:,} waiting, {TENANTS} tenants")
        play = Play(nodes, waiting)
        kept = play.kept / waiting
        play.run(steps if first else steps // 3)
        taken = np.array(play.taken) * 1e3
        medians[nodes, waiting] = float(np.median(taken))
        of = f"{nodes:,} nodes, {waiting:,} waiting"
        found += [
            measured(CASE, f"step, {of}, p50", float(np.median(taken)), "ms"),
            measured(
                CASE,
                f"step, {of}, p99",
                float(np.percentile(taken, 99)),
                "ms",
                **({"at_most": STEP_MS} if first else {}),
            ),
            measured(CASE, f"step, {of}, longest", float(taken.max()), "ms"),
            measured(
                CASE,
                f"kept per waiting pod, {of}",
                kept,
                "bytes",
                **({"at_most": KEPT_BYTES} if first else {}),
            ),
        ]
        if first:
            found.append(measured(CASE, "releases per pod that ended", play.released / play.ended))
    base = medians[NODES, WAITING]
    found += [
        measured(CASE, "step p50, twice the nodes", medians[2 * NODES, WAITING] / base, "×"),
        measured(CASE, "step p50, twice the waiting", medians[NODES, 2 * WAITING] / base, "×"),
    ]
    return found


class Play:
    """A full cluster and its planner; `taken` are seconds per step, `kept` bytes that the line keeps."""

    def __init__(self, nodes: int, waiting: int) -> None:
        self.chance = random.Random(SEED)
        self.state = ClusterState(managed_resources())
        self.taken: list[float] = []
        self.now = 0.0
        self.pods = 0
        self.released = self.ended = 0
        self.bound: list[str] = []
        for number in range(nodes):
            self.state.apply(NodeSeen(_node(number)))
            self._fill(f"gpu-{number:05}")
        self.planner = Planner(self.state, Policies([_policy()]), Settings(), self.now)
        assert not self.planner.begin(self.now, 0.0)
        self.play: deque[Happening] = deque()
        arrivals = [PodSeen(self._pod()) for _ in range(waiting)]
        for event in arrivals:
            self.state.apply(event)
        gc.collect()
        tracemalloc.start()
        for event in arrivals:
            self.now += 0.001
            assert not self.planner.step(event, self.now)
        self.kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()

    def run(self, steps: int) -> None:
        gc.collect()
        gc.freeze()
        for number in range(steps):
            if not self.play:
                self._end_one()
                self.play.append(PodSeen(self._pod()))
                if number % 50 == 0:
                    self.play.append(Tick())
            event = self.play.popleft()
            told = event if isinstance(event, PodSeen | PodGone | Reserved | Settled) else None
            self.now += 0.005
            if told is not None:
                self.state.apply(told)
            started = time.thread_time()
            instructions = self.planner.step(event, self.now)
            self.taken.append(time.thread_time() - started)
            for instruction in instructions:
                self._carry_out(instruction)
        self.planner.check()
        gc.unfreeze()

    def _end_one(self) -> None:
        at = self.chance.randrange(len(self.bound))
        self.bound[at], self.bound[-1] = self.bound[-1], self.bound[at]
        self.ended += 1
        self.play.append(PodGone(self.bound.pop()))

    def _carry_out(self, instruction: Instruction) -> None:
        """As the API server and the scheduler would, at once."""
        assert isinstance(instruction, Release), instruction
        assert instruction.node is not None
        uid = instruction.pod.uid
        self.released += 1
        self.bound.append(uid)
        pod = self.state.snapshot().waiting[uid].pod
        free = msgspec.convert(msgspec.to_builtins(pod), Pod)
        assert free.spec is not None
        free.spec.scheduling_gates = None
        seat = self.state.snapshot().seats[uid]
        self.play += [
            Carried(uid),
            PodSeen(free),
            Reserved(free, instruction.node, seat.record),
            Settled(uid, Outcome.BOUND),
        ]

    def _fill(self, node: str) -> None:
        free = list(range(8))
        while free:
            gpus = min(len(free), self.chance.choice((1, 1, 2, 2, 4, 8)))
            cards, free = tuple(free[:gpus]), free[gpus:]
            record = encode(Devices(float(gpus), {"main": ContainerDevices(cards)}))
            pod = self._pod(gpus, node=node, record=record)
            self.state.apply(PodSeen(pod))
            self.bound.append(pod.metadata.uid)

    def _pod(self, gpus: int | None = None, node: str | None = None, record: str | None = None) -> Pod:
        (wanted, cores) = self.chance.choices(SHAPES, OFTEN)[0]
        if gpus is not None:
            wanted, cores = gpus, 4 * gpus
        self.pods += 1
        name = f"job-{self.pods:06}"
        asks = {"cpu": str(cores), "memory": f"{cores * 4}Gi", "nvidia.com/gpu": str(wanted)}
        spec: dict[str, Any] = {
            "schedulerName": "fair-quota",
            "containers": [{"name": "main", "resources": {"requests": asks}}],
        }
        if node is None:
            spec["schedulingGates"] = [{"name": GATE}]
        else:
            spec["nodeName"] = node
        return msgspec.convert(
            {
                "metadata": {
                    "name": name,
                    "namespace": f"tenant-{self.chance.randrange(TENANTS):02}",
                    "uid": f"00000000-0000-4000-8000-{self.pods:012}",
                    "creationTimestamp": timestamp(1.8e9 + self.pods),
                    "annotations": {"kvitej.io/devices": record} if record else {},
                },
                "spec": spec,
            },
            Pod,
        )


def _policy() -> Policy:
    chance = random.Random(SEED)
    return Policy(
        "all",
        tuple(
            Tenant(
                f"tenant-{number:02}",
                weight=chance.choice((1.0, 2.0, 5.0)),
                least=Share(part=0.01),
                most=Share(part=0.1),
                preemptible=number % 3 > 0,
            )
            for number in range(TENANTS)
        ),
        hold_after=5.0,
    )


def _node(number: int) -> Node:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"gpu-{number:05}",
                "labels": {"kubernetes.io/hostname": f"gpu-{number:05}", "zone": f"z{number % 3}"},
            },
            "status": {"allocatable": {"cpu": "128", "memory": "2Ti", "nvidia.com/gpu": "8"}},
        },
        Node,
    )
