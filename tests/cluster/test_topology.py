"""Bandwidths, the register, and the promise on every capture: the best set there is, none worse than the plugin's."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.cluster.topology import (
    MOST_TOPOLOGIES,
    Topologies,
    Topology,
    behind_switch,
    through_switch,
    topology,
)
from extender.wire.topo import Link, LinkClass, LinkMatrix, TopoError, parse
from tests.core.topology_twins import plugin_sets
from tests.topo import DATA, READABLE, capture, text_of

ORACLE: dict[str, Any] = json.loads((DATA / "gpuallocator_oracle.json").read_text())
CASES = ORACLE["reimplementation"]["cases"]
NODES = ORACLE["upstream_node_score_matrices"]
SELF = Link(LinkClass.SELF)


def node(name: str, product: str = "") -> Topology:
    return topology(parse(capture(name)), product)


def all_pairs(link: Link, count: int) -> LinkMatrix:
    links = tuple(tuple(SELF if i == j else link for j in range(count)) for i in range(count))
    return LinkMatrix(tuple(range(count)), links, (None,) * count)


def mask_of(gpus: list[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


@pytest.mark.parametrize("entry", READABLE, ids=[Path(entry["file"]).stem for entry in READABLE])
def test_on_every_capture_each_free_mask_gets_the_best_set_that_it_has(entry: dict[str, Any]) -> None:
    """Brute force: every set of k against the masks that hold it. With 16 equal GPUs, a few thousand masks."""
    kind = topology(parse(text_of(entry)))
    pairs = kind.bandwidth.tolist()
    gpus = range(kind.sets.gpus)
    masks = range(1 << len(gpus)) if len(gpus) <= 8 else range(0, 1 << len(gpus), 31)
    for k in (2, 4):
        worths = {
            sum(1 << gpu for gpu in members): min(pairs[i][j] for i in members for j in members if i != j)
            for members in combinations(gpus, k)
        }
        ranked = sorted(worths.items(), key=lambda entry: -entry[1])
        for mask in masks:
            best = next((worth for members, worth in ranked if members & mask == members), None)
            chosen = kind.sets.choose(mask, k)
            if best is None:
                assert chosen == 0
            else:
                assert chosen & mask == chosen
                assert worths[chosen] / best == 1.0


@pytest.mark.parametrize("test", ORACLE["upstream_tests"])
def test_the_twin_of_the_plugin_passes_the_plugins_own_tests(test: dict[str, Any]) -> None:
    handed = plugin_sets(NODES[test["node"]], test["available"], test["required"], test["size"])
    assert list(handed) == test["expected"]


@pytest.mark.parametrize("sequence", ORACLE["upstream_sequences"])
def test_so_it_does_one_job_after_the_other(sequence: dict[str, Any]) -> None:
    free = list(range(len(NODES[sequence["node"]])))
    for size, expected in zip(sequence["sizes"], sequence["expected"], strict=True):
        assert list(plugin_sets(NODES[sequence["node"]], free, (), size)) == expected
        free = [gpu for gpu in free if gpu not in expected]


@pytest.mark.parametrize("case", CASES)
def test_the_plugin_is_forecast_as_it_chooses_and_never_beats_us(case: dict[str, Any]) -> None:
    kind, free = node(case["topo"]), mask_of(case["available"])
    handed, chosen = kind.sets.allocator.choose(free, case["size"]), kind.sets.choose(free, case["size"])
    assert list(kind.members(handed)) == case["go_gpuallocator_result"]
    assert kind.sets.bottleneck[chosen] >= kind.sets.bottleneck[handed]


HIGHER_SUM = {
    # Cube mesh, three GPUs: the plugin takes two double links over the socket link (200 + 200 + 10 points) before a
    # triangle of NVLinks (100 + 100 + 200), and the ring of the job runs over the socket link.
    ("dgx1_v100_8gpu_cube_mesh", 3): 14
}


def test_where_the_plugins_own_sum_is_higher_a_slower_link_is_the_price() -> None:
    higher: dict[tuple[str, int], int] = {}
    for entry in READABLE:
        name = Path(entry["file"]).stem
        kind = node(name)
        links = kind.matrix.links
        points = [[100 * link.lanes or 10 * link.kind for link in row] for row in links]
        if len(points) > 8 or behind_switch(kind.matrix, kind.card):
            continue
        for mask in range(1 << len(points)):
            for k in (2, 3, 4):
                ours, plugins = (
                    kind.members(table.choose(mask, k)) for table in (kind.sets, kind.sets.allocator)
                )
                sums = [sum(points[i][j] for i, j in combinations(members, 2)) for members in (ours, plugins)]
                slowest = [kind.sets.bottleneck[mask_of(list(members))] for members in (ours, plugins)]
                assert slowest[0] >= slowest[1]
                if sums[1] > sums[0]:
                    assert slowest[0] > slowest[1]
                    higher[name, k] = higher.get((name, k), 0) + 1
    assert higher == HIGHER_SUM


@pytest.mark.parametrize(
    ("name", "product", "gbps"),
    [
        ("dgx1_v100_8gpu_cube_mesh", "Tesla-V100-SXM2-16GB", 100),
        ("dgx_a100_8gpu_10nic", "NVIDIA-A100-SXM4-80GB", 600),
        ("a800_8gpu_nv8_9nic_gpurows", "NVIDIA-A800-SXM4-80GB", 400),
        ("hgx_h200_8gpu_8nic", "NVIDIA-H200", 900),
        ("hgx_h200_8gpu_8nic", "NVIDIA H800", 400),
        ("dgx2_16gpu_nv6_gpuonly", "Tesla-V100-SXM3-32GB", 300),
        ("a100_sxm_4gpu_nv4_2nic", "", 200),
        ("h100_4gpu_nv6_4nic_cpulist", "", 300),
        ("gb200_4gpu_tray", "NVIDIA-GB200", 1800),
        ("gb200_4gpu_tray", "", 900),
        ("l40s_4gpu_pix_node_headerstripped", "NVIDIA-L40S", 64),
        ("l40s_4gpu_pix_node_headerstripped", "", 32),
        ("l40s_4gpu_pix_node_headerstripped", "a card that nobody knows", 32),
        ("rtx5090_2gpu_phb", "NVIDIA-GeForce-RTX-5090", 117.76),
    ],
)
def test_the_best_pair_has_the_bandwidth_of_its_links(name: str, product: str, gbps: float) -> None:
    kind = node(name, product)
    full = (1 << kind.sets.gpus) - 1
    assert kind.sets.bottleneck[kind.sets.choose(full, 2)] == gbps * 1000


def test_links_that_imply_a_slower_card_are_not_promised_more() -> None:
    bridge = all_pairs(Link(LinkClass.NVLINK, 4), 2)
    assert topology(bridge).bandwidth[0, 1] == 112_500
    assert topology(bridge, "NVIDIA-A40").bandwidth[0, 1] == 112_500
    assert topology(all_pairs(Link(LinkClass.NVLINK, 1), 5)).bandwidth[0, 1] == 40_000


def test_classes_rank_and_one_numa_node_beats_two() -> None:
    order = (LinkClass.PIX, LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.SYS)
    speeds = [int(topology(all_pairs(Link(kind), 2)).bandwidth[0, 1]) for kind in order]
    assert speeds == sorted(set(speeds), reverse=True)
    far = node("rtx4090_8gpu_all_sys_2nic")
    assert speeds[3] * 2 > far.bandwidth[0, 1] > far.bandwidth[0, 7]
    assert far.members(far.sets.choose(mask_of([3, 4, 5]), 2)) == (4, 5)
    even = node("dgx_a100_8gpu_10nic")
    assert even.members(even.sets.choose(mask_of([1, 2, 3, 4]), 2)) == (2, 3)


def test_a_switch_is_told_from_a_mesh() -> None:
    switched = {
        "dgx_a100_8gpu_10nic",
        "a800_8gpu_nv8_9nic_gpurows",
        "gb200_4gpu_tray",
        "dgx2_16gpu_nv6_gpuonly",
    }
    meshes = {
        "a100_sxm_4gpu_nv4_2nic",
        "h100_4gpu_nv6_4nic_cpulist",
        "v100_4gpu_half_cube_mesh",
        "mixed_5gpu_phb",
    }
    for name in switched | meshes:
        kind = node(name)
        assert behind_switch(kind.matrix, kind.card) == (name in switched)


def test_gpus_whose_links_end_at_switches_reach_each_other_by_the_fewer_links() -> None:
    seen = all_pairs(Link(LinkClass.NODE), 4)
    matrix = through_switch(seen, [18, 18, 12, 0])
    assert [str(link) for link in matrix.links[0]] == ["X", "NV18", "NV12", "NODE"]
    assert matrix.links[3] == seen.links[3]
    kind = topology(matrix, "NVIDIA-H100-80GB-HBM3")
    assert kind.members(kind.sets.choose(0b1111, 2)) == (0, 1)
    assert topology(through_switch(seen, [18] * 4)).bandwidth[0, 1] == 900_000


def test_sets_of_nvlinks_are_known_as_such() -> None:
    kind = node("a100_pcie80_4gpu_nvbridge_pairs")
    assert [mask for mask in range(16) if kind.sets.nvlink[mask]] == [0, 1, 2, 3, 4, 8, 12]
    for entry in READABLE:
        kind = topology(parse(text_of(entry)))
        full = (1 << kind.sets.gpus) - 1
        assert kind.sets.nvlink[full] == all(
            link.kind in (0, LinkClass.NVLINK) for row in kind.matrix.links for link in row
        )


def test_nodes_with_the_same_links_and_card_share_one_entry() -> None:
    register = Topologies()
    first = parse(capture("dgx_a100_8gpu_10nic"))
    index = register.add(first, "NVIDIA-A100-SXM4-80GB")
    assert (
        register.add(replace(first, numa=(0, 0, 1, 1, 2, 2, 3, 3), cpus=()), "NVIDIA-A100-SXM4-40GB") == index
    )
    assert register.add(parse(capture("dgx_a100_srun_cgroup_1nic")), "NVIDIA-A100-SXM4-80GB") == index
    assert register.add(first, "NVIDIA-A800-SXM4-80GB") != index
    assert register.add(replace(first, numa=(None,) * 8), "NVIDIA-A100-SXM4-80GB") != index
    assert len(register) == len(register.sets) == 3
    assert register[index].sets is register.sets[index]


def test_a_card_type_offers_what_its_best_connected_node_has() -> None:
    register = Topologies()
    sxm = register.add(parse(capture("dgx_a100_8gpu_10nic")), "NVIDIA-A100-SXM4-80GB")
    bridged = register.add(parse(capture("a100_pcie80_4gpu_nvbridge_pairs")), "NVIDIA-A100-80GB-PCIe")
    single = register.add(all_pairs(SELF, 1), "NVIDIA-L40S")
    assert register.offers(4)[[sxm, bridged, single]].tolist() == [600_000, 600_000, 0]
    assert register.offers(1).tolist() == [0, 0, 0]
    assert Topologies().offers(2).shape == (0,)


def test_what_cannot_be_weighed_is_refused_with_the_reason() -> None:
    sys = Link(LinkClass.SYS)
    with pytest.raises(TopoError, match="17 GPUs; their links are weighed for up to 16"):
        topology(all_pairs(sys, 17))
    with pytest.raises(TopoError, match="show NV12, but 'NVIDIA-L40S' has no NVLink"):
        Topologies().add(parse(capture("a100_pcie80_4gpu_nvbridge_pairs")), "NVIDIA-L40S")
    register = Topologies()
    lots = np.random.default_rng(1)
    while len(register) < MOST_TOPOLOGIES:
        register.add(replace(all_pairs(sys, 8), numa=tuple(lots.integers(0, 8, 8).tolist())))
    with pytest.raises(TopoError, match="256 different link matrices are known already"):
        register.add(all_pairs(Link(LinkClass.PIX), 8))
    assert register.add(register[7].matrix) == 7
