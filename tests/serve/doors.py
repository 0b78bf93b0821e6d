"""The doors over a book and an API server in memory, without any HTTP."""

import asyncio
from dataclasses import dataclass, field

from extender.cluster.events import BindResult, Outcome, PodSeen
from extender.cluster.state import ClusterState
from extender.config import Cards, Config
from extender.serve.book import Book
from extender.serve.metrics import Metrics
from extender.serve.placing import PlaceDoor
from extender.serve.seating import SeatDoor
from extender.wire.devices import ANNOTATION
from extender.wire.extender import BindingArgs
from extender.wire.objects import Node, Pod
from tests.builders import Json, book, read_pod

BOUND = BindResult(Outcome.BOUND)


@dataclass
class MemoryServer:
    """The writer that the doors call: pods as they are stored, and how the next writes end.

    `results` are used up one by one, after them every write is answered BOUND; what is not REFUSED is written, unless
    `lost` says so. While `open` is clear, writes wait.
    """

    pods: dict[str, Json] = field(default_factory=dict)
    results: list[BindResult] = field(default_factory=list)
    lost: bool = False
    reachable: bool = True
    open: asyncio.Event = field(default_factory=asyncio.Event)
    writes: list[tuple[str, str]] = field(default_factory=list)
    reads: int = 0

    def __post_init__(self) -> None:
        self.open.set()

    def put(self, raw: Json) -> None:
        self.pods[raw["metadata"]["name"]] = raw

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult:
        self.writes.append((name, node))
        await self.open.wait()
        result = self.results.pop(0) if self.results else BOUND
        if result.outcome is not Outcome.REFUSED and not self.lost and name in self.pods:
            raw = self.pods[name]
            raw["spec"]["nodeName"] = node
            raw["metadata"]["annotations"].update(annotations)
        return result

    async def read(self, namespace: str, name: str) -> Pod | None:
        self.reads += 1
        if not self.reachable:
            raise ConnectionError("connection refused")
        return read_pod(self.pods[name]) if name in self.pods else None


class Doors:
    """All that the two doors need. `unfit` is what the book says of itself, `vetoes` who was told no and why."""

    def __init__(self, *nodes: Node, config: Config | None = None) -> None:
        self.config = config or Config(cards=Cards(watermark=100))
        self.unfit: str | None = None
        self.state: ClusterState = book(*nodes, config=self.config)
        self.server = MemoryServer()
        self.vetoes: list[tuple[str, str]] = []
        self.book = Book(self.state, lambda: self.unfit)
        self.metrics = Metrics(
            self.book.snapshot, lambda: [("lag_seconds", "pods", 0.5), ("gone_total", "pods", 2)]
        )
        self.place = PlaceDoor(self.book, self.config, self.metrics)
        self.seat = SeatDoor(self.book, self.server, self.config, self.metrics, self._vetoed)

    def see(self, raw: Json) -> None:
        """The pod exists, and the watch has told so."""
        self.server.put(raw)
        self.state.apply(PodSeen(read_pod(raw)))

    def record(self, name: str) -> str | None:
        found: str | None = self.server.pods[name]["metadata"]["annotations"].get(ANNOTATION)
        return found

    def counted(self, verb: str, outcome: str) -> float:
        labels = {"verb": verb, "outcome": outcome}
        return self.metrics.registry.get_sample_value("kvitej_decisions_total", labels) or 0.0

    def _vetoed(self, args: BindingArgs, reason: str) -> None:
        self.vetoes.append((args.name, reason))
