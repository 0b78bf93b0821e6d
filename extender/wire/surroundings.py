"""Slim shapes of what fairness reads besides nodes and pods: policies, namespaces, priority classes, budgets."""

from typing import Any

import msgspec

from extender.wire.objects import ObjectMeta, SelectorRequirement, Slim

GROUP = "kvitej.io"
VERSION = "v1alpha1"


class PolicyMeta(ObjectMeta):
    generation: int = 0


class FairnessPolicy(Slim):
    """A policy as the API server has it; what `spec` and `status` say is for others to read."""

    metadata: PolicyMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class Namespace(Slim):
    metadata: ObjectMeta


class PriorityClass(Slim):
    metadata: ObjectMeta
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class LabelSelector(Slim):
    """All of it must hold; `operator` is In, NotIn, Exists or DoesNotExist. Without any part it holds for all."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class BudgetSpec(Slim):
    selector: LabelSelector | None = None
    """None: no pod."""


class BudgetStatus(Slim):
    disruptions_allowed: int = 0


class PodDisruptionBudget(Slim):
    metadata: ObjectMeta
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)
