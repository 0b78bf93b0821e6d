"""Cards that are cut on demand and links between cards, through the book: what is recorded, believed and refused."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.events import NodeGone, NodeSeen, Outcome, PodGone, PodSeen, Reserved, Settled
from extender.cluster.geometry import geometry_of, profile_of
from extender.cluster.notices import LinksUnknown
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.bind import Granted, Veto, seat_pod
from extender.decide.place import fits
from extender.wire.objects import Node, Pod
from tests.builders import GPU, Json, book, node, raw_pod, read_pod

H100 = "NVIDIA-H100-80GB-HBM3"
ONE, TWO, THREE, FOUR, SEVEN = (
    f"nvidia.com/mig-{name}" for name in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
)
MOST = {ONE: 7, TWO: 3, THREE: 2, FOUR: 1, SEVEN: 1}
UNITS = {ONE: (1, 7), TWO: (2, 6), THREE: (4, 8), FOUR: (4, 4), SEVEN: (8, 8)}
"""By resource: the units that an instance takes, and the unit before which it must end (NVIDIA's MIG guide)."""


def cut_on_demand(name: str = "n0", cards: int = 2, labels: dict[str, str] | None = None) -> Node:
    told = {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.count": str(cards), "kvitej.io/mig": "dynamic"}
    amounts = {resource: str(count * cards) for resource, count in MOST.items()}
    return node(name, amounts, labels={**told, **(labels or {})})


def bind(state: ClusterState, raw: Json, at: str = "n0") -> Json | None:
    """The pod as it is stored once bound; None when it is refused."""
    pod = read_pod(raw)
    decision = seat_pod(state.snapshot(), pod.metadata.uid, request_of(pod), at)
    if isinstance(decision, Veto):
        return None
    assert isinstance(decision, Granted)
    state.apply(Reserved(pod, at, decision.devices))
    state.apply(Settled(pod.metadata.uid, Outcome.BOUND))
    stored: Json = json.loads(json.dumps(raw))
    stored["spec"]["nodeName"] = at
    stored["metadata"]["annotations"]["kvitej.io/devices"] = decision.devices
    state.apply(PodSeen(read_pod(stored)))
    return stored


def places(stored: Json) -> list[tuple[str, int, int]]:
    """(resource, card, start) of each instance in the record."""
    containers = json.loads(stored["metadata"]["annotations"]["kvitej.io/devices"])["containers"]
    return [
        (resource, card, start)
        for found in containers.values()
        for resource, cut in found.get("cut", {}).items()
        for card, start in cut
    ]


def test_the_record_says_on_which_card_and_where_each_instance_is_cut() -> None:
    state = book(cut_on_demand())
    stored = bind(state, raw_pod("p", {THREE: "1", ONE: "2"}))
    assert stored is not None
    assert places(stored) == [(ONE, 0, 3), (ONE, 0, 2), (THREE, 0, 4)]
    legal_together([stored])


def legal_together(sitting: list[Json]) -> None:
    """By the intervals of NVIDIA's guide alone: nothing starts where it can't, and no unit of a card is held twice."""
    units: set[tuple[int, int]] = set()
    for stored in sitting:
        for resource, card, start in places(stored):
            size, end = UNITS[resource]
            assert start + size <= end
            taken = {(card, unit) for unit in range(start, start + size)}
            assert not units & taken, "two instances on one unit"
            units |= taken


def test_the_trap_of_three_small_instances_is_not_stepped_into() -> None:
    """1g at 0, 1 and 5 leaves four slices free and no place for 3g or 4g; here a fourth pod still gets one of each."""
    state = book(cut_on_demand(cards=1))
    small = [bind(state, raw_pod(f"p{number}", {ONE: "1"})) for number in range(3)]
    starts = sorted(start for stored in small if stored for _, _, start in places(stored))
    assert starts != [0, 1, 5]
    assert bind(state, raw_pod("four", {FOUR: "1"})) is not None
    other = book(cut_on_demand(cards=1))
    geometry = geometry_of(H100)
    assert geometry is not None
    profile = profile_of(geometry, ONE)
    assert profile is not None
    for number, start in enumerate((0, 1, 5)):
        record = {"units": 0.1, "containers": {"main": {"mig": {ONE: 1}, "cut": {ONE: [[0, start]]}}}}
        other.apply(PodSeen(read_pod(raw_pod(f"p{number}", {ONE: "1"}, at="n0", record=json.dumps(record)))))
    assert bind(other, raw_pod("four", {FOUR: "1"})) is None
    assert bind(other, raw_pod("three", {THREE: "1"})) is None
    assert bind(other, raw_pod("two", {TWO: "1"})) is not None


ASKS = [
    {ONE: "1"},
    {ONE: "1"},
    {TWO: "1"},
    {THREE: "1"},
    {FOUR: "1"},
    {SEVEN: "1"},
    {ONE: "2", THREE: "1"},
    {TWO: "3"},
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["bind", "bind", "bind", "leave", "restart", "node"]), st.integers(0, 99)),
        max_size=40,
    )
)
def test_what_is_granted_can_always_be_cut(steps: list[tuple[str, int]]) -> None:
    """Pods come and go, the node is created again, kvitej restarts: no two of its own grants share a unit."""
    state = book(cut_on_demand())
    sitting: dict[str, Json] = {}
    for count, (step, number) in enumerate(steps):
        if step == "bind":
            stored = bind(state, raw_pod(f"p{count}", ASKS[number % len(ASKS)]))
            if stored is not None:
                sitting[stored["metadata"]["uid"]] = stored
        elif step == "leave" and sitting:
            uid = sorted(sitting)[number % len(sitting)]
            del sitting[uid]
            state.apply(PodGone(uid))
        elif step == "restart":
            pods = [read_pod(stored) for stored in sitting.values()]
            random.Random(number).shuffle(pods)
            state = book(cut_on_demand(), pods=pods)
        elif step == "node":
            state.apply(NodeGone("n0"))
            state.apply(NodeSeen(cut_on_demand()))
        state.check()
        legal_together(list(sitting.values()))
    held = sum(UNITS[resource][0] for stored in sitting.values() for resource, _, _ in places(stored))
    columns = state.snapshot().table
    assert sum(int(cut).bit_count() for cut in columns.slices[0, :2]) == held
    assert columns.misplaced[0] == 0


