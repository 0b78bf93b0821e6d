"""The pools of the cluster: which nodes and pods belong to which, and the line, ledger and holds of each.

Charges follow the node: a seat is booked in the pool of its node, for the tenant that its namespace has there. Nodes
of no pool are booked nowhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from extender.cluster.assignment import units
from extender.cluster.geometry import most_units, profile_of, unit_share
from extender.cluster.inventory import Inventory, Mode
from extender.cluster.request import GPU, SHARED
from extender.cluster.seats import Phase, Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.holds import Hold
from extender.decide.room import Shape
from extender.fairness.ledger import FREE_FOR_ALL, MICRO, Entry, Ledger
from extender.fairness.line import Line, Stand
from extender.fairness.policy import Place, Policy, Tenant
from extender.fairness.reading import Policies
from extender.fairness.usage import Usage


@dataclass(slots=True, eq=False)
class Pool:
    """`nodes` counts its nodes; `pending` are pods whose gate was lifted for an autoscaler to see them."""

    policy: Policy
    ledger: Ledger
    line: Line[Shape] = field(default_factory=Line)
    holds: dict[str, Hold] = field(default_factory=dict)
    vain: dict[str, set[int]] = field(default_factory=dict)
    """Rows at which it was looked in vain for a node to hold, by pod."""
    searched: dict[str, float] = field(default_factory=dict)
    """When it was last looked in vain, by pod."""
    pending: set[str] = field(default_factory=set)
    rests: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Until when each tenant whom no reclaim helped asks for none, and for how long that is."""
    owed: dict[str, Stand] = field(default_factory=dict)
    """Who of each tenant has waited for quota so long that nobody behind him may have any."""
    nodes: int = 0

    def entitle(self, now: float) -> None:
        """Divide the pool among those who use it and those in line."""
        waiting = {tenant: self.line.units(tenant) for tenant in self.line.tenants()}
        self.ledger.entitle(waiting, now)


