"""The planner's reclaims: what runs and could be given back, kept in step with the book and the ledgers.

The book tells who sits where and the ledger what each is charged; what a pod says of itself (since when it runs, when
it last saved its work, which disruption budgets cover it) is kept here. Out of the three comes a `Candidate` per bound
GPU pod, and with what the ledger says of the tenants the `Terms` under which `reclaim` chooses victims.

Whoever owns the book tells the giver of each event after the book and before the planner's step, of the disruption
budgets when they change, and of each eviction that was granted. All times are seconds of the planner's clock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender import duration
from extender.cluster.events import NodeSeen, PodGone, PodSeen
from extender.cluster.reports import Beat, ReportGone, ReportSeen
from extender.cluster.request import Request
from extender.cluster.seats import Phase
from extender.cluster.snapshot import Snapshot
from extender.decide.among import Terms
from extender.decide.budgets import Budgets
from extender.decide.claims import Book
from extender.decide.lent import Candidate, Lent
from extender.decide.reclaim import NoReclaim, reclaim
from extender.decide.room import Rows
from extender.decide.turns import Victims
from extender.decide.waiter import bound_at
from extender.fairness.ledger import MICRO, Entry, Ledger
from extender.fairness.usage import wall_of
from extender.wire.marks import CHECKPOINT_INTERVAL, LAST_CHECKPOINT
from extender.wire.objects import Pod
from extender.wire.surroundings import PodDisruptionBudget


@dataclass(frozen=True, slots=True)
class UnreadableMark:
    """What a pod says of its checkpoints counts for nothing."""

    namespace: str
    name: str
    annotation: str
    fault: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}: its annotation {self.annotation} counts as absent: {self.fault}"


@dataclass(frozen=True, slots=True)
class WouldEvict:
    """The policy only reports its reclaims, and this one would have been."""

    policy: str
    tenant: str
    node: str
    victims: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return (
            f"policy {self.policy} (dry run): for tenant {self.tenant}, these would have been evicted from "
            f"{self.node}: {', '.join(self.victims)}. {self.why}"
        )


Notice = UnreadableMark | WouldEvict


class _Says(NamedTuple):
    """What a bound pod says of itself."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    started: float
    leaves: bool
    """It is being deleted."""
    interval: float | None
    checkpoint: float | None
    faults: tuple[UnreadableMark, ...]


@dataclass(slots=True)
class _Eviction:
    """A victim that was chosen, and whose eviction was not granted yet."""

    ledger: Ledger
    tenant: str
    pdbs: tuple[str, ...]


