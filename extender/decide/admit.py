"""Admit, the first door: should this pod be accepted at all, and what does it need to wait for its turn?

`mutate` makes a GPU pod ready to wait: scheduler, gate, the pool's node affinity, toleration. `validate` refuses what
must not be stored: asks that can't be read, priority classes that the tenant may not use, a pod more than its queue
holds, a gate lifted by somebody else. Both keep annotations that only kvitej writes as kvitej wrote them.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Protocol

from extender import duration
from extender.cluster.request import RequestError, request_of
from extender.decide.bind import describe
from extender.fairness.depth import Queue
from extender.fairness.policy import Foreign, NeverFits, Place, Policy
from extender.wire.admission import Add, Patch, Remove, Review
from extender.wire.marks import (
    CHECKPOINT_INTERVAL,
    DEFAULT_SCHEDULER,
    GATE,
    GPU_MEMORY,
    PREEMPTIBLE,
    only_ours,
)
from extender.wire.objects import NodeSelector, NodeSelectorTerm, Pod, PodSpec, Toleration

FAIR_QUOTA = "fair-quota"
"""The scheduler profile that adopted and rewritten pods get."""

TAINT = "nvidia.com/gpu"
RETRY_SECONDS = 30


class Policies(Protocol):
    """Who belongs where, by the policies as they are now."""

    def place(self, namespace: str, labels: Mapping[str, str], scheduler: str, /) -> Place | None:
        """The policy and tenant of pods of this namespace and scheduler; None where no policy applies."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the door goes by.

    `namespace_labels` gives the labels of a namespace. `schedulers` are our profiles, FAIR_QUOTA among them. `writers`
    are the API users that are kvitej. `preemptible_classes` holds the PriorityClasses labelled preemptible.
    `never_fits` tells whether no node of the policy's pool would hold the pod even when empty.
    """

    policies: Policies
    namespace_labels: Callable[[str], Mapping[str, str]]
    schedulers: frozenset[str]
    writers: frozenset[str]
    preemptible_classes: Container[str] = frozenset()
    never_fits: Callable[[Policy, Pod], bool] = lambda policy, pod: False

    def covers(self, namespace: str, scheduler: str) -> Place | None:
        """Where a pod of this namespace stands in our line; None if it is not in it."""
        if scheduler not in self.schedulers:
            return None
        return self.policies.place(namespace, self.namespace_labels(namespace), scheduler)


class Why(Enum):
    """Why a request is refused, as metrics count it, with the API's code and word."""

    UNREADABLE = ("unreadable", HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid")
    SCHEDULER = ("scheduler", HTTPStatus.FORBIDDEN, "Forbidden")
    PRIORITY_CLASS = ("priority-class", HTTPStatus.FORBIDDEN, "Forbidden")
    QUEUE_FULL = ("queue-full", HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests")
    NEVER_FITS = ("never-fits", HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid")
    GATE = ("gate", HTTPStatus.FORBIDDEN, "Forbidden")
    ANNOTATION = ("annotation", HTTPStatus.FORBIDDEN, "Forbidden")

    def __init__(self, label: str, code: HTTPStatus, reason: str) -> None:
        self.label = label
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """`message` is a sentence for whoever sent the request; `tenant` is whose pod it was, if anybody's."""

    why: Why
    message: str
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """What to change, and what to tell about it."""

    patch: Patch = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """`queue` is the one that the pod joins if it is stored."""

    queue: Queue | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A GPU pod: the scheduler that it shall have, and where it stands in the line then, if in it."""

    scheduler: str
    place: Place | None


def mutate(review: Review, admission: Admission) -> Mutation | Refusal:
    """Decide on a mutating review; doing so again on the patched pod changes nothing."""
    pod = review.pod
    if pod is None:
        return Mutation()
    if review.operation == "UPDATE":
        restored = _restored(review, admission)
        return Mutation(_annotate(pod, restored), _told(restored, "stays as it was"))
    removed: dict[str, str | None] = {name: None for name in sorted(_annotations(pod)) if only_ours(name)}
    turn = _turn(review, pod, admission)
    if isinstance(turn, Refusal):
        return turn
    patch = [*_annotate(pod, removed), *(_prepared(pod, turn, admission) if turn else ())]
    return Mutation(tuple(patch), _told(removed, "was removed"))


def validate(review: Review, admission: Admission, depth: Callable[[Queue], int]) -> Accepted | Refusal:
    """Decide on a validating review; `depth` says how many pods wait in a queue."""
    pod = review.pod
    if pod is None:
        return Accepted()
    if review.operation == "UPDATE":
        return _unspoilt(review, admission) or Accepted()
    if not pod.metadata.uid:
        return Refusal(
            Why.UNREADABLE, "metadata.uid is missing or empty: the API server gives one before it validates"
        )
    turn = _turn(review, pod, admission)
    if isinstance(turn, Refusal):
        return turn
    forged = [name for name in _annotations(pod) if only_ours(name)]
    if forged:
        return Refusal(
            Why.ANNOTATION, f"metadata.annotations[{forged[0]}]: only kvitej writes it; leave it out"
        )
    place = turn.place if turn else None
    if place is None or _spec(pod).node_name:
        return Accepted()
    if place.policy.never_fits is NeverFits.REFUSE and admission.never_fits(place.policy, pod):
        return Refusal(
            Why.NEVER_FITS,
            f"no node of the pool would hold it even when empty: it asks for {describe(request_of(pod))}; ask for "
            f"less, or set neverFits: wait in FairnessPolicy {place.policy.name}",
            place.tenant.name if place.tenant else None,
        )
    if place.tenant is None:
        return Accepted()
    tenant, queue = place.tenant, Queue(place.policy.name, place.tenant.name)
    waiting = depth(queue)
    if waiting >= tenant.queue_depth:
        return Refusal(
            Why.QUEUE_FULL,
            f"the queue of tenant {tenant.name} is full: {waiting:,} of {tenant.queue_depth:,} pods wait "
            f"(queueDepth in FairnessPolicy {place.policy.name}); try again in {RETRY_SECONDS} s",
            tenant.name,
        )
    return Accepted(queue)


def _turn(review: Review, pod: Pod, admission: Admission) -> _Turn | Refusal | None:
    """Where a pod that is created goes; None for a pod without GPUs."""
    try:
        if not request_of(pod).devices:
            return None
    except RequestError as error:
        return Refusal(Why.UNREADABLE, str(error))
    unreadable = _unreadable(_annotations(pod))
    if unreadable:
        return Refusal(Why.UNREADABLE, unreadable)
    named = _spec(pod).scheduler_name or DEFAULT_SCHEDULER
    scheduler = named
    home = admission.covers(review.namespace, FAIR_QUOTA)
    if home is not None and home.tenant is not None:
        if named == DEFAULT_SCHEDULER and home.tenant.adopt:
            scheduler = FAIR_QUOTA
        elif named not in admission.schedulers:
            if home.policy.foreign is Foreign.DENY:
                return Refusal(
                    Why.SCHEDULER,
                    f"spec.schedulerName: {named!r} may not schedule GPU pods of tenant {home.tenant.name}; "
                    f"set {FAIR_QUOTA!r} (foreignScheduler in FairnessPolicy {home.policy.name})",
                    home.tenant.name,
                )
            if home.policy.foreign is Foreign.REWRITE:
                scheduler = FAIR_QUOTA
    place = home if scheduler == FAIR_QUOTA else admission.covers(review.namespace, scheduler)
    return _classed(pod, place) or _Turn(scheduler, place)


def _classed(pod: Pod, place: Place | None) -> Refusal | None:
    """A pod that names no class is nobody's to forbid: everyone may have that priority."""
    named = _spec(pod).priority_class_name
    if not named or place is None or place.tenant is None or place.tenant.priority_classes is None:
        return None
    if named in place.tenant.priority_classes:
        return None
    may = ", ".join(sorted(place.tenant.priority_classes)) or "none"
    return Refusal(
        Why.PRIORITY_CLASS,
        f"spec.priorityClassName: {named!r} is not for tenant {place.tenant.name}; allowed: {may} "
        f"(priorityClasses in FairnessPolicy {place.policy.name})",
        place.tenant.name,
    )


def _unreadable(annotations: Mapping[str, str]) -> str | None:
    """What is wrong with an annotation that `request_of` does not read."""
    interval = annotations.get(CHECKPOINT_INTERVAL)
    if interval is not None:
        path = f"metadata.annotations[{CHECKPOINT_INTERVAL}]"
        try:
            if duration.nanoseconds(interval) <= 0:
                return f"{path}: {interval!r} is no time between checkpoints; give more than 0, such as 30m"
        except ValueError as error:
            return f"{path}: {error}"
    return None


def _prepared(pod: Pod, turn: _Turn, admission: Admission) -> Iterator[Add]:
    """What a GPU pod needs to wait in line; a pod that has its node already can't be gated."""
    spec, place = _spec(pod), turn.place
    if turn.scheduler != (spec.scheduler_name or DEFAULT_SCHEDULER):
        yield Add("/spec/schedulerName", turn.scheduler)
    if turn.scheduler not in admission.schedulers:
        return
    labels = pod.metadata.labels
    if (
        spec.priority_class_name in admission.preemptible_classes
        and (labels or {}).get(PREEMPTIBLE) != "true"
    ):
        yield _member("/metadata/labels", labels, PREEMPTIBLE, "true")
    if spec.node_name:
        return
    if not _is_gated(pod):
        yield _item("/spec/schedulingGates", spec.scheduling_gates, {"name": GATE})
    if not any(_tolerates(toleration) for toleration in spec.tolerations or ()):
        tolerated = {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}
        yield _item("/spec/tolerations", spec.tolerations, tolerated)
    yield from _confined(spec, (place.policy.node_selector if place else None) or {})


def _confined(spec: PodSpec, labels: Mapping[str, str]) -> Iterator[Add]:
    """Required node affinity for `labels`, on top of what is required already."""
    if not labels:
        return
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [_in(*label) for label in sorted(labels.items())]}]
    }
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
        for place, existing in enumerate(_terms(node.required)):
            yield from _narrowed(f"{path}/{place}/matchExpressions", existing, labels)