def foreign(name: str, record: str | None = None) -> Pod:
    return read_pod(raw_pod(name, {FOUR: "1"}, at="n0", record=record))


def test_a_pod_that_others_bound_is_where_the_plugin_would_put_it() -> None:
    state = book(cut_on_demand(), pods=[foreign("a")])
    assert state.snapshot().table.slices[0, :2].tolist() == [0b1111, 0]
    state.apply(PodGone("uid-a"))
    assert state.snapshot().table.slices[0, :2].tolist() == [0, 0]
    state.check()


def test_a_pod_that_has_no_place_closes_the_node_for_instances_until_it_is_gone() -> None:
    state = book(cut_on_demand(cards=1), pods=[foreign("a"), foreign("b")])
    assert state.snapshot().table.misplaced[0] == 1
    assert bind(state, raw_pod("p", {ONE: "1"})) is None
    state.apply(PodGone("uid-a"))
    assert bind(state, raw_pod("p", {ONE: "1"})) is None, "it is not known which of the two is on the card"
    state.apply(PodGone("uid-b"))
    assert bind(state, raw_pod("p", {ONE: "1"})) is not None
    state.check()


@pytest.mark.parametrize(
    "cut",
    [
        {FOUR: [[0, 1]]},
        {FOUR: [[7, 0]]},
        {FOUR: [[-1, 0]]},
        {FOUR: []},
        {FOUR: [[0, 0], [1, 0]]},
        {ONE: [[0, 0]]},
        {},
    ],
)
def test_a_record_that_cannot_be_true_is_a_forecast_at_most(cut: Json) -> None:
    record = {"units": 0.5, "containers": {"main": {"mig": {FOUR: 1}, "cut": cut}}}
    state = book(cut_on_demand(), pods=[foreign("a", json.dumps(record))])
    assert state.snapshot().table.slices[0, :2].tolist() == [0b1111, 0]


