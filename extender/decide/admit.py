"""Admit, the first door: should this pod be accepted at all, and what does it need to wait for its turn?

`mutate` makes a GPU pod ready to wait: scheduler, gate, the pool's node affinity, toleration. `validate` refuses what
must not be stored: asks that can't be read, priority classes that the tenant may not use, a pod more than its queue
holds, a gate lifted by somebody else. Both keep annotations that only kvitej writes as kvitej wrote them.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from extender import duration
from extender.cluster.request import RequestError, request_of
from extender.decide import migprofile
from extender.decide.bind import describe
from extender.decide.confine import Allowed, confined
from extender.decide.refusal import RETRY_SECONDS, Refusal, Why
from extender.decide.rules import PRODUCT, Room, Subject, judge, keeps_headroom, models_of, workload_of
from extender.fairness.depth import Queue
from extender.fairness.policy import Foreign, NeverFits, Place, Policy
from extender.wire.admission import Add, Patch, Remove, Review, escaped
from extender.wire.marks import (
    CHECKPOINT_INTERVAL,
    DEFAULT_SCHEDULER,
    GATE,
    GPU_MEMORY,
    MIG_PROFILE,
    PREEMPTIBLE,
    only_ours,
)
from extender.wire.objects import Pod, PodSpec, Toleration

FAIR_QUOTA = "fair-quota"
"""The scheduler profile that adopted and rewritten pods get."""

TAINT = "nvidia.com/gpu"


class Policies(Protocol):
    """Who belongs where, by the policies as they are now."""

    def place(self, namespace: str, labels: Mapping[str, str], scheduler: str, /) -> Place | None:
        """The policy and tenant of pods of this namespace and scheduler; None where no policy applies."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the door goes by.

    `namespace_labels` gives the labels of a namespace. `schedulers` are our profiles, FAIR_QUOTA among them. `writers`
    are the API users that are kvitej. `preemptible_classes` holds the PriorityClasses labelled preemptible.
    `never_fits` tells whether no node of the policy's pool would hold the pod even when empty, `room` what the pool
    has left for it, and `offers` which MIG instances the pool's nodes have, or all nodes where no policy is; None
    while too little is known to say.
    """

    policies: Policies
    namespace_labels: Callable[[str], Mapping[str, str]]
    schedulers: frozenset[str]
    writers: frozenset[str]
    preemptible_classes: Container[str] = frozenset()
    never_fits: Callable[[Policy, Pod], bool] = lambda policy, pod: False
    room: Callable[[Policy, Pod], Room | None] = lambda policy, pod: None
    offers: Callable[[Policy | None], frozenset[str] | None] = lambda policy: None

    def covers(self, namespace: str, scheduler: str) -> Place | None:
        """Where a pod of this namespace stands in our line; None if it is not in it."""
        if scheduler not in self.schedulers:
            return None
        return self.policies.place(namespace, self.namespace_labels(namespace), scheduler)


@dataclass(frozen=True, slots=True)
class Mutation:
    """What to change, and what to tell about it."""

    patch: Patch = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """`queue` is the one that the pod joins if it is stored, `units` what it may take of a pool that keeps headroom.

    `trial` are refusals by rules that are only tried, and the user sees them as `warnings`.
    """

    queue: Queue | None = None
    units: float = 0.0
    trial: tuple[Refusal, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f"kvitej would refuse this but for dryRun: {each.message}" for each in self.trial)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the validating review goes by beside: the time in seconds since 1970, and who waits.

    `depth` says how many pods wait in a queue, `coming` what units pods of a policy ask for that were let pass and
    that nobody has seen yet.
    """

    wall: float
    depth: Callable[[Queue], int]
    coming: Callable[[str], float] = lambda policy: 0.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """A GPU pod: the scheduler that it shall have, and where it stands in the line then, if in it."""

    subject: Subject
    scheduler: str
    place: Place | None

    @property
    def tenant(self) -> str | None:
        return self.place.tenant.name if self.place and self.place.tenant else None


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
    cut = _cut(pod, turn, admission) if turn else ()
    if isinstance(cut, Refusal):
        return cut
    patch = [*_annotate(pod, removed), *cut, *(_prepared(pod, turn, admission) if turn else ())]
    return Mutation(tuple(patch), _told(removed, "was removed"))


def validate(review: Review, admission: Admission, moment: Moment) -> Accepted | Refusal:
    """Decide on a validating review."""
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
    if turn is None:
        return Accepted()
    return _uncut(pod, turn, admission) or _in_line(pod, turn, admission, moment)


