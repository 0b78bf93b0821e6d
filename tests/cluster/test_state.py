"""A seat's life in the book: claimed, reserved, bound, released, and what comes between."""

from collections.abc import Iterator

import numpy as np
import pytest

from _core import Ask
from extender.cluster.assignment import Cards
from extender.cluster.columns import CLOSED, OPEN, Columns
from extender.cluster.events import (
    Elapsed,
    Event,
    NodeGone,
    NodeSeen,
    Nudged,
    Outcome,
    PodGone,
    PodSeen,
    Promised,
    Reserved,
    Settled,
    Unclaimed,
    Withdrawn,
)
from extender.cluster.judgements import Judgements
from extender.cluster.mix import Mix
from extender.cluster.notices import BoundPastUs, NodeClosed, Notice, UnlistedResource, WorstCase
from extender.cluster.seats import Phase
from extender.cluster.state import ClusterState
from extender.wire.objects import Node, Pod
from tests.builders import GPU, SHARED, book, claimed, node, pod

MIB = 2**20
ON_0 = '{"units":1.0,"containers":{"main":{"gpu":[0]}}}'
ON_1 = '{"units":1.0,"containers":{"main":{"gpu":[1]}}}'


@pytest.fixture
def state() -> Iterator[ClusterState]:
    """Two nodes of two cards; the book is sound at the end of every test."""
    state = book(node("n0", {GPU: "2"}), node("n1", {GPU: "2"}))
    yield state
    state.check()


def happen(state: ClusterState, *events: Event) -> list[Notice]:
    notices: list[Notice] = []
    for event in events:
        notices += state.apply(event)
        state.check()
    return notices


def column(state: ClusterState, name: str, at: str = "n0") -> list[int]:
    snapshot = state.snapshot()
    values = getattr(snapshot.table, name)[snapshot.index.get(at)]
    found: list[int] = np.atleast_1d(values).tolist()
    return found[: snapshot.inventories[at].cards] if values.ndim and name != "used" else found


def held(state: ClusterState, at: str = "n0") -> list[int]:
    """Owners of each card."""
    return column(state, "exclusive", at)


def used(state: ClusterState, resource: str, at: str = "n0") -> int:
    return column(state, "used", at)[state.snapshot().ids[resource]]


def phase(state: ClusterState, uid: str = "uid-p0") -> Phase:
    return state.snapshot().seats[uid].phase


ONE = pod("p0", {GPU: "1", "cpu": "4", "memory": "8Gi"})
ONE_BOUND = pod("p0", {GPU: "1", "cpu": "4", "memory": "8Gi"}, at="n0", record=ON_0)


# the life of a seat


def test_a_pod_waits_is_claimed_reserved_bound_and_gone(state: ClusterState) -> None:
    assert happen(state, PodSeen(ONE)) == []
    assert state.snapshot().waiting.keys() == {"uid-p0"}
    happen(state, claimed(ONE, "n0", Cards((0,)), until=10.0))
    assert (held(state), column(state, "exclusive_soft"), column(state, "soft")) == ([0, 0], [1, 0], [1])
    happen(state, Reserved(ONE, "n0", ON_0))
    assert (held(state), column(state, "exclusive_soft"), phase(state)) == ([1, 0], [0, 0], Phase.RESERVED)
    happen(state, Settled("uid-p0", Outcome.BOUND))
    assert phase(state) is Phase.BOUND
    assert not state.snapshot().waiting
    assert happen(state, PodSeen(ONE_BOUND)) == []
    assert (held(state), used(state, GPU)) == ([1, 0], 1)
    happen(state, PodGone("uid-p0"))
    assert (held(state), used(state, GPU), len(state.snapshot().seats)) == ([0, 0], 0, 0)


def test_cpu_and_memory_are_counted_too(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND))
    columns = state._columns
    row = state.snapshot().index.get("n0")
    assert (columns.cpu_used[row], columns.ram_used[row]) == (4000, 8 * 2**30)


