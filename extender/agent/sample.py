"""What one look at the driver found, before anything is made of it: `nvml` → `report`."""

from __future__ import annotations

from dataclasses import dataclass, field

from extender.wire.gpunode import (
    ECC,
    GPU,
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

NO_GPU = frozenset({"NoLibrary", "NoDriver", "NoGPU"})
"""Reasons of a `Problem` that mean that there is no card to report, rather than that it can't be looked at."""


@dataclass(slots=True)
class Card:
    """One card. `lost` is a sentence where the driver can't reach it; then only `gpu` and `profiles` hold.

    `profiles` are those of MIG. `unreadable` leaves out what this kind of card does not have. `processes` have no
    pods yet.
    """

    gpu: GPU
    profiles: list[Profile] = field(default_factory=list)
    lost: str | None = None
    memory: Memory | None = None
    processes: list[Process] | None = None
    mig: bool | None = None
    instances: list[Instance] = field(default_factory=list)
    ecc: ECC | None = None
    retired_pages: RetiredPages | None = None
    remapped_rows: RemappedRows | None = None
    throttling: list[str] = field(default_factory=list)
    recovery: str | None = None
    xids: list[int] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


@dataclass(slots=True)
class Sample:
    """One node at `when`, in seconds since 1970; `links` are among the cards' indices."""

    when: float
    driver: str = ""
    cards: list[Card] = field(default_factory=list)
    links: Links | None = None
    problem: Problem | None = None
