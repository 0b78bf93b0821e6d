"""What a report changes in the book: cards, memory, trouble, who is where, and how long it holds."""

from typing import Any

import msgspec
import pytest

from extender.cluster.events import Elapsed, Filled, NodeGone, NodeSeen, PodGone, PodSeen, Promised
from extender.cluster.notices import AgentSilent, Leaked, Moved, ReportUnreadable
from extender.cluster.reports import Beat, ReportGone, ReportSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.cluster.truth import truth_of
from extender.config import Cards, Config
from extender.decide.bind import Granted, Veto, seat_pod
from extender.decide.place import fits_without
from extender.wire.gpunode import GPUNodeSpec, Instance, Links
from extender.wire.objects import Node
from tests.builders import GPU, SHARED, book, node, pod, record_of
from tests.reports import GIB, card, report

HALF = Config(cards=Cards(watermark=50, foreign=2 * GIB, stale_after=90))


def wholes(**parts: Any) -> Node:
    """Two whole cards of 80 GiB."""
    return node("n0", {GPU: 2}, memory=80 * 1024, **parts)


def shares(**parts: Any) -> Node:
    """Two cards of 80 GiB in four replicas each."""
    labels = {"nvidia.com/gpu.product": "H100", **parts.pop("labels", {})}
    return node("n0", {SHARED: 8}, memory=80 * 1024, replicas=4, labels=labels, **parts)


def ask(state: ClusterState, name: str = "new", resource: str = GPU, count: int = 1, **parts: Any) -> str:
    """Bind's answer for a new pod on n0: empty if granted."""
    asking = pod(name, {resource: count}, **parts)
    verdict = seat_pod(state.snapshot(), asking.metadata.uid, request_of(asking), "n0")
    state.check()
    return verdict.reason if isinstance(verdict, Veto) else ""


def column(state: ClusterState, name: str) -> list[int]:
    snapshot = state.snapshot()
    cards = int(snapshot.table.cards[snapshot.index.get("n0")])
    return [int(each) for each in getattr(snapshot.table, name)[snapshot.index.get("n0")][:cards]]


def test_the_watermark_leaves_a_part_of_what_the_driver_leaves() -> None:
    state = book(wholes(), config=HALF)
    assert column(state, "memory") == [40 * GIB, 40 * GIB]
    state.apply(report(card(0, total=96, reserved=2, slack=1), card(1, total=0, unreadable=True)))
    assert column(state, "memory") == [46 * GIB, 40 * GIB], "a card whose memory is not told is as labelled"
    assert state.snapshot().inventories["n0"].card_memory == 96 * GIB
    state.apply(Filled("n0", 0.75))
    assert column(state, "memory") == [int(70.5 * GIB) - GIB, 60 * GIB]
    state.apply(Filled("n0", None))
    assert column(state, "memory") == [46 * GIB, 40 * GIB]
    state.apply(ReportGone("n0"))
    assert column(state, "memory") == [46 * GIB, 40 * GIB], "what is missing opens nothing"
    state.apply(NodeGone("n0"))
    state.apply(NodeSeen(wholes()))
    assert column(state, "memory") == [40 * GIB, 40 * GIB]


def test_a_whole_card_that_others_use_closes_the_node_unless_it_is_given_away() -> None:
    state = book(wholes(), config=HALF)
    state.apply(report(card(0), card(1, foreign=2), held={}))
    assert ask(state) == "", "as much as the floor is let be"
    state.apply(report(card(0), card(1, foreign=3), held={}))
    assert ask(state) == (
        "a GPU that the kubelet could give the pod is used by processes that nobody scheduled: "
        "GPU 1 (GPU-1) of n0: 3.0 GiB of its 80.0 GiB are in use"
    )
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    assert ask(state).startswith("a GPU that"), "the plan says 0, but the kubelet has not told yet"
    state.apply(report(card(0), card(1, foreign=3), held={"one": ["GPU-1"]}))
    assert ask(state) == "", "it gave away the bad one"
    state.apply(report(card(0), card(1), held={"one": ["GPU-1"]}))
    assert ask(state) == ""


def test_where_a_plugin_enforces_the_plan_one_bad_card_is_only_left_out() -> None:
    state = book(wholes(labels={"kvitej.io/card-choice": "planned"}), config=HALF)
    state.apply(report(card(0, foreign=3), card(1), held={}))
    assert ask(state) == ""
    assert ask(state, count=2) == "the GPUs asked for are taken: 2 nvidia.com/gpu on n0"