def _narrowed(path: str, term: NodeSelectorTerm, labels: Mapping[str, str]) -> Iterator[Add]:
    """Terms are alternatives, so each is narrowed; an empty one picks no node, and would pick some then."""
    found = term.match_expressions
    if not found and not term.match_fields:
        return
    has = [(each.key, each.operator, each.values) for each in found or ()]
    missing = [_in(*label) for label in sorted(labels.items()) if (label[0], "In", [label[1]]) not in has]
    if found is None:
        yield Add(path, missing)
    else:
        yield from (Add(f"{path}/-", each) for each in missing)


def _in(key: str, value: str) -> dict[str, object]:
    return {"key": key, "operator": "In", "values": [value]}


def _terms(required: NodeSelector) -> list[NodeSelectorTerm]:
    return required.node_selector_terms or []


def _tolerates(toleration: Toleration) -> bool:
    """Whether it bears any taint `nvidia.com/gpu:NoSchedule`, whatever its value."""
    return (
        toleration.operator == "Exists"
        and (toleration.key or TAINT) == TAINT
        and (toleration.effect or "NoSchedule") == "NoSchedule"
    )


def _unspoilt(review: Review, admission: Admission) -> Refusal | None:
    """Refuse an update that takes what is kvitej's."""
    pod, old = review.pod, review.old
    assert pod is not None
    assert old is not None
    if review.username in admission.writers:
        return None
    if _is_gated(old) and not _is_gated(pod):
        return Refusal(
            Why.GATE,
            f"spec.schedulingGates: kvitej lifts {GATE} when the pod's turn has come; "
            "in an emergency an administrator runs `kvitej release`",
        )
    changed = _restored(review, admission)
    if changed:
        name = next(iter(changed))
        return Refusal(
            Why.ANNOTATION, f"metadata.annotations[{name}]: it is not for {review.username!r} to change"
        )
    return None


