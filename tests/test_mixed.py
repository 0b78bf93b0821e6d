"""Mixed clusters through every door: a pod's charge is one number wherever it is told, and a refusal has its reason.

Each case is a cluster of one node that matters, beside nodes without GPUs and of other models, with and without an
agent's report on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from extender.cluster.events import NodeSeen, PodSeen
from extender.cluster.reports import Beat, ReportSeen
from extender.cluster.request import request_of
from extender.config import Config
from extender.decide.claims import Settings
from extender.fairness.ledger import MICRO
from extender.fairness.reading import Policies
from extender.serve.book import Book, new_state
from extender.serve.metrics import Metrics
from extender.serve.placing import PlaceDoor
from extender.serve.seating import SeatDoor
from extender.serve.sharing import SharesDoor
from extender.serve.waiting import WaitDoor
from extender.serve.webhook import WebhookDoor, admission
from extender.simulate.admission import Admission, RefusedError
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster, is_gated, nomination
from extender.wire.devices import ANNOTATION, decode
from extender.wire.gpunode import Instance
from extender.wire.marks import GATE
from extender.wire.objects import Node, Pod
from extender.wire.shares import Lines, Shares
from tests.builders import GPU, SHARED, Json, binding_body, filter_body, node, raw_pod, read_pod
from tests.fairness.builders import policy
from tests.reports import card, report

POLICY = policy("{tenants: [{name: team, weight: 1}, {name: other, weight: 1}]}", "all")
GIB = 1024
"""MiB, as the label counts."""
ONE, THREE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
H100 = "NVIDIA-H100-80GB-HBM3"


class Doors:
    """All doors over an embedded API server, as `kvitej serve --cluster` has them."""

    def __init__(self) -> None:
        config = Config()
        self.state = new_state(config)
        book, clock = Book(self.state), Clock()
        metrics = Metrics(book.snapshot, lambda: ())
        self.cluster = EmbeddedCluster(book.apply, clock)
        self.wait = WaitDoor(
            book,
            self.cluster,
            Settings(schedulers=frozenset(config.admission.schedulers)),
            in_flight=8,
            clock=clock,
            wall=clock.wall,
        )
        rules = admission(
            config,
            self.wait,
            self.wait.labels_of,
            never_fits=self.wait.never_fits,
            room=self.wait.room,
            offers=self.wait.offers,
        )
        reviews = WebhookDoor(rules, self.wait.depths, metrics, clock, clock.wall)
        self.cluster.admission = Admission(reviews.mutate, reviews.validate)
        self.wait.namespaces({"team": {}, "other": {}})
        self.wait.policies(Policies([POLICY]))
        self.book = book
        self.place = PlaceDoor(
            book,
            config,
            metrics,
            turn=self.wait.seat_for,
            elsewhere=self.wait.elsewhere,
            guard=self.wait.guard,
        )
        self.seat = SeatDoor(book, self.cluster, config, metrics, turn=self.wait.seat_for)
        self.told = SharesDoor(book, lambda: self.wait.planner, self.wait.fairness, clock)
        self.names: list[str] = []
        self.count = itertools.count()

    def begin(self, nodes: Iterable[Node], reports: Iterable[ReportSeen] = ()) -> None:
        for each in nodes:
            self.names.append(each.metadata.name)
            self.book.apply(NodeSeen(each))
        for said in reports:
            self.book.apply(said)
            self.book.apply(Beat(said.node, 0.0))
        self.wait.begin({})

    async def settle(self) -> None:
        self.wait.tick()
        await self.wait.settle()
        self.check()

    def check(self) -> None:
        self.state.check()
        assert self.wait.planner is not None
        self.wait.planner.check()

    def create(self, asks: Mapping[str, Any], annotations: Mapping[str, str]) -> Json:
        return self.cluster.create("team", f"p{next(self.count)}", asks, annotations, "fair-quota")

    def filter(self, pod: Json) -> tuple[list[str], dict[str, str]]:
        """(nodes kept, reason by node of those that were not)."""
        answer = msgspec.json.decode(self.place.filter(filter_body(pod, self.names)))
        assert not answer.get("Error"), answer
        failed = {**answer.get("FailedNodes", {}), **answer.get("FailedAndUnresolvableNodes", {})}
        return answer["NodeNames"] or [], failed

    async def bind(self, pod: Json, at: str) -> str:
        """Why not; empty if it is bound."""
        error: str = msgspec.json.decode(await self.seat.bind(binding_body(pod, at)))["Error"]
        return error

    def estimated(self, pod: Json) -> float:
        """What the webhook's rule `headroom` reckons the pod at."""
        found = self.wait.room(POLICY, msgspec.convert(pod, Pod))
        assert found is not None
        return found.asks

    def charged(self, uid: str) -> float:
        assert self.wait.planner is not None
        (pool,) = self.wait.planner.pools.by_name.values()
        return pool.ledger.entries[uid].units / MICRO

    def shares(self) -> tuple[float, float]:
        """GPU units (of the pool, in use by the tenant)."""
        (pool,) = msgspec.json.decode(self.told.shares(), type=Shares).pools
        assert pool.in_use == pytest.approx(sum(tenant.in_use for tenant in pool.tenants))
        return pool.capacity, pool.tenants[0].in_use

    def line(self) -> dict[str, tuple[float, str]]:
        """Of who waits, GPU units and why."""
        (pool,) = msgspec.json.decode(self.told.line(100), type=Lines).pools
        return {pod.pod: (pod.gpus, pod.why) for pod in pool.pods}

    async def seats(
        self, asks: Mapping[str, Any], annotations: Mapping[str, str], *, alike: bool = True
    ) -> float:
        """Takes a pod through every door; gives its GPU units, of which all tell the same.

        `alike`: all nodes that would take the pod charge as much, so that it is known before it has one.
        """
        before = self.shares()[1]
        pod = self.create(asks, annotations)
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        estimate = self.estimated(pod)
        await self.settle()
        assert not is_gated(pod), self.line()
        at = nomination(pod)
        assert at is not None
        promised = self.charged(uid)
        kept, _ = self.filter(pod)
        assert kept == [at]
        assert await self.bind(pod, at) == ""
        assert pod["spec"]["nodeName"] == at
        devices = decode(pod["metadata"]["annotations"][ANNOTATION])
        assert devices is not None
        self.check()
        units = self.charged(uid)
        assert promised == units == pytest.approx(devices.units, abs=1e-6)
        assert self.shares()[1] - before == pytest.approx(units, abs=1e-5)
        assert name not in self.line()
        if alike:
            assert estimate == pytest.approx(units, abs=1e-6)
        return units

    def given(self, node: str) -> dict[str, list[str]]:
        """Devices as a kubelet that follows the plan backwards would give them, by pod."""
        snapshot = self.state.snapshot()
        cards = snapshot.inventories[node].cards
        found: dict[str, list[str]] = {}
        for number, seat in enumerate(snapshot.seats_by_node.get(node, {}).values()):
            if seat.cards is not None:
                whole = [f"GPU-{cards - 1 - at}" for at in seat.cards.whole]
                shared = [f"GPU-{cards - 1 - at}::{number}{n}" for n, at in enumerate(seat.cards.shared)]
                found[seat.name] = whole + shared
        return found

    async def refuses(self, asks: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, str]:
        """What Filter says of each node to a pod that has no room anywhere; Bind says as much."""
        raw = raw_pod(f"stray{next(self.count)}", asks, spec={"schedulerName": "another"})
        raw["metadata"]["annotations"].update(annotations)
        request_of(read_pod(raw))
        self.cluster._pods["team", raw["metadata"]["name"]] = raw
        self.book.apply(PodSeen(read_pod(raw)))
        kept, failed = self.filter(raw)
        assert kept == []
        for at, said in failed.items():
            vetoed = await self.bind(raw, at)
            assert vetoed.startswith(said), "Bind says what Filter says, and more"
        self.cluster.delete("team", raw["metadata"]["name"])
        self.check()
        return failed