def test_a_refused_write_gives_the_seat_back_and_the_pod_waits_on(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Reserved(ONE, "n0", ON_0), Settled("uid-p0", Outcome.REFUSED))
    assert held(state) == [0, 0]
    assert state.snapshot().waiting.keys() == {"uid-p0"}


def test_a_pod_first_heard_of_while_it_is_being_bound_waits_on_when_it_is_refused(
    state: ClusterState,
) -> None:
    happen(state, Reserved(ONE, "n0", ON_0), PodSeen(ONE), Settled("uid-p0", Outcome.REFUSED))
    assert state.snapshot().waiting.keys() == {"uid-p0"}


def test_a_late_event_from_before_the_binding_does_not_make_it_wait(state: ClusterState) -> None:
    happen(state, Reserved(ONE, "n0", ON_0), Settled("uid-p0", Outcome.BOUND), PodSeen(ONE))
    assert not state.snapshot().waiting


def test_a_lost_answer_keeps_the_seat_until_the_watch_tells(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Reserved(ONE, "n0", ON_0), Settled("uid-p0", Outcome.UNKNOWN))
    assert (phase(state), held(state)) == (Phase.UNCERTAIN, [1, 0])
    happen(state, PodSeen(ONE))
    assert phase(state) is Phase.UNCERTAIN
    happen(state, PodSeen(ONE_BOUND))
    assert (phase(state), held(state)) == (Phase.BOUND, [1, 0])


def test_the_watch_may_tell_before_the_answer_comes(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Reserved(ONE, "n0", ON_0), PodSeen(ONE_BOUND))
    happen(state, Settled("uid-p0", Outcome.UNKNOWN))
    assert phase(state) is Phase.BOUND


def test_bound_elsewhere_moves_the_seat_and_a_late_refusal_leaves_it_there(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Reserved(ONE, "n0", ON_0))
    notices = happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n1")))
    assert notices == [BoundPastUs("team", "p0", "n1")]
    happen(state, Settled("uid-p0", Outcome.REFUSED))
    assert (held(state, "n0"), column(state, "opaque", "n1"), phase(state)) == ([0, 0], [1], Phase.BOUND)


def test_a_pod_deleted_between_filter_and_bind_leaves_nothing(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), claimed(ONE, "n0", Cards((0,)), 10.0), PodGone("uid-p0"))
    assert (column(state, "exclusive_soft"), len(state.snapshot().claims)) == ([0, 0], 0)
    assert not state.snapshot().waiting


def test_a_pod_deleted_while_its_binding_is_written_leaves_nothing(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Reserved(ONE, "n0", ON_0), PodGone("uid-p0"))
    happen(state, Settled("uid-p0", Outcome.BOUND))
    assert (held(state), len(state.snapshot().seats)) == ([0, 0], 0)


def test_a_bound_pod_cannot_be_reserved_again(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND))
    with pytest.raises(ValueError, match="is bound to n0"):
        state.apply(Reserved(ONE, "n1", ON_0))


def test_an_uncertain_seat_can_be_reserved_again_and_is_charged_once(state: ClusterState) -> None:
    happen(state, Reserved(ONE, "n0", ON_0), Settled("uid-p0", Outcome.UNKNOWN), Reserved(ONE, "n0", ON_0))
    assert (held(state), phase(state)) == ([1, 0], Phase.RESERVED)


@pytest.mark.parametrize("over", ["Succeeded", "Failed"])
def test_terminal_pods_are_released_at_once(state: ClusterState, over: str) -> None:
    happen(state, PodSeen(ONE_BOUND))
    assert happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n0", record=ON_0, phase=over))) == []
    assert (held(state), used(state, GPU), len(state.snapshot().seats)) == ([0, 0], 0, 0)


def test_a_terminal_pod_that_was_never_seen_is_nothing(state: ClusterState) -> None:
    happen(state, PodSeen(pod("p9", {GPU: "1"}, at="n0", phase="Failed")), PodGone("uid-never"))
    assert not state.snapshot().seats


