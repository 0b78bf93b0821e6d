"""How the cards of a node reach each other: NVLinks that end at the other card or at switches, else PCIe.

Cards behind NVSwitches see switches only, so what each has there counts for all pairs of them. In a virtual machine
the far end is hidden; then the driver's own word on peer access decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pynvml

from extender.agent.card import Handle
from extender.wire.gpunode import GPU, Links
from extender.wire.topo import SELF, Link, LinkClass

_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: LinkClass.PIX,
    pynvml.NVML_TOPOLOGY_SINGLE: LinkClass.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: LinkClass.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: LinkClass.PHB,
    pynvml.NVML_TOPOLOGY_NODE: LinkClass.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: LinkClass.SYS,
}


def links(cards: Sequence[tuple[GPU, Handle]]) -> Links | None:
    """The links among these cards, in their order; None if the driver does not tell one of them."""
    rows = [[SELF] * len(cards) for _ in cards]
    for (i, one), (j, other) in combinations(enumerate(cards), 2):
        link = _link(one, other)
        if link is None:
            return None
        rows[i][j] = rows[j][i] = link
    return Links([gpu.index for gpu, _ in cards], [" ".join(map(str, row)) for row in rows])


def _link(one: tuple[GPU, Handle], other: tuple[GPU, Handle]) -> Link | None:
    lanes = min(_direct(one[0], other[0]), _direct(other[0], one[0])) or min(
        _to(one[0], "switch"), _to(other[0], "switch")
    )
    try:
        if not lanes and _hidden(one[0]) and _hidden(other[0]) and _peers(one[1], other[1]):
            lanes = min(_hidden(one[0]), _hidden(other[0]))
        if lanes:
            return Link(LinkClass.NVLINK, lanes)
        return Link(_PATHS[pynvml.nvmlDeviceGetTopologyCommonAncestor(one[1], other[1])])
    except (pynvml.NVMLError, KeyError):
        return None


def _direct(gpu: GPU, other: GPU) -> int:
    return sum(
        link.lanes
        for link in gpu.nvlinks or []
        if link.remote == "gpu" and other.pci and (link.pci or "").lower() == other.pci.lower()
    )


def _to(gpu: GPU, remote: str) -> int:
    return sum(link.lanes for link in gpu.nvlinks or [] if link.remote == remote)


def _hidden(gpu: GPU) -> int:
    return _to(gpu, "unknown")


def _peers(one: Handle, other: Handle) -> bool:
    """Whether the driver reaches one card from the other over NVLink."""
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)
