"""Reports as an agent would write them, of small nodes with round numbers."""

from collections.abc import Iterable, Mapping, Sequence

from extender.cluster.reports import ReportSeen
from extender.wire.gpunode import (
    GPU,
    Allocatable,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    Health,
    Held,
    Instance,
    Kubelet,
    Links,
    Memory,
    Process,
)

GIB = 2**30
RESOURCE = "nvidia.com/gpu"


def card(
    index: int = 0,
    *,
    total: int = 80,
    reserved: int | None = 0,
    used: int | None = None,
    slack: int = 0,
    pods: Mapping[str, int] | None = None,
    foreign: int = 0,
    hidden: int = 0,
    listed: bool = True,
    why: str = "",
    mig: bool = False,
    instances: Iterable[Instance] = (),
    unreadable: bool = False,
) -> GPUStatus:
    """Amounts in GiB; `pods` by uid. What is used is the sum of what processes use unless `used` says otherwise."""
    processes = [
        Process(100 + at, amount * GIB, uid) for at, (uid, amount) in enumerate((pods or {}).items())
    ]
    if foreign:
        processes.append(Process(7, foreign * GIB))
    if hidden:
        processes.append(Process(8, hidden * GIB, hidden=True))
    amount = used if used is not None else sum((pods or {}).values()) + foreign + hidden
    memory = Memory(total * GIB, amount * GIB, None if reserved is None else reserved * GIB, slack * GIB)
    return GPUStatus(
        uuid=f"GPU-{index}",
        index=index,
        health=Health(healthy=not why, why=[why] if why else []),
        memory=None if unreadable else memory,
        processes=processes if listed else None,
        mig=mig,
        instances=list(instances),
    )


def report(
    *cards: GPUStatus,
    node: str = "n0",
    held: Mapping[str, Sequence[str]] | None = None,
    offered: Iterable[str] | None = None,
    resource: str = RESOURCE,
    model: str = "NVIDIA H100 80GB HBM3",
    links: Links | None = None,
    namespace: str = "team",
    when: str = "",
) -> ReportSeen:
    """`held` gives the devices of each pod by its name, None: the kubelet is not asked. `offered` are devices."""
    kubelet = None
    if held is not None or offered is not None:
        kubelet = Kubelet(
            held=[
                Held(namespace, pod, "main", resource, list(devices)) for pod, devices in (held or {}).items()
            ],
            allocatable=None if offered is None else [Allocatable(resource, list(offered))],
        )
    return ReportSeen(
        node,
        GPUNodeSpec(gpus=[GPU(each.uuid, each.index, model) for each in cards], links=links),
        GPUNodeStatus(when=when, gpus=list(cards), kubelet=kubelet),
    )