TAKEN = "the GPUs asked for are taken"
FEWER = "the node has fewer of the GPUs asked for than the pod needs"
TOO_SMALL = "no GPU of the node has as much memory as the pod declares"
MEMORY_TAKEN = "no GPU of the node has as much memory free as the pod declares"
OCCUPIED = "a GPU that the kubelet could give the pod is used by processes that nobody scheduled"
FILLED = "a GPU that the kubelet could give the pod would be filled beyond its watermark"
UNHEALTHY = "a GPU that the kubelet could give the pod is not healthy"


@dataclass
class Ask:
    """A pod, and what it is charged, or what is said of node n0 to one that has no room."""

    asks: Mapping[str, int]
    units: float | None = None
    memory: str | None = None
    profile: str | None = None
    says: str = ""
    never: bool = False
    """The webhook refuses it."""

    @property
    def annotations(self) -> dict[str, str]:
        said = {"kvitej.io/gpu-memory": self.memory, "nvidia.com/mig-profile": self.profile}
        return {name: value for name, value in said.items() if value is not None}


@dataclass
class Case:
    name: str
    node: Node
    asks: list[Ask]
    report: ReportSeen | None = None
    capacity: float = 0.0
    told: list[Ask] = field(default_factory=list)
    """More that only a report makes so."""


