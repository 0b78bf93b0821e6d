"""The agent's loop on one node: look, tell what is new, and stand by it.

One loop does it all in order, and so a beat means what it should: the cards were looked at just now, and what is
stored says what was seen. An agent that hangs, or whose report the API server refuses, beats no more, and when its
Lease is stale, so is the report for everybody.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from extender.agent import podresources
from extender.agent.devices import Devices, replicas_of
from extender.agent.processes import PROC
from extender.agent.report import changed
from extender.agent.sampler import Sampler
from extender.agent.summary import summary_of
from extender.agent.writer import NodeWriter, Report
from extender.config import Agent as Settings
from extender.kube.client import ApiError, connect
from extender.wire.gpunode import GPUNode, GPUNodeStatus

log = structlog.get_logger(__name__)

_BACKOFF_SECONDS = (2.0, 30.0)


class Loop:
    """The loop for one node.

    Parameters
    ----------
    look
        Samples the node. What it can't see, it says in the report: it raises nothing.
    clock, wall
        Monotonic seconds, and the time of day.
    """

    def __init__(
        self,
        writer: NodeWriter,
        look: Callable[[], Awaitable[GPUNode]],
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._writer = writer
        self._look = look
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._said: GPUNode | None = None
        self._beat_due = 0.0
        self._failures = 0
        self._not_before = 0.0

    async def run(self) -> None:
        """Look and tell until cancelled."""
        while True:
            begun = self._clock()
            await self.step()
            await asyncio.sleep(max(begun + self._settings.sample - self._clock(), 0.0))

    async def step(self) -> None:
        """Look once, and write what is due."""
        seen = await self._look()
        now = self._clock()
        if now < self._not_before:
            return
        try:
            if self._writer.written is None or _news(self._said, seen):
                await self._tell(seen)
            # Rather half a step early than late, for a beat need not be a multiple of a step.
            if now >= self._beat_due - self._settings.sample / 2:
                await self._writer.beat(self._wall())
                self._beat_due = now + self._settings.heartbeat
        except ApiError as failure:
            first, most = _BACKOFF_SECONDS
            pause = min(first * 2**self._failures, most) * random.uniform(0.5, 1)
            self._failures += 1
            self._not_before = now + pause
            log.warning(
                "the API server has not taken the report", reason=str(failure), again_in=round(pause, 1)
            )
        else:
            self._failures = 0

    async def _tell(self, seen: GPUNode) -> None:
        assert seen.status is not None, "a look always has a status"
        status = replace(seen.status, summary=summary_of(seen.status))
        await self._writer.report(Report(msgspec.to_builtins(seen.spec), msgspec.to_builtins(status)))
        self._said = seen
        log.info("reported", gpus=len(status.gpus), health=status.summary and status.summary.health)


def run(node: str, kubeconfig: Path | None, settings: Settings, *, proc: Path = PROC) -> None:
    """Be the agent of `node` until SIGINT or SIGTERM; `kubeconfig` None is the pod's service account.

    `proc` is where the host's processes are seen.

    Raises
    ------
    KubeConfigError
        The cluster cannot be reached as configured.
    """
    asyncio.run(_run(node, kubeconfig, settings, proc))


async def _run(node: str, kubeconfig: Path | None, settings: Settings, proc: Path) -> None:
    async with (
        await connect(kubeconfig) as client,
        podresources.Kubelet(Path(settings.kubelet_socket)) as kubelet,
    ):
        writer = NodeWriter(client, node, lasts=3 * settings.heartbeat)
        devices = Devices(kubelet, settings.kubelet_grace)
        working = asyncio.create_task(_work(node, writer, devices, settings, proc), name="agent")
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, working.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def _work(node: str, writer: NodeWriter, devices: Devices, settings: Settings, proc: Path) -> None:
    sampler = Sampler(node, await _before(writer), proc=proc)

    async def look() -> GPUNode:
        said = await devices.read()
        seen = await asyncio.to_thread(sampler.sample, replicas_of(said))
        return replace(seen, status=replace(seen.status or GPUNodeStatus(), kubelet=said))

    try:
        await Loop(writer, look, settings).run()
    finally:
        sampler.close()


async def _before(writer: NodeWriter) -> GPUNode | None:
    """What the API server has of this node; it holds what must not be forgotten, so it is waited for."""
    while True:
        try:
            return await writer.read()
        except ApiError as failure:
            log.warning("waiting for the API server", reason=str(failure))
            await asyncio.sleep(_BACKOFF_SECONDS[0] * random.uniform(0.5, 1.5))


def _news(said: GPUNode | None, seen: GPUNode) -> bool:
    if said is None or said.status is None or seen.status is None:
        return True
    return said.status.kubelet != seen.status.kubelet or changed(said, seen)