class Pools:
    """`guests` is the line of pods that no policy covers. `reckon` tells the book whose work is borrowed."""

    def __init__(self, policies: Policies, now: float, reckon: Callable[[str, bool], object]) -> None:
        self.policies = policies
        self._reckon = reckon
        self.classes: frozenset[str] = frozenset()
        """PriorityClasses whose pods may be evicted in whatever tenant."""
        self.since: dict[str, float] = {}
        """Since when each pod is known to have what it is charged: after a restart, since then."""
        self._labels: dict[str, Mapping[str, str]] = {}
        self._nodes: dict[str, tuple[Pool | None, int]] = {}
        self._booked: dict[str, Pool] = {}
        self._tenants: dict[tuple[str, str], Tenant | None] = {}
        self.guests: Line[Shape] = Line()
        self.by_name: dict[str, Pool] = {}
        self.follow(policies, now)

    def follow(self, policies: Policies, now: float) -> None:
        """These are the policies now: lines, ledgers and holds begin empty, decayed use carries on."""
        had = self.by_name
        self.policies = policies
        self._nodes.clear()
        self._booked.clear()
        self._tenants.clear()
        self.guests = Line()
        self.by_name = {}
        for policy in policies.all:
            half_lives = {tenant.name: tenant.half_life for tenant in policy.tenants}
            if policy.name in had:
                usage = had[policy.name].ledger.usage
                usage.follow(half_lives, now)
            else:
                usage = Usage(half_lives, now)
            self.by_name[policy.name] = Pool(policy, Ledger(policy, usage))

    def namespace(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """The namespace has these labels; tells whether that may change its tenant."""
        had = self._labels.get(name)
        if labels:
            self._labels[name] = labels
        else:
            self._labels.pop(name, None)
        self._tenants.clear()
        return (had or {}) != (labels or {}) and any(
            tenant.selector is not None for policy in self.policies.all for tenant in policy.tenants
        )

    def place(self, namespace: str, scheduler: str) -> Place | None:
        return self.policies.place(namespace, self._labels.get(namespace, {}), scheduler)

    def conflicts(self, snapshot: Snapshot) -> dict[str, str]:
        """What two policies, or two tenants of one, claim: sentences by policy."""
        nodes = {}
        if len(self.by_name) > 1:
            nodes = {name: _labels(inventory) for name, inventory in snapshot.inventories.items()}
        return self.policies.conflicts(self._labels, nodes)

    # nodes

    def node(self, inventory: Inventory) -> Pool | None:
        """The node is there and looks like this; gives its pool."""
        self.node_gone(inventory.name)
        policy = self.policies.pool_of(_labels(inventory))
        pool = self.by_name[policy.name] if policy else None
        amount = capacity_of(inventory)
        self._nodes[inventory.name] = (pool, amount)
        if pool is not None:
            pool.nodes += 1
            pool.ledger.capacity += amount
        return pool

    def node_gone(self, name: str) -> None:
        pool, amount = self._nodes.pop(name, (None, 0))
        if pool is not None:
            pool.nodes -= 1
            pool.ledger.capacity -= amount

    def of(self, name: str | None) -> Pool | None:
        """The pool of that name, None for none or one that is gone."""
        return self.by_name.get(name) if name is not None else None

    def of_node(self, name: str) -> Pool | None:
        return self._nodes.get(name, (None, 0))[0]

    # charges

    def booked_in(self, uid: str) -> Pool | None:
        """The pool whose ledger has the pod's charge."""
        return self._booked.get(uid)

    def charge(self, snapshot: Snapshot, uid: str, now: float) -> bool:
        """Book what the pod's seat is charged now, nothing if it has none; tells whether that is news."""
        seat = snapshot.seats.get(uid)
        entry = self.entry_of(snapshot, seat) if seat is not None else None
        pool = self.of_node(seat.node) if seat is not None and entry is not None else None
        had = self._booked.get(uid)
        news = False
        if had is not None and had is not pool:
            del self._booked[uid]
            news = had.ledger.book(uid, None, now)
        if pool is not None:
            self._booked[uid] = pool
            self.since.setdefault(uid, now)
            news |= pool.ledger.book(uid, entry, now)
        else:
            self.since.pop(uid, None)
        borrowed = entry is not None and entry.preemptible
        if seat is not None and seat.borrowed != borrowed:
            self._reckon(uid, borrowed)
        return news

    def entry_of(self, snapshot: Snapshot, seat: Seat) -> Entry | None:
        """The charge of a seat; None if it holds no device or its node is in no pool."""
        pool = self.of_node(seat.node)
        inventory = snapshot.inventories.get(seat.node)
        if pool is None or inventory is None or not seat.request.devices:
            return None
        tenant = self.tenant_in(pool.policy, seat.namespace)
        return Entry(
            tenant=tenant.name if tenant else FREE_FOR_ALL,
            units=round(units(seat.request, inventory) * MICRO),
            node=seat.node,
            preemptible=seat.preemptible
            or seat.priority_class in self.classes
            or (tenant is not None and tenant.preemptible),
            released=seat.phase is Phase.CLAIMED,
        )

    def tenant_in(self, policy: Policy, namespace: str) -> Tenant | None:
        """The namespace's tenant under that policy, whatever the pod's scheduler."""
        key = (policy.name, namespace)
        if key not in self._tenants:
            labels = self._labels.get(namespace, {})
            having = [tenant for tenant in policy.tenants if tenant.has(namespace, labels)]
            default = policy.tenant(policy.default) if policy.default is not None else None
            self._tenants[key] = min(having, key=lambda tenant: tenant.name, default=default)
        return self._tenants[key]

    def check(self, snapshot: Snapshot) -> None:
        """Recompute every charge from the seats; AssertionError names what differs."""
        for name, pool in self.by_name.items():
            pool.ledger.check()
            found = {}
            for uid, seat in snapshot.seats.items():
                entry = self.entry_of(snapshot, seat)
                if entry is not None and self.of_node(seat.node) is pool:
                    found[uid] = entry
                    assert seat.borrowed == entry.preemptible, f"{uid}: the book does not know that it may go"
            assert pool.ledger.entries == found, f"the ledger of {name} is not what its seats are charged"
            inventories = [
                inventory for node, inventory in snapshot.inventories.items() if self.of_node(node) is pool
            ]
            assert pool.nodes == len(inventories), f"{name} has lost count of its nodes"
            assert pool.ledger.capacity == sum(map(capacity_of, inventories)), (
                f"the capacity of {name} is off"
            )


def _labels(inventory: Inventory) -> dict[str, str]:
    return {key: inventory.name if value is None else value for key, value in inventory.traits.labels}


def capacity_of(inventory: Inventory) -> int:
    """Millionths of a GPU that the node adds to its pool: its cards, and its MIG instances at their part of one.

    Cards that are cut on demand offer all that could be cut, and never all of it at once.
    """
    total = (inventory.cards - inventory.unseen) * MICRO
    if inventory.geometry is not None:
        offered = tuple(name for name, count in inventory.allocatable if count)
        total += round(inventory.sliced * most_units(inventory.geometry, offered) * MICRO)
    for name, count in inventory.allocatable:
        if inventory.geometry is not None and profile_of(inventory.geometry, name) is not None:
            continue
        if name == GPU and inventory.mode is Mode.INSTANCE:
            name = "nvidia.com/mig-" + inventory.product.rpartition("-MIG-")[2]
        if name not in (GPU, SHARED):
            share = unit_share(name.removesuffix(".shared"), inventory.product)
            total += round(count * (float(share) if share is not None else 1.0) * MICRO)
    return total
