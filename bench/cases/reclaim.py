"""`bench reclaim`: the victims of a reclaim beside the cheapest of all sets of pods, and what one costs in time.

Small states of 8 nodes are drawn as plain records, played into a book, and searched twice: by the product, and by
trying every set of every node with the rules written down once more. They cover whole GPUs, shares of cards with and
without declared memory, MIG instances, cores, and every reason why a pod may not go.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bench import filled
from bench.report import Measurement, measured
from extender.cluster.assignment import units
from extender.cluster.events import NodeSeen, PodSeen
from extender.cluster.request import request_of
from extender.cluster.state import ClusterState
from extender.decide.among import Terms
from extender.decide.lent import Candidate, Lent
from extender.decide.reclaim import NoReclaim, Reclaim, reclaim
from extender.schedulerconfig import managed_resources
from extender.wire.devices import ContainerDevices, Devices, encode
from extender.wire.objects import Node, Pod

CASE = "reclaim"
STATES = 1_000
NODES = 5_000
CALLS = 30
MILLISECONDS = 100.0
SEED = 42
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
TENANTS = ("owed", "a", "b", "c")
GIB = 1024
CARD_GIB, REPLICAS = 80, 4


@dataclass
class Running:
    """A pod that runs: `cards` it holds alone, or the `share` of one card, or `instances`."""

    uid: str
    tenant: str
    units: float
    cards: tuple[int, ...] = ()
    share: int | None = None
    memory: int = 0
    instances: int = 0
    cores: int = 1
    started: float = 0.0
    interval: float | None = None
    checkpoint: float | None = None
    priority: int = 0
    preemptible: bool = True
    pdb: str | None = None


@dataclass
class Machine:
    """`kind` is "whole", "shared" or "mig"; memory in GiB."""

    kind: str
    cards: int
    cores: int
    pods: list[Running] = field(default_factory=list)


@dataclass
class State:
    machines: list[Machine]
    wanted: Running
    now: float
    over: dict[str, float]
    min_runtime: dict[str, float]
    budget: dict[str, int]
    pdbs: dict[str, int]


def run(
    say: Callable[[str], None], *, states: int = STATES, nodes: int = NODES, calls: int = CALLS
) -> list[Measurement]:
    """Compare on `states` random states, then time `calls` reclaims of each kind on `nodes` nodes in use."""
    say(f"{states:,} random states of 8 nodes, each set of pods tried")
    wrong = reclaims = 0
    victims: list[int] = []
    for seed in range(states):
        state = draw(seed)
        expected, found = least(state), ours(state)
        wrong += not agrees(state, expected, found)
        if isinstance(found, Reclaim):
            reclaims += 1
            victims.append(len(found.victims))
    say(f"{nodes:,} full nodes")
    return [
        measured(CASE, "states where the victims are not the least", wrong, "", at_most=0),
        measured(CASE, "states with a reclaim", reclaims, "", at_least=states // 3),
        measured(CASE, "victims a reclaim", float(np.mean(victims)) if victims else math.nan, "pods"),
        *_timed(nodes, calls),
    ]


def agrees(state: State, expected: Price | None, found: Reclaim | NoReclaim) -> bool:
    """Whether the product's victims are one of the cheapest sets, or neither found any."""
    if isinstance(found, NoReclaim) or expected is None:
        return isinstance(found, NoReclaim) and expected is None
    number = int(found.node.removeprefix("n"))
    chosen = {victim.uid for victim in found.victims}
    victims = [pod for pod in state.machines[number].pods if pod.uid in chosen]
    return (
        len(victims) == len(chosen)
        and _fair_set(state, number, victims)
        and _price(state, victims) == expected
    )


# every set


Price = tuple[int, float, int, int, int]


def least(state: State) -> Price | None:
    """The lowest price of a fair set of pods of one node that makes room and of which nobody can be spared."""
    if state.over.get(state.wanted.tenant, 0) >= 0:
        return None
    if any(_has_room(machine, machine.pods, state.wanted) for machine in state.machines):
        return None
    prices = [
        _price(state, victims)
        for number, machine in enumerate(state.machines)
        for size in range(1, len(machine.pods) + 1)
        for victims in map(list, itertools.combinations(machine.pods, size))
        if _fair_set(state, number, victims)
    ]
    return min(prices, default=None)


