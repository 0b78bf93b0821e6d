"""All doors on one book, hung together: whoever serves a cluster says who writes to it, and opens them."""

import time
from collections.abc import Callable, Container

from extender.config import Config
from extender.decide.claims import Settings
from extender.decide.instructions import Ref
from extender.serve.app import operations, verbs
from extender.serve.book import Book
from extender.serve.metrics import Metrics
from extender.serve.placing import PlaceDoor
from extender.serve.seating import SeatDoor, Writer
from extender.serve.sharing import SharesDoor
from extender.serve.waiting import Releaser, WaitDoor
from extender.serve.webhook import WebhookDoor, admission
from extender.wire.extender import BindingArgs


class _Live(Container[str]):
    """Names as they are at the moment of asking."""

    def __init__(self, names: Callable[[], Container[str]]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names()


class Doors:
    """What the scheduler, the API server and people ask, and the planner that answers.

    Parameters
    ----------
    writer, releaser
        Who writes to the cluster for Bind, and for the planner.
    later
        As PlaceDoor takes it.
    vetoed, evicted
        Are told of each veto and each eviction, with its reason.
    clock, wall
        Monotonic seconds, and those since 1970.

    Attributes
    ----------
    verbs, operations : web.Application
        For the scheduler, and for everybody else.
    reviews : WebhookDoor
        For the API server.
    """

    def __init__(
        self,
        book: Book,
        config: Config,
        metrics: Metrics,
        writer: Writer,
        releaser: Releaser,
        *,
        later: Callable[[Callable[[], object]], object] = lambda work: work(),
        vetoed: Callable[[BindingArgs, str], None] = lambda args, reason: None,
        evicted: Callable[[Ref, str], None] = lambda victim, why: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.wait = wait = WaitDoor(
            book,
            releaser,
            Settings(schedulers=frozenset(config.admission.schedulers)),
            in_flight=config.bind.in_flight,
            told=evicted,
            clock=clock,
            wall=wall,
        )
        self.shares = SharesDoor(book, lambda: wait.planner, wait.fairness, clock)
        metrics.follow(self.shares)
        rules = admission(
            config,
            wait,
            wait.labels_of,
            _Live(lambda: wait.preemptible_classes),
            wait.never_fits,
            wait.room,
            wait.offers,
        )
        self.reviews = WebhookDoor(rules, wait.depths, metrics, clock, wall)
        place = PlaceDoor(book, config, metrics, later, wait.seat_for, wait.elsewhere, wait.guard, clock)
        self.verbs = verbs(place, SeatDoor(book, writer, config, metrics, vetoed, wait.seat_for), config)
        self.operations = operations(book, metrics, self.shares)
