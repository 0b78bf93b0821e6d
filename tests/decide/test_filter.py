"""Filter: the best K, or a reason for each node; and Prioritize: the same order as integers from 0 to 10."""

import json

import numpy as np
import pytest

from _core import CLOSED, CONTENDED, FITS, LACKING, MEMORY_TAKEN, MEMORY_TOO_SMALL, MEMORY_UNKNOWN, TAKEN
from extender.cluster.assignment import Cards
from extender.cluster.events import NodeSeen, Outcome, PodSeen, Reserved, Settled
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.filter import filter_nodes
from extender.decide.place import Placement, expect, place
from extender.decide.prioritize import grade_nodes
from extender.decide.reasons import NAMES, SENTENCES, UNCERTAIN, UNRESOLVABLE, fragments, mask, tally
from extender.wire.objects import Pod
from tests.builders import GPU, MIG, SHARED, book, claimed, node, pod, record_of


def rows_of(state: ClusterState, *names: str) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    index = state.snapshot().index
    return np.array([index.get(name) for name in names or state.snapshot().inventories], np.int32)


def filtered(state: ClusterState, asking: Pod, *names: str, keep: int = 100) -> Placement:
    rows = rows_of(state, *names)
    return filter_nodes(state.snapshot(), asking.metadata.uid, request_of(asking), rows, keep)


def kept(state: ClusterState, asking: Pod, *names: str, keep: int = 100) -> list[str]:
    found = filtered(state, asking, *names, keep=keep)
    return [state.snapshot().index.name(row) for row in found.kept.tolist()]


def codes(state: ClusterState, asking: Pod) -> dict[str, int]:
    found = filtered(state, asking)
    return dict(zip(state.snapshot().inventories, found.codes.tolist(), strict=True))


def grades(state: ClusterState, asking: Pod) -> dict[str, int]:
    _, found = grade_nodes(state.snapshot(), asking.metadata.uid, request_of(asking), rows_of(state))
    return dict(zip(state.snapshot().inventories, found.tolist(), strict=True))


@pytest.fixture
def graded() -> ClusterState:
    """Cards free: tight 1, middle 3, roomy 8, full 0."""
    sitting = [("tight", 3), ("middle", 5), ("full", 2)]
    return book(
        node("roomy", {GPU: "8"}),
        node("middle", {GPU: "8"}),
        node("tight", {GPU: "4"}),
        node("full", {GPU: "2"}),
        pods=[pod(f"on-{name}", {GPU: str(count)}, at=name) for name, count in sitting],
    )


def test_the_tightest_fit_comes_first_and_what_is_full_is_left_out(graded: ClusterState) -> None:
    # Jobs of 1, 2, 4 and 8 cards are expected: what "tight" has left is of use to one of them, "roomy" to all.
    assert kept(graded, pod("p", {GPU: "1"})) == ["tight", "middle", "roomy"]


def test_at_most_k_are_kept_and_they_are_the_best(graded: ClusterState) -> None:
    assert kept(graded, pod("p", {GPU: "1"}), keep=2) == ["tight", "middle"]
    assert kept(graded, pod("p", {GPU: "2"}), keep=1) == ["middle"]


def test_only_nodes_that_were_asked_about_are_kept(graded: ClusterState) -> None:
    assert kept(graded, pod("p", {GPU: "1"}), "full", "roomy") == ["roomy"]


def test_equal_nodes_come_in_the_order_of_their_names_hash_whatever_the_order_asked() -> None:
    names = [f"n{number}" for number in range(20)]
    state = book(*(node(name, {GPU: "2"}) for name in names))
    first = kept(state, pod("p", {GPU: "1"}), *names)
    assert first == kept(state, pod("p", {GPU: "1"}), *names[::-1])
    assert first != names


def test_grades_are_integers_with_ten_for_the_best(graded: ClusterState) -> None:
    asking = pod("p", {GPU: "1"})
    scores = dict(zip(graded.snapshot().inventories, filtered(graded, asking).scores.tolist(), strict=True))
    best, worst = scores["tight"], scores["roomy"]
    middle = int(9 * (scores["middle"] - worst) / (best - worst))
    assert grades(graded, asking) == {"tight": 10, "middle": middle, "roomy": 0, "full": 0}


def test_the_only_node_that_fits_is_the_best_and_where_none_fits_all_get_zero(graded: ClusterState) -> None:
    assert grades(graded, pod("p", {GPU: "8"})) == {"roomy": 10, "middle": 0, "tight": 0, "full": 0}
    assert set(grades(graded, pod("p", {GPU: "9"})).values()) == {0}


def test_a_contended_node_ranks_last_but_is_kept(graded: ClusterState) -> None:
    # The one free card of "tight" is expected to go to another pod: it is the last resort now, and gets no grade.
    graded.apply(claimed(pod("other", {GPU: "1"}), "tight", Cards((3,)), until=10.0))
    asking = pod("p", {GPU: "1"})
    assert codes(graded, asking) == {"roomy": FITS, "middle": FITS, "tight": CONTENDED, "full": TAKEN}
    assert kept(graded, asking) == ["middle", "roomy", "tight"]
    assert grades(graded, asking) == {"middle": 10, "roomy": 0, "tight": 0, "full": 0}


def test_soft_claims_never_make_a_node_infeasible() -> None:
    state = book(node("only", {GPU: "2"}))
    for number in range(5):
        state.apply(claimed(pod(f"p{number}", {GPU: "2"}), "only", Cards((0, 1)), until=10.0))
    asking = pod("p", {GPU: "2"})
    assert kept(state, asking) == ["only"]
    assert grades(state, asking) == {"only": 10}


