"""How fast the GPUs of a node reach each other, and which of them belong together.

A link matrix and the card's product become bandwidths in MB/s and the native tables that answer for every set of
free GPUs (`_core.topology`). Nodes with the same links and the same card share one entry of the register.

Bandwidths count both directions. Where the product is not known, the least that the links imply is assumed, so
that what is promised is also there: 50 GB/s an NVLink, but 40 where every card has four single ones (P100) and
28.125 where no card has more than one partner, with four (the bridge of the A40 family); PCIe 3.0 for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

import msgspec
import numpy as np
from numpy.typing import NDArray

from _core import Allocator, Sets
from extender.wire.topo import Link, LinkClass, LinkMatrix, TopoError

MOST_GPUS = 16
"""Sets of more GPUs are not worked out; the table of a matrix grows with two to the power of them."""
MOST_TOPOLOGIES = 256
"""More than any cluster has kinds of nodes; bounds what the register holds."""

_MBPS = 1_000
_MOST_LINKS = 18
"""Per card, of all models; more seen at once end at a switch."""
_PIECES = re.compile(r"[\s-]+")
_POINTS = {LinkClass.SYS: 10, LinkClass.NODE: 20, LinkClass.PHB: 30, LinkClass.PXB: 40, LinkClass.PIX: 50}
_POINTS_PER_LANE = 100


class Card(msgspec.Struct, frozen=True):
    """What the links of a card model can do; `words` are those of the product label that tell the model."""

    words: str
    links: int
    gbps_per_link: float
    pcie: int


class _Speeds(msgspec.Struct, frozen=True):
    cards: tuple[Card, ...]
    pcie_x16_gbps: dict[str, float]
    pcie_part: dict[str, float]


@dataclass(frozen=True, slots=True)
class Topology:
    """One kind of node: its links, and everything that is worked out from them.

    `bandwidth` is int32[G, G] in MB/s, `sets` answers by mask (bit i is `matrix.gpus[i]`). `card` is what was
    named or, if `assumed`, implied by the links.
    """

    matrix: LinkMatrix
    card: Card
    assumed: bool
    bandwidth: NDArray[np.int32]
    sets: Sets

    def members(self, mask: int) -> tuple[int, ...]:
        """The GPUs of a mask by their numbers."""
        return tuple(gpu for bit, gpu in enumerate(self.matrix.gpus) if mask >> bit & 1)


class Topologies:
    """The register of kinds: `sets[i]` belongs to the topology with index i, as `_core.connect` takes them."""

    def __init__(self) -> None:
        self.sets: list[Sets] = []
        self._kinds: list[Topology] = []
        self._cards: list[str] = []
        self._index: dict[tuple[object, ...], int] = {}

    def __getitem__(self, index: int) -> Topology:
        return self._kinds[index]

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, matrix: LinkMatrix, product: str = "") -> int:
        """The index of the topology with these links, NUMA neighbours and card; a new one where there is none.

        Raises
        ------
        TopoError
            If there are more than 16 GPUs, the card cannot have these links, or the register is full.
        """
        card, _ = card_of(matrix, product)
        key = (matrix.links, _neighbours(matrix.numa), card)
        found = self._index.get(key)
        if found is not None:
            return found
        if len(self._kinds) == MOST_TOPOLOGIES:
            raise TopoError(
                f"{MOST_TOPOLOGIES} different link matrices are known already; this one is left out."
            )
        self._kinds.append(topology(matrix, product))
        self.sets.append(self._kinds[-1].sets)
        self._cards.append(card.words)
        self._index[key] = len(self._kinds) - 1
        return self._index[key]

    def offers(self, k: int) -> NDArray[np.int32]:
        """Per topology, MB/s between the slowest two of the best `k` GPUs that any node with its card has."""
        own = [_offer(sets, k) for sets in self.sets]
        most = {
            card: max(mine for mine, other in zip(own, self._cards, strict=True) if other == card)
            for card in self._cards
        }
        return np.array([most[card] for card in self._cards], np.int32)


def topology(matrix: LinkMatrix, product: str = "") -> Topology:
    """Work out one topology; `product` is the node's label `nvidia.com/gpu.product` or what nvidia-smi calls the card.

    Raises
    ------
    TopoError
        If there are more than 16 GPUs, or the card cannot have these links.
    """
    count = len(matrix.gpus)
    if count > MOST_GPUS:
        raise TopoError(f"The node has {count} GPUs; their links are weighed for up to {MOST_GPUS}.")
    card, assumed = card_of(matrix, product)
    bandwidth, rank, points = (np.zeros((count, count), np.int32) for _ in range(3))
    switched = behind_switch(matrix, card)
    for i in range(count):
        for j in range(count):
            if i != j:
                link, near = matrix.links[i][j], _same(matrix.numa[i], matrix.numa[j])
                bandwidth[i, j] = _mbps(link, card, near)
                rank[i, j] = 2 * link.kind + near
                points[i, j] = _points(Link(LinkClass.NODE if near else LinkClass.SYS) if switched else link)
    return Topology(
        matrix, card, assumed, bandwidth, Sets(bandwidth, rank, Allocator(points), _all_nvlink(matrix))
    )


def card_of(matrix: LinkMatrix, product: str = "") -> tuple[Card, bool]:
    """The card that a product names, or one that the links imply, and whether it was implied.

    Raises
    ------
    TopoError
        If the matrix shows NVLinks and the card has none.
    """
    words = set(_PIECES.split(product.lower()))
    named = [card for card in _speeds().cards if set(card.words.split()) <= words]
    lanes = [[link.lanes for link in row] for row in matrix.links]
    most = max(map(max, lanes))
    if named:
        card = max(named, key=lambda card: len(card.words.split()))
        if most and not card.links:
            raise TopoError(
                f"The links show NV{most}, but {product!r} has no NVLink; name the card that the node has."
            )
        return card, False
    at_once = {tuple(sorted(filter(None, row))) for row in lanes}
    gbps = 50.0
    if at_once == {(1, 1, 1, 1)}:
        gbps = 40.0
    elif at_once <= {(4,), ()} and most:
        gbps = 28.125
    return Card("", max(most, _MOST_LINKS), gbps, 3), True


def behind_switch(matrix: LinkMatrix, card: Card) -> bool:
    """Whether all pairs share the cards' NVLinks through NVSwitches: then a row shows more of them than a card has."""
    return all(
        sum(link.lanes for link in row) > card.links > 0
        and sum(link.lanes > 0 for link in row) == len(row) - 1
        for row in matrix.links
    )


