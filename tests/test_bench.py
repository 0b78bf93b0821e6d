"""The benches' own parts: the workload's counts, the recount that judges overcommit, and how goals are reported."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench import openb, report
from bench.__main__ import main, reported
from bench.recount import asked, recount
from bench.report import Measurement, measured
from tests.controlplane.api import Object, node, pod

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"


def test_the_tables_hold_the_published_nodes() -> None:
    nodes = openb.nodes()
    assert len(nodes) == 1213
    assert sum(node.gpu for node in nodes) == 6212
    assert Counter(node.gpu for node in nodes) == {8: 617, 4: 54, 2: 518, 1: 24}
    assert sum(node.cpu_milli for node in nodes) == 107_018_000
    assert sum(node.memory_mib for node in nodes) == 503_828_480


def test_the_tables_hold_the_published_pods() -> None:
    pods = openb.pods(seed=1)
    assert len(pods) == 8152
    assert Counter(pod.num_gpu for pod in pods if not pod.shares) == {0: 1088, 1: 3911, 2: 16, 4: 15, 8: 44}
    assert sum(pod.shares for pod in pods) == 3078
    assert sum(pod.gpu_units for pod in pods) == pytest.approx(6086.8)
    assert sum(pod.cpu_milli for pod in pods) == 85_436_012
    assert Counter(pod.qos for pod in pods) == {"LS": 4647, "BE": 3398, "Burstable": 100, "Guaranteed": 7}


def test_a_seed_is_one_permutation_of_the_same_pods() -> None:
    assert openb.pods(seed=1) == openb.pods(seed=1)
    assert openb.pods(seed=1) != openb.pods(seed=2)
    assert Counter(openb.pods(seed=1)) == Counter(openb.pods(seed=2))


def test_the_lifetimes_cover_every_pod_and_rise() -> None:
    with open(openb.DATA / "openb_lifetimes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["qos"]: int(row["pods"]) for row in rows} == Counter(pod.qos for pod in openb.pods(seed=1))
    for row in rows:
        quantiles = [int(value) for name, value in row.items() if name.startswith("p") and name != "pods"]
        assert len(quantiles) == 11
        assert quantiles == sorted(quantiles)


def test_a_published_list_is_read_in_the_order_of_creation(tmp_path: Path) -> None:
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time"
    rows = ("b,2000,4,1,500,,BE,Running,20", "a,1000,4,2,1000,,LS,Running,10")
    (tmp_path / "openb_pod_list_default.csv").write_text("\n".join([columns, *rows]))
    assert openb.pods_from(tmp_path) == [
        openb.PodShape(1000, 4, 2, 1000, "LS"),
        openb.PodShape(2000, 4, 1, 500, "BE"),
    ]
    with pytest.raises(click.ClickException, match=r"openb_pod_list_gpuspec10\.csv cannot be read"):
        openb.pods_from(tmp_path, "gpuspec10")


def gpu_node(**extra: str) -> Object:
    """Two cards of 1,000 MiB, whole and in tenths."""
    labels = {f"{GPU}.memory": "1000", f"{GPU}.replicas": "10"}
    return node("n", gpus=2, labels=labels, extra={SHARED: "20", **extra})


def seated(
    name: str, requests: Mapping[str, int | str], held: Mapping[str, Any] | None, memory: str | None = None
) -> Object:
    """A pod on node `n`; `held` is what its record says of its one container, None that it has no record."""
    annotations = {"kvitej.io/gpu-memory": memory} if memory else {}
    if held is not None:
        annotations["kvitej.io/devices"] = json.dumps({"units": 1.0, "containers": {"main": held}})
    made = pod(name, requests=requests, annotations=annotations)
    made["spec"]["nodeName"] = "n"
    return made


def faults(*pods: Object) -> list[str]:
    return recount([gpu_node()], list(pods))


def test_a_full_node_without_overcommit_has_no_fault() -> None:
    shares = [seated(f"s{number}", {SHARED: 1}, {"shared": [1]}, "100Mi") for number in range(10)]
    assert faults(seated("whole", {GPU: 1}, {"gpu": [0]}), *shares) == []


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [seated("a", {GPU: 1}, {"gpu": [0]}), seated("b", {GPU: 1}, {"gpu": [0]})],
            ["card 0 has 2 owners: default/a, default/b."],
            id="two owners",
        ),
        pytest.param(
            [seated("a", {GPU: 1}, {"gpu": [1]}), seated("b", {SHARED: 1}, {"shared": [1]})],
            ["card 1 is default/a's alone, and is shared by default/b."],
            id="owned and shared",
        ),
        pytest.param(
            [seated(f"s{number}", {SHARED: 1}, {"shared": [0]}) for number in range(11)],
            ["card 0 has 11 shares out of 10."],
            id="too many shares",
        ),
        pytest.param(
            [seated(name, {SHARED: 1}, {"shared": [0]}, "501Mi") for name in "ab"],
            ["card 0 has 1002 MiB declared of 1000 MiB."],
            id="too much memory",
        ),
        pytest.param(
            [seated("a", {SHARED: 2}, {"shared": [0, 0]}, "600Mi")],
            ["card 0 has 1200 MiB declared of 1000 MiB."],
            id="two replicas of one pod",
        ),
        pytest.param(
            [seated(name, {GPU: 1}, None) for name in "abc"],
            ["3 nvidia.com/gpu are given out of 2.", "its pods need 3 cards, and it has 2."],
            id="by resource, without records",
        ),
        pytest.param(
            [seated("a", {GPU: 2}, None), seated("b", {SHARED: 1}, None)],
            ["its pods need 2.1 cards, and it has 2."],
            id="both forms of the same cards, without records",
        ),
        pytest.param(
            [seated("a", {MIG: 1}, {"mig": {MIG: 1}})],
            ["1 nvidia.com/mig-1g.10gb are given out of 0."],
            id="a resource that the node lacks",
        ),
        pytest.param(
            [seated("a", {GPU: 2}, {"gpu": [0]})],
            ["pod default/a, container main: 1 devices are recorded, 2 asked for."],
            id="a record that is short",
        ),
        pytest.param(
            [seated("a", {GPU: 1}, {"gpu": [2]})],
            ["pod default/a holds card 2, and the node has 2."],
            id="a card that is not there",
        ),
    ],
)
def test_every_kind_of_overcommit_is_named(pods: Sequence[Object], expected: Sequence[str]) -> None:
    assert faults(*pods) == [f"node n: {sentence}" for sentence in expected]


def test_pods_that_hold_no_seat_do_not_count() -> None:
    ended = seated("ended", {GPU: 2}, {"gpu": [0, 1]}) | {"status": {"phase": "Succeeded"}}
    elsewhere = seated("elsewhere", {GPU: 2}, {"gpu": [0, 1]})
    elsewhere["spec"]["nodeName"] = "gone"
    pending = pod("pending", requests={GPU: 2})
    assert faults(ended, elsewhere, pending, seated("here", {GPU: 2}, {"gpu": [0, 1]})) == []


def test_mig_instances_are_counted_by_resource() -> None:
    instances = [seated(f"m{number}", {MIG: 1}, {"mig": {MIG: 1}}) for number in range(3)]
    assert recount([gpu_node(**{MIG: "3"})], instances) == []
    assert recount([gpu_node(**{MIG: "2"})], instances) == [
        "node n: 3 nvidia.com/mig-1g.10gb are given out of 2."
    ]


def test_an_init_container_uses_the_cards_that_the_running_ones_get_later() -> None:
    def container(name: str, count: int, **more: str) -> Object:
        return {"name": name, "resources": {"limits": {GPU: str(count)}}, **more}

    made = seated("p", {GPU: 1}, None)
    made["spec"]["initContainers"] = [container("proxy", 1, restartPolicy="Always"), container("warm", 1)]
    record = {"proxy": {"gpu": [0]}, "warm": {"gpu": [1]}, "main": {"gpu": [1]}}
    made["metadata"]["annotations"]["kvitej.io/devices"] = json.dumps({"units": 2.0, "containers": record})
    assert asked(made) == {GPU: 2}
    assert faults(made) == []
    made["spec"]["initContainers"][1] = container("warm", 2)
    assert asked(made) == {GPU: 3}


def test_bounds_judge_measurements_and_a_value_that_is_no_number_misses_them() -> None:
    assert measured("c", "m", 3.0, at_most=3).met is True
    assert measured("c", "m", 3.1, at_most=3).met is False
    assert measured("c", "m", 0.9, at_least=0.9).met is True
    assert measured("c", "m", float("nan"), at_most=3).met is False
    assert measured("c", "m", float("nan"), at_least=3).met is False
    assert measured("c", "m", 5.0).met is None


@pytest.fixture
def run_cases() -> Any:
    """Run the measurements through a command as the cases are run; gives click's result."""

    def run(measurements: Sequence[Measurement], *arguments: str) -> Any:
        @click.command()
        @reported
        def command() -> list[Any]:
            return [lambda: list(measurements)]

        return CliRunner().invoke(command, arguments)

    return run


