"""What a decision reads: the book as of one moment, for one synchronous decision.

It shares the book's arrays, so it costs nothing to take and must not be kept across an `apply`: decisions never
await, and whoever needs a what-if works on `table.copy_row`.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

from _core import Ask, Demand, NameIndex, Table
from extender.cluster.columns import Columns
from extender.cluster.inventory import Inventory
from extender.cluster.judgements import Judgement
from extender.cluster.reported import Report
from extender.cluster.request import Request
from extender.cluster.seats import Seat, SoftClaim
from extender.wire.objects import Pod


@dataclass(slots=True)
class Waiting:
    """A GPU pod without a node. `nudged` is the book's `room` when it was last woken."""

    pod: Pod
    nudged: int = 0


T_co = TypeVar("T_co", covariant=True)


class OfRequest(Protocol[T_co]):
    """`borrowed`: whether the pod's work can be asked back; None where no policy says so."""

    def __call__(self, request: Request, borrowed: bool | None = None) -> T_co: ...


# Not frozen: one is made after each event, and a frozen one takes longer to make.
@dataclass(slots=True)
class Snapshot:
    """Rows of `table` are nodes; `index` names them; `columns` says more of them than the kernels read.

    `generation` counts events, `room` those that made room, `descriptions` how often what nodes could hold when empty
    was learnt.
    """

    columns: Columns
    index: NameIndex
    inventories: Mapping[str, Inventory]
    ids: Mapping[str, int]
    seats: Mapping[str, Seat]
    seats_by_node: Mapping[str, Mapping[str, Seat]]
    claims: Mapping[str, SoftClaim]
    waiting: Mapping[str, Waiting]
    past_us: Set[str]
    worst_case: Set[str]
    unlisted: Mapping[str, Set[str]]
    reports: Mapping[str, Report]
    unreadable: Mapping[str, str]
    """By node, why the newest report can't be read."""
    watermarks: Mapping[str, float]
    """Of nodes whose cards may be filled otherwise than to `watermark`."""
    watermark: float
    generation: int
    room: int
    descriptions: int
    ask: OfRequest[Ask | None]
    """The request in the kernels' terms; None when it names a resource that no node has."""
    demand: Callable[[], Demand]
    """The pods that are to come, as far as the book knows."""
    judge: OfRequest[Judgement | None]
    """Code and score of every row for the request; None as above."""

    @property
    def table(self) -> Table:
        """The columns for the kernels; kinds of nodes may be learned while one decides."""
        return self.columns.table
