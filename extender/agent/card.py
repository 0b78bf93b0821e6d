"""Reads one card, each thing on its own: what one call refuses costs only what it was asked for.

What a kind of card does not have (`not supported`, a driver without the function) is left out. Anything else that a
call refuses stands in `unreadable`. A card that the driver has lost ends the reading.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from extender.agent.sample import Card
from extender.wire.gpunode import (
    ECC,
    GPU,
    Instance,
    Memory,
    NVLinks,
    Process,
    Profile,
    RemappedRows,
    RetiredPages,
    Unreadable,
)

Handle = Any

_T = TypeVar("_T")
_MIB = 1024 * 1024
_ABSENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "The card has fallen off the bus.",
    pynvml.NVML_ERROR_RESET_REQUIRED: "The driver wants the card to be reset.",
}
_MOST_MIG_DEVICES = 64
_WORDS_OF_CPUS = 128
_WORDS_OF_NODES = 16
_REMOTES = {0: "gpu", 1: "cpu", 2: "switch"}
_RECOVERY = (
    *("none", "reset", "reboot", "drain-p2p", "drain-and-reset"),
    *("recover-imex-domain", "bus-reset", "system-reboot"),
)
# Those of the hardware; power caps and application clocks are everyday.
_THROTTLING = {
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}
_NO_INSTANCE = 0xFFFFFFFF
_MPS_SERVER = "nvidia-cuda-mps"


class Lost(Exception):
    """The driver can't reach the card: a sentence."""


def lost(error: pynvml.NVMLError) -> str | None:
    """The sentence for an error that means that the card is lost."""
    return _LOST.get(error.value)


class Reader:
    """Makes calls about one card and keeps in `unreadable` what they refused."""

    def __init__(self) -> None:
        self.unreadable: list[Unreadable] = []

    def ask(self, what: str, call: Callable[..., _T], *arguments: object) -> _T | None:
        """What the call answers; None where there is no answer. Raises Lost."""
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            sentence = lost(error)
            if sentence is not None:
                raise Lost(sentence) from None
            if error.value not in _ABSENT:
                self._refused(what, str(error).rstrip(".").lower())
        except UnicodeDecodeError:
            self._refused(what, "what the driver says is no text")
        return None

    def _refused(self, what: str, why: str) -> None:
        if all(known.what != what for known in self.unreadable):
            self.unreadable.append(Unreadable(what, why))


def identity(handle: Handle, index: int, reader: Reader) -> GPU:
    """What a card is and where it sits, less what needs the other cards; raises Lost."""
    uuid = reader.ask("uuid", pynvml.nvmlDeviceGetUUID, handle) or ""
    name = reader.ask("model", pynvml.nvmlDeviceGetName, handle) or ""
    pci = reader.ask("pci", pynvml.nvmlDeviceGetPciInfo, handle)
    nodes = reader.ask(
        "numa",
        pynvml.nvmlDeviceGetMemoryAffinity,
        handle,
        _WORDS_OF_NODES,
        pynvml.NVML_AFFINITY_SCOPE_NODE,
    )
    cpus = reader.ask("cpus", pynvml.nvmlDeviceGetCpuAffinity, handle, _WORDS_OF_CPUS)
    numa = _bits(nodes)
    return GPU(
        uuid=uuid,
        index=index,
        model=name,
        pci=_text(pci.busId) if pci is not None else "",
        numa=numa[0] if len(numa) == 1 else None,
        cpus=_spans(_bits(cpus)),
        clique=reader.ask("clique", _clique, handle),
        nvlinks=reader.ask("nvlinks", _nvlinks, handle),
    )


