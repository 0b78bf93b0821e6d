"""What a pod asks for: one function for every door and for the book.

The effective request is the scheduler's own rule (component-helpers `resource/helpers.go`, KEP-753): per resource
max(app containers + sidecars, init chain) + overhead, where an ordinary init container runs beside the sidecars
started before it. Pod-level requests (KEP-2837) replace the aggregate for cpu and memory only.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum

from extender.wire.marks import GPU_MEMORY, MIN_BANDWIDTH, TOPOLOGY
from extender.wire.objects import Container, Pod, PodSpec, Quantity, Resources
from extender.wire.quantity import QuantityError, device_count, milli, whole

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
VENDOR = "nvidia.com/"
MOST_GBPS = 100_000
CAP = 2**50
"""No machine has as much of anything; capping here keeps sums within 64 bits, and what asks for it never fits."""
MOST_DEVICES = 2**16
"""The same for counts of devices, whose sums stay within 32 bits; no node is believed to have as many."""


OVERHEAD = ""
"""Stands for the pod's overhead where containers are named: no container has this name."""
_CORE = {"cpu": milli, "memory": whole}


class RequestError(ValueError):
    """A field of the pod that cannot be read: its path, its value, and what is allowed."""


class Kind(Enum):
    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Need:
    """What one container asks of the device plugin: resource name and count, sorted by name."""

    container: str
    kind: Kind
    devices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's effective request; equal shapes compare and hash equal.

    `cpu` in thousandths of a core, `memory` in bytes, `gpu_memory` in bytes per card (0: not declared).
    `bandwidth` in MB/s and `nvlink` are what the slowest two of its whole cards must have between them.
    `needs` lists the containers that ask for devices, in the order in which they start, after the overhead if it does.
    """

    cpu: int
    memory: int
    devices: tuple[tuple[str, int], ...] = ()
    needs: tuple[Need, ...] = ()
    gpu_memory: int = 0
    bandwidth: int = 0
    nvlink: bool = False

    def count(self, resource: str) -> int:
        for name, count in self.devices:
            if name == resource:
                return count
        return 0


def request_of(pod: Pod, *, declared: bool = True, linked: bool = True) -> Request:
    """The effective request of `pod`.

    Without `declared`, the annotation for memory is not read; without `linked`, those for links are not.

    Raises RequestError when a quantity or an annotation that matters cannot be read: never taken as zero.
    """
    spec = pod.spec
    if spec is None:
        return Request(0, 0)
    apps = spec.containers or []
    inits = spec.init_containers or []
    if len(apps) == 1 and not inits and spec.resources is None and spec.overhead is None:
        cpu, memory, devices = _asks(apps[0], "spec.containers[0]")
        needs: tuple[Need, ...] = (Need(apps[0].name, Kind.APP, devices),) if devices else ()
    else:
        cpu, memory, devices, needs = _aggregate(spec, apps, inits)
    if not devices or not pod.metadata.annotations:
        return Request(cpu, memory, devices, needs)
    gpu_memory = _gpu_memory(pod.metadata.annotations, needs) if declared else 0
    return Request(
        cpu, memory, devices, needs, gpu_memory, *(_links(pod.metadata.annotations) if linked else ())
    )


def asks_devices(pod: Pod) -> bool:
    """Whether any container of the pod names a device, be it readable or not."""
    spec = pod.spec
    if spec is None:
        return False
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        resources = container.resources
        if resources is not None:
            for amounts in (resources.requests, resources.limits):
                if amounts and any(name.startswith(VENDOR) for name in amounts):
                    return True
    return False


def is_over(pod: Pod) -> bool:
    """Whether the pod has ended: then it holds nothing, and never will again."""
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


def steps(needs: tuple[Need, ...]) -> Iterator[tuple[Need, ...]]:
    """The sets of containers that hold devices at the same time: each init step, then the running set."""
    sidecars: list[Need] = []
    for need in needs:
        if need.kind is Kind.INIT:
            yield (*sidecars, need)
        elif need.kind is Kind.SIDECAR:
            sidecars.append(need)
    yield (*sidecars, *(need for need in needs if need.kind is Kind.APP))


def _aggregate(
    spec: PodSpec, apps: list[Container], inits: list[Container]
) -> tuple[int, int, tuple[tuple[str, int], ...], tuple[Need, ...]]:
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    needs: list[Need] = []
    for position, container in enumerate(inits):
        asks, devices = _named(container, f"spec.initContainers[{position}]")
        sidecar = container.restart_policy == "Always"
        if devices:
            needs.append(Need(container.name, Kind.SIDECAR if sidecar else Kind.INIT, devices))
        step = _plus(sidecars, asks)
        if sidecar:
            sidecars = step
        for name, amount in step.items():
            peak[name] = max(peak.get(name, 0), amount)
    running = sidecars
    for position, container in enumerate(apps):
        asks, devices = _named(container, f"spec.containers[{position}]")
        if devices:
            needs.append(Need(container.name, Kind.APP, devices))
        running = _plus(running, asks)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    total.update(_core_of(spec.resources.requests if spec.resources else None, "spec.resources.requests"))
    total = _plus(total, _core_of(spec.overhead, "spec.overhead"))
    overhead = _devices_of(spec.overhead, "spec.overhead")
    if overhead:
        needs.insert(0, Need(OVERHEAD, Kind.SIDECAR, overhead))
        total = _plus(total, dict(overhead))
    devices = tuple(sorted((n, c) for n, c in total.items() if n.startswith(VENDOR) and c))
    return total.get("cpu", 0), total.get("memory", 0), devices, tuple(needs)


def _plus(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left.keys() | right.keys()}


def _named(container: Container, path: str) -> tuple[dict[str, int], tuple[tuple[str, int], ...]]:
    cpu, memory, devices = _asks(container, path)
    return {"cpu": cpu, "memory": memory, **dict(devices)}, devices


def _asks(container: Container, path: str) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """Requests of one container; the API server fills a missing request from its limit, and so do we."""
    resources: Resources | None = container.resources
    if resources is None:
        return 0, 0, ()
    merged: dict[str, Quantity] = {**(resources.limits or {}), **(resources.requests or {})}
    amounts = _core_of(merged, f"{path}.resources")
    return amounts.get("cpu", 0), amounts.get("memory", 0), _devices_of(merged, f"{path}.resources")


def _core_of(amounts: Mapping[str, Quantity] | None, path: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in (amounts or {}).items():
        if name in _CORE:
            try:
                found[name] = _positive(_CORE[name](value), value)
            except QuantityError as error:
                raise RequestError(f"{path}[{name}]: {error}") from None
    return found


def _devices_of(amounts: Mapping[str, Quantity] | None, path: str) -> tuple[tuple[str, int], ...]:
    """Counts above zero of the device resources, sorted by name."""
    found: list[tuple[str, int]] = []
    for name, value in (amounts or {}).items():
        if name.startswith(VENDOR):
            try:
                count = min(device_count(value), MOST_DEVICES)
            except QuantityError as error:
                raise RequestError(f"{path}[{name}]: {error}") from None
            if count:
                found.append((name, count))
    return tuple(sorted(found))


def _positive(amount: int, value: Quantity) -> int:
    if amount < 0:
        raise QuantityError(f"{value!r} is negative; give an amount of zero or more")
    return min(amount, CAP)


def _gpu_memory(annotations: Mapping[str, str], needs: tuple[Need, ...]) -> int:
    """Bytes per card: one amount, or one for each of some containers, of which the largest counts for all cards."""
    value = annotations.get(GPU_MEMORY)
    if value is None:
        return 0
    path = f"metadata.annotations[{GPU_MEMORY}]"
    if "=" not in value:
        return _amount(path, value)
    named = {need.container for need in needs}
    found: dict[str, int] = {}
    for part in value.split(","):
        container, _, amount = (each.strip() for each in part.partition("="))
        if container not in named or container in found:
            raise RequestError(
                f"{path}: {part.strip()!r} must be CONTAINER=AMOUNT for a container that asks for GPUs, each once; "
                f"those are {', '.join(sorted(named))}"
            )
        found[container] = _amount(path, amount)
    return max(found.values())


def _amount(path: str, value: str) -> int:
    try:
        amount = whole(value)
    except QuantityError as error:
        raise RequestError(f"{path}: {error}") from None
    if not 0 < amount <= CAP:
        raise RequestError(
            f"{path}: {value!r} is not an amount of GPU memory; give bytes as in 40Gi, more than 0"
        )
    return amount


def _links(annotations: Mapping[str, str]) -> tuple[int, bool]:
    """(MB/s, whether NVLink) that the pod cannot do without; nothing where it only prefers well linked cards."""
    mode, least = annotations.get(TOPOLOGY), annotations.get(MIN_BANDWIDTH)
    if mode not in (None, "prefer", "require"):
        raise RequestError(f"metadata.annotations[{TOPOLOGY}]: {mode!r} must be prefer or require")
    if mode != "require":
        if least is not None:
            raise RequestError(
                f"metadata.annotations[{MIN_BANDWIDTH}]: {least!r} is a requirement; "
                f"say {TOPOLOGY}: require, too, or leave it out"
            )
        return 0, False
    if least in (None, "nvlink"):
        return 0, True
    try:
        number = Decimal(str(least)) if str(least).isascii() else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not (number.is_finite() and 0 < number <= MOST_GBPS):
        raise RequestError(
            f"metadata.annotations[{MIN_BANDWIDTH}]: {least!r} is no bandwidth; give GB/s between two cards, "
            f"more than 0 and at most {MOST_GBPS}, as in 200, or nvlink"
        )
    return math.ceil(number * 1000), False
