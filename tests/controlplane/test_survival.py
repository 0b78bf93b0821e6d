"""kvitej under a real control plane when things break in the middle of a burst: no double seat, no lost seat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import yaml

from tests.controlplane.api import Api, node, pod, wait_until
from tests.controlplane.burst import (
    assert_book_agrees,
    assert_no_double_seat,
    clear,
    in_background,
    node_of,
    pods,
    wait_bound,
)
from tests.controlplane.extender import Extender, grant
from tests.controlplane.processes import ControlPlane
from tests.controlplane.proxy import Proxy

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    """Between kvitej and the API server; the kubeconfig of user kvitej points at it meanwhile."""
    async with Proxy(control_plane.url) as running:
        yield running


class Cluster:
    """kvitej, reached by one kube-scheduler, and itself reaching the API server through a proxy."""

    def __init__(self, control_plane: ControlPlane, api: Api, proxy: Proxy) -> None:
        self.control_plane = control_plane
        self.api = api
        self.proxy = proxy
        self.kubeconfig = control_plane.kubeconfig("kvitej")
        document = yaml.safe_load(self.kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = proxy.url
        self.kubeconfig = control_plane.directory / "kvitej-through-proxy.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(document))
        self.extender = Extender(control_plane, kubeconfig=self.kubeconfig)

    def restart(self) -> None:
        self.extender.kill()
        self.extender = Extender(self.control_plane, ports=self.extender.ports, kubeconfig=self.kubeconfig)


@pytest.fixture
async def cluster(control_plane: ControlPlane, api: Api, proxy: Proxy) -> AsyncIterator[Cluster]:
    await grant(api)
    await clear(api)
    made = Cluster(control_plane, api, proxy)
    scheduler = None
    try:
        await in_background(made.extender.wait_synced)
        scheduler = await in_background(
            lambda: control_plane.start_scheduler(made.extender.scheduler_config())
        )
        yield made
    finally:
        if scheduler is not None:
            scheduler.kill()
        made.extender.kill()


async def some_bound(api: Api, count: int) -> None:
    async def enough() -> bool:
        return sum(node_of(each) is not None for each in (await pods(api)).values()) >= count

    await wait_until(enough, 60, f"{count} pods bound")


async def test_killed_in_a_burst_of_500_and_restarted(cluster: Cluster) -> None:
    api = cluster.api
    await api.create_nodes(node(f"node-{index}") for index in range(63))
    burst = asyncio.create_task(api.create_pods((pod(f"pod-{index}") for index in range(500)), in_flight=32))
    for bound in (100, 250):
        await some_bound(api, bound)
        cluster.restart()
        await in_background(cluster.extender.wait_synced)
    await burst
    await wait_bound(api, 500, 120)
    await assert_no_double_seat(api)
    await assert_book_agrees(api, cluster.extender)


async def test_api_server_stopped_for_10_s_in_a_burst(cluster: Cluster) -> None:
    api = cluster.api
    await api.create_nodes(node(f"node-{index}") for index in range(63))
    await api.create_pods((pod(f"pod-{index}") for index in range(500)), in_flight=64)
    await some_bound(api, 50)
    await in_background(lambda: cluster.control_plane.stop_apiserver(kill=True))
    await asyncio.sleep(10)
    await in_background(cluster.control_plane.start_apiserver)
    await wait_bound(api, 500, 120)
    await assert_no_double_seat(api)
    await assert_book_agrees(api, cluster.extender)


async def test_a_burst_of_2000_pods_with_connections_cut_by_force(cluster: Cluster) -> None:
    api = cluster.api
    await api.create_nodes(node(f"node-{index}") for index in range(250))
    burst = asyncio.create_task(api.create_pods((pod(f"pod-{index}") for index in range(2000)), in_flight=32))

    async def cut_again_and_again() -> None:
        while True:
            await asyncio.sleep(1.5)
            cluster.proxy.cut()

    cutting = asyncio.create_task(cut_again_and_again())
    try:
        await burst
        await wait_bound(api, 2000, 200)
    finally:
        cutting.cancel()
    assert cluster.proxy.cuts > 5
    await assert_no_double_seat(api)
    await assert_book_agrees(api, cluster.extender)


async def test_watch_cut_history_compacted_and_api_server_restarted_before_it_returns(
    cluster: Cluster,
) -> None:
    api = cluster.api
    await api.create_nodes(node(f"node-{index}") for index in range(4))
    await api.create_pods(pod(f"pod-{index}") for index in range(20))
    await wait_bound(api, 20, 60)
    await assert_book_agrees(api, cluster.extender)
    cluster.proxy.refusing = True
    cluster.proxy.cut()
    for index in range(12):
        await api.delete_pod("default", f"pod-{index}")
    await api.create_nodes(node(f"more-{index}") for index in range(4))
    await in_background(cluster.control_plane.compact)
    await in_background(lambda: cluster.control_plane.stop_apiserver(kill=True))
    await in_background(cluster.control_plane.start_apiserver)
    cluster.proxy.refusing = False
    await wait_until(lambda: cluster.extender.metric("kvitej_watch_gone_total") > 0, 60, "a 410 was seen")
    await wait_until(
        lambda: cluster.extender.metric("kvitej_seats", phase="bound") == 8, 30, "the book forgot 12"
    )
    await assert_book_agrees(api, cluster.extender)
    await api.create_pods(pod(f"late-{index}") for index in range(12))
    await wait_bound(api, 20, 60)
    await assert_no_double_seat(api)
