"""What a policy's status keeps, and how a planner carries on from it after a restart.

Decayed use is written every 30 s and on stop, with the time for which it holds, and beside it when the evictions of
the last hour were, of tenants that may lose only some per hour. What came and went unseen since then is lost; pods that
live tell by the time of their Bind what they have used, so no more than that is off.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from extender.cluster.snapshot import Snapshot
from extender.decide.plan import Planner
from extender.decide.report import ACCEPTED, shares_of
from extender.fairness.depth import Queue
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Ledger
from extender.fairness.record import Fairness
from extender.fairness.usage import Running, Saved, Usage, saved_in, timestamp, wall_of
from extender.wire.policy import PolicyCondition, PolicyStatus, TenantStatus
from extender.wire.shares import Condition

Status = Mapping[str, Any]
"""As the API server has it, decoded from JSON."""


def status_of(
    planner: Planner,
    snapshot: Snapshot,
    fairness: Fairness,
    had: Mapping[str, Status],
    *,
    wall: float,
    now: float,
) -> dict[str, dict[str, Any]]:
    """The status of each policy, to be merged into what it `had`, by the policy's name.

    `now` is in seconds of the planner's clock, `wall` the same moment in seconds since 1970.
    """
    found = {}
    for pool in shares_of(planner, snapshot, fairness, now).pools:
        ledger = planner.pools.by_name[pool.policy].ledger
        used = ledger.usage.save(wall=wall, now=now).used
        generation = ledger.policy.generation
        status = PolicyStatus(
            observed_generation=generation,
            conditions=_conditions(pool.conditions, had.get(pool.policy, {}), generation, wall),
            capacity=pool.capacity,
            in_use=pool.in_use,
            waiting=pool.waiting,
            decayed_at=timestamp(wall),
            tenants=[
                TenantStatus(
                    name=tenant.name,
                    entitlement=tenant.entitlement,
                    in_use=tenant.in_use,
                    borrowed=tenant.borrowed,
                    decayed_use=used[tenant.name],
                    waiting=tenant.waiting,
                    longest_wait=tenant.longest_wait,
                    evictions=tenant.evictions,
                    evicted_at=_evicted(ledger, tenant.name, wall, now),
                )
                for tenant in pool.tenants
                if tenant.name != FREE_FOR_ALL
            ],
        )
        found[pool.policy] = msgspec.to_builtins(status)
    return found


def _evicted(ledger: Ledger, name: str, wall: float, now: float) -> list[str]:
    tenant = ledger.policy.tenant(name)
    if tenant is None or tenant.evictions_per_hour is None:
        return []
    return [timestamp(wall - (now - at)) for at in ledger.evictions(name, now)]


def status_refused(reason: str, generation: int, had: Status, *, wall: float) -> dict[str, Any]:
    """The status of a policy that cannot be taken as meant; what is remembered of its tenants stays."""
    conditions = _conditions([Condition(ACCEPTED, False, "Unreadable", reason)], had, generation, wall)
    return {"observedGeneration": generation, "conditions": msgspec.to_builtins(conditions)}


def _conditions(
    conditions: list[Condition], had: Status, generation: int, wall: float
) -> list[PolicyCondition]:
    """As the API server wants them: with the time at which each became what it is."""
    before = {}
    for each in had.get("conditions") or ():
        before[each.get("type")] = (each.get("status"), each.get("lastTransitionTime"))
    found = []
    for condition in conditions:
        status = "True" if condition.status else "False"
        was, since = before.get(condition.type, (None, None))
        found.append(
            PolicyCondition(
                type=condition.type,
                status=status,
                reason=condition.reason,
                message=condition.message,
                last_transition_time=since if was == status and since else timestamp(wall),
                observed_generation=generation,
            )
        )
    return found


def restore(
    planner: Planner,
    snapshot: Snapshot,
    fairness: Fairness,
    statuses: Mapping[str, Status],
    bound: Mapping[str, float],
    *,
    wall: float,
    now: float,
) -> list[str]:
    """Let the planner begin with the decayed use that policies' statuses keep; gives sentences on what cannot be read.

    To be called once the book is complete and the planner knows policies and namespaces, before it begins. `bound` is
    the wall time at which each pod with a seat was bound, by uid; one that is not told was there when the status was
    written. A status that cannot be read is left alone, and use is reckoned from the pods that run.
    """
    pools = planner.pools
    for inventory in snapshot.inventories.values():
        pools.node(inventory)
    running: dict[str, list[tuple[str, str, float]]] = {name: [] for name in pools.by_name}
    for uid, seat in snapshot.seats.items():
        entry, pool = pools.entry_of(snapshot, seat), pools.of_node(seat.node)
        if entry is not None and pool is not None and not entry.released and entry.tenant != FREE_FOR_ALL:
            running[pool.policy.name].append((uid, entry.tenant, entry.units / MICRO))
    complaints = []
    for name, pool in pools.by_name.items():
        saved: Saved | None = None
        evictions: dict[str, _Evictions] = {}
        try:
            saved, evictions = _read(statuses.get(name, {}))
        except ValueError as error:
            complaints.append(
                f"The status of FairnessPolicy {name} cannot be read ({error}): decayed use is reckoned from the "
                "pods that run."
            )
        unknown = saved.at if saved else wall
        pool.ledger.usage = Usage.restored(
            {tenant.name: tenant.half_life for tenant in pool.policy.tenants},
            saved,
            [Running(tenant, units, bound.get(uid, unknown)) for uid, tenant, units in running[name]],
            wall=wall,
            now=now,
        )
        for tenant, (many, at) in evictions.items():
            if pool.policy.tenant(tenant) is None:
                continue
            if many:
                fairness.evicted(Queue(name, tenant), many)
            for moment in at:
                # One that a clock set back has put into the future was just now.
                pool.ledger.evicted(tenant, now - max(0.0, wall - moment))
    return complaints


class _Evictions(NamedTuple):
    """How many ever, and when those of the last hour were, by the wall clock."""

    many: int
    at: tuple[float, ...]


def _read(status: Status) -> tuple[Saved | None, dict[str, _Evictions]]:
    """Decayed use, and evictions by tenant. Raises ValueError."""
    read = msgspec.convert(status, PolicyStatus)
    evictions = {
        tenant.name: _Evictions(tenant.evictions, tuple(map(wall_of, tenant.evicted_at)))
        for tenant in read.tenants or ()
    }
    return saved_in(read), evictions
