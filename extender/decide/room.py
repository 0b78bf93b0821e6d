"""Where a shape of pods could be seated now, without asking twice about a node that has not changed.

A shape that fits nowhere is tried again only on rows whose version has changed since, so a step costs what changed
and not nodes × shapes. Besides the GPUs this looks at what the scheduler will look at: the pool, taints, selectors and
affinity, CPU and memory; and at what it refused before, which is kept for a while.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from _core import CONTENDED, LACKING, MEMORY_TOO_SMALL, MEMORY_UNKNOWN, fit
from extender.cluster.eligibility import Constraints, admits, depends_on_name
from extender.cluster.inventory import Inventory
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.place import place

NEVER = (LACKING, MEMORY_UNKNOWN, MEMORY_TOO_SMALL)
"""Codes of rows that the request would not fit even if they were empty."""
_MOST_LOGGED = 8192
_FEW = 64
_ALL = -1

Rows = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Eligible:
    """The rows of a pool that admit pods with these constraints; None: the rows of every pool and of none."""

    pool: str | None
    constraints: Constraints
    mask: NDArray[np.bool_]
    rows: Rows | None = None

    def all(self) -> Rows:
        if self.rows is None:
            self.rows = np.flatnonzero(self.mask).astype(np.int32)
        return self.rows


@dataclass(slots=True, eq=False)
class Shape:
    """What pods that are alike ask for. `tried`: the position in the log of changes up to which nothing fits."""

    request: Request
    eligible: Eligible
    tried: int = _ALL
    refused: dict[str, float] = field(default_factory=dict)
    """Nodes that the scheduler refused, until when they are left alone."""


class Room:
    """Follows the book's rows; `pool_of` names the pool of each node, None for none."""

    def __init__(self) -> None:
        self._pools: dict[str, str | None] = {}
        self._rows: dict[str, int] = {}
        self._known: dict[str, Inventory] = {}
        self._versions = np.empty(0, np.int64)
        self._log: list[int] = []
        self._first = 0
        self._eligible: dict[tuple[str | None, Constraints], Eligible] = {}
        self._shapes: dict[tuple[str | None, Constraints, Request], Shape] = {}

    # following

    def node(self, snapshot: Snapshot, name: str, pool: str | None) -> None:
        """The node is there and belongs to that pool."""
        inventory = snapshot.inventories[name]
        row = snapshot.index.get(name)
        self._rows[name], self._known[name], self._pools[name] = row, inventory, pool
        for eligible in self._eligible.values():
            self._enter(eligible, row, self._is_eligible(name, eligible))
        self.touch(row)

    def node_gone(self, name: str) -> None:
        row = self._rows.pop(name, None)
        self._known.pop(name, None)
        self._pools.pop(name, None)
        if row is not None:
            for eligible in self._eligible.values():
                self._enter(eligible, row, False)

    def knows(self, name: str, inventory: Inventory) -> bool:
        """Whether the node is followed as it is."""
        return self._known.get(name) is inventory

    def renew(self, snapshot: Snapshot) -> list[int]:
        """The rows that have changed since the last call or `seen`."""
        versions = snapshot.columns.version
        if len(versions) != len(self._versions):
            grown = np.zeros(len(versions), np.int64)
            grown[: len(self._versions)] = self._versions
            self._versions = grown
            for eligible in self._eligible.values():
                mask = np.zeros(len(versions), np.bool_)
                mask[: len(eligible.mask)] = eligible.mask
                eligible.mask = mask
        changed: list[int] = np.flatnonzero(versions != self._versions).tolist()
        if changed:
            self._versions[changed] = versions[changed]
            self._log += changed
        if len(self._log) > _MOST_LOGGED:
            gone = len(self._log) - _MOST_LOGGED // 2
            self._log, self._first = self._log[gone:], self._first + gone
        return changed

    def seen(self, snapshot: Snapshot, row: int) -> None:
        """The row has changed by the planner's own hand and has less room now."""
        self._versions[row] = snapshot.columns.version[row]

    def touch(self, row: int) -> None:
        """Something about the row has changed that its version does not tell."""
        self._log.append(row)

    # shapes

    def shape(self, pool: str | None, request: Request, constraints: Constraints) -> Shape:
        """The one object for pods that are alike."""
        key = (pool, constraints, request)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(request, self._eligible_of(pool, constraints))
        return shape

    def forget(self, live: Callable[[Shape], bool]) -> None:
        """Drop the shapes that nobody needs, and what was kept for them alone."""
        self._shapes = {key: shape for key, shape in self._shapes.items() if live(shape) or shape.refused}
        used = {id(shape.eligible) for shape in self._shapes.values()}
        self._eligible = {key: each for key, each in self._eligible.items() if id(each) in used}

    def __len__(self) -> int:
        return len(self._shapes)

    def _eligible_of(self, pool: str | None, constraints: Constraints) -> Eligible:
        found = self._eligible.get((pool, constraints))
        if found is None:
            found = Eligible(pool, constraints, np.zeros(len(self._versions), np.bool_))
            alike: dict[int, bool] = {}
            for name, inventory in self._known.items():
                traits = inventory.traits
                if pool is not None and self._pools[name] != pool:
                    continue
                admitted = alike.get(id(traits))
                if admitted is None:
                    admitted = admits(traits, constraints, name)
                    if not depends_on_name(traits, constraints):
                        alike[id(traits)] = admitted
                found.mask[self._rows[name]] = admitted
            self._eligible[pool, constraints] = found
        return found

    def _is_eligible(self, name: str, eligible: Eligible) -> bool:
        if eligible.pool is not None and self._pools[name] != eligible.pool:
            return False
        return admits(self._known[name].traits, eligible.constraints, name)

    @staticmethod
    def _enter(eligible: Eligible, row: int, admitted: bool) -> None:
        if row >= len(eligible.mask):
            mask = np.zeros(max(row + 1, 2 * len(eligible.mask)), np.bool_)
            mask[: len(eligible.mask)] = eligible.mask
            eligible.mask = mask
        if eligible.mask[row] != admitted:
            eligible.mask[row] = admitted
            eligible.rows = None

    # asking

    def find(self, snapshot: Snapshot, shape: Shape, barred: Iterable[int]) -> int | None:
        """The best row for one pod of the shape but the `barred`; None: it fits on none, till a row changes."""
        rows = self._untried(shape)
        if len(rows):
            rows = rows[self._feeds(snapshot, shape.request, rows)]
            out = {*barred, *(self._rows.get(node, -1) for node in shape.refused)}
            if out and len(rows):
                rows = rows[~np.isin(rows, list(out))]
            if len(rows) and (len(rows) > _FEW or self._any_fits(snapshot, shape.request, rows)):
                kept = place(snapshot, shape.request, rows, 1).kept
                if len(kept):
                    return int(kept[0])
        shape.tried = self._first + len(self._log)
        return None

    @staticmethod
    def _any_fits(snapshot: Snapshot, request: Request, rows: Rows) -> bool:
        """Spares the judgement of all rows when few have changed and none of them fits."""
        ask = snapshot.ask(request)
        return ask is not None and bool(fit(snapshot.table, rows, ask).min() <= CONTENDED)

    def fits(self, snapshot: Snapshot, shape: Shape, row: int) -> bool:
        """Whether one pod of the shape fits on that row now."""
        rows = np.array([row], np.int32)
        ask = snapshot.ask(shape.request)
        return (
            ask is not None
            and self.allows(shape, row)
            and bool(self._feeds(snapshot, shape.request, rows)[0])
            and int(fit(snapshot.table, rows, ask)[0]) <= CONTENDED
        )

    def allows(self, shape: Shape, row: int) -> bool:
        """Whether the row is one of the pool that admits such pods and was not refused."""
        mask = shape.eligible.mask
        return row < len(mask) and bool(mask[row]) and row not in map(self._rows.get, shape.refused)

    def _untried(self, shape: Shape) -> Rows:
        if shape.tried < self._first:
            return shape.eligible.all()
        changed = self._log[shape.tried - self._first :]
        if not changed:
            return np.empty(0, np.int32)
        rows = np.array(sorted(set(changed)), np.int32)
        return rows[shape.eligible.mask[rows]]

    @staticmethod
    def _feeds(snapshot: Snapshot, request: Request, rows: Rows) -> NDArray[np.bool_]:
        """Whether each row has the CPU and the memory left that the pod asks for."""
        columns = snapshot.columns
        cpu = columns.cpu[rows] - columns.cpu_used[rows] >= request.cpu
        ram = columns.ram[rows] - columns.ram_used[rows] >= request.memory
        return np.asarray(cpu & ram)

    # what the scheduler refused

    def refuse(self, shape: Shape, node: str, until: float) -> None:
        shape.refused[node] = until

    def forgive(self, now: float) -> None:
        """Refusals that are old enough count no more."""
        for shape in self._shapes.values():
            for node in [node for node, until in shape.refused.items() if until <= now]:
                del shape.refused[node]
                if node in self._rows:
                    self.touch(self._rows[node])


def never_fits(snapshot: Snapshot, shape: Shape) -> bool:
    """Whether no node that may take such pods would hold one even when empty."""
    rows = shape.eligible.all()
    ask = snapshot.ask(shape.request)
    if ask is None or not len(rows):
        return True
    columns, request = snapshot.columns, shape.request
    holds = (columns.cpu[rows] >= request.cpu) & (columns.ram[rows] >= request.memory)
    return not bool((holds & ~np.isin(fit(snapshot.table, rows, ask), NEVER)).any())