def test_terminating_pods_hold_their_cards_until_they_are_gone(state: ClusterState) -> None:
    leaving = pod("p0", {GPU: "1", "cpu": "4", "memory": "8Gi"}, at="n0", record=ON_0)
    leaving.metadata.deletion_timestamp = "2026-11-30T12:00:00Z"
    happen(state, PodSeen(ONE_BOUND), PodSeen(leaving))
    assert held(state) == [1, 0]


def test_pods_without_devices_neither_wait_nor_are_noticed(state: ClusterState) -> None:
    assert happen(state, PodSeen(pod("cpu", {"cpu": "1"}))) == []
    assert not state.snapshot().waiting
    assert happen(state, PodSeen(pod("cpu", {"cpu": "1"}, at="n0"))) == []
    assert not state.snapshot().past_us
    assert not state.snapshot().worst_case


# soft claims


def test_a_soft_claim_ends_in_time_at_a_new_decision_and_at_bind(state: ClusterState) -> None:
    claim = claimed(ONE, "n0", Cards((0,)), until=10.0)
    happen(state, claim, Elapsed(9.9))
    assert column(state, "soft") == [1]
    happen(state, Elapsed(10.0))
    assert column(state, "soft") == [0]
    happen(state, claim, Unclaimed("uid-p0"))
    assert column(state, "soft") == [0]
    happen(state, claim, claimed(ONE, "n1", Cards((1,)), until=10.0))
    assert (column(state, "soft", "n0"), column(state, "exclusive_soft", "n1")) == ([0], [0, 1])


def test_a_promised_seat_is_charged_until_it_is_withdrawn_or_bound(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Promised(ONE, "n0", ON_0))
    assert (phase(state), held(state), used(state, GPU)) == (Phase.CLAIMED, [1, 0], 1)
    assert "uid-p0" in state.snapshot().waiting
    version = state.snapshot().columns.version.copy()
    happen(state, Reserved(ONE, "n0", ON_0))
    assert phase(state) is Phase.RESERVED
    assert np.array_equal(state.snapshot().columns.version, version), "nothing has changed for others"
    happen(state, Withdrawn("uid-p0"))
    assert phase(state) is Phase.RESERVED, "it is more than promised"
    happen(state, Settled("uid-p0", Outcome.REFUSED))
    assert held(state) == [0, 0]
    happen(state, Promised(ONE, "n1", ON_1), Promised(ONE, "n0", ON_1))
    assert (held(state), held(state, "n1")) == ([0, 1], [0, 0]), (
        "a later promise is in place of an earlier one"
    )
    happen(state, Withdrawn("uid-p0"))
    assert held(state) == [0, 0]


def test_a_promise_takes_the_place_of_a_soft_claim_and_never_of_a_bound_seat(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), claimed(ONE, "n0", Cards((0,)), until=10.0), Promised(ONE, "n0", ON_0))
    assert column(state, "soft") == [0]
    happen(state, PodSeen(ONE_BOUND))
    assert phase(state) is Phase.BOUND
    with pytest.raises(ValueError, match="has a seat on n0"):
        state.apply(Promised(ONE, "n1", ON_1))


def test_a_promised_pod_that_is_deleted_leaves_nothing(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Promised(ONE, "n0", ON_0), PodGone("uid-p0"))
    assert held(state) == [0, 0]


def test_a_soft_claim_of_shares_holds_their_memory() -> None:
    # A replica is 4000 / 4 = 1000 MiB, so the 1500 that are declared count.
    state = book(node("n0", {SHARED: "8"}, replicas=4, memory=4000))
    asking = pod("p0", {SHARED: "1"}, memory="1500Mi")
    happen(state, claimed(asking, "n0", Cards(shared=(1,)), 10.0))
    assert (column(state, "shares_soft"), column(state, "memory_soft")) == ([0, 1], [0, 1500 * MIB])
    happen(state, Unclaimed("uid-p0"))
    assert (column(state, "shares_soft"), column(state, "memory_soft")) == ([0, 0], [0, 0])


