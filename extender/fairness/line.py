"""The waiting line of one pool: who is next, and who is ahead of whom.

Pods that are alike (same tenant, shape, priority, and whether they may be evicted) stand in one group, oldest first,
so that what is learned of one holds for all. Inside a tenant priority decides, then age; between tenants their turn,
which the ledger tells.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Stand(NamedTuple):
    """Where a pod stands inside its tenant: compares as the line goes.

    `priority` is negated, `created` is in seconds of the wall clock; the uid decides between pods of one second, so
    that the order is the same after a restart.
    """

    priority: int
    created: float
    uid: str


@dataclass(slots=True, eq=False)
class Group(Generic[S]):
    """Pods that are alike. `units`: what one of them will be charged; `asked`: when others last could not make room."""

    tenant: str
    shape: S
    priority: int
    preemptible: bool
    units: int
    pods: list[tuple[float, str]] = field(default_factory=list)
    asked: float = -math.inf

    @property
    def head(self) -> Stand:
        """The pod that has waited longest. Raises IndexError when none waits."""
        return Stand(-self.priority, *self.pods[0])


class Line(Generic[S]):
    """Tenants are names, units are whole numbers."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[S, int, bool], Group[S]]] = {}
        self._at: dict[str, tuple[Group[S], float]] = {}
        self._units: dict[str, int] = {}
        self._by_shape: dict[S, list[Group[S]]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, uid: str) -> bool:
        return uid in self._at

    def add(
        self, uid: str, *, tenant: str, shape: S, priority: int, preemptible: bool, units: int, created: float
    ) -> None:
        """The pod stands in line now; `units` counts for a new group only. Nothing happens if it does already."""
        if uid in self._at:
            return
        groups = self._groups.setdefault(tenant, {})
        key = (shape, priority, preemptible)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(tenant, shape, priority, preemptible, units)
            self._by_shape.setdefault(shape, []).append(group)
        insort(group.pods, (created, uid))
        self._at[uid] = (group, created)
        self._units[tenant] = self._units.get(tenant, 0) + group.units

    def remove(self, uid: str) -> Group[S] | None:
        """The group that it stood in, None if it did not."""
        found = self._at.pop(uid, None)
        if found is None:
            return None
        group, created = found
        del group.pods[bisect_left(group.pods, (created, uid))]
        self._units[group.tenant] -= group.units
        if not group.pods:
            groups = self._groups[group.tenant]
            del groups[group.shape, group.priority, group.preemptible]
            alike = self._by_shape[group.shape]
            alike.remove(group)
            if not alike:
                del self._by_shape[group.shape]
            if not groups:
                del self._groups[group.tenant], self._units[group.tenant]
        return group

    def reckon(self, group: Group[S], units: int) -> None:
        """One pod of the group will be charged that much."""
        if group.pods:
            self._units[group.tenant] += (units - group.units) * len(group.pods)
        group.units = units

    def group_of(self, uid: str) -> Group[S] | None:
        found = self._at.get(uid)
        return found[0] if found else None

    def tenants(self) -> list[str]:
        """Those who have pods in line."""
        return list(self._groups)

    def groups(self, tenant: str) -> list[Group[S]]:
        return list(self._groups.get(tenant, {}).values())

    def shapes(self) -> list[S]:
        """Those that pods in line have."""
        return list(self._by_shape)

    def alike(self, shape: S) -> list[Group[S]]:
        """The groups of one shape."""
        return list(self._by_shape.get(shape, ()))

    def all_groups(self) -> Iterator[Group[S]]:
        for groups in self._groups.values():
            yield from groups.values()

    def units(self, tenant: str) -> int:
        """What all that waits of the tenant will be charged."""
        return self._units.get(tenant, 0)

    def count(self, tenant: str) -> int:
        return sum(len(group.pods) for group in self._groups.get(tenant, {}).values())

    def before(self, stand: Stand, tenant: str) -> tuple[int, int]:
        """(pods, units) of the tenant's own that stand before it."""
        pods = units = 0
        for group in self._groups.get(tenant, {}).values():
            if -group.priority < stand.priority:
                many = len(group.pods)
            elif -group.priority == stand.priority:
                many = bisect_left(group.pods, (stand.created, stand.uid))
            else:
                continue
            pods, units = pods + many, units + many * group.units
        return pods, units

    def stand_of(self, uid: str) -> Stand:
        """Raises KeyError when the pod is not in line."""
        group, created = self._at[uid]
        return Stand(-group.priority, created, uid)

    def place_of(self, uid: str) -> int:
        """Its place among its tenant's pods, from 1. Raises KeyError when the pod is not in line."""
        return self.before(self.stand_of(uid), self._at[uid][0].tenant)[0] + 1

    def ahead_of(
        self, uid: str, used: Mapping[str, int], turn: Callable[[str, int], tuple[float, object]]
    ) -> dict[str, int]:
        """How many pods of each tenant get their turn first, if all fit; those who have none are left out.

        `used` is what each tenant has now; `turn(tenant, used)` its turn when it has that much: the lowest is next,
        and it grows with what the tenant has. Raises KeyError when the pod is not in line.
        """
        own = self._at[uid][0].tenant
        stand = self.stand_of(uid)
        pods, units = self.before(stand, own)
        mine = turn(own, used.get(own, 0) + units)
        found = {own: pods} if pods else {}
        for tenant in self._groups:
            if tenant == own:
                continue
            has, many = used.get(tenant, 0), 0
            for group, _ in self.ordered(tenant):
                if turn(tenant, has) >= mine:
                    break
                has, many = has + group.units, many + 1
            if many:
                found[tenant] = many
        return found

    def ordered(self, tenant: str) -> Iterator[tuple[Group[S], Stand]]:
        """The tenant's pods in the order of the line."""
        groups = self._groups.get(tenant, {}).values()
        for stand, group in merge(*map(_stands, groups), key=lambda found: found[0]):
            yield group, stand


def _stands(group: Group[S]) -> Iterator[tuple[Stand, Group[S]]]:
    for pod in group.pods:
        yield Stand(-group.priority, *pod), group
