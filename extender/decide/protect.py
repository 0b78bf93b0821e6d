"""What preemption must spare where a FairnessPolicy rules: a priority makes nobody fair game.

The scheduler's victims, and those that kvitej adds, obey the rules of a reclaim (`among`, `victims`). Inside the
preemptor's own tenant no share changes hands, so there only preemptible, minRuntime and the budgets count. Pods that
no policy knows are left to the configured protection.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extender.cluster.seats import Seat
from extender.decide.among import Terms, spared
from extender.decide.giving import Giver
from extender.decide.lent import MICRO, Lent
from extender.decide.plan import Planner
from extender.decide.preempt import Guard, Protection
from extender.decide.victims import Cost, Limits, Victim
from extender.fairness.ledger import FREE_FOR_ALL

PLENTY = 1e9
"""GPU units above its entitlement that let a tenant take from itself."""


@dataclass(frozen=True, slots=True)
class PolicyProtection:
    """`Guard` for a preemptor of `tenant`: what is protected anyway, and the policy's rules.

    `apart` tells of pods that another policy rules, or one of which too little is known yet.
    """

    base: Protection
    tenant: str
    lent: Lent
    terms: Terms
    apart: Callable[[Seat], bool] = lambda seat: False

    def covers(self, seat: Seat) -> bool:
        if self.base.covers(seat) or self.apart(seat):
            return True
        candidate = self.lent.get(seat.uid)
        if candidate is None:
            return False
        if candidate.tenant != self.tenant:
            return self._over() >= 0 or spared(candidate, self.terms) is not None
        return spared(candidate, self._at_home()) is not None

    def allows(self, victims: Sequence[Seat], units: float) -> bool:
        known = self._known(victims)
        return self._limits(known, units).allow(known)

    def suffices(self, victims: Sequence[Seat], units: float) -> bool:
        known = self._known(victims)
        others = [victim for victim in known if victim.candidate.tenant != self.tenant]
        return not others or self._limits(known, units).enough(others)

    def _known(self, victims: Sequence[Seat]) -> list[Victim]:
        return [self._victim(seat) for seat in victims if self.lent.get(seat.uid) is not None]

    def _limits(self, known: Sequence[Victim], units: float) -> Limits:
        own = sum(victim.cost.units for victim in known if victim.candidate.tenant == self.tenant)
        terms = self._at_home()
        return Limits(
            {name: round(over * MICRO) for name, over in terms.over.items()},
            terms.budget,
            terms.pdbs,
            beyond=self._over() + round(units * MICRO) - own,
        )

    def _victim(self, seat: Seat) -> Victim:
        candidate = self.lent.get(seat.uid)
        assert candidate is not None
        return Victim(candidate, seat, Cost(1, round(candidate.units * MICRO), 0, seat.priority, 0))

    def _at_home(self) -> Terms:
        """The terms, but that the preemptor's own tenant is asked whatever it holds."""
        return dataclasses.replace(self.terms, over={**self.terms.over, self.tenant: PLENTY})

    def _over(self) -> int:
        return round(self.terms.over.get(self.tenant, 0.0) * MICRO)


def guard_for(planner: Planner, giver: Giver, uid: str, base: Protection, now: float) -> Guard:
    """What the waiting pod must spare when it preempts: `base`, and the rules of the policies if there are any."""
    pools = planner.pools
    if not pools.by_name:
        return base
    waiter = planner.waiters.get(uid)
    own = pools.of(waiter.pool) if waiter is not None else None
    for pool in pools.by_name.values():
        giver.catch_up(pool.ledger)

    def apart(seat: Seat) -> bool:
        pool = pools.booked_in(seat.uid)
        return pool is not None and (
            (own is not None and pool is not own) or giver.lent.get(seat.uid) is None
        )

    leaving = planner.claims.leaving.keys()
    if waiter is None or own is None:
        terms = Terms(now, {}, pdbs=giver.disruptions(leaving))
        return PolicyProtection(base, FREE_FOR_ALL, giver.lent, terms, apart)
    return PolicyProtection(base, waiter.tenant, giver.lent, giver.terms(own.ledger, leaving, now), apart)