def _fair_set(state: State, number: int, victims: Sequence[Running]) -> bool:
    machine = state.machines[number]
    if not all(_may_go(state, pod) for pod in victims) or not _within_limits(state, victims):
        return False
    staying = [pod for pod in machine.pods if pod not in victims]
    if not _has_room(machine, staying, state.wanted):
        return False
    return not any(_has_room(machine, [*staying, pod], state.wanted) for pod in victims)


def _may_go(state: State, pod: Running) -> bool:
    return (
        pod.preemptible
        and state.over.get(pod.tenant, 0) > 0
        and state.now - pod.started >= state.min_runtime.get(pod.tenant, 0)
    )


def _within_limits(state: State, victims: Sequence[Running]) -> bool:
    lost: dict[str, list[float]] = {}
    for pod in victims:
        lost.setdefault(pod.tenant, []).append(pod.units)
    beyond = round(state.over[state.wanted.tenant] + state.wanted.units, 6)
    for tenant, taken in lost.items():
        over = state.over.get(tenant, 0)
        if len(taken) > state.budget.get(tenant, len(taken)):
            return False
        if round(sum(taken) - min(taken), 6) >= over or (beyond > 0 and round(sum(taken), 6) > over):
            return False
    if beyond > 0 and round(sum(pod.units for pod in victims), 6) <= beyond:
        return False
    guards = Counter(pod.pdb for pod in victims if pod.pdb)
    return all(count <= state.pdbs.get(pdb, 0) for pdb, count in guards.items())


def _has_room(machine: Machine, pods: Sequence[Running], wanted: Running) -> bool:
    if sum(pod.cores for pod in pods) + wanted.cores > machine.cores:
        return False
    if machine.kind == "mig":
        if wanted.cards or wanted.share is not None:
            return False
        return sum(pod.instances for pod in pods) + wanted.instances <= machine.cards * 7
    if wanted.instances:
        return False
    alone = {card for pod in pods for card in pod.cards}
    shares = [[pod for pod in pods if pod.share == card] for card in range(machine.cards)]
    if wanted.share is None:
        idle = [card for card in range(machine.cards) if card not in alone and not shares[card]]
        return len(idle) >= len(wanted.cards)
    if machine.kind != "shared":
        return False
    part = CARD_GIB // REPLICAS
    for card in range(machine.cards):
        if card in alone or len(shares[card]) >= REPLICAS:
            continue
        used = sum(max(pod.memory, part) for pod in shares[card])
        if used + max(wanted.memory, part) <= CARD_GIB:
            return True
    return False


def _price(state: State, victims: Sequence[Running]) -> Price:
    lost = 0
    for pod in victims:
        if pod.checkpoint is not None:
            saved = pod.checkpoint
        elif pod.interval:
            saved = pod.started + pod.interval * int((state.now - pod.started) / pod.interval)
        else:
            saved = pod.started
        lost += round(pod.units * (state.now - saved))
    return (
        len(victims),
        round(sum(pod.units for pod in victims), 6),
        lost,
        max(pod.priority for pod in victims),
        sum(round(state.now - pod.started) for pod in victims),
    )


# random states


def draw(seed: int) -> State:
    """Eight machines in use, a request, and terms of all kinds; nine of ten have no room as they stand."""
    chance = random.Random(seed)
    state = _draw(chance)
    while chance.random() < 0.9 and any(_has_room(each, each.pods, state.wanted) for each in state.machines):
        state = _draw(chance)
    return state


