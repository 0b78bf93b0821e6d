"""Who has what and who waits, as JSON: the answers of `/shares` and `/line`, which `kvitej shares` reads, too.

Amounts are GPU units, times seconds. A tenant without a name stands for the pods of no tenant.
"""

from extender.wire.objects import Slim


class Condition(Slim):
    """`status`: whether what `type` says holds; `message` is a sentence, empty where there is nothing to say."""

    type: str
    status: bool
    reason: str
    message: str = ""


class TenantShares(Slim):
    """`borrowed` is what it has above its minimum, `decayed_use` what it has had of late.

    `whole` is the entitlement in whole GPUs, for people: those of all tenants add up. `drift` is (in use −
    entitlement) / entitlement, None for use where there is no entitlement; `score` is the fairness score, 0 to 1, None
    for pods of no tenant. `waiting` are pods not bound, `longest_wait` is that of the first of them. `short_seconds`
    is how long it had pods waiting and clearly less than its entitlement.
    """

    name: str
    min: float
    max: float
    weight: float
    entitlement: float
    whole: int
    in_use: float
    borrowed: float
    decayed_use: float
    drift: float | None
    score: float | None
    waiting: int
    longest_wait: float
    evictions: int
    short_seconds: float


class PoolShares(Slim):
    policy: str
    capacity: float
    in_use: float
    waiting: int
    tenants: list[TenantShares]
    conditions: list[Condition]


class Shares(Slim):
    """`outside`: pods that wait under no policy."""

    pools: list[PoolShares]
    outside: int = 0


class Waiting(Slim):
    """A pod that is not bound.

    `place` counts from 1 in the order of turns, 0 out of line. `state` is gated, released or loose; `waits_for` a
    `Reason` and `why` the same in words. `node` is that of its claim.
    """

    place: int
    namespace: str
    pod: str
    tenant: str
    gpus: float
    priority: int
    waited: float
    state: str
    waits_for: str
    why: str
    node: str | None = None


class PoolLine(Slim):
    """`policy` is empty for pods under none. `more` pods are left off."""

    policy: str
    pods: list[Waiting]
    more: int = 0


class Lines(Slim):
    pools: list[PoolLine]
