"""The rules of a policy at the first door: which of them a pod does not meet, and the sentence that says so.

What a rule looks at is the pod as it is to be stored, the wall clock, and what the pool has left.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from extender import duration
from extender.cluster.eligibility import Constraints, NodeTraits, Term, admits, constraints_of
from extender.cluster.geometry import unit_share
from extender.cluster.inventory import LABEL
from extender.cluster.mig import PREFIX
from extender.cluster.request import GPU, SHARED, Request, RequestError
from extender.decide.refusal import RETRY_SECONDS, Refusal, Why
from extender.fairness.policy import Place
from extender.fairness.rules import (
    Closed,
    Demand,
    Form,
    Forms,
    Headroom,
    MaxGpus,
    MinMemory,
    Models,
    Rule,
)
from extender.fairness.window import DAYS, NEVER, Window
from extender.wire.marks import GPU_MEMORY, MIG_PROFILE, WORKLOAD, WORKLOAD_TYPE
from extender.wire.objects import Pod

PRODUCT = LABEL + "product"
"""The node label that names the model of the GPUs."""
_NAMES = frozenset((WORKLOAD, WORKLOAD_TYPE))
_SHARED = ".shared"
_GIGABYTE = 10**9
"""What a profile's name is sure of for each GB that it says: the sizes that NVIDIA rounds are in GiB."""
_SLACK = 1e-9


class Room(NamedTuple):
    """GPU units of a pool: all, those that pods have, those that pods wait for, and what one more pod asks for."""

    capacity: float
    used: float
    waiting: float
    asks: float


@dataclass(frozen=True, slots=True)
class Subject:
    """A GPU pod that is created, and the class of its workload, None if it names none."""

    pod: Pod
    namespace: str
    request: Request
    workload: str | None


class Verdict(NamedTuple):
    """The first refusal, and what dry runs would have refused beside it."""

    refusal: Refusal | None = None
    trial: tuple[Refusal, ...] = ()


_FINE = Verdict()


def workload_of(pod: Pod) -> str | None:
    """The class of workload that the pod names by a label or an annotation, None for none.

    Raises RequestError when it names two.
    """
    found: dict[str, str] = {}
    for kind, values in (("labels", pod.metadata.labels), ("annotations", pod.metadata.annotations)):
        if values and not _NAMES.isdisjoint(values):
            found.update(
                (f"metadata.{kind}[{name}]", values[name]) for name in sorted(_NAMES & values.keys())
            )
    if len(set(found.values())) > 1:
        said = " and ".join(f"{path} says {value[:63]!r}" for path, value in found.items())
        raise RequestError(f"{said}; keep one of them")
    return next(iter(found.values()), None)


def judge(place: Place, subject: Subject, room: Room | None, wall: float) -> Verdict:
    """What the rules of the pod's policy say; `room` None: nothing is known of the pool."""
    if not place.policy.rules:
        return _FINE
    trial: list[Refusal] = []
    for rule in _concerning(place, subject):
        refusal = _refused(rule, place, subject, room, wall)
        if refusal is not None and not rule.dry_run:
            return Verdict(refusal, tuple(trial))
        if refusal is not None:
            trial.append(refusal)
    return Verdict(None, tuple(trial))


def models_of(place: Place, subject: Subject) -> Iterator[tuple[str, ...]]:
    """The models that the pod is to be confined to, by each rule."""
    for rule in _concerning(place, subject):
        if isinstance(rule.demand, Models) and not rule.dry_run:
            yield rule.demand.products


def keeps_headroom(place: Place) -> bool:
    """Whether what the pool has left matters to any pod."""
    return any(isinstance(rule.demand, Headroom) for rule in place.policy.rules)


def _concerning(place: Place, subject: Subject) -> Iterator[Rule]:
    tenant = place.tenant.name if place.tenant else None
    for rule in place.policy.rules:
        if rule.concerns(tenant, subject.namespace, subject.workload):
            yield rule


def _refused(rule: Rule, place: Place, subject: Subject, room: Room | None, wall: float) -> Refusal | None:
    said = _said(rule.demand, subject, room, wall)
    if said is None:
        return None
    why, sentence = said
    return Refusal(
        why,
        f"{rule.message or sentence} (rule {rule.name} in FairnessPolicy {place.policy.name})",
        place.tenant.name if place.tenant else None,
    )


def _said(demand: Demand, subject: Subject, room: Room | None, wall: float) -> tuple[Why, str] | None:
    request = subject.request
    match demand:
        case Closed(window):
            why, sentence = Why.CLOSED, _closed(window, wall)
        case MinMemory(host, gpu):
            why, sentence = Why.MIN_MEMORY, _too_small_a_host(request, host) or _too_small_a_gpu(request, gpu)
        case Forms(by_workload):
            form = by_workload.get(subject.workload or "")
            why, sentence = Why.FORM, _of_another_form(subject, form) if form else None
        case MaxGpus(most):
            why, sentence = Why.MAX_GPUS, _too_many(units_of(request), most)
        case Models(products):
            why, sentence = Why.MODELS, _of_other_models(subject.pod, products)
        case Headroom(part):
            why, sentence = Why.HEADROOM, _too_full(room, part) if room else None
    return None if sentence is None else (why, sentence)


