"""The last door: a seat with its cards, or a veto that says why."""

import json

import pytest

from extender.cluster.assignment import Cards
from extender.cluster.events import Event, NodeSeen, Outcome, PodSeen, Promised, Reserved, Settled
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.bind import AlreadyBound, Granted, Veto, describe, seat_pod
from extender.wire.objects import Pod
from tests.builders import GPU, MIG, SHARED, Json, book, claimed, container, node, pod, record_of
from tests.reports import card, report


def decide(state: ClusterState, asking: Pod, at: str) -> Granted | AlreadyBound | Veto:
    return seat_pod(state.snapshot(), asking.metadata.uid, request_of(asking), at)


def record(state: ClusterState, asking: Pod, at: str = "n0") -> Json:
    granted = decide(state, asking, at)
    assert isinstance(granted, Granted)
    assert granted.devices is not None
    found: Json = json.loads(granted.devices)
    return found


def reason(state: ClusterState, asking: Pod, at: str = "n0") -> str:
    veto = decide(state, asking, at)
    assert isinstance(veto, Veto)
    return veto.reason


def test_whole_cards_are_the_free_ones_of_lowest_index() -> None:
    state = book(node("n0", {GPU: "4"}))
    state.apply(Reserved(pod("other", {GPU: "1"}), "n0", record_of(gpu=(1,))))
    assert record(state, pod("p", {GPU: "2"})) == {"units": 2.0, "containers": {"main": {"gpu": [0, 2]}}}


def test_a_share_is_charged_for_what_it_declares_or_its_part() -> None:
    # Ten shares of 1000 MiB: a part is 1/10; 300 MiB declared are 3/10 of the card, 50 MiB less than the part.
    state = book(node("n0", {SHARED: "20"}, replicas=10, memory=1000))
    assert record(state, pod("p", {SHARED: "1"}))["units"] == 0.1
    assert record(state, pod("p", {SHARED: "2"}, memory="300Mi"))["units"] == 0.6
    assert record(state, pod("p", {SHARED: "1"}, memory="50Mi"))["units"] == 0.1


def test_a_mig_instance_is_charged_for_its_part_of_the_card() -> None:
    # 1g.5gb of an A100 40GB: max(1/7 compute, 1/8 memory) = 1/7; three are 3/7 = 0.428571.
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    state = book(node("n0", {MIG: "7"}, labels=labels))
    assert record(state, pod("p", {MIG: "3"})) == {
        "units": 0.428571,
        "containers": {"main": {"mig": {MIG: 3}}},
    }


def test_an_instance_that_is_called_gpu_is_charged_as_the_instance_that_it_is() -> None:
    labels = {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    }
    state = book(node("n0", {GPU: "7"}, labels=labels))
    assert record(state, pod("p", {GPU: "1"})) == {
        "units": 0.142857,
        "containers": {"main": {"mig": {GPU: 1}}},
    }


