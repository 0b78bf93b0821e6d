"""No bind of ours fills a card beyond its watermark, whatever card the kubelet picks and however late reports are.

The world knows what is really on each card; the book knows what it was told last. A bind is judged by the naive
formula, card by card, over every card that the kubelet could give the pod.
"""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.cluster.events import Elapsed, NodeSeen, Outcome, PodGone, PodSeen, Reserved, Settled
from extender.cluster.reports import Beat, ReportSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.decide.bind import Granted, seat_pod
from extender.serve.book import new_state
from extender.wire.objects import Node, Pod
from tests.builders import GPU, node, pod
from tests.reports import GIB, card, report

TOTAL, RESERVED, FLOOR = 80, 5, 1
BUDGET = (TOTAL - RESERVED) * 4 // 5
"""GiB: the watermark is 80 %."""
CARDS = 3
REPLICAS = 4
CONFIG = Config(cards=Cards(watermark=80, foreign=FLOOR * GIB))
NODES: dict[str, Node] = {
    "whole": node("whole", {GPU: CARDS}, memory=TOTAL * 1024),
    "shared": node(
        "shared",
        {GPU: CARDS * REPLICAS},
        memory=TOTAL * 1024,
        replicas=REPLICAS,
        labels={"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.product": "H100-SHARED"},
    ),
}


@dataclass
class Sits:
    """A pod as it really is: amounts in GiB, `devices` as the kubelet has given them."""

    name: str
    node: str
    declared: int
    devices: tuple[tuple[int, int], ...]
    used: int = 0
    record: str | None = None

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def card(self) -> int:
        return self.devices[0][0]


@dataclass
class Told:
    """What the last report on a node said, in GiB: use of each card, by whom, and who has which device."""

    used: list[int]
    by_pod: dict[str, int] = field(default_factory=dict)


