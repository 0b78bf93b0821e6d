"""What a pool has left for one more pod, as the rule `headroom` counts it.

Pods that wait in line count as if they had what they ask for: the rule only holds at create, so whatever it lets
pass takes its seat later, and a pool that is empty now would be full then. Pods that somebody else's gate keeps out
of line do not count until it is lifted.
"""

from extender.cluster.eligibility import Constraints
from extender.cluster.request import Request
from extender.decide.plan import Planner
from extender.decide.rules import Room
from extender.fairness.ledger import MICRO


def room_of(planner: Planner, policy: str, request: Request, constraints: Constraints) -> Room | None:
    """The room of the policy's pool; None while it has no nodes.

    A pod is reckoned as in line: what it would be charged on the first node that would hold it.
    """
    pool = planner.pools.of(policy)
    if pool is None or not pool.nodes:
        return None
    found = planner.charge_of(planner.claims.room.shape(policy, request, constraints))
    asks = found / MICRO if found is not None else float(sum(count for _, count in request.devices))
    used = sum(pool.ledger.used().values())
    waiting = sum(map(pool.line.units, pool.line.tenants()))
    return Room(pool.ledger.capacity / MICRO, used / MICRO, waiting / MICRO, asks)
