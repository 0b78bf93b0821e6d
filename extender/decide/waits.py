"""Why a pod waits: its place in line, who is ahead of it and why, and what it waits for; as data and in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from extender.cluster.snapshot import Snapshot
from extender.decide.bind import describe
from extender.decide.holds import missing
from extender.decide.pools import Pool
from extender.decide.room import Shape, first_home
from extender.decide.waiter import Waiter
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Ledger
from extender.fairness.line import Group, Line


class Reason(Enum):
    """What a pod waits for."""

    REQUEST = "request"
    """What it asks for cannot be read."""
    GATES = "gates"
    """Others gate it, too."""
    POLICY = "policy"
    """Nothing: kvitej does not plan it."""
    VICTIMS = "victims"
    """Pods that are to leave its seat."""
    SCHEDULER = "scheduler"
    """The scheduler, which may bind it now."""
    RETRY = "retry"
    """Its last try failed; another comes."""
    QUOTA = "quota"
    """Its tenant may not have more now."""
    HOLD = "hold"
    """A node that is kept free for it."""
    ROOM = "room"
    """No node has room for it."""
    TURN = "turn"
    """Its turn."""


@dataclass(frozen=True, slots=True)
class Wait:
    """`place` counts from 1 among its tenant's pods in line, 0 out of line; `ahead` counts pods by tenant.

    `node` is that of its claim or hold.
    """

    reason: Reason
    tenant: str
    place: int = 0
    ahead: Mapping[str, int] | None = None
    node: str | None = None
    sentences: tuple[str, ...] = ()


def explain_wait(
    snapshot: Snapshot, waiter: Waiter, pool: Pool | None, line: Line[Shape], rests: bool, now: float
) -> Wait:
    """What is known of the pod at this moment; `rests`: it is not tried for a while."""
    uid, tenant = waiter.ref.uid, waiter.tenant
    reason, why = waits_for(snapshot, waiter, pool, line, rests, now)
    if uid not in line:
        return _out(reason, waiter, why)
    place = line.place_of(uid)
    ahead = _ahead(uid, pool, line)
    node = pool.holds[uid].node if pool is not None and reason is Reason.HOLD else None
    stands = f"It is number {place} {_of(tenant)}in line."
    return Wait(reason, tenant, place, ahead, node, (stands, *_who(tenant, ahead, pool), why))


def standing(waiter: Waiter, line: Line[Shape]) -> str:
    """In few words and little time, why a pod that is past its gate gets no seat yet."""
    if waiter.ref.uid in line:
        return f"kvitej: number {line.place_of(waiter.ref.uid)} {_of(waiter.tenant)}in line for its turn"
    return f"kvitej: not in line now ({waiter.trouble or 'its request cannot be read, or others gate it'})"


def _out(reason: Reason, waiter: Waiter, told: str) -> Wait:
    return Wait(reason, waiter.tenant, node=waiter.node, sentences=(told,))


def _ahead(uid: str, pool: Pool | None, line: Line[Shape]) -> dict[str, int]:
    if pool is None:
        return {FREE_FOR_ALL: line.place_of(uid) - 1} if line.place_of(uid) > 1 else {}
    return line.ahead_of(uid, pool.ledger.used(), pool.ledger.turn)


def _who(tenant: str, ahead: Mapping[str, int], pool: Pool | None) -> list[str]:
    found = []
    for other, many in sorted(ahead.items(), key=lambda each: (-each[1], each[0])):
        pods = _count(many, "pod")
        if other == tenant:
            found.append(f"{pods} {_of(other)}of higher priority or age {_are(many)} ahead of it.")
        elif pool is not None:
            entitled = pool.ledger.entitlements.get(other, 0.0)
            has = pool.ledger.account(other).used
            found.append(
                f"{pods} {_of(other)}{_are(many)} ahead of it: it has {_gpus(has)} of the {_gpus(entitled)} GPUs "
                "that it is entitled to."
            )
    return found


def waits_for(
    snapshot: Snapshot, waiter: Waiter, pool: Pool | None, line: Line[Shape], rests: bool, now: float
) -> tuple[Reason, str]:
    """What the pod waits for, and the same in words."""
    if waiter.shape is None:
        return Reason.REQUEST, "What the pod asks for cannot be read, so it gets no seat."
    if waiter.node is not None:
        if waiter.victims:
            many = f"{_count(len(waiter.victims), 'pod')} {'has' if len(waiter.victims) == 1 else 'have'}"
            return Reason.VICTIMS, f"A seat on {waiter.node} is kept for it until {many} left."
        if waiter.clearing:
            told = (
                f"A seat on {waiter.node} is kept for it; the pods that made room are gone, "
                "and the node has not reported yet that it is free."
            )
            return Reason.VICTIMS, told
        told = f"A seat on {waiter.node} is kept for it; the scheduler may bind it now."
        return Reason.SCHEDULER, told
    if waiter.look.gates:
        return Reason.GATES, f"It gets no seat while others gate it: {', '.join(waiter.look.gates)}."
    if rests:
        seconds = max(0.0, waiter.rests_until - now)
        told = f"Its last try came to nothing ({waiter.trouble}); it is tried again in {seconds:.0f} s."
        return Reason.RETRY, told
    group = line.group_of(waiter.ref.uid)
    if group is None:
        return Reason.POLICY, "No policy covers it and nothing gates it: it is the scheduler's."
    return _blocked(snapshot, waiter.ref.uid, waiter, pool, group)


def _blocked(
    snapshot: Snapshot, uid: str, waiter: Waiter, pool: Pool | None, group: Group[Shape]
) -> tuple[Reason, str]:
    asks = describe(group.shape.request)
    if pool is not None:
        ledger = pool.ledger
        if group.units > ledger.allowance(waiter.tenant, waiter.preemptible):
            if _is_crowded_out(ledger, waiter.tenant, group.units):
                return (
                    Reason.ROOM,
                    "It waits for room: others have the rest of the pool, and may not be evicted.",
                )
            return Reason.QUOTA, _quota(ledger, waiter, group.units)
        hold = pool.holds.get(uid)
        if hold is not None:
            lacking = missing(snapshot, group.shape.request, hold.node)
            return Reason.HOLD, (
                f"Node {hold.node} is kept free for it; {_count(lacking, 'GPU')} still to be freed there."
            )
    if not _is_full(group.shape):
        return Reason.TURN, "It waits for its turn."
    if first_home(snapshot, group.shape) is None:
        return Reason.ROOM, f"No node that it may use would have {asks} for it even when empty."
    return Reason.ROOM, f"It waits for room: no node that it may use has {asks} free now."


def _is_crowded_out(ledger: Ledger, tenant: str, units: int) -> bool:
    """Whether its maximum and all minima would let the tenant have as much, if others had no more than their minima."""
    has = ledger.account(tenant).used + units
    promised = sum(ledger.least(other.name) for other in ledger.policy.tenants if other.name != tenant)
    return has <= min(ledger.most(tenant), ledger.capacity - promised)


def _is_full(shape: Shape) -> bool:
    """Whether it was found to fit nowhere."""
    return shape.tried >= 0


def _quota(ledger: Ledger, waiter: Waiter, units: int) -> str:
    tenant = waiter.tenant
    has, bound = ledger.account(tenant).used, ledger.bound(tenant, waiter.preemptible)
    told = f"With {_gpus(units)} more it would have too much: {_whose(tenant)} has {_gpus(has)} GPUs"
    if bound < ledger.most(tenant):
        return f"{told}, and what is above {_gpus(bound)} is kept for the minima of others, who could not get it back."
    return f"{told} and may have {_gpus(bound)}."


def _of(tenant: str) -> str:
    return f"of tenant {tenant} " if tenant != FREE_FOR_ALL else ""


def _whose(tenant: str) -> str:
    return f"tenant {tenant}" if tenant != FREE_FOR_ALL else "work of no tenant"


def _gpus(units: float) -> str:
    return f"{math.floor(units / MICRO * 100 + 0.5) / 100:g}"


def _are(many: int) -> str:
    return "is" if many == 1 else "are"


def _count(many: int, noun: str) -> str:
    return f"{many} {noun}{'' if many == 1 else 's'}"