def profiles(handle: Handle, reader: Reader) -> list[Profile]:
    """The MIG profiles of a card, as the driver tells them."""
    found = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = reader.ask("profiles", pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        if info is None:
            continue
        places = reader.ask("placements", _placements, handle, info.id)
        found.append(
            Profile(
                id=info.id,
                name=_text(info.name).removeprefix("MIG "),
                compute=info.sliceCount,
                memory=info.memorySizeMB * _MIB,
                most=info.instanceCount,
                size=max(size for _, size in places) if places else None,
                starts=sorted(start for start, _ in places) if places else None,
            )
        )
    return found


def mig_mode(handle: Handle, reader: Reader) -> bool | None:
    modes = reader.ask("mig", pynvml.nvmlDeviceGetMigMode, handle)
    return None if modes is None else bool(modes[0])


def fill(card: Card, handle: Handle, command: Callable[[int], str], reader: Reader) -> None:
    """Read all that changes while a card is at work; raises Lost.

    `command` gives the name of a process by its pid, to tell the server of MPS.
    """
    card.memory = memory(handle, reader)
    if card.mig:
        card.instances = _instances(handle, card.profiles, reader)
    card.processes = _processes(handle, command, reader)
    corrected, uncorrected = (
        reader.ask("ecc", pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    if corrected is not None and uncorrected is not None:
        card.ecc = ECC(corrected, uncorrected)
    single, double = (
        reader.ask("retired pages", pynvml.nvmlDeviceGetRetiredPages, handle, cause)
        for cause in (
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
    )
    pending = reader.ask("retired pages", pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    if single is not None and double is not None:
        card.retired_pages = RetiredPages(len(single), len(double), bool(pending))
    rows = reader.ask("remapped rows", pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        card.remapped_rows = RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3]))
    reasons = reader.ask("throttling", pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    card.throttling = [name for bit, name in _THROTTLING.items() if reasons & bit]
    card.recovery = reader.ask("recovery", _recovery, handle)
    card.unreadable = reader.unreadable


def memory(handle: Handle, reader: Reader) -> Memory | None:
    """Of a card or of a MIG device; by an old driver without what the driver reserves."""
    info = reader.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if info is not None:
        return Memory(info.total, info.used, info.reserved)
    info = reader.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if info is None else Memory(info.total, info.used)


def _processes(handle: Handle, command: Callable[[int], str], reader: Reader) -> list[Process] | None:
    """Each process once per MIG instance; None if any of the lists is refused."""
    found: dict[tuple[int, int], Process] = {}
    whole = False
    for mps, call in (
        (False, pynvml.nvmlDeviceGetComputeRunningProcesses_v3),
        (False, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
        (True, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
    ):
        refused = len(reader.unreadable)
        entries = reader.ask("processes", call, handle)
        if len(reader.unreadable) > refused:
            return None
        whole = whole or entries is not None
        for entry in entries or []:
            instance = None if entry.gpuInstanceId == _NO_INSTANCE else entry.gpuInstanceId
            process = found.setdefault(
                (entry.pid, entry.gpuInstanceId), Process(entry.pid, instance=instance)
            )
            # A process that computes and draws is in both lists, with the same amount.
            used = [amount for amount in (process.used, entry.usedGpuMemory) if amount is not None]
            process.used = max(used, default=None)
            process.mps = process.mps or mps
    for process in found.values():
        process.mps = process.mps or command(process.pid).startswith(_MPS_SERVER)
    return [found[key] for key in sorted(found)] if whole else None


def _instances(handle: Handle, profiles: list[Profile], reader: Reader) -> list[Instance]:
    """The MIG instances by id; those without a compute instance too, where the agent may see them."""
    found: dict[int, Instance] = {}
    for profile in profiles:
        for info in reader.ask("instances", _gpu_instances, handle, profile) or []:
            found[info.id] = Instance(
                id=info.id,
                profile=info.profileId,
                name=profile.name,
                start=info.placement.start,
                size=info.placement.size,
            )
    most = reader.ask("instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for index in range(min(most, _MOST_MIG_DEVICES)):
        device = reader.ask("instances", _mig_device, handle, index)
        if device is None:
            continue
        id_ = reader.ask("instances", pynvml.nvmlDeviceGetGpuInstanceId, device)
        uuid = reader.ask("instances", pynvml.nvmlDeviceGetUUID, device)
        if id_ is None or uuid is None:
            continue
        instance = found.setdefault(id_, Instance(id_))
        instance.uuids = [*instance.uuids, uuid]
        instance.memory = instance.memory or memory(device, reader)
    return [found[id_] for id_ in sorted(found)]


def _gpu_instances(handle: Handle, profile: Profile) -> list[Any]:
    room = (pynvml.c_nvmlGpuInstance_t * max(1, profile.most))()
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstances(handle, profile.id, room, ctypes.byref(count))
    return [pynvml.nvmlGpuInstanceGetInfo(room[i]) for i in range(count.value)]


def _mig_device(handle: Handle, index: int) -> Handle | None:
    try:
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    except pynvml.NVMLError_NotFound:
        return None


def _placements(handle: Handle, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, ctypes.byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, room, ctypes.byref(count))
    return [(place.start, place.size) for place in room[: count.value]]


def _nvlinks(handle: Handle) -> list[NVLinks] | None:
    """Active NVLinks by what they end at; None for a card that has none, not even inactive ones."""
    lanes: dict[tuple[str, str | None], int] = {}
    known = False
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        known = True
        if active:
            end = _remote(handle, link)
            lanes[end] = lanes.get(end, 0) + 1
    if not known:
        return None
    return [NVLinks(remote, count, pci) for (remote, pci), count in sorted(lanes.items(), key=str)]


def _remote(handle: Handle, link: int) -> tuple[str, str | None]:
    """What an NVLink ends at, and a card's address."""
    try:
        remote = _REMOTES.get(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), "unknown")
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        remote = "unknown"
    if remote in ("switch", "cpu"):
        return remote, None
    try:
        return remote, _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId) or None
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return remote, None


def _clique(handle: Handle) -> str | None:
    """The NVLink domain; a single machine has a clique with a cluster of all zeros, which is none."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    cluster = bytes(info.clusterUuid).hex()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status or not cluster.strip("0"):
        return None
    parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
    return f"{'-'.join(parts)}.{info.cliqueId}"


def _recovery(handle: Handle) -> str | None:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    action = value.value.uiVal
    return _RECOVERY[action] if action < len(_RECOVERY) else f"action {action}"


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bits(words: Any) -> list[int]:
    """The numbers of the bits that are set, 64 to a word."""
    return (
        []
        if words is None
        else [64 * at + bit for at, word in enumerate(words) if word for bit in range(64) if word >> bit & 1]
    )


def _spans(numbers: list[int]) -> str:
    """Ascending numbers as a list of CPUs: 0-3,8."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