def test_a_gpu_of_a_time_sliced_node_is_a_share() -> None:
    labels = {"nvidia.com/gpu.product": "T4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    state = book(node("n0", {GPU: "8"}, labels=labels, replicas=4))
    assert record(state, pod("p", {GPU: "1"})) == {
        "units": 0.25,
        "containers": {"main": {"shared": [0]}},
        "memory": 0,
    }


def test_init_containers_use_the_cards_that_the_apps_get_later_and_sidecars_keep_theirs() -> None:
    spec = {
        "initContainers": [
            container("warm", {GPU: "2"}),
            container("side", {GPU: "1"}, sidecar=True),
            container("late", {GPU: "1"}),
        ],
        "containers": [container("main", {GPU: "1"}), container("log", {"cpu": "1"})],
    }
    found = record(book(node("n0", {GPU: "4"})), pod("p", spec=spec))
    assert found == {
        "units": 2.0,
        "containers": {
            "warm": {"gpu": [0, 1]},
            "side": {"gpu": [0]},
            "late": {"gpu": [1]},
            "main": {"gpu": [1]},
        },
    }


def test_a_granted_record_is_believed_when_it_comes_back() -> None:
    spec = {
        "initContainers": [
            container("warm", {GPU: "2", SHARED: "1"}),
            container("side", {GPU: "1"}, sidecar=True),
        ],
        "containers": [container("main", {GPU: "1", SHARED: "2"})],
        "overhead": {GPU: "1"},
    }
    state = book(node("n0", {GPU: "4", SHARED: "40"}))
    granted = decide(state, pod("p", spec=spec), "n0")
    assert isinstance(granted, Granted)
    state.apply(Reserved(pod("p", spec=spec), "n0", granted.devices))
    state.check()
    assert not state.snapshot().worst_case
    # The overhead's card 0, then the sidecar's 1 beside what main gets, 2; the shares are on the first card left.
    assert state.snapshot().seats["uid-p"].cards == Cards((0, 1, 2), (3, 3), memory=0)


def test_a_pod_without_devices_is_granted_without_a_record() -> None:
    assert decide(book(node("n0", {GPU: "some"})), pod("p", {"cpu": "1"}), "n0") == Granted(None)


def test_soft_claims_do_not_veto() -> None:
    state = book(node("n0", {GPU: "1"}))
    state.apply(claimed(pod("other", {GPU: "1"}), "n0", Cards((0,)), until=10.0))
    assert record(state, pod("p", {GPU: "1"}))["containers"] == {"main": {"gpu": [0]}}


@pytest.mark.parametrize(
    ("asks", "memory", "words"),
    [
        ({GPU: "1"}, None, "the GPUs asked for are taken: 1 nvidia.com/gpu on n0"),
        ({GPU: "2"}, None, "fewer of the GPUs asked for than the pod needs: 2 nvidia.com/gpu on n0"),
        ({"nvidia.com/unheard-of": "1"}, None, "fewer of the GPUs asked for than the pod needs"),
        ({SHARED: "1"}, "2Gi", "no GPU of the node has as much memory as the pod declares"),
        (
            {SHARED: "1"},
            "1Mi",
            "the GPUs asked for are taken: 1 nvidia.com/gpu.shared, 1 MiB of GPU memory each",
        ),
    ],
)
def test_a_veto_says_why_for_what_and_where(asks: dict[str, str], memory: str | None, words: str) -> None:
    state = book(node("n0", {GPU: "1", SHARED: "10"}, memory=1000))
    state.apply(Reserved(pod("other", {GPU: "1"}), "n0", record_of(gpu=(0,))))
    assert words in reason(state, pod("p", asks, memory=memory))


def test_a_node_that_is_not_there_is_vetoed() -> None:
    assert reason(book(), pod("p", {GPU: "1"}), "n7") == "node n7 is not there (any more)"


def test_binding_is_idempotent_and_never_moves_a_pod() -> None:
    state = book(node("n0", {GPU: "1"}), node("n1", {GPU: "1"}))
    asking = pod("p", {GPU: "1"})
    state.apply(Reserved(asking, "n0", record_of(gpu=(0,))))
    assert "is being bound to n0 already" in reason(state, asking, "n0")
    assert "is being bound to n0, so it can't go to n1" in reason(state, asking, "n1")
    state.apply(Settled("uid-p", Outcome.BOUND))
    assert decide(state, asking, "n0") == AlreadyBound()
    assert "is bound to n0, so it can't go to n1" in reason(state, asking, "n1")


def test_an_uncertain_seat_is_written_again_with_the_same_record_and_no_second_card() -> None:
    state = book(node("n0", {GPU: "1"}))
    asking, kept = pod("p", {GPU: "1"}), record_of(gpu=(0,))
    state.apply(Reserved(asking, "n0", kept))
    state.apply(Settled("uid-p", Outcome.UNKNOWN))
    assert decide(state, asking, "n0") == Granted(kept)


@pytest.mark.parametrize(
    "change",
    [
        NodeSeen(node("n0", {GPU: "1", SHARED: "4"}, capacity={GPU: "4", SHARED: "4"}, replicas=4)),
        NodeSeen(node("n0", {SHARED: "8"}, replicas=4)),
        NodeSeen(node("n0", {GPU: "lots"})),
        PodSeen(pod("foreign", {GPU: "1"}, at="n0")),
    ],
)
def test_an_uncertain_seat_on_a_node_that_changed_meanwhile_is_not_written_again(change: Event) -> None:
    state = book(node("n0", {GPU: "2"}))
    asking = pod("p", {GPU: "2"})
    state.apply(Reserved(asking, "n0", record_of(gpu=(0, 1), units=2.0)))
    state.apply(Settled("uid-p", Outcome.UNKNOWN))
    state.apply(change)
    assert "which has changed since" in reason(state, asking)


def test_a_promised_seat_is_granted_with_its_own_devices_and_on_no_other_node() -> None:
    state = book(node("n0", {GPU: "2"}), node("n1", {GPU: "2"}))
    asking = pod("p", {GPU: "1"})
    state.apply(Promised(asking, "n0", record_of(gpu=(1,))))
    assert decide(state, asking, "n0") == Granted(record_of(gpu=(1,)))
    assert "has a seat kept on n0, so it can't go to n1" in reason(state, asking, "n1")
    assert isinstance(decide(state, pod("q", {GPU: "2"}), "n0"), Veto), "nobody else can have it"
    state.apply(NodeSeen(node("n0", {GPU: "1"})))
    assert "which has changed since" in reason(state, asking, "n0")


def test_what_a_pod_asks_for_in_words() -> None:
    assert describe(request_of(pod("p", {GPU: "2", MIG: "1"}))) == "2 nvidia.com/gpu, 1 nvidia.com/mig-1g.5gb"
    assert describe(request_of(pod("p", {}))) == "nothing"


def test_a_promised_seat_moves_where_its_card_has_filled_up_and_the_plan_is_what_happens() -> None:
    """Another card of the node would do: the one that was promised would be filled beyond its watermark."""
    labels = {"kvitej.io/card-choice": "planned", "nvidia.com/gpu.product": "H100"}
    state = book(node("n0", {SHARED: 8}, memory=80 * 1024, replicas=4, labels=labels))
    asking = pod("p", {SHARED: 1}, memory="30Gi")
    state.apply(report(card(0), card(1), held={}))
    state.apply(PodSeen(asking))
    state.apply(Promised(asking, "n0", record_of(shared=(0,))))
    for full, card_given in (((0, 40), 0), ((60, 0), 1), ((60, 60), None)):
        state.apply(report(*(card(at, foreign=use) for at, use in enumerate(full)), held={}))
        if card_given is None:
            assert "no GPU of the node has as much memory free" in reason(state, asking)
        else:
            assert record(state, asking)["containers"]["main"] == {"shared": [card_given]}
