"""Reads FairnessPolicy objects, and tells which policy and tenant a pod or a node belongs to.

The API server has checked a policy by the CRD's own rules before; here everything is checked once more, because an
older CRD or none may be installed, and a share that is misread would be taken from somebody.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.fairness import fields
from extender.fairness.fields import PolicyError
from extender.fairness.policy import Foreign, NeverFits, Place, Policy, Share, Tenant
from extender.fairness.reading_rules import read_rules
from extender.wire.policy import DynamicWatermark, FairnessPolicy, Namespaces, PolicySpec, TenantSpec

HALF_LIFE = 86_400.0
HOLD_AFTER = 600.0
SLACK = 1e-9
"""How far the minimum shares may add up to more than all by rounding: three thirds are allowed."""


def read_policy(found: FairnessPolicy) -> Policy:
    """The policy that an object of the API server describes.

    Raises
    ------
    PolicyError
        For the first field that cannot be read or contradicts another.
    """
    spec = found.spec or PolicySpec()
    half_life = fields.length(spec.decay_half_life, "spec.decayHalfLife", HALF_LIFE, above_zero=True)
    tenants = tuple(
        _tenant(each, f"spec.tenants[{index}]", half_life) for index, each in enumerate(spec.tenants or ())
    )
    _check_together(tenants)
    if spec.default is not None and all(tenant.name != spec.default for tenant in tenants):
        names = ", ".join(tenant.name for tenant in tenants)
        raise PolicyError(
            f"spec.default is {spec.default!r}, which is no tenant of the policy; name one of {names}."
        )
    pending = spec.autoscaling.max_pending if spec.autoscaling else None
    max_pending = fields.count(pending, "spec.autoscaling.maxPending", 0)
    watermark = None if spec.watermark is None else _percent(spec.watermark, "spec.watermark")
    return Policy(
        name=found.metadata.name,
        tenants=tenants,
        node_selector=spec.node_selector or None,
        scheduler_names=fields.names(spec.scheduler_names, "spec.schedulerNames"),
        default=spec.default,
        decay_strength=fields.number(spec.decay_strength, "spec.decayStrength", 1.0, 10.0),
        hold_after=fields.length(spec.hold_after, "spec.holdAfter", HOLD_AFTER),
        max_pending=max_pending,
        never_fits=fields.choice(
            spec.never_fits, "spec.neverFits", NeverFits.WAIT if max_pending else NeverFits.REFUSE
        ),
        foreign=fields.choice(spec.foreign_scheduler, "spec.foreignScheduler", Foreign.COUNT),
        reclaim_dry_run=bool(spec.reclaim and spec.reclaim.dry_run),
        generation=found.metadata.generation,
        rules=read_rules(spec.rules or (), frozenset(tenant.name for tenant in tenants)),
        watermark=watermark,
        watermark_max=_watermark_max(spec.dynamic_watermark, watermark),
    )


class Policies:
    """All policies of the cluster, by name; where two claim the same namespace or node, the first has it."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self.all = tuple(sorted(policies, key=lambda policy: policy.name))
        self._tenants = tuple(
            Place(policy, tenant)
            for policy in self.all
            for tenant in sorted(policy.tenants, key=lambda tenant: tenant.name)
        )

    def place(self, namespace: str, labels: Mapping[str, str], scheduler: str) -> Place | None:
        """Where pods of a namespace with these labels stand under a scheduler profile; None: under no policy.

        A namespace that is in no tenant goes to the first policy that names a default, or else to the first policy,
        free for all.
        """
        for place in self._tenants:
            policy, tenant = place
            if tenant and tenant.has(namespace, labels) and policy.serves(scheduler):
                return place
        serving = [policy for policy in self.all if policy.serves(scheduler)]
        for policy in serving:
            if policy.default is not None:
                return Place(policy, policy.tenant(policy.default))
        return Place(serving[0], None) if serving else None

    def pool_of(self, labels: Mapping[str, str]) -> Policy | None:
        """The policy whose pool has a node with these labels; None: no pool has it."""
        return next((policy for policy in self.all if policy.holds(labels)), None)

    def conflicts(
        self, namespaces: Mapping[str, Mapping[str, str]], nodes: Mapping[str, Mapping[str, str]]
    ) -> dict[str, str]:
        """What is claimed twice, given the labels of each namespace and node: policy name → sentences.

        Policies that share nothing with another are left out.
        """
        twice: dict[tuple[str, _Claimant, _Claimant], list[str]] = {}
        named = {name for _, tenant in self._tenants if tenant for name in tenant.namespaces or {tenant.name}}
        for name in sorted(namespaces.keys() | named):
            labels = namespaces.get(name, {})
            holders = [place for place in self._tenants if place.tenant and place.tenant.has(name, labels)]
            for place in holders[1:]:
                owner = next(each for each in holders if _share_a_scheduler(each.policy, place.policy))
                if owner is not place:
                    twice.setdefault(("Namespace", _claimant(owner), _claimant(place)), []).append(name)
        for name in sorted(nodes) if len(self.all) > 1 else ():
            pools = [_claimant(Place(policy, None)) for policy in self.all if policy.holds(nodes[name])]
            for pool in pools[1:]:
                twice.setdefault(("Node", pools[0], pool), []).append(name)
        found: dict[str, list[str]] = {}
        for (noun, claimant, other), names in twice.items():
            told = (
                f"{_listed(noun, names)} in {claimant.words} and in {other.words}: "
                f"the former has {'it' if len(names) == 1 else 'them'}, as the first by name."
            )
            for policy in {claimant.policy, other.policy}:
                found.setdefault(policy, []).append(told)
        return {name: " ".join(sentences) for name, sentences in found.items()}


