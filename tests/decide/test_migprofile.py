"""`nvidia.com/mig-profile`: what becomes of nvidia.com/gpu, and what is said when no node has such a profile."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.inventory import inventory_of
from extender.cluster.request import request_of
from extender.decide.admit import Accepted, Admission, Mutation, mutate, validate
from extender.decide.migprofile import offered
from extender.decide.refusal import Refusal, Why
from extender.fairness.depth import Queue
from extender.fairness.policy import NeverFits
from tests.builders import GPU, SHARED, Json, container, node, read_pod
from tests.decide.admitting import admission, asking, create, mutated, queued

MIG = "nvidia.com/mig-3g.40gb"
PATH = "metadata.annotations[nvidia.com/mig-profile]: "


def cut(profile: str = "3g.40gb", **parts: Any) -> Json:
    raw = asking(**parts)
    raw["metadata"]["annotations"]["nvidia.com/mig-profile"] = profile
    return raw


def refused(raw: Json, door: Admission) -> str:
    found = mutate(create(raw), door)
    assert isinstance(found, Refusal)
    assert found.why is Why.MIG_PROFILE
    assert validate(create(raw), door, queued(0)) == found
    return found.message


def offering(*names: str, **policy: Any) -> Admission:
    return replace(admission(**policy), offers=lambda policy: frozenset(names))


def test_the_instances_stand_where_the_gpus_stood_in_every_container() -> None:
    spec = {
        "initContainers": [
            container("warm", {GPU: 2, "cpu": "1"}),
            container("log", {"cpu": "1"}, sidecar=True),
        ],
        "containers": [
            container("main", {GPU: "1", "memory": "1Gi"}),
            {"name": "limits", "resources": {"limits": {GPU: "3"}}},
            container("shared", {SHARED: "1"}),
            {"name": "bare"},
        ],
    }
    after = mutated(cut(spec=spec), admission())
    asked = [
        each.get("resources") for field in ("initContainers", "containers") for each in after["spec"][field]
    ]
    assert asked == [
        {kind: {MIG: 2, "cpu": "1"} for kind in ("requests", "limits")},
        {kind: {"cpu": "1"} for kind in ("requests", "limits")},
        {kind: {MIG: "1", "memory": "1Gi"} for kind in ("requests", "limits")},
        {"limits": {MIG: "3"}},
        {kind: {SHARED: "1"} for kind in ("requests", "limits")},
        None,
    ]
    assert after["metadata"]["annotations"] == {"nvidia.com/mig-profile": "3g.40gb"}
    assert after["spec"]["schedulingGates"] == [{"name": "kvitej.io/turn"}]
    assert validate(create(after), admission(), queued(0)) == Accepted(Queue("pool", "team"))


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("2g.48gb+me.all", "nvidia.com/mig-2g.48gb.me.all"),
        ("7g.141gb", "nvidia.com/mig-7g.141gb"),
    ],
)
def test_a_plus_is_a_dot_in_a_resources_name(profile: str, resource: str) -> None:
    after = mutated(cut(profile), admission())
    assert request_of(read_pod(after)).devices == ((resource, 1),)


AMOUNTS = st.dictionaries(
    st.sampled_from([GPU, SHARED, "nvidia.com/mig-1g.5gb", "cpu"]), st.integers(1, 8), max_size=3
)
CONTAINERS = st.lists(st.tuples(AMOUNTS, st.sampled_from(["both", "limits", "none"])), min_size=1, max_size=4)


def made(name: str, amounts: Mapping[str, int], which: str) -> Json:
    if which == "none":
        return {"name": name}
    found = container(name, amounts)
    if which == "limits":
        del found["resources"]["requests"]
    return found


@given(CONTAINERS, CONTAINERS)
def test_what_a_pod_asks_for_is_the_same_with_instances_for_gpus(
    apps: list[tuple[dict[str, int], str]], inits: list[tuple[dict[str, int], str]]
) -> None:
    spec = {
        field: [made(f"{field}-{index}", *each) for index, each in enumerate(found)]
        for field, found in (("containers", apps), ("initContainers", inits))
    }
    raw = cut(spec=spec)
    before = request_of(read_pod(raw))
    found = mutate(create(raw), admission())
    if not before.count(GPU):
        assert isinstance(found, Refusal)
        return
    after = request_of(read_pod(mutated(raw, admission())))

    def renamed(devices: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((MIG if name == GPU else name, count) for name, count in devices))

    assert after == replace(
        before,
        devices=renamed(before.devices),
        needs=tuple(replace(need, devices=renamed(need.devices)) for need in before.needs),
    )


@pytest.mark.parametrize(
    "profile", ["", "3g", "3g.40GB", "3g.40gb ", "mig-3g.40gb", "3g.40gb.shared", "0g.5gb"]
)
def test_what_is_no_profile_is_refused_with_its_path(profile: str) -> None:
    assert refused(cut(profile), admission()) == (
        f"{PATH}{profile!r} is no MIG profile; give one such as 3g.40gb or 1g.10gb+me"
    )


def test_a_profile_of_any_length_is_told_in_short() -> None:
    assert len(refused(cut("3g.40gb" * 10_000), admission())) < 200


@pytest.mark.parametrize(
    "amounts", [{}, {GPU: "0"}, {"cpu": "1"}, {SHARED: "1"}, {"nvidia.com/mig-1g.5gb": "1"}]
)
def test_a_profile_without_a_gpu_to_be_cut_is_refused(amounts: Json) -> None:
    assert refused(cut(amounts=amounts), admission()) == (
        f"{PATH}'3g.40gb' is of no use to a pod that asks neither for nvidia.com/gpu nor for nvidia.com/mig-3g.40gb; "
        "let a container ask for nvidia.com/gpu, or leave the annotation out"
    )


def test_a_profile_without_a_gpu_is_refused_of_pods_that_are_adopted_too() -> None:
    raw = cut(amounts={}, scheduler="default-scheduler")
    assert "is of no use to a pod" in refused(raw, admission(tenant={"adopt": True}))
    assert mutate(create(raw), admission()) == Mutation()


def test_a_container_that_asks_for_both_is_refused_with_its_path() -> None:
    assert refused(cut(amounts={GPU: "1", MIG: "1"}), admission()) == (
        "spec.containers[0].resources.limits has both nvidia.com/gpu and nvidia.com/mig-3g.40gb, its MIG profile; "
        "keep one of the two"
    )


def test_a_profile_that_no_node_offers_is_refused_with_the_nearest() -> None:
    names = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb", "1g.10gb.me", "3g.40gb.shared")
    some = offering(*(f"nvidia.com/mig-{name}" for name in names))
    assert refused(cut(), some) == (
        f"{PATH}no node of the pool of FairnessPolicy pool has '3g.40gb'; "
        "the nearest that nodes have: 7g.40gb, 3g.20gb, 2g.10gb"
    )
    assert refused(cut("1g.12gb"), some).endswith(": 1g.10gb+me, 2g.10gb, 1g.5gb")
    assert refused(cut(namespace="outside"), offering()) == (
        f"{PATH}no node of the cluster has '3g.40gb'; none has any MIG instance"
    )
    assert request_of(read_pod(mutated(cut("2g.10gb"), some))).devices == (("nvidia.com/mig-2g.10gb", 1),)


def test_where_nodes_may_come_or_none_is_known_the_profile_is_taken_at_its_word() -> None:
    for door in (admission(), offering(never_fits=NeverFits.WAIT)):
        assert request_of(read_pod(mutated(cut(), door))).devices == ((MIG, 1),)


def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    for raw in (cut(scheduler="volcano"), cut("nonsense", scheduler="volcano", amounts={})):
        assert mutate(create(raw), offering()) == Mutation()
        assert validate(create(raw), offering(), queued(0)) == Accepted()


def test_what_was_not_translated_in_time_is_not_stored_as_a_whole_gpu() -> None:
    found = validate(create(cut()), admission(), queued(0))
    assert isinstance(found, Refusal)
    assert found.message == (
        f"{PATH}the pod asks for whole GPUs still, as kvitej was not asked in time to put MIG instances in their "
        "place; create it again"
    )


def test_nodes_offer_the_instances_that_they_have_and_those_that_they_can_cut() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "2"}
    static = inventory_of(node("a", {MIG: "2", "nvidia.com/mig-1g.10gb": "0", GPU: "1"}))
    assert offered([static]) == {MIG}
    dynamic = inventory_of(node("b", labels={**labels, "kvitej.io/mig": "dynamic"}))
    assert {MIG, "nvidia.com/mig-1g.10gb.me"} <= offered([dynamic])
    assert offered([inventory_of(node("c", {GPU: "2"}, labels=labels))]) == frozenset()