def test_a_veto_names_node_card_used_declared_and_watermark() -> None:
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="20Gi", at="n0", record=record_of(shared=(0,)))))
    state.apply(
        report(card(0, pods={"uid-one": 5}), card(1, foreign=30), held={"one": ["GPU-0::2"]}, resource=SHARED)
    )
    assert ask(state, resource=SHARED, memory="10Gi") == ""
    assert ask(state, resource=SHARED, memory="15Gi") == (
        "a GPU that the kubelet could give the pod would be filled beyond its watermark: GPU 1 (GPU-1) of n0: "
        "30.0 GiB used, 0.0 GiB declared by others and not used yet, 15.0 GiB declared by the pod, "
        "and the watermark of 50 % of 80.0 GiB is 40.0 GiB"
    )
    state.apply(report(card(0, pods={"uid-one": 5}), card(1), held={"one": ["GPU-0::2"]}, resource=SHARED))
    assert "GPU 0 (GPU-0) of n0: 5.0 GiB used, 15.0 GiB declared by others" in ask(
        state, resource=SHARED, memory="25Gi"
    )


def test_declared_memory_counts_until_real_use_reaches_it_and_never_twice() -> None:
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="20Gi", at="n0", record=record_of(shared=(0,)))))
    for used, counted in ((0, 20), (5, 20), (20, 20), (30, 30)):
        state.apply(
            report(card(0, pods={"uid-one": used}), card(1), held={"one": ["GPU-0::0"]}, resource=SHARED)
        )
        both = zip(column(state, "memory_used"), column(state, "extra"), strict=True)
        assert [charged + extra for charged, extra in both] == [counted * GIB, 0]


@pytest.mark.parametrize("record", [record_of(shared=(0,)), record_of(shared=(1,)), None])
@pytest.mark.parametrize("held", [{}, None])
def test_nor_is_it_while_the_kubelet_has_not_told_where(record: str | None, held: Any) -> None:
    """The pod's use is seen on card 0, its 20 GiB may be on either."""
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="20Gi", at="n0", record=record)))
    state.apply(report(card(0, pods={"uid-one": 15}), card(1), held=held, resource=SHARED))
    assert ask(state, resource=SHARED, memory="20Gi") == ""
    assert ask(state, resource=SHARED, memory="21Gi") != ""


@pytest.mark.parametrize("told", [True, False])
def test_who_leaves_takes_along_what_it_uses_beyond_its_charge(told: bool) -> None:
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="5Gi", at="n0", record=record_of(shared=(0,)))))
    held = {"one": ["GPU-0::0"]} if told else {}
    state.apply(report(card(0, pods={"uid-one": 35}), card(1), held=held, resource=SHARED))
    snapshot = state.snapshot()
    wants = snapshot.ask(request_of(pod("new", {SHARED: 1}, memory="30Gi")))
    assert wants is not None
    assert ask(state, resource=SHARED, memory="30Gi") != ""
    assert fits_without(snapshot, wants, "n0", [snapshot.seats["uid-one"]])
    state.apply(NodeGone("n0"))
    state.apply(ReportGone("n0"))
    state.apply(NodeSeen(shares()))
    assert ask(state, resource=SHARED, memory="30Gi") == ""


def test_what_cannot_be_seen_belongs_to_the_owner_of_the_card_and_to_nobody_on_a_shared_one() -> None:
    state = book(wholes(), config=HALF)
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    state.apply(report(card(0, hidden=50), card(1, listed=False, used=0), held={"one": ["GPU-0"]}))
    assert column(state, "trouble") == [0, 0]
    state.apply(report(card(0), card(1, listed=False, used=50), held={"one": ["GPU-0"]}))
    assert "GPU 1" in ask(state)
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="20Gi", at="n0", record=record_of(shared=(0,)))))
    state.apply(report(card(0, hidden=15), card(1), held={"one": ["GPU-0::0"]}, resource=SHARED))
    assert ask(state, resource=SHARED, memory="6Gi") != "", "nobody knows whose the 15 GiB are"
    assert ask(state, resource=SHARED, memory="5Gi") == ""


def test_a_pod_without_gpus_that_uses_one_is_nobody_scheduled() -> None:
    state = book(wholes(), config=HALF)
    state.apply(PodSeen(pod("monitor", {}, at="n0")))
    state.apply(report(card(0, pods={"uid-monitor": 9}), card(1), held={}))
    assert "GPU 0" in ask(state)