def test_a_claim_on_a_node_that_is_gone_or_was_relabelled_is_dropped(state: ClusterState) -> None:
    happen(state, claimed(ONE, "n0", Cards((1,)), 10.0), NodeSeen(node("n0", {GPU: "1"})))
    assert not state.snapshot().claims
    happen(state, claimed(ONE, "n1", Cards((1,)), 10.0), NodeGone("n1"))
    assert not state.snapshot().claims
    happen(state, claimed(ONE, "n1", Cards((1,)), 10.0))
    assert not state.snapshot().claims


# nodes


def test_pods_may_come_before_their_node() -> None:
    state = book(pods=[ONE_BOUND])
    state.check()
    happen(state, NodeSeen(node("n0", {GPU: "2"})))
    assert (held(state), used(state, GPU)) == ([1, 0], 1)


def test_a_node_created_again_under_its_name_has_its_pods(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND), NodeGone("n0"))
    assert state.snapshot().index.get("n0") < 0
    happen(state, NodeSeen(node("n0", {GPU: "2"})))
    assert held(state) == [1, 0]


def test_a_pod_that_ends_while_its_node_is_away_is_not_charged_again(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND), NodeGone("n0"), PodGone("uid-p0"), NodeSeen(node("n0", {GPU: "2"})))
    assert held(state) == [0, 0]


def test_a_changed_inventory_charges_its_seats_anew(state: ClusterState) -> None:
    happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n0", record=ON_1)))
    assert held(state) == [0, 1]
    # Of one card only, "card 1" is no record that can be believed: any card may be the pod's.
    happen(state, NodeSeen(node("n0", {GPU: "1"})))
    assert (held(state), column(state, "opaque"), state.snapshot().worst_case) == ([0], [1], {"uid-p0"})
    happen(state, NodeSeen(node("n0", {GPU: "2"})))
    assert (held(state), column(state, "opaque"), state.snapshot().worst_case) == ([0, 1], [0], set())


def test_a_row_is_reused_clean(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND), claimed(pod("p1", {GPU: "1"}), "n0", Cards((1,)), 10.0))
    happen(state, NodeGone("n0"), NodeSeen(node("n9", {SHARED: "4"}, replicas=4, memory=100)))
    assert (column(state, "exclusive", "n9"), column(state, "soft", "n9")) == ([0], [0])


def test_many_nodes_and_wide_nodes_make_the_book_grow(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND))
    for number in range(200):
        state.apply(NodeSeen(node(f"m{number}", {GPU: str(number % 33), f"nvidia.com/mig-{number}": "1"})))
    state.check()
    assert held(state) == [1, 0]
    assert column(state, "cards", "m32") == [32]


def test_forgetting_unknown_nodes_and_pods_changes_nothing(state: ClusterState) -> None:
    happen(state, NodeGone("never"), PodGone("never"), Unclaimed("never"), Settled("never", Outcome.BOUND))
    assert state.snapshot().inventories.keys() == {"n0", "n1"}


# what kvitej did not do, or cannot read


def test_a_foreign_whole_gpu_may_be_any_card(state: ClusterState) -> None:
    notices = happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n0")))
    assert notices == [BoundPastUs("team", "p0", "n0")]
    snapshot = state.snapshot()
    assert (held(state), column(state, "opaque"), used(state, GPU)) == ([0, 0], [1], 1)
    assert (snapshot.past_us, snapshot.worst_case) == ({"uid-p0"}, {"uid-p0"})
    assert happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n0"))) == [], "said once"
    happen(state, PodGone("uid-p0"))
    assert (column(state, "opaque"), set(snapshot.past_us), set(snapshot.worst_case)) == ([0], set(), set())


