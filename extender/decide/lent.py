"""What may be asked back: one record per running GPU pod, and the same as columns.

A reclaim looks at every pod that runs, so the planner keeps these beside the book: a record comes when a pod is bound
(or what it says of itself changes) and goes with its seat. Columns are parallel, without gaps, in no order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from extender.cluster.assignment import Cards
from extender.cluster.request import Request

MICRO = 1_000_000
"""GPU units are compared as whole millionths, so that sums do not depend on their order."""
NO_BUDGET, TWO_BUDGETS = -1, -2
"""Instead of a disruption budget's number: none covers the pod, or more than one, and then no eviction is granted."""

_COLUMNS = {
    **dict.fromkeys(("node", "tenant", "shape", "pdb", "priority"), np.int32),
    **dict.fromkeys(("started", "saved", "interval"), np.float64),
    **dict.fromkeys(("whole", "shared"), np.uint64),
    **dict.fromkeys(("preemptible", "vague"), np.bool_),
    "units": np.int64,
}
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running pod as a reclaim sees it; times are seconds of the caller's clock.

    `cards` are those of its seat. `checkpoint` is when it last saved its work and `interval` how often it does; None
    where it does not say. `pdbs` are the disruption budgets that cover it.
    """

    uid: str
    node: str
    tenant: str
    request: Request
    units: float
    started: float
    cards: Cards | None = None
    priority: int = 0
    preemptible: bool = True
    interval: float | None = None
    checkpoint: float | None = None
    pdbs: tuple[str, ...] = ()


class Numbers(Generic[_Key]):
    """A small number for each key that somebody holds; `keys[number]` is the key, None where vacant."""

    def __init__(self) -> None:
        self.keys: list[_Key | None] = []
        self._numbers: dict[_Key, int] = {}
        self._held: list[int] = []
        self._vacant: list[int] = []

    def take(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            if not self._vacant:
                self._vacant.append(len(self.keys))
                self.keys.append(None)
                self._held.append(0)
            number = self._numbers[key] = self._vacant.pop()
            self.keys[number] = key
        self._held[number] += 1
        return number

    def leave(self, number: int) -> None:
        self._held[number] -= 1
        key = self.keys[number]
        if not self._held[number] and key is not None:
            del self._numbers[key]
            self.keys[number] = None
            self._vacant.append(number)


class Lent:
    """Candidates by uid, and their columns.

    `node`, `tenant`, `shape` (of devices) and `pdb` are numbers, whose keys stand in `nodes`, `tenants`, `shapes` and
    `budgets`. `whole` and `shared` have a bit per card; where `vague`, they do not tell all that the pod holds.
    """

    node: NDArray[np.int32]
    tenant: NDArray[np.int32]
    shape: NDArray[np.int32]
    pdb: NDArray[np.int32]
    priority: NDArray[np.int32]
    started: NDArray[np.float64]
    saved: NDArray[np.float64]
    interval: NDArray[np.float64]
    whole: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    preemptible: NDArray[np.bool_]
    vague: NDArray[np.bool_]
    units: NDArray[np.int64]

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self.nodes: Numbers[str] = Numbers()
        self.tenants: Numbers[str] = Numbers()
        self.shapes: Numbers[tuple[tuple[str, int], ...]] = Numbers()
        self.budgets: Numbers[str] = Numbers()
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(64, kind) for name, kind in _COLUMNS.items()}
        self._candidates: list[Candidate] = []
        self._at: dict[str, int] = {}
        self._show()
        for candidate in candidates:
            self.put(candidate)

    def __len__(self) -> int:
        return len(self._candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates)

    def get(self, uid: str) -> Candidate | None:
        at = self._at.get(uid)
        return None if at is None else self._candidates[at]

    def __getitem__(self, at: int) -> Candidate:
        return self._candidates[at]

    def put(self, candidate: Candidate) -> None:
        """Add a pod, or change what is known of it."""
        self.drop(candidate.uid)
        at = len(self._candidates)
        if at == len(self._columns["units"]):
            self._columns = {
                name: np.concatenate((column, np.zeros_like(column)))
                for name, column in self._columns.items()
            }
        self._candidates.append(candidate)
        self._at[candidate.uid] = at
        for name, value in self._row(candidate).items():
            self._columns[name][at] = value
        self._show()

    def drop(self, uid: str) -> None:
        """The pod is gone; unknown ones are none of ours."""
        at = self._at.pop(uid, None)
        if at is None:
            return
        columns = self._columns
        for numbers, name in ((self.nodes, "node"), (self.tenants, "tenant"), (self.shapes, "shape")):
            numbers.leave(int(columns[name][at]))
        if columns["pdb"][at] >= 0:
            self.budgets.leave(int(columns["pdb"][at]))
        last = self._candidates.pop()
        end = len(self._candidates)
        if at != end:
            self._candidates[at] = last
            self._at[last.uid] = at
            for column in columns.values():
                column[at] = column[end]
        self._show()

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        cards = candidate.cards or Cards()
        pdb = TWO_BUDGETS if len(candidate.pdbs) > 1 else NO_BUDGET
        saved = candidate.checkpoint if candidate.checkpoint is not None else candidate.started
        return {
            "node": self.nodes.take(candidate.node),
            "tenant": self.tenants.take(candidate.tenant),
            "shape": self.shapes.take(candidate.request.devices),
            "pdb": self.budgets.take(candidate.pdbs[0]) if len(candidate.pdbs) == 1 else pdb,
            "priority": candidate.priority,
            "started": candidate.started,
            "saved": max(saved, candidate.started),
            # What is reported is believed before what is expected.
            "interval": candidate.interval if candidate.interval and candidate.checkpoint is None else 0.0,
            "whole": sum(1 << card for card in cards.whole),
            "shared": sum(1 << card for card in set(cards.shared)),
            "preemptible": candidate.preemptible,
            "vague": candidate.cards is None or len(cards.shared) > 1,
            "units": round(candidate.units * MICRO),
        }

    def _show(self) -> None:
        for name, column in self._columns.items():
            setattr(self, name, column[: len(self._candidates)])

    def lost(self, now: float, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """GPU-seconds of work done since it was last saved, whole ones; all of it where nothing is ever saved.

        Of the candidates at these positions.
        """
        seconds, interval = np.maximum(now - self.saved[at], 0.0), self.interval[at]
        periodic = interval > 0
        seconds[periodic] %= interval[periodic]
        return np.rint(self.units[at] / MICRO * seconds).astype(np.int64)

    def ran(self, now: float, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole seconds since the start, of the candidates at these positions."""
        return np.rint(np.maximum(now - self.started[at], 0.0)).astype(np.int64)
