"""What is lent: the cards that only pods hold which can be asked back, as the book counts them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.events import NodeSeen, PodGone, PodSeen, Reckoned
from extender.cluster.state import ClusterState
from tests.builders import GPU, SHARED, book, node, pod, record_of

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["whole", "share", "share", "unknown", "gone", "borrowed", "own", "node"]),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=25,
)


def lent(state: ClusterState) -> int:
    snapshot = state.snapshot()
    return int(snapshot.table.lent[snapshot.index.get("n0")])


def held_by_borrowers_only(state: ClusterState) -> int:
    holders: dict[int, set[bool]] = {}
    for seat in state.snapshot().seats.values():
        cards = seat.cards
        if cards is not None:
            known = {*cards.whole, *cards.shared}
        else:
            known = set(range(4)) if seat.request.count(SHARED) else set()
        for card in known:
            holders.setdefault(card, set()).add(seat.borrowed and cards is not None)
    return sum(found == {True} for found in holders.values())


def shared_node(labels: dict[str, str] | None = None) -> Any:
    return node("n0", {GPU: "4", SHARED: "12"}, replicas=3, labels=labels)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_the_column_counts_the_cards_that_only_borrowers_hold(events: list[tuple[str, int, int]]) -> None:
    state = book(shared_node())
    for what, which, card in events:
        uid = f"uid-p{which}"
        if what == "whole":
            state.apply(PodSeen(pod(f"p{which}", {GPU: "1"}, at="n0", record=record_of(gpu=(card,)))))
        elif what == "share":
            state.apply(PodSeen(pod(f"p{which}", {SHARED: "1"}, at="n0", record=record_of(shared=(card,)))))
        elif what == "unknown":
            state.apply(PodSeen(pod(f"p{which}", {SHARED: "1"}, at="n0")))
        elif what == "gone":
            state.apply(PodGone(uid))
        elif what == "node":
            state.apply(NodeSeen(shared_node({"turn": str(which)})))
        else:
            state.apply(Reckoned(uid, what == "borrowed"))
        state.check()
        assert lent(state) == held_by_borrowers_only(state)


def test_a_row_whose_lent_cards_change_is_judged_anew() -> None:
    state = book(node("n0", {GPU: "2"}), pods=[pod("p", {GPU: "1"}, at="n0", record=record_of(gpu=(0,)))])
    snapshot = state.snapshot()
    row = snapshot.index.get("n0")
    before = int(snapshot.columns.version[row])
    state.apply(Reckoned("uid-p", True))
    assert (lent(state), int(snapshot.columns.version[row]) > before) == (1, True)
    now = int(snapshot.columns.version[row])
    state.apply(Reckoned("uid-p", True))
    state.apply(Reckoned("uid-unknown", True))
    assert int(snapshot.columns.version[row]) == now
