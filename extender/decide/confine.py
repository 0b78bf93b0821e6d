"""Keeps a pod on nodes whose labels have certain values: required node affinity, on top of what it requires already."""

from collections.abc import Iterator, Sequence

from extender.wire.admission import Add
from extender.wire.objects import NodeSelectorTerm, PodSpec

Allowed = tuple[str, tuple[str, ...]]
"""A label and the values that it may have, sorted."""


def confined(spec: PodSpec, allowed: Sequence[Allowed]) -> Iterator[Add]:
    """The patch that adds what is missing of it; nothing to a pod that is confined already."""
    if not allowed:
        return
    required = {"nodeSelectorTerms": [{"matchExpressions": [_in(*each) for each in allowed]}]}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    node = spec.affinity.node_affinity if spec.affinity else None
    if spec.affinity is None:
        yield Add("/spec/affinity", {"nodeAffinity": {key: required}})
    elif node is None:
        yield Add("/spec/affinity/nodeAffinity", {key: required})
    elif node.required is None:
        yield Add(f"/spec/affinity/nodeAffinity/{key}", required)
    else:
        path = f"/spec/affinity/nodeAffinity/{key}/nodeSelectorTerms"
        for place, existing in enumerate(node.required.node_selector_terms or ()):
            yield from _narrowed(f"{path}/{place}/matchExpressions", existing, allowed)


def _narrowed(path: str, term: NodeSelectorTerm, allowed: Sequence[Allowed]) -> Iterator[Add]:
    """Terms are alternatives, so each is narrowed; an empty one picks no node, and would pick some then."""
    found = term.match_expressions
    if not found and not term.match_fields:
        return
    has = [(each.key, each.operator, each.values) for each in found or ()]
    missing = [_in(key, values) for key, values in allowed if (key, "In", list(values)) not in has]
    if found is None:
        yield Add(path, missing)
    else:
        yield from (Add(f"{path}/-", each) for each in missing)


def _in(key: str, values: Sequence[str]) -> dict[str, object]:
    return {"key": key, "operator": "In", "values": list(values)}