def _draw(chance: random.Random) -> State:
    kinds = chance.choice(
        (("whole",), ("whole", "shared"), ("shared",), ("mig",), ("whole", "shared", "mig"))
    )
    number = itertools.count()
    now = 100_000.0
    machines = []
    for _ in range(8):
        kind = chance.choice(kinds)
        cards = {"whole": (2, 4, 8, 8), "shared": (2, 3, 4), "mig": (1,)}[kind]
        machine = Machine(kind, chance.choice(cards), chance.choice((8, 16, 64)))
        _fill(machine, chance, number, now)
        machines.append(machine)
    over = {tenant: chance.choice((-2.0, 0.0, 0.25, 2.5, 4.0, 20.0, 20.0, 20.0)) for tenant in TENANTS[1:]}
    over["owed"] = chance.choice((-0.3, -1.0, -2.0, *[-8.0] * 10, 0.0))
    return State(
        machines,
        _wanted(chance, chance.choice(kinds)),
        now,
        over,
        {"a": 3_000.0} if chance.random() < 0.5 else {},
        {chance.choice(TENANTS): chance.randint(0, 2)} if chance.random() < 0.5 else {},
        {"guard": chance.randint(0, 2)},
    )


def _wanted(chance: random.Random, kind: str) -> Running:
    cores = chance.choice((1, 1, 4))
    if kind == "mig":
        count = chance.randint(1, 5)
        return Running("wanted", "owed", count / 7, instances=count, cores=cores)
    if kind == "shared" and chance.random() < 0.7:
        memory = chance.choice((0, 10, 40, 70))
        part = max(1 / REPLICAS, memory / CARD_GIB)
        return Running("wanted", "owed", part, share=0, memory=memory, cores=cores)
    count = chance.choice((1, 2, 3, 4, 4, 8))
    return Running("wanted", "owed", float(count), cards=tuple(range(count)), cores=cores)


def _fill(machine: Machine, chance: random.Random, number: Iterator[int], now: float) -> None:
    def add(units_held: float, **held: object) -> None:
        cores = chance.choice((0, 1, 2))
        if sum(pod.cores for pod in machine.pods) + cores > machine.cores:
            cores = 0
        started = now - chance.uniform(100, 9_000)
        pod = Running(
            f"p{next(number)}",
            chance.choice(TENANTS),
            units_held,
            cores=cores,
            started=started,
            interval=chance.choice((None, None, 700.0)),
            checkpoint=chance.choice((None, None, chance.uniform(started, now))),
            priority=chance.choice((0, 0, 5)),
            preemptible=chance.random() < 0.92,
            pdb=chance.choice((*[None] * 8, "guard", "unheard of")),
            **held,  # type: ignore[arg-type]
        )
        machine.pods.append(pod)

    if machine.kind == "mig":
        left = 7
        while left:
            count = min(left, chance.randint(1, 3))
            add(count / 7, instances=count)
            left -= count
        return
    card = 0
    while card < machine.cards:
        count = min(chance.choice((1, 1, 1, 1, 2, 4)), machine.cards - card)
        if chance.random() < 0.05:
            pass
        elif machine.kind == "shared" and chance.random() < 0.7:
            count, left = 1, CARD_GIB
            for _ in range(chance.randint(1, REPLICAS)):
                memory = chance.choice((0, 10, 30, 50))
                cost = max(memory, CARD_GIB // REPLICAS)
                if cost <= left:
                    add(max(1 / REPLICAS, memory / CARD_GIB), share=card, memory=memory)
                    left -= cost
        else:
            add(float(count), cards=tuple(range(card, card + count)))
        card += count


# the product


def ours(state: State) -> Reclaim | NoReclaim:
    """The same state in a book, and what the product makes of it."""
    book = ClusterState(managed_resources())
    for number, machine in enumerate(state.machines):
        book.apply(NodeSeen(_node(f"n{number}", machine)))
        for pod in machine.pods:
            book.apply(PodSeen(_pod(pod, f"n{number}")))
    lent = Lent()
    for number, machine in enumerate(state.machines):
        for pod in machine.pods:
            lent.put(_candidate(book, pod, f"n{number}"))
    snapshot = book.snapshot()
    rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)
    terms = Terms(state.now, state.over, state.min_runtime, state.budget, state.pdbs)
    return reclaim(snapshot, request_of(_pod(state.wanted, None)), state.wanted.tenant, rows, lent, terms)