def test_a_soft_claim_moves_the_next_pod_to_another_card() -> None:
    # Two cards of four shares: the first pod is expected on card 0, and a pod of both cards sees one card left.
    state = book(node("a", {GPU: "2"}), node("b", {GPU: "2"}))
    state.apply(claimed(pod("first", {GPU: "2"}), "a", Cards((0, 1)), until=10.0))
    assert kept(state, pod("second", {GPU: "2"})) == ["b", "a"]


def test_expected_is_the_best_with_the_cards_that_soft_claims_leave(graded: ClusterState) -> None:
    asking = request_of(pod("p", {GPU: "2"}))
    graded.apply(claimed(pod("other", {GPU: "1"}), "middle", Cards((0,)), until=10.0))
    # middle: 3 free of 8 whose cards are not known, one of them claimed softly: the next two are 1 and 2.
    found = place(graded.snapshot(), asking, rows_of(graded), 100)
    expected = expect(graded.snapshot(), asking, found)
    assert expected is not None
    assert (expected.node, expected.cards) == ("middle", Cards((1, 2)))
    assert expected.score.total == pytest.approx(found.scores[found.ranked[0]])
    nothing = place(graded.snapshot(), request_of(pod("p", {GPU: "9"})), rows_of(graded), 100)
    assert expect(graded.snapshot(), request_of(pod("p", {GPU: "9"})), nothing) is None


@pytest.mark.parametrize(
    ("asks", "memory", "code"),
    [
        ({GPU: "1"}, None, TAKEN),
        ({GPU: "3"}, None, LACKING),
        ({MIG: "1"}, None, LACKING),
        ({"nvidia.com/never-heard-of": "1"}, None, LACKING),
        ({SHARED: "1"}, "600Mi", MEMORY_TAKEN),
        ({SHARED: "1"}, "2000Mi", MEMORY_TOO_SMALL),
    ],
)
def test_each_reason(asks: dict[str, str], memory: str | None, code: int) -> None:
    # Two cards of 1000 MiB in ten shares, each with one share of 500 MiB on it.
    state = book(
        node("n0", {GPU: "2", SHARED: "20"}, memory=1000),
        pods=[
            pod(f"s{card}", {SHARED: "1"}, at="n0", record=record_of(shared=(card,)), memory="500Mi")
            for card in (0, 1)
        ],
    )
    assert codes(state, pod("p", asks, memory=memory)) == {"n0": code}


def test_memory_of_cards_that_do_not_tell_is_a_reason_of_its_own() -> None:
    state = book(node("n0", {SHARED: "4"}, replicas=4))
    assert codes(state, pod("p", {SHARED: "1"}, memory="1Mi")) == {"n0": MEMORY_UNKNOWN}
    assert codes(state, pod("p", {SHARED: "1"})) == {"n0": FITS}


def test_a_node_that_cannot_be_read_is_closed() -> None:
    state = book(node("n0", {GPU: "lots"}))
    assert codes(state, pod("p", {GPU: "1"})) == {"n0": CLOSED}


@pytest.mark.parametrize("outcome", [None, Outcome.UNKNOWN, Outcome.BOUND])
def test_a_pod_with_a_seat_is_sent_there_and_nowhere_else(
    graded: ClusterState, outcome: Outcome | None
) -> None:
    asking = pod("p", {GPU: "1"})
    graded.apply(Reserved(asking, "roomy", record_of(gpu=(0,))))
    if outcome is not None:
        graded.apply(Settled("uid-p", outcome))
    assert kept(graded, asking) == ["roomy"]
    assert grades(graded, asking) == {"roomy": 10, "middle": 0, "tight": 0, "full": 0}
    assert kept(graded, asking, "tight", "middle") == []
    assert set(codes(graded, asking).values()) == {FITS, UNCERTAIN}


def test_a_pod_whose_seat_is_on_a_node_that_is_gone_is_sent_nowhere() -> None:
    state = book(node("n1", {GPU: "1"}))
    state.apply(PodSeen(pod("p", {GPU: "1"}, at="n0")))
    assert kept(state, pod("p", {GPU: "1"})) == []


def test_a_relabelled_node_is_judged_as_it_is_now() -> None:
    state = book(node("n0", {GPU: "1"}))
    asking = pod("p", {GPU: "2"})
    assert codes(state, asking) == {"n0": LACKING}
    state.apply(NodeSeen(node("n0", {GPU: "2"})))
    assert codes(state, asking) == {"n0": FITS}


# reasons


def test_reasons_name_no_node_and_no_number_so_that_the_scheduler_can_group_them() -> None:
    for sentence in SENTENCES.values():
        assert not any(character.isdigit() for character in sentence)
    assert len(set(SENTENCES.values())) == len(SENTENCES)


def test_what_no_eviction_can_mend_is_unresolvable() -> None:
    assert {NAMES[code] for code in UNRESOLVABLE} == {
        "lacking",
        "memory_unknown",
        "memory_too_small",
        "links_unknown",
        "links_too_slow",
        "stale",
        "unhealthy",
        "occupied",
        "uncertain",
        "promised",
    }


def test_fragments_and_masks_are_by_code() -> None:
    assert [json.loads(fragment) for fragment in fragments()] == [
        SENTENCES.get(c, "") for c in range(max(SENTENCES) + 1)
    ]
    assert mask({LACKING, TAKEN}) == 2**LACKING + 2**TAKEN
    assert mask(set()) == 0


def test_a_tally_counts_each_reason_by_name() -> None:
    found = tally(np.array([FITS, TAKEN, TAKEN, UNCERTAIN], np.int8))
    assert found == {"fits": 1, "taken": 2, "uncertain": 1}
