"""The rules of a policy at create: who passes, and what is said to whom that does not."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from extender.decide.admit import Accepted, Admission, Moment, Mutation, mutate, validate
from extender.decide.refusal import Refusal, Why
from extender.decide.rules import Room
from extender.fairness.depth import Queue
from tests.builders import GPU, SHARED, Json
from tests.decide.admitting import admission, asking, create, mutated
from tests.fairness.builders import policy

MIG = "nvidia.com/mig-3g.40gb"
QUEUE = Queue("pool", "team")
PRODUCT = "nvidia.com/gpu.product"
TAIL = " (rule r in FairnessPolicy pool)"


def ruled(*rules: Json, room: Room | None = None, **fields: Any) -> Admission:
    """An admission whose policy has these rules, or the one with these fields."""
    spec = {"tenants": [{"name": "team", "weight": 1}], "rules": [*rules, *([fields] if fields else [])]}
    for each in spec["rules"]:
        each.setdefault("name", "r")
    return replace(admission(rules=policy(spec).rules), room=lambda policy, pod: room)


def judged(raw: Json, rules: Admission, when: str = "2026-11-30T12:00:00+01:00") -> str:
    """What is said to a pod that is refused; empty for one that passes."""
    wall = datetime.fromisoformat(when).timestamp()
    found = validate(create(raw), rules, Moment(wall, lambda _: 0))
    if isinstance(found, Refusal):
        assert found.message.endswith(TAIL)
        return found.message.removesuffix(TAIL)
    assert not found.warnings
    return ""


def working(workload: str | None, **parts: Any) -> Json:
    """A pod of a class of workload, told by its label."""
    raw = asking(**parts)
    if workload is not None:
        raw["metadata"]["labels"] = {"kvitej.io/workload": workload}
    return raw


OFFICE = {"days": ["Mon-Fri"], "from": "09:00", "to": "18:00", "timeZone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("closed", "when", "said"),
    [
        (OFFICE, "2026-11-30T08:59:59+01:00", ""),
        (
            OFFICE,
            "2026-11-30T09:00:00+01:00",
            "no pods may be created until Mon 2026-11-30 18:00 CET (Europe/Berlin); try again in 9h",
        ),
        (
            OFFICE,
            "2026-07-06T15:47:01Z",
            "no pods may be created until Mon 2026-07-06 18:00 CEST (Europe/Berlin); try again in 13m",
        ),
        (OFFICE, "2026-11-30T18:00:00+01:00", ""),
        (OFFICE, "2026-11-29T12:00:00+01:00", ""),
        (
            {"days": ["Sat"], "from": "22:00", "to": "06:00", "timeZone": "Europe/Berlin"},
            "2026-03-28T23:00:00+01:00",
            "no pods may be created until Sun 2026-03-29 06:00 CEST (Europe/Berlin); try again in 6h",
        ),
        (
            {"days": ["Sat"], "from": "22:00", "to": "06:00", "timeZone": "Europe/Berlin"},
            "2026-03-28T05:00:00+01:00",
            "",
        ),
        ({"timeZone": "UTC"}, "2026-11-30T12:00:00Z", "no pods may be created at any time"),
    ],
)
def test_a_closed_window_says_until_when_and_when_to_retry(closed: Json, when: str, said: str) -> None:
    assert judged(asking(), ruled(closed=closed), when) == said


@pytest.mark.parametrize(
    ("least", "pod", "said"),
    [
        ({"host": "8Gi"}, {"amounts": {GPU: "1", "memory": "8Gi"}}, ""),
        (
            {"host": "8Gi"},
            {"amounts": {GPU: "1", "memory": "6000Mi"}},
            "its containers request 6000Mi of memory; let them request at least 8Gi",
        ),
        ({"host": "8Gi"}, {}, "its containers request 0 of memory; let them request at least 8Gi"),
        ({"gpu": "16Gi"}, {"memory": "16Gi"}, ""),
        (
            {"gpu": "16Gi"},
            {"memory": "12Gi"},
            "metadata.annotations[kvitej.io/gpu-memory]: 12Gi is too little; declare at least 16Gi",
        ),
        (
            {"gpu": "16Gi"},
            {},
            "how much GPU memory one nvidia.com/gpu has can't be told beforehand; declare at least 16Gi "
            "with the annotation kvitej.io/gpu-memory",
        ),
        ({"gpu": "16Gi"}, {"amounts": {MIG: "2"}}, ""),
        (
            {"gpu": "40Gi"},
            {"amounts": {MIG: "2"}},
            "one nvidia.com/mig-3g.40gb has 40 GB of GPU memory, which is less than 40Gi; ask for a larger profile",
        ),
        ({"gpu": "40G"}, {"amounts": {MIG: "2"}}, ""),
        (
            {"gpu": "1Gi"},
            {"amounts": {f"{MIG}.shared": "1"}},
            "how much GPU memory one nvidia.com/mig-3g.40gb.shared has can't be told beforehand; "
            "declare at least 1Gi with the annotation kvitej.io/gpu-memory",
        ),
        ({"gpu": "16Gi"}, {"amounts": {"nvidia.com/hostdev": "1"}}, ""),
    ],
)
def test_the_least_memory_is_asked_of_host_and_gpu(least: Json, pod: Json, said: str) -> None:
    assert judged(asking(**pod), ruled(minMemory=least)) == said


@pytest.mark.parametrize(
    ("form", "workload", "name", "said"),
    [
        ({}, "inference", MIG, ""),
        (
            {},
            "inference",
            GPU,
            "pods of workload inference ask for MIG instances (nvidia.com/mig-…, or nvidia.com/gpu and the annotation "
            "nvidia.com/mig-profile), and not for nvidia.com/gpu",
        ),
        ({}, "training", GPU, ""),
        (
            {},
            "training",
            SHARED,
            "pods of workload training ask for whole GPUs (nvidia.com/gpu), and not for nvidia.com/gpu.shared",
        ),
        ({}, "development", SHARED, ""),
        ({}, "development", f"{MIG}.shared", ""),
        (
            {},
            "development",
            GPU,
            "pods of workload development ask for shares of a GPU (nvidia.com/gpu.shared), "
            "and not for nvidia.com/gpu",
        ),
        ({}, "batch", SHARED, ""),
        ({}, None, SHARED, ""),
        ({"development": "whole"}, "development", GPU, ""),
        (
            {"batch": "whole"},
            "batch",
            MIG,
            "pods of workload batch ask for whole GPUs (nvidia.com/gpu), and not for nvidia.com/mig-3g.40gb",
        ),
    ],
)
def test_a_class_of_workload_has_its_form(form: Json, workload: str | None, name: str, said: str) -> None:
    assert judged(working(workload, amounts={name: "1"}), ruled(form=form)) == said


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({GPU: "2"}, ""),
        ({GPU: "3"}, "it asks for 3 GPUs, and a pod may have at most 2"),
        ({SHARED: "3"}, "it asks for 3 GPUs, and a pod may have at most 2"),
        ({"nvidia.com/mig-1g.5gb": "8"}, ""),
        ({"nvidia.com/mig-1g.5gb": "17"}, "it asks for 2.429 GPUs, and a pod may have at most 2"),
        ({"nvidia.com/mig-9g.999gb": "3"}, "it asks for 3 GPUs, and a pod may have at most 2"),
    ],
)
def test_a_pod_may_have_so_many_gpus(amounts: Json, said: str) -> None:
    assert judged(asking(amounts=amounts), ruled(maxGPUs=2)) == said


def picking(*terms: Json, **labels: str) -> Json:
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    affinity = {"affinity": {"nodeAffinity": node}} if terms else {}
    return {**affinity, "nodeSelector": labels}


def model(operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": PRODUCT, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ({}, True),
        (picking(zone="z"), True),
        (picking(**{PRODUCT: "H100"}), True),
        (picking(**{PRODUCT: "A100"}), False),
        (picking(model("In", "A100", "H100")), True),
        (picking(model("In", "A100")), False),
        (picking(model("In", "A100"), model("In", "L4")), True),
        (picking(model("NotIn", "H100")), True),
        (picking(model("NotIn", "H100", "L4")), False),
        (picking(model("DoesNotExist")), False),
        (picking(model("In", "L4"), **{PRODUCT: "H100"}), False),
        (picking({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}), True),
    ],
)
def test_a_pod_that_picks_other_models_only_is_refused_and_others_are_kept_on_those(
    spec: Json, passes: bool
) -> None:
    rules = ruled(models=["L4", "H100"])
    stored = mutated(asking(spec=spec), rules)
    for each in (asking(spec=spec), stored):
        said = judged(each, rules)
        assert said == (
            ""
            if passes
            else "its node selector or affinity picks none of the GPU models that it may use: H100, L4"
        )
    required = stored["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in required["nodeSelectorTerms"]:
        assert {"key": PRODUCT, "operator": "In", "values": ["H100", "L4"]} in term["matchExpressions"]


def test_the_models_come_beside_the_labels_of_the_pool_and_only_where_the_rule_concerns_the_pod() -> None:
    spec = {"tenants": [{"name": "team", "weight": 1}]}
    rules = [
        {"name": "a", "models": ["H100", "L4"]},
        {"name": "b", "models": ["L4"], "workloads": ["inference"]},
        {"name": "c", "models": ["T4"], "dryRun": True},
    ]
    door = admission(rules=policy({**spec, "rules": rules}).rules, node_selector={"pool": "a"})
    pool, models, fewer = (
        {"key": key, "operator": "In", "values": values}
        for key, values in (("pool", ["a"]), (PRODUCT, ["H100", "L4"]), (PRODUCT, ["L4"]))
    )
    for workload, expected in ((None, [pool, models]), ("inference", [pool, models, fewer])):
        node = mutated(working(workload), door)["spec"]["affinity"]["nodeAffinity"]
        (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == expected
    other = admission(rules=policy({**spec, "rules": rules[2:]}).rules)
    assert "affinity" not in mutated(asking(), other)["spec"]


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (None, ""),
        (Room(16, 10, 0.8, 2), ""),
        (
            Room(16, 10, 1, 2),
            "it asks for 2 GPUs; 5 of the pool's 16 are left (10 in use, 1 for pods that wait), "
            "and 3.2 (20%) stay free; try again in 30 s",
        ),
        (
            Room(1, 0, 30, 0.125),
            "it asks for 0.125 GPUs; 0 of the pool's 1 are left (0 in use, 30 for pods that wait), "
            "and 0.2 (20%) stay free; try again in 30 s",
        ),
        (Room(0, 0, 0, 1), ""),
    ],
)
def test_a_part_of_the_pool_stays_free(room: Room | None, said: str) -> None:
    rules = ruled(headroom="20%", room=room)
    assert judged(asking(), rules) == said
    if said:
        found = validate(create(asking()), rules, Moment(0.0, lambda _: 0))
        assert isinstance(found, Refusal)
        assert (found.why, found.why.code, found.tenant) == (Why.HEADROOM, 429, "team")


def test_what_was_let_pass_and_is_not_seen_yet_has_taken_its_room() -> None:
    rules = ruled(headroom="25%", room=Room(8, 0, 0, 2))
    for coming, passes in ((4.0, True), (4.5, False)):
        found = validate(create(asking()), rules, Moment(0.0, lambda _: 0, {"pool": coming}.__getitem__))
        assert (found == Accepted(QUEUE, 2)) == passes


@pytest.mark.parametrize(
    ("scope", "concerned"),
    [
        ({}, True),
        ({"tenants": ["team"]}, True),
        ({"namespaces": ["team"]}, True),
        ({"namespaces": ["other"]}, False),
        ({"workloads": ["training", "batch"]}, True),
        ({"workloads": ["inference"]}, False),
        ({"tenants": ["team"], "namespaces": ["team"], "workloads": ["inference"]}, False),
    ],
)
def test_a_rule_concerns_the_pods_of_its_scope(scope: Json, concerned: bool) -> None:
    assert bool(judged(working("training"), ruled(maxGPUs=0, **scope))) == concerned


def test_a_rule_for_tenants_or_workloads_leaves_pods_that_have_none_alone() -> None:
    stranger = asking(namespace="stranger")
    assert judged(stranger, ruled(maxGPUs=0, tenants=["team"])) == ""
    assert judged(stranger, ruled(maxGPUs=0)) != ""
    assert judged(asking(), ruled(maxGPUs=0, workloads=["inference"])) == ""
    outside = asking(namespace="outside")
    assert judged(outside, ruled(maxGPUs=0)) == ""


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("name", ["kvitej.io/workload", "kvitej.io/workload-type"])
def test_a_workload_is_told_by_a_label_or_an_annotation_of_either_name(kind: str, name: str) -> None:
    raw = asking()
    raw["metadata"].setdefault(kind, {})[name] = "inference"
    rules = ruled(maxGPUs=0, workloads=["inference"])
    assert judged(raw, rules) != ""
    assert mutated(raw, rules)["metadata"][kind][name] == "inference"


def test_a_pod_of_two_workloads_is_refused_with_both() -> None:
    raw = working("inference")
    raw["metadata"]["annotations"]["kvitej.io/workload-type"] = "training"
    for found in (
        mutate(create(raw), admission()),
        validate(create(raw), admission(), Moment(0.0, lambda _: 0)),
    ):
        assert isinstance(found, Refusal)
        assert (found.why, found.message) == (
            Why.UNREADABLE,
            "metadata.labels[kvitej.io/workload] says 'inference' and "
            "metadata.annotations[kvitej.io/workload-type] says 'training'; keep one of them",
        )


def test_the_first_rule_that_is_not_met_refuses_in_its_own_words() -> None:
    rules = ruled(
        {"name": "fine", "maxGPUs": 8},
        {"name": "said", "maxGPUs": 0, "message": "ask the platform team"},
        {"name": "later", "closed": {"timeZone": "UTC"}},
    )
    found = validate(create(asking()), rules, Moment(0.0, lambda _: 0))
    assert found == Refusal(Why.MAX_GPUS, "ask the platform team (rule said in FairnessPolicy pool)", "team")


def test_a_dry_run_lets_pass_with_a_warning_and_the_rules_after_it_still_hold() -> None:
    trial = {"name": "trial", "maxGPUs": 0, "dryRun": True}
    told = "it asks for 1 GPU, and a pod may have at most 0 (rule trial in FairnessPolicy pool)"
    found = validate(create(asking()), ruled(trial), Moment(0.0, lambda _: 0))
    assert found == Accepted(QUEUE, trial=(Refusal(Why.MAX_GPUS, told, "team"),))
    assert found.warnings == (f"kvitej would refuse this but for dryRun: {told}",)
    both = validate(
        create(asking()), ruled(trial, {"name": "real", "maxGPUs": 0.5}), Moment(0.0, lambda _: 0)
    )
    assert isinstance(both, Refusal)
    assert both.message.endswith("(rule real in FairnessPolicy pool)")


def test_a_pod_that_names_its_node_follows_the_rules_too() -> None:
    assert judged(asking(at="n0"), ruled(maxGPUs=0)) != ""
    assert mutate(create(asking(at="n0")), ruled(models=["H100"])) == Mutation()
