"""Into which MIG instances one card can be cut: profiles, placements, and what of them can be there together.

A card's state is its occupancy, an int with a bit for each placement unit that an instance takes and one for each
thing that a card has only once, so that "can this be created" is one `&`. Geometries come from the table that we
ship (`geometry`) or from an agent's report; either is checked here, so that the kernels need not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

PREFIX = "nvidia.com/mig-"
MOST_BITS = 16
"""The kernels look a card up by its occupancy, and a table doubles with each bit."""
MOST_PROFILES = 64
MOST_LETTERS = 40

_NAME = re.compile(r"[1-9]\d?g\.\d{1,4}gb(?:[+-][a-z0-9]+(?:\.[a-z0-9]+)*)?", re.ASCII)


class GeometryError(ValueError):
    """A geometry that no card can have, or that the kernels cannot follow: a sentence with the way out."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to cut an instance out of a card: `size` units from one of `starts`, at most `most` of them.

    `starts` is empty where the placements are not known. `names` are what it is called, the current one first;
    `media` says that it takes media engines that only one instance of a card can have.
    """

    id: int | None
    names: tuple[str, ...]
    compute: int
    size: int
    starts: tuple[int, ...]
    most: int
    memory_gb: int = 0
    media: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """What a pod asks for to get one: under each name."""
        return tuple(resource_of(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's profiles on a card of `units` placement units (0: placements not known) and `compute` slices.

    Raises GeometryError when no card can be like that. Two instances can be on a card together exactly if their
    units are disjoint and neither takes what the card has once.
    """

    model: str
    compute: int
    units: int
    profiles: tuple[Profile, ...]

    def __post_init__(self) -> None:
        _check(self)

    def __hash__(self) -> int:
        return hash((self.model, self.units))  # cheap: the tables are looked up by it for every pod

    @property
    def bits(self) -> int:
        """Bits of an occupancy: the units, the lowest first, then the things that a card has once."""
        return self.units + len(set(self._once().values()))

    def placements(self, profile: int) -> dict[int, int]:
        """The bits that an instance of `profiles[profile]` takes, by its start."""
        chosen, once = self.profiles[profile], self._once()
        extra = 1 << self.units + once[profile] if profile in once else 0
        return {start: (1 << chosen.size) - 1 << start | extra for start in chosen.starts}

    def free_starts(self, occupancy: int, profile: int) -> list[int]:
        """Where another instance of the profile could be created."""
        return [start for start, bits in self.placements(profile).items() if not occupancy & bits]

    def occupancy(self, instances: Iterable[tuple[int, int]]) -> int:
        """The bits of the instances that exist, as (profile, start); GeometryError if they cannot exist together."""
        taken = 0
        for profile, start in instances:
            known = 0 <= profile < len(self.profiles)
            bits = self.placements(profile).get(start, 0) if known else 0
            name = self.profiles[profile].names[0] if known else f"profile {profile}"
            if not bits:
                raise GeometryError(
                    f"{self.model} has no {name} at start {start}; report what is on the card."
                )
            if taken & bits:
                raise GeometryError(
                    f"{name} at start {start} of {self.model} overlaps another instance of the card."
                )
            taken |= bits
        return taken

    def _once(self) -> dict[int, int]:
        """For the profiles that take something that a card has once: which of these things it is."""
        found: dict[int, int] = {}
        media = -1
        for index, profile in enumerate(self.profiles):
            if profile.media and profile.starts:
                media = media if media >= 0 else len(set(found.values()))
                found[index] = media
            elif profile.starts and profile.most == 1 < _disjoint(profile):
                found[index] = len(set(found.values()))
        return found


def _disjoint(profile: Profile) -> int:
    """How many instances of the profile fit on an empty card, if nothing else limits them."""
    count = end = 0
    for start in sorted(profile.starts):
        if start >= end:
            count, end = count + 1, start + profile.size
    return count


def _check(geometry: Geometry) -> None:
    def refuse(what: str) -> NoReturn:
        raise GeometryError(f"The MIG geometry of {geometry.model!r}: {what}.")

    units, profiles = geometry.units, geometry.profiles
    if not 0 <= units <= MOST_BITS:
        refuse(f"{units} placement units, but a card has from 1 to {MOST_BITS}")
    if not 1 <= geometry.compute <= MOST_BITS:
        refuse(f"{geometry.compute} compute slices, but a card has from 1 to {MOST_BITS}")
    if not 1 <= len(profiles) <= MOST_PROFILES:
        refuse(f"{len(profiles)} profiles, but a card has from 1 to {MOST_PROFILES}")
    for profile in profiles:
        name = profile.names[0] if profile.names else "a profile without a name"
        for each in profile.names or ("",):
            if len(each) > MOST_LETTERS or not _NAME.fullmatch(each):
                refuse(f"{each!r} is no profile name such as 1g.10gb or 1g.10gb+me")
        if not 1 <= profile.compute <= geometry.compute:
            refuse(
                f"{name} takes {profile.compute} compute slices, but the card has 1 to {geometry.compute} to give"
            )
        if profile.most < 1:
            refuse(f"a card holds {profile.most} of {name}; at least 1 is needed")
        if not units:
            if profile.starts or profile.size:
                refuse(f"{name} has placements, but the card has no placement units")
            continue
        if not profile.starts:
            refuse(f"{name} has no start; list where it can be placed")
        if profile.size < 1:
            refuse(f"{name} takes {profile.size} units; at least 1 is needed")
        for start in profile.starts:
            if not 0 <= start <= units - profile.size:
                refuse(
                    f"{name} takes {profile.size} units from {start} on, but the card has units 0 to {units - 1}"
                )
        fitting = _disjoint(profile)
        if not profile.media and 1 < profile.most < fitting:
            refuse(
                f"at most {profile.most} of {name} where {fitting} have room; only a limit of 1 can be followed"
            )
    keys: list[int | str] = [profile.id for profile in profiles if profile.id is not None]
    keys += [name for profile in profiles for name in profile.names]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        refuse(f"two profiles have the {'name' if isinstance(twice, str) else 'profile id'} {twice}")
    if units and geometry.bits > MOST_BITS:
        refuse(f"{units} units and {geometry.bits - units} limits of one are more than {MOST_BITS} together")
    if units and (most := _most_compute(geometry)) > geometry.compute:
        refuse(f"disjoint placements come to {most} compute slices, but the card has {geometry.compute}")


def _most_compute(geometry: Geometry) -> int:
    """Compute slices of the disjoint placements that have the most."""
    best = [0] * (geometry.units + 1)
    for unit in reversed(range(geometry.units)):
        here = [p.compute + best[unit + p.size] for p in geometry.profiles if unit in p.starts]
        best[unit] = max(best[unit + 1], *here) if here else best[unit + 1]
    return best[0]


def resource_of(name: str) -> str:
    """The resource that a profile's name is advertised as: `+` becomes `.` (k8s-device-plugin internal/rm/rm.go)."""
    return PREFIX + name.replace("+", ".")