def through_switch(matrix: LinkMatrix, lanes: Sequence[int]) -> LinkMatrix:
    """The links of GPUs whose NVLinks end at switches, where only the remote ends tell so.

    Parameters
    ----------
    matrix
        As seen without the switches, that is, with PCIe classes.
    lanes
        Per GPU, how many of its active NVLinks have a switch as their remote end.

    Returns
    -------
    LinkMatrix
        With the smaller count of the two as the NVLinks of each pair that has some on both ends.
    """
    count = range(len(matrix.gpus))
    links = tuple(
        tuple(
            Link(LinkClass.NVLINK, min(lanes[i], lanes[j]))
            if i != j and min(lanes[i], lanes[j]) > 0
            else matrix.links[i][j]
            for j in count
        )
        for i in count
    )
    return replace(matrix, links=links)


@lru_cache(1)
def _speeds() -> _Speeds:
    return msgspec.json.decode(
        resources.files("extender").joinpath("data/link_bandwidth.json").read_bytes(), type=_Speeds
    )


def _same(one: int | None, other: int | None) -> bool:
    return one is not None and one == other


def _mbps(link: Link, card: Card, near: bool) -> int:
    if link.kind is LinkClass.NVLINK:
        return round(min(link.lanes, card.links) * card.gbps_per_link * _MBPS)
    speeds = _speeds()
    part = "SYS_one_numa" if link.kind is LinkClass.SYS and near else link.kind.name
    return round(speeds.pcie_x16_gbps[str(card.pcie)] * speeds.pcie_part[part] * _MBPS)


def _points(link: Link) -> int:
    """What go-gpuallocator gives a pair; behind NVSwitches it sees PCIe alone."""
    return _POINTS_PER_LANE * link.lanes if link.kind is LinkClass.NVLINK else _POINTS[link.kind]


def _all_nvlink(matrix: LinkMatrix) -> NDArray[np.bool_]:
    """bool[2^G]: whether every pair of the set has NVLink. Doubles what is known with each further GPU."""
    full = np.ones(1 << len(matrix.gpus), np.bool_)
    for i, row in enumerate(matrix.links):
        apart = sum(1 << j for j in range(i) if row[j].kind is not LinkClass.NVLINK)
        full[1 << i : 2 << i] = full[: 1 << i] & (np.arange(1 << i) & apart == 0)
    return full


def _neighbours(numa: Sequence[int | None]) -> tuple[int | None, ...]:
    """NUMA nodes numbered as they come, since only who shares one matters."""
    seen: dict[int, int] = {}
    return tuple(None if node is None else seen.setdefault(node, len(seen)) for node in numa)


def _offer(sets: Sets, k: int) -> int:
    full = (1 << sets.gpus) - 1
    return int(sets.bottleneck[sets.choose(full, k)]) if 1 < k <= sets.gpus else 0
