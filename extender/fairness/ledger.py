"""The ledger of one pool: what each tenant has, what it may still take, and whose turn is next.

Every entry belongs to a pod, so a charge can neither leak nor be counted twice: totals are sums over entries in whole
millionths of a GPU, which add up exactly. `charged` are seats that are bound or being bound, `released` those that the
planner has claimed for pods not bound yet.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender.fairness.entitlement import Want, effective_weights, fill, whole_shares
from extender.fairness.policy import Policy, Tenant
from extender.fairness.usage import Usage

MICRO = 1_000_000
"""Whole units of a GPU."""
UNLIMITED = 2**62
HOUR = 3_600.0
FREE_FOR_ALL = ""
"""The name under which pods of no tenant are booked; no tenant has it."""


class Entry(NamedTuple):
    """A pod's charge. `preemptible`: it may be evicted."""

    tenant: str
    units: int
    node: str
    preemptible: bool
    released: bool = False


@dataclass(slots=True)
class Account:
    """Totals of one tenant."""

    charged: int = 0
    released: int = 0
    preemptible: int = 0
    """Of both, what may be evicted."""

    @property
    def used(self) -> int:
        return self.charged + self.released

    @property
    def lasting(self) -> int:
        """Of both, what nobody may evict."""
        return self.used - self.preemptible