def test_a_foreign_share_is_charged_on_every_card() -> None:
    # One of 4 replicas of 4000 MiB: 1000 MiB on each card.
    state = book(node("n0", {SHARED: "8"}, replicas=4, memory=4000))
    happen(state, PodSeen(pod("p0", {SHARED: "1"}, at="n0")))
    assert (column(state, "shares"), column(state, "memory_used")) == ([1, 1], [1000 * MIB] * 2)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{}",
        "not json",
        '{"units":1.0,"containers":{}}',
        '{"units":1.0,"containers":{"other":{"gpu":[0]}}}',
        '{"units":1.0,"containers":{"main":{"gpu":[0,1]}}}',
        '{"units":1.0,"containers":{"main":{"gpu":[2]}}}',
        '{"units":1.0,"containers":{"main":{"gpu":[-1]}}}',
        '{"units":1.0,"containers":{"main":{"gpu":[0],"shared":[1]}}}',
        '{"units":1.0,"containers":{"main":{"gpu":[0],"mig":{"nvidia.com/mig-1g.5gb":1}}}}',
        '{"units":1.0,"containers":{"main":{"gpu":["0"]}}}',
        "[" * 100_000,
        '{"units":1.0,"containers":{"main":{"gpu":[0]}},"more":1}',
    ],
)
def test_a_record_that_cannot_be_believed_is_the_worst_case_and_is_named(
    state: ClusterState, record: str
) -> None:
    notices = happen(state, PodSeen(pod("p0", {GPU: "1"}, at="n0", record=record)))
    assert notices == [WorstCase("team", "p0", "n0")]
    assert (held(state), column(state, "opaque")) == ([0, 0], [1])


def test_a_record_with_more_shares_on_a_card_than_it_has_is_not_believed() -> None:
    state = book(node("n0", {SHARED: "4"}, replicas=2))
    record = '{"units":1.5,"containers":{"main":{"shared":[0,0,0]}}}'
    notices = happen(state, PodSeen(pod("p0", {SHARED: "3"}, at="n0", record=record)))
    assert notices == [WorstCase("team", "p0", "n0")]


def test_declared_memory_that_cannot_be_read_is_all_memory_of_the_card() -> None:
    state = book(node("n0", {SHARED: "4"}, replicas=2, memory=1000))
    record = '{"units":0.5,"containers":{"main":{"shared":[1]}}}'
    happen(state, PodSeen(pod("p0", {SHARED: "1"}, at="n0", record=record, memory="plenty")))
    assert (column(state, "shares"), column(state, "memory_used")) == ([0, 1], [0, 1000 * MIB])
    assert state.snapshot().worst_case == {"uid-p0"}


def test_an_annotation_spoilt_after_the_fact_is_charged_like_one_that_always_was() -> None:
    record = '{"units":0.5,"containers":{"main":{"shared":[1]}}}'
    fine = pod("p0", {SHARED: "1"}, at="n0", record=record)
    spoilt = pod("p0", {SHARED: "1"}, at="n0", record=record, memory="plenty")
    lived, restarted = (book(node("n0", {SHARED: "4"}, replicas=2, memory=1000)) for _ in range(2))
    happen(lived, PodSeen(fine), PodSeen(spoilt))
    happen(restarted, PodSeen(spoilt))
    assert column(lived, "memory_used") == column(restarted, "memory_used") == [0, 1000 * MIB]


def test_the_memory_that_the_binding_recorded_is_charged_whatever_the_pod_declares_since() -> None:
    record = '{"units":0.5,"containers":{"main":{"shared":[1]}},"memory":734003200}'
    for memory in ("700Mi", "1Mi", "plenty", None):
        state = book(node("n0", {SHARED: "4"}, replicas=2, memory=1000))
        happen(state, PodSeen(pod("p0", {SHARED: "1"}, at="n0", record=record, memory=memory)))
        assert column(state, "memory_used") == [0, 700 * MIB]
        assert state.snapshot().worst_case == set()


def test_a_spec_that_cannot_be_read_closes_its_node_until_the_pod_is_gone(state: ClusterState) -> None:
    notices = happen(state, PodSeen(pod("p0", {GPU: "two"}, at="n0")))
    assert [type(notice) for notice in notices] == [NodeClosed]
    assert "spec.containers[0].resources[nvidia.com/gpu]" in str(notices[0])
    assert (column(state, "state", "n0"), column(state, "state", "n1")) == ([CLOSED], [OPEN])
    happen(state, NodeSeen(node("n0", {GPU: "3"})))
    assert column(state, "state") == [CLOSED]
    happen(state, PodGone("uid-p0"))
    assert column(state, "state") == [OPEN]


