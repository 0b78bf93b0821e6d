"""Policies that nobody takes, neither the API server nor the reader: the spec, and how the reader's sentence begins."""

from __future__ import annotations

from typing import Any


def tenant(**fields: Any) -> dict[str, Any]:
    return {"tenants": [{"name": "a", "weight": 1}, {"name": "b", "weight": 1, **fields}]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "spec.tenants is empty"),
    ({"tenants": [{"weight": 1}]}, "spec.tenants[0].name is missing"),
    ({"tenants": [{"name": "a"}]}, "spec.tenants[0].weight is missing"),
    (tenant(weight=0), "spec.tenants[1].weight is 0; give a number above 0"),
    (tenant(weight=-1), "spec.tenants[1].weight is -1; give a number above 0"),
    (tenant(weight=float("nan")), "spec.tenants[1].weight is nan"),
    (tenant(name="a"), "spec.tenants[1]: the name 'a' is taken already"),
    (tenant(minShare=101), "spec.tenants[1].minShare is 101; give a number from 0 to 100"),
    (tenant(maxShare=-1), "spec.tenants[1].maxShare is -1; give a number from 0 to 100"),
    (
        tenant(minShare=30, maxShare=20),
        "spec.tenants[1] is promised 30 percent and may have at most 20 percent",
    ),
    (tenant(minGPUs=3, maxGPUs=2), "spec.tenants[1] is promised 3 GPUs and may have at most 2 GPUs"),
    (tenant(minShare=10, minGPUs=2), "spec.tenants[1] has both minShare (10) and minGPUs (2); keep one"),
    (tenant(maxShare=10, maxGPUs=2), "spec.tenants[1] has both maxShare (10) and maxGPUs (2); keep one"),
    (tenant(decayHalfLife="soon"), "spec.tenants[1].decayHalfLife: 'soon' is not a duration"),
    (tenant(decayHalfLife="0s"), "spec.tenants[1].decayHalfLife is '0s'; give a duration above 0"),
    (tenant(minRuntime="-1s"), "spec.tenants[1].minRuntime is '-1s'; give a duration of at least 0"),
    (tenant(waitTarget="5"), "spec.tenants[1].waitTarget: '5' is not a duration: a number has no unit"),
    (tenant(queueDepth=0), "spec.tenants[1].queueDepth is 0; give a whole number from 1"),
    (tenant(evictionsPerHour=-1), "spec.tenants[1].evictionsPerHour is -1; give a whole number from 0"),
    (tenant(priorityClasses=[]), "spec.tenants[1].priorityClasses is []; list at least one"),
    (tenant(namespaces={}), "spec.tenants[1].namespaces picks no namespace"),
    (tenant(namespaces={"selector": {}}), "spec.tenants[1].namespaces picks no namespace"),
    (tenant(namespaces={"names": [""]}), "spec.tenants[1].namespaces.names is ['']"),
    ({**tenant(), "decayHalfLife": "1 day"}, "spec.decayHalfLife: '1 day' is not a duration"),
    (
        {**tenant(), "default": "c"},
        "spec.default is 'c', which is no tenant of the policy; name one of a, b.",
    ),
    ({**tenant(), "decayStrength": -1}, "spec.decayStrength is -1; give a number from 0 to 10."),
    ({**tenant(), "holdAfter": "x"}, "spec.holdAfter: 'x' is not a duration"),
    ({**tenant(), "autoscaling": {"maxPending": -1}}, "spec.autoscaling.maxPending is -1"),
    ({**tenant(), "neverFits": "drop"}, "spec.neverFits is 'drop'; it can be one of refuse, wait."),
    (
        {**tenant(), "foreignScheduler": ""},
        "spec.foreignScheduler is ''; it can be one of rewrite, deny, count.",
    ),
    ({**tenant(), "schedulerNames": []}, "spec.schedulerNames is []; list at least one"),
    (
        {"tenants": [{"name": "a", "weight": 1, "minShare": 60}, {"name": "b", "weight": 1, "minShare": 41}]},
        "spec.tenants: the minShare of all tenants add up to 101 percent",
    ),
]
