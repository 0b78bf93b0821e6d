"""Admit, rule by rule: what a pod gets, what is refused and with which words, what stays kvitej's."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decide.admit import Accepted, Mutation, mutate, validate
from extender.decide.refusal import Refusal, Why
from extender.fairness.depth import Queue
from extender.fairness.policy import Foreign
from extender.wire.admission import Review
from tests.builders import GPU, Json, container
from tests.decide.admitting import (
    GATED,
    KVITEJ,
    TOLERATION,
    admission,
    asking,
    create,
    mutated,
    queued,
    refusal,
    update,
)
from tests.patches import patched


def test_a_gpu_pod_of_ours_is_gated_and_tolerates_the_taint_of_gpu_nodes() -> None:
    spec = mutated(asking(), admission())["spec"]
    assert spec["schedulingGates"] == GATED
    assert spec["tolerations"] == [TOLERATION]
    assert "affinity" not in spec


def test_gates_and_tolerations_of_others_stay() -> None:
    theirs = {"key": "spot", "operator": "Exists"}
    raw = asking(spec={"schedulingGates": [{"name": "kueue"}], "tolerations": [theirs]})
    spec = mutated(raw, admission())["spec"]
    assert spec["schedulingGates"] == [{"name": "kueue"}, *GATED]
    assert spec["tolerations"] == [theirs, TOLERATION]


@pytest.mark.parametrize(
    ("toleration", "enough"),
    [
        ({"operator": "Exists"}, True),
        ({"key": GPU, "operator": "Exists"}, True),
        (TOLERATION, True),
        ({"key": GPU, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}, False),
        ({"key": "nvidia.com/other", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_is_added_unless_one_bears_every_value_of_the_taint(
    toleration: Json, enough: bool
) -> None:
    spec = mutated(asking(spec={"tolerations": [toleration]}), admission())["spec"]
    assert spec["tolerations"] == [toleration, *([] if enough else [TOLERATION])]


@pytest.mark.parametrize(
    ("spec", "gated"),
    [
        ({"containers": [container("main", {GPU: "1"})]}, True),
        ({"containers": [container("main", {"nvidia.com/mig-1g.5gb": "1"})]}, True),
        ({"containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]}, True),
        ({"containers": [container("main", {})], "initContainers": [container("warm", {GPU: "1"})]}, True),
        ({"containers": [container("main", {"cpu": "1"})]}, False),
        ({"containers": [container("main", {GPU: "0"})]}, False),
        ({"nodeName": "n0"}, False),
        ({"schedulerName": "another"}, False),
    ],
)
def test_only_pods_that_ask_for_gpus_of_our_schedulers_and_have_no_node_are_gated(
    spec: Json, gated: bool
) -> None:
    after = mutated(asking(spec=spec), admission(node_selector={"pool": "a"}))
    assert ("schedulingGates" in after["spec"]) == gated
    assert ("affinity" in after["spec"]) == gated


def test_a_pod_that_no_policy_covers_waits_for_its_turn_all_the_same() -> None:
    found = mutated(asking(namespace="outside"), admission())
    assert found["spec"]["schedulingGates"] == [{"name": "kvitej.io/turn"}]
    assert "affinity" not in found["spec"]
    other = asking(namespace="outside", scheduler="somebody-else")
    assert mutated(other, admission()) == other


def test_a_pod_of_no_tenant_waits_too_but_fills_no_queue() -> None:
    raw = asking(namespace="stranger")
    assert mutated(raw, admission())["spec"]["schedulingGates"] == GATED
    assert validate(create(raw), admission(), queued(10**9)) == Accepted()


def required(*terms: Json) -> Json:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }


POOL = {"key": "pool", "operator": "In", "values": ["a"]}
ZONE = {"key": "zone", "operator": "In", "values": ["z"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n0"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, required({"matchExpressions": [POOL]})),
        ({"podAffinity": {}}, {"podAffinity": {}, **required({"matchExpressions": [POOL]})}),
        ({"nodeAffinity": {}}, required({"matchExpressions": [POOL]})),
        (
            required({"matchExpressions": [ZONE]}, {"matchFields": [FIELD]}, {}),
            required(
                {"matchExpressions": [ZONE, POOL]}, {"matchFields": [FIELD], "matchExpressions": [POOL]}, {}
            ),
        ),
        (required({"matchExpressions": [POOL]}), required({"matchExpressions": [POOL]})),
    ],
)
def test_the_pools_labels_are_required_in_every_term_that_picks_nodes(
    before: Json | None, after: Json
) -> None:
    raw = asking(spec={"affinity": before} if before is not None else {})
    assert mutated(raw, admission(node_selector={"pool": "a"}))["spec"]["affinity"] == after


def test_a_tenant_that_adopts_gets_the_pods_that_name_no_scheduler() -> None:
    raw = asking(scheduler="default-scheduler")
    adopted = mutated(raw, admission(tenant={"adopt": True}))["spec"]
    assert (adopted["schedulerName"], adopted["schedulingGates"]) == ("fair-quota", GATED)
    left = mutated(raw, admission())["spec"]
    assert (left["schedulerName"], "schedulingGates" in left) == ("default-scheduler", False)
    ours = mutated(raw, admission(ours="default-scheduler"))["spec"]
    assert (ours["schedulerName"], ours["schedulingGates"]) == ("default-scheduler", GATED)


def test_pods_of_other_schedulers_are_rewritten_or_denied_or_only_counted() -> None:
    raw = asking(scheduler="volcano")
    assert mutated(raw, admission(foreign=Foreign.COUNT)) == raw
    rewritten = mutated(raw, admission(foreign=Foreign.REWRITE))["spec"]
    assert (rewritten["schedulerName"], rewritten["schedulingGates"]) == ("fair-quota", GATED)
    denies = admission(foreign=Foreign.DENY)
    found = mutate(create(raw), denies)
    assert isinstance(found, Refusal)
    assert found == refusal(raw, denies)
    assert found.why is Why.SCHEDULER
    assert found.message.startswith("spec.schedulerName: 'volcano' may not schedule GPU pods of tenant team")
    strangers = asking(scheduler="volcano", namespace="stranger")
    assert mutated(strangers, denies) == strangers


def test_a_priority_class_that_the_tenant_may_not_use_is_refused() -> None:
    rules = admission(tenant={"priority_classes": frozenset(("low", "mid"))})
    found = refusal(asking(spec={"priorityClassName": "top"}), rules)
    assert (found.why, found.tenant) == (Why.PRIORITY_CLASS, "team")
    assert found.message == (
        "spec.priorityClassName: 'top' is not for tenant team; allowed: low, mid "
        "(priorityClasses in FairnessPolicy pool)"
    )
    for spec in ({"priorityClassName": "low"}, {}):
        assert validate(create(asking(spec=spec)), rules, queued(0)) == Accepted(Queue("pool", "team"))


def test_a_pod_of_a_preemptible_priority_class_is_labelled_so() -> None:
    rules = admission(classes=frozenset(("spot",)))
    raw = asking(spec={"priorityClassName": "spot"})
    assert mutated(raw, rules)["metadata"]["labels"] == {"kvitej.io/preemptible": "true"}
    raw["metadata"]["labels"] = {"app": "x"}
    assert mutated(raw, rules)["metadata"]["labels"] == {"app": "x", "kvitej.io/preemptible": "true"}
    assert "labels" not in mutated(asking(spec={"priorityClassName": "top"}), rules)["metadata"]


def test_a_full_queue_says_what_is_full_how_much_and_when_to_retry() -> None:
    rules = admission(tenant={"queue_depth": 1_000})
    found = refusal(asking(), rules, waiting=1_000)
    assert (found.why.code, found.why.reason, found.tenant) == (429, "TooManyRequests", "team")
    assert found.message == (
        "the queue of tenant team is full: 1,000 of 1,000 pods wait (queueDepth in FairnessPolicy pool); "
        "try again in 30 s"
    )
    assert validate(create(asking()), rules, queued(999)) == Accepted(Queue("pool", "team"))
    assert validate(create(asking(at="n0")), rules, queued(1_000)) == Accepted()
    assert validate(create(asking(amounts={"cpu": "1"})), rules, queued(1_000)) == Accepted()
    assert validate(create(asking(), dry_run=True), rules, queued(1_000)) == found


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"amounts": {GPU: "1.5"}}, "spec.containers[0].resources[nvidia.com/gpu]: "),
        ({"amounts": {GPU: "one"}}, "spec.containers[0].resources[nvidia.com/gpu]: "),
        ({"memory": "40 Gi"}, "metadata.annotations[kvitej.io/gpu-memory]: '40 Gi'"),
        (
            {"topology": "requires"},
            "metadata.annotations[kvitej.io/topology]: 'requires' must be prefer or require",
        ),
        (
            {"checkpoint-interval": "often"},
            "metadata.annotations[kvitej.io/checkpoint-interval]: 'often' is not",
        ),
        (
            {"checkpoint-interval": "0s"},
            "metadata.annotations[kvitej.io/checkpoint-interval]: '0s' is no time",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_with_its_path(change: Json, path: str) -> None:
    annotations = {
        f"kvitej.io/{key}": change.pop(key) for key in list(change) if key not in ("amounts", "memory")
    }
    raw = asking(**change)
    raw["metadata"]["annotations"] |= annotations
    found = refusal(raw, admission())
    assert found.why is Why.UNREADABLE
    assert found.message.startswith(path)
    assert mutate(create(raw), admission()) == found


def test_on_create_annotations_that_only_kvitej_writes_are_removed() -> None:
    raw = asking(memory="1Gi", record='{"units":1,"containers":{}}')
    raw["metadata"]["annotations"] |= {"kvitej.io/retry": "now", "other/one": "x"}
    found = mutate(create(raw), admission())
    assert isinstance(found, Mutation)
    assert found.warnings == (
        "annotation kvitej.io/devices is kvitej's to write, and was removed",
        "annotation kvitej.io/retry is kvitej's to write, and was removed",
    )
    after = mutated(raw, admission())
    assert after["metadata"]["annotations"] == {"kvitej.io/gpu-memory": "1Gi", "other/one": "x"}
    forged = refusal(raw, admission())
    assert forged.why is Why.ANNOTATION
    assert forged.message.startswith("metadata.annotations[kvitej.io/devices]: only kvitej writes it")


def with_annotations(annotations: dict[str, str] | None, at: str | None) -> Json:
    raw = asking(at=at)
    raw["metadata"]["annotations"] = annotations
    if annotations is None:
        del raw["metadata"]["annotations"]
    return raw


KEYS = st.sampled_from(
    [
        "kvitej.io/devices",
        "kvitej.io/retry",
        "kvitej.io/gpu-memory",
        "kvitej.io/last-checkpoint",
        "a~b/c",
        "x",
    ]
)
ANNOTATIONS = st.none() | st.dictionaries(KEYS, st.sampled_from("123"))


@given(ANNOTATIONS, ANNOTATIONS, st.booleans(), st.booleans())
def test_an_update_leaves_what_is_kvitejs_as_it_was_and_the_rest_as_asked(
    was: dict[str, str] | None, asked: dict[str, str] | None, bound: bool, by_kvitej: bool
) -> None:
    old, new = (with_annotations(each, "n0" if bound else None) for each in (was, asked))
    ours = {"kvitej.io/devices", "kvitej.io/retry"} | ({"kvitej.io/gpu-memory"} if bound else set())
    username = KVITEJ if by_kvitej else "ada"
    found = mutate(update(old, new, username), admission())
    assert isinstance(found, Mutation)
    after = patched(new, found.patch)["metadata"].get("annotations") or {}
    asked, was = asked or {}, was or {}
    wanted = {key: value for key, value in asked.items() if by_kvitej or key not in ours}
    if not by_kvitej:
        wanted |= {key: value for key, value in was.items() if key in ours}
    assert after == wanted
    unmutated = validate(update(old, new, username), admission(), queued(0))
    assert isinstance(unmutated, Refusal) == (wanted != asked)
    stored = with_annotations(after, "n0" if bound else None)
    assert validate(update(old, stored, username), admission(), queued(0)) == Accepted()


def test_only_kvitej_lifts_its_gate() -> None:
    gated = asking(spec={"schedulingGates": [{"name": "kueue"}, *GATED]})
    free = asking(spec={"schedulingGates": [{"name": "kueue"}]})
    found = validate(update(gated, free), admission(), queued(0))
    assert isinstance(found, Refusal)
    assert (found.why, found.why.code) == (Why.GATE, 403)
    assert "`kvitej release`" in found.message
    for old, new, username in ((gated, free, KVITEJ), (free, asking(), "ada"), (gated, gated, "ada")):
        assert validate(update(old, new, username), admission(), queued(0)) == Accepted()


def test_other_operations_and_other_kinds_pass_untouched() -> None:
    for operation in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
        review = Review("r", operation, "team", "ada", False)
        assert mutate(review, admission()) == Mutation()
        assert validate(review, admission(), queued(10**9)) == Accepted()


def test_a_create_without_a_uid_is_not_allowed_since_it_could_not_be_counted() -> None:
    review = create(asking())
    assert review.pod is not None
    anonymous = msgspec.structs.replace(review.pod.metadata, uid="")
    pod = msgspec.structs.replace(review.pod, metadata=anonymous)
    found = validate(msgspec.structs.replace(review, pod=pod), admission(), queued(0))
    assert isinstance(found, Refusal)
    assert "metadata.uid" in found.message
    assert isinstance(mutate(msgspec.structs.replace(review, pod=pod), admission()), Mutation)


def test_a_scheduler_that_the_policy_leaves_out_is_not_in_its_line() -> None:
    rules = admission(ours="batch")
    left_out = replace(rules, schedulers=frozenset(("fair-quota",)))
    raw = asking(scheduler="batch")
    assert mutated(raw, rules)["spec"]["schedulingGates"] == GATED
    assert mutated(raw, left_out) == raw