class Ledger:
    """Amounts are millionths of a GPU; `follow` and `entitle` are to be called when what they take has changed."""

    def __init__(self, policy: Policy, usage: Usage) -> None:
        self.usage = usage
        self.entries: dict[str, Entry] = {}
        self.fresh: set[str] = set()
        """Entries that are new or have changed since whoever follows them has last emptied this."""
        self.entitlements: dict[str, float] = {}
        self._asked: list[Want] = []
        self._rights: dict[str, float] = {}
        self._accounts: dict[str, Account] = {}
        self._pinned: dict[str, int] = {}
        self._evictions: dict[str, list[float]] = {}
        self.policy = policy
        self._tenants: dict[str, Tenant] = {}
        self._order: dict[str, int] = {}
        self._capacity = 0
        self._limits: dict[str, tuple[int, int]] = {}
        self._kept = 0
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """The policy was edited; entries stay as they are, and the caller books anew what has another tenant now."""
        self.policy = policy
        self._tenants = {tenant.name: tenant for tenant in policy.tenants}
        self._order = {tenant.name: position for position, tenant in enumerate(policy.tenants)}
        self._relimit()

    @property
    def capacity(self) -> int:
        return self._capacity

    @capacity.setter
    def capacity(self, amount: int) -> None:
        self._capacity = amount
        self._relimit()

    def _relimit(self) -> None:
        gpus = self._capacity / MICRO
        self._limits = {
            name: (
                round(tenant.least.of(gpus) * MICRO),
                UNLIMITED if tenant.most is None else round(tenant.most.of(gpus) * MICRO),
            )
            for name, tenant in self._tenants.items()
        }
        self._kept = sum(map(self._keeps, self._limits.keys() | self._accounts.keys()))

    def _keeps(self, tenant: str) -> int:
        """What nobody else can count on: the tenant's minimum, or what can't be taken from it if that is more."""
        return max(self.least(tenant), self.account(tenant).lasting)

    def book(self, uid: str, entry: Entry | None, now: float) -> bool:
        """From now on this is the pod's charge, None for nothing; tells whether anyone may have more or less now."""
        had = self.entries.get(uid)
        if had == entry:
            return False
        for old, sign in ((had, -1), (entry, 1)):
            if old is not None:
                self._kept -= self._keeps(old.tenant)
                self._add(old, sign)
                self._kept += self._keeps(old.tenant)
        if entry is None:
            del self.entries[uid]
            self.fresh.discard(uid)
        else:
            self.entries[uid] = entry
            self.fresh.add(uid)
        for tenant in {each.tenant for each in (had, entry) if each is not None}:
            if tenant in self._tenants:
                self.usage.charge(tenant, self.account(tenant).charged / MICRO, now)
        return had is None or entry is None or had._replace(released=entry.released) != entry

    def _add(self, entry: Entry, sign: int) -> None:
        account = self._accounts.setdefault(entry.tenant, Account())
        if entry.released:
            account.released += sign * entry.units
        else:
            account.charged += sign * entry.units
        if entry.preemptible:
            account.preemptible += sign * entry.units
        else:
            pinned = self._pinned.get(entry.node, 0) + sign * entry.units
            if pinned:
                self._pinned[entry.node] = pinned
            else:
                self._pinned.pop(entry.node, None)

    def evicted(self, tenant: str, at: float) -> None:
        """A pod of the tenant was evicted then, by the clock of `evictions`."""
        self._evictions.setdefault(tenant, []).append(at)

    def evictions(self, tenant: str, now: float) -> list[float]:
        """When pods of the tenant were evicted in the last hour."""
        recent = [at for at in self._evictions.pop(tenant, ()) if now - at < HOUR]
        if recent:
            self._evictions[tenant] = recent
        return recent

    def account(self, tenant: str) -> Account:
        return self._accounts.get(tenant) or Account()

    def used(self) -> dict[str, int]:
        """Charged and released, by tenant."""
        return {tenant: account.used for tenant, account in self._accounts.items()}

    def pinned(self, node: str) -> int:
        """What pods that nobody may evict have of the node."""
        return self._pinned.get(node, 0)

    def least(self, tenant: str) -> int:
        return self._limits[tenant][0] if tenant in self._limits else 0

    def most(self, tenant: str) -> int:
        return self._limits[tenant][1] if tenant in self._limits else UNLIMITED

    def entitle(self, waiting: Mapping[str, int], now: float) -> None:
        """Divide the pool among those who use it or wait for it."""
        self._asked = self._wants(waiting, now)
        self.entitlements = self._divided(self.capacity, self._asked)
        # One that asks for little has nearly all of it at once; that must not put it behind one that asks for all.
        open_ended = [
            want._replace(demand=math.inf) if waiting.get(tenant.name) else want
            for tenant, want in zip(self.policy.tenants, self._asked, strict=True)
        ]
        self._rights = self._divided(self.capacity, open_ended)

    def entitlements_out_of(self, units: int) -> dict[str, float]:
        """What `entitle` would give if the pool had only that much."""
        return self._divided(units, self._asked)

    def _divided(self, units: int, wants: list[Want]) -> dict[str, float]:
        shares = fill(units / MICRO, wants).shares
        return {tenant.name: share * MICRO for tenant, share in zip(self.policy.tenants, shares, strict=True)}

    def in_whole_gpus(self, waiting: Mapping[str, int], now: float) -> dict[str, int]:
        """What `entitle` gives, in whole GPUs by largest remainder: for people, nothing is decided by it."""
        capacity, wants = self.capacity / MICRO, self._wants(waiting, now)
        shares = whole_shares(capacity, wants, fill(capacity, wants))
        return {tenant.name: share for tenant, share in zip(self.policy.tenants, shares, strict=True)}

    def _wants(self, waiting: Mapping[str, int], now: float) -> list[Want]:
        tenants = self.policy.tenants
        weights = effective_weights(
            self.capacity / MICRO,
            [tenant.weight for tenant in tenants],
            [self.usage.of(tenant.name, now) for tenant in tenants],
            self.policy.decay_strength,
        )
        return [
            Want(
                weight,
                self.least(tenant.name) / MICRO,
                self.most(tenant.name) / MICRO,
                (self.account(tenant.name).used + waiting.get(tenant.name, 0)) / MICRO,
            )
            for tenant, weight in zip(tenants, weights, strict=True)
        ]

    def turn(self, tenant: str, used: int | None = None) -> tuple[float, int]:
        """The lowest is next: charged and released over what the tenant would be entitled to if it asked for more.

        Then the policy's order; no tenant comes last.
        `used` asks when the turn would be if the tenant had that much.
        """
        if tenant not in self._order:
            return math.inf, len(self._order)
        right = self._rights.get(tenant, 0.0)
        amount = self.account(tenant).used if used is None else used
        return (amount / right if right > 0 else math.inf), self._order[tenant]

    def is_entitled(self, tenant: str, units: int, beside: int = 0) -> bool:
        """Whether that much more, `beside` what else is on its way, is within the entitlement or the first thing."""
        has = self.account(tenant).used + beside
        entitlement = self.entitlements.get(tenant, 0.0)
        return has == 0 < entitlement or has + units <= entitlement

    def allowance(self, tenant: str, preemptible: bool) -> int:
        """How much more the tenant may take for such pods, whether there is room or not.

        Nobody has more than his maximum. What can't be evicted goes above the minimum only into capacity that no
        other tenant's minimum needs: what others have that can be evicted needs none.
        """
        return self.bound(tenant, preemptible) - self.account(tenant).used

    def bound(self, tenant: str, preemptible: bool) -> int:
        """How much the tenant may have if it asks for more of such pods, as the others stand now."""
        most = self.most(tenant)
        if preemptible:
            return most
        spare = self._capacity - self._kept + self._keeps(tenant)
        return min(most, max(self.least(tenant), spare))

    def check(self) -> None:
        """Recompute the totals from the entries; AssertionError names what differs."""
        fresh = Ledger(self.policy, Usage(dict.fromkeys(self._tenants, 1.0), 0.0))
        fresh.capacity = self._capacity
        for uid, entry in self.entries.items():
            fresh.book(uid, entry, 0.0)
        for tenant in self._accounts.keys() | fresh._accounts.keys():
            assert self.account(tenant) == fresh.account(tenant), f"the account of tenant {tenant!r} is off"
        assert self._kept == fresh._kept, "what is kept for minima is off"
        assert self._pinned == fresh._pinned, "what can't be evicted is off"
