"""The control plane itself: what other tests and benches take for granted about it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from pathlib import Path

import pytest

from tests.controlplane.api import Api, ApiError, Object, node, pod, wait_until
from tests.controlplane.binaries import Binaries, Unavailable, ensure
from tests.controlplane.processes import ControlPlane, ControlPlaneError

pytestmark = pytest.mark.controlplane


def read_only_role() -> tuple[Object, Object]:
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "reads-nodes"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kvitej-reads-nodes"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reads-nodes"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "kvitej"}],
    }
    return role, binding


async def test_the_api_server_says_the_version_that_was_built(api: Api, binaries: Binaries) -> None:
    assert (await api.get("/version"))["gitVersion"] == binaries.version


async def test_a_created_node_keeps_its_status_and_gets_no_taint(api: Api) -> None:
    await api.create_nodes([node("kept", gpus=4, extra={"nvidia.com/mig-1g.10gb": "7"})])
    stored = await api.get("/api/v1/nodes/kept")
    assert stored["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert stored["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] == "7"
    assert stored["metadata"]["labels"]["nvidia.com/gpu.count"] == "4"
    assert "taints" not in stored["spec"]
    await api.delete("/api/v1/nodes/kept")


async def test_a_user_may_do_only_what_rbac_grants(api: Api, control_plane: ControlPlane) -> None:
    async with Api(control_plane, "kvitej") as kvitej:
        with pytest.raises(ApiError) as refused:
            await kvitej.list("/api/v1/nodes")
        assert refused.value.status == 403
        for manifest in read_only_role():
            await api.apply(manifest)
            await api.apply(manifest)

        async def granted() -> bool:
            with contextlib.suppress(ApiError):
                await kvitej.list("/api/v1/nodes")
                return True
            return False

        await wait_until(granted, 5, "kvitej may list nodes")
        with pytest.raises(ApiError, match='cannot list resource "pods"'):
            await kvitej.list("/api/v1/pods")


async def test_apply_serves_the_kind_of_a_new_custom_resource_definition(api: Api) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "shares.test.kvitej.io"},
        "spec": {
            "group": "test.kvitej.io",
            "scope": "Namespaced",
            "names": {"kind": "Share", "plural": "shares"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    share = {"apiVersion": "test.kvitej.io/v1", "kind": "Share", "metadata": {"name": "half"}, "weight": 1}
    await api.apply(definition)
    await api.apply(share)
    await api.apply({**share, "weight": 2})
    assert [each["weight"] for each in await api.list("/apis/test.kvitej.io/v1/shares")] == [2]


async def test_the_stock_scheduler_binds_gpu_pods_and_the_watch_shows_it(
    api: Api, control_plane: ControlPlane
) -> None:
    await api.create_nodes(node(f"gpu-{index}") for index in range(3))
    scheduler = control_plane.start_scheduler(feature_gates={"OpportunisticBatching": False})
    bound: dict[str, str] = {}
    async with contextlib.aclosing(api.watch("/api/v1/namespaces/default/pods")) as events:
        await api.create_pods(pod(f"worker-{index}") for index in range(20))
        async for kind, seen in events:
            assert kind in {"ADDED", "MODIFIED"}
            if "nodeName" in seen["spec"]:
                bound[seen["metadata"]["name"]] = seen["spec"]["nodeName"]
            if len(bound) == 20:
                break
    for name in {"gpu-0", "gpu-1", "gpu-2"}:
        assert list(bound.values()).count(name) <= 8

    await api.create_pods(pod(f"late-{index}") for index in range(5))

    async def one_waits() -> bool:
        waiting = [each for each in await api.list("/api/v1/pods") if "nodeName" not in each["spec"]]
        reasons = [each["reason"] for one in waiting for each in one["status"].get("conditions", ())]
        return len(waiting) == 1 and reasons == ["Unschedulable"]

    await wait_until(one_waits, 20, lambda: f"24 of 25 pods bound\n{control_plane.tail('kube-scheduler')}")
    for each in await api.list("/api/v1/pods"):
        await api.delete_pod("default", each["metadata"]["name"])
    assert await api.list("/api/v1/pods") == []
    assert 0 < scheduler.cpu_seconds() < 30
    scheduler.stop()
    assert not scheduler.running


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_restarted_api_server_keeps_its_address_and_its_data(
    api: Api, control_plane: ControlPlane, kill: bool
) -> None:
    name = f"survivor-{kill}".lower()
    await api.create_nodes([node(name)])
    before = control_plane.url
    async with contextlib.aclosing(api.watch("/api/v1/nodes")) as events:
        await anext(events)
        begun = time.monotonic()
        await asyncio.to_thread(control_plane.stop_apiserver, kill=kill)
        assert time.monotonic() - begun < 15
    with pytest.raises(OSError):
        await api.get("/readyz")
    control_plane.start_apiserver()
    assert control_plane.url == before
    assert (await api.get(f"/api/v1/nodes/{name}"))["metadata"]["name"] == name


async def test_after_compaction_and_restart_an_old_resource_version_is_gone(
    api: Api, control_plane: ControlPlane
) -> None:
    old = (await api.get("/api/v1/nodes"))["metadata"]["resourceVersion"]
    await api.create_nodes(node(f"history-{index}") for index in range(3))
    assert control_plane.compact() > int(old)
    control_plane.stop_apiserver(kill=True)
    control_plane.start_apiserver()
    async with contextlib.aclosing(api.watch("/api/v1/nodes", {"resourceVersion": old})) as events:
        kind, status = await anext(events)
    assert (kind, status["code"]) == ("ERROR", 410)


def test_a_scheduler_that_refuses_its_configuration_is_reported_with_its_log(
    control_plane: ControlPlane,
) -> None:
    extender = {"urlPrefix": "http://127.0.0.1:1", "enableHttps": False}
    with pytest.raises(ControlPlaneError, match=r"unknown field .*enableHttps"):
        control_plane.start_scheduler({"extenders": [extender]}, name="refused")


def test_a_program_that_does_not_start_is_reported_with_its_log(binaries: Binaries, tmp_path: Path) -> None:
    with (
        pytest.raises(ControlPlaneError, match="unknown flag: --no-such-flag"),
        ControlPlane(binaries, tmp_path, apiserver_flags=["--no-such-flag"]),
    ):
        pass


def test_a_cache_that_cannot_be_written_is_a_reason_and_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="cannot be filled"):
        ensure(progress=io.StringIO())


def test_a_version_that_kubernetes_never_had_is_refused_by_name() -> None:
    with pytest.raises(Unavailable, match=r"'1\.37' is not of the form v1\.37\.2"):
        ensure("1.37", progress=io.StringIO())
