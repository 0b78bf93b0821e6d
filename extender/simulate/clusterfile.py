"""The file of an embedded cluster: its nodes, its tenants, the pods that arrive, and what happens to cards meanwhile.

Some files are shipped and go by name; any other is given as a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, field

from extender.cluster.inventory import MOST_CARDS, Inventory, inventory_of
from extender.cluster.request import GPU, SHARED
from extender.schedulerconfig import managed_resources
from extender.simulate.policyfile import read_policies
from extender.wire.objects import Node, NodeStatus, ObjectMeta, Quantity
from extender.wire.quantity import QuantityError, milli, whole
from extender.yamlfile import DURATION, FileError, Section, Spelling, load

_MONTH = 30 * 24 * 3600


def _amount(text: Quantity) -> Quantity:
    if milli(text) < 0:
        raise QuantityError("negative")
    return text


Amount = Annotated[
    Quantity,
    Meta(
        extra={
            "spelling": Spelling(
                "an amount of zero or more, such as 8, 500m or 40Gi", _amount, takes=(str, int, float)
            )
        }
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=63,
        extra={"noun": "a name of at most 63 lower-case letters, digits and '-'"},
    ),
]
Count = Annotated[int, Meta(ge=1, le=1000)]
Moment = Annotated[float, Meta(ge=0, le=_MONTH, extra=DURATION)]
Card = Annotated[int, Meta(ge=0, le=MOST_CARDS - 1)]
Sentence = Annotated[str, Meta(min_length=1, max_length=200, extra={"noun": "a sentence"})]


class Agent(Section, frozen=True):
    """The agent of a node looks every `sample` and reports what has changed. Memory is that of each card.

    `reserved` is what the driver keeps of it.
    """

    memory: Amount
    reserved: Amount = 0
    sample: Annotated[float, Meta(ge=1, le=600, extra=DURATION)] = 5.0


class NodeKind(Section, frozen=True):
    """Equal nodes, with the labels and the allocatable that the API server would show."""

    name: Name
    allocatable: dict[str, Amount]
    labels: dict[str, str] = field(default_factory=dict)
    count: Count = 1
    agent: Agent | None = None


class Process(Section, frozen=True):
    """A process that nobody scheduled, which takes memory of one card; cards count from 0."""

    name: Name
    card: Card
    takes: Amount
    runs: Moment


class PlacedProcess(Process, frozen=True):
    """The same, on this node from then on."""

    node: Name
    at: Moment


class Failure(Section, frozen=True):
    """A card that is not healthy for a while, in the words of the node's agent."""

    node: Name
    card: Card
    at: Moment
    lasts: Moment
    why: Sentence


class Silence(Section, frozen=True):
    """The node's agent says nothing for a while, whatever happens there."""

    node: Name
    at: Moment
    lasts: Moment


class Intruder(Section, frozen=True):
    """A pod that another scheduler binds to the node of this entry's pod, between its Filter and its Bind."""

    name: Name
    namespace: Name
    asks: dict[str, Amount]
    runs: Moment = _MONTH


class PodKind(Section, frozen=True):
    """Equal pods that arrive together; times are seconds of the play's own clock."""

    name: Name
    tenant: Name
    asks: dict[str, Amount]
    runs: Moment
    at: Moment = 0.0
    count: Count = 1
    gpu_memory: Amount = ""
    """GPU memory that the pod declares per card; empty declares none."""
    uses: Amount = ""
    """GPU memory that it comes to use per card; empty is what it declares."""
    intruder: Intruder | None = None
    process: Process | None = None
    """Comes to the node between this entry's first Filter and its Bind, and the node's agent tells of it."""


class Expect(Section, frozen=True):
    """How the play has to go: how often kvitej binds a pod, how often Bind says no, and how many pods are evicted."""

    bound: Annotated[int, Meta(ge=0, le=10**6)]
    vetoed: Annotated[int, Meta(ge=0, le=10**6)]
    evicted: Annotated[int, Meta(ge=0, le=10**6)] = 0


class ClusterFile(Section, frozen=True):
    """The whole file; a play whose end is not given (0) is over when every pod has been bound, or can't be."""

    nodes: tuple[NodeKind, ...]
    tenants: tuple[Name, ...]
    pods: tuple[PodKind, ...]
    processes: tuple[PlacedProcess, ...] = ()
    failures: tuple[Failure, ...] = ()
    silences: tuple[Silence, ...] = ()
    policies: tuple[dict[str, Any], ...] = ()
    """Each is the spec of a FairnessPolicy and its name, as `policyfile` reads it."""
    ends: Moment = 0.0
    expect: Expect | None = None


