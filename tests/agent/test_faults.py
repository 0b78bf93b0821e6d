"""Drivers that refuse, hang, lose cards and are loaded anew: a sample ends, and no card suffers for another."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from extender.agent.health import HOLD_DOWN
from extender.agent.nvml import REOPEN_AFTER
from extender.wire.gpunode import GPUNode, matrix_of
from tests.agent.conftest import Node
from tests.agent.test_machines import card, status
from tests.fakes.nvml import machines
from tests.fakes.nvml.machines import GIB

_SOURCE = Path(machines.__file__).with_name("nvml.c").read_text()
PER_CARD = sorted(
    {
        name
        for name, arguments in re.findall(r"nvmlReturn_t (nvml\w+)\(([^)]*)\)", _SOURCE)
        if "nvmlDevice_t device" in arguments or "HandleByIndex" in name
    }
    | set(re.findall(r"PROCESSES\((nvml\w+),", _SOURCE))
)
ERRORS = ["not-supported", "no-permission", "lost", "reset-required", "unknown", "function-not-found"]


def healthy(report: GPUNode) -> list[bool]:
    return [card.health.healthy for card in status(report).gpus]


def test_the_list_of_functions_is_that_of_the_fake() -> None:
    assert {"nvmlDeviceGetUUID", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetNvLinkState"} < set(
        PER_CARD
    )
    assert len(PER_CARD) > 25


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("function", PER_CARD)
def test_whatever_a_card_refuses_the_others_are_as_before(node: Node, function: str, error: str) -> None:
    node.is_a(machines.h100_mig)
    agent = node.agent()
    before = agent.sample()
    node.say(f"fault {function} {error} 6")
    after, fresh = agent.sample(), node.agent().sample()
    for report in (after, fresh):
        assert status(report).problem is None
        assert [gpu for gpu in report.spec.gpus if gpu.index != 6] == [
            gpu for gpu in before.spec.gpus if gpu.index != 6
        ]
        assert [one for one in status(report).gpus if one.index != 6] == [
            one for one in status(before).gpus if one.index != 6
        ]
    # Nothing that can't be read is read as nothing.
    memory, was = card(after, 6).memory, card(before, 6).memory
    assert memory is None or was is None or memory.used >= was.used
    if memory is None:
        assert not card(after, 6).health.healthy


@pytest.mark.parametrize(
    "function",
    ["*", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"],
)
def test_a_card_off_the_bus_keeps_what_was_on_it_and_comes_back_after_a_hold_down(
    node: Node, function: str
) -> None:
    node.is_a(machines.h100_mig)
    agent = node.agent()
    before = agent.sample()
    node.say(f"fault {function} lost 0")
    node.clock += REOPEN_AFTER
    agent.sample()
    node.clock += REOPEN_AFTER
    gone = agent.sample()
    assert gone.spec == before.spec
    assert healthy(gone) == [False, *[True] * 7]
    assert card(gone, 0).health.why == ["The card has fallen off the bus."]
    assert card(gone, 0).memory == card(before, 0).memory
    assert card(gone, 0).processes == card(before, 0).processes
    node.say()
    node.clock += REOPEN_AFTER
    assert healthy(agent.sample())[0] is False
    node.clock += HOLD_DOWN
    back = agent.sample()
    assert healthy(back) == [True] * 8
    assert back.spec == before.spec


def test_a_card_that_vanishes_stays_in_the_report_and_keeps_its_index(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    before = agent.sample()
    # Card 1 is gone and the driver counts anew: what was card 3 is now its card 1.
    node.say(
        "gpus 3", "generation 2", "gpu 1", f"uuid {machines.uuid(3)}", f"pci {machines.pci(3)}", "numa 1"
    )
    after = agent.sample()
    assert [gpu.uuid for gpu in after.spec.gpus] == [gpu.uuid for gpu in before.spec.gpus]
    assert after.spec.links == before.spec.links
    assert healthy(after) == [True, False, True, True]
    assert card(after, 1).health.why == ["The driver no longer shows the card."]
    node.boot("boot-2")
    assert [gpu.uuid for gpu in agent.sample().spec.gpus] == [
        machines.uuid(0),
        machines.uuid(3),
        machines.uuid(2),
    ]


def test_a_card_that_was_lost_before_the_agent_came_is_known_by_its_index_only(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    node.say("fault * lost 2")
    report = node.agent().sample()
    assert (report.spec.gpus[2].uuid, healthy(report)) == ("", [True, True, False, True])
    matrix = matrix_of(report.spec)
    assert matrix is not None
    assert matrix.gpus == (0, 1, 3)


def test_the_links_of_a_card_come_when_it_does(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    node.say("fault nvmlDeviceGetMemoryInfo_v2 lost 2")
    agent = node.agent()
    links = [agent.sample().spec.links]
    node.say()
    links.append(agent.sample().spec.links)
    assert [one and one.gpus for one in links] == [[0, 1, 3], [0, 1, 2, 3]]


def test_an_agent_that_restarts_knows_a_lost_card_by_the_report_before(node: Node) -> None:
    node.is_a(machines.h100_mig)
    before = node.agent().sample()
    node.say("fault * lost 0")
    report = node.agent(before).sample()
    assert report.spec.gpus == before.spec.gpus
    assert card(report, 0).memory == card(before, 0).memory
    assert healthy(report) == [False, *[True] * 7]


@pytest.mark.parametrize("function", ["*", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetUUID"])
def test_a_card_that_hangs_costs_the_time_limit_once_and_only_itself(node: Node, function: str) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent(patience=0.5)
    node.say(f"fault {function} hang 1")
    began = time.monotonic()
    first = agent.sample()
    assert 0.4 < time.monotonic() - began < 3
    assert healthy(first) == [True, False, True, True]
    assert card(first, 1).health.why == ["The driver does not answer about the card."]
    began = time.monotonic()
    agent.sample()
    assert time.monotonic() - began < 0.4
    node.say()
    time.sleep(0.1)
    node.clock += HOLD_DOWN + 1
    agent.sample()
    node.clock += HOLD_DOWN + 1
    assert healthy(agent.sample()) == [True] * 4


def test_a_card_that_hangs_for_long_costs_one_thread(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent(patience=0.2)
    node.say("fault nvmlDeviceGetMemoryInfo_v2 hang 1")
    agent.sample()
    threads = threading.active_count()
    for _ in range(3):
        node.clock += REOPEN_AFTER
        assert healthy(agent.sample()) == [True, False, True, True]
    assert threading.active_count() == threads


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_hangs_is_said_and_frees_no_card(node: Node, function: str) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent(patience=0.3)
    before = agent.sample()
    node.say(f"fault {function} hang", "generation 2")
    report = agent.sample()
    problem = status(report).problem
    assert problem is not None
    assert (problem.reason, problem.message) == ("DriverHangs", "The NVIDIA driver does not answer.")
    assert card(report, 0).health.why == [problem.message]
    assert healthy(report) == [False] * 4
    assert report.spec == before.spec
    node.say("generation 2")
    time.sleep(0.1)
    node.clock += HOLD_DOWN + 1
    assert healthy(agent.sample()) == [True] * 4


def test_a_driver_that_is_loaded_anew_is_opened_anew(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    before = agent.sample()
    node.say("generation 2", "driver 580.10")
    after = agent.sample()
    assert healthy(after) == [True] * 4
    assert (after.spec.driver, after.spec.links) == ("580.10", before.spec.links)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        ("version-mismatch", "VersionMismatch", "different versions"),
        ("driver-not-loaded", "NoDriver", "not loaded"),
        ("no-permission", "NoPermission", "as root"),
        ("unknown", "DriverError", "unknown error"),
    ],
)
def test_a_driver_that_can_no_longer_be_opened(node: Node, error: str, reason: str, words: str) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    agent.sample()
    node.say(f"fault nvmlInitWithFlags {error}", "generation 2")
    for report in (agent.sample(), agent.sample()):
        problem = status(report).problem
        assert problem is not None
        assert (problem.reason, words in problem.message) == (reason, True)
        # What was there is still there, for all that is known.
        assert healthy(report) == [False] * 4
    node.say("generation 3")
    node.clock += HOLD_DOWN + 1
    assert status(agent.sample()).problem is None
    alone = node.agent().sample()
    assert healthy(alone) == [True] * 4


def test_a_driver_without_cards_says_so(node: Node) -> None:
    node.say("driver 570.124.06")
    report = node.agent().sample()
    problem = status(report).problem
    assert problem is not None
    assert (problem.reason, report.spec.gpus) == ("NoGPU", [])


def test_a_refused_process_list_is_not_an_empty_one(node: Node) -> None:
    node.is_a(machines.h100_mig)
    node.say("fault nvmlDeviceGetGraphicsRunningProcesses_v3 no-permission 0")
    report = node.agent().sample()
    assert card(report, 0).processes is None
    assert [(one.what, one.why) for one in card(report, 0).unreadable] == [
        ("processes", "insufficient permissions")
    ]
    assert card(report, 1).processes == []
    memory = card(report, 0).memory
    assert memory is not None
    assert memory.used == 60 * GIB


def test_without_the_right_to_read_placements_instances_are_still_counted(node: Node) -> None:
    node.is_a(machines.h100_mig)
    node.say("fault nvmlDeviceGetGpuInstances no-permission")
    report = node.agent().sample()
    assert [(one.id, one.start, one.uuids) for one in card(report, 6).instances] == [
        (1, None, [machines.mig_uuid(6, 1)]),
        (5, None, [machines.mig_uuid(6, 5)]),
    ]
    assert card(report, 6).unreadable[0].what == "instances"


def test_what_was_refused_once_is_asked_again(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    node.say("fault nvmlDeviceGetTopologyCommonAncestor unknown", "gpu 0", "nvlink 0-17 off")
    assert agent.sample().spec.links is None
    node.say("gpu 0", "nvlink 0-17 off")
    assert agent.sample().spec.links is not None
    node.say("fault nvmlDeviceGetGpuInstanceProfileInfoV unknown 3")
    fresh = node.agent()
    assert fresh.sample().spec.gpus[3].geometry is None
    node.say()
    assert fresh.sample().spec.gpus[3].geometry == 0


def test_profiles_follow_the_mig_mode(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    assert card(agent.sample(), 0).mig is False
    node.say("gpu 0", "mig on", f"instance 1 19 0 0 {machines.mig_uuid(0, 1)}")
    report = agent.sample()
    assert (card(report, 0).mig, len(card(report, 0).instances)) == (True, 1)


def test_xids_are_told_once_and_by_their_card(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    agent.sample()
    node.say("gpu 2", "xid 1 94", "xid 2 31", "gpu 3", "xid 3 31", "gpu 0", "xid 4 79")
    report = agent.sample()
    assert [(one.code, one.severity, one.count) for one in card(report, 2).health.xids] == [
        (94, "transient", 1)
    ]
    assert [(one.code, one.severity) for one in card(report, 0).health.xids] == [(79, "fatal")]
    assert healthy(report) == [False, True, False, True]
    assert card(agent.sample(), 2).health.xids[0].count == 1
    node.clock += HOLD_DOWN
    # The driver of this tray can say what a card needs, and says nothing: that is the proof.
    assert healthy(agent.sample()) == [True] * 4


def test_a_refused_watch_for_xids_is_said_and_tried_again(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    agent = node.agent()
    node.say("fault nvmlDeviceRegisterEvents unknown 2")
    assert card(agent.sample(), 2).unreadable[0].what == "xids"
    assert card(agent.sample(), 2).unreadable[0].what == "xids"
    node.say()
    assert card(agent.sample(), 2).unreadable == []


def test_what_is_no_text_is_refused(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    node.say("gpu 1", "name caf\udce9")
    report = node.agent().sample()
    assert [(one.what, one.why) for one in card(report, 1).unreadable] == [
        ("model", "what the driver says is no text")
    ]


def test_the_state_of_a_card_is_read_whole(node: Node) -> None:
    node.is_a(machines.gb200_tray)
    node.say(
        "gpu 0",
        "ecc 7 1",
        "rows 1 2 1 0",
        "retired 3 4 1",
        "throttle 0x48",
        "recovery 1",
        "gpu 1",
        "rows 0 0 0 1",
    )
    report = node.agent().sample()
    health = card(report, 0).health
    assert health.ecc is not None
    assert (health.ecc.corrected, health.ecc.uncorrected) == (7, 1)
    assert health.remapped_rows is not None
    assert (health.remapped_rows.corrected, health.remapped_rows.uncorrected) == (1, 2)
    assert (health.remapped_rows.pending, health.remapped_rows.failed) == (True, False)
    assert health.retired_pages is not None
    assert (health.retired_pages.single_bit, health.retired_pages.double_bit) == (3, 4)
    assert health.retired_pages.pending
    assert health.throttling == ["hardware slowdown", "thermal, hardware"]
    assert health.why == ["The driver asks for reset."]
    assert card(report, 1).health.why == ["It has no spare rows left for bad memory."]