def _candidate(book: ClusterState, pod: Running, node: str) -> Candidate:
    seat = book.snapshot().seats[pod.uid]
    return Candidate(
        pod.uid,
        node,
        pod.tenant,
        seat.request,
        pod.units,
        pod.started,
        seat.cards,
        pod.priority,
        pod.preemptible,
        pod.interval,
        pod.checkpoint,
        (pod.pdb,) if pod.pdb else (),
    )


def _node(name: str, machine: Machine) -> Node:
    amounts = {"cpu": str(machine.cores), "memory": "1Ti"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": str(CARD_GIB * GIB)}
    if machine.kind == "mig":
        amounts[MIG] = str(7 * machine.cards)
    else:
        amounts[GPU] = str(machine.cards)
    if machine.kind == "shared":
        amounts[SHARED] = str(machine.cards * REPLICAS)
        labels["nvidia.com/gpu.replicas"] = str(REPLICAS)
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}, Node
    )


def _pod(pod: Running, at: str | None) -> Pod:
    asks = {"cpu": str(pod.cores)}
    held = ContainerDevices(pod.cards, () if pod.share is None else (pod.share,), {})
    if pod.instances:
        asks[MIG] = str(pod.instances)
        held = ContainerDevices((), (), {MIG: pod.instances})
    elif pod.share is None:
        asks[GPU] = str(len(pod.cards))
    else:
        asks[SHARED] = "1"
    annotations = {"kvitej.io/devices": encode(Devices(pod.units, {"main": held}))}
    if pod.memory:
        annotations["kvitej.io/gpu-memory"] = f"{pod.memory}Gi"
    spec = {"containers": [{"name": "main", "resources": {"requests": asks}}], "nodeName": at}
    metadata = {"name": pod.uid, "namespace": pod.tenant, "uid": pod.uid, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


# time


def _timed(nodes: int, calls: int) -> list[Measurement]:
    """Every node full: wholly of `a` and `b`, which are over; jobs of 1, 2 and 4 GPUs, and shares."""
    chance = random.Random(SEED)
    book, lent, now = ClusterState(managed_resources()), Lent(), 100_000.0
    for number in range(nodes):
        book.apply(NodeSeen(msgspec.convert(filled.node(number), Node)))
        for raw in filled.seated(number, chance):
            raw["metadata"]["uid"] = raw["metadata"]["name"]
            book.apply(PodSeen(msgspec.convert(raw, Pod)))
    idle = (book.snapshot().table.exclusive == 0) & (book.snapshot().table.shares == 0)
    for number in range(nodes):
        name = filled.node_name(number)
        for card in np.flatnonzero(idle[book.snapshot().index.get(name), : filled.GPUS]).tolist():
            book.apply(PodSeen(_pod(Running(f"filler-{number}-{card}", "b", 1.0, (card,)), name)))
    snapshot = book.snapshot()
    for seat in snapshot.seats.values():
        charged = units(seat.request, snapshot.inventories[seat.node])
        tenant = chance.choice(("a", "b"))
        lent.put(
            Candidate(seat.uid, seat.node, tenant, seat.request, charged, chance.uniform(0, now), seat.cards)
        )
    rows = np.array([snapshot.index.get(name) for name in snapshot.inventories], np.int32)
    terms = Terms(now, {"owed": -1_000.0, "a": 5_000.0, "b": 5_000.0})
    found = []
    for what, wanted in (
        ("1 GPU", Running("wanted", "owed", 1.0, (0,))),
        ("4 GPUs", Running("wanted", "owed", 4.0, tuple(range(4)))),
        ("8 GPUs", Running("wanted", "owed", 8.0, tuple(range(8)))),
        ("a share of 75 GiB", Running("wanted", "owed", 0.94, share=0, memory=75)),
    ):
        request = request_of(_pod(wanted, None))
        times = []
        for _ in range(calls):
            begun = time.perf_counter()
            answer = reclaim(snapshot, request, "owed", rows, lent, terms)
            times.append(1_000 * (time.perf_counter() - begun))
            assert isinstance(answer, Reclaim), answer
            assert answer.exact
        metric = f"one reclaim for {what}, {nodes:,} nodes, {len(lent):,} pods, p50"
        found.append(measured(CASE, metric, float(np.median(times)), "ms", at_most=MILLISECONDS))
    return found
