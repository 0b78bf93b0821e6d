"""Who sits where, counted from the API server's objects alone: the judge of "no overcommit".

It shares no code with the product, on purpose: requests, quantities and cards are read here a second time, as plainly
as possible. Only the annotation `kvitej.io/devices` is taken from the product, since it says which cards a pod holds;
what can be known without it (sums per resource, and cards that both forms of a node's GPUs draw on) is counted
without it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
DEVICES = "kvitej.io/devices"
MEMORY = "kvitej.io/gpu-memory"
SUFFIXES: dict[str, int] = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGT")
}

Object = dict[str, Any]


def recount(nodes: list[Object], pods: list[Object]) -> list[str]:
    """Sentences about everything that is given out twice or beyond what there is; empty when all is well.

    Parameters
    ----------
    nodes, pods
        Objects as the API server lists them. Pods that are unbound, have ended, or sit on a node that is not in
        `nodes` do not count. A bound pod without the annotation counts by resource only.
    """
    seated: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            seated[pod["spec"]["nodeName"]].append(pod)
    return [
        f"node {node['metadata']['name']}: {fault}"
        for node in nodes
        for fault in _node_faults(_Node.of(node), seated[node["metadata"]["name"]])
    ]


def asked(pod: Object) -> Counter[str]:
    """The pod's `nvidia.com/` devices: per resource the larger of its running containers and its init chain."""
    peak: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for container in pod["spec"].get("initContainers") or []:
        wanted = _devices(container)
        if container.get("restartPolicy") == "Always":
            running += wanted
            peak |= running
        else:
            peak |= running + wanted
    for container in pod["spec"]["containers"]:
        running += _devices(container)
    return peak | running


@dataclass(frozen=True)
class _Node:
    """`cards` whole cards, each `replicas` shares wide, with `memory` MiB each (0: not known)."""

    amounts: dict[str, int]
    cards: int
    replicas: int
    memory: Fraction
    gpu_is_share: bool

    @staticmethod
    def of(node: Object) -> _Node:
        labels = node["metadata"].get("labels") or {}
        amounts = {
            name: _amount(value)
            for name, value in node["status"]["allocatable"].items()
            if name.startswith("nvidia.com/")
        }
        product = labels.get(f"{GPU}.product", "")
        gpu_is_share = product.endswith("-SHARED") and f"{GPU}.sharing-strategy" in labels
        gpus, shares = amounts.get(GPU, Fraction(0)), amounts.get(SHARED, Fraction(0))
        if gpu_is_share:
            gpus, shares = Fraction(0), gpus
        replicas = int(labels.get(f"{GPU}.replicas", 0))
        if shares and replicas < 2:
            replicas = max(1, math.floor(shares / (gpus or int(labels.get(f"{GPU}.count", 1)))))
        return _Node(
            amounts={name: math.floor(amount) for name, amount in amounts.items()},
            cards=max(math.floor(gpus), math.ceil(shares / replicas) if shares else 0),
            replicas=replicas,
            memory=Fraction(labels.get(f"{GPU}.memory", 0)),
            gpu_is_share=gpu_is_share,
        )


@dataclass
class _Card:
    owners: list[str] = field(default_factory=list)
    sharers: list[str] = field(default_factory=list)
    memory: Fraction = Fraction(0)


def _node_faults(node: _Node, pods: list[Object]) -> Iterator[str]:
    used: Counter[str] = Counter()
    taken = Fraction(0)
    cards = [_Card() for _ in range(node.cards)]
    for pod in pods:
        wanted = asked(pod)
        used += wanted
        taken += _cards_at_least(node, wanted, _declared(pod))
        yield from _sit(node, cards, pod)
    for resource, count in sorted(used.items()):
        if count > node.amounts.get(resource, 0):
            yield f"{count} {resource} are given out of {node.amounts.get(resource, 0)}."
    if node.cards and taken > node.cards:
        yield f"its pods need {float(taken):g} cards, and it has {node.cards}."
    for number, card in enumerate(cards):
        yield from (f"card {number} {fault}" for fault in _card_faults(node, card))


def _cards_at_least(node: _Node, wanted: Counter[str], declared: Fraction) -> Fraction:
    """The least that the pod takes of the node's cards, whichever they are."""
    whole, shares = wanted[GPU], wanted[SHARED]
    if node.gpu_is_share:
        whole, shares = 0, whole + shares
    part = Fraction(1, node.replicas) if node.replicas else Fraction(0)
    if node.memory:
        part = max(part, declared / node.memory)
    return whole + shares * part


def _sit(node: _Node, cards: list[_Card], pod: Object) -> Iterator[str]:
    """Seat the pod on the cards that its annotation names; say where the annotation cannot be true."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES)
    if text is None:
        return
    name = f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"
    recorded: dict[str, Object] = json.loads(text)["containers"]
    whole: set[int] = set()
    running: list[int] = []
    init: list[list[int]] = []
    for container, sidecar, app in _containers(pod):
        held = recorded.get(container["name"], {})
        gpu, shared = held.get("gpu", []), held.get("shared", [])
        count = len(gpu) + len(shared) + sum(held.get("mig", {}).values())
        wanted = _devices(container).total()
        if count != wanted:
            yield f"pod {name}, container {container['name']}: {count} devices are recorded, {wanted} asked for."
        whole.update(gpu)
        if sidecar or app:
            running += shared
        else:
            init.append(running + shared)
    sharing: Counter[int] = Counter(running)
    for step in init:
        sharing |= Counter(step)
    for card in {*whole, *sharing} - set(range(len(cards))):
        yield f"pod {name} holds card {card}, and the node has {len(cards)}."
    for card in whole & set(range(len(cards))):
        cards[card].owners.append(name)
    for card, count in sharing.items():
        if 0 <= card < len(cards):
            cards[card].sharers += [name] * count
            cards[card].memory += count * _declared(pod)


def _card_faults(node: _Node, card: _Card) -> Iterator[str]:
    if len(card.owners) > 1:
        yield f"has {len(card.owners)} owners: {', '.join(card.owners)}."
    if card.owners and card.sharers:
        yield f"is {card.owners[0]}'s alone, and is shared by {', '.join(sorted(set(card.sharers)))}."
    if len(card.sharers) > node.replicas:
        yield f"has {len(card.sharers)} shares out of {node.replicas}."
    if node.memory and card.memory > node.memory:
        yield f"has {float(card.memory):g} MiB declared of {float(node.memory):g} MiB."


def _containers(pod: Object) -> Iterable[tuple[Object, bool, bool]]:
    """(container, is a sidecar, is an app container) in the order in which they start."""
    for container in pod["spec"].get("initContainers") or []:
        yield container, container.get("restartPolicy") == "Always", False
    for container in pod["spec"]["containers"]:
        yield container, False, True


def _devices(container: Object) -> Counter[str]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter(
        {name: math.ceil(_amount(value)) for name, value in merged.items() if name.startswith("nvidia.com/")}
    )


def _declared(pod: Object) -> Fraction:
    """The GPU memory that the pod declared for each card, in MiB."""
    declared: str = (pod["metadata"].get("annotations") or {}).get(MEMORY, "0")
    return _amount(declared) / 1024**2


def _amount(text: str) -> Fraction:
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)
