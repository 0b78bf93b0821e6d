"""Which cards a node has, for every way in which NVIDIA's plugin advertises them, and for labels that lie."""

from typing import Any

import pytest

from extender.cluster.events import NodeSeen
from extender.cluster.inventory import MOST_MEMORY, Inventory, Mode, inventory_of
from extender.wire.objects import Node
from tests.builders import GPU, MIG, SHARED, book, node

MIB = 2**20


def seen(amounts: dict[str, Any] | None = None, **parts: Any) -> Inventory:
    return inventory_of(node("n0", amounts, **parts))


def test_whole_cards() -> None:
    found = seen({GPU: "8"}, memory=81920, replicas=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100"})
    assert (found.mode, found.cards, found.replicas, found.card_memory) == (Mode.WHOLE, 8, 0, 81920 * MIB)
    assert (found.product, found.allocatable, found.fault) == ("NVIDIA-H100", ((GPU, 8),), "")
    assert (found.cpu, found.memory) == (96_000, 2**40)


def test_renamed_shares_are_replicas_of_cards() -> None:
    # 8 shares of 4 per card are 2 cards.
    found = seen({SHARED: "8"}, replicas=4, labels={"nvidia.com/gpu.sharing-strategy": "time-slicing"})
    assert (found.mode, found.cards, found.replicas) == (Mode.WHOLE, 2, 4)


def test_time_slicing_without_renaming_makes_each_gpu_a_share() -> None:
    # 80 of "nvidia.com/gpu", 10 per card: 8 cards.
    labels = {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    found = seen({GPU: "80"}, replicas=10, labels=labels, memory=15360)
    assert (found.mode, found.cards, found.replicas, found.product) == (Mode.REPLICA, 8, 10, "Tesla-T4")


def test_mps_without_renaming_is_sharing_too() -> None:
    labels = {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.sharing-strategy": "mps"}
    assert seen({GPU: "4"}, replicas=2, labels=labels).mode is Mode.REPLICA


def test_mig_single_makes_each_gpu_an_instance() -> None:
    labels = {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    }
    found = seen({GPU: "56"}, labels=labels, memory=4864)
    assert (found.mode, found.cards, found.replicas, found.allocatable) == (Mode.INSTANCE, 0, 0, ((GPU, 56),))


def test_mig_single_on_a_node_without_mig_is_whole_cards() -> None:
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    assert seen({GPU: "8"}, labels=labels).mode is Mode.WHOLE


def test_mig_mixed_counts_only_the_cards_without_mig() -> None:
    # The label counts all 8 cards; 6 are whole, the other two are seven instances each.
    labels = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "8"}
    found = seen({GPU: "6", MIG: "14"}, labels=labels)
    assert (found.mode, found.cards, found.allocatable) == (Mode.WHOLE, 6, ((GPU, 6), (MIG, 14)))


def test_cards_in_mig_mode_are_no_cards_to_share() -> None:
    # Four cards by the label, of which some are instances: how many of them are shared is not known.
    labels = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "4"}
    found = seen({SHARED: "20", MIG: "14"}, labels=labels)
    assert (found.cards, found.replicas) == (1, 20)


def test_a_node_whose_cards_are_all_in_mig_mode_has_no_whole_card() -> None:
    labels = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "8", "kvitej.io/mig": "dynamic"}
    assert seen({GPU: "0", MIG: "56"}, labels=labels).cards == 0
    assert seen({}, labels=labels).cards == 0


def test_cards_advertised_twice_are_counted_once() -> None:
    # 4 cards as whole GPUs and as 100 shares each: 400 / 4 = 100 replicas.
    found = seen({GPU: "4", SHARED: "400"})
    assert (found.cards, found.replicas) == (4, 100)


def test_cards_come_from_capacity_and_what_may_be_used_from_allocatable() -> None:
    found = seen({GPU: "7"}, capacity={GPU: "8"})
    assert (found.cards, found.allocatable) == (8, ((GPU, 7),))


def test_a_node_without_capacity_or_gpus_has_none() -> None:
    assert (seen({}).cards, seen({}).allocatable, seen({}).fault) == (0, (), "")


def test_a_node_without_status_has_nothing() -> None:
    found = inventory_of(Node(metadata=node().metadata))
    assert (found.cpu, found.memory, found.cards, found.fault) == (0, 0, 0, "")


def test_shares_without_labels_are_of_one_card_rather_than_of_many() -> None:
    found = seen({SHARED: "10"})
    assert (found.cards, found.replicas) == (1, 10)


@pytest.mark.parametrize("text", ["", "-4", "4.5", "four", "٤", "1" * 10, "0x4", " 4"])
def test_labels_that_are_no_numbers_say_nothing(text: str) -> None:
    labels = {f"nvidia.com/gpu.{name}": text for name in ("memory", "replicas", "count")}
    found = seen({SHARED: "8", GPU: "2"}, labels=labels)
    assert (found.card_memory, found.cards, found.replicas, found.fault) == (0, 2, 4, "")


def test_a_card_with_more_memory_than_any_has_is_one_of_unknown_memory() -> None:
    most = MOST_MEMORY // MIB
    assert seen({GPU: "1"}, memory=most).card_memory == MOST_MEMORY
    assert seen({GPU: "1"}, memory=most + 1).card_memory == 0


@pytest.mark.parametrize("text", ["many", "-1", "1.5", ""])
def test_a_count_that_cannot_be_read_closes_the_node(text: str) -> None:
    found = seen({GPU: text})
    assert "the node's resources" in found.fault
    assert (found.cards, found.allocatable) == (0, ())


@pytest.mark.parametrize("amounts", [{GPU: "65"}, {GPU: "9E"}, {SHARED: "9E", GPU: "100"}, {SHARED: "1k"}])
def test_a_node_that_claims_more_cards_than_any_machine_has_is_closed(amounts: dict[str, str]) -> None:
    replicas = 2 if amounts == {SHARED: "1k"} else 0
    assert "at most 64 are believed" in seen(amounts, replicas=replicas).fault


@pytest.mark.parametrize(
    "hostile",
    [
        node("n0", {SHARED: "9E"}),
        node("n0", {SHARED: "9E", GPU: "64"}, memory=999_999_999, replicas=999_999_999),
        node("n0", {SHARED: "1"}, replicas=999_999_999),
        node(
            "n0",
            {GPU: "9E"},
            labels={"nvidia.com/gpu.product": "x-SHARED", "nvidia.com/gpu.sharing-strategy": "mps"},
        ),
        node("n0", {GPU: "64", "nvidia.com/mig-7g.80gb": "9E", "nvidia.com/" + "x" * 300: "9E"}),
        node("n0", {"cpu": "9E", "memory": "9E"}),
    ],
)
def test_hostile_numbers_fit_into_the_book(hostile: Node) -> None:
    state = book(hostile)
    state.check()
    state.apply(NodeSeen(node("n0", {GPU: "1"})))
    state.check()
