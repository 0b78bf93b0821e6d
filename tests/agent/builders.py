"""Reports as an agent makes them, and one in which every field there is has a value."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from extender.wire.gpunode import (
    GPU,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    Health,
    Kubelet,
    Memory,
    Process,
)

GiB = 2**30
STEP = -(-80 * GiB // 100)
TIMES = ("when", "last", "hold_until")
CHOICES = {"remote": "switch", "severity": "transient", "sharing": "mps"}


def full(kind: type[msgspec.Struct]) -> Any:
    """One of its kind without a field that is left out, so that a field that is added is there at once."""
    hints = get_type_hints(kind)
    return kind(
        **{
            each.name: _value(hints[each.name], each.name)
            for each in msgspec.structs.fields(kind)
            if each.name not in ("metadata", "api_version", "kind")
        }
    )


def _value(hint: Any, name: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(each for each in get_args(hint) if each is not types.NoneType)
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], name)]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return full(hint)
    if name in TIMES:
        return "2026-11-30T12:00:00Z"
    values: dict[type, Any] = {str: CHOICES.get(name, f"some {name}"[:32]), int: 7 * GiB, bool: True}
    return values[hint]


def full_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Spec and status in which every field has a value."""
    return msgspec.to_builtins(full(GPUNodeSpec)), msgspec.to_builtins(full(GPUNodeStatus))


def card(index: int = 0, *, used: int = 0, pods: dict[str | None, int] | None = None) -> GPUStatus:
    """A healthy card of 80 GiB; `pods` are the uses of its processes by their pods' uids."""
    processes = [Process(100 + n, use, pod) for n, (pod, use) in enumerate((pods or {}).items())]
    return GPUStatus(
        f"GPU-{index}",
        index,
        Health(True),
        Memory(80 * GiB, used, GiB // 2, STEP),
        processes,
        False,
    )


def status(
    *cards: GPUStatus, when: str = "2026-11-30T12:00:00Z", kubelet: Kubelet | None = None
) -> GPUNodeStatus:
    return GPUNodeStatus(when, "1.0", list(cards), None, kubelet)


def spec(cards: int = 1) -> GPUNodeSpec:
    return GPUNodeSpec(
        "boot-1", "580.65", [GPU(f"GPU-{n}", n, "NVIDIA H100 80GB HBM3") for n in range(cards)]
    )
