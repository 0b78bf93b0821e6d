"""What is known of the cards: who is on them and from where that is known, and numbers that the doors go by."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from _core import OCCUPIED, STALE, UNHEALTHY, WATERMARK
from extender.cardtable import table_of
from extender.cluster.events import Elapsed, NodeSeen, PodGone, PodSeen, Reserved
from extender.cluster.reports import Beat, ReportGone, ReportSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.decide.bind import Granted, Veto, seat_pod
from extender.decide.cards import cards_of, nodes_with_cards
from extender.decide.reasons import SENTENCES
from extender.decide.watermarks import PAUSE, STEPS
from extender.serve.metrics import Metrics
from extender.wire.cards import Card, Devices, FreeInstance, Holder, NodeCards, Offer
from extender.wire.gpunode import GPUNodeSpec, GPUNodeStatus, Instance, Kubelet, Problem
from tests.builders import GPU, SHARED, book, node, pod, record_of
from tests.cards import clinic
from tests.cluster.test_kinds import ONE, THREE, cut_on_demand
from tests.reports import GIB, card, report


def seen(state: ClusterState, name: str) -> NodeCards:
    return cards_of(state.snapshot(), name)


def memory(card: Card) -> list[float | None]:
    """Used, others, promised and limit in GiB."""
    return [
        None if amount is None else amount / GIB
        for amount in (card.used, card.others, card.promised, card.limit)
    ]


def printed(found: NodeCards) -> str:
    """As a wide terminal shows it, without the blanks at the ends of lines."""
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(table_of(Devices([found])))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_nodes_are_listed_that_have_cards() -> None:
    snapshot = clinic().snapshot()
    assert nodes_with_cards(snapshot) == ["bare", "mig", "shared", "silent", "whole"]
    assert cards_of(snapshot, "cpu").cards == []
    with pytest.raises(KeyError):
        cards_of(snapshot, "none")


def test_without_an_agent_cards_are_as_labelled_and_holders_as_planned() -> None:
    bare = seen(clinic(), "bare")
    assert (bare.agent, bare.age, bare.choice) == ("none", None, "kubelet")
    first, second = bare.cards
    assert (first.index, first.uuid, first.model, first.healthy) == (0, None, "NVIDIA-H100-80GB-HBM3", None)
    assert first.total == 80 * GIB
    assert memory(first) == [None, None, 0, 68]
    assert second.holders == [Holder("team", "seen", "planned", "bound", whole=True)]
    assert [each.pod for each in bare.unplaced] == ["unseen"]
    assert bare.offers == [Offer(GPU, 2, 2)]


def test_a_shared_card_says_what_is_used_by_whom_and_what_is_promised() -> None:
    shared = seen(clinic(), "shared")
    assert (shared.agent, shared.age, shared.replicas, shared.problems) == ("fresh", 5.0, 4, [])
    assert shared.watermark == 0.85
    first, second = shared.cards
    # Of one's 20 GiB 15 are not used; the 10 of two may come to any card, since the kubelet has not said to which.
    assert memory(first) == [5, 0, 25, pytest.approx(0.85 * 79)]
    assert first.holders == [
        Holder("team", "one", "given", "bound", shares=1, declared=20 * GIB, used=5 * GIB),
        Holder("team", "two", "planned", "bound", shares=1, declared=10 * GIB, used=0),
    ]
    assert memory(second) == [30, 30, 10, pytest.approx(0.85 * 79)]
    assert (second.healthy, second.trouble, second.holders) == (True, ["occupied"], [])


def test_whole_cards_health_links_and_what_leaked() -> None:
    whole = seen(clinic(), "whole")
    first, hidden, lost, held = whole.cards
    assert [each.links for each in whole.cards] == ["SYS to NV18"] * 3 + ["SYS"]
    assert whole.links is not None
    assert whole.links[0] == ["X", "NV18", "NV18", "SYS"]
    assert first.holders == [Holder("team", "train", "given", "bound", whole=True, used=60 * GIB)]
    assert hidden.holders[0].used == 40 * GIB, "what cannot be seen is its who has the card alone"
    assert hidden.others == 0
    assert (lost.healthy, lost.why, lost.trouble) == (
        False,
        "Xid 79: the card has fallen off the bus.",
        ["withheld"],
    )
    assert held.holders == [Holder("team", "ghost", "leaked", whole=True)]
    assert held.trouble == ["occupied", "withheld"]
    assert whole.problems == [
        "Pod team/ghost is gone, and the kubelet still holds devices for it; if that lasts, restart the kubelet."
    ]


def test_what_a_pod_that_is_not_there_holds_is_a_stray_before_it_is_a_leak() -> None:
    state = book(node("n0", {GPU: 1}))
    state.apply(report(card(0), held={"early": ["GPU-0"]}))
    assert seen(state, "n0").cards[0].holders == [Holder("team", "early", "stray", whole=True)]
    state.apply(PodSeen(pod("early", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    state.apply(report(card(0), held={"early": ["GPU-0"]}))
    assert [each.source for each in seen(state, "n0").cards[0].holders] == ["given"]


def test_instances_that_the_kubelet_has_given_are_on_their_card() -> None:
    mig = seen(clinic(), "mig")
    plain, cut = mig.cards
    assert (plain.mig, plain.healthy, cut.mig) == (False, False, True)
    assert memory(cut) == [9, 2, None, None], "the hardware keeps instances apart"
    half = Holder("team", "half", "given", "bound", instance="3g.40gb", start=4, used=7 * GIB)
    assert cut.holders == [half]
    assert (plain.free, cut.free) == ([], [FreeInstance("3g.40gb", 0)])
    assert [each.pod for each in mig.unplaced] == ["other"]
    assert mig.offers == [Offer(GPU, 1, 0), Offer("nvidia.com/mig-3g.40gb", 2, 2)]


def test_instances_that_are_cut_on_demand_are_where_they_are_planned() -> None:
    state = book(cut_on_demand("n0", 1))
    for name, resource in (("big", THREE), ("small", ONE)):
        state.apply(PodSeen(pod(name, {resource: 1}, at="n0")))
    (card,) = seen(state, "n0").cards
    places = {each.pod: (each.source, each.instance, each.start) for each in card.holders}
    assert places.keys() == {"big", "small"}
    assert all(source == "planned" and start is not None for source, _, start in places.values())
    assert seen(state, "n0").unplaced == []


def test_instances_are_free_that_the_kubelet_could_give_and_that_are_planned_for_nobody() -> None:
    state = book(cut_on_demand("n0", 1))
    state.apply(PodSeen(pod("p", {THREE: 1}, at="n0")))
    ((place,),) = ([each.start for each in card.holders] for card in seen(state, "n0").cards)
    instances = [
        Instance(1, name="3g.20gb", start=place, uuids=["MIG-1"]),
        Instance(2, name="1g.5gb+me", uuids=["MIG-2"]),
        Instance(3, name="1g.5gb", start=2, uuids=["MIG-3"]),
        Instance(4, name="1g.5gb", start=3, uuids=["MIG-4"]),
        Instance(5, name="1g.5gb", start=7),
    ]
    for held, offered, free in (
        (None, None, None),
        ({"late": ["MIG-4"]}, None, [("1g.5gb.me", None), ("1g.5gb", 2)]),
        ({}, ["MIG-1", "MIG-4"], [("1g.5gb", 3)]),
        ({"late": ["MIG-4::0"]}, ["MIG-4::0", "MIG-4::1", "MIG-2::0"], [("1g.5gb.me", None)]),
    ):
        state.apply(report(card(0, mig=True, instances=instances), held=held, offered=offered, resource=ONE))
        (found,) = seen(state, "n0").cards
        assert found.free == (None if free is None else [FreeInstance(*each) for each in free])
        assert ("free: 1g.5gb.me at ?" in printed(seen(state, "n0"))) is (("1g.5gb.me", None) in (free or ()))


def test_what_is_wrong_with_the_driver_is_told_whether_or_not_it_had_cards() -> None:
    state = book(node("n0", {GPU: 1}), node("n1", {GPU: 1}))
    hangs = Problem("DriverHangs", "The NVIDIA driver does not answer.")
    for name, cards in (("n0", []), ("n1", [card(0)])):
        status = GPUNodeStatus(gpus=cards, problem=hangs, kubelet=Kubelet(held=[]))
        state.apply(ReportSeen(name, GPUNodeSpec(), status))
        found = seen(state, name)
        assert found.problems == ["The driver tells its agent nothing: The NVIDIA driver does not answer."]
        assert f"\n{found.problems[0]}\n" in printed(found)
    state.apply(report(card(0), held={}, node="n1"))
    assert seen(state, "n1").problems == []


def test_a_silent_agent_and_what_then() -> None:
    for stale, then in (
        ("labels", "what it said last against a card holds on"),
        ("closed", "nothing is placed here until it does"),
    ):
        silent = seen(clinic(stale), "silent")
        assert (silent.agent, silent.age) == ("stale", 100.0)
        assert f"Its agent has not reported for 100 s: {then}." in silent.problems
        assert any("who has what is as planned" in problem for problem in silent.problems)


def test_what_cannot_be_read_is_said_until_it_can_and_counted_by_part() -> None:
    state = book(node("n0", {GPU: 1}), node("n1"))
    state.apply(report(card(0), held={}))
    parts = Metrics(state.snapshot, lambda: ()).registry
    faults = (
        "got `int` - at `$.spec.gpus[0].uuid`",
        "got `x` - at `$.status.when`",
        "its event cannot be read",
    )
    for name, fault in zip(("n0", "n1", "n2"), faults, strict=True):
        state.apply(ReportSeen(name, GPUNodeSpec(), None, fault))
    for part in ("spec", "status", "other"):
        assert parts.get_sample_value("kvitej_reports_unreadable", {"part": part}) == 1
    assert nodes_with_cards(state.snapshot()) == ["n0", "n1"], (
        "a node whose agent means to say something is shown"
    )
    first, second = (seen(state, name) for name in ("n0", "n1"))
    assert (first.agent, first.problems) == (
        "unreadable",
        [f"Its agent's report cannot be read, so the last one that could be counts: {faults[0]}."],
    )
    assert (first.cards[0].healthy, second.cards) == (True, [])
    assert second.problems == [f"Its agent's report cannot be read: {faults[1]}."]
    assert "\nagent's report cannot be read, watermark 100 %," in printed(first)
    state.apply(report(card(0), held={}))
    state.apply(ReportGone("n1"))
    state.apply(ReportSeen("n2", GPUNodeSpec(), None))
    assert seen(state, "n0").agent == "fresh"
    assert seen(state, "n0").problems == []
    assert (seen(state, "n1").agent, nodes_with_cards(state.snapshot())) == ("none", ["n0"])
    assert parts.get_sample_value("kvitej_reports_unreadable", {"part": "other"}) == 0


def test_what_a_pod_used_counts_until_it_is_gone_and_the_agent_silent() -> None:
    state = book(node("n0", {GPU: 1}, memory=80 * 1024), config=Config(cards=Cards(stale_after=90)))
    state.apply(PodSeen(pod("p", {GPU: 1}, at="n0", record=record_of(gpu=(0,)))))
    state.apply(report(card(0, pods={"uid-p": 30}, hidden=9), held={"p": ["GPU-0"]}))
    state.apply(Beat("n0", 0.0))
    state.apply(PodGone("uid-p"))
    for now, left in ((50.0, [39, 39]), (100.0, [0, 0])):
        state.apply(Elapsed(now))
        (found,) = seen(state, "n0").cards
        assert memory(found)[:2] == left
        assert [each.source for each in found.holders] == ["stray"]


def test_what_closes_a_node_is_told() -> None:
    state = book(node("n0", {GPU: "many"}), node("n1", {GPU: 1, "nvidia.com/odd": 1}))
    state.apply(PodSeen(pod("torn", {GPU: "x"}, at="n1")))
    state.apply(report(node="n1"))
    (fault,) = seen(state, "n0").problems
    assert fault.startswith("It is closed: the node's resources: ")
    torn, odd, empty = seen(state, "n1").problems
    assert torn.startswith("It is closed: pod team/torn: spec.containers[0].resources[nvidia.com/gpu]: ")
    assert odd.startswith("kube-scheduler does not ask kvitej about nvidia.com/odd: ")
    assert empty == "Its agent reports no card: kubectl get gpunode n1 -o yaml says why."


def test_a_seat_that_is_promised_is_a_plan_with_its_phase() -> None:
    state = book(node("n0", {GPU: 1}))
    state.apply(Reserved(pod("p", {GPU: 1}), "n0", record_of(gpu=(0,))))
    assert seen(state, "n0").cards[0].holders == [Holder("team", "p", "planned", "reserved", whole=True)]


amounts = st.integers(0, 33)


@settings(max_examples=60, deadline=None)
@given(
    uses=st.tuples(amounts, amounts),
    foreign=st.tuples(amounts, amounts),
    hidden=st.tuples(amounts, amounts),
    declared=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    told=st.tuples(st.booleans(), st.booleans()),
    planned=st.booleans(),
    asked=st.integers(1, 70),
)
def test_bind_goes_by_the_numbers_that_are_shown(
    uses: tuple[int, int],
    foreign: tuple[int, int],
    hidden: tuple[int, int],
    declared: tuple[int, int],
    told: tuple[bool, bool],
    planned: bool,
    asked: int,
) -> None:
    """A share is granted where every card that can be given, or with a plugin that follows the plan one, has room."""
    labels = {"kvitej.io/card-choice": "planned"} if planned else {}
    state = book(config=Config(cards=Cards(watermark=80)))
    state.apply(NodeSeen(node("n0", {SHARED: 8}, memory=100 * 1024, replicas=4, labels=labels)))
    for at in range(2):
        record = record_of(shared=(at,))
        state.apply(PodSeen(pod(f"p{at}", {SHARED: 1}, memory=f"{declared[at]}Gi", at="n0", record=record)))
    state.apply(
        report(
            *(
                card(at, total=100, pods={f"uid-p{at}": uses[at]}, foreign=foreign[at], hidden=hidden[at])
                for at in range(2)
            ),
            held={f"p{at}": [f"GPU-{at}::0"] for at in range(2) if told[at]},
            resource=SHARED,
        )
    )
    found = seen(state, "n0").cards
    for at, each in enumerate(found):
        assert (each.used, each.others) == (
            (uses[at] + foreign[at] + hidden[at]) * GIB,
            (foreign[at] + hidden[at]) * GIB,
        )
        assert each.limit == 80 * GIB
    room = [(each.used or 0) + (each.promised or 0) + asked * GIB <= (each.limit or 0) for each in found]
    asking = pod("new", {SHARED: 1}, memory=f"{asked}Gi")
    verdict = seat_pod(state.snapshot(), "uid-new", request_of(asking), "n0")
    assert isinstance(verdict, Granted) is (any(room) if planned else all(room))


README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_what_is_printed_and_said_of_that_node() -> None:
    readme = README.read_text(encoding="utf-8")
    state = clinic()
    snapshot = state.snapshot()
    shown = printed(cards_of(snapshot, "shared")).replace("shared:", "gpu-7:").partition("\n\n")[0]
    assert shown in readme
    for declared, granted in (("27Gi", True), ("30Gi", False)):
        asking = pod("third", {SHARED: 1}, memory=declared)
        verdict = seat_pod(snapshot, "uid-third", request_of(asking), "shared")
        assert isinstance(verdict, Granted) is granted
    assert isinstance(verdict, Veto)
    words = " ".join(readme.split())
    assert verdict.reason.replace("of shared:", "of gpu-7:") in words
    first, second = (memory(each) for each in seen(state, "shared").cards)
    assert "(5 + 25 + 30 = 60)" in words
    assert (first[0], first[2], second[0], second[2]) == (5, 25, 30, 10)
    assert "(30 + 10 + 30 = 70 > 67.1)" in words


def test_the_readme_has_each_sentence_of_the_cards_and_the_settings_as_they_are() -> None:
    readme = README.read_text(encoding="utf-8")
    for code in (STALE, UNHEALTHY, OCCUPIED, WATERMARK):
        assert f"| {SENTENCES[code]} |" in readme
    cards = Cards()
    assert (cards.watermark, cards.foreign, cards.stale_after, cards.stale) == (85, GIB, 90, "labels")
    for name, default in (
        ("watermark", "85"),
        ("foreign", "1Gi"),
        ("staleAfter", "90s"),
        ("stale", "labels"),
    ):
        (row,) = [line for line in readme.splitlines() if line.startswith(f"| `cards: {{{name}}}`")]
        assert f"| {default} |" in row
    assert (STEPS, PAUSE) == (2, 10)
    assert "two steps, 10 s apart" in readme


def test_metrics_of_the_cards_are_in_the_readme_and_count_what_is_shown() -> None:
    readme = README.read_text(encoding="utf-8")
    state = clinic()
    registry = Metrics(state.snapshot, lambda: ()).registry
    for name, value in (
        ("kvitej_reports", 4),
        ("kvitej_reports_stale", 1),
        ("kvitej_pods_leaking", 1),
        ("kvitej_pods_moved_total", 0),
    ):
        assert f"`{name}`" in readme
        assert registry.get_sample_value(name) == value
    for name in ("kvitej_cards_in_trouble", "kvitej_reports_unreadable"):
        assert f"| `{name}` |" in readme
    rows = [each for name in nodes_with_cards(state.snapshot()) for each in seen(state, name).cards]
    for why, count in (
        ("unfit", sum(each.healthy is False for each in rows)),
        ("occupied", sum("occupied" in each.trouble for each in rows)),
        ("withheld", sum("withheld" in each.trouble for each in rows)),
    ):
        assert count
        assert registry.get_sample_value("kvitej_cards_in_trouble", {"why": why}) == count
