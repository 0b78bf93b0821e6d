"""Trouble, what proves that it is over, and how long it is remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.agent.health import FATAL, HOLD_DOWN, OF_PROGRAMS, judge
from extender.agent.sample import Card
from extender.wire.gpunode import GPU, Health, Memory, RemappedRows

NOW = 1_800_000_000.0
FINE = Memory(80, 0, 0)


def card(
    *xids: int, lost: str | None = None, recovery: str | None = None, memory: Memory | None = FINE
) -> Card:
    return Card(GPU("GPU-1", 0), lost=lost, memory=memory, recovery=recovery, xids=list(xids))


def test_a_programs_own_fault_is_not_the_cards() -> None:
    assert judge(card(*OF_PROGRAMS), None, NOW) == Health(healthy=True)


def test_a_transient_error_is_over_when_nothing_more_comes() -> None:
    health = judge(card(63), None, NOW)
    assert (health.healthy, health.why) == (False, ["Xid 63: rows are being remapped; it may be over."])
    again = judge(card(63), health, NOW + 200)
    assert again.xids[0].count == 2
    assert not judge(card(), again, NOW + 200 + HOLD_DOWN - 1).healthy
    assert judge(card(), again, NOW + 200 + HOLD_DOWN) == Health(healthy=True)


def test_an_unknown_error_is_transient() -> None:
    assert judge(card(999), None, NOW).xids[0].severity == "transient"


@given(st.sampled_from(sorted(FATAL)), st.floats(HOLD_DOWN, 1e8))
def test_a_fatal_error_needs_proof(code: int, later: float) -> None:
    health = judge(card(code), None, NOW)
    # A driver that can't say what a card needs proves nothing, nor does a card that is not there.
    for still in (card(), card(lost="Gone."), card(recovery="reset")):
        assert not judge(still, health, NOW + later).healthy
    assert judge(card(recovery="none"), health, NOW + later).healthy
    assert not judge(card(recovery="none"), health, NOW + HOLD_DOWN / 2).healthy


def test_trouble_holds_on_after_it_has_passed() -> None:
    for trouble in (card(lost="Gone."), card(memory=None), card(recovery="reboot")):
        health = judge(trouble, None, NOW)
        assert not health.healthy
        after = judge(card(), health, NOW + 5)
        assert (after.healthy, after.why) == (False, ["It was in trouble a short while ago."])
        assert judge(card(), after, NOW + HOLD_DOWN).healthy


def test_rows_that_wait_for_a_reset_do_no_harm_but_a_card_without_spares_is_done() -> None:
    waiting, done = card(), card()
    waiting.remapped_rows = RemappedRows(0, 1, pending=True, failed=False)
    done.remapped_rows = RemappedRows(0, 9, pending=False, failed=True)
    assert judge(waiting, None, NOW).healthy
    assert not judge(done, None, NOW).healthy


def test_a_time_that_cannot_be_read_holds_nothing() -> None:
    assert judge(card(), Health(False, hold_until="soon"), NOW).healthy