def test_an_unhealthy_card_takes_nothing_and_keeps_its_charge() -> None:
    state = book(wholes(), config=HALF)
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    state.apply(report(card(0, why="Xid 79."), card(1), held={"one": ["GPU-0"]}))
    assert column(state, "exclusive") == [1, 0]
    assert ask(state) == "", "the kubelet can't give it: it is held"
    state.apply(PodGone("uid-one"))
    assert (
        ask(state) == "a GPU that the kubelet could give the pod is not healthy: GPU 0 (GPU-0) of n0: Xid 79."
    )
    state.apply(report(card(0, why="Xid 79."), card(1), held={}, offered=["GPU-1"]))
    assert ask(state) == "", "the device plugin has taken it out"
    assert ask(state, count=2) != ""
    state.apply(report(card(0), card(1), held={}, offered=["GPU-0", "GPU-1"]))
    assert ask(state, count=2) == ""


def test_an_instance_on_an_unhealthy_card_keeps_its_kind_from_being_given() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    state = book(node("n0", {mig: 14}))
    instances = [
        [Instance(at, name="1g.10gb", uuids=[f"MIG-{card_}-{at}"]) for at in range(7)] for card_ in range(2)
    ]
    held = {"one": [f"MIG-1-{at}" for at in range(7)]}
    for pods, granted in ((held, True), ({}, False)):
        state.apply(
            report(
                card(0, mig=True, instances=instances[0]),
                card(1, mig=True, instances=instances[1], why="Broken."),
                held=pods,
                resource=mig,
            )
        )
        assert (ask(state, resource=mig) == "") is granted


SLICE = "nvidia.com/mig-1g.10gb"