MET = measured("speed", "ratio", 2.5, at_most=3)
MISSED = measured("speed", "rate", 40.0, "pods/s", at_least=50)
PLAIN = measured("speed", "p50", 1.25, "ms")


def test_check_exits_with_1_and_names_each_goal_that_was_missed(run_cases: Any) -> None:
    result = run_cases([MET, MISSED, PLAIN], "--check")
    assert result.exit_code == 1
    assert result.stderr == "speed: rate is 40 pods/s; the goal is ≥ 50.\n"
    assert run_cases([MET, PLAIN], "--check").exit_code == 0
    assert run_cases([MET, MISSED, PLAIN]).exit_code == 0


def test_json_is_one_object_a_line_with_nothing_else_on_stdout(run_cases: Any) -> None:
    lines = [json.loads(line) for line in run_cases([MET, PLAIN], "--json").stdout.splitlines()]
    assert lines == [
        {"case": "speed", "metric": "ratio", "value": 2.5, "unit": "", "goal": "≤ 3", "met": True},
        {"case": "speed", "metric": "p50", "value": 1.25, "unit": "ms", "goal": None, "met": None},
    ]


def test_the_table_shows_each_value_with_its_goal(run_cases: Any) -> None:
    lines = run_cases([MET, MISSED]).stdout.splitlines()
    assert any("ratio" in line and "2.5" in line and "≤ 3" in line and "yes" in line for line in lines)
    assert any("rate" in line and "40" in line and "≥ 50" in line and "no" in line for line in lines)


def test_help_names_every_case() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    assert all(case in text for case in ("latency", "throughput", "sync", "trace", "all"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.12345, "0.123"), (2.0, "2"), (52.31, "52.3"), (1234.5, "1,234"), (50_000, "50,000")],
)
def test_numbers_are_shown_with_three_digits(value: float, shown: str) -> None:
    assert report.number(value) == shown