def shipped() -> tuple[str, ...]:
    """Names of the clusters that come with kvitej."""
    files = resources.files(__package__).joinpath("clusters").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def find(cluster: str) -> ClusterFile:
    """The cluster of a shipped name, or of a path.

    Raises
    ------
    FileError
        There is no such cluster, or its file cannot be taken as meant.
    OSError
        The file cannot be read.
    """
    if cluster in shipped():
        with resources.as_file(resources.files(__package__).joinpath("clusters", f"{cluster}.yaml")) as path:
            return read(path)
    path = Path(cluster)
    if not path.exists():
        raise FileError(
            f"There is no cluster {cluster!r}: give the path of a file, or one of the built-in names: "
            f"{', '.join(shipped())}."
        )
    return read(path)


def read(path: Path) -> ClusterFile:
    """The cluster of a file; errors are those of `find`."""
    file = load(path, ClusterFile, "the cluster file")
    for sentence in _faults(file):
        raise FileError(f"{path}: {sentence}")
    try:
        read_policies(file.policies)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    return file


def numbered(name: str, count: int) -> tuple[str, ...]:
    """The names of `count` equal things: a single one keeps its name, more get -1, -2 and so on."""
    return (name,) if count == 1 else tuple(f"{name}-{number}" for number in range(1, count + 1))


def inventory_as_labelled(kind: NodeKind, name: str) -> Inventory:
    """What the node of that name says of itself."""
    metadata = ObjectMeta(name=name, labels=kind.labels)
    return inventory_of(Node(metadata, status=NodeStatus(allocatable=kind.allocatable)))


def _faults(file: ClusterFile) -> Iterator[str]:
    """What is wrong between keys that are right by themselves."""
    yield from _faults_of_pods(file)
    yield from _faults_of_cards(file)


def _faults_of_pods(file: ClusterFile) -> Iterator[str]:
    nodes: set[str] = set()
    for position, kind in enumerate(file.nodes):
        for name in numbered(kind.name, kind.count):
            if name in nodes:
                yield f"nodes[{position}].name gives a second node {name}; each needs a name of its own."
            nodes.add(name)
    managed = set(managed_resources())
    pods: set[tuple[str, str]] = set()
    for position, pod in enumerate(file.pods):
        where = f"pods[{position}]"
        if pod.tenant not in file.tenants:
            yield f"{where}.tenant is {pod.tenant!r}; allowed is one of the tenants {', '.join(file.tenants)}."
        if not managed & {name for name, amount in pod.asks.items() if milli(amount)}:
            yield (
                f"{where}.asks has no GPU, so kube-scheduler would not ask kvitej about the pod; "
                "allowed are the resources that `kvitej scheduler-config` lists, such as nvidia.com/gpu."
            )
        names = [(pod.tenant, name) for name in numbered(pod.name, pod.count)]
        if pod.intruder is not None:
            names.append((pod.intruder.namespace, pod.intruder.name))
        for namespace, name in names:
            if (namespace, name) in pods:
                yield f"{where} gives a second pod {namespace}/{name}; each needs a name of its own."
            pods.add((namespace, name))


def _faults_of_cards(file: ClusterFile) -> Iterator[str]:
    """Agents are played where the kubelet gives whole cards or shares of them; only they see what befalls cards."""
    watched: dict[str, tuple[int, Agent]] = {}
    for position, kind in enumerate(file.nodes):
        if kind.agent is None:
            continue
        offered = {name for name, amount in kind.allocatable.items() if milli(amount)} & set(
            managed_resources()
        )
        cards = inventory_as_labelled(kind, kind.name).cards
        if len(offered) != 1 or not offered <= {GPU, SHARED} or not cards:
            yield (
                f"nodes[{position}].agent: agents are played for nodes that offer either {GPU} or {SHARED}, and this "
                f"one offers {', '.join(sorted(offered)) or 'neither'}."
            )
        watched |= dict.fromkeys(numbered(kind.name, kind.count), (cards, kind.agent))
    known = ", ".join(watched) or "none here"
    befalls: dict[str, PlacedProcess | Failure | Silence] = {
        **{f"processes[{position}]": each for position, each in enumerate(file.processes)},
        **{f"failures[{position}]": each for position, each in enumerate(file.failures)},
        **{f"silences[{position}]": each for position, each in enumerate(file.silences)},
    }
    for where, each in befalls.items():
        if each.node not in watched:
            yield f"{where}.node is {each.node!r}; allowed is a node with an agent: {known}."
            continue
        cards, agent = watched[each.node]
        if not isinstance(each, Silence) and each.card >= cards:
            yield f"{where}.card is {each.card}; node {each.node} has {cards} cards, counted from 0."
        if isinstance(each, PlacedProcess) and whole(each.takes) > whole(agent.memory):
            yield f"{where}.takes is {each.takes!r}; a card of node {each.node} has {agent.memory}."
    for position, pod in enumerate(file.pods):
        if pod.process is not None and not watched:
            yield f"pods[{position}].process: no node has an agent that would see it."
