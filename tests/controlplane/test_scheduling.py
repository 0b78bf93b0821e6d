"""kvitej under a real kube-scheduler: what is placed, what is bound, what is vetoed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.controlplane.api import Api, node, pod, wait_until
from tests.controlplane.burst import (
    assert_book_agrees,
    assert_no_double_seat,
    bind_by_hand,
    clear,
    delete_if_there,
    events,
    in_background,
    node_of,
    pods,
    record_of,
    wait_bound,
)
from tests.controlplane.extender import Extender, grant
from tests.controlplane.processes import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def extender(control_plane: ControlPlane, api: Api) -> AsyncIterator[Extender]:
    """kvitej, synced, and one kube-scheduler that asks it, on an empty cluster."""
    await grant(api)
    await clear(api)
    kvitej = Extender(control_plane)
    scheduler = None
    try:
        kvitej.wait_synced()
        scheduler = control_plane.start_scheduler(kvitej.scheduler_config())
        yield kvitej
    finally:
        if scheduler is not None:
            scheduler.kill()
        kvitej.kill()


async def test_every_kind_of_gpu_pod_is_bound_with_its_record(api: Api, extender: Extender) -> None:
    labels = {"replicas": "4", "sharing-strategy": "time-slicing", "memory": "81920", "count": "8"}
    replicas = {f"nvidia.com/gpu.{name}": value for name, value in labels.items()}
    await api.create_nodes(
        [
            *(node(f"whole-{index}") for index in range(3)),
            node("sliced", gpus=0, extra={"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}),
            node("shared", gpus=0, labels=replicas, extra={"nvidia.com/gpu.shared": "32"}),
        ]
    )
    mig = "nvidia.com/mig-3g.40gb"
    await api.create_pods(
        [
            *(pod(f"gpus-{count}", requests={"nvidia.com/gpu": count}) for count in (1, 2, 4, 8)),
            *(
                pod(f"fair-{count}", requests={"nvidia.com/gpu": count}, scheduler="fair-quota")
                for count in (1, 2)
            ),
            pod("share", requests={"nvidia.com/gpu.shared": 1}),
            pod(
                "declared",
                requests={"nvidia.com/gpu.shared": 1},
                annotations={"kvitej.io/gpu-memory": "40Gi"},
            ),
            pod("whole-declared", annotations={"kvitej.io/gpu-memory": "65Gi"}),
            pod("slice", requests={mig: 1}),
        ]
    )
    found = await wait_bound(api, 10, 60)
    devices = {name: record_of(bound)["containers"]["main"] for name, bound in found.items()}
    for count in (1, 2, 4, 8):
        assert len(devices[f"gpus-{count}"]["gpu"]) == count
    assert len(devices["share"]["shared"]) == len(devices["declared"]["shared"]) == 1
    assert record_of(found["declared"])["units"] == 0.5
    assert record_of(found["share"])["units"] == 0.25
    assert devices["slice"]["mig"] == {mig: 1}
    assert node_of(found["slice"]) == "sliced"
    assert node_of(found["share"]) == node_of(found["declared"]) == "shared"
    await assert_no_double_seat(api)
    await assert_book_agrees(api, extender)


async def test_our_best_node_outvotes_every_in_tree_scorer(api: Api, extender: Extender) -> None:
    # In-tree, "liked" wins everything: the pod prefers it by affinity, tolerates its soft taint, and it is idle.
    soft = {"key": "busy", "value": "yes", "effect": "PreferNoSchedule"}
    await api.create_nodes([node("liked", labels={"liked": "yes"}), node("tight", gpus=2, taints=[soft])])
    wish = {"weight": 100, "preference": {"matchExpressions": [{"key": "liked", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    await api.create_pods([pod("chooser", requests={"nvidia.com/gpu": 2}, spec={"affinity": affinity})])
    found = await wait_bound(api, 1, 30)
    assert node_of(found["chooser"]) == "tight"


async def test_two_schedulers_that_race_for_the_last_cards_never_overcommit(
    api: Api, control_plane: ControlPlane, extender: Extender
) -> None:
    rival = control_plane.start_scheduler(extender.scheduler_config(), name="rival")
    try:
        await api.create_nodes(node(f"node-{index}", gpus=4) for index in range(20))
        await api.create_pods(pod(f"racer-{index}") for index in range(120))
        await wait_bound(api, 80, 90)
        await asyncio.sleep(3)
        assert sum(node_of(each) is not None for each in (await pods(api)).values()) == 80
        await assert_no_double_seat(api)
        await assert_book_agrees(api, extender)
        assert await events(api, "Vetoed")
        assert extender.metric("kvitej_decisions_total", verb="bind", outcome="vetoed") > 0
    finally:
        rival.kill()


async def test_a_pod_bound_past_us_is_counted_and_its_cards_are_not_given_again(
    api: Api, extender: Extender
) -> None:
    await api.create_nodes([node("only", gpus=4)])
    await api.create_pods([pod("foreign", requests={"nvidia.com/gpu": 3}, scheduler="another")])
    await bind_by_hand(api, "foreign", "only")
    await wait_until(
        lambda: extender.metric("kvitej_pods_bound_past_us") == 1, 10, "the foreign pod is counted"
    )
    assert extender.metric("kvitej_pod_at_worst_case", namespace="default", pod="foreign") == 1
    await api.create_pods(pod(f"ours-{index}") for index in range(2))
    found = await wait_bound(api, 2, 30)
    assert sum(node_of(each) is not None for each in found.values()) == 2
    await assert_no_double_seat(api)
    await assert_book_agrees(api, extender, foreign=1)


async def test_a_resource_that_the_scheduler_does_not_ask_us_about_is_named(
    api: Api, extender: Extender
) -> None:
    await api.create_nodes([node("odd", extra={"nvidia.com/mig-9g.999gb": "1"})])
    await wait_until(
        lambda: (
            extender.metric("kvitej_nodes_with_unlisted_resource", resource="nvidia.com/mig-9g.999gb") == 1
        ),
        10,
        "the resource is counted",
    )
    assert "odd advertises nvidia.com/mig-9g.999gb" in extender.log.read_text()


async def test_pods_deleted_at_any_moment_leave_no_seat_behind(api: Api, extender: Extender) -> None:
    await api.create_nodes(node(f"node-{index}") for index in range(30))
    names = [f"brief-{index}" for index in range(240)]

    async def live_and_die(position: int, name: str) -> None:
        await api.create_pods([pod(name)])
        await asyncio.sleep(position % 12 * 0.02)
        await delete_if_there(api, name)

    await asyncio.gather(*(live_and_die(position, name) for position, name in enumerate(names)))
    await wait_until(lambda: extender.metric("kvitej_seats") == 0, 20, "every seat is free")
    await wait_until(lambda: extender.metric("kvitej_soft_claims") == 0, 20, "every soft claim has ended")
    await wait_until(lambda: extender.metric("kvitej_waiting_pods") == 0, 20, "no pod waits")
    assert "Traceback" not in extender.log.read_text()


async def test_pods_that_wait_for_room_are_bound_within_15_s_of_it(api: Api, extender: Extender) -> None:
    replicas = {"nvidia.com/gpu.replicas": "100", "nvidia.com/gpu.memory": "48000"}
    await api.create_nodes([node("full", gpus=2, labels=replicas, extra={"nvidia.com/gpu.shared": "200"})])
    memory = {"kvitej.io/gpu-memory": "30000Mi"}
    await api.create_pods(
        pod(f"first-{index}", requests={"nvidia.com/gpu.shared": 1}, annotations=memory) for index in range(2)
    )
    await wait_bound(api, 2, 30)
    # Only kvitej knows that the cards' memory is full: the scheduler itself counts 198 shares left.
    await api.create_pods(
        pod(f"second-{index}", requests={"nvidia.com/gpu.shared": 1}, annotations=memory)
        for index in range(2)
    )
    await asyncio.sleep(12)  # past the scheduler's longest backoff, so that it retries the moment a pod goes
    assert sum(node_of(each) is not None for each in (await pods(api)).values()) == 2
    for name in ("first-0", "first-1"):
        await api.delete_pod("default", name)
    await wait_bound(api, 2, 15)
    await assert_no_double_seat(api)


async def test_a_node_that_is_removed_and_created_again_is_used_again(api: Api, extender: Extender) -> None:
    await api.create_nodes([node("phoenix", gpus=4)])
    await api.create_pods([pod("before", requests={"nvidia.com/gpu": 3})])
    await wait_bound(api, 1, 30)
    await api.delete("/api/v1/nodes/phoenix")
    await wait_until(lambda: extender.metric("kvitej_nodes") == 0, 10, "the node is gone from the book")
    await api.create_nodes([node("phoenix", gpus=4)])
    await api.create_pods(pod(f"after-{index}", requests={"nvidia.com/gpu": 1}) for index in range(2))
    found = await wait_bound(api, 2, 30)
    await asyncio.sleep(2)
    found = await pods(api)
    assert sum(node_of(each) == "phoenix" for each in found.values()) == 2
    await assert_no_double_seat(api)
    await assert_book_agrees(api, extender)


async def test_an_unreadable_declaration_is_refused_with_its_path(api: Api, extender: Extender) -> None:
    await api.create_nodes([node("here")])
    await api.create_pods([pod("typo", annotations={"kvitej.io/gpu-memory": "16Gx"})])

    async def said() -> bool:
        return any("16Gx" in event["message"] for event in await events(api, "FailedScheduling"))

    await wait_until(said, 20, "the event names the value")
    assert node_of((await pods(api))["typo"]) is None


async def test_a_pod_of_higher_priority_preempts_through_us(api: Api, extender: Extender) -> None:
    await api.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
    )
    await api.create_nodes([node("contested", gpus=4)])
    await api.create_pods(pod(f"low-{index}") for index in range(4))
    await wait_bound(api, 4, 30)
    await api.create_pods([pod("urgent", requests={"nvidia.com/gpu": 2}, priority="urgent")])

    async def bury() -> bool:
        # No kubelet runs: a victim stays, terminating, until somebody deletes it for good.
        found = await pods(api)
        for name, each in found.items():
            if "deletionTimestamp" in each["metadata"]:
                await delete_if_there(api, name)
        return node_of(found["urgent"]) == "contested"

    await wait_until(bury, 40, "the urgent pod is bound")
    assert len(await pods(api)) == 3
    await assert_no_double_seat(api)


async def test_it_stops_gracefully_when_told_to(extender: Extender) -> None:
    await in_background(extender.stop)
    assert "kvitej stops" in extender.log.read_text()
    assert "Traceback" not in extender.log.read_text()