def _restored(review: Review, admission: Admission) -> dict[str, str | None]:
    """Annotations that are not the writer's to change, with their values before; None for none."""
    pod, old = review.pod, review.old
    assert pod is not None
    assert old is not None
    if review.username in admission.writers:
        return {}
    was, now = _annotations(old), _annotations(pod)
    fixed = [name for name in sorted(was.keys() | now.keys()) if only_ours(name)]
    if _spec(old).node_name:
        fixed.append(GPU_MEMORY)
    return {name: was.get(name) for name in fixed if was.get(name) != now.get(name)}


def _annotate(pod: Pod, values: Mapping[str, str | None]) -> Patch:
    """Set annotations, and remove those with None."""
    present = pod.metadata.annotations
    if present is None:
        found = {name: value for name, value in values.items() if value is not None}
        return (Add("/metadata/annotations", found),) if found else ()
    return tuple(
        Remove(f"/metadata/annotations/{_escaped(name)}")
        if value is None
        else Add(f"/metadata/annotations/{_escaped(name)}", value)
        for name, value in values.items()
    )


def _told(values: Mapping[str, str | None], how: str) -> tuple[str, ...]:
    return tuple(f"annotation {name} is kvitej's to write, and {how}" for name in values)


def _member(path: str, present: Mapping[str, str] | None, key: str, value: str) -> Add:
    return Add(path, {key: value}) if present is None else Add(f"{path}/{_escaped(key)}", value)


def _item(path: str, present: Sequence[object] | None, value: object) -> Add:
    return Add(path, [value]) if present is None else Add(f"{path}/-", value)


def _escaped(key: str) -> str:
    """A key as part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _is_gated(pod: Pod) -> bool:
    return any(gate.name == GATE for gate in _spec(pod).scheduling_gates or ())


def _annotations(pod: Pod) -> Mapping[str, str]:
    return pod.metadata.annotations or {}


def _spec(pod: Pod) -> PodSpec:
    assert pod.spec is not None  # the decoder of reviews sees to it
    return pod.spec
