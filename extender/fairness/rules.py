"""What a policy demands of each pod at create: its rules, once read.

A rule has a name, says one thing, and concerns the pods of its scope. Memory is in bytes, parts are from 0 to 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from extender.fairness.window import Window


class Form(Enum):
    """In which form a pod asks for GPUs: whole, as MIG instances, or as shares of one that others use as well."""

    WHOLE = "whole"
    MIG = "mig"
    TIME_SLICE = "time-slice"


USUAL_FORMS: Mapping[str, Form] = {
    "inference": Form.MIG,
    "training": Form.WHOLE,
    "development": Form.TIME_SLICE,
}
"""By class of workload."""


@dataclass(frozen=True, slots=True)
class Closed:
    """No pod is created within the window."""

    window: Window


@dataclass(frozen=True, slots=True)
class MinMemory:
    """How much memory a pod asks for at least on its host, and is sure of on each GPU; 0 for any."""

    host: int = 0
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Forms:
    """The form that pods of each class of workload have; other classes may have any."""

    by_workload: Mapping[str, Form]


@dataclass(frozen=True, slots=True)
class MaxGpus:
    """GPU units that a pod has at most."""

    units: float


@dataclass(frozen=True, slots=True)
class Models:
    """The values of the label `nvidia.com/gpu.product` of nodes that pods may use, sorted."""

    products: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Headroom:
    """The part of the pool that stays free."""

    part: float


Demand = Closed | MinMemory | Forms | MaxGpus | Models | Headroom


@dataclass(frozen=True, slots=True)
class Rule:
    """`message` is said in place of ours; with `dry_run` a pod is only warned.

    It concerns pods of these tenants, namespaces and classes of workload; None: of all.
    """

    name: str
    demand: Demand
    message: str | None = None
    dry_run: bool = False
    tenants: frozenset[str] | None = None
    namespaces: frozenset[str] | None = None
    workloads: frozenset[str] | None = None

    def concerns(self, tenant: str | None, namespace: str, workload: str | None) -> bool:
        """Whether pods of that tenant (None: of none), namespace and class (None: unnamed) are to follow it."""
        return (
            (self.tenants is None or tenant in self.tenants)
            and (self.namespaces is None or namespace in self.namespaces)
            and (self.workloads is None or workload in self.workloads)
        )
