"""What the planner's hands do to a real API server, as the user who has only the rights that we ship."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extender.kube import reflector
from extender.kube.client import Client, connect
from extender.kube.releaser import Releaser, Result
from extender.kube.surroundings import Part, Surroundings
from extender.wire.marks import EVICTED, GATE
from tests.controlplane.api import STRATEGIC_MERGE_PATCH, Api, ApiError, Object, node, pod, wait_until
from tests.controlplane.burst import bind_by_hand, clear, node_of, wait_bound
from tests.controlplane.extender import grant
from tests.controlplane.processes import ControlPlane

pytestmark = pytest.mark.controlplane

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
TAINT = {"key": "last", "value": "", "effect": "PreferNoSchedule"}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "fairnesspolicies.kvitej.io"},
    "spec": {
        "group": "kvitej.io",
        "scope": "Cluster",
        "names": {"plural": "fairnesspolicies", "singular": "fairnesspolicy", "kind": "FairnessPolicy"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.fixture
async def kvitej(control_plane: ControlPlane, api: Api) -> AsyncIterator[Api]:
    """A plain client as our user, once its rights and its limits hold."""
    await grant(api)
    await clear(api)
    await api.create_pods([pod("probe")])
    tries = itertools.count()
    said = ""
    async with Api(control_plane, "kvitej") as user:

        async def limited() -> bool:
            nonlocal said
            try:
                await user.patch(f"{PODS}/probe", {"metadata": {"labels": {"probe": str(next(tries))}}})
            except ApiError as error:
                said = error.message
            return "no metadata of a pod but annotations" in said

        await wait_until(limited, 20, lambda: f"our user's rights and limits hold; it was told: {said}")
        await api.delete_pod("default", "probe")
        yield user


@pytest.fixture
async def client(control_plane: ControlPlane, kvitej: Api) -> AsyncIterator[Client]:
    async with await connect(control_plane.kubeconfig("kvitej")) as client:
        yield client


@pytest.fixture
def releaser(client: Client) -> Releaser:
    return Releaser(client, timeout=10.0)


async def created(api: Api, name: str, **parts: Any) -> str:
    """Create a pod; its uid."""
    uid: str = (await api.post(PODS, pod(name, **parts)))["metadata"]["uid"]
    return uid


async def running(api: Api, name: str, **parts: Any) -> str:
    uid = await created(api, name, **parts)
    await bind_by_hand(api, name, "n0")
    ready = [{"type": "Ready", "status": "True"}]
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": ready}})
    return uid


async def budget(api: Api, name: str, allowed: int) -> None:
    """A disruption budget for the pods of app x; no controller runs, so its status is written here."""
    selector = {"matchLabels": {"app": "x"}}
    made = await api.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": selector},
        }
    )
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
    }
    await api.patch(f"{BUDGETS}/{name}/status", {"status": status})


async def test_a_pod_is_bound_to_the_node_that_was_nominated_when_its_gate_is_lifted(
    api: Api, control_plane: ControlPlane, releaser: Releaser
) -> None:
    # By itself the scheduler would choose any node but the last.
    await api.create_nodes([*(node(f"n{index}") for index in range(9)), node("last", taints=[TAINT])])
    scheduler = await asyncio.to_thread(control_plane.start_scheduler)
    try:
        uid = await created(api, "p", gates=[GATE])
        assert (await releaser.nominate("default", "p", uid, "last")).result is Result.DONE
        assert node_of(await api.get(f"{PODS}/p")) is None
        annotations = {"kvitej.io/released": "now"}
        assert (await releaser.lift("default", "p", uid, annotations)).result is Result.DONE
        found = await wait_bound(api, 1, 20)
        assert node_of(found["p"]) == "last"
        assert found["p"]["metadata"]["annotations"] == annotations
    finally:
        scheduler.kill()


async def test_a_nomination_can_be_replaced_and_taken_back(api: Api, releaser: Releaser) -> None:
    uid = await created(api, "p", gates=[GATE])
    for name in ("n1", "n2", None, None):
        assert (await releaser.nominate("default", "p", uid, name)).result is Result.DONE
        assert (await api.get(f"{PODS}/p"))["status"].get("nominatedNodeName") == name


async def test_only_our_gate_is_lifted_and_lifting_twice_does_no_harm(api: Api, releaser: Releaser) -> None:
    uid = await created(api, "p", gates=["other.io/first", GATE, "other.io/last"])
    for _ in range(2):
        assert (await releaser.lift("default", "p", uid, {})).result is Result.DONE
        gates = (await api.get(f"{PODS}/p"))["spec"]["schedulingGates"]
        assert [gate["name"] for gate in gates] == ["other.io/first", "other.io/last"]
    bare = await created(api, "bare")
    assert (await releaser.lift("default", "bare", bare, {})).result is Result.DONE


async def test_a_successor_of_the_same_name_is_left_alone(api: Api, releaser: Releaser) -> None:
    await created(api, "p", gates=[GATE])
    before = await api.get(f"{PODS}/p")
    for name, word in (("p", "re-created"), ("absent", "gone")):
        for written in (
            await releaser.nominate("default", name, "another-uid", "n1"),
            await releaser.lift("default", name, "another-uid", {"kvitej.io/released": "now"}),
            await releaser.evict("default", name, "another-uid", "why"),
        ):
            assert written.result is Result.GONE
            assert word in written.detail
    assert await api.get(f"{PODS}/p") == before


async def test_an_eviction_asks_the_disruption_budget_and_tells_the_victim_why(
    api: Api, releaser: Releaser
) -> None:
    uid = await running(api, "victim", labels={"app": "x"})
    await budget(api, "strict", 0)
    refused = await releaser.evict("default", "victim", uid, "kvitej: room for team/p")
    assert refused.result is Result.REFUSED
    assert "disruption budget" in refused.detail
    spared = (await api.get(f"{PODS}/victim"))["metadata"]
    assert EVICTED not in spared.get("annotations", {})
    assert "deletionTimestamp" not in spared

    await budget(api, "another", 1)
    refused = await releaser.evict("default", "victim", uid, "why")
    assert refused.result is Result.REFUSED
    assert "more than one PodDisruptionBudget" in refused.detail
    await api.delete(f"{BUDGETS}/another")

    await budget(api, "strict", 1)
    evicted = await releaser.evict("default", "victim", uid, "kvitej: room for team/p")
    assert evicted.result is Result.DONE
    leaving = (await api.get(f"{PODS}/victim"))["metadata"]
    assert leaving["annotations"][EVICTED] == "kvitej: room for team/p"
    assert "deletionTimestamp" in leaving
    assert (await api.get(f"{BUDGETS}/strict"))["status"]["disruptionsAllowed"] == 0
    await api.delete(f"{BUDGETS}/strict")


# The API server lets anybody who may patch a pod add tolerations to those that each pod gets from it.
MORE_TOLERATIONS = [
    *(
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for key in ("not-ready", "unreachable")
    ),
    {"operator": "Exists"},
]
FOREIGN_GATE = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "other.io/gate"}]}}
CHANGES: dict[str, tuple[str, str, Any]] = {
    "an image": (
        "",
        "nothing in a pod's spec",
        {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
    ),
    "a toleration": ("", "nothing in a pod's spec", {"spec": {"tolerations": MORE_TOLERATIONS}}),
    "a deadline": ("", "nothing in a pod's spec", {"spec": {"activeDeadlineSeconds": 1}}),
    "a gated pod's node selector": ("", "nothing in a pod's spec", {"spec": {"nodeSelector": {"a": "b"}}}),
    "another's gate": ("", "no scheduling gate but", FOREIGN_GATE),
    "a new label": ("", "no metadata", {"metadata": {"labels": {"a": "b"}}}),
    "a label": ("", "no metadata", {"metadata": {"labels": {"app": "y"}}}),
    "a lost label": ("", "no metadata", {"metadata": {"labels": {"app": None}}}),
    "a finalizer": ("", "no metadata", {"metadata": {"finalizers": ["other.io/stay"]}}),
    "an owner": (
        "",
        "no metadata",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}},
    ),
    "a new annotation": ("", "no annotation but", {"metadata": {"annotations": {"a": "b"}}}),
    "an annotation": ("", "no annotation but", {"metadata": {"annotations": {"mine": "no more"}}}),
    "a lost annotation": ("", "no annotation but", {"metadata": {"annotations": {"mine": None}}}),
    "a like annotation": ("", "no annotation but", {"metadata": {"annotations": {"x-kvitej.io/a": "b"}}}),
    "a label by the status": ("/status", "no metadata", {"metadata": {"labels": {"a": "b"}}}),
    "an annotation by the status": (
        "/status",
        "no annotation but",
        {"metadata": {"annotations": {"a": "b"}}},
    ),
    "a phase": ("/status", "nothing in a pod's status", {"status": {"phase": "Failed"}}),
    "a message": ("/status", "nothing in a pod's status", {"status": {"message": "by us"}}),
    "a condition": (
        "/status",
        "nothing in a pod's status",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ),
}


async def test_our_user_may_change_nothing_else_of_a_pod(api: Api, kvitej: Api) -> None:
    given = {"labels": {"app": "x"}, "annotations": {"mine": "kept"}}
    await created(api, "p", gates=[GATE, "other.io/gate"], **given)
    before = await api.get(f"{PODS}/p")
    for subresource, message, patch in CHANGES.values():
        with pytest.raises(ApiError, match=message):
            await kvitej.patch(f"{PODS}/p{subresource}", patch, STRATEGIC_MERGE_PATCH)
    assert await api.get(f"{PODS}/p") == before
    with pytest.raises(ApiError, match="cannot delete"):
        await kvitej.delete(f"{PODS}/p")
    # What is ours may come, change and go, and other users are not limited.
    for value in ("one", "two", None):
        await kvitej.patch(f"{PODS}/p", {"metadata": {"annotations": {"kvitej.io/note": value}}})
    for _, _, patch in CHANGES.values():
        if patch is FOREIGN_GATE:
            await api.patch(f"{PODS}/p", patch, STRATEGIC_MERGE_PATCH)
    assert (await api.get(f"{PODS}/p"))["spec"]["schedulingGates"] == [{"name": GATE}]


async def test_policies_are_followed_once_their_kind_is_served_and_their_status_is_written(
    api: Api, client: Client, releaser: Releaser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.2)
    await api.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"tier": "gold"}}}
    )
    await api.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "low", "labels": {"kvitej.io/preemptible": "true"}},
            "value": 7,
        }
    )
    await budget(api, "kept", 3)
    changes: list[Part] = []
    around = Surroundings(client, changes.append)
    task = asyncio.create_task(around.run())
    try:
        await asyncio.wait_for(around.wait_synced(), 20)
        assert not around.policies
        assert {each.metadata.name: each.metadata.labels for each in around.namespaces.values()}["team"] == {
            "kubernetes.io/metadata.name": "team",
            "tier": "gold",
        }
        (low,) = [each for each in around.priority_classes.values() if each.metadata.name == "low"]
        assert (low.value, low.metadata.labels) == (7, {"kvitej.io/preemptible": "true"})
        (kept,) = around.budgets.values()
        assert kept.spec.selector is not None
        assert kept.spec.selector.match_labels == {"app": "x"}
        await wait_until(
            lambda: next(iter(around.budgets.values())).status.disruptions_allowed == 3, 5, "3 allowed"
        )
        assert (await releaser.write_status("fair", {})).result is Result.GONE

        await api.apply(DEFINITION)
        spec = {"decayHalfLife": "24h", "tenants": [{"name": "research", "weight": 10}]}
        made = await api.apply(
            {
                "apiVersion": "kvitej.io/v1alpha1",
                "kind": "FairnessPolicy",
                "metadata": {"name": "fair"},
                "spec": spec,
            }
        )
        await wait_until(lambda: len(around.policies) == 1, 20, "the policy is seen")
        uid = made["metadata"]["uid"]
        assert around.policies[uid].spec == spec
        assert around.policies[uid].metadata.generation == 1

        status = {"time": "2026-11-30T12:00:00Z", "tenants": [{"name": "research", "used": 1.5}]}
        assert (await releaser.write_status("fair", status)).result is Result.DONE
        await wait_until(lambda: around.policies[uid].status == status, 5, "the status comes back")
        assert around.policies[uid].spec == spec

        await api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fairnesspolicies.kvitej.io")
        await wait_until(lambda: not around.policies, 20, "the policies are gone with their kind")
        assert {Part.POLICIES, Part.NAMESPACES, Part.BUDGETS} <= set(changes)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
