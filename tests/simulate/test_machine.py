"""The kubelet and the agent of an embedded node: what they give, what they see, and what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.cluster.reports import AgentEvent, Beat, ReportSeen
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster
from extender.simulate.clusterfile import Agent, NodeKind, Process
from extender.simulate.machine import GROWTH, HEARTBEAT, Machine
from extender.wire.gpunode import GPUNodeStatus

GIB = 2**30
AGENT = Agent(memory="80Gi", reserved="1Gi")
SHARES = {"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing"}


class Node:
    """One node of two cards, whole or in two replicas each, whose pods `uses` says what they use."""

    def __init__(self, shared: bool, **uses: int) -> None:
        self.resource = "nvidia.com/gpu.shared" if shared else "nvidia.com/gpu"
        labels = {"nvidia.com/gpu.product": "H100", **(SHARES if shared else {})}
        kind = NodeKind("n", {self.resource: 4 if shared else 2}, labels, agent=AGENT)
        self.cluster = EmbeddedCluster(lambda event: None, Clock())
        self.cluster.add_node("n", labels, kind.allocatable)
        known = {("team", name): amount * GIB for name, amount in uses.items()}
        self.machine = Machine("n", kind, self.cluster, known)
        self.now = 0.0

    async def run(self, name: str, count: int = 1) -> None:
        pod = self.cluster.create("team", name, {self.resource: count}, {}, "x")
        uid = pod["metadata"]["uid"]
        await self.cluster.bind(namespace="team", name=name, uid=uid, node="n", annotations={})

    def look(self, after: float = 0.0) -> list[AgentEvent]:
        self.now += after
        return list(self.machine.look(self.now, 1e9 + self.now))

    def report(self, after: float = 0.0) -> GPUNodeStatus:
        [report] = [event for event in self.look(after) if isinstance(event, ReportSeen)]
        assert report.status is not None
        return report.status

    def held(self) -> dict[str, list[str]]:
        kubelet = self.report().kubelet
        assert kubelet is not None
        return {held.pod: held.devices for held in kubelet.held or []}

    def used(self, after: float = 0.0) -> list[float]:
        memories = [gpu.memory for gpu in self.report(after).gpus]
        return [memory.used / GIB for memory in memories if memory is not None]


async def test_the_kubelet_gives_replicas_of_the_emptiest_card_and_of_those_the_last() -> None:
    node = Node(shared=True)
    for name in ("a", "b", "c"):
        await node.run(name)
    assert node.held() == {"a": ["GPU-n-1::0"], "b": ["GPU-n-0::0"], "c": ["GPU-n-1::1"]}
    node.cluster.delete("team", "b")
    await node.run("d")
    assert node.held() == {"a": ["GPU-n-1::0"], "c": ["GPU-n-1::1"], "d": ["GPU-n-0::0"]}


async def test_whole_cards_go_to_one_pod_each() -> None:
    node = Node(shared=False)
    await node.run("a")
    assert node.held() == {"a": ["GPU-n-1"]}
    await node.run("b")
    assert node.held() == {"a": ["GPU-n-1"], "b": ["GPU-n-0"]}
    node.cluster.delete("team", "a")
    node.cluster.delete("team", "b")
    await node.run("both", 2)
    assert node.held() == {"both": ["GPU-n-1", "GPU-n-0"]}


async def test_a_pod_grows_to_what_it_uses_and_then_there_is_no_more_to_tell() -> None:
    node = Node(shared=True, a=40)
    await node.run("a")
    assert node.used() == [0, 0]
    assert node.used(GROWTH / 2) == [0, 20]
    assert node.used(GROWTH) == [0, 40]
    assert not node.look(1.0)
    node.cluster.delete("team", "a")
    assert node.used(1.0) == [0, 0]


async def test_each_process_is_told_with_its_pod_and_strangers_without() -> None:
    node = Node(shared=True, a=40)
    await node.run("a")
    node.report()
    node.machine.processes.append(Process("x", 1, "50Gi", 60.0))
    status = node.report(GROWTH)
    uid = node.cluster.pods_on("n")[0]["metadata"]["uid"]
    assert [(process.pod, process.used) for process in status.gpus[1].processes or []] == [
        (uid, 40 * GIB),
        (None, 50 * GIB),
    ]
    assert status.gpus[0].processes == []
    memory = status.gpus[1].memory
    assert memory is not None
    assert memory.used == memory.total - (memory.reserved or 0), "no more than there is"


@pytest.mark.parametrize(
    "happen", [lambda machine: machine.failures.update({0: "Xid 79."}), lambda machine: None]
)
async def test_a_report_is_told_once_and_a_beat_while_the_agent_is_there(
    happen: Callable[[Machine], None],
) -> None:
    node = Node(shared=False)
    assert [type(event) for event in node.look()] == [ReportSeen, Beat]
    happen(node.machine)
    changed = [ReportSeen] if node.machine.failures else []
    assert [type(event) for event in node.look(HEARTBEAT / 2)] == changed
    assert [type(event) for event in node.look(HEARTBEAT / 2)] == [Beat]
    node.machine.silent = True
    node.machine.failures[1] = "Xid 48."
    await node.run("a")
    assert node.look(HEARTBEAT) == []
    node.machine.silent = False
    told = node.look(1.0)
    assert [type(event) for event in told] == [ReportSeen, Beat]
    assert told[1] == Beat("n", node.now)
    node.machine.failures.clear()
    healthy = [gpu.health.healthy for gpu in node.report(1.0).gpus]
    assert healthy == [True, True]
