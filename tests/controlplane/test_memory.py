"""Agents on a real control plane, with the shipped rights: what is on the cards is known, and no door overfills one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extender.wire.gpunode import PATH
from tests.agent.kubelet import messages
from tests.controlplane.agent import LEASES
from tests.controlplane.api import GPU, Api, Object, pod, wait_until
from tests.controlplane.binaries import Unavailable
from tests.controlplane.burst import bind_by_hand
from tests.controlplane.fleet import TOTAL, Fleet, fleet
from tests.controlplane.processes import ControlPlane
from tests.fakes.nvml import CannotBuild, build

pytestmark = pytest.mark.controlplane

CARDS, REPLICAS = 2, 4


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def kubelet_api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        return messages(tmp_path_factory.mktemp("kubelet"))
    except Unavailable as reason:
        pytest.skip(f"no sources of the kubelet's API: {reason}")


@pytest.fixture
async def machines(
    request: pytest.FixtureRequest, control_plane: ControlPlane, api: Api, library: Path, kubelet_api: Any
) -> AsyncIterator[Fleet]:
    """As many as the test says."""
    names = [f"gpu-{number:02}" for number in range(request.param)]
    async with fleet(
        control_plane, api, names, library=library, kubelet_api=kubelet_api, cards=CARDS, replicas=REPLICAS
    ) as running:
        yield running


def used(status: Object, card: int) -> int:
    found: int = status["gpus"][card]["memory"]["used"]
    return found


@pytest.mark.parametrize("machines", [3], indirect=True)
async def test_what_is_on_the_cards_is_reported_as_it_changes(machines: Fleet, api: Api) -> None:
    here, other = machines.machines["gpu-01"], machines.machines["gpu-02"]
    assert {each["metadata"]["name"] for each in await api.list(PATH)} == set(machines.machines)
    pid = here.occupy(1, 6 * TOTAL // 10)
    status = (await machines.reported(here, lambda said: used(said, 1) > 0, "a foreign process"))["status"]
    assert (used(status, 0), used(status, 1)) == (0, 6 * TOTAL // 10)
    assert status["gpus"][1]["processes"] == [{"pid": pid, "used": 6 * TOTAL // 10}]
    assert status["gpus"][1]["sharing"] == "time-slicing"

    uid = (await api.post("/api/v1/namespaces/default/pods", pod("train")))["metadata"]["uid"]
    await bind_by_hand(api, "train", here.name)
    # The worst card that there is to give is the one that is in use already.
    held = [{"namespace": "default", "pod": "train", "container": "main", "resource": GPU}]
    device = f"{here.uuids[1]}::0"
    await machines.reported(
        here, lambda said: said["kubelet"]["held"] == [{**held[0], "devices": [device]}], "who holds what"
    )
    here.occupy(1, 2**30, pod=uid)
    await machines.reported(
        here, lambda said: any(each.get("pod") == uid for each in said["gpus"][1]["processes"]), "its pod"
    )
    here.leave(pid)
    await machines.reported(here, lambda said: used(said, 1) == 2**30, "that it has left")
    await api.delete_pod("default", "train")
    await machines.reported(here, lambda said: said["kubelet"]["held"] == [], "that nobody holds it")

    lease = f"{LEASES}/{other.name}"
    machines.kill(other)
    before = str((await api.get(lease))["spec"]["renewTime"])
    machines.start(other)

    async def beats() -> bool:
        return str((await api.get(lease))["spec"]["renewTime"]) > before

    await wait_until(beats, 20, "the agent beats again")
