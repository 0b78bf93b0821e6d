"""A real control plane for the cases that need one, and bursts of pods on it, watched until each is decided."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import click

from tests.controlplane.api import Api, ApiError, Object, wait_until
from tests.controlplane.binaries import KUBERNETES, Unavailable, ensure
from tests.controlplane.processes import ControlPlane

IN_FLIGHT = 24
REOPEN_SECONDS = 0.01
PODS = "/api/v1/namespaces/default/pods"


@contextlib.contextmanager
def control_plane(at: Path, kubernetes: str = KUBERNETES) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver in the directory `at`; builds the binaries first if need be."""
    try:
        binaries = ensure(kubernetes)
    except Unavailable as reason:
        raise click.ClickException(str(reason)) from reason
    with ControlPlane(binaries, at) as started:
        yield started


class Burst:
    """Pods created 24 at a time in namespace `default`, and what a watch shows of them; enter it first.

    Attributes
    ----------
    created, bound
        Monotonic time by pod name: before its creation was sent, and when the watch showed its node.
    refused
        The scheduler's reason by name of a pod that it left pending and that is not bound since.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.refused: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        version = (await self._api.get(PODS, {"limit": "1"}))["metadata"]["resourceVersion"]
        self._following = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following

    async def create(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Create pods, 24 requests in flight."""
        remaining = iter(pods)

        async def some() -> None:
            for pod in remaining:
                self.created[pod["metadata"]["name"]] = time.monotonic()
                await self._api.post(PODS, pod)

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(some())

    async def all_bound(self, timeout: float) -> None:
        """Wait until every pod has a node; TimeoutError after `timeout` seconds."""
        await self._wait(lambda: len(self.bound) == len(self.created), timeout, "every pod bound")

    async def settled(self, quiet: float, timeout: float) -> None:
        """Wait until every pod is bound or refused, and none was bound for `quiet` seconds."""

        def decided() -> bool:
            last = max(self.bound.values(), default=0.0)
            undecided = self.created.keys() - self.bound.keys() - self.refused.keys()
            return not undecided and time.monotonic() - last > quiet

        await self._wait(decided, timeout, "every pod bound or refused")

    @property
    def seconds(self) -> float:
        """From the first creation to the last binding."""
        return max(self.bound.values()) - min(self.created.values())

    async def _wait(self, predicate: Callable[[], bool], timeout: float, what: str) -> None:
        def progress() -> str:
            return f"{what}; {len(self.bound)} of {len(self.created)} are bound, {len(self.refused)} refused"

        def holds() -> bool:
            if self._following.done():
                self._following.result()
            return predicate()

        await wait_until(holds, timeout, progress)

    async def _follow(self, version: str) -> None:
        """Watch from `version` on; the API server cuts slow watches in a burst, so it is reopened at once."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with contextlib.aclosing(self._api.watch(PODS, {"resourceVersion": version})) as events:
                    async for kind, seen in events:
                        if kind == "ERROR":
                            version = await self._read_all()
                            break
                        version = seen["metadata"]["resourceVersion"]
                        self._look(kind, seen)
            await asyncio.sleep(REOPEN_SECONDS)

    async def _read_all(self) -> str:
        """Look at every pod as it is now, where the watch was left too far behind; the version of that."""
        listed = await self._api.get(PODS)
        for pod in listed["items"]:
            self._look("ADDED", pod)
        return str(listed["metadata"]["resourceVersion"])

    def _look(self, kind: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if name not in self.created or name in self.bound or kind == "DELETED":
            return
        if pod["spec"].get("nodeName"):
            self.bound[name] = time.monotonic()
            self.refused.pop(name, None)
            return
        for condition in pod["status"].get("conditions") or ():
            if (condition["type"], condition["status"]) == ("PodScheduled", "False") and condition.get(
                "message"
            ):
                self.refused[name] = condition["message"]


async def delete_pods(api: Api) -> None:
    """Delete every pod of the namespace and wait until they are gone."""
    await api.delete(PODS, {"gracePeriodSeconds": 0})

    async def gone() -> bool:
        return not await api.list(PODS, {"limit": "1"})

    await wait_until(gone, 120, "all pods gone")


@contextlib.asynccontextmanager
async def admin(plane: ControlPlane) -> AsyncIterator[Api]:
    """A client of the control plane; what it refuses, or does not do in time, ends the case with a sentence."""
    try:
        async with Api(plane) as api:
            yield api
    except (ApiError, TimeoutError) as error:
        raise click.ClickException(f"{error}\n{plane.tail('kube-apiserver')}") from error
