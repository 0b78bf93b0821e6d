"""Whole machines as the agent reports them, against the link matrices and MIG tables that they were made from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from extender import __version__
from extender.cluster.geometry import geometries
from extender.wire.gpunode import GPUNode, GPUNodeStatus, GPUStatus, Memory, Process, matrix_of
from tests.agent.conftest import Node
from tests.fakes.nvml import machines
from tests.fakes.nvml.machines import GIB, MIB


def status(report: GPUNode) -> GPUNodeStatus:
    assert report.status is not None
    return report.status


def card(report: GPUNode, index: int) -> GPUStatus:
    return next(card for card in status(report).gpus if card.index == index)


@pytest.mark.parametrize(
    ("machine", "topo"),
    [
        (machines.h100_mig, "dgx_h100_8gpu_12nic"),
        (machines.a100_mixed, "dgx_a100_8gpu_10nic"),
        (machines.v100_cube_mesh, "dgx1_v100_8gpu_cube_mesh"),
        (machines.gb200_tray, "gb200_4gpu_tray"),
        (machines.container, "container_2of8_a100_8nic"),
    ],
)
def test_the_links_are_those_of_nvidia_smi(node: Node, machine: Callable[[], str], topo: str) -> None:
    node.is_a(machine)
    assert matrix_of(node.agent().sample().spec) == machines.matrix(topo)


@pytest.mark.parametrize("machine", machines.MACHINES.values())
def test_a_report_is_the_same_after_json(node: Node, machine: Callable[[], str]) -> None:
    node.is_a(machine)
    report = node.agent().sample()
    assert all(card.health.healthy for card in status(report).gpus)
    assert msgspec.json.decode(msgspec.json.encode(report), type=GPUNode) == report


@pytest.mark.parametrize(
    ("machine", "model"),
    [
        (machines.h100_mig, "H100-80GB"),
        (machines.a100_mixed, "A100-40GB"),
        (machines.gb200_tray, "GB200-186GB"),
    ],
)
def test_profiles_and_placements_are_the_drivers(node: Node, machine: Callable[[], str], model: str) -> None:
    node.is_a(machine)
    spec = node.agent().sample().spec
    assert {gpu.geometry for gpu in spec.gpus} == {0}
    told = {(p.id, p.name, p.compute, p.size, tuple(p.starts or ()), p.most) for p in spec.geometries[0]}
    table = geometries()[model].profiles
    assert told == {(p.id, p.names[0], p.compute, p.size, p.starts, p.most) for p in table}


def test_h100_with_mig(node: Node) -> None:
    node.is_a(machines.h100_mig)
    node.process(4242, "0::/system.slice/sshd.service\n")
    report = node.agent().sample()
    assert (report.metadata.name, report.spec.boot_id, report.spec.driver) == (
        "node-1",
        "boot-1",
        "570.124.06",
    )
    assert (status(report).agent, status(report).when, status(report).problem) == (
        __version__,
        "2027-01-15T08:00:00Z",
        None,
    )
    first = report.spec.gpus[0]
    assert (first.uuid, first.model, first.pci) == (
        machines.uuid(0),
        "NVIDIA H100 80GB HBM3",
        "00000000:10:00.0",
    )
    assert (first.numa, first.cpus, first.clique) == (0, "0-55,112-167", None)
    assert [(one.remote, one.lanes) for one in first.nvlinks or []] == [("switch", 18)]
    whole = card(report, 0)
    assert whole.mig is False
    assert whole.memory == Memory(81559 * MIB, 60 * GIB, 480 * MIB, slack=-(-81559 * MIB // 100))
    assert whole.processes == [Process(4242, 60 * GIB)]
    cut = card(report, 6)
    assert cut.mig is True
    assert [(one.id, one.profile, one.name, one.start, one.size, one.uuids) for one in cut.instances] == [
        (1, 9, "3g.40gb", 4, 4, [machines.mig_uuid(6, 1)]),
        (5, 14, "2g.20gb", 0, 2, [machines.mig_uuid(6, 5)]),
    ]
    assert cut.instances[0].memory is not None
    assert (cut.instances[0].memory.total, cut.instances[0].memory.used) == (40_000 * MIB, GIB)
    sevens = card(report, 7)
    assert [one.start for one in sevens.instances] == list(range(7))
    # Nobody sees a process 4243 here, so whose it is can't be told.
    assert sevens.processes == [Process(4243, GIB, instance=9, hidden=True)]
    # The driver does not tell remapped rows of a card that is cut.
    assert (whole.health.remapped_rows is None, sevens.health.remapped_rows) == (False, None)


def test_an_instance_without_a_compute_instance_is_there_but_cannot_be_given(node: Node) -> None:
    node.is_a(machines.a100_mixed)
    report = node.agent().sample()
    assert [(one.name, one.start, one.uuids) for one in card(report, 6).instances] == [
        ("3g.20gb", 4, [machines.mig_uuid(6, 2)]),
        ("2g.10gb", 0, []),
    ]
    assert (card(report, 7).mig, card(report, 7).instances) == (True, [])


def test_an_old_driver_leaves_out_what_it_does_not_know(node: Node) -> None:
    node.is_a(machines.v100_cube_mesh)
    report = node.agent().sample()
    first = card(report, 0)
    # It counts in `used` what it reserves.
    assert first.memory == Memory(32510 * MIB, 320 * MIB, None, slack=-(-32510 * MIB // 100))
    assert (first.mig, first.health.recovery, first.health.remapped_rows) == (None, None, None)
    assert first.health.retired_pages is not None
    assert first.health.retired_pages.single_bit == 2
    assert first.unreadable == []
    assert [(one.remote, one.lanes) for one in report.spec.gpus[0].nvlinks or []] == [
        ("gpu", 1),
        ("gpu", 1),
        ("gpu", 2),
        ("gpu", 2),
    ]
    assert report.spec.geometries == []


def test_a_tray_of_a_rack_names_its_clique(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    report = node.agent().sample()
    assert {gpu.clique for gpu in report.spec.gpus} == {"01234567-89ab-cdef-0123-456789abcdef.2"}


def test_a_clique_of_one_machine_is_none(node: Node) -> None:
    node.is_a(machines.h100_mig)
    node.say("gpu 0", f"fabric {'0' * 32} 0")
    assert node.agent().sample().spec.gpus[0].clique is None


def test_a_container_with_some_cards_reports_those(node: Node) -> None:
    node.is_a(machines.container)
    report = node.agent().sample()
    assert len(report.spec.gpus) == 2
    assert [(one.what, one.why) for one in card(report, 0).unreadable] == [
        ("placements", "insufficient permissions")
    ]
    assert [(p.size, p.starts) for p in report.spec.geometries[0]] == [(None, None)] * 7


def test_a_numa_node_that_is_a_range_is_not_known(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    node.say("gpu 1", "numa 0-7")
    assert [gpu.numa for gpu in node.agent().sample().spec.gpus] == [0, None, 1, 1]


def test_links_hidden_by_a_hypervisor_count_where_the_driver_says_that_cards_are_peers(node: Node) -> None:
    hidden = [line for gpu in range(4) for line in (f"gpu {gpu}", f"nvlink 0-{16 + gpu % 2} unknown")]
    node.is_a(lambda: machines.gb200_tray().replace("nvlink 0-17 switch\n", ""))
    node.say(*hidden, "gpu 0", "peers", "gpu 1", "peers")
    matrix = matrix_of(node.agent().sample().spec)
    assert matrix is not None
    assert [str(link) for link in matrix.links[0]] == ["X", "NV17", "SYS", "SYS"]
    assert [str(link) for link in matrix.links[2]] == ["SYS", "SYS", "X", "NODE"]


def test_processes_are_told_by_pod_and_sharing_by_mps(node: Node) -> None:
    uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    node.is_a(machines.gb200_tray)
    node.process(
        7, f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope\n"
    )
    node.process(8, "0::/user.slice\n", "Xorg")
    node.process(9, "0::/kubepods/pod-of-the-plugin\n", "nvidia-cuda-mps-server")
    node.say(
        *("gpu 0", f"process 7 {3 * GIB}", f"process 7 {3 * GIB} graphics", "process 8 unknown graphics"),
        *("gpu 1", f"process 9 {30 * MIB}", f"process 7 {GIB} mps"),
    )
    agent = node.agent()
    report = agent.sample({machines.uuid(2): 4, machines.uuid(1): 4})
    assert card(report, 0).processes == [Process(7, 3 * GIB, uid), Process(8, None)]
    assert card(report, 1).processes == [Process(7, GIB, uid, mps=True), Process(9, 30 * MIB, mps=True)]
    assert [one.sharing for one in status(report).gpus] == ["none", "mps", "time-slicing", "none"]
    node.ends(7)
    assert card(agent.sample(), 0).processes == [Process(7, 3 * GIB, hidden=True), Process(8, None)]
