"""Agents on a real control plane, with the shipped rights: what is on the cards is known, and no door overfills one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extender.wire.gpunode import PATH
from tests.agent.kubelet import messages
from tests.controlplane.agent import LEASES
from tests.controlplane.api import GPU, Api, Object, pod, wait_until
from tests.controlplane.binaries import Unavailable
from tests.controlplane.burst import bind_by_hand, events, in_background, node_of, pods
from tests.controlplane.extender import Extender, scheduler_config
from tests.controlplane.fair import admitted, install, policy
from tests.controlplane.fleet import RESERVED, TOTAL, Fleet, Machine, fleet
from tests.controlplane.processes import ControlPlane
from tests.controlplane.relay import Relay
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


FOREIGN, DECLARED = 6 * TOTAL // 10, 4 * TOTAL // 10
LIMIT = 0.85 * (TOTAL - RESERVED)
CROWDED = "gpu-00"


def sharer(name: str, *, on: str | None = None, **form: Any) -> Object:
    """A pod that takes a replica and declares 40 % of its card's memory."""
    made = pod(name, annotations={"kvitej.io/gpu-memory": str(DECLARED)}, **form)
    if on is not None:
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on}
    return made


async def accepted(port: int, asking: Object, nodes: Iterable[str]) -> set[str]:
    """The nodes that Filter lets the pod onto."""
    uid = {"uid": "00000000-0000-4000-8000-000000000001", **asking["metadata"]}
    args = {"Pod": {**asking, "metadata": uid}, "NodeNames": list(nodes)}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/filter", json=args) as said,
    ):
        answer = await said.json(content_type=None)
    assert not answer["Error"]
    return set(answer["NodeNames"])


async def bound(api: Api, names: Iterable[str], timeout: float = 60) -> set[str]:
    """The nodes of these pods, once each has one."""
    found: dict[str, Object] = {}

    async def all_bound() -> bool:
        found.update(await pods(api))
        return all(node_of(found[name]) for name in names)

    def waits() -> str:
        return f"bound: {[found[name].get('status') for name in names if not node_of(found[name])]}"

    await wait_until(all_bound, timeout, waits, interval=0.2)
    return {str(node_of(found[name])) for name in names}


def assert_no_card_overfilled(machines: Fleet) -> None:
    """By the drivers and kubelets alone; these pods have declared and do not use anything yet."""
    for machine in machines.machines.values():
        filled = [machine.used(card) for card in range(CARDS)]
        for devices in machine.held.values():
            for device in devices:
                filled[machine.card_of(device)] += DECLARED
        assert max(filled) <= LIMIT, f"{machine.name}: {filled}"


@pytest.mark.parametrize("machines", [50], indirect=True)
async def test_a_card_that_others_fill_is_given_to_nobody_until_they_leave(
    machines: Fleet, control_plane: ControlPlane, api: Api
) -> None:
    await install(api)
    crowded = machines.machines[CROWDED]
    extender = Extender(control_plane)
    async with Relay(extender.ports[0]) as relay:
        try:
            await in_background(extender.wait_synced)
            config = {**scheduler_config(relay.port), "percentageOfNodesToScore": 100}
            scheduler = await in_background(lambda: control_plane.start_scheduler(config))
            try:
                await caught_between_filter_and_bind(machines, crowded, api, relay)
                extender.stop()
                async with admitted(control_plane, api, name="kvitej-admitting") as extender:
                    relay.target = extender.ports[0]
                    await api.apply(policy("all", [{"name": "default", "weight": 1}]))
                    await kept_behind_its_gate(machines, crowded, api)
            finally:
                scheduler.kill()
        finally:
            extender.kill()
    await api.delete("/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})


async def caught_between_filter_and_bind(machines: Fleet, crowded: Machine, api: Api, relay: Relay) -> None:
    relay.let_bind.clear()
    await api.create_pods([sharer("caught", on=CROWDED)])
    await wait_until(lambda: relay.binding > 0, 20, "the pod is about to be bound")
    foreign = crowded.occupy(1, FOREIGN)
    await machines.reported(crowded, lambda said: used(said, 1) == FOREIGN, "a foreign process")
    others = machines.machines.keys() - {CROWDED}

    async def known() -> bool:
        return await accepted(relay.target, sharer("probe"), machines.machines) == others

    await wait_until(known, 2, "Filter refuses the node, and no other", interval=0.1)
    relay.let_bind.set()

    async def vetoed() -> bool:
        return bool(await events(api, "Vetoed"))

    await wait_until(vetoed, 20, "the binding is vetoed")
    told = (await events(api, "Vetoed"))[0]
    assert told["involvedObject"]["name"] == "caught"
    for word in (CROWDED, crowded.uuids[1], "47.8 GiB", "31.9 GiB", "85 %"):
        assert word in told["message"], told["message"]
    await asyncio.sleep(2)
    assert node_of((await pods(api))["caught"]) is None
    crowded.leave(foreign)
    assert await bound(api, ["caught"]) == {CROWDED}
    assert_no_card_overfilled(machines)


async def kept_behind_its_gate(machines: Fleet, crowded: Machine, api: Api) -> None:
    """A kvitej that has just started, with webhook and planner."""
    foreign = crowded.occupy(1, FOREIGN)
    await machines.reported(crowded, lambda said: used(said, 1) == FOREIGN, "a foreign process")
    free = [f"free-{number}" for number in range(20)]
    await api.create_pods(
        [
            sharer("late", on=CROWDED, scheduler="fair-quota"),
            *(sharer(name, scheduler="fair-quota") for name in free),
        ]
    )
    assert CROWDED not in await bound(api, free)
    late = (await pods(api))["late"]
    assert (node_of(late), bool(late["spec"].get("schedulingGates"))) == (None, True)
    crowded.leave(foreign)
    assert await bound(api, ["late"]) == {CROWDED}
    assert_no_card_overfilled(machines)
