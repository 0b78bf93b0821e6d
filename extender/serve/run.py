"""Puts the parts together and runs them until told to stop: for a real cluster, or for one from a file."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from extender.cluster.events import Elapsed, NodeSeen, Nudged, PodSeen
from extender.cluster.notices import Moved, Notice
from extender.config import Config
from extender.decide.instructions import Ref
from extender.decide.wake import to_nudge
from extender.serve.book import Book, new_state
from extender.serve.doors import Doors
from extender.serve.listening import Webhook, listening, reviewing, stop_signal
from extender.serve.metrics import Metrics
from extender.serve.statuses import StatusWriter, statuses_in
from extender.serve.tokens import ByToken
from extender.serve.waiting import WaitDoor
from extender.wire.extender import BindingArgs
from extender.wire.objects import Node, ObjectMeta, Pod, PodSpec

if TYPE_CHECKING:
    from extender.kube.agents import Agents
    from extender.kube.feed import Feed
    from extender.kube.resource import Unreadable
    from extender.kube.surroundings import Surroundings
    from extender.kube.writer import Writer
    from extender.serve.policies import PolicyReader

log = structlog.get_logger()

NUDGED_AT_ONCE = 64
_GC_THRESHOLDS = (20_000, 20, 50)
"""A burst makes objects by the thousand that end by themselves; looking for cycles among them is for nothing."""


def serve_kubernetes(
    kubeconfig: str,
    config: Config,
    *,
    host: str,
    port: int,
    http: tuple[str, int],
    webhook: Webhook | None = None,
) -> None:
    """The extender for a real cluster; `kubeconfig` is a file, or `in-cluster` for the pod's service account."""
    path = None if kubeconfig == "in-cluster" else Path(kubeconfig)
    uvloop.run(_serve_kubernetes(path, config, host, port, http, webhook))


async def _serve_kubernetes(
    kubeconfig: Path | None,
    config: Config,
    host: str,
    port: int,
    http: tuple[str, int],
    webhook: Webhook | None,
) -> None:
    from extender.kube.access import Access
    from extender.kube.agents import Agents
    from extender.kube.client import connect
    from extender.kube.feed import Feed
    from extender.kube.recorder import Recorder
    from extender.kube.releaser import Releaser
    from extender.kube.surroundings import Surroundings
    from extender.kube.writer import Writer
    from extender.serve.policies import PolicyReader

    gc.set_threshold(*_GC_THRESHOLDS)
    stopped = stop_signal()

    def unfit() -> str | None:
        if not (feed.synced and agents.synced):
            return "kvitej's book is not synced with the API server yet: try again in a moment"
        stale = feed.stale_for(time.monotonic())
        if stale > config.watch.stale_after:
            return f"kvitej has had no watch on the API server for {stale:.0f} s, so its book is stale"
        if wait.planner is None:
            return (
                "kvitej has not read policies and namespaces from the API server yet: try again in a moment"
            )
        return None

    book = Book(new_state(config), unfit)
    async with await connect(kubeconfig) as client:
        feed = Feed(client, book.apply, lambda found: book.apply(_closing(found)))
        agents = Agents(client, book.apply)
        writer = Writer(client, config.bind.timeout)
        recorder = Recorder(client)
        metrics = Metrics(book.snapshot, lambda: _watch_numbers(feed))

        def tell(reason: str, pod: BindingArgs | Ref | Moved, why: str, type: str = "Warning") -> None:  # noqa: A002
            """Record an Event on the pod."""
            message = f"kvitej: {why}"
            recorder.record(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, reason=reason, message=message, type=type
            )

        def heard(notice: Notice) -> None:
            if isinstance(notice, Moved):
                metrics.moved.inc()
                tell("Moved", notice, str(notice), "Normal")

        book.hear(heard)
        releaser = Releaser(client, config.bind.timeout)
        doors = Doors(
            book,
            config,
            metrics,
            writer,
            releaser,
            later=asyncio.get_running_loop().call_soon,
            vetoed=partial(tell, "Vetoed"),
            evicted=partial(tell, "Evicted"),
        )
        wait = doors.wait
        reader = PolicyReader()
        surroundings = Surroundings(client, reader.changed)
        statuses = StatusWriter(
            book,
            lambda: wait.planner,
            wait.fairness,
            releaser,
            surroundings.policies.values,
            lambda: reader.faults,
        )
        guard = ByToken(Access(client, config.bind.timeout))
        admitting = (
            reviewing(doors.reviews, config, webhook, (doors.shares, guard))
            if webhook
            else contextlib.nullcontext("")
        )
        async with (
            listening(doors.operations, *http) as http_at,
            listening(doors.verbs, host, port) as verbs_at,
            admitting as webhook_at,
            asyncio.TaskGroup() as tasks,
        ):
            log.info("kvitej serves", verbs=verbs_at, http=http_at, webhook=webhook_at, server=client.server)
            running = [
                tasks.create_task(work)
                for work in (
                    feed.run(),
                    agents.run(),
                    surroundings.run(),
                    recorder.run(),
                    statuses.run(),
                    tidy(book),
                    _wake(book, wait, writer, metrics, config.wake.delay),
                    _settle_in(feed, agents, book, surroundings, reader, wait),
                )
            ]
            await stopped.wait()
            log.info("kvitej stops; running requests are finished first")
            for task in running:
                task.cancel()
            await statuses.write()


