"""Reclaim: whose borrowed, preemptible work makes room for a request of a tenant that has less than it is entitled to.

One node and, there, the fewest victims, then the cheapest ones (`victims.Cost`). Every node gets a lower bound first
(`among`); nodes are searched from the lowest on, until none can be cheaper than what was found. Who may go at all
stands in `among.Terms`; which sets may go, in `victims.Limits`. Non-preemptible work is never looked at.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from _core import CONTENDED, FITS, MEMORY_TAKEN, TAKEN, WATERMARK, Ask, fit
from extender.cluster.assignment import units
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.among import Among, Spared, Terms
from extender.decide.lent import MICRO, Candidate, Lent
from extender.decide.victims import Best, Cost, Effort, Room, cheapest

EFFORT = 4_000
"""Sets of victims that one reclaim looks at, at most: about a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Evict `victims`, and the request has room on `node`. `why` is for people; `exact` False: the search was cut."""

    node: str
    victims: tuple[Candidate, ...]
    cost: Cost
    why: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class NoReclaim:
    """Nobody is evicted, and why not; `spared` counts the pods on the nodes asked about that could not be victims."""

    reason: str
    spared: Mapping[Spared, int] = field(default_factory=dict)


def reclaim(
    snapshot: Snapshot,
    request: Request,
    tenant: str,
    rows: NDArray[np.int32],
    lent: Lent,
    terms: Terms,
    effort: int = EFFORT,
) -> Reclaim | NoReclaim:
    """The victims whose going gives `request` of `tenant` room on one of `rows`, which it may use.

    Judged by the book as it stands: who reclaims twice before the first victims are gone charges them and the winner
    himself (`Terms.over`, a reservation), or waits.
    """
    owed = -round(terms.over.get(tenant, 0.0) * MICRO)
    if owed <= 0:
        return NoReclaim(f"Tenant {tenant} is not below its entitlement, so nobody gives back for it.")
    ask = snapshot.ask(request)
    if ask is None:
        return NoReclaim("The request names a resource that no node has.")
    codes = fit(snapshot.table, rows, ask)
    for row in rows[codes <= CONTENDED].tolist():
        node = snapshot.index.name(row)
        if Room(snapshot, ask, request, node).without(()):
            return NoReclaim(f"Node {node} has room for it, so nobody has to go.")
    helped = rows[np.isin(codes, (FITS, CONTENDED, TAKEN, MEMORY_TAKEN, WATERMARK))]
    if not len(helped):
        return NoReclaim("No node that the pod may use would have room for it, whoever left.")
    among = Among(snapshot, helped, lent, terms)
    left = Effort(effort)
    found = _search(snapshot, ask, request, owed, among, left)
    if found is None:
        return NoReclaim(_words(among, len(helped), left), among.spared)
    victims = tuple(victim.candidate for victim in found.victims)
    return Reclaim(victims[0].node, victims, found.cost, _why(tenant, owed, found, terms), not left.spent)


def _search(
    snapshot: Snapshot, ask: Ask, request: Request, owed: int, among: Among, effort: Effort
) -> Best | None:
    best: Best | None = None
    # No device is charged more than a unit, so only a tenant that is owed less can go beyond.
    if owed < MICRO * sum(count for _, count in request.devices):
        among.outweigh(_charges(snapshot, request, among.rows) - owed)
    if not len(among):
        return None
    for place, least in among.by_bound(snapshot, ask, request):
        if effort.spent or (best is not None and least >= best.cost):
            break
        node = snapshot.index.name(int(among.rows[place]))
        charged = round(units(request, snapshot.inventories[node]) * MICRO)
        victims = among.victims(snapshot, place)
        limits = dataclasses.replace(among.limits, beyond=charged - owed)
        best = cheapest(Room(snapshot, ask, request, node), victims, limits, best, effort)
    return best


def _charges(snapshot: Snapshot, request: Request, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """By row, what the request is charged there, in millionths of a GPU unit."""
    kinds: dict[tuple[object, ...], int] = {}
    charges = []
    for row in rows.tolist():
        node = snapshot.inventories[snapshot.index.name(row)]
        kind = (node.mode, node.replicas, node.card_memory, node.product)
        if kind not in kinds:
            kinds[kind] = round(units(request, node) * MICRO)
        charges.append(kinds[kind])
    return np.array(charges, np.int64)


def _why(tenant: str, owed: int, found: Best, terms: Terms) -> str:
    losers = sorted({victim.candidate.tenant for victim in found.victims})
    pods = "1 pod" if found.cost.pods == 1 else f"{found.cost.pods} pods"
    above = ", ".join(f"{loser} {_gpus(terms.over[loser])} above" for loser in losers)
    return (
        f"Tenant {tenant} is {_gpus(owed / MICRO)} GPU units below its entitlement and {above}; "
        f"{pods} with {_gpus(found.cost.units / MICRO)} GPU units make room."
    )


def _gpus(units: float) -> str:
    return f"{round(units, 2):g}"


def _words(among: Among, nodes: int, effort: Effort) -> str:
    could = f"{among.could:,} could go" if among.could else "none could go"
    stay = "".join(f"; {count:,} are {why.value}" for why, count in among.spared.items())
    cut = " The search was cut short." if effort.spent else ""
    return f"No set of pods that may be evicted makes room on {nodes:,} nodes: there, {could}{stay}.{cut}"