def cut(cards: int = 2) -> Node:
    """Cards of which instances are cut on demand."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": str(cards),
        "kvitej.io/mig": "dynamic",
    }
    return node("n0", {SLICE: 7 * cards}, labels=labels)


def instances(number: int, *starts: int) -> list[Instance]:
    return [
        Instance(start, name="1g.10gb", start=start, size=1, uuids=[f"MIG-{number}-{start}"])
        for start in starts
    ]


def test_instances_keep_their_place_on_a_card_that_takes_no_new_work() -> None:
    state = book(cut())
    first, second = instances(0, *range(7)), instances(1)
    held = {f"p{start}": [f"MIG-0-{start}"] for start in range(7)}
    for name in held:
        state.apply(PodSeen(pod(name, {SLICE: 1}, at="n0", record=record_of(gpu=()))))
    for why in ("", "Xid 79.", ""):
        cards = card(0, mig=True, instances=first, why=why), card(1, mig=True, instances=second)
        state.apply(report(*cards, held=held, resource=SLICE))
        assert ask(state, resource=SLICE, count=7) == "", "the other card is free"
        assert ask(state, resource=SLICE, count=8) != ""
    state.apply(
        report(
            card(0, mig=True, instances=first, why="Xid 79."), card(1, mig=True), held=held, resource=SLICE
        )
    )
    state.apply(PodGone("uid-p0"))
    assert ask(state, resource=SLICE, count=8) != "", "what comes free on it is given to nobody"
    state.check()


def test_an_instance_where_none_can_be_is_not_believed() -> None:
    state = book(cut())
    state.apply(PodSeen(pod("one", {SLICE: 1}, at="n0")))
    state.apply(
        report(card(0, mig=True, instances=instances(0, 9)), held={"one": ["MIG-0-9"]}, resource=SLICE)
    )
    assert not state.snapshot().seats["uid-one"].told
    assert ask(state, resource=SLICE, count=13) == ""
    assert ask(state, resource=SLICE, count=14) != ""


@pytest.mark.parametrize("kind", ["single", "mixed", "dynamic"])
def test_instances_that_a_gone_pod_still_holds_are_given_to_nobody(kind: str) -> None:
    resource = GPU if kind == "single" else SLICE
    labels = {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
    }
    nodes = {
        "single": node("n0", {GPU: 7}, labels=labels),
        "mixed": node("n0", {SLICE: 7}),
        "dynamic": cut(1),
    }
    state = book(nodes[kind])
    state.apply(
        report(card(0, mig=True, instances=instances(0, 2)), held={"ghost": ["MIG-0-2"]}, resource=resource)
    )
    assert ask(state, resource=resource, count=7) == ""
    for now in (0.0, 31.0):
        state.apply(Beat("n0", now))
        state.apply(Elapsed(now))
    assert ask(state, resource=resource, count=7) != ""
    assert ask(state, resource=resource, count=6) == ""


def test_where_not_all_cards_are_seen_a_share_costs_at_least_its_part() -> None:
    """An agent that sees one of two cards, or cannot read the memory of one; the kubelet knows both."""
    held = {f"p{at}": [f"GPU-{at // 4}::{at % 4}"] for at in range(8)}
    for seen in ([card(0)], [card(0), card(1, unreadable=True)]):
        state = book(shares(), config=HALF)
        for at, name in enumerate(held):
            state.apply(PodSeen(pod(name, {SHARED: 1}, at="n0", record=record_of(shared=(at // 4,)))))
        state.apply(report(*seen, held=held, resource=SHARED))
        assert column(state, "given") == [4, 4]
        state.apply(PodGone("uid-p7"))
        assert ask(state, resource=SHARED, memory="11Gi") != "", "three parts of 10 GiB are beside it"
        assert ask(state, resource=SHARED, memory="10Gi") == ""


def test_a_report_that_knows_nothing_leaves_the_node_to_its_labels() -> None:
    """As of an agent that was given neither the driver's library nor the kubelet's socket."""
    state = book(shares(), config=HALF)
    state.apply(report())
    for at in range(7):
        assert ask(state, resource=SHARED) == ""
        state.apply(PodSeen(pod(f"p{at}", {SHARED: 1}, at="n0", record=record_of(shared=(at // 4,)))))
    assert ask(state, resource=SHARED, memory="11Gi") != ""
    assert ask(state, resource=SHARED, memory="10Gi") == ""


def test_what_runs_on_a_card_whose_memory_is_not_told_is_not_nothing() -> None:
    state = book(wholes(), config=HALF)
    state.apply(report(card(0), card(1, foreign=50, unreadable=True), held={}))
    assert "GPU 1" in ask(state)


def test_a_report_completes_what_labels_do_not_tell() -> None:
    state = book(node("n0", {GPU: 2}))
    links = Links([0, 1], ["X NV18", "NV18 X"])
    state.apply(report(card(0), card(1), links=links))
    inventory = state.snapshot().inventories["n0"]
    assert (inventory.product, inventory.card_memory) == ("NVIDIA-H100-80GB-HBM3", 80 * GIB)
    assert inventory.links is not None
    assert state.snapshot().table.topology[0] >= 0
    broken = Links([0, 1], ["X NVX", "NV18 X"])
    notices = state.apply(report(card(0), card(1), links=broken))
    assert [str(notice) for notice in notices] == [
        "the links of node n0 count as unknown: its report cannot be understood: 'NVX' is no link between GPUs; "
        "links are X, NV1 to NV64, PIX, PXB, PHB, NODE and SYS."
    ]
    assert state.snapshot().inventories["n0"].links is None


def test_a_lost_card_keeps_the_numbers_of_the_others_and_is_no_part_of_the_pool() -> None:
    state = book(node("n0", {GPU: 2}))
    state.apply(report(card(0), card(1, why="Lost."), card(2), held={}, offered=["GPU-0", "GPU-2"]))
    inventory = state.snapshot().inventories["n0"]
    assert (inventory.cards, inventory.unseen) == (3, 1)
    state.apply(PodSeen(pod("one", {GPU: 2}, at="n0", record=record_of(gpu=(0, 1)))))
    state.apply(
        report(
            card(0),
            card(1, why="Lost."),
            card(2),
            held={"one": ["GPU-0", "GPU-2"]},
            offered=["GPU-0", "GPU-2"],
        )
    )
    assert column(state, "exclusive") == [1, 0, 1]
    state.check()


def test_the_book_follows_the_kubelet_and_says_so_once() -> None:
    state = book(wholes())
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    told = report(card(0), card(1), held={"one": ["GPU-1"]})
    [moved] = state.apply(told)
    assert isinstance(moved, Moved)
    assert (moved.name, moved.planned, moved.given) == ("one", "GPU 0", "GPU 1")
    assert column(state, "exclusive") == [0, 1]
    assert state.apply(told) == ()
    assert state.apply(report(card(0), card(1, pods={"uid-one": 3}), held={"one": ["GPU-1"]})) == ()
    state.apply(PodSeen(pod("two", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    assert state.apply(report(card(0), card(1), held={"one": ["GPU-1"], "two": ["GPU-0"]})) == ()
    state.check()


def test_what_the_kubelet_tells_is_believed_only_if_it_is_what_the_pod_asks() -> None:
    state = book(wholes())
    state.apply(PodSeen(pod("one", {GPU: 2}, at="n0", record=record_of(gpu=(0, 1)))))
    assert state.apply(report(card(0), card(1), held={"one": ["GPU-1"]})) == ()
    assert not state.snapshot().seats["uid-one"].told
    assert column(state, "exclusive") == [1, 1]


def test_devices_that_a_gone_pod_still_holds_are_named_and_given_to_nobody() -> None:
    state = book(wholes())
    leak = report(card(0), card(1), held={"ghost": ["GPU-1"]})
    state.apply(leak)
    for now in (0.0, 29.0):
        state.apply(Beat("n0", now))
        assert state.apply(Elapsed(now)) == ()
    assert ask(state, count=2) == ""
    assert state.apply(Elapsed(31.0)) == (), "the agent has not said so since"
    state.apply(Beat("n0", 32.0))
    [leaked] = state.apply(Elapsed(32.0))
    assert isinstance(leaked, Leaked)
    assert (leaked.node, leaked.name, leaked.devices) == ("n0", "ghost", "GPU 1")
    assert state.apply(Elapsed(33.0)) == ()
    assert ask(state) == ""
    assert ask(state, count=2) == "the GPUs asked for are taken: 2 nvidia.com/gpu on n0"
    state.apply(report(card(0), card(1), held={}))
    assert ask(state, count=2) == ""


def test_a_pod_that_is_seen_later_than_its_devices_is_no_leak() -> None:
    state = book(wholes())
    state.apply(report(card(0), card(1), held={"one": ["GPU-1"]}))
    state.apply(Elapsed(0.0))
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    state.apply(Beat("n0", 100.0))
    assert state.apply(Elapsed(100.0)) == ()


def test_a_pod_is_not_believed_to_have_what_one_of_its_name_had_before() -> None:
    """As in a StatefulSet: the kubelet names pods without their uid, and its word may be of the one before."""
    old = pod("db-0", {SHARED: 1}, memory="20Gi", at="n0", uid="old", record=record_of(shared=(0,)))
    new = pod("db-0", {SHARED: 1}, memory="20Gi", at="n0", uid="new", record=record_of(shared=(0,)))
    told = report(card(0), card(1), held={"db-0": ["GPU-0::0"]}, resource=SHARED)
    for order in ((PodGone("old"), PodSeen(new)), (PodSeen(new), PodGone("old"))):
        state = book(shares(), pods=[old], config=HALF)
        state.apply(told)
        assert state.snapshot().seats["old"].told
        for event in order:
            state.apply(event)
        assert not state.snapshot().seats["new"].told
        assert ask(state, resource=SHARED, memory="25Gi") != "", "it may be on either card"
        state.apply(told)
        assert not state.snapshot().seats["new"].told, "nothing new was said"
        state.apply(report(card(0), card(1), held={"db-0": ["GPU-1::0"]}, resource=SHARED))
        assert state.snapshot().seats["new"].told
        assert column(state, "given") == [0, 1]


@pytest.mark.parametrize("pod_first", [True, False])
def test_nor_after_a_restart_if_it_was_said_before_the_pod_began(pod_first: bool) -> None:
    new = pod("db-0", {GPU: 1}, at="n0", record=record_of(gpu=(1,)), created="2026-11-30T12:00:00Z")
    for when, told in (("2026-11-30T11:59:58Z", False), ("2026-11-30T12:00:02Z", True)):
        state = book(wholes())
        said = report(card(0), card(1), held={"db-0": ["GPU-0"]}, when=when)
        for event in (PodSeen(new), said) if pod_first else (said, PodSeen(new)):
            state.apply(event)
        state.check()
        assert state.snapshot().seats["uid-db-0"].told is told


def test_what_the_kubelet_stands_by_for_long_enough_is_of_the_pod_that_has_the_name_now() -> None:
    old, new = (pod("db-0", {GPU: 1}, at="n0", uid=uid, record=record_of(gpu=(1,))) for uid in ("old", "new"))
    state = book(wholes(), pods=[old])
    state.apply(report(card(0), card(1), held={"db-0": ["GPU-0"]}))
    state.apply(PodGone("old"))
    state.apply(Elapsed(0.0))
    state.apply(PodSeen(new))
    state.apply(Elapsed(20.0))
    for beat, told in ((49.0, False), (51.0, True)):
        state.apply(Beat("n0", beat))
        state.apply(Elapsed(52.0))
        state.check()
        assert state.snapshot().seats["new"].told is told
    assert column(state, "exclusive") == [1, 0]


def test_a_leak_ends_when_the_kubelet_says_other_devices_of_its_name() -> None:
    state = book(wholes())
    state.apply(report(card(0), card(1), held={"db-0": ["GPU-1"]}))
    for now in (0.0, 31.0):
        state.apply(Beat("n0", now))
        state.apply(Elapsed(now))
    assert ask(state, count=2) != "", "it is leaked"
    state.apply(PodSeen(pod("db-0", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    assert not state.snapshot().seats["uid-db-0"].told
    state.apply(report(card(0), card(1), held={"db-0": ["GPU-0"]}))
    assert state.snapshot().seats["uid-db-0"].told
    assert ask(state) == ""
    state.apply(PodGone("uid-db-0"))
    state.apply(report(card(0), card(1), held={}))
    assert ask(state, count=2) == ""


def test_a_leak_ends_when_the_pod_was_only_seen_late() -> None:
    state = book(wholes())
    state.apply(report(card(0), card(1), held={"late": ["GPU-1"]}))
    for now in (0.0, 31.0):
        state.apply(Beat("n0", now))
        state.apply(Elapsed(now))
    state.apply(PodSeen(pod("late", {GPU: 1}, at="n0", record=record_of(gpu=(1,)))))
    for now in (40.0, 80.0):
        state.apply(Beat("n0", now))
        state.apply(Elapsed(now))
    assert state.snapshot().seats["uid-late"].told
    assert ask(state) == "", "one of the two cards is free"


def test_what_was_only_promised_has_no_device_yet() -> None:
    state = book(wholes())
    state.apply(report(card(0), card(1), held={"db-0": ["GPU-1"]}))
    waits = pod("db-0", {GPU: 1})
    state.apply(PodSeen(waits))
    state.apply(Promised(waits, "n0", record_of(gpu=(0,))))
    assert not state.snapshot().seats["uid-db-0"].told


def test_a_pod_that_is_changed_keeps_its_devices() -> None:
    state = book(shares(), config=HALF)
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="20Gi", at="n0", record=record_of(shared=(0,)))))
    state.apply(report(card(0), card(1), held={"one": ["GPU-1::0"]}, resource=SHARED))
    state.apply(PodSeen(pod("one", {SHARED: 1}, memory="10Gi", at="n0", record=record_of(shared=(0,)))))
    assert column(state, "given") == [0, 1]


def test_who_waits_is_woken_when_the_kubelet_has_told_which_card_it_gave() -> None:
    state = book(wholes(), config=HALF)
    state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    bad = [card(0), card(1, foreign=3)]
    state.apply(report(*bad, held={}))
    assert ask(state) != ""
    room = state.snapshot().room
    state.apply(report(*bad, held={"one": ["GPU-1"]}))
    assert ask(state) == ""
    assert state.snapshot().room > room


def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    state = book(wholes())
    state.apply(report(card(0), card(1), held={}))
    for number in range(3):
        state.apply(PodSeen(pod(f"p{number}", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
        state.apply(PodGone(f"uid-p{number}"))
    assert not state.snapshot().reports["n0"].departed


@pytest.mark.parametrize("stale", ["labels", "closed"])
def test_a_silent_agent(stale: str) -> None:
    state = book(wholes(), config=Config(cards=Cards(stale_after=90, stale=stale)))  # type: ignore[arg-type]
    state.apply(report(card(0), card(1, why="Broken."), held={}))
    state.apply(Beat("n0", 10.0))
    assert state.apply(Elapsed(100.0)) == ()
    [silent] = state.apply(Elapsed(101.0))
    assert isinstance(silent, AgentSilent)
    assert (silent.age, silent.closed) == (91.0, stale == "closed")
    assert state.apply(Elapsed(102.0)) == ()
    unfit = "a GPU that the kubelet could give the pod is not healthy"
    closed = "the node's agent has not reported for too long, so kvitej places nothing there: 92 s"
    assert ask(state).startswith(closed if stale == "closed" else unfit)
    state.apply(Beat("n0", 102.0))
    assert state.apply(Elapsed(103.0)) == ()
    assert ask(state).startswith(unfit)


def test_an_agent_that_never_beat_is_silent_from_when_it_was_first_missed() -> None:
    state = book(wholes(), config=Config(cards=Cards(stale_after=90)))
    state.apply(report(card(0), card(1)))
    assert [state.apply(Elapsed(now)) for now in (500.0, 590.0)] == [(), ()]
    assert len(state.apply(Elapsed(591.0))) == 1


def test_while_an_agent_is_silent_cards_of_pods_that_end_come_free() -> None:
    for beats in (True, False):
        state = book(wholes(), config=HALF)
        state.apply(PodSeen(pod("one", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
        state.apply(report(card(0, pods={"uid-one": 30}, hidden=9), card(1), held={"one": ["GPU-0"]}))
        state.apply(Beat("n0", 0.0))
        state.apply(PodGone("uid-one"))
        state.apply(Beat("n0", 1000.0 if beats else 0.0))
        state.apply(Elapsed(1000.0))
        assert (ask(state) == "") is not beats, "a fresh report says what is on the card until the next one"


def test_an_unreadable_report_changes_nothing_and_is_told() -> None:
    state = book(wholes(), config=HALF)
    state.apply(report(card(0), card(1, why="Broken."), held={}))
    [notice] = state.apply(ReportSeen("n0", GPUNodeSpec(), None, "no JSON"))
    assert isinstance(notice, ReportUnreadable)
    assert "not healthy" in ask(state)
    assert state.apply(ReportSeen("n0", GPUNodeSpec(), None)) == ()


def test_reports_and_nodes_come_and_go_in_any_order() -> None:
    state = book()
    state.apply(report(card(0), card(1, why="Broken."), held={}))
    state.apply(Beat("n0", 0.0))
    state.apply(Elapsed(1.0))
    state.apply(NodeSeen(wholes()))
    assert "not healthy" in ask(state)
    state.apply(NodeGone("n0"))
    state.apply(report(card(0), card(1), held={}))
    state.apply(NodeSeen(wholes()))
    assert ask(state) == ""
    state.apply(NodeGone("n0"))
    state.apply(ReportGone("n0"))
    state.apply(NodeSeen(wholes()))
    assert ask(state, count=2) == ""


def test_a_report_that_is_deleted_opens_no_card() -> None:
    state = book(wholes(), config=Config(cards=Cards(stale_after=90, stale="closed")))
    state.apply(report(card(0), card(1, why="Broken."), held={}))
    state.apply(Beat("n0", 10.0))
    state.apply(Elapsed(20.0))
    state.apply(ReportGone("n0"))
    assert "not healthy" in ask(state)
    [silent] = state.apply(Elapsed(21.0))
    assert isinstance(silent, AgentSilent)
    assert "has not reported" in ask(state)
    state.apply(report(card(0), card(1), held={}))
    state.apply(Beat("n0", 22.0))
    state.apply(Elapsed(23.0))
    assert ask(state, count=2) == ""


def test_a_report_of_anything_is_read() -> None:
    """Numbers that no card has and cards that lack everything."""
    event = report(card(0, total=2**40, used=-5), card(0, total=80, reserved=90, used=200), card(3, used=7))
    assert event.status is not None
    truth = truth_of(event.spec, event.status)
    assert [each.total >> 30 for each in truth.cards] == [0, 80, 80]
    assert [each.budget(1.0) >> 30 for each in truth.cards] == [0, 0, 80]
    assert all(each.used >= 0 for each in truth.cards)
    state = book(wholes())
    state.apply(event)
    state.check()
    assert isinstance(seat_pod(state.snapshot(), "u", request_of(pod("p", {GPU: 1})), "n0"), Granted | Veto)


def test_a_report_that_is_read_again_is_no_younger() -> None:
    state = book(wholes(), config=Config(cards=Cards(stale_after=90, stale="closed")))
    old, new = (
        ReportSeen(told.node, told.spec, msgspec.structs.replace(told.status, when=when))
        for when in ("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z")
        if (told := report(card(0), card(1))).status is not None
    )
    state.apply(old)
    state.apply(Beat("n0", 0.0))
    state.apply(Elapsed(100.0))
    state.apply(old)
    assert "has not reported" in ask(state)
    state.apply(new)
    assert ask(state) == "", "it is known to be fresh before its beat is"
