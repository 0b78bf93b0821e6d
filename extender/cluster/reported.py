"""What the book keeps of a node's report: what it says, how old it is, and what has happened on the node since."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from extender.cluster.assignment import Cards
from extender.cluster.seats import Phase, Seat
from extender.cluster.truth import PodName, Truth

SETTLED_AFTER = 30.0
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
    former: dict[PodName, str] = field(default_factory=dict)
    """By name of those that have left and of whom the kubelet still tells, their uids."""
    doubted: dict[PodName, float | None] = field(default_factory=dict)
    """Such names that others have now, since when."""

    def renew(self, truth: Truth, when: str) -> bool:
        """The agent says this now, or it is read again. Whether rows are described otherwise by it."""
        given, had = truth.given or {}, self.truth.given or {}
        pods = given.keys() | had.keys() if given is not had else ()
        self.regiven = {pod for pod in pods if given.get(pod) != had.get(pod)}
        leaked = {pod: cards for pod, cards in self.leaked.items() if given.get(pod) == cards}
        for pod in self.former.keys() & (self.regiven | (self.former.keys() - given.keys())):
            del self.former[pod]
        self.doubted = {pod: since for pod, since in self.doubted.items() if pod in self.former}
        changed = truth.kind != self.truth.kind or leaked != self.leaked
        self.truth, self.leaked = truth, leaked
        if when != self.when or not when:
            changed |= self.stale
            self.when, self.stale = when, False
            self.departed.clear()
        return changed

    def left(self, seat: Seat) -> None:
        """The seat's pod is gone; its processes end with it, which the next report will say."""
        cards, name = self.truth.cards, (seat.namespace, seat.name)
        alone = seat.cards.whole if seat.told and seat.cards is not None else ()
        if alone or any(seat.uid in card.pods for card in cards):
            self.departed[seat.uid] = frozenset(cards[card].uuid for card in alone if card < len(cards))
        if seat.phase is not Phase.CLAIMED and name in (self.truth.given or {}):
            self.former[name] = seat.uid
            self.doubted.pop(name, None)

    def came(self, seat: Seat) -> None:
        """The seat's pod is on the node."""
        name = (seat.namespace, seat.name)
        self.departed.pop(seat.uid, None)
        if self.former.get(name) == seat.uid:
            del self.former[name]
        elif seat.phase is not Phase.CLAIMED and (
            name in self.former or name in self.leaked or self._is_before(seat)
        ):
            self.former.setdefault(name, "")
            self.doubted[name] = None

    def _is_before(self, seat: Seat) -> bool:
        """What is said of the pod's name was said before the pod began: both times are whole seconds of UTC."""
        name = (seat.namespace, seat.name)
        return name in (self.truth.given or {}) and bool(self.when) and self.when < seat.began

    def given_to(self, seat: Seat) -> Cards | None:
        """What the kubelet has given to the seat's pod, as far as it can be known that this pod is meant.

        The kubelet names pods without their uid, and another of the same name may have been there before.
        """
        name = (seat.namespace, seat.name)
        if seat.phase is Phase.CLAIMED or name in self.former:
            return None
        return (self.truth.given or {}).get(name)

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
        given = self.truth.given or {}
        found = {pod: given[pod] for pod in self._settled(self.strays, now) if pod not in self.leaked}
        self.leaked |= found
        return found

    def settle(self, now: float) -> bool:
        """Devices are those of the pod that has the name now, if the kubelet has stood by that for long enough.

        Whether any are.
        """
        found = self._settled(self.doubted, now)
        for pod in found:
            del self.former[pod], self.doubted[pod]
            self.leaked.pop(pod, None)
        return bool(found)

    def _settled(self, times: dict[PodName, float | None], now: float) -> list[PodName]:
        """Those since whose time the agent has stood by its report for long enough; None becomes now."""
        for pod, since in times.items():
            times[pod] = now if since is None else since
        stood = now - (self.age or 0) - SETTLED_AFTER
        return [pod for pod, since in times.items() if since is not None and since <= stood]