def test_two_records_of_one_place_hold_two_places() -> None:
    record = json.dumps({"units": 0.5, "containers": {"main": {"mig": {FOUR: 1}, "cut": {FOUR: [[0, 0]]}}}})
    state = book(cut_on_demand(), pods=[foreign("a", record), foreign("b", record)])
    assert state.snapshot().table.slices[0, :2].tolist() == [0b1111, 0b1111]
    for uid in ("uid-a", "uid-b"):
        state.apply(PodGone(uid))
    assert state.snapshot().table.slices[0, :2].tolist() == [0, 0]


@pytest.mark.parametrize(
    "labels",
    [{"nvidia.com/gpu.product": "NVIDIA-L40S"}, {"kvitej.io/mig": "static"}, {"nvidia.com/gpu.count": "0"}],
)
def test_without_a_known_model_or_the_label_instances_are_counted_only(labels: dict[str, str]) -> None:
    state = book(cut_on_demand(labels=labels), pods=[foreign("a")])
    table = state.snapshot().table
    assert table.slices[0].max() == -1
    assert bind(state, raw_pod("p", {FOUR: "1"})) is not None


# links


def matrix(gpus: int, bridged: set[tuple[int, int]]) -> str:
    names = [f"GPU{gpu}" for gpu in range(gpus)]
    rows = [
        [
            names[i],
            *(
                "X" if i == j else "NV4" if (i, j) in bridged or (j, i) in bridged else "SYS"
                for j in range(gpus)
            ),
        ]
        for i in range(gpus)
    ]
    return "\n".join("\t".join(row) for row in [["", *names], *rows]) + "\n"


def linked(name: str, text: str, gpus: int = 4) -> Node:
    return node(name, {GPU: str(gpus)}, annotations={"kvitej.io/links": text})


def code_of(state: ClusterState, raw: Json, at: str) -> int:
    snapshot = state.snapshot()
    ask = snapshot.ask(request_of(read_pod(raw)))
    assert ask is not None
    return fits(snapshot.table, snapshot.index.get(at), ask)


def pair(**annotations: str) -> Json:
    raw = raw_pod("p", {GPU: "2"})
    raw["metadata"]["annotations"] |= {
        f"kvitej.io/{name.replace('_', '-')}": text for name, text in annotations.items()
    }
    return raw


def test_a_job_gets_a_pair_with_a_bridge_and_a_record_of_it() -> None:
    state = book(linked("n0", matrix(4, {(0, 3), (1, 2)})))
    first = bind(state, pair(topology="require", min_bandwidth="nvlink"))
    assert first is not None
    held = json.loads(first["metadata"]["annotations"]["kvitej.io/devices"])["containers"]["main"]["gpu"]
    assert held in ([0, 3], [1, 2])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("what is this?", "cannot be understood"),
        (matrix(3, set()), "is of 3 GPUs, but the node offers 4"),
    ],
)
def test_links_that_are_not_understood_are_unknown_and_said_so(text: str, reason: str) -> None:
    state = book()
    (notice,) = state.apply(NodeSeen(linked("n0", text)))
    assert isinstance(notice, LinksUnknown)
    assert reason in str(notice)
    assert code_of(state, pair(topology="require"), "n0") == 9
    assert code_of(state, pair(), "n0") == 0


def test_seventeen_gpus_have_unknown_links() -> None:
    state = book()
    (notice,) = state.apply(NodeSeen(linked("n0", matrix(17, set()), 17)))
    assert "17 GPUs" in str(notice)


def test_kinds_of_nodes_that_come_later_do_not_disturb_those_that_are_there() -> None:
    state = book(linked("n0", matrix(4, {(0, 1)})))
    before = state.snapshot().table.topology[0]
    state.apply(NodeSeen(cut_on_demand("n1", cards=12)))
    state.apply(NodeSeen(linked("n2", matrix(4, {(0, 1), (2, 3)}))))
    state.apply(NodeSeen(linked("n3", matrix(4, {(0, 1)}))))
    snapshot = state.snapshot()
    rows = [snapshot.index.get(f"n{number}") for number in range(4)]
    kinds = [int(snapshot.table.topology[row]) for row in rows]
    assert kinds[0] == before == kinds[3]
    assert kinds[2] not in (kinds[0], -1)
    assert kinds[1] == -1
    assert snapshot.table.slices[rows[1]].tolist().count(0) == 12
    assert all(snapshot.table.slices[row].max() == -1 for row in (rows[0], *rows[2:]))
    state.check()
