"""Waking: who is nudged when room appears, in whose turn, and how often."""

from extender.cluster.events import NodeSeen, Nudged, PodGone, PodSeen, Reserved
from extender.cluster.state import ClusterState
from extender.decide.wake import to_nudge
from extender.wire.objects import Pod
from tests.builders import GPU, SHARED, book, node, pod, record_of


def refused(name: str, gpus: int = 1, *, priority: int = 0, hour: int = 12) -> Pod:
    created = f"2026-11-30T{hour:02}:00:00Z"
    return pod(name, {GPU: str(gpus)}, priority=priority, created=created, refused=True)


def nudged(state: ClusterState, most: int = 64) -> list[str]:
    return [chosen.metadata.name for chosen in to_nudge(state.snapshot(), most)]


def nodes(*cards: int) -> ClusterState:
    return book(*(node(f"n{i}", {GPU: str(count)}) for i, count in enumerate(cards)))


def test_by_priority_then_by_age() -> None:
    state = nodes(1, 1, 1)
    for waiting in (
        refused("young", hour=14),
        refused("old", hour=9),
        refused("urgent", priority=7, hour=15),
    ):
        state.apply(PodSeen(waiting))
    assert nudged(state) == ["urgent", "old", "young"]
    assert nudged(state, most=2) == ["urgent", "old"]


def test_as_many_are_woken_as_have_room_beside_each_other() -> None:
    # 2 + 3 cards: p0 and p1 fill the one, p2 to p4 the other, and p5 has no room.
    state = nodes(2, 3)
    for number in range(6):
        state.apply(PodSeen(refused(f"p{number}", hour=number)))
    assert nudged(state) == ["p0", "p1", "p2", "p3", "p4"]


def test_shares_are_promised_with_their_memory() -> None:
    # 1000 MiB a card, 400 each: two on each of the two cards.
    state = book(node("n0", {SHARED: "20"}, replicas=10, memory=1000))
    for number in range(6):
        asking = pod(
            f"p{number}", {SHARED: "1"}, memory="400Mi", refused=True, created=f"2026-11-30T{number:02}"
        )
        state.apply(PodSeen(asking))
    assert nudged(state) == ["p0", "p1", "p2", "p3"]


def test_who_does_not_fit_is_passed_over() -> None:
    state = nodes(2)
    for waiting in (refused("big", 4, hour=1), refused("also-big", 4, hour=2), refused("small", 2, hour=3)):
        state.apply(PodSeen(waiting))
    assert nudged(state) == ["small"]


def test_each_is_woken_once_for_the_same_room() -> None:
    state = nodes(1)
    state.apply(PodSeen(refused("p")))
    assert nudged(state) == ["p"]
    state.apply(Nudged(("uid-p",)))
    assert nudged(state) == []
    state.apply(NodeSeen(node("more", {GPU: "1"})))
    assert nudged(state) == ["p"]


def test_only_pods_that_the_scheduler_gave_up_on_are_woken() -> None:
    state = nodes(8)
    state.apply(PodSeen(pod("fresh", {GPU: "1"})))
    gated = refused("gated")
    assert gated.status is not None
    assert gated.status.conditions is not None
    gated.status.conditions[0].reason = "SchedulingGated"
    state.apply(PodSeen(gated))
    assert nudged(state) == []


def test_pods_that_are_gone_or_cannot_be_read_are_not_woken() -> None:
    state = nodes(8)
    state.apply(PodSeen(refused("gone")))
    state.apply(PodGone("uid-gone"))
    state.apply(PodSeen(pod("odd", {GPU: "1.5"}, refused=True)))
    state.apply(PodSeen(pod("none", {GPU: "0"}, refused=True)))
    assert nudged(state) == []


def test_room_that_is_reserved_is_no_room() -> None:
    state = nodes(1)
    state.apply(PodSeen(refused("p")))
    state.apply(Reserved(pod("other", {GPU: "1"}), "n0", record_of(gpu=(0,))))
    assert nudged(state) == []


def test_who_has_a_seat_is_not_woken() -> None:
    state = nodes(2)
    state.apply(PodSeen(refused("p")))
    state.apply(Reserved(refused("p"), "n0", record_of(gpu=(0,))))
    assert nudged(state) == []
