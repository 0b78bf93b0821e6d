"""What preemption must spare where a FairnessPolicy rules: a priority makes nobody fair game.

The scheduler's victims, and those that kvitej adds, obey the rules of a reclaim (`among`, `victims`). Inside the
preemptor's own tenant no share changes hands, so there only preemptible, minRuntime and the budgets count. Pods that
no policy knows are left to the configured protection.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from extender.cluster.seats import Seat
from extender.decide.among import Terms, spared
from extender.decide.lent import MICRO, Lent
from extender.decide.preempt import Protection
from extender.decide.victims import Cost, Limits, Victim

PLENTY = 1e9
"""GPU units above its entitlement that let a tenant take from itself."""


@dataclass(frozen=True, slots=True)
class PolicyProtection:
    """`Protection`, and the policy's rules for a preemptor of `tenant` that would be charged `units`."""

    base: Protection
    tenant: str
    units: float
    lent: Lent
    terms: Terms

    def covers(self, seat: Seat) -> bool:
        """Whether the pod is never a victim of this preemptor."""
        if self.base.covers(seat):
            return True
        candidate = self.lent.get(seat.uid)
        if candidate is None:
            return False
        if candidate.tenant != self.tenant:
            return self._over() >= 0 or spared(candidate, self.terms) is not None
        return spared(candidate, self._at_home()) is not None

    def allows(self, victims: Iterable[Seat]) -> bool:
        """Whether these may go together, once none of them is covered."""
        known = [self._victim(seat) for seat in victims if self.lent.get(seat.uid) is not None]
        others = [victim for victim in known if victim.candidate.tenant != self.tenant]
        own = sum(victim.cost.units for victim in known) - sum(victim.cost.units for victim in others)
        terms = self._at_home()
        limits = Limits(
            {name: round(over * MICRO) for name, over in terms.over.items()},
            terms.budget,
            terms.pdbs,
            beyond=self._over() + round(self.units * MICRO) - own,
        )
        return limits.allow(known) and (not others or limits.enough(others))

    def _victim(self, seat: Seat) -> Victim:
        candidate = self.lent.get(seat.uid)
        assert candidate is not None
        return Victim(candidate, seat, Cost(1, round(candidate.units * MICRO), 0, seat.priority, 0))

    def _at_home(self) -> Terms:
        """The terms, but that the preemptor's own tenant is asked whatever it holds."""
        return dataclasses.replace(self.terms, over={**self.terms.over, self.tenant: PLENTY})

    def _over(self) -> int:
        return round(self.terms.over.get(self.tenant, 0.0) * MICRO)
