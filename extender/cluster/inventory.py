"""Which GPUs a node has, read from its labels, annotations and amounts until an agent reports more.

Labels are those of GPU feature discovery (k8s-device-plugin `internal/lm`); all of them are optional. What cannot be
known is said so (card memory 0 = unknown), never guessed upward.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from extender.cluster.eligibility import PLAIN, NodeTraits, traits_of
from extender.cluster.geometry import geometry_of, unit_share
from extender.cluster.mig import PREFIX, Geometry, resource_of
from extender.cluster.request import CAP, GPU, MOST_DEVICES, SHARED, VENDOR
from extender.wire.objects import Node, Quantity
from extender.wire.quantity import QuantityError, device_count, milli, whole
from extender.wire.topo import LinkMatrix, TopoError, parse

LABEL = "nvidia.com/gpu."
DYNAMIC = "kvitej.io/mig"
"""Node label: with `dynamic`, instances are cut on demand, and kvitej decides on which card."""
LINKS = "kvitej.io/links"
"""Node annotation: the output of `nvidia-smi topo -m`."""
CARD_CHOICE = "kvitej.io/card-choice"
"""Node label: `planned` where a device plugin hands out the cards that kvitej planned; else the kubelet chooses."""
MOST_CARDS = 64
"""More cards than any machine has; a node that claims more is not believed."""
MOST_MEMORY = 2**42
"""The same for the bytes of one card: more counts as unknown, and keeps sums within 64 bits."""


class Mode(IntEnum):
    """What one `nvidia.com/gpu` of the node is."""

    WHOLE = 0
    REPLICA = 1
    """Time-slicing or MPS without renaming: a share of a card."""
    INSTANCE = 2
    """MIG strategy `single`: one MIG instance."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the book keeps of a node. `cards` counts cards that are not in MIG mode; memories are in bytes."""

    name: str
    mode: Mode
    cards: int
    replicas: int
    card_memory: int
    product: str
    allocatable: tuple[tuple[str, int], ...]
    cpu: int
    memory: int
    fault: str = ""
    """Why the node is closed: something it says about its devices cannot be read."""
    geometry: Geometry | None = None
    """Of cards that are cut on demand; None where instances are only counted."""
    sliced: int = 0
    """How many cards are cut on demand."""
    part: int = 0
    """In mode INSTANCE, per mille of a card that one `nvidia.com/gpu` is."""
    links: LinkMatrix | None = None
    links_fault: str = ""
    """Why what the node says of its links counts for nothing."""
    unseen: int = 0
    """How many of `cards` only the report knows: the node does not offer them, so they are no part of its pool."""
    planned: bool = False
    """Pods get the very cards that kvitej planned."""
    traits: NodeTraits = PLAIN
    """What the scheduler's own rules look at; like nodes share one."""


def inventory_of(node: Node, fault: str = "") -> Inventory:
    """Never raises: a node that cannot be understood is closed, with the reason in `fault`."""
    if fault:
        return _closed(node, fault)
    labels = node.metadata.labels or {}
    allocatable = (node.status.allocatable if node.status else None) or {}
    capacity = (node.status.capacity if node.status else None) or allocatable
    try:
        devices = _devices(allocatable)
        present = {**devices, **_devices(capacity)}
        cpu = min(milli(allocatable.get("cpu", "0")), CAP)
        memory = min(whole(allocatable.get("memory", "0")), CAP)
    except QuantityError as error:
        return _closed(node, f"the node's resources: {error}")
    product = labels.get(LABEL + "product", "")
    mode = _mode(labels, product)
    cards, replicas = _cards(mode, labels, present)
    geometry = geometry_of(product) if labels.get(DYNAMIC) == "dynamic" and mode is Mode.WHOLE else None
    sliced = max((_number(labels, "count") or 0) - cards, 0) if geometry and geometry.units else 0
    if not 0 < sliced <= MOST_CARDS:
        geometry, sliced = None, 0
    links, links_fault = _links((node.metadata.annotations or {}).get(LINKS), cards)
    fault = "" if cards <= MOST_CARDS else f"the node claims {cards} cards; at most {MOST_CARDS} are believed"
    return Inventory(
        name=node.metadata.name,
        mode=mode,
        cards=0 if fault else cards,
        replicas=replicas,
        card_memory=_card_memory(labels),
        product=product.removesuffix("-SHARED"),
        allocatable=tuple(sorted(devices.items())),
        cpu=cpu,
        memory=memory,
        fault=fault,
        geometry=geometry,
        sliced=sliced,
        part=_part(product) if mode is Mode.INSTANCE else 0,
        links=links,
        links_fault=links_fault,
        planned=labels.get(CARD_CHOICE) == "planned",
        traits=traits_of(node),
    )


def _closed(node: Node, fault: str) -> Inventory:
    return Inventory(node.metadata.name, Mode.WHOLE, 0, 0, 0, "", (), 0, 0, fault, traits=traits_of(node))


def _devices(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """Counts, each below what the largest request is read as, so that such a request never fits."""
    return {
        name: min(device_count(value), MOST_DEVICES - 1)
        for name, value in amounts.items()
        if name.startswith(VENDOR)
    }


def _mode(labels: Mapping[str, str], product: str) -> Mode:
    if labels.get("nvidia.com/mig.strategy") == "single" and "-MIG-" in product:
        return Mode.INSTANCE
    if labels.get(LABEL + "sharing-strategy") in ("time-slicing", "mps") and product.endswith("-SHARED"):
        return Mode.REPLICA
    return Mode.WHOLE


def _cards(mode: Mode, labels: Mapping[str, str], present: Mapping[str, int]) -> tuple[int, int]:
    """(cards, replicas per card) from what the node advertises; the label counts MIG cards too, so it comes last."""
    gpus, shared = present.get(GPU, 0), present.get(SHARED, 0)
    replicas = _number(labels, "replicas") or 0
    if mode is Mode.INSTANCE:
        return 0, 0
    if mode is Mode.REPLICA:
        gpus, shared = 0, gpus
    if not shared:
        return gpus, 0
    if replicas < 2:
        mig = any(name.startswith(PREFIX) for name in present)
        cards = gpus or (0 if mig else _number(labels, "count")) or 1
        replicas = max(1, shared // cards)
    return max(gpus, -(-shared // replicas)), replicas


def _part(product: str) -> int:
    share = unit_share(resource_of(product.removesuffix("-SHARED").rpartition("-MIG-")[2]), product)
    return max(1, round(1000 * share)) if share is not None else 1000


def _links(text: str | None, cards: int) -> tuple[LinkMatrix | None, str]:
    if text is None:
        return None, ""
    try:
        matrix = _matrix(text)
    except TopoError as error:
        return None, f"its annotation {LINKS} cannot be understood: {error}"
    if len(matrix.gpus) != cards:
        return None, f"its annotation {LINKS} is of {len(matrix.gpus)} GPUs, but the node offers {cards}"
    return matrix, ""


@lru_cache(256)
def _matrix(text: str) -> LinkMatrix:
    return parse(text)


def _card_memory(labels: Mapping[str, str]) -> int:
    amount = (_number(labels, "memory") or 0) << 20
    return amount if amount <= MOST_MEMORY else 0


def _number(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(LABEL + name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