def test_two_unreadable_pods_close_the_node_until_both_are_gone(state: ClusterState) -> None:
    first, second = (pod(name, {GPU: "two"}, at="n0") for name in ("a", "b"))
    happen(state, PodSeen(first), PodSeen(second), PodGone("uid-a"))
    assert column(state, "state") == [CLOSED]
    happen(state, PodGone("uid-b"))
    assert column(state, "state") == [OPEN]


def test_an_object_that_could_not_be_decoded_closes_its_node_until_it_can(state: ClusterState) -> None:
    shell = pod("p0", at="n0")
    notices = happen(state, PodSeen(shell, fault="its spec cannot be decoded"))
    assert notices == [NodeClosed("n0", "pod team/p0: its spec cannot be decoded")]
    assert column(state, "state") == [CLOSED]
    happen(state, PodSeen(ONE_BOUND))
    assert (column(state, "state"), held(state)) == ([OPEN], [1, 0])


def test_an_unreadable_pod_on_an_unknown_node_closes_it_when_it_comes() -> None:
    state = book(pods=[pod("p0", {GPU: "two"}, at="n0")])
    happen(state, NodeSeen(node("n0", {GPU: "2"})))
    assert column(state, "state") == [CLOSED]


def test_a_node_that_cannot_be_read_is_closed_and_opens_when_it_can(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND))
    notices = happen(state, NodeSeen(node("n0", {GPU: "two"})))
    assert [type(notice) for notice in notices] == [NodeClosed]
    assert column(state, "state") == [CLOSED]
    assert happen(state, NodeSeen(node("n0", {GPU: "two"}))) == []
    assert happen(state, NodeSeen(node("n0", {GPU: "2"}))) == []
    assert (column(state, "state"), held(state)) == ([OPEN], [1, 0])


@pytest.mark.parametrize(
    "amounts", [{GPU: "9E"}, {SHARED: "9E"}, {"nvidia.com/mig-7g.80gb": "9E"}, {"cpu": "9E", "memory": "9E"}]
)
def test_pods_with_absurd_requests_fit_into_the_book(amounts: dict[str, str]) -> None:
    shape = node("n0", {GPU: "64", SHARED: "6400", "nvidia.com/mig-7g.80gb": "9E"}, memory=4_194_304)
    absurd = [pod(f"p{i}", amounts, at="n0", memory="1Pi") for i in range(100)]
    state = book(shape, pods=absurd)
    state.check()
    for gone in absurd:
        state.apply(PodGone(gone.metadata.uid))
    state.check()
    assert used(state, GPU) == 0


def test_names_that_no_node_advertises_take_no_room_in_the_book(state: ClusterState) -> None:
    known = len(state.snapshot().ids)
    happen(state, PodSeen(pod("p0", {f"nvidia.com/x{i}": "1" for i in range(50)}, at="n0")))
    assert len(state.snapshot().ids) == known
    happen(state, NodeSeen(node("n0", {GPU: "2", "nvidia.com/x7": "3"})))
    assert used(state, "nvidia.com/x7") == 1


def test_a_resource_that_the_scheduler_does_not_ask_about_is_noticed_once(state: ClusterState) -> None:
    odd = "nvidia.com/odd"
    assert happen(state, NodeSeen(node("n0", {odd: "1"}))) == [UnlistedResource("n0", odd)]
    assert happen(state, NodeSeen(node("n1", {odd: "1"}))) == []
    assert happen(state, NodeSeen(node("n0", {odd: "2"}))) == []
    assert state.snapshot().unlisted == {odd: {"n0", "n1"}}
    happen(state, NodeSeen(node("n0", {GPU: "2"})), NodeGone("n1"))
    assert not state.snapshot().unlisted[odd]


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (BoundPastUs("a", "b", "n"), "pod a/b was bound to n past kvitej"),
        (WorstCase("a", "b", "n"), "worst case"),
        (NodeClosed("n", "why"), "node n is closed: why"),
        (UnlistedResource("n", "nvidia.com/x"), "managedResources"),
    ],
)
def test_notices_are_sentences(notice: Notice, words: str) -> None:
    assert words in str(notice)


