"""Preempt: nodes that seat the pod once their victims are gone, and who is never a victim."""

from collections.abc import Mapping

import pytest

from extender.cluster.events import Outcome, Reserved, Settled
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.preempt import Protection, victims_by_node
from extender.wire.extender import Victims
from extender.wire.objects import Pod
from tests.builders import GPU, MIG, SHARED, book, node, pod, record_of

OPEN = Protection(frozenset({"kube-system"}), 1_000_000)


def on(name: str, *cards: int, at: str = "n0", priority: int = 0, namespace: str = "team") -> Pod:
    return pod(
        name,
        {GPU: str(len(cards))},
        at=at,
        priority=priority,
        namespace=namespace,
        record=record_of(gpu=cards),
    )


def chosen(
    state: ClusterState,
    asking: Pod,
    proposed: Mapping[str, tuple[str, ...]],
    *,
    priority: int = 100,
    protection: Protection = OPEN,
) -> dict[str, tuple[str, ...]]:
    victims = {name: Victims(uids) for name, uids in proposed.items()}
    snapshot, request = state.snapshot(), request_of(asking)
    found = victims_by_node(snapshot, asking.metadata.uid, request, priority, victims, protection)
    state.check()
    return {name: answer.uids for name, answer in found.items()}


@pytest.fixture
def full() -> ClusterState:
    """n0: four cards in four hands, of priorities 0, 5, 10 and 20."""
    sitting = [on("a", 0), on("b", 1, priority=5), on("c", 2, priority=10), on("d", 3, priority=20)]
    return book(node("n0", {GPU: "4"}), pods=sitting)


ONE, TWO, THREE = (pod("p", {GPU: str(count)}) for count in (1, 2, 3))


def test_victims_that_make_room_are_answered_as_proposed(full: ClusterState) -> None:
    assert chosen(full, ONE, {"n0": ("uid-c",)}) == {"n0": ("uid-c",)}


def test_the_count_of_violated_budgets_is_handed_on(full: ClusterState) -> None:
    found = victims_by_node(
        full.snapshot(), "uid-p", request_of(ONE), 100, {"n0": Victims(("uid-a",), 3)}, OPEN
    )
    assert found == {"n0": Victims(("uid-a",), 3)}


def test_more_victims_are_added_lowest_priority_first(full: ClusterState) -> None:
    # d alone frees one card of three; a (priority 0) and b (5) are cheaper than c (10).
    assert chosen(full, THREE, {"n0": ("uid-d",)}) == {"n0": ("uid-d", "uid-a", "uid-b")}


def test_a_node_that_came_without_victims_gets_some(full: ClusterState) -> None:
    assert chosen(full, TWO, {"n0": ()}) == {"n0": ("uid-a", "uid-b")}


def test_no_more_than_needed_are_added() -> None:
    # By priority: small (one card), then big (three): with big gone, small may stay.
    state = book(node("n0", {GPU: "4"}), pods=[on("small", 0), on("big", 1, 2, 3, priority=5)])
    assert chosen(state, THREE, {"n0": ()}) == {"n0": ("uid-big",)}


def test_of_equal_priority_the_smaller_goes_first() -> None:
    state = book(node("n0", {GPU: "4"}), pods=[on("big", 1, 2, 3), on("small", 0)])
    assert chosen(state, ONE, {"n0": ()}) == {"n0": ("uid-small",)}


def test_a_node_with_room_and_no_victims_is_left_out_since_empty_fails_the_call() -> None:
    state = book(node("n0", {GPU: "4"}))
    assert chosen(state, ONE, {"n0": ()}) == {}


def test_pods_of_the_same_or_higher_priority_are_never_added(full: ClusterState) -> None:
    assert chosen(full, THREE, {"n0": ()}, priority=10) == {}
    assert chosen(full, TWO, {"n0": ()}, priority=10) == {"n0": ("uid-a", "uid-b")}


