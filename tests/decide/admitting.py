"""Reviews of pods under one policy, as the webhook's decisions take them."""

from collections.abc import Mapping
from typing import Any

from extender.decide.admit import Admission, Moment, Mutation, mutate, validate
from extender.decide.refusal import Refusal
from extender.fairness.policy import Place, Policy, Tenant
from extender.wire.admission import Review
from tests.builders import GPU, Json, raw_pod, read_pod
from tests.patches import patched

KVITEJ = "system:serviceaccount:kvitej:kvitej"
GATED = [{"name": "kvitej.io/turn"}]
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


class Team:
    """One policy; its tenant `team` has the namespace of its name, every other namespace goes last."""

    def __init__(self, **policy: Any) -> None:
        tenant = Tenant("team", 1, **policy.pop("tenant", {}))
        self.policy = Policy("pool", (tenant,), **policy)

    def place(self, namespace: str, namespace_labels: Mapping[str, str], scheduler_name: str) -> Place | None:
        if namespace_labels.get("outside"):
            return None
        return Place(self.policy, self.policy.tenant(namespace))


def admission(*, classes: frozenset[str] = frozenset(), ours: str = "fair-quota", **policy: Any) -> Admission:
    labels = {"outside": {"outside": "yes"}}
    return Admission(
        Team(**policy),
        lambda name: labels.get(name, {}),
        frozenset((ours, "fair-quota")),
        frozenset((KVITEJ,)),
        classes,
    )


def asking(name: str = "p", *, scheduler: str = "fair-quota", **parts: Any) -> Json:
    raw = raw_pod(name, parts.pop("amounts", {GPU: "1"}), **parts)
    raw["spec"].setdefault("schedulerName", scheduler)
    return raw


def create(raw: Json, **more: Any) -> Review:
    namespace = raw["metadata"].get("namespace", "team")
    return Review(
        "r", "CREATE", namespace, more.pop("username", "ada"), more.pop("dry_run", False), read_pod(raw)
    )


def update(old: Json, new: Json, username: str = "ada") -> Review:
    return Review("r", "UPDATE", "team", username, False, read_pod(new), read_pod(old))


def mutated(raw: Json, rules: Admission) -> Json:
    """The pod as it is stored; a second review of it changes nothing more."""
    found = mutate(create(raw), rules)
    assert isinstance(found, Mutation)
    after: Json = patched(raw, found.patch)
    again = mutate(create(after), rules)
    assert again == Mutation()
    return after


def queued(waiting: int) -> Moment:
    return Moment(0.0, lambda _: waiting)


def refusal(raw: Json, rules: Admission, waiting: int = 0) -> Refusal:
    found = validate(create(raw), rules, queued(waiting))
    assert isinstance(found, Refusal)
    return found
