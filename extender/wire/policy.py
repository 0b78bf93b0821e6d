"""FairnessPolicy, `kvitej.io/v1alpha1`: what a platform team writes, and the status that kvitej writes back.

Fields that a policy leaves out are None here: `extender.fairness.reading` gives them their meaning. The limits of each
field stand in `scheduler-config/crd-fairnesspolicies.yaml`, where the API server holds them.
"""

import msgspec

from extender.wire.objects import ListMeta, Slim

API_VERSION = "kvitej.io/v1alpha1"
KIND = "FairnessPolicy"
PATH = "/apis/kvitej.io/v1alpha1/fairnesspolicies"


class PolicyMeta(Slim):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0


class LabelSelector(Slim):
    match_labels: dict[str, str] | None = None


class Namespaces(Slim):
    """Names, or labels that a namespace may have instead."""

    names: list[str] | None = None
    selector: LabelSelector | None = None


class TenantSpec(Slim):
    """Shares are percent of the pool's GPU units, the `…GPUs` are GPU units; durations are texts such as 24h."""

    name: str = ""
    weight: float | None = None
    min_share: float | None = None
    max_share: float | None = None
    min_gpus: float | None = msgspec.field(name="minGPUs", default=None)
    max_gpus: float | None = msgspec.field(name="maxGPUs", default=None)
    preemptible: bool | None = None
    namespaces: Namespaces | None = None
    decay_half_life: str | None = None
    queue_depth: int | None = None
    min_runtime: str | None = None
    evictions_per_hour: int | None = None
    priority_classes: list[str] | None = None
    wait_target: str | None = None
    adopt: bool | None = None


class Autoscaling(Slim):
    max_pending: int | None = None


class Reclaim(Slim):
    dry_run: bool | None = None


class Closed(Slim):
    """Times are texts such as 09:00, days such as Mon or Mon-Fri."""

    days: list[str] | None = None
    from_: str | None = msgspec.field(name="from", default=None)
    to: str | None = None
    time_zone: str | None = None


class MinMemory(Slim):
    host: str | None = None
    gpu: str | None = None


class RuleSpec(Slim):
    """What is demanded of pods at create: one of the last six."""

    name: str = ""
    message: str | None = None
    dry_run: bool | None = None
    tenants: list[str] | None = None
    namespaces: list[str] | None = None
    workloads: list[str] | None = None
    closed: Closed | None = None
    min_memory: MinMemory | None = None
    form: dict[str, str] | None = None
    max_gpus: float | None = msgspec.field(name="maxGPUs", default=None)
    models: list[str] | None = None
    headroom: str | None = None


class DynamicWatermark(Slim):
    max: float | None = None


class PolicySpec(Slim):
    tenants: list[TenantSpec] | None = None
    decay_half_life: str | None = None
    decay_strength: float | None = None
    node_selector: dict[str, str] | None = None
    scheduler_names: list[str] | None = None
    default: str | None = None
    hold_after: str | None = None
    autoscaling: Autoscaling | None = None
    never_fits: str | None = None
    foreign_scheduler: str | None = None
    reclaim: Reclaim | None = None
    rules: list[RuleSpec] | None = None
    watermark: float | None = None
    dynamic_watermark: DynamicWatermark | None = None


class PolicyCondition(Slim, omit_defaults=True):
    """As `metav1.Condition`."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class TenantStatus(Slim):
    """Amounts are GPU units; `longest_wait` is seconds, `evictions` are those since the policy was made.

    `evicted_at` are the times of the last hour's, of tenants that are limited to some per hour.
    """

    name: str
    entitlement: float = 0.0
    in_use: float = 0.0
    borrowed: float = 0.0
    decayed_use: float = 0.0
    waiting: int = 0
    longest_wait: float = 0.0
    evictions: int = 0
    evicted_at: list[str] = msgspec.field(default_factory=list)


class PolicyStatus(Slim, omit_defaults=True):
    """`capacity` and `in_use` are GPU units of the pool, `waiting` pods.

    `decayed_at` is the time for which each `decayed_use` holds, as RFC 3339 writes it.
    """

    observed_generation: int = 0
    conditions: list[PolicyCondition] | None = None
    capacity: float | None = None
    in_use: float | None = None
    waiting: int | None = None
    decayed_at: str | None = None
    tenants: list[TenantStatus] | None = None


class FairnessPolicy(Slim):
    metadata: PolicyMeta
    spec: PolicySpec | None = None
    status: PolicyStatus | None = None


class FairnessPolicyList(Slim):
    metadata: ListMeta
    items: list[FairnessPolicy] | None = None
