"""A second, simple reading of the book's rules, which recounts everything from a list of pods each time.

Nothing of the product is used here but the annotation's text. Nodes and pods come from two short tables whose
effective needs are written down by hand.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.builders import GPU, MIG, SHARED, Json, container

MIB = 2**20


@dataclass(frozen=True)
class NodeKind:
    """`mode`: what one nvidia.com/gpu is; `memory` in MiB per card, 0 = not told."""

    amounts: dict[str, str]
    cards: int
    replicas: int = 0
    memory: int = 0
    mode: str = "whole"
    labels: dict[str, str] = field(default_factory=dict)
    tells_replicas: bool = True
    readable: bool = True

    @property
    def told_labels(self) -> dict[str, str]:
        told = dict(self.labels)
        if self.memory:
            told["nvidia.com/gpu.memory"] = str(self.memory)
        if self.replicas and self.tells_replicas:
            told["nvidia.com/gpu.replicas"] = str(self.replicas)
        return told


NODE_KINDS = {
    "whole": NodeKind({GPU: "2"}, cards=2, memory=1000),
    "wide": NodeKind({GPU: "3"}, cards=3),
    "dual": NodeKind({GPU: "2", SHARED: "200"}, 2, 100, 1000, tells_replicas=False),
    "shares": NodeKind({SHARED: "8"}, cards=2, replicas=4),
    "shares with memory": NodeKind({SHARED: "4"}, cards=1, replicas=4, memory=1000),
    "sliced": NodeKind(
        {GPU: "4"},
        2,
        2,
        mode="replica",
        labels={"nvidia.com/gpu.product": "T4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
    ),
    "mixed": NodeKind({GPU: "1", MIG: "3"}, cards=1, memory=1000),
    "single": NodeKind(
        {GPU: "3"},
        0,
        mode="instance",
        labels={"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-MIG-1g.5gb"},
    ),
    "unreadable": NodeKind({GPU: "some"}, cards=0, readable=False),
}


@dataclass(frozen=True)
class PodKind:
    """`gpus`, `shares`, `mig`: the effective need, by hand; `memory` in MiB declared per card."""

    spec: Json
    gpus: int = 0
    shares: int = 0
    mig: int = 0
    memory: int = 0
    readable: bool = True

    @property
    def asks(self) -> bool:
        return bool(self.gpus or self.shares or self.mig or not self.readable)


def _one(**amounts: str) -> Json:
    names = {"gpu": GPU, "shared": SHARED, "mig": MIG, "cpu": "cpu"}
    return {"containers": [container("main", {names[name]: text for name, text in amounts.items()})]}


_TURNS: Json = {
    # init alone: 2; running: sidecar 1 + app 1 = 2.
    "initContainers": [container("warm", {GPU: "2"}), container("side", {GPU: "1"}, sidecar=True)],
    "containers": [container("main", {GPU: "1"})],
}

POD_KINDS = {
    "one": PodKind(_one(gpu="1", cpu="1"), gpus=1),
    "two": PodKind(_one(gpu="2"), gpus=2),
    "turns": PodKind(_TURNS, gpus=2),
    "share": PodKind(_one(shared="1"), shares=1),
    "three shares": PodKind(_one(shared="3"), shares=3),
    "half": PodKind(_one(shared="1"), shares=1, memory=500),
    "two big shares": PodKind(_one(shared="2"), shares=2, memory=600),
    "too big": PodKind(_one(shared="1"), shares=1, memory=2000),
    "whole and share": PodKind(_one(gpu="1", shared="1"), gpus=1, shares=1),
    "instance": PodKind(_one(mig="1"), mig=1),
    "two instances": PodKind(_one(mig="2"), mig=2),
    "cpu": PodKind(_one(cpu="2")),
    "unreadable": PodKind(_one(gpu="1.5"), readable=False),
}


@dataclass(frozen=True)
class Sitting:
    """A pod on a node. `spoilt`: its declared memory cannot be read any more."""

    kind: PodKind
    record: str | None
    spoilt: bool = False


@dataclass
class Count:
    """What a node's pods hold, card by card; bytes. `somewhere`: whole cards that may be any."""

    kind: NodeKind
    owners: list[int]
    shares: list[int]
    memory: list[int]
    used: Counter[str]
    somewhere: int = 0
    closed: bool = False

    @property
    def busy(self) -> int:
        return sum(1 for owners, shares in zip(self.owners, self.shares, strict=True) if owners or shares)

    def broken(self) -> set[str]:
        """What is promised twice."""
        kind, found = self.kind, set()
        for owners, shares, memory in zip(self.owners, self.shares, self.memory, strict=True):
            if owners > 1 or (owners and shares):
                found.add("a card has two owners")
            if shares > kind.replicas:
                found.add("a card has more shares than replicas")
            if kind.memory and memory > kind.memory * MIB:
                found.add("a card's memory is promised twice")
        if self.somewhere + self.busy > kind.cards and self.somewhere:
            found.add("there are fewer cards than pods that hold some")
        found |= {
            f"{name} is promised twice" for name, used in self.used.items() if used > allocatable(kind, name)
        }
        return found