def labelled(amounts: Mapping[str, int], product: str, gib: int = 80, **more: Any) -> Node:
    labels = {"nvidia.com/gpu.product": product, **more.pop("labels", {})}
    return node("n0", amounts, memory=gib * GIB, labels=labels, **more)


def instances(number: int, name: str, *starts: int) -> list[Instance]:
    return [Instance(at, name=name, start=at, size=1, uuids=[f"MIG-{number}-{at}"]) for at in starts]


def cut(number: int, name: str, *starts: int) -> Any:
    return card(number, mig=True, instances=instances(number, name, *starts))


SEVENTH, HALF = 0.142857, 0.5
STRATEGY = "nvidia.com/mig.strategy"
SHARING = "nvidia.com/gpu.sharing-strategy"

CASES = [
    Case(
        "whole cards",
        labelled({GPU: 2}, H100),
        [
            Ask({GPU: 3}, says=FEWER, never=True),
            Ask({GPU: 1}, memory="69Gi", says=TOO_SMALL, never=True),
            Ask({GPU: 1}, 1.0, memory="60Gi"),
            Ask({GPU: 2}, says=TAKEN),
            Ask({GPU: 1}, 1.0),
            Ask({GPU: 1}, says=TAKEN),
        ],
        report(card(0), card(1), held={}),
        2.0,
    ),
    Case(
        "whole cards, one used by strangers",
        labelled({GPU: 2}, H100),
        [],
        report(card(0), card(1, foreign=9), held={}),
        2.0,
        [Ask({GPU: 1}, says=OCCUPIED), Ask({GPU: 2}, says=OCCUPIED)],
    ),
    Case(
        "whole cards, one unhealthy, and a plugin that gives what was planned",
        labelled({GPU: 2}, H100, labels={"kvitej.io/card-choice": "planned"}),
        [],
        report(card(0, why="Xid 79."), card(1), held={}),
        2.0,
        [Ask({GPU: 2}, says=TAKEN), Ask({GPU: 1}, 1.0), Ask({GPU: 1}, says=TAKEN)],
    ),
    Case(
        "two models on one node",
        labelled({GPU: 2}, H100, gib=48),
        [Ask({GPU: 1}, memory="75Gi", says=TOO_SMALL, never=True)],
        report(card(0, total=80), card(1, total=48), held={}),
        2.0,
        [
            Ask({GPU: 1}, memory="60Gi", says=FILLED),
            Ask({GPU: 2}, memory="60Gi", says=TOO_SMALL, never=True),
            Ask({GPU: 2}, 2.0, memory="40Gi"),
        ],
    ),
    Case(
        "MIG single",
        labelled({GPU: 7}, f"{H100}-MIG-1g.10gb", gib=10, labels={STRATEGY: "single"}),
        [
            Ask({GPU: 8}, says=FEWER, never=True),
            Ask({ONE: 1}, says=FEWER, never=True),
            Ask({GPU: 1}, memory="11Gi", says=TOO_SMALL, never=True),
            Ask({GPU: 3}, 3 * SEVENTH, memory="10Gi"),
            Ask({GPU: 4}, 4 * SEVENTH),
            Ask({GPU: 1}, says=TAKEN),
        ],
        report(cut(0, "1g.10gb", *range(7)), held={}),
        1.0,
    ),
    Case(
        "MIG mixed beside whole cards",
        labelled({GPU: 1, ONE: 4, THREE: 1}, H100, labels={STRATEGY: "mixed"}),
        [
            Ask({ONE: 5}, says=FEWER, never=True),
            Ask({ONE: 1}, SEVENTH),
            Ask({GPU: 1}, HALF, profile="3g.40gb"),
            Ask({GPU: 1}, 1.0),
            Ask({THREE: 1}, says=TAKEN),
            Ask({ONE: 3}, 3 * SEVENTH),
        ],
        report(card(0), cut(1, "1g.10gb", 0, 1, 2, 3), held={}),
        1.0 + 4 * SEVENTH + HALF,
    ),
    Case(
        "MIG mixed, an unhealthy card",
        labelled({ONE: 2, THREE: 1}, H100, labels={STRATEGY: "mixed"}),
        [],
        report(
            card(0, mig=True, instances=instances(0, "1g.10gb", 0, 1), why="Xid 79."),
            cut(1, "3g.40gb", 0),
            held={},
        ),
        2 * SEVENTH + HALF,
        [Ask({ONE: 1}, says=TAKEN), Ask({THREE: 1}, HALF)],
    ),
    Case(
        "MIG that is cut on demand",
        labelled({ONE: 7, THREE: 2}, H100, labels={"nvidia.com/gpu.count": "1", "kvitej.io/mig": "dynamic"}),
        [
            Ask({THREE: 1}, HALF),
            Ask({ONE: 5}, says=TAKEN),
            Ask({ONE: 4}, 4 * SEVENTH),
            Ask({THREE: 1}, says=TAKEN),
        ],
        report(card(0, mig=True), held={}),
        HALF + 4 * SEVENTH,
    ),
    Case(
        "time-slicing under a name of its own",
        labelled({SHARED: 8}, H100, replicas=4, labels={SHARING: "time-slicing"}),
        [
            Ask({SHARED: 1}, memory="69Gi", says=TOO_SMALL, never=True),
            Ask({GPU: 1}, says=FEWER, never=True),
            Ask({SHARED: 1}, HALF, memory="40Gi"),
            Ask({SHARED: 1}, 0.25),
        ],
        report(card(0), card(1), held={}, resource=SHARED),
        2.0,
        [Ask({SHARED: 1}, memory="30Gi", says=FILLED), Ask({SHARED: 1}, 0.25, memory="20Gi")],
    ),
    Case(
        "time-slicing as nvidia.com/gpu",
        labelled({GPU: 8}, f"{H100}-SHARED", replicas=4, labels={SHARING: "time-slicing"}),
        [
            Ask({GPU: 1}, memory="69Gi", says=TOO_SMALL, never=True),
            Ask({GPU: 2}, 0.5),
            Ask({GPU: 1}, HALF, memory="40Gi"),
            Ask({GPU: 6}, says=TAKEN),
        ],
        report(card(0), card(1), held={}),
        2.0,
    ),
    Case(
        "MPS",
        labelled({GPU: 8}, f"{H100}-SHARED", replicas=4, labels={SHARING: "mps"}),
        [Ask({GPU: 1}, 0.25, memory="20Gi"), Ask({GPU: 1}, HALF, memory="40Gi")],
        report(card(0), card(1), held={}),
        2.0,
        [Ask({GPU: 1}, memory="10Gi", says=FILLED)],
    ),
    Case(
        "no GPU at all",
        node("n0"),
        [Ask({GPU: 1}, says=FEWER, never=True), Ask({ONE: 1}, says=FEWER, never=True)],
        report(),
    ),
]