def _closing(found: "Unreadable") -> NodeSeen | PodSeen:
    """What can't be decoded closes its node, so that nothing lands on what it holds."""
    fault = f"it cannot be decoded: {found.reason}"
    if found.path == "/api/v1/nodes":
        return NodeSeen(Node(metadata=ObjectMeta(name=found.name)), fault)
    metadata = ObjectMeta(name=found.name, namespace=found.namespace, uid=found.uid)
    return PodSeen(Pod(metadata=metadata, spec=PodSpec(node_name=found.node)), fault)


def _watch_numbers(feed: "Feed") -> Iterator[tuple[str, str, float]]:
    now = time.monotonic()
    for name, reflector in (("nodes", feed.nodes), ("pods", feed.pods)):
        yield "lag_seconds", name, reflector.lag(now)
        yield "down_seconds", name, now - reflector.down_since if reflector.down_since is not None else 0.0
        yield "relists_total", name, reflector.relists
        yield "gone_total", name, reflector.gone_410
        yield "reconnects_total", name, reflector.reconnects
        yield "unreadable_total", name, reflector.unreadable


async def _settle_in(
    feed: "Feed",
    agents: "Agents",
    book: Book,
    surroundings: "Surroundings",
    reader: "PolicyReader",
    wait: WaitDoor,
) -> None:
    """Plan once all is known, and follow the policies from then on."""
    await feed.wait_synced()
    await agents.wait_synced()
    await surroundings.wait_synced()
    reader.tell(surroundings, wait)
    wait.begin(statuses_in(surroundings.policies.values()))
    # The book lives as long as the process: without this, each full collection would walk all of it.
    gc.collect()
    gc.freeze()
    snapshot = book.snapshot()
    log.info("the book is synced", nodes=len(snapshot.inventories), seats=len(snapshot.seats))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reader.run(surroundings, wait))
        tasks.create_task(wait.run())


async def tidy(book: Book) -> None:
    while True:
        await asyncio.sleep(1.0)
        book.apply(Elapsed(time.monotonic()))


async def _wake(book: Book, wait: WaitDoor, writer: "Writer", metrics: Metrics, delay: float) -> None:
    """Nudge pods that Filter refused before it knew of room that the scheduler saw, unless their turn is planned."""
    room = -1
    while True:
        await asyncio.sleep(delay)
        snapshot = book.snapshot()
        if snapshot.room == room or book.unfit() is not None:
            continue
        pods = to_nudge(snapshot, NUDGED_AT_ONCE)
        room = snapshot.room if len(pods) < NUDGED_AT_ONCE else -1
        book.apply(Nudged(tuple(pod.metadata.uid for pod in pods)))
        for pod in pods:
            if wait.seat_for(pod) is not None:
                continue
            try:
                await writer.nudge(pod.metadata.namespace or "default", pod.metadata.name, pod.metadata.uid)
            except ConnectionError as error:
                log.warning("a waiting pod could not be woken", pod=pod.metadata.name, reason=str(error))
            metrics.nudges.inc()
