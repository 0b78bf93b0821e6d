"""Bind: reserved before it is written, settled by what the API server says, kept while nobody says anything."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from extender.cluster.assignment import Cards
from extender.cluster.events import BindResult, Outcome, PodGone, PodSeen
from extender.cluster.seats import Phase
from extender.decide.plan import Answer
from extender.serve.seating import SeatDoor
from tests.builders import GPU, Json, binding_body, claimed, node, pod, raw_pod, read_pod, record_of
from tests.cluster.clock import ClockLoop
from tests.reports import card, report
from tests.serve.doors import Doors

LOST = BindResult(Outcome.UNKNOWN, "no answer")
REFUSED = BindResult(Outcome.REFUSED, "connection refused")
TAKEN = "the GPUs asked for are taken"


class Seating:
    """Doors over one node of one GPU, on a clock of their own."""

    def __init__(self) -> None:
        self.loop = ClockLoop()
        self.doors = Doors(node("n0", {GPU: "1"}), node("n1", {GPU: "1"}))
        self.server = self.doors.server

    def bind(self, raw: Json, at: str = "n0") -> str:
        answer = json.loads(self.loop.run_until_complete(self.doors.seat.bind(binding_body(raw, at))))
        assert answer.keys() == {"Error"}
        self.doors.state.check()
        error: str = answer["Error"]
        return error

    def phase(self, name: str = "p") -> Phase | None:
        seat = self.doors.state.snapshot().seats.get(f"uid-{name}")
        return seat.phase if seat else None

    def wait(self, seconds: float) -> None:
        self.loop.wait(seconds)
        self.doors.state.check()


@pytest.fixture
def seating() -> Iterator[Seating]:
    made = Seating()
    yield made
    while tasks := asyncio.all_tasks(made.loop):
        for task in tasks:
            task.cancel()
        made.loop.work()
    made.loop.close()


@pytest.fixture
def waiting(seating: Seating) -> Json:
    raw = raw_pod("p", {GPU: "1"})
    seating.doors.see(raw)
    return raw


def test_a_pod_is_bound_with_its_record(seating: Seating, waiting: Json) -> None:
    assert seating.bind(waiting) == ""
    assert seating.doors.record("p") == record_of(gpu=(0,))
    assert seating.phase() is Phase.BOUND
    assert seating.doors.counted("bind", "bound") == 1


def test_a_second_bind_for_the_same_node_is_answered_without_a_second_write(
    seating: Seating, waiting: Json
) -> None:
    assert (seating.bind(waiting), seating.bind(waiting)) == ("", "")
    assert seating.server.writes == [("p", "n0")]
    assert "is bound to n0, so it can't go to n1" in seating.bind(waiting, "n1")


def test_who_lost_its_turn_is_told_what_stands_against_the_node(seating: Seating, waiting: Json) -> None:
    doors = seating.doors
    doors.seat = SeatDoor(
        doors.book,
        doors.server,
        doors.config,
        doors.metrics,
        turn=lambda pod: Answer(None, "number 1 in line"),
    )
    assert seating.bind(waiting) == "number 1 in line"
    doors.state.apply(report(card(foreign=9), held={}))
    assert seating.bind(waiting) == (
        "a GPU that the kubelet could give the pod is used by processes that nobody scheduled: "
        "GPU 0 (GPU-0) of n0: 9.0 GiB of its 80.0 GiB are in use"
    )
    assert seating.phase() is None
    assert not doors.server.writes


def test_a_veto_is_told_counted_and_nothing_is_written(seating: Seating, waiting: Json) -> None:
    seating.bind(waiting)
    late = raw_pod("late", {GPU: "1"})
    seating.doors.see(late)
    assert seating.bind(late).startswith(TAKEN)
    assert [name for name, reason in seating.doors.vetoes if reason.startswith(TAKEN)] == ["late"]
    assert seating.server.writes == [("p", "n0")]
    assert seating.doors.counted("bind", "vetoed") == 1


def test_of_two_binds_at_once_for_one_card_one_is_vetoed(seating: Seating, waiting: Json) -> None:
    other = raw_pod("other", {GPU: "1"})
    seating.doors.see(other)
    seating.server.open.clear()
    first = seating.loop.create_task(seating.doors.seat.bind(binding_body(waiting, "n0")))
    seating.loop.work()
    assert seating.phase() is Phase.RESERVED
    assert seating.bind(other).startswith(TAKEN)
    seating.server.open.set()
    assert json.loads(seating.loop.run_until_complete(first)) == {"Error": ""}


def test_a_second_bind_while_the_first_is_written_is_no_second_write(seating: Seating, waiting: Json) -> None:
    seating.server.open.clear()
    first = seating.loop.create_task(seating.doors.seat.bind(binding_body(waiting, "n0")))
    seating.loop.work()
    assert "is being bound to n0 already" in seating.bind(waiting)
    seating.server.open.set()
    seating.loop.run_until_complete(first)
    assert seating.server.writes == [("p", "n0")]


def test_a_refused_write_frees_the_seat_and_says_why(seating: Seating, waiting: Json) -> None:
    seating.server.results = [REFUSED]
    assert seating.bind(waiting) == "connection refused"
    assert seating.phase() is None
    assert seating.doors.counted("bind", "failed") == 1
    assert not seating.doors.vetoes


def test_a_lost_answer_is_settled_by_reading_the_pod(seating: Seating, waiting: Json) -> None:
    seating.server.results = [LOST]
    assert seating.bind(waiting) == "no answer"
    assert seating.phase() is Phase.UNCERTAIN
    seating.wait(1.0)
    assert seating.phase() is Phase.BOUND
    assert seating.doors.counted("bind", "unknown") == 1


def test_a_lost_write_keeps_its_seat_for_as_long_as_it_may_still_happen(
    seating: Seating, waiting: Json
) -> None:
    seating.server.results, seating.server.lost = [LOST], True
    seating.bind(waiting)
    seating.wait(55.0)
    assert seating.phase() is Phase.UNCERTAIN
    seating.wait(15.0)
    assert seating.phase() is None


def test_the_time_counts_from_when_the_server_can_be_asked_again(seating: Seating, waiting: Json) -> None:
    seating.server.results, seating.server.lost, seating.server.reachable = [LOST], True, False
    seating.bind(waiting)
    seating.wait(100.0)
    seating.server.reachable = True
    seating.wait(55.0)
    assert seating.phase() is Phase.UNCERTAIN
    seating.wait(15.0)
    assert seating.phase() is None


def test_a_lost_write_of_a_pod_that_is_gone_frees_the_seat(seating: Seating, waiting: Json) -> None:
    seating.server.results = [LOST]
    seating.bind(waiting)
    del seating.server.pods["p"]
    seating.wait(1.0)
    assert seating.phase() is None


def test_a_lost_write_of_a_pod_that_another_bound_elsewhere_frees_the_seat(
    seating: Seating, waiting: Json
) -> None:
    seating.server.results, seating.server.lost = [LOST], True
    seating.bind(waiting)
    waiting["spec"]["nodeName"] = "n1"
    seating.wait(1.0)
    assert seating.phase() is None


def test_a_second_bind_settles_a_lost_answer(seating: Seating, waiting: Json) -> None:
    seating.server.results = [LOST]
    seating.bind(waiting)
    assert seating.bind(waiting) == ""
    assert seating.phase() is Phase.BOUND


def test_a_second_bind_that_never_left_does_not_free_what_the_first_may_have_taken(
    seating: Seating, waiting: Json
) -> None:
    seating.server.results = [LOST, REFUSED]
    seating.bind(waiting)
    assert seating.bind(waiting) == "connection refused"
    assert seating.phase() is Phase.UNCERTAIN
    other = raw_pod("other", {GPU: "1"})
    seating.doors.see(other)
    assert seating.bind(other).startswith(TAKEN)
    seating.wait(1.0)
    assert seating.phase() is Phase.BOUND


def test_an_interrupted_write_is_one_whose_answer_is_lost(seating: Seating, waiting: Json) -> None:
    seating.server.open.clear()
    running = seating.loop.create_task(seating.doors.seat.bind(binding_body(waiting, "n0")))
    seating.loop.work()
    running.cancel()
    seating.loop.work()
    assert seating.phase() is Phase.UNCERTAIN


def test_the_watch_settles_a_lost_answer_first(seating: Seating, waiting: Json) -> None:
    seating.server.results = [LOST]
    seating.bind(waiting)
    seating.doors.see(seating.server.pods["p"])
    assert seating.phase() is Phase.BOUND
    seating.wait(10.0)
    assert seating.server.reads == 0


def test_a_pod_that_is_not_known_yet_is_read(seating: Seating) -> None:
    raw = raw_pod("p", {GPU: "1"})
    seating.server.put(raw)
    assert seating.bind(raw) == ""
    assert (seating.server.reads, seating.phase()) == (1, Phase.BOUND)


def test_a_pod_that_filter_has_seen_is_not_read(seating: Seating) -> None:
    raw = raw_pod("p", {GPU: "1"})
    seating.server.put(raw)
    seating.doors.state.apply(claimed(read_pod(raw), "n1", Cards((0,)), until=10.0))
    assert seating.bind(raw) == ""
    assert (seating.server.reads, seating.doors.state.snapshot().claims) == (0, {})


def test_a_pod_that_is_gone_or_was_created_anew_is_refused_and_holds_nothing(seating: Seating) -> None:
    raw = raw_pod("p", {GPU: "1"})
    assert "is gone" in seating.bind(raw)
    seating.server.put(raw_pod("p", {GPU: "1"}, uid="another"))
    assert "with uid uid-p is gone" in seating.bind(raw)
    assert (seating.phase(), seating.doors.vetoes, seating.server.writes) == (None, [], [])
    assert seating.doors.counted("bind", "error") == 2


@pytest.mark.parametrize("lost", [True, False])
def test_a_pod_that_is_over_gets_no_seat_since_nothing_would_release_it(seating: Seating, lost: bool) -> None:
    raw = raw_pod("p", {GPU: "1"}, at="n0", phase="Succeeded")
    seating.server.put(raw)
    if lost:
        seating.doors.state.apply(claimed(pod("p", {GPU: "1"}), "n0", Cards((0,)), until=10.0))
        seating.server.results = [LOST]
        assert seating.bind(raw) == "no answer"
        seating.wait(1.0)
    else:
        assert "is over" in seating.bind(raw)
    assert seating.phase() is None


def test_a_pod_that_cannot_be_read_now_is_refused(seating: Seating) -> None:
    seating.server.reachable = False
    assert "could not be read: connection refused" in seating.bind(raw_pod("p", {GPU: "1"}))


def test_a_pod_deleted_while_its_binding_is_written_leaves_no_seat(seating: Seating, waiting: Json) -> None:
    seating.server.open.clear()
    running = seating.loop.create_task(seating.doors.seat.bind(binding_body(waiting, "n0")))
    seating.loop.work()
    seating.doors.state.apply(PodGone("uid-p"))
    seating.server.open.set()
    seating.loop.run_until_complete(running)
    assert seating.phase() is None


def test_a_request_that_cannot_be_read_is_vetoed_with_its_path(seating: Seating) -> None:
    raw = raw_pod("p", {GPU: "1"}, memory="lots")
    seating.doors.see(raw)
    assert seating.bind(raw).startswith("metadata.annotations[kvitej.io/gpu-memory]")
    assert len(seating.doors.vetoes) == 1


def test_a_book_that_cannot_be_trusted_binds_nothing(seating: Seating, waiting: Json) -> None:
    seating.doors.unfit = "kvitej is not synced"
    assert seating.bind(waiting) == "kvitej is not synced"
    assert (seating.server.writes, seating.doors.vetoes) == ([], [])


def test_a_pod_without_devices_is_bound_without_a_record(seating: Seating) -> None:
    raw = raw_pod("p", {"cpu": "1"})
    seating.server.put(raw)
    assert seating.bind(raw) == ""
    assert seating.doors.record("p") is None


def test_a_node_that_another_filled_meanwhile_is_vetoed(seating: Seating, waiting: Json) -> None:
    seating.doors.state.apply(PodSeen(pod("foreign", {GPU: "1"}, at="n0")))
    assert seating.bind(waiting).startswith(TAKEN)
