"""No bind of ours fills a card beyond its watermark, whatever card the kubelet picks and however late reports are.

The world knows what is really on each card; the book knows what it was told last. A bind is judged by the naive
formula, card by card, over every card that the kubelet could give the pod.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.cluster.events import Elapsed, NodeSeen, Outcome, PodGone, PodSeen, Promised, Reserved, Settled
from extender.cluster.reports import Beat, ReportSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.decide.bind import Granted, seat_pod
from extender.serve.book import new_state
from extender.wire.devices import decode
from extender.wire.objects import Node, Pod
from tests.builders import GPU, node, pod
from tests.reports import GIB, card, report

TOTAL, RESERVED, FLOOR = 80, 5, 1
BUDGET = (TOTAL - RESERVED) * 4 // 5
"""GiB: the watermark is 80 %."""
CARDS = 3
REPLICAS = 4
STALE_AFTER = 90
CONFIG = Config(cards=Cards(watermark=80, foreign=FLOOR * GIB, stale_after=STALE_AFTER, stale="closed"))
SHARED = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.product": "H100-SHARED"}
NODES: dict[str, Node] = {
    "whole": node("whole", {GPU: CARDS}, memory=TOTAL * 1024),
    "shared": node(
        "shared",
        {GPU: CARDS * REPLICAS},
        memory=TOTAL * 1024,
        replicas=REPLICAS,
        labels=SHARED,
    ),
    "planned": node(
        "planned",
        {GPU: CARDS * REPLICAS},
        memory=TOTAL * 1024,
        replicas=REPLICAS,
        labels={**SHARED, "kvitej.io/card-choice": "planned"},
    ),
}


@dataclass
class Sits:
    """A pod as it really is: amounts in GiB, `devices` as the kubelet has given them, none before its Binding.

    `name` may have been another pod's before, `uid` not. `began` is in seconds.
    """

    name: str
    uid: str
    node: str
    declared: int
    many: int
    devices: tuple[tuple[int, int], ...] = ()
    used: int = 0
    record: str | None = None
    began: int = 0

    @property
    def card(self) -> int:
        return self.devices[0][0]


@dataclass
class Told:
    """What the last report on a node said, in GiB: use of each card, and by whom; `clear`: it kept nothing back."""

    used: list[int]
    by_pod: dict[str, int] = field(default_factory=dict)
    clear: bool = True


def shared_of(record: str | None) -> tuple[int, ...]:
    """The card of each replica, as planned."""
    devices = decode(record or "")
    return devices.containers["main"].shared if devices is not None else ()


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(1_796_040_000 + int(seconds), UTC).isoformat().replace("+00:00", "Z")


class Veto(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState(())
        self.sits: dict[str, Sits] = {}
        """Bound pods by uid."""
        self.writing: dict[str, Sits] = {}
        """Those whose Binding is being written."""
        self.claimed: dict[str, Sits] = {}
        """Those that were promised a seat."""
        self.gone: list[str] = []
        """Names that are free again."""
        self.beats: dict[str, float] = {}
        self.foreign = {name: [0] * CARDS for name in NODES}
        self.unfit = {name: [False] * CARDS for name in NODES}
        self.told: dict[str, Told] = {}
        self.last: dict[str, ReportSeen] = {}
        self.unfit_told: dict[str, list[bool]] = {}
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
        many = 1 if name == "whole" else REPLICAS
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

    @rule(
        name=st.sampled_from(sorted(NODES)),
        kubelet=st.sampled_from([True, True, True, False]),
        hidden=st.sampled_from([False, False, False, True]),
    )
    def report(self, name: str, kubelet: bool = True, hidden: bool = False) -> None:
        """`kubelet`: it tells who has which device; `hidden`: whose processes they are cannot be seen."""
        cards, held = [], {}
        for at in range(CARDS):
            here = [sits for sits in self.sits.values() if sits.node == name and sits.card == at]
            cards.append(
                card(
                    at,
                    total=TOTAL,
                    reserved=RESERVED,
                    pods={sits.uid: sits.used for sits in here if sits.used and not hidden},
                    hidden=sum(sits.used for sits in here if hidden),
                    foreign=self.foreign[name][at],
                    why="Broken." if self.unfit[name][at] else "",
                )
            )
        for sits in self.sits.values():
            if sits.node == name:
                held[sits.name] = [
                    f"GPU-{at}" if name == "whole" else f"GPU-{at}::{replica}" for at, replica in sits.devices
                ]
        self.now += 1
        when = stamp(self.now)
        self.last[name] = report(*cards, node=name, held=held if kubelet else None, when=when)
        self.told[name] = Told(
            [self.use(name, at) for at in range(CARDS)],
            {sits.uid: sits.used for sits in self.sits.values() if sits.node == name},
            kubelet and not hidden,
        )
        self.unfit_told[name] = list(self.unfit[name])
        self.state.apply(self.last[name])
        self.beat(name)

    @rule(name=st.sampled_from(sorted(NODES)))
    def again(self, name: str) -> None:
        """The agent has nothing new to say, and stands by its report, of which all who hold devices are part."""
        told = self.told[name].by_pod
        if {sits.uid: sits.used for sits in self.sits.values() if sits.node == name} == told:
            self.beat(name)

    def beat(self, name: str) -> None:
        self.beats[name] = self.now
        self.state.apply(Beat(name, self.now))
        self.state.apply(Elapsed(self.now))

    @rule(seconds=st.sampled_from([1, 20, 100]))
    def elapse(self, seconds: int) -> None:
        self.now += seconds
        self.state.apply(Elapsed(self.now))

    @rule(order=st.permutations(["pods", "reports", "nodes"]))
    def restart(self, order: list[str]) -> None:
        """What was being written was, or was not; what was promised is not."""
        self.now += 1
        for uid in list(self.claimed):
            del self.claimed[uid]
        for uid in list(self.writing):
            self.end_of_write(uid, self.now % 2 == 0, 0)
        self.state = new_state(CONFIG)
        for part in order:
            if part == "nodes":
                for each in NODES.values():
                    self.state.apply(NodeSeen(each))
            elif part == "reports":
                for name, last in self.last.items():
                    self.state.apply(last)
                    self.state.apply(Beat(name, self.beats[name]))
            else:
                for sits in self.sits.values():
                    self.state.apply(PodSeen(self.pod_of(sits)))
        self.state.apply(Elapsed(self.now))

    @precondition(lambda self: self.sits)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = self.sits.pop(data.draw(st.sampled_from(sorted(self.sits))))
        self.gone.append(gone.name)
        self.state.apply(PodGone(gone.uid))

    def pod_of(self, sits: Sits, at: str | None = "") -> Pod:
        return pod(
            sits.name,
            {GPU: sits.many},
            uid=sits.uid,
            memory=f"{sits.declared}Gi" if sits.declared else None,
            at=sits.node if at == "" else at,
            record=sits.record if at == "" else None,
            created=stamp(sits.began),
        )

    # the bind

    @rule(
        name=st.sampled_from(sorted(NODES)),
        declared=st.sampled_from([0, 0, 10, 15, 30, 60]),
        many=st.integers(1, 2),
        again=st.booleans(),
        how=st.sampled_from(["bind", "bind", "write", "claim"]),
        card_=st.integers(0, CARDS - 1),
    )
    def comes(self, name: str, declared: int, many: int, again: bool, how: str, card_: int) -> None:
        """A pod comes, perhaps under the name of one that is gone, and is bound, being bound, or promised a seat."""
        self.ask(name, declared, many, again, how, card_)

    def ask(self, name: str, declared: int, many: int, again: bool, how: str, card_: int) -> None:
        self.serial += 1
        self.now += 1
        called = self.gone.pop() if again and self.gone else f"p{self.serial}"
        new = Sits(called, f"uid-{self.serial}", name, declared, many, began=int(self.now))
        waiting = self.pod_of(new, at=None)
        self.state.apply(PodSeen(waiting))
        if how != "claim":
            self.bind(new, card_ if how == "bind" else None)
            return
        verdict = seat_pod(self.state.snapshot(), new.uid, request_of(waiting), name)
        if isinstance(verdict, Granted) and verdict.devices is not None:
            self.claimed[new.uid] = new
            self.state.apply(Promised(waiting, name, verdict.devices))
        else:
            self.state.apply(PodGone(new.uid))

    @precondition(lambda self: self.sits)
    @rule(data=st.data(), card_=st.integers(0, CARDS - 1))
    def recreate(self, data: st.DataObject, card_: int) -> None:
        """As a StatefulSet does: the next of the name comes at once, to the same node."""
        gone = self.sits.pop(data.draw(st.sampled_from(sorted(self.sits))))
        self.state.apply(PodGone(gone.uid))
        self.gone.append(gone.name)
        self.ask(gone.node, gone.declared, gone.many, True, "bind", card_)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), bound=st.booleans(), card_=st.integers(0, CARDS - 1))
    def bind_claimed(self, data: st.DataObject, bound: bool, card_: int) -> None:
        self.bind(
            self.claimed.pop(data.draw(st.sampled_from(sorted(self.claimed)))), card_ if bound else None
        )

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), written=st.booleans(), card_=st.integers(0, CARDS - 1))
    def end_of_write(self, data: Any, written: bool, card_: int) -> None:
        uid = data if isinstance(data, str) else data.draw(st.sampled_from(sorted(self.writing)))
        new = self.writing.pop(uid)
        free = self.free(new.node)
        plan = shared_of(new.record) if new.node == "planned" else None
        # Adversarially: all on one card where there are as many free on it, else on whichever are free.
        free.sort(key=lambda device: device[0] != card_)
        if plan is not None:
            on = {at: [device for device in free if device[0] == at] for at in plan}
            free = [on[at].pop() for at in plan if on[at]]
        devices = tuple(free[: new.many])
        one = new.node == "whole" or len({at for at, _ in devices}) == 1
        if written and len(devices) == new.many and one:
            new.devices = devices
            self.sits[uid] = new
            self.state.apply(Settled(uid, Outcome.BOUND))
            self.state.apply(PodSeen(self.pod_of(new)))
        else:
            self.state.apply(Settled(uid, Outcome.REFUSED))
            self.state.apply(PodGone(uid))

    def bind(self, new: Sits, card_: int | None) -> None:
        """Bind, and if a card is given, the write ends at once and the kubelet likes to give that."""
        waiting = self.pod_of(new, at=None)
        name, free = new.node, self.free(new.node)
        verdict = seat_pod(self.state.snapshot(), new.uid, request_of(waiting), name)
        if not isinstance(verdict, Granted) or len(free) < new.many:
            self.state.apply(PodGone(new.uid))
            return
        assert self.now - self.beats[name] <= STALE_AFTER, "its agent is silent"
        plan = shared_of(verdict.devices) if name == "planned" else None
        for at in {at for at, _ in free} if plan is None else set(plan):
            replicas = min(new.many, sum(each == at for each, _ in free)) if plan is None else plan.count(at)
            self.judge(name, at, new.declared * replicas)
        new.record = verdict.devices
        self.state.apply(Reserved(waiting, name, verdict.devices))
        self.writing[new.uid] = new
        if card_ is not None:
            self.end_of_write(new.uid, True, card_)

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
            ours = sum(told.by_pod.get(sits.uid, 0) for sits in here if sits.card == at)
            assert told.used[at] - ours <= FLOOR, "the kubelet could give a card that others use"
            if declared:
                assert told.used[at] + declared <= BUDGET, "a whole card is filled beyond its watermark"
            return
        pending = sum(max(0, sits.declared * sits.many - told.by_pod.get(sits.uid, 0)) for sits in here)
        for sits in self.writing.values():
            if sits.node == name:
                on_it = sits.many if name == "shared" else shared_of(sits.record).count(at)
                pending += sits.declared * on_it
        assert told.used[at] + pending + declared <= BUDGET, "a shared card is filled beyond its watermark"

    @invariant()
    def adds_up(self) -> None:
        self.state.check()

    @invariant()
    def nothing_counts_twice(self) -> None:
        """Where all is told: used + declared but not used, and no more."""
        for name, told in self.told.items():
            sitting = {sits.uid: sits for sits in self.sits.values() if sits.node == name}
            snapshot = self.state.snapshot()
            told_of = all(snapshot.seats[uid].told for uid in sitting if uid in snapshot.seats)
            if sitting.keys() != told.by_pod.keys() or name == "whole" or not (told.clear and told_of):
                continue
            row = snapshot.index.get(name)
            for at in range(CARDS):
                pending = Counter(
                    {
                        sits.uid: max(0, sits.declared * sits.many - told.by_pod[sits.uid])
                        for sits in sitting.values()
                        if sits.card == at
                    }
                )
                counted = snapshot.table.given_memory[row, at] + snapshot.table.extra[row, at]
                assert counted == (told.used[at] + pending.total()) * GIB


TestVeto = Veto.TestCase
TestVeto.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
