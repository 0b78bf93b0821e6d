"""May a card take new work: what the driver says of it, and how long trouble is remembered. Pure.

A card that is in trouble is unhealthy for as long as it is, and for `HOLD_DOWN` seconds after that. An Xid is an event,
not a state: a transient one is over when `HOLD_DOWN` has passed, a fatal one needs proof, which is that the driver can
say what a card needs and says nothing, or that the machine was started again. Xids that a program brings upon itself
say nothing about the card.
"""

from __future__ import annotations

from datetime import UTC, datetime

from extender.agent.sample import Card
from extender.wire.gpunode import Health, Xid

HOLD_DOWN = 300.0

# By NVIDIA's catalog of Xids. What is in neither set is transient, also what is not in the catalog.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
FATAL = frozenset({46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143})

_NAMES = {
    46: "the GPU stopped",
    48: "uncorrectable memory error",
    62: "the GPU's microcontroller halted",
    63: "rows are being remapped",
    64: "remapping of rows failed",
    74: "NVLink error",
    79: "the card fell off the bus",
    92: "many correctable memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's firmware does not answer",
    120: "error in the GPU's firmware",
    140: "uncorrectable memory error",
    143: "the GPU could not be initialised",
}


def judge(card: Card, before: Health | None, when: float) -> Health:
    """The health of a card at `when`, seconds since 1970; `before` is what was said of it last in the same boot."""
    xids = _xids(card, before, when)
    state = _state(card)
    fatal = [
        f"Xid {xid.code}: {_NAMES.get(xid.code, 'an error')}." for xid in xids if xid.severity == "fatal"
    ]
    hold = _seconds(before.hold_until) if before and before.hold_until else 0.0
    if state or any(_severity(code) for code in card.xids):
        hold = max(hold, when + HOLD_DOWN)
    holding = when < hold
    passing = [
        f"Xid {xid.code}: {_NAMES.get(xid.code, 'an error')}; it may be over."
        for xid in xids
        if xid.severity == "transient"
    ]
    why = (
        state
        + fatal
        + (passing or ["It was in trouble a short while ago."] if holding and not state + fatal else [])
    )
    return Health(
        healthy=not why,
        why=why,
        hold_until=stamp(hold) if holding else None,
        xids=xids,
        ecc=card.ecc,
        retired_pages=card.retired_pages,
        remapped_rows=card.remapped_rows,
        throttling=card.throttling,
        recovery=card.recovery,
    )


def stamp(when: float) -> str:
    """RFC 3339, to the second."""
    return datetime.fromtimestamp(int(when), UTC).isoformat().replace("+00:00", "Z")


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _severity(code: int) -> str | None:
    return None if code in OF_PROGRAMS else "fatal" if code in FATAL else "transient"


def _xids(card: Card, before: Health | None, when: float) -> list[Xid]:
    """Those that still count, by code."""
    proven = card.lost is None and card.recovery == "none"
    found = {
        xid.code: xid
        for xid in (before.xids if before else [])
        if when < _seconds(xid.last) + HOLD_DOWN or (xid.severity == "fatal" and not proven)
    }
    for code in card.xids:
        severity = _severity(code)
        if severity is not None:
            count = found[code].count if code in found else 0
            found[code] = Xid(code, severity, count + 1, stamp(when))
    return [found[code] for code in sorted(found)]


def _state(card: Card) -> list[str]:
    """What is wrong at this moment."""
    if card.lost is not None:
        return [card.lost]
    return [
        *(["The driver does not tell its memory."] if card.memory is None else []),
        *([f"The driver asks for {card.recovery}."] if card.recovery not in (None, "none") else []),
        *(
            ["It has no spare rows left for bad memory."]
            if card.remapped_rows and card.remapped_rows.failed
            else []
        ),
    ]
