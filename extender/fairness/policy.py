"""What a FairnessPolicy says, once read: pools, tenants and their shares, and who belongs to which.

Shares are fractions of the pool's GPU units, or GPUs; durations are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from extender.fairness.rules import Rule


class Foreign(Enum):
    """What happens at create to a GPU pod of another scheduler in a tenant's namespace."""

    REWRITE = "rewrite"
    DENY = "deny"
    COUNT = "count"


class NeverFits(Enum):
    """What happens to a request that no node of the pool holds even when empty."""

    REFUSE = "refuse"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the pool's GPU units (0 to 1) or a number of GPUs: one of the two."""

    part: float | None = None
    gpus: float | None = None

    def of(self, capacity: float) -> float:
        """GPU units in a pool of that many."""
        return self.gpus if self.gpus is not None else (self.part or 0.0) * capacity


@dataclass(frozen=True, slots=True)
class Tenant:
    """`namespaces` are names, `selector` labels that a namespace may have instead.

    The tenant's own name counts if both are empty. `most` None: all of the pool. `priority_classes` None: any.
    `evictions_per_hour` None: no limit.
    """

    name: str
    weight: float
    least: Share = field(default_factory=lambda: Share(part=0.0))
    most: Share | None = None
    preemptible: bool = False
    namespaces: frozenset[str] = frozenset()
    selector: Mapping[str, str] | None = None
    half_life: float = 86_400.0
    queue_depth: int = 1_000
    min_runtime: float = 0.0
    evictions_per_hour: int | None = None
    priority_classes: frozenset[str] | None = None
    wait_target: float | None = None
    adopt: bool = False

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the namespace of that name and these labels belongs to the tenant."""
        if self.selector is None:
            return namespace in self.namespaces if self.namespaces else namespace == self.name
        return namespace in self.namespaces or self.selector.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class Policy:
    """One pool: the nodes that `node_selector` picks (None: all), and the tenants that share it.

    `default` names the tenant of namespaces that are in none; without it they go last, free for all.
    `scheduler_names` None: every scheduler profile of ours. `rules` are demands on pods at create. `watermark` is the
    part of a card's memory that may be filled, and `watermark_max` up to what it may rise; None: as configured, and
    it does not rise.
    """

    name: str
    tenants: tuple[Tenant, ...]
    node_selector: Mapping[str, str] | None = None
    scheduler_names: frozenset[str] | None = None
    default: str | None = None
    decay_strength: float = 1.0
    hold_after: float = 600.0
    max_pending: int = 0
    never_fits: NeverFits = NeverFits.REFUSE
    foreign: Foreign = Foreign.COUNT
    reclaim_dry_run: bool = False
    generation: int = 0
    rules: tuple[Rule, ...] = ()
    watermark: float | None = None
    watermark_max: float | None = None

    def tenant(self, name: str) -> Tenant | None:
        return next((tenant for tenant in self.tenants if tenant.name == name), None)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in the pool."""
        return not self.node_selector or self.node_selector.items() <= labels.items()

    def serves(self, scheduler: str) -> bool:
        """Whether the policy covers pods of that scheduler profile."""
        return self.scheduler_names is None or scheduler in self.scheduler_names


class Place(NamedTuple):
    """Where a pod stands: the policy and the tenant in it; tenant None is free for all, last."""

    policy: Policy
    tenant: Tenant | None
