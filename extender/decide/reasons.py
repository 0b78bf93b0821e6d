"""Why a node is refused: one table of codes and sentences.

The scheduler groups equal sentences in its event and cuts it at 1,024 characters, so they name no node and no number.
A reason that evicting pods cannot mend is unresolvable: the scheduler's preemption then leaves the node alone.
"""

import json
from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from _core import (
    CLOSED,
    CONTENDED,
    FITS,
    LACKING,
    LINKS_TAKEN,
    LINKS_TOO_SLOW,
    LINKS_UNKNOWN,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    MEMORY_UNKNOWN,
    OCCUPIED,
    STALE,
    TAKEN,
    UNHEALTHY,
    UNKNOWN,
    WATERMARK,
)

UNCERTAIN = WATERMARK + 1
"""Not a kernel's code: the pod has a seat on another node, whose Binding may or may not have been written."""
PROMISED = UNCERTAIN + 1
"""The same: the planner keeps a seat for the pod on another node."""

SENTENCES: dict[int, str] = {
    UNKNOWN: "kvitej does not know this node yet",
    CLOSED: "closed by kvitej: something on the node cannot be read (see its log)",
    LACKING: "the node has fewer of the GPUs asked for than the pod needs",
    TAKEN: "the GPUs asked for are taken",
    MEMORY_UNKNOWN: "the node does not say how much memory its GPUs have (label nvidia.com/gpu.memory)",
    MEMORY_TOO_SMALL: "no GPU of the node has as much memory as the pod declares",
    MEMORY_TAKEN: "no GPU of the node has as much memory free as the pod declares",
    LINKS_UNKNOWN: "the node does not say how its GPUs are linked (annotation kvitej.io/links)",
    LINKS_TOO_SLOW: "the node's GPUs are not linked as well as the pod requires",
    LINKS_TAKEN: "the node's free GPUs are not linked as well as the pod requires",
    STALE: "the node's agent has not reported for too long, so kvitej places nothing there",
    UNHEALTHY: "a GPU that the kubelet could give the pod is not healthy",
    OCCUPIED: "a GPU that the kubelet could give the pod is used by processes that nobody scheduled",
    WATERMARK: "a GPU that the kubelet could give the pod would be filled beyond its watermark",
    UNCERTAIN: "the pod may be bound to another node already: waiting for that to be known",
    PROMISED: "kvitej keeps a seat for the pod on another node, the one that it nominated",
}

NAMES: dict[int, str] = {
    FITS: "fits",
    CONTENDED: "contended",
    UNKNOWN: "unknown_node",
    CLOSED: "closed",
    LACKING: "lacking",
    TAKEN: "taken",
    MEMORY_UNKNOWN: "memory_unknown",
    MEMORY_TOO_SMALL: "memory_too_small",
    MEMORY_TAKEN: "memory_taken",
    LINKS_UNKNOWN: "links_unknown",
    LINKS_TOO_SLOW: "links_too_slow",
    LINKS_TAKEN: "links_taken",
    STALE: "stale",
    UNHEALTHY: "unhealthy",
    OCCUPIED: "occupied",
    WATERMARK: "watermark",
    UNCERTAIN: "uncertain",
    PROMISED: "promised",
}

UNRESOLVABLE = frozenset(
    {
        *(LACKING, MEMORY_UNKNOWN, MEMORY_TOO_SMALL, LINKS_UNKNOWN, LINKS_TOO_SLOW),
        *(STALE, UNHEALTHY, OCCUPIED, UNCERTAIN, PROMISED),
    }
)


def fragments() -> list[bytes]:
    """The sentences as JSON strings, indexed by code, for the answer encoder."""
    return [json.dumps(SENTENCES.get(code, "")).encode() for code in range(max(SENTENCES) + 1)]


def mask(codes: Set[int]) -> int:
    """A bit per code."""
    return sum(1 << code for code in codes)


def tally(codes: NDArray[np.int8]) -> dict[str, int]:
    """How many rows have which reason, for the log."""
    counts = np.bincount(codes, minlength=len(NAMES))
    return {NAMES[code]: int(counts[code]) for code in range(len(NAMES)) if counts[code]}
