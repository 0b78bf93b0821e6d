"""A book with one node of each kind: an agent that reports, one that is silent, none; whole, shared and MIG cards."""

from extender.cluster.events import Elapsed, NodeSeen, PodSeen
from extender.cluster.reports import Beat
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.wire.gpunode import Instance, Links
from tests.builders import GPU, SHARED, book, node, pod, record_of
from tests.reports import GIB, card, report

MIG = "nvidia.com/mig-3g.40gb"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
NV18 = Links([0, 1, 2, 3], ["X NV18 NV18 SYS", "NV18 X NV18 SYS", "NV18 NV18 X SYS", "SYS SYS SYS X"])


def clinic(stale: str = "labels") -> ClusterState:
    """At 100 s, all agents but that of `silent` have just reported."""
    state = book(config=Config(cards=Cards(watermark=85, foreign=GIB, stale_after=90, stale=stale)))  # type: ignore[arg-type]
    for name, amounts, parts in (
        ("cpu", {}, {}),
        ("bare", {GPU: 2}, {"labels": H100}),
        ("mig", {MIG: 2, GPU: 1}, {"labels": H100}),
        ("shared", {SHARED: 8}, {"replicas": 4}),
        ("silent", {GPU: 1}, {}),
        ("whole", {GPU: 4}, {}),
    ):
        state.apply(NodeSeen(node(name, amounts, memory=80 * 1024 if name != "cpu" else 0, **parts)))
    for sitting in (
        pod("unseen", {GPU: 1}, at="bare"),
        pod("seen", {GPU: 1}, at="bare", record=record_of(gpu=(1,))),
        pod("half", {MIG: 1}, at="mig"),
        pod("other", {MIG: 1}, at="mig"),
        pod("one", {SHARED: 1}, memory="20Gi", at="shared", record=record_of(shared=(0,))),
        pod("two", {SHARED: 1}, memory="10Gi", at="shared", record=record_of(shared=(0,))),
        pod("train", {GPU: 2}, at="whole", record=record_of(gpu=(0, 2))),
    ):
        state.apply(PodSeen(sitting))
    halves = [Instance(at, name="3g.40gb", start=4 * at, size=4, uuids=[f"MIG-{at}"]) for at in range(2)]
    state.apply(
        report(
            card(0, why="Xid 79."),
            card(1, mig=True, pods={"uid-half": 7}, foreign=2, instances=halves),
            node="mig",
            held={"half": ["MIG-1"]},
            resource=MIG,
        )
    )
    state.apply(
        report(
            card(0, reserved=1, pods={"uid-one": 5}),
            card(1, reserved=1, foreign=30),
            node="shared",
            held={"one": ["GPU-0::2"]},
            resource=SHARED,
        )
    )
    state.apply(report(card(0), node="silent"))
    state.apply(
        report(
            card(0, pods={"uid-train": 60}),
            card(1, hidden=40),
            card(2, why="Xid 79: the card has fallen off the bus."),
            card(3, foreign=5),
            node="whole",
            held={"train": ["GPU-0", "GPU-1"], "ghost": ["GPU-3"]},
            offered=["GPU-0", "GPU-1", "GPU-3"],
            links=NV18,
        )
    )
    for at in (0.0, 95.0):
        for name in ("mig", "shared", "whole", *(("silent",) if not at else ())):
            state.apply(Beat(name, at))
        state.apply(Elapsed(at + 5))
    return state
