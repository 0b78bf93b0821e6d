"""Who has what, who is over, who has too little, and who waits for what: what the planner knows, as tables.

Reading changes nothing but that entitlements are those of the moment that is asked about.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice

from extender.cluster.snapshot import Snapshot
from extender.decide.plan import Planner
from extender.decide.pools import Pool
from extender.decide.room import Shape
from extender.decide.waiter import Waiter
from extender.decide.waits import waits_for
from extender.fairness.depth import Queue
from extender.fairness.entitlement import ROUNDING, drift, fairness_score
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Ledger
from extender.fairness.line import Group, Line
from extender.fairness.record import Fairness
from extender.wire.shares import Condition, Lines, PoolLine, PoolShares, Shares, TenantShares, Waiting

ACCEPTED, CONFLICT, MINIMA_CUT = "Accepted", "Conflict", "MinimaCut"


def shares_of(planner: Planner, snapshot: Snapshot, fairness: Fairness, now: float) -> Shares:
    """All pools with all that is known of them; `now` is in seconds of the planner's clock."""
    conflicts = planner.pools.conflicts(snapshot)
    pools = tables_of(planner, fairness, now)
    for pool in pools:
        pool.conditions = conditions_of(planner.pools.by_name[pool.policy].ledger, conflicts)
    outside = sum(waiter.pool is None for waiter in planner.waiters.values())
    return Shares(pools, outside)


def shares_of_tenant(shares: Shares, tenant: str) -> Shares:
    """The same of one tenant alone, without pools that do not have it. Raises KeyError when none has."""
    pools = [
        PoolShares(pool.policy, pool.capacity, pool.in_use, pool.waiting, rows, pool.conditions)
        for pool in shares.pools
        if (rows := [row for row in pool.tenants if row.name == tenant])
    ]
    if not pools:
        raise KeyError(tenant)
    return Shares(pools)


@dataclass(slots=True)
class _Queue:
    pods: int = 0
    longest: float = 0.0


def tables_of(planner: Planner, fairness: Fairness, now: float) -> list[PoolShares]:
    """The numbers of all pools, without conditions."""
    queues: defaultdict[tuple[str | None, str], _Queue] = defaultdict(_Queue)
    for waiter in planner.waiters.values():
        queue = queues[waiter.pool, waiter.tenant]
        queue.pods += 1
        if now - waiter.since > queue.longest:
            queue.longest = now - waiter.since
    return [_table(pool, queues, fairness, now) for pool in planner.pools.by_name.values()]


def _table(
    pool: Pool, queues: Mapping[tuple[str | None, str], _Queue], fairness: Fairness, now: float
) -> PoolShares:
    ledger, policy = pool.ledger, pool.policy
    waiting = {tenant: pool.line.units(tenant) for tenant in pool.line.tenants()}
    ledger.entitle(waiting, now)
    whole = ledger.in_whole_gpus(waiting, now)
    rows = []
    for tenant in policy.tenants:
        name = tenant.name
        used, entitled = ledger.account(name).used / MICRO, ledger.entitlements[name] / MICRO
        least = ledger.least(name) / MICRO
        apart = drift(used, entitled)
        tally = fairness.tally(Queue(policy.name, name))
        queue = queues.get((policy.name, name), _Queue())
        rows.append(
            TenantShares(
                name=name,
                min=least,
                max=min(ledger.most(name), ledger.capacity) / MICRO,
                weight=tenant.weight,
                entitlement=entitled,
                whole=whole[name],
                in_use=used,
                borrowed=max(0.0, used - least),
                decayed_use=ledger.usage.of(name, now),
                drift=apart if apart < float("inf") else None,
                score=fairness_score(used, entitled),
                waiting=queue.pods,
                longest_wait=queue.longest,
                evictions=tally.evictions,
                short_seconds=tally.short_seconds,
            )
        )
    guests = queues.get((policy.name, FREE_FOR_ALL), _Queue())
    free = ledger.account(FREE_FOR_ALL).used / MICRO
    if free or guests.pods:
        rows.append(
            _row_of_no_tenant(
                ledger, free, guests, fairness.tally(Queue(policy.name, FREE_FOR_ALL)).evictions
            )
        )
    return PoolShares(
        policy=policy.name,
        capacity=ledger.capacity / MICRO,
        in_use=sum(row.in_use for row in rows),
        waiting=sum(row.waiting for row in rows),
        tenants=rows,
        conditions=[],
    )