def _closed(window: Window, wall: float) -> str | None:
    until = window.until(wall)
    if until is None:
        return None
    if until is NEVER:
        return "no pods may be created at any time"
    left = duration.text(60 * math.ceil((until.timestamp() - wall) / 60))
    return (
        f"no pods may be created until {DAYS[until.weekday()]} {until:%Y-%m-%d %H:%M %Z} ({window.zone.key}); "
        f"try again in {left}"
    )


def _too_small_a_host(request: Request, least: int) -> str | None:
    if request.memory >= least:
        return None
    return f"its containers request {_shown(request.memory)} of memory; let them request at least {_shown(least)}"


def _gpus_of(request: Request) -> Iterator[tuple[str, int]]:
    """Without the other devices that NVIDIA has, such as network adapters."""
    return (
        (name, count) for name, count in request.devices if name in (GPU, SHARED) or name.startswith(PREFIX)
    )


def _too_small_a_gpu(request: Request, least: int) -> str | None:
    for name, _ in _gpus_of(request):
        sure = _memory_of(name)
        if max(request.gpu_memory, sure) >= least:
            continue
        if request.gpu_memory > sure:
            return (
                f"metadata.annotations[{GPU_MEMORY}]: {_shown(request.gpu_memory)} is too little; "
                f"declare at least {_shown(least)}"
            )
        if sure:
            return (
                f"one {name} has {sure // _GIGABYTE} GB of GPU memory, which is less than {_shown(least)}; "
                "ask for a larger profile"
            )
        return (
            f"how much GPU memory one {name} has can't be told beforehand; "
            f"declare at least {_shown(least)} with the annotation {GPU_MEMORY}"
        )
    return None


def _memory_of(name: str) -> int:
    """Bytes that one of a resource surely has; 0 where its name does not tell."""
    if not name.startswith(PREFIX) or name.endswith(_SHARED):
        return 0
    digits = name.removeprefix(PREFIX).partition("g.")[2].partition("gb")[0]
    return int(digits) * _GIGABYTE if digits.isascii() and digits.isdigit() and len(digits) < 5 else 0


_WORDS = {
    Form.WHOLE: f"whole GPUs ({GPU})",
    Form.MIG: f"MIG instances (nvidia.com/mig-…, or {GPU} and the annotation {MIG_PROFILE})",
    Form.TIME_SLICE: "shares of a GPU (nvidia.com/gpu.shared)",
}


def _of_another_form(subject: Subject, form: Form) -> str | None:
    for name, _ in _gpus_of(subject.request):
        if form not in _forms(name):
            return f"pods of workload {subject.workload} ask for {_WORDS[form]}, and not for {name}"
    return None


def _forms(name: str) -> set[Form]:
    """Several instances of one card can share it in turn, too: then both are true."""
    found = {Form.TIME_SLICE} if name.endswith(_SHARED) else set()
    if name.startswith(PREFIX):
        found.add(Form.MIG)
    return found or {Form.WHOLE}


def units_of(request: Request) -> float:
    """GPU units that the request may be charged at most, on whatever node: a share of a card counts 1."""
    total = 0.0
    for name, count in _gpus_of(request):
        share = unit_share(name, None)
        total += count * (float(share) if share is not None else 1.0)
    return round(total, 6)


def _too_many(units: float, most: float) -> str | None:
    return f"it asks for {_in_gpus(units)}, and a pod may have at most {most:g}" if units > most else None


def _of_other_models(pod: Pod, products: tuple[str, ...]) -> str | None:
    asked = constraints_of(pod)
    terms = None if asked.terms is None else tuple(map(_about_models, asked.terms))
    constraints = Constraints(_about_models(asked.required), terms)
    if asked.terms == () or any(admits(NodeTraits(((PRODUCT, each),)), constraints, "") for each in products):
        return None
    return (
        f"its node selector or affinity picks none of the GPU models that it may use: {', '.join(products)}"
    )


def _about_models(term: Term) -> Term:
    return tuple(requirement for requirement in term if requirement.key == PRODUCT)


def _too_full(room: Room, part: float) -> str | None:
    left = max(0.0, room.capacity - room.used - room.waiting)
    stays = part * room.capacity
    if not room.capacity or left - room.asks >= stays - _SLACK:
        return None
    return (
        f"it asks for {_in_gpus(room.asks)}; {_number(left)} of the pool's {_number(room.capacity)} are left "
        f"({_number(room.used)} in use, {_number(room.waiting)} for pods that wait), "
        f"and {_number(stays)} ({100 * part:g}%) stay free; try again in {RETRY_SECONDS} s"
    )


def _in_gpus(amount: float) -> str:
    return "1 GPU" if amount == 1 else f"{_number(amount)} GPUs"


def _number(amount: float) -> str:
    return f"{round(amount, 3):g}" if amount < 1000 else f"{amount:,.0f}"


def _shown(amount: int) -> str:
    """Bytes as people write them, exactly."""
    for power, suffix in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if amount and amount % 2**power == 0:
            return f"{amount >> power}{suffix}"
    return str(amount)
