"""The kubelet's devices as a report has them: steady over a restart, in an order that changes only with the facts."""

from __future__ import annotations

from pathlib import Path

from extender.agent.devices import Devices, replicas_of
from extender.agent.podresources import Kubelet
from extender.agent.summary import summary_of
from extender.wire import gpunode
from extender.wire.gpunode import Allocatable, Held, Summary
from tests.agent.builders import GiB, card, status
from tests.agent.kubelet import GPU, FakeKubelet


async def test_the_order_of_the_kubelet_makes_no_difference(kubelet: FakeKubelet, socket: Path) -> None:
    kubelet.pods = {("b", "p", "main"): ["GPU-1", "GPU-0"], ("a", "q", "main"): ["GPU-2"]}
    kubelet.allocatable = ["GPU-2", "GPU-0", "GPU-1"]
    async with Kubelet(socket) as asked:
        devices = Devices(asked, 30)
        said = await devices.read()
        assert said.held == [
            Held("a", "q", "main", GPU, ["GPU-2"]),
            Held("b", "p", "main", GPU, ["GPU-0", "GPU-1"]),
        ]
        assert said.allocatable == [Allocatable(GPU, ["GPU-0", "GPU-1", "GPU-2"])]
        kubelet.pods = dict(reversed(list(kubelet.pods.items())))
        kubelet.allocatable = ["GPU-1", "GPU-0", "GPU-2"]
        assert await devices.read() == said


async def test_a_kubelet_that_is_gone_counts_as_before_for_a_while_and_then_as_unknown(
    kubelet: FakeKubelet, socket: Path
) -> None:
    now = 100.0
    kubelet.pods = {("a", "p", "main"): ["GPU-0"]}
    async with Kubelet(socket) as asked:
        devices = Devices(asked, 30, clock=lambda: now)
        said = await devices.read()
        kubelet.stop()
        now = 129.0
        assert await devices.read() == said
        now = 130.0
        unknown = await devices.read()
        assert (unknown.held, unknown.allocatable) == (None, None)
        assert str(socket) in unknown.problem


def test_a_shared_card_is_counted_by_its_replicas() -> None:
    ids = ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1", "MIG-2::0"]
    assert replicas_of(gpunode.Kubelet(allocatable=[Allocatable(GPU, ids)])) == {"GPU-0": 3, "MIG-2": 1}
    assert replicas_of(gpunode.Kubelet(problem="gone")) == {}


def test_a_card_is_free_when_nobody_holds_it_and_nothing_runs_on_it() -> None:
    held = [Held("a", "p", "main", "nvidia.com/gpu.shared", ["GPU-0::3"])]
    cards = [card(0), card(1), card(2, used=GiB, pods={None: GiB}), card(3)]
    cards[3].health.healthy = False
    cards.append(card(4))
    cards[4].processes = None
    said = status(*cards, kubelet=gpunode.Kubelet(held=held))
    assert summary_of(said) == Summary(5, 1, "1 of 400 GiB", "1 of 5 unhealthy")