async def goes_through(doors: Doors, ask: Ask) -> None:
    if ask.units is not None:
        assert await doors.seats(ask.asks, ask.annotations) == pytest.approx(ask.units, abs=1e-5)
        return
    if ask.never:
        with pytest.raises(RefusedError, match="kvitej: "):
            doors.create(ask.asks, ask.annotations)
    else:
        pod = doors.create(ask.asks, ask.annotations)
        await doors.settle()
        assert is_gated(pod), "it waits in line"
        assert pod["metadata"]["name"] in doors.line()
        doors.cluster.delete("team", pod["metadata"]["name"])
    assert (await doors.refuses(ask.asks, ask.annotations))["n0"] == ask.says


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_all_doors_tell_the_same(case: Case, reported: bool) -> None:
    doors = Doors()
    beside = node("a-cpu", {}), node("z-none", {GPU: 0}, labels={"nvidia.com/gpu.product": "NVIDIA-L40S"})
    doors.begin([beside[0], case.node, beside[1]], [case.report] if reported and case.report else [])
    if case.capacity:
        assert doors.shares()[0] == pytest.approx(case.capacity, abs=1e-5)
    for ask in case.asks + (case.told if reported else []):
        await goes_through(doors, ask)


def renamed(found: Node, name: str) -> Node:
    return structs.replace(found, metadata=structs.replace(found.metadata, name=name))


