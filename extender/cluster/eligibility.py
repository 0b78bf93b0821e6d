"""Which nodes a pod may use by the scheduler's own rules: taints, node selector, required node affinity.

The planner nominates nodes, so it asks beforehand what kube-scheduler will ask: the plugins NodeUnschedulable,
TaintToleration and NodeAffinity with their default settings (component-helpers `scheduling/corev1`, v1.37). What
does not matter to these rules is dropped here and equal values are one object, so that like nodes share their
traits, like pods their constraints, and an answer can be kept for the pair.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from extender.wire.objects import Node, NodeSelectorTerm, Pod, SelectorRequirement
from extender.wire.objects import Toleration as WireToleration

NODE_NAME = ".metadata.name"
"""Stands for the field `metadata.name` among label keys: none of them begins with a dot."""
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
PASSING = frozenset({"nvidia.com/gfd.timestamp"})
"""Labels that are not kept: this one tells when GPU feature discovery started, on each node another time."""

_EFFECTS = ("NoSchedule", "NoExecute")
_KINDS = 2**14
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


class Taint(NamedTuple):
    key: str
    value: str
    effect: str


class Toleration(NamedTuple):
    """An empty key or effect stands for any; value None, too."""

    key: str
    value: str | None
    effect: str


class Requirement(NamedTuple):
    """`key` is a label or `NODE_NAME`; `values` are sorted; `bound` is what Gt and Lt compare with."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    bound: int = 0


Term = tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """What a node shows to these rules; a cordoned one has the taint `UNSCHEDULABLE`.

    `labels` are sorted by key. Value None is the node's own name, so that nodes that differ in nothing but their
    host name are alike.
    """

    labels: tuple[tuple[str, str | None], ...] = ()
    taints: tuple[Taint, ...] = ()


PLAIN = NodeTraits()


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod demands of its node: all of `required`, one of `terms` (None: it names none), and no taint that it
    does not tolerate."""

    required: Term = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


def traits_of(node: Node) -> NodeTraits:
    """Never raises."""
    name = node.metadata.name
    labels = tuple(
        _pair(key, None if value == name else value)
        for key, value in sorted((node.metadata.labels or {}).items())
        if key not in PASSING
    )
    spec = node.spec
    taints = {
        Taint(taint.key, taint.value or "", taint.effect)
        for taint in (spec.taints if spec else None) or ()
        if taint.effect in _EFFECTS
    }
    if spec and spec.unschedulable:
        taints.add(Taint(UNSCHEDULABLE, "", "NoSchedule"))
    return _traits(labels, tuple(sorted(taints)))


def constraints_of(pod: Pod) -> Constraints:
    """Never raises: a term that the scheduler cannot parse matches nothing, here as there."""
    spec = pod.spec
    if spec is None:
        return _constraints()
    required = tuple(
        Requirement(key, "In", (value,)) for key, value in sorted((spec.node_selector or {}).items())
    )
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = None
    if affinity is not None and affinity.required is not None:
        read = map(_term, affinity.required.node_selector_terms or ())
        terms = tuple(sorted({term for term in read if term}))
    tolerations = {each for each in map(_toleration, spec.tolerations or ()) if each is not None}
    ordered = sorted(
        tolerations, key=lambda each: (each.key, each.value or "", each.value is None, each.effect)
    )
    return _constraints(required, terms, tuple(ordered))


def admits(traits: NodeTraits, constraints: Constraints, name: str) -> bool:
    """Whether a pod with these constraints may use the node of that name, which has these traits."""
    return (
        all(_tolerated(taint, constraints.tolerations) for taint in traits.taints)
        and _meets(traits, name, constraints.required)
        and (constraints.terms is None or any(_meets(traits, name, term) for term in constraints.terms))
    )


def depends_on_name(traits: NodeTraits, constraints: Constraints) -> bool:
    """Whether nodes with these traits can differ in what `admits` says; if not, one answer holds for all of them."""
    return any(
        requirement.key == NODE_NAME or _label(traits, requirement.key, "") is None
        for term in (constraints.required, *(constraints.terms or ()))
        for requirement in term
    )


def _meets(traits: NodeTraits, name: str, term: Term) -> bool:
    return all(_holds(requirement, traits, name) for requirement in term)


def _holds(requirement: Requirement, traits: NodeTraits, name: str) -> bool:
    key, operator, values, bound = requirement
    value = name if key == NODE_NAME else _label(traits, key, _ABSENT)
    value = name if value is None else value
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not _ABSENT
    if operator == "DoesNotExist":
        return value is _ABSENT
    number = _integer(value)
    return number is not None and (number > bound if operator == "Gt" else number < bound)


_ABSENT = "\0"
"""No label has this value."""


def _label(traits: NodeTraits, key: str, absent: str) -> str | None:
    """The label's value; None where it is the node's name."""
    labels = traits.labels
    at = bisect_left(labels, key, key=lambda pair: pair[0])
    return labels[at][1] if at < len(labels) and labels[at][0] == key else absent


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        key in ("", taint.key) and effect in ("", taint.effect) and value in (None, taint.value)
        for key, value, effect in tolerations
    )


def _toleration(toleration: WireToleration) -> Toleration | None:
    """None for one that tolerates nothing; Gt and Lt are such, for their feature gate is off by default."""
    effect = toleration.effect or ""
    if effect not in ("", *_EFFECTS):
        return None
    if toleration.operator == "Exists":
        return Toleration(toleration.key or "", None, effect)
    if toleration.operator in (None, "", "Equal"):
        return Toleration(toleration.key or "", toleration.value or "", effect)
    return None


def _term(term: NodeSelectorTerm) -> Term | None:
    """None for one that matches nothing: empty, or with a part that cannot be parsed."""
    parts = [
        *map(_expression, term.match_expressions or ()),
        *map(_field, term.match_fields or ()),
    ]
    read = [part for part in parts if part is not None]
    return tuple(sorted(set(read))) if len(read) == len(parts) else None


def _expression(written: SelectorRequirement) -> Requirement | None:
    key, operator, values = written.key, written.operator, written.values or []
    domain, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _DOMAIN.fullmatch(domain)):
        return None
    if not all(map(_VALUE.fullmatch, values)):
        return None
    if operator in ("In", "NotIn") and values:
        return Requirement(key, operator, tuple(sorted(set(values))))
    if operator in ("Exists", "DoesNotExist") and not values:
        return Requirement(key, operator)
    if operator in ("Gt", "Lt") and len(values) == 1 and (bound := _integer(values[0])) is not None:
        return Requirement(key, operator, (), bound)
    return None


def _field(written: SelectorRequirement) -> Requirement | None:
    values = tuple(written.values or ())
    if written.key == "metadata.name" and written.operator in ("In", "NotIn") and len(values) == 1:
        return Requirement(NODE_NAME, written.operator, values)
    return None


def _integer(text: str) -> int | None:
    """Label values have no sign, and numbers beyond 64 bits are none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 63 else None
    return number if number is not None and number < 2**63 else None


_traits = lru_cache(_KINDS)(NodeTraits)
_constraints = lru_cache(_KINDS)(Constraints)


@lru_cache(_KINDS)
def _pair(key: str, value: str | None) -> tuple[str, str | None]:
    return key, value
