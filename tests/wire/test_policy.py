"""A FairnessPolicy as the API server sends it, and its status as it is written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.wire.policy import (
    Autoscaling,
    Closed,
    DynamicWatermark,
    FairnessPolicy,
    FairnessPolicyList,
    LabelSelector,
    MinMemory,
    Namespaces,
    PolicyCondition,
    PolicySpec,
    PolicyStatus,
    Reclaim,
    RuleSpec,
    TenantSpec,
    TenantStatus,
)


def test_every_field_of_a_policy_is_read_under_its_name_on_the_wire() -> None:
    spec: dict[str, Any] = {
        "decayHalfLife": "24h",
        "decayStrength": 2,
        "nodeSelector": {"pool": "a100"},
        "schedulerNames": ["fair-quota"],
        "default": "ml",
        "holdAfter": "5m",
        "autoscaling": {"maxPending": 3},
        "neverFits": "wait",
        "foreignScheduler": "deny",
        "reclaim": {"dryRun": True},
        "watermark": 80,
        "dynamicWatermark": {"max": 90},
        "rules": [
            {
                "name": "r",
                "message": "no",
                "dryRun": True,
                "tenants": ["ml"],
                "namespaces": ["ml-1"],
                "workloads": ["inference"],
                "closed": {"days": ["Mon-Fri"], "from": "09:00", "to": "18:00", "timeZone": "UTC"},
            },
            {"name": "m", "minMemory": {"host": "8Gi", "gpu": "16Gi"}},
            {"name": "f", "form": {"inference": "mig"}},
            {"name": "g", "maxGPUs": 0.5},
            {"name": "p", "models": ["A100"]},
            {"name": "h", "headroom": "20%"},
        ],
        "tenants": [
            {
                "name": "ml",
                "weight": 40,
                "minShare": 12.5,
                "maxShare": 60,
                "preemptible": True,
                "namespaces": {"names": ["ml-1"], "selector": {"matchLabels": {"team": "ml"}}},
                "decayHalfLife": "6h",
                "queueDepth": 10,
                "minRuntime": "90s",
                "evictionsPerHour": 4,
                "priorityClasses": ["low"],
                "waitTarget": "1m",
                "adopt": True,
            },
            {"name": "web", "weight": 0.5, "minGPUs": 4, "maxGPUs": 8.5},
        ],
    }
    body = {
        "apiVersion": "kvitej.io/v1alpha1",
        "kind": "FairnessPolicy",
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "generation": 3, "labels": {}},
        "spec": spec,
    }
    policy = msgspec.convert(body, FairnessPolicy)
    sent = msgspec.to_builtins(policy)["spec"]
    for key, struct in (("tenants", TenantSpec), ("rules", RuleSpec)):
        nothing = dict.fromkeys(struct.__struct_encode_fields__)
        spec[key] = [{**nothing, **each} for each in spec[key]]
    assert sent == spec
    assert (policy.metadata.generation, policy.metadata.resource_version) == (3, "7")


@pytest.mark.parametrize(
    ("field", "value"),
    [("weight", "40"), ("minGPUs", True), ("queueDepth", 1.5), ("namespaces", ["a"]), ("decayHalfLife", 24)],
)
def test_a_field_of_another_type_is_not_read_as_something_else(field: str, value: object) -> None:
    body = msgspec.json.encode({"metadata": {}, "spec": {"tenants": [{"name": "a", field: value}]}})
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.spec\.tenants\[0\]\.{field}"):
        msgspec.json.decode(body, type=FairnessPolicy)


def test_a_status_comes_back_as_it_was_written_to_the_last_bit() -> None:
    used = 12.000000000000002
    status = PolicyStatus(
        observed_generation=2,
        capacity=512.0,
        decayed_at="2026-01-01T00:00:00.123456Z",
        tenants=[TenantStatus("ml", entitlement=200.0, in_use=3.5, decayed_use=used)],
    )
    body = msgspec.json.encode({"metadata": {"name": "p"}, "status": status})
    assert b'"observedGeneration":2' in body
    assert b'"decayedUse":12.000000000000002' in body
    assert msgspec.json.decode(body, type=FairnessPolicy).status == status


def test_a_list_has_its_policies() -> None:
    body = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}}]}'
    found = msgspec.json.decode(body, type=FairnessPolicyList)
    assert [each.metadata.name for each in found.items or ()] == ["a"]


def test_the_crd_has_the_fields_of_these_structs_and_no_others() -> None:
    crd = Path(__file__).parents[2] / "scheduler-config" / "crd-fairnesspolicies.yaml"
    root = yaml.safe_load(crd.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec, status = root["spec"]["properties"], root["status"]["properties"]
    tenant, rule = (spec[key]["items"]["properties"] for key in ("tenants", "rules"))
    for properties, struct in (
        (spec, PolicySpec),
        (spec["autoscaling"]["properties"], Autoscaling),
        (spec["reclaim"]["properties"], Reclaim),
        (spec["dynamicWatermark"]["properties"], DynamicWatermark),
        (rule, RuleSpec),
        (rule["closed"]["properties"], Closed),
        (rule["minMemory"]["properties"], MinMemory),
        (tenant, TenantSpec),
        (tenant["namespaces"]["properties"], Namespaces),
        (tenant["namespaces"]["properties"]["selector"]["properties"], LabelSelector),
        (status, PolicyStatus),
        (status["conditions"]["items"]["properties"], PolicyCondition),
        (status["tenants"]["items"]["properties"], TenantStatus),
    ):
        assert set(properties) == set(struct.__struct_encode_fields__)
