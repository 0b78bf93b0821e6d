"""The scheduler configuration against the rules by which kube-scheduler reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from extender.__main__ import main
from extender.cluster.geometry import mig_resources
from extender.config import Config
from extender.schedulerconfig import (
    IN_TREE_SCORERS,
    WEIGHT,
    managed_resources,
    render,
    scheduler_configuration,
)

FOLDER = Path(__file__).parent.parent / "scheduler-config"


def test_the_committed_file_is_the_output() -> None:
    assert (FOLDER / "kube-scheduler.yaml").read_text() == render()


def test_the_comments_change_nothing() -> None:
    assert yaml.safe_load(render()) == scheduler_configuration()
    assert "&" not in render(), "anchors would make the file harder to edit"


def test_every_managed_name_is_valid_and_stands_once() -> None:
    (extender,) = yaml.safe_load(render())["extenders"]
    names = [resource["name"] for resource in extender["managedResources"]]
    assert len(names) == len(set(names))
    for name in names:
        domain, _, part = name.partition("/")
        assert domain == "nvidia.com"
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", part)
        assert len(part) <= 63


def test_each_form_of_each_gpu_resource_is_managed() -> None:
    whole = {"nvidia.com/gpu", *mig_resources()}
    assert set(managed_resources()) == whole | {f"{name}.shared" for name in whole}


def test_the_weight_is_the_smallest_that_outvotes_all_in_tree_scorers() -> None:
    most = sum(IN_TREE_SCORERS.values()) * 100
    assert most < WEIGHT * 10 <= most + 10
    comment = " ".join(line.strip(" #") for line in render().splitlines() if line.lstrip().startswith("#"))
    assert f"weight x 10 = {WEIGHT * 10}" in comment
    assert f"come to {most} = 100 x" in comment


def test_the_extender_binds_and_is_asked_about_all_nodes_by_name() -> None:
    configuration = yaml.safe_load(render())
    (extender,) = configuration["extenders"]
    verbs = {verb: extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt", "bind")}
    assert verbs == {verb: verb for verb in verbs}
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert configuration["percentageOfNodesToScore"] == 100
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == [
        "default-scheduler",
        "fair-quota",
    ]


FOLLOWED = ("fairnesspolicies", "gpunodes", "namespaces", "priorityclasses", "poddisruptionbudgets")


def test_kvitej_may_do_what_it_needs_and_no_more() -> None:
    objects = {
        document["kind"]: document for document in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
    }
    granted = {
        (resource, verb)
        for rule in objects["ClusterRole"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        *(("pods", verb) for verb in ("get", "list", "watch", "patch")),
        *(("nodes", verb) for verb in ("get", "list", "watch")),
        ("pods/binding", "create"),
        *(("events", verb) for verb in ("create", "patch")),
        ("pods/status", "patch"),
        ("pods/eviction", "create"),
        ("fairnesspolicies/status", "patch"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
        *((resource, verb) for resource in FOLLOWED for verb in ("get", "list", "watch")),
    }
    groups = {
        resource: rule["apiGroups"]
        for rule in objects["ClusterRole"]["rules"]
        for resource in rule["resources"]
    }
    assert {resource: group for resource, (group,) in groups.items() if group} == {
        "tokenreviews": "authentication.k8s.io",
        "subjectaccessreviews": "authorization.k8s.io",
        "fairnesspolicies": "kvitej.io",
        "fairnesspolicies/status": "kvitej.io",
        "gpunodes": "kvitej.io",
        "priorityclasses": "scheduling.k8s.io",
        "poddisruptionbudgets": "policy",
    }
    (in_ours,) = objects["Role"]["rules"]
    assert (in_ours["resources"], in_ours["verbs"]) == (["leases"], ["get", "list", "watch"])
    account = objects["ServiceAccount"]["metadata"]
    subjects = objects["ClusterRoleBinding"]["subjects"]
    assert {"kind": "ServiceAccount", **account} in subjects
    assert objects["Namespace"]["metadata"]["name"] == account["namespace"] == "kvitej"
    assert {subject["kind"]: subject["name"] for subject in subjects} == {
        "ServiceAccount": "kvitej",
        "User": "kvitej",
    }


def test_the_admission_policy_binds_exactly_whom_rbac_lets_write() -> None:
    def objects(name: str) -> dict[str, Any]:
        return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text())}

    users = [
        f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        if "namespace" in subject
        else subject["name"]
        for subject in objects("rbac.yaml")["ClusterRoleBinding"]["subjects"]
    ]
    limit = objects("admission-policy.yaml")
    policy = limit["ValidatingAdmissionPolicy"]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username in {users}"
    assert limit["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"] == policy["metadata"]["name"]


def test_an_agent_runs_as_the_account_that_its_policy_limits() -> None:
    documents = list(yaml.safe_load_all((FOLDER / "agent-rbac.yaml").read_text()))
    by_kind = {document["kind"]: document for document in documents}
    account = by_kind["ServiceAccount"]["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert by_kind[kind]["subjects"] == [{"kind": "ServiceAccount", **account}]
    (condition,) = by_kind["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert condition["expression"] == f"request.userInfo.username == '{user}'"
    policy = by_kind["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"]
    assert policy == by_kind["ValidatingAdmissionPolicy"]["metadata"]["name"]
    agents = yaml.safe_load((FOLDER / "agent.yaml").read_text())
    assert agents["metadata"]["namespace"] == account["namespace"]
    assert agents["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_the_daemon_set_starts_an_agent_that_finds_the_kubelet() -> None:
    spec = yaml.safe_load((FOLDER / "agent.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    program, command, *options = container["command"]
    assert (program, command) == ("kvitej", "agent")
    read = main.commands["agent"].make_context("agent", options).params
    assert (read["kubeconfig"], read["once"]) == ("in-cluster", False)
    assert {"NODE_NAME", "NVIDIA_VISIBLE_DEVICES"} <= {each["name"] for each in container["env"]}
    (mounted,), (volume,) = container["volumeMounts"], spec["volumes"]
    socket = Path(Config().agent.kubelet_socket)
    assert str(socket.parent) == mounted["mountPath"] == volume["hostPath"]["path"]


def test_kustomize_applies_every_object_file_but_the_one_that_needs_an_image() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["resources"] == [
        "crd-fairnesspolicies.yaml",
        "crd-gpunodes.yaml",
        "rbac.yaml",
        "admission-policy.yaml",
        "agent-rbac.yaml",
        "webhook.yaml",
    ]
    assert all((FOLDER / name).exists() for name in kustomization["resources"])
