"""Where a shape of pods could be seated now, without asking twice about a node that has not changed.

A shape that fits nowhere is tried again only on rows whose version has changed since, so a step costs what changed
and not nodes × shapes. Besides the GPUs this looks at what the scheduler will look at: the pool, taints, selectors and
affinity, CPU and memory; and at what it refused before, which is kept for a while.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from _core import CONTENDED, LACKING, MEMORY_TOO_SMALL, MEMORY_UNKNOWN, fit
from extender.cluster.eligibility import Constraints, admits, depends_on_name
from extender.cluster.inventory import Inventory
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.place import fits, place

NEVER = (LACKING, MEMORY_UNKNOWN, MEMORY_TOO_SMALL)
"""Codes of rows that the request would not fit even if they were empty."""
_MOST_LOGGED = 8192
_FEW, _MANY = 16, 256
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
    strikes: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often it refused each, and until when that counts."""
    home: tuple[tuple[int, int], int | None] = ((-1, -1), None)
    """The first row that would hold such a pod if it were empty, and as of which looks of the nodes that was found."""
    homeless: bool = False
    """There was none when it was reckoned what such pods will be charged."""

    def untry(self) -> None:
        """Forget that it fitted nowhere."""
        self.tried = _ALL


class Room:
    """Follows the book's rows; `pool_of` names the pool of each node, None for none."""

    def __init__(self) -> None:
        self._pools: dict[str, str | None] = {}
        self._rows: dict[str, int] = {}
        self._known: dict[str, Inventory] = {}
        self._looks = 0
        self._versions = np.empty(0, np.int64)
        self._log: list[int] = []
        self._first = 0
        self._recent: tuple[tuple[int, int], Rows] = ((0, 0), np.empty(0, np.int32))
        self._eligible: dict[tuple[str | None, Constraints], Eligible] = {}
        self._shapes: dict[tuple[str | None, Constraints, Request], Shape] = {}

    # following

    def node(self, snapshot: Snapshot, name: str, pool: str | None) -> None:
        """The node is there and belongs to that pool."""
        inventory = snapshot.inventories[name]
        row = snapshot.index.get(name)
        self._rows[name], self._known[name], self._pools[name] = row, inventory, pool
        self._looks += 1
        for eligible in self._eligible.values():
            self._enter(eligible, row, self._is_eligible(name, eligible))
        self.touch(row)

    def node_gone(self, name: str) -> None:
        row = self._rows.pop(name, None)
        self._looks += 1
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

    def is_open(self, snapshot: Snapshot, shape: Shape, barred: Collection[int]) -> bool:
        """Whether one pod of the shape may fit on a row but the `barred`: not asked again till a row changes."""
        if self._first + len(self._log) - shape.tried > _MANY:
            return True
        rows = self._untried(shape)
        if len(rows) > _FEW or self._fitting(snapshot, shape, rows, barred):
            return True
        shape.tried = self._first + len(self._log)
        return False

    def find(
        self, snapshot: Snapshot, shape: Shape, barred: Collection[int], borrowed: bool | None = None
    ) -> int | None:
        """The best row for one pod of the shape but the `barred`; None: it fits on none till a row changes.

        `borrowed`: whether the pod's work can be asked back; None where no policy says so.
        """
        rows = self._untried(shape)
        if len(rows) > _FEW:
            out = [*barred, *(self._rows.get(node, -1) for node in shape.refused)]
            rows = rows[~np.isin(rows, out)] if out else rows
            row = self._best(snapshot, shape, rows, borrowed)
            # Most rows have the CPU and the memory, so that is asked of all only where the best has not.
            if row is not None and not self.fits(snapshot, shape, row):
                fed = rows[self._feeds(snapshot, shape.request, rows)]
                row = self._best(snapshot, shape, fed, borrowed)
        else:
            rows = np.array(self._fitting(snapshot, shape, rows, barred), np.int32)
            row = self._best(snapshot, shape, rows, borrowed)
        if row is None:
            shape.tried = self._first + len(self._log)
        return row

    def find_among(
        self, snapshot: Snapshot, shape: Shape, rows: Rows, barred: Collection[int], borrowed: bool | None
    ) -> int | None:
        """The same of these rows only, whatever was tried before."""
        allowed = [row for row in rows.tolist() if row not in barred and self.allows(shape, row)]
        rows = np.array(allowed, np.int32)
        return self._best(snapshot, shape, rows[self._feeds(snapshot, shape.request, rows)], borrowed)

    def _best(self, snapshot: Snapshot, shape: Shape, rows: Rows, borrowed: bool | None) -> int | None:
        """The best of the rows; those that the scheduler refused of late only if there is no other."""
        if shape.strikes and len(rows):
            struck = np.isin(rows, [self._rows.get(node, -1) for node in shape.strikes])
            row = self._best_of(snapshot, shape, rows[~struck], borrowed)
            return self._best_of(snapshot, shape, rows[struck], borrowed) if row is None else row
        return self._best_of(snapshot, shape, rows, borrowed)

    def _best_of(self, snapshot: Snapshot, shape: Shape, rows: Rows, borrowed: bool | None) -> int | None:
        if len(rows) == 1:
            return int(rows[0]) if self.fits(snapshot, shape, int(rows[0])) else None
        kept = place(snapshot, shape.request, rows, 1, borrowed).kept if len(rows) else rows
        return int(kept[0]) if len(kept) else None

    def _fitting(self, snapshot: Snapshot, shape: Shape, rows: Rows, barred: Collection[int]) -> list[int]:
        return [row for row in rows.tolist() if row not in barred and self.fits(snapshot, shape, row)]

    def fits(self, snapshot: Snapshot, shape: Shape, row: int) -> bool:
        """Whether one pod of the shape fits on that row now."""
        columns, request = snapshot.columns, shape.request
        if (
            not self.allows(shape, row)
            or columns.cpu[row] - columns.cpu_used[row] < request.cpu
            or columns.ram[row] - columns.ram_used[row] < request.memory
        ):
            return False
        ask = snapshot.ask(request)
        return ask is not None and fits(snapshot.table, row, ask) <= CONTENDED

    def rows_but(self, shape: Shape, nodes: Collection[str | None]) -> Rows:
        """The rows that such pods may use, without those of some nodes and those that the scheduler refused."""
        out = [self._rows[node] for node in (*nodes, *shape.refused) if node in self._rows]
        rows = shape.eligible.all()
        return rows[~np.isin(rows, out)] if out else rows

    def allows(self, shape: Shape, row: int) -> bool:
        """Whether the row is one of the pool that admits such pods and was not refused."""
        mask = shape.eligible.mask
        return row < len(mask) and bool(mask[row]) and row not in map(self._rows.get, shape.refused)

    def _untried(self, shape: Shape) -> Rows:
        if shape.tried < self._first:
            return shape.eligible.all()
        key = (shape.tried, self._first + len(self._log))
        if self._recent[0] != key:
            changed = np.unique(np.array(self._log[shape.tried - self._first :], np.int32))
            self._recent = (key, changed)
        return self._recent[1][shape.eligible.mask[self._recent[1]]]

    @staticmethod
    def _feeds(snapshot: Snapshot, request: Request, rows: Rows) -> NDArray[np.bool_]:
        """Whether each row has the CPU and the memory left that the pod asks for."""
        columns = snapshot.columns
        cpu = columns.cpu[rows] - columns.cpu_used[rows] >= request.cpu
        ram = columns.ram[rows] - columns.ram_used[rows] >= request.memory
        return np.asarray(cpu & ram)

    def home(self, snapshot: Snapshot, shape: Shape) -> int | None:
        """The first row that would hold a pod of the shape if it were empty; worked out once for nodes as they are."""
        looks = self._looks, snapshot.descriptions
        if shape.home[0] != looks:
            shape.home = looks, first_home(snapshot, shape)
        return shape.home[1]

    # what the scheduler refused

    def refuse(self, shape: Shape, node: str, now: float, first: float, most: float) -> None:
        """Leave the node alone for such pods: for `first` seconds, and each time for twice as long, up to `most`.

        A first refusal may be no more than a race: the scheduler learns of room a little later than the book. For
        `most` seconds more, the node is taken only if there is no other.
        """
        count, counts_until = shape.strikes.get(node, (0, now))
        count = count if now < counts_until else 0
        pause = min(first * 2**count, most)
        shape.strikes[node] = min(count + 1, 16), now + pause + most
        shape.refused[node] = now + pause

    def forgive(self, now: float) -> None:
        """Refusals that are old enough count no more."""
        for shape in self._shapes.values():
            shape.strikes = {node: strike for node, strike in shape.strikes.items() if now < strike[1]}
            for node in [node for node, until in shape.refused.items() if until <= now]:
                del shape.refused[node]
                if node in self._rows:
                    self.touch(self._rows[node])


def first_home(snapshot: Snapshot, shape: Shape) -> int | None:
    """The first row that would hold a pod of the shape if it were empty; None: none would."""
    rows = shape.eligible.all()
    ask = snapshot.ask(shape.request)
    if ask is None or not len(rows):
        return None
    columns, request = snapshot.columns, shape.request
    holds = (columns.cpu[rows] >= request.cpu) & (columns.ram[rows] >= request.memory)
    found = rows[holds & ~np.isin(fit(snapshot.table, rows, ask), NEVER)]
    return int(found[0]) if len(found) else None
