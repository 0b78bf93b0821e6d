"""A node of the embedded cluster from within: its kubelet, which gives devices to pods, and its agent, which reports.

The kubelet knows nothing of kvitej's plan: it gives each pod devices of the emptiest cards, the last of them first. A
pod's memory grows to what it comes to use. The agent tells what it sees as the real one does: a report when something
has changed, and a beat as long as it is there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from extender.cluster.reports import AgentEvent, Beat, ReportSeen
from extender.cluster.request import GPU, SHARED
from extender.simulate.cluster import EmbeddedCluster, asks_of
from extender.simulate.clusterfile import Agent, NodeKind, Process, inventory_as_labelled
from extender.wire import gpunode
from extender.wire.gpunode import (
    Allocatable,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    Health,
    Held,
    Kubelet,
    Memory,
)
from extender.wire.quantity import whole

GROWTH = 60.0
"""Seconds in which a pod's memory grows to what it comes to use, in `_STAGES` steps."""
HEARTBEAT = 30.0
_STAGES = 4


class Device(NamedTuple):
    """What the kubelet gives: a card, or one of its replicas."""

    id: str
    card: int


@dataclass(frozen=True, slots=True)
class _Given:
    namespace: str
    pod: str
    devices: tuple[Device, ...]
    since: float


class Machine:
    """One node of `kind`, which has an `agent`.

    `uses` is what pods come to use per card in bytes, by namespace and name. `processes`, `failures` (by card, why)
    and `silent` are what happens here, and are changed from outside.
    """

    def __init__(
        self, name: str, kind: NodeKind, cluster: EmbeddedCluster, uses: Mapping[tuple[str, str], int]
    ) -> None:
        assert kind.agent is not None
        inventory = inventory_as_labelled(kind, name)
        self.name = name
        self.agent: Agent = kind.agent
        self.cards = inventory.cards
        self.processes: list[Process] = []
        self.failures: dict[int, str] = {}
        self.silent = False
        self._cluster = cluster
        self._uses = uses
        self._resource = SHARED if inventory.replicas else GPU
        self._replicas = inventory.replicas
        self._model = inventory.product
        self._devices = tuple(self._offered())
        self._given: dict[str, _Given] = {}
        self._told: GPUNodeStatus | None = None
        self._beaten: float | None = None

    def look(self, now: float, wall: float) -> Iterator[AgentEvent]:
        """The agent looks, at `now` of the play and `wall` of the day; what it has to tell."""
        self._give(now)
        if self.silent:
            return
        status = GPUNodeStatus(
            gpus=[self._status(card, now) for card in range(self.cards)],
            kubelet=Kubelet(
                held=[
                    Held(
                        each.namespace,
                        each.pod,
                        "main",
                        self._resource,
                        [device.id for device in each.devices],
                    )
                    for each in self._given.values()
                ],
                allocatable=[Allocatable(self._resource, [device.id for device in self._devices])],
            ),
        )
        if status != self._told:
            self._told = status
            when = datetime.fromtimestamp(wall, UTC).isoformat()
            spec = GPUNodeSpec(
                gpus=[gpunode.GPU(self._uuid(card), card, self._model) for card in range(self.cards)]
            )
            told = GPUNodeStatus(when=when, gpus=status.gpus, kubelet=status.kubelet)
            yield ReportSeen(self.name, spec, told)
        if self._beaten is None or now - self._beaten >= HEARTBEAT:
            self._beaten = now
            yield Beat(self.name, now)

    # the kubelet

    def _give(self, now: float) -> None:
        """Take back what pods had that are gone, and give to those that are new."""
        here = {pod["metadata"]["uid"]: pod for pod in self._cluster.pods_on(self.name)}
        self._given = {uid: given for uid, given in self._given.items() if uid in here}
        for uid, pod in here.items():
            count = dict(asks_of(pod)).get(self._resource, 0) // 1000
            if count and uid not in self._given:
                metadata = pod["metadata"]
                self._given[uid] = _Given(
                    metadata["namespace"], metadata["name"], tuple(self._choose(count)), now
                )

    def _choose(self, count: int) -> Iterator[Device]:
        held = [device for given in self._given.values() for device in given.devices]
        free = [device for device in self._devices if device not in held]
        load = Counter(device.card for device in held)
        for _ in range(min(count, len(free))):
            device = min(free, key=lambda each: (load[each.card], -each.card))
            free.remove(device)
            load[device.card] += 1
            yield device

    def _offered(self) -> Iterator[Device]:
        for card in range(self.cards):
            if not self._replicas:
                yield Device(self._uuid(card), card)
            for replica in range(self._replicas):
                yield Device(f"{self._uuid(card)}::{replica}", card)

    # what the agent sees

    def _status(self, card: int, now: float) -> GPUStatus:
        total, reserved = whole(self.agent.memory), whole(self.agent.reserved)
        processes = [
            gpunode.Process(1000 + number, amount, uid)
            for number, (uid, given) in enumerate(self._given.items())
            if (amount := self._used(given, card, now))
        ]
        processes += [
            gpunode.Process(100 + number, whole(each.takes))
            for number, each in enumerate(self.processes)
            if each.card == card
        ]
        used = min(sum(process.used or 0 for process in processes), total - reserved)
        why = self.failures.get(card)
        return GPUStatus(
            uuid=self._uuid(card),
            index=card,
            health=Health(healthy=why is None, why=[why] if why is not None else []),
            memory=Memory(total, used, reserved, slack=-(-total // 100)),
            processes=processes,
            sharing="time-slicing" if self._replicas else "none",
        )

    def _used(self, given: _Given, card: int, now: float) -> int:
        """What the pod uses of the card by now, in bytes."""
        devices = sum(device.card == card for device in given.devices)
        stage = min(int((now - given.since) / GROWTH * _STAGES), _STAGES)
        return devices * self._uses.get((given.namespace, given.pod), 0) * stage // _STAGES

    def _uuid(self, card: int) -> str:
        return f"GPU-{self.name}-{card}"
