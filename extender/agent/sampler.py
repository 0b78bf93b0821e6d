"""One look at this node: the driver and /proc, made into a GPUNode that goes on from the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from extender.agent.nvml import OPENING, PATIENCE, Nvml
from extender.agent.processes import PROC, command_of, pod_of
from extender.agent.report import report
from extender.wire.gpunode import GPUNode


class Sampler:
    """Samples the node called `node`.

    Parameters
    ----------
    before
        What the API server has of this node, so that a restart of the agent forgets no trouble of a card.
    patience, opening
        Seconds that a sample may take, whatever the driver does, and that one may in which the driver's library is
        opened; a quarter of `patience` comes on top in the worst case.
    proc
        Where the host's processes are seen.
    clock
        Seconds since 1970.
    """

    def __init__(
        self,
        node: str,
        before: GPUNode | None = None,
        *,
        patience: float = PATIENCE,
        opening: float = OPENING,
        proc: Path = PROC,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._last = before
        self._proc = proc
        self._clock = clock
        self._nvml = Nvml(patience, opening, lambda pid: command_of(pid, proc))

    def sample(self, replicas: Mapping[str, int] | None = None) -> GPUNode:
        """The report as of now; blocks for as long as it may take. Never raises for what the driver does.

        `replicas`: by uuid of a card, into how many the device plugin divides it.
        """
        sample = self._nvml.sample(self._clock())
        self._last = report(
            sample,
            self._node,
            self._boot_id(),
            self._last,
            lambda pid: pod_of(pid, self._proc),
            replicas or {},
        )
        return self._last

    def close(self) -> None:
        self._nvml.close()

    def _boot_id(self) -> str:
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
