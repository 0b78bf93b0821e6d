"""Random clusters, pods, binds, lost answers and restarts, against a recount that knows nothing of the book.

The API server is the truth: nodes, pods and what is bound. The doors of the product work on what the watch has told
them so far; the machine decides when an event arrives, how a write ends and when its answer is lost. Every grant is
checked against a recount of all that kvitej had been told or had written itself, and when everything has settled, the
book is the recount of the truth.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import structlog
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.cluster.columns import OPEN
from extender.cluster.events import (
    BindResult,
    Elapsed,
    Event,
    NodeGone,
    NodeSeen,
    Outcome,
    PodGone,
    PodSeen,
    Promised,
    Withdrawn,
)
from extender.cluster.request import request_of
from extender.cluster.seats import Phase
from extender.cluster.state import ClusterState
from extender.config import Config
from extender.decide.bind import Granted, seat_pod
from extender.decide.filter import filter_nodes
from extender.schedulerconfig import managed_resources
from extender.serve.book import Book
from extender.serve.metrics import Metrics
from extender.serve.placing import PlaceDoor
from extender.serve.seating import SeatDoor
from extender.wire.devices import ANNOTATION
from extender.wire.objects import Pod
from tests.builders import Json, binding_body, filter_body, node, raw_pod, read_pod
from tests.cluster.clock import ClockLoop
from tests.cluster.naive import NODE_KINDS, POD_KINDS, PodKind, Sitting, count, fits

NAMES = ("n0", "n1", "n2")
MOSTLY = ("one", "two", "share", "half") * 3
FORGED = '{"units":1.0,"containers":{"main":{"gpu":[0]}}}'


@dataclass(frozen=True)
class ApiPod:
    """A pod as the API server has it."""

    name: str
    kind: PodKind
    at: str | None = None
    record: str | None = None
    spoilt: bool = False
    alive: bool = True
    over: bool = False

    @property
    def raw(self) -> Json:
        memory = "plenty" if self.spoilt else f"{self.kind.memory}Mi" if self.kind.memory else None
        phase = "Succeeded" if self.over else "Running" if self.at else "Pending"
        return raw_pod(
            self.name, at=self.at, record=self.record, memory=memory, phase=phase, spec=self.kind.spec
        )

    @property
    def sits(self) -> bool:
        return self.at is not None and self.alive and not self.over


@dataclass(eq=False)
class Write:
    """A Binding on its way to the API server."""

    uid: str
    at: str
    record: str | None
    answer: asyncio.Future[BindResult]
    lost_at: float = 0.0


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, str] = {}
        self.pods: dict[str, ApiPod] = {}
        self.told_nodes: dict[str, str] = {}
        self.told_pods: dict[str, ApiPod] = {}
        self.events: dict[str, deque[tuple[Event, ApiPod | str | None]]] = {}
        self.writes: list[Write] = []
        self.lost: list[Write] = []
        self.ours: set[str] = set()
        self.kept: dict[str, tuple[str, str | None]] = {}
        self.was_bound: dict[str, str] = {}
        self.reachable = True
        self.binds: list[tuple[str, str, asyncio.Task[bytes]]] = []
        self.loop = ClockLoop()
        self.start()

    # the process

    def start(self) -> None:
        self.state = ClusterState(managed_resources())
        book = Book(self.state)
        metrics = Metrics(book.snapshot, lambda: ())
        self.place = PlaceDoor(book, Config(), metrics)
        self.seat = SeatDoor(book, self, Config(), metrics)

    def kill(self) -> None:
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.work()
        self.loop.close()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.kill()

    # the writer, which the doors call

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult:
        pod = self.pods[uid]
        assert (namespace, name) == ("team", pod.name)
        write = Write(uid, node, annotations.get(ANNOTATION), self.loop.create_future())
        self.check_grant(write)
        self.writes.append(write)
        return await write.answer

    async def read(self, namespace: str, name: str) -> Pod | None:
        if not self.reachable:
            raise ConnectionError("the API server is away")
        found = [pod for pod in self.pods.values() if pod.name == name and pod.alive]
        return read_pod(found[0].raw) if found else None

    def check_grant(self, write: Write) -> None:
        """A seat is granted only where all that kvitej was told, or wrote itself, leaves room for it."""
        kind = self.pods[write.uid].kind
        if not kind.asks:
            return
        assert write.at in self.told_nodes, "granted on a node that kvitej was never told of"
        known = {uid: pod for uid, pod in self.told_pods.items() if pod.sits}
        for uid in self.ours & self.pods.keys():
            if self.pods[uid].sits and uid not in known:
                known[uid] = replace(self.pods[uid], spoilt=False)
        for other in (*self.writes, *self.lost):
            told = self.told_pods.get(other.uid)
            if told is not None and (told.over or not told.alive):
                continue  # kvitej knows that this write can't land any more
            known.setdefault(other.uid, replace(self.pods[other.uid], at=other.at, record=other.record))
        for uid, at, record in self.promised():
            known.setdefault(uid, replace(self.pods[uid], at=at, record=record))
        promise = self.kept.get(write.uid)
        assert promise in (None, (write.at, write.record)), "granted another seat than the promised one"
        known.pop(write.uid, None)
        others = [sitting(pod) for pod in known.values() if pod.at == write.at]
        on = NODE_KINDS[self.told_nodes[write.at]]
        before = count(on, others)
        assert fits(before, kind), f"granted beyond what {write.at} has"
        after = count(on, [*others, Sitting(kind, write.record)])
        assert not after.broken() - before.broken(), after.broken()
        assert write.record is not None, "granted without a record"

    def promised(self) -> list[tuple[str, str, str | None]]:
        """Seats that the planner has and nobody has bound, as the book has them."""
        seats = self.state.snapshot().seats
        return [(uid, seat.node, seat.record) for uid, seat in seats.items() if seat.phase is Phase.CLAIMED]

    # the API server

    def tell(self, key: str, event: Event, about: ApiPod | str | None) -> None:
        self.events.setdefault(key, deque()).append((event, about))

    def change(self, uid: str, **parts: Any) -> None:
        pod = self.pods[uid] = replace(self.pods[uid], **parts)
        if pod.sits and pod.at is not None:
            self.was_bound.setdefault(uid, pod.at)
        self.tell(uid, PodSeen(read_pod(pod.raw)) if pod.alive else PodGone(uid), pod)

    def land(self, write: Write) -> Outcome:
        """The API server gets to the write; the writer takes a pod that is over for one that is not there."""
        pod = self.pods[write.uid]
        if not pod.alive or pod.over:
            return Outcome.REFUSED
        if pod.at is not None:
            return Outcome.BOUND if pod.at == write.at else Outcome.REFUSED
        self.ours.add(write.uid)
        self.change(write.uid, at=write.at, record=write.record)
        return Outcome.BOUND

    def deliver(self, key: str) -> None:
        event, about = self.events[key].popleft()
        if not self.events[key]:
            del self.events[key]
        if isinstance(about, ApiPod):
            self.told_pods[key] = about
        elif about is None:
            self.told_nodes.pop(key)
        else:
            self.told_nodes[key] = about
        self.state.apply(event)

    # rules: the cluster

    @initialize(kinds=st.tuples(*[st.sampled_from(sorted(NODE_KINDS))] * 2))
    def some_nodes(self, kinds: tuple[str, str]) -> None:
        for name, kind in zip(NAMES, kinds, strict=False):
            self.put_node(name, kind)
            self.deliver(name)

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(sorted(NODE_KINDS)))
    def put_node(self, name: str, kind: str) -> None:
        shape = NODE_KINDS[kind]
        self.nodes[name] = kind
        self.tell(name, NodeSeen(node(name, shape.amounts, labels=shape.told_labels)), kind)

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self.tell(name, NodeGone(name), None)

    @rule(kinds=st.lists(st.sampled_from([*sorted(POD_KINDS), *MOSTLY]), min_size=1, max_size=4))
    def create_pods(self, kinds: list[str]) -> None:
        for kind in kinds:
            name = f"p{len(self.pods)}"
            self.pods[f"uid-{name}"] = ApiPod(name, POD_KINDS[kind])
            self.change(f"uid-{name}")

    def some_pod(self, number: int) -> str:
        return f"uid-p{number % len(self.pods)}"

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 99))
    def delete_pod(self, number: int) -> None:
        uid = self.some_pod(number)
        if self.pods[uid].alive:
            self.change(uid, alive=False)

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 99))
    def finish_pod(self, number: int) -> None:
        uid = self.some_pod(number)
        if self.pods[uid].sits:
            self.change(uid, over=True)

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 99))
    def spoil_annotation(self, number: int) -> None:
        uid = self.some_pod(number)
        if self.pods[uid].sits and self.pods[uid].kind.shares:
            self.change(uid, spoilt=True)

    @precondition(lambda self: self.pods)
    @rule(
        number=st.integers(0, 99),
        at=st.sampled_from(NAMES),
        record=st.sampled_from([None, None, "torn", FORGED]),
    )
    def bind_past_us(self, number: int, at: str, record: str | None) -> None:
        uid = self.some_pod(number)
        if self.pods[uid].alive and self.pods[uid].at is None:
            self.change(uid, at=at, record=record)

    # rules: the watch

    @precondition(lambda self: self.events)
    @rule(number=st.integers(0, 99), many=st.integers(1, 3))
    def deliver_some(self, number: int, many: int) -> None:
        for _ in range(min(many, len(self.events))):
            self.deliver(sorted(self.events)[number % len(self.events)])

    @rule()
    def deliver_all(self) -> None:
        while self.events:
            self.deliver(next(iter(self.events)))

    # rules: the scheduler

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 99), pick=st.integers(0, 9))
    def schedule(self, number: int, pick: int) -> None:
        """Filter, Prioritize and Bind of any pod that ever was, as a scheduler with old knowledge would."""
        pod = self.pods[self.some_pod(number)]
        raw = replace(pod, at=None, record=None, over=False).raw
        answer = json.loads(self.place.filter(filter_body(raw, [*NAMES, "stranger"])))
        assert answer["Error"] == ""
        kept = answer["NodeNames"]
        assert set(kept) <= {*NAMES, "stranger"} if not pod.kind.asks else set(kept) <= {*self.told_nodes}
        if not kept:
            return
        if len(kept) > 1 and pod.kind.asks:
            grades = json.loads(self.place.prioritize(filter_body(raw, kept)))
            assert max(grade["Score"] for grade in grades) == 10
            assert {grade["Host"] for grade in grades} <= set(kept), "who is left out has 0"
        self.bind_at(number, kept[pick % len(kept)])

    @precondition(lambda self: self.pods)
    @rule(number=st.integers(0, 99), at=st.sampled_from(NAMES))
    def bind_at(self, number: int, at: str) -> None:
        uid = self.some_pod(number)
        self.kept = {each: (node, record) for each, node, record in self.promised()}
        task = self.loop.create_task(self.seat.bind(binding_body(self.pods[uid].raw, at)))
        self.binds.append((uid, at, task))
        self.work()

    # rules: the planner

    @precondition(lambda self: self.state.snapshot().waiting)
    @rule(number=st.integers(0, 99), pick=st.integers(0, 9))
    def promise(self, number: int, pick: int) -> None:
        """A seat for a pod that waits, or another than the one it was promised."""
        snapshot = self.state.snapshot()
        uid = sorted(snapshot.waiting)[number % len(snapshot.waiting)]
        seat, kind = snapshot.seats.get(uid), self.pods[uid].kind
        if not kind.readable or (seat is not None and seat.phase is not Phase.CLAIMED):
            return
        self.state.apply(Withdrawn(uid))
        snapshot = self.state.snapshot()
        pod = snapshot.waiting[uid].pod
        request = request_of(pod)
        rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)
        kept = filter_nodes(snapshot, uid, request, rows, 100).kept
        if not len(kept):
            return
        at = snapshot.index.name(int(kept[pick % len(kept)]))
        granted = seat_pod(snapshot, uid, request, at)
        assert isinstance(granted, Granted), "Filter keeps what Bind refuses"
        assert granted.devices is not None
        others = [
            replace(self.pods[other.uid], at=at, record=other.record, spoilt=False)
            for other in snapshot.seats_by_node.get(at, {}).values()
            if other.record is not None and other.uid not in snapshot.worst_case
        ]
        on = NODE_KINDS[self.told_nodes[at]]
        before = count(on, map(sitting, others))
        after = count(on, [*map(sitting, others), Sitting(kind, granted.devices)])
        assert not after.broken() - before.broken(), after.broken()
        self.state.apply(Promised(pod, at, granted.devices))

    @rule(number=st.integers(0, 99))
    def withdraw(self, number: int) -> None:
        promised = self.promised()
        if promised:
            self.state.apply(Withdrawn(promised[number % len(promised)][0]))

    @rule()
    def expire_claims(self) -> None:
        self.state.apply(Elapsed(float("inf")))

    # rules: the writes

    @precondition(lambda self: self.writes)
    @rule(
        number=st.integers(0, 99),
        how=st.sampled_from(
            ["done", "done", "done", "never sent", "lost, done", "lost, not done", "lost, on its way"]
        ),
    )
    def answer(self, number: int, how: str) -> None:
        write = self.writes.pop(number % len(self.writes))
        if how == "done":
            write.answer.set_result(BindResult(self.land(write), "as the server says"))
        elif how == "never sent":
            write.answer.set_result(BindResult(Outcome.REFUSED, "connection refused"))
        else:
            if how == "lost, done":
                self.land(write)
            elif how == "lost, on its way":
                write.lost_at = self.loop.time()
                self.lost.append(write)
            write.answer.set_result(BindResult(Outcome.UNKNOWN, "no answer"))
        self.work()

    @precondition(lambda self: self.writes)
    @rule(
        number=st.integers(0, 99), how=st.sampled_from(["lost, done", "lost, not done", "lost, on its way"])
    )
    def lose(self, number: int, how: str) -> None:
        """The answer is lost, and what the door reads afterwards is all that it hears."""
        self.answer(number, how)
        self.wait(2.0, lands=False)

    @precondition(lambda self: self.lost)
    @rule(number=st.integers(0, 99), lands=st.booleans())
    def arrive(self, number: int, lands: bool) -> None:
        write = self.lost.pop(number % len(self.lost))
        if lands:
            self.land(write)

    @rule(reachable=st.booleans())
    def reach(self, reachable: bool) -> None:
        self.reachable = reachable

    @rule(seconds=st.sampled_from([0.6, 2.0, 20.0, 70.0]), lands=st.booleans())
    def wait(self, seconds: float, lands: bool) -> None:
        """Time passes; a write that is on its way for longer than the server's own limit never lands."""
        for write in self.lost[:]:
            if self.loop.time() + seconds - write.lost_at >= 60:
                self.lost.remove(write)
                if lands:
                    self.land(write)
        self.loop.wait(seconds)
        self.work()

    @rule(lands=st.booleans())
    def restart(self, lands: bool) -> None:
        """Killed; what is on its way lands or does not; the new process lists everything in no order."""
        for write in (*self.writes, *self.lost):
            if lands:
                self.land(write)
        self.kill()
        self.writes, self.lost, self.binds = [], [], []
        self.loop = ClockLoop()
        self.start()
        self.events.clear()
        self.told_nodes.clear()
        self.told_pods.clear()
        for name, kind in self.nodes.items():
            self.put_node(name, kind)
        for uid, pod in self.pods.items():
            if pod.alive and not pod.over:
                self.change(uid)
        for key in sorted(self.events, reverse=lands):
            self.deliver(key)

    def work(self) -> None:
        self.loop.work()
        for uid, at, task in [bind for bind in self.binds if bind[2].done()]:
            if json.loads(task.result())["Error"] == "":
                assert self.was_bound.get(uid) == at, "told as bound what was not"
        self.binds = [bind for bind in self.binds if not bind[2].done()]

    # what must hold

    @invariant()
    def the_book_is_the_sum_of_its_seats(self) -> None:
        self.state.check()

    @rule()
    def settle(self) -> None:
        """Everything has arrived: then the book is the recount of the truth."""
        self.reachable = True
        while self.lost:
            self.land(self.lost.pop())
        while self.writes:
            self.answer(0, "done")
        self.deliver_all()
        self.loop.wait(200.0)
        self.work()
        assert not self.binds
        self.deliver_all()
        for uid, _, _ in self.promised():
            self.state.apply(Withdrawn(uid))
        self.state.check()
        self.compare()

    def compare(self) -> None:
        snapshot = self.state.snapshot()
        living = {uid: pod for uid, pod in self.pods.items() if pod.alive and not pod.over}
        assert {uid: (seat.node, seat.phase) for uid, seat in snapshot.seats.items()} == {
            uid: (pod.at, Phase.BOUND) for uid, pod in living.items() if pod.at is not None
        }
        assert snapshot.waiting.keys() == {
            uid for uid, pod in living.items() if pod.at is None and pod.kind.asks
        }
        assert snapshot.inventories.keys() == self.nodes.keys()
        totals = {
            name: count(NODE_KINDS[kind], [sitting(pod) for pod in living.values() if pod.at == name])
            for name, kind in self.nodes.items()
        }
        for name, total in totals.items():
            row, cards = snapshot.index.get(name), total.kind.cards
            table = snapshot.table
            assert (table.state[row] != OPEN) == total.closed
            assert table.opaque[row] == total.somewhere
            assert table.exclusive[row, :cards].tolist() == total.owners
            assert table.shares[row, :cards].tolist() == total.shares
            assert table.memory_used[row, :cards].tolist() == total.memory
            assert {
                r: table.used[row, i] for r, i in snapshot.ids.items() if table.used[row, i]
            } == total.used
        rows = np.array([snapshot.index.get(name) for name in sorted(totals)], np.int32)
        for kind in POD_KINDS.values():
            if kind.asks and kind.readable and len(rows):
                request = request_of(read_pod(ApiPod("probe", kind).raw))
                kept = filter_nodes(snapshot, "probe", request, rows, 100).kept
                found = {snapshot.index.name(row) for row in kept.tolist()}
                assert found == {name for name, total in totals.items() if fits(total, kind)}


def sitting(pod: ApiPod) -> Sitting:
    return Sitting(pod.kind, pod.record, pod.spoilt)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


TestCluster = pytest.mark.timeout(900)(pytest.mark.usefixtures("quiet")(Cluster.TestCase))
TestCluster.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