@pytest.mark.parametrize("every", [1, 2, 100])
async def test_all_kinds_of_nodes_in_one_cluster(every: int) -> None:
    """Of the agents, each, every second or none reports; then the kubelets tell which cards they gave."""
    doors = Doors()
    cases = {f"n{at}": case for at, case in enumerate(CASES)}
    named = {at: replace(case.report, node=at) for at, case in cases.items() if case.report}
    reports = [said for number, said in enumerate(named.values()) if not number % every]
    doors.begin([renamed(case.node, at) for at, case in cases.items()], reports)
    assert doors.shares()[0] == pytest.approx(sum(case.capacity for case in CASES), abs=1e-5)
    charged = 0.0
    for asks, memory, units in [
        ({GPU: 1}, "60Gi", {1.0, 0.75}),
        ({GPU: 2}, None, {2.0, 2 * SEVENTH, 0.5}),
        ({GPU: 1}, None, {1.0, SEVENTH, 0.25}),
        ({GPU: 1}, "20Gi", {1.0, 0.25, 0.416667}),
        ({ONE: 2}, None, {2 * SEVENTH}),
        ({THREE: 1}, None, {HALF}),
        ({SHARED: 2}, None, {0.5}),
        ({SHARED: 1, GPU: 0}, "10Gi", {0.25}),
    ]:
        annotations = {"kvitej.io/gpu-memory": memory} if memory else {}
        found = await doors.seats(asks, annotations, alike=False)
        assert round(found, 6) in {round(each, 6) for each in units}
        charged += found
    assert doors.shares()[1] == pytest.approx(charged, abs=1e-5)
    for said in reports:
        told = report(*(said.status.gpus if said.status else ()), node=said.node, held=doors.given(said.node))
        doors.book.apply(told)
        doors.check()
    assert doors.shares()[1] == pytest.approx(charged, abs=1e-5), "which cards they have changes no charge"
    for seat in list(doors.state.snapshot().seats.values()):
        doors.cluster.delete("team", seat.name)
    await doors.settle()
    assert doors.shares()[1] == 0


async def test_who_waits_is_reckoned_anew_when_a_node_comes_that_charges_less() -> None:
    """Reckoned at seven GPUs, it would have too much of a pool of one for ever."""
    doors = Doors()
    doors.begin([labelled({GPU: 1}, H100)])
    raw = raw_pod(
        "early", {ONE: 7}, spec={"schedulerName": "fair-quota", "schedulingGates": [{"name": GATE}]}
    )
    doors.cluster._pods["team", "early"] = raw
    doors.book.apply(PodSeen(read_pod(raw)))
    await doors.settle()
    assert doors.line()["early"][0] == 7.0
    cut_up = next(case.node for case in CASES if case.name == "MIG that is cut on demand")
    doors.book.apply(NodeSeen(renamed(cut_up, "n1")))
    await doors.settle()
    assert nomination(raw) == "n1"
    assert doors.charged(raw["metadata"]["uid"]) == pytest.approx(1.0, abs=1e-5)