# room


def test_room_grows_when_devices_are_given_back_and_not_otherwise(state: ClusterState) -> None:
    happen(state, PodSeen(ONE_BOUND), PodSeen(pod("cpu", {"cpu": "1"}, at="n0")))
    before = state.snapshot().room
    happen(state, PodGone("uid-cpu"), PodSeen(ONE), claimed(pod("p1", {GPU: "1"}), "n1", Cards((0,)), 1.0))
    happen(state, Elapsed(2.0), NodeSeen(node("n0", {GPU: "2"})))
    assert state.snapshot().room == before
    happen(state, PodGone("uid-p0"))
    assert state.snapshot().room == before + 1
    happen(state, NodeSeen(node("n2", {GPU: "2"})))
    assert state.snapshot().room == before + 2


def test_a_nudge_is_remembered_with_the_room_it_was_for(state: ClusterState) -> None:
    happen(state, PodSeen(ONE), Nudged(("uid-p0", "uid-never")))
    assert state.snapshot().waiting["uid-p0"].nudged == state.snapshot().room


# restarts


def restarted(nodes: list[Node], pods: list[Pod]) -> ClusterState:
    state = book(pods=pods)
    for seen in nodes:
        state.apply(NodeSeen(seen))
    return state


def test_a_restart_from_annotations_gives_the_same_book() -> None:
    shapes = [
        node("n0", {GPU: "4", SHARED: "400"}, memory=1000),
        node("n1", {GPU: "1", "nvidia.com/mig-1g.5gb": "7"}),
        node("n2", {SHARED: "4"}, replicas=2),
    ]
    pods = [
        pod("a", {GPU: "2"}, at="n0", record='{"units":2.0,"containers":{"main":{"gpu":[1,3]}}}'),
        pod(
            "b",
            {SHARED: "2"},
            at="n0",
            memory="300Mi",
            record='{"units":0.6,"containers":{"main":{"shared":[0,0]}}}',
        ),
        pod(
            "c",
            {"nvidia.com/mig-1g.5gb": "3"},
            at="n1",
            record='{"units":0.4,"containers":{"main":{"mig":{"nvidia.com/mig-1g.5gb":3}}}}',
        ),
        pod("d", {SHARED: "1"}, at="n2"),
        pod("e", {GPU: "1"}, at="n1", record="torn"),
        pod("f", {"cpu": "3"}, at="n2"),
    ]
    first = book(*shapes, pods=pods)
    second = restarted(shapes[::-1], pods[::-1])
    for state in (first, second):
        state.check()
    one, two = first.snapshot(), second.snapshot()
    assert one.seats == two.seats
    assert (one.past_us, one.worst_case) == (two.past_us, two.worst_case) == ({"uid-d"}, {"uid-d", "uid-e"})
    for at in one.inventories:
        for name in ("exclusive", "shares", "memory_used", "opaque"):
            assert column(first, name, at) == column(second, name, at)
    assert column(first, "exclusive", "n0") == [0, 1, 0, 1]
    assert column(first, "shares", "n0") == [2, 0, 0, 0]
    assert column(first, "memory_used", "n0") == [600 * MIB, 0, 0, 0]


def test_judgements_are_kept_within_their_bytes_the_last_used_ones() -> None:
    kept = Judgements(most_bytes=3 * 17 * 64)
    columns = Columns(nodes=64)
    asks = [Ask(np.array([0], np.int32), np.array([1], np.int64), 0, 0, memory=0) for _ in range(5)]
    demand = Mix().demand(columns.table)
    for ask in asks:
        kept.of(columns, ask, demand)
    assert [judged.ask for judged in kept.kept()] == asks[2:]
    kept.of(columns, asks[2], demand)
    assert [judged.ask for judged in kept.kept()] == [asks[3], asks[4], asks[2]]
