"""Names that kvitej puts on pods, and which of its annotations people write themselves."""

PREFIX = "kvitej.io/"
GATE = "kvitej.io/turn"
"""The scheduling gate under which a pod waits for its turn."""

DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server fills in for a pod that names no scheduler, before any review."""

PROFILES = (DEFAULT_SCHEDULER, "fair-quota")
"""Scheduler profiles that ask kvitej about GPU pods; the last is what adopted pods get."""

PREEMPTIBLE = "kvitej.io/preemptible"
"""The label of a pod or a PriorityClass; "true" makes a pod preemptible in a tenant that is not."""

EVICTED = "kvitej.io/evicted"
"""The annotation that tells a victim who evicted it, why, and for what."""

GPU_MEMORY = "kvitej.io/gpu-memory"
TOPOLOGY = "kvitej.io/topology"
MIN_BANDWIDTH = "kvitej.io/min-bandwidth"
CHECKPOINT_INTERVAL = "kvitej.io/checkpoint-interval"
LAST_CHECKPOINT = "kvitej.io/last-checkpoint"

WORKLOAD, WORKLOAD_TYPE = "kvitej.io/workload", "kvitej.io/workload-type"
"""The label or annotation of a pod that names its class, such as inference: two names for one thing."""

MIG_PROFILE = "nvidia.com/mig-profile"
"""The annotation of a pod whose `nvidia.com/gpu` are to be MIG instances of that profile."""

_BY_PEOPLE = frozenset(
    (
        GPU_MEMORY,
        TOPOLOGY,
        MIN_BANDWIDTH,
        CHECKPOINT_INTERVAL,
        LAST_CHECKPOINT,
        WORKLOAD,
        WORKLOAD_TYPE,
    )
)


def only_ours(annotation: str) -> bool:
    """Whether nobody but kvitej writes this annotation: all under our prefix, except those that people write."""
    return annotation.startswith(PREFIX) and annotation not in _BY_PEOPLE
