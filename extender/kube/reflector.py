"""Follows one resource of the API server and tells, in order, what exists, what changed and what is gone.

It starts with a WatchList (the watch itself sends everything that exists, then a marked bookmark), or with a
list in pages where the server refuses that, and goes on with watches. A watch that ends or is cut is taken up
at once from the last resourceVersion; when that version is too old (410), everything is read anew and what
did not come back is told as gone. An optional resource that the API server does not know has no objects, and is
asked for again every 30 s.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Generic

import aiohttp
import msgspec
import structlog

from extender.kube.client import Answer, AnswerLostError, ApiError, Client, StatusError
from extender.kube.resource import E, Reader, Resource, T, Unreadable, WatchEvent, status_of

log = structlog.get_logger(__name__)

PAGE = "500"
EVENTS_PER_TURN = 100
BACKOFF_SECONDS = (0.25, 30.0)
REFUSALS_TO_START_OVER = 6
ABSENT_SECONDS = 30.0
_MANY = 2**16
"""Bytes at once that need not wait for more."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _VersionError(Exception):
    """The remembered version is of no use; the message says why."""


class Reflector(Generic[T, E]):
    """One resource, followed for as long as `run` runs.

    Parameters
    ----------
    emit
        Takes each event, in order, on the loop's thread. It must not fail: what it raises ends `run`.
    on_unreadable
        Takes each object that cannot be decoded, each time it arrives.
    inactivity
        Seconds without a byte (bookmarks come about once a minute) after which a watch is given up.
    pause
        Seconds that events wait for others: where thousands come in a minute, each on its own would cost more to be
        woken by than to be read.

    Attributes
    ----------
    synced : asyncio.Event
        Set once everything that exists has been told for the first time.
    down_since : float or None
        `time.monotonic` since when no current watch is open; None while one is.
    relists, gone_410, reconnects, unreadable, events : int
        Full reads after the first, versions that were too old, watches opened from a remembered version,
        objects that could not be decoded, and events taken (bookmarks and listed objects included).
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T, E],
        emit: Callable[[E], None],
        on_unreadable: Callable[[Unreadable], None],
        *,
        inactivity: float = 150.0,
        pause: float = 0.0,
    ) -> None:
        self.synced = asyncio.Event()
        self.down_since: float | None = time.monotonic()
        self.relists = self.gone_410 = self.reconnects = self.unreadable = self.events = 0
        self._client = client
        self._resource = resource
        self._reader = Reader(resource)
        self._emit = emit
        self._on_unreadable = on_unreadable
        self._inactivity = inactivity
        self._pause = pause
        self._version: str | None = None
        self._watch_list = True
        self._refusals = 0
        self._heard = time.monotonic()
        self._opened = self._progressed = False
        # What has been told as existing: namespace/name → uid. Stale is what a full read has not met yet.
        self._known: dict[str, str] = {}
        self._stale: set[str] | None = None
        self._complained: set[str] = set()

    def lag(self, now: float) -> float:
        """Seconds at `now` (monotonic) since the API server last sent a byte."""
        return now - self._heard

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        barren = 0
        while True:
            begun, down_before = time.monotonic(), self.down_since
            self._opened = self._progressed = False
            try:
                if self._version is None:
                    await self._read_everything()
                else:
                    await self._take_up(self._version)
            except _VersionError as reason:
                log.info("reading everything anew", path=self._resource.path, reason=str(reason))
                self._version = None
            except ApiError as failure:
                if self._resource.optional and isinstance(failure, StatusError) and failure.status == 404:
                    self._nothing_to_read()
                    barren = 0
                    await asyncio.sleep(ABSENT_SECONDS * random.uniform(0.9, 1.0))
                    continue
                log.info("watch interrupted", path=self._resource.path, reason=str(failure))
            now = time.monotonic()
            fruitful = self._progressed or (self._opened and now - begun >= 1.0)
            if self.down_since is None:
                # A watch that only opened to say that its version is too old has brought nothing up to date.
                self.down_since = now if fruitful or down_before is None else down_before
            barren = 0 if fruitful else barren + 1
            if barren > 1:
                first, most = BACKOFF_SECONDS
                await asyncio.sleep(min(most, first * 2 ** min(barren - 2, 20)) * random.uniform(0.5, 1.0))

    async def _read_everything(self) -> None:
        """WatchList, which goes on as a watch, or else a list; the version is known when this ends well."""
        if self.synced.is_set():
            self.relists += 1
        self._stale = set(self._known)
        if self._watch_list:
            try:
                await self._watch({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
                return
            except StatusError as refusal:
                if refusal.status == 404:
                    raise
                log.info("WatchList refused, listing instead", path=self._resource.path, reason=str(refusal))
                self._watch_list = refusal.status not in (400, 422)
        await self._list()

    async def _take_up(self, version: str) -> None:
        try:
            await self._watch({"resourceVersion": version})
        except StatusError as refusal:
            # A restarting API server refuses for a while and then knows the version again.
            self._refusals += 1
            if self._refusals >= REFUSALS_TO_START_OVER:
                raise _VersionError(str(refusal)) from refusal
            raise

    async def _list(self) -> None:
        query = self._query({"limit": PAGE})
        while True:
            answer = await self._client.get(self._resource.path, query, timeout=60.0)
            if answer.status != 200:
                raise self._refusal(answer)
            self._heard = time.monotonic()
            try:
                events, meta = self._reader.page(answer.body)
            except msgspec.DecodeError as error:
                raise AnswerLostError(f"The list of {self._resource.path} is garbled: {error}.") from error
            for event in events:
                self._take(event)
            await asyncio.sleep(0)
            if not meta.continue_:
                self._everything_read(meta.resource_version)
                return
            query["continue"] = meta.continue_

    async def _watch(self, query: dict[str, str]) -> None:
        seconds = random.randint(300, 600)
        always = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        # The server ends the watch; our own limit only stands behind it.
        limits = {"timeout": seconds + 60.0, "silence": self._inactivity}
        async with self._client.stream(
            self._resource.path, self._query(always | query), **limits
        ) as response:
            if response.status != 200:
                raise self._refusal(Answer(response.status, await response.read()))
            self._opened = True
            self._refusals = 0
            self._heard = time.monotonic()
            if self._stale is None:
                self.reconnects += 1
                self.down_since = None
            await self._follow(response)

    async def _follow(self, response: aiohttp.ClientResponse) -> None:
        """Take the stream's lines, which chunks cut anywhere, without holding the loop for long."""
        pieces: list[bytes] = []
        taken = 0
        async for chunk in response.content.iter_any():
            self._heard = time.monotonic()
            head, newline, tail = chunk.rpartition(b"\n")
            if not newline:
                pieces.append(chunk)
                continue
            lines = b"".join((*pieces, head))
            pieces = [tail]
            try:
                events = self._reader.lines(lines)
            except msgspec.DecodeError as error:
                raise AnswerLostError(f"The watch of {self._resource.path} is garbled: {error}.") from error
            for event in events:
                self._take(event)
                taken += 1
                if taken % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if len(chunk) < _MANY:
                await self._let_gather(response)

    async def _let_gather(self, response: aiohttp.ClientResponse) -> None:
        """Read nothing for a while: what comes meanwhile waits in the socket, and costs one turn of the loop."""
        connection = response.connection
        if not self._pause or connection is None or connection.transport is None:
            return
        connection.transport.pause_reading()
        await asyncio.sleep(self._pause)
        if connection.transport is not None:
            connection.transport.resume_reading()

    def _take(self, event: WatchEvent[T] | WatchEvent[msgspec.Raw]) -> None:
        thing = event.object
        if event.type == "ERROR":
            raise self._error(thing)
        self.events += 1
        if isinstance(thing, msgspec.Raw):
            self._take_unreadable(event.type, thing)
            return
        meta = thing.metadata
        if event.type == "BOOKMARK":
            if (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true" and self._stale is not None:
                self._everything_read(meta.resource_version)
        elif event.type == "DELETED" or self._resource.over(thing):
            self._tell_gone(meta.namespace, meta.name, meta.uid)
        else:
            self._tell_apart(meta.namespace, meta.name, meta.uid)
            self._complained.discard(meta.uid)
            self._emit(self._resource.seen(thing))
        self._remember(meta.resource_version)

    def _take_unreadable(self, kind: str, raw: msgspec.Raw) -> None:
        found = self._reader.unreadable(raw)
        if kind == "DELETED":
            self._tell_gone(found.namespace, found.name, found.uid)
        else:
            if found.name:
                self._tell_apart(found.namespace, found.name, found.uid)
            if found.uid not in self._complained:
                self._complained.add(found.uid)
                log.error("object cannot be read", path=found.path, name=found.name, reason=found.reason)
            self.unreadable += 1
            self._on_unreadable(found)
        if found.version:
            self._remember(found.version)

    def _tell_apart(self, namespace: str | None, name: str, uid: str) -> None:
        """Note that the object exists; another one that had its name is gone."""
        key = f"{namespace}/{name}" if namespace else name
        before = self._known.get(key)
        if before is not None and before != uid:
            self._complained.discard(before)
            self._emit(self._resource.gone(name, before))
        self._known[key] = uid
        if self._stale is not None:
            self._stale.discard(key)

    def _tell_gone(self, namespace: str | None, name: str, uid: str) -> None:
        key = f"{namespace}/{name}" if namespace else name
        if self._known.get(key, uid) != uid:
            return  # a successor of the same name has been told already, and this one as gone before it
        self._known.pop(key, None)
        if self._stale is not None:
            self._stale.discard(key)
        self._complained.discard(uid)
        self._emit(self._resource.gone(name, uid))

    def _everything_read(self, version: str) -> None:
        for key in self._stale or ():
            self._emit(self._resource.gone(key.rpartition("/")[2], self._known.pop(key)))
        self._stale = None
        self._version = version
        self._progressed = True
        if self._opened:
            self.down_since = None
        self.synced.set()

    def _nothing_to_read(self) -> None:
        """The API server does not know the resource."""
        if not self.synced.is_set() or self._known:
            log.info("the API server does not know the resource", path=self._resource.path)
        self._stale = set(self._known)
        self._everything_read("")
        self._version = self.down_since = None

    def _remember(self, version: str) -> None:
        """Versions of a full read come in any order, so none of them is a place to go on from."""
        if self._stale is None:
            self._version = version
            self._progressed = True

    def _query(self, query: dict[str, str]) -> dict[str, str]:
        selector = self._resource.field_selector
        return {**query, "fieldSelector": selector} if selector else query

    def _refusal(self, answer: Answer) -> Exception:
        refusal = StatusError(answer)
        return self._too_old(str(refusal)) if answer.status == 410 else refusal

    def _error(self, thing: object) -> Exception:
        status = status_of(thing)
        if status.code == 410:
            return self._too_old(f"The watch ended: {status.message}")
        return _VersionError(f"The watch ended with error {status.code}: {status.message}")

    def _too_old(self, reason: str) -> Exception:
        self.gone_410 += 1
        return _VersionError(reason)