def _row_of_no_tenant(ledger: Ledger, used: float, queue: _Queue, evictions: int) -> TenantShares:
    return TenantShares(
        name=FREE_FOR_ALL,
        min=0.0,
        max=min(ledger.most(FREE_FOR_ALL), ledger.capacity) / MICRO,
        weight=0.0,
        entitlement=0.0,
        whole=0,
        in_use=used,
        borrowed=used,
        decayed_use=0.0,
        drift=None,
        score=None,
        waiting=queue.pods,
        longest_wait=queue.longest,
        evictions=evictions,
        short_seconds=0.0,
    )


def conditions_of(ledger: Ledger, conflicts: Mapping[str, str]) -> list[Condition]:
    """What holds of a policy that could be read; `conflicts` are sentences by policy."""
    policy = ledger.policy
    told = conflicts.get(policy.name, "")
    minima = sum(ledger.least(tenant.name) for tenant in policy.tenants)
    cut = minima > ledger.capacity * (1 + ROUNDING)
    short = (
        f"The minima add up to {minima / MICRO:g} GPUs and the pool has {ledger.capacity / MICRO:g}: while all "
        "ask for theirs, each gets the same part of it."
    )
    return [
        Condition(ACCEPTED, True, "Read"),
        Condition(CONFLICT, bool(told), "ClaimedTwice" if told else "NoneFound", told),
        Condition(MINIMA_CUT, cut, "PoolTooSmall" if cut else "PoolLargeEnough", short if cut else ""),
    ]


# who waits


def lines_of(planner: Planner, snapshot: Snapshot, now: float, most: int) -> Lines:
    """The lines of all pools, at most `most` pods of each: those on their way, then in turn, then those out of line."""
    apart: dict[str | None, list[Waiter]] = {}
    for uid, waiter in planner.waiters.items():
        if uid not in _line(planner, waiter):
            apart.setdefault(waiter.pool, []).append(waiter)
    found: list[PoolLine] = []
    for pool in (*planner.pools.by_name.values(), None):
        line = pool.line if pool is not None else planner.pools.guests
        others = sorted(apart.get(pool.policy.name if pool else None, ()), key=lambda each: each.since)
        order = chain(
            ((0, each) for each in others if each.node is not None),
            enumerate((planner.waiters[uid] for uid in in_turn(line, pool)), 1),
            ((0, each) for each in others if each.node is None),
        )
        pods = [_waiting(planner, snapshot, each, place, now) for place, each in islice(order, most)]
        if pool is not None or pods:
            more = len(line) + len(others) - len(pods)
            found.append(PoolLine(pool.policy.name if pool else "", pods, more))
    return Lines(found)


def in_turn(line: Line[Shape], pool: Pool | None) -> Iterator[str]:
    """Uids in the order in which they would get their turn if all fitted."""
    used = dict(pool.ledger.used()) if pool is not None else {}

    def turn(tenant: str) -> tuple[float, ...]:
        return pool.ledger.turn(tenant, used.get(tenant, 0)) if pool is not None else ()

    queues = {tenant: line.ordered(tenant) for tenant in line.tenants()}
    turns = [(turn(tenant), tenant) for tenant in queues]
    heapify(turns)
    while turns:
        tenant = turns[0][1]
        found = next(queues[tenant], None)
        if found is None:
            heappop(turns)
            continue
        group, stand = found
        yield stand.uid
        used[tenant] = used.get(tenant, 0) + group.units
        heapreplace(turns, (turn(tenant), tenant))


def _line(planner: Planner, waiter: Waiter) -> Line[Shape]:
    pool = planner.pools.of(waiter.pool)
    return pool.line if pool is not None else planner.pools.guests


def _waiting(planner: Planner, snapshot: Snapshot, waiter: Waiter, place: int, now: float) -> Waiting:
    uid = waiter.ref.uid
    pool, line = planner.pools.of(waiter.pool), _line(planner, waiter)
    reason, why = waits_for(snapshot, waiter, pool, line, planner.claims.rests(uid), now)
    return Waiting(
        place=place,
        namespace=waiter.ref.namespace,
        pod=waiter.ref.name,
        tenant=waiter.tenant,
        gpus=_gpus(line.group_of(uid), waiter),
        priority=waiter.priority,
        waited=max(0.0, now - waiter.since),
        state="gated" if waiter.gated else "released" if waiter.node is not None else "loose",
        waits_for=reason.value,
        why=why,
        node=waiter.node,
    )


def _gpus(group: Group[Shape] | None, waiter: Waiter) -> float:
    """What the pod will be charged; out of line, the number of devices that it names."""
    if group is not None:
        return group.units / MICRO
    return float(sum(count for _, count in waiter.shape.request.devices)) if waiter.shape else 0.0