class Veto(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState(())
        self.sits: dict[str, Sits] = {}
        self.foreign = {name: [0] * CARDS for name in NODES}
        self.unfit = {name: [False] * CARDS for name in NODES}
        self.told: dict[str, Told] = {}
        self.last: dict[str, ReportSeen] = {}
        self.serial = 0
        self.now = 1000.0

    @initialize()
    def begin(self) -> None:
        self.state = new_state(CONFIG)
        for each in NODES.values():
            self.state.apply(NodeSeen(each))
        for name in NODES:
            self.report(name)

    # the world

    def free(self, name: str) -> list[tuple[int, int]]:
        taken = {device for sits in self.sits.values() if sits.node == name for device in sits.devices}
        many = REPLICAS if name == "shared" else 1
        return [(at, replica) for at in range(CARDS) for replica in range(many) if (at, replica) not in taken]

    def use(self, name: str, at: int) -> int:
        return self.foreign[name][at] + sum(
            sits.used for sits in self.sits.values() if sits.node == name and sits.card == at
        )

    @rule(
        name=st.sampled_from(sorted(NODES)),
        at=st.integers(0, CARDS - 1),
        amount=st.sampled_from([0, 1, 5, 30, 70]),
    )
    def foreigners(self, name: str, at: int, amount: int) -> None:
        self.foreign[name][at] = amount

    @rule(name=st.sampled_from(sorted(NODES)), at=st.integers(0, CARDS - 1), unfit=st.booleans())
    def health(self, name: str, at: int, unfit: bool) -> None:
        self.unfit[name][at] = unfit

    @precondition(lambda self: self.sits)
    @rule(data=st.data(), amount=st.sampled_from([0, 3, 10, 20, 40, 60]))
    def grow(self, data: st.DataObject, amount: int) -> None:
        self.sits[data.draw(st.sampled_from(sorted(self.sits)))].used = amount

    # what the book is told

    @rule(name=st.sampled_from(sorted(NODES)))
    def report(self, name: str) -> None:
        cards, held = [], {}
        for at in range(CARDS):
            here = [sits for sits in self.sits.values() if sits.node == name and sits.card == at]
            cards.append(
                card(
                    at,
                    total=TOTAL,
                    reserved=RESERVED,
                    pods={sits.uid: sits.used for sits in here if sits.used},
                    foreign=self.foreign[name][at],
                    why="Broken." if self.unfit[name][at] else "",
                )
            )
        for sits in self.sits.values():
            if sits.node == name:
                held[sits.name] = [
                    f"GPU-{at}::{replica}" if name == "shared" else f"GPU-{at}"
                    for at, replica in sits.devices
                ]
        self.last[name] = report(*cards, node=name, held=held)
        self.told[name] = Told(
            [self.use(name, at) for at in range(CARDS)],
            {sits.name: sits.used for sits in self.sits.values() if sits.node == name},
        )
        self.unfit_told = {**getattr(self, "unfit_told", {}), name: list(self.unfit[name])}
        self.state.apply(self.last[name])
        self.state.apply(Beat(name, self.now))

    @rule(seconds=st.sampled_from([1, 20, 100]))
    def elapse(self, seconds: int) -> None:
        self.now += seconds
        self.state.apply(Elapsed(self.now))

    @rule(order=st.permutations(["pods", "reports", "nodes"]))
    def restart(self, order: list[str]) -> None:
        self.state = new_state(CONFIG)
        for part in order:
            if part == "nodes":
                for each in NODES.values():
                    self.state.apply(NodeSeen(each))
            elif part == "reports":
                for name, last in self.last.items():
                    self.state.apply(last)
                    self.state.apply(Beat(name, self.now))
            else:
                for sits in self.sits.values():
                    self.state.apply(PodSeen(self.pod_of(sits)))

    @precondition(lambda self: self.sits)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = self.sits.pop(data.draw(st.sampled_from(sorted(self.sits))))
        self.state.apply(PodGone(gone.uid))

    def pod_of(self, sits: Sits, at: str | None = "") -> Pod:
        return pod(
            sits.name,
            {GPU: len(sits.devices)},
            memory=f"{sits.declared}Gi" if sits.declared else None,
            at=sits.node if at == "" else at,
            record=sits.record if at == "" else None,
        )

    # the bind

    @rule(
        name=st.sampled_from(sorted(NODES)),
        declared=st.sampled_from([0, 0, 10, 15, 30, 60]),
        many=st.integers(1, 2),
        data=st.data(),
    )
    def bind(self, name: str, declared: int, many: int, data: st.DataObject) -> None:
        free = self.free(name)
        if len(free) < many:
            return
        self.serial += 1
        new = Sits(f"p{self.serial}", name, declared, tuple(free[:many]))
        waiting = self.pod_of(new, at=None)
        self.state.apply(PodSeen(waiting))
        verdict = seat_pod(self.state.snapshot(), new.uid, request_of(waiting), name)
        if not isinstance(verdict, Granted):
            self.state.apply(PodGone(new.uid))
            return
        for at in {at for at, _ in free}:
            replicas = min(many, sum(each == at for each, _ in free))
            self.judge(name, at, declared * replicas)
        new.record = verdict.devices
        self.state.apply(Reserved(waiting, name, verdict.devices))
        self.state.apply(Settled(new.uid, Outcome.BOUND))
        chosen = data.draw(st.sampled_from(sorted({at for at, _ in free})))
        on_it = [device for device in free if device[0] == chosen]
        elsewhere = [device for device in free if device[0] != chosen]
        new.devices = tuple((on_it + elsewhere)[:many])
        if name == "whole" or len({at for at, _ in new.devices}) == 1:
            self.sits[new.name] = new
            self.state.apply(PodSeen(self.pod_of(new)))
        else:
            self.state.apply(PodGone(new.uid))

    def judge(self, name: str, at: int, declared: int) -> None:
        """The naive formula, with what was reported last."""
        told = self.told[name]
        here = [
            sits
            for sits in self.sits.values()
            if sits.node == name and at in {each for each, _ in sits.devices}
        ]
        assert not self.unfit_told[name][at], "the kubelet could give an unhealthy card"
        if name == "whole":
            ours = sum(told.by_pod.get(sits.name, 0) for sits in here if sits.card == at)
            assert told.used[at] - ours <= FLOOR, "the kubelet could give a card that others use"
            if declared:
                assert told.used[at] + declared <= BUDGET, "a whole card is filled beyond its watermark"
            return
        pending = sum(
            max(0, sits.declared * len(sits.devices) - told.by_pod.get(sits.name, 0)) for sits in here
        )
        assert told.used[at] + pending + declared <= BUDGET, "a shared card is filled beyond its watermark"

    @invariant()
    def adds_up(self) -> None:
        self.state.check()

    @invariant()
    def nothing_counts_twice(self) -> None:
        """Where all is told: used + declared but not used, and no more."""
        for name, told in self.told.items():
            sitting = {sits.name: sits for sits in self.sits.values() if sits.node == name}
            if sitting.keys() != told.by_pod.keys() or name != "shared":
                continue
            snapshot = self.state.snapshot()
            row = snapshot.index.get(name)
            for at in range(CARDS):
                pending = Counter(
                    {
                        sits.name: max(0, sits.declared * len(sits.devices) - told.by_pod[sits.name])
                        for sits in sitting.values()
                        if sits.card == at
                    }
                )
                counted = snapshot.table.given_memory[row, at] + snapshot.table.extra[row, at]
                assert counted == (told.used[at] + pending.total()) * GIB


TestVeto = Veto.TestCase
TestVeto.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
