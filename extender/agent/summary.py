"""What `kubectl get gpunodes` shows of a report."""

from extender.wire.gpunode import GPUNodeStatus, GPUStatus, Summary, uuids

_GIB = 2**30


def summary_of(status: GPUNodeStatus) -> Summary:
    """Cards that are healthy, that nobody holds as far as the kubelet tells, and that no process is on, are free."""
    held = uuids((status.kubelet.held if status.kubelet else None) or ())
    unhealthy = sum(not gpu.health.healthy for gpu in status.gpus)
    health = f"{unhealthy} of {len(status.gpus)} unhealthy" if unhealthy else "healthy"
    if status.problem is not None:
        health = status.problem.reason
    memories = [gpu.memory for gpu in status.gpus if gpu.memory is not None]
    used, total = sum(each.used for each in memories), sum(each.total for each in memories)
    return Summary(
        gpus=len(status.gpus),
        free=sum(_free(gpu, held) for gpu in status.gpus),
        memory_used=f"{used / _GIB:.0f} of {total / _GIB:.0f} GiB" if memories else "unknown",
        health=health,
    )


def _free(gpu: GPUStatus, held: set[str]) -> bool:
    uuids = [gpu.uuid, *(uuid for each in gpu.instances for uuid in each.uuids)]
    return gpu.health.healthy and gpu.processes == [] and held.isdisjoint(uuids)
