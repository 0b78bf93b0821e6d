"""What the book keeps of a node's report: what it says, how old it is, and what has happened on the node since."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from extender.cluster.assignment import Cards
from extender.cluster.seats import Seat
from extender.cluster.truth import PodName, Truth

LEAK_AFTER = 30.0
"""Seconds for which the kubelet may name a pod that is gone: it and the watch are told at different times."""


@dataclass(slots=True)
class Report:
    """`when` is the agent's time; `age` are seconds since it last stood by it, None before that is known."""

    truth: Truth
    when: str = ""
    age: float | None = None
    stale: bool = False
    regiven: set[PodName] = field(default_factory=set)
    """Pods of which the kubelet tells otherwise than in the report before."""
    departed: dict[str, frozenset[str]] = field(default_factory=dict)
    """By uid of those that have left the node since, the uuids of the cards that they had alone."""
    strays: dict[PodName, float | None] = field(default_factory=dict)
    """Pods that hold devices and are not on the node, since when; None: since just now."""
    leaked: dict[PodName, Cards] = field(default_factory=dict)
    """Those of them that have been for too long."""

    def renew(self, truth: Truth, when: str) -> bool:
        """The agent says this now, or it is read again. Whether rows are described otherwise by it."""
        given, had = truth.given or {}, self.truth.given or {}
        self.regiven = {pod for pod in given.keys() | had.keys() if given.get(pod) != had.get(pod)}
        leaked = {pod: given[pod] for pod in self.leaked if pod in given}
        changed = truth.kind != self.truth.kind or leaked != self.leaked
        self.truth, self.leaked = truth, leaked
        if when != self.when or not when:
            changed |= self.stale
            self.when, self.stale = when, False
            self.departed.clear()
        return changed

    def left(self, seat: Seat) -> None:
        """The seat's pod is gone; its processes end with it, which the next report will say."""
        alone = seat.cards.whole if seat.told and seat.cards is not None else ()
        self.departed[seat.uid] = frozenset(
            self.truth.cards[card].uuid for card in alone if card < len(self.truth.cards)
        )

    def ended(self) -> Mapping[str, frozenset[str]]:
        """Those that the report still counts although they are gone; all that it says counts while it is fresh."""
        return self.departed if self.stale else {}

    def look_for_strays(self, seats: Iterable[Seat]) -> None:
        """Who holds devices although these are all that are on the node."""
        here = {(seat.namespace, seat.name) for seat in seats}
        self.strays = {pod: self.strays.get(pod) for pod in self.truth.given or {} if pod not in here}

    def leaks(self, seats: Iterable[Seat], now: float) -> dict[PodName, Cards]:
        """Strays that have been for too long, each once: the agent still stood by its report after that time."""
        self.look_for_strays(seats)
        for pod, since in self.strays.items():
            self.strays[pod] = now if since is None else since
        given = self.truth.given or {}
        found = {
            pod: given[pod]
            for pod, since in self.strays.items()
            if since is not None and now - (self.age or 0) - since >= LEAK_AFTER and pod not in self.leaked
        }
        self.leaked |= found
        return found
