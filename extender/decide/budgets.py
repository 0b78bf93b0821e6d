"""Which PodDisruptionBudgets cover a pod, and how many disruptions each still allows."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.wire.surroundings import LabelSelector, PodDisruptionBudget


class _Rule(NamedTuple):
    key: str
    operator: str
    values: frozenset[str]


class _Cover(NamedTuple):
    """One budget; without rules it covers every pod of its namespace."""

    name: str
    rules: tuple[_Rule, ...]


class Budgets:
    """Budgets are named `namespace/name`; `allowed` are the disruptions that each still allows."""

    def __init__(self) -> None:
        self.allowed: dict[str, int] = {}
        self._covers: dict[str, tuple[_Cover, ...]] = {}

    def follow(self, budgets: Iterable[PodDisruptionBudget]) -> set[str]:
        """These are all there are; gives the namespaces in which other pods may be covered now."""
        had = self._covers
        covers: dict[str, list[_Cover]] = {}
        self.allowed = {}
        for budget in budgets:
            namespace = budget.metadata.namespace or "default"
            name = f"{namespace}/{budget.metadata.name}"
            self.allowed[name] = budget.status.disruptions_allowed
            if budget.spec.selector is not None:
                covers.setdefault(namespace, []).append(_Cover(name, _rules(budget.spec.selector)))
        self._covers = {namespace: tuple(sorted(found)) for namespace, found in covers.items()}
        return {name for name in had.keys() | covers.keys() if had.get(name) != self._covers.get(name)}

    def covering(self, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The budgets that cover a pod of the namespace with these labels, by name."""
        return tuple(
            cover.name
            for cover in self._covers.get(namespace, ())
            if all(_holds(rule, labels) for rule in cover.rules)
        )


def _rules(selector: LabelSelector) -> tuple[_Rule, ...]:
    rules = [
        _Rule(key, "In", frozenset((value,))) for key, value in sorted((selector.match_labels or {}).items())
    ]
    rules += [
        _Rule(written.key, written.operator, frozenset(written.values or ()))
        for written in selector.match_expressions or ()
    ]
    return tuple(rules)


def _holds(rule: _Rule, labels: Mapping[str, str]) -> bool:
    if rule.operator == "In":
        return labels.get(rule.key) in rule.values
    if rule.operator == "NotIn":
        return labels.get(rule.key) not in rule.values
    if rule.operator == "Exists":
        return rule.key in labels
    if rule.operator == "DoesNotExist":
        return rule.key not in labels
    # An operator that we don't know may cover the pod.
    return True
