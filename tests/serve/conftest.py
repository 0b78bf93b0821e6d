"""A log in which nothing may be said at error level, for tests of bad input."""

import io
from collections.abc import Iterator

import pytest
import structlog
from structlog.typing import EventDict, WrappedLogger


class Log:
    """Everything is rendered as in production, and what is said at error level is kept."""

    def __init__(self) -> None:
        self.errors: list[EventDict] = []

    def keep(self, logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        if name in ("error", "critical", "exception") or event.get("exc_info"):
            self.errors.append(dict(event))
        return event


@pytest.fixture
def log() -> Iterator[Log]:
    kept = Log()
    structlog.configure(
        processors=[kept.keep, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")),
    )
    yield kept
    structlog.reset_defaults()
    assert not kept.errors
