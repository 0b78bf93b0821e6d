"""The one book of the process: every event goes through here, so that what it notices is said and logged once."""

from collections.abc import Callable

import msgspec
import structlog

from extender.cluster.events import Event
from extender.cluster.limits import Limits
from extender.cluster.mix import Scales
from extender.cluster.notices import Notice
from extender.cluster.snapshot import Snapshot
from extender.cluster.state import ClusterState
from extender.config import Config
from extender.schedulerconfig import managed_resources

log = structlog.get_logger()


def new_state(config: Config) -> ClusterState:
    """An empty book under a configuration."""
    cards = config.cards
    limits = Limits(
        watermark=cards.watermark / 100,
        floor=cards.foreign,
        stale_after=cards.stale_after,
        close_stale=cards.stale == "closed",
    )
    return ClusterState(managed_resources(), Scales(**msgspec.structs.asdict(config.score)), limits)


class Refusal(Exception):
    """Why a call can't be answered as asked; the text is a sentence."""


class Book:
    """`unfit` says why the book can't be trusted now (not synced yet, stale), or None."""

    def __init__(self, state: ClusterState, unfit: Callable[[], str | None] = lambda: None) -> None:
        self.state = state
        self.unfit = unfit
        self._follower: Callable[[Event], None] = lambda event: None
        self._hearer: Callable[[Notice], None] = lambda notice: None
        self._shown: tuple[type[Notice], ...] = ()

    def follow(self, follower: Callable[[Event], None]) -> None:
        """Tell this one of every event, once it has happened."""
        self._follower = follower

    def hear(self, hearer: Callable[[Notice], None], shows: tuple[type[Notice], ...] = ()) -> None:
        """Tell this one of every notice, too; those that it shows people itself are not logged."""
        self._hearer, self._shown = hearer, shows

    def apply(self, event: Event) -> None:
        for notice in self.state.apply(event):
            if not isinstance(notice, self._shown):
                log.warning(str(notice), notice=type(notice).__name__)
            self._hearer(notice)
        self._follower(event)

    def snapshot(self) -> Snapshot:
        return self.state.snapshot()

    def trust(self) -> None:
        """Raise Refusal when the book can't be trusted."""
        reason = self.unfit()
        if reason is not None:
            raise Refusal(reason)