def allocatable(kind: NodeKind, name: str) -> int:
    return int(kind.amounts.get(name, "0")) if kind.readable else 0


def cards_needed(kind: NodeKind, pod: PodKind) -> tuple[int, int]:
    """(whole cards, shares) that the pod means on such a node."""
    if kind.mode == "replica":
        return 0, pod.gpus + pod.shares
    return (0 if kind.mode == "instance" else pod.gpus), pod.shares


def share_bytes(kind: NodeKind, pod: PodKind, spoilt: bool = False) -> int:
    if not kind.memory:
        return 0
    if spoilt:
        return kind.memory * MIB
    return max(pod.memory * MIB, kind.memory * MIB // kind.replicas if kind.replicas else kind.memory * MIB)


def recorded(text: str | None, kind: NodeKind, pod: PodKind) -> tuple[list[int], list[int]] | None:
    """(whole cards, card of each share) that the annotation tells; None if it tells nothing that can be so."""
    try:
        containers: dict[str, Any] = json.loads(text or "")["containers"]
        assert containers.keys() == {entry["name"] for entry in _asking(pod)}
    except (ValueError, KeyError, TypeError, AssertionError):
        return None
    whole = {card for found in containers.values() for card in found.get("gpu", ())}
    shared: Counter[int] = Counter()
    for found in containers.values():
        shared |= Counter(found.get("shared", ()))
    needed = cards_needed(kind, pod)
    instances = sum(found.get("mig", {}).get(GPU, 0) for found in containers.values())
    if (len(whole), shared.total()) != needed or bool(instances) != (
        kind.mode == "instance" and pod.gpus > 0
    ):
        return None
    if any(card >= kind.cards for card in whole | shared.keys()) or whole & shared.keys():
        return None
    if any(count > kind.replicas for count in shared.values()):
        return None
    return sorted(whole), sorted(shared.elements())


def _asking(pod: PodKind) -> Iterable[Json]:
    for entry in (*pod.spec.get("initContainers", ()), *pod.spec["containers"]):
        if any(name.startswith("nvidia.com/") for name in entry["resources"]["requests"]):
            yield entry


def count(kind: NodeKind, sitting: Iterable[Sitting]) -> Count:
    """All of the node, from nothing."""
    cards = kind.cards
    total = Count(kind, [0] * cards, [0] * cards, [0] * cards, Counter(), closed=not kind.readable)
    for pod in sitting:
        if not pod.kind.readable:
            total.closed = True
            continue
        for name, amount in ((GPU, pod.kind.gpus), (SHARED, pod.kind.shares), (MIG, pod.kind.mig)):
            if amount and kind.readable and name in kind.amounts:
                total.used[name] += amount
        whole, shares = cards_needed(kind, pod.kind)
        cards_held = recorded(pod.record, kind, pod.kind)
        per_card: Counter[int] = Counter()
        if cards_held is None:
            total.somewhere += whole
            per_card.update(dict.fromkeys(range(cards), shares))
        else:
            for card in cards_held[0]:
                total.owners[card] += 1
            per_card.update(cards_held[1])
        for card, number in per_card.items():
            total.shares[card] += number
            spoilt = pod.spoilt and (cards_held is None or '"memory"' not in (pod.record or ""))
            cost = number * share_bytes(kind, pod.kind, spoilt)
            total.memory[card] += min(cost, kind.memory * MIB)
    return total


def fits(total: Count, pod: PodKind) -> bool:
    """Whether one more such pod has room beside what is counted."""
    kind = total.kind
    if total.closed or not pod.readable:
        return False
    for name, amount in ((GPU, pod.gpus), (SHARED, pod.shares), (MIG, pod.mig)):
        if amount and allocatable(kind, name) - total.used[name] < amount:
            return False
    whole, shares = cards_needed(kind, pod)
    declared = pod.memory * MIB
    if (whole or shares) and declared > kind.memory * MIB:
        return False
    free = sum(not (o or s) for o, s in zip(total.owners, total.shares, strict=True)) - total.somewhere
    if whole > max(free, 0) or (shares and free < 0):
        return False
    cost = share_bytes(kind, pod)
    room = max(free - whole, 0) * _room(kind.replicas, kind.memory * MIB, cost)
    for owners, used, memory in zip(total.owners, total.shares, total.memory, strict=True):
        if used and not owners:
            room += _room(kind.replicas - used, kind.memory * MIB - memory, cost)
    return shares <= room


def _room(replicas: int, left: int, cost: int) -> int:
    return max(min(replicas, left // cost) if cost else replicas, 0)
