"""What the kubelet says of NVIDIA's devices, as a report has it: in an order of its own, and steady over a restart."""

import time
from collections import Counter
from collections.abc import Callable

from extender.agent import podresources
from extender.agent.podresources import KubeletError
from extender.wire.gpunode import Allocatable, Kubelet

PREFIX = "nvidia.com/"
"""Of the resources whose devices are reported."""


class Devices:
    """Reads the devices again and again; a kubelet that does not answer counts as it was for `grace` seconds."""

    def __init__(
        self, kubelet: podresources.Kubelet, grace: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kubelet = kubelet
        self._grace = grace
        self._clock = clock
        self._last: tuple[float, Kubelet] | None = None

    async def read(self) -> Kubelet:
        """The devices now; a kubelet that has not answered for too long is the report's `problem`."""
        try:
            held = await self._kubelet.held(PREFIX)
            could: dict[str, list[str]] = {}
            for each in await self._kubelet.allocatable(PREFIX):
                could.setdefault(each.resource, []).extend(each.devices)
        except KubeletError as error:
            if self._last is not None and self._clock() - self._last[0] < self._grace:
                return self._last[1]
            return Kubelet(problem=str(error))
        for one in held:
            one.devices.sort()
        said = Kubelet(
            held=sorted(held, key=lambda one: (one.namespace, one.pod, one.container, one.resource)),
            allocatable=[Allocatable(name, sorted(could[name])) for name in sorted(could)],
        )
        self._last = self._clock(), said
        return said


def replicas_of(said: Kubelet) -> dict[str, int]:
    """By uuid of a card or an instance: into how many its plugin divides it, where it does."""
    ids = (device for each in said.allocatable or () for device in each.devices)
    return dict(Counter(device.partition("::")[0] for device in ids if "::" in device))
