"""What `kvitej explain` says is what `place` decided, and it names what a person can act on."""

import numpy as np
import pytest

from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.explain import Explanation, explain
from extender.decide.place import place
from tests.builders import GPU, SHARED, book, node, pod, raw_pod, read_pod, record_of
from tests.cluster.test_kinds import THREE, cut_on_demand, linked, matrix


def explained(
    state: ClusterState, asks: dict[str, str], at: str | None = None, **annotations: str
) -> Explanation:
    raw = raw_pod("p", asks)
    raw["metadata"]["annotations"] |= {f"kvitej.io/{name}": text for name, text in annotations.items()}
    return explain(state.snapshot(), request_of(read_pod(raw)), at)


def test_ranks_and_totals_are_those_of_the_placement() -> None:
    state = book(*(node(f"n{number}", {GPU: str(8 - number)}) for number in range(5)))
    found = explained(state, {GPU: "2"})
    request = request_of(pod("p", {GPU: "2"}))
    snapshot = state.snapshot()
    rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)
    placement = place(snapshot, request, rows, 10)
    assert [snapshot.index.get(seen.node) for seen in found.seen] == placement.kept[:3].tolist()
    assert [seen.rank for seen in found.seen] == [1, 2, 3]
    totals = placement.scores[placement.ranked[:3]].tolist()
    assert [seen.score.total for seen in found.seen] == pytest.approx(totals, abs=1e-12)
    assert (found.fitting, found.nodes) == (5, 5)


def test_a_pair_is_told_with_its_cards_its_link_and_what_is_left() -> None:
    state = book(linked("n0", matrix(4, {(0, 3), (1, 2)})))
    (seen,) = explained(state, {GPU: "2"}).seen
    assert seen.cards.whole in ((0, 3), (1, 2))
    words = "\n".join(seen.words())
    assert "rank 1, score " in words
    assert "free GPUs 0,1,2,3; takes " in words
    assert "slowest link 112.5 GB/s" in words
    assert "4 GPU with 48 cores: 1 -> 0" in words


def test_a_refused_node_says_why_also_when_it_is_asked_about() -> None:
    held = pod("q", {GPU: "1"}, at="n0", record=record_of(gpu=(0,)))
    state = book(node("n0", {GPU: "2"}), node("n1", {GPU: "1"}), node("n2", {GPU: "2"}), pods=[held])
    asked = explained(state, {GPU: "2"}, "n0")
    assert list(asked.words()) == [
        "asks for 2 nvidia.com/gpu; fits on 1 of 3 nodes",
        "n0: refused: the GPUs asked for are taken",
        "  free GPUs 1",
    ]
    (required,) = explained(state, {GPU: "2"}, "n2", topology="require").seen
    assert required.rank is None
    assert "kvitej.io/links" in required.reason
    with pytest.raises(KeyError):
        explained(state, {GPU: "1"}, "n9")


def test_a_cut_is_told_with_its_card_and_start() -> None:
    (seen,) = explained(book(cut_on_demand()), {THREE: "1"}).seen
    assert "cuts 3g.40gb at 4 of MIG card 0" in "\n".join(seen.words())


def test_shares_are_told_and_an_empty_book_has_nothing_to_tell() -> None:
    (seen,) = explained(book(node("n0", {SHARED: "8"}, replicas=4)), {SHARED: "1"}).seen
    assert "free GPUs 0,1; shares 0" in "\n".join(seen.words())
    assert list(explained(book(), {GPU: "1"}).words()) == ["asks for 1 nvidia.com/gpu; fits on 0 of 0 nodes"]
