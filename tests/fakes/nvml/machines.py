"""Scenarios of machines as they are sold, made from the link matrices and MIG tables that we have collected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extender.wire.topo import Link, LinkClass, LinkMatrix, parse

MIB = 1024 * 1024
GIB = 1024 * MIB

_TOPO = Path(__file__).parents[2] / "data/topo"
_GEOMETRY = Path(__file__).parents[3] / "extender/data/mig_geometry.json"
_NUMBERS = {
    name: number
    for number, name in enumerate(
        (
            *("1_SLICE", "2_SLICE", "3_SLICE", "4_SLICE", "7_SLICE", "8_SLICE", "6_SLICE"),
            *("1_SLICE_REV1", "2_SLICE_REV1", "1_SLICE_REV2"),
        )
    )
}


def matrix(topo: str) -> LinkMatrix:
    return parse((_TOPO / f"{topo}.txt").read_text())


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-1111-2222-3333-444444444444"


def mig_uuid(gpu: int, instance: int) -> str:
    return f"MIG-{gpu:08x}-aaaa-bbbb-cccc-{instance:012x}"


def pci(gpu: int) -> str:
    return f"00000000:{0x10 + 8 * gpu:02X}:00.0"


def profiles(model: str) -> list[str]:
    table = json.loads(_GEOMETRY.read_text())["models"][model]["profiles"]
    return [
        f"profile {_NUMBERS[p['nvml_profile_enum']]} {p['nvidia_smi_profile_id']} {p['name']} {p['compute_slices']} "
        f"{p.get('memory_mib_reported') or p['memory_gb'] * 1000} {p.get('sm_count') or 1} {p['size']} "
        f"{p['max_count']} {','.join(map(str, p['placements']))}"
        for p in table
    ]


def machine(
    topo: str,
    name: str,
    total: int,
    reserved: int,
    *,
    switch: bool,
    geometry: str | None = None,
    every: tuple[str, ...] = (),
    more: Mapping[int, tuple[str, ...]] | None = None,
    driver: str = "570.124.06",
) -> str:
    """A machine with the links of a collected matrix.

    Parameters
    ----------
    total, reserved
        MiB of memory of each card.
    switch
        Whether its NVLinks end at switches.
    every, more
        Lines for each card, and for some.
    """
    links = matrix(topo)
    lines = [f"driver {driver}"]
    for i, row in enumerate(links.links):
        numa = links.numa[i]
        lines += [
            f"gpu {i}",
            f"uuid {uuid(i)}",
            f"name {name}",
            f"pci {pci(i)}",
            f"memory {total * MIB} {reserved * MIB} 0",
            f"path {' '.join(_path(links, i, j) for j in range(len(row)))}",
            *(_nvlinks(row, switch)),
            *([f"numa {numa}"] if numa is not None else []),
            *([f"cpus {links.cpus[i]}"] if links.cpus and links.cpus[i] else []),
            *([*profiles(geometry), "mig off"] if geometry else []),
            *every,
            *((more or {}).get(i, ())),
        ]
    return "\n".join(lines) + "\n"


def _path(links: LinkMatrix, i: int, j: int) -> str:
    link = links.links[i][j]
    if link.kind is LinkClass.NVLINK:
        return "NODE" if links.numa[i] == links.numa[j] else "SYS"
    return str(link)


def _nvlinks(row: tuple[Link, ...], switch: bool) -> list[str]:
    lanes = [link.lanes for link in row]
    if switch:
        return [f"nvlink 0-{max(lanes) - 1} switch"] if max(lanes) else []
    ends = [peer for peer, count in enumerate(lanes) for _ in range(count)]
    return [f"nvlink {link} gpu {pci(peer)}" for link, peer in enumerate(ends)]


_MODERN = ("ecc 0 0", "rows 0 0 0 0", "retired 0 0 0", "throttle 0x1", "recovery 0")


def h100_mig() -> str:
    """Eight H100 behind NVSwitches; the last two are cut into instances."""
    return machine(
        "dgx_h100_8gpu_12nic",
        "NVIDIA H100 80GB HBM3",
        81559,
        480,
        switch=True,
        geometry="H100-80GB",
        every=_MODERN,
        more={
            0: (f"memory {81559 * MIB} {480 * MIB} {60 * GIB}", f"process 4242 {60 * GIB}"),
            6: ("mig on", f"instance 1 9 4 {GIB} {mig_uuid(6, 1)}", f"instance 5 14 0 0 {mig_uuid(6, 5)}"),
            7: (
                "mig on",
                *(f"instance {7 + start} 19 {start} 0 {mig_uuid(7, 7 + start)}" for start in range(7)),
                f"process 4243 {GIB} compute 9",
            ),
        },
    )


def h100_sevenths(pids: Sequence[int] = range(5000, 5056)) -> str:
    """Eight H100, each cut into seven instances with a process on each."""
    return machine(
        "dgx_h100_8gpu_12nic",
        "NVIDIA H100 80GB HBM3",
        81559,
        480,
        switch=True,
        geometry="H100-80GB",
        every=_MODERN,
        more={
            gpu: (
                *("mig on", f"memory {81559 * MIB} {480 * MIB} {7 * GIB}"),
                *(f"instance {7 + at} 19 {at} {GIB} {mig_uuid(gpu, 7 + at)}" for at in range(7)),
                *(f"process {pids[7 * gpu + at]} {GIB} compute {7 + at}" for at in range(7)),
            )
            for gpu in range(8)
        },
    )


def a100_mixed() -> str:
    """Eight A100 40GB: six whole ones, one cut into a 3g and a 2g, one on which MIG is on and nothing is cut."""
    return machine(
        "dgx_a100_8gpu_10nic",
        "NVIDIA A100-SXM4-40GB",
        40960,
        518,
        switch=True,
        geometry="A100-40GB",
        every=_MODERN,
        more={6: ("mig on", f"instance 2 9 4 0 {mig_uuid(6, 2)}", "instance 3 14 0 0"), 7: ("mig on",)},
    )


def v100_cube_mesh() -> str:
    """Eight V100, each linked to four others, with a driver that knows neither MIG nor reserved memory."""
    old = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode")
    return machine(
        "dgx1_v100_8gpu_cube_mesh",
        "Tesla V100-SXM2-32GB",
        32510,
        320,
        switch=False,
        every=("ecc 3 0", "retired 2 0 0", "throttle 0x0"),
        driver="418.87.00",
    ) + "".join(f"fault {function} function-not-found\n" for function in old)


def gb200_tray() -> str:
    """Four GB200 of an NVL72 rack; their NVLinks lead to other trays, too."""
    return machine(
        "gb200_4gpu_tray",
        "NVIDIA GB200",
        189471,
        742,
        switch=True,
        geometry="GB200-186GB",
        every=(*_MODERN, f"fabric {'0123456789abcdef' * 2} 2"),
    )


def container() -> str:
    """Two of eight A100, as a container is shown them; the other cards' processes are not."""
    return (
        machine(
            "container_2of8_a100_8nic",
            "NVIDIA A100-SXM4-40GB",
            40960,
            518,
            switch=True,
            geometry="A100-40GB",
            every=_MODERN,
        )
        + "fault nvmlDeviceGetGpuInstancePossiblePlacements_v2 no-permission\n"
    )


MACHINES: dict[str, Callable[[], str]] = {
    "h100-mig": h100_mig,
    "h100-sevenths": h100_sevenths,
    "a100-mixed": a100_mixed,
    "v100-cube-mesh": v100_cube_mesh,
    "gb200-tray": gb200_tray,
    "container": container,
}
