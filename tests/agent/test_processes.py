"""Whose process is it, by the control groups that runtimes make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.agent.processes import command_of, pod_in, pod_of

UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SYSTEMD = UID.replace("-", "_")
BOX = "ab" * 32


@pytest.mark.parametrize(
    "path",
    [
        # systemd driver, cgroup v2: guaranteed, burstable, best effort; containerd, CRI-O, docker
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{BOX}.scope",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/crio-{BOX}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/docker-{BOX}.scope",
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{BOX}.scope/container",
        # cgroupfs driver
        f"0::/kubepods/pod{UID}/{BOX}",
        f"0::/kubepods/burstable/pod{UID}/crio-{BOX}",
        # containerd with the systemd driver names its groups by three parts
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice:cri-containerd:{BOX}",
        # seen by an agent in a group namespace of its own
        f"0::/../../kubepods-besteffort-pod{SYSTEMD}.slice/cri-containerd-{BOX}.scope",
        f"0::/../../pod{UID}/{BOX}",
        # a node that is a container
        f"0::/docker/{BOX}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice/x.scope",
        f"0::/kubelet/kubepods/besteffort/pod{UID}/{BOX}",
        # cgroup v1, one line per controller, some of them elsewhere
        f"12:cpuset:/kubepods/burstable/pod{UID}/{BOX}\n11:devices:/kubepods/burstable/pod{UID}/{BOX}\n0::/x",
        f"3:rdma:/\n2:cpu,cpuacct:/kubepods.slice/kubepods-pod{SYSTEMD}.slice/docker-{BOX}.scope\n1:name=systemd:/",
        # a Kubernetes within the pod
        f"0::/kubepods/pod{UID}/{BOX}/kubepods/pod11111111-2222-3333-4444-555555555555/{BOX}",
    ],
)
def test_a_pods_process(path: str) -> None:
    assert pod_in(path + "\n") == UID


def test_a_static_pods_process() -> None:
    hash_ = "0123456789abcdef" * 2
    assert pod_in(f"0::/kubepods/burstable/pod{hash_}/{BOX}\n") == hash_


@pytest.mark.parametrize(
    "path",
    [
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        f"0::/system.slice/docker-{BOX}.scope\n",
        f"0::/machine.slice/libpod-{BOX}.scope\n",
        f"0::/libpod_parent/libpod_pod_{BOX}/x\n",
        "0::/kubepods.slice\n",
        f"0::/kubepods/pod{UID[:-1]}/{BOX}\n",
        f"0::/kubepods/pod{UID}0/{BOX}\n",
        f"0::/home/tripod{UID}/x\n",
    ],
)
def test_a_process_of_no_pod(path: str) -> None:
    assert pod_in(path) is None


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert pod_in(text) is None


def test_proc_is_read_and_what_is_gone_is_not_taken_for_nobodys(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_bytes(f"0::/kubepods/pod{UID}/\n".encode() + b"\xff\n")
    (tmp_path / "7/comm").write_text("trainer\n")
    assert (pod_of(7, tmp_path), command_of(7, tmp_path)) == (UID, "trainer")
    with pytest.raises(ProcessLookupError):
        pod_of(8, tmp_path)
    assert command_of(8, tmp_path) == ""
    assert command_of(os.getpid()) != ""
