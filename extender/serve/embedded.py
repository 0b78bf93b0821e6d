"""Serves a cluster from a file: its workload is played over the verbs, which then stay open for whoever calls them."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count

import aiohttp
import uvloop
from rich.console import Console

from extender import log
from extender.cluster.events import Elapsed
from extender.cluster.state import ClusterState
from extender.config import Config
from extender.decide.report import shares_of
from extender.decide.waits import Wait
from extender.serve.book import Book, new_state
from extender.serve.doors import Doors
from extender.serve.listening import listening, stop_signal
from extender.serve.metrics import Metrics
from extender.serve.waiting import WaitDoor
from extender.simulate import clusterfile
from extender.simulate.admission import Admission
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster
from extender.simulate.clusterfile import ClusterFile, numbered
from extender.simulate.player import Player
from extender.simulate.policyfile import read_policies
from extender.simulate.scheduler import PlayError, Scheduler
from extender.simulate.screen import PIPED_WIDTH, Screen
from extender.simulate.story import Step
from extender.wire.shares import Shares

_WATCHED = 6.0
"""Seconds over which the steps are spread when somebody watches them on a terminal."""


def serve_cluster(
    cluster: str, config: Config, *, host: str, port: int, http: tuple[str, int], once: bool
) -> None:
    """Play the cluster of a shipped name or a path, and serve on unless `once`.

    Raises
    ------
    FileError
        There is no such cluster, or its file cannot be taken as meant.
    SystemExit
        With status 1 if the play went otherwise than its file expects.
    """
    file = clusterfile.find(cluster)
    # The table tells each decision; the log would tell it again between the rows.
    log.setup(config.log.level if config.log.level in ("debug", "error") else "warning", config.log.format)
    if not uvloop.run(_serve(file, config, host, port, http, once)):
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class Embedded:
    """Both listeners are open, the nodes are there, the policies are read, and the play can begin."""

    state: ClusterState
    book: Book
    cluster: EmbeddedCluster
    scheduler: Scheduler
    wait: WaitDoor
    clock: Clock
    verbs_at: str
    http_at: str

    def player(self, file: ClusterFile, show: Callable[[Step], Awaitable[None]]) -> Player:
        player = Player(
            file,
            self.cluster,
            self.scheduler,
            self,
            self.book.apply,
            self.state.snapshot,
            show,
            self.clock,
        )
        self.book.hear(player.hear, shows=player.SHOWN)
        return player

    async def settle(self) -> None:
        """Plan for the moment that it is, until all that was decided is carried out."""
        self.book.apply(Elapsed(self.clock()))
        self.wait.tick()
        await self.wait.settle()

    def explain(self, uid: str) -> Wait:
        """Why a waiting pod waits."""
        assert self.wait.planner is not None
        return self.wait.planner.explain(uid)

    def shares(self) -> Shares:
        """Who has what now."""
        assert self.wait.planner is not None
        return shares_of(self.wait.planner, self.state.snapshot(), self.wait.fairness, self.clock())


@contextlib.asynccontextmanager
async def embedded(
    file: ClusterFile, config: Config, host: str, port: int, http: tuple[str, int]
) -> AsyncIterator[Embedded]:
    """An embedded cluster with the nodes and the policies of `file`, served as a real one is."""
    state = new_state(config)
    book, clock = Book(state), Clock()
    metrics = Metrics(book.snapshot, lambda: ())
    cluster = EmbeddedCluster(book.apply, clock)
    doors = Doors(book, config, metrics, cluster, cluster, clock=clock, wall=clock.wall)
    wait = doors.wait
    cluster.admission = Admission(doors.reviews.mutate, doors.reviews.validate)
    for kind in file.nodes:
        for name in numbered(kind.name, kind.count):
            cluster.add_node(name, kind.labels, kind.allocatable)
    wait.namespaces({tenant: {} for tenant in file.tenants})
    wait.policies(read_policies(file.policies))
    wait.begin({})
    async with (
        listening(doors.operations, *http) as http_at,
        listening(doors.verbs, host, port) as verbs_at,
        aiohttp.ClientSession(verbs_at) as session,
    ):
        yield Embedded(state, book, cluster, Scheduler(session, cluster), wait, clock, verbs_at, http_at)


async def _serve(
    file: ClusterFile, config: Config, host: str, port: int, http: tuple[str, int], once: bool
) -> bool:
    """Whether the play went as the file expects; who interrupts it, or serves on after it, is not told."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    screen = Screen(console, file)
    stopped = stop_signal()
    async with embedded(file, config, host, port, http) as running:
        playing = asyncio.create_task(_play(file, running, screen, _WATCHED if console.is_terminal else 0.0))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            await asyncio.wait({playing})
            return True
        fault = playing.result()
        if fault:
            print(f"kvitej: {fault}", file=sys.stderr)
        if once:
            stopping.cancel()
            return not fault
        log.setup(config.log.level, config.log.format)
        screen.say(
            f"kvitej serves the verbs at {running.verbs_at}, shares, health and metrics at {running.http_at}; "
            "the clock of the play stands still. Ctrl-C ends.",
            "bold",
        )
        await stopping
    return True


async def _play(file: ClusterFile, running: Embedded, screen: Screen, seconds: float) -> str:
    """Play to the end, spread over some `seconds`; says what went otherwise than the file expects."""
    # Of a pod, one to six steps are shown: that it waits, is released, bound, moved, evicted, or ends.
    pause = seconds / (2 * sum(kind.count for kind in file.pods) or 1)
    started, turns = time.monotonic(), count(1)

    async def show(step: Step) -> None:
        screen.step(step)
        await asyncio.sleep(started + next(turns) * pause - time.monotonic())

    player = running.player(file, show)
    try:
        screen.head()
        await player.play()
        screen.summary(player, running.state.snapshot(), running.shares())
    except PlayError as error:
        return f"The play ended early: {error}"
    except SystemExit:  # rich's way to say that the output is a pipe which was closed
        return "The play ended early: nobody reads its output any more."
    return player.unexpected()
