"""Both watches together: when the book is complete, and for how long it has been stale."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from extender.cluster.events import Event
from extender.kube.client import Client
from extender.kube.feed import Feed
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import Mirror, until


@contextlib.asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_nodes_and_pods_are_told_before_it_is_synced(server: FakeApiServer, client: Client) -> None:
    server.put_node("n")
    uid = server.put_pod("p")
    mirror = Mirror()
    feed = Feed(client, mirror.take, mirror.take_unreadable)
    assert not feed.synced
    async with running(feed):
        await asyncio.wait_for(feed.wait_synced(), 5)
        assert feed.synced
        assert {"n", uid} <= set(mirror.existing)


async def test_it_is_stale_while_a_watch_is_down_and_only_then(server: FakeApiServer, client: Client) -> None:
    mirror = Mirror()
    feed = Feed(client, mirror.take, mirror.take_unreadable)
    async with running(feed):
        await asyncio.wait_for(feed.wait_synced(), 5)
        assert feed.stale_for(time.monotonic()) == 0.0
        await server.stop()
        await until(lambda: feed.stale_for(time.monotonic()) > 0.3)
        await server.start()
        await until(lambda: feed.stale_for(time.monotonic()) == 0.0)
        assert feed.nodes.relists == feed.pods.relists == 0


async def test_an_event_that_the_book_cannot_take_ends_the_feed(
    server: FakeApiServer, client: Client
) -> None:
    server.put_pod("p")

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    feed = Feed(client, fail, Mirror().take_unreadable)
    with pytest.RaisesGroup(ZeroDivisionError):
        await asyncio.wait_for(feed.run(), 5)
