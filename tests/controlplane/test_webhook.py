"""The shipped webhook configurations on a real API server: who is asked about what, and what is stored then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from extender import certs
from extender.cluster.state import ClusterState
from extender.config import Config, from_mapping
from extender.fairness.depth import Queue, QueueDepths
from extender.fairness.policy import Foreign, Place, Policy, Tenant
from extender.kube.release import release_by_hand
from extender.schedulerconfig import managed_resources
from extender.serve.book import Book
from extender.serve.listening import Webhook, reviewing
from extender.serve.metrics import Metrics
from extender.serve.webhook import WebhookDoor, admission
from tests.controlplane.api import GPU, STRATEGIC_MERGE_PATCH, Api, ApiError, Object, node, pod, wait_until
from tests.controlplane.extender import Extender, grant
from tests.controlplane.fair import register, unregister
from tests.controlplane.processes import ControlPlane, free_ports

pytestmark = pytest.mark.controlplane

GATES = [{"name": "kvitej.io/turn"}]
LIFTED = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "kvitej.io/turn"}]}}
POLICY = Policy(
    "pool",
    (Tenant("training", 1, queue_depth=3, adopt=True, priority_classes=frozenset(("low",))),),
    node_selector={"pool": "a"},
    foreign=Foreign.DENY,
)


class Training:
    """The policy above, for the namespace `training`."""

    def place(self, namespace: str, namespace_labels: Mapping[str, str], scheduler_name: str) -> Place | None:
        return Place(POLICY, POLICY.tenant(namespace)) if namespace == "training" else None


class Served:
    """A webhook in this process, which the API server asks."""

    def __init__(self, config: Config) -> None:
        self.now = 0.0
        self.depths = QueueDepths()
        book = Book(ClusterState(managed_resources()))
        self.metrics = Metrics(book.snapshot, lambda: ())
        self.door = WebhookDoor(
            admission(config, Training(), lambda _: {}), self.depths, self.metrics, lambda: self.now
        )

    @property
    def asked(self) -> tuple[int, int]:
        """Mutating and validating reviews so far."""
        found = {"mutate": 0.0, "validate": 0.0}
        for metric in self.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name == "kvitej_decisions_total" and sample.labels["verb"] in found:
                    found[sample.labels["verb"]] += sample.value
        return int(found["mutate"]), int(found["validate"])

    @property
    def waiting(self) -> int:
        return self.depths.depth(Queue("pool", "training"), self.now)


@pytest.fixture
async def served(control_plane: ControlPlane, api: Api, tmp_path: Path) -> AsyncIterator[Served]:
    """The webhook, registered, and a namespace `training` without pods."""
    await grant(api)
    for namespace in ("training", "other"):
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await api._ask("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
    config = from_mapping({"admission": {"schedulers": ["fair-quota"]}})
    served = Served(config)
    made = certs.make(tmp_path / "certs", ("127.0.0.1",))
    _, cert, key = made.files
    async with reviewing(served.door, config, Webhook("127.0.0.1", 0, cert, key)) as address:
        await register(api, address, made.ca_bundle, asks=False)
        await in_effect(api)
        try:
            yield served
        finally:
            await unregister(api)


async def in_effect(api: Api) -> None:
    """Wait until the API server asks: it reads its configurations by a watch of its own."""

    async def asks() -> bool:
        dry = await api.post("/api/v1/namespaces/training/pods", gpu_pod("probe"), {"dryRun": "All"})
        return "schedulingGates" in dry["spec"]

    await wait_until(asks, 10, "a dry run is gated")


def gpu_pod(name: str, **more: Any) -> Object:
    return pod(name, namespace=more.pop("namespace", "training"), **more)


async def created(api: Api, made: Object, dry_run: bool = False) -> Object:
    namespace = made["metadata"]["namespace"]
    return await api.post(
        f"/api/v1/namespaces/{namespace}/pods", made, {"dryRun": "All"} if dry_run else None
    )


def at(name: str, subresource: str = "") -> str:
    return f"/api/v1/namespaces/training/pods/{name}{subresource}"


async def test_a_gpu_pod_is_adopted_gated_and_kept_in_its_pool(api: Api, served: Served) -> None:
    stored = (await created(api, gpu_pod("gpu")))["spec"]
    assert stored["schedulerName"] == "fair-quota"
    assert stored["schedulingGates"] == GATES
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in stored["tolerations"]
    terms = stored["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}
    ]
    limits_only = {"containers": [{"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}]}
    assert (await created(api, gpu_pod("limits", spec=limits_only)))["spec"]["schedulingGates"] == GATES
    warm = {"name": "warm", "image": "none", "resources": {"limits": {GPU: "1"}}}
    initial = gpu_pod("init", requests={"cpu": 1}, spec={"initContainers": [warm]})
    assert (await created(api, initial))["spec"]["schedulingGates"] == GATES


async def test_gpus_become_instances_of_the_profile_that_the_pod_names(api: Api, served: Served) -> None:
    profile = {"nvidia.com/mig-profile": "3g.40gb"}
    warm = {"name": "warm", "image": "none", "resources": {"limits": {GPU: "2"}}}
    made = gpu_pod("cut", annotations=profile, spec={"initContainers": [warm]})
    stored = await created(api, made)
    mig = "nvidia.com/mig-3g.40gb"
    (main,), (init,) = stored["spec"]["containers"], stored["spec"]["initContainers"]
    for container, count in ((main, "1"), (init, "2")):
        for kind in ("limits", "requests"):
            assert container["resources"][kind].get(mig) == count
            assert GPU not in container["resources"][kind]
    assert stored["metadata"]["annotations"] == profile
    with pytest.raises(ApiError, match="is of no use to a pod that asks neither for"):
        await created(api, gpu_pod("cpu", requests={"cpu": 1}, annotations=profile))
    with pytest.raises(
        ApiError, match=r"metadata.annotations\[nvidia.com/mig-profile\]: '3g' is no MIG profile"
    ):
        await created(api, gpu_pod("bad", annotations={"nvidia.com/mig-profile": "3g"}))


async def test_a_pod_that_names_its_node_is_not_gated(api: Api, served: Served) -> None:
    await api.apply(node("n0"))
    stored = (await created(api, gpu_pod("placed", spec={"nodeName": "n0"})))["spec"]
    assert stored["nodeName"] == "n0"
    assert "schedulingGates" not in stored
    assert "affinity" not in stored


async def test_what_is_not_ours_never_reaches_the_webhook(api: Api, served: Served) -> None:
    before = served.asked
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    await created(api, gpu_pod("cpu", requests={"cpu": 1}))
    await api.patch(at("cpu"), {"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}})
    await api.delete_pod("training", "cpu")
    await created(api, gpu_pod("system", namespace="kube-system"))
    assert served.asked == before
    await created(api, gpu_pod("gpu"))
    assert served.asked == (before[0] + 1, before[1] + 1)
    # Nothing of ours changes:
    await api.patch(at("gpu"), {"metadata": {"labels": {"a": "b"}}})
    await api.patch(at("gpu", "/status"), {"status": {"nominatedNodeName": "n0"}})
    assert served.asked == (before[0] + 1, before[1] + 1)
    await api.delete_pod("kube-system", "system")


async def test_annotations_that_only_kvitej_writes_are_removed_on_create_and_put_back_on_update(
    api: Api, control_plane: ControlPlane, served: Served
) -> None:
    forged = {"kvitej.io/devices": "{}", "kvitej.io/gpu-memory": "1Gi", "mine": "1"}
    stored = await created(api, gpu_pod("gpu", annotations=forged))
    assert stored["metadata"]["annotations"] == {"kvitej.io/gpu-memory": "1Gi", "mine": "1"}
    async with Api(control_plane, "kvitej") as kvitej:
        await kvitej.patch(at("gpu"), {"metadata": {"annotations": {"kvitej.io/devices": "true"}}})
    expected = {"kvitej.io/devices": "true", "kvitej.io/gpu-memory": "2Gi", "mine": "2"}
    for subresource in ("", "/status"):
        changed = {**expected, "kvitej.io/devices": "false", "kvitej.io/retry": "now"}
        after = await api.patch(at("gpu", subresource), {"metadata": {"annotations": changed}})
        assert after["metadata"]["annotations"] == expected
        after = await api.patch(
            at("gpu", subresource), {"metadata": {"annotations": {"kvitej.io/devices": None}}}
        )
        assert after["metadata"]["annotations"] == expected


async def test_the_declared_memory_of_a_bound_pod_stays(api: Api, served: Served) -> None:
    await api.apply(node("n0"))
    await created(api, gpu_pod("bound", annotations={"kvitej.io/gpu-memory": "1Gi"}, spec={"nodeName": "n0"}))
    after = await api.patch(at("bound"), {"metadata": {"annotations": {"kvitej.io/gpu-memory": "2Gi"}}})
    assert after["metadata"]["annotations"] == {"kvitej.io/gpu-memory": "1Gi"}


async def test_only_kvitej_lifts_the_gate(api: Api, control_plane: ControlPlane, served: Served) -> None:
    await created(api, gpu_pod("gpu", gates=["kueue.x/gate"]))
    with pytest.raises(
        ApiError, match=r"kvitej lifts kvitej\.io/turn when the pod's turn has come"
    ) as refused:
        await api.patch(at("gpu"), LIFTED, STRATEGIC_MERGE_PATCH)
    assert refused.value.status == 403
    async with Api(control_plane, "kvitej") as kvitej:
        after = await kvitej.patch(at("gpu"), LIFTED, STRATEGIC_MERGE_PATCH)
    assert after["spec"]["schedulingGates"] == [{"name": "kueue.x/gate"}]


async def test_release_lifts_gates_by_hand_as_kvitej(
    api: Api, control_plane: ControlPlane, served: Served
) -> None:
    for name in ("one", "two", "three"):
        await created(api, gpu_pod(name, gates=["kueue.x/gate"] if name == "two" else ()))
    kubeconfig = control_plane.kubeconfig("admin")

    async def release(user: str | None = "kvitej", **which: str | None) -> list[tuple[str, str | None]]:
        given = {"namespace": None, "pod": None, **which}
        return await asyncio.to_thread(release_by_hand, kubeconfig, user=user, **given)

    ((name, problem),) = await release(None, namespace="training", pod="one")
    assert name == "training/one"
    assert problem is not None
    assert "`kvitej release`" in problem
    assert await release(namespace="training", pod="one") == [("training/one", None)]
    ((_, problem),) = await release(namespace="training", pod="one")
    assert problem == "it does not have the gate kvitej.io/turn"
    assert sorted(await release(namespace="training")) == [("training/three", None), ("training/two", None)]
    assert await release() == []
    gates = {
        each["metadata"]["name"]: each["spec"].get("schedulingGates", [])
        for each in await api.list("/api/v1/namespaces/training/pods")
    }
    assert gates == {"one": [], "two": [{"name": "kueue.x/gate"}], "three": []}


async def test_a_full_queue_refuses_at_once_and_a_dry_run_counts_nothing(api: Api, served: Served) -> None:
    for number in range(5):
        await created(api, gpu_pod(f"dry-{number}"), dry_run=True)
    assert served.waiting == 0
    for number in range(3):
        await created(api, gpu_pod(f"p{number}"))
    assert served.waiting == 3
    for dry_run in (False, True):
        with pytest.raises(
            ApiError, match=r"the queue of tenant training is full: 3 of 3 pods wait.*30 s"
        ) as full:
            await created(api, gpu_pod("late"), dry_run)
        assert full.value.status == 429
    await created(api, gpu_pod("elsewhere", namespace="other"))
    # The watch brings one of the three under the uid that was counted; the others are never seen, and end to count.
    uid = (await api.get(at("p0")))["metadata"]["uid"]
    served.depths.seen(uid, Queue("pool", "training"))
    assert served.waiting == 3
    served.now = 10.0
    assert served.waiting == 1
    await created(api, gpu_pod("late"))
    served.depths.gone(uid)
    assert served.waiting == 1


async def test_what_a_tenant_may_not_do_is_refused_in_words(api: Api, served: Served) -> None:
    for name, value in (("low", 1), ("top", 1000)):
        await api.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )
    await created(api, gpu_pod("low", priority="low"))
    refused = {
        "'top' is not for tenant training; allowed: low": gpu_pod("top", priority="top"),
        "'volcano' may not schedule GPU pods of tenant training": gpu_pod("v", scheduler="volcano"),
        r"metadata.annotations\[kvitej.io/gpu-memory\]: '40 Gi'": gpu_pod(
            "m", annotations={"kvitej.io/gpu-memory": "40 Gi"}
        ),
    }
    for sentence, made in refused.items():
        with pytest.raises(ApiError, match=sentence):
            await created(api, made)


async def test_while_the_webhook_is_down_pods_pass_as_they_are(api: Api, served: Served) -> None:
    (nobody,) = free_ports(1)
    await register(api, f"https://127.0.0.1:{nobody}", "", asks=False)

    async def passes() -> bool:
        dry = await created(api, gpu_pod("probe"), dry_run=True)
        return "schedulingGates" not in dry["spec"]

    await wait_until(passes, 10, "a dry run is not gated")


async def test_kvitej_serve_answers_reviews(api: Api, control_plane: ControlPlane, tmp_path: Path) -> None:
    await grant(api)
    (port,) = free_ports(1)
    made = certs.make(tmp_path, ("127.0.0.1",))
    _, cert, key = made.files
    options: list[str | Path] = [
        "--webhook",
        f"127.0.0.1:{port}",
        "--webhook-cert",
        cert,
        "--webhook-key",
        key,
    ]
    kvitej = Extender(control_plane, name="admits", options=options)
    try:
        kvitej.wait_synced()
        await register(api, f"https://127.0.0.1:{port}", made.ca_bundle, asks=False)
        asking = pod("asks", annotations={"kvitej.io/devices": "{}"})

        async def removed() -> bool:
            stored = await api.post("/api/v1/namespaces/default/pods", asking, {"dryRun": "All"})
            return "annotations" not in stored["metadata"]

        await wait_until(removed, 10, "a forged annotation is removed")
        assert kvitej.metric("kvitej_decisions_total", verb="validate", outcome="allowed") >= 1
    finally:
        kvitej.kill()