class Giver:
    """`turns.Reclaim`, by `reclaim`. `wall`: seconds since 1970 when the planner's clock was 0."""

    def __init__(self, book: Book, wall: float) -> None:
        self.lent = Lent()
        self._book = book
        self._wall = wall
        self._budgets = Budgets()
        self._says: dict[str, _Says] = {}
        self._entries: dict[str, Entry] = {}
        self._stale: set[str] = set()
        self._changed: set[str] = set()
        """Nodes whose pods may have other cards than before."""
        self._evictions: dict[str, _Eviction] = {}
        self._reported: dict[tuple[str, str], Victims] = {}
        self._notices: list[Notice] = []

    # what happens

    def apply(self, event: object, now: float) -> None:
        """The book has changed by this event; those that say nothing of bound pods or nodes are passed over."""
        match event:
            case PodSeen(pod):
                self._pod_seen(pod, now)
            case PodGone(uid):
                self._gone(uid)
            case NodeSeen(node):
                self._changed.add(node.metadata.name)
            case ReportSeen(node=name) | ReportGone(name) | Beat(name):
                self._changed.add(name)

    def budgets(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        """These are all the disruption budgets that there are now."""
        changed = self._budgets.follow(budgets)
        if changed:
            self._stale |= {uid for uid, says in self._says.items() if says.namespace in changed}

    def evicted(self, uid: str, now: float) -> None:
        """The API server has granted the eviction of a victim; it counts for its tenant's hour from now on."""
        eviction = self._evictions.pop(uid, None)
        if eviction is not None:
            eviction.ledger.evicted(eviction.tenant, now)

    def notices(self) -> list[Notice]:
        """What a person should hear about, each once."""
        told, self._notices = self._notices, []
        return told

    def _pod_seen(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        seat = self._book.snapshot().seats.get(uid)
        if seat is None:
            self._gone(uid)
        elif seat.phase is Phase.BOUND and seat.request.devices:
            had = self._says.get(uid)
            says = self._says[uid] = self._read(pod, had.started if had else now)
            self._notices += [fault for fault in says.faults if had is None or fault not in had.faults]
            if says != had:
                self._stale.add(uid)

    def _gone(self, uid: str) -> None:
        self._says.pop(uid, None)
        self._entries.pop(uid, None)
        self._stale.discard(uid)
        self.lent.drop(uid)

    def _reckon_cards(self, snapshot: Snapshot, name: str) -> None:
        """Pods of the node may have other cards: it is another node now, or the kubelet gave others than planned."""
        for uid, seat in snapshot.seats_by_node.get(name, {}).items():
            candidate = self.lent.get(uid)
            if candidate is not None and candidate.cards != seat.cards:
                self._stale.add(uid)

    def _read(self, pod: Pod, seen: float) -> _Says:
        """`seen`: since when the pod is known to be bound, which it is not later than."""
        metadata, annotations = pod.metadata, pod.metadata.annotations or {}
        namespace, name = metadata.namespace or "default", metadata.name
        faults: list[UnreadableMark] = []
        interval = checkpoint = None
        if (text := annotations.get(CHECKPOINT_INTERVAL)) is not None:
            try:
                interval = _interval(text)
            except ValueError as error:
                faults.append(UnreadableMark(namespace, name, CHECKPOINT_INTERVAL, str(error)))
        if (text := annotations.get(LAST_CHECKPOINT)) is not None:
            try:
                checkpoint = wall_of(text) - self._wall
            except ValueError as error:
                faults.append(UnreadableMark(namespace, name, LAST_CHECKPOINT, str(error)))
        return _Says(
            namespace,
            name,
            metadata.labels or {},
            min(seen, self._start(pod, seen)),
            metadata.deletion_timestamp is not None,
            interval,
            checkpoint,
            tuple(faults),
        )

    def _start(self, pod: Pod, seen: float) -> float:
        wall = bound_at(pod)
        return seen if wall is None else wall - self._wall

    def bound(self) -> dict[str, float]:
        """Wall time since which each pod with devices is bound, as far as is known, by uid."""
        return {uid: says.started + self._wall for uid, says in self._says.items()}

    # what could be given back

    def catch_up(self, ledger: Ledger) -> None:
        """Bring `lent` up to date with the book, and with the ledger of one pool.

        It is done before each reclaim. For tens of thousands of pods the first time takes a good part of a second, so
        it is best done once before the planner begins to serve.
        """
        self._entries.update((uid, ledger.entries[uid]) for uid in ledger.fresh)
        self._stale |= ledger.fresh
        ledger.fresh.clear()
        snapshot = self._book.snapshot()
        for name in self._changed:
            self._reckon_cards(snapshot, name)
        self._changed.clear()
        for uid in self._stale:
            candidate = self._candidate(snapshot, uid)
            if candidate is None:
                self.lent.drop(uid)
            elif candidate != self.lent.get(uid):
                self.lent.put(candidate)
        self._stale.clear()

    def _candidate(self, snapshot: Snapshot, uid: str) -> Candidate | None:
        says, entry, seat = self._says.get(uid), self._entries.get(uid), snapshot.seats.get(uid)
        if says is None or entry is None or seat is None:
            return None
        return Candidate(
            uid,
            seat.node,
            entry.tenant,
            seat.request,
            entry.units / MICRO,
            says.started,
            seat.cards,
            seat.priority,
            entry.preemptible,
            says.interval,
            says.checkpoint,
            # No budget keeps what is being deleted.
            () if says.leaves else self._budgets.covering(says.namespace, says.labels),
        )

    def terms(self, ledger: Ledger, leaving: Collection[str], now: float) -> Terms:
        """Who may be asked back in the ledger's pool, as if those that are `leaving` had left."""
        return self._terms(ledger, _over(ledger, leaving), leaving, now)

    def _terms(
        self, ledger: Ledger, over: Mapping[str, float], leaving: Collection[str], now: float
    ) -> Terms:
        policy = ledger.policy
        pdbs = self.disruptions(leaving)
        asked = Counter(each.tenant for each in self._evictions.values() if each.ledger is ledger)
        return Terms(
            now,
            over,
            {tenant.name: tenant.min_runtime for tenant in policy.tenants if tenant.min_runtime},
            {
                tenant.name: tenant.evictions_per_hour
                - asked[tenant.name]
                - len(ledger.evictions(tenant.name, now))
                for tenant in policy.tenants
                if tenant.evictions_per_hour is not None
            },
            pdbs,
        )

    def disruptions(self, leaving: Collection[str]) -> dict[str, int]:
        """What each disruption budget still allows, evictions under way counted."""
        self._evictions = {uid: each for uid, each in self._evictions.items() if uid in leaving}
        # Those that were granted are in the budgets' own counts.
        asked = Counter(pdb for each in self._evictions.values() for pdb in each.pdbs)
        return {pdb: count - asked[pdb] for pdb, count in self._budgets.allowed.items()}

    def __call__(
        self,
        snapshot: Snapshot,
        request: Request,
        tenant: str,
        rows: Rows,
        ledger: Ledger,
        leaving: Collection[str],
        now: float,
    ) -> Victims | None:
        """Whose work makes room for `request` of `tenant` on one of `rows`; None where nobody's may or helps.

        Where the policy only reports its reclaims, none is made.
        """
        over = _over(ledger, leaving)
        if over.get(tenant, 0.0) >= 0:
            return None
        self.catch_up(ledger)
        terms = self._terms(ledger, over, leaving, now)
        found = reclaim(snapshot, request, tenant, rows, self.lent, terms)
        if isinstance(found, NoReclaim):
            return None
        victims = Victims(found.node, tuple(victim.uid for victim in found.victims), found.why)
        policy = ledger.policy
        if policy.reclaim_dry_run:
            self._report(policy.name, tenant, victims)
            return None
        for victim in found.victims:
            self._evictions[victim.uid] = _Eviction(ledger, victim.tenant, victim.pdbs)
        return victims

    def _report(self, policy: str, tenant: str, victims: Victims) -> None:
        had = self._reported.get((policy, tenant))
        if had is None or (had.node, had.uids) != (victims.node, victims.uids):
            self._reported[policy, tenant] = victims
            says = [self._says[uid] for uid in victims.uids]
            names = tuple(f"{each.namespace}/{each.name}" for each in says)
            self._notices.append(WouldEvict(policy, tenant, victims.node, names, victims.why))


def _over(ledger: Ledger, leaving: Collection[str]) -> dict[str, float]:
    """GPU units that each tenant has above its entitlement, as if those that are `leaving` had left."""
    used = Counter(ledger.used())
    for uid in leaving:
        entry = ledger.entries.get(uid)
        if entry is not None:
            used[entry.tenant] -= entry.units
    # Room that is free but does not fit who waits is of no use to him: shared out is what is in use.
    entitled = ledger.entitlements_out_of(min(ledger.capacity, used.total()))
    return {
        tenant: (used[tenant] - entitled.get(tenant, 0.0)) / MICRO for tenant in used.keys() | entitled.keys()
    }


def _interval(text: str) -> float:
    seconds = duration.seconds(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is no interval: it must be longer than 0s.")
    return seconds
