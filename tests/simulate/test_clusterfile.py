"""Cluster files: the shipped one, and in which words a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.simulate import clusterfile
from extender.simulate.policyfile import read_policies
from extender.yamlfile import FileError

Change = dict[str, Any]

AGENT = {"memory": "80Gi"}
PROCESS = {"name": "x", "node": "n", "card": 0, "takes": "1Gi", "at": "1m", "runs": "1m"}


def small(node: Change = {}, pod: Change = {}, **top: Any) -> str:  # noqa: B006
    """A cluster of one node and one pod, with other keys where given; None leaves a key out."""
    nodes = {"name": "n", "allocatable": {"cpu": 8, "memory": "8Gi", "nvidia.com/gpu": 2}} | node
    pods = {"name": "p", "tenant": "t", "runs": "1m", "asks": {"nvidia.com/gpu": 1}} | pod
    file = {"nodes": [nodes], "tenants": ["t"], "pods": [pods]} | top
    return yaml.safe_dump(_present(file))


def policy(**tenant: Any) -> Change:
    return {"name": "p", "tenants": [{"name": "t", "weight": 1} | tenant]}


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as error:
        clusterfile.find(str(path))
    return str(error.value).removeprefix(f"{path}: ")


def test_every_shipped_cluster_is_read_and_says_what_to_expect() -> None:
    assert "three-tenants" in clusterfile.shipped()
    for name in clusterfile.shipped():
        file = clusterfile.find(name)
        assert file.expect is not None
        assert file.expect.bound <= sum(pod.count for pod in file.pods) + file.expect.evicted


def test_policies_are_those_of_the_crd(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    spec = {
        "name": "p",
        "decayHalfLife": "6h",
        "nodeSelector": {"pool": "a"},
        "tenants": [policy()["tenants"][0]],
    }
    path.write_text(small(policies=[spec], ends="10m"))
    file = clusterfile.find(str(path))
    assert file.ends == 600
    [read] = read_policies(file.policies).all
    assert (read.name, read.node_selector, read.tenants[0].half_life) == ("p", {"pool": "a"}, 21_600)


def test_a_name_that_is_neither_shipped_nor_a_file_is_answered_with_the_shipped_ones() -> None:
    with pytest.raises(
        FileError, match=r"no cluster 'two-tenants'.*built-in names: memory-pressure, three-tenants\."
    ):
        clusterfile.find("two-tenants")


def test_a_file_reads_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        small(
            node={"agent": AGENT | {"sample": "10s"}},
            pod={"at": "1m30s", "count": 2, "gpuMemory": "20Gi"},
            processes=[PROCESS],
        )
    )
    file = clusterfile.find(str(path))
    assert file.nodes[0].agent == clusterfile.Agent(memory="80Gi", sample=10.0)
    [process] = file.processes
    assert (process.node, process.at, process.card, process.takes, process.runs) == (
        "n",
        60.0,
        0,
        "1Gi",
        60.0,
    )
    pod = file.pods[0]
    assert (pod.at, pod.runs, pod.gpu_memory, pod.intruder) == (90.0, 60.0, "20Gi", None)
    assert clusterfile.numbered(pod.name, pod.count) == ("p-1", "p-2")
    assert clusterfile.numbered(file.nodes[0].name, file.nodes[0].count) == ("n",)
    assert file.expect is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "",
            "nodes is missing; the cluster file has the keys nodes, tenants, pods, processes, failures, silences, "
            "policies, ends, expect.",
        ),
        (
            "[]",
            "the cluster file is []; allowed is a mapping with the keys nodes, tenants, pods, processes, ",
        ),
        (small(podz=[]), "podz is not a known key; the cluster file has the keys nodes, "),
        (small(nodes={"n": 1}), "nodes is {'n': 1}; allowed is a list."),
        (small(nodes=["n"]), "nodes[0] is 'n'; allowed is a mapping with the keys name, allocatable, "),
        (small(node={"name": None}), "nodes[0].name is missing; nodes[0] has the keys name, allocatable, "),
        (small(node={"name": "N_1"}), "nodes[0].name is 'N_1'; allowed is a name of at most 63 lower-case"),
        (small(node={"count": 0}), "nodes[0].count is 0; allowed is a whole number, from 1 to 1000."),
        (small(node={"gpus": 8}), "nodes[0].gpus is not a known key; nodes[0] has the keys"),
        (
            small(node={"allocatable": {"cpu": "8 cores"}}),
            "nodes[0].allocatable.cpu is '8 cores'; allowed is an amount of zero or more, such as 8, 500m or",
        ),
        (
            small(node={"allocatable": {"cpu": True}}),
            "nodes[0].allocatable.cpu is True; allowed is an amount",
        ),
        (small(node={"allocatable": {"cpu": -1}}), "nodes[0].allocatable.cpu is -1; allowed is an amount"),
        (small(node={"allocatable": {1: 2}}), "nodes[0].allocatable has the key 1; allowed is a text"),
        (small(node={"labels": {"a": 1}}), "nodes[0].labels.a is 1; allowed is a text (in quotes if"),
        (small(node={"labels": "a"}), "nodes[0].labels is 'a'; allowed is a mapping."),
        (small(tenants=["t", 5]), "tenants[1] is 5; allowed is a name of"),
        (small(pod={"tenant": "u"}), "pods[0].tenant is 'u'; allowed is one of the tenants t."),
        (
            small(pod={"runs": 60}),
            "pods[0].runs is 60; allowed is a duration such as 10s, 500ms or 1h30m, from",
        ),
        (small(pod={"at": "-1s"}), "pods[0].at is '-1s'; allowed is a duration"),
        (small(pod={"gpuMemory": "lots"}), "pods[0].gpuMemory is 'lots'; allowed is an amount"),
        (small(pod={"asks": {"cpu": 1}}), "pods[0].asks has no GPU, so kube-scheduler would not ask kvitej"),
        (small(pod={"asks": {"nvidia.com/gpu": 0}}), "pods[0].asks has no GPU"),
        (
            small(pod={"intruder": {"name": "x", "asks": {}}}),
            "pods[0].intruder.namespace is missing; pods[0].intruder has the keys name, namespace, asks, runs.",
        ),
        (
            small(pod={"intruder": {"name": "p", "namespace": "t", "asks": {}}}),
            "pods[0] gives a second pod t/p; each needs a name of its own.",
        ),
        (
            small(nodes=[{"name": "n-1", "allocatable": {}}, {"name": "n", "count": 2, "allocatable": {}}]),
            "nodes[1].name gives a second node n-1; each needs a name of its own.",
        ),
        (small(expect={"bound": 1}), "expect.vetoed is missing; expect has the keys bound, vetoed, evicted."),
        (small(policies={}), "policies is {}; allowed is a list."),
        (small(policies=["p"]), "policies[0] is 'p'; allowed is a mapping."),
        (
            small(policies=[{"tenants": [{"name": "t", "weight": 1}]}]),
            "policies[0].name is None; every policy ",
        ),
        (
            small(policies=[policy(), policy()]),
            "policies[1].name gives a second policy p; each needs a name of",
        ),
        (
            small(policies=[policy(weight="x")]),
            "policies[0].tenants[0].weight: Expected `float | null`, got `",
        ),
        (
            small(policies=[policy(wieght=1)]),
            "policies[0].tenants[0].wieght is not a known key; a policy has ",
        ),
        (
            small(policies=[policy(minShare=120)]),
            "policies[0].tenants[0].minShare is 120; give a number from 0",
        ),
        (
            small(policies=[policy() | {"decayHalflife": "1h"}]),
            "policies[0].decayHalflife is not a known key; ",
        ),
        (small(policies=[policy() | {"decayHalfLife": "1x"}]), "policies[0].decayHalfLife: '1x' is "),
        (
            small(policies=[policy(name=None)]),
            "policies[0].tenants[0].name is missing; every tenant needs a ",
        ),
        (
            small(policies=[policy() | {"tenants": []}]),
            "policies[0].tenants is empty; name at least one tenant.",
        ),
        (
            small(node={"agent": {}}),
            "nodes[0].agent.memory is missing; nodes[0].agent has the keys memory, reserved",
        ),
        (
            small(node={"agent": {"memory": "80 GB"}}),
            "nodes[0].agent.memory is '80 GB'; allowed is an amount",
        ),
        (
            small(node={"agent": {"memory": "80Gi", "sample": "1ms"}}),
            "nodes[0].agent.sample is '1ms'; allowed is a duration such as 10s, 500ms or 1h30m, from 1s to 10m.",
        ),
        (
            small(node={"agent": AGENT, "allocatable": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 7}}),
            "nodes[0].agent: agents are played for nodes that offer either nvidia.com/gpu or nvidia.com/gpu.shared, "
            "and this one offers nvidia.com/gpu, nvidia.com/mig-1g.5gb.",
        ),
        (
            small(nodes=[{"name": "n", "agent": AGENT, "allocatable": {}}]),
            "nodes[0].agent: agents are played for nodes that offer either nvidia.com/gpu or nvidia.com/gpu.shared, "
            "and this one offers neither.",
        ),
        (small(processes=[PROCESS]), "processes[0].node is 'n'; allowed is a node with an agent: none here."),
        (
            small(node={"agent": AGENT, "count": 2}, silences=[{"node": "n", "at": "1m", "lasts": "1m"}]),
            "silences[0].node is 'n'; allowed is a node with an agent: n-1, n-2.",
        ),
        (
            small(node={"agent": AGENT}, processes=[PROCESS | {"card": 2}]),
            "processes[0].card is 2; node n has 2 cards, counted from 0.",
        ),
        (
            small(node={"agent": AGENT}, processes=[PROCESS | {"takes": "81Gi"}]),
            "processes[0].takes is '81Gi'; a card of node n has 80Gi.",
        ),
        (
            small(
                node={"agent": AGENT},
                failures=[{"node": "n", "card": 5, "at": "1m", "lasts": "1m", "why": "Xid 79."}],
            ),
            "failures[0].card is 5; node n has 2 cards, counted from 0.",
        ),
        (
            small(
                node={"agent": AGENT},
                failures=[{"node": "n", "card": 0, "at": "1m", "lasts": "1m", "why": ""}],
            ),
            "failures[0].why is ''; allowed is a sentence.",
        ),
        (
            small(pod={"process": {"name": "x", "card": 0, "takes": "1Gi", "runs": "1m"}}),
            "pods[0].process: no node has an agent that would see it.",
        ),
        (
            small(pod={"process": {"name": "x", "card": 0, "takes": "1Gi"}}),
            "pods[0].process.runs is missing; pods[0].process has the keys name, card, takes, runs.",
        ),
        (small(ends="-1s"), "ends is '-1s'; allowed is a duration"),
        ("nodes: []\nnodes: []", "line 2: the key 'nodes' is given twice."),
    ],
)
def test_what_cannot_be_taken_as_meant_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(sentence)
    assert message.endswith(".")
    assert "\n" not in message