class _Claimant(NamedTuple):
    """A tenant or a pool, in words, and the policy that it is of."""

    policy: str
    words: str


def _claimant(place: Place) -> _Claimant:
    policy, tenant = place
    return _Claimant(policy.name, f"{f'tenant {tenant.name}' if tenant else 'the pool'} of {policy.name}")


def _share_a_scheduler(one: Policy, other: Policy) -> bool:
    if one.scheduler_names is None or other.scheduler_names is None:
        return True
    return not one.scheduler_names.isdisjoint(other.scheduler_names)


def _listed(noun: str, names: list[str]) -> str:
    """`Node a is`, `Nodes a and b are`, `Nodes a, b and 7 more are`."""
    if len(names) == 1:
        return f"{noun} {names[0]} is"
    if len(names) == 2:
        return f"{noun}s {names[0]} and {names[1]} are"
    return f"{noun}s {names[0]}, {names[1]} and {len(names) - 2} more are"


def _tenant(found: TenantSpec, path: str, half_life: float) -> Tenant:
    if not found.name:
        raise PolicyError(f"{path}.name is missing; every tenant needs a name.")
    if found.weight is None:
        raise PolicyError(f"{path}.weight is missing; give the tenant a weight above 0, such as 1.")
    if not 0 < found.weight <= 1e6:
        raise PolicyError(f"{path}.weight is {found.weight:g}; give a number above 0, at most 1000000.")
    least = _share(found.min_share, found.min_gpus, path, "min") or Share(part=0.0)
    most = _share(found.max_share, found.max_gpus, path, "max")
    if most is not None and (
        (least.part is not None and most.part is not None and least.part > most.part)
        or (least.gpus is not None and most.gpus is not None and least.gpus > most.gpus)
    ):
        raise PolicyError(
            f"{path} is promised {_shown(least)} and may have at most {_shown(most)}; "
            "raise the maximum or lower the minimum."
        )
    namespaces = found.namespaces
    wait_target = found.wait_target
    evictions = found.evictions_per_hour
    return Tenant(
        name=found.name,
        weight=found.weight,
        least=least,
        most=most,
        preemptible=bool(found.preemptible),
        namespaces=fields.names(namespaces.names if namespaces else None, f"{path}.namespaces.names")
        or frozenset(),
        selector=_selector(namespaces, f"{path}.namespaces"),
        half_life=fields.length(found.decay_half_life, f"{path}.decayHalfLife", half_life, above_zero=True),
        queue_depth=fields.count(found.queue_depth, f"{path}.queueDepth", 1_000, least=1),
        min_runtime=fields.length(found.min_runtime, f"{path}.minRuntime", 0.0),
        evictions_per_hour=None
        if evictions is None
        else fields.count(evictions, f"{path}.evictionsPerHour", 0),
        priority_classes=fields.names(found.priority_classes, f"{path}.priorityClasses"),
        wait_target=(
            None
            if wait_target is None
            else fields.length(wait_target, f"{path}.waitTarget", 0.0, above_zero=True)
        ),
        adopt=bool(found.adopt),
    )


def _check_together(tenants: tuple[Tenant, ...]) -> None:
    if not tenants:
        raise PolicyError("spec.tenants is empty; name at least one tenant.")
    seen: set[str] = set()
    for index, tenant in enumerate(tenants):
        if tenant.name in seen:
            raise PolicyError(
                f"spec.tenants[{index}]: the name {tenant.name!r} is taken already; rename one."
            )
        seen.add(tenant.name)
    total = sum(tenant.least.part or 0.0 for tenant in tenants)
    if total > 1 + SLACK:
        raise PolicyError(
            f"spec.tenants: the minShare of all tenants add up to {100 * total:g} percent; lower them to 100 or less."
        )


def _share(percent: float | None, gpus: float | None, path: str, end: str) -> Share | None:
    if percent is not None and gpus is not None:
        raise PolicyError(
            f"{path} has both {end}Share ({percent:g}) and {end}GPUs ({gpus:g}); keep one of the two."
        )
    if percent is not None:
        return Share(part=fields.number(percent, f"{path}.{end}Share", 0.0, 100.0) / 100)
    return None if gpus is None else Share(gpus=fields.number(gpus, f"{path}.{end}GPUs", 0.0, 1e6))


def _percent(found: float, path: str) -> float:
    """A part of the whole, above 0."""
    if not 0 < found <= 100:
        raise PolicyError(f"{path} is {found:g}; give a number above 0, at most 100.")
    return found / 100


def _watermark_max(found: DynamicWatermark | None, watermark: float | None) -> float | None:
    if found is None:
        return None
    path = "spec.dynamicWatermark.max"
    if found.max is None:
        raise PolicyError(
            f"{path} is missing; give the percent up to which the watermark may rise, such as 90."
        )
    most = _percent(found.max, path)
    if watermark is not None and most < watermark:
        raise PolicyError(
            f"{path} is {found.max:g}, less than the watermark ({100 * watermark:g}); raise it or lower the watermark."
        )
    return most


def _shown(share: Share) -> str:
    return f"{share.gpus:g} GPUs" if share.gpus is not None else f"{100 * (share.part or 0.0):g} percent"


def _selector(found: Namespaces | None, path: str) -> Mapping[str, str] | None:
    if found is None:
        return None
    labels = found.selector.match_labels if found.selector else None
    if not labels and (found.selector or not found.names):
        raise PolicyError(
            f"{path} picks no namespace; give names, or a selector with matchLabels, or leave namespaces out "
            "to mean the one named as the tenant."
        )
    return labels
