"""`nvidia.com/mig-profile: 3g.40gb` beside `nvidia.com/gpu`: what the containers ask for then are such instances.

The resource's name is put in the place of nvidia.com/gpu, so that everybody else reads what the pod means. The
annotation stays, for people to read.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from extender.cluster.inventory import Inventory
from extender.cluster.mig import PREFIX, resource_of
from extender.cluster.request import GPU, Request, RequestError
from extender.fairness.policy import NeverFits, Policy
from extender.wire.admission import Add, Patch, Remove, escaped
from extender.wire.marks import MIG_PROFILE
from extender.wire.objects import Container, Pod, Quantity

_PROFILE = re.compile(r"[1-9]\d?g\.\d{1,4}gb(?:[+-][a-z0-9]+(?:\.[a-z0-9]+)*)?", re.ASCII)
"""As NVIDIA's tools write it: a resource's name has `.` for the `+`."""
_PATH = f"metadata.annotations[{MIG_PROFILE}]"
_LONGEST = 40
_NEAREST = 3


def cut(
    pod: Pod,
    request: Request,
    policy: Policy | None,
    offers: Callable[[Policy | None], frozenset[str] | None],
) -> Patch:
    """The patch that puts MIG instances in the place of the pod's GPUs; empty where that is done or not asked for.

    `offers` gives the resources that nodes of the policy's pool, or all, have or can cut; None: nothing is known.
    Raises RequestError when the annotation can't be followed, or when no node has such a profile and, as the policy
    doesn't let what never fits wait, none is to come.
    """
    text = (pod.metadata.annotations or {}).get(MIG_PROFILE)
    spec = pod.spec
    if text is None or spec is None:
        return ()
    shown = repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    if len(text) > _LONGEST or not _PROFILE.fullmatch(text):
        raise RequestError(f"{_PATH}: {shown} is no MIG profile; give one such as 3g.40gb or 1g.10gb+me")
    resource = resource_of(text)
    patch = (
        *_in_containers(spec.containers or (), "containers", resource),
        *_in_containers(spec.init_containers or (), "initContainers", resource),
    )
    wanted = {GPU} if patch else {resource, f"{resource}.shared"}
    if not any(name in wanted for name, _ in request.devices):
        raise RequestError(
            f"{_PATH}: {shown} is of no use to a pod that asks neither for {GPU} nor for {resource}; "
            f"let a container ask for {GPU}, or leave the annotation out"
        )
    if patch and (policy is None or policy.never_fits is NeverFits.REFUSE):
        _check(resource, shown, policy, offers(policy))
    return patch


def _check(resource: str, shown: str, policy: Policy | None, offers: frozenset[str] | None) -> None:
    if offers is None or resource in offers:
        return
    nearest = ", ".join(_nearest(resource, offers))
    instead = f"the nearest that nodes have: {nearest}" if nearest else "none has any MIG instance"
    where = f"the pool of FairnessPolicy {policy.name}" if policy else "the cluster"
    raise RequestError(f"{_PATH}: no node of {where} has {shown}; {instead}")


def _in_containers(containers: Sequence[Container], field: str, resource: str) -> Iterable[Add | Remove]:
    for position, container in enumerate(containers):
        found = container.resources
        for kind, amounts in (("limits", found.limits), ("requests", found.requests)) if found else ():
            if amounts and GPU in amounts:
                yield from _in_amounts(amounts, f"spec.{field}[{position}].resources.{kind}", resource)


def _in_amounts(amounts: Mapping[str, Quantity], path: str, resource: str) -> Iterable[Add | Remove]:
    if resource in amounts:
        raise RequestError(f"{path} has both {GPU} and {resource}, its MIG profile; keep one of the two")
    pointer = "/" + path.replace("[", "/").replace("]", "").replace(".", "/")
    yield Remove(f"{pointer}/{escaped(GPU)}")
    yield Add(f"{pointer}/{escaped(resource)}", amounts[GPU])


def offered(inventories: Iterable[Inventory]) -> frozenset[str]:
    """The resources of MIG instances that these nodes have, or can cut."""
    found: set[str] = set()
    for inventory in inventories:
        found.update(name for name, count in inventory.allocatable if count and name.startswith(PREFIX))
        if inventory.geometry is not None:
            found.update(name for profile in inventory.geometry.profiles for name in profile.resources)
    return frozenset(found)


def _nearest(resource: str, offers: Collection[str]) -> list[str]:
    """The few profiles among the offers that are most like the one asked for, by memory, then by compute."""
    compute, memory = _size(resource)
    names = [name for name in offers if _size(name) != (0, 0) and not name.endswith(".shared")]
    names.sort(key=lambda name: (abs(_size(name)[1] - memory), abs(_size(name)[0] - compute), name))
    return [name.removeprefix(PREFIX).replace("gb.", "gb+", 1) for name in names[:_NEAREST]]


def _size(resource: str) -> tuple[int, int]:
    """(compute slices, GB) of a profile; zeros where its name does not tell."""
    match = re.match(r"(\d{1,2})g\.(\d{1,4})gb", resource.removeprefix(PREFIX), re.ASCII)
    return (int(match[1]), int(match[2])) if match else (0, 0)