def _in_line(pod: Pod, turn: _Turn, admission: Admission, moment: Moment) -> Accepted | Refusal:
    """What the policy says to a pod that is to be stored as it is."""
    place = turn.place
    if place is None:
        return Accepted()
    policy, tenant = place
    room = admission.room(policy, pod) if keeps_headroom(place) else None
    if room is not None:
        room = room._replace(waiting=room.waiting + moment.coming(policy.name))
    refusal, trial = judge(place, turn.subject, room, moment.wall)
    if refusal is not None:
        return refusal
    if _spec(pod).node_name:
        return Accepted(trial=trial)
    if policy.never_fits is NeverFits.REFUSE and admission.never_fits(policy, pod):
        return Refusal(
            Why.NEVER_FITS,
            f"no node of the pool would hold it even when empty: it asks for {describe(turn.subject.request)}; "
            f"ask for less, or set neverFits: wait in FairnessPolicy {policy.name}",
            turn.tenant,
        )
    if tenant is None:
        return Accepted(trial=trial)
    queue = Queue(policy.name, tenant.name)
    waiting = moment.depth(queue)
    if waiting >= tenant.queue_depth:
        return Refusal(
            Why.QUEUE_FULL,
            f"the queue of tenant {tenant.name} is full: {waiting:,} of {tenant.queue_depth:,} pods wait "
            f"(queueDepth in FairnessPolicy {policy.name}); try again in {RETRY_SECONDS} s",
            tenant.name,
        )
    return Accepted(queue, room.asks if room else 0.0, trial)


def _turn(review: Review, pod: Pod, admission: Admission) -> _Turn | Refusal | None:
    """Where a pod that is created goes; None for one that neither asks for GPUs nor is of ours and names a profile."""
    try:
        request = request_of(pod)
        if not request.devices and MIG_PROFILE not in _annotations(pod):
            return None
        subject = Subject(pod, review.namespace, request, workload_of(pod))
    except RequestError as error:
        return Refusal(Why.UNREADABLE, str(error))
    unreadable = _unreadable(_annotations(pod))
    if unreadable:
        return Refusal(Why.UNREADABLE, unreadable)
    scheduler = named = _spec(pod).scheduler_name or DEFAULT_SCHEDULER
    home = admission.covers(review.namespace, FAIR_QUOTA)
    if home is not None and home.tenant is not None:
        if named == DEFAULT_SCHEDULER and home.tenant.adopt:
            scheduler = FAIR_QUOTA
        elif named not in admission.schedulers and request.devices:
            if home.policy.foreign is Foreign.DENY:
                return Refusal(
                    Why.SCHEDULER,
                    f"spec.schedulerName: {named!r} may not schedule GPU pods of tenant {home.tenant.name}; "
                    f"set {FAIR_QUOTA!r} (foreignScheduler in FairnessPolicy {home.policy.name})",
                    home.tenant.name,
                )
            if home.policy.foreign is Foreign.REWRITE:
                scheduler = FAIR_QUOTA
    if scheduler not in admission.schedulers and not request.devices:
        return None
    place = home if scheduler == FAIR_QUOTA else admission.covers(review.namespace, scheduler)
    return _classed(pod, place) or _Turn(subject, scheduler, place)


def _cut(pod: Pod, turn: _Turn, admission: Admission) -> Patch | Refusal:
    """How the pod's GPUs become MIG instances of the profile that it names; nothing where it names none."""
    if turn.scheduler not in admission.schedulers:
        return ()
    policy = turn.place.policy if turn.place else None
    try:
        return migprofile.cut(pod, turn.subject.request, policy, admission.offers)
    except RequestError as error:
        return Refusal(Why.MIG_PROFILE, str(error), turn.tenant)


def _uncut(pod: Pod, turn: _Turn, admission: Admission) -> Refusal | None:
    """Refuse what the mutating review has not come to see: it would take a whole GPU."""
    cut = _cut(pod, turn, admission)
    if isinstance(cut, Refusal):
        return cut
    if not cut:
        return None
    return Refusal(
        Why.MIG_PROFILE,
        f"metadata.annotations[{MIG_PROFILE}]: the pod asks for whole GPUs still, as kvitej was not asked in time to "
        "put MIG instances in their place; create it again",
        turn.tenant,
    )


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
    spec = _spec(pod)
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
    yield from confined(spec, _allowed(turn))


def _allowed(turn: _Turn) -> list[Allowed]:
    """The labels of nodes that the pod may use: those of its pool, and the models that its policy's rules leave it."""
    if turn.place is None:
        return []
    pool = turn.place.policy.node_selector or {}
    return [
        *((key, (value,)) for key, value in sorted(pool.items())),
        *((PRODUCT, products) for products in models_of(turn.place, turn.subject)),
    ]


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
        Remove(f"/metadata/annotations/{escaped(name)}")
        if value is None
        else Add(f"/metadata/annotations/{escaped(name)}", value)
        for name, value in values.items()
    )


def _told(values: Mapping[str, str | None], how: str) -> tuple[str, ...]:
    return tuple(f"annotation {name} is kvitej's to write, and {how}" for name in values)


def _member(path: str, present: Mapping[str, str] | None, key: str, value: str) -> Add:
    return Add(path, {key: value}) if present is None else Add(f"{path}/{escaped(key)}", value)


def _item(path: str, present: Sequence[object] | None, value: object) -> Add:
    return Add(path, [value]) if present is None else Add(f"{path}/-", value)


def _is_gated(pod: Pod) -> bool:
    return any(gate.name == GATE for gate in _spec(pod).scheduling_gates or ())


def _annotations(pod: Pod) -> Mapping[str, str]:
    return pod.metadata.annotations or {}


def _spec(pod: Pod) -> PodSpec:
    assert pod.spec is not None  # the decoder of reviews sees to it
    return pod.spec