@pytest.mark.parametrize(
    "guarded",
    [on("a", 0, namespace="kube-system"), on("a", 0, priority=1_000_000), on("a", 0, priority=2**31 - 1)],
)
def test_the_protected_are_neither_added_nor_accepted(guarded: Pod) -> None:
    state = book(node("n0", {GPU: "2"}), pods=[guarded, on("b", 1)])
    top = 2**31 - 1
    assert chosen(state, ONE, {"n0": ("uid-a",)}, priority=top) == {}
    assert chosen(state, ONE, {"n0": ()}, priority=top) == {"n0": ("uid-b",)}
    assert chosen(state, TWO, {"n0": ("uid-b",)}, priority=top) == {}


def test_a_node_that_no_eviction_helps_is_left_out(full: ClusterState) -> None:
    proposed = {"n0": ("uid-a",), "never": ("uid-a",), "n1": ("uid-x",)}
    assert chosen(full, pod("p", {GPU: "5"}), proposed) == {}
    assert chosen(full, pod("p", {MIG: "1"}), proposed) == {}
    assert chosen(full, ONE, proposed) == {"n0": ("uid-a",)}
    assert chosen(full, pod("p", {"nvidia.com/unheard-of": "1"}), proposed) == {}


def test_a_closed_node_is_left_out() -> None:
    state = book(node("n0", {GPU: "2"}), pods=[on("a", 0, 1), pod("odd", {GPU: "x"}, at="n0")])
    assert chosen(state, ONE, {"n0": ("uid-a",)}) == {}


def test_pods_without_devices_are_not_added() -> None:
    state = book(node("n0", {GPU: "1"}), pods=[pod("cpu", {"cpu": "1"}, at="n0"), on("a", 0, priority=50)])
    assert chosen(state, ONE, {"n0": ("uid-cpu",)}) == {"n0": ("uid-cpu", "uid-a")}


def test_pods_whose_binding_is_not_known_are_not_added() -> None:
    state = book(node("n0", {GPU: "1"}))
    state.apply(Reserved(on("a", 0), "n0", record_of(gpu=(0,))))
    assert chosen(state, ONE, {"n0": ()}) == {}
    state.apply(Settled("uid-a", Outcome.UNKNOWN))
    assert chosen(state, ONE, {"n0": ()}) == {}
    state.apply(Settled("uid-a", Outcome.BOUND))
    assert chosen(state, ONE, {"n0": ()}) == {"n0": ("uid-a",)}


def test_a_victim_named_twice_gives_back_its_cards_once() -> None:
    sitting = [pod("a", {GPU: "1"}, at="n0"), pod("b", {GPU: "1"}, at="n0", priority=1_000_000)]
    state = book(node("n0", {GPU: "2"}), pods=sitting)
    assert chosen(state, TWO, {"n0": ("uid-a", "uid-a")}) == {}


def test_nobody_makes_room_for_a_pod_that_may_sit_already(full: ClusterState) -> None:
    full.apply(Reserved(ONE, "n1", record_of(gpu=(0,))))
    full.apply(Settled("uid-p", Outcome.UNKNOWN))
    assert chosen(full, ONE, {"n0": ("uid-a",)}) == {}


def test_memory_of_shares_is_what_a_victim_gives_back() -> None:
    # One card of 1000 MiB in ten shares, 600 and 300 MiB taken: 500 more need the first to go, not the second.
    held = record_of(shared=(0,))
    state = book(
        node("n0", {SHARED: "10"}, replicas=10, memory=1000),
        pods=[
            pod("large", {SHARED: "1"}, at="n0", memory="600Mi", record=held, priority=1),
            pod("little", {SHARED: "1"}, at="n0", memory="300Mi", record=held),
        ],
    )
    assert chosen(state, pod("p", {SHARED: "1"}, memory="500Mi"), {"n0": ()}) == {"n0": ("uid-large",)}
