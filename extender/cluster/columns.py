"""The book's numpy columns: rectangular, nodes × the most cards of any node, grown by doubling, rows reused.

`Columns` owns the arrays and hands them to the native kernels as one `_core.Table`, rebuilt only when they grow.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from _core import Hardware, Table

_NODE = {
    "state": np.int8,
    "mode": np.int8,
    "cards": np.int32,
    "replicas": np.int32,
    "opaque": np.int32,
    "order": np.uint32,
    "soft": np.int32,
    "cpu": np.int64,
    "cpu_used": np.int64,
    "part": np.int32,
    "geometry": np.int32,
    "misplaced": np.int32,
    "topology": np.int32,
    "lent": np.int32,
    "choice": np.int8,
    "measured": np.int8,
    "loose_memory": np.int64,
}
_RESOURCE = {"allocatable": np.int64, "used": np.int64, "used_soft": np.int64}
_CARD = {
    "memory": np.int64,
    "memory_used": np.int64,
    "memory_soft": np.int64,
    "shares": np.int32,
    "shares_soft": np.int32,
    "exclusive": np.int32,
    "exclusive_soft": np.int32,
    "slices": np.int32,
    "slices_soft": np.int32,
    "extra": np.int64,
    "given": np.int32,
    "given_memory": np.int64,
    "trouble": np.int8,
}
_BOOK = {"ram": np.int64, "ram_used": np.int64, "version": np.int64}
"""Columns that no kernel reads: bytes, and the number of changes of the row."""

_BOOK_CARD = {"borrowed": np.int32}
"""By card, which no kernel reads: its holders whose work is borrowed, each share for itself."""

_NONE = {"slices": -1}
"""What stands for nothing where 0 means something."""

OPEN, VACANT, CLOSED, STALE = 0, 1, 2, 3


class Columns:
    """`table` for the kernels; the same arrays as attributes for the book, which alone writes them.

    Shapes: node columns [N], resource columns [N, R], card columns [N, G].
    """

    state: NDArray[np.int8]
    mode: NDArray[np.int8]
    cards: NDArray[np.int32]
    replicas: NDArray[np.int32]
    opaque: NDArray[np.int32]
    order: NDArray[np.uint32]
    soft: NDArray[np.int32]
    cpu: NDArray[np.int64]
    cpu_used: NDArray[np.int64]
    allocatable: NDArray[np.int64]
    used: NDArray[np.int64]
    used_soft: NDArray[np.int64]
    memory: NDArray[np.int64]
    memory_used: NDArray[np.int64]
    memory_soft: NDArray[np.int64]
    shares: NDArray[np.int32]
    shares_soft: NDArray[np.int32]
    exclusive: NDArray[np.int32]
    exclusive_soft: NDArray[np.int32]
    part: NDArray[np.int32]
    geometry: NDArray[np.int32]
    misplaced: NDArray[np.int32]
    topology: NDArray[np.int32]
    lent: NDArray[np.int32]
    slices: NDArray[np.int32]
    slices_soft: NDArray[np.int32]
    choice: NDArray[np.int8]
    measured: NDArray[np.int8]
    loose_memory: NDArray[np.int64]
    extra: NDArray[np.int64]
    given: NDArray[np.int32]
    given_memory: NDArray[np.int64]
    trouble: NDArray[np.int8]
    borrowed: NDArray[np.int32]
    ram: NDArray[np.int64]
    ram_used: NDArray[np.int64]
    version: NDArray[np.int64]

    NAMES = (*_NODE, *_RESOURCE, *_CARD, *_BOOK, *_BOOK_CARD)

    def __init__(self, nodes: int = 64, cards: int = 8, resources: int = 8) -> None:
        self._shape = (0, cards, resources)
        for name, dtype in {**_NODE, **_BOOK}.items():
            setattr(self, name, np.zeros(0, dtype))
        for name, dtype in _RESOURCE.items():
            setattr(self, name, np.zeros((0, resources), dtype))
        for name, dtype in {**_CARD, **_BOOK_CARD}.items():
            setattr(self, name, np.zeros((0, cards), dtype))
        self._free: list[int] = []
        self._hardware = Hardware.none(resources)
        self._resize(nodes, cards, resources)

    def take_row(self) -> int:
        """A vacant row, the lowest that is free."""
        if not self._free:
            nodes, cards, resources = self._shape
            self._resize(nodes * 2, cards, resources)
        return self._free.pop()

    def free_row(self, row: int) -> None:
        """Empty the row and give it back."""
        self.clear(row)
        self.state[row] = VACANT
        self._free.append(row)

    def clear(self, row: int) -> None:
        """Set all of the row to nothing but its version, which never goes back."""
        for name in self.NAMES:
            if name != "version":
                getattr(self, name)[row] = _NONE.get(name, 0)
        self.version[row] += 1

    def want(self, cards: int, resources: int) -> None:
        """Make room for nodes with that many cards and for that many resource names."""
        nodes, had_cards, had_resources = self._shape
        if cards > had_cards or resources > had_resources:
            self._resize(nodes, _room(had_cards, cards), _room(had_resources, resources))

    def _resize(self, nodes: int, cards: int, resources: int) -> None:
        had = self._shape[0]
        for name in (*_NODE, *_BOOK):
            _grow(self, name, (nodes,))
        for name in _RESOURCE:
            _grow(self, name, (nodes, resources))
        for name in (*_CARD, *_BOOK_CARD):
            _grow(self, name, (nodes, cards))
        self.state[had:] = VACANT
        self._free[:0] = range(nodes - 1, had - 1, -1)
        self._shape = (nodes, cards, resources)
        self.equip(_widened(self._hardware, resources))

    def equip(self, hardware: Hardware) -> None:
        """Let `geometry` and `topology` mean the tables of `hardware`, which is for as many resources."""
        self._hardware = hardware
        arrays = {name: getattr(self, name) for name in (*_NODE, *_RESOURCE, *_CARD)}
        self.table = Table(**arrays, hardware=hardware)


def _grow(columns: Columns, name: str, shape: tuple[int, ...]) -> None:
    old: NDArray[Any] = getattr(columns, name)
    new = np.full(shape, _NONE.get(name, 0), old.dtype)
    new[tuple(slice(size) for size in old.shape)] = old
    setattr(columns, name, new)


def _widened(hardware: Hardware, resources: int) -> Hardware:
    """For more resources, of which nothing is known yet."""
    more = resources - hardware.kinds
    return Hardware(
        slices=hardware.slices,
        profiles=np.pad(hardware.profiles, ((0, 0), (0, more)), constant_values=-1),
        units=hardware.units,
        links=hardware.links,
        offers=hardware.offers,
        parts=np.pad(hardware.parts, (0, more)),
    )


def _room(had: int, wanted: int) -> int:
    while had < wanted:
        had *= 2
    return had
