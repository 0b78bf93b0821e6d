"""What is worth writing: nothing that decides is missed, and noise is not written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extender.agent.report import STEPS, changed, report
from extender.agent.sample import Card, Sample
from extender.wire.gpunode import (
    ECC,
    GPU,
    GPUNode,
    Instance,
    Links,
    Memory,
    Problem,
    Process,
    Profile,
    RemappedRows,
    RetiredPages,
    Unreadable,
)

NOW = 1_800_000_000.0
TOTAL = 80_000
STEP = TOTAL // STEPS
PODS = {1: "a", 2: "a", 3: "b"}


def look(used: int = 0, change: Callable[[Card], None] = lambda card: None, **sample: object) -> GPUNode:
    card = Card(
        GPU("GPU-1", 0, "card"),
        [Profile(19, "1g.10gb", 1, 100, 7, 1, [0, 1])],
        memory=Memory(TOTAL, used, 500),
        processes=[Process(1, 100), Process(9, 100)],
        mig=True,
        instances=[Instance(3, 19, "1g.10gb", 0, 1, ["MIG-1"], Memory(TOTAL, 0, 0))],
        ecc=ECC(0, 0),
        retired_pages=RetiredPages(0, 0, False),
        remapped_rows=RemappedRows(0, 0, False, False),
        recovery="none",
    )
    change(card)
    whole = Sample(NOW, "1.0", [card], Links([0], ["X"]))
    for name, value in sample.items():
        setattr(whole, name, value)
    return report(whole, "n", "boot", None, PODS.get, {})


def test_the_first_report_is_written() -> None:
    assert changed(None, look())


def test_the_same_again_is_not_written_nor_is_a_later_time() -> None:
    assert not changed(look(), look())
    assert not changed(look(), look(when=NOW + 5))


@given(st.lists(st.integers(0, TOTAL), min_size=1, max_size=40))
def test_what_is_used_is_never_more_than_written_and_slack(uses: list[int]) -> None:
    written = look(uses[0])
    for used in uses:
        now = look(used)
        if changed(written, now):
            written = now
        assert written.status is not None
        memory = written.status.gpus[0].memory
        assert memory is not None
        assert used < memory.used + memory.slack
        assert used > memory.used - 2 * memory.slack


def test_a_use_that_swings_is_written_once() -> None:
    written, writes = look(40_000), 0
    for turn in range(100):
        now = look(40_000 + STEP * (turn % 2) + turn % 7)
        if changed(written, now):
            written, writes = now, writes + 1
    assert writes == 1


def test_that_a_card_has_come_free_is_written_however_little_was_there() -> None:
    little = STEP // 4
    for left in ([], [Process(9, STEP // 20)]):
        before = look(little, _set(memory=Memory(TOTAL, 0, 500), processes=[Process(9, little)]))
        assert changed(before, look(0, _set(processes=left)))
    assert changed(look(little), look(STEP // 20))
    assert not changed(look(little), look(STEP // 8))
    assert not changed(look(STEP // 6), look(0))


def _set(**values: object) -> Callable[[Card], None]:
    def change(card: Card) -> None:
        for name, value in values.items():
            setattr(card, name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(lost="Gone."),
        _set(memory=None),
        _set(memory=Memory(TOTAL, 0)),
        _set(memory=Memory(TOTAL // 2, 0, 500)),
        _set(processes=None),
        _set(processes=[Process(9, 100)]),
        _set(processes=[Process(1, 100), Process(3, 100), Process(9, 100)]),
        _set(processes=[Process(1, 100), Process(9, 100 + STEP)]),
        _set(processes=[Process(1, 100), Process(9, None)]),
        _set(processes=[Process(1, 100, instance=3), Process(9, 100)]),
        _set(processes=[Process(1, 100, mps=True), Process(9, 100)]),
        _set(mig=False, instances=[]),
        _set(instances=[]),
        _set(instances=[Instance(3, 19, "1g.10gb", 1, 1, ["MIG-1"], Memory(TOTAL, 0, 0))]),
        _set(instances=[Instance(3, 19, "1g.10gb", 0, 1, ["MIG-1"], Memory(TOTAL, STEP, 0))]),
        _set(ecc=ECC(0, 1)),
        _set(retired_pages=RetiredPages(0, 0, True)),
        _set(remapped_rows=RemappedRows(0, 0, True, False)),
        _set(remapped_rows=RemappedRows(0, 0, False, True)),
        _set(throttling=["thermal, hardware"]),
        _set(recovery="reset"),
        _set(xids=[63]),
        _set(unreadable=[Unreadable("processes", "no")]),
        _set(profiles=[]),
        _set(gpu=GPU("GPU-1", 0, "another")),
    ],
)
def test_what_decides_is_written(change: Callable[[Card], None]) -> None:
    assert changed(look(), look(change=change))


@pytest.mark.parametrize(
    "change",
    [
        _set(processes=[Process(2, 100), Process(9, 100)]),
        _set(processes=[Process(1, 60), Process(2, 60), Process(9, 70), Process(10, 80)]),
        _set(ecc=ECC(5, 0)),
        _set(retired_pages=RetiredPages(1, 0, False)),
        _set(throttling=["thermal, software"]),
        _set(xids=[31]),
        _set(memory=Memory(TOTAL, STEP - 1, 500)),
        _set(memory=Memory(TOTAL, 0, 501)),
    ],
)
def test_what_does_not_decide_is_not(change: Callable[[Card], None]) -> None:
    assert not changed(look(), look(change=change))


def test_the_node_itself_decides_too() -> None:
    assert changed(look(), look(problem=Problem("DriverHangs", "It does.")))
    assert changed(look(), look(driver="2.0"))
    assert changed(look(), look(links=None))
    assert changed(look(), look(cards=[]))
    old = look()
    assert old.status is not None
    assert changed(structs.replace(old, status=structs.replace(old.status, agent="0")), look())
    assert changed(structs.replace(old, status=None), look())


def _of(*uuids: str, lost: str | None = None) -> Sample:
    cards = [
        Card(GPU(uuid, index), memory=Memory(1, 0, 0), lost=None if uuid else lost)
        for index, uuid in enumerate(uuids)
    ]
    rows = [" ".join("X" if i == j else "SYS" for j in range(len(uuids))) for i in range(len(uuids))]
    return Sample(NOW, "1", cards, Links(list(range(len(uuids))), rows))


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=5).map(
        lambda uuids: [u for i, u in enumerate(uuids) if not u or u not in uuids[:i]]
    )
)
def test_a_card_that_was_here_stays_under_its_index(now: list[str]) -> None:
    before = report(_of("a", "b", "c"), "n", "boot", None, PODS.get, {})
    after = report(_of(*now, lost="Gone."), "n", "boot", before, PODS.get, {})
    assert after.status is not None
    indices = [gpu.index for gpu in after.spec.gpus]
    assert indices == sorted(set(indices)) == [status.index for status in after.status.gpus]
    known = {gpu.uuid: gpu.index for gpu in after.spec.gpus if gpu.uuid}
    assert {"a": 0, "b": 1, "c": 2}.items() <= known.items()
    assert {status.uuid for status in after.status.gpus if status.health.healthy} == set(now) - {""}
    if "d" not in now:
        assert after.spec.links == before.spec.links


def test_a_new_boot_begins_anew() -> None:
    before = report(_of("a", "b"), "n", "boot", None, PODS.get, {})
    after = report(_of("b"), "n", "next", before, PODS.get, {})
    assert [(gpu.uuid, gpu.index) for gpu in after.spec.gpus] == [("b", 0)]
    assert after.spec.links == Links([0], ["X"])
