"""How kvitej logs: one line per event on stderr, as text for people or as JSON for machines.

Our own lines come from structlog; those that libraries send to the standard library's logging take the same
shape.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def setup(level: Literal["debug", "info", "warning", "error"], form: Literal["text", "json"]) -> None:
    """Send every line of at least `level` to stderr; text is coloured on a terminal only.

    Libraries are heard from `warning` up, and at `debug` in full. HTTP accesses are never logged: a decision
    has its own line.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    ending: list[Processor]
    if form == "json":
        ending = [structlog.processors.JSONRenderer()]
    else:
        ending = [_on_one_line, structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else _plain]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(least if least == logging.DEBUG else max(least, logging.WARNING))
    logging.getLogger("aiohttp.access").disabled = True
    # It writes a traceback for bytes that are no HTTP; what goes wrong in a handler has a line of ours.
    logging.getLogger("aiohttp.server").disabled = True


def _plain(logger: WrappedLogger, name: str, event: EventDict) -> str:
    """What the console renderer gives without colours, at a fifth of its cost: a line is written per decision."""
    line = [event.pop("timestamp"), f"[{event.pop('level')}]", str(event.pop("event"))]
    exception = event.pop("exception", None)
    line += [f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in event.items()]
    return " ".join(line) + (f"\n{exception}" if exception else "")


def _on_one_line(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Escape what could break a line or forge one: names come from requests that anyone may have sent."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return event
