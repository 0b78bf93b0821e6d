"""Policies that nobody takes, neither the API server nor the reader: the spec, and how the reader's sentence begins."""

from __future__ import annotations

from typing import Any


def tenant(**fields: Any) -> dict[str, Any]:
    return {"tenants": [{"name": "a", "weight": 1}, {"name": "b", "weight": 1, **fields}]}


def rule(**fields: Any) -> dict[str, Any]:
    return {"tenants": [{"name": "a", "weight": 1}], "rules": [{"name": "r", **fields}]}


def closed(**fields: Any) -> dict[str, Any]:
    return rule(closed={"timeZone": "UTC", **fields})


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
    (rule(), "spec.rules[0] has nothing to check; give exactly one of closed, minMemory, form, maxGPUs"),
    (rule(name="", maxGPUs=1), "spec.rules[0].name is missing"),
    (rule(maxGPUs=1, headroom="5%"), "spec.rules[0] has maxGPUs and headroom; give exactly one"),
    (rule(maxGPUs=-1), "spec.rules[0].maxGPUs is -1; give a number from 0 to 1e+06."),
    (rule(maxGPUs=1, message=""), "spec.rules[0].message is empty"),
    (rule(maxGPUs=1, tenants=[]), "spec.rules[0].tenants is []; list at least one"),
    (rule(maxGPUs=1, namespaces=[""]), "spec.rules[0].namespaces is ['']; list at least one"),
    (rule(maxGPUs=1, workloads=[]), "spec.rules[0].workloads is []; list at least one"),
    (
        rule(maxGPUs=1, tenants=["b"]),
        "spec.rules: 'r' names tenant 'b', which the policy does not have; name some of a.",
    ),
    (
        {**tenant(), "rules": [{"name": "r", "maxGPUs": 1}, {"name": "r", "headroom": "5%"}]},
        "spec.rules[1]: the name 'r' is taken already; rename one.",
    ),
    (rule(closed={}), "spec.rules[0].closed.timeZone is missing; name a time zone such as"),
    (closed(timeZone=""), "spec.rules[0].closed.timeZone is missing"),
    (closed(timeZone="../UTC"), "spec.rules[0].closed.timeZone is '../UTC', which is no time zone"),
    (closed(days=[]), "spec.rules[0].closed.days is []; list at least one day"),
    (closed(days=["Monday"]), "spec.rules[0].closed.days[0] is 'Monday'; give one of Mon, Tue, Wed"),
    (closed(days=["Mon", "Tue-"]), "spec.rules[0].closed.days[1] is 'Tue-'; give one of"),
    (closed(**{"from": "9:00"}), "spec.rules[0].closed.from is '9:00'; give a time of day"),
    (closed(**{"from": "24:00"}), "spec.rules[0].closed.from is '24:00'; write 00:00, of the next day."),
    (closed(to="24:01"), "spec.rules[0].closed.to is '24:01'; give a time of day from 00:00 to 24:00"),
    (closed(to="00:00"), "spec.rules[0].closed.to is '00:00', when the window begins; leave both out"),
    (rule(minMemory={}), "spec.rules[0].minMemory is empty; give host, gpu or both"),
    (rule(minMemory={"host": "8 Gi"}), "spec.rules[0].minMemory.host: '8 Gi' is not a quantity"),
    (rule(minMemory={"gpu": "0"}), "spec.rules[0].minMemory.gpu is '0'; give an amount of bytes above 0"),
    (rule(minMemory={"gpu": "2Pi"}), "spec.rules[0].minMemory.gpu is '2Pi'; give an amount of bytes above 0"),
    (
        rule(form={"training": "half"}),
        "spec.rules[0].form.training is 'half'; it can be one of whole, mig, time-slice.",
    ),
    (rule(models=[]), "spec.rules[0].models is []; list at least one"),
    (rule(headroom="20"), "spec.rules[0].headroom is '20'; give a part of the pool above 0%"),
    (rule(headroom="0%"), "spec.rules[0].headroom is '0%'; give a part"),
    (rule(headroom="100.1%"), "spec.rules[0].headroom is '100.1%'; give a part"),
    ({**tenant(), "watermark": 0}, "spec.watermark is 0; give a number above 0, at most 100."),
    ({**tenant(), "watermark": 101}, "spec.watermark is 101; give a number above 0, at most 100."),
    ({**tenant(), "dynamicWatermark": {}}, "spec.dynamicWatermark.max is missing"),
    ({**tenant(), "dynamicWatermark": {"max": 0}}, "spec.dynamicWatermark.max is 0; give a number above 0"),
    (
        {**tenant(), "watermark": 90, "dynamicWatermark": {"max": 85}},
        "spec.dynamicWatermark.max is 85, less than the watermark (90); raise it or lower the watermark.",
    ),
]
